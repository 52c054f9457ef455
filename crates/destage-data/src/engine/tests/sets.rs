//! A sorted set over a table of the simulation: what the model makes of it, and what clients must be told of it.

use super::claims::Script;
use super::command::Value;
use super::history::Look;
use super::options::{Options, Rng};
use super::shop::{self, ITEM, KEYS};
use super::sim::{Sim, watermarks};
use crate::collection::{self, Edge};
use crate::engine::{Asker, Io, ParkedCommand};
use crate::mapping::{MappingSettings, ShapeSettings};
use crate::origins::{Applied, Keys, NextKeys, OriginError, Range, Reader, Snapshot, Watermarks};
use crate::schema::{ColumnDefault, Schema, Table, TableId};
use destage_core::{DomainId, Fault, Lsn, Span, Time};
use destage_engine::Drive;
use destage_testkit::origin::{Origin, Place, Row};

/// The set's key: all items, by their numbers.
pub(super) const KEY: &str = "items";
/// The column of the scores.
pub(super) const SCORE: usize = 1;
/// So many members are cached as a whole that all of them are.
pub(super) const ALL: usize = 100;
/// More than any score that is asked for by its number.
const SCORES_MAX: u64 = 400;

/// Has the items be members of a sorted set, of which so many are cached as a whole.
pub(super) fn map(schema: &mut Schema, members_max: usize) {
    let (member, score) = ("id".to_owned(), Some("n".to_owned()));
    let shape = ShapeSettings::Set { member, score, members_max };
    let mapping = MappingSettings { key: KEY.into(), table: shop::NAMES[ITEM].into(), shape };
    schema.map_keys(&[mapping]).unwrap();
}

/// The model as a connection for reads of sets.
struct Model<'o>(&'o Origin);

fn number(row: &Row, column: usize) -> i64 {
    row[column].as_ref().map_or(0, |text| text.parse().expect("a number"))
}

impl Model<'_> {
    fn rows(&self, table: &Table) -> Vec<&Row> {
        let is_of = |place: &Place| place.0 == usize::from(table.id.0);
        self.0.rows.iter().filter(|(place, _)| is_of(place)).map(|(_, row)| row).collect()
    }
}

impl Reader for Model<'_> {
    fn fetch(&mut self, _: &Table, _: &[&[u8]]) -> Result<Snapshot, OriginError> {
        unreachable!("rows are read otherwise")
    }

    fn scan(
        &mut self,
        _: &Table,
        _: Option<&[u8]>,
        _: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        unreachable!("pages of keys are read otherwise")
    }

    fn next_keys(&mut self, _: &Table, _: u32) -> Result<NextKeys, OriginError> {
        unreachable!("nobody asks for keys")
    }

    fn range(&mut self, table: &Table, range: &Range<'_>) -> Result<Snapshot, OriginError> {
        let place = |row: &Row| range.order.iter().map(|&c| number(row, c)).collect::<Vec<i64>>();
        let mut rows = self.rows(table);
        rows.sort_by_key(|row| place(row));
        let edge = |edge: &Edge| {
            let text = String::from_utf8(edge.value.clone()).expect("text");
            (text.parse::<i64>().expect("a number"), edge.is_included)
        };
        let (min, max) = (range.min.as_ref().map(edge), range.max.as_ref().map(edge));
        rows.retain(|row| {
            let at = place(row)[0];
            let above = min.is_none_or(|(min, included)| at > min || included && at == min);
            above && max.is_none_or(|(max, included)| at < max || included && at == max)
        });
        if range.reverse {
            rows.reverse();
        }
        rows.truncate(range.limit);
        let rows = rows.into_iter().map(|row| Some(shop::row_cells(row))).collect();
        Ok(Snapshot { rows, watermarks: watermarks(self.0), seen: Vec::new() })
    }

    fn count(
        &mut self,
        table: &Table,
        _: &[(usize, crate::cells::Cell<'_>)],
    ) -> Result<(u64, Vec<(DomainId, Lsn)>), OriginError> {
        Ok((self.rows(table).len() as u64, watermarks(self.0)))
    }
}

/// What the origin holds of the set or of a part of it.
pub(super) fn read(origin: &Origin, schema: &Schema, table: &Table, key: &[u8]) -> Snapshot {
    collection::read(&mut Model(origin), schema, table, key).unwrap()
}

/// What a client asked of the set.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    words: Vec<String>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Count,
    CountScores(i64, i64),
    Scores(i64, i64, usize),
    First(usize),
    Last(usize),
    All,
}

impl Asked {
    pub(super) fn choose(rng: &mut Rng) -> Self {
        let low = rng.below(SCORES_MAX) as i64;
        let high = low + rng.below(SCORES_MAX) as i64;
        let count = 1 + rng.below(3) as usize;
        Self::of(match rng.below(8) {
            0 | 1 => Kind::Count,
            2 => Kind::CountScores(low, high),
            3 => Kind::Scores(low, high, count),
            4 => Kind::First(count),
            5 => Kind::Last(count),
            _ => Kind::All,
        })
    }

    /// All members, in a way that does not need all of the set at once.
    pub(super) fn everything() -> Self {
        Self::of(Kind::Scores(i64::MIN, i64::MAX, KEYS[ITEM] as usize))
    }

    fn of(kind: Kind) -> Self {
        let text = match kind {
            Kind::Count => format!("ZCARD {KEY}"),
            Kind::CountScores(low, high) => format!("ZCOUNT {KEY} {low} {high}"),
            Kind::Scores(i64::MIN, i64::MAX, count) => {
                format!("ZRANGEBYSCORE {KEY} -inf +inf WITHSCORES LIMIT 0 {count}")
            }
            Kind::Scores(low, high, count) => {
                format!("ZRANGEBYSCORE {KEY} {low} {high} WITHSCORES LIMIT 0 {count}")
            }
            Kind::First(count) => format!("ZRANGE {KEY} 0 {} WITHSCORES", count - 1),
            Kind::Last(count) => format!("ZREVRANGE {KEY} 0 {} WITHSCORES", count - 1),
            Kind::All => format!("ZRANGE {KEY} 0 -1 WITHSCORES"),
        };
        Self { words: text.split(' ').map(str::to_owned).collect(), kind }
    }

    pub(super) fn words(&self) -> Vec<String> {
        self.words.clone()
    }

    /// The reply while the items are these.
    fn answer(&self, rows: impl Iterator<Item = (i64, Row)>) -> Vec<String> {
        let mut elements: Vec<(i64, i64)> =
            rows.map(|(key, row)| (number(&row, SCORE), key)).collect();
        elements.sort_unstable();
        let within = |low: i64, high: i64| {
            elements.iter().filter(move |(score, _)| (low..=high).contains(score))
        };
        let shown = |elements: Vec<&(i64, i64)>| {
            elements.into_iter().flat_map(|(score, key)| [*key, *score]).collect::<Vec<i64>>()
        };
        let numbers = match self.kind {
            Kind::Count => vec![elements.len() as i64],
            Kind::CountScores(low, high) => vec![within(low, high).count() as i64],
            Kind::Scores(low, high, count) => shown(within(low, high).take(count).collect()),
            Kind::First(count) => shown(elements.iter().take(count).collect()),
            Kind::Last(count) => shown(elements.iter().rev().take(count).collect()),
            Kind::All => shown(elements.iter().collect()),
        };
        numbers.into_iter().map(|number| number.to_string()).collect()
    }
}

/// A reply's numbers, whichever version of the protocol it is in.
fn flat(value: &Value) -> Vec<String> {
    match value {
        Value::List(values) => values.iter().flat_map(flat).collect(),
        Value::Int(number) => vec![number.to_string()],
        Value::Text(text) => vec![text.clone()],
        Value::Nil | Value::Error(_) => panic!("{value:?} in a reply about a set"),
    }
}

impl Options {
    /// With a sorted set, which parked writes are decided on.
    pub(super) fn with_sets(mut self) -> Self {
        let mut rng = Rng::new(self.seed, 14);
        self.sets = Some(rng.pick(&[3, 3, ALL]));
        // Who waits for the origin's word is not told of a set's state in the order of the groups.
        (self.acknowledge, self.switches, self.ack_origin) =
            (destage_core::Acknowledge::Journal, false, false);
        (self.derives, self.rewind, self.decides) = (false, None, true);
        self.poison_percent = self.poison_percent.max(rng.pick(&[3, 10]));
        self
    }
}

impl Sim {
    /// The origin rejects high scores from now on.
    pub(super) fn limit_scores(&mut self) {
        if self.options.sets.is_some() {
            let max = self.rng.below(SCORES_MAX) as i64;
            self.origin.limit(ITEM, SCORE, Some(max));
        }
    }

    /// Someone has mended that, and may decide now.
    pub(super) fn free_scores(&mut self) {
        if self.options.sets.is_some() {
            self.origin.limit(ITEM, SCORE, None);
        }
    }

    /// What a set shows is what it was at some moment since it was asked for.
    pub(super) fn check_members(&mut self, asked: &Asked, (low, sent): (u64, Time), value: &Value) {
        if let Value::Error(error) = value {
            let expected = ["STALE ", "FULL ", "BUSY ", "UNAVAILABLE ", "LARGE ", "PARKED "];
            return assert!(expected.iter().any(|kind| error.starts_with(kind)), "{error}");
        }
        self.counts.members += 1;
        let told = flat(value);
        let places: Vec<Place> = (0..KEYS[ITEM]).map(|key| (ITEM, key)).collect();
        let moments = std::iter::once(low).chain(self.history.changes_after(&places, low));
        let moments: Vec<u64> = moments.collect();
        let looks = self.looks_from(&places, sent);
        let at = |upto: u64, look: Look| {
            let rows = self.rows_as(&places, upto, look).into_iter();
            asked.answer(rows.filter_map(|((_, key), row)| Some((key, row?))))
        };
        let explains = |&upto: &u64| looks.iter().any(|&look| at(upto, look) == told);
        let Some(moment) = moments.iter().copied().find(explains) else {
            let story = |&place: &Place| format!("\n{place:?}{}", self.history.story(place));
            let stories: String = places.iter().map(story).collect();
            let (then, now) = (at(low, Look::NOW), at(self.history.last(), Look::NOW));
            panic!(
                "no moment since group {low} explains {told:?} as the reply to {asked:?}; then {then:?}, now {now:?}{stories}"
            );
        };
        let seen = self.history.revealed(&places, moment);
        self.revealed = self.revealed.max(seen);
    }
}

/// An engine before an origin that does what the script says.
struct World {
    script: Script,
    origin: Origin,
}

impl World {
    fn new(members_max: usize) -> Self {
        let mut origin = Origin::new(shop::model());
        origin.rows = shop::initial().into_iter().collect();
        Self { script: Script::serving(|schema| map(schema, members_max)), origin }
    }

    fn told(&mut self, command: &str) -> String {
        self.script.send(command);
        self.answer();
        self.script.settle();
        self.received()
    }

    fn received(&mut self) -> String {
        self.script.received().0.replace("\r\n", " ").trim_end().to_owned()
    }

    /// Answers every fetch from what the origin holds now.
    fn answer(&mut self) {
        let schema = self.script.engine.schema().clone();
        let mut count = 0;
        while self.script.engine.has_fetches() {
            count += 1;
            assert!(count < 100, "it asks again and again");
            let jobs = self.script.engine.take_fetches(1);
            let table = schema.table(jobs[0].table);
            let snapshot = match table.part {
                Some(_) => read(&self.origin, &schema, table, &jobs[0].key),
                None => {
                    let place = (usize::from(jobs[0].table.0), shop::key_of(&jobs[0].key));
                    let rows = vec![self.origin.rows.get(&place).map(shop::row_cells)];
                    Snapshot { rows, watermarks: watermarks(&self.origin), seen: Vec::new() }
                }
            };
            self.script.engine.fetched(self.script.now, jobs, snapshot);
            self.script.turn();
        }
    }

    /// The origin rejects the batch that is due, and keeps its only group.
    fn park(&mut self) {
        self.script.now = self.script.now + Span::from_millis(50);
        self.script.turn();
        let at = self.script.ios.iter().position(|io| matches!(io, Io::Destage { .. }));
        let Io::Destage { batch, .. } = self.script.ios.remove(at.expect("a batch is due")) else {
            unreachable!()
        };
        let error = OriginError::new(Fault::Rejected, "no");
        self.script.engine.destaged(self.script.now, batch, Err(error));
        self.script.turn();
        let at = self.script.ios.iter().position(|io| matches!(io, Io::Park { .. }));
        let Io::Park { lsn, .. } = self.script.ios.remove(at.expect("it is to be parked")) else {
            unreachable!()
        };
        self.origin.watermark = lsn.0;
        self.script.engine.parked(self.script.now, lsn, Ok(()));
        self.script.turn();
    }
}

#[test]
fn a_new_member_without_a_score_has_the_default_one() {
    let mut world = World::new(100);
    assert_eq!(world.told("ZCARD items"), ":4");
    assert_eq!(world.told("HSET item:7 tag v1"), ":1");
    assert_eq!(world.told("HINCRBY item:7 n 2"), ":2");
    assert_eq!(world.told("ZRANGEBYSCORE items 2 2"), "*1 $1 7");
}

#[test]
fn what_shares_a_set_with_a_parked_write_does_not_build_on_it() {
    let mut world = World::new(100);
    assert_eq!(world.told("ZINCRBY items 50 7"), "$2 50");
    world.park();
    assert_eq!(world.told("ZINCRBY items 60 6"), "$2 60");
    world.script.destage();
    assert!(!world.script.ios.iter().any(|io| matches!(io, Io::Park { .. })));
    assert_eq!(world.told("ZINCRBY items 1 7"), "$2 51");
    world.script.now = world.script.now + Span::from_millis(50);
    world.script.turn();
    assert!(world.script.ios.iter().any(|io| matches!(io, Io::Park { lsn: Lsn(3), .. })));
}

/// What ZCARD says of a large set while nobody knows whether a parked member was added after all, and once that is known.
fn counted_meanwhile(unsafe_installs: bool) -> (String, String) {
    let mut world = World::new(3);
    world.script.engine.decisions.set_unsafe_installs(unsafe_installs);
    assert_eq!(world.told("ZINCRBY items 50 7"), "$2 50");
    assert_eq!(world.told("ZCARD items"), ":5");
    world.park();
    assert_eq!(world.told("ZCARD items"), ":5");
    assert_eq!(world.told("ZINCRBY items 1 0"), "$2 11");
    let retry = ParkedCommand::Retry(Some(Lsn(1)));
    world.script.engine.ask_parked(retry, Asker::new(drop));
    world.script.turn();
    assert!(world.script.ios.iter().any(|io| matches!(io, Io::Unpark { .. })));
    // It is there already.
    let row = ["7", "50", "", "", ""].map(|text| (!text.is_empty()).then(|| text.to_owned()));
    world.origin.rows.insert((ITEM, 7), row.to_vec());
    let meanwhile = world.told("ZCARD items");
    world.script.engine.unparked(world.script.now, Ok(Applied::default()));
    world.script.turn();
    world.answer();
    let told = world.received();
    (meanwhile, if told.is_empty() { world.told("ZCARD items") } else { told })
}

#[test]
fn a_large_set_is_not_counted_while_a_decision_on_its_members_is_in_doubt() {
    assert_eq!(counted_meanwhile(false), (String::new(), ":5".to_owned()));
}

#[test]
fn a_large_set_that_is_counted_meanwhile_counts_a_member_twice() {
    assert_eq!(counted_meanwhile(true).0, ":6");
}

#[test]
fn a_score_that_a_fetch_shows_before_its_write_is_settled_is_not_added_to_again() {
    for is_dirty in [false, true] {
        let mut world = World::new(100);
        assert_eq!(world.told("HGET item:0 n"), "$2 10");
        let policy = world.script.engine.policy().clone();
        world.script.write_through();
        world.script.send("HINCRBY item:0 n 5");
        world.script.sync();
        // The origin has it, and has not said so.
        world.origin.rows.get_mut(&(ITEM, 0)).unwrap()[SCORE] = Some("15".to_owned());
        world.origin.watermark = 1;
        let reader = world.script.engine.connect().unwrap();
        let writer = std::mem::replace(&mut world.script.client, reader);
        let mut shown = world.told("ZRANGE items 0 -1 WITHSCORES");
        assert!(shown.contains("$1 0 $2 15"), "{shown}");
        if is_dirty {
            world.script.engine.set_policy(world.script.now, &policy).unwrap();
            assert_eq!(world.told("HINCRBY item:1 n 100"), ":100");
            shown = world.told("ZRANGE items 0 -1 WITHSCORES");
            assert!(shown.contains("$1 0 $2 15") && shown.contains("$1 1 $3 100"), "{shown}");
        }
        world.script.destage();
        assert_eq!(world.told("ZRANGE items 0 -1 WITHSCORES"), shown);
        world.script.client = writer;
        assert_eq!(world.received(), ":15");
        // What comes later is added still.
        world.script.write_through();
        world.script.send("HINCRBY item:0 n 20");
        world.script.sync();
        world.script.destage();
        if is_dirty {
            world.script.destage();
        }
        assert_eq!(world.received(), ":35");
        let shown = world.told("ZRANGE items 0 -1 WITHSCORES");
        assert!(shown.contains("$1 0 $2 35"), "{shown}");
    }
}

#[test]
fn who_waits_for_the_lease_on_a_set_goes_on_when_a_new_score_of_a_member_ends_it() {
    let mut world = World::new(100);
    world.told("ZRANGE items 0 -1");
    assert_eq!(world.told("DESTAGE BEGIN 1000\nDEL items"), "+OK :1");
    let leases = world.script.client;
    let waits = world.script.engine.connect().unwrap();
    world.script.client = waits;
    assert_eq!(world.told("DEL items"), "");
    world.script.client = world.script.engine.connect().unwrap();
    assert_eq!(world.told("HINCRBY item:0 n 1"), ":11", "the lease is on the set alone");
    world.script.client = waits;
    assert_eq!(world.received(), ":1");
    world.script.client = leases;
    assert_eq!(world.told("EXEC\nZCARD items"), "*-1 :0");
}

const DELETES: [&str; 2] = ["DEL items", "MULTI\nDEL items\nEXEC"];

#[test]
fn what_deletes_a_set_frees_a_member_that_left_while_it_waited() {
    for delete in DELETES {
        let mut world = World::new(100);
        world.told("ZRANGE items 0 -1");
        world.script.write_through();
        let deletes = world.script.client;
        world.script.send(delete);
        world.script.client = world.script.engine.connect().unwrap();
        assert_eq!(world.told("ZREM items 0"), "", "both wait: {delete}");
        world.script.destage();
        assert_eq!(world.received(), ":1");
        world.script.settle();
        world.script.destage();
        world.script.client = deletes;
        assert!(world.received().ends_with(":1"), "{delete}");
        world.origin.rows.retain(|&(table, _), _| table != ITEM);
        world.origin.watermark = 2;
        assert_eq!(world.told("ZSCORE items 0\nHGET item:0 n\nZCARD items"), "$-1 $-1 :0");
    }
}

#[test]
fn what_deletes_a_set_locks_a_member_that_joined_while_it_waited() {
    for delete in DELETES {
        let mut world = World::new(100);
        world.told("ZRANGE items 0 -1");
        world.script.write_through();
        let joins = world.script.client;
        assert_eq!(world.told("HSET item:7 tag v1"), "");
        let deletes = world.script.engine.connect().unwrap();
        world.script.client = deletes;
        world.script.send(delete);
        assert!(world.script.engine.has_fetches(), "it waits for the rows: {delete}");
        world.script.destage();
        world.origin.watermark = 1;
        world.answer();
        world.script.settle();
        world.script.client = world.script.engine.connect().unwrap();
        assert_eq!(world.told("HGET item:7 tag"), "", "it is locked: {delete}");
        world.script.destage();
        assert_eq!(world.received(), "$-1");
        world.script.client = joins;
        assert_eq!(world.received(), ":1");
        world.script.client = deletes;
        assert!(world.received().ends_with(":1"), "{delete}");
    }
}

#[test]
fn a_set_with_changes_of_its_own_shows_no_member_that_went_while_it_was_fetched() {
    let mut origin = Origin::new(shop::model());
    origin.rows = shop::initial().into_iter().collect();
    let script = Script::serving(|schema| {
        *schema = shop::schema_with_cascades();
        for column in &mut schema.tables[shop::CHILD].columns[1..] {
            column.default = ColumnDefault::Constant(b"0".as_slice().into());
        }
        let shape = ShapeSettings::Set { member: "id".to_owned(), score: None, members_max: 100 };
        let table = shop::NAMES[shop::CHILD].into();
        schema.map_keys(&[MappingSettings { key: "children".into(), table, shape }]).unwrap();
    });
    let mut world = World { script, origin };
    world.script.send("DEL parent:1");
    world.answer();
    world.script.sync();
    let reader = world.script.engine.connect().unwrap();
    let deletes = std::mem::replace(&mut world.script.client, reader);
    assert_eq!(world.told("HSET child:0 tag v9"), ":0");
    world.script.send("SMEMBERS children");
    let schema = world.script.engine.schema().clone();
    let jobs = world.script.engine.take_fetches(100);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let before = read(&world.origin, &schema, schema.table(jobs[0].table), &jobs[0].key);
    world.origin.rows.retain(|&(table, key), _| (table, key) != (shop::PARENT, 1));
    world.origin.rows.retain(|&(table, key), _| (table, key) != (shop::CHILD, 1));
    world.origin.watermark = 1;
    world.script.destage();
    world.script.engine.fetched(world.script.now, jobs, before);
    world.script.turn();
    world.answer();
    world.script.settle();
    let shown = world.received();
    assert!(shown.contains("$1 0") && !shown.contains("$1 1"), "{shown}");
    world.script.client = deletes;
    assert_eq!(world.received(), ":1");
}

#[test]
fn a_session_reads_a_large_set_however_little_the_cache_holds() {
    let mut told = Vec::new();
    for begin in ["PING", "DESTAGE BEGIN", "MULTI"] {
        let mut world = World::new(3);
        let mut policy = world.script.engine.policy().clone();
        policy.limits.cache_bytes_max = 0;
        world.script.engine.set_policy(world.script.now, &policy).unwrap();
        world.told(begin);
        let shown = world.told("ZRANGE items 0 1\nZCARD items");
        match begin {
            "MULTI" => {
                let shown = world.told("EXEC");
                told.push(shown.strip_prefix("*2 ").unwrap_or(&shown).to_owned());
            }
            _ => told.push(shown),
        }
    }
    assert!(told[0].starts_with("*2 $1 ") && told[0].ends_with(":4"), "{told:?}");
    assert!(told.iter().all(|shown| *shown == told[0]), "{told:?}");
}

#[test]
fn a_set_that_was_told_of_while_it_was_fetched_and_written_since_is_fetched_again() {
    let mut world = World::new(100);
    let writer = world.script.engine.connect().unwrap();
    world.script.send("ZCARD items");
    let schema = world.script.engine.schema().clone();
    let jobs = world.script.engine.take_fetches(100);
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    let before = read(&world.origin, &schema, schema.table(jobs[0].table), &jobs[0].key);
    // Another program makes a row, and tells of it.
    let row = ["6", "3", "", "", ""].map(|cell| (!cell.is_empty()).then(|| cell.to_owned()));
    world.origin.rows.insert((ITEM, 6), row.to_vec());
    let (now, key) = (world.script.now, shop::key_cells(6).into());
    world.script.engine.changed_at_origin(TableId(ITEM as u16), Some(&[key]));
    let reader = std::mem::replace(&mut world.script.client, writer);
    world.script.send("HSET item:7 tag v1");
    let (rows, watermarks) = (vec![None], watermarks(&world.origin));
    let row_jobs = world.script.engine.take_fetches(100);
    assert_eq!(row_jobs.len(), 1, "{row_jobs:?}");
    let snapshot = Snapshot { rows, watermarks, seen: Vec::new() };
    world.script.engine.fetched(now, row_jobs, snapshot);
    world.script.turn();
    assert_eq!(world.script.engine.last(), Lsn(1), "the member is made while the set is fetched");
    world.script.engine.fetched(now, jobs, before);
    world.script.turn();
    assert!(world.script.engine.has_fetches(), "what came is from before it was told of");
    world.answer();
    world.script.settle();
    world.script.client = reader;
    assert_eq!(world.received(), ":6");
    assert!(world.told("ZRANGE items 0 -1").contains("$1 6"));
}
