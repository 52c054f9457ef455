//! The books of one client, and what they say of what is there after a crash.
//!
//! A mount has one journal, which holds what was asked for in the order in which it was asked. So what is there after a crash is
//! what the client had done up to some moment, names and bytes alike; and that moment is not before the last change of a file or a
//! folder that was made durable afterwards. Nothing that was removed before then is there again, and no bytes are zero that somebody wrote.

use super::seen::{Seen, Thing};
use super::tree::{Change, Tree};
use std::ops::RangeInclusive;

/// What one client did in a folder of its own, from a state that was durable.
#[derive(Clone, Debug, Default)]
pub struct Books {
    base: Tree,
    done: Vec<Done>,
    durable: usize,
    /// The state after those that are durable.
    kept: Tree,
    /// What made them so.
    kept_by: String,
    acknowledged: u64,
}

/// An operation that was begun.
#[derive(Clone, Debug)]
struct Done {
    change: Change,
    /// Nanoseconds, by one clock for all clients.
    begun: u64,
    /// The answer came then; the last one may never have been answered.
    ended: Option<u64>,
}

/// What a crash has left, as the books know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What is there is what was there after so many operations. Several numbers where some cancel each other.
    pub moments: RangeInclusive<usize>,
}

impl Books {
    /// Writes down that an operation begins.
    pub fn begin(&mut self, change: Change, now: u64) {
        self.done.push(Done { change, begun: now, ended: None });
    }

    /// Writes down that it has been answered.
    pub fn end(&mut self, now: u64) {
        self.done.last_mut().expect("one has begun").ended = Some(now);
        self.acknowledged += 1;
    }

    /// Writes down that all that was answered so far is durable.
    pub fn durable(&mut self) {
        self.keep(self.done.len(), "a write that was synchronous itself".to_owned());
        self.acknowledged += 1;
    }

    /// Writes down that the file or the folder of this name was synced: what was done to it is durable, and so is all that was
    /// done before that.
    ///
    /// # Panics
    /// If there is nothing of that name.
    pub fn durable_of(&mut self, name: &str) {
        let mut tree = self.kept.clone();
        let volatile = self.done[self.durable..].iter();
        let touched: Vec<_> = volatile
            .map(|done| {
                let mut touched = tree.touched(&done.change);
                tree.apply(&done.change);
                // What is new has its number now.
                touched.extend(tree.touched(&done.change));
                touched
            })
            .collect();
        let number = tree.number_of(name).expect("there is such a name");
        if let Some(last) = touched.iter().rposition(|numbers| numbers.contains(&number)) {
            let by = format!("a sync of {name:?} after {} operations", self.done.len());
            self.keep(self.durable + last + 1, by);
        }
        self.acknowledged += 1;
    }

    fn keep(&mut self, count: usize, by: String) {
        self.kept_by = by;
        self.done[self.durable..count].iter().for_each(|done| self.kept.apply(&done.change));
        self.durable = count;
    }

    /// So many operations were answered, in all rounds.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The last operation that has begun in this round.
    pub fn last(&self) -> Option<&Change> {
        self.done.last().map(|done| &done.change)
    }

    /// So many operations have begun since it went on from what was found, in this round.
    pub fn operations(&self) -> usize {
        self.done.len()
    }

    /// So many operations were answered after the last one that made all before it durable.
    pub fn volatile(&self) -> usize {
        self.done.len() - self.durable
    }

    /// The state after the last operation.
    pub fn present(&self) -> Tree {
        let mut tree = self.kept.clone();
        self.done[self.durable..].iter().for_each(|done| tree.apply(&done.change));
        tree
    }

    fn after(&self, count: usize) -> Tree {
        let mut tree = self.base.clone();
        self.done[..count].iter().for_each(|done| tree.apply(&done.change));
        tree
    }

    /// Whether what is there is what this client left at some moment not before the last durable one.
    ///
    /// # Errors
    /// What is lost, has come back, is zero or out of order.
    pub fn check(&self, seen: &Seen) -> Result<Found, String> {
        let window = self.window();
        let mut fits = window.iter().filter(|(_, tree)| seen.is(tree)).map(|(moment, _)| *moment);
        match fits.next() {
            Some(first) => Ok(Found { moments: first..=fits.next_back().unwrap_or(first) }),
            None => Err(self.wrong(seen, &window)),
        }
    }

    /// All states that may be found, with how many operations led to each.
    fn window(&self) -> Vec<(usize, Tree)> {
        let mut tree = self.kept.clone();
        let mut window = vec![(self.durable, tree.clone())];
        for (number, done) in self.done.iter().enumerate().skip(self.durable) {
            tree.apply(&done.change);
            window.push((number + 1, tree.clone()));
        }
        window
    }

    /// Goes on from what was found.
    pub fn go_on(&mut self, found: &Found) {
        self.base = self.after(*found.moments.end());
        self.kept = self.base.clone();
        self.done.clear();
        self.durable = 0;
    }

    fn wrong(&self, seen: &Seen, window: &[(usize, Tree)]) -> String {
        let mut wrong = Vec::new();
        for (name, thing) in &seen.entries {
            let fits: Vec<_> = window.iter().filter(|(_, tree)| thing.is(name, tree)).collect();
            if fits.is_empty() {
                wrong.push(self.wrong_thing(name, thing, window));
            }
        }
        let (_, durable) = &window[0];
        for name in durable.names().keys() {
            let is_kept = window.iter().all(|(_, tree)| tree.names().contains_key(name));
            if is_kept && !seen.entries.contains_key(name) {
                wrong.push(format!("lost: {name} was durable and is not there"));
            }
        }
        // What is there of a moment too early may go, name by name, with later ones: such is lost, not out of order.
        if let Some(moment) = self.recent().find(|&moment| seen.is(&self.after(moment))) {
            wrong.insert(0, format!("lost: all is as after operation {moment}"));
        }
        if wrong.is_empty() {
            wrong.push(out_of_order(seen, window));
        }
        let (durable, all) = (self.durable, self.done.len());
        let last = self.done.last();
        let recent: Vec<_> = self.done.iter().map(|done| format!("{:?}", done.change)).collect();
        format!(
            "after {all} operations, {durable} of them durable by {}, the last one {last:?}:\n  {}\n  the last ones:\n    {}",
            self.kept_by,
            wrong.join("\n  "),
            recent[recent.len().saturating_sub(SHOWN)..].join("\n    ")
        )
    }

    /// The moments before the durable one, the last first: as many as are looked through for where something comes from.
    fn recent(&self) -> impl Iterator<Item = usize> {
        (self.durable.saturating_sub(200)..self.durable).rev()
    }

    fn wrong_thing(&self, name: &str, thing: &Thing, window: &[(usize, Tree)]) -> String {
        let is_known = |tree: &Tree| tree.names().contains_key(name);
        if !window.iter().any(|(_, tree)| is_known(tree)) {
            let was = self.recent().find(|&moment| is_known(&self.after(moment)));
            return match was {
                Some(moment) => format!(
                    "returned: {name}, which operation {} took away: {:?}",
                    moment + 1,
                    self.done[moment].change
                ),
                None => format!("invented: {name} was never there"),
            };
        }
        let Thing::File { content, links } = thing else {
            return format!("changed: {name} is {thing:?}");
        };
        let wanted: Vec<_> = window.iter().filter_map(|(_, tree)| tree.content(name)).collect();
        if wanted.iter().any(|one| one.bytes == content.bytes) {
            return format!("changed: {name} has mode {:o}, {links} names", content.mode);
        }
        let is_zero = |place: usize| {
            content.bytes.get(place) == Some(&0)
                && wanted.iter().all(|one| one.bytes.get(place).is_some_and(|&byte| byte != 0))
        };
        let zeros = (0..content.bytes.len()).filter(|&place| is_zero(place)).count();
        if zeros > 0 {
            return format!("zeros: {zeros} bytes of {name} are zero where data belongs");
        }
        let before = self.recent().find(|&moment| {
            self.after(moment).content(name).is_some_and(|one| one.bytes == content.bytes)
        });
        match before {
            Some(moment) => {
                format!("lost: {name} is as of operation {moment}, and what came after was durable")
            }
            None => format!(
                "torn: the {} bytes of {name} are of no moment; possible lengths: {:?}",
                content.bytes.len(),
                wanted.iter().map(|one| one.bytes.len()).collect::<std::collections::BTreeSet<_>>()
            ),
        }
    }
}

/// So many operations are shown where something is wrong.
const SHOWN: usize = 12;

/// Everything that is there was there at some moment, but not at the same one.
fn out_of_order(seen: &Seen, window: &[(usize, Tree)]) -> String {
    let name_moments = |name: &str| -> Vec<usize> {
        let fits = |tree: &Tree| match seen.entries.get(name) {
            Some(thing) => thing.is(name, tree),
            None => !tree.names().contains_key(name),
        };
        window.iter().filter(|(_, tree)| fits(tree)).map(|(moment, _)| *moment).collect()
    };
    let mut names: Vec<&String> = window.iter().flat_map(|(_, tree)| tree.names().keys()).collect();
    names.extend(seen.entries.keys());
    names.sort();
    names.dedup();
    let moments: Vec<_> = names.iter().map(|name| (name, name_moments(name))).collect();
    // Two names that no moment has both: usually there are such.
    for (name, of_name) in &moments {
        for (other, of_other) in &moments {
            if !of_name.iter().any(|moment| of_other.contains(moment)) {
                let ends = |list: &[usize]| (list.first().copied(), list.last().copied());
                return format!(
                    "out of order: {name} is as after operations {:?}, {other} as after {:?}",
                    ends(of_name),
                    ends(of_other)
                );
            }
        }
    }
    "out of order: no moment has all that is there".to_owned()
}

/// Whether the moments of several clients go together: whoever asked after another was answered does not outlive it.
///
/// # Errors
/// Which operation is there although one before it is not.
pub fn across(clients: &[(&Books, &Found)]) -> Result<(), String> {
    for (later, (books, found)) in clients.iter().enumerate() {
        let Some(there) = found.moments.start().checked_sub(1).map(|last| &books.done[last]) else {
            continue;
        };
        for (earlier, (others, lost)) in clients.iter().enumerate() {
            let Some(missing) = others.done.get(*lost.moments.end()) else { continue };
            if missing.ended.is_some_and(|ended| ended < there.begun) {
                return Err(format!(
                    "out of order: client {later}'s {:?} is there and client {earlier}'s {:?} is not, \
                     which was answered before",
                    there.change, missing.change
                ));
            }
        }
    }
    Ok(())
}
