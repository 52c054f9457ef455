//! Servers that say what a test wants them to say.

use super::*;
use crate::nbd::wire::{
    self, ChunkHeader, OptionHeader, OptionReplyHeader, SimpleReply, chunk, handshake, info,
    option, option_reply,
};
use std::os::unix::net::UnixListener;

type Script = dyn Fn(&mut UnixStream) + Sync;

/// Runs a client against a script that begins with an accepted connection.
fn with_server(
    script: impl FnOnce(&mut UnixStream) + Send,
    options: ClientOptions,
    test: impl FnOnce(Result<Client, ClientError>),
) {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            script(&mut stream);
        });
        test(Client::connect(&unix_address("nbd", &socket, ""), &options));
    });
}

fn take(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn greet(stream: &mut UnixStream, flags: u16) {
    let magic = [wire::GREETING, wire::OPTION].map(u64::to_be_bytes).concat();
    stream.write_all(&[magic.as_slice(), &flags.to_be_bytes()].concat()).unwrap();
    take(stream, 4);
}

/// Takes one option, which must be this one, and gives these answers.
fn answer(stream: &mut UnixStream, expected: u32, answers: &[(u32, &[u8])]) {
    let header = take(stream, OptionHeader::SIZE);
    let header = OptionHeader::decode(header.first_chunk().unwrap()).unwrap();
    assert_eq!(header.option, expected);
    take(stream, header.len as usize);
    for &(kind, data) in answers {
        let header = OptionReplyHeader { option: expected, kind, len: data.len() as u32 };
        stream.write_all(&[&header.encode(), data].concat()).unwrap();
    }
}

/// Everything until requests come: an export of 64 KiB.
fn open(stream: &mut UnixStream, flags: u16) {
    greet(stream, handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    answer(stream, option::STRUCTURED_REPLY, &[(option_reply::ACK, b"")]);
    let context = [&7_u32.to_be_bytes(), wire::ALLOCATION.as_bytes()].concat();
    let context = [(option_reply::META_CONTEXT, &context[..]), (option_reply::ACK, b"")];
    answer(stream, option::SET_META_CONTEXT, &context);
    let size = 65_536_u64.to_be_bytes();
    let export = [&info::EXPORT.to_be_bytes(), size.as_slice(), &flags.to_be_bytes()].concat();
    answer(stream, option::GO, &[(option_reply::INFO, &export), (option_reply::ACK, b"")]);
}

fn next_request(stream: &mut UnixStream) -> RequestHeader {
    let header = take(stream, RequestHeader::SIZE);
    let header = RequestHeader::decode(header.first_chunk().unwrap()).unwrap();
    if header.command == command::WRITE {
        take(stream, header.len as usize);
    }
    header
}

fn chunk_of(cookie: u64, kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let header = ChunkHeader { flags, kind, cookie, len: payload.len() as u32 };
    [&header.encode(), payload].concat()
}

fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    [&offset.to_be_bytes(), bytes].concat()
}

fn hole(offset: u64, len: u32) -> Vec<u8> {
    data(offset, &len.to_be_bytes())
}

/// What comes of a read of 1,024 bytes at 512 if the reply is made of these chunks.
fn read_of(chunks: Vec<(u16, Vec<u8>)>) -> Result<Vec<u8>, ClientError> {
    let mut result = None;
    let script = |stream: &mut UnixStream| {
        open(stream, transmission::HAS_FLAGS);
        let cookie = next_request(stream).cookie;
        let last = chunk_of(cookie, chunk::NONE, chunk::FLAG_DONE, b"");
        let chunks = chunks.iter().map(|(kind, payload)| chunk_of(cookie, *kind, 0, payload));
        let reply: Vec<u8> = chunks.chain([last]).flatten().collect();
        // At once: told nonsense, the client closes.
        stream.write_all(&reply).unwrap();
        // The client leaves, or has closed because it was told nonsense.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    with_server(script, options(None), |client| {
        let mut bytes = vec![1; 1024];
        let read = client.unwrap().read(512, &mut bytes);
        result = Some(read.map(|()| bytes));
    });
    result.unwrap()
}

#[test]
fn chunks_are_put_together_in_any_order() {
    let read = read_of(vec![
        (chunk::OFFSET_DATA, data(1280, &[3; 256])),
        (chunk::OFFSET_HOLE, hole(768, 512)),
        (chunk::OFFSET_DATA, data(512, &[2; 256])),
    ]);
    assert_eq!(read.unwrap(), [vec![2; 256], vec![0; 512], vec![3; 256]].concat());
}

#[test]
fn a_reply_that_is_not_what_was_asked_ends_the_connection() {
    let replies = [
        vec![],
        vec![(chunk::OFFSET_DATA, data(512, &[2; 1023]))],
        vec![(chunk::OFFSET_DATA, data(512, &[2; 1025]))],
        vec![(chunk::OFFSET_DATA, data(511, &[2; 1024]))],
        vec![(chunk::OFFSET_DATA, data(u64::MAX, &[2; 1024]))],
        vec![
            (chunk::OFFSET_DATA, data(512, &[2; 600])),
            (chunk::OFFSET_DATA, data(1111, &[2; 425])),
        ],
        vec![(chunk::OFFSET_DATA, data(512, &[2; 512])), (chunk::OFFSET_HOLE, hole(512, 512))],
        vec![(chunk::OFFSET_HOLE, hole(512, 0))],
        vec![(chunk::OFFSET_HOLE, hole(512, u32::MAX))],
        vec![(chunk::OFFSET_DATA, vec![0; 8])],
        vec![(chunk::NONE, vec![0; 4])],
        vec![(77, vec![])],
        vec![(chunk::ERROR, vec![0; 3])],
    ];
    for (case, chunks) in replies.into_iter().enumerate() {
        let read = read_of(chunks);
        assert!(matches!(read, Err(ClientError::Lost { .. })), "{case}: {read:?}");
    }
}

#[test]
fn an_error_among_the_chunks_fails_the_read_with_its_words() {
    let error = [&errno::EIO.to_be_bytes(), [0, 4].as_slice(), b"dust"].concat();
    let at = [error.as_slice(), &700_u64.to_be_bytes()].concat();
    for (kind, payload) in [(chunk::ERROR, error), (chunk::ERROR_OFFSET, at)] {
        let chunks = vec![(chunk::OFFSET_DATA, data(512, &[2; 100])), (kind, payload)];
        let message = read_of(chunks).unwrap_err().to_string();
        assert!(message.contains("input/output error (dust)"), "{message}");
    }
}

#[test]
fn a_connection_that_breaks_is_told_from_an_error() {
    let script = |stream: &mut UnixStream| {
        open(stream, transmission::HAS_FLAGS);
        next_request(stream);
    };
    with_server(script, options(None), |client| {
        let client = client.unwrap();
        assert!(client.is_connected());
        let error = client.write(0, &[7; 10], false).unwrap_err();
        assert!(matches!(error, ClientError::Lost { .. }), "{error}");
        assert!(!client.is_connected());
        let again = client.write(0, &[7; 10], false).unwrap_err();
        assert!(matches!(again, ClientError::Lost { .. }), "{again}");
    });
}

#[test]
fn a_server_that_falls_silent_is_given_up() {
    let script = |stream: &mut UnixStream| {
        open(stream, transmission::HAS_FLAGS);
        next_request(stream);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let short = ClientOptions { timeout: Duration::from_millis(300), tls: None };
    with_server(script, short, |client| {
        // On a loaded machine even the opening may take too long: lost all the same.
        let Ok(client) = client else { return };
        let error = client.read(0, &mut [0; 10]).unwrap_err();
        assert!(matches!(&error, ClientError::Lost { .. }), "{error}");
    });
}

#[test]
fn old_servers_are_served_by_name_alone() {
    let script = |stream: &mut UnixStream| {
        greet(stream, handshake::FIXED_NEWSTYLE);
        answer(stream, option::STRUCTURED_REPLY, &[(option_reply::ERR_UNSUP, b"")]);
        answer(stream, option::GO, &[(option_reply::ERR_UNSUP, b"no idea")]);
        answer(stream, option::EXPORT_NAME, &[]);
        let flags = transmission::HAS_FLAGS | transmission::SEND_FLUSH;
        let reply = [&65_536_u64.to_be_bytes(), flags.to_be_bytes().as_slice(), &[0; 124]].concat();
        stream.write_all(&reply).unwrap();
        let read = next_request(stream);
        let reply = SimpleReply { error: 0, cookie: read.cookie };
        stream.write_all(&[&reply.encode(), [9; 100].as_slice()].concat()).unwrap();
        // Zeros are written and FUA is a flush.
        for expected in [command::WRITE, command::FLUSH] {
            let request = next_request(stream);
            assert_eq!((request.command, request.flags), (expected, 0));
            let reply = SimpleReply { error: 0, cookie: request.cookie };
            stream.write_all(&reply.encode()).unwrap();
        }
        assert_eq!(next_request(stream).command, command::DISC);
    };
    with_server(script, options(None), |client| {
        let client = client.unwrap();
        assert_eq!(client.size(), 65_536);
        let mut bytes = [0; 100];
        client.read(7, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 100]);
        client.zero(0, 512, true, true).unwrap();
        client.trim(0, 512, false).unwrap();
    });
}

#[test]
fn each_call_becomes_its_request() {
    let fua = command_flag::FUA;
    let expected = [
        (command::WRITE, 0, 512, 100),
        (command::WRITE, fua, 512, 100),
        (command::WRITE_ZEROES, 0, 0, 65_536),
        (command::WRITE_ZEROES, fua | command_flag::NO_HOLE, 7, 9),
        (command::TRIM, fua, 7, 9),
        (command::FLUSH, 0, 0, 0),
    ];
    let script = |stream: &mut UnixStream| {
        open(stream, !transmission::READ_ONLY);
        for expected in expected {
            let request = next_request(stream);
            let found = (request.command, request.flags, request.offset, request.len);
            assert_eq!(found, expected);
            let reply = SimpleReply { error: 0, cookie: request.cookie };
            stream.write_all(&reply.encode()).unwrap();
        }
        assert_eq!(next_request(stream).command, command::DISC);
    };
    with_server(script, options(None), |client| {
        let client = client.unwrap();
        client.write(512, &[7; 100], false).unwrap();
        client.write(512, &[7; 100], true).unwrap();
        client.zero(0, 65_536, true, false).unwrap();
        client.zero(7, 9, false, true).unwrap();
        client.trim(7, 9, true).unwrap();
        client.flush().unwrap();
    });
}

#[test]
fn a_server_without_flush_promises_nothing() {
    let script = |stream: &mut UnixStream| {
        open(stream, transmission::HAS_FLAGS);
        let _ = stream.read_to_end(&mut Vec::new());
    };
    with_server(script, options(None), |client| {
        let client = client.unwrap();
        assert!(matches!(client.flush(), Err(ClientError::Invalid(_))));
        assert!(matches!(client.write(0, &[7], true), Err(ClientError::Invalid(_))));
    });
}

#[test]
fn what_is_no_server_for_us_is_refused() {
    let scripts: [(&str, &Script); 5] = [
        ("no NBD server", &|stream| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap()),
        ("fixed newstyle", &|stream| {
            let magic = [wire::GREETING, 0x0000_4202_8186_1253].map(u64::to_be_bytes).concat();
            stream.write_all(&[magic, vec![0; 136]].concat()).unwrap();
        }),
        ("makes no sense", &|stream| {
            greet(stream, handshake::FIXED_NEWSTYLE);
            stream.write_all(&[0x55; 64]).unwrap();
        }),
        ("does not say the size", &|stream| {
            greet(stream, handshake::FIXED_NEWSTYLE);
            answer(stream, option::STRUCTURED_REPLY, &[(option_reply::ACK, b"")]);
            answer(stream, option::SET_META_CONTEXT, &[(option_reply::ERR_UNSUP, b"")]);
            answer(stream, option::GO, &[(option_reply::ACK, b"")]);
        }),
        ("impossible block sizes", &|stream| {
            greet(stream, handshake::FIXED_NEWSTYLE);
            answer(stream, option::STRUCTURED_REPLY, &[(option_reply::ACK, b"")]);
            answer(stream, option::SET_META_CONTEXT, &[(option_reply::ERR_UNSUP, b"")]);
            let export = [[0; 10].as_slice(), &[0, 1]].concat();
            let sizes = [[0, 3].as_slice(), &[0; 12]].concat();
            let info = option_reply::INFO;
            let answers = [(info, &*export), (info, &*sizes), (option_reply::ACK, b"".as_slice())];
            answer(stream, option::GO, &answers);
        }),
    ];
    for (expected, script) in scripts {
        let until_left = |stream: &mut UnixStream| {
            script(stream);
            let _ = stream.read_to_end(&mut Vec::new());
        };
        with_server(until_left, options(None), |client| {
            let error = client.unwrap_err();
            assert!(matches!(error, ClientError::Refused { .. }), "{error:?}");
            assert!(error.to_string().contains(expected), "{error}");
        });
    }
}

/// What comes of asking where 4,096 bytes at 512 are sparse if the reply is made of these chunks.
fn allocation_of(chunks: Vec<(u16, Vec<u8>)>) -> Result<Vec<(u64, bool)>, ClientError> {
    let mut result = None;
    let script = |stream: &mut UnixStream| {
        open(stream, transmission::HAS_FLAGS);
        let request = next_request(stream);
        assert_eq!((request.command, request.len), (command::BLOCK_STATUS, 4_096));
        let last = chunk_of(request.cookie, chunk::NONE, chunk::FLAG_DONE, b"");
        let chunks = chunks.iter().map(|(kind, data)| chunk_of(request.cookie, *kind, 0, data));
        stream.write_all(&chunks.chain([last]).flatten().collect::<Vec<u8>>()).unwrap();
        // The client leaves, or has closed because it was told nonsense.
        let _ = stream.read_to_end(&mut Vec::new());
    };
    with_server(script, options(None), |client| {
        let runs = client.unwrap().allocation(512, 4_096);
        result = Some(runs.map(|runs| runs.iter().map(|run| (run.len, run.is_hole)).collect()));
    });
    result.unwrap()
}

fn status(context: u32, parts: &[(u32, u32)]) -> (u16, Vec<u8>) {
    let parts = parts.iter().flat_map(|&(len, flags)| [len, flags]);
    let words = [context].into_iter().chain(parts);
    (chunk::BLOCK_STATUS, words.flat_map(u32::to_be_bytes).collect())
}

#[test]
fn a_server_tells_where_it_is_sparse_and_what_makes_no_sense_is_no_hole() {
    let runs = |parts: &[(u32, u32)]| allocation_of(vec![status(7, parts)]).unwrap();
    assert_eq!(runs(&[(512, 3), (1024, 0)]), [(512, true), (1024, false)], "the rest later");
    assert_eq!(
        runs(&[(512, 1), (512, 2), (9_999, 3)]),
        [(512, false), (512, false), (3_072, true)]
    );
    for nonsense in [&[][..], &[(0, 3)], &[(4_096, 3), (512, 3)]] {
        assert_eq!(runs(nonsense), [(4_096, false)], "{nonsense:?}");
    }
    assert_eq!(allocation_of(Vec::new()).unwrap(), [(4_096, false)], "it says nothing");
    let refused = allocation_of(vec![(chunk::ERROR, vec![0, 0, 0, 22, 0, 0])]);
    assert!(matches!(refused, Err(ClientError::Server { .. })), "{refused:?}");
    for chunks in
        [vec![status(8, &[(512, 3)])], vec![status(7, &[(512, 3)]), status(7, &[(512, 3)])]]
    {
        let lost = allocation_of(chunks);
        assert!(matches!(lost, Err(ClientError::Lost { .. })), "{lost:?}");
    }
}
