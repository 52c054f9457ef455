//! Keys that `DESTAGE NEXTID` handed out: rows of them are looked up and made without asking the origin.

use crate::harness::{Database, Kind, Launch, OwnServer, Reply, Scratch, Server, shop};

/// Keys of new customers.
fn keys(server: &Server, count: usize) -> Vec<i64> {
    let keys = server.client().run(&format!("DESTAGE NEXTID customers {count}"));
    keys.array().iter().map(Reply::int).collect()
}

fn answered(server: &Server) -> u64 {
    server.status()["absent"]["answered_total"].as_u64().unwrap_or_default()
}

/// Settings by which others put rows into the table, too.
fn others_write(scratch: &Scratch, database: &Database) -> Launch {
    let file = scratch.join("destage.toml");
    std::fs::write(&file, "[table.customers]\nwriters = 'others'\n").expect("it can be written");
    let config = file.display().to_string();
    Launch::before(scratch, &database.url()).with(&["--config", &config])
}

/// > A key that `DESTAGE NEXTID` handed out is a number of a sequence, and nobody else's.
#[test]
fn rows_of_keys_that_were_handed_out_are_made_while_the_origin_is_away() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let scratch = Scratch::new();
        let Some(mut origin) = OwnServer::start(kind) else { continue };
        let database = shop::filled(origin.database());
        let server = others_write(&scratch, &database).start();
        let handed = keys(&server, 20);
        assert_eq!(server.status()["absent"]["handed"], 20);
        origin.stop();
        let mut client = server.client();
        for key in &handed {
            assert_eq!(client.run(&format!("EXISTS customers:{key}")), Reply::Int(0));
            assert_eq!(client.run(&format!("HSET customers:{key} name new")), Reply::Int(1));
            assert_eq!(client.run(&format!("HGET customers:{key} name")).text(), "new");
        }
        assert_eq!(answered(&server), 20, "each was looked for once");
        assert!(client.run("EXISTS customers:777777").error().starts_with("UNAVAILABLE"));
        origin.restart();
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM customers WHERE name = 'new'"), 20);
        assert_eq!(server.status()["absent"]["handed"], 0);
    }
}

#[test]
fn a_row_that_another_program_makes_of_such_a_key_is_parked_beside() {
    let Some(database) = shop::postgres() else { return };
    let scratch = Scratch::new();
    let server = others_write(&scratch, &database).start();
    let key = keys(&server, 2)[0];
    database.execute(&format!("INSERT INTO customers (id, name) VALUES ({key}, 'theirs')"));
    let mut client = server.client();
    assert_eq!(client.run(&format!("HSET customers:{key} name ours")), Reply::Int(1));
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    let name = format!("SELECT name FROM customers WHERE id = {key}");
    assert_eq!(database.value(&name), "theirs");
}

/// > Destage asks as ever where the table has a greater key already.
#[test]
fn keys_of_a_sequence_that_is_behind_its_table_are_asked_for() {
    let scratch = Scratch::new();
    for (scratch, database) in scratch.apart(shop::each(&scratch)) {
        if let Database::Postgres(_) = database {
            database.execute("SELECT setval(pg_get_serial_sequence('customers', 'id'), 1)");
        }
        let server = others_write(&scratch, &database).start();
        let handed = keys(&server, 3);
        let mut client = server.client();
        let there: Vec<i64> =
            handed.iter().map(|key| client.run(&format!("EXISTS customers:{key}")).int()).collect();
        let is_behind = matches!(database, Database::Postgres(_));
        assert_eq!(there, [i64::from(is_behind), 0, 0], "{handed:?}");
        // SQLite may give another program the same numbers.
        let believed = if matches!(database, Database::Mariadb(_)) { 3 } else { 0 };
        let first = if is_behind { 2 } else { believed };
        assert!(answered(&server) == believed || answered(&server) <= first, "{handed:?}");
    }
}

/// > All of it is forgotten with the process.
#[test]
fn after_a_kill_no_key_is_believed_and_no_acknowledged_row_is_denied() {
    for database in [shop::postgres(), shop::mariadb()].into_iter().flatten() {
        let scratch = Scratch::new();
        let launch = others_write(&scratch, &database).with(&["--when", "pressure"]);
        let (mut written, mut unwritten) = (Vec::new(), Vec::new());
        for round in 0..4 {
            let server = launch.start();
            let mut client = server.client();
            assert!(server.status()["absent"].is_null(), "round {round}");
            for key in &written {
                assert_eq!(client.run(&format!("EXISTS customers:{key}")), Reply::Int(1), "{key}");
            }
            for key in &unwritten {
                assert_eq!(client.run(&format!("EXISTS customers:{key}")), Reply::Int(0), "{key}");
            }
            let handed = keys(&server, 30);
            for (at, &key) in handed.iter().enumerate() {
                if at % 3 == round % 3 {
                    unwritten.push(key);
                } else {
                    let made = client.run(&format!("HSET customers:{key} name n"));
                    assert_eq!(made, Reply::Int(1), "{key}");
                    written.push(key);
                }
            }
            server.kill();
        }
        let server = launch.start();
        server.drain();
        let count = database.number("SELECT count(*) FROM customers WHERE name = 'n'");
        assert_eq!(count, written.len() as i64);
    }
}
