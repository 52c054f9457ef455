//! A journal that is not in use, read from its beginning to its end.

use super::ServeError;
use crate::engine::{Record, Scan, read_group};
use destage_journal::{DirDisk, Disk, export_with};
use destage_runtime::{exit, human, progress};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What a journal holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Groups that can be read.
    pub groups: u64,
    /// Those of them that the origin does not have, apart from what the journal says of itself.
    pub undecided: u64,
    /// Bytes of files in them.
    pub undecided_bytes: u64,
    /// Changes of names in them.
    pub undecided_names: u64,
    /// How often it has been mounted.
    pub mounts: u64,
    /// Conflicts that it tells of.
    pub conflicts: u64,
}

/// Reads a journal; changes nothing.
///
/// # Errors
/// There is none, it is in use, damaged, or of another kind.
pub fn check(journal: &Path) -> Result<Checked, ServeError> {
    if !journal.is_dir() {
        let message = format!("there is no journal in {}", journal.display());
        return Err(ServeError::new(exit::USAGE, message));
    }
    let disk: Arc<dyn Disk> = Arc::new(DirDisk::open_read_only(journal)?);
    let (mut records, damage) =
        progress::of_segments("checking the journal", |shown| export_with(&disk, 0, shown))?;
    let mut scan = Scan::default();
    let mut found = Checked::default();
    let mut groups = Vec::new();
    progress::of_segments("looking through the journal", |shown| {
        while let Some(record) = records.advance()? {
            let read = read_group(record.payload).map_err(|error| {
                let message = format!(
                    "the journal's group {} cannot be read ({error:?}): is it the journal of a mount, and of this version?",
                    record.lsn
                );
                ServeError::new(exit::JOURNAL_UNUSABLE, message)
            })?;
            found.groups += 1;
            groups.push((record.lsn, Sum::of(&read)));
            scan.look(destage_core::Lsn(record.lsn), read);
            shown(records.progress());
        }
        Ok::<_, ServeError>(())
    })?;
    if let Some(damage) = damage {
        return Err(damage.into());
    }
    for (_, sum) in groups.iter().filter(|(lsn, sum)| *lsn > scan.decided.0 && sum.is_change) {
        found.undecided += 1;
        found.undecided_bytes += sum.bytes;
        found.undecided_names += sum.names;
    }
    (found.mounts, found.conflicts) = (scan.epoch, scan.conflicts);
    Ok(found)
}

/// What a group changes.
struct Sum {
    is_change: bool,
    bytes: u64,
    names: u64,
}

impl Sum {
    fn of(records: &[Record]) -> Self {
        let bytes = records.iter().map(|record| match record {
            Record::Data { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        Self {
            is_change: records.iter().any(|record| !record.is_own()),
            bytes: bytes.sum(),
            names: records.iter().filter(|record| matches!(record, Record::Names(_))).count()
                as u64,
        }
    }
}

impl Checked {
    /// For machines.
    pub fn as_json(&self) -> serde_json::Value {
        serde_json::json!({
            "groups": self.groups,
            "undecided": self.undecided,
            "undecided_bytes": self.undecided_bytes,
            "undecided_names": self.undecided_names,
            "mounts": self.mounts,
            "conflicts": self.conflicts,
        })
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "groups      {} can be read", human::count(self.groups))?;
        writeln!(
            out,
            "undecided   {}: {} of files, {} changes of names",
            human::count(self.undecided),
            human::bytes(self.undecided_bytes),
            human::count(self.undecided_names)
        )?;
        writeln!(out, "mounts      {}", human::count(self.mounts))?;
        writeln!(out, "conflicts   {}", human::count(self.conflicts))
    }
}
