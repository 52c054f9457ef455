//! Running the journal's flushes and syncs: inline while the disk is fast and every client waits for it, else on threads.
//!
//! With `d` = 0 a client that writes again as soon as it is answered would wait for two syncs each time: for the one that
//! began just before, without it, and for its own. So two may be under way at once. Each has a handle of the file to itself,
//! and they count in the order in which they began: if one fails, no later one is told of as a success.

use super::Event;
use super::company::Company;
use super::workers::Outbox;
use crate::engine::Engine;
use destage_core::{Fault, Lsn, Span, Time};
use destage_journal::{Error, ErrorKind, Flush, Sync};
use destage_runtime::handoff::{Receiver, Sender, queue};
use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

/// Above this measured latency, syncs leave the server's thread, so that cached reads do not wait for the disk.
const INLINE_MAX: Span = Span::from_millis(3);
/// Syncs under way at once, the second one through a handle of its own.
const LANES: usize = 2;
/// More than this is not even handed to the system on the server's thread.
const WRITE_INLINE_BYTES: usize = 256 << 10;
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
    /// The threads. Flushes are the first one's.
    lanes: [Sender<Job>; LANES],
    /// Syncs beside which further flushes may run, in the order in which they began.
    under_way: VecDeque<UnderWay>,
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
    /// The journal takes nothing any more; the engine knows.
    failed: bool,
    told: bool,
}

enum Job {
    Flush { flush: Flush, sync: bool },
    Sync { lane: usize, sync: Sync },
}

struct UnderWay {
    lane: usize,
    /// What came of it, while one that began before has not ended.
    ended: Option<SyncEnd>,
}

/// What came of a sync.
pub(super) struct SyncEnd {
    pub(super) sync: Sync,
    pub(super) result: Result<Lsn, Error>,
    pub(super) took: Span,
}

impl Syncer {
    pub(super) fn spawn(outbox: &Outbox, now: Time) -> std::io::Result<Self> {
        let spawn = |name: &str| {
            let (jobs, receiver) = queue();
            let outbox = outbox.clone();
            thread::Builder::new().name(name.into()).spawn(move || run(&receiver, &outbox))?;
            std::io::Result::Ok(jobs)
        };
        Ok(Self {
            lanes: [spawn("journal")?, spawn("journal-beside")?],
            under_way: VecDeque::with_capacity(LANES),
            busy: false,
            wanted: false,
            answers: false,
            retry_at: None,
            last_sync: now,
            latency: Span::ZERO,
            full: false,
            failed: false,
            told: false,
        })
    }

    /// The core wants the journal durable.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Whether a flush or a sync is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.busy || !self.under_way.is_empty()
    }

    /// Whether the journal has failed. The engine does not know of it yet.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Tells the engine that the journal has failed, which ends it.
    pub(super) fn give_up(&mut self, engine: &mut Engine, now: Time) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        // What failed may have been a flush that the core did not ask for.
        match std::mem::take(&mut self.wanted) {
            true => engine.synced(now, Err(Fault::Failed)),
            false => engine.journal_failed(),
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn next_timeout(&self, engine: &mut Engine) -> Option<Time> {
        if self.is_busy() || self.failed {
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
        let due = self.wanted && !self.is_busy() && !self.failed && self.retry_at.is_none();
        let share = Duration::from_nanos(self.latency.0 / PATIENCE_DIVISOR);
        (due && self.is_inline(engine, company)).then(|| share.min(PATIENCE_MAX))
    }

    /// Whether clients wait for every write, and the disk is fast enough to have the server's thread write.
    fn is_prompt(&self, engine: &Engine) -> bool {
        engine.policy().commit == Span::ZERO && self.latency <= INLINE_MAX
    }

    fn is_inline(&self, engine: &Engine, company: &Company) -> bool {
        self.is_prompt(engine) && !company.has_readers()
    }

    /// Starts or does what is due. True if the engine was told of a completed sync, or the journal has failed.
    pub(super) fn work(
        &mut self,
        engine: &mut Engine,
        company: &Company,
        now: impl Fn() -> Time,
    ) -> bool {
        if self.busy || self.failed || self.retry_at.is_some_and(|at| now() < at) {
            return false;
        }
        let buffered = engine.journal().buffered_bytes();
        if !self.under_way.is_empty() {
            if buffered > 0 && self.under_way.len() < LANES && self.is_prompt(engine) {
                self.begin(engine, now());
            }
            return self.failed;
        }
        if self.wanted {
            if !self.is_inline(engine, company) {
                self.begin(engine, now());
                return self.failed;
            }
            let mut flush = engine.journal().take();
            let began = Instant::now();
            let result = flush.run(true).map(Lsn);
            let took = Span(began.elapsed().as_nanos() as u64);
            self.answers = true;
            self.ended(engine, now(), flush, result, took, true);
            return true;
        }
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

    /// Begins to make durable what is buffered: writes it here and has a thread sync it, so that another one may follow;
    /// or leaves both to a thread, if writing may take long.
    fn begin(&mut self, engine: &mut Engine, now: Time) {
        let mut flush = engine.journal().take();
        let is_light =
            self.is_prompt(engine) && flush.len() <= WRITE_INLINE_BYTES && flush.stays_in_segment();
        if !is_light {
            return match self.under_way.is_empty() {
                true => self.start(flush, true),
                false => engine.journal().give_back(flush),
            };
        }
        let written = flush.run(false);
        engine.journal().give_back(flush);
        match written {
            Ok(_) => self.has_space(engine),
            Err(error) => return self.failed(engine, now, &error),
        }
        let uses = |lane| self.under_way.iter().any(|other| other.lane == lane);
        let lane = usize::from(uses(0));
        let sync = match lane {
            0 => Ok(engine.journal().sync()),
            _ => engine.journal().sync_beside(),
        };
        match sync {
            Ok(Some(sync)) => {
                self.under_way.push_back(UnderWay { lane, ended: None });
                self.send(lane, Job::Sync { lane, sync });
            }
            Ok(None) if self.under_way.is_empty() => {
                let flush = engine.journal().take();
                self.start(flush, true);
            }
            Ok(None) => {}
            // It waits for the one under way.
            Err(error) => tracing::debug!(%error, "one sync of the journal at a time"),
        }
    }

    fn start(&mut self, flush: Flush, sync: bool) {
        self.busy = true;
        self.answers = self.wanted && sync;
        self.send(0, Job::Flush { flush, sync });
    }

    fn send(&self, lane: usize, job: Job) {
        self.lanes[lane].send(job).expect("the journal's threads live as long as the server");
    }

    /// A sync ended on its thread.
    pub(super) fn synced(&mut self, engine: &mut Engine, now: Time, lane: usize, end: SyncEnd) {
        if let Some(ended) = self.under_way.iter_mut().find(|other| other.lane == lane) {
            ended.ended = Some(end);
        }
        while let Some(end) = self.under_way.front_mut().and_then(|first| first.ended.take()) {
            self.under_way.pop_front();
            let SyncEnd { sync, result, took } = end;
            engine.journal().synced(&sync);
            if self.failed {
                continue;
            }
            match result {
                Ok(upto) => {
                    self.last_sync = now;
                    self.took(took);
                    self.wanted = false;
                    engine.synced(now, Ok((upto, took)));
                }
                Err(error) => self.failed(engine, now, &error),
            }
        }
    }

    fn took(&mut self, took: Span) {
        self.latency = Span((self.latency.0 * 7 + took.0) / 8);
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
                self.has_space(engine);
                if sync {
                    self.last_sync = now;
                    self.took(took);
                }
                if self.answers {
                    (self.wanted, self.answers) = (false, false);
                    engine.synced(now, Ok((upto, took)));
                }
            }
            Err(error) => self.failed(engine, now, &error),
        }
    }

    /// The journal took what it was given.
    fn has_space(&mut self, engine: &mut Engine) {
        if self.full {
            tracing::info!("the journal's disk has space again");
            engine.journal_full(false);
        }
        (self.full, self.retry_at) = (false, None);
    }

    fn failed(&mut self, engine: &mut Engine, now: Time, error: &Error) {
        if error.kind() != ErrorKind::Full {
            tracing::error!(%error, "the journal failed; stopping");
            self.failed = true;
            return;
        }
        if !self.full {
            tracing::error!(%error, "the journal's disk is full: writes wait until there is space");
        }
        // What is kept for an origin that goes back is worth less than going on.
        if engine.journal().reclaim_oldest() {
            tracing::warn!("the journal's disk is full: gave up a part of what --retain keeps");
        }
        engine.journal_full(true);
        self.full = true;
        self.retry_at = Some(now + FULL_RETRY);
    }
}

fn run(jobs: &Receiver<Job>, outbox: &Outbox) {
    for job in jobs {
        let began = Instant::now();
        let took = || Span(began.elapsed().as_nanos() as u64);
        let event = match job {
            Job::Flush { mut flush, sync } => {
                let result = flush.run(sync).map(Lsn);
                Event::Flushed { flush, result, took: took(), sync }
            }
            Job::Sync { lane, mut sync } => {
                let result = sync.run().map(Lsn);
                Event::Synced { lane, end: SyncEnd { sync, result, took: took() } }
            }
        };
        outbox.send(event);
    }
}
