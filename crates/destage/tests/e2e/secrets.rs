//! What nobody shall see: passwords, in whatever way they were written down, and the values of rows that were rejected.

use crate::harness::ferretdb::Ferret;
use crate::harness::server::binary;
use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, eventually};
use crate::parking::named;
use mongodb::bson::doc;
use std::process::Command;

/// In a password as people choose them.
const PASSWORD: &str = "p@ss/w:o?r#d%";

/// A user with this password who may do everything there, and the URL with the password as it is.
fn with_user(database: &Database) -> String {
    let url = database.url();
    let (scheme, rest) = url.split_once("://").expect("it is a URL");
    let (_, place) = rest.split_once('@').expect("the URL has a user");
    let name = place.rsplit('/').next().expect("the URL names a database");
    let user = format!("u_{name}");
    database.execute(&match database {
        Database::Mariadb(_) => format!(
            "CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON {name}.* TO '{user}'@'%'"
        ),
        _ => format!("CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{PASSWORD}'"),
    });
    format!("{scheme}://{user}:{PASSWORD}@{place}")
}

#[test]
fn a_password_is_taken_as_it_is_where_it_can_be_told() {
    let scratch = Scratch::new();
    let databases = [Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with("CREATE TABLE t (id ID , n INTEGER)");
        let url = with_user(&database);
        let launch = Launch::before(&scratch, &url).elsewhere(&scratch, &format!("data-{number}"));
        let server = launch.start();
        assert_eq!(server.client().run("HSET t:1 n 5").int(), 1);
        server.drain();
        assert_eq!(database.number("SELECT n FROM t"), 5);
        assert!(
            !server.log().contains("p@ss") && !server.ready.contains("p@ss"),
            "{}",
            server.ready
        );
        server.terminate(PATIENCE).says(0, &[]);
    }
}

#[test]
fn an_address_that_cannot_be_read_is_told_how_to_write_a_password_and_not_shown() {
    let scratch = Scratch::new();
    for rest in [
        "app:12?hush=c@127.0.0.1:1/db",
        "app:a@hush?b=1@127.0.0.1:1/db",
        "app:hush%41%@127.0.0.1:1/db",
        "app:hush@127.0.0.1:port/db",
        "app:hush@127.0.0.1:1/db#x",
        "app:hush@",
    ] {
        for scheme in ["postgres", "mysql", "mongodb"] {
            let url = format!("{scheme}://{rest}");
            let exit = Launch::before(&scratch, &url).refused();
            exit.says(2, &["%40", "%2F"]);
            assert!(!exit.log.contains("hush"), "{url}: {}", exit.log);
            let schema = Command::new(binary()).args(["schema", "--origin", &url]).output();
            let schema = schema.expect("the binary starts");
            let said = String::from_utf8_lossy(&schema.stderr);
            assert_eq!(schema.status.code(), Some(2), "{url}: {said}");
            assert!(!said.contains("hush"), "{url}: {said}");
        }
    }
    // Nor is a part of it looked up as a host, where nobody answers.
    for scheme in ["postgres", "mysql", "mongodb"] {
        let url = format!("{scheme}://app:hush@hush/12@127.0.0.1:1/db");
        let exit = Launch::before(&scratch, &url).with(&["--origin-timeout", "1s"]).refused();
        exit.says(10, &["127.0.0.1:1"]);
        assert!(!exit.log.contains("hush"), "{url}: {}", exit.log);
    }
}

#[test]
fn what_is_wrong_with_settings_is_told_without_the_password_in_them() {
    let scratch = Scratch::new();
    let file = scratch.join("destage.toml");
    let config = file.display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(binary());
        command.args(arguments).env_remove("DESTAGE_PASSWORD").env_remove("DESTAGE_ORIGIN");
        let output = command.output().expect("the binary starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(!said.contains("hush"), "{arguments:?}: {said}");
        said
    };
    for text in [
        "policy = 'write-back'\npassword = hush",
        "origin = postgres://app:hush@h/db",
        "password = 'hush hush'",
        "password = ['hush']",
    ] {
        std::fs::write(&file, text).expect("the settings can be written");
        let said = run(&["serve", "--config", &config]);
        assert!(said.contains("password") || said.contains("line "), "{said}");
    }
    std::fs::write(&file, "policy = 'write-back'\npassword = hush").expect("it can be written");
    assert!(run(&["serve", "--config", &config]).contains("line 2"));
    for arguments in [
        &["serve", "--password", "hush hush"][..],
        &["serve", "--password=hush\u{e4}"],
        &["block", "serve", "--origin", "file:/x", "--cache", "/y", "--password", "hush hush"],
        // The flag was forgotten, or another one was meant.
        &["serve", "postgres://app:hush@h/db"],
        &["serve", "--listen", "postgres://app:hush@h/db"],
        &["serve", "--orgin=postgres://app:hush@h/db"],
    ] {
        run(arguments);
    }
}

const TABLES: &str = "
CREATE TABLE owners (id INTEGER PRIMARY KEY);
CREATE TABLE accounts (
    id ID ,
    mail NAME ,
    note TEXT,
    n INTEGER NOT NULL DEFAULT 0 CHECK (n + 0 < 100),
    owner INTEGER REFERENCES owners (id),
    CONSTRAINT one_mail UNIQUE (mail)
);
INSERT INTO accounts (id, mail) VALUES (1, 'hush@example.org');
";

/// A trigger that repeats what it refuses.
fn trigger(database: &Database) -> &'static str {
    match database {
        Database::Sqlite(_) => {
            "CREATE TRIGGER loud BEFORE UPDATE ON accounts WHEN NEW.n = 13 BEGIN SELECT RAISE(ABORT, 'not hush, please'); END;"
        }
        Database::Postgres(_) => {
            "CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.n = 13 THEN \
             RAISE EXCEPTION 'not %, please', NEW.mail USING HINT = 'less hush'; END IF; RETURN NEW; END $$; \
             CREATE TRIGGER loud BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION loud();"
        }
        Database::Mariadb(_) => {
            "DELIMITER //\nCREATE TRIGGER loud BEFORE UPDATE ON accounts FOR EACH ROW BEGIN IF NEW.n = 13 THEN \
             SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not hush, please'; END IF; END//"
        }
    }
}

/// Before each kind of database, with this in the settings file.
fn on_each(settings: &str, body: impl Fn(&Server, &Database)) {
    let scratch = Scratch::new();
    let file = scratch.join("destage.toml");
    std::fs::write(&file, settings).expect("the settings can be written");
    let config = file.display().to_string();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        database.execute(trigger(&database));
        let launch = Launch::before(&scratch, &database.url()).with(&["--config", &config]);
        body(&launch.elsewhere(&scratch, &format!("data-{number}")).start(), &database);
    }
}

/// Writes that the origin rejects, each with what it says of the reason.
const REJECTED: [(&[&str], &str); 4] = [
    (&["HSET", "accounts:2", "mail", "hush@example.org", "note", "hush"], "mail"),
    (&["HSET", "accounts:3", "note", "hush", "n", "5000"], "n"),
    (&["HSET", "accounts:4", "note", "hush", "owner", "7"], "foreign key"),
    (&["HSET", "accounts:1", "note", "hush", "n", "13"], ""),
];

/// Nothing of the rows is where others look.
#[track_caller]
fn is_hushed(server: &Server, client: &mut Client) {
    let info = client.run("INFO").text() + &client.run("INFO destage").text();
    let status = format!("{:?}", client.run("DESTAGE STATUS"));
    for (name, text) in [
        ("the log", server.log()),
        ("/status", server.get("/status")),
        ("/metrics", server.get("/metrics")),
        ("INFO", info),
        ("DESTAGE STATUS", status),
    ] {
        assert!(!text.contains("hush"), "{name}: {text}");
    }
}

/// > The log, the status, the metrics and the replies to writes never hold values of a row that the origin rejected.
#[test]
fn a_rejected_row_is_in_the_log_by_its_key_and_constraint_alone() {
    on_each("[table.accounts]\ntriggers = 'none'\n", |server, database| {
        let mut client = server.client();
        for (command, _) in REJECTED {
            assert!(!client.call(command).is_error(), "{command:?}");
            assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"), "{command:?}");
        }
        is_hushed(server, &mut client);
        let log = server.log();
        for (command, part) in REJECTED {
            let key = format!("keys=\"{}\"", command[1]);
            let line = log.lines().find(|line| line.contains(&key));
            let line = line.unwrap_or_else(|| panic!("no {key} in {log}"));
            assert!(
                line.contains(" WARN ") && line.to_lowercase().contains(part),
                "{part}: {line}"
            );
        }
        // Who is to decide finds all of it.
        for (id, (_, part)) in named_ids(&mut client).iter().zip(REJECTED) {
            let shown = client.run(&format!("DESTAGE PARKED SHOW {id}"));
            assert!(named(&shown, "payload").text().contains("hush"), "{shown:?}");
            assert!(named(&shown, "reason").text().to_lowercase().contains(part), "{shown:?}");
        }
        // MariaDB's and PostgreSQL's reasons tell the value that is there already.
        if !matches!(database, Database::Sqlite(_)) {
            let reason =
                "SELECT count(*) FROM destage_parked WHERE reason LIKE '%hush@example.org%'";
            assert!(database.number(reason) >= 1);
        }
        // What a decision is told is told on standard error and in the log.
        let refused = client.run("DESTAGE PARKED RETRY ALL");
        assert!(!format!("{refused:?}").contains("hush"), "{refused:?}");
        is_hushed(server, &mut client);
    });
}

#[track_caller]
fn named_ids(client: &mut Client) -> Vec<i64> {
    let list = client.run("DESTAGE PARKED LIST");
    list.array().iter().map(|one| named(one, "id").int()).collect()
}

#[test]
fn a_client_that_waits_for_the_origin_is_told_the_constraint_and_no_values() {
    on_each("[table.accounts]\nack = 'origin'\n", |server, _| {
        let mut client = server.client();
        for (command, part) in REJECTED {
            let refused = client.call(command);
            let message = refused.error();
            assert!(message.starts_with("REJECTED") && !message.contains("hush"), "{message}");
            assert!(message.to_lowercase().contains(part), "{part}: {message}");
        }
        is_hushed(server, &mut client);
    });
}

#[test]
fn a_halted_domain_says_which_write_and_why_without_its_values() {
    on_each("on-reject = 'stop'\n[table.accounts]\ntriggers = 'none'\n", |server, _| {
        let mut client = server.client();
        assert!(!client.call(REJECTED[0].0).is_error());
        eventually("it halts", PATIENCE, || server.metric("destage_halted_domains") == 1.0);
        is_hushed(server, &mut client);
        let halted = &server.status()["halted"][0];
        assert!(halted["reason"].as_str().is_some_and(|why| why.contains("mail")), "{halted}");
    });
}

#[test]
fn a_rejected_document_is_in_the_log_by_its_key_alone() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    ferret.insert("users", vec![doc! { "_id": "one", "mail": "hush@example.org" }]);
    let index = doc! { "key": { "mail": 1 }, "name": "mail", "unique": true };
    ferret.command(doc! { "createIndexes": "users", "indexes": [index] });
    let file = scratch.join("destage.toml");
    let settings = "[table.users]\nid = 'string'\nfields = { mail = 'string', list = 'array' }\n";
    std::fs::write(&file, settings).expect("the settings can be written");
    let config = file.display().to_string();
    let server = Launch::before(&scratch, &ferret.url()).with(&["--config", &config]).start();
    let mut client = server.client();
    for command in [
        &["HSET", "users:two", "mail", "hush@example.org"][..],
        &["HSET", "users:three", "list", "[[\"hush\"]]"],
    ] {
        assert!(!client.call(command).is_error(), "{command:?}");
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"), "{command:?}");
        assert!(server.log().contains(&format!("keys=\"{}\"", command[1])), "{}", server.log());
    }
    is_hushed(&server, &mut client);
    assert_eq!(ferret.count("destage_parked"), 2);
}
