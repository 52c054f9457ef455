//! The end of a server: how long it may take, and what may not make it longer.

use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, Server, SlowDisk, image};
use rustix::process::Signal;

const MIB: u64 = 1 << 20;

/// A server that has been asked to end, with a write for an origin that hangs; the origin. `None` if nbdkit is not there.
fn stuck(scratch: &Scratch) -> Option<(Server, SlowDisk)> {
    let disk = SlowDisk::start(scratch, &image(scratch, 8 * MIB), 0)?;
    let launch = Launch::before(scratch, &disk.uri).redo_at(scratch.join("redo"));
    let patient = ["--origin-timeout", "1d", "--drain-timeout", "100ms", "-D", "1h"];
    let server = launch.with(&patient).start();
    disk.hang();
    server.client().write(0, &stamped(1), true).expect("the cache takes it");
    server.terminate();
    Some((server, disk))
}

#[test]
fn whoever_watches_the_end_does_not_make_it_longer() {
    let scratch = Scratch::new();
    let Some((mut server, _disk)) = stuck(&scratch) else { return };
    eventually("the server ends although it is asked all the time", PATIENCE, || {
        let _ = ureq::get(format!("http://{}/status", server.admin)).call();
        server.has_ended()
    });
    assert_eq!(server.wait(), 12);
    assert!(server.log().contains("a disk does not answer"), "{}", server.log());
}

/// > A second SIGTERM or SIGINT stops at once.
#[test]
fn a_second_signal_ends_a_server_that_waits_for_its_disks() {
    let scratch = Scratch::new();
    let Some((mut server, _disk)) = stuck(&scratch) else { return };
    eventually("the server ends", PATIENCE, || {
        signal(server.id(), Signal::TERM);
        server.has_ended()
    });
    assert_eq!(server.wait(), 12);
    assert!(server.log().contains("stopped at once"), "{}", server.log());
}
