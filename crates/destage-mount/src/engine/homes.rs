//! What covered the changes that a start finds in the journal: tokens, by way of the directories in which files were made.

use super::covers::{Covers, root_of};
use super::record::{NameChange, Record};
use crate::ask::Ino;
use destage_tokens::{FileId, Root};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The same of all groups that the origin does not have: see the module.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    /// The numbers of files with changes.
    inos: HashMap<FileId, Ino>,
    /// What covered each when it was last said.
    newest: BTreeMap<FileId, FileId>,
    /// What was ever covered by way of each.
    within: HashMap<FileId, BTreeSet<FileId>>,
    /// Those whose tokens were held.
    tokens: BTreeSet<FileId>,
}

impl Homes {
    /// The next group.
    pub(crate) fn look(&mut self, records: &[Record]) {
        let mut handles: HashMap<Ino, &FileId> = HashMap::new();
        let mut homes: HashMap<&FileId, &FileId> = HashMap::new();
        for record in records {
            match record {
                Record::File { key, .. } => {
                    handles.insert(key.ino, &key.handle);
                    self.inos.insert(key.handle.clone(), key.ino);
                }
                Record::Cover { ino, root } => {
                    homes.extend(handles.get(ino).map(|&file| (file, root)));
                }
                Record::Home { dir, home } => _ = homes.insert(dir, home),
                _ => {}
            }
        }
        for (&file, &home) in &homes {
            self.newest.insert(file.clone(), home.clone());
            // Its cover is said in the same group, unless its own token is it.
            if file == home || !homes.contains_key(home) {
                self.tokens.insert(home.clone());
            }
            if file != home {
                self.within.entry(home.clone()).or_default().insert(file.clone());
            }
        }
        for record in records {
            let Record::Names(change) = record else { continue };
            let handle = |ino| handles.get(&ino).copied();
            match change {
                // Until the origin has that, others find it where it was.
                NameChange::Rename { dir, ino, .. } => {
                    if let (Some(file), Some(dir)) = (handle(*ino), handle(*dir))
                        && homes.get(file).is_some_and(|&home| home != file && !home.is_empty())
                    {
                        self.within.entry(dir.clone()).or_default().insert(file.clone());
                    }
                }
                NameChange::Unlink { ino, .. } | NameChange::RmDir { ino, .. } => {
                    handle(*ino).map(|file| self.newest.remove(file));
                }
                NameChange::Create { .. } | NameChange::Link { .. } => {}
            }
            change.replaced().and_then(handle).map(|file| self.newest.remove(file));
        }
    }

    /// Files that others may have changed since: of tokens that are not confirmed, and whatever was covered by way of such a
    /// file. Whoever has a directory finds what lies in it.
    fn lost(&self, is_confirmed: impl Fn(&Root) -> bool) -> BTreeSet<Ino> {
        let unconfirmed = self.tokens.iter().filter(|token| !is_confirmed(&root_of(token)));
        let mut due: Vec<&FileId> = unconfirmed.collect();
        let mut lost: BTreeSet<&FileId> = due.iter().copied().collect();
        while let Some(next) = due.pop() {
            let within = self.within.get(next).into_iter().flatten();
            due.extend(within.filter(|file| lost.insert(file)));
        }
        lost.into_iter().filter_map(|file| self.inos.get(file).copied()).collect()
    }

    /// All groups have been looked at: what is lost. If nothing is, directories' tokens cover what they covered. Else all of it
    /// is at the origin before anything is served, and what was made here is covered by no directory's any more.
    pub(crate) fn take_up(
        &self,
        is_confirmed: impl Fn(&Root) -> bool,
        covers: &dyn Covers,
    ) -> BTreeSet<Ino> {
        let lost = self.lost(is_confirmed);
        if lost.is_empty() {
            let newest = self.newest.iter();
            let made = newest.filter(|(file, home)| file != home && !home.is_empty());
            made.for_each(|(file, home)| covers.born(file, home));
        }
        lost
    }
}
