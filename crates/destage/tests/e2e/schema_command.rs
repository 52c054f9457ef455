//! `destage schema` says what a start would make of an origin and a settings file.

use crate::harness::ferretdb::Ferret;
use crate::harness::server::binary;
use crate::harness::{Database, Launch, Scratch};
use mongodb::bson::oid::ObjectId;
use mongodb::bson::{Bson, doc};
use std::process::Command;

const TABLES: &str = "
CREATE TABLE stock (id ID , n INTEGER NOT NULL DEFAULT 0);
CREATE TABLE sold (id ID , n INTEGER NOT NULL DEFAULT 0);
CREATE TABLE prices (id ID , n INTEGER NOT NULL DEFAULT 0);
CREATE TABLE told (id ID , n INTEGER NOT NULL DEFAULT 0);
CREATE TABLE later (id ID , at TIMESTAMP NULL);
CREATE TABLE seen (id ID , n INTEGER NOT NULL DEFAULT 0);
INSERT INTO stock (id) VALUES (1);
INSERT INTO sold (id) VALUES (1);
";

/// A trigger on each of these tables, which does nothing that matters.
fn triggers(database: &Database) -> String {
    let trigger = |table: &str| match database {
        Database::Sqlite(_) => format!(
            "CREATE TRIGGER {table}_t AFTER UPDATE ON {table} BEGIN UPDATE seen SET n = n + 1; END;"
        ),
        Database::Postgres(_) => format!(
            "CREATE TRIGGER {table}_t AFTER UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION note();"
        ),
        Database::Mariadb(_) => format!(
            "CREATE TRIGGER {table}_t AFTER UPDATE ON {table} FOR EACH ROW UPDATE seen SET n = n + 1;"
        ),
    };
    let note = match database {
        Database::Postgres(_) => {
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE seen SET n = n + 1; RETURN NEW; \
             END $$;"
        }
        _ => "",
    };
    let stamp = match database {
        Database::Sqlite(_) => {
            "CREATE TRIGGER later_t AFTER UPDATE ON later BEGIN UPDATE later SET at = CURRENT_TIMESTAMP \
             WHERE id = NEW.id; END;"
        }
        Database::Postgres(_) => {
            "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.at = now(); RETURN NEW; END $$; \
             CREATE TRIGGER later_t BEFORE UPDATE ON later FOR EACH ROW EXECUTE FUNCTION stamp();"
        }
        Database::Mariadb(_) => {
            "CREATE TRIGGER later_t BEFORE UPDATE ON later FOR EACH ROW SET NEW.at = NOW();"
        }
    };
    let others = ["stock", "sold", "prices", "told"].map(trigger);
    others.iter().fold(format!("{note}{stamp}"), |all, one| all + one)
}

/// The exit code, what is printed, and what is said.
fn schema(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(binary());
    let output = command.arg("schema").args(arguments).env_remove("DESTAGE_ORIGIN").output();
    let output = output.expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it is text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What is said of a table's writes.
#[track_caller]
fn verdict<'s>(shown: &'s str, table: &str) -> &'s str {
    let line = shown.lines().find(|line| line.starts_with(&format!("{table}:{{")));
    line.unwrap_or_else(|| panic!("no {table} in {shown}"))
}

#[test]
fn the_settings_file_names_the_origin_and_what_it_declares_is_in_the_verdict() {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        database.execute(&triggers(&database));
        let file = scratch.join(format!("{number}.toml"));
        let settings = format!(
            "origin = '{}'\norigin-timeout = '9s'\n[table.stock]\ntriggers = 'none'\n[table.prices]\ntriggers = ['seen']\n\
             [table.told]\ntriggers = {{ sets = ['n'] }}\n\
             [table.seen]\nack = 'origin'\nmax_age = '30s'\n",
            database.url()
        );
        std::fs::write(&file, &settings).expect("the settings can be written");
        let config = file.display().to_string();
        let (code, shown, said) = schema(&["--config", &config]);
        assert_eq!(code, Some(0), "{said}");
        for (table, part) in [
            ("stock", "writes are buffered"),
            ("stock", "declared to change nothing that is cached"),
            ("sold", "writes go through"),
            ("prices", "writes go through"),
            ("prices", "declared to change seen"),
            ("sold", "trigger sold_t ("),
            ("later", "trigger later_t sets at to the time, and does nothing else"),
            ("told", "declared to set columns of its own row only"),
            ("told", "triggers are declared to set n"),
            ("seen", "writes wait for the origin"),
            ("seen", "at most 30s old"),
        ] {
            assert!(verdict(&shown, table).contains(part), "{table} {part}: {shown}");
        }
        assert!(!verdict(&shown, "stock").contains("go through"), "{shown}");
        let (_, json, _) = schema(&["--config", &config, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        let tables = json["tables"].as_array().expect("a list");
        let of =
            |name: &str| tables.iter().find(|table| table["name"] == name).expect("it is there");
        assert!(of("stock")["writes_go_through"].is_null(), "{json}");
        assert!(of("sold")["writes_go_through"].is_string(), "{json}");

        // The server holds to it: one write waits for the origin, the other does not.
        let launch = Launch::in_folder(&scratch, &format!("data-{number}"));
        let server = launch.with(&["--config", &config, "--no-auth"]).start();
        let mut client = server.client();
        client.run("DESTAGE PAUSE").ok();
        assert_eq!(client.run("HINCRBY stock:1 n 1").int(), 1);
        client.send(&["HINCRBY", "sold:1", "n", "1"]).expect("it is sent");
        std::thread::sleep(crate::harness::millis(300));
        assert_eq!(server.status()["clients"]["waiting"], 1);
        server.client().run("DESTAGE RESUME").ok();
        assert_eq!(client.receive().expect("it is answered").int(), 1);

        // What a start would refuse is refused here, below what there is.
        std::fs::write(&file, settings + "[table.nosuch]\nblind = true\n").expect("it is written");
        let (code, shown, said) = schema(&["--config", &config]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("nosuch") && shown.contains("stock:{id}"), "{said} {shown}");
    }
    let file = scratch.join("none.toml");
    std::fs::write(&file, "policy = 'write-through'\n").expect("the settings can be written");
    let (code, _, said) = schema(&["--config", &file.display().to_string()]);
    assert!(code == Some(2) && said.contains("--origin"), "{said}");
    let (code, _, said) = schema(&[]);
    assert!(code == Some(2) && said.contains("--origin"), "{said}");
}

#[test]
fn a_start_before_a_mongodb_of_which_nothing_is_said_says_what_to_write() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let id = ObjectId::parse_str("65a0c3d2e1f0a1b2c3d4e5f6").expect("an id");
    ferret.insert(
        "products",
        vec![
            doc! { "_id": id, "name": "Lamp", "stock": 5, "size": { "width": 1.5 }, "tags": ["a"] },
            doc! { "_id": ObjectId::parse_str("65a0c3d2e1f0a1b2c3d4e5f7").expect("an id"), "stock": Bson::Null },
        ],
    );
    ferret.insert("my.logs", vec![doc! { "_id": "x", "two words": 1_i64 }]);
    let launch = Launch::before(&scratch, &ferret.url());
    let refused = launch.refused();
    refused.says(2, &["--config", "[table.products]", "id = \"objectId\"", "[table.\"my.logs\"]"]);
    // What it says to write is a settings file.
    let (_, sections) = refused.log.split_once("\n\n").expect("the sections stand apart");
    let file = scratch.join("destage.toml");
    std::fs::write(&file, sections).expect("the settings can be written");
    let config = file.display().to_string();
    let (code, shown, said) = schema(&["--origin", &ferret.url()]);
    assert!(code == Some(0) && shown.contains(sections.trim()), "{said} {shown}");
    let server = launch.with(&["--config", &config]).start();
    let mut client = server.client();
    let key = format!("products:{}", id.to_hex());
    assert_eq!(client.run(&format!("HINCRBY {key} stock 1")).int(), 6);
    assert_eq!(client.run(&format!("HGET {key} size.width")).text(), "1.5");
    assert_eq!(client.call(&["HGET", "my.logs:x", "two words"]).int(), 1);
    server.drain();
    assert_eq!(ferret.number("products", doc! { "_id": id }, "stock"), 6);
}

#[test]
fn an_empty_mongodb_is_told_how_a_section_looks() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let refused = Launch::before(&scratch, &ferret.url()).refused();
    refused.says(2, &["--config", "[table.products]", "fields"]);
    // Without tables there still are plain keys, if they are asked for.
    let server = Launch::before(&scratch, &ferret.url()).with(&["--unmapped", "cache"]).start();
    server.client().run("SET greeting hello").ok();
    assert!(server.log().contains("no key reaches a table"), "{}", server.log());
}
