//! Rejected groups as text that explains itself, stored at the origin in `destage_parked.payload`.
//!
//! ```json
//! {"changes":[{"table":"orders","op":"update","key":{"id":"7"},
//!   "columns":[{"name":"status","value":"paid"},{"name":"total","add":"12"},{"name":"note","value":null}]}]}
//! ```
//!
//! What it builds on besides the earlier writes of its rows is told by number: `{"builds_on":[5],"changes":[..]}`.
//!
//! Raw SQL stands among the changes, with what it is declared to touch:
//!
//! ```json
//! {"sql":"UPDATE orders SET total = total * $1","parameters":[{"real":"0.9"}],"tables":["orders"],
//!   "rows":[{"table":"customers","key":{"id":"7"}}]}
//! ```
//!
//! Its parameters are `null`, texts, `{"integer":"1"}`, `{"real":"0.5"}` or `{"hex":"00ff"}`.
//!
//! In the place of one may also be given what is shown of it, `{"id":7,"reason":"..","payload":{"changes":[..]}}`.
//!
//! Values are in canonical form; bytes that are not UTF-8 are written `{"hex":"00ff"}`. Tables and columns go by their
//! names, so that the text can be read back after the schema has changed, as far as they still exist.

use crate::cells::{Cell, Reader, push_cell};
use crate::change::{Change, GroupWriter, Item, MalformedGroup, Op, Set, builds_on, items};
use crate::dml::{self, Declared, Dml, Parameter};
use crate::schema::{Schema, Table, TableId};
use destage_core::Lsn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// In the place of a text of which someone has deleted a piece by hand.
pub(crate) const PIECE_MISSING: &str = "a piece of it is missing";

/// The text of a group cannot be read back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the parked group cannot be read: {0}")]
pub struct ParkedError(String);

/// What is given in the place of a group cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the given changes cannot be read, nothing was done: {0}")]
pub struct EditError(String);

/// The text of a group.
///
/// # Errors
/// [`MalformedGroup`] if the bytes do not follow the format or do not fit the schema.
pub fn encode(schema: &Schema, group: &[u8]) -> Result<String, MalformedGroup> {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|t| t.key_len);
    let changes = items(group, key_len).map(|item| match item? {
        Item::Change(change) => {
            let text = text_of(schema.table(change.table), &change);
            text.map(ItemText::Change).ok_or(MalformedGroup)
        }
        Item::Dml(dml) => dml_text(schema, &dml).map(ItemText::Dml).ok_or(MalformedGroup),
    });
    let builds_on = builds_on(group).into_iter().map(|lsn| lsn.0).collect();
    let group = ParkedChanges { builds_on, changes: changes.collect::<Result<_, _>>()? };
    serde_json::to_string(&group).map_err(|_| MalformedGroup)
}

/// The bytes of a group whose text was written by [`encode`], perhaps edited since. Values are brought into canonical form.
///
/// # Errors
/// [`ParkedError`] names what does not fit: the form, a table, a column, a value.
pub fn decode(schema: &Schema, text: &str) -> Result<Vec<u8>, ParkedError> {
    parse(text).and_then(|group| write(schema, &group))
}

/// The bytes of a group that someone gives in the place of a parked one, in the same form, or as that one is shown.
///
/// # Errors
/// [`EditError`] names what does not fit, that another group is shown, or that nothing would be changed.
pub fn decode_edited(schema: &Schema, parked: Lsn, text: &str) -> Result<Vec<u8>, EditError> {
    let given: Given = serde_json::from_str(text).map_err(|error| EditError(error.to_string()))?;
    let group = match given {
        Given::ParkedChanges(group) => group,
        Given::Shown(shown) if shown.id != parked.0 => {
            return Err(EditError(format!("they are those of write {}", shown.id)));
        }
        Given::Shown(shown) => shown.payload,
    };
    if group.changes.is_empty() {
        return Err(EditError("there are none; SKIP gives a parked write up".to_owned()));
    }
    for item in &group.changes {
        if let ItemText::Change(change) = item
            && matches!(change.op, OpText::Update)
            && change.columns.is_empty()
        {
            return Err(EditError(format!("an update of {} has no columns", change.table)));
        }
    }
    write(schema, &group).map_err(|error| EditError(error.0))
}

fn parse(text: &str) -> Result<ParkedChanges, ParkedError> {
    if text == PIECE_MISSING {
        return Err(ParkedError(text.to_owned()));
    }
    serde_json::from_str(text).map_err(|error| ParkedError(error.to_string()))
}

fn write(schema: &Schema, group: &ParkedChanges) -> Result<Vec<u8>, ParkedError> {
    let mut writer = GroupWriter::new();
    let mut on = group.builds_on.clone();
    on.sort_unstable();
    on.dedup();
    writer.builds_on(on.into_iter().map(Lsn));
    for item in &group.changes {
        match item {
            ItemText::Change(change) => {
                write_change(&mut writer, find(schema, &change.table)?, change)?;
            }
            ItemText::Dml(text) => writer.dml(&dml_of(schema, text)?),
        }
    }
    Ok(writer.finish().to_vec())
}

fn find<'s>(schema: &'s Schema, name: &str) -> Result<&'s Table, ParkedError> {
    let found = schema.find(name.as_bytes());
    found.ok_or_else(|| ParkedError(format!("there is no table {name}")))
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParkedChanges {
    /// Left out by earlier versions, and where there is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    builds_on: Vec<u64>,
    changes: Vec<ItemText>,
}

/// What is given in the place of a group.
#[derive(Deserialize)]
#[serde(try_from = "serde_json::Value")]
enum Given {
    ParkedChanges(ParkedChanges),
    Shown(Shown),
}

/// A group as it is shown; see [`crate::engine`].
#[derive(Deserialize)]
struct Shown {
    id: u64,
    payload: ParkedChanges,
}

impl TryFrom<serde_json::Value> for Given {
    type Error = serde_json::Error;

    /// As for [`ItemText`].
    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        if value.get("payload").is_some() {
            serde_json::from_value(value).map(Self::Shown)
        } else {
            serde_json::from_value(value).map(Self::ParkedChanges)
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, try_from = "serde_json::Value")]
enum ItemText {
    Change(ChangeText),
    Dml(DmlText),
}

impl TryFrom<serde_json::Value> for ItemText {
    type Error = serde_json::Error;

    /// Told apart by hand, so that an error says what is wrong with the one that was meant.
    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        if value.get("sql").is_some() {
            serde_json::from_value(value).map(Self::Dml)
        } else {
            serde_json::from_value(value).map(Self::Change)
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DmlText {
    sql: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<Option<ParameterText>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tables: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rows: Vec<RowText>,
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a parameter is a text in quotes, null, or an object such as {\"integer\": \"7\"}, {\"real\": \"0.5\"}, \
                 {\"hex\": \"00ff\"}"
)]
enum ParameterText {
    Text(String),
    Integer { integer: String },
    Real { real: String },
    Bytes { hex: String },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowText {
    table: String,
    key: BTreeMap<String, ValueText>,
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
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, try_from = "serde_json::Value")]
enum ColumnText {
    Set(SetText),
    Add(AddText),
}

impl TryFrom<serde_json::Value> for ColumnText {
    type Error = serde_json::Error;

    /// As for [`ItemText`].
    fn try_from(value: serde_json::Value) -> Result<Self, Self::Error> {
        if value.get("add").is_some() {
            serde_json::from_value(value).map(Self::Add)
        } else {
            serde_json::from_value(value).map(Self::Set)
        }
    }
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
#[serde(
    untagged,
    expecting = "values are texts in quotes, numbers too (\"1\"); bytes are {\"hex\": \"00ff\"}, NULL is null"
)]
enum ValueText {
    Text(String),
    Bytes { hex: String },
}

fn key_text(table: &Table, key: &[u8]) -> Option<BTreeMap<String, ValueText>> {
    let key = table.key().iter().zip(Reader::new(key));
    key.map(|(c, cell)| Some((c.name.clone(), value_text(cell.value()?)))).collect()
}

fn text_of(table: &Table, change: &Change<'_>) -> Option<ChangeText> {
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
            Op::End => OpText::End,
        },
        key: key_text(table, change.key)?,
        columns: columns.collect::<Option<_>>()?,
    })
}

fn value_text(bytes: &[u8]) -> ValueText {
    match std::str::from_utf8(bytes) {
        Ok(text) => ValueText::Text(text.to_owned()),
        Err(_) => ValueText::Bytes { hex: hex(bytes) },
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn dml_text(schema: &Schema, dml: &Dml<'_>) -> Option<DmlText> {
    let parameters = dml.parameters().map(|parameter| {
        Some(match parameter {
            Parameter::Null => return None,
            Parameter::Text(text) => ParameterText::Text(text.to_owned()),
            Parameter::Integer(number) => ParameterText::Integer { integer: number.to_string() },
            Parameter::Real(number) => ParameterText::Real { real: format!("{number:?}") },
            Parameter::Bytes(bytes) => ParameterText::Bytes { hex: hex(bytes) },
        })
    });
    let (mut tables, mut rows) = (Vec::new(), Vec::new());
    for (table, row) in dml.declared() {
        let table = schema.tables.get(usize::from(table.0))?;
        match row {
            None => tables.push(table.name.clone()),
            Some(key) => {
                rows.push(RowText { table: table.name.clone(), key: key_text(table, key)? });
            }
        }
    }
    Some(DmlText { sql: dml.sql().to_owned(), parameters: parameters.collect(), tables, rows })
}

fn dml_of(schema: &Schema, text: &DmlText) -> Result<Vec<u8>, ParkedError> {
    dml::checked(&text.sql, text.parameters.len()).map_err(ParkedError)?;
    let mut bytes = Vec::new();
    for parameter in text.parameters.iter().flatten() {
        if let ParameterText::Bytes { hex } = parameter {
            let read = from_hex(hex);
            bytes.push(read.ok_or_else(|| ParkedError(format!("{hex} is not hexadecimal")))?);
        }
    }
    let mut bytes = bytes.iter();
    let mut parameters = Vec::with_capacity(text.parameters.len());
    for parameter in &text.parameters {
        let number = |text: &str| ParkedError(format!("{text} is no such number"));
        parameters.push(match parameter {
            None => Parameter::Null,
            Some(ParameterText::Text(text)) => Parameter::Text(text),
            Some(ParameterText::Integer { integer }) => {
                Parameter::Integer(integer.parse().map_err(|_| number(integer))?)
            }
            Some(ParameterText::Real { real }) => {
                let value: Option<f64> = real.parse().ok().filter(|value: &f64| value.is_finite());
                Parameter::Real(value.ok_or_else(|| number(real))?)
            }
            Some(ParameterText::Bytes { .. }) => {
                Parameter::Bytes(bytes.next().expect("all of them were read above"))
            }
        });
    }
    let mut keys = Vec::with_capacity(text.rows.len());
    for row in &text.rows {
        let table = find(schema, &row.table)?;
        keys.push((table.id, key_of(table, &row.key)?));
    }
    let mut declared: Vec<Declared<'_>> = Vec::new();
    for name in &text.tables {
        declared.push((find(schema, name)?.id, None));
    }
    declared.extend(keys.iter().map(|(table, key)| (*table, Some(&key[..]))));
    if declared.is_empty() {
        return Err(ParkedError("raw SQL names the tables or rows that it touches".into()));
    }
    Ok(dml::encode(&text.sql, &parameters, &declared))
}

/// The encoded key cells of a key in text form.
fn key_of(table: &Table, text: &BTreeMap<String, ValueText>) -> Result<Vec<u8>, ParkedError> {
    if let Some(name) = text.keys().find(|name| !table.key().iter().any(|c| c.name == **name)) {
        return Err(ParkedError(format!("{name} is not in the key of table {}", table.name)));
    }
    let mut key = Vec::new();
    for (index, column) in table.key().iter().enumerate() {
        let value = text.get(&column.name).ok_or_else(|| {
            ParkedError(format!("the key of table {} lacks {}", table.name, column.name))
        })?;
        push_cell(&mut key, Cell::Value(&canonical(table, index, value)?));
    }
    Ok(key)
}

fn write_change(
    writer: &mut GroupWriter,
    table: &Table,
    change: &ChangeText,
) -> Result<(), ParkedError> {
    let key = key_of(table, &change.key)?;
    let op = match change.op {
        OpText::Insert => Op::Insert,
        OpText::Update => Op::Update,
        OpText::Delete => Op::Delete,
        OpText::End => Op::End,
    };
    if op == Op::Delete && !change.columns.is_empty() {
        return Err(ParkedError(format!("a delete from {} has columns", table.name)));
    }
    let has_time = matches!(&change.columns[..], [ColumnText::Set(SetText { value: Some(_), .. })]);
    if op == Op::End && !has_time {
        let message = format!("the end of a row of {} has one column with a time", table.name);
        return Err(ParkedError(message));
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
            let amount = table.columns[index].ty.amount(add.as_bytes());
            let amount =
                amount.map_err(|error| ParkedError(format!("{}.{name} {error}", table.name)))?;
            writer.set(index, Set::By(&amount));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Column;
    use crate::value::ColumnType;

    fn schema() -> Schema {
        let column = |name: &str| Column::named(name, ColumnType::Text { chars_max: None });
        let mut table = Table::named("t".into(), "t".into());
        (table.columns, table.key_len) = (vec![column("id"), column("v")], 1);
        Schema::new(vec![table], Vec::new())
    }

    #[test]
    fn raw_sql_is_shown_and_read_back() {
        let schema = schema();
        let parameters = [
            Parameter::Null,
            Parameter::Text("x"),
            Parameter::Integer(-1),
            Parameter::Real(0.5),
            Parameter::Bytes(b"\x00\xff"),
        ];
        let sql = "UPDATE t SET v = concat($1, $2, $3, $4, $5)";
        let mut writer = GroupWriter::new();
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"7"));
        writer.begin(TableId(0), Op::Delete, &key);
        let declared = [(TableId(0), None), (TableId(0), Some(&key[..]))];
        writer.dml(&dml::encode(sql, &parameters, &declared));
        let group = writer.finish().to_vec();
        let text = encode(&schema, &group).unwrap();
        let shown = r#"{"sql":"UPDATE t SET v = concat($1, $2, $3, $4, $5)","parameters":[null,"x",{"integer":"-1"},{"real":"0.5"},{"hex":"00ff"}],"tables":["t"],"rows":[{"table":"t","key":{"id":"7"}}]}"#;
        assert!(text.ends_with(&format!(",{shown}]}}")), "{text}");
        assert_eq!(decode(&schema, &text).unwrap(), group);

        for (from, to, why) in [
            ("$5)", "$6)", "$6"),
            ("UPDATE t", "DROP TABLE t; UPDATE t", "one statement"),
            ("\"tables\":[\"t\"]", "\"tables\":[\"u\"]", "no table u"),
            ("{\"id\":\"7\"}", "{\"v\":\"7\"}", "v is not in the key"),
            ("\"0.5\"", "\"inf\"", "inf"),
            ("00ff", "00f", "00f"),
            ("\"sql\"", "\"more\":1,\"sql\"", "more"),
        ] {
            let edited = text.replace(from, to);
            let refused = decode(&schema, &edited).unwrap_err().to_string();
            assert!(refused.contains(why), "{to}: {refused}");
        }
        let insert = |columns: &str, key: &str| {
            format!(
                r#"{{"changes":[{{"table":"t","op":"insert","key":{{"id":{key}}},"columns":[{columns}]}}]}}"#
            )
        };
        for (columns, key, why) in [
            (r#"{"name":"v","value":1}"#, r#""7""#, "values are texts in quotes"),
            (r#"{"name":"v","value":"1"}"#, "7", "values are texts in quotes"),
            (r#"{"name":"v","add":1}"#, r#""7""#, "expected a string"),
            (r#"{"name":"v","valu":"1"}"#, r#""7""#, "valu"),
        ] {
            let refused = decode(&schema, &insert(columns, key)).unwrap_err().to_string();
            assert!(refused.contains(why), "{columns}: {refused}");
        }
        assert!(decode(&schema, &insert(r#"{"name":"v","value":null}"#, r#""7""#)).is_ok());
        let number = text.replace("[null,", "[1,");
        assert!(
            decode(&schema, &number).unwrap_err().to_string().contains("a parameter is a text")
        );
        let nothing = r#"{"changes":[{"sql":"DELETE FROM t"}]}"#;
        assert!(decode(&schema, nothing).unwrap_err().to_string().contains("touches"));
    }
}
