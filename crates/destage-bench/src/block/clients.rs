//! The clients of a load: threads that work until whoever watches has seen enough.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Result;

/// How far a load has come.
#[derive(Debug)]
pub(crate) struct Progress {
    operations: AtomicU64,
    /// Of the reads since they were last asked for, nanoseconds.
    reads: Mutex<Histogram<u64>>,
}

/// How long reads took, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ReadTimes {
    pub(crate) mean_us: f64,
    pub(crate) median_us: f64,
    pub(crate) p99_us: f64,
}

impl Progress {
    fn new() -> Result<Self> {
        Ok(Self {
            operations: AtomicU64::new(0),
            reads: Mutex::new(Histogram::new_with_bounds(1, READ_NANOS_MAX, 2)?),
        })
    }

    /// Operations that have ended.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    /// Runs a read and keeps its time.
    ///
    /// # Errors
    ///
    /// As the read's.
    pub(crate) fn read<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let value = read()?;
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.saturating_record(nanos.max(1));
        Ok(value)
    }

    /// The times of the reads since this was last asked.
    pub(crate) fn take_reads(&self) -> ReadTimes {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match reads.len() {
            0 => ReadTimes::default(),
            _ => ReadTimes {
                mean_us: reads.mean() / 1e3,
                median_us: reads.value_at_quantile(0.5) as f64 / 1e3,
                p99_us: reads.value_at_quantile(0.99) as f64 / 1e3,
            },
        };
        reads.reset();
        times
    }
}

/// Lets clients work, each again and again on a thread of its own, while `watch` runs. One call is one operation.
///
/// # Errors
///
/// An operation or `watch` failed.
pub(crate) fn work<T, C: FnMut(&Progress) -> Result<()> + Send>(
    name: &str,
    clients: Vec<C>,
    watch: impl FnOnce(&Progress) -> Result<T>,
) -> Result<T> {
    let (progress, ends) = (Progress::new()?, AtomicBool::new(false));
    let failure = Mutex::new(None);
    let run = |mut operation: C| -> Result<()> {
        while !ends.load(Ordering::Relaxed) {
            operation(&progress)?;
            progress.operations.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let watched = thread::scope(|scope| {
        for client in clients {
            let (run, failure) = (&run, &failure);
            scope.spawn(move || {
                if let Err(error) = run(client) {
                    let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    failure.get_or_insert(format!("{name}: {error}"));
                }
            });
        }
        let watched = watch(&progress);
        ends.store(true, Ordering::Relaxed);
        watched
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        // What the clients say tells more than that nothing came of them.
        Some(error) => Err(error.into()),
        None => watched,
    }
}

/// Longer reads count as this long.
const READ_NANOS_MAX: u64 = 600_000_000_000;

/// Waits until so many operations have ended since `before`, or `most` is over.
pub(crate) fn wait_for_operations(progress: &Progress, upto: u64, most: Duration) {
    let deadline = Instant::now() + most;
    while progress.operations() < upto && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_work_until_the_watcher_has_seen_enough() {
        let client = |progress: &Progress| {
            progress.read(|| {
                thread::sleep(Duration::from_millis(2));
                Ok(())
            })
        };
        let (operations, reads) = work("load", vec![client; 3], |progress| {
            wait_for_operations(progress, 100, Duration::from_secs(60));
            Ok((progress.operations(), progress.take_reads()))
        })
        .expect("nothing fails");
        assert!(operations >= 100, "{operations}");
        assert!(reads.mean_us > 1_900.0 && reads.p99_us > 1_900.0, "{reads:?}");
    }

    #[test]
    fn a_client_that_fails_fails_the_load() {
        let client = |progress: &Progress| match progress.operations() {
            0..100 => Ok(()),
            _ => Err("no room".into()),
        };
        let watched = work("load", vec![client; 2], |progress| {
            wait_for_operations(progress, u64::MAX, Duration::from_secs(1));
            Ok(())
        });
        assert_eq!(watched.expect_err("it fails").to_string(), "load: no room");
    }
}
