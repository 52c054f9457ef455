//! The index of clean blocks on the device, written in the background to the older of two areas.
//!
//! A checkpoint is *fuzzy*: taken at some Lsn, its chunks are copied one after the other while the index goes on changing.
//! It may list what is no longer true, and that does no harm, because of three rules:
//! - every entry has the block's checksum, compared at each read of the slot: a slot that was given to another block is a
//!   miss;
//! - a start drops each entry whose block has a record after the checkpoint's Lsn;
//! - so the log keeps all records after that Lsn for as long as the checkpoint is the newest one. A start takes none that
//!   the log does not reach back to.

use super::CacheError;
use super::bytes::{u32_at, u64_at};
use super::geometry::{CHUNK_HEADER, Geometry, PAGE};
use super::index::{ENTRY_BYTES, Index, NONE, chunk_handles};
use super::medium::Medium;
use super::sealed;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Both areas.
#[derive(Debug)]
pub(super) struct Checkpoints {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    medium: Medium,
    geometry: Geometry,
    seed: u32,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The one in force.
    newest: Option<Header>,
    /// The highest generation in any area, in force or not.
    highest: u64,
    /// Whether a writer exists.
    writing: bool,
}

/// What an area says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Counts the checkpoints; even ones go to the first area.
    pub(super) generation: u64,
    pub(super) lsn: u64,
    /// It is the last one of a volume that was then closed, by this incarnation of the log (its lower half); 0 if not. Until
    /// the log's next incarnation it tells exactly what the slots hold.
    pub(super) closed_by: u32,
}

/// A checkpoint being written. Dropping it unfinished leaves the one before in force.
#[derive(Debug)]
#[must_use = "a checkpoint counts once it is committed"]
pub struct CheckpointWriter {
    shared: Arc<Shared>,
    header: Header,
    next_chunk: u32,
}

impl Checkpoints {
    pub(super) fn open(medium: Medium, geometry: Geometry, seed: u32) -> Result<Self, CacheError> {
        let shared = Shared { medium, geometry, seed, state: Mutex::default() };
        let newest = shared.headers()?.into_iter().flatten().max_by_key(|h| h.generation);
        let highest = newest.map_or(0, |header| header.generation);
        *shared.state() = State { newest, highest, writing: false };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Headers of both areas, as far as they hold.
    pub(super) fn headers(&self) -> Result<[Option<Header>; 2], CacheError> {
        self.shared.headers()
    }

    /// Writes the newest header once more, not synced. Its chunks were durable before it was there.
    pub(super) fn write_again(&self) -> Result<(), CacheError> {
        let newest = self.shared.state().newest;
        let written = newest.map_or(Ok(()), |header| self.shared.write_header(header));
        written.map_err(CacheError::io("write the index checkpoint's header again"))
    }

    /// The incarnation of the log that closed the volume with the checkpoint in force.
    pub(super) fn closed_by(&self) -> Option<u32> {
        let closed_by = self.shared.state().newest.map(|header| header.closed_by);
        closed_by.filter(|&incarnation| incarnation != 0)
    }

    pub(super) fn lsn(&self) -> Option<u64> {
        self.shared.state().newest.map(|header| header.lsn)
    }

    /// # Panics
    /// If a writer exists.
    pub(super) fn begin(&self, lsn: u64) -> CheckpointWriter {
        let mut state = self.shared.state();
        assert!(!state.writing, "one checkpoint at a time: commit or drop the last one first");
        state.writing = true;
        let next = state.highest + 1;
        // Never over the one in force, even if that is not the newest one because the newest one is not whole.
        let taken = state.newest.is_some_and(|header| header.generation % 2 == next % 2);
        let generation = if taken { next + 1 } else { next };
        drop(state);
        let header = Header { generation, lsn, closed_by: 0 };
        CheckpointWriter { shared: self.shared.clone(), header, next_chunk: 0 }
    }

    /// The newest whole checkpoint that the log still reaches back to.
    pub(super) fn load(&self, log_first_lsn: u64) -> Result<Option<(u64, Index)>, CacheError> {
        let mut headers = self.shared.headers()?;
        headers.sort_by_key(|header| std::cmp::Reverse(header.map(|h| h.generation)));
        for header in headers.into_iter().flatten() {
            if header.lsn.saturating_add(1) < log_first_lsn {
                tracing::warn!(
                    lsn = header.lsn,
                    log_first_lsn,
                    "the index checkpoint is older than the log; not used"
                );
                continue;
            }
            let index =
                self.shared.load(header).map_err(CacheError::io("read the index checkpoint"))?;
            match index {
                Some(index) => {
                    self.shared.state().newest = Some(header);
                    return Ok(Some((header.lsn, index)));
                }
                None => {
                    tracing::warn!(lsn = header.lsn, "an index checkpoint is not whole; not used")
                }
            }
        }
        self.shared.state().newest = None;
        Ok(None)
    }
}

impl CheckpointWriter {
    /// The chunk that [`CheckpointWriter::write`] takes next; `None` when all are written.
    pub fn next_chunk(&self) -> Option<u32> {
        (self.next_chunk < self.shared.geometry.chunks()).then_some(self.next_chunk)
    }

    /// Nothing changes from the moment on when it was begun: the volume is being closed, in this incarnation of its log.
    pub fn closes(&mut self, incarnation: u64) {
        self.header.closed_by = incarnation as u32;
    }

    /// Writes a chunk as [`Index::chunk`] gives it. On any thread.
    ///
    /// # Errors
    /// As the medium reports them. The writer is then dropped.
    ///
    /// # Panics
    /// If all chunks are written, or this is not the next one.
    pub fn write(&mut self, entries: &[u8]) -> Result<(), CacheError> {
        let chunk = self.next_chunk().expect("there are no more chunks");
        let handles = self.shared.geometry.chunk_handles(chunk);
        assert_eq!(entries.len(), handles as usize * ENTRY_BYTES, "a whole chunk");
        // A chunk without clean blocks is only said to be so.
        let empty = entries.chunks_exact(ENTRY_BYTES).all(|entry| u32_at(entry, 0) == NONE);
        let entries = if empty { &[] } else { entries };
        let mut bytes = vec![0; CHUNK_HEADER as usize + entries.len()];
        bytes[8..16].copy_from_slice(&self.header.generation.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.header.lsn.to_le_bytes());
        bytes[24..28].copy_from_slice(&chunk.to_le_bytes());
        bytes[28..32].copy_from_slice(&((entries.len() / ENTRY_BYTES) as u32).to_le_bytes());
        bytes[CHUNK_HEADER as usize..].copy_from_slice(entries);
        sealed::seal(&mut bytes, CHUNK_MAGIC, self.shared.seed);
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        let at = self.shared.chunk_offset(self.header, chunk);
        let written = self.shared.medium.write(at, &bytes);
        written.map_err(CacheError::io("write the index checkpoint"))?;
        self.next_chunk += 1;
        Ok(())
    }

    /// Makes it the newest one, durably: from now on the log may let go of records up to its Lsn. Returns that Lsn.
    ///
    /// # Errors
    /// As the medium reports them. Then the one before stays in force, unless the next start finds this one whole.
    ///
    /// # Panics
    /// If chunks are missing.
    pub fn commit(self) -> Result<u64, CacheError> {
        assert!(self.next_chunk().is_none(), "all chunks are written before the commit");
        let (shared, medium) = (&self.shared, &self.shared.medium);
        // The chunks are durable before anything says that they are there. A header without them would be told by its chunks'
        // checksums, but only by whoever reads them all.
        let synced = medium.sync();
        let committed =
            synced.and_then(|()| shared.write_header(self.header)).and_then(|()| medium.sync());
        committed.map_err(CacheError::io("commit the index checkpoint"))?;
        let mut state = shared.state();
        state.newest = Some(self.header);
        state.highest = self.header.generation;
        drop(state);
        Ok(self.header.lsn)
    }
}

impl Drop for CheckpointWriter {
    fn drop(&mut self) {
        self.shared.state().writing = false;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn area(&self, header: Header) -> std::ops::Range<u64> {
        self.geometry.checkpoint((header.generation % 2) as usize)
    }

    fn chunk_offset(&self, header: Header, chunk: u32) -> u64 {
        self.area(header).start + PAGE + u64::from(chunk) * self.geometry.chunk_bytes()
    }

    fn write_header(&self, header: Header) -> io::Result<()> {
        let mut page = vec![0; PAGE as usize];
        page[8..16].copy_from_slice(&header.generation.to_le_bytes());
        page[16..24].copy_from_slice(&header.lsn.to_le_bytes());
        page[24..28].copy_from_slice(&self.geometry.slots.to_le_bytes());
        page[28..32].copy_from_slice(&header.closed_by.to_le_bytes());
        sealed::seal(&mut page[..HEADER], HEADER_MAGIC, self.seed);
        self.medium.write(self.area(header).start, &page)
    }

    fn headers(&self) -> Result<[Option<Header>; 2], CacheError> {
        let mut headers = [None; 2];
        for (area, header) in headers.iter_mut().enumerate() {
            let mut bytes = [0; HEADER];
            let read = self.medium.read(self.geometry.checkpoint(area).start, &mut bytes);
            read.map_err(CacheError::io("read the index checkpoint"))?;
            let found = sealed::open(&bytes, HEADER_MAGIC, self.seed)
                .filter(|b| u32_at(b, 24) == self.geometry.slots)
                .map(|b| Header {
                    generation: u64_at(b, 8),
                    lsn: u64_at(b, 16),
                    closed_by: u32_at(b, 28),
                });
            *header = found.filter(|h| h.generation % 2 == area as u64);
        }
        Ok(headers)
    }

    /// `None` if a chunk is not of this checkpoint.
    fn load(&self, header: Header) -> io::Result<Option<Index>> {
        let mut index = Index::new(self.geometry.slots);
        let chunk_bytes = self.geometry.chunk_bytes() as usize;
        let together = (READ_BYTES / chunk_bytes).max(1);
        let mut bytes = vec![0; chunk_bytes * together];
        for first in (0..self.geometry.chunks()).step_by(together) {
            let chunks = first..self.geometry.chunks().min(first + together as u32);
            let bytes = &mut bytes[..chunks.len() * chunk_bytes];
            self.medium.read(self.chunk_offset(header, first), bytes)?;
            for (chunk, bytes) in chunks.zip(bytes.chunks_exact(chunk_bytes)) {
                let Some(entries) = self.entries(header, chunk, bytes) else {
                    return Ok(None);
                };
                index.restore(chunk * chunk_handles(self.geometry.slots), entries);
            }
        }
        Ok(Some(index))
    }

    /// A chunk's entries, if they hold.
    fn entries<'a>(&self, header: Header, chunk: u32, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let entries = u32_at(bytes, 28);
        if entries != 0 && entries != self.geometry.chunk_handles(chunk) {
            return None;
        }
        let end = CHUNK_HEADER as usize + entries as usize * ENTRY_BYTES;
        let sound = sealed::open(bytes.get(..end)?, CHUNK_MAGIC, self.seed)?;
        let is_of_it = u64_at(sound, 8) == header.generation && u64_at(sound, 16) == header.lsn;
        (is_of_it && u32_at(sound, 24) == chunk).then(|| &sound[CHUNK_HEADER as usize..])
    }
}

/// Bytes read together, or one chunk if that is longer.
const READ_BYTES: usize = 4 << 20;
const HEADER_MAGIC: &[u8; 4] = b"DSTK";
const CHUNK_MAGIC: &[u8; 4] = b"DSTC";
const HEADER: usize = 32;
