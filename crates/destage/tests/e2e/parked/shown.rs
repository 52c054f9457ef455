//! What `parked show` prints is what `parked edit` takes, and the exit codes say what became of it.

use super::{listed, parked, reject};
use crate::harness::{Client, Database, Launch, PATIENCE, Scratch, Server, shop};
use std::path::{Path, PathBuf};

const TABLES: &str = "
CREATE TABLE owners (id INTEGER PRIMARY KEY);
CREATE TABLE things (
    id ID ,
    owner INTEGER NOT NULL REFERENCES owners (id),
    data BYTES ,
    note TEXT,
    n INTEGER NOT NULL DEFAULT 0
);
INSERT INTO owners VALUES (1);
INSERT INTO things (id, owner, note, n) VALUES (3, 1, 'here', 7), (4, 1, 'gone', 0);
";

fn each(scratch: &Scratch) -> Vec<Database> {
    let databases = [Some(Database::sqlite(scratch)), Database::postgres(), Database::mariadb()];
    let filled = |database: Database| {
        let bytes = match database {
            Database::Sqlite(_) => " BLOB",
            Database::Postgres(_) => " BYTEA",
            Database::Mariadb(_) => " LONGBLOB",
        };
        database.with(&TABLES.replace(" BYTES ", bytes))
    };
    databases.into_iter().flatten().map(filled).collect()
}

/// Two groups that the origin rejects, the second behind the first: an insert with values of all kinds, an increment, a NULL
/// and a delete; and a later change of the new row. Their numbers.
#[track_caller]
fn park(client: &mut Client) -> [String; 2] {
    let insert: [&[u8]; 8] = [
        b"HSET",
        b"things:1",
        b"owner",
        b"9",
        b"data",
        b"\0\xff{\"hex\":1}",
        b"note",
        "\u{e4}\u{1f980} \"quoted\" \\ \n\u{1}".as_bytes(),
    ];
    client.run("MULTI").ok();
    for command in [&insert[..], &[b"HINCRBY", b"things:3", b"n", b"5"]] {
        assert!(!client.call(command).is_error());
    }
    client.run("HDEL things:3 note");
    client.run("DEL things:4");
    assert_eq!(client.run("EXEC").array().len(), 4);
    assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
    reject(client, &["HSET things:1 n 8"]);
    let ids: Vec<_> = listed(client).iter().map(|(id, _)| id.to_string()).collect();
    ids.try_into().expect("two are parked")
}

/// What `parked show` prints, in a file.
#[track_caller]
fn shown(server: &Server, scratch: &Scratch, id: &str) -> PathBuf {
    let (code, said) = parked(server, "show", &[id]);
    assert_eq!(code, Some(0), "{said}");
    let file = scratch.join(format!("{id}.json"));
    std::fs::write(&file, said).expect("it can be written");
    file
}

#[track_caller]
fn edit(server: &Server, id: &str, file: &Path) -> (Option<i32>, String) {
    parked(server, "edit", &[id, file.to_str().expect("the path is text")])
}

/// The rows as they are once both groups are applied.
#[track_caller]
fn holds_both(database: &Database) {
    let hex = match database {
        Database::Postgres(_) => "upper(encode(data, 'hex'))",
        _ => "hex(data)",
    };
    let first = format!("SELECT owner, {hex}, n FROM things WHERE id = 1");
    assert_eq!(database.rows(&first), [["9", "00FF7B22686578223A317D", "8"]]);
    let length = "SELECT length(note) FROM things WHERE id = 1";
    assert_eq!(database.number(length), if let Database::Mariadb(_) = database { 20 } else { 16 });
    assert_eq!(database.rows("SELECT note, n FROM things WHERE id = 3"), [["NULL", "12"]]);
    assert_eq!(database.number("SELECT count(*) FROM things"), 2);
    assert_eq!(database.number("SELECT count(*) FROM destage_parked"), 0);
}

#[test]
fn what_show_prints_is_what_edit_takes() {
    let scratch = Scratch::new();
    for (number, database) in each(&scratch).into_iter().enumerate() {
        let launch = Launch::before(&scratch, &database.url());
        let server = launch.elsewhere(&scratch, &format!("data-{number}")).start();
        let mut client = server.client();
        let [first, second] = park(&mut client);
        let files = [&first, &second].map(|id| shown(&server, &scratch, id));
        // The cause is still there.
        let (code, said) = edit(&server, &first, &files[0]);
        assert!(code == Some(20) && said.contains("REJECTED"), "{code:?} {said}");
        // What is shown of one is not taken for another one.
        let (code, said) = edit(&server, &first, &files[1]);
        assert!(code == Some(20) && said.contains(&format!("write {second}")), "{code:?} {said}");
        assert_eq!(listed(&mut client).len(), 2);
        database.execute("INSERT INTO owners VALUES (9)");
        let (code, said) = edit(&server, &first, &files[0]);
        assert_eq!(code, Some(0), "{said}");
        holds_both(&database);
        let note = client.run("HGET things:1 note").text();
        assert_eq!(note, "\u{e4}\u{1f980} \"quoted\" \\ \n\u{1}");
    }
}

#[test]
fn a_retry_of_all_that_leaves_something_does_not_end_as_a_success() {
    let scratch = Scratch::new();
    let database = shop::sqlite(&scratch);
    let launch = Launch::before(&scratch, &database.url());
    let server = launch.start();
    assert_eq!(parked(&server, "retry", &["--all"]).0, Some(0), "nothing is parked");
    let orders =
        ["HSET orders:30 customer_id 4711 note a", "HSET orders:31 customer_id 4712 note b"];
    reject(&mut server.client(), &orders);
    let (code, said) = parked(&server, "retry", &["--all"]);
    assert_eq!(code, Some(20), "{said}");
    for part in ["\"applied\": 0", "\"parked\": 2", "error: 2 writes are still parked", "REJECTED"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    database.execute("INSERT INTO customers (id, name) VALUES (4711, 'found')");
    let (code, said) = parked(&server, "retry", &["--all"]);
    assert!(code == Some(20) && said.contains("\"applied\": 1"), "{code:?} {said}");
    database.execute("INSERT INTO customers (id, name) VALUES (4712, 'found')");
    // One that cannot be read any more is passed over, and told of.
    server.terminate(PATIENCE).says(0, &[]);
    database.execute("ALTER TABLE orders DROP COLUMN note");
    let server = launch.start();
    let (code, said) = parked(&server, "retry", &["--all"]);
    assert!(code == Some(20) && said.contains("or SKIP it"), "{code:?} {said}");
    assert_eq!(parked(&server, "list", &[]).0, Some(0));
}
