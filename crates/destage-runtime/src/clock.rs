//! The time that live front ends hand to the core: stamps that keep their meaning across restarts and never go back.

use destage_core::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// Nanoseconds since the Unix epoch: the wall clock is read once, then `CLOCK_MONOTONIC` advances it, so that setting the
/// wall clock never moves it. Clones share one time line.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
    /// The time at `start`; only grows.
    base: Arc<AtomicU64>,
}

impl Clock {
    /// A clock that shows the wall clock's time now.
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::starting_at(Time(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// A clock that shows `time` now.
    pub fn starting_at(time: Time) -> Self {
        Self { start: Instant::now(), base: Arc::new(AtomicU64::new(time.0)) }
    }

    /// The current time, not before any time returned earlier.
    #[inline]
    pub fn now(&self) -> Time {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Time(self.base.load(Ordering::Acquire).saturating_add(elapsed))
    }

    /// Moves the clock forward to `time` if it stands before it: the newest stamp of a journal that was written before the
    /// wall clock was set back. Ages then count from that stamp on.
    pub fn not_before(&self, time: Time) {
        let elapsed = u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.base.fetch_max(time.0.saturating_sub(elapsed), Ordering::AcqRel);
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Span;

    #[test]
    fn never_goes_back_even_when_moved_to_a_later_stamp() {
        let clock = Clock::starting_at(Time::from_secs(100));
        let mut last = clock.now();
        assert!(last >= Time::from_secs(100));
        for step in 0..1_000u64 {
            if step == 500 {
                clock.not_before(Time::from_secs(200));
            }
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(last >= Time::from_secs(200));
        clock.not_before(Time::from_secs(50));
        assert!(clock.now() >= last);
    }

    #[test]
    fn starts_at_the_wall_clock_and_clones_share_the_line() {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let clock = Clock::new();
        let off = clock.now().since(Time(wall.as_nanos() as u64));
        assert!(off < Span::from_secs(5), "{off:?}");
        let twin = clock.clone();
        clock.not_before(clock.now() + Span::from_secs(60));
        assert!(twin.now().since(Time(wall.as_nanos() as u64)) >= Span::from_secs(60));
    }
}
