//! Which parts of a file's space have been written.
//!
//! Space that was only allocated reads as zeros because the file system notes that it was never written. The first write
//! to it changes that note, and the next sync then commits the file system's own journal, which takes several times as
//! long as flushing the device. So the first short write somewhere fills the whole neighbourhood with zeros, and those
//! that follow find written space.

use super::extents;
use rustix::fs::{SeekFrom, seek};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// What is known to have been written, in chunks.
#[derive(Debug)]
pub(super) struct Prepared {
    /// One bit for each chunk.
    chunks: Box<[AtomicU64]>,
    /// Held for writing while zeros are filled in; for reading by writes that came before their chunk was known.
    filling: RwLock<()>,
}

impl Prepared {
    /// Nothing is known of a file of this length.
    pub(super) fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(CHUNK * u64::from(u64::BITS));
        Self { chunks: (0..words).map(|_| AtomicU64::new(0)).collect(), filling: RwLock::default() }
    }

    /// To be called before a write: makes sure that it meets written space, or is long enough to make up for it. No zeros
    /// come over it as long as the guard lives. `fill` writes zeros.
    ///
    /// # Errors
    /// As `fill` reports them.
    pub(super) fn before_write(
        &self,
        file: &File,
        bytes: Range<u64>,
        mut fill: impl FnMut(Range<u64>) -> io::Result<()>,
    ) -> io::Result<Option<RwLockReadGuard<'_, ()>>> {
        let mut unknown =
            self.chunks_of(&bytes).filter(|&chunk| !self.is_written(chunk)).peekable();
        if unknown.peek().is_none() {
            return Ok(None);
        }
        if bytes.end - bytes.start >= LONG {
            return Ok(Some(self.filling.read().unwrap_or_else(PoisonError::into_inner)));
        }
        let _filling = self.filling.write().unwrap_or_else(PoisonError::into_inner);
        for chunk in unknown {
            for hole in holes(file, chunk * CHUNK..(chunk + 1) * CHUNK) {
                fill(hole)?;
            }
            let (word, bit) = place(chunk);
            self.chunks[word].fetch_or(bit, Ordering::Release);
        }
        Ok(None)
    }

    /// Whether writes there need no preparation.
    pub(super) fn is_known(&self, bytes: &Range<u64>) -> bool {
        self.chunks_of(bytes).all(|chunk| self.is_written(chunk))
    }

    fn chunks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        // What lies behind the known end is left alone.
        let end = self.chunks.len() as u64 * u64::from(u64::BITS);
        (bytes.start / CHUNK).min(end)..bytes.end.div_ceil(CHUNK).min(end)
    }

    fn is_written(&self, chunk: u64) -> bool {
        let (word, bit) = place(chunk);
        self.chunks[word].load(Ordering::Acquire) & bit != 0
    }
}

fn place(chunk: u64) -> (usize, u64) {
    ((chunk / u64::from(u64::BITS)) as usize, 1 << (chunk % u64::from(u64::BITS)))
}

/// The parts of a range that were never written. None where the file system does not tell, or behind the file's end.
fn holes(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let Ok(end) = file.metadata().map(|meta| meta.len().min(range.end)) else { return Vec::new() };
    let range = range.start..end.max(range.start);
    match extents::written(file, &range) {
        Ok(written) => between(&written, range),
        Err(_) => sought(file, range),
    }
}

/// What of a range lies between some parts of it, which are in ascending order.
fn between(parts: &[Range<u64>], range: Range<u64>) -> Vec<Range<u64>> {
    let ends = std::iter::once(range.start).chain(parts.iter().map(|part| part.end));
    let starts = parts.iter().map(|part| part.start).chain(std::iter::once(range.end));
    ends.zip(starts).map(|(from, to)| from..to).filter(|hole| hole.start < hole.end).collect()
}

/// The holes as the file system's search finds them, which may look at all of a large file.
fn sought(file: &File, range: Range<u64>) -> Vec<Range<u64>> {
    let mut holes = Vec::new();
    let end = range.end;
    let mut at = range.start;
    while at < end {
        let Ok(hole) = seek(file, SeekFrom::Hole(at)) else { return holes };
        if hole >= end {
            break;
        }
        // An error says that no data follow.
        let data = seek(file, SeekFrom::Data(hole)).map_or(end, |data| data.min(end));
        holes.push(hole..data);
        at = data;
    }
    holes
}

/// Bytes that are known and filled together.
const CHUNK: u64 = 1 << 20;
/// Writes of at least this many bytes need no preparation.
const LONG: u64 = 256 << 10;
