//! Races and foreign changes that random programs hardly meet.

use super::world::World;
use crate::ask::{Answered, Ask, Errno, Kind, Make, SetAttr};
use crate::engine::front::FrontControls;
use crate::origin::Origin;

fn make(world: &mut World, dir: u64, name: &str, make: Make) -> u64 {
    let name = name.as_bytes().into();
    match world.sure(Ask::Make { dir, name, make, mode: 0o755, open: None }) {
        Answered::Entry(stat, _) => stat.ino,
        other => panic!("{other:?}"),
    }
}

fn write(ino: u64, offset: u64, data: &[u8], append: bool) -> Ask {
    Ask::Write { ino, offset, data: data.to_vec(), sync: false, append, mapped: false }
}

/// > this mount sees what they do after at most `--origin-check` (3 s), where nothing of it is undestaged here
#[test]
fn what_others_do_in_a_directory_that_was_made_here_is_seen() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let dir = make(&mut world, root, "dir", Make::Dir);
    make(&mut world, dir, "ours", Make::File);
    assert!(world.drain());
    let (key, _) = world.origin.lookup(&world.origin.root(), b"dir").unwrap();
    world.origin.make(&key, b"theirs", &Make::File).unwrap();
    assert!(world.view().contains_key("/dir/theirs"));
    world.origin.unlink(&key, b"ours").unwrap();
    world.origin.unlink(&key, b"theirs").unwrap();
    assert!(!world.view().contains_key("/dir/ours"));
    world.sure(Ask::RmDir { dir: root, name: b"dir"[..].into() });
    assert!(world.drain());
    assert!(world.origin.tree().is_empty());
}

/// What the origin said of a file is of no use once the file has changed and has gone there meanwhile.
#[test]
fn a_request_that_asked_the_origin_before_another_landed_asks_again() {
    for append in [false, true] {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "log", Make::File);
        world.sure(write(ino, 0, b"first", false));
        assert!(world.drain());
        let slow = world.ask_slowly(write(ino, 0, b"third", append));
        world.sure(write(ino, 5, b"second", false));
        assert!(world.drain());
        world.go_on(slow).unwrap().unwrap();
        assert!(world.drain());
        let wanted = if append { &b"firstsecondthird"[..] } else { b"thirdsecond" };
        assert_eq!(world.origin.tree()["/log"], (ino, Kind::File, wanted.to_vec()));
        assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 0);
    }
}

/// > What this host has of it is kept
///
/// And one file that the origin cannot hold does not hold up all others.
#[test]
fn a_file_that_is_too_large_for_the_origin_is_refused_or_kept_aside() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    world.origin.limit_size(1_000);
    let far = make(&mut world, root, "far", Make::File);
    world.sure(write(far, 1 << 40, b"too far", false));
    let set = SetAttr { size: Some(1 << 50), ..SetAttr::default() };
    world.sure(Ask::SetAttr { ino: far, set });
    let near = make(&mut world, root, "near", Make::File);
    world.sure(write(near, 0, b"near", false));
    assert!(world.drain(), "all others go on");
    assert_eq!(world.origin.tree()["/near"].2, b"near");
    assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 1);
    assert_eq!(world.origin.kept(), [b"too far"], "byte for byte");
    // Once the origin has told its limit, nobody is promised more.
    world.front.as_mut().unwrap().tree.file_bytes_max = 1_000;
    let refused = world.ask(write(near, 999, b"12", false)).unwrap();
    assert_eq!(refused, Err(Errno::FBIG));
}
