//! Attempts at a batch that do not come to their end, and what others change at the origin around them.

use super::origin::Death;
use super::suspicions::{make, write};
use super::world::World;
use crate::ask::{Ask, Make, SetAttr};
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use crate::origin::{Attributes, Origin};
use destage_core::Span;
use destage_engine::Drive;

/// > What others have changed before the first attempt began, or more than half a minute after it was interrupted, is never
/// > written over.
///
/// An attempt ends at any of its effects, by a failure or with the process. Others change the file before it begins, or a while
/// later. Further attempts do not end either.
#[test]
fn what_others_change_around_attempts_that_do_not_end_is_never_written_over() {
    assert_eq!(written_over(FrontControls::default()), (0, 0));
    let carry = Controls { no_traces: true, ..Controls::default() };
    let (overwritten, _) = written_over(FrontControls { carry, ..Default::default() });
    assert!(overwritten > 0, "the control is caught");
}

/// In how many cases what others had changed was lost, and in how many what this host had was.
fn written_over(controls: FrontControls) -> (u32, u32) {
    let (mut overwritten, mut lost) = (0, 0);
    for case in 0..640_u64 {
        let is = |bit: u64| case >> bit & 1 == 1;
        let (is_new, is_crash, is_chmod, is_before, effects) =
            (is(0), is(1), is(2), is(3), case >> 4);
        if is_new && (is_before || is_chmod) {
            continue;
        }
        let mut world = World::new(1 + u64::from(is(4)), controls);
        let root = world.root();
        let (ino, other) =
            ["file", "other"].map(|name| make(&mut world, root, name, Make::File)).into();
        if !is_new {
            world.sure(write(ino, 0, b"content", false));
            assert!(world.drain());
        }
        let set = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        world.sure(write(other, 0, b"other", false));
        if !is_chmod {
            world.sure(write(ino, 0, b"CONTENT", false));
        }
        world.sure(Ask::SetAttr { ino, set: set(0o640) });
        world.sure(Ask::Fsync { ino });
        let theirs = |world: &World| {
            world.origin.pass(Span::from_secs(45));
            let Ok((key, _)) = world.origin.lookup(&world.origin.root(), b"file") else {
                return false;
            };
            let mode = Some(0o600);
            world.origin.write(&key, 0, b"theirs!").unwrap();
            world.origin.set(&key, &Attributes { mode, ..Attributes::default() }).unwrap();
            world.origin.sync(&key).unwrap();
            true
        };
        if is_before {
            assert!(theirs(&world));
        }
        if is_crash {
            world.die_after(effects, false);
        } else {
            world.origin.fail_after(effects);
        }
        let has_ended = ends(&mut world);
        if is_crash {
            world.crash(Death::Process);
        }
        world.origin.fail_after(NEVER);
        world.origin.die_after(NEVER);
        // Nobody else can change what they do not see.
        if !is_before && !theirs(&world) {
            continue;
        }
        assert!(!is_crash || world.start());
        world.die_after(effects % 11, false);
        if !world.drain() {
            world.crash(Death::Process);
            assert!(world.start() && world.drain());
        }
        let (key, stat) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
        let is_theirs = world.origin.read(&key, 0, 9).unwrap() == b"theirs!" && stat.mode == 0o600;
        let is_there = if is_chmod {
            world.origin.told().iter().any(|about| about.contains("\"mode\":416"))
        } else {
            !world.origin.kept().is_empty()
        };
        let is_kept = has_ended && !is_before || is_there;
        overwritten += u32::from(!is_theirs);
        lost += u32::from(is_theirs && !is_kept);
        assert_eq!(world.origin.tree()["/other"].2, b"other");
    }
    (overwritten, lost)
}

/// Goes on with what is due until it is at the origin; false if an attempt fails, or something dies.
fn ends(world: &mut World) -> bool {
    let now = world.now;
    let errors = world.front.as_ref().unwrap().counted.origin_errors;
    world.front.as_mut().unwrap().hurry(now);
    loop {
        let front = world.front.as_ref().unwrap();
        if world.is_dead() || front.counted.origin_errors > errors {
            return false;
        }
        if front.undecided() == 0 {
            return true;
        }
        if !world.work() {
            world.pass(Span::from_millis(10));
        }
    }
}

/// More effects than there are.
const NEVER: u64 = 1 << 40;

/// Others take the name of a new file or directory, and change another file of its batch. Whatever ends an attempt, what is new
/// here is kept, and the batch comes to its end.
#[test]
fn what_is_new_here_outlives_an_attempt_at_a_name_that_others_have_taken() {
    for case in 0..160_u64 {
        let (is_dir, is_crash, effects) = (case % 2 == 0, case / 2 % 2 == 0, case / 8);
        let mut world = World::new(1 + case / 4 % 2, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        assert!(world.drain());
        world.sure(write(ino, 0, b"CONTENT", false));
        let new = make(&mut world, root, "new", if is_dir { Make::Dir } else { Make::File });
        if !is_dir {
            world.sure(write(new, 0, b"ours", false));
        }
        world.sure(Ask::Fsync { ino });
        world.origin.pass(Span::from_secs(45));
        let origin = world.origin.clone();
        let (file, _) = origin.lookup(&origin.root(), b"file").unwrap();
        origin.write(&file, 0, b"theirs").unwrap();
        let (theirs, _) = origin.make(&origin.root(), b"new", &Make::File).unwrap();
        origin.write(&theirs, 0, b"their new").unwrap();
        for key in [&file, &theirs, &origin.root()] {
            origin.sync(key).unwrap();
        }
        if is_crash {
            world.die_after(effects, false);
        } else {
            origin.fail_after(effects);
        }
        ends(&mut world);
        if is_crash {
            world.crash(Death::Process);
            assert!(world.start());
        }
        origin.fail_after(NEVER);
        origin.die_after(NEVER);
        assert!(world.drain(), "{case}");
        let there = origin.tree();
        assert_eq!(there["/new"].2, b"their new", "{case}");
        assert_eq!(there["/file"].2, b"theirs", "{case}");
        let kept = origin.kept();
        assert!(kept.contains(&b"CONTENT".to_vec()), "{case}");
        assert!(is_dir || kept.contains(&b"ours".to_vec()), "{case}");
        assert_eq!(origin.kept_aside(), 2, "{case}");
        assert_eq!(
            origin.told().iter().filter(|about| about.contains("reason")).count(),
            2,
            "{case}"
        );
        assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 2, "{case}");
    }
}

/// A mount says that it changes files whenever it tries to: what others change between its attempts is theirs all the same.
#[test]
fn what_others_change_while_an_origin_fails_for_long_is_never_written_over() {
    for (fails, is_crash) in (1..20).flat_map(|fails| [(fails, false), (fails, true)]) {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        let other = make(&mut world, root, "other", Make::File);
        world.sure(write(ino, 0, b"content", false));
        assert!(world.drain());
        world.sure(write(ino, 0, b"CONTENT", false));
        world.sure(write(other, 0, b"other", false));
        let mut has_ended = false;
        for attempt in 0..30 {
            world.origin.fail_after(fails);
            has_ended |= ends(&mut world);
            world.origin.fail_after(NEVER);
            if attempt == 15 {
                let (key, _) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
                world.origin.write(&key, 0, b"theirs!").unwrap();
                world.origin.sync(&key).unwrap();
            }
            world.pass(Span::from_secs(2));
        }
        if is_crash {
            world.crash(Death::Process);
            assert!(world.start());
        }
        assert!(world.drain());
        assert_eq!(world.origin.tree()["/file"].2, b"theirs!", "failed after {fails}");
        let conflicts = world.front.as_ref().unwrap().counted.conflicts;
        assert!(has_ended || conflicts > 0, "failed after {fails}");
    }
}

/// The file in which a mount says that it changes files is deleted: it is made anew.
#[test]
fn what_says_that_a_mount_changes_files_may_be_deleted() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    for round in 0..5_u8 {
        let origin = world.origin.clone();
        let (top, _) = origin.lookup(&origin.root(), crate::OWN_FOLDER).unwrap();
        let (folder, _) = origin.lookup(&top, b"at-work").unwrap();
        let _ = origin.unlink(&folder, b"mount");
        world.sure(write(ino, 0, &[round], false));
        world.origin.fail_after(u64::from(round) * 3);
        assert!(world.drain());
        assert_eq!(world.origin.tree()["/file"].2, [round]);
        assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 0);
        world.pass(Span::from_secs(20));
    }
}
