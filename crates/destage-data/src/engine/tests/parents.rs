//! Foreign keys that are judged before the acknowledgement, by the rows that they refer to.

use super::claims::Script;
use super::options::Options;
use super::shop::{self, CHILD, PARENT};
use super::{failure, number, run_all, sweep};
use crate::engine::{DOMAIN, FetchJob};
use crate::origins::Snapshot;
use crate::schema::Schema;
use destage_core::Lsn;
use destage_engine::Drive;
use destage_testkit::origin::Row;

fn asks(schema: &mut Schema) {
    schema.tables[CHILD].asks_foreign_keys = true;
}

const MISSING: &str = "would violate FOREIGN KEY (parent) REFERENCES parent: there is no parent:9, so nothing was written";

impl Script {
    /// A command that is refused for want of a parent; nothing is written.
    #[track_caller]
    fn refused_orphan(&mut self, commands: &str) {
        let before = self.engine.last();
        let told = self.told(commands);
        assert!(told.contains(MISSING), "{commands}: {told}");
        assert_eq!(self.engine.last(), before, "{commands}");
    }

    /// What is asked of the origin, table by table, until there is an answer to this; and the answer.
    fn asked_for(&mut self, command: &str) -> (Vec<usize>, String) {
        self.send(command);
        let mut tables = Vec::new();
        while self.engine.has_fetches() {
            let jobs = self.engine.take_fetches(1);
            tables.extend(jobs.iter().map(|job| usize::from(job.table.0)));
            self.answer_row(jobs, None);
        }
        self.sync();
        (tables, self.received().0)
    }

    /// Answers a fetch of one row: by this one if there is one, else from the tables as they were.
    fn answer_row(&mut self, jobs: Vec<FetchJob>, row: Option<&[&str]>) {
        let row =
            row.map(|row| shop::row_cells(&row.iter().map(|v| Some((*v).into())).collect::<Row>()));
        let rows = jobs.iter().map(|job| {
            let place = (usize::from(job.table.0), shop::key_of(&job.key));
            let initial = shop::initial().into_iter().find(|(other, _)| *other == place);
            row.clone().or_else(|| initial.map(|(_, row)| shop::row_cells(&row)))
        });
        let rows = rows.collect();
        let watermarks = vec![(DOMAIN, Lsn::ZERO)];
        self.engine.fetched(self.now, jobs, Snapshot { rows, watermarks, seen: Vec::new() });
        self.turn();
    }
}

#[test]
fn a_write_that_refers_to_no_row_is_refused_and_nothing_of_it_is_written() {
    let mut script = Script::serving(asks);
    script.refused_orphan("HSET child:7 parent 9 qty 1");
    script.refused_orphan("HSET child:0 parent 9");
    // In its place, were it not for the foreign key.
    script.refused_orphan("HSET child:0 parent 9");
    script.refused_orphan("DESTAGE ONCE a HSET child:0 parent 9");
    script.refused_orphan("MULTI\nHSET item:0 n 7\nHSET child:0 parent 9\nEXEC");
    script.refused_orphan("MULTI\nHSET child:7 qty 1 parent 0\nHSET child:7 parent 9\nEXEC");
    script.refused_orphan("DESTAGE BEGIN 1000\nHSET child:0 parent 9\nEXEC");
    assert_eq!(script.told("HSET child:7 parent 1 qty 1"), ":2\r\n");
    assert_eq!(script.told("HSET child:0 parent 1"), ":0\r\n");
    // What it does not change is not looked at: it is as the origin has it.
    assert_eq!(script.told("HSET child:0 qty 5"), ":0\r\n");
    // Nor is anything looked for where nobody asks.
    let mut script = Script::new();
    assert_eq!(script.asked_for("HSET child:7 parent 9 qty 1"), (vec![CHILD], ":2\r\n".into()));
}

#[test]
fn what_is_cached_or_undecided_or_made_at_once_is_not_asked_for() {
    let mut script = Script::serving(asks);
    let taken = || ":2\r\n".to_owned();
    assert_eq!(script.asked_for("HSET child:7 parent 1 qty 1"), (vec![CHILD, PARENT], taken()));
    assert_eq!(script.asked_for("HSET child:8 parent 1 qty 1"), (vec![CHILD], taken()));
    assert_eq!(script.told("HSET parent:9 tag new"), ":1\r\n");
    assert_eq!(script.asked_for("HSET child:9 parent 9 qty 1"), (vec![CHILD], taken()));
    // It is undecided that it goes, as far as anybody sees here.
    assert_eq!(script.told("DEL child:9\nDEL parent:9"), ":1\r\n:1\r\n");
    script.refused_orphan("HSET child:9 parent 9 qty 1");
    let made = "MULTI\nHSET parent:9 tag own\nHSET child:9 parent 9 qty 1\nEXEC";
    assert!(script.told(made).ends_with("*2\r\n:1\r\n:2\r\n"));
    script.refused_orphan("MULTI\nDEL child:9\nDEL parent:9\nHSET child:0 parent 9\nEXEC");
    assert!(!script.told("MULTI\nHSET child:9 parent 0\nDEL parent:9\nEXEC").contains("-"));
}

#[test]
fn that_a_row_is_missing_is_not_told_by_an_old_copy() {
    let mut script = Script::serving(asks);
    assert_eq!(script.told("EXISTS parent:9 child:7"), ":0\r\n");
    script.send("HSET child:7 parent 9 qty 1");
    let jobs = script.engine.take_fetches(1);
    assert_eq!(jobs.len(), 1, "it is asked for anew");
    script.answer_row(jobs, Some(&["9", "made by others", "0"]));
    script.settle();
    assert_eq!(script.received().0, ":2\r\n");
    assert_eq!(script.told("HGET parent:9 tag"), "$14\r\nmade by others\r\n");
}

/// Clients whose writes refer to rows that come and go.
fn with_parents(seed: u64) -> Options {
    let chosen = Options::choose(seed);
    let poison_percent = chosen.poison_percent.max(3);
    let domains = [None, Some(1), Some(4)][seed as usize % 3];
    let (rewind, derives, decides) = (None, false, false);
    Options { asks_parents: true, poison_percent, domains, rewind, derives, decides, ..chosen }
}

#[test]
fn no_acknowledged_write_refers_to_a_row_that_was_missing() {
    let name = "no_acknowledged_write_refers_to_a_row_that_was_missing";
    let total = run_all(name, 100, with_parents);
    let met = total.orphans > 50 && total.crashes > 50 && total.evictions > 100;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_of_rows_that_are_looked_for() {
    sweep(&[1, 2], 1..60, with_parents);
}

/// Negative control: the engine looks for no parents though it should.
#[test]
fn writes_whose_parents_nobody_looks_for_are_noticed() {
    let forgets = |seed| Options { unsafe_forgets_parents: true, ..with_parents(seed) };
    let caught = (0..50).find_map(|seed| failure(forgets(seed)));
    assert!(caught.expect("fifty seeds notice").contains("refers to no row"));
}
