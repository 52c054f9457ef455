//! A journal whose folder is removed or replaced under the running server: found within a second. From then on nothing is
//! acknowledged, and what was goes to the origin, as at a shutdown.

use super::Server;
use crate::serve::ServeError;
use destage_core::ClientId;
use destage_engine::Drive;
use destage_runtime::exit;
use destage_runtime::watch::Tampering;

impl Server {
    /// How the server ended, if the journal is gone: with so many writes that nobody holds any more.
    pub(super) fn lost_journal(&self, lost: u64) -> Option<ServeError> {
        let found = self.journal.found()?;
        let rest = match lost {
            0 => "the origin has taken everything that was acknowledged".to_owned(),
            lost => {
                format!("the origin has not taken the last {lost} writes, which are lost with it")
            }
        };
        let message = format!(
            "the journal in {} {found} while it was in use: {rest}. Start with an empty data folder and --adopt",
            self.settings.data.display()
        );
        Some(ServeError::new(exit::JOURNAL_UNUSABLE, message))
    }

    /// Looks whether the journal is in its place, if it is time to.
    pub(super) fn watch_journal(&mut self) {
        if let Some(found) = self.journal.look_if_due(self.now()) {
            self.lose_journal(&found);
        }
    }

    /// What follows from a journal that has failed: nothing but the end; if it is gone, with what it held at the origin.
    pub(super) fn heed_failure(&mut self) {
        if !self.syncer.has_failed() || self.stopped.is_some() || self.journal.found().is_some() {
            return;
        }
        match self.journal.look() {
            Some(found) => self.lose_journal(&found),
            None => self.syncer.give_up(&mut self.engine, self.clock.now()),
        }
    }

    /// Whether nothing more can go to the origin, since the rest was never in the journal that is gone.
    pub(super) fn has_sent_what_was_acknowledged(&self) -> bool {
        let is_gone = self.journal.found().is_some() && self.syncer.has_failed();
        is_gone && self.engine.decided() >= self.engine.committed()
    }

    fn lose_journal(&mut self, found: &Tampering) {
        tracing::error!(
            folder = %self.settings.data.display(),
            undecided = self.engine.undecided(),
            "the journal {found} while it was in use: nothing is acknowledged any more, what was is sent to the origin, and then \
             the server ends"
        );
        (0..self.clients.len()).for_each(|client| self.close(ClientId(client as u32)));
        self.locals.clients().into_iter().for_each(|client| self.close_local(client));
        self.drain();
    }
}
