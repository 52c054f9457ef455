//! Text of SQL statements, shared by the origins. Values never go in here: they are bound as parameters.

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
