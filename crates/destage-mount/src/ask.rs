//! What programs ask of files, and what they are answered: the front end's own words, so that neither FUSE nor a kernel is
//! needed to ask. [`crate::kernel`] translates.

use std::fmt;

/// A file's number, as `stat` shows it.
pub type Ino = u64;
/// A name in a directory: 1 to 255 bytes of anything but `/` and NUL.
pub type Name = Box<[u8]>;
/// Which open of a file.
pub type Handle = u64;

/// The longest [`Name`], bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// Why something cannot be done, as the system numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

impl Errno {
    /// No such file.
    pub const NOENT: Self = Self(libc::ENOENT);
    /// The name is taken.
    pub const EXIST: Self = Self(libc::EEXIST);
    /// The origin or the journal failed.
    pub const IO: Self = Self(libc::EIO);
    /// The file is gone.
    pub const STALE: Self = Self(libc::ESTALE);
    /// It is in use in another way.
    pub const BUSY: Self = Self(libc::EBUSY);
    /// A wrong argument.
    pub const INVAL: Self = Self(libc::EINVAL);
    /// Not a directory.
    pub const NOTDIR: Self = Self(libc::ENOTDIR);
    /// A directory.
    pub const ISDIR: Self = Self(libc::EISDIR);
    /// A directory with names in it.
    pub const NOTEMPTY: Self = Self(libc::ENOTEMPTY);
    /// Never permitted.
    pub const PERM: Self = Self(libc::EPERM);
    /// Another file system.
    pub const XDEV: Self = Self(libc::EXDEV);
    /// Not offered here.
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// Larger than a file may be.
    pub const FBIG: Self = Self(libc::EFBIG);
    /// The name is too long.
    pub const NAMETOOLONG: Self = Self(libc::ENAMETOOLONG);
    /// No data behind this place.
    pub const NXIO: Self = Self(libc::ENXIO);
    /// No such attribute.
    pub const NODATA: Self = Self(libc::ENODATA);
    /// The answer is longer than the room for it.
    pub const RANGE: Self = Self(libc::ERANGE);
    /// No room.
    pub const NOSPC: Self = Self(libc::ENOSPC);
    /// The quota is used up.
    pub const DQUOT: Self = Self(libc::EDQUOT);
    /// More links than the origin allows.
    pub const MLINK: Self = Self(libc::EMLINK);
    /// Shut down, or evicted.
    pub const SHUTDOWN: Self = Self(libc::ESHUTDOWN);
    /// Locks are not to be had.
    pub const NOLCK: Self = Self(libc::ENOLCK);
    /// A signal came.
    pub const INTR: Self = Self(libc::EINTR);
    /// Try again.
    pub const AGAIN: Self = Self(libc::EAGAIN);

    /// Whether it is what a file system answers that is not there any more for whoever has it open: `ceph-fuse` once it is
    /// evicted, and any such mount whose program is gone.
    pub fn is_end_of_mount(self) -> bool {
        matches!(self.0, libc::ESHUTDOWN | libc::ENOTCONN)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        error.raw_os_error().map_or(Self::IO, Self)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Self(error.raw_os_error())
    }
}

/// A moment of a file's life: seconds since the Unix epoch, and nanoseconds of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Seconds; before 1970 they are negative.
    pub seconds: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    Char,
    /// A block device.
    Block,
}

impl Kind {
    /// From the bits of a mode.
    pub fn of_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            0 | libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Dir,
            libc::S_IFLNK => Self::Link,
            libc::S_IFIFO => Self::Pipe,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::Char,
            libc::S_IFBLK => Self::Block,
            _ => return None,
        })
    }

    /// The bits of a mode.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Dir => libc::S_IFDIR,
            Self::Link => libc::S_IFLNK,
            Self::Pipe => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
            Self::Char => libc::S_IFCHR,
            Self::Block => libc::S_IFBLK,
        }
    }
}

/// What `stat` shows of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// Permissions with the bits above them: 12 bits.
    pub mode: u32,
    /// Names that it has.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device: which.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// Room taken, in 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime: Moment,
    /// Last change of the content.
    pub mtime: Moment,
    /// Last change of anything.
    pub ctime: Moment,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// To the time now.
    Now,
    /// To this one.
    To(Moment),
}

/// What is to be changed of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permissions, 12 bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes.
    pub size: Option<u64>,
    /// Last read.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
}

/// What is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Make {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link to there.
    Link(Box<[u8]>),
    /// A pipe, a socket or a device.
    Special(Kind, u64),
}

impl Make {
    /// What it will be.
    pub fn kind(&self) -> Kind {
        match self {
            Self::File => Kind::File,
            Self::Dir => Kind::Dir,
            Self::Link(_) => Kind::Link,
            Self::Special(kind, _) => *kind,
        }
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Lacks the right to change a file's content (CAP_FSETID) and to leave it what lets others act as its owner.
    pub clears_privileges: bool,
}

/// Where a seek looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// For data.
    Data,
    /// For a hole.
    Hole,
}

/// How a set of an extended attribute treats one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// It is made or replaced.
    Set,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// What is asked. Permissions have been checked by the kernel, against the attributes that it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the arguments of the system calls that these are named after"
)]
pub enum Ask {
    Lookup {
        dir: Ino,
        name: Name,
    },
    Forget {
        ino: Ino,
        count: u64,
    },
    GetAttr {
        ino: Ino,
    },
    SetAttr {
        ino: Ino,
        set: SetAttr,
    },
    ReadLink {
        ino: Ino,
    },
    /// `open` with flags for a file that is opened at once.
    Make {
        dir: Ino,
        name: Name,
        make: Make,
        mode: u32,
        open: Option<i32>,
    },
    Unlink {
        dir: Ino,
        name: Name,
    },
    RmDir {
        dir: Ino,
        name: Name,
    },
    Rename {
        dir: Ino,
        name: Name,
        to_dir: Ino,
        to_name: Name,
        replace: bool,
    },
    Link {
        ino: Ino,
        dir: Ino,
        name: Name,
    },
    Open {
        ino: Ino,
        flags: i32,
    },
    /// `mapped`: into the kernel's page cache.
    Read {
        ino: Ino,
        offset: u64,
        len: u32,
        mapped: bool,
    },
    /// `sync`: durable before the answer. `append`: at the end, wherever that is. `mapped`: from the kernel's page cache.
    Write {
        ino: Ino,
        offset: u64,
        data: Vec<u8>,
        sync: bool,
        append: bool,
        mapped: bool,
    },
    Release {
        ino: Ino,
        handle: Handle,
    },
    Fsync {
        ino: Ino,
    },
    OpenDir {
        ino: Ino,
    },
    /// A listing from its beginning is made anew.
    ReadDir {
        ino: Ino,
        handle: Handle,
        anew: bool,
    },
    ReleaseDir {
        ino: Ino,
        handle: Handle,
    },
    StatFs,
    SetXattr {
        ino: Ino,
        name: Name,
        value: Box<[u8]>,
        mode: XattrMode,
    },
    GetXattr {
        ino: Ino,
        name: Name,
    },
    ListXattr {
        ino: Ino,
    },
    RemoveXattr {
        ino: Ino,
        name: Name,
    },
    Fallocate {
        ino: Ino,
        offset: u64,
        len: u64,
        mode: i32,
    },
    Lseek {
        ino: Ino,
        offset: u64,
        whence: Seek,
    },
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Which open.
    pub handle: Handle,
    /// Only for reading, so that the kernel may keep pages.
    pub reads_only: bool,
}

/// A name and what has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// Whose it is.
    pub ino: Ino,
    /// What that is.
    pub kind: Kind,
}

/// Room in the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Blocks free for who is not root.
    pub available: u64,
    /// Files in all.
    pub files: u64,
    /// Files that may still be made.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name.
    pub name_bytes_max: u32,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answered {
    /// A name's file, and which life of its number.
    Entry(Stat, u64),
    /// The same, and it is open.
    Created(Stat, u64, Opened),
    /// Attributes.
    Attr(Stat),
    /// Bytes.
    Data(Vec<u8>),
    /// It is open.
    Opened(Opened),
    /// So many bytes were written.
    Written(u32),
    /// A directory's names, `.` and `..` among them.
    Names(std::sync::Arc<[Listed]>),
    /// Room.
    Space(Space),
    /// A place in a file.
    Offset(u64),
    /// Whoever has a range locked, if anybody.
    Locked(Option<Lock>),
    /// Nothing more is to be said.
    Done,
}

/// Whom to answer. Once, from any thread.
pub trait Answer: Send {
    /// Answers.
    fn give(self: Box<Self>, answered: Result<Answered, Errno>);
}

/// A lock of a range of a file, as of `fcntl`; one of `flock` is one of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lock {
    /// The first byte.
    pub start: u64,
    /// The last byte; `i64::MAX` for all there may ever be.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK`, or `F_UNLCK` to give it up.
    pub kind: i32,
}

/// What is to be done with locks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Takes one, or gives it up, by this open of the file. Waits until it is free where a thread is named: that one, unless a
    /// signal comes to it.
    Set(Lock, Option<u32>, u64),
    /// Asks who is in the way of one.
    Test(Lock),
    /// Gives all of an owner's up, by whichever open it has them.
    End,
    /// This open of the file has ended: gives up what was taken by it, whoever has it. A process has given its locks up before;
    /// the number of an owner that is an open may be the next open's already.
    Closed(u64),
}

/// Whoever can be asked.
pub trait Serve: Send + Sync {
    /// Answers now or later.
    fn ask(&self, caller: Caller, ask: Ask, answer: Box<dyn Answer>);

    /// The same for locks of a file by one owner: a process, or one open of the file. Only where several hosts share files.
    fn lock(&self, ino: Ino, owner: u64, locking: Locking, answer: Box<dyn Answer>) {
        let _ = (ino, owner, locking);
        answer.give(Err(Errno::NOLCK));
    }
}
