use super::*;
use crate::nbd::wire::{command, info};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

const SIZE: u64 = 1 << 20;
const LIMITS: Limits = Limits { requests_max: 3, bytes_max: 100_000 };
/// Small, so that payloads beyond it are cheap.
const PAYLOAD_MAX: u32 = 60_000;

fn exports() -> Vec<Export> {
    let block = BlockSizes { max: PAYLOAD_MAX, ..BlockSizes::default() };
    vec![Export { block, ..Export::new("vol", SIZE) }]
}

fn option_bytes() -> impl Strategy<Value = Vec<u8>> {
    let go = [b"\0\0\0\x03vol\0\x01\0".as_slice(), &[info::BLOCK_SIZE as u8]].concat();
    let data = prop_oneof![
        Just(Vec::new()),
        Just(b"vol".to_vec()),
        Just(go),
        Just(b"\0\0\0\x03vol\0\0\0\x01\0\0\0\x05base:".to_vec()),
        vec(any::<u8>(), 0..40),
        Just(vec![0; 70_000]),
    ];
    (0_u32..13, data).prop_map(|(option, data)| an_option(option, &data))
}

fn request_bytes() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![0..SIZE, Just(0), any::<u64>()];
    let len = prop_oneof![Just(0_u32), 0..5000_u32, 0..100_000_u32];
    let flags = prop_oneof![3 => Just(0_u16), 1 => 0..32_u16];
    let header = (flags, 0_u16..9, any::<u64>(), offset, len);
    header.prop_map(|(flags, command, cookie, offset, len)| {
        let header = RequestHeader { flags, command, cookie, offset, len };
        let payload = if command == command::WRITE { len as usize } else { 0 };
        [header.encode().to_vec(), vec![cookie as u8; payload]].concat()
    })
}

/// A client that mostly knows the protocol.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let flags = prop_oneof![
        8 => Just(b"\0\0\0\x03".to_vec()),
        1 => Just(b"\0\0\0\0".to_vec()),
        1 => vec(any::<u8>(), 0..8)
    ];
    let open = prop_oneof![
        1 => Just(Vec::new()),
        3 => Just(an_option(option::EXPORT_NAME, b"vol")),
        3 => Just(
            [an_option(option::STRUCTURED_REPLY, b""), an_option(option::EXPORT_NAME, b"vol")]
                .concat()
        ),
    ];
    let noise = prop_oneof![9 => Just(Vec::new()), 1 => vec(any::<u8>(), 1..60)];
    let options = prop_oneof![2 => Just(Vec::new()), 1 => vec(option_bytes(), 1..4)];
    let options = options.prop_map(|options| options.concat());
    let requests = vec(request_bytes(), 0..12).prop_map(|requests| requests.concat());
    let whole = (flags, options, open, requests, noise);
    whole.prop_map(|(flags, options, open, requests, noise)| {
        [flags, options, open, requests, noise].concat()
    })
}

/// All that a client hears and the owner sees, when the bytes come in fragments of these lengths, again and again.
fn transcript(tls: TlsMode, bytes: &[u8], fragments: &[usize]) -> (Vec<Event>, Vec<u8>) {
    let mut talk = Talk::new(exports(), tls, LIMITS);
    let mut heard = talk.heard();
    let mut events = Vec::new();
    let mut rest = bytes;
    let mut fragments = fragments.iter().cycle();
    while !rest.is_empty() && talk.session.ended.is_none() {
        let (fragment, after) = rest.split_at(rest.len().min(*fragments.next().unwrap()));
        rest = after;
        let mut fragment = fragment;
        while !fragment.is_empty() && talk.session.ended.is_none() {
            assert!(talk.session.wants_input(), "everything is answered and sent");
            let space = talk.session.space();
            let len = fragment.len().min(space.len());
            assert!(len > 0);
            space[..len].copy_from_slice(&fragment[..len]);
            talk.session.filled(len);
            fragment = &fragment[len..];
            settle(&mut talk, &mut events, &mut heard);
        }
    }
    (events, heard)
}

/// Answers and sends until nothing is left to do.
fn settle(talk: &mut Talk, events: &mut Vec<Event>, heard: &mut Vec<u8>) {
    loop {
        let event = talk.session.next_event();
        assert!(talk.session.bytes_held() <= LIMITS.bytes_max + PAYLOAD_MAX as usize);
        assert!(talk.session.requests_under_way() <= LIMITS.requests_max);
        if let Some(Event::Request(cookie, request)) = &event {
            let reply = match request {
                Request::Read { len, .. } => Reply::Data(vec![7; *len as usize]),
                _ => Reply::Done,
            };
            talk.session.reply(*cookie, reply);
        }
        if event == Some(Event::StartTls) {
            talk.session.tls_started();
        }
        let sent = talk.heard();
        if event.is_none() && sent.is_empty() {
            return;
        }
        events.extend(event);
        heard.extend(sent);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_stream_means_the_same_in_any_fragments(
        bytes in stream(), fragments in vec(prop_oneof![1_usize..40, 1_usize..9000], 1..20),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        tls in prop_oneof![Just(TlsMode::Off), Just(TlsMode::Optional), Just(TlsMode::Required)],
    ) {
        let mut bytes = bytes;
        for (index, byte) in flips {
            if !bytes.is_empty() {
                let at = index.index(bytes.len());
                bytes[at] ^= byte;
            }
        }
        let measure = transcript(tls, &bytes, &[usize::MAX]);
        // What comes behind the start of TLS counts as decrypted if it comes in a later fragment.
        if !measure.0.contains(&Event::StartTls) {
            prop_assert_eq!(transcript(tls, &bytes, &fragments), measure);
        }
    }

    #[test]
    fn noise_never_panics_nor_opens_anything(bytes in vec(any::<u8>(), 0..300)) {
        let (events, _) = transcript(TlsMode::Off, &bytes, &[7]);
        prop_assert!(events.iter().all(|event| matches!(event, Event::Ended(_))));
    }
}

#[test]
fn the_streams_of_the_test_above_reach_requests() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut requests = 0;
    for _ in 0..50 {
        let bytes = stream().new_tree(&mut runner).unwrap().current();
        let (events, _) = transcript(TlsMode::Off, &bytes, &[usize::MAX]);
        requests += events.iter().filter(|event| matches!(event, Event::Request(..))).count();
    }
    assert!(requests > 20, "{requests}");
}
