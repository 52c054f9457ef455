//! What other users and programs of the machine, web pages and texts from elsewhere cannot bring about.

use crate::harness::{Launch, PATIENCE, Scratch};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// The example, used once, stopped.
fn stopped(scratch: &Scratch) -> Launch {
    let launch = Launch::example(scratch);
    launch.start().terminate(PATIENCE).says(0, &[]);
    launch
}

fn fifo(at: &Path) {
    let made = Command::new("mkfifo").arg(at).status().expect("mkfifo runs");
    assert!(made.success());
}

#[test]
fn a_file_of_the_data_folder_is_not_written_through_a_link() {
    for name in ["owner", "origin", "journal/lock"] {
        let scratch = Scratch::new();
        let launch = stopped(&scratch);
        let victim = scratch.join("victim");
        std::fs::write(&victim, "kept").expect("it can be written");
        let at = launch.data().join(name);
        std::fs::remove_file(&at).expect("it is there");
        symlink(&victim, &at).expect("it can be linked");
        launch.refused().says(13, &[]);
        assert_eq!(std::fs::read_to_string(&victim).expect("it is there"), "kept", "{name}");
    }
}

#[test]
fn a_fifo_in_the_data_folder_does_not_hold_up_the_start() {
    for name in ["owner", "origin", "journal/lock"] {
        let scratch = Scratch::new();
        let launch = stopped(&scratch);
        let at = launch.data().join(name);
        std::fs::remove_file(&at).expect("it is there");
        fifo(&at);
        launch.refused().says(13, &["no plain file"]);
    }
}

#[test]
fn a_data_folder_that_others_may_write_in_is_refused() {
    let scratch = Scratch::new();
    let launch = stopped(&scratch);
    for mode in [0o777, 0o770, 0o1777] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(launch.data(), mode).expect("it is ours");
        launch.refused().says(13, &["is not safe", "chmod go-w"]);
    }
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(launch.data(), mode).expect("it is ours");
    launch.start();
}

#[test]
fn arguments_of_a_command_forge_no_line_of_the_log() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let forged = "x\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2J";
    server.post("invalidate", &[forged]);
    let log = server.log();
    assert!(log.contains(r"x\n2026-01-01"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
    assert!(!log.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z ERROR")), "{log}");
}

/// The status line of an answer.
fn asked(server: &crate::harness::Server, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(server.admin).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_admin_port_answers_no_page_under_another_name() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--admin-host", "metrics.example,b"]).start();
    let port = server.admin.port();
    for path in ["/", "/status", "/metrics", "/healthz", "/readyz"] {
        for host in ["evil.example", &format!("evil.example:{port}"), "127.0.0.1.evil.example"] {
            assert!(asked(&server, path, host).contains(" 421 "), "{path} {host}");
        }
        for host in ["127.0.0.1", &format!("localhost:{port}"), "[::1]", "METRICS.example:1", "b"] {
            assert!(asked(&server, path, host).contains(" 200 "), "{path} {host}");
        }
    }
}

#[test]
fn the_command_of_run_gets_no_password() {
    let scratch = Scratch::new();
    let run = "env | grep -c 'secret-of-the-test' >&2; exit 6";
    let mut command = Command::new(crate::harness::server::binary());
    command.args(["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--run", run, "--data"]);
    command.arg(scratch.join("data"));
    // Empty is none: the example.
    command.env("DESTAGE_PASSWORD", "secret-of-the-test").env("DESTAGE_ORIGIN", "");
    let done = command.output().expect("it runs");
    let log = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(6), "{log}");
    assert!(log.lines().any(|line| line == "0"), "{log}");
}
