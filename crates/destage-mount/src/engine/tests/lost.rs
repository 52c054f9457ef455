//! A host that was shut out comes back: what others have had since is theirs, and what was acknowledged here is kept.

use super::covers::FakeCovers;
use super::origin::Death;
use super::world::World;
use crate::ask::{Answered, Ask, Kind, Make};
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use crate::engine::{Front, Hints};
use crate::origin::{Key, Origin};
use destage_core::Lsn;
use destage_engine::Drive;
use destage_tokens::Mode;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn make(world: &mut World, dir: u64, name: &str, make: Make) -> u64 {
    let name = name.as_bytes().into();
    match world.sure(Ask::Make { dir, name, make, mode: 0o755, open: None }) {
        Answered::Entry(stat, _) => stat.ino,
        other => panic!("{other:?}"),
    }
}

pub(super) fn write(world: &mut World, ino: u64, data: &[u8]) {
    let data = data.to_vec();
    world.sure(Ask::Write { ino, offset: 0, data, sync: false, append: false, mapped: false });
}

pub(super) fn filled(world: &mut World, dir: u64, name: &str, data: &[u8]) -> u64 {
    let ino = make(world, dir, name, Make::File);
    write(world, ino, data);
    ino
}

pub(super) fn unlink(world: &mut World, dir: u64, name: &str) {
    world.sure(Ask::Unlink { dir, name: name.as_bytes().into() });
}

pub(super) fn rename(world: &mut World, from: (u64, &str), to: (u64, &str)) {
    let (name, to_name) = (from.1.as_bytes().into(), to.1.as_bytes().into());
    world.sure(Ask::Rename { dir: from.0, name, to_dir: to.0, to_name, replace: true });
}

pub(super) fn key(world: &World, path: &[&str]) -> Option<Key> {
    let root = world.origin.root();
    path.iter().try_fold(root, |dir, name| Some(world.origin.lookup(&dir, name.as_bytes()).ok()?.0))
}

/// A host starts, and dies after so many effects; then it comes back.
pub(super) fn comes_back(world: &mut World, again: u64) -> bool {
    world.covers.as_ref().expect("it has tokens").forget_born();
    world.die_after(again, false);
    let is_back = world.start() && world.drain();
    if again == NEVER {
        return is_back;
    }
    world.crash(Death::Process);
    is_back || world.start() && world.drain()
}

/// So many effects there are not.
pub(super) const NEVER: u64 = 1_000;

pub(super) type Contents = BTreeMap<String, Vec<u8>>;

/// What a folder holds at the origin.
pub(super) fn contents(world: &World, folder: &str) -> Contents {
    let tree = world.origin.tree().into_iter();
    let files = tree.filter(|(_, (_, kind, _))| *kind == Kind::File);
    let files = files.filter_map(|(path, (.., bytes))| {
        Some((path.strip_prefix(folder)?.strip_prefix('/')?.to_owned(), bytes))
    });
    files.collect()
}

/// What others do to a folder while a host is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// They write to the files that they find.
    Write,
    /// They remove them.
    Remove,
    /// They put files of theirs in their places, and where this host has made some.
    Replace,
    /// They remove the folder, too.
    RemoveFolder,
}

const OTHERS: [Others; 4] = [Others::Write, Others::Remove, Others::Replace, Others::RemoveFolder];

/// A host dies after so many effects of destaging, others change one of two folders, and it comes back; that dies, too.
/// Returns what is wrong.
fn returned(
    seed: u64,
    (after, again): (u64, u64),
    how: Others,
    carry: Controls,
) -> Result<(), String> {
    let mut world = World::new(seed, FrontControls { carry, ..FrontControls::default() });
    let covers = Arc::new(FakeCovers::default());
    world.covers = Some(covers.clone());
    assert!(world.start());
    let root = world.root();
    let (theirs, ours) =
        (make(&mut world, root, "theirs", Make::Dir), make(&mut world, root, "ours", Make::Dir));
    for name in ["named", "gone"] {
        filled(&mut world, theirs, name, b"old....");
    }
    for name in ["kept", "left"] {
        filled(&mut world, ours, name, b"old....");
    }
    assert!(world.drain());
    covers.forget_born();
    // All of this is acknowledged.
    let named = world.look(theirs, &b"named"[..].into()).ino;
    filled(&mut world, theirs, "new", b"mine-1.");
    write(&mut world, named, b"mine-2.");
    filled(&mut world, ours, "new", b"mine-3.");
    unlink(&mut world, theirs, "gone");
    rename(&mut world, (ours, "kept"), (ours, "moved"));
    filled(&mut world, theirs, "gone", b"mine-4.");
    unlink(&mut world, ours, "left");
    filled(&mut world, ours, "left", b"mine-5.");
    filled(&mut world, theirs, "draft", b"mine-6.");
    rename(&mut world, (theirs, "draft"), (theirs, "final"));
    filled(&mut world, ours, "last", b"mine-7.");
    world.sure(Ask::Fsync { ino: ours });
    world.die_after(after, false);
    let is_drained = world.drain();
    world.crash(Death::Process);
    // Others have had one folder and what is in it since.
    let before = contents(&world, "/theirs");
    let dir = key(&world, &["theirs"]).expect("it is there");
    covers.lost.lock().expect("no panic before").insert(dir.handle.clone());
    for (name, found) in &before {
        let file = key(&world, &["theirs", name]).expect("it is there");
        covers.lost.lock().expect("no panic before").insert(file.handle.clone());
        if how != Others::Write {
            world.origin.unlink(&dir, name.as_bytes()).expect("others can");
        } else if found.starts_with(b"mine") || name == "named" || name == "gone" {
            world.origin.write(&file, 0, b"another").expect("others can");
        }
    }
    match how {
        Others::Write | Others::Remove => {}
        Others::Replace => {
            for name in ["named", "new", "gone", "draft", "final"] {
                let made = world.origin.make(&dir, name.as_bytes(), &Make::File);
                let (file, _) = made.expect("others can");
                world.origin.write(&file, 0, b"another").expect("others can");
            }
        }
        Others::RemoveFolder => {
            world.origin.rmdir(&world.origin.root(), b"theirs").expect("others can");
        }
    }
    let others = contents(&world, "/theirs");
    if !comes_back(&mut world, again) {
        return Err("it does not come back".into());
    }
    if contents(&world, "/theirs") != others {
        return Err(format!(
            "others had {others:?}, now there is {:?}",
            contents(&world, "/theirs")
        ));
    }
    let expected =
        [("last", "mine-7."), ("left", "mine-5."), ("moved", "old...."), ("new", "mine-3.")];
    let expected: Contents = expected
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), bytes.as_bytes().to_vec()))
        .collect();
    if contents(&world, "/ours") != expected {
        return Err(format!("ours is {:?}", contents(&world, "/ours")));
    }
    let kept = world.origin.kept();
    for content in ["mine-1.", "mine-2.", "mine-4.", "mine-6."].map(str::as_bytes) {
        let had_landed = is_drained || before.values().any(|found| found == content);
        if !had_landed && !kept.iter().any(|kept| kept == content) {
            return Err(format!("{} is not kept: {kept:?}", String::from_utf8_lossy(content)));
        }
    }
    Ok(())
}

fn all(others: &[Others], carry: Controls) -> Result<(), String> {
    for &how in others {
        let (seeds, again): (&[u64], &[u64]) = match how {
            Others::Write => (&[1, 2], &[1, 3, 7, 12, 20, 1_000]),
            _ => (&[1], &[2, 9, 1_000]),
        };
        for &seed in seeds {
            for after in 0..60 {
                for &again in again {
                    returned(seed, (after, again), how, carry).map_err(|error| {
                        format!("{how:?}, seed {seed}, after {after}, {again}: {error}")
                    })?;
                }
            }
        }
    }
    Ok(())
}

/// > nothing that was answered is discarded, and nothing that others have written is overwritten
#[test]
fn what_others_wrote_since_is_not_overwritten_and_what_was_acknowledged_is_kept() {
    all(&OTHERS, Controls::default()).unwrap();
}

#[test]
fn taking_a_file_for_unnamed_since_the_journal_says_so_is_noticed() {
    println!(
        "{}",
        all(&OTHERS, Controls { trusts_journal: true, ..Controls::default() }).unwrap_err()
    );
}

#[test]
fn guessing_what_was_done_by_names_that_others_changed_is_noticed() {
    println!(
        "{}",
        all(&OTHERS, Controls { guesses_lost: true, ..Controls::default() }).unwrap_err()
    );
}

/// What a host does to the name of a file that has another one in another folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Unlink,
    /// And makes another file of that name.
    Remake,
    Replace,
    Rename,
}

/// A host takes a file's name away, and dies after so many effects of destaging. Others find the file by its other name, write
/// to it and take that name away; the host comes back, and dies once more. Returns what is wrong.
fn taken_away(seed: u64, (after, again): (u64, u64), how: Takes) -> Result<(), String> {
    let mut world = World::new(seed, FrontControls::default());
    let covers = Arc::new(FakeCovers::default());
    world.covers = Some(covers.clone());
    assert!(world.start());
    let root = world.root();
    let [ours, theirs] = ["ours", "theirs"].map(|name| make(&mut world, root, name, Make::Dir));
    let file = filled(&mut world, ours, "file", b"old....");
    let next = filled(&mut world, ours, "next", b"mine-1.");
    world.sure(Ask::Link { ino: file, dir: theirs, name: b"other"[..].into() });
    assert!(world.drain());
    covers.forget_born();
    match how {
        Takes::Unlink => unlink(&mut world, ours, "file"),
        Takes::Remake => {
            unlink(&mut world, ours, "file");
            unlink(&mut world, ours, "next");
            filled(&mut world, ours, "file", b"mine-1.");
        }
        Takes::Replace => rename(&mut world, (ours, "next"), (ours, "file")),
        Takes::Rename => rename(&mut world, (ours, "file"), (ours, "name")),
    }
    world.sure(Ask::Fsync { ino: next });
    world.die_after(after, false);
    world.drain();
    world.crash(Death::Process);
    let found = key(&world, &["theirs", "other"]).expect("nobody has changed it");
    let is_there = key(&world, &["ours", "file"]).as_ref() == Some(&found);
    let folder = key(&world, &["theirs"]).expect("it is there");
    world.origin.write(&found, 0, b"another").expect("others can");
    world.origin.unlink(&folder, b"other").expect("others can");
    covers.lost.lock().expect("no panic before").extend([folder.handle, found.handle]);
    if !comes_back(&mut world, again) {
        return Err("it does not come back".into());
    }
    let (all, kept) = (contents(&world, "/ours"), world.origin.kept());
    if is_there && !all.values().any(|bytes| bytes == b"another") {
        return Err(format!("others wrote to it, and now there is {all:?}"));
    }
    if !all.values().chain(&kept).any(|bytes| bytes == b"mine-1.") {
        return Err(format!("there is {all:?}, and {kept:?} is kept"));
    }
    // A mount that is dead again says nothing more.
    let told = world.front.as_ref().map(|front| front.counted.conflicts);
    if is_there && told == Some(0) {
        return Err("nothing says that it was not done".into());
    }
    Ok(())
}

/// Whoever writes to a file under its token keeps what was written, whatever was to become of its name elsewhere.
#[test]
fn a_file_that_others_have_had_since_does_not_go_with_a_name_that_was_to_go() {
    for how in [Takes::Unlink, Takes::Remake, Takes::Replace, Takes::Rename] {
        for seed in 0..4 {
            for (after, again) in
                (0..30).flat_map(|after| [2, 5, 9, NEVER].map(|again| (after, again)))
            {
                taken_away(seed, (after, again), how).unwrap_or_else(|error| {
                    panic!("{how:?}, seed {seed}, after {after}, {again}: {error}")
                });
            }
        }
    }
}

/// A token is given up after several writes, some of which went along with an earlier batch; the host dies, others write, and
/// it comes back. Returns what is wrong.
fn given_up(seed: u64, is_due: fn(&Front, Lsn) -> bool) -> Result<(), String> {
    let mut world = World::new(seed, FrontControls::default());
    world.covers = Some(Arc::new(FakeCovers::default()));
    assert!(world.start());
    let root = world.root();
    let file = filled(&mut world, root, "file", b"first..");
    for round in 0..6 {
        write(&mut world, file, format!("round {round}").as_bytes());
        if round % 2 == 0 {
            world.pass(destage_core::Span::from_millis(900));
            world.work();
        }
    }
    let (_, upto) = world.front.as_ref().unwrap().covered(&destage_tokens::Root::Volume, &[]);
    let mut tries = 0;
    while !is_due(world.front.as_ref().unwrap(), upto) {
        let now = world.now;
        let front = world.front.as_mut().unwrap();
        front.hurry(now);
        if front.decided() >= upto {
            front.commit_soon(now);
        }
        world.settle();
        world.pass(destage_core::Span::from_millis(100));
        tries += 1;
        assert!(tries < 1_000, "seed {seed}");
    }
    world.crash(Death::Host);
    let key = key(&world, &["file"]).unwrap();
    world.origin.write(&key, 0, b"another").unwrap();
    assert!(world.start() && world.drain());
    let (found, kept) = (contents(&world, ""), world.origin.kept());
    if found["file"] != b"another" || !kept.is_empty() {
        return Err(format!("seed {seed}: {found:?}, kept {kept:?}"));
    }
    Ok(())
}

/// A token is given up once the journal says durably that all of it is at the origin.
#[test]
fn what_is_given_up_does_not_come_again_after_a_crash() {
    for seed in 0..40 {
        given_up(seed, |front, upto| front.checkpointed() >= upto).unwrap();
    }
}

#[test]
fn giving_up_while_only_memory_knows_that_the_origin_has_it_is_noticed() {
    let wrong =
        (0..40).find_map(|seed| given_up(seed, |front, upto| front.decided() >= upto).err());
    println!("{}", wrong.expect("it is noticed"));
}

/// Through a page the kernel stores without a word, whoever has read it. What goes to a program's memory is no page.
#[test]
fn a_read_of_a_file_that_another_program_may_store_to_needs_the_exclusive_token() {
    let mut world = World::new(1, FrontControls::default());
    world.covers = Some(Arc::new(FakeCovers::default()));
    assert!(world.start());
    let root = world.root();
    let ino = filled(&mut world, root, "file", b"content");
    let mode_of = |world: &World, mapped| {
        let read = Ask::Read { ino, offset: 0, len: 1, mapped };
        let needs = world.front.as_ref().unwrap().tree.tokens_for(&read, &Hints::default());
        needs.into_iter().next().map(|need| need.mode)
    };
    let mode = |world: &World| mode_of(world, true);
    assert_eq!(mode(&world), Some(Mode::Read));
    let Answered::Opened(reader) = world.sure(Ask::Open { ino, flags: libc::O_RDONLY }) else {
        panic!("it is opened")
    };
    assert_eq!(mode(&world), Some(Mode::Read));
    world.sure(Ask::Open { ino, flags: libc::O_WRONLY });
    assert_eq!(mode(&world), Some(Mode::Read), "a file that cannot be read cannot be mapped");
    let Answered::Opened(writer) = world.sure(Ask::Open { ino, flags: libc::O_RDWR }) else {
        panic!("it is opened")
    };
    assert_eq!(mode(&world), Some(Mode::Exclusive));
    assert_eq!(mode_of(&world, false), Some(Mode::Read));
    world.sure(Ask::Release { ino, handle: reader.handle });
    assert_eq!(mode(&world), Some(Mode::Exclusive));
    world.sure(Ask::Release { ino, handle: writer.handle });
    assert_eq!(mode(&world), Some(Mode::Read));
}

/// The kernel is asked for what was stored to pages, of every mount: they are durable within d.
#[test]
fn pages_of_a_file_that_a_program_may_store_to_are_looked_at() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = filled(&mut world, root, "file", b"content");
    let looks = |world: &mut World, mapped| {
        world.sure(Ask::Read { ino, offset: 0, len: 1, mapped });
        !world.front.as_mut().unwrap().take_mapped().is_empty()
    };
    assert!(!looks(&mut world, true), "nobody may store to it");
    world.sure(Ask::Open { ino, flags: libc::O_RDWR });
    assert!(looks(&mut world, true));
    assert!(!looks(&mut world, false), "what went to a program's memory is no page");
}

/// Whoever waits for an fsync goes on as if this host were not shut out.
#[test]
fn an_fsync_waits_for_the_lease() {
    let mut world = World::new(1, FrontControls::default());
    world.covers = Some(Arc::new(FakeCovers::default()));
    assert!(world.start());
    let root = world.root();
    assert!(world.waits_for_tokens(Ask::Fsync { ino: root }));
    world.sure(Ask::Fsync { ino: root });
}
