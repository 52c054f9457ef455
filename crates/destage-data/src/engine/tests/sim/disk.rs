//! The journal's disk: the live server's group commit in virtual time.

use super::{Committing, Event, Sim};
use crate::engine::COMMIT;
use crate::engine::tests::options::{DURABLE_WRITES_MAX, Options};
use destage_core::{Fault, Span, Time};
use destage_engine::{CommitSettings, Drive, News};
use destage_runtime::commit::{CommitDone, CommitWork, JournalCommit, LANES_MAX};

/// As the server has it, or with one sync at a time.
pub(super) fn group_commit(options: &Options, now: Time) -> JournalCommit {
    let settings = CommitSettings {
        lanes: if options.one_lane { 1 } else { COMMIT.lanes },
        durable_writes: options.durable_writes,
        here_max: COMMIT.here_max.filter(|_| options.syncs_here),
        write_ahead_bytes: if options.early_writes { 600 } else { COMMIT.write_ahead_bytes },
        ..COMMIT
    };
    JournalCommit::new(settings, usize::MAX, now)
}

/// Most of what may be under way: the flush, and what each lane does.
pub(super) const PLACES: usize = 1 + LANES_MAX + DURABLE_WRITES_MAX;

/// Where something under way is kept: the flush, or what a lane does.
fn place_of(work: &CommitWork) -> usize {
    work.lane().map_or(0, |lane| 1 + lane)
}

impl Committing {
    /// Has the disk do it, unless it has.
    pub(super) fn run(&mut self) {
        *self = match std::mem::replace(self, Self::Nothing) {
            Self::Begun(work) => Self::Ran(work.run()),
            other => other,
        };
    }

    /// What came of it.
    pub(super) fn take_ran(&mut self) -> Option<CommitDone> {
        self.run();
        match std::mem::replace(self, Self::Nothing) {
            Self::Ran(done) => Some(done),
            _ => None,
        }
    }
}

impl Sim {
    /// Does what is due at the journal.
    pub(super) fn start_flush(&mut self) {
        loop {
            let load = self.engine.commit_load(self.options.has_readers);
            let due = self.commit.next_due(self.now, self.engine.journal(), load);
            self.tell();
            let next = || self.commit.next_ahead(self.now, self.engine.journal(), load);
            let Some(work) = due.or_else(next) else { return };
            let place = place_of(&work);
            let (is_here, is_flush) = (work.is_here(), place == 0);
            if let Some(write) = work.durable_write() {
                self.counts.durable_writes += 1;
                // The disk begins at once or later. A failure is told of once, by what counts.
                if !is_here && !self.options.fails_syncs && self.rng.chance(50) {
                    write.begun().expect("the disk works");
                }
            }
            self.committing[place] = Committing::Begun(work);
            if is_here {
                self.end_commit(place);
            } else if is_flush {
                self.later(self.options.sync_ns, Event::CommitRun(place));
            } else {
                // Either may end first.
                let took = 1 + self.rng.below(2 * self.options.sync_ns.max(1));
                self.later(took, Event::CommitRun(place));
            }
        }
    }

    pub(super) fn run_commit(&mut self, place: usize) {
        self.committing[place].run();
        self.later(self.options.sync_ns / 2, Event::CommitEnd(place));
    }

    pub(super) fn end_commit(&mut self, place: usize) {
        let Some(mut done) = self.committing[place].take_ran() else { return };
        if let Err(error) = &done.result {
            assert!(self.options.fails_syncs, "the disk works: {error}");
            self.counts.failed_syncs += 1;
            if self.options.unsafe_hides_failed_syncs && self.commit.is_wanted() {
                done.result = Ok(self.engine.last());
            }
        }
        self.counts.lane_syncs += u64::from(!done.is_flush());
        if self.options.unsafe_any_order
            && place > LANES_MAX
            && let Ok(upto) = done.result
        {
            self.engine.journal_news(self.now, News::Durable { upto, took: Span::ZERO });
        }
        self.commit.ended(self.now, self.engine.journal(), done.until(self.now));
        self.tell();
    }

    pub(super) fn tell(&mut self) {
        while let Some(news) = self.commit.poll_news(self.engine.journal()) {
            match news {
                News::Full { .. } | News::HasSpace => unreachable!("the disk has room"),
                News::Failed => self.engine.synced(self.now, Err(Fault::Failed)),
                news => self.engine.journal_news(self.now, news),
            }
        }
    }
}
