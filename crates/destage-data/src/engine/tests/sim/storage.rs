//! The origin: what takes time, fails, and lands in between.

use super::{Event, Fetching, Sim, Work, Write};
use crate::change::token_records;
use crate::domains::Partition;
use crate::engine::FetchJob;
use crate::engine::tests::{sets, shop};
use crate::origins::{Applied, OriginError, Snapshot, Watermarks};
use crate::schema::TableId;
use destage_core::{DomainId, Fault, Lsn};
use destage_testkit::origin::{self, Fate, ModelGroup, Origin, Refusal};

impl Sim {
    pub(in crate::engine::tests) fn unavailable() -> OriginError {
        OriginError::new(Fault::Unavailable, "the model is away")
    }

    pub(super) fn read_fetch(&mut self, job: u64) {
        let Some(fetching) = self.fetching.get_mut(&job) else { return };
        let schema = self.engine.schema();
        let table = schema.table(fetching.jobs[0].table);
        if !self.down && table.part.is_some() {
            let key = &fetching.jobs[0].key;
            fetching.snapshot = Some(sets::read(&self.origin, schema, table, key));
        } else if !self.down {
            let row = |job: &FetchJob| {
                let place = (usize::from(job.table.0), shop::key_of(&job.key));
                self.origin.rows.get(&place).map(shop::row_cells)
            };
            fetching.snapshot = Some(Snapshot {
                rows: fetching.jobs.iter().map(row).collect(),
                watermarks: watermarks(&self.origin),
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
            let watermarks = watermarks(&self.origin);
            scan.page = Some((keys, watermarks));
        }
        self.later(self.options.fetch_ns, Event::ScanEnd(job));
    }

    pub(super) fn end_scan(&mut self, job: u64) {
        let Some(scan) = self.scanning.remove(&job) else { return };
        let result = scan.page.ok_or_else(Self::unavailable);
        self.engine.scanned(self.now, scan.request, result);
    }

    pub(super) fn run_write(&mut self, job: u64) {
        let failed_before = self.down || self.rng.chance(self.options.fail_percent);
        if !failed_before {
            self.land_write(job, self.epoch);
        }
        let lost = self.rng.chance(self.options.lost_percent);
        if (failed_before || lost)
            && let Some(write) = self.writes.get_mut(&job)
        {
            write.result = Some(Err(Self::unavailable()));
        }
        self.later(self.options.write_ns, Event::WriteEnd(job));
    }

    /// The transaction takes effect at the origin.
    pub(super) fn land_write(&mut self, job: u64, epoch: u64) {
        let Some(write) = self.writes.get_mut(&job) else { return };
        let claim = origin::Claim { epoch, unsafe_no_watermark: self.options.unsafe_no_watermark };
        let marks = &write.marks;
        let result = match write.work {
            Work::MarkAll => self.origin.mark(claim, marks[0], &marks[1..]),
            Work::Batch(_) => {
                let groups = write.groups.iter();
                let groups: Vec<ModelGroup> = groups
                    .map(|(lsn, bytes)| ModelGroup { lsn: *lsn, changes: shop::changes(bytes) })
                    .collect();
                self.origin.apply(claim, marks, &groups)
            }
            Work::Park => {
                let parked = write.parked.clone();
                self.origin.park(claim, marks, write.groups[0].0, parked)
            }
            Work::Unpark => {
                let result = self.land_unparked(job, epoch);
                if let Some(write) = self.writes.get_mut(&job) {
                    write.result = Some(result);
                }
                return;
            }
        };
        write.result = Some(result.map(|_| ()).map_err(error));
        self.check_built_upon(job);
        self.imply(job);
        self.check_origin();
    }

    /// A batch that has landed holds no transaction that watched what is parked there: that one is parked behind it. Domains do
    /// not wait for one another, and what raw SQL that is parked would do to a row, nobody has seen.
    fn check_built_upon(&self, job: u64) {
        let write = &self.writes[&job];
        let is_batch = matches!((write.work, &write.result), (Work::Batch(_), Some(Ok(()))));
        let is_simple = self.options.domains.is_none() && !self.options.raw;
        if !is_batch || !is_simple || self.options.rewind.is_some() {
            return;
        }
        for (lsn, _) in &write.groups {
            let watching = self.history.entry(*lsn).command.and_then(|n| self.watching.get(&n));
            let Some(watching) = watching else { continue };
            let mut below = self.origin.parked.keys().filter(|&other| other < lsn);
            let parked = below.find(|other| self.history.touches(**other, &watching.places));
            assert_eq!(parked, None, "group {lsn} was applied though it builds on a parked one");
        }
    }

    /// Parked groups are applied after all, behind whatever the origin has taken since.
    fn land_unparked(&mut self, job: u64, epoch: u64) -> Result<(), OriginError> {
        let Write { groups, unparked, .. } = &self.writes[&job];
        let group = |(lsn, bytes): &(u64, Vec<u8>)| {
            let (written, changes) = (self.history.entry(*lsn), shop::changes(bytes));
            // What a group tells of a token is not parked with it.
            let is_same = match token_records(&written.bytes).next() {
                Some(_) => written.changes == changes,
                None => written.bytes == *bytes,
            };
            assert!(is_same, "group {lsn} changed on its way: {written:?}, {changes:?}");
            ModelGroup { lsn: *lsn, changes }
        };
        let groups: Vec<ModelGroup> = groups.iter().map(group).collect();
        self.origin.unpark(epoch, unparked, &groups).map_err(error)?;
        self.counts.unparked += groups.len() as u64;
        self.imply(job);
        let rows = &mut self.mirror.1;
        let implied =
            |group: &ModelGroup| self.origin.implied.get(&group.lsn).into_iter().flatten();
        for change in groups.iter().flat_map(|group| group.changes.iter().chain(implied(group))) {
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
        let (Work::Unpark, Some(result)) = (write.work, &write.result) else {
            return Some(Ok(()));
        };
        match result.clone() {
            Err(error) if error.fault == Fault::Unavailable => {
                let is_there =
                    write.unparked.iter().any(|lsn| self.origin.parked.contains_key(lsn));
                (!self.down).then_some(if is_there { Err(error) } else { Ok(()) })
            }
            result => Some(result),
        }
    }

    /// Up to where a domain is decided, as its own watermark says.
    pub(super) fn reached(&self, origin: &Origin, domain: u16) -> u64 {
        origin.at(if self.options.unsafe_flags.one_watermark { 0 } else { domain })
    }

    /// What the groups of a job have changed besides at the origin: whoever asks that may see it.
    fn imply(&mut self, job: u64) {
        let landed: Vec<u64> = self.writes[&job].groups.iter().map(|(lsn, _)| *lsn).collect();
        for &lsn in &landed {
            let Some(changes) = self.origin.implied.get(&lsn) else { continue };
            if self.history.entry(lsn).implied.is_empty() {
                self.counts.implied += changes.len() as u64;
                let fates = &self.origin.fates;
                let is_before = |other: u64| {
                    fates.get(&other) == Some(&Fate::Applied)
                        && (other <= lsn || !landed.contains(&other))
                };
                self.history.imply(lsn, changes, is_before);
            }
        }
    }

    /// The engine is told that these are applied: everybody sees what came along.
    fn told(&mut self, groups: &[(u64, Vec<u8>)]) {
        for (lsn, _) in groups {
            self.history.entry_mut(*lsn).implied_at.get_or_insert(self.now);
        }
    }

    /// A parked group was given up: nobody sees it from now on.
    pub(super) fn skip(&mut self, lsn: u64) {
        self.counts.skipped += 1;
        self.history.entry_mut(lsn).skipped = Some(self.now);
    }

    /// The origin holds exactly what was written up to the watermark of each domain, without what is parked.
    pub(super) fn check_origin(&mut self) {
        let partition = self.engine.partition().clone();
        for domain in partition.ids() {
            let upto = self.reached(&self.origin, domain.0);
            let from = self.mirror.0[usize::from(domain.0)] + 1;
            for lsn in from..=upto {
                self.mirror_group(&partition, domain, lsn);
            }
            self.mirror.0[usize::from(domain.0)] = upto.max(from - 1);
        }
        assert_eq!(
            self.mirror.1, self.origin.rows,
            "the origin at {:?} differs from the history",
            self.mirror.0
        );
    }

    /// Repeats a decided group's changes of the rows of a domain.
    fn mirror_group(&mut self, partition: &Partition, domain: DomainId, lsn: u64) {
        let entry = self.history.entry(lsn);
        let in_domain = |place: origin::Place| {
            partition.of_row(TableId(place.0 as u16), &shop::key_cells(place.1)) == domain
        };
        let implied = self.origin.implied.get(&lsn).into_iter().flatten();
        let changes = entry.changes.iter().chain(implied);
        let mut changes = changes.filter(|change| in_domain(change.place)).peekable();
        let fate = self.origin.fates.get(&lsn);
        let is_ours = changes.peek().is_some();
        assert!(!is_ours || fate.is_some(), "group {lsn} is behind the watermark and undecided");
        if fate != Some(&Fate::Applied) {
            return;
        }
        for change in changes {
            let table = &self.history.tables[change.place.0];
            match origin::apply(table, self.mirror.1.get(&change.place), change) {
                Some(row) => self.mirror.1.insert(change.place, row),
                None => self.mirror.1.remove(&change.place),
            };
        }
    }

    pub(super) fn watermarks(&self) -> Watermarks {
        watermarks(&self.origin)
    }

    pub(super) fn end_write(&mut self, job: u64) {
        let Some(write) = self.writes.remove(&job) else { return };
        let Some(found) = self.look_for_unparked(&write) else {
            self.writes.insert(job, write);
            return self.later(self.options.write_ns, Event::WriteEnd(job));
        };
        let result = write.result.expect("it ran");
        match write.work {
            Work::MarkAll => {
                let upto = Lsn(write.marks[0].upto);
                self.engine.marked_all(self.now, upto, result);
            }
            Work::Batch(batch) => {
                if result.is_ok() {
                    self.told(&write.groups);
                }
                let result = result.map(|()| Applied::default());
                self.engine.destaged(self.now, batch, result);
            }
            Work::Park => {
                if write.parked.is_some() && result.is_ok() {
                    self.parked.insert(write.groups[0].0, None);
                }
                self.engine.parked(self.now, Lsn(write.groups[0].0), result);
            }
            Work::Unpark => {
                if found.is_ok() {
                    self.parked.extend(write.unparked.iter().map(|&lsn| (lsn, Some(self.now))));
                    self.told(&write.groups);
                    if write.groups.is_empty() {
                        write.unparked.iter().for_each(|&lsn| self.skip(lsn));
                    }
                }
                let is_hidden = self.options.unsafe_hides_skips && write.groups.is_empty();
                let told = if is_hidden { Err(Self::unavailable()) } else { found };
                self.engine.unparked(self.now, told.map(|()| Applied::default()));
            }
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

/// All watermarks, as a read of the origin finds them.
pub(in crate::engine::tests) fn watermarks(origin: &Origin) -> Watermarks {
    let others = origin.others.iter().map(|(&domain, &at)| (DomainId(domain), Lsn(at)));
    std::iter::once((DomainId(0), Lsn(origin.watermark))).chain(others).collect()
}
