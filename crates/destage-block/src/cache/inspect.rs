//! Looking at a cache device without changing it, sound or not.

use super::checkpoint::Checkpoints;
use super::marks::Marks;
use super::medium::Medium;
use super::region::Table;
use super::superblock::{self, Copy, Superblock};
use super::{CacheError, check_size};
use destage_journal::DiskFile;

/// What is on a cache device.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The superblock in force.
    pub superblock: Superblock,
    /// Both copies as they are.
    pub copies: [Copy; 2],
    /// The decided mark; `None` if both sectors are damaged.
    pub decided: Option<u64>,
    /// Files of the log by name, as of the newer table; `None` if both tables are damaged.
    pub log_files: Option<Vec<LogFile>>,
    /// The Lsn of the checkpoint in each area, as far as its header holds.
    pub checkpoint_lsns: [Option<u64>; 2],
}

/// A file in the log region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Reads what the device says of itself.
///
/// # Errors
/// If there is no superblock that holds, or the device is shorter than it says.
pub fn inspect(file: Box<dyn DiskFile>) -> Result<Inspection, CacheError> {
    let medium = Medium::new(file);
    let copies = superblock::read_copies(&medium)?;
    let superblock = superblock::choose(&copies)?;
    let (geometry, seed) = (superblock.geometry, superblock.seed());
    check_size(&medium, &geometry)?;
    let tables = Table::copies(&medium, &geometry, seed)?;
    let newest = tables.into_iter().flatten().max_by_key(|table| table.generation);
    let log_files = newest.map(|table| {
        let files = table.entries.into_iter();
        files.map(|entry| LogFile { name: entry.name, bytes: entry.len }).collect()
    });
    let decided = match Marks::open(medium.clone(), seed) {
        Ok(marks) => Some(marks.decided()),
        Err(CacheError::Damaged(_)) => None,
        Err(error) => return Err(error),
    };
    let headers = Checkpoints::open(medium, geometry, seed)?.headers()?;
    let checkpoint_lsns = headers.map(|header| header.map(|h| h.lsn));
    Ok(Inspection { superblock, copies, decided, log_files, checkpoint_lsns })
}
