//! Groups that span three volumes: power lost at any operation, replays in any order, interrupted and repeated.

use super::{World, payload};
use crate::origin::OriginIoErrorKind;
use crate::redo::{AtomicGroup, InDoubt, RedoError, RedoStore, Replay, Share, apply_groups};
use destage_core::Lsn;
use destage_testkit::SimDisk;
use destage_testkit::disk::{Count, Random};

const GROUPS: usize = 8;
const COORDINATOR: usize = 1;

/// Three volumes on one disk. In each third group one of them has nothing to write.
struct Worlds {
    disk: SimDisk,
    volumes: Vec<World>,
    each_commits: bool,
}

impl Worlds {
    fn new(seed: u64) -> Self {
        let disk = SimDisk::new();
        let volume = |index: u8| {
            let name = format!("-{index}");
            World::named(&disk, &name, 10 + index, seed * 3 + u64::from(index), GROUPS)
        };
        Self { volumes: (0..3).map(volume).collect(), disk, each_commits: false }
    }

    fn open(&self) -> Vec<RedoStore> {
        let mut stores: Vec<RedoStore> = self.volumes.iter().map(World::open).collect();
        stores.iter_mut().for_each(|store| store.unsafe_each_commits = self.each_commits);
        stores
    }

    /// Whether a volume has something to write in a group.
    fn takes_part(volume: usize, index: usize) -> bool {
        index % 3 != volume
    }

    /// How many of the groups a volume is to have written.
    fn expected(volume: usize, done: usize) -> usize {
        (0..done).filter(|&index| Self::takes_part(volume, index)).count()
    }

    fn done(stores: &[RedoStore], volume: usize) -> usize {
        World::done(&stores[volume])
    }

    fn apply(&self, stores: &mut [RedoStore], index: usize) -> Result<(), RedoError> {
        let groups: Vec<AtomicGroup> = (0..3)
            .map(|volume| {
                let own = Self::expected(volume, index);
                if Self::takes_part(volume, index) {
                    self.volumes[volume].groups[own].group.clone()
                } else {
                    let lsn = Lsn(own as u64 * 10);
                    AtomicGroup { from: lsn, to: lsn, runs: Vec::new() }
                }
            })
            .collect();
        let payloads: Vec<_> = (0..3)
            .map(|volume| {
                let own = Self::expected(volume, index);
                payload(&self.volumes[volume].groups[own.min(GROUPS - 1)].image)
            })
            .collect();
        let mut shares: Vec<Share<'_>> = stores
            .iter_mut()
            .zip(&self.volumes)
            .zip(groups.iter().zip(&payloads))
            .map(|((store, world), (group, payload))| Share {
                store,
                origin: &world.origin,
                group,
                payload,
            })
            .collect();
        apply_groups(&mut shares, COORDINATOR, [index as u8 + 1; 16])
    }

    /// Starts, and applies groups from `from` on until the power goes. Returns how many are acknowledged.
    fn work(&self, from: usize) -> usize {
        let mut stores = self.open();
        let order = [COORDINATOR, 0, 2];
        if order.into_iter().any(|volume| self.replay(volume).is_err()) {
            return from;
        }
        for (store, world) in stores.iter_mut().zip(&self.volumes) {
            *store = world.open();
            store.unsafe_each_commits = self.each_commits;
            if store.recover(&world.origin, false).is_err() {
                return from;
            }
        }
        let mut done = from;
        while done < GROUPS && self.apply(&mut stores, done).is_ok() {
            done += 1;
        }
        done
    }

    /// What `destage block replay` does for one volume.
    fn replay(&self, volume: usize) -> Result<Replay, RedoError> {
        let world = &self.volumes[volume];
        let decide = |in_doubt: &InDoubt| {
            assert_eq!(in_doubt.coordinator, [10 + COORDINATOR as u8; 16]);
            self.volumes[COORDINATOR].open_result()?.decide(&in_doubt.group)
        };
        world.open_result()?.recover_with(&world.origin, false, &decide)
    }

    /// After the replay all volumes are as of one group, and a further replay finds nothing.
    fn check(&self, random: &mut Random, acknowledged: usize) -> Result<usize, String> {
        for _ in 0..3 {
            self.replay(random.below(3)).map_err(|error| error.to_string())?;
        }
        // The second one may find a group behind that which the first one finished.
        for volume in [2, 0, 1, 1, 0, 2] {
            self.replay(volume).map_err(|error| error.to_string())?;
        }
        let stores = self.open();
        let fits = |done: usize| {
            (0..3).all(|volume| {
                let own = Self::expected(volume, done);
                Self::done(&stores, volume) == own
                    && self.volumes[volume].origin.bytes() == self.volumes[volume].images[own]
            })
        };
        let done = (acknowledged..=(acknowledged + 1).min(GROUPS)).find(|&done| fits(done));
        let done = done.ok_or_else(|| {
            let dones: Vec<usize> = (0..3).map(|volume| Self::done(&stores, volume)).collect();
            format!("{acknowledged} groups were acknowledged, the volumes are at {dones:?}")
        })?;
        for volume in 0..3 {
            let again = self.replay(volume).map_err(|error| error.to_string())?;
            if again != Replay::Nothing {
                return Err(format!("a third replay found {again:?}"));
            }
        }
        Ok(done)
    }
}

impl World {
    fn open_result(&self) -> Result<RedoStore, RedoError> {
        RedoStore::open(std::sync::Arc::new(self.medium.clone()))
    }
}

fn run(seed: u64, each_commits: bool) -> Result<(), String> {
    let mut worlds = Worlds::new(seed);
    worlds.each_commits = each_commits;
    let mut random = Random(seed ^ 0x5eed);
    let mut done = 0;
    for _ in 0..4 {
        worlds.disk.power_off_after(1 + random.below(300) as u64);
        let acknowledged = worlds.work(done);
        let crash = |random: &mut Random| match random.below(4) {
            0 => worlds.disk.kill(),
            _ => worlds.disk.crash(random.bits()),
        };
        crash(&mut random);
        // Replays that are cut short, of any volume.
        for _ in 0..random.below(4) {
            worlds.disk.power_off_after(1 + random.below(40) as u64);
            let _ = worlds.replay(random.below(3));
            crash(&mut random);
        }
        done = worlds.check(&mut random, acknowledged)?;
    }
    Ok(())
}

#[test]
fn after_a_power_cut_all_volumes_are_as_of_one_group() {
    let seeds = std::env::var("REDO_SEEDS").map_or(200, |n| n.parse().unwrap());
    for seed in 0..seeds {
        if let Err(why) = run(seed, false) {
            panic!("seed {seed}: {why}");
        }
    }
}

/// Negative control.
#[test]
fn with_a_commit_record_for_each_volume_the_same_test_fails() {
    let failed = (0..50).filter(|&seed| run(seed, true).is_err()).count();
    assert!(failed > 0, "the crash test would not notice");
}

#[test]
fn power_lost_at_each_operation_in_turn_leaves_one_group() {
    let whole = Worlds::new(3);
    let before = whole.disk.operations(Count::All);
    assert_eq!(whole.work(0), GROUPS);
    let operations = whole.disk.operations(Count::All) - before;
    assert!(operations > 200, "{operations}");
    for at in 1..=operations {
        let worlds = Worlds::new(3);
        worlds.disk.power_off_after(at);
        let acknowledged = worlds.work(0);
        worlds.disk.crash(at * 31);
        if let Err(why) = worlds.check(&mut Random(at), acknowledged) {
            panic!("operation {at}: {why}");
        }
    }
}

/// A server that lives on: the origin of one volume goes away in the middle of a group and comes back.
#[test]
fn an_origin_that_was_away_gets_the_group_that_the_others_have() {
    let mut finished = 0;
    for at in 1..=40 {
        let worlds = Worlds::new(5);
        let mut stores = worlds.open();
        for (store, world) in stores.iter_mut().zip(&worlds.volumes) {
            store.recover(&world.origin, false).unwrap();
        }
        worlds.apply(&mut stores, 0).unwrap();
        let away = (at % 3) as usize;
        worlds.volumes[away].origin.go_away_after(at);
        worlds.volumes[(away + 1) % 3].medium.go_away_after(at / 2 + 1);
        let first = worlds.apply(&mut stores, 1);
        if let Err(error) = &first {
            assert_eq!(error.kind(), OriginIoErrorKind::Unavailable, "{error}");
        }
        finished += u32::from(first.is_ok());
        for world in &worlds.volumes {
            world.origin.come_back();
            world.medium.come_back();
        }
        let from = if first.is_ok() { 2 } else { 1 };
        for index in from..GROUPS {
            worlds.apply(&mut stores, index).unwrap();
        }
        assert_eq!(worlds.check(&mut Random(at), GROUPS), Ok(GROUPS), "call {at}");
    }
    assert!((1..40).contains(&finished), "some are interrupted, some are not: {finished}");
}

/// In the middle of writing a group in place at every volume.
fn committed() -> Worlds {
    let worlds = Worlds::new(7);
    let mut stores = worlds.open();
    for (store, world) in stores.iter_mut().zip(&worlds.volumes) {
        store.recover(&world.origin, false).unwrap();
        store.set_before_checked(false);
        world.origin.go_away_after(1);
    }
    worlds.apply(&mut stores, 0).unwrap_err();
    worlds.volumes.iter().for_each(|world| world.origin.come_back());
    worlds
}

#[test]
fn a_volume_alone_says_whom_it_needs() {
    let worlds = committed();
    let world = &worlds.volumes[2];
    let refused = world.open().recover(&world.origin, false).unwrap_err();
    let RedoError::InDoubt { in_doubt, .. } = &refused else { panic!("{refused}") };
    assert_eq!(in_doubt.coordinator, [10 + COORDINATOR as u8; 16]);
    assert!(refused.to_string().contains("0b0b0b0b-0b0b"), "{refused}");
    // Asked once, it knows: the coordinator may be gone for the rest of the replay.
    world.origin.go_away_after(6);
    worlds.replay(2).unwrap_err();
    world.origin.come_back();
    let alone = world.open().recover(&world.origin, false).unwrap();
    assert!(matches!(alone, Replay::Written { .. }), "{alone:?}");
}

#[test]
fn the_coordinator_may_go_on_alone_and_still_knows_what_it_decided() {
    let worlds = committed();
    let coordinator = &worlds.volumes[COORDINATOR];
    let mut store = coordinator.open();
    store.recover(&coordinator.origin, false).unwrap();
    // Both halves are written over by groups of its own, and by other power cuts.
    for index in [1, 2, 3, 4] {
        coordinator.apply(&mut store, index).unwrap();
        worlds.disk.crash(index as u64);
        store = coordinator.open();
        store.recover(&coordinator.origin, false).unwrap();
    }
    for volume in [0, 2] {
        let own = Worlds::expected(volume, 1);
        worlds.replay(volume).unwrap();
        let world = &worlds.volumes[volume];
        assert!(world.origin.bytes() == world.images[own], "volume {volume}");
    }
}

#[test]
fn what_was_never_committed_is_dropped_however_long_one_waits() {
    let worlds = Worlds::new(9);
    let mut stores = worlds.open();
    for (store, world) in stores.iter_mut().zip(&worlds.volumes) {
        store.recover(&world.origin, false).unwrap();
    }
    // The commit record cannot be written: the first write of the last store's share is the last one that works.
    worlds.volumes[2].medium.go_away_after(4);
    worlds.apply(&mut stores, 1).unwrap_err();
    worlds.volumes[2].medium.come_back();
    worlds.disk.kill();
    let first = worlds.replay(0).unwrap();
    assert!(matches!(first, Replay::Dropped { .. }), "{first:?}");
    assert_eq!(worlds.replay(0).unwrap(), Replay::Nothing, "it is not asked about again");
    assert_eq!(worlds.check(&mut Random(1), 0), Ok(0));
}
