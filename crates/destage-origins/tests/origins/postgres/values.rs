//! Canonical values are PostgreSQL's own: what we accept it accepts, and its text is ours.

use super::database::Database;
use destage_origins::value::ColumnType;
use proptest::collection::vec;
use proptest::prelude::{Just, prop_oneof};
use proptest::strategy::{BoxedStrategy, Strategy, ValueTree};
use proptest::string::string_regex;
use proptest::test_runner::TestRunner;

/// A type with its canonical form and the patterns of inputs to try.
struct Case {
    sql: &'static str,
    ty: ColumnType,
    patterns: &'static [&'static str],
    fixed: Vec<String>,
}

fn case(sql: &'static str, ty: ColumnType, patterns: &'static [&'static str]) -> Case {
    Case { sql, ty, patterns, fixed: Vec::new() }
}

const INTS: &[&str] = &["[+-]?[0-9]{1,5}", "-?[0-9]{1,19}", " ?[+-]?0{0,3}[0-9]{0,10}[ \n]?"];
const FLOATS: &[&str] = &[
    "[+-]?[0-9]{1,3}\\.?[0-9]{0,3}",
    "-?[0-9]{0,20}\\.[0-9]{0,20}([eE][+-]?[0-9]{1,3})?",
    "-?[1-9]\\.[0-9]{0,17}e-?[0-9]{1,2}",
    " ?[+-]?([Ii]nf(inity)?|[Nn]a[Nn]) ?",
];
const NUMERICS: &[&str] = &[
    "[+-]?[0-9]{1,4}\\.?[0-9]{0,4}",
    "-?[0-9]{0,30}\\.[0-9]{0,30}",
    "-?[0-9]{1,3}\\.[0-9]{0,3}[eE][+-]?[0-9]{1,2}",
    "[+-]?(inf|Infinity|NaN)",
    "-?0{1,3}\\.0{0,3}[4-6]{1,3}",
];
const TEXTS: &[&str] = &["[a-zäß😀 ]{0,8}", "[ -~]{0,12}", "[a-c]{0,4} {0,5}"];
const BOOLS: &[&str] = &[" ?(t|tr|true|TRUE|f|fal|false|y|ye|n|no|o|on|of|off|1|0|2|00) ?"];
const UUIDS: &[&str] = &[
    "[0-9a-fA-F]{32}",
    "[0-9a-f]{8}-[0-9A-F]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "\\{?[0-9a-f]{4}(-?[0-9a-f]{4}){7}\\}?",
];
const DATES: &[&str] = &["[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}", "[12][0-9]{3}-0[1-9]-[0-3][0-9] ?"];
const TIMES: &[&str] =
    &["[0-2]?[0-9]:[0-6][0-9]", "[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{0,9})?"];
const STAMPS: &[&str] = &[
    "[0-9]{4}-[01][0-9]-[0-3][0-9]",
    "[12][0-9]{3}-0[1-9]-[0-2][0-9][ Tt][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\\.[0-9]{1,9})?)?",
    "[12][0-9]{3}-1[0-2]-[0-3][0-9] [01][0-9]:[0-5][0-9]:59\\.[0-9]{1,8} ?([+-][01][0-9](:?[0-5][0-9])?|Z|UTC)",
    "[12][0-9]{3}-1[0-2]-[0-3][0-9]T[01][0-9]:[0-5][0-9]:[0-5][0-9][+-][0-9](:[0-5][0-9](:[0-5][0-9])?)?",
];
const JSONS: &[&str] = &[
    "\\{(\"[a-c]{1,3}\": ?(-?[0-9]{1,3}(\\.[0-9]{1,2})?(e[0-9])?|\"[a-z\\\\\"/]{0,3}\"|true|null), ?){0,4}\"[a-c]{1,3}\": ?\\[(1, ?){0,2}\\{\\}\\]\\}",
    "-?[0-9]{1,4}(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?",
    "\"(\\\\u[0-9a-f]{4}|\\\\[bfnrt\"/\\\\]|[a-z😀é]){0,5}\"",
    " ?\\[(null|\\{\"b\":1,\"a\":2,\"b\":3\\}|\"\"|\\[\\])(, ?-?0(\\.0)?){0,2}\\] ?",
];

fn cases() -> Vec<Case> {
    let int = |min: i64, max: i64| ColumnType::Int { min, max };
    let numeric = |p, s| ColumnType::Numeric { precision: Some((p, s)), has_nan: true };
    let stamp = |zone, precision| ColumnType::Timestamp { zone, precision };
    vec![
        case("int2", int(i16::MIN.into(), i16::MAX.into()), INTS),
        case("int4", int(i32::MIN.into(), i32::MAX.into()), INTS),
        case("int8", int(i64::MIN, i64::MAX), INTS),
        Case { fixed: awkward_doubles(), ..case("float8", ColumnType::Float8, FLOATS) },
        Case { fixed: awkward_singles(), ..case("float4", ColumnType::Float4, FLOATS) },
        case("numeric", ColumnType::Numeric { precision: None, has_nan: true }, NUMERICS),
        case("numeric(6,2)", numeric(6, 2), NUMERICS),
        case("numeric(3,0)", numeric(3, 0), NUMERICS),
        case("numeric(3,-2)", numeric(3, -2), NUMERICS),
        case("numeric(2,5)", numeric(2, 5), NUMERICS),
        case("text", ColumnType::Text { chars_max: None }, TEXTS),
        case("varchar(4)", ColumnType::Text { chars_max: Some(4) }, TEXTS),
        case("char(4)", ColumnType::PaddedText { chars: 4 }, TEXTS),
        case("bool", ColumnType::Bool, BOOLS),
        case("uuid", ColumnType::Uuid, UUIDS),
        case("date", ColumnType::Date, DATES),
        case("time", ColumnType::Time { precision: 6 }, TIMES),
        case("time(2)", ColumnType::Time { precision: 2 }, TIMES),
        case("timestamp", stamp(false, 6), STAMPS),
        case("timestamp(3)", stamp(false, 3), STAMPS),
        case("timestamp(0)", stamp(false, 0), STAMPS),
        case("timestamptz", stamp(true, 6), STAMPS),
        case("timestamptz(1)", stamp(true, 1), STAMPS),
        case("json", ColumnType::Json, JSONS),
        Case { fixed: documents(), ..case("jsonb", ColumnType::Jsonb, JSONS) },
    ]
}

/// Arrays of elements that are as awkward as can be.
fn array_cases() -> Vec<Case> {
    let int = |min: i64, max: i64| ColumnType::Int { min, max };
    let numeric = |precision| ColumnType::Numeric { precision, has_nan: true };
    let array = |sql: &'static str, element: ColumnType, patterns: &'static [&'static str]| Case {
        sql,
        ty: ColumnType::Array(Box::new(element)),
        patterns: ARRAYS,
        fixed: arrays(patterns),
    };
    vec![
        array("int2[]", int(i16::MIN.into(), i16::MAX.into()), INTS),
        array("int4[]", int(i32::MIN.into(), i32::MAX.into()), INTS),
        array("int8[]", int(i64::MIN, i64::MAX), INTS),
        array("text[]", ColumnType::Text { chars_max: None }, ELEMENTS),
        array("varchar(4)[]", ColumnType::Text { chars_max: Some(4) }, ELEMENTS),
        array("char(4)[]", ColumnType::PaddedText { chars: 4 }, ELEMENTS),
        array("bool[]", ColumnType::Bool, BOOLS),
        array("uuid[]", ColumnType::Uuid, UUIDS),
        array("float8[]", ColumnType::Float8, FLOATS),
        array("float4[]", ColumnType::Float4, FLOATS),
        array("numeric[]", numeric(None), NUMERICS),
        array("numeric(6,2)[]", numeric(Some((6, 2))), NUMERICS),
        array("date[]", ColumnType::Date, DATES),
        array("time(2)[]", ColumnType::Time { precision: 2 }, TIMES),
        array("timestamptz[]", ColumnType::Timestamp { zone: true, precision: 6 }, STAMPS),
        array("json[]", ColumnType::Json, JSONS),
        array("jsonb[]", ColumnType::Jsonb, JSONS),
    ]
}

/// What looks like an array, and mostly is none.
const ARRAYS: &[&str] = &[
    "\\{([{},]|1|t|\"1\"|null| ){0,9}\\}",
    "[{}\\[\\]\"\\\\, :=0-2a]{0,9}",
    "(\\[-?[0-2]:[0-3]\\]){1,2}=\\{(\\{(1|NULL)(,1){0,2}\\},?){0,3}\\}",
    "\\{(1,){0,3}(1|NULL)\\}",
    "\\{{1,7}1?\\}{1,7}",
];
const ELEMENTS: &[&str] =
    &["[a-c ,{}\"\\\\\n\t]{0,5}", "(null|NULL|Null|nul)", "[äß😀\u{a0}' ]{0,4}", "[ -~]{1,6}"];

fn drawn(count: usize, strategy: &BoxedStrategy<String>) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    (0..count).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect()
}

fn matching(pattern: &str) -> BoxedStrategy<String> {
    string_regex(pattern).unwrap().boxed()
}

/// Array literals of one to three dimensions, with any bounds, whose elements match the patterns: as they are, in quotes or
/// behind backslashes, with blanks around them.
fn arrays(patterns: &'static [&'static str]) -> Vec<String> {
    let blank = || matching("[ \t\n\r\u{b}\u{c}]?");
    let text = proptest::sample::select(patterns).prop_flat_map(matching).boxed();
    let quoted = |text: String| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let escaped = |text: String| text.chars().flat_map(|char| ['\\', char]).collect::<String>();
    let element = prop_oneof![
        4 => text.clone().prop_map(quoted),
        2 => text.clone(),
        1 => text.prop_map(escaped),
        1 => Just("NULL".to_owned()),
    ];
    let element = (blank(), element, blank()).prop_map(|(a, text, b)| format!("{a}{text}{b}"));
    let element = element.boxed();
    let braces = |items: Vec<String>| format!("{{{}}}", items.join(","));
    let flat = vec(element.clone(), 0..5).prop_map(braces).boxed();
    let level = move |inner, len: usize| vec(inner, len).prop_map(braces).boxed();
    let even = (1..3_usize, 1..3_usize, 1..3_usize)
        .prop_flat_map(move |(a, b, c)| level(level(level(element.clone(), a), b), c));
    let bounded = (-2..3_i32, flat.clone()).prop_map(|(first, text)| {
        let last = first + i32::try_from(text.matches(',').count()).unwrap();
        format!("[{first}:{last}]={text}")
    });
    drawn(400, &prop_oneof![3 => flat, 2 => even, 1 => bounded].boxed())
}

/// JSON of any shape, with blanks, equal keys, escapes and numbers of all kinds; and what is at the limits of `jsonb`.
fn documents() -> Vec<String> {
    let leaf = prop_oneof![
        matching(JSONS[1]),
        matching("-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?"),
        matching(JSONS[2]),
        matching("\"([ !#-\\[\\]-~]|\\\\u[dD][89a-fA-F][0-9a-f]{2}){0,3}\""),
        matching("(true|false|null)"),
    ];
    let all = leaf.prop_recursive(5, 40, 5, |inner| {
        let key = matching("\"(a|b|aa|\\\\u0061|ä|\\\\\"){0,2}\"");
        let member = (key, matching("[ \t\n]?"), inner.clone())
            .prop_map(|(key, blank, value)| format!("{key}{blank}:{value}{blank}"));
        prop_oneof![
            vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(" , "))),
            vec(member, 0..5).prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    });
    let mut documents = drawn(1_500, &all.boxed());
    let limits = [
        "1e131071",
        "1e131072",
        "1e16383",
        "1e-16383",
        "1e-16384",
        "-0",
        "-0.0e5",
        "0e999",
        "\"\\u0000\"",
        "{\"\\u0000\":1}",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\ude00\\ud83d\"",
        "\"\u{7f}\"",
    ];
    documents.extend(limits.map(str::to_owned));
    documents
}

/// Powers of two and their neighbours, where the shortest text is hardest, and bit patterns all over the range.
fn awkward_doubles() -> Vec<String> {
    let mut values = Vec::new();
    for exponent in 0..2047u64 {
        values.extend([0, 1, (1 << 52) - 1].map(|m| f64::from_bits((exponent << 52) | m)));
    }
    for power in -30..40 {
        for digit in 1..10 {
            values.push(format!("{digit}e{power}").parse().unwrap());
        }
    }
    values.extend((0..53).map(|bit| (1u64 << 53) as f64 + (1u64 << bit) as f64));
    let mut state = 7u64;
    for _ in 0..3_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let value = f64::from_bits(state);
        values.extend(value.is_finite().then_some(value));
    }
    values.iter().map(|value| format!("{value:e}")).collect()
}

fn awkward_singles() -> Vec<String> {
    let mut values = Vec::new();
    for exponent in 0..255u32 {
        values.extend([0, 1, 2, (1 << 23) - 1].map(|m| f32::from_bits((exponent << 23) | m)));
    }
    for power in -30..30 {
        for digit in 1..10 {
            values.push(format!("{digit}e{power}").parse().unwrap());
        }
    }
    values.extend((0..24).map(|bit| (1u32 << 24) as f32 + (1u32 << bit) as f32));
    values.iter().map(|value| format!("{value:e}")).collect()
}

fn inputs(case: &Case, each: usize) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let mut inputs = case.fixed.clone();
    inputs.extend(["", " ", "-", "x", "NULL", "'", "null"].map(str::to_owned));
    for pattern in case.patterns {
        let strategy = string_regex(pattern).unwrap();
        for _ in 0..each {
            inputs.push(strategy.new_tree(&mut runner).unwrap().current());
        }
    }
    inputs
}

/// What PostgreSQL stores for a literal of that text, in the type's own output form; NULL where it refuses.
fn stored(database: &Database, inputs: &[String]) -> Vec<Option<String>> {
    database.texts(
        "SELECT stored(x) FROM unnest($1::text[]) WITH ORDINALITY AS u(x, n) ORDER BY n",
        inputs,
    )
}

fn prepare(database: &Database, sql_type: &str) {
    database.sql(&format!(
        "DROP TABLE IF EXISTS v; CREATE TABLE v (c {sql_type});
         CREATE OR REPLACE FUNCTION stored(x text) RETURNS text LANGUAGE plpgsql AS $f$
         DECLARE r text; BEGIN
           EXECUTE format('INSERT INTO v VALUES (%L) RETURNING format(''%%s'', c)', x) INTO r;
           RETURN r;
         EXCEPTION WHEN OTHERS THEN RETURN NULL; END $f$;
         CREATE OR REPLACE FUNCTION added(x text, d text, ty text) RETURNS text LANGUAGE plpgsql AS $f$
         DECLARE r text; BEGIN
           TRUNCATE v;
           EXECUTE format('INSERT INTO v VALUES (%L)', x);
           EXECUTE format('UPDATE v SET c = c + %L::%s RETURNING format(''%%s'', c)', d, ty) INTO r;
           RETURN r;
         EXCEPTION WHEN OTHERS THEN RETURN NULL; END $f$"
    ));
}

#[test]
fn canonical_values_are_what_postgresql_stores() {
    let Some(database) = Database::open("values") else { return };
    for case in cases().into_iter().chain(array_cases()) {
        prepare(&database, case.sql);
        let inputs = inputs(&case, 400);
        let theirs = stored(&database, &inputs);
        let mut canonical = Vec::new();
        let mut refused = 0;
        for (input, theirs) in inputs.iter().zip(&theirs) {
            let Ok(ours) = case.ty.canonical(input.as_bytes()) else {
                refused += usize::from(theirs.is_some());
                continue;
            };
            let ours = String::from_utf8(ours.into_owned()).unwrap();
            assert_eq!(Some(&ours), theirs.as_ref(), "{} of {input:?}", case.sql);
            let again = case.ty.canonical(ours.as_bytes()).unwrap();
            assert!(matches!(again, std::borrow::Cow::Borrowed(_)), "{} of {ours:?}", case.sql);
            canonical.push(ours);
        }
        let reloaded = stored(&database, &canonical);
        for (ours, theirs) in canonical.iter().zip(&reloaded) {
            assert_eq!(Some(ours), theirs.as_ref(), "{} reloaded", case.sql);
        }
        println!(
            "{}: {} of {} accepted, {refused} that PostgreSQL would take refused",
            case.sql,
            canonical.len(),
            inputs.len()
        );
        assert!(canonical.len() > inputs.len() / 20, "{} accepts next to nothing", case.sql);
    }
}

#[test]
fn sums_are_what_postgresql_computes() {
    let Some(database) = Database::open("sums") else { return };
    for case in cases() {
        let amount_type = match case.ty {
            ColumnType::Int { .. } => "int8",
            ColumnType::Float8 => "float8",
            ColumnType::Float4 => "float4",
            ColumnType::Numeric { .. } => "numeric",
            _ => continue,
        };
        prepare(&database, case.sql);
        let inputs: Vec<_> = inputs(&case, 120)
            .into_iter()
            .filter_map(|input| {
                let value = case.ty.canonical(input.as_bytes()).ok()?.into_owned();
                String::from_utf8(value).ok()
            })
            .rev()
            .take(1_000)
            .collect();
        let amounts: Vec<_> = inputs.iter().rev().cloned().collect();
        let pairs: Vec<_> =
            inputs.iter().zip(&amounts).map(|(a, b)| format!("{a}|{b}|{amount_type}")).collect();
        let theirs = database.texts(
            "SELECT added(split_part(x, '|', 1), split_part(x, '|', 2), split_part(x, '|', 3)) \
             FROM unnest($1::text[]) WITH ORDINALITY AS u(x, n) ORDER BY n",
            &pairs,
        );
        for ((value, amount), theirs) in inputs.iter().zip(&amounts).zip(&theirs) {
            let ours = case.ty.add(value.as_bytes(), amount.as_bytes()).ok();
            if amount.to_ascii_lowercase().contains('n') {
                assert!(ours.is_none(), "{value} + {amount}: an amount is finite");
                continue;
            }
            let ours = ours.map(|sum| String::from_utf8(sum).unwrap());
            assert_eq!(&ours, theirs, "{}: {value} + {amount}", case.sql);
        }
        println!("{}: {} sums agree", case.sql, inputs.len());
    }
}
