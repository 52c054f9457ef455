//! What large replies to many clients took is given back to the system once they are sent.

use crate::harness::{Client, Database, Launch, PATIENCE, Reply, Scratch, Server, eventually};
use std::thread;
use std::time::Duration;

const ROWS: usize = 200;
const VALUE: usize = 200_000;
const CLIENTS: usize = 32;
const READS: usize = 16;
/// Replies pile up for so long before their clients read them.
const PILING: Duration = Duration::from_millis(200);
/// Of the most that was resident beyond what a server with a full cache has, what may be left.
const LEFT_MAX: f64 = 0.2;

/// Resident now, and at most so far: kB.
fn resident(server: &Server) -> (f64, f64) {
    let path = format!("/proc/{}/status", server.id());
    let status = std::fs::read_to_string(path).expect("it runs");
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it is told");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number")
    };
    (of("VmRSS:"), of("VmHWM:"))
}

fn reads(mut client: Client, first: usize) {
    for round in 0..4 {
        for read in 0..READS {
            let key = format!("big:{}", (first * 7 + round * 13 + read) % ROWS);
            client.send(&["HGETALL", &key]).expect("it is sent");
        }
        thread::sleep(PILING);
        for _ in 0..READS {
            assert!(matches!(client.receive(), Ok(Reply::Array(_))));
        }
    }
}

#[test]
fn what_heavy_reads_took_is_given_back_when_they_are_over() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with("CREATE TABLE big (id ID , data TEXT)");
    let value = "x".repeat(VALUE);
    for id in 0..ROWS {
        database.execute(&format!("INSERT INTO big VALUES ({id}, '{value}')"));
    }
    let server = Launch::before(&scratch, &database.url()).with(&["--cache-size", "16M"]).start();
    let mut client = server.client();
    for id in 0..ROWS {
        assert!(matches!(client.call(&["HGETALL", &format!("big:{id}")]), Reply::Array(_)));
    }
    let (before, _) = resident(&server);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let client = server.client();
            scope.spawn(move || reads(client, number));
        }
    });
    let (_, most) = resident(&server);
    assert!(most > 100_000.0, "the load is too light to tell: {most} kB");
    let mut shown = 0.0;
    eventually("it is given back", PATIENCE / 4, || {
        let (now, most) = resident(&server);
        if now != shown {
            eprintln!("{now} of {most} kB, {before} before");
            shown = now;
        }
        (now - before) / (most - before) < LEFT_MAX
    });
}
