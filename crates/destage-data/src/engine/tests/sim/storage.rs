//! The journal's disk and the origin: what takes time, fails, and lands in between.

use super::{Event, Fetching, Flushing, Sim};
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
            None => self.origin.park(claim, write.groups[0].0, write.parked.clone()),
        };
        let error = |refusal| match refusal {
            Refusal::Rejected(reason) => OriginError::new(Fault::Rejected, reason),
            Refusal::Fenced => OriginError::new(Fault::Fenced, "fenced"),
            Refusal::Elsewhere(at) => {
                OriginError::new(Fault::Failed, format!("the watermark is at {at}"))
            }
        };
        write.result = Some(result.map(|_| ()).map_err(error));
        self.check_origin();
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
        if !self.writes.is_empty() {
            self.later(self.options.write_ns, Event::WriteRun);
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
