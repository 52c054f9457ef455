//! Values by block, held by extents: a value of neighbours that came together is one entry, however many they are.

use crate::block::{Extent, Lba};
use std::collections::BTreeMap;

/// At most one value for each block.
#[derive(Debug)]
pub(super) struct ExtentMap<V> {
    /// By the first block of each entry: the block after its last, and the value.
    entries: BTreeMap<u64, (u64, V)>,
    blocks: u64,
}

impl<V> Default for ExtentMap<V> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), blocks: 0 }
    }
}

impl<V: Copy> ExtentMap<V> {
    /// The value of a block.
    pub(super) fn get(&self, lba: Lba) -> Option<V> {
        let (_, &(end, value)) = self.entries.range(..=lba.0).next_back()?;
        (lba.0 < end).then_some(value)
    }

    /// Whether any block of an extent has a value.
    pub(super) fn overlaps(&self, extent: Extent) -> bool {
        let before = self.entries.range(..extent.end().0).next_back();
        before.is_some_and(|(_, &(end, _))| end > extent.first.0)
    }

    /// The entries that touch an extent, as far as they lie in it.
    pub(super) fn within(&self, extent: Extent) -> impl Iterator<Item = (Extent, V)> + '_ {
        let (first, end) = (extent.first.0, extent.end().0);
        let before = self.entries.range(..first).next_back();
        let from = before.filter(|&(_, &(to, _))| to > first).map_or(first, |(&from, _)| from);
        self.entries.range(from..end).map(move |(&from, &(to, value))| {
            let (from, to) = (from.max(first), to.min(end));
            (Extent { first: Lba(from), blocks: (to - from) as u32 }, value)
        })
    }

    /// Gives each block of an extent this value.
    pub(super) fn insert(&mut self, extent: Extent, value: V) {
        self.remove_if(extent, |_| true);
        self.put(extent.first.0, extent.end().0, value);
    }

    /// Takes the values for which `holds` from an extent; what reaches beyond it stays there.
    pub(super) fn remove_if(&mut self, extent: Extent, holds: impl Fn(V) -> bool) {
        let (first, end) = (extent.first.0, extent.end().0);
        let before = self.entries.range(..first).next_back();
        let from = before.filter(|&(_, &(to, _))| to > first).map_or(first, |(&from, _)| from);
        let entries = self.entries.range(from..end).map(|(&from, &(to, value))| (from, to, value));
        let found: Vec<(u64, u64, V)> = entries.filter(|&(_, _, value)| holds(value)).collect();
        for (from, to, value) in found {
            self.entries.remove(&from);
            self.blocks -= to - from;
            if from < first {
                self.put(from, first, value);
            }
            if to > end {
                self.put(end, to, value);
            }
        }
    }

    fn put(&mut self, from: u64, to: u64, value: V) {
        self.blocks += to - from;
        self.entries.insert(from, (to, value));
    }

    /// How many blocks have a value.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All entries, by rising block; no entry is longer than the extent that it came with.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Extent, V)> + '_ {
        self.entries.iter().map(|(&from, &(to, value))| {
            (Extent { first: Lba(from), blocks: (to - from) as u32 }, value)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::random::Random;

    fn extent(first: u64, blocks: u32) -> Extent {
        Extent { first: Lba(first), blocks }
    }

    #[test]
    fn extents_hold_what_single_blocks_would() {
        let mut random = Random::new(7);
        let mut map = ExtentMap::default();
        let mut naive = [None; 64];
        for value in 0..5_000_u64 {
            let first = random.below(60);
            let touched = extent(first, 1 + random.below(64 - first) as u32);
            let blocks = first as usize..touched.end().0 as usize;
            if random.chance(60) {
                map.insert(touched, value);
                naive[blocks.clone()].fill(Some(value));
            } else {
                map.remove_if(touched, |value| value % 3 == 0);
                let taken = naive[blocks.clone()].iter_mut();
                taken.for_each(|value| *value = value.filter(|value| value % 3 != 0));
            }
            assert_eq!(map.overlaps(touched), naive[blocks].iter().any(Option::is_some));
            let within = map
                .within(touched)
                .flat_map(|(extent, value)| extent.iter().map(move |lba| (lba, value)));
            let expected = touched.iter().filter_map(|lba| Some((lba, naive[lba.0 as usize]?)));
            assert!(within.eq(expected));
            assert_eq!(map.blocks(), naive.iter().flatten().count() as u64);
            for (block, &value) in naive.iter().enumerate() {
                assert_eq!(map.get(Lba(block as u64)), value, "block {block}");
            }
        }
        assert_eq!(
            map.iter().map(|(extent, _)| u64::from(extent.blocks)).sum::<u64>(),
            map.blocks()
        );
    }
}
