//! The example of `docs/FORMAT.md`, byte for byte.

use super::*;

/// The segment that the document shows: begun, two groups in one batch, closed.
fn example() -> Vec<u8> {
    let uuid = *b"\x00\x01\x02\x03\x04\x05\x46\x07\x88\x09\x0a\x0b\x0c\x0d\x0e\x0f";
    let catalog = b"example catalog";
    let header = SegmentHeader {
        uuid,
        number: 1,
        incarnation: 1,
        first_lsn: 1,
        first_sequence: 1,
        segment_bytes: 65_536,
        catalog_len: catalog.len() as u32,
        catalog_crc: crc32c(catalog),
    };
    let mut payload = Vec::new();
    push_record(&mut payload, 1_700_000_000_000_000_000, 0, b"first group");
    push_record(&mut payload, 1_700_000_000_000_001_000, 7, b"");
    let mut out = header.encode(catalog);
    for (sequence, first_lsn, records, durable, flags, payload) in
        [(1, 1, 0, 0, 0, &[][..]), (2, 1, 2, 0, 0, &payload), (3, 3, 0, 2, FLAG_CLOSE, &[])]
    {
        let payload_len = payload.len() as u32;
        let header = BatchHeader {
            payload_len,
            records,
            incarnation: 1,
            sequence,
            first_lsn,
            durable,
            flags,
        };
        let start = out.len();
        out.resize(start + BATCH_HEADER, 0);
        out.extend_from_slice(payload);
        header.seal(&mut out[start..], seed(&uuid));
        out.resize(start + padded(BATCH_HEADER + payload.len()), 0);
    }
    out
}

/// As the document shows bytes: an offset, then up to 16 bytes; rows of zeros are left out.
fn dump(bytes: &[u8]) -> String {
    let rows = bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|&b| b != 0));
    let rows = rows.map(|(i, row)| {
        let hex: Vec<_> = row.iter().map(|b| format!("{b:02x}")).collect();
        format!("{:06x}  {}\n", i * 16, hex.join(" "))
    });
    rows.collect()
}

#[test]
fn the_documented_example_is_what_this_build_writes() {
    let document = include_str!("../../../../docs/FORMAT.md");
    let shown = document.split("```hexdump\n").nth(1).and_then(|rest| rest.split("```").next());
    let written = dump(&example());
    assert_eq!(shown, Some(written.as_str()), "format 1 must not change; written now:\n{written}");
}

#[test]
fn the_documented_sizes_are_those_of_this_build() {
    assert_eq!((SEGMENT_HEADER, CATALOG_OFFSET, BATCH_HEADER, RECORD_HEADER), (84, 512, 56, 14));
}
