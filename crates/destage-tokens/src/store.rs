//! What hosts expect of the store, and a model of it: keys with revisions, transactions that compare them, leases, and events
//! in the order of the revisions. etcd is one.

use crate::{Key, LeaseId, Rev, Value};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Put {
    /// Which.
    pub key: Key,
    /// What it is from now on; `None` if it goes.
    pub value: Option<Value>,
    /// It goes with this lease.
    pub lease: Option<LeaseId>,
}

/// Changes that happen together, if all these keys are at these revisions, and not at all else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Txn {
    /// What must be so. [`Rev::NONE`] for what must not be there.
    pub compares: Vec<(Key, Rev)>,
    /// What changes then.
    pub puts: Vec<Put>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TxnReply {
    /// The store's revision: of what was changed, if it was done.
    pub revision: Rev,
    /// Whether it was done.
    pub is_done: bool,
    /// If not: what the compared keys hold.
    pub found: Vec<(Key, Option<(Value, Rev)>)>,
}

/// A key has changed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// Which.
    pub key: Key,
    /// What it holds now; `None` if it is gone.
    pub value: Option<Value>,
    /// Since which revision.
    pub revision: Rev,
}

/// All that there is at a revision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Snapshot {
    /// What each key holds, and since when.
    pub keys: Vec<(Key, Value, Rev)>,
    /// The store's.
    pub revision: Rev,
}

/// A model of the store: see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Store {
    revision: Rev,
    keys: BTreeMap<Key, (Value, Rev, Option<LeaseId>)>,
}

impl Store {
    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> Rev {
        self.revision
    }

    /// What there is.
    #[must_use]
    pub fn all(&self) -> Snapshot {
        let keys = self.keys.iter();
        let keys = keys.map(|(key, (value, rev, _))| (key.clone(), value.clone(), *rev)).collect();
        Snapshot { keys, revision: self.revision }
    }

    /// What a key holds.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<(&Value, Rev)> {
        self.keys.get(key).map(|(value, rev, _)| (value, *rev))
    }

    /// With which lease a key goes.
    #[must_use]
    pub fn lease_of(&self, key: &Key) -> Option<LeaseId> {
        self.keys.get(key).and_then(|(_, _, lease)| *lease)
    }

    /// Carries a transaction out; events are what it has changed.
    pub fn txn(&mut self, txn: &Txn) -> (TxnReply, Vec<Event>) {
        let rev = |key: &Key| self.keys.get(key).map_or(Rev::NONE, |(_, rev, _)| *rev);
        if txn.compares.iter().any(|(key, expected)| rev(key) != *expected) {
            let found = txn.compares.iter().map(|(key, _)| {
                let found = self.get(key).map(|(value, rev)| (value.clone(), rev));
                (key.clone(), found)
            });
            let found = found.collect();
            return (TxnReply { revision: self.revision, is_done: false, found }, Vec::new());
        }
        let mut events = Vec::new();
        if !txn.puts.is_empty() {
            self.revision.0 += 1;
        }
        for Put { key, value, lease } in &txn.puts {
            self.change(key.clone(), value.clone(), *lease, &mut events);
        }
        (TxnReply { revision: self.revision, is_done: true, found: Vec::new() }, events)
    }

    /// A lease has ended.
    pub fn end(&mut self, lease: LeaseId) -> Vec<Event> {
        let gone = self.keys.iter().filter(|(_, (_, _, held))| *held == Some(lease));
        let gone: Vec<Key> = gone.map(|(key, _)| key.clone()).collect();
        let mut events = Vec::new();
        if !gone.is_empty() {
            self.revision.0 += 1;
        }
        for key in gone {
            self.change(key, None, None, &mut events);
        }
        events
    }

    fn change(
        &mut self,
        key: Key,
        value: Option<Value>,
        lease: Option<LeaseId>,
        events: &mut Vec<Event>,
    ) {
        let revision = self.revision;
        match &value {
            Some(value) => {
                self.keys.insert(key.clone(), (value.clone(), revision, lease));
            }
            // What is not there changes nothing when it goes.
            None if self.keys.remove(&key).is_none() => return,
            None => {}
        }
        events.push(Event { key, value, revision });
    }
}
