//! The name table of the log region on the device.

use super::super::CacheError;
use super::super::bytes::{u32_at, u64_at};
use super::super::geometry::{Geometry, PAGE, TABLE_ENTRY, TABLE_HEADER};
use super::super::medium::Medium;
use super::super::sealed;
use std::collections::BTreeSet;
use std::io;

/// All files at some moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Table {
    /// Counts the writings; even ones go to the first copy.
    pub(in super::super) generation: u64,
    pub(in super::super) entries: Vec<Entry>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Entry {
    pub(in super::super) name: String,
    pub(in super::super) extent: u32,
    pub(in super::super) len: u64,
}

impl Table {
    /// Writes it over the older copy.
    pub(super) fn write(&self, medium: &Medium, geometry: &Geometry, seed: u32) -> io::Result<()> {
        let mut bytes = self.encode(seed);
        // Whole pages, which the medium need not complete.
        bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
        medium.write(geometry.name_table((self.generation % 2) as usize).start, &bytes)
    }

    /// The newer of the copies that hold.
    pub(super) fn newest(
        medium: &Medium,
        geometry: &Geometry,
        seed: u32,
    ) -> Result<Self, CacheError> {
        let copies = Self::copies(medium, geometry, seed)?;
        let newest = copies.into_iter().flatten().max_by_key(|table| table.generation);
        newest.ok_or(CacheError::Damaged("log name table"))
    }

    /// Both copies, as far as they hold.
    pub(in super::super) fn copies(
        medium: &Medium,
        geometry: &Geometry,
        seed: u32,
    ) -> Result<[Option<Self>; 2], CacheError> {
        let mut copies = [None, None];
        for (copy, table) in copies.iter_mut().enumerate() {
            let place = geometry.name_table(copy);
            let mut bytes = vec![0; (place.end - place.start) as usize];
            let read = medium.read(place.start, &mut bytes);
            read.map_err(CacheError::io("read the log's name table"))?;
            *table = Self::decode(&bytes, geometry, seed);
        }
        Ok(copies)
    }

    fn encode(&self, seed: u32) -> Vec<u8> {
        let mut out = vec![0; HEADER + self.entries.len() * ENTRY];
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..20].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (entry, slot) in self.entries.iter().zip(out[HEADER..].chunks_exact_mut(ENTRY)) {
            slot[..4].copy_from_slice(&entry.extent.to_le_bytes());
            slot[4] = entry.name.len() as u8;
            slot[8..16].copy_from_slice(&entry.len.to_le_bytes());
            slot[NAME..NAME + entry.name.len()].copy_from_slice(entry.name.as_bytes());
        }
        sealed::seal(&mut out, MAGIC, seed);
        out
    }

    fn decode(bytes: &[u8], geometry: &Geometry, seed: u32) -> Option<Self> {
        let count = u32_at(bytes, 16);
        if count > geometry.extents {
            return None;
        }
        let bytes = sealed::open(&bytes[..HEADER + count as usize * ENTRY], MAGIC, seed)?;
        let (mut extents, mut names) = (BTreeSet::new(), BTreeSet::new());
        let entries = bytes[HEADER..].chunks_exact(ENTRY).map(|slot| {
            let name = slot[NAME..].get(..usize::from(slot[4]))?;
            let name = String::from_utf8(name.to_vec()).ok()?;
            let entry = Entry { name, extent: u32_at(slot, 0), len: u64_at(slot, 8) };
            let sound = entry.extent < geometry.extents
                && entry.len <= geometry.segment_bytes
                && extents.insert(entry.extent)
                && names.insert(entry.name.clone());
            sound.then_some(entry)
        });
        let entries = entries.collect::<Option<Vec<_>>>()?;
        Some(Self { generation: u64_at(bytes, 8), entries })
    }
}

/// Refuses a name that the table cannot hold.
pub(super) fn check_name(name: &str) -> io::Result<()> {
    if (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidFilename,
        "a name in the log region has 1 to 48 bytes",
    ))
}

const MAGIC: &[u8; 4] = b"DSTT";
const HEADER: usize = TABLE_HEADER as usize;
const ENTRY: usize = TABLE_ENTRY as usize;
/// Where the name stands in an entry.
const NAME: usize = 16;
const NAME_BYTES_MAX: usize = ENTRY - NAME;
