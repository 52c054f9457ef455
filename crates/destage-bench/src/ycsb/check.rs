//! Whether the origin holds what was acknowledged: a benchmark that loses writes must fail.

use std::collections::{HashMap, HashSet};

use super::workload::lane_of;
use crate::Result;

/// A record as the origin holds it: its key, and the serial numbers in its first and its last field.
pub(super) type Found = (u64, u64, u64);

/// Compares what the clients were told with the records that carry this run's mark.
///
/// A record that several clients wrote may hold the last write of any of them, since theirs overlapped or came in an order
/// that nobody saw; but of the client whose write it holds, it holds the last one, and all fields of it.
///
/// # Errors
///
/// A write is missing, is older than one that was acknowledged later, or is there in part.
pub(super) fn check(written: &[Vec<(u64, u64)>], found: &[Found]) -> Result<()> {
    let mut last: HashMap<(u64, u64), u64> = HashMap::new();
    for &(key, serial) in written.iter().flatten() {
        last.insert((key, lane_of(serial)), serial);
    }
    let keys: HashSet<u64> = last.keys().map(|(key, _)| *key).collect();
    for &(key, first, end) in found {
        if first != end {
            let text = format!("record {key} holds parts of two writes, {first} and {end}");
            return Err(text.into());
        }
        match last.get(&(key, lane_of(first))) {
            Some(serial) if *serial == first => {}
            Some(serial) => {
                return Err(format!(
                    "record {key} holds write {first}, but {serial} of the same client was acknowledged after it"
                )
                .into());
            }
            None => return Err(format!("record {key} holds {first}, which nobody wrote").into()),
        }
    }
    let there: HashSet<u64> = found.iter().map(|(key, ..)| *key).collect();
    if there.len() == keys.len() {
        return Ok(());
    }
    let missing = keys.difference(&there).next().copied().unwrap_or_default();
    Err(format!(
        "{} different records were written, but {} changed at the origin; record {missing} is missing",
        keys.len(),
        there.len()
    )
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u64 = 100_000_000;

    fn refused(found: &[Found]) -> String {
        let written = [vec![(1, 1), (2, 2), (1, 3)], vec![(1, OTHER + 1)]];
        check(&written, found).map_or_else(|error| error.to_string(), |()| "accepted".into())
    }

    #[test]
    fn the_last_write_of_either_client_is_right() {
        for first in [3, OTHER + 1] {
            assert_eq!(refused(&[(1, first, first), (2, 2, 2)]), "accepted");
        }
    }

    #[test]
    fn lost_old_torn_and_foreign_writes_are_noticed() {
        assert!(refused(&[(1, 3, 3)]).contains("record 2 is missing"));
        assert!(refused(&[(1, 1, 1), (2, 2, 2)]).contains("3 of the same client"));
        assert!(refused(&[(1, 3, OTHER + 1), (2, 2, 2)]).contains("parts of two"));
        assert!(refused(&[(1, 3, 3), (2, 2, 2), (7, 2, 2)]).contains("nobody wrote"));
    }
}
