//! Rows that end, in virtual time: against a model, through crashes, and single claims.

use super::command::encode;
use super::options::{Options, Rng};
use super::shop;
use crate::cells::Reader;
use crate::change::{self, Item, Op, Set};
use crate::engine::{DOMAIN, Engine, Io};
use crate::origins::{Applied, EndedKeys, OriginError, Snapshot};
use crate::schema::{Schema, TableId};
use crate::settings::TableSettings;
use crate::ttl::TtlSettings;
use destage_core::{ClientId, Fault, Lsn, Span, Time};
use destage_engine::{Drive, recover};
use destage_journal::Journal;
use destage_testkit::SimDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// Columns of `item`: the tag, and the one that holds the end in milliseconds.
const TAG: usize = 2;
const ENDS: usize = 4;
const ITEM: TableId = TableId(shop::ITEM as u16);

fn schema() -> Schema {
    let mut schema = shop::schema();
    schema.tables[shop::ITEM].columns[ENDS].ty = schema.tables[shop::ITEM].columns[1].ty.clone();
    let ttl = Some(TtlSettings::parse("column note ms").unwrap());
    let settings = TableSettings { ttl, ..TableSettings::default() };
    schema.let_rows_end(&[("item".to_owned(), settings)].into()).unwrap();
    schema
}

type Row = Vec<Option<String>>;

fn row(key: i64, tag: &str, ends: Option<i64>) -> Row {
    vec![
        Some(key.to_string()),
        Some("0".into()),
        Some(tag.into()),
        None,
        ends.map(|ends| ends.to_string()),
    ]
}

fn end_of(row: &Row) -> Option<i64> {
    row[ENDS].as_ref().map(|ends| ends.parse().unwrap())
}

/// The origin: its rows, its watermark, and how often a group was refused.
#[derive(Default)]
struct Model {
    rows: BTreeMap<i64, Row>,
    watermark: u64,
    /// Rows that others refer to: they cannot be deleted.
    referenced: BTreeSet<i64>,
    /// The catalogue does not tell of that.
    hides_references: bool,
    deleted: u64,
    kept: u64,
    /// Its clock is so far behind the host's.
    behind_ms: i64,
    /// Control: rows are deleted without a look at their column.
    unsafe_ends_all: bool,
}

impl Model {
    fn apply(&mut self, bytes: &[u8]) -> Result<u64, String> {
        let before = self.rows.clone();
        let mut deleted = 0;
        let result = change::items(bytes, |_| Some(1)).try_for_each(|item| {
            let Item::Change(change) = item.unwrap() else { panic!("no raw SQL here") };
            let key = shop::key_of(change.key);
            let is_there = self.rows.contains_key(&key);
            match change.op {
                Op::End => {
                    let cutoff = String::from_utf8(change.end().unwrap().1.to_vec()).unwrap();
                    let cutoff: i64 = cutoff.parse().unwrap();
                    let ends = self.rows.get(&key).and_then(end_of);
                    if ends.is_some_and(|ends| ends <= cutoff) || is_there && self.unsafe_ends_all {
                        if self.referenced.contains(&key) {
                            return Err("a row refers to it".to_owned());
                        }
                        self.rows.remove(&key);
                        deleted += 1;
                    }
                    return Ok(());
                }
                Op::Insert if is_there => return Err(format!("{key} is there")),
                Op::Update | Op::Delete if !is_there => return Err(format!("{key} is not there")),
                Op::Insert => drop(self.rows.insert(key, row(key, "", None))),
                Op::Delete => drop(self.rows.remove(&key)),
                Op::Update => {}
            }
            for (column, set) in change.sets() {
                let Set::To(cell) = set else { panic!("no increments here") };
                let value = cell.value().map(|value| String::from_utf8(value.to_vec()).unwrap());
                let row = self.rows.get_mut(&key).unwrap();
                row[column] = value;
            }
            Ok(())
        });
        match result {
            Ok(()) => self.deleted += deleted,
            Err(_) => self.rows = before,
        }
        result.map(|()| deleted)
    }

    fn look(
        &self,
        after: Option<i64>,
        [cutoff, margin]: [i64; 2],
        limit: usize,
        now: i64,
    ) -> EndedKeys {
        let clock_ms = now - self.behind_ms;
        let cutoff_ms = cutoff.min(clock_ms - margin);
        let ended = self.rows.iter().filter(|(key, row)| {
            after.is_none_or(|after| **key > after)
                && end_of(row).is_some_and(|ends| ends <= cutoff_ms)
        });
        let keys = ended.take(limit).map(|(key, _)| {
            let shown = !self.hides_references && self.referenced.contains(key);
            (shop::key_cells(*key).into(), shown)
        });
        EndedKeys { keys: keys.collect(), clock_ms, cutoff_ms }
    }
}

struct World {
    disk: SimDisk,
    schema: Arc<Schema>,
    engine: Engine,
    client: ClientId,
    now: Time,
    model: Model,
    ios: Vec<Io>,
    is_away: bool,
    /// What the origin refused although it was no end of a row.
    rejected: Vec<String>,
    looked: u64,
}

fn options() -> Options {
    Options { switches: false, ack_origin: false, ..Options::choose(0) }
}

fn engine(now: Time, schema: &Arc<Schema>, journal: Journal, decided: u64) -> Engine {
    let mut settings = options().settings();
    // Time passes in leaps while the origin does nothing.
    settings.policy = destage_core::Policy { staleness: Span::MAX, ..Default::default() };
    settings.pipeline_max = 100;
    Engine::new(now, schema.clone(), journal, &settings, "model".into(), Lsn(decided))
}

impl World {
    fn new(rows: &[(i64, &str, Option<i64>)]) -> Self {
        Self::with(schema(), rows)
    }

    fn with(schema: Schema, rows: &[(i64, &str, Option<i64>)]) -> Self {
        let schema = Arc::new(schema);
        let disk = SimDisk::new();
        let (journal, _) = Journal::open(Arc::new(disk.clone()), options().journal()).unwrap();
        let now = Time::from_secs(1_000);
        let mut engine = engine(now, &schema, journal, 0);
        let client = engine.connect().unwrap();
        let rows = rows.iter().map(|&(key, tag, ends)| (key, row(key, tag, ends))).collect();
        let model = Model { rows, ..Model::default() };
        let (ios, rejected) = (Vec::new(), Vec::new());
        Self { disk, schema, engine, client, now, model, ios, is_away: false, rejected, looked: 0 }
    }

    fn ms(&self) -> i64 {
        (self.now.0 / 1_000_000) as i64
    }

    /// The process is killed and starts anew, on what the system holds.
    fn restart(&mut self) {
        self.disk.kill();
        let (journal, recovery) =
            Journal::open(Arc::new(self.disk.clone()), options().journal()).unwrap();
        let mut engine = engine(self.now, &self.schema, journal, self.model.watermark);
        let mut records = recovery.records(self.model.watermark + 1);
        let recovered: Result<(), Infallible> =
            recover(&mut engine, self.now, Lsn(recovery.last_lsn), |engine| {
                let Some(record) = records.advance().unwrap() else { return Ok(false) };
                engine.recover(Lsn(record.lsn), Time(record.stamp_ns), record.payload);
                Ok(true)
            });
        recovered.unwrap();
        self.client = engine.connect().unwrap();
        self.engine = engine;
        self.ios.clear();
    }

    fn turn(&mut self) {
        self.engine.tick(self.now);
        while self.engine.has_work() {
            self.engine.go_on(self.now);
        }
        self.ios.extend(self.engine.take_io());
    }

    /// Everything that is under way ends, but for batches and questions.
    fn settle(&mut self) {
        loop {
            self.turn();
            if self.engine.has_fetches() {
                let jobs = self.engine.take_fetches(100);
                let rows = jobs
                    .iter()
                    .map(|job| self.model.rows.get(&shop::key_of(&job.key)).map(shop::row_cells));
                let rows = rows.collect();
                let watermarks = vec![(DOMAIN, Lsn(self.model.watermark))];
                self.engine.fetched(self.now, jobs, Snapshot { rows, watermarks, seen: vec![] });
            } else if self.ios.iter().any(|io| matches!(io, Io::Sync { .. })) {
                self.ios.retain(|io| !matches!(io, Io::Sync { .. }));
                let mut flush = self.engine.journal().take();
                let upto = flush.run(true).unwrap();
                self.engine.journal().give_back(flush);
                self.engine.synced(self.now, Ok((Lsn(upto), Span::ZERO)));
            } else {
                return;
            }
        }
    }

    /// The origin does one thing that it was asked for; false if there is nothing.
    fn origin_does(&mut self) -> bool {
        let is_work =
            |io: &Io| matches!(io, Io::Destage { .. } | Io::Ended { .. } | Io::Park { .. });
        let Some(at) = self.ios.iter().position(is_work) else { return false };
        let away = || Err(OriginError::new(Fault::Unavailable, "away"));
        match self.ios.remove(at) {
            Io::Destage { batch, groups, .. } => {
                let result = if self.is_away { away() } else { self.apply(&groups) };
                self.engine.destaged(self.now, batch, result);
            }
            Io::Park { lsn, .. } => {
                let result = if self.is_away { away().map(drop) } else { Ok(()) };
                if result.is_ok() {
                    self.model.watermark = lsn.0;
                }
                self.engine.parked(self.now, lsn, result);
            }
            Io::Ended { request, after, times, limit, .. } => {
                self.looked += 1;
                let after = after.map(|key| shop::key_of(&key));
                let page = self.model.look(after, times, limit, self.ms());
                let result = if self.is_away { away().map(|_| page) } else { Ok(page) };
                self.engine.ended(self.now, request, result);
            }
            _ => unreachable!("looked up above"),
        }
        self.settle();
        true
    }

    fn apply(&mut self, groups: &crate::engine::Groups) -> Result<Applied, OriginError> {
        let (rows, watermark) = (self.model.rows.clone(), self.model.watermark);
        let mut applied = Applied::default();
        let count = groups.iter().count();
        for group in groups.iter().filter(|group| group.lsn.0 > watermark) {
            let done = self.model.apply(group.bytes);
            // As the contract has it: what only ends rows is not rejected by itself.
            let is_end = change::only_ends(group.bytes, |_| Some(1));
            match done {
                Ok(_) => {}
                Err(_) if is_end && count == 1 => {
                    (self.model.kept, applied.kept) = (self.model.kept + 1, 1)
                }
                Err(why) => {
                    (self.model.rows, self.model.watermark) = (rows, watermark);
                    if !is_end {
                        self.rejected.push(why.clone());
                    }
                    return Err(OriginError::new(Fault::Rejected, why));
                }
            }
            self.model.watermark = group.lsn.0;
        }
        Ok(applied)
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now + Span::from_millis(ms);
        self.settle();
    }

    /// Time passes with everything carried out.
    fn run(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(100) {
            self.pass(100);
            while self.origin_does() {}
        }
    }

    fn told(&mut self, command: &str) -> String {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        self.engine.receive(self.now, self.client, &encode(&words));
        self.settle();
        let (ready, _) = self.engine.outgoing(self.client).unwrap();
        let told = String::from_utf8(std::mem::take(ready)).unwrap();
        told.replace("\r\n", " ").trim_end().to_owned()
    }

    fn report(&mut self) -> destage_runtime::status::EndedReport {
        self.engine.report().ended.unwrap()
    }
}

/// What clients must see.
#[derive(Clone, Default)]
struct Seen(BTreeMap<i64, (String, Option<i64>)>);

impl Seen {
    fn command(&mut self, command: &str, now: i64) -> String {
        self.0.retain(|_, (_, ends)| ends.is_none_or(|ends| ends > now));
        let words: Vec<&str> = command.split(' ').collect();
        let key: i64 = words[1].strip_prefix("item:").unwrap().parse().unwrap();
        let there = self.0.get(&key).cloned();
        let number = |number: i64| format!(":{number}");
        match (words[0], there) {
            ("HSET", there) => {
                let added = there.is_none();
                let ends = there.and_then(|(_, ends)| ends);
                self.0.insert(key, (words[3].into(), ends));
                number(i64::from(added))
            }
            ("HGET", Some((tag, _))) => format!("${} {tag}", tag.len()),
            ("HGET", None) => "$-1".into(),
            ("EXISTS", there) => number(i64::from(there.is_some())),
            ("DEL", there) => {
                self.0.remove(&key);
                number(i64::from(there.is_some()))
            }
            ("PTTL", None) => number(-2),
            ("PTTL", Some((_, None))) => number(-1),
            ("PTTL", Some((_, Some(ends)))) => number(ends - now),
            ("PEXPIRE", Some((tag, _))) => {
                self.0.insert(key, (tag, Some(now + words[2].parse::<i64>().unwrap())));
                number(1)
            }
            ("PERSIST", Some((tag, Some(_)))) => {
                self.0.insert(key, (tag, None));
                number(1)
            }
            ("PEXPIRE" | "PERSIST", _) => number(0),
            _ => unreachable!("{command}"),
        }
    }
}

/// A run of a seed: what is read is what the model says at each moment, and in the end the origin holds that and no more.
fn course(seed: u64) -> World {
    let mut rng = Rng::new(seed, 77);
    let mut world = World::new(&[(0, "a", None), (1, "b", Some(1_000_500)), (2, "c", Some(999))]);
    world.model.behind_ms = rng.pick(&[0, 0, -5_000, 3_000]);
    let mut seen = Seen::default();
    seen.0.insert(0, ("a".into(), None));
    seen.0.insert(1, ("b".into(), Some(1_000_500)));
    for step in 0..250 {
        let key = rng.below(6);
        let command = match rng.below(12) {
            0..3 => format!("HSET item:{key} tag v{step}"),
            3..5 => format!("PEXPIRE item:{key} {}", rng.pick(&[1, 300, 2_000, 20_000, -5])),
            5 => format!("PERSIST item:{key}"),
            6 => format!("DEL item:{key}"),
            7 => format!("PTTL item:{key}"),
            8 => format!("EXISTS item:{key}"),
            _ => format!("HGET item:{key} tag"),
        };
        let expected = seen.command(&command, world.ms());
        assert_eq!(world.told(&command), expected, "seed {seed}, step {step}: {command}");
        match rng.below(20) {
            0..6 => world.pass(rng.pick(&[1, 50, 400, 3_000, 12_000])),
            6..14 => drop(world.origin_does()),
            14 => world.is_away = rng.chance(30),
            15 => drop(world.told("DESTAGE INVALIDATE *")),
            16 if rng.chance(50) => world.restart(),
            _ => {}
        }
        assert_eq!(world.rejected, [""; 0], "seed {seed}, step {step}");
    }
    world.is_away = false;
    world.run(60_000);
    let now = world.ms();
    seen.0.retain(|_, (_, ends)| ends.is_none_or(|ends| ends > now));
    let held =
        world.model.rows.iter().map(|(key, row)| (*key, (row[TAG].clone().unwrap(), end_of(row))));
    let (held, seen): (Vec<_>, Vec<_>) = (held.collect(), seen.0.into_iter().collect());
    assert_eq!(held, seen, "seed {seed}: what is left at the origin");
    world
}

#[test]
fn rows_are_seen_until_they_end_and_are_gone_at_the_origin_after_that() {
    let (mut deleted, mut looked) = (0, 0);
    for seed in super::number("DESTAGE_SEED").map_or(0..60, |seed| seed..seed + 1) {
        let world = course(seed);
        (deleted, looked) = (deleted + world.model.deleted, looked + world.looked);
    }
    assert!(
        deleted > 100 && looked > 100 || super::number("DESTAGE_SEED").is_some(),
        "{deleted} {looked}"
    );
}

/// A row is prolonged by another program while what is to delete it is on its way.
fn prolonged(unsafe_ends_all: bool) -> World {
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    world.model.unsafe_ends_all = unsafe_ends_all;
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.run(100);
    world.pass(2_000);
    assert_eq!(world.told("HGET item:1 tag"), "$-1");
    while !world.ios.iter().any(|io| matches!(io, Io::Ended { .. })) {
        world.pass(1_000);
    }
    world.origin_does();
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some("9000000".into());
    world.run(5_000);
    assert_eq!(world.report().ended_total, 1);
    world
}

#[test]
fn a_deletion_that_does_not_look_at_the_row_again_is_noticed() {
    let mut world = prolonged(true);
    assert_eq!((world.model.deleted, world.told("HGET item:1 tag").as_str()), (1, "$-1"));
}

#[test]
fn a_row_that_was_prolonged_elsewhere_is_not_deleted_and_is_seen_again() {
    let mut world = prolonged(false);
    assert_eq!(world.model.deleted, 0);
    assert_eq!(world.told("HGET item:1 tag"), "$1 b", "its copy was dropped with the deletion");
}

#[test]
fn a_copy_is_read_anew_once_its_row_ends_and_now_and_then_after_that() {
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    assert_eq!(world.told("PTTL item:1"), ":500");
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some("1002000".into());
    // What is cached is used until then.
    assert_eq!(world.told("PTTL item:1"), ":500");
    world.pass(600);
    assert_eq!(world.told("PTTL item:1"), ":1400");
    world.pass(1_500);
    assert_eq!(world.told("EXISTS item:1"), ":0");
    let ends = &mut world.model.rows.get_mut(&1).unwrap()[ENDS];
    *ends = None;
    assert_eq!(world.told("EXISTS item:1"), ":0", "what was read last counts for a while");
    world.pass(10_000);
    assert_eq!(world.told("EXISTS item:1"), ":1");
    // So it is with what a client has written here.
    world.told("PEXPIRE item:1 500");
    world.run(100);
    world.model.rows.get_mut(&1).unwrap()[ENDS] = None;
    world.pass(500);
    assert_eq!(world.told("TTL item:1"), ":-1");
}

#[test]
fn while_the_origin_is_away_what_has_ended_is_known_to_have() {
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    world.told("HGET item:1 tag");
    world.is_away = true;
    world.told("HSET item:2 tag c");
    world.run(200);
    world.pass(1_000);
    let away = !world.engine.has_fetches();
    world.engine.receive(world.now, world.client, &encode(&["EXISTS".into(), "item:1".into()]));
    world.turn();
    assert!(away && !world.engine.has_fetches(), "nobody waits for the origin");
    world.settle();
    let (ready, _) = world.engine.outgoing(world.client).unwrap();
    assert_eq!(String::from_utf8_lossy(ready), ":0\r\n");
}

#[test]
fn a_row_that_another_program_has_end_earlier_is_not_deleted_under_a_copy_that_is_seen() {
    let mut world = World::new(&[(1, "b", Some(9_000_000))]);
    assert_eq!(world.told("HGET item:1 tag"), "$1 b");
    world.model.rows.get_mut(&1).unwrap()[ENDS] = Some("5".into());
    while world.looked == 0 {
        world.run(1_000);
    }
    // The first look drops the copy alone.
    assert_eq!((world.report().ended_total, world.model.deleted), (0, 0));
    assert_eq!(world.told("HSET item:1 u x"), ":1", "it is read anew");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][3].as_deref(), Some("x"));
}

#[test]
fn what_other_rows_may_refer_to_is_not_replaced_before_the_origin_has_let_it_go() {
    let mut schema = schema();
    schema.tables[shop::ITEM].referenced_by = vec![TableId(shop::CHILD as u16)];
    let mut world = World::with(schema, &[(1, "b", Some(999)), (2, "c", None)]);
    let told = world.told("HSET item:1 tag new");
    assert!(told.starts_with("-ERR this row of item has ended"), "{told}");
    assert_eq!(world.told("EXISTS item:1"), ":0");
    assert_eq!(world.told("HSET item:2 tag new"), ":0");
    world.run(30_000);
    assert_eq!(world.told("HSET item:1 tag new"), ":1");
}

#[test]
fn a_row_that_ended_stays_away_whatever_expire_says_and_hset_makes_a_new_one() {
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    world.told("HGET item:1 tag");
    world.pass(600);
    for command in
        ["EXPIRE item:1 100", "PERSIST item:1", "DEL item:1", "HEXISTS item:1 tag", "HLEN item:1"]
    {
        assert_eq!(world.told(command), ":0", "{command}");
    }
    assert_eq!(world.told("TTL item:1"), ":-2");
    assert_eq!(world.told("TYPE item:1"), "+none");
    assert_eq!(world.told("HGETALL item:1"), "*0");
    assert_eq!(world.told("HSET item:1 u new"), ":1");
    assert_eq!(world.told("HMGET item:1 tag u note"), "*3 $-1 $3 new $-1");
    world.restart();
    assert_eq!(world.told("HMGET item:1 tag u note"), "*3 $-1 $3 new $-1");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][3].as_deref(), Some("new"));
    assert_eq!((world.model.rows.len(), world.model.deleted), (1, 1));
}

#[test]
fn rows_that_cannot_be_deleted_are_counted_and_hold_up_nothing() {
    for hides_references in [false, true] {
        let rows: Vec<_> = (0..1_200).map(|key| (key, "x", Some(1_000))).collect();
        let mut world = World::new(&rows);
        world.model.referenced = (0..1_200).filter(|key| key % 100 == 0).collect();
        world.model.hides_references = hides_references;
        world.told("HSET item:5000 tag v");
        world.run(25_000);
        assert_eq!(world.model.rows.len(), 13, "the twelve, and the new one");
        let report = world.report();
        if hides_references {
            assert!(report.refused_total >= 12 && world.model.kept >= 12, "{report:?}");
        } else {
            assert_eq!((report.kept, report.refused_total), (12, 0));
        }
        assert!(world.engine.report().halted.is_empty());
        assert_eq!(world.engine.report().destage.parked_groups, Some(0));
        // They are tried again.
        world.model.referenced.clear();
        world.run(25_000);
        assert_eq!(world.model.rows.keys().collect::<Vec<_>>(), [&5_000]);
        assert_eq!(world.report().kept, 0);
        assert_eq!(world.rejected, [""; 0]);
    }
}

#[test]
fn nothing_is_looked_for_while_the_origin_is_away_the_disk_full_or_the_server_ends() {
    type Hinder = fn(&mut World, bool);
    let away: Hinder = |world, on| world.is_away = on;
    let full: Hinder = |world, on| world.engine.journal_full(on);
    let paused: Hinder = |world, on| {
        let now = world.now;
        if on { world.engine.pause(now) } else { world.engine.resume(now) }
    };
    for hinder in [away, full, paused] {
        let mut world = World::new(&[(1, "b", Some(1_000_500))]);
        world.run(200);
        hinder(&mut world, true);
        if world.is_away {
            // It is noticed by a write.
            world.told("HSET item:3 tag v");
        }
        world.run(20_000);
        let looked = world.looked;
        world.run(20_000);
        // One question in a while finds out whether the origin answers again.
        assert!(world.looked <= looked + 3, "{} {looked}", world.looked);
        assert_eq!((world.model.deleted, world.report().ended_total), (0, 0));
        hinder(&mut world, false);
        world.run(40_000);
        assert_eq!(world.model.deleted, 1);
    }
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    world.engine.stop_ending();
    world.run(30_000);
    assert_eq!(world.looked, 0);
}

#[test]
fn a_row_is_deleted_only_once_the_clock_of_the_origin_agrees() {
    let mut world = World::new(&[(1, "b", Some(1_000_500))]);
    world.model.behind_ms = 30_000;
    world.run(20_000);
    assert_eq!((world.model.deleted, world.told("EXISTS item:1").as_str()), (0, ":0"));
    assert!(world.report().clock_ahead_seconds > 29.0);
    // And in the place of what has ended, a new row is made all the same.
    world.told("HSET item:1 tag new");
    world.run(30_000);
    assert_eq!(world.rejected, [""; 0]);
    assert_eq!(world.model.rows[&1][TAG].as_deref(), Some("new"));
}

#[test]
fn deletions_that_a_kill_left_behind_come_once() {
    let mut world = World::new(&[(1, "b", Some(999)), (2, "c", Some(999)), (3, "d", None)]);
    while !world.ios.iter().any(|io| matches!(io, Io::Ended { .. })) {
        world.pass(1_000);
    }
    world.origin_does();
    assert_eq!(world.report().ended_total, 2);
    world.restart();
    world.run(30_000);
    assert_eq!((world.model.rows.len(), world.model.deleted), (1, 2));
}

#[test]
fn a_column_that_holds_no_such_time_is_told_and_nothing_is_done() {
    let mut world = World::new(&[(1, "b", None)]);
    assert_eq!(world.told("EXPIRE item:1 100"), ":1");
    assert_eq!(world.told("TTL item:1"), ":100");
    assert_eq!(world.told("HGET item:1 note"), "$7 1100000");
    assert_eq!(world.told("EXPIRE item:1 50 GT"), ":0");
    assert_eq!(world.told("EXPIREAT item:1 1"), ":1", "a time that has passed");
    assert_eq!(world.told("EXISTS item:1"), ":0");
    assert_eq!(world.told("HSET item:2 tag x note 5000000"), ":2");
    assert_eq!(world.told("PEXPIRETIME item:2"), ":5000000");
    assert_eq!(world.told("HDEL item:2 note"), ":1");
    assert_eq!(world.told("TTL item:2"), ":-1");
    let keys = Reader::new(&shop::key_cells(2)).count();
    assert_eq!((keys, world.engine.schema().table(ITEM).key_len), (1, 1));
}
