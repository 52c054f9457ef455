//! Text of SQL statements, shared by the origins. Values never go in here: they are bound as parameters.

use crate::plan::{Bucket, Target};
use crate::schema::Table;

/// An identifier as both SQLite and PostgreSQL read it literally.
pub(crate) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The items with `separator` between them.
pub(crate) fn join<T: AsRef<str>>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    let mut out = String::new();
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        out.push_str(item.as_ref());
    }
    out
}

/// What PostgreSQL and SQLite do with new rows of a table that meet one with the same primary key; nothing unless its new rows
/// are merged. No other unique index is named, so each still rejects.
pub(crate) fn on_conflict(table: &Table, bucket: &Bucket<'_>) -> String {
    if !table.merges_new {
        return String::new();
    }
    let key = join(table.key().iter().map(|column| &column.sql_name), ", ");
    let set = |target: &Target| {
        let name = &table.columns[usize::from(target.column)].sql_name;
        format!("{name} = excluded.{name}")
    };
    match join(bucket.columns.iter().map(set), ", ") {
        none if none.is_empty() => format!(" ON CONFLICT ({key}) DO NOTHING"),
        sets => format!(" ON CONFLICT ({key}) DO UPDATE SET {sets}"),
    }
}

/// A row's key for messages: its values separated by colons, unprintable bytes escaped, cut after 64 characters each.
pub(crate) fn shown_key(key: &[u8]) -> String {
    let values = crate::cells::Reader::new(key).map(|cell| {
        let shown = cell.value().unwrap_or_default().escape_ascii().to_string();
        if shown.len() > 64 { format!("{}...", &shown[..64]) } else { shown }
    });
    join(values, ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};

    #[test]
    fn quotes_in_identifiers_are_doubled() {
        assert_eq!(identifier("order"), "\"order\"");
        assert_eq!(identifier("a\"; DROP TABLE b; --"), "\"a\"\"; DROP TABLE b; --\"");
    }

    #[test]
    fn keys_are_shown_escaped_and_cut() {
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"a\n"));
        push_cell(&mut key, Cell::Value(&[b'x'; 100]));
        assert_eq!(shown_key(&key), format!("a\\n:{}...", "x".repeat(64)));
    }
}
