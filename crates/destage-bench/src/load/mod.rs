//! The load generator: many connections, pipelining, bounded by count or time.
//!
//! One or a few threads drive nonblocking sockets. As with `redis-benchmark`, a connection sends a
//! pipeline's worth of requests, waits for all their replies, then sends the next; a request's
//! latency is that of its reply. The same loop drives both sides of a pair, in RESP or in
//! PostgreSQL's protocol, so that the client costs the same.

mod connection;
mod reply;
mod template;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use destage_runtime::sockets::Listen;
use hdrhistogram::Histogram;

pub(crate) use self::reply::{Protocol, server_error};
pub(crate) use self::template::Template;
use crate::Result;
use crate::keys::{Keys, Shape};

/// What to send, where, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) address: Listen,
    pub(crate) protocol: Protocol,
    /// Sent and answered on each connection before the clock starts.
    pub(crate) preamble: Vec<u8>,
    pub(crate) template: Template,
    pub(crate) connections: usize,
    /// Requests in flight per connection.
    pub(crate) pipeline: usize,
    pub(crate) threads: usize,
    pub(crate) shape: Shape,
    pub(crate) key_space: u64,
    pub(crate) seed: u64,
    pub(crate) bound: Bound,
    /// No reply at all for this long ends the run with an error.
    pub(crate) stall_timeout: Duration,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    Requests(u64),
    Time(Duration),
}

/// What a run gave.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    /// From the first request to the last reply.
    pub(crate) elapsed: Duration,
    /// Nanoseconds from sending a pipeline's worth to each reply.
    pub(crate) latency: Histogram<u64>,
    /// Different keys that were sent.
    pub(crate) distinct_keys: u64,
}

impl Outcome {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Latency at quantile `q`, microseconds.
    pub(crate) fn latency_us(&self, q: f64) -> f64 {
        self.latency.value_at_quantile(q) as f64 / 1000.0
    }

    /// Itself, unless a request failed.
    pub(crate) fn without_errors(self) -> Result<Self> {
        match &self.first_error {
            None => Ok(self),
            Some(first) => {
                let (bad, all) = (self.errors, self.requests);
                Err(format!("{bad} of {all} requests failed; the first: {first}").into())
            }
        }
    }
}

impl Load {
    /// A RESP load with one connection, no pipelining and uniform keys.
    pub(crate) fn resp(
        address: impl Into<Listen>,
        command: &[&str],
        data_bytes: usize,
    ) -> Result<Self> {
        Ok(Self {
            address: address.into(),
            protocol: Protocol::Resp,
            preamble: Vec::new(),
            template: Template::resp(command, data_bytes)?,
            connections: 1,
            pipeline: 1,
            threads: 1,
            shape: Shape::Uniform,
            key_space: 1,
            seed: 1,
            bound: Bound::Time(Duration::from_secs(1)),
            stall_timeout: Duration::from_secs(120),
        })
    }

    /// Runs until the bound is reached and every request is answered.
    ///
    /// # Errors
    ///
    /// A connection failed, broke, or nothing was answered for the stall timeout. Error replies are
    /// counted, not failures.
    pub(crate) fn run(&self) -> Result<Outcome> {
        assert!(self.connections > 0 && self.pipeline > 0, "a load has something in flight");
        let threads = self.threads.clamp(1, self.connections);
        let mut crews: Vec<Vec<connection::Connection>> = (0..threads).map(|_| vec![]).collect();
        for lane in 0..self.connections {
            crews[lane % threads].push(connection::Connection::open(self, lane)?);
        }
        let start = Instant::now();
        let shared = Shared::new(self.bound, start);
        let parts = thread::scope(|scope| {
            let shared = &shared;
            let running: Vec<_> = crews
                .into_iter()
                .map(|crew| scope.spawn(move || connection::drive(self, crew, shared)))
                .collect();
            running
                .into_iter()
                .map(|t| t.join().map_err(|_| "a load thread panicked".into()).flatten())
                .collect::<Result<Vec<_>>>()
        })?;
        Ok(merge(parts, start, self.key_space))
    }

    fn keys(&self, lane: usize) -> Keys {
        let lanes = self.connections as u64;
        Keys::new(self.shape, self.key_space, self.seed, lane as u64, lanes)
    }
}

/// The bound, shared by all threads.
struct Shared {
    left: AtomicU64,
    deadline: Option<Instant>,
}

impl Shared {
    fn new(bound: Bound, start: Instant) -> Self {
        match bound {
            Bound::Requests(count) => Self { left: AtomicU64::new(count), deadline: None },
            Bound::Time(time) => {
                Self { left: AtomicU64::new(u64::MAX), deadline: Some(start + time) }
            }
        }
    }

    /// How many of `wanted` requests may still be sent.
    fn take(&self, wanted: u64, now: Instant) -> u64 {
        if let Some(deadline) = self.deadline {
            return if now < deadline { wanted } else { 0 };
        }
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                Some(left.saturating_sub(wanted))
            })
            .expect("the update never declines");
        before.min(wanted)
    }
}

/// One thread's share of the outcome.
struct Part {
    requests: u64,
    errors: u64,
    first_error: Option<String>,
    last_reply: Instant,
    latency: Histogram<u64>,
    seen: Vec<u64>,
}

fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("the bounds are valid")
}

fn merge(parts: Vec<Part>, start: Instant, key_space: u64) -> Outcome {
    let mut total = Outcome {
        requests: 0,
        errors: 0,
        first_error: None,
        elapsed: Duration::from_nanos(1),
        latency: new_histogram(),
        distinct_keys: 0,
    };
    let mut seen = vec![0u64; key_space.div_ceil(64) as usize];
    for part in parts {
        total.requests += part.requests;
        total.errors += part.errors;
        total.first_error = total.first_error.or(part.first_error);
        total.elapsed = total.elapsed.max(part.last_reply.duration_since(start));
        total.latency.add(&part.latency).expect("both have the same bounds");
        seen.iter_mut().zip(&part.seen).for_each(|(all, own)| *all |= own);
    }
    total.distinct_keys = seen.iter().map(|word| u64::from(word.count_ones())).sum();
    total
}

#[cfg(test)]
mod tests;
