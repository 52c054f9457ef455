//! The journal, and the group that is written for it: one at a time, from its first byte to its place in the journal.

use crate::change::GroupWriter;
use crate::resp::ReplyError;
use destage_core::{Lsn, Time};
use destage_journal::{Journal, JournalStatus};

/// The log of an engine.
#[derive(Debug)]
pub(super) struct GroupLog {
    journal: Journal,
    /// The group that is being written, kept for its memory.
    writer: GroupWriter,
}

impl GroupLog {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, writer: GroupWriter::new() }
    }

    /// Begins another group.
    pub(super) fn begin(&mut self) -> &mut GroupWriter {
        self.writer.clear();
        &mut self.writer
    }

    /// Its bytes so far.
    pub(super) fn bytes(&mut self) -> &[u8] {
        self.writer.finish()
    }

    /// Takes the group out, for the engine to be changed by what is in it; [`GroupLog::give_back`] follows.
    pub(super) fn take_group(&mut self) -> GroupWriter {
        std::mem::take(&mut self.writer)
    }

    /// The group goes on.
    pub(super) fn give_back(&mut self, writer: GroupWriter) {
        self.writer = writer;
    }

    /// Whether the journal takes the group as it is.
    pub(super) fn fits(&mut self) -> bool {
        self.writer.finish().len() <= self.journal.payload_bytes_max()
    }

    /// The same, for whoever wants to know why not.
    ///
    /// # Errors
    /// It is more than the journal takes in one group.
    pub(super) fn check(&mut self) -> Result<(), ReplyError> {
        if self.fits() {
            return Ok(());
        }
        let (len, bytes_max) = (self.bytes().len(), self.payload_bytes_max());
        Err(ReplyError::err(format!(
            "a write of {len} bytes exceeds {bytes_max}, the most that the journal takes at once (16 MiB, or a sixteenth of \
             --journal-size where that is less); write it in parts"
        )))
    }

    /// Puts the group into the journal under its number, of domains that are noted so; its bytes are returned.
    pub(super) fn append(&mut self, lsn: Lsn, now: Time, noted: u16) -> &[u8] {
        let bytes = self.writer.finish();
        debug_assert!(
            bytes.len() <= self.journal.payload_bytes_max(),
            "a group is checked before it gets a number"
        );
        self.journal.append(lsn.0, now.0, noted, bytes);
        bytes
    }

    /// Most bytes of one group.
    pub(super) fn payload_bytes_max(&self) -> usize {
        self.journal.payload_bytes_max()
    }

    /// Lets go of the segments whose groups nobody needs up to here.
    pub(super) fn reclaim(&mut self, upto: Lsn, now: Time) {
        self.journal.reclaim(upto.0, now.0);
    }

    /// Up to where segments would be let go of, if any would.
    pub(super) fn due(&self, upto: Lsn, now: Time) -> Option<Lsn> {
        self.journal.due(upto.0, now.0).map(Lsn)
    }

    pub(super) fn status(&self) -> JournalStatus {
        self.journal.status()
    }

    /// The journal, to be flushed.
    pub(super) fn journal_mut(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The journal, to be closed.
    pub(super) fn into_journal(self) -> Journal {
        self.journal
    }
}
