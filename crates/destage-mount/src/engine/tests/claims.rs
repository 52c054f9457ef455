//! One claim each.

use super::covers::FakeCovers;
use super::origin::Death;
use super::world::World;
use crate::ask::{Answered, Ask, Caller, Errno, Kind, Make, SetAttr};
use crate::engine::below::Below;
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use crate::origin::Origin;
use destage_core::Span;
use destage_engine::Drive;
use std::sync::Arc;

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

/// What a file holds, and how many conflicts there are, once the origin has guessed anew when it was changed; or others have
/// changed it, of the same size.
fn guessed_beneath(is_shared: bool, is_changed: bool) -> (Vec<u8>, u64) {
    let mut world = World::new(1, FrontControls::default());
    world.covers = is_shared.then(|| Arc::new(FakeCovers::default()));
    assert!(world.start());
    let ino = made(&mut world, "shared");
    write(&mut world, ino, 0, b"first");
    assert!(world.drain());
    write(&mut world, ino, 0, b"ours!");
    let (key, _) = world.origin.lookup(&world.origin.root(), b"shared").unwrap();
    if is_changed {
        world.origin.write(&key, 0, b"their").unwrap();
    }
    world.origin.guess_mtime(&key);
    assert!(world.drain());
    let content = world.origin.tree()["/shared"].2.clone();
    (content, world.front.as_ref().unwrap().counted.conflicts)
}

/// > The time of the last change alone is no change where all who write have tokens.
#[test]
fn a_time_that_the_origin_guesses_anew_is_a_conflict_only_without_tokens() {
    assert_eq!(guessed_beneath(true, false), (b"ours!".to_vec(), 0));
    assert_eq!(guessed_beneath(true, true), (b"their".to_vec(), 1), "others have changed it, too");
    assert_eq!(guessed_beneath(false, false), (b"first".to_vec(), 1));
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

/// See [`Front::open_files`](crate::engine::Front::open_files).
#[test]
fn a_file_is_open_for_reading_alone_while_nobody_may_write_it() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "file");
    made(&mut world, "other");
    let open = |world: &mut World, flags| match world.sure(Ask::Open { ino, flags }) {
        Answered::Opened(opened) => opened.handle,
        other => panic!("{other:?}"),
    };
    let files = |world: &World| world.front.as_ref().unwrap().open_files();
    assert!(files(&world).is_empty());
    let reads = open(&mut world, libc::O_RDONLY);
    assert_eq!(files(&world), [(ino, true)]);
    let writes = open(&mut world, libc::O_RDWR);
    assert_eq!(files(&world), [(ino, false)]);
    world.sure(Ask::Release { ino, handle: writes });
    assert_eq!(files(&world), [(ino, true)]);
    world.sure(Ask::Release { ino, handle: reads });
    assert!(files(&world).is_empty());
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

/// What a crash leaves of a program that another user has changed, for each place where the journal may end.
fn changed_by_another(clears_privileges: bool, mode: u32) -> Vec<(u32, Vec<u8>)> {
    let mut left = Vec::new();
    for seed in 0..40 {
        let mut world = World::new(seed, FrontControls::default());
        let ino = made(&mut world, "program");
        write(&mut world, ino, 0, b"old");
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        world.sure(Ask::SetAttr { ino, set });
        world.sure(Ask::Fsync { ino });
        world.caller = Caller { uid: 7, gid: 7, clears_privileges };
        write(&mut world, ino, 0, b"new");
        assert_eq!(world.outdated.contains(&ino), clears_privileges, "the kernel asks again");
        if seed % 2 == 0 {
            world.pass(Span::from_secs(2));
            for _ in 0..seed / 2 {
                world.work();
            }
        }
        world.crash(Death::Host);
        assert!(world.start());
        let stat = world.look(world.root(), &b"program"[..].into());
        left.push((stat.mode, world.content(stat)));
    }
    left
}

/// > no crash leaves them with content of another user.
#[test]
fn what_another_user_has_changed_never_acts_as_its_owner() {
    let left = changed_by_another(true, 0o6755);
    for (mode, content) in &left {
        let is_whole =
            (*mode, &content[..]) == (0o6755, b"old") || (*mode, &content[..]) == (0o755, b"new");
        assert!(is_whole, "{mode:o} {content:?}");
    }
    assert!(left.iter().any(|(mode, _)| *mode == 0o755), "some have arrived");
    let locked = changed_by_another(true, 0o6745);
    assert!(locked.iter().any(|(mode, _)| *mode == 0o2745), "of a group that may not execute it");
    let kept = changed_by_another(false, 0o6755);
    assert!(kept.contains(&(0o6755, b"new".to_vec())), "without it this would be noticed");
}

/// Files are written until one is refused, and now and then what there is goes to the origin, which others use, too. How many
/// were answered, of how many that there is room for.
fn answered_before_it_is_full(seed: u64, no_room: bool) -> (u64, u64) {
    let (blocks, others) = (200, 50);
    let mut world = World::new(seed, FrontControls { no_room, ..FrontControls::default() });
    world.origin.limit(blocks);
    world.look_at_space();
    let root = world.origin.root();
    let (foreign, _) = world.origin.make(&root, b"foreign", &Make::File).unwrap();
    let mut answered = 0;
    for number in 0..2 * blocks {
        if number == 20 {
            world.origin.write(&foreign, 0, &vec![1; others as usize * BLOCK]).unwrap();
            world.look_at_space();
        }
        let ino = made(&mut world, &format!("file{number}"));
        let data = vec![1; 1 + world.random.below(BLOCK)];
        let write = Ask::Write { ino, offset: 0, data, sync: false, append: false, mapped: false };
        match world.ask(write).unwrap() {
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                break;
            }
            Ok(_) => answered += 1,
        }
        if number % 31 == seed % 31 && !no_room {
            assert!(world.drain());
        }
        while world.random.below(3) == 0 && world.work() {}
    }
    if !no_room {
        assert!(world.drain());
        let counted = &world.front.as_ref().unwrap().counted;
        assert_eq!((counted.origin_errors, counted.conflicts), (0, 0), "seed {seed}");
        let there = world.origin.tree().into_iter().filter(|(_, (.., data))| !data.is_empty());
        assert_eq!(there.count() as u64, answered + 1, "all that was answered, and theirs");
    }
    (answered, blocks - others)
}

const BLOCK: usize = 4096;

/// > Nothing is answered for which the origin has no room, as far as can be known
#[test]
fn what_has_no_room_at_the_origin_is_refused_before_it_is_answered() {
    for seed in 0..30 {
        let (answered, room) = answered_before_it_is_full(seed, false);
        assert!(answered <= room && answered > room * 3 / 4, "{answered} of {room}, seed {seed}");
    }
    let (answered, room) = answered_before_it_is_full(1, true);
    assert!(answered > room, "without the look more is answered than there is room for");
}

/// > `statfs` shows the origin's room less what is on its way.
#[test]
fn the_room_that_is_shown_is_less_by_what_is_on_its_way() {
    let mut world = World::new(3, FrontControls::default());
    world.segment_bytes = 1 << 20;
    world.start_anew();
    world.origin.limit(100);
    let free = |world: &mut World| match world.sure(Ask::StatFs) {
        Answered::Space(space) => space.available,
        other => panic!("{other:?}"),
    };
    let ino = made(&mut world, "file");
    assert!(world.drain());
    let before = free(&mut world);
    for _ in 0..9 {
        write(&mut world, ino, 0, &[1; 4 * BLOCK]);
    }
    assert_eq!(free(&mut world), before - 4, "what is written over counts once");
    assert!(world.drain());
    assert_eq!(free(&mut world), before - 4);
}

/// What is at the origin has no place in the journal, however much came.
#[test]
fn the_journal_holds_only_what_the_origin_does_not() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "file");
    let mut most = 0;
    for _ in 0..40 {
        for _ in 0..16 {
            write(&mut world, ino, 0, &[1; 4 * BLOCK]);
        }
        assert!(world.drain());
        while world.work() {}
        most = most.max(world.front.as_ref().unwrap().journal().status().bytes);
    }
    assert!(most < 2 << 20, "of 10 MiB that were written the journal holds {most}");
}

/// An origin whose own mount has ended is not tried again, and what was answered is durable in the journal.
#[test]
fn an_origin_whose_mount_has_ended_is_not_tried_again() {
    let mut world = World::new(1, FrontControls::default());
    let ino = made(&mut world, "file");
    write(&mut world, ino, 0, b"answered");
    world.origin.end_mount();
    let now = world.now;
    world.front.as_mut().unwrap().hurry(now);
    world.settle();
    let tried = world.origin.refused();
    assert!(tried > 0, "it was tried");
    for _ in 0..100 {
        world.pass(Span::from_secs(1));
        world.settle();
    }
    assert_eq!(world.origin.refused(), tried, "and not again");
    let front = world.front.as_ref().unwrap();
    assert!(front.has_lost_origin() && front.committed() >= front.last());
    world.crash(Death::Host);
    assert!(world.start());
    assert_eq!(world.view()["/file"].2, b"answered");
}

/// > `fsync` with `--fsync origin`, or of a file below `--fsync-origin`
#[test]
fn a_file_is_below_a_folder_by_the_name_that_it_was_given_last() {
    let mut world = World::new(1, FrontControls::default());
    world.fsync_origin_below = Below::new(&["d"]);
    world.crash(Death::Process);
    assert!(world.start());
    let root = world.root();
    let make =
        Ask::Make { dir: root, name: b"d"[..].into(), make: Make::Dir, mode: 0o755, open: None };
    let Answered::Entry(dir, _) = world.sure(make) else { panic!("it is made") };
    let ino = made(&mut world, "file");
    write(&mut world, ino, 0, b"text");
    world.sure(Ask::Fsync { ino });
    assert!(world.origin.tree().is_empty(), "in the journal");
    let (name, to_name) = (b"file"[..].into(), b"moved"[..].into());
    world.sure(Ask::Rename { dir: root, name, to_dir: dir.ino, to_name, replace: false });
    world.sure(Ask::Fsync { ino });
    assert_eq!(world.origin.tree()["/d/moved"].2, b"text");
    write(&mut world, ino, 0, b"more");
    let sync = Ask::Write {
        ino,
        offset: 4,
        data: b"!".to_vec(),
        sync: true,
        append: false,
        mapped: false,
    };
    world.sure(sync);
    assert_eq!(world.origin.tree()["/d/moved"].2, b"more!");
    let (name, to_name) = (b"moved"[..].into(), b"file"[..].into());
    world.sure(Ask::Rename { dir: dir.ino, name, to_dir: root, to_name, replace: false });
    world.sure(Ask::Fsync { ino });
    assert!(world.origin.tree().contains_key("/d/moved"), "in the journal again");
}
