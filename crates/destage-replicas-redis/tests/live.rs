//! The log on real servers: founded, appended to, taken over, its servers changed.

use destage_replicas::{Position, Stage};
use destage_replicas_redis::{LogSettings, Places, Replicas};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

struct Redis {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Redis {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        Self { child, url: format!("redis://127.0.0.1:{port}"), _folder: folder }
    }

    fn address(&self) -> &str {
        self.url.trim_start_matches("redis://")
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(servers: &[Redis], identity: u64) -> Replicas {
    let urls: Vec<&str> = servers.iter().map(|server| server.url.as_str()).collect();
    start_at(&urls, identity)
}

fn start_at(urls: &[&str], identity: u64) -> Replicas {
    let places = Places::parse(&urls.join(",")).expect("addresses");
    let settings = LogSettings {
        name: "test".into(),
        subject: "test".into(),
        place: format!("host:{identity}"),
        copies: 2,
        failover: Duration::from_millis(600),
        opens_short: false,
        founds: true,
        at_once: false,
        identity,
    };
    Replicas::start(places, &settings)
}

fn await_open(log: &Replicas) {
    let said = log.wait(PATIENCE, |said| said.stage == Stage::Open);
    assert_eq!(said.stage, Stage::Open, "{:?}", log.servers());
}

/// Waits until so many servers are in force, and no others besides.
fn await_servers(log: &Replicas, count: usize) {
    let is_in_force = || {
        let config = log.config().expect("it is open");
        config.before.is_empty() && config.now.members.len() == count
    };
    let until = Instant::now() + PATIENCE;
    while !is_in_force() {
        assert!(Instant::now() < until, "{:?} {:?}", log.config(), log.servers());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn write(log: &Replicas, text: &str) {
    await_open(log);
    let at = log.append(text.as_bytes().into()).expect("it is open");
    let said = log.wait(PATIENCE, |said| said.committed >= at);
    assert!(said.committed >= at, "{said:?} {:?}", log.servers());
}

fn held(log: &Replicas) -> Vec<String> {
    let entries = log.entries().into_iter().filter(|(_, payload)| !payload.is_empty());
    entries.map(|(_, payload)| String::from_utf8_lossy(&payload).into_owned()).collect()
}

#[test]
fn servers_come_and_go_and_another_owner_finds_everything() {
    let mut servers: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    let log = start(&servers, 1);
    write(&log, "a");
    let fourth = Redis::start();
    log.add_server(&fourth.url).expect("it is added");
    await_servers(&log, 4);
    write(&log, "b");
    log.remove_server(servers[0].address()).expect("it is removed");
    await_servers(&log, 3);
    write(&log, "c");
    // Killed, so to speak; and one of the three with it.
    drop(log);
    servers.remove(0);
    drop(servers.remove(0));
    let next = start(&servers, 2);
    await_open(&next);
    assert_eq!(held(&next), ["a", "b", "c"]);
    write(&next, "d");
    assert!(next.may_answer());
    next.give_up();
    drop(next);
    let last = start(&servers, 3);
    await_open(&last);
    assert_eq!(held(&last), ["a", "b", "c", "d"]);
    drop(fourth);
}

#[test]
fn one_server_with_two_names_is_one_copy() {
    let servers = [Redis::start(), Redis::start()];
    let again = servers[0].url.replace("127.0.0.1", "localhost");
    let twins = start_at(&[&servers[0].url, &again], 1);
    let said = twins.wait(Duration::from_secs(3), |said| said.stage == Stage::Open);
    assert_ne!(said.stage, Stage::Open, "a write would be acknowledged with one copy of two");
    let is_told = |report: destage_replicas_redis::ServerReport| {
        report.trouble.is_some_and(|trouble| trouble.to_string().contains("the same server as"))
    };
    assert!(twins.servers().into_iter().any(is_told));
    drop(twins);
    let log = start(&servers, 2);
    write(&log, "a");
    assert!(log.servers().iter().all(|report| report.trouble.is_none()));
}

/// Whoever serves, and attends to the servers itself.
struct Attendant {
    poll: Poll,
    events: Events,
    /// Answers were news so often.
    news: usize,
}

impl Attendant {
    fn begin(log: &Replicas) -> Self {
        let poll = Poll::new().expect("the system polls");
        let registry = poll.registry().try_clone().expect("a registry");
        log.attend(move |descriptor, number| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            registry.register(&mut SourceFd(&descriptor.as_raw_fd()), Token(number), interest)
        });
        Self { poll, events: Events::with_capacity(16), news: 0 }
    }

    fn serve_until(&mut self, log: &Replicas, is_it: impl Fn(&Replicas) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_it(log) {
            assert!(Instant::now() < until, "{:?} {:?}", log.said(), log.servers());
            let polled = self.poll.poll(&mut self.events, Some(Duration::from_millis(20)));
            polled.expect("the system polls");
            for event in &self.events {
                self.news += usize::from(log.read(event.token().0));
            }
        }
    }

    fn write(&mut self, log: &Replicas, payload: Vec<u8>) -> Position {
        let payload: destage_replicas::Payload = payload.into();
        let mut at = None;
        self.serve_until(log, |log| log.said().stage == Stage::Open);
        while at.is_none() {
            at = log.append(payload.clone());
        }
        let at = at.expect("it is there");
        self.serve_until(log, |log| log.said().committed >= at);
        at
    }
}

#[test]
fn whoever_serves_reads_the_answers_itself() {
    let mut servers: Vec<Redis> = (0..3).map(|_| Redis::start()).collect();
    let log = start(&servers, 1);
    write(&log, "before");
    let mut attendant = Attendant::begin(&log);
    for number in 0..300_u32 {
        attendant.write(&log, number.to_string().into_bytes());
    }
    assert!(attendant.news >= 250, "others have told of {} of 300", 300 - attendant.news);
    // More than a socket takes at once, and more answers than one.
    let sizes = [3 << 20, 1, 900_000, 5];
    let at = sizes.map(|size| log.append(vec![7; size].into()).expect("it is open"));
    attendant.serve_until(&log, |log| log.said().committed >= at[3]);
    // A server that goes is noticed by its connection, and the others suffice.
    drop(servers.remove(0));
    attendant.write(&log, b"with two".to_vec());
    let is_gone = |log: &Replicas| log.servers().iter().any(|server| server.trouble.is_some());
    attendant.serve_until(&log, is_gone);
    // Nobody attends for longer than a lease: the log stays owned, and what is written is committed.
    drop(attendant);
    for _ in 0..5 {
        write(&log, "alone");
    }
    assert!(log.may_answer());
    let held = held(&log);
    assert_eq!((held.len(), &*held[0], &*held[310]), (311, "before", "alone"));
    drop(log);
    let next = start(&servers, 2);
    await_open(&next);
    assert_eq!(self::held(&next).len(), 311);
}
