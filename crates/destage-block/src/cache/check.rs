//! Reading a whole cache device as a start would, and comparing it with itself and with its origin. Changes nothing.

use super::index::SlotState;
use super::medium::Medium;
use super::record::{GroupKind, GroupRecord};
use super::superblock::{self, Copy, Superblock};
use super::{CacheDevice, CacheError, Handle, Index, check_size};
use crate::block::{BLOCK, Extent, Lba};
use crate::compare::differing;
use crate::origin::{Origin, OriginIoError};
use crc32c::crc32c;
use destage_journal::{DiskFile, ErrorKind};
use destage_runtime::progress::{self, Progress};
use std::collections::BTreeSet;

/// What a check found.
#[derive(Clone, Debug)]
pub struct CacheCheck {
    /// What the device says of itself.
    pub superblock: Superblock,
    /// Groups up to here are at the origin, as far as the device or the redo store knows.
    pub decided: u64,
    /// The same as the device's own mark says.
    pub decided_mark: u64,
    /// The oldest and the newest group in the log.
    pub log: (u64, u64),
    /// Groups that are not at the origin.
    pub undecided_groups: u64,
    /// Blocks that they change.
    pub dirty_blocks: u64,
    /// Points at which an application was consistent and that the origin has not passed.
    pub marks_ahead: u64,
    /// The Lsn of the checkpoint that a start would use; 0 for none.
    pub checkpoint: u64,
    /// Clean blocks whose slots hold what they should.
    pub clean_blocks: u64,
    /// Slots that hold something else than the index says: misses, and no sign of damage, since the index was last written
    /// while it changed.
    pub outdated_slots: u64,
    /// Slots that hold something else than was written to them: the volume was closed, and nothing has changed since. Misses
    /// as well; nothing is lost, but the device cannot be trusted.
    pub damaged_slots: u64,
    /// The first of them.
    pub first_damaged: Option<Handle>,
    /// Clean blocks that were compared with the origin.
    pub compared_blocks: u64,
    /// Clean blocks that differ from the origin.
    pub differing_blocks: u64,
    /// The first of them.
    pub first_differing: Option<Lba>,
    /// What is broken, in words.
    pub faults: Vec<String>,
    /// What the next start mends by itself, in words.
    pub remarks: Vec<String>,
}

/// The origin to compare with.
pub struct Against<'a> {
    /// The origin.
    pub origin: &'a dyn Origin,
    /// UUID of the cache that was attached last, and up to which of its groups the origin has everything, as the redo store
    /// says.
    pub applied: ([u8; 16], u64),
    /// Blocks of a group that is under way: they may hold anything of it.
    pub pending: &'a [Extent],
}

/// Why a check could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The cache device.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The origin.
    #[error(transparent)]
    Origin(#[from] OriginIoError),
}

/// Checks everything on a device.
///
/// # Errors
/// If there is no superblock that holds, the device is shorter than it says, or a medium cannot be read.
pub fn check(
    file: Box<dyn DiskFile>,
    against: Option<&Against<'_>>,
) -> Result<CacheCheck, CheckError> {
    let medium = Medium::new(file);
    let copies = superblock::read_copies(&medium)?;
    let superblock = superblock::choose(&copies)?;
    check_size(&medium, &superblock.geometry)?;
    let mut found = CacheCheck::new(superblock.clone());
    for (number, copy) in ["first", "second"].iter().zip(&copies) {
        if *copy != Copy::Sound(superblock.clone()) {
            found.remarks.push(format!(
                "the {number} copy of the superblock is out of date or damaged; the next start writes it again"
            ));
        }
    }
    let cache = match CacheDevice::take_up(medium, superblock) {
        Ok(cache) => cache,
        Err(error @ CacheError::Damaged(_)) => {
            found.faults.push(error.to_string());
            return Ok(found);
        }
        Err(error) => return Err(error.into()),
    };
    found.decided_mark = cache.decided();
    found.decided = found.decided_mark;
    if let Some(Against { applied: (uuid, applied), .. }) = against
        && uuid == found.superblock.uuid.as_bytes()
    {
        found.decided = found.decided.max(*applied);
    }
    let (index, is_exact) = found.check_index_and_log(&cache)?;
    found.check_slots(&cache, &index, is_exact, against)?;
    Ok(found)
}

impl CacheCheck {
    fn new(superblock: Superblock) -> Self {
        Self {
            superblock,
            decided: 0,
            decided_mark: 0,
            log: (0, 0),
            undecided_groups: 0,
            dirty_blocks: 0,
            marks_ahead: 0,
            checkpoint: 0,
            clean_blocks: 0,
            outdated_slots: 0,
            damaged_slots: 0,
            first_damaged: None,
            compared_blocks: 0,
            differing_blocks: 0,
            first_differing: None,
            faults: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Whether nothing is broken, and nothing differs from the origin.
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.differing_blocks == 0 && self.damaged_slots == 0
    }

    /// Reads the log; the index as a start would have it, and whether it tells exactly what the slots hold.
    fn check_index_and_log(&mut self, cache: &CacheDevice) -> Result<(Index, bool), CacheError> {
        let disk = cache.log();
        let checked = progress::of_segments("checking the log", |shown| {
            destage_journal::check_with(&*disk, shown)
        });
        let report = match checked {
            Ok(report) => report,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.faults.push(format!("the log: {error}"));
                None
            }
            Err(error) => {
                return Err(CacheError::Invalid(format!("failed to read the log: {error}")));
            }
        };
        if let Some(report) = &report {
            self.log = (report.first_lsn, report.last_lsn);
            if report.torn.is_some() {
                self.remarks.push(
                    "the log ends in writes that were never acknowledged as durable; the next start cuts them".into(),
                );
            }
            if !report.clean_shutdown {
                self.remarks.push("the cache was not closed: its server was killed".into());
            }
        }
        let (index, checkpoint) = cache.load_checkpoint(self.log.0)?;
        self.checkpoint = checkpoint;
        let is_exact = report.is_some_and(|report| {
            report.clean_shutdown && cache.closed_by() == Some(report.incarnation as u32)
        });
        Ok((self.read_groups(cache, index)?, is_exact))
    }

    fn read_groups(&mut self, cache: &CacheDevice, mut index: Index) -> Result<Index, CacheError> {
        let unreadable = |error| CacheError::Invalid(format!("failed to read the log: {error}"));
        let log = cache.log();
        let (mut records, damage) =
            progress::of_segments("looking for writes in the log", |shown| {
                destage_journal::export_with(&log, 0, shown)
            })
            .map_err(unreadable)?;
        let mut dirty = BTreeSet::new();
        let mut bar = Progress::new("reading the writes in the log", 0);
        loop {
            let at = records.progress();
            bar.set_total(at.segments_total);
            bar.set(at.segments);
            let Some(record) = records.advance().map_err(unreadable)? else { break };
            let group = match GroupRecord::decode(record.payload) {
                Ok(group) => group,
                Err(error) => {
                    self.faults.push(format!("write {} of the log: {error}", record.lsn));
                    continue;
                }
            };
            let is_undecided = record.lsn > self.decided;
            let lbas = group.header.extents.iter().flat_map(|extent| extent.iter());
            for lba in lbas {
                if (is_undecided || record.lsn > self.checkpoint)
                    && let Some(handle) = index.get(lba)
                {
                    index.remove(handle);
                }
                if is_undecided {
                    dirty.insert(lba.0);
                }
            }
            self.undecided_groups += u64::from(is_undecided);
            self.marks_ahead += u64::from(is_undecided && group.header.kind == GroupKind::Mark);
            let wrong = group.blocks().filter(|(crc, block)| crc32c(block) != *crc).count();
            if wrong > 0 {
                let lsn = record.lsn;
                self.faults
                    .push(format!("write {lsn} of the log: {wrong} blocks have another checksum"));
            }
        }
        bar.finish();
        if damage.is_some() {
            self.remarks.push("what stands in the log behind the damage was not read".into());
        }
        self.dirty_blocks = dirty.len() as u64;
        Ok(index)
    }

    /// Compares slots with the index, and with the origin.
    fn check_slots(
        &mut self,
        cache: &CacheDevice,
        index: &Index,
        is_exact: bool,
        against: Option<&Against<'_>>,
    ) -> Result<(), CheckError> {
        let mut block = vec![0; BLOCK];
        let mut sound: Vec<(Lba, u32)> = Vec::new();
        let mut bar = Progress::new("reading the cache", u64::from(index.slots()));
        for handle in 0..index.slots() {
            bar.set(u64::from(handle));
            let (SlotState::Clean(crc), Some(lba)) = (index.state(handle), index.lba(handle))
            else {
                continue;
            };
            match (cache.read_slot(handle, crc, &mut block)?, is_exact) {
                (true, _) => sound.push((lba, crc)),
                (false, false) => self.outdated_slots += 1,
                (false, true) => {
                    self.damaged_slots += 1;
                    self.first_damaged.get_or_insert(handle);
                }
            }
        }
        bar.finish();
        self.clean_blocks = sound.len() as u64;
        let Some(against) = against else { return Ok(()) };
        // In the order of the origin's blocks, which a disk reads fastest.
        sound.sort_unstable();
        let is_pending = |lba: Lba| against.pending.iter().any(|e| e.first <= lba && lba < e.end());
        sound.retain(|(lba, _)| !is_pending(*lba));
        self.compared_blocks = sound.len() as u64;
        let wrong = differing(against.origin, &sound)?;
        self.differing_blocks = wrong.len() as u64;
        self.first_differing = wrong.first().copied();
        Ok(())
    }
}

/// The oldest and the newest group of a log that is sound.
pub(super) fn check_log(cache: &CacheDevice) -> Result<(u64, u64), CacheError> {
    let log = cache.log();
    let report = progress::of_segments("checking the log", |shown| {
        destage_journal::check_with(&*log, shown)
    });
    let report =
        report.map_err(|error| CacheError::Invalid(format!("the log cannot be read: {error}")))?;
    Ok(report.map_or((0, 0), |report| (report.first_lsn, report.last_lsn)))
}
