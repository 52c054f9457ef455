//! Changes that the origin may lack, by the names of the entries that they make another: the paper's mappings.
//!
//! Whoever looks for those of a name holds up the engine, which adds to them: so they are found without a look at others.
//! One is kept until the origin has it and no miss is under way that began before: its snapshot may be as old.

use destage_core::{DomainId, Lsn};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

/// A change of a row that the origin may lack.
pub(super) struct Lacking {
    pub(super) lsn: Lsn,
    pub(super) domain: DomainId,
    /// It alone, in the form of a group.
    pub(super) bytes: Arc<[u8]>,
}

/// All of them.
#[derive(Default)]
pub(super) struct Pending {
    by_name: HashMap<Arc<str>, VecDeque<Lacking>>,
    /// In the order in which they were told of: a write that waited for the origin's word comes behind later ones.
    order: VecDeque<(Lsn, Vec<Arc<str>>)>,
    /// Up to here everything is at the origin.
    decided: Lsn,
    /// Misses under way, by what was decided when they began.
    misses: BTreeMap<Lsn, usize>,
}

impl Pending {
    /// A change makes these entries another, each named once.
    pub(super) fn push(&mut self, lsn: Lsn, domain: DomainId, names: &[String], bytes: &Arc<[u8]>) {
        let names: Vec<Arc<str>> = names.iter().map(|name| name.as_str().into()).collect();
        for name in &names {
            let lacking = Lacking { lsn, domain, bytes: bytes.clone() };
            self.by_name.entry(name.clone()).or_default().push_back(lacking);
        }
        self.order.push_back((lsn, names));
    }

    /// Those that make an entry another, in the order in which they were told of.
    pub(super) fn of(&self, name: &str) -> impl Iterator<Item = &Lacking> {
        self.by_name.get(name).into_iter().flatten()
    }

    /// The newest of those.
    pub(super) fn newest(&self, name: &str) -> Option<Lsn> {
        self.of(name).map(|lacking| lacking.lsn).max()
    }

    /// Up to here everything is at the origin.
    pub(super) fn decided(&self) -> Lsn {
        self.decided
    }

    /// The origin has decided everything up to here.
    pub(super) fn decide(&mut self, upto: Lsn) {
        self.decided = self.decided.max(upto);
        self.trim();
    }

    /// A miss begins: what is not decided now is kept until [`Pending::end_miss`] is told of the same number.
    pub(super) fn begin_miss(&mut self) -> Lsn {
        *self.misses.entry(self.decided).or_default() += 1;
        self.decided
    }

    /// A miss has ended that began with this.
    pub(super) fn end_miss(&mut self, decided: Lsn) {
        if let Some(count) = self.misses.get_mut(&decided) {
            *count -= 1;
            if *count == 0 {
                self.misses.remove(&decided);
            }
        }
        self.trim();
    }

    fn trim(&mut self) {
        let upto = self.misses.keys().next().copied().unwrap_or(self.decided);
        while let Some((_, names)) = self.order.pop_front_if(|(lsn, _)| *lsn <= upto) {
            for name in names {
                // The first of all is the first of each of its names.
                let of_name = self.by_name.get_mut(&name);
                let is_last = of_name.is_some_and(|of_name| {
                    of_name.pop_front();
                    of_name.is_empty()
                });
                if is_last {
                    self.by_name.remove(&name);
                }
            }
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pending {
        fn told_of(&mut self, lsn: u64, names: &[&str]) {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            self.push(Lsn(lsn), DomainId(0), &names, &Vec::new().into());
        }

        fn lsns_of(&self, name: &str) -> Vec<u64> {
            self.of(name).map(|lacking| lacking.lsn.0).collect()
        }
    }

    #[test]
    fn what_the_origin_has_is_forgotten_although_misses_overlap() {
        let mut pending = Pending::default();
        let mut under_way = pending.begin_miss();
        for lsn in 1..=1_000 {
            pending.told_of(lsn, &["a"]);
            pending.decide(Lsn(lsn));
            // There is always one under way.
            let next = pending.begin_miss();
            pending.end_miss(under_way);
            under_way = next;
            assert!(pending.len() <= 1, "{} are kept", pending.len());
        }
        pending.end_miss(under_way);
        assert_eq!(pending.len(), 0);
        assert!(pending.by_name.is_empty() && pending.misses.is_empty());
    }

    #[test]
    fn what_a_snapshot_of_a_miss_may_lack_is_kept_until_the_miss_has_ended() {
        let mut pending = Pending::default();
        pending.told_of(1, &["a"]);
        pending.told_of(2, &["a", "b"]);
        pending.decide(Lsn(1));
        let (first, second) = (pending.begin_miss(), pending.begin_miss());
        pending.told_of(3, &["b"]);
        pending.decide(Lsn(3));
        let third = pending.begin_miss();
        pending.end_miss(first);
        assert_eq!((pending.lsns_of("a"), pending.lsns_of("b")), (vec![2], vec![2, 3]));
        pending.end_miss(second);
        assert_eq!(pending.len(), 0, "the third began behind all of them");
        pending.end_miss(third);
    }

    #[test]
    fn a_write_that_is_told_of_behind_a_later_one_is_not_the_newest() {
        let mut pending = Pending::default();
        pending.told_of(6, &["a"]);
        pending.told_of(5, &["a", "b"]);
        assert_eq!(pending.lsns_of("a"), [6, 5], "in the order in which they became visible");
        assert_eq!((pending.newest("a"), pending.newest("b")), (Some(Lsn(6)), Some(Lsn(5))));
        pending.decide(Lsn(5));
        assert_eq!(pending.newest("a"), Some(Lsn(6)));
        pending.decide(Lsn(6));
        assert_eq!((pending.newest("a"), pending.len()), (None, 0));
    }
}
