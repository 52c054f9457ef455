//! What goes to the origin in one batch, and what follows once it is there.
//!
//! A batch is everything up to one group: first the content and the attributes of each file that it concerns, as they
//! are now; then the names, one after the other, in the order in which they changed. So a name never comes before the
//! data of its file, and what the origin shows of names existed here. A file that is gone again by now is left out,
//! with all its names.

use super::extents::Content;
use super::lives::{Life, Lives};
use super::needs::Staged;
use super::node::Node;
use super::record::{Base, NameChange, Record};
use super::traces::Traces;
use super::tree::{Doubt, Tree};
use crate::ask::{Ino, Kind, Name, Stat};
use crate::origin::Key;
use destage_core::Lsn;
use std::collections::{BTreeMap, BTreeSet};

/// A batch: see the module.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) upto: Lsn,
    /// The content and the attributes are as they were then.
    pub(crate) at: Lsn,
    pub(crate) files: Vec<FileWork>,
    pub(crate) names: Vec<NameWork>,
    /// Changes of names up to this group, with those that are void.
    pub(crate) due: usize,
    /// Changes of names that earlier attempts may have done, from the first one on: they may reach further than this batch.
    pub(crate) in_doubt: Vec<NameWork>,
    /// Files that such attempts may have changed, of which nobody knows how they were left: not of this batch alone.
    pub(crate) unsure: Vec<Unsure>,
    /// Directories whose names change: their times are to be as they are here.
    pub(crate) dirs: Vec<(Key, Stat)>,
    /// Files that may look different to the origin afterwards.
    pub(crate) touched: BTreeMap<Ino, Key>,
    /// The same with those that may be touched to find out what earlier attempts have done.
    pub(crate) may_touch: BTreeMap<Ino, Key>,
    pub(crate) absorbed: Lives,
    /// So many of them are created in this batch.
    pub(crate) absorbed_now: u64,
    /// Other hosts share the origin, each by its tokens.
    pub(crate) is_shared: bool,
    pub(crate) step: Step,
}

/// Of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// What others have changed is found out, while nothing is changed.
    Judge,
    Carry,
}

/// What a file is to be.
#[derive(Clone, Debug)]
pub(crate) struct FileWork {
    pub(crate) key: Key,
    pub(crate) stat: Stat,
    /// What the origin must hold for this not to be a conflict; `None` where nobody else can have changed it, or where it is to be
    /// judged what an earlier attempt has left.
    pub(crate) base: Option<Base>,
    /// Of a file, something of its bytes or its size changed here: else those that others write meanwhile are theirs.
    pub(crate) has_content: bool,
    /// The same of when its content changed.
    pub(crate) has_mtime: bool,
    /// The same of mode and owner: those of a directory stay as others set them, where only its names changed here.
    pub(crate) has_mode: bool,
    /// Others may see it.
    pub(crate) is_named: bool,
    /// An earlier attempt may have brought it.
    pub(crate) is_brought: bool,
    /// Others have changed it since: it is kept aside.
    pub(crate) is_others: bool,
    /// What is behind this place at the origin is not the file's any more.
    pub(crate) limit: u64,
    pub(crate) writes: Vec<(u64, u64, Content)>,
    pub(crate) xattrs: Vec<(Name, Option<Box<[u8]>>)>,
    /// Names it in a conflict, the same in every attempt.
    pub(crate) first: Lsn,
    /// Others have had its token since: it is kept aside, if they could see it.
    pub(crate) is_lost: bool,
    /// Under which number it was made in advance, as long as nothing says that it has a name at the origin.
    pub(crate) staged: Option<u64>,
}

impl FileWork {
    /// What the origin is to hold of it before it is changed.
    pub(crate) fn judged_by(&self) -> Option<Base> {
        self.base.filter(|_| self.stat.kind == Kind::File && !self.is_others && !self.is_lost)
    }
}

/// A file of which nobody knows how an attempt has left it.
#[derive(Clone, Debug)]
pub(crate) struct Unsure {
    pub(crate) key: Key,
    pub(crate) kind: Kind,
    /// What the origin held before that.
    pub(crate) base: Option<Base>,
    /// As of [`FileWork`].
    pub(crate) staged: Option<u64>,
}

/// A change of names that is not void, with the keys of all that it names.
#[derive(Clone, Debug)]
pub(crate) struct NameWork {
    pub(crate) lsn: Lsn,
    pub(crate) change: NameChange,
    pub(crate) file: Key,
    /// What a rename replaces.
    pub(crate) replaced: Option<Key>,
    pub(crate) dirs: [Key; 2],
    /// Others have had the tokens since.
    pub(crate) is_lost: bool,
}

/// Files made in advance that nobody needs any more.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Under which numbers they were made.
    pub(crate) numbers: Vec<u64>,
    /// Those that the origin has as they were made.
    pub(crate) unchanged: Vec<Staged>,
}

/// What came of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    pub(crate) bases: Vec<(Ino, Base)>,
    /// Files that are there, and that others have changed: what was known of them before stays known. How they are now, for those
    /// of which nothing was.
    pub(crate) left: Vec<(Ino, Base)>,
    pub(crate) conflicts: Vec<Conflict>,
}

/// What could not be written since others had changed the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) ino: Ino,
    /// Where it is kept.
    pub(crate) place: String,
    pub(crate) reason: &'static str,
    /// Whether it is about a name, and not about content.
    pub(crate) of_name: Option<Lsn>,
}

impl Plan {
    /// Whether the origin is not touched at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.due == 0
    }

    /// Whether there is anything of which others may have changed what is known.
    pub(crate) fn is_to_be_judged(&self) -> bool {
        !self.unsure.is_empty() || self.files.iter().any(|file| file.judged_by().is_some())
    }

    /// What is to be durable before the origin is touched.
    pub(crate) fn intent(&self) -> Record {
        Record::Intent {
            upto: self.upto.0,
            files: self.may_touch.keys().copied().collect(),
            absorbed: self.absorbed.iter().collect(),
        }
    }
}

impl Tree {
    /// What goes to the origin in a batch up to a group, while the newest one is `at`. It counts as under way from now on.
    pub(crate) fn plan(&mut self, upto: Lsn, at: Lsn) -> Plan {
        let due = self.log.iter().take_while(|(lsn, _)| *lsn <= upto);
        let log: Vec<(Lsn, NameChange)> = due.cloned().collect();
        let absorbed = self.absorbed_upto(upto);
        let creates = |change: &NameChange| matches!(change, NameChange::Create { .. });
        let absorbed_now = log
            .iter()
            .filter(|(lsn, change)| creates(change) && absorbed.contains(change.ino(), *lsn))
            .count() as u64;
        let is_due = |node: &Node| node.changed.first.is_some_and(|first| first <= upto);
        let dirty = self.dirty.iter().copied();
        let aged = dirty.filter(|&ino| self.node(ino).is_some_and(is_due));
        // A name takes its file's newest content along.
        let not_void = log.iter().filter(|(lsn, change)| !absorbed.contains(change.ino(), *lsn));
        let named = not_void.map(|(_, change)| change.ino());
        let inos: BTreeSet<Ino> = aged.chain(named).collect();
        let files: Vec<FileWork> =
            inos.into_iter().filter_map(|ino| self.file_work(ino, &absorbed)).collect();
        for file in &files {
            self.send(file);
        }
        let names: Vec<NameWork> = log
            .iter()
            .filter_map(|(lsn, change)| self.name_work(*lsn, change, &absorbed))
            .collect();
        let in_doubt = self.doubt.as_ref().map_or_else(Vec::new, |doubt| {
            let begun = self.log.iter().take_while(|(lsn, _)| *lsn <= doubt.upto);
            begun
                .filter_map(|(lsn, change)| self.name_work(*lsn, change, &doubt.absorbed))
                .collect()
        });
        let mut touched: BTreeMap<Ino, Key> =
            files.iter().map(|file| (file.key.ino, file.key.clone())).collect();
        let mut dirs = BTreeMap::new();
        for work in &names {
            touched.insert(work.file.ino, work.file.clone());
            if let Some(replaced) = &work.replaced {
                touched.insert(replaced.ino, replaced.clone());
            }
            for dir in &work.dirs {
                touched.insert(dir.ino, dir.clone());
                if let Some(stat) = self.node(dir.ino).and_then(|node| node.stat)
                    && !self.lost.contains(&dir.ino)
                {
                    dirs.insert(dir.ino, (dir.clone(), stat));
                }
            }
        }
        let dirs = dirs.into_values().collect();
        let mut may_touch = touched.clone();
        may_touch.extend(in_doubt.iter().map(|work| (work.file.ino, work.file.clone())));
        let is_shared = false;
        let due = log.len();
        Plan {
            upto,
            at,
            files,
            names,
            due,
            in_doubt,
            unsure: self.traces.unsure().filter_map(|ino| self.unsure(ino)).collect(),
            dirs,
            touched,
            may_touch,
            absorbed,
            absorbed_now,
            is_shared,
            step: Step::Carry,
        }
    }

    /// Lives of files that the origin is never to see, as far as changes of names up to a group are about them.
    ///
    /// A directory is none of them in which something was that is none: else that would be nowhere, where a batch ends before it
    /// has left the directory.
    fn absorbed_upto(&self, due: Lsn) -> Lives {
        let life = |(lsn, change): &(Lsn, NameChange)| self.absorbed_at(change.ino(), *lsn);
        let upto = |lsn| self.log.iter().take_while(move |(at, _)| *at <= lsn);
        let mut absorbed: Lives = upto(due).filter_map(life).collect();
        let is_dir = |life: &Life| self.node(life.ino).is_some_and(|node| node.kind == Kind::Dir);
        // Whatever was in these came and went before they did, but for directories that were moved elsewhere.
        let mut end = due;
        while let Some(last) = absorbed.iter().filter(is_dir).map(|life| life.to).max()
            && last > end
        {
            end = last;
            absorbed.extend(upto(end).filter_map(life));
        }
        if !absorbed.iter().any(|life| is_dir(&life)) {
            return absorbed;
        }
        let mut has_passed = true;
        while has_passed {
            has_passed = false;
            // Who stays was made, and has its directory stay, before it did what has it stay.
            for (lsn, change) in self.log.iter().rev().skip_while(|(at, _)| *at > end) {
                let is_void = |ino: Ino| absorbed.contains(ino, *lsn);
                if is_void(change.ino()) && change.replaced().is_none_or(is_void) {
                    continue;
                }
                for dir in change.dirs() {
                    if let Some(life) = absorbed.of(dir, *lsn).filter(|life| self.may_stay(*life)) {
                        absorbed.remove(dir, life.from);
                        has_passed = true;
                    }
                }
            }
        }
        upto(due).filter_map(|(lsn, change)| absorbed.of(change.ino(), *lsn)).collect()
    }

    /// Whether nothing has decided yet that the origin is not to see a file in this life of it.
    fn may_stay(&self, life: Life) -> bool {
        let is_tried = self.doubt.as_ref().is_some_and(|doubt| life.from <= doubt.upto);
        let is_its_last = self.node(life.ino).and_then(Node::life) == Some(life);
        is_its_last && !is_tried && !self.absorbed.contains(life.ino, life.from)
    }

    fn file_work(&self, ino: Ino, absorbed: &Lives) -> Option<FileWork> {
        let node = self.node(ino)?;
        let (first, stat) = (node.changed.first?, node.stat?);
        let is_absorbed = node
            .dead
            .is_some_and(|dead| absorbed.contains(ino, dead) || self.absorbed.contains(ino, dead));
        // Nobody will read it. What may be named at the origin yet needs its content.
        if node.is_gone() && (is_absorbed || node.staged.is_none()) {
            return None;
        }
        let is_brought = self.written_in_part.contains(&ino);
        let is_all_ours = node.staged.is_some() || is_absorbed;
        let before = node.base.filter(|_| !is_all_ours);
        let parts = node.changed.parts;
        let writes = node.content.extents.all();
        let xattrs = node.xattrs.iter();
        Some(FileWork {
            key: node.key.clone(),
            stat,
            base: self.traces.base(ino, before),
            has_content: stat.kind == Kind::File && (is_all_ours || parts.has_content),
            has_mtime: is_all_ours || parts.has_mtime || parts.has_content,
            has_mode: is_all_ours || parts.has_mode || stat.kind == Kind::File,
            is_named: node.staged.is_none() || is_brought,
            is_brought,
            is_others: self.traces.is_others(ino),
            limit: node.content.limit,
            writes: writes.map(|(at, len, content)| (at, len, content.clone())).collect(),
            xattrs: xattrs.map(|(name, (value, _))| (name.clone(), value.clone())).collect(),
            first,
            is_lost: self.lost.contains(&ino),
            staged: node.staged.map(|(number, _)| number),
        })
    }

    fn unsure(&self, ino: Ino) -> Option<Unsure> {
        let node = self.node(ino)?;
        Some(Unsure {
            key: node.key.clone(),
            kind: node.kind,
            base: self.traces.last_known(ino, node.base),
            staged: node.staged.map(|(number, _)| number),
        })
    }

    fn send(&mut self, file: &FileWork) {
        if let Some(node) = self.node_mut(file.key.ino) {
            node.changed.send();
            node.is_sent = true;
            node.content.next_limit = Some(file.stat.size);
        }
    }

    /// `None` where there is nothing to be done.
    fn name_work(&self, lsn: Lsn, change: &NameChange, absorbed: &Lives) -> Option<NameWork> {
        let is_absorbed =
            |ino: Ino| absorbed.contains(ino, lsn) || self.absorbed.contains(ino, lsn);
        let node =
            |ino: Ino| self.node(ino).expect("what a change names is known until it is void");
        let change = left_of(change, is_absorbed, |ino| node(ino).kind)?;
        Some(NameWork {
            lsn,
            file: node(change.ino()).key.clone(),
            is_lost: self.lost_names.contains(&lsn),
            replaced: change.replaced().map(|ino| node(ino).key.clone()),
            dirs: change.dirs().map(|dir| node(dir).key.clone()),
            change,
        })
    }

    /// A batch is about to touch the origin.
    pub(crate) fn begin(&mut self, plan: &Plan) {
        let none = || Doubt { upto: Lsn::ZERO, absorbed: Lives::default() };
        let doubt = self.doubt.get_or_insert_with(none);
        self.written_in_part.extend(plan.touched.keys());
        // What an earlier attempt has left out stays left out.
        doubt.upto = doubt.upto.max(plan.upto);
        doubt.absorbed.extend(plan.absorbed.iter());
    }

    /// A batch is at the origin, durable there. Returns the files made in advance that nobody needs any more.
    pub(crate) fn land(&mut self, plan: &Plan, landed: &Landed) -> Freed {
        let upto = plan.upto;
        self.settle();
        self.count_landed(&plan.files, plan.names.len());
        let lost: BTreeSet<Ino> = landed
            .conflicts
            .iter()
            .filter(|conflict| conflict.of_name.is_none())
            .map(|conflict| conflict.ino)
            .collect();
        for file in &plan.files {
            self.file_landed(file, plan.at, lost.contains(&file.key.ino));
        }
        for &(ino, base) in &landed.bases {
            if let Some(node) =
                self.node_mut(ino).filter(|node| node.base.is_some() || node.stat.is_some())
            {
                node.base = Some(base);
            }
        }
        for &(ino, base) in &landed.left {
            if let Some(node) = self.node_mut(ino).filter(|node| node.stat.is_some()) {
                node.base.get_or_insert(base);
            }
        }
        let void: BTreeSet<Lsn> =
            landed.conflicts.iter().filter_map(|conflict| conflict.of_name).collect();
        let mut named = BTreeSet::new();
        while let Some((lsn, change)) = self.log.pop_front_if(|(lsn, _)| *lsn <= upto) {
            named.extend(change.dirs().into_iter().chain([change.ino()]));
            for (dir, name, _) in change.after().into_iter().flatten() {
                self.settle_name(dir, name, lsn, void.contains(&lsn));
            }
            if let NameChange::Create { ino, .. } = change {
                if let Some(life) = plan.absorbed.of(ino, lsn) {
                    self.absorbed.insert(life);
                } else if let Some(node) = self.node_mut(ino) {
                    node.staged.take_if(|(_, since)| *since == lsn);
                }
            }
        }
        self.doubt = self.doubt.take().filter(|doubt| doubt.upto > upto);
        if self.doubt.is_none() {
            // Nothing that was begun has not ended.
            self.written_in_part.clear();
            self.traces = Traces::default();
        } else {
            self.written_in_part.retain(|ino| !plan.touched.contains_key(ino));
            self.traces.landed(plan.touched.keys().copied());
        }
        self.clean(plan, named)
    }

    fn file_landed(&mut self, file: &FileWork, at: Lsn, is_lost: bool) {
        let ino = file.key.ino;
        let settled = self.settled();
        let Some(node) = self.node_mut(ino).filter(|node| node.key == file.key) else { return };
        node.settled = settled;
        node.changed.arrived();
        node.content.extents.forget(at);
        node.content.limit = node.content.next_limit.take().unwrap_or(node.content.limit);
        node.xattrs.retain(|_, (_, lsn)| *lsn > at);
        if is_lost {
            // The origin's is what is seen from now on.
            node.content.limit = u64::MAX;
        }
        if node.changed.first.is_none() {
            self.dirty.remove(&ino);
        }
    }

    /// What is decided of the batch's files, and was all there was, need not be known any more.
    fn clean(&mut self, plan: &Plan, named: BTreeSet<Ino>) -> Freed {
        let upto = plan.upto;
        let mut freed = Freed::default();
        let mut inos = named;
        inos.extend(plan.touched.keys());
        inos.extend(self.dirty.iter().copied().filter(|&ino| {
            self.node(ino).is_some_and(|node| node.dead.is_some_and(|dead| dead <= upto))
        }));
        inos.extend(std::mem::take(&mut self.ahead));
        inos.extend(self.absorbed.iter().map(|life| life.ino));
        for ino in inos {
            let Some(node) = self.node_mut(ino) else { continue };
            if node.opens == 0 {
                let unchanged = node.unchanged().filter(|_| !plan.is_shared);
                match (self.close_dead(ino, upto), unchanged) {
                    (Some(_), Some(staged)) => freed.unchanged.push(staged),
                    (number, _) => freed.numbers.extend(number),
                }
            }
            self.clean_if_done(ino, upto);
        }
        self.forget_ended(upto);
        freed
    }

    /// Has the origin say what a file is like, once it has all of it.
    fn clean_if_done(&mut self, ino: Ino, decided: Lsn) {
        let settled = self.settled();
        let Some(node) = self.node_mut(ino) else { return };
        if node.changed.first.is_some() {
            return;
        }
        if node.last > decided {
            self.ahead.insert(ino);
            return;
        }
        (node.base, node.settled) = (None, settled);
        // What has no name says so until nobody has it open any more.
        if node.dead.is_none() {
            node.stat = None;
        }
        self.open_names(ino, decided);
        self.drop_if_idle(ino, decided);
    }

    /// Groups up to there are decided of which the origin had everything already.
    pub(crate) fn nothing_left(&mut self, upto: Lsn) {
        self.settle();
        for ino in std::mem::take(&mut self.ahead) {
            self.clean_if_done(ino, upto);
        }
    }

    /// A batch did not land, or nobody knows: what it was to bring is dirty as before. It has changed these files, which look so
    /// now, where that is known.
    pub(crate) fn failed(&mut self, plan: &Plan, changed: &[(Ino, Option<Base>)]) {
        self.traces.failed(changed);
        for file in &plan.files {
            if let Some(node) = self.node_mut(file.key.ino) {
                node.content.next_limit = None;
            }
        }
    }
}

/// What is left of a change of names once files are left out that the origin is never to see.
fn left_of(
    change: &NameChange,
    is_absorbed: impl Fn(Ino) -> bool,
    kind: impl Fn(Ino) -> Kind,
) -> Option<NameChange> {
    match change {
        NameChange::Rename { to_dir, to_name, replaced, ino, .. } if is_absorbed(*ino) => {
            let gone = replaced.filter(|&gone| !is_absorbed(gone))?;
            let (dir, name) = (*to_dir, to_name.clone());
            Some(if kind(gone) == Kind::Dir {
                NameChange::RmDir { dir, name, ino: gone }
            } else {
                NameChange::Unlink { dir, name, ino: gone }
            })
        }
        NameChange::Rename { replaced: Some(gone), dir, name, to_dir, to_name, ino }
            if is_absorbed(*gone) =>
        {
            let (name, to_name) = (name.clone(), to_name.clone());
            Some(NameChange::Rename {
                dir: *dir,
                name,
                to_dir: *to_dir,
                to_name,
                ino: *ino,
                replaced: None,
            })
        }
        _ if is_absorbed(change.ino()) => None,
        _ => Some(change.clone()),
    }
}
