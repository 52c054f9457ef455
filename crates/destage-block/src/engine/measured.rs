//! How long the volume's writes take: to the log, and to the origin.

use super::Volume;
use super::overlay::Overlay;
use destage_core::{Lsn, Span, Time};
use destage_runtime::latency::{Latency, SizeWindow};
use destage_runtime::status::{Latencies, Sizes};

/// Distributions of the last minutes.
#[derive(Debug)]
pub(super) struct Measured {
    commit: Latency,
    destage: Latency,
    sync: Latency,
    batch_groups: SizeWindow,
}

/// What [`Volume::latencies`] tells.
#[derive(Clone, Copy, Debug)]
pub struct VolumeLatencies {
    /// From a write to its durability in the log.
    pub commit: Latencies,
    /// From a write to its arrival at the origin.
    pub destage: Latencies,
    /// Of a sync of the log.
    pub sync: Latencies,
    /// Write groups in a batch.
    pub batch_groups: Sizes,
}

impl Measured {
    pub(super) fn new(now: Time) -> Self {
        Self {
            commit: Latency::new(now),
            destage: Latency::new(now),
            sync: Latency::new(now),
            batch_groups: SizeWindow::new(now),
        }
    }

    /// A sync took so long, with the hand-over.
    pub(super) fn synced(&mut self, now: Time, took: Span) {
        self.sync.record(now, took);
    }

    /// Records the oldest group that a sync made durable, of those that were not: the others waited less.
    pub(super) fn committed(&mut self, now: Time, before: Lsn, upto: Lsn, overlay: &Overlay) {
        if upto > before
            && let Some(group) = overlay.get(before.next())
        {
            self.commit.record(now, now.since(group.written_at));
        }
    }

    /// Records a batch's oldest and newest group.
    pub(super) fn destaged(&mut self, now: Time, lsns: &[Lsn], overlay: &Overlay) {
        for lsn in lsns.first().into_iter().chain(lsns.last()) {
            if let Some(group) = overlay.get(*lsn) {
                self.destage.record(now, now.since(group.written_at));
            }
        }
        if !lsns.is_empty() {
            self.batch_groups.record(now, lsns.len() as u64);
        }
    }
}

impl Volume {
    /// How long its writes and syncs took over the last minutes.
    pub fn latencies(&mut self) -> VolumeLatencies {
        let (measured, now) = (&mut self.measured, self.now);
        VolumeLatencies {
            commit: measured.commit.summary(now),
            destage: measured.destage.summary(now),
            sync: measured.sync.summary(now),
            batch_groups: measured.batch_groups.summary(now),
        }
    }
}
