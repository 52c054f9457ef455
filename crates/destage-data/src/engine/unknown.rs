//! What raw SQL makes unknown: which rows and tables groups with raw SQL cover, until no fetch under way can lack them, and
//! the fetches that wait for the origin to decide such a group.

use super::job::Io;
use super::rows::RowKey;
use crate::schema::TableId;
use destage_core::{DomainId, Lsn, Time, UnitId};
use std::collections::{BTreeMap, HashMap};

/// The rows of a table that belong to one domain.
pub(super) type Part = (TableId, DomainId);

/// A group as its domain's watermark tells of it.
pub(super) type Place = (DomainId, Lsn);

/// What raw SQL covers: what it declares, and what follows from that by itself.
#[derive(Debug, Default)]
pub(super) struct Covers {
    pub(super) rows: Vec<RowKey>,
    pub(super) tables: Vec<TableId>,
    /// The same tables, as far as they are in the domains of what is declared.
    pub(super) parts: Vec<Part>,
}

impl Covers {
    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.tables.is_empty()
    }

    /// A table is covered, as far as it is in these domains.
    pub(super) fn add_table(&mut self, table: TableId, domains: impl Iterator<Item = DomainId>) {
        push_new(&mut self.tables, table);
        domains.for_each(|domain| push_new(&mut self.parts, (table, domain)));
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// A fetch that is held back.
#[derive(Debug)]
pub(super) enum HeldFetch {
    /// Of a row.
    Row(UnitId),
    /// A page of a scan of a table, under this request's number.
    Page(u64, TableId, Io),
}

/// The groups with raw SQL that some fetch under way may lack, and what waits for them.
#[derive(Debug, Default)]
pub(super) struct Unknown {
    /// The newest such group for a row, whose number may stand for another one by now.
    rows: HashMap<UnitId, Place>,
    /// For all rows of a part.
    parts: HashMap<Part, Lsn>,
    /// For any row of a part.
    somewhere: HashMap<Part, Lsn>,
    by_lsn: BTreeMap<Lsn, (Vec<UnitId>, Vec<Part>)>,
    /// The parts that parked groups cover.
    parked: BTreeMap<Lsn, Vec<Part>>,
    held: BTreeMap<(Lsn, DomainId), Vec<(Time, HeldFetch)>>,
    /// The table whose rows stand for parts of tables.
    part_units: Option<TableId>,
}

impl Unknown {
    /// A group takes its place in the order of writes: it covers these rows, each in its domain, and these parts.
    pub(super) fn cover(&mut self, lsn: Lsn, rows: &[(UnitId, Part)], parts: &[Part]) {
        let mut all = parts.to_vec();
        for &(unit, part) in rows {
            self.rows.insert(unit, (part.1, lsn));
            push_new(&mut all, part);
        }
        for &part in &all {
            self.somewhere.insert(part, lsn);
        }
        for &part in parts {
            self.parts.insert(part, lsn);
        }
        let units = rows.iter().map(|&(unit, _)| unit).collect();
        self.by_lsn.insert(lsn, (units, all));
    }

    /// Whether no fetch can lack anything.
    pub(super) fn is_nothing_covered(&self) -> bool {
        self.by_lsn.is_empty()
    }

    /// The groups that cover a row of this part.
    pub(super) fn covering(&self, unit: UnitId, part: Part) -> impl Iterator<Item = Place> {
        let all_rows = self.parts.get(&part).map(|&lsn| (part.1, lsn));
        self.rows.get(&unit).copied().into_iter().chain(all_rows)
    }

    /// The newest group that covers any row of a part.
    pub(super) fn newest_in(&self, part: Part) -> Option<Place> {
        self.somewhere.get(&part).map(|&lsn| (part.1, lsn))
    }

    /// Whether more than single rows is covered.
    pub(super) fn covers_tables(&self) -> bool {
        !self.parts.is_empty() || !self.parked.is_empty()
    }

    /// Whether undecided or parked raw SQL covers all rows of a part.
    pub(super) fn covers_part(&self, part: Part) -> bool {
        self.parts.contains_key(&part) || self.parked.values().any(|parts| parts.contains(&part))
    }

    /// A group that covers tables is parked.
    pub(super) fn park(&mut self, lsn: Lsn, covers: &Covers) {
        if !covers.parts.is_empty() {
            self.parked.insert(lsn, covers.parts.clone());
        }
    }

    /// It is parked no more.
    pub(super) fn unpark(&mut self, lsn: Lsn) {
        self.parked.remove(&lsn);
    }

    /// No fetch lacks the groups up to here.
    pub(super) fn forget(&mut self, upto: Lsn) {
        while let Some(entry) = self.by_lsn.first_entry()
            && *entry.key() <= upto
        {
            let (units, parts) = entry.remove();
            let is_later = |lsn: &Lsn| *lsn > upto;
            for unit in units {
                if !self.rows.get(&unit).is_some_and(|(_, lsn)| is_later(lsn)) {
                    self.rows.remove(&unit);
                }
            }
            for part in parts {
                for newest in [&mut self.parts, &mut self.somewhere] {
                    if !newest.get(&part).is_some_and(is_later) {
                        newest.remove(&part);
                    }
                }
            }
        }
    }

    /// The table whose rows stand for parts of tables, which is made when there is none.
    pub(super) fn part_table(&mut self, make: impl FnOnce() -> TableId) -> TableId {
        *self.part_units.get_or_insert_with(make)
    }

    /// That table, if there is one.
    #[cfg(test)]
    pub(super) fn known_part_table(&self) -> Option<TableId> {
        self.part_units
    }

    /// Whether a table is that one.
    pub(super) fn is_part_table(&self, table: TableId) -> bool {
        self.part_units == Some(table)
    }
}

/// Fetches that wait.
impl Unknown {
    /// Holds a fetch back until the origin has decided a group, or until the deadline.
    pub(super) fn hold(&mut self, (domain, lsn): Place, deadline: Time, fetch: HeldFetch) {
        self.held.entry((lsn, domain)).or_default().push((deadline, fetch));
    }

    /// Those whose group the origin has decided.
    pub(super) fn take_decided(&mut self, is_decided: impl Fn(Place) -> bool) -> Vec<HeldFetch> {
        let is_over = |&(lsn, domain): &(Lsn, DomainId), _: &mut _| is_decided((domain, lsn));
        let decided = self.held.extract_if(.., is_over).flat_map(|(_, held)| held);
        decided.map(|(_, fetch)| fetch).collect()
    }

    /// Those that have waited for too long, with the group.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<(Lsn, HeldFetch)> {
        let mut late = Vec::new();
        if self.next_timeout().is_none_or(|at| at > now) {
            return late;
        }
        self.held.retain(|&(lsn, _), held| {
            let count = held.partition_point(|(deadline, _)| *deadline <= now);
            late.extend(held.drain(..count).map(|(_, fetch)| (lsn, fetch)));
            !held.is_empty()
        });
        late
    }

    /// When something has been held back for too long.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.held.values().filter_map(|held| held.first()).map(|(deadline, _)| *deadline).min()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        let newest = [&self.parts, &self.somewhere];
        let nothing_newest = self.rows.is_empty() && newest.iter().all(|newest| newest.is_empty());
        nothing_newest && self.by_lsn.is_empty() && self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = (TableId(1), DomainId(0));

    #[test]
    fn a_row_is_covered_by_the_newest_group_until_no_fetch_lacks_that() {
        let (mut unknown, row) = (Unknown::default(), UnitId(3));
        unknown.cover(Lsn(1), &[(row, PART)], &[]);
        unknown.cover(Lsn(2), &[], &[PART]);
        let covering = |unknown: &Unknown| {
            unknown.covering(row, PART).map(|(_, lsn)| lsn.0).collect::<Vec<_>>()
        };
        assert_eq!(covering(&unknown), [1, 2]);
        assert_eq!(unknown.newest_in(PART), Some((DomainId(0), Lsn(2))));
        unknown.forget(Lsn(1));
        assert_eq!(covering(&unknown), [2]);
        unknown.forget(Lsn(2));
        assert!(unknown.is_empty() && !unknown.covers_tables());
    }

    #[test]
    fn a_fetch_is_held_until_its_group_is_decided_or_for_its_time() {
        let mut unknown = Unknown::default();
        for (lsn, deadline, unit) in [(1, 10, 1), (2, 10, 2), (2, 20, 3), (3, 30, 4)] {
            let fetch = HeldFetch::Row(UnitId(unit));
            unknown.hold((DomainId(0), Lsn(lsn)), Time(deadline), fetch);
        }
        assert!(unknown.take_late(Time(9)).is_empty());
        assert_eq!(unknown.take_decided(|(_, lsn)| lsn <= Lsn(1)).len(), 1);
        let late = unknown.take_late(Time(10));
        assert!(matches!(late[..], [(Lsn(2), HeldFetch::Row(UnitId(2)))]));
        assert_eq!(unknown.next_timeout(), Some(Time(20)));
        assert_eq!(unknown.take_decided(|_| true).len(), 2);
        assert!(unknown.is_empty());
    }

    #[test]
    fn a_parked_group_covers_its_tables_until_it_is_parked_no_more() {
        let mut unknown = Unknown::default();
        let mut covers = Covers::default();
        covers.add_table(PART.0, [PART.1, PART.1].into_iter());
        assert_eq!(covers.parts, [PART]);
        unknown.park(Lsn(1), &covers);
        assert!(unknown.covers_part(PART) && unknown.covers_tables());
        unknown.unpark(Lsn(1));
        assert!(!unknown.covers_part(PART));
    }
}
