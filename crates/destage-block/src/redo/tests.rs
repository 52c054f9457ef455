//! The store on simulated media.

mod crash;
mod faults;
mod golden;
mod joint;
mod refusals;

use super::{AtomicGroup, Content, NewStore, Payload, RedoError, RedoStore, Replay, Run};
use crate::block::{BLOCK, Extent, Lba};
use crate::origin::{Origin, Part};
use crate::testing::SimOrigin;
use destage_core::Lsn;
use destage_testkit::SimDisk;
use destage_testkit::disk::Random;
use std::sync::Arc;

/// No multiple of a block: the last one is cut.
const ORIGIN_BYTES: u64 = 20 * BLOCK as u64 - 1_000;
const STORE_BYTES: u64 = 300 << 10;

/// Origin and store on one disk: one power cut hits both.
struct World {
    disk: SimDisk,
    origin: SimOrigin,
    medium: SimOrigin,
    /// What each group makes of the origin; the first image is before all.
    images: Vec<Vec<u8>>,
    groups: Vec<TestGroup>,
}

struct TestGroup {
    group: AtomicGroup,
    image: Vec<u8>,
}

impl World {
    fn new(seed: u64, groups: usize) -> Self {
        Self::named(&SimDisk::new(), "", 7, seed, groups)
    }

    /// One of several on a disk.
    fn named(disk: &SimDisk, name: &str, uuid: u8, seed: u64, groups: usize) -> Self {
        let origin = SimOrigin::new(disk, &format!("origin{name}"), ORIGIN_BYTES);
        let mut random = Random(seed);
        origin.edit(|bytes| fill(bytes, &mut random));
        let medium = SimOrigin::new(disk, &format!("redo{name}"), STORE_BYTES);
        let new = NewStore { uuid: [uuid; 16], ..new_store() };
        RedoStore::create(Arc::new(medium.clone()), &new).unwrap();
        let mut images = vec![origin.bytes()];
        let mut made = Vec::new();
        for number in 1..=groups {
            let group = random_group(&mut random, Lsn(number as u64 * 10));
            let image = after(&images[number - 1], &group, &mut random);
            images.push(image.clone());
            made.push(TestGroup { group, image });
        }
        Self { disk: disk.clone(), origin, medium, images, groups: made }
    }

    /// The store as after a start of the process.
    fn open(&self) -> RedoStore {
        RedoStore::open(Arc::new(self.medium.clone())).unwrap()
    }

    /// How many groups the store says are at the origin.
    fn done(store: &RedoStore) -> usize {
        store.done().0 as usize / 10
    }

    /// Applies group `index` (from 0).
    fn apply(&self, store: &mut RedoStore, index: usize) -> Result<(), RedoError> {
        let test = &self.groups[index];
        store.apply(&self.origin, &test.group, &payload(&test.image))
    }

    /// The origin holds exactly the state after the groups that the store says are done.
    fn check(&self, store: &RedoStore) -> Result<usize, String> {
        let done = Self::done(store);
        if self.origin.bytes() == self.images[done] {
            Ok(done)
        } else {
            Err(format!("the origin is not the state after group {done}"))
        }
    }
}

/// Each sector other bytes.
fn fill(bytes: &mut [u8], random: &mut Random) {
    for sector in bytes.chunks_mut(512) {
        let bits = random.bits().to_le_bytes();
        sector.fill(bits[0]);
        let len = sector.len().min(8);
        sector[..len].copy_from_slice(&bits[..len]);
    }
}

fn new_store() -> NewStore {
    NewStore { uuid: [7; 16], origin_bytes: ORIGIN_BYTES, overwrite: false }
}

/// Blocks out of an image.
fn payload(image: &[u8]) -> impl Payload + '_ {
    move |first: Lba, buf: &mut [u8]| {
        let from = first.offset() as usize;
        let len = buf.len().min(image.len() - from);
        buf[..len].copy_from_slice(&image[from..from + len]);
        // The store must not rely on what stands behind the end.
        buf[len..].fill(0xee);
        Ok(())
    }
}

fn random_group(random: &mut Random, to: Lsn) -> AtomicGroup {
    let blocks = ORIGIN_BYTES.div_ceil(BLOCK as u64);
    let mut runs = Vec::new();
    let mut next = random.below(4) as u64;
    while next < blocks {
        let len = (1 + random.below(4) as u64).min(blocks - next);
        let content = match random.below(5) {
            0 => Content::Zero { punch: random.below(2) == 0 },
            _ => Content::Data,
        };
        let extent = Extent { first: Lba(next), blocks: len as u32 };
        runs.push(Run { extent, content });
        next += len + random.below(9) as u64;
    }
    AtomicGroup { from: Lsn(to.0 - 9), to, runs }
}

/// The image with the group's blocks made new.
fn after(image: &[u8], group: &AtomicGroup, random: &mut Random) -> Vec<u8> {
    let mut image = image.to_vec();
    for run in &group.runs {
        let from = run.extent.first.offset() as usize;
        let to = (from + run.extent.bytes() as usize).min(image.len());
        match run.content {
            Content::Data => fill(&mut image[from..to], random),
            Content::Zero { .. } => image[from..to].fill(0),
        }
    }
    image
}

#[test]
fn groups_reach_the_origin_byte_for_byte() {
    for parallelism in [1, 8] {
        let world = World::new(1, 12);
        world.origin.set_parallelism(parallelism);
        world.medium.set_parallelism(parallelism);
        let mut store = world.open();
        assert_eq!(store.recover(&world.origin, false).unwrap(), Replay::Nothing);
        for index in 0..12 {
            world.apply(&mut store, index).unwrap();
            assert_eq!(world.check(&store), Ok(index + 1));
        }
        store.settle().unwrap();
        world.disk.crash(1);
        let mut store = world.open();
        assert_eq!(store.recover(&world.origin, false).unwrap(), Replay::Nothing);
        assert_eq!(world.check(&store), Ok(12));
    }
}

#[test]
fn a_group_that_is_done_is_not_written_again() {
    let world = World::new(2, 2);
    let mut store = world.open();
    world.apply(&mut store, 0).unwrap();
    world.apply(&mut store, 1).unwrap();
    let calls = world.origin.calls();
    world.apply(&mut store, 0).unwrap();
    world.apply(&mut store, 1).unwrap();
    assert_eq!(world.origin.calls(), calls);
}

#[test]
fn volume_and_store_share_an_origin_with_a_reserved_tail() {
    let disk = SimDisk::new();
    let whole: Arc<dyn Origin> = Arc::new(SimOrigin::new(&disk, "whole", 400 << 10));
    let (volume, tail) = Part::split_tail(whole.clone(), 300 << 10).unwrap();
    assert_eq!((volume.size(), tail.size()), (100 << 10, 300 << 10));
    let tail: Arc<dyn Origin> = Arc::new(tail);
    let new = NewStore { origin_bytes: volume.size(), ..new_store() };
    let mut store = RedoStore::create(tail.clone(), &new).unwrap();
    let extent = Extent { first: Lba(20), blocks: 5 };
    let runs = vec![Run { extent, content: Content::Data }];
    let group = AtomicGroup { from: Lsn(1), to: Lsn(1), runs };
    let fives = |_: Lba, buf: &mut [u8]| {
        buf.fill(5);
        Ok(())
    };
    store.apply(&volume, &group, &fives).unwrap();
    disk.crash(1);
    let mut store = RedoStore::open(tail).unwrap();
    store.recover(&volume, false).unwrap();
    let mut bytes = vec![0; 100 << 10];
    whole.read(0, &mut bytes).unwrap();
    assert!(
        bytes[..20 * BLOCK].iter().all(|&b| b == 0) && bytes[20 * BLOCK..].iter().all(|&b| b == 5)
    );
    // Neither reaches into the other.
    volume.write(100 << 10, &[1]).unwrap_err();
    volume.zero((100 << 10) - 1, 2, true).unwrap_err();
    volume.read(u64::MAX, &mut [0; 2]).unwrap_err();
    Part::split_tail(whole.clone(), 400 << 10).unwrap_err();
    Part::new(whole, 1, 400 << 10).unwrap_err();
}
