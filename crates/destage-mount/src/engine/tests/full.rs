//! The journal's disk is full.

use super::suspicions::{make, write};
use super::world::World;
use crate::ask::{Ask, Make};
use crate::engine::front::FrontControls;
use destage_core::Span;
use destage_engine::Drive;

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

/// Two segments.
const SEGMENTS: usize = 128 << 10;
const CHANGES: usize = 400;
/// Bytes of each.
const DATA: usize = 1_000;
