//! What a failure of PostgreSQL means for the core.

use crate::origins::OriginError;
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
    let message = format!("failed to {what} at {place}: {}", words(db));
    let state = db.code().code();
    let error = OriginError::new(fault(state), message);
    if state == CANCELLED { error.late() } else { error }
}

/// By SQLSTATE. What is not known to concern the data or the moment needs a person.
pub(super) fn fault(state: &str) -> Fault {
    match state {
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

fn words(db: &DbError) -> String {
    let mut text = db.message().to_owned();
    if let Some(detail) = db.detail() {
        text.push_str(&format!(" ({})", detail.trim_end_matches('.')));
    }
    let names = [
        ("table", db.table()),
        ("column", db.column()),
        ("constraint", db.constraint()),
        ("hint", db.hint()),
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
            assert_eq!(fault(state), expected, "{state}");
        }
    }
}
