//! Waiting for events: by looking again and again for a moment if they have been coming quickly, else asleep.
//!
//! To be woken takes a thread some ten microseconds, on virtual machines more. A client with one request at a time pays that
//! for every request, as often as the disk's own time.

use mio::{Events, Poll};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How to wait.
#[derive(Debug)]
pub(super) struct Spin {
    /// Longest time awake; zero to sleep at once.
    limit: Duration,
    /// What waits have taken lately, each counted as at most [`GAP_MAX`].
    usual: Duration,
}

impl Spin {
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, usual: GAP_MAX }
    }

    /// Waits for events, until `timeout` has passed.
    ///
    /// # Errors
    /// As the system reports them.
    pub(super) fn wait(
        &mut self,
        poll: &mut Poll,
        events: &mut Events,
        timeout: Duration,
    ) -> io::Result<()> {
        let began = Instant::now();
        let awake = self.awake().min(timeout);
        while began.elapsed() < awake {
            poll.poll(events, Some(Duration::ZERO))?;
            if !events.is_empty() {
                self.note(began.elapsed());
                return Ok(());
            }
            thread::yield_now();
        }
        poll.poll(events, Some(timeout.saturating_sub(began.elapsed())))?;
        self.note(began.elapsed());
        Ok(())
    }

    fn awake(&self) -> Duration {
        // Where the next event is not expected in time, the wait would only cost.
        if self.usual > self.limit { Duration::ZERO } else { self.limit }
    }

    fn note(&mut self, gap: Duration) {
        self.usual = (self.usual * (WEIGHT - 1) + gap.min(GAP_MAX)) / WEIGHT;
    }
}

/// A longer wait counts as this one, so that a pause is soon forgotten.
const GAP_MAX: Duration = Duration::from_millis(1);
/// One in so many is the share of the newest wait.
const WEIGHT: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use mio::{Token, Waker};

    const LIMIT: Duration = Duration::from_micros(50);

    fn quick() -> Spin {
        let mut spin = Spin::new(LIMIT);
        (0..100).for_each(|_| spin.note(Duration::from_micros(5)));
        spin
    }

    #[test]
    fn it_stays_awake_only_where_events_come_quickly() {
        assert_eq!(Spin::new(LIMIT).awake(), Duration::ZERO, "nothing has come yet");
        let mut spin = quick();
        assert_eq!((spin.awake(), spin.usual < LIMIT), (LIMIT, true));
        // One pause is enough, and is soon forgotten.
        spin.note(Duration::from_secs(1));
        assert_eq!(spin.awake(), Duration::ZERO);
        (0..20).for_each(|_| spin.note(Duration::from_micros(5)));
        assert_eq!(spin.awake(), LIMIT);
        let mut never = Spin { limit: Duration::ZERO, ..quick() };
        never.note(Duration::ZERO);
        assert_eq!(never.awake(), Duration::ZERO);
    }

    #[test]
    fn awake_or_asleep_it_finds_what_came_and_keeps_to_the_timeout() {
        for mut spin in [Spin::new(LIMIT), quick()] {
            let mut poll = Poll::new().unwrap();
            let waker = Waker::new(poll.registry(), Token(7)).unwrap();
            let mut events = Events::with_capacity(8);
            let timeout = Duration::from_millis(20);
            let began = Instant::now();
            spin.wait(&mut poll, &mut events, timeout).unwrap();
            assert!(events.is_empty() && began.elapsed() >= Duration::from_millis(19));
            waker.wake().unwrap();
            spin.wait(&mut poll, &mut events, Duration::from_secs(60)).unwrap();
            assert_eq!(events.iter().map(|event| event.token()).collect::<Vec<_>>(), [Token(7)]);
        }
    }
}
