//! The store: two headers, two halves for groups.
//!
//! ```text
//!   | header 0 | header 1 | coordinator | evidence 0, 1 |      half 0      |      half 1      |
//!        the newer intact one holds                       commit | header | payload
//! ```
//!
//! Of everything there are two places, and a write goes to the one that does not hold. So a write that is cut short destroys
//! nothing: the other place still says what was true before it. Groups alternate between the halves for the same reason. While
//! group n + 1 is written to one half, group n lies whole in the other one, until the number of the last group done is durable.

use super::format::{
    AttachRecord, CoordinatorRecord, GroupHeader, HALVES_OFFSET, Header, HeaderProblem, PAGE, seed,
};
use super::group::AtomicGroup;
use super::{RecentBlocks, RedoError};
use crate::origin::{Origin, OriginIoError};
use destage_core::Lsn;
use std::sync::Arc;

/// A redo store, open. One process uses it at a time; see [`RedoStore::check_fence`].
#[derive(Debug)]
pub struct RedoStore {
    pub(super) medium: Arc<dyn Origin>,
    pub(super) header: Header,
    /// Which copy the newest header is.
    slot: usize,
    /// The newest header is known durable. Until then it is the one to be replaced: never both copies at once.
    header_durable: bool,
    /// The header found at the start was made durable, which an earlier process may have failed to do.
    is_secured: bool,
    /// The newest header must be written again: it failed, or a flush after it did.
    pub(super) header_stale: bool,
    /// Of the medium, at the last flush.
    pub(super) losses: u64,
    pub(super) phase: Phase,
    pub(super) is_before_checked: bool,
    /// The origin may be larger than the header says.
    pub(super) may_have_grown: bool,
    /// Of the newest evidence, once known.
    pub(super) evidence_sequence: Option<u64>,
    pub(crate) recent: RecentBlocks,
    /// What `done` was when this process began.
    pub(super) resumed: Lsn,
    /// See [`RedoStore::evidence_reach`], once known.
    pub(super) evidence_reach: Option<Lsn>,
    /// No copy of the evidence names blocks, durably.
    pub(crate) is_evidence_void: bool,
    /// Groups go past the halves: see [`RedoStore::set_snapshots`].
    pub(super) takes_snapshots: bool,
    /// Negative control of the tests: blocks are written in place though the commit record may be lost.
    pub(super) unsafe_no_commit_flush: bool,
    /// Negative control of the tests: each volume of a consistency group commits by itself.
    pub(crate) unsafe_each_commits: bool,
}

/// How far a group has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// None is under way.
    Idle,
    /// Written or being written; nothing of it is at the origin, and whether its commit record is durable is not known.
    Writing,
    /// Durable in the store; the origin may hold parts of it.
    Committed,
    /// Just opened: what the halves hold is not known.
    Unknown,
}

/// What a new store is made for.
#[derive(Clone, Copy, Debug)]
pub struct NewStore {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Size of the origin in bytes.
    pub origin_bytes: u64,
    /// Overwrite whatever the medium holds.
    pub overwrite: bool,
}

impl RedoStore {
    /// Makes a new store that fills `medium`.
    ///
    /// # Errors
    /// `Invalid` if the medium is too small or holds something else and `overwrite` is not set.
    pub fn create(medium: Arc<dyn Origin>, new: &NewStore) -> Result<Self, RedoError> {
        let store_bytes = medium.size();
        if store_bytes < HALVES_OFFSET {
            return Err(RedoError::Invalid(format!(
                "a redo store needs at least {HALVES_OFFSET} bytes, there are {store_bytes}"
            )));
        }
        if !new.overwrite {
            check_empty(&*medium)?;
        }
        // Both copies, or an older store's header could be taken for the newer one.
        medium.write(0, &vec![0; 2 * PAGE as usize])?;
        medium.flush()?;
        let header = Header {
            uuid: new.uuid,
            generation: 0,
            store_bytes,
            origin_bytes: new.origin_bytes,
            half_bytes: (store_bytes - HALVES_OFFSET) / 2 / PAGE * PAGE,
            done_group: 0,
            done_lsn: Lsn::ZERO,
            attach: AttachRecord::default(),
            log_since: 0,
            decided: [0; 16],
            coordinator: CoordinatorRecord::default(),
            whole_from: Lsn::ZERO,
        };
        let mut store = Self::with(medium, header, 1);
        store.phase = Phase::Idle;
        (store.header_durable, store.is_secured) = (true, true);
        store.write_header()?;
        store.flush()?;
        Ok(store)
    }

    /// Opens a store. Nothing is changed; [`RedoStore::recover`] comes next.
    ///
    /// # Errors
    /// `Invalid` if it is none or of another version; `Corrupt` if both headers are damaged.
    pub fn open(medium: Arc<dyn Origin>) -> Result<Self, RedoError> {
        let (slot, header) = newest_header(&*medium)?;
        let size = medium.size();
        if header.store_bytes > size || header.half_bytes > (size - HALVES_OFFSET) / 2 {
            return Err(RedoError::Corrupt(format!(
                "it was made with {} bytes and has {size} now: it was cut",
                header.store_bytes
            )));
        }
        Ok(Self::with(medium, header, slot))
    }

    fn with(medium: Arc<dyn Origin>, header: Header, slot: usize) -> Self {
        let resumed = header.done_lsn;
        Self {
            losses: medium.losses(),
            medium,
            header,
            slot,
            header_durable: false,
            is_secured: false,
            header_stale: false,
            phase: Phase::Unknown,
            is_before_checked: true,
            may_have_grown: false,
            evidence_sequence: None,
            evidence_reach: None,
            recent: RecentBlocks::new(),
            resumed,
            is_evidence_void: false,
            takes_snapshots: false,
            unsafe_no_commit_flush: false,
            unsafe_each_commits: false,
        }
    }

    /// Whether each group first reads what it overwrites, so that a replay can tell another writer's blocks; on by default.
    pub fn set_before_checked(&mut self, on: bool) {
        self.is_before_checked = on;
    }

    /// Its UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// Size of the origin that it was made for, bytes.
    pub fn origin_bytes(&self) -> u64 {
        self.header.origin_bytes
    }

    /// Whoever calls this knows that the origin is the same one, and larger: the next [`RedoStore::recover`] takes that.
    pub fn accept_growth(&mut self) {
        self.may_have_grown = true;
    }

    /// The origin has another size from now on. Durable before the next group is committed, or by [`RedoStore::settle`].
    pub fn set_origin_bytes(&mut self, bytes: u64) {
        if self.header.origin_bytes != bytes {
            self.header.origin_bytes = bytes;
            self.header_stale = true;
        }
    }

    /// The origin is the log up to here, once [`RedoStore::recover`] has succeeded; [`Lsn::ZERO`] before the first group.
    pub fn done(&self) -> Lsn {
        self.header.done_lsn
    }

    /// The store takes the place of one that is lost, which may have been in the middle of a group: before the origin has
    /// everything up to `lsn` again it may be no state that existed. Durable with the next attach record.
    pub(crate) fn set_whole_from(&mut self, lsn: Lsn) {
        self.header.whole_from = lsn;
    }

    /// The write up to which the origin must have come to be a state that existed, if it has not: see
    /// [`RedoStore::set_whole_from`].
    ///
    /// # Errors
    /// As the medium reports them.
    pub fn unwhole_before(&self) -> Result<Option<Lsn>, RedoError> {
        let whole_from = self.header.whole_from;
        if whole_from <= self.done() || Some(whole_from) <= self.evidence_upto()? {
            return Ok(None);
        }
        Ok(Some(whole_from))
    }

    /// Blocks are written past the store from now on: what it knows of their contents is out of date.
    pub fn forget_recent(&mut self) {
        self.recent = RecentBlocks::new();
    }

    /// Who writes to the origin, or did last.
    pub fn attachment(&self) -> &AttachRecord {
        &self.header.attach
    }

    /// Bytes that a group may need, see [`RedoStore::bytes_needed`].
    pub fn group_bytes_max(&self) -> u64 {
        // The commit record takes the first page; a header's length must fit in 32 bits.
        self.header.half_bytes.saturating_sub(PAGE)
    }

    /// Bytes that a group takes: its payload and about 1 % for tables.
    pub fn bytes_needed(group: &AtomicGroup) -> u64 {
        GroupHeader::bytes_max(&group.runs, 0) + group.payload_bytes()
    }

    /// Whose commit record decides the groups that span several volumes.
    pub fn coordinator(&self) -> &CoordinatorRecord {
        &self.header.coordinator
    }

    /// Notes whose commit record decides from now on. Durable before the next group is committed.
    pub fn set_coordinator(&mut self, coordinator: CoordinatorRecord) {
        if self.header.coordinator != coordinator {
            self.header.coordinator = coordinator;
            self.header_stale = true;
        }
    }

    /// Makes an attach record durable. If it is another cache's, its log begins anew.
    pub(crate) fn set_attachment(&mut self, attach: AttachRecord) -> Result<(), RedoError> {
        self.secure_header()?;
        let before = self.header.clone();
        if attach.cache != before.attach.cache {
            self.header.log_since = attach.generation;
            self.header.done_lsn = Lsn::ZERO;
            if before.attach.generation > 0 {
                // It counts in the log of the cache that is given up.
                self.header.whole_from = Lsn::ZERO;
            }
        }
        self.header.attach = attach;
        self.losses = self.medium.losses();
        let written = self.write_header().and_then(|()| self.flush());
        match written {
            Ok(()) => self.resumed = self.resumed.min(self.header.done_lsn),
            Err(_) => {
                let generation = self.header.generation;
                self.header = Header { generation, ..before };
                self.header_stale = true;
            }
        }
        written
    }

    /// The copy that counts now must survive until the next one is durable. What was read may be in a cache only, even after
    /// a flush that succeeds, if an earlier one failed; the same bytes written once more are not.
    pub(super) fn secure_header(&mut self) -> Result<(), RedoError> {
        if self.is_secured {
            return Ok(());
        }
        self.losses = self.medium.losses();
        self.medium.write(self.slot as u64 * PAGE, &self.header.encode())?;
        self.flush()?;
        self.is_secured = true;
        Ok(())
    }

    /// Makes durable that the last group is done. Needed before anything is written to the origin past the store: a crash
    /// would otherwise let the replay put the group over it. Also checks that nobody else has attached.
    ///
    /// # Errors
    /// `Fenced`; as the medium reports them; `Invalid` while a group is under way.
    pub fn settle(&mut self) -> Result<(), RedoError> {
        self.check_fence()?;
        if self.phase != Phase::Idle {
            return Err(RedoError::Invalid("a group is under way: recover first".to_owned()));
        }
        self.secure_header()?;
        if self.header_durable && !self.header_stale {
            return Ok(());
        }
        self.losses = self.medium.losses();
        self.write_header()?;
        self.flush()
    }

    /// Reads the attach record again.
    ///
    /// # Errors
    /// `Fenced` if another cache has attached since.
    pub fn check_fence(&self) -> Result<(), RedoError> {
        let (_, found) = newest_header(&*self.medium)?;
        let (ours, theirs) = (&self.header.attach, &found.attach);
        if found.uuid == self.header.uuid && theirs == ours {
            return Ok(());
        }
        Err(RedoError::fenced(format!(
            "the origin was taken over by host \"{}\" (attachment {}, ours is {}): nothing more is written from here",
            theirs.host, theirs.generation, ours.generation
        )))
    }

    pub(super) fn write_header(&mut self) -> Result<(), RedoError> {
        self.header.generation += 1;
        if self.header_durable {
            self.slot = 1 - self.slot;
            self.header_durable = false;
        }
        self.header_stale = true;
        self.medium.write(self.slot as u64 * PAGE, &self.header.encode())?;
        self.header_stale = false;
        Ok(())
    }

    /// Makes everything written to the medium durable.
    pub(super) fn flush(&mut self) -> Result<(), RedoError> {
        let flushed = self.medium.flush();
        let losses = self.medium.losses();
        let is_lost = losses != std::mem::replace(&mut self.losses, losses);
        if flushed.is_err() || is_lost {
            self.header_stale = true;
        }
        flushed?;
        if is_lost {
            return Err(RedoError::unavailable(
                "what was written to the redo store may have been lost before it was flushed: it is written again",
            ));
        }
        self.header_durable = !self.header_stale;
        Ok(())
    }

    /// Before a write of everything that a flush must cover: what was lost until now does not count, since the only thing
    /// that is not written anew, the header, is then written as well.
    pub(super) fn begin_writes(&mut self) -> Result<(), RedoError> {
        self.secure_header()?;
        let losses = self.medium.losses();
        if self.header_stale || losses != self.losses {
            self.header_stale = true;
            self.losses = losses;
            self.write_header()?;
        }
        Ok(())
    }

    pub(super) fn seed(&self) -> u32 {
        seed(&self.header.uuid)
    }

    /// Where the half of a group begins.
    pub(super) fn half(&self, number: u64) -> u64 {
        HALVES_OFFSET + number % 2 * self.header.half_bytes
    }
}

/// The newer header and which copy it is.
fn newest_header(medium: &dyn Origin) -> Result<(usize, Header), RedoError> {
    let mut pages = vec![0; 2 * PAGE as usize];
    if medium.size() < HALVES_OFFSET {
        return Err(RedoError::Invalid("too small for a redo store".to_owned()));
    }
    medium.read(0, &mut pages)?;
    let copies = [0, 1].map(|i| Header::decode(&pages[i * PAGE as usize..]));
    match copies {
        [Ok(a), Ok(b)] if b.generation > a.generation => Ok((1, b)),
        [Ok(a), _] => Ok((0, a)),
        [_, Ok(b)] => Ok((1, b)),
        [Err(HeaderProblem::Version(version)), _] | [_, Err(HeaderProblem::Version(version))] => {
            Err(RedoError::Invalid(format!(
                "the redo store has format version {version}: use the release of Destage that made it"
            )))
        }
        [Err(HeaderProblem::Foreign), Err(HeaderProblem::Foreign)] => {
            Err(RedoError::Invalid("there is no redo store here".to_owned()))
        }
        _ => Err(RedoError::Corrupt(
            "neither of its two headers is intact: whether a group is half written cannot be told; \
             restore the store, or check the volume and make a new one"
                .to_owned(),
        )),
    }
}

/// A wrong path or a tail that a volume reaches into must not cost data.
fn check_empty(medium: &dyn Origin) -> Result<(), RedoError> {
    let mut start = vec![0; HALVES_OFFSET as usize];
    medium.read(0, &mut start)?;
    if start.iter().all(|&byte| byte == 0) {
        return Ok(());
    }
    let what = match newest_header(medium) {
        Err(RedoError::Invalid(_)) => "something that is no redo store",
        _ => "a redo store already",
    };
    Err(RedoError::Invalid(format!("the medium holds {what}: it is only overwritten on demand")))
}

impl From<RedoError> for OriginIoError {
    fn from(error: RedoError) -> Self {
        match error {
            RedoError::Origin(error) => error,
            other => Self::new(other.kind(), other.to_string()),
        }
    }
}
