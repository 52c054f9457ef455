//! Times as columns hold them, and which columns may.

use super::*;
use crate::schema::Column;

fn table(ty: ColumnType) -> Table {
    let column = |name: &str, ty: ColumnType| Column::named(name, ty);
    let mut table = Table::named("t".into(), "t".into());
    table.columns = vec![column("id", ColumnType::Bytes), column("ends", ty)];
    table.key_len = 1;
    table
}

fn schema(table: Table) -> Schema {
    Schema::new(vec![table], Vec::new())
}

fn settings(text: &str) -> BTreeMap<String, TableSettings> {
    let ttl = Some(TtlSettings::parse(text).unwrap());
    [("t".to_owned(), TableSettings { ttl, ..TableSettings::default() })].into()
}

/// A table `t` whose rows end at the time in its second column, `ends`.
pub(crate) fn ended_table(ty: ColumnType, text: &str) -> Table {
    let mut schema = schema(table(ty));
    schema.let_rows_end(&settings(text)).unwrap();
    schema.tables.remove(0)
}

fn ttl(ty: ColumnType, text: &str) -> Ttl {
    ended_table(ty, text).ttl.unwrap()
}

const INT: ColumnType = ColumnType::Int { min: i64::MIN, max: i64::MAX };
const ZONED: ColumnType = ColumnType::Timestamp { zone: true, precision: 6 };
/// 2026-01-31 13:37:00 UTC.
const SOME: i64 = 1_769_866_620_000;

#[test]
fn days_are_counted_both_ways() {
    for day in (-719_162..2_932_896).step_by(13) {
        let (year, month, date) = civil(day);
        assert_eq!(days(year, month, date), day, "{year}-{month}-{date}");
    }
    assert_eq!((civil(0), days(2000, 3, 1)), ((1970, 1, 1), 11_017));
}

#[test]
fn times_are_read_and_rounded_up() {
    for (value, expected) in [
        ("2026-01-31 13:37:00+00", Some(SOME)),
        ("2026-01-31 13:37:00", Some(SOME)),
        ("2026-01-31 13:37:00.000001+00", Some(SOME + 1)),
        ("2026-01-31 13:37:00.25+00", Some(SOME + 250)),
        ("2026-01-31 13:37:00+01", Some(SOME - 3_600_000)),
        ("1969-12-31 23:59:59.5+00", Some(-500)),
        ("10000-01-01 00:00:00+00", Some(253_402_300_800_000)),
        ("0044-03-15 00:00:00+00 BC", Some(ALWAYS)),
        ("-infinity", Some(ALWAYS)),
        ("infinity", None),
        ("0000-00-00 00:00:00", None),
        ("2026-00-10 00:00:00", None),
    ] {
        let ttl = ttl(ZONED, "column ends");
        assert_eq!(ttl.end_of(value.as_bytes()), expected, "{value}");
    }
    for (value, expected) in [
        ("2026-01-31 13:37:00", Some(SOME)),
        ("2026-01-31T13:37", Some(SOME)),
        ("2026-01-31T13:37:00.0001Z", Some(SOME + 1)),
        ("2026-01-31 14:37:00+01:00", Some(SOME)),
        ("2026-01-31 14:37:00 +01:00", Some(SOME)),
        ("2026-01-31\t \nT14:37:00\u{b}+01:00\r\u{c}", Some(SOME)),
        ("2026-02-01 04:36:00+14:59", Some(SOME)),
        ("2026-02-01 04:37:00+15:00", None),
        ("2026-01-31", Some(SOME - (13 * 60 + 37) * 60_000)),
        ("2026-01-31 14:37:00+01", None),
        ("12026-01-31 14:37:00", None),
        ("1769866620", None),
        ("now", None),
        ("soon", None),
    ] {
        let ttl = ttl(ColumnType::SqliteNumeric, "column ends");
        assert_eq!(ttl.end_of(value.as_bytes()), expected, "{value}");
    }
    assert_eq!(ttl(INT, "column ends").end_of(b"12"), Some(12_000));
    assert_eq!(ttl(INT, "column ends ms").end_of(b"1769866620001"), Some(SOME + 1));
    assert_eq!(ttl(INT, "column ends").end_of(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(ttl(INT, "column ends").end_of(b"1.5"), None);
}

#[test]
fn times_beyond_the_greatest_number_of_a_column_are_cut_to_it() {
    for (min, max) in [(i64::from(i32::MIN), i64::from(i32::MAX)), (0, i64::from(u32::MAX))] {
        let ttl = ttl(ColumnType::Int { min, max }, "column ends");
        assert_eq!(ttl.cutoff(i64::MAX), Ok(max.to_string().into_bytes()));
        assert_eq!(ttl.cutoff(max * 1_000 + 1_000), Ok(max.to_string().into_bytes()));
        let least = min.max(i64::MIN / 1_000 - 1);
        assert_eq!(ttl.cutoff(i64::MIN), Ok(least.to_string().into_bytes()));
    }
    assert_eq!(ttl(INT, "column ends ms").cutoff(i64::MAX), Ok(i64::MAX.to_string().into_bytes()));
}

#[test]
fn numbers_that_are_no_times_last_and_are_never_given() {
    for (text, least, below) in [
        ("column ends", 1, [0, -1, i64::MIN]),
        // Of a column of seconds that was declared wrongly.
        ("column ends ms", 100_000_000_000, [99_999_999_999, SOME / 1_000, 0]),
    ] {
        let ttl = ttl(INT, text);
        for number in below {
            assert_eq!(ttl.end_of(number.to_string().as_bytes()), None, "{text} {number}");
        }
        for ms in [-5, 0, 1_000] {
            let value = ttl.value(ms).unwrap();
            assert_eq!(value, least.to_string().as_bytes(), "{text} {ms}");
            assert!(ttl.end_of(&value).is_some_and(|end| end < SOME));
        }
        let table = ended_table(INT, text);
        assert_eq!(least_number(&table, &table.columns[1]), Some(least));
    }
    let table = table(ZONED);
    assert_eq!(least_number(&table, &table.columns[1]), None);
}

#[test]
fn a_row_lasts_at_least_as_long_as_it_was_given() {
    let seconds = ColumnType::Timestamp { zone: false, precision: 0 };
    for (ty, text, value, cutoff) in [
        (INT, "column ends", "1769866621", "1769866620"),
        (INT, "column ends ms", "1769866620001", "1769866620001"),
        (ZONED, "column ends", "2026-01-31 13:37:00.001+00", "2026-01-31 13:37:00.001+00"),
        (seconds, "column ends", "2026-01-31 13:37:01", "2026-01-31 13:37:00"),
        (
            ColumnType::SqliteNumeric,
            "column ends",
            "2026-01-31 13:37:00.001",
            "2026-01-31 13:37:00.001",
        ),
    ] {
        let ttl = ttl(ty, text);
        let given = ttl.value(SOME + 1).unwrap();
        assert_eq!(String::from_utf8(given.clone()).unwrap(), value, "{text}");
        assert!(ttl.end_of(&given).unwrap() > SOME);
        assert_eq!(String::from_utf8(ttl.cutoff(SOME + 1).unwrap()).unwrap(), cutoff, "{text}");
    }
    assert!(
        ttl(ColumnType::Int { min: 0, max: i64::from(u32::MAX) }, "column ends")
            .value(i64::MAX)
            .is_err()
    );
    assert!(ttl(ZONED, "column ends").value(i64::MAX).is_err());
}

#[test]
fn what_cannot_end_is_refused_with_the_reason() {
    let refused = |change: &dyn Fn(&mut Table), text: &str| {
        let mut table = table(ZONED);
        change(&mut table);
        schema(table).let_rows_end(&settings(text)).unwrap_err()
    };
    for (change, text, why) in [
        (&(|_: &mut Table| {}) as &dyn Fn(&mut Table), "column id", "part of a key"),
        (&|_| {}, "column none", "t has no column none"),
        (&|_| {}, "column ends ms", "leave s or ms out"),
        (&|table| table.columns[1].generated = true, "column ends", "computed by the origin"),
        (&|table| table.columns[1].structural = true, "column ends", "constraint"),
        (&|table| table.columns[1].ty = ColumnType::Date, "column ends", "takes a timestamp"),
        (&|table| table.class.cascades_to.push(TableId(0)), "column ends", "ON DELETE"),
        (&|table| table.class.opaque = Some("a trigger".into()), "column ends", "triggers"),
        (
            &|table| table.columns[1].ty = ColumnType::Int { min: 0, max: 1 << 31 },
            "column ends ms",
            "too small",
        ),
    ] {
        let refused = refused(change, text);
        assert!(
            refused.starts_with("[table.t] ttl = \"column ") && refused.contains(why),
            "{refused}"
        );
    }
    assert!(TtlSettings::parse("colum ends").is_err());
    assert!(TtlSettings::parse("column ends m").is_err());
}
