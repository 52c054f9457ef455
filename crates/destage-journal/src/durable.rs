//! Durable writes: what is appended goes to the medium durably by itself, several writes at a time, without a sync.
//!
//! Each write takes the place behind the one before when it is taken, and only then leaves the journal. So they may end in
//! any order, and a crash may keep a later one and lose an earlier one. A start cuts what lies behind the gap, as it cuts a
//! torn tail. Nobody is told that a write is durable before those in front of it are: see [`Journal::wrote_durably`].
//!
//! ```text
//!   take_durable()   |  batch 7  |  batch 8  |  batch 9  |        all under way
//!   ended: 9, 7      |  durable  |     ?     |  durable  |        what is durable ends with 7
//!   crash            |  durable  |   torn    |    cut    |
//! ```

use crate::disk::DiskFile;
use crate::error::Error;
use crate::format::{PAGE, SECTOR};
use crate::journal::Journal;
use crate::store::{Stamps, Store};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Records on their way to the medium, durable once they are there. Owned, so that it can run on any thread, beside others of
/// its kind. Hand it back by [`Journal::wrote_durably`] in the order in which they were taken, whether it failed or not.
#[derive(Debug)]
#[must_use = "the records reach the medium when it runs"]
pub struct DurableWrite {
    store: Arc<Store>,
    file: Arc<dyn DiskFile>,
    segment: u64,
    offset: u64,
    bytes: Aligned,
    /// The newest group.
    upto: u64,
    stamps: Stamps,
    /// How many writes of other kinds there had been.
    writes: u64,
    is_durable: bool,
}

/// Bytes where a medium takes them from: at the start of a page.
#[derive(Debug)]
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn copy(from: &[u8]) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(from.len() + PAGE);
        let start = bytes.as_ptr().align_offset(PAGE);
        bytes.resize(start, 0);
        bytes.extend_from_slice(from);
        Self { bytes, start }
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DurableWrite {
    /// Writes it; blocks as long as the medium takes. Returns the newest group, which is durable once those before it are.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Fenced`]: nothing is written any more.
    pub fn run(&mut self) -> Result<u64, Error> {
        self.store.check_fence()?;
        let written = self.file.write_durably(self.offset, self.bytes.get());
        self.ended(written)
    }

    /// Takes note of how it ended where others carried it out: see [`DurableWrite::place`].
    ///
    /// # Errors
    /// As [`DurableWrite::run`].
    pub fn ended(&mut self, written: std::io::Result<()>) -> Result<u64, Error> {
        let what = || format!("write segment {} durably", self.segment);
        written.map_err(|e| self.store.fence(&what(), e))?;
        // Another one may have failed meanwhile, behind which this one lies.
        self.store.check_fence()?;
        self.is_durable = true;
        Ok(self.upto)
    }

    /// For who carries out writes in ways of their own: these bytes belong at this offset of this file, and are to be durable
    /// there (`RWF_DSYNC`). The bytes stay where they are until the write is dropped. `None` where only
    /// [`DurableWrite::run`] will do.
    pub fn place(&self) -> Option<(BorrowedFd<'_>, u64, &[u8])> {
        Some((self.file.fd()?, self.offset, self.bytes.get()))
    }

    /// For simulations: from now on the medium may hold any part of it.
    ///
    /// # Errors
    /// As the medium reports them.
    pub fn begun(&self) -> std::io::Result<()> {
        self.file.write_at(self.offset, self.bytes.get())
    }
}

impl Journal {
    /// How many durable writes there may be at once; 0, the default, for none. What is gained depends on the medium: measure
    /// it. A journal that never syncs takes none.
    pub fn allow_durable_writes(&mut self, depth: usize) {
        self.direct.depth = if self.store.is_unsafe() { 0 } else { depth };
        self.open_direct();
    }

    /// How many there may be at once; 0 where the medium takes none.
    pub fn durable_writes(&self) -> usize {
        if self.direct.file.is_some() { self.direct.depth } else { 0 }
    }

    /// Whether what is appended may be taken for a durable write: everything written before is durable or on its way by such
    /// writes, and the medium takes them. False while a flush is out.
    pub fn takes_durable_writes(&self) -> bool {
        // What was written and not synced would count as durable with what follows it.
        let is_open = |number| self.direct.file.as_ref().is_some_and(|&(of, _)| of == number);
        let writer = self.writer.as_deref();
        writer.is_some_and(|writer| !writer.unsynced && is_open(writer.number))
    }

    /// Hands over what is buffered, to be written durably beside others. `None`: nothing is buffered, or a flush is needed
    /// ([`Journal::take`]), for which those under way must have been given back.
    pub fn take_durable(&mut self) -> Option<DurableWrite> {
        if !self.takes_durable_writes() || self.buffered_bytes() == 0 {
            return None;
        }
        self.end_batch();
        let writer = self.writer.as_mut()?;
        let count = writer.fitting(&self.buffer, 0);
        if count == 0 {
            return None;
        }
        let (end, stamps) = writer.seal_run(&mut self.buffer, 0, count);
        let bytes = Aligned::copy(&self.buffer.bytes[..end]);
        let file = self.direct.file.as_ref().map(|(_, file)| file.clone())?;
        let write = DurableWrite {
            store: self.store.clone(),
            file,
            segment: writer.number,
            offset: writer.offset,
            bytes,
            upto: writer.next_lsn - 1,
            stamps,
            writes: writer.writes,
            is_durable: false,
        };
        writer.offset += end as u64;
        self.buffer.drop_first(count);
        self.direct.under_way += 1;
        Some(write)
    }

    /// Takes a durable write back after it ran, well or not; those that were taken before it have been given back.
    ///
    /// # Panics
    /// If none is under way.
    pub fn wrote_durably(&mut self, write: &DurableWrite) {
        assert!(self.direct.under_way > 0, "a durable write is under way");
        self.direct.under_way -= 1;
        // After a failure nothing is known to be durable that was not before, whatever a later write says.
        if !write.is_durable || self.store.is_fenced() {
            return;
        }
        assert!(write.upto > self.durable, "durable writes are given back in their order");
        self.written = write.upto;
        let end = write.offset + write.bytes.get().len() as u64;
        self.store.index().wrote(write.upto + 1, end, write.stamps);
        self.reached = self.reached.max((write.upto, write.writes));
        self.note_durable();
    }

    /// The segment's file once more, for durable writes.
    pub(crate) fn open_direct(&mut self) {
        let Some(writer) = self.writer.as_deref().filter(|_| self.direct.depth > 0) else {
            self.direct.file = None;
            return;
        };
        if self.direct.file.as_ref().is_some_and(|&(of, _)| of == writer.number) {
            return;
        }
        match writer.file.direct() {
            Ok(file) => self.direct.file = Some((writer.number, Arc::from(file))),
            Err(error) => {
                tracing::debug!(%error, "no durable writes to this segment");
                self.direct.file = None;
            }
        }
    }
}

/// What durable writes need of a journal.
#[derive(Debug, Default)]
pub(crate) struct Direct {
    depth: usize,
    /// The handle, and of which segment.
    file: Option<(u64, Arc<dyn DiskFile>)>,
    /// Writes that have not been given back.
    pub(crate) under_way: usize,
}

const _: () = assert!(PAGE.is_multiple_of(SECTOR));
