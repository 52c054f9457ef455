//! What the origin looked like when it was last known: two alternating copies in the store.

use super::format::{PAGE, cut, u32_at, u64_at};
use super::{RecentBlocks, RedoError, RedoStore};
use crate::block::{Extent, Lba};
use crc32c::crc32c_append;
use destage_core::Lsn;

/// See [`crate::attach`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// One more each time; set when it is written.
    pub(crate) sequence: u64,
    /// The origin held everything up to here.
    pub(crate) upto: Lsn,
    pub(crate) origin_bytes: u64,
    pub(crate) modified_ns: Option<u64>,
    /// Nothing was under way, and nothing was to come.
    pub(crate) is_clean: bool,
    /// Checksums of the first and the last MiB.
    pub(crate) edges: Option<(u32, u32)>,
    /// See [`crate::origin::Identity::store`].
    pub(crate) store: String,
    /// Blocks with their checksums, the one destaged last at the end.
    pub(crate) blocks: Vec<(Lba, u32)>,
}

impl Evidence {
    /// As much of a name as is kept.
    pub(crate) fn cut_store(store: &str) -> &str {
        cut(store, STORE_BYTES_MAX)
    }

    pub(super) fn encode(&self, seed: u32) -> Vec<u8> {
        let mut out = Vec::with_capacity(EVIDENCE_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 4]);
        let modified = self.modified_ns.unwrap_or(0);
        for word in [self.sequence, self.upto.0, self.origin_bytes, modified] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        let flags = u32::from(self.is_clean) * CLEAN
            + u32::from(self.edges.is_some()) * EDGES
            + u32::from(self.modified_ns.is_some()) * MODIFIED;
        let (first, last) = self.edges.unwrap_or((0, 0));
        let store = Self::cut_store(&self.store).as_bytes();
        let counts = (store.len() as u32) << 16 | self.blocks.len() as u32;
        for word in [flags, first, last, counts] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(store);
        out.resize(BLOCKS_OFFSET, 0);
        for (lba, crc) in &self.blocks {
            out.extend_from_slice(&lba.0.to_le_bytes());
            out.extend_from_slice(&crc.to_le_bytes());
        }
        out.resize(EVIDENCE_BYTES, 0);
        let crc = crc32c_append(seed, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let bytes = bytes.get(..EVIDENCE_BYTES)?;
        if &bytes[..4] != MAGIC || u32_at(bytes, 4) != crc32c_append(seed, &bytes[8..]) {
            return None;
        }
        let flags = u32_at(bytes, 40);
        let counts = u32_at(bytes, 52);
        let store_len = (counts >> 16) as usize;
        let count = (counts & 0xffff) as usize;
        if store_len > STORE_BYTES_MAX || count > RecentBlocks::MAX {
            return None;
        }
        let blocks = bytes[BLOCKS_OFFSET..].chunks_exact(BLOCK_ENTRY).take(count);
        let edges = (u32_at(bytes, 44), u32_at(bytes, 48));
        Some(Self {
            sequence: u64_at(bytes, 8),
            upto: Lsn(u64_at(bytes, 16)),
            origin_bytes: u64_at(bytes, 24),
            modified_ns: (flags & MODIFIED != 0).then(|| u64_at(bytes, 32)),
            is_clean: flags & CLEAN != 0,
            edges: (flags & EDGES != 0).then_some(edges),
            store: String::from_utf8_lossy(&bytes[56..56 + store_len]).into_owned(),
            blocks: blocks.map(|b| (Lba(u64_at(b, 0)), u32_at(b, 8))).collect(),
        })
    }
}

impl RedoStore {
    /// The newest intact evidence.
    pub(crate) fn read_evidence(&self) -> Result<Option<Evidence>, RedoError> {
        let mut newest: Option<Evidence> = None;
        for offset in EVIDENCE_OFFSETS {
            let Some(found) = self.read_copy(offset)? else { continue };
            if newest.as_ref().is_none_or(|newest| newest.sequence < found.sequence) {
                newest = Some(found);
            }
        }
        Ok(newest)
    }

    fn read_copy(&self, offset: u64) -> Result<Option<Evidence>, RedoError> {
        let mut bytes = vec![0; EVIDENCE_BYTES];
        self.medium.read(offset, &mut bytes)?;
        Ok(Evidence::decode(&bytes, self.seed()))
    }

    /// A block has reached the origin past the store; `crc` as in [`RecentBlocks::push`].
    pub fn note_destaged(&mut self, lba: Lba, crc: u32) {
        self.recent.push(lba, crc);
    }

    /// Blocks were made zeros at the origin past the store.
    pub fn note_zeroed(&mut self, extent: Extent) {
        self.recent.forget(extent);
    }

    /// Up to where the origin held everything when the newest evidence was left.
    ///
    /// # Errors
    /// As the medium reports them.
    pub fn evidence_upto(&self) -> Result<Option<Lsn>, RedoError> {
        Ok(self.read_evidence()?.map(|evidence| evidence.upto))
    }

    /// Up to where evidence says what blocks hold that a start after a crash may find: either copy may be torn then.
    pub(crate) fn evidence_reach(&mut self) -> Result<Lsn, RedoError> {
        if let Some(reach) = self.evidence_reach {
            return Ok(reach);
        }
        let mut reach = Lsn::ZERO;
        for offset in EVIDENCE_OFFSETS {
            let named = self.read_copy(offset)?.filter(|copy| !copy.blocks.is_empty());
            reach = reach.max(named.map_or(Lsn::ZERO, |copy| copy.upto));
        }
        self.evidence_reach = Some(reach);
        Ok(reach)
    }

    /// As [`RedoStore::write_evidence`], of evidence that names no blocks, durably, and in both copies: what is written later
    /// over one of them may be torn by a crash, and what was written over the other one not be there at all.
    pub(crate) fn void_evidence(&mut self, evidence: &Evidence) -> Result<(), RedoError> {
        self.losses = self.medium.losses();
        self.write_evidence(evidence)?;
        self.write_evidence(evidence)?;
        self.flush()?;
        self.is_evidence_void = true;
        self.evidence_reach = Some(Lsn::ZERO);
        Ok(())
    }

    /// Replaces the older evidence. Durable by the next flush of the store; if that copy is torn, the other one counts.
    pub(crate) fn write_evidence(&mut self, evidence: &Evidence) -> Result<(), RedoError> {
        let sequence = match self.evidence_sequence {
            Some(sequence) => sequence,
            None => self.read_evidence()?.map_or(0, |newest| newest.sequence),
        } + 1;
        self.evidence_reach = Some(self.evidence_reach()?.max(evidence.upto));
        let evidence = Evidence { sequence, ..evidence.clone() };
        let offset = EVIDENCE_OFFSETS[(sequence % 2) as usize];
        self.evidence_sequence = Some(sequence);
        self.is_evidence_void = false;
        Ok(self.medium.write(offset, &evidence.encode(self.seed()))?)
    }
}

/// Where the two copies begin.
const EVIDENCE_OFFSETS: [u64; 2] = [2 * PAGE, 6 * PAGE];
const EVIDENCE_BYTES: usize = 4 * PAGE as usize;
const MAGIC: &[u8; 4] = b"DSTE";
const CLEAN: u32 = 1;
const EDGES: u32 = 2;
const MODIFIED: u32 = 4;
const STORE_BYTES_MAX: usize = 512;
const BLOCKS_OFFSET: usize = 568;
const BLOCK_ENTRY: usize = 12;
