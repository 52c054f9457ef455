//! What clients did to a volume's sectors at the same time, and which contents and reads that allows.

use destage_block::nbd::client::Client;
use std::sync::atomic::{AtomicU64, Ordering};

/// The least that clients write, bytes: an eighth of a block.
pub(crate) const SECTOR: usize = 512;
pub(crate) const SECTORS: u64 = (8 << 20) / SECTOR as u64;
/// The end of what was never answered.
const NEVER: u64 = u64::MAX;
/// Sectors of zeros.
const ZEROS: u64 = 0;

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Write { fua: bool },
    Zero { fua: bool, punch: bool },
    Trim { fua: bool },
    Read,
    Flush,
}

impl Kind {
    fn is_fua(self) -> bool {
        matches!(self, Self::Write { fua } | Self::Zero { fua, .. } | Self::Trim { fua } if fua)
    }

    fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::Flush)
    }
}

/// A request: sent at one stamp, answered at another one.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    kind: Kind,
    first: u64,
    sectors: u64,
    start: u64,
    end: u64,
    /// What a read showed, sector by sector.
    seen: Vec<u64>,
}

impl Operation {
    pub(crate) fn is_answered(&self) -> bool {
        self.end != NEVER
    }

    /// What the sectors hold afterwards.
    fn content(&self) -> u64 {
        match self.kind {
            Kind::Write { .. } => self.start,
            _ => ZEROS,
        }
    }
}

/// A clock that orders what all clients send and receive; a write's start is also its content.
#[derive(Debug)]
pub(crate) struct Stamps(AtomicU64);

impl Default for Stamps {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl Stamps {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn carry_out(
        &self,
        client: &Client,
        kind: Kind,
        first: u64,
        sectors: u64,
    ) -> Operation {
        let (at, len) = (first * SECTOR as u64, sectors * SECTOR as u64);
        let mut bytes = vec![0; if kind == Kind::Read { len as usize } else { 0 }];
        let start = self.next();
        let done = match kind {
            Kind::Write { fua } => client.write(at, &filled(start, first, sectors), fua),
            Kind::Zero { fua, punch } => client.zero(at, len, punch, fua),
            Kind::Trim { fua } => client.trim(at, len, fua),
            Kind::Read => client.read(at, &mut bytes),
            Kind::Flush => client.flush(),
        };
        let end = if done.is_ok() { self.next() } else { NEVER };
        let seen = stamps_of(&bytes, first).unwrap_or_else(|error| panic!("{error}"));
        Operation { kind, first, sectors, start, end, seen }
    }
}

/// Sectors that each name the write and their own place.
fn filled(stamp: u64, first: u64, sectors: u64) -> Vec<u8> {
    let sector = |place: u64| [stamp.to_le_bytes(), place.to_le_bytes()].concat();
    (first..first + sectors).flat_map(|place| sector(place).repeat(SECTOR / 16)).collect()
}

fn stamps_of(bytes: &[u8], first: u64) -> Result<Vec<u64>, String> {
    let sectors = bytes.chunks_exact(SECTOR).zip(first..);
    sectors
        .map(|(bytes, place)| {
            let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            let is_whole = match stamp {
                ZEROS => bytes.iter().all(|&byte| byte == 0),
                _ => bytes == filled(stamp, place, 1),
            };
            is_whole.then_some(stamp).ok_or_else(|| format!("sector {place} is torn or misplaced"))
        })
        .collect()
}

/// What all sectors hold.
pub(crate) struct Content(Vec<u64>);

impl Content {
    /// Of a whole volume; an error for a sector that is torn.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, String> {
        stamps_of(bytes, 0).map(Self)
    }
}

/// What was done, by any number of clients.
#[derive(Debug, Default)]
pub(crate) struct Record {
    operations: Vec<Operation>,
    /// What the volume held for certain at a stamp, and that stamp; at first zeros.
    settled: Option<(Vec<u64>, u64)>,
    answered: u64,
}

/// A change of one sector.
#[derive(Clone, Copy)]
struct Change {
    content: u64,
    start: u64,
    end: u64,
    is_durable: bool,
}

impl Record {
    pub(crate) fn add(&mut self, operation: Operation) {
        self.answered += u64::from(operation.is_answered());
        self.operations.push(operation);
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.answered += other.answered;
        self.operations.extend(other.operations);
    }

    /// Requests that were answered.
    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// The changes of each sector, beginning with what was settled.
    fn changes(&self, is_durable_at_once: bool) -> Vec<Vec<Change>> {
        let answered = |kind: &Kind| *kind == Kind::Flush;
        let flushes = self.operations.iter().filter(|o| answered(&o.kind) && o.is_answered());
        // Only the newest flush counts: what ended before any of them ended before its start.
        let flushed = flushes.map(|flush| flush.start).max().unwrap_or(0);
        let mut sectors: Vec<Vec<Change>> = match &self.settled {
            Some((content, at)) => content
                .iter()
                .map(|&content| vec![Change { content, start: *at, end: *at, is_durable: true }])
                .collect(),
            None => {
                let zeros = Change { content: ZEROS, start: 0, end: 0, is_durable: true };
                vec![vec![zeros]; SECTORS as usize]
            }
        };
        for operation in self.operations.iter().filter(|operation| operation.kind.changes()) {
            let is_durable = operation.is_answered()
                && (is_durable_at_once || operation.kind.is_fua() || operation.end < flushed);
            let Operation { first, sectors: count, start, end, .. } = *operation;
            let change = Change { content: operation.content(), start, end, is_durable };
            for sector in first..first + count {
                sectors[sector as usize].push(change);
            }
        }
        sectors
    }

    /// Whether a kill may leave this: in each sector a change that no durable one came after.
    pub(crate) fn allows(&self, content: &Content, is_durable_at_once: bool) -> Result<(), String> {
        for (sector, changes) in self.changes(is_durable_at_once).iter().enumerate() {
            let durable = changes.iter().filter(|change| change.is_durable);
            let newest = durable.map(|change| change.start).max().unwrap_or(0);
            let held = content.0[sector];
            if !changes.iter().any(|change| change.content == held && change.end >= newest) {
                return Err(format!(
                    "sector {sector} holds {held}, but the durable write {newest} came after it"
                ));
            }
        }
        Ok(())
    }

    /// Whether each read showed a change that had begun, and after which no other one had ended and begun before the read.
    pub(crate) fn reads_are_right(&self) -> Result<(), String> {
        let mut sectors = self.changes(true);
        let mut ends = Vec::with_capacity(sectors.len());
        for changes in &mut sectors {
            changes.sort_by_key(|change| change.end);
            let mut newest = 0;
            let starts = changes.iter().map(|change| {
                newest = newest.max(change.start);
                newest
            });
            ends.push(starts.collect::<Vec<u64>>());
        }
        for read in self.operations.iter().filter(|o| o.kind == Kind::Read && o.is_answered()) {
            for (sector, &seen) in (read.first as usize..).zip(&read.seen) {
                let changes = &sectors[sector];
                let before = changes.partition_point(|change| change.end < read.start);
                let newest = if before == 0 { 0 } else { ends[sector][before - 1] };
                let fits = |change: &Change| {
                    change.content == seen && change.start < read.end && change.end >= newest
                };
                if !changes.iter().any(fits) {
                    return Err(format!(
                        "a read from {} to {} saw {seen} in sector {sector}, outdated by {newest} or not written yet",
                        read.start, read.end
                    ));
                }
            }
        }
        Ok(())
    }

    /// From here on the volume holds this for certain, whatever was under way.
    pub(crate) fn settle(&mut self, content: &Content, stamps: &Stamps) {
        self.operations.clear();
        self.settled = Some((content.0.clone(), stamps.next()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(kind: Kind, sector: u64, start: u64, end: u64) -> Operation {
        Operation { kind, first: sector, sectors: 1, start, end, seen: Vec::new() }
    }

    fn content(first: u64) -> Content {
        let mut sectors = vec![ZEROS; SECTORS as usize];
        sectors[0] = first;
        Content(sectors)
    }

    const WRITE: Kind = Kind::Write { fua: false };

    #[test]
    fn what_was_flushed_may_not_be_missing() {
        let mut record = Record::default();
        record.add(operation(WRITE, 0, 1, 4));
        record.add(operation(WRITE, 0, 2, 3));
        record.add(operation(Kind::Flush, 0, 5, 6));
        record.add(operation(WRITE, 0, 7, 8));
        record.add(operation(WRITE, 0, 9, NEVER));
        for (held, is_allowed) in
            [(0, false), (1, true), (2, true), (7, true), (9, true), (5, false)]
        {
            assert_eq!(record.allows(&content(held), false).is_ok(), is_allowed, "{held}");
        }
        assert!(record.allows(&content(1), true).is_err(), "7 was durable at once");
    }

    #[test]
    fn reads_may_show_what_overlapped_and_nothing_outdated() {
        for (seen, is_right) in [(0, false), (1, false), (3, true), (5, true), (20, false)] {
            let mut record = Record::default();
            record.add(operation(WRITE, 0, 1, 2));
            record.add(operation(WRITE, 0, 3, 4));
            record.add(operation(WRITE, 0, 5, 9));
            record.add(operation(WRITE, 0, 20, 21));
            record.add(Operation { seen: vec![seen], ..operation(Kind::Read, 0, 6, 8) });
            assert_eq!(record.reads_are_right().is_ok(), is_right, "{seen}");
        }
    }
}
