//! A folder of a mounted file system, by handles.

use super::descriptors::Descriptors;
use super::steps::rename_in_steps;
use super::{Attributes, Key, Origin, Result};
use super::{handles, pages, quota};
use crate::ask::{Errno, Kind, Listed, Make, Moment, Seek, Space, Stat};
use rustix::fs::{
    self as sys, AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom,
    Timespec, Timestamps, Uid, XattrFlags,
};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The folder: see the module. Keeps files open that were used lately.
pub struct LocalOrigin {
    /// Open for reading: what handles are opened by.
    folder: Arc<OwnedFd>,
    root: Key,
    device: u64,
    syncs_all: bool,
    /// A rename that replaces nothing has been refused, and was possible in steps.
    lacks_noreplace: AtomicBool,
    files: Descriptors,
    may_change: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl LocalOrigin {
    /// Opens a folder.
    ///
    /// # Errors
    /// It is none, it cannot be opened, or its file system has no handles.
    pub fn open(folder: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = Arc::new(sys::open(folder, flags, Mode::empty())?);
        let files = Descriptors::new(folder.clone());
        let found = sys::fstat(&folder)?;
        let handle = handles::of(folder.as_fd(), c"")?;
        // Without the right to open by handle nothing works.
        handles::open(folder.as_fd(), &handle, libc::O_PATH)?;
        let root = Key { ino: found.st_ino, handle };
        // The kernel does not pass it on to whoever serves such a file system.
        let syncs_all = sys::fstatfs(&folder)?.f_type != FUSE_SUPER_MAGIC;
        Ok(Self {
            folder,
            root,
            device: found.st_dev,
            syncs_all,
            lacks_noreplace: AtomicBool::new(false),
            files,
            may_change: OnceLock::new(),
        })
    }

    /// The handle of what a path leads to.
    ///
    /// # Errors
    /// There is none, or its file system has no handles.
    pub(crate) fn handle_of(path: &Path) -> io::Result<Arc<[u8]>> {
        let fd = sys::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        handles::of(fd.as_fd(), c"")
    }

    /// The same, as if a program served it.
    #[cfg(test)]
    pub(crate) fn served_by_a_program(self) -> Self {
        Self { syncs_all: false, ..self }
    }

    /// From now on nothing is changed but when this says so, asked before each change.
    pub(crate) fn guard(&self, may_change: impl Fn() -> bool + Send + Sync + 'static) {
        // Once.
        let _ = self.may_change.set(Box::new(may_change));
    }

    fn check(&self) -> Result<()> {
        match self.may_change.get() {
            Some(may_change) if !may_change() => Err(Errno::IO),
            _ => Ok(()),
        }
    }

    fn stat_of(&self, fd: &OwnedFd) -> Result<Stat> {
        let found = sys::fstat(fd)?;
        if found.st_dev != self.device {
            return Err(Errno::XDEV);
        }
        let moment = |seconds, nanos: u64| Moment { seconds, nanos: nanos as u32 };
        Ok(Stat {
            ino: found.st_ino,
            kind: Kind::of_mode(found.st_mode).ok_or(Errno::IO)?,
            mode: found.st_mode & MODE_BITS,
            nlink: found.st_nlink as u32,
            uid: found.st_uid,
            gid: found.st_gid,
            rdev: found.st_rdev,
            size: found.st_size as u64,
            blocks: found.st_blocks as u64,
            atime: moment(found.st_atime, found.st_atime_nsec),
            mtime: moment(found.st_mtime, found.st_mtime_nsec),
            ctime: moment(found.st_ctime, found.st_ctime_nsec),
        })
    }

    /// How long a file may become, as far as the kernel knows: found by halving, and nothing is changed by it.
    pub(crate) fn longest(&self, file: &Key) -> Result<u64> {
        let fd = handles::open(self.folder.as_fd(), &file.handle, libc::O_RDONLY)?;
        let (mut can, mut cannot) = (0, 1_u64 << 63);
        while cannot - can > 1 {
            let place = can.midpoint(cannot);
            match sys::seek(&fd, SeekFrom::Start(place)) {
                Ok(_) => can = place,
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::OVERFLOW) => cannot = place,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(can)
    }

    /// Whether a program serves it that has the kernel keep pages: of what other hosts write it hears nothing then.
    pub(crate) fn has_page_cache(&self, file: &Key) -> Result<bool> {
        Ok(!self.syncs_all && pages::can_be_mapped(self.files.bytes(file)?.as_fd())?)
    }

    /// Whether a lock here ends with the session that carries the data. Over NFS and SMB it ends by itself, whatever is on its
    /// way.
    pub(crate) fn locks_end_with_data(&self) -> Result<bool> {
        let kind = sys::fstatfs(&self.folder)?.f_type as u32;
        Ok(!LOCKS_END_ALONE.contains(&kind))
    }

    /// A name goes, and so may its file: nothing of it is kept open but what is pinned.
    fn forget_name(&self, dir: &OwnedFd, name: &[u8]) {
        let Ok(name) = CString::new(name) else { return };
        if let Ok(handle) = handles::of(dir.as_fd(), &name) {
            self.files.forget(&handle);
        }
    }

    /// Takes a name away that is to be replaced, if it is one of several of its file: after a rename that replaces such a name
    /// ceph-fuse may take the others for gone (see [`Origin::has_name`]). After this and a rename it does not.
    fn make_way(&self, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        match sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(there) if there.st_nlink > 1 && !FileType::from_raw_mode(there.st_mode).is_dir() => {
                Ok(sys::unlinkat(dir, name, AtFlags::empty())?)
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes what holds data zeros. What is a hole stays one, as far as the file system tells, and the size stays.
    fn write_zeros(&self, file: &Key, mut at: u64, end: u64) -> Result<()> {
        let zeros = vec![0; ZERO_BYTES];
        let end = end.min(self.stat_of(&*self.files.bytes(file)?)?.size);
        while at < end {
            at = match self.seek(file, at, Seek::Data) {
                Ok(from) => from,
                Err(Errno::NXIO) => end,
                // It tells of no holes.
                Err(_) => at,
            };
            let to = self.seek(file, at, Seek::Hole).ok().filter(|&to| to > at);
            let to = to.unwrap_or(end).min(end);
            while at < to {
                let part = (to - at).min(zeros.len() as u64);
                self.write(file, at, &zeros[..part as usize])?;
                at += part;
            }
        }
        Ok(())
    }
}

/// A path to what a descriptor stands for, for calls that take no such descriptor.
pub(super) fn path_of(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

impl Origin for LocalOrigin {
    fn open_for_locks(&self, file: &Key) -> Result<OwnedFd> {
        self.files.open_bytes(file)
    }

    fn root(&self) -> Key {
        self.root.clone()
    }

    fn lookup(&self, dir: &Key, name: &[u8]) -> Result<(Key, Stat)> {
        let dir = self.files.named(dir)?;
        let c_name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = sys::openat(&dir, c_name.as_c_str(), flags, Mode::empty())?;
        let stat = self.stat_of(&fd)?;
        let handle = handles::of(fd.as_fd(), c"")?;
        Ok((Key { ino: stat.ino, handle }, stat))
    }

    fn stat(&self, file: &Key) -> Result<Stat> {
        let fd = self.files.named(file)?;
        let stat = self.stat_of(&fd)?;
        // An open file outlives its names, which this front end does not want unless it says so.
        let is_pinned = || self.files.is_pinned(file);
        if stat.nlink == 0 && !is_pinned() {
            self.files.forget(&file.handle);
            return Err(Errno::STALE);
        }
        Ok(stat)
    }

    fn list(&self, dir: &Key) -> Result<Vec<Listed>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOATIME;
        let fd = handles::open(self.folder.as_fd(), &dir.handle, flags)?;
        let mut found = Vec::new();
        for entry in sys::Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::RegularFile => Kind::File,
                FileType::Directory => Kind::Dir,
                FileType::Symlink => Kind::Link,
                FileType::Fifo => Kind::Pipe,
                FileType::Socket => Kind::Socket,
                FileType::CharacterDevice => Kind::Char,
                FileType::BlockDevice => Kind::Block,
                // Gone meanwhile, or of another file system.
                FileType::Unknown => match self.lookup(dir, name) {
                    Ok((_, stat)) => stat.kind,
                    Err(Errno::NOENT | Errno::STALE | Errno::XDEV) => continue,
                    Err(error) => return Err(error),
                },
            };
            found.push(Listed { name: name.into(), ino: entry.ino(), kind });
        }
        Ok(found)
    }

    fn read(&self, file: &Key, offset: u64, len: usize) -> Result<Vec<u8>> {
        let fd = self.files.bytes(file)?;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            let offset = offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
            match rustix::io::pread(&fd, &mut bytes[done..], offset) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    fn read_link(&self, file: &Key) -> Result<Vec<u8>> {
        let fd = self.files.named(file)?;
        Ok(sys::readlinkat(&fd, c"", Vec::new())?.into_bytes())
    }

    fn seek(&self, file: &Key, offset: u64, whence: Seek) -> Result<u64> {
        // Its place is one's own: descriptors of the cache have one for all.
        let fd = handles::open(self.folder.as_fd(), &file.handle, libc::O_RDONLY)?;
        let from = match whence {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        Ok(sys::seek(&fd, from)?)
    }

    fn space(&self) -> Result<Space> {
        let found = sys::fstatvfs(&self.folder)?;
        let quota = quota::left(self.folder.as_fd()).map(|bytes| bytes / found.f_frsize.max(1));
        let allowed = |blocks: u64| quota.map_or(blocks, |quota| quota.min(blocks));
        Ok(Space {
            blocks: found.f_blocks,
            free: allowed(found.f_bfree),
            available: allowed(found.f_bavail),
            files: found.f_files,
            files_free: found.f_ffree,
            block_bytes: found.f_frsize as u32,
            name_bytes_max: found.f_namemax as u32,
        })
    }

    fn xattr(&self, file: &Key, name: &[u8]) -> Result<Vec<u8>> {
        let fd = self.files.named(file)?;
        let mut value = Vec::with_capacity(XATTR_BYTES_MAX);
        sys::getxattr(path_of(&fd), name, rustix::buffer::spare_capacity(&mut value))?;
        Ok(value)
    }

    fn xattrs(&self, file: &Key) -> Result<Vec<u8>> {
        let fd = self.files.named(file)?;
        let mut names = Vec::with_capacity(XATTR_BYTES_MAX);
        sys::listxattr(path_of(&fd), rustix::buffer::spare_capacity(&mut names))?;
        Ok(names)
    }

    fn make(&self, dir: &Key, name: &[u8], make: &Make) -> Result<(Key, Stat)> {
        self.check()?;
        let fd = self.files.named(dir)?;
        let (alone, alone_dir) = (Mode::RUSR | Mode::WUSR, Mode::RWXU);
        let node = |kind| sys::mknodat(&fd, name, kind, alone, 0);
        match make {
            Make::File => node(FileType::RegularFile)?,
            Make::Dir => sys::mkdirat(&fd, name, alone_dir)?,
            Make::Link(target) => sys::symlinkat(&target[..], &fd, name)?,
            Make::Special(kind, device) => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                sys::mknodat(&fd, name, kind, alone, *device)?;
            }
        }
        self.lookup(dir, name)
    }

    fn write(&self, file: &Key, offset: u64, data: &[u8]) -> Result<()> {
        self.check()?;
        let fd = self.files.writable(file)?;
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&fd, &data[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => done += more,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn truncate(&self, file: &Key, size: u64) -> Result<()> {
        self.check()?;
        Ok(sys::ftruncate(self.files.writable(file)?, size)?)
    }

    fn punch(&self, file: &Key, offset: u64, len: u64) -> Result<()> {
        self.check()?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match sys::fallocate(self.files.writable(file)?, flags, offset, len) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                self.write_zeros(file, offset, offset.saturating_add(len))
            }
            other => Ok(other?),
        }
    }

    fn sync(&self, file: &Key) -> Result<()> {
        let fd = self.files.named(file)?;
        match FileType::from_raw_mode(sys::fstat(&fd)?.st_mode) {
            FileType::Directory => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                Ok(sys::fsync(handles::open(self.folder.as_fd(), &file.handle, flags)?)?)
            }
            FileType::RegularFile => Ok(sys::fsync(self.files.bytes(file)?)?),
            // To open it may mean something else: a pipe without a reader refuses, a device does what it is for. Its owner and
            // its times are on the disk with everything else.
            _ if self.syncs_all => self.sync_all(),
            // Where that is not offered, they are with whoever serves the names.
            _ => Ok(()),
        }
    }

    fn whole_bytes(&self) -> u64 {
        OBJECT_BYTES
    }

    fn syncs_all(&self) -> bool {
        self.syncs_all
    }

    fn sync_all(&self) -> Result<()> {
        Ok(sys::syncfs(&self.folder)?)
    }

    fn set(&self, file: &Key, attributes: &Attributes) -> Result<()> {
        self.check()?;
        let fd = self.files.named(file)?;
        if let Some((uid, gid)) = attributes.owner {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            sys::chownat(&fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        if let Some(mode) = attributes.mode {
            sys::chmodat(sys::CWD, path_of(&fd), Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        if attributes.atime.is_some() || attributes.mtime.is_some() {
            let time = |moment: Option<Moment>| match moment {
                Some(Moment { seconds, nanos }) => {
                    Timespec { tv_sec: seconds, tv_nsec: nanos.into() }
                }
                None => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT },
            };
            let times = Timestamps {
                last_access: time(attributes.atime),
                last_modification: time(attributes.mtime),
            };
            sys::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }

    fn rename(
        &self,
        dir: &Key,
        name: &[u8],
        to_dir: &Key,
        to_name: &[u8],
        replace: bool,
    ) -> Result<()> {
        self.check()?;
        let (dir, to_dir) = (self.files.named(dir)?, self.files.named(to_dir)?);
        if replace {
            self.forget_name(&to_dir, to_name);
            if !self.syncs_all {
                self.make_way(&to_dir, to_name)?;
            }
            return Ok(sys::renameat(&dir, name, &to_dir, to_name)?);
        }
        if !self.lacks_noreplace.load(Ordering::Relaxed) {
            match sys::renameat_with(&dir, name, &to_dir, to_name, RenameFlags::NOREPLACE) {
                // Not all file systems know of it: ceph-fuse does not.
                Err(rustix::io::Errno::INVAL) => {}
                other => return Ok(other?),
            }
        }
        rename_in_steps(&dir, name, &to_dir, to_name)?;
        self.lacks_noreplace.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn renames_in_steps(&self) -> bool {
        self.lacks_noreplace.load(Ordering::Relaxed)
    }

    fn link(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<()> {
        self.check()?;
        let (file, dir) = (self.files.named(file)?, self.files.named(dir)?);
        Ok(sys::linkat(&file, c"", &dir, name, AtFlags::EMPTY_PATH)?)
    }

    /// A client of CephFS (seen with ceph-fuse 16.2) may take a name for gone that its server has: after a rename that replaced
    /// another name of the same file, until it reads the directory anew. To give the file that name makes it ask.
    fn has_name(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<bool> {
        if !self.syncs_all {
            match self.link(file, dir, name) {
                Ok(()) => {
                    self.unlink(dir, name)?;
                    return Ok(false);
                }
                Err(Errno::EXIST) => drop(self.list(dir)?),
                Err(error) if error.is_end_of_mount() => return Err(error),
                // It is a directory, or gone: then no name of it has been forgotten.
                Err(_) => {}
            }
        }
        match self.lookup(dir, name) {
            Ok((key, _)) => Ok(key == *file),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn unlink(&self, dir: &Key, name: &[u8]) -> Result<()> {
        self.check()?;
        let dir = self.files.named(dir)?;
        self.forget_name(&dir, name);
        Ok(sys::unlinkat(&dir, name, AtFlags::empty())?)
    }

    fn rmdir(&self, dir: &Key, name: &[u8]) -> Result<()> {
        self.check()?;
        let dir = self.files.named(dir)?;
        self.forget_name(&dir, name);
        Ok(sys::unlinkat(&dir, name, AtFlags::REMOVEDIR)?)
    }

    fn set_xattr(&self, file: &Key, name: &[u8], value: &[u8]) -> Result<()> {
        self.check()?;
        let fd = self.files.named(file)?;
        Ok(sys::setxattr(path_of(&fd), name, value, XattrFlags::empty())?)
    }

    fn remove_xattr(&self, file: &Key, name: &[u8]) -> Result<()> {
        self.check()?;
        let fd = self.files.named(file)?;
        Ok(sys::removexattr(path_of(&fd), name)?)
    }

    fn pin(&self, file: &Key) -> Result<()> {
        self.files.pin(file)
    }

    fn unpin(&self, file: &Key) {
        self.files.unpin(file);
    }
}

/// How `statfs` calls a file system that a program serves.
const FUSE_SUPER_MAGIC: sys::FsWord = 0x6573_5546;
/// NFS, and SMB by its three names.
const LOCKS_END_ALONE: [u32; 4] = [0x6969, 0x517b, 0xfe53_4d42, 0xff53_4d42];
/// Permissions and the bits above them.
const MODE_BITS: u32 = 0o7777;
/// As CephFS cuts files into objects, unless it is told otherwise; a local disk has a file's end go with its bytes.
const OBJECT_BYTES: u64 = 4 << 20;
/// Most bytes of an extended attribute, and of their names, as the kernel has it.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Zeros that are written at a time.
const ZERO_BYTES: usize = 1 << 20;

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
