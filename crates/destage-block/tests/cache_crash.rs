//! Power lost at any operation on the cache device, with any part of what was not synced lost or torn: groups that a sync
//! acknowledged are in the log, marks and checkpoints are the old or the new ones, slots hold what their checksum says or
//! are misses.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use destage_block::block::{BLOCK, Lba};
use destage_block::cache::{
    CacheDevice, CacheError, Creation, Geometry, Index, OriginId, Sizing, SlotState,
};
use destage_journal::{Disk, DiskFile, Journal, Options, Recovery};
use destage_testkit::SimDisk;
use destage_testkit::disk::{Count, Random};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const TOTAL: u64 = 1 << 20;

/// The medium under the device: the process may die at any operation on it, or, as the negative control, it does nothing
/// for the durability of one part, and claims it.
#[derive(Debug)]
struct Medium {
    file: Box<dyn DiskFile>,
    no_sync: Option<Range<u64>>,
    /// Whether the last write was to that part: then the next sync is for its sake.
    skip: AtomicBool,
    /// Operations until the process is dead.
    left: AtomicU64,
}

impl Medium {
    fn operate(&self) -> io::Result<()> {
        let less = |left: u64| left.checked_sub(1);
        let left = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        left.map(drop).map_err(|_| io::Error::other("the process is dead"))
    }
}

impl DiskFile for Medium {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.operate()?;
        let skip = self.no_sync.as_ref().is_some_and(|part| part.contains(&offset));
        self.skip.store(skip, Ordering::Relaxed);
        self.file.write_at(offset, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.operate()?;
        if self.skip.load(Ordering::Relaxed) { Ok(()) } else { self.file.sync_data() }
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The power is lost during this operation, from 1.
    PowerLost(u64),
    /// The process dies before this operation; what it has written is there.
    Killed(u64),
    /// After all steps.
    Done,
}

fn origin() -> OriginId {
    OriginId { uuid: uuid::Uuid::from_u128(5), name: "origin".to_owned(), volume_bytes: 1 << 30 }
}

fn creation() -> Creation {
    let sizing =
        Sizing { total_bytes: TOTAL, log_bytes: Some(7 << 16), segment_bytes: Some(1 << 16) };
    Creation { sizing, origin: origin(), created_ns: 1, overwrite: false }
}

/// What the index held when a checkpoint copied it, by handle.
type Entries = BTreeMap<u32, (Lba, u32)>;

fn entries(index: &Index) -> Entries {
    let clean = (0..index.slots()).filter_map(|handle| match index.state(handle) {
        SlotState::Clean(crc) => Some((handle, (index.lba(handle)?, crc))),
        _ => None,
    });
    clean.collect()
}

/// One device through several lives, with a model of what must and may be on it.
struct Run {
    disk: SimDisk,
    random: Random,
    /// The part whose syncs do nothing.
    no_sync: Option<Range<u64>>,
    /// Payload of each number as last appended, from 1.
    appended: Vec<Vec<u8>>,
    acknowledged: u64,
    reclaimed: u64,
    decided: u64,
    decided_tried: u64,
    checkpoint: (u64, Entries),
    checkpoint_tried: (u64, Entries),
    /// The contents of slots that were synced and not written since, by handle, with their checksums.
    slots: BTreeMap<u32, (u32, u8)>,
    slots_written: BTreeMap<u32, (u32, u8)>,
    life: u8,
}

impl Run {
    fn new(seed: u64, no_sync: Option<Range<u64>>) -> Self {
        let disk = SimDisk::new();
        disk.edit("cache", |bytes| bytes.resize(TOTAL as usize, 0));
        let run = Self {
            disk,
            random: Random(seed),
            no_sync,
            appended: Vec::new(),
            acknowledged: 0,
            reclaimed: 0,
            decided: 0,
            decided_tried: 0,
            checkpoint: Default::default(),
            checkpoint_tried: Default::default(),
            slots: BTreeMap::new(),
            slots_written: BTreeMap::new(),
            life: 0,
        };
        let medium = run.disk.open("cache", false).unwrap();
        drop(CacheDevice::create(medium, &creation()).unwrap());
        run
    }

    fn medium(&self, operations: u64) -> Box<dyn DiskFile> {
        Box::new(Medium {
            file: self.disk.open("cache", false).unwrap(),
            no_sync: self.no_sync.clone(),
            skip: AtomicBool::new(false),
            left: AtomicU64::new(operations),
        })
    }

    fn open(&self, operations: u64) -> Result<(CacheDevice, Journal, Recovery), String> {
        let cache =
            CacheDevice::open(self.medium(operations), &origin()).map_err(|e| e.to_string())?;
        let options = Options { background: false, ..cache.log_options() };
        let (journal, recovery) = Journal::open(cache.log(), options).map_err(|e| e.to_string())?;
        Ok((cache, journal, recovery))
    }

    /// Opens (perhaps ending meanwhile), checks, then works until the end or the steps are done.
    fn live(&mut self, end: End, steps: u64) -> Result<(), String> {
        self.life += 1;
        let mut operations = u64::MAX;
        match end {
            End::PowerLost(at) => self.disk.power_off_after(at),
            End::Killed(at) => operations = at - 1,
            End::Done => {}
        }
        let (cache, journal, recovery) = match self.open(operations) {
            Ok(opened) => opened,
            Err(_) if self.disk.is_powered_off() => return Ok(()),
            Err(why) if why.contains("the process is dead") => return Ok(()),
            Err(why) => return Err(format!("refused: {why}")),
        };
        let index = self.check(&cache, &recovery)?;
        self.appended.truncate(recovery.last_lsn as usize);
        // What is found is made durable.
        self.acknowledged = recovery.last_lsn;
        self.decided = cache.decided();
        self.decided_tried = self.decided;
        let _ = self.work(&cache, journal, index, steps);
        Ok(())
    }

    fn check(&mut self, cache: &CacheDevice, recovery: &Recovery) -> Result<Index, String> {
        if recovery.last_lsn < self.acknowledged {
            return Err(format!("lost {} of {}", recovery.last_lsn, self.acknowledged));
        }
        if recovery.first_lsn > self.reclaimed + 1 {
            return Err(format!("first {} after {}", recovery.first_lsn, self.reclaimed));
        }
        for record in recovery.records(1) {
            let record = record.map_err(|e| e.to_string())?;
            if self.appended.get(record.lsn as usize - 1) != Some(&record.payload) {
                return Err(format!("record {} is not what was written", record.lsn));
            }
        }
        let decided = cache.decided();
        if decided != self.decided && decided != self.decided_tried {
            return Err(format!("decided {decided}, {} or {}", self.decided, self.decided_tried));
        }
        for (&handle, &(crc, fill)) in &self.slots {
            let mut block = [0; BLOCK];
            let hit = cache.read_slot(handle, crc, &mut block).map_err(|e| e.to_string())?;
            if !hit || block != [fill; BLOCK] {
                return Err(format!("slot {handle} was synced and is gone"));
            }
        }
        self.check_checkpoint(cache, recovery)
    }

    fn check_checkpoint(
        &mut self,
        cache: &CacheDevice,
        recovery: &Recovery,
    ) -> Result<Index, String> {
        let loaded = cache.load_checkpoint(recovery.first_lsn).map_err(|e| e.to_string())?;
        let (index, lsn) = loaded;
        let found = (lsn, entries(&index));
        if found != self.checkpoint && found != self.checkpoint_tried {
            return Err(format!(
                "checkpoint {lsn}, neither {} nor {}",
                self.checkpoint.0, self.checkpoint_tried.0
            ));
        }
        self.checkpoint = found.clone();
        self.checkpoint_tried = found;
        Ok(index)
    }

    fn work(
        &mut self,
        cache: &CacheDevice,
        mut journal: Journal,
        mut index: Index,
        steps: u64,
    ) -> Result<(), CacheError> {
        for _ in 0..steps {
            match self.random.below(12) {
                0..6 => self.append(&mut journal)?,
                6 => {
                    let decided = self.acknowledged
                        - self.random.below(3).min(1) as u64 * self.acknowledged / 9;
                    if decided > self.decided {
                        self.decided_tried = decided;
                        cache.set_decided(decided)?;
                        self.decided = decided;
                    }
                }
                7 => {
                    let upto = self.decided.min(self.checkpoint.0);
                    self.reclaimed = self.reclaimed.max(upto);
                    journal.reclaim(upto, 0);
                }
                8 => self.write_checkpoint(cache, &journal, &mut index)?,
                9 => {
                    cache.sync()?;
                    self.slots.append(&mut self.slots_written);
                }
                _ => self.write_slots(cache, &mut index)?,
            }
        }
        Ok(())
    }

    fn append(&mut self, journal: &mut Journal) -> Result<(), CacheError> {
        for _ in 0..self.random.below(4) {
            let lsn = journal.last() + 1;
            let mut payload = vec![self.life; self.random.below(5_000)];
            payload.extend_from_slice(&lsn.to_le_bytes());
            journal.append(lsn, lsn, 0, &payload);
            self.appended.push(payload);
        }
        let sync = self.random.below(3) > 0;
        let mut flush = journal.take();
        let result = flush.run(sync);
        journal.give_back(flush);
        match result {
            Ok(upto) if sync => self.acknowledged = upto,
            Ok(_) => {}
            // A full log waits for the next reclaiming.
            Err(error) if error.kind() == destage_journal::ErrorKind::Full => {}
            Err(_) => return Err(CacheError::NotACache),
        }
        Ok(())
    }

    /// Copies chunk after chunk while the index goes on changing.
    fn write_checkpoint(
        &mut self,
        cache: &CacheDevice,
        journal: &Journal,
        index: &mut Index,
    ) -> Result<(), CacheError> {
        let lsn = journal.last();
        let mut writer = cache.begin_checkpoint(lsn);
        let mut copied = Entries::new();
        while let Some(chunk) = writer.next_chunk() {
            let before = entries(index);
            let handles = destage_block::cache::index::chunk_handles(index.slots());
            let range = chunk * handles..(chunk + 1) * handles;
            copied.extend(before.range(range).map(|(&handle, &entry)| (handle, entry)));
            writer.write(&index.chunk(chunk))?;
            self.write_slots(cache, index)?;
        }
        // A block that has moved meanwhile is listed twice and taken up once.
        let mut seen = std::collections::BTreeSet::new();
        copied.retain(|_, (lba, _)| seen.insert(*lba));
        self.checkpoint_tried = (lsn, copied);
        if self.random.below(5) > 0 {
            writer.commit()?;
            self.checkpoint = self.checkpoint_tried.clone();
        } else {
            self.checkpoint_tried = self.checkpoint.clone();
        }
        Ok(())
    }

    fn write_slots(&mut self, cache: &CacheDevice, index: &mut Index) -> Result<(), CacheError> {
        let mut blocks = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let fill = self.random.below(256) as u8;
            let lba = Lba(self.random.below(150) as u64);
            let handle = match index.get(lba) {
                Some(handle) => handle,
                None => {
                    if index.used() == index.slots() {
                        index.remove(self.random.below(index.slots() as usize) as u32);
                    }
                    index.insert(lba).unwrap()
                }
            };
            self.slots.remove(&handle);
            self.slots_written.remove(&handle);
            if blocks.iter().all(|&(h, _)| h != handle) {
                blocks.push((handle, [fill; BLOCK]));
            }
        }
        let slices: Vec<(u32, &[u8])> = blocks.iter().map(|(h, b)| (*h, &b[..])).collect();
        cache.write_slots(&slices)?;
        for (handle, block) in &blocks {
            let crc = crc32c::crc32c(block);
            index.set_clean(*handle, crc);
            self.slots_written.insert(*handle, (crc, block[0]));
        }
        Ok(())
    }

    fn end(&mut self, end: End) {
        if let End::PowerLost(_) = end {
            let seed = self.random.bits();
            self.disk.crash(seed);
            self.slots_written.clear();
        } else {
            self.disk.kill();
        }
    }
}

fn run(seed: u64, no_sync: Option<Range<u64>>) -> Result<(), String> {
    let mut run = Run::new(seed, no_sync);
    for _ in 0..5 {
        let at = 1 + run.random.below(if run.life == 0 { 300 } else { 120 }) as u64;
        let end = if run.random.below(4) == 0 { End::Killed(at) } else { End::PowerLost(at) };
        run.live(end, 60)?;
        run.end(end);
    }
    Ok(())
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    let seeds = std::env::var("CACHE_SEEDS").map_or(120, |n| n.parse().unwrap());
    for seed in 0..seeds {
        if let Err(why) = run(seed, None) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn without_the_syncs_of_any_one_part_the_same_test_fails_within_50_seeds() {
    let geometry = Geometry::plan(&creation().sizing).unwrap();
    // Not the name table: the journal's next sync, of whatever file, makes it durable as well. The region has tests of its
    // own.
    let parts = [
        ("decided", 0..geometry.name_table(0).start),
        ("checkpoint", geometry.checkpoint(0).start..geometry.checkpoint(1).end),
        ("lost", geometry.extent(0)..geometry.extent(geometry.extents)),
        ("slot", geometry.slot(0)..TOTAL),
    ];
    for (symptom, part) in parts {
        // Other symptoms may come first: a log that lost its end voids the checkpoint, and with it the slots.
        let mut failures = (0..50).filter_map(|seed| run(seed, Some(part.clone())).err());
        let found = failures.any(|why| why.starts_with(symptom));
        assert!(found, "nobody would notice unsynced {symptom}");
    }
}

/// Every operation of one fixed run, in turn, as the one during which the power goes.
#[test]
fn power_lost_at_each_operation_in_turn_loses_nothing_acknowledged() {
    let steps = 45;
    let mut whole = Run::new(3, None);
    let before = whole.disk.operations(Count::All);
    whole.live(End::Done, steps).unwrap();
    let operations = whole.disk.operations(Count::All) - before;
    assert!(operations > 150, "{operations}");
    assert!(whole.decided > 0 && whole.checkpoint.0 > 0 && whole.acknowledged > 10);
    for at in 1..=operations {
        let mut run = Run::new(3, None);
        run.live(End::PowerLost(at), steps).unwrap_or_else(|why| panic!("{at}: {why}"));
        assert!(run.disk.is_powered_off());
        run.disk.crash(at * 31);
        run.slots_written.clear();
        run.live(End::Done, 0).unwrap_or_else(|why| panic!("{at}: {why}"));
    }
}

/// A cache is there when its creation returned; before that, none is, or one that can be made again.
#[test]
fn power_lost_while_a_cache_is_made_leaves_none_or_a_whole_one() {
    for at in 1.. {
        let disk = SimDisk::new();
        disk.edit("cache", |bytes| bytes.resize(TOTAL as usize, 0));
        disk.power_off_after(at);
        let made = CacheDevice::create(disk.open("cache", false).unwrap(), &creation());
        assert_eq!(made.is_err(), disk.is_powered_off());
        disk.crash(at * 7);
        let opened = CacheDevice::open(disk.open("cache", false).unwrap(), &origin());
        match opened {
            Ok(cache) => assert_eq!((cache.decided(), cache.checkpoint_lsn()), (0, None)),
            Err(CacheError::NotACache | CacheError::Damaged("superblock")) => {
                assert!(made.is_err());
                let again = Creation { overwrite: true, ..creation() };
                CacheDevice::create(disk.open("cache", false).unwrap(), &again).unwrap();
                CacheDevice::open(disk.open("cache", false).unwrap(), &origin()).unwrap();
            }
            Err(other) => panic!("{at}: {other}"),
        }
        if made.is_ok() {
            assert!(at > 10);
            return;
        }
    }
}

/// The origin noted last or the one before, whole.
#[test]
fn power_lost_while_the_superblock_changes_leaves_the_old_or_the_new_one() {
    for at in 1.. {
        let run = Run::new(1, None);
        let cache = CacheDevice::open(run.medium(u64::MAX), &origin()).unwrap();
        run.disk.power_off_after(at);
        let renamed = OriginId { name: "moved".repeat(300), ..origin() };
        let noted = cache.set_origin(renamed.clone());
        run.disk.crash(at * 3);
        let found = CacheDevice::open(run.medium(u64::MAX), &origin()).unwrap().superblock().origin;
        assert!(found == renamed || (noted.is_err() && found == origin()), "{at}: {found:?}");
        if noted.is_ok() {
            return;
        }
    }
}

#[test]
fn a_full_log_says_so_and_goes_on_when_groups_are_decided() {
    let run = Run::new(1, None);
    let (cache, mut journal, _) = run.open(u64::MAX).unwrap();
    let flush_all = |journal: &mut Journal| {
        let mut flush = journal.take();
        let result = flush.run(true);
        journal.give_back(flush);
        result
    };
    let full = loop {
        let lsn = journal.last() + 1;
        journal.append(lsn, lsn, 0, &[lsn as u8; 9_000]);
        match flush_all(&mut journal) {
            Ok(_) => {}
            Err(full) => break full,
        }
    };
    assert_eq!(full.kind(), destage_journal::ErrorKind::Full, "{full}");
    let status = journal.status();
    assert_eq!(cache.log_free_extents(), 0);
    // Header, summary and the marks of later starts leave room for five in each of six segments.
    assert!(status.durable_lsn >= 6 * 5 - 1, "{status:?}");
    journal.reclaim(status.durable_lsn, 0);
    assert_eq!(flush_all(&mut journal).unwrap(), status.last_lsn);
    // Round and round: every extent is used again and again.
    for _ in 0..200 {
        let lsn = journal.last() + 1;
        journal.append(lsn, lsn, 0, &[lsn as u8; 9_000]);
        flush_all(&mut journal).unwrap();
        journal.reclaim(lsn - 1, 0);
    }
    drop((journal, cache));
    let (_, _, recovery) = run.open(u64::MAX).unwrap();
    assert_eq!(recovery.last_lsn, status.last_lsn + 200);
}
