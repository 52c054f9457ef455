//! `examples/high-availability`, run as its page says.

use crate::books::Books;
use crate::world::{Client, Origin};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
/// So many writes are acknowledged in front of the fault, and behind it.
const WRITES: usize = 100;
/// Where the example's clients connect.
const BALANCER: &str = "127.0.0.1:6390";
/// Where its first server listens.
const FIRST: &str = "127.0.0.1:6380";

/// The script; ended with the test.
struct Example(Child);

impl Example {
    fn start(origin: &Origin) -> Self {
        let programs = Path::new(env!("CARGO_BIN_EXE_destage")).parent().expect("its folder");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = [programs.to_owned()].into_iter().chain(std::env::split_paths(&path));
        // Where Debian has the load balancer.
        let folders = folders.chain([PathBuf::from("/usr/sbin")]);
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/high-availability/run.sh");
        let mut command = Command::new("sh");
        command.arg(script).env("DESTAGE_ORIGIN", &origin.url).stdin(Stdio::null());
        command.env("PATH", std::env::join_paths(folders).expect("no folder has a colon"));
        Self(command.spawn().expect("sh runs"))
    }

    fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&self.0), signal);
    }

    /// As Ctrl-C ends it, when all is destaged.
    fn end(mut self) {
        self.signal(Signal::TERM);
        let until = Instant::now() + PATIENCE;
        while self.0.try_wait().expect("a child of ours").is_none() {
            assert!(Instant::now() < until, "the example does not end");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let _ = self.0.wait();
    }
}

/// The process of the example that was started with this address.
fn server_at(example: &Example, address: &str) -> Pid {
    let parent = example.0.id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("processes are listed").flatten() {
        let Ok(number) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let is_child =
            stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(&parent);
        if is_child && words.split(|&byte| byte == 0).any(|word| word == address.as_bytes()) {
            found.extend(Pid::from_raw(number));
        }
    }
    assert_eq!(found.len(), 1, "one server of the example listens at {address}");
    found[0]
}

#[test]
fn the_example_with_a_load_balancer_goes_on_when_its_owner_is_killed() {
    let origin = Origin::new();
    origin.sql("CREATE TABLE t (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0)");
    let example = Example::start(&origin);
    let until = Instant::now() + PATIENCE;
    let is_served = || {
        let mut client = Client::try_open(BALANCER)?;
        client.try_ask(&["PING"]).filter(|answer| answer == "PONG" || answer == "+PONG")
    };
    while is_served().is_none() {
        assert!(Instant::now() < until, "nobody answers at {BALANCER}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let books = Books::default();
    let (is_over, places) = (AtomicBool::new(false), Mutex::new(vec![BALANCER.to_owned()]));
    let await_more = |what: &str| {
        let (from, until) = (books.acknowledged(), Instant::now() + PATIENCE);
        while books.acknowledged() < from + WRITES {
            if Instant::now() > until {
                is_over.store(true, Ordering::SeqCst);
                panic!("{} writes were acknowledged {what}", books.acknowledged() - from);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // In any case not for ever.
            let until = Instant::now() + PATIENCE * 3;
            let (books, is_over, places) = (&books, &is_over, &places);
            scope.spawn(move || {
                let goes_on = || !is_over.load(Ordering::SeqCst) && Instant::now() < until;
                books.write_while(places, goes_on);
            });
        }
        await_more("before the owner was killed");
        kill_process(server_at(&example, FIRST), Signal::KILL).expect("it runs");
        await_more("after the owner was killed");
        is_over.store(true, Ordering::SeqCst);
    });
    example.end();
    books.check(&origin.rows());
}
