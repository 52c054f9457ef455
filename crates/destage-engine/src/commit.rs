//! Group commit: when the journal is written and made durable, by whom, and what happens when its disk is full.
//!
//! One flush (buffer to file) at a time; beside it, syncs of what was written before, each on a lane with a handle of the
//! file to itself. A client that writes again as soon as it is answered would otherwise wait for two syncs each time: for the
//! one that began just before, without it, and for its own. Lanes count in the order in which they began. Once one has
//! failed, no other is believed, whichever began first, since what a failed sync left on the medium is unknown.
//!
//! Where the medium takes durable writes one by one, several at once, each has a lane of its own, and no sync follows. A crash
//! may keep a later one and lose an earlier one: what lies behind the gap is cut, and nobody was told of it, since lanes
//! count in order. Such writes and flushes are never under way together.
//!
//! ```text
//!            want()                Write         ended(Wrote)            Sync          ended(Synced)
//!   core ──────────► wanted ──► [ flush out ] ─────────────► written ──► [ lane 0 ] ──────────────► News::Durable
//!                       │             └──── WriteAndSync ────────────────────────── ended(WroteAndSynced) ──┤
//!                       └─ WriteDurably ─► [ a lane each ] ───────────────────────── ended(Synced) ──────────┘
//! ```

use alloc::collections::VecDeque;
use core::ops::Range;
use destage_core::{Lsn, Span, Time};

/// How a front end's journal is committed.
#[derive(Clone, Copy, Debug)]
pub struct CommitSettings {
    /// Syncs that may be under way at once; 1 or 2.
    pub lanes: usize,
    /// Durable writes that may be under way at once, each on a lane after those of syncs; 0 for none.
    pub durable_writes: usize,
    /// The longest usual sync that the asking thread may carry out itself, so that a fast disk costs no hand-over; [`None`]
    /// for never.
    pub here_max: Option<Span>,
    /// What is buffered is written, although nobody waits, once it is this many bytes.
    pub write_ahead_bytes: usize,
    /// The same while a sync is under way; [`usize::MAX`] for never.
    pub write_beside_bytes: usize,
    /// An idle journal marks its newest groups as durable after this time; [`None`] for never.
    pub mark_after: Option<Span>,
}

/// The journal, as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    /// Bytes appended and not written.
    pub buffered_bytes: usize,
    /// The newest group that is written, durable or not.
    pub written: Lsn,
    /// Writing what is buffered is no more than handing it to the system.
    pub is_light: bool,
    /// It takes durable writes now: nothing that was written still has to be synced.
    pub is_direct: bool,
    /// Something is not durable yet, or its durability not marked.
    pub is_mark_due: bool,
}

impl Log {
    /// Nothing is left to be written but that its newest groups are durable.
    const fn is_idle(self) -> bool {
        self.buffered_bytes == 0 && self.is_mark_due
    }
}

/// Who is there, as it is now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Clients wait for every write (`d` is 0).
    pub is_prompt: bool,
    /// Clients would be answered while the asking thread carries out a sync.
    pub has_readers: bool,
    /// Nothing else is to be done, and the client is about to ask for a sync.
    pub is_sync_foreseen: bool,
    /// The journal's room is short: many short writes take more of it than few long ones.
    pub is_room_short: bool,
}

/// Which sync or durable write: the first lane uses the journal's own handle.
pub type Lane = usize;

/// What is to be done with the journal. Each is answered by [`GroupCommit::ended`], or [`GroupCommit::not_begun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write what is buffered, without making it durable.
    Write {
        /// On the asking thread, at once.
        here: bool,
    },
    /// Write what is buffered and make everything durable.
    WriteAndSync {
        /// On the asking thread, at once.
        here: bool,
    },
    /// Make durable what is written.
    Sync {
        /// On this lane.
        lane: Lane,
    },
    /// Write what is buffered so that it is durable once it is written, beside other such writes.
    WriteDurably {
        /// On this lane.
        lane: Lane,
        /// On the asking thread, at once.
        here: bool,
    },
}

/// Why the journal did not do as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// Its disk is full: nothing is lost, and everything up to here is durable.
    Full {
        /// The newest durable group.
        durable: Lsn,
    },
    /// What it holds is unknown.
    Failed,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Of [`Step::Write`].
    Wrote(Result<(), LogFault>),
    /// Of [`Step::WriteAndSync`]: everything up to here is durable.
    WroteAndSynced {
        /// The newest durable group.
        result: Result<Lsn, LogFault>,
        /// How long it took.
        took: Span,
    },
    /// Of [`Step::Sync`] or [`Step::WriteDurably`]: everything up to here is durable, if what the lanes before it said is true
    /// as well.
    Synced {
        /// The lane.
        lane: Lane,
        /// The newest durable group.
        result: Result<Lsn, LogFault>,
        /// How long it took.
        took: Span,
    },
}

/// What the front end has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The sync or durable write of a lane counts now, for as much as it said: those that began before it have ended. Comes
    /// before what follows from it.
    Synced {
        /// The lane.
        lane: Lane,
    },
    /// Everything up to here is durable. May be no more than before.
    Durable {
        /// The newest durable group.
        upto: Lsn,
        /// How long the sync took; zero where there was none.
        took: Span,
    },
    /// The disk is full. It is tried again after a while, and what was kept for convenience may be given up.
    Full {
        /// It was not before.
        is_new: bool,
    },
    /// The disk is full no more.
    HasSpace,
    /// Nothing is known to be durable from now on that was not before; nothing is to be done any more. Comes once.
    Failed,
}

/// The state machine: see the module.
#[derive(Debug)]
pub struct GroupCommit {
    settings: CommitSettings,
    /// The core waits until everything up to here is durable.
    wanted: Option<Lsn>,
    /// A flush is out.
    is_writing: bool,
    /// What was written is to be synced on this lane at once.
    next_lane: Option<Lane>,
    /// A lane could do nothing: only a flush makes durable what is wanted.
    needs_flush: bool,
    /// In the order in which they began.
    syncs: VecDeque<Running>,
    /// A full disk is left alone until then.
    retry_at: Option<Time>,
    last_sync: Time,
    /// Of a sync, averaged.
    latency: Span,
    is_full: bool,
    has_failed: bool,
    news: VecDeque<News>,
}

#[derive(Debug)]
struct Running {
    lane: Lane,
    /// What came of it, while one that began before has not ended.
    ended: Option<(Result<Lsn, LogFault>, Span)>,
}

impl GroupCommit {
    /// Nothing is under way.
    pub fn new(settings: CommitSettings, now: Time) -> Self {
        Self {
            settings,
            wanted: None,
            is_writing: false,
            next_lane: None,
            needs_flush: false,
            syncs: VecDeque::with_capacity(settings.lanes + settings.durable_writes),
            retry_at: None,
            last_sync: now,
            latency: Span::ZERO,
            is_full: false,
            has_failed: false,
            news: VecDeque::new(),
        }
    }

    /// The core wants everything up to here durable.
    pub fn want(&mut self, upto: Lsn) {
        self.wanted = self.wanted.max(Some(upto));
    }

    /// Nothing more is foreseen: the newest groups are marked as durable as soon as they are.
    pub fn mark_soon(&mut self) {
        self.settings.mark_after = Some(Span::ZERO);
    }

    /// Whether the core waits for the journal.
    pub fn is_wanted(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether a flush or a sync is under way.
    pub fn is_busy(&self) -> bool {
        self.is_writing || !self.syncs.is_empty()
    }

    /// Whether a sync of what was written is under way.
    pub fn is_syncing(&self) -> bool {
        !self.syncs.is_empty()
    }

    /// Whether the journal takes nothing any more.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// How long a sync that is due on the asking thread may wait for further writers; [`None`] if none is due. Those who were
    /// answered together write together: a sync that begins with the first of them makes the others wait for the next one.
    pub fn patience(&self, load: Load) -> Option<Span> {
        let is_due = self.wanted.is_some() && !self.is_busy() && self.is_able(Time::ZERO);
        let share = Span(self.latency.0 / PATIENCE_DIVISOR);
        (is_due && self.is_here(load)).then(|| share.min(PATIENCE_MAX))
    }

    /// What somebody waits for, or what is due by the passing of time. To be asked until nothing is.
    pub fn next_due(&mut self, now: Time, log: Log, load: Load) -> Option<Step> {
        // Whatever comes of it, that time is over: nobody is to be woken for it again.
        self.retry_at = self.retry_at.filter(|&at| at > now);
        if self.is_writing || !self.is_able(now) {
            return None;
        }
        if let Some(lane) = self.next_lane.take() {
            return Some(self.begin_sync(lane));
        }
        if self.writes_durably() {
            let is_free = self.syncs.len() < self.settings.durable_writes;
            let is_beside = is_free && self.wanted.is_some() && self.is_direct(log, load);
            return is_beside.then(|| self.begin_durable_write(false));
        }
        if !self.syncs.is_empty() {
            // Where durable writes are better, they begin when all that was written before is durable.
            let is_worse = self.settings.durable_writes > 0 && load.is_prompt;
            let is_free = self.syncs.len() < self.settings.lanes && !is_worse;
            let is_beside = is_free && self.is_prompt(load) && log.is_light;
            return (is_beside && log.buffered_bytes > 0).then(|| self.begin_write_then_sync());
        }
        if let Some(upto) = self.wanted {
            return Some(match () {
                () if self.needs_flush => self.begin_flush(true, false),
                () if self.is_direct(log, load) => self.begin_durable_write(self.is_here(load)),
                () if self.is_here(load) => self.begin_flush(true, true),
                () if log.written >= upto => self.begin_sync(0),
                () if self.is_prompt(load) && log.is_light => self.begin_write_then_sync(),
                () => self.begin_flush(true, false),
            });
        }
        // A disk that was full is tried again.
        if self.is_full && !load.is_room_short {
            return Some(self.begin_flush(false, false));
        }
        let is_marked = log.is_idle() && self.mark_at().is_some_and(|at| at <= now);
        is_marked.then(|| self.begin_flush(true, false))
    }

    /// What is better written now than later although nobody waits for it, so that the next sync finds little left. Makes
    /// nothing durable, so what a crash may take back stays as it is. To be asked for when nothing else is to be done.
    pub fn next_ahead(&mut self, now: Time, log: Log, load: Load) -> Option<Step> {
        let is_taken = self.is_writing
            || self.wanted.is_some() && self.syncs.is_empty()
            || self.writes_durably();
        if is_taken || self.is_full || load.is_room_short || !self.is_able(now) {
            return None;
        }
        let enough = if self.syncs.is_empty() {
            self.settings.write_ahead_bytes
        } else {
            self.settings.write_beside_bytes
        };
        let is_foreseen = load.is_sync_foreseen && log.buffered_bytes > 0;
        (is_foreseen || log.buffered_bytes >= enough).then(|| self.begin_flush(false, false))
    }

    /// When something becomes due by the passing of time alone.
    pub fn next_timeout(&self, log: Log) -> Option<Time> {
        if self.is_busy() || self.has_failed {
            return None;
        }
        if self.wanted.is_some() || self.is_full {
            self.retry_at
        } else {
            // What is buffered is marked with what it is written with, so that nobody is to be woken for it.
            self.mark_at().filter(|_| log.is_idle())
        }
    }

    /// A step has ended. What follows is in [`GroupCommit::poll_news`].
    ///
    /// # Panics
    /// If no such step is under way.
    pub fn ended(&mut self, now: Time, ended: Ended) {
        match ended {
            Ended::Wrote(result) => {
                self.flush_ended(now, result.map(|()| None));
            }
            Ended::WroteAndSynced { result, took } => {
                self.flush_ended(now, result.map(|upto| Some((upto, took))));
            }
            Ended::Synced { lane, result, took } => {
                let sync = self.syncs.iter_mut().find(|sync| sync.lane == lane);
                sync.expect("a sync of this lane is under way").ended = Some((result, took));
                // From then on the others are believed no more, those that began before included.
                if result == Err(LogFault::Failed) {
                    self.trouble(now, LogFault::Failed);
                }
                self.count_in_order(now);
            }
        }
    }

    /// A [`Step::Sync`] could not be begun: nothing was left to sync, or there was no handle for it. Or a
    /// [`Step::WriteDurably`] could not: what is buffered takes a flush.
    ///
    /// # Panics
    /// If no such step is under way.
    pub fn not_begun(&mut self, now: Time, lane: Lane) {
        let place = self.syncs.iter().position(|sync| sync.lane == lane);
        self.syncs.remove(place.expect("a sync of this lane is under way"));
        self.needs_flush = self.syncs.is_empty() || self.is_durable_write(lane);
        self.count_in_order(now);
    }

    /// The next thing that the front end has to know.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Whether the journal may be given anything to do.
    fn is_able(&self, now: Time) -> bool {
        !self.has_failed && self.retry_at.is_none_or(|at| at <= now)
    }

    /// Whether clients wait for every write, and the disk is fast enough to have the asking thread write.
    fn is_prompt(&self, load: Load) -> bool {
        load.is_prompt && self.settings.here_max.is_some_and(|most| self.latency <= most)
    }

    /// Whether the asking thread carries out a sync, too.
    fn is_here(&self, load: Load) -> bool {
        self.is_prompt(load) && !load.has_readers
    }

    /// Whether what is buffered is to be written durably, without a sync.
    fn is_direct(&self, log: Log, load: Load) -> bool {
        let is_able = self.settings.durable_writes > 0 && !self.needs_flush;
        is_able && load.is_prompt && log.is_direct && log.is_light && log.buffered_bytes > 0
    }

    fn is_durable_write(&self, lane: Lane) -> bool {
        lane >= self.settings.lanes
    }

    /// Whether durable writes are under way, beside which there are no syncs.
    fn writes_durably(&self) -> bool {
        self.syncs.front().is_some_and(|sync| self.is_durable_write(sync.lane))
    }

    fn mark_at(&self) -> Option<Time> {
        self.settings.mark_after.map(|after| self.last_sync + after)
    }

    fn begin_flush(&mut self, sync: bool, here: bool) -> Step {
        self.is_writing = true;
        if sync { Step::WriteAndSync { here } } else { Step::Write { here } }
    }

    /// Writes here, and has a lane sync it, so that another one may follow.
    fn begin_write_then_sync(&mut self) -> Step {
        self.next_lane = self.free_lane(0..self.settings.lanes);
        self.begin_flush(false, true)
    }

    fn begin_durable_write(&mut self, here: bool) -> Step {
        let first = self.settings.lanes;
        let lane = self.free_lane(first..first + self.settings.durable_writes);
        let lane = lane.expect("fewer writes are under way than may be");
        self.syncs.push_back(Running { lane, ended: None });
        Step::WriteDurably { lane, here }
    }

    fn free_lane(&self, mut lanes: Range<Lane>) -> Option<Lane> {
        lanes.find(|&lane| self.syncs.iter().all(|sync| sync.lane != lane))
    }

    fn begin_sync(&mut self, lane: Lane) -> Step {
        self.syncs.push_back(Running { lane, ended: None });
        Step::Sync { lane }
    }

    fn flush_ended(&mut self, now: Time, result: Result<Option<(Lsn, Span)>, LogFault>) {
        assert!(self.is_writing, "a flush is under way");
        self.is_writing = false;
        match result {
            Ok(synced) => {
                if core::mem::take(&mut self.is_full) {
                    self.news.push_back(News::HasSpace);
                }
                self.retry_at = None;
                if let Some((upto, took)) = synced {
                    self.needs_flush = false;
                    self.durable(now, upto, took);
                }
            }
            Err(fault) => {
                self.next_lane = None;
                self.trouble(now, fault);
            }
        }
    }

    /// Tells of the syncs that have ended, in the order in which they began.
    fn count_in_order(&mut self, now: Time) {
        while let Some(&Running { lane, ended: Some((result, took)) }) = self.syncs.front() {
            self.syncs.pop_front();
            self.news.push_back(News::Synced { lane });
            match result {
                Ok(upto) => self.durable(now, upto, took),
                Err(fault) => self.trouble(now, fault),
            }
        }
    }

    fn durable(&mut self, now: Time, upto: Lsn, took: Span) {
        if self.has_failed {
            return;
        }
        self.last_sync = now;
        self.latency = Span((self.latency.0 * 7 + took.0) / 8);
        self.wanted = self.wanted.filter(|&wanted| wanted > upto);
        self.news.push_back(News::Durable { upto, took });
    }

    fn trouble(&mut self, now: Time, fault: LogFault) {
        if self.has_failed {
            return;
        }
        let LogFault::Full { durable } = fault else {
            self.has_failed = true;
            return self.news.push_back(News::Failed);
        };
        let is_new = !core::mem::replace(&mut self.is_full, true);
        self.news.push_back(News::Full { is_new });
        self.retry_at = Some(now + FULL_RETRY);
        // What fitted may go to the origin, and so make room for the rest.
        self.news.push_back(News::Durable { upto: durable, took: Span::ZERO });
        self.wanted = self.wanted.filter(|&wanted| wanted > durable);
    }
}

/// A sync on the asking thread waits for further writers at most this part of its usual duration, and this long.
const PATIENCE_DIVISOR: u64 = 3;
const PATIENCE_MAX: Span = Span::from_micros(150);
/// How long a full disk is left alone before it is tried again.
const FULL_RETRY: Span = Span::from_millis(50);

#[cfg(test)]
mod tests;
