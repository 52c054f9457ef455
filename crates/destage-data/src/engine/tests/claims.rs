//! Single claims, each the end of a defect that the simulation found or that reading did.

use super::command::encode;
use super::options::Options;
use super::shop;
use crate::engine::{DOMAIN, Engine, Io};
use crate::origins::{Applied, Mark, OriginError, Snapshot};
use crate::schema::{Schema, TableId};
use crate::settings::{OnAway, Settings};
use destage_core::{ClientId, Fault, Lsn, Span, StopReason, Time};
use destage_engine::Drive;
use destage_journal::Journal;
use destage_testkit::SimDisk;
use destage_testkit::origin::{Change, Op, Set};
use std::sync::Arc;

/// An engine whose journal and origin do what the script says.
pub(super) struct Script {
    pub(super) engine: Engine,
    pub(super) client: ClientId,
    pub(super) now: Time,
    pub(super) ios: Vec<Io>,
    disk: SimDisk,
    options: Options,
    settings: Settings,
}

impl Script {
    pub(super) fn new() -> Self {
        Self::serving(|_| {})
    }

    /// With more keys than the tables have.
    pub(super) fn serving(more: impl FnOnce(&mut Schema)) -> Self {
        Self::over(more, |engine| engine)
    }

    /// The engine is prepared before anything else.
    pub(super) fn over(
        more: impl FnOnce(&mut Schema),
        prepare: impl FnOnce(Engine) -> Engine,
    ) -> Self {
        Self::set(false, more, prepare)
    }

    /// The same where the keys of all tables are kept.
    pub(super) fn keeping_keys() -> Self {
        Self::set(true, |_| {}, |engine| engine)
    }

    fn set(
        absent: bool,
        more: impl FnOnce(&mut Schema),
        prepare: impl FnOnce(Engine) -> Engine,
    ) -> Self {
        let chosen = Options::choose(0);
        let options = Options { switches: false, ack_origin: false, absent, ..chosen };
        let mut settings = options.settings();
        settings.policy = destage_core::Policy::default();
        settings.pipeline_max = 100;
        settings.on_away = OnAway::Fail;
        let disk = SimDisk::new();
        let (journal, _) = Journal::open(Arc::new(disk.clone()), options.journal()).unwrap();
        let now = Time::from_secs(1_000);
        let mut schema = shop::schema();
        more(&mut schema);
        let schema = Arc::new(schema);
        let engine = Engine::new(now, schema, journal, &settings, "model".into(), Lsn::ZERO);
        let mut engine = prepare(engine);
        let client = engine.connect().unwrap();
        Self { engine, client, now, ios: Vec::new(), disk, options, settings }
    }

    /// Has the machine crash, and the process start over what the disk holds then. The origin has decided nothing.
    pub(super) fn crash(&mut self, seed: u64) {
        self.disk.crash(seed);
        let disk = Arc::new(self.disk.clone());
        let (journal, recovery) = Journal::open(disk, self.options.journal()).unwrap();
        let (now, schema) = (self.now, self.engine.schema.clone());
        self.engine = Engine::new(now, schema, journal, &self.settings, "model".into(), Lsn::ZERO);
        let mut records = recovery.records(1);
        let upto = Lsn(recovery.last_lsn);
        let taken: Result<(), std::convert::Infallible> =
            destage_engine::recover(&mut self.engine, now, upto, |engine| {
                let Some(record) = records.advance().unwrap() else { return Ok(false) };
                engine.recover(Lsn(record.lsn), Time(record.stamp_ns), record.payload);
                Ok(true)
            });
        taken.unwrap();
        self.client = self.engine.connect().unwrap();
        self.ios.clear();
    }

    /// Sends commands, one per line.
    pub(super) fn send(&mut self, commands: &str) {
        let lines = commands.lines().map(str::trim).filter(|line| !line.is_empty());
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let bytes: Vec<u8> = lines.flat_map(|line| encode(&words(line))).collect();
        self.engine.receive(self.now, self.client, &bytes);
        self.turn();
    }

    pub(super) fn turn(&mut self) {
        self.engine.tick(self.now);
        while self.engine.has_work() {
            self.engine.go_on(self.now);
        }
        self.ios.extend(self.engine.take_io());
    }

    /// Answers every fetch from the tables as they were before Destage, at this watermark.
    pub(super) fn fetch(&mut self, watermark: u64) {
        while self.engine.has_fetches() {
            let jobs = self.engine.take_fetches(100);
            let initial: std::collections::BTreeMap<_, _> = shop::initial().into_iter().collect();
            let rows = jobs.iter().map(|job| {
                let place = (usize::from(job.table.0), shop::key_of(&job.key));
                initial.get(&place).map(shop::row_cells)
            });
            let rows = rows.collect();
            let snapshot =
                Snapshot { rows, watermarks: vec![(DOMAIN, Lsn(watermark))], seen: Vec::new() };
            self.engine.fetched(self.now, jobs, snapshot);
            self.turn();
        }
    }

    pub(super) fn sync(&mut self) {
        self.ios.retain(|io| !matches!(io, Io::Sync { .. }));
        let mut flush = self.engine.journal().take();
        let upto = flush.run(true).unwrap();
        self.engine.journal().give_back(flush);
        self.engine.synced(self.now, Ok((Lsn(upto), Span::ZERO)));
        self.turn();
    }

    /// Lets the batch that is due be applied.
    pub(super) fn destage(&mut self) {
        self.destage_where(|_| true);
    }

    /// Lets a batch be applied that moves the watermarks so.
    pub(super) fn destage_where(&mut self, is_meant: impl Fn(&[Mark]) -> bool) {
        self.now = self.now + Span::from_millis(50);
        self.turn();
        let meant = |io: &Io| matches!(io, Io::Destage { marks, .. } if is_meant(marks));
        let at = self.ios.iter().position(meant);
        let Io::Destage { batch, .. } = self.ios.remove(at.expect("a batch is due")) else {
            return;
        };
        self.engine.destaged(self.now, batch, Ok(Applied::default()));
        self.turn();
    }

    /// What may be sent now, and whether the connection is to be closed after it.
    pub(super) fn received(&mut self) -> (String, bool) {
        let (ready, closing) = self.engine.outgoing(self.client).unwrap();
        (String::from_utf8(std::mem::take(ready)).unwrap(), closing)
    }

    pub(super) fn group(&self, lsn: u64) -> Vec<Change> {
        shop::changes(&self.engine.overlay.get(Lsn(lsn)).unwrap().bytes)
    }
}

#[test]
fn replies_that_wait_for_the_journal_are_sent_before_quit_closes() {
    let mut script = Script::new();
    script.send("HGET item:0 n");
    script.fetch(0);
    script.received();
    script.send("HSET item:0 n 1");
    script.send("HINCRBY item:0 n 1\nQUIT");
    assert_eq!(script.received(), (String::new(), false));
    script.sync();
    while !script.received().0.ends_with("+OK\r\n") {
        script.sync();
    }
    assert!(script.received().1, "closed once everything is sent");
}

#[test]
fn a_transaction_keeps_the_order_that_foreign_keys_need() {
    let mut script = Script::new();
    script.send(
        "MULTI\nHSET child:0 tag v1\nHSET parent:3 tag v2\nHSET child:0 parent 3\n\
         DEL child:1\nDEL parent:1\nEXEC",
    );
    script.fetch(0);
    let order: Vec<_> = script.group(1).iter().map(|change| (change.place, change.op)).collect();
    let (child, parent) = (shop::CHILD, shop::PARENT);
    assert_eq!(
        order,
        [
            ((child, 0), Op::Update),
            ((parent, 3), Op::Insert),
            ((child, 0), Op::Update),
            ((child, 1), Op::Delete),
            ((parent, 1), Op::Delete),
        ]
    );
}

#[test]
fn a_row_changed_and_then_deleted_is_deleted_after_what_refers_to_it() {
    let mut script = Script::new();
    script.send("MULTI\nHSET parent:1 tag v1\nDEL child:1\nDEL parent:1\nEXEC");
    script.fetch(0);
    let changes = script.group(1);
    let at = |place, op| changes.iter().position(|c| c.place == place && c.op == op).unwrap();
    let (child, parent) = ((shop::CHILD, 1), (shop::PARENT, 1));
    assert!(at(child, Op::Delete) < at(parent, Op::Delete), "{changes:?}");
}

#[test]
fn an_increment_of_a_row_made_in_the_same_transaction_is_a_value() {
    let mut script = Script::new();
    script.send("MULTI\nHSET parent:3 tag v1\nHINCRBY parent:3 total 5\nEXEC");
    script.fetch(0);
    let sets = script.group(1).remove(0).sets;
    assert!(sets.contains(&(2, Set::To(Some("5".into())))), "{sets:?}");
}

#[test]
fn increments_whose_sum_fits_no_column_stay_apart() {
    let mut script = Script::new();
    let most = i64::MAX;
    script.send(&format!(
        "HSET item:0 n -{most}\nMULTI\nHINCRBY item:0 n {most}\nHINCRBY item:0 n {most}\nEXEC"
    ));
    script.fetch(0);
    assert_eq!(script.group(2).len(), 2, "{:?}", script.group(2));
}

#[test]
fn a_transaction_that_asks_for_what_the_origin_computes_from_it_is_refused() {
    let mut script = Script::new();
    script.send("MULTI\nHSET derived:0 a 5\nHGET derived:0 twice\nEXEC");
    script.fetch(0);
    let (replies, _) = script.received();
    assert!(replies.contains("-EXECABORT"), "{replies}");
    assert_eq!(script.engine.last(), Lsn::ZERO);
}

#[test]
fn a_scan_shows_an_insert_that_is_destaged_while_its_page_is_on_its_way() {
    let mut script = Script::new();
    script.send("HSET item:7 tag v1");
    script.fetch(0);
    script.sync();
    assert_eq!(script.received().0, ":1\r\n");
    script.send("SCAN 0 MATCH item:*");
    let at = script.ios.iter().position(|io| matches!(io, Io::Scan { .. })).unwrap();
    let Io::Scan { request, .. } = script.ios.remove(at) else { unreachable!() };
    // The page is read, then the insert reaches the origin, then the page arrives.
    script.destage();
    script.engine.scanned(script.now, request, Ok((Vec::new(), vec![(DOMAIN, Lsn::ZERO)])));
    let (page, _) = script.received();
    assert!(page.contains("item:7"), "{page}");
}

#[test]
fn a_write_that_waits_for_the_origin_is_no_part_of_a_scan() {
    let mut script = Script::new();
    let mut policy = script.engine.policy().clone();
    policy.acknowledge = destage_core::Acknowledge::Origin;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.send("DEL item:0");
    script.fetch(0);
    let reader = script.engine.connect().unwrap();
    script.client = reader;
    script.send("SCAN 0 MATCH item:*");
    let at = script.ios.iter().position(|io| matches!(io, Io::Scan { .. })).unwrap();
    let Io::Scan { request, .. } = script.ios.remove(at) else { unreachable!() };
    let page = vec![shop::key_cells(0).into()];
    script.engine.scanned(script.now, request, Ok((page, vec![(DOMAIN, Lsn::ZERO)])));
    script.sync();
    assert!(script.received().0.contains("item:0"));
}

#[test]
fn rows_of_an_origin_that_went_back_are_not_told() {
    let mut script = Script::new();
    script.send("HSET item:7 tag v1");
    script.fetch(0);
    script.sync();
    script.destage();
    script.received();
    script.send("HGET item:6 tag");
    script.fetch(0);
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    assert!(script.ios.iter().any(|io| matches!(io, Io::Stop(StopReason::OriginChanged))));
}

impl Script {
    /// What the client is told, once the journal holds everything.
    pub(super) fn told(&mut self, commands: &str) -> String {
        self.send(commands);
        self.settle();
        self.received().0
    }

    /// Answers fetches and syncs until there are none.
    pub(super) fn settle(&mut self) {
        self.fetch(0);
        while self.ios.iter().any(|io| matches!(io, Io::Sync { .. })) {
            self.sync();
            self.fetch(0);
        }
    }

    /// As another client, which stays connected.
    pub(super) fn by_another(&mut self, commands: &str) {
        let client = self.engine.connect().unwrap();
        let before = std::mem::replace(&mut self.client, client);
        self.told(commands);
        self.client = before;
    }
}

const NOT_DONE: &str = "+OK\r\n+QUEUED\r\n*-1\r\n";
const DONE: &str = "+OK\r\n+QUEUED\r\n*1\r\n:0\r\n";
const TRANSACTION: &str = "MULTI\nHSET item:0 n 7\nEXEC";

#[test]
fn a_transaction_is_not_done_if_a_watched_row_has_changed_since_and_only_then() {
    let mut script = Script::new();
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n10\r\n");
    // Spellings of one key are one row; a row need not be there.
    assert_eq!(script.told("WATCH item:00 item:99"), "+OK\r\n");
    script.by_another("HINCRBY item:1 n 1");
    assert_eq!(script.told(TRANSACTION), DONE);
    for change in ["HINCRBY item:0 n 1", "HSET item:99 tag v1", "DESTAGE INVALIDATE item:99"] {
        script.told("WATCH item:00 item:99");
        script.by_another(change);
        assert_eq!(script.told(TRANSACTION), NOT_DONE, "{change}");
        assert_eq!(script.told(TRANSACTION), DONE, "nothing is watched any more");
    }
    assert_eq!(script.told("WATCH item:0\nHSET item:0 n 5"), "+OK\r\n:0\r\n");
    assert_eq!(script.told(TRANSACTION), NOT_DONE, "its own write counts, as with Redis");
}

#[test]
fn watching_ends_where_redis_ends_it() {
    let mut script = Script::new();
    script.told("HGET item:0 n");
    for end in ["UNWATCH", "MULTI\nDISCARD", "MULTI\nEXEC", "MULTI\nHSET item:0\nEXEC", "RESET"] {
        script.told(&format!("WATCH item:0\n{end}"));
        script.by_another("HINCRBY item:0 n 1");
        assert_eq!(script.told(TRANSACTION), DONE, "{end}");
    }
    let replies = script.told("WATCH item:0\nMULTI\nWATCH item:1\nUNWATCH\nHSET item:0 n 7\nEXEC");
    assert!(replies.contains("-ERR WATCH inside MULTI"), "{replies}");
    assert!(replies.ends_with("+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n:0\r\n"), "{replies}");
    // A refused key watches none of the others.
    let refused = script.told("WATCH item:0 nosuch:1");
    assert!(refused.starts_with("-ERR "), "{refused}");
    script.told("WATCH item:0");
    script.engine.disconnect(script.now, script.client);
    assert!(script.engine.watchers.is_empty(), "a connection that was lost leaves nothing");
}

#[test]
fn that_a_watched_row_changed_is_told_once_no_crash_undoes_it() {
    let mut script = Script::new();
    script.told("HGET item:0 n\nWATCH item:0");
    let watcher = script.client;
    script.client = script.engine.connect().unwrap();
    script.send("HINCRBY item:0 n 1");
    script.client = watcher;
    script.send(TRANSACTION);
    assert_eq!(script.received().0, "");
    script.settle();
    assert_eq!(script.received().0, NOT_DONE);
}

#[test]
fn an_evicted_row_is_still_watched() {
    let mut script = Script::new();
    let mut policy = script.engine.policy().clone();
    policy.limits.cache_bytes_max = 0;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.told("HGET item:0 n\nWATCH item:0");
    assert_eq!(script.engine.rows.len(), 0, "not evicted");
    assert_eq!(script.told(TRANSACTION), DONE);
    script.told("HGET item:0 n\nWATCH item:0");
    script.by_another("HINCRBY item:0 n 1");
    assert_eq!(script.told(TRANSACTION), NOT_DONE);
}

#[test]
fn the_ages_of_rows_that_have_left_take_no_memory() {
    let mut script = Script::new();
    script.engine.freshness.bound_age(TableId(shop::ITEM as u16), Span::from_secs(60));
    for n in 0..200 {
        script.told(&format!("HGET item:{n} n"));
    }
    assert_eq!(script.engine.freshness.aging(), 200);
    let mut policy = script.engine.policy().clone();
    policy.limits.cache_bytes_max = 0;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.settle();
    assert_eq!(script.engine.rows.len(), 0, "not evicted");
    assert!(script.engine.freshness.aging() < 100);
}

#[test]
fn a_transaction_that_the_journal_does_not_take_is_refused_whole() {
    let mut script = Script::new();
    let note = "n".repeat(script.engine.journal().payload_bytes_max() / 2);
    let commands = [0, 1, 2].map(|id| format!("HSET item:{id} note {note}")).join("\n");
    let replies = script.told(&format!("MULTI\nHINCRBY item:0 n 1\n{commands}\nEXEC"));
    let at = replies.find("-EXECABORT ").unwrap_or_else(|| panic!("{}", &replies[..200]));
    assert!(replies[at..].contains("the journal takes at once"), "{}", &replies[at..]);
    assert_eq!(script.engine.last(), Lsn::ZERO);
    assert_eq!(script.told("HGET item:0 n"), "$2\r\n10\r\n");
}

#[test]
fn what_a_read_is_told_is_its_own_failure() {
    let mut script = Script::new();
    script.told("HGET item:0 n");
    let failed = |script: &mut Script, fault, why: &str| {
        let jobs = script.engine.take_fetches(1);
        script.engine.fetch_failed(script.now, jobs, &OriginError::new(fault, why));
        script.turn();
        script.received().0
    };
    script.send("HGET item:1 n");
    let told = failed(&mut script, Fault::Denied, "column n does not exist");
    assert!(told.starts_with("-DENIED") && told.contains("column n does not exist"), "{told}");
    script.send("HGET item:1 n");
    let told = failed(&mut script, Fault::Unavailable, "it is starting up");
    assert!(told.starts_with("-UNAVAILABLE") && told.contains("it is starting up"), "{told}");
    script.send("HGET item:2 n");
    let told = failed(&mut script, Fault::Denied, "no right");
    assert!(told.contains("no right") && !told.contains("starting up"), "{told}");
}
