//! How a group reaches the origin.
//!
//! The order is the whole point: payload and header, *flush*, commit record, *flush*, in place, *flush of the origin*, the
//! number of the last group done. That number needs no flush of its own: the next group takes the other half, and its first
//! flush makes the number durable before its commit record is written. So at most one committed group is ever not done.

use super::chunks::{Chunk, clipped, in_parallel};
use super::format::{Commit, GroupHeader, PAGE, Reach, RunSums, SectorSums, sector_sums};
use super::group::{AtomicGroup, Content, Payload, Run};
use super::store::Phase;
use super::{RecentBlocks, RedoError, RedoStore};
use crate::attach;
use crate::block::BLOCK;
use crate::origin::{Origin, OriginIoErrorKind};
use crc32c::crc32c;

impl RedoStore {
    /// Writes a group to the origin, whole or not at all. When it returns, the group is durable there.
    ///
    /// A group that this process has brought there already is not written again.
    ///
    /// After an error it may be called again, with the same group or, unless the origin holds parts of it already, with
    /// another one; where the group was durable in the store it is finished from there.
    ///
    /// # Errors
    /// `Unavailable` and the like as origin and store report them, `TooLarge`, `Fenced` by another host's attachment,
    /// `Invalid` for a group that belongs before those of an earlier process.
    pub fn apply(
        &mut self,
        origin: &dyn Origin,
        group: &AtomicGroup,
        payload: &dyn Payload,
    ) -> Result<(), RedoError> {
        self.ready(origin)?;
        if group.to <= self.resumed {
            return Err(RedoError::Invalid(format!(
                "a group up to Lsn {} was sent although the origin held everything up to Lsn {} at the start: \
                 these are two logs, and the origin belongs to the other one's cache",
                group.to.0, self.resumed.0
            )));
        }
        if group.to <= self.done() {
            return Ok(());
        }
        self.check_group(origin, group, 0)?;
        self.check_fence()?;
        if self.takes_snapshots {
            return self.replace(origin, group, payload);
        }
        let (header, header_crc) = self.write_group(origin, group, payload, Reach::default())?;
        self.write_commit(&header, header_crc)?;
        self.put_in_place(origin, &header, payload)?;
        self.mark_done(origin, &header);
        Ok(())
    }

    /// Writes a committed group at the origin, durably.
    pub(super) fn put_in_place(
        &self,
        origin: &dyn Origin,
        header: &GroupHeader,
        payload: &dyn Payload,
    ) -> Result<(), RedoError> {
        let losses = origin.losses();
        let sums = |chunk: &Chunk| &header.runs[chunk.run].after[chunk.skip..];
        write_in_place(origin, header, |chunk, buf| {
            payload.fill(chunk.extent.first, buf)?;
            clear_tail(chunk, origin.size(), buf);
            if buf.chunks(BLOCK).zip(sums(chunk)).all(|(block, &sum)| crc32c(block) == sum) {
                Ok(())
            } else {
                Err(RedoError::unavailable(format!(
                    "the blocks from {} on changed on their way into the redo store and out of memory: \
                     the group is finished from the store",
                    chunk.extent.first.0
                )))
            }
        })?;
        flush_origin(origin, losses)
    }

    /// Ends whatever an earlier call left behind.
    pub(super) fn ready(&mut self, origin: &dyn Origin) -> Result<(), RedoError> {
        match self.phase {
            Phase::Idle => Ok(()),
            Phase::Committed | Phase::Unknown => self.recover(origin, false).map(drop),
            Phase::Writing => self.take_back(),
        }
    }

    /// Nothing of the group is at the origin: takes its commit record away before other bytes come under it.
    pub(super) fn take_back(&mut self) -> Result<(), RedoError> {
        self.check_fence()?;
        self.begin_writes()?;
        let at = self.half(self.header.done_group + 1);
        let has_halves = self.group_bytes_max() > 0;
        if has_halves {
            self.medium.write(at, &vec![0; PAGE as usize])?;
        }
        self.write_header()?;
        self.flush()?;
        if has_halves {
            // Not before the commit record is gone for good, which would lack its header. If this is lost, a store that
            // another one decides for only asks once more.
            self.medium.write(at + PAGE, &vec![0; PAGE as usize])?;
        }
        self.phase = Phase::Idle;
        Ok(())
    }

    /// Whether a group that spans `members` volumes (0 for this one only) can be written.
    pub(super) fn check_group(
        &self,
        origin: &dyn Origin,
        group: &AtomicGroup,
        members: usize,
    ) -> Result<(), RedoError> {
        if origin.size() != self.header.origin_bytes {
            return Err(RedoError::Invalid(format!(
                "the redo store was made for an origin of {} bytes, this one has {}",
                self.header.origin_bytes,
                origin.size()
            )));
        }
        group.check(self.header.origin_bytes).map_err(RedoError::Invalid)?;
        let bytes = GroupHeader::bytes_max(&group.runs, members) + group.payload_bytes();
        let bytes_max = self.group_bytes_max();
        if bytes > bytes_max {
            return Err(RedoError::TooLarge { bytes, bytes_max });
        }
        Ok(())
    }

    /// A policy without groups may have sent these writes before a crash, and later ones as well.
    pub(super) fn void_outdated_evidence(
        &mut self,
        origin: &dyn Origin,
        group: &AtomicGroup,
    ) -> Result<(), RedoError> {
        if group.runs.is_empty() {
            return Ok(());
        }
        attach::void_evidence_from(self, origin, group.from)
    }

    /// Payload and header, durable.
    pub(super) fn write_group(
        &mut self,
        origin: &dyn Origin,
        group: &AtomicGroup,
        payload: &dyn Payload,
        reach: Reach,
    ) -> Result<(GroupHeader, u32), RedoError> {
        self.void_outdated_evidence(origin, group)?;
        self.phase = Phase::Writing;
        self.begin_writes()?;
        let number = self.header.done_group + 1;
        let header_len = GroupHeader::bytes_max(&group.runs, reach.members.len());
        let header_at = self.half(number) + PAGE;
        let payload_at = header_at + header_len;
        let chunks = Chunk::of(group.runs.iter().copied());
        let medium = &*self.medium;
        let before = if self.is_before_checked {
            in_parallel(origin.parallelism(), chunks.len(), |index| {
                read_before(origin, payload, &chunks[index])
            })?
        } else {
            vec![None; chunks.len()]
        };
        let runs = Chunk::runs(&chunks);
        let after = in_parallel(medium.parallelism(), runs.len(), |index| {
            let chunks = &chunks[runs[index].clone()];
            write_payload(medium, payload_at, chunks, payload, origin.size())
        })?;
        let sums = after.into_iter().flatten().zip(before).collect();
        let header = GroupHeader {
            number,
            attach_generation: self.header.attach.generation,
            from: group.from,
            to: group.to,
            reach,
            runs: join_sums(&group.runs, &chunks, sums),
        };
        let (bytes, header_crc) = header.encode(self.seed());
        self.medium.write(header_at, &bytes)?;
        self.flush()?;
        Ok((header, header_crc))
    }

    /// From here on the group is never given up.
    pub(super) fn write_commit(
        &mut self,
        header: &GroupHeader,
        header_crc: u32,
    ) -> Result<(), RedoError> {
        // As late as can be: what another host does after this is not seen.
        self.check_fence()?;
        let commit = Commit { number: header.number, uuid: header.reach.uuid, header_crc };
        self.medium.write(self.half(header.number), &commit.encode(self.seed()))?;
        if !self.unsafe_no_commit_flush {
            self.flush()?;
        }
        self.phase = Phase::Committed;
        Ok(())
    }

    /// The group is durable at the origin.
    pub(super) fn mark_done(&mut self, origin: &dyn Origin, header: &GroupHeader) {
        self.phase = Phase::Idle;
        self.header.done_group = header.number;
        if header.attach_generation >= self.header.log_since {
            self.header.done_lsn = header.to;
        }
        if !header.reach.members.is_empty() && header.reach.decider(&self.header.uuid).is_none() {
            // The commit record will be written over; another volume may still ask for it then.
            self.header.decided = header.reach.uuid;
        }
        // No reason to fail: the next group writes this again before its first flush.
        if let Err(error) = self.write_header() {
            tracing::warn!(%error, "the redo store does not know yet that its last group is done");
        }
        self.note_group(header);
        if let Err(error) = attach::leave_evidence(self, origin, self.done()) {
            tracing::debug!(%error, "no evidence was left of the last group");
        }
    }

    fn note_group(&mut self, header: &GroupHeader) {
        for RunSums { run, after, .. } in &header.runs {
            self.recent.forget(run.extent);
            // Earlier ones would only be pushed out again.
            let skip = after.len().saturating_sub(RecentBlocks::MAX);
            for (lba, &crc) in run.extent.iter().zip(after).skip(skip) {
                self.recent.push(lba, crc);
            }
        }
    }
}

/// Makes what was written in place durable, all of it since `losses` was noted.
pub(super) fn flush_origin(origin: &dyn Origin, losses: u64) -> Result<(), RedoError> {
    origin.flush()?;
    if origin.losses() == losses {
        return Ok(());
    }
    Err(RedoError::unavailable(
        "a part of the group may have been lost at the origin before it was flushed: it is written again",
    ))
}

/// Writes a group's blocks at the origin, data in rising order; `fill` gives each chunk's bytes.
pub(super) fn write_in_place(
    origin: &dyn Origin,
    header: &GroupHeader,
    fill: impl Fn(&Chunk, &mut [u8]) -> Result<(), RedoError> + Sync,
) -> Result<(), RedoError> {
    write_runs(origin, header.runs.iter().map(|sums| sums.run), fill)
}

/// The same for runs.
pub(super) fn write_runs(
    origin: &dyn Origin,
    runs: impl Iterator<Item = Run> + Clone,
    fill: impl Fn(&Chunk, &mut [u8]) -> Result<(), RedoError> + Sync,
) -> Result<(), RedoError> {
    let size = origin.size();
    for run in runs.clone() {
        if let Content::Zero { punch } = run.content {
            let extent = run.extent;
            let len = extent.bytes().min(size.saturating_sub(extent.first.offset()));
            origin.zero(extent.first.offset(), len, punch)?;
        }
    }
    let chunks = Chunk::of(runs);
    in_parallel(origin.parallelism(), chunks.len(), |index| {
        let chunk = &chunks[index];
        let mut buf = chunk.buffer();
        fill(chunk, &mut buf)?;
        origin.write(chunk.extent.first.offset(), &buf[..clipped(chunk.extent, size)])?;
        Ok(())
    })?;
    Ok(())
}

/// Behind the origin's end a block holds zeros, whatever the payload says.
pub(super) fn clear_tail(chunk: &Chunk, origin_bytes: u64, buf: &mut [u8]) {
    buf[clipped(chunk.extent, origin_bytes)..].fill(0);
}

/// Writes chunks that are neighbours in the payload to the store; their blocks' checksums.
fn write_payload(
    medium: &dyn Origin,
    payload_at: u64,
    chunks: &[Chunk],
    payload: &dyn Payload,
    origin_bytes: u64,
) -> Result<Vec<Vec<u32>>, RedoError> {
    let mut all = Vec::new();
    let mut sums = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let mut buf = chunk.buffer();
        payload.fill(chunk.extent.first, &mut buf)?;
        clear_tail(chunk, origin_bytes, &mut buf);
        sums.push(buf.chunks(BLOCK).map(crc32c).collect());
        all.extend_from_slice(&buf);
    }
    if let Some(first) = chunks.first() {
        medium.write(payload_at + first.payload, &all)?;
    }
    Ok(sums)
}

/// What the origin holds where a chunk will be; nothing where it cannot be read, since writing may well mend that.
fn read_before(
    origin: &dyn Origin,
    payload: &dyn Payload,
    chunk: &Chunk,
) -> Result<Option<Vec<SectorSums>>, RedoError> {
    let mut buf = chunk.buffer();
    if payload.before(chunk.extent, &mut buf) {
        return Ok(Some(buf.chunks(BLOCK).map(sector_sums).collect()));
    }
    buf.fill(0);
    let len = clipped(chunk.extent, origin.size());
    match origin.read(chunk.extent.first.offset(), &mut buf[..len]) {
        Ok(()) => Ok(Some(buf.chunks(BLOCK).map(sector_sums).collect())),
        Err(error) if error.kind == OriginIoErrorKind::Failed => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The chunks' checksums, bit by bit. A run of which one chunk could not be read has none of before.
fn join_sums(
    runs: &[Run],
    chunks: &[Chunk],
    sums: Vec<(Vec<u32>, Option<Vec<SectorSums>>)>,
) -> Vec<RunSums> {
    let empty = |&run: &Run| RunSums {
        run,
        after: Vec::new(),
        before: (run.content == Content::Data).then(Vec::new),
    };
    let mut joined: Vec<RunSums> = runs.iter().map(empty).collect();
    for (chunk, (after, before)) in chunks.iter().zip(sums) {
        let run = &mut joined[chunk.run];
        run.after.extend(after);
        run.before = run.before.take().zip(before).map(|(mut all, more)| {
            all.extend(more);
            all
        });
    }
    joined
}
