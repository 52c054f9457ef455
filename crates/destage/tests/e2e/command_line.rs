//! The command line: subcommands before a running server, `--run`, settings files, exit codes.

use crate::harness::server::binary;
use crate::harness::{Launch, PATIENCE, Scratch, Server, output, shop};
use std::process::Command;

#[test]
fn schema_lists_what_is_reachable_and_why_the_rest_is_not() {
    let scratch = Scratch::new();
    for database in shop::each(&scratch) {
        let said = output(Command::new(binary()).args(["schema", "--origin", &database.url()]));
        for table in ["customers", "products", "orders", "order_lines", "labels"] {
            assert!(said.contains(table), "{said}");
        }
        let line = said.lines().find(|line| line.contains("log_lines")).expect("it is listed");
        let about = said[said.find(line).expect("the line is there")..].to_lowercase();
        assert!(about.contains("primary key"), "{said}");
    }
}

#[test]
fn bench_hands_over_to_the_program_of_the_benchmarks() {
    let scratch = Scratch::new();
    let (destage, path) = (scratch.join("destage"), scratch.join("path"));
    // Beside the program that was built there may be the real one. Another process writes what is to be started: a file that is
    // open for writing here could not be, if a test beside this one forks just then.
    output(Command::new("cp").arg(binary()).arg(&destage));
    let bench = || {
        let mut command = Command::new(&destage);
        command.args(["bench", "ycsb", "--quick", "--help"]).env("PATH", &path);
        command.env_remove("DESTAGE_BIN").output().expect("the copy starts")
    };
    let without = bench();
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert_eq!(without.status.code(), Some(2), "{said}");
    for part in ["destage-bench is neither beside", "cargo build --release -p destage-bench"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let script = "mkdir path; printf '#!/bin/sh\\necho \"$@ measures $DESTAGE_BIN\"\\nexit 7\\n' > path/destage-bench; \
                  chmod +x path/destage-bench";
    output(Command::new("sh").args(["-c", script]).current_dir(scratch.join("")));
    let with = bench();
    assert_eq!(with.status.code(), Some(7));
    let expected = format!("ycsb --quick --help measures {}\n", destage.display());
    assert_eq!(String::from_utf8_lossy(&with.stdout), expected);
}

#[test]
fn every_subcommand_has_help_and_wrong_flags_exit_2() {
    for command in
        [&["--help"][..], &["serve", "--help"], &["schema", "--help"], &["status", "--help"]]
    {
        let said = output(Command::new(binary()).args(command));
        assert!(said.contains("Usage"), "{said}");
    }
    let help = output(Command::new(binary()).args(["serve", "--help"]));
    for flag in [
        "--listen",
        "--admin",
        "--data",
        "--origin",
        "--policy",
        "--when",
        "--commit",
        "--staleness",
        "--dirty-limit",
        "--at-limit",
        "--password",
        "--drain-timeout",
        "--retain",
        "--adopt",
        "--take-over",
        "--no-auth",
    ] {
        assert!(help.contains(flag), "{flag} is not in the help");
    }
    for wrong in [
        &["serve", "--nosuch"][..],
        &["serve", "--policy", "write-sideways"],
        &["serve", "--commit", "5"],
        &["serve", "--commit", "1ns"],
        &["serve", "--staleness", "1ms"],
        &["serve", "--origin", "oracle://x/y"],
    ] {
        let output = Command::new(binary()).args(wrong).output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {said}");
        assert!(!said.is_empty());
    }
}

#[test]
fn a_wrong_origin_exits_2_in_every_command_and_one_that_does_not_answer_10() {
    let scratch = Scratch::new();
    let missing = format!("sqlite:{}", scratch.join("missing.db").display());
    std::fs::write(scratch.join("text.db"), "x".repeat(5_000)).expect("the file is written");
    let text = format!("sqlite:{}", scratch.join("text.db").display());
    for (origin, code) in [
        ("foo", 2),
        ("sqlite:", 2),
        ("redis://127.0.0.1/0", 2),
        ("postgres://user@host:port/db", 2),
        (&missing, 2),
        (&text, 2),
        ("postgres://someone@127.0.0.1:1/nothing", 10),
        ("mysql://someone:secret@127.0.0.1:1/nothing", 10),
    ] {
        Launch::before(&scratch, origin).refused().says(code, &["error"]);
        let schema = Command::new(binary()).args(["schema", "--origin", origin]).output();
        let schema = schema.expect("the binary starts");
        let said = String::from_utf8_lossy(&schema.stderr);
        assert_eq!(schema.status.code(), Some(code), "{origin}: {said}");
    }
}

#[test]
fn an_origin_out_of_reach_exits_10_and_does_not_show_the_password() {
    let scratch = Scratch::new();
    let launch = Launch::before(&scratch, "postgres://someone:topsecret@127.0.0.1:1/nothing");
    let exit = launch.refused();
    exit.says(10, &["127.0.0.1"]);
    assert!(!exit.log.contains("topsecret"), "{}", exit.log);
}

/// What a subcommand prints about this server.
#[track_caller]
fn ask(server: &Server, command: &[&str]) -> String {
    let admin = server.admin.to_string();
    output(Command::new(binary()).arg(command[0]).args(["--admin", &admin]).args(&command[1..]))
}

#[test]
fn subcommands_steer_a_running_server() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    let mut client = server.client();
    let name = || database.value("SELECT name FROM customers WHERE id = 1");
    ask(&server, &["pause"]);
    client.run("HSET customers:1 name paused");
    std::thread::sleep(crate::harness::millis(200));
    assert_eq!(name(), "Ada");
    assert_eq!(server.status()["paused"], true);
    ask(&server, &["resume"]);
    ask(&server, &["drain"]);
    assert_eq!(name(), "paused");
    assert!(ask(&server, &["policy"]).contains("write-back"));
    assert!(ask(&server, &["policy", "write-through", "staleness=1m"]).contains("write-through"));
    assert_eq!(server.status()["policy"]["staleness_seconds"], 60.0);
    client.run("HSET customers:1 name through");
    assert_eq!(name(), "through");
    ask(&server, &["flush"]);
    database.execute("UPDATE customers SET name = 'elsewhere' WHERE id = 1");
    ask(&server, &["invalidate", "customers:1"]);
    assert_eq!(client.run("HGET customers:1 name").text(), "elsewhere");
}

#[test]
fn a_drain_waits_for_as_long_as_the_origin_needs_or_as_it_is_told() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let server = Launch::before(&scratch, &database.url()).start();
    let name = || database.value("SELECT name FROM customers WHERE id = 1");
    ask(&server, &["pause"]);
    server.client().run("HSET customers:1 name drained");
    let admin = server.admin.to_string();
    let drain = |more: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["drain", "--admin", &admin]).args(more);
        command.stdout(std::process::Stdio::null());
        command
    };
    let told = drain(&["--timeout", "300ms"]).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&told.stderr);
    assert_eq!(told.status.code(), Some(19), "{said}");
    assert!(said.contains("1 writes are left"), "{said}");
    let mut waits = drain(&[]).spawn().expect("the binary starts");
    std::thread::sleep(crate::harness::millis(500));
    assert!(waits.try_wait().expect("it is ours").is_none());
    assert_eq!(name(), "Ada");
    ask(&server, &["resume"]);
    assert!(waits.wait().expect("it is ours").success());
    assert_eq!(name(), "drained");
    let help = output(Command::new(binary()).args(["drain", "--help"]));
    assert!(help.contains("--timeout") && help.contains("as long as"), "{help}");
}

#[test]
fn run_ends_the_server_with_its_command_and_drains_first() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let held_back = ["--when", "pressure", "--staleness", "1h"];
    let command = "test -n \"$DESTAGE_URL\" && exec 3<>/dev/tcp/$DESTAGE_HOST/$DESTAGE_PORT && \
                   printf 'HSET customers:1 name run\\r\\n' >&3 && read reply <&3 && exit 7";
    let run = format!("bash -c '{}'", command.replace('\'', "'\\''"));
    let mut starting =
        Launch::before(&scratch, &database.url()).with(&held_back).with(&["--run", &run]).spawn();
    let exit = starting.exited(PATIENCE).expect("the server ends with its command");
    assert_eq!(exit.code, Some(7), "{}", exit.log);
    assert_eq!(database.value("SELECT name FROM customers WHERE id = 1"), "run");
}

#[test]
fn run_is_told_of_a_socket_as_clients_read_it() {
    let scratch = Scratch::new();
    let socket = scratch.join("d.sock");
    let launch = Launch::example(&scratch).listening(&format!("unix:{}", socket.display()));
    let run = "test -S \"${DESTAGE_URL#unix://}\" && exit \"5${DESTAGE_HOST-}${DESTAGE_PORT-}\"";
    let mut starting = launch.with(&["--run", run]).spawn();
    let exit = starting.exited(PATIENCE).expect("the server ends with its command");
    assert_eq!(exit.code, Some(5), "{}", exit.log);
}

#[test]
fn settings_come_from_a_file_and_flags_override_them() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let file = scratch.join("destage.toml");
    let settings = "policy = \"write-through\"\nstaleness = \"7s\"\n";
    std::fs::write(&file, settings).expect("the file can be written");
    let file = file.to_str().expect("the path is text");
    let launch = Launch::before(&scratch, &database.url()).with(&["--config", file]);
    let server = launch.with(&["--staleness", "9s"]).start();
    let policy = server.status()["policy"].clone();
    assert_eq!(policy["acknowledge"], "write-through");
    assert_eq!(policy["staleness_seconds"], 9.0);
    server.terminate(PATIENCE).says(0, &[]);
    std::fs::write(file, "polcy = \"write-through\"").expect("the file can be written");
    launch.refused().says(2, &["polcy"]);
}

#[test]
fn a_socket_in_the_file_system_serves_too() {
    use std::io::{Read, Write};
    let scratch = Scratch::new();
    let path = scratch.join("destage.sock");
    let launch = Launch::example(&scratch).listening(&format!("unix:{}", path.display()));
    let mut starting = launch.spawn();
    let connect = || std::os::unix::net::UnixStream::connect(&path);
    crate::harness::eventually("it listens", PATIENCE, || connect().is_ok());
    let mut stream = connect().expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    stream.write_all(b"PING\r\n").expect("the server listens");
    let mut reply = [0; 7];
    stream.read_exact(&mut reply).expect("the server answers");
    assert_eq!(&reply, b"+PONG\r\n");
    starting.end(rustix::process::Signal::TERM, PATIENCE).says(0, &[]);
    assert!(!path.exists(), "the socket is left behind");
}

#[test]
fn a_taken_port_exits_15() {
    let scratch = Scratch::new();
    let server = Launch::example(&scratch).start();
    let launch = Launch::in_folder(&scratch, "second").listening(&server.listen.to_string());
    launch.refused().says(15, &[&server.listen.to_string()]);
}
