//! Operations that fail while everybody goes on.

use super::World;
use destage_testkit::disk::{Count, Random};
use std::io::ErrorKind;

const GROUPS: usize = 8;

/// Applies all groups in one process, each until it succeeds, with a fault now and then; then the power goes.
fn run(seed: u64) -> Result<(), String> {
    let world = World::new(seed, GROUPS);
    let mut random = Random(seed ^ 0xfa17);
    let mut store = world.open();
    for index in 0..GROUPS {
        if World::done(&store) > index {
            // It was committed before the crash.
            continue;
        }
        inject(&world, &mut random);
        let mut tries = 0;
        while let Err(error) = world.apply(&mut store, index) {
            tries += 1;
            if tries > 20 {
                return Err(format!("group {index} never succeeds: {error}"));
            }
            match random.below(2) {
                0 => world.origin.come_back(),
                _ => world.medium.come_back(),
            }
        }
        let done = world.check(&store)?;
        if done != index + 1 {
            return Err(format!("{done} groups are done after {}", index + 1));
        }
        if random.below(6) == 0 {
            world.disk.power_off_after(1 + random.below(25) as u64);
            let next = world.apply(&mut store, (index + 1).min(GROUPS - 1));
            let acknowledged = index + 1 + usize::from(next.is_ok() && index + 1 < GROUPS);
            world.disk.crash(random.bits());
            world.origin.come_back();
            world.medium.come_back();
            store = world.open();
            store.recover(&world.origin, false).map_err(|e| format!("after the crash: {e}"))?;
            let done = world.check(&store)?;
            if done < acknowledged {
                return Err(format!("{acknowledged} groups were acknowledged, {done} are there"));
            }
        }
    }
    Ok(())
}

fn inject(world: &World, random: &mut Random) {
    let n = 1 + random.below(12) as u64;
    match random.below(6) {
        0 => world.disk.fail_after(Count::Syncs, 1 + n % 4, ErrorKind::TimedOut),
        1 => world.disk.fail_after(Count::Writes, n, ErrorKind::TimedOut),
        2 => world.origin.go_away_after(n),
        3 => world.medium.go_away_after(n),
        _ => {}
    }
}

#[test]
fn a_group_that_failed_is_finished_by_trying_again() {
    let seeds = std::env::var("REDO_SEEDS").map_or(300, |n| n.parse().unwrap());
    for seed in 0..seeds {
        if let Err(why) = run(seed) {
            panic!("seed {seed}: {why}");
        }
    }
}

/// A server that restarts between a write and the flush has lost the write, although the flush succeeds.
#[test]
fn a_restart_of_the_origins_server_at_any_call_loses_nothing_of_a_group() {
    for at in 1..90 {
        for seed in 0..2 {
            let world = World::new(5, GROUPS);
            let mut store = world.open();
            world.origin.go_away_after(at);
            for index in 0..GROUPS {
                let mut tries = 0;
                while let Err(error) = world.apply(&mut store, index) {
                    tries += 1;
                    assert!(tries < 20, "call {at}, group {index}: {error}");
                    if tries == 1 {
                        // The disk holds both: a restart of the server that has both exports.
                        world.origin.restart(at * 7 + seed);
                        world.medium.lose();
                    }
                }
            }
            world.origin.come_back();
            world.disk.crash(seed);
            let mut store = world.open();
            store.recover(&world.origin, false).unwrap();
            assert_eq!(world.check(&store), Ok(GROUPS), "call {at}");
        }
    }
}

#[test]
fn a_group_that_was_given_up_before_its_commit_may_be_replaced_by_another_one() {
    for at in 1..12 {
        let world = World::new(6, 2);
        let mut store = world.open();
        world.medium.go_away_after(at);
        let first = world.apply(&mut store, 0);
        world.medium.come_back();
        let recovered = store.recover(&world.origin, false);
        assert!(recovered.is_ok(), "call {at}: {recovered:?}");
        if first.is_err() && World::done(&store) == 0 {
            assert_eq!(world.origin.bytes(), world.images[0], "call {at}");
        }
        world.apply(&mut store, 0).unwrap();
        world.apply(&mut store, 1).unwrap();
        assert_eq!(world.check(&store), Ok(2), "call {at}");
    }
}
