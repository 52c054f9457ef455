//! What others do at the origin beneath changes that are on their way, and what the origin says while they land.

use super::origin::Death;
use super::suspicions::{make, write};
use super::world::World;
use crate::ask::{Answered, Ask, Kind, Make, SetAttr};
use crate::engine::front::FrontControls;
use crate::engine::needs::Need;
use crate::engine::record::Base;
use crate::engine::tree::Tree;
use crate::engine::{Record, Scan};
use crate::origin::Origin;
use destage_core::{Lsn, Span};
use destage_engine::Drive;

fn name(name: &str) -> crate::ask::Name {
    name.as_bytes().into()
}

fn listed(answered: Answered) -> Vec<String> {
    let Answered::Names(names) = answered else { panic!("{answered:?}") };
    let mut names: Vec<String> =
        names.iter().skip(2).map(|listed| String::from_utf8_lossy(&listed.name).into()).collect();
    names.sort();
    names
}

/// > Files are told apart by their handles: a file of others is never deleted, renamed or replaced for the one that had its
/// > number.
///
/// Others delete a file that has changes of names on their way, and the origin gives its number to one that they make under a name
/// of it: that is not the file that is deleted, moved or replaced here.
#[test]
fn a_file_of_others_with_the_number_of_one_that_they_deleted_is_not_taken_for_it() {
    let rename = |root, name, to_name| Ask::Rename {
        dir: root,
        name: self::name(name),
        to_dir: root,
        to_name: self::name(to_name),
        replace: true,
    };
    let asks: [&dyn Fn(u64) -> Ask; 3] = [
        &|dir| Ask::Unlink { dir, name: name("file") },
        &|root| rename(root, "file", "moved"),
        &|root| rename(root, "new", "file"),
    ];
    for (case, ask) in asks.into_iter().enumerate() {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        make(&mut world, root, "new", Make::File);
        assert!(world.drain());
        world.sure(ask(root));
        let origin = world.origin.clone();
        origin.unlink(&origin.root(), b"file").unwrap();
        let (key, _) = origin.make(&origin.root(), b"file", &Make::File).unwrap();
        assert_eq!(key.ino, ino, "the origin gives numbers again");
        origin.write(&key, 0, b"theirs").unwrap();
        assert!(world.drain());
        let there = origin.tree();
        assert_eq!(there.get("/file"), Some(&(ino, Kind::File, b"theirs".to_vec())), "{case}");
        assert!(world.front.as_ref().unwrap().counted.conflicts > 0, "{case}");
    }
}

/// Others change a file between two attempts at a batch that changes its mode: the mode is kept as a conflict, whether it has come to
/// the origin or not, and a further name is not.
#[test]
fn what_others_append_between_two_attempts_stays_where_only_attributes_were_changed() {
    for fails in 1..4 {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        world.sure(write(ino, 0, b"content", false));
        assert!(world.drain());
        let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        world.sure(Ask::SetAttr { ino, set });
        world.sure(Ask::Link { ino, dir: root, name: name("more") });
        world.origin.fail_after(fails);
        let now = world.now;
        world.front.as_mut().unwrap().hurry(now);
        while world.front.as_ref().unwrap().counted.origin_errors == 0 {
            if !world.work() {
                world.pass(Span::from_millis(10));
            }
        }
        let (key, before) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
        world.origin.write(&key, before.size, b", and theirs").unwrap();
        assert!(world.drain());
        let there = world.origin.tree();
        assert_eq!(there["/file"].2, b"content, and theirs", "failed after {fails}");
        assert_eq!(there["/more"].2, b"content, and theirs");
        assert_eq!(world.front.as_ref().unwrap().counted.conflicts, 1, "failed after {fails}");
    }
}

/// What a batch may do is in the journal once, however often it fails.
#[test]
fn a_batch_that_fails_for_long_does_not_fill_the_journal() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    make(&mut world, root, "file", Make::File);
    let mut tried = Vec::new();
    for _ in 0..30 {
        world.origin.fail_after(1);
        let now = world.now;
        world.front.as_mut().unwrap().hurry(now);
        world.settle();
        world.pass(Span::from_secs(60));
        let front = world.front.as_ref().unwrap();
        tried.push((front.counted.origin_errors, front.last()));
    }
    let (first, last) = (tried[0], tried[29]);
    assert!(last.0 >= 25, "{tried:?}");
    assert!(last.1.0 <= first.1.0 + 1, "{tried:?}");
}

/// A listing takes long, and meanwhile changes of names come to the origin, so that nothing here tells of them any more.
#[test]
fn a_listing_misses_nothing_that_landed_while_it_was_made() {
    // More than are remembered: then the origin is asked once more.
    for count in [1, 3, 20] {
        let mut world = World::new(1, FrontControls::default());
        let root = world.root();
        let names = |prefix: &str| (0..count).map(|n| format!("{prefix}{n}")).collect::<Vec<_>>();
        let (gone, new) = (names("gone"), names("new"));
        gone.iter().for_each(|name| assert_ne!(make(&mut world, root, name, Make::File), 0));
        assert!(world.drain());
        new.iter().for_each(|name| assert_ne!(make(&mut world, root, name, Make::File), 0));
        let slow = world.ask_slowly(Ask::ReadDir { ino: root, handle: 0, anew: true });
        for name in &gone {
            world.sure(Ask::Unlink { dir: root, name: self::name(name) });
        }
        assert!(world.drain());
        let mut wanted = new.clone();
        wanted.sort();
        assert_eq!(listed(world.go_on(slow).unwrap().unwrap()), wanted, "{count}");
    }
}

/// A listing ends, although something lands whenever the origin has answered.
#[test]
fn a_listing_of_a_directory_that_others_keep_busy_here_ends() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    make(&mut world, root, "first", Make::File);
    assert!(world.drain());
    let slow = world.ask_slowly(Ask::ReadDir { ino: root, handle: 0, anew: true });
    make(&mut world, root, "second", Make::File);
    assert!(world.drain());
    let asked = world.questions(slow);
    assert!(asked.is_empty(), "it has to know no more than that: {asked:?}");
}

/// What the kernel has just looked up is not asked for once more, and later it is.
#[test]
fn a_name_that_was_looked_up_a_moment_ago_is_not_looked_up_again() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let look = || Ask::Lookup { dir: root, name: name("new") };
    let ask =
        || Ask::Make { dir: root, name: name("new"), make: Make::File, mode: 0o644, open: None };
    let is_name = |need: &Need| matches!(need, Need::Name(..));
    assert!(world.ask(look()).unwrap().is_err());
    let slow = world.ask_slowly(ask());
    assert!(!world.questions(slow).iter().any(is_name));
    world.sure(Ask::Unlink { dir: root, name: name("new") });
    assert!(world.drain());
    // Once for each look, and not after a while.
    for pause in [0, 150] {
        let looked = pause > 0 && world.ask(look()).unwrap().is_err();
        world.pass(Span::from_millis(pause));
        let slow = world.ask_slowly(ask());
        assert!(is_name(&slow.first), "{pause} ms, looked up: {looked}");
        world.go_on(slow).unwrap().unwrap();
        world.sure(Ask::Unlink { dir: root, name: name("new") });
        assert!(world.drain());
    }
    // What came there from here meanwhile is known.
    assert!(world.ask(look()).unwrap().is_err());
    make(&mut world, root, "other", Make::File);
    assert!(world.drain());
    let slow = world.ask_slowly(ask());
    assert!(is_name(&slow.first));
}

/// > **`--dirty-limit`**
///
/// What is in memory no more, since it was written over, cut off or deleted, is not dirty, although the journal still holds it.
#[test]
fn what_is_written_over_or_deleted_does_not_count_as_dirty() {
    let mut world = World::new(2, FrontControls::default());
    world.segment_bytes = 1 << 20;
    world.start_anew();
    let root = world.root();
    let dirty = |world: &World| world.front.as_ref().unwrap().core().status().dirty_bytes;
    let [old, new] = ["old", "new"].map(|name| make(&mut world, root, name, Make::File));
    assert!(world.drain());
    world.sure(Ask::Fsync { ino: old });
    let write_all = |world: &mut World| {
        for ino in [old, new] {
            world.sure(write(ino, 0, &[1; 10_000], false));
        }
    };
    write_all(&mut world);
    assert!((20_000..22_000).contains(&dirty(&world)), "{}", dirty(&world));
    write_all(&mut world);
    assert!((20_000..22_000).contains(&dirty(&world)), "written over: {}", dirty(&world));
    let set = SetAttr { size: Some(0), ..SetAttr::default() };
    world.sure(Ask::SetAttr { ino: new, set });
    assert!((10_000..12_000).contains(&dirty(&world)), "cut off: {}", dirty(&world));
    world.sure(Ask::Unlink { dir: root, name: name("old") });
    assert!(dirty(&world) > 10_000, "somebody may be about to open it: {}", dirty(&world));
    world.sure(Ask::Forget { ino: old, count: 1 });
    assert!(dirty(&world) < 2_000, "deleted: {}", dirty(&world));
    // One that the origin has never seen.
    let ino = make(&mut world, root, "short", Make::File);
    world.sure(write(ino, 0, &[1; 10_000], false));
    world.sure(Ask::Unlink { dir: root, name: name("short") });
    world.sure(Ask::Forget { ino, count: 1 });
    world.sure(Ask::Fsync { ino: root });
    assert!(dirty(&world) < 4_000, "made and deleted: {}", dirty(&world));
    assert!(world.drain());
    assert_eq!(dirty(&world), 0);
}

/// Others change a file while a batch changes only its mode, and it is written to here meanwhile. A start after a crash finds that out
/// as the run before would have.
#[test]
fn a_start_does_not_take_a_file_that_others_have_changed_for_an_empty_one() {
    let mut met = 0;
    for seed in 0..20 {
        let mut world = World::new(seed, FrontControls::default());
        let root = world.root();
        // The journal says nothing of it yet.
        let (key, _) = world.origin.make(&world.origin.root(), b"file", &Make::File).unwrap();
        world.origin.write(&key, 0, b"content").unwrap();
        let ino = world.look(root, &name("file")).ino;
        let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
        world.sure(Ask::SetAttr { ino, set });
        // While that is under way, and its mode is there.
        world.origin.others_append(3 + seed / 4, &key, b", and theirs");
        let now = world.now;
        world.front.as_mut().unwrap().hurry(now);
        let go_on = |world: &mut World| {
            if !world.work() {
                world.pass(Span::from_millis(10));
            }
        };
        let written = world.front.as_ref().unwrap().counted.files_written;
        while world.origin.stat(&key).unwrap().mode != 0o640 {
            go_on(&mut world);
        }
        // It has been carried out, and has not landed.
        world.sure(write(ino, 0, b"C", false));
        while world.front.as_ref().unwrap().counted.files_written == written {
            go_on(&mut world);
        }
        world.sure(Ask::Fsync { ino });
        if world.front.as_ref().unwrap().tree.may_be_written(ino) {
            // The next batch is under way: a further attempt at that looks at no base.
            continue;
        }
        let conflicts = |world: &World| world.front.as_ref().unwrap().counted.conflicts;
        met += u64::from(conflicts(&world) == 0);
        world.crash(Death::Process);
        assert!(world.start());
        assert_eq!(world.view()["/file"].2[1..7], b"content"[1..], "seed {seed}");
        assert!(world.drain());
        let there = world.origin.tree();
        assert_eq!(there["/file"].2, b"content, and theirs", "seed {seed}");
        assert_eq!(conflicts(&world), 1, "seed {seed}");
    }
    assert!(met > 5, "it had not been found out before the crash in {met} of 20 cases");
}

/// Whoever has found a file is about to open it when another one deletes it.
#[test]
fn a_file_that_is_deleted_between_a_lookup_and_an_open_has_its_content() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    assert!(world.drain());
    world.sure(write(ino, 0, b"content", false));
    world.sure(Ask::Unlink { dir: root, name: name("file") });
    let Answered::Opened(opened) = world.sure(Ask::Open { ino, flags: libc::O_RDWR }) else {
        panic!("it is opened")
    };
    let read = || Ask::Read { ino, offset: 0, len: 100, mapped: false };
    assert_eq!(world.sure(read()), Answered::Data(b"content".to_vec()));
    assert!(world.drain());
    assert_eq!(world.sure(read()), Answered::Data(b"content".to_vec()));
    world.sure(Ask::Release { ino, handle: opened.handle });
}

/// What is forgotten was clean: nothing that the origin said meanwhile is old for that.
#[test]
fn a_lookup_is_not_repeated_since_another_file_is_forgotten() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let [one, two] = ["one", "two"].map(|name| make(&mut world, root, name, Make::File));
    world.sure(Ask::Forget { ino: one, count: 1 });
    world.sure(Ask::Forget { ino: two, count: 1 });
    assert!(world.drain());
    let look = |at: &str| Ask::Lookup { dir: root, name: name(at) };
    let slow = world.ask_slowly(look("two"));
    world.sure(look("one"));
    world.sure(Ask::Forget { ino: one, count: 1 });
    let asked = world.questions(slow);
    assert!(asked.is_empty(), "{asked:?}");
}

/// Who makes many files in a directory has it listed once, and not each name looked up.
#[test]
fn many_names_that_are_nobodys_are_found_out_about_by_one_listing() {
    let mut world = World::new(1, FrontControls::default());
    world.names_fresh = Span::from_secs(1);
    let root = world.root();
    let old = make(&mut world, root, "old", Make::File);
    assert!(world.drain());
    world.crash(Death::Process);
    assert!(world.start());
    let look = |at: &str| Ask::Lookup { dir: root, name: name(at) };
    let is_list = |need: &Need| matches!(need, Need::List(..));
    let is_absent = |world: &mut World, at: &str| world.ask(look(at)).unwrap().is_err();
    assert!(is_absent(&mut world, "1") && is_absent(&mut world, "2"));
    let slow = world.ask_slowly(look("3"));
    assert!(is_list(&slow.first), "{:?}", slow.first);
    assert!(world.questions(slow).is_empty());
    let root_key = world.origin.root();
    // What others do is not seen for a while, what is done here is, wherever it is.
    world.origin.make(&root_key, b"4", &Make::File).unwrap();
    assert!(is_absent(&mut world, "4"));
    make(&mut world, root, "5", Make::File);
    assert_eq!(world.look(root, &name("old")).ino, old);
    world.sure(Ask::Unlink { dir: root, name: name("old") });
    assert!(world.drain());
    assert!(!is_absent(&mut world, "5"), "it is at the origin");
    assert!(is_absent(&mut world, "old"), "it is gone");
    let more = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    more.iter().for_each(|at| assert_ne!(make(&mut world, root, at, Make::File), 0));
    assert!(world.drain());
    assert!(more.iter().all(|at| !is_absent(&mut world, at)), "more than are remembered");
    world.pass(Span::from_millis(1_001));
    assert!(!is_absent(&mut world, "4"), "it is listed anew, or looked up");
}

/// A batch may take a group along that is not decided by it. After a crash the group says what the origin held before that batch, and
/// the batch's own word is newer.
#[test]
fn what_a_batch_has_found_is_not_undone_by_a_group_that_it_took_along() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    assert!(world.drain());
    let (key, stat) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
    let base = |size| Base { size, ..Base::of(&stat) };
    for (lsn, known) in [(5, base(40)), (15, base(37))] {
        let mut scan = Scan::default();
        scan.look(
            Lsn(10),
            vec![Record::Ckpt { upto: 3, bases: vec![(ino, base(40))], absorbed: Vec::new() }],
        );
        let mut tree = Tree::new(world.origin.root());
        scan.prepare(&mut tree, false);
        let file = Record::File { key: key.clone(), kind: Kind::File };
        tree.apply(Lsn(lsn), &[file, Record::Meta { stat, base: Some(base(37)) }]);
        let node = tree.node(ino).unwrap();
        assert_eq!((node.base, node.content.limit), (Some(known), known.size), "group {lsn}");
    }
}

/// > What others have changed at the origin since it was last known equal is never overwritten.
///
/// A batch takes content along of groups that are not due. A mount that has ended, or died, does not bring it there once more over
/// what others have written since.
#[test]
fn what_a_batch_took_along_is_not_brought_again_over_what_others_wrote_since() {
    let mut met = 0;
    for (seed, is_changed) in (0..60).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut world = World::new(seed, FrontControls::default());
        let root = world.root();
        let ino = make(&mut world, root, "file", Make::File);
        assert!(world.drain());
        world.sure(Ask::Link { ino, dir: root, name: name("more") });
        world.sure(write(ino, 0, b"ours", false));
        assert!(world.drain());
        let (key, _) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
        world.origin.write(&key, 0, b"theirs").unwrap();
        if is_changed {
            world.sure(write(ino, 6, b"!", false));
        }
        world.sure(Ask::Fsync { ino: root });
        world.crash(Death::Process);
        assert!(world.start());
        let wanted = if is_changed { &b"theirs!"[..] } else { b"theirs" };
        assert_eq!(world.view()["/file"].2, wanted, "seed {seed}");
        assert!(world.drain());
        assert_eq!(world.origin.tree()["/more"].2, wanted, "seed {seed}");
        let front = world.front.as_ref().unwrap();
        assert_eq!(front.counted.conflicts, 0, "seed {seed}");
        met += front.counted.recovered_groups;
    }
    assert!(met > 0, "a start has found something");
}

/// The same of a group that says that the file was clean, where the journal says nothing else of that.
#[test]
fn a_group_that_found_a_file_clean_ends_what_groups_before_it_say() {
    let mut world = World::new(1, FrontControls::default());
    let root = world.root();
    let ino = make(&mut world, root, "file", Make::File);
    assert!(world.drain());
    let (key, stat) = world.origin.lookup(&world.origin.root(), b"file").unwrap();
    let file = || Record::File { key: key.clone(), kind: Kind::File };
    let group = |size, offset, bytes: &[u8]| {
        let stat = crate::ask::Stat { size, ..stat };
        let base = Base { size: offset, ..Base::of(&stat) };
        let data = Record::Data { ino, offset, bytes: bytes.into() };
        [file(), Record::Meta { stat, base: Some(base) }, data]
    };
    let mut tree = Tree::new(world.origin.root());
    tree.apply(Lsn(5), &group(4, 0, b"ours"));
    tree.apply(Lsn(20), &group(7, 6, b"!"));
    let content = &tree.node(ino).unwrap().content;
    let ranges: Vec<_> = content.extents.all().map(|(at, len, _)| (at, len)).collect();
    assert_eq!((ranges, content.limit), (vec![(6, 1)], 6));
}
