//! One measurement: a load before a cache before the paper's disks, under one policy.

use super::load::Stream;
use crate::sabotage::Sabotage;
use destage_core::{AtLimit, Span, When};
use destage_runtime::units::{Bytes, Interval};
use destage_sim::disk::TABLE_1_SSD_US;
use destage_sim::hits::Replacements;
use destage_sim::machine::{
    self, Arrivals, Device, Devices, Disk, DiskProfile, Report, Settings, Tier, WritePolicy,
};
use std::convert::Infallible;

/// How dirty blocks leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Policy {
    /// Written to the disks at once.
    Through,
    /// The paper's write-back: what is dirty stays until its room is needed, and then leaves write by write.
    OnDemand,
    /// Destage's: the same, but as a sorted batch.
    Back,
    /// Destage's `ordered`: from flush to flush.
    Ordered,
    /// The paper's order, of completion and issue.
    Strict,
    /// Destage's: groups of at most the journal, each with a copy in a redo store.
    Journaled,
    /// The same on storage that takes a group as a whole, as the paper's does.
    JournaledWhole,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup<'a> {
    pub(super) stream: &'a Stream,
    /// The cache, percent of what the stream touches.
    pub(super) cache_percent: u64,
    /// The journal, in the same percent: what may be dirty under a journaled policy.
    pub(super) journal_percent: u64,
    pub(super) policy: Policy,
    pub(super) replacement: Replacements,
    /// What a thread does between two requests.
    pub(super) think: Span,
    pub(super) seed: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Requests each second.
    pub(super) rate: f64,
    /// Blocks written to the disks for each block written, copies in a redo store included.
    pub(super) written: f64,
    /// Blocks that took room in the cache, of those written.
    pub(super) allocated: f64,
    /// How long a request takes on average, seconds. Transactions are rows of them, so their means
    /// are in the same ratio.
    pub(super) mean: f64,
    /// Half of the writes take at most so long, seconds.
    pub(super) median_write: f64,
    /// Of the blocks read those that the cache held, percent.
    pub(super) hits: f64,
    /// Blocks written to the redo store for each written in place.
    pub(super) redo: f64,
}

impl Setup<'_> {
    pub(super) fn measure(&self) -> Sample {
        let settings = self.settings();
        let requests = self.stream.requests.iter().copied().map(Ok::<_, Infallible>);
        let report = machine::run(requests, &settings).expect("the settings fit one another");
        Sample::of(&report)
    }

    fn settings(&self) -> Settings {
        Settings {
            flash: self.tier(),
            arrivals: Arrivals::Closed {
                threads: self.stream.threads,
                think: Interval(self.think),
            },
            warmup_requests: self.stream.requests.len() as u64 / 2,
            flush_every: self.stream.flush_every,
            devices: self.devices(),
            seed: self.seed,
            ..Settings::default()
        }
    }

    fn tier(&self) -> Tier {
        let cache = self.stream.set_bytes() * self.cache_percent / 100;
        let journal = (self.journal_percent * 100 / self.cache_percent).clamp(1, DIRTY_PERCENT);
        let cache = if Sabotage::HalfTheCache.is_on() { cache / 2 } else { cache };
        let (policy, dirty, low, batch_groups) = match self.policy {
            Policy::Through => (WritePolicy::WriteThrough, DIRTY_PERCENT, LOW_PERCENT, GROUPS_MAX),
            Policy::OnDemand => {
                (WritePolicy::WriteBack, DIRTY_PERCENT, LOW_ON_DEMAND, ON_DEMAND_GROUPS)
            }
            Policy::Back => (WritePolicy::WriteBack, DIRTY_PERCENT, LOW_PERCENT, GROUPS_MAX),
            Policy::Ordered => (WritePolicy::Ordered, DIRTY_PERCENT, LOW_PERCENT, GROUPS_MAX),
            Policy::Strict => (WritePolicy::Strict, DIRTY_PERCENT, LOW_ON_DEMAND, GROUPS_MAX),
            Policy::Journaled | Policy::JournaledWhole => {
                (WritePolicy::Journaled, journal, LOW_PERCENT, GROUPS_MAX)
            }
        };
        let is_unordered = match policy {
            WritePolicy::Ordered | WritePolicy::Strict => Sabotage::OrderedAsWriteBack.is_on(),
            WritePolicy::Journaled => Sabotage::JournaledAsWriteBack.is_on(),
            _ => false,
        };
        let is_fifo = Sabotage::FifoEverywhere.is_on();
        Tier {
            size: Bytes(cache),
            replacement: if is_fifo { Replacements::Fifo } else { self.replacement },
            policy: if is_unordered { WritePolicy::WriteBack } else { policy },
            when: When::OnPressure,
            staleness: Interval::NONE,
            at_limit: AtLimit::Block,
            dirty_percent: dirty as u8,
            low_percent: low as u8,
            batch_groups,
            batch: Bytes(1 << 30),
            redo: self.policy == Policy::Journaled,
            persistent: true,
            ..Tier::default()
        }
    }

    fn devices(&self) -> Devices {
        let us = |micros| Interval(Span::from_micros(micros));
        let flash = Device {
            read: us(TABLE_1_SSD_US.random_read),
            write: us(TABLE_1_SSD_US.random_write),
            next: us(FLASH_NEXT_US),
            ..Device::default()
        };
        let disk = Disk {
            profile: DiskProfile::Raid,
            size: Bytes(self.stream.end_bytes.max(1 << 20)),
            write_cache: Bytes(0),
        };
        Devices { flash, disk: Some(disk), ..Devices::default() }
    }
}

/// What may be dirty where no journal bounds it, percent of the cache: all but what reads on their way need.
const DIRTY_PERCENT: u64 = 95;
/// Down to which share of that a batch goes.
const LOW_PERCENT: u64 = 50;
/// On demand only the room that is needed is made.
const LOW_ON_DEMAND: u64 = 99;
/// On demand so many writes leave at a time, one for each disk.
const ON_DEMAND_GROUPS: u32 = 2;
/// Most groups of a batch that nothing else bounds.
const GROUPS_MAX: u32 = 65_536;
/// Each further 4 KiB of a request at the flash: 500 MB/s.
const FLASH_NEXT_US: u64 = 8;

impl Sample {
    /// The rate of another one over this one's.
    pub(super) fn over(self, of: Self) -> f64 {
        of.rate / self.rate
    }

    fn of(report: &Report) -> Self {
        let (reads, writes) = (&report.reads.latency, &report.writes.latency);
        let requests = reads.count + writes.count;
        let written = report.writes.counts.blocks.all.max(1) as f64;
        let sent = report.origin.write_blocks + report.origin.redo_blocks;
        Self {
            rate: requests as f64 / report.duration_seconds,
            written: sent as f64 / written,
            allocated: report.destage.write_allocations as f64 / written,
            mean: (reads.mean * reads.count as f64 + writes.mean * writes.count as f64)
                / requests as f64,
            median_write: report.writes.latency.p50,
            hits: 100.0 * report.reads.counts.blocks.ratio(),
            redo: report.origin.redo_blocks as f64 / report.origin.write_blocks.max(1) as f64,
        }
    }
}
