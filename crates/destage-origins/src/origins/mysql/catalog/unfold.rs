//! The statements that give keys which fold a collation that tells all texts apart.

use super::super::connection::{Connection, SQL_MODE};
use super::queries::{Attribute, Facts, Reference};
use super::types;
use crate::contract::OriginError;
use destage_core::Fault;
use std::collections::{BTreeMap, BTreeSet};

/// A database and a table.
type Place = (String, String);

/// Whether this collation alone keeps the column from being a key.
pub(super) fn mends(attribute: &Attribute) -> bool {
    let obstacle = |attribute: &Attribute| {
        types::key_obstacle(attribute, &types::resolve(attribute, true, false))
    };
    let (charset, collation) = ("utf8mb4".to_owned(), "utf8mb4_bin".to_owned());
    let mended = Attribute { charset, collation, ..attribute.clone() };
    obstacle(attribute).is_some() && obstacle(&mended).is_none()
}

/// All that it takes to make these columns of these tables tell texts apart. MariaDB changes no column of a foreign key, and
/// both ends of one must have one collation: foreign keys are dropped first, and made again in the end. None where the user
/// may not see a table that it takes.
pub(super) fn statements(
    connection: &mut Connection,
    facts: &Facts,
    folded: &[(&str, &str)],
) -> Result<Vec<String>, OriginError> {
    if folded.is_empty() {
        return Ok(Vec::new());
    }
    let what = "read the tables whose keys fold";
    let database = connection.rows(what, "SELECT database()")?;
    let database = database.first().map(|row| super::queries::text(row, 0)).unwrap_or_default();
    let changed = folded
        .iter()
        .map(|(table, column)| ((database.clone(), (*table).to_owned()), (*column).to_owned()));
    let (changed, links) = tied(facts, changed.collect());
    let tables = changed.iter().map(|(table, _)| table).chain(links.keys());
    let tables: BTreeSet<&Place> = tables.collect();
    // As the sessions read it in which it is run.
    connection.script(what, &["SET SESSION sql_mode = ''"])?;
    let shown = tables.into_iter().map(|table| {
        let shown = connection.rows(what, &format!("SHOW CREATE TABLE {}", quoted(table)))?;
        let shown = shown.first().map(|row| super::queries::text(row, 1)).unwrap_or_default();
        Ok((table, shown))
    });
    let shown: Result<BTreeMap<_, _>, OriginError> = shown.collect();
    connection.script(what, &[format!("SET SESSION sql_mode = {SQL_MODE}")])?;
    match shown {
        Ok(shown) => Ok(written(&changed, &links, &shown).unwrap_or_default()),
        Err(error) if error.fault == Fault::Unavailable => Err(error),
        Err(_) => Ok(Vec::new()),
    }
}

/// Columns of tables.
type Columns = BTreeSet<(Place, String)>;
/// Foreign keys by name, of their tables.
type Links = BTreeMap<Place, BTreeSet<String>>;

/// These columns and those that foreign keys tie to them, and these foreign keys.
fn tied(facts: &Facts, mut changed: Columns) -> (Columns, Links) {
    let ends = |reference: &Reference| {
        let (database, table, _) = reference.constraint.clone();
        let parent = (reference.parent_schema.clone(), reference.parent.clone());
        [((database, table), reference.column.clone()), (parent, reference.parent_column.clone())]
    };
    loop {
        let before = changed.len();
        for reference in &facts.references {
            let ends = ends(reference);
            if ends.iter().any(|end| changed.contains(end)) {
                changed.extend(ends);
            }
        }
        if changed.len() == before {
            break;
        }
    }
    let mut links = Links::new();
    for reference in &facts.references {
        let [child, _] = ends(reference);
        if changed.contains(&child) {
            links.entry(child.0).or_default().insert(reference.constraint.2.clone());
        }
    }
    (changed, links)
}

/// The statements; `None` if the tables are others by now.
fn written(
    changed: &Columns,
    links: &Links,
    shown: &BTreeMap<&Place, String>,
) -> Option<Vec<String>> {
    let mut statements = Vec::new();
    for (table, names) in links {
        let parts = names.iter().map(|name| format!("DROP FOREIGN KEY {}", name_quoted(name)));
        statements.push(alter(table, parts.collect()));
    }
    let tables: BTreeSet<&Place> = changed.iter().map(|(table, _)| table).collect();
    for table in tables {
        let items = items(shown.get(table)?);
        let columns = changed.iter().filter(|(of, _)| of == table);
        let parts: Option<Vec<String>> = columns
            .map(|(_, column)| {
                let begin = format!("{} ", name_quoted(column));
                let definition = items.iter().find_map(|item| item.strip_prefix(&begin))?;
                Some(format!("MODIFY {begin}{}", mended(definition)))
            })
            .collect();
        statements.push(alter(table, parts?));
    }
    for (table, names) in links {
        let items = items(shown.get(table)?);
        let parts: Option<Vec<String>> = names
            .iter()
            .map(|name| {
                let begin = format!("CONSTRAINT {} FOREIGN KEY ", name_quoted(name));
                items.iter().find(|item| item.starts_with(&begin)).map(|item| format!("ADD {item}"))
            })
            .collect();
        statements.push(alter(table, parts?));
    }
    Some(statements)
}

fn alter(table: &Place, parts: Vec<String>) -> String {
    format!("ALTER TABLE {} {}", quoted(table), parts.join(", "))
}

/// What stands behind a column's name, with another collation.
fn mended(definition: &str) -> String {
    let (ty, mut rest) = definition.split_at(find(definition, &[' ']).unwrap_or(definition.len()));
    for word in [" CHARACTER SET ", " COLLATE "] {
        if let Some(named) = rest.strip_prefix(word) {
            rest = &named[named.find(' ').unwrap_or(named.len())..];
        }
    }
    format!("{ty} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin{rest}")
}

/// The columns, indexes and constraints in what SHOW CREATE TABLE tells.
fn items(create: &str) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = find(create, &['(']).map_or("", |at| &create[at + 1..]);
    while let Some(at) = find(rest, &[',', ')']) {
        items.push(rest[..at].trim());
        if rest[at..].starts_with(')') {
            break;
        }
        rest = &rest[at + 1..];
    }
    items
}

/// Where the first of these characters is that is neither quoted nor in parentheses.
fn find(text: &str, wanted: &[char]) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some('\''), '\\') => drop(chars.next()),
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, _) if depth == 0 && wanted.contains(&c) => return Some(at),
            (None, '\'' | '`' | '"') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

/// A table's name as every session reads it, whatever its database is.
fn quoted((database, table): &Place) -> String {
    format!("{}.{}", name_quoted(database), name_quoted(table))
}

fn name_quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATE: &str = "CREATE TABLE `od(d` (
  `a` varchar(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL DEFAULT 'it''s \\', (' COMMENT 'x, `y`)' CHECK (`a` <> ','),
  `b``c` enum('a) COLLATE x','b') DEFAULT NULL,
  `n` int(11) NOT NULL,
  PRIMARY KEY (`a`,`n`),
  CONSTRAINT `f` FOREIGN KEY (`a`, `n`) REFERENCES `p` (`a`, `n`) ON DELETE CASCADE
) ENGINE=InnoDB COMMENT='(' PARTITION BY HASH (`n`) (PARTITION `p0`, PARTITION `p1`)";

    #[test]
    fn columns_and_constraints_are_told_apart_whatever_they_hold() {
        let items = items(CREATE);
        assert_eq!(items.len(), 5, "{items:?}");
        assert_eq!(items[2], "`n` int(11) NOT NULL");
        assert!(items[4].ends_with("ON DELETE CASCADE"), "{items:?}");
    }

    #[test]
    fn all_of_a_column_stays_but_its_collation() {
        let items = items(CREATE);
        let definition = items[0].strip_prefix("`a` ").unwrap();
        assert_eq!(
            mended(definition),
            "varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'it''s \\', (' COMMENT 'x, `y`)' \
             CHECK (`a` <> ',')"
        );
        let definition = items[1].strip_prefix("`b``c` ").unwrap();
        let bin = "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";
        assert_eq!(mended(definition), format!("enum('a) COLLATE x','b') {bin} DEFAULT NULL"));
        assert_eq!(mended("char(3)"), format!("char(3) {bin}"));
    }
}
