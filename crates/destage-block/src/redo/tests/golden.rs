//! The store that `docs/FORMAT.md` shows is what this build writes, and what it and every later one replays.

use crate::attach::{Claim, attach, leave_evidence};
use crate::block::{BLOCK, Extent, Lba};
use crate::redo::{AtomicGroup, Content, NewStore, RedoStore, Replay, Run};
use crate::testing::SimOrigin;
use destage_core::Lsn;
use destage_testkit::SimDisk;
use std::fmt::Write;
use std::sync::Arc;

const STORE_BYTES: u64 = 64 << 10;
const ORIGIN_BYTES: u64 = 8 * BLOCK as u64;

fn uuid(first: u8) -> [u8; 16] {
    std::array::from_fn(|i| first + i as u8)
}

fn payload(_: Lba, buf: &mut [u8]) -> Result<(), crate::origin::OriginIoError> {
    buf.fill(0);
    buf[..9].copy_from_slice(b"new block");
    Ok(())
}

/// A store with a committed group that is not in place.
fn written() -> Vec<u8> {
    let disk = SimDisk::new();
    let origin = SimOrigin::new(&disk, "origin", ORIGIN_BYTES);
    let medium = SimOrigin::new(&disk, "redo", STORE_BYTES);
    let new = NewStore { uuid: uuid(0), origin_bytes: ORIGIN_BYTES, overwrite: false };
    let mut store = RedoStore::create(Arc::new(medium.clone()), &new).unwrap();
    let claim = Claim {
        cache: uuid(0x10),
        host: "host".to_owned(),
        now_ns: 1_700_000_000_000_000_000,
        take_over: false,
        known: 0,
    };
    attach(&mut store, &origin, &claim).unwrap();
    store.note_destaged(Lba(5), 0x0605_0403);
    leave_evidence(&mut store, &origin, Lsn(7)).unwrap();
    let run = |first, content| Run { extent: Extent { first: Lba(first), blocks: 1 }, content };
    let runs = vec![run(2, Content::Data), run(4, Content::Zero { punch: true })];
    // The read of what was there before is the last that succeeds.
    origin.go_away_after(2);
    store.apply(&origin, &AtomicGroup { from: Lsn(8), to: Lsn(9), runs }, &payload).unwrap_err();
    medium.bytes()
}

fn documented() -> Vec<u8> {
    let document = include_str!("../../../../../docs/FORMAT.md");
    let section = document.split("\n## Redo store\n").nth(1).expect("the section is there");
    image(section.split("```hexdump\n").nth(1).unwrap().split("```").next().unwrap())
}

fn image(shown: &str) -> Vec<u8> {
    let mut image = vec![0; STORE_BYTES as usize];
    for line in shown.lines() {
        let mut words = line.split_whitespace();
        let offset = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        for (i, byte) in words.enumerate() {
            image[offset + i] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    image
}

fn shown(image: &[u8]) -> String {
    let mut out = String::new();
    for (row, bytes) in image.chunks(16).enumerate().filter(|(_, b)| b.iter().any(|&b| b != 0)) {
        write!(out, "{:06x} ", row * 16).unwrap();
        for byte in bytes {
            write!(out, " {byte:02x}").unwrap();
        }
        out.push('\n');
    }
    out
}

#[test]
fn the_documented_store_is_what_is_written() {
    let written = written();
    assert!(written == documented(), "this build writes\n{}", shown(&written));
}

#[test]
fn the_documented_store_is_replayed() {
    check_replay(documented());
}

/// The same store as a build of version 1 wrote it.
#[test]
fn a_store_of_version_1_is_replayed_and_becomes_one_of_version_2() {
    let after = check_replay(image(include_str!("version-1.hex")));
    let versions = [after[8], after[4096 + 8]];
    assert!(versions.contains(&2), "{versions:?}");
}

fn check_replay(store: Vec<u8>) -> Vec<u8> {
    let disk = SimDisk::new();
    disk.edit("redo", |bytes| *bytes = store);
    let origin = SimOrigin::new(&disk, "origin", ORIGIN_BYTES);
    let medium = SimOrigin::new(&disk, "redo", STORE_BYTES);
    let mut store = RedoStore::open(Arc::new(medium.clone())).unwrap();
    assert_eq!(store.uuid(), uuid(0));
    assert_eq!(store.attachment().cache, uuid(0x10));
    assert_eq!(store.attachment().host, "host");
    assert!(store.attachment().attached);
    let evidence = store.read_evidence().unwrap().unwrap();
    assert_eq!((evidence.upto, &evidence.blocks[..]), (Lsn(7), &[(Lba(5), 0x0605_0403)][..]));
    let replay = store.recover(&origin, false).unwrap();
    assert_eq!(replay, Replay::Written { from: Lsn(8), to: Lsn(9), blocks: 2, foreign: 0 });
    let mut expected = vec![0; ORIGIN_BYTES as usize];
    expected[2 * BLOCK..2 * BLOCK + 9].copy_from_slice(b"new block");
    assert!(origin.bytes() == expected);
    medium.bytes()
}
