//! The real medium: a directory that only its owner may read, held by one process at a time.

use crate::disk::{Disk, DiskFile};
use crate::error::{Error, ErrorKind};
use rustix::fs::FlockOperation;
use rustix::io::ReadWriteFlags;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A directory on a local file system. Mode 0700, its files 0600: the journal holds users' data in the clear. Wider
/// modes of files that this user owns are narrowed, with a warning; what belongs to someone else is refused.
#[derive(Debug)]
pub struct DirDisk {
    path: PathBuf,
    dir: File,
    /// Holds the lock for as long as it is open; `None` for readers.
    lock: Option<File>,
}

impl DirDisk {
    /// Opens the directory for one writer, creating it (not its parents) if it is absent.
    ///
    /// # Errors
    /// [`ErrorKind::Retry`] if another process holds it, [`ErrorKind::Invalid`] if it cannot be made private.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        match DirBuilder::new().mode(DIR_MODE).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io(format_args!("create {}", path.display()), e));
            }
            // Whoever made it may have been stopped before its name was durable. Without the right to look there, only
            // someone who has it can have seen to that.
            Err(_) => match sync_parent(&path) {
                Err(error) if error.kind() != ErrorKind::Invalid => {
                    tracing::warn!(%error, "a crash could lose the journal's directory if it is new");
                }
                _ => {}
            },
            Ok(()) => sync_parent(&path)?,
        }
        let dir = open_dir(&path)?;
        narrow(&dir, &path, DIR_MODE)?;
        let mut disk = Self { path, dir, lock: None };
        let lock = disk
            .open_file(LOCK_NAME, true)
            .map_err(|e| Error::io(format_args!("open the lock in {}", disk.path.display()), e))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(e) if e == rustix::io::Errno::WOULDBLOCK => {
                return Err(Error::new(
                    ErrorKind::Retry,
                    format!(
                        "another process uses the journal in {}: stop it, or use another data folder",
                        disk.path.display()
                    ),
                ));
            }
            Err(e) => {
                let what = format!("lock {}", disk.path.join(LOCK_NAME).display());
                return Err(Error::io(what, e.into()));
            }
        }
        disk.narrow_files()?;
        disk.lock = Some(lock);
        Ok(disk)
    }

    /// Opens the directory for looking only, beside a running writer or not. Every change is refused.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is absent or may not be read.
    pub fn open_read_only(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let dir = open_dir(&path)?;
        Ok(Self { path, dir, lock: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file whose lock stands for the whole directory: while it is in its place, so is the journal.
    pub fn lock_path(&self) -> PathBuf {
        self.path.join(LOCK_NAME)
    }

    fn narrow_files(&self) -> Result<(), Error> {
        let names = self.list().map_err(|e| Error::io("list the journal's directory", e))?;
        for name in names {
            let path = self.path.join(&name);
            let file = self
                .open_file(&name, false)
                .map_err(|e| Error::io(format_args!("open {}", path.display()), e))?;
            narrow(&file, &path, FILE_MODE)?;
            if name != LOCK_NAME {
                await_writes(&file, &path)?;
            }
        }
        Ok(())
    }

    fn open_file(&self, name: &str, create: bool) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(self.lock.is_some() || create)
            .create(create)
            .mode(FILE_MODE)
            // A link planted under a segment's name must not lead the journal's bytes elsewhere.
            // And a FIFO must not hold up the start.
            .custom_flags(
                (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32
            )
            .open(self.path.join(name))?;
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        let what = format!("{name} is no plain file: remove it, if it is not yours");
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    fn writable(&self) -> io::Result<()> {
        if self.lock.is_some() {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the journal is open for reading only"))
    }
}

impl Disk for DirDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // A name that is not Unicode is not one of the journal's.
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
        if create {
            self.writable()?;
        }
        Ok(Box::new(LocalFile(self.open_file(name, create)?)))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        self.path.join(name).try_exists()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.writable()?;
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.writable()?;
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.writable()?;
        self.dir.sync_all()
    }
}

/// A file of the host as a medium: positioned reads and writes through the page cache.
#[derive(Debug)]
pub struct LocalFile(pub File);

impl DiskFile for LocalFile {
    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        let same = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        Ok(Box::new(Self(OpenOptions::new().read(true).write(true).open(same)?)))
    }

    fn direct(&self) -> io::Result<Box<dyn DiskFile>> {
        let same = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(same)?;
        // See `await_writes`.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Box::new(Self(file)))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    fn has_room(&self, bytes: u64) -> io::Result<bool> {
        let found = rustix::fs::fstatvfs(&self.0)?;
        // The superuser may take what is kept for it.
        let is_superuser = rustix::process::geteuid().is_root();
        let free = if is_superuser { found.f_bfree } else { found.f_bavail };
        // A file system without a size tells nothing.
        Ok(found.f_blocks == 0 || free.saturating_mul(found.f_frsize) >= bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn write_durably(&self, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let parts = [io::IoSlice::new(bytes)];
            match rustix::io::pwritev2(&self.0, &parts, offset, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => (offset, bytes) = (offset + n as u64, &bytes[n..]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
}

fn open_dir(path: &Path) -> Result<File, Error> {
    let dir = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECTORY.bits() as i32)
        .open(path);
    dir.map_err(|e| Error::io(format_args!("open the directory {}", path.display()), e))
}

/// Without this a crash soon after the first start could lose the whole directory.
fn sync_parent(path: &Path) -> Result<(), Error> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let synced = open_dir(parent)?.sync_all();
    synced.map_err(|e| Error::io(format_args!("sync the directory {}", parent.display()), e))
}

/// Waits until nothing is written directly to this file any more. What a process has handed to the kernel goes on when the
/// process has been killed, and the directory's lock is free by then: it would land on what is written from now on. Each
/// such write keeps its handle open, and with it that handle's lock.
fn await_writes(file: &File, path: &Path) -> Result<(), Error> {
    let began = Instant::now();
    let mut is_told = false;
    while let Err(e) = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        if e != rustix::io::Errno::WOULDBLOCK && e != rustix::io::Errno::INTR {
            return Err(Error::io(format_args!("lock {}", path.display()), e.into()));
        }
        if began.elapsed() > TELL_AFTER && !std::mem::replace(&mut is_told, true) {
            tracing::warn!(path = %path.display(), "waiting for writes of a process that was killed");
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Takes the rights of group and others away.
fn narrow(file: &File, path: &Path, mode: u32) -> Result<(), Error> {
    let what = || format!("read the permissions of {}", path.display());
    let meta = file.metadata().map_err(|e| Error::io(what(), e))?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(Error::invalid(format!(
            "{} belongs to another user (uid {}): the journal must belong to the user who runs destage",
            path.display(),
            meta.uid()
        )));
    }
    if meta.mode() & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(
        path = %path.display(),
        mode = format_args!("{:o}", meta.mode() & 0o7777),
        "the journal was open to other users; narrowed to its owner"
    );
    let narrowed = file.set_permissions(Permissions::from_mode(mode));
    narrowed.map_err(|e| Error::io(format_args!("make {} private", path.display()), e))
}

/// The file whose lock stands for the whole directory.
pub(crate) const LOCK_NAME: &str = "lock";

const TELL_AFTER: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
