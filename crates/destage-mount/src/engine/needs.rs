//! What the engine has to know of the origin before it can answer, and the asking. The engine itself asks nobody: it
//! says what it needs, and is told.

use crate::ask::{Errno, Ino, Kind, Listed, Make, Name, Seek, Space, Stat};
use crate::origin::{Key, Origin};
use destage_core::Time;
use std::sync::Arc;

/// Something to be asked at the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Stat(Key),
    Name(Key, Name),
    List(Key),
    /// A file made in advance.
    Stage(Make),
    Xattr(Key, Name),
    Xattrs(Key),
    /// Whether the origin takes such an attribute at all, of such a file.
    TryXattr(Kind, Name, Box<[u8]>),
    Target(Key),
    Seek(Key, u64, Seek),
    /// For an engine that knew that so much had landed: see [`super::room`].
    Space(u64),
}

/// Why something cannot be answered now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Errno(Errno),
    Need(Need),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl From<Need> for Stop {
    fn from(need: Need) -> Self {
        Self::Need(need)
    }
}

/// A file made in advance, and its number among those.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Staged {
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) stat: Stat,
}

/// Where files made in advance come from.
pub(crate) trait Stage {
    /// One of this kind.
    fn take(&self, make: &Make) -> Result<Staged, Errno>;
}

/// What a name was when it was looked up, and what had been settled here by then.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) found: Option<(Key, Stat)>,
    pub(crate) asked: u64,
}

/// What is known of the origin, for one request.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// What had been settled here when the origin was asked last: see [`Tree::settled`](super::tree::Tree::settled).
    pub(crate) asked: u64,
    /// When that was.
    pub(crate) asked_at: Time,
    /// When it was asked first of what is known here.
    pub(crate) since: Option<Time>,
    stats: Vec<(Key, Stat, u64)>,
    names: Vec<(Ino, Name, Option<Key>, u64)>,
    list: Option<(Ino, Arc<[Listed]>, u64)>,
    /// When the origin was asked for that.
    listed_at: Time,
    pub(crate) staged: Option<Staged>,
    /// The same, with numbers that are still those of other files here.
    pub(crate) refused: Vec<Staged>,
    xattr: Option<(Result<Vec<u8>, Errno>, u64)>,
    xattrs: Option<Vec<u8>>,
    is_xattr_tried: bool,
    target: Option<Vec<u8>>,
    seek: Option<u64>,
    space: Option<(Space, u64)>,
}

impl Hints {
    /// Finds out.
    ///
    /// # Errors
    /// The origin's.
    pub(crate) fn ask(
        &mut self,
        need: &Need,
        origin: &dyn Origin,
        stage: &dyn Stage,
    ) -> Result<(), Errno> {
        match need {
            Need::Stat(key) => self.stats.push((key.clone(), origin.stat(key)?, self.asked)),
            Need::Name(dir, name) => {
                let found = match origin.lookup(dir, name) {
                    Ok((key, stat)) => {
                        self.stats.push((key.clone(), stat, self.asked));
                        Some(key)
                    }
                    Err(Errno::NOENT) => None,
                    Err(error) => return Err(error),
                };
                self.names.push((dir.ino, name.clone(), found, self.asked));
            }
            Need::List(dir) => {
                self.list = Some((dir.ino, origin.list(dir)?.into(), self.asked));
                self.listed_at = self.asked_at;
            }
            Need::Stage(make) => {
                self.refused.extend(self.staged.take());
                self.staged = Some(stage.take(make)?);
            }
            Need::Xattr(key, name) => self.xattr = Some((origin.xattr(key, name), self.asked)),
            Need::Xattrs(key) => self.xattrs = Some(origin.xattrs(key)?),
            Need::TryXattr(kind, name, value) => {
                let scratch = stage.take(&like(*kind))?;
                let tried = origin.set_xattr(&scratch.key, name, value);
                self.staged = Some(scratch);
                tried?;
                self.is_xattr_tried = true;
            }
            Need::Target(key) => self.target = Some(origin.read_link(key)?),
            Need::Seek(key, offset, whence) => {
                self.seek = Some(origin.seek(key, *offset, *whence)?);
            }
            Need::Space(landed) => self.space = Some((origin.space()?, *landed)),
        }
        Ok(())
    }

    /// Forgets what may have changed: all but what was made for this request.
    pub(crate) fn outdate(&mut self) {
        let (staged, refused) = (self.staged.take(), std::mem::take(&mut self.refused));
        let is_xattr_tried = self.is_xattr_tried;
        *self = Self { staged, refused, is_xattr_tried, ..Self::default() };
    }

    /// What the origin says of a file of which something was settled then. What it said before that does not count: the change
    /// had not come there, and nothing here tells of it any more.
    pub(crate) fn stat(&self, key: &Key, settled: u64) -> Result<Stat, Need> {
        let mut known = self.stats.iter().rev().take_while(|(.., asked)| *asked >= settled);
        let found = known.find(|(known, ..)| known == key);
        found.map(|&(_, stat, _)| stat).ok_or_else(|| Need::Stat(key.clone()))
    }

    /// The same of a name in a directory.
    pub(crate) fn name(&self, dir: &Key, name: &Name, settled: u64) -> Result<Option<Key>, Need> {
        let mut known = self.names.iter().rev().take_while(|(.., asked)| *asked >= settled);
        let found = known.find(|(ino, known, ..)| *ino == dir.ino && known == name);
        found.map(|(_, _, key, _)| key.clone()).ok_or_else(|| Need::Name(dir.clone(), name.clone()))
    }

    /// All the names in a directory that the origin has told of, and what had been settled here when it was asked.
    pub(crate) fn list(&self, dir: &Key) -> Result<(&Arc<[Listed]>, u64), Need> {
        let list = self.list.as_ref().filter(|(ino, ..)| *ino == dir.ino);
        list.map(|(_, list, asked)| (list, *asked)).ok_or_else(|| Need::List(dir.clone()))
    }

    /// The directory whose names the origin has told of, those, what had been settled here when it was asked, and when that was.
    pub(crate) fn listed(&self) -> Option<(Ino, &[Listed], u64, Time)> {
        self.list.as_ref().map(|(dir, list, asked)| (*dir, &**list, *asked, self.listed_at))
    }

    /// What a lookup has found out of a name, for [`Hints::recall`].
    pub(crate) fn seen(&self, dir: Ino, name: &Name) -> Option<Seen> {
        let mut names = self.names.iter().rev();
        let (_, _, key, asked) = names.find(|(known, other, ..)| *known == dir && other == name)?;
        let stat = |key: &Key| {
            let found = self.stats.iter().rev().find(|(other, ..)| other == key);
            Some((key.clone(), found?.1))
        };
        let found = match key {
            Some(key) => Some(stat(key)?),
            None => None,
        };
        Some(Seen { found, asked: *asked })
    }

    /// A name was looked up for another request a moment ago.
    pub(crate) fn recall(&mut self, dir: Ino, name: &Name, seen: Seen) {
        let key = seen.found.map(|(key, stat)| {
            self.stats.push((key.clone(), stat, seen.asked));
            key
        });
        self.names.push((dir, name.clone(), key, seen.asked));
    }

    pub(crate) fn staged(&self, make: &Make) -> Result<&Staged, Need> {
        self.staged.as_ref().ok_or_else(|| Need::Stage(make.clone()))
    }

    /// What the origin says of an extended attribute of a file of which something was settled then.
    pub(crate) fn xattr(
        &self,
        key: &Key,
        name: &Name,
        settled: u64,
    ) -> Result<Result<Vec<u8>, Errno>, Need> {
        let known = self.xattr.as_ref().filter(|(_, asked)| *asked >= settled);
        let need = || Need::Xattr(key.clone(), name.clone());
        known.map(|(value, _)| value.clone()).ok_or_else(need)
    }

    pub(crate) fn xattrs(&self, key: &Key) -> Result<Vec<u8>, Need> {
        self.xattrs.clone().ok_or_else(|| Need::Xattrs(key.clone()))
    }

    pub(crate) fn xattr_tried(&self, kind: Kind, name: &Name, value: &[u8]) -> Result<(), Need> {
        let need = || Need::TryXattr(kind, name.clone(), value.into());
        self.is_xattr_tried.then_some(()).ok_or_else(need)
    }

    pub(crate) fn target(&self, key: &Key) -> Result<Vec<u8>, Need> {
        self.target.clone().ok_or_else(|| Need::Target(key.clone()))
    }

    pub(crate) fn seek(&self, key: &Key, offset: u64, whence: Seek) -> Result<u64, Need> {
        self.seek.ok_or_else(|| Need::Seek(key.clone(), offset, whence))
    }

    /// The origin's room, and what had landed when it was asked.
    pub(crate) fn space(&self, landed: u64) -> Result<(Space, u64), Need> {
        self.space.ok_or(Need::Space(landed))
    }
}

/// A file of a kind, for what an origin allows of some kinds only.
fn like(kind: Kind) -> Make {
    match kind {
        Kind::File => Make::File,
        Kind::Dir => Make::Dir,
        Kind::Link => Make::Link(b"nowhere"[..].into()),
        // Of devices the same is allowed as of a pipe.
        Kind::Pipe | Kind::Socket | Kind::Char | Kind::Block => Make::Special(Kind::Pipe, 0),
    }
}

/// The name under which a file made in advance is kept.
pub(crate) fn staged_name(number: u64) -> Name {
    format!("{number:016x}").into_bytes().into()
}
