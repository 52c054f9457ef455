//! The kernel's side: FUSE requests become [`Ask`]s, and what is answered becomes replies.
//!
//! Handles for reading may keep pages in the kernel; writable ones go past them, and may be mapped all the same. The kernel
//! never keeps a write back, apart from stores through mappings; those it writes at a close, whether or not it then asks for
//! anything, so that it need not ask.

mod answers;

use crate::ask::{
    Ask, Caller, Errno, Ino, Kind, Lock, Locking, Make, Moment, Name, Seek, Serve, SetAttr,
    SetTime, Stat, XattrMode,
};
pub(crate) use answers::Remember;
use answers::{Answering, Known, Reply};
use fuser::{
    BsdFileFlags, Config, FileHandle, Filesystem, INodeNo, InitFlags, KernelConfig, LockOwner,
    MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, SessionACL, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The mounted file system, as the kernel asks it.
pub(crate) struct Kernel {
    serve: Arc<dyn Serve>,
    known: Known,
    ended: Box<dyn Fn() + Send + Sync>,
}

impl Kernel {
    /// `root` is the number of the origin's folder; the kernel may remember names and attributes for `remember`, and
    /// pages of files too unless other hosts share them. `ended` is called once somebody has unmounted it.
    pub(crate) fn new(
        serve: Arc<dyn Serve>,
        root: Ino,
        remember: Remember,
        is_shared: bool,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        Self { serve, known: Known { root, remember, is_shared }, ended: Box::new(ended) }
    }

    fn ino(&self, ino: INodeNo) -> Ino {
        self.known.ino(ino)
    }

    fn ask(&self, request: &Request, ask: Ask, reply: impl Into<Reply>) {
        self.ask_as(request, request.uid() != 0, ask, reply);
    }

    fn ask_as(
        &self,
        request: &Request,
        clears_privileges: bool,
        ask: Ask,
        reply: impl Into<Reply>,
    ) {
        let caller = Caller { uid: request.uid(), gid: request.gid(), clears_privileges };
        let answering = Answering { reply: reply.into(), known: self.known };
        self.serve.ask(caller, ask, Box::new(answering));
    }

    fn lock(&self, ino: INodeNo, owner: LockOwner, locking: Locking, reply: impl Into<Reply>) {
        let answering = Answering { reply: reply.into(), known: self.known };
        self.serve.lock(self.ino(ino), owner.0, locking, Box::new(answering));
    }

    fn make(
        &self,
        request: &Request,
        dir: INodeNo,
        name: &OsStr,
        (make, mode, open): (Make, u32, Option<i32>),
        reply: impl Into<Reply>,
    ) {
        let (dir, name, mode) = (self.ino(dir), name_of(name), mode & 0o7777);
        self.ask(request, Ask::Make { dir, name, make, mode, open }, reply);
    }
}

/// How it is mounted: `threads` of them read requests, each by a descriptor of its own.
pub(crate) fn config(threads: usize, origin: &str) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(origin.replace(',', "_")),
        MountOption::Subtype("destage".into()),
        MountOption::DefaultPermissions,
        // Only root mounts, and gets here what it gets of the origin: containers and chroots need both.
        MountOption::Dev,
        MountOption::Suid,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    config
}

fn name_of(name: &OsStr) -> Name {
    name.as_bytes().into()
}

fn moment(time: SystemTime) -> Moment {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Moment { seconds: after.as_secs() as i64, nanos: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            let (seconds, nanos) = (before.as_secs() as i64, before.subsec_nanos());
            if nanos == 0 {
                Moment { seconds: -seconds, nanos }
            } else {
                Moment { seconds: -seconds - 1, nanos: NANOS - nanos }
            }
        }
    }
}

fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(moment(time)),
    }
}

impl Filesystem for Kernel {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        if config.add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP).is_err() {
            tracing::warn!(
                "this kernel (before 6.6) cannot map files for writing that are not cached: programs that do, such as SQLite in \
                 WAL mode, get ENODEV"
            );
        }
        for wish in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
        ] {
            // Older kernels do with less.
            let _ = config.add_capabilities(wish);
        }
        if self.known.is_shared {
            // By itself it would keep them among this host's programs.
            for lock in [InitFlags::FUSE_POSIX_LOCKS, InitFlags::FUSE_FLOCK_LOCKS] {
                if config.add_capabilities(lock).is_err() {
                    return Err(io::Error::other("this kernel keeps locks of files to itself"));
                }
            }
        }
        let _ = config.set_max_write(WRITE_BYTES_MAX);
        // Those that wait for tokens count, and others must get by: what is stored through mappings goes this way before a token
        // is given up.
        let background = if self.known.is_shared { u16::MAX } else { BACKGROUND_MAX };
        let _ = config.set_max_background(background);
        Ok(())
    }

    fn destroy(&mut self) {
        (self.ended)();
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ask = Ask::Lookup { dir: self.ino(parent), name: name_of(name) };
        self.ask(request, ask, Reply::Name(reply));
    }

    fn forget(&self, request: &Request, ino: INodeNo, count: u64) {
        self.ask(request, Ask::Forget { ino: self.ino(ino), count }, Reply::Nobody);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.ask(request, Ask::GetAttr { ino: self.ino(ino) }, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (atime, mtime) = (atime.map(set_time), mtime.map(set_time));
        let set = SetAttr { mode: mode.map(|mode| mode & 0o7777), uid, gid, size, atime, mtime };
        self.ask(request, Ask::SetAttr { ino: self.ino(ino), set }, reply);
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        self.ask(request, Ask::ReadLink { ino: self.ino(ino) }, reply);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let make = match Kind::of_mode(mode) {
            Some(Kind::File) => Make::File,
            Some(kind @ (Kind::Pipe | Kind::Socket | Kind::Char | Kind::Block)) => {
                Make::Special(kind, rdev.into())
            }
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        self.make(request, parent, name, (make, mode, None), reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        self.make(request, parent, name, (Make::Dir, mode, None), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask(request, Ask::Unlink { dir: self.ino(parent), name: name_of(name) }, reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask(request, Ask::RmDir { dir: self.ino(parent), name: name_of(name) }, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let make = Make::Link(target.as_os_str().as_bytes().into());
        self.make(request, parent, name, (make, 0o777, None), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // An exchange would need two names to change at once at the origin, which not every one can.
        if flags.intersects(!RenameFlags::RENAME_NOREPLACE) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let ask = Ask::Rename {
            dir: self.ino(parent),
            name: name_of(name),
            to_dir: self.ino(to_parent),
            to_name: name_of(to_name),
            replace: !flags.contains(RenameFlags::RENAME_NOREPLACE),
        };
        self.ask(request, ask, reply);
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        to_parent: INodeNo,
        to_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (ino, dir) = (self.ino(ino), self.ino(to_parent));
        self.ask(request, Ask::Link { ino, dir, name: name_of(to_name) }, reply);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.ask(request, Ask::Open { ino: self.ino(ino), flags: flags.0 }, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.make(request, parent, name, (Make::File, mode, Some(flags)), reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The kernel names an owner where it hands the bytes to somebody who reads, and none where it fills pages.
        let mapped = owner.is_none();
        self.ask(request, Ask::Read { ino: self.ino(ino), offset, len: size, mapped }, reply);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mapped = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let ask = Ask::Write {
            ino: self.ino(ino),
            offset,
            data: data.to_vec(),
            // Of a page the flags are those of whichever open the kernel found first.
            sync: !mapped && flags.0 & libc::O_DSYNC != 0,
            append: !mapped && flags.0 & libc::O_APPEND != 0,
            mapped,
        };
        // Of a truncation the kernel says by itself which mode is left.
        let clears_privileges = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        self.ask_as(request, clears_privileges, ask, reply);
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        // The number of who had locks by it may be another open's already: this comes in the background.
        if self.known.is_shared {
            self.lock(ino, LockOwner(0), Locking::Closed(handle.0), Reply::Nobody);
        }
        self.ask(request, Ask::Release { ino: self.ino(ino), handle: handle.0 }, reply);
    }

    fn fsync(&self, request: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask(request, Ask::Fsync { ino: self.ino(ino) }, reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.ask(request, Ask::OpenDir { ino: self.ino(ino) }, reply);
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let ask = Ask::ReadDir { ino: self.ino(ino), handle: handle.0, anew: offset == 0 };
        self.ask(request, ask, Reply::Names(reply, offset));
    }

    fn releasedir(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.ask(request, Ask::ReleaseDir { ino: self.ino(ino), handle: handle.0 }, reply);
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.ask(request, Ask::Fsync { ino: self.ino(ino) }, reply);
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.ask(request, Ask::StatFs, reply);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let (ino, name) = (self.ino(ino), name_of(name));
        self.ask(request, Ask::SetXattr { ino, name, value: value.into(), mode }, reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let ask = Ask::GetXattr { ino: self.ino(ino), name: name_of(name) };
        self.ask(request, ask, Reply::Xattr(reply, size));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.ask(request, Ask::ListXattr { ino: self.ino(ino) }, Reply::Xattr(reply, size));
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.ask(request, Ask::RemoveXattr { ino: self.ino(ino), name: name_of(name) }, reply);
    }

    /// Sent at each close unless it is refused once.
    fn flush(&self, _: &Request, ino: INodeNo, _: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        if self.known.is_shared {
            self.lock(ino, owner, Locking::End, reply);
        } else {
            reply.error(fuser::Errno::ENOSYS);
        }
    }

    fn getlk(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        self.lock(ino, owner, Locking::Test(Lock { start, end, kind }), reply);
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let lock = Lock { start, end, kind };
        let waits = sleep.then(|| request.pid());
        self.lock(ino, owner, Locking::Set(lock, waits, handle.0), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.ask(request, Ask::Fallocate { ino: self.ino(ino), offset, len, mode }, reply);
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let whence = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(fuser::Errno::ENXIO);
        };
        self.ask(request, Ask::Lseek { ino: self.ino(ino), offset, whence }, reply);
    }
}

/// Most bytes of one write.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Most requests that nobody waits for which the kernel has under way.
const BACKGROUND_MAX: u16 = 64;
const NANOS: u32 = 1_000_000_000;
