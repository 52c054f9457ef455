//! The log region as the journal sees it: a flat directory of files, each in an extent of its own.
//!
//! Names and lengths live in memory and, durably, in a table with two copies. The table is written to the older copy when
//! the directory is synced, or a file whose length has changed. After a crash the newest copy that holds is in force.

mod table;

pub(super) use table::Table;

use super::CacheError;
use super::geometry::Geometry;
use super::medium::Medium;
use destage_journal::{Disk, DiskFile};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::Entry;

/// The log region. A clone is the same region.
///
/// Stays within what [`Disk`] promises. A file is at most one extent long ([`io::ErrorKind::FileTooLarge`] beyond); a
/// creation without a free extent fails with [`io::ErrorKind::StorageFull`]. A handle to a removed file stays good: its
/// extent is used again when the removal is durable and the last handle gone. One thread at a time changes a file's length.
#[derive(Clone, Debug)]
pub struct RegionDisk {
    region: Arc<Region>,
}

#[derive(Debug)]
struct Region {
    medium: Medium,
    geometry: Geometry,
    seed: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    names: BTreeMap<String, Arc<Node>>,
    free: Vec<u32>,
    /// Removed files whose extents are not free yet.
    removed: Vec<Removed>,
    generation: u64,
}

#[derive(Debug)]
struct Removed {
    node: Arc<Node>,
    /// No durable table lists it.
    durable: bool,
}

/// A file, whatever its name.
#[derive(Debug)]
struct Node {
    extent: u32,
    len: AtomicU64,
    /// As the durable table says.
    durable_len: AtomicU64,
    /// Held while the length grows.
    growing: Mutex<()>,
}

impl RegionDisk {
    /// Writes both tables of a new cache, empty.
    pub(super) fn format(
        medium: &Medium,
        geometry: &Geometry,
        seed: u32,
    ) -> Result<(), CacheError> {
        for generation in 1..=2 {
            let table = Table { generation, entries: Vec::new() };
            let written = table.write(medium, geometry, seed);
            written.map_err(CacheError::io("write the log's name table"))?;
        }
        Ok(())
    }

    pub(super) fn open(medium: Medium, geometry: Geometry, seed: u32) -> Result<Self, CacheError> {
        let table = Table::newest(&medium, &geometry, seed)?;
        let mut free: Vec<u32> = (0..geometry.extents).rev().collect();
        let mut names = BTreeMap::new();
        for Entry { name, extent, len } in table.entries {
            free.retain(|&e| e != extent);
            names.insert(name, Arc::new(Node::new(extent, len)));
        }
        let state = State { names, free, removed: Vec::new(), generation: table.generation };
        let region = Region { medium, geometry, seed, state: Mutex::new(state) };
        Ok(Self { region: Arc::new(region) })
    }

    /// Writes the name table in force once more, not synced. Before anything has changed.
    pub(super) fn write_again(&self) -> Result<(), CacheError> {
        let (region, state) = (&*self.region, self.region.state());
        let table = Table { generation: state.generation, entries: state.entries().0 };
        let written = table.write(&region.medium, &region.geometry, region.seed);
        written.map_err(CacheError::io("write the log's name table again"))
    }

    /// Extents without a file.
    pub fn free_extents(&self) -> u32 {
        let state = self.region.state();
        (state.free.len() + state.removed.len()) as u32
    }
}

impl Node {
    fn new(extent: u32, len: u64) -> Self {
        Self {
            extent,
            len: AtomicU64::new(len),
            durable_len: AtomicU64::new(len),
            growing: Mutex::new(()),
        }
    }
}

impl Disk for RegionDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.region.state().names.keys().cloned().collect())
    }

    fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.region.state();
        let node = match state.names.get(name) {
            Some(node) => node.clone(),
            None if !create => return Err(io::ErrorKind::NotFound.into()),
            None => {
                table::check_name(name)?;
                let extent = self.region.allocate(&mut state)?;
                let node = Arc::new(Node::new(extent, 0));
                state.names.insert(name.to_owned(), node.clone());
                node
            }
        };
        Ok(Box::new(RegionFile { region: self.region.clone(), node }))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        Ok(self.region.state().names.contains_key(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        table::check_name(to)?;
        let mut state = self.region.state();
        let node = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        if let Some(replaced) = state.names.insert(to.to_owned(), node) {
            state.removed.push(Removed { node: replaced, durable: false });
        }
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.region.state();
        let node = state.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        state.removed.push(Removed { node, durable: false });
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.region.commit(&mut self.region.state())
    }
}

impl Region {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An extent for a new file. One that was freed is not given away before its removal is durable: until then a crash
    /// brings the removed file back, with its bytes.
    fn allocate(&self, state: &mut State) -> io::Result<u32> {
        if let Some(extent) = state.take_free() {
            return Ok(extent);
        }
        if state.removed.iter().any(|removed| !removed.durable) {
            self.commit(state)?;
        }
        state.take_free().ok_or_else(|| {
            io::Error::new(io::ErrorKind::StorageFull, "the cache's log has no free segment")
        })
    }

    /// Makes names and lengths durable as they are now.
    fn commit(&self, state: &mut State) -> io::Result<()> {
        let (entries, nodes) = state.entries();
        // A length becomes durable after the bytes that it covers: what an extent held before must not show in its file.
        let grows = |(entry, node): (&Entry, &Arc<Node>)| {
            entry.len > node.durable_len.load(Ordering::Acquire)
        };
        if entries.iter().zip(&nodes).any(grows) {
            self.sync_before_switch()?;
        }
        let generation = state.generation + 1;
        let table = Table { generation, entries };
        table.write(&self.medium, &self.geometry, self.seed)?;
        self.medium.sync()?;
        state.generation = generation;
        for (entry, node) in table.entries.iter().zip(&nodes) {
            node.durable_len.store(entry.len, Ordering::Release);
        }
        for removed in &mut state.removed {
            removed.durable = true;
        }
        Ok(())
    }

    #[cfg(not(test))]
    fn sync_before_switch(&self) -> io::Result<()> {
        self.medium.sync()
    }

    #[cfg(test)]
    fn sync_before_switch(&self) -> io::Result<()> {
        if tests::NO_SYNC_BEFORE_SWITCH.get() { Ok(()) } else { self.medium.sync() }
    }
}

impl State {
    /// What the table says of all files, and the files.
    fn entries(&self) -> (Vec<Entry>, Vec<Arc<Node>>) {
        let file = |(name, node): (&String, &Arc<Node>)| {
            let len = node.len.load(Ordering::Acquire);
            (Entry { name: name.clone(), extent: node.extent, len }, node.clone())
        };
        self.names.iter().map(file).unzip()
    }

    fn take_free(&mut self) -> Option<u32> {
        let unused = |r: &Removed| r.durable && Arc::strong_count(&r.node) == 1;
        if let Some(at) = self.removed.iter().position(unused) {
            return Some(self.removed.swap_remove(at).node.extent);
        }
        self.free.pop()
    }
}

#[derive(Debug)]
struct RegionFile {
    region: Arc<Region>,
    node: Arc<Node>,
}

impl RegionFile {
    fn at(&self, offset: u64) -> u64 {
        self.region.geometry.extent(self.node.extent) + offset
    }

    fn stored_len(&self) -> u64 {
        self.node.len.load(Ordering::Acquire)
    }

    fn check_end(&self, end: u64) -> io::Result<()> {
        if end <= self.region.geometry.segment_bytes {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "a file of the log region is at most one segment long",
        ))
    }

    fn growing(&self) -> MutexGuard<'_, ()> {
        self.node.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DiskFile for RegionFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.stored_len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let there = self.stored_len().saturating_sub(offset);
        let n = there.min(buf.len() as u64) as usize;
        if n > 0 {
            self.region.medium.read(self.at(offset), &mut buf[..n])?;
        }
        Ok(n)
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> io::Result<bool> {
        let end = offset.saturating_add(buf.len() as u64);
        Ok(end <= self.stored_len() && self.region.medium.read_now(self.at(offset), buf)?)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.check_end(end)?;
        if end <= self.stored_len() {
            return self.region.medium.write(self.at(offset), bytes);
        }
        let _growing = self.growing();
        let len = self.stored_len();
        self.region.medium.write_zeros(self.at(len), self.at(offset))?;
        self.region.medium.write(self.at(offset), bytes)?;
        self.node.len.store(len.max(end), Ordering::Release);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.stored_len() == self.node.durable_len.load(Ordering::Acquire) {
            return self.region.medium.sync();
        }
        let mut state = self.region.state();
        // A removed file needs no length.
        let named = state.names.values().any(|node| Arc::ptr_eq(node, &self.node));
        if named { self.region.commit(&mut state) } else { self.region.medium.sync() }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.check_end(bytes)?;
        let _growing = self.growing();
        self.region.medium.write_zeros(self.at(self.stored_len()), self.at(bytes))?;
        self.node.len.store(bytes, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
