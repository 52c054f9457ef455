//! What one server has said over the last minutes.

use destage_runtime::status::Report;
use std::collections::VecDeque;

/// So many answers are kept.
const ANSWERS_MAX: usize = 300;

/// The last report, and what came of those before it.
#[derive(Debug, Default)]
pub(super) struct History {
    last: Option<Report>,
    points: VecDeque<Point>,
}

/// One answer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Point {
    pub(super) writes: f64,
    pub(super) commands: f64,
    pub(super) hits: f64,
    pub(super) staleness: f64,
    pub(super) dirty_bytes: u64,
}

impl History {
    pub(super) fn push(&mut self, report: Report) {
        let mut point = Point {
            staleness: report.rpo.total_loss_seconds,
            dirty_bytes: dirty_bytes(&report),
            ..Point::default()
        };
        if let Some(before) = &self.last {
            let time = report.uptime_seconds - before.uptime_seconds;
            let rate = |get: fn(&Report) -> u64| {
                // A server that was started again counts from 0.
                let more = get(&report).saturating_sub(get(before));
                if time > 0.0 { more as f64 / time } else { 0.0 }
            };
            (point.writes, point.commands, point.hits) = (rate(writes), rate(commands), rate(hits));
        }
        self.points.push_back(point);
        if self.points.len() > ANSWERS_MAX {
            self.points.pop_front();
        }
        self.last = Some(report);
    }

    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    pub(super) fn last(&self) -> Option<(&Report, Point)> {
        Some((self.last.as_ref()?, *self.points.back()?))
    }

    /// Values over time, oldest first, as whole numbers of thousandths.
    pub(super) fn line(&self, get: fn(&Point) -> f64) -> Vec<u64> {
        self.points.iter().map(|point| (get(point) * 1_000.0) as u64).collect()
    }
}

fn writes(report: &Report) -> u64 {
    if report.volumes.is_empty() {
        report.writes.groups_total
    } else {
        requests(report, |kind| matches!(kind, "write" | "zero" | "trim"))
    }
}

fn commands(report: &Report) -> u64 {
    if report.volumes.is_empty() {
        report.clients.commands_total
    } else {
        requests(report, |_| true)
    }
}

fn requests(report: &Report, counts: fn(&str) -> bool) -> u64 {
    let kinds = report.volumes.iter().flat_map(|volume| &volume.requests);
    kinds.filter(|asked| counts(&asked.kind)).map(|asked| asked.requests_total).sum()
}

fn hits(report: &Report) -> u64 {
    if report.volumes.is_empty() {
        report.cache.hits_total
    } else {
        report.volumes.iter().map(|volume| volume.hit_blocks_total).sum()
    }
}

fn dirty_bytes(report: &Report) -> u64 {
    if report.volumes.is_empty() {
        report.writes.limited_bytes
    } else {
        report.volumes.iter().map(|volume| volume.dirty_bytes).sum()
    }
}
