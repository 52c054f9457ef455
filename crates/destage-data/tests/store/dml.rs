//! Raw SQL: applied once, in its place among the other writes; whoever reads what it declares waits for the origin.

use crate::support::{Kind, Place, bank, on_each_origin};
use destage_data::settings::DomainSettings;
use destage_data::store::{Declared, Error, ErrorKind, Key, Session, Store};
use std::thread;
use std::time::{Duration, Instant};

on_each_origin! {
    a_read_of_a_declared_row_waits_for_its_destage_and_of_another_does_not,
    whole_tables_are_declared_where_the_rows_are_not_known,
    while_nothing_is_destaged_a_declared_row_is_not_read_and_others_are,
    a_session_with_typed_changes_and_raw_sql_is_one_transaction_in_its_order,
    a_session_cannot_use_what_its_own_raw_sql_covers,
    what_is_no_single_statement_that_writes_what_it_declares_is_refused_at_once,
    what_the_journal_holds_is_applied_once_however_often_the_store_is_opened,
    rejected_raw_sql_is_parked_with_what_builds_on_it_and_can_be_decided_on,
    what_writes_a_table_is_parked_behind_rejected_raw_sql_that_covers_the_whole_of_it,
    sessions_that_read_what_raw_sql_covers_run_again,
    under_write_through_the_origin_is_asked_first_and_its_refusal_is_told,
    cascades_of_raw_sql_are_covered_by_themselves,
    raw_sql_is_ordered_in_the_domains_of_what_it_declares,
    each_increment_counts_once_through_kill_9,
}

fn balance(store: &Store, id: i64) -> Option<i64> {
    store.read(("accounts", id)).unwrap().map(|row| row.get("balance").unwrap())
}

fn double(s: &mut Session<'_>, id: i64) -> Result<(), Error> {
    s.execute(
        "UPDATE accounts SET balance = balance * $2 WHERE id = $1",
        &[id.into(), 2.into()],
        &[Declared::row(("accounts", id))],
    )
}

/// Nothing is destaged unless someone needs it.
fn lazy(place: &Place) -> Store {
    place.options().policy("when=pressure").policy("staleness=1h").open().unwrap()
}

const BALANCE: &str = "SELECT balance FROM accounts WHERE id = 1";

fn a_read_of_a_declared_row_waits_for_its_destage_and_of_another_does_not(kind: Kind) {
    let place = bank(kind, 3);
    let store = lazy(&place);
    // Cached, and dirty.
    store.session(|s| s.inc(("accounts", 1), "balance", 5)).unwrap();
    store.session(|s| s.inc(("accounts", 2), "balance", 1)).unwrap();
    store.session(|s| double(s, 1)).unwrap();
    assert_eq!(balance(&store, 2), Some(101), "read past it");
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("100"), "nothing made it go on");
    assert_eq!(balance(&store, 1), Some(210), "after what was written before it");
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("210"), "the origin decided it first");
    // What is written behind it builds on it.
    store.session(|s| double(s, 1)).unwrap();
    store.session(|s| s.inc(("accounts", 1), "balance", 1)).unwrap();
    store.session(|s| double(s, 1)).unwrap();
    store.session(|s| double(s, 3)).unwrap();
    assert_eq!((balance(&store, 1), balance(&store, 3)), (Some(842), Some(200)));
    store.close().unwrap();
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("842"));
}

fn whole_tables_are_declared_where_the_rows_are_not_known(kind: Kind) {
    let place = bank(kind, 3);
    let store = lazy(&place);
    let sum = "SELECT sum(balance) FROM accounts";
    store
        .session(|s| s.insert(("accounts", 4), [("balance", 7.into()), ("version", 0.into())]))
        .unwrap();
    assert_eq!(balance(&store, 3), Some(100));
    store
        .session(|s| {
            s.execute(
                "UPDATE accounts SET balance = balance + $1",
                &[10.into()],
                &[Declared::table("accounts")],
            )
        })
        .unwrap();
    // A row that exists in the journal alone, one that is cached, one that is not, one that does not exist.
    let read = [4, 3, 1, 5].map(|id| balance(&store, id));
    assert_eq!(read, [Some(17), Some(110), Some(110), None]);
    assert_eq!(place.at_origin(sum).as_deref(), Some("347"));
    store.session(|s| s.delete(("accounts", 4))).unwrap();
    store
        .session(|s| {
            s.execute(
                "DELETE FROM accounts WHERE balance > 100",
                &[],
                &[Declared::table("accounts")],
            )
        })
        .unwrap();
    assert_eq!([1, 2, 3, 4].map(|id| balance(&store, id)), [None; 4]);
    store
        .session(|s| s.insert(("accounts", 1), [("balance", 1.into()), ("version", 0.into())]))
        .unwrap();
    store.close().unwrap();
    assert_eq!(place.at_origin(sum).as_deref(), Some("1"));
}

fn while_nothing_is_destaged_a_declared_row_is_not_read_and_others_are(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    assert_eq!(balance(&store, 1), Some(100));
    store.pause().unwrap();
    store.session(|s| double(s, 1)).unwrap();
    thread::scope(|scope| {
        let reader = scope.spawn(|| balance(&store, 1));
        // However long that takes, the reader sees the new value, or none.
        assert_eq!(balance(&store, 2), Some(100));
        assert_eq!(place.at_origin(BALANCE).as_deref(), Some("100"));
        store.resume().unwrap();
        assert_eq!(reader.join().unwrap(), Some(200));
    });
    store.close().unwrap();
}

fn a_session_with_typed_changes_and_raw_sql_is_one_transaction_in_its_order(kind: Kind) {
    let place = bank(kind, 2);
    let store = lazy(&place);
    store
        .session(|s| {
            let seen: i64 = s.row(("accounts", 1))?.get("balance")?;
            s.inc(("accounts", 1), "balance", 11)?;
            double(s, 1)?;
            s.set(("accounts", 2), [("balance", seen.into()), ("version", 7.into())])
        })
        .unwrap();
    assert_eq!((balance(&store, 1), balance(&store, 2)), (Some(222), Some(100)));
    store.close().unwrap();
    let watermark = place.at_origin("SELECT seq FROM destage_watermark");
    assert_eq!(watermark.as_deref(), Some("1"), "one write group");
}

fn a_session_cannot_use_what_its_own_raw_sql_covers(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    let refused = |work: fn(&mut Session<'_>) -> Result<(), Error>| {
        let error = store
            .session(|s| {
                double(s, 1)?;
                work(s)
            })
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("own raw SQL"), "{error}");
    };
    refused(|s| s.read(("accounts", 1)).map(drop));
    refused(|s| s.read("accounts:01").map(drop));
    refused(|s| s.inc(("accounts", 1), "balance", 1));
    refused(|s| {
        s.execute("DELETE FROM accounts", &[], &[Declared::table("accounts")])?;
        s.row(("accounts", 2)).map(drop)
    });
    assert_eq!(balance(&store, 1), Some(100), "nothing was done");
    store.close().unwrap();
}

fn what_is_no_single_statement_that_writes_what_it_declares_is_refused_at_once(kind: Kind) {
    let place = bank(kind, 1);
    place.sql("CREATE TABLE log (id INTEGER PRIMARY KEY, text TEXT)");
    let store = place.open();
    let row = || vec![Declared::row(("accounts", 1))];
    for (sql, declared, why) in [
        ("DELETE FROM accounts; DELETE FROM log", row(), "one statement"),
        ("DROP TABLE accounts", row(), "begins with"),
        ("COMMIT", row(), "begins with"),
        ("PRAGMA foreign_keys = OFF", row(), "begins with"),
        ("WITH x AS (SELECT 1) SELECT * FROM x", row(), "writes no row"),
        ("UPDATE accounts SET balanse = 1", row(), "balanse"),
        ("UPDATE acounts SET balance = 1", row(), "acounts"),
        ("UPDATE accounts SET balance = $1", row(), "$1"),
        ("UPDATE accounts SET", row(), "prepare"),
        ("INSERT INTO log (text) VALUES ('x')", row(), "writes the table log"),
        ("DELETE FROM log", row(), "writes the table log"),
        ("UPDATE accounts SET balance = 1", vec![], "declares"),
        ("UPDATE accounts SET balance = 1", vec![Declared::table("acounts")], "acounts"),
        ("UPDATE accounts SET balance = 1", vec![Declared::row("accounts:x")], "accounts.id"),
        ("UPDATE destage_watermark SET seq = 9", row(), "destage_watermark"),
    ] {
        if kind == Kind::Mariadb && why == "writes the table log" {
            // It does not tell which tables a statement writes.
            continue;
        }
        let error = store.session(|s| s.execute(sql, &[], &declared)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{sql}: {error}");
        assert!(error.to_string().contains(why), "{sql}: {error}");
    }
    let nan = store.session(|s| {
        s.execute(
            "UPDATE accounts SET balance = $1",
            &[f64::NAN.into()],
            &[Declared::row(("accounts", 1))],
        )
    });
    assert_eq!(nan.unwrap_err().kind(), ErrorKind::Invalid);
    store.close().unwrap();
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("100"));
    assert_eq!(place.at_origin("SELECT max(seq) FROM destage_watermark").as_deref(), Some("0"));
}

fn what_the_journal_holds_is_applied_once_however_often_the_store_is_opened(kind: Kind) {
    let place = bank(kind, 2);
    for round in 1..=4 {
        let store = place.open();
        if round > 1 {
            // Behind what the one before has left.
            assert_eq!(balance(&store, 1), Some(100 + 10 * (round - 1)));
        }
        store.pause().unwrap();
        for _ in 0..10 {
            store
                .session(|s| {
                    s.execute(
                        "UPDATE accounts SET balance = balance + 1 WHERE id = 1",
                        &[],
                        &[Declared::row(("accounts", 1))],
                    )
                })
                .unwrap();
        }
        // As if it had crashed: what is in the journal stays there.
        drop(store);
    }
    place.open().close().unwrap();
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("140"));
}

fn rejected_raw_sql_is_parked_with_what_builds_on_it_and_can_be_decided_on(kind: Kind) {
    let place = Place::new(
        kind,
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, version INTEGER NOT NULL UNIQUE);
         INSERT INTO accounts VALUES (1, 100, 1), (2, 100, 2), (3, 100, 3)",
    );
    let store = place.open();
    store.pause().unwrap();
    let version = |s: &mut Session<'_>, id: i64| {
        s.execute(
            "UPDATE accounts SET version = $1 WHERE id = $2",
            &[5.into(), id.into()],
            &[Declared::row(("accounts", id))],
        )
    };
    store.session(|s| version(s, 1)).unwrap();
    store.session(|s| version(s, 2)).unwrap();
    store.session(|s| double(s, 2)).unwrap();
    store.session(|s| s.inc(("accounts", 3), "balance", 1)).unwrap();
    store.resume().unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "2,3<2");
    let payload = place.at_origin("SELECT payload FROM destage_parked WHERE seq = 2").unwrap();
    let shown: serde_json::Value = serde_json::from_str(&payload).unwrap();
    let shown = &shown["changes"][0];
    assert_eq!(shown["sql"], "UPDATE accounts SET version = $1 WHERE id = $2");
    assert_eq!(shown["parameters"], serde_json::json!([{"integer": "5"}, {"integer": "2"}]));
    assert_eq!(shown["rows"], serde_json::json!([{"table": "accounts", "key": {"id": "2"}}]));
    let answer = store.parked(&["SHOW", "2"]).unwrap();
    assert_eq!(answer["payload"]["changes"][0]["sql"], shown["sql"], "{answer}");
    let answer = store.parked(&["LIST"]).unwrap();
    assert_eq!(answer[0]["tables"], serde_json::json!(["accounts"]), "{answer}");
    // Nobody knows what it would have done, so readers see the row without it.
    assert_eq!((balance(&store, 2), balance(&store, 3)), (Some(100), Some(101)));
    // Also after a restart, and what is written then joins them.
    store.close().unwrap();
    let store = place.open();
    store.session(|s| s.inc(("accounts", 2), "balance", 1)).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "2,3<2,5<2");
    store.session(|s| s.set(("accounts", 1), [("version", 0.into())])).unwrap();
    store.drain().unwrap();
    store.parked(&["RETRY", "ALL"]).unwrap();
    assert_eq!(balance(&store, 2), Some(201));
    assert_eq!(place.at_origin("SELECT version FROM accounts WHERE id = 2").as_deref(), Some("5"));
    assert_eq!(place.at_origin("SELECT count(*) FROM destage_parked").as_deref(), Some("0"));
    store.close().unwrap();
}

fn what_writes_a_table_is_parked_behind_rejected_raw_sql_that_covers_the_whole_of_it(kind: Kind) {
    let place = bank(kind, 3);
    place.sql("CREATE TABLE other (id INTEGER PRIMARY KEY, n INTEGER)");
    let store = place.open();
    store.pause().unwrap();
    // NOT NULL is violated.
    let all = [Declared::table("accounts")];
    store.session(|s| s.execute("UPDATE accounts SET version = NULL", &[], &all)).unwrap();
    store.session(|s| double(s, 3)).unwrap();
    store.session(|s| s.insert(("other", 1), [("n", 1.into())])).unwrap();
    store.resume().unwrap();
    store.drain().unwrap();
    store.session(|s| s.inc(("accounts", 1), "balance", 1)).unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "1,2<1,4<1");
    assert_eq!(place.at_origin("SELECT n FROM other").as_deref(), Some("1"));
    assert_eq!(balance(&store, 2), Some(100));
    let edited = r#"{"changes":[{"sql":"UPDATE accounts SET version = 9","tables":["accounts"]}]}"#;
    store.parked(&["EDIT", "1", edited]).unwrap();
    let version: i64 = store.read(("accounts", 2)).unwrap().unwrap().get("version").unwrap();
    assert_eq!((version, balance(&store, 3), balance(&store, 1)), (9, Some(200), Some(101)));
    store.close().unwrap();
}

fn sessions_that_read_what_raw_sql_covers_run_again(kind: Kind) {
    let place = bank(kind, 2);
    let store = place.open();
    for declared in [Declared::row(("accounts", 1)), Declared::table("accounts")] {
        let mut runs = 0;
        let before = balance(&store, 1).unwrap();
        let seen: i64 = store
            .session(|s| {
                runs += 1;
                let seen: i64 = s.row(("accounts", 1))?.get("balance")?;
                if runs == 1 {
                    let sql = "UPDATE accounts SET balance = balance + 1 WHERE id = 1";
                    store.session(|other| {
                        other.execute(sql, &[], std::slice::from_ref(&declared))
                    })?;
                }
                s.set(("accounts", 2), [("balance", seen.into())])?;
                Ok(seen)
            })
            .unwrap();
        assert_eq!((runs, seen), (2, before + 1), "{declared:?}");
    }
    // And nobody writes by raw SQL what another session holds an X lease on.
    let impatient = Duration::ZERO;
    drop(store);
    let store = place.options().retry_timeout(impatient).open().unwrap();
    store
        .session(|s| {
            s.read_to_write(&[Key::from(("accounts", 1))])?;
            for declared in [Declared::row(("accounts", 1)), Declared::table("accounts")] {
                let error = store
                    .session(|other| {
                        // Under leases, so that it does not wait as plain transactions do.
                        other.row(("accounts", 2))?;
                        other.execute("DELETE FROM accounts", &[], std::slice::from_ref(&declared))
                    })
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            }
            Ok(())
        })
        .unwrap();
    store.close().unwrap();
}

fn under_write_through_the_origin_is_asked_first_and_its_refusal_is_told(kind: Kind) {
    let place = bank(kind, 1);
    let store = place.options().policy("policy=write-through").open().unwrap();
    assert_eq!(balance(&store, 1), Some(100));
    store.session(|s| double(s, 1)).unwrap();
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("200"));
    assert_eq!(balance(&store, 1), Some(200));
    let all = [Declared::table("accounts")];
    let refused = store.session(|s| s.execute("UPDATE accounts SET version = NULL", &[], &all));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Rejected);
    assert_eq!(balance(&store, 1), Some(200));
    store.close().unwrap();
}

fn cascades_of_raw_sql_are_covered_by_themselves(kind: Kind) {
    let place = Place::new(
        kind,
        "CREATE TABLE parents (id INTEGER PRIMARY KEY);
         CREATE TABLE children (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parents (id) ON DELETE CASCADE);
         INSERT INTO parents VALUES (1), (2);
         INSERT INTO children VALUES (10, 1), (20, 2);",
    );
    let store = lazy(&place);
    assert!(store.read(("children", 10)).unwrap().is_some());
    let row = [Declared::row(("parents", 1))];
    store.session(|s| s.execute("DELETE FROM parents WHERE id = 1", &[], &row)).unwrap();
    assert_eq!(store.read(("children", 10)).unwrap(), None);
    assert!(store.read(("children", 20)).unwrap().is_some());
    store.close().unwrap();
}

fn raw_sql_is_ordered_in_the_domains_of_what_it_declares(kind: Kind) {
    let place = bank(kind, 3);
    place.sql("CREATE TABLE other (id INTEGER PRIMARY KEY, n INTEGER)");
    let by_id = DomainSettings::by_columns("by_id", [("accounts", "id")], 2);
    let lazy = place.options().policy("when=pressure").policy("staleness=1h");
    let store = lazy.domain(by_id.clone()).open().unwrap();
    store.session(|s| double(s, 1)).unwrap();
    store.session(|s| double(s, 2)).unwrap();
    assert_eq!(balance(&store, 2), Some(200));
    assert_eq!(place.at_origin(BALANCE).as_deref(), Some("100"), "in the other domain");
    // Of both domains, and of a third one.
    store
        .session(|s| {
            s.insert(("other", 1), [("n", 1.into())])?;
            s.execute(
                "UPDATE accounts SET balance = balance + $1",
                &[10.into()],
                &[Declared::table("accounts")],
            )
        })
        .unwrap();
    assert_eq!([1, 2, 3].map(|id| balance(&store, id)), [Some(210), Some(210), Some(110)]);
    assert_eq!(place.at_origin("SELECT n FROM other").as_deref(), Some("1"));
    // Rejected in one domain, it is in nobody's way in the other.
    let row = [Declared::row(("accounts", 1))];
    let null = "UPDATE accounts SET version = NULL WHERE id = 1";
    store.session(|s| s.execute(null, &[], &row)).unwrap();
    store.session(|s| double(s, 1)).unwrap();
    store.session(|s| double(s, 2)).unwrap();
    // As if it had crashed.
    drop(store);
    let store = place.options().domain(by_id).open().unwrap();
    store.drain().unwrap();
    assert_eq!(place.parked(), "4,5<4");
    assert_eq!((balance(&store, 1), balance(&store, 2)), (Some(210), Some(420)));
    store.parked(&["SKIP", "4"]).unwrap();
    store.parked(&["RETRY", "5"]).unwrap();
    assert_eq!(balance(&store, 1), Some(420));
    store.close().unwrap();
}

fn each_increment_counts_once_through_kill_9(kind: Kind) {
    crate::killed::is_child();
    let place = Place::new(
        kind,
        "CREATE TABLE counters (id INTEGER PRIMARY KEY, n INTEGER NOT NULL); INSERT INTO counters VALUES (1, 0)",
    );
    let module = format!("{kind:?}").to_lowercase();
    let test = format!("dml::{module}::each_increment_counts_once_through_kill_9");
    crate::killed::each_counts_once(&test, &place.origin(), || {
        place.at_origin("SELECT n FROM counters").unwrap().parse().unwrap()
    });
}

/// One operation of this store takes no longer than a few seconds.
fn hasty(place: &Place) -> Store {
    place
        .options()
        .with(|settings| settings.origin_timeout = Duration::from_secs(5))
        .open()
        .unwrap()
}

#[test]
fn raw_sql_that_takes_too_long_is_named_and_counts_once_it_gets_through() {
    if !Kind::Postgres.is_at_hand() {
        return;
    }
    let place = Place::new(
        Kind::Postgres,
        "CREATE TABLE counters (id int PRIMARY KEY, n int NOT NULL); INSERT INTO counters VALUES (1, 0), (2, 0); \
         CREATE FUNCTION slow() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1 FROM pg_sleep(3600)'",
    );
    let store = hasty(&place);
    let row = [Declared::row(("counters", 1))];
    let sql = "UPDATE counters SET n = n + slow() WHERE id = $1";
    store.session(|s| s.execute(sql, &[1.into()], &row)).unwrap();
    store.session(|s| s.inc(("counters", 2), "n", 1)).unwrap();
    let end = Instant::now() + Duration::from_secs(300);
    let told = loop {
        let error = store.status().unwrap().origin.last_error.unwrap_or_default();
        if error.contains("--origin-timeout") {
            break error;
        }
        assert!(Instant::now() < end, "the last error is: {error}");
        thread::sleep(Duration::from_millis(50));
    };
    assert!(told.contains("raw SQL (write 1)") && told.contains("n + slow()"), "{told}");
    let counters = "SELECT n::text FROM counters ORDER BY id";
    assert_eq!(place.parked(), "", "it may yet be applied");
    assert_eq!(place.listed(counters), "0,0", "nothing overtakes it");
    drop(store);
    place.sql("CREATE OR REPLACE FUNCTION slow() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1'");
    hasty(&place).close().unwrap();
    assert_eq!(place.listed(counters), "1,1");
}
