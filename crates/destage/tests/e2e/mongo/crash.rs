//! Kills of Destage and of the origin at random moments under concurrent load, where there are no transactions.

use super::{before, by_id};
use crate::harness::ferretdb::Ferret;
use crate::harness::rounds::hold;
use crate::harness::{Client, Launch, Random, Reply, Scratch, millis};
use mongodb::bson::doc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

/// The name that a `reproduce:` line gives.
pub(crate) const NAME: &str = "mongodb";

/// What a key of a writer may hold: after its last reply, or after the command that got none.
#[derive(Clone, Debug, Default)]
struct Expected {
    known: Option<i64>,
    asked: Option<Option<i64>>,
}

impl Expected {
    fn allows(&self, found: Option<i64>) -> bool {
        found == self.known || Some(found) == self.asked
    }
}

/// Sets and deletes its own document until the connection ends.
fn set_and_delete(client: &mut Client, writer: usize, round: i64, expected: &mut Expected) {
    let stock = client.try_call(&["HGET", &format!("products:{writer}"), "stock"]);
    let Ok(found) = stock else { return };
    if found.is_error() {
        // The origin is away.
        return;
    }
    let found = (found != Reply::Nil).then(|| found.int());
    assert!(expected.allows(found), "writer {writer}: {found:?} is none of {expected:?}");
    *expected = Expected { known: found, asked: None };
    for n in 0..OPERATIONS_MAX {
        let delete = n % 3 == 2;
        let value = round * 1_000 + n;
        let command = if delete {
            format!("DEL products:{writer}")
        } else {
            format!("HSET products:{writer} name x stock {value}")
        };
        let after = (!delete).then_some(value);
        expected.asked = Some(after);
        let words: Vec<&str> = command.split(' ').collect();
        match client.try_call(&words) {
            Ok(reply) if !reply.is_error() => {}
            Ok(_) | Err(_) => return,
        }
        *expected = Expected { known: after, asked: None };
    }
}

const OPERATIONS_MAX: i64 = 40;
const COUNTERS: usize = 3;

/// Increments counters until the connection ends.
fn increment(client: &mut Client, random: &mut Random, counts: &[Counts]) {
    for _ in 0..OPERATIONS_MAX {
        let counter = random.between(0, COUNTERS as u64) as usize;
        counts[counter].sent.fetch_add(1, Ordering::Relaxed);
        let words = ["HINCRBY", &format!("counters:{counter}"), "n", "1"];
        match client.try_call(&words) {
            Ok(reply) if !reply.is_error() => {}
            Ok(_) | Err(_) => return,
        }
        counts[counter].acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Counts {
    sent: AtomicI64,
    acknowledged: AtomicI64,
}

const WRITERS: usize = 2;
const KILLS: u64 = 3;

/// What clients did, in all.
struct Done {
    counts: Vec<Counts>,
    expected: Vec<Expected>,
}

/// One seeded round: load and a kill, several times over; then the origin must hold what was acknowledged. The increments
/// acknowledged, or what does not fit; `None` where there is no origin.
pub(crate) fn round(seed: u64) -> Option<Result<i64, String>> {
    let scratch = Scratch::new();
    let mut ferret = Ferret::start(&scratch)?;
    // FerretDB that is killed while it makes a collection cannot use it any more: they are all made before.
    for collection in
        ["products", "counters", "destage_owner", "destage_tombstones", "destage_parked"]
    {
        ferret.command(doc! { "create": collection });
    }
    let mut random = Random::new(seed, 0);
    let (linger, batch) = (["0", "1ms", "20ms"], ["1", "7", "50", "1000"]);
    let launch = before(&scratch, &ferret).with(&["--staleness", "1h"]);
    let launch = launch.with(&["--linger", *random.pick(&linger), "--batch", *random.pick(&batch)]);
    let counts = (0..COUNTERS).map(|_| Counts::default()).collect();
    let mut done = Done { counts, expected: vec![Expected::default(); WRITERS] };
    for kill in 1..=KILLS {
        load_and_kill(&launch, &mut ferret, &mut random, kill as i64, &mut done);
    }
    let server = launch.start();
    server.drain();
    let checked = check(&ferret, &done);
    Some(checked.map_err(|what| format!("{NAME}, seed {seed}: {what}")))
}

/// One of: the server, the origin and then the server, the origin that is there again before the server.
fn load_and_kill(
    launch: &Launch,
    ferret: &mut Ferret,
    random: &mut Random,
    kill: i64,
    done: &mut Done,
) {
    let server = launch.start();
    let listen = server.listen;
    let Done { counts, expected } = done;
    let counts = &*counts;
    let (takes_origin, comes_back) = (random.between(0, 2) == 0, random.between(0, 2) == 0);
    let streams = [(); 2].map(|()| Random::new(random.between(0, u64::MAX), 0));
    thread::scope(|scope| {
        for (writer, expected) in expected.iter_mut().enumerate() {
            scope.spawn(move || {
                if let Ok(mut client) = Client::try_connect(listen) {
                    set_and_delete(&mut client, writer, kill, expected);
                }
            });
        }
        for mut stream in streams {
            scope.spawn(move || {
                if let Ok(mut client) = Client::try_connect(listen) {
                    increment(&mut client, &mut stream, counts);
                }
            });
        }
        thread::sleep(millis(random.between(20, 250)));
        if takes_origin {
            ferret.kill();
            thread::sleep(millis(random.between(0, 100)));
        }
        if takes_origin && comes_back {
            ferret.restart();
            thread::sleep(millis(random.between(0, 250)));
        }
        server.kill();
    });
    if takes_origin && !comes_back {
        ferret.restart();
    }
}

fn check(ferret: &Ferret, done: &Done) -> Result<i64, String> {
    let mut sum = 0;
    for (counter, counts) in done.counts.iter().enumerate() {
        let found = ferret.number("counters", by_id(counter.to_string()), "n");
        let sent = counts.sent.load(Ordering::Relaxed);
        let acknowledged = counts.acknowledged.load(Ordering::Relaxed);
        if !(acknowledged..=sent).contains(&found) {
            return Err(format!(
                "counter {counter} is {found}, {acknowledged} of {sent} increments were acknowledged"
            ));
        }
        sum += acknowledged;
    }
    for (writer, expected) in done.expected.iter().enumerate() {
        let document = ferret.document("products", by_id(writer as i64));
        let found = document.map(|found| i64::from(found.get_i32("stock").expect("it is an int")));
        if !expected.allows(found) {
            return Err(format!("writer {writer}: {found:?} is none of {expected:?}"));
        }
    }
    match ferret.count("destage_parked") {
        0 => Ok(sum),
        parked => Err(format!("{parked} groups are parked, none was to be rejected")),
    }
}

#[test]
fn no_acknowledged_write_is_lost_or_doubled_by_kill_9_of_destage_and_of_the_origin() {
    hold(NAME, 3, round);
}
