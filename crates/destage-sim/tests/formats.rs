//! Every format, by a miniature of each whose requests are known.

use destage_sim::trace::{
    BlockEvent, ColumnMap, Extent, Format, Op, Options, Request, Trace, TraceError,
};
use std::io::{Cursor, Write};

/// Microseconds, operation, device, offset, bytes.
type Expected = (u64, Op, u32, u64, u64);

fn read_with(bytes: &[u8], options: &Options) -> Result<(Format, Vec<Request>), TraceError> {
    let mut trace = Trace::from_reader(Cursor::new(bytes.to_vec()), "miniature", options)?;
    let requests = trace.by_ref().collect::<Result<_, _>>()?;
    Ok((trace.format(), requests))
}

/// Reads what is recognised as `format` without being told, and as the same when told.
fn check(format: Format, bytes: &[u8], expected: &[Expected]) {
    for told in [None, Some(format)] {
        let options = Options { format: told, ..Options::default() };
        let (found, requests) = read_with(bytes, &options).expect("the miniature is whole");
        assert_eq!(found, format);
        let found: Vec<Expected> = requests.iter().map(flat).collect();
        assert_eq!(found, expected, "{format}");
    }
}

fn flat(request: &Request) -> Expected {
    let (device, offset, bytes) = match request.extent {
        Extent::Range { device, offset, bytes } => (device, offset, bytes),
        Extent::Object { id, bytes } => (u32::MAX, id, bytes),
    };
    (request.time.0 / 1_000, request.op, device, offset, bytes)
}

use Op::{Discard, Flush, Read, Write as W};

#[test]
fn own_csv_has_named_columns_in_any_order_and_unit() {
    let text = "# a comment\n";
    let header = "op,size_sectors,offset_bytes,time_ms,disk,host,thread,latency_ns\n";
    let rows =
        "R,8,4096,0,sda,0,3,77\nwrite,1,0,1.5,sdb,1,0,\ntrim,2,512,2,sda,0,0,\nF,,,2.25,,0,0,\n";
    let expected = [
        (0, Read, 0, 4_096, 4_096),
        (1_500, W, 1, 0, 512),
        (2_000, Discard, 0, 512, 1_024),
        (2_250, Flush, 0, 0, 0),
    ];
    check(Format::Csv, format!("{header}{text}{rows}").as_bytes(), &expected);
    let (_, requests) =
        read_with(format!("{header}{rows}").as_bytes(), &Options::default()).unwrap();
    assert_eq!((requests[0].host, requests[0].thread, requests[1].host), (0, 3, 1));
}

#[test]
fn columns_of_other_texts_are_what_is_said_of_them() {
    let read = |columns: &str, text: &str| {
        let columns = columns.parse().unwrap_or_else(|error| panic!("{columns}: {error}"));
        let read = read_with(text.as_bytes(), &Options { columns, ..Options::default() });
        read.map(|(format, requests)| {
            assert_eq!(format, Format::Csv);
            requests.iter().map(flat).collect::<Vec<_>>()
        })
    };
    let header = "\"Timestamp\",Opcode,LBA,Len,Host\n";
    let rows = "10.5,\"Write\",8,4096,7\n11.5,read,16,512,7\n";
    let expected = [(0, W, 0, 4_096, 4_096), (1_000_000, Read, 0, 8_192, 512)];
    let by_name = "time_s=Timestamp,op=Opcode,offset_sectors=LBA,size_bytes=Len";
    let by_number = "time_s=1, op=2, offset_sectors=3, size_bytes=4";
    assert_eq!(read(by_name, &format!("{header}{rows}")).unwrap(), expected);
    // With and without a header that is of no use.
    for header in ["", "a,b,c,d,e\n"] {
        assert_eq!(read(by_number, &format!("{header}{rows}")).unwrap(), expected);
    }
    // Comments may come first, and a mark of the encoding.
    let marked = format!("\u{feff}{header}{rows}");
    let commented = format!("# made elsewhere\n\n{header}{rows}");
    for text in [&marked, &commented] {
        assert_eq!(read(by_name, text).unwrap(), expected);
        assert_eq!(read(by_number, text).unwrap(), expected);
    }
    // A request that is damaged is no header.
    assert!(read(by_number, "10.5,Erase,8,4096,7\n11.5,read,16,512,7\n").is_err());
    // The control: only the first line may be one.
    assert!(read(by_number, &format!("{rows}a,b,c,d,e\n")).is_err());
    let flags = read("is_write=1,offset_blocks=2,size_blocks=3,device=4", "1,2,1,a\n0,1,2,b\n");
    assert_eq!(flags.unwrap(), [(0, W, 0, 8_192, 4_096), (0, Read, 1, 4_096, 8_192)]);
    let objects = read("is_read=3,key=1,size_bytes=2", "x,10,1\ny,20,0\nx,10,1\n").unwrap();
    assert!(objects[0] == objects[2] && objects[0].3 != objects[1].3);
    assert_eq!(
        objects.iter().map(|it| (it.1, it.4)).collect::<Vec<_>>(),
        [(Read, 10), (W, 20), (Read, 10)]
    );
    let missing = read("offset_bytes=Offset,size_bytes=Len", header).unwrap_err().to_string();
    assert!(
        missing.contains("no column 'Offset', but Timestamp, Opcode, LBA, Len, Host"),
        "{missing}"
    );
}

#[test]
fn columns_that_cannot_be_are_refused() {
    for (text, reason) in [
        ("op", "is not like op=Opcode"),
        ("offset=1,size_bytes=2", "there is no 'offset': use op, is_write"),
        ("offset_bytes=,size_bytes=2", "offset_bytes has no column"),
        ("offset_bytes=1", "no column is a size"),
        ("op=1,size_bytes=2", "no column is an offset or a key"),
        ("offset_bytes=1,key=2,size_bytes=3", "of offsets or of keys"),
        ("key=1,size_bytes=2,disk=3", "keys are on no device"),
        ("time_s=1,time_ms=2,offset_bytes=3,size_bytes=4", "time_ms is said twice, or time_s"),
        ("op=1,is_write=2,offset_bytes=3,size_bytes=4", "is_write is said twice, or op"),
        ("disk=1,device=2,offset_bytes=3,size_bytes=4", "device is said twice, or disk"),
    ] {
        let error = text.parse::<ColumnMap>().expect_err(text);
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn traces_of_comma_separated_columns() {
    let msr = "128166372003061629,usr,0,Read,7014609920,24576,41286\n\
               128166372016382155,usr,1,Write,1317441536,8192,1963\n";
    let expected = [(0, Read, 0, 7_014_609_920, 24_576), (1_332_052, W, 1, 1_317_441_536, 8_192)];
    check(Format::Msr, msr.as_bytes(), &expected);

    let spc = "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214\n";
    let expected = [(0, W, 0, 303_567 * 512, 3_584), (26_214, Read, 1, 55_590 * 512, 3_072)];
    check(Format::Spc, spc.as_bytes(), &expected);

    let systor = "Timestamp,Response,IOType,LUN,Offset,Size\n\
                  1455592740.000001,0.000279,W,4,42932746240,512\n\
                  1455592740.000003,,,4,0,0\n\
                  1455592740.000101,0.000279,R,2,512,4096\n";
    let expected = [(0, W, 0, 42_932_746_240, 512), (100, Read, 1, 512, 4_096)];
    check(Format::Systor17, systor.as_bytes(), &expected);

    let alibaba = "419,W,8792731648,16384,1577808000000068\n3,R,0,4096,1577808000000168\n";
    let expected = [(0, W, 0, 8_792_731_648, 16_384), (100, Read, 1, 0, 4_096)];
    check(Format::Alibaba, alibaba.as_bytes(), &expected);

    let tencent = "1538323200,12910952,128,0,1063\n1538323201,6160447,8,1,1064\n";
    let expected =
        [(0, Read, 0, 12_910_952 * 512, 65_536), (1_000_000, W, 1, 6_160_447 * 512, 4_096)];
    check(Format::Tencent, tencent.as_bytes(), &expected);
}

#[test]
fn twitter_keys_are_objects() {
    let text = "0,key-one,7,100,2,get,0\n1,key-two,7,50,2,set,3600\n2,key-one,7,0,2,delete,0\n";
    let (format, requests) = read_with(text.as_bytes(), &Options::default()).unwrap();
    assert_eq!((format, requests.len()), (Format::Twitter, 3));
    let ids: Vec<_> = requests.iter().map(|request| flat(request).3).collect();
    assert!(ids[0] == ids[2] && ids[0] != ids[1]);
    let ops: Vec<_> = requests.iter().map(|request| (request.op, flat(request).4)).collect();
    assert_eq!(ops, [(Read, 107), (W, 57), (Discard, 7)]);
}

#[test]
fn traces_of_columns_between_blanks() {
    let disksim = "0.000000 0 3704920 8 1\n1.250000 1 3705368 16 0\n";
    let expected = [(0, Read, 0, 3_704_920 * 512, 4_096), (1_250, W, 1, 3_705_368 * 512, 8_192)];
    check(Format::Disksim, disksim.as_bytes(), &expected);

    let mqsim = "938513000 4 264719034 16 0\n938828000 3 197570570 16 1\n";
    let expected = [(0, W, 0, 264_719_034 * 512, 8_192), (315, Read, 1, 197_570_570 * 512, 8_192)];
    check(Format::Mqsim, mqsim.as_bytes(), &expected);

    let lis = "2881 16 0 0\n2897 8 0 1\n";
    let expected = [(0, Read, 0, 2_881 * 512, 8_192), (0, Read, 0, 2_897 * 512, 4_096)];
    check(Format::Lis, lis.as_bytes(), &expected);
}

#[test]
fn fio_logs_carry_times_or_waits() {
    let v3 = "fio version 3 iolog\n2 nvme add\n872 nvme open\n878 nvme write 0 16384\n\
              888 nvme read 4096 512\n891 nvme sync 0 0\n900 nvme trim 0 4096\n1000 nvme close\n";
    let expected = [
        (0, W, 0, 0, 16_384),
        (10, Read, 0, 4_096, 512),
        (13, Flush, 0, 0, 0),
        (22, Discard, 0, 0, 4_096),
    ];
    check(Format::Fio, v3.as_bytes(), &expected);
    let v2 = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n\
              /dev/sda wait 250 0\n/dev/sda datasync 0 0\n/dev/sda close\n";
    check(Format::Fio, v2.as_bytes(), &[(0, Read, 0, 0, 4_096), (250, Flush, 0, 0, 0)]);
}

#[test]
fn blkparse_gives_one_request_per_event_asked_for() {
    let text = "  8,0    3        1     0.000000000   697  Q   W 223490 + 8 [kjournald]\n\
                \x20 8,0    3        2     0.000001829   697  G   W 223490 + 8 [kjournald]\n\
                \x20 8,16   3        3     0.000500000   697  Q  RA 8 + 16 [cat]\n\
                \x20 8,0    3        4     0.000600000   697  D   W 223490 + 8 [kjournald]\n\
                \x20 8,0    3        5     0.000700000     0  C   W 223490 + 8 [0]\n\
                \x20 8,0    3        6     0.000800000     0  Q FWS [jbd2]\n\
                \x20 8,0    3        7     0.000900000     0  Q  DS 0 + 2048 [fstrim]\n\
                CPU0 (sda):\n Reads Queued:           1,        8KiB\n";
    let expected = [
        (0, W, 0, 223_490 * 512, 4_096),
        (500, Read, 1, 8 * 512, 8_192),
        (800, Flush, 0, 0, 0),
        (900, Discard, 0, 0, 1_048_576),
    ];
    check(Format::Blkparse, text.as_bytes(), &expected);
    for (event, count) in [(BlockEvent::Issued, 1), (BlockEvent::Completed, 1)] {
        let options = Options { block_event: event, ..Options::default() };
        assert_eq!(read_with(text.as_bytes(), &options).unwrap().1.len(), count);
    }
}

fn blktrace(is_little: bool, time_ns: u64, action: u32, bytes: u32, payload: &[u8]) -> Vec<u8> {
    let word = |value: u32| if is_little { value.to_le_bytes() } else { value.to_be_bytes() };
    let long = |value: u64| if is_little { value.to_le_bytes() } else { value.to_be_bytes() };
    let mut record = [word(0x6561_7407), word(1)].concat();
    record.extend([long(time_ns), long(100)].concat());
    record.extend([bytes, action, 697, 8 << 20 | 1, 3].map(word).concat());
    let length = payload.len() as u16;
    let length = if is_little { length.to_le_bytes() } else { length.to_be_bytes() };
    record.extend([[0; 2], length].concat());
    record.extend(payload);
    record
}

#[test]
fn blktrace_is_read_in_either_byte_order_with_payloads_passed_over() {
    let [queue, complete, write, discard, notify] = [1u32, 8, 1 << 17, 1 << 29, 1 << 26];
    for is_little in [true, false] {
        let records = [
            blktrace(is_little, 0, notify, 0, b"process name"),
            blktrace(is_little, 5_000, queue | write, 4_096, &[]),
            blktrace(is_little, 6_000, complete | write, 4_096, &[]),
            blktrace(is_little, 7_000, queue | 1 << 16, 512, &[1, 2, 3]),
            blktrace(is_little, 8_000, queue | write | discard, 8_192, &[]),
            blktrace(is_little, 9_000, queue | 1 << 18, 0, &[]),
        ];
        let expected = [
            (0, W, 0, 51_200, 4_096),
            (2, Read, 0, 51_200, 512),
            (3, Discard, 0, 51_200, 8_192),
            (4, Flush, 0, 0, 0),
        ];
        check(Format::Blktrace, &records.concat(), &expected);
    }
}

fn vscsi1(command: u16, bytes: u32, block: u64, time_us: u64) -> Vec<u8> {
    let mut record = [1u32, bytes, 1].map(u32::to_le_bytes).concat();
    record.extend([command, 0x100].map(u16::to_le_bytes).concat());
    record.extend([block, time_us].map(u64::to_le_bytes).concat());
    record
}

#[test]
fn vscsi_is_told_apart_by_its_version() {
    let expected = [(0, W, 0, 24 * 512, 4_096), (2, Read, 0, 40 * 512, 512)];
    let v1 =
        [vscsi1(0x2a, 4_096, 24, 12_345), vscsi1(0x28, 512, 40, 12_347), vscsi1(0, 0, 0, 12_348)];
    check(Format::Vscsi, &v1.concat(), &expected);
    let v2 = |command: u16, bytes: u32, block: u64, time_us: u64| {
        let mut record = [command, 0x200].map(u16::to_le_bytes).concat();
        record.extend([1, bytes, 1].map(u32::to_le_bytes).concat());
        record.extend([block, time_us, 55].map(u64::to_le_bytes).concat());
        record
    };
    check(
        Format::Vscsi,
        &[v2(0x2a, 4_096, 24, 12_345), v2(0x28, 512, 40, 12_347)].concat(),
        &expected,
    );
}

#[test]
fn oracle_general_gives_objects() {
    let record = |seconds: u32, id: u64, bytes: u32, next: i64| {
        let mut record = seconds.to_le_bytes().to_vec();
        record.extend(id.to_le_bytes());
        record.extend(bytes.to_le_bytes());
        record.extend(next.to_le_bytes());
        record
    };
    let bytes = [record(100, 7, 4_096, 3), record(102, 8, 10, -1)].concat();
    let expected = [(0, Read, u32::MAX, 7, 4_096), (2_000_000, Read, u32::MAX, 8, 10)];
    check(Format::OracleGeneral, &bytes, &expected);
}

#[test]
fn srt_records_follow_a_text_header() {
    let record = |time_us: u32, bytes: u32, sector: u32, device: u32, flags: u32| {
        let words = [56, 0x4_0001, 0, time_us, 1, 2, bytes, sector, device, 4, 1, flags, 0, 1];
        words.map(u32::to_be_bytes).concat()
    };
    let header = b"$$TR_IOREC-1.3 (test)\nversion = 1.3;\n\x0c".to_vec();
    let records =
        [record(174, 4_096, 1_056, 0x800_0107, 0x1b), record(200, 512, 4, 0x800_0008, 0x2)];
    let expected = [(0, Read, 1, 1_056 * 256, 4_096), (26, W, 0, 1_024, 512)];
    check(Format::Srt, &[header, records.concat()].concat(), &expected);
}

/// A protobuf field: its number and a varint.
fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn message(number: u64, body: &[u8]) -> Vec<u8> {
    [varint(number << 3 | 2), varint(body.len() as u64), body.to_vec()].concat()
}

fn number(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

fn octf_event(sid: u64, time: u64, kind: u64, body: &[u8]) -> Vec<u8> {
    let header = message(1, &[number(1, sid), number(2, time)].concat());
    let event = [header, message(kind, body)].concat();
    [varint(event.len() as u64), event].concat()
}

fn octf_io(sid: u64, time: u64, lba: u64, sectors: u64, operation: u64) -> Vec<u8> {
    octf_event(sid, time, 2, &[number(1, lba), number(2, sectors), number(5, operation)].concat())
}

/// The schema of 2020 numbers operations from 1 and gives each request an id.
fn octf_io_2020(sid: u64, time: u64, lba: u64, sectors: u64, operation: u64) -> Vec<u8> {
    let io = [number(1, lba), number(2, sectors), number(5, operation + 1), number(9, sid)];
    octf_event(sid, time, 2, &io.concat())
}

fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, &bytes[..]).expect("memory takes it");
    }
    archive.into_inner().expect("memory takes it")
}

#[test]
fn octf_archives_are_put_in_order_of_time() {
    let first = [
        octf_io(1, 5_000, 8, 8, 1),
        octf_event(2, 5_500, 3, &number(1, 1)),
        octf_io(4, 9_000, 0, 1, 2),
    ];
    let second = [octf_io_2020(3, 7_000, 16, 2, 0)];
    let files = [
        ("trace/octf.summary", b"state".to_vec()),
        ("trace/octf.trace.0", first.concat()),
        ("trace/octf.trace.1", second.concat()),
    ];
    let expected = [(0, W, 0, 4_096, 4_096), (2, Read, 0, 8_192, 1_024), (4, Discard, 0, 0, 512)];
    check(Format::Octf, &archive(&files), &expected);
    let cut = archive(&[("octf.trace.0", first.concat()[..30].to_vec())]);
    let error = read_with(&cut, &Options::default()).unwrap_err().to_string();
    assert!(
        error.contains("the file ends inside an event") && error.contains("record 3"),
        "{error}"
    );
}

#[test]
fn compression_is_seen_through() {
    let text = b"0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214\n".repeat(1_000);
    let plain = read_with(&text, &Options::default()).unwrap();
    assert_eq!(plain.1.len(), 2_000);
    let zstd = zstd::encode_all(&text[..], 3).unwrap();
    // Two frames behind one another, as parallel compressors write them.
    let (left, right) = text.split_at(25_000);
    let frames = [zstd::encode_all(left, 3).unwrap(), zstd::encode_all(right, 3).unwrap()].concat();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&text).unwrap();
    let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 6);
    xz.write_all(&text).unwrap();
    for packed in [zstd.clone(), frames, gzip.finish().unwrap(), xz.finish().unwrap()] {
        assert_eq!(read_with(&packed, &Options::default()).unwrap(), plain);
    }
    let cut = read_with(&zstd[..zstd.len() - 5], &Options::default());
    assert!(matches!(cut, Err(TraceError::Read { .. })), "{cut:?}");
}

#[test]
fn damaged_records_are_named_and_passed_over_as_far_as_allowed() {
    let text = "time_us,op,offset_bytes,size_bytes\n0,W,0,512\n1,X,0,512\n2,R,0\n3,R,0,512\n";
    let error = read_with(text.as_bytes(), &Options::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "miniature is damaged at line 3 (byte 45): 'X' is not an operation; --skip-bad N passes over N such records"
    );
    let one = Options { skip_bad_max: 1, ..Options::default() };
    let error = read_with(text.as_bytes(), &one).unwrap_err().to_string();
    assert!(error.contains("line 4 (byte 55)"), "{error}");
    let two = Options { skip_bad_max: 2, ..Options::default() };
    assert_eq!(read_with(text.as_bytes(), &two).unwrap().1.len(), 2);

    let mut records = [vscsi1(0x2a, 4_096, 24, 1), vscsi1(0x28, 512, 40, 2)].concat();
    records.extend(vscsi1(0x9_99, 512, 40, 3));
    records.extend(&vscsi1(0x28, 512, 40, 4)[..20]);
    let error = read_with(&records, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("record 3 (byte 64): command 0x999 is none of SCSI"), "{error}");
    let error = read_with(&records, &one).unwrap_err().to_string();
    assert!(error.contains("record 4 (byte 96): the file ends after 20"), "{error}");
    assert_eq!(read_with(&records, &two).unwrap().1.len(), 2);
}

#[test]
fn what_is_out_of_bounds_is_damaged() {
    let header = "time_us,op,offset_bytes,size_bytes\n";
    for (row, reason) in [
        ("0,W,0,1073741825", "more than 1073741824"),
        ("0,W,72057594037927936,1", "beyond 2^56"),
        ("0,W,0,99999999999999999999", "is not a size"),
        ("-5,W,0,512", "is not a time"),
    ] {
        let text = format!("{header}{row}\n");
        let error = read_with(text.as_bytes(), &Options::default()).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let long = format!("{header}0,W,0,{}\n1,R,0,512\n", "1".repeat(200_000));
    let skip = Options { skip_bad_max: 1, ..Options::default() };
    assert_eq!(read_with(long.as_bytes(), &skip).unwrap().1.len(), 1);
}

#[test]
fn times_that_go_back_count_as_those_before() {
    let text = "0,0,512,w,5.0\n0,0,512,w,6.0\n0,0,512,w,4.0\n0,0,512,w,5.5\n0,0,0,w,7.0\n";
    let mut trace = Trace::from_reader(Cursor::new(text), "late", &Options::default()).unwrap();
    let times: Vec<u64> =
        trace.by_ref().map(|request| request.unwrap().time.0 / 100_000_000).collect();
    assert_eq!(times, [0, 10, 10, 10]);
    let counts = trace.counts();
    assert_eq!((counts.requests, counts.late, counts.empty, counts.bad), (4, 2, 1, 0));
}

#[test]
fn what_is_no_trace_is_refused_with_the_names_of_the_formats() {
    for (bytes, beginning) in [
        (&b"hello world\n"[..], "'hello world'"),
        (&[0xff; 500], "the bytes ff ff ff ff ff ff ff ff"),
        (b"a,b,c\n", "'a,b,c'"),
        (&[b'x'; 100], &format!("'{}...'", "x".repeat(40))),
    ] {
        let error = read_with(bytes, &Options::default()).unwrap_err();
        assert!(matches!(error, TraceError::UnknownFormat { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains("oracle-general") && error.contains(beginning), "{error}");
    }
    let empty = read_with(b"", &Options::default()).unwrap_err();
    assert_eq!(empty.to_string(), "the trace miniature is empty");
    for format in [Format::Csv, Format::Vscsi, Format::Blktrace, Format::Srt, Format::Fio] {
        let options = Options { format: Some(format), ..Options::default() };
        let error =
            read_with(b"this is something else altogether, is it not?\n", &options).unwrap_err();
        assert!(matches!(error, TraceError::Format { .. }), "{error}");
    }
}
