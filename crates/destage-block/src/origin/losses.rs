//! Flushes that tell the truth about writes that were lost before them.

use super::{OriginIoError, OriginIoErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Counts how often writes may have been lost, and lets no flush succeed that would hide it.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    count: AtomicU64,
    /// One flush at a time, so that nobody's succeeds beside another one's that fails. Holds the count that the last flush
    /// has told of.
    told: Mutex<u64>,
}

impl Losses {
    /// See [`super::Origin::losses`].
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Writes that no flush covered may be lost: the next flush fails.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Flushes by `flush`. Fails as well where writes were lost that this flush should cover.
    pub(crate) fn flush(
        &self,
        name: &str,
        flush: impl FnOnce() -> Result<(), OriginIoError>,
    ) -> Result<(), OriginIoError> {
        let begun = self.count();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let flushed = flush();
        if flushed.is_err() {
            self.add();
        }
        let count = self.count();
        let told = std::mem::replace(&mut *told, count);
        flushed?;
        if count == begun && count == told {
            return Ok(());
        }
        let message = format!(
            "{name} may have lost writes before they were flushed (a flush failed, or a connection broke): everything since \
             the last good flush must be written again"
        );
        Err(OriginIoError::new(OriginIoErrorKind::Unavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_fails_one_flush_and_is_counted() {
        let losses = Losses::default();
        losses.flush("it", || Ok(())).unwrap();
        losses.add();
        let lost = losses.flush("it", || Ok(())).unwrap_err();
        assert_eq!(lost.kind, OriginIoErrorKind::Unavailable);
        losses.flush("it", || Ok(())).unwrap();
        assert_eq!(losses.count(), 1);
    }

    #[test]
    fn a_flush_that_fails_fails_those_who_began_before_it_ended() {
        let losses = Losses::default();
        let failed = || Err(OriginIoError::new(OriginIoErrorKind::Failed, "the disk"));
        std::thread::scope(|scope| {
            let mut waiter = None;
            let first = losses.flush("it", || {
                let (began, begun) = std::sync::mpsc::channel();
                let losses = &losses;
                waiter = Some(scope.spawn(move || {
                    let before = losses.count();
                    began.send(()).unwrap();
                    (before, losses.flush("it", || Ok(())))
                }));
                begun.recv().unwrap();
                failed()
            });
            assert_eq!(first.unwrap_err().kind, OriginIoErrorKind::Failed);
            let (before, second) = waiter.unwrap().join().unwrap();
            // Either its flush failed as well, or it began after the first had ended; the count tells it in both cases.
            assert!(second.is_err() || losses.count() != before);
        });
        losses.flush("it", || Ok(())).unwrap();
    }

    #[test]
    fn a_loss_during_a_flush_fails_it() {
        let losses = Losses::default();
        let lost = losses.flush("it", || {
            losses.add();
            Ok(())
        });
        lost.unwrap_err();
        losses.flush("it", || Ok(())).unwrap();
    }
}
