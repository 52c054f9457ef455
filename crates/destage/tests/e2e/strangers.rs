//! What other users and programs of the machine cannot bring about.

use crate::harness::{
    Client, Launch, PATIENCE, Reply, Scratch, Server, eventually, millis, seconds,
};
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

/// Strangers that take all places, one of which says nothing, one half of something, and one asks and takes in no answer.
fn strangers(launch: &Launch) -> (Server, Vec<Client>) {
    let server = launch.start();
    let mut strangers: Vec<Client> = (0..3).map(|_| server.client()).collect();
    strangers[1].send_raw(b"*2\r\n$4\r\nAUTH\r\n$100\r\nhalf").expect("it is taken");
    let _ = strangers[2].send_raw(&b"PING\r\n".repeat(300));
    (server, strangers)
}

fn is_let_in(server: &Server) -> Option<Client> {
    let mut client = server.client();
    client.patience(seconds(5));
    matches!(client.try_call(&["AUTH", "right"]), Ok(Reply::Status(_))).then_some(client)
}

#[test]
fn who_does_not_send_the_password_keeps_nobody_out() {
    let scratch = Scratch::new();
    let launch = Launch::example(&scratch).with(&["--password", "right", "--max-clients", "3"]);
    // As long as they may take, nobody else is let in.
    let (server, held) = strangers(&launch);
    std::thread::sleep(seconds(3));
    assert!(is_let_in(&server).is_none());
    drop((server, held));
    let (server, mut strangers) = strangers(&launch.with(&["--handshake-timeout", "1s"]));
    let mut inside = None;
    eventually("there is a place", PATIENCE, || {
        inside = is_let_in(&server);
        inside.is_some()
    });
    let said = strangers[0].receive().expect("it is told");
    assert!(said.error().contains("--handshake-timeout"), "{said:?}");
    assert!(strangers[0].receive().is_err() && strangers[1].receive().is_ok());
    // Who knows it stays, also where it says so no more, and all the others are gone.
    let mut inside = inside.expect("it was let in");
    assert!(!inside.run("RESET").is_error());
    std::thread::sleep(millis(1_500));
    inside.call(&["AUTH", "right"]).ok();
    assert_eq!(server.status()["clients"]["connected"], 1);
}

#[test]
fn where_there_is_no_password_a_silent_client_stays() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--handshake-timeout", "100ms"]).start();
    let mut silent = server.client();
    std::thread::sleep(seconds(1));
    assert_eq!(silent.run("PING").text(), "PONG");
}
