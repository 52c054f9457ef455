//! Where a volume is sparse, and where it is dirty.
//!
//! First what is dirty is noted, then the origin is asked for the rest. The other way round a block could be destaged in
//! between, and a hole be told where the client has written.

use super::Volume;
use super::extents::ExtentMap;
use super::job::Work;
use super::overlay::Bytes;
use crate::block::{BLOCK, Extent, Lba};
use crate::origin::{Origin, Run};
use crate::request::{Reply, Status};

/// The range that a client asks about, and what is dirty in it.
#[derive(Debug)]
pub(super) struct StatusJob {
    pub(super) asked: u32,
    offset: u64,
    len: u64,
    /// For dirty blocks, whether they are zeros.
    dirty: ExtentMap<bool>,
}

impl Volume {
    pub(super) fn begin_status(&mut self, asked: u32, offset: u64, len: u64) {
        let first = Lba::of(offset);
        let blocks = (offset + len).div_ceil(BLOCK as u64) - first.0;
        // Whichever is less of blocks and dirty blocks is looked at one by one.
        let written = self.overlay.written_units().len() as u64;
        let blocks_max = if written <= LOOKS_MAX { BLOCKS_MAX } else { LOOKS_MAX };
        let extent = Extent { first, blocks: blocks.min(blocks_max) as u32 };
        let len = len.min(extent.end().offset() - offset);
        let dirty = self.dirty_within(extent, written);
        self.jobs.push(Work::Status(StatusJob { asked, offset, len, dirty }));
    }

    fn dirty_within(&self, extent: Extent, written: u64) -> ExtentMap<bool> {
        let mut dirty = ExtentMap::default();
        for zeros in self.overlay.zeroed_within(extent) {
            dirty.insert(zeros, true);
        }
        let is_inside = |lba: Lba| extent.first <= lba && lba < extent.end();
        let mut note = |lba, unit| {
            let Some(version) = self.overlay.newest(lba, unit) else { return };
            let is_zero = matches!(self.overlay.bytes(version), Bytes::Zero { .. });
            dirty.insert(Extent { first: lba, blocks: 1 }, is_zero);
        };
        if written < u64::from(extent.blocks) {
            let units = self.overlay.written_units().map(|unit| (self.slots.lba(unit), unit));
            units.filter(|&(lba, _)| is_inside(lba)).for_each(|(lba, unit)| note(lba, unit));
        } else {
            let units = extent.iter().filter_map(|lba| Some((lba, self.slots.find(lba)?)));
            let units = units.filter(|&(_, unit)| self.overlay.is_written(unit));
            units.for_each(|(lba, unit)| note(lba, unit));
        }
        dirty
    }

    pub(super) fn status_done(&mut self, asked: u32, parts: Vec<Status>) {
        self.requests.finish(asked, Reply::Status(parts));
    }
}

impl StatusJob {
    /// Asks the origin.
    pub(super) fn run(self, origin: &dyn Origin) -> Vec<Status> {
        let whole = || vec![Run { len: self.len, is_hole: false }];
        // One that cannot be asked now holds data, for all that is known.
        let runs = origin.allocation(self.offset, self.len).unwrap_or_else(|_| whole());
        let mut parts = Parts::default();
        let mut at = self.offset;
        for run in runs {
            let end = (at + run.len).min(self.offset + self.len);
            self.add(&mut parts, at, end, run.is_hole);
            at = end;
        }
        if at == self.offset {
            self.add(&mut parts, at, at + self.len, false);
        }
        // The rest is told when it is asked for.
        parts.0.truncate(PARTS_MAX);
        parts.0
    }

    /// Adds a range of which the origin says whether it is a hole.
    fn add(&self, parts: &mut Parts, from: u64, to: u64, is_hole: bool) {
        let mut at = from;
        if from < to {
            let first = Lba::of(from);
            let blocks = (to.div_ceil(BLOCK as u64) - first.0) as u32;
            for (dirty, is_zero) in self.dirty.within(Extent { first, blocks }) {
                let begin = dirty.first.offset().max(from);
                parts.push(begin - at, is_hole, false);
                let end = dirty.end().offset().min(to);
                parts.push(end - begin, is_zero, true);
                at = end;
            }
        }
        parts.push(to - at, is_hole, false);
    }
}

/// Parts of which neighbours differ.
#[derive(Default)]
struct Parts(Vec<Status>);

impl Parts {
    fn push(&mut self, len: u64, is_hole: bool, is_dirty: bool) {
        match self.0.last_mut() {
            _ if len == 0 => {}
            Some(last) if (last.is_hole, last.is_dirty) == (is_hole, is_dirty) => last.len += len,
            _ => self.0.push(Status { len, is_hole, is_dirty }),
        }
    }
}

/// Blocks that are looked at in one go: what that takes, others wait for.
const LOOKS_MAX: u64 = 16_384;
/// Longest reply, in parts.
const PARTS_MAX: usize = 4_096;
/// Longest range that is told at a time, in blocks: what a client can ask for at most.
const BLOCKS_MAX: u64 = 1 << 20;
