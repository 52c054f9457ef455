//! Reads PostgreSQL's catalogue into a [`Schema`]: which tables a key reaches, and what PostgreSQL does beyond storing rows.

mod conditions;
mod defaults;
mod queries;
mod types;

use super::connection::Connection;
use crate::contract::OriginError;
use crate::defaults::Formula;
use crate::schema::{
    Class, Column, ColumnDefault, ForeignKey, NO_KEY, Schema, Table, TableId, Unique, Unreachable,
    no_index_key,
};
use crate::triggers::{self, Trigger, plpgsql};
use defaults::Candidate;
use destage_core::Fault;
use queries::{Attribute, Constraint, Facts, Index, Relation, TriggerFacts};
use std::collections::HashMap;

/// Reads the schema in one snapshot.
pub(super) fn read(connection: &mut Connection) -> Result<Schema, OriginError> {
    let (tables, unreachable) = connection.run("read the catalogue", async |client| {
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
        let facts = queries::facts(client).await?;
        client.batch_execute("COMMIT").await?;
        let mut builder = Builder::new(&facts);
        builder.tables();
        builder.relations();
        builder.conditions();
        builder.triggers();
        defaults::evaluate(client, &builder.candidates, &mut builder.tables).await;
        Ok((builder.tables, builder.unreachable))
    })?;
    if tables.len() > usize::from(u16::MAX) {
        let message = format!("{} has more than 65,535 tables", connection.place());
        return Err(OriginError::new(Fault::Denied, message));
    }
    Ok(Schema::new(tables, unreachable))
}

/// What keys of a table are made of.
struct Key {
    /// The numbers of its columns.
    columns: Vec<i16>,
    /// The unique index that they are the columns of, if it is no primary key.
    index: Option<String>,
}

struct Builder<'a> {
    facts: &'a Facts,
    tables: Vec<Table>,
    unreachable: Vec<Unreachable>,
    candidates: Vec<Candidate>,
    /// The reachable relations' places in `tables`, with their columns' places by number.
    places: HashMap<u32, (usize, HashMap<i16, usize>)>,
}

impl<'a> Builder<'a> {
    fn new(facts: &'a Facts) -> Self {
        Self {
            facts,
            tables: Vec::new(),
            unreachable: Vec::new(),
            candidates: Vec::new(),
            places: HashMap::new(),
        }
    }

    /// The tables in the order of their names, with their columns.
    fn tables(&mut self) {
        let mut named: Vec<_> =
            self.facts.relations.iter().map(|relation| (reach_name(relation), relation)).collect();
        named.sort_by(|(a, _), (b, _)| a.cmp(b));
        for (name, relation) in named {
            match self.key(relation) {
                Ok(key) => self.table(name, relation, &key),
                Err(reason) => self.unreachable.push(Unreachable { name, reason }),
            }
        }
    }

    /// The primary key, or a unique index in its place; or why no key reaches the table.
    fn key(&self, relation: &Relation) -> Result<Key, String> {
        match relation.kind.as_str() {
            "v" | "m" => return Err("it is a view".to_owned()),
            "f" => return Err("it is a foreign table".to_owned()),
            _ => {}
        }
        if relation.partition {
            return Err("it is a partition; use the partitioned table".to_owned());
        }
        if relation.inherits || relation.inherited {
            return Err("it takes part in inheritance, so its key is not unique".to_owned());
        }
        if relation.unlogged {
            return Err("it is UNLOGGED: a crash of the server would empty it".to_owned());
        }
        if !relation.lacking.is_empty() {
            let privileges = relation.lacking.join(", ");
            let table = &relation.sql_name;
            return Err(format!("no permission; run GRANT {privileges} ON {table} TO the user"));
        }
        let is_primary = |c: &&Constraint| c.relation == relation.oid && c.kind == "p";
        match self.facts.constraints.iter().find(is_primary) {
            Some(key) => self.checked_key(relation.oid, &key.columns),
            None => self.unique_key(relation.oid),
        }
    }

    /// The columns of the unique index that is the key in the place of a primary key: of those that can be it the one with the
    /// fewest columns, then the first by name.
    fn unique_key(&self, relation: u32) -> Result<Key, String> {
        let is_not_null =
            |number: &i16| self.attribute(relation, *number).is_some_and(|a| a.not_null);
        let is_meant = |index: &&Index| {
            index.relation == relation && !index.key.is_empty() && index.key.iter().all(is_not_null)
        };
        let mut indexes: Vec<_> = self.facts.indexes.iter().filter(is_meant).collect();
        indexes.sort_by_key(|index| (index.key.len(), &index.name));
        let mut left = None;
        for Index { name, key, .. } in indexes {
            match self.checked_key(relation, key) {
                Ok(key) => return Ok(Key { index: Some(name.clone()), ..key }),
                Err(why) => left = left.or_else(|| Some(no_index_key(name, &why))),
            }
        }
        Err(left.unwrap_or_else(|| NO_KEY.to_owned()))
    }

    /// These columns as a key, or why they cannot be one.
    fn checked_key(&self, relation: u32, numbers: &[i16]) -> Result<Key, String> {
        for number in numbers {
            let Some(attribute) = self.attribute(relation, *number) else { continue };
            let resolved = types::resolve(attribute, &self.facts.types);
            let obstacle = types::key_obstacle(&resolved, attribute.deterministic)
                .or_else(|| attribute.generated.then_some("it is a generated column"));
            if let Some(why) = obstacle {
                let Attribute { name, type_name, .. } = attribute;
                return Err(format!("its key column {name} ({type_name}) cannot be a key: {why}"));
            }
        }
        Ok(Key { columns: numbers.to_vec(), index: None })
    }

    fn attribute(&self, relation: u32, number: i16) -> Option<&'a Attribute> {
        self.facts.attributes.get(&relation)?.iter().find(|a| a.number == number)
    }

    fn table(&mut self, name: String, relation: &Relation, key: &Key) {
        let place = self.tables.len();
        let mut table = Table::named(name, relation.sql_name.clone());
        table.key_index.clone_from(&key.index);
        let key = &key.columns;
        table.key_len = key.len();
        table.class = self.class(relation);
        let others = self.facts.attributes.get(&relation.oid).into_iter().flatten();
        let in_key = key.iter().filter_map(|number| self.attribute(relation.oid, *number));
        let ordered: Vec<_> = in_key.chain(others.filter(|a| !key.contains(&a.number))).collect();
        let mut columns = HashMap::new();
        for (at, attribute) in ordered.into_iter().enumerate() {
            columns.insert(attribute.number, at);
            table.columns.push(self.column(attribute, place, at, at < key.len()));
            if at < key.len() && attribute.sequence && table.generated_key.is_none() {
                table.generated_key = Some(at);
            }
        }
        self.places.insert(relation.oid, (place, columns));
        self.tables.push(table);
    }

    fn class(&self, relation: &Relation) -> Class {
        let mut reasons: Vec<_> = self
            .facts
            .effects
            .iter()
            .filter(|(oid, _)| *oid == relation.oid)
            .map(|(_, what)| what.clone())
            .collect();
        if relation.row_security {
            reasons.push("row security".to_owned());
        }
        let opaque = (!reasons.is_empty()).then(|| format!("it has {}", reasons.join(", ")));
        Class { opaque, ..Class::default() }
    }

    fn column(&mut self, attribute: &Attribute, table: usize, at: usize, key: bool) -> Column {
        let resolved = types::resolve(attribute, &self.facts.types);
        // An identity that is always the server's own cannot be written outside the key.
        let forced = attribute.identity == "a" && !key;
        let expression = attribute.default.clone().or(resolved.default);
        let number = Formula::Number.fitting(&resolved.ty, false).filter(|_| attribute.numbered);
        let default = if let Some(number) = number {
            ColumnDefault::Formula(number)
        } else if attribute.generated || !attribute.identity.is_empty() {
            ColumnDefault::Computed
        } else if let Some(expression) = expression {
            let sql_type = resolved.sql_name.clone();
            self.candidates.push(Candidate { table, column: at, expression, sql_type });
            ColumnDefault::Computed
        } else {
            ColumnDefault::None
        };
        let opaque = matches!(resolved.ty, crate::value::ColumnType::Opaque);
        Column {
            name: attribute.name.clone(),
            sql_name: attribute.sql_name.clone(),
            ty: resolved.ty,
            type_name: if opaque { attribute.type_name.clone() } else { resolved.sql_name },
            not_null: attribute.not_null || resolved.not_null,
            default,
            generated: attribute.generated || forced,
            structural: key,
            checked: resolved.checked,
        }
    }

    /// Constraints and indexes: what they make of the tables and columns.
    fn relations(&mut self) {
        for constraint in &self.facts.constraints {
            self.constraint(constraint);
        }
        for index in &self.facts.indexes {
            let Some((place, _)) = self.places.get(&index.relation) else { continue };
            // It is the key, as the index of a primary key is.
            if self.tables[*place].key_index.as_ref() == Some(&index.name) {
                continue;
            }
            self.tables[*place].has_unique |= index.unique;
            if index.unique {
                let columns = self.indexes(index.relation, &index.columns);
                let is_whole = index.is_whole;
                let unique = Unique { name: index.name.clone(), columns, is_whole };
                self.tables[*place].uniques.push(unique);
                self.mark(index.relation, &index.columns, |column| column.structural = true);
                self.mark(index.relation, &index.looked_at, |column| column.structural = true);
            }
            self.mark(index.relation, &index.looked_at, |column| column.checked = true);
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

    fn constraint(&mut self, constraint: &Constraint) {
        let Constraint { relation, columns, .. } = constraint;
        if constraint.deferred {
            self.each_of([*relation, constraint.parent], |table| table.class.deferred = true);
        }
        match constraint.kind.as_str() {
            // A CHECK of the whole row names no column.
            "c" if columns.is_empty() || columns.contains(&0) => {
                self.each_of([*relation, 0], |table| {
                    table.columns.iter_mut().for_each(|column| column.checked = true);
                });
            }
            "c" => self.mark(*relation, columns, |column| column.checked = true),
            "f" => self.foreign_key(constraint),
            kind => {
                self.mark(*relation, columns, |column| column.structural = true);
                // An exclusion constraint may refuse a row because of any other one. A unique one has an index.
                if kind == "x" {
                    self.each_of([*relation, 0], |table| table.has_unique = true);
                    let (name, columns) = (constraint.name.clone(), Vec::new());
                    let unique = Unique { name, columns, is_whole: false };
                    self.each_of([*relation, 0], |table| table.uniques.push(unique.clone()));
                }
            }
        }
    }

    fn foreign_key(&mut self, key: &Constraint) {
        self.mark(key.relation, &key.columns, |column| column.structural = true);
        self.mark(key.parent, &key.parent_columns, |column| column.structural = true);
        let child = self.places.get(&key.relation).map(|(place, _)| *place);
        let parent = self.places.get(&key.parent).map(|(place, _)| *place);
        match (child, parent) {
            (Some(child), Some(parent)) => {
                let link = ForeignKey {
                    name: Some(key.name.clone()),
                    columns: self.indexes(key.relation, &key.columns),
                    parent: id(parent),
                    parent_columns: self.indexes(key.parent, &key.parent_columns),
                    exact: false,
                };
                let exact = link.columns.iter().zip(&link.parent_columns).all(|(&a, &b)| {
                    let (a, b) = (&self.tables[child].columns[a], &self.tables[parent].columns[b]);
                    a.type_name != "citext"
                        && b.type_name != "citext"
                        && types::compares_exactly(&a.ty, &b.ty)
                });
                self.tables[child].references.push(id(parent));
                self.tables[child].foreign_keys.push(ForeignKey { exact, ..link });
                self.tables[parent].referenced_by.push(id(child));
                if key.acts {
                    self.tables[parent].class.cascades_to.push(id(child));
                }
            }
            (None, Some(parent)) if key.acts => {
                // Its changes may go on to tables that are reachable.
                let reason =
                    format!("it has changes that go on to {}, out of reach", key.relation_name);
                self.tables[parent].class.opaque.get_or_insert(reason);
            }
            _ => {}
        }
    }

    /// What the triggers do; of a table whose columns are marked.
    fn triggers(&mut self) {
        for of_table in self.facts.triggers.chunk_by(|a, b| a.relation == b.relation) {
            let place = of_table.first().and_then(|first| self.places.get(&first.relation));
            let Some(&(place, _)) = place else { continue };
            // Partitions have them once more, or have others of their own.
            let found = of_table.iter().map(trigger).collect();
            triggers::classify(&mut self.tables[place], found, |name, set| name == set);
        }
    }

    fn indexes(&self, relation: u32, numbers: &[i16]) -> Vec<usize> {
        let columns = self.places.get(&relation).map(|(_, columns)| columns);
        numbers.iter().filter_map(|number| columns?.get(number).copied()).collect()
    }

    fn mark(&mut self, relation: u32, numbers: &[i16], mark: impl Fn(&mut Column)) {
        let indexes = self.indexes(relation, numbers);
        if let Some((place, _)) = self.places.get(&relation) {
            for index in indexes {
                mark(&mut self.tables[*place].columns[index]);
            }
        }
    }

    fn each_of(&mut self, relations: [u32; 2], change: impl Fn(&mut Table)) {
        for relation in relations {
            if let Some((place, _)) = self.places.get(&relation) {
                change(&mut self.tables[*place]);
            }
        }
    }
}

/// What a trigger does, as far as its text tells.
fn trigger(facts: &TriggerFacts) -> Trigger {
    let is_set = |bit: i16| facts.kind & bit != 0;
    let fires =
        is_set(ROW) && is_set(BEFORE) && facts.kind & !(ROW | BEFORE | INSERT | UPDATE) == 0;
    let condition = facts.condition.as_deref().unwrap_or_default();
    let sets = if !fires {
        Err(triggers::NOT_BEFORE)
    } else if facts.language != "plpgsql" {
        Err("its function is not in plpgsql")
    } else if facts.has_settings {
        Err("its function changes settings")
    } else if facts.is_shadowed {
        Err("another schema has a function of the name of one of PostgreSQL's that tell the time")
    } else if facts.has_condition
        && (facts.has_own_operators || !plpgsql::is_plain_condition(condition))
    {
        Err("its condition does more than compare columns of the old and the new row")
    } else {
        plpgsql::columns(&facts.source)
    };
    Trigger {
        name: facts.name.clone(),
        on_insert: is_set(INSERT),
        on_update: is_set(UPDATE),
        is_conditional: facts.has_condition || facts.is_of_columns,
        fills: facts.is_of_table,
        sets,
    }
}

// The bits of pg_trigger.tgtype.
const ROW: i16 = 1;
const BEFORE: i16 = 2;
const INSERT: i16 = 4;
const UPDATE: i16 = 16;

/// The name that keys use: with the schema only where the name alone means another table.
fn reach_name(relation: &Relation) -> String {
    if relation.visible {
        relation.name.clone()
    } else {
        format!("{}.{}", relation.schema, relation.name)
    }
}

fn id(place: usize) -> TableId {
    TableId(u16::try_from(place).unwrap_or(u16::MAX))
}
