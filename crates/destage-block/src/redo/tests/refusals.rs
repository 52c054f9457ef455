//! What a store refuses, and says.

use super::{ORIGIN_BYTES, STORE_BYTES, World, new_store, payload};
use crate::block::{BLOCK, Extent, Lba};
use crate::origin::{Origin, OriginIoErrorKind};
use crate::redo::{AtomicGroup, Content, NewStore, RedoError, RedoStore, Replay, Run};
use crate::testing::SimOrigin;
use destage_core::Lsn;
use std::sync::Arc;

/// A world in which group 0 is committed and not in place.
fn committed() -> World {
    let world = World::new(11, 3);
    let mut store = world.open();
    store.recover(&world.origin, false).unwrap();
    let reads = world.groups[0].group.runs.iter().filter(|p| p.content == Content::Data);
    world.origin.go_away_after(1 + reads.count() as u64);
    world.apply(&mut store, 0).unwrap_err();
    world.origin.come_back();
    world.disk.kill();
    assert_eq!(world.origin.bytes(), world.images[0]);
    world
}

fn data_block(world: &World) -> Lba {
    let mut runs = world.groups[0].group.runs.iter();
    runs.find(|p| p.content == Content::Data).unwrap().extent.first
}

#[test]
fn a_replay_refuses_blocks_that_someone_else_wrote_unless_forced() {
    let world = committed();
    let block = data_block(&world);
    world.origin.edit(|bytes| bytes[block.offset() as usize + 700] ^= 1);
    let mut store = world.open();
    let refused = store.recover(&world.origin, false).unwrap_err();
    assert!(
        matches!(refused, RedoError::Foreign { first, count: 1 } if first == block),
        "{refused}"
    );
    assert!(refused.to_string().contains(&format!("block {}", block.0)), "{refused}");
    // Not by the back door either.
    let applied = world.apply(&mut store, 0).unwrap_err();
    assert!(matches!(applied, RedoError::Foreign { .. }), "{applied}");
    let mut store = world.open();
    let forced = store.recover(&world.origin, true).unwrap();
    assert!(matches!(forced, Replay::Written { to: Lsn(10), foreign: 1, .. }), "{forced:?}");
    assert_eq!(world.check(&store), Ok(1));
}

#[test]
fn without_checks_of_before_a_replay_cannot_know() {
    let world = World::new(11, 3);
    let mut store = world.open();
    store.set_before_checked(false);
    store.recover(&world.origin, false).unwrap();
    world.origin.go_away_after(1);
    world.apply(&mut store, 0).unwrap_err();
    world.origin.come_back();
    world.origin.edit(|bytes| bytes[data_block(&world).offset() as usize] ^= 1);
    let mut store = world.open();
    let replay = store.recover(&world.origin, false).unwrap();
    assert!(matches!(replay, Replay::Written { foreign: 0, .. }), "{replay:?}");
    assert_eq!(world.check(&store), Ok(1));
}

#[test]
fn damage_to_a_committed_group_is_refused_wherever_it_is() {
    let damaged = [40 << 10, (44 << 10) + 100, (48 << 10) + 5_000];
    for (index, at) in damaged.into_iter().enumerate() {
        let world = committed();
        // AtomicGroup 1 is in the second half.
        let half = (STORE_BYTES as usize - (40 << 10)) / 2 / BLOCK * BLOCK;
        world.disk.edit("redo", |bytes| bytes[half + at] ^= 4);
        let mut store = world.open();
        let result = store.recover(&world.origin, false);
        match index {
            // Without its commit record a group is like one that never had one: the flush promised its durability.
            0 => assert!(matches!(result, Ok(Replay::Dropped { to: Lsn(10) })), "{result:?}"),
            _ => assert!(matches!(result, Err(RedoError::Corrupt(_))), "{at}: {result:?}"),
        }
        assert_eq!(world.origin.bytes(), world.images[0]);
    }
}

#[test]
fn one_damaged_header_is_survived_and_two_are_refused() {
    let world = World::new(12, 3);
    let mut store = world.open();
    for index in 0..3 {
        world.apply(&mut store, index).unwrap();
    }
    store.settle().unwrap();
    for header in [0, 4_096] {
        let fork = world.disk.fork();
        fork.edit("redo", |bytes| bytes[header + 40] ^= 1);
        let origin = SimOrigin::new(&fork, "origin", ORIGIN_BYTES);
        let medium = SimOrigin::new(&fork, "redo", STORE_BYTES);
        let mut store = RedoStore::open(Arc::new(medium)).unwrap();
        store.recover(&origin, false).unwrap();
        assert_eq!(store.done(), Lsn(30));
        assert_eq!(origin.bytes(), world.images[3]);
    }
    world.disk.edit("redo", |bytes| {
        bytes[40] ^= 1;
        bytes[4_096 + 40] ^= 1;
    });
    let refused = RedoStore::open(Arc::new(world.medium.clone())).unwrap_err();
    assert!(matches!(refused, RedoError::Corrupt(_)), "{refused}");
}

#[test]
fn a_group_that_does_not_fit_says_how_much_would() {
    let world = World::new(13, 1);
    let small = SimOrigin::new(&world.disk, "small", 100 << 10);
    let mut store = RedoStore::create(Arc::new(small), &new_store()).unwrap();
    let extent = Extent { first: Lba(0), blocks: 19 };
    let runs = vec![Run { extent, content: Content::Data }];
    let group = AtomicGroup { from: Lsn(1), to: Lsn(2), runs };
    let refused = store.apply(&world.origin, &group, &payload(&world.images[0])).unwrap_err();
    let needed = RedoStore::bytes_needed(&group);
    let bytes_max = store.group_bytes_max();
    assert!(
        matches!(refused, RedoError::TooLarge { bytes, bytes_max: max } if bytes == needed && max == bytes_max),
        "{refused}"
    );
    // What it says fits does fit.
    let blocks = ((bytes_max - BLOCK as u64) / (BLOCK as u64 + 40)) as u32;
    let runs = vec![Run { extent: Extent { blocks, ..extent }, content: Content::Data }];
    let group = AtomicGroup { runs, ..group };
    store.apply(&world.origin, &group, &payload(&world.images[0])).unwrap();
}

#[test]
fn a_store_without_room_for_groups_keeps_the_attach_record_only() {
    let world = World::new(13, 1);
    let tiny = SimOrigin::new(&world.disk, "tiny", 40 << 10);
    let mut store = RedoStore::create(Arc::new(tiny.clone()), &new_store()).unwrap();
    assert_eq!(store.group_bytes_max(), 0);
    let refused = world.apply(&mut store, 0).unwrap_err();
    assert!(matches!(refused, RedoError::TooLarge { bytes_max: 0, .. }), "{refused}");
    let mut store = RedoStore::open(Arc::new(tiny)).unwrap();
    assert_eq!(store.recover(&world.origin, false).unwrap(), Replay::Nothing);
}

#[test]
fn groups_that_make_no_sense_are_refused() {
    let world = World::new(14, 1);
    let mut store = world.open();
    let run = |first, blocks| Run {
        extent: Extent { first: Lba(first), blocks },
        content: Content::Data,
    };
    for runs in [vec![run(3, 2), run(4, 1)], vec![run(0, 0)], vec![run(19, 2)]] {
        let group = AtomicGroup { from: Lsn(1), to: Lsn(2), runs };
        let refused = store.apply(&world.origin, &group, &payload(&world.images[0])).unwrap_err();
        assert!(matches!(refused, RedoError::Invalid(_)), "{refused}");
    }
    assert_eq!(world.origin.bytes(), world.images[0]);
}

#[test]
fn a_store_of_another_origin_version_or_kind_is_refused() {
    let world = World::new(15, 1);
    let other = SimOrigin::new(&world.disk, "other", ORIGIN_BYTES + 4_096);
    let refused = world.open().recover(&other, false).unwrap_err();
    assert!(refused.to_string().contains("made for an origin of"), "{refused}");

    let open = |name: &str| {
        RedoStore::open(Arc::new(SimOrigin::new(&world.disk, name, STORE_BYTES))).unwrap_err()
    };
    assert!(open("nothing").to_string().contains("no redo store"));
    let store = world.medium.bytes();
    world.disk.edit("new", |bytes| {
        *bytes = store;
        for copy in [0, 4_096] {
            bytes[copy + 8] = 9;
            let crc = crc32c::crc32c(&bytes[copy..copy + 12]);
            bytes[copy + 12..copy + 16].copy_from_slice(&crc.to_le_bytes());
        }
    });
    assert!(open("new").to_string().contains("format version 9"), "{}", open("new"));

    let create = |overwrite| {
        let medium = Arc::new(world.medium.clone());
        RedoStore::create(medium, &NewStore { overwrite, ..new_store() })
    };
    let kept = create(false).unwrap_err();
    assert!(kept.to_string().contains("a redo store already"), "{kept}");
    create(true).unwrap();
    let data = SimOrigin::new(&world.disk, "data", STORE_BYTES);
    data.write(5_000, b"somebody's").unwrap();
    let kept = RedoStore::create(Arc::new(data), &new_store()).unwrap_err();
    assert!(kept.to_string().contains("something that is no redo store"), "{kept}");
}

#[test]
fn a_store_that_was_cut_is_refused() {
    let world = World::new(16, 1);
    let store = world.medium.bytes();
    world.disk.edit("cut", |bytes| *bytes = store[..200 << 10].to_vec());
    let cut = SimOrigin::new(&world.disk, "cut", 200 << 10);
    let refused = RedoStore::open(Arc::new(cut)).unwrap_err();
    assert!(refused.to_string().contains("it was cut"), "{refused}");
    assert_eq!(refused.kind(), OriginIoErrorKind::Failed);
}
