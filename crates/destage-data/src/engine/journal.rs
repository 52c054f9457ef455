//! The journal's group commit, as the engine sees it: the same for the live server and in simulations.

use super::Engine;
use destage_core::{Span, Time};
use destage_engine::{CommitSettings, Drive, Load, News};
use destage_journal::Journal;
use destage_runtime::commit::LANES_MAX;

/// How the journal is committed.
pub(crate) const COMMIT: CommitSettings = CommitSettings {
    lanes: LANES_MAX,
    // As many as the disk gains by: see the server.
    durable_writes: 0,
    // A slower disk would keep cached reads waiting.
    here_max: Some(Span::from_millis(3)),
    write_ahead_bytes: 1 << 20,
    write_beside_bytes: usize::MAX,
    mark_after: Some(Span::from_secs(1)),
};

impl Engine {
    /// The journal, to be written.
    pub fn journal(&mut self) -> &mut Journal {
        self.log.journal_mut()
    }

    /// Ends the engine, to close the journal.
    pub fn into_journal(self) -> Journal {
        self.log.into_journal()
    }

    /// Who waits for the journal.
    pub(crate) fn commit_load(&self, has_readers: bool) -> Load {
        Load { is_prompt: self.policy().commit == Span::ZERO, has_readers, ..Load::default() }
    }

    /// What came of writing the journal, but for its failure, which is the end.
    pub(crate) fn journal_news(&mut self, now: Time, news: News) {
        match news {
            News::Durable { upto, took } if upto > self.committed() => {
                self.synced(now, Ok((upto, took)));
            }
            News::Durable { .. } => {}
            News::Full { is_new } => {
                if is_new {
                    tracing::error!("the journal's disk is full: writes wait until there is space");
                    self.journal_full(true);
                }
                // What is kept for an origin that goes back is worth less than going on.
                if self.log.journal_mut().reclaim_oldest() {
                    tracing::warn!(
                        "the journal's disk is full: gave up a part of what --retain keeps"
                    );
                }
            }
            News::HasSpace => {
                tracing::info!("the journal's disk has space again");
                self.journal_full(false);
            }
            News::Synced { .. } | News::Failed => {
                unreachable!("whoever commits heeds it: {news:?}")
            }
        }
    }

    /// Whether the journal's disk is full, so that nothing can be acknowledged.
    pub fn journal_full(&mut self, is_full: bool) {
        self.measured.set_journal_full(is_full);
        if !is_full {
            self.wake_lease_waiters();
            self.run_ready();
        }
    }
}
