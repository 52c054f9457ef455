//! The ledger: Destage's own tables at the origin, which say who owns it, how far each domain is, and what was parked.
//!
//! What it says is judged in [`crate::contract`], whatever it is kept in; in [`dialect`] it is SQL, and [`writer`] is the
//! writer of all databases that speak it.

mod dialect;
mod writer;

pub(super) use dialect::{Dialect, Statement, Value, push_number};
pub(super) use writer::{Database, End, Field, Part, SqlWriter, Transaction, applied, apply_first};

use destage_core::{DomainId, Lsn};

/// The tables' names.
pub(in crate::origins) const NAMES: [&str; 3] =
    ["destage_owner", "destage_watermark", "destage_parked"];

/// Reads watermarks written as one text: `domain seq,domain seq`.
pub(in crate::origins) fn parse_watermarks(text: Option<&str>) -> Vec<(DomainId, Lsn)> {
    let pair = |entry: &str| {
        let (domain, seq) = entry.split_once(' ')?;
        Some((DomainId(domain.parse().ok()?), Lsn(seq.parse().ok()?)))
    };
    text.unwrap_or_default().split(',').filter_map(pair).collect()
}

/// A text in pieces of at most so many bytes: one at least, and no character is cut.
pub(in crate::origins) fn pieces(text: &str, bytes_max: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while pieces.is_empty() || !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.floor_char_boundary(bytes_max.max(CHAR_BYTES_MAX)));
        pieces.push(piece);
        rest = later;
    }
    pieces
}

const CHAR_BYTES_MAX: usize = 4;

/// As databases hold it that know no unsigned numbers.
pub(in crate::origins) fn signed(number: u64) -> i64 {
    i64::try_from(number).expect("sequence numbers and epochs stay below 2^63")
}

/// Back from [`signed`]; 0 for what nobody but a stranger can have written.
pub(in crate::origins) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_its_characters() {
        assert_eq!(pieces("", 5), [""]);
        assert_eq!(pieces("hello", 5), ["hello"]);
        assert_eq!(pieces("hello\u{1f600}!", 7), ["hello", "\u{1f600}!"]);
        assert_eq!(pieces("\u{1f600}!", 1), ["\u{1f600}", "!"]);
    }
}
