//! Defaults that are constants, and those that can be given here.

use super::super::connection::Connection;
use super::super::literal::push_read;
use super::queries::Facts;
use crate::cells::Reader;
use crate::contract::OriginError;
use crate::defaults::Formula;
use crate::origins::quote::join;
use crate::schema::{ColumnDefault, Table};

/// Evaluates those defaults that are literals and enters them; the others only the origin can tell.
pub(super) fn evaluate(
    connection: &mut Connection,
    facts: &Facts,
    tables: &mut [Table],
) -> Result<(), OriginError> {
    let mut places = Vec::new();
    let mut literals = Vec::new();
    for (at, table) in tables.iter().enumerate() {
        for attribute in facts.attributes.get(&table.name).into_iter().flatten() {
            let literal = attribute.default.as_deref().filter(|text| is_literal(text));
            let place = table.columns.iter().position(|c| c.name == attribute.name);
            if let (Some(literal), Some(place)) = (literal, place)
                && !attribute.extra.contains("auto_increment")
            {
                places.push((at, place));
                literals.push(literal);
            }
        }
    }
    for (places, literals) in places.chunks(AT_ONCE).zip(literals.chunks(AT_ONCE)) {
        let sql = format!("SELECT {}", join(literals, ", "));
        let rows = connection.rows("evaluate the defaults", &sql)?;
        let values = rows.first().into_iter().flatten();
        for (&(table, column), value) in places.iter().zip(values) {
            let column = &mut tables[table].columns[column];
            let mut cell = Vec::new();
            push_read(&mut cell, &column.ty, value.as_deref());
            let value = Reader::new(&cell).cell().and_then(|cell| cell.value());
            column.default = match value.map(|value| column.ty.canonical(value)) {
                None => ColumnDefault::None,
                Some(Ok(value)) => ColumnDefault::Constant(value.into_owned()),
                Some(Err(_)) => ColumnDefault::Computed,
            };
        }
    }
    Ok(())
}

/// What the expression computes, as the catalogue writes it. The sessions of Destage are in UTC.
pub(super) fn formula(expression: &str) -> Option<Formula> {
    let text = expression.to_ascii_lowercase();
    let (name, arguments) = text.split_at(text.find('(').unwrap_or(text.len()));
    match (name, arguments) {
        (
            "current_timestamp" | "now" | "localtimestamp" | "localtime" | "utc_timestamp",
            digits,
        ) => Formula::time(digits, 0),
        ("curdate" | "current_date" | "utc_date", "" | "()") => Some(Formula::Date),
        ("uuid" | "uuid_v4", "()") => Some(Formula::Uuid),
        _ => None,
    }
}

/// Whether the expression is one number, or one text without what the session's mode might read in another way.
fn is_literal(expression: &str) -> bool {
    if let Some(body) = expression.strip_prefix('\'').and_then(|text| text.strip_suffix('\'')) {
        return !body.replace("''", "").contains(['\'', '\\']);
    }
    let digits = expression.strip_prefix('-').unwrap_or(expression);
    let number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    !digits.is_empty() && digits.bytes().all(number) && digits.bytes().any(|b| b.is_ascii_digit())
}

/// Defaults asked for in one query.
const AT_ONCE: usize = 500;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_told_from_what_may_change() {
        for constant in ["0", "-1", "1.50", "'new'", "'it''s'", "''"] {
            assert!(is_literal(constant), "{constant}");
        }
        for computed in [
            "current_timestamp()",
            "uuid()",
            "NULL",
            "1 + 1",
            "'a' || 'b'",
            "'\\\\'",
            "nextval(`d`.`s`)",
            "-",
            ".",
        ] {
            assert!(!is_literal(computed), "{computed}");
        }
    }

    #[test]
    fn what_can_be_given_here_is_told_from_what_cannot() {
        let time = |digits| Some(Formula::Time { digits });
        for (expression, expected) in [
            ("current_timestamp()", time(0)),
            ("current_timestamp(6)", time(6)),
            ("CURRENT_TIMESTAMP", time(0)),
            ("utc_timestamp(3)", time(3)),
            ("curdate()", Some(Formula::Date)),
            ("uuid()", Some(Formula::Uuid)),
        ] {
            assert_eq!(formula(expression), expected, "{expression}");
        }
        for other in [
            "'uuid()'",
            "current_timestamp() + interval 1 day",
            "replace(uuid(),'-','')",
            "uuid_short()",
            "curtime()",
            "sysdate(6) + 0",
            "nextval(`d`.`s`)",
            "unix_timestamp()",
            "",
        ] {
            assert_eq!(formula(other), None, "{other}");
        }
    }
}
