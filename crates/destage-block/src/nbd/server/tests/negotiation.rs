use super::*;
use crate::nbd::wire::{info, option_reply};

const SIZE: u64 = 1 << 20;
/// Flush, FUA, trim, zeroes, cache, and many connections.
const FLAGS: [u8; 2] = [0x05, 0x6d];
/// These, and unfragmented reads.
const FLAGS_STRUCTURED: [u8; 2] = [0x05, 0xed];

fn volume() -> Export {
    Export { description: "a volume".to_owned(), ..Export::new("vol", SIZE) }
}

/// What a reply to an option must be, byte by byte.
fn reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let words = [option, kind, data.len() as u32].map(u32::to_be_bytes).concat();
    [&[0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9], words.as_slice(), data].concat()
}

/// The kind of the only reply there is.
fn kind_of(reply: &[u8]) -> u32 {
    assert_eq!(reply.len(), 20 + usize::from(reply[19]), "{reply:?}");
    u32::from_be_bytes(*reply[12..].first_chunk().unwrap())
}

fn is_violation(events: &[Event]) -> bool {
    matches!(events, [Event::Ended(End::Violation(_))])
}

fn go(name: &str, infos: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&(infos.len() as u16).to_be_bytes());
    infos.iter().for_each(|info| data.extend_from_slice(&info.to_be_bytes()));
    data
}

#[test]
fn the_greeting_offers_fixed_newstyle() {
    let mut talk = Talk::new(vec![volume()], TlsMode::Off, Limits::default());
    assert_eq!(talk.heard(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn an_export_is_opened_by_its_name() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    let events = talk.says(b"IHAVEOPT\0\0\0\x01\0\0\0\x03vol");
    assert_eq!(events, [Event::Opened(volume())]);
    assert_eq!(talk.heard(), [&[0, 0, 0, 0, 0, 0x10, 0, 0], FLAGS.as_slice()].concat());
}

#[test]
fn zeros_follow_for_those_who_do_not_leave_them_out() {
    let mut talk = Talk::new(vec![volume()], TlsMode::Off, Limits::default());
    talk.heard();
    let events = talk.says(b"\0\0\0\0IHAVEOPT\0\0\0\x01\0\0\0\0");
    assert_eq!(events, [Event::Opened(volume())], "the only export is the default");
    let expected = [&[0, 0, 0, 0, 0, 0x10, 0, 0], FLAGS.as_slice(), &[0; 124]].concat();
    assert_eq!(talk.heard(), expected);
}

#[test]
fn go_tells_what_was_asked_and_opens() {
    let mut talk = Talk::greeted(vec![Export::new("other", 1), volume()], TlsMode::Off);
    talk.asks(option::STRUCTURED_REPLY, b"");
    let infos = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
    let events = talk.says(&an_option(option::GO, &go("vol", &infos)));
    assert_eq!(events, [Event::Opened(volume())]);
    let size = [&[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], FLAGS_STRUCTURED.as_slice()].concat();
    let expected = [
        reply(7, 3, &size),
        reply(7, 3, b"\0\x01vol"),
        reply(7, 3, b"\0\x02a volume"),
        reply(7, 3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0"),
        reply(7, 1, b""),
    ];
    assert_eq!(talk.heard(), expected.concat());
}

#[test]
fn info_does_not_open() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    let size = [&[0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], FLAGS.as_slice()].concat();
    let expected = [
        reply(6, 3, &size),
        reply(6, 3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0"),
        reply(6, 1, b""),
    ];
    for _ in 0..2 {
        assert_eq!(talk.asks(option::INFO, &go("vol", &[])), expected.concat());
    }
}

#[test]
fn exports_are_listed() {
    let mut talk = Talk::greeted(vec![volume(), Export::new("", 1)], TlsMode::Off);
    let expected =
        [reply(3, 2, b"\0\0\0\x03vola volume"), reply(3, 2, b"\0\0\0\0"), reply(3, 1, b"")];
    assert_eq!(talk.asks(option::LIST, b""), expected.concat());
}

#[test]
fn a_client_may_leave() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Required);
    let events = talk.says(&an_option(option::ABORT, b""));
    assert_eq!(events, [Event::Ended(End::Disconnected)]);
    assert!(!talk.session.is_finished(), "the farewell is not sent");
    assert_eq!(talk.heard(), reply(2, 1, b""));
    assert!(talk.session.is_finished() && !talk.session.wants_input());
}

#[test]
fn read_only_and_rotational_are_told() {
    let export = Export { read_only: true, rotational: true, ..volume() };
    let mut talk = Talk::greeted(vec![export], TlsMode::Off);
    talk.says(&an_option(option::EXPORT_NAME, b"vol"));
    assert_eq!(talk.heard()[8..], [FLAGS[0], FLAGS[1] | 0x12]);
}

#[test]
fn what_cannot_be_done_is_refused_and_the_next_option_is_answered() {
    let mut talk = Talk::greeted(vec![volume(), Export::new("w", 9)], TlsMode::Off);
    let long = vec![0; (64 << 10) + 1];
    let big = [&5000_u32.to_be_bytes(), vec![b'x'; 5000].as_slice(), &[0, 0]].concat();
    let cases: &[(u32, &[u8], u32)] = &[
        (option::GO, &go("unknown", &[]), option_reply::ERR_UNKNOWN),
        (option::GO, &go("", &[]), option_reply::ERR_UNKNOWN),
        (option::INFO, b"", option_reply::ERR_INVALID),
        (option::INFO, b"\0\0\0\x09vol\0\0", option_reply::ERR_INVALID),
        (option::INFO, b"\0\0\0\x03vol\0\x01", option_reply::ERR_INVALID),
        (option::INFO, b"\0\0\0\x03vol\0\0more", option_reply::ERR_INVALID),
        (option::INFO, b"\0\0\0\x03v\0l\0\0", option_reply::ERR_INVALID),
        (option::INFO, &big, option_reply::ERR_INVALID),
        (option::LIST, b"x", option_reply::ERR_INVALID),
        (option::STARTTLS, b"", option_reply::ERR_POLICY),
        (option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID),
        (option::SET_META_CONTEXT, b"\0\0\0\x03vol\0\0\0\0", option_reply::ERR_INVALID),
        (option::EXTENDED_HEADERS, b"", option_reply::ERR_UNSUP),
        (4, b"", option_reply::ERR_UNSUP),
        (u32::MAX, b"data", option_reply::ERR_UNSUP),
        (option::LIST, &long, option_reply::ERR_TOO_BIG),
    ];
    for &(option, data, kind) in cases {
        let answer = talk.asks(option, data);
        assert_eq!(kind_of(&answer), kind, "option {option}");
        assert_eq!(answer[8..12], option.to_be_bytes());
    }
    assert_eq!(talk.asks(option::STRUCTURED_REPLY, b""), reply(8, 1, b""));
}

fn question(name: &[u8], rest: &[u8]) -> Vec<u8> {
    [&(name.len() as u32).to_be_bytes(), name, rest].concat()
}

fn queries(names: &[&str]) -> Vec<u8> {
    let one = |name: &&str| [&(name.len() as u32).to_be_bytes(), name.as_bytes()].concat();
    names.iter().flat_map(one).collect()
}

#[test]
fn metadata_contexts_are_listed_and_chosen_by_name() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    talk.asks(option::STRUCTURED_REPLY, b"");
    let ask = |names: &[&str]| {
        let count = (names.len() as u32).to_be_bytes();
        question(b"vol", &[count.as_slice(), &queries(names)].concat())
    };
    let found = |option: u32, contexts: &[&[u8]]| {
        let replies = contexts.iter().flat_map(|context| reply(option, 4, context));
        replies.chain(reply(option, 1, b"")).collect::<Vec<u8>>()
    };
    let (allocation, dirty): (&[u8], &[u8]) =
        (b"\0\0\0\x01base:allocation", b"\0\0\0\x02destage:dirty");
    let (list, set) = (option::LIST_META_CONTEXT, option::SET_META_CONTEXT);
    assert_eq!(talk.asks(list, &ask(&[])), found(list, &[allocation, dirty]));
    assert_eq!(talk.asks(list, &ask(&["base:"])), found(list, &[allocation]));
    assert_eq!(talk.asks(set, &ask(&["base:"])), found(set, &[]));
    assert_eq!(talk.asks(set, &ask(&[])), found(set, &[]));
    assert_eq!(talk.asks(set, &ask(&["qemu:dirty-bitmap:x"])), found(set, &[]));
    let both = ask(&["destage:dirty", "base:allocation"]);
    assert_eq!(talk.asks(set, &both), found(set, &[allocation, dirty]));
    for option in [list, set] {
        let unknown = talk.asks(option, &question(b"other", &[0; 4]));
        assert_eq!(kind_of(&unknown), option_reply::ERR_UNKNOWN);
        let malformed: [&[u8]; 5] = [
            b"",
            b"\0\0\0\x02\0\0\0\x02a:",
            b"\xff\xff\xff\xff",
            b"\0\0\0\0more",
            b"\0\0\0\x01\0\0\0\x01a",
        ];
        for rest in malformed {
            let answer = talk.asks(option, &question(b"vol", rest));
            assert_eq!(kind_of(&answer), option_reply::ERR_INVALID, "{rest:?}");
        }
    }
}

#[test]
fn clients_that_do_not_ask_for_block_sizes_are_not_let_down() {
    let block = BlockSizes { min: 512, preferred: 4096, max: 1 << 20 };
    let mut talk = Talk::greeted(vec![Export { block, ..volume() }], TlsMode::Off);
    let answer = talk.asks(option::GO, &go("vol", &[]));
    assert_eq!(kind_of(&answer), option_reply::ERR_BLOCK_SIZE_REQD);
    let events = talk.says(&an_option(option::GO, &go("vol", &[info::BLOCK_SIZE])));
    assert!(matches!(events[..], [Event::Opened(_)]));
}

#[test]
fn breaking_the_protocol_ends_the_session() {
    let conversations: &[&[u8]] = &[
        b"\0\0\0\x07",
        b"\0\x01\0\x03",
        b"\0\0\0\x03IHAVEOPX\0\0\0\x01\0\0\0\x03vol",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x03xyz",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01\xff",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\x01\0\x01",
        b"\0\0\0\x02IHAVEOPT\0\0\0\x03\0\0\0\0",
    ];
    for conversation in conversations {
        let mut talk = Talk::new(vec![volume()], TlsMode::Off, Limits::default());
        talk.heard();
        assert!(is_violation(&talk.says(conversation)), "{conversation:?}");
        assert!(!talk.session.wants_input() && talk.session.is_finished());
        assert_eq!(talk.session.next_event(), None);
    }
}

#[test]
fn a_client_that_only_asks_is_sent_away() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    let question = an_option(option::LIST, b"");
    for _ in 0..1024 {
        assert_eq!(talk.says(&question), []);
        talk.heard();
    }
    assert!(is_violation(&talk.says(&question)));
}

#[test]
fn options_wait_until_the_answer_to_the_last_one_is_sent() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    talk.says(&an_option(option::LIST, b"").repeat(3));
    for _ in 0..3 {
        let expected = [reply(3, 2, b"\0\0\0\x03vola volume"), reply(3, 1, b"")];
        assert_eq!(talk.heard(), expected.concat());
        assert_eq!(talk.session.next_event(), None);
    }
    assert_eq!(talk.heard(), b"");
}

#[test]
fn tls_is_insisted_on_where_it_is_required() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Required);
    for option in [option::LIST, option::GO, option::STRUCTURED_REPLY, 99] {
        assert_eq!(kind_of(&talk.asks(option, b"")), option_reply::ERR_TLS_REQD);
    }
    assert_eq!(talk.says(&an_option(option::STARTTLS, b"")), [Event::StartTls]);
    assert_eq!(talk.heard(), reply(5, 1, b""));
    talk.session.tls_started();
    assert_eq!(kind_of(&talk.asks(option::STARTTLS, b"")), option_reply::ERR_INVALID);
    assert!(talk.asks(option::LIST, b"").len() > 20);

    let mut talk = Talk::greeted(vec![volume()], TlsMode::Required);
    assert!(is_violation(&talk.says(&an_option(option::EXPORT_NAME, b"vol"))));
    let mut talk = Talk::new(vec![volume()], TlsMode::Required, Limits::default());
    talk.heard();
    assert!(is_violation(&talk.says(b"\0\0\0\0IHAVEOPT\0\0\0\x05\0\0\0\0")), "not fixed newstyle");
}

#[test]
fn what_was_agreed_in_the_clear_is_forgotten_in_tls() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Optional);
    talk.asks(option::STRUCTURED_REPLY, b"");
    assert_eq!(talk.says(&an_option(option::STARTTLS, b"")), [Event::StartTls]);
    talk.heard();
    talk.session.tls_started();
    talk.says(&an_option(option::EXPORT_NAME, b"vol"));
    assert_eq!(talk.heard()[8..], FLAGS, "as after no agreement");
}

#[test]
fn words_in_the_clear_after_the_start_of_tls_are_not_heard() {
    let injected = [an_option(option::STARTTLS, b""), an_option(option::LIST, b"")].concat();
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Optional);
    let events = talk.says(&injected);
    assert_eq!(events[0], Event::StartTls);
    assert!(is_violation(&events[1..]));
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Optional);
    talk.says(&an_option(option::STARTTLS, b""));
    assert!(is_violation(&talk.says(b"I")));
}

#[test]
fn nothing_begins_while_the_server_stops() {
    let mut talk = Talk::greeted(vec![volume()], TlsMode::Off);
    talk.session.stop();
    assert_eq!(kind_of(&talk.asks(option::GO, &go("vol", &[]))), option_reply::ERR_SHUTDOWN);
    let events = talk.says(&an_option(option::ABORT, b""));
    assert_eq!(events, [Event::Ended(End::Disconnected)]);
}
