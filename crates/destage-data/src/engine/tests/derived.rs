//! Derived keys: the model's queries, what replies must hold, and single claims.

mod late;

use super::claims::Script;
use super::command::Value;
use super::history::Look;
use super::options::{Options, Rng};
use super::shop::{self, CHILD, ITEM, KEYS, PARENT};
use super::sim::{Event, Sim, watermarks};
use crate::cells::{Cell, Reader};
use crate::derived::{Answer, Queries, QuerySettings};
use crate::domains::Partition;
use crate::engine::{DOMAIN, Engine, Io};
use crate::origins::Mark;
use crate::schema::TableId;
use destage_core::{DomainId, Lsn, Span};
use destage_engine::Drive;
use destage_testkit::origin::{Fate, Place, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the queries of the model read, by their number.
const TABLES: [&[usize]; 3] = [&[CHILD], &[PARENT, ITEM], &[ITEM]];

fn settings(deadline: Span) -> Vec<QuerySettings> {
    let query = |key: &str, tables: &[usize]| QuerySettings {
        key: key.into(),
        sql: format!("SELECT {}", if key.contains('{') { "$of" } else { "1" }),
        depends_on: tables.iter().map(|&table| shop::NAMES[table].to_owned()).collect(),
        types: BTreeMap::new(),
        matches: BTreeMap::new(),
        max_age: None,
        keep: false,
        deadline,
    };
    let matched = |settings: QuerySettings, place: &str| QuerySettings {
        matches: BTreeMap::from([("of".to_owned(), place.to_owned())]),
        ..settings
    };
    vec![
        matched(query("children:{of}", TABLES[0]), "child.parent"),
        query("all", TABLES[1]),
        matched(query("tagged:{of}", TABLES[2]), "item.tag"),
    ]
}

pub(super) fn queries(deadline: Span) -> Arc<Queries> {
    Arc::new(Queries::new(&settings(deadline), &shop::schema()).unwrap())
}

/// A query's result: the rows that it selects, as text.
fn answer(query: usize, of: &str, row: impl Fn(Place) -> Option<Row>) -> String {
    let places = TABLES[query].iter().flat_map(|&table| (0..KEYS[table]).map(move |k| (table, k)));
    let selected = places
        .filter_map(|place| row(place).map(|row| (place, row)))
        .filter(|(_, row)| is_selected(query, of, row));
    format!("{:?}", selected.collect::<Vec<_>>())
}

fn is_selected(query: usize, of: &str, row: &Row) -> bool {
    let column = [1, 0, 2][query];
    query == 1 || row[column].as_deref() == Some(of)
}

/// A question to the model's origin.
pub(super) struct Asking {
    job: u64,
    query: usize,
    of: String,
    answer: Option<Answer>,
}

/// What a client asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    query: usize,
    of: String,
}

impl Asked {
    pub(super) fn choose(rng: &mut Rng, newest: u64) -> Self {
        let query = rng.below(3) as usize;
        let of = match query {
            0 => rng.below(3).to_string(),
            1 => String::new(),
            _ => format!("v{}", newest.saturating_sub(rng.below(30))),
        };
        Self { query, of }
    }

    pub(super) fn words(&self) -> Vec<String> {
        let key = ["children:", "all", "tagged:"][self.query];
        vec!["GET".to_owned(), format!("{key}{}", self.of)]
    }
}

impl Options {
    /// Has an engine serve derived keys, before anything else.
    pub(super) fn derive(&self, engine: &mut Engine) {
        if self.derives {
            engine.derive(queries(self.deadline()));
        }
    }
}

impl Sim {
    pub(super) fn ask(&mut self, job: u64, query: usize, values: &[u8]) {
        let value = Reader::new(values).next().and_then(Cell::value).unwrap_or_default();
        let of = String::from_utf8(value.to_vec()).unwrap();
        let number = self.job();
        self.asking.insert(number, Asking { job, query, of, answer: None });
        self.later(self.options.fetch_ns, Event::QueryRead(number));
    }

    pub(super) fn read_query(&mut self, number: u64) {
        let Some(asking) = self.asking.get_mut(&number) else { return };
        if !self.down {
            let rows = &self.origin.rows;
            let text = answer(asking.query, &asking.of, |place| rows.get(&place).cloned());
            let watermarks = watermarks(&self.origin);
            asking.answer = Some(Answer { json: text.into_bytes(), watermarks });
        }
        self.later(self.options.fetch_ns, Event::QueryEnd(number));
    }

    pub(super) fn end_query(&mut self, number: u64) {
        let Some(asking) = self.asking.remove(&number) else { return };
        let result = asking.answer.ok_or_else(Self::unavailable);
        self.engine.queried(self.now, asking.job, result);
    }

    /// The groups that the origin does not take: those that it rejected, and those that build on them and will be parked as
    /// well, once it is their turn.
    fn kept_out(&self) -> BTreeSet<u64> {
        let (mut groups, mut places) = (BTreeSet::new(), BTreeSet::new());
        let fate = |lsn: u64| self.origin.fates.get(&lsn).or_else(|| self.undone.get(&lsn));
        for lsn in 1..=self.history.last() {
            let entry = self.history.entry(lsn);
            let mut touched = entry.changes.iter().map(|change| change.place);
            let is_kept_out = match fate(lsn) {
                Some(Fate::Applied) => false,
                Some(Fate::Parked | Fate::Dropped) => true,
                None => entry.dropped || touched.any(|place| places.contains(&place)),
            };
            let is_parked = is_kept_out && !entry.through;
            groups.extend(is_kept_out.then_some(lsn));
            places.extend(entry.changes.iter().map(|c| c.place).filter(|_| is_parked));
        }
        groups
    }

    /// A result holds every write that was acknowledged before it was asked for, as far as the origin took them.
    pub(super) fn check_derived(&mut self, asked: &Asked, low: u64, value: &Value) {
        let told = match value {
            Value::Text(told) => told,
            Value::Error(error) => {
                let expected = ["TIMEOUT ", "UNAVAILABLE ", "BUSY "];
                return assert!(expected.iter().any(|kind| error.starts_with(kind)), "{error}");
            }
            other => panic!("GET of {asked:?}: {other:?}"),
        };
        self.counts.derived += 1;
        let places: Vec<Place> = TABLES[asked.query]
            .iter()
            .flat_map(|&table| (0..KEYS[table]).map(move |key| (table, key)))
            .collect();
        let kept_out = self.kept_out();
        let row = |place: Place, upto: u64| {
            self.history.fold(place, (upto, Look::NOW), |lsn, _| !kept_out.contains(&lsn))
        };
        let at = |upto: u64| answer(asked.query, &asked.of, |place| row(place, upto));
        let partition = self.engine.partition();
        // Each domain is shown as it was at a moment, and where there is one only, all is.
        let fits = if partition.is_one() {
            let moments = self.history.changes_after(&places, low);
            std::iter::once(low).chain(moments).any(|upto| at(upto) == *told)
        } else {
            partition.ids().all(|domain| {
                let is_in = |place: &Place| {
                    partition.of_row(TableId(place.0 as u16), &shop::key_cells(place.1)) == domain
                };
                let places: Vec<Place> = places.iter().copied().filter(is_in).collect();
                let moments = self.history.changes_after(&places, low);
                std::iter::once(low).chain(moments).any(|upto| {
                    places.iter().all(|&place| shows(told, asked, place, row(place, upto)))
                })
            })
        };
        assert!(
            fits,
            "an old result: {asked:?} since group {low} was told {told}, and it was {}",
            at(low)
        );
    }
}

/// Whether a result shows a row as it is, or lacks it if it is not selected.
fn shows(told: &str, asked: &Asked, place: Place, row: Option<Row>) -> bool {
    match row.filter(|row| is_selected(asked.query, &asked.of, row)) {
        Some(row) => told.contains(&format!("{:?}", (place, row))),
        None => !told.contains(&format!("({place:?}, ")),
    }
}

/// No queries.
const NONE: [u64; 0] = [];

fn script() -> Script {
    let mut script = Script::new();
    script.engine.derive(queries(Span::from_secs(10)));
    script
}

impl Script {
    /// The queries that are to run, taken out.
    fn asked(&mut self) -> Vec<u64> {
        let mut jobs = Vec::new();
        self.ios.retain(|io| match io {
            Io::Query { job, .. } => {
                jobs.push(*job);
                false
            }
            _ => true,
        });
        jobs
    }

    fn answer(&mut self, job: u64, text: &str, watermark: u64) {
        let watermarks = vec![(DOMAIN, Lsn(watermark))];
        let answer = Answer { json: text.as_bytes().to_vec(), watermarks };
        self.engine.queried(self.now, job, Ok(answer));
        self.turn();
    }

    /// Sends as another client, which stays connected; it is returned.
    fn another(&mut self, commands: &str) -> destage_core::ClientId {
        let client = self.engine.connect().unwrap();
        let before = std::mem::replace(&mut self.client, client);
        self.send(commands);
        std::mem::replace(&mut self.client, before)
    }

    fn received_by(&mut self, client: destage_core::ClientId) -> String {
        let before = std::mem::replace(&mut self.client, client);
        let (text, _) = self.received();
        self.client = before;
        text
    }
}

#[test]
fn requests_for_one_key_share_a_query_and_its_result() {
    let mut script = script();
    script.send("GET all");
    let others = [script.another("GET all"), script.another("GET all")];
    let jobs = script.asked();
    assert_eq!(jobs.len(), 1, "one query for all of them");
    script.answer(jobs[0], "[1]", 0);
    assert_eq!(script.received().0, "$3\r\n[1]\r\n");
    for other in others {
        assert_eq!(script.received_by(other), "$3\r\n[1]\r\n");
    }
    assert_eq!(
        script.told("GET all\nEXISTS all\nTYPE all\nTTL all"),
        "$3\r\n[1]\r\n:1\r\n+string\r\n:-1\r\n"
    );
    assert_eq!(script.asked(), NONE, "it is cached");
    assert_eq!(script.told("DEL all\nDEL all"), ":1\r\n:0\r\n");
    script.send("GET all");
    assert_eq!(script.asked().len(), 1, "it was dropped");
}

#[test]
fn a_query_waits_for_the_writes_that_it_must_show_and_for_no_others() {
    let mut script = script();
    script.told("HSET item:0 n 1\nHSET child:0 tag v1");
    script.send("GET children:1");
    let jobs = script.asked();
    assert_eq!(jobs.len(), 1, "the child has another parent, before and after");
    script.answer(jobs[0], "[]", 0);
    script.received();
    script.send("GET children:0");
    assert_eq!(script.asked(), NONE, "a buffered write is its concern");
    script.destage();
    let jobs = script.asked();
    assert_eq!(jobs.len(), 1);
    script.answer(jobs[0], "[0]", 2);
    assert_eq!(script.received().0, "$3\r\n[0]\r\n");
    // A write makes it old before its acknowledgement.
    script.send("HSET child:0 tag v2\nGET children:1\nGET children:0");
    let replies = script.received().0;
    assert!(!replies.contains("[0]"), "{replies}");
    assert_eq!(script.asked(), NONE);
}

#[test]
fn a_query_waits_for_its_own_ordering_domains_and_for_no_others() {
    let mut script = Script::over(
        |_| {},
        |engine| {
            let partition =
                Partition::new(engine.schema(), &shop::domains(false), &BTreeMap::new());
            let mut engine = engine.with_domains(Arc::new(partition.unwrap()), &Vec::new(), 4);
            engine.derive(queries(Span::from_secs(10)));
            engine
        },
    );
    script.told("HSET item:0 n 1\nHSET child:0 tag v1\nHSET item:1 n 1");
    script.send("GET children:0\nGET all");
    let family = |marks: &[Mark]| marks[0].domain == DomainId(1);
    assert_eq!(script.asked(), NONE, "a buffered write is its concern");
    script.destage_where(family);
    let jobs = script.asked();
    assert_eq!(jobs.len(), 1, "the items' domains are not its concern");
    let watermarks = vec![(DomainId(1), Lsn(2))];
    let answer = Answer { json: b"[0]".to_vec(), watermarks };
    script.engine.queried(script.now, jobs[0], Ok(answer));
    script.turn();
    assert_eq!(script.received().0, "$3\r\n[0]\r\n");
    assert_eq!(script.asked(), NONE, "the other one's concern they are");
    script.destage_where(|marks| !family(marks));
    assert_eq!(script.asked(), NONE, "both of them");
    script.destage_where(|marks| !family(marks));
    let jobs = script.asked();
    assert_eq!(jobs.len(), 1);
    // One of its domains has gone back.
    let watermarks = vec![(DomainId(1), Lsn(2)), (DomainId(2), Lsn(1)), (DomainId(3), Lsn(1))];
    let answer = Answer { json: b"[1]".to_vec(), watermarks };
    script.engine.queried(script.now, jobs[0], Ok(answer));
    script.turn();
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    assert!(script.ios.iter().any(|io| matches!(io, Io::Stop(_))));
}

#[test]
fn writes_without_end_do_not_keep_an_answer_away() {
    let mut script = script();
    script.send("GET all");
    for number in 0..5 {
        let jobs = script.asked();
        assert_eq!(jobs.len(), 1, "round {number}");
        let late = {
            script.by_another("HINCRBY item:0 n 1");
            script.another("GET all")
        };
        script.answer(jobs[0], "[]", number);
        assert_eq!(script.received().0, "$2\r\n[]\r\n", "who asked before the write is answered");
        assert_eq!(script.received_by(late), "", "who asked behind it is not");
        assert_eq!(script.asked(), NONE, "the write is not at the origin yet");
        script.destage();
        script.client = late;
    }
}

#[test]
fn a_result_that_grew_old_on_its_way_is_not_kept() {
    let mut script = script();
    script.send("GET all");
    let jobs = script.asked();
    script.by_another("HINCRBY item:0 n 1");
    script.answer(jobs[0], "[]", 0);
    script.received();
    script.destage();
    script.send("GET all");
    assert_eq!(script.asked().len(), 1);
}

#[test]
fn a_request_is_given_up_at_its_deadline_and_says_what_it_waited_for() {
    let mut script = script();
    script.told("HINCRBY item:0 n 1");
    script.engine.pause(script.now);
    script.send("GET all");
    assert!(script.engine.next_timeout().is_some());
    script.now = script.now + Span::from_secs(11);
    script.turn();
    let (reply, _) = script.received();
    assert!(reply.starts_with("-TIMEOUT a result of all must hold writes up to 1"), "{reply}");
    script.engine.resume(script.now);
    assert_eq!(script.told("PING"), "+PONG\r\n");
    script.destage();
    assert_eq!(script.asked(), NONE, "nobody wants it any more");
    script.send("GET all");
    let jobs = script.asked();
    script.now = script.now + Span::from_secs(11);
    script.turn();
    assert!(script.received().0.starts_with("-TIMEOUT the query of all"));
    script.answer(jobs[0], "[2]", 1);
    assert_eq!(script.told("GET all"), "$3\r\n[2]\r\n", "it came too late, but came");
}

#[test]
fn whoever_left_is_not_waited_for() {
    let mut script = script();
    script.told("HINCRBY item:0 n 1");
    let gone = script.another("GET all");
    script.engine.disconnect(script.now, gone);
    script.turn();
    script.destage();
    assert_eq!(script.asked(), NONE);
    let gone = script.another("GET all");
    let jobs = script.asked();
    script.engine.disconnect(script.now, gone);
    script.answer(jobs[0], "[]", 1);
    assert_eq!(script.told("PING"), "+PONG\r\n");
}

#[test]
fn an_origin_that_went_back_tells_no_results() {
    let mut script = script();
    script.told("HINCRBY item:0 n 1");
    script.send("GET all");
    script.destage();
    let jobs = script.asked();
    script.answer(jobs[0], "[]", 0);
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    assert!(script.ios.iter().any(|io| matches!(io, Io::Stop(_))));
}

#[test]
fn commands_that_do_not_fit_a_derived_key_say_which_do() {
    let mut script = script();
    for (command, part) in [
        ("HGETALL all", "-WRONGTYPE all is a derived key, read-only: GET"),
        ("HSET all a 1", "-WRONGTYPE all"),
        ("GET all:1", "-ERR the key 'all:1' fits no derived key: those that begin so are all"),
        ("GET children", "those that begin so are children:{of}"),
        ("GET children:x", "-ERR the key's part {of} takes a value of parent"),
        ("DEL all item:0", "-ERR 'item:0' is no derived key"),
        ("GET item:0", "-WRONGTYPE the key 'item:0' is a row"),
        ("DESTAGE INVALIDATE children", "-ERR the key 'children' fits no"),
        ("WATCH children", "-ERR the key 'children' fits no"),
        ("MULTI\nGET all", "-ERR all is a derived key: GET it before MULTI"),
        ("DISCARD\nDESTAGE BEGIN\nGET all", "-ERR all is a derived key: GET it before MULTI"),
    ] {
        let reply = script.told(command);
        assert!(reply.contains(part), "{command}: {reply}");
    }
}

#[test]
fn a_derived_key_in_a_session_under_leases_aborts_it_as_every_refused_command_does() {
    for before in ["", "\nMULTI"] {
        let mut script = script();
        script.told(&format!("DESTAGE BEGIN\nHSET child:0 tag v7{before}\nGET all"));
        let told = script.told("EXEC");
        assert!(told.starts_with("-EXECABORT"), "{before}: {told}");
        assert!(!script.told("HGET child:0 tag").contains("v7"), "{before}");
    }
}

#[test]
fn a_watched_derived_key_changes_with_its_tables() {
    const TRANSACTION: &str = "MULTI\nHSET child:0 tag v7\nEXEC";
    let mut script = script();
    script.told("HGET child:0 tag\nHGET item:0 n\nHGET parent:0 tag");
    let done = |reply: &str| !reply.contains("*-1");
    for (change, is_done) in [
        ("HINCRBY item:0 n 1", false),
        ("HINCRBY parent:0 total 1", false),
        ("HSET child:1 tag v1", true),
        ("DESTAGE INVALIDATE item:3", false),
        ("DESTAGE INVALIDATE item:*", false),
        ("DESTAGE INVALIDATE *", false),
    ] {
        assert_eq!(script.told("WATCH all"), "+OK\r\n");
        script.by_another(change);
        let reply = script.told(TRANSACTION);
        assert_eq!(done(&reply), is_done, "{change}: {reply}");
    }
}

#[test]
fn what_is_told_to_have_changed_at_the_origin_is_asked_for_again() {
    let mut script = script();
    for (told, again) in [
        ("DESTAGE INVALIDATE item:0", true),
        ("DESTAGE INVALIDATE item:*", true),
        ("DESTAGE INVALIDATE all", true),
        ("DESTAGE INVALIDATE all:*", true),
        ("DESTAGE INVALIDATE *", true),
        ("DESTAGE INVALIDATE child:*", false),
        ("DESTAGE INVALIDATE children:*", false),
    ] {
        script.send("GET all");
        if let [job] = script.asked()[..] {
            script.answer(job, "[]", 0);
        }
        assert_eq!(script.received().0, "$2\r\n[]\r\n");
        script.told("HGET item:0 n\nHGET child:0 tag");
        script.told(told);
        script.send("GET all");
        let jobs = script.asked();
        assert_eq!(!jobs.is_empty(), again, "{told}");
        jobs.into_iter().for_each(|job| script.answer(job, "[]", 0));
        script.received();
    }
    script.told("HGET item:0 n\nHGET item:1 n\nHGET child:0 tag");
    assert_eq!(script.told("DESTAGE INVALIDATE item:*"), ":2\r\n");
    assert_eq!(script.told("DESTAGE INVALIDATE item:*"), ":0\r\n");
}

#[test]
fn results_take_room_in_the_cache_and_leave_it() {
    let mut script = script();
    let mut policy = script.engine.policy().clone();
    policy.limits.cache_bytes_max = 20_000;
    script.engine.set_policy(script.now, &policy).unwrap();
    let large = "x".repeat(3_000);
    for key in 0..50 {
        script.send(&format!("GET tagged:v{key}"));
        for job in script.asked() {
            script.answer(job, &large, 0);
        }
        assert!(script.received().0.contains(&large));
        let bytes = script.engine.core.status().cache_bytes;
        assert!(bytes <= 20_000, "{bytes}");
    }
    assert!(script.engine.core.status().cache_bytes >= 3_000);
    assert!(script.engine.rows.len() < 10, "those that left are forgotten");
}
