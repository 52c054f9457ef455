//! `--listen unix:FILE` of both front ends: what is at that name is removed only where it is a socket that nobody listens
//! on, or the server's own.

use crate::harness::server::{binary, signal};
use crate::harness::{PATIENCE, Scratch, shop};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

/// Each front end, with an origin of its own that it can listen at.
fn front_ends(scratch: &Scratch) -> [(Vec<String>, std::path::PathBuf); 2] {
    let database = shop::sqlite(scratch);
    let image = scratch.join("disk.img");
    fs::write(&image, vec![7; 1 << 20]).expect("an image");
    let text = |path: std::path::PathBuf| path.display().to_string();
    let words = |line: &[&str]| line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (data, cache) = (text(scratch.join("data")), text(scratch.join("cache.img")));
    let origin = format!("file:{}", image.display());
    let url = database.url();
    let file = url.strip_prefix("sqlite:").expect("a file").into();
    [
        (words(&["serve", "--data", &data, "--origin", &url, "--no-auth"]), file),
        (
            words(&[
                "block",
                "serve",
                "--cache",
                &cache,
                "--cache-size",
                "64M",
                "--origin",
                &origin,
            ]),
            image,
        ),
    ]
}

fn command(arguments: &[String], at: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).args(["--admin", "127.0.0.1:0", "--listen"]);
    command.arg(format!("unix:{}", at.display())).env_remove("DESTAGE_PASSWORD");
    command.stdin(Stdio::null());
    command
}

fn start(arguments: &[String], at: &Path) -> Child {
    let mut command = command(arguments, at);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("the binary starts");
    let output = BufReader::new(child.stdout.as_mut().expect("the output is piped"));
    let ready = output.lines().next().and_then(Result::ok);
    assert!(ready.is_some_and(|line| line.starts_with("destage ready")), "{arguments:?}");
    child
}

fn end(mut child: Child, by: Signal) {
    signal(child.id(), by);
    child.wait().expect("it is ours");
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket())
}

#[test]
fn a_file_that_is_no_socket_stays_as_it_is() {
    let scratch = Scratch::new();
    for (arguments, origin) in front_ends(&scratch) {
        let folder = scratch.join(&arguments[0]);
        fs::create_dir(&folder).expect("a folder");
        let (letter, link, dead) =
            (folder.join("letter"), folder.join("link"), folder.join("dead"));
        fs::write(&letter, "dear all").expect("a file");
        drop(UnixListener::bind(&dead).expect("a socket"));
        symlink(&dead, &link).expect("a link");
        let before = fs::read(&origin).expect("the origin can be read");
        for place in [&letter, &origin, &link, &folder] {
            let output = command(&arguments, place).output().expect("the binary starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(15), "{said}");
            assert!(said.contains("left as it is"), "{said}");
        }
        assert_eq!(fs::read(&letter).expect("it is there"), b"dear all");
        assert!(fs::read(&origin).expect("it is there") == before, "{arguments:?}");
        assert!(is_socket(&dead) && link.is_symlink() && folder.is_dir(), "{arguments:?}");
    }
}

#[test]
fn a_socket_is_replaced_where_nobody_listens_and_removed_where_it_is_ours() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let path = scratch.join(format!("{}.sock", arguments[0]));
        // One that a crash left, then one at which somebody listens.
        end(start(&arguments, &path), Signal::KILL);
        assert!(is_socket(&path), "{arguments:?}");
        let child = start(&arguments, &path);
        let mut second = command(&arguments, &path);
        assert_ne!(second.output().expect("the binary starts").status.code(), Some(0));
        assert!(UnixStream::connect(&path).is_ok(), "{arguments:?}");
        end(child, Signal::TERM);
        assert!(!path.exists(), "{arguments:?}");
        // Another's that has taken the place of ours.
        let child = start(&arguments, &path);
        fs::remove_file(&path).expect("it is there");
        let another = UnixListener::bind(&path).expect("the place is free");
        end(child, Signal::TERM);
        assert!(UnixStream::connect(&path).is_ok(), "{arguments:?}");
        drop(another);
        fs::remove_file(&path).expect("it is there");
    }
}

#[test]
fn at_no_time_may_anybody_else_connect_to_a_socket() {
    let scratch = Scratch::new();
    for (arguments, _) in front_ends(&scratch) {
        let path = scratch.join(format!("{}.sock", arguments[0]));
        let over = AtomicBool::new(false);
        let modes = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut modes = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    if let Ok(found) = path.symlink_metadata() {
                        modes.push(found.permissions().mode() & 0o777);
                        modes.dedup();
                    }
                }
                modes
            });
            for _ in 0..3 {
                end(start(&arguments, &path), Signal::TERM);
            }
            over.store(true, Ordering::Relaxed);
            watch.join().expect("it does not panic")
        });
        assert_eq!(modes, [0o600], "{arguments:?}");
    }
}

/// A client of the server at this socket, and what it is told.
fn greeted(path: &Path) -> (UnixStream, String) {
    let mut stream = UnixStream::connect(path).expect("somebody listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("not zero");
    // One that was turned away is told so without asking.
    let _ = stream.write_all(b"PING\r\n");
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line).expect("an answer");
    (stream, line)
}

#[test]
fn strangers_never_take_the_files_that_the_server_needs_itself() {
    let scratch = Scratch::new();
    let [(arguments, _), _] = front_ends(&scratch);
    let path = scratch.join("few.sock");
    let log = scratch.join("log");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 160 && exec \"$0\" \"$@\""]).arg(binary()).args(&arguments);
    command.args(["--admin", "127.0.0.1:0", "--listen"]);
    command.arg(format!("unix:{}", path.display())).env_remove("DESTAGE_PASSWORD");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(fs::File::create(&log).expect("a log"));
    let mut child = command.spawn().expect("the binary starts");
    let output = BufReader::new(child.stdout.as_mut().expect("the output is piped"));
    let ready = output.lines().next().and_then(Result::ok);
    assert!(ready.is_some_and(|line| line.starts_with("destage ready")));
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("--max-clients") && said.contains("ulimit -n"), "{said}");
    // Everybody gets an answer at once, and nobody waits for a file that is not to be had.
    let everybody: Vec<_> = (0..200).map(|_| greeted(&path)).collect();
    let is_in = |line: &str| line.starts_with("+PONG");
    let (inside, outside): (Vec<_>, Vec<_>) = everybody.into_iter().partition(|(_, l)| is_in(l));
    assert_eq!(inside.len(), 32);
    assert!(outside.iter().all(|(_, line)| line.contains("max number of clients")));
    // The origin can be reached meanwhile.
    let (mut client, _) = inside.into_iter().next().expect("somebody is inside");
    client.write_all(b"HINCRBY products:1 stock 1\r\nDESTAGE DRAIN\r\n").expect("it is sent");
    let mut lines = BufReader::new(&client).lines().map(|line| line.expect("an answer"));
    assert_eq!(lines.next().as_deref(), Some(":11"));
    assert_eq!(lines.next().as_deref(), Some("+OK"));
    // Who leaves makes room.
    assert!(is_in(&greeted(&path).1));
    end(child, Signal::TERM);
}
