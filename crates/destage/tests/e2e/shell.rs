//! What both front ends share towards clients and the admin port: each of these holds for `serve` and for `block serve`.

use crate::harness::server::{binary, signal};
use crate::harness::{PATIENCE, Scratch, eventually, seconds};
use crate::sockets::front_ends;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A server that listens at a socket of the test's, with its log there.
struct Running {
    child: Child,
    admin: String,
    /// What is sent to be greeted.
    hello: &'static [u8],
    socket: PathBuf,
    log: PathBuf,
}

impl Running {
    fn start(scratch: &Scratch, arguments: &[String], more: &[&str]) -> Self {
        Self::start_by(scratch, Command::new(binary()), arguments, more)
    }

    fn start_by(scratch: &Scratch, mut by: Command, arguments: &[String], more: &[&str]) -> Self {
        let socket = scratch.join(format!("{}.sock", arguments[0]));
        let log = scratch.join(format!("{}.log", arguments[0]));
        by.args(arguments).args(["--admin", "127.0.0.1:0"]).args(more);
        by.arg("--listen").arg(format!("unix:{}", socket.display()));
        by.env_remove("DESTAGE_PASSWORD").stdin(Stdio::null()).stdout(Stdio::piped());
        by.stderr(File::create(&log).expect("a log"));
        let mut child = by.spawn().expect("the binary starts");
        let output = BufReader::new(child.stdout.as_mut().expect("the output is piped"));
        let ready = output.lines().next().and_then(Result::ok).unwrap_or_default();
        let admin = ready.split_once("admin=").and_then(|(_, rest)| rest.split(' ').next());
        let admin = admin.unwrap_or_else(|| panic!("{arguments:?}: {ready}")).to_owned();
        let hello: &[u8] = if arguments[0] == "serve" { b"PING\r\n" } else { b"" };
        Self { child, admin, hello, socket, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("a log")
    }

    /// What the admin port answers.
    fn asked(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    fn command(&self, body: &str, host: &str, more: &str) -> String {
        self.asked(&format!(
            "POST /command HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n{more}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test may have seen its end.
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), Signal::TERM);
        }
        self.child.wait().expect("it is ours");
    }
}

/// A client of the server at this socket, and whether it is let in.
fn greeted(server: &Running) -> (UnixStream, bool) {
    let mut stream = UnixStream::connect(&server.socket).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    // One that was turned away is told so, or cut off, without asking; NBD greets before it is asked.
    let _ = stream.write_all(server.hello);
    let mut said = [0; 5];
    let is_in = stream.read_exact(&mut said).is_ok() && [b"+PONG", b"NBDMA"].contains(&&said);
    (stream, is_in)
}

#[test]
fn strangers_never_take_the_files_that_a_server_needs_itself() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let mut few = Command::new("sh");
        few.args(["-c", "ulimit -n 160 && exec \"$0\" \"$@\""]).arg(binary());
        let more: &[&str] = if arguments[0] == "block" { &["--max-clients", "1000"] } else { &[] };
        let server = Running::start_by(&scratch, few, &arguments, more);
        let said = server.log();
        assert!(said.contains("--max-clients") && said.contains("ulimit -n"), "{said}");
        // Everybody gets an answer at once, and nobody waits for a file that is not to be had.
        let everybody: Vec<_> = (0..200).map(|_| greeted(&server)).collect();
        let inside = everybody.iter().filter(|(_, is_in)| *is_in).count();
        assert_eq!(inside, 32, "{arguments:?}");
        // The admin port answers meanwhile.
        let ready =
            server.asked("GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
        if arguments[0] == "serve" {
            // So does the origin.
            let (client, _) = everybody.iter().find(|(_, is_in)| *is_in).expect("some are");
            let ask = b"\r\nHINCRBY products:1 stock 1\r\nDESTAGE DRAIN\r\n";
            (&mut &*client).write_all(ask).expect("it is sent");
            let lines = BufReader::new(client).lines().map(|line| line.expect("an answer"));
            let said: Vec<_> = lines.skip(1).take(2).collect();
            assert_eq!(said, [":11", "+OK"]);
        }
        // Who leaves makes room.
        drop(everybody);
        eventually("there is room", PATIENCE, || greeted(&server).1);
    }
}

#[test]
fn clients_are_let_in_again_once_there_are_files_for_them() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let server = Running::start(&scratch, &arguments, &[]);
        let process = Pid::from_raw(server.child.id().cast_signed()).expect("not 0");
        let limit = |current| Rlimit { current: Some(current), ..getrlimit(Resource::Nofile) };
        let before = prlimit(Some(process), Resource::Nofile, limit(3)).expect("it is ours");
        let mut waits = UnixStream::connect(&server.socket).expect("somebody listens");
        eventually("it says so", PATIENCE, || server.log().contains("cannot accept a connection"));
        prlimit(Some(process), Resource::Nofile, before).expect("it is ours");
        waits.set_read_timeout(Some(seconds(30))).expect("not zero");
        waits.write_all(server.hello).expect("it is sent");
        let mut said = [0; 5];
        waits.read_exact(&mut said).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
        assert!(greeted(&server).1, "{arguments:?}");
    }
}

#[test]
fn the_admin_port_answers_no_page_under_another_name() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let server = Running::start(&scratch, &arguments, &["--admin-host", "metrics.example"]);
        for path in ["/", "/status", "/metrics", "/healthz", "/readyz"] {
            let asked = |host| {
                let head =
                    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
                server.asked(&head)
            };
            for host in ["evil.example", "127.0.0.1.evil.example"] {
                assert!(asked(host).starts_with("HTTP/1.1 421 "), "{path} {host}");
            }
            for host in ["127.0.0.1", "localhost:1", "[::1]", "METRICS.example:1"] {
                assert!(asked(host).starts_with("HTTP/1.1 200 "), "{path} {host}");
            }
        }
        let answer = server.command(r#"{"command":"flush"}"#, "evil.example", "");
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
}

#[test]
fn arguments_of_a_command_forge_no_line_of_the_log() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let server = Running::start(&scratch, &arguments, &[]);
        let forged = r#"{"command":"no","args":["x\n2026-01-01T00:00:00Z ERROR forged\u001b[2J"]}"#;
        server.command(forged, "localhost", "");
        let log = server.log();
        assert!(log.contains(r"x\n2026-01-01"), "{log}");
        assert!(!log.contains('\u{1b}'), "{log}");
        assert!(!log.lines().any(|line| line.starts_with("2026-01-01T00:00:00Z ERROR")), "{log}");
    }
}

#[test]
fn the_command_of_run_gets_no_password() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let mut command = Command::new(binary());
        command.args(&arguments).args(["--admin", "none", "--listen"]);
        command.arg(format!("unix:{}", scratch.join("run.sock").display()));
        command.args(["--run", "env | grep -c 'secret-of-the-test' >&2; exit 6"]);
        // The flag comes first, so that the variable is not used.
        command.env("DESTAGE_PASSWORD", "secret-of-the-test");
        command.env("DESTAGE_ORIGIN", "secret-of-the-test");
        command.env("DESTAGE_TOKENS", "secret-of-the-test");
        let done = command.output().expect("it runs");
        let log = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(6), "{log}");
        assert!(log.lines().any(|line| line == "0"), "{log}");
    }
}

/// What the command has started gets SIGTERM, too.
#[test]
fn a_server_that_ends_takes_the_command_of_run_with_it() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let place = scratch.join(format!("{}.pid", arguments[0]));
        let run = format!("sleep 3600 & echo $! > {}; wait", place.display());
        let mut server = Running::start(&scratch, &arguments, &["--run", &run]);
        let behind = || fs::read_to_string(&place).ok()?.trim().parse::<u32>().ok();
        eventually("it runs", PATIENCE, || behind().is_some_and(is_alive));
        signal(server.child.id(), Signal::TERM);
        let status = server.child.wait().expect("it is ours");
        assert_eq!(status.code(), Some(143), "{arguments:?}: {}", server.log());
        eventually("it has ended, too", PATIENCE, || !behind().is_some_and(is_alive));
    }
}

/// Whether there is such a process, and not its remains alone.
fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// > SIGHUP ends nothing.
#[test]
fn a_hangup_ends_no_server_that_is_still_starting() {
    let scratch = Scratch::new();
    // It takes connections and answers nothing.
    let origin = TcpListener::bind("127.0.0.1:0").expect("a place");
    let place = origin.local_addr().expect("a place");
    let path = |name| scratch.join(name).display().to_string();
    let (database, disk) = (format!("postgres://app@{place}/shop"), format!("nbd://{place}"));
    let rows =
        ["serve", "--no-auth", "--origin", &database, "--data", &path("data")].map(str::to_owned);
    let cache = path("cache.img");
    let blocks = ["block", "serve", "--origin", &disk, "--cache-size", "64M", "--cache", &cache];
    for arguments in [&rows[..], &blocks.map(str::to_owned)] {
        let mut command = Command::new(binary());
        command.args(arguments).args(["--admin", "none", "--listen"]);
        command.arg(format!("unix:{}", path("start.sock"))).env_remove("DESTAGE_PASSWORD");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut starting = Starting(command.spawn().expect("the binary starts"));
        eventually("it heeds SIGHUP", PATIENCE, || catches_hangups(starting.0.id()));
        signal(starting.0.id(), Signal::HUP);
        assert!(starting.0.try_wait().expect("it is ours").is_none(), "{arguments:?}");
    }
}

/// Ended with its test.
struct Starting(Child);

impl Drop for Starting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether SIGHUP, the first of the signals, does not end a process.
fn catches_hangups(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[test]
fn whoever_guesses_the_password_of_the_admin_port_is_held_up() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let server = Running::start(&scratch, &arguments, &["--password", "right"]);
        let tried = |password: &str| {
            let more = format!("Authorization: Bearer {password}\r\n");
            let answer = server.command(r#"{"command":"flush"}"#, "localhost", &more);
            answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
        };
        let codes: Vec<u16> = (0..12).map(|number| tried(&format!("guess-{number}"))).collect();
        assert_eq!(codes, [vec![401; 11], vec![429]].concat(), "{arguments:?}");
        assert_eq!(tried("right"), 429);
        let metrics = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let metrics = server.asked(metrics);
        assert!(metrics.contains("destage_auth_failures_total 11\n"), "{metrics}");
        let log = server.log();
        assert!(log.contains("wrong passwords were sent") && !log.contains("guess-"), "{log}");
        eventually("it may try again", PATIENCE, || ![401, 429].contains(&tried("right")));
    }
}
