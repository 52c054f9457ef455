//! Requests that waited for their units, once these are there.

use super::Engine;
use super::asking::is_prefetch;
use super::command::{Category, EXEC, Verb, find};
use super::once::command::Once;
use super::rows::dedup;
use super::session::{Session, Waiting};
use crate::resp::{Args, parse};
use destage_core::{Access, ClientId, Intent, Lsn, Refusal, RequestId, UnitId};

impl Engine {
    /// The core lets a waiting request go on.
    pub(super) fn execute_waiting(&mut self, request: RequestId, access: Access, observed: Lsn) {
        if is_prefetch(request) {
            return;
        }
        let Some((client, mut session)) = self.sessions.take_waiting(request) else {
            unreachable!("a request that nobody waits for was cancelled")
        };
        match session.waiting.take() {
            Some(Waiting::Units { raw, units, .. }) => {
                self.execute_raw(client, &mut session, &raw, &units, access, observed);
            }
            Some(Waiting::Settling { raw, .. }) => {
                self.execute_settled(client, &mut session, &raw, observed);
            }
            other => unreachable!("{other:?} waits for no units"),
        }
        self.sessions.restore_answered(client, session);
    }

    /// The rows hold what only the origin knew. Reads are executed at once; writes start anew, since they have to be admitted.
    pub(super) fn execute_settled(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        observed: Lsn,
    ) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let is_read = find(&list).is_ok_and(|spec| spec.category == Category::Read);
        session.settled = true;
        if is_read {
            return self.execute_raw(client, session, raw, &[], Access::Back, observed);
        }
        session.put_back(raw);
        session.asks_anew = true;
    }

    /// Executes a request, read before, from its bytes. These units are locked for it if the access is not write-back.
    pub(super) fn execute_raw(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        locked: &[UnitId],
        access: Access,
        observed: Lsn,
    ) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let (once, list) = Once::split(&list);
        let spec = find(list).expect("the command was found before");
        if spec.verb == Verb::Exec {
            return self.exec_now(client, session, locked, access, observed);
        }
        if session.is_leased() {
            return self.leased_now(client, session, raw, observed);
        }
        let mut prepared = std::mem::take(&mut self.scratch.prepared);
        let read = prepared.read(&self.schema, spec, list, session.tracker.is_some());
        read.expect("the arguments were checked before");
        prepared.once = once;
        self.locate(&mut prepared, session.attempts);
        let all: Vec<UnitId> =
            prepared.keys().map(|(table, key)| self.rows.find_or_insert(table, key)).collect();
        let units = dedup(&all);
        let units = self.with_parents(session, &units);
        let intent = self.rules().intent(std::iter::once(&prepared));
        if has_others_locked(locked, &units, access) {
            self.release_locks(locked, access);
            self.data_prepared(client, session, &prepared, raw);
        } else if let Some(error) = self.refuses_for_copies(std::iter::once(&prepared)) {
            self.release_locks(&units, access);
            self.fail(session, error);
        } else if self.must_wait(std::iter::once(&prepared))
            || self.is_leased_to_another(session, std::iter::once(&prepared))
        {
            self.release_locks(&units, access);
            self.wait_for_lease(client, session, raw);
        } else if matches!(intent, Intent::Write { fetch: false, .. }) || self.are_present(&units) {
            self.execute(client, session, &prepared, &all, &units, access, observed, raw);
        } else if !self.schema.collections.is_empty() {
            // At once: what has come is kept for it while the rest is fetched, however little room there is.
            self.release_locks(&units, access);
            self.data_prepared(client, session, &prepared, raw);
        } else {
            self.begin_anew(session, &units, access, raw);
        }
        self.scratch.prepared = prepared;
    }

    pub(super) fn refuse_waiting(&mut self, request: RequestId, refusal: Refusal) {
        if let Some((client, mut session)) = self.sessions.take_waiting(request) {
            let raw = match session.waiting.take() {
                Some(Waiting::Units { raw, .. } | Waiting::Settling { raw, .. }) => raw,
                other => unreachable!("{other:?} waits for no units"),
            };
            // EXEC has said what becomes of the whole; a refused command of a session under leases leaves that to EXEC.
            if *raw == *EXEC {
                self.end_multi(&mut session);
            }
            self.refused(&mut session, refusal);
            self.sessions.restore_answered(client, session);
        }
    }
}

/// Whether what was locked for a request is not what it would change: while it waited, a set that it is about got or lost
/// members.
pub(super) fn has_others_locked(locked: &[UnitId], units: &[UnitId], access: Access) -> bool {
    if access == Access::Back || locked == units {
        return false;
    }
    let sorted = |units: &[UnitId]| {
        let mut units = units.to_vec();
        units.sort_unstable();
        units
    };
    sorted(locked) != sorted(units)
}
