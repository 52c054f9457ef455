//! The end of a server: how long it may take, and what may not make it longer.

use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, Server, SlowDisk, image, text};
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

/// > `detach` destages everything, gives the origin back and ends the server.
#[test]
fn a_detach_is_told_once_the_origin_is_given_back_and_not_before() {
    let scratch = Scratch::new();
    let Some(disk) = SlowDisk::start(&scratch, &image(&scratch, 8 * MIB), 0) else { return };
    let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
    let launch = launch.with(&["--origin-timeout", "1d", "--linger", "0"]);
    let server = launch.start();
    server.client().write(0, &stamped(1), true).expect("the cache takes it");
    server.ask(&["drain"]);
    // Nothing is left to destage, and the origin does not hear that the cache leaves it.
    disk.hang();
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| server.try_ask(&["detach"]));
        eventually("it ends", PATIENCE, || server.log().contains("shutting down"));
        server.cut();
        told.join().expect("no panic")
    });
    assert_eq!(told.status.code(), Some(16), "{}", text(&told.stderr));
    drop((server, disk));
    let _disk = SlowDisk::start(&scratch, &scratch.join("disk.img"), 0).expect("it is there");
    let mut server = launch.start();
    server.ask(&["detach"]);
    assert_eq!(server.wait(), 0);
}

#[test]
fn a_detach_of_one_volume_among_several_is_refused() {
    let scratch = Scratch::new();
    let (config, other) = (scratch.join("destage.toml"), scratch.folder("other"));
    let section = format!(
        "[volume.other]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\n",
        image(&other, 8 * MIB).display(),
        other.join("cache.img").display()
    );
    std::fs::write(&config, section).expect("the settings can be written");
    let launch = Launch::before(&scratch, &image(&scratch, 8 * MIB).display().to_string());
    let mut server = launch.with(&["--config", &config.display().to_string()]).start();
    let refused = server.try_ask(&["detach", "--volume", "other"]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("all of its volumes"), "{}", text(&refused.stderr));
    assert_eq!(server.status()["volumes"].as_array().map(Vec::len), Some(2));
    server.ask(&["detach"]);
    assert_eq!(server.wait(), 0);
}
