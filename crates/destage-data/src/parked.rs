//! Rejected groups as text that explains itself, stored at the origin in `destage_parked.payload`.
//!
//! ```json
//! {"changes":[{"table":"orders","op":"update","key":{"id":"7"},
//!   "columns":[{"name":"status","value":"paid"},{"name":"total","add":"12"},{"name":"note","value":null}]}]}
//! ```
//!
//! Values are in canonical form; bytes that are not UTF-8 are written `{"hex":"00ff"}`. Tables and columns go by their
//! names, so that the text can be read back after the schema has changed, as far as they still exist.

use crate::cells::{Cell, Reader, push_cell};
use crate::change::{Change, GroupWriter, MalformedGroup, Op, Set, changes};
use crate::schema::{Schema, Table, TableId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The text of a group cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parked group cannot be read: {0}")]
pub struct ParkedError(String);

/// The text of a group.
///
/// # Errors
/// [`MalformedGroup`] if the bytes do not follow the format or do not fit the schema.
pub fn encode(schema: &Schema, group: &[u8]) -> Result<String, MalformedGroup> {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|t| t.key_len);
    let changes = changes(group, key_len).map(|change| {
        let change = change?;
        text_of(schema.table(change.table), &change).ok_or(MalformedGroup)
    });
    let group = Group { changes: changes.collect::<Result<_, _>>()? };
    serde_json::to_string(&group).map_err(|_| MalformedGroup)
}

/// The bytes of a group whose text was written by [`encode`], perhaps edited since. Values are brought into canonical form.
///
/// # Errors
/// [`ParkedError`] names what does not fit: the form, a table, a column, a value.
pub fn decode(schema: &Schema, text: &str) -> Result<Vec<u8>, ParkedError> {
    let group: Group = serde_json::from_str(text).map_err(|e| ParkedError(e.to_string()))?;
    let mut writer = GroupWriter::new();
    for change in &group.changes {
        let table = schema
            .find(change.table.as_bytes())
            .ok_or_else(|| ParkedError(format!("there is no table {}", change.table)))?;
        write_change(&mut writer, table, change)?;
    }
    Ok(writer.finish().to_vec())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    changes: Vec<ChangeText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeText {
    table: String,
    op: OpText,
    key: BTreeMap<String, ValueText>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnText>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OpText {
    Insert,
    Update,
    Delete,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ColumnText {
    Set(SetText),
    Add(AddText),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetText {
    name: String,
    value: Option<ValueText>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddText {
    name: String,
    add: String,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ValueText {
    Text(String),
    Bytes { hex: String },
}

fn text_of(table: &Table, change: &Change<'_>) -> Option<ChangeText> {
    let key = table.key().iter().zip(Reader::new(change.key));
    let key = key.map(|(c, cell)| Some((c.name.clone(), value_text(cell.value()?))));
    let columns = change.sets().map(|(index, set)| {
        let name = table.columns.get(index)?.name.clone();
        Some(match set {
            Set::To(cell) => ColumnText::Set(SetText { name, value: cell.value().map(value_text) }),
            Set::By(amount) => {
                let add = String::from_utf8(amount.to_vec()).ok()?;
                ColumnText::Add(AddText { name, add })
            }
        })
    });
    Some(ChangeText {
        table: table.name.clone(),
        op: match change.op {
            Op::Insert => OpText::Insert,
            Op::Update => OpText::Update,
            Op::Delete => OpText::Delete,
        },
        key: key.collect::<Option<_>>()?,
        columns: columns.collect::<Option<_>>()?,
    })
}

fn value_text(bytes: &[u8]) -> ValueText {
    match std::str::from_utf8(bytes) {
        Ok(text) => ValueText::Text(text.to_owned()),
        Err(_) => ValueText::Bytes { hex: bytes.iter().map(|b| format!("{b:02x}")).collect() },
    }
}

fn write_change(
    writer: &mut GroupWriter,
    table: &Table,
    change: &ChangeText,
) -> Result<(), ParkedError> {
    if let Some(name) = change.key.keys().find(|name| !table.key().iter().any(|c| c.name == **name))
    {
        return Err(ParkedError(format!("{name} is not in the key of table {}", table.name)));
    }
    let mut key = Vec::new();
    for (index, column) in table.key().iter().enumerate() {
        let value = change.key.get(&column.name).ok_or_else(|| {
            ParkedError(format!("the key of table {} lacks {}", table.name, column.name))
        })?;
        push_cell(&mut key, Cell::Value(&canonical(table, index, value)?));
    }
    let op = match change.op {
        OpText::Insert => Op::Insert,
        OpText::Update => Op::Update,
        OpText::Delete => Op::Delete,
    };
    if op == Op::Delete && !change.columns.is_empty() {
        return Err(ParkedError(format!("a delete from {} has columns", table.name)));
    }
    writer.begin(table.id, op, &key);
    let mut seen = Vec::new();
    for column in &change.columns {
        let (ColumnText::Set(SetText { name, .. }) | ColumnText::Add(AddText { name, .. })) =
            column;
        let index = table
            .column(name.as_bytes())
            .filter(|&i| i >= table.key_len && !table.columns[i].generated && !seen.contains(&i))
            .ok_or_else(|| {
                ParkedError(format!("{name} is not a writable column of table {}", table.name))
            })?;
        seen.push(index);
        write_column(writer, table, index, op, column)?;
    }
    Ok(())
}

fn write_column(
    writer: &mut GroupWriter,
    table: &Table,
    index: usize,
    op: Op,
    column: &ColumnText,
) -> Result<(), ParkedError> {
    match column {
        ColumnText::Set(SetText { value: None, .. }) => writer.set(index, Set::To(Cell::Null)),
        ColumnText::Set(SetText { value: Some(value), .. }) => {
            let value = canonical(table, index, value)?;
            writer.set(index, Set::To(Cell::Value(&value)));
        }
        ColumnText::Add(AddText { name, add }) => {
            if op == Op::Insert {
                return Err(ParkedError(format!("{name} of a new row has nothing to add to")));
            }
            writer.set(index, Set::By(add.as_bytes()));
        }
    }
    Ok(())
}

fn canonical(table: &Table, index: usize, value: &ValueText) -> Result<Vec<u8>, ParkedError> {
    let column = &table.columns[index];
    let bytes = match value {
        ValueText::Text(text) => text.clone().into_bytes(),
        ValueText::Bytes { hex } => from_hex(hex)
            .ok_or_else(|| ParkedError(format!("{} holds no hexadecimal digits", column.name)))?,
    };
    match column.ty.canonical(&bytes) {
        Ok(value) => Ok(value.into_owned()),
        Err(error) => Err(ParkedError(format!("{}.{} {error}", table.name, column.name))),
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let digits = digits.filter(|d| d.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}
