//! The tables of the simulation, as the engine and as the model origin see them, and changes from the one form to the other.

use super::client::raw;
use crate::cells::{Cell, Reader, push_cell};
use crate::change::{self, Item};
use crate::schema::{Class, Column, ColumnDefault, ForeignKey, Schema, Table, TableId};
use crate::settings::DomainSettings;
use crate::value::ColumnType;
use destage_testkit::origin::{self, Change, Op, Place, Row, Set};

pub(super) const CHILD: usize = 0;
pub(super) const DERIVED: usize = 1;
pub(super) const ITEM: usize = 2;
pub(super) const PARENT: usize = 3;
pub(super) const NAMES: [&str; 4] = ["child", "derived", "item", "parent"];
/// Keys in use per table.
pub(super) const KEYS: [i64; 4] = [6, 4, 8, 4];
/// Quantities above this are refused by the origin alone.
pub(super) const QUANTITY_MAX: i64 = 1 << 40;

const INT: ColumnType = ColumnType::Int { min: i64::MIN, max: i64::MAX };
const TEXT: ColumnType = ColumnType::Text { chars_max: None };

fn column(name: &str, ty: ColumnType) -> Column {
    Column::named(name, ty)
}

fn key() -> Column {
    Column { not_null: true, structural: true, ..column("id", INT) }
}

fn number(name: &str, default: Option<&str>) -> Column {
    let default = default.map_or(ColumnDefault::None, |d| ColumnDefault::Constant(d.into()));
    Column { not_null: true, default, ..column(name, INT) }
}

fn table(name: &str, columns: Vec<Column>) -> Table {
    let mut table = Table::named(name.into(), name.into());
    (table.columns, table.key_len) = (columns, 1);
    table
}

/// What the engine knows of the tables.
pub(super) fn schema() -> Schema {
    let mut child = table(
        "child",
        vec![
            key(),
            Column { not_null: true, structural: true, ..column("parent", INT) },
            Column { checked: true, ..number("qty", None) },
            column("tag", TEXT),
        ],
    );
    child.references = vec![TableId(PARENT as u16)];
    child.foreign_keys = vec![ForeignKey {
        name: None,
        columns: vec![1],
        parent: TableId(PARENT as u16),
        parent_columns: vec![0],
        exact: true,
    }];
    let mut derived = table(
        "derived",
        vec![
            key(),
            number("a", None),
            Column { generated: true, ..column("twice", INT) },
            Column { default: ColumnDefault::Computed, ..column("made", TEXT) },
            Column { structural: true, ..column("u", TEXT) },
            column("tag", TEXT),
        ],
    );
    derived.has_unique = true;
    let mut item = table(
        "item",
        vec![
            key(),
            number("n", Some("0")),
            column("tag", TEXT),
            Column { structural: true, ..column("u", TEXT) },
            column("note", TEXT),
        ],
    );
    item.has_unique = true;
    let mut parent = table(
        "parent",
        vec![key(), Column { not_null: true, ..column("tag", TEXT) }, number("total", Some("0"))],
    );
    parent.referenced_by = vec![TableId(CHILD as u16)];
    parent.class = Class::default();
    Schema::new(vec![child, derived, item, parent], vec![])
}

/// The same where children go with their parents.
pub(super) fn schema_with_cascades() -> Schema {
    let mut schema = schema();
    schema.tables[PARENT].class.cascades_to = vec![TableId(CHILD as u16)];
    schema
}

/// Four ordering domains: a family of tables, another table by its key, and the rest. What a unique index compares across
/// them is decided by whoever comes first, which is what a user takes on with `assume_independent`.
/// Where the items are members of one set, they are in one domain.
pub(super) fn domains(has_set: bool) -> Vec<DomainSettings> {
    let family = DomainSettings {
        name: "family".into(),
        tables: vec![NAMES[CHILD].into(), NAMES[PARENT].into()],
        count: 1,
        ..DomainSettings::default()
    };
    let items = DomainSettings {
        name: "items".into(),
        tables: vec![NAMES[ITEM].into()],
        column: (!has_set).then(|| "id".into()),
        count: if has_set { 1 } else { 2 },
        assume_independent: true,
        ..DomainSettings::default()
    };
    vec![family, items]
}

/// The same for the model.
pub(super) fn model() -> Vec<origin::Table> {
    let plain = origin::Column::default;
    let required = || origin::Column { not_null: true, ..plain() };
    let zero = || origin::Column { default: Some(|_| "0".into()), ..required() };
    let unique = || origin::Column { unique: true, ..plain() };
    let child = vec![
        required(),
        origin::Column { references: Some(PARENT), ..required() },
        origin::Column { max: Some(QUANTITY_MAX), ..required() },
        plain(),
    ];
    let twice = |row: &Row| {
        row[1].as_ref().map(|a| (a.parse::<i64>().expect("a is a number") * 2).to_string())
    };
    let derived = vec![
        required(),
        required(),
        origin::Column { computed: Some(twice), ..plain() },
        origin::Column { default: Some(|key| format!("made-{key}")), ..plain() },
        unique(),
        plain(),
    ];
    let item = vec![required(), zero(), plain(), unique(), plain()];
    let parent = vec![required(), required(), zero()];
    [child, derived, item, parent].map(|columns| origin::Table { columns }).into()
}

/// The same where children go with their parents.
pub(super) fn model_with_cascades() -> Vec<origin::Table> {
    let mut tables = model();
    tables[CHILD].columns[1].cascades = true;
    tables
}

/// What an origin holds before Destage comes.
pub(super) fn initial() -> Vec<(Place, Row)> {
    let text = |values: &[&str]| -> Row {
        values.iter().map(|v| (!v.is_empty()).then(|| (*v).to_owned())).collect()
    };
    vec![
        ((ITEM, 0), text(&["0", "10", "v0", "", "old"])),
        ((ITEM, 1), text(&["1", "0", "", "first", ""])),
        ((ITEM, 2), text(&["2", "5", "v0", "", ""])),
        ((ITEM, 4), text(&["4", "5", "v0", "", "x"])),
        ((PARENT, 0), text(&["0", "v0", "0"])),
        ((PARENT, 1), text(&["1", "v0", "7"])),
        ((CHILD, 0), text(&["0", "0", "3", "v0"])),
        ((CHILD, 1), text(&["1", "1", "0", ""])),
        ((DERIVED, 0), text(&["0", "4", "8", "made-0", "", "v0"])),
    ]
}

pub(super) fn key_cells(key: i64) -> Vec<u8> {
    let mut cells = Vec::new();
    push_cell(&mut cells, Cell::Value(key.to_string().as_bytes()));
    cells
}

pub(super) fn key_of(cells: &[u8]) -> i64 {
    let cell = Reader::new(cells).next().and_then(Cell::value).expect("a key cell");
    std::str::from_utf8(cell).ok().and_then(|text| text.parse().ok()).expect("a number")
}

/// A row as origins hand it out.
pub(super) fn row_cells(row: &Row) -> Box<[u8]> {
    let mut cells = Vec::new();
    for value in row {
        push_cell(
            &mut cells,
            match value {
                Some(value) => Cell::Value(value.as_bytes()),
                None => Cell::Null,
            },
        );
    }
    cells.into()
}

/// A group's changes as the model takes them.
pub(super) fn changes(bytes: &[u8]) -> Vec<Change> {
    let read = change::items(bytes, |id| (usize::from(id.0) < NAMES.len()).then_some(1));
    let changes = read.flat_map(|item| match item.expect("groups are well-formed") {
        Item::Change(change) => vec![convert(&change)],
        Item::Dml(dml) => raw::changes(&dml),
    });
    changes.collect()
}

fn convert(change: &change::Change<'_>) -> Change {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let sets = change.sets().map(|(column, set)| {
        (
            column,
            match set {
                change::Set::To(cell) => Set::To(cell.value().map(text)),
                change::Set::By(amount) => Set::By(text(amount).parse().expect("a whole number")),
            },
        )
    });
    Change {
        place: (usize::from(change.table.0), key_of(change.key)),
        op: match change.op {
            change::Op::Insert => Op::Insert,
            change::Op::Update => Op::Update,
            change::Op::Delete => Op::Delete,
            change::Op::End => panic!("no rows end here"),
        },
        sets: sets.collect(),
    }
}
