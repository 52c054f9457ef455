//! A code says the same whatever subcommand ends with it; `docs/STOPPING.md` has the table.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, shop};
use std::fs::File;
use std::process::{Command, Stdio};

/// The exit code, and what is said on standard error.
#[track_caller]
fn ends(arguments: &[&str], stdout: Stdio) -> (i32, String) {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("DESTAGE_PASSWORD").stdin(Stdio::null()).stdout(stdout);
    let output = command.output().expect("the binary starts");
    let code = output.status.code().expect("no signal ends it");
    (code, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[track_caller]
fn ends_with(code: i32, arguments: &[&str], part: &str) {
    let (ended, said) = ends(arguments, Stdio::null());
    assert_eq!(ended, code, "{arguments:?}: {said}");
    assert!(said.contains(part), "{arguments:?}: {said}");
}

/// Each way to ask a running server for something.
const ASKING: [&[&str]; 8] = [
    &["status"],
    &["policy"],
    &["flush"],
    &["drain"],
    &["parked", "list"],
    &["parked", "skip", "7"],
    &["block", "drain"],
    &["block", "grow"],
];

#[test]
fn a_server_that_is_away_is_told_from_one_that_refuses() {
    for command in ASKING {
        ends_with(16, &[command, &["--admin", "127.0.0.1:1"][..]].concat(), "admin port");
    }
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).with(&["--password", "hush"]).start();
    let admin = server.admin.to_string();
    // Without the password no command is taken; a report is.
    for command in &ASKING[1..] {
        ends_with(20, &[command, &["--admin", &admin][..]].concat(), "password");
    }
    let with = |command: &'static [&'static str]| {
        [command, &["--admin", admin.as_str(), "--password", "hush"][..]].concat()
    };
    ends_with(20, &with(&["parked", "skip", "7"]), "is not parked");
    ends_with(2, &with(&["policy", "sideways"]), "sideways");
    // What takes too long is neither.
    ends_with(0, &with(&["pause"]), "");
    let mut client = server.client();
    client.call(&["AUTH", "hush"]).ok();
    assert!(!client.run("HINCRBY products:1 stock 1").is_error());
    ends_with(19, &with(&["drain", "--timeout", "200ms"]), "goes on");
    // A port at which something else answers is no server's.
    let other = Launch::example(&scratch.folder("other")).start();
    let listen = other.listen.to_string();
    ends_with(16, &["status", "--admin", &listen], "");
}

#[test]
fn a_result_that_cannot_be_written_is_no_wrong_flag() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    let (admin, data) = (server.admin.to_string(), launch.data().display().to_string());
    for command in [
        &["status", "--admin", &admin][..],
        &["parked", "list", "--admin", &admin],
        &["schema", "--origin", &database.url()],
        &["journal", "inspect", "--data", &data],
        &["journal", "export", "--data", &data],
        &["sim", "figure"],
        &["sim", "generate", "ycsb-a", "--requests", "1000"],
    ] {
        // `export` prints what there is.
        server.client().run("HINCRBY products:1 stock 1").int();
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let (code, said) = ends(command, full.into());
        assert_eq!(code, 22, "{command:?}: {said}");
        assert!(said.contains("failed to write"), "{command:?}: {said}");
    }
    server.terminate(PATIENCE).says(0, &[]);
}

#[test]
fn what_is_missing_is_told_by_its_kind() {
    let scratch = Scratch::new();
    let absent = scratch.join("absent").display().to_string();
    ends_with(2, &["journal", "check", "--data", &absent], "--data");
    ends_with(2, &["schema", "--origin", &format!("sqlite:{absent}")], "absent");
    ends_with(10, &["schema", "--origin", "postgres://u:hush@127.0.0.1:1/db"], "127.0.0.1:1");
    ends_with(13, &["block", "inspect", "--cache", &absent], "absent");
    ends_with(17, &["sim", "run", "--trace", &absent, "--ram", "1M"], "absent");
}
