//! The way on after damage in the middle: cut the journal there, keep the damaged files aside, say what is lost.

use crate::chain::Chain;
use crate::disk::Disk;
use crate::error::{Error, Position};
use crate::format::{FLAG_FOLLOWED, SECTOR, SegmentHeader};
use crate::inspect::numbers;
use crate::store::{read_file, segment_name};
use std::io;

/// What a repair does, or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairReport {
    /// Where the journal ends afterwards.
    pub cut: Position,
    /// The newest group that remains; `None` if no segment does, and the next start makes a new journal.
    pub last_lsn: Option<u64>,
    /// The highest group that was recognised behind the cut. Groups from `last_lsn + 1` to it, at least, are lost, but
    /// for those that the origin has decided.
    pub lost_to_lsn: u64,
    /// The files that are set aside, whole, under these names.
    pub kept_aside: Vec<String>,
}

/// What [`repair`] would do.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`] if no batch can be reached at `cut`. Use the position that the refusal names.
pub fn plan_repair(disk: &dyn Disk, cut: Position) -> Result<RepairReport, Error> {
    let numbers = numbers(disk)?;
    let is_there = numbers.last().is_some_and(|&last| last >= cut.segment);
    let is_missing = || match numbers.last() {
        Some(&last) if last + 1 == cut.segment => Ok(followed_at(disk, last)?.is_some()),
        _ => Ok(false),
    };
    if !is_there && !is_missing()? {
        return Err(Error::invalid(format!("there is no segment {} to cut", cut.segment)));
    }
    let mut bytes = Vec::new();
    let kept = numbers.iter().copied().rfind(|&n| n < cut.segment);
    let mut end = match kept {
        Some(number) => follow(disk, number, None, &mut bytes)?,
        None => None,
    };
    let mut cut = cut;
    if numbers.contains(&cut.segment) {
        match follow(disk, cut.segment, Some(cut.offset), &mut bytes)? {
            Some(chain) => end = Some(chain),
            // Cut before its first batch: nothing of the segment is of use.
            None => cut.offset = 0,
        }
    }
    let mut report = RepairReport {
        cut,
        last_lsn: end.map(|chain| chain.next_lsn - 1),
        lost_to_lsn: 0,
        kept_aside: Vec::new(),
    };
    for &number in numbers.iter().filter(|&&n| n >= cut.segment) {
        read_file(disk, &segment_name(number), &mut bytes)?;
        let from = if number == cut.segment { cut.offset as usize } else { 0 };
        let behind = bytes.get(from..).unwrap_or(&[]);
        let lost = end.map_or(0, |chain| chain.highest_lsn(behind));
        report.lost_to_lsn = report.lost_to_lsn.max(lost);
        report.kept_aside.push(aside(disk, number)?);
    }
    Ok(report)
}

/// The chain's state at `offset`, or at the segment's end. `None` before its first batch.
fn follow(
    disk: &dyn Disk,
    number: u64,
    offset: Option<u64>,
    bytes: &mut Vec<u8>,
) -> Result<Option<Chain>, Error> {
    read_file(disk, &segment_name(number), bytes)?;
    let header = SegmentHeader::decode(bytes).ok().filter(|h| h.number == number);
    let Some(header) = header else {
        return Ok(None);
    };
    let mut chain = Chain::begin(&header);
    let mut at = header.data_start();
    if offset.is_some_and(|offset| offset < at) {
        return Ok(None);
    }
    while offset != Some(at) {
        let before = chain;
        let Some(batch) = chain.follow(bytes, at as usize) else {
            break;
        };
        if batch.header.flags & FLAG_FOLLOWED != 0 {
            // The next segment's first batch has its sequence.
            chain = before;
            break;
        }
        at = batch.end as u64;
    }
    match offset {
        Some(offset) if offset != at => Err(Error::invalid(format!(
            "no batch of segment {number} starts at offset {offset}: the last that can be reached is at {at}"
        ))),
        _ => Ok(Some(chain)),
    }
}

/// Ends the journal at `cut`, as the refusal of a damaged one names it. The segment and all later ones are kept aside as
/// `*.damaged`. May be repeated after a crash. Nobody else may have the journal open.
///
/// # Errors
/// [`crate::ErrorKind::Invalid`] unless `give_up` says that losing what follows is accepted; the message says what that
/// is. As [`plan_repair`] otherwise.
pub fn repair(disk: &dyn Disk, cut: Position, give_up: bool) -> Result<RepairReport, Error> {
    let report = plan_repair(disk, cut)?;
    if !give_up {
        let first = report.last_lsn.map_or(1, |last| last + 1);
        return Err(Error::invalid(format!(
            "cutting the journal at {} gives up its groups from {first} on (seen up to {}), but for those that \
             the origin has decided: confirm that with --give-up",
            report.cut,
            report.lost_to_lsn.max(first - 1)
        )));
    }
    carry_out(disk, &report).map_err(|e| Error::io("repair the journal; run it again", e))?;
    Ok(report)
}

fn carry_out(disk: &dyn Disk, report: &RepairReport) -> io::Result<()> {
    let numbers = numbers_of(disk)?;
    let behind: Vec<u64> = numbers.into_iter().filter(|&n| n >= report.cut.segment).collect();
    // From the highest on, so that no gap appears that was not there.
    for (&number, aside) in behind.iter().zip(&report.kept_aside).rev() {
        let name = segment_name(number);
        if number == report.cut.segment && report.cut.offset > 0 {
            copy(disk, &name, aside)?;
            disk.sync_dir()?;
            let file = disk.open(&name, false)?;
            let rest = file.len()?.saturating_sub(report.cut.offset);
            file.write_at(report.cut.offset, &vec![0; rest as usize])?;
            file.sync_data()?;
        } else {
            disk.rename(&name, aside)?;
            disk.sync_dir()?;
        }
    }
    let kept = numbers_of(disk)?.into_iter().next_back();
    // The journal ends there from now on.
    let Some(number) = kept else { return Ok(()) };
    if let Some(at) = followed_at(disk, number).map_err(io::Error::other)? {
        let file = disk.open(&segment_name(number), false)?;
        file.write_at(at, &[0; SECTOR])?;
        file.sync_data()?;
    }
    Ok(())
}

fn numbers_of(disk: &dyn Disk) -> io::Result<Vec<u64>> {
    numbers(disk).map_err(io::Error::other)
}

/// Where a segment says that the one behind it was begun, if it does.
fn followed_at(disk: &dyn Disk, number: u64) -> Result<Option<u64>, Error> {
    let mut bytes = Vec::new();
    read_file(disk, &segment_name(number), &mut bytes)?;
    let header = SegmentHeader::decode(&bytes).ok().filter(|h| h.number == number);
    let Some(header) = header else { return Ok(None) };
    let mut chain = Chain::begin(&header);
    let mut at = header.data_start() as usize;
    while let Some(batch) = chain.follow(&bytes, at) {
        if batch.header.flags & FLAG_FOLLOWED != 0 {
            return Ok(Some(at as u64));
        }
        at = batch.end;
    }
    Ok(None)
}

fn copy(disk: &dyn Disk, from: &str, to: &str) -> io::Result<()> {
    let mut bytes = Vec::new();
    read_file(disk, from, &mut bytes).map_err(io::Error::other)?;
    let file = disk.open(to, true)?;
    file.write_at(0, &bytes)?;
    file.sync_data()
}

/// A name that no file has, so that a repeated repair keeps what an earlier one set aside.
fn aside(disk: &dyn Disk, number: u64) -> Result<String, Error> {
    let base = segment_name(number);
    let names = (1..).map(|i| match i {
        1 => format!("{base}.damaged"),
        _ => format!("{base}.damaged-{i}"),
    });
    for name in names {
        let taken = disk.exists(&name);
        if !taken.map_err(|e| Error::io("look for a free name", e))? {
            return Ok(name);
        }
    }
    unreachable!("there are more names than files")
}
