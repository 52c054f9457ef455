//! What a failure of MariaDB means for the core.

use crate::contract::OriginError;
use crate::origins::bound::exceeded;
use destage_core::Fault;
use mysql_async::{Error, IoError};

/// Classifies a failure of `what` and says it in words.
pub(super) fn classified(what: &str, place: &str, error: &Error) -> OriginError {
    match error {
        Error::Server(server) => {
            let (code, state) = (server.code, &server.state);
            let words = |said: &str| {
                format!("failed to {what} at {place}: {said} [{code}, SQLSTATE {state}]")
            };
            let fault = fault(code, state);
            if fault == Fault::Rejected {
                let said = without_values(code, &server.message);
                let error = OriginError::new(fault, words(&said));
                return if said == server.message {
                    error
                } else {
                    error.with_values(&*server.message)
                };
            }
            let error = OriginError::new(fault, words(&server.message));
            if STATEMENT_TIMEOUTS.contains(&server.code) { error.late() } else { error }
        }
        // The URL was looked at before; what is left of it cannot be mended by waiting.
        Error::Url(error) => {
            OriginError::new(Fault::Denied, format!("failed to {what} at {place}: {error}"))
        }
        Error::Io(IoError::Io(error)) if error.to_string().starts_with(PACKET_TOO_LARGE) => {
            exceeded(what, place)
        }
        error => {
            OriginError::new(Fault::Unavailable, format!("failed to {what} at {place}: {error}"))
        }
    }
}

/// The server's words for a rejected row without its values: of the messages that hold some, the names behind them.
fn without_values(code: u16, message: &str) -> String {
    let names = |what: &str, before: &str| match message.rsplit_once(before) {
        Some((_, names)) => format!("{what}{before}{names}"),
        None => what.to_owned(),
    };
    match code {
        1048 | 1118 | 1153 | 1216 | 1217 | 1264 | 1265 | 1364 | 1406 | 1451 | 1452 | 4025 => {
            message.to_owned()
        }
        1062 => names("duplicate entry", " for key "),
        1292 | 1366 | 1411 => names("incorrect value", " for column "),
        // Rows that are merged, see `on_duplicate`.
        1242 => {
            "a new row has the unique values of a row with another primary key, or a query found several rows where it may \
             find one"
                .to_owned()
        }
        1644 => "a trigger refused it".to_owned(),
        _ => "the row or a value in it was refused".to_owned(),
    }
}

/// What the client says of a packet that announces more than it was told to take; its error has no other name.
const PACKET_TOO_LARGE: &str = "Packet is larger than max_allowed_packet";

/// What ends a statement that takes longer than `max_statement_time`.
const STATEMENT_TIMEOUTS: [u16; 2] = [1969, 3024];

/// What a statement is told that writes in a transaction which cannot.
pub(super) const READ_ONLY_TRANSACTION: u16 = 1792;

/// By the server's number, and by SQLSTATE where many numbers share a meaning. What is not known to concern the data or the
/// moment needs a person.
fn fault(code: u16, state: &str) -> Fault {
    match code {
        // A field without default, a value cut or unfit for the column's character set, a row too large, a SIGNAL, a value
        // beyond every partition, JSON that is none, several rows for one.
        1118 | 1139 | 1153 | 1242 | 1265 | 1267 | 1270 | 1271 | 1364 | 1366 | 1411 | 1526
        | 1644 | 1748 | 3140 | 4038 => Fault::Rejected,
        // Files, memory, disk, connections, locks, deadlocks, shutdown, interruption, a definition changed meanwhile, the
        // engine's own trouble, a primary that became a replica.
        1..=40
        | 1011
        | 1014..=1016
        | 1020
        | 1021
        | 1023..=1026
        | 1028
        | 1030
        | 1037
        | 1038
        | 1040
        | 1041
        | 1053
        | 1114
        | 1135
        | 1158..=1161
        | 1180
        | 1181
        | 1184
        | 1203
        | 1205
        | 1206
        | 1213
        | 1226
        | 1290
        | 1317
        | 1412
        | 1613
        | 1615
        | 1792
        | 1836
        | 1879
        | 1927
        | 1969
        | 3024
        | 3168 => Fault::Unavailable,
        _ => match state.get(..2) {
            Some("22" | "23" | "44" | "45") => Fault::Rejected,
            Some("08" | "40" | "70") => Fault::Unavailable,
            _ => Fault::Denied,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_rejected_row_the_names_are_told_and_no_values() {
        for (code, message, expected) in [
            (
                1062,
                "Duplicate entry 'hush for key x' for key 'mail'",
                "duplicate entry for key 'mail'",
            ),
            (1062, "hush", "duplicate entry"),
            (
                1366,
                "Incorrect integer value: 'hush' for column `d`.`t`.`c` at row 1",
                "incorrect value for column `d`.`t`.`c` at row 1",
            ),
            (4025, "CONSTRAINT `n` failed for `d`.`t`", "CONSTRAINT `n` failed for `d`.`t`"),
            (1644, "hush is too low", "a trigger refused it"),
            (
                1690,
                "BIGINT value is out of range in 'hush'",
                "the row or a value in it was refused",
            ),
        ] {
            assert_eq!(without_values(code, message), expected);
        }
    }

    #[test]
    fn codes_say_what_to_do() {
        for (code, state, expected) in [
            (1062, "23000", Fault::Rejected),
            (1452, "23000", Fault::Rejected),
            (1451, "23000", Fault::Rejected),
            (4025, "23000", Fault::Rejected),
            (1048, "23000", Fault::Rejected),
            (1264, "22003", Fault::Rejected),
            (1406, "22001", Fault::Rejected),
            (1366, "22007", Fault::Rejected),
            (1292, "22007", Fault::Rejected),
            (1690, "22003", Fault::Rejected),
            (1364, "HY000", Fault::Rejected),
            (1644, "45000", Fault::Rejected),
            (1644, "02000", Fault::Rejected),
            (1213, "40001", Fault::Unavailable),
            (1205, "HY000", Fault::Unavailable),
            (1040, "08004", Fault::Unavailable),
            (1053, "08S01", Fault::Unavailable),
            (1114, "HY000", Fault::Unavailable),
            (1290, "HY000", Fault::Unavailable),
            (1969, "70100", Fault::Unavailable),
            (6, "HY000", Fault::Unavailable),
            (1016, "HY000", Fault::Unavailable),
            (1045, "28000", Fault::Denied),
            (1142, "42000", Fault::Denied),
            (1146, "42S02", Fault::Denied),
            (1054, "42S22", Fault::Denied),
            (1049, "42000", Fault::Denied),
            (1129, "HY000", Fault::Denied),
        ] {
            assert_eq!(fault(code, state), expected, "{code} {state}");
        }
    }
}
