//! A journal on the local disk that is one copy of a log on other servers (`--journal both`): whether it may go on without them,
//! and whether it has. The file `replica-log` in the data folder says so.
//!
//! What such a journal has acknowledged alone, the log on the servers lacks. So it is never taken for a tail that nobody was told
//! of: a folder that has gone on alone does not go back to the servers.

use super::ServeError;
use crate::settings::{JournalKind, Settings};
use destage_runtime::{exit, own};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};

const FILE: &str = "replica-log";
const NEW_FILE: &str = "replica-log.new";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// The log's name on the servers.
    log: String,
    /// The journal has taken writes without them.
    alone: bool,
    /// The servers may hold what the journal lacks.
    #[serde(default)]
    behind: bool,
}

fn failed(settings: &Settings, error: &io::Error) -> ServeError {
    let text = format!(
        "failed to use {}, which says of which log this data folder's journal is a copy: {error}. Check the disk and the file's \
         mode, then start again",
        settings.data.join(FILE).display()
    );
    ServeError::new(exit::JOURNAL_UNUSABLE, text)
}

fn read(settings: &Settings) -> Result<Option<Note>, ServeError> {
    match own::read(&settings.data.join(FILE)) {
        Ok(bytes) => {
            let note = serde_json::from_slice(&bytes);
            note.map(Some).map_err(|error| failed(settings, &error.into()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(settings, &error)),
    }
}

/// Notes whether the servers may hold what the journal in the data folder lacks: while it is made anew of their log.
///
/// # Errors
/// The file cannot be read or written.
pub(super) fn set_behind(settings: &Settings, behind: bool) -> Result<(), ServeError> {
    match read(settings)? {
        Some(note) if note.behind != behind => {
            write(settings, &Note { behind, ..note }).map_err(|error| failed(settings, &error))
        }
        _ => Ok(()),
    }
}

/// Looks whether the journal in the data folder may be used as the settings say, and notes how it is. Whether it goes on
/// without the servers of its log.
///
/// # Errors
/// It may not, or the file cannot be read or written.
pub(super) fn check(settings: &Settings) -> Result<bool, ServeError> {
    let data = settings.data.display();
    let unusable = |message| Err(ServeError::new(exit::JOURNAL_UNUSABLE, message));
    let found = read(settings)?;
    let note = match (&settings.replicas, found.clone()) {
        (Some(_), Some(note)) if note.alone => {
            return unusable(format!(
                "the journal in {data} has gone on without the servers of the log '{}' (--journal-alone) and holds writes that they \
                 lack. Start it so once more and let it drain (exit 0), then start with an empty data folder, another --replica-log \
                 and --adopt",
                note.log
            ));
        }
        (Some(replicas), found) if replicas.journal == JournalKind::Both => {
            let behind = found.is_some_and(|note| note.behind);
            Note { log: replicas.name.clone(), alone: false, behind }
        }
        // The servers alone get what is written now.
        (Some(_), Some(note)) => Note { behind: true, ..note },
        (Some(_), None) | (None, None) => return Ok(false),
        (None, Some(note)) if settings.journal_alone && note.behind => {
            return unusable(format!(
                "the journal in {data} may lack writes that the servers of the log '{}' hold: it was used by them alone since, or \
                 was being made anew of their log. Start with --replicas; a journal that was set aside is beside it (journal.N)",
                note.log
            ));
        }
        (None, Some(note)) if settings.journal_alone => {
            tracing::warn!(
                log = note.log,
                "the journal goes on without the servers of its log: what is acknowledged from now on is lost with this host's disk, \
                 up to D, and also if a standby takes the log over"
            );
            Note { alone: true, ..note }
        }
        (None, Some(note)) => {
            return unusable(format!(
                "the journal in {data} is one copy of the log '{}' on other servers. Name them (--replicas). Or go on with this copy \
                 alone by --journal-alone: what is acknowledged then is lost with this host's disk, up to D. It is lost, too, if a \
                 standby takes the log over, so end all of them before",
                note.log
            ));
        }
    };
    // A start with nothing new to note needs no space. What it read may not be durable yet.
    let is_noted = found.is_some_and(|found| found == note);
    let noted = if is_noted { sync_folder(settings) } else { write(settings, &note) };
    noted.map_err(|error| failed(settings, &error))?;
    Ok(note.alone)
}

/// Beside the file, which the new one then replaces: a crash leaves one of them whole.
fn write(settings: &Settings, note: &Note) -> io::Result<()> {
    let beside = settings.data.join(NEW_FILE);
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = own::open(&beside, OpenOptions::new().write(true).create_new(true))?;
    serde_json::to_writer(&mut file, note)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&beside, settings.data.join(FILE))?;
    sync_folder(settings)
}

fn sync_folder(settings: &Settings) -> io::Result<()> {
    File::open(&settings.data).and_then(|folder| folder.sync_all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::ReplicaSettings;
    use destage_replicas_redis::Places;
    use std::time::Duration;

    #[test]
    fn a_start_with_nothing_new_to_note_writes_no_note() {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = Settings {
            data: folder.path().to_owned(),
            replicas: Some(ReplicaSettings {
                places: Places::parse("redis://:password@127.0.0.1:1").unwrap(),
                copies: 1,
                journal: JournalKind::Both,
                name: "shop".into(),
                failover: Duration::from_secs(1),
                standby: false,
                advertise: None,
            }),
            ..Settings::default()
        };
        assert!(!check(&settings).unwrap());
        // Nothing can be written in its place.
        let beside = folder.path().join(NEW_FILE);
        std::fs::create_dir_all(beside.join("in the way")).unwrap();
        assert!(!check(&settings).unwrap());
        settings.replicas = None;
        settings.journal_alone = true;
        check(&settings).unwrap_err();
        std::fs::remove_dir_all(&beside).unwrap();
        assert!(check(&settings).unwrap());
        std::fs::create_dir_all(beside.join("in the way")).unwrap();
        assert!(check(&settings).unwrap());
    }
}
