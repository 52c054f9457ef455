//! The statements that give keys which fold a collation that tells all texts apart.

use super::queries::{Attribute, Facts};
use super::types;
use std::collections::BTreeSet;

/// All statements, in one line, after which the columns of a table can be a key: those of them that fold, and what foreign
/// keys tie to these. `None` if their collation is not what is in the way.
pub(super) fn statements(facts: &Facts, table: &str, columns: &[&Attribute]) -> Option<String> {
    let folds = columns.iter().filter(|attribute| is_folded(attribute));
    let mut changed: BTreeSet<(&str, &str)> =
        folds.map(|attribute| (table, attribute.name.as_str())).collect();
    if changed.is_empty() {
        return None;
    }
    let is_tied = tie(facts, &mut changed);
    let mut tables: Vec<&str> = changed.iter().map(|(table, _)| *table).collect();
    tables.dedup();
    let statements = tables.iter().map(|table| {
        let columns = changed.iter().filter(|(of, _)| of == table);
        let parts = columns.filter_map(|(_, column)| {
            let attribute = facts.attributes.get(*table)?.iter().find(|a| a.name == *column)?;
            Some(format!("MODIFY {}", definition(attribute)))
        });
        format!("ALTER TABLE {} {}", quoted(table), parts.collect::<Vec<_>>().join(", "))
    });
    let statements = statements.collect::<Vec<_>>().join("; ");
    Some(if is_tied {
        format!("SET foreign_key_checks = 0; {statements}; SET foreign_key_checks = 1")
    } else {
        statements
    })
}

/// Whether this collation alone keeps the column from being a key.
fn is_folded(attribute: &Attribute) -> bool {
    let obstacle = |attribute: &Attribute| {
        types::key_obstacle(attribute, &types::resolve(attribute, true, false))
    };
    let mended = Attribute {
        charset: "utf8mb4".to_owned(),
        collation: "utf8mb4_bin".to_owned(),
        ..attribute.clone()
    };
    obstacle(attribute).is_some() && obstacle(&mended).is_none()
}

/// Adds the columns at the other ends of foreign keys; whether there are any. Both ends must have one collation.
fn tie<'a>(facts: &'a Facts, changed: &mut BTreeSet<(&'a str, &'a str)>) -> bool {
    let references = facts.references.iter();
    let references = references.filter(|r| r.constraint.0 == r.parent_schema);
    let ends: Vec<_> = references
        .map(|r| {
            let child = (r.constraint.1.as_str(), r.column.as_str());
            [child, (r.parent.as_str(), r.parent_column.as_str())]
        })
        .collect();
    loop {
        let before = changed.len();
        for ends in &ends {
            if ends.iter().any(|end| changed.contains(end)) {
                changed.extend(ends);
            }
        }
        if changed.len() == before {
            return ends.iter().flatten().any(|end| changed.contains(end));
        }
    }
}

/// The column as it is, but for its collation.
fn definition(attribute: &Attribute) -> String {
    let Attribute { type_name, default, comment, .. } = attribute;
    let mut out = format!(
        "{} {type_name} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin {}",
        quoted(&attribute.name),
        if attribute.nullable { "NULL" } else { "NOT NULL" }
    );
    if let Some(default) = default {
        out.push_str(&format!(" DEFAULT {default}"));
    }
    if !comment.is_empty() {
        let text = comment.replace('\\', "\\\\").replace('\'', "''");
        out.push_str(&format!(" COMMENT '{text}'"));
    }
    out
}

/// A name as every session reads it.
fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}
