//! Running the journal's flushes: inline while the disk is fast and every client waits for it, on a thread otherwise.

use super::Event;
use super::company::Company;
use super::workers::Outbox;
use crate::engine::Engine;
use crossbeam_channel::{Receiver, Sender};
use destage_core::{Fault, Lsn, Span, Time};
use destage_journal::{Error, ErrorKind, Flush};
use std::thread;
use std::time::{Duration, Instant};

/// Above this measured latency, syncs leave the server's thread, so that cached reads do not wait for the disk.
const INLINE_MAX: Span = Span::from_millis(3);
/// Without clients that wait, what is buffered is written early once it is this much.
const WRITE_EARLY_BYTES: usize = 1 << 20;
/// An idle journal marks its newest groups as durable after this time.
const MARK_AFTER: Span = Span::from_secs(1);
/// An inline sync waits for further writers at most this part of its usual duration, and this long.
const PATIENCE_DIVISOR: u64 = 3;
const PATIENCE_MAX: Duration = Duration::from_micros(150);
/// How long to wait before trying again while the disk is full.
const FULL_RETRY: Span = Span::from_millis(500);

/// The journal's flusher.
pub(super) struct Syncer {
    jobs: Sender<(Flush, bool)>,
    /// A flush is on the thread.
    busy: bool,
    /// The core waits for a sync.
    wanted: bool,
    /// The flush on the thread was begun for that; otherwise it may not cover what the core asked for since.
    answers: bool,
    retry_at: Option<Time>,
    last_sync: Time,
    latency: Span,
    full: bool,
    /// The journal takes nothing any more.
    failed: bool,
}

impl Syncer {
    pub(super) fn spawn(outbox: Outbox, now: Time) -> std::io::Result<Self> {
        let (jobs, receiver) = crossbeam_channel::bounded(1);
        thread::Builder::new().name("journal".into()).spawn(move || run(&receiver, &outbox))?;
        Ok(Self {
            jobs,
            busy: false,
            wanted: false,
            answers: false,
            retry_at: None,
            last_sync: now,
            latency: Span::ZERO,
            full: false,
            failed: false,
        })
    }

    /// The core wants the journal durable.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a flush is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether the journal has failed. The engine does not know of it yet.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Tells the engine that the journal has failed, which ends it.
    pub(super) fn give_up(&mut self, engine: &mut Engine, now: Time) {
        // What failed may have been a flush that the core did not ask for.
        match std::mem::take(&mut self.wanted) {
            true => engine.synced(now, Err(Fault::Failed)),
            false => engine.journal_failed(),
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn next_timeout(&self, engine: &mut Engine) -> Option<Time> {
        if self.busy || self.failed {
            return None;
        }
        let mark = engine.journal().mark_due().then(|| self.last_sync + MARK_AFTER);
        match self.wanted || self.full {
            true => self.retry_at,
            false => mark,
        }
    }

    /// How long an inline sync that is due may wait for more writers; `None` if none is due.
    pub(super) fn patience(&self, engine: &Engine, company: &Company) -> Option<Duration> {
        let due = self.wanted && !self.busy && !self.failed && self.retry_at.is_none();
        let share = Duration::from_nanos(self.latency.0 / PATIENCE_DIVISOR);
        (due && self.is_inline(engine, company)).then(|| share.min(PATIENCE_MAX))
    }

    fn is_inline(&self, engine: &Engine, company: &Company) -> bool {
        engine.policy().commit == Span::ZERO && self.latency <= INLINE_MAX && !company.has_readers()
    }

    /// Starts or does what is due. True if the engine was told of a completed sync.
    pub(super) fn work(
        &mut self,
        engine: &mut Engine,
        company: &Company,
        now: impl Fn() -> Time,
    ) -> bool {
        if self.busy || self.failed || self.retry_at.is_some_and(|at| now() < at) {
            return false;
        }
        if self.wanted {
            let inline = self.is_inline(engine, company);
            let mut flush = engine.journal().take();
            if !inline {
                self.start(flush, true);
                return false;
            }
            let began = Instant::now();
            let result = flush.run(true).map(Lsn);
            let took = Span(began.elapsed().as_nanos() as u64);
            self.answers = true;
            self.ended(engine, now(), flush, result, took, true);
            return true;
        }
        let buffered = engine.journal().buffered_bytes();
        // A disk that was full is tried again.
        if self.full || buffered >= WRITE_EARLY_BYTES {
            let flush = engine.journal().take();
            self.start(flush, false);
        } else if buffered == 0
            && now() >= self.last_sync + MARK_AFTER
            && engine.journal().mark_due()
        {
            let flush = engine.journal().take();
            self.start(flush, true);
        }
        false
    }

    fn start(&mut self, flush: Flush, sync: bool) {
        self.busy = true;
        self.answers = self.wanted && sync;
        self.jobs.send((flush, sync)).expect("the journal's thread lives as long as the server");
    }

    /// A flush ended, here or on the thread.
    pub(super) fn ended(
        &mut self,
        engine: &mut Engine,
        now: Time,
        flush: Flush,
        result: Result<Lsn, Error>,
        took: Span,
        sync: bool,
    ) {
        self.busy = false;
        engine.journal().give_back(flush);
        match result {
            Ok(upto) => {
                if self.full {
                    tracing::info!("the journal's disk has space again");
                    engine.journal_full(false);
                }
                (self.full, self.retry_at) = (false, None);
                if sync {
                    self.last_sync = now;
                    self.latency = Span((self.latency.0 * 7 + took.0) / 8);
                }
                if self.answers {
                    (self.wanted, self.answers) = (false, false);
                    engine.synced(now, Ok((upto, took)));
                }
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                if !self.full {
                    tracing::error!(%error, "the journal's disk is full: writes wait until there is space");
                }
                // What is kept for an origin that goes back is worth less than going on.
                if engine.journal().reclaim_oldest() {
                    tracing::warn!(
                        "the journal's disk is full: gave up a part of what --retain keeps"
                    );
                }
                engine.journal_full(true);
                self.full = true;
                self.retry_at = Some(now + FULL_RETRY);
            }
            Err(error) => {
                tracing::error!(%error, "the journal failed; stopping");
                self.failed = true;
            }
        }
    }
}

fn run(jobs: &Receiver<(Flush, bool)>, outbox: &Outbox) {
    for (mut flush, sync) in jobs {
        let began = Instant::now();
        let result = flush.run(sync).map(Lsn);
        let took = Span(began.elapsed().as_nanos() as u64);
        outbox.send(Event::Flushed { flush, result, took, sync });
    }
}
