//! What defaults give, and which tables may be given it here.

use super::*;
use crate::schema::{Column, SetByTrigger};
use proptest::prelude::*;

/// 2026-01-31 13:37:00.987654321 UTC.
const SOME: Time = Time(1_769_866_620_987_654_321);
const TIME: Formula = Formula::Time { digits: 6 };

fn zoned(precision: u8) -> ColumnType {
    ColumnType::Timestamp { zone: true, precision }
}

fn plain(precision: u8) -> ColumnType {
    ColumnType::Timestamp { zone: false, precision }
}

fn mysql(precision: u8) -> ColumnType {
    ColumnType::Mysql(MysqlType::Timestamp { precision })
}

const TEXT: ColumnType = ColumnType::Text { chars_max: None };

fn given(formula: Formula, ty: &ColumnType) -> Option<String> {
    let uuid = || Some("0B4e1c2d-1111-4222-8333-444455556666".to_owned());
    formula.value(ty, SOME, uuid).map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn a_value_has_the_form_of_its_column_and_is_never_rounded_up() {
    for (formula, ty, expected) in [
        (TIME, zoned(6), "2026-01-31 13:37:00.987654+00"),
        (TIME, zoned(3), "2026-01-31 13:37:00.987+00"),
        (TIME, zoned(0), "2026-01-31 13:37:00+00"),
        (TIME, plain(1), "2026-01-31 13:37:00.9"),
        (TIME, mysql(6), "2026-01-31 13:37:00.987654+00"),
        (Formula::Time { digits: 0 }, plain(6), "2026-01-31 13:37:00"),
        (Formula::Time { digits: 2 }, plain(6), "2026-01-31 13:37:00.98"),
        (Formula::Time { digits: 0 }, TEXT, "2026-01-31 13:37:00"),
        (Formula::Time { digits: 0 }, ColumnType::SqliteNumeric, "2026-01-31 13:37:00"),
        (TIME, ColumnType::Date, "2026-01-31"),
        (Formula::Date, ColumnType::Date, "2026-01-31"),
        (Formula::Date, ColumnType::SqliteNumeric, "2026-01-31"),
        (Formula::Date, plain(6), "2026-01-31 00:00:00"),
        (Formula::Uuid, ColumnType::Uuid, "0b4e1c2d-1111-4222-8333-444455556666"),
        (Formula::Uuid, TEXT, "0B4e1c2d-1111-4222-8333-444455556666"),
    ] {
        assert_eq!(given(formula, &ty).as_deref(), Some(expected), "{formula:?} {ty:?}");
    }
    // The last second of a TIMESTAMP of MariaDB is in 2038.
    assert_eq!(TIME.value(&mysql(0), Time::from_secs(2_200_000_000), || None), None);
    assert_eq!(Formula::Uuid.value(&ColumnType::Uuid, SOME, || None), None);
}

#[test]
fn what_a_column_makes_of_a_value_has_to_be_known() {
    let short = ColumnType::Text { chars_max: Some(35) };
    let number = ColumnType::Int { min: 0, max: 9 };
    for (formula, ty, of_texts) in [
        // PostgreSQL and MariaDB write a time into a text in a form of their own.
        (TIME, TEXT, false),
        (TIME, ColumnType::SqliteNumeric, false),
        (TIME, ColumnType::Time { precision: 6 }, false),
        (TIME, number.clone(), true),
        (TIME, ColumnType::Opaque, true),
        (Formula::Uuid, short, false),
        (Formula::Uuid, number, true),
        (Formula::Uuid, ColumnType::Bytes, true),
        (Formula::Uuid, plain(6), true),
    ] {
        assert_eq!(formula.fitting(&ty, of_texts), None, "{formula:?} {ty:?}");
    }
    assert_eq!(TIME.fitting(&TEXT, true), Some(TIME));
    let trimmed = ColumnType::Mysql(MysqlType::Trimmed { chars_max: 36 });
    assert_eq!(Formula::Uuid.fitting(&trimmed, false), Some(Formula::Uuid));
}

proptest! {
    /// The text stands for a time that is not later than the one that was meant, and earlier by less than its last digit.
    #[test]
    fn a_time_is_cut_off_behind_its_last_digit(ns in 0_u64..18_000_000_000_000_000_000, digits in 0_u8..=6) {
        let time = Formula::Time { digits };
        let value = |ns| time.value(&zoned(6), Time(ns), || None).unwrap();
        let grain = 10_u64.pow(9 - u32::from(digits));
        let begin = ns - ns % grain;
        prop_assert_eq!(value(ns), value(begin));
        prop_assert_ne!(value(ns), value(begin + grain));
        // Nothing is left to round.
        let text = value(ns);
        let again = zoned(digits).canonical(&text).unwrap();
        prop_assert_eq!(&again[..], &text[..]);
    }
}

#[test]
fn digits_are_told_from_other_arguments() {
    let digits = |text| Formula::time(text, 6);
    assert_eq!(digits("()"), Some(TIME));
    assert_eq!(digits(" ( 3 )"), Some(Formula::Time { digits: 3 }));
    assert_eq!(Formula::time("", 0), Some(Formula::Time { digits: 0 }));
    for other in ["(7)", "(x)", "()::text", "(1, 2)", " + 1"] {
        assert_eq!(digits(other), None, "{other}");
    }
}

fn schema() -> Schema {
    let column = |name: &str, ty: ColumnType, default: ColumnDefault| Column {
        default,
        ..Column::named(name, ty)
    };
    let formula = ColumnDefault::Formula;
    let mut table = Table::named("t".into(), "t".into());
    table.columns = vec![
        column("id", ColumnType::Uuid, formula(Formula::Uuid)),
        column("at", zoned(6), formula(TIME)),
        column("n", TEXT, ColumnDefault::Computed),
        Column { generated: true, ..column("changed", zoned(6), formula(TIME)) },
        column("touched", zoned(6), formula(TIME)),
        column("made", zoned(6), formula(TIME)),
    ];
    table.key_len = 1;
    for (column, on_insert) in [(4, false), (5, true)] {
        let (on_update, merges, fills) = (true, true, false);
        let set = SetByTrigger { column, on_insert, on_update, merges, fills, by: None };
        table.class.sets.push(set);
    }
    Schema::new(vec![table], Vec::new())
}

fn here() -> TableSettings {
    TableSettings { defaults_here: true, ..TableSettings::default() }
}

fn refusal(mut schema: Schema, settings: TableSettings) -> String {
    schema.give_defaults(&[("t".to_owned(), settings)].into()).unwrap_err()
}

#[test]
fn keys_and_what_the_origin_sets_in_a_new_row_are_left_alone() {
    let mut schema = schema();
    schema.give_defaults(&[("t".to_owned(), TableSettings::default())].into()).unwrap();
    assert!(schema.tables[0].given_here.is_empty());
    schema.give_defaults(&[("t".to_owned(), here())].into()).unwrap();
    assert_eq!(schema.tables[0].given_here, [(1, TIME), (4, TIME)]);
}

#[test]
fn a_table_to_which_nothing_can_be_given_is_named() {
    let mut without = schema();
    without.tables[0].columns.truncate(4);
    without.tables[0].columns[1].default = ColumnDefault::Computed;
    let why = refusal(without, here());
    assert!(why.starts_with("[table.t] defaults = \"here\": no column") && why.contains("now()"));
    let mut documents = schema();
    documents.one_row_groups = true;
    assert!(refusal(documents, here()).contains("MongoDB's collections have no defaults"));
    assert!(refusal(schema(), TableSettings { blind: true, ..here() }).contains("blind"));
}

#[test]
fn numbers_are_given_to_whole_numbers_that_hold_them() {
    let byte = ColumnType::Int { min: -128, max: 127 };
    let number = |text: &str| Formula::Number.value(&byte, SOME, || Some(text.to_owned()));
    assert_eq!(Formula::Number.fitting(&byte, false), Some(Formula::Number));
    assert_eq!(number("127"), Some(b"127".to_vec()));
    assert_eq!(number("128"), None);
    for other in [TEXT, ColumnType::Uuid, ColumnType::Float8, zoned(6)] {
        assert_eq!(Formula::Number.fitting(&other, false), None, "{other:?}");
    }
}
