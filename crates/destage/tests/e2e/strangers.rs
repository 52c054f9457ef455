//! What other users and programs of the machine cannot bring about.

use crate::harness::{Launch, PATIENCE, Scratch};
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
