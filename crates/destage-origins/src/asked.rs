//! What is asked before a write is acknowledged, table by table: whether the rows are there that foreign keys refer to, and
//! whether other rows have the values of unique columns. And what is not asked: whether a row is there that is made.

use crate::schema::{ForeignKey, Schema, Table, Unique};
use crate::settings::TableSettings;
use crate::value::ColumnType;
use std::collections::BTreeMap;

impl Schema {
    /// The rows that foreign keys of these tables refer to are looked for before a write is acknowledged.
    ///
    /// # Errors
    /// Names the table, and why there is nothing to look for.
    pub fn ask_foreign_keys(
        &mut self,
        settings: &BTreeMap<String, TableSettings>,
    ) -> Result<(), String> {
        for (name, settings) in settings.iter().filter(|(_, table)| table.ask_foreign_keys) {
            let Some(table) = self.find(name.as_bytes()) else { continue };
            let id = table.id;
            let mut kept = table.foreign_keys.iter().map(|key| self.fk_left_to_origin(table, key));
            let first = kept.next();
            let refused = if self.one_row_groups {
                "MongoDB has no foreign keys: leave it out".to_owned()
            } else if settings.blind {
                "its rows are written blind, so nobody knows what they refer to".to_owned()
            } else if let Some(Some(why)) = first
                && kept.all(|why| why.is_some())
            {
                format!("its foreign keys are all left to the origin, the first since {why}")
            } else if first.is_none() {
                "it has no foreign key to a table that keys reach: leave it out".to_owned()
            } else {
                String::new()
            };
            if !refused.is_empty() {
                return Err(format!("[table.{name}] fk = \"ask\": {refused}"));
            }
            self.tables[usize::from(id.0)].asks_foreign_keys = true;
        }
        Ok(())
    }

    /// The foreign keys of a table whose rows are looked for before a write is acknowledged.
    pub fn foreign_keys_asked<'t>(
        &self,
        table: &'t Table,
    ) -> impl Iterator<Item = &'t ForeignKey> + use<'t, '_> {
        let keys = table.foreign_keys.iter().filter(|_| table.asks_foreign_keys);
        keys.filter(|key| self.fk_left_to_origin(table, key).is_none())
    }

    /// Why the origin alone can judge a foreign key.
    pub fn fk_left_to_origin(&self, table: &Table, key: &ForeignKey) -> Option<&'static str> {
        let parent = self.table(key.parent);
        let names_key = key.parent_columns.len() == parent.key_len
            && (0..parent.key_len).all(|column| key.parent_columns.contains(&column));
        if table.class.opaque.is_some() {
            Some("triggers or rules may change the row first")
        } else if !names_key {
            Some("it refers to other columns than the key")
        } else if !key.exact {
            Some("equal values of its columns may be written differently")
        } else {
            None
        }
    }
}

impl Schema {
    /// Other rows with the values of unique columns of these tables are looked for before a write is acknowledged.
    ///
    /// # Errors
    /// Names the table, and why there is nothing to look for.
    pub fn ask_uniques(
        &mut self,
        settings: &BTreeMap<String, TableSettings>,
    ) -> Result<(), String> {
        for (name, settings) in settings.iter().filter(|(_, table)| table.ask_unique) {
            let Some(table) = self.find(name.as_bytes()) else { continue };
            let id = table.id;
            let mut left = table.uniques.iter().map(|unique| table.unique_left_to_origin(unique));
            let refused = if self.one_row_groups {
                "MongoDB is not asked for that: it rejects the second document, which is parked; leave it out".to_owned()
            } else if settings.blind {
                "its rows are written blind".to_owned()
            } else if left.any(|why| why.is_none()) {
                String::new()
            } else if let Some(Some(why)) =
                table.uniques.first().map(|unique| table.unique_left_to_origin(unique))
            {
                format!("its unique indexes are all left to the origin, the first since {why}")
            } else {
                "it has no unique index besides its key: leave it out".to_owned()
            };
            if !refused.is_empty() {
                return Err(format!("[table.{name}] unique = \"ask\": {refused}"));
            }
            self.tables[usize::from(id.0)].asks_unique = true;
            self.asks_unique = true;
        }
        Ok(())
    }

    /// The unique indexes of a table that are judged before a write is acknowledged, with their places among all of its.
    pub fn uniques_asked<'t>(
        &self,
        table: &'t Table,
    ) -> impl Iterator<Item = (usize, &'t Unique)> + use<'t> {
        let uniques = table.uniques.iter().enumerate().filter(|_| table.asks_unique);
        uniques.filter(|(_, unique)| table.unique_left_to_origin(unique).is_none())
    }
}

impl Schema {
    /// New rows of these tables are merged with what they meet at the origin.
    ///
    /// # Errors
    /// Names the table, and why nothing can be merged.
    pub fn merge_new_rows(
        &mut self,
        settings: &BTreeMap<String, TableSettings>,
    ) -> Result<(), String> {
        for (name, settings) in settings.iter().filter(|(_, table)| table.merges_new) {
            let Some(table) = self.find(name.as_bytes()) else { continue };
            let id = table.id;
            if settings.blind {
                return Err(format!(
                    "[table.{name}] new = \"upsert\": its rows are written blind, so none is known to be new"
                ));
            }
            self.tables[usize::from(id.0)].merges_new = true;
            self.merges_new = true;
        }
        Ok(())
    }
}

impl Table {
    /// Why the origin alone can judge a unique index.
    pub fn unique_left_to_origin(&self, unique: &Unique) -> Option<&'static str> {
        if self.class.opaque.is_some() {
            Some("triggers or rules may change the row first")
        } else if !unique.is_whole || unique.columns.is_empty() {
            Some(
                "it has a condition, expressions or a collation of its own, or looks at the beginning of values",
            )
        } else if unique.columns.iter().any(|&at| self.columns[at].ty == ColumnType::Opaque) {
            Some("it has a column whose values only the origin can compare")
        } else {
            None
        }
    }
}

impl Unique {
    /// What it says, with its name before it.
    pub fn shown(&self, table: &Table) -> String {
        let columns: Vec<&str> =
            self.columns.iter().map(|&column| table.columns[column].name.as_str()).collect();
        format!("{} UNIQUE ({})", self.name, columns.join(", "))
    }
}

impl ForeignKey {
    /// What it says, with its name before it if it has one.
    pub fn shown(&self, table: &Table, parent: &Table) -> String {
        let columns: Vec<&str> =
            self.columns.iter().map(|&column| table.columns[column].name.as_str()).collect();
        let name = self.name.as_ref().map_or(String::new(), |name| format!("{name} "));
        format!("{name}FOREIGN KEY ({}) REFERENCES {}", columns.join(", "), parent.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Column, TableId};

    fn table(name: &str, columns: usize) -> Table {
        let mut table = Table::named(name.into(), name.into());
        table.key_len = 1;
        let column = |at: usize| Column {
            structural: true,
            ..Column::named(&format!("c{at}"), ColumnType::Int { min: 0, max: 99 })
        };
        table.columns = (0..columns).map(column).collect();
        table
    }

    fn key(column: usize, parent_column: usize, exact: bool) -> ForeignKey {
        let (name, parent) = (Some(format!("fk{column}")), TableId(0));
        ForeignKey {
            name,
            columns: vec![column],
            parent,
            parent_columns: vec![parent_column],
            exact,
        }
    }

    /// A parent, and a child with these foreign keys to it.
    fn schema(keys: Vec<ForeignKey>) -> Schema {
        let mut child = table("child", 4);
        (child.references, child.foreign_keys) = (vec![TableId(0)], keys);
        Schema::new(vec![table("parent", 2), child], vec![])
    }

    fn asked(schema: &mut Schema, blind: bool) -> Result<(), String> {
        let table = TableSettings { ask_foreign_keys: true, blind, ..TableSettings::default() };
        schema.ask_foreign_keys(&BTreeMap::from([("child".to_owned(), table)]))
    }

    #[test]
    fn those_are_asked_for_that_name_a_primary_key_in_one_way_only() {
        let mut schema = schema(vec![key(1, 0, true), key(2, 1, true), key(3, 0, false)]);
        assert_eq!(schema.foreign_keys_asked(schema.table(TableId(1))).count(), 0, "nobody asks");
        asked(&mut schema, false).unwrap();
        let child = schema.table(TableId(1));
        let names = schema.foreign_keys_asked(child).filter_map(|key| key.name.as_deref());
        let names: Vec<&str> = names.collect();
        assert_eq!(names, ["fk1"]);
        let shown = child.foreign_keys[0].shown(child, schema.table(TableId(0)));
        assert_eq!(shown, "fk1 FOREIGN KEY (c1) REFERENCES parent");
        schema.tables[1].class.opaque = Some("it has trigger t".into());
        assert_eq!(schema.foreign_keys_asked(schema.table(TableId(1))).count(), 0);
    }

    #[test]
    fn unique_indexes_are_asked_for_where_equal_values_alone_violate_them() {
        let mut schema = schema(Vec::new());
        let settings = |blind| {
            let table = TableSettings { ask_unique: true, blind, ..TableSettings::default() };
            BTreeMap::from([("child".to_owned(), table)])
        };
        let none = schema.ask_uniques(&settings(false)).unwrap_err();
        assert!(none.contains("it has no unique index"), "{none}");
        let unique = |name: &str, columns: Vec<usize>, is_whole| Unique {
            name: name.into(),
            columns,
            is_whole,
        };
        schema.tables[1].uniques = vec![unique("part", vec![1], false)];
        let part = schema.ask_uniques(&settings(false)).unwrap_err();
        assert!(
            part.contains("all left to the origin, the first since it has a condition"),
            "{part}"
        );
        schema.tables[1].uniques.push(unique("both", vec![1, 2], true));
        assert!(schema.ask_uniques(&settings(true)).unwrap_err().contains("written blind"));
        schema.ask_uniques(&settings(false)).unwrap();
        let child = schema.table(TableId(1));
        let asked: Vec<_> = schema.uniques_asked(child).collect();
        assert_eq!(asked, [(1, &child.uniques[1])]);
        assert_eq!(asked[0].1.shown(child), "both UNIQUE (c1, c2)");
    }

    #[test]
    fn a_table_of_which_nothing_can_be_asked_is_refused_with_the_reason() {
        let told = |mut schema: Schema, blind| asked(&mut schema, blind).unwrap_err();
        let none = told(schema(Vec::new()), false);
        assert!(none.starts_with("[table.child] fk = \"ask\": it has no foreign key"), "{none}");
        let blind = told(schema(vec![key(1, 0, true)]), true);
        assert!(blind.contains("written blind"), "{blind}");
        let left = told(schema(vec![key(1, 1, true), key(2, 0, false)]), false);
        assert!(left.ends_with("since it refers to other columns than the key"), "{left}");
        let mut documents = schema(Vec::new());
        documents.one_row_groups = true;
        let mongo = told(documents, false);
        assert!(mongo.contains("MongoDB has no foreign keys"), "{mongo}");
    }
}
