//! Groups of an origin that is replaced as a whole: nothing of them goes through the store's halves. The store keeps the
//! attach record and the evidence; how far the origin has come stands with the origin itself, since only that changes in the
//! same instant.

use super::apply::{clear_tail, write_runs};
use super::chunks::Chunk;
use super::group::{AtomicGroup, Payload};
use super::{RecentBlocks, RedoError, RedoStore};
use crate::attach;
use crate::block::{BLOCK, Lba};
use crate::origin::{Origin, SnapshotNote};
use crc32c::crc32c;
use destage_core::Lsn;
use std::sync::{Mutex, PoisonError};

impl RedoStore {
    /// Groups are applied by [`Origin::replace`] from now on.
    pub fn set_snapshots(&mut self, on: bool) {
        self.takes_snapshots = on;
    }

    /// As [`RedoStore::done`], for an origin that may have been replaced since.
    pub fn applied(&self, origin: &dyn Origin) -> Lsn {
        let note = origin.snapshot_note();
        let ours = note.filter(|note| note.cache == self.header.attach.cache);
        self.done().max(ours.map_or(Lsn::ZERO, |note| note.done))
    }

    /// Takes up how far the origin has come.
    pub(super) fn take_note(&mut self, origin: &dyn Origin) {
        let applied = self.applied(origin);
        if applied > self.done() {
            self.header.done_lsn = applied;
            self.header_stale = true;
        }
        self.resumed = self.resumed.max(applied);
    }

    /// A group that was checked already.
    pub(super) fn replace(
        &mut self,
        origin: &dyn Origin,
        group: &AtomicGroup,
        payload: &dyn Payload,
    ) -> Result<(), RedoError> {
        // Or a replay could put the store's last group over this one.
        self.settle()?;
        self.void_outdated_evidence(origin, group)?;
        // The origin says what it was first.
        let note =
            SnapshotNote { store: String::new(), cache: self.header.attach.cache, done: group.to };
        let sums = Mutex::new(Vec::new());
        origin.replace(&note, &|copy| {
            let size = copy.size();
            write_runs(copy, group.runs.iter().copied(), |chunk, buf| {
                payload.fill(chunk.extent.first, buf)?;
                clear_tail(chunk, size, buf);
                let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
                sums.extend(chunk_sums(chunk, buf));
                Ok(())
            })?;
            // As late as can be: what another host does after this is not seen.
            Ok(self.check_fence()?)
        })?;
        self.header.done_lsn = group.to;
        let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.note_replaced(group, sums);
        if let Err(error) = attach::leave_evidence(self, origin, group.to) {
            tracing::debug!(%error, "no evidence was left of the last group");
        }
        Ok(())
    }

    fn note_replaced(&mut self, group: &AtomicGroup, mut sums: Vec<(Lba, u32)>) {
        group.runs.iter().for_each(|run| self.recent.forget(run.extent));
        // The same whatever the order of the writes was. Earlier ones would only be pushed out again.
        sums.sort_unstable();
        let skip = sums.len().saturating_sub(RecentBlocks::MAX);
        sums.iter().skip(skip).for_each(|&(lba, crc)| self.recent.push(lba, crc));
    }
}

fn chunk_sums(chunk: &Chunk, bytes: &[u8]) -> Vec<(Lba, u32)> {
    chunk.extent.iter().zip(bytes.chunks(BLOCK).map(crc32c)).collect()
}
