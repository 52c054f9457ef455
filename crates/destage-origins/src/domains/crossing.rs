//! What makes two domains depend on one another: foreign keys and their cascades, unique indexes, triggers.

use super::{Partition, Place};
use crate::schema::{ForeignKey, Schema, Table, TableId};
use crate::settings::TableSettings;
use std::collections::BTreeMap;

/// Most crossings that one message lists.
const LISTED_MAX: usize = 5;

impl Partition {
    /// Refuses a partition across which the origin itself looks. `independent` tells the tables whose settings take the
    /// responsibility.
    pub(super) fn check_crossings(
        &self,
        schema: &Schema,
        settings: &BTreeMap<String, TableSettings>,
        independent: impl Fn(TableId) -> bool,
    ) -> Result<(), String> {
        let mut found = Vec::new();
        for table in &schema.tables {
            for (what, other) in self.crossings_of(schema, table, settings.get(&table.name)) {
                if !independent(table.id) && !independent(other) {
                    found.push(what);
                }
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        let more = found.len().saturating_sub(LISTED_MAX);
        found.truncate(LISTED_MAX);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        Err(format!(
            "the ordering domains depend on one another: {}{more}. Put what belongs together into one domain, or say \
             assume_independent = true in its [[domain]] where you know that the order across does not matter",
            found.join("; ")
        ))
    }

    /// In words, each with the other table that is concerned.
    fn crossings_of(
        &self,
        schema: &Schema,
        table: &Table,
        settings: Option<&TableSettings>,
    ) -> Vec<(String, TableId)> {
        let mut found = Vec::new();
        for key in table.foreign_keys.iter().filter(|key| !self.keeps(table, key)) {
            let parent = schema.table(key.parent);
            found.push((describe(table, key, parent), key.parent));
        }
        for &parent in &table.references {
            let is_known = table.foreign_keys.iter().any(|key| key.parent == parent);
            let (own, other) = (self.place_of(table.id), self.place_of(parent));
            if !is_known && (own != other || is_split(own)) {
                let to = &schema.table(parent).name;
                found.push((
                    format!("a foreign key of {} to {to} crosses them", table.name),
                    parent,
                ));
            }
        }
        self.uniques_of(table, &mut found);
        if let Some(reason) = &table.class.opaque {
            self.effects_of(schema, table, reason, settings, &mut found);
        }
        found
    }

    /// Whether the origin itself changes rows of other domains than that of the row which is written, or may.
    pub(super) fn has_effects_across(
        &self,
        schema: &Schema,
        settings: &BTreeMap<String, TableSettings>,
    ) -> bool {
        schema.tables.iter().any(|table| {
            let mut found = Vec::new();
            if let Some(reason) = &table.class.opaque {
                self.effects_of(schema, table, reason, settings.get(&table.name), &mut found);
            }
            let leaves = |&child: &TableId| {
                let child = schema.table(child);
                let mut keys = child.foreign_keys.iter().filter(|key| key.parent == table.id);
                let is_known = keys.clone().next().is_some();
                !is_known || keys.any(|key| !self.keeps(child, key))
            };
            !found.is_empty() || table.class.cascades_to.iter().any(leaves)
        })
    }

    fn place_of(&self, table: TableId) -> Place {
        self.places[usize::from(table.0)]
    }

    /// Whether a foreign key leads to a row of the same domain in any case.
    fn keeps(&self, table: &Table, key: &ForeignKey) -> bool {
        match (self.place_of(table.id), self.place_of(key.parent)) {
            (Place::Whole(own), Place::Whole(other)) => own == other,
            (
                Place::Split { column, first, count },
                Place::Split { column: other, first: theirs, count: many },
            ) => {
                let mut pairs = key.columns.iter().zip(&key.parent_columns);
                // Only values that are written alike have the same domain for sure.
                key.exact
                    && (first, count) == (theirs, many)
                    && pairs.any(|p| p == (&column, &other))
            }
            _ => false,
        }
    }

    fn uniques_of(&self, table: &Table, found: &mut Vec<(String, TableId)>) {
        let Place::Split { column, .. } = self.place_of(table.id) else { return };
        let name = &table.name;
        for unique in table.uniques.iter().filter(|unique| !unique.columns.contains(&column)) {
            let what = format!(
                "the unique index or constraint {} of {name} lacks {}, so that it compares rows of different domains",
                unique.name, table.columns[column].name
            );
            found.push((what, table.id));
        }
        if table.has_unique && table.uniques.is_empty() {
            let what = format!("a unique index of {name} compares rows of different domains");
            found.push((what, table.id));
        }
    }

    /// Triggers, rules, row security: harmless where the user declares that they stay inside the domain.
    fn effects_of(
        &self,
        schema: &Schema,
        table: &Table,
        reason: &str,
        settings: Option<&TableSettings>,
        found: &mut Vec<(String, TableId)>,
    ) {
        let own = self.place_of(table.id);
        let Some(changed) = settings.and_then(|settings| settings.triggers.as_ref()) else {
            let what = format!(
                "nobody knows what {} changes ({reason}): declare it by triggers = [...] in [table.{}]",
                table.name, table.name
            );
            return found.push((what, table.id));
        };
        for other in changed.iter().filter_map(|name| schema.find(name.as_bytes())) {
            if self.place_of(other.id) != own || is_split(own) {
                let what = format!("{} changes {} ({reason})", table.name, other.name);
                found.push((what, other.id));
            }
        }
    }
}

fn is_split(place: Place) -> bool {
    matches!(place, Place::Split { .. })
}

fn describe(table: &Table, key: &ForeignKey, parent: &Table) -> String {
    let name = key.name.as_ref().map_or_else(String::new, |name| format!("{name}, "));
    format!(
        "the foreign key {name}{} ({}) to {} ({}), crosses them",
        table.name,
        names_of(table, &key.columns),
        parent.name,
        names_of(parent, &key.parent_columns)
    )
}

fn names_of(table: &Table, columns: &[usize]) -> String {
    let names: Vec<&str> = columns.iter().map(|&at| table.columns[at].name.as_str()).collect();
    names.join(", ")
}
