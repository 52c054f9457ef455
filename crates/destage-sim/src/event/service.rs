//! How long a device takes for a job.

use super::{Job, JobKind, Stream};
use destage_core::{Span, Time};
use std::fmt;

/// How long services take.
pub trait Service: fmt::Debug {
    /// The time that a service takes which begins at `now`; asked once for each, in their order.
    fn time(&mut self, now: Time, job: &Job) -> Span;
}

/// A disk by its mean times. A service takes a part that is uniform up to one rotation and a part that is uniform around what
/// remains of the mean.
#[derive(Debug)]
pub struct MeanTimes {
    access: Span,
    near: Span,
    rotation: Span,
    random: Stream,
    has_near_reads: bool,
    /// The block after what was served last, unless that was of no such kind.
    next: Option<u64>,
}

impl MeanTimes {
    /// A disk whose services take `access` on average, `near` where a write follows one to the block before it.
    pub fn new([access, near, rotation]: [Span; 3], random: Stream) -> Self {
        Self { access, near, rotation, random, has_near_reads: false, next: None }
    }

    /// A read takes `near` as well where it follows one to the block before it.
    #[must_use]
    pub fn with_near_reads(self) -> Self {
        Self { has_near_reads: true, ..self }
    }
}

impl Service for MeanTimes {
    fn time(&mut self, _: Time, job: &Job) -> Span {
        let can_follow = self.has_near_reads || job.kind == JobKind::Write;
        let follows = can_follow && self.next == Some(job.block);
        let mean = if follows { self.near } else { self.access };
        self.next = can_follow.then_some(job.block + job.blocks);
        let half = Span(self.rotation.0 / 2);
        let rest = self.random.around(mean.saturating_sub(half));
        Span(self.random.around(half).0 + rest.0)
    }
}

/// A server whose services are exponential, all of the same mean: that of queueing theory.
#[derive(Debug)]
pub struct ExponentialTimes {
    mean: Span,
    random: Stream,
}

impl ExponentialTimes {
    /// A server whose services take `mean` on average.
    pub fn new(mean: Span, random: Stream) -> Self {
        Self { mean, random }
    }
}

impl Service for ExponentialTimes {
    fn time(&mut self, _: Time, _: &Job) -> Span {
        self.random.exponential(self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: [Span; 3] = [Span::from_millis(18), Span::from_millis(8), Span::from_millis(11)];

    #[test]
    fn services_have_their_means() {
        let mean = |near: bool| {
            let mut disk = MeanTimes::new(MS, Stream::new(1, "disk"));
            let time = |id| {
                let block = if near { id } else { id * 50 };
                let job = Job { id, kind: JobKind::Write, block, blocks: 1 };
                disk.time(Time::ZERO, &job).0
            };
            (0..4_000).map(time).sum::<u64>() / 4_000 / 10_000
        };
        assert!((1_750..1_850).contains(&mean(false)), "{}", mean(false));
        assert!((770..830).contains(&mean(true)), "{}", mean(true));
    }
}
