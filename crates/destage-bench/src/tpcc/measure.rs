//! One side under load: closed loop, a thread per client, each at a warehouse of its own as far as they go.

use super::random::{Input, KINDS, Random};
use super::{Done, Load, Target};
use crate::Result;
use hdrhistogram::Histogram;
use std::thread;
use std::time::{Duration, Instant};

/// What one side did.
pub(crate) struct Measured {
    times: Vec<Histogram<u64>>,
    new_orders: u64,
    /// The clients' time.
    pub(crate) ran: Duration,
    /// The time until the origin had everything.
    pub(crate) drained: Duration,
}

impl Measured {
    fn new() -> Result<Self> {
        let times =
            KINDS.iter().map(|_| Histogram::new(3)).collect::<std::result::Result<_, _>>()?;
        Ok(Self { times, new_orders: 0, ran: Duration::ZERO, drained: Duration::ZERO })
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        for (all, some) in self.times.iter_mut().zip(&other.times) {
            all.add(some)?;
        }
        self.new_orders += other.new_orders;
        Ok(())
    }

    pub(crate) fn mean_ms(&self, kind: usize) -> String {
        format!("{:.2}", self.times[kind].mean() / 1_000.0)
    }

    pub(crate) fn p99_ms(&self, kind: usize) -> String {
        format!("{:.2}", self.times[kind].value_at_quantile(0.99) as f64 / 1_000.0)
    }

    /// The mean of all kinds, as often as each came.
    pub(crate) fn mix_ms(&self) -> String {
        let sum: f64 = self.times.iter().map(|times| times.mean() * times.len() as f64).sum();
        format!("{:.2}", sum / self.transactions().max(1) as f64 / 1_000.0)
    }

    pub(crate) fn transactions(&self) -> u64 {
        self.times.iter().map(Histogram::len).sum()
    }

    /// New orders per minute.
    pub(crate) fn tpmc(&self, time: Duration) -> f64 {
        self.new_orders as f64 / time.as_secs_f64() * 60.0
    }
}

/// Runs the load: half as long to warm up, then measured, then drained.
///
/// # Errors
/// A transaction failed.
pub(crate) fn measure<T: Target>(
    load: &Load,
    target: impl Fn(usize) -> Result<T> + Sync,
    drain: impl Fn() -> Result<()>,
) -> Result<Measured> {
    phase(load, load.time / 2, 1, &target)?;
    drain()?;
    let start = Instant::now();
    let mut measured = phase(load, load.time, 2, &target)?;
    measured.ran = start.elapsed();
    drain()?;
    measured.drained = start.elapsed();
    Ok(measured)
}

fn phase<T: Target>(
    load: &Load,
    time: Duration,
    number: u64,
    target: &(impl Fn(usize) -> Result<T> + Sync),
) -> Result<Measured> {
    let until = Instant::now() + time;
    let clients: Vec<Result<Measured>> = thread::scope(|scope| {
        let client = |index: usize| {
            move || {
                let seed = load.seed + number * 1_000_000 + index as u64;
                client(load, index, Random::new(seed), until, &mut target(index)?)
            }
        };
        let clients: Vec<_> = (0..load.threads).map(|index| scope.spawn(client(index))).collect();
        let ended = clients.into_iter().map(|client| client.join());
        ended.map(|end| end.unwrap_or_else(|_| Err("a client panicked".into()))).collect()
    });
    let mut all = Measured::new()?;
    for client in clients {
        all.add(&client?)?;
    }
    Ok(all)
}

fn client(
    load: &Load,
    index: usize,
    mut random: Random,
    until: Instant,
    target: &mut impl Target,
) -> Result<Measured> {
    let mut measured = Measured::new()?;
    let w = index as i64 % load.scale.warehouses + 1;
    while Instant::now() < until {
        let input = Input::next(&mut random, &load.scale, w);
        let start = Instant::now();
        let done = target.perform(&input)?;
        let took = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        measured.times[input.kind()].record(took.max(1))?;
        if input.kind() == 0 && done == Done::Committed {
            measured.new_orders += 1;
        }
    }
    Ok(measured)
}
