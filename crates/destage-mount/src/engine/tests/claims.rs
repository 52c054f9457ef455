//! One claim each.

use super::world::World;
use crate::ask::{Answered, Ask, Kind, Make, SetAttr};
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use crate::origin::Origin;

fn made(world: &mut World, name: &str) -> u64 {
    let dir = world.root();
    let name = name.as_bytes().into();
    match world.sure(Ask::Make { dir, name, make: Make::File, mode: 0o644, open: None }) {
        Answered::Entry(stat, _) => stat.ino,
        other => panic!("{other:?}"),
    }
}

fn write(world: &mut World, ino: u64, offset: u64, data: &[u8]) {
    let data = data.to_vec();
    world.sure(Ask::Write { ino, offset, data, sync: false, append: false, mapped: false });
}

/// > A new file that is deleted before it is due is never sent.
#[test]
fn a_file_that_is_gone_before_it_is_due_never_reaches_the_origin() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "short");
    write(&mut world, ino, 0, b"lived for a moment");
    let dir = world.root();
    world.sure(Ask::Unlink { dir, name: b"short"[..].into() });
    assert!(world.drain());
    let counted = &world.front.as_ref().unwrap().counted;
    assert_eq!((counted.files_written, counted.names_changed, counted.absorbed), (0, 0, 1));
    assert!(world.origin.tree().is_empty());
}

/// What a file holds once others have changed it at the origin beneath, and whether a conflict was told of.
fn changed_beneath(controls: FrontControls) -> (Vec<u8>, u64) {
    let mut world = World::new(1, controls);
    let ino = made(&mut world, "shared");
    write(&mut world, ino, 0, b"first");
    assert!(world.drain());
    write(&mut world, ino, 0, b"ours!");
    let (key, _) = world.origin.lookup(&world.origin.root(), b"shared").unwrap();
    world.origin.write(&key, 0, b"their").unwrap();
    assert!(world.drain());
    let content = world.origin.tree()["/shared"].2.clone();
    (content, world.front.as_ref().unwrap().counted.conflicts)
}

/// > What others have changed at the origin since it was last known equal is never overwritten.
#[test]
fn what_others_changed_beneath_is_never_overwritten() {
    assert_eq!(changed_beneath(FrontControls::default()), (b"their".to_vec(), 1));
    let carry = Controls { no_base: true, ..Controls::default() };
    let unsafe_ = FrontControls { carry, ..FrontControls::default() };
    assert_eq!(changed_beneath(unsafe_).0, b"ours!", "without the look it would be noticed");
}

#[test]
fn a_name_that_others_took_keeps_their_file_and_ours_is_set_aside() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "taken");
    write(&mut world, ino, 0, b"ours");
    let root = world.origin.root();
    let (key, _) = world.origin.make(&root, b"taken", &Make::File).unwrap();
    world.origin.write(&key, 0, b"theirs").unwrap();
    assert!(world.drain());
    assert_eq!(world.origin.tree()["/taken"].2, b"theirs");
    assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 1);
    let kept =
        world.origin.read(&crate::origin::Key { ino, handle: ino.to_le_bytes().into() }, 0, 99);
    assert_eq!(kept.unwrap(), b"ours", "it is kept");
    assert_eq!(world.view()["/taken"].2, b"theirs");
}

#[test]
fn what_is_open_stays_readable_after_its_last_name_is_gone() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "tmp");
    write(&mut world, ino, 0, b"still here");
    assert!(world.drain());
    let Answered::Opened(opened) = world.sure(Ask::Open { ino, flags: libc::O_RDWR }) else {
        panic!("it opens")
    };
    let dir = world.root();
    world.sure(Ask::Unlink { dir, name: b"tmp"[..].into() });
    assert!(world.drain());
    write(&mut world, ino, 10, b", and written");
    assert!(world.drain());
    let read = Ask::Read { ino, offset: 0, len: 99, mapped: false };
    assert_eq!(world.sure(read), Answered::Data(b"still here, and written".to_vec()));
    world.sure(Ask::Release { ino, handle: opened.handle });
    assert!(world.drain());
    assert!(world.origin.tree().is_empty());
}

#[test]
fn what_is_cut_and_grown_again_is_zeros() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "file");
    write(&mut world, ino, 0, b"0123456789");
    assert!(world.drain());
    for size in [4, 8] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        world.sure(Ask::SetAttr { ino, set });
    }
    let expected = b"0123\0\0\0\0".to_vec();
    assert_eq!(world.view()["/file"], (ino, Kind::File, expected.clone()));
    assert!(world.drain());
    assert_eq!(world.origin.tree()["/file"].2, expected);
}
