//! Defaults that are given here to new rows.

use super::claims::Script;
use crate::defaults::Formula;
use crate::schema::{ColumnDefault, Schema};
use crate::settings::TableSettings;
use crate::value::ColumnType;
use destage_core::Span;

/// Columns of `item`: when it was made, and what it is called outside.
const MADE: usize = 2;
const NAME: usize = 3;

fn give(schema: &mut Schema) {
    let item = &mut schema.tables[super::shop::ITEM];
    item.columns[MADE].ty = ColumnType::Timestamp { zone: false, precision: 6 };
    item.columns[MADE].default = ColumnDefault::Formula(Formula::Time { digits: 6 });
    item.columns[NAME].default = ColumnDefault::Formula(Formula::Uuid);
    let settings = TableSettings { defaults_here: true, ..TableSettings::default() };
    schema.give_defaults(&[("item".to_owned(), settings)].into()).unwrap();
    // Nothing is kept of what a session's writes come to: each command performs them again.
    schema.serve_plain_keys(&[]).unwrap();
}

fn script() -> Script {
    Script::over(give, |mut engine| {
        engine.give_uuids([3; 32]);
        engine
    })
}

fn pass(script: &mut Script, ms: u64) {
    script.now = script.now + Span::from_millis(ms);
    script.turn();
    script.settle();
}

fn told(script: &mut Script, commands: &str) -> String {
    script.told(commands).replace("\r\n", " ").trim_end().to_owned()
}

#[test]
fn a_session_under_leases_keeps_what_it_was_told_of_its_new_rows() {
    let mut script = script();
    assert_eq!(told(&mut script, "DESTAGE BEGIN 60000\nHSET item:90 n 1"), "+OK :1");
    let name = told(&mut script, "HGET item:90 u");
    assert!(name.starts_with("$36 "), "{name}");
    for _ in 0..3 {
        pass(&mut script, 1_500);
        let row = told(&mut script, "HMGET item:90 u tag");
        assert_eq!(row, format!("*2 {name} $19 1970-01-01 00:16:40"));
    }
    assert_eq!(told(&mut script, "HSET item:91 n 1\nEXEC"), ":1 *2 :1 :1");
    let both = told(&mut script, "HMGET item:90 u tag\nHMGET item:91 u tag");
    assert!(both.starts_with(&format!("*2 {name} $19 1970-01-01 00:16:40 *2 $36 ")), "{both}");
    assert!(both.ends_with(" $19 1970-01-01 00:16:40") && both.matches(&name).count() == 1);
    // The next transaction has a time of its own.
    let later = told(&mut script, "HSET item:92 n 1\nHGET item:92 tag");
    assert_eq!(later, ":1 $21 1970-01-01 00:16:44.5");
}
