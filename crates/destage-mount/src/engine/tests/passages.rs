//! What passes through folders that come and go, and what else of folders and attributes others have a hand in.

use super::origin::Death;
use super::suspicions::{make, write};
use super::world::World;
use crate::ask::{Ask, Ino, Make, Name, SetAttr, XattrMode};
use crate::engine::front::FrontControls;
use crate::origin::{Attributes, Origin};
use destage_core::{AtLimit, Policy, Span, When};
use destage_engine::Drive;

fn rename(dir: Ino, name: &str, to_dir: Ino, to_name: &str) -> Ask {
    let (name, to_name) = (name.as_bytes().into(), to_name.as_bytes().into());
    Ask::Rename { dir, name, to_dir, to_name, replace: true }
}

/// > Its names are those of a moment that existed here
///
/// An old file is moved into a new folder, and out of it again before the folder goes. Batches end in between: at each moment the
/// file has a name at the origin, and so has a new one that was made there.
#[test]
fn what_passes_through_a_folder_that_is_gone_again_always_has_a_name_at_the_origin() {
    let mut between = 0;
    for case in 0..256_u64 {
        let is = |bit: u64| case >> bit & 1 == 1;
        let (is_deep, is_folder, is_linked, is_failed) = (is(0), is(1), is(2) && !is(1), is(3));
        let mut world = World::new(1 + (case >> 4), FrontControls::default());
        let root = world.root();
        let old = make(&mut world, root, "old", if is_folder { Make::Dir } else { Make::File });
        assert!(world.drain());
        let top = make(&mut world, root, "top", Make::Dir);
        let within = if is_deep { make(&mut world, top, "within", Make::Dir) } else { top };
        world.sure(rename(root, "old", within, "old"));
        let new = make(&mut world, within, "new", Make::File);
        world.sure(write(new, 0, b"new", false));
        world.pass(Span::from_secs(1));
        if is_linked {
            for (ino, name) in [(old, "old"), (new, "new")] {
                world.sure(Ask::Link { ino, dir: root, name: name.as_bytes().into() });
                world.sure(Ask::Unlink { dir: within, name: name.as_bytes().into() });
            }
        } else {
            world.sure(rename(within, "new", root, "new"));
            world.sure(rename(within, "old", root, "old"));
        }
        if is_deep {
            world.sure(Ask::RmDir { dir: top, name: b"within"[..].into() });
        }
        world.sure(Ask::RmDir { dir: root, name: b"top"[..].into() });
        if is_failed {
            world.origin.fail_after(4);
        }
        let mut has_come = false;
        let mut undecided = world.front.as_ref().unwrap().undecided();
        for _ in 0..2_000 {
            let there = world.origin.tree();
            let has_name = |ino: Ino| there.values().any(|&(other, ..)| other == ino);
            assert!(has_name(old), "{case}: {there:?}");
            has_come |= has_name(new);
            assert!(!has_come || has_name(new), "{case}: {there:?}");
            let left = world.front.as_ref().unwrap().undecided();
            between += u32::from(left < undecided && left > 0);
            undecided = left;
            if !world.work() {
                world.pass(Span::from_millis(100));
            }
        }
        assert_eq!(undecided, 0, "{case}");
        let there = world.origin.tree();
        assert_eq!((there["/old"].0, there["/new"].0, there.len()), (old, new, 2), "{case}");
        assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 0, "{case}");
    }
    assert!(between > 100, "batches ended in between: {between}");
}

/// A folder that nothing outlives is never seen, and costs the origin nothing.
#[test]
fn a_folder_that_nothing_has_left_is_never_at_the_origin() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let dir = make(&mut world, root, "dir", Make::Dir);
    make(&mut world, dir, "file", Make::File);
    world.sure(rename(dir, "file", dir, "other"));
    world.sure(Ask::Unlink { dir, name: b"other"[..].into() });
    world.sure(Ask::RmDir { dir: root, name: b"dir"[..].into() });
    while world.front.as_ref().unwrap().undecided() > 0 {
        if !world.work() {
            world.pass(Span::from_millis(100));
        }
        assert!(world.origin.tree().is_empty());
    }
    assert_eq!(world.front.as_ref().unwrap().counted.absorbed, 2);
}

/// Others delete the folder into which something was moved here: it is kept aside, and the batch comes to its end.
#[test]
fn what_was_moved_into_a_folder_that_others_have_deleted_is_kept() {
    for seed in 1..=2 {
        let mut world = World::new(seed, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        world.sure(write(ino, 0, b"content", false));
        let dir = make(&mut world, root, "dir", Make::Dir);
        assert!(world.drain());
        world.sure(rename(root, "file", dir, "file"));
        world.origin.rmdir(&world.origin.root(), b"dir").unwrap();
        assert!(world.drain());
        assert_eq!(world.origin.kept(), [b"content".to_vec()]);
        assert!(world.front.as_ref().unwrap().counted.conflicts > 0);
    }
}

/// > What others set of a folder, its mode and whose it is, stays where only its names changed here.
#[test]
fn a_folder_whose_names_change_here_keeps_the_mode_that_others_set() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let dir = make(&mut world, root, "dir", Make::Dir);
    assert!(world.drain());
    let origin = world.origin.clone();
    let (key, _) = origin.lookup(&origin.root(), b"dir").unwrap();
    let set = |mode| Attributes { mode: Some(mode), ..Attributes::default() };
    let mode = || origin.stat(&key).unwrap().mode;
    make(&mut world, dir, "file", Make::File);
    origin.set(&key, &set(0o700)).unwrap();
    assert!(world.drain());
    assert_eq!(mode(), 0o700);
    let here = SetAttr { mode: Some(0o711), ..SetAttr::default() };
    world.sure(Ask::SetAttr { ino: dir, set: here });
    make(&mut world, dir, "more", Make::File);
    assert!(world.drain());
    assert_eq!(mode(), 0o711);
    origin.set(&key, &set(0o750)).unwrap();
    make(&mut world, dir, "again", Make::File);
    assert!(world.drain());
    assert_eq!(mode(), 0o750);
}

/// Some origins have little room for all extended attributes of a file: what goes makes room for what comes. For what will never
/// fit nothing waits.
#[test]
fn attributes_that_do_not_fit_hold_up_nothing() {
    let set = |ino, name: &str| {
        let (name, value): (Name, _) = (name.as_bytes().into(), vec![7; 3_000].into());
        Ask::SetXattr { ino, name, value, mode: XattrMode::Set }
    };
    let mut world = World::new(1, FrontControls::default());
    world.origin.limit(1 << 20);
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    world.sure(set(ino, "user.z"));
    assert!(world.drain());
    world.sure(Ask::RemoveXattr { ino, name: b"user.z"[..].into() });
    world.sure(set(ino, "user.a"));
    assert!(world.drain());
    let origin = world.origin.clone();
    let (key, _) = origin.lookup(&origin.root(), b"file").unwrap();
    assert_eq!(origin.xattrs(&key).unwrap(), b"user.a\0");
    assert!(origin.told().is_empty());
    world.sure(set(ino, "user.b"));
    world.sure(write(ino, 0, b"content", false));
    assert!(world.drain());
    assert_eq!(origin.tree()["/file"].2, b"content");
    let [about] = &origin.told()[..] else { panic!("{:?}", origin.told()) };
    let value = "07".repeat(3_000);
    assert!(about.contains("user.b") && about.contains(&value), "{about}");
}

/// At a limit those who have to ask the origin have their turn as others do, however much these change meanwhile.
#[test]
fn who_asks_the_origin_has_its_turn_at_a_limit() {
    let mut world = World::new(1, FrontControls::default());
    world.names_fresh = Span::from_secs(60);
    world.crash(Death::Process);
    assert!(world.start());
    let root = world.root();
    let [clean, busy] = ["clean", "busy"].map(|name| make(&mut world, root, name, Make::File));
    assert!(world.drain());
    let now = world.now;
    let front = world.front.as_mut().unwrap();
    let policy = Policy {
        at_limit: AtLimit::Block,
        when: When::Async,
        commit: Span::from_millis(100),
        staleness: Span::from_secs(2),
        ..Policy::default()
    };
    front.set_policy(now, &policy).unwrap();
    front.pause(now);
    world.sure(write(busy, 0, b"0", false));
    world.pass(Span::from_secs(3));
    let front = world.front.as_ref().unwrap();
    let (before, undecided) = (front.counted.requests, front.undecided());
    assert!(!world.waits_for_tokens(write(busy, 0, b"first", false)));
    let slow = world.ask_slowly(write(clean, 0, b"appended", true));
    assert!(world.questions(slow).is_empty());
    assert!(!world.waits_for_tokens(write(busy, 9, b"last", false)));
    let front = world.front.as_mut().unwrap();
    assert_eq!(front.undecided(), undecided, "they wait");
    front.resume(now);
    assert!(world.drain());
    assert_eq!(world.origin.tree()["/clean"].2, b"appended");
    assert_eq!(&world.origin.tree()["/busy"].2[..13], b"first\0\0\0\0last");
    // Each comes once more for what it asks the origin, when it begins or when its file has become clean, and nobody a third time.
    assert_eq!(world.front.as_ref().unwrap().counted.requests - before, 6);
}

/// A file is renamed here and changed; others have changed it, too, and have given its new name to another one. Of both it is said
/// what this host has.
#[test]
fn a_conflict_of_a_name_says_nothing_over_that_of_its_file() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    assert!(world.drain());
    world.sure(rename(root, "file", root, "moved"));
    world.sure(Ask::SetAttr { ino, set: SetAttr { mode: Some(0o640), ..SetAttr::default() } });
    let origin = world.origin.clone();
    let (key, _) = origin.lookup(&origin.root(), b"file").unwrap();
    origin.write(&key, 0, b"theirs").unwrap();
    origin.make(&origin.root(), b"moved", &Make::File).unwrap();
    assert!(world.drain());
    let told = origin.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().any(|about| about.contains("\"mode\":416")), "{told:?}");
    assert!(told.iter().any(|about| about.contains("\"names\"")), "{told:?}");
    assert_eq!(origin.kept(), [b"theirs".to_vec()], "the file itself is kept by its name");
    assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 2);
}
