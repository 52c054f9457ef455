//! The names behind the numbers in journaled groups, and the columns' types, so that a group is understood after the schema
//! changed.

use crate::cells::Reader;
use crate::change::{Change, GroupWriter, Item, Op, Set, builds_on, items};
use crate::dml::{self, Dml};
use crate::schema::{Column, ColumnDefault, Schema, Table, TableId, Unreachable};
use crate::value::ColumnType;
use serde::{Deserialize, Serialize};

/// Tables and columns in the order of their numbers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Catalog {
    /// Of the groups: 1, the first, was not written down; 2 knows raw SQL, 3 what a group builds on besides its rows, 4 what
    /// it tells of commands that are carried out once, 5 rows that end. Builds that know less see that their own catalog is
    /// another one, and then look at each group before they take it.
    #[serde(default = "first_format")]
    format: u32,
    tables: Vec<CatalogTable>,
}

const FORMAT: u32 = 5;

fn first_format() -> u32 {
    1
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CatalogTable {
    name: String,
    key_len: usize,
    columns: Vec<String>,
    /// What the origin calls the columns' types; earlier versions left them out.
    #[serde(default)]
    types: Vec<String>,
}

impl Catalog {
    /// The catalog of a schema.
    pub fn of(schema: &Schema) -> Self {
        let tables = schema.reachable().iter().map(|table| CatalogTable {
            name: table.name.clone(),
            key_len: table.key_len,
            columns: table.columns.iter().map(|column| column.name.clone()).collect(),
            types: table.columns.iter().map(|column| column.type_name.clone()).collect(),
        });
        Self { format: FORMAT, tables: tables.collect() }
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
        if self.format > FORMAT {
            return Err(format!(
                "a newer build of Destage wrote it, whose groups have format {}, and this one knows {FORMAT}",
                self.format
            ));
        }
        let key_len = |id: TableId| self.tables.get(usize::from(id.0)).map(|table| table.key_len);
        let mut writer = GroupWriter::new();
        writer.builds_on(builds_on(bytes).into_iter());
        for item in items(bytes, key_len) {
            match item.map_err(|error| error.to_string())? {
                Item::Change(change) => self.translate_change(schema, &change, &mut writer)?,
                Item::Dml(dml) => writer.dml(&self.translate_dml(schema, &dml)?),
            }
        }
        Ok(writer.finish().to_vec())
    }

    /// The table that has taken the place of an old one, with that.
    fn table<'a>(
        &'a self,
        schema: &'a Schema,
        id: TableId,
    ) -> Result<(&'a CatalogTable, &'a Table), String> {
        let old = self.tables.get(usize::from(id.0)).ok_or("a table number is out of range")?;
        let table = schema.find(old.name.as_bytes()).ok_or_else(|| {
            match schema.unreachable.iter().find(|table| table.name == old.name) {
                Some(Unreachable { name, reason }) => {
                    format!("the table {name} cannot be reached any more: {reason}")
                }
                None => format!("the table {} is gone", old.name),
            }
        })?;
        let new_key: Vec<&str> = table.key().iter().map(|c| c.name.as_str()).collect();
        if old.columns[..old.key_len] != new_key[..] {
            return Err(format!("the key of {} is another one now", old.name));
        }
        Ok((old, table))
    }

    fn translate_change(
        &self,
        schema: &Schema,
        change: &Change<'_>,
        writer: &mut GroupWriter,
    ) -> Result<(), String> {
        let (old, table) = self.table(schema, change.table)?;
        debug_assert_eq!(Reader::new(change.key).count(), old.key_len);
        writer.begin(table.id, change.op, change.key);
        if change.op == Op::Delete {
            return Ok(());
        }
        for (column, set) in change.sets() {
            let name = old.columns.get(column).ok_or("a column number is out of range")?;
            let number = table
                .column(name.as_bytes())
                .ok_or_else(|| format!("the column {}.{name} is gone", old.name))?;
            let now = &table.columns[number];
            if matches!(set, Set::By(_)) && !now.ty.is_number() {
                let was = old.types.get(column).map_or("a number", String::as_str);
                return Err(format!(
                    "the column {}.{name} was {was}, and an increment of it has no place in {}",
                    old.name, now.type_name
                ));
            }
            writer.set(number, set);
        }
        Ok(())
    }

    /// The SQL stays as it was given; what it declares is found by its names.
    fn translate_dml(&self, schema: &Schema, dml: &Dml<'_>) -> Result<Vec<u8>, String> {
        let parameters: Vec<dml::Parameter<'_>> = dml.parameters().collect();
        let declared = dml.declared().map(|(id, row)| Ok((self.table(schema, id)?.1.id, row)));
        let declared: Vec<dml::Declared<'_>> = declared.collect::<Result<_, String>>()?;
        Ok(dml::encode(dml.sql(), &parameters, &declared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::change::{builds_on, changes};
    use destage_core::Lsn;

    fn catalog(format: u32) -> Catalog {
        let table = CatalogTable {
            name: "t".into(),
            key_len: 1,
            columns: vec!["id".into()],
            types: Vec::new(),
        };
        Catalog { format, tables: vec![table] }
    }

    #[test]
    fn a_table_that_is_there_and_out_of_reach_is_not_called_gone() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"7"));
        let mut writer = GroupWriter::new();
        writer.begin(TableId(0), Op::Delete, &key);
        let group = writer.finish();
        let table = |name: &str| Unreachable { name: name.into(), reason: "it is MyISAM".into() };
        for (unreachable, told) in [
            (table("t"), "the table t cannot be reached any more: it is MyISAM"),
            (table("u"), "the table t is gone"),
        ] {
            let schema = Schema::new(Vec::new(), vec![unreachable]);
            assert_eq!(catalog(FORMAT).translate(&schema, group).unwrap_err(), told);
        }
    }

    #[test]
    fn what_a_group_builds_on_stays_under_another_catalog_and_groups_of_newer_formats_are_refused()
    {
        let schema = catalog(FORMAT).to_schema();
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"7"));
        for on in [&[][..], &[Lsn(3), Lsn(9)]] {
            let mut writer = GroupWriter::new();
            writer.builds_on(on.iter().copied());
            writer.begin(TableId(0), Op::Delete, &key);
            let group = writer.finish();
            for format in 1..=FORMAT {
                let translated = catalog(format).translate(&schema, group).unwrap();
                assert_eq!(builds_on(&translated), on);
                assert_eq!(changes(&translated, |_| Some(1)).filter(Result::is_ok).count(), 1);
            }
            let refused = catalog(FORMAT + 1).translate(&schema, group).unwrap_err();
            assert!(refused.contains("newer build"), "{refused}");
        }
    }
}
