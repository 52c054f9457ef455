//! SQLite's triggers, which set columns of their own row behind the change of it:
//!
//! ```text
//! trigger    = CREATE TRIGGER name AFTER ( INSERT | UPDATE [ OF column { , column } ] ) ON table [ FOR EACH ROW ]
//!              [ WHEN condition ] BEGIN { update ; } END
//! condition  = ( OLD | NEW ) . column ( = | IS [ NOT ] ) ( OLD | NEW ) . column
//! update     = UPDATE table SET column = time { , column = time } WHERE key = ( NEW | OLD ) . key { AND ... }
//! time       = CURRENT_TIMESTAMP | datetime ( 'now' [ , text ] ) | strftime ( text , 'now' ) | unixepoch ( ) | ...
//! ```

use super::{Columns, MORE, Trigger};
use crate::schema::Table;
use crate::sql_text::{Cursor, Dialect, tokens};

const DIALECT: Dialect = Dialect {
    quotes: &[('"', '"'), ('`', '`'), ('[', ']')],
    has_comments: true,
    has_any_text: false,
};

/// What a trigger of this table does.
pub(crate) fn trigger(name: String, sql: &str, table: &Table) -> Trigger {
    let mut trigger = Trigger {
        name,
        on_insert: false,
        on_update: false,
        is_conditional: false,
        // NOT NULL is checked before it fires.
        fills: false,
        sets: Err(MORE),
    };
    trigger.sets = tokens(sql, DIALECT)
        .and_then(|tokens| read(&mut Cursor::new(&tokens), table, &mut trigger))
        .ok_or(MORE);
    trigger
}

fn read(cursor: &mut Cursor<'_>, table: &Table, trigger: &mut Trigger) -> Option<Columns> {
    cursor.words("create trigger")?;
    cursor.name()?;
    cursor.words("after")?;
    if cursor.any(&["insert", "update"])? == "insert" {
        trigger.on_insert = true;
    } else {
        trigger.on_update = true;
        if cursor.words("of").is_some() {
            trigger.is_conditional = true;
            cursor.name()?;
            while cursor.sign(",").is_some() {
                cursor.name()?;
            }
        }
    }
    cursor.words("on")?;
    is(cursor.name()?, &table.name)?;
    let _ = cursor.words("for each row");
    if cursor.words("when").is_some() {
        trigger.is_conditional = true;
        condition(cursor)?;
    }
    cursor.words("begin")?;
    let mut columns = Vec::new();
    while cursor.words("end").is_none() {
        update(cursor, table, &mut columns)?;
        cursor.sign(";")?;
    }
    let _ = cursor.sign(";");
    (cursor.is_at_end() && !columns.is_empty()).then_some(columns)
}

fn is(name: &str, expected: &str) -> Option<()> {
    name.eq_ignore_ascii_case(expected).then_some(())
}

fn condition(cursor: &mut Cursor<'_>) -> Option<()> {
    let is_enclosed = cursor.sign("(").is_some();
    cursor.any(&["old", "new"])?;
    cursor.sign(".")?;
    cursor.name()?;
    if cursor.sign("=").is_none() {
        cursor.words("is")?;
        let _ = cursor.words("not");
    }
    cursor.any(&["old", "new"])?;
    cursor.sign(".")?;
    cursor.name()?;
    if is_enclosed { cursor.sign(")") } else { Some(()) }
}

fn update(cursor: &mut Cursor<'_>, table: &Table, columns: &mut Columns) -> Option<()> {
    cursor.words("update")?;
    is(cursor.name()?, &table.name)?;
    cursor.words("set")?;
    loop {
        columns.push(cursor.name()?.to_owned());
        cursor.sign("=")?;
        time(cursor)?;
        if cursor.sign(",").is_none() {
            break;
        }
    }
    cursor.words("where")?;
    // The whole key, which never changes: so it is this row and no other.
    let mut missing: Vec<&str> = table.key().iter().map(|column| column.name.as_str()).collect();
    loop {
        let name = cursor.name()?;
        cursor.sign("=")?;
        cursor.any(&["new", "old"])?;
        cursor.sign(".")?;
        is(cursor.name()?, name)?;
        let at = missing.iter().position(|column| column.eq_ignore_ascii_case(name));
        // A rowid that is no column of the table names the row as well.
        if name.eq_ignore_ascii_case("rowid") && table.column_like("rowid").is_none() {
            missing.clear();
        } else {
            missing.remove(at?);
        }
        if cursor.words("and").is_none() {
            return missing.is_empty().then_some(());
        }
    }
}

fn time(cursor: &mut Cursor<'_>) -> Option<()> {
    if cursor.sign("(").is_some() {
        time_inside(cursor)?;
        return cursor.sign(")");
    }
    time_inside(cursor)
}

fn time_inside(cursor: &mut Cursor<'_>) -> Option<()> {
    if cursor.any(&["current_timestamp", "current_date", "current_time"]).is_some() {
        return Some(());
    }
    let function =
        cursor.any(&["datetime", "date", "time", "julianday", "unixepoch", "strftime"])?;
    cursor.sign("(")?;
    // Texts only: a format, the time, how it is shown.
    let mut texts: Vec<&str> = Vec::new();
    if cursor.sign(")").is_none() {
        loop {
            texts.push(cursor.text()?);
            if cursor.sign(",").is_none() {
                break;
            }
        }
        cursor.sign(")")?;
    }
    let place = usize::from(function == "strftime");
    texts.get(place).is_none_or(|text| *text == "now").then_some(())
}
