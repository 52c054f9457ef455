//! What sessions change, how they see it, and what the origin gets of it.

use crate::support::{Kind, Place, bank, on_each_origin};
use destage_data::store::{Error, ErrorKind, Key, Options, Row, Store, Value};

on_each_origin! {
    a_session_sees_its_own_changes_and_others_see_them_once_it_has_ended,
    a_session_that_ends_in_an_error_leaves_nothing,
    arrays_are_pushed_pulled_and_used_as_sets,
    a_row_that_exists_is_not_inserted_again,
    a_row_that_is_known_here_to_exist_is_not_made_as_new,
    a_row_is_made_by_whatever_is_set_and_by_nothing_that_is_unset,
    new_rows_are_there_at_once_and_others_are_asked_for,
    what_was_done_survives_the_end_of_the_process,
    one_folder_and_one_origin_belong_to_one_store,
    redis_clients_and_sessions_share_one_store,
    keys_fields_and_values_that_do_not_fit_are_named,
    a_key_of_one_column_is_taken_as_it_is,
}

const SHOP: &str = r#"
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, stock INTEGER NOT NULL DEFAULT 5, note TEXT, tags TEXT);
CREATE TABLE order_lines (orders INTEGER, line INTEGER, product INTEGER NOT NULL, PRIMARY KEY (orders, line));
INSERT INTO products VALUES (1, 'pen', 7, 'blue', '["a"]'), (2, 'ink', 1, NULL, NULL);
"#;

fn stock(row: Option<Row>) -> i64 {
    row.expect("the product exists").get("stock").expect("a number")
}

fn a_session_sees_its_own_changes_and_others_see_them_once_it_has_ended(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    store
        .session(|s| {
            // Before the row is read, and after.
            s.inc(("products", 1), "stock", 2)?;
            assert_eq!(stock(s.read(("products", 1))?), 9);
            s.set("products:01", [("stock", 20.into()), ("note", Value::NULL)])?;
            s.inc(("products", 1), "stock", -1)?;
            let row = s.row(("products", 1))?;
            assert_eq!((row.get("stock")?, row.get::<Option<String>>("note")?), (19, None));
            s.insert(("products", 3), [("name", "nib".into())])?;
            assert_eq!(stock(s.read(("products", 3))?), 5, "the column's default");
            s.delete(("products", 2))?;
            assert_eq!(s.read(("products", 2))?, None);
            assert_eq!(stock(store.read(("products", 1))?), 7, "nobody else sees it yet");
            Ok(())
        })
        .unwrap();
    assert_eq!(stock(store.read(("products", 1)).unwrap()), 19);
    assert_eq!(store.read(("products", 2)).unwrap(), None);
    store.drain().unwrap();
    let all = "SELECT concat(id, name, stock, coalesce(note, '-')) FROM products ORDER BY id";
    assert_eq!(place.listed(all), "1pen19-,3nib5-");
    store.close().unwrap();
}

fn a_session_that_ends_in_an_error_leaves_nothing(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let aborted = store.session(|s| {
        s.inc(("products", 1), "stock", 1)?;
        s.delete(("products", 2))?;
        Err::<(), _>(Error::abort("no more paper"))
    });
    let error = aborted.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Aborted, "no more paper"));
    // One that the engine finds only in the end.
    let refused = store.session(|s| {
        s.inc(("products", 1), "stock", 1)?;
        s.set(("products", 2), [("name", Value::NULL)])
    });
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("NOT NULL"), "{error}");
    assert_eq!(stock(store.read(("products", 1)).unwrap()), 7);
    assert!(store.read(("products", 2)).unwrap().is_some());
    store.close().unwrap();
}

fn arrays_are_pushed_pulled_and_used_as_sets(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let tags = |store: &Store, id: i64| -> Option<String> {
        store.read(("products", id)).unwrap().unwrap().get("tags").unwrap()
    };
    store
        .session(|s| {
            s.push(("products", 1), "tags", "a")?;
            s.add_to_set(("products", 1), "tags", "b")?;
            s.add_to_set(("products", 1), "tags", "b")?;
            s.push(("products", 2), "tags", 7)
        })
        .unwrap();
    assert_eq!(tags(&store, 1).as_deref(), Some(r#"["a","a","b"]"#));
    assert_eq!(tags(&store, 2).as_deref(), Some("[7]"));
    store.session(|s| s.pull(("products", 1), "tags", "a")).unwrap();
    assert_eq!(tags(&store, 1).as_deref(), Some(r#"["b"]"#));
    store.session(|s| s.unset(("products", 1), &["tags", "note"])).unwrap();
    assert_eq!(tags(&store, 1), None);
    let needed = store.session(|s| s.unset(("products", 1), &["name"])).unwrap_err();
    assert!(needed.to_string().contains("NOT NULL"), "{needed}");
    let no_array = store.session(|s| s.push(("products", 1), "name", "x")).unwrap_err();
    assert!(no_array.to_string().contains("no JSON array"), "{no_array}");
    let no_row = store.session(|s| s.push(("products", 9), "tags", "x")).unwrap_err();
    assert_eq!(no_row.kind(), ErrorKind::Missing);
    store.drain().unwrap();
    let all =
        "SELECT concat(id, coalesce(note, '-'), coalesce(tags, '-')) FROM products ORDER BY id";
    assert_eq!(place.listed(all), "1--,2-[7]");
    store.close().unwrap();
}

fn a_row_that_exists_is_not_inserted_again(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let again = store.session(|s| s.insert(("products", 1), [("name", "pin".into())]));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
    // Said to be new though it is not: nobody asks the origin, which finds out and keeps the session as parked.
    store.session(|s| s.insert_new(("products", 2), [("name", "pin".into())])).unwrap();
    store.drain().unwrap();
    assert_eq!(store.status().unwrap().destage.parked_groups, Some(1));
    let name = "SELECT name FROM products WHERE id = 2";
    assert_eq!(place.at_origin(name).as_deref(), Some("ink"));
    store.close().unwrap();
}

fn a_row_that_is_known_here_to_exist_is_not_made_as_new(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let make = |id: i64| {
        store.session(|s| {
            s.inc(("products", 2), "stock", 1)?;
            s.insert_new(("products", id), [("name", "nib".into())])
        })
    };
    // Read before, by whomever; or made here.
    assert!(store.read(("products", 1)).unwrap().is_some());
    make(3).unwrap();
    for id in [1, 3] {
        let error = make(id).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    }
    let new = [("name", Value::from("nib"))];
    let read = store.session(|s| {
        s.row(("products", 1))?;
        s.insert_new(("products", 1), new.clone())
    });
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Exists);
    let twice = store.session(|s| {
        s.insert_new(("products", 4), new.clone())?;
        s.insert_new(("products", 4), new.clone())
    });
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::Exists);
    // The session itself has seen to it.
    store
        .session(|s| {
            s.delete(("products", 1))?;
            s.insert_new(("products", 1), new.clone())
        })
        .unwrap();
    store.drain().unwrap();
    assert_eq!(store.status().unwrap().destage.parked_groups, Some(0));
    let all = "SELECT concat(id, name, stock) FROM products ORDER BY id";
    assert_eq!(place.listed(all), "1nib5,2ink2,3nib5");
    store.close().unwrap();
}

fn a_row_is_made_by_whatever_is_set_and_by_nothing_that_is_unset(kind: Kind) {
    let script = "CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT, stars INTEGER DEFAULT 3);
                  INSERT INTO notes VALUES (6, 'old', 6);";
    let place = Place::new(kind, script);
    let store = place.open();
    store
        .session(|s| {
            s.set(("notes", 1), [])?;
            s.set(("notes", 2), [("note", Value::NULL), ("stars", Value::NULL)])?;
            s.unset(("notes", 3), &["note", "stars"])?;
            s.unset(("notes", 3), &[])?;
            // The last value counts.
            let both = [("note", Value::NULL), ("note", "a".into()), ("stars", 9.into())];
            s.set(("notes", 4), both.into_iter().chain([("stars", Value::NULL)]))?;
            s.set(("notes", 6), [("note", Value::NULL)])?;
            let keys: Vec<Key> = (1..=6).map(|id| Key::from(("notes", id))).collect();
            let seen = s.read_all(&keys)?;
            let is_there: Vec<bool> = seen.iter().map(Option::is_some).collect();
            assert_eq!(is_there, [true, true, false, true, false, true]);
            s.unset(("notes", 5), &["note"])?;
            assert_eq!(s.read(("notes", 5))?, None);
            Ok(())
        })
        .unwrap();
    store.drain().unwrap();
    let all = "SELECT concat(id, coalesce(note, '-'), coalesce(stars, 0)) FROM notes ORDER BY id";
    assert_eq!(place.listed(all), "1-3,2-0,4a0,6-6");
    store.close().unwrap();
}

fn new_rows_are_there_at_once_and_others_are_asked_for(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let insert = |orders: i64| {
        store.session(|s| {
            for line in 1..=10 {
                s.insert_new(("order_lines", (orders, line)), [("product", 1.into())])?;
            }
            Ok(())
        })
    };
    insert(1).unwrap();
    let product: i64 =
        store.read(("order_lines", (1, 10))).unwrap().unwrap().get("product").unwrap();
    assert_eq!(product, 1);
    assert_eq!(store.read(("order_lines", (1, 11))).unwrap(), None, "asked, since nobody knows");
    store.drain().unwrap();
    assert_eq!(place.at_origin("SELECT count(*) FROM order_lines").as_deref(), Some("10"));
    store.close().unwrap();
}

fn what_was_done_survives_the_end_of_the_process(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    store.pause().unwrap();
    let transfer = |store: &Store| {
        store.session(|s| {
            s.inc(("accounts", 1), "balance", -10)?;
            s.inc(("accounts", 2), "balance", 10)
        })
    };
    transfer(&store).unwrap();
    drop(store);
    let balances = "SELECT concat(balance, '') FROM accounts ORDER BY id";
    assert_eq!(place.listed(balances), "100,100");
    let store = place.open();
    let balance: i64 = store.read(("accounts", 2)).unwrap().unwrap().get("balance").unwrap();
    assert_eq!(balance, 110);
    store.close().unwrap();
    assert_eq!(place.listed(balances), "90,110");
}

fn one_folder_and_one_origin_belong_to_one_store(kind: Kind) {
    let place = bank(kind, 1);
    let store = place.open();
    let second = place.options().open().err().expect("the folder is in use");
    assert_eq!(second.kind(), ErrorKind::Closed);
    assert!(!second.to_string().is_empty());
    store.close().unwrap();
    let data = tempfile::tempdir().unwrap();
    let missing = Options::new("sqlite:/nowhere/at/all.db", data.path()).open().err();
    assert!(missing.is_some());
    let bad = place.options().policy("d=soon").open().err().expect("no such policy");
    assert_eq!(bad.kind(), ErrorKind::Invalid, "{bad}");
}

fn redis_clients_and_sessions_share_one_store(kind: Kind) {
    use std::io::{Read as _, Write as _};
    let place = bank(kind, 1);
    let options = place.options().listen(([127, 0, 0, 1], 0).into(), None);
    let store = options.open().unwrap();
    let mut client = std::net::TcpStream::connect(store.address().unwrap()).unwrap();
    store.session(|s| s.inc(("accounts", 1), "balance", 1)).unwrap();
    client.write_all(b"HINCRBY accounts:1 balance 1\r\n").unwrap();
    let mut reply = [0; 6];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b":102\r\n");
    let balance: i64 = store.read("accounts:1").unwrap().unwrap().get("balance").unwrap();
    assert_eq!(balance, 102);
    store.close().unwrap();
}

fn keys_fields_and_values_that_do_not_fit_are_named(kind: Kind) {
    let place = Place::new(kind, SHOP);
    let store = place.open();
    let of = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    assert!(of(store.session(|s| s.delete("nothing:1"))).contains("products"));
    let value = of(store.session(|s| s.set(("products", 1), [("stock", "many".into())])));
    assert!(value.contains("products.stock"), "{value}");
    let column = of(store.session(|s| s.inc(("products", 1), "wings", 1)));
    assert!(column.contains("wings"), "{column}");
    let keys = [Key::from(("products", 1)), Key::from("products")];
    assert!(store.read_all(&keys).is_err());
    let row = store.read(&keys[0]).unwrap().unwrap();
    assert!(row.get::<i64>("name").unwrap_err().to_string().contains("'pen'"));
    store.close().unwrap();
}

fn a_key_of_one_column_is_taken_as_it_is(kind: Kind) {
    let words = ["%25", "%253A", "%3A", ":", "http%3A//x", "http://x"];
    let collation = if kind == Kind::Mariadb { "COLLATE utf8mb4_bin" } else { "" };
    let script = format!("CREATE TABLE w (word VARCHAR(60) {collation} PRIMARY KEY, n INTEGER);");
    let place = Place::new(kind, &script);
    let store = place.open();
    for (n, word) in words.into_iter().enumerate() {
        store.session(|s| s.insert(("w", word), [("n", (n as i64).into())])).unwrap();
    }
    for (n, word) in words.into_iter().enumerate() {
        for key in [Key::from(("w", word)), Key::from(format!("w:{word}"))] {
            let row = store.read(&key).unwrap().expect("it was inserted");
            assert_eq!(row.get::<String>("word").unwrap(), word);
            assert_eq!(row.get::<i64>("n").unwrap(), n as i64, "{word}");
        }
    }
    store.drain().unwrap();
    assert_eq!(place.listed("SELECT word FROM w ORDER BY n"), words.join(","));
    store.close().unwrap();
}
