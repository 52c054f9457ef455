//! What covers changes where several hosts share the origin, without the others.

use super::lost::{NEVER, comes_back, contents, filled, key, make, rename, write};
use super::origin::Death;
use super::world::World;
use crate::ask::{Answered, Ask, Make};
use crate::engine::front::FrontControls;
use crate::engine::{Covers, Front, Homes, Kept, Record};
use crate::origin::{Key, Origin};
use destage_tokens::{FileId, Root};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

/// Tokens that are always had. A change is covered by that of the topmost directory in which the file was made, else by the
/// file's own.
#[derive(Default)]
pub(super) struct FakeCovers {
    born: Mutex<HashMap<FileId, FileId>>,
    /// Those that others have had since.
    pub(super) lost: Mutex<BTreeSet<FileId>>,
    /// Those that have a token of their own besides.
    own: Mutex<BTreeSet<FileId>>,
    /// Promise to be broken: only the topmost directory is written down.
    pub(super) no_way: bool,
}

impl FakeCovers {
    fn all_born(&self) -> MutexGuard<'_, HashMap<FileId, FileId>> {
        self.born.lock().expect("no panic before")
    }

    pub(super) fn forget_born(&self) {
        self.all_born().clear();
    }

    /// What a start finds out of what an earlier one has written down.
    pub(super) fn take_up(&self, homes: &Homes) -> BTreeSet<u64> {
        let lost = self.lost.lock().expect("no panic before").clone();
        let is_confirmed = |root: &Root| match root {
            Root::Volume => true,
            Root::File(file) => !lost.contains(file),
        };
        homes.take_up(is_confirmed, self)
    }
}

impl Covers for FakeCovers {
    fn way(&self, file: &FileId) -> Vec<Root> {
        let born = self.all_born();
        let next = |at: &FileId| born.get(at).cloned();
        let mut way: Vec<FileId> = std::iter::successors(next(file), next).collect();
        if way.is_empty() {
            way.push(file.clone());
        }
        let from = if self.no_way { way.len() - 1 } else { 0 };
        way.drain(from..).map(Root::File).collect()
    }

    fn stays(&self, file: &FileId, _: &Root) -> bool {
        self.own.lock().expect("no panic before").contains(file)
    }

    fn born(&self, file: &FileId, dir: &FileId) {
        self.all_born().insert(file.clone(), dir.clone());
    }

    fn moved(&self, file: &FileId, dir: &FileId) {
        if let Some(home) = self.all_born().get_mut(file) {
            *home = dir.clone();
        }
    }

    fn not_born(&self, file: &FileId) {
        self.all_born().remove(file);
    }
}

/// A mount with two folders that others may know, and a folder with two files that was made in the first one.
struct Moving {
    world: World,
    covers: Arc<FakeCovers>,
    to: u64,
    from: u64,
    inner: u64,
    files: [u64; 2],
}

impl Moving {
    fn new(seed: u64, no_way: bool) -> Self {
        let mut world = World::new(seed, FrontControls::default());
        let covers = Arc::new(FakeCovers { no_way, ..FakeCovers::default() });
        world.covers = Some(covers.clone());
        assert!(world.start());
        let root = world.root();
        let from = make(&mut world, root, "from", Make::Dir);
        let to = make(&mut world, root, "to", Make::Dir);
        assert!(world.drain());
        covers.forget_born();
        let inner = make(&mut world, from, "inner", Make::Dir);
        let files = ["first", "second"].map(|name| filled(&mut world, inner, name, b"old...."));
        assert!(world.drain());
        Self { world, covers, to, from, inner, files }
    }

    /// The folder is moved. One of its files may have been changed before, the other one is changed afterwards.
    fn go(&mut self, before: bool) {
        let Self { world, from, to, files, .. } = self;
        if before {
            write(world, files[0], b"mine-1.");
        }
        rename(world, (*from, "inner"), (*to, "inner"));
        write(world, files[1], b"mine-2.");
        world.sure(Ask::Fsync { ino: *to });
    }

    fn handle(&self, ino: u64) -> FileId {
        self.world.front.as_ref().unwrap().tree.node(ino).unwrap().key.handle.clone()
    }
}

/// A host dies after so many effects of destaging; others have what they find in one of the folders, and it comes back; that dies, too.
/// Returns what is wrong.
fn moved(seed: u64, (after, again): (u64, u64), before: bool, no_way: bool) -> Result<(), String> {
    let mut moving = Moving::new(seed, no_way);
    moving.go(before);
    let Moving { mut world, covers, .. } = moving;
    world.die_after(after, false);
    world.drain();
    world.crash(Death::Process);
    // They find it where it is by then, and have the token of that folder alone.
    let folder = if key(&world, &["to", "inner"]).is_some() { "to" } else { "from" };
    let there = contents(&world, &format!("/{folder}/inner"));
    for path in [
        &[folder][..],
        &[folder, "inner"],
        &[folder, "inner", "first"],
        &[folder, "inner", "second"],
    ] {
        let found = key(&world, path).expect("it is there");
        if path.len() == 3 {
            world.origin.write(&found, 0, b"another").expect("others can");
        }
        covers.lost.lock().expect("no panic before").insert(found.handle);
    }
    assert!(comes_back(&mut world, again));
    let found = contents(&world, &format!("/{folder}/inner"));
    if found.values().any(|bytes| bytes != b"another") {
        return Err(format!("others wrote to both, now there is {found:?}"));
    }
    let kept = world.origin.kept();
    for (name, content) in [("first", &b"mine-1."[..]), ("second", b"mine-2.")] {
        let is_changed = before || name == "second";
        if is_changed && there[name] != content && !kept.iter().any(|kept| kept == content) {
            return Err(format!("{name} is not kept: {kept:?}"));
        }
    }
    Ok(())
}

fn moved_by_any(no_way: bool) -> Result<(), String> {
    for seed in 0..4 {
        for (after, again) in (0..40).flat_map(|after| [2, 7, NEVER].map(|again| (after, again))) {
            for before in [true, false] {
                moved(seed, (after, again), before, no_way).map_err(|error| {
                    format!("seed {seed}, after {after}, {again}, changed before {before}: {error}")
                })?;
            }
        }
    }
    Ok(())
}

/// Whoever has a folder finds what lies in it, wherever that was when it was changed.
#[test]
fn what_lies_in_a_folder_that_was_moved_is_lost_with_the_place_where_others_find_it() {
    moved_by_any(false).unwrap();
}

#[test]
fn writing_down_the_topmost_folder_alone_is_noticed() {
    println!("{}", moved_by_any(true).unwrap_err());
}

/// Whoever gets the token of a folder waits for all that it covers.
#[test]
fn what_lies_in_a_folder_that_was_moved_is_covered_where_it_is_after_a_crash_too() {
    let mut moving = Moving::new(1, false);
    let way = |moving: &Moving| {
        let [inner, from, to] =
            [moving.inner, moving.from, moving.to].map(|ino| moving.handle(ino));
        let ways = moving.files.map(|file| moving.covers.way(&moving.handle(file)));
        assert_eq!(ways[0], ways[1]);
        let named = [(inner, "inner"), (from, "from"), (to, "to")];
        let name = |root: &Root| {
            let known = named.iter().find(|(handle, _)| *root == Root::File(handle.clone()));
            known.expect("it is one of these").1
        };
        ways[0].iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(way(&moving), ["inner", "from"]);
    moving.go(true);
    assert_eq!(way(&moving), ["inner", "to"]);
    let upto = moving.world.front.as_ref().unwrap().covered(&Root::Volume, &[]).1;
    let to = Root::File(moving.handle(moving.to));
    assert_eq!(moving.world.front.as_ref().unwrap().covered(&to, &[]).1, upto);
    moving.world.crash(Death::Process);
    moving.covers.forget_born();
    assert!(moving.world.start());
    assert_eq!(way(&moving), ["inner", "to"]);
    assert_eq!(moving.world.front.as_ref().unwrap().covered(&to, &[]).1, upto);
}

/// The journal holds no change of the folder itself any more.
#[test]
fn a_start_knows_where_a_folder_was_made_that_only_covers_others() {
    let mut moving = Moving::new(1, false);
    let [inner, from] = [moving.inner, moving.from].map(|ino| moving.handle(ino));
    let file = moving.files[0];
    write(&mut moving.world, file, b"mine-1.");
    moving.world.sure(Ask::Fsync { ino: file });
    moving.world.crash(Death::Process);
    moving.covers.forget_born();
    assert!(moving.world.start());
    let way = moving.covers.way(&moving.handle(file));
    assert_eq!(way, [Root::File(inner), Root::File(from)]);
}

/// Earlier versions wrote down the folder whose token they had, however far up it was.
#[test]
fn what_an_earlier_version_wrote_is_lost_with_the_folder_that_it_names() {
    let key = |ino: u64| Key { ino, handle: [ino as u8][..].into() };
    let file = |ino| Record::File { key: key(ino), kind: crate::ask::Kind::File };
    let cover = |ino, root| Record::Cover { ino, root: key(root).handle };
    let mut homes = Homes::default();
    homes.look(&[file(3), file(2), cover(3, 1), cover(2, 1)]);
    homes.look(&[file(4), cover(4, 4)]);
    let covers = FakeCovers::default();
    assert!(covers.take_up(&homes).is_empty());
    assert_eq!(covers.way(&key(3).handle), [Root::File(key(1).handle)]);
    covers.lost.lock().expect("no panic before").insert(key(1).handle);
    assert_eq!(covers.take_up(&homes), BTreeSet::from([2, 3]));
}

/// A file with a token of its own is changed while that of its folder is given up, as by a further name of it elsewhere.
#[test]
fn what_has_a_token_of_its_own_is_not_given_up_with_its_folder() {
    let mut moving = Moving::new(1, false);
    let [first, second] = moving.files;
    let covered = [moving.inner, first, second].map(|ino| moving.handle(ino));
    let root = Root::File(moving.handle(moving.from));
    moving.covers.own.lock().unwrap().insert(covered[2].clone());
    let give_up = |moving: &mut Moving| {
        let front = moving.world.front.as_mut().unwrap();
        front.give_up(&root, &covered, Kept::default())
    };
    write(&mut moving.world, second, b"mine-1.");
    assert!(give_up(&mut moving));
    assert!(moving.world.front.as_ref().unwrap().tree.is_unsent(second));
    // The other one is waited for, whoever has changed it.
    write(&mut moving.world, first, b"mine-2.");
    assert!(!give_up(&mut moving));
    assert!(moving.world.front.as_ref().unwrap().tree.is_unsent(first));
    assert!(moving.world.drain());
    assert!(give_up(&mut moving));
    let found = contents(&moving.world, "/from/inner");
    assert_eq!([&found["first"][..], &found["second"]], [b"mine-2.", b"mine-1."]);
}

/// What programs have open stays readable once others may delete it. The origin is asked for that beside the engine, which may have
/// changed by then.
#[test]
fn what_is_open_is_kept_before_it_is_given_up() {
    let mut moving = Moving::new(1, false);
    let [ino, closed] = moving.files;
    let covered = [ino, closed].map(|ino| moving.handle(ino));
    let root = Root::File(moving.handle(moving.inner));
    let open =
        |moving: &mut Moving| match moving.world.sure(Ask::Open { ino, flags: libc::O_RDONLY }) {
            Answered::Opened(opened) => opened.handle,
            other => panic!("{other:?}"),
        };
    fn front(moving: &mut Moving) -> &mut Front {
        moving.world.front.as_mut().unwrap()
    }
    let kept = |moving: &mut Moving| {
        let files = front(moving).to_be_kept(&root, &covered);
        let origin = &moving.world.origin;
        Kept::pin(files, |file| origin.pin(file).is_ok())
    };
    let none = kept(&mut moving);
    let handle = open(&mut moving);
    assert!(!front(&mut moving).give_up(&root, &covered, none), "it was opened meanwhile");
    let one = kept(&mut moving);
    moving.world.sure(Ask::Release { ino, handle });
    assert!(moving.world.origin.is_pinned(ino));
    assert!(front(&mut moving).give_up(&root, &covered, one));
    assert!(!moving.world.origin.is_pinned(ino), "it was closed meanwhile");

    let handle = open(&mut moving);
    let one = kept(&mut moving);
    assert!(front(&mut moving).give_up(&root, &covered, one));
    assert!(moving.world.origin.is_pinned(ino) && !moving.world.origin.is_pinned(closed));
    let again = kept(&mut moving);
    assert!(front(&mut moving).give_up(&root, &covered, again));
    assert!(moving.world.origin.is_pinned(ino), "it is kept already");
    moving.world.sure(Ask::Release { ino, handle });
    assert!(!moving.world.origin.is_pinned(ino));
}
