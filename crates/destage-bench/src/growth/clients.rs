//! Connections of clients, and members of a sorted set.

use std::io::{Read as _, Write as _};
use std::thread;
use std::time::Duration;

use super::curve::{Curve, Point, sizes};
use super::{EACH, FLAT, FREE, Growth, LINEAR, measure};
use crate::Result;
use crate::bench::{cpu_us, warm};
use crate::connect::Connected;
use crate::control::Client;
use crate::cpu::resident_bytes;
use crate::load::{Bound, Load, Outcome};
use crate::origins::fill_sqlite;
use crate::servers::{Destage, Postgres, Transport};

const TABLE: &str = "grown";
const ROWS: u64 = 10_000;
/// Of each of the ten fields.
const FIELD_BYTES: usize = 10;
/// So long at least for each connection.
const EACH_TIME: Duration = Duration::from_millis(1);
/// Members that are changed and asked for, the same number of a set of any size: reading each for the first time costs more.
const CHANGED: u64 = 10;
/// A set that is cached as a whole, however large.
const WHOLE: &str = "1000000";
/// The default of `members-max`.
const PARTS: &str = "10000";

/// Memory for each connection, idle and busy, and what a request costs.
pub(super) fn connections(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let path = growth.dir.join("connections.db");
    fill_sqlite(&path, TABLE, ROWS, FIELD_BYTES)?;
    let origin = format!("sqlite:{}", path.display());
    // A control connection besides.
    let clients_max = (largest + 100).to_string();
    let mut points = Vec::new();
    for count in sizes(10, largest, 10) {
        let config = growth.config(origin.clone(), &["--max-clients", &clients_max]);
        let server = growth.start(&config)?;
        warm(&server.address, TABLE, ROWS)?;
        let empty = resident_bytes(server.pid())?;
        let each = |bytes: u64| bytes.saturating_sub(empty) as f64 / count as f64;
        let mut idle = Vec::new();
        for _ in 0..count {
            // One file each: a process may have twice as many open at most on some machines.
            let mut client = Connected::to(&server.address)?;
            client.write_all(b"PING\r\n")?;
            client.read_exact(&mut [0; b"+PONG\r\n".len()])?;
            idle.push(client);
        }
        let waiting = resident_bytes(server.pid())?;
        drop(idle);
        let key = format!("{TABLE}:__rand_int__");
        let mut load = Load::resp(server.address.clone(), &["HGET", &key, "f0"], 0)?;
        (load.connections, load.seed) = (count as usize, growth.seed);
        // What connecting costs is taken off, so there is more of the rest than of it.
        load.key_space = ROWS;
        load.bound = Bound::Requests(count);
        let start = server.cpu()?;
        let connected = load.run()?.without_errors()?.requests;
        let before = server.cpu()?;
        let connecting = before.saturating_sub(start);
        let time = growth.time.max(EACH_TIME * count as u32);
        load.bound = Bound::Time(time);
        let (outcome, busy) = thread::scope(|scope| {
            let watched = scope.spawn(|| {
                thread::sleep(time / 2);
                resident_bytes(server.pid()).map_err(|error| error.to_string())
            });
            let outcome = load.run();
            (outcome, watched.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
        });
        let outcome = outcome?.without_errors()?;
        let more = outcome.requests.saturating_sub(connected);
        let cost = cpu_us(before + connecting, server.cpu()?, more);
        points.push(Point::new(
            count,
            vec![
                each(waiting),
                each(busy?),
                outcome.per_second(),
                cost,
                outcome.latency_us(0.99) / 1_000.0,
            ],
        ));
    }
    std::fs::remove_file(&path)?;
    Ok(vec![Curve {
        title: "connections",
        note: "Each connects and asks for one PING: that is idle. Then each sends uniform HGETs of cached rows, one at a time, and \
               waits for the reply: that is busy. The time is the server's without that of connecting, the wait that of the slowest hundredth."
            .into(),
        axis: "connections",
        measures: vec![
            measure("memory for each, idle, bytes", 0, EACH),
            measure("memory for each, busy, bytes", 0, EACH),
            measure("requests/s", 0, FREE),
            measure("CPU for each request, µs", 2, FLAT),
            measure("p99, ms", 2, LINEAR),
        ],
        points,
    }])
}

/// What commands on one sorted set cost: read in parts, and cached as a whole.
pub(super) fn members(growth: &Growth, largest: u64) -> Result<Vec<Curve>> {
    let origin = Postgres::start(&growth.dir, Transport::Tcp)?;
    let mut session = origin.query()?;
    session.run(
        "CREATE TABLE ranks (board bigint, player text, points double precision NOT NULL, PRIMARY KEY (board, player))",
    )?;
    session.run(r#"CREATE INDEX ON ranks (board, points, player COLLATE "C")"#)?;
    let counts = sizes(10, largest, 10);
    for count in &counts {
        session.run(&format!(
            "INSERT INTO ranks SELECT {count}, lpad(g::text, 12, '0'), -g FROM generate_series(0, {count} - 1) g"
        ))?;
    }
    session.run("VACUUM ANALYZE ranks")?;
    let url = Postgres::url(origin.address);
    let parts = set(growth, &url, &counts, PARTS)?;
    let whole = set(growth, &url, &counts, WHOLE)?;
    let settings = [
        ("members of a sorted set", PARTS, parts),
        ("members of a sorted set, cached as a whole", WHOLE, whole),
    ];
    let curve = |(title, members_max, points)| Curve {
        title,
        note: format!(
            "Server's time for each command on one set before PostgreSQL, one connection, `members-max = {members_max}`, everything \
             drained before. ZADD changes the score of one of {CHANGED} members."
        ),
        axis: "members",
        measures: vec![
            measure("ZADD, not read before, µs", 1, FLAT),
            measure("ZSCORE, µs", 1, FLAT),
            measure("ZRANGE of 10, µs", 1, FLAT),
            measure("ZADD after it, µs", 1, FLAT),
            measure("ZADD, ZRANGE in turn, µs", 1, FLAT),
        ],
        points,
    };
    Ok(settings.into_iter().map(curve).collect())
}

/// One curve of sets.
fn set(growth: &Growth, url: &str, counts: &[u64], members_max: &str) -> Result<Vec<Point>> {
    let config = growth.dir.join(format!("set-{members_max}.toml"));
    std::fs::write(
        &config,
        format!(
            "[[zset]]\nkey = \"rank:{{board}}\"\ntable = \"ranks\"\nmember = \"player\"\nscore = \"points\"\nmembers-max = {members_max}\n"
        ),
    )?;
    let config = config.to_string_lossy().into_owned();
    let mut points = Vec::new();
    for &count in counts {
        let server = growth.start(&growth.config(url.to_owned(), &["--config", &config]))?;
        let key = format!("rank:{count}");
        let add: &[&str] = &["ZADD", &key, "__data__", "__rand_int__"];
        let range: &[&str] = &["ZRANGE", &key, "0", "9"];
        let add_first = timed(growth, &server, add)?;
        let score = timed(growth, &server, &["ZSCORE", &key, "__rand_int__"])?;
        let ranged = timed(growth, &server, range)?;
        let add_after = timed(growth, &server, add)?;
        let in_turn = alternated(growth, &server, &key)?;
        points.push(Point::new(count, vec![add_first, score, ranged, add_after, in_turn]));
    }
    Ok(points)
}

/// The server's time for each of these commands, microseconds, until all of it is destaged.
fn timed(growth: &Growth, server: &Destage, command: &[&str]) -> Result<f64> {
    // A payload of ten bytes is a number.
    let mut load = Load::resp(server.address.clone(), command, 10)?;
    (load.key_space, load.seed, load.bound) = (CHANGED, growth.seed, Bound::Time(growth.time));
    let before = server.cpu()?;
    let outcome: Outcome = load.run()?.without_errors()?;
    server.drain()?;
    Ok(cpu_us(before, server.cpu()?, outcome.requests))
}

/// The same of a change and a read behind it, one after the other.
fn alternated(growth: &Growth, server: &Destage, key: &str) -> Result<f64> {
    let mut client = Client::connect(&server.address)?;
    let mut keys = crate::keys::Rng::new(growth.seed);
    let before = server.cpu()?;
    let start = std::time::Instant::now();
    let mut commands = 0;
    while start.elapsed() < growth.time {
        let member = format!("{:012}", keys.below(CHANGED));
        client.call(&["ZADD", key, &commands.to_string(), &member])?;
        client.call(&["ZRANGE", key, "0", "9"])?;
        commands += 2;
    }
    server.drain()?;
    Ok(cpu_us(before, server.cpu()?, commands))
}
