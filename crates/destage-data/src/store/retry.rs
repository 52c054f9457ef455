//! Waiting before a session is tried again: longer each time, and never as long as the others.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_micros(100);
const LONGEST: Duration = Duration::from_millis(50);

/// The attempts at one session.
pub(super) struct Attempts {
    /// None: there is no end.
    until: Option<Instant>,
    count: u32,
    random: RandomState,
}

impl Attempts {
    pub(super) fn new(retry_timeout: Duration) -> Self {
        let until = Instant::now().checked_add(retry_timeout);
        Self { until, count: 0, random: RandomState::new() }
    }

    /// How many have failed.
    pub(super) fn failed(&self) -> u32 {
        self.count
    }

    /// Waits for the next one; false if the time for retries is over.
    pub(super) fn wait(&mut self) -> bool {
        let now = Instant::now();
        let left = self.until.map_or(Duration::MAX, |until| until.saturating_duration_since(now));
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(self.pause().min(left));
        self.count = self.count.saturating_add(1);
        true
    }

    /// Half to all of a span that doubles each time.
    fn pause(&self) -> Duration {
        let span = FIRST.saturating_mul(1 << self.count.min(16)).min(LONGEST);
        let share = self.random.hash_one(self.count) % 1_000;
        span / 2 + span.mul_f64(share as f64 / 2_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit_and_end_with_the_patience() {
        let mut attempts = Attempts::new(Duration::from_secs(60));
        assert!(attempts.pause() <= FIRST && attempts.pause() >= FIRST / 2);
        attempts.count = 40;
        assert!(attempts.pause() <= LONGEST && attempts.pause() >= LONGEST / 2);
        assert!(!Attempts::new(Duration::ZERO).wait());
    }

    #[test]
    fn a_session_may_be_tried_again_for_ever() {
        let mut attempts = Attempts::new(Duration::MAX);
        assert!(attempts.wait() && attempts.failed() == 1);
    }
}
