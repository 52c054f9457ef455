//! The line of writes: those that change a block in part first read it, and nobody may write it in between.

use crate::block::Extent;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Writes that wait, and those that have begun and are not logged.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: VecDeque<Entry>,
    begun: HashMap<u64, Entry>,
    /// Blocks of those that have begun.
    begun_blocks: u64,
    /// How many of all change blocks in part.
    partial: usize,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    id: u64,
    extent: Extent,
    is_partial: bool,
}

impl Entry {
    /// Whether the order of the two shows, and cannot be left to the order in which they are logged.
    fn excludes(&self, other: &Self) -> bool {
        (self.is_partial || other.is_partial)
            && self.extent.first < other.extent.end()
            && other.extent.first < self.extent.end()
    }
}

impl Line {
    /// Joins the line.
    pub(super) fn push(&mut self, id: u64, extent: Extent, is_partial: bool) {
        self.partial += usize::from(is_partial);
        self.waiting.push_back(Entry { id, extent, is_partial });
    }

    /// The next write that may begin, as long as those that have begun hold at most `blocks_max` blocks.
    pub(super) fn pass(&mut self, blocks_max: u64) -> Option<u64> {
        let looked_at = self.waiting.len().min(LOOKED_AT);
        let index = (0..looked_at).find(|&index| self.may_pass(index))?;
        let blocks = u64::from(self.waiting[index].extent.blocks);
        if self.begun_blocks > 0 && self.begun_blocks + blocks > blocks_max {
            return None;
        }
        let entry = self.waiting.remove(index)?;
        self.begun_blocks += blocks;
        self.begun.insert(entry.id, entry);
        Some(entry.id)
    }

    fn may_pass(&self, index: usize) -> bool {
        if self.partial == 0 {
            return true;
        }
        let entry = &self.waiting[index];
        !self.waiting.iter().take(index).any(|before| entry.excludes(before))
            && !self.begun.values().any(|before| entry.excludes(before))
    }

    /// A write is logged, or has failed.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(entry) = self.begun.remove(&id) {
            self.begun_blocks -= u64::from(entry.extent.blocks);
            self.partial -= usize::from(entry.is_partial);
        } else if let Some(index) = self.waiting.iter().position(|entry| entry.id == id) {
            self.partial -= usize::from(self.waiting[index].is_partial);
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
        self.partial -= waiting.iter().filter(|entry| entry.is_partial).count();
        waiting.into_iter().map(|entry| entry.id).collect()
    }
}

/// How far behind a write that must wait others may pass it.
const LOOKED_AT: usize = 256;
