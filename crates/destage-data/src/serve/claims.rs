//! What the data folder remembers of whose origin it was: under which epochs its journal has claimed it.
//!
//! The origin knows its owner by the journal's identity, which a copy of the data folder shares. So each claim is noted here
//! before it is made, and again when it is. An origin that was claimed under this journal's identity, but not from this
//! folder, has a copy of it as its owner: the numbers of the writes mean other writes there.
//!
//! The file has two slots of one sector, written in turn and in place: a torn one leaves the other, and a full disk takes it.

use super::ServeError;
use crate::origins::Owner;
use destage_runtime::{exit, own};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const FILE: &str = "owner";
const SLOT: usize = 512;
const SLOTS: u64 = 2;
/// Epochs grow by more than this, which those of earlier builds, that noted nothing, never reached.
const STEP_MIN: u64 = 1 << 20;
/// Of the random part of a step: with the fixed one it leaves room for 2^42 starts.
const STEP_MASK: u32 = (1 << 20) - 1;
/// So many claims are remembered one by one: an origin that is restored to before them is taken for ours.
const KEPT: usize = 8;

/// The newest slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    /// Slots written so far.
    count: u64,
    journal: String,
    /// Epochs up to this one count as claimed from here.
    base: u64,
    /// The first epochs of the claims that were begun since, each of which may have been made without a word here, and even
    /// after a later one was begun. A claim may take two steps, each with an epoch of its own.
    begun: Vec<u64>,
    /// The epoch of the last claim that is known to have been made.
    made: u64,
    /// Where the origin stood at the last start, if that was beyond the journal's end and was adopted.
    adopted: u64,
    /// Up to this write, the origin has decided all of the journal's.
    drained: u64,
    /// The folder, and the run of the system in which it was there.
    place: String,
}

/// The file.
#[derive(Debug)]
pub(super) struct Claims {
    path: PathBuf,
    note: Note,
    /// Where the folder is now; `None` if that cannot be told from where a copy is.
    place: Option<String>,
    /// Whether the folder has noted a claim of this journal's before.
    is_known: bool,
}

impl Claims {
    /// Reads what is known of this journal; what is noted of another one does not count.
    ///
    /// # Errors
    /// The file cannot be read. One that says nothing counts as none.
    pub(super) fn read(data: &Path, journal: &str) -> Result<Self, ServeError> {
        let path = data.join(FILE);
        let failed = |error: io::Error| unusable(&path, "read", &error);
        let place = place(data).map_err(failed)?;
        let found = match own::read(&path) {
            Ok(bytes) => newest(&bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        let count = found.as_ref().map_or(0, |note| note.count);
        let ours = found.filter(|note| note.journal == journal);
        let is_known = ours.is_some();
        let journal = journal.to_owned();
        let note = ours.unwrap_or_else(|| Note { count, journal, ..Note::default() });
        Ok(Self { path, note, place, is_known })
    }

    /// Whether the owner, who has our journal's identity, claimed the origin from a copy of this folder.
    pub(super) fn are_of_a_copy(&self, owner: &Owner) -> bool {
        if !self.is_known {
            return owner.epoch >= STEP_MIN;
        }
        let is_of = |first: &u64| (*first..=first + 1).contains(&owner.epoch);
        owner.epoch > self.note.base && !self.note.begun.iter().any(is_of)
    }

    /// Whether the owner, who has our journal's identity, certainly is this folder's last run, and not that of a copy.
    pub(super) fn are_in_place(&self, owner: &Owner) -> bool {
        let is_here = self.place.as_ref().is_some_and(|place| *place == self.note.place);
        self.is_known && is_here && owner.epoch == self.note.made
    }

    /// The epoch of the last claim that was made from here.
    pub(super) fn epoch(&self) -> u64 {
        self.note.made
    }

    /// Up to this write the numbers of an origin that was adopted are no loss of the journal's.
    pub(super) fn adopted(&self) -> u64 {
        self.note.adopted
    }

    /// Up to this write, the origin has decided all that the journal holds.
    pub(super) fn drained(&self) -> u64 {
        self.note.drained
    }

    /// Notes that the origin is about to be claimed; returns the epoch that the claim begins with: above all that we know of, and
    /// by a step at random, so that no copy of the folder begins with the same.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&mut self, owner: Option<&Owner>) -> Result<u64, ServeError> {
        let Note { journal, base, begun, made, .. } = &mut self.note;
        let found = owner.map_or(0, |owner| owner.epoch);
        let is_of_earlier_build = !self.is_known && found < STEP_MIN;
        if is_of_earlier_build && owner.is_some_and(|owner| owner.journal == *journal) {
            *base = found;
        }
        let known = begun.iter().map(|first| first + 1).max().unwrap_or(0);
        let known = known.max(*base).max(*made).max(found);
        let first = known + STEP_MIN + u64::from(uuid::Uuid::new_v4().as_fields().0 & STEP_MASK);
        begun.push(first);
        while begun.len() > KEPT {
            let oldest = begun.remove(0);
            // One above the newest that was made never was, and a copy's may lie below it.
            if oldest <= found.max(*made) {
                *base = (*base).max(oldest + 1);
            }
        }
        self.is_known = true;
        self.write()?;
        Ok(first)
    }

    /// Notes the epoch under which the origin is ours, the write that it stands at if that is beyond the journal's end, and the
    /// one up to which it has decided all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn made(
        &mut self,
        epoch: u64,
        adopted: u64,
        decided: u64,
    ) -> Result<(), ServeError> {
        self.note.made = epoch;
        self.note.adopted = adopted;
        // It may have gone back since the end that was noted.
        self.note.drained = self.note.drained.min(decided);
        self.note.place = self.place.clone().unwrap_or_default();
        self.write()
    }

    /// Notes that the origin has decided all up to this write, which is the journal's last.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn end(&mut self, last: u64) -> Result<(), ServeError> {
        self.note.drained = last;
        self.write()
    }

    fn write(&mut self) -> Result<(), ServeError> {
        self.note.count += 1;
        let mut slot = serde_json::to_vec(&self.note).expect("a note serialises");
        assert!(slot.len() < SLOT, "a note fits its slot");
        slot.resize(SLOT - 1, b' ');
        slot.push(b'\n');
        let at = self.note.count % SLOTS * SLOT as u64;
        let failed = |error: io::Error| unusable(&self.path, "write", &error);
        let is_new = !self.path.exists();
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        let file = own::open(&self.path, &mut options).map_err(failed)?;
        file.write_all_at(&slot, at).and_then(|()| file.sync_all()).map_err(failed)?;
        match self.path.parent().filter(|_| is_new) {
            Some(folder) => File::open(folder).and_then(|dir| dir.sync_all()).map_err(failed),
            None => Ok(()),
        }
    }
}

/// The newest slot that can be read.
fn newest(bytes: &[u8]) -> Option<Note> {
    let notes = bytes.chunks(SLOT).filter_map(|slot| serde_json::from_slice::<Note>(slot).ok());
    notes.max_by_key(|note| note.count)
}

fn unusable(path: &Path, what: &str, error: &io::Error) -> ServeError {
    ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "failed to {what} {}, which says under which epochs this data folder has owned its origin: {error}. Check the \
             disk and the file's mode, then start again",
            path.display()
        ),
    )
}

/// Differs between a folder and its copy on this machine, and between two runs of a system, so between machines.
fn place(data: &Path) -> io::Result<Option<String>> {
    let meta = std::fs::metadata(data)?;
    let run = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let run = run.as_deref().map(str::trim).filter(|run| !run.is_empty());
    Ok(run.map(|run| format!("{run}:{}:{}", meta.dev(), meta.ino())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn owner(epoch: u64) -> Owner {
        Owner {
            journal: "j".into(),
            epoch,
            domain_map: 1,
            heartbeat_age: Duration::ZERO,
            released: false,
            watermarks: Vec::new(),
            epochs_agree: true,
        }
    }

    fn read(folder: &Path) -> Claims {
        Claims::read(folder, "j").expect("it can be read")
    }

    fn begun(folder: &Path, found: u64) -> u64 {
        read(folder).begin(Some(&owner(found))).expect("written")
    }

    /// Starts once, undisturbed.
    fn started(folder: &Path, found: u64) -> u64 {
        let mut claims = read(folder);
        let epoch = claims.begin(Some(&owner(found))).expect("written");
        claims.made(epoch, 0, 0).expect("written");
        epoch
    }

    #[test]
    fn a_copy_that_has_claimed_since_is_told_from_a_claim_that_was_cut_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = started(folder.path(), 7);
        assert!(read(folder.path()).are_in_place(&owner(first)));
        assert!(read(folder.path()).are_of_a_copy(&owner(first + 5)));
        // Killed before the claim, after one of its steps, or before it was noted that it was made; and tried again.
        let second = begun(folder.path(), first);
        let third = begun(folder.path(), first);
        for found in [7, first, second, second + 1, third, third + 1] {
            assert!(!read(folder.path()).are_of_a_copy(&owner(found)), "{found}");
        }
        for found in [8, first + 2, second - 1, second + 2, third + 2] {
            assert!(read(folder.path()).are_of_a_copy(&owner(found)), "{found}");
        }
        assert!(!read(folder.path()).are_in_place(&owner(second)), "its owner may live elsewhere");
    }

    #[test]
    fn a_copys_claim_of_an_origin_that_went_back_is_told_from_our_own_before() {
        let (folder, copy) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let first = started(folder.path(), 0);
        std::fs::copy(folder.path().join(FILE), copy.path().join(FILE)).expect("copied");
        let mut last = first;
        for _ in 0..3 {
            last = started(folder.path(), last);
        }
        let theirs = started(copy.path(), first);
        assert!(theirs < last, "by a step below {last}: {theirs}");
        assert!(read(folder.path()).are_of_a_copy(&owner(theirs)));
        assert!(!read(folder.path()).are_of_a_copy(&owner(first)));
        assert!(started(folder.path(), first) > last);
    }

    #[test]
    fn what_an_earlier_build_has_claimed_is_ours_and_what_a_copy_of_its_folder_claims_is_not() {
        let (old, copy) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        assert!(!read(old.path()).are_of_a_copy(&owner(7)));
        let theirs = started(copy.path(), 7);
        assert!(read(old.path()).are_of_a_copy(&owner(theirs)));
        // A first claim that fails.
        begun(old.path(), 7);
        assert!(!read(old.path()).are_of_a_copy(&owner(7)));
    }

    #[test]
    fn the_oldest_claims_are_no_longer_told_apart() {
        let folder = tempfile::tempdir().expect("a folder");
        let first = started(folder.path(), 0);
        let mut last = first;
        for _ in 0..2 * KEPT {
            last = started(folder.path(), last);
        }
        assert!(!read(folder.path()).are_of_a_copy(&owner(first)));
        assert!(!read(folder.path()).are_of_a_copy(&owner(last)));
        assert!(read(folder.path()).are_of_a_copy(&owner(last - 2)));
        let longest = Note {
            count: u64::MAX,
            journal: uuid::Uuid::nil().to_string(),
            base: u64::MAX,
            begun: vec![u64::MAX >> 1; KEPT],
            made: u64::MAX,
            adopted: u64::MAX,
            drained: u64::MAX,
            place: format!("{}:{}:{}", uuid::Uuid::nil(), u64::MAX, u64::MAX),
        };
        assert!(serde_json::to_vec(&longest).expect("a note serialises").len() < SLOT);
    }

    #[test]
    fn claims_that_fail_again_and_again_do_not_make_a_copys_one_ours() {
        let folder = tempfile::tempdir().expect("a folder");
        let made = started(folder.path(), 7);
        for _ in 0..2 * KEPT {
            begun(folder.path(), made);
        }
        for step in [STEP_MIN, STEP_MIN + u64::from(STEP_MASK)] {
            assert!(read(folder.path()).are_of_a_copy(&owner(made + step)));
        }
        assert!(!read(folder.path()).are_of_a_copy(&owner(made)));
    }

    #[test]
    fn what_the_origin_had_decided_counts_only_as_long_as_it_has() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut claims = read(folder.path());
        claims.end(100).expect("written");
        claims.made(8, 0, 100).expect("written");
        assert_eq!(read(folder.path()).drained(), 100);
        claims.made(9, 0, 60).expect("written");
        assert_eq!(read(folder.path()).drained(), 60);
    }

    #[test]
    fn a_copy_of_the_folder_is_in_another_place() {
        let (folder, copy) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let epoch = started(folder.path(), 0);
        std::fs::copy(folder.path().join(FILE), copy.path().join(FILE)).expect("copied");
        assert!(read(folder.path()).are_in_place(&owner(epoch)));
        assert!(!read(copy.path()).are_in_place(&owner(epoch)));
        assert_eq!(read(copy.path()).epoch(), epoch);
    }

    #[test]
    fn a_torn_slot_leaves_the_one_before_and_another_journals_note_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut claims = read(folder.path());
        claims.made(8, 0, 0).expect("written");
        claims.made(9, 0, 0).expect("written");
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).expect("there");
        assert_eq!(bytes.len(), SLOTS as usize * SLOT);
        // The first slot is the newer one: two were written.
        bytes[10] = 0;
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(read(folder.path()).epoch(), 8);
        let other = Claims::read(folder.path(), "another").expect("it can be read");
        assert!(!other.are_of_a_copy(&owner(100)) && !other.are_in_place(&owner(8)));
    }
}
