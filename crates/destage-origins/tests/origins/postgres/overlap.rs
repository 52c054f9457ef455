//! Large batches: several transactions, two at once, that leave what one after the other would.

use super::database::Database;
use crate::claimed::{Claimed, change, claim};
use destage_core::{DomainId, Fault, Lsn};
use destage_origins::change::Op;
use destage_origins::contract::{Origin, OriginError};
use destage_origins::origins::Postgres;
use destage_origins::schema::Table;
use std::time::{Duration, Instant};

/// Groups per transaction here.
const GROUPS: usize = 4;

/// Patient enough for a slow machine.
fn origin(database: &Database) -> Postgres {
    database.origin().transaction_groups(GROUPS).timeout(Duration::from_secs(60))
}

/// Rows 0 to 99 with n = 0, and a writer that has applied a batch, so that it dares to overlap.
fn claimed(database: &Database) -> (Claimed, Table) {
    database.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 0, v text, c int CHECK (c < 1000));
         INSERT INTO t SELECT i, 0, '', 0 FROM generate_series(0, 99) i",
    );
    let mut claimed = Claimed::before(&origin(database));
    let table = claimed.table("t").clone();
    claimed.apply(&[set(&table, 99, "warm")]).unwrap();
    (claimed, table)
}

fn set(table: &Table, id: usize, value: &str) -> Vec<u8> {
    change(table, Op::Update, &[&id.to_string()], &[("v", Some(value))], &[])
}

fn add(table: &Table, id: usize, amount: &str) -> Vec<u8> {
    change(table, Op::Update, &[&id.to_string()], &[], &[("n", amount)])
}

fn watermark(database: &Database) -> u64 {
    let text = database.text("SELECT seq::text FROM destage_watermark WHERE domain = 0");
    text.unwrap().parse().unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Applies the groups in a thread of its own while `meanwhile` runs.
fn apply_while(
    claimed: &mut Claimed,
    groups: &[Vec<u8>],
    meanwhile: impl FnOnce(),
) -> Result<(), OriginError> {
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| claimed.apply(groups));
        meanwhile();
        applying.join().unwrap()
    })
}

/// The sessions at work on the table that wait for a lock of that kind.
fn waiting(database: &Database, kind: &str) -> usize {
    let sql = format!(
        "SELECT count(*)::text FROM pg_locks WHERE NOT granted AND locktype = '{kind}' \
         AND pid IN (SELECT pid FROM pg_locks WHERE relation = 't'::regclass)"
    );
    database.text(&sql).unwrap().parse().unwrap()
}

#[test]
fn two_transactions_are_under_way_and_the_second_is_seen_only_behind_the_first() {
    let Some(database) = Database::open("overlap_order") else { return };
    let stranger = Database::beside(&database);
    let (mut claimed, table) = claimed(&database);
    // Row 50 is written by both: the second must wait for it, and comes last.
    let mut groups: Vec<_> = (0..GROUPS - 1).map(|id| set(&table, id, "first")).collect();
    groups.push(set(&table, 50, "first"));
    groups.push(set(&table, 50, "second"));
    groups.extend((20..20 + GROUPS - 1).map(|id| set(&table, id, "second")));
    stranger.sql("BEGIN; SELECT 1 FROM t WHERE id = 0 FOR UPDATE");
    apply_while(&mut claimed, &groups, || {
        // The first transaction waits for the stranger, the second one has written and waits for the first.
        until("the second transaction waits", || waiting(&database, "advisory") == 1);
        assert_eq!(database.text("SELECT count(*)::text FROM t WHERE v = 'second'").unwrap(), "0");
        assert_eq!(watermark(&database), 1);
        stranger.sql("COMMIT");
    })
    .unwrap();
    let sql = "SELECT string_agg(id::text, ' ' ORDER BY id) FROM t WHERE v = 'second'";
    assert_eq!(database.text(sql).unwrap(), "20 21 22 50");
    assert_eq!(watermark(&database), 1 + groups.len() as u64);
}

#[test]
fn a_rejected_transaction_takes_the_one_behind_it_along_but_none_before() {
    let Some(database) = Database::open("overlap_rejected") else { return };
    let (mut claimed, table) = claimed(&database);
    let mut groups: Vec<_> = (0..GROUPS * 4).map(|id| set(&table, id, "x")).collect();
    groups[GROUPS + 1] = set(&table, 777, "no such row");
    let before = claimed.claim;
    let error = claimed.apply(&groups).unwrap_err();
    assert_eq!(error.fault, Fault::Rejected);
    assert!(error.message.contains("met 3"), "{error}");
    assert_eq!(watermark(&database), 1 + GROUPS as u64);
    assert_eq!(database.text("SELECT count(*)::text FROM t WHERE v = 'x'").unwrap(), "4");
    // As the core does: halves, until the bad one is alone.
    claimed.claim = before;
    claimed.apply(&groups[..GROUPS + 1]).unwrap();
    let alone = claimed.apply(&groups[GROUPS + 1..GROUPS + 2]).unwrap_err();
    assert_eq!(alone.fault, Fault::Rejected);
    assert_eq!(watermark(&database), claimed.claim.expected.0);
    claimed.park(Lsn(claimed.claim.expected.0 + 1), None).unwrap();
    claimed.claim.expected = Lsn(claimed.claim.expected.0 + 1);
    claimed.apply(&groups[GROUPS + 2..]).unwrap();
    let expected = (groups.len() - 1).to_string();
    assert_eq!(database.text("SELECT count(*)::text FROM t WHERE v = 'x'").unwrap(), expected);
}

#[test]
fn what_had_landed_of_a_large_batch_counts_once() {
    let Some(database) = Database::open("overlap_once") else { return };
    let (mut claimed, table) = claimed(&database);
    let groups: Vec<_> = (0..GROUPS * 5).map(|at| add(&table, at % 7, "1")).collect();
    let before = claimed.claim;
    // Killed where the second transaction stands still: the first is committed, the others are not.
    let stranger = Database::beside(&database);
    stranger.sql("BEGIN; SELECT 1 FROM t WHERE id = 4 FOR UPDATE");
    let error = apply_while(&mut claimed, &groups, || {
        until("the first is committed", || watermark(&database) == 1 + GROUPS as u64);
        until("another waits", || waiting(&database, "transactionid") >= 1);
        database.sql(
            "SELECT pg_terminate_backend(l.pid) FROM pg_locks l \
             WHERE l.locktype = 'transactionid' AND NOT l.granted AND l.pid IN \
               (SELECT pid FROM pg_locks WHERE relation = 't'::regclass)",
        );
    })
    .unwrap_err();
    assert_eq!(error.fault, Fault::Unavailable);
    stranger.sql("COMMIT");
    assert_eq!(claimed.claim.expected, before.expected);
    claimed.writer = origin(&database).writer().unwrap();
    claimed.apply(&groups).unwrap();
    let sums = "SELECT string_agg(n::text, ' ' ORDER BY id) FROM t WHERE id < 7";
    assert_eq!(database.text(sums).unwrap(), "3 3 3 3 3 3 2");
}

#[test]
fn a_circle_of_locks_through_both_transactions_is_found_by_the_server() {
    let Some(database) = Database::open("overlap_circle") else { return };
    let stranger = Database::beside(&database);
    let (mut claimed, table) = claimed(&database);
    let first = (0..GROUPS).map(|id| set(&table, id, "ours"));
    let groups: Vec<_> = first.chain((20..20 + GROUPS).map(|id| set(&table, id, "ours"))).collect();
    // The stranger holds a row of the first transaction and asks for one that the second holds.
    stranger.sql("BEGIN; UPDATE t SET v = 'theirs' WHERE id = 0");
    let (mut theirs, mut took) = (Ok(()), Duration::ZERO);
    let ours = apply_while(&mut claimed, &groups, || {
        until("the second transaction waits", || waiting(&database, "advisory") == 1);
        let began = Instant::now();
        theirs = stranger.try_sql("UPDATE t SET v = 'theirs' WHERE id = 20");
        took = began.elapsed();
        let _ = stranger.try_sql("ROLLBACK");
    });
    let deadlock = |text: String| assert!(text.contains("40P01"), "{text}");
    match (&theirs, &ours) {
        (Err(error), Ok(())) => deadlock(error.clone()),
        (Ok(()), Err(error)) => {
            assert_eq!(error.fault, Fault::Unavailable);
            deadlock(error.to_string());
        }
        other => panic!("one of the two must be chosen: {other:?} after {took:?}"),
    }
}

#[test]
fn what_does_not_commute_waits_for_its_turn() {
    let Some(database) = Database::open("overlap_turns") else { return };
    let stranger = Database::beside(&database);
    let (mut claimed, table) = claimed(&database);
    let mut groups: Vec<_> = (0..GROUPS).map(|id| set(&table, id, "x")).collect();
    // A checked column: what is allowed may depend on what was there before.
    groups.extend(
        (20..20 + GROUPS)
            .map(|id| change(&table, Op::Update, &[&id.to_string()], &[("c", Some("5"))], &[])),
    );
    groups.push(change(&table, Op::Insert, &["500"], &[("v", Some("new"))], &[]));
    groups.push(change(&table, Op::Delete, &["20"], &[], &[]));
    groups.push(set(&table, 500, "newer"));
    stranger.sql("BEGIN; SELECT 1 FROM t WHERE id = 0 FOR UPDATE");
    apply_while(&mut claimed, &groups, || {
        until("the first waits", || waiting(&database, "transactionid") == 1);
        // Whoever began would hold the marker of its transaction beside that of the first.
        let held = "SELECT count(*)::text FROM pg_locks WHERE locktype = 'advisory' \
             AND classid = 'destage_watermark'::regclass";
        for _ in 0..50 {
            assert_eq!(database.text(held).unwrap(), "1");
        }
        stranger.sql("COMMIT");
    })
    .unwrap();
    assert_eq!(database.text("SELECT v FROM t WHERE id = 500").unwrap(), "newer");
    assert_eq!(database.text("SELECT count(*)::text FROM t WHERE c = 5").unwrap(), "3");
}

#[test]
fn a_late_owner_of_a_large_batch_changes_nothing() {
    let Some(database) = Database::open("overlap_fenced") else { return };
    let (mut claimed, table) = claimed(&database);
    database.origin().writer().unwrap().claim(&claim(Some(1), 2)).unwrap();
    let groups: Vec<_> = (0..GROUPS * 3).map(|id| set(&table, id, "late")).collect();
    assert_eq!(claimed.apply(&groups).unwrap_err().fault, Fault::Fenced);
    assert_eq!(database.text("SELECT count(*)::text FROM t WHERE v = 'late'").unwrap(), "0");
}

#[test]
fn large_batches_leave_what_their_groups_leave_one_by_one() {
    let Some(database) = Database::open("overlap_equal") else { return };
    let (mut all, table) = claimed(&database);
    database.sql("CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u SELECT * FROM t");
    let origin = database.origin();
    let schema = origin.schema().unwrap();
    let other = schema.find(b"u").unwrap().clone();
    let mut one = Claimed {
        writer: origin.writer().unwrap(),
        reader: origin.reader().unwrap(),
        schema,
        ..all
    };
    one.claim.domain = DomainId(3);
    one.claim.expected = Lsn::ZERO;
    let mut state = 5u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 33) % bound
    };
    for round in 0..60 {
        // Few rows, so that neighbours meet; now and then something that does not commute.
        let spread = 2 + below(40);
        let changes: Vec<_> =
            (0..1 + below(30)).map(|_| [below(spread), below(9), below(900)]).collect();
        let group = |table: &Table, [id, what, number]: [u64; 3]| {
            let (id, number) = (id.to_string(), number.to_string());
            let key = [id.as_str()];
            match what {
                0 if round % 3 == 0 => {
                    change(table, Op::Update, &key, &[("c", Some(&number))], &[])
                }
                0..=3 => change(table, Op::Update, &key, &[], &[("n", &number)]),
                4 => change(table, Op::Update, &key, &[("n", Some(&number))], &[]),
                5 => {
                    change(table, Op::Update, &key, &[("n", Some("1")), ("v", Some(&number))], &[])
                }
                _ => change(table, Op::Update, &key, &[("v", Some(&number))], &[]),
            }
        };
        let theirs: Vec<_> = changes.iter().map(|&c| group(&table, c)).collect();
        all.apply(&theirs).unwrap();
        for &each in &changes {
            one.apply(&[group(&other, each)]).unwrap();
        }
        let differ = "SELECT count(*)::text FROM (TABLE t EXCEPT TABLE u) AS differing";
        assert_eq!(database.text(differ).unwrap(), "0", "round {round}");
    }
}

#[test]
fn a_plan_made_for_a_tiny_table_does_not_read_it_whole_once_it_has_grown() {
    let Some(database) = Database::open("overlap_grown") else { return };
    database.sql(
        "CREATE TABLE t (id int PRIMARY KEY, n int) WITH (autovacuum_enabled = off);
         INSERT INTO t VALUES (0, 0); ANALYZE t",
    );
    let mut claimed = Claimed::before(&database.origin());
    let table = claimed.table("t").clone();
    claimed.apply(&[add(&table, 0, "1")]).unwrap();
    assert_eq!(claimed.fetch("t", &[&["0"]]).rows.len(), 1);
    database.sql("INSERT INTO t SELECT i, 0 FROM generate_series(1, 100000) i");
    let refs: Vec<_> = (0..50).map(|id| add(&table, id, "1")).collect();
    claimed.apply(&refs).unwrap();
    assert_eq!(claimed.fetch("t", &[&["7"]]).rows.len(), 1);
    // Both sessions tell the statistics what they read when they end.
    drop(claimed);
    let read = |column: &str| -> u64 {
        let sql =
            format!("SELECT {column}::text FROM pg_stat_user_tables WHERE relid = 't'::regclass");
        database.text(&sql).unwrap().parse().unwrap()
    };
    until("the statistics arrive", || read("seq_tup_read") + read("idx_tup_fetch") >= 53);
    assert!(read("seq_tup_read") < 1_000, "{} rows read", read("seq_tup_read"));
}
