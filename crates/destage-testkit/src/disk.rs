//! A disk in memory, deterministic from its seeds, with a volatile cache.
//!
//! Survivable faults, and therefore injected:
//! - power lost at any operation; the operation itself may or may not have reached the cache;
//! - what was written since the last successful sync of its file: each sector of 512 bytes comes back as durable, or as
//!   any version written since, independently of all others; so for the file's length;
//! - creations, renames and removals since the last successful sync of the directory: each one kept or lost on its own;
//! - a write, sync or any operation that fails once, then works again; after a failed sync the bytes written before it are
//!   lost or kept at random, and no later sync makes them durable;
//! - a durable write: its sectors are durable when it has succeeded; until then, and if it fails, as if written and not synced;
//! - a full disk: writes that extend a file fail.
//!
//! Not survivable, and therefore injected by tests on purpose only ([`SimDisk::edit`]): durable sectors that change.

use destage_journal::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The disk. A clone is the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// Which operations a countdown counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// Writes to files.
    Writes,
    /// Syncs of files and of the directory.
    Syncs,
    /// Every operation that changes something or makes it durable.
    All,
}

#[derive(Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    /// Since the last sync of the directory.
    changes: Vec<Change>,
    /// Handles of earlier lives are dead.
    life: u64,
    counted: Counted,
    fault: Option<(Count, u64, io::ErrorKind)>,
    power_off_at: Option<u64>,
    powered_off: bool,
    bytes_max: Option<u64>,
    unsafe_no_rewrites: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    writes: u64,
    syncs: u64,
    others: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Versions of each sector since it was last durable.
    dirty: BTreeMap<usize, Vec<[u8; SECTOR]>>,
    /// As `dirty`, from before a failed sync: never made durable by a later one, unless written again.
    limbo: BTreeMap<usize, Vec<[u8; SECTOR]>>,
}

const SECTOR: usize = 512;

impl SimDisk {
    /// An empty disk without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Operations so far that `count` counts.
    pub fn operations(&self, count: Count) -> u64 {
        self.state().counted.of(count)
    }

    /// The `n`-th counted operation from now on (from 1) fails with this error, once.
    pub fn fail_after(&self, count: Count, n: u64, error: io::ErrorKind) {
        let mut state = self.state();
        let at = state.counted.of(count) + n;
        state.fault = Some((count, at, error));
    }

    /// Power is lost during the `n`-th operation from now on (from 1): it and all later ones fail until
    /// [`SimDisk::crash`].
    pub fn power_off_after(&self, n: u64) {
        let mut state = self.state();
        state.power_off_at = Some(state.counted.of(Count::All) + n);
    }

    /// Whether the power is off.
    pub fn is_powered_off(&self) -> bool {
        self.state().powered_off
    }

    /// Files together may not exceed this many bytes; `None` for no limit.
    pub fn limit_bytes(&self, bytes_max: Option<u64>) {
        self.state().bytes_max = bytes_max;
    }

    /// Loses power: what was not synced survives in parts, chosen by `seed`. Faults are over, handles are dead.
    pub fn crash(&self, seed: u64) {
        let mut random = Random(seed);
        let mut state = self.state();
        // Some crashes lose everything unsynced, some nothing: the extremes have faults of their own.
        let keep = [0, 100, 50, 50, 20, 80][random.below(6)];
        state.keep_names(keep, &mut random);
        for inode in &mut state.inodes {
            inode.crash(keep, &mut random);
        }
        state.restart();
    }

    /// The process dies, the disk does not: all that was written stays. Handles are dead.
    pub fn kill(&self) {
        self.state().restart();
    }

    /// The cache lets go of sectors, chosen by `seed`, that a failed sync covered and that it takes for clean since: from
    /// now on readers see what reached the medium.
    pub fn evict(&self, seed: u64) {
        let mut random = Random(seed);
        let mut state = self.state();
        state.inodes.iter_mut().for_each(|inode| inode.evict(&mut random));
    }

    /// Negative control: whoever writes the bytes that are there already writes nothing.
    pub fn set_unsafe_no_rewrites(&self, on: bool) {
        self.state().unsafe_no_rewrites = on;
    }

    /// The bytes of a file, as a reader sees them now.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = *state.names.get(name)?;
        Some(state.inodes[inode].now.clone())
    }

    /// Changes or makes a file, durably: damage, or an image that a test has prepared.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let inode = match state.names.get(name) {
            Some(&inode) => inode,
            None => {
                state.inodes.push(Inode::default());
                let inode = state.inodes.len() - 1;
                state.names.insert(name.to_owned(), inode);
                state.durable_names.insert(name.to_owned(), inode);
                inode
            }
        };
        let mut bytes = state.inodes[inode].now.clone();
        edit(&mut bytes);
        state.inodes[inode] = Inode { durable: bytes.clone(), now: bytes, ..Inode::default() };
    }

    /// A disk of its own with the same files, all of them durable.
    pub fn fork(&self) -> Self {
        let fork = Self::new();
        for name in self.names() {
            let bytes = self.bytes(&name).unwrap_or_default();
            fork.edit(&name, |b| *b = bytes);
        }
        fork
    }

    /// The names of all files, sorted.
    pub fn names(&self) -> Vec<String> {
        self.state().names.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn restart(&mut self) {
        self.life += 1;
        self.fault = None;
        self.power_off_at = None;
        self.powered_off = false;
    }

    fn keep_names(&mut self, keep: usize, random: &mut Random) {
        let mut names = std::mem::take(&mut self.durable_names);
        for change in std::mem::take(&mut self.changes) {
            if random.below(100) >= keep {
                continue;
            }
            match change {
                Change::Create(name, inode) => {
                    names.insert(name, inode);
                }
                Change::Rename(from, to) => {
                    if let Some(inode) = names.remove(&from) {
                        names.insert(to, inode);
                    }
                }
                Change::Remove(name) => {
                    names.remove(&name);
                }
            }
        }
        self.names.clone_from(&names);
        self.durable_names = names;
    }

    /// Counts an operation. `Ok(true)`: carry it out, then fail, since the power goes during it.
    fn enter(&mut self, life: u64, count: Count, random_bit: bool) -> io::Result<bool> {
        if life != self.life || self.powered_off {
            return Err(io::Error::other("the power is off"));
        }
        match count {
            Count::Writes => self.counted.writes += 1,
            Count::Syncs => self.counted.syncs += 1,
            Count::All => self.counted.others += 1,
        }
        if self.power_off_at.is_some_and(|at| self.counted.of(Count::All) >= at) {
            self.powered_off = true;
            if random_bit && count != Count::Syncs {
                return Ok(true);
            }
            return Err(io::Error::other("the power went off"));
        }
        if let Some((counted, at, error)) = self.fault
            && (counted == count || counted == Count::All)
            && self.counted.of(counted) >= at
        {
            self.fault = None;
            return Err(io::Error::new(error, "injected"));
        }
        Ok(false)
    }

    fn total_bytes(&self) -> u64 {
        self.names.values().map(|&i| self.inodes[i].now.len() as u64).sum()
    }
}

impl Counted {
    fn of(self, count: Count) -> u64 {
        match count {
            Count::Writes => self.writes,
            Count::Syncs => self.syncs,
            Count::All => self.writes + self.syncs + self.others,
        }
    }
}

impl Inode {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.now.len() < end {
            self.now.resize(end, 0);
        }
        self.now[offset..end].copy_from_slice(bytes);
        if bytes.is_empty() {
            return;
        }
        for sector in offset / SECTOR..=(end - 1) / SECTOR {
            let version = sector_of(&self.now, sector);
            self.dirty.entry(sector).or_default().push(version);
        }
    }

    fn sync(&mut self) {
        self.durable.resize(self.now.len(), 0);
        for (sector, _) in std::mem::take(&mut self.dirty) {
            let from = sector * SECTOR;
            let to = (from + SECTOR).min(self.now.len());
            if from < to {
                self.durable[from..to].copy_from_slice(&self.now[from..to]);
            }
            self.limbo.remove(&sector);
        }
    }

    /// Makes durable what these sectors hold.
    fn sync_sectors(&mut self, offset: usize, len: usize) {
        let mut others = std::mem::take(&mut self.dirty);
        let end = offset + len;
        let (first, last) = (offset / SECTOR, end.div_ceil(SECTOR));
        let mut these = others.split_off(&first);
        others.append(&mut these.split_off(&last));
        self.dirty = these;
        let (now, durable) = (self.now.len(), self.durable.len());
        self.sync();
        // The length was durable, or others' to make so.
        self.durable.truncate(durable.max(end.min(now)));
        self.dirty = others;
    }

    fn fail_sync(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            self.limbo.entry(sector).or_default().extend(versions);
        }
    }

    fn holds(&self, offset: usize, bytes: &[u8]) -> bool {
        self.now.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
    }

    fn evict(&mut self, random: &mut Random) {
        for (sector, versions) in std::mem::take(&mut self.limbo) {
            let is_clean = !self.dirty.contains_key(&sector);
            let from = sector * SECTOR;
            let to = (from + SECTOR).min(self.durable.len());
            if !is_clean || to <= from || random.below(2) == 0 {
                self.limbo.insert(sector, versions);
                continue;
            }
            // Any of the versions may have reached the medium before the sync failed, or none.
            if let Some(version) = versions.get(random.below(versions.len() + 1)) {
                self.durable[from..to].copy_from_slice(&version[..to - from]);
            }
            self.now[from..to].copy_from_slice(&self.durable[from..to]);
        }
    }

    fn crash(&mut self, keep: usize, random: &mut Random) {
        let mut bytes = std::mem::take(&mut self.durable);
        if random.below(100) < keep {
            bytes.resize(self.now.len(), 0);
        }
        for sectors in [std::mem::take(&mut self.limbo), std::mem::take(&mut self.dirty)] {
            for (sector, versions) in sectors {
                let from = sector * SECTOR;
                let to = (from + SECTOR).min(bytes.len());
                if from < to && random.below(100) < keep {
                    // Usually the newest, sometimes one that was overwritten in the cache.
                    let pick = if random.below(4) > 0 {
                        versions.len() - 1
                    } else {
                        random.below(versions.len())
                    };
                    bytes[from..to].copy_from_slice(&versions[pick][..to - from]);
                }
            }
        }
        self.now.clone_from(&bytes);
        self.durable = bytes;
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> [u8; SECTOR] {
    let from = sector * SECTOR;
    let to = (from + SECTOR).min(bytes.len());
    let mut out = [0; SECTOR];
    out[..to - from].copy_from_slice(&bytes[from..to]);
    out
}

impl Disk for SimDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        if state.powered_off {
            return Err(io::Error::other("the power is off"));
        }
        Ok(state.names.keys().cloned().collect())
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        let life = state.life;
        let inode = match state.names.get(name) {
            Some(&inode) => inode,
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            None => {
                let late = state.enter(life, Count::All, true)?;
                let inode = state.inodes.len();
                state.inodes.push(Inode::default());
                state.names.insert(name.to_owned(), inode);
                state.changes.push(Change::Create(name.to_owned(), inode));
                after(late)?;
                inode
            }
        };
        if state.powered_off {
            return Err(io::Error::other("the power is off"));
        }
        Ok(Box::new(SimFile { disk: self.clone(), inode, life }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let late = state.enter(life, Count::All, true)?;
        let inode = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), inode);
        state.changes.push(Change::Rename(from.to_owned(), to.to_owned()));
        after(late)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        let late = state.enter(life, Count::All, true)?;
        state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.changes.push(Change::Remove(name.to_owned()));
        after(late)
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state();
        let life = state.life;
        state.enter(life, Count::Syncs, false)?;
        state.changes.clear();
        state.durable_names = state.names.clone();
        Ok(())
    }
}

/// Ends an operation during which the power went.
fn after(late: bool) -> io::Result<()> {
    if late { Err(io::Error::other("the power went off")) } else { Ok(()) }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: usize,
    life: u64,
}

impl DiskFile for SimFile {
    fn again(&self) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(Self { disk: self.disk.clone(), inode: self.inode, life: self.life }))
    }

    fn direct(&self) -> io::Result<Box<dyn DiskFile>> {
        self.again()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.state().inodes[self.inode].now.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.state();
        if state.powered_off || state.life != self.life {
            return Err(io::Error::other("the power is off"));
        }
        let bytes = &state.inodes[self.inode].now;
        let from = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let n = buf.len().min(bytes.len() - from);
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }

    /// A disk in memory never makes anyone wait.
    fn read_now(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        Ok(self.read_at(offset, buf)? == buf.len())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.state();
        let late = state.enter(self.life, Count::Writes, true)?;
        let end = offset + bytes.len() as u64;
        let grows = end.saturating_sub(state.inodes[self.inode].now.len() as u64);
        if state.bytes_max.is_some_and(|max| grows > 0 && state.total_bytes() + grows > max) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if state.unsafe_no_rewrites && state.inodes[self.inode].holds(offset as usize, bytes) {
            return after(late);
        }
        state.inodes[self.inode].write(offset as usize, bytes);
        after(late)
    }

    fn write_durably(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(SECTOR as u64) && bytes.len().is_multiple_of(SECTOR));
        assert!(
            bytes.as_ptr().align_offset(4096) == 0,
            "a durable write begins at a page of memory"
        );
        self.write_at(offset, bytes)?;
        let mut state = self.disk.state();
        state.enter(self.life, Count::Syncs, false)?;
        let (from, len) = (offset as usize, bytes.len());
        state.inodes[self.inode].sync_sectors(from, len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.disk.state();
        let entered = state.enter(self.life, Count::Syncs, false);
        let inode = self.inode;
        match entered {
            Ok(_) => state.inodes[inode].sync(),
            Err(_) => state.inodes[inode].fail_sync(),
        }
        entered.map(drop)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut state = self.disk.state();
        let late = state.enter(self.life, Count::Writes, true)?;
        let inode = &mut state.inodes[self.inode];
        let old = inode.now.len();
        inode.now.resize(bytes as usize, 0);
        if old < bytes as usize {
            let zeros = vec![0; bytes as usize - old];
            inode.write(old, &zeros);
        }
        after(late)
    }
}

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}
