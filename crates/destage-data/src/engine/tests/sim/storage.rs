//! The journal's disk and the origin: what takes time, fails, and lands in between.

use super::{Event, Fetching, Flushing, Sim, Write};
use crate::engine::tests::shop;
use crate::engine::{DOMAIN, FetchJob};
use crate::origins::{Applied, OriginError, Snapshot};
use destage_core::{Fault, Lsn};
use destage_testkit::origin::{self, Fate, Group, Refusal};

impl Sim {
    pub(super) fn start_flush(&mut self) {
        let early = self.options.early_writes && self.engine.journal().buffered_bytes() > 600;
        if self.flushing.is_some() || !(self.wanted || early) {
            return;
        }
        let flush = self.engine.journal().take();
        let (sync, answers) = (self.wanted, self.wanted);
        self.flushing = Some(Flushing { flush, sync, answers, began: self.now, result: None });
        self.later(self.options.sync_ns, Event::FlushRun);
    }

    pub(super) fn run_flush(&mut self) {
        if let Some(flushing) = &mut self.flushing {
            flushing.result = Some(flushing.flush.run(flushing.sync));
        }
        self.later(self.options.sync_ns / 2, Event::FlushEnd);
    }

    pub(super) fn end_flush(&mut self) {
        let Some(Flushing { flush, answers, began, result, .. }) = self.flushing.take() else {
            return;
        };
        self.engine.journal().give_back(flush);
        let upto = result.expect("it ran").expect("the disk works");
        if answers {
            self.wanted = false;
            self.engine.synced(self.now, Ok((Lsn(upto), self.now.since(began))));
        }
    }

    pub(in crate::engine::tests) fn unavailable() -> OriginError {
        OriginError::new(Fault::Unavailable, "the model is away")
    }

    pub(super) fn read_fetch(&mut self, job: u64) {
        let Some(fetching) = self.fetching.get_mut(&job) else { return };
        if !self.down {
            let row = |job: &FetchJob| {
                let place = (usize::from(job.table.0), shop::key_of(&job.key));
                self.origin.rows.get(&place).map(shop::row_cells)
            };
            fetching.snapshot = Some(Snapshot {
                rows: fetching.jobs.iter().map(row).collect(),
                watermarks: vec![(DOMAIN, Lsn(self.origin.watermark))],
                seen: Vec::new(),
            });
        }
        self.later(self.options.fetch_ns, Event::FetchEnd(job));
    }

    pub(super) fn end_fetch(&mut self, job: u64) {
        let Some(Fetching { jobs, snapshot }) = self.fetching.remove(&job) else { return };
        match snapshot {
            Some(snapshot) => self.engine.fetched(self.now, jobs, snapshot),
            None => self.engine.fetch_failed(self.now, jobs, &Self::unavailable()),
        }
    }

    pub(super) fn read_scan(&mut self, job: u64) {
        let Some(scan) = self.scanning.get_mut(&job) else { return };
        if !self.down {
            let keys = self.origin.scan(scan.table, scan.after, scan.limit);
            let keys = keys.into_iter().map(|key| shop::key_cells(key).into()).collect();
            scan.page = Some((keys, Lsn(self.origin.watermark)));
        }
        self.later(self.options.fetch_ns, Event::ScanEnd(job));
    }

    pub(super) fn end_scan(&mut self, job: u64) {
        let Some(scan) = self.scanning.remove(&job) else { return };
        let result = scan.page.ok_or_else(Self::unavailable);
        self.engine.scanned(self.now, scan.request, result);
    }

    pub(super) fn run_write(&mut self) {
        let failed_before = self.down || self.rng.chance(self.options.fail_percent);
        if !failed_before {
            self.land_write(self.epoch);
        }
        let lost = self.rng.chance(self.options.lost_percent);
        if (failed_before || lost)
            && let Some(write) = self.writes.front_mut()
        {
            write.result = Some(Err(Self::unavailable()));
        }
        self.later(self.options.write_ns, Event::WriteEnd);
    }

    /// The transaction takes effect at the origin.
    pub(super) fn land_write(&mut self, epoch: u64) {
        let Some(write) = self.writes.front_mut() else { return };
        let claim = origin::Claim {
            epoch,
            expected: write.expected,
            unsafe_no_watermark: self.options.unsafe_no_watermark,
        };
        let result = match write.batch {
            Some(_) => {
                let groups = write.groups.iter();
                let groups: Vec<Group> = groups
                    .map(|(lsn, bytes)| Group { lsn: *lsn, changes: shop::changes(bytes) })
                    .collect();
                self.origin.apply(claim, &groups)
            }
            None if write.unparked.is_some() => {
                let result = self.land_unparked(epoch);
                return self.writes[0].result = Some(result);
            }
            None => self.origin.park(claim, write.groups[0].0, write.parked.clone()),
        };
        write.result = Some(result.map(|_| ()).map_err(error));
        self.check_origin();
    }

    /// Parked groups are applied after all, behind whatever the origin has taken since.
    fn land_unparked(&mut self, epoch: u64) -> Result<(), OriginError> {
        let Write { groups, unparked, .. } = &self.writes[0];
        let group = |(lsn, bytes): &(u64, Vec<u8>)| {
            assert_eq!(&self.history.entry(*lsn).bytes, bytes, "group {lsn} changed on its way");
            Group { lsn: *lsn, changes: shop::changes(bytes) }
        };
        let groups: Vec<Group> = groups.iter().map(group).collect();
        let parked = unparked.as_deref().unwrap_or_default();
        self.origin.unpark(epoch, parked, &groups).map_err(error)?;
        self.counts.unparked += groups.len() as u64;
        let rows = &mut self.mirror.1;
        for change in groups.iter().flat_map(|group| &group.changes) {
            let table = &self.history.tables[change.place.0];
            match origin::apply(table, rows.get(&change.place), change) {
                Some(row) => rows.insert(change.place, row),
                None => rows.remove(&change.place),
            };
        }
        self.check_origin();
        Ok(())
    }

    /// As the server finds out what became of it; `None` as long as the origin is away.
    fn look_for_unparked(&self, write: &Write) -> Option<Result<(), OriginError>> {
        let (Some(lsns), Some(result)) = (&write.unparked, &write.result) else {
            return Some(Ok(()));
        };
        match result.clone() {
            Err(error) if error.fault == Fault::Unavailable => {
                let is_there = lsns.iter().any(|lsn| self.origin.parked.contains_key(lsn));
                (!self.down).then_some(if is_there { Err(error) } else { Ok(()) })
            }
            result => Some(result),
        }
    }

    /// The origin holds exactly what was written up to its watermark, without what is parked.
    pub(super) fn check_origin(&mut self) {
        let (at, rows) = &mut self.mirror;
        for lsn in *at + 1..=self.origin.watermark {
            if self.origin.fates.get(&lsn) == Some(&Fate::Applied) {
                for change in &self.history.entry(lsn).changes {
                    let table = &self.history.tables[change.place.0];
                    let row = origin::apply(table, rows.get(&change.place), change);
                    match row {
                        Some(row) => rows.insert(change.place, row),
                        None => rows.remove(&change.place),
                    };
                }
            }
        }
        *at = (*at).max(self.origin.watermark);
        assert_eq!(
            *rows, self.origin.rows,
            "the origin at {} differs from the history",
            self.origin.watermark
        );
    }

    pub(super) fn end_write(&mut self) {
        let Some(write) = self.writes.pop_front() else { return };
        let Some(found) = self.look_for_unparked(&write) else {
            self.writes.push_front(write);
            return self.later(self.options.write_ns, Event::WriteEnd);
        };
        if !self.writes.is_empty() {
            self.later(self.options.write_ns, Event::WriteRun);
        }
        if write.unparked.is_some() {
            let result = found.map(|()| Applied::default());
            return self.engine.unparked(self.now, result);
        }
        let result = write.result.expect("it ran");
        match write.batch {
            Some(batch) => {
                let result = result.map(|()| Applied::default());
                self.engine.destaged(self.now, batch, result);
            }
            None => self.engine.parked(self.now, Lsn(write.groups[0].0), result),
        }
    }
}

fn error(refusal: Refusal) -> OriginError {
    match refusal {
        Refusal::Rejected(reason) => OriginError::new(Fault::Rejected, reason),
        Refusal::Fenced => OriginError::new(Fault::Fenced, "fenced"),
        Refusal::Elsewhere(at) => {
            OriginError::new(Fault::Failed, format!("the watermark is at {at}"))
        }
    }
}
