//! `destage top` in front of both servers at once, as text and in a real terminal.

use crate::browser::artifacts;
use crate::harness::server::{binary, signal};
use crate::harness::{Launch, PATIENCE, Scratch, eventually, output};
use crate::volumes::Volumes;
use rustix::process::Signal;
use std::process::{Command, Stdio};

#[test]
fn both_front_ends_are_watched_at_once() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let volumes = Volumes::start(&scratch, &["database"]);
    let mut client = server.client();
    let load = std::thread::spawn(move || {
        for _ in 0..2_000 {
            client.run("HINCRBY products:1 stock 1");
        }
    });
    let admins = format!("{},{},127.0.0.1:1", server.admin, volumes.admin);
    for (name, width) in [("desktop", "120"), ("phone", "45")] {
        let text = output(
            Command::new(binary()).args(["top", "--once", "--admin", &admins, "--width", width]),
        );
        std::fs::create_dir_all(artifacts()).expect("a folder");
        std::fs::write(artifacts().join(format!("top-{name}.txt")), &text)
            .expect("it can be written");
        for part in
            [&server.admin.to_string()[..10], "normal", "gone", "what a crash would lose now"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= width.parse().ok(), "{text}");
    }
    load.join().expect("the load ends");
    let only = output(Command::new(binary()).args(["top", "--once", "--admin", &volumes.admin]));
    assert!(only.contains("database") && only.contains("journaled"), "{only}");
}

#[test]
fn a_terminal_is_left_as_it_was() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let record = scratch.join("typescript");
    let command =
        format!("stty rows 40 cols 100; {} top --admin {}", binary().display(), server.admin);
    let mut script = Command::new("script")
        .args(["--quiet", "--flush", "--return", "--command", &command])
        .arg(&record)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("script starts");
    let shown =
        || String::from_utf8_lossy(&std::fs::read(&record).unwrap_or_default()).into_owned();
    eventually("it draws", PATIENCE, || shown().contains("crash would lose"));
    let mut keys = script.stdin.take().expect("piped");
    std::io::Write::write_all(&mut keys, b"q").expect("it reads keys");
    let mut ended = None;
    eventually("q ends it", PATIENCE, || {
        ended = script.try_wait().expect("it is our child");
        ended.is_some()
    });
    if !ended.is_some_and(|status| status.success()) {
        signal(script.id(), Signal::KILL);
        panic!("{ended:?}: {}", shown());
    }
    // The alternate screen is left, and the cursor is back.
    assert!(shown().contains("\u{1b}[?1049l") && shown().contains("\u{1b}[?25h"), "{}", shown());
}
