//! Queries that take longer than anyone waits, and queries that fail.

use super::{TABLES, TOTAL, configured, get};
use crate::harness::{Client, Database, Launch, Scratch};
use serde_json::json;

/// A query that does not end by itself, of its deadline.
fn endless(database: &Database) -> String {
    let sql = match database {
        Database::Sqlite(_) => {
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) AS c, $x AS x FROM n, sales"
        }
        Database::Postgres(_) => "SELECT pg_sleep(1000)::text AS s, $x AS x FROM sales LIMIT 1",
        Database::Mariadb(_) => "SELECT sleep(1000) AS s, $x AS x FROM sales LIMIT 1",
    };
    format!(
        "[[query]]\nkey = \"endless:{{x}}\"\nsql = \"{sql}\"\ndepends_on = [\"sales\"]\ndeadline = \"500ms\"\n"
    )
}

/// Whatever the key, more than a whole number can be.
const TOO_LARGE: &str = "
[[query]]
key = \"huge:{n}\"
sql = \"SELECT abs(-9223372036854775807 - $n) AS a FROM sales\"
depends_on = [\"sales\"]
types = { n = \"integer\" }
deadline = \"60s\"
";

fn before(scratch: &Scratch, number: usize, database: &Database, sections: &str) -> Launch {
    let name = format!("data-{number}");
    let launch = Launch::before(scratch, &database.url()).elsewhere(scratch, &name);
    // The origin's own limit helps nobody here; for a file it is set already, and limits no query.
    let launch = match database {
        Database::Sqlite(_) => launch,
        _ => launch.with(&["--origin-timeout", "5m"]),
    };
    configured(scratch, &launch, &name, sections)
}

#[test]
fn queries_that_nobody_waits_for_any_more_are_ended_and_keep_no_others_waiting() {
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in all.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        let sections = [TOTAL, &endless(&database)].concat();
        let server = before(&scratch, number, &database, &sections).start();
        let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
        for (at, client) in clients.iter_mut().enumerate() {
            let sent = client.send(&["GET", &format!("endless:{at}")]);
            sent.expect("the server listens");
        }
        for client in &mut clients {
            let reply = client.receive().expect("the server answers");
            assert!(reply.error().starts_with("TIMEOUT the query of endless:{x}"), "{reply:?}");
        }
        // Its deadline is longer than that of the others, and much shorter than their queries.
        let client = &mut clients[0];
        assert_eq!(get(client, "total:eu"), json!([{ "total": 12, "sales": 2 }]));
        assert_eq!(server.status()["origin"]["down"], false);
        assert_eq!(server.status()["derived"]["timeouts_total"], 4);
        // The connections are fit for use.
        for id in 1..=4 {
            assert!(!client.run(&format!("HGET sales:{id} amount")).is_error());
        }
    }
}

#[test]
fn what_a_query_cannot_compute_is_an_error_in_the_origins_words_and_no_denial() {
    let scratch = Scratch::new();
    let all = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in all.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        let server = before(&scratch, number, &database, TOO_LARGE).start();
        let mut client = server.client();
        let reply = client.run("GET huge:1");
        let error = reply.error();
        assert!(error.starts_with("ERR ") && error.contains("huge:{n}"), "{error}");
        let is_explained = ["overflow", "out of range"].iter().any(|words| error.contains(words));
        assert!(is_explained, "{error}");
        assert_eq!(get(&mut client, "huge:0")[0]["a"], 9_223_372_036_854_775_807_i64);
        assert_eq!(server.status()["origin"]["down"], false);
    }
}
