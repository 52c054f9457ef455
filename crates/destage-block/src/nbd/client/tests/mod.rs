//! The client against the server of this crate, and against servers that behave strangely.

mod scripted;

use super::*;
use crate::nbd::server::{End, Event, Export, Tls};
use crate::nbd::testing::{Certificates, PATIENCE, Volume, serve_tcp, serve_unix};
use crate::nbd::tls::{client_config, server_config};
use crate::request::RequestError;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

const SIZE: usize = 1 << 20;

fn options(tls: Option<Arc<ClientConfig>>) -> ClientOptions {
    ClientOptions { timeout: PATIENCE, tls }
}

fn address(text: &str) -> Uri {
    text.parse().unwrap()
}

/// A client of a volume that this test holds too.
fn client_of(export: Export) -> (Client, Arc<Mutex<Volume>>) {
    let volume = Volume::new(export.size as usize);
    let uri = format!(
        "nbd://127.0.0.1:{}/{}",
        serve_tcp(export.clone(), Tls::Off, volume.clone()).0,
        export.name
    );
    (Client::connect(&address(&uri), &options(None)).unwrap(), volume)
}

fn volume_client() -> (Client, Arc<Mutex<Volume>>) {
    client_of(Export::new("vol", SIZE as u64))
}

#[test]
fn what_is_written_is_read() {
    let (client, volume) = volume_client();
    assert_eq!(client.size(), SIZE as u64);
    client.write(4000, &[7; 300_000], false).unwrap();
    client.zero(5000, 100, true, false).unwrap();
    client.trim(6000, 100, false).unwrap();
    let mut bytes = vec![1; SIZE];
    client.read(0, &mut bytes).unwrap();
    let mut expected = vec![0; SIZE];
    expected[4000..304_000].fill(7);
    expected[5000..5100].fill(0);
    expected[6000..6100].fill(0);
    assert!(bytes == expected && volume.lock().unwrap().bytes == expected);
}

#[test]
fn durability_is_asked_for() {
    let (client, volume) = volume_client();
    client.write(0, &[7; 10], true).unwrap();
    client.zero(0, 5, false, true).unwrap();
    client.trim(0, 5, true).unwrap();
    assert_eq!(volume.lock().unwrap().forced, 3);
    client.flush().unwrap();
    assert_eq!(volume.lock().unwrap().flushes, 1);
}

#[test]
fn leaving_is_said() {
    let export = Export::new("vol", SIZE as u64);
    let (port, server) = serve_tcp(export, Tls::Off, Volume::new(SIZE));
    let uri = format!("nbd://127.0.0.1:{port}/vol");
    drop(Client::connect(&address(&uri), &options(None)).unwrap());
    let last = server.join().unwrap().unwrap();
    assert_eq!(last, Some(Event::Ended(End::Disconnected)));
}

#[test]
fn many_threads_share_one_connection() {
    let (client, volume) = volume_client();
    let fragment = SIZE / 8;
    thread::scope(|scope| {
        for thread in 0..8_usize {
            let client = &client;
            scope.spawn(move || {
                for round in 0..50_u8 {
                    let offset = (thread * fragment) as u64 + u64::from(round) * 512;
                    client.write(offset, &[round + 1; 512], false).unwrap();
                    let mut bytes = [0; 512];
                    client.read(offset, &mut bytes).unwrap();
                    assert_eq!(bytes, [round + 1; 512]);
                }
            });
        }
    });
    let volume = volume.lock().unwrap();
    assert!((0..8).all(|thread| volume.bytes[thread * fragment + 49 * 512] == 50));
}

#[test]
fn requests_are_cut_to_what_the_server_takes() {
    let block = BlockSizes { min: 512, preferred: 1024, max: 4096 };
    let (client, volume) = client_of(Export { block, ..Export::new("vol", SIZE as u64) });
    assert_eq!(client.block_sizes(), block);
    client.write(512, &[7; 10_240], true).unwrap();
    assert_eq!(volume.lock().unwrap().forced, 3, "each fragment is durable");
    let mut bytes = [0; 10_752];
    client.read(0, &mut bytes).unwrap();
    assert!(bytes[..512] == [0; 512] && bytes[512..] == [7; 10_240]);
}

#[test]
fn what_the_export_does_not_take_is_refused_before_it_is_sent() {
    let block = BlockSizes { min: 512, preferred: 1024, max: 4096 };
    let (client, _volume) = client_of(Export { block, ..Export::new("vol", SIZE as u64) });
    let end = SIZE as u64;
    let cases = [
        (client.write(1, &[7; 512], false), "512"),
        (client.write(512, &[7; 511], false), "512"),
        (client.read(0, &mut [0; 100]), "512"),
        (client.read(end, &mut [0; 512]), "beyond"),
        (client.zero(u64::MAX - 511, 512, true, false), "beyond"),
        (client.trim(0, end + 512, false), "beyond"),
    ];
    for (result, expected) in cases {
        match result {
            Err(ClientError::Invalid(why)) => assert!(why.contains(expected), "{why}"),
            other => panic!("not refused: {other:?}"),
        }
    }
    let (client, _volume) = client_of(Export { read_only: true, ..Export::new("vol", end) });
    assert!(client.offers(transmission::READ_ONLY));
    assert!(matches!(client.write(0, &[7], false), Err(ClientError::Invalid(_))));
}

#[test]
fn an_error_of_the_server_leaves_the_connection_usable() {
    let (client, volume) = volume_client();
    let cases = [(RequestError::NoSpace, errno::ENOSPC), (RequestError::Io, errno::EIO)];
    for (error, number) in cases {
        volume.lock().unwrap().fails = Some(error);
        let results =
            [client.read(0, &mut [0; 512]), client.write(0, &[7; 512], false), client.flush()];
        for result in results {
            assert!(
                matches!(&result, Err(ClientError::Server { reason: Errno(found), .. }) if *found == number),
                "{result:?}"
            );
        }
    }
    let message = client.read(512, &mut [0; 7]).unwrap_err().to_string();
    assert!(message.contains("failed to read 7 bytes at 512: input/output error"), "{message}");
    volume.lock().unwrap().fails = None;
    client.write(0, &[7; 512], false).unwrap();
    assert!(client.is_connected());
}

#[test]
fn an_export_that_is_not_there_is_refused() {
    let export = Export::new("vol", SIZE as u64);
    let (port, _server) = serve_tcp(export, Tls::Off, Volume::new(SIZE));
    let error = Client::connect(&address(&format!("nbd://127.0.0.1:{port}/other")), &options(None));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("no such export") && message.contains("\"other\""), "{message}");
}

#[test]
fn nobody_there_is_told_from_a_refusal() {
    let folder = TempDir::new().unwrap();
    let uri = unix_address("nbd", &folder.path().join("nobody"), "");
    let error = Client::connect(&uri, &options(None)).unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

#[test]
fn a_stream_that_takes_little_at_a_time_is_no_obstacle() {
    let folder = TempDir::new().unwrap();
    for at_a_time in [1, 7, 1000] {
        let socket = folder.path().join(at_a_time.to_string());
        let volume = Volume::new(SIZE);
        let _server = serve_unix(&socket, at_a_time, Tls::Off, volume);
        let client = Client::connect(&unix_address("nbd", &socket, ""), &options(None)).unwrap();
        let written: Vec<u8> = (0..100_000).map(|at: u32| (at / 7) as u8).collect();
        client.write(3, &written, false).unwrap();
        let mut read = vec![0; written.len()];
        client.read(3, &mut read).unwrap();
        assert!(read == written);
    }
}

fn unix_address(scheme: &str, socket: &Path, more: &str) -> Uri {
    address(&format!("{scheme}+unix:///vol?socket={}{more}", socket.display()))
}

/// Serves one connection with TLS by a unix socket, and connects to it.
fn connect_with_tls(
    made: &Certificates,
    server: Tls,
    scheme: &str,
    more: &str,
    client: Option<Arc<ClientConfig>>,
) -> Result<(Client, Arc<Mutex<Volume>>), ClientError> {
    let socket = made.authority.with_file_name("socket");
    let _ = std::fs::remove_file(&socket);
    let volume = Volume::new(SIZE);
    let _server = serve_unix(&socket, 40_000, server, volume.clone());
    Client::connect(&unix_address(scheme, &socket, more), &options(client))
        .map(|client| (client, volume))
}

#[test]
fn everything_works_in_tls() {
    let made = Certificates::make();
    let config = server_config(&made.server, Some(&made.authority)).unwrap();
    let ours = client_config(&made.authority, Some(&made.client)).unwrap();
    for server in [Tls::Required(config.clone()), Tls::Optional(config)] {
        let name = "&tls-hostname=storage";
        let (client, volume) =
            connect_with_tls(&made, server, "nbds", name, Some(ours.clone())).unwrap();
        thread::scope(|scope| {
            for thread in 0..4_u8 {
                let client = &client;
                scope.spawn(move || {
                    let offset = u64::from(thread) * 262_144;
                    client.write(offset, &[thread + 1; 262_144], true).unwrap();
                    let mut bytes = vec![0; 262_144];
                    client.read(offset, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|&byte| byte == thread + 1));
                });
            }
        });
        assert_eq!(volume.lock().unwrap().forced, 4);
        client.flush().unwrap();
    }
}

#[test]
fn an_end_said_in_tls_is_one_for_the_server() {
    let made = Certificates::make();
    let socket = made.authority.with_file_name("socket");
    let server = Tls::Required(server_config(&made.server, None).unwrap());
    let server = serve_unix(&socket, 40_000, server, Volume::new(SIZE));
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 18]).unwrap();
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0").unwrap();
    stream.read_exact(&mut [0; 20]).unwrap();
    let config = client_config(&made.authority, None).unwrap();
    let name = "storage".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut stream).unwrap();
    }
    tls.send_close_notify();
    tls.complete_io(&mut stream).unwrap();
    // The stream stays open: the server must end all the same.
    let deadline = Instant::now() + PATIENCE;
    while !server.is_finished() {
        assert!(Instant::now() < deadline, "the end was not heard");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(server.join().unwrap().unwrap(), None);
}

#[test]
fn who_cannot_prove_a_name_is_refused() {
    let (made, strangers) = (Certificates::make(), Certificates::make());
    let open = || Tls::Required(server_config(&made.server, None).unwrap());
    let known = || Tls::Required(server_config(&made.server, Some(&made.authority)).unwrap());
    let trusting = || Some(client_config(&made.authority, None).unwrap());
    let wary = || Some(client_config(&strangers.authority, None).unwrap());
    let stranger = || Some(client_config(&made.authority, Some(&strangers.client)).unwrap());
    let right = "&tls-hostname=storage";
    assert!(connect_with_tls(&made, open(), "nbds", right, trusting()).is_ok());
    let cases = [
        connect_with_tls(&made, open(), "nbds", right, wary()),
        connect_with_tls(&made, open(), "nbds", "&tls-hostname=other", trusting()),
        connect_with_tls(&made, open(), "nbds", "", trusting()),
        connect_with_tls(&made, open(), "nbds", right, None),
        connect_with_tls(&made, Tls::Off, "nbds", right, trusting()),
    ];
    for (case, result) in cases.into_iter().enumerate() {
        assert!(matches!(result, Err(ClientError::Refused { .. })), "{case}: {result:?}");
    }
    let plain = connect_with_tls(&made, open(), "nbd", "", None).unwrap_err().to_string();
    assert!(plain.contains("nbds"), "{plain}");
    for config in [trusting(), stranger()] {
        assert!(connect_with_tls(&made, known(), "nbds", right, config).is_err());
    }
}
