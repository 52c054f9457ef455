//! What a failure of PostgreSQL means for the core.

use crate::contract::OriginError;
use destage_core::Fault;
use std::error::Error as _;
use tokio_postgres::Error;
use tokio_postgres::error::DbError;

/// Classifies a failure of `what` and says it in words.
pub(super) fn classified(what: &str, place: &str, error: &Error) -> OriginError {
    let Some(db) = error.as_db_error() else {
        let mut message = format!("failed to {what} at {place}: {error}");
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !message.contains(&cause_text) {
                message.push_str(": ");
                message.push_str(&cause_text);
            }
            source = cause.source();
        }
        return OriginError::new(Fault::Unavailable, message);
    };
    let state = db.code().code();
    let fault = fault(state, db.routine());
    if fault == Fault::Rejected {
        return rejected(what, place, db);
    }
    let message = format!("failed to {what} at {place}: {}", words(db.message(), db.detail(), db));
    let error = OriginError::new(fault, message);
    if state == CANCELLED { error.late() } else { error }
}

/// What the server's words for a rejected row hold of its values is kept apart: all of the detail, and where the message is
/// not one of those that name nothing but tables, columns and constraints, the message.
fn rejected(what: &str, place: &str, db: &DbError) -> OriginError {
    let state = db.code().code();
    let is_raised = db.routine() == Some(RAISING);
    let names_only = !is_raised && (state.starts_with("23") || NAMES_ONLY.contains(&state));
    let said = if names_only { db.message() } else { meaning(state) };
    let message = format!("failed to {what} at {place}: {}", words(said, None, db));
    let error = OriginError::new(Fault::Rejected, message);
    let values: Vec<&str> =
        (!names_only).then(|| db.message()).into_iter().chain(db.detail()).collect();
    if values.is_empty() { error } else { error.with_values(values.join("; ")) }
}

/// Classes of refusals whose messages hold no values: too long, division by zero, an exhausted sequence, too large for a
/// page.
const NAMES_ONLY: [&str; 4] = ["22001", "22012", "2200H", "54000"];
/// The server's function that raises what triggers and functions say in words of their own.
const RAISING: &str = "exec_stmt_raise";

/// What a class of refusals means.
fn meaning(state: &str) -> &'static str {
    match state {
        "22003" => "a number is out of range",
        "22007" | "22008" => "a date or time is out of range or not one",
        "22P02" | "22P03" | "22032" | "22018" => "a text is no value of its type",
        "22021" | "22P05" => "a character is none of the server's encoding",
        "P0001" | "45000" => "a trigger or function refused it",
        _ if state.starts_with("23") => "a trigger or function raised a violation",
        _ => "the row or a value in it was refused",
    }
}

/// The server's functions that hand out transaction numbers. They use 54000 too, when they are at their end before a vacuum.
const NUMBERING: [&str; 2] = ["GetNewTransactionId", "GetNewMultiXactId"];

/// By SQLSTATE, and by the server's function that raised it where a state has two meanings. What is not known to concern the
/// data or the moment needs a person.
pub(super) fn fault(state: &str, routine: Option<&str>) -> Fault {
    match state {
        "54000" if routine.is_some_and(|routine| NUMBERING.contains(&routine)) => Fault::Denied,
        // 54000: a row or an index entry too large for a page, which no second attempt makes smaller.
        "P0001" | "45000" | "54000" => Fault::Rejected,
        "25006" | "25P02" | "25P03" | "55P03" | "55006" => Fault::Unavailable,
        _ => match state.get(..2) {
            Some("22" | "23" | "44") => Fault::Rejected,
            Some("08" | "40" | "53" | "57" | "58" | "XX") => Fault::Unavailable,
            _ => Fault::Denied,
        },
    }
}

/// What ends a statement that takes longer than `statement_timeout`.
const CANCELLED: &str = "57014";

fn words(message: &str, detail: Option<&str>, db: &DbError) -> String {
    let mut text = message.to_owned();
    if let Some(detail) = detail {
        text.push_str(&format!(" ({})", detail.trim_end_matches('.')));
    }
    let names = [
        ("table", db.table()),
        ("column", db.column()),
        ("constraint", db.constraint()),
        // Of a rejected row, a trigger may have made the hint of its values.
        ("hint", db.hint().filter(|_| detail.is_some() || message == db.message())),
    ];
    for (name, value) in names {
        if let Some(value) = value {
            text.push_str(&format!("; {name}: {value}"));
        }
    }
    text.push_str(&format!(" [SQLSTATE {}]", db.code().code()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_say_what_to_do() {
        for (state, expected) in [
            ("22003", Fault::Rejected),
            ("2200H", Fault::Rejected),
            ("23505", Fault::Rejected),
            ("23503", Fault::Rejected),
            ("P0001", Fault::Rejected),
            ("45000", Fault::Rejected),
            ("40001", Fault::Unavailable),
            ("40P01", Fault::Unavailable),
            ("53300", Fault::Unavailable),
            ("55P03", Fault::Unavailable),
            ("57014", Fault::Unavailable),
            ("57P01", Fault::Unavailable),
            ("58030", Fault::Unavailable),
            ("08006", Fault::Unavailable),
            ("25006", Fault::Unavailable),
            ("42501", Fault::Denied),
            ("42P01", Fault::Denied),
            ("3F000", Fault::Denied),
            ("28P01", Fault::Denied),
            ("3D000", Fault::Denied),
        ] {
            assert_eq!(fault(state, None), expected, "{state}");
        }
    }

    #[test]
    fn a_server_without_transaction_numbers_rejects_no_row() {
        assert_eq!(fault("54000", Some("RelationGetBufferForTuple")), Fault::Rejected);
        for routine in ["GetNewTransactionId", "GetNewMultiXactId"] {
            assert_eq!(fault("54000", Some(routine)), Fault::Denied, "{routine}");
        }
    }
}
