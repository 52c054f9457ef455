//! The journal's threads: they carry out what group commit says.
//!
//! When the journal is written and made durable is [`JournalCommit`]'s to say: inline while the disk is fast and every client
//! waits for it, else here. Two syncs may be under way at once, each with a handle of the file to itself. Durable writes go
//! to the kernel from the server's own thread, which hears of their end like of a client.

use super::replicated::Replicated;
use super::{Event, Outbox, ServeError};
use crate::engine::{COMMIT, Engine};
use crate::settings::{JournalKind, Settings};
use destage_core::{Fault, Lsn, Time};
use destage_engine::{CommitSettings, Drive, News, Writers};
use destage_journal::{DirDisk, Journal};
use destage_replicas_redis::Replicas;
use destage_runtime::commit::{CommitDone, CommitWork, JournalCommit, LANES_MAX};
use destage_runtime::commit_ring::{self, CommitRing};
use destage_runtime::exit;
use destage_runtime::handoff::{Receiver, Sender, queue};
use std::os::fd::RawFd;
use std::thread;
use std::time::Duration;

/// More than this is not even handed to the system on the server's thread.
const WRITE_INLINE_BYTES: usize = 256 << 10;

/// The journal's flusher.
pub(super) struct Syncer {
    commit: JournalCommit,
    /// One for each lane. Flushes are the first one's.
    threads: [Sender<CommitWork>; LANES_MAX],
    /// Where durable writes go.
    ring: Option<CommitRing>,
    /// The engine knows that the journal has failed.
    told: bool,
    /// The log on other servers, if the writes are kept there.
    replicated: Option<Replicated>,
}

impl Syncer {
    /// For this journal.
    pub(super) fn spawn(
        outbox: &Outbox,
        now: Time,
        journal: &mut Journal,
        replicated: Option<Replicated>,
    ) -> std::io::Result<Self> {
        if let Some(replicated) = &replicated {
            replicated.tell(outbox.clone());
        }
        let spawn = |name: &str| {
            let (jobs, receiver) = queue();
            let outbox = outbox.clone();
            thread::Builder::new().name(name.into()).spawn(move || run(&receiver, &outbox))?;
            std::io::Result::Ok(jobs)
        };
        let ring = ring(journal);
        let settings = CommitSettings { durable_writes: journal.durable_writes(), ..COMMIT };
        Ok(Self {
            commit: JournalCommit::new(settings, WRITE_INLINE_BYTES, now),
            ring,
            threads: [spawn("journal")?, spawn("journal-beside")?],
            told: false,
            replicated,
        })
    }

    /// The core wants the journal durable.
    pub(super) fn want(&mut self, upto: Lsn) {
        self.commit.want(upto);
        if let Some(replicated) = &mut self.replicated {
            replicated.want(upto);
        }
    }

    /// Whether a flush or a sync is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.commit.is_busy()
    }

    /// The journal's disk does not answer: what is under way is left to the kernel.
    pub(super) fn abandon_writes(&mut self) {
        if let Some(ring) = self.ring.take() {
            ring.abandon();
        }
    }

    /// What is readable when a durable write has ended.
    pub(super) fn ring(&self) -> Option<RawFd> {
        self.ring.as_ref().map(CommitRing::fd)
    }

    /// Whether durable writes are under way, which end without an event.
    pub(super) fn writes_durably(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| !ring.is_empty())
    }

    /// A durable write that has ended.
    pub(super) fn next_written(&mut self, now: Time) -> Option<CommitDone> {
        self.ring.as_mut()?.next_ended(now)
    }

    /// Whether the journal has failed. The engine does not know of it yet.
    pub(super) fn has_failed(&self) -> bool {
        self.commit.has_failed()
    }

    /// Tells the engine that the journal has failed, which ends it.
    pub(super) fn give_up(&mut self, engine: &mut Engine, now: Time) {
        if std::mem::replace(&mut self.told, true) {
            return;
        }
        // What failed may have been a flush that the core did not ask for.
        if self.commit.is_wanted() {
            engine.synced(now, Err(Fault::Failed));
        } else {
            engine.journal_failed();
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn next_timeout(&self, engine: &mut Engine) -> Option<Time> {
        self.commit.next_timeout(engine.journal())
    }

    /// How long an inline sync that is due may wait for more writers; `None` if none is due.
    pub(super) fn patience(&self, engine: &Engine, writers: &Writers) -> Option<Duration> {
        self.commit.patience(engine.commit_load(writers.has_readers()))
    }

    /// Starts or does what is due. True if the engine was told of a completed sync, or the journal has failed.
    pub(super) fn work(
        &mut self,
        engine: &mut Engine,
        writers: &Writers,
        now: impl Fn() -> Time,
    ) -> bool {
        if self.commit.has_failed() {
            return false;
        }
        let has_news = self.start_due(engine, writers, now);
        if let Some(ring) = &mut self.ring {
            ring.submit();
        }
        has_news
    }

    fn start_due(
        &mut self,
        engine: &mut Engine,
        writers: &Writers,
        now: impl Fn() -> Time,
    ) -> bool {
        let decided = engine.decided();
        if let Some(replicated) = &mut self.replicated {
            replicated.ship(engine.journal(), decided);
        }
        let has_news = self.tell_replicated(engine, now());
        loop {
            let load = engine.commit_load(writers.has_readers());
            let due = self.commit.next_due(now(), engine.journal(), load);
            self.tell(engine, now());
            let is_due = due.is_some();
            let work = due.or_else(|| self.commit.next_ahead(now(), engine.journal(), load));
            let Some(work) = work else { return has_news || self.commit.has_failed() };
            if !work.is_here() {
                self.hand_over(work);
                continue;
            }
            let is_sync = work.is_sync();
            self.ended(engine, now(), work.run());
            if (is_due && is_sync) || self.commit.has_failed() {
                return true;
            }
        }
    }

    /// Has something done that takes its time.
    fn hand_over(&mut self, work: CommitWork) {
        let work = match &mut self.ring {
            Some(ring) if work.durable_write().is_some() => match ring.begin(work) {
                Ok(()) => return,
                Err(work) => *work,
            },
            _ => work,
        };
        let thread = work.lane().filter(|lane| *lane < LANES_MAX).unwrap_or(0);
        let sent = self.threads[thread].send(work);
        sent.expect("the journal's threads live as long as the server");
    }

    /// Something has been done with the journal, here or on a thread.
    pub(super) fn ended(&mut self, engine: &mut Engine, now: Time, done: CommitDone) {
        match (done.failure(), &done.result) {
            (Some(error), _) => tracing::error!(%error, "the journal cannot be written"),
            (None, Err(error)) => tracing::debug!(%error, "no space for the journal"),
            (None, Ok(_)) => {}
        }
        self.commit.ended(now, engine.journal(), done);
        self.tell(engine, now);
    }

    /// The log on other servers, if there is one.
    pub(super) fn log(&self) -> Option<&Replicas> {
        self.replicated.as_ref().map(|replicated| &**replicated.log())
    }

    /// The replicated log stands otherwise than before: how it ended, if it has.
    pub(super) fn replicated(&mut self, engine: &mut Engine, now: Time) -> Option<ServeError> {
        let replicated = self.replicated.as_mut()?;
        engine.reached(replicated.reach());
        let heard = replicated.hear();
        self.tell_replicated(engine, now);
        heard.err()
    }

    /// Tells the engine what the replicated log, the journal here and the origin hold together; whether that is news.
    fn tell_replicated(&mut self, engine: &mut Engine, now: Time) -> bool {
        let Some(replicated) = &self.replicated else { return false };
        let (upto, took) = replicated.durable();
        let is_news = upto > engine.committed();
        if is_news {
            engine.journal_news(now, News::Durable { upto, took });
        }
        engine.secured(now, replicated.secured());
        is_news
    }

    /// Hands everything to the servers of a log, whenever it would be due. How many writes too few of them hold yet.
    pub(super) fn copy_all(&mut self, engine: &mut Engine) -> u64 {
        let decided = engine.decided();
        let Some(replicated) = &mut self.replicated else { return 0 };
        replicated.ship_all(engine.journal(), decided)
    }

    /// Whether anything may be answered now: this process owns the log, as far as it can be sure.
    #[inline]
    pub(super) fn may_answer(&self) -> bool {
        self.replicated.as_ref().is_none_or(Replicated::may_answer)
    }

    /// The end in order, so that nobody waits for this process.
    pub(super) fn give_up_log(&self) {
        if let Some(replicated) = &self.replicated {
            replicated.give_up();
        }
    }

    fn tell(&mut self, engine: &mut Engine, now: Time) {
        while let Some(news) = self.commit.poll_news(engine.journal()) {
            match news {
                News::Failed => tracing::error!("the journal failed; stopping"),
                News::Durable { upto, took } => match &mut self.replicated {
                    None => engine.journal_news(now, News::Durable { upto, took }),
                    Some(replicated) => {
                        replicated.durable_here(upto);
                        self.tell_replicated(engine, now);
                    }
                },
                news => engine.journal_news(now, news),
            }
        }
    }
}

/// How many durable writes of the journal may be under way at once.
pub(super) fn depth(settings: &Settings, disk: &DirDisk) -> Result<usize, ServeError> {
    let kind = settings.replicas.as_ref().map(|replicas| replicas.journal);
    if settings.unsafe_flags.in_force().no_fsync || kind == Some(JournalKind::Replicas) {
        return Ok(0);
    }
    let Some(depth) = settings.journal_depth else { return Ok(commit_ring::measure_depth(disk)) };
    if depth > 0 {
        commit_ring::check_depth(disk).map_err(|error| {
            let message = format!(
                "--journal-depth {depth}: {} takes no durable writes past the page cache, or the kernel has no io_uring for this \
                 process ({error}): use auto, or 0",
                disk.path().display()
            );
            ServeError::new(exit::USAGE, message)
        })?;
    }
    Ok(depth)
}

/// Where the journal's durable writes go. It takes none if there is no ring to be had after all.
fn ring(journal: &mut Journal) -> Option<CommitRing> {
    let depth = journal.durable_writes();
    if depth == 0 {
        return None;
    }
    let ring = CommitRing::new(depth).inspect_err(|error| {
        tracing::warn!(%error, "no io_uring: the journal is written through the page cache");
        journal.allow_durable_writes(0);
    });
    ring.ok()
}

fn run(jobs: &Receiver<CommitWork>, outbox: &Outbox) {
    for work in jobs {
        outbox.send(Event::Committed(work.run()));
    }
}
