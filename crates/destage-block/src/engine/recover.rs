//! Opening a volume: what an earlier run left in the log, the index and the marks.
//!
//! Three things are read, and none of them is believed beyond what it was made durable for:
//!
//! - the *marks* say up to which Lsn the origin has come. They may lag: then groups are sent again that the origin has, which
//!   changes nothing, since a group says what blocks become;
//! - the *index* says which slots held clean blocks at a checkpoint;
//! - the *log* says what was written. Everything after the marks is dirty again. Everything after the checkpoint makes the
//!   clean copies of its blocks outdated: so the log is read from whichever of the two is older, and each record first drops
//!   what it outdates and then, if it is undecided, becomes a group of the core.
//!
//! Clean blocks are handed to the core last. Dirty ones need their handles first, and may have to take them from clean ones.

use super::batches::Batches;
use super::fetches::Fetches;
use super::log::VolumeLog;
use super::member::Membership;
use super::overlay::{LoggedGroup, Overlay};
use super::pre_image::PreImages;
use super::requests::Requests;
use super::slots::Slots;
use super::upkeep::Upkeep;
use super::waits::Wait;
use super::write::group_bytes;
use super::write_through::WriteThrough;
use super::{DOMAIN, Shape, Volume, VolumeOptions};
use crate::block::{BLOCK, Lba};
use crate::cache::record::{GroupKind, GroupSummary, RecordError};
use crate::cache::{CacheDevice, CacheError, Index, SlotState};
use destage_core::consistency::Ordered;
use destage_core::{Core, Input, Lsn, Order, Policy, Time, UnitId, WaitFor};
use destage_engine::{Drive, VOLUME_SLOTS_MIN, fit_volume, reserved_slots};
use destage_journal::{Journal, Recovery, Summary};
use destage_runtime::mode_log::ModeLog;
use destage_runtime::progress::Progress;
use std::ops::Range;
use std::sync::Arc;

/// What a volume is made of.
#[derive(Debug)]
pub struct Parts {
    /// The cache device, open.
    pub cache: Arc<CacheDevice>,
    /// Its journal, open.
    pub journal: Journal,
    /// What was found in the journal.
    pub recovery: Recovery,
    /// Bytes of the origin.
    pub size: u64,
    /// The policy. Limits are cut to what the cache device holds.
    pub policy: Policy,
    /// Everything else.
    pub options: VolumeOptions,
    /// The last group that the redo store has brought to the origin, after its recovery; `None` without one.
    pub applied: Option<Lsn>,
    /// Most bytes that an atomic group may have, as the redo store says; `None` without one.
    pub atomic_bytes_max: Option<u64>,
}

/// Why a volume cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The cache device.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The log.
    #[error(transparent)]
    Log(#[from] destage_journal::Error),
    /// A record of the log.
    #[error("failed to read write {lsn} of the log: {source}")]
    Record {
        /// Its number.
        lsn: u64,
        /// What is wrong with it.
        source: RecordError,
    },
    /// The policy, or a size.
    #[error("{0}")]
    Invalid(String),
}

/// Which blocks the log writes after some group: what the origin may hold although what is known of it is older.
#[derive(Debug)]
pub struct Logged {
    /// The origin holds everything up to here, as far as the cache knows.
    pub decided: Lsn,
    /// In ascending order, none of them touching another.
    runs: Vec<Range<u64>>,
}

impl Logged {
    /// What a log holds after `upto`.
    ///
    /// # Errors
    /// [`OpenError`] if it cannot be read.
    pub fn after(upto: Lsn, cache: &CacheDevice, recovery: &Recovery) -> Result<Self, OpenError> {
        let mut written = Vec::new();
        let mut summaries = recovery.summaries(upto.0 + 1);
        while let Some(summary) = summaries.advance()? {
            let broken = |source| OpenError::Record { lsn: summary.lsn, source };
            let group =
                GroupSummary::decode(summary.summary, summary.payload_bytes).map_err(broken)?;
            let extents = group.header.extents.iter();
            written.extend(extents.map(|extent| extent.first.0..extent.end().0));
        }
        Ok(Self { decided: decided(cache, recovery), runs: joined(written) })
    }

    /// Whether a block is among them.
    pub fn contains(&self, lba: Lba) -> bool {
        let index = self.runs.partition_point(|run| run.end <= lba.0);
        self.runs.get(index).is_some_and(|run| run.contains(&lba.0))
    }
}

/// The same blocks in as few runs as there can be, in ascending order.
fn joined(mut written: Vec<Range<u64>>) -> Vec<Range<u64>> {
    written.sort_unstable_by_key(|run| run.start);
    let mut runs: Vec<Range<u64>> = Vec::new();
    for run in written {
        match runs.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => runs.push(run),
        }
    }
    runs
}

/// Everything up to here is at the origin, as the cache's marks say; what the log has let go was as well.
pub(super) fn decided(cache: &CacheDevice, recovery: &Recovery) -> Lsn {
    Lsn(cache.decided().max(recovery.first_lsn - 1))
}

impl Volume {
    /// Opens a volume. `now` is the wall clock's time in nanoseconds since the Unix epoch, as it is for every call: the
    /// ages of what an earlier run left are counted from it.
    ///
    /// # Errors
    /// [`OpenError`] tells what is wrong; nothing has been changed.
    pub fn open(parts: Parts, now: Time) -> Result<Self, OpenError> {
        let Parts { cache, mut journal, recovery, size, policy, options, applied, .. } = parts;
        let shape = shape(&cache, &journal, size, parts.atomic_bytes_max)?;
        let policy = fit(&policy, &shape, cache.slots());
        check_policy(&policy, &shape).map_err(|message| OpenError::Invalid(message.into()))?;
        let first_lsn = if options.unsafe_reclaim_past_checkpoint { 0 } else { recovery.first_lsn };
        let (index, checkpoint) = cache.load_checkpoint(first_lsn)?;
        let decided = decided(&cache, &recovery).max(applied.unwrap_or_default());
        if decided.0 > journal.last() {
            journal.skip_to(decided.0 + 1);
        }
        let is_void = index.used() == 0;
        // A dirty block's slot is no memory, and `fit` bounds how many there are.
        let core = Core::resume(now, policy, decided).counting_writes_only();
        let upkeep = Upkeep::new(cache, now, Lsn(checkpoint), &options);
        let mut volume = Self::empty(now, core, journal, index, options, shape, upkeep);
        // An earlier run that wrote through may have left the origin unflushed. It left a checkpoint that lists nothing.
        if is_void && !recovery.created {
            volume.write_through.begin();
        }
        volume.recover(&recovery, Lsn(checkpoint), decided)?;
        Ok(volume)
    }

    fn empty(
        now: Time,
        core: Core,
        journal: Journal,
        index: Index,
        options: VolumeOptions,
        shape: Shape,
        upkeep: Upkeep,
    ) -> Self {
        let decided = core.decided();
        let pre_images = PreImages::new(options.unsafe_outdated_before);
        Self {
            now,
            overlay: Overlay::new(decided.next(), options.memory_bytes_max),
            core: core.into(),
            modes: ModeLog::of_volume(&options.name),
            log: VolumeLog::new(journal, now),
            slots: Slots::new(index),
            requests: Requests::new(&options),
            membership: options.group_clock.map(|clock| Membership::new(clock, decided)),
            write_through: WriteThrough::new(options.unsafe_bypass_log),
            fetches: Fetches::new(options.fetch_patience),
            shape,
            fragments: super::fragment::Fragments::default(),
            next_id: 0,
            waits: super::waits::Waits::default(),
            batches: Batches::new(pre_images),
            upkeep,
            service: super::service::Service::default(),
            jobs: super::jobs::Jobs::default(),
            counters: super::status::Counters::default(),
            measured: super::measured::Measured::new(now),
        }
    }

    fn recover(
        &mut self,
        recovery: &Recovery,
        checkpoint: Lsn,
        decided: Lsn,
    ) -> Result<(), OpenError> {
        let before = checkpoint.min(decided);
        let mut summaries = recovery.summaries(before.0 + 1);
        let last = Lsn(self.log.journal.last());
        let mut bar = Progress::new("replaying the log", last.0.saturating_sub(before.0));
        destage_engine::recover(self, self.now, last, |volume| {
            let Some(summary) = summaries.advance()? else { return Ok::<_, OpenError>(false) };
            bar.set(summary.lsn.saturating_sub(before.0));
            volume.take_record(&summary, checkpoint, decided)?;
            Ok(true)
        })?;
        bar.finish();
        self.restore_clean();
        self.pump();
        self.upkeep.forget(decided);
        if self.core.policy().waits_for_origin() && self.undecided() > 0 {
            // What an earlier policy left goes first; writes wait.
            self.service.change_policy(self.core.policy().clone());
            self.wait_for(Wait::Policy, self.last(), WaitFor::Decided);
        }
        self.pump();
        Ok(())
    }

    fn take_record(
        &mut self,
        record: &Summary<'_>,
        checkpoint: Lsn,
        decided: Lsn,
    ) -> Result<(), OpenError> {
        let lsn = Lsn(record.lsn);
        self.note_recovered_stamp(record.stamp_ns);
        let broken = |source| OpenError::Record { lsn: lsn.0, source };
        let group = GroupSummary::decode(record.summary, record.payload_bytes).map_err(broken)?;
        let lbas: Vec<Lba> = group.header.extents.iter().flat_map(|extent| extent.iter()).collect();
        let end = self.shape.size.div_ceil(BLOCK as u64);
        if lbas.iter().any(|lba| lba.0 >= end) {
            return Err(OpenError::Invalid(format!(
                "write {} of the log reaches beyond the volume of {} bytes: the origin has shrunk",
                lsn.0, self.shape.size
            )));
        }
        let kind = group.header.kind;
        let is_undecided = lsn > decided;
        let has_handles = is_undecided && kind == GroupKind::Write;
        if (is_undecided || lsn > checkpoint) && !has_handles {
            lbas.iter().for_each(|&lba| self.drop_outdated(lba));
        }
        if !is_undecided {
            return Ok(());
        }
        let mut units = Vec::new();
        if has_handles {
            units.reserve_exact(lbas.len());
            for &lba in &lbas {
                units.push(self.handle_for(lba)?);
            }
        }
        self.upkeep.logged(lsn, kind);
        if kind == GroupKind::Mark {
            self.batches.cut_after(lsn);
        }
        let told = destage_engine::Recovered {
            lsn,
            stamp: Time(record.stamp_ns),
            domains: &[DOMAIN],
            level: group.header.level,
            units: &units,
            bytes: group_bytes(kind, lbas.len() as u64),
            journal_bytes: record.payload_bytes,
            is_continued: self.overlay.last().is_some_and(|last| last.continues),
            builds_on: &[],
        };
        self.tell_recovered(self.now, &told);
        let entry = LoggedGroup {
            kind,
            level: group.header.level,
            extents: group.header.extents,
            units: units.clone(),
            crcs: group.crcs,
            data: None,
            offset_in_batch: 0,
            at: Some(record.at),
            is_decided: false,
            continues: group.header.continues,
            // Which streams there were is forgotten: it is kept as any other.
            passes_by: false,
            written_at: Time(record.stamp_ns),
        };
        self.overlay.skip_to(lsn);
        self.overlay.push(lsn, entry);
        self.put_in_order(Ordered {
            lsn,
            stamp: record.stamp_ns,
            bytes: (units.len() * BLOCK) as u64,
            is_mark: kind == GroupKind::Mark,
            continues: group.header.continues,
        });
        self.make_present(&units);
        Ok(())
    }

    /// A clean copy that the log knows a later version of.
    fn drop_outdated(&mut self, lba: Lba) {
        if let Some(unit) = self.slots.find(lba)
            && !self.overlay.is_written(unit)
        {
            self.slots.evict(unit);
        }
    }

    /// A handle for a dirty block, whose clean copy, if there is one, is outdated; other clean ones give way.
    fn handle_for(&mut self, lba: Lba) -> Result<UnitId, OpenError> {
        if let Some(unit) = self.slots.find(lba) {
            if !self.overlay.is_written(unit) {
                self.slots.set_undefined(unit);
            }
            return Ok(unit);
        }
        if self.slots.free_len() == 0 {
            let mut handles = (0..self.slots.index().slots()).map(UnitId);
            let clean = handles.find(|&unit| self.slots.crc(unit).is_some());
            let clean = clean.ok_or_else(|| {
                OpenError::Invalid(
                    "the log holds more dirty blocks than the cache has slots".into(),
                )
            })?;
            self.slots.evict(clean);
        }
        Ok(self.slots.take_new(lba))
    }

    /// Tells the core of the clean blocks.
    fn restore_clean(&mut self) {
        let mut clean = Vec::with_capacity(RESTORED_TOGETHER);
        for handle in (0..self.slots.index().slots()).rev() {
            if let SlotState::Clean(_) = self.slots.index().state(handle) {
                clean.push(UnitId(handle));
            }
            if clean.len() == RESTORED_TOGETHER || handle == 0 {
                let bytes = BLOCK as u32;
                self.core.handle(self.now, Input::Restored { units: &clean, bytes });
                clean.clear();
            }
        }
        self.pump();
    }
}

/// Whether a volume of this shape can keep a policy.
pub(super) fn check_policy(policy: &Policy, shape: &Shape) -> Result<(), &'static str> {
    policy.validate().map_err(|error| error.0)?;
    match policy.order {
        Order::Unit { .. } => {
            Err("a volume has no order per unit: use any, epoch, strict or domain")
        }
        Order::Domain if shape.atomic_bytes_max.is_none() && !policy.waits_for_origin() => {
            Err("the journaled policy needs a redo store: name one, or choose another policy")
        }
        _ => Ok(()),
    }
}

fn shape(
    cache: &CacheDevice,
    journal: &Journal,
    size: u64,
    atomic_bytes_max: Option<u64>,
) -> Result<Shape, OpenError> {
    let (geometry, slots) = (cache.geometry(), cache.slots());
    if slots < VOLUME_SLOTS_MIN {
        return Err(OpenError::Invalid(format!(
            "the cache has {slots} slots, and a volume needs at least {VOLUME_SLOTS_MIN}: make it larger"
        )));
    }
    let reserve = reserved_slots(slots);
    // Half of a segment takes the longest record.
    let by_record = journal.payload_bytes_max() / (2 * BLOCK);
    let fragment_blocks_max = FRAGMENT_BLOCKS_MAX.min(reserve / 4).min(by_record as u32).max(1);
    // A group's table of checksums takes room as well.
    let atomic = atomic_bytes_max.map_or(u32::MAX, |bytes| (bytes / 2 / BLOCK as u64) as u32);
    Ok(Shape {
        size,
        fragment_blocks_max,
        write_blocks_max: WRITE_BLOCKS_MAX.min(reserve / 2).min(atomic).max(fragment_blocks_max),
        zero_blocks_max: ZERO_BLOCKS_MAX,
        line_blocks_max: u64::from(reserve / 2),
        log_bytes: geometry.log_bytes(),
        segment_bytes: geometry.segment_bytes,
        atomic_bytes_max,
    })
}

/// A policy whose limits the cache device can keep.
pub(super) fn fit(policy: &Policy, shape: &Shape, slots: u32) -> Policy {
    let mut policy = policy.clone();
    let block = BLOCK as u64;
    fit_volume(&mut policy, slots, block, shape.log_bytes);
    // A group's table of checksums takes room as well.
    let atomic = shape.atomic_bytes_max.map_or(u64::MAX, |bytes| (bytes / 2).max(block));
    policy.limits.batch_bytes_max = policy.limits.batch_bytes_max.min(atomic);
    policy
}

/// Longest fragment of a read or write, in blocks: 1 MiB.
const FRAGMENT_BLOCKS_MAX: u32 = 256;
/// Longest fragment of a write, in blocks: 32 MiB, which no request exceeds.
const WRITE_BLOCKS_MAX: u32 = 8_192;
/// Longest fragment that is zeroed, in blocks: 64 MiB.
const ZERO_BLOCKS_MAX: u32 = 16_384;
/// Clean blocks that the core is told of together.
const RESTORED_TOGETHER: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_what_was_written_and_nothing_else() {
        let logged =
            |written: &[Range<u64>]| Logged { decided: Lsn::ZERO, runs: joined(written.to_vec()) };
        assert!(!logged(&[]).contains(Lba(0)));
        let some = logged(&[8..9, 0..2, 4..6, 1..3, 5..6, 2..3, 9..11]);
        assert_eq!(some.runs, [0..3, 4..6, 8..11]);
        let inside = [0, 1, 2, 4, 5, 8, 9, 10];
        for lba in 0..13 {
            assert_eq!(some.contains(Lba(lba)), inside.contains(&lba), "block {lba}");
        }
    }
}
