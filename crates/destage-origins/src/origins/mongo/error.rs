//! What a failure of MongoDB means for the core.

use crate::contract::OriginError;
use destage_core::Fault;
use mongodb::bson::Document;
use mongodb::error::{Error, ErrorKind};

/// Classifies a failure of `what` and says it in words.
pub(super) fn classified(what: &str, place: &str, error: &Error) -> OriginError {
    let fault = match &*error.kind {
        ErrorKind::Command(command) => {
            let (code, message) = (command.code, &command.message);
            return failed(what, place, code, message);
        }
        ErrorKind::InvalidArgument { message, .. } => unsent(message),
        // These cannot be mended by waiting.
        ErrorKind::Authentication { .. }
        | ErrorKind::InvalidTlsConfig { .. }
        | ErrorKind::IncompatibleServer { .. } => Fault::Denied,
        ErrorKind::BsonSerialization(_) | ErrorKind::BsonDeserialization(_) => Fault::Failed,
        _ => Fault::Unavailable,
    };
    OriginError::new(fault, format!("failed to {what} at {place}: {}", error.kind))
}

/// What the driver does not send cannot be mended by waiting; of a message that is too long, the data are at fault.
fn unsent(message: &str) -> Fault {
    if message.starts_with("Message length") { Fault::Rejected } else { Fault::Denied }
}

/// The same for an error that stands in a reply.
pub(super) fn command_failed(what: &str, place: &str, error: &Document) -> OriginError {
    let code = error.get("code").and_then(super::types::integer).unwrap_or(0);
    let message = error.get_str("errmsg").unwrap_or("no reason was given");
    failed(what, place, i32::try_from(code).unwrap_or(0), message)
}

fn failed(what: &str, place: &str, code: i32, message: &str) -> OriginError {
    let fault = fault(code, message);
    let said = if fault == Fault::Rejected { without_values(code, message) } else { message };
    let error = OriginError::new(fault, format!("failed to {what} at {place}: {said} [{code}]"));
    if said == message { error } else { error.with_values(message) }
}

/// The server's words for a rejected document without its values.
fn without_values(code: i32, message: &str) -> &str {
    match code {
        // Behind the index stands the key that is there already.
        11000 | 11001 | 12582 => message.split(" dup key").next().unwrap_or_default(),
        1 if message.starts_with("UNIQUE constraint failed") => message,
        121 if message == DOCUMENT_FAILED => message,
        121 => DOCUMENT_FAILED,
        _ => "the document or a value in it was refused",
    }
}

const DOCUMENT_FAILED: &str = "Document failed validation";

/// By the server's number. What is not known to concern the data or the moment needs a person.
fn fault(code: i32, message: &str) -> Fault {
    match code {
        // A unique index; FerretDB on SQLite reports that of an update without a number of its own.
        11000 | 11001 | 12582 => Fault::Rejected,
        1 if message.contains("UNIQUE constraint failed") => Fault::Rejected,
        // What FerretDB holds in no document: arrays directly inside of arrays, names with dots.
        1 | 2 if FERRETDB_HOLDS_NONE.iter().any(|said| message.contains(said)) => Fault::Rejected,
        // A sum beyond its type.
        2 if message.contains("Failed to apply $inc") => Fault::Rejected,
        // A value of another type, a path through what is no document, names and sizes that documents cannot have, the
        // collection's validator, an index that cannot hold the value.
        14 | 28 | 52 | 55 | 57 | 66 | 121 | 171 | 10003 | 10334 | 16755 | 16804 | 17280 | 17419
        | 17420 | 34471 => Fault::Rejected,
        // The server's own trouble, its shutdown, its place in the replica set, locks, time and space.
        1
        | 6
        | 7
        | 24
        | 39
        | 43
        | 46
        | 50
        | 63
        | 64
        | 89
        | 91
        | 112
        | 117
        | 133
        | 134
        | 146
        | 150
        | 175
        | 189
        | 202
        | 234
        | 262
        | 291
        | 314
        | 365
        | 384
        | 394
        | 462
        | 9001
        | 10058
        | 10107
        | 11600..=11602
        | 13388
        | 13435
        | 13436
        | 14031 => Fault::Unavailable,
        _ => Fault::Denied,
    }
}

/// How FerretDB begins to say that it holds no such document.
const FERRETDB_HOLDS_NONE: [&str; 2] = ["invalid value: { \"", "invalid key: \""];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_to_do() {
        for (code, expected) in [
            (11000, Fault::Rejected),
            (121, Fault::Rejected),
            (14, Fault::Rejected),
            (28, Fault::Rejected),
            (10334, Fault::Rejected),
            (1, Fault::Unavailable),
            (50, Fault::Unavailable),
            (91, Fault::Unavailable),
            (189, Fault::Unavailable),
            (10107, Fault::Unavailable),
            (11602, Fault::Unavailable),
            (14031, Fault::Unavailable),
            (13, Fault::Denied),
            (18, Fault::Denied),
            (59, Fault::Denied),
            (79, Fault::Denied),
            (100, Fault::Denied),
        ] {
            assert_eq!(fault(code, "as said"), expected, "{code}");
        }
        assert_eq!(fault(1, "UNIQUE constraint failed: index 'x'"), Fault::Rejected);
        let nested = "invalid value: { \"a\": [ [ 1 ] ] } (nested arrays are not supported)";
        let dotted = "invalid key: \"a.b\" (key must not contain '.' sign)";
        for said in [nested, dotted] {
            assert_eq!([1, 2].map(|code| fault(code, said)), [Fault::Rejected; 2], "{said}");
        }
        assert_eq!(fault(2, "as said"), Fault::Denied);
    }

    #[test]
    fn a_sum_beyond_its_type_is_rejected_and_its_value_kept_apart() {
        let said = "Plan executor error during update :: caused by :: Failed to apply $inc operations to current value \
                    ((NumberLong)9223372036854775807) for document {_id: 1}";
        let error = failed("apply a batch", "the origin", 2, said);
        assert_eq!(error.fault, Fault::Rejected);
        assert!(!error.message.contains("9223372036854775807"), "{error}");
        assert!(error.in_full().contains("9223372036854775807"));
    }

    #[test]
    fn a_message_that_the_driver_does_not_send_is_rejected() {
        assert_eq!(unsent("Message length 50000000 over maximum 48000000"), Fault::Rejected);
        assert_eq!(unsent("as said"), Fault::Denied);
    }
}
