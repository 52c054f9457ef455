//! Pre-images: what the origin holds of blocks that have become dirty, as far as their slots still hold the same.
//!
//! An atomic group first notes what it overwrites, so that a replay can tell another writer's blocks. A block that was clean
//! when it became dirty is at the origin as it is in its slot, until the first group that changes it: its reading can be
//! spared there. Nothing rests on a slot alone: what is read from it is compared with the checksum that the clean copy had.

use destage_core::UnitId;
use hashbrown::HashMap;

/// The checksums of clean copies, by the handles of the blocks that are dirty now.
#[derive(Debug, Default)]
pub(super) struct PreImages {
    sums: HashMap<UnitId, u32>,
    /// The origin may hold older bytes than clean copies.
    is_doubtful: bool,
    /// Negative control of the tests: copies stay known though a group has changed their blocks.
    keeps_outdated: bool,
}

impl PreImages {
    pub(super) fn new(keeps_outdated: bool) -> Self {
        Self { sums: HashMap::new(), is_doubtful: false, keeps_outdated }
    }

    /// A clean block becomes dirty; its slot stays as it is until the block is clean again.
    pub(super) fn note(&mut self, unit: UnitId, crc: u32) {
        if !self.is_doubtful {
            self.sums.insert(unit, crc);
        }
    }

    /// The origin may have lost what it had acknowledged: its blocks are read from now on.
    pub(super) fn doubt(&mut self) {
        self.sums.clear();
        self.is_doubtful = true;
    }

    /// For the first group that changes the block, and for no other.
    pub(super) fn take(&mut self, unit: UnitId) -> Option<u32> {
        if self.keeps_outdated { self.sums.get(&unit).copied() } else { self.sums.remove(&unit) }
    }

    /// Blocks reach the origin in another way from now on.
    pub(super) fn clear(&mut self) {
        self.sums.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pre_image_is_for_the_first_group_only() {
        let mut images = PreImages::new(false);
        images.note(UnitId(1), 10);
        images.note(UnitId(2), 20);
        assert_eq!(images.take(UnitId(1)), Some(10));
        assert_eq!(images.take(UnitId(1)), None);
        images.clear();
        assert_eq!(images.take(UnitId(2)), None);
        images.note(UnitId(3), 30);
        images.doubt();
        images.note(UnitId(4), 40);
        assert_eq!((images.take(UnitId(3)), images.take(UnitId(4))), (None, None));
    }
}
