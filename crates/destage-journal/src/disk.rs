//! The medium as the journal sees it: one flat directory. [`crate::DirDisk`] is the real one; tests put a simulated one
//! in its place, with a volatile cache and injected faults.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

/// One flat directory of files.
///
/// What the journal relies on, and nothing more: bytes are durable after [`DiskFile::sync_data`] of their file succeeded;
/// a creation, rename or removal is durable after [`Disk::sync_dir`] succeeded; a rename is atomic; a sector of 512
/// bytes is written whole or not at all. Before that, any subset of the sectors and names may survive a crash.
///
/// After a sync of a file that failed, not even a later one that succeeds makes durable what was written before it (the
/// system may have dropped it, or takes it for written, and shows it to readers all the same): only what is written once
/// more. Names are other than that: a later sync of the directory makes all of them durable, since a file system whose
/// own journal fails stops.
pub trait Disk: Send + Sync + Debug {
    /// The names of all files, in any order.
    ///
    /// # Errors
    /// As the medium reports them; so for every method here.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file for reading and writing; creates it empty if it is absent and `create` is set.
    ///
    /// # Errors
    /// `NotFound` if it is absent and `create` is not set.
    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>>;

    /// Whether a file has this name.
    ///
    /// # Errors
    /// As the medium reports them.
    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.list()?.iter().any(|n| n == name))
    }

    /// Gives a file another name, replacing the file that has it.
    ///
    /// # Errors
    /// `NotFound` if `from` is absent.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// `NotFound` if it is absent.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes every creation, rename and removal so far durable.
    ///
    /// # Errors
    /// As the medium reports them.
    fn sync_dir(&self) -> io::Result<()>;
}

/// One open file.
pub trait DiskFile: Send + Sync + Debug {
    /// Its length in bytes.
    ///
    /// # Errors
    /// As the medium reports them; so for every method here.
    fn len(&self) -> io::Result<u64>;

    /// Opens the very same file once more, whatever has its name by now: the system tells of a failed write once for each time
    /// that a file was opened.
    ///
    /// # Errors
    /// `Unsupported` where that cannot be had.
    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A handle of the very same file for [`DiskFile::write_durably`], of which several may then run at once.
    ///
    /// # Errors
    /// `Unsupported` where that cannot be had.
    fn direct(&self) -> io::Result<Box<dyn DiskFile>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The descriptor by which others may do the same; `None` if there is none.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether it holds no bytes.
    ///
    /// # Errors
    /// As for `len`.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset` on; fewer bytes only where the file ends. Returns how many.
    ///
    /// # Errors
    /// As the medium reports them.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// As [`DiskFile::read_at`], if all of `buf` can be had without waiting for the medium. False if not, or if nobody knows:
    /// `buf` then holds anything.
    ///
    /// # Errors
    /// As the medium reports them.
    fn read_now(&self, _offset: u64, _buf: &mut [u8]) -> io::Result<bool> {
        Ok(false)
    }

    /// Whether the medium has room for so many bytes more: asked before a file is filled, which would else take all that is left
    /// from others, only to fail. True where nobody knows.
    ///
    /// # Errors
    /// As the medium reports them.
    fn has_room(&self, _bytes: u64) -> io::Result<bool> {
        Ok(true)
    }

    /// Writes all of `bytes` at `offset`, extending the file as needed.
    ///
    /// # Errors
    /// After an error any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Writes some bytes each at its offset, in any order or at the same time.
    ///
    /// # Errors
    /// After an error any part of any of them may have been written.
    fn write_each(&self, writes: &[(u64, &[u8])]) -> io::Result<()> {
        writes.iter().try_for_each(|&(offset, bytes)| self.write_at(offset, bytes))
    }

    /// As [`DiskFile::write_at`], within the file's length; once it has succeeded, these bytes are durable, whatever becomes of
    /// others. For a handle of [`DiskFile::direct`]: `offset` and the length are multiples of a sector, and the bytes begin at
    /// the start of a page.
    ///
    /// # Errors
    /// As for `write_at`: after an error any part may have become durable, or become it later.
    fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)?;
        self.sync_data()
    }

    /// Makes the file's bytes and length durable.
    ///
    /// # Errors
    /// After an error nothing is known about what was written since the last success, nor does a later success tell.
    fn sync_data(&self) -> io::Result<()>;

    /// Cuts or extends (by zeros) the file.
    ///
    /// # Errors
    /// As the medium reports them.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
}
