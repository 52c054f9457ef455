//! The journal's threads: they carry out what group commit says.
//!
//! When the journal is written and made durable is [`GroupCommit`]'s to say: inline while the disk is fast and every client
//! waits for it, else here. Two syncs may be under way at once, each with a handle of the file to itself.

use super::Event;
use super::workers::Outbox;
use crate::engine::Engine;
use destage_core::{Fault, Lsn, Span, Time};
use destage_engine::{
    CommitSettings, Ended, GroupCommit, Lane, Load, Log, LogFault, News, Step, Writers,
};
use destage_journal::{Error, ErrorKind, Flush, Journal, Sync};
use destage_runtime::handoff::{Receiver, Sender, queue};
use std::thread;
use std::time::{Duration, Instant};

/// How the data server commits.
const COMMIT: CommitSettings = CommitSettings {
    lanes: LANES,
    // A slower disk would keep cached reads waiting.
    here_max: Some(Span::from_millis(3)),
    write_ahead_bytes: 1 << 20,
    write_beside_bytes: usize::MAX,
    mark_after: Some(Span::from_secs(1)),
};
const LANES: usize = 2;
/// More than this is not even handed to the system on the server's thread.
const WRITE_INLINE_BYTES: usize = 256 << 10;

/// The journal's flusher.
pub(super) struct Syncer {
    commit: GroupCommit,
    /// The threads. Flushes are the first one's.
    threads: [Sender<Job>; LANES],
    /// Syncs that have ended and do not count yet, by lane.
    ended: [Option<Sync>; LANES],
    /// The engine knows that the journal has failed.
    told: bool,
}

enum Job {
    Flush { flush: Flush, sync: bool },
    Sync { lane: Lane, sync: Sync },
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
            commit: GroupCommit::new(COMMIT, now),
            threads: [spawn("journal")?, spawn("journal-beside")?],
            ended: [None, None],
            told: false,
        })
    }

    /// The core wants the journal durable.
    pub(super) fn want(&mut self, upto: Lsn) {
        self.commit.want(upto);
    }

    /// Whether a flush or a sync is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.commit.is_busy()
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
        match self.commit.is_wanted() {
            true => engine.synced(now, Err(Fault::Failed)),
            false => engine.journal_failed(),
        }
    }

    /// When something is to be done at the latest.
    pub(super) fn next_timeout(&self, engine: &mut Engine) -> Option<Time> {
        self.commit.next_timeout(state_of(engine.journal()))
    }

    /// How long an inline sync that is due may wait for more writers; `None` if none is due.
    pub(super) fn patience(&self, engine: &Engine, writers: &Writers) -> Option<Duration> {
        let patience = self.commit.patience(load_of(engine, writers));
        patience.map(|span| Duration::from_nanos(span.0))
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
        loop {
            let (log, load) = (state_of(engine.journal()), load_of(engine, writers));
            let due = self.commit.next_due(now(), log, load);
            match due.or_else(|| self.commit.next_ahead(now(), log, load)) {
                None => return self.commit.has_failed(),
                Some(step) => self.carry_out(engine, &now, step),
            }
            if matches!(due, Some(Step::WriteAndSync { here: true })) || self.commit.has_failed() {
                return true;
            }
        }
    }

    fn carry_out(&mut self, engine: &mut Engine, now: &impl Fn() -> Time, step: Step) {
        match step {
            Step::Write { here: true } | Step::WriteAndSync { here: true } => {
                let mut flush = engine.journal().take();
                let sync = matches!(step, Step::WriteAndSync { .. });
                let began = Instant::now();
                let result = flush.run(sync).map(Lsn);
                let took = Span(began.elapsed().as_nanos() as u64);
                self.ended(engine, now(), flush, result, took, sync);
            }
            Step::Write { here: false } | Step::WriteAndSync { here: false } => {
                let flush = engine.journal().take();
                let sync = matches!(step, Step::WriteAndSync { .. });
                self.send(0, Job::Flush { flush, sync });
            }
            Step::Sync { lane } => {
                let sync = match lane {
                    0 => Ok(engine.journal().sync()),
                    _ => engine.journal().sync_beside(),
                };
                match sync {
                    Ok(Some(sync)) => return self.send(lane, Job::Sync { lane, sync }),
                    Ok(None) => {}
                    // It waits for the one under way.
                    Err(error) => tracing::debug!(%error, "one sync of the journal at a time"),
                }
                self.commit.not_begun(now(), lane);
                self.tell(engine, now());
            }
        }
    }

    fn send(&self, lane: Lane, job: Job) {
        self.threads[lane].send(job).expect("the journal's threads live as long as the server");
    }

    /// A sync ended on its thread.
    pub(super) fn synced(&mut self, engine: &mut Engine, now: Time, lane: Lane, end: SyncEnd) {
        let SyncEnd { sync, result, took } = end;
        self.ended[lane] = Some(sync);
        let result = result.map_err(|error| fault_of(engine.journal(), &error));
        self.commit.ended(now, Ended::Synced { lane, result, took });
        self.tell(engine, now);
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
        engine.journal().give_back(flush);
        let result = result.map_err(|error| fault_of(engine.journal(), &error));
        let ended = match sync {
            true => Ended::WroteAndSynced { result, took },
            false => Ended::Wrote(result.map(drop)),
        };
        self.commit.ended(now, ended);
        self.tell(engine, now);
    }

    fn tell(&mut self, engine: &mut Engine, now: Time) {
        while let Some(news) = self.commit.poll_news() {
            match news {
                News::Synced { lane } => {
                    if let Some(sync) = self.ended[lane].take() {
                        engine.journal().synced(&sync);
                    }
                }
                News::Durable { upto, took } if upto > engine.committed() => {
                    engine.synced(now, Ok((upto, took)));
                }
                News::Durable { .. } => {}
                News::Full { is_new } => {
                    if is_new {
                        tracing::error!(
                            "the journal's disk is full: writes wait until there is space"
                        );
                        engine.journal_full(true);
                    }
                    // What is kept for an origin that goes back is worth less than going on.
                    if engine.journal().reclaim_oldest() {
                        tracing::warn!(
                            "the journal's disk is full: gave up a part of what --retain keeps"
                        );
                    }
                }
                News::HasSpace => {
                    tracing::info!("the journal's disk has space again");
                    engine.journal_full(false);
                }
                News::Failed => tracing::error!("the journal failed; stopping"),
            }
        }
    }
}

fn fault_of(journal: &Journal, error: &Error) -> LogFault {
    if error.kind() == ErrorKind::Full {
        tracing::debug!(%error, "no space for the journal");
        return LogFault::Full { durable: Lsn(journal.status().durable_lsn) };
    }
    tracing::error!(%error, "the journal cannot be written");
    LogFault::Failed
}

fn state_of(journal: &Journal) -> Log {
    let buffered_bytes = journal.buffered_bytes();
    Log {
        buffered_bytes,
        written: Lsn(journal.written()),
        is_light: buffered_bytes <= WRITE_INLINE_BYTES && journal.stays_in_segment(),
        is_mark_due: journal.mark_due(),
    }
}

fn load_of(engine: &Engine, writers: &Writers) -> Load {
    Load {
        is_prompt: engine.policy().commit == Span::ZERO,
        has_readers: writers.has_readers(),
        ..Load::default()
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
