//! Crashes at every effect of destaging and of recovery.

use super::model::Tree;
use super::origin::Death;
use super::world::World;
use crate::ask::{Ask, Make, Name};
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use destage_core::Span;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Programs run and something dies, several times; each time it is looked whether what is left is what was promised. Returns
/// how many files were given out again.
fn rounds(seed: u64, controls: FrontControls, rounds: usize) -> usize {
    let mut world = World::new(seed, controls);
    // From the first crash on.
    world.names_fresh = Span::from_secs(2 * (seed / 2 % 2));
    // What is changed after a long sync is not to look like the work of others.
    world.origin.syncs_take(Span::from_secs(12 * (seed / 4 % 2)));
    for round in 0..rounds {
        let death = [Death::Process, Death::Host, Death::All][world.random.below(3)];
        let (of_disk, after) = (world.random.below(4) == 0, 1 + world.random.below(120) as u64);
        let steps = 10 + world.random.below(60);
        world.die_after(after, of_disk);
        if world.random.below(2) == 0 {
            let after = world.random.below(60) as u64;
            world.origin.fail_after(after);
        }
        for _ in 0..steps {
            if world.step().is_none() {
                break;
            }
        }
        crash_and_check(&mut world, death, &format!("seed {seed}, round {round}, {death:?}"));
    }
    world.given_back
}

fn crash_and_check(world: &mut World, death: Death, context: &str) {
    world.crash(death);
    if death != Death::All {
        // Names and attributes are those of a server that lives on: what others see now, if this host never comes back.
        // Where a rename takes two steps, both names may be there.
        let shown = world.origin.tree_of_whole_renames();
        world.adopt_made(&shown);
        if let Some(wrong) = world.model.wrong_at_origin(&shown) {
            panic!("{context}: the origin alone: {wrong}");
        }
    }
    // A recovery may die as well, at any of its effects.
    for _ in 0..world.random.below(4) {
        let after = world.random.below(40) as u64;
        world.die_after(after, false);
        let survived = world.start() && world.drain();
        world.crash(if survived { Death::Process } else { death });
    }
    assert!(world.start(), "{context}: it does not start");
    let view = world.view();
    world.adopt_made(&view);
    let from = world.durable;
    let states = &world.model.states;
    let at = (from..states.len()).rev().find(|&at| states[at] == view);
    let Some(at) = at else {
        let earlier = (0..from).rev().find(|&at| states[at] == view);
        let near = states.iter().enumerate().skip(from);
        let differences: Vec<_> = near.map(|(at, state)| (at, difference(state, &view))).collect();
        panic!(
            "{context}: what is seen is no state since {from} (earlier: {earlier:?}): {differences:#?}"
        );
    };
    world.forget_made();
    world.model.back_to(at);
    world.durable = at;
    assert_eq!(world.front.as_ref().map(|front| front.counted.conflicts), Some(0), "{context}");
    if world.random.below(2) == 0 {
        assert!(world.drain(), "{context}: nothing dies");
        assert_eq!(world.origin.tree(), view, "{context}: the origin once it is drained");
        assert_eq!(world.origin.named_twice(), Vec::<u64>::new(), "{context}: first names");
        let before = world.origin.tree();
        world.crash(Death::Process);
        assert!(world.start() && world.drain(), "{context}: once more");
        assert_eq!(world.origin.tree(), before, "{context}: replayed twice");
        assert_eq!(world.view(), before, "{context}: seen after that");
    }
}

/// The paths that are not the same, as they are expected and as they are seen.
fn difference(expected: &Tree, seen: &Tree) -> Vec<String> {
    let paths: BTreeSet<&String> = expected.keys().chain(seen.keys()).collect();
    let other = paths.into_iter().filter(|path| expected.get(*path) != seen.get(*path));
    other.map(|path| format!("{path}: {:?} != {:?}", expected.get(path), seen.get(path))).collect()
}

fn is_caught(controls: FrontControls) -> bool {
    // The seeds that fail are expected to say so.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = (0..CONTROL_SEEDS)
        .any(|seed| catch_unwind(AssertUnwindSafe(|| rounds(seed, controls, 4))).is_err());
    std::panic::set_hook(hook);
    caught
}

const CONTROL_SEEDS: u64 = 200;
const SEEDS: u64 = 500;

/// > What was fsynced is always there after a crash and the next start.
///
/// > A file whose last name was deleted by then never comes back.
///
/// > A new name never comes to the origin before the content that its file has by then.
///
/// > Zeros never stand where data belongs.
#[test]
fn what_was_fsynced_is_there_after_any_crash_and_nothing_else_than_was_written() {
    let given_back: usize = (0..SEEDS).map(|seed| rounds(seed, FrontControls::default(), 4)).sum();
    assert!(given_back > SEEDS as usize, "{given_back} files were given out again");
}

/// > An origin that cannot rename without replacing gets the new name first, and loses the old one then.
#[test]
fn a_rename_in_two_steps_is_finished_after_a_crash_between_them() {
    let mut was_between = false;
    for after in 0..30 {
        // An even seed is one of an origin that renames in steps.
        let mut world = World::new(2, FrontControls::default());
        let dir = world.root();
        let (old, new): (Name, Name) = (b"old"[..].into(), b"new"[..].into());
        let make = Ask::Make { dir, name: old.clone(), make: Make::File, mode: 0o644, open: None };
        world.sure(make);
        assert!(world.drain());
        let rename = Ask::Rename { dir, name: old, to_dir: dir, to_name: new, replace: true };
        world.sure(rename);
        world.durable = world.model.states.len();
        world.die_after(after, false);
        world.drain();
        world.crash(Death::Process);
        was_between |= world.origin.tree() != world.origin.tree_of_whole_renames();
        assert!(world.start() && world.drain(), "after {after}");
        let names: Vec<String> = world.origin.tree().into_keys().collect();
        assert_eq!(names.len(), 1, "after {after}: {names:?}");
    }
    assert!(was_between, "a crash came between the steps");
}

#[test]
fn an_fsync_answered_before_the_journal_is_noticed() {
    assert!(is_caught(FrontControls { no_commit: true, ..FrontControls::default() }));
}

#[test]
fn a_skipped_intent_is_noticed() {
    assert!(is_caught(FrontControls { no_intent: true, ..FrontControls::default() }));
}

#[test]
fn a_file_given_out_again_that_a_crash_brings_back_is_noticed() {
    assert!(is_caught(FrontControls { no_wait_for_gone: true, ..FrontControls::default() }));
}

#[test]
fn names_that_come_before_the_data_are_noticed() {
    let carry = Controls { names_first: true, ..Controls::default() };
    assert!(is_caught(FrontControls { carry, ..FrontControls::default() }));
}

/// Changes a byte of the newest batch with records.
fn damage_the_newest_batch(world: &World) {
    let (mut newest, mut place) = (0, None);
    for name in world.disk.names() {
        let bytes = world.disk.bytes(&name).unwrap_or_default();
        for (at, batch) in bytes.chunks_exact(512).enumerate() {
            let sequence = u64::from_le_bytes(batch[24..32].try_into().unwrap());
            if batch.starts_with(b"DSTB") && batch[12] > 0 && sequence > newest {
                (newest, place) = (sequence, Some((name.clone(), at * 512 + 60)));
            }
        }
    }
    let (name, at) = place.expect("something was written");
    world.disk.edit(&name, |bytes| bytes[at] ^= 1);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Last {
    Fsync,
    Idle,
    End,
}

#[test]
fn damage_to_what_was_written_last_is_refused_after_an_end_in_order_and_an_idle_time() {
    for last in [Last::Fsync, Last::Idle, Last::End] {
        let mut world = World::new(2, FrontControls::default());
        let (dir, name): (_, Name) = (world.root(), b"file"[..].into());
        let make = Ask::Make { dir, name, make: Make::File, mode: 0o644, open: None };
        world.sure(make);
        world.sure(Ask::Fsync { ino: dir });
        match last {
            Last::Fsync => {}
            Last::Idle => (0..40).for_each(|_| {
                world.pass(Span::from_millis(500));
                world.settle();
            }),
            Last::End => {
                let now = world.now;
                world.front.as_mut().unwrap().mark_end(now);
                world.settle();
                assert!(world.front.as_ref().unwrap().is_end_marked());
            }
        }
        world.crash(Death::Process);
        damage_the_newest_batch(&world);
        assert_eq!(world.start(), last == Last::Fsync, "{last:?}");
    }
}
