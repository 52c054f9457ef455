//! What the store holds, as far as this host has heard. It may be old: whatever rests on it is compared at the store.

use crate::{Entry, HostId, Key, Mode, Register, Rev, Root, Value};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// The mirror: see the module.
#[derive(Clone, Debug, Hash)]
pub(super) struct Mirror {
    me: HostId,
    epoch: Rev,
    /// Without a value: gone at that revision, of which the store has yet to tell.
    keys: BTreeMap<Key, (Option<Value>, Rev)>,
    /// What this host holds, in this life.
    mine: BTreeMap<Root, Mode>,
    /// What somebody waits for.
    contested: BTreeSet<Root>,
}

impl Mirror {
    pub(super) fn new(me: HostId) -> Self {
        Self {
            me,
            epoch: Rev::NONE,
            keys: BTreeMap::new(),
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

    /// All there is.
    pub(super) fn replace(&mut self, all: Vec<(Key, Value, Rev)>) {
        self.keys = all.into_iter().map(|(key, value, rev)| (key, (Some(value), rev))).collect();
        self.index();
    }

    fn index(&mut self) {
        (self.mine, self.contested) = Default::default();
        let roots: Vec<Root> = self.tokens().map(|(root, _)| root.clone()).collect();
        roots.iter().for_each(|root| self.look(root));
    }

    /// A key has changed. What is older than what is known changes nothing.
    pub(super) fn set(&mut self, key: Key, value: Option<Value>, rev: Rev) {
        let known = self.keys.get(&key);
        if known.is_some_and(|(value, known)| *known > rev || (*known == rev && value.is_some())) {
            return;
        }
        let is_told = value.is_none() && known.is_some_and(|(_, known)| *known == rev);
        if is_told {
            self.keys.remove(&key);
        } else {
            self.keys.insert(key.clone(), (value, rev));
        }
        if let Key::Token(root) = &key {
            self.look(root);
        }
    }

    /// A key is not there: whatever is known of it is older.
    pub(super) fn set_absent(&mut self, key: &Key) {
        self.keys.remove(key);
        if let Key::Token(root) = key {
            self.look(root);
        }
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
