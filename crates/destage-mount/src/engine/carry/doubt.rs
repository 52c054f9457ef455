//! What earlier, unfinished attempts have done to names.

use super::super::needs::staged_name;
use super::super::plan::NameWork;
use super::super::record::NameChange;
use super::Carrier;
use crate::ask::{Errno, Ino, Kind, Name};
use crate::origin::{Key, Result};
use hashbrown::HashMap;
use std::ops::RangeInclusive;

/// Whose names are.
type Names = HashMap<(Ino, Name), Option<Ino>>;

/// Changes in order, without those of which the names at the origin say nothing, since others may have changed them.
type Changes<'a> = [Option<&'a NameChange>];

/// How many changes were done, as far as the names at the origin tell.
struct Guess {
    done: usize,
    /// So many names are not what they are after so many changes.
    mismatches: isize,
    /// Other numbers of changes that would fit as well.
    as_good: Vec<usize>,
}

impl Carrier<'_> {
    /// How many of these changes an earlier attempt has done. They were done in order, so the names at the origin are
    /// what they are after so many of them; of several such numbers, which look the same, the last.
    pub(super) fn done_before(&self, works: &[NameWork]) -> Result<usize> {
        let changes: Vec<_> =
            works.iter().map(|work| (!self.is_lost(work)).then_some(&work.change)).collect();
        let within = self.surely_done(works)?;
        let files: HashMap<Ino, &Key> = works
            .iter()
            .flat_map(|work| work.replaced.iter().chain([&work.file]))
            .map(|key| (key.ino, key))
            .collect();
        // Others may have deleted one of these, and made a file that has its number now.
        let is_another = |key: &Key| files.get(&key.ino).is_some_and(|known| *known != key);
        let number = |key: Key| if is_another(&key) { OTHERS } else { key.ino };
        let mut found = Names::new();
        for (work, change) in works.iter().zip(&changes) {
            let before = change.map(NameChange::before).into_iter().flatten();
            for ((dir, name, _), key) in before.flatten().zip(&work.dirs) {
                if !found.contains_key(&(dir, name.clone())) {
                    found.insert((dir, name.clone()), self.whose(key, name)?.map(number));
                }
            }
        }
        self.find_forgotten(works, &changes, &mut found)?;
        let mut guessed = guess(&changes, &found, &within);
        // Others may have changed names, or a client of the origin has forgotten some.
        if guessed.mismatches > 0
            && self.looks_again(works, &changes, &guessed.as_good, &mut found)?
        {
            guessed = guess(&changes, &found, &within);
        }
        if guessed.mismatches > 0 {
            guessed = guess(&changes, &found, &self.staged_done(works)?);
        }
        Ok(guessed.done)
    }

    /// A name that was to go seems to be gone to a client that has forgotten it, too. Then its file is still there.
    fn find_forgotten(
        &self,
        works: &[NameWork],
        changes: &Changes<'_>,
        found: &mut Names,
    ) -> Result<()> {
        if !self.origin.renames_in_steps() {
            return Ok(());
        }
        for (work, change) in works.iter().zip(changes) {
            let Some(NameChange::Unlink { dir, name, ino }) = change else { continue };
            let place = (*dir, name.clone());
            if found.get(&place) != Some(&None) {
                continue;
            }
            match self.origin.stat(&work.file) {
                Ok(_) => {}
                Err(Errno::STALE | Errno::NOENT) => continue,
                Err(error) => return Err(error),
            }
            if self.has_name(&work.file, &work.dirs[0], name)? {
                found.insert(place, Some(*ino));
            }
        }
        Ok(())
    }

    /// Others may have changed what this change is about, while this host was shut out.
    pub(super) fn is_lost(&self, work: &NameWork) -> bool {
        work.is_lost && !self.controls.guesses_lost
    }

    /// At least and at most so many of these changes were done, where some of them are lost: then what names say is less than
    /// usual. Where files are made in advance nobody else changes anything, and a file that is only there has not got its first
    /// name.
    fn surely_done(&self, works: &[NameWork]) -> Result<RangeInclusive<usize>> {
        if works.iter().any(|work| self.is_lost(work)) {
            self.staged_done(works)
        } else {
            Ok(0..=works.len())
        }
    }

    fn staged_done(&self, works: &[NameWork]) -> Result<RangeInclusive<usize>> {
        let mut least = 0;
        for (index, work) in works.iter().enumerate() {
            let NameChange::Create { staged, make, .. } = &work.change else { continue };
            match self.is_staged(&work.file, make.kind(), *staged)? {
                Some(true) => return Ok(least..=index),
                // Where it has its name, its second step may be one of those that come behind all first ones.
                None | Some(false) => least = index + 1,
            }
        }
        Ok(least..=works.len())
    }

    /// Whether a file is only where files are made in advance; `None` if it is there, and has a name besides.
    pub(super) fn is_staged(&self, file: &Key, kind: Kind, staged: u64) -> Result<Option<bool>> {
        match self.origin.lookup(self.own.pool(staged), &staged_name(staged)) {
            Ok((key, stat)) if key == *file => {
                Ok((kind == Kind::Dir || stat.nlink == 1).then_some(true))
            }
            Ok(_) | Err(Errno::NOENT | Errno::STALE) => Ok(Some(false)),
            Err(error) => Err(error),
        }
    }

    /// Asks again for names that should be files' after so many changes, and seem to be nobody's. True if one is there.
    fn looks_again(
        &self,
        works: &[NameWork],
        changes: &Changes<'_>,
        dones: &[usize],
        found: &mut Names,
    ) -> Result<bool> {
        let files: HashMap<Ino, &Key> =
            works.iter().map(|work| (work.file.ino, &work.file)).collect();
        let dirs: HashMap<Ino, &Key> =
            works.iter().flat_map(|work| &work.dirs).map(|dir| (dir.ino, dir)).collect();
        let mut is_there = false;
        for &done in dones {
            for ((dir, name), whose) in after(changes, done) {
                let keys = whose.and_then(|ino| Some((*files.get(&ino)?, *dirs.get(&dir)?)));
                let place = (dir, name);
                if found.get(&place) == Some(&None)
                    && let Some((file, dir)) = keys
                    && self.has_name(file, dir, &place.1)?
                {
                    found.insert(place, whose);
                    is_there = true;
                }
            }
        }
        Ok(is_there)
    }

    /// A file that has its first name is not to keep the one under which it was made in advance: where a rename takes two
    /// steps, an earlier attempt may have ended between them.
    pub(super) fn end_create(&self, work: &NameWork) -> Result<()> {
        let NameChange::Create { staged, make, .. } = &work.change else { return Ok(()) };
        if self.is_staged(&work.file, make.kind(), *staged)? == Some(true) {
            // It has no other one.
            return Ok(());
        }
        let pool = self.own.pool(*staged);
        let staged = staged_name(*staged);
        // Its client may have forgotten the name.
        if self.whose_surely(&work.file, pool, &staged)?.as_ref() == Some(&work.file) {
            self.origin.unlink(pool, &staged)?;
        }
        Ok(())
    }

    /// The last change that was done may have been a rename in two steps of which only the first was: that looks the same to a
    /// client that has forgotten the old name.
    pub(super) fn end_rename(&self, work: &NameWork) -> Result<()> {
        let NameChange::Rename { name, .. } = &work.change else { return Ok(()) };
        let [dir, _] = &work.dirs;
        if self.whose(dir, name)?.is_none() && self.has_name(&work.file, dir, name)? {
            self.origin.unlink(dir, name)?;
        }
        Ok(())
    }
}

/// Of a file of others whose number one of the files has that the changes are about: no file has this one.
const OTHERS: Ino = 0;

/// What the names are before all changes.
fn before(changes: &Changes<'_>) -> Names {
    let mut names = Names::new();
    for change in changes.iter().flatten() {
        for (dir, name, whose) in change.before().into_iter().flatten() {
            names.entry((dir, name.clone())).or_insert(whose);
        }
    }
    names
}

/// What the names are after so many changes.
fn after(changes: &Changes<'_>, done: usize) -> Names {
    let mut names = before(changes);
    for change in changes.iter().take(done).flatten() {
        for (dir, name, whose) in change.after().into_iter().flatten() {
            names.insert((dir, name.clone()), whose);
        }
    }
    names
}

/// A guess at least and at most so many changes.
fn guess(changes: &Changes<'_>, found: &Names, within: &RangeInclusive<usize>) -> Guess {
    let mut expected = before(changes);
    let mut mismatches =
        expected.iter().filter(|(name, whose)| found.get(*name) != Some(*whose)).count() as isize;
    let mut best = Guess { done: 0, mismatches: isize::MAX, as_good: Vec::new() };
    let mut consider = |done: usize, mismatches: isize| {
        if !within.contains(&done) {
            return;
        }
        if mismatches < best.mismatches {
            best.as_good.clear();
        }
        if mismatches <= best.mismatches {
            (best.done, best.mismatches) = (done, mismatches);
            best.as_good.push(done);
        }
    };
    consider(0, mismatches);
    for (index, change) in changes.iter().enumerate() {
        // Where a rename takes two steps, it may have ended between them: then it is done once more.
        // Before that, a name that it replaces may have been taken away. One that a client has forgotten looks the same: so
        // everything else has to fit.
        if let Some(NameChange::Rename { to_dir, to_name, ino, replaced, .. }) = change {
            let name = (*to_dir, to_name.clone());
            let (found, before) = (found.get(&name), expected.get(&name));
            let with = |now| {
                mismatches + isize::from(found.copied() != Some(now)) - isize::from(found != before)
            };
            if replaced.is_some() && with(None) == 0 {
                consider(index, 0);
            }
            consider(index, with(Some(*ino)));
        }
        let after = change.map(NameChange::after).into_iter().flatten().flatten();
        for (dir, name, whose) in after {
            let name = (dir, name.clone());
            let found = found.get(&name).copied().flatten();
            let before = expected.insert(name, whose).flatten();
            mismatches += isize::from(found != whose) - isize::from(found != before);
        }
        consider(index + 1, mismatches);
    }
    best
}
