//! The journal's disk: the live server's group commit in virtual time.

use super::{Event, Flushing, Sim, Syncing};
use crate::engine::tests::options::Options;
use destage_core::{Fault, Lsn, Span, Time};
use destage_engine::{CommitSettings, Ended, GroupCommit, Load, Log, LogFault, News, Step};
use destage_journal::Error;

/// Syncs under way at once, at most.
pub(super) const LANES: usize = 2;

/// As the server has it, or with one sync at a time.
pub(super) fn group_commit(options: &Options, now: Time) -> GroupCommit {
    let settings = CommitSettings {
        lanes: if options.one_lane { 1 } else { LANES },
        here_max: options.syncs_here.then_some(Span::from_millis(3)),
        write_ahead_bytes: if options.early_writes { 600 } else { 1 << 20 },
        write_beside_bytes: usize::MAX,
        mark_after: Some(Span::from_secs(1)),
    };
    GroupCommit::new(settings, now)
}

impl Sim {
    /// Does what is due at the journal.
    pub(super) fn start_flush(&mut self) {
        loop {
            let journal = self.engine.journal();
            let log = Log {
                buffered_bytes: journal.buffered_bytes(),
                written: Lsn(journal.written()),
                is_light: journal.stays_in_segment(),
                is_mark_due: journal.mark_due(),
            };
            let load = Load {
                is_prompt: self.engine.policy().commit == Span::ZERO,
                has_readers: self.options.has_readers,
                ..Load::default()
            };
            let due = self.commit.next_due(self.now, log, load);
            match due.or_else(|| self.commit.next_ahead(self.now, log, load)) {
                Some(step) => self.flush_step(step),
                None => return,
            }
        }
    }

    fn flush_step(&mut self, step: Step) {
        let (sync, here) = match step {
            Step::Write { here } => (false, here),
            Step::WriteAndSync { here } => (true, here),
            Step::Sync { lane } => return self.begin_sync(lane),
        };
        let flush = self.engine.journal().take();
        self.flushing = Some(Flushing { flush, sync, began: self.now, result: None });
        if here {
            self.run_now();
            return self.end_flush();
        }
        self.later(self.options.sync_ns, Event::FlushRun);
    }

    fn begin_sync(&mut self, lane: usize) {
        let journal = self.engine.journal();
        let sync = match lane {
            0 => Ok(journal.sync()),
            _ => journal.sync_beside(),
        };
        let Ok(Some(sync)) = sync else {
            self.commit.not_begun(self.now, lane);
            return self.tell();
        };
        self.syncing[lane] = Some(Syncing { sync, began: self.now, result: None });
        // Either may end first.
        let took = 1 + self.rng.below(2 * self.options.sync_ns.max(1));
        self.later(took, Event::SyncRun(lane));
    }

    fn run_now(&mut self) {
        if let Some(flushing) = &mut self.flushing {
            flushing.result = Some(flushing.flush.run(flushing.sync));
        }
    }

    pub(super) fn run_flush(&mut self) {
        self.run_now();
        self.later(self.options.sync_ns / 2, Event::FlushEnd);
    }

    pub(super) fn run_sync(&mut self, lane: usize) {
        if let Some(syncing) = &mut self.syncing[lane] {
            syncing.result = Some(syncing.sync.run());
        }
        self.later(self.options.sync_ns / 2, Event::SyncEnd(lane));
    }

    pub(super) fn end_flush(&mut self) {
        let Some(Flushing { flush, sync, began, result }) = self.flushing.take() else { return };
        self.engine.journal().give_back(flush);
        let result = self.outcome(result);
        let took = self.now.since(began);
        let ended = match sync {
            true => Ended::WroteAndSynced { result, took },
            false => Ended::Wrote(result.map(drop)),
        };
        self.commit.ended(self.now, ended);
        self.tell();
    }

    pub(super) fn end_sync(&mut self, lane: usize) {
        let Some(Syncing { began, result, .. }) = &mut self.syncing[lane] else { return };
        let (began, result) = (*began, result.take());
        let result = self.outcome(result);
        self.counts.lane_syncs += 1;
        let took = self.now.since(began);
        self.commit.ended(self.now, Ended::Synced { lane, result, took });
        self.tell();
    }

    fn outcome(&mut self, result: Option<Result<u64, Error>>) -> Result<Lsn, LogFault> {
        result.expect("it ran").map(Lsn).or_else(|error| {
            assert!(self.options.fails_syncs, "the disk works: {error}");
            self.counts.failed_syncs += 1;
            match self.options.unsafe_hides_failed_syncs && self.commit.is_wanted() {
                true => Ok(self.engine.last()),
                false => Err(LogFault::Failed),
            }
        })
    }

    fn tell(&mut self) {
        while let Some(news) = self.commit.poll_news() {
            match news {
                News::Synced { lane } => {
                    if let Some(syncing) = self.syncing[lane].take() {
                        self.engine.journal().synced(&syncing.sync);
                    }
                }
                News::Durable { upto, took } if upto > self.engine.committed() => {
                    self.engine.synced(self.now, Ok((upto, took)));
                }
                News::Durable { .. } => {}
                News::Full { .. } | News::HasSpace => unreachable!("the disk has room"),
                News::Failed => self.engine.synced(self.now, Err(Fault::Failed)),
            }
        }
    }
}
