//! Entries, and a contiguous run of them.

use crate::{Epoch, Position};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// What an entry holds. Empty for the first entry of each owner, which only shows that its log was accepted.
pub type Payload = Arc<[u8]>;

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Under which it was written; it keeps this whoever copies it.
    pub epoch: Epoch,
    /// What it holds.
    pub payload: Payload,
}

/// A contiguous run of entries; those before it are decided at the origin and gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Run {
    /// Of the first entry, there or to come.
    base: Position,
    /// Of the entry before it.
    base_epoch: Epoch,
    entries: VecDeque<Entry>,
    /// Of all payloads.
    bytes: u64,
}

impl Default for Run {
    fn default() -> Self {
        Self::at(Position::FIRST, Epoch::NONE)
    }
}

impl Run {
    /// Nothing yet, from here on.
    pub(crate) fn at(base: Position, base_epoch: Epoch) -> Self {
        Self { base, base_epoch, entries: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn base(&self) -> Position {
        self.base
    }

    pub(crate) fn base_epoch(&self) -> Epoch {
        self.base_epoch
    }

    /// Of the newest entry, there or gone.
    pub(crate) fn last(&self) -> Position {
        self.base.before().plus(self.entries.len())
    }

    pub(crate) fn last_epoch(&self) -> Epoch {
        self.entries.back().map_or(self.base_epoch, |entry| entry.epoch)
    }

    /// Of the entry at a position, if that is known: those before the base are not, apart from the last of them.
    pub(crate) fn epoch_at(&self, at: Position) -> Option<Epoch> {
        if at == self.base.before() {
            return Some(self.base_epoch);
        }
        self.get(at).map(|entry| entry.epoch)
    }

    pub(crate) fn get(&self, at: Position) -> Option<&Entry> {
        let index = at.0.checked_sub(self.base.0)?;
        self.entries.get(usize::try_from(index).ok()?)
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += entry.payload.len() as u64;
        self.entries.push_back(entry);
    }

    /// Drops everything from here on.
    pub(crate) fn cut(&mut self, from: Position) {
        let len = from.0.saturating_sub(self.base.0) as usize;
        let gone = self.entries.iter().skip(len).map(|entry| entry.payload.len() as u64);
        self.bytes -= gone.sum::<u64>();
        self.entries.truncate(len);
    }

    /// Drops everything before here, which is not beyond the end.
    pub(crate) fn trim(&mut self, base: Position) {
        assert!(base <= self.last().next(), "{base:?} is beyond {:?}", self.last());
        while self.base < base {
            let Some(gone) = self.entries.pop_front() else { return };
            self.bytes -= gone.payload.len() as u64;
            self.base_epoch = gone.epoch;
            self.base = self.base.next();
        }
    }

    /// Entries from here on, at least one if there is any, and no more than these bytes otherwise.
    pub(crate) fn take(&self, from: Position, bytes_max: usize) -> Vec<Entry> {
        let skip = from.0.saturating_sub(self.base.0) as usize;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += entry.payload.len().max(1);
            is_first || bytes <= bytes_max
        };
        self.entries.iter().skip(skip).take_while(fits).cloned().collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Position, &Entry)> {
        self.entries.iter().enumerate().map(|(index, entry)| (self.base.plus(index), entry))
    }

    /// Bytes of all payloads.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the payloads up to here.
    pub(crate) fn bytes_upto(&self, last: Position) -> u64 {
        let skip = last.next().0.saturating_sub(self.base.0) as usize;
        let beyond = self.entries.iter().skip(skip).map(|entry| entry.payload.len() as u64);
        self.bytes - beyond.sum::<u64>()
    }
}
