//! Rows that are known not to be there: whatever crashes and is rejected, none is denied that exists; others' rows are not
//! overwritten.

use super::claims::Script;
use super::command::encode;
use super::options::Options;
use super::shop::{self, ITEM};
use super::{caught, number, run_all, sweep, with_domains, with_everything, with_sets};
use crate::dml;
use crate::engine::Io;
use crate::engine::tests::sim::Sim;
use crate::origins::OriginError;
use crate::schema::TableId;
use destage_core::{Fault, Lsn, Span};
use destage_engine::Drive;

/// One run of each kind, with all keys kept: plain ones, with raw SQL, with domains, with sets, and with everything at once.
fn with_keys(seed: u64) -> Options {
    let options = match seed % 5 {
        0 => Options::choose(seed),
        1 => Options { raw: true, raw_tables: true, decides: false, ..Options::choose(seed) },
        2 => with_domains(seed),
        3 => with_sets(seed),
        _ => with_everything(seed),
    };
    // What leaves the cache is looked for again.
    let cache_bytes_max = [0, 300, options.cache_bytes_max][seed as usize % 3];
    Options { absent: true, cache_bytes_max, ..options }
}

#[test]
fn no_row_is_denied_that_is_there_whatever_happens() {
    let total = run_all("no_row_is_denied_that_is_there_whatever_happens", 200, with_keys);
    let met = total.absent > 1_000 && total.unparked > 10 && total.raw_parked > 0;
    assert!(met && total.crashes > 100 || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_denies_no_row() {
    sweep(&[0, 1, 2], 1..60, with_keys);
}

/// Negative control.
#[test]
fn keys_that_forget_what_is_made_here_are_noticed() {
    let caught = caught(|options| {
        (options.absent, options.cache_bytes_max) = (true, 0);
        options.unsafe_flags.forgetful_filter = true;
    });
    assert!(caught.is_some());
}

#[test]
fn a_seed_with_keys_gives_the_same_run_twice() {
    let run = |seed| {
        let mut sim = Sim::new(with_keys(seed));
        sim.run(destage_core::Time::from_secs(1_000) + super::LOAD);
        sim.finish();
        sim.hash
    };
    (0..10).for_each(|seed| assert_eq!(run(seed), run(seed), "seed {seed}"));
}

const ITEMS: TableId = TableId(ITEM as u16);

/// Answers pages of keys of the items with these, and of other tables with none, until all keys are read.
fn read_keys(script: &mut Script, items: &[i64]) {
    for _ in 0..100 {
        script.now = script.now + Span::from_secs(1);
        script.turn();
        let is_scan = |io: &Io| matches!(io, Io::Scan { .. });
        let Some(at) = script.ios.iter().position(is_scan) else { return };
        let Io::Scan { request, table, after, limit } = script.ios.remove(at) else { return };
        let after = after.map_or(i64::MIN, |after| shop::key_of(&after));
        let behind = items.iter().filter(|&&key| table == ITEMS && key > after);
        let keys = behind.take(limit).map(|&key| shop::key_cells(key).into()).collect();
        let decided = script.engine.decided();
        script.engine.scanned(
            script.now,
            request,
            Ok((keys, vec![(super::super::DOMAIN, decided)])),
        );
        script.turn();
    }
    panic!("there is no end to the pages");
}

impl Script {
    /// What commands are answered without the origin.
    pub(super) fn without_origin(&mut self, commands: &str) -> String {
        self.send(commands);
        assert!(!self.engine.has_fetches(), "the origin is asked for {commands}");
        self.sync();
        self.received().0.replace("\r\n", " ").trim_end().to_owned()
    }

    fn known_items(&self) -> (String, u64) {
        let report = self.engine.report_absent().unwrap();
        (report.tables[ITEM].state.clone(), report.answered_total)
    }
}

#[test]
fn rows_that_are_not_there_are_answered_and_made_without_the_origin() {
    let mut script = Script::keeping_keys();
    assert_eq!(script.known_items().0, "filling");
    script.send("EXISTS item:50");
    assert!(script.engine.has_fetches(), "nothing is known yet");
    script.fetch(0);
    script.sync();
    script.received();
    read_keys(&mut script, &[0, 1, 2, 3, 4]);
    assert_eq!(script.known_items(), ("ready".into(), 0));
    assert_eq!(script.without_origin("EXISTS item:51"), ":0");
    assert_eq!(script.without_origin("HGETALL item:52\nHGET item:53 n"), "*0 $-1");
    assert_eq!(script.without_origin("HSET item:54 n 1\nHSETNX item:55 n 2"), ":1 :1");
    assert_eq!(script.without_origin("DEL item:56"), ":0");
    assert_eq!(script.known_items().1, 6);
    script.send("EXISTS item:3");
    assert!(script.engine.has_fetches(), "it may be there");
}

#[test]
fn a_row_that_is_made_while_the_keys_are_read_is_not_denied_once_it_left_the_cache() {
    for reads_first in [false, true] {
        let mut script = Script::keeping_keys();
        if reads_first {
            read_keys(&mut script, &[0, 1]);
        }
        script.send("HSET item:60 n 1");
        script.fetch(0);
        script.sync();
        script.received();
        // The pages are older than the row.
        read_keys(&mut script, &[0, 1]);
        script.destage();
        assert!(!script.engine.absent.is_absent(ITEMS, &shop::key_cells(60)));
        assert!(script.engine.absent.is_absent(ITEMS, &shop::key_cells(61)));
        assert_eq!(script.without_origin("DEL item:60"), ":1");
        script.destage();
        let known = !script.engine.absent.is_absent(ITEMS, &shop::key_cells(60));
        assert!(known, "its deletion may be undone by what is parked");
    }
}

#[test]
fn a_row_of_another_program_is_not_overwritten_and_its_table_is_asked_for_from_then_on() {
    let mut script = Script::keeping_keys();
    read_keys(&mut script, &[0, 1]);
    assert_eq!(script.without_origin("HSET item:70 n 1"), ":1");
    let made = script.group(1);
    assert!(made.iter().all(|change| change.op == destage_testkit::origin::Op::Insert), "{made:?}");
    // The origin says that the row is there.
    script.now = script.now + Span::from_millis(50);
    script.turn();
    let at = script.ios.iter().position(|io| matches!(io, Io::Destage { .. })).expect("it is due");
    let Io::Destage { batch, .. } = script.ios.remove(at) else { return };
    let error = OriginError::new(Fault::Rejected, "duplicate key");
    script.engine.destaged(script.now, batch, Err(error));
    script.turn();
    let at = script.ios.iter().position(|io| matches!(io, Io::Park { .. })).expect("it is parked");
    let Io::Park { lsn, parked, .. } = script.ios.remove(at) else { return };
    assert!(lsn == Lsn(1) && parked.is_some());
    script.engine.parked(script.now, lsn, Ok(()));
    script.turn();
    read_keys(&mut script, &[0, 1, 70]);
    assert_eq!(script.known_items().0, "off");
    script.send("EXISTS item:71");
    assert!(script.engine.has_fetches());
}

#[test]
fn what_the_origin_tells_of_others_is_known_and_what_it_may_have_missed_is_read_anew() {
    let mut script = Script::keeping_keys();
    let now = script.now;
    script.engine.listening(now, Some(vec![ITEMS]));
    read_keys(&mut script, &[0, 1]);
    let key: Box<[u8]> = shop::key_cells(80).into();
    let mut changes = crate::origins::ForeignChanges::default();
    changes.note(ITEMS, Some(vec![key.clone()]));
    script.engine.note_foreign_changes(script.now, changes);
    assert!(!script.engine.absent.is_absent(ITEMS, &key));
    let other = shop::key_cells(81);
    assert!(script.engine.absent.is_absent(ITEMS, &other));
    script.engine.listening(script.now, None);
    assert!(!script.engine.absent.is_absent(ITEMS, &other), "nobody tells of it");
    script.engine.listening(script.now, Some(vec![ITEMS]));
    assert!(!script.engine.absent.is_absent(ITEMS, &other), "it was not told of");
    read_keys(&mut script, &[0, 1, 80, 81]);
    assert!(!script.engine.absent.is_absent(ITEMS, &other));
    assert!(script.engine.absent.is_absent(ITEMS, &shop::key_cells(82)));
    assert_eq!(script.known_items().0, "ready", "others write, and tell of it");
}

#[test]
fn an_invalidation_of_a_table_has_its_keys_read_anew_with_what_is_undecided() {
    let mut script = Script::keeping_keys();
    read_keys(&mut script, &[0, 1]);
    assert_eq!(script.without_origin("HSET item:60 n 1"), ":1");
    script.send("DESTAGE INVALIDATE item:*");
    script.sync();
    assert_eq!(script.known_items().0, "filling");
    read_keys(&mut script, &[0, 1]);
    assert_eq!(script.known_items().0, "ready");
    assert!(!script.engine.absent.is_absent(ITEMS, &shop::key_cells(0)));
    assert!(!script.engine.absent.is_absent(ITEMS, &shop::key_cells(60)));
    assert!(script.engine.absent.is_absent(ITEMS, &shop::key_cells(61)));
}

/// The library sends raw SQL.
fn execute(script: &mut Script, dml: &[u8]) {
    let library = script.engine.connect_trusted().unwrap();
    let execute = [
        format!("*3\r\n$7\r\nDESTAGE\r\n$7\r\nEXECUTE\r\n${}\r\n", dml.len()).as_bytes(),
        dml,
        b"\r\n",
    ]
    .concat();
    let requests = [encode(&["MULTI".into()]), execute, encode(&["EXEC".into()])].concat();
    script.engine.receive(script.now, library, &requests);
    script.turn();
    script.sync();
}

#[test]
fn raw_sql_on_a_table_has_its_keys_read_anew_once_the_origin_has_decided_it() {
    let mut script = Script::keeping_keys();
    read_keys(&mut script, &[0, 1]);
    execute(&mut script, &dml::encode("INSERT INTO item (id) VALUES (60)", &[], &[(ITEMS, None)]));
    let key = shop::key_cells(60);
    read_keys(&mut script, &[0, 1]);
    assert_eq!(script.known_items().0, "filling", "the origin may not have it yet");
    assert!(!script.engine.absent.is_absent(ITEMS, &key));
    script.destage();
    read_keys(&mut script, &[0, 1, 60]);
    assert!(!script.engine.absent.is_absent(ITEMS, &key));
    assert!(script.engine.absent.is_absent(ITEMS, &shop::key_cells(61)));
}

#[test]
fn keys_that_are_read_again_hold_the_rows_that_undecided_raw_sql_declares() {
    let mut script = Script::keeping_keys();
    read_keys(&mut script, &[0, 1, 2, 4]);
    let key = shop::key_cells(60);
    execute(
        &mut script,
        &dml::encode("INSERT INTO item (id) VALUES (60)", &[], &[(ITEMS, Some(&key))]),
    );
    assert!(!script.engine.absent.is_absent(ITEMS, &key));
    // So many are deleted that the keys are read again; the pages are older than what is undecided.
    script.told("DEL item:2\nDEL item:4");
    read_keys(&mut script, &[0, 1, 2, 4]);
    assert_eq!(script.known_items().0, "ready");
    script.destage();
    assert!(!script.engine.absent.is_absent(ITEMS, &key));
    assert!(script.engine.absent.is_absent(ITEMS, &shop::key_cells(61)));
}
