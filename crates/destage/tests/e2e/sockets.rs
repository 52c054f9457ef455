//! `--listen unix:FILE` of both front ends: what is at that name is removed only where it is a socket that nobody listens
//! on, or the server's own.

use crate::harness::server::{binary, signal};
use crate::harness::{Scratch, shop};
use rustix::process::Signal;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, thread};

/// Each front end, with an origin of its own that it can listen at.
pub(crate) fn front_ends(scratch: &Scratch) -> [(Vec<String>, std::path::PathBuf); 2] {
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
