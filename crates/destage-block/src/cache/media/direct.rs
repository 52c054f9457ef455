//! Writes past the page cache.
//!
//! A sync of a file waits for all of its pages that are dirty in the page cache, whoever wrote them: through it, the log's
//! syncs would wait for the slots'. What is written directly is at the device when the write returns, and a sync only has
//! to flush the device's own cache.

use destage_runtime::ring::{Ring, Rings};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A second descriptor of a file, for direct writes.
#[derive(Debug)]
pub(super) struct Direct {
    file: File,
    /// Offsets and lengths must be multiples of this.
    align: u64,
    /// Memory that the device takes bytes from, for the next writes. As many as there ever were writes at a time.
    buffers: Mutex<Vec<Vec<u8>>>,
    rings: Rings,
}

impl Direct {
    /// Opens the file at `path`, which must be `file`, once more.
    ///
    /// # Errors
    /// Where the file system refuses, or something else is at the path by now. Buffered writes do as well, if slower.
    pub(super) fn open(file: &File, path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECT.bits() as i32;
        let direct = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        let (ours, found) = (file.metadata()?, direct.metadata()?);
        if (ours.dev(), ours.ino(), ours.rdev()) != (found.dev(), found.ino(), found.rdev()) {
            return Err(io::Error::other("another file has taken its name"));
        }
        let align = Self::alignment(&direct)?;
        Ok(Self { file: direct, align, buffers: Mutex::default(), rings: Rings::default() })
    }

    /// The least alignment that the file system takes, found by trying.
    fn alignment(file: &File) -> io::Result<u64> {
        let mut memory = vec![0; 2 * MEMORY_ALIGN];
        let mut refusal = None;
        for align in [SECTOR, PAGE] {
            let room = aligned(&mut memory, align as usize);
            match file.read_at(room, align) {
                Ok(_) => return Ok(align),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or_else(|| io::ErrorKind::Unsupported.into()))
    }

    /// Whether a write can go past the page cache.
    pub(super) fn takes(&self, offset: u64, len: usize) -> bool {
        offset.is_multiple_of(self.align) && (len as u64).is_multiple_of(self.align)
    }

    /// Writes all of `bytes`, which [`Direct::takes`].
    ///
    /// # Errors
    /// As the device reports them; any part may then have been written.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut memory = self.spares().pop().unwrap_or_default();
        let written = self.write_from(&mut memory, offset, bytes);
        self.spares().push(memory);
        written
    }

    /// Writes some bytes each at its offset, in any order, all of which it [`Direct::takes`].
    ///
    /// # Errors
    /// As the device reports them; any part of any of them may then have been written.
    pub(super) fn write_each(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
        let ring = if writes.len() > 1 { self.rings.take() } else { None };
        let Some(mut ring) = ring else {
            return writes.iter().try_for_each(|&(offset, bytes)| self.write(offset, bytes));
        };
        let mut memory = self.spares().pop().unwrap_or_default();
        let mut rest = writes;
        let mut written = Ok(());
        while !rest.is_empty() && written.is_ok() {
            let (some, others) = rest.split_at(fitting(rest));
            written = self.write_some(&mut ring, &mut memory, some);
            rest = others;
        }
        self.spares().push(memory);
        self.rings.give_back(ring);
        written
    }

    fn write_some(
        &self,
        ring: &mut Ring,
        memory: &mut Vec<u8>,
        writes: &[(u64, &[u8])],
    ) -> io::Result<()> {
        // One that is too long for the memory comes alone.
        if let &[(offset, bytes)] = writes {
            return self.write_from(memory, offset, bytes);
        }
        let room = |bytes: &[u8]| bytes.len().next_multiple_of(MEMORY_ALIGN);
        let mut rest = reserve(memory, writes.iter().map(|(_, bytes)| room(bytes)).sum());
        let mut placed = Vec::with_capacity(writes.len());
        for &(offset, bytes) in writes {
            let (place, behind) = rest.split_at_mut(room(bytes));
            place[..bytes.len()].copy_from_slice(bytes);
            placed.push((offset, &place[..bytes.len()]));
            rest = behind;
        }
        ring.write(&self.file, &placed)
    }

    fn write_from(&self, memory: &mut Vec<u8>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut at = offset;
        for run in bytes.chunks(WRITE_BYTES_MAX) {
            let room = reserve(memory, run.len());
            room.copy_from_slice(run);
            self.file.write_all_at(room, at)?;
            at += run.len() as u64;
        }
        Ok(())
    }

    fn spares(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of the writes, at least one, are done together.
fn fitting(writes: &[(u64, &[u8])]) -> usize {
    let mut bytes_total = 0;
    let mut fits = |(_, bytes): &&(u64, &[u8])| {
        bytes_total += bytes.len().next_multiple_of(MEMORY_ALIGN);
        bytes_total <= WRITE_BYTES_MAX
    };
    writes.iter().take_while(|write| fits(write)).count().max(1)
}

/// `len` bytes of the memory, which grows if need be, aligned.
fn reserve(memory: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if memory.len() < len + MEMORY_ALIGN {
        *memory = vec![0; len + MEMORY_ALIGN];
    }
    aligned(memory, len)
}

/// `len` bytes of the memory that begin where a device can take them from.
fn aligned(memory: &mut [u8], len: usize) -> &mut [u8] {
    let start = memory.as_ptr().align_offset(MEMORY_ALIGN);
    &mut memory[start..start + len]
}

const SECTOR: u64 = 512;
const PAGE: u64 = 4096;
/// What every device takes.
const MEMORY_ALIGN: usize = 4096;
/// Longest write, which bounds the memory.
const WRITE_BYTES_MAX: usize = 1 << 20;
