use super::*;
use crate::block::Extent;
use crate::redo::{AtomicGroup, Content, NewStore, RecentBlocks, Replay, Run};
use crate::testing::SimOrigin;
use destage_testkit::SimDisk;
use std::sync::Arc;

const BLOCKS: u64 = 600;
const ORIGIN_BYTES: u64 = BLOCKS * BLOCK as u64;

struct World {
    disk: SimDisk,
    origin: SimOrigin,
    medium: SimOrigin,
}

impl World {
    fn new() -> Self {
        let disk = SimDisk::new();
        let origin = SimOrigin::new(&disk, "origin", ORIGIN_BYTES);
        let medium = SimOrigin::new(&disk, "redo", 300 << 10);
        let new = NewStore { uuid: [7; 16], origin_bytes: ORIGIN_BYTES, overwrite: false };
        RedoStore::create(Arc::new(medium.clone()), &new).unwrap();
        Self { disk, origin, medium }
    }

    fn open(&self) -> RedoStore {
        RedoStore::open(Arc::new(self.medium.clone())).unwrap()
    }

    /// Attaches, destages the first blocks and leaves everything as a clean shutdown does.
    fn detached(&self) {
        let mut store = self.open();
        attach(&mut store, &self.origin, &claim(1)).unwrap();
        for lba in (0..5).map(Lba) {
            let block = [lba.0 as u8 + 1; BLOCK];
            self.origin.write(lba.offset(), &block).unwrap();
            store.note_destaged(lba, crc32c(&block));
        }
        self.origin.flush().unwrap();
        store.recover(&self.origin, false).unwrap();
        detach(&mut store, &self.origin, Lsn(9)).unwrap();
    }
}

fn claim(cache: u8) -> Claim {
    Claim { cache: [cache; 16], host: "one".to_owned(), now_ns: 5, take_over: false, known: 0 }
}

fn own(decided: u64) -> OwnWrites<'static> {
    OwnWrites { decided: Lsn(decided), is_undecided: &|_| false }
}

fn group(to: u64) -> AtomicGroup {
    let extent = Extent { first: Lba(0), blocks: 1 };
    let runs = vec![Run { extent, content: Content::Data }];
    AtomicGroup { from: Lsn(to), to: Lsn(to), runs }
}

fn payload(_: Lba, buf: &mut [u8]) -> Result<(), OriginIoError> {
    buf.fill(9);
    Ok(())
}

#[test]
fn each_attachment_counts_and_is_kept_over_a_crash() {
    let world = World::new();
    for generation in 1..4 {
        let record = attach(&mut world.open(), &world.origin, &claim(1)).unwrap();
        assert_eq!(record.generation, generation);
        world.disk.crash(generation);
        assert_eq!(*world.open().attachment(), record);
    }
    let long = Claim { host: "ü".repeat(60), ..claim(1) };
    let record = attach(&mut world.open(), &world.origin, &long).unwrap();
    assert_eq!(record.host, "ü".repeat(32), "cut between characters");
    assert_eq!(*world.open().attachment(), record);
}

#[test]
fn an_origin_that_another_cache_left_attached_is_refused_unless_taken_over() {
    let world = World::new();
    attach(&mut world.open(), &world.origin, &claim(1)).unwrap();
    let refused = attach(&mut world.open(), &world.origin, &claim(2)).unwrap_err();
    assert_eq!(refused.kind(), OriginIoErrorKind::Denied);
    assert!(refused.to_string().contains("host \"one\""), "{refused}");
    let taken =
        attach(&mut world.open(), &world.origin, &Claim { take_over: true, ..claim(2) }).unwrap();
    assert_eq!(taken.generation, 2);
}

#[test]
fn a_host_whose_origin_was_taken_over_writes_nothing_more() {
    let world = World::new();
    let mut first = world.open();
    attach(&mut first, &world.origin, &claim(1)).unwrap();
    first.recover(&world.origin, false).unwrap();
    first.apply(&world.origin, &group(1), &payload).unwrap();
    let mut second = world.open();
    attach(&mut second, &world.origin, &Claim { take_over: true, ..claim(2) }).unwrap();
    let before = (world.origin.bytes(), world.medium.bytes());
    let fenced = first.apply(&world.origin, &group(2), &payload).unwrap_err();
    assert_eq!(fenced.kind(), OriginIoErrorKind::Fenced, "{fenced}");
    let fenced = detach(&mut first, &world.origin, Lsn(1)).unwrap_err();
    assert_eq!(fenced.kind(), OriginIoErrorKind::Fenced);
    assert!(before == (world.origin.bytes(), world.medium.bytes()), "nothing was written");
    second.recover(&world.origin, false).unwrap();
    second.apply(&world.origin, &group(2), &payload).unwrap();
}

#[test]
fn an_origin_that_nobody_touched_compares_equal_in_all_points() {
    let world = World::new();
    let fresh = examine(&world.open(), &world.origin, None).unwrap();
    assert!(fresh.is_unchanged() && fresh.unchecked.len() == 1, "{fresh:?}");
    world.detached();
    world.disk.crash(1);
    let report = examine(&world.open(), &world.origin, None).unwrap();
    assert!(report.is_unchanged(), "{report:?}");
    assert!(!report.previous.attached);
    let checked = report.checked.join("\n");
    for what in ["size: 2457600", "identity", "first MiB", "last MiB", "5 of the 5 blocks"] {
        assert!(checked.contains(what), "{what}: {checked}");
    }
    assert_eq!(report.unchecked, ["time of change: the origin does not tell"]);
}

#[test]
fn a_changed_block_is_found_in_each_place_that_is_compared() {
    let cases = [(3 * BLOCK, "first MiB"), (3 * BLOCK, "block 3"), (599 * BLOCK, "last MiB")];
    for (at, what) in cases {
        let world = World::new();
        world.detached();
        world.origin.edit(|bytes| bytes[at] ^= 1);
        let report = examine(&world.open(), &world.origin, None).unwrap();
        assert!(report.differs.join("\n").contains(what), "{what}: {report:?}");
    }
    // What is not compared is not found: the report claims no more.
    let world = World::new();
    world.detached();
    world.origin.edit(|bytes| bytes[300 * BLOCK] ^= 1);
    assert!(examine(&world.open(), &world.origin, None).unwrap().is_unchanged());
}

#[test]
fn after_a_crash_blocks_are_compared_as_far_as_own_writes_allow() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    store.note_destaged(Lba(7), crc32c(&[0; BLOCK]));
    leave_evidence(&mut store, &world.origin, Lsn(20)).unwrap();
    world.disk.kill();
    world.origin.edit(|bytes| {
        bytes[2 * BLOCK] ^= 1;
        bytes[4 * BLOCK] ^= 1;
    });
    let unknown = examine(&world.open(), &world.origin, None).unwrap();
    assert!(unknown.is_unchanged() && unknown.unchecked.len() == 2, "{unknown:?}");
    let later = examine(&world.open(), &world.origin, Some(&own(21))).unwrap();
    assert!(later.is_unchanged() && later.unchecked.len() == 2, "{later:?}");
    let found = examine(&world.open(), &world.origin, Some(&own(20))).unwrap();
    assert!(
        found.differs[0]
            .contains("2 of the 6 blocks destaged last hold other bytes, the first at block 2")
    );
    let excused = OwnWrites { decided: Lsn(20), is_undecided: &|lba| lba == Lba(2) };
    let found = examine(&world.open(), &world.origin, Some(&excused)).unwrap();
    assert!(found.differs[0].contains("1 of the 6"), "{found:?}");
    assert!(found.unchecked.join("\n").contains("1 of the 6"), "{found:?}");
}

#[test]
fn blocks_of_a_group_that_the_replay_will_write_are_no_foreign_writes() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    store.recover(&world.origin, false).unwrap();
    // In place, and its last flush fails.
    world.origin.go_away_after(3);
    store.apply(&world.origin, &group(10), &payload).unwrap_err();
    world.origin.come_back();
    assert_eq!(world.origin.bytes()[0], 9);
    world.disk.kill();
    let report = examine(&world.open(), &world.origin, Some(&own(9))).unwrap();
    let differs = report.differs.join("\n");
    assert!(!differs.contains("block"), "{report:?}");
    assert!(report.unchecked.join("\n").contains("1 of the 5"), "{report:?}");
}

#[test]
fn groups_leave_evidence_of_their_own() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    store.recover(&world.origin, false).unwrap();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    store.apply(&world.origin, &group(10), &payload).unwrap();
    let zeros =
        Run { extent: Extent { first: Lba(3), blocks: 2 }, content: Content::Zero { punch: true } };
    let zeros = AtomicGroup { runs: vec![zeros], ..group(11) };
    store.apply(&world.origin, &zeros, &payload).unwrap();
    world.disk.kill();
    let store = world.open();
    let report = examine(&store, &world.origin, Some(&own(store.done().0))).unwrap();
    assert!(report.is_unchanged(), "{report:?}");
    assert!(report.checked.join("\n").contains("3 of the 3 blocks"), "{report:?}");
    world.origin.edit(|bytes| bytes[5] ^= 1);
    let report = examine(&store, &world.origin, Some(&own(store.done().0))).unwrap();
    assert!(report.differs[0].contains("the first at block 0"), "{report:?}");
}

#[test]
fn another_cache_begins_its_own_count_and_the_wrong_log_is_refused() {
    let world = World::new();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    store.recover(&world.origin, false).unwrap();
    store.apply(&world.origin, &group(50), &payload).unwrap();
    store.apply(&world.origin, &group(50), &payload).unwrap();
    detach(&mut store, &world.origin, Lsn(50)).unwrap();

    let mut store = world.open();
    let refused = store.apply(&world.origin, &group(3), &payload).unwrap_err();
    assert!(refused.to_string().contains("two logs"), "{refused}");
    attach(&mut store, &world.origin, &claim(2)).unwrap();
    assert_eq!(store.done(), Lsn::ZERO);
    world.origin.edit(|bytes| bytes[0] = 0);
    store.apply(&world.origin, &group(3), &payload).unwrap();
    assert_eq!((store.done(), world.origin.bytes()[0]), (Lsn(3), 9));
}

#[test]
fn a_group_that_another_cache_left_is_finished_and_counts_in_its_log_only() {
    let world = World::new();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    store.recover(&world.origin, false).unwrap();
    world.origin.go_away_after(2);
    store.apply(&world.origin, &group(50), &payload).unwrap_err();
    world.origin.come_back();
    // The next one dies between the two steps.
    let takes_over = Claim { take_over: true, ..claim(2) };
    attach(&mut world.open(), &world.origin, &takes_over).unwrap();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(2)).unwrap();
    let replay = store.recover(&world.origin, false).unwrap();
    assert!(matches!(replay, Replay::Written { to: Lsn(50), .. }), "{replay:?}");
    assert_eq!((store.done(), world.origin.bytes()[0]), (Lsn::ZERO, 9));
    world.origin.edit(|bytes| bytes[0] = 0);
    store.apply(&world.origin, &group(3), &payload).unwrap();
    assert_eq!((store.done(), world.origin.bytes()[0]), (Lsn(3), 9));
    world.disk.crash(5);
    let mut store = world.open();
    store.recover(&world.origin, false).unwrap();
    assert_eq!(store.done(), Lsn(3));
}

/// Attaching, replaying, detaching: the power goes at each operation, and something else survives each time.
#[test]
fn power_lost_at_any_operation_leaves_one_of_two_attachments_and_no_damage() {
    let mut finished = 0;
    for at in 1..40 {
        for seed in 0..4 {
            let world = World::new();
            let mut store = world.open();
            attach(&mut store, &world.origin, &claim(1)).unwrap();
            store.recover(&world.origin, false).unwrap();
            // AtomicGroup 50 is committed and not in place.
            world.origin.go_away_after(2);
            store.apply(&world.origin, &group(50), &payload).unwrap_err();
            world.origin.come_back();
            world.disk.power_off_after(at);
            let run = || {
                let mut store = world.open();
                attach(&mut store, &world.origin, &Claim { take_over: true, ..claim(2) })?;
                store.recover(&world.origin, false)?;
                detach(&mut store, &world.origin, Lsn::ZERO)
            };
            finished += u32::from(run().is_ok());
            world.disk.crash(at * 10 + seed);
            let mut store = world.open();
            let (cache, generation) = (store.attachment().cache, store.attachment().generation);
            assert!([([1; 16], 1), ([2; 16], 2)].contains(&(cache, generation)), "{at}/{seed}");
            store.recover(&world.origin, false).unwrap();
            assert_eq!(world.origin.bytes()[0], 9, "{at}/{seed}: the committed group is there");
            let done = if generation == 1 { Lsn(50) } else { Lsn::ZERO };
            assert_eq!(store.done(), done, "{at}/{seed}");
        }
    }
    assert!((1..156).contains(&finished), "some runs end, some do not: {finished}");
}

#[test]
fn torn_evidence_falls_back_to_the_one_before() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    leave_evidence(&mut store, &world.origin, Lsn(20)).unwrap();
    for copy in [2 * BLOCK, 6 * BLOCK] {
        let fork = world.disk.fork();
        fork.edit("redo", |bytes| bytes[copy + 600] ^= 1);
        let medium = SimOrigin::new(&fork, "redo", 300 << 10);
        let evidence = RedoStore::open(Arc::new(medium)).unwrap().read_evidence().unwrap().unwrap();
        assert!([Lsn(9), Lsn(20)].contains(&evidence.upto));
    }
}

/// Both copies: the next one, written over one of them, may be torn while the other one comes back.
#[test]
fn what_is_void_names_no_blocks_in_either_copy() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(1)).unwrap();
    leave_evidence(&mut store, &world.origin, Lsn(20)).unwrap();
    // What is sent for the first time changes nothing.
    void_evidence_from(&mut store, &world.origin, Lsn(21)).unwrap();
    assert_eq!(store.read_evidence().unwrap().unwrap().blocks.len(), 5);
    void_evidence_from(&mut store, &world.origin, Lsn(20)).unwrap();
    world.disk.crash(1);
    for copy in [2 * BLOCK, 6 * BLOCK] {
        let fork = world.disk.fork();
        fork.edit("redo", |bytes| bytes[copy + 600] ^= 1);
        let medium = SimOrigin::new(&fork, "redo", 300 << 10);
        let evidence = RedoStore::open(Arc::new(medium)).unwrap().read_evidence().unwrap().unwrap();
        assert_eq!((evidence.upto, evidence.blocks), (Lsn(20), Vec::new()));
    }
}

#[test]
fn the_recent_blocks_are_the_newest_each_once() {
    let mut recent = RecentBlocks::new();
    for number in 0..5_000_u32 {
        recent.push(Lba(u64::from(number % 1_500)), number);
        // One that comes again and again.
        recent.push(Lba(9_999), number);
    }
    let all: Vec<_> = recent.iter().collect();
    assert_eq!(all.len(), RecentBlocks::MAX);
    assert_eq!(all[all.len() - 1], (Lba(9_999), 4_999));
    assert_eq!(all[all.len() - 2], (Lba(4_999 % 1_500), 4_999));
    assert_eq!(all[0].1, 4_999 - 1_022);
}

#[test]
fn an_older_copy_of_the_cache_or_of_the_record_is_told_by_the_attachments_and_a_crash_is_none() {
    let record =
        |generation| AttachRecord { cache: [1; 16], generation, ..AttachRecord::default() };
    let told = |begun, made, generation| {
        went_back(&record(generation), &[1; 16], Attachment { begun, made })
    };
    assert_eq!(told(5, 5, 5), None);
    assert_eq!(told(6, 5, 5), None, "a crash before the record was written");
    assert_eq!(told(6, 5, 6), None, "a crash before the cache noted that");
    assert_eq!(told(6, 5, 7), Some(WentBack::Cache { knows: 6, recorded: 7 }));
    assert_eq!(told(6, 5, 4), Some(WentBack::Record { knows: 5, recorded: 4 }));
    assert_eq!(told(0, 0, 9), None, "nothing was noted");
    let known = Attachment { begun: 5, made: 5 };
    assert_eq!(went_back(&record(9), &[2; 16], known), None, "another cache came since");
    let older = went_back(&record(4), &[2; 16], known);
    assert_eq!(older, Some(WentBack::Record { knows: 5, recorded: 4 }));
}

#[test]
fn a_record_that_is_an_older_copy_is_never_given_a_number_twice() {
    let world = World::new();
    let taken = Claim { known: 7, ..claim(1) };
    assert_eq!(attach(&mut world.open(), &world.origin, &taken).unwrap().generation, 8);
}

#[test]
fn what_another_cache_left_is_not_compared_by_the_count_of_this_one() {
    let world = World::new();
    world.detached();
    let mut store = world.open();
    attach(&mut store, &world.origin, &claim(2)).unwrap();
    // Its first write, under the lowest number, of which no evidence was left before the crash.
    world.origin.edit(|bytes| bytes[2 * BLOCK] ^= 1);
    world.disk.kill();
    let report = examine(&world.open(), &world.origin, Some(&own(0))).unwrap();
    assert!(report.is_unchanged(), "{report:?}");
    assert_eq!(world.open().evidence_upto().unwrap(), Some(Lsn::ZERO));
}
