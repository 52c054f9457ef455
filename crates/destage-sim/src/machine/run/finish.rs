//! What a run came to.

use super::super::crash::Watch;
use super::super::device;
use super::super::report::{Destage, Kind, Overload, Report, StationLoad};
use super::super::tier::Tier;
use super::{Machine, Side};
use crate::blocks::mix;
use crate::event::Station;
use destage_core::{Span, Time};

/// More came than could be done if the last answer is later than the last request by this share of the run.
const OVERLOAD_SHARE: f64 = 0.05;
/// What waits for less is a burst.
const OVERLOAD_SECONDS_MIN: f64 = 1.0;

impl Machine<'_> {
    pub(super) fn report(mut self) -> Report {
        let seen = std::mem::take(&mut self.seen);
        let duration = seen.until.since(seen.since.unwrap_or_default());
        let has_two = self.levels == 2;
        let destage = self.destaged(|tier| tier.below.is_none());
        let ram_destage = has_two.then(|| self.destaged(|tier| tier.below.is_some()));
        let mut report = Report {
            version: env!("CARGO_PKG_VERSION"),
            settings: self.settings.clone(),
            reads: seen.reads.kind(),
            writes: seen.writes.kind(),
            flushes: seen.flushes,
            discards: seen.discards,
            failed: seen.failed,
            overload: None,
            interrupted: self.meter.is_stopped().then_some(self.pending),
            distinct_blocks: self.blocks.len(),
            origin: self.origin,
            destage,
            ram_destage,
            invalidated: seen.invalidated,
            invalidated_requests: seen.invalidated_requests,
            crashes: self.watch.take().map(Watch::into_crashes).unwrap_or_default(),
            stations: self.loads(&seen.busy_before, duration),
            duration_seconds: duration.as_secs_f64(),
            hash: String::new(),
        };
        report.overload = self.overload(&report, seen.until);
        // Every count, in the one form that says them all.
        let counts = format!("{report:?}");
        let hash = counts.bytes().fold(seen.hash, |hash, byte| mix(hash ^ u64::from(byte)));
        report.hash = format!("{hash:016x}");
        report
    }

    fn overload(&self, report: &Report, until: Time) -> Option<Overload> {
        let (at, waiting) = self.last_arrival.filter(|_| report.interrupted.is_none())?;
        let behind_seconds = until.since(at).as_secs_f64();
        let busiest = report.stations.iter().max_by(|a, b| a.busy.total_cmp(&b.busy))?;
        let bound = (report.duration_seconds * OVERLOAD_SHARE).max(OVERLOAD_SECONDS_MIN);
        let busiest = busiest.name.clone();
        (behind_seconds > bound).then_some(Overload { behind_seconds, waiting, busiest })
    }

    fn destaged(&self, is_asked: impl Fn(&Tier) -> bool) -> Destage {
        let (mut sum, mut ages) = (Destage::default(), 0);
        let tiers = self.tiers.iter().filter(|tier| is_asked(tier));
        tiers.for_each(|tier| tier.add_to(&mut sum, &mut ages));
        sum.burst_mean = sum.destaged_blocks as f64 / sum.bursts.max(1) as f64;
        sum.dirty_age_mean = ages as f64 / 1e9 / sum.destaged_blocks.max(1) as f64;
        sum
    }

    fn loads(&self, before: &[(u64, Span)], duration: Span) -> Vec<StationLoad> {
        let load = |(index, (served, busy)): (usize, (u64, Span))| {
            let is_filer = index == self.stations.len() - 1;
            let (name, servers) = match &self.disk {
                Some(_) if is_filer => ("disk".into(), 1),
                _ if is_filer => ("filer".into(), self.stations[index].servers()),
                _ => (device::name_of(index as u16), self.stations[index].servers()),
            };
            let (served_before, busy_before) = before.get(index).copied().unwrap_or_default();
            let worked = busy.saturating_sub(busy_before).as_secs_f64();
            let all = duration.as_secs_f64() * servers as f64;
            let busy = if all > 0.0 { worked / all } else { 0.0 };
            StationLoad { name, served: served - served_before, busy }
        };
        self.served_by_now().into_iter().enumerate().map(load).collect()
    }

    /// What each device has served so far, and for how long it worked; of a modelled disk the mean of its arms.
    pub(super) fn served_by_now(&self) -> Vec<(u64, Span)> {
        let mut all: Vec<_> = self.stations.iter().map(Station::served).collect();
        if let (Some(last), Some(disk)) = (all.last_mut(), &self.disk) {
            *last = disk.served();
        }
        all
    }
}

impl Side {
    fn kind(&self) -> Kind {
        let blocks = self.counts.blocks.all.max(1) as f64;
        Kind {
            counts: self.counts,
            latency: self.gathered.latency(),
            block_mean_seconds: self.gathered.total_seconds() / blocks,
        }
    }
}
