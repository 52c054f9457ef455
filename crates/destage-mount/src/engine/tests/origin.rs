//! A shared file system in memory, with a volatile cache, that can die at any effect.
//!
//! Injected faults:
//! - the host dies: of what was written to a file since it was last made durable, each truncation and each write within each
//!   16 bytes is kept or lost on its own, so that a later one may leave zeros where an earlier one was lost; names and
//!   attributes are kept, as a server of names has them;
//! - the origin dies as well: names and attributes go back to a moment since they were last made durable;
//! - one effect fails, or from one on everything does;
//! - there is no room for more than so many blocks of content;
//! - others change names and content beneath.

use super::bytes::{Change, Content, WHOLE_BYTES};
use crate::ask::{Errno, Kind, Listed, Make, Moment, Name, Seek, Space, Stat};
use crate::origin::{Attributes, Key, Origin, Result};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

/// The file system: see the module.
#[derive(Debug)]
pub(super) struct SimOrigin {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    meta: Meta,
    /// Names and attributes after each change since they were last durable, the durable ones first.
    history: Vec<Meta>,
    content: BTreeMap<u64, Content>,
    pins: BTreeMap<u64, u32>,
    last_ino: u64,
    effects: u64,
    dies_at: Option<u64>,
    /// This effect fails, and no other.
    fails_at: Option<u64>,
    clock: i64,
    /// Blocks in all, if they are limited.
    room: Option<u64>,
    /// Most bytes of a file.
    size_max: u64,
    in_steps: bool,
    /// The old name, in its folder, of a file that was renamed in steps and has its new name already.
    half: Option<(u64, Name)>,
    /// A name, in its folder, that another file is about to take, and whose it was: it is nobody's for a moment.
    gap: Option<(u64, Name, u64)>,
    /// Names that the host's client of it has forgotten, although they are there; only what carries a batch out meets that.
    forgotten: BTreeSet<(u64, Name)>,
    forgets: bool,
    /// Its own mount has ended.
    has_ended: bool,
    /// Changes and questions that were refused since.
    refused: Cell<u64>,
}

type Meta = BTreeMap<u64, File>;

#[derive(Clone, Debug)]
struct File {
    stat: Stat,
    names: BTreeMap<Name, u64>,
    xattrs: BTreeMap<Name, Box<[u8]>>,
    target: Box<[u8]>,
}

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    /// The process.
    Process,
    /// The host with its cache of the origin.
    Host,
    /// The origin, too.
    All,
}

const ROOT: u64 = 10;
const BLOCK_BYTES: u64 = 4096;

fn key(ino: u64) -> Key {
    Key { ino, handle: ino.to_le_bytes().into() }
}

impl SimOrigin {
    /// In steps: a file is renamed without replacing as where there is no such operation.
    pub(super) fn new(in_steps: bool) -> Self {
        let mut state = State {
            meta: Meta::new(),
            history: Vec::new(),
            content: BTreeMap::new(),
            pins: BTreeMap::new(),
            last_ino: ROOT,
            effects: 0,
            dies_at: None,
            fails_at: None,
            clock: 1_000,
            room: None,
            size_max: u64::MAX,
            in_steps,
            half: None,
            gap: None,
            forgotten: BTreeSet::new(),
            forgets: false,
            has_ended: false,
            refused: Cell::new(0),
        };
        let stat = state.stat(ROOT, Kind::Dir, 0o755);
        state.meta.insert(ROOT, File::new(stat));
        state.history = vec![state.meta.clone()];
        Self { state: Mutex::new(state) }
    }

    /// Whether an origin that renames in steps forgets the other names of a file one of whose names a rename has replaced, as
    /// clients of CephFS may.
    pub(super) fn forget_names(&self, forgets: bool) {
        let mut state = self.state();
        state.forgets = forgets && state.in_steps;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic before")
    }

    /// The effect after so many fails, and everything from then on.
    pub(super) fn die_after(&self, effects: u64) {
        let mut state = self.state();
        state.dies_at = Some(state.effects + effects);
    }

    /// From now on it has so many blocks.
    pub(super) fn limit(&self, blocks: u64) {
        self.state().room = Some(blocks);
    }

    /// No file is longer.
    pub(super) fn limit_size(&self, bytes: u64) {
        self.state().size_max = bytes;
    }

    /// Files that have a name of programs and still the one under which they were made in advance.
    pub(super) fn named_twice(&self) -> Vec<u64> {
        let shown: Vec<u64> = self.tree().values().map(|&(ino, ..)| ino).collect();
        let state = self.state();
        let own = state.meta[&ROOT].names.get(crate::OWN_FOLDER).map(|own| &state.meta[own].names);
        let pool = own.and_then(|own| own.get(&b"pool"[..])).map(|pool| &state.meta[pool].names);
        let staged = pool.into_iter().flat_map(|pool| pool.values().copied());
        staged.filter(|ino| shown.contains(ino)).collect()
    }

    /// What is kept of conflicts.
    pub(super) fn kept(&self) -> Vec<Vec<u8>> {
        let state = self.state();
        let kept = state.meta.values().filter_map(|file| file.names.get(&b"data"[..]));
        kept.map(|ino| state.content[ino].now.clone()).collect()
    }

    /// The effect after so many fails, as one does that finds no room.
    pub(super) fn fail_after(&self, effects: u64) {
        let mut state = self.state();
        state.fails_at = Some(state.effects + effects);
    }

    /// Its own mount ends.
    pub(super) fn end_mount(&self) {
        self.state().has_ended = true;
    }

    /// Changes and questions that were refused since.
    pub(super) fn refused(&self) -> u64 {
        self.state().refused.get()
    }

    pub(super) fn is_dead(&self) -> bool {
        let state = self.state();
        state.dies_at.is_some_and(|at| state.effects >= at)
    }

    /// It is there again, after a loss of what was volatile.
    pub(super) fn crash(&self, death: Death, random: &mut impl FnMut(usize) -> usize) {
        let mut state = self.state();
        (state.dies_at, state.fails_at, state.has_ended) = (None, None, false);
        state.pins.clear();
        if death != Death::Process {
            state.forgotten.clear();
            for content in state.content.values_mut() {
                let mut bytes = content.durable.clone();
                let keeps_all = random(3) == 0;
                for change in std::mem::take(&mut content.since) {
                    if keeps_all || random(2) == 0 {
                        change.apply(&mut bytes);
                    }
                }
                content.now.clone_from(&bytes);
                content.durable = bytes;
            }
        }
        if death == Death::All {
            let at = random(state.history.len());
            state.meta = state.history.swap_remove(at);
        }
        state.meta.retain(|_, file| file.stat.nlink > 0);
        state.history = vec![state.meta.clone()];
    }

    /// What is there: each name with its file's number, what it is and what it holds. Without this front end's own folder.
    pub(super) fn tree(&self) -> BTreeMap<String, (u64, Kind, Vec<u8>)> {
        self.tree_without(None)
    }

    /// The same without the old name of a file that is being renamed in steps.
    pub(super) fn tree_of_whole_renames(&self) -> BTreeMap<String, (u64, Kind, Vec<u8>)> {
        let half = self.state().half.clone();
        let gap = self.state().gap.clone();
        if let Some((dir, name, ino)) = &gap
            && let Some(file) = self.state().meta.get_mut(dir)
        {
            file.names.insert(name.clone(), *ino);
        }
        let tree = self.tree_without(half.as_ref());
        if let Some((dir, name, _)) = &gap
            && let Some(file) = self.state().meta.get_mut(dir)
        {
            file.names.remove(name);
        }
        tree
    }

    fn tree_without(&self, half: Option<&(u64, Name)>) -> BTreeMap<String, (u64, Kind, Vec<u8>)> {
        let state = self.state();
        let mut found = BTreeMap::new();
        let mut dirs = vec![(String::new(), ROOT)];
        while let Some((path, dir)) = dirs.pop() {
            for (name, ino) in &state.meta[&dir].names {
                let is_half = half.is_some_and(|(at, half)| *at == dir && half == name);
                if is_half || dir == ROOT && **name == *crate::OWN_FOLDER {
                    continue;
                }
                let path = format!("{path}/{}", String::from_utf8_lossy(name));
                let Some(file) = state.meta.get(ino) else { continue };
                let content = state.content.get(ino).map_or_else(Vec::new, |c| c.now.clone());
                found.insert(path.clone(), (*ino, file.stat.kind, content));
                if file.stat.kind == Kind::Dir {
                    dirs.push((path, *ino));
                }
            }
        }
        found
    }
}

impl File {
    fn new(stat: Stat) -> Self {
        Self { stat, names: BTreeMap::new(), xattrs: BTreeMap::new(), target: Box::default() }
    }
}

impl State {
    fn stat(&mut self, ino: u64, kind: Kind, mode: u32) -> Stat {
        let now = self.tick();
        Stat {
            ino,
            kind,
            mode,
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
        }
    }

    fn tick(&mut self) -> Moment {
        self.clock += 1;
        Moment { seconds: self.clock, nanos: 0 }
    }

    /// Something is about to change.
    /// Whose a name is, as far as the client of it knows.
    fn whose(&mut self, dir: &Key, name: &[u8]) -> Result<u64> {
        let is_forgotten = self.forgets && self.forgotten.contains(&(dir.ino, name.into()));
        let found = self.file(dir)?.names.get(name).copied();
        found.filter(|_| !is_forgotten).ok_or(Errno::NOENT)
    }

    fn effect(&mut self) -> Result<()> {
        if self.has_ended {
            return self.refuse();
        }
        if self.dies_at.is_some_and(|at| self.effects >= at) {
            return Err(Errno::IO);
        }
        self.effects += 1;
        if self.fails_at.take_if(|at| *at <= self.effects).is_some() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    fn refuse(&self) -> Result<()> {
        self.refused.set(self.refused.get() + 1);
        Err(Errno::SHUTDOWN)
    }

    fn look(&self) -> Result<()> {
        if self.has_ended {
            return self.refuse();
        }
        let is_dead = self.dies_at.is_some_and(|at| self.effects >= at);
        if is_dead { Err(Errno::IO) } else { Ok(()) }
    }

    fn file(&mut self, key: &Key) -> Result<&mut File> {
        let is_kept = self.pins.contains_key(&key.ino);
        self.meta
            .get_mut(&key.ino)
            .filter(|file| file.stat.nlink > 0 || is_kept)
            .ok_or(Errno::STALE)
    }

    fn shown(&mut self, key: &Key) -> Result<Stat> {
        let size = self.content.get(&key.ino).map_or(0, |content| content.now.len() as u64);
        let file = self.file(key)?;
        Ok(Stat { size, ..file.stat })
    }

    fn changed(&mut self) {
        self.history.push(self.meta.clone());
    }

    fn touch(&mut self, ino: u64, content: bool) {
        let now = self.tick();
        if let Some(file) = self.meta.get_mut(&ino) {
            file.stat.ctime = now;
            if content {
                file.stat.mtime = now;
            }
        }
    }

    fn change(&mut self, key: &Key, change: Change) -> Result<()> {
        self.effect()?;
        self.file(key)?;
        let end = match &change {
            Change::Write(at, data) => at + data.len() as u64,
            Change::Size(size) => *size,
        };
        if end > self.size_max {
            return Err(Errno::FBIG);
        }
        let content = self.content.entry(key.ino).or_default();
        let before = content.now.clone();
        change.apply(&mut content.now);
        if self.room.is_some_and(|room| self.used() > room) {
            self.content.entry(key.ino).or_default().now = before;
            return Err(Errno::NOSPC);
        }
        let parts = change.in_parts();
        self.content.entry(key.ino).or_default().since.extend(parts);
        self.touch(key.ino, true);
        Ok(())
    }

    /// Blocks of all files that are there.
    fn used(&self) -> u64 {
        let there = self.content.iter().filter(|(ino, _)| self.meta.contains_key(ino));
        there.map(|(_, content)| (content.now.len() as u64).div_ceil(BLOCK_BYTES)).sum()
    }

    /// All names of a file are forgotten but this one.
    fn forget_others(&mut self, ino: u64, but: &Key, but_name: &[u8]) {
        let names = self
            .meta
            .iter()
            .flat_map(|(dir, file)| file.names.iter().map(move |name| (*dir, name)));
        let others = names
            .filter(|&(dir, (name, whose))| *whose == ino && (dir, &**name) != (but.ino, but_name));
        self.forgotten.extend(others.map(|(dir, (name, _))| (dir, name.clone())));
    }

    fn lose_name(&mut self, ino: u64) {
        let pinned = self.pins.contains_key(&ino);
        let Some(file) = self.meta.get_mut(&ino) else { return };
        let is_dir = file.stat.kind == Kind::Dir;
        file.stat.nlink = if is_dir { 0 } else { file.stat.nlink - 1 };
        if file.stat.nlink == 0 && !pinned {
            self.meta.remove(&ino);
        } else {
            self.touch(ino, false);
        }
    }
}

impl Origin for SimOrigin {
    fn root(&self) -> Key {
        key(ROOT)
    }

    fn lookup(&self, dir: &Key, name: &[u8]) -> Result<(Key, Stat)> {
        let mut state = self.state();
        state.look()?;
        let key = key(state.whose(dir, name)?);
        let stat = state.shown(&key)?;
        Ok((key, stat))
    }

    fn stat(&self, file: &Key) -> Result<Stat> {
        let mut state = self.state();
        state.look()?;
        state.shown(file)
    }

    fn list(&self, dir: &Key) -> Result<Vec<Listed>> {
        let mut state = self.state();
        state.look()?;
        let names = state.file(dir)?.names.clone();
        let kind = |ino: u64| state.meta.get(&ino).map_or(Kind::File, |file| file.stat.kind);
        Ok(names.into_iter().map(|(name, ino)| Listed { name, ino, kind: kind(ino) }).collect())
    }

    fn read(&self, file: &Key, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut state = self.state();
        state.look()?;
        state.file(file)?;
        let empty = Vec::new();
        let bytes = state.content.get(&file.ino).map_or(&empty, |content| &content.now);
        let from = bytes.len().min(offset as usize);
        Ok(bytes[from..bytes.len().min(from + len)].to_vec())
    }

    fn read_link(&self, file: &Key) -> Result<Vec<u8>> {
        Ok(self.state().file(file)?.target.to_vec())
    }

    fn seek(&self, _: &Key, offset: u64, _: Seek) -> Result<u64> {
        Ok(offset)
    }

    fn space(&self) -> Result<Space> {
        let state = self.state();
        let Some(room) = state.room else { return Ok(Space::default()) };
        let available = room.saturating_sub(state.used());
        Ok(Space { blocks: room, available, block_bytes: BLOCK_BYTES as u32, ..Space::default() })
    }

    fn xattr(&self, file: &Key, name: &[u8]) -> Result<Vec<u8>> {
        let mut state = self.state();
        state.file(file)?.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    fn xattrs(&self, file: &Key) -> Result<Vec<u8>> {
        let mut state = self.state();
        let names = state.file(file)?.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    fn make(&self, dir: &Key, name: &[u8], make: &Make) -> Result<(Key, Stat)> {
        let mut state = self.state();
        state.effect()?;
        if state.file(dir)?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        state.last_ino += 1;
        let ino = state.last_ino;
        let stat = state.stat(ino, make.kind(), 0o600);
        let mut file = File::new(stat);
        if let Make::Link(target) = make {
            file.target.clone_from(target);
        }
        state.meta.insert(ino, file);
        state.file(dir)?.names.insert(name.into(), ino);
        state.forgotten.remove(&(dir.ino, name.into()));
        state.touch(dir.ino, true);
        state.changed();
        Ok((key(ino), stat))
    }

    fn write(&self, file: &Key, offset: u64, data: &[u8]) -> Result<()> {
        self.state().change(file, Change::Write(offset, data.to_vec()))
    }

    fn truncate(&self, file: &Key, size: u64) -> Result<()> {
        self.state().change(file, Change::Size(size))
    }

    fn punch(&self, file: &Key, offset: u64, len: u64) -> Result<()> {
        self.state().change(file, Change::Write(offset, vec![0; len as usize]))
    }

    fn sync(&self, file: &Key) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        state.file(file)?;
        if let Some(content) = state.content.get_mut(&file.ino) {
            content.durable.clone_from(&content.now);
            content.since.clear();
        }
        state.history = vec![state.meta.clone()];
        Ok(())
    }

    fn whole_bytes(&self) -> u64 {
        WHOLE_BYTES
    }

    fn syncs_all(&self) -> bool {
        true
    }

    fn sync_all(&self) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        for content in state.content.values_mut() {
            content.durable.clone_from(&content.now);
            content.since.clear();
        }
        state.history = vec![state.meta.clone()];
        Ok(())
    }

    fn set(&self, file: &Key, attributes: &Attributes) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        let stat = &mut state.file(file)?.stat;
        if let Some((uid, gid)) = attributes.owner {
            (stat.uid, stat.gid) = (uid, gid);
        }
        stat.mode = attributes.mode.unwrap_or(stat.mode);
        stat.atime = attributes.atime.unwrap_or(stat.atime);
        stat.mtime = attributes.mtime.unwrap_or(stat.mtime);
        state.touch(file.ino, false);
        state.changed();
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
        let mut state = self.state();
        let ino = state.whose(dir, name)?;
        let is_dir = state.meta.get(&ino).is_some_and(|file| file.stat.kind == Kind::Dir);
        if state.in_steps && !replace && !is_dir {
            let is_done = state.file(to_dir)?.names.get(to_name) == Some(&ino);
            drop(state);
            if !is_done {
                self.link(&key(ino), to_dir, to_name)?;
            }
            self.state().half = Some((dir.ino, name.into()));
            return self.unlink(dir, name);
        }
        let replaced = state.file(to_dir)?.names.get(to_name).copied();
        let replaced = replaced.filter(|there| replace && state.in_steps && *there != ino);
        if let Some(there) = replaced.filter(|there| state.meta[there].stat.nlink > 1 && !is_dir) {
            drop(state);
            self.unlink(to_dir, to_name)?;
            state = self.state();
            state.gap = Some((to_dir.ino, to_name.into(), there));
            state.forget_others(there, to_dir, to_name);
        }
        state.effect()?;
        let there = state.file(to_dir)?.names.get(to_name).copied();
        if there == Some(ino) {
            return Ok(());
        }
        if let Some(there) = there {
            if !replace {
                return Err(Errno::EXIST);
            }
            if state.meta.get(&there).is_some_and(|file| !file.names.is_empty()) {
                return Err(Errno::NOTEMPTY);
            }
            state.lose_name(there);
            state.forget_others(there, to_dir, to_name);
        }
        state.file(dir)?.names.remove(name);
        state.file(to_dir)?.names.insert(to_name.into(), ino);
        state.forgotten.remove(&(to_dir.ino, to_name.into()));
        state.gap.take_if(|(at, gap, _)| *at == to_dir.ino && **gap == *to_name);
        state.touch(ino, false);
        state.touch(dir.ino, true);
        state.touch(to_dir.ino, true);
        state.changed();
        Ok(())
    }

    fn link(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        if state.file(dir)?.names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        state.file(file)?.stat.nlink += 1;
        state.file(dir)?.names.insert(name.into(), file.ino);
        state.forgotten.remove(&(dir.ino, name.into()));
        state.gap.take_if(|(at, gap, _)| *at == dir.ino && **gap == *name);
        state.touch(file.ino, false);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn has_name(&self, file: &Key, dir: &Key, name: &[u8]) -> Result<bool> {
        let mut state = self.state();
        state.look()?;
        state.forgotten.remove(&(dir.ino, name.into()));
        Ok(state.whose(dir, name) == Ok(file.ino))
    }

    fn unlink(&self, dir: &Key, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        let ino = state.whose(dir, name)?;
        state.file(dir)?.names.remove(name);
        state.half.take_if(|(at, half)| *at == dir.ino && **half == *name);
        state.lose_name(ino);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn rmdir(&self, dir: &Key, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        let ino = *state.file(dir)?.names.get(name).ok_or(Errno::NOENT)?;
        if state.meta.get(&ino).is_some_and(|file| !file.names.is_empty()) {
            return Err(Errno::NOTEMPTY);
        }
        state.file(dir)?.names.remove(name);
        state.lose_name(ino);
        state.touch(dir.ino, true);
        state.changed();
        Ok(())
    }

    fn set_xattr(&self, file: &Key, name: &[u8], value: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        state.file(file)?.xattrs.insert(name.into(), value.into());
        state.touch(file.ino, false);
        state.changed();
        Ok(())
    }

    fn remove_xattr(&self, file: &Key, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        state.effect()?;
        state.file(file)?.xattrs.remove(name).ok_or(Errno::NODATA)?;
        state.touch(file.ino, false);
        state.changed();
        Ok(())
    }

    fn pin(&self, file: &Key) -> Result<()> {
        let mut state = self.state();
        state.file(file)?;
        *state.pins.entry(file.ino).or_insert(0) += 1;
        Ok(())
    }

    fn unpin(&self, file: &Key) {
        let mut state = self.state();
        state.pins.remove(&file.ino);
        if state.meta.get(&file.ino).is_some_and(|file| file.stat.nlink == 0) {
            state.meta.remove(&file.ino);
        }
    }
}
