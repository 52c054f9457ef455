//! Who waits for the result of a command, and how it ends when nobody does any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whoever asked for a command. What takes long, as a drain does, looks at it every now and then.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    until: Option<Instant>,
    gone: Arc<AtomicBool>,
}

/// Why nobody waits any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// The time that the caller gave is over.
    TimedOut,
    /// The caller has hung up.
    HungUp,
}

impl Caller {
    /// One who waits for as long as it takes.
    pub fn patient() -> Self {
        Self::default()
    }

    /// One who waits for so long; what ends in no imaginable time is no limit.
    pub fn within(limit: Duration) -> Self {
        Self { until: Instant::now().checked_add(limit), ..Self::default() }
    }

    /// Whether nobody waits any more, and why.
    pub fn gone(&self) -> Option<Gone> {
        if self.gone.load(Ordering::Relaxed) {
            return Some(Gone::HungUp);
        }
        self.until.is_some_and(|until| Instant::now() >= until).then_some(Gone::TimedOut)
    }

    /// Until when the caller is there: until this is dropped.
    pub(super) fn present(&self) -> Present {
        Present(Arc::clone(&self.gone))
    }
}

/// A caller who has not hung up.
pub(super) struct Present(Arc<AtomicBool>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_leaves_when_the_time_is_over_or_the_connection_ends() {
        assert_eq!(Caller::patient().gone(), None);
        assert_eq!(Caller::within(Duration::MAX).gone(), None);
        assert_eq!(Caller::within(Duration::ZERO).gone(), Some(Gone::TimedOut));
        let caller = Caller::within(Duration::from_secs(3_600));
        let present = caller.present();
        assert_eq!(caller.clone().gone(), None);
        drop(present);
        assert_eq!(caller.gone(), Some(Gone::HungUp));
    }
}
