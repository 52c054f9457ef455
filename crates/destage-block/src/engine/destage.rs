//! Batches: which version of each block is sent, and what follows when they have arrived.

use super::Volume;
use super::extents::ExtentMap;
use super::job::{DestageJob, Failure, From, Job, Part, Sent, Target, Work as JobWork};
use super::overlay::{Bytes, Version};
use crate::block::{Extent, Lba};
use destage_core::{BatchId, Fault, Input, Lsn, Order, UnitId};

impl Volume {
    /// The core wants a batch at the origin.
    pub(super) fn destage(&mut self, batch: BatchId) {
        let lsns = self.core.batch(batch).to_vec();
        if let (Some(membership), Some(&last)) = (&mut self.membership, lsns.last()) {
            return membership.want(batch, last);
        }
        self.batches_due.push_back(batch);
    }

    /// The next batch as a job. It is put together no sooner than there is nothing more urgent to do: at this moment clients
    /// are usually owed their replies.
    pub(super) fn take_batch(&mut self) -> Option<Job> {
        while let Some(batch) = self.batches_due.pop_front() {
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
            _ => self.cut_at_marks(lsns),
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

    /// Cuts a batch where an application said that the volume is consistent.
    fn cut_at_marks(&self, lsns: &[Lsn]) -> Vec<Vec<Lsn>> {
        let (Some(&first), Some(&last)) = (lsns.first(), lsns.last()) else { return Vec::new() };
        let mut parts = Vec::new();
        let mut rest = lsns;
        for &cut in self.cuts.range(first..last) {
            let (before, after) = rest.split_at(rest.partition_point(|&lsn| lsn <= cut));
            if !before.is_empty() {
                parts.push(before.to_vec());
            }
            rest = after;
        }
        parts.push(rest.to_vec());
        parts
    }

    /// Before a new level, the levels before it are marked as decided: a start then sends at most one level again, to an
    /// origin that holds nothing beyond that level. Without levels it is enough that a start finds no more blocks to send
    /// again than there are slots.
    fn mark_before(&mut self, lsns: &[Lsn], order: Order) -> Option<Lsn> {
        let level = self.overlay.get(*lsns.first()?)?.level;
        let is_new_level = order.has_levels() && self.upkeep.level_sent != Some(level);
        let unmarked_max = u64::from(self.slots.index().slots() / UNMARKED_DIVISOR);
        if !is_new_level && self.upkeep.unmarked_blocks < unmarked_max {
            return None;
        }
        self.upkeep.level_sent = Some(level);
        self.upkeep.unmarked_blocks = 0;
        Some(self.core.decided())
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
            let before = newest.unit.and_then(|unit| self.before.take(unit));
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
            for (&unit, &(lsn, _)) in &self.ahead {
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
                // What comes next begins anew: the level may have been marked or not.
                self.upkeep.level_sent = None;
                self.upkeep.unmarked_blocks = u64::MAX / 2;
                Err(failure.fault)
            }
        };
        let lost = match fault {
            Ok(()) => std::mem::take(&mut self.upkeep.not_cached),
            Err(_) => Vec::new(),
        };
        self.core.handle(self.now, Input::Destaged { batch, result: fault });
        lost.into_iter().for_each(|unit| self.drop_cached(unit));
    }

    fn batch_decided(&mut self, batch: BatchId, sent: &[Sent]) {
        for block in sent {
            self.counters.sent_blocks += u64::from(block.blocks);
            if let Some(unit) = block.unit {
                // Where many are ahead of their turn, memory is worth more than their copies.
                let content = block.content.clone().filter(|_| self.ahead.len() < AHEAD_KEPT_MAX);
                self.ahead.insert(unit, (block.lsn, content));
            }
        }
        let lsns = self.core.batch(batch).to_vec();
        self.measured.destaged(self.now, &lsns, &self.overlay);
        for lsn in lsns {
            self.cuts.remove(&lsn);
            let group = self.overlay.get(lsn);
            self.upkeep.unmarked_blocks += group.map_or(0, |group| group.units.len() as u64);
            let zeros = group.filter(|group| group.is_zeros()).map(|group| group.extents.clone());
            for (lba, unit) in self.overlay.decided(lsn) {
                self.before.forget(unit);
                // What was sent last is the newest there is, unless zeros follow.
                match self.ahead.remove(&unit) {
                    Some((_, Some(content)))
                        if self.overlay.zeroed(lba).is_none() && !self.installs.is_full() =>
                    {
                        self.keep(unit, content);
                    }
                    _ => self.upkeep.not_cached.push(unit),
                }
            }
            zeros.into_iter().flatten().for_each(|extent| self.drop_empty(extent));
        }
        // Only where a version was sent before its group's turn does it matter later.
        if self.core.policy().order != Order::Any {
            self.ahead.clear();
        }
        self.upkeep.changed(self.now);
    }

    /// Blocks that were read while they were zeros have handles and nothing in their slots.
    fn drop_empty(&mut self, extent: Extent) {
        for unit in self.slots.within(extent) {
            let is_empty = self.slots.crc(unit).is_none() && self.slots.loaded(unit).is_none();
            if is_empty && !self.overlay.is_written(unit) && !self.fetches.contains(unit) {
                self.upkeep.not_cached.push(unit);
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

/// Blocks sent ahead of their group's turn whose bytes are kept for their slots: 64 MiB.
const AHEAD_KEPT_MAX: usize = 16_384;
/// Decided blocks are marked once they are this share of the slots.
const UNMARKED_DIVISOR: u32 = 32;
