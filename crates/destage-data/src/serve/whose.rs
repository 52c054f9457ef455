//! Which origin a journal's groups are for: the file `origin` in the data folder, in words that people can compare.
//!
//! A journal is sent to no other origin because a flag says that it may be adopted: whoever wants that names both.
//!
//! A second file of the same size stays beside it. A note is written there in place, and the two change names: a crash leaves
//! one of them whole, and a full disk takes it.

use super::ServeError;
use destage_runtime::{exit, own};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const FILE: &str = "origin";
const NEW_FILE: &str = "origin.new";
/// Both files measure a multiple of this.
const BLOCK: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    /// The journal's identity; a note of another one counts as none.
    journal: String,
    /// Kind, address and database, without user and password.
    origin: String,
    /// Groups up to this one were for another origin that has decided them, and are sent nowhere any more.
    floor: u64,
    /// How far the origin was when the server ended in order. It is so still where the journal ends where it did then.
    decided: Option<u64>,
    /// Where the journal ended then; `None` in notes of earlier builds, which took `decided` back at each start.
    last: Option<u64>,
}

/// The file.
#[derive(Debug)]
pub(super) struct Whose {
    path: PathBuf,
    note: Option<Note>,
    journal: String,
    /// The origin that the start has found.
    found: String,
}

/// The origin that a data folder's journal is for, if its folder says so.
pub fn origin_of(data: &Path) -> Option<String> {
    let note = serde_json::from_slice::<Note>(&own::read(&data.join(FILE)).ok()?).ok();
    note.map(|note| note.origin).or_else(|| example_of(data))
}

impl Whose {
    /// Reads what is noted of this journal, before the origin that describes itself so.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub(super) fn read(data: &Path, journal: &str, describe: &str) -> Result<Self, ServeError> {
        let path = data.join(FILE);
        let failed = |error: io::Error| unusable(&path, "read", &error);
        let note = match own::read(&path) {
            Ok(bytes) => {
                Some(serde_json::from_slice::<Note>(&bytes).map_err(|e| failed(e.into()))?)
            }
            // Earlier builds have noted nothing, but where the example is it is the origin.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let of = |origin| Note { journal: journal.into(), origin, ..Note::default() };
                example_of(data).map(of)
            }
            Err(error) => return Err(failed(error)),
        };
        let note = note.filter(|note| note.journal == journal);
        Ok(Self { path, note, journal: journal.into(), found: in_words(describe) })
    }

    /// The journal's origin, if it is noted and another one than the start has found.
    pub(super) fn other(&self) -> Option<&str> {
        let noted = self.note.as_ref().map(|note| &*note.origin);
        noted.filter(|origin| *origin != self.found)
    }

    /// The origin that the start has found.
    pub(super) fn found(&self) -> &str {
        &self.found
    }

    /// How far the journal's origin had decided, if that is known for certain: the journal ends at `last`.
    pub(super) fn decided(&self, last: u64) -> Option<u64> {
        let note = self.note.as_ref()?;
        note.decided.filter(|_| note.last.is_none_or(|then| then == last))
    }

    /// Up to here nothing is sent.
    pub(super) fn floor(&self) -> u64 {
        self.note.as_ref().map_or(0, |note| note.floor)
    }

    /// What the user writes to have the journal go on before the origin that the start has found.
    pub(super) fn change(&self) -> Option<String> {
        self.other().map(|from| format!("{from}={}", self.found))
    }

    /// Notes the origin that the start has found, before anything is sent there of the journal, which ends at `last`. Groups up
    /// to `floor`, and up to those of earlier changes, are never sent. Returns up to where.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&mut self, floor: u64, last: u64) -> Result<u64, ServeError> {
        let floor = floor.max(self.note.as_ref().map_or(0, |note| note.floor));
        // With nothing left to send, the origin decides no more before the journal has grown.
        let is_settled = |note: &Note| note.decided == Some(last) && note.last == Some(last);
        let settled = self.note.as_ref().is_some_and(is_settled).then_some(last);
        let (journal, origin) = (self.journal.clone(), self.found.clone());
        self.write(Note { journal, origin, floor, decided: settled, last: settled })?;
        Ok(floor)
    }

    /// Notes how far the origin was at an end in order, and where the journal ended.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn end(&mut self, decided: Option<u64>, last: u64) -> Result<(), ServeError> {
        match self.note.clone() {
            Some(note) => self.write(Note { decided, last: Some(last), ..note }),
            None => Ok(()),
        }
    }

    fn write(&mut self, note: Note) -> Result<(), ServeError> {
        let failed = |error: io::Error| unusable(&self.path, "write", &error);
        let sync_folder = || {
            let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
            File::open(folder).and_then(|folder| folder.sync_all())
        };
        let beside = self.path.with_file_name(NEW_FILE);
        // Where there is no second file yet, saying the same again would need space, which a full disk does not have.
        let is_noted = self.note.as_ref() == Some(&note) && self.path.is_file();
        let write = || {
            if !is_noted {
                // A process that was killed may have left an exchange that the disk does not know of.
                sync_folder()?;
                fill(&beside, &note)?;
                own::exchange(&beside, &self.path)?;
            }
            if !std::fs::metadata(&beside).is_ok_and(|meta| meta.len() >= BLOCK as u64) {
                // On a full disk the next note is tried without it.
                let _ = fill(&beside, &note);
            }
            sync_folder()
        };
        write().map_err(failed)?;
        self.note = Some(note);
        Ok(())
    }
}

/// Writes a note in place, and makes it durable.
fn fill(path: &Path, note: &Note) -> io::Result<()> {
    let mut bytes = serde_json::to_vec(note)?;
    bytes.resize((bytes.len() + 1).next_multiple_of(BLOCK) - 1, b' ');
    bytes.push(b'\n');
    let file = own::open(path, OpenOptions::new().write(true).create(true).truncate(false))?;
    file.write_all_at(&bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

/// A file's path is another one from each folder, so it is noted from the root.
fn in_words(describe: &str) -> String {
    let file = describe.strip_prefix("sqlite:").and_then(|path| std::fs::canonicalize(path).ok());
    file.map_or_else(|| describe.to_owned(), |path| format!("sqlite:{}", path.display()))
}

/// The example shop, where one was made in the folder.
fn example_of(data: &Path) -> Option<String> {
    let shop = data.join(crate::settings::EXAMPLE_FILE);
    shop.is_file().then(|| in_words(&format!("sqlite:{}", shop.display())))
}

fn unusable(path: &Path, what: &str, error: &io::Error) -> ServeError {
    ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "failed to {what} {}, which says which origin this data folder's journal is for: {error}. Check the disk and the \
             file's mode, then start again",
            path.display()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_journal_knows_its_origin_and_what_is_never_sent() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let (a, b) = ("postgres://a:5432/shop", "postgres://b:5432/shop");
        let mut whose = Whose::read(data, "j", a).unwrap();
        assert_eq!((whose.other(), whose.decided(0)), (None, None));
        assert_eq!(whose.begin(0, 0).unwrap(), 0);
        assert_eq!(origin_of(data).as_deref(), Some(a));
        let killed = Whose::read(data, "j", b).unwrap();
        assert_eq!((killed.other(), killed.decided(0)), (Some(a), None));
        whose.end(Some(7), 9).unwrap();
        let mut whose = Whose::read(data, "j", b).unwrap();
        assert_eq!(whose.decided(9), Some(7));
        assert_eq!(
            whose.change().as_deref(),
            Some("postgres://a:5432/shop=postgres://b:5432/shop")
        );
        assert_eq!(whose.begin(7, 9).unwrap(), 7);
        let mut again = Whose::read(data, "j", b).unwrap();
        assert_eq!((again.other(), again.decided(9)), (None, None));
        assert_eq!(again.begin(0, 9).unwrap(), 7);
        assert_eq!(Whose::read(data, "another", a).unwrap().other(), None);
    }

    #[test]
    fn a_start_after_a_crash_writes_nothing_anew() {
        let folder = tempfile::tempdir().unwrap();
        let origin = "postgres://a:5432/shop";
        Whose::read(folder.path(), "j", origin).unwrap().begin(3, 5).unwrap();
        // Nothing can be written in its place.
        let beside = folder.path().join(NEW_FILE);
        std::fs::remove_file(&beside).unwrap();
        std::fs::create_dir_all(beside.join("in the way")).unwrap();
        let mut whose = Whose::read(folder.path(), "j", origin).unwrap();
        assert_eq!(whose.begin(0, 5).unwrap(), 3);
        whose.end(Some(7), 7).unwrap_err();
        std::fs::remove_dir_all(beside).unwrap();
        whose.end(Some(7), 7).unwrap();
        assert_eq!(Whose::read(folder.path(), "j", origin).unwrap().decided(7), Some(7));
    }

    #[test]
    fn a_start_after_an_end_in_order_writes_nothing_anew_unless_something_is_left_to_send() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let read = || Whose::read(path, "j", "postgres://a:5432/shop").unwrap();
        let written = || std::fs::read_to_string(path.join(FILE)).unwrap();
        read().begin(0, 0).unwrap();
        for (decided, is_left) in [(7, true), (9, false)] {
            read().end(Some(decided), 9).unwrap();
            assert_eq!(read().decided(9), Some(decided));
            let before = written();
            read().begin(0, 9).unwrap();
            assert_eq!(written() != before, is_left);
            // Killed: where it had nothing to send, it has sent nothing but what the journal got meanwhile.
            assert_eq!(read().decided(9), (!is_left).then_some(9));
            assert_eq!(read().decided(10), None);
        }
    }

    #[test]
    fn a_note_is_written_in_place_where_there_is_space_for_it_already() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        let read = || Whose::read(folder.path(), "j", "postgres://a:5432/shop").unwrap();
        let files = || {
            let mut both = [FILE, NEW_FILE].map(|name| {
                let meta = std::fs::metadata(path(name)).unwrap();
                (meta.ino(), meta.len())
            });
            both.sort_unstable();
            both
        };
        read().begin(0, 0).unwrap();
        let before = files();
        // As long as they are open, their numbers are not given to others.
        let _held = [FILE, NEW_FILE].map(|name| File::open(path(name)).unwrap());
        assert_eq!(before.map(|(_, len)| len), [BLOCK as u64; 2]);
        for last in 1..4 {
            read().end(Some(last), last).unwrap();
            assert_eq!((read().decided(last), files()), (Some(last), before));
        }
        // As an earlier build has left it; and a note that was torn is that of nobody.
        let noted = std::fs::read_to_string(path(FILE)).unwrap();
        std::fs::remove_file(path(NEW_FILE)).unwrap();
        std::fs::write(path(FILE), format!("{}\n", noted.trim_end())).unwrap();
        read().begin(0, 3).unwrap();
        std::fs::write(path(NEW_FILE), &noted[..40]).unwrap();
        assert_eq!(read().decided(3), Some(3));
        read().end(Some(4), 4).unwrap();
        assert_eq!((read().decided(4), files().map(|(_, len)| len)), (Some(4), [BLOCK as u64; 2]));
    }

    #[test]
    fn a_folder_of_an_earlier_build_with_the_example_is_the_examples() {
        let folder = tempfile::tempdir().unwrap();
        let shop = folder.path().join(crate::settings::EXAMPLE_FILE);
        std::fs::write(&shop, "").unwrap();
        let whose = Whose::read(folder.path(), "j", "postgres://a:5432/shop").unwrap();
        assert!(whose.other().unwrap().ends_with("/shop.db"));
        let own = format!("sqlite:{}", shop.display());
        assert_eq!(Whose::read(folder.path(), "j", &own).unwrap().other(), None);
    }
}
