//! What the store holds, as far as this host has heard. It may be old: whatever rests on it is compared at the store.

use crate::{Controls, Entry, Event, HostId, Key, Mode, Register, Rev, Root, Snapshot, Value};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The mirror: see the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Mirror {
    me: HostId,
    epoch: Rev,
    /// Without a value: gone at that revision, or earlier.
    keys: BTreeMap<Key, (Option<Value>, Rev)>,
    /// Those without one.
    gone: BTreeSet<(Rev, Key)>,
    /// All that changed at earlier revisions is known.
    heard: Rev,
    controls: Controls,
    /// What this host holds, in this life.
    mine: BTreeMap<Root, Mode>,
    /// What somebody waits for.
    contested: BTreeSet<Root>,
}

impl Mirror {
    pub(super) fn new(me: HostId, controls: Controls) -> Self {
        Self {
            me,
            epoch: Rev::NONE,
            keys: BTreeMap::new(),
            gone: BTreeSet::new(),
            heard: Rev::NONE,
            controls,
            mine: BTreeMap::new(),
            contested: BTreeSet::new(),
        }
    }

    pub(super) fn epoch(&self) -> Rev {
        self.epoch
    }

    /// This host lives in another epoch from now on.
    pub(super) fn set_epoch(&mut self, epoch: Rev) {
        self.epoch = epoch;
        self.index();
    }

    /// All there is at a revision.
    pub(super) fn replace(&mut self, all: Snapshot) {
        let Snapshot { keys, revision } = all;
        self.keys = keys.into_iter().map(|(key, value, rev)| (key, (Some(value), rev))).collect();
        self.gone.clear();
        self.heard = Rev(revision.0 + 1);
        self.index();
    }

    fn index(&mut self) {
        (self.mine, self.contested) = Default::default();
        let roots: Vec<Root> = self.tokens().map(|(root, _)| root.clone()).collect();
        roots.iter().for_each(|root| self.look(root));
    }

    /// The store tells of a change. All that it tells comes in order: what comes again, after more was known, is old.
    pub(super) fn hear(&mut self, event: Event) {
        let Event { key, value, revision } = event;
        if revision < self.heard && !self.controls.old_news {
            return;
        }
        self.heard = self.heard.max(revision);
        self.set(revision, key, value, revision);
        // Nothing that is taken from now on can bring back what had gone by then.
        while let Some((rev, _)) = self.gone.first()
            && *rev < self.heard
            && let Some((rev, key)) = self.gone.pop_first()
        {
            if self.keys.get(&key).is_some_and(|(value, known)| value.is_none() && *known == rev) {
                self.keys.remove(&key);
            }
        }
    }

    /// At the revision `as_of` a key held this, and had done so since `rev`. Without a value: it was not there. All that was
    /// before what the store has told of is known better already.
    pub(super) fn set(&mut self, as_of: Rev, key: Key, value: Option<Value>, rev: Rev) {
        if as_of < self.heard && !self.controls.old_news {
            return;
        }
        if self.keys.get(&key).is_some_and(|(_, known)| *known >= rev) {
            return;
        }
        if value.is_none() {
            self.gone.insert((rev, key.clone()));
        }
        self.keys.insert(key.clone(), (value, rev));
        if let Key::Token(root) = &key {
            self.look(root);
        }
    }

    /// Keys that are known, with those that have gone and of which old news may still come.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    fn look(&mut self, root: &Root) {
        let register = self.register(root);
        let held = register.and_then(|register| register.holder(self.me));
        let held = held.filter(|entry| entry.epoch == self.epoch).map(|entry| entry.mode);
        let is_contested = register.is_some_and(|register| !register.wants.is_empty());
        match held {
            Some(mode) => self.mine.insert(root.clone(), mode),
            None => self.mine.remove(root),
        };
        if is_contested {
            self.contested.insert(root.clone());
        } else {
            self.contested.remove(root);
        }
    }

    fn value(&self, key: &Key) -> Option<&Value> {
        self.keys.get(key).and_then(|(value, _)| value.as_ref())
    }

    /// To be compared.
    pub(super) fn rev(&self, key: &Key) -> Rev {
        match self.keys.get(key) {
            Some((Some(_), rev)) => *rev,
            _ => Rev::NONE,
        }
    }

    pub(super) fn register(&self, root: &Root) -> Option<&Register> {
        match self.value(&Key::Token(root.clone())) {
            Some(Value::Token(register)) => Some(register),
            _ => None,
        }
    }

    pub(super) fn tokens(&self) -> impl Iterator<Item = (&Root, &Register)> {
        self.keys.iter().filter_map(|(key, (value, _))| match (key, value) {
            (Key::Token(root), Some(Value::Token(register))) => Some((root, register)),
            _ => None,
        })
    }

    pub(super) fn mine(&self) -> &BTreeMap<Root, Mode> {
        &self.mine
    }

    pub(super) fn mode(&self, root: &Root) -> Option<Mode> {
        self.mine.get(root).copied()
    }

    pub(super) fn contested(&self) -> &BTreeSet<Root> {
        &self.contested
    }

    /// Whether a host is known, and has been fenced since it came.
    pub(super) fn is_fenced(&self, host: HostId) -> Option<bool> {
        match self.value(&Key::Host(host)) {
            Some(Value::Host { is_fenced }) => Some(*is_fenced),
            _ => None,
        }
    }

    pub(super) fn is_alive(&self, host: HostId) -> bool {
        self.value(&Key::Session(host)).is_some()
    }

    /// Whether an entry is of a life that has been fenced. Of a host of which nothing is known yet, none is.
    pub(super) fn is_void(&self, entry: &Entry) -> bool {
        entry.epoch < self.rev(&Key::Host(entry.host))
    }
}
