//! What a cache knows its origin to hold, by which a start can tell the right disk from another one.

use super::recover::{OpenError, decided};
use crate::block::{BLOCK, Lba};
use crate::cache::record::{GroupKind, GroupSummary};
use crate::cache::{CacheDevice, Index, SlotState};
use destage_core::Lsn;
use destage_journal::Recovery;
use hashbrown::HashMap;

/// Blocks with the checksums that the origin must have of them if it is the one that the cache was filled from: those
/// destaged last, as far as the log still has them, and clean ones from everywhere; at most [`KNOWN_MAX`] of each kind, in
/// ascending order. None of them is changed by a write that may be under way to the origin.
///
/// # Errors
/// [`OpenError`] if the checkpoint or the log cannot be read.
pub fn known_blocks(
    cache: &CacheDevice,
    recovery: &Recovery,
) -> Result<Vec<(Lba, u32)>, OpenError> {
    let (index, checkpoint) = cache.load_checkpoint(recovery.first_lsn)?;
    // One that lists nothing was left by writes past the log, which may be newer than what the log has.
    let is_log_newest = checkpoint == 0 || index.used() > 0;
    let logged = Logged::read(cache, recovery, Lsn(checkpoint))?;
    let mut known = logged.clean(&index);
    if is_log_newest {
        known.extend(logged.destaged_last());
    }
    known.sort_unstable();
    Ok(known)
}

/// What the log says of blocks.
#[derive(Debug, Default)]
struct Logged {
    /// By block: the newest write of it, and what that leaves there; `None` if the origin may hold that or not.
    newest: HashMap<Lba, (u64, Option<u32>)>,
}

impl Logged {
    fn read(cache: &CacheDevice, recovery: &Recovery, checkpoint: Lsn) -> Result<Self, OpenError> {
        let decided = decided(cache, recovery);
        let zeros = crc32c::crc32c(&[0; BLOCK]);
        let mut logged = Self::default();
        let mut summaries = recovery.summaries(checkpoint.min(decided).0 + 1);
        while let Some(summary) = summaries.advance()? {
            let broken = |source| OpenError::Record { lsn: summary.lsn, source };
            let group =
                GroupSummary::decode(summary.summary, summary.payload_bytes).map_err(broken)?;
            let lbas = group.header.extents.iter().flat_map(|extent| extent.iter());
            for (place, lba) in lbas.enumerate() {
                let crc = match group.header.kind {
                    GroupKind::Write => group.crcs.get(place).copied(),
                    _ => Some(zeros),
                };
                // What stands at or before the checkpoint may be older than what went past the log.
                let is_known = summary.lsn <= decided.0 && summary.lsn > checkpoint.0;
                logged.newest.insert(lba, (summary.lsn, crc.filter(|_| is_known)));
            }
        }
        Ok(logged)
    }

    fn destaged_last(&self) -> Vec<(Lba, u32)> {
        let known = self.newest.iter().filter_map(|(&lba, &(lsn, crc))| Some((lsn, lba, crc?)));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        known.iter().rev().take(KNOWN_MAX).map(|&(_, lba, crc)| (lba, crc)).collect()
    }

    fn clean(&self, index: &Index) -> Vec<(Lba, u32)> {
        let clean = |handle| match (index.state(handle), index.lba(handle)) {
            (SlotState::Clean(crc), Some(lba)) => Some((lba, crc)),
            _ => None,
        };
        let clean = (0..index.slots()).filter_map(clean);
        let mut clean: Vec<_> = clean.filter(|(lba, _)| !self.newest.contains_key(lba)).collect();
        clean.sort_unstable();
        let every = clean.len().div_ceil(KNOWN_MAX).max(1);
        clean.into_iter().step_by(every).collect()
    }
}

/// Most blocks of each kind that are named: what a slow disk reads in seconds.
const KNOWN_MAX: usize = 1_024;
