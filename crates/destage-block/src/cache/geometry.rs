//! Where everything lies on the cache device.

use super::CacheError;
use super::index::{ENTRY_BYTES, Index, chunk_handles};
use crate::block::BLOCK;
use destage_engine::defaults;
use destage_journal::Options;
use std::ops::Range;

/// What a new cache device is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Bytes of the whole device; rounded down to 4 KiB.
    pub total_bytes: u64,
    /// Bytes for the log of writes. Default a quarter of the whole, 64 MiB to 32 GiB, at most half.
    pub log_bytes: Option<u64>,
    /// Bytes of a segment of the log: 64 KiB to 256 MiB. Default a sixty-fourth of the log, 8 MiB to 32 MiB, at most an
    /// eighth.
    pub segment_bytes: Option<u64>,
}

/// The parts of a cache device, each at a multiple of 4 KiB: superblocks and marks, two name tables, two checkpoints, the
/// log's extents, the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole device.
    pub total_bytes: u64,
    /// Bytes of an extent of the log: one segment.
    pub segment_bytes: u64,
    /// Extents of the log.
    pub extents: u32,
    /// Slots of 4 KiB for clean blocks.
    pub slots: u32,
}

impl Geometry {
    /// Divides a device.
    ///
    /// # Errors
    /// [`CacheError::Invalid`] if the sizes do not work out; the message names the smallest one that does.
    pub fn plan(sizing: &Sizing) -> Result<Self, CacheError> {
        let total_bytes = sizing.total_bytes / PAGE * PAGE;
        let log_bytes =
            sizing.log_bytes.unwrap_or_else(|| defaults::volume::log_bytes(total_bytes));
        let segment_bytes = sizing.segment_bytes.unwrap_or_else(|| {
            let usual = log_bytes / 64;
            let bounded = usual.clamp(SEGMENT_BYTES_DEFAULT.start, SEGMENT_BYTES_DEFAULT.end);
            bounded.min(log_bytes / 8).max(Options::SEGMENT_BYTES_MIN)
        });
        let segment_bytes = segment_bytes / PAGE * PAGE;
        let segments = Options::SEGMENT_BYTES_MIN..=Options::SEGMENT_BYTES_MAX;
        if !segments.contains(&segment_bytes) {
            return Err(CacheError::Invalid(
                "a segment of the log is 64 KiB to 256 MiB".to_owned(),
            ));
        }
        let extents = u32::try_from(log_bytes / segment_bytes).unwrap_or(u32::MAX);
        if !(EXTENTS_MIN..=EXTENTS_MAX).contains(&extents) {
            return Err(CacheError::Invalid(format!(
                "a log of {log_bytes} bytes does not work with segments of {segment_bytes} bytes: use {EXTENTS_MIN} to \
                 {EXTENTS_MAX} segments"
            )));
        }
        let fixed = Self { total_bytes, segment_bytes, extents, slots: 0 };
        let slots = fixed.slots_that_fit();
        let planned = Self { slots, ..fixed };
        if slots < SLOTS_MIN {
            let least = Self { slots: SLOTS_MIN, ..fixed }.end();
            return Err(CacheError::Invalid(format!(
                "a cache of {total_bytes} bytes with a log of {log_bytes} bytes has no room for clean blocks: it needs at \
                 least {least} bytes"
            )));
        }
        Ok(planned)
    }

    fn slots_that_fit(&self) -> u32 {
        let room = self.total_bytes.saturating_sub(self.end());
        let each = BLOCK as u64 + 2 * ENTRY_BYTES as u64;
        let mut slots = (room / each).min(u64::from(Index::SLOTS_MAX)) as u32;
        // Rounding to pages takes a little more.
        while slots > 0 && (Self { slots, ..*self }).end() > self.total_bytes {
            slots -= 1;
        }
        slots
    }

    /// Whether the parts fit; a superblock may say anything.
    pub(crate) fn is_sound(&self) -> bool {
        let segments = Options::SEGMENT_BYTES_MIN..=Options::SEGMENT_BYTES_MAX;
        segments.contains(&self.segment_bytes)
            && self.segment_bytes.is_multiple_of(PAGE)
            && (EXTENTS_MIN..=EXTENTS_MAX).contains(&self.extents)
            && (SLOTS_MIN..=Index::SLOTS_MAX).contains(&self.slots)
            && self.end() <= self.total_bytes
    }

    /// Bytes of the log.
    pub fn log_bytes(&self) -> u64 {
        self.segment_bytes * u64::from(self.extents)
    }

    /// Where a copy (0 or 1) of the name table lies.
    pub fn name_table(&self, copy: usize) -> Range<u64> {
        let bytes = (TABLE_HEADER + TABLE_ENTRY * u64::from(self.extents)).next_multiple_of(PAGE);
        run(HEAD_BYTES, copy, bytes)
    }

    /// Where a checkpoint (0 or 1) lies: its header's page, then its chunks.
    pub fn checkpoint(&self, area: usize) -> Range<u64> {
        let chunks = u64::from(self.chunks());
        let bytes = PAGE + chunks * self.chunk_bytes();
        run(self.name_table(1).end, area, bytes)
    }

    /// Runs of a checkpoint.
    pub fn chunks(&self) -> u32 {
        self.slots.div_ceil(chunk_handles(self.slots))
    }

    /// Handles in a run of a checkpoint.
    pub(crate) fn chunk_handles(&self, chunk: u32) -> u32 {
        let handles = chunk_handles(self.slots);
        (self.slots - chunk * handles).min(handles)
    }

    /// From one chunk of a checkpoint to the next.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        let handles = u64::from(chunk_handles(self.slots));
        (CHUNK_HEADER + handles * ENTRY_BYTES as u64).next_multiple_of(PAGE)
    }

    /// Where an extent of the log begins.
    pub fn extent(&self, extent: u32) -> u64 {
        self.checkpoint(1).end + u64::from(extent) * self.segment_bytes
    }

    /// Where a slot begins.
    pub fn slot(&self, slot: u32) -> u64 {
        self.extent(self.extents) + u64::from(slot) * BLOCK as u64
    }

    fn end(&self) -> u64 {
        self.slot(self.slots)
    }
}

fn run(from: u64, index: usize, bytes: u64) -> Range<u64> {
    let start = from + index as u64 * bytes;
    start..start + bytes
}

/// Where the copies of the superblock lie: far apart, so that one stray write does not take both.
pub(crate) const SUPERBLOCKS: [u64; 2] = [0, 32 << 10];
/// Where the decided marks lie, each on a page of its own.
pub(crate) const MARKS: [u64; 2] = [4 << 10, 36 << 10];
pub(crate) const PAGE: u64 = 4096;
/// Bytes before the first name table.
pub(crate) const HEAD_BYTES: u64 = 64 << 10;
pub(crate) const TABLE_HEADER: u64 = 24;
pub(crate) const TABLE_ENTRY: u64 = 64;
pub(crate) const CHUNK_HEADER: u64 = 32;

/// Segments being written, prepared, being recycled and holding what is not decided.
const EXTENTS_MIN: u32 = 6;
const EXTENTS_MAX: u32 = 1 << 16;
const SLOTS_MIN: u32 = 16;
const SEGMENT_BYTES_DEFAULT: Range<u64> = 8 << 20..32 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(total_bytes: u64) -> Geometry {
        Geometry::plan(&Sizing { total_bytes, log_bytes: None, segment_bytes: None }).unwrap()
    }

    #[test]
    fn parts_follow_one_another_in_pages_and_fill_the_device() {
        for total in [2 << 20, 64 << 20, (1 << 30) + 1234, 20 << 30, 1 << 40, 3 << 40] {
            let g = plan(total);
            assert!(g.is_sound());
            assert!(MARKS[1] + PAGE <= HEAD_BYTES);
            let parts = [
                g.name_table(0),
                g.name_table(1),
                g.checkpoint(0),
                g.checkpoint(1),
                g.extent(0)..g.extent(g.extents),
                g.slot(0)..g.slot(g.slots),
            ];
            let mut at = HEAD_BYTES;
            for part in parts {
                assert_eq!(part.start, at, "{g:?}");
                assert!(part.start.is_multiple_of(PAGE) && part.end > part.start);
                at = part.end;
            }
            assert!(at <= total && total - at < 2 * g.chunk_bytes() + 2 * PAGE, "{total}: {g:?}");
            let chunk_end = |c: u32| {
                let handles = u64::from(g.chunk_handles(c));
                g.checkpoint(0).start
                    + PAGE
                    + u64::from(c) * g.chunk_bytes()
                    + CHUNK_HEADER
                    + 8 * handles
            };
            assert!(chunk_end(g.chunks() - 1) <= g.checkpoint(0).end);
        }
    }

    #[test]
    fn defaults_follow_the_size() {
        assert_eq!(plan(20 << 30).log_bytes(), 5 << 30);
        assert_eq!(plan(20 << 30).segment_bytes, 32 << 20);
        assert_eq!(plan(1 << 30).segment_bytes, 8 << 20);
        assert_eq!(plan(1 << 40).log_bytes(), 32 << 30);
        assert_eq!(plan(128 << 20).log_bytes(), 64 << 20);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let refused = |total_bytes, log_bytes, segment_bytes| {
            let sizing = Sizing { total_bytes, log_bytes, segment_bytes };
            Geometry::plan(&sizing).unwrap_err().to_string()
        };
        let small = refused(64 << 20, Some(64 << 20), None);
        assert!(small.contains("at least"), "{small}");
        assert!(refused(1 << 30, Some(64 << 20), Some(32 << 20)).contains("segments"));
        assert!(refused(1 << 30, None, Some(1 << 30)).contains("64 KiB to 256 MiB"));
        assert!(refused(0, None, None).contains("segments"));
    }
}
