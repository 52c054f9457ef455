//! Golden bytes, round trips, and arbitrary bytes.

use super::*;
use proptest::prelude::*;

fn write(extents: Vec<Extent>, level: u64) -> (GroupHeader, Vec<u8>) {
    let header = GroupHeader { kind: GroupKind::Write, level, extents, continues: false };
    let data = (0..header.blocks()).flat_map(|i| [i as u8; BLOCK]).collect();
    (header, data)
}

fn extent(first: u64, blocks: u32) -> Extent {
    Extent { first: Lba(first), blocks }
}

fn encoded(header: &GroupHeader, data: &[u8]) -> (Vec<u8>, Vec<u32>) {
    let (mut out, mut crcs) = (Vec::new(), Vec::new());
    header.encode(data, &mut out, &mut crcs);
    (out, crcs)
}

/// The bytes of version 1, for ever.
#[test]
fn golden_bytes() {
    let (header, data) = write(vec![extent(0x0102, 1), extent(7, 1)], 0x0A0B);
    let (out, _) = encoded(&header, &data);
    let head = [
        1, 1, 0, 0, 0x0B, 0x0A, 0, 0, 0, 0, 0, 0, 2, 0, // version, kind, flags, level, count
        0x02, 0x01, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, // first extent
        7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, // second extent
        0x89, 0x41, 0xF9, 0x98, // CRC32C of 4,096 zeros
    ];
    assert_eq!(out[..head.len()], head);
    assert_eq!(out.len(), 14 + 24 + 2 * 4_100);
    assert!(out[42..42 + BLOCK].iter().all(|&b| b == 0));
    assert!(out[42 + BLOCK + 4..].iter().all(|&b| b == 1));
    let trim = GroupHeader {
        kind: GroupKind::Trim,
        level: 1,
        extents: vec![extent(9, 0x0403_0201)],
        continues: true,
    };
    let expected = [
        1, 3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1,
        0, // continued by the next group; no blocks follow
        9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4,
    ];
    assert_eq!(encoded(&trim, &[]).0, expected);
}

#[test]
fn a_block_is_found_and_checked_alone() {
    let (header, data) = write(vec![extent(5, 3), extent(100, 2)], 4);
    let (out, crcs) = encoded(&header, &data);
    for (k, &crc) in (0..5).zip(&crcs) {
        let at = stored_block_offset(2, k) as usize;
        let mut stored = out[at..at + STORED_BLOCK].to_vec();
        assert_eq!(check_stored_block(&stored, crc).unwrap(), [k as u8; BLOCK]);
        assert!(check_stored_block(&stored, crc ^ 1).is_none(), "another version's checksum");
        assert!(check_stored_block(&stored[1..], crc).is_none());
        stored[2_000] ^= 1;
        assert!(check_stored_block(&stored, crc).is_none());
    }
}

#[test]
fn each_kind_of_nonsense_is_named() {
    let (header, data) = write(vec![extent(5, 1)], 4);
    let (good, _) = encoded(&header, &data);
    let edited = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        GroupRecord::decode(&bytes).map(|_| ()).unwrap_err()
    };
    assert_eq!(edited(0, 2), RecordError::Version(2));
    assert_eq!(edited(1, 0), RecordError::Kind(0));
    assert_eq!(edited(2, 2), RecordError::Flags(2));
    assert_eq!(edited(21, 0xFF), RecordError::Extent(0), "beyond the largest offset");
    assert_eq!(edited(22, 0), RecordError::Extent(0), "no blocks");
    assert_eq!(edited(1, 4), RecordError::Extent(0), "a mark has no extents");
    assert!(matches!(edited(22, 2), RecordError::Length { .. }));
    assert!(matches!(edited(13, 200), RecordError::Length { .. }));
}

fn headers() -> impl Strategy<Value = GroupHeader> {
    let kinds = prop_oneof![
        Just(GroupKind::Write),
        Just(GroupKind::Zero),
        Just(GroupKind::Trim),
        Just(GroupKind::Mark)
    ];
    let extents = proptest::collection::vec((0..1u64 << 51, 1..4u32), 0..4);
    (kinds, any::<u64>(), extents).prop_map(|(kind, level, extents)| {
        let extents = extents.into_iter().map(|(first, blocks)| extent(first, blocks));
        let extents = if kind == GroupKind::Mark { Vec::new() } else { extents.collect() };
        GroupHeader { kind, level, extents, continues: level % 2 == 1 }
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(header in headers(), fill in any::<u8>()) {
        let blocks = if header.kind == GroupKind::Write { header.blocks() } else { 0 };
        let data = vec![fill; blocks as usize * BLOCK];
        let (out, crcs) = encoded(&header, &data);
        prop_assert_eq!(out.len() as u64, header.payload_bytes());
        let group = GroupRecord::decode(&out).unwrap();
        prop_assert_eq!(&group.header, &header);
        let found: Vec<u32> = group.blocks().map(|(crc, _)| crc).collect();
        prop_assert_eq!(&found, &crcs);
        prop_assert!(group.blocks().all(|(_, block)| block == [fill; BLOCK]));
        prop_assert!(GroupRecord::decode(&out[..out.len() - 1]).is_err());
        let mut summary = Vec::new();
        summarise(&out, &mut summary);
        prop_assert!(summary.len() < 14 + 4 * 12 + 4 * 12, "{}", summary.len());
        let bytes = out.len() as u32;
        let found = GroupSummary::decode(&summary, bytes).unwrap();
        prop_assert_eq!((found.header, found.crcs), (header, crcs));
        prop_assert!(GroupSummary::decode(&summary[..summary.len() - 1], bytes).is_err());
        prop_assert!(GroupSummary::decode(&summary, bytes + 1).is_err());
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        plausible in any::<bool>(),
    ) {
        if plausible && bytes.len() > 3 {
            let kind = 1 + bytes[1] % 4;
            bytes[..4].copy_from_slice(&[1, kind, 0, 0]);
        }
        let mut summary = Vec::new();
        summarise(&bytes, &mut summary);
        let summarised = GroupSummary::decode(&summary, bytes.len() as u32);
        match GroupRecord::decode(&bytes) {
            Ok(group) => prop_assert_eq!(group.header.payload_bytes(), bytes.len() as u64),
            Err(error) => prop_assert_eq!(summarised.clone().unwrap_err(), error),
        }
        prop_assert_eq!(GroupRecord::decode(&bytes).is_ok(), summarised.is_ok());
    }
}
