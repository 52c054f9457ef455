//! `destage top` in front of both servers at once, as text and in a real terminal.

use crate::browser::artifacts;
use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, output};
use crate::terminal::Terminal;
use crate::volumes::Volumes;
use destage_block::nbd::client::{Client, ClientOptions};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// The writes a second that the list of servers shows of each.
fn writes_per_second(shown: &str) -> Vec<u64> {
    // Its title, the names of the columns, the servers.
    let rows = shown.lines().take(4).filter_map(|line| line.split_once(" normal "));
    // Behind by so many of a unit, then writes a second.
    let writes = rows.filter_map(|(_, rest)| rest.split_whitespace().nth(2));
    writes.filter_map(|writes| writes.replace(',', "").parse().ok()).collect()
}

#[test]
fn pictures_are_taken_under_load_at_two_sizes() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let volumes = Volumes::start(&scratch, &["database", "log"]);
    let top = format!("{} top --admin {},{}", binary().display(), server.admin, volumes.admin);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = server.client();
            while !stop.load(Ordering::Relaxed) {
                client.run("HINCRBY products:1 stock 1");
            }
        });
        scope.spawn(|| {
            let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
            let uri = volumes.uris[0].parse().expect("a URI");
            let client = Client::connect(&uri, &options).expect("it connects");
            for round in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                let written = client.write(round % 512 * 4096, &[round as u8; 4096], false);
                written.expect("it is written");
            }
        });
        // Whatever goes wrong, the load ends, and the test with it.
        let pictures = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for (name, size) in [("desktop", (120, 42)), ("phone", (45, 40))] {
                let mut terminal = Terminal::run(&scratch, size, &top);
                terminal.until("both servers write", |shown| {
                    let writes = writes_per_second(shown);
                    writes.len() == 2 && writes.iter().all(|&writes| writes > 0)
                });
                terminal.until("the first one's contract", |shown| shown.contains("crash would"));
                terminal.picture(&format!("top-rows-{name}"));
                terminal.press("j");
                terminal.until("the other one's volumes", |shown| shown.contains("database"));
                terminal.picture(&format!("top-volumes-{name}"));
                terminal.press("q");
                assert!(terminal.end().success(), "{}", terminal.written());
            }
        }));
        stop.store(true, Ordering::Relaxed);
        pictures.unwrap_or_else(|wrong| std::panic::resume_unwind(wrong));
    });
}

#[test]
fn a_terminal_is_left_as_it_was() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let top = format!("{} top --admin {}", binary().display(), server.admin);
    let mut terminal = Terminal::run(&scratch, (100, 40), &top);
    terminal.until("it draws", |shown| shown.contains("crash would lose"));
    terminal.press("q");
    let status = terminal.end();
    let written = terminal.written();
    assert!(status.success(), "{status}: {written}");
    // The alternate screen is left, and the cursor is back.
    assert!(written.contains("\u{1b}[?1049l") && written.contains("\u{1b}[?25h"), "{written}");
}
