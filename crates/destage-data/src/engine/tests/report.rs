//! What is told when something is wrong: by the status, and by replies.

use super::claims::Script;
use super::shop;
use crate::cells::{Cell, push_cell};
use crate::engine::{DOMAIN, Io};
use crate::mapping::{MappingSettings, ShapeSettings};
use crate::origins::OriginError;
use destage_core::{Fault, Lsn};
use destage_engine::Drive;

#[test]
fn a_full_disk_of_the_journal_is_told_wherever_someone_looks() {
    let mut script = Script::new();
    script.told("HGET item:0 n");
    script.send("HSET item:0 n 1");
    assert_eq!(script.received().0, "", "the sync is under way");
    let report = script.engine.report();
    assert_eq!((&*report.mode, report.clients.waiting), ("normal", 0), "that is usual");

    script.engine.journal_full(true);
    let report = script.engine.report();
    assert_eq!((&*report.mode, report.clients.waiting), ("disk-full", 1));
    assert_eq!(report.journal.disk_full, Some(true));
    assert!(report.ready().unwrap_err().contains("disk is full"));
    let warned = report.warnings.iter().filter(|warning| warning.contains("disk is full")).count();
    assert_eq!(warned, 1, "{report:?}");
    let info = script.others_are_told("INFO");
    for part in ["mode:disk-full\r\n", "aof_last_write_status:err\r\n", "blocked_clients:1\r\n"] {
        assert!(info.contains(part), "{part} in {info}");
    }

    script.engine.journal_full(false);
    script.settle();
    assert_eq!(script.received().0, ":0\r\n");
    let report = script.engine.report();
    assert_eq!((&*report.mode, report.clients.waiting), ("normal", 0));
    assert!(report.ready().is_ok() && report.warnings.is_empty(), "{report:?}");
    assert!(script.told("INFO").contains("aof_last_write_status:ok\r\n"));
}

#[test]
fn a_write_that_waits_for_the_origin_is_a_request_that_waits() {
    let mut script = Script::new();
    script.told("HGET item:0 n");
    script.write_through();
    script.engine.pause(script.now);
    script.send("HSET item:0 n 1");
    script.settle();
    assert_eq!(script.received().0, "");
    assert_eq!(script.engine.report().clients.waiting, 1);
}

#[test]
fn keys_that_a_sequence_cannot_give_are_an_error_that_no_waiting_mends() {
    let mut script = Script::serving(|schema| schema.tables[shop::ITEM].generated_key = Some(0));
    let exhausted = "nextval: reached maximum value of sequence";
    for (fault, word) in
        [(Fault::Rejected, "ERR"), (Fault::Denied, "DENIED"), (Fault::Unavailable, "UNAVAILABLE")]
    {
        script.send("DESTAGE NEXTID item");
        let at = script.ios.iter().position(|io| matches!(io, Io::NextKeys { .. })).unwrap();
        let Io::NextKeys { request, .. } = script.ios.remove(at) else { unreachable!() };
        let error = OriginError::new(fault, exhausted);
        script.engine.keys_reserved(script.now, request, Err(error));
        let (told, _) = script.received();
        assert!(told.starts_with(&format!("-{word} ")) && told.contains(exhausted), "{told}");
    }
}

#[test]
fn a_scan_leaves_out_keys_that_no_command_takes() {
    let mut script = Script::new();
    script.send("SCAN 0 MATCH item:*");
    let at = script.ios.iter().position(|io| matches!(io, Io::Scan { .. })).unwrap();
    let Io::Scan { request, .. } = script.ios.remove(at) else { unreachable!() };
    let keys = ["1", "2", "18446744073709551615"].map(|key| {
        let mut cells = Vec::new();
        push_cell(&mut cells, Cell::Value(key.as_bytes()));
        cells.into_boxed_slice()
    });
    let page = (keys.to_vec(), vec![(DOMAIN, Lsn::ZERO)]);
    script.engine.scanned(script.now, request, Ok(page));
    script.settle();
    let (told, _) = script.received();
    assert!(told.contains("item:1\r\n") && told.ends_with("item:2\r\n"), "{told}");
    assert!(script.told("EXISTS item:18446744073709551615").starts_with("-ERR"), "it is refused");
}

#[test]
fn keys_mapped_twice_are_refused_where_the_second_mapping_could_never_match() {
    let mut schema = shop::schema();
    let hash = |key: &str| MappingSettings {
        key: key.into(),
        table: "item".into(),
        shape: ShapeSettings::Hash,
    };
    schema.map_keys(&[hash("thing:{id=1*}"), hash("thing:{id}")]).unwrap();
    let error = schema.map_keys(&[hash("thing:{id}"), hash("thing:{id=1*}")]).unwrap_err();
    assert!(error.contains("'thing:{id=1*}': 'thing:{id}', which is looked at"), "{error}");
}
