//! Which batch comes next: the rule that tells this journal's newest bytes from torn, stale and foreign ones.

use crate::format::{BATCH_HEADER, BatchHeader, FLAG_SKIP, SECTOR, SegmentHeader, padded, seed};

/// The state after some batch; the next one must follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    seed: u32,
    pub(crate) sequence: u64,
    /// Later batches have this or a higher one: what a cut left behind has a lower one.
    pub(crate) incarnation: u64,
    pub(crate) next_lsn: u64,
    /// The highest mark so far.
    pub(crate) durable: u64,
}

/// A batch that follows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) header: BatchHeader,
    pub(crate) payload: &'a [u8],
    /// Where the next batch starts.
    pub(crate) end: usize,
}

/// What lies behind the end of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing of this journal's newest incarnations.
    Clean,
    /// Batches that were never known durable; `end` is after the last recognisable one.
    Torn { end: usize },
    /// A batch written after the broken one says that the broken one was durable, or is not where it was written.
    Damaged,
}

impl Chain {
    /// The state before a segment's first batch, as its header says.
    pub(crate) fn begin(header: &SegmentHeader) -> Self {
        Self {
            seed: seed(&header.uuid),
            sequence: header.first_sequence,
            incarnation: header.incarnation,
            next_lsn: header.first_lsn,
            durable: 0,
        }
    }

    /// Whether a segment with this header may follow.
    pub(crate) fn admits(&self, header: &SegmentHeader) -> bool {
        header.first_sequence == self.sequence
            && header.first_lsn == self.next_lsn
            && header.incarnation >= self.incarnation
    }

    /// The batch at `offset`, if it is the next one; the chain moves on to it.
    pub(crate) fn follow<'a>(&mut self, bytes: &'a [u8], offset: usize) -> Option<Batch<'a>> {
        let rest = bytes.get(offset..)?;
        // The cheap comparisons first: most ends of a chain are bytes of long ago.
        let claimed = BatchHeader::peek(rest)?;
        let skips = claimed.flags & FLAG_SKIP != 0 && claimed.first_lsn > self.next_lsn;
        let fits = claimed.sequence == self.sequence
            && claimed.incarnation >= self.incarnation
            && (claimed.first_lsn == self.next_lsn || skips)
            && claimed.durable < claimed.first_lsn;
        if !fits {
            return None;
        }
        let (header, payload) = BatchHeader::decode(rest, self.seed)?;
        self.sequence = header.sequence.checked_add(1)?;
        self.incarnation = header.incarnation;
        self.next_lsn = header.next_lsn();
        self.durable = self.durable.max(header.durable);
        Some(Batch { header, payload, end: offset + batch_bytes(payload) })
    }

    /// Judges the bytes from `offset`, where no batch follows.
    pub(crate) fn judge(&self, bytes: &[u8], offset: usize) -> Tail {
        let mut tail = Tail::Clean;
        let claimed = bytes.get(offset..).and_then(BatchHeader::peek);
        if claimed.is_some_and(|h| h.sequence == self.sequence && h.incarnation >= self.incarnation)
        {
            tail = Tail::Torn { end: (offset + SECTOR).min(bytes.len()) };
        }
        let mut at = offset + SECTOR;
        while at < bytes.len() {
            if let Some((header, end)) = self.later(bytes, at) {
                if header.durable >= self.next_lsn {
                    return Tail::Damaged;
                }
                tail = Tail::Torn { end };
            }
            at += SECTOR;
        }
        // A crash tears sectors and moves nothing: bytes were taken out or put in before what lies anywhere else.
        let moved = |at: usize| !at.is_multiple_of(SECTOR) && self.later(bytes, at).is_some();
        if magics(bytes, offset).any(moved) { Tail::Damaged } else { tail }
    }

    /// A batch at `at` that was written after the chain's end, and where it ends.
    fn later(&self, bytes: &[u8], at: usize) -> Option<(BatchHeader, usize)> {
        let rest = bytes.get(at..)?;
        let claimed = BatchHeader::peek(rest)?;
        if claimed.sequence <= self.sequence || claimed.incarnation < self.incarnation {
            return None;
        }
        let (header, payload) = BatchHeader::decode(rest, self.seed)?;
        let end = at + batch_bytes(payload);
        Some((header, end.min(bytes.len())))
    }

    /// The highest group in any intact batch of this journal in `bytes`, of whatever age.
    pub(crate) fn highest_lsn(&self, bytes: &[u8]) -> u64 {
        let batches = (0..bytes.len()).step_by(SECTOR);
        let found = batches.filter_map(|at| BatchHeader::decode(&bytes[at..], self.seed));
        let fresh = found.filter(|(h, _)| h.sequence >= self.sequence && h.records > 0);
        fresh.map(|(h, _)| h.next_lsn() - 1).max().unwrap_or(0)
    }

    /// Whether any batch of this chain's present or future is in `bytes`.
    pub(crate) fn any_at_or_after(&self, bytes: &[u8]) -> bool {
        magics(bytes, 0).any(|at| {
            let claimed = BatchHeader::peek(&bytes[at..]);
            claimed
                .is_some_and(|h| h.sequence >= self.sequence && h.incarnation >= self.incarnation)
                && BatchHeader::decode(&bytes[at..], self.seed).is_some()
        })
    }
}

/// Where from `from` on a batch may begin, whether or not at the start of a sector.
fn magics(bytes: &[u8], from: usize) -> impl Iterator<Item = usize> + '_ {
    let chunk = move |i: usize| {
        let start = from + i * SECTOR;
        let bytes = &bytes[start..(start + SECTOR).min(bytes.len())];
        // Most of a segment is zeros, which is told at once.
        let filled = if *bytes == [0; SECTOR] { &[][..] } else { bytes };
        filled.iter().enumerate().filter(|(_, byte)| **byte == b'D').map(move |(i, _)| start + i)
    };
    (0..bytes.len().saturating_sub(from).div_ceil(SECTOR)).flat_map(chunk)
}

/// Bytes that a batch with this payload takes on disk.
fn batch_bytes(payload: &[u8]) -> usize {
    padded(BATCH_HEADER + payload.len())
}
