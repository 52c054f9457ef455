//! Reads: rows and watermarks of one snapshot, keys in order, new keys.

use super::database::Database;
use crate::claimed::{Claimed, change, claim, key, shown};
use destage_core::{DomainId, Fault, Lsn};
use destage_origins::change::Op;
use destage_origins::contract::Origin;

#[test]
fn rows_come_in_the_order_asked_with_the_watermarks() {
    let Some(mut database) = Database::open("read_rows") else { return };
    database.sql(
        "CREATE TABLE t (a int, b varchar(9) COLLATE utf8mb4_bin, v text, PRIMARY KEY (b, a));
         INSERT INTO t VALUES (1, 'x', 'one'), (2, 'x', NULL), (1, 'y ', '')",
    );
    let before = database.origin().reader().unwrap();
    drop(before);
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    claimed.apply(&[change(&table, Op::Update, &["x", "1"], &[("v", Some("uno"))], &[])]).unwrap();
    let snapshot =
        claimed.fetch("t", &[&["y", "1"], &["x", "9"], &["x", "2"], &["x", "1"], &["x", "2"]]);
    let rows: Vec<_> = snapshot.rows.iter().map(|row| shown(row.as_deref())).collect();
    // Blanks at the end of a key do not count.
    assert_eq!(rows, ["y|1|", "none", "x|2|~", "x|1|uno", "x|2|~"]);
    assert_eq!(snapshot.watermarks, [(DomainId(0), Lsn(1)), (DomainId(3), Lsn(0))]);
    assert_eq!(claimed.fetch("t", &[]).watermark(DomainId(0)), Lsn(1));
    assert_eq!(claimed.fetch("t", &[&["z", "1"]]).watermark(DomainId(0)), Lsn(1));
}

#[test]
fn without_an_owner_there_are_rows_and_no_watermarks() {
    let Some(mut database) = Database::open("read_unowned") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)");
    let origin = database.origin();
    let schema = origin.schema().unwrap();
    let mut reader = origin.reader().unwrap();
    let snapshot = reader.fetch(&schema.tables[0], &[&key(&["1"])]).unwrap();
    assert_eq!((shown(snapshot.rows[0].as_deref()).as_str(), snapshot.watermarks.len()), ("1", 0));
    // Once a writer has made its tables, the same reader sees them.
    origin.writer().unwrap().claim(&claim(None, 1)).unwrap();
    assert_eq!(reader.fetch(&schema.tables[0], &[]).unwrap().watermarks.len(), 2);
}

#[test]
fn keys_are_scanned_in_the_order_of_their_values_or_bytes() {
    let Some(mut database) = Database::open("read_scan") else { return };
    database.sql(
        "CREATE TABLE n (id int PRIMARY KEY);
         INSERT INTO n VALUES (-5), (0), (9), (10);
         CREATE TABLE w (a varchar(9) COLLATE utf8mb4_bin, b enum('z','a') COLLATE utf8mb4_bin, PRIMARY KEY (a, b));
         INSERT INTO w VALUES ('a', 'z'), ('a', 'a'), ('a\\tb', 'z'), ('B', 'z'), ('\u{e4}', 'z'), ('', 'a');
         CREATE TABLE d (at datetime(3), n decimal(6,2), PRIMARY KEY (at, n));
         INSERT INTO d VALUES ('2026-01-01 00:00:00', 9), ('2026-01-01 00:00:00.5', 10),
           ('2026-01-01 00:00:00.5', 2.5), ('2026-01-01 00:00:01', 1);
         CREATE TABLE e (id int PRIMARY KEY)",
    );
    let mut claimed = Claimed::before(&database.origin());
    let mut scan = |name: &str, limit: usize| {
        let table = claimed.table(name).clone();
        let (mut all, mut after) = (Vec::new(), None::<Box<[u8]>>);
        loop {
            let (keys, watermarks) = claimed.reader.scan(&table, after.as_deref(), limit).unwrap();
            assert!(watermarks.iter().all(|(_, at)| *at == Lsn(0)));
            let Some(last) = keys.last() else { return all };
            after = Some(last.clone());
            all.extend(keys.iter().map(|key| shown(Some(key))));
        }
    };
    for limit in [1, 2, 100] {
        assert_eq!(scan("n", limit), ["-5", "0", "9", "10"]);
        assert_eq!(scan("w", limit), ["|a", "B|z", "a|a", "a|z", "a\tb|z", "\u{e4}|z"]);
        assert_eq!(
            scan("d", limit),
            [
                "2026-01-01 00:00:00|9.00",
                "2026-01-01 00:00:00.5|10.00",
                "2026-01-01 00:00:00.5|2.50",
                "2026-01-01 00:00:01|1.00"
            ]
        );
        assert_eq!(scan("e", limit), [""; 0]);
    }
}

#[test]
fn new_keys_are_reserved_and_never_handed_out_twice() {
    let Some(mut database) = Database::open("read_next") else { return };
    database.sql(
        "CREATE TABLE parent (id int PRIMARY KEY);
         CREATE TABLE t (id bigint unsigned AUTO_INCREMENT PRIMARY KEY, w varchar(9) NOT NULL, n int NOT NULL CHECK (n > 5),
           p int NOT NULL, FOREIGN KEY (p) REFERENCES parent (id));
         INSERT INTO parent VALUES (1); INSERT INTO t VALUES (7, 'x', 9, 1);
         CREATE TABLE plain (id int PRIMARY KEY);
         CREATE TABLE watched (id int AUTO_INCREMENT PRIMARY KEY);
         CREATE TRIGGER watch BEFORE INSERT ON watched FOR EACH ROW SET @a = 1;
         CREATE TABLE met (id int AUTO_INCREMENT PRIMARY KEY, mail varchar(9) NOT NULL UNIQUE);
         INSERT INTO met VALUES (1, '')",
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let first = claimed.reader.next_keys(&table, 3).unwrap().keys;
    let second = claimed.reader.next_keys(&table, 2).unwrap().keys;
    assert_eq!((first, second), (vec![8, 9, 10], vec![11, 12]));
    // An insert of another program does not get one of them either, and nothing is left in the table.
    database.sql("INSERT INTO t (w, n, p) VALUES ('y', 9, 1)");
    assert_eq!(
        database.text("SELECT group_concat(id ORDER BY id) FROM t").as_deref(),
        Some("7,13")
    );
    for name in ["plain", "watched"] {
        let table = claimed.table(name).clone();
        assert_eq!(claimed.reader.next_keys(&table, 1).unwrap_err().fault, Fault::Denied, "{name}");
    }
    let met = claimed.reader.next_keys(&claimed.table("met").clone(), 1).unwrap_err();
    assert_eq!(met.fault, Fault::Rejected);
    assert!(met.message.contains("for key 'mail'") && met.message.contains("0 or empty"), "{met}");
    // The session checks again afterwards.
    let row = claimed.fetch("t", &[&["13"]]).rows.remove(0);
    assert_eq!(shown(row.as_deref()), "13|y|9|1");
}
