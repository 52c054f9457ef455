//! Foreign keys that are judged before the acknowledgement (`fk = "ask"`), and those that are left to the origin.

use super::asked::{on_each, parked, with_sections};
use crate::harness::ferretdb::Ferret;
use crate::harness::schema::schema;
use crate::harness::{Client, Database, Kind, Launch, OwnServer, PATIENCE, Scratch, eventually};

const SHOP: &str = "
CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, email VARCHAR(40) UNIQUE);
CREATE TABLE shelves (hall INTEGER NOT NULL, place INTEGER NOT NULL, PRIMARY KEY (hall, place));
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, earlier INTEGER, hall INTEGER, place INTEGER,
    mail VARCHAR(40),
    CONSTRAINT buyer FOREIGN KEY (customer) REFERENCES customers (id),
    CONSTRAINT follows FOREIGN KEY (earlier) REFERENCES orders (id),
    CONSTRAINT kept FOREIGN KEY (hall, place) REFERENCES shelves (hall, place),
    CONSTRAINT told FOREIGN KEY (mail) REFERENCES customers (email));
INSERT INTO customers (id, name) VALUES (1, 'Ada'), (2, 'Barbara'), (3, 'Cleo');
INSERT INTO shelves VALUES (1, 1), (1, 2);
";

const SECTIONS: &str = "[table.orders]\nfk = \"ask\"\n";

/// The error of a command that refers to a row which is not there.
#[track_caller]
fn refused(client: &mut Client, command: &str, key: &str, missing: &str) {
    let reply = client.run(command);
    let told = reply.error();
    let named = format!("FOREIGN KEY ({key}) REFERENCES ");
    let why = format!(": there is no {missing}, so nothing was written; make {missing} first");
    assert!(told.contains(&named) && told.contains(&why), "{command}: {told}");
}

#[test]
fn a_reference_to_no_row_is_refused_and_nothing_of_it_is_acknowledged() {
    on_each(SHOP, SECTIONS, |launch, server, database| {
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        refused(&mut client, "HSET orders:1 customer 9", "customer", "customers:9");
        assert_eq!(client.run("EXISTS orders:1").int(), 0);
        // Of a row at the origin, of one that is undecided, of the row itself.
        assert_eq!(client.run("HSET orders:1 customer 1").int(), 1);
        refused(&mut client, "HSET orders:1 customer 8", "customer", "customers:8");
        assert_eq!(client.run("HGET orders:1 customer").int(), 1);
        assert_eq!(client.run("HSET customers:9 name Dora").int(), 1);
        assert_eq!(client.run("HSET orders:2 customer 9").int(), 1);
        assert_eq!(client.run("HSET orders:3 earlier 3").int(), 1);
        refused(&mut client, "HSET orders:4 earlier 77", "earlier", "orders:77");
        assert_eq!(client.run("HSET orders:4 earlier 3 customer 2").int(), 2);
        // Two columns: NULL in one of them refers to nothing.
        refused(&mut client, "HSET orders:5 hall 1 place 9", "hall, place", "shelves:1:9");
        assert_eq!(client.run("HSET orders:5 hall 1").int(), 1);
        refused(&mut client, "HSET orders:5 place 9", "hall, place", "shelves:1:9");
        assert_eq!(client.run("HSET orders:5 place 2").int(), 1);
        assert_eq!(client.run("HDEL orders:5 hall").int(), 1);
        assert_eq!(client.run("HSET orders:5 place 9").int(), 0);
        // A transaction is judged by what comes of it, as a whole.
        for command in ["MULTI", "HSET customers:10 name Eva", "HSET orders:6 customer 10"] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        assert!(!client.run("EXEC").is_error());
        for command in ["MULTI", "HSET orders:1 place 7", "HSET orders:7 customer 11"] {
            assert!(!client.run(command).is_error(), "{command}");
        }
        let reply = client.run("EXEC");
        let told = reply.error();
        assert!(told.starts_with("EXECABORT") && told.contains("customers:11"), "{told}");
        assert_eq!(client.run("HEXISTS orders:1 place").int(), 0);
        // A deletion that is undecided counts.
        assert_eq!(client.run("DEL customers:3").int(), 1);
        refused(&mut client, "HSET orders:7 customer 3", "customer", "customers:3");
        client.run("DESTAGE RESUME").ok();
        server.drain();
        assert_eq!(parked(&server), 0);
        assert_eq!(database.number("SELECT count(*) FROM orders"), 6);
        assert_eq!(database.number("SELECT count(customer) FROM orders"), 4);
        // What the journal still holds is known after a crash.
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HSET customers:12 name Flo").int(), 1);
        refused(&mut client, "HSET orders:8 customer 13", "customer", "customers:13");
        server.kill();
        let server = launch.start();
        let mut client = server.client();
        assert_eq!(client.run("HSET orders:8 customer 12").int(), 1);
        refused(&mut client, "HSET orders:9 customer 13", "customer", "customers:13");
        server.drain();
        assert_eq!(database.number("SELECT customer FROM orders WHERE id = 8"), 12);
        assert_eq!(parked(&server), 0);
    });
}

#[test]
fn what_other_programs_do_meanwhile_is_the_origins_to_judge() {
    on_each(SHOP, SECTIONS, |_, server, database| {
        let mut client = server.client();
        // A row that others make is found, though it was missing when it was read last.
        assert_eq!(client.run("EXISTS customers:8").int(), 0);
        database.execute("INSERT INTO customers (id, name) VALUES (8, 'Gil')");
        assert_eq!(client.run("HSET orders:1 customer 8").int(), 1);
        server.drain();
        assert_eq!(parked(&server), 0);
        // One that they delete is there as long as it is cached, and one that is no primary key is not asked for.
        assert_eq!(client.run("EXISTS customers:3").int(), 1);
        database.execute("DELETE FROM customers WHERE id = 3");
        assert_eq!(client.run("HSET orders:2 customer 3").int(), 1);
        assert_eq!(client.run("HSET orders:3 mail nobody").int(), 1);
        eventually("both are parked", PATIENCE, || parked(&server) == 2);
    });
}

#[test]
fn what_cannot_be_asked_while_the_origin_is_away_is_not_acknowledged() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some(mut origin) = OwnServer::start(kind) else { return };
        let (scratch, database) = (Scratch::new(), origin.database().with(SHOP));
        let launch = Launch::before(&scratch, &database.url()).with(&["--client-wait", "1s"]);
        let server = with_sections(&launch, &scratch, SECTIONS).start();
        let mut client = server.client();
        assert_eq!(client.run("EXISTS orders:1 orders:2 customers:1").int(), 1);
        origin.stop();
        let reply = client.run("HSET orders:1 customer 2");
        let told = reply.error();
        assert!(told.starts_with("UNAVAILABLE"), "{told}");
        client.run("MULTI").ok();
        client.run("HSET orders:2 customer 2");
        let reply = client.run("EXEC");
        assert!(reply.is_error(), "{reply:?}");
        assert_eq!(client.run("EXISTS orders:1 orders:2").int(), 0);
        // What is known is taken.
        assert_eq!(client.run("HSET orders:2 customer 1").int(), 1);
        origin.restart();
        assert_eq!(client.run("HSET orders:1 earlier 2").int(), 1);
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM orders"), 2);
        assert_eq!(database.number("SELECT count(customer) FROM orders"), 1);
    }
}

#[test]
fn the_schema_tells_of_each_foreign_key_who_judges_it() {
    on_each(SHOP, SECTIONS, |launch, _server, database| {
        let config = launch.data().with_file_name("destage.toml").display().to_string();
        let schema = |more: &[&str]| schema(database, more);
        let asked = schema(&["--config", &config]);
        let line = |shown: &str, key: &str| {
            let key = format!("FOREIGN KEY ({key}) REFERENCES ");
            let line = shown.lines().find(|line| line.contains(&key));
            line.unwrap_or_else(|| panic!("no {key} in {shown}")).to_owned()
        };
        for key in ["customer", "earlier", "hall, place"] {
            let line = line(&asked, key);
            assert!(line.ends_with(": judged before the acknowledgement"), "{line}");
        }
        let left = line(&asked, "mail");
        assert!(
            left.ends_with("left to the origin (it refers to other columns than the key)"),
            "{left}"
        );
        let plain = line(&schema(&[]), "customer");
        assert!(
            plain.ends_with("left to the origin (unless the settings say fk = \"ask\")"),
            "{plain}"
        );
        let json = schema(&["--config", &config, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        let tables = json["tables"].as_array().expect("there are tables");
        let orders = tables.iter().find(|table| table["name"] == "orders").expect("it is there");
        let keys = orders["foreign_keys"].as_array().expect("there are foreign keys");
        let judged = keys.iter().filter(|key| key["before_acknowledgement"] == true).count();
        assert_eq!((keys.len(), judged), (4, 3), "{json}");
    });
}

#[test]
fn a_table_without_foreign_keys_that_can_be_asked_for_is_refused_at_the_start() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(SHOP);
    let launch = Launch::before(&scratch, &database.url());
    for (sections, why) in [
        ("[table.customers]\nfk = 'ask'\n", "it has no foreign key"),
        ("[table.orders]\nfk = 'ask'\nblind = true\n", "written blind"),
    ] {
        with_sections(&launch, &scratch, sections).refused().says(2, &["fk = \"ask\"", why]);
    }
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let launch = Launch::before(&scratch, &ferret.url());
    let sections = "[table.products]\nid = 'int'\nfields = { maker = 'int' }\nfk = 'ask'\n";
    let exit = with_sections(&launch, &scratch, sections).refused();
    exit.says(2, &["[table.products]", "MongoDB has no foreign keys"]);
}
