//! What the origin changes by itself, and rows whose fetch or whose change is overtaken: none of it is served as it was.

use super::claims::Script;
use super::shop::{self, CHILD, ITEM, NAMES, PARENT};
use crate::cells::Cell;
use crate::change::{GroupWriter, Op, Set};
use crate::engine::{Asker, DOMAIN, Engine, FetchJob, Io, ParkedAnswer, ParkedCommand};
use crate::origins::{Applied, OriginError, Snapshot};
use crate::schema::{Schema, TableId};
use destage_core::{Fault, Lsn, Time};
use destage_engine::Drive;
use destage_testkit::origin::{Place, Row};
use std::sync::mpsc;

/// Deleting a parent deletes or changes its children.
fn cascades(schema: &mut Schema) {
    *schema = shop::schema_with_cascades();
}

fn triggers(schema: &mut Schema) {
    schema.tables[ITEM].class.opaque = Some("it has trigger t".into());
}

/// An engine that finds one group in its journal, a change of one row.
fn left(more: fn(&mut Schema), (table, key): Place, op: Op) -> Script {
    let mut writer = GroupWriter::new();
    writer.begin(TableId(table as u16), op, &shop::key_cells(key));
    if op == Op::Update {
        writer.set(2, Set::To(Cell::Value(b"v1")));
    }
    let bytes = writer.finish().to_vec();
    Script::over(more, |mut engine: Engine| {
        let mut found = Some(());
        let taken: Result<(), ()> =
            destage_engine::recover(&mut engine, Time::ZERO, Lsn(1), |engine| {
                let is_there = found.take().is_some();
                if is_there {
                    engine.recover(Lsn(1), Time::from_secs(1_000), &bytes);
                }
                Ok(is_there)
            });
        taken.unwrap();
        engine
    })
}

impl Script {
    fn jobs(&mut self) -> Vec<FetchJob> {
        self.engine.take_fetches(100)
    }

    /// The origin answers a fetch of one row.
    fn bring(&mut self, jobs: Vec<FetchJob>, row: Option<&[&str]>, watermark: u64) {
        let row = row.map(|row| {
            let cells: Row = row.iter().map(|v| (!v.is_empty()).then(|| (*v).into())).collect();
            shop::row_cells(&cells)
        });
        let watermarks = vec![(DOMAIN, Lsn(watermark))];
        let rows = jobs.iter().map(|_| row.clone()).collect();
        self.engine.fetched(self.now, jobs, Snapshot { rows, watermarks, seen: Vec::new() });
        self.turn();
    }

    /// Asks for what is to be fetched again, of which the origin then has this row.
    fn told_again(&mut self, command: &str, row: Option<&[&str]>, watermark: u64) -> String {
        self.send(command);
        assert_eq!(self.received().0, "", "served as it was: {command}");
        let jobs = self.jobs();
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        self.bring(jobs, row, watermark);
        self.received().0
    }

    pub(super) fn decide(&mut self, command: ParkedCommand) -> mpsc::Receiver<ParkedAnswer> {
        let (sender, answer) = mpsc::channel();
        let asker = Asker::new(move |told| sender.send(told).expect("the test waits"));
        self.engine.ask_parked(command, asker);
        self.turn();
        answer
    }

    /// Asks for a page of items; its number.
    fn ask_for_items(&mut self) -> u64 {
        self.send("SCAN 0 MATCH item:*");
        let at = self.ios.iter().position(|io| matches!(io, Io::Scan { .. }));
        match self.ios.remove(at.expect("a page is asked for")) {
            Io::Scan { request, .. } => request,
            _ => unreachable!("looked up above"),
        }
    }

    /// The page shows no rows at all; what its client is told.
    fn bring_no_items(&mut self, request: u64, watermark: u64) -> String {
        let watermarks = vec![(DOMAIN, Lsn(watermark))];
        self.engine.scanned(self.now, request, Ok((Vec::new(), watermarks)));
        self.turn();
        self.received().0
    }

    pub(super) fn unparked(&mut self) {
        let at = self.ios.iter().position(|io| matches!(io, Io::Unpark { .. }));
        self.ios.remove(at.expect("a decision is on its way"));
        self.engine.unparked(self.now, Ok(Applied::default()));
        self.turn();
    }
}

#[test]
fn rows_that_a_delete_of_an_earlier_run_reaches_are_fetched_again() {
    let mut script = left(cascades, (PARENT, 1), Op::Delete);
    assert_eq!(script.told("HGET child:1 qty"), "$1\r\n0\r\n");
    script.destage();
    assert_eq!(script.told_again("HGET child:1 qty", None, 1), "$-1\r\n");
}

#[test]
fn a_row_whose_trigger_an_earlier_run_left_to_be_fired_is_fetched_again() {
    let mut script = left(triggers, (ITEM, 0), Op::Update);
    assert_eq!(script.told("HMGET item:0 n tag"), "*2\r\n$2\r\n10\r\n$2\r\nv1\r\n");
    script.destage();
    let row = ["0", "11", "v1", "", "old"];
    assert_eq!(script.told_again("HGET item:0 n", Some(&row), 1), "$2\r\n11\r\n");
}

#[test]
fn a_row_with_changes_of_its_own_is_fetched_again_where_a_delete_reached_it() {
    let mut script = Script::serving(cascades);
    script.send("DEL parent:0");
    script.fetch(0);
    script.sync();
    let deletes = script.client;
    script.client = script.engine.connect().unwrap();
    assert_eq!(script.told("HSET child:0 tag v9"), ":0\r\n");
    script.destage();
    let row = ["0", "", "3", "v0"];
    let expected = "*2\r\n$-1\r\n$2\r\nv9\r\n";
    assert_eq!(script.told_again("HMGET child:0 parent tag", Some(&row), 1), expected);
    script.destage();
    assert_eq!(script.told("HMGET child:0 parent tag"), expected, "it needs no other fetch");
    script.client = deletes;
    assert_eq!(script.received().0, ":1\r\n");
}

#[test]
fn a_row_that_goes_with_another_one_in_the_transaction_that_changed_it_is_fetched_again() {
    let mut script = Script::serving(cascades);
    script.send("MULTI\nHINCRBY child:1 qty 5\nDEL parent:1\nEXEC");
    script.fetch(0);
    script.sync();
    script.destage();
    assert!(script.received().0.ends_with("*2\r\n:5\r\n:1\r\n"));
    assert_eq!(script.told_again("HGET child:1 qty", None, 1), "$-1\r\n");
}

/// Other rows refer to columns of parents that are no part of the key.
fn cascades_of_columns(schema: &mut Schema) {
    cascades(schema);
    let columns = &mut schema.tables[PARENT].columns;
    columns[1].not_null = false;
    columns[1..].iter_mut().for_each(|column| column.structural = true);
}

#[test]
fn whatever_changes_a_column_that_others_refer_to_waits_for_the_origin_and_drops_them() {
    let writes = [
        ("HSET parent:1 tag v2", ":0\r\n"),
        ("HDEL parent:1 tag", ":1\r\n"),
        ("HINCRBY parent:1 total 5", ":12\r\n"),
        ("MULTI\nHINCRBY parent:1 total 5\nEXEC", "+OK\r\n+QUEUED\r\n*1\r\n:12\r\n"),
    ];
    for (write, told) in writes {
        let mut script = Script::serving(cascades_of_columns);
        assert_eq!(script.told("HGET child:1 qty"), "$1\r\n0\r\n");
        script.send(write);
        script.fetch(0);
        script.sync();
        let early = script.received().0;
        assert!(!early.contains(':'), "acknowledged before the origin has decided: {write}");
        script.destage();
        assert_eq!(early + &script.received().0, told);
        assert_eq!(script.told_again("HGET child:1 qty", None, 1), "$-1\r\n", "{write}");
    }
}

#[test]
fn a_delete_with_triggers_that_were_declared_harmless_still_takes_its_children_along() {
    let mut script = Script::serving(|schema| {
        cascades(schema);
        schema.tables[PARENT].class.opaque = Some("it has trigger t".into());
    });
    script.engine.config.tables[PARENT].triggers = Some(Vec::new());
    assert_eq!(script.told("HGET child:1 qty"), "$1\r\n0\r\n");
    script.send("DEL parent:1");
    script.fetch(0);
    script.sync();
    assert_eq!(script.received().0, "", "acknowledged before the origin has decided");
    script.destage();
    assert_eq!(script.received().0, ":1\r\n");
    assert_eq!(script.told_again("HGET child:1 qty", None, 1), "$-1\r\n");
}

#[test]
fn a_delete_drops_what_the_triggers_of_its_children_are_declared_to_change() {
    let mut script = Script::serving(|schema| {
        cascades(schema);
        schema.tables[CHILD].class.opaque = Some("it has trigger t".into());
    });
    script.engine.config.tables[CHILD].triggers = Some(vec![NAMES[ITEM].into()]);
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n10\r\n");
    script.send("DEL parent:1");
    script.fetch(0);
    script.sync();
    script.destage();
    assert_eq!(script.received().0, ":1\r\n");
    let row = ["0", "11", "v0", "", "old"];
    assert_eq!(script.told_again("HGET item:0 n", Some(&row), 1), "$2\r\n11\r\n");
}

#[test]
fn a_rejected_write_of_a_row_that_was_not_loaded_is_not_in_what_a_fetch_brings() {
    let mut script = Script::new();
    script.engine.config.tables[ITEM].blind = true;
    script.write_through();
    script.send("HSET item:0 tag v9");
    script.sync();
    let writes = script.client;
    script.client = script.engine.connect().unwrap();
    script.send("HGET item:0 tag");
    let jobs = script.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    script.reject();
    // It looked before the origin said no.
    script.bring(jobs, Some(&["0", "10", "v0", "", "old"]), 0);
    script.fetch(1);
    assert_eq!(script.received().0, "$2\r\nv0\r\n");
    script.client = writes;
    assert!(script.received().0.starts_with("-REJECTED"));
}

#[test]
fn a_row_that_was_told_of_while_it_was_fetched_and_written_blind_since_is_fetched_again() {
    let mut script = Script::new();
    script.engine.config.tables[ITEM].blind = true;
    script.send("HGET item:0 n");
    let jobs = script.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    script.engine.changed_at_origin(TableId(ITEM as u16), Some(&[shop::key_cells(0).into()]));
    let reader = script.client;
    script.client = script.engine.connect().unwrap();
    script.send("HSET item:0 tag v9");
    assert_eq!(script.engine.last(), Lsn(1), "it does not wait for the row");
    script.bring(jobs, Some(&["0", "10", "v0", "", "old"]), 0);
    let jobs = script.jobs();
    assert_eq!(jobs.len(), 1, "what came is from before it was told of");
    script.bring(jobs, Some(&["0", "11", "v0", "", "old"]), 0);
    script.settle();
    script.client = reader;
    assert_eq!(script.received().0, "$2\r\n11\r\n");
    assert_eq!(script.told("HGET item:0 tag"), "$2\r\nv9\r\n");
}

/// Group 1, HSET item:0 n 7, is parked.
fn parked() -> Script {
    let mut script = Script::new();
    assert_eq!(script.told("HSET item:0 n 7"), ":0\r\n");
    script.reject();
    assert_eq!(script.told("HGET item:0 n"), "$1\r\n7\r\n");
    script
}

#[test]
fn a_row_that_was_made_and_deleted_again_has_nothing_to_do_with_the_rest_of_its_transaction() {
    let mut script = Script::new();
    assert_eq!(script.told("EXISTS item:4"), ":1\r\n");
    let told = script.told("MULTI\nHSET item:0 n 7\nHSET item:7 tag v1\nDEL item:7\nEXEC");
    assert!(told.ends_with("*3\r\n:0\r\n:1\r\n:1\r\n"), "{told}");
    script.reject();
    assert_eq!(script.told("HSET item:7 tag v2"), ":1\r\n");
    script.destage();
    assert_eq!(script.told("HGET item:7 tag"), "$2\r\nv2\r\n");
    // One that was there before is deleted all the same.
    let told = script.told("MULTI\nDEL item:4\nHSET item:4 tag v3\nDEL item:4\nEXEC");
    assert!(told.ends_with("*3\r\n:1\r\n:1\r\n:1\r\n"), "{told}");
    script.destage();
    assert_eq!(script.told("EXISTS item:4"), ":0\r\n");
}

#[test]
fn a_write_that_waits_for_the_origin_brings_back_nothing_that_was_given_up_meanwhile() {
    let mut script = parked();
    let answer = script.decide(ParkedCommand::Skip(Lsn(1)));
    script.write_through();
    script.send("HINCRBY item:0 n 1");
    script.sync();
    script.unparked();
    assert!(answer.recv().unwrap().is_ok());
    let writes = script.client;
    script.client = script.engine.connect().unwrap();
    script.send("HGET item:0 n");
    script.fetch(1);
    assert_eq!(script.received().0, "", "the origin has not decided");
    script.destage();
    assert_eq!(script.received().0, "$2\r\n11\r\n");
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n11\r\n");
    script.client = writes;
    assert_eq!(script.received().0, ":8\r\n");
}

#[test]
fn a_scan_shows_no_insert_that_was_given_up_before_it_though_an_older_one_is_under_way() {
    let mut script = Script::new();
    assert_eq!(script.told("HSET item:7 tag v1"), ":1\r\n");
    script.reject();
    let older = script.ask_for_items();
    let answer = script.decide(ParkedCommand::Skip(Lsn(1)));
    script.unparked();
    assert!(answer.recv().unwrap().is_ok());
    let before = std::mem::replace(&mut script.client, script.engine.connect().unwrap());
    let newer = script.ask_for_items();
    let page = script.bring_no_items(newer, 1);
    assert!(!page.contains("item:7"), "{page}");
    script.client = before;
    let page = script.bring_no_items(older, 1);
    assert!(page.contains("item:7"), "it was there when the older one began: {page}");
}

#[test]
fn rows_that_a_decision_sets_off_a_change_of_are_fetched_again() {
    let mut script = Script::serving(cascades);
    assert_eq!(script.told("HGET child:1 qty"), "$1\r\n0\r\n");
    assert_eq!(script.told("HSET parent:1 tag v1"), ":0\r\n");
    script.reject();
    let delete = r#"{"changes":[{"table":"parent","op":"delete","key":{"id":"1"}}]}"#;
    let answer = script.decide(ParkedCommand::Edit(Lsn(1), delete.into()));
    script.unparked();
    assert!(answer.recv().unwrap().is_ok());
    assert_eq!(script.told_again("HGET child:1 qty", None, 1), "$-1\r\n");
}

/// Group 1, HSET item:0 n 7, is being parked.
fn on_its_way() -> Script {
    let mut script = Script::new();
    assert_eq!(script.told("HSET item:0 n 7"), ":0\r\n");
    script.now = script.now + destage_core::Span::from_millis(50);
    script.turn();
    let at = script.ios.iter().position(|io| matches!(io, Io::Destage { .. })).unwrap();
    let Io::Destage { batch, .. } = script.ios.remove(at) else { unreachable!() };
    script.engine.destaged(script.now, batch, Err(OriginError::new(Fault::Rejected, "no")));
    script.turn();
    script
}

#[test]
fn a_decision_does_not_wait_for_what_a_pause_holds_up() {
    let mut script = on_its_way();
    script.engine.pause(script.now);
    let answer = script.decide(ParkedCommand::Retry(None));
    assert!(answer.try_recv().is_err(), "it is on its way");
    script.engine.parked(script.now, Lsn(1), Err(OriginError::new(Fault::Unavailable, "away")));
    script.turn();
    let told = answer.try_recv().expect("it is answered").unwrap_err();
    assert!(told.code() == crate::resp::Code::Paused, "{told}");
}

#[test]
fn a_decision_does_not_wait_for_what_the_origin_denies_to_park() {
    let mut script = on_its_way();
    let answer = script.decide(ParkedCommand::Retry(None));
    assert!(answer.try_recv().is_err(), "it is on its way");
    script.engine.parked(script.now, Lsn(1), Err(OriginError::new(Fault::Denied, "no right")));
    script.turn();
    let told = answer.try_recv().expect("it is answered").unwrap_err();
    assert!(told.code() == crate::resp::Code::Denied, "{told}");
    assert!(told.to_string().contains("no right"), "{told}");
}
