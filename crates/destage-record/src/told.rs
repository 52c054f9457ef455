//! What a front end tells a recording beside the core's inputs: what clients asked a volume for, and what units stand for.

use crate::codec::{Bytes, put};
use destage_core::UnitId;
use destage_core::replace::{spread, unspread};

/// What a client asked a volume for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// What is to be done.
    pub what: What,
    /// The first byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What is to be done with a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is read.
    Read,
    /// It is written.
    Write,
    /// It becomes zeros and keeps its room.
    Zero,
    /// It is given up.
    Discard,
    /// It is to be in the cache.
    Cache,
}

/// The first byte of each event; the inputs have those before.
pub(crate) const ASKED: u8 = 0x70;
pub(crate) const BLOCK: u8 = 0x71;
pub(crate) const ROW: u8 = 0x72;

const WHATS: [What; 5] = [What::Read, What::Write, What::Zero, What::Discard, What::Cache];

/// Where the last event of a frame ended: neighbours take few bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Last {
    /// The byte behind what was asked for.
    byte: u64,
    /// The block behind the one that was named.
    block: u64,
}

impl Last {
    pub(crate) fn put_asked(&mut self, out: &mut Vec<u8>, asked: &Asked) {
        let Asked { what, offset, bytes } = *asked;
        let what = match what {
            What::Read => 0,
            What::Write => 1,
            What::Zero => 2,
            What::Discard => 3,
            What::Cache => 4,
        };
        out.extend([ASKED, what]);
        put(out, step(self.byte, offset));
        put(out, bytes);
        self.byte = offset.wrapping_add(bytes);
    }

    pub(crate) fn asked(&mut self, bytes: &mut Bytes<'_>) -> Option<Asked> {
        let what = *WHATS.get(usize::from(bytes.byte()?))?;
        let offset = stepped(self.byte, bytes.number()?);
        let bytes = bytes.number()?;
        self.byte = offset.wrapping_add(bytes);
        // A volume ends before that, and an end beyond all numbers would be none.
        let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= OFFSET_MAX);
        (is_inside && bytes > 0).then_some(Asked { what, offset, bytes })
    }

    pub(crate) fn put_block(&mut self, out: &mut Vec<u8>, unit: UnitId, identity: u64) {
        let block = unspread(identity);
        out.push(BLOCK);
        put(out, unit.0.into());
        put(out, step(self.block, block));
        self.block = block.wrapping_add(1);
    }

    pub(crate) fn block(&mut self, bytes: &mut Bytes<'_>) -> Option<(UnitId, u64)> {
        let unit = UnitId(bytes.number32()?);
        let block = stepped(self.block, bytes.number()?);
        self.block = block.wrapping_add(1);
        Some((unit, spread(block)))
    }
}

/// Bytes of volumes lie below this one.
const OFFSET_MAX: u64 = 1 << 56;

/// What a row is known by in a recording: the same in every run, which a server's own hashes are not.
pub fn row_identity(table: u16, key: &[u8]) -> u64 {
    let bytes = table.to_le_bytes().into_iter().chain(key.iter().copied());
    // FNV-1a leaves the highest bits of short keys alike.
    spread(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

pub(crate) fn put_row(out: &mut Vec<u8>, unit: UnitId, identity: u64) {
    out.push(ROW);
    put(out, unit.0.into());
    out.extend(identity.to_le_bytes());
}

pub(crate) fn row(bytes: &mut Bytes<'_>) -> Option<(UnitId, u64)> {
    Some((UnitId(bytes.number32()?), bytes.fixed64()?))
}

/// From one number to another: small if they are near, whichever is larger.
const fn step(from: u64, to: u64) -> u64 {
    let step = to.wrapping_sub(from).cast_signed();
    (step << 1 ^ step >> 63).cast_unsigned()
}

const fn stepped(from: u64, step: u64) -> u64 {
    from.wrapping_add(step >> 1 ^ (step & 1).wrapping_neg())
}

/// Units that have been named in this part.
#[derive(Debug, Default)]
pub(crate) struct Named(Vec<u64>);

impl Named {
    /// Notes a unit; false if it had been.
    pub(crate) fn insert(&mut self, unit: UnitId) -> bool {
        let (word, bit) = place(unit);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let was = self.0[word] & bit != 0;
        self.0[word] |= bit;
        !was
    }

    /// Its number may stand for something else from now on.
    pub(crate) fn remove(&mut self, unit: UnitId) {
        let (word, bit) = place(unit);
        if let Some(word) = self.0.get_mut(word) {
            *word &= !bit;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

const fn place(unit: UnitId) -> (usize, u64) {
    (unit.0 as usize / 64, 1 << (unit.0 % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_reads_back_and_neighbours_take_few_bytes() {
        let (mut out, mut last) = (Vec::new(), Last::default());
        let all: Vec<Asked> = [(0, 512), (512, 4_096), (1 << 40, 1), (0, 7), ((1 << 56) - 1, 1)]
            .into_iter()
            .zip(WHATS)
            .map(|((offset, bytes), what)| Asked { what, offset, bytes })
            .collect();
        all.iter().for_each(|asked| last.put_asked(&mut out, asked));
        let names = [(UnitId(70_000), spread(5)), (UnitId(1), spread(6)), (UnitId(2), 9)];
        names.iter().for_each(|&(unit, identity)| last.put_block(&mut out, unit, identity));
        put_row(&mut out, UnitId(3), 99);
        let (mut bytes, mut last) = (Bytes(&out), Last::default());
        for asked in all {
            assert_eq!(bytes.byte(), Some(ASKED));
            assert_eq!(last.asked(&mut bytes), Some(asked));
        }
        for name in names {
            assert_eq!(bytes.byte(), Some(BLOCK));
            assert_eq!(last.block(&mut bytes), Some(name));
        }
        assert_eq!(bytes.byte(), Some(ROW));
        assert_eq!((row(&mut bytes), bytes.0.len()), (Some((UnitId(3), 99)), 0));
        let mut short = Vec::new();
        let mut last = Last { byte: 1 << 40, block: 1 << 30 };
        last.put_asked(&mut short, &Asked { what: What::Read, offset: 1 << 40, bytes: 4_096 });
        last.put_block(&mut short, UnitId(9), spread(1 << 30));
        assert_eq!(short.len(), 5 + 3);
    }

    #[test]
    fn what_lies_behind_the_end_of_all_volumes_is_damage() {
        for (offset, len) in [(1 << 56, 1), (u64::MAX, 1), (0, 0), (1, u64::MAX)] {
            let (mut out, mut last) = (Vec::new(), Last::default());
            last.put_asked(&mut out, &Asked { what: What::Read, offset, bytes: len });
            assert_eq!(Last::default().asked(&mut Bytes(&out[1..])), None, "{offset} {len}");
        }
    }
}
