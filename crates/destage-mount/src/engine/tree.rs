//! All that is not at the origin yet, put on top of it: files, names, and the order in which names changed.
//!
//! [`Tree::apply`] is the only way in, for what is asked now and for what a start finds in the journal.

use super::extents::Content as Bytes;
use super::held::Freed;
use super::lives::{Life, Lives};
use super::needs::Staged;
use super::node::{Changed, Content, Node};
use super::plan::Landed;
use super::record::{Base, NameChange, Record};
use super::settling::Settling;
use super::traces::Traces;
use crate::ask::{Ino, Kind, Listed, Name, Stat};
use crate::origin::Key;
use destage_core::Lsn;
use destage_tokens::FileId;
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The overlay: see the module.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: HashMap<Ino, Node>,
    root: Ino,
    /// Changes of names that are not decided, in order.
    pub(super) log: VecDeque<(Lsn, NameChange)>,
    /// Files with changes of content or attributes that are not at the origin.
    pub(super) dirty: BTreeSet<Ino>,
    /// Files that the origin is never to see: they were gone again before their names were due. Of those that were made by then.
    pub(super) absorbed: Lives,
    /// Of them, whose numbers may be those of other files by now, those of which not all changes are decided.
    ended: Lives,
    staged_max: u64,
    /// What earlier, unfinished attempts may have done to names.
    pub(super) doubt: Option<Doubt>,
    /// Files that such an attempt may have written.
    pub(super) written_in_part: BTreeSet<Ino>,
    pub(super) traces: Traces,
    /// The same as a start finds it said.
    pub(super) found: Traces,
    /// What the origin held of files as a start finds it said, and in which group.
    pub(super) bases: HashMap<Ino, (Base, Lsn)>,
    /// The origin holds no longer file.
    pub(crate) file_bytes_max: u64,
    /// Files that the origin has as they are, although the last change of them is not decided yet.
    pub(super) ahead: BTreeSet<Ino>,
    /// What was settled, and what of it came last to names.
    settling: Settling,
    /// Files whose base a batch has said, while changes of them that came with it or after it are not decided.
    early: BTreeSet<Ino>,
    /// Of which groups bytes are held no more.
    pub(crate) freed: Freed,
    /// Room that was taken at the origin since the start, bytes.
    pub(super) landed: u64,
    /// Files of an earlier run whose tokens others have had since: what that run changed is kept aside.
    pub(crate) lost: BTreeSet<Ino>,
    /// Changes of names that are kept aside with them.
    pub(super) lost_names: BTreeSet<Lsn>,
    /// Up to which group changes were made under tokens that are not given up, by their handles; that of everything has none.
    pub(super) covered_upto: HashMap<FileId, Lsn>,
}

/// How far names may have come at the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    pub(crate) upto: Lsn,
    pub(crate) absorbed: Lives,
}

/// Whose a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    File(Ino),
    Nobody,
    /// The origin knows.
    AskOrigin,
}

impl Tree {
    pub(crate) fn new(root: Key) -> Self {
        let ino = root.ino;
        let mut node = Node::new(root, Kind::Dir);
        node.lookups = 1;
        Self {
            nodes: HashMap::from([(ino, node)]),
            root: ino,
            log: VecDeque::new(),
            dirty: BTreeSet::new(),
            absorbed: Lives::default(),
            ended: Lives::default(),
            staged_max: 0,
            doubt: None,
            written_in_part: BTreeSet::new(),
            traces: Traces::default(),
            found: Traces::default(),
            bases: HashMap::new(),
            file_bytes_max: i64::MAX as u64,
            ahead: BTreeSet::new(),
            settling: Settling::default(),
            early: BTreeSet::new(),
            freed: Freed::default(),
            landed: 0,
            lost: BTreeSet::new(),
            lost_names: BTreeSet::new(),
            covered_upto: HashMap::new(),
        }
    }

    pub(crate) fn root(&self) -> Ino {
        self.root
    }

    pub(crate) fn node(&self, ino: Ino) -> Option<&Node> {
        self.nodes.get(&ino)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    pub(crate) fn node_mut(&mut self, ino: Ino) -> Option<&mut Node> {
        self.nodes.get_mut(&ino)
    }

    /// The highest number of a file made in advance that the journal names.
    pub(crate) fn staged_max(&self) -> u64 {
        self.staged_max
    }

    /// Whose a name is, as far as it is known here.
    pub(crate) fn child(&self, dir: Ino, name: &[u8]) -> Known {
        let Some(node) = self.nodes.get(&dir) else { return Known::AskOrigin };
        match node.names.known.get(name) {
            Some(&(Some(ino), _)) => Known::File(ino),
            Some(&(None, _)) => Known::Nobody,
            None if node.names.is_complete => Known::Nobody,
            None => Known::AskOrigin,
        }
    }

    /// A file exists; it may be known.
    pub(crate) fn learn(&mut self, key: &Key, kind: Kind) -> &mut Node {
        let settled = self.settling.dropped();
        let new = || Node { settled, ..Node::new(key.clone(), kind) };
        let node = self.nodes.entry(key.ino).or_insert_with(new);
        if node.key != *key {
            // The number is another file's now; the kernel's references to the one before come back as forgotten.
            let before = node.begin_life(key.clone(), kind);
            node.settled = self.settling.next();
            self.ended.extend(before);
            self.dirty.remove(&key.ino);
            self.traces.forget(key.ino);
        }
        node
    }

    /// Attempts that did not end have gone up to this group.
    pub(crate) fn begun_upto(&self) -> Lsn {
        self.doubt.as_ref().map_or(Lsn::ZERO, |doubt| doubt.upto)
    }

    /// Counts how often something was settled: it came to the origin, and nothing here tells of it any more. What the origin
    /// said before such a moment is told by this from what it said after it.
    pub(crate) fn settled(&self) -> u64 {
        self.settling.now()
    }

    /// Something is about to be settled.
    pub(super) fn settle(&mut self) -> u64 {
        self.settling.next()
    }

    /// Whether a batch has taken along what groups up to there say, so that a start would bring it to the origin once more.
    pub(super) fn has_taken_along(&self, upto: Lsn) -> bool {
        self.ahead.iter().any(|&ino| self.node(ino).is_some_and(|node| node.last <= upto))
    }

    /// When something of a file was settled last.
    pub(super) fn settled_of(&self, ino: Ino) -> u64 {
        self.node(ino).map_or_else(|| self.settling.dropped(), |node| node.settled)
    }

    /// The names in a directory, as the origin told of them, with those that were settled since. `None` if those are not known.
    pub(super) fn brought_up(
        &self,
        dir: Ino,
        list: &[Listed],
        asked: u64,
    ) -> Option<Arc<[Listed]>> {
        let since = self.settling.names_since(dir, asked)?;
        let mut names: Vec<Listed> =
            list.iter().filter(|listed| !since.contains_key(&listed.name)).cloned().collect();
        let there = since.into_iter().filter_map(|(name, whose)| {
            let (ino, kind) = whose?;
            Some(Listed { name: name.clone(), ino, kind })
        });
        names.extend(there);
        Some(names.into())
    }

    /// What has become of a name in a directory since then, if it is known: whether it is anybody's, if it was settled at all.
    pub(super) fn settled_name(&self, dir: Ino, name: &Name, asked: u64) -> Option<Option<bool>> {
        self.settling.name_since(dir, name, asked)
    }

    fn note_settled(&mut self, dir: Ino, name: Name, whose: Option<Ino>) {
        let whose = whose.and_then(|ino| Some((ino, self.node(ino)?.kind)));
        self.settling.note(dir, name, whose);
    }

    /// Whether an unfinished batch may have written it at the origin.
    #[cfg(test)]
    pub(crate) fn may_be_written(&self, ino: Ino) -> bool {
        self.written_in_part.contains(&ino)
    }

    /// What the origin holds of the files of a batch that has landed, and of those of earlier ones for which the journal's groups
    /// do not say so: the records of earlier batches go before the groups of the files that these took along.
    pub(crate) fn bases_behind(&mut self, landed: &Landed) -> Vec<(Ino, Base)> {
        let nodes = &self.nodes;
        let base = |ino: &Ino| nodes.get(ino).and_then(|node| node.base);
        // Of those of which the batch says nothing, since others have changed them, what was known before is to be known to a
        // start as well: it would take them for files of which the origin has nothing.
        self.early.extend(landed.left.iter().map(|(ino, _)| *ino));
        self.early.retain(|ino| base(ino).is_some());
        let now: BTreeSet<Ino> = landed.bases.iter().map(|(ino, _)| *ino).collect();
        let before = self.early.difference(&now);
        let before = before.filter_map(|&ino| Some((ino, base(&ino)?)));
        let bases = landed.bases.iter().copied().chain(before).collect();
        self.early.extend(now.into_iter().filter(|ino| base(ino).is_some()));
        bases
    }

    /// A group is written, or was found. Its records are whole.
    ///
    /// # Panics
    /// If a record names a file that no record before it has introduced.
    pub(crate) fn apply(&mut self, lsn: Lsn, records: &[Record]) {
        // What changes names or extended attributes tells of files besides what changed of them.
        let of_names = |record: &Record| matches!(record, Record::Names(_) | Record::Xattr { .. });
        let has_mode = !records.iter().any(of_names);
        for record in records {
            match record {
                Record::File { key, kind } => {
                    if self.node(key.ino).is_some_and(|node| node.key != *key) {
                        self.end_absorbed(key.ino, lsn);
                    }
                    let base = self.bases.get(&key.ino).map(|&(base, _)| base);
                    let node = self.learn(key, *kind);
                    // Until a group says otherwise, it is as the last batch of an earlier run left it.
                    if node.last == Lsn::ZERO && node.base.is_none() && base.is_some() {
                        node.base = base;
                        node.content.limit = base.map_or(0, |base| base.size);
                    }
                    node.last = lsn;
                }
                Record::Data { ino, offset, bytes } => {
                    let range = *offset..*offset + bytes.len() as u64;
                    let content = Bytes::Bytes(self.freed.hold(lsn, bytes.clone()), 0);
                    self.content_changed(*ino, lsn).extents.put(range, content, lsn);
                }
                Record::Zero { ino, offset, len } => {
                    let range = *offset..*offset + *len;
                    self.content_changed(*ino, lsn).extents.put(range, Bytes::Zeros, lsn);
                }
                Record::Size { ino, size } => self.content_changed(*ino, lsn).cut(*size),
                Record::Meta { stat, base } => {
                    let of = |stat: &Stat| (stat.mode, stat.uid, stat.gid);
                    let before = self.node(stat.ino).and_then(|node| node.stat);
                    self.set_stat(lsn, stat, *base);
                    if has_mode && before.is_none_or(|before| of(&before) != of(stat)) {
                        let node = self.changed(stat.ino, lsn);
                        node.changed.note_parts(|parts| parts.has_mode = true);
                    }
                }
                Record::Xattr { ino, name, value } => {
                    let xattrs = &mut self.changed(*ino, lsn).xattrs;
                    xattrs.insert(name.clone(), (value.clone(), lsn));
                }
                Record::Names(change) => self.change_names(lsn, change),
                Record::Begin { .. }
                | Record::Intent { .. }
                | Record::Ckpt { .. }
                | Record::Part { .. }
                | Record::Judged { .. }
                | Record::Conflict { .. } => {}
                Record::Cover { root: home, .. } | Record::Home { home, .. } => {
                    self.covered_upto.insert(home.clone(), lsn);
                }
            }
        }
    }

    fn changed(&mut self, ino: Ino, lsn: Lsn) -> &mut Node {
        let node = self.nodes.get_mut(&ino).expect("a group introduces the files that it names");
        node.changed.note(lsn);
        self.dirty.insert(ino);
        node
    }

    fn content_changed(&mut self, ino: Ino, lsn: Lsn) -> &mut Content {
        let node = self.changed(ino, lsn);
        node.changed.note_parts(|parts| parts.has_content = true);
        &mut node.content
    }

    fn set_stat(&mut self, lsn: Lsn, stat: &Stat, base: Option<Base>) {
        // A batch that an earlier run carried out may have taken this group along: then what that has found is newer.
        let later = self.bases.get(&stat.ino).filter(|(_, said)| *said > lsn).copied();
        let base = base.map(|base| later.map_or(base, |(later, _)| later));
        let node = self.changed(stat.ino, lsn);
        if base.is_some() && later.is_none() && node.stat.is_some() {
            // It was clean then: what groups before this one say of it had come to the origin, as a batch had taken them along.
            node.content.extents.forget_all();
            node.xattrs.clear();
            (node.stat, node.changed) = (None, Changed::default());
            node.changed.note(lsn);
        }
        let of_base = |base: Option<Base>| base.map(|base| base.mtime);
        let known = node.stat.map(|stat| stat.mtime);
        let before = known.or_else(|| of_base(base)).or_else(|| of_base(node.base));
        if before != Some(stat.mtime) {
            node.changed.note_parts(|parts| parts.has_mtime = true);
        }
        if let Some(base) = base {
            node.base = Some(base);
            node.content.limit = base.size;
        }
        node.stat = Some(*stat);
        if stat.nlink == 0 {
            node.dead.get_or_insert(lsn);
            node.free_if_gone();
        }
    }

    fn change_names(&mut self, lsn: Lsn, change: &NameChange) {
        if let NameChange::Create { ino, staged, make, .. } = change {
            self.begin_life(*ino, lsn);
            // Of these the groups that made them are decided, so this is another file.
            self.absorbed.end(*ino, lsn);
            self.staged_max = self.staged_max.max(*staged);
            let node = self.changed(*ino, lsn);
            node.staged = Some((*staged, lsn));
            // What is known of its number may be of an earlier file.
            (node.base, node.content.limit) = (None, 0);
            node.names.is_complete = make.kind() == Kind::Dir;
        }
        for (dir, name, whose) in change.after().into_iter().flatten() {
            self.set_name(dir, name, whose, lsn);
        }
        self.log.push_back((lsn, change.clone()));
    }

    fn set_name(&mut self, dir: Ino, name: &Name, whose: Option<Ino>, lsn: Lsn) {
        let node = self.nodes.get_mut(&dir).expect("a group introduces the directories it names");
        let before = node.names.known.insert(name.clone(), (whose, lsn));
        if let Some(node) = whose.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.refs += 1;
        }
        self.unname(before.and_then(|(ino, _)| ino));
    }

    /// A name of a file's is not known here any more.
    pub(super) fn unname(&mut self, ino: Option<Ino>) {
        if let Some(node) = ino.and_then(|ino| self.nodes.get_mut(&ino)) {
            node.refs -= 1;
        }
    }

    /// The origin has a change of names, or the change is void: what it said of a name is not needed any more, if
    /// nothing said since does.
    pub(super) fn settle_name(&mut self, dir: Ino, name: &Name, lsn: Lsn, is_void: bool) {
        let Some(node) = self.nodes.get_mut(&dir) else { return };
        if is_void {
            // Whose it is the origin has to say.
            (node.names.is_complete, node.settled) = (false, self.settling.now());
            self.settling.forget_names();
        }
        let Some(&(whose, last)) = node.names.known.get(name) else { return };
        if last != lsn || (node.names.is_complete && whose.is_some()) {
            return;
        }
        node.names.known.remove(name);
        node.settled = self.settling.now();
        if !is_void {
            self.note_settled(dir, name.clone(), whose);
        }
        self.unname(whose);
    }

    /// A file is made. What the journal says of one that had its number is void, for it was made in advance and given out again.
    fn begin_life(&mut self, ino: Ino, lsn: Lsn) {
        let Some(node) = self.nodes.get_mut(&ino).filter(|node| node.dead.is_some()) else {
            return;
        };
        let (key, kind, last) = (node.key.clone(), node.kind, node.last);
        let before = node.begin_life(key, kind);
        (node.last, node.settled) = (last, self.settling.next());
        self.ended.extend(before);
        self.dirty.remove(&ino);
        self.end_absorbed(ino, lsn);
    }

    /// Whether a number is that of another file here, of which the origin does not have everything. Others may have deleted that
    /// file, and origins give numbers again: what is known by the number concerns the first file until it is decided.
    pub(super) fn is_taken(&self, key: &Key) -> bool {
        let ino = key.ino;
        let Some(node) = self.nodes.get(&ino).filter(|node| node.key != *key) else { return false };
        let concerns_it = |change: &NameChange| {
            change.dirs().into_iter().chain(change.replaced()).any(|other| other == ino)
                || change.ino() == ino
        };
        let is_due = |(lsn, change): &(Lsn, NameChange)| {
            concerns_it(change) && !self.ended.contains(ino, *lsn)
        };
        let is_known = node.opens > 0 || node.refs > 0;
        is_known || node.changed.first.is_some() || self.log.iter().any(is_due)
    }

    /// What earlier versions said of a number does not concern the file that has it from now on.
    fn end_absorbed(&mut self, ino: Ino, next: Lsn) {
        self.absorbed.end(ino, next);
        if let Some(doubt) = &mut self.doubt {
            doubt.absorbed.end(ino, next);
        }
    }

    /// The life of a file that the origin is never to see, if it is one, for what a group says of the file.
    pub(super) fn absorbed_at(&self, ino: Ino, lsn: Lsn) -> Option<Life> {
        let over = self.absorbed.of(ino, lsn).or_else(|| self.ended.of(ino, lsn));
        over.or_else(|| self.absorbed_now(ino).filter(|life| (life.from..=life.to).contains(&lsn)))
    }

    /// The same of a file that has no name any more.
    fn absorbed_now(&self, ino: Ino) -> Option<Life> {
        let life = self.nodes.get(&ino)?.life()?;
        let is_absorbed = match &self.doubt {
            // It may be there already: then what was decided holds.
            Some(doubt) if life.from <= doubt.upto => doubt.absorbed.contains(ino, life.from),
            _ => true,
        };
        is_absorbed.then_some(life)
    }

    /// A file that was made in advance, is gone before it was due, and is known to nobody any more can be given out again: the
    /// origin has it as it was made. Its last group has to be durable, else it might come back.
    pub(crate) fn give_back(&mut self, ino: Ino, durable: Lsn) -> Option<Staged> {
        let node = self.nodes.get(&ino)?;
        let life = node.life().filter(|life| life.to <= durable)?;
        let is_begun = self.doubt.as_ref().is_some_and(|doubt| life.from <= doubt.upto);
        if is_begun || self.absorbed.contains(ino, life.from) {
            return None;
        }
        let staged = node.unchanged()?;
        self.begin_life(ino, Lsn(life.to.0 + 1));
        self.drop_if_idle_shallow(ino, durable);
        Some(staged)
    }

    /// Files that could be given back, whoever knows them.
    pub(super) fn gone(&self) -> Vec<Ino> {
        let gone = self.nodes.values().filter(|node| node.life().is_some());
        gone.map(|node| node.key.ino).collect()
    }

    /// Of every file that is known, something may be at the origin.
    pub(super) fn may_be_sent(&mut self) {
        self.nodes.values_mut().for_each(|node| node.is_sent = true);
    }

    /// Everything up to there is decided: it is not needed any more which of it was void.
    pub(super) fn forget_ended(&mut self, upto: Lsn) {
        self.ended.retain(|life| life.to > upto);
        let nodes = &self.nodes;
        let is_lived = |life: Life| {
            let node = nodes.get(&life.ino);
            node.is_some_and(|node| node.staged.is_some_and(|(_, since)| since == life.from))
        };
        self.absorbed.retain(|life| life.to > upto || is_lived(life));
    }

    /// Nobody has a file open any more. If it has no name, what it holds is of no use; where that is decided, the
    /// number under which it was made in advance is free again.
    pub(crate) fn close_dead(&mut self, ino: Ino, decided: Lsn) -> Option<u64> {
        let node = self.nodes.get_mut(&ino)?;
        node.free_if_gone();
        let dead = node.dead.filter(|&dead| dead <= decided)?;
        node.content.extents.forget_all();
        node.xattrs.clear();
        node.changed = Default::default();
        self.dirty.remove(&ino);
        if let Some(life) = self.absorbed.of(ino, dead) {
            self.absorbed.remove(ino, life.from);
        }
        node.staged.take().map(|(number, _)| number)
    }

    /// Drops what is known of a file that nobody needs to know.
    pub(crate) fn drop_if_idle(&mut self, ino: Ino, decided: Lsn) {
        let Some(node) = self.nodes.get_mut(&ino) else { return };
        if node.lookups > 0 || node.opens > 0 || ino == self.root {
            return;
        }
        self.drop_if_idle_shallow(ino, decided);
    }

    /// The origin has all of a directory: from now on it says which names there are, for others change them, too.
    pub(super) fn open_names(&mut self, dir: Ino, decided: Lsn) {
        let Some(node) = self.nodes.get_mut(&dir) else { return };
        if !std::mem::take(&mut node.names.is_complete) {
            return;
        }
        node.settled = self.settling.now();
        let clean = node.names.known.extract_if(|_, (_, lsn)| *lsn <= decided);
        let clean: Vec<_> = clean.map(|(name, (whose, _))| (name, whose)).collect();
        for (name, whose) in clean {
            self.note_settled(dir, name, whose);
            self.unname(whose);
            if let Some(ino) = whose {
                self.drop_if_idle_shallow(ino, decided);
            }
        }
    }

    /// The same without a look at the names in it: no recursion, however deep it is.
    fn drop_if_idle_shallow(&mut self, ino: Ino, decided: Lsn) {
        let is_idle = self.nodes.get(&ino).is_some_and(|node| {
            node.lookups == 0
                && node.opens == 0
                && node.refs == 0
                && node.changed.first.is_none()
                && node.last <= decided
                && node.names.known.is_empty()
                && node.unit.is_none()
                && !node.is_pinned
                && !node.dead.is_some_and(|dead| self.absorbed.contains(ino, dead))
        });
        if is_idle && ino != self.root {
            let dropped = self.nodes.remove(&ino);
            dropped.into_iter().for_each(|node| self.settling.drop_one(node.settled));
        }
    }
}
