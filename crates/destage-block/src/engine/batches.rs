//! Batches: those that are due, where the origin must stop between two, and what is at the origin ahead of its turn.

use super::install::CleanBlock;
use super::pre_image::PreImages;
use destage_core::{BatchId, Lsn, UnitId};
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};

/// What destaging keeps from one batch to the next.
#[derive(Debug)]
pub(super) struct Batches {
    /// Batches that the core wants at the origin and that are not jobs yet.
    due: VecDeque<BatchId>,
    /// Groups at which the origin must stop for a moment, because an application said so.
    cuts: BTreeSet<Lsn>,
    /// Under `Order::Any`: versions that are at the origin ahead of their groups' turn.
    ahead: HashMap<UnitId, (Lsn, Option<CleanBlock>)>,
    pre_images: PreImages,
    /// The level of the batch sent last.
    level_sent: Option<u64>,
    /// Blocks of groups that were decided since the last mark.
    unmarked_blocks: u64,
    /// Blocks that are clean and not in their slots, to be dropped.
    not_cached: Vec<UnitId>,
}

impl Batches {
    pub(super) fn new(pre_images: PreImages) -> Self {
        Self {
            due: VecDeque::new(),
            cuts: BTreeSet::new(),
            ahead: HashMap::new(),
            pre_images,
            level_sent: None,
            unmarked_blocks: 0,
            not_cached: Vec::new(),
        }
    }

    /// The core wants a batch at the origin.
    pub(super) fn push(&mut self, batch: BatchId) {
        self.due.push_back(batch);
    }

    /// Takes the next batch that is due.
    pub(super) fn pop(&mut self) -> Option<BatchId> {
        self.due.pop_front()
    }

    /// Whether no batch is due.
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// The origin must stop for a moment at this group.
    pub(super) fn cut_after(&mut self, lsn: Lsn) {
        self.cuts.insert(lsn);
    }

    /// Groups at which the origin must stop and which it has not passed.
    pub(super) fn cuts_len(&self) -> usize {
        self.cuts.len()
    }

    /// Cuts a batch where the origin must stop.
    pub(super) fn cut(&self, lsns: &[Lsn]) -> Vec<Vec<Lsn>> {
        let (Some(&first), Some(&last)) = (lsns.first(), lsns.last()) else { return Vec::new() };
        let mut parts = Vec::new();
        let mut rest = lsns;
        for &cut in self.cuts.range(first..last) {
            let (before, after) = rest.split_at(rest.partition_point(|&lsn| lsn <= cut));
            if !before.is_empty() {
                parts.push(before.to_vec());
            }
            rest = after;
        }
        parts.push(rest.to_vec());
        parts
    }

    /// Whether what is decided must be marked before a batch of this level: before a new level, the levels before it. A start
    /// then sends at most one level again, to an origin that holds nothing beyond that level. Without levels it is enough
    /// that a start finds no more blocks to send again than there are slots.
    pub(super) fn is_mark_due(&mut self, level: u64, has_levels: bool, slots: u32) -> bool {
        let is_new_level = has_levels && self.level_sent != Some(level);
        if !is_new_level && self.unmarked_blocks < u64::from(slots / UNMARKED_DIVISOR) {
            return false;
        }
        self.level_sent = Some(level);
        self.unmarked_blocks = 0;
        true
    }

    /// A batch has failed: the next one is marked before, since the level may have been marked or not.
    pub(super) fn failed(&mut self) {
        self.level_sent = None;
        self.unmarked_blocks = u64::MAX / 2;
    }

    /// A clean block becomes dirty; the origin holds what its slot holds.
    pub(super) fn note_pre_image(&mut self, unit: UnitId, crc: u32) {
        self.pre_images.note(unit, crc);
    }

    /// What the origin holds of a block before the first group that changes it.
    pub(super) fn take_pre_image(&mut self, unit: UnitId) -> Option<u32> {
        self.pre_images.take(unit)
    }

    /// A block is changed at the origin in another way.
    pub(super) fn forget_pre_image(&mut self, unit: UnitId) {
        self.pre_images.take(unit);
    }

    /// The origin may have lost what it had acknowledged.
    pub(super) fn doubt_pre_images(&mut self) {
        self.pre_images.doubt();
    }

    /// Blocks reach the origin in another way from now on.
    pub(super) fn forget_pre_images(&mut self) {
        self.pre_images.clear();
    }

    /// A version of a block is at the origin, perhaps ahead of its group's turn.
    pub(super) fn sent(&mut self, unit: UnitId, lsn: Lsn, content: Option<CleanBlock>) {
        // Where many are ahead of their turn, memory is worth more than their copies.
        let content = content.filter(|_| self.ahead.len() < AHEAD_KEPT_MAX);
        self.ahead.insert(unit, (lsn, content));
    }

    /// Blocks that are at the origin ahead of their turn, in no order, with the groups that they are of.
    pub(super) fn ahead(&self) -> impl Iterator<Item = (UnitId, Lsn)> + '_ {
        self.ahead.iter().map(|(&unit, &(lsn, _))| (unit, lsn))
    }

    /// A group that changed so many blocks is decided.
    pub(super) fn decided(&mut self, lsn: Lsn, blocks: usize) {
        self.cuts.remove(&lsn);
        self.unmarked_blocks += blocks as u64;
    }

    /// A block has no undecided version left. Returns what was sent last of it.
    pub(super) fn take_sent(&mut self, unit: UnitId) -> Option<CleanBlock> {
        self.forget_pre_image(unit);
        self.ahead.remove(&unit)?.1
    }

    /// Nothing is at the origin ahead of its turn.
    pub(super) fn none_ahead(&mut self) {
        self.ahead.clear();
    }

    /// A block is clean and not in its slot.
    pub(super) fn not_cached(&mut self, unit: UnitId) {
        self.not_cached.push(unit);
    }

    /// Takes the blocks that are to be dropped.
    pub(super) fn take_not_cached(&mut self) -> Vec<UnitId> {
        std::mem::take(&mut self.not_cached)
    }
}

/// Blocks sent ahead of their group's turn whose bytes are kept for their slots: 64 MiB.
const AHEAD_KEPT_MAX: usize = 16_384;
/// Decided blocks are marked once they are this share of the slots.
const UNMARKED_DIVISOR: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn batches() -> Batches {
        Batches::new(PreImages::new(false))
    }

    #[test]
    fn a_batch_is_cut_after_each_point_but_its_last_group() {
        let mut batches = batches();
        let lsns = |range: std::ops::RangeInclusive<u64>| range.map(Lsn).collect::<Vec<_>>();
        assert_eq!(batches.cut(&lsns(1..=9)), [lsns(1..=9)]);
        [3, 6, 9, 12].into_iter().for_each(|lsn| batches.cut_after(Lsn(lsn)));
        assert_eq!(batches.cut(&lsns(1..=9)), [lsns(1..=3), lsns(4..=6), lsns(7..=9)]);
        assert!(batches.cut(&[]).is_empty());
        batches.decided(Lsn(3), 0);
        assert_eq!((batches.cuts_len(), batches.cut(&lsns(1..=5))), (3, vec![lsns(1..=5)]));
    }

    #[test]
    fn a_new_level_a_failure_and_many_blocks_need_a_mark() {
        let mut batches = batches();
        assert!(batches.is_mark_due(1, true, 320));
        assert!(!batches.is_mark_due(1, true, 320));
        assert!(batches.is_mark_due(2, true, 320));
        assert!(!batches.is_mark_due(3, false, 320));
        batches.decided(Lsn(1), 9);
        assert!(!batches.is_mark_due(3, false, 320));
        batches.decided(Lsn(2), 1);
        assert!(batches.is_mark_due(3, false, 320));
        batches.failed();
        assert!(batches.is_mark_due(3, false, 320));
    }

    #[test]
    fn what_was_sent_last_is_given_back_once_and_its_pre_image_is_forgotten() {
        let mut batches = batches();
        let unit = UnitId(7);
        batches.note_pre_image(unit, 5);
        let content = |crc| Some(CleanBlock { data: Arc::default(), at: 0, crc });
        batches.sent(unit, Lsn(1), content(1));
        batches.sent(unit, Lsn(2), content(2));
        assert_eq!(batches.ahead().collect::<Vec<_>>(), [(unit, Lsn(2))]);
        assert_eq!(batches.take_sent(unit).map(|content| content.crc), Some(2));
        assert_eq!(batches.take_pre_image(unit), None);
        assert!(batches.take_sent(unit).is_none());
    }
}
