//! The line of writes. Those that change a block in part first read it, and nobody may write it in between; those that zero
//! hold no handles by which the core would keep others from the same blocks.

use super::piece::Piece;
use crate::block::Extent;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Writes that wait, and those that have begun and are not logged.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Entry>,
    begun: HashMap<u64, Entry>,
    /// Handles of those that have begun.
    begun_handles: u64,
    /// How many of all are exclusive.
    exclusive: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    extent: Extent,
    /// Nothing else may be under way to its blocks.
    is_exclusive: bool,
    /// How many it needs.
    handles: u64,
}

impl Entry {
    /// Whether the order of the two shows, and cannot be left to the order in which they are logged.
    fn excludes(&self, other: &Self) -> bool {
        (self.is_exclusive || other.is_exclusive)
            && self.extent.first < other.extent.end()
            && other.extent.first < self.extent.end()
    }
}

impl Line {
    /// Joins the line.
    pub(super) fn push(&mut self, id: u64, piece: &Piece) {
        let is_exclusive = piece.is_partial() || piece.is_zero();
        self.exclusive += usize::from(is_exclusive);
        let handles = piece.handles() as u64;
        self.waiting.push_back(Entry { id, extent: piece.extent, is_exclusive, handles });
    }

    /// The next write that may begin, as long as those that have begun hold at most `handles_max` handles.
    pub(super) fn pass(&mut self, handles_max: u64) -> Option<u64> {
        let looked_at = self.waiting.len().min(LOOKED_AT);
        let index = (0..looked_at).find(|&index| self.may_pass(index))?;
        let handles = self.waiting[index].handles;
        if self.begun_handles > 0 && self.begun_handles + handles > handles_max {
            return None;
        }
        let entry = self.waiting.remove(index)?;
        self.begun_handles += handles;
        self.begun.insert(entry.id, entry);
        Some(entry.id)
    }

    fn may_pass(&self, index: usize) -> bool {
        if self.exclusive == 0 {
            return true;
        }
        let entry = &self.waiting[index];
        !self.waiting.iter().take(index).any(|before| entry.excludes(before))
            && !self.begun.values().any(|before| entry.excludes(before))
    }

    /// A write is logged, or has failed.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(entry) = self.begun.remove(&id) {
            self.begun_handles -= entry.handles;
            self.exclusive -= usize::from(entry.is_exclusive);
        } else if let Some(index) = self.waiting.iter().position(|entry| entry.id == id) {
            self.exclusive -= usize::from(self.waiting[index].is_exclusive);
            self.waiting.remove(index);
        }
    }

    /// Whether no write has begun that is not logged.
    pub(super) fn is_quiet(&self) -> bool {
        self.begun.is_empty()
    }

    /// Writes that wait.
    pub(super) fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// Takes out everyone who waits.
    pub(super) fn drain(&mut self) -> Vec<u64> {
        let waiting = std::mem::take(&mut self.waiting);
        self.exclusive -= waiting.iter().filter(|entry| entry.is_exclusive).count();
        waiting.into_iter().map(|entry| entry.id).collect()
    }
}

/// How far behind a write that must wait others may pass it.
const LOOKED_AT: usize = 256;
