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

mod calls;

use super::bytes::{Change, Content, WHOLE_BYTES};
use crate::ask::{Errno, Kind, Listed, Make, Moment, Name, Seek, Space, Stat};
use crate::origin::{Attributes, Key, Origin, Result};
use destage_core::Span;
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
    history: Vec<Snapshot>,
    content: BTreeMap<u64, Content>,
    pins: BTreeMap<u64, u32>,
    last_ino: u64,
    /// Numbers of files that are gone, for others: as ext4 does, and CephFS does not. Files are told apart by their handles.
    free: Vec<u64>,
    /// Numbers that were freed since this was asked.
    freed: Vec<u64>,
    effects: u64,
    dies_at: Option<u64>,
    /// This effect fails, and no other.
    fails_at: Option<u64>,
    clock: i64,
    sync_takes: i64,
    is_slow: bool,
    /// What others append to a file, and at which effect.
    appended: Option<(u64, Key, &'static [u8])>,
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
/// Names and attributes at a moment, with [`State::half`] and [`State::gap`].
type Snapshot = (Meta, Option<(u64, Name)>, Option<(u64, Name, u64)>);

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

/// The key by which the file is known within: handles are never given again.
fn within(key: &Key) -> Key {
    let handle = key.handle.clone();
    let ino = handle[..].try_into().map_or(key.ino, u64::from_le_bytes);
    Key { ino, handle }
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
            free: Vec::new(),
            freed: Vec::new(),
            effects: 0,
            dies_at: None,
            fails_at: None,
            clock: 1_000_000_000_000,
            sync_takes: 0,
            is_slow: false,
            appended: None,
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
        state.history = vec![state.snapshot()];
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
        let number = |ino: u64| state.meta.get(&ino).map(|file| file.stat.ino);
        let own = state.meta[&ROOT].names.get(crate::OWN_FOLDER).map(|own| &state.meta[own].names);
        let pools = own.into_iter().flatten().filter(|(name, _)| name.starts_with(b"pool"));
        let staged = pools
            .flat_map(|(_, pool)| state.meta[pool].names.values().filter_map(|&ino| number(ino)));
        staged.filter(|ino| shown.contains(ino)).collect()
    }

    /// So many files and directories are kept of conflicts.
    pub(super) fn kept_aside(&self) -> usize {
        let state = self.state();
        state.meta.values().filter(|file| file.names.contains_key(&b"data"[..])).count()
    }

    /// What is kept of conflicts.
    pub(super) fn kept(&self) -> Vec<Vec<u8>> {
        self.all_of(b"data")
    }

    /// What is said of conflicts.
    pub(super) fn told(&self) -> Vec<String> {
        let told = self.all_of(b"about.json").into_iter();
        told.map(|text| String::from_utf8(text).unwrap()).collect()
    }

    fn all_of(&self, name: &[u8]) -> Vec<Vec<u8>> {
        let state = self.state();
        let found = state.meta.values().filter_map(|file| file.names.get(name));
        found.filter_map(|ino| Some(state.content.get(ino)?.now.clone())).collect()
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

    /// Numbers of files that are gone since this was asked.
    pub(super) fn is_pinned(&self, ino: u64) -> bool {
        self.state().pins.contains_key(&ino)
    }

    pub(super) fn take_freed(&self) -> Vec<u64> {
        std::mem::take(&mut self.state().freed)
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
            (state.meta, state.half, state.gap) = state.history.swap_remove(at);
        }
        let gone = state.meta.iter().filter(|(_, file)| file.stat.nlink == 0);
        let gone: Vec<u64> = gone.map(|(&ino, _)| ino).collect();
        gone.into_iter().for_each(|ino| state.end(ino));
        let used: BTreeSet<u64> = state.meta.values().map(|file| file.stat.ino).collect();
        state.free.retain(|number| !used.contains(number));
        state.history = vec![state.snapshot()];
    }

    /// Time passes at its server, too.
    pub(super) fn pass(&self, span: Span) {
        self.state().clock += span.0 as i64;
    }

    /// Whoever makes something durable while it is slow waits for so long.
    pub(super) fn syncs_take(&self, span: Span) {
        self.state().sync_takes = span.0 as i64;
    }

    pub(super) fn is_slow(&self, is_slow: bool) {
        self.state().is_slow = is_slow;
    }

    /// Others append to a file while so many effects more are under way.
    pub(super) fn others_append(&self, effects: u64, key: &Key, more: &'static [u8]) {
        let mut state = self.state();
        state.appended = Some((state.effects + effects, within(key), more));
    }

    pub(super) fn clock(&self) -> i64 {
        self.state().clock
    }

    pub(super) fn since(&self, began: i64) -> Span {
        Span((self.clock() - began) as u64)
    }

    /// It finds out anew when a file was changed, as the server of CephFS does after an eviction.
    pub(super) fn guess_mtime(&self, key: &Key) {
        let mut state = self.state();
        let file = state.meta.get_mut(&within(key).ino).expect("it is there");
        let changed = file.stat.ctime;
        file.stat.mtime = Moment { seconds: changed.seconds - 1, ..changed };
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
                found.insert(path.clone(), (file.stat.ino, file.stat.kind, content));
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
        let nanos = (self.clock % 1_000_000_000) as u32;
        Moment { seconds: self.clock / 1_000_000_000, nanos }
    }

    /// Whose a name is, as far as the client of it knows.
    fn whose(&mut self, dir: &Key, name: &[u8]) -> Result<u64> {
        let is_forgotten = self.forgets && self.forgotten.contains(&(dir.ino, name.into()));
        let found = self.file(dir)?.names.get(name).copied();
        found.filter(|_| !is_forgotten).ok_or(Errno::NOENT)
    }

    /// Something is about to change.
    fn effect(&mut self) -> Result<()> {
        if self.has_ended {
            return self.refuse();
        }
        if self.dies_at.is_some_and(|at| self.effects >= at) {
            return Err(Errno::IO);
        }
        self.effects += 1;
        if let Some((_, key, more)) = self.appended.take_if(|(at, ..)| *at <= self.effects) {
            self.append(&key, more);
        }
        if self.fails_at.take_if(|at| *at <= self.effects).is_some() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    fn refuse(&self) -> Result<()> {
        self.refused.set(self.refused.get() + 1);
        Err(Errno::SHUTDOWN)
    }

    /// The number of a new file.
    fn number(&mut self, ino: u64) -> u64 {
        let free = if self.in_steps { None } else { self.free.pop() };
        free.unwrap_or(ino)
    }

    fn snapshot(&self) -> Snapshot {
        (self.meta.clone(), self.half.clone(), self.gap.clone())
    }

    /// A file is gone for good.
    fn end(&mut self, ino: u64) {
        if let Some(file) = self.meta.remove(&ino) {
            // One that came back with an earlier moment goes again.
            self.free.retain(|&number| number != file.stat.ino);
            self.free.push(file.stat.ino);
            self.freed.push(file.stat.ino);
        }
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
        self.history.push(self.snapshot());
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

    /// Others append, durably.
    fn append(&mut self, key: &Key, more: &[u8]) {
        let content = self.content.entry(key.ino).or_default();
        content.now.extend(more);
        content.durable.extend(more);
        self.touch(key.ino, true);
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
            self.end(ino);
        } else {
            self.touch(ino, false);
        }
    }
}
