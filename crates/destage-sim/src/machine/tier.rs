//! One tier of a host: the core and what the driver knows beside it.

use super::report::Destage;
use super::settings::{Settings, Tier as TierSettings};
use super::task::{TaskId, Units};
use destage_core::ring::Ring;
use destage_core::{Access, Core, DomainId, Input, Lsn, PerUnit, Span, Time, UnitId};
use destage_engine::{CommitSettings, Ended, GroupCommit, Load, Log, News, Step};

/// Why a group is found.
const KEPT: &str = "undecided groups are kept";

/// A group that is not forgotten yet.
#[derive(Debug)]
pub(super) struct TierGroup {
    pub(super) units: Units,
    pub(super) stamp: Time,
    /// The access that waits for its settling.
    pub(super) owner: Option<TaskId>,
    /// The number of the write of each unit, where crashes are looked at.
    pub(super) versions: Vec<u32>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The newest group that wrote it, and the newest version that was sent below.
    newest: Lsn,
    sent: Lsn,
    /// Since when it has been dirty.
    since: Time,
    /// Undecided groups that wrote it.
    pending: u32,
}

/// A block of a batch, with the newest group of the batch that wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) unit: UnitId,
    lsn: Lsn,
}

/// Where a block lies in the unified architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Frame {
    #[default]
    None,
    Ram,
    Flash,
}

/// The places of the unified architecture.
#[derive(Debug)]
pub(super) struct Frames {
    of: PerUnit<Frame>,
    free_ram: i64,
}

/// A tier.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) core: Core,
    pub(super) host: u16,
    /// The tier below on the same host; the filer if none.
    pub(super) below: Option<u16>,
    /// Whether it works on a device rather than in memory.
    pub(super) has_medium: bool,
    pub(super) is_unordered: bool,
    pub(super) has_redo: bool,
    /// See [`TierSettings::rows`].
    pub(super) has_rows: bool,
    is_grouped: bool,
    pub(super) is_direct: bool,
    pub(super) ticks_first: bool,
    pub(super) needs_tick: bool,
    pub(super) timer: Option<Time>,
    pub(super) misses: Vec<UnitId>,
    /// Blocks of the newest groups that the medium does not hold.
    pub(super) unsynced: u64,
    /// When the log is written and made durable.
    pub(super) commit: GroupCommit,
    pub(super) known: PerUnit<Known>,
    pub(super) groups: Ring<TierGroup>,
    pub(super) frames: Option<Frames>,
    pub(super) dirty: u64,
    pub(super) counters: Counters,
    block: u32,
}

/// One write of the log at a time, with all that has come by then.
const COMMIT: CommitSettings = CommitSettings {
    lanes: 1,
    durable_writes: 0,
    here_max: None,
    write_ahead_bytes: usize::MAX,
    write_beside_bytes: usize::MAX,
    mark_after: None,
};

/// Counted since the measurement began.
#[derive(Debug, Default)]
pub(super) struct Counters {
    written: u64,
    on_dirty: u64,
    pub(super) allocated: u64,
    destaged: u64,
    bursts: u64,
    burst_at: Option<Time>,
    burst: u64,
    burst_max: u64,
    age_sum: u128,
    age_max: Span,
    pub(super) refused: u64,
    retries_before: u64,
    evictions_before: u64,
}

impl Tier {
    /// A tier in RAM or on flash; `below` is the tier under it.
    pub(super) fn new(settings: &Settings, host: u16, is_ram: bool, below: Option<u16>) -> Self {
        let tier = if is_ram { &settings.ram } else { &settings.flash };
        Self::with_size(settings, tier, host, is_ram, below, tier.size.get())
    }

    /// RAM and flash as one, by the settings of the flash.
    pub(super) fn unified(settings: &Settings, host: u16) -> Self {
        let (ram, flash) = (settings.ram.size.get(), settings.flash.size.get());
        let tier = Self::with_size(settings, &settings.flash, host, false, None, ram + flash);
        let free_ram = (ram / settings.block.get()) as i64;
        Self { frames: Some(Frames { of: PerUnit::default(), free_ram }), ..tier }
    }

    fn with_size(
        settings: &Settings,
        tier: &TierSettings,
        host: u16,
        is_ram: bool,
        below: Option<u16>,
        size: u64,
    ) -> Self {
        let block = settings.block.get();
        let policy = tier.core_policy(size / block, block, is_ram);
        let choice = tier.replacement.choice().expect("the settings were checked");
        let core = Core::new(Time::ZERO, policy).with_cache(choice, !tier.dirty_apart);
        Self {
            is_direct: core.policy().waits_for_origin(),
            ticks_first: !matches!(core.policy().when, destage_core::When::Async),
            core: if tier.counts_writes { core.counting_writes_only() } else { core },
            host,
            below,
            has_medium: !is_ram,
            is_unordered: tier.is_unordered(),
            is_grouped: tier.policy == super::WritePolicy::Journaled,
            has_redo: tier.policy == super::WritePolicy::Journaled
                && tier.redo
                && below.is_none()
                && !tier.rows,
            has_rows: tier.rows && !is_ram,
            needs_tick: false,
            timer: None,
            misses: Vec::new(),
            unsynced: 0,
            commit: GroupCommit::new(COMMIT, Time::ZERO),
            known: PerUnit::default(),
            groups: Ring::new(Lsn::ZERO),
            frames: None,
            dirty: 0,
            counters: Counters::default(),
            block: block as u32,
        }
    }

    /// Whether the tier holds a block, clean or dirty.
    pub(super) fn holds(&self, unit: UnitId) -> bool {
        self.core.is_present(unit)
    }

    /// Whether a block's content is known from a write that is not decided.
    pub(super) fn is_written(&self, unit: UnitId) -> bool {
        self.known.get(unit).is_some_and(|known| known.pending > 0)
    }

    /// Logs a group; units that were absent are to be noted as present by the caller.
    pub(super) fn log(
        &mut self,
        now: Time,
        units: Units,
        access: Access,
        owner: Option<TaskId>,
        versions: Vec<u32>,
    ) -> Lsn {
        let lsn = self.core.next_lsn();
        for &unit in units.as_slice() {
            self.wrote(now, unit, lsn);
        }
        let bytes = self.block * units.as_slice().len() as u32;
        let (one, many);
        let sizes: &[(UnitId, u32)] = match units.as_slice() {
            &[unit] => {
                one = [(unit, self.block)];
                &one
            }
            units => {
                many = units.iter().map(|&unit| (unit, self.block)).collect::<Vec<_>>();
                &many
            }
        };
        let group = destage_engine::Append {
            domains: &[DomainId(0)],
            units: sizes,
            bytes,
            journal_bytes: bytes,
            access,
            continues: false,
            builds_on: &[],
        };
        let kept = TierGroup { units: units.clone(), stamp: now, owner, versions };
        let groups = &mut self.groups;
        destage_engine::write(&mut self.core, now, &group, |lsn| groups.push(lsn, kept));
        self.needs_tick = true;
        lsn
    }

    /// Whether the log is to be written now.
    pub(super) fn next_flush(&mut self, now: Time) -> Option<Step> {
        let log = Log {
            buffered_bytes: (self.unsynced * u64::from(self.block)) as usize,
            written: self.core.committed(),
            is_light: false,
            is_direct: false,
            is_mark_due: false,
        };
        self.commit.next_due(now, log, Load::default())
    }

    /// The log holds everything up to here.
    pub(super) fn flushed(&mut self, now: Time, upto: Lsn) {
        self.commit.ended(now, Ended::WroteAndSynced { result: Ok(upto), took: Span::ZERO });
        while let Some(news) = self.commit.poll_news() {
            match news {
                News::Durable { upto, .. } if upto > self.core.committed() => {
                    self.core.handle(now, Input::Synced { upto, result: Ok(()) });
                }
                News::Durable { .. } => {}
                other => unreachable!("the log has one lane, room and no faults: {other:?}"),
            }
        }
    }

    fn wrote(&mut self, now: Time, unit: UnitId, lsn: Lsn) {
        let in_flash = self.take_frame(unit);
        self.unsynced += u64::from(in_flash || self.has_rows);
        let is_present = self.core.is_present(unit);
        let (is_unordered, keeps_groups) = (self.is_unordered, self.is_grouped);
        let known = self.known.reach(unit, Known::default());
        // The version before is needed: it stands for a state of its own, or is on its way.
        let is_kept =
            known.pending > 0 && !is_unordered && (!keeps_groups || known.newest <= known.sent);
        self.counters.written += 1;
        self.counters.allocated += u64::from(is_kept || (known.pending == 0 && !is_present));
        if known.newest > known.sent {
            self.counters.on_dirty += 1;
        } else {
            known.since = now;
            self.dirty += 1;
        }
        known.newest = lsn;
        known.pending += 1;
    }

    /// A group by its number.
    pub(super) fn group(&self, lsn: Lsn) -> &TierGroup {
        self.groups.get(lsn).expect(KEPT)
    }

    /// The number of the write whose version of a block was sent below last; 0 where crashes are not looked at.
    pub(super) fn version_sent(&self, unit: UnitId) -> u32 {
        let group = self.group(self.known[unit].sent);
        let index = group.units.as_slice().iter().position(|&other| other == unit);
        index.and_then(|index| group.versions.get(index)).copied().unwrap_or(0)
    }

    /// Takes out of a batch what has to be sent, by unit.
    pub(super) fn leave(&mut self, now: Time, lsns: &[Lsn]) -> Vec<Leaving> {
        let mut leaving = Vec::new();
        for &lsn in lsns {
            let group = self.group(lsn);
            leaving.extend(group.units.as_slice().iter().map(|&unit| Leaving { unit, lsn }));
        }
        // Of each block the newest version of the batch.
        leaving.sort_unstable_by_key(|block| (block.unit, std::cmp::Reverse(block.lsn)));
        leaving.dedup_by_key(|block| block.unit);
        let committed = self.core.committed();
        leaving.retain(|block| {
            let known = &mut self.known[block.unit];
            if known.sent >= block.lsn {
                return false;
            }
            // Without order the newest committed version stands for older ones.
            let version = if self.is_unordered && known.newest <= committed {
                known.newest
            } else {
                block.lsn
            };
            known.sent = version;
            let age = now.since(known.since);
            self.counters.age_sum += u128::from(age.0);
            self.counters.age_max = self.counters.age_max.max(age);
            if known.newest == version {
                self.dirty -= 1
            } else {
                // A newer version is left.
                known.since = self.groups.get(known.newest).expect(KEPT).stamp;
            }
            true
        });
        let counters = &mut self.counters;
        counters.destaged += leaving.len() as u64;
        if !leaving.is_empty() && counters.burst_at != Some(now) {
            (counters.burst_at, counters.burst) = (Some(now), 0);
            counters.bursts += 1;
        }
        counters.burst += leaving.len() as u64;
        counters.burst_max = counters.burst_max.max(counters.burst);
        leaving
    }

    /// A batch is over.
    pub(super) fn left(&mut self, lsns: &[Lsn], is_ok: bool) {
        for &lsn in lsns {
            let group = self.groups.get(lsn).expect(KEPT);
            for &unit in group.units.as_slice() {
                let known = &mut self.known[unit];
                if is_ok {
                    known.pending -= 1;
                } else if known.sent >= lsn {
                    // It is to be sent again.
                    self.dirty += u64::from(known.sent == known.newest);
                    known.sent = Lsn(lsn.0 - 1);
                }
            }
        }
    }

    pub(super) fn forget(&mut self, upto: Lsn) {
        self.groups.forget_while(|lsn, _| lsn <= upto);
    }

    /// Gives a block its place; whether that is on the medium.
    pub(super) fn take_frame(&mut self, unit: UnitId) -> bool {
        let Some(frames) = &mut self.frames else { return self.has_medium && !self.has_rows };
        let frame = frames.of.reach(unit, Frame::None);
        if *frame == Frame::None {
            *frame = if frames.free_ram > 0 { Frame::Ram } else { Frame::Flash };
            frames.free_ram -= i64::from(*frame == Frame::Ram);
        }
        *frame == Frame::Flash
    }

    /// A block has left: its place is free.
    pub(super) fn give_frame(&mut self, unit: UnitId) {
        let Some(frames) = &mut self.frames else { return };
        if let Some(frame) = frames.of.get_mut(unit) {
            frames.free_ram += i64::from(*frame == Frame::Ram);
            *frame = Frame::None;
        }
    }

    /// How many of the units lie on the medium.
    pub(super) fn on_medium(&self, units: &[UnitId]) -> u64 {
        let Some(frames) = &self.frames else {
            return if self.has_medium && !self.has_rows { units.len() as u64 } else { 0 };
        };
        let is_flash = |unit: &&UnitId| frames.of.get(**unit) == Some(&Frame::Flash);
        units.iter().filter(is_flash).count() as u64
    }

    /// Blocks that left since counting began.
    pub(super) fn sent(&self) -> u64 {
        self.counters.destaged
    }

    /// Counting begins anew.
    pub(super) fn reset(&mut self) {
        let status = self.core.status();
        self.counters = Counters {
            retries_before: status.retries,
            evictions_before: status.evictions,
            ..Counters::default()
        };
    }

    pub(super) fn add_to(&self, sum: &mut Destage, ages: &mut u128) {
        let counters = &self.counters;
        let status = self.core.status();
        sum.written_blocks += counters.written;
        sum.written_on_dirty += counters.on_dirty;
        sum.write_allocations += counters.allocated;
        sum.destaged_blocks += counters.destaged;
        sum.bursts += counters.bursts;
        sum.burst_max = sum.burst_max.max(counters.burst_max);
        sum.dirty_age_max = sum.dirty_age_max.max(counters.age_max.as_secs_f64());
        sum.staleness_max = sum.staleness_max.max(status.staleness_max.as_secs_f64());
        sum.dirty_left += self.dirty;
        sum.refused += counters.refused;
        sum.retries += status.retries - counters.retries_before;
        sum.evictions += status.evictions - counters.evictions_before;
        *ages += counters.age_sum;
    }
}
