//! Which tokens a request needs where several hosts share the origin, and what of the journal they cover.

use super::needs::Hints;
use super::record::{Base, NameChange, Record};
use super::tree::{Known, Tree};
use crate::ask::{Ask, Ino, Name};
use crate::origin::Key;
use destage_core::Lsn;
use destage_tokens::{FileId, Mode, Need, Root};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Whoever holds tokens for this front end.
pub(crate) trait Covers: Send + Sync {
    /// From a file to the token that covers a change of it: see [`destage_tokens::Host::way`].
    fn way(&self, file: &FileId) -> Vec<Root>;
    /// Whether another token covers a file while this one is given up: see [`destage_tokens::Host::stays`].
    fn stays(&self, file: &FileId, root: &Root) -> bool;
    /// A file was made in a directory.
    fn born(&self, file: &FileId, dir: &FileId);
    /// A file was moved to a directory.
    fn moved(&self, file: &FileId, dir: &FileId);
    /// A file has a further name, or none any more.
    fn not_born(&self, file: &FileId);
}

impl Tree {
    /// Whether the kernel may change what is read here without a word: it stores through the pages of a file that somebody
    /// may write, whoever has read them. An open drops pages that were there before.
    pub(crate) fn is_stored_to(&self, ask: &Ask) -> bool {
        match ask {
            Ask::Read { ino, mapped: true, .. } => {
                self.node(*ino).is_some_and(|node| node.writers > 0)
            }
            _ => false,
        }
    }

    /// What a request needs, as far as it is known which files it concerns: names may have to be looked up first.
    pub(crate) fn tokens_for(&self, ask: &Ask, hints: &Hints) -> BTreeSet<Need> {
        let mut needs = Needs { tree: self, hints, found: BTreeSet::new() };
        match ask {
            Ask::Lookup { dir, name } => {
                needs.file(*dir, Mode::Read);
                needs.child(*dir, name, Mode::Read);
            }
            Ask::Read { ino, .. } => {
                let is_stored_to = self.is_stored_to(ask);
                needs.file(*ino, if is_stored_to { Mode::Exclusive } else { Mode::Read });
            }
            Ask::Open { ino, flags } => {
                let cuts = flags & libc::O_TRUNC != 0;
                needs.file(*ino, if cuts { Mode::Exclusive } else { Mode::Read });
            }
            Ask::GetAttr { ino }
            | Ask::ReadLink { ino }
            | Ask::OpenDir { ino }
            | Ask::ReadDir { ino, .. }
            | Ask::GetXattr { ino, .. }
            | Ask::ListXattr { ino }
            | Ask::Lseek { ino, .. } => needs.file(*ino, Mode::Read),
            Ask::SetAttr { ino, .. }
            | Ask::Write { ino, .. }
            | Ask::SetXattr { ino, .. }
            | Ask::RemoveXattr { ino, .. }
            | Ask::Fallocate { ino, .. } => needs.file(*ino, Mode::Exclusive),
            Ask::Make { dir, .. } => needs.file(*dir, Mode::Exclusive),
            Ask::Unlink { dir, name } | Ask::RmDir { dir, name } => {
                needs.file(*dir, Mode::Exclusive);
                needs.child(*dir, name, Mode::Exclusive);
            }
            Ask::Rename { dir, name, to_dir, to_name, .. } => {
                for (dir, name) in [(dir, name), (to_dir, to_name)] {
                    needs.file(*dir, Mode::Exclusive);
                    needs.child(*dir, name, Mode::Exclusive);
                }
            }
            Ask::Link { ino, dir, .. } => {
                needs.file(*dir, Mode::Exclusive);
                // Who looks its new name up does not ask for the directory in which it was made.
                if let Some(node) = self.node(*ino) {
                    needs.need(&node.key, Mode::Exclusive, true);
                }
            }
            // What the journal has is this host's own; the room is the origin's.
            Ask::Forget { .. }
            | Ask::Release { .. }
            | Ask::Fsync { .. }
            | Ask::ReleaseDir { .. }
            | Ask::StatFs => {}
        }
        needs.found
    }

    /// The files that tokens cover; all of them, for that of everything. With the newest group that changed any of them, or that
    /// was written under this token: a file may have been covered by another one then.
    pub(super) fn covered(&self, root: &Root, covered: &[FileId]) -> (Vec<Ino>, Lsn) {
        let covered: HashSet<&FileId> = covered.iter().collect();
        let is_covered = |id: &FileId| match root {
            Root::Volume => true,
            Root::File(file) => file == id || covered.contains(id),
        };
        let known = match root {
            Root::Volume => Some(self.covered_newest()),
            Root::File(file) => self.covered_upto.get(file).copied(),
        };
        let mut newest = known.unwrap_or(Lsn::ZERO);
        let mut inos = Vec::new();
        for node in self.nodes().filter(|node| is_covered(&node.key.handle)) {
            newest = newest.max(node.last);
            inos.push(node.key.ino);
        }
        (inos, newest.min(self.covered_newest()))
    }

    /// The newest group of which the journal does not say yet that the origin has it, and that was written under a token.
    pub(super) fn covered_newest(&self) -> Lsn {
        self.covered_upto.values().copied().max().unwrap_or(Lsn::ZERO)
    }

    /// The journal says that everything up to there is at the origin.
    pub(super) fn forget_covers(&mut self, upto: Lsn) {
        self.covered_upto.retain(|_, lsn| *lsn > upto);
    }

    /// What the origin held of files with changes that it does not have.
    pub(super) fn bases_known(&self) -> Vec<(Ino, Base)> {
        let undecided = self.nodes().filter(|node| node.stat.is_some());
        undecided.filter_map(|node| Some((node.key.ino, node.base?))).collect()
    }

    /// Whether there is a change of a file that is not at the origin. What has no name is this host's alone.
    pub(super) fn is_unsent(&self, ino: Ino) -> bool {
        self.node(ino).is_some_and(|node| node.dead.is_none() && node.changed.first.is_some())
    }

    /// What is known of files that others may change from now on is known no more. All of it is at the origin.
    pub(crate) fn forget_clean(&mut self, inos: &[Ino]) {
        let settled = self.settle();
        for &ino in inos {
            let Some(node) = self.node_mut(ino) else { continue };
            if node.dead.is_some() {
                continue;
            }
            assert!(
                node.changed.first.is_none(),
                "a token is given up with its changes at the origin"
            );
            (node.stat, node.base, node.settled) = (None, None, settled);
            node.names.is_complete = false;
            let names = std::mem::take(&mut node.names.known);
            for (whose, _) in names.into_values() {
                self.unname(whose);
            }
        }
    }

    /// What the records of a group mean for tokens; and those that say after a crash which tokens covered it.
    pub(crate) fn note_covers(&self, covers: &dyn Covers, records: &mut Vec<Record>) {
        let handle = |ino: Ino, records: &[Record]| {
            let introduced = records.iter().find_map(|record| match record {
                Record::File { key, .. } if key.ino == ino => Some(key.handle.clone()),
                _ => None,
            });
            introduced.or_else(|| self.node(ino).map(|node| node.key.handle.clone()))
        };
        for index in 0..records.len() {
            let Record::Names(change) = &records[index] else { continue };
            let [_, to_dir] = change.dirs();
            let (Some(file), Some(dir)) = (handle(change.ino(), records), handle(to_dir, records))
            else {
                continue;
            };
            match change {
                NameChange::Create { .. } => covers.born(&file, &dir),
                NameChange::Rename { .. } => covers.moved(&file, &dir),
                NameChange::Link { .. } => covers.not_born(&file),
                NameChange::Unlink { .. } | NameChange::RmDir { .. } => {}
            }
        }
        let files: Vec<Key> = records
            .iter()
            .filter_map(|record| match record {
                Record::File { key, .. } => Some(key.clone()),
                _ => None,
            })
            .collect();
        let mut homes = BTreeMap::new();
        for key in &files {
            let mut way = covers.way(&key.handle).into_iter().map(handle_of);
            let root = way.next().unwrap_or_else(|| key.handle.clone());
            let mut at = root.clone();
            records.push(Record::Cover { ino: key.ino, root });
            for home in way {
                homes.insert(at, home.clone());
                at = home;
            }
        }
        // Of the group's own files their covers say it.
        files.iter().for_each(|key| _ = homes.remove(&key.handle));
        records.extend(homes.into_iter().map(|(dir, home)| Record::Home { dir, home }));
        for record in &*records {
            let Record::Names(change) = record else { continue };
            let gone = match change {
                NameChange::Unlink { ino, .. } | NameChange::RmDir { ino, .. } => Some(*ino),
                _ => change.replaced(),
            };
            // One that was made here and has further names was not counted as such any more.
            if let Some(file) = gone.and_then(|ino| handle(ino, records)) {
                covers.not_born(&file);
            }
        }
    }
}

/// How a cover is written down: nothing for everything.
fn handle_of(root: Root) -> FileId {
    match root {
        Root::Volume => FileId::from(&[][..]),
        Root::File(file) => file,
    }
}

/// The same, read.
pub(super) fn root_of(handle: &FileId) -> Root {
    if handle.is_empty() { Root::Volume } else { Root::File(handle.clone()) }
}

struct Needs<'a> {
    tree: &'a Tree,
    hints: &'a Hints,
    found: BTreeSet<Need>,
}

impl Needs<'_> {
    fn need(&mut self, key: &Key, mode: Mode, is_explicit: bool) {
        self.found.insert(Need { root: Root::File(key.handle.clone()), mode, is_explicit });
    }

    fn file(&mut self, ino: Ino, mode: Mode) {
        // What has no name is this host's alone.
        if let Some(node) = self.tree.node(ino).filter(|node| node.dead.is_none()) {
            self.need(&node.key, mode, false);
        }
    }

    fn child(&mut self, dir: Ino, name: &Name, mode: Mode) {
        match self.tree.child(dir, name) {
            Known::Nobody => {}
            Known::File(ino) => self.file(ino, mode),
            Known::AskOrigin => {
                let dir = self.tree.node(dir);
                let key = dir.and_then(|dir| self.hints.name(&dir.key, name, dir.settled).ok()?);
                if let Some(key) = key {
                    self.need(&key, mode, false);
                }
            }
        }
    }
}
