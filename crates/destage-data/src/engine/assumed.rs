//! DESTAGE ABSENT: rows that the origin does not have, as a session under leases says.
//!
//! The origin is not asked for such a row on behalf of the session that says so. Nobody else sees what comes of that: a copy
//! that is absent for a session's word is dropped before another client's request may use it, and with the session's end. A
//! session's word counts while its leases do, and until the row is written, or is told to have changed. It binds the
//! session: one that changes a row which is there after all does nothing.

use super::Engine;
use super::ended::has_ended;
use super::key::key_shown;
use super::prepared::Trouble;
use super::rows::{Kind, RowKey};
use super::session::Session;
use super::txn::Txn;
use crate::resp::{Code, ReplyError};
use destage_core::lease::Token;
use destage_core::{ClientId, RequestId, UnitId};
use destage_record::client_of;
use std::collections::{BTreeSet, HashMap};

/// What sessions say.
#[derive(Debug, Default)]
pub(super) struct Assumed {
    claims: HashMap<RowKey, Claim>,
    /// Units that the session has asked for which says so of their rows.
    asked: HashMap<UnitId, Asked>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) token: Token,
    pub(super) client: ClientId,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    /// The session's newest request for the unit.
    request: RequestId,
    /// The cached copy is absent since the session says so.
    is_copy: bool,
}

impl Assumed {
    /// Whether nothing is said.
    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.asked.is_empty()
    }

    /// The row is written, or may have changed.
    pub(super) fn forget(&mut self, key: &RowKey) {
        self.claims.remove(key);
    }

    /// The same of all rows that are meant.
    pub(super) fn forget_where(&mut self, is_meant: impl Fn(&RowKey) -> bool) {
        self.claims.retain(|key, _| !is_meant(key));
    }

    /// A session says so of a row, which is news unless another one has whose word counts.
    pub(super) fn claim(&mut self, key: &RowKey, claim: Claim, counts: impl Fn(Token) -> bool) {
        let is_known = |other: &Claim| other.token == claim.token || counts(other.token);
        if !self.claims.get(key).is_some_and(is_known) {
            self.claims.insert(key.clone(), claim);
        }
    }

    /// A session's word does not count any more; whether nobody says so of the row then.
    fn withdraw(&mut self, key: &RowKey, token: Token) -> bool {
        if self.claims.get(key).is_some_and(|claim| claim.token == token) {
            self.claims.remove(key);
        }
        !self.claims.contains_key(key)
    }

    /// The rows of which sessions say so whose word does not count.
    pub(super) fn void(&self, counts: impl Fn(Token) -> bool) -> Vec<RowKey> {
        let void = self.claims.iter().filter(|(_, claim)| !counts(claim.token));
        void.map(|(key, _)| key.clone()).collect()
    }

    /// A request asks for a unit. Whether its copy is of no use to it.
    fn ask(&mut self, request: RequestId, unit: UnitId, key: &RowKey) -> bool {
        let client = client_of(request);
        let before = self.asked.remove(&unit);
        let is_own = before.is_some_and(|asked| client_of(asked.request) == client);
        let is_copy = before.is_some_and(|asked| asked.is_copy);
        if self.claims.get(key).is_some_and(|claim| claim.client == client) {
            self.asked.insert(unit, Asked { request, is_copy: is_copy && is_own });
            return is_copy && !is_own;
        }
        is_copy
    }

    /// The request of the session that says so of a unit's row, and the session's token.
    fn asker(&self, unit: UnitId, key: &RowKey) -> Option<(RequestId, Token)> {
        let request = self.asked.get(&unit)?.request;
        let claim = self.claims.get(key)?;
        (claim.client == client_of(request)).then_some((request, claim.token))
    }

    /// A unit's copy is absent for that.
    fn note_copy(&mut self, unit: UnitId) {
        if let Some(asked) = self.asked.get_mut(&unit) {
            asked.is_copy = true;
        }
    }

    /// The unit is dropped, or nobody's word counts for it; whether its copy is absent for that.
    pub(super) fn leave(&mut self, unit: UnitId) -> bool {
        self.asked.remove(&unit).is_some_and(|asked| asked.is_copy)
    }
}

impl Engine {
    /// Before a request uses units: copies that are absent for another session's word are of no use to it.
    pub(super) fn doubt_assumed(&mut self, request: RequestId, units: &[UnitId]) {
        for &unit in units {
            let key = (self.rows.get(unit).table, self.rows.key(unit).into());
            if self.watchers.assumed_mut().ask(request, unit, &key) {
                self.invalidate(unit);
            }
        }
    }

    /// Whether a row is fetched for nobody but a session that says that the origin does not have it.
    pub(super) fn is_assumed_absent(&mut self, unit: UnitId, row: &RowKey) -> bool {
        let Some((request, token)) = self.watchers.assumed().asker(unit, row) else { return false };
        let counts = self.watchers.check(self.now, token).is_ok();
        if !counts || !self.core.waits_alone(request, unit) {
            return false;
        }
        self.watchers.assumed_mut().note_copy(unit);
        true
    }

    /// What a session has said counts no more: copies that are absent for that are dropped.
    pub(super) fn withdraw_absent(&mut self, token: Token, keys: BTreeSet<RowKey>) {
        for key in keys {
            if self.watchers.assumed_mut().withdraw(&key, token) {
                self.drop_assumed(&key);
            }
        }
    }

    /// Judges what a session says of rows that its transaction changes. The origin rejects that if a row is there which is
    /// to be made; of one that is known here it would hear as of a change.
    ///
    /// # Errors
    /// The first of them that is there.
    pub(super) fn check_absent(&self, session: &Session, txn: &Txn) -> Result<(), Trouble> {
        let there = session.absent.iter().find(|(table, key)| {
            let unit = self.rows.find(*table, key).filter(|&unit| txn.changes_row(unit));
            unit.map(|unit| self.rows.get(unit)).is_some_and(|row| {
                let is_row = row.kind == Kind::Row;
                is_row && !has_ended(&self.schema, *table, row.cells, self.now)
            })
        });
        let Some((table, key)) = there else { return Ok(()) };
        let key = key_shown(self.schema.table(*table), key);
        Err(Trouble::Error(ReplyError::new(
            Code::Exists,
            format!(
                "{key} is there, of which the session says that it is not (DESTAGE ABSENT, or insert_new in the library): \
                 nothing was done; give the new row another key, or write this one without saying so"
            ),
        )))
    }

    /// The same for sessions whose time is up.
    pub(super) fn withdraw_void(&mut self) {
        for key in self.watchers.void_claims(self.now) {
            self.watchers.assumed_mut().forget(&key);
            self.drop_assumed(&key);
        }
    }

    fn drop_assumed(&mut self, (table, key): &RowKey) {
        let unit = self.rows.find(*table, key);
        if let Some(unit) = unit.filter(|&unit| self.watchers.assumed_mut().leave(unit)) {
            self.invalidate(unit);
        }
    }
}
