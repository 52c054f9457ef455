//! Triggers that do nothing but set columns of the row that is written to a time, as `updated_at` is kept in most schemas.
//!
//! What a trigger does is told from its text in the origin's catalogue, and from nothing else. Each database has a grammar
//! here of the few forms that are known. A text is taken only where all of it has such a form, so a trigger that does
//! anything more is never taken for one of these: its table stays one of which nobody knows what its writes do.

pub(crate) mod mariadb;
pub(crate) mod plpgsql;
pub(crate) mod sqlite;

use crate::schema::{SetByTrigger, Table};
use crate::value::ColumnType;

/// The columns that a trigger sets, by their names as the text has them.
pub(crate) type Columns = Vec<String>;

/// Why a trigger is not known to set columns of its own row only.
pub(crate) type Unknown = &'static str;

/// It has another form than the known ones.
const MORE: Unknown = "it may do more than set columns of its own row to the time";
/// It does not fire before a row is inserted or updated.
pub(crate) const NOT_BEFORE: Unknown =
    "it does not fire BEFORE INSERT or UPDATE, FOR EACH ROW, and then nothing else";

/// A trigger of a table.
#[derive(Debug)]
pub(crate) struct Trigger {
    pub(crate) name: String,
    pub(crate) on_insert: bool,
    pub(crate) on_update: bool,
    /// It has a condition on the old and new row, or on which columns are set, so that it may set its own or not.
    pub(crate) is_conditional: bool,
    /// It fires for every row of the table, and before NOT NULL is checked.
    pub(crate) fills: bool,
    pub(crate) sets: Result<Columns, Unknown>,
}

/// Enters what a table's triggers do, each once. The columns are complete, with their marks; `is_same` compares names.
pub(crate) fn classify(
    table: &mut Table,
    triggers: Vec<Trigger>,
    is_same: impl Fn(&str, &str) -> bool,
) {
    let mut unknown = Vec::new();
    for trigger in triggers {
        let Trigger { name, on_insert, on_update, is_conditional, fills, sets } = trigger;
        let found = sets.and_then(|columns| {
            let found =
                columns.iter().map(|column| find_settable(table, |other| is_same(other, column)));
            found.collect::<Result<Vec<usize>, Unknown>>()
        });
        match found {
            Ok(columns) => columns.into_iter().for_each(|column| {
                let (by, merges) = (Some(name.clone()), !is_conditional);
                let set = SetByTrigger { column, on_insert, on_update, merges, fills: false, by };
                let sets = &mut table.class.sets;
                let known = sets
                    .iter()
                    .position(|known| SetByTrigger { fills: false, ..known.clone() } == set);
                let place = known.unwrap_or(sets.len());
                if known.is_none() {
                    sets.push(set);
                }
                sets[place].fills |= fills && on_insert && merges;
            }),
            Err(why) => {
                let text = format!("trigger {name} ({why})");
                if !unknown.contains(&text) {
                    unknown.push(text);
                }
            }
        }
    }
    if !unknown.is_empty() {
        let before = table.class.opaque.take().map_or_else(String::new, |why| format!("; {why}"));
        table.class.opaque = Some(format!("it has {}{before}", unknown.join(", ")));
    }
}

/// A column that may be left to a trigger.
fn find_settable(table: &Table, is_it: impl Fn(&str) -> bool) -> Result<usize, Unknown> {
    let index = table.columns.iter().position(|column| is_it(&column.name));
    let index = index.ok_or("it sets a column that the table does not have")?;
    let column = &table.columns[index];
    match column {
        _ if index < table.key_len => Err("it sets a column of the key"),
        column if column.structural => Err("it sets a column that is unique or in a foreign key"),
        column if column.generated => Err("it sets a computed column"),
        column if column.ty == ColumnType::Opaque => Err("it sets a column of an unknown type"),
        _ => Ok(index),
    }
}

/// Enters the columns that triggers set as the user declares it: nothing else is done by them.
///
/// # Errors
/// Names the column that is none that a trigger may be left to set.
pub(crate) fn declare(table: &mut Table, columns: &[String]) -> Result<(), String> {
    for name in columns {
        let column = find_settable(table, |other| other == name)
            .map_err(|why| format!("[table.{}]: triggers sets '{name}': {why}", table.name))?;
        // What is known anyway is known better. More than that is the user's word.
        let is_known = |set: &SetByTrigger| {
            let is_trusted = set.by.is_none() || table.class.opaque.is_none();
            set.column == column && is_trusted && set.on_insert && set.on_update
        };
        if !table.class.sets.iter().any(is_known) {
            table.class.sets.push(SetByTrigger {
                column,
                on_insert: true,
                on_update: true,
                merges: false,
                fills: false,
                by: None,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
