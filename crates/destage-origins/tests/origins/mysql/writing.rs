//! Writes: ownership, batches exactly once, what is rejected and how it is told.

use super::database::Database;
use crate::claimed::{Claimed, change, push_change, shown};
use destage_core::{Fault, Lsn};
use destage_origins::change::{GroupWriter, Op};
use destage_origins::contract::{GroupRef, Origin, ParkedGroup};
use destage_origins::parked;
use std::time::Duration;

#[test]
fn a_batch_of_several_transactions_and_packets_counts_once() {
    let Some(mut database) = Database::open("write_parts") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int, s longtext)");
    let mut claimed = Claimed::before(&database.origin().transaction_groups(70));
    let table = claimed.table("t").clone();
    // Large enough for some transactions to need several packets, and inserts several statements.
    let text = "x".repeat(100_000);
    let key = |n: usize| n.to_string();
    let insert = |n| {
        let sets = [("n", Some("1")), ("s", Some(text.as_str()))];
        change(&table, Op::Insert, &[&key(n)], &sets, &[])
    };
    let grow = |n| change(&table, Op::Update, &[&key(n)], &[], &[("n", "10")]);
    let groups: Vec<_> = (0..100).map(insert).chain((0..100).map(grow)).collect();
    let first = claimed.claim;
    claimed.apply(&groups).unwrap();
    claimed.claim = first;
    claimed.apply(&groups).unwrap();
    let counted = "SELECT concat(count(*), ' ', sum(n), ' ', sum(length(s))) FROM t";
    assert_eq!(database.text(counted).as_deref(), Some("100 1100 10000000"));
    let seq = "SELECT seq FROM destage_watermark WHERE domain = 0";
    assert_eq!(database.text(seq).as_deref(), Some("200"));
}

#[test]
fn an_error_of_the_statement_that_moves_the_watermark_is_that_error() {
    let Some(mut database) = Database::open("write_unmoved") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Update, &["1"], &[], &[("n", "5")]);
    // As a lock that another session holds for too long, a server that became read-only, a deadlock.
    for code in [1205, 1290, 1213] {
        database.sql(&format!(
            "CREATE TRIGGER stays BEFORE UPDATE ON destage_watermark FOR EACH ROW
               SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'not now'"
        ));
        let told = [
            claimed.apply(std::slice::from_ref(&group)).unwrap_err(),
            claimed.park(Lsn(1), None).unwrap_err(),
            claimed
                .claim
                .upto(Lsn(1), |claim| claimed.writer.unpark(&claimed.schema, claim, &[], &[]))
                .unwrap_err(),
        ];
        for error in told {
            assert_eq!(error.fault, Fault::Unavailable, "{error}");
            assert!(error.message.contains("not now"), "{error}");
        }
        database.sql("DROP TRIGGER stays");
    }
    claimed.apply(&[group]).unwrap();
    assert_eq!(database.text("SELECT n FROM t").as_deref(), Some("5"));
}

#[test]
fn what_the_data_break_is_rejected_whole_with_mariadbs_reason() {
    let Some(mut database) = Database::open("write_rejected") else { return };
    database.sql(
        "CREATE TABLE parent (id int PRIMARY KEY);
         CREATE TABLE t (id int PRIMARY KEY, n smallint CHECK (n < 100), u varchar(9) UNIQUE,
           w varchar(99) NOT NULL DEFAULT '', p int, s varchar(3), b bigint unsigned, l varchar(9) CHARACTER SET latin1,
           v varchar(9) NOT NULL, FOREIGN KEY (p) REFERENCES parent (id));
         INSERT INTO parent VALUES (1); INSERT INTO t (id, n, u, v, b) VALUES (1, 1, 'a', '', 5), (2, 2, 'b', '', 0),
           (3, NULL, 'c', '', 0);
         CREATE TABLE guarded (id int PRIMARY KEY);
         CREATE TRIGGER refuse BEFORE INSERT ON guarded FOR EACH ROW
           SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not today'",
    );
    let mut claimed = Claimed::before(&database.origin());
    let (t, parent) = (claimed.table("t").clone(), claimed.table("parent").clone());
    let guarded = claimed.table("guarded").clone();
    let good = change(&t, Op::Update, &["2"], &[("w", Some("touched"))], &[]);
    let update = |sets: &[(&str, Option<&str>)], amounts: &[(&str, &str)]| {
        change(&t, Op::Update, &["1"], sets, amounts)
    };
    let cases = [
        ("update of no row", change(&t, Op::Update, &["9"], &[("w", Some("x"))], &[]), "met 0"),
        ("touch of no row", change(&t, Op::Update, &["9"], &[], &[]), "met 0"),
        ("delete of no row", change(&t, Op::Delete, &["9"], &[], &[]), "met 0"),
        ("increment of NULL", change(&t, Op::Update, &["3"], &[], &[("n", "1")]), "met 0"),
        ("insert of a row", change(&t, Op::Insert, &["1"], &[("v", Some(""))], &[]), "1062"),
        ("insert without a value", change(&t, Op::Insert, &["9"], &[], &[]), "1364"),
        ("unique", update(&[("u", Some("b"))], &[]), "1062"),
        ("unique but for its case", update(&[("u", Some("B "))], &[]), "1062"),
        ("check", update(&[("n", Some("100"))], &[]), "4025"),
        ("check of a sum", update(&[], &[("n", "99")]), "4025"),
        ("range of a sum", update(&[], &[("n", "40000")]), "1264"),
        ("below zero", update(&[], &[("b", "-6")]), "1690"),
        ("not null", update(&[("w", None)], &[]), "1048"),
        ("too long, never cut", update(&[("s", Some("abcd"))], &[]), "1406"),
        ("not of the character set", update(&[("l", Some("\u{20ac}\u{416}"))], &[]), "1366"),
        ("child", update(&[("p", Some("7"))], &[]), "1452"),
        ("trigger", change(&guarded, Op::Insert, &["1"], &[], &[]), "not today"),
    ];
    for (name, bad, word) in cases {
        let error = claimed.apply(&[good.clone(), bad]).unwrap_err();
        assert_eq!(error.fault, Fault::Rejected, "{name}: {error}");
        assert!(error.in_full().contains(word), "{name}: {error}");
    }
    let untouched = "SELECT concat(sum(w <> ''), ' ', sum(b)) FROM t";
    assert_eq!(database.text(untouched).as_deref(), Some("0 5"));
    let seq = "SELECT seq FROM destage_watermark WHERE domain = 0";
    assert_eq!(database.text(seq).as_deref(), Some("0"));
    // A parent that arrives before its child in the same group satisfies it; what changes nothing still meets its row.
    let mut group = GroupWriter::new();
    push_change(&mut group, &parent, Op::Insert, &["7"], &[], &[]);
    push_change(&mut group, &t, Op::Update, &["1"], &[("p", Some("7"))], &[]);
    push_change(&mut group, &t, Op::Update, &["1"], &[("p", Some("7"))], &[]);
    let both = group.finish().to_vec();
    claimed.apply(&[good, both, update(&[], &[])]).unwrap();
    // The parent cannot go before its child.
    let gone = change(&parent, Op::Delete, &["7"], &[], &[]);
    assert!(claimed.apply(&[gone]).unwrap_err().message.contains("1451"));
}

#[test]
fn a_row_too_large_for_a_packet_is_rejected_before_it_is_sent_and_parked() {
    let Some(mut database) = Database::open("write_packet") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, s longblob)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    // Hexadecimal digits are twice as many as the bytes; the server takes 16 MiB. So they are in the payload's literal, for
    // its quotes, while JSON makes the text itself longer.
    let text = "it's\n".repeat((9 << 20) / 5);
    let group = change(&table, Op::Insert, &["1"], &[("s", Some(&text))], &[]);
    let error = claimed.apply(std::slice::from_ref(&group)).unwrap_err();
    assert_eq!(error.fault, Fault::Rejected);
    assert!(error.message.contains("max_allowed_packet"), "{error}");
    let parked = ParkedGroup {
        domain: claimed.claim.domain,
        lsn: Lsn(1),
        depends_on: None,
        reason: error.in_full(),
        payload: parked::encode(&claimed.schema, &group).unwrap(),
    };
    claimed.park(Lsn(1), Some(&parked)).unwrap();
    assert_eq!(claimed.writer.parked(u64::MAX).unwrap(), [parked]);
    claimed.claim.expected = Lsn(1);
    claimed.apply(&[change(&table, Op::Insert, &["1"], &[], &[])]).unwrap();
    let unpark = |claimed: &mut Claimed, parked: &[Lsn]| {
        let Claimed { claim, schema, writer, .. } = claimed;
        claim.upto(Lsn(2), |claim| writer.unpark(schema, claim, parked, &[])).map(drop)
    };
    unpark(&mut claimed, &[Lsn(1)]).unwrap();
    assert_eq!(database.text("SELECT count(*) FROM destage_parked").as_deref(), Some("0"));
    assert_eq!(unpark(&mut claimed, &[Lsn(1)]).unwrap_err().fault, Fault::Rejected);
}

/// A parked write of several rows in its table, number 1.
fn park_in_pieces(claimed: &mut Claimed) -> ParkedGroup {
    let parked = ParkedGroup {
        domain: claimed.claim.domain,
        lsn: Lsn(1),
        depends_on: None,
        reason: "no".to_owned(),
        payload: "x".repeat(9 << 20),
    };
    claimed.park(Lsn(1), Some(&parked)).unwrap();
    claimed.claim.expected = Lsn(1);
    parked
}

#[test]
fn what_was_parked_in_pieces_and_deleted_by_hand_is_not_applied_and_given_up_whole() {
    let Some(mut database) = Database::open("write_deleted") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Insert, &["1"], &[], &[]);
    let unpark = |claimed: &mut Claimed, groups: &[GroupRef<'_>]| {
        let Claimed { claim, schema, writer, .. } = claimed;
        claim.upto(Lsn(2), |claim| writer.unpark(schema, claim, &[Lsn(1)], groups)).map(drop)
    };
    park_in_pieces(&mut claimed);
    database.sql("DELETE FROM destage_parked WHERE domain = 0");
    assert_eq!(database.text("SELECT count(*) FROM destage_parked").as_deref(), Some("2"));
    let groups = [GroupRef { lsn: Lsn(1), bytes: &group }];
    assert_eq!(unpark(&mut claimed, &groups).unwrap_err().fault, Fault::Rejected);
    assert_eq!(database.text("SELECT count(*) FROM t").as_deref(), Some("0"));
    unpark(&mut claimed, &[]).unwrap();
    assert_eq!(database.text("SELECT count(*) FROM destage_parked").as_deref(), Some("0"));
    // One that nobody has touched goes whole, too.
    claimed.claim.expected = Lsn::ZERO;
    database.sql("UPDATE destage_watermark SET seq = 0");
    park_in_pieces(&mut claimed);
    unpark(&mut claimed, &groups).unwrap();
    assert_eq!(database.text("SELECT count(*) FROM t").as_deref(), Some("1"));
    assert_eq!(database.text("SELECT count(*) FROM destage_parked").as_deref(), Some("0"));
}

#[test]
fn a_parked_write_without_one_of_its_pieces_is_not_read_as_another_one() {
    let Some(mut database) = Database::open("write_pieces") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY)");
    let mut claimed = Claimed::before(&database.origin());
    let whole = park_in_pieces(&mut claimed);
    assert_eq!(claimed.writer.parked(u64::MAX).unwrap(), [whole]);
    database.sql("DELETE FROM destage_parked WHERE domain = -1");
    let found = claimed.writer.parked(u64::MAX).unwrap();
    let error = parked::decode(&claimed.schema, &found[0].payload).unwrap_err();
    assert!(error.to_string().contains("a piece of it is missing"), "{error}");
}

#[test]
fn every_type_arrives_as_it_was_written() {
    let Some(mut database) = Database::open("write_types") else { return };
    database.sql(
        "CREATE TABLE t (u uuid, c char(3) COLLATE utf8mb4_bin, i1 tinyint unsigned, i2 smallint, i3 mediumint, i4 int,
           i8 bigint, ub bigint unsigned, f4 float, f8 double, n decimal(30,2), y varbinary(9), z binary(4), d date,
           ti time(3), dt datetime(6), ts timestamp(6) NULL, j json, m enum('sad', 'ok', 'a''b'), s set('x','y','z'),
           bits bit(9), yr year, v varchar(4), x text, PRIMARY KEY (u, c))",
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let key = ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "k"];
    let values = [
        ("i1", "255"),
        ("i2", "-32768"),
        ("i3", "8388607"),
        ("i4", "2147483647"),
        ("i8", "-9223372036854775808"),
        ("ub", "9223372036854775807"),
        ("f4", "1e-07"),
        ("f8", "-1.7976931348623157e+308"),
        ("n", "1234567890123456789012345678.10"),
        ("y", "\u{1}'\\r\0"),
        ("z", "ab\0\0"),
        ("d", "0001-01-01"),
        ("ti", "24:00:00"),
        ("dt", "9999-12-31 23:59:59.999999"),
        ("ts", "2026-01-31 08:00:00.25+00"),
        ("j", "{\"a\" :  1}"),
        ("m", "a'b"),
        ("s", "x,z"),
        ("bits", "511"),
        ("yr", "2026"),
        ("v", "äöü\u{1f600}"),
        ("x", "'; DROP TABLE t; -- \\ ? {}"),
    ];
    for (name, value) in values {
        let ty = &table.columns[table.column(name.as_bytes()).unwrap()].ty;
        assert_eq!(&*ty.canonical(value.as_bytes()).unwrap(), value.as_bytes(), "{name}");
    }
    let sets: Vec<_> = values.iter().map(|(name, value)| (*name, Some(*value))).collect();
    claimed.apply(&[change(&table, Op::Insert, &key, &sets, &[])]).unwrap();
    let row = claimed.fetch("t", &[&key]).rows.remove(0);
    let expected: Vec<_> = key.iter().copied().chain(values.iter().map(|(_, v)| *v)).collect();
    assert_eq!(shown(row.as_deref()), expected.join("|"));

    let amounts = [("i2", "1"), ("i4", "-1"), ("i8", "9"), ("n", "0.905"), ("bits", "-11")];
    let nulls: Vec<_> =
        values.iter().map(|(n, _)| *n).filter(|n| amounts.iter().all(|(a, _)| a != n)).collect();
    let sets: Vec<_> = nulls.iter().map(|name| (*name, None)).collect();
    claimed.apply(&[change(&table, Op::Update, &key, &sets, &amounts)]).unwrap();
    let row = claimed.fetch("t", &[&key]).rows.remove(0);
    let sum = |name: &str, amount: &str| {
        let value = values.iter().find(|(n, _)| *n == name).unwrap().1;
        let ty = &table.columns[table.column(name.as_bytes()).unwrap()].ty;
        String::from_utf8(ty.add(value.as_bytes(), amount.as_bytes()).unwrap()).unwrap()
    };
    let changed = |name: &str| {
        let amount = amounts.iter().find(|(n, _)| *n == name);
        amount.map_or_else(|| "~".to_owned(), |(n, a)| sum(n, a))
    };
    let keys = key.iter().map(|part| (*part).to_owned());
    let expected: Vec<_> = keys.chain(values.iter().map(|(name, _)| changed(name))).collect();
    assert_eq!(shown(row.as_deref()), expected.join("|"));
    claimed.apply(&[change(&table, Op::Delete, &key, &[], &[])]).unwrap();
    assert_eq!(claimed.fetch("t", &[&key]).rows, [None]);
}

#[test]
fn odd_names_generated_columns_and_a_key_of_zero_are_written() {
    let Some(mut database) = Database::open("write_names") else { return };
    database.sql(
        "CREATE TABLE `Or;der` (`a\"b` int AUTO_INCREMENT PRIMARY KEY, `select` text, `é ?` int DEFAULT 4,
           twice int AS (`é ?` * 2) STORED, back`tick int)"
            .replace("back`tick", "`back``tick`")
            .as_str(),
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("Or;der").clone();
    claimed
        .apply(&[
            change(
                &table,
                Op::Insert,
                &["0"],
                &[("select", Some("x")), ("back`tick", Some("1"))],
                &[],
            ),
            change(&table, Op::Update, &["0"], &[("é ?", Some("5"))], &[]),
        ])
        .unwrap();
    let row = claimed.fetch("Or;der", &[&["0"]]).rows.remove(0);
    assert_eq!(shown(row.as_deref()), "0|x|5|10|1");
}

#[test]
fn trouble_of_the_moment_is_unavailable_and_a_schema_change_denied() {
    let Some(mut database) = Database::open("write_trouble") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Update, &["1"], &[("n", Some("1"))], &[]);
    // Long enough for a busy machine to open the connection, short enough to be waited for.
    let origin = database.origin().timeout(Duration::from_secs(3));
    claimed.writer = origin.writer().unwrap();
    database.sql("START TRANSACTION; SELECT * FROM t FOR UPDATE");
    assert_eq!(claimed.apply(std::slice::from_ref(&group)).unwrap_err().fault, Fault::Unavailable);
    database.sql("COMMIT");
    // After an outcome that is unknown the connection is to be dropped.
    claimed.writer = database.origin().writer().unwrap();
    claimed.apply(std::slice::from_ref(&group)).unwrap();

    database.sql("ALTER TABLE t CHANGE n m int");
    assert_eq!(claimed.apply(&[group]).unwrap_err().fault, Fault::Denied);
    let refs = [GroupRef { lsn: Lsn(2), bytes: &[1, 2, 3] }];
    let malformed = claimed.apply_refs(&refs).unwrap_err();
    assert_eq!(malformed.fault, Fault::Failed);
}

#[test]
fn a_lost_connection_is_unavailable_and_leaves_nothing_half_done() {
    let Some(mut database) = Database::open("write_lost") else { return };
    database.sql("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)");
    let mut claimed = Claimed::before(&database.origin());
    claimed.writer = database.origin().timeout(Duration::from_secs(120)).writer().unwrap();
    let table = claimed.table("t").clone();
    let group = change(&table, Op::Update, &["1"], &[], &[("n", "1")]);
    claimed.apply(std::slice::from_ref(&group)).unwrap();
    // The session of this writer is the one that waits for the lock below.
    database.sql("START TRANSACTION; SELECT * FROM t FOR UPDATE");
    let mut other = Database::beside(&database);
    let killer = std::thread::spawn(move || {
        let waiting = "SELECT p.id FROM information_schema.INNODB_TRX t JOIN \
             information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id \
             WHERE t.trx_state = 'LOCK WAIT' AND p.DB = database()";
        for _ in 0..400 {
            if let Some(id) = other.text(waiting) {
                other.sql(&format!("KILL CONNECTION {id}"));
                return;
            }
            // The server shows what it has shown before to whoever looks again within 100 ms.
            std::thread::sleep(Duration::from_millis(150));
        }
        panic!("nobody waits for the lock");
    });
    let lost = claimed.apply(std::slice::from_ref(&group)).unwrap_err();
    killer.join().unwrap();
    assert_eq!(lost.fault, Fault::Unavailable, "{lost}");
    database.sql("COMMIT");
    assert_eq!(database.text("SELECT n FROM t").as_deref(), Some("1"));
    claimed.writer = database.origin().writer().unwrap();
    claimed.apply(&[group]).unwrap();
    assert_eq!(database.text("SELECT n FROM t").as_deref(), Some("2"));
}

/// MariaDB merges by any unique index, and the key of a row that it found by another one would be lost.
#[test]
fn a_new_row_is_merged_by_its_primary_key_alone() {
    let Some(mut database) = Database::open("write_merged") else { return };
    database.sql(
        "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, u varchar(9) UNIQUE, v varchar(9));
         INSERT INTO t VALUES (1, 'a', 'old'), (2, 'b', 'old');
         CREATE TABLE two (a varchar(9) COLLATE utf8mb4_nopad_bin, b int, u int UNIQUE, v int, PRIMARY KEY (a, b));
         INSERT INTO two VALUES ('x', 1, 10, 1), ('x', 2, 20, 1)",
    );
    let mut claimed = Claimed::before(&database.origin());
    claimed.schema.tables.iter_mut().for_each(|table| table.merges_new = true);
    let (t, two) = (claimed.table("t").clone(), claimed.table("two").clone());
    let make = |id: &str, u: &str| {
        change(&t, Op::Insert, &[id], &[("u", Some(u)), ("v", Some("new"))], &[])
    };
    // All rows of one statement: a new one, one that is there, and one that has the value of another.
    let refused = claimed.apply(&[make("3", "c"), make("1", "a"), make("4", "b")]).unwrap_err();
    assert_eq!(refused.fault, Fault::Rejected);
    let parts = ["another primary key", "[1242"];
    assert!(parts.iter().all(|part| refused.message.contains(part)), "{refused:?}");
    let refused = claimed.apply(&[make("1", "b")]).unwrap_err();
    assert!(refused.fault == Fault::Rejected && refused.message.contains("1062"), "{refused:?}");
    claimed.apply(&[make("3", "c"), make("1", "a")]).unwrap();
    claimed.apply(&[change(&t, Op::Insert, &["2"], &[], &[])]).unwrap();
    let all = "SELECT group_concat(concat_ws(' ', id, u, v) ORDER BY id) FROM t";
    assert_eq!(database.text(all).as_deref(), Some("1 a new,2 b old,3 c new"));
    let make = |b: &str, u: &str| {
        change(&two, Op::Insert, &["x", b], &[("u", Some(u)), ("v", Some("2"))], &[])
    };
    let refused = claimed.apply(&[make("3", "20")]).unwrap_err();
    assert_eq!(refused.fault, Fault::Rejected);
    claimed.apply(&[make("2", "20"), make("3", "30")]).unwrap();
    let all = "SELECT group_concat(concat_ws(' ', a, b, u, v) ORDER BY b) FROM two";
    assert_eq!(database.text(all).as_deref(), Some("x 1 10 1,x 2 20 2,x 3 30 2"));
}
