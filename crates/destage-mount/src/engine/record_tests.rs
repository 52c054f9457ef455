use super::*;
use proptest::prelude::*;

fn stat(ino: Ino) -> Stat {
    let moment = |seconds| Moment { seconds, nanos: 5 };
    Stat {
        ino,
        kind: Kind::File,
        mode: 0o4751,
        nlink: 2,
        uid: 7,
        gid: 8,
        rdev: 0,
        size: 10,
        blocks: 8,
        atime: moment(-1),
        mtime: moment(2),
        ctime: moment(3),
    }
}

fn all() -> Vec<Record> {
    let name = || Name::from(&b"n\xff"[..]);
    let base = Base::of(&stat(9));
    let key = Key { ino: 9, handle: [1, 0, 0, 0, 9][..].into() };
    vec![
        Record::Begin { mount: [3; 16], epoch: 4, wall: Moment { seconds: 5, nanos: 6 } },
        Record::File { key, kind: Kind::Dir },
        Record::Data { ino: 9, offset: 3, bytes: b"bytes"[..].into() },
        Record::Zero { ino: 9, offset: 3, len: 4 },
        Record::Size { ino: 9, size: 1 },
        Record::Meta { stat: stat(9), base: None },
        Record::Meta { stat: stat(9), base: Some(base) },
        Record::Xattr { ino: 9, name: name(), value: None },
        Record::Xattr { ino: 9, name: name(), value: Some(Box::default()) },
        Record::Names(NameChange::Create {
            dir: 2,
            name: name(),
            ino: 9,
            staged: 1,
            make: Make::Link(b"to"[..].into()),
        }),
        Record::Names(NameChange::Link { dir: 2, name: name(), ino: 9 }),
        Record::Names(NameChange::Unlink { dir: 2, name: name(), ino: 9 }),
        Record::Names(NameChange::RmDir { dir: 2, name: name(), ino: 9 }),
        Record::Names(NameChange::Rename {
            dir: 2,
            name: name(),
            to_dir: 3,
            to_name: name(),
            ino: 9,
            replaced: Some(8),
        }),
        Record::Intent { upto: 5, files: vec![9], absorbed: vec![life(8), life(7)] },
        Record::Ckpt { upto: 5, bases: vec![(9, base)], absorbed: vec![life(8)] },
        Record::Part { upto: 5, bases: vec![(9, base)], absorbed: vec![life(8)] },
        Record::Conflict { number: 1, ino: 9, reason: "why".into() },
        Record::Cover { ino: 9, root: [1, 2][..].into() },
        Record::Judged { upto: 5, left: vec![(9, base)], others: vec![8], rest: vec![7] },
        Record::Home { dir: [1, 2][..].into(), home: [1][..].into() },
    ]
}

fn life(ino: Ino) -> Life {
    Life { ino, from: Lsn(3), to: Lsn(5) }
}

#[test]
fn files_left_out_are_read_as_earlier_versions_wrote_them() {
    let numbers = |kind, before: &[u8]| {
        let mut record = vec![kind, (before.len() + 20) as u8, 0, 0, 0];
        record.extend_from_slice(before);
        record.extend_from_slice(&[2, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        record
    };
    let whole = |ino| Life { ino, from: Lsn::ZERO, to: UNKNOWN_END };
    let absorbed = vec![whole(8), whole(7)];
    let none_else = [5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let intent = Record::Intent { upto: 5, files: vec![], absorbed: absorbed.clone() };
    assert_eq!(decode(&numbers(13, &none_else)), Ok(vec![intent]));
    let checkpoint = Record::Ckpt { upto: 5, bases: vec![], absorbed };
    assert_eq!(decode(&numbers(14, &none_else)), Ok(vec![checkpoint]));
}

#[test]
fn every_record_reads_back_as_it_was_written() {
    let mut bytes = Vec::new();
    encode(&all(), &mut bytes);
    assert_eq!(decode(&bytes), Ok(all()));
}

#[test]
fn a_record_of_a_later_version_is_told_from_a_broken_one() {
    assert_eq!(decode(&[200, 1, 0, 0, 0, 7]), Err(Unreadable::Unknown(200)));
    assert_eq!(decode(&[DATA, 1, 0, 0, 0, 7]), Err(Unreadable::Broken));
    assert_eq!(decode(&[DATA, 9, 0, 0, 0, 7]), Err(Unreadable::Broken));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn a_group_cut_anywhere_is_refused_or_shorter(at in 0..900_usize) {
        let mut bytes = Vec::new();
        encode(&all(), &mut bytes);
        let cut = &bytes[..at.min(bytes.len())];
        if let Ok(records) = decode(cut) {
            prop_assert_eq!(&records[..], &all()[..records.len()]);
        }
    }
}

#[test]
fn the_documented_group_is_these_bytes() {
    let key = Key { ino: 9, handle: [1, 0, 0, 0, 0x2a][..].into() };
    let name = Name::from(&b"n"[..]);
    let group = [
        Record::File { key, kind: Kind::File },
        Record::Names(NameChange::Unlink { dir: 2, name, ino: 9 }),
    ];
    let mut bytes = Vec::new();
    encode(&group, &mut bytes);
    let shown: String = bytes
        .chunks(16)
        .enumerate()
        .map(|(line, chunk)| {
            let hex: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{:02x}  {}\n", line * 16, hex.join(" "))
        })
        .collect();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FORMAT.md"));
    assert!(page.unwrap().contains(&shown), "docs/FORMAT.md shows other bytes than\n{shown}");
}

#[test]
fn the_bytes_of_every_record_stay_what_they_are() {
    let mut bytes = Vec::new();
    encode(&all(), &mut bytes);
    let hex: String = bytes
        .chunks(32)
        .map(|chunk| chunk.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n")
        .collect();
    assert_eq!(hex, include_str!("record_golden.txt"), "journals of this version hold other bytes");
}

proptest! {
    /// A group with a valid checksum may hold anything: it is refused, or can be taken up.
    #[test]
    fn no_group_that_is_read_stops_a_start(picks in proptest::collection::vec((0..18_usize, 0..4_u64, any::<u64>()), 1..12)) {
        let mut records = Vec::new();
        for (pick, ino, far) in picks {
            records.push(match all().swap_remove(pick) {
                Record::File { kind, .. } => {
                    let key = Key { ino, handle: ino.to_le_bytes().into() };
                    Record::File { key, kind }
                }
                Record::Data { bytes, .. } => Record::Data { ino, offset: far, bytes },
                Record::Zero { .. } => Record::Zero { ino, offset: far, len: far },
                Record::Size { .. } => Record::Size { ino, size: far },
                other => other,
            });
        }
        let mut bytes = Vec::new();
        encode(&records, &mut bytes);
        if let Ok(read) = read_group(&bytes) {
            let root = Key { ino: 1, handle: [1][..].into() };
            let mut tree = crate::engine::tree::Tree::new(root);
            tree.apply(Lsn(1), &read);
            tree.plan(Lsn(1), Lsn(1));
        }
    }
}

#[test]
fn a_group_that_names_what_it_does_not_introduce_is_refused() {
    let far = Record::Data { ino: 9, offset: u64::MAX - 2, bytes: b"bytes"[..].into() };
    let key = Key { ino: 9, handle: [9][..].into() };
    let file = Record::File { key, kind: Kind::File };
    for records in [vec![Record::Size { ino: 9, size: 1 }], vec![file, far]] {
        let mut bytes = Vec::new();
        encode(&records, &mut bytes);
        assert_eq!(read_group(&bytes), Err(Unreadable::Broken));
    }
}
