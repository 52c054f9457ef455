//! Where scans go on: a cursor is a number for a place in a bounded table of places.

use crate::schema::TableId;
use std::collections::{HashMap, VecDeque};

/// Cursors kept at once; the oldest are forgotten first.
const CURSORS_MAX: usize = 10_000;

/// A scan's place and terms.
#[derive(Clone, Debug)]
pub(crate) struct Scan {
    pub(super) table: TableId,
    /// Whether the tables that follow are scanned too.
    pub(super) all_tables: bool,
    pub(super) after: Option<Box<[u8]>>,
    pub(super) pattern: Option<Box<[u8]>>,
    pub(super) count: usize,
    /// TYPE, in lower case.
    pub(super) kind: Option<Box<[u8]>>,
}

impl Scan {
    /// Whether keys of this type are asked for.
    pub(super) fn wants(&self, kind: &str) -> bool {
        self.kind.as_deref().is_none_or(|wanted| wanted == kind.as_bytes())
    }
}

/// Places to go on from.
#[derive(Debug)]
pub(crate) struct Cursors<T> {
    places: HashMap<u64, T>,
    order: VecDeque<u64>,
    next: u64,
}

impl<T> Default for Cursors<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), order: VecDeque::new(), next: 0 }
    }
}

impl<T> Cursors<T> {
    /// Keeps a place; its cursor is returned.
    pub(super) fn insert(&mut self, scan: T) -> u64 {
        if self.order.len() >= CURSORS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
        self.next += 1;
        self.places.insert(self.next, scan);
        self.order.push_back(self.next);
        self.next
    }
    /// The place that a cursor stands for, unless that is forgotten.
    pub(super) fn get(&self, cursor: u64) -> Option<&T> {
        self.places.get(&cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_cursors_are_forgotten_first() {
        let mut cursors = Cursors::default();
        let scan = |table| Scan {
            table: TableId(table),
            all_tables: false,
            after: None,
            pattern: None,
            count: 1,
            kind: None,
        };
        let first = cursors.insert(scan(1));
        let second = cursors.insert(scan(2));
        for _ in 1..CURSORS_MAX {
            cursors.insert(scan(3));
        }
        assert!(cursors.get(first).is_none() && cursors.get(0).is_none());
        assert_eq!(cursors.get(second).map(|scan| scan.table), Some(TableId(2)));
    }
}
