//! No bytes make a reader panic, and what it gives is within its bounds.

use destage_sim::blocks::Blocks;
use destage_sim::trace::{
    DEVICES_MAX, DISCARD_BYTES_MAX, Extent, Format, OFFSET_MAX, Op, Options, Trace,
};
use proptest::prelude::*;
use std::io::Cursor;

/// Reads everything, in every format and in the one that is recognised.
fn read_all(bytes: &[u8]) {
    let formats = Format::ALL.iter().map(|&format| Some(format)).chain([None]);
    for format in formats {
        let options = Options { format, skip_bad_max: u64::MAX, ..Options::default() };
        let Ok(mut trace) = Trace::from_reader(Cursor::new(bytes.to_vec()), "any", &options) else {
            continue;
        };
        let mut blocks = Blocks::new(4_096);
        let mut found = Vec::new();
        let mut last = 0;
        while let Ok(Some(request)) = trace.next_request() {
            if let Extent::Range { device, offset, bytes } = request.extent {
                assert!(device < DEVICES_MAX && bytes <= DISCARD_BYTES_MAX);
                assert!(offset + bytes <= OFFSET_MAX);
                // The largest ones would only cost time.
                if bytes < 1 << 20 {
                    blocks.of(&request, &mut found).expect("few blocks are touched");
                    assert!(request.op == Op::Discard || found.is_empty() == (bytes == 0));
                }
            }
            assert!(request.time.0 >= last);
            last = request.time.0;
        }
    }
}

/// Beginnings that lead the readers further than chance would.
const BEGINNINGS: [&[u8]; 14] = [
    b"",
    b"fio version 2 iolog\n",
    b"fio version 3 iolog\n",
    b"$$TR_IOREC-1.3\n\x0c",
    b"\x07\x74\x61\x65",
    b"\x65\x61\x74\x07",
    b"time_us,op,offset_bytes,size_bytes\n0,W,0,512\n",
    b"128166372003061629,usr,0,Read,7014609920,24576,41286\n",
    b"  8,0 3 1 0.0 697 Q W 223490 + 8 [x]\n",
    b"\x01\0\0\0\0\x10\0\0\x01\0\0\0\x28\0\0\x01",
    b"0.0 0 3704920 8 1\n",
    b"\x28\xb5\x2f\xfd",
    b"\x1f\x8b\x08",
    b"0,key,7,100,2,get,0\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_bytes_are_read_or_refused(
        beginning in prop::sample::select(&BEGINNINGS[..]),
        rest in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        read_all(&[beginning, &rest].concat());
    }

    #[test]
    fn any_text_is_read_or_refused(
        beginning in prop::sample::select(&BEGINNINGS[..]),
        rest in "([0-9]{1,21}|[RWDFQrw]|[,. +\n]|get|read|add){0,80}",
    ) {
        read_all(&[beginning, rest.as_bytes()].concat());
    }
}
