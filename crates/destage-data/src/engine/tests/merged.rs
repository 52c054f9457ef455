//! New rows that are merged with what they meet at the origin.

use super::claims::Script;
use super::shop::{self, ITEM};
use crate::cells::{Cell, Reader};
use crate::engine::overlay;
use destage_core::Lsn;
use destage_testkit::origin::{Op, Set};

fn script(merges: bool) -> Script {
    Script::serving(|schema| {
        (schema.tables[ITEM].merges_new, schema.merges_new) = (merges, merges);
    })
}

/// Makes a row of which the origin knows nothing here.
fn make(script: &mut Script) {
    script.send("HSET item:50 tag x");
    script.fetch(0);
    script.sync();
    assert_eq!(script.received().0, ":1\r\n");
}

#[test]
fn only_what_was_written_is_sent_and_the_row_is_read_again_once_it_is_there() {
    for merges in [true, false] {
        let mut script = script(merges);
        make(&mut script);
        let made = script.group(1).remove(0);
        let tag = (2, Set::To(Some("x".into())));
        let defaults: &[_] = if merges { &[] } else { &[(1, Set::To(Some("0".into())))] };
        assert_eq!((made.op, made.sets), (Op::Insert, [&[tag], defaults].concat()));
        assert_eq!(script.without_origin("HGET item:50 n"), "$1 0", "as a new row has it");
        script.destage();
        script.send("HGET item:50 n");
        assert_eq!(script.engine.has_fetches(), merges);
    }
}

#[test]
fn a_row_that_is_fetched_under_its_undecided_insert_keeps_what_was_not_written() {
    for (merges, expected) in [(true, "50 3 x - theirs"), (false, "50 0 x - -")] {
        let mut script = script(merges);
        make(&mut script);
        let group = script.engine.overlay.get(Lsn(1)).unwrap().bytes.clone();
        let schema = script.engine.schema.clone();
        let change = overlay::changes(&schema, &group).next().unwrap();
        let cells = [Some("50"), Some("3"), Some("t"), None, Some("theirs")];
        let cells = cells.map(|cell| cell.map_or(Cell::Null, |text| Cell::Value(text.as_bytes())));
        let theirs = overlay::encode(&cells);
        let row = overlay::apply(schema.table(change.table), Some(&theirs), &change).unwrap();
        let shown = Reader::new(&row).map(|cell| match cell.value() {
            Some(value) => String::from_utf8(value.to_vec()).unwrap(),
            None => "-".into(),
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
        let deleted = overlay::apply(schema.table(change.table), None, &change);
        assert!(deleted.is_some() && shop::NAMES[ITEM] == schema.table(change.table).name);
    }
}
