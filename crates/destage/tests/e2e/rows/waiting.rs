//! Commands that wait for a database that is away (`--on-away wait`).

use super::asked::with_sections;
use crate::harness::{
    Client, Database, Kind, Launch, OwnServer, PATIENCE, Reply, Scratch, Server, eventually, millis,
};
use std::time::Instant;

const SHOP: &str = "
CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR(20) NOT NULL, email VARCHAR(40) UNIQUE,
    visits INTEGER NOT NULL DEFAULT 0);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER REFERENCES customers (id));
INSERT INTO customers (id, name) VALUES (1, 'Ada'), (2, 'Barbara'), (3, 'Cleo'), (4, 'Dora'), (5, 'Eva'), (6, 'Flo'),
    (7, 'Gil');
INSERT INTO orders VALUES (1, 1);
";

const SECTIONS: &str = "[table.orders]\nfk = \"ask\"\n[table.customers]\nunique = \"ask\"\n";

struct Setup {
    origin: OwnServer,
    database: Database,
    launch: Launch,
    server: Server,
    _scratch: Scratch,
}

/// A server whose database is stopped. What waits does so for so long. One row is cached.
fn without_origin(kind: Kind, wait: &str) -> Option<Setup> {
    let mut origin = OwnServer::start(kind)?;
    let (scratch, database) = (Scratch::new(), origin.database().with(SHOP));
    let launch = Launch::before(&scratch, &database.url());
    let launch =
        launch.with(&["--on-away", "wait", "--client-wait", wait, "--drain-timeout", "1s"]);
    let launch = with_sections(&launch, &scratch, SECTIONS);
    let server = launch.start();
    assert_eq!(server.client().run("HGET customers:7 name").text(), "Gil");
    origin.stop();
    Some(Setup { origin, database, launch, server, _scratch: scratch })
}

impl Setup {
    /// A client that sends this, and what waits then.
    fn waiting(&self, commands: &[&str]) -> Client {
        let waited = self.count();
        let mut client = self.server.client();
        for command in commands {
            let words: Vec<&str> = command.split(' ').collect();
            client.send(&words).expect("the server takes it");
        }
        eventually("it waits", PATIENCE, || self.count() > waited);
        client
    }

    fn count(&self) -> u64 {
        self.server.status()["clients"]["waiting"].as_u64().expect("a number")
    }

    fn visits(&self) -> i64 {
        self.database.number("SELECT sum(visits) FROM customers")
    }
}

/// > With `--on-away wait` such a command waits until the origin answers, and is then carried out as if it had just come.
#[test]
fn what_needs_the_database_waits_for_its_return_and_is_then_done_once() {
    for kind in [Kind::Postgres, Kind::Mariadb] {
        let Some(mut setup) = without_origin(kind, "10m") else { return };
        let sent: [(&[&str], &[&str]); 8] = [
            // The last one is kept back behind the others.
            (
                &[
                    "HGET customers:1 name",
                    "HINCRBY customers:1 visits 1",
                    "HGET customers:1 visits",
                ],
                &["Ada", "1", "1"],
            ),
            (&["HSET customers:9 name Ida"], &["1"]),
            (&["HSET orders:1 customer 2"], &["0"]),
            (&["HSET customers:3 email cleo@example.org"], &["1"]),
            (&["MULTI", "HINCRBY customers:4 visits 1", "EXEC"], &["OK", "QUEUED", "[1]"]),
            (
                &[
                    "WATCH customers:5",
                    "HGET customers:5 name",
                    "MULTI",
                    "HINCRBY customers:5 visits 1",
                    "EXEC",
                ],
                &["OK", "Eva", "OK", "QUEUED", "[1]"],
            ),
            (&["DESTAGE BEGIN", "HGET customers:7 name", "EXEC"], &["OK", "Gil", "[]"]),
            (&["SCAN 0 MATCH orders:*"], &["[0, [orders:1]]"]),
        ];
        let (begun, sent) = (&sent[6], sent[..6].iter().chain(&sent[7..]));
        let mut waiting: Vec<_> =
            sent.map(|(commands, told)| (setup.waiting(commands), *told)).collect();
        // Others go on, as does a session that needs nothing of the database.
        let mut client = setup.server.client();
        assert_eq!(client.run("HINCRBY customers:7 visits 1").int(), 1);
        for (command, told) in begun.0.iter().zip(begun.1) {
            assert_eq!(shown(&client.run(command)), *told, "{command}");
        }
        assert_eq!(setup.count(), 7);
        setup.origin.restart();
        for (client, told) in &mut waiting {
            for expected in *told {
                assert_eq!(shown(&client.receive().expect("an answer")), *expected, "{told:?}");
            }
        }
        setup.server.drain();
        assert_eq!(setup.visits(), 4);
        assert_eq!(setup.database.number("SELECT customer FROM orders"), 2);
        assert_eq!(setup.database.number("SELECT count(email) FROM customers WHERE id = 3"), 1);
        assert_eq!(setup.database.number("SELECT count(*) FROM customers"), 8);
    }
}

/// A reply as people read it.
fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Array(parts) => {
            format!("[{}]", parts.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
        Reply::Int(number) => number.to_string(),
        other => other.text(),
    }
}

#[test]
fn after_its_time_a_command_is_told_that_nothing_was_done() {
    let Some(mut setup) = without_origin(Kind::Postgres, "1s") else { return };
    let mut client = setup.server.client();
    let sent = Instant::now();
    let commands =
        ["HINCRBY customers:1 visits 1", "HGET customers:2 name", "SCAN 0 MATCH orders:*"];
    for told in client.pipeline(&commands.map(str::to_owned)) {
        let told = told.error();
        assert!(told.starts_with("UNAVAILABLE ") && told.contains("nothing was done"), "{told}");
    }
    assert!(sent.elapsed() >= millis(1000), "{:?}", sent.elapsed());
    // The next one has a time of its own.
    let sent = Instant::now();
    assert!(client.run("HGET customers:2 name").error().starts_with("UNAVAILABLE "));
    assert!(sent.elapsed() >= millis(1000), "{:?}", sent.elapsed());
    setup.origin.restart();
    eventually("it is read again", PATIENCE, || !client.run("HGET customers:1 name").is_error());
    setup.server.drain();
    assert_eq!(setup.visits(), 0);
}

#[test]
fn nothing_is_done_for_a_client_that_has_gone_meanwhile() {
    let Some(mut setup) = without_origin(Kind::Postgres, "10m") else { return };
    let commands = ["HINCRBY customers:1 visits 1", "HSET customers:9 name Ida"];
    let clients: Vec<Client> = commands.map(|command| setup.waiting(&[command])).into();
    let stays = setup.waiting(&["HINCRBY customers:2 visits 1"]);
    drop(clients);
    eventually("one waits", PATIENCE, || setup.count() == 1);
    setup.origin.restart();
    let mut stays = stays;
    assert_eq!(stays.receive().expect("an answer").int(), 1);
    setup.server.drain();
    assert_eq!(setup.visits(), 1);
    assert_eq!(setup.database.number("SELECT count(*) FROM customers"), 7);
}

#[test]
fn the_server_ends_while_commands_wait() {
    let Some(mut setup) = without_origin(Kind::Postgres, "10m") else { return };
    let mut client = setup.waiting(&["HINCRBY customers:1 visits 1"]);
    let reads = setup.waiting(&["HGET customers:2 name"]);
    setup.server.terminate(PATIENCE).says(0, &[]);
    // It is cut off, or told that nothing was done.
    assert!(client.receive().is_ok_and(|told| told.is_error()) || client.receive().is_err());
    drop(reads);
    setup.origin.restart();
    let server = setup.launch.start();
    assert_eq!(server.client().run("HGET customers:1 visits").text(), "0");
}
