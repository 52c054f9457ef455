//! A batch leaves the same rows as its groups one by one, and fails if one of them would have been rejected.

use super::fixture::*;
use destage_origins::cells::Cell;
use destage_origins::change::{GroupWriter, Op, Set};
use destage_origins::schema::Schema;
use proptest::prelude::*;
use rusqlite::types::Value;
use std::collections::HashSet;

/// One column of a random table.
#[derive(Clone, Copy, Debug)]
struct Col {
    not_null: bool,
    unique: bool,
    check: bool,
    default: bool,
    /// References the key of this table.
    parent: Option<(usize, &'static str)>,
}

#[derive(Clone, Debug)]
struct Spec {
    tables: Vec<Vec<Col>>,
    extra: &'static str,
}

/// (table, chance, key, columns with small values; `None` is NULL, the flag means an increment). What happens to the row
/// follows from the chance and from whether the row should be there, so that most groups are accepted.
type Step = (usize, u8, u8, Vec<(u8, bool, Option<i8>)>);

fn col(tables: usize) -> impl Strategy<Value = Col> {
    let action = prop_oneof![
        24 => Just(""),
        1 => Just(" ON DELETE CASCADE"),
        1 => Just(" ON DELETE SET NULL"),
        1 => Just(" DEFERRABLE INITIALLY DEFERRED"),
    ];
    let rare = || prop::bool::weighted(0.12);
    let parent = prop::option::weighted(0.35, (0..tables, action));
    (rare(), rare(), rare(), rare(), parent).prop_map(
        |(not_null, unique, check, default, parent)| Col {
            not_null,
            unique,
            check,
            default,
            parent,
        },
    )
}

fn spec() -> impl Strategy<Value = Spec> {
    let extra = prop_oneof![
        20 => Just(""),
        1 => Just("CREATE UNIQUE INDEX extra ON t0 (c0 + 1);"),
        1 => Just("CREATE UNIQUE INDEX extra ON t0 (c0) WHERE c1 > 1;"),
        1 => Just("CREATE TRIGGER extra AFTER UPDATE ON t0 BEGIN UPDATE t1 SET c0 = c0 + 1; END;"),
        // Triggers that are known to set a column of their own row to the time.
        5 => Just("CREATE TRIGGER extra AFTER UPDATE ON t0 BEGIN UPDATE t0 SET c1 = strftime('%Y', 'now') \
                   WHERE id = NEW.id; END;"),
        2 => Just("CREATE TRIGGER extra AFTER UPDATE OF c0 ON t0 WHEN NEW.c0 IS NOT OLD.c0 BEGIN \
                   UPDATE t0 SET c1 = strftime('%Y', 'now') WHERE id = NEW.id; END;"),
        2 => Just("CREATE TRIGGER extra AFTER INSERT ON t0 BEGIN UPDATE t0 SET c1 = strftime('%Y', 'now') \
                   WHERE id = NEW.id; END;"),
    ];
    let table = prop::collection::vec(col(3), 2..3);
    (prop::collection::vec(table, 3), extra).prop_map(|(tables, extra)| Spec { tables, extra })
}

fn groups() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let set = (0..4u8, any::<bool>(), prop::option::weighted(0.92, 0..7i8));
    let step = (0..3usize, 0..12u8, 0..8u8, prop::collection::vec(set, 1..3));
    let group = prop_oneof![4 => prop::collection::vec(step.clone(), 1), 1 => prop::collection::vec(step, 2..4)];
    prop::collection::vec(group, 2..24)
}

fn script(spec: &Spec) -> String {
    let mut sql = String::new();
    for (t, columns) in spec.tables.iter().enumerate() {
        sql += &format!("CREATE TABLE t{t} (id INTEGER PRIMARY KEY");
        for (c, col) in columns.iter().enumerate() {
            sql += &format!(", c{c} INTEGER");
            sql += if col.not_null { " NOT NULL" } else { "" };
            sql += if col.unique { " UNIQUE" } else { "" };
            sql += &if col.check { format!(" CHECK (c{c} < 5)") } else { String::new() };
            sql += if col.default { " DEFAULT 1" } else { "" };
            if let Some((parent, action)) = col.parent {
                sql += &format!(" REFERENCES t{parent} (id){action}");
            }
        }
        sql += ");\n";
    }
    sql += spec.extra;
    for (t, columns) in spec.tables.iter().enumerate() {
        for id in 0..3 {
            let values: Vec<_> =
                columns
                    .iter()
                    .map(|c| {
                        if c.parent.is_some() && !c.not_null {
                            "NULL".into()
                        } else {
                            id.to_string()
                        }
                    })
                    .collect();
            sql += &format!("\nINSERT OR IGNORE INTO t{t} VALUES ({id}, {});", values.join(", "));
        }
    }
    sql
}

/// The operation, usually one that works; `rows` are those that are there if every group is accepted.
fn operation(rows: &mut HashSet<(usize, u8)>, table: usize, chance: u8, row: u8) -> Op {
    let there = rows.contains(&(table, row));
    let op = match chance {
        0 => Op::Insert,
        1 => Op::Update,
        2..=4 if there => Op::Delete,
        _ if there => Op::Update,
        _ => Op::Insert,
    };
    match op {
        Op::Delete => rows.remove(&(table, row)),
        _ => rows.insert((table, row)),
    };
    op
}

fn bytes(schema: &Schema, rows: &mut HashSet<(usize, u8)>, steps: &[Step]) -> Vec<u8> {
    let mut writer = GroupWriter::new();
    for (place, chance, row, sets) in steps {
        let table = &schema.tables[*place];
        let op = operation(rows, *place, *chance, *row);
        writer.begin(table.id, op, &key(&[&row.to_string()]));
        if op == Op::Delete {
            continue;
        }
        let mut seen = Vec::new();
        for (column, increment, value) in sets {
            let column = 1 + usize::from(*column) % (table.columns.len() - 1);
            if seen.contains(&column) {
                continue;
            }
            seen.push(column);
            let text = value.map(|v| v.to_string());
            let cell = text.as_ref().map_or(Cell::Null, |t| Cell::Value(t.as_bytes()));
            match (increment, cell.value()) {
                (true, Some(amount)) if op == Op::Update => writer.set(column, Set::By(amount)),
                _ => writer.set(column, Set::To(cell)),
            }
        }
        for (index, column) in table.columns.iter().enumerate().skip(1) {
            if op == Op::Insert && column.not_null && !seen.contains(&index) && *chance != 5 {
                writer.set(index, Set::To(Cell::Value(row.to_string().as_bytes())));
            }
        }
    }
    writer.finish().to_vec()
}

fn state(fixture: &Fixture) -> Vec<Vec<Value>> {
    let connection = fixture.sql();
    let mut rows = Vec::new();
    for table in 0..3 {
        let mut statement =
            connection.prepare(&format!("SELECT * FROM t{table} ORDER BY id")).unwrap();
        let width = statement.column_count();
        let found = statement.query_map([], |row| (0..width).map(|i| row.get(i)).collect());
        rows.extend(found.unwrap().map(Result::unwrap));
        rows.push(Vec::new());
    }
    rows
}

fn fixture(script: &str) -> Fixture {
    // Tables may refer to one another in circles; no row refers to one that is missing in the end.
    Fixture::in_memory(&format!("PRAGMA foreign_keys = OFF; BEGIN; {script}; COMMIT;"))
}

fn compare(spec: &Spec, groups: &[Vec<Step>]) -> Result<(), TestCaseError> {
    let script = script(spec);
    let (mut single, mut batch) = (fixture(&script), fixture(&script));
    let mut rows = (0..3).flat_map(|table| (0..3).map(move |row| (table, row))).collect();
    let groups: Vec<_> = groups.iter().map(|g| bytes(&single.schema, &mut rows, g)).collect();
    let before = state(&batch);
    let mut taken: Vec<Vec<u8>> = Vec::new();
    for (i, group) in groups.iter().enumerate() {
        let Err(alone) = single.apply(std::slice::from_ref(group)) else {
            taken.push(group.clone());
            continue;
        };
        // Whatever follows the rejected group must not make up for it.
        for end in i + 1..=groups.len() {
            let together = [&taken[..], &groups[i..end]].concat();
            prop_assert!(batch.apply(&together).is_err(), "{alone} alone; accepted up to {end}");
        }
    }
    prop_assert_eq!(&state(&batch), &before);
    prop_assert!(batch.apply(&taken).is_ok(), "{:?}", batch.apply(&taken));
    prop_assert_eq!(state(&batch), state(&single));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_batch_equals_its_groups_one_by_one(spec in spec(), groups in groups()) {
        compare(&spec, &groups)?;
    }
}

/// More by `DESTAGE_CASES`, for soaks.
fn cases() -> u32 {
    std::env::var("DESTAGE_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}
