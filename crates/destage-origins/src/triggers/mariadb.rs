//! MariaDB's triggers:
//!
//! ```text
//! trigger    = set | BEGIN { set ; } END
//! set        = SET NEW . column = time { , NEW . column = time }
//! time       = NOW ( [ digits ] ) | CURRENT_TIMESTAMP [ ( [ digits ] ) ] | ...
//! ```

use super::{Columns, MORE, Unknown};
use crate::sql_text::{Cursor, Dialect, tokens};

/// What stands in comments may be carried out, and double quotes are names or texts as the mode has it.
const DIALECT: Dialect =
    Dialect { quotes: &[('`', '`')], has_comments: false, has_any_text: false };

/// These are the server's own where the parenthesis follows at once. Behind a blank it is a stored function's of that name.
const FUNCTIONS: [&str; 2] = ["now", "sysdate"];
const WORDS: [&str; 4] = ["current_timestamp", "localtime", "localtimestamp", "utc_timestamp"];

/// The columns that the statement of a `BEFORE` trigger sets in its own row, if that is all it does.
pub(crate) fn columns(statement: &str) -> Result<Columns, Unknown> {
    if FUNCTIONS.into_iter().any(|name| is_called_across_blanks(statement, name)) {
        return Err(MORE);
    }
    let tokens = tokens(statement, DIALECT).ok_or(MORE)?;
    trigger(&mut Cursor::new(&tokens)).ok_or(MORE)
}

/// Whether a parenthesis follows the name somewhere, and not at once.
fn is_called_across_blanks(statement: &str, name: &str) -> bool {
    let statement = statement.to_ascii_lowercase();
    statement.match_indices(name).any(|(at, _)| {
        let behind = &statement[at + name.len()..];
        !behind.starts_with('(') && behind.trim_start().starts_with('(')
    })
}

fn trigger(cursor: &mut Cursor<'_>) -> Option<Columns> {
    let mut columns = Vec::new();
    if cursor.words("begin").is_some() {
        while cursor.words("end").is_none() {
            set(cursor, &mut columns)?;
            cursor.sign(";")?;
        }
    } else {
        set(cursor, &mut columns)?;
    }
    let _ = cursor.sign(";");
    (cursor.is_at_end() && !columns.is_empty()).then_some(columns)
}

fn set(cursor: &mut Cursor<'_>, columns: &mut Columns) -> Option<()> {
    cursor.words("set")?;
    loop {
        cursor.words("new")?;
        cursor.sign(".")?;
        columns.push(cursor.name()?.to_owned());
        cursor.sign("=")?;
        time(cursor)?;
        if cursor.sign(",").is_none() {
            return Some(());
        }
    }
}

fn time(cursor: &mut Cursor<'_>) -> Option<()> {
    let mut call = *cursor;
    if call.any(&FUNCTIONS).is_some()
        && call.no_arguments().or_else(|| call.digits_argument()).is_some()
    {
        *cursor = call;
        return Some(());
    }
    cursor.any(&WORDS)?;
    let _ = cursor.no_arguments().or_else(|| cursor.digits_argument());
    Some(())
}
