//! Raw SQL as programs give it: its parameters and what it is declared to touch.

use super::view::canonical_key;
use super::{Error, ErrorKind, Key, Value};
use crate::dml;
use crate::engine::key_cells;
use crate::schema::{Schema, Table, TableId};
use std::collections::HashSet;

/// A parameter of raw SQL. Made from numbers, texts, bytes, `Option`s and [`Value`]s; what the origin reads from text
/// (decimals, dates, UUIDs, JSON) is given as text.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    /// SQL NULL.
    Null,
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number; it must be finite.
    Real(f64),
    /// Bytes.
    Bytes(Vec<u8>),
}

impl Parameter {
    fn as_dml(&self) -> dml::Parameter<'_> {
        match self {
            Self::Null => dml::Parameter::Null,
            Self::Text(text) => dml::Parameter::Text(text),
            Self::Integer(number) => dml::Parameter::Integer(*number),
            Self::Real(number) => dml::Parameter::Real(*number),
            Self::Bytes(bytes) => dml::Parameter::Bytes(bytes),
        }
    }
}

impl<T: Into<Self>> From<Option<T>> for Parameter {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<Vec<u8>> for Parameter {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&[u8]> for Parameter {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<Value> for Parameter {
    fn from(value: Value) -> Self {
        match value.as_bytes() {
            None => Self::Null,
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self::Text(text.to_owned()),
                Err(_) => Self::Bytes(bytes.to_vec()),
            },
        }
    }
}

macro_rules! parameters {
    ($variant:ident: $($from:ty),+) => {$(
        impl From<$from> for Parameter {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )+};
}

parameters!(Integer: bool, i8, i16, i32, i64, u8, u16, u32);
parameters!(Real: f32, f64);
parameters!(Text: &str, String);

/// What raw SQL reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Declared {
    /// One row, whether or not it exists.
    Row(Key),
    /// Any row of a table.
    Table(String),
}

impl Declared {
    /// One row.
    pub fn row(key: impl Into<Key>) -> Self {
        Self::Row(key.into())
    }

    /// Any row of a table.
    pub fn table(name: impl Into<String>) -> Self {
        Self::Table(name.into())
    }
}

/// Raw SQL of a session, checked as far as that is possible without the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dml {
    sql: String,
    parameters: usize,
    bytes: Vec<u8>,
}

impl Dml {
    /// The SQL, with its parameters as `$1` to `$n`.
    pub fn sql(&self) -> &str {
        &self.sql
    }

    /// How many parameters it takes.
    pub fn parameter_count(&self) -> usize {
        self.parameters
    }

    /// As it stands in a write group: see [`crate::dml`].
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a session's raw SQL covers: its rows and tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Covered {
    rows: HashSet<Key>,
    tables: HashSet<TableId>,
}

impl Covered {
    /// Whether it is not known any more what a row holds.
    pub(super) fn contains(&self, schema: &Schema, key: &Key) -> Result<bool, Error> {
        if self.rows.is_empty() && self.tables.is_empty() {
            return Ok(false);
        }
        let table = key_cells(schema, key.0.as_bytes())?.0;
        Ok(self.rows.contains(key) || self.tables.contains(&table.id))
    }

    /// Takes in raw SQL, and encodes it.
    ///
    /// # Errors
    /// It does not fit the schema.
    pub(super) fn add(
        &mut self,
        schema: &Schema,
        sql: &str,
        parameters: &[Parameter],
        declared: &[Declared],
    ) -> Result<Dml, Error> {
        let invalid = |why: String| Error::new(ErrorKind::Invalid, why);
        dml::checked(sql, parameters.len()).map_err(invalid)?;
        if declared.is_empty() {
            return Err(invalid("raw SQL declares the rows or tables that it touches".into()));
        }
        if parameters.iter().any(|p| matches!(p, Parameter::Real(number) if !number.is_finite())) {
            return Err(invalid("a parameter of raw SQL is no finite number".into()));
        }
        let mut named: Vec<(TableId, Option<Vec<u8>>)> = Vec::new();
        for declared in declared {
            match declared {
                Declared::Row(key) => {
                    let key = canonical_key(schema, key)?;
                    let (table, cells) = key_cells(schema, key.0.as_bytes())?;
                    named.push((table.id, Some(cells)));
                    self.rows.insert(key);
                }
                Declared::Table(name) => {
                    let table = schema.find(name.as_bytes());
                    let table =
                        table.ok_or_else(|| invalid(format!("there is no table '{name}'")))?;
                    named.push((table.id, None));
                    self.tables.insert(table.id);
                }
            }
        }
        for (table, _) in &named {
            let mut along = Vec::new();
            add_cascades(schema, schema.table(*table), &mut along);
            self.tables.extend(along);
        }
        let values: Vec<dml::Parameter<'_>> = parameters.iter().map(Parameter::as_dml).collect();
        let named: Vec<dml::Declared<'_>> =
            named.iter().map(|(table, key)| (*table, key.as_deref())).collect();
        let bytes = dml::encode(sql, &values, &named);
        Ok(Dml { sql: sql.to_owned(), parameters: parameters.len(), bytes })
    }
}

/// The tables whose rows the origin changes along with those of another.
fn add_cascades(schema: &Schema, table: &Table, along: &mut Vec<TableId>) {
    for &child in &table.class.cascades_to {
        if !along.contains(&child) {
            along.push(child);
            add_cascades(schema, schema.table(child), along);
        }
    }
}

/// Checks that raw SQL writes no other tables than it declares, as far as the origin tells which ones it `writes`.
///
/// # Errors
/// The table that it does not declare.
pub(super) fn check_writes(schema: &Schema, dml: &Dml, writes: &[String]) -> Result<(), Error> {
    let read = dml::Dml::decode(&dml.bytes);
    let declared: Vec<&Table> = read
        .iter()
        .flat_map(|dml| dml.declared())
        .filter_map(|(table, _)| schema.tables.get(usize::from(table.0)))
        .collect();
    // What triggers write is declared in the settings, or waited for.
    if declared.iter().any(|table| table.class.opaque.is_some()) {
        return Ok(());
    }
    let mut along: Vec<TableId> = declared.iter().map(|table| table.id).collect();
    for table in &declared {
        add_cascades(schema, table, &mut along);
    }
    let is_covered = |name: &&String| along.iter().any(|id| schema.table(*id).name == **name);
    match writes.iter().find(|name| !is_covered(name)) {
        None => Ok(()),
        Some(table) => Err(Error::new(
            ErrorKind::Invalid,
            format!("the SQL writes the table {table}, which it does not declare"),
        )),
    }
}
