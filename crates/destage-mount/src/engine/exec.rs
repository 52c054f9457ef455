//! What a request means, given all that is known: the records that it writes, if any, and what it is answered. Changes
//! nothing: [`Tree::apply`] does, once the records are in the journal's buffer.

mod content;
mod look;
mod names;
mod xattr;

use super::needs::{Hints, Stop};
use super::record::{Base, Record};
use super::tree::{Known, Tree};
use crate::ask::{
    Answered, Ask, Caller, Errno, Handle, Ino, Kind, Moment, NAME_BYTES_MAX, Name, Opened, Stat,
};
use crate::origin::Key;
use std::ops::Range;

/// Who asks, when, and what is known of the origin.
pub(crate) struct Context<'a> {
    pub(crate) caller: Caller,
    pub(crate) now: Moment,
    pub(crate) hints: &'a Hints,
    /// The number of the next open.
    pub(crate) handle: Handle,
}

/// What a request means: see the module.
#[derive(Debug)]
pub(crate) struct Done {
    /// Empty for what changes nothing.
    pub(crate) records: Vec<Record>,
    pub(crate) reply: Reply,
    /// A file that the kernel knows from now on.
    pub(crate) looked: Option<(Key, Kind)>,
    /// It is open once more.
    pub(crate) opened: Option<Ino>,
    /// What it changes, or concerns.
    pub(crate) ino: Ino,
    /// Its mode is another one, of which the answer says nothing.
    pub(crate) is_other_mode: bool,
}

/// What is answered.
#[derive(Debug)]
pub(crate) enum Reply {
    Ready(Answered),
    /// These bytes of a file.
    Read(Key, Range<u64>),
}

impl Done {
    fn read(ino: Ino, answered: Answered) -> Self {
        let reply = Reply::Ready(answered);
        Self { records: Vec::new(), reply, looked: None, opened: None, ino, is_other_mode: false }
    }

    fn changed(ino: Ino, answered: Answered, records: Vec<Record>) -> Self {
        Self { records, ..Self::read(ino, answered) }
    }

    fn with_entry(self, key: &Key, kind: Kind) -> Self {
        Self { looked: Some((key.clone(), kind)), ..self }
    }
}

/// What comes of it, or what has to be known first.
type Outcome<T = Done> = Result<T, Stop>;

impl Tree {
    /// What a request means: see the module.
    pub(crate) fn exec(&self, context: &Context<'_>, ask: &Ask) -> Outcome {
        match ask {
            Ask::Lookup { dir, name } => self.lookup(context, *dir, name),
            Ask::GetAttr { ino } => {
                let stat = self.stat(context, *ino)?;
                Ok(Done::read(*ino, Answered::Attr(stat)))
            }
            Ask::SetAttr { ino, set } => self.set_attributes(context, *ino, *set),
            Ask::ReadLink { ino } => {
                let target = context.hints.target(self.key(*ino)?)?;
                Ok(Done::read(*ino, Answered::Data(target)))
            }
            Ask::Make { dir, name, make, mode, open } => {
                self.make(context, (*dir, name), make, *mode, *open)
            }
            Ask::Unlink { dir, name } => self.unlink(context, *dir, name),
            Ask::RmDir { dir, name } => self.rmdir(context, *dir, name),
            Ask::Rename { dir, name, to_dir, to_name, replace } => {
                self.rename(context, (*dir, name), (*to_dir, to_name), *replace)
            }
            Ask::Link { ino, dir, name } => self.link(context, *ino, *dir, name),
            Ask::Open { ino, flags } => self.open(context, *ino, *flags),
            Ask::OpenDir { ino } => self.open(context, *ino, libc::O_RDONLY),
            Ask::Read { ino, offset, len, .. } => self.read(context, *ino, *offset, *len),
            Ask::Write { ino, offset, data, append, .. } => {
                self.write(context, *ino, *offset, data, *append)
            }
            Ask::Fallocate { ino, offset, len, mode } => {
                self.fallocate(context, *ino, *offset, *len, *mode)
            }
            Ask::Lseek { ino, offset, whence } => self.lseek(context, *ino, *offset, *whence),
            Ask::ReadDir { ino, .. } => self.read_dir(context, *ino),
            Ask::StatFs => {
                let (mut space, landed) = context.hints.space(self.landed)?;
                // What is on its way has taken its room already.
                let taken = self.on_its_way(landed) / u64::from(space.block_bytes.max(1));
                space.free = space.free.saturating_sub(taken);
                space.available = space.available.saturating_sub(taken);
                Ok(Done::read(self.root(), Answered::Space(space)))
            }
            Ask::SetXattr { ino, name, value, mode } => {
                self.set_xattr(context, *ino, name, value, *mode)
            }
            Ask::GetXattr { ino, name } => {
                let value = self.xattr(context, *ino, name)?.ok_or(Errno::NODATA)?;
                Ok(Done::read(*ino, Answered::Data(value)))
            }
            Ask::ListXattr { ino } => {
                let names = self.xattrs(context, *ino)?;
                Ok(Done::read(*ino, Answered::Data(names)))
            }
            Ask::RemoveXattr { ino, name } => self.remove_xattr(context, *ino, name),
            Ask::Fsync { ino }
            | Ask::Forget { ino, .. }
            | Ask::Release { ino, .. }
            | Ask::ReleaseDir { ino, .. } => Ok(Done::read(*ino, Answered::Done)),
        }
    }

    /// What a file is called at the origin.
    fn key(&self, ino: Ino) -> Result<&Key, Errno> {
        self.node(ino).map(|node| &node.key).ok_or(Errno::STALE)
    }

    /// What a file is like.
    fn stat(&self, context: &Context<'_>, ino: Ino) -> Outcome<Stat> {
        let node = self.node(ino).ok_or(Errno::STALE)?;
        match node.stat {
            Some(stat) => Ok(stat),
            None => Ok(context.hints.stat(&node.key, node.settled)?),
        }
    }

    /// The file of a name, and what it is like.
    fn child_of(
        &self,
        context: &Context<'_>,
        dir: Ino,
        name: &Name,
    ) -> Outcome<Option<(Key, Stat)>> {
        check_name(name)?;
        if dir == self.root() && **name == *crate::OWN_FOLDER {
            return Ok(None);
        }
        let dir_node = self.node(dir).ok_or(Errno::STALE)?;
        let key = match self.child(dir, name) {
            Known::Nobody => return Ok(None),
            Known::File(ino) => self.key(ino)?.clone(),
            Known::AskOrigin => match context.hints.name(&dir_node.key, name, dir_node.settled)? {
                None => return Ok(None),
                Some(key) if self.is_taken(&key) => return Err(Errno::BUSY.into()),
                Some(key) => key,
            },
        };
        let known = self.node(key.ino).filter(|node| node.key == key);
        let stat = match known.and_then(|node| node.stat) {
            Some(stat) => stat,
            None => context.hints.stat(&key, self.settled_of(key.ino))?,
        };
        Ok(Some((key, stat)))
    }

    /// The same, which must be there.
    fn child_there(&self, context: &Context<'_>, dir: Ino, name: &Name) -> Outcome<(Key, Stat)> {
        Ok(self.child_of(context, dir, name)?.ok_or(Errno::NOENT)?)
    }

    /// The records that introduce a file, and say what it is like from now on.
    fn describe(&self, key: &Key, before: &Stat, after: Stat, records: &mut Vec<Record>) {
        // What is not dirty yet is as the origin has it.
        let is_dirty =
            self.node(key.ino).is_some_and(|node| node.key == *key && node.stat.is_some());
        let base = (!is_dirty).then(|| Base::of(before));
        self.introduce(key, before.kind, records);
        records.push(Record::Meta { stat: after, base });
    }

    fn introduce(&self, key: &Key, kind: Kind, records: &mut Vec<Record>) {
        let is_known = records
            .iter()
            .any(|record| matches!(record, Record::File { key: known, .. } if known == key));
        if !is_known {
            records.push(Record::File { key: key.clone(), kind });
        }
    }

    fn open(&self, context: &Context<'_>, ino: Ino, flags: i32) -> Outcome {
        let key = self.key(ino)?;
        let mut done = Done::read(ino, Answered::Opened(opened(context, flags)));
        // The kernel sends a truncation by itself, unless it was told that an open does it.
        if flags & libc::O_TRUNC != 0 {
            let stat = self.stat(context, ino)?;
            done.records = self.resized(context, key, &stat, 0)?;
        }
        done.opened = Some(ino);
        Ok(done)
    }
}

fn opened(context: &Context<'_>, flags: i32) -> Opened {
    let reads_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    Opened { handle: context.handle, reads_only }
}

fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::NOENT),
        _ if name.len() > NAME_BYTES_MAX => Err(Errno::NAMETOOLONG),
        _ if name.contains(&b'/') || name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}
