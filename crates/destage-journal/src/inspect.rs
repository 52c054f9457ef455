//! Looking at a journal without changing it, sound or not.

use crate::chain::{Chain, Tail};
use crate::disk::Disk;
use crate::error::{Error, Position};
use crate::format::{HeaderProblem, SegmentHeader};
use crate::read::Records;
use crate::recover::{Progress, Torn, scan, scan_into};
use crate::store::{FileKind, classify, read_file, survey};
use std::collections::VecDeque;
use std::sync::Arc;

/// What one file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The file's name.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// What it is.
    pub state: SegmentState,
}

/// What a file of the journal is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Holds batches.
    Begun {
        /// The next group's number when it was begun.
        first_lsn: u64,
        /// Its newest group; `first_lsn - 1` if there is none.
        last_lsn: u64,
        /// Batches that follow one another, marks included.
        batches: u64,
        /// Records in them.
        records: u64,
        /// The incarnations that wrote it, first and last.
        incarnations: (u64, u64),
        /// Bytes of the catalog.
        catalog_bytes: u32,
        /// Where the batches end.
        end: u64,
        /// What is wrong there, if something is.
        problem: Option<String>,
    },
    /// Ready to be begun, or begun and damaged at its start; [`check`] tells.
    NotBegun,
    /// Waits to be used again; its content is of the past.
    Spare,
    /// Of another format version.
    Version(u32),
    /// Not one of the journal's own: set aside by a repair, or foreign.
    Other,
}

/// What [`check`] found in a sound journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The journal's UUID.
    pub uuid: String,
    /// The newest incarnation.
    pub incarnation: u64,
    /// The next group's number when the oldest segment was begun.
    pub first_lsn: u64,
    /// The newest group.
    pub last_lsn: u64,
    /// Segments begun.
    pub segments: usize,
    /// What the next start will cut.
    pub torn: Option<Torn>,
    /// Whether it was closed.
    pub clean_shutdown: bool,
}

/// Looks at every file by itself, in name order. Damage is reported, not returned as an error.
///
/// # Errors
/// If the medium cannot be read.
pub fn inspect(disk: &dyn Disk) -> Result<Vec<SegmentReport>, Error> {
    inspect_with(disk, &mut |_| {})
}

/// As [`inspect`]; `progress` hears of every file that was looked at.
///
/// # Errors
/// The same.
pub fn inspect_with(
    disk: &dyn Disk,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<SegmentReport>, Error> {
    let mut reports = Vec::new();
    let mut bytes = Vec::new();
    let files = survey(disk)?;
    let total = files.len() as u64;
    for (kind, name) in files {
        let len = disk.open(&name, false).and_then(|file| file.len());
        let len = len.map_err(|e| Error::io(format_args!("read {name}"), e))?;
        let state = match kind {
            FileKind::Segment(number) => read_quiet(
                || {
                    read_file(disk, &name, &mut bytes)?;
                    Ok(segment_state(number, &bytes))
                },
                |state| state.as_ref().ok().and_then(SegmentState::problem).map(ToOwned::to_owned),
            )?,
            FileKind::Spare(_) => SegmentState::Spare,
            FileKind::New | FileKind::Other => SegmentState::Other,
        };
        reports.push(SegmentReport { name, bytes: len, state });
        progress(Progress { segments: reports.len() as u64, segments_total: total });
    }
    Ok(reports)
}

impl SegmentState {
    fn problem(&self) -> Option<&str> {
        if let Self::Begun { problem, .. } = self { problem.as_deref() } else { None }
    }
}

/// Reads once more if something seems wrong, until the same seems wrong twice in a row. Beside a server that writes, a reader may
/// be shown a later batch and not yet one before it.
fn read_quiet<T, P: PartialEq>(
    mut read: impl FnMut() -> Result<T, Error>,
    wrong: impl Fn(&Result<T, Error>) -> Option<P>,
) -> Result<T, Error> {
    let mut found = read();
    for _ in 0..READ_AGAIN_MAX {
        let Some(first) = wrong(&found) else { break };
        found = read();
        if wrong(&found) == Some(first) {
            break;
        }
    }
    found
}

const READ_AGAIN_MAX: usize = 20;

fn segment_state(number: u64, bytes: &[u8]) -> SegmentState {
    let header = match SegmentHeader::decode(bytes) {
        Ok(header) if header.number == number => header,
        Ok(_) | Err(HeaderProblem::Broken) => return SegmentState::NotBegun,
        Err(HeaderProblem::Version(version)) => return SegmentState::Version(version),
    };
    let mut chain = Chain::begin(&header);
    let mut end = header.data_start() as usize;
    let (mut batches, mut records) = (0, 0);
    while let Some(batch) = chain.follow(bytes, end) {
        end = batch.end;
        batches += 1;
        records += u64::from(batch.header.records);
    }
    let problem = if header.catalog(bytes).is_none() {
        Some("the catalog is broken".to_owned())
    } else {
        match chain.judge(bytes, end) {
            Tail::Clean => None,
            Tail::Torn { end: to } => Some(format!("torn from {end} to {to}")),
            Tail::Damaged => Some(format!("damaged at {end}: later batches say it was durable")),
        }
    };
    SegmentState::Begun {
        first_lsn: header.first_lsn,
        last_lsn: chain.next_lsn.saturating_sub(1),
        batches,
        records,
        incarnations: (header.incarnation, chain.incarnation),
        catalog_bytes: header.catalog_len,
        end: end as u64,
        problem,
    }
}

/// Reads the whole journal as a start would, changing nothing. `None` if there is no journal.
///
/// # Errors
/// As [`crate::Journal::open`] would fail.
pub fn check(disk: &dyn Disk) -> Result<Option<CheckReport>, Error> {
    check_with(disk, &mut |_| {})
}

/// As [`check`]; `progress` hears of every segment that was read.
///
/// # Errors
/// The same.
pub fn check_with(
    disk: &dyn Disk,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<CheckReport>, Error> {
    let scanned = read_quiet(|| scan(disk, None, progress), where_damaged)?;
    Ok(scanned.map(|scan| CheckReport {
        uuid: uuid::Uuid::from_bytes(scan.uuid).to_string(),
        incarnation: scan.chain.incarnation,
        first_lsn: scan.segments.front().map_or(0, |s| s.first_lsn),
        last_lsn: scan.chain.next_lsn - 1,
        segments: scan.segments.len(),
        torn: scan.torn(),
        clean_shutdown: scan.clean,
    }))
}

/// The records from `from` on that can be read: all of a sound journal, those before the damage of another one, with what
/// is wrong behind them.
///
/// # Errors
/// If nothing can be read at all: another format version, or trouble with the medium.
pub fn export(disk: &Arc<dyn Disk>, from: u64) -> Result<(Records, Option<Error>), Error> {
    export_with(disk, from, &mut |_| {})
}

/// As [`export`]; `progress` hears of every segment that was looked at, before the first record is read.
///
/// # Errors
/// The same.
pub fn export_with(
    disk: &Arc<dyn Disk>,
    from: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Records, Option<Error>), Error> {
    let mut sound = VecDeque::new();
    let scanned = || {
        sound.clear();
        scan_into(&**disk, None, progress, &mut sound)
    };
    let damage = match read_quiet(scanned, where_damaged) {
        Ok(_) => None,
        Err(error) if error.position().is_some() => Some(error),
        Err(error) => return Err(error),
    };
    Ok((Records::new(disk.clone(), sound, from, u64::MAX), damage))
}

fn where_damaged<T>(found: &Result<T, Error>) -> Option<Position> {
    found.as_ref().err().and_then(Error::position)
}

/// Segment numbers that have a file, ascending.
pub(crate) fn numbers(disk: &dyn Disk) -> Result<Vec<u64>, Error> {
    let names = disk.list().map_err(|e| Error::io("list the journal's directory", e))?;
    let mut numbers: Vec<u64> = names
        .iter()
        .filter_map(|n| if let FileKind::Segment(n) = classify(n) { Some(n) } else { None })
        .collect();
    numbers.sort_unstable();
    Ok(numbers)
}
