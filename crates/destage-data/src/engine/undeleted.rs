//! Rows that the origin still has although it was told to delete them, and did not refuse: a trigger or a rule swallows the
//! deletion, or row-level security hides the row from it. Each further deletion of such a row waits twice as long as the one
//! before.
//!
//! A row that is found once more after its deletion was decided may be a new one that has ended meanwhile, as locks do. So the
//! round after that looks with the time of the round before: a new row had not ended then, and is not found.
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

/// Deletions of the latest rounds.
#[derive(Debug, Default)]
pub(super) struct Undeleted {
    round: u64,
    /// By a hash of table and key.
    sent: HashMap<u64, Sent>,
    /// What has ended by this time is looked for, in a round that finds out which rows are new; and in the latest other one.
    again_ms: Option<i64>,
    cutoff_ms: i64,
    /// Some row was found once more that may be new.
    is_unsure: bool,
    /// Rows of each table that are stuck, in this round and in the one before.
    now: BTreeMap<TableId, u64>,
    before: BTreeMap<TableId, u64>,
    told: BTreeSet<TableId>,
}

#[derive(Debug)]
struct Sent {
    /// Deletions since it is known to be stuck.
    tries: u32,
    is_stuck: bool,
    /// The round in which it was found last, and from which on it is deleted again.
    found: u64,
    next: u64,
}

impl Undeleted {
    /// The next round begins, for what has ended by `cutoff_ms`: all deletions so far were decided. Where the origin refused
    /// some, nothing is known of the others.
    pub(super) fn begin_round(&mut self, is_refused: bool, cutoff_ms: i64) {
        self.round += 1;
        self.before = std::mem::take(&mut self.now);
        self.told.retain(|table| self.before.contains_key(table));
        let is_unsure = std::mem::take(&mut self.is_unsure) && !is_refused;
        self.again_ms = is_unsure.then_some(self.cutoff_ms);
        if self.again_ms.is_none() {
            self.cutoff_ms = cutoff_ms;
        }
        if is_refused {
            self.sent.clear();
        }
        let before = self.round - 1;
        self.sent.retain(|_, sent| sent.found >= before);
    }

    /// What has ended by when is looked for in this round, at a moment at which that would be `cutoff_ms`.
    pub(super) fn cutoff(&self, cutoff_ms: i64) -> i64 {
        self.again_ms.unwrap_or(cutoff_ms)
    }

    /// A row was found that has ended: whether a deletion of it is sent now.
    pub(super) fn found(&mut self, table: TableId, key: &[u8]) -> bool {
        let mut hasher = DefaultHasher::new();
        (table, key).hash(&mut hasher);
        let round = self.round;
        let is_full = self.sent.len() >= ROWS_MAX;
        if let Some(sent) = self.sent.get_mut(&hasher.finish()) {
            sent.found = round;
            sent.is_stuck |= self.again_ms.is_some();
            if !sent.is_stuck {
                self.is_unsure = true;
                return true;
            }
            *self.now.entry(table).or_default() += 1;
            if round < sent.next {
                return false;
            }
            sent.tries += 1;
            sent.next = round + (1 << sent.tries.min(REST_MAX));
            return true;
        }
        if is_full {
            let is_stuck = self.before.values().sum::<u64>() >= ROWS_MAX as u64;
            return !is_stuck || round.is_multiple_of(1 << REST_MAX);
        }
        let sent = Sent { tries: 0, is_stuck: false, found: round, next: round + 1 };
        self.sent.insert(hasher.finish(), sent);
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

    #[test]
    fn a_row_that_stays_is_deleted_less_and_less_often_and_others_are_not_held_up() {
        let mut undeleted = Undeleted::default();
        let mut sent = Vec::new();
        for round in 1..=200_i64 {
            undeleted.begin_round(false, round);
            if undeleted.found(TABLE, b"stuck") {
                sent.push(round);
            }
            assert!(undeleted.found(TABLE, &round.to_le_bytes()), "a row of this round alone");
            assert!(undeleted.sent.len() <= 3);
        }
        assert_eq!(sent, [1, 2, 3, 5, 9, 17, 33, 65, 129, 193]);
        assert_eq!(undeleted.count(), 1);
        assert!(undeleted.is_to_tell(TABLE) && !undeleted.is_to_tell(TABLE));
        undeleted.begin_round(false, 201);
        undeleted.begin_round(false, 202);
        assert_eq!((undeleted.count(), undeleted.sent.len()), (0, 0), "it is gone");
        assert!(!undeleted.is_to_tell(TABLE) && undeleted.told.is_empty());
    }

    #[test]
    fn a_row_that_is_made_anew_and_ends_before_each_round_is_none_of_these() {
        let mut undeleted = Undeleted::default();
        let (mut sent, mut again) = (0, 0);
        for round in 1..=100_i64 {
            undeleted.begin_round(false, round);
            // It has ended since the round before.
            let is_found = undeleted.cutoff(round) == round;
            sent += u32::from(is_found && undeleted.found(TABLE, b"lock"));
            again += u32::from(!is_found);
        }
        assert_eq!((undeleted.count(), sent + again), (0, 100));
        assert!((20..=50).contains(&again), "{again}");
    }

    #[test]
    fn what_is_remembered_is_bounded_and_many_stuck_rows_do_not_keep_the_origin_busy() {
        let mut undeleted = Undeleted::default();
        let rows = 2 * ROWS_MAX as u64;
        let mut sent = 0;
        for round in 0..40 {
            undeleted.begin_round(false, round);
            let found = (0..rows).filter(|row| undeleted.found(TABLE, &row.to_le_bytes()));
            sent += found.count() as u64;
            assert_eq!(undeleted.sent.len(), ROWS_MAX);
        }
        assert_eq!(undeleted.count(), ROWS_MAX as u64);
        assert!(sent < 10 * rows, "{sent}");
    }
}
