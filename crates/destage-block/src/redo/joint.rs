//! Groups that span several volumes: all of them become new together, or none.
//!
//! Every volume's share is first durable in its own redo store. Then *one* commit record is written, at the coordinator: one
//! of the stores, which every replay of the others asks. So there is no moment at which some volumes' shares are committed
//! and others' are not. Only the newest group can be in doubt: the next one is committed when every store knows durably that
//! this one is done.

use super::chunks::in_parallel;
use super::format::{GroupHeader, PAGE, Reach};
use super::group::{AtomicGroup, Payload};
use super::store::Phase;
use super::{RedoError, RedoStore};
use crate::origin::{self, NbdOptions, Origin};
use destage_core::Lsn;
use std::sync::{Mutex, PoisonError};

/// One volume's part of a group that spans several.
pub struct Share<'a> {
    /// Its redo store.
    pub store: &'a mut RedoStore,
    /// Its origin.
    pub origin: &'a dyn Origin,
    /// What changes there; without runs if nothing does.
    pub group: &'a AtomicGroup,
    /// The bytes.
    pub payload: &'a dyn Payload,
}

/// A group that another store decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InDoubt {
    /// Its UUID.
    pub group: [u8; 16],
    /// UUID of the store that knows.
    pub coordinator: [u8; 16],
    /// Where that was when a server last used it; empty if that is not known.
    pub place: String,
    /// Up to which Lsn of this volume it reaches.
    pub to: Lsn,
}

/// Writes a group to all origins, whole or not at all. When it returns, the group is durable at each of them.
///
/// `uuid` is another one for each group. After an error it may be called again, as [`RedoStore::apply`] may.
///
/// # Errors
/// As for [`RedoStore::apply`], from any of the volumes.
pub fn apply_groups(
    shares: &mut [Share<'_>],
    coordinator: usize,
    uuid: [u8; 16],
) -> Result<(), RedoError> {
    // The coordinator first: as long as its commit record may be there, no other store may forget its share.
    let first = &mut shares[coordinator];
    first.store.ready(first.origin)?;
    on_each(shares, |share, _| share.store.ready(share.origin))?;
    if shares.iter().all(|share| share.group.to <= share.store.done()) {
        return Ok(());
    }
    let members: Vec<[u8; 16]> = shares.iter().map(|share| share.store.uuid()).collect();
    let mut reach = Reach { uuid, members, coordinator: coordinator as u16 };
    let each_commits = shares[coordinator].store.unsafe_each_commits;
    if each_commits {
        reach = Reach::default();
    }
    for share in &*shares {
        share.check(reach.members.len())?;
    }
    let headers = on_each(shares, |share, _| {
        share.store.write_group(share.origin, share.group, share.payload, reach.clone())
    })?;
    // As late as can be: what another host does after this is not seen.
    for share in &*shares {
        share.store.check_fence()?;
    }
    let (header, crc) = &headers[coordinator];
    shares[coordinator].store.write_commit(header, *crc)?;
    for (index, share) in shares.iter_mut().enumerate() {
        if each_commits && index != coordinator {
            share.store.write_commit(&headers[index].0, headers[index].1)?;
        }
        share.store.phase = Phase::Committed;
    }
    on_each(shares, |share, index| share.finish(&headers[index].0)).map(drop)
}

impl Share<'_> {
    fn check(&self, members: usize) -> Result<(), RedoError> {
        let (to, resumed) = (self.group.to, self.store.resumed);
        if to < resumed || (to == resumed && !self.group.runs.is_empty()) {
            return Err(RedoError::Invalid(format!(
                "a group up to Lsn {} was sent although the origin held everything up to Lsn {} at the start: these are \
                 two logs, and the origin belongs to the other one's cache",
                to.0, resumed.0
            )));
        }
        self.store.check_group(self.origin, self.group, members)?;
        self.store.check_fence()
    }

    fn finish(&mut self, header: &GroupHeader) -> Result<(), RedoError> {
        self.store.put_in_place(self.origin, header, self.payload)?;
        self.store.mark_done(self.origin, header);
        Ok(())
    }
}

/// Does something with each share, side by side where the media take that.
fn on_each<'a, T: Send>(
    shares: &mut [Share<'a>],
    work: impl Fn(&mut Share<'a>, usize) -> Result<T, RedoError> + Sync,
) -> Result<Vec<T>, RedoError> {
    let is_parallel = shares.iter().any(|share| share.store.medium.parallelism() > 1);
    let parallelism = if is_parallel { shares.len() } else { 1 };
    let shares: Vec<Mutex<&mut Share<'a>>> = shares.iter_mut().map(Mutex::new).collect();
    in_parallel(parallelism, shares.len(), |index| {
        work(&mut shares[index].lock().unwrap_or_else(PoisonError::into_inner), index)
    })
}

impl RedoStore {
    /// Whether a group of several volumes is committed by this store's commit record. The answer stays: what it rests on is
    /// durable when this returns. No server may be at work on the store but the one that asks.
    ///
    /// # Errors
    /// As the medium reports them; `Fenced` if someone else has attached since the store was opened.
    pub fn decide(&mut self, group: &[u8; 16]) -> Result<bool, RedoError> {
        self.check_fence()?;
        self.secure_header()?;
        if self.header.decided == *group {
            return Ok(true);
        }
        if self.group_bytes_max() < PAGE {
            return Ok(false);
        }
        let next = self.header.done_group + 1;
        for number in [next, next + 1] {
            let Some(commit) = self.read_commit(number)? else { continue };
            if commit.uuid == *group {
                // What is read may be in some cache only; the same bytes written anew reach the medium.
                self.begin_writes()?;
                self.medium.write(self.half(number), &commit.encode(self.seed()))?;
                self.flush()?;
                return Ok(true);
            }
            if number == next && commit.number == next {
                // The group under way is another one, so this one's turn never came.
                return Ok(false);
            }
        }
        // Nothing that was written before the last crash may come back and say otherwise.
        self.begin_writes()?;
        self.medium.write(self.half(next), &vec![0; PAGE as usize])?;
        self.flush()?;
        Ok(false)
    }

    /// Where a coordinator's store was when a server last used it.
    pub(super) fn place_of(&self, store: &[u8; 16]) -> String {
        let known = &self.header.coordinator;
        if known.store == *store { known.place.clone() } else { String::new() }
    }
}

/// Asks the redo store at `place`, or where a server last used it, whether a group is committed. No server may use it.
///
/// # Errors
/// `InDoubt` if that is not the store that knows, or cannot be reached.
pub fn ask_coordinator(
    place: Option<&str>,
    options: &NbdOptions,
    in_doubt: &InDoubt,
) -> Result<bool, RedoError> {
    let place = place.unwrap_or(&in_doubt.place);
    let refused = |why: String| RedoError::InDoubt { in_doubt: in_doubt.clone(), why };
    if place.is_empty() {
        return Err(refused("nobody noted where it is; name it".to_owned()));
    }
    let medium = origin::open(place, options).map_err(|error| refused(error.message))?;
    let mut store = RedoStore::open(medium)
        .map_err(|error| refused(format!("{place} cannot be asked: {error}")))?;
    if store.uuid() != in_doubt.coordinator {
        let found = uuid::Uuid::from_bytes(store.uuid());
        return Err(refused(format!("{place} is another redo store ({found})")));
    }
    store.decide(&in_doubt.group)
}

/// For who knows no coordinator.
pub(super) fn undecided(in_doubt: &InDoubt) -> Result<bool, RedoError> {
    Err(RedoError::InDoubt {
        in_doubt: in_doubt.clone(),
        why: "it has to be asked first".to_owned(),
    })
}
