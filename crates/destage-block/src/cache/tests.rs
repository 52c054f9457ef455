//! The device as a whole: what is told apart, and what slots and checkpoints do without a crash.

use super::*;
use crate::block::Lba;
use destage_testkit::SimDisk;
use destage_testkit::disk::Count;

const TOTAL: u64 = 4 << 20;

fn origin() -> OriginId {
    OriginId {
        uuid: uuid::Uuid::from_u128(1),
        name: "nbd://store/a".to_owned(),
        volume_bytes: 1 << 30,
    }
}

fn creation() -> Creation {
    let sizing = Sizing { total_bytes: TOTAL, log_bytes: None, segment_bytes: None };
    Creation { sizing, origin: origin(), created_ns: 7, overwrite: false }
}

fn device() -> SimDisk {
    let disk = SimDisk::new();
    disk.edit("cache", |bytes| bytes.resize(TOTAL as usize, 0));
    disk
}

fn file(disk: &SimDisk) -> Box<dyn DiskFile> {
    disk.open("cache", false).unwrap()
}

fn created() -> (SimDisk, CacheDevice) {
    let disk = device();
    let cache = CacheDevice::create(file(&disk), &creation()).unwrap();
    (disk, cache)
}

fn refused(disk: &SimDisk) -> CacheError {
    CacheDevice::open(file(disk), &origin()).unwrap_err()
}

#[test]
fn each_reason_to_refuse_is_told_apart() {
    assert!(matches!(refused(&device()), CacheError::NotACache));
    let (disk, cache) = created();
    drop(cache);
    CacheDevice::open(file(&disk), &origin()).unwrap();

    let short = disk.fork();
    short.edit("cache", |bytes| bytes.truncate(1 << 20));
    let error = refused(&short);
    assert!(matches!(error, CacheError::TooSmall { expected: TOTAL, found: 0x10_0000 }), "{error}");
    short.edit("cache", |bytes| bytes.truncate(100));
    assert!(matches!(refused(&short), CacheError::NotACache));

    let newer = disk.fork();
    newer.edit("cache", |bytes| {
        for at in geometry::SUPERBLOCKS.map(|at| at as usize) {
            bytes[at + 8] = 9;
            let crc = crc32c(&bytes[at..at + 12]);
            bytes[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
        }
    });
    assert!(matches!(refused(&newer), CacheError::Version { found: 9, known: 1 }));

    let damaged = disk.fork();
    damaged.edit("cache", |bytes| bytes[geometry::SUPERBLOCKS[0] as usize + 60] ^= 1);
    let healed = CacheDevice::open(file(&damaged), &origin()).unwrap();
    assert_eq!(healed.superblock().generation, 1);
    let copies = inspect(file(&damaged)).unwrap().copies;
    assert_eq!(copies[0], copies[1], "the damaged copy is written again");
    damaged.edit("cache", |bytes| {
        for at in geometry::SUPERBLOCKS {
            bytes[at as usize + 60] ^= 1;
        }
    });
    assert!(matches!(refused(&damaged), CacheError::Damaged("superblock")));

    let marks = disk.fork();
    marks.edit("cache", |bytes| {
        for at in geometry::MARKS {
            bytes[at as usize + 9] ^= 1;
        }
    });
    assert!(matches!(refused(&marks), CacheError::Damaged("decided mark")));
    assert_eq!(inspect(file(&marks)).unwrap().decided, None);
}

#[test]
fn another_origin_is_refused_by_its_uuid_or_without_one_by_its_name() {
    let (disk, cache) = created();
    drop(cache);
    let moved = OriginId { name: "elsewhere".to_owned(), ..origin() };
    CacheDevice::open(file(&disk), &moved).unwrap();
    let other = OriginId { uuid: uuid::Uuid::from_u128(2), ..origin() };
    let error = CacheDevice::open(file(&disk), &other).unwrap_err();
    assert!(matches!(error, CacheError::OtherOrigin { .. }));
    assert!(error.to_string().contains("nbd://store/a"), "{error}");
    let nameless = |name: &str| OriginId {
        uuid: uuid::Uuid::nil(),
        name: name.to_owned(),
        volume_bytes: 1 << 30,
    };
    assert!(nameless("a").is_same(&nameless("a")));
    assert!(!nameless("a").is_same(&nameless("b")));
    assert!(!origin().is_same(&nameless("nbd://store/a")));
}

#[test]
fn what_may_be_someones_data_is_not_overwritten_unasked() {
    let (disk, cache) = created();
    drop(cache);
    let again = CacheDevice::create(file(&disk), &creation()).unwrap_err();
    assert!(matches!(again, CacheError::Exists));
    let foreign = device();
    foreign.edit("cache", |bytes| bytes[1_080] = 0x53);
    let error = CacheDevice::create(file(&foreign), &creation()).unwrap_err();
    assert!(matches!(error, CacheError::NotEmpty));
    let asked = Creation { overwrite: true, ..creation() };
    CacheDevice::create(file(&foreign), &asked).unwrap();
}

#[test]
fn what_a_crash_leaves_of_making_a_cache_is_no_obstacle_to_the_next() {
    let mut complete = 0;
    for (n, seed) in (0..).flat_map(|n| (0..8).map(move |seed| (n, seed))) {
        let disk = device();
        disk.power_off_after(n);
        let is_made = CacheDevice::create(file(&disk), &creation()).is_ok();
        disk.crash(seed);
        match CacheDevice::open(file(&disk), &origin()) {
            Ok(_) => complete += 1,
            Err(CacheError::NotACache) => {
                assert!(!is_made, "{n}, seed {seed}");
                let again = CacheDevice::create(file(&disk), &creation());
                assert!(again.is_ok(), "{n}, seed {seed}: {:?}", again.err());
                CacheDevice::open(file(&disk), &origin()).unwrap();
            }
            Err(error) => panic!("{n}, seed {seed}: {error}"),
        }
        if is_made && seed == 7 {
            break;
        }
    }
    assert!(complete > 8, "some are complete before they are said to be: {complete}");
}

#[test]
fn a_cache_made_anew_shows_nothing_of_the_old_one() {
    let (disk, cache) = created();
    cache.set_decided(900).unwrap();
    let mut index = Index::new(cache.slots());
    let handle = index.insert(Lba(4)).unwrap();
    index.set_clean(handle, 1);
    checkpoint(&cache, &index, 800);
    cache.log().open("segment-0000000001", true).unwrap();
    cache.log().sync_dir().unwrap();
    drop(cache);
    let asked = Creation { overwrite: true, ..creation() };
    let cache = CacheDevice::create(file(&disk), &asked).unwrap();
    assert_eq!((cache.decided(), cache.checkpoint_lsn()), (0, None));
    assert!(cache.log().list().unwrap().is_empty());
    assert_eq!(cache.load_checkpoint(1).unwrap().0.used(), 0);
}

#[test]
fn volumes_and_names_that_no_cache_takes_are_refused() {
    let large = OriginId { volume_bytes: (16 << 40) + 1, ..origin() };
    let named = OriginId { name: "n".repeat(ORIGIN_NAME_BYTES_MAX + 1), ..origin() };
    for origin in [large, named] {
        let creation = Creation { origin: origin.clone(), ..creation() };
        let error = CacheDevice::create(file(&device()), &creation).unwrap_err();
        assert!(matches!(error, CacheError::Invalid(_)), "{error}");
        let (_, cache) = created();
        cache.set_origin(origin).unwrap_err();
    }
    let longest = OriginId { name: "n".repeat(ORIGIN_NAME_BYTES_MAX), ..origin() };
    let (disk, cache) = created();
    cache.set_origin(longest.clone()).unwrap();
    let found = inspect(file(&disk)).unwrap().superblock;
    assert_eq!((found.origin, found.generation), (longest, 2));
}

#[test]
fn slots_are_read_by_checksum_only() {
    let (_, cache) = created();
    let blocks: Vec<[u8; BLOCK]> = (0..300).map(|n| [n as u8; BLOCK]).collect();
    // Runs, a gap, a step back, and a run that is longer than one write.
    let handles: Vec<u32> = [4, 5, 6, 9, 2].into_iter().chain(20..280).collect();
    let slices: Vec<(u32, &[u8])> =
        handles.iter().zip(&blocks).map(|(&handle, block)| (handle, &block[..])).collect();
    assert!(cache.slots() > 280, "{}", cache.slots());
    cache.write_slots(&slices).unwrap();
    cache.write_slots(&[]).unwrap();
    let mut found = [0; BLOCK];
    for &(handle, block) in &slices {
        assert!(cache.read_slot(handle, crc32c(block), &mut found).unwrap());
        assert_eq!(found, block);
        assert!(!cache.read_slot(handle, crc32c(block) ^ 1, &mut found).unwrap());
        found.fill(0);
        assert_eq!(cache.read_slot_now(handle, crc32c(block), &mut found).unwrap(), Some(true));
        assert_eq!(found, block);
        let other = cache.read_slot_now(handle, crc32c(block) ^ 1, &mut found).unwrap();
        assert_eq!(other, Some(false));
    }
}

fn checkpoint(cache: &CacheDevice, index: &Index, lsn: u64) {
    let mut writer = cache.begin_checkpoint(lsn);
    while let Some(chunk) = writer.next_chunk() {
        writer.write(&index.chunk(chunk)).unwrap();
    }
    assert_eq!(writer.commit().unwrap(), lsn);
}

#[test]
fn checkpoints_alternate_and_an_unfinished_one_changes_nothing() {
    let (disk, cache) = created();
    let mut index = Index::new(cache.slots());
    for lsn in 1..=3u64 {
        let handle = index.insert(Lba(lsn * 100)).unwrap();
        index.set_clean(handle, lsn as u32);
        checkpoint(&cache, &index, lsn * 10);
    }
    let mut unfinished = cache.begin_checkpoint(40);
    unfinished.write(&index.chunk(0)).unwrap();
    drop(unfinished);
    assert_eq!(cache.checkpoint_lsn(), Some(30));
    drop(cache);
    assert_eq!(inspect(file(&disk)).unwrap().checkpoint_lsns, [Some(20), Some(30)]);
    let cache = CacheDevice::open(file(&disk), &origin()).unwrap();
    let (loaded, lsn) = cache.load_checkpoint(31).unwrap();
    assert_eq!((loaded.used(), lsn), (3, 30));
    assert_eq!(loaded.state(loaded.get(Lba(200)).unwrap()), SlotState::Clean(2));
    checkpoint(&cache, &loaded, 50);
    assert_eq!(inspect(file(&disk)).unwrap().checkpoint_lsns, [Some(50), Some(30)]);
}

/// Otherwise a block that was written, destaged and reclaimed meanwhile would be served as it was before.
#[test]
fn a_checkpoint_that_the_log_does_not_reach_back_to_is_not_used() {
    let (disk, cache) = created();
    let mut index = Index::new(cache.slots());
    for lsn in [10, 20] {
        let handle = index.insert(Lba(lsn)).unwrap();
        index.set_clean(handle, 1);
        checkpoint(&cache, &index, lsn);
    }
    let lsn = |log_first| cache.load_checkpoint(log_first).unwrap().1;
    assert_eq!((lsn(1), lsn(21), lsn(22)), (20, 20, 0));
    // The newest one is damaged: the one before counts only for a log that reaches back to it.
    let newest = cache.geometry().checkpoint(0).start as usize;
    disk.edit("cache", |bytes| bytes[newest + 4096 + 40] ^= 1);
    assert_eq!((lsn(1), lsn(12), lsn(11)), (10, 0, 10));
    // The next one replaces the damaged one, not the one in force.
    assert_eq!(cache.checkpoint_lsn(), Some(10));
    checkpoint(&cache, &index, 30);
    assert_eq!(inspect(file(&disk)).unwrap().checkpoint_lsns, [Some(30), Some(10)]);
    assert_eq!((lsn(1), lsn(31), cache.checkpoint_lsn()), (30, 30, Some(30)));
}

#[test]
#[should_panic(expected = "one checkpoint at a time")]
fn a_second_checkpoint_beside_the_first_is_a_bug() {
    let (_, cache) = created();
    let _first = cache.begin_checkpoint(1);
    let _second = cache.begin_checkpoint(2);
}

#[test]
fn marks_only_go_forward() {
    let (disk, cache) = created();
    for lsn in [5, 3, 8, 8, 13] {
        cache.set_decided(lsn).unwrap();
    }
    assert_eq!(cache.decided(), 13);
    drop(cache);
    assert_eq!(CacheDevice::open(file(&disk), &origin()).unwrap().decided(), 13);
    // The newest mark is damaged: the one before holds.
    disk.edit("cache", |bytes| bytes[geometry::MARKS[1] as usize + 16] ^= 1);
    assert_eq!(inspect(file(&disk)).unwrap().decided, Some(8));
}

#[test]
fn the_device_serves_many_threads_at_once() {
    let (disk, cache) = created();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let cache = &cache;
            scope.spawn(move || {
                let log = cache.log();
                for round in 0..30u32 {
                    let block = [(thread * 30 + round) as u8; BLOCK];
                    cache.write_slots(&[(thread * 30 + round, &block)]).unwrap();
                    cache.set_decided(u64::from(round * 4 + thread)).unwrap();
                    let name = format!("thread {thread}");
                    let file = log.open(&name, true).unwrap();
                    file.write_at(u64::from(round) * 100, &[1; 100]).unwrap();
                    file.sync_data().unwrap();
                    if round % 10 == 9 {
                        log.remove(&name).unwrap();
                        log.sync_dir().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(cache.decided(), 119);
    assert_eq!(cache.log_free_extents(), cache.geometry().extents);
    disk.crash(1);
    let cache = CacheDevice::open(file(&disk), &origin()).unwrap();
    assert_eq!(cache.decided(), 119);
    let mut found = [0; BLOCK];
    for handle in 0..119 {
        let crc = crc32c(&[handle as u8; BLOCK]);
        assert!(cache.read_slot(handle, crc, &mut found).unwrap(), "{handle}");
    }
}

/// The device that the document shows.
fn example() -> SimDisk {
    let disk = SimDisk::new();
    disk.edit("cache", |bytes| bytes.resize(1 << 20, 0));
    let sizing =
        Sizing { total_bytes: 1 << 20, log_bytes: Some(6 << 16), segment_bytes: Some(1 << 16) };
    let superblock = Superblock {
        uuid: uuid::Uuid::from_u128(0x0001_0203_0405_4607_8809_0a0b_0c0d_0e0f),
        generation: 1,
        created_ns: 1_700_000_000_000_000_000,
        geometry: Geometry::plan(&sizing).unwrap(),
        origin: origin(),
        attachment: Attachment { begun: 7, made: 6 },
    };
    let cache = CacheDevice::format(Medium::new(file(&disk)), superblock).unwrap();
    let log = cache.log();
    log.open("segment-0000000001", true).unwrap().set_len(1 << 16).unwrap();
    log.sync_dir().unwrap();
    cache.set_decided(3).unwrap();
    let mut index = Index::new(cache.slots());
    let block = [0; BLOCK];
    let handle = index.insert(Lba(5)).unwrap();
    cache.write_slots(&[(handle, &block)]).unwrap();
    index.set_clean(handle, crc32c(&block));
    checkpoint(&cache, &index, 4);
    disk
}

/// As the document shows bytes: an offset, then up to 16 bytes; rows of zeros are left out.
fn dump(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|&b| b != 0));
    let rows = rows.map(|(i, row)| {
        let hex: Vec<_> = row.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:06x}  {}\n", i * 16, hex.join(" "))
    });
    rows.collect()
}

#[test]
fn the_documented_device_is_what_this_build_writes_and_opens() {
    let disk = example();
    let written = dump(&disk.bytes("cache").unwrap());
    let document = include_str!("../../../../docs/FORMAT.md");
    let shown = document
        .split("## Cache device")
        .nth(1)
        .and_then(|section| section.split("```hexdump\n").nth(1))
        .and_then(|rest| rest.split("```").next());
    assert_eq!(shown, Some(written.as_str()), "format 1 must not change; written now:\n{written}");
    let cache = CacheDevice::open(file(&disk), &origin()).unwrap();
    assert_eq!(cache.decided(), 3);
    let (index, lsn) = cache.load_checkpoint(1).unwrap();
    assert_eq!((index.get(Lba(5)), lsn), (Some(0), 4));
    assert_eq!(cache.log().list().unwrap(), ["segment-0000000001"]);
}

/// A medium of a process that dies before each sync.
#[derive(Debug)]
struct Unsynced(Box<dyn DiskFile>);

impl DiskFile for Unsynced {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_at(offset, bytes)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> std::io::Result<()> {
        self.0.set_len(bytes)
    }
}

/// A start relies on what it reads, and overwrites the older place on the strength of it.
#[test]
fn what_a_start_has_found_is_durable_from_then_on() {
    for seed in 0..30 {
        let (disk, cache) = created();
        cache.set_decided(1).unwrap();
        drop(cache);
        let dying = CacheDevice::open(Box::new(Unsynced(file(&disk))), &origin()).unwrap();
        dying.set_decided(2).unwrap();
        drop(dying);
        disk.kill();
        let cache = CacheDevice::open(file(&disk), &origin()).unwrap();
        assert_eq!(cache.decided(), 2);
        disk.power_off_after(1);
        cache.set_decided(3).unwrap_err();
        disk.crash(seed);
        let decided = CacheDevice::open(file(&disk), &origin()).unwrap().decided();
        assert!(decided >= 2, "seed {seed}: {decided}");
    }
}

/// Everything that a device says of itself; each part only ever grows.
fn told(cache: &CacheDevice) -> [u64; 4] {
    let files = cache.log().list().unwrap().len() as u64;
    [
        cache.decided(),
        cache.superblock().attachment.begun,
        files,
        cache.checkpoint_lsn().unwrap_or(0),
    ]
}

/// Changes each part, until one fails.
fn change(cache: &CacheDevice, to: u64) -> Result<(), CacheError> {
    cache.set_decided(to)?;
    cache.set_attachment(Attachment { begun: to, made: to - 1 })?;
    let log = cache.log();
    let made = log.open(&format!("segment-{to:010}"), true).and_then(|_| log.sync_dir());
    made.map_err(CacheError::io("make a file of the log"))?;
    let index = Index::new(cache.slots());
    let mut writer = cache.begin_checkpoint(to);
    while let Some(chunk) = writer.next_chunk() {
        writer.write(&index.chunk(chunk))?;
    }
    writer.commit().map(drop)
}

/// A sync fails, a start sees what the system shows, and the power goes at one of its operations.
#[derive(Clone, Copy, Debug)]
struct Fall {
    failing_sync: u64,
    lost_at: u64,
    seed: u64,
}

fn falls(failing_sync: u64) -> impl Iterator<Item = Fall> {
    let each = move |lost_at| (0..3).map(move |seed| Fall { failing_sync, lost_at, seed });
    (1..=16).flat_map(each)
}

fn told_after(fall: Fall, without_rewrites: bool) -> Result<(), String> {
    let (disk, cache) = created();
    (1..=2).for_each(|to| change(&cache, to).unwrap());
    disk.fail_after(Count::Syncs, fall.failing_sync, std::io::ErrorKind::Other);
    change(&cache, 3).unwrap_err();
    drop(cache);
    disk.kill();
    disk.set_unsafe_no_rewrites(without_rewrites);
    let cache = CacheDevice::open(file(&disk), &origin()).unwrap();
    let found = told(&cache);
    disk.power_off_after(fall.lost_at);
    let ended = (4..).find(|&to| change(&cache, to).is_err());
    assert!(ended.is_some(), "the power goes");
    disk.set_unsafe_no_rewrites(false);
    disk.crash(fall.failing_sync * 1_000 + fall.lost_at * 10 + fall.seed);
    let cache = CacheDevice::open(file(&disk), &origin()).map_err(|error| error.to_string())?;
    let then = told(&cache);
    let is_kept = then.iter().zip(&found).all(|(then, found)| then >= found);
    if is_kept { Ok(()) } else { Err(format!("{found:?} was found, then {then:?}")) }
}

#[test]
fn what_a_start_has_found_stays_though_a_sync_had_failed_before() {
    // One of the mark, two of the superblock, one of the name table, two of the checkpoint.
    for fall in (1..=6).flat_map(falls) {
        if let Err(why) = told_after(fall, false) {
            panic!("{fall:?}: {why}");
        }
    }
}

#[test]
fn a_start_that_only_syncs_what_it_has_found_fails_the_same_test() {
    for failing_sync in [1, 3, 4, 6] {
        let fails = |fall| told_after(fall, true).is_err();
        assert!(falls(failing_sync).any(fails), "sync {failing_sync}: nobody would notice");
    }
}
