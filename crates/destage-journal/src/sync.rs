//! Making durable what flushes have written, while further flushes write.

use crate::disk::DiskFile;
use crate::error::Error;
use crate::store::{Store, Way};
use std::sync::Arc;

/// What had been written when [`crate::Journal::sync`] was called, on its way to being durable: owned, so that it can run
/// on any thread, beside a flush. Hand it back by [`crate::Journal::synced`] whether it failed or not.
///
/// One of [`crate::Journal::sync_beside`] may run beside it; what the later of the two promises holds once both have
/// succeeded. A flush that runs beside it may have written more than this promises. After a crash nothing of that is promised, and
/// whatever is found of it behind a gap is cut.
#[derive(Debug)]
#[must_use = "nothing is durable before it ran"]
pub struct Sync {
    store: Arc<Store>,
    file: Arc<dyn DiskFile>,
    way: Way,
    segment: u64,
    upto: u64,
    writes: u64,
    is_durable: bool,
}

impl Sync {
    /// For what `writes` writes have brought into the log, the last of them into this file.
    pub(crate) fn new(
        store: Arc<Store>,
        file: Arc<dyn DiskFile>,
        way: Way,
        segment: u64,
        upto: u64,
        writes: u64,
    ) -> Self {
        Self { store, file, way, segment, upto, writes, is_durable: false }
    }

    /// Makes it durable. Returns the newest group that then is.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Fenced`]: nothing is known about what was written since the last success, and nothing is
    /// written any more.
    pub fn run(&mut self) -> Result<u64, Error> {
        self.store.sync_or_fence(&*self.file, self.segment, self.way)?;
        self.is_durable = true;
        Ok(self.upto)
    }

    /// The newest group that is durable by it, and how many writes are; `None` if it failed or never ran.
    pub(crate) fn reached(&self) -> Option<(u64, u64)> {
        self.is_durable.then_some((self.upto, self.writes))
    }
}
