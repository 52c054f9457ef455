//! Rows that the origin still has although it was told to delete them, and did not refuse: a trigger or a rule swallows the
//! deletion, or row-level security hides the row from it. They are told from others by being found once more after the
//! deletion was decided. Each further deletion of such a row waits twice as long as the one before.
//!
//! What is remembered is bounded: of more rows than [`ROWS_MAX`] the first ones are, and once all of these are stuck, others
//! wait for a round that tries everything.

use crate::schema::TableId;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Rows that are remembered, of all tables: some 40 bytes each.
const ROWS_MAX: usize = 10_000;
/// A row is tried again after 2^n rounds at most.
const REST_MAX: u32 = 6;
/// A row that another program has made anew may be found again once.
const TRIES_MIN: u32 = 2;

/// Deletions of the latest rounds.
#[derive(Debug, Default)]
pub(super) struct Undeleted {
    round: u64,
    /// By a hash of table and key.
    sent: HashMap<u64, Sent>,
    /// Rows of each table that were there all the same, in this round and in the one before.
    now: BTreeMap<TableId, u64>,
    before: BTreeMap<TableId, u64>,
    told: BTreeSet<TableId>,
}

#[derive(Debug)]
struct Sent {
    tries: u32,
    /// The round in which it was found last, and from which on it is deleted again.
    found: u64,
    next: u64,
}

impl Undeleted {
    /// The next round begins: all deletions so far were decided. Where the origin refused some, nothing is known of the others.
    pub(super) fn begin_round(&mut self, is_refused: bool) {
        self.round += 1;
        self.before = std::mem::take(&mut self.now);
        self.told.retain(|table| self.before.contains_key(table));
        if is_refused {
            self.sent.clear();
            return;
        }
        let before = self.round - 1;
        self.sent.retain(|_, sent| sent.found >= before);
    }

    /// A row was found that has ended: whether a deletion of it is sent now.
    pub(super) fn found(&mut self, table: TableId, key: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        (table, key).hash(&mut hasher);
        let round = self.round;
        let is_full = self.sent.len() >= ROWS_MAX;
        if let Some(sent) = self.sent.get_mut(&hasher.finish()) {
            sent.found = round;
            if sent.tries >= TRIES_MIN {
                *self.now.entry(table).or_default() += 1;
            }
            if round < sent.next {
                return false;
            }
            sent.next = round + (1 << sent.tries.min(REST_MAX));
            sent.tries += 1;
            return true;
        }
        if is_full {
            let is_stuck = self.before.values().sum::<u64>() >= ROWS_MAX as u64;
            return !is_stuck || round.is_multiple_of(1 << REST_MAX);
        }
        self.sent.insert(hasher.finish(), Sent { tries: 1, found: round, next: round + 1 });
        true
    }

    /// Whether people are to hear of rows of a table, once until there are none.
    pub(super) fn is_to_tell(&mut self, table: TableId) -> bool {
        self.now.contains_key(&table) && self.told.insert(table)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        let sum = |rows: &BTreeMap<TableId, u64>| rows.values().sum::<u64>();
        sum(&self.now).max(sum(&self.before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: TableId = TableId(1);

    /// In which rounds a row is deleted that never goes.
    #[test]
    fn a_row_that_stays_is_deleted_less_and_less_often_and_others_are_not_held_up() {
        let mut undeleted = Undeleted::default();
        let mut sent = Vec::new();
        for round in 1..=200_u64 {
            undeleted.begin_round(false);
            if undeleted.found(TABLE, b"stuck") {
                sent.push(round);
            }
            assert!(undeleted.found(TABLE, &round.to_le_bytes()), "a row of this round alone");
            assert!(undeleted.sent.len() <= 3);
        }
        assert_eq!(sent, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
        assert_eq!(undeleted.count(), 1);
        assert!(undeleted.is_to_tell(TABLE) && !undeleted.is_to_tell(TABLE));
        undeleted.begin_round(false);
        undeleted.begin_round(false);
        assert_eq!((undeleted.count(), undeleted.sent.len()), (0, 0), "it is gone");
        assert!(!undeleted.is_to_tell(TABLE) && undeleted.told.is_empty());
    }

    #[test]
    fn a_row_that_is_made_anew_once_is_none_of_these() {
        let mut undeleted = Undeleted::default();
        for _ in 0..2 {
            undeleted.begin_round(false);
            assert!(undeleted.found(TABLE, b"again"));
        }
        assert_eq!(undeleted.count(), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_many_stuck_rows_do_not_keep_the_origin_busy() {
        let mut undeleted = Undeleted::default();
        let rows = 3 * ROWS_MAX as u64;
        let mut sent = 0;
        for _ in 0..40 {
            undeleted.begin_round(false);
            let found = (0..rows).filter(|row| undeleted.found(TABLE, &row.to_le_bytes()));
            sent += found.count() as u64;
            assert_eq!(undeleted.sent.len(), ROWS_MAX);
        }
        assert_eq!(undeleted.count(), ROWS_MAX as u64);
        assert!(sent < 15 * rows, "{sent}");
    }
}
