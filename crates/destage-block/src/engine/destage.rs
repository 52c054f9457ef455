//! Batches: which version of each block is sent, and what follows when they have arrived.

use super::Volume;
use super::extents::ExtentMap;
use super::job::{DestageJob, Failure, From, Job, Part, Sent, Target, Work as JobWork};
use super::overlay::{Bytes, Version};
use crate::block::{Extent, Lba};
use destage_core::{BatchId, Fault, Input, Lsn, Order, UnitId};
use destage_engine::Drive;

impl Volume {
    /// The core wants a batch at the origin.
    pub(super) fn destage(&mut self, batch: BatchId) {
        let lsns = self.core.batch(batch).to_vec();
        if let (Some(membership), Some(&last)) = (&mut self.membership, lsns.last()) {
            return membership.want(batch, last);
        }
        self.batches.push(batch);
    }

    /// The next batch as a job. It is put together no sooner than there is nothing more urgent to do: at this moment clients
    /// are usually owed their replies.
    pub(super) fn take_batch(&mut self) -> Option<Job> {
        while let Some(batch) = self.batches.pop() {
            let lsns = self.core.batch(batch).to_vec();
            match self.plan(batch, &lsns) {
                Ok(job) => return Some(job),
                Err(failure) => self.destage_done(batch, &[], Err(failure)),
            }
            self.pump();
        }
        self.jobs.pop()
    }

    fn plan(&mut self, batch: BatchId, lsns: &[Lsn]) -> Result<Job, Failure> {
        let order = self.core.policy().order;
        let parts = match order {
            // Without order newer versions stand for older ones, so no part may undo what one before it sends.
            Order::Any => vec![lsns.to_vec()],
            _ => self.batches.cut(lsns),
        };
        let parts: Result<Vec<Part>, Failure> =
            parts.into_iter().map(|lsns| self.part(&lsns, order)).collect();
        let parts = parts?;
        let is_atomic = order == Order::Domain;
        let mark = self.mark_before(lsns, order);
        let job = DestageJob { batch, mark, is_atomic, parts };
        job.pins().into_iter().for_each(|lsn| self.log.pin(lsn));
        Ok(Job(JobWork::Destage(job)))
    }

    /// Up to where the cache device is to say that the origin has come before some groups are sent, if that is due.
    fn mark_before(&mut self, lsns: &[Lsn], order: Order) -> Option<Lsn> {
        let level = self.overlay.get(*lsns.first()?)?.level;
        let slots = self.slots.index().slots();
        self.batches.is_mark_due(level, order.has_levels(), slots).then(|| self.core.decided())
    }

    /// What to send for some groups: of each block the newest version.
    pub(super) fn part(&mut self, lsns: &[Lsn], order: Order) -> Result<Part, Failure> {
        let mut targets = Vec::new();
        // A batch may end with a request of which the log holds a part only.
        let upto = self.core.committed().max(lsns.last().copied().unwrap_or_default());
        for (extent, newest) in self.newest(lsns, order).iter() {
            let Some(version) = self.version_to_send(extent.first, newest, order, upto) else {
                continue;
            };
            let from = self.from(extent.first, version)?;
            let is_kept = self.overlay.get(version.lsn).is_some_and(|group| !group.passes_by);
            let before = newest.unit.and_then(|unit| self.batches.take_pre_image(unit));
            let (unit, lsn) = (newest.unit, version.lsn);
            targets.push(Target { extent, unit, lsn, from, is_kept, before });
        }
        let zero = Lsn::ZERO;
        let (from, upto) = (lsns.first().unwrap_or(&zero), lsns.last().unwrap_or(&zero));
        Ok(Part { from: *from, upto: *upto, targets })
    }

    /// Of each block of some groups the newest version.
    fn newest(&self, lsns: &[Lsn], order: Order) -> ExtentMap<Newest> {
        let mut newest = ExtentMap::default();
        for &lsn in lsns {
            let group = self.overlay.get(lsn).expect("undecided groups are kept");
            for (index, (lba, unit)) in group.blocks().enumerate() {
                let version = Version { lsn, index: index as u32 };
                newest.insert(one(lba), Newest { unit: Some(unit), version });
            }
            if group.is_zeros() {
                let zeros = Newest { unit: None, version: Version { lsn, index: 0 } };
                group.extents.iter().for_each(|&extent| newest.insert(extent, zeros));
            }
        }
        if order == Order::Any {
            // Zeros must not come over what was sent ahead of its turn.
            for (unit, lsn) in self.batches.ahead() {
                newest.remove_if(one(self.slots.lba(unit)), |newest| newest.version.lsn <= lsn);
            }
        }
        newest
    }

    /// Without order the newest version up to a group stands for older ones: what a crash cannot take back, and the batch
    /// itself; `None` if that is zeros, which are sent in their turn.
    fn version_to_send(
        &self,
        lba: Lba,
        newest: Newest,
        order: Order,
        upto: Lsn,
    ) -> Option<Version> {
        let (Some(unit), Order::Any) = (newest.unit, order) else { return Some(newest.version) };
        let version = self.overlay.newest_upto(unit, upto).unwrap_or(newest.version);
        let zeroed = self.overlay.zeroed(lba).filter(|&lsn| lsn <= upto);
        (zeroed <= Some(version.lsn)).then_some(version)
    }

    fn from(&mut self, lba: Lba, version: Version) -> Result<From, Failure> {
        Ok(match self.overlay.bytes(version) {
            Bytes::Zero { punch } => From::Zero { punch },
            Bytes::Memory { data, at, crc } => From::Memory { data, at, crc },
            Bytes::Log { at, crc } => {
                let file =
                    self.log.journal.segment_reader(at.segment).map_err(|error| Failure {
                        fault: Fault::Unavailable,
                        message: format!("failed to read block {} from the log: {error}", lba.0),
                    })?;
                From::Log { file, offset: at.offset, crc }
            }
        })
    }

    /// A batch is at the origin, durably, or not.
    pub(super) fn destage_done(
        &mut self,
        batch: BatchId,
        sent: &[Sent],
        result: Result<(), Failure>,
    ) {
        let fault = match result {
            Ok(()) => {
                self.batch_decided(batch, sent);
                Ok(())
            }
            Err(failure) => {
                tracing::warn!(fault = ?failure.fault, "failed to destage: {}", failure.message);
                self.counters.note_origin_error(&failure.message);
                self.batches.failed();
                Err(failure.fault)
            }
        };
        let lost = match fault {
            Ok(()) => self.batches.take_not_cached(),
            Err(_) => Vec::new(),
        };
        self.core.handle(self.now, Input::Destaged { batch, result: fault });
        lost.into_iter().for_each(|unit| self.drop_cached(unit));
    }

    fn batch_decided(&mut self, batch: BatchId, sent: &[Sent]) {
        for block in sent {
            self.counters.sent_blocks += u64::from(block.blocks);
            if let Some(unit) = block.unit {
                self.batches.sent(unit, block.lsn, block.content.clone());
            }
        }
        let lsns = self.core.batch(batch).to_vec();
        self.measured.destaged(self.now, &lsns, &self.overlay);
        for lsn in lsns {
            let group = self.overlay.get(lsn);
            self.batches.decided(lsn, group.map_or(0, |group| group.units.len()));
            let zeros = group.filter(|group| group.is_zeros()).map(|group| group.extents.clone());
            for (lba, unit) in self.overlay.decided(lsn) {
                // What was sent last is the newest there is, unless zeros follow.
                match self.batches.take_sent(unit) {
                    Some(content)
                        if self.overlay.zeroed(lba).is_none()
                            && !self.slots.has_many_installs() =>
                    {
                        self.slots.keep(unit, content);
                    }
                    _ => self.batches.not_cached(unit),
                }
            }
            zeros.into_iter().flatten().for_each(|extent| self.drop_empty(extent));
        }
        // Only where a version was sent before its group's turn does it matter later.
        if self.core.policy().order != Order::Any {
            self.batches.none_ahead();
        }
        self.upkeep.changed(self.now);
    }

    /// Blocks that were read while they were zeros have handles and nothing in their slots.
    fn drop_empty(&mut self, extent: Extent) {
        for unit in self.slots.within(extent) {
            let is_empty = self.slots.crc(unit).is_none() && self.slots.loaded(unit).is_none();
            if is_empty && !self.overlay.is_written(unit) && !self.fetches.contains(unit) {
                self.batches.not_cached(unit);
            }
        }
    }
}

/// The newest version of some blocks in a batch.
#[derive(Clone, Copy, Debug)]
struct Newest {
    /// The block's handle; `None` for zeros.
    unit: Option<UnitId>,
    version: Version,
}

fn one(lba: Lba) -> Extent {
    Extent { first: lba, blocks: 1 }
}
