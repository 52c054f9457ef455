//! Requests that concern a file's bytes, its size and its other attributes.

use super::{Context, Done, Outcome, Reply};
use crate::ask::{Answered, Caller, Errno, Ino, Kind, SetAttr, SetTime, Stat};
use crate::engine::record::Record;
use crate::engine::tree::Tree;
use crate::origin::Key;

impl Tree {
    pub(super) fn read(&self, context: &Context<'_>, ino: Ino, offset: u64, len: u32) -> Outcome {
        let key = self.key(ino)?.clone();
        let stat = self.stat(context, ino)?;
        let end = offset.saturating_add(len.into()).min(stat.size);
        let range = offset.min(end)..end;
        let reply = Reply::Read(key, range);
        Ok(Done { reply, ..Done::read(ino, Answered::Done) })
    }

    pub(super) fn write(
        &self,
        context: &Context<'_>,
        ino: Ino,
        offset: u64,
        data: &[u8],
        append: bool,
    ) -> Outcome {
        let key = self.key(ino)?.clone();
        let before = self.stat(context, ino)?;
        if before.kind != Kind::File {
            return Err(Errno::INVAL.into());
        }
        let answered = Answered::Written(data.len() as u32);
        if data.is_empty() {
            return Ok(Done::read(ino, answered));
        }
        // The kernel's idea of the end may be old.
        let offset = if append { before.size } else { offset };
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
        self.check_size(end)?;
        let after = self.modified(context, &before, before.size.max(end));
        let mut records = Vec::with_capacity(3);
        self.describe(&key, &before, after, &mut records);
        records.push(Record::Data { ino, offset, bytes: data.into() });
        let is_other_mode = after.mode != before.mode;
        Ok(Done { is_other_mode, ..Done::changed(ino, answered, records) })
    }

    pub(super) fn fallocate(
        &self,
        context: &Context<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Outcome {
        let key = self.key(ino)?.clone();
        let before = self.stat(context, ino)?;
        if before.kind != Kind::File {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
        self.check_size(end)?;
        let records = match mode {
            // What is written has its room in the journal; the origin's is promised by nobody.
            libc::FALLOC_FL_KEEP_SIZE => Vec::new(),
            0 if end <= before.size => Vec::new(),
            0 => self.resized(context, &key, &before, end)?,
            PUNCH => {
                let mut records = Vec::new();
                let end = end.min(before.size);
                if offset < end {
                    let after = self.modified(context, &before, before.size);
                    self.describe(&key, &before, after, &mut records);
                    records.push(Record::Zero { ino, offset, len: end - offset });
                }
                records
            }
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        Ok(Done::changed(ino, Answered::Done, records))
    }

    pub(super) fn set_attributes(&self, context: &Context<'_>, ino: Ino, set: SetAttr) -> Outcome {
        let key = self.key(ino)?.clone();
        let before = self.stat(context, ino)?;
        let mut after = before;
        let mut records = match set.size {
            Some(_) if before.kind == Kind::Dir => return Err(Errno::ISDIR.into()),
            Some(_) if before.kind != Kind::File => return Err(Errno::INVAL.into()),
            Some(size) => {
                self.check_size(size)?;
                after = self.modified(context, &before, size);
                vec![Record::Size { ino, size }]
            }
            None => Vec::new(),
        };
        let time = |set: SetTime| match set {
            SetTime::Now => context.now,
            SetTime::To(moment) => moment,
        };
        after.mode = set.mode.unwrap_or(after.mode);
        after.uid = set.uid.unwrap_or(after.uid);
        after.gid = set.gid.unwrap_or(after.gid);
        after.atime = set.atime.map_or(after.atime, time);
        after.mtime = set.mtime.map_or(after.mtime, time);
        after.ctime = later(before.ctime, context.now);
        // What the file is like comes first: of what is not dirty yet, it says how much of the origin can be seen.
        let mut described = Vec::with_capacity(3);
        self.describe(&key, &before, after, &mut described);
        described.append(&mut records);
        Ok(Done::changed(ino, Answered::Attr(after), described))
    }

    /// The records of a new size.
    pub(super) fn resized(
        &self,
        context: &Context<'_>,
        key: &Key,
        before: &Stat,
        size: u64,
    ) -> Outcome<Vec<Record>> {
        let after = self.modified(context, before, size);
        let mut records = Vec::with_capacity(3);
        self.describe(key, before, after, &mut records);
        records.push(Record::Size { ino: key.ino, size });
        Ok(records)
    }

    fn check_size(&self, size: u64) -> Result<(), Errno> {
        if size <= self.file_bytes_max { Ok(()) } else { Err(Errno::FBIG) }
    }

    /// The same file with its content changed now.
    fn modified(&self, context: &Context<'_>, before: &Stat, size: u64) -> Stat {
        let blocks = before.blocks.max(size.min(before.size.max(size)).div_ceil(512));
        let blocks = blocks.min(size.div_ceil(512).next_multiple_of(8));
        let ctime = later(before.ctime, context.now);
        let mode = left_mode(before.mode, context.caller);
        Stat { size, blocks, mode, mtime: context.now, ctime, ..*before }
    }
}

/// A change time never goes back, whatever the clock does.
pub(super) fn later(before: crate::ask::Moment, now: crate::ask::Moment) -> crate::ask::Moment {
    before.max(now)
}

/// The mode of a file once its content is changed. The bit of a group that may not execute the file means something else.
fn left_mode(mode: u32, caller: Caller) -> u32 {
    if !caller.clears_privileges {
        return mode;
    }
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & !(libc::S_ISUID | group)
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
