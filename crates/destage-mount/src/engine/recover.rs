//! What a start finds in the journal.

use super::lives::{Life, Lives};
use super::record::{Base, NameChange, Record};
use super::traces::Traces;
use super::tree::{Doubt, Tree};
use crate::ask::{Ino, Name};
use destage_core::Lsn;
use std::collections::{BTreeMap, BTreeSet};

/// What the journal says of the origin: read from its beginning to its end, before any of it is taken up.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// Everything up to there is at the origin.
    pub(crate) decided: Lsn,
    /// What the origin held of files, and in which group that is said.
    bases: Vec<(Ino, (Base, Lsn))>,
    absorbed: Vec<Life>,
    /// What was said in front of the next checkpoint, up to which group.
    part: (u64, Vec<(Ino, Base)>, Vec<Life>),
    /// Batches that had begun, and of which nothing says that they have ended.
    begun: Vec<Begun>,
    /// What was found of their files afterwards, and up to which group the batches go.
    left: BTreeMap<Ino, (Base, Lsn)>,
    others: BTreeMap<Ino, Lsn>,
    /// How often this journal has been mounted.
    pub(crate) epoch: u64,
    /// Conflicts that are told of.
    pub(crate) conflicts: u64,
}

#[derive(Debug)]
struct Begun {
    upto: Lsn,
    files: Vec<Ino>,
    /// Those of them of which nothing was found afterwards.
    unsure: BTreeSet<Ino>,
    absorbed: Vec<Life>,
}

impl Scan {
    /// The next group.
    pub(crate) fn look(&mut self, lsn: Lsn, records: Vec<Record>) {
        let said = |(ino, base)| (ino, (base, lsn));
        for record in records {
            match record {
                Record::Begin { epoch, .. } => {
                    self.epoch = self.epoch.max(epoch);
                    self.part = Default::default();
                }
                Record::Intent { upto, files, absorbed } => {
                    let unsure = files.iter().copied().collect();
                    self.begun.push(Begun { upto: Lsn(upto), files, unsure, absorbed });
                }
                Record::Part { upto, bases, absorbed } => {
                    if self.part.0 != upto {
                        self.part = (upto, Vec::new(), Vec::new());
                    }
                    self.part.1.extend(bases);
                    self.part.2.extend(absorbed);
                }
                Record::Ckpt { upto, bases, mut absorbed } => {
                    self.decided = self.decided.max(Lsn(upto));
                    let (part_upto, more_bases, more_absorbed) = std::mem::take(&mut self.part);
                    if part_upto == upto {
                        self.bases.extend(more_bases.into_iter().map(said));
                        absorbed.extend(more_absorbed);
                    }
                    // Of files that no later batch concerned, an earlier one says how they are.
                    self.bases.extend(bases.into_iter().map(said));
                    self.absorbed = absorbed;
                    self.begun.retain(|begun| begun.upto > Lsn(upto));
                    self.others.retain(|_, tried| *tried > Lsn(upto));
                    self.left.retain(|_, (_, tried)| *tried > Lsn(upto));
                }
                Record::Judged { upto, left, others, rest } => {
                    for ino in left.iter().map(|(ino, _)| ino).chain(&others).chain(&rest) {
                        self.begun.iter_mut().for_each(|begun| _ = begun.unsure.remove(ino));
                        self.left.remove(ino);
                        self.others.remove(ino);
                    }
                    let tried = Lsn(upto);
                    self.left.extend(left.into_iter().map(|(ino, base)| (ino, (base, tried))));
                    self.others.extend(others.into_iter().map(|ino| (ino, tried)));
                }
                Record::Conflict { number, .. } => self.conflicts = self.conflicts.max(number),
                _ => {}
            }
        }
    }

    /// Prepares an empty tree for the groups behind [`Scan::decided`].
    pub(crate) fn prepare(&self, tree: &mut Tree, controls_no_intent: bool) {
        tree.bases.extend(self.bases.iter().copied());
        tree.absorbed.extend(self.absorbed.iter().copied());
        if controls_no_intent {
            return;
        }
        let upto = self.begun.iter().map(|begun| begun.upto).max();
        tree.doubt = upto.map(|upto| {
            let absorbed: Lives =
                self.begun.iter().flat_map(|begun| begun.absorbed.iter().copied()).collect();
            Doubt { upto, absorbed }
        });
        let files = self.begun.iter().flat_map(|begun| begun.files.iter().copied());
        tree.written_in_part.extend(files);
        tree.found = Traces::found(
            self.left.iter().map(|(ino, (base, _))| (*ino, *base)).collect(),
            self.begun.iter().flat_map(|begun| begun.unsure.iter().copied()).collect(),
            self.others.keys().copied().collect(),
            upto.unwrap_or(Lsn::ZERO),
            self.begun.iter().flat_map(|begun| begun.absorbed.iter().copied()).collect(),
        );
    }
}

impl Tree {
    /// Every group has been taken up.
    pub(crate) fn recovered(&mut self) {
        self.bases.clear();
        self.traces = std::mem::take(&mut self.found);
        let mut absorbed = std::mem::take(&mut self.absorbed);
        absorbed.retain(|life| self.node(life.ino).is_some());
        self.absorbed = absorbed;
        self.find_lost_names();
        // What was read is durable. The origin may have lost these by now, and have other files with their numbers.
        for ino in self.gone() {
            self.give_back(ino, Lsn(u64::MAX));
        }
        // What the origin has of the others the earlier run knew.
        self.may_be_sent();
    }

    /// Changes of names in directories that others have had since are lost, or of files that they have had: what they have written
    /// to a file is not to go with its name. So are those that build on them: the same name is said of in both. What is left
    /// says nothing of a name that others may have changed, or that was lost here.
    fn find_lost_names(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let mut lost: BTreeSet<(Ino, Name)> = BTreeSet::new();
        for (lsn, change) in &self.log {
            let names =
                || change.after().into_iter().flatten().map(|(dir, name, _)| (dir, name.clone()));
            // What is made here has no name by which others could have had it.
            let is_made = matches!(change, NameChange::Create { .. });
            let file = Some(change.ino()).filter(|_| !is_made);
            let mut concerned = change.dirs().into_iter().chain(file).chain(change.replaced());
            let is_lost = concerned.any(|ino| self.lost.contains(&ino))
                || names().any(|name| lost.contains(&name));
            if is_lost {
                lost.extend(names());
                self.lost_names.insert(*lsn);
            }
        }
    }

    /// All of it is kept aside, and the journal says so.
    pub(crate) fn settle_lost(&mut self) {
        self.lost.clear();
        self.lost_names.clear();
    }
}
