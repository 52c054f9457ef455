//! Simulators that are wrong on purpose, to show that the bounds of the figures notice. Only where tests may switch off what
//! promises rest on: see [`destage_engine::CONTROLS`].

use destage_core::When;
use std::sync::atomic::{AtomicU8, Ordering};

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Sabotage {
    /// Ordered write-back keeps no order.
    OrderedAsWriteBack = 1,
    /// Journaled write-back forms no groups.
    JournaledAsWriteBack,
    /// What came first leaves, under every policy of replacement.
    FifoEverywhere,
    /// Reads pass no write.
    NoReadPriority,
    /// Caches hold half.
    HalfTheCache,
    /// What is due by its age is written at the end of a period, with all that is dirty.
    IntervalAsPeriodic,
}

/// Of all figures of this process: they are many runs on many threads.
static NOW: AtomicU8 = AtomicU8::new(0);

impl Sabotage {
    /// Every way.
    pub const ALL: [Self; 6] = [
        Self::OrderedAsWriteBack,
        Self::JournaledAsWriteBack,
        Self::FifoEverywhere,
        Self::NoReadPriority,
        Self::HalfTheCache,
        Self::IntervalAsPeriodic,
    ];

    /// All figures of this process are wrong in this way from now on, or in none.
    ///
    /// # Panics
    /// In a build without controls.
    #[expect(clippy::assertions_on_constants, reason = "the constant is that of the build")]
    pub fn set(sabotage: Option<Self>) {
        assert!(destage_engine::CONTROLS, "this build cannot be wrong on purpose");
        NOW.store(sabotage.map_or(0, |sabotage| sabotage as u8), Ordering::SeqCst);
    }

    /// Whether figures are wrong in this way.
    pub(crate) fn is_on(self) -> bool {
        destage_engine::CONTROLS && NOW.load(Ordering::Relaxed) == self as u8
    }

    /// When an update policy writes, wrong or not.
    pub(crate) fn when(when: When) -> When {
        match when {
            When::Interval { age, .. } if Self::IntervalAsPeriodic.is_on() => {
                When::Periodic { every: age }
            }
            as_asked => as_asked,
        }
    }
}
