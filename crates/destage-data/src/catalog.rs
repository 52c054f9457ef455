//! The names behind the numbers in journaled groups, so that a group is understood after the schema changed.

use crate::cells::Reader;
use crate::change::{GroupWriter, Op, changes};
use crate::schema::{Column, ColumnDefault, Schema, Table, TableId};
use crate::value::ColumnType;
use serde::{Deserialize, Serialize};

/// Tables and columns in the order of their numbers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    tables: Vec<CatalogTable>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CatalogTable {
    name: String,
    key_len: usize,
    columns: Vec<String>,
}

impl Catalog {
    /// The catalog of a schema.
    pub fn of(schema: &Schema) -> Self {
        let tables = schema.reachable().iter().map(|table| CatalogTable {
            name: table.name.clone(),
            key_len: table.key_len,
            columns: table.columns.iter().map(|column| column.name.clone()).collect(),
        });
        Self { tables: tables.collect() }
    }

    /// Its bytes in the journal.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("names serialise")
    }

    /// A catalog from its bytes; `None` if they are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// A schema with these names and nothing else: enough to show groups, not to execute anything.
    pub fn to_schema(&self) -> Schema {
        let column = |name: &String| Column {
            name: name.clone(),
            sql_name: name.clone(),
            ty: ColumnType::Opaque,
            type_name: String::new(),
            not_null: false,
            default: ColumnDefault::None,
            generated: false,
            structural: false,
            checked: false,
        };
        let tables = self.tables.iter().map(|table| {
            let mut named = Table::named(table.name.clone(), table.name.clone());
            named.columns = table.columns.iter().map(column).collect();
            named.key_len = table.key_len;
            named
        });
        Schema::new(tables.collect(), Vec::new())
    }

    /// A group written under this catalog, in the numbers of `schema`.
    ///
    /// # Errors
    /// What the schema lacks now.
    pub fn translate(&self, schema: &Schema, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let key_len = |id: TableId| self.tables.get(usize::from(id.0)).map(|table| table.key_len);
        let mut writer = GroupWriter::new();
        for change in changes(bytes, key_len) {
            let change = change.map_err(|error| error.to_string())?;
            let old = &self.tables[usize::from(change.table.0)];
            let table = schema
                .find(old.name.as_bytes())
                .ok_or_else(|| format!("the table {} is gone", old.name))?;
            let new_key: Vec<&str> = table.key().iter().map(|c| c.name.as_str()).collect();
            if old.columns[..old.key_len] != new_key[..] {
                return Err(format!("the primary key of {} is another one now", old.name));
            }
            debug_assert_eq!(Reader::new(change.key).count(), old.key_len);
            writer.begin(table.id, change.op, change.key);
            if change.op == Op::Delete {
                continue;
            }
            for (column, set) in change.sets() {
                let name = old.columns.get(column).ok_or("a column number is out of range")?;
                let column = table
                    .column(name.as_bytes())
                    .ok_or_else(|| format!("the column {}.{name} is gone", old.name))?;
                writer.set(column, set);
            }
        }
        Ok(writer.finish().to_vec())
    }
}
