//! The write groups that the origin has not decided: which blocks they change, where their bytes are, and which version
//! of a block is the newest.

use super::extents::ExtentMap;
use crate::block::{BLOCK, Extent, Lba};
use crate::cache::record::{GroupKind, stored_block_offset};
use destage_core::ring::Ring;
use destage_core::{Lsn, Time, UnitId};
use destage_journal::{Position, WrittenBatch};
use hashbrown::HashMap;
use std::sync::Arc;

/// Bytes shared by groups, reads and jobs.
pub(super) type Shared = Arc<Vec<u8>>;

/// One write group.
#[derive(Debug)]
pub(super) struct LoggedGroup {
    pub(super) kind: GroupKind,
    pub(super) level: u64,
    pub(super) extents: Vec<Extent>,
    /// The handle of each block of a write, in the extents' order. Zeros need none.
    pub(super) units: Vec<UnitId>,
    /// For each block of a write, the checksum of its bytes.
    pub(super) crcs: Vec<u32>,
    /// The blocks' bytes without anything between them, as long as memory allows.
    pub(super) data: Option<Shared>,
    /// Where its record's payload begins in its batch.
    pub(super) offset_in_batch: u32,
    /// Where the payload lies in the log, once it has been written.
    pub(super) at: Option<Position>,
    pub(super) is_decided: bool,
    /// The next group is another part of the same request.
    pub(super) continues: bool,
    /// Its blocks are not kept once they are at the origin.
    pub(super) passes_by: bool,
    /// For the latencies.
    pub(super) written_at: Time,
}

impl LoggedGroup {
    /// The blocks of a write and their handles, in order.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (Lba, UnitId)> + '_ {
        let lbas = self.extents.iter().flat_map(|extent| extent.iter());
        lbas.zip(self.units.iter().copied())
    }

    /// Whether it makes its extents zeros.
    pub(super) fn is_zeros(&self) -> bool {
        matches!(self.kind, GroupKind::Zero | GroupKind::Trim)
    }

    /// Bytes that its data occupy in memory.
    fn memory_bytes(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

/// One version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    pub(super) lsn: Lsn,
    /// Its place among the blocks of a write; 0 for zeros.
    pub(super) index: u32,
}

/// Where the bytes of a version are.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    /// All zeros; the origin may give the space back if `punch`.
    Zero { punch: bool },
    /// In memory, `at` bytes into `data`.
    Memory { data: Shared, at: usize, crc: u32 },
    /// In the log, where the block's stored form begins.
    Log { at: Position, crc: u32 },
}

/// All undecided groups.
#[derive(Debug)]
pub(super) struct Overlay {
    groups: Ring<LoggedGroup>,
    /// The undecided versions of each block written, oldest first; zeros are not among them.
    versions: HashMap<UnitId, Vec<Version>>,
    /// For blocks of undecided zeros, the newest group that zeroed them. Its versions may be older than those of writes.
    zeros: ExtentMap<Lsn>,
    memory_bytes: u64,
    memory_bytes_max: u64,
    /// No group before this one has data in memory that could be dropped.
    dropped: Lsn,
}

impl Overlay {
    /// Nothing undecided; the next group is `base`.
    pub(super) fn new(base: Lsn, memory_bytes_max: u64) -> Self {
        Self {
            groups: Ring::new(Lsn(base.0 - 1)),
            versions: HashMap::new(),
            zeros: ExtentMap::default(),
            memory_bytes: 0,
            memory_bytes_max,
            dropped: base,
        }
    }

    /// Takes the next group.
    pub(super) fn push(&mut self, lsn: Lsn, group: LoggedGroup) {
        for (index, &unit) in group.units.iter().enumerate() {
            let version = Version { lsn, index: index as u32 };
            self.versions.entry(unit).or_default().push(version);
        }
        if group.is_zeros() {
            group.extents.iter().for_each(|&extent| self.zeros.insert(extent, lsn));
        }
        self.memory_bytes += group.memory_bytes();
        self.groups.push(lsn, group);
        self.drop_memory();
    }

    /// Numbers that hold nothing (any more), so that `base` may follow.
    pub(super) fn skip_to(&mut self, next: Lsn) {
        let upto = Lsn(next.0 - 1);
        self.groups
            .skip_to(upto, |_| panic!("numbers are skipped only where nothing is undecided"));
        self.dropped = self.dropped.max(self.groups.forgotten().next());
    }

    /// The last group up to this one with which a request ends.
    pub(super) fn whole_upto(&self, upto: Lsn) -> Lsn {
        let mut upto = upto;
        while self.get(upto).is_some_and(|group| group.continues) {
            upto = Lsn(upto.0 - 1);
        }
        upto
    }

    /// The newest group, if it is undecided.
    pub(super) fn last(&self) -> Option<&LoggedGroup> {
        self.groups.back()
    }

    pub(super) fn get(&self, lsn: Lsn) -> Option<&LoggedGroup> {
        self.groups.get(lsn)
    }

    fn get_mut(&mut self, lsn: Lsn) -> Option<&mut LoggedGroup> {
        self.groups.get_mut(lsn)
    }

    /// Whether a block has undecided changes.
    pub(super) fn is_dirty(&self, lba: Lba, unit: UnitId) -> bool {
        self.is_written(unit) || self.zeros.get(lba).is_some()
    }

    /// Whether a block has undecided changes other than zeros, which keep its handle.
    pub(super) fn is_written(&self, unit: UnitId) -> bool {
        self.versions.contains_key(&unit)
    }

    /// Whether any block of an extent has undecided zeros.
    pub(super) fn is_zeroed(&self, extent: Extent) -> bool {
        self.zeros.overlaps(extent)
    }

    /// Whether a block has undecided zeros.
    pub(super) fn zeroed(&self, lba: Lba) -> Option<Lsn> {
        self.zeros.get(lba)
    }

    /// Blocks of undecided zeros.
    pub(super) fn zeroed_blocks(&self) -> u64 {
        self.zeros.blocks()
    }

    /// Bytes of groups in memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// Undecided zeros in an extent.
    pub(super) fn zeroed_within(&self, extent: Extent) -> impl Iterator<Item = Extent> + '_ {
        self.zeros.within(extent).map(|(extent, _)| extent)
    }

    /// The handles of blocks with undecided writes, in no order.
    pub(super) fn written_units(&self) -> impl ExactSizeIterator<Item = UnitId> + '_ {
        self.versions.keys().copied()
    }

    /// The newest undecided version of a block.
    pub(super) fn newest(&self, lba: Lba, unit: UnitId) -> Option<Version> {
        let written = self.versions.get(&unit).and_then(|versions| versions.last().copied());
        written.max(self.zeros.get(lba).map(|lsn| Version { lsn, index: 0 }))
    }

    /// The newest version of a block up to a group that is no zeros.
    pub(super) fn newest_upto(&self, unit: UnitId, upto: Lsn) -> Option<Version> {
        let versions = self.versions.get(&unit)?;
        versions.iter().rev().find(|version| version.lsn <= upto).copied()
    }

    /// Where the bytes of a version are.
    pub(super) fn bytes(&self, version: Version) -> Bytes {
        let group = self.get(version.lsn).expect("undecided groups are kept");
        let index = version.index as usize;
        match (group.kind, &group.data) {
            (GroupKind::Zero, _) => Bytes::Zero { punch: false },
            (GroupKind::Trim, _) => Bytes::Zero { punch: true },
            (GroupKind::Mark, _) => unreachable!("a mark changes no block"),
            (GroupKind::Write, Some(data)) => {
                Bytes::Memory { data: data.clone(), at: index * BLOCK, crc: group.crcs[index] }
            }
            (GroupKind::Write, None) => {
                let crc = group.crcs[index];
                let payload = group.at.expect("only what the log holds leaves memory");
                let offset = stored_block_offset(group.extents.len(), version.index);
                let at = Position { offset: payload.offset + offset, ..payload };
                Bytes::Log { at, crc }
            }
        }
    }

    /// The log has written these batches: their groups may leave memory.
    pub(super) fn written(&mut self, batches: &[WrittenBatch]) {
        for batch in batches {
            for lsn in batch.first_lsn..batch.first_lsn + u64::from(batch.records) {
                if let Some(group) = self.get_mut(Lsn(lsn)) {
                    group.at = Some(batch.payload(group.offset_in_batch));
                }
            }
        }
        self.drop_memory();
    }

    /// Drops the oldest groups' bytes, which are next to be destaged but least likely to be read again, down to the budget.
    fn drop_memory(&mut self) {
        while self.memory_bytes > self.memory_bytes_max {
            let lsn = self.dropped.max(self.groups.forgotten().next());
            let Some(group) = self.get_mut(lsn) else { return };
            if group.kind == GroupKind::Write && group.at.is_none() {
                return;
            }
            let freed = group.memory_bytes();
            group.data = None;
            self.memory_bytes -= freed;
            self.dropped = lsn.next();
        }
    }

    /// A group is decided: its versions are at the origin. Returns the blocks of a write that have no undecided version left
    /// but perhaps newer zeros.
    pub(super) fn decided(&mut self, lsn: Lsn) -> Vec<(Lba, UnitId)> {
        let Some(group) = self.get_mut(lsn) else { return Vec::new() };
        let blocks: Vec<_> = group.blocks().collect();
        group.is_decided = true;
        group.units = Vec::new();
        let freed = group.memory_bytes();
        group.data = None;
        if group.is_zeros() {
            for extent in std::mem::take(&mut group.extents) {
                self.zeros.remove_if(extent, |newest| newest == lsn);
            }
        }
        self.memory_bytes -= freed;
        let mut clean = Vec::new();
        for (lba, unit) in blocks {
            let Some(versions) = self.versions.get_mut(&unit) else { continue };
            versions.retain(|version| version.lsn != lsn);
            if versions.is_empty() {
                self.versions.remove(&unit);
                clean.push((lba, unit));
            }
        }
        clean
    }

    /// Everything up to here is decided and needed by nobody.
    pub(super) fn forget(&mut self, upto: Lsn) {
        self.groups.forget_while(|lsn, group| lsn <= upto && group.is_decided);
    }
}
