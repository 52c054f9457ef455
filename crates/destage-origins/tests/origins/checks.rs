//! CHECK constraints judged here, against the databases: random rows, random conditions.

use crate::mysql::Database as MariaDb;
use crate::postgres::Database as Postgres;
use destage_origins::cells::Cell;
use destage_origins::checks::Outcomes;
use destage_origins::contract::Origin;
use destage_origins::origins::Sqlite;
use destage_origins::schema::Schema;
use std::time::Duration;

/// A database that says what comes of a condition.
trait Server {
    fn schema(&self) -> Schema;
    /// Whether it takes the statement.
    fn takes(&mut self, sql: &str) -> bool;
    /// The first column of the result, as text.
    fn texts(&mut self, query: &str) -> Vec<Option<String>>;
}

impl Server for Postgres {
    fn schema(&self) -> Schema {
        self.origin().schema().unwrap()
    }

    fn takes(&mut self, sql: &str) -> bool {
        self.try_sql(sql).is_ok()
    }

    fn texts(&mut self, query: &str) -> Vec<Option<String>> {
        Self::texts(self, query, &[])
    }
}

impl Server for MariaDb {
    fn schema(&self) -> Schema {
        self.origin().schema().unwrap()
    }

    fn takes(&mut self, sql: &str) -> bool {
        self.try_sql(sql)
    }

    fn texts(&mut self, query: &str) -> Vec<Option<String>> {
        Self::texts(self, query)
    }
}

struct File {
    folder: tempfile::TempDir,
    connection: rusqlite::Connection,
}

impl Server for File {
    fn schema(&self) -> Schema {
        let path = self.folder.path().join("checks.db");
        Sqlite::open(&path, Duration::from_secs(60)).unwrap().schema().unwrap()
    }

    fn takes(&mut self, sql: &str) -> bool {
        self.connection.execute_batch(sql).is_ok()
    }

    fn texts(&mut self, query: &str) -> Vec<Option<String>> {
        let mut statement = self.connection.prepare(query).unwrap();
        let rows = statement.query_map([], |row| row.get(0)).unwrap();
        rows.map(Result::unwrap).collect()
    }
}

/// A column: its name, its declaration, and values that it may have, as a client gives them.
type Column = (&'static str, &'static str, &'static [&'static str]);

const WHOLE: &[&str] = &["-3", "-1", "0", "1", "2", "5", "10", "2147483647"];
const DECIMAL: &[&str] = &["-1.50", "0.00", "0.10", "1.00", "2.25", "5.00", "9.99", "10.00"];
const REAL: &[&str] = &["-0.5", "0.0", "0.1", "1.0", "2.25", "1e+20", "5.0", "10.0"];
const TEXT: &[&str] = &[
    "", "a", "A", "a ", " a", "b", "new", "NEW", "paid", "10", "9", "\u{e4}", "\u{c4}", "ss",
    "\u{df}", "it's", "  ",
];
const DATES: &[&str] = &["2019-12-31", "2020-01-01", "2020-02-29", "2026-11-28", "0099-01-01"];
const STAMPS: &[&str] = &["2019-12-31 23:59:59", "2020-01-01 00:00:00", "2020-01-01 00:00:00.5"];
const FLAGS: &[&str] = &["t", "f"];
const MOODS: &[&str] = &["sad", "ok", "glad"];

/// The same numbers at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn happens(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A constant for comparisons with a column of these values.
fn constant(random: &mut Random, values: &[&'static str]) -> String {
    let value = random.one_of(values);
    match value {
        "t" => "true".into(),
        "f" => "false".into(),
        _ if [WHOLE, DECIMAL].contains(&values) => value.into(),
        "1e+20" => "100000000000000000000.0".into(),
        _ if values == REAL => value.into(),
        _ => format!("'{}'", value.replace('\'', "''")),
    }
}

fn atom(random: &mut Random, columns: &[Column]) -> String {
    let (name, _, values) = random.one_of(columns);
    // Now and then of another kind, of which databases make what they make.
    let values = if random.happens(5) { random.one_of(columns).2 } else { values };
    let op = random.one_of(&["=", "<>", "<", "<=", ">", ">="]);
    let not = if random.happens(30) { "NOT " } else { "" };
    match random.below(9) {
        0 => format!("{name} IS {not}NULL"),
        1 | 2 => {
            let list: Vec<String> =
                (0..=random.below(3)).map(|_| constant(random, values)).collect();
            let null = if random.happens(15) { ", NULL" } else { "" };
            format!("{name} {not}IN ({}{null})", list.join(", "))
        }
        3 => {
            let (least, most) = (constant(random, values), constant(random, values));
            format!("{name} {not}BETWEEN {least} AND {most}")
        }
        4 => format!("{name} {op} {}", random.one_of(columns).0),
        5 if values == TEXT => {
            let function = random.one_of(&["length", "char_length", "octet_length"]);
            format!("{function}({name}) {op} {}", random.below(4))
        }
        6 if values == TEXT => format!("trim({name}) {op} {}", constant(random, values)),
        7 if values == FLAGS => format!("{not}{name}"),
        8 => format!("{} {op} {name}", constant(random, values)),
        _ => format!("{name} {op} {}", constant(random, values)),
    }
}

fn condition(random: &mut Random, columns: &[Column], depth: u32) -> String {
    if depth == 0 || random.happens(35) {
        return atom(random, columns);
    }
    let mut part = || condition(random, columns, depth - 1);
    let (first, second) = (part(), part());
    match random.below(6) {
        0 => format!("NOT ({first})"),
        1 => format!("NOT {first}"),
        2 => format!("{first} AND {second}"),
        3 => format!("({first}) AND ({second})"),
        4 => format!("({first}) OR ({second})"),
        _ => format!("{first} OR {second}"),
    }
}

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    conditions: usize,
    understood: usize,
    compared: usize,
    /// Verdicts that named one outcome only.
    certain: usize,
    refused: usize,
    /// Rows that an evaluation in which NULL is false would have refused although the database takes them.
    caught: usize,
}

const CONDITIONS: usize = 120;
const ROWS: usize = 40;

/// Compares what is known here of random conditions on random rows with what the database makes of them.
fn compare(server: &mut impl Server, columns: &[Column], seed: u64) -> Tally {
    let random = &mut Random(seed);
    let declared: Vec<String> =
        columns.iter().map(|(name, declaration, _)| format!("{name} {declaration}")).collect();
    let declared = format!("id INT PRIMARY KEY, {}", declared.join(", "));
    assert!(server.takes(&format!("CREATE TABLE filled ({declared})")), "{declared}");
    let mut rows: Vec<Vec<Option<&str>>> = Vec::new();
    for id in 0..ROWS {
        let row: Vec<Option<&str>> = columns
            .iter()
            .map(|(_, _, values)| (!random.happens(25)).then(|| random.one_of(values)))
            .collect();
        assert!(server.takes(&insert("filled", id, &row)), "{row:?}");
        rows.push(row);
    }
    let mut conditions: Vec<String> = Vec::new();
    while conditions.len() < CONDITIONS {
        let text = condition(random, columns, 2);
        let table =
            format!("CREATE TABLE c{} ({declared}, CONSTRAINT k CHECK ({text}))", conditions.len());
        // Not everything is an expression to every database.
        if server.takes(&table) {
            conditions.push(text);
        }
    }
    let schema = server.schema();
    let mut tally = Tally { conditions: CONDITIONS, ..Tally::default() };
    for (number, text) in conditions.iter().enumerate() {
        let table = schema.find(format!("c{number}").as_bytes()).expect("the table is reachable");
        assert_eq!(table.checks.len(), 1, "{text}");
        assert_eq!(table.checks[0].name, "k");
        let Some((check, known)) = table.checks_here().next() else { continue };
        tally.understood += 1;
        let truths = server.texts(&format!(
            "SELECT CASE WHEN {text} THEN 't' WHEN NOT ({text}) THEN 'f' END FROM filled ORDER BY id"
        ));
        for (id, (row, truth)) in rows.iter().zip(truths).enumerate() {
            let key = id.to_string();
            let mut values: Vec<Option<Vec<u8>>> = vec![None; table.columns.len()];
            values[0] = Some(key.into_bytes());
            for ((name, _, _), value) in columns.iter().zip(row) {
                let at = table.column(name.as_bytes()).unwrap();
                let canonical = |value: &&str| {
                    table.columns[at].ty.canonical(value.as_bytes()).unwrap().into_owned()
                };
                values[at] = value.as_ref().map(canonical);
            }
            let cells: Vec<Cell<'_>> = values
                .iter()
                .map(|value| value.as_deref().map_or(Cell::Null, Cell::Value))
                .collect();
            let outcomes = known.outcomes(&cells);
            let truth = truth.map(|truth| truth == "t");
            let said = format!("CHECK ({text}), kept as {}: {row:?} is {truth:?}", check.text);
            assert!(outcomes.may_be(truth), "{said}, not one of {outcomes:?}");
            tally.compared += 1;
            tally.certain +=
                usize::from([Outcomes::TRUE, Outcomes::FALSE, Outcomes::NULL].contains(&outcomes));
            if outcomes.is_violated() {
                tally.refused += 1;
                // The constraint itself, of some of them.
                if tally.refused.is_multiple_of(7) {
                    assert!(!server.takes(&insert(&format!("c{number}"), id, row)), "{said}");
                }
            }
            let is_taken = truth != Some(false);
            tally.caught += usize::from(!outcomes.may_be(Some(true)) && is_taken);
        }
    }
    tally
}

fn insert(table: &str, id: usize, row: &[Option<&str>]) -> String {
    let quoted = |value: &&str| format!("'{}'", value.replace('\'', "''"));
    let values: Vec<String> =
        row.iter().map(|value| value.as_ref().map_or_else(|| "NULL".into(), quoted)).collect();
    format!("INSERT INTO {table} VALUES ({id}, {})", values.join(", "))
}

/// Floors, and the control: where NULL counts as false, rows are refused that the database takes.
fn assert_worth(tally: &Tally) {
    println!("{tally:?}");
    assert!(tally.understood * 3 > tally.conditions, "{tally:?}");
    assert!(tally.certain * 3 > tally.compared * 2, "{tally:?}");
    assert!(tally.refused > 200, "{tally:?}");
    assert!(tally.caught > 50, "a wrong rule for NULL is not noticed: {tally:?}");
}

#[test]
fn postgresql_never_takes_a_row_that_is_refused_here() {
    let Some(mut server) = Postgres::open("checks") else { return };
    server.sql("CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad')");
    let columns: [Column; 12] = [
        ("a", "int", WHOLE),
        ("b", "bigint", WHOLE),
        ("n", "numeric(8,2)", DECIMAL),
        ("u", "numeric", DECIMAL),
        ("f", "float8", REAL),
        ("g", "real", REAL),
        ("s", "varchar(12)", TEXT),
        ("w", "text", TEXT),
        ("d", "date", DATES),
        ("t", "timestamp", STAMPS),
        ("flag", "bool", FLAGS),
        ("m", "mood", MOODS),
    ];
    assert_worth(&compare(&mut server, &columns, 1));
}

#[test]
fn mariadb_never_takes_a_row_that_is_refused_here() {
    let Some(mut server) = MariaDb::open("checks") else { return };
    let columns: [Column; 11] = [
        ("a", "int", WHOLE),
        ("b", "bigint", WHOLE),
        ("n", "decimal(8,2)", DECIMAL),
        ("f", "double", REAL),
        ("g", "float", REAL),
        ("s", "varchar(12) COLLATE utf8mb4_general_ci", TEXT),
        ("v", "varchar(12) COLLATE utf8mb4_unicode_ci", TEXT),
        ("w", "varchar(12) COLLATE utf8mb4_bin", TEXT),
        ("y", "text COLLATE utf8mb4_nopad_bin", TEXT),
        ("d", "date", DATES),
        ("t", "datetime(6)", STAMPS),
    ];
    assert_worth(&compare(&mut server, &columns, 2));
}

#[test]
fn sqlite_never_takes_a_row_that_is_refused_here() {
    let folder = tempfile::tempdir().unwrap();
    let connection = rusqlite::Connection::open(folder.path().join("checks.db")).unwrap();
    connection.execute_batch("PRAGMA synchronous = OFF").unwrap();
    let mut server = File { folder, connection };
    let columns: [Column; 9] = [
        ("a", "INTEGER", WHOLE),
        ("b", "BIGINT", WHOLE),
        ("n", "DECIMAL(8,2)", DECIMAL),
        ("f", "REAL", REAL),
        ("s", "VARCHAR(12)", TEXT),
        ("w", "TEXT", TEXT),
        ("x", "", TEXT),
        ("d", "DATE", DATES),
        ("k", "NUMERIC", TEXT),
    ];
    assert_worth(&compare(&mut server, &columns, 3));
}
