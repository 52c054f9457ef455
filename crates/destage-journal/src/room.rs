//! What may be buffered so that a full disk does not hold it up.

use crate::journal::Journal;
use std::sync::atomic::Ordering::Relaxed;

impl Journal {
    /// Bytes that may be appended now. With [`crate::Options::keeps_spare`], all that is buffered then finds its place in files
    /// that are there, and behind it a quarter of a segment stays: for what its user has to say before older groups may leave.
    /// What is appended for that is not bound by this. [`u64::MAX`] without a spare file to keep, and as long as the disk has not
    /// had room for one: then nothing can be promised, and nothing waits for it.
    pub fn room(&self) -> u64 {
        if !self.store.keeps_spare {
            return u64::MAX;
        }
        // Before the files: what is written meanwhile may begin one of them.
        let flying = self.store.flying.load(Relaxed);
        let ready = {
            let index = self.store.index();
            if !index.spares.is_empty() {
                self.store.had_spare.store(true, Relaxed);
            }
            index.ready() as u64
        };
        if !self.store.had_spare.load(Relaxed) {
            return u64::MAX;
        }
        let quarter = self.store.segment_bytes / 4;
        // A segment's end stays empty where the next batch does not fit.
        let takes = if ready == 0 { 0 } else { quarter + ready * quarter / 2 * 3 };
        takes.saturating_sub(self.buffer.bytes.len() as u64 + flying)
    }

    /// Whether the disk had no room for a further file when one was last to be made, and none has come back since.
    pub fn is_short(&self) -> bool {
        self.store.is_short()
    }

    /// Has the spare file made that is kept, if there is none: the disk may have room again.
    pub fn restock(&self) {
        self.upkeep.restock();
    }
}
