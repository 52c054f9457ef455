//! A load that comes in bursts on a schedule, and how long its operations take.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Result;
use crate::block::{Progress, Worker};

/// From the start of a burst to the start of the next one, unless the server is so slow that it has not ended by then.
pub(super) const EVERY: Duration = Duration::from_millis(2_500);
/// Idle clients look so often whether the run has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The schedule of all clients, and their operations so far. Its clones are one.
#[derive(Clone)]
pub(super) struct Pace {
    start: Instant,
    /// Of one client.
    burst: u64,
    quota: u64,
    clients: u64,
    /// Nanoseconds.
    took: Arc<Mutex<Histogram<u64>>>,
}

impl Pace {
    /// Bursts of so many operations of all clients, from now on, for so long.
    ///
    /// # Errors
    ///
    /// There is no memory for the times.
    pub(super) fn new(clients: u64, burst: u64, time: Duration) -> Result<Self> {
        let burst = (burst / clients).max(1);
        let bursts = time.as_nanos().div_ceil(EVERY.as_nanos()) as u64;
        let took = Arc::new(Mutex::new(Histogram::new_with_max(600_000_000_000, 3)?));
        Ok(Self { start: Instant::now(), burst, quota: bursts * burst, clients, took })
    }

    /// The client's work by this schedule.
    pub(super) fn client(&self, mut work: Worker) -> Worker {
        let (pace, mut done) = (self.clone(), 0);
        Box::new(move |progress: &Progress| {
            let due = pace.start + EVERY * (done / pace.burst) as u32;
            // A burst that does not come any more must not keep the run from its end.
            if done >= pace.quota || Instant::now() < due {
                thread::sleep(LOOK);
                return Ok(());
            }
            let start = Instant::now();
            work(progress)?;
            done += 1;
            let nanos = start.elapsed().as_nanos() as u64;
            pace.took.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos);
            Ok(())
        })
    }

    /// Waits until all operations of the schedule have ended: how many, their mean and 99 % of them, milliseconds.
    ///
    /// # Errors
    ///
    /// They take longer than `most`.
    pub(super) fn wait(&self, most: Duration) -> Result<(u64, f64, f64)> {
        let deadline = Instant::now() + most;
        loop {
            thread::sleep(LOOK);
            let took = self.took.lock().unwrap_or_else(PoisonError::into_inner);
            let (done, all) = (took.len(), self.quota * self.clients);
            if done >= all {
                return Ok((done, took.mean() / 1e6, took.value_at_quantile(0.99) as f64 / 1e6));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "{done} of {all} operations have ended within {} s",
                    most.as_secs()
                )
                .into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::clients::work;

    #[test]
    fn each_operation_of_the_schedule_comes_once() {
        let pace = Pace::new(4, 40, EVERY).expect("a schedule");
        let client = || -> Worker { Box::new(|_| Ok(())) };
        let clients = (0..4).map(|_| pace.client(client())).collect();
        let (done, ..) =
            work("load", clients, |_| pace.wait(Duration::from_secs(60))).expect("it ends");
        assert_eq!(done, 40);
    }
}
