//! The journal's disk is full.

use super::suspicions::{make, write};
use super::world::World;
use crate::ask::{Answered, Ask, Ino, Make};
use crate::engine::front::FrontControls;
use destage_core::Span;
use destage_engine::Drive;
use std::collections::VecDeque;

/// > A full disk of the journal holds up changes until the origin has taken older ones. It needs no help from outside.
#[test]
fn a_full_disk_of_the_journal_frees_itself_while_the_origin_takes_everything() {
    for seed in 0..20 {
        assert!(lands(seed, FrontControls::default()), "seed {seed}");
    }
    let controls = FrontControls { no_journal_room: true, ..Default::default() };
    assert!((0..20).any(|seed| !lands(seed, controls)), "the control is caught");
}

/// Whether everything comes to the origin, and leaves the journal, though its disk has no room for a further segment.
fn lands(seed: u64, controls: FrontControls) -> bool {
    let mut world = World::new(seed, controls);
    // What the journal says of a batch is small beside the batch, as it is with large segments.
    world.batch_groups_min = 32;
    world.start_anew();
    let root = world.root();
    let files = ["a", "b", "c"].map(|name| make(&mut world, root, name, Make::File));
    assert!(world.drain());
    let used = world.disk.names().into_iter().filter_map(|name| world.disk.bytes(&name));
    let used: usize = used.map(|bytes| bytes.len()).sum();
    let limit = used.max(SEGMENTS);
    assert!(limit < CHANGES * DATA, "the disk becomes full");
    world.disk.limit_bytes(Some(limit as u64));
    let mut content = vec![Vec::new(); files.len()];
    for round in 0..CHANGES {
        let (file, data) = (round % files.len(), [round as u8; DATA]);
        let ask = write(files[file], content[file].len() as u64, &data, false);
        let Some(done) = world.ask_within(ask, 2_000) else { return false };
        done.expect("it is taken");
        content[file].extend(data);
    }
    let fsync = Ask::Fsync { ino: files[0] };
    if world.ask_within(fsync, 2_000).is_none() {
        return false;
    }
    let now = world.now;
    world.front.as_mut().expect("it has started").drain(now);
    for _ in 0..5_000 {
        if !world.work() {
            world.pass(Span::from_millis(100));
        }
    }
    let front = world.front.as_ref().expect("it has started");
    let journal = front.journal().status();
    if front.undecided() > 0 || journal.segments > 1 {
        return false;
    }
    let tree = world.origin.tree();
    ["/a", "/b", "/c"].iter().zip(content).for_each(|(path, content)| {
        assert!(tree[*path].2 == content, "{path} is at the origin");
    });
    true
}

/// Files that were made and deleted again reach no origin, and each batch of them is over at once.
#[test]
fn a_full_disk_of_the_journal_frees_itself_of_files_that_were_made_and_deleted_again() {
    for seed in 0..10 {
        assert!(forgets(seed, FrontControls::default()), "seed {seed}");
    }
    let controls = FrontControls { no_journal_room: true, ..Default::default() };
    assert!((0..10).any(|seed| !forgets(seed, controls)), "the control is caught");
}

/// Whether changes go on after the disk has become full of them.
fn forgets(seed: u64, controls: FrontControls) -> bool {
    let mut world = World::new(seed, controls);
    world.batch_groups_min = 32;
    world.start_anew();
    let root = world.root();
    let now = world.now;
    world.front.as_mut().expect("it has started").pause(now);
    let used = world.disk.names().into_iter().filter_map(|name| world.disk.bytes(&name));
    let used: usize = used.map(|bytes| bytes.len()).sum();
    world.disk.limit_bytes(Some((used + 3 * SEGMENTS) as u64));
    let mut made = VecDeque::new();
    for asked in 0..3_000 {
        let Some(done) = world.ask_within(made_or_deleted(root, asked), 50) else { break };
        match done.expect("it is taken") {
            Answered::Entry(stat, _) => made.push_back(stat.ino),
            _ => {
                let ino = made.pop_front().expect("it was made");
                world.sure(Ask::Forget { ino, count: 1 });
            }
        }
    }
    let now = world.now;
    world.front.as_mut().expect("it has started").resume(now);
    world.front.as_mut().expect("it has started").drain(now);
    for _ in 0..5_000 {
        if !world.work() {
            world.pass(Span::from_millis(100));
        }
    }
    let front = world.front.as_ref().expect("it has started");
    let is_free = front.undecided() == 0 && front.journal().status().buffered_bytes == 0;
    is_free && world.ask_within(made_or_deleted(root, 30_000), 2_000).is_some()
}

fn made_or_deleted(dir: Ino, number: u64) -> Ask {
    // As many are made as are deleted then.
    let (round, at) = (number / 400, number % 400);
    let name = format!("{round} {}", at % 200).into_bytes().into();
    if at < 200 {
        Ask::Make { dir, name, make: Make::File, mode: 0o755, open: None }
    } else {
        Ask::Unlink { dir, name }
    }
}

/// Two segments.
const SEGMENTS: usize = 128 << 10;
const CHANGES: usize = 400;
/// Bytes of each.
const DATA: usize = 1_000;
