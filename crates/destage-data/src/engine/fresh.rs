//! What is new in each transaction: its time, and UUIDs and numbers that nobody else has. New rows are given these in the
//! place of their defaults, see [`Table::given_here`].
//!
//! [`Table::given_here`]: crate::schema::Table::given_here

use super::given::Numbers;
use crate::schema::{Schema, TableId};
use destage_core::Time;
use sha2::{Digest, Sha256};
use uuid::Builder;

/// A transaction as its defaults see it. One that is performed again, behind what has been told of it, keeps its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(super) at: Time,
    /// Which of this process it is.
    number: u64,
}

/// Where moments come from.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    /// Random, and of this process alone. None: there are no UUIDs.
    key: Option<[u8; 32]>,
    count: u64,
    /// Numbers of the origin's sequences.
    numbers: Numbers,
}

impl Fresh {
    /// Nothing is given yet to rows of these tables.
    pub(super) fn new(schema: &Schema) -> Self {
        Self { numbers: Numbers::new(schema), ..Self::default() }
    }

    /// Numbers of the origin's sequences.
    pub(super) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The same, to get more of them.
    pub(super) fn numbers_mut(&mut self) -> &mut Numbers {
        &mut self.numbers
    }

    /// From now on there are UUIDs, by a key that nobody else has.
    pub(super) fn set_key(&mut self, key: [u8; 32]) {
        self.key = Some(key);
    }

    /// The moment of another transaction.
    pub(super) fn moment(&mut self, at: Time) -> Moment {
        self.count += 1;
        Moment { at, number: self.count }
    }

    /// The UUID of a column of a row that the transaction makes.
    pub(super) fn uuid(
        &self,
        moment: Moment,
        table: TableId,
        column: usize,
        row: &[u8],
    ) -> Option<String> {
        let mut hash = Sha256::new();
        hash.update(self.key?);
        hash.update(moment.number.to_le_bytes());
        hash.update(table.0.to_le_bytes());
        hash.update((column as u64).to_le_bytes());
        hash.update(row);
        let random = hash.finalize();
        let bytes = random.first_chunk().expect("a hash of 32 bytes begins with 16");
        Some(Builder::from_random_bytes(*bytes).into_uuid().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_column_of_each_new_row_has_a_uuid_of_its_own_which_stays() {
        let mut fresh = Fresh::default();
        let first = fresh.moment(Time::ZERO);
        let of = |fresh: &Fresh, moment, table, column, row: &[u8]| {
            fresh.uuid(moment, TableId(table), column, row)
        };
        assert_eq!(of(&fresh, first, 0, 1, b"a"), None);
        fresh.set_key([7; 32]);
        let second = fresh.moment(Time::ZERO);
        let mut all = HashSet::new();
        for moment in [first, second] {
            for (table, column, row) in [(0, 1, "a"), (1, 1, "a"), (0, 2, "a"), (0, 1, "b")] {
                let uuid = of(&fresh, moment, table, column, row.as_bytes()).unwrap();
                assert_eq!(of(&fresh, moment, table, column, row.as_bytes()), Some(uuid.clone()));
                let parsed = uuid::Uuid::parse_str(&uuid).unwrap();
                assert_eq!(parsed.get_version(), Some(uuid::Version::Random), "{uuid}");
                assert_eq!(parsed.get_variant(), uuid::Variant::RFC4122, "{uuid}");
                assert!(all.insert(uuid));
            }
        }
        // Another process has another key.
        let mut other = Fresh::default();
        other.set_key([8; 32]);
        let moment = other.moment(Time::ZERO);
        assert!(all.insert(of(&other, moment, 0, 1, b"a").unwrap()));
    }
}
