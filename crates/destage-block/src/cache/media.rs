//! The real medium: a file or a block device, held by one process at a time.

mod direct;
mod extents;
mod prepared;

use super::CacheError;
use destage_journal::{DiskFile, LocalFile};
use direct::Direct;
use prepared::Prepared;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::ReadWriteFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file or block device for positioned reads and writes. Its size stays as it is.
///
/// Writes go past the page cache where the file system lets them, so that a sync waits for nobody else's pages. Reads go
/// through it: it holds what is read often. The kernel drops a page when its part of the file is written directly.
#[derive(Debug)]
pub struct FileMedia {
    /// Reads, and the writes that cannot go directly.
    file: LocalFile,
    direct: Option<Direct>,
    /// `None` for devices, whose space needs no preparation.
    prepared: Option<Prepared>,
    bytes: u64,
}

impl FileMedia {
    /// Makes a file of this size, for its owner only, all of its space allocated: a full file system shows now and not at
    /// a write. A file that exists grows to this size; a block device must have it.
    ///
    /// # Errors
    /// [`CacheError::InUse`] if another process has it, [`CacheError::TooSmall`] for a device,
    /// [`CacheError::Io`] for everything else, lack of space included: then a new file is removed again.
    pub fn create(path: &Path, bytes: u64) -> Result<Self, CacheError> {
        let new = !path.exists();
        let (file, found) = open_file(path, Access::Create)?;
        let what = || format!("allocate {bytes} bytes for {}", path.display());
        if found >= bytes {
            if !is_device(&file)? {
                // Whoever made it may have been stopped before it was durable.
                let durable = file.sync_all().and_then(|()| sync_parent(path));
                durable.map_err(CacheError::io(what()))?;
            }
            return Ok(Self::of(file, path, found, Access::Create));
        }
        if is_device(&file)? {
            return Err(CacheError::TooSmall { expected: bytes, found });
        }
        let file = LocalFile(file);
        if let Err(error) = allocate(&file, bytes) {
            if new {
                // An empty file would only puzzle; the error is what counts.
                let _ = std::fs::remove_file(path);
            }
            return Err(CacheError::io(what())(error));
        }
        let durable = file.0.sync_all().and_then(|()| sync_parent(path));
        durable.map_err(CacheError::io(what()))?;
        Ok(Self::of(file.0, path, bytes, Access::Create))
    }

    /// Opens a file or device that exists.
    ///
    /// # Errors
    /// [`CacheError::InUse`] if another process has it, [`CacheError::Io`] for everything else.
    pub fn open(path: &Path) -> Result<Self, CacheError> {
        Self::open_with(path, Access::Write)
    }

    /// Opens a file or device for looking only, beside the process that uses it or not. Every change is refused.
    ///
    /// # Errors
    /// [`CacheError::Io`] if it is absent or may not be read.
    pub fn open_read_only(path: &Path) -> Result<Self, CacheError> {
        Self::open_with(path, Access::Read)
    }

    fn open_with(path: &Path, access: Access) -> Result<Self, CacheError> {
        let (file, bytes) = open_file(path, access)?;
        Ok(Self::of(file, path, bytes, access))
    }

    fn of(file: File, path: &Path, bytes: u64, access: Access) -> Self {
        let direct = (access != Access::Read).then(|| Direct::open(&file, path));
        let direct = direct.and_then(|opened| {
            let explain = |error: &io::Error| {
                tracing::warn!(
                    path = %path.display(),
                    %error,
                    "the cache's file system takes no direct writes (O_DIRECT): syncs will take longer"
                );
            };
            opened.inspect_err(explain).ok()
        });
        let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
        let prepared = is_file.then(|| Prepared::new(bytes));
        Self { file: LocalFile(file), direct, prepared, bytes }
    }

    /// Writes to space that is prepared.
    fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match &self.direct {
            Some(direct) if direct.takes(offset, bytes.len()) => {
                match direct.write(offset, bytes) {
                    // Another alignment than was found, or memory that this device cannot reach.
                    Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                        self.file.write_at(offset, bytes)
                    }
                    written => written,
                }
            }
            _ => self.file.write_at(offset, bytes),
        }
    }
}

impl DiskFile for FileMedia {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        let len = buf.len();
        let slices = &mut [IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file.0, slices, offset, ReadWriteFlags::NOWAIT) {
            Ok(n) => Ok(n == len),
            // Not in the page cache, or a file system that does not tell.
            Err(_) => Ok(false),
        }
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let zeros =
            |hole: Range<u64>| self.put(hole.start, &vec![0; (hole.end - hole.start) as usize]);
        let prepared = self.prepared.as_ref();
        let _guard = prepared.map(|p| p.before_write(&self.file.0, range, zeros)).transpose()?;
        self.put(offset, bytes)
    }

    fn write_each(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
        let Some(direct) = &self.direct else {
            return writes.iter().try_for_each(|&(offset, bytes)| self.write_at(offset, bytes));
        };
        let is_plain = |&(offset, bytes): &(u64, &[u8])| {
            let range = offset..offset.saturating_add(bytes.len() as u64);
            direct.takes(offset, bytes.len())
                && self.prepared.as_ref().is_none_or(|prepared| prepared.is_known(&range))
        };
        let (together, alone): (Vec<_>, Vec<_>) = writes.iter().partition(|write| is_plain(write));
        alone.iter().try_for_each(|&(offset, bytes)| self.write_at(offset, bytes))?;
        match direct.write_each(&together) {
            // As for a single one.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                together.iter().try_for_each(|&(offset, bytes)| self.write_at(offset, bytes))
            }
            written => written,
        }
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn set_len(&self, _bytes: u64) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a cache device keeps its size"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Create,
}

/// The file, and how long it is.
fn open_file(path: &Path, access: Access) -> Result<(File, u64), CacheError> {
    let device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
    // Exclusive for devices: the kernel then refuses one that is mounted or part of another.
    let flags = if device && access != Access::Read { OFlags::EXCL } else { OFlags::empty() };
    let opened = OpenOptions::new()
        .read(true)
        .write(access != Access::Read)
        .create(access == Access::Create && !device)
        .mode(FILE_MODE)
        .custom_flags(flags.bits() as i32)
        .open(path);
    let mut file = match opened {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => {
            return Err(CacheError::InUse(path.display().to_string()));
        }
        opened => opened.map_err(CacheError::io(format!("open the cache {}", path.display())))?,
    };
    if access != Access::Read {
        lock(&file, path)?;
    }
    warn_if_readable(&file, path)?;
    // Works for devices, too, whose metadata does not tell their size.
    let bytes = file.seek(SeekFrom::End(0));
    let bytes = bytes.map_err(CacheError::io(format!("measure {}", path.display())))?;
    Ok((file, bytes))
}

fn lock(file: &File, path: &Path) -> Result<(), CacheError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(e) if e == rustix::io::Errno::WOULDBLOCK => {
            Err(CacheError::InUse(path.display().to_string()))
        }
        Err(e) => Err(CacheError::io(format!("lock the cache {}", path.display()))(e.into())),
    }
}

/// The volume's contents lie there in the clear.
fn warn_if_readable(file: &File, path: &Path) -> Result<(), CacheError> {
    let meta = file.metadata();
    let meta = meta.map_err(CacheError::io(format!("look at {}", path.display())))?;
    if meta.is_file() && meta.mode() & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            mode = format_args!("{:o}", meta.mode() & 0o7777),
            "other users may read or write the cache, which holds the volume's contents: use chmod 600"
        );
    }
    Ok(())
}

fn is_device(file: &File) -> Result<bool, CacheError> {
    let meta = file.metadata().map_err(CacheError::io("look at the cache device"))?;
    Ok(meta.file_type().is_block_device())
}

fn allocate(file: &LocalFile, bytes: u64) -> io::Result<()> {
    match rustix::fs::fallocate(&file.0, FallocateFlags::empty(), 0, bytes) {
        Err(e) if e == rustix::io::Errno::OPNOTSUPP => fill(file, bytes),
        allocated => Ok(allocated?),
    }
}

/// For file systems that cannot allocate without writing.
fn fill(file: &LocalFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES.min(bytes) as usize];
    let mut at = file.0.metadata()?.len();
    while at < bytes {
        let n = (bytes - at).min(FILL_BYTES);
        file.write_at(at, &zeros[..n as usize])?;
        at += n;
    }
    Ok(())
}

/// Without this a crash soon after could lose the file's name.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

const FILE_MODE: u32 = 0o600;
const FILL_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_is_refused_and_a_reader_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let first = FileMedia::create(&path, 100_000).unwrap();
        assert_eq!(first.len().unwrap(), 100_000);
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert!(path.metadata().unwrap().blocks() * 512 >= 100_000, "its space is allocated");
        assert!(matches!(FileMedia::open(&path).unwrap_err(), CacheError::InUse(_)));
        first.write_at(5, b"bytes").unwrap();
        let reader = FileMedia::open_read_only(&path).unwrap();
        let mut found = [0; 5];
        assert_eq!(reader.read_at(5, &mut found).unwrap(), 5);
        assert_eq!(&found, b"bytes");
        reader.write_at(0, b"x").unwrap_err();
        drop(first);
        assert_eq!(FileMedia::open(&path).unwrap().len().unwrap(), 100_000);
    }

    /// Whether or not this file system takes direct writes.
    #[test]
    fn direct_and_buffered_writes_of_any_place_and_length_read_as_written() {
        let folder = tempfile::tempdir().unwrap();
        const BYTES: usize = 3 << 20;
        let media = FileMedia::create(&folder.path().join("cache"), BYTES as u64).unwrap();
        let mut expected = vec![0; BYTES];
        let places = [
            (0, 4096),
            (4096, 512),
            (1 << 20, 1),
            ((1 << 20) - 4096, 8192),
            (513, 5000),
            (700 << 10, 400 << 10),
            ((2 << 20) + 512, 1536),
            (BYTES - 100, 100),
            (4096, 4096),
        ];
        for (value, (at, len)) in (1..).zip(places) {
            let bytes = vec![value; len];
            media.write_at(at as u64, &bytes).unwrap();
            expected[at..at + len].copy_from_slice(&bytes);
            let mut found = vec![0xff; BYTES];
            assert_eq!(media.read_at(0, &mut found).unwrap(), BYTES);
            assert!(found == expected, "after the write of {len} bytes at {at}");
        }
        media.sync_data().unwrap();
        assert!(media.write_at(0, &[]).is_ok());
    }

    #[test]
    fn concurrent_writes_beside_the_first_ones_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        const BLOCKS: u64 = 512;
        let path = folder.path().join("cache");
        let media = FileMedia::create(&path, BLOCKS * 4096).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let media = &media;
                scope.spawn(move || {
                    for block in (thread..BLOCKS).step_by(4) {
                        media.write_at(block * 4096, &[(block % 251) as u8; 4096]).unwrap();
                    }
                });
            }
        });
        let found = std::fs::read(&path).unwrap();
        for (block, bytes) in found.chunks(4096).enumerate() {
            assert!(bytes.iter().all(|&byte| byte == (block % 251) as u8), "block {block}");
        }
    }

    #[test]
    fn what_was_read_or_written_a_moment_ago_is_read_without_waiting_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let media = FileMedia::create(&folder.path().join("cache"), 1 << 20).unwrap();
        media.write_at(8192, &[7; 4096]).unwrap();
        let mut block = vec![0; 4096];
        assert_eq!(media.read_at(8192, &mut block).unwrap(), 4096);
        block.fill(0);
        // Nobody promises that the page is still there; but what is given is right.
        if media.read_now(8192, &mut block).unwrap() {
            assert!(block == [7; 4096]);
        }
        assert!(!media.read_now(1 << 20, &mut block).unwrap(), "nothing lies behind the end");
    }

    #[test]
    fn a_file_that_exists_grows_but_never_shrinks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        std::fs::write(&path, b"old").unwrap();
        assert_eq!(FileMedia::create(&path, 10_000).unwrap().len().unwrap(), 10_000);
        assert_eq!(FileMedia::create(&path, 5_000).unwrap().len().unwrap(), 10_000);
        assert!(std::fs::read(&path).unwrap().starts_with(b"old"));
    }

    #[test]
    fn lack_of_space_shows_at_creation_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        FileMedia::create(&path, 1 << 60).unwrap_err();
        assert!(!path.exists());
    }

    #[test]
    fn zeros_are_written_where_space_cannot_be_allocated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let media = FileMedia::create(&path, 10).unwrap();
        fill(&media.file, (1 << 20) + 7).unwrap();
        assert_eq!(path.metadata().unwrap().len(), (1 << 20) + 7);
    }
}
