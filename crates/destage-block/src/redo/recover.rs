//! After a crash, or an error in the middle of a group: finish it or drop it.
//!
//! | the newest group | what is at the origin | what recovery does |
//! |---|---|---|
//! | has no commit record, or a torn one | nothing of it | drops it |
//! | has one, and the headers do not say that it is done | any part of it | writes it again, whole |
//! | is done, as a header says | all of it | nothing |
//!
//! Writing a group again is safe as often as it happens, because it says what blocks become and not how they change. Before a
//! block is written it must hold what the group noted as its pre-image, or what the group makes of it. Anything else was put
//! there by someone who does not know of the cache, and is not overwritten unless the operator says so.

use super::apply::{flush_origin, write_in_place};
use super::chunks::{Chunk, clipped, in_parallel};
use super::format::{Commit, GroupHeader, PAGE, SECTOR, SectorSums};
use super::joint::{InDoubt, undecided};
use super::store::Phase;
use super::{RedoError, RedoStore};
use crate::block::{BLOCK, Extent, Lba};
use crate::origin::{Origin, OriginIoErrorKind};
use crc32c::crc32c;
use destage_core::Lsn;
use destage_runtime::progress::{Progress, Together};

/// What [`RedoStore::recover`] found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replay {
    /// No group was under way.
    Nothing,
    /// A group was not committed: the origin holds nothing of it.
    Dropped {
        /// The last Lsn in it.
        to: Lsn,
    },
    /// A committed group was written again, flushed and read back.
    Written {
        /// The first Lsn in it.
        from: Lsn,
        /// The last Lsn in it.
        to: Lsn,
        /// Blocks written.
        blocks: u64,
        /// Blocks that someone else had changed; 0 unless forced.
        foreign: u64,
    },
}

/// How often a replay goes through a group's payload.
const PASSES: u64 = 4;

/// The group that may not be done, as the store holds it.
struct Pending {
    header: GroupHeader,
    header_bytes: Vec<u8>,
    commit: Commit,
    /// Where its payload begins.
    payload: u64,
}

impl RedoStore {
    /// Makes the origin whole: writes a committed group that may not be done again, drops one that is not committed. The
    /// origin then is the log up to [`RedoStore::done`]. Doing so twice changes nothing.
    ///
    /// With `forced`, blocks that someone else has changed are overwritten, and the origin may be larger than it was.
    ///
    /// # Errors
    /// `Foreign` if blocks hold neither what was there before nor what the group writes, `Corrupt` if the store is damaged,
    /// `Invalid` for an origin of another size, `InDoubt` for a group of several volumes that another store decides, else as
    /// origin and store report them.
    pub fn recover(&mut self, origin: &dyn Origin, forced: bool) -> Result<Replay, RedoError> {
        self.recover_with(origin, forced, &undecided)
    }

    /// As [`RedoStore::recover`]; `decide` says whether a group of several volumes is committed, which
    /// [`RedoStore::decide`] of the coordinator's store knows.
    ///
    /// # Errors
    /// The same, and what `decide` says.
    pub fn recover_with(
        &mut self,
        origin: &dyn Origin,
        forced: bool,
        decide: &dyn Fn(&InDoubt) -> Result<bool, RedoError>,
    ) -> Result<Replay, RedoError> {
        let has_grown = origin.size() > self.header.origin_bytes && (forced || self.may_have_grown);
        if origin.size() != self.header.origin_bytes && !has_grown {
            return Err(RedoError::Invalid(format!(
                "the redo store was made for an origin of {} bytes, this one has {}",
                self.header.origin_bytes,
                origin.size()
            )));
        }
        let is_first = self.phase == Phase::Unknown;
        match self.phase {
            Phase::Idle => return Ok(Replay::Nothing),
            Phase::Writing => {
                self.take_back()?;
                return Ok(Replay::Nothing);
            }
            Phase::Committed => {}
            // What a replay compares must not depend on bytes that the origin may still lose.
            Phase::Unknown => origin.flush()?,
        }
        // A store that someone else has taken over is theirs to recover.
        self.check_fence()?;
        if is_first {
            self.take_note(origin);
        }
        let Some(pending) = self.pending(decide)? else {
            let dropped = self.uncommitted()?;
            // Also makes durable what the headers say.
            self.take_back()?;
            return Ok(dropped.map_or(Replay::Nothing, |to| Replay::Dropped { to }));
        };
        // The payload is read, compared, written and read back.
        let chunks = Chunk::of(pending.header.runs.iter().map(|sums| sums.run)).len() as u64;
        let bar = Progress::new("completing the last group at the origin", PASSES * chunks);
        let bar = bar.together();
        let replay = self
            .write_again(&pending, &bar)
            .and_then(|()| self.replay(origin, &pending, forced, &bar));
        bar.finish();
        replay
    }

    /// Blocks that the next [`RedoStore::recover`] writes, or may write.
    ///
    /// # Errors
    /// As for `recover`.
    pub fn pending_extents(&self) -> Result<Vec<Extent>, RedoError> {
        if self.phase == Phase::Idle {
            return Ok(Vec::new());
        }
        let runs =
            self.pending(&|_| Ok(true))?.map_or_else(Vec::new, |pending| pending.header.runs);
        Ok(runs.into_iter().map(|sums| sums.run.extent).collect())
    }

    /// The last write of the group that this store says is committed and may not be done, if there is one.
    ///
    /// # Errors
    /// As for `recover`.
    pub fn pending_upto(&self) -> Result<Option<Lsn>, RedoError> {
        if self.phase == Phase::Idle {
            return Ok(None);
        }
        Ok(self.pending(&|_| Ok(false))?.map(|pending| pending.header.to))
    }

    /// Whether the group that may be under way is whole in the store; how many blocks it has.
    ///
    /// # Errors
    /// `Corrupt` if not; as the medium reports it.
    pub fn check_pending(&self) -> Result<u64, RedoError> {
        let Some(pending) = self.pending(&|_| Ok(true))? else { return Ok(0) };
        let runs = pending.header.runs.iter().map(|sums| sums.run);
        let blocks = runs.clone().map(|run| u64::from(run.extent.blocks)).sum();
        for chunk in Chunk::of(runs) {
            self.read_chunk(&pending, &chunk)?;
        }
        Ok(blocks)
    }

    fn pending(
        &self,
        decide: &dyn Fn(&InDoubt) -> Result<bool, RedoError>,
    ) -> Result<Option<Pending>, RedoError> {
        if self.header.half_bytes < 2 * PAGE {
            return Ok(None);
        }
        let number = self.header.done_group + 1;
        let (ours, other) = (self.read_commit(number)?, self.read_commit(number + 1)?);
        if ours.iter().chain(&other).any(|commit| commit.number > number) {
            return Err(RedoError::Corrupt(format!(
                "its headers say that group {} was the last one done, yet a later one than the next is committed",
                number - 1
            )));
        }
        let commit = match ours.filter(|commit| commit.number == number) {
            Some(commit) => commit,
            None => match self.committed_elsewhere(number, decide)? {
                Some(commit) => commit,
                None => return Ok(None),
            },
        };
        let damaged = |what: &str| {
            RedoError::Corrupt(format!(
                "{what} of the committed group {number} is not what was committed"
            ))
        };
        let (header, crc, header_bytes) =
            self.read_group_header(number)?.ok_or_else(|| damaged("the header"))?;
        if crc != commit.header_crc || header.number != number || header.reach.uuid != commit.uuid {
            return Err(damaged("the header"));
        }
        let payload = self.half(number) + PAGE + header_bytes.len() as u64;
        let payload_bytes: u64 = header.runs.iter().map(|p| p.after.len() as u64).sum();
        if payload + payload_bytes * BLOCK as u64 > self.half(number) + self.header.half_bytes {
            return Err(damaged("the length"));
        }
        Ok(Some(Pending { header, header_bytes, commit, payload }))
    }

    /// The commit record that this store would have if it did not rely on another one's; `None` if that has none, or if the
    /// next group is this store's own.
    fn committed_elsewhere(
        &self,
        number: u64,
        decide: &dyn Fn(&InDoubt) -> Result<bool, RedoError>,
    ) -> Result<Option<Commit>, RedoError> {
        let Some((header, header_crc, _)) = self.read_group_header(number)? else {
            return Ok(None);
        };
        let Some(store) = header.reach.decider(&self.header.uuid) else { return Ok(None) };
        if header.number != number {
            return Ok(None);
        }
        let commit = Commit { number, uuid: header.reach.uuid, header_crc };
        let in_doubt = InDoubt {
            group: header.reach.uuid,
            coordinator: store,
            place: self.place_of(&store),
            to: header.to,
        };
        // The process that saw the commit record has gone on since.
        let is_committed = self.phase == Phase::Committed || decide(&in_doubt)?;
        Ok(is_committed.then_some(commit))
    }

    pub(super) fn read_commit(&self, number: u64) -> Result<Option<Commit>, RedoError> {
        let mut page = vec![0; PAGE as usize];
        self.medium.read(self.half(number), &mut page)?;
        Ok(Commit::decode(&page, self.seed()))
    }

    /// With its checksum and its bytes.
    fn read_group_header(
        &self,
        number: u64,
    ) -> Result<Option<(GroupHeader, u32, Vec<u8>)>, RedoError> {
        let at = self.half(number) + PAGE;
        let mut bytes = vec![0; PAGE as usize];
        self.medium.read(at, &mut bytes)?;
        let Some(len) = GroupHeader::peek_len(&bytes, self.group_bytes_max()) else {
            return Ok(None);
        };
        bytes.resize(len as usize, 0);
        self.medium.read(at, &mut bytes)?;
        Ok(GroupHeader::decode(&bytes, self.seed()).map(|(header, crc)| (header, crc, bytes)))
    }

    /// The last Lsn of a group that was written and not committed.
    fn uncommitted(&self) -> Result<Option<Lsn>, RedoError> {
        if self.header.half_bytes < 2 * PAGE {
            return Ok(None);
        }
        let number = self.header.done_group + 1;
        let header = self.read_group_header(number)?.map(|(header, ..)| header);
        Ok(header.filter(|h| h.number == number).map(|h| h.to))
    }

    /// Checks the payload and writes the whole group into the store again. What is read may be in some cache only, even
    /// after a flush that succeeds, if an earlier one failed; only bytes written anew are sure to reach the medium.
    fn write_again(&mut self, pending: &Pending, bar: &Together) -> Result<(), RedoError> {
        self.begin_writes()?;
        let chunks = Chunk::of(pending.header.runs.iter().map(|sums| sums.run));
        let medium = &*self.medium;
        in_parallel(medium.parallelism(), chunks.len(), |index| {
            bar.step();
            let buf = self.read_chunk(pending, &chunks[index])?;
            Ok(medium.write(pending.payload + chunks[index].payload, &buf)?)
        })?;
        let number = pending.header.number;
        self.medium.write(self.half(number) + PAGE, &pending.header_bytes)?;
        self.medium.write(self.half(number), &pending.commit.encode(self.seed()))?;
        self.write_header()?;
        self.flush()?;
        self.phase = Phase::Committed;
        Ok(())
    }

    fn read_chunk(&self, pending: &Pending, chunk: &Chunk) -> Result<Vec<u8>, RedoError> {
        let mut buf = chunk.buffer();
        self.medium.read(pending.payload + chunk.payload, &mut buf)?;
        match wrong_block(&pending.header, chunk, &buf) {
            None => Ok(buf),
            Some(block) => Err(RedoError::Corrupt(format!(
                "the bytes of block {} in the committed group {} are not what was committed",
                block.0, pending.header.number
            ))),
        }
    }

    fn replay(
        &mut self,
        origin: &dyn Origin,
        pending: &Pending,
        forced: bool,
        bar: &Together,
    ) -> Result<Replay, RedoError> {
        let header = &pending.header;
        let foreign = self.foreign_blocks(origin, pending, bar)?;
        if let Some(&first) = foreign.first()
            && !forced
        {
            return Err(RedoError::Foreign { first, count: foreign.len() as u64 });
        }
        let losses = origin.losses();
        write_in_place(origin, header, |chunk, buf| {
            bar.step();
            buf.copy_from_slice(&self.read_chunk(pending, chunk)?);
            Ok(())
        })?;
        flush_origin(origin, losses)?;
        verify(origin, header, bar)?;
        self.mark_done(origin, header);
        Ok(Replay::Written {
            from: header.from,
            to: header.to,
            blocks: header.runs.iter().map(|p| u64::from(p.run.extent.blocks)).sum(),
            foreign: foreign.len() as u64,
        })
    }

    /// Blocks with a sector that is neither as before nor as the group makes it.
    fn foreign_blocks(
        &self,
        origin: &dyn Origin,
        pending: &Pending,
        bar: &Together,
    ) -> Result<Vec<Lba>, RedoError> {
        let mut chunks = Chunk::of(pending.header.runs.iter().map(|sums| sums.run));
        chunks.retain(|chunk| pending.header.runs[chunk.run].before.is_some());
        let found = in_parallel(origin.parallelism(), chunks.len(), |index| {
            bar.step();
            let chunk = &chunks[index];
            let after = self.read_chunk(pending, chunk)?;
            let now = match read_origin(origin, chunk) {
                // Nobody knows what it was. Writing may well mend it, if that is wanted.
                Err(error) if error.kind() == OriginIoErrorKind::Failed => {
                    return Ok(chunk.extent.iter().collect());
                }
                now => now?,
            };
            let before = pending.header.runs[chunk.run].before.as_deref().unwrap_or_default();
            let blocks = chunk.extent.iter().zip(now.chunks(BLOCK)).zip(after.chunks(BLOCK));
            let blocks = blocks.zip(&before[chunk.skip..]);
            let foreign = blocks.filter(|(((_, now), after), before)| !fits(now, after, before));
            Ok(foreign.map(|(((lba, _), _), _)| lba).collect::<Vec<Lba>>())
        })?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// Whether each sector is old or new.
fn fits(now: &[u8], after: &[u8], before: &SectorSums) -> bool {
    let sectors = now.chunks(SECTOR).zip(after.chunks(SECTOR)).zip(before);
    sectors.into_iter().all(|((now, after), &before)| now == after || crc32c(now) == before)
}

fn wrong_block(header: &GroupHeader, chunk: &Chunk, bytes: &[u8]) -> Option<Lba> {
    let sums = &header.runs[chunk.run].after[chunk.skip..];
    let mut blocks = chunk.extent.iter().zip(bytes.chunks(BLOCK)).zip(sums);
    blocks.find(|((_, block), sum)| crc32c(block) != **sum).map(|((lba, _), _)| lba)
}

/// A chunk as the origin holds it; zeros behind its end.
fn read_origin(origin: &dyn Origin, chunk: &Chunk) -> Result<Vec<u8>, RedoError> {
    let mut buf = chunk.buffer();
    let len = clipped(chunk.extent, origin.size());
    origin.read(chunk.extent.first.offset(), &mut buf[..len])?;
    Ok(buf)
}

/// Reads back what a replay wrote.
fn verify(origin: &dyn Origin, header: &GroupHeader, bar: &Together) -> Result<(), RedoError> {
    let chunks = Chunk::of(header.runs.iter().map(|sums| sums.run));
    in_parallel(origin.parallelism(), chunks.len(), |index| {
        bar.step();
        match wrong_block(header, &chunks[index], &read_origin(origin, &chunks[index])?) {
            None => Ok(()),
            Some(block) => Err(RedoError::Foreign { first: block, count: 1 }),
        }
    })?;
    Ok(())
}
