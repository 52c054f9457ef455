use super::*;
use crate::nbd::wire::{command, command_flag, errno};
use crate::request::{RequestError, Status};

const SIZE: u64 = 1 << 30;
const COOKIE: [u8; 8] = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];

fn talk(replies: Replies) -> Talk {
    Talk::opened(Export::new("vol", SIZE), replies, Limits::default())
}

/// A simple reply, byte by byte.
fn simple(error: u8) -> Vec<u8> {
    [&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, error], COOKIE.as_slice()].concat()
}

/// The one event, which must be a request.
fn taken(events: Vec<Event>) -> (Cookie, Request) {
    match <[Event; 1]>::try_from(events) {
        Ok([Event::Request(cookie, request)]) => (cookie, request),
        other => panic!("not one request: {other:?}"),
    }
}

/// The error of the one reply, however it is sent.
fn error_in(reply: &[u8], replies: Replies) -> u32 {
    let (at, cookie) = match replies {
        Replies::Simple => (4, 8),
        Replies::Structured => (20, 8),
    };
    assert_eq!(reply[cookie..cookie + 8], COOKIE, "{reply:?}");
    u32::from_be_bytes(*reply[at..].first_chunk().unwrap())
}

#[test]
fn each_command_becomes_its_request() {
    let fua = command_flag::FUA;
    let zero = |offset, len, fua, punch| Request::Zero { offset, len, fua, punch };
    let no_hole = command_flag::NO_HOLE;
    let huge = SIZE as u32;
    let cases = [
        (request(command::READ, 0, 1, 2), Request::Read { offset: 1, len: 2 }),
        (request(command::READ, fua, 1, 32 << 20), Request::Read { offset: 1, len: 32 << 20 }),
        (request(command::FLUSH, 0, 0, 0), Request::Flush),
        (request(command::FLUSH, fua, 0, 0), Request::Flush),
        (request(command::TRIM, 0, 0, huge), zero(0, SIZE, false, true)),
        (request(command::TRIM, fua, 512, 512), zero(512, 512, true, true)),
        (request(command::WRITE_ZEROES, 0, 0, huge), zero(0, SIZE, false, true)),
        (request(command::WRITE_ZEROES, no_hole | fua, 3, 4), zero(3, 4, true, false)),
        (request(command::CACHE, fua, 0, huge), Request::Cache { offset: 0, len: SIZE }),
    ];
    for replies in [Replies::Simple, Replies::Structured] {
        for (header, expected) in cases.clone() {
            let (_, request) = taken(talk(replies).says(&header.encode()));
            assert_eq!(request, expected);
        }
    }
}

#[test]
fn a_write_is_taken_with_its_bytes_and_answered() {
    for replies in [Replies::Simple, Replies::Structured] {
        let mut talk = talk(replies);
        let bytes = b"\x25\x60\x95\x13\0\x01\0\x01\x11\x22\x33\x44\x55\x66\x77\x88\0\0\0\0\0\0\x10\0\0\0\0\x05bytes";
        let (cookie, request) = taken(talk.says(bytes));
        let data = b"bytes".to_vec();
        assert_eq!(request, Request::Write { offset: 4096, data, fua: true });
        assert_eq!(talk.heard(), b"");
        talk.session.reply(cookie, Reply::Done);
        assert_eq!(talk.heard(), simple(0));
    }
}

#[test]
fn a_read_is_answered_with_its_bytes() {
    let header = request(command::READ, 0, 4096, 5);
    let mut plain = talk(Replies::Simple);
    let (cookie, _) = taken(plain.says(&header.encode()));
    plain.session.reply(cookie, Reply::Data(b"bytes".to_vec()));
    assert_eq!(plain.heard(), [&simple(0), b"bytes".as_slice()].concat());

    let header = request(command::READ, command_flag::DF, 4096, 5);
    let mut chunks = talk(Replies::Structured);
    let (cookie, _) = taken(chunks.says(&header.encode()));
    chunks.session.reply(cookie, Reply::Data(b"bytes".to_vec()));
    let head = [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1], COOKIE.as_slice()].concat();
    let rest = b"\0\0\0\x0d\0\0\0\0\0\0\x10\0bytes";
    assert_eq!(chunks.heard(), [&head, rest.as_slice()].concat());
}

#[test]
fn a_read_that_fails_has_no_bytes() {
    let header = request(command::READ, 0, 0, 4096);
    let mut plain = talk(Replies::Simple);
    let (cookie, _) = taken(plain.says(&header.encode()));
    plain.session.reply(cookie, Reply::Error(RequestError::Io));
    assert_eq!(plain.heard(), simple(5));

    let mut chunks = talk(Replies::Structured);
    let (cookie, _) = taken(chunks.says(&header.encode()));
    chunks.session.reply(cookie, Reply::Error(RequestError::Io));
    let head = [&[0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1], COOKIE.as_slice()].concat();
    let rest = b"\0\0\0\x1c\0\0\0\x05\0\x16input or output failed";
    assert_eq!(chunks.heard(), [&head, rest.as_slice()].concat());
}

#[test]
fn each_error_has_its_number() {
    let cases = [
        (RequestError::Io, errno::EIO),
        (RequestError::NoSpace, errno::ENOSPC),
        (RequestError::ReadOnly, errno::EPERM),
        (RequestError::Invalid, errno::EINVAL),
        (RequestError::Busy, errno::ENOMEM),
        (RequestError::Stopping, errno::ESHUTDOWN),
    ];
    for replies in [Replies::Simple, Replies::Structured] {
        for (error, number) in cases {
            let mut talk = talk(replies);
            let (cookie, _) = taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
            talk.session.reply(cookie, Reply::Error(error));
            assert_eq!(error_in(&talk.heard(), replies), number);
        }
    }
}

#[test]
fn what_makes_no_sense_is_refused_and_the_next_request_is_taken() {
    let (fua, df, fast) = (command_flag::FUA, command_flag::DF, command_flag::FAST_ZERO);
    let long = (32 << 20) + 1;
    let cases = [
        (request(command::READ, 0, 0, 0), errno::EINVAL),
        (request(command::READ, 0, 0, long), errno::EINVAL),
        (request(command::READ, 0, SIZE - 1, 2), errno::EINVAL),
        (request(command::READ, 0, u64::MAX, 2), errno::EINVAL),
        (request(command::READ, 1 << 15, 0, 1), errno::EINVAL),
        (request(command::READ, command_flag::NO_HOLE, 0, 1), errno::EINVAL),
        (request(command::TRIM, 0, 0, 0), errno::EINVAL),
        (request(command::TRIM, 0, SIZE, 1), errno::EINVAL),
        (request(command::TRIM, df, 0, 1), errno::EINVAL),
        (request(command::WRITE_ZEROES, 0, SIZE - 1, 2), errno::ENOSPC),
        (request(command::WRITE_ZEROES, 0, u64::MAX - 1, 9), errno::ENOSPC),
        (request(command::WRITE_ZEROES, 0, 0, 0), errno::EINVAL),
        (request(command::WRITE_ZEROES, fast, 0, 1), errno::EINVAL),
        (request(command::CACHE, 0, SIZE, 1), errno::EINVAL),
        (request(command::FLUSH, fua, 1, 0), errno::EINVAL),
        (request(command::FLUSH, 0, 0, 1), errno::EINVAL),
        (request(command::BLOCK_STATUS, 0, 0, 1), errno::EINVAL),
        (request(8, 0, 0, 0), errno::EINVAL),
        (request(u16::MAX, 0, 0, u32::MAX), errno::EINVAL),
    ];
    for replies in [Replies::Simple, Replies::Structured] {
        let mut talk = talk(replies);
        for (header, error) in cases {
            let reply = talk.requests(header, b"");
            assert_eq!(error_in(&reply, replies), error, "{header:?}");
        }
        taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
    }
}

#[test]
fn unfragmented_reads_need_structured_replies_and_have_an_error_of_their_own() {
    let header = request(command::READ, command_flag::DF, 0, (32 << 20) + 1);
    let mut plain = talk(Replies::Simple);
    assert_eq!(error_in(&plain.requests(header, b""), Replies::Simple), errno::EINVAL);
    let mut chunks = talk(Replies::Structured);
    let reply = chunks.requests(header, b"");
    assert_eq!(error_in(&reply, Replies::Structured), errno::EOVERFLOW);
}

#[test]
fn the_bytes_of_a_refused_write_are_skipped() {
    let long = (32 << 20) + 512;
    let cases = [
        (request(command::WRITE, 0, SIZE - 511, 512), errno::ENOSPC),
        (request(command::WRITE, 0, u64::MAX, 70_000), errno::ENOSPC),
        (request(command::WRITE, command_flag::DF, 0, 512), errno::EINVAL),
        (request(command::WRITE, 0, 0, long), errno::EINVAL),
        (request(command::WRITE, 0, 0, 0), errno::EINVAL),
    ];
    let mut talk = talk(Replies::Simple);
    for (header, error) in cases {
        // What follows looks like requests: none must be seen.
        let trap = request(command::DISC, 0, 0, 0).encode().repeat(header.len as usize / 28 + 1);
        let reply = talk.requests(header, &trap[..header.len as usize]);
        assert_eq!(error_in(&reply, Replies::Simple), error, "{header:?}");
        assert!(talk.session.bytes_held() == 0);
    }
    taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
}

#[test]
fn a_read_only_export_is_not_written() {
    let export = Export { read_only: true, ..Export::new("vol", SIZE) };
    let mut talk = Talk::opened(export, Replies::Simple, Limits::default());
    for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let payload: &[u8] = if command == command::WRITE { &[7; 512] } else { &[] };
        let reply = talk.requests(request(command, 0, SIZE, 512), payload);
        assert_eq!(error_in(&reply, Replies::Simple), errno::EPERM);
    }
    taken(talk.says(&request(command::READ, 0, 0, 1).encode()));
}

#[test]
fn the_smallest_block_size_is_insisted_on() {
    let block = BlockSizes { min: 512, preferred: 4096, max: 8192 };
    let export = Export { block, ..Export::new("vol", SIZE) };
    let mut talk = Talk::opened(export, Replies::Simple, Limits::default());
    for (offset, len) in [(1, 512), (512, 1), (512, 513), (0, 8704)] {
        let reply = talk.requests(request(command::READ, 0, offset, len), b"");
        assert_eq!(error_in(&reply, Replies::Simple), errno::EINVAL);
    }
    taken(talk.says(&request(command::READ, 0, 512, 8192).encode()));
}

#[test]
fn replies_may_come_in_any_order_even_to_cookies_used_twice() {
    let mut talk = talk(Replies::Simple);
    let headers = [request(command::READ, 0, 0, 1), request(command::READ, 0, 1, 2)];
    let events = talk.says(&headers.map(RequestHeader::encode).concat());
    let cookies: Vec<Cookie> = events
        .iter()
        .map(|event| match event {
            Event::Request(cookie, _) => *cookie,
            other => panic!("no request: {other:?}"),
        })
        .collect();
    assert_ne!(cookies[0], cookies[1]);
    talk.session.reply(cookies[1], Reply::Data(b"22".to_vec()));
    talk.session.reply(cookies[0], Reply::Data(b"1".to_vec()));
    talk.session.reply(cookies[0], Reply::Done);
    let expected = [simple(0), b"22".to_vec(), simple(0), b"1".to_vec()];
    assert_eq!(talk.heard(), expected.concat());
}

#[test]
fn a_reply_that_does_not_fit_is_an_error() {
    let cases = [
        (request(command::READ, 0, 0, 3), Reply::Data(b"four".to_vec())),
        (request(command::READ, 0, 0, 3), Reply::Done),
        (request(command::TRIM, 0, 0, 3), Reply::Data(b"one".to_vec())),
    ];
    for (header, reply) in cases {
        let mut talk = talk(Replies::Simple);
        let (cookie, _) = taken(talk.says(&header.encode()));
        talk.session.reply(cookie, reply);
        assert_eq!(talk.heard(), simple(5));
    }
}

#[test]
fn a_client_that_leaves_gets_its_replies_first() {
    let mut talk = talk(Replies::Simple);
    let (cookie, _) = taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
    let leave = [&request(command::DISC, 0, 0, 0).encode(), b"more".as_slice()].concat();
    assert_eq!(talk.says(&leave), [Event::Ended(End::Disconnected)]);
    assert!(!talk.session.is_finished() && !talk.session.wants_input());
    talk.session.reply(cookie, Reply::Done);
    assert!(!talk.session.is_finished());
    assert_eq!(talk.heard(), simple(0));
    assert!(talk.session.is_finished());
}

#[test]
fn a_wrong_magic_number_ends_the_session() {
    let mut talk = talk(Replies::Simple);
    let (cookie, _) = taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
    let events = talk.says(&[0x25; 28]);
    assert!(matches!(events[..], [Event::Ended(End::Violation(_))]));
    talk.session.reply(cookie, Reply::Done);
    assert_eq!(talk.heard(), b"");
    assert!(talk.session.is_finished());
}

#[test]
fn while_the_server_stops_what_was_taken_is_answered_and_the_rest_refused() {
    let mut talk = talk(Replies::Simple);
    let (cookie, _) = taken(talk.says(&request(command::FLUSH, 0, 0, 0).encode()));
    talk.session.stop();
    let reply = talk.requests(request(command::WRITE, 0, 0, 512), &[7; 512]);
    assert_eq!(error_in(&reply, Replies::Simple), errno::ESHUTDOWN);
    talk.session.reply(cookie, Reply::Done);
    assert_eq!(talk.heard(), simple(0));
}

/// Has opened a volume after a choice of metadata contexts, for this export.
fn with_contexts(export: &str, names: &[&str]) -> Talk {
    let mut talk =
        Talk::greeted(vec![Export::new("vol", SIZE), Export::new("other", SIZE)], TlsMode::Off);
    talk.asks(option::STRUCTURED_REPLY, b"");
    let counted = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let names: Vec<u8> = [
        (names.len() as u32).to_be_bytes().to_vec(),
        names.iter().flat_map(|name| counted(name)).collect(),
    ]
    .concat();
    talk.asks(option::SET_META_CONTEXT, &[counted(export), names].concat());
    talk.says(&an_option(option::EXPORT_NAME, b"vol"));
    talk.heard();
    talk
}

fn part(len: u64, is_hole: bool, is_dirty: bool) -> Status {
    Status { len, is_hole, is_dirty }
}

/// A chunk of the reply to a question for the status.
fn status_chunk(is_last: bool, words: &[u32]) -> Vec<u8> {
    let payload: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
    let head = [0x66, 0x8e, 0x33, 0xef, 0, u8::from(is_last), 0, 5];
    [&head, COOKIE.as_slice(), &(payload.len() as u32).to_be_bytes(), &payload].concat()
}

#[test]
fn each_context_tells_of_the_same_range_in_parts_of_its_own() {
    let parts = vec![
        part(4096, false, false),
        part(4096, false, true),
        part(8192, true, true),
        part(1 << 20, true, false),
    ];
    for (names, flags, chunks) in [
        (&["base:allocation"][..], 0, vec![status_chunk(true, &[1, 8192, 0, 90_000, 3])]),
        (&["destage:dirty"][..], 0, vec![status_chunk(true, &[2, 4096, 0, 12_288, 1, 81_808, 0])]),
        (
            &["destage:dirty", "base:allocation"][..],
            command_flag::REQ_ONE,
            vec![status_chunk(false, &[1, 8192, 0]), status_chunk(true, &[2, 4096, 0])],
        ),
    ] {
        let mut talk = with_contexts("vol", names);
        let asked = request(command::BLOCK_STATUS, flags, 77, 98_192);
        let (cookie, found) = taken(talk.says(&asked.encode()));
        assert_eq!(found, Request::Status { offset: 77, len: 98_192 });
        talk.session.reply(cookie, Reply::Status(parts.clone()));
        assert_eq!(talk.heard(), chunks.concat(), "{names:?}");
    }
}

#[test]
fn a_status_without_a_context_of_this_export_is_refused() {
    for mut talk in [
        with_contexts("other", &["base:allocation"]),
        with_contexts("vol", &[]),
        with_contexts("vol", &["qemu:dirty-bitmap:x"]),
        talk(Replies::Structured),
    ] {
        let reply = talk.requests(request(command::BLOCK_STATUS, 0, 0, 512), b"");
        assert_eq!(error_in(&reply, Replies::Structured), errno::EINVAL);
    }
    let mut talk = with_contexts("vol", &["base:allocation"]);
    for (flags, offset, len) in [(0, 0, 0), (0, SIZE, 1), (command_flag::DF, 0, 1)] {
        let reply = talk.requests(request(command::BLOCK_STATUS, flags, offset, len), b"");
        assert_eq!(error_in(&reply, Replies::Structured), errno::EINVAL);
    }
}
