//! Rows that end, in virtual time: against a model, through crashes, and single claims.

mod claims;

use super::command::encode;
use super::options::{Options, Rng};
use super::shop;
use crate::change::{self, Item, Op, Set};
use crate::engine::{DOMAIN, Engine, Io};
use crate::origins::{Applied, EndedKeys, OriginError, Snapshot};
use crate::schema::{Schema, TableId};
use crate::settings::TableSettings;
use crate::ttl::TtlSettings;
use destage_core::{ClientId, Fault, Lsn, Span, Time};
use destage_engine::recover;
use destage_journal::Journal;
use destage_testkit::SimDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// Columns of `item`: the tag, and the one that holds the end in milliseconds.
const TAG: usize = 2;
const ENDS: usize = 4;
/// When a world begins. Numbers of milliseconds that are much less are no times.
const START: i64 = 1_000_000_000_000;
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
    let ends = row[ENDS].as_ref().map(|ends| ends.parse().unwrap());
    ends.filter(|ends| *ends >= START / 10)
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
    /// Deletions that came.
    sent: u64,
    kept: u64,
    /// Its clock is so far behind the host's.
    behind_ms: i64,
    /// Rows whose deletion it carries out to no effect.
    swallowed: BTreeSet<i64>,
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
                        self.sent += 1;
                        if self.swallowed.contains(&key) {
                            return Ok(());
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
    /// Writes that were refused since the clocks did not agree.
    disagreed: u64,
    /// Writes that waited until they agreed.
    waited: u64,
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
        let now = Time::from_secs(START.unsigned_abs() / 1_000);
        let mut engine = engine(now, &schema, journal, 0);
        let client = engine.connect().unwrap();
        let rows = rows.iter().map(|&(key, tag, ends)| (key, row(key, tag, ends))).collect();
        let model = Model { rows, ..Model::default() };
        let (ios, rejected) = (Vec::new(), Vec::new());
        let (is_away, looked, disagreed, waited) = (false, 0, 0, 0);
        Self {
            disk,
            schema,
            engine,
            client,
            now,
            model,
            ios,
            is_away,
            rejected,
            looked,
            disagreed,
            waited,
        }
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
        engine.clock_is_ahead(self.model.behind_ms);
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
            Io::Ended { request, ask } => {
                self.looked += 1;
                let after = ask.after.map(|key| shop::key_of(&key));
                let times = [ask.cutoff_ms, ask.margin_ms];
                let page = self.model.look(after, times, ask.limit, self.ms());
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
        self.answer()
    }

    /// What a client has been told since.
    fn answer(&mut self) -> String {
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
    let mut world =
        World::new(&[(0, "a", None), (1, "b", Some(START + 500)), (2, "c", Some(START - 1))]);
    world.model.behind_ms = rng.pick(&[0, 0, -5_000, 3_000]);
    world.engine.clock_is_ahead(world.model.behind_ms);
    let mut seen = Seen::default();
    seen.0.insert(0, ("a".into(), None));
    seen.0.insert(1, ("b".into(), Some(START + 500)));
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
        let before = seen.clone();
        let mut expected = seen.command(&command, world.ms());
        let mut told = world.told(&command);
        if told.is_empty() && world.model.behind_ms > 0 {
            // It waits for the origin's clock, for a second at most.
            world.waited += 1;
            for _ in 0..11 {
                world.pass(100);
                told += &world.answer();
            }
            seen = before.clone();
            expected = seen.command(&command, world.ms());
        }
        if world.model.behind_ms > 0 && told.starts_with("-ERR this row of item has ended by") {
            (seen, world.disagreed) = (before, world.disagreed + 1);
        } else {
            assert_eq!(told, expected, "seed {seed}, step {step}: {command}");
        }
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
    let (mut deleted, mut looked, mut disagreed) = (0, 0, 0);
    for seed in super::number("DESTAGE_SEED").map_or(0..60, |seed| seed..seed + 1) {
        let world = course(seed);
        (deleted, looked) = (deleted + world.model.deleted, looked + world.looked);
        disagreed += world.disagreed;
    }
    assert!(
        deleted > 100 && looked > 100 && disagreed > 10 || super::number("DESTAGE_SEED").is_some(),
        "{deleted} {looked} {disagreed}"
    );
}
