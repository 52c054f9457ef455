//! Power lost at any operation: after the replay the origin is the state after exactly one of the groups.

use super::World;
use crate::origin::Origin;
use crate::redo::{Content, Replay};
use destage_testkit::disk::{Count, Random};

/// What a run leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Control {
    /// Nothing: the real thing.
    None,
    /// The store's flushes: commit records and payload may be lost though blocks are in place.
    NoRedoFlush,
    /// The flush between the commit record and the writes in place.
    NoCommitFlush,
    /// The origin's flush before a group counts as done.
    NoOriginFlush,
    /// The store.
    NoRedo,
}

const GROUPS: usize = 10;

/// Applies groups from `from` on until the power goes. Returns how many are acknowledged.
fn work(world: &World, control: Control) -> usize {
    if control == Control::NoRedo {
        return work_without_redo(world);
    }
    let mut store = world.open();
    store.unsafe_no_commit_flush = control == Control::NoCommitFlush;
    let Ok(_) = store.recover(&world.origin, false) else { return 0 };
    let mut done = World::done(&store);
    while done < GROUPS && world.apply(&mut store, done).is_ok() {
        done += 1;
    }
    done
}

fn work_without_redo(world: &World) -> usize {
    for (index, test) in world.groups.iter().enumerate() {
        for run in &test.group.runs {
            let offset = run.extent.first.offset();
            let end = (offset + run.extent.bytes()).min(test.image.len() as u64);
            let written = match run.content {
                Content::Data => {
                    world.origin.write(offset, &test.image[offset as usize..end as usize])
                }
                Content::Zero { punch } => world.origin.zero(offset, end - offset, punch),
            };
            if written.is_err() {
                return index;
            }
        }
        if world.origin.flush().is_err() {
            return index;
        }
    }
    GROUPS
}

/// What holds after power came back: recover, compare, recover once more.
fn check(world: &World, control: Control, acknowledged: usize) -> Result<(), String> {
    if control == Control::NoRedo {
        let bytes = world.origin.bytes();
        let is_one = world.images[acknowledged..].contains(&bytes);
        return if is_one { Ok(()) } else { Err("a mix of groups".to_owned()) };
    }
    let mut store = world.open();
    store.recover(&world.origin, false).map_err(|e| e.to_string())?;
    let done = world.check(&store)?;
    if done < acknowledged || done > acknowledged + 1 {
        return Err(format!("{acknowledged} groups were acknowledged, {done} are there"));
    }
    let again = store.recover(&world.origin, false).map_err(|e| e.to_string())?;
    if again != Replay::Nothing {
        return Err(format!("a second replay found {again:?}"));
    }
    world.check(&store).map(drop)
}

fn run(seed: u64, control: Control) -> Result<(), String> {
    let world = World::new(seed, GROUPS);
    world.medium.set_unsafe_no_flush(control == Control::NoRedoFlush);
    world.origin.set_unsafe_no_flush(control == Control::NoOriginFlush);
    let mut random = Random(seed ^ 0x5eed);
    let mut acknowledged = 0;
    for _ in 0..4 {
        world.disk.power_off_after(1 + random.below(120) as u64);
        acknowledged = acknowledged.max(work(&world, control));
        match random.below(4) {
            // The host died, the store's host did not: its cache still holds everything.
            0 => world.disk.kill(),
            _ => world.disk.crash(random.bits()),
        }
        check(&world, control, acknowledged)?;
        if control == Control::NoRedo {
            return Ok(());
        }
        acknowledged = World::done(&world.open());
    }
    Ok(())
}

#[test]
fn after_a_power_cut_the_origin_is_the_state_after_exactly_one_group() {
    let seeds = std::env::var("REDO_SEEDS").map_or(300, |n| n.parse().unwrap());
    for seed in 0..seeds {
        if let Err(why) = run(seed, Control::None) {
            panic!("seed {seed}: {why}");
        }
    }
}

/// Many requests at a time: the order of operations is another one in each run.
#[test]
fn with_requests_side_by_side_the_same_holds() {
    for seed in 0..30 {
        let world = World::new(seed, GROUPS);
        world.origin.set_parallelism(4);
        world.medium.set_parallelism(4);
        world.disk.power_off_after(1 + Random(seed).below(200) as u64);
        let acknowledged = work(&world, Control::None);
        world.disk.crash(seed);
        if let Err(why) = check(&world, Control::None, acknowledged) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn power_lost_at_each_operation_in_turn_leaves_exactly_one_group() {
    let whole = World::new(3, GROUPS);
    let before = whole.disk.operations(Count::All);
    assert_eq!(work(&whole, Control::None), GROUPS);
    let operations = whole.disk.operations(Count::All) - before;
    assert!(operations > 100, "{operations}");
    for at in 1..=operations {
        for seed in 0..3 {
            let world = World::new(3, GROUPS);
            world.disk.power_off_after(at);
            let acknowledged = work(&world, Control::None);
            world.disk.crash(at * 31 + seed);
            if let Err(why) = check(&world, Control::None, acknowledged) {
                panic!("operation {at}, seed {seed}: {why}");
            }
        }
    }
}

/// A crash during the replay, at each of its operations, then a replay that is let through.
#[test]
fn power_lost_at_each_operation_of_the_replay_changes_nothing() {
    let mut replayed = 0;
    for at in 1..=60 {
        let world = World::new(4, GROUPS);
        // In the middle of writing a group in place.
        world.origin.go_away_after(80);
        let acknowledged = work(&world, Control::None);
        world.origin.come_back();
        world.disk.crash(at);
        world.disk.power_off_after(at);
        let replay = world.open().recover(&world.origin, false);
        replayed += u32::from(matches!(replay, Ok(Replay::Written { .. })));
        world.disk.crash(at + 1_000);
        if let Err(why) = check(&world, Control::None, acknowledged) {
            panic!("operation {at}: {why}");
        }
    }
    assert!((1..60).contains(&replayed), "some replays end, some do not: {replayed}");
}

/// Says that a control that was left out is missed.
fn fails_within_50_seeds(control: Control) {
    let failed = (0..50).filter(|&seed| run(seed, control).is_err()).count();
    assert!(failed > 0, "the crash test would not notice");
}

#[test]
fn without_flushes_of_the_store_the_same_test_fails() {
    fails_within_50_seeds(Control::NoRedoFlush);
}

#[test]
fn without_the_flush_behind_the_commit_record_the_same_test_fails() {
    fails_within_50_seeds(Control::NoCommitFlush);
}

#[test]
fn without_the_flush_of_the_origin_the_same_test_fails() {
    fails_within_50_seeds(Control::NoOriginFlush);
}

#[test]
fn without_a_store_the_same_test_fails() {
    fails_within_50_seeds(Control::NoRedo);
}
