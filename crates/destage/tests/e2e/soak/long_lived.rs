//! One server under a mixed load for long, while its origin stalls, fails and returns again and again: nothing is lost, and
//! at rest the server takes no more than after the first time.

use super::footprint::{Footprint, OF_CLIENTS, rests};
use crate::harness::rounds::soak_time;
use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Random, Reply, Scratch, Server,
    eventually, millis, seconds,
};
use crate::load::{self, Load, Mix, Observed};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The scenario's name.
pub(super) const NAME: &str = "long-lived";

/// Writers under load, how many operations each has under way, and its pause: an hour of it is to fit into the test's memory.
const WRITERS: usize = 4;
const DEPTH: usize = 2;
const PAUSE: Duration = millis(5);
/// Its share of the time, and the limits of that.
const SHARE: u32 = 2;
const LASTS_MIN: Duration = seconds(30);
const LASTS_MAX: Duration = seconds(1_800);
/// So that what is allowed to take room takes little of it, and a leak shows.
const CACHE_BYTES: u64 = 4 << 20;
const DIRTY_BYTES: u64 = 4 << 20;
/// Connections that read at once for every reading connection to the origin to be there, and what each reads.
const READERS: u64 = 16;
/// The writing thread opens its second connection when a second batch is under way, which may be long after it was warm.
const LATE_CONNECTIONS: usize = 1;
const READS: u64 = 20;

const TAGS: &str = "
CREATE TABLE tags (thing INTEGER NOT NULL, tag VARCHAR(40) NOT NULL, PRIMARY KEY (thing, tag));
";
const SETTINGS: &str = r#"
[[set]]
key = "tags:{thing}"
table = "tags"
member = "tag"
"#;

/// Runs it for its share of the soak; what was acknowledged, or `None` where there is no database server.
pub(super) fn round(seed: u64) -> Option<i64> {
    let lasts = (soak_time() / SHARE).clamp(LASTS_MIN, LASTS_MAX);
    let mut random = Random::new(seed, 100);
    let kind = *random.pick(&[Kind::Postgres, Kind::Mariadb]);
    let mut origin = OwnServer::start(kind)?;
    let database = load::tables(origin.database()).with(TAGS);
    let scratch = Scratch::for_at_most(lasts + seconds(480));
    let at_limit = *random.pick(&["fail", "block"]);
    let server = launch(&scratch, &database, at_limit).start();
    let begun = Instant::now();
    let mut clients = Clients::start(&server, seed);
    // Once all that may happen has happened, the server has whatever it keeps.
    outages(&mut random, &mut origin, &clients);
    clients.rest(&server);
    let warm = Footprint::settled(&server).with_files(LATE_CONNECTIONS);
    let mut cycles = 1;
    while cycles < 2 || begun.elapsed() < lasts {
        clients.go_on();
        outages(&mut random, &mut origin, &clients);
        cycles += 1;
    }
    clients.rest(&server);
    is_as_before(&server, warm);
    println!("soak: {NAME}: {kind:?}, {cycles} times stalled and stopped, {warm:?} when warm");
    let acknowledged = clients.end(&server, &database);
    // Nobody is connected any more.
    rests(&server, &OF_CLIENTS);
    Some(acknowledged)
}

fn launch(scratch: &Scratch, database: &Database, at_limit: &str) -> Launch {
    let settings = scratch.join("settings.toml");
    std::fs::write(&settings, SETTINGS).expect("the settings can be written");
    let settings = settings.to_str().expect("the path is text");
    let (cache, dirty) = (CACHE_BYTES.to_string(), DIRTY_BYTES.to_string());
    Launch::before(scratch, &database.url())
        .with(&["--config", settings, "--at-limit", at_limit, "--cache-size", &cache])
        // Shorter than some outages.
        .with(&["--dirty-limit", &dirty, "--staleness", "3s", "--origin-timeout", "2s"])
}

/// The origin stalls and fails under load, in some order, and returns each time.
fn outages(random: &mut Random, origin: &mut OwnServer, clients: &Clients) {
    let stalls = (OwnServer::freeze as fn(&mut OwnServer), OwnServer::thaw as fn(&mut OwnServer));
    let fails = (OwnServer::stop as fn(&mut OwnServer), OwnServer::restart as fn(&mut OwnServer));
    let ways = if random.between(0, 2) == 0 { [stalls, fails] } else { [fails, stalls] };
    for (goes, returns) in ways {
        clients.work("the load runs");
        thread::sleep(millis(random.between(100, 1_500)));
        goes(origin);
        thread::sleep(millis(random.between(500, 5_000)));
        returns(origin);
        clients.work("writes go on");
    }
}

/// At rest it takes no more than when it was warm. Of memory it may take what it is allowed to hold, if it held nothing of that
/// before, and a quarter for what the allocator does not give back.
#[track_caller]
fn is_as_before(server: &Server, warm: Footprint) {
    let growth = CACHE_BYTES + DIRTY_BYTES + warm.resident_bytes / 4;
    let begun = Instant::now();
    while let Some(more) = Footprint::settled(server).above(&warm, growth) {
        assert!(begun.elapsed() < PATIENCE, "more than when it was warm: {more}");
    }
}

/// Everyone who uses the server.
struct Clients {
    load: Load,
    tags: JoinHandle<(BTreeSet<String>, i64)>,
    visitor: JoinHandle<i64>,
    shared: Arc<Shared>,
    rests: u64,
}

/// What those tell each other who are not of the load.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    hold: AtomicBool,
    /// So many changes of the set were acknowledged, and so many visits made.
    changes: AtomicI64,
    visits: AtomicI64,
    /// Those that do nothing, while everybody is to.
    idle: AtomicI64,
}

impl Shared {
    /// Waits while nothing is to be done; false once everything is over.
    fn goes_on(&self) -> bool {
        if self.hold.load(Ordering::Acquire) {
            self.idle.fetch_add(1, Ordering::AcqRel);
            while self.hold.load(Ordering::Acquire) {
                thread::sleep(millis(2));
            }
            self.idle.fetch_sub(1, Ordering::AcqRel);
        }
        !self.stop.load(Ordering::Acquire)
    }
}

impl Clients {
    fn start(server: &Server, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let load = Load::paced(server.listen, seed, WRITERS, DEPTH, Mix::Full, PAUSE);
        let (at, of, random) = (server.listen, shared.clone(), Random::new(seed, 101));
        let tags = thread::spawn(move || change_tags(at, &of, random));
        let (at, of, random) = (server.listen, shared.clone(), Random::new(seed, 102));
        let visitor = thread::spawn(move || visit(at, &of, random));
        Self { load, tags, visitor, shared, rests: 0 }
    }

    /// Waits until everyone has done something.
    #[track_caller]
    fn work(&self, what: &str) {
        let done = || {
            let of = |count: &AtomicI64| count.load(Ordering::Acquire);
            [self.load.acks(), of(&self.shared.changes), of(&self.shared.visits)]
        };
        let begun = done();
        eventually(what, PATIENCE, || {
            let now = done();
            now[0] > begun[0] + 50 && now[1] > begun[1] + 10 && now[2] > begun[2] + 3
        });
    }

    /// Lets all of them pause, and everything reach the origin.
    #[track_caller]
    fn rest(&mut self, server: &Server) {
        self.shared.hold.store(true, Ordering::Release);
        self.load.hold(true);
        eventually("everyone pauses", PATIENCE, || {
            self.load.is_idle() && self.shared.idle.load(Ordering::Acquire) == 2
        });
        self.rests += 1;
        use_every_connection(server, self.rests);
        server.drain();
        rests(server, &[]);
    }

    fn go_on(&self) {
        self.shared.hold.store(false, Ordering::Release);
        self.load.hold(false);
    }

    /// Ends them, and holds what the server and its origin have against what was acknowledged; how much that was.
    #[track_caller]
    fn end(self, server: &Server, database: &Database) -> i64 {
        self.shared.stop.store(true, Ordering::Release);
        self.go_on();
        let histories = self.load.stop();
        let (tags, changes) = self.tags.join().expect("a set is as its client has left it");
        self.visitor.join().expect("the visitor gets in");
        let arrived = Observed::all_arrives(server, database, &histories);
        arrived.expect("nothing is lost or doubled");
        let held = database.rows("SELECT tag FROM tags WHERE thing = 1");
        let held: BTreeSet<String> = held.into_iter().flatten().collect();
        assert_eq!(held, tags, "the origin's set");
        histories.acknowledged().count() as i64 + changes
    }
}

/// Changes a set and reads it; what must be in it, and how many changes were acknowledged.
fn change_tags(at: SocketAddr, shared: &Shared, mut random: Random) -> (BTreeSet<String>, i64) {
    let mut tags = BTreeSet::new();
    let mut client = Client::connect(at);
    client.patience(PATIENCE * 3);
    while shared.goes_on() {
        let tag = format!("t{}", random.between(0, 40));
        let what = *random.pick(&["SADD", "SREM", "SISMEMBER"]);
        let is_there = tags.contains(&tag);
        match (what, client.call(&[what, "tags:1", &tag])) {
            // Carried out, which nobody may be told of before D is kept again.
            ("SADD", Reply::Error(error)) if error.starts_with("PENDING") => {
                tags.insert(tag);
            }
            ("SREM", Reply::Error(error)) if error.starts_with("PENDING") => {
                tags.remove(&tag);
            }
            // Refused, or not cached while the origin is away: nothing was done.
            (_, Reply::Error(_)) => thread::sleep(millis(20)),
            ("SISMEMBER", reply) => assert_eq!(reply.int(), i64::from(is_there), "{tag}"),
            (_, reply) => {
                let changes = (what == "SADD") != is_there;
                assert_eq!(reply.int(), i64::from(changes), "{what} {tag}");
                match what {
                    "SADD" => tags.insert(tag),
                    _ => tags.remove(&tag),
                };
                shared.changes.fetch_add(1, Ordering::AcqRel);
            }
        }
        thread::sleep(PAUSE);
    }
    (tags, shared.changes.load(Ordering::Acquire))
}

/// Connects, asks for something, and goes, often before the answer comes and in the middle of a transaction or a session.
fn visit(at: SocketAddr, shared: &Shared, mut random: Random) -> i64 {
    let mut visits = 0;
    while shared.goes_on() {
        let mut client = Client::connect(at);
        client.patience(millis(300));
        // Rows that nobody has cached.
        let row = format!("events:14:{}", random.between(0, 1 << 30));
        let commands = match random.between(0, 5) {
            0 => vec![format!("HGETALL {row}")],
            1 => {
                vec![format!("WATCH {row} counters:0"), "MULTI".into(), "HGET counters:1 n".into()]
            }
            2 => vec![
                "DESTAGE BEGIN".into(),
                "HGET registers:0 seq".into(),
                format!("HGET {row} body"),
            ],
            3 => vec!["SMEMBERS tags:1".into(), "SCAN 0 COUNT 10".into()],
            _ => (0..20).map(|more| format!("HGETALL {row}{more}")).collect(),
        };
        let waits = random.between(0, 2) == 0;
        for command in &commands {
            let words: Vec<&str> = command.split(' ').collect();
            let _ = client.send(&words);
        }
        // Nobody answers while the origin stalls.
        let _ = commands.iter().take_while(|_| waits).try_for_each(|_| client.receive().map(drop));
        drop(client);
        visits += 1;
        shared.visits.store(visits, Ordering::Release);
        thread::sleep(PAUSE * 4);
    }
    visits
}

/// The server connects to its origin when it needs to: here at once, so that counts of connections compare.
#[track_caller]
fn use_every_connection(server: &Server, time: u64) {
    thread::scope(|scope| {
        for reader in 0..READERS {
            scope.spawn(move || {
                let first = (time * READERS + reader) * READS;
                let rows = (first..first + READS).map(|row| format!("HGET events:15:{row} body"));
                let replies = server.client().pipeline(&rows.collect::<Vec<_>>());
                assert!(replies.iter().all(|reply| *reply == Reply::Nil), "{replies:?}");
            });
        }
    });
}
