//! The value before the destage equals the value after a reload, for every type.

use super::database::Database;
use crate::claimed::{Claimed, change, key, shown};
use destage_origins::change::Op;
use proptest::prelude::Strategy;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};

/// A column's type at the server, and a pattern of what clients might send.
const CASES: &[(&str, &str)] = &[
    ("tinyint", "-?[0-9]{1,3}"),
    ("bigint", "-?[0-9]{1,19}"),
    ("int unsigned zerofill", "[0-9]{1,10}"),
    ("bit(40)", "[0-9]{1,12}"),
    ("year", "(19|20)[0-9]{2}"),
    ("float", "-?[0-9]{1,12}(\\.[0-9]{1,9})?(e-?[0-9]{1,2})?"),
    ("double", "-?[0-9]{1,18}(\\.[0-9]{1,18})?(e-?[0-9]{1,3})?"),
    ("decimal(12,3)", "-?[0-9]{1,9}(\\.[0-9]{1,6})?"),
    ("decimal(12,3) unsigned", "-?[0-9]{1,9}(\\.[0-9]{1,6})?"),
    ("float unsigned", "-?[0-9]{1,12}(\\.[0-9]{1,9})?(e-?[0-9]{1,2})?"),
    ("double unsigned", "-?[0-9]{1,18}(\\.[0-9]{1,18})?(e-?[0-9]{1,3})?"),
    ("decimal(65,30)", "-?[0-9]{1,35}(\\.[0-9]{1,33})?"),
    ("varchar(6)", "\\PC{0,6}"),
    ("char(6)", "[a-z\u{e4}\u{1f600} ]{0,7}"),
    ("text", "[ -~\u{a0}-\u{2ff}\u{1f600}]{0,40}"),
    ("varbinary(40)", "[ -~\u{a0}-\u{2ff}]{0,12}"),
    ("binary(8)", "[ -~]{0,8}"),
    ("uuid", "[0-9a-fA-F]{8}-[0-9a-f]{4}-[1-7][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    ("date", "[0-9]{3}[1-9]-(0[1-9]|1[0-2])-([01][0-9]|2[0-8])"),
    ("time(4)", "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,7})?"),
    ("time", "([01][0-9]|2[0-4]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,7})?"),
    (
        "datetime(6)",
        "[1-9][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]) [01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,7})?",
    ),
    (
        "timestamp(3) NULL",
        "(19[789]|20[012])[0-9]-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]) [01][0-9]:[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,4})?\\+0[0-9]",
    ),
    ("json", "(\\{\"[a-z\\\\\\\\n']{0,3}\":( |[0-9])[0-9]{1,20}\\}|\\[1\\.50, \"x\"\\])"),
    ("enum('a','it''s','\u{e4}') COLLATE utf8mb4_bin", "(a|it's|\u{e4})"),
    ("set('a','it''s','\u{e4}') COLLATE utf8mb4_bin", "(a|it's|\u{e4})(,(a|it's))?"),
];

#[test]
fn the_value_before_the_destage_equals_the_value_after_a_reload() {
    let Some(mut database) = Database::open("values") else { return };
    for (at, (ty, pattern)) in CASES.iter().enumerate() {
        let name = format!("t{at}");
        database.sql(&format!("CREATE TABLE {name} (id int PRIMARY KEY, v {ty})"));
        let mut runner = TestRunner::new_with_rng(
            Config::default(),
            proptest::test_runner::TestRng::deterministic_rng(Default::default()),
        );
        let inputs: Vec<String> = (0..300)
            .map(|_| {
                proptest::string::string_regex(pattern)
                    .unwrap()
                    .new_tree(&mut runner)
                    .unwrap()
                    .current()
            })
            .collect();
        check(&database, &name, ty, &inputs);
    }
}

fn check(database: &Database, name: &str, ty: &str, inputs: &[String]) {
    let origin = database.origin();
    use destage_origins::contract::Origin;
    let owner = origin.writer().unwrap().owner().unwrap();
    let mut claimed = match owner {
        None => Claimed::before(&database.origin()),
        Some(owner) => Claimed::taken_over(&origin, &owner),
    };
    let table = claimed.table(name).clone();
    let column = &table.columns[1].ty;
    let taken: Vec<(String, String)> = inputs
        .iter()
        .filter_map(|input| column.canonical(input.as_bytes()).ok())
        .enumerate()
        .map(|(id, value)| (id.to_string(), String::from_utf8(value.into_owned()).unwrap()))
        .collect();
    assert!(taken.len() > inputs.len() / 4, "{ty} takes {} of {}", taken.len(), inputs.len());
    let groups: Vec<_> = taken
        .iter()
        .map(|(id, value)| change(&table, Op::Insert, &[id], &[("v", Some(value))], &[]))
        .collect();
    claimed.apply(&groups).unwrap_or_else(|error| panic!("{ty}: {error}"));
    let keys: Vec<_> = taken.iter().map(|(id, _)| key(&[id])).collect();
    let refs: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let snapshot = claimed.reader.fetch(&table, &refs).unwrap();
    for ((id, value), row) in taken.iter().zip(&snapshot.rows) {
        assert_eq!(shown(row.as_deref()), format!("{id}|{value}"), "{ty}");
    }
}
