//! Over pairs of sockets, with a client of rustls' own.

use super::*;
use crate::tls::{Identity, ServerFiles, authorities, provider};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned, SupportedProtocolVersion};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;

#[path = "../../../destage/tests/e2e/harness/certificates.rs"]
mod certificates;

use certificates::Certificates;

type Client = StreamOwned<ClientConnection, UnixStream>;

/// Both ends of a connection; the server's says `WouldBlock`.
fn pair() -> (TlsStream<UnixStream>, Client) {
    pair_by(rustls::ALL_VERSIONS)
}

/// The same, where the client knows these versions.
fn pair_by(versions: &[&'static SupportedProtocolVersion]) -> (TlsStream<UnixStream>, Client) {
    let folder = tempfile::tempdir().unwrap();
    let made = Certificates::make(folder.path().to_owned());
    let file = |name: &str| PathBuf::from(made.file(name));
    let identity = Identity { certificate: file("server.pem"), key: file("server.key") };
    let config = ServerFiles { identity, client_ca: None }.config().unwrap();
    let config_of_client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(authorities(&file("ca.pem")).unwrap())
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config_of_client), name).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    (TlsStream::new(ours, Some(&config)).unwrap(), StreamOwned::new(client, theirs))
}

/// A stream that gives one byte at a time, as one does whose client sends records of no use without an end.
struct Dribble(UnixStream);

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(&mut buffer[..1])
    }
}

impl Write for Dribble {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Waits for what a stream that says `WouldBlock` does.
fn patiently<T>(mut what: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match what() {
            Err(error) if is_for_now(&error) => thread::yield_now(),
            done => return done,
        }
    }
}

/// A server and a client that have agreed.
fn agreed() -> (TlsStream<UnixStream>, Client) {
    agreed_by(rustls::ALL_VERSIONS)
}

/// The same, where the client knows these versions.
fn agreed_by(versions: &[&'static SupportedProtocolVersion]) -> (TlsStream<UnixStream>, Client) {
    let (mut server, mut client) = pair_by(versions);
    let client = thread::spawn(move || {
        client.write_all(b"hello").unwrap();
        client
    });
    let mut buffer = [0; 64];
    assert!(server.is_handshaking() && server.is_encrypted());
    assert_eq!(patiently(|| server.read(&mut buffer)).unwrap(), 5);
    assert!(!server.is_handshaking() && &buffer[..5] == b"hello");
    patiently(|| server.flush()).unwrap();
    (server, client.join().unwrap())
}

#[test]
fn megabytes_arrive_in_both_directions_and_so_does_the_end() {
    const BYTES: usize = 8 << 20;
    let (mut server, client) = agreed();
    let sent: Vec<u8> = (0..BYTES).map(|at| (at * 7 / 5) as u8).collect();
    let expected = sent.clone();
    let client = thread::spawn(move || {
        let (mut tls, stream) = client.into_parts();
        let mut back = stream.try_clone().unwrap();
        // Sends everything before it takes anything in.
        let mut encrypted = Vec::new();
        for piece in sent.chunks(16 << 10) {
            tls.writer().write_all(piece).unwrap();
            while tls.wants_write() {
                tls.write_tls(&mut encrypted).unwrap();
            }
        }
        let sender = thread::spawn(move || back.write_all(&encrypted).unwrap());
        let mut client = StreamOwned::new(tls, stream);
        let mut received = vec![0; BYTES];
        client.read_exact(&mut received).unwrap();
        sender.join().unwrap();
        assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "the end is told");
        received
    });
    let mut received = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while received.len() < BYTES {
        let count = patiently(|| server.read_all(&mut buffer)).unwrap();
        received.extend_from_slice(&buffer[..count]);
        let mut at = 0;
        while at < count {
            at += patiently(|| server.write(&buffer[at..count])).unwrap();
        }
    }
    patiently(|| server.flush()).unwrap();
    assert!(server.is_flushed());
    server.say_end();
    // The end leaves at once only where the socket has room for it.
    patiently(|| server.flush()).unwrap();
    drop(server);
    assert!(received == expected && client.join().unwrap() == expected);
}

#[test]
fn what_does_not_leave_at_once_leaves_when_the_owner_says_so_and_not_by_reading() {
    let (mut server, mut client) = agreed();
    let mut written = 0;
    while let Ok(count) = server.write(&[1; 4 << 10]) {
        written += count;
    }
    assert!(!server.is_flushed());
    let before = drain(&mut client);
    assert!(before < written);
    assert_eq!(server.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.say_end();
    assert_eq!(drain(&mut client), 0);
    server.flush().unwrap();
    assert!(server.is_flushed());
    assert_eq!(before + drain(&mut client), written);
}

/// What the client takes in until there is no more for now.
fn drain(client: &mut Client) -> usize {
    client.sock.set_nonblocking(true).unwrap();
    let mut count = 0;
    let mut buffer = [0; 4 << 10];
    while let Ok(more @ 1..) = client.read(&mut buffer) {
        count += more;
    }
    count
}

#[test]
fn an_owner_has_a_turn_however_much_comes_that_is_not_for_it() {
    let (server, mut client) = pair();
    let TlsStream { stream, tls, .. } = server;
    let mut server = TlsStream { stream: Dribble(stream), tls, first: None, holds: false };
    let client = thread::spawn(move || {
        client.write_all(b"hello").unwrap();
        client
    });
    let (mut buffer, mut turns) = ([0; 64], 0);
    let count = patiently(|| {
        let read = server.read(&mut buffer);
        turns +=
            i32::from(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted));
        read
    });
    assert_eq!(count.unwrap(), 5);
    // Some hundred bytes at the least.
    assert!(turns > 10, "{turns}");
    client.join().unwrap();
}

#[test]
fn what_was_held_back_does_not_leave_because_the_clients_tls_fails() {
    let (mut server, mut client) = agreed();
    while server.write(&[1; 4 << 10]).is_ok() {}
    assert!(!server.is_flushed());
    drain(&mut client);
    client.sock.set_nonblocking(false).unwrap();
    client.sock.write_all(&[23, 3, 3, 0, 4, 1, 2, 3, 4]).unwrap();
    let failed = patiently(|| server.read(&mut [0; 16])).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::InvalidData);
    assert_eq!(drain(&mut client), 0);
}

#[test]
fn a_failure_behind_bytes_that_were_read_comes_again() {
    let (server, mut client) = agreed();
    let TlsStream { stream, tls, first, .. } = server;
    let mut server = TlsStream { stream: Dribble(stream), tls, first, holds: false };
    client.write_all(b"PING").unwrap();
    client.sock.write_all(&[23, 3, 3, 0, 4, 1, 2, 3, 4]).unwrap();
    let mut buffer = [0; 64];
    assert_eq!(patiently(|| server.read_all(&mut buffer)).unwrap(), 4);
    for _ in 0..2 {
        let failed = patiently(|| server.read_all(&mut buffer)).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidData);
    }
}

#[test]
fn a_reply_that_the_keys_do_not_last_for_ends_the_connection_and_is_not_dropped() {
    let (mut server, mut client) = agreed_by(&[&rustls::version::TLS12]);
    server.tls.as_mut().unwrap().records_left = RECORDS_AT_ONCE + 1;
    for _ in 0..2 {
        assert_eq!(server.write(b"+OK\r\n").unwrap(), 5);
    }
    assert_eq!(server.write(b"+OK\r\n").unwrap_err().kind(), ErrorKind::Other);
    assert_eq!(drain(&mut client), 10);
    let (mut server, _client) = agreed_by(&[&rustls::version::TLS13]);
    server.tls.as_mut().unwrap().records_left = 0;
    assert_eq!(server.write(b"+OK\r\n").unwrap(), 5);
}

#[test]
fn a_client_that_speaks_in_the_clear_is_told_so_in_the_clear() {
    let (mut server, client) = pair();
    let (_, mut stream) = client.into_parts();
    stream.write_all(b"PING\r\n").unwrap();
    let error = patiently(|| server.read(&mut [0; 16])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(server.spoke_in_the_clear());
    server.answer_in_the_clear(b"-ERR no\r\n");
    drop(server);
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "-ERR no\r\n");
}

#[test]
fn without_a_configuration_nothing_is_encrypted() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut server = TlsStream::new(ours, None).unwrap();
    assert!(!server.is_encrypted() && !server.is_handshaking() && server.is_flushed());
    theirs.write_all(b"PING\r\n").unwrap();
    let mut buffer = [0; 16];
    assert_eq!(server.read_all(&mut buffer).unwrap(), 6);
    assert!(!server.spoke_in_the_clear());
    server.write_all(b"+PONG\r\n").unwrap();
    assert_eq!(theirs.read(&mut buffer).unwrap(), 7);
}
