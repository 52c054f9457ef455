//! PostgreSQL's functions in plpgsql:
//!
//! ```text
//! function   = BEGIN { NEW . column ( := | = ) time ; } RETURN NEW ; END [ ; ]
//! time       = clock { AT TIME ZONE text } | timezone ( text , time ) | ( time )
//! clock      = now() | clock_timestamp() | ... | CURRENT_TIMESTAMP [ (digits) ] | ...
//! ```

use super::{Columns, MORE, Unknown};
use crate::sql_text::{Cursor, Dialect, tokens};

const DIALECT: Dialect = Dialect { quotes: &[('"', '"')], has_comments: true, has_any_text: false };

/// The functions that may be called. They are PostgreSQL's own as long as no other schema has one of the name.
pub(crate) const FUNCTIONS: [&str; 5] =
    ["now", "clock_timestamp", "statement_timestamp", "transaction_timestamp", "timezone"];
/// Words of the grammar, which nobody can define anew.
const WORDS: [&str; 5] =
    ["current_timestamp", "localtimestamp", "current_date", "current_time", "localtime"];

/// The columns that a function sets in its own row, if that is all it does.
pub(crate) fn columns(source: &str) -> Result<Columns, Unknown> {
    let tokens = tokens(source, DIALECT).ok_or(MORE)?;
    function(&mut Cursor::new(&tokens)).ok_or(MORE)
}

fn function(cursor: &mut Cursor<'_>) -> Option<Columns> {
    let mut columns = Vec::new();
    cursor.words("begin")?;
    while cursor.words("return new").is_none() {
        cursor.words("new")?;
        cursor.sign(".")?;
        columns.push(cursor.name()?.to_owned());
        cursor.sign(":=").or_else(|| cursor.sign("="))?;
        time(cursor, 0)?;
        cursor.sign(";")?;
    }
    cursor.sign(";")?;
    cursor.words("end")?;
    let _ = cursor.sign(";");
    (cursor.is_at_end() && !columns.is_empty()).then_some(columns)
}

fn time(cursor: &mut Cursor<'_>, depth: u32) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    if cursor.sign("(").is_some() {
        time(cursor, depth + 1)?;
        cursor.sign(")")?;
    } else if cursor.any(&WORDS).is_some() {
        let _ = cursor.digits_argument();
    } else if cursor.words("timezone").is_some() {
        cursor.sign("(")?;
        cursor.text()?;
        cursor.sign(",")?;
        time(cursor, depth + 1)?;
        cursor.sign(")")?;
    } else {
        cursor.any(&FUNCTIONS)?;
        cursor.no_arguments()?;
    }
    while cursor.words("at time zone").is_some() {
        cursor.text()?;
    }
    Some(())
}

const DEPTH_MAX: u32 = 8;

/// Whether the condition of a trigger, as the server writes it, only compares the old row with the new one.
pub(crate) fn is_plain_condition(condition: &str) -> bool {
    let plain = || -> Option<()> {
        let tokens = tokens(condition, DIALECT)?;
        let mut cursor = Cursor::new(&tokens);
        comparisons(&mut cursor, 0)?;
        cursor.is_at_end().then_some(())
    };
    plain().is_some()
}

fn comparisons(cursor: &mut Cursor<'_>, depth: u32) -> Option<()> {
    if depth > DEPTH_MAX {
        return None;
    }
    loop {
        if cursor.sign("(").is_some() {
            comparisons(cursor, depth + 1)?;
            cursor.sign(")")?;
        } else {
            side(cursor, "old")?;
            cursor.words("is distinct from")?;
            side(cursor, "new")?;
        }
        if cursor.any(&["or", "and"]).is_none() {
            return Some(());
        }
    }
}

fn side(cursor: &mut Cursor<'_>, row: &str) -> Option<()> {
    cursor.words(row)?;
    cursor.sign(".")?;
    cursor.sign("*").or_else(|| cursor.name().map(drop))
}
