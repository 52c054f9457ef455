//! What an error of SQLite means: the row is refused, the database is out of reach, or someone must mend something.

use crate::contract::OriginError;
use destage_core::Fault;
use rusqlite::{Connection, ErrorCode, ffi};
use std::fmt;
use std::path::Path;

/// Classifies the error of opening, preparing or committing.
pub(super) fn classify(error: &rusqlite::Error, doing: &str) -> OriginError {
    described(error, fault(error, Fault::Denied), doing)
}

/// Classifies the error of running the statement `sql`: what SQLite only finds out while it computes with values (a function
/// in a CHECK, a trigger or an index that refuses them) is the fault of these. But a statement is prepared anew when the
/// schema has changed, and may not fit that any more, whatever the values are.
pub(super) fn classify_row(
    error: &rusqlite::Error,
    (connection, sql): (&Connection, &str),
    doing: &str,
) -> OriginError {
    if error.sqlite_error_code() == Some(ErrorCode::Unknown)
        && let Err(unfit) = connection.prepare(sql)
    {
        return classify(&unfit, doing);
    }
    described(error, fault(error, Fault::Rejected), doing)
}

/// What SQLite says itself of a violated constraint names columns and constraints. Triggers and functions may say values of
/// the row, which are kept apart.
fn described(error: &rusqlite::Error, fault: Fault, doing: &str) -> OriginError {
    let whole = text(error);
    match error {
        rusqlite::Error::SqliteFailure(failure, Some(_))
            if fault == Fault::Rejected
                && (failure.code != ErrorCode::ConstraintViolation
                    || failure.extended_code == ffi::SQLITE_CONSTRAINT_TRIGGER) =>
        {
            let kind = match failure.code {
                ErrorCode::ConstraintViolation => "a trigger refused it",
                ErrorCode::Unknown => "the row or a value in it was refused",
                _ => ffi::code_to_str(failure.extended_code),
            };
            OriginError::new(fault, format_args!("{doing}: {kind}")).with_values(whole)
        }
        _ => OriginError::new(fault, format_args!("{doing}: {whole}")),
    }
}

/// Something that the user must change.
pub(super) fn refused(message: impl fmt::Display) -> OriginError {
    OriginError::new(Fault::Denied, message)
}

/// Classifies errors of doing something with a file.
pub(super) fn unavailable_at(doing: &str, path: &Path) -> impl Fn(rusqlite::Error) -> OriginError {
    move |error| classify(&error, &format!("{doing} {}", path.display()))
}

fn fault(error: &rusqlite::Error, generic: Fault) -> Fault {
    let rusqlite::Error::SqliteFailure(failure, _) = error else {
        return Fault::Denied;
    };
    match failure.code {
        ErrorCode::ConstraintViolation
        | ErrorCode::TypeMismatch
        | ErrorCode::TooBig
        | ErrorCode::ParameterOutOfRange => Fault::Rejected,
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::DiskFull
        | ErrorCode::SystemIoFailure
        | ErrorCode::OutOfMemory
        | ErrorCode::CannotOpen
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OperationInterrupted
        | ErrorCode::OperationAborted => Fault::Unavailable,
        ErrorCode::Unknown => generic,
        _ => Fault::Denied,
    }
}

fn text(error: &rusqlite::Error) -> String {
    let hint = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            " (another connection holds its lock)"
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            " (the file and its folder must be writable)"
        }
        Some(ErrorCode::DatabaseCorrupt) => " (restore it or run `PRAGMA integrity_check`)",
        Some(ErrorCode::NotADatabase) => " (not a SQLite database, or an encrypted one)",
        _ => "",
    };
    format!("{error}{hint}")
}
