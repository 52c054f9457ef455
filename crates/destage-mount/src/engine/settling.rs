//! Which changes have come to the origin and are known here no more, as far as requests have to know that ask the origin
//! meanwhile: its answer may be from before such a change came there.

use crate::ask::{Ino, Kind, Name};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Settling {
    count: u64,
    /// When something was settled last of a file that is not known any more.
    dropped: u64,
    /// Names in the order in which they were settled, and whose they were then.
    names: VecDeque<Settled>,
    /// All names that were settled after this are there.
    complete_after: u64,
}

#[derive(Debug)]
struct Settled {
    count: u64,
    dir: Ino,
    name: Name,
    whose: Option<(Ino, Kind)>,
}

impl Settling {
    pub(super) fn now(&self) -> u64 {
        self.count
    }

    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn drop_one(&mut self, settled: u64) {
        self.dropped = self.dropped.max(settled);
    }

    /// Nobody is told of names by what was settled up to now.
    pub(super) fn forget_names(&mut self) {
        self.names.clear();
        self.complete_after = self.count;
    }

    pub(super) fn note(&mut self, dir: Ino, name: Name, whose: Option<(Ino, Kind)>) {
        if self.names.len() == NAMES_MAX
            && let Some(oldest) = self.names.pop_front()
        {
            self.complete_after = oldest.count;
        }
        self.names.push_back(Settled { count: self.count, dir, name, whose });
    }

    /// Whether a name is anybody's, if it was settled since then; `None` if not all names are known that were.
    pub(super) fn name_since(&self, dir: Ino, name: &Name, since: u64) -> Option<Option<bool>> {
        if since < self.complete_after {
            return None;
        }
        let mut later = self.names.iter().rev().take_while(|settled| settled.count > since);
        let last = later.find(|settled| settled.dir == dir && settled.name == *name);
        Some(last.map(|settled| settled.whose.is_some()))
    }

    /// The names in a directory that were settled since then, if all of them are known.
    pub(super) fn names_since(
        &self,
        dir: Ino,
        since: u64,
    ) -> Option<HashMap<&Name, Option<(Ino, Kind)>>> {
        if since < self.complete_after {
            return None;
        }
        let later = self.names.iter().rev().take_while(|settled| settled.count > since);
        let mut names = HashMap::new();
        for settled in later.filter(|settled| settled.dir == dir) {
            // The last one counts.
            names.entry(&settled.name).or_insert(settled.whose);
        }
        Some(names)
    }
}

/// A listing that takes longer is made anew.
#[cfg(not(test))]
const NAMES_MAX: usize = 65_536;
/// Few enough for tests to have more.
#[cfg(test)]
const NAMES_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_that_was_settled_of_a_name_counts_and_nothing_is_said_where_some_are_forgotten() {
        let mut settling = Settling::default();
        let name = |number: u64| Name::from(number.to_string().into_bytes());
        settling.next();
        settling.note(1, name(1), Some((10, Kind::File)));
        assert_eq!(settling.next(), 2);
        settling.note(1, name(1), None);
        settling.note(2, name(1), Some((11, Kind::Dir)));
        assert_eq!(settling.names_since(1, 0).unwrap()[&name(1)], None);
        assert!(settling.names_since(1, 2).unwrap().is_empty());
        assert_eq!(settling.names_since(2, 1).unwrap()[&name(1)], Some((11, Kind::Dir)));
        settling.next();
        for number in 0..NAMES_MAX as u64 - 2 {
            settling.note(1, name(number), None);
        }
        assert!(settling.names_since(1, 0).is_none(), "one of count 1 is gone");
        assert_eq!(settling.names_since(1, 1).unwrap().len(), NAMES_MAX - 2);
    }
}
