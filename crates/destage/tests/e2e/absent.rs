//! Rows that are known not to be there: they are answered and made without the origin, and others' rows are not overwritten.

use crate::harness::{
    Database, Kind, Launch, OwnServer, PATIENCE, Random, Reply, Scratch, Server, eventually,
    millis, shop,
};
use std::thread;

const KEEPS: [&str; 2] = ["--absent-filter", "keys"];
/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

/// The keys of all tables are read.
#[track_caller]
fn are_known(server: &Server) {
    eventually("the keys are known", PATIENCE, || {
        let status = server.status();
        let absent = &status["absent"];
        assert_eq!(absent["off"], 0, "{absent}");
        absent["filling"] == 0 && absent["ready"].as_u64() > Some(0)
    });
}

fn answered(server: &Server) -> u64 {
    server.status()["absent"]["answered_total"].as_u64().expect("a number")
}

#[test]
fn missing_rows_are_looked_up_and_new_ones_made_without_asking_the_origin() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(shop::each(&scratch)) {
        let server = Launch::before(&scratch, &database.url()).with(&KEEPS).start();
        are_known(&server);
        let mut client = server.client();
        for number in 0..100 {
            assert_eq!(client.run(&format!("EXISTS labels:{number}:x")), Reply::Int(0));
            assert_eq!(client.run(&format!("HGETALL labels:{number}:y")).array(), []);
            assert_eq!(client.run(&format!("HSET labels:{number}:z note n")), Reply::Int(1));
        }
        let told = answered(&server);
        assert!((290..=300).contains(&told), "{told} of 300 were answered");
        assert_eq!(server.metric("destage_absent_answers_total"), told as f64);
        // What is there is asked for.
        assert_eq!(client.run("HGET customers:1 name").text(), "Ada");
        assert_eq!(answered(&server), told);
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM labels"), 100);
        let table = server.status()["absent"]["tables"].clone();
        let labels = table.as_array().expect("tables").iter().find(|one| one["name"] == "labels");
        assert_eq!(labels.expect("it is told of")["keys"], 100);
    }
}

#[test]
fn new_rows_are_made_while_the_origin_is_away() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let scratch = Scratch::new();
        let Some(mut origin) = OwnServer::start(kind) else { continue };
        let database = shop::filled(origin.database());
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.with(&KEEPS).start();
        are_known(&server);
        origin.stop();
        let mut client = server.client();
        for number in 0..200 {
            let made = client.run(&format!("HSET labels:{number}:new note n"));
            // A few that are not there pass for such that may be.
            let is_asked = matches!(&made, Reply::Error(why) if why.starts_with("UNAVAILABLE"));
            assert!(made == Reply::Int(1) || is_asked && number > 0, "{made:?}");
        }
        let made = answered(&server);
        assert!(made >= 190, "{made} of 200 were made");
        assert!(client.run("HGET customers:1 name").error().starts_with("UNAVAILABLE"));
        origin.restart();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM labels"), made as i64);
    }
}

/// Negative control of the test above.
#[test]
fn without_their_keys_no_rows_are_made_while_the_origin_is_away() {
    let scratch = Scratch::new();
    let Some(mut origin) = OwnServer::start(Kind::Postgres) else { return };
    let database = shop::filled(origin.database());
    let server = Launch::before(&scratch, &database.url()).with(&["--client-wait", "2s"]).start();
    assert!(server.status()["absent"].is_null());
    origin.stop();
    let refused = server.client().run("HSET labels:1:new note n");
    assert!(refused.error().starts_with("UNAVAILABLE"), "{refused:?}");
}

/// > With `--absent-filter keys`, a row that another program has made is never overwritten by an insert.
#[test]
fn a_row_that_another_program_has_made_is_not_overwritten_but_parked_beside() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(shop::each(&scratch)) {
        let server = Launch::before(&scratch, &database.url()).with(&KEEPS).start();
        are_known(&server);
        database.execute("INSERT INTO labels (name, kind, note) VALUES ('a', 'b', 'theirs')");
        let mut client = server.client();
        assert_eq!(client.run("HSET labels:a:b note ours"), Reply::Int(1));
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        assert_eq!(database.value("SELECT note FROM labels WHERE name = 'a'"), "theirs");
        assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 1);
    }
}

#[test]
fn a_table_that_others_write_is_asked_for_each_row() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let file = scratch.join("destage.toml");
    let settings = "absent-filter = 'keys'\n[table.labels]\nwriters = 'others'\n[table.customers]\n\
                    max_age = '1h'\n[table.orders]\nttl = 'cached-copy'\n";
    std::fs::write(&file, settings).expect("the settings can be written");
    let config = file.display().to_string();
    let server = Launch::before(&scratch, &database.url()).with(&["--config", &config]).start();
    eventually("the others are known", PATIENCE, || server.status()["absent"]["filling"] == 0);
    let status = server.status();
    assert_eq!((&status["absent"]["off"], &status["absent"]["ready"]), (&3.into(), &2.into()));
    let mut client = server.client();
    database.execute("INSERT INTO labels (name, kind, note) VALUES ('a', 'b', 'theirs')");
    database.execute("INSERT INTO customers (id, name) VALUES (70, 'theirs')");
    database.execute("INSERT INTO orders (id, customer_id) VALUES (70, 1)");
    for key in ["customers:70", "orders:70"] {
        assert_eq!(client.run(&format!("EXISTS {key}")), Reply::Int(1), "{key}");
    }
    assert_eq!(client.run("HSET labels:a:b note ours"), Reply::Int(0), "it is there");
    assert_eq!(answered(&server), 0);
    server.drain();
    assert_eq!(database.value("SELECT note FROM labels WHERE name = 'a'"), "ours");
}

/// Kills a server while keys are read, while they are known, and with new rows undecided; each acknowledged row is there.
fn survives_kills(scratch: &Scratch, database: &Database, seed: u64) {
    let mut random = Random::new(seed, 0);
    let mut made: Vec<u64> = Vec::new();
    for round in 0..6 {
        let later: &[&str] = if random.between(0, 2) == 0 { &LATER } else { &[] };
        // Too small for the rows: they leave it, and are looked for.
        let arguments = [&KEEPS, &["--cache-size", "64K"], later].concat();
        let server = Launch::before(scratch, &database.url()).with(&arguments).start();
        let mut client = server.client();
        let are_there = |client: &mut crate::harness::Client| {
            for number in &made {
                let key = format!("labels:{number}:k");
                assert_eq!(client.run(&format!("EXISTS {key}")), Reply::Int(1), "{key} is denied");
            }
        };
        are_there(&mut client);
        if random.between(0, 3) > 0 {
            are_known(&server);
            are_there(&mut client);
        }
        let count = random.between(20, 200);
        let writer = thread::spawn(move || {
            let mut acknowledged = Vec::new();
            for number in (round * 1_000..).take(count as usize) {
                let command =
                    ["HSET".into(), format!("labels:{number}:k"), "note".into(), "n".into()];
                match client.try_call(&command) {
                    Ok(Reply::Int(1)) => acknowledged.push(number),
                    Ok(other) => panic!("{other:?}"),
                    Err(_) => break,
                }
            }
            acknowledged
        });
        thread::sleep(millis(random.between(0, 300)));
        server.kill();
        made.extend(writer.join().expect("the writer ends"));
    }
    let server = Launch::before(scratch, &database.url()).with(&KEEPS).start();
    server.drain();
    for number in made {
        let sql = format!("SELECT count(*) FROM labels WHERE name = '{number}' AND kind = 'k'");
        assert_eq!(database.number(&sql), 1, "{number}");
    }
}

/// > A row that this server has acknowledged is never taken for absent, whatever crashes: its key is known before the
/// > acknowledgement, also where its insert is undecided, parked or applied later.
#[test]
fn no_acknowledged_row_is_denied_after_kills_in_any_state() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(shop::each(&scratch)) {
        survives_kills(&scratch, &database, 1);
    }
}
