//! As systemd starts it: told when clients are served, that it lives, and that it ends.

use crate::harness::server::{binary, signal};
use crate::harness::{Launch, PATIENCE, Scratch, eventually, has, shop};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};

/// Ended with its test.
struct Service(std::process::Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is told until `last` is.
fn told(socket: &UnixDatagram, last: &str) -> Vec<String> {
    let mut told = Vec::new();
    socket.set_read_timeout(Some(PATIENCE)).expect("it can be set");
    let mut buffer = [0; 4096];
    while !told.iter().any(|message: &String| message.contains(last)) {
        let length =
            socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{last}: {error}: {told:?}"));
        told.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    told
}

#[test]
fn what_systemd_shows_follows_the_mode() {
    let scratch = Scratch::new();
    let path = scratch.join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let launch = Launch::before(&scratch, &shop::sqlite(&scratch).url())
        .hearing("NOTIFY_SOCKET", path.to_str().expect("the test's folder has a plain name"));
    let server = launch.with(&["--staleness", "1s"]).start();
    told(&socket, "READY=1");
    let mut client = server.client();
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run("HSET customers:1 name Lovelace").int(), 0);
    told(&socket, "STATUS=staleness-exceeded: the oldest undecided write is older than D");
    client.run("DESTAGE RESUME").ok();
    told(&socket, "STATUS=normal: the policy is in force");
}

fn is_told_by(command: &mut Command, scratch: &Scratch) {
    let path = scratch.join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "400000");
    command.env_remove("DESTAGE_PASSWORD").stdin(Stdio::null()).stdout(Stdio::null());
    let mut service = Service(command.spawn().expect("the binary starts"));
    let first = told(&socket, "READY=1");
    assert!(first.last().is_some_and(|ready| ready.contains("STATUS=destage ready:")), "{first:?}");
    for _ in 0..3 {
        told(&socket, "WATCHDOG=1");
    }
    // A reload, or a terminal that closes: it goes on.
    signal(service.0.id(), Signal::HUP);
    for _ in 0..2 {
        told(&socket, "WATCHDOG=1");
    }
    signal(service.0.id(), Signal::TERM);
    told(&socket, "STOPPING=1");
    let mut ended = None;
    eventually("it ends", PATIENCE, || {
        ended = service.0.try_wait().expect("it is our child");
        ended.is_some()
    });
    assert!(ended.is_some_and(|status| status.success()));
}

#[test]
fn both_servers_tell_that_they_are_ready_alive_and_ending() {
    let scratch = Scratch::new();
    let mut serve = Command::new(binary());
    serve.args(["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--data"]);
    serve.arg(scratch.join("data"));
    is_told_by(&mut serve, &scratch);
    let scratch = Scratch::new();
    let disk = scratch.join("disk.img");
    std::fs::File::create(&disk).and_then(|file| file.set_len(1 << 20)).expect("a disk");
    let mut block = Command::new(binary());
    block.args(["block", "serve", "--admin", "none", "--cache-size", "64M"]);
    block.args(["--listen", &format!("unix:{}", scratch.join("nbd.sock").display())]);
    block.args(["--origin", &format!("file:{}", disk.display())]);
    block.arg("--cache").arg(scratch.join("cache.img"));
    is_told_by(&mut block, &scratch);
}

#[test]
fn a_mount_tells_that_it_is_ready_alive_and_ending() {
    if !has("fusermount3") {
        return;
    }
    let scratch = Scratch::new();
    let mut mount = Command::new(binary());
    mount.args(["mount", "--admin", "none"]);
    for folder in ["origin", "place"] {
        std::fs::create_dir(scratch.join(folder)).expect("a folder");
        mount.arg(scratch.join(folder));
    }
    is_told_by(mount.arg("--journal").arg(scratch.join("journal")), &scratch);
}
