//! Clients in a closed loop: each performs an action, waits for its end, and goes on with the next one.
//!
//! All of them are tasks of one thread, so that the client side costs every server the same and leaves it the other cores.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::LocalSet;

use crate::Result;

/// One client.
pub(crate) trait Actor: 'static {
    /// Performs the next action; which kind it was is returned.
    ///
    /// # Errors
    ///
    /// It failed, which ends the run.
    async fn act(&mut self) -> Result<usize>;
}

/// No answer to anybody for this long, beyond the time of the run, ends it.
const STALL: Duration = Duration::from_secs(120);

/// What the clients did.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Microseconds of each kind of action.
    pub(crate) times: Vec<Histogram<u64>>,
    /// From the first action to the end of the last one.
    pub(crate) ran: Duration,
}

impl Tally {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { times: (0..kinds).map(|_| new_histogram()).collect(), ran: Duration::ZERO }
    }

    /// Adds what another run did, of the same kinds.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.add(theirs).expect("both have the same bounds");
        }
        self.ran += other.ran;
    }

    /// All kinds together.
    pub(crate) fn all(&self) -> Histogram<u64> {
        let mut all = new_histogram();
        self.times.iter().for_each(|times| all.add(times).expect("both have the same bounds"));
        all
    }

    /// How many actions.
    pub(crate) fn actions(&self) -> u64 {
        self.times.iter().map(Histogram::len).sum()
    }

    /// Mean time of a kind, milliseconds.
    pub(crate) fn mean_ms(&self, kind: usize) -> Option<f64> {
        let times = &self.times[kind];
        (!times.is_empty()).then(|| times.mean() / 1_000.0)
    }
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000, 3).expect("the bounds are valid")
}

/// Lets every actor act for this time, at least once; they are returned with what they did.
///
/// # Errors
///
/// The first failure of any of them, after all have stopped.
pub(crate) async fn drive<A: Actor>(
    actors: Vec<A>,
    kinds: usize,
    time: Duration,
) -> Result<(Vec<A>, Tally)> {
    let start = Instant::now();
    let until = start + time;
    let tasks = LocalSet::new();
    let running: Vec<_> =
        actors.into_iter().map(|actor| tasks.spawn_local(one(actor, kinds, until))).collect();
    let mut tally = Tally::new(kinds);
    let mut ended = Vec::with_capacity(running.len());
    let all = tasks.run_until(async {
        for task in running {
            let (actor, own) = task.await??;
            own.times.iter().zip(&mut tally.times).try_for_each(|(own, all)| all.add(own))?;
            ended.push(actor);
        }
        Result::Ok(())
    });
    let limit = time + STALL;
    tokio::time::timeout(limit, all)
        .await
        .map_err(|_| format!("a client has waited for its answer for {} s", STALL.as_secs()))??;
    tally.ran = start.elapsed();
    Ok((ended, tally))
}

async fn one<A: Actor>(mut actor: A, kinds: usize, until: Instant) -> Result<(A, Tally)> {
    let mut tally = Tally::new(kinds);
    let mut start = Instant::now();
    loop {
        let kind = actor.act().await?;
        let end = Instant::now();
        let micros = u64::try_from(end.duration_since(start).as_micros()).unwrap_or(u64::MAX);
        tally.times[kind].saturating_record(micros.max(1));
        if end >= until {
            return Ok((actor, tally));
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter {
        acts: usize,
        fails_at: usize,
    }

    impl Actor for Counter {
        async fn act(&mut self) -> Result<usize> {
            self.acts += 1;
            tokio::task::yield_now().await;
            if self.acts == self.fails_at { Err("told to".into()) } else { Ok(self.acts % 2) }
        }
    }

    fn run(fails_at: usize) -> Result<(Vec<Counter>, Tally)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let actors = (0..3).map(|_| Counter { acts: 0, fails_at }).collect();
        runtime.block_on(drive(actors, 2, Duration::from_millis(20)))
    }

    #[test]
    fn every_action_is_counted_under_its_kind() {
        let (actors, tally) = run(usize::MAX).expect("runs");
        let acts: usize = actors.iter().map(|actor| actor.acts).sum();
        assert_eq!(tally.actions(), acts as u64);
        assert_eq!(tally.all().len(), acts as u64);
        assert!(actors.iter().all(|actor| actor.acts > 0));
        assert!(tally.times[1].len() >= tally.times[0].len());
    }

    #[test]
    fn a_failure_ends_the_run() {
        assert_eq!(run(1).map(drop).expect_err("fails").to_string(), "told to");
    }
}
