//! What the data folder remembers of whose origin it was: under which epochs its journal has claimed it.
//!
//! The origin knows its owner by the journal's identity, which a copy of the data folder shares. So each claim is noted here
//! before it is made, and again when it is. An origin that was claimed under this journal's identity, but not from this
//! folder, has a copy of it as its owner: the numbers of the writes mean other writes there.
//!
//! The file has two slots of one sector, written in turn and in place: a torn one leaves the other, and a full disk takes it.

use super::ServeError;
use crate::origins::Owner;
use destage_runtime::exit;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILE: &str = "owner";
const SLOT: usize = 512;
const SLOTS: u64 = 2;
/// One claim may take two steps, each with an epoch of its own.
const STEPS: u64 = 2;
/// Of the random steps between epochs: 20 bits leave room for 2^43 starts.
const STEP_MASK: u32 = (1 << 20) - 1;

/// The newest slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Slots written so far.
    count: u64,
    journal: String,
    /// The epoch of the last claim that was made.
    epoch: u64,
    /// The epochs of the claim that was begun last; it may have been made without a word here.
    begun: (u64, u64),
    /// The folder, and the run of the system in which it was there.
    place: String,
}

/// The file.
#[derive(Debug)]
pub(super) struct Claims {
    path: PathBuf,
    note: Note,
    /// Where the folder is now.
    place: String,
    /// Whether the folder has noted a claim of this journal's before.
    is_known: bool,
}

impl Claims {
    /// Reads what is known of this journal; what is noted of another one does not count.
    ///
    /// # Errors
    /// The file cannot be read, or says nothing.
    pub(super) fn read(data: &Path, journal: &str) -> Result<Self, ServeError> {
        let path = data.join(FILE);
        let failed = |error: io::Error| unusable(&path, "read", &error);
        let place = place(data).map_err(failed)?;
        let found = match std::fs::read(&path) {
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
        let (first, last) = self.note.begun;
        let is_from_here = owner.epoch <= self.note.epoch || (first..=last).contains(&owner.epoch);
        self.is_known && !is_from_here
    }

    /// Whether this is certainly the folder that has claimed the origin last, and not a copy of it.
    pub(super) fn are_in_place(&self) -> bool {
        self.is_known && self.note.place == self.place
    }

    /// The epoch of the last claim from here.
    pub(super) fn epoch(&self) -> u64 {
        self.note.epoch
    }

    /// Notes that the origin is about to be claimed; returns the epoch that the claim begins with: above all that we know of, and
    /// by a step at random, so that no copy of the folder begins with the same.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&mut self, owner: Option<&Owner>) -> Result<u64, ServeError> {
        let known =
            self.note.epoch.max(self.note.begun.1).max(owner.map_or(0, |owner| owner.epoch));
        let first = known + 1 + u64::from(uuid::Uuid::new_v4().as_fields().0 & STEP_MASK);
        self.note.begun = (first, first + STEPS - 1);
        self.write()?;
        Ok(first)
    }

    /// Notes the epoch under which the origin is ours.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn made(&mut self, epoch: u64) -> Result<(), ServeError> {
        (self.note.epoch, self.note.begun) = (epoch, (epoch, epoch));
        self.note.place.clone_from(&self.place);
        self.write()
    }

    fn write(&mut self) -> Result<(), ServeError> {
        self.note.count += 1;
        let mut slot = serde_json::to_vec(&self.note).expect("a note serialises");
        debug_assert!(slot.len() < SLOT, "a note fits its slot");
        slot.resize(SLOT - 1, b' ');
        slot.push(b'\n');
        let at = self.note.count % SLOTS * SLOT as u64;
        let failed = |error: io::Error| unusable(&self.path, "write", &error);
        let is_new = !self.path.exists();
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(0o600);
        let file = options.open(&self.path).map_err(failed)?;
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
fn place(data: &Path) -> io::Result<String> {
    let meta = std::fs::metadata(data)?;
    let run = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(format!("{}:{}:{}", run.trim(), meta.dev(), meta.ino()))
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
        }
    }

    fn read(folder: &Path) -> Claims {
        Claims::read(folder, "j").expect("it can be read")
    }

    #[test]
    fn a_copy_that_has_claimed_since_is_told_from_a_claim_that_was_cut_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut claims = read(folder.path());
        assert!(!claims.are_of_a_copy(&owner(7)), "nothing is known yet");
        let first = claims.begin(Some(&owner(7))).expect("written");
        assert!(first > 7);
        claims.made(first).expect("written");
        let mut claims = read(folder.path());
        assert!(claims.are_in_place() && !claims.are_of_a_copy(&owner(first)));
        assert!(claims.are_of_a_copy(&owner(first + 1)));
        // Killed before the claim, or after one of its steps.
        let second = claims.begin(Some(&owner(first))).expect("written");
        for found in [first, second, second + 1] {
            assert!(!read(folder.path()).are_of_a_copy(&owner(found)), "{found}");
        }
        for found in [first + 1, second + 2] {
            let is_second = (second..=second + 1).contains(&found);
            assert!(is_second || read(folder.path()).are_of_a_copy(&owner(found)), "{found}");
        }
    }

    #[test]
    fn copies_of_a_folder_begin_with_different_epochs() {
        let (one, two) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        let epochs: std::collections::BTreeSet<u64> = [&one, &two, &one, &two]
            .map(|folder| {
                let _ = std::fs::remove_file(folder.path().join(FILE));
                read(folder.path()).begin(None).expect("written")
            })
            .into();
        assert!(epochs.len() > 1, "{epochs:?}");
    }

    #[test]
    fn epochs_go_on_above_those_of_an_origin_that_went_back() {
        let folder = tempfile::tempdir().expect("a folder");
        read(folder.path()).made(8).expect("written");
        let mut claims = read(folder.path());
        assert!(!claims.are_of_a_copy(&owner(3)));
        assert!(claims.begin(Some(&owner(3))).expect("written") > 8);
    }

    #[test]
    fn a_copy_of_the_folder_is_in_another_place() {
        let (folder, copy) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("two"));
        read(folder.path()).made(8).expect("written");
        std::fs::copy(folder.path().join(FILE), copy.path().join(FILE)).expect("copied");
        assert!(read(folder.path()).are_in_place());
        assert!(!read(copy.path()).are_in_place());
        assert_eq!(read(copy.path()).epoch(), 8);
    }

    #[test]
    fn a_torn_slot_leaves_the_one_before_and_another_journals_note_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut claims = read(folder.path());
        claims.made(8).expect("written");
        claims.made(9).expect("written");
        let path = folder.path().join(FILE);
        let mut bytes = std::fs::read(&path).expect("there");
        assert_eq!(bytes.len(), SLOTS as usize * SLOT);
        // The first slot is the newer one: two were written.
        bytes[10] = 0;
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(read(folder.path()).epoch(), 8);
        let other = Claims::read(folder.path(), "another").expect("it can be read");
        assert!(!other.are_of_a_copy(&owner(100)) && !other.are_in_place());
    }
}
