//! A file or block device of this host.
//!
//! What the kernel does when writing back fails decides this module: it reports the error once to each open file, forgets
//! that the pages are dirty, and a later `fdatasync` succeeds although their bytes never reached the medium. So a failed
//! flush is told to everyone who was waiting for one and counted in [`Origin::losses`]; only writing again helps.

use super::losses::Losses;
use super::{Identity, Origin, OriginIoError, OriginIoErrorKind, Run, SnapshotNote};
use rustix::fs::{FallocateFlags, SeekFrom as Seeking, fallocate, seek};
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// An open file or block device, locked against other processes that lock as well.
#[derive(Debug)]
pub struct FileOrigin {
    path: PathBuf,
    size: AtomicU64,
    store: String,
    /// If it was put here by [`Origin::replace`].
    note: Option<SnapshotNote>,
    is_device: bool,
    parallelism: usize,
    file: RwLock<Arc<File>>,
    /// The handle is of no use any more: the device went away. The next call opens it again.
    stale: AtomicBool,
    losses: Losses,
    no_punch: AtomicBool,
    no_zero_range: AtomicBool,
    #[cfg(test)]
    fault: Mutex<Option<(Call, io::Error)>>,
}

/// Calls in which tests inject faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Read,
    Write,
    Punch,
    ZeroRange,
    Sync,
}

impl FileOrigin {
    /// Opens an existing file or block device for reading and writing.
    ///
    /// # Errors
    /// `Denied` if it is absent, a directory, not readable and writable, mounted or locked by another process.
    pub fn open(path: &Path) -> Result<Self, OriginIoError> {
        Self::of(open(path)?, path)
    }

    /// A file that is open and locked already, at this path.
    pub(super) fn of(file: File, path: &Path) -> Result<Self, OriginIoError> {
        let shown = path.display();
        let meta = metadata(&file, path)?;
        let size = size_of(&file, &meta)
            .map_err(|e| OriginIoError::io(&format!("find the size of {shown}"), &e))?;
        if size == 0 {
            let message =
                format!("{shown} is empty: give it its size first, by `truncate -s SIZE`");
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        Ok(Self {
            path: path.to_owned(),
            size: AtomicU64::new(size),
            store: store_of(&meta),
            note: SnapshotNote::of(&file, &meta),
            is_device: meta.file_type().is_block_device(),
            parallelism: PARALLELISM,
            file: RwLock::new(Arc::new(file)),
            stale: AtomicBool::new(false),
            losses: Losses::default(),
            no_punch: AtomicBool::new(false),
            no_zero_range: AtomicBool::new(false),
            #[cfg(test)]
            fault: Mutex::new(None),
        })
    }

    /// Makes a file of `size` bytes, all of them allocated, durably; nobody but its owner may read it. It has its name once
    /// it is whole: half a file, as a crash leaves it, would be taken for a damaged one. Until then it is beside that, with
    /// [`UNFINISHED`] behind its name, where the next attempt finds it.
    ///
    /// # Errors
    /// `Denied` if there is one already, if another process makes it, or without space.
    pub fn create(path: &Path, size: u64) -> Result<Self, OriginIoError> {
        let failed = |e: io::Error| OriginIoError::io(&format!("create {}", path.display()), &e);
        let fresh = {
            let mut name = path.as_os_str().to_owned();
            name.push(UNFINISHED);
            PathBuf::from(name)
        };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = file.open(&fresh).map_err(failed)?;
        lock(&file, &fresh)?;
        // Whoever held the lock may have been making it.
        let made = if path.exists() {
            Err(io::ErrorKind::AlreadyExists.into())
        } else {
            let whole = file.set_len(0).and_then(|()| allocate(&file, size));
            whole.and_then(|()| file.sync_all()).and_then(|()| std::fs::rename(&fresh, path))
        };
        if let Err(error) = made {
            let _ = std::fs::remove_file(&fresh);
            return Err(failed(error));
        }
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        let named = File::open(parent.unwrap_or_else(|| Path::new("."))).and_then(|f| f.sync_all());
        named.map_err(failed)?;
        drop(file);
        Self::open(path)
    }

    /// Sends up to `parallelism` requests at a time; at least 1.
    #[must_use]
    pub fn with_parallelism(self, parallelism: usize) -> Self {
        Self { parallelism: parallelism.max(1), ..self }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was before it was first replaced: that stays the same.
    pub(super) fn lineage(&self) -> &str {
        self.note.as_ref().map_or(&self.store, |note| &note.store)
    }

    fn check(&self, offset: u64, len: u64) -> Result<(), OriginIoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(OriginIoError::beyond(&self.shown(), offset, len, self.size())),
        }
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// Carries a call out on the open file, after opening it again if the last call found it gone.
    fn with_file<T>(
        &self,
        call: Call,
        what: impl Fn() -> String,
        run: impl FnOnce(&File) -> io::Result<T>,
    ) -> Result<T, OriginIoError> {
        if self.stale.load(Ordering::Acquire) {
            self.reopen()?;
        }
        let file = self.file.read().unwrap_or_else(PoisonError::into_inner).clone();
        let result = self.injected(call).and_then(|()| run(&file));
        result.map_err(|error| {
            let error = OriginIoError::io(&format!("{} {}", what(), self.path.display()), &error);
            if error.kind == OriginIoErrorKind::Unavailable {
                self.stale.store(true, Ordering::Release);
            }
            error
        })
    }

    /// What was written by the old handle and not flushed counts as lost: its errors are never reported to the new one.
    fn reopen(&self) -> Result<(), OriginIoError> {
        let mut slot = self.file.write().unwrap_or_else(PoisonError::into_inner);
        if !self.stale.load(Ordering::Acquire) {
            return Ok(());
        }
        self.losses.add();
        // Or our own lock would keep us out.
        let _ = slot.unlock();
        let unavailable =
            |e: OriginIoError| OriginIoError { kind: OriginIoErrorKind::Unavailable, ..e };
        let file = open(&self.path).map_err(unavailable)?;
        let meta = metadata(&file, &self.path).map_err(unavailable)?;
        let size = size_of(&file, &meta).unwrap_or(0);
        if store_of(&meta) != self.store || size < self.size() {
            let message = format!(
                "{} is no longer what was opened (was {} of {} bytes, is {} of {size} bytes): \
                 restart once the right one is back",
                self.path.display(),
                self.store,
                self.size(),
                store_of(&meta)
            );
            return Err(OriginIoError::new(OriginIoErrorKind::Denied, message));
        }
        *slot = Arc::new(file);
        self.stale.store(false, Ordering::Release);
        Ok(())
    }

    /// A write behind the end of a file that someone cut would silently make it grow again, with zeros between.
    fn check_not_shrunk(&self, file: &File) -> Result<(), OriginIoError> {
        if self.is_device {
            return Ok(());
        }
        let size = metadata(file, &self.path)?.len();
        match self.size() {
            known if size < known => Err(OriginIoError::shrunk(&self.shown(), known, size)),
            _ => Ok(()),
        }
    }

    /// The same file, of which only so many bytes are used.
    pub(super) fn of_size(self, size: u64) -> Self {
        Self { size: AtomicU64::new(size), ..self }
    }

    pub(super) fn handle(&self) -> Arc<File> {
        self.file.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tries one way of `fallocate`; false if the file system has none.
    fn deallocate(&self, call: Call, offset: u64, len: u64) -> Result<bool, OriginIoError> {
        let (flags, absent) = match call {
            Call::Punch => (FallocateFlags::PUNCH_HOLE, &self.no_punch),
            _ => (FallocateFlags::ZERO_RANGE, &self.no_zero_range),
        };
        if absent.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let what = || format!("zero {len} bytes at {offset} of");
        self.with_file(call, what, |file| {
            match fallocate(file, flags | FallocateFlags::KEEP_SIZE, offset, len) {
                Ok(()) => Ok(true),
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    absent.store(true, Ordering::Relaxed);
                    Ok(false)
                }
                // A device that has it, for larger units than this range.
                Err(rustix::io::Errno::INVAL) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests inject faults here")]
    fn injected(&self, _call: Call) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn injected(&self, call: Call) -> io::Result<()> {
        match self.fault.lock().unwrap().take_if(|(at, _)| *at == call) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

impl Origin for FileOrigin {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        let what = || "find the size of".to_owned();
        let size = self.with_file(Call::Read, what, |file| size_of(file, &file.metadata()?))?;
        let known = self.size();
        if size < known {
            return Err(OriginIoError::shrunk(&self.shown(), known, size));
        }
        if size > known {
            // The size of a file is as volatile as its bytes.
            self.flush()?;
            self.size.store(size, Ordering::Release);
        }
        Ok(size)
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.check(offset, buf.len() as u64)?;
        let len = buf.len();
        let what = || format!("read {len} bytes at {offset} of");
        let read = self.with_file(Call::Read, what, |file| read_all(file, offset, buf))?;
        if read < len {
            self.check_not_shrunk(&self.handle())?;
            let message = format!("{} ends at {}", self.shown(), offset + read as u64);
            return Err(OriginIoError::new(OriginIoErrorKind::Failed, message));
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        self.check(offset, bytes.len() as u64)?;
        self.check_not_shrunk(&self.handle())?;
        let what = || format!("write {} bytes at {offset} of", bytes.len());
        self.with_file(Call::Write, what, |file| file.write_all_at(bytes, offset))
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        self.check(offset, len)?;
        if len == 0 {
            return Ok(());
        }
        self.check_not_shrunk(&self.handle())?;
        if punch && self.deallocate(Call::Punch, offset, len)? {
            return Ok(());
        }
        if self.deallocate(Call::ZeroRange, offset, len)? {
            return Ok(());
        }
        write_zeros(self, offset, len)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        self.losses.flush(&self.shown(), || {
            self.with_file(Call::Sync, || "flush".to_owned(), File::sync_data)
        })?;
        self.check_not_shrunk(&self.handle())
    }

    fn losses(&self) -> u64 {
        self.losses.count()
    }

    fn parallelism(&self) -> usize {
        self.parallelism
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        self.check(offset, len)?;
        if self.is_device {
            Ok(vec![Run { len, is_hole: false }])
        } else {
            Ok(runs(&self.handle(), offset, len))
        }
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        let meta = metadata(&self.handle(), &self.path)?;
        Ok(Identity {
            name: self.shown(),
            size: self.size(),
            store: self.lineage().to_owned(),
            modified_ns: modified_ns(&meta).filter(|_| !self.is_device),
        })
    }

    fn snapshot_note(&self) -> Option<SnapshotNote> {
        self.note.clone()
    }
}

/// Makes a range read as zeros where nothing better than writing them is to be had.
pub(super) fn write_zeros(origin: &dyn Origin, offset: u64, len: u64) -> Result<(), OriginIoError> {
    let zeros = vec![0; ZEROS_BYTES.min(usize::try_from(len).unwrap_or(ZEROS_BYTES))];
    let mut at = offset;
    while at < offset + len {
        let run = (offset + len - at).min(zeros.len() as u64);
        origin.write(at, &zeros[..run as usize])?;
        at += run;
    }
    Ok(())
}

fn open(path: &Path) -> Result<File, OriginIoError> {
    let denied = |why: String| OriginIoError::new(OriginIoErrorKind::Denied, why);
    let shown = path.display();
    let failed = |e: &io::Error| OriginIoError::io(&format!("open {shown}"), e);
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => denied(format!(
            "{shown} does not exist: an origin is never created, since it holds your data"
        )),
        _ => failed(&e),
    })?;
    let kind = meta.file_type();
    if kind.is_dir() {
        return Err(denied(format!("{shown} is a directory: give a file or a block device in it")));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(denied(format!("{shown} is neither a file nor a block device")));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if kind.is_block_device() {
        // The kernel refuses this while the device is mounted or part of another one.
        options.custom_flags(libc::O_EXCL);
    }
    let file = options.open(path).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => denied(format!(
            "{shown} is in use: unmount it first, or take it out of what it is part of"
        )),
        Some(libc::EACCES | libc::EPERM) => {
            denied(format!("{shown} may not be read and written by this user"))
        }
        _ => failed(&e),
    })?;
    lock(&file, path)?;
    if !kind.is_block_device() {
        check_in_place(&file, path)?;
    }
    Ok(file)
}

/// Between opening and locking another server may have put a copy in its place.
pub(super) fn check_in_place(file: &File, path: &Path) -> Result<(), OriginIoError> {
    let ours = metadata(file, path)?;
    let there = std::fs::metadata(path)
        .map_err(|e| OriginIoError::io(&format!("look at {}", path.display()), &e))?;
    if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
        return Ok(());
    }
    let message = format!(
        "something else put another file in the place of {}: stop that first, and look which one is the right one",
        path.display()
    );
    Err(OriginIoError::new(OriginIoErrorKind::Denied, message))
}

pub(super) fn lock(file: &File, path: &Path) -> Result<(), OriginIoError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            let message = format!("{} is locked by another process: stop it first", path.display());
            Err(OriginIoError::new(OriginIoErrorKind::Denied, message))
        }
        Err(TryLockError::Error(error)) => {
            tracing::warn!(path = %path.display(), %error, "the origin cannot be locked against other processes");
            Ok(())
        }
    }
}

/// Behind the name of a file that is being made: nobody else calls one so.
const UNFINISHED: &str = ".destage-unfinished";

/// Space for all of it now, or an atomic group would find none when it matters.
fn allocate(file: &File, size: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(size),
        other => other.map_err(io::Error::from),
    }
}

fn metadata(file: &File, path: &Path) -> Result<Metadata, OriginIoError> {
    file.metadata().map_err(|e| OriginIoError::io(&format!("look at {}", path.display()), &e))
}

fn size_of(mut file: &File, meta: &Metadata) -> io::Result<u64> {
    // The end of a device is where seeking stops; its inode says 0.
    if meta.file_type().is_block_device() { file.seek(SeekFrom::End(0)) } else { Ok(meta.len()) }
}

fn store_of(meta: &Metadata) -> String {
    if meta.file_type().is_block_device() {
        format!("block device {}", meta.rdev())
    } else {
        format!("inode {} on device {}", meta.ino(), meta.dev())
    }
}

fn modified_ns(meta: &Metadata) -> Option<u64> {
    let seconds = u64::try_from(meta.mtime()).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(meta.mtime_nsec()).ok()?)
}

fn read_all(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// The parts of a file. Its own position is of no use to anybody else: all others say where.
fn runs(file: &File, offset: u64, len: u64) -> Vec<Run> {
    let (mut at, end) = (offset, offset + len);
    let mut runs = Vec::new();
    while at < end && runs.len() < RUNS_MAX {
        let data = match seek(file, Seeking::Data(at)) {
            Ok(data) => data.clamp(at, end),
            // Nothing but a hole follows.
            Err(rustix::io::Errno::NXIO) => end,
            // A file system that does not tell.
            Err(_) => at,
        };
        if data > at {
            runs.push(Run { len: data - at, is_hole: true });
        }
        if data < end {
            let hole = seek(file, Seeking::Hole(data)).unwrap_or(end).clamp(data, end);
            // Someone may have made it one meanwhile.
            let hole = if hole == data { end } else { hole };
            runs.push(Run { len: hole - data, is_hole: false });
            at = hole;
        } else {
            at = end;
        }
    }
    runs
}

/// More parts are told when they are asked for.
const RUNS_MAX: usize = 4_096;
/// Requests at a time unless told otherwise: enough to keep a network disk busy.
const PARALLELISM: usize = 16;
const ZEROS_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;
