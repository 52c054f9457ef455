//! Numbers of the origin's sequences that are given here to new rows.

use super::claims::Script;
use super::shop::ITEM;
use crate::defaults::Formula;
use crate::engine::Io;
use crate::origins::{NextKeys, OriginError};
use crate::schema::{ColumnDefault, Schema};
use crate::settings::TableSettings;
use destage_core::{Fault, Span};
use destage_testkit::origin::Set;

/// The column of `item` that is numbered.
const NUMBER: usize = 1;

fn numbered(schema: &mut Schema) {
    schema.tables[ITEM].columns[NUMBER].default = ColumnDefault::Formula(Formula::Number);
    let settings = TableSettings { defaults_here: true, ..TableSettings::default() };
    schema.give_defaults(&[("item".to_owned(), settings)].into()).unwrap();
}

fn script() -> Script {
    let mut script = Script::serving(numbered);
    script.turn();
    script
}

/// The one question for numbers that is under way, and how many it asks for.
fn asked(script: &mut Script) -> (u64, u32) {
    let is_it = |io: &Io| matches!(io, Io::NextKeys { .. });
    assert_eq!(script.ios.iter().filter(|io| is_it(io)).count(), 1, "{:?}", script.ios);
    let at = script.ios.iter().position(is_it).expect("there is one");
    let Io::NextKeys { request, table, column, count } = script.ios.remove(at) else {
        unreachable!()
    };
    assert_eq!((usize::from(table.0), column), (ITEM, NUMBER));
    (request, count)
}

fn numbers(numbers: impl IntoIterator<Item = i64>) -> NextKeys {
    NextKeys { keys: numbers.into_iter().collect(), are_new: false }
}

fn answer(script: &mut Script, result: Result<Vec<i64>, OriginError>) {
    let (request, _) = asked(script);
    let result = result.map(numbers);
    script.engine.keys_reserved(script.now, request, result);
    script.turn();
    script.settle();
}

fn told(script: &mut Script, commands: &str) -> String {
    script.told(commands).replace("\r\n", " ").trim_end().to_owned()
}

fn away() -> OriginError {
    OriginError::new(Fault::Unavailable, "no answer".to_owned())
}

#[test]
fn a_new_row_is_given_the_next_number_in_its_write_and_nothing_is_asked_for_it() {
    let mut script = script();
    let (request, count) = asked(&mut script);
    assert_eq!(count, 1_000);
    script.engine.keys_reserved(script.now, request, Ok(numbers(7..1_007)));
    script.turn();
    let first = "HSET item:90 tag x\nHGET item:90 n";
    assert_eq!(told(&mut script, first), ":1 $1 7");
    assert!(script.group(1).remove(0).sets.contains(&(NUMBER, Set::To(Some("7".into())))));
    // What the client gives is the client's; a row that is there has its number.
    assert_eq!(told(&mut script, "HSET item:91 n 500\nHGET item:91 n"), ":1 $3 500");
    assert_eq!(told(&mut script, "HSET item:90 tag y\nHGET item:90 n"), ":0 $1 7");
    // One that is made anew is another one.
    assert_eq!(told(&mut script, "DEL item:90\nHSET item:90 tag x\nHGET item:90 n"), ":1 :1 $1 8");
    assert!(!script.ios.iter().any(|io| matches!(io, Io::NextKeys { .. })));
}

#[test]
fn a_write_waits_for_a_number_and_fails_where_none_comes() {
    let mut script = script();
    assert_eq!(told(&mut script, "HSET item:90 tag x"), "");
    script.by_another("HSET item:91 tag x");
    // One question for both; its answer is enough for one of them.
    answer(&mut script, Ok(vec![5]));
    assert_eq!(told(&mut script, "HGET item:90 n"), ":1 $1 5");
    answer(&mut script, Err(away()));
    assert_eq!(told(&mut script, "HEXISTS item:91 n"), ":0");
    // Nobody waits: it is asked for again after a while.
    assert!(!script.ios.iter().any(|io| matches!(io, Io::NextKeys { .. })));
    let due = script.engine.next_timeout().expect("it is asked for again");
    assert!(due <= script.now + Span::from_secs(1), "{due:?}");
    script.now = script.now + Span::from_secs(1);
    script.turn();
    answer(&mut script, Err(away()));
    // Whoever needs one has it asked for at once.
    assert_eq!(told(&mut script, "HSET item:92 tag x"), "");
    answer(&mut script, Err(away()));
    let refused = told(&mut script, "EXISTS item:92");
    assert!(refused.starts_with("-UNAVAILABLE ") && refused.ends_with(":0"), "{refused}");
    assert_eq!(told(&mut script, "MULTI\nHSET item:92 tag x\nEXEC"), "+OK +QUEUED");
    answer(&mut script, Err(away()));
    let refused = told(&mut script, "EXISTS item:92");
    assert!(refused.starts_with("-UNAVAILABLE ") && refused.ends_with(":0"), "{refused}");
}

#[test]
fn a_transaction_keeps_the_numbers_that_it_has_while_it_waits_for_more() {
    let mut script = script();
    let rows: String = (90..100).map(|id| format!("HSET item:{id} tag x\n")).collect();
    told(&mut script, &format!("MULTI\n{rows}EXEC"));
    answer(&mut script, Ok(vec![3, 4, 5, 6]));
    // Another client does not get them, and what it gets is not the transaction's.
    answer(&mut script, Ok(vec![7, 8, 9, 10]));
    answer(&mut script, Ok((11..20).collect()));
    assert_eq!(told(&mut script, ""), format!("*10{}", " :1".repeat(10)));
    let numbers = (90..100).map(|id| told(&mut script, &format!("HGET item:{id} n")));
    let numbers: Vec<String> = numbers.map(|told| told[3..].trim().to_owned()).collect();
    assert_eq!(numbers, (3..13).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_session_under_leases_keeps_the_number_that_it_was_told() {
    let mut script = script();
    assert_eq!(told(&mut script, "DESTAGE BEGIN 60000\nHSET item:90 tag x"), "+OK");
    answer(&mut script, Ok((3..1_003).collect()));
    assert_eq!(told(&mut script, "HGET item:90 n"), ":1 $1 3");
    script.by_another("HSET item:91 tag x");
    assert_eq!(told(&mut script, "HGET item:90 n\nHSET item:92 tag x\nEXEC"), "$1 3 :1 *2 :1 :1");
    let all = told(&mut script, "HGET item:90 n\nHGET item:91 n\nHGET item:92 n");
    assert_eq!(all, "$1 3 $1 4 $1 5");
}

#[test]
fn a_number_that_the_column_does_not_hold_is_an_error() {
    let mut script = Script::serving(|schema| {
        let int = crate::value::ColumnType::Int { min: -128, max: 127 };
        schema.tables[ITEM].columns[NUMBER].ty = int;
        numbered(schema);
    });
    script.turn();
    let (request, count) = asked(&mut script);
    assert_eq!(count, 10, "a small column has small blocks");
    script.engine.keys_reserved(script.now, request, Ok(numbers(120..130)));
    script.turn();
    for id in 90..98 {
        assert_eq!(told(&mut script, &format!("HSET item:{id} tag x")), ":1");
    }
    let refused = told(&mut script, "HSET item:98 tag x");
    assert!(refused.contains("has come to 128"), "{refused}");
    assert_eq!(told(&mut script, "EXISTS item:98"), ":0");
}

#[test]
fn the_number_is_the_same_after_a_crash_and_what_was_left_is_lost() {
    for seed in 0..8 {
        let mut script = script();
        answer(&mut script, Ok((40..50).collect()));
        assert_eq!(told(&mut script, "HSET item:90 tag x\nHGET item:90 n"), ":1 $2 40");
        script.crash(seed);
        script.turn();
        assert_eq!(told(&mut script, "HGET item:90 n"), "$2 40");
        // The sequence has moved on.
        answer(&mut script, Ok((50..60).collect()));
        assert_eq!(told(&mut script, "HSET item:91 tag x\nHGET item:91 n"), ":1 $2 50");
        assert_eq!(told(&mut script, "HGET item:90 n"), "$2 40");
    }
}
