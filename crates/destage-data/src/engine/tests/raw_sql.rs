//! Raw SQL: who waits for it, for how long, and who does not.

use super::claims::Script;
use super::command::encode;
use super::derived;
use super::shop::{self, ITEM, PARENT};
use crate::cells::{Cell, push_cell};
use crate::dml::{self, Declared};
use crate::domains::Partition;
use crate::engine::{DOMAIN, Io};
use crate::origins::Snapshot;
use crate::schema::{Schema, TableId};
use destage_core::{ClientId, DomainId, Lsn, Span};
use destage_engine::Drive;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A connection of the library's, and one of somebody else.
pub(super) struct World {
    pub(super) script: Script,
    library: ClientId,
    other: ClientId,
}

/// A row of items as the origin holds it.
fn item(number: i64, n: i64) -> Box<[u8]> {
    let mut cells = shop::key_cells(number);
    push_cell(&mut cells, Cell::Value(n.to_string().as_bytes()));
    (0..3).for_each(|_| push_cell(&mut cells, Cell::Null));
    cells.into_boxed_slice()
}

impl World {
    pub(super) fn new() -> Self {
        Self::of(Script::new())
    }

    /// With the ordering domains of the shop: items are in two of them, by their numbers.
    fn in_domains(more: impl FnOnce(&mut Schema)) -> Self {
        Self::of(Script::over(more, |engine| {
            let partition =
                Partition::new(engine.schema(), &shop::domains(false), &BTreeMap::new());
            engine.with_domains(Arc::new(partition.unwrap()), &Vec::new(), 4)
        }))
    }

    fn of(mut script: Script) -> Self {
        let library = script.engine.connect_trusted().unwrap();
        let other = script.client;
        Self { script, library, other }
    }

    pub(super) fn told(&mut self, commands: &str) -> String {
        self.script.client = self.other;
        self.script.told(commands).replace("\r\n", " ").trim_end().to_owned()
    }

    /// Raw SQL of the library that declares this.
    fn raw(&mut self, declared: &[Declared<'_>]) -> String {
        self.raw_behind(&[], declared)
    }

    /// The same in one transaction with a command before it, if there is any.
    pub(super) fn raw_behind(&mut self, command: &[&str], declared: &[Declared<'_>]) -> String {
        self.script.client = self.library;
        let dml = dml::encode("UPDATE item SET n = n + 1", &[], declared);
        let mut request = b"*3\r\n$7\r\nDESTAGE\r\n$7\r\nEXECUTE\r\n$".to_vec();
        request.extend(dml.len().to_string().as_bytes());
        request.extend(b"\r\n");
        request.extend(&dml);
        request.extend(b"\r\n");
        let words: Vec<String> = command.iter().map(|&word| word.into()).collect();
        let command = if words.is_empty() { Vec::new() } else { encode(&words) };
        let (begin, end) = (encode(&["MULTI".into()]), encode(&["EXEC".into()]));
        let requests = [begin, command, request, end].concat();
        let (now, library) = (self.script.now, self.library);
        self.script.engine.receive(now, library, &requests);
        self.script.turn();
        self.script.told("").replace("\r\n", " ").trim_end().to_owned()
    }

    fn row(&mut self, number: i64) {
        let key = shop::key_cells(number);
        assert_eq!(self.raw(&[(TableId(ITEM as u16), Some(&key))]), DONE);
    }

    fn table(&mut self) {
        assert_eq!(self.raw(&[(TableId(ITEM as u16), None)]), DONE);
    }

    /// What the origin holds of a row once it has decided everything.
    fn fetch_now(&mut self, watermark: u64, n: i64) {
        self.fetch_at(&[(DOMAIN, Lsn(watermark))], n);
    }

    fn fetch_at(&mut self, watermarks: &[(DomainId, Lsn)], n: i64) {
        let jobs = self.script.engine.take_fetches(100);
        assert!(!jobs.is_empty(), "nothing is fetched");
        let rows = jobs.iter().map(|job| Some(item(shop::key_of(&job.key), n))).collect();
        let snapshot = Snapshot { rows, watermarks: watermarks.to_vec(), seen: Vec::new() };
        self.script.engine.fetched(self.script.now, jobs, snapshot);
        self.script.turn();
    }
}

const DONE: &str = "+OK +QUEUED *1 +OK";

#[test]
fn reads_of_what_raw_sql_declares_wait_until_it_is_decided_and_are_hurried() {
    for is_table in [false, true] {
        let mut world = World::new();
        assert_eq!(
            world.told("HGET item:0 n\nHGET item:1 n\nHGET parent:0 total"),
            "$2 10 $1 0 $1 0"
        );
        // Dirty when it comes.
        assert_eq!(world.told("HINCRBY item:0 n 5"), ":15");
        if is_table {
            world.table()
        } else {
            world.row(0)
        }
        assert_eq!(world.told("HGET parent:0 total"), "$1 0", "another table");
        assert_eq!(world.told("HGET item:0 n"), "", "it waits");
        assert!(!world.script.engine.has_fetches(), "and the origin is not asked yet");
        world.script.destage();
        world.fetch_now(2, 16);
        assert_eq!(world.told(""), "$2 16");
        if is_table {
            world.script.client = world.other;
            world.script.send("HGET item:1 n");
            world.fetch_now(2, 1);
            assert_eq!(world.told(""), "$1 1", "fetched again");
        } else {
            assert_eq!(world.told("HGET item:1 n"), "$1 0", "cached all the while");
        }
    }
}

#[test]
fn a_fetch_that_looked_before_raw_sql_was_applied_is_repeated() {
    let mut world = World::new();
    world.script.client = world.other;
    world.script.send("HGET item:0 n");
    assert!(world.script.engine.has_fetches());
    let jobs = world.script.engine.take_fetches(9);
    world.row(0);
    let old = vec![Some(item(0, 10))];
    let watermarks = vec![(DOMAIN, Lsn(0))];
    let snapshot = Snapshot { rows: old, watermarks, seen: Vec::new() };
    world.script.engine.fetched(world.script.now, jobs, snapshot);
    world.script.turn();
    assert_eq!(world.told(""), "", "what it brought is not told");
    assert!(!world.script.engine.has_fetches());
    world.script.destage();
    world.fetch_now(1, 11);
    assert_eq!(world.told(""), "$2 11");
}

#[test]
fn a_read_gives_up_at_its_deadline_and_says_what_it_waited_for() {
    let mut world = World::new();
    world.script.engine.pause(world.script.now);
    world.row(0);
    assert_eq!(world.told("HGET item:0 n\nPING"), "");
    let due = world.script.engine.next_timeout().unwrap();
    assert!(due <= world.script.now + Span::from_secs(10));
    world.script.now = world.script.now + Span::from_millis(9_999);
    world.script.turn();
    assert_eq!(world.told(""), "");
    world.script.now = world.script.now + Span::from_millis(1);
    world.script.turn();
    let told = world.told("");
    assert!(told.starts_with("-UNAVAILABLE") && told.contains("raw SQL (write 1)"), "{told}");
    assert!(told.ends_with("+PONG"), "{told}");
    world.script.engine.resume(world.script.now);
    world.script.destage();
    world.script.client = world.other;
    world.script.send("HGET item:0 n");
    world.fetch_now(1, 11);
    assert_eq!(world.told(""), "$2 11");
}

#[test]
fn a_scan_of_a_table_waits_for_raw_sql_on_any_of_its_rows() {
    let mut world = World::new();
    world.row(3);
    let pages =
        |world: &World| world.script.ios.iter().filter(|io| matches!(io, Io::Scan { .. })).count();
    assert_eq!(world.told("SCAN 0 MATCH parent:*"), "");
    assert_eq!(pages(&world), 1, "another table is asked at once");
    let another = world.script.engine.connect().unwrap();
    world.other = another;
    assert_eq!(world.told("SCAN 0 MATCH item:*"), "");
    assert_eq!(pages(&world), 1);
    world.script.destage();
    assert_eq!(pages(&world), 2);
}

#[test]
fn what_is_derived_from_a_declared_table_is_asked_for_again_behind_it() {
    let mut world = World::new();
    world.script.engine.derive(derived::queries(Span::from_secs(100)));
    let queries =
        |world: &World| world.script.ios.iter().filter(|io| matches!(io, Io::Query { .. })).count();
    world.row(0);
    assert_eq!(world.told("GET children:0"), "");
    assert_eq!(queries(&world), 1, "it depends on another table");
    world.other = world.script.engine.connect().unwrap();
    assert_eq!(world.told("GET all"), "");
    assert_eq!(queries(&world), 1, "the origin has to decide raw SQL first");
    world.script.destage();
    assert_eq!(queries(&world), 2);
}

#[test]
fn only_the_library_sends_raw_sql_and_only_in_a_transaction() {
    let mut world = World::new();
    let refused = world.told("DESTAGE EXECUTE x\nMULTI\nDESTAGE EXECUTE x\nEXEC");
    assert_eq!(
        refused.matches("-ERR").count() + refused.matches("-EXECABORT").count(),
        3,
        "{refused}"
    );
    assert!(world.told("DESTAGE DECIDED 1 1").starts_with("-ERR"));
    let missing = world.raw(&[(TableId(99), None)]);
    assert!(missing.contains("a table that is not there"), "{missing}");
    assert_eq!(world.script.engine.last(), Lsn::ZERO);
}

#[test]
fn nothing_is_left_of_a_transaction_that_does_not_happen() {
    for end in ["DISCARD", "disconnect", "expiry"] {
        let mut world = World::new();
        let begin = "DESTAGE BEGIN 100\nHGET item:0 n\nDESTAGE EXCLUDE item:1\nDESTAGE SHARE list\nDESTAGE ABSENT item:99";
        assert_eq!(world.told(begin), "+OK $2 10 +OK +OK +OK", "{end}");
        assert_eq!(world.told("HINCRBY item:2 n 1\nMULTI\nHSET item:99 n 1"), ":6 +OK +QUEUED");
        match end {
            "DISCARD" => assert_eq!(world.told("DISCARD"), "+OK"),
            "disconnect" => world.script.engine.disconnect(world.script.now, world.other),
            _ => {
                world.script.now = world.script.now + Span::from_millis(100);
                world.script.turn();
                assert_eq!(world.told("EXEC"), "*-1");
            }
        }
        let engine = &world.script.engine;
        assert!(engine.watchers.is_all_gone(), "{end}");
        assert_eq!(engine.last(), Lsn::ZERO, "{end}");
        world.other = world.library;
        assert_eq!(world.told("HINCRBY item:1 n 1\nHGET item:2 n\nEXISTS item:99"), ":1 $1 5 :0");
    }
}

#[test]
fn a_table_that_cascades_reach_is_covered_with_it() {
    let mut world = World::new();
    let covers = |world: &World, table: usize| {
        let mut group = crate::change::GroupWriter::new();
        group.dml(&dml::encode("DELETE FROM x", &[], &[(TableId(table as u16), None)]));
        world.script.engine.covered(group.finish()).tables
    };
    assert_eq!(covers(&world, PARENT), [TableId(PARENT as u16)]);
    let mut schema = shop::schema();
    schema.tables[PARENT].class.cascades_to = vec![TableId(shop::CHILD as u16)];
    world.script.engine.schema = Arc::new(schema);
    assert_eq!(covers(&world, PARENT), [TableId(PARENT as u16), TableId(shop::CHILD as u16)]);
}

const EVEN: DomainId = DomainId(2);
const ODD: DomainId = DomainId(3);

#[test]
fn raw_sql_belongs_to_the_ordering_domains_of_all_that_it_declares() {
    let mut world = World::in_domains(|_| {});
    assert_eq!(world.told("HGET item:1 n"), "$1 0");
    world.row(0);
    assert_eq!(world.script.engine.core.domain_of(Lsn(1)), Some(EVEN));
    assert_eq!(world.told("HINCRBY item:1 n 1"), ":1", "in the other domain");
    let reader = world.script.engine.connect().unwrap();
    let writer = std::mem::replace(&mut world.other, reader);
    assert_eq!(world.told("HGET item:0 n"), "");
    world.script.destage_where(|marks| marks[0].domain == ODD);
    assert!(!world.script.engine.has_fetches(), "that is no word on the row's domain");
    world.script.destage_where(|marks| marks[0].domain == EVEN);
    let both = |even, odd| [(EVEN, Lsn(even)), (ODD, Lsn(odd))];
    world.fetch_at(&both(1, 2), 11);
    assert_eq!(world.told(""), "$2 11");
    // All rows of the table, in both.
    world.table();
    assert_eq!(world.script.engine.core.domains_spanned(Lsn(3)), Some(&[EVEN, ODD][..]));
    assert_eq!(world.told("HGET item:0 n"), "");
    world.other = writer;
    assert_eq!(world.told("HGET item:1 n"), "");
    world.script.destage_where(|marks| marks.len() == 2);
    world.fetch_at(&both(3, 3), 20);
    assert_eq!(world.told(""), "$2 20");
}

#[test]
fn raw_sql_is_refused_where_its_effects_may_reach_into_other_ordering_domains() {
    let cascade = |schema: &mut Schema| {
        schema.tables[ITEM].class.cascades_to = vec![TableId(PARENT as u16)];
    };
    let mut world = World::in_domains(cascade);
    let refused = world.raw(&[(TableId(PARENT as u16), None)]);
    assert!(refused.contains("other ordering domains"), "{refused}");
    assert_eq!(world.script.engine.last(), Lsn::ZERO);
}
