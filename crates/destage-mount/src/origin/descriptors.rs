//! Files of the origin that are open, by their handles: those that were used lately, and those that are kept.

use super::{Key, Result, handles};
use hashbrown::HashMap;
use rustix::fs::{self as sys, FileType, OFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files: see the module.
pub(super) struct Descriptors {
    /// What handles are opened by.
    folder: Arc<OwnedFd>,
    open: Mutex<Open>,
}

/// Open files by their handles.
#[derive(Default)]
struct Open {
    /// Only to be named.
    named: HashMap<Arc<[u8]>, Arc<OwnedFd>>,
    /// For their bytes.
    bytes: HashMap<Arc<[u8]>, Arc<OwnedFd>>,
    /// Kept whatever comes, and how often that was asked for.
    pinned: HashMap<Arc<[u8]>, (Arc<OwnedFd>, u32)>,
}

impl Descriptors {
    pub(super) fn new(folder: Arc<OwnedFd>) -> Self {
        Self { folder, open: Mutex::default() }
    }

    fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    fn all(&self) -> MutexGuard<'_, Open> {
        // A panic elsewhere leaves a cache that is none the worse.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A descriptor by which a file can be named, but not read.
    pub(super) fn named(&self, key: &Key) -> Result<Arc<OwnedFd>> {
        {
            let cache = self.all();
            if let Some((fd, _)) = cache.pinned.get(&key.handle) {
                return Ok(fd.clone());
            }
            if let Some(fd) = cache.named.get(&key.handle) {
                return Ok(fd.clone());
            }
        }
        let fd = Arc::new(handles::open(self.folder(), &key.handle, libc::O_PATH)?);
        let mut cache = self.all();
        if cache.named.len() >= NAMED_MAX {
            cache.named.clear();
        }
        cache.named.insert(key.handle.clone(), fd.clone());
        Ok(fd)
    }

    /// A descriptor by which a file can be read, and written if anything may be.
    pub(super) fn bytes(&self, key: &Key) -> Result<Arc<OwnedFd>> {
        {
            let cache = self.all();
            if let Some((fd, _)) = cache.pinned.get(&key.handle) {
                return Ok(fd.clone());
            }
            if let Some(fd) = cache.bytes.get(&key.handle) {
                return Ok(fd.clone());
            }
        }
        let fd = Arc::new(self.open_bytes(key)?);
        let mut cache = self.all();
        if cache.bytes.len() >= BYTES_MAX {
            cache.bytes.clear();
        }
        cache.bytes.insert(key.handle.clone(), fd.clone());
        Ok(fd)
    }

    pub(super) fn open_bytes(&self, key: &Key) -> Result<OwnedFd> {
        match self.open_as(key, libc::O_RDWR) {
            Err(error) if is_read_only(&error) => Ok(self.open_as(key, libc::O_RDONLY)?),
            other => Ok(other?),
        }
    }

    fn open_as(&self, key: &Key, mode: i32) -> io::Result<OwnedFd> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOATIME;
        handles::open(self.folder(), &key.handle, flags | mode)
    }

    /// The same by which it can be written. It may have been opened while it could only be read: it was being executed, say.
    pub(super) fn writable(&self, key: &Key) -> Result<Arc<OwnedFd>> {
        let fd = self.bytes(key)?;
        if sys::fcntl_getfl(&fd)?.contains(OFlags::RDWR) {
            return Ok(fd);
        }
        let fd = Arc::new(self.open_as(key, libc::O_RDWR)?);
        let mut cache = self.all();
        match cache.pinned.get_mut(&key.handle) {
            Some((pinned, _)) => *pinned = fd.clone(),
            None => _ = cache.bytes.insert(key.handle.clone(), fd.clone()),
        }
        Ok(fd)
    }

    pub(super) fn forget(&self, handle: &Arc<[u8]>) {
        let mut cache = self.all();
        cache.named.remove(handle);
        cache.bytes.remove(handle);
    }

    pub(super) fn is_pinned(&self, key: &Key) -> bool {
        self.all().pinned.contains_key(&key.handle)
    }

    /// Keeps a file open until that is taken back as often.
    pub(super) fn pin(&self, file: &Key) -> Result<()> {
        let fd = self.named(file)?;
        let fd = if FileType::from_raw_mode(sys::fstat(&fd)?.st_mode) == FileType::RegularFile {
            Arc::new(self.open_bytes(file)?)
        } else {
            fd
        };
        let mut cache = self.all();
        cache.pinned.entry(file.handle.clone()).or_insert((fd, 0)).1 += 1;
        Ok(())
    }

    pub(super) fn unpin(&self, file: &Key) {
        let mut cache = self.all();
        if let Some((_, times)) = cache.pinned.get_mut(&file.handle) {
            *times -= 1;
            if *times == 0 {
                cache.pinned.remove(&file.handle);
            }
        }
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES | libc::EPERM | libc::ETXTBSY))
}

/// Most descriptors that are kept of each kind.
const NAMED_MAX: usize = 4_096;
const BYTES_MAX: usize = 1_024;
