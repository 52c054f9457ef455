//! Races and foreign changes that random programs hardly meet.

use super::origin::Death;
use super::world::World;
use crate::ask::{Answered, Ask, Errno, Kind, Make, SetAttr};
use crate::engine::carry::Controls;
use crate::engine::front::FrontControls;
use crate::origin::Origin;
use destage_engine::Drive;

pub(super) fn make(world: &mut World, dir: u64, name: &str, make: Make) -> u64 {
    let name = name.as_bytes().into();
    match world.sure(Ask::Make { dir, name, make, mode: 0o755, open: None }) {
        Answered::Entry(stat, _) => stat.ino,
        other => panic!("{other:?}"),
    }
}

pub(super) fn write(ino: u64, offset: u64, data: &[u8], append: bool) -> Ask {
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

/// A file that another host has made since the kernel looked is opened, unless it must be a new one.
#[test]
fn a_file_that_is_there_already_is_looked_up_again_by_who_only_opens_it() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    make(&mut world, root, "log", Make::File);
    let again =
        |make, open| Ask::Make { dir: root, name: b"log"[..].into(), make, mode: 0o644, open };
    for flags in [libc::O_RDWR, libc::O_RDWR | libc::O_CREAT, libc::O_WRONLY | libc::O_TRUNC] {
        assert_eq!(world.ask(again(Make::File, Some(flags))).unwrap(), Err(Errno::STALE));
    }
    let new = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    for ask in [again(Make::File, Some(new)), again(Make::File, None), again(Make::Dir, None)] {
        assert_eq!(world.ask(ask).unwrap(), Err(Errno::EXIST));
    }
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

/// A file of that number that is made after a crash is not taken for the one that the journal names, whatever others did.
#[test]
fn a_number_that_the_journal_names_is_given_to_no_other_file() {
    let mut is_met = false;
    for effects in 1..40 {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ours = make(&mut world, root, "ours", Make::File);
        world.sure(Ask::Fsync { ino: ours });
        world.die_after(effects, false);
        let is_drained = world.drain();
        world.crash(Death::Process);
        let is_gone = world.origin.unlink(&world.origin.root(), b"ours").is_ok();
        is_met |= is_gone && !is_drained;
        assert!(world.start());
        let other = make(&mut world, root, "other", Make::File);
        assert!(world.drain());
        let there = world.origin.tree().into_iter().map(|(path, (ino, ..))| (path, ino));
        let ours = (!is_gone).then(|| ("/ours".to_owned(), ours));
        let wanted = [("/other".to_owned(), other)].into_iter().chain(ours);
        assert!(there.eq(wanted), "after {effects} effects: {:?}", world.origin.tree());
    }
    assert!(is_met, "others have deleted it between its name and the journal's word of it");
}

/// A new file that is deleted while a batch brings it, and is open, stays readable when its name has come to the origin and gone.
#[test]
fn a_new_file_that_is_deleted_while_it_is_brought_stays_readable_as_long_as_it_is_open() {
    for (fails, steps) in
        [false, true].into_iter().flat_map(|fails| (0..6).map(move |steps| (fails, steps)))
    {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        let Answered::Opened(opened) = world.sure(Ask::Open { ino, flags: libc::O_RDWR }) else {
            panic!("it is opened")
        };
        world.sure(write(ino, 0, b"content", false));
        if fails {
            world.origin.fail_after(4);
        }
        let now = world.now;
        world.front.as_mut().unwrap().hurry(now);
        for _ in 0..steps {
            world.work();
        }
        world.sure(Ask::Unlink { dir: root, name: b"file"[..].into() });
        assert!(world.drain());
        assert_eq!(world.origin.tree().len(), 0, "fails: {fails}");
        let read = Ask::Read { ino, offset: 0, len: 100, mapped: false };
        assert_eq!(world.sure(read), Answered::Data(b"content".to_vec()), "fails: {fails}");
        world.sure(Ask::Release { ino, handle: opened.handle });
        assert!(world.drain());
    }
}

/// A file of others that has the number of a file with changes on their way is not taken for that file; it can be used once they
/// are decided.
#[test]
fn a_file_with_the_number_of_one_with_changes_on_their_way_is_busy() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "ours", Make::File);
    assert!(world.drain());
    world.sure(write(ino, 0, b"ours", false));
    let origin = world.origin.clone();
    origin.unlink(&origin.root(), b"ours").unwrap();
    let (key, _) = origin.make(&origin.root(), b"theirs", &Make::File).unwrap();
    assert_eq!(key.ino, ino, "the origin gives numbers again");
    origin.write(&key, 0, b"theirs").unwrap();
    let look = || Ask::Lookup { dir: root, name: b"theirs"[..].into() };
    assert_eq!(world.ask(look()), Some(Err(Errno::BUSY)));
    assert!(world.drain());
    assert!(matches!(world.sure(look()), Answered::Entry(stat, _) if stat.ino == ino));
    let read = Ask::Read { ino, offset: 0, len: 100, mapped: false };
    assert_eq!(world.sure(read), Answered::Data(b"theirs".to_vec()));
    assert_eq!(origin.kept(), [b"ours".to_vec()], "what was written here is kept beside it");
}

/// Whether others ever see zeros in what was appended to a file that they see, wherever everything stops, and stops again.
fn zeros_are_seen(more: &[(u64, usize)], size: u64, no_growth_order: bool) -> bool {
    (0..40)
        .flat_map(|seed| (0..16).map(move |effects| (seed, effects)))
        .any(|(seed, effects)| zeros_after(more, size, no_growth_order, seed, [effects; 3], false))
}

/// The same of one run that dies three times after so many effects: its host, or first only its process.
fn zeros_after(
    more: &[(u64, usize)],
    size: u64,
    no_growth_order: bool,
    seed: u64,
    deaths: [u64; 3],
    is_process_first: bool,
) -> bool {
    let carry = Controls { no_growth_order, ..Controls::default() };
    let mut world = World::new(seed, FrontControls { carry, ..FrontControls::default() });
    let root = world.root();
    let ino = make(&mut world, root, "log", Make::File);
    world.sure(write(ino, 0, b"1234", false));
    assert!(world.drain());
    for &(at, len) in more {
        world.sure(write(ino, at, &vec![b'x'; len], false));
    }
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    world.sure(Ask::SetAttr { ino, set });
    world.sure(Ask::Fsync { ino });
    let mut is_seen = false;
    for (again, effects) in deaths.into_iter().enumerate() {
        world.die_after(effects, false);
        let _ = (again == 0 || world.start()) && world.drain();
        let is_process = is_process_first && again == 0;
        world.crash(if is_process { Death::Process } else { Death::Host });
        let shown = &world.origin.tree()["/log"].2;
        let belongs = |at: usize| {
            more.iter().any(|&(from, len)| (from as usize..from as usize + len).contains(&at))
        };
        is_seen |= shown.iter().enumerate().skip(4).any(|(at, &byte)| byte == 0 && belongs(at));
    }
    is_seen
}

/// What the first attempt has written is not taken for durable by the next one: the process died, and then the host.
#[test]
fn a_file_that_grows_in_a_further_attempt_shows_others_no_zeros_where_bytes_belong() {
    for seed in 0..20 {
        for (first, later) in (1..3).flat_map(|first| (3..24).map(move |later| (first, later))) {
            let is_seen =
                zeros_after(&[(4, 4), (40, 4)], 44, false, seed, [first, later, later], true);
            assert!(!is_seen, "seed {seed}, {first}, {later}");
        }
    }
}

/// > Zeros never stand where data belongs.
#[test]
fn a_file_that_grows_shows_others_no_zeros_where_bytes_belong() {
    // One behind a hole, one that is longer than what becomes durable as one, and one in front of zeros.
    let cases: [(&[(u64, usize)], u64); 3] =
        [(&[(4, 4), (40, 4)], 44), (&[(4, 90)], 94), (&[(4, 4)], 60)];
    for (more, size) in cases {
        assert!(!zeros_are_seen(more, size, false), "{more:?}, {size}");
        assert!(
            zeros_are_seen(more, size, true),
            "{more:?}, {size}: without the order it is noticed"
        );
    }
}

/// What the origin holds of a file is known to a start, even where the batch that looked took the file along early: the journal may
/// have let go of what it said of that batch.
#[test]
fn a_start_knows_the_base_of_a_file_that_went_early() {
    let mut met = 0;
    for seed in 0..200 {
        let mut world = World::new(seed, FrontControls::default());
        let root = world.root();
        let [early, other] =
            ["early", "other"].map(|name| make(&mut world, root, name, Make::File));
        assert!(world.drain());
        world.sure(Ask::Link { ino: early, dir: root, name: b"more"[..].into() });
        world.sure(write(early, 0, b"1", false));
        world.goes_on(6);
        // So much that a segment of the journal is full.
        (0..5).for_each(|byte| drop(world.sure(write(other, 0, &[byte; 14 << 10], false))));
        world.sure(write(early, 0, b"2", false));
        world.goes_on(24);
        world.sure(Ask::Fsync { ino: early });
        let base = |world: &World| {
            let tree = &world.front.as_ref().unwrap().tree;
            (tree.node(early).and_then(|node| node.base), tree.may_be_written(early))
        };
        let (before, _) = base(&world);
        world.crash(Death::Process);
        assert!(world.start());
        // Where a batch may have written it, its base counts for nothing.
        if let (Some(before), (after, false)) = (before, base(&world)) {
            assert_eq!(after, Some(before), "seed {seed}");
            met += 1;
        }
    }
    assert!(met > 5, "the file was dirty, and nothing was under way, in {met} of 200 cases");
}
