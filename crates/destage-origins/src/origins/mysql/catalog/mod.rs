//! Reads MariaDB's catalogue into a [`Schema`]: which tables a key reaches, and what MariaDB does beyond storing rows.

mod defaults;
mod queries;
mod types;
mod unfold;

use super::connection::Connection;
use crate::checks::{self, Check, Condition, Sql};
use crate::contract::OriginError;
use crate::origins::quote::identifier;
use crate::schema::{
    Class, Column, ColumnDefault, ForeignKey, NO_KEY, Schema, Table, TableId, Unique, Unreachable,
    no_index_key,
};
use crate::triggers::{self, Trigger, mariadb};
use crate::value::ColumnType;
use queries::{Attribute, CheckFacts, Facts, IndexPart, Reference, Relation, TriggerFacts};
use std::collections::{BTreeMap, HashMap};

/// Reads the schema.
pub(super) fn read(connection: &mut Connection) -> Result<Schema, OriginError> {
    let facts = queries::facts(connection)?;
    let mut builder = Builder {
        facts: &facts,
        tables: Vec::new(),
        unreachable: Vec::new(),
        folded: Vec::new(),
        places: HashMap::new(),
    };
    builder.tables();
    builder.indexes();
    builder.checks();
    builder.references();
    builder.triggers();
    let (mut tables, unreachable, folded) = (builder.tables, builder.unreachable, builder.folded);
    defaults::evaluate(connection, &facts, &mut tables)?;
    let mut schema = Schema::new(tables, unreachable);
    schema.key_changes = unfold::statements(connection, &facts, &folded)?;
    Ok(schema)
}

/// What keys of a table are made of.
struct Key<'a> {
    columns: Vec<&'a Attribute>,
    /// The unique index that they are the columns of, if it is no primary key.
    index: Option<String>,
}

/// Why no key reaches a table.
struct NoKey<'a> {
    reason: String,
    /// The columns of its key to which another collation must be given, if that is all it takes.
    folded: Vec<&'a Attribute>,
}

impl From<String> for NoKey<'_> {
    fn from(reason: String) -> Self {
        Self { reason, folded: Vec::new() }
    }
}

struct Builder<'a> {
    facts: &'a Facts,
    tables: Vec<Table>,
    unreachable: Vec<Unreachable>,
    /// Tables and columns of their keys whose collations alone keep keys from the tables.
    folded: Vec<(&'a str, &'a str)>,
    /// The reachable tables' places in `tables`.
    places: HashMap<&'a str, usize>,
}

impl<'a> Builder<'a> {
    /// The tables in the order of their names, with their columns.
    fn tables(&mut self) {
        let mut relations: Vec<_> = self.facts.relations.iter().collect();
        relations.sort_by(|a, b| a.name.cmp(&b.name));
        for relation in relations {
            match self.key(relation) {
                Ok(key) => self.table(relation, key),
                Err(NoKey { reason, folded }) => {
                    let folded = folded.iter().map(|column| (&*relation.name, &*column.name));
                    self.folded.extend(folded);
                    self.unreachable.push(Unreachable { name: relation.name.clone(), reason });
                }
            }
        }
    }

    /// The primary key, or a unique index in its place.
    fn key(&self, relation: &Relation) -> Result<Key<'a>, NoKey<'a>> {
        let attributes = self.reachable(relation)?;
        let mut indexes: BTreeMap<&str, Vec<&IndexPart>> = BTreeMap::new();
        let is_its = |part: &&IndexPart| part.unique && part.table == relation.name;
        for part in self.facts.indexes.iter().filter(is_its) {
            indexes.entry(&part.name).or_default().push(part);
        }
        if let Some(parts) = indexes.remove("PRIMARY") {
            return Ok(Key { columns: key_columns(&parts, attributes)?, index: None });
        }
        let find = |part: &IndexPart| attributes.iter().find(|a| a.name == part.column);
        let may_be = |part: &&IndexPart| {
            part.is_btree && !part.is_prefix && find(part).is_some_and(|a| !a.nullable)
        };
        // The one with the fewest columns, then the first by name.
        let mut indexes: Vec<_> = indexes.into_iter().collect();
        indexes.sort_by_key(|(_, parts)| parts.len());
        let mut left = None;
        for (name, parts) in indexes.iter().filter(|(_, parts)| parts.iter().all(may_be)) {
            match key_columns(parts, attributes) {
                Ok(columns) => return Ok(Key { columns, index: Some((*name).to_owned()) }),
                Err(NoKey { reason, folded }) => {
                    let reason = no_index_key(name, &reason);
                    left.get_or_insert(NoKey { reason, folded });
                }
            }
        }
        Err(left.unwrap_or_else(|| NO_KEY.to_owned().into()))
    }

    /// The columns of a table that keys may reach, or why they may not.
    fn reachable(&self, relation: &Relation) -> Result<&'a [Attribute], String> {
        match relation.kind.as_str() {
            "BASE TABLE" => {}
            "VIEW" | "SYSTEM VIEW" => return Err("it is a view".to_owned()),
            "SYSTEM VERSIONED" => return Err("it is system-versioned".to_owned()),
            kind => return Err(format!("it is a {}", kind.to_lowercase())),
        }
        if !relation.transactional {
            let engine = &relation.engine;
            return Err(format!("its engine {engine} has no transactions; use ENGINE = InnoDB"));
        }
        let attributes = self.facts.attributes.get(&relation.name);
        let attributes = attributes.map(Vec::as_slice).unwrap_or_default();
        for privilege in ["select", "insert", "update"] {
            if attributes.iter().any(|a| !a.privileges.split(',').any(|p| p == privilege)) {
                let (table, privilege) = (&relation.name, privilege.to_uppercase());
                return Err(format!("no permission; run GRANT {privilege} ON {table} TO the user"));
            }
        }
        Ok(attributes)
    }

    fn table(&mut self, relation: &'a Relation, Key { columns: key, index }: Key<'a>) {
        let mut table = Table::named(relation.name.clone(), identifier(&relation.name));
        table.key_index = index;
        table.key_len = key.len();
        table.class = self.class(relation);
        let in_key = |attribute: &Attribute| key.iter().any(|k| k.name == attribute.name);
        let others = self.facts.attributes.get(&relation.name).into_iter().flatten();
        for attribute in key.iter().copied().chain(others.filter(|a| !in_key(a))) {
            if in_key(attribute) && attribute.extra.contains("auto_increment") {
                table.generated_key = Some(table.columns.len());
            }
            let column = self.column(relation, attribute, in_key(attribute));
            table.columns.push(column);
        }
        self.places.insert(&relation.name, self.tables.len());
        self.tables.push(table);
    }

    fn class(&self, relation: &Relation) -> Class {
        let is_of_table = |trigger: &TriggerFacts| trigger.table == relation.name;
        let unseen = self.facts.watched.as_ref().is_some_and(|seen| !seen.contains(&relation.name));
        let opaque = (unseen && !self.facts.triggers.iter().any(is_of_table)).then(|| {
            format!(
                "it may have triggers that the user must not see; run GRANT TRIGGER ON {} TO the user",
                relation.name
            )
        });
        Class { opaque, ..Class::default() }
    }

    fn column(&self, relation: &Relation, attribute: &Attribute, in_key: bool) -> Column {
        let clause = json_check(&attribute.name);
        let of_column = |check: &CheckFacts| check.table == relation.name && check.clause == clause;
        let json = self.facts.checks.iter().any(of_column);
        let ty = types::resolve(attribute, in_key, json);
        let default = match &attribute.default {
            _ if attribute.extra.contains("auto_increment") => ColumnDefault::Computed,
            None => ColumnDefault::None,
            Some(text) if text == "NULL" => ColumnDefault::None,
            Some(text) => defaults::formula(text)
                .and_then(|formula| formula.fitting(&ty, false))
                .map_or(ColumnDefault::Computed, ColumnDefault::Formula),
        };
        let is_bit = attribute.data_type == super::literal::BIT;
        Column {
            name: attribute.name.clone(),
            sql_name: identifier(&attribute.name),
            ty,
            type_name: if is_bit { &attribute.data_type } else { &attribute.type_name }.clone(),
            not_null: !attribute.nullable,
            default,
            generated: is_generated(attribute),
            structural: in_key,
            checked: false,
        }
    }

    /// What unique indexes make of the tables and columns.
    fn indexes(&mut self) {
        for part in self.facts.indexes.iter().filter(|part| part.unique && part.name != "PRIMARY") {
            let Some(&place) = self.places.get(part.table.as_str()) else { continue };
            let table = &mut self.tables[place];
            // It is the key, as the index of a primary key is.
            if table.key_index.as_ref() == Some(&part.name) {
                continue;
            }
            table.has_unique = true;
            if table.uniques.last().is_none_or(|unique| unique.name != part.name) {
                let (name, columns) = (part.name.clone(), Vec::new());
                table.uniques.push(Unique { name, columns, is_whole: true });
            }
            let at = table.columns.iter().position(|c| c.name == part.column);
            let Some(unique) = table.uniques.last_mut() else { continue };
            match at.filter(|_| !part.is_prefix) {
                Some(at) => unique.columns.push(at),
                None => unique.is_whole = false,
            }
            if let Some(at) = at {
                table.columns[at].structural = true;
            }
        }
    }

    /// Marks the columns that conditions look at, and enters what is known of these.
    fn checks(&mut self) {
        for check in &self.facts.checks {
            let CheckFacts { table, name, clause } = check;
            let Some(&place) = self.places.get(table.as_str()) else { continue };
            let named = |column: &Column| clause.contains(&identifier(&column.name));
            let columns = &mut self.tables[place].columns;
            let any = columns.iter().any(named);
            let mut is_of_type = false;
            for column in columns.iter_mut() {
                // A condition that names no column in this way may look at all of them.
                let is_json = *clause == json_check(&column.name);
                is_of_type |= is_json && column.ty == ColumnType::Json;
                column.checked |= !is_json && (named(column) || !any);
            }
            let attributes = self.facts.attributes.get(table).map(Vec::as_slice);
            let find = |name: &str| {
                let is_it = |other: &str| other.eq_ignore_ascii_case(name);
                let at = columns.iter().position(|column| is_it(&column.name))?;
                let attribute = attributes?.iter().find(|attribute| is_it(&attribute.name))?;
                Some((at, types::kind(attribute, &columns[at].ty)))
            };
            let condition = if is_of_type {
                Ok(Condition::always())
            } else {
                checks::read(Sql::MariaDb, clause, &find)
            };
            let check = Check { name: name.clone(), text: clause.clone(), condition };
            self.tables[place].checks.push(check);
        }
    }

    /// What the triggers do; of tables whose columns are marked.
    fn triggers(&mut self) {
        for of_table in self.facts.triggers.chunk_by(|a, b| a.table == b.table) {
            let place = of_table.first().and_then(|first| self.places.get(first.table.as_str()));
            let Some(&place) = place else { continue };
            let found = of_table.iter().map(trigger).collect();
            triggers::classify(&mut self.tables[place], found, str::eq_ignore_ascii_case);
        }
    }

    fn references(&mut self) {
        let parts = &self.facts.references;
        for parts in parts.chunk_by(|a, b| a.constraint == b.constraint) {
            self.foreign_key(parts);
        }
        for table in &mut self.tables {
            for list in [&mut table.references, &mut table.referenced_by] {
                list.sort_unstable();
                list.dedup();
            }
            table.class.cascades_to.sort_unstable();
            table.class.cascades_to.dedup();
        }
    }

    fn foreign_key(&mut self, parts: &[Reference]) {
        let Some(Reference { constraint: (schema, child, _), parent_schema, parent, acts, .. }) =
            parts.first()
        else {
            return;
        };
        // One of the two may belong to another database, which no key of this one reaches.
        let here = |place: Option<&usize>| place.copied().filter(|_| schema == parent_schema);
        let child_place = here(self.places.get(child.as_str()));
        let parent_here = self.places.get(parent.as_str()).copied();
        let (Some(child_place), Some(parent_place)) = (child_place, parent_here) else {
            if let Some(place) = self.places.get(parent.as_str()).copied()
                && *acts
            {
                let reason = format!("it has changes that go on to {schema}.{child}, out of reach");
                self.tables[place].class.opaque.get_or_insert(reason);
            }
            self.mark_structural(child_place, parts.iter().map(|part| part.column.as_str()));
            return;
        };
        let place_of =
            |table: &Table, name: &str| table.columns.iter().position(|c| c.name == name);
        let mut link = ForeignKey {
            name: parts.first().map(|part| part.constraint.2.clone()),
            columns: Vec::new(),
            parent: id(parent_place),
            parent_columns: Vec::new(),
            exact: true,
        };
        for part in parts {
            let from = place_of(&self.tables[child_place], &part.column);
            let to = place_of(&self.tables[parent_place], &part.parent_column);
            let (Some(from), Some(to)) = (from, to) else {
                link.exact = false;
                continue;
            };
            link.columns.push(from);
            link.parent_columns.push(to);
            let collation = |table: &str, column: &str| {
                let found = self.facts.attributes.get(table);
                let found = found.and_then(|list| list.iter().find(|a| a.name == column));
                found.map_or("", |attribute| attribute.collation.as_str())
            };
            link.exact &= types::compares_exactly(
                (&self.tables[child_place].columns[from].ty, collation(child, &part.column)),
                (&self.tables[parent_place].columns[to].ty, collation(parent, &part.parent_column)),
            );
        }
        self.mark_structural(Some(child_place), parts.iter().map(|part| part.column.as_str()));
        let parents = parts.iter().map(|part| part.parent_column.as_str());
        self.mark_structural(Some(parent_place), parents);
        self.tables[child_place].references.push(id(parent_place));
        self.tables[child_place].foreign_keys.push(link);
        self.tables[parent_place].referenced_by.push(id(child_place));
        if *acts {
            self.tables[parent_place].class.cascades_to.push(id(child_place));
        }
    }

    fn mark_structural<'n>(&mut self, place: Option<usize>, names: impl Iterator<Item = &'n str>) {
        let Some(place) = place else { return };
        for name in names {
            let columns = &mut self.tables[place].columns;
            columns.iter_mut().filter(|c| c.name == name).for_each(|c| c.structural = true);
        }
    }
}

/// The columns of an index as a key, or why they cannot be one.
fn key_columns<'a>(
    parts: &[&IndexPart],
    attributes: &'a [Attribute],
) -> Result<Vec<&'a Attribute>, NoKey<'a>> {
    let mut columns = Vec::new();
    let mut left: Option<NoKey<'a>> = None;
    let mut folded = Vec::new();
    for part in parts {
        let Some(attribute) = attributes.iter().find(|a| a.name == part.column) else { continue };
        columns.push(attribute);
        let ty = types::resolve(attribute, true, false);
        let mut obstacle = types::key_obstacle(attribute, &ty);
        let mut is_mended = unfold::mends(attribute);
        for (stands, why) in [
            (part.is_prefix, "only the beginning of its values is unique"),
            (is_generated(attribute), "it is computed by the server"),
        ] {
            if stands {
                (obstacle, is_mended) = (Some(why.to_owned()), false);
            }
        }
        let Some(why) = obstacle else { continue };
        let Attribute { name, type_name, .. } = attribute;
        let reason = format!("its key column {name} ({type_name}) cannot be a key: {why}");
        if !is_mended {
            return Err(reason.into());
        }
        folded.push(attribute);
        left.get_or_insert_with(|| reason.into());
    }
    match left {
        Some(left) => Err(NoKey { folded, ..left }),
        None => Ok(columns),
    }
}

/// What a trigger does, as far as its text tells.
fn trigger(facts: &TriggerFacts) -> Trigger {
    let fires = facts.timing == "BEFORE" && matches!(facts.event.as_str(), "INSERT" | "UPDATE");
    Trigger {
        name: facts.name.clone(),
        on_insert: facts.event == "INSERT",
        on_update: facts.event == "UPDATE",
        is_conditional: false,
        fills: true,
        sets: if fires { mariadb::columns(&facts.statement) } else { Err(triggers::NOT_BEFORE) },
    }
}

/// The condition that makes a text JSON, as the session's mode has it written.
fn json_check(column: &str) -> String {
    format!("json_valid({})", identifier(column))
}

/// Whether the server computes the column, once or at every update.
fn is_generated(attribute: &Attribute) -> bool {
    ["virtual generated", "stored generated", "persistent", "on update"]
        .iter()
        .any(|word| attribute.extra.contains(word))
}

fn id(place: usize) -> TableId {
    TableId(u16::try_from(place).unwrap_or(u16::MAX))
}
