//! Everything goes to the origin before it is answered.

use crate::ask::{
    Answer, Answered, Ask, Caller, Errno, Handle, Ino, Kind, Listed, Make, Moment, Name, Opened,
    Serve, SetAttr, SetTime, Stat, XattrMode,
};
use crate::origin::{Attributes, Key, Origin, Result};
use hashbrown::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// The front end without a journal.
pub(crate) struct Through<O> {
    origin: O,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    files: HashMap<Ino, File>,
    listings: HashMap<Handle, Arc<[Listed]>>,
    last_handle: Handle,
}

struct File {
    key: Key,
    lookups: u64,
    opens: u64,
    is_pinned: bool,
}

impl<O: Origin> Through<O> {
    pub(crate) fn new(origin: O) -> Self {
        let root = origin.root();
        let mut state = State::default();
        let file = File { key: root.clone(), lookups: 1, opens: 0, is_pinned: false };
        state.files.insert(root.ino, file);
        Self { origin, state: Mutex::new(state) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self, ino: Ino) -> Result<Key> {
        self.state().files.get(&ino).map(|file| file.key.clone()).ok_or(Errno::STALE)
    }

    fn found(&self, key: Key, stat: Stat) -> Answered {
        let mut state = self.state();
        let file = File { key: key.clone(), lookups: 0, opens: 0, is_pinned: false };
        let known = state.files.entry(stat.ino).or_insert(file);
        known.key = key;
        known.lookups += 1;
        Answered::Entry(stat, 0)
    }

    fn opened(&self, ino: Ino, flags: i32) -> Opened {
        let mut state = self.state();
        state.last_handle += 1;
        let handle = state.last_handle;
        if let Some(file) = state.files.get_mut(&ino) {
            file.opens += 1;
        }
        Opened { handle, reads_only: flags & libc::O_ACCMODE == libc::O_RDONLY }
    }

    fn is_hidden(&self, dir: Ino, name: &[u8]) -> bool {
        dir == self.origin.root().ino && name == crate::OWN_FOLDER
    }

    /// Keeps what is open readable before one of its names goes.
    fn keep_open(&self, dir: &Key, name: &[u8]) {
        let Ok((key, _)) = self.origin.lookup(dir, name) else { return };
        let mut state = self.state();
        let Some(file) = state.files.get_mut(&key.ino) else { return };
        if file.opens > 0 && !file.is_pinned && self.origin.pin(&key).is_ok() {
            file.is_pinned = true;
        }
    }

    fn make(
        &self,
        caller: Caller,
        dir: Ino,
        name: &Name,
        make: &Make,
        mode: u32,
    ) -> Result<(Key, Stat)> {
        if self.is_hidden(dir, name) {
            return Err(Errno::PERM);
        }
        let dir = self.key(dir)?;
        let parent = self.origin.stat(&dir)?;
        let (key, stat) = self.origin.make(&dir, name, make)?;
        let inherits = parent.mode & libc::S_ISGID != 0;
        let gid = if inherits { parent.gid } else { caller.gid };
        let is_dir = stat.kind == Kind::Dir;
        let mode = if inherits && is_dir { mode | libc::S_ISGID } else { mode };
        let mode = (stat.kind != Kind::Link).then_some(mode);
        let set = Attributes { mode, owner: Some((caller.uid, gid)), ..Attributes::default() };
        self.origin.set(&key, &set)?;
        let stat = self.origin.stat(&key)?;
        Ok((key, stat))
    }

    fn set(&self, ino: Ino, set: SetAttr) -> Result<Stat> {
        let key = self.key(ino)?;
        if let Some(size) = set.size {
            self.origin.truncate(&key, size)?;
        }
        let before = self.origin.stat(&key)?;
        let owner = (set.uid.is_some() || set.gid.is_some())
            .then(|| (set.uid.unwrap_or(before.uid), set.gid.unwrap_or(before.gid)));
        let time = |time: Option<SetTime>| {
            time.map(|time| match time {
                SetTime::Now => now(),
                SetTime::To(moment) => moment,
            })
        };
        let mode = set.mode.or_else(|| owner.map(|_| before.mode));
        let attributes = Attributes { mode, owner, atime: time(set.atime), mtime: time(set.mtime) };
        if attributes != Attributes::default() {
            self.origin.set(&key, &attributes)?;
        }
        self.origin.stat(&key)
    }

    fn names(&self, ino: Ino) -> Result<Arc<[Listed]>> {
        let key = self.key(ino)?;
        let dots = [&b"."[..], b".."];
        let dots = dots.map(|name| Listed { name: name.into(), ino, kind: Kind::Dir });
        let found = self.origin.list(&key)?.into_iter();
        let shown = found.filter(|listed| !self.is_hidden(ino, &listed.name));
        Ok(dots.into_iter().chain(shown).collect())
    }

    fn answer(&self, caller: Caller, ask: Ask) -> Result<Answered> {
        let origin = &self.origin;
        Ok(match ask {
            Ask::Lookup { dir, name } if self.is_hidden(dir, &name) => return Err(Errno::NOENT),
            Ask::Lookup { dir, name } => {
                let (key, stat) = origin.lookup(&self.key(dir)?, &name)?;
                self.found(key, stat)
            }
            Ask::Forget { ino, count } => {
                let mut state = self.state();
                if let Some(file) = state.files.get_mut(&ino) {
                    file.lookups = file.lookups.saturating_sub(count);
                    if file.lookups == 0 && file.opens == 0 && ino != origin.root().ino {
                        state.files.remove(&ino);
                    }
                }
                Answered::Done
            }
            Ask::GetAttr { ino } => Answered::Attr(origin.stat(&self.key(ino)?)?),
            Ask::SetAttr { ino, set } => Answered::Attr(self.set(ino, set)?),
            Ask::ReadLink { ino } => Answered::Data(origin.read_link(&self.key(ino)?)?),
            Ask::Make { dir, name, make, mode, open } => {
                let (key, stat) = self.make(caller, dir, &name, &make, mode)?;
                let entry = self.found(key, stat);
                match open {
                    None => entry,
                    Some(flags) => Answered::Created(stat, 0, self.opened(stat.ino, flags)),
                }
            }
            Ask::Unlink { dir, name } => {
                let dir = self.key(dir)?;
                self.keep_open(&dir, &name);
                origin.unlink(&dir, &name)?;
                Answered::Done
            }
            Ask::RmDir { dir, name } => {
                let dir = self.key(dir)?;
                self.keep_open(&dir, &name);
                origin.rmdir(&dir, &name)?;
                Answered::Done
            }
            Ask::Rename { to_dir, to_name, .. } if self.is_hidden(to_dir, &to_name) => {
                return Err(Errno::PERM);
            }
            Ask::Rename { dir, name, to_dir, to_name, replace } => {
                let (dir, to_dir) = (self.key(dir)?, self.key(to_dir)?);
                self.keep_open(&to_dir, &to_name);
                origin.rename(&dir, &name, &to_dir, &to_name, replace)?;
                Answered::Done
            }
            Ask::Link { ino, dir, name } => {
                let key = self.key(ino)?;
                origin.link(&key, &self.key(dir)?, &name)?;
                let stat = origin.stat(&key)?;
                self.found(key, stat)
            }
            Ask::Open { ino, flags } => {
                if flags & libc::O_TRUNC != 0 {
                    origin.truncate(&self.key(ino)?, 0)?;
                }
                Answered::Opened(self.opened(ino, flags))
            }
            Ask::Read { ino, offset, len, .. } => {
                Answered::Data(origin.read(&self.key(ino)?, offset, len as usize)?)
            }
            Ask::Write { ino, offset, data, sync, append, .. } => {
                let key = self.key(ino)?;
                let before = origin.stat(&key)?;
                let offset = if append { before.size } else { offset };
                origin.write(&key, offset, &data)?;
                if sync {
                    origin.sync(&key)?;
                }
                if before.mode & 0o6000 != 0 && caller.uid != 0 {
                    let mode = Some(before.mode & !0o6000);
                    origin.set(&key, &Attributes { mode, ..Attributes::default() })?;
                }
                Answered::Written(data.len() as u32)
            }
            Ask::Fsync { ino } => {
                origin.sync(&self.key(ino)?)?;
                Answered::Done
            }
            Ask::Release { ino, handle } => {
                let mut state = self.state();
                state.listings.remove(&handle);
                if let Some(file) = state.files.get_mut(&ino) {
                    file.opens = file.opens.saturating_sub(1);
                    if file.opens == 0 && std::mem::take(&mut file.is_pinned) {
                        origin.unpin(&file.key);
                    }
                }
                Answered::Done
            }
            Ask::OpenDir { ino } => Answered::Opened(self.opened(ino, libc::O_RDONLY)),
            Ask::ReadDir { ino, handle, anew } => {
                let known = self.state().listings.get(&handle).cloned();
                let names = match known {
                    Some(names) if !anew => names,
                    _ => {
                        let names = self.names(ino)?;
                        self.state().listings.insert(handle, names.clone());
                        names
                    }
                };
                Answered::Names(names)
            }
            Ask::ReleaseDir { ino, handle } => {
                return self.answer(caller, Ask::Release { ino, handle });
            }
            Ask::StatFs => Answered::Space(origin.space()?),
            Ask::SetXattr { ino, name, value, mode } => {
                let key = self.key(ino)?;
                let is_there = origin.xattr(&key, &name).is_ok();
                match mode {
                    XattrMode::Create if is_there => return Err(Errno::EXIST),
                    XattrMode::Replace if !is_there => return Err(Errno::NODATA),
                    _ => origin.set_xattr(&key, &name, &value)?,
                }
                Answered::Done
            }
            Ask::GetXattr { ino, name } => Answered::Data(origin.xattr(&self.key(ino)?, &name)?),
            Ask::ListXattr { ino } => Answered::Data(origin.xattrs(&self.key(ino)?)?),
            Ask::RemoveXattr { ino, name } => {
                origin.remove_xattr(&self.key(ino)?, &name)?;
                Answered::Done
            }
            Ask::Fallocate { ino, offset, len, mode } => {
                let key = self.key(ino)?;
                let end = offset.checked_add(len).ok_or(Errno::FBIG)?;
                match mode {
                    0 => {
                        if origin.stat(&key)?.size < end {
                            origin.truncate(&key, end)?;
                        }
                    }
                    PUNCH => origin.punch(&key, offset, len)?,
                    _ => return Err(Errno::OPNOTSUPP),
                }
                Answered::Done
            }
            Ask::Lseek { ino, offset, whence } => {
                Answered::Offset(origin.seek(&self.key(ino)?, offset, whence)?)
            }
            Ask::Flush { .. } => Answered::Done,
        })
    }
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

fn now() -> Moment {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment { seconds: now.as_secs() as i64, nanos: now.subsec_nanos() }
}

impl<O: Origin> Serve for Through<O> {
    fn ask(&self, caller: Caller, ask: Ask, answer: Box<dyn Answer>) {
        answer.give(self.answer(caller, ask));
    }
}
