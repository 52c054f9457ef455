//! The shared file system behind, as this front end sees it: files by handles that outlive their names.
//!
//! Everything that changes it goes through [`Origin`], so that a crash can be put between any two of its effects.

pub(crate) mod claim;
mod descriptors;
mod handles;
mod local;
mod pages;
pub(crate) mod pool;
mod quota;
mod steps;

pub use local::LocalOrigin;

use crate::ask::{Errno, Kind, Listed, Make, Moment, Seek, Space, Stat};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What a file is called for good: the file system's own handle of it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Its number. Another file may have it later.
    pub ino: u64,
    /// What tells those apart.
    pub handle: Arc<[u8]>,
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "#{}", self.ino)
    }
}

/// What is to be set of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions, 12 bits.
    pub mode: Option<u32>,
    /// Owner and group.
    pub owner: Option<(u32, u32)>,
    /// Last read.
    pub atime: Option<Moment>,
    /// Last change of the content.
    pub mtime: Option<Moment>,
}

/// What comes of asking the origin.
pub type Result<T> = std::result::Result<T, Errno>;

/// The origin: see the module. May block.
pub trait Origin: Send + Sync {
    /// The folder that is cached.
    fn root(&self) -> Key;

    /// The file of a name.
    ///
    /// # Errors
    /// There is none; [`Errno::XDEV`] where another file system begins.
    fn lookup(&self, dir: &Key, name: &[u8]) -> Result<(Key, Stat)>;

    /// What a file is like.
    ///
    /// # Errors
    /// [`Errno::STALE`] if it is gone.
    fn stat(&self, file: &Key) -> Result<Stat>;

    /// The names in a directory, without `.` and `..`.
    ///
    /// # Errors
    /// It cannot be read.
    fn list(&self, dir: &Key) -> Result<Vec<Listed>>;

    /// Bytes of a file; fewer at its end.
    ///
    /// # Errors
    /// They cannot be read.
    fn read(&self, file: &Key, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// It cannot be read.
    fn read_link(&self, file: &Key) -> Result<Vec<u8>>;

    /// The next data or hole from a place on.
    ///
    /// # Errors
    /// [`Errno::NXIO`] if there is none.
    fn seek(&self, file: &Key, offset: u64, whence: Seek) -> Result<u64>;

    /// Room.
    ///
    /// # Errors
    /// It does not say.
    fn space(&self) -> Result<Space>;

    /// An extended attribute.
    ///
    /// # Errors
    /// There is none.
    fn xattr(&self, file: &Key, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of the extended attributes, each ended by a NUL.
    ///
    /// # Errors
    /// They cannot be read.
    fn xattrs(&self, file: &Key) -> Result<Vec<u8>>;

    /// Makes a file that its owner alone may use. The name must be free.
    ///
    /// # Errors
    /// It cannot be made.
    fn make(&self, dir: &Key, name: &[u8], make: &Make) -> Result<(Key, Stat)>;

    /// Writes all of it.
    ///
    /// # Errors
    /// A part may have been written.
    fn write(&self, file: &Key, offset: u64, data: &[u8]) -> Result<()>;

    /// Bytes of a file that become durable as one, from each multiple of so many on: a host that dies may leave one such part
    /// and not the one in front of it.
    fn whole_bytes(&self) -> u64;

    /// Sets the size.
    ///
    /// # Errors
    /// It has not changed.
    fn truncate(&self, file: &Key, size: u64) -> Result<()>;

    /// Makes a range zeros, and gives its room back where it can. The size stays.
    ///
    /// # Errors
    /// A part may have been done.
    fn punch(&self, file: &Key, offset: u64, len: u64) -> Result<()>;

    /// Makes a file durable; of a directory, its names.
    ///
    /// # Errors
    /// Nothing is known then.
    fn sync(&self, file: &Key) -> Result<()>;

    /// Whether [`Origin::sync_all`] does what it says: a file system that is itself served by a program is not told of it.
    fn syncs_all(&self) -> bool;

    /// Makes everything durable.
    ///
    /// # Errors
    /// Nothing is known then.
    fn sync_all(&self) -> Result<()>;

    /// Sets attributes: the owner before the mode, the times last.
    ///
    /// # Errors
    /// Some may have been set.
    fn set(&self, file: &Key, attributes: &Attributes) -> Result<()>;

    /// Gives a file another name.
    ///
    /// # Errors
    /// [`Errno::EXIST`] if the name is taken and not to be replaced.
    fn rename(
        &self,
        dir: &Key,
        name: &[u8],
        to_dir: &Key,
        to_name: &[u8],
        replace: bool,
    ) -> Result<()>;

    /// Whether a rename that replaces nothing gives a file a further name and takes the old one away from it: then the second
    /// step may come later.
    fn renames_in_steps(&self) -> bool;

    /// Gives a file a further name.
    ///
    /// # Errors
    /// The name is taken.
    fn link(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<()>;

    /// Whether a name is a file's, as whoever keeps the names has it: what a client remembers of them may be wrong.
    ///
    /// # Errors
    /// It cannot be found out.
    fn has_name(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<bool>;

    /// Takes a name away from a file.
    ///
    /// # Errors
    /// There is none.
    fn unlink(&self, dir: &Key, name: &[u8]) -> Result<()>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// It is not empty.
    fn rmdir(&self, dir: &Key, name: &[u8]) -> Result<()>;

    /// Sets an extended attribute, whether or not it is there.
    ///
    /// # Errors
    /// The origin does not take it.
    fn set_xattr(&self, file: &Key, name: &[u8], value: &[u8]) -> Result<()>;

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// There is none.
    fn remove_xattr(&self, file: &Key, name: &[u8]) -> Result<()>;

    /// Keeps a file readable although its last name may go.
    ///
    /// # Errors
    /// It is gone.
    fn pin(&self, file: &Key) -> Result<()>;

    /// It may go.
    fn unpin(&self, file: &Key);

    /// Opens a file anew, for locks of whoever has the descriptor.
    ///
    /// # Errors
    /// Files cannot be locked there.
    fn open_for_locks(&self, file: &Key) -> Result<OwnedFd> {
        let _ = file;
        Err(Errno::NOLCK)
    }
}

impl Kind {
    /// Whether its content is bytes.
    pub fn is_file(self) -> bool {
        self == Self::File
    }
}
