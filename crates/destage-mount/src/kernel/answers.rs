//! What was answered, as the kernel's protocol has it.

use super::{Errno, Ino, Kind, Moment, NANOS, Stat};
use crate::ask::{Answer, Answered, Listed, Lock, Opened, Space};
use fuser::{
    FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may remember things.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remember {
    /// Whose a name is, and attributes.
    pub(crate) names: Duration,
    /// That a name is nobody's.
    pub(crate) nobodys: Duration,
}

/// What every answer needs to know.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// The number of the origin's folder, which is 1 to the kernel.
    pub(super) root: Ino,
    pub(super) remember: Remember,
    /// Other hosts share the files: pages are kept only for mappings.
    pub(super) is_shared: bool,
}

impl Known {
    pub(super) fn ino(self, ino: INodeNo) -> Ino {
        if ino == INodeNo::ROOT { self.root } else { ino.0 }
    }

    fn number(self, ino: Ino) -> INodeNo {
        if ino == self.root { INodeNo::ROOT } else { INodeNo(ino) }
    }

    fn attributes(self, stat: &Stat) -> FileAttr {
        FileAttr {
            ino: self.number(stat.ino),
            size: stat.size,
            blocks: stat.blocks,
            atime: time(stat.atime),
            mtime: time(stat.mtime),
            ctime: time(stat.ctime),
            crtime: UNIX_EPOCH,
            kind: file_type(stat.kind),
            perm: stat.mode as u16,
            nlink: stat.nlink,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev as u32,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }
}

/// The kernel's request, to be answered.
pub(super) enum Reply {
    /// Nothing is waited for.
    Nobody,
    Empty(ReplyEmpty),
    Entry(ReplyEntry),
    /// The same of a name, of which the kernel may remember as well that it is nobody's.
    Name(ReplyEntry),
    Attr(ReplyAttr),
    Data(ReplyData),
    Open(ReplyOpen),
    Create(ReplyCreate),
    Write(ReplyWrite),
    Names(ReplyDirectory, u64),
    Space(ReplyStatfs),
    Xattr(ReplyXattr, u32),
    Seek(ReplyLseek),
    Lock(ReplyLock),
}

macro_rules! from {
    ($($kind:ident($reply:ty)),*) => {
        $(impl From<$reply> for Reply {
            fn from(reply: $reply) -> Self {
                Self::$kind(reply)
            }
        })*
    };
}

from!(
    Empty(ReplyEmpty),
    Entry(ReplyEntry),
    Attr(ReplyAttr),
    Data(ReplyData),
    Open(ReplyOpen),
    Create(ReplyCreate),
    Write(ReplyWrite),
    Space(ReplyStatfs),
    Seek(ReplyLseek),
    Lock(ReplyLock)
);

/// A request and what is known.
pub(super) struct Answering {
    pub(super) reply: Reply,
    pub(super) known: Known,
}

impl Answer for Answering {
    fn give(self: Box<Self>, answered: Result<Answered, Errno>) {
        let Self { reply, known } = *self;
        match answered {
            Ok(answered) => known.give(reply, answered),
            Err(Errno::NOENT) => known.give_nothing(reply),
            Err(errno) => fail(reply, errno),
        }
    }
}

impl Known {
    fn give(self, reply: Reply, answered: Answered) {
        match (reply, answered) {
            (Reply::Nobody, _) => {}
            (Reply::Empty(reply), Answered::Done) => reply.ok(),
            (Reply::Entry(reply) | Reply::Name(reply), Answered::Entry(stat, generation)) => {
                reply.entry(&self.remember.names, &self.attributes(&stat), Generation(generation));
            }
            (Reply::Attr(reply), Answered::Attr(stat)) => {
                reply.attr(&self.remember.names, &self.attributes(&stat));
            }
            (Reply::Data(reply), Answered::Data(bytes)) => reply.data(&bytes),
            (Reply::Open(reply), Answered::Opened(opened)) => {
                reply.opened(FileHandle(opened.handle), self.flags(opened));
            }
            (Reply::Create(reply), Answered::Created(stat, generation, opened)) => reply.created(
                &self.remember.names,
                &self.attributes(&stat),
                Generation(generation),
                FileHandle(opened.handle),
                self.flags(opened),
            ),
            (Reply::Write(reply), Answered::Written(bytes)) => reply.written(bytes),
            (Reply::Names(reply, from), Answered::Names(names)) => self.names(reply, from, &names),
            (Reply::Space(reply), Answered::Space(space)) => give_space(reply, space),
            (Reply::Xattr(reply, room), Answered::Data(bytes)) => give_xattr(reply, room, &bytes),
            (Reply::Seek(reply), Answered::Offset(offset)) => reply.offset(offset as i64),
            (Reply::Lock(reply), Answered::Locked(lock)) => {
                let free = Lock { start: 0, end: 0, kind: libc::F_UNLCK };
                let lock = lock.unwrap_or(free);
                // Which process has it the origin does not say.
                reply.locked(lock.start, lock.end, lock.kind, 0);
            }
            (reply, answered) => {
                debug_assert!(false, "{answered:?} is no answer to this");
                fail(reply, Errno::IO);
            }
        }
    }

    /// There is none. Who looks for a name in many places asks for it again and again.
    fn give_nothing(self, reply: Reply) {
        match reply {
            Reply::Name(reply) if !self.remember.nobodys.is_zero() => {
                let nobody = FileAttr { ino: INodeNo(0), ..self.attributes(&NOTHING) };
                reply.entry(&self.remember.nobodys, &nobody, Generation(0));
            }
            reply => fail(reply, Errno::NOENT),
        }
    }

    /// The hybrid: what only reads may find its pages in the kernel; what may write goes past them.
    fn flags(self, opened: Opened) -> FopenFlags {
        if opened.reads_only && !self.is_shared {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        }
    }

    fn names(self, mut reply: ReplyDirectory, from: u64, names: &[Listed]) {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for (index, listed) in names.iter().enumerate().skip(from) {
            let name = OsStr::from_bytes(&listed.name);
            if reply.add(self.number(listed.ino), index as u64 + 1, file_type(listed.kind), name) {
                break;
            }
        }
        reply.ok();
    }
}

fn give_space(reply: ReplyStatfs, space: Space) {
    let Space { blocks, free, available, files, files_free, block_bytes, name_bytes_max } = space;
    reply.statfs(
        blocks,
        free,
        available,
        files,
        files_free,
        block_bytes,
        name_bytes_max,
        block_bytes,
    );
}

fn give_xattr(reply: ReplyXattr, room: u32, bytes: &[u8]) {
    if room == 0 {
        reply.size(bytes.len() as u32);
    } else if bytes.len() > room as usize {
        reply.error(fuser::Errno::ERANGE);
    } else {
        reply.data(bytes);
    }
}

fn fail(reply: Reply, errno: Errno) {
    let errno = fuser::Errno::from_i32(errno.0);
    match reply {
        Reply::Nobody => {}
        Reply::Empty(reply) => reply.error(errno),
        Reply::Entry(reply) | Reply::Name(reply) => reply.error(errno),
        Reply::Attr(reply) => reply.error(errno),
        Reply::Data(reply) => reply.error(errno),
        Reply::Open(reply) => reply.error(errno),
        Reply::Create(reply) => reply.error(errno),
        Reply::Write(reply) => reply.error(errno),
        Reply::Names(reply, _) => reply.error(errno),
        Reply::Space(reply) => reply.error(errno),
        Reply::Xattr(reply, _) => reply.error(errno),
        Reply::Seek(reply) => reply.error(errno),
        Reply::Lock(reply) => reply.error(errno),
    }
}

fn time(moment: Moment) -> SystemTime {
    let Moment { seconds, nanos } = moment;
    let time = if seconds >= 0 {
        UNIX_EPOCH.checked_add(Duration::new(seconds.unsigned_abs(), nanos))
    } else {
        let back = Duration::new(seconds.unsigned_abs(), 0);
        UNIX_EPOCH
            .checked_sub(back)
            .and_then(|time| time.checked_add(Duration::from_nanos(nanos.min(NANOS).into())))
    };
    time.unwrap_or(UNIX_EPOCH)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Dir => FileType::Directory,
        Kind::Link => FileType::Symlink,
        Kind::Pipe => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::Char => FileType::CharDevice,
        Kind::Block => FileType::BlockDevice,
    }
}

/// Stands where the kernel's protocol has attributes and there are none.
const NOTHING: Stat = {
    let then = Moment { seconds: 0, nanos: 0 };
    Stat {
        ino: 0,
        kind: Kind::File,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: then,
        mtime: then,
        ctime: then,
    }
};

/// What `stat` recommends for reads and writes, bytes.
const BLOCK_BYTES: u32 = 4096;

#[cfg(test)]
mod tests {
    use super::super::moment;
    use super::*;

    #[test]
    fn times_before_1970_come_back_as_they_were() {
        for (seconds, nanos) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 1), (-2_000_000_000, 5)] {
            let there = Moment { seconds, nanos };
            assert_eq!(moment(time(there)), there);
        }
    }
}
