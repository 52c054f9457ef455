//! Requests that change names.

use super::content::later;
use super::{Context, Done, Outcome, check_name, opened};
use crate::ask::{Answered, Errno, Ino, Kind, Make, Name, Stat};
use crate::engine::generation;
use crate::engine::needs::{Need, Stop};
use crate::engine::record::{NameChange, Record};
use crate::engine::tree::Tree;
use crate::origin::Key;

impl Tree {
    pub(super) fn make(
        &self,
        context: &Context<'_>,
        (dir, name): (Ino, &Name),
        make: &Make,
        mode: u32,
        open: Option<i32>,
    ) -> Outcome {
        self.check_free(context, dir, name).map_err(|stop| match stop {
            // Who opens a file takes one that is there, too. Another host may have made it since the kernel was told that there is
            // none: it looks again, and asks by itself who may open that.
            Stop::Errno(Errno::EXIST) if open.is_some_and(|flags| flags & libc::O_EXCL == 0) => {
                Errno::STALE.into()
            }
            stop => stop,
        })?;
        let (dir_key, parent) = self.dir(context, dir)?;
        let staged = context.hints.staged(make)?;
        let key = &staged.key;
        if self.is_taken(key) {
            return Err(Need::Stage(make.clone()).into());
        }
        let kind = make.kind();
        let inherits = parent.mode & libc::S_ISGID != 0;
        let bits = if inherits && kind == Kind::Dir { libc::S_ISGID } else { 0 };
        let stat = Stat {
            ino: key.ino,
            kind,
            mode: if kind == Kind::Link { 0o777 } else { mode | bits },
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            uid: context.caller.uid,
            gid: if inherits { parent.gid } else { context.caller.gid },
            atime: context.now,
            mtime: context.now,
            ctime: context.now,
            ..staged.stat
        };
        let mut records = Vec::with_capacity(5);
        self.introduce(key, kind, &mut records);
        let more = if kind == Kind::Dir { 1 } else { 0 };
        self.describe_dir(context, &dir_key, &parent, more, &mut records);
        records.push(Record::Names(NameChange::Create {
            dir,
            name: name.clone(),
            ino: key.ino,
            staged: staged.number,
            make: make.clone(),
        }));
        records.push(Record::Meta { stat, base: None });
        let answered = match open {
            None => Answered::Entry(stat, generation(key)),
            Some(flags) => Answered::Created(stat, generation(key), opened(context, flags)),
        };
        let done = Done::changed(dir, answered, records).with_entry(key, kind);
        Ok(Done { opened: open.map(|_| key.ino), ..done })
    }

    pub(super) fn link(&self, context: &Context<'_>, ino: Ino, dir: Ino, name: &Name) -> Outcome {
        self.check_free(context, dir, name)?;
        let (dir_key, parent) = self.dir(context, dir)?;
        let key = self.key(ino)?.clone();
        let before = self.stat(context, ino)?;
        match before.kind {
            Kind::Dir => return Err(Errno::PERM.into()),
            _ if before.nlink == 0 => return Err(Errno::NOENT.into()),
            _ if before.nlink >= LINKS_MAX => return Err(Errno::MLINK.into()),
            _ => {}
        }
        let after = self.renamed(context, &before, 1);
        let mut records = Vec::with_capacity(5);
        self.describe(&key, &before, after, &mut records);
        self.describe_dir(context, &dir_key, &parent, 0, &mut records);
        records.push(Record::Names(NameChange::Link { dir, name: name.clone(), ino }));
        let done = Done::changed(dir, Answered::Entry(after, generation(&key)), records);
        Ok(done.with_entry(&key, before.kind))
    }

    pub(super) fn unlink(&self, context: &Context<'_>, dir: Ino, name: &Name) -> Outcome {
        let (key, before) = self.child_there(context, dir, name)?;
        if before.kind == Kind::Dir {
            return Err(Errno::ISDIR.into());
        }
        let (dir_key, parent) = self.dir(context, dir)?;
        let mut records = Vec::with_capacity(5);
        self.describe(&key, &before, self.renamed(context, &before, -1), &mut records);
        self.describe_dir(context, &dir_key, &parent, 0, &mut records);
        let (name, ino) = (name.clone(), key.ino);
        records.push(Record::Names(NameChange::Unlink { dir, name, ino }));
        Ok(Done::changed(dir, Answered::Done, records))
    }

    pub(super) fn rmdir(&self, context: &Context<'_>, dir: Ino, name: &Name) -> Outcome {
        let (key, before) = self.child_there(context, dir, name)?;
        if before.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        self.check_empty(context, &key)?;
        let (dir_key, parent) = self.dir(context, dir)?;
        let mut records = Vec::with_capacity(5);
        self.describe(&key, &before, self.ended(context, &before), &mut records);
        self.describe_dir(context, &dir_key, &parent, -1, &mut records);
        let (name, ino) = (name.clone(), key.ino);
        records.push(Record::Names(NameChange::RmDir { dir, name, ino }));
        Ok(Done::changed(dir, Answered::Done, records))
    }

    pub(super) fn rename(
        &self,
        context: &Context<'_>,
        (dir, name): (Ino, &Name),
        (to_dir, to_name): (Ino, &Name),
        replace: bool,
    ) -> Outcome {
        let (key, before) = self.child_there(context, dir, name)?;
        self.check_own(to_dir, to_name)?;
        let there = self.child_of(context, to_dir, to_name)?;
        let is_dir = before.kind == Kind::Dir;
        match &there {
            Some(_) if !replace => return Err(Errno::EXIST.into()),
            // Two names of one file: nothing happens.
            Some((other, _)) if *other == key => return Ok(Done::read(dir, Answered::Done)),
            Some((other, stat)) => match (is_dir, stat.kind == Kind::Dir) {
                (true, false) => return Err(Errno::NOTDIR.into()),
                (false, true) => return Err(Errno::ISDIR.into()),
                (true, true) => self.check_empty(context, other)?,
                (false, false) => {}
            },
            None => {}
        }
        let mut records = Vec::with_capacity(8);
        self.describe(&key, &before, self.renamed(context, &before, 0), &mut records);
        if let Some((other, stat)) = &there {
            let after =
                if is_dir { self.ended(context, stat) } else { self.renamed(context, stat, -1) };
            self.describe(other, stat, after, &mut records);
        }
        let (dir_key, parent) = self.dir(context, dir)?;
        let replaces_dir = is_dir && there.is_some();
        let moved = i32::from(is_dir);
        if dir == to_dir {
            let fewer = if replaces_dir { -1 } else { 0 };
            self.describe_dir(context, &dir_key, &parent, fewer, &mut records);
        } else {
            self.describe_dir(context, &dir_key, &parent, -moved, &mut records);
            let (to_key, to_parent) = self.dir(context, to_dir)?;
            let more = if replaces_dir { 0 } else { moved };
            self.describe_dir(context, &to_key, &to_parent, more, &mut records);
        }
        records.push(Record::Names(NameChange::Rename {
            dir,
            name: name.clone(),
            to_dir,
            to_name: to_name.clone(),
            ino: key.ino,
            replaced: there.map(|(other, _)| other.ino),
        }));
        Ok(Done::changed(to_dir, Answered::Done, records))
    }

    fn dir(&self, context: &Context<'_>, dir: Ino) -> Outcome<(Key, Stat)> {
        let key = self.key(dir)?.clone();
        let stat = self.stat(context, dir)?;
        if stat.kind != Kind::Dir {
            return Err(Errno::NOTDIR.into());
        }
        // Somebody may still be in a directory that is gone.
        if stat.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        Ok((key, stat))
    }

    fn check_own(&self, dir: Ino, name: &Name) -> Result<(), Errno> {
        check_name(name)?;
        let is_own = dir == self.root() && **name == *crate::OWN_FOLDER;
        if is_own { Err(Errno::PERM) } else { Ok(()) }
    }

    fn check_free(&self, context: &Context<'_>, dir: Ino, name: &Name) -> Outcome<()> {
        self.check_own(dir, name)?;
        match self.child_of(context, dir, name)? {
            Some(_) => Err(Errno::EXIST.into()),
            None => Ok(()),
        }
    }

    fn check_empty(&self, context: &Context<'_>, dir: &Key) -> Outcome<()> {
        let is_empty = match self.node(dir.ino).filter(|node| node.key == *dir) {
            Some(_) => self.names(context, dir.ino)?.is_empty(),
            None => match context.hints.list(dir)? {
                (_, asked) if asked < self.settled_of(dir.ino) => {
                    return Err(Need::List(dir.clone()).into());
                }
                (list, _) => list.is_empty(),
            },
        };
        if is_empty { Ok(()) } else { Err(Errno::NOTEMPTY.into()) }
    }

    /// A directory whose names change now, with so many more directories in it.
    fn describe_dir(
        &self,
        context: &Context<'_>,
        key: &Key,
        before: &Stat,
        more: i32,
        records: &mut Vec<Record>,
    ) {
        // Some origins count no directories.
        let nlink = if before.nlink < 2 { before.nlink } else { add(before.nlink, more).max(2) };
        let ctime = later(before.ctime, context.now);
        let after = Stat { nlink, mtime: context.now, ctime, ..*before };
        self.describe(key, before, after, records);
    }

    fn renamed(&self, context: &Context<'_>, before: &Stat, more: i32) -> Stat {
        let ctime = later(before.ctime, context.now);
        Stat { nlink: add(before.nlink, more), ctime, ..*before }
    }

    /// A directory that is gone.
    fn ended(&self, context: &Context<'_>, before: &Stat) -> Stat {
        Stat { nlink: 0, ctime: later(before.ctime, context.now), ..*before }
    }
}

fn add(count: u32, more: i32) -> u32 {
    count.saturating_add_signed(more)
}

/// As ext4 has it, the smallest of the usual origins.
const LINKS_MAX: u32 = 65_000;
