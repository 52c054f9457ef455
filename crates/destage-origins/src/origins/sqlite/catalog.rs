//! What SQLite's catalogue says about the tables.

use super::error::classify;
use super::{checks, tables, types};
use crate::cells::Reader;
use crate::contract::OriginError;
use crate::defaults::Formula;
use crate::origins::quote::{identifier, join};
use crate::schema::{
    Column, ColumnDefault, ForeignKey, NO_KEY, Schema, Table, TableId, Unique, Unreachable,
};
use crate::triggers::{self, Trigger, sqlite};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Reads the catalogue in one snapshot.
pub(super) fn read(connection: &Connection) -> std::result::Result<Schema, OriginError> {
    tables::snapshot(connection, |connection| {
        Catalog { connection }.schema().map_err(|e| classify(&e, "cannot read the catalogue"))
    })
}

struct Catalog<'c> {
    connection: &'c Connection,
}

/// A table or view as `pragma_table_list` gives it.
struct Listed {
    name: String,
    kind: String,
    without_rowid: bool,
    is_strict: bool,
    sql: String,
}

/// A table with what later steps need.
struct Found {
    table: Table,
    sql: String,
}

/// A foreign key by names.
struct Reference {
    parent: String,
    pairs: Vec<(String, Option<String>)>,
    on_update: String,
    on_delete: String,
}

impl Catalog<'_> {
    fn schema(&self) -> Result<Schema> {
        let mut found = Vec::new();
        let mut unreachable = Vec::new();
        for listed in self.list()? {
            let name = listed.name.clone();
            match self.table(listed)? {
                Ok(table) => found.push(table),
                Err(reason) => unreachable.push(Unreachable { name, reason }),
            }
        }
        found.sort_by(|a, b| a.table.name.cmp(&b.table.name));
        self.relate(&mut found)?;
        Ok(Schema::new(found.into_iter().map(|f| f.table).collect(), unreachable))
    }

    fn list(&self) -> Result<Vec<Listed>> {
        let mut statement = self.connection.prepare(
            "SELECT l.name, l.type, l.wr, l.strict, coalesce(m.sql, '') FROM pragma_table_list AS l \
             LEFT JOIN sqlite_master AS m ON m.name = l.name AND m.type IN ('table', 'view') \
             WHERE l.schema = 'main' AND l.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
             ORDER BY l.name",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Listed {
                name: row.get(0)?,
                kind: row.get(1)?,
                without_rowid: row.get(2)?,
                is_strict: row.get(3)?,
                sql: row.get(4)?,
            })
        })?;
        let ours = |name: &str| tables::TABLES.iter().any(|own| own.eq_ignore_ascii_case(name));
        rows.filter(|listed| !listed.as_ref().is_ok_and(|l| ours(&l.name))).collect()
    }

    /// One table without its relations, or why it cannot be reached.
    fn table(&self, listed: Listed) -> Result<std::result::Result<Found, String>> {
        match listed.kind.as_str() {
            "table" => {}
            "view" => return Ok(Err("it is a view".to_owned())),
            "virtual" => return Ok(Err("it is a virtual table".to_owned())),
            _ => return Ok(Err("it belongs to a virtual table".to_owned())),
        }
        let sql_name = identifier(&listed.name);
        let mut table = Table::named(listed.name, sql_name);
        self.columns(&mut table, listed.is_strict)?;
        let has_primary = table.key_len > 0;
        if !has_primary && !self.take_unique_key(&mut table)? {
            return Ok(Err(NO_KEY.to_owned()));
        }
        let has_key_index = self.indexes(&mut table)?;
        let key = &table.columns[0];
        if has_primary
            && table.key_len == 1
            && !listed.without_rowid
            && !has_key_index
            && key.type_name.eq_ignore_ascii_case("INTEGER")
        {
            table.generated_key = Some(0);
        }
        if let Some(reason) = self.key_trouble(&table)? {
            return Ok(Err(reason));
        }
        for (index, checked) in checks::checked(&listed.sql, &table).into_iter().enumerate() {
            table.columns[index].checked |= checked && index >= table.key_len;
        }
        table.checks = checks::constraints(&listed.sql, &table);
        if let Err(error) = self.try_writes(&table) {
            return Ok(Err(format!("SQLite cannot write to it: {error}")));
        }
        Ok(Ok(Found { table, sql: listed.sql }))
    }

    fn columns(&self, table: &mut Table, is_strict: bool) -> Result<()> {
        let mut statement = self.connection.prepare(
            "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?1) \
             ORDER BY pk = 0, pk, cid",
        )?;
        let mut rows = statement.query([&table.name])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(0)?;
            let type_name: String = row.get(1)?;
            let in_key = row.get::<_, i64>(4)? > 0;
            table.key_len += usize::from(in_key);
            let mut column = Column {
                sql_name: identifier(&name),
                name,
                ty: types::column_type(&type_name, is_strict),
                type_name,
                // Old tables let NULL into their keys; no key reaches such rows.
                not_null: row.get::<_, bool>(2)? || in_key,
                default: ColumnDefault::None,
                generated: matches!(row.get::<_, i64>(5)?, 2 | 3),
                structural: in_key,
                checked: false,
            };
            if let Some(text) = row.get::<_, Option<String>>(3)?
                && !in_key
            {
                column.default = self.default(&text, &column)?;
            }
            table.columns.push(column);
        }
        Ok(())
    }

    /// Literals are evaluated by SQLite; everything else is computed anew for each row.
    fn default(&self, text: &str, column: &Column) -> Result<ColumnDefault> {
        if !checks::is_literal(text) {
            let formula = formula(text).and_then(|formula| formula.fitting(&column.ty, true));
            return Ok(formula.map_or(ColumnDefault::Computed, ColumnDefault::Formula));
        }
        let mut statement = self.connection.prepare(&format!("SELECT {text}"))?;
        let mut rows = statement.query([])?;
        let Some(row) = rows.next()? else { return Ok(ColumnDefault::Computed) };
        let value = row.get_ref(0)?;
        if value == ValueRef::Null {
            return Ok(ColumnDefault::None);
        }
        let mut cell = Vec::new();
        types::push_value(&mut cell, value);
        let stored = Reader::new(&cell).cell().and_then(|c| c.value()).unwrap_or_default();
        Ok(match column.ty.canonical(stored) {
            Ok(value) => ColumnDefault::Constant(value.into_owned()),
            Err(_) => ColumnDefault::Computed,
        })
    }

    /// Marks what the indexes look at. Returns whether one of them is the primary key's own.
    fn indexes(&self, table: &mut Table) -> Result<bool> {
        let mut statement = self
            .connection
            .prepare("SELECT name, \"unique\", origin, partial FROM pragma_index_list(?1)")?;
        let mut rows = statement.query([&table.name])?;
        let mut has_key_index = false;
        while let Some(row) = rows.next()? {
            if row.get_ref(2)?.as_str() == Ok("pk") {
                has_key_index = true;
                continue;
            }
            let (unique, partial): (bool, bool) = (row.get(1)?, row.get(3)?);
            let name: String = row.get(0)?;
            if table.key_index.as_ref() == Some(&name) {
                continue;
            }
            let (columns, expression) = self.index_columns(&name)?;
            table.has_unique |= unique;
            if unique {
                let of = |column: &String| table.columns.iter().position(|c| c.name == *column);
                let found: Vec<usize> = columns.iter().filter_map(of).collect();
                // The question would compare by the columns' collations.
                let is_whole = !partial
                    && !expression
                    && found.len() == columns.len()
                    && !self.names_collation(&name)?;
                table.uniques.push(Unique { name, columns: found, is_whole });
            }
            for (i, column) in table.columns.iter_mut().enumerate() {
                let everything = expression || partial;
                column.checked |= everything && i >= table.key_len;
                column.structural |= unique && (everything || columns.contains(&column.name));
            }
        }
        Ok(has_key_index)
    }

    /// Whether CREATE INDEX names a collation. A UNIQUE of the table's own has no such text.
    fn names_collation(&self, index: &str) -> Result<bool> {
        let mut statement = self
            .connection
            .prepare("SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?1")?;
        let sql: Option<String> = statement.query_row([index], |row| row.get(0))?;
        Ok(sql.is_some_and(|sql| sql.to_ascii_uppercase().contains("COLLATE")))
    }

    /// Puts the columns of a unique index in front, as the key: all of them NOT NULL and compared byte for byte. Of several
    /// indexes it is the one with the fewest columns, then the first by name. Whether there is one.
    fn take_unique_key(&self, table: &mut Table) -> Result<bool> {
        let mut statement = self.connection.prepare(
            "SELECT l.name FROM pragma_index_list(?1) AS l WHERE l.\"unique\" AND NOT l.partial \
             AND NOT EXISTS (SELECT 1 FROM pragma_index_xinfo(l.name) AS x WHERE x.key = 1 \
                 AND (x.cid < 0 OR x.coll <> 'BINARY' COLLATE NOCASE)) ORDER BY l.name",
        )?;
        let names = statement.query_map([&table.name], |row| row.get(0))?;
        let mut keys: Vec<(String, Vec<usize>)> = Vec::new();
        for name in names.collect::<Result<Vec<String>>>()? {
            let (columns, _) = self.index_columns(&name)?;
            let places: Option<Vec<usize>> = columns
                .iter()
                .map(|name| {
                    let mut columns = table.columns.iter();
                    columns.position(|c| c.name == *name && c.not_null && !c.generated)
                })
                .collect();
            // A column may be compared otherwise than its index is.
            let mut is_exact = true;
            for column in &columns {
                is_exact &= self.is_binary(&table.name, column)?;
            }
            keys.extend(places.filter(|_| is_exact).map(|places| (name, places)));
        }
        let Some((name, key)) = keys.into_iter().min_by_key(|(_, key)| key.len()) else {
            return Ok(false);
        };
        let others = (0..table.columns.len()).filter(|at| !key.contains(at));
        let order: Vec<usize> = key.iter().copied().chain(others).collect();
        table.columns = order.iter().map(|&at| table.columns[at].clone()).collect();
        table.key_len = key.len();
        table.key_index = Some(name);
        for column in &mut table.columns[..key.len()] {
            column.structural = true;
            column.default = ColumnDefault::None;
        }
        Ok(true)
    }

    /// Whether a column is compared byte for byte where nothing else is said.
    fn is_binary(&self, table: &str, column: &str) -> Result<bool> {
        let (_, collation, ..) = self.connection.column_metadata(Some("main"), table, column)?;
        Ok(collation.is_none_or(|name| name.to_bytes().eq_ignore_ascii_case(b"BINARY")))
    }

    /// The columns of an index, and whether it computes an expression.
    fn index_columns(&self, index: &str) -> Result<(Vec<String>, bool)> {
        let mut statement = self
            .connection
            .prepare("SELECT cid, name FROM pragma_index_xinfo(?1) WHERE key = 1")?;
        let mut rows = statement.query([index])?;
        let (mut columns, mut expression) = (Vec::new(), false);
        while let Some(row) = rows.next()? {
            expression |= row.get::<_, i64>(0)? == -2;
            columns.extend(row.get::<_, Option<String>>(1)?);
        }
        Ok((columns, expression))
    }

    /// Why keys of this table cannot be compared byte for byte.
    fn key_trouble(&self, table: &Table) -> Result<Option<String>> {
        if let Some(column) = table.key().iter().find(|c| c.generated) {
            return Ok(Some(format!("its key column {} is generated", column.name)));
        }
        let collation: Option<(String, String)> = self
            .connection
            .prepare(
                "SELECT x.name, x.coll FROM pragma_index_list(?1) AS l, \
                 pragma_index_xinfo(l.name) AS x WHERE l.origin = 'pk' AND x.key = 1 \
                 AND x.coll <> 'BINARY' COLLATE NOCASE",
            )?
            .query_map([&table.name], |row| Ok((row.get(0)?, row.get(1)?)))?
            .next()
            .transpose()?;
        Ok(collation.map(|(column, name)| {
            format!(
                "its key column {column} is compared under the collation {name}, by which different \
                 texts are one key; declare it COLLATE BINARY"
            )
        }))
    }

    /// What the triggers of a table do whose columns are marked.
    fn triggers(&self, table: &mut Table) -> Result<()> {
        let mut statement = self.connection.prepare(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' \
             AND tbl_name = ?1 COLLATE NOCASE ORDER BY name",
        )?;
        let rows = statement.query_map([&table.name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let texts: Vec<(String, String)> = rows.collect::<Result<_>>()?;
        let found = texts.into_iter().map(|(name, sql)| sqlite::trigger(name, &sql, table));
        let mut found: Vec<Trigger> = found.collect();
        // What fires for an insert updates the new row, for which those fire that do so for updates.
        if found.iter().any(|trigger| trigger.on_insert && trigger.sets.is_ok()) {
            found.iter_mut().for_each(|trigger| trigger.on_insert |= trigger.on_update);
        }
        triggers::classify(table, found, str::eq_ignore_ascii_case);
        Ok(())
    }

    /// Prepares, without running it, one statement of each kind: finds foreign keys to tables that are missing or not
    /// unique, triggers that do not compile, functions and collations that only the application registers.
    fn try_writes(&self, table: &Table) -> Result<()> {
        let name = &table.sql_name;
        let writable = table.columns.iter().filter(|c| !c.generated);
        let (key, sets): (Vec<_>, Vec<_>) =
            writable.map(|c| (c.sql_name.as_str(), format!("{0} = {0}", c.sql_name))).unzip();
        let places = join(key.iter().map(|_| "NULL"), ", ");
        for sql in [
            format!("SELECT * FROM {name}"),
            format!("INSERT INTO {name} ({}) VALUES ({places})", join(&key, ", ")),
            format!("UPDATE {name} SET {}", join(&sets, ", ")),
            format!("DELETE FROM {name}"),
        ] {
            self.connection.prepare(&sql)?;
        }
        Ok(())
    }

    fn references(&self, table: &str) -> Result<Vec<Reference>> {
        let mut statement = self.connection.prepare(
            "SELECT id, \"table\", \"from\", \"to\", on_update, on_delete \
             FROM pragma_foreign_key_list(?1) ORDER BY id, seq",
        )?;
        let mut rows = statement.query([table])?;
        let mut references = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let reference = references.entry(row.get::<_, i64>(0)?).or_insert(Reference {
                parent: row.get(1)?,
                pairs: Vec::new(),
                on_update: row.get(4)?,
                on_delete: row.get(5)?,
            });
            reference.pairs.push((row.get(2)?, row.get(3)?));
        }
        Ok(references.into_values().collect())
    }

    /// Fills in what tables mean to one another.
    fn relate(&self, found: &mut [Found]) -> Result<()> {
        let mut cascades = vec![BTreeSet::new(); found.len()];
        for child in 0..found.len() {
            let deferred = checks::has_word(&found[child].sql, "DEFERRED");
            for reference in self.references(&found[child].table.name)? {
                let Some(parent) =
                    found.iter().position(|f| f.table.name.eq_ignore_ascii_case(&reference.parent))
                else {
                    // The referenced table is not reachable, so its rows change outside of Destage only.
                    continue;
                };
                relate_two(found, child, parent, &reference);
                for side in [child, parent] {
                    found[side].table.class.deferred |= deferred;
                }
                let key_len = found[parent].table.key_len;
                let key_only = found[child]
                    .table
                    .foreign_keys
                    .last()
                    .is_some_and(|fk| fk.parent_columns.iter().all(|&c| c < key_len));
                // Key columns never change, so an action on their update never happens.
                if acts(&reference.on_delete) || (acts(&reference.on_update) && !key_only) {
                    cascades[parent].insert(child);
                }
            }
        }
        close_transitively(&mut cascades);
        for found in found.iter_mut() {
            self.triggers(&mut found.table)?;
        }
        for (table, reached) in cascades.into_iter().enumerate() {
            let opaque = reached.iter().find(|&&c| found[c].table.class.opaque.is_some());
            if let Some(&child) = opaque {
                let reason = format!("its changes cascade to {}", found[child].table.name);
                found[table].table.class.opaque.get_or_insert(reason);
            }
            found[table].table.class.cascades_to = reached.into_iter().map(id).collect();
        }
        Ok(())
    }
}

/// What a default computes, by its text in the definition of the table. SQLite itself has no UUIDs; extensions have.
fn formula(text: &str) -> Option<Formula> {
    let words: String = text.split_whitespace().collect();
    let mut words = words.to_ascii_lowercase();
    while let Some(inner) = words.strip_prefix('(').and_then(|words| words.strip_suffix(')')) {
        words = inner.to_owned();
    }
    match words.as_str() {
        "current_timestamp" | "datetime('now')" | "datetime()" => Formula::time("", 0),
        "current_date" | "date('now')" | "date()" => Some(Formula::Date),
        "uuid()" | "gen_random_uuid()" => Some(Formula::Uuid),
        _ => None,
    }
}

fn relate_two(found: &mut [Found], child: usize, parent: usize, reference: &Reference) {
    let parent_table = &found[parent].table;
    let mut key = ForeignKey {
        name: None,
        columns: Vec::new(),
        parent: id(parent),
        parent_columns: Vec::new(),
        exact: true,
    };
    for (place, (from, to)) in reference.pairs.iter().enumerate() {
        let position = |table: &Table, name: &str| {
            table.columns.iter().position(|c| c.name.eq_ignore_ascii_case(name))
        };
        let to = to.as_ref().map_or(Some(place), |name| position(parent_table, name));
        if let (Some(from), Some(to)) = (position(&found[child].table, from), to) {
            key.columns.push(from);
            key.parent_columns.push(to);
        }
    }
    // Values of the same type under the key's binary collation are equal when their canonical forms are.
    key.exact = key.columns.len() == reference.pairs.len()
        && key.columns.iter().zip(&key.parent_columns).all(|(&from, &to)| {
            to < parent_table.key_len
                && found[child].table.columns[from].ty == parent_table.columns[to].ty
        });
    for &column in &key.columns {
        found[child].table.columns[column].structural = true;
    }
    for &column in &key.parent_columns {
        found[parent].table.columns[column].structural = true;
    }
    found[child].table.foreign_keys.push(key);
    push_new(&mut found[child].table.references, id(parent));
    push_new(&mut found[parent].table.referenced_by, id(child));
}

fn close_transitively(cascades: &mut [BTreeSet<usize>]) {
    loop {
        let mut grown = false;
        for table in 0..cascades.len() {
            let further: Vec<_> =
                cascades[table].iter().flat_map(|&c| cascades[c].iter().copied()).collect();
            let before = cascades[table].len();
            cascades[table].extend(further);
            grown |= cascades[table].len() > before;
        }
        if !grown {
            return;
        }
    }
}

fn acts(action: &str) -> bool {
    !matches!(action, "NO ACTION" | "RESTRICT")
}

fn id(index: usize) -> TableId {
    TableId(u16::try_from(index).expect("an origin has fewer than 65,536 tables"))
}

fn push_new(list: &mut Vec<TableId>, id: TableId) {
    if !list.contains(&id) {
        list.push(id);
    }
}
