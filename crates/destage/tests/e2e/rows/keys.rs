//! Keys of one column: what stands behind the colon is the value, whatever it looks like.

use super::scan::scan;
use crate::harness::ferretdb::Ferret;
use crate::harness::{Client, Database, Launch, Scratch, Server};
use crate::mapped;
use crate::parking::named;
use mongodb::bson::doc;
use std::collections::BTreeSet;

const TABLES: &str = "
CREATE TABLE w (word NAME NOT NULL PRIMARY KEY, n INTEGER NOT NULL DEFAULT 0 CHECK (n + 0 < 1000));
CREATE TABLE tags (word NAME NOT NULL, tag NAME NOT NULL, PRIMARY KEY (word, tag));
";

/// Values that look like escapes, and what they would be if they were read as such.
const WORDS: [&str; 10] =
    ["http%3A%2F%2Fx", "http:%2F%2Fx", "http://x", "%3A", "%3a", "%25", "%253A", "%", ":", "a:b%"];

/// Others have made a row of each, numbered.
fn insert(database: &Database) {
    for (n, word) in WORDS.iter().enumerate() {
        database.execute(&format!("INSERT INTO w (word, n) VALUES ('{word}', {n})"));
    }
}

/// Each row is reached by the key that a client would write and by the one that SCAN shows.
#[track_caller]
fn each_word_is_its_row(client: &mut Client, number: impl Fn(usize) -> i64) {
    for (n, word) in WORDS.iter().enumerate() {
        let key = format!("w:{word}");
        assert_eq!(client.call(&["HGET", &key, "n"]).int(), number(n), "{key}");
        assert_eq!(client.call(&["HGET", &key, "word"]).text(), *word, "{key}");
    }
    let keys = scan(client, "w:*", 3);
    let expected: BTreeSet<_> = WORDS.iter().map(|word| format!("w:{word}")).collect();
    assert_eq!(keys.len(), expected.len(), "{keys:?}");
    assert_eq!(keys.into_iter().collect::<BTreeSet<_>>(), expected);
}

fn number(database: &Database, word: &str) -> i64 {
    database.number(&format!("SELECT n FROM w WHERE word = '{word}'"))
}

fn on_each_database(body: impl Fn(&Server, &Database)) {
    let scratch = Scratch::new();
    let databases = [Some(Database::sqlite(&scratch)), Database::postgres(), Database::mariadb()];
    for (number, database) in databases.into_iter().flatten().enumerate() {
        let database = database.with(TABLES);
        let mappings = "[[string]]\nkey = 'n/{word}'\ntable = 'w'\nvalue = 'n'\n\
                        [[set]]\nkey = 'tags/{word}'\ntable = 'tags'\nmember = 'tag'\n";
        let data = format!("data-{number}");
        body(&mapped::launch(&scratch, &database, &data, mappings).start(), &database);
    }
}

#[test]
fn two_spellings_of_a_url_are_two_rows_stored_as_they_were_written() {
    on_each_database(|server, database| {
        let mut client = server.client();
        for (n, word) in WORDS.iter().enumerate() {
            let made = client.call(&["HSET", &format!("w:{word}"), "n", &n.to_string()]);
            assert_eq!(made.int(), 1, "{word}");
        }
        each_word_is_its_row(&mut client, |n| n as i64);
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM w"), WORDS.len() as i64);
        for (n, word) in WORDS.iter().enumerate() {
            assert_eq!(number(database, word), n as i64, "{word}");
        }
    });
}

#[test]
fn rows_of_others_are_reached_changed_dropped_and_deleted_by_their_keys() {
    on_each_database(|server, database| {
        insert(database);
        let mut client = server.client();
        each_word_is_its_row(&mut client, |n| n as i64);
        for word in WORDS {
            client.call(&["HINCRBY", &format!("w:{word}"), "n", "100"]).int();
        }
        each_word_is_its_row(&mut client, |n| n as i64 + 100);
        server.drain();
        database.execute("UPDATE w SET n = n + 100");
        for word in WORDS {
            assert_eq!(client.call(&["DESTAGE", "INVALIDATE", &format!("w:{word}")]).int(), 1);
        }
        each_word_is_its_row(&mut client, |n| n as i64 + 200);
        for word in WORDS {
            assert_eq!(client.call(&["DEL", &format!("w:{word}")]).int(), 1, "{word}");
        }
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM w"), 0);
    });
}

#[test]
fn the_last_place_of_a_mapping_takes_the_value_as_it_is_too() {
    on_each_database(|server, database| {
        insert(database);
        let mut client = server.client();
        for (n, word) in WORDS.iter().enumerate() {
            assert_eq!(client.call(&["GET", &format!("n/{word}")]).int(), n as i64, "{word}");
            assert_eq!(client.call(&["SADD", &format!("tags/{word}"), word]).int(), 1, "{word}");
            let members = client.call(&["SMEMBERS", &format!("tags/{word}")]);
            assert_eq!(members.array()[0].text(), *word);
        }
        server.drain();
        assert_eq!(database.number("SELECT count(*) FROM tags WHERE word = tag"), 10);
        // Of a key of several columns, the parts are escaped; what SCAN shows reaches the rows.
        for key in scan(&mut client, "tags:*", 4) {
            assert_eq!(client.call(&["EXISTS", &key]).int(), 1, "{key}");
        }
    });
}

#[test]
fn a_parked_write_keeps_its_key() {
    on_each_database(|server, database| {
        let mut client = server.client();
        assert!(!client.call(&["HSET", "w:%3A", "n", "5000"]).is_error());
        assert!(client.run("DESTAGE WAIT 60000").error().starts_with("PARKED"));
        let list = client.run("DESTAGE PARKED LIST");
        let id = named(&list.array()[0], "id").int().to_string();
        let shown = client.call(&["DESTAGE", "PARKED", "SHOW", &id]);
        let payload = named(&shown, "payload").text();
        assert!(payload.contains(r#"{"word":"%3A"}"#), "{payload}");
        let mended = payload.replace("5000", "5");
        let edited = client.call(&["DESTAGE", "PARKED", "EDIT", &id, &mended]);
        assert!(!edited.is_error(), "{edited:?}");
        assert_eq!(number(database, "%3A"), 5);
        assert_eq!(client.run("HGET w:%3A n").int(), 5);
        assert_eq!(client.run("EXISTS w::").int(), 0);
    });
}

#[test]
fn documents_are_reached_by_their_id_as_it_is() {
    let scratch = Scratch::new();
    let Some(ferret) = Ferret::start(&scratch) else { return };
    let document = |(n, word): (usize, &&str)| doc! { "_id": *word, "n": n as i64, "word": *word };
    ferret.insert("w", WORDS.iter().enumerate().map(document).collect());
    let file = scratch.join("destage.toml");
    let settings = "[table.w]\nid = 'string'\nfields = { n = 'long', word = 'string' }\n";
    std::fs::write(&file, settings).expect("the settings can be written");
    let config = file.display().to_string();
    let server = Launch::before(&scratch, &ferret.url()).with(&["--config", &config]).start();
    let mut client = server.client();
    each_word_is_its_row(&mut client, |n| n as i64);
    for word in WORDS {
        client.call(&["HINCRBY", &format!("w:{word}"), "n", "100"]).int();
    }
    server.drain();
    for (n, word) in WORDS.iter().enumerate() {
        assert_eq!(ferret.number("w", doc! { "_id": *word }, "n"), n as i64 + 100, "{word}");
    }
    assert_eq!(ferret.count("w"), WORDS.len() as i64);
}
