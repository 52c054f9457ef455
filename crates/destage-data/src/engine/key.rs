//! Keys: `table:pk`, for composite primary keys `table:a:b`, and those that the settings map.
//!
//! Inside a table's name and inside the parts of a composite key, `:` is written `%3A`, and `%` is written `%25` where it would
//! begin an escape. With one key column, everything after the first colon is the value, as it is.

use crate::cells::{Cell, Reader, push_cell};
use crate::key_text::{decode, encode, show};
use crate::mapping::Shape;
use crate::resp::ReplyError;
use crate::schema::{Schema, Table};

/// Reads a key of either kind; the canonical key cells of its row are appended to `out`.
///
/// # Errors
/// A message that says which keys would work.
pub(crate) fn resolve<'s>(
    schema: &'s Schema,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<(&'s Table, Shape), ReplyError> {
    if !schema.mappings.is_empty()
        && let Some(mapped) = schema.mappings.resolve(schema, key, out)
    {
        let mapped = mapped.map_err(ReplyError::err)?;
        return Ok((schema.table(mapped.table), mapped.shape));
    }
    if let Some(plain) = schema.plain_of(key) {
        push_cell(out, Cell::Value(key));
        return Ok((schema.table(plain), Shape::Plain));
    }
    parse_key(schema, key, out)
        .map(|table| (table, Shape::Hash))
        .map_err(|error| if schema.names_table(key) { error } else { with_the_option(&error, key) })
}

/// The error for a key that names no row, and which setting would serve it.
fn with_the_option(error: &ReplyError, key: &[u8]) -> ReplyError {
    let prefix = memchr::memchr(b':', key).map(|colon| &key[..=colon]).filter(|prefix| {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte);
        prefix.len() > 1 && prefix.len() <= 64 && prefix.iter().all(is_plain)
    });
    let prefix = String::from_utf8_lossy(prefix.unwrap_or(b"sess:"));
    ReplyError::err(format!(
        "{}; keys without a table are held in memory alone where unmapped (--unmapped) names how they begin, such as '{prefix}*'",
        error.text()
    ))
}

/// Reads a key; its canonical key cells are appended to `out`.
///
/// # Errors
/// A message that says which keys would work.
pub(crate) fn parse_key<'s>(
    schema: &'s Schema,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<&'s Table, ReplyError> {
    let Some(colon) = memchr::memchr(b':', key) else {
        return Err(ReplyError::err(format!(
            "the key '{}' names no row: keys are table:primary-key; tables: {}",
            show(key),
            table_names(schema)
        )));
    };
    let (name, rest) = (&key[..colon], &key[colon + 1..]);
    let Some(table) = schema.find(&decode(name)) else {
        return Err(unknown_table(schema, name));
    };
    let start = out.len();
    let result = parse_parts(table, rest, out);
    if result.is_err() {
        out.truncate(start);
    }
    result.map(|()| table)
}

/// The table that a key names, and the row's key cells.
///
/// # Errors
/// As for [`parse_key`].
pub(crate) fn key_cells<'s>(
    schema: &'s Schema,
    key: &[u8],
) -> Result<(&'s Table, Vec<u8>), ReplyError> {
    let mut cells = Vec::with_capacity(key.len());
    parse_key(schema, key, &mut cells).map(|table| (table, cells))
}

fn parse_parts(table: &Table, rest: &[u8], out: &mut Vec<u8>) -> Result<(), ReplyError> {
    if let [column] = table.key() {
        return push_value(table, column, rest, out);
    }
    let mut parts = rest.split(|&byte| byte == b':');
    for column in table.key() {
        let part = parts.next().ok_or_else(|| wrong_parts(table, rest))?;
        push_value(table, column, &decode(part), out)?;
    }
    match parts.next() {
        None => Ok(()),
        Some(_) => Err(wrong_parts(table, rest)),
    }
}

fn push_value(
    table: &Table,
    column: &crate::schema::Column,
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), ReplyError> {
    let canonical = column.ty.canonical(value).map_err(|error| {
        ReplyError::err(format!(
            "the key column {}.{} ({}) does not take '{}': {error}",
            table.name,
            column.name,
            column.type_name,
            show(value)
        ))
    })?;
    push_cell(out, Cell::Value(&canonical));
    Ok(())
}

fn wrong_parts(table: &Table, rest: &[u8]) -> ReplyError {
    let columns: Vec<&str> = table.key().iter().map(|column| column.name.as_str()).collect();
    ReplyError::err(format!(
        "'{}' does not name one row of {}: its key is {}:<{}> (write ':' inside a part as %3A)",
        show(rest),
        table.name,
        table.name,
        columns.join(">:<")
    ))
}

pub(crate) fn unknown_table(schema: &Schema, name: &[u8]) -> ReplyError {
    let name = decode(name);
    let reason = schema.unreachable.iter().find(|table| table.name.as_bytes() == &name[..]);
    match reason {
        Some(table) => ReplyError::err(format!(
            "the table '{}' cannot be reached: {}",
            show(&name),
            table.reason
        )),
        None => ReplyError::err(format!(
            "there is no table '{}': keys are table:primary-key; tables: {}",
            show(&name),
            table_names(schema)
        )),
    }
}

/// The first tables' names.
fn table_names(schema: &Schema) -> String {
    const SHOWN_MAX: usize = 10;
    let escaped = |table: &Table| {
        let mut name = Vec::new();
        encode(table.name.as_bytes(), &mut name);
        String::from_utf8_lossy(&name).into_owned()
    };
    let shown: Vec<String> = schema.reachable().iter().take(SHOWN_MAX).map(escaped).collect();
    match (shown.len(), schema.reachable().len().saturating_sub(SHOWN_MAX)) {
        (0, _) => "none that a key reaches was found (see `destage schema`)".into(),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more (see `destage schema`)", shown.join(", ")),
    }
}

/// A row's key as clients write it, for a message.
pub(crate) fn key_shown(table: &Table, key: &[u8]) -> String {
    let mut text = Vec::new();
    format_key(table, Reader::new(key), &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes a row's key as clients write it.
pub(crate) fn format_key<'a>(
    table: &Table,
    parts: impl Iterator<Item = Cell<'a>>,
    out: &mut Vec<u8>,
) {
    encode(table.name.as_bytes(), out);
    for part in parts.take(table.key_len) {
        let value = part.value().unwrap_or_default();
        out.push(b':');
        match table.key_len {
            1 => out.extend_from_slice(value),
            _ => encode(value, out),
        }
    }
}

/// A key's place in the order in which origins scan: numbers by value, everything else by bytes.
pub(crate) fn order_key(table: &Table, key: &[u8]) -> Vec<u8> {
    use crate::value::ColumnType;
    let mut out = Vec::with_capacity(key.len() + 8);
    for (cell, column) in Reader::new(key).zip(table.key()) {
        let value = cell.value().unwrap_or_default();
        let number = match column.ty {
            ColumnType::Int { .. } => std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            _ => None::<i64>,
        };
        if let Some(number) = number {
            out.extend_from_slice(&(number as u64 ^ 1 << 63).to_be_bytes());
            continue;
        }
        // Escaped zeros and a terminator keep the order of parts of different lengths.
        for &byte in value {
            out.push(byte);
            if byte == 0 {
                out.push(0xff);
            }
        }
        out.extend_from_slice(&[0, 0]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::Reader;
    use crate::schema::{Column, ColumnDefault};
    use crate::value::ColumnType;
    use proptest::prelude::*;

    fn column(name: &str, ty: ColumnType) -> Column {
        Column {
            name: name.into(),
            sql_name: name.into(),
            ty,
            type_name: "type".into(),
            not_null: true,
            default: ColumnDefault::None,
            generated: false,
            structural: true,
            checked: false,
        }
    }

    fn schema() -> Schema {
        let int = ColumnType::Int { min: i64::MIN, max: i64::MAX };
        let text = ColumnType::Text { chars_max: None };
        let mut single = Table::named("one".into(), "one".into());
        (single.columns, single.key_len) = (vec![column("id", int.clone())], 1);
        let mut pair = Table::named("pair".into(), "pair".into());
        (pair.columns, pair.key_len) = (vec![column("a", text.clone()), column("b", int)], 2);
        let mut word = Table::named("word".into(), "word".into());
        (word.columns, word.key_len) = (vec![column("w", text)], 1);
        Schema::new(vec![single, pair, word], vec![])
    }

    fn round_trip(key: &str) -> Result<String, ReplyError> {
        let schema = schema();
        let mut cells = Vec::new();
        let table = parse_key(&schema, key.as_bytes(), &mut cells)?;
        let mut out = Vec::new();
        format_key(table, Reader::new(&cells), &mut out);
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn spellings_of_one_key_are_one_key() {
        for spelling in ["one:1", "one:01", "one:000000000001", "one:+1"] {
            assert_eq!(round_trip(spelling).as_deref(), Ok("one:1"), "{spelling}");
        }
    }

    #[test]
    fn colons_and_percent_signs_survive() {
        for key in ["pair:a%3Ab:5", "pair:%253A:5", "pair:100%:5"] {
            assert_eq!(round_trip(key).as_deref(), Ok(key));
        }
    }

    #[test]
    fn a_key_of_one_column_is_what_stands_behind_the_colon() {
        for value in ["a:b", "a%3Ab", "%253A", "%25", "%", "http%3a//x", ""] {
            let key = format!("word:{value}");
            assert_eq!(round_trip(&key).as_deref(), Ok(&key[..]));
            let mut cells = Vec::new();
            parse_key(&schema(), key.as_bytes(), &mut cells).unwrap();
            let cell = Reader::new(&cells).next().and_then(Cell::value);
            assert_eq!(cell, Some(value.as_bytes()));
        }
    }

    /// Bytes among which escapes, and what looks like them, are frequent.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            proptest::sample::select(vec!["%", ":", "%3A", "%3a", "%25", "3A", "25", "a"])
                .prop_map(|text| text.as_bytes().to_vec()),
            any::<u8>().prop_map(|byte| vec![byte]),
        ];
        proptest::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn a_row_is_found_by_the_key_that_is_written_for_it(
            name in "[%:3Aa25]{1,8}",
            values in proptest::collection::vec(bytes(), 1..4),
        ) {
            let mut table = Table::named(name.clone(), name);
            table.columns = values.iter().map(|_| column("c", ColumnType::Bytes)).collect();
            table.key_len = values.len();
            let schema = Schema::new(vec![table], vec![]);
            let mut cells = Vec::new();
            values.iter().for_each(|value| push_cell(&mut cells, Cell::Value(value)));
            let mut key = Vec::new();
            format_key(&schema.tables[0], Reader::new(&cells), &mut key);
            let mut read = Vec::new();
            let table = parse_key(&schema, &key, &mut read).map(|table| table.id);
            prop_assert_eq!(table, Ok(schema.tables[0].id));
            prop_assert_eq!(read, cells);
        }
    }

    #[test]
    fn errors_say_what_would_work() {
        for (key, hint) in [
            ("nokey", "tables: one, pair, word"),
            ("other:1", "tables: one, pair, word"),
            ("one:x", "one.id"),
            ("pair:a", "pair:<a>:<b>"),
            ("pair:a:1:2", "%3A"),
        ] {
            let error = round_trip(key).unwrap_err();
            assert!(error.text().contains(hint), "{error}");
        }
    }

    #[test]
    fn order_is_by_number_then_by_bytes() {
        let schema = schema();
        let order = |key: &str| {
            let mut cells = Vec::new();
            let table = parse_key(&schema, key.as_bytes(), &mut cells).unwrap();
            order_key(table, &cells)
        };
        let ordered = ["pair::1", "pair:a:-5", "pair:a:9", "pair:a:10", "pair:ab:0", "pair:b:0"];
        assert!(ordered.windows(2).all(|pair| order(pair[0]) < order(pair[1])));
    }
}
