//! The folder as the kernel sees it: one file for each volume, nothing to create, rename or remove.

use super::requests::{self, Shape};
use super::{Answer, Ask, FileEvent};
use crate::block::BLOCK;
use crate::request::Request as VolumeRequest;
use crate::serve::Event;
use crate::serve::Outbox;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// A file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Bytes. May grow.
    pub(super) size: Arc<AtomicU64>,
    pub(super) read_only: bool,
}

impl Entry {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
}

/// The folder.
pub(super) struct Directory {
    entries: Vec<Entry>,
    outbox: Outbox,
    /// When the server started: the time of everything.
    time: SystemTime,
    owner: (u32, u32),
}

impl Directory {
    /// A folder with these files, in the order of the server's volumes.
    pub(super) fn new(entries: Vec<Entry>, outbox: Outbox) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { entries, outbox, time: SystemTime::now(), owner }
    }

    /// The volume of an inode.
    fn volume(&self, inode: INodeNo) -> Result<usize, Errno> {
        let volume = inode.0.checked_sub(FIRST_FILE).and_then(|index| usize::try_from(index).ok());
        volume.filter(|&volume| volume < self.entries.len()).ok_or(Errno::EISDIR)
    }

    fn shape(&self, inode: INodeNo) -> Result<(usize, Shape), Errno> {
        let volume = self.volume(inode)?;
        let entry = &self.entries[volume];
        Ok((volume, Shape { size: entry.size(), read_only: entry.read_only }))
    }

    fn attributes(&self, inode: INodeNo) -> Result<FileAttr, Errno> {
        let (kind, size, perm, nlink) = match self.volume(inode) {
            Ok(volume) => {
                let entry = &self.entries[volume];
                let perm = if entry.read_only { 0o400 } else { 0o600 };
                (FileType::RegularFile, entry.size(), perm, 1)
            }
            Err(_) if inode == INodeNo::ROOT => (FileType::Directory, 0, 0o500, 2),
            Err(_) => return Err(Errno::ENOENT),
        };
        Ok(FileAttr {
            ino: inode,
            size,
            blocks: size.div_ceil(512),
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            crtime: self.time,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        })
    }

    fn tell(&self, event: FileEvent) {
        self.outbox.send(Event::File(event));
    }

    fn ask(&self, volume: usize, request: VolumeRequest, answer: Answer) {
        self.tell(FileEvent::Ask(Ask { volume, request, answer }));
    }
}

impl Filesystem for Directory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Older kernels do with less; what they do not know they leave out.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.tell(FileEvent::Ended);
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let index = self.entries.iter().position(|entry| OsStr::new(&entry.name) == name);
        let inode = index.filter(|_| parent == INodeNo::ROOT).map(inode_of).ok_or(Errno::ENOENT);
        match inode.and_then(|inode| self.attributes(inode)) {
            Ok(attributes) => reply.entry(&REMEMBER, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Ok(attributes) => reply.attr(&REMEMBER, &attributes),
            Err(error) => reply.error(error),
        }
    }

    /// Nothing can be changed; a program that sets the size to what it is may go on.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes_owner = mode.is_some() || uid.is_some() || gid.is_some();
        match self.attributes(inode) {
            Ok(now) if !changes_owner && size.is_none_or(|size| size == now.size) => {
                reply.attr(&REMEMBER, &now);
            }
            Ok(_) => reply.error(Errno::EPERM),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if inode != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let dots =
            [(INodeNo::ROOT, FileType::Directory, "."), (INodeNo::ROOT, FileType::Directory, "..")];
        let files = self.entries.iter().enumerate();
        let files =
            files.map(|(index, entry)| (inode_of(index), FileType::RegularFile, &entry.name[..]));
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (inode, kind, name)) in dots.into_iter().chain(files).enumerate().skip(from) {
            if reply.add(inode, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    /// The block size tells a loop device what it can discard.
    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block = BLOCK as u64;
        let blocks = self.entries.iter().map(|entry| entry.size().div_ceil(block)).sum();
        reply.statfs(blocks, 0, 0, self.entries.len() as u64, 0, BLOCK as u32, 255, BLOCK as u32);
    }

    fn open(&self, _: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.shape(inode) {
            Ok((_, shape)) if shape.read_only && flags.acc_mode() != OpenAccMode::O_RDONLY => {
                reply.error(Errno::EROFS);
            }
            Ok(_) => self.tell(FileEvent::Open(reply)),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.tell(FileEvent::Close);
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let meant =
            self.shape(inode).map(|(volume, shape)| (volume, requests::read(shape, offset, size)));
        match meant {
            Ok((volume, Some(request))) => self.ask(volume, request, Answer::Read(reply)),
            Ok((_, None)) => reply.data(&[]),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let meant = self
            .shape(inode)
            .and_then(|(volume, shape)| Ok((volume, requests::write(shape, offset, data, flags)?)));
        match meant {
            Ok((volume, Some(request))) => {
                let len = match &request {
                    VolumeRequest::Write { data, .. } => data.len() as u32,
                    _ => 0,
                };
                self.ask(volume, request, Answer::Write(reply, len));
            }
            Ok((_, None)) => reply.written(0),
            Err(error) => reply.error(error),
        }
    }

    /// A descriptor was closed: promises nothing.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.volume(inode) {
            Ok(volume) => self.ask(volume, VolumeRequest::Flush, Answer::Plain(reply)),
            Err(error) => reply.error(error),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let meant = self.shape(inode).and_then(|(volume, shape)| {
            Ok((volume, requests::fallocate(shape, offset, length, mode)?))
        });
        match meant {
            Ok((volume, Some(request))) => self.ask(volume, request, Answer::Plain(reply)),
            Ok((_, None)) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

/// The inode of the first volume's file; the folder itself has number 1.
const FIRST_FILE: u64 = 2;

pub(super) fn inode_of(volume: usize) -> INodeNo {
    INodeNo(volume as u64 + FIRST_FILE)
}

/// How long the kernel may remember names and sizes: it is told of the one that changes.
const REMEMBER: Duration = Duration::from_secs(60);
/// Most bytes of one write.
const WRITE_MAX: u32 = 1 << 20;
/// Most reads and writes that a loop device has under way.
const BACKGROUND_MAX: u16 = 256;
