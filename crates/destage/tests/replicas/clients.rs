//! Clients of four languages, unmodified, that find the owner by look-ups of Sentinel's protocol: they go on by themselves when
//! it is killed.

use crate::world::World;
use destage_testkit::needs::prepared;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

/// The clients end by themselves after it, whatever has become of the test. Jedis looks anew five seconds after it has lost a
/// Sentinel.
const SPAN: Duration = Duration::from_secs(240);
/// Within it each client is told of enough writes.
const PATIENCE: Duration = Duration::from_secs(100);
/// Each client has rows of its own.
const ROWS_EACH: i64 = 1_000_000;
/// So many writes are acknowledged to each client, in front of the kill and behind it.
const TOLD_MIN: usize = 20;

/// The programs that are there, each with its name; all or none.
fn programs() -> Option<Vec<(&'static str, Command)>> {
    let mut python = Command::new(prepared("DESTAGE_TEST_PYTHON")?);
    python.arg("-B");
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/clients/python/sentinel.py"));
    let mut go = Command::new(prepared("DESTAGE_TEST_GO_CLIENT")?);
    go.arg("sentinel");
    let mut node = Command::new("node");
    node.arg(Path::new(&prepared("DESTAGE_TEST_NODE_CLIENT")?).with_file_name("sentinel.mjs"));
    let folder = prepared("DESTAGE_TEST_JAVA_SENTINEL")?;
    let java = |program| {
        let mut java = Command::new("java");
        java.args(["-cp", &format!("{folder}:{folder}/*"), program]);
        java
    };
    let (jedis, lettuce) = (java("Sentinel"), java("Lettuce"));
    Some(vec![
        ("redis-py", python),
        ("go-redis", go),
        ("ioredis", node),
        ("Jedis", jedis),
        ("Lettuce", lettuce),
    ])
}

/// So many writes a client was told of, before the kill and afterwards.
type Told = [AtomicUsize; 2];

/// What a client said of each row. It ends once there is such a file.
fn said(
    mut program: Command,
    places: &str,
    first: i64,
    end: &Path,
    is_killed: &AtomicBool,
    told: &Told,
) -> Vec<(String, i64)> {
    program.args([places, &first.to_string(), &SPAN.as_secs().to_string()]).arg(end);
    let mut child = program.stdout(Stdio::piped()).spawn().expect("the client starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let said = lines.map_while(Result::ok).map(|line| {
        let (word, row) = line.split_once(' ').expect("a word and a row");
        if word == "told" {
            told[usize::from(is_killed.load(SeqCst))].fetch_add(1, SeqCst);
        }
        (word.to_owned(), row.parse().expect("a row"))
    });
    let said = said.collect();
    let status = child.wait().expect("a child of ours");
    assert!(status.success(), "{program:?}: {status}");
    said
}

#[test]
fn clients_that_know_sentinel_go_on_when_the_owner_is_killed() {
    let Some(programs) = programs() else { return };
    let mut world = World::new(3, &[]);
    let mut owner = world.start(&["--failover", "1s"]);
    let mut standby = world.start_standby(&["--failover", "1s"]);
    let places = format!("{},{}", owner.address(), standby.address());
    let folder = tempfile::tempdir().expect("a folder");
    let end = folder.path().join("end");
    let is_killed = AtomicBool::new(false);
    let told: Vec<(&str, Told)> =
        programs.iter().map(|(name, _)| (*name, Told::default())).collect();
    let all: Vec<_> = std::thread::scope(|scope| {
        let clients: Vec<_> = programs
            .into_iter()
            .zip(&told)
            .zip(1..)
            .map(|(((name, program), (_, told)), number)| {
                let (places, end, is_killed) = (&places, &end, &is_killed);
                let first = number * ROWS_EACH;
                scope.spawn(move || (name, said(program, places, first, end, is_killed, told)))
            })
            .collect();
        let await_told = |when: usize| {
            let until = Instant::now() + PATIENCE;
            let is_enough = |(_, told): &(&str, Told)| told[when].load(SeqCst) >= TOLD_MIN;
            while !told.iter().all(is_enough) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        await_told(0);
        owner.kill();
        is_killed.store(true, SeqCst);
        await_told(1);
        std::fs::write(&end, "").expect("the folder can be written to");
        clients.into_iter().map(|one| one.join().expect("a client")).collect()
    });
    standby.end();
    let mut rows: BTreeMap<i64, i64> = world.origin_rows().into_iter().collect();
    for (name, said) in all {
        for (word, row) in &said {
            let found = rows.remove(row);
            match word.as_str() {
                "told" => {
                    assert_eq!(found, Some(1), "{name} was told that row {row} was written");
                }
                "unknown" => assert!(matches!(found, None | Some(1)), "{name}: row {row}"),
                _ => panic!("{name} was told '{word}' of row {row}"),
            }
        }
    }
    for (name, told) in &told {
        println!("{name}: {told:?}");
        assert!(told.iter().all(|count| count.load(SeqCst) >= TOLD_MIN), "{name}: {told:?}");
    }
    assert!(rows.is_empty(), "nobody wrote {rows:?}");
}
