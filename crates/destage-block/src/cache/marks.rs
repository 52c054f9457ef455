//! How far the origin has come: the highest decided Lsn that must not be sent again, in two sectors written in turn.

use super::CacheError;
use super::bytes::u64_at;
use super::geometry::MARKS;
use super::medium::Medium;
use super::sealed;
use std::sync::{Mutex, PoisonError};

/// The decided mark.
#[derive(Debug)]
pub(super) struct Marks {
    medium: Medium,
    seed: u32,
    current: Mutex<Mark>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    /// Counts the writings; even ones go to the first place.
    sequence: u64,
    decided: u64,
}

impl Marks {
    /// Writes both sectors of a new cache.
    pub(super) fn format(medium: &Medium, seed: u32) -> Result<(), CacheError> {
        for sequence in 1..=2 {
            let mark = Mark { sequence, decided: 0 };
            mark.write(medium, seed).map_err(CacheError::io("write the decided mark"))?;
        }
        Ok(())
    }

    pub(super) fn open(medium: Medium, seed: u32) -> Result<Self, CacheError> {
        let mut newest = None;
        for offset in MARKS {
            let found = Mark::read(&medium, seed, offset);
            let found = found.map_err(CacheError::io("read the decided mark"))?;
            newest = newest.max(found.map(|m| (m.sequence, m.decided)));
        }
        let (sequence, decided) = newest.ok_or(CacheError::Damaged("decided mark"))?;
        Ok(Self { medium, seed, current: Mutex::new(Mark { sequence, decided }) })
    }

    pub(super) fn decided(&self) -> u64 {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).decided
    }

    /// Writes the mark in force once more, not synced.
    pub(super) fn write_again(&self) -> Result<(), CacheError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let written = current.write(&self.medium, self.seed);
        written.map_err(CacheError::io("write the decided mark again"))
    }

    /// Durable when it returns. A lower mark than the one in force changes nothing.
    pub(super) fn set(&self, decided: u64) -> Result<(), CacheError> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if decided <= current.decided {
            return Ok(());
        }
        // After a failure the same place is written again: the other one holds the mark in force.
        let mark = Mark { sequence: current.sequence + 1, decided };
        let written = mark.write(&self.medium, self.seed).and_then(|()| self.medium.sync());
        written.map_err(CacheError::io("write the decided mark"))?;
        *current = mark;
        Ok(())
    }
}

impl Mark {
    fn write(self, medium: &Medium, seed: u32) -> std::io::Result<()> {
        let mut sector = [0; SECTOR];
        sector[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        sector[16..24].copy_from_slice(&self.decided.to_le_bytes());
        sealed::seal(&mut sector, MAGIC, seed);
        medium.write(MARKS[(self.sequence % 2) as usize], &sector)
    }

    fn read(medium: &Medium, seed: u32, offset: u64) -> std::io::Result<Option<Self>> {
        let mut sector = [0; SECTOR];
        medium.read(offset, &mut sector)?;
        let sealed = sealed::open(&sector, MAGIC, seed);
        Ok(sealed.map(|bytes| Self { sequence: u64_at(bytes, 8), decided: u64_at(bytes, 16) }))
    }
}

const MAGIC: &[u8; 4] = b"DSTM";
/// Written whole or not at all by every medium.
const SECTOR: usize = 512;
