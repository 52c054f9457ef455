//! The set of segment files: which there are, preparing the next one, recycling the oldest.
//!
//! Invariants, on which recovery relies:
//! - `segment-N` files have consecutive numbers; a name becomes durable before the next one is made, and the oldest one's
//!   removal before the next one's;
//! - a segment's header is durable before its first batch is written, and everything in the segments before it is.
//!
//! So only the newest segment that was begun can have a torn tail.

use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind};
use crate::options::Options;
use crate::summary::Trailer;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shared by the journal's owner, its one flush and the background thread.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) uuid: [u8; 16],
    pub(crate) segment_bytes: u64,
    no_fsync: bool,
    spares_max: usize,
    /// See [`Options::keeps_spare`].
    pub(crate) keeps_spare: bool,
    /// The disk had no room for another file when one was last made.
    is_short: AtomicBool,
    /// There was a spare file to keep once.
    pub(crate) had_spare: AtomicBool,
    /// The spare file that is kept is to be made, which was not begun yet.
    pub(crate) restocks: AtomicBool,
    /// Bytes of the flush that is out which it has not written.
    pub(crate) flying: AtomicU64,
    fenced: AtomicBool,
    index: Mutex<Index>,
    /// Held while files are made or renamed, so that those changes stay in order.
    upkeep: Mutex<()>,
    /// Held while batches are made durable, for each way: of two syncs at a time through one handle only one may be told of a
    /// failure that concerns both.
    syncing: [Mutex<()>; 2],
}

/// Through which of a segment's handles its batches are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The one that they were written through.
    Writer,
    /// One that nothing is written through.
    Beside,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Oldest first; the last one is being written.
    pub(crate) segments: VecDeque<Segment>,
    /// The segment after the last one, if it is ready.
    prepared: Option<u64>,
    pub(crate) spares: Vec<String>,
    /// Files being recycled are still on disk.
    recycling: usize,
}

/// A segment that holds, or may hold, records.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) file_bytes: u64,
    pub(crate) first_lsn: u64,
    /// After its newest record.
    pub(crate) next_lsn: u64,
    pub(crate) stamps: Stamps,
    /// After its last batch.
    pub(crate) end: u64,
    /// What a start has read instead of the segment.
    pub(crate) summary: Option<Trailer>,
}

/// When the records of a batch or a segment were written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stamps {
    /// The oldest one's time; `None` without records, or where only a summary was read.
    pub(crate) min_ns: Option<u64>,
    /// The newest one's.
    pub(crate) max_ns: u64,
}

impl Stamps {
    /// A record.
    pub(crate) fn note(&mut self, stamp_ns: u64) {
        self.join(Self { min_ns: Some(stamp_ns), max_ns: stamp_ns });
    }

    /// Others' records.
    pub(crate) fn join(&mut self, others: Self) {
        self.min_ns = self.min_ns.into_iter().chain(others.min_ns).min();
        self.max_ns = self.max_ns.max(others.max_ns);
    }
}

impl Store {
    pub(crate) fn new(disk: Arc<dyn Disk>, uuid: [u8; 16], options: &Options) -> Self {
        Self {
            disk,
            uuid,
            segment_bytes: options.segment_bytes,
            no_fsync: options.unsafe_no_fsync,
            spares_max: options.spares_max,
            keeps_spare: options.keeps_spare,
            is_short: AtomicBool::new(false),
            restocks: AtomicBool::new(false),
            had_spare: AtomicBool::new(false),
            flying: AtomicU64::new(0),
            fenced: AtomicBool::new(false),
            index: Mutex::default(),
            upkeep: Mutex::default(),
            syncing: Default::default(),
        }
    }

    pub(crate) fn index(&self) -> MutexGuard<'_, Index> {
        // The index is changed in single steps, so a panic elsewhere leaves it whole.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Nothing is written from now on.
    pub(crate) fn fence(&self, what: &str, source: io::Error) -> Error {
        self.fenced.store(true, Ordering::Release);
        Error::fencing(what, source)
    }

    /// Nothing is ever made durable: [`Options::unsafe_no_fsync`].
    pub(crate) fn is_unsafe(&self) -> bool {
        self.no_fsync
    }

    pub(crate) fn check_fence(&self) -> Result<(), Error> {
        if self.is_fenced() { Err(Error::fenced()) } else { Ok(()) }
    }

    pub(crate) fn sync(&self, file: &dyn DiskFile) -> io::Result<()> {
        if self.no_fsync { Ok(()) } else { file.sync_data() }
    }

    /// Makes a segment's batches durable; if that fails, nothing is written or made durable from then on.
    pub(crate) fn sync_or_fence(
        &self,
        file: &dyn DiskFile,
        segment: u64,
        way: Way,
    ) -> Result<(), Error> {
        let _one = self.syncing[way as usize].lock().unwrap_or_else(PoisonError::into_inner);
        self.check_fence()?;
        self.sync(file).map_err(|e| self.fence(&format!("sync segment {segment}"), e))?;
        // Another one may have failed meanwhile, on whose batches these build.
        self.check_fence()
    }

    pub(crate) fn sync_dir(&self) -> io::Result<()> {
        if self.no_fsync { Ok(()) } else { self.disk.sync_dir() }
    }

    /// Makes `segment-number` ready to be begun, if it is not.
    pub(crate) fn prepare(&self, number: u64) -> Result<(), Error> {
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let index = self.index();
            // A roll that overtook the background thread has prepared, perhaps even begun it: never do it twice.
            let begun = index.segments.back().is_some_and(|s| s.number >= number);
            if begun || index.prepared == Some(number) {
                return Ok(());
            }
        }
        self.check_fence()?;
        let spare = self.spare_beyond(usize::from(self.keeps_spare));
        let from = match spare {
            Some(name) => name,
            None => match self.fill(NEW_NAME, self.segment_bytes, &[]) {
                Ok(()) => NEW_NAME.to_owned(),
                Err(error) if error.kind() == ErrorKind::Full => {
                    self.spare_beyond(0).ok_or(error)?
                }
                Err(error) => return Err(error),
            },
        };
        self.name(&from, number)?;
        self.index().prepared = Some(number);
        Ok(())
    }

    /// Takes a spare file, if there are more than so many.
    fn spare_beyond(&self, kept: usize) -> Option<String> {
        let mut index = self.index();
        if index.spares.len() > kept { index.spares.pop() } else { None }
    }

    /// Makes the spare file that is kept, if there is none.
    pub(crate) fn restock(&self) -> Result<(), Error> {
        self.restocks.store(false, Ordering::Relaxed);
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.keeps_spare || !self.index().spares.is_empty() {
            return Ok(());
        }
        self.check_fence()?;
        self.fill(NEW_NAME, self.segment_bytes, &[])?;
        // No segment has this number.
        let name = spare_name(0);
        let renamed = self.disk.rename(NEW_NAME, &name).and_then(|()| self.sync_dir());
        renamed.map_err(|e| self.fence("add a spare segment", e))?;
        self.index().spares.push(name);
        Ok(())
    }

    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Gives a finished file its place among the segments.
    pub(crate) fn name(&self, from: &str, number: u64) -> Result<(), Error> {
        let renamed = self.disk.rename(from, &segment_name(number)).and_then(|()| self.sync_dir());
        renamed.map_err(|e| self.fence(&format!("add segment {number}"), e))
    }

    /// A file of real zeros behind `head`: overwriting it later changes no metadata, so its syncs are cheap.
    pub(crate) fn fill(&self, name: &str, bytes: u64, head: &[u8]) -> Result<(), Error> {
        let filled = self.try_fill(name, bytes, head);
        self.is_short.store(filled.is_err(), Ordering::Relaxed);
        filled.map_err(|e| {
            // A partly filled file would only keep space away from others; it is replaced in any case.
            let _ = self.disk.remove(name);
            let full =
                matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if full {
                let what = "prepare a segment: free some space, nothing is lost so far";
                return Error::io(what, e);
            }
            self.fence("prepare a segment", e)
        })
    }

    fn try_fill(&self, name: &str, bytes: u64, head: &[u8]) -> io::Result<()> {
        let file = self.disk.open(name, true)?;
        file.set_len(0)?;
        if !file.has_room(bytes)? {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        file.write_at(0, head)?;
        let zeros = vec![0; FILL_BYTES.min(bytes as usize)];
        let mut at = head.len() as u64;
        while at < bytes {
            let n = (bytes - at).min(zeros.len() as u64);
            file.write_at(at, &zeros[..n as usize])?;
            at += n;
        }
        self.sync(&*file)
    }

    /// Hands out the prepared segment; the caller begins it.
    pub(crate) fn take_prepared(&self, number: u64) -> Result<Arc<dyn DiskFile>, Error> {
        self.prepare(number)?;
        let file = self.disk.open(&segment_name(number), false);
        file.map(Arc::from).map_err(|e| self.fence(&format!("open segment {number}"), e))
    }

    /// Keeps the file of a segment that is no longer in the index for another use, or removes it.
    pub(crate) fn recycle(&self, segment: &Segment) -> Result<(), Error> {
        let _upkeep = self.upkeep.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_fence()?;
        let name = segment_name(segment.number);
        let keep = {
            let index = self.index();
            segment.file_bytes == self.segment_bytes && index.spares.len() < self.spares_max
        };
        let spare = spare_name(segment.number);
        let done = if keep { self.disk.rename(&name, &spare) } else { self.disk.remove(&name) };
        let done = done.and_then(|()| self.sync_dir());
        let mut index = self.index();
        index.recycling -= 1;
        if keep && done.is_ok() {
            index.spares.push(spare);
            self.is_short.store(false, Ordering::Relaxed);
        }
        drop(index);
        done.map_err(|e| self.fence(&format!("recycle segment {}", segment.number), e))
    }

    pub(crate) fn adopt_files(&self, prepared: Option<u64>, spares: Vec<String>) {
        let mut index = self.index();
        index.prepared = prepared;
        index.spares = spares;
    }
}

impl Index {
    /// Files that are there to be begun.
    pub(crate) fn ready(&self) -> usize {
        self.spares.len() + usize::from(self.prepared.is_some())
    }

    /// Bytes of all files, ready and spare ones included.
    pub(crate) fn bytes(&self, segment_bytes: u64) -> u64 {
        let others = self.spares.len() + self.recycling + usize::from(self.prepared.is_some());
        self.segments.iter().map(|s| s.file_bytes).sum::<u64>() + others as u64 * segment_bytes
    }

    /// Adds the segment that is written from now on.
    pub(crate) fn begin(&mut self, segment: Segment) {
        self.prepared = None;
        self.segments.push_back(segment);
    }

    /// The segment that is being written holds more records.
    pub(crate) fn wrote(&mut self, next_lsn: u64, end: u64, stamps: Stamps) {
        let segment = self.segments.back_mut().expect("the segment being written is in the index");
        segment.next_lsn = next_lsn;
        segment.end = end;
        segment.stamps.join(stamps);
    }

    /// Takes the oldest segment out, unless it is being written or `keep` says so.
    pub(crate) fn pop_unless(
        &mut self,
        keep: impl FnOnce(&Self, &Segment) -> bool,
    ) -> Option<Segment> {
        let oldest = self.segments.front()?;
        if self.segments.len() < 2 || keep(self, oldest) {
            return None;
        }
        self.recycling += 1;
        self.segments.pop_front()
    }
}

/// What a file's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Segment(u64),
    Spare(u64),
    New,
    Other,
}

pub(crate) fn classify(name: &str) -> FileKind {
    let number = |prefix: &str| -> Option<u64> {
        let digits = name.strip_prefix(prefix)?;
        let canonical = digits.len() == 10 && digits.bytes().all(|b| b.is_ascii_digit());
        if canonical { digits.parse().ok() } else { None }
    };
    if let Some(n) = number("segment-") {
        FileKind::Segment(n)
    } else if let Some(n) = number("spare-") {
        FileKind::Spare(n)
    } else if name == NEW_NAME {
        FileKind::New
    } else {
        FileKind::Other
    }
}

pub(crate) fn segment_name(number: u64) -> String {
    format!("segment-{number:010}")
}

fn spare_name(number: u64) -> String {
    format!("spare-{number:010}")
}

/// All names of segments, spares and leftovers, in order.
pub(crate) fn survey(disk: &dyn Disk) -> Result<Vec<(FileKind, String)>, Error> {
    let names = disk.list().map_err(|e| Error::io("list the journal's directory", e))?;
    let mut files: Vec<_> = names.into_iter().map(|n| (classify(&n), n)).collect();
    files.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(files)
}

/// Reads a whole file, at most the largest segment there can be.
pub(crate) fn read_file(disk: &dyn Disk, name: &str, out: &mut Vec<u8>) -> Result<(), Error> {
    let mut read = || {
        let file = disk.open(name, false)?;
        let len = file.len()?.min(Options::SEGMENT_BYTES_MAX);
        out.resize(len as usize, 0);
        let n = file.read_at(0, out)?;
        out.truncate(n);
        io::Result::Ok(())
    };
    read().map_err(|e| Error::io(format_args!("read {name}"), e))
}

pub(crate) const NEW_NAME: &str = "new";
const FILL_BYTES: usize = 1 << 20;
