//! This server with other clients, and this client with other servers. A program that is not there is skipped with its
//! name.

use crate::nbd::client::{Client, ClientError, ClientOptions};
use crate::nbd::server::{BlockSizes, Export, Tls};
use crate::nbd::testing::{Certificates, PATIENCE, Volume, serve};
use crate::nbd::tls::{client_config, server_config};
use destage_testkit::needs::has;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SIZE: usize = 8 << 20;

/// Serves any number of connections until the tests end; returns the port.
fn server(tls: Tls, block: BlockSizes) -> (u16, Arc<Mutex<Volume>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let volume = Volume::new(SIZE);
    let served = volume.clone();
    let description = "a volume".to_owned();
    let export = Export { block, description, ..Export::new("vol", SIZE as u64) };
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, export) = (stream.unwrap(), export.clone());
            let (tls, volume) = (tls.clone(), served.clone());
            thread::spawn(move || serve(stream, export, tls, &volume));
        }
    });
    (port, volume)
}

/// What a program prints; `None` if there is no such program.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    if !has(program) {
        return None;
    }
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output().unwrap();
    let printed = [done.stdout, done.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(done.status.success(), "{program} {arguments:?}: {printed}");
    Some(printed)
}

#[test]
fn nbdinfo_describes_the_export() {
    let (port, _volume) = server(Tls::Off, BlockSizes::default());
    let uri = format!("nbd://127.0.0.1:{port}/vol");
    let Some(printed) = run("nbdinfo", &[&uri]) else { return };
    for expected in [
        "newstyle-fixed",
        "export-size: 8388608",
        "a volume",
        "can_multi_conn: true",
        "can_fua: true",
        "can_trim: true",
        "can_zero: true",
        "can_cache: true",
        "can_df: true",
        "is_read_only: false",
        "block_size_maximum: 33554432",
    ] {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    let listed = run("nbdinfo", &["--list", &format!("nbd://127.0.0.1:{port}")]).unwrap();
    assert!(listed.contains("export=\"vol\""), "{listed}");
}

#[test]
fn nbdcopy_copies_in_and_out() {
    let folder = TempDir::new().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let bytes: Vec<u8> =
        (0..SIZE).map(|at| if at % 65_536 < 9000 { 0 } else { (at / 77) as u8 }).collect();
    std::fs::write(&source, &bytes).unwrap();
    let (port, volume) = server(Tls::Off, BlockSizes::default());
    let uri = format!("nbd://127.0.0.1:{port}/vol");
    let copy = |from: &str, to: &str| run("nbdcopy", &["--connections=4", "--flush", from, to]);
    if copy(source.to_str().unwrap(), &uri).is_none() {
        return;
    }
    assert!(volume.lock().unwrap().bytes == bytes);
    assert!(volume.lock().unwrap().flushes > 0);
    copy(&uri, target.to_str().unwrap());
    assert!(std::fs::read(&target).unwrap() == bytes);
}

#[test]
fn qemu_reads_writes_trims_and_flushes() {
    for block in [BlockSizes::default(), BlockSizes { min: 512, preferred: 4096, max: 65_536 }] {
        let (port, volume) = server(Tls::Off, block);
        let uri = format!("nbd://127.0.0.1:{port}/vol");
        let commands = [
            "write -P 7 0 1M",
            "write -f -P 8 4k 512",
            "write -z -u 8k 64k",
            "discard 128k 64k",
            "read -P 7 0 4k",
            "read -P 8 4k 512",
            "read -P 0 8k 64k",
            "aio_write -P 9 2M 1M",
            "aio_write -P 10 4M 1M",
            "aio_flush",
            "read -P 9 2M 1M",
            "flush",
        ];
        let mut arguments = vec!["-f", "raw", "-t", "none"];
        commands.iter().for_each(|command| arguments.extend(["-c", command]));
        arguments.push(&uri);
        let Some(printed) = run("qemu-io", &arguments) else { return };
        assert!(!printed.contains("Pattern verification failed"), "{printed}");
        let volume = volume.lock().unwrap();
        assert!(volume.flushes > 0 && volume.forced > 0, "{volume:?}");
        assert!(volume.bytes[4 << 20..5 << 20].iter().all(|&byte| byte == 10));
    }
}

#[test]
fn qemu_converts_into_the_export_and_compares() {
    let folder = TempDir::new().unwrap();
    let source = folder.path().join("source");
    let bytes: Vec<u8> =
        (0..SIZE).map(|at| if at < SIZE / 2 { (at / 99) as u8 } else { 0 }).collect();
    std::fs::write(&source, &bytes).unwrap();
    let (port, volume) = server(Tls::Off, BlockSizes::default());
    let uri = format!("nbd://127.0.0.1:{port}/vol");
    let source = source.to_str().unwrap();
    if run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", source, &uri]).is_none() {
        return;
    }
    assert!(volume.lock().unwrap().bytes == bytes);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, &uri]);
}

#[test]
fn qemu_speaks_tls_with_the_server() {
    let made = Certificates::make();
    let folder = made.authority.parent().unwrap();
    // The names that qemu looks for.
    for (ours, theirs) in [
        (&made.authority, "ca-cert.pem"),
        (&made.client.certificate, "client-cert.pem"),
        (&made.client.key, "client-key.pem"),
    ] {
        std::fs::copy(ours, folder.join(theirs)).unwrap();
    }
    let config = server_config(&made.server, Some(&made.authority)).unwrap();
    let (port, volume) = server(Tls::Required(config), BlockSizes::default());
    let credentials = format!("tls-creds-x509,id=tls,dir={},endpoint=client", folder.display());
    let image = format!(
        "driver=nbd,server.type=inet,server.host=localhost,server.port={port},export=vol,tls-creds=tls,\
         tls-hostname=localhost"
    );
    let commands = ["-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", "-c", "flush"];
    let arguments =
        [&["--object", &credentials, "--image-opts", &image], commands.as_slice()].concat();
    let Some(printed) = run("qemu-io", &arguments) else { return };
    assert!(!printed.contains("Pattern verification failed"), "{printed}");
    assert!(volume.lock().unwrap().bytes[..1 << 20].iter().all(|&byte| byte == 7));
}

#[test]
fn fio_finds_what_it_wrote() {
    let (port, _volume) = server(Tls::Off, BlockSizes::default());
    let uri = format!("--uri=nbd://127.0.0.1:{port}/vol");
    let folder = TempDir::new().unwrap();
    // Its notes on what to verify go there.
    let notes = format!("--aux-path={}", folder.path().display());
    let job = [
        "--name=job",
        "--ioengine=nbd",
        "--rw=randrw",
        "--bsrange=512-64k",
        "--iodepth=32",
        "--size=8m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
    ];
    run("fio", &[job.as_slice(), &[&uri, &notes]].concat());
}

/// A server that ends with the test.
struct Peer(Child);

impl Peer {
    /// `None` if there is no such program.
    fn start(program: &str, arguments: &[&str]) -> Option<Self> {
        has(program).then(|| {
            let child = Command::new(program).args(arguments).stdin(Stdio::null()).spawn();
            Self(child.unwrap())
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects as soon as the server listens.
fn connect(uri: &str, options: &ClientOptions) -> Client {
    let uri = uri.parse().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Client::connect(&uri, options) {
            Err(ClientError::Connect { .. }) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            connected => return connected.unwrap(),
        }
    }
}

/// What any volume of zeros must do.
fn exercise(uri: &str, options: &ClientOptions) {
    let client = connect(uri, options);
    assert_eq!(client.size(), SIZE as u64);
    client.write(4096, &[7; 3 << 20], true).unwrap();
    client.zero(8192, 65_536, true, true).unwrap();
    client.flush().unwrap();
    let mut bytes = vec![1; SIZE];
    client.read(0, &mut bytes).unwrap();
    let mut expected = vec![0; SIZE];
    expected[4096..4096 + (3 << 20)].fill(7);
    expected[8192..8192 + 65_536].fill(0);
    assert!(bytes == expected);
    client.trim(0, SIZE as u64, false).unwrap();
    thread::scope(|scope| {
        for thread in 0..4_u64 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..20_u8 {
                    let offset = thread * (1 << 20) + u64::from(round) * 4096;
                    client.write(offset, &[round; 4096], false).unwrap();
                    let mut bytes = [0; 4096];
                    client.read(offset, &mut bytes).unwrap();
                    assert_eq!(bytes, [round; 4096]);
                }
            });
        }
    });
}

fn patient() -> ClientOptions {
    ClientOptions { timeout: PATIENCE, tls: None }
}

#[test]
fn nbdkit_serves_the_client() {
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("socket");
    let path = socket.to_str().unwrap();
    let arguments = ["--foreground", "--exit-with-parent", "--unix", path, "memory", "8M"];
    let Some(_peer) = Peer::start("nbdkit", &arguments) else { return };
    exercise(&format!("nbd+unix:///?socket={path}"), &patient());
}

#[test]
fn nbdkit_serves_the_client_in_tls() {
    let made = Certificates::make();
    let folder = made.authority.parent().unwrap();
    for (ours, theirs) in [
        (&made.authority, "ca-cert.pem"),
        (&made.server.certificate, "server-cert.pem"),
        (&made.server.key, "server-key.pem"),
    ] {
        std::fs::copy(ours, folder.join(theirs)).unwrap();
    }
    let socket = folder.join("socket");
    let path = socket.to_str().unwrap();
    let certificates = format!("--tls-certificates={}", folder.display());
    let arguments = [
        "--foreground",
        "--exit-with-parent",
        "--unix",
        path,
        "--tls=require",
        "--tls-verify-peer",
        &certificates,
        "memory",
        "8M",
    ];
    let Some(_peer) = Peer::start("nbdkit", &arguments) else { return };
    let tls = Some(client_config(&made.authority, Some(&made.client)).unwrap());
    let uri = format!("nbds+unix:///?socket={path}&tls-hostname=storage");
    exercise(&uri, &ClientOptions { tls, ..patient() });
}

#[test]
fn qemu_nbd_serves_the_client() {
    let folder = TempDir::new().unwrap();
    let (socket, image) = (folder.path().join("socket"), folder.path().join("image"));
    std::fs::write(&image, vec![0; SIZE]).unwrap();
    let (path, image) = (socket.to_str().unwrap(), image.to_str().unwrap());
    let arguments = ["--format=raw", "--persistent", "--export-name=vol", "--socket", path, image];
    let Some(_peer) = Peer::start("qemu-nbd", &arguments) else { return };
    exercise(&format!("nbd+unix:///vol?socket={path}"), &patient());
}
