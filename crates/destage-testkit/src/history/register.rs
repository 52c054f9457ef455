//! Linearizability of one key that is written and read as a whole, each value written at most once.
//!
//! *Source:* Gibbons and Korach, "Testing shared memories", SIAM Journal on Computing 26 (1997): with distinct values the
//! operations on each value form a zone, and an order exists exactly if the zones do not get into each other's way.

use std::collections::BTreeMap;

/// One operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was sent.
    pub begun: u64,
    /// When it was answered, if ever. A read that was not answered says nothing and is left out.
    pub ended: Option<u64>,
    /// Whether it wrote the value or read it.
    pub is_write: bool,
    /// The value; what is there at first is [`INITIAL`].
    pub value: u64,
}

/// The value before all writes.
pub const INITIAL: u64 = 0;

/// All operations on one value.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u64,
    /// When the write was sent, if it is known.
    written: Option<u64>,
    first_end: u64,
    last_begin: u64,
    is_read: bool,
    is_answered: bool,
}

impl Zone {
    /// Between these times the key certainly had the value.
    fn certain(&self) -> Option<(u64, u64)> {
        (self.first_end < self.last_begin).then_some((self.first_end, self.last_begin))
    }
}

/// Whether an order of the operations exists that fits their times and explains each read.
///
/// # Errors
/// What contradicts.
pub fn check(operations: &[Operation]) -> Result<(), String> {
    let mut zones = zones(operations)?;
    // A write that was not answered, and whose value nobody has seen, need not have happened.
    zones.retain(|zone| zone.is_read || zone.is_answered);
    let mut certain: Vec<(u64, u64, u64)> = zones
        .iter()
        .filter_map(|zone| zone.certain().map(|(from, to)| (from, to, zone.value)))
        .collect();
    certain.sort_unstable();
    for pair in certain.windows(2) {
        let ((_, to, earlier), (from, _, later)) = (pair[0], pair[1]);
        if from < to {
            return Err(format!("the key was {earlier} before and after it was {later}"));
        }
    }
    for zone in zones.iter().filter(|zone| zone.certain().is_none()) {
        let (from, to) = (zone.last_begin, zone.first_end);
        let before = certain.partition_point(|&(start, ..)| start < from);
        let Some(&(_, end, around)) = before.checked_sub(1).map(|index| &certain[index]) else {
            continue;
        };
        if to < end {
            return Err(format!(
                "the key was {around} all the while that it should have become {}",
                zone.value
            ));
        }
    }
    Ok(())
}

fn zones(operations: &[Operation]) -> Result<Vec<Zone>, String> {
    let mut zones = BTreeMap::from([(
        INITIAL,
        Zone {
            value: INITIAL,
            written: Some(0),
            first_end: 0,
            last_begin: 0,
            is_read: false,
            is_answered: true,
        },
    )]);
    for operation in operations.iter().filter(|one| one.is_write || one.ended.is_some()) {
        let Operation { begun, ended, is_write, value } = *operation;
        let end = ended.unwrap_or(u64::MAX);
        let zone = zones.entry(value).or_insert(Zone {
            value,
            written: None,
            first_end: end,
            last_begin: begun,
            is_read: false,
            is_answered: false,
        });
        if is_write && zone.written.replace(begun).is_some() {
            return Err(format!("{value} was written twice: the history cannot be judged"));
        }
        zone.first_end = zone.first_end.min(end);
        zone.last_begin = zone.last_begin.max(begun);
        zone.is_read |= !is_write;
        zone.is_answered |= is_write && ended.is_some();
    }
    for operation in operations.iter().filter(|one| !one.is_write) {
        let Some(ended) = operation.ended else { continue };
        match zones[&operation.value].written {
            None => return Err(format!("{} was read, which nobody wrote", operation.value)),
            Some(written) if ended < written => {
                return Err(format!("{} was read before it was written", operation.value));
            }
            Some(_) => {}
        }
    }
    Ok(zones.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_time::rng::Rng;

    fn write(value: u64, begun: u64, ended: u64) -> Operation {
        Operation { begun, ended: Some(ended), is_write: true, value }
    }

    fn read(value: u64, begun: u64, ended: u64) -> Operation {
        Operation { is_write: false, ..write(value, begun, ended) }
    }

    fn fails(operations: &[Operation], with: &str) {
        let message = check(operations).expect_err("it contradicts itself");
        assert!(message.contains(with), "{message}");
    }

    #[test]
    fn histories_without_an_order_are_told() {
        fails(&[write(1, 1, 2), read(0, 3, 4)], "all the while");
        fails(&[read(7, 3, 4)], "nobody wrote");
        fails(&[read(1, 1, 2), write(1, 3, 4)], "before it was written");
        fails(&[write(1, 1, 9), read(1, 2, 3), read(0, 4, 5)], "all the while");
        fails(
            &[write(1, 1, 2), write(2, 3, 4), read(2, 5, 6), read(1, 7, 8), read(2, 9, 10)],
            "before and after",
        );
    }

    #[test]
    fn what_was_not_answered_may_have_happened_late_or_never() {
        let unanswered = Operation { ended: None, ..write(1, 1, 2) };
        assert_eq!(check(&[unanswered, read(0, 3, 4), read(1, 50, 51)]), Ok(()));
        assert_eq!(check(&[unanswered, read(0, 3, 4)]), Ok(()));
        fails(&[unanswered, read(1, 3, 4), read(0, 5, 6)], "all the while");
    }

    /// Whether any order fits, found by trying all.
    fn has_order(operations: &[Operation]) -> bool {
        fn place(left: &[Operation], value: u64) -> bool {
            let first_end = left.iter().filter_map(|one| one.ended).min().unwrap_or(u64::MAX);
            let is_done = left.iter().all(|one| one.ended.is_none());
            is_done
                || (0..left.len()).any(|index| {
                    let one = left[index];
                    let fits = one.begun <= first_end && (one.is_write || one.value == value);
                    let mut rest = left.to_vec();
                    rest.remove(index);
                    fits && place(&rest, one.value)
                })
        }
        place(operations, INITIAL)
    }

    #[test]
    fn the_verdict_is_that_of_trying_every_order() {
        let mut rng = Rng::new(1, 1);
        let mut below = |end: u64| rng.below(end);
        let mut verdicts = [0, 0];
        for _ in 0..20_000 {
            let writes = 1 + below(3);
            let count = writes + 1 + below(3);
            let operations: Vec<Operation> = (0..count)
                .map(|number| {
                    let begun = 1 + below(12);
                    let is_write = number < writes;
                    let ended = (!is_write || below(6) > 0).then(|| begun + 1 + below(6));
                    let value = if is_write { number + 1 } else { below(writes + 1) };
                    Operation { begun, ended, is_write, value }
                })
                .collect();
            let verdict = check(&operations);
            assert_eq!(verdict.is_ok(), has_order(&operations), "{verdict:?}: {operations:?}");
            verdicts[usize::from(verdict.is_ok())] += 1;
        }
        assert!(verdicts.iter().all(|&count| count > 1_000), "{verdicts:?}");
    }
}
