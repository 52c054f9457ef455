//! Group commit of a journal: what [`GroupCommit`] says, as work for whichever thread, and what came of it.
//!
//! It runs nothing by itself and reads no clock, so that simulations use it as well: they run the work when they like, and say
//! how long it took ([`CommitDone::until`]).

use destage_core::{Lsn, Span, Time};
use destage_engine::{CommitSettings, Ended, GroupCommit, Lane, Load, Log, LogFault, News, Step};
use destage_journal::{DurableWrite, Error, ErrorKind, Flush, Journal, Sync};
use std::io;
use std::time::{Duration, Instant};

/// Most lanes of syncs that there can be.
pub const LANES_MAX: usize = 2;

/// When a journal is written and made durable: see the module.
#[derive(Debug)]
pub struct JournalCommit {
    commit: GroupCommit,
    inline_bytes_max: usize,
    /// What has ended and does not count yet, by lane.
    ended: Vec<Option<Durable>>,
}

/// Something to be done with the journal's files, by [`CommitWork::run`].
#[derive(Debug)]
pub struct CommitWork {
    kind: Kind,
    is_here: bool,
    began: Time,
}

#[derive(Debug)]
enum Kind {
    Write(Flush),
    WriteAndSync(Flush),
    Durable { lane: Lane, durable: Durable },
}

/// What makes something durable on a lane.
#[derive(Debug)]
enum Durable {
    Sync(Sync),
    Write(Box<DurableWrite>),
}

/// What came of it, for [`JournalCommit::ended`].
#[derive(Debug)]
pub struct CommitDone {
    kind: Kind,
    began: Time,
    took: Span,
    /// The newest group that is durable, or written where nothing was to be made durable.
    pub result: Result<Lsn, Error>,
}

impl JournalCommit {
    /// Nothing is under way. More than `inline_bytes_max` are not even handed to the system on the asking thread.
    ///
    /// # Panics
    /// If there are more than [`LANES_MAX`] lanes.
    pub fn new(settings: CommitSettings, inline_bytes_max: usize, now: Time) -> Self {
        assert!(settings.lanes <= LANES_MAX, "{} lanes", settings.lanes);
        let lanes = settings.lanes + settings.durable_writes;
        let commit = GroupCommit::new(settings, now);
        Self { commit, inline_bytes_max, ended: (0..lanes).map(|_| None).collect() }
    }

    /// The core wants everything up to here durable.
    pub fn want(&mut self, upto: Lsn) {
        self.commit.want(upto);
    }

    /// Nothing more is foreseen: the newest groups are marked as durable as soon as they are.
    pub fn mark_soon(&mut self) {
        self.commit.mark_soon();
    }

    /// Whether the core waits for the journal.
    pub fn is_wanted(&self) -> bool {
        self.commit.is_wanted()
    }

    /// Whether something is under way.
    pub fn is_busy(&self) -> bool {
        self.commit.is_busy()
    }

    /// Whether the journal takes nothing any more.
    pub fn has_failed(&self) -> bool {
        self.commit.has_failed()
    }

    /// How long a sync that is due on the asking thread may wait for further writers; `None` if none is due.
    pub fn patience(&self, load: Load) -> Option<Duration> {
        self.commit.patience(load).map(|span| Duration::from_nanos(span.0))
    }

    /// When something becomes due by the passing of time alone.
    pub fn next_timeout(&self, journal: &Journal) -> Option<Time> {
        self.commit.next_timeout(self.log(journal))
    }

    /// What somebody waits for, or what is due by the passing of time. To be asked until nothing is; news may follow from it.
    pub fn next_due(&mut self, now: Time, journal: &mut Journal, load: Load) -> Option<CommitWork> {
        loop {
            let step = self.commit.next_due(now, self.log(journal), load)?;
            match self.begin(now, journal, step) {
                Ok(work) => return Some(work),
                Err(lane) => self.commit.not_begun(now, lane),
            }
        }
    }

    /// What is better written now than later although nobody waits for it. To be asked for when nothing else is to be done.
    pub fn next_ahead(
        &mut self,
        now: Time,
        journal: &mut Journal,
        load: Load,
    ) -> Option<CommitWork> {
        let step = self.commit.next_ahead(now, self.log(journal), load)?;
        self.begin(now, journal, step).ok()
    }

    /// Something has been run, well or not. What follows is in [`JournalCommit::poll_news`].
    pub fn ended(&mut self, now: Time, journal: &mut Journal, done: CommitDone) {
        let CommitDone { kind, result, took, .. } = done;
        let fault = |journal: &Journal, error: &Error| match error.kind() {
            ErrorKind::Full => LogFault::Full { durable: Lsn(journal.status().durable_lsn) },
            _ => LogFault::Failed,
        };
        let ended = match kind {
            Kind::Write(flush) => {
                journal.give_back(flush);
                Ended::Wrote(result.map(drop).map_err(|error| fault(journal, &error)))
            }
            Kind::WriteAndSync(flush) => {
                journal.give_back(flush);
                let result = result.map_err(|error| fault(journal, &error));
                Ended::WroteAndSynced { result, took }
            }
            Kind::Durable { lane, durable } => {
                self.ended[lane] = Some(durable);
                let result = result.map_err(|error| fault(journal, &error));
                Ended::Synced { lane, result, took }
            }
        };
        self.commit.ended(now, ended);
    }

    /// The next thing that the front end has to know. [`News::Synced`] is not among them: the journal is told of it.
    pub fn poll_news(&mut self, journal: &mut Journal) -> Option<News> {
        loop {
            match self.commit.poll_news()? {
                News::Synced { lane } => match self.ended[lane].take() {
                    Some(Durable::Sync(sync)) => journal.synced(&sync),
                    Some(Durable::Write(write)) => journal.wrote_durably(&write),
                    None => {}
                },
                news => return Some(news),
            }
        }
    }

    fn log(&self, journal: &Journal) -> Log {
        let buffered_bytes = journal.buffered_bytes();
        Log {
            buffered_bytes,
            written: Lsn(journal.written()),
            is_light: buffered_bytes <= self.inline_bytes_max && journal.stays_in_segment(),
            is_direct: journal.takes_durable_writes(),
            is_mark_due: journal.mark_due(),
        }
    }

    /// The work that a step is; the lane if there is nothing to do on it after all.
    fn begin(&self, now: Time, journal: &mut Journal, step: Step) -> Result<CommitWork, Lane> {
        let (kind, is_here) = match step {
            Step::Write { here } => (Kind::Write(journal.take()), here),
            Step::WriteAndSync { here } => (Kind::WriteAndSync(journal.take()), here),
            Step::Sync { lane } => {
                let sync = match lane {
                    0 => journal.sync(),
                    _ => journal.sync_beside().unwrap_or_else(|error| {
                        // It waits for the one under way.
                        tracing::debug!(%error, "one sync of the journal at a time");
                        None
                    }),
                };
                (Kind::Durable { lane, durable: Durable::Sync(sync.ok_or(lane)?) }, false)
            }
            Step::WriteDurably { lane, here } => {
                let write = journal.take_durable().ok_or(lane)?;
                (Kind::Durable { lane, durable: Durable::Write(Box::new(write)) }, here)
            }
        };
        Ok(CommitWork { kind, is_here, began: now })
    }
}

impl Kind {
    fn is_sync(&self) -> bool {
        !matches!(self, Self::Write(_))
    }
}

impl CommitWork {
    /// Whether the asking thread is to run it at once.
    pub fn is_here(&self) -> bool {
        self.is_here
    }

    /// Whether it makes something durable.
    pub fn is_sync(&self) -> bool {
        self.kind.is_sync()
    }

    /// The lane of a sync of what was written or of a durable write; `None` for a flush, of which there is one at a time.
    pub fn lane(&self) -> Option<Lane> {
        match self.kind {
            Kind::Durable { lane, .. } => Some(lane),
            Kind::Write(_) | Kind::WriteAndSync(_) => None,
        }
    }

    /// The durable write that it is, which others may carry out: [`CommitWork::ended`].
    pub fn durable_write(&self) -> Option<&DurableWrite> {
        match &self.kind {
            Kind::Durable { durable: Durable::Write(write), .. } => Some(write),
            _ => None,
        }
    }

    /// Bytes that it writes if it does no more than that.
    pub fn written_bytes(&self) -> Option<usize> {
        match &self.kind {
            Kind::Write(flush) => Some(flush.len()),
            Kind::WriteAndSync(_) | Kind::Durable { .. } => None,
        }
    }

    /// Does it; blocks as long as the disk takes.
    pub fn run(mut self) -> CommitDone {
        let began = Instant::now();
        let result = match &mut self.kind {
            Kind::Write(flush) => flush.run(false),
            Kind::WriteAndSync(flush) => flush.run(true),
            Kind::Durable { durable: Durable::Sync(sync), .. } => sync.run(),
            Kind::Durable { durable: Durable::Write(write), .. } => write.run(),
        };
        let took = Span(began.elapsed().as_nanos() as u64);
        CommitDone { kind: self.kind, began: self.began, took, result: result.map(Lsn) }
    }

    /// A durable write that others have carried out has ended now.
    ///
    /// # Panics
    /// If it is none.
    pub fn ended(mut self, now: Time, written: io::Result<()>) -> CommitDone {
        let Kind::Durable { durable: Durable::Write(write), .. } = &mut self.kind else {
            panic!("only durable writes are carried out by others");
        };
        let result = write.ended(written).map(Lsn);
        let took = now.since(self.began);
        CommitDone { kind: self.kind, began: self.began, took, result }
    }
}

impl CommitDone {
    /// As if it had taken from when it was asked for until now.
    #[must_use]
    pub fn until(self, now: Time) -> Self {
        Self { took: now.since(self.began), ..self }
    }

    /// How long it took.
    pub fn took(&self) -> Span {
        self.took
    }

    /// Whether something was to be made durable.
    pub fn is_sync(&self) -> bool {
        self.kind.is_sync()
    }

    /// Whether a flush has ended, so that what is appended may be written again.
    pub fn is_flush(&self) -> bool {
        !matches!(self.kind, Kind::Durable { .. })
    }

    /// What went wrong, if it was the journal's end; a full disk is not.
    pub fn failure(&self) -> Option<&Error> {
        self.result.as_ref().err().filter(|error| error.kind() != ErrorKind::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_journal::Options;
    use destage_testkit::SimDisk;
    use destage_testkit::disk::Count;
    use std::sync::Arc;

    const NOW: Time = Time(1_000_000_000);
    const SETTINGS: CommitSettings = CommitSettings {
        lanes: LANES_MAX,
        durable_writes: 0,
        here_max: Some(Span::from_millis(3)),
        write_ahead_bytes: 1_000,
        write_beside_bytes: usize::MAX,
        mark_after: None,
    };

    struct World {
        disk: SimDisk,
        journal: Journal,
        commit: JournalCommit,
    }

    impl World {
        fn new() -> Self {
            let disk = SimDisk::new();
            let (journal, _) = Journal::open(Arc::new(disk.clone()), Options::default()).unwrap();
            Self { disk, journal, commit: JournalCommit::new(SETTINGS, usize::MAX, NOW) }
        }

        fn append(&mut self) {
            let lsn = self.journal.last() + 1;
            self.journal.append(lsn, NOW.0, 0, &[7; 100]);
            self.commit.want(Lsn(lsn));
        }

        fn due(&mut self, has_readers: bool) -> Option<CommitWork> {
            let load = Load { is_prompt: true, has_readers, ..Load::default() };
            self.commit.next_due(NOW, &mut self.journal, load)
        }

        fn end(&mut self, work: CommitWork) -> Vec<News> {
            self.commit.ended(NOW, &mut self.journal, work.run().until(NOW));
            std::iter::from_fn(|| self.commit.poll_news(&mut self.journal)).collect()
        }
    }

    fn durable(upto: u64) -> News {
        News::Durable { upto: Lsn(upto), took: Span::ZERO }
    }

    #[test]
    fn who_waits_alone_is_served_on_its_own_thread() {
        let mut world = World::new();
        world.append();
        let work = world.due(false).expect("someone waits");
        assert!(work.is_here() && work.is_sync() && work.lane().is_none());
        assert_eq!(world.end(work), [durable(1)]);
        assert!(world.due(false).is_none() && !world.commit.is_busy());
        assert_eq!(world.journal.status().durable_lsn, 1);
    }

    #[test]
    fn syncs_count_in_the_order_in_which_they_began() {
        let mut world = World::new();
        world.append();
        let write = world.due(true).expect("someone waits");
        assert!(!write.is_sync() && write.written_bytes().is_some());
        assert_eq!(world.end(write), []);
        let first = world.due(true).expect("what was written is synced");
        world.append();
        let write = world.due(true).expect("the other lane is free");
        assert_eq!(world.end(write), []);
        let second = world.due(true).expect("what was written beside is synced");
        assert_eq!((first.lane(), second.lane()), (Some(0), Some(1)));
        assert_eq!(world.end(second), []);
        assert_eq!(world.journal.status().durable_lsn, 0, "it does not count yet");
        assert_eq!(world.end(first), [durable(1), durable(2)]);
        assert_eq!(world.journal.status().durable_lsn, 2);
    }

    #[test]
    fn a_journal_that_fails_is_told_once_and_given_nothing_more() {
        let mut world = World::new();
        world.append();
        world.disk.fail_after(Count::Syncs, 1, io::ErrorKind::Other);
        let work = world.due(false).expect("someone waits");
        let done = work.run();
        assert!(done.failure().is_some() && done.is_flush());
        world.commit.ended(NOW, &mut world.journal, done);
        assert_eq!(world.commit.poll_news(&mut world.journal), Some(News::Failed));
        assert_eq!(world.commit.poll_news(&mut world.journal), None);
        world.append();
        assert!(world.due(false).is_none() && world.commit.has_failed());
    }

    #[test]
    fn what_nobody_waits_for_is_written_once_it_is_much() {
        let mut world = World::new();
        for lsn in 1..=5 {
            let load = Load::default();
            assert!(world.commit.next_ahead(NOW, &mut world.journal, load).is_none(), "{lsn}");
            world.journal.append(lsn, NOW.0, 0, &[7; 200]);
        }
        let work = world.commit.next_ahead(NOW, &mut world.journal, Load::default());
        let work = work.expect("it is more than 1,000 bytes");
        assert!(!work.is_sync() && work.written_bytes() >= Some(1_000));
        assert_eq!(world.end(work), []);
    }
}
