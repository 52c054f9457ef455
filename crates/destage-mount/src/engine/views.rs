//! Which names directories have at the origin, where many are asked for that are nobody's: who makes many files there has each
//! of their names looked up. One listing costs less than that, and counts for a while.

use super::needs::Hints;
use super::tree::Tree;
use crate::ask::{Ino, Name};
use crate::origin::Key;
use destage_core::{Span, Time};
use hashbrown::{HashMap, HashSet};

/// See the module.
#[derive(Debug)]
pub(super) struct Views {
    /// How long a listing counts: so long nothing is seen of what others do to names.
    fresh: Span,
    views: HashMap<Ino, View>,
    /// Names that were asked for lately, one by one.
    asked: HashMap<Ino, Asked>,
}

#[derive(Debug)]
struct View {
    names: HashSet<Name>,
    /// What had been settled here when the origin was asked.
    settled: u64,
    at: Time,
}

#[derive(Debug)]
struct Asked {
    since: Time,
    count: usize,
    /// Names that the last listing had.
    names: usize,
}

/// How to find out about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is nobody's.
    Nobodys,
    /// The origin is to be asked for it.
    Ask,
    /// The origin is to be asked for all names of the directory.
    List,
}

impl Views {
    /// Listings count for so long; not at all if that is zero.
    pub(super) fn new(fresh: Span) -> Self {
        Self { fresh, views: HashMap::new(), asked: HashMap::new() }
    }

    /// What the origin has told for a request.
    pub(super) fn learn(&mut self, hints: &Hints) {
        let Some((dir, list, settled, at)) = hints.listed() else { return };
        // Nobody asks for it where nothing may go unseen.
        if self.fresh == Span::ZERO {
            return;
        }
        if self.views.get(&dir).is_some_and(|view| view.at >= at) {
            return;
        }
        if self.views.len() >= VIEWS_MAX {
            let fresh = self.fresh;
            self.views.retain(|_, view| at.0.saturating_sub(view.at.0) <= fresh.0);
            if self.views.len() >= VIEWS_MAX {
                self.views.clear();
            }
        }
        let names: HashSet<Name> = list.iter().map(|listed| listed.name.clone()).collect();
        self.asked.insert(dir, Asked { since: at, count: 0, names: names.len() });
        self.views.insert(dir, View { names, settled, at });
    }

    /// How to find out about a name of which nothing is known here.
    pub(super) fn way(&mut self, now: Time, tree: &Tree, dir: &Key, name: &Name) -> Way {
        if self.fresh == Span::ZERO {
            return Way::Ask;
        }
        let is_fresh = |at: Time| now.0.saturating_sub(at.0) <= self.fresh.0;
        if let Some(view) = self.views.get(&dir.ino).filter(|view| is_fresh(view.at)) {
            let is_there = view.names.contains(name);
            return match tree.settled_name(dir.ino, name, view.settled) {
                Some(since) if !since.unwrap_or(is_there) => Way::Nobodys,
                _ => Way::Ask,
            };
        }
        self.views.remove(&dir.ino);
        if self.asked.len() >= VIEWS_MAX {
            self.asked.retain(|_, asked| is_fresh(asked.since));
        }
        let new = Asked { since: now, count: 0, names: 0 };
        let asked = self.asked.entry(dir.ino).or_insert(new);
        if !is_fresh(asked.since) {
            (asked.since, asked.count) = (now, 0);
        }
        asked.count += 1;
        if asked.count < ASKED_MIN.max(asked.names / NAMES_PER_QUESTION) {
            return Way::Ask;
        }
        // The others go on one by one until it is there.
        asked.count = 0;
        Way::List
    }
}

/// Directories of which listings are kept.
const VIEWS_MAX: usize = 64;
/// So many names that are listed cost as much as one that is asked for.
const NAMES_PER_QUESTION: usize = 4;
/// A directory of which nothing is known is listed once so many names were asked for.
#[cfg(not(test))]
const ASKED_MIN: usize = 64;
/// Few enough for tests to ask for more.
#[cfg(test)]
const ASKED_MIN: usize = 3;
