//! Leases of sessions, as the commands of others meet them: who waits for whom, and how they end.

use super::Engine;
use super::command::Category;
use super::prepared::Prepared;
use super::session::{Session, Waiting};
use destage_core::{ClientId, RequestId, Time, UnitId};
use destage_replicas_redis::Reach;

impl Engine {
    /// Lets everyone who waits for a lease ask again.
    pub(super) fn wake_lease_waiters(&mut self) {
        for client in self.watchers.take_waiters() {
            self.sessions.ask_again(client);
        }
    }

    /// Ends a session's leases; its token stays, and fences it.
    pub(super) fn end_leases(&mut self, session: &mut Session) {
        if let Some(token) = session.watch {
            self.watchers.abort(token);
            self.wake_lease_waiters();
            let absent = std::mem::take(&mut session.absent);
            self.withdraw_absent(token, absent);
        }
        if let Some(multi) = &mut session.multi {
            (multi.requests, multi.bytes, multi.ahead) = (Vec::new(), 0, None);
        }
    }

    /// Ends the sessions whose time is up.
    pub(super) fn expire_leases(&mut self) {
        if self.watchers.expire(self.now) {
            self.withdraw_void();
            self.wake_lease_waiters();
        }
    }

    /// Whether commands would write what a session other than this one's holds an X lease on.
    pub(super) fn is_leased_to_another<'p>(
        &self,
        session: &Session,
        commands: impl Iterator<Item = &'p Prepared>,
    ) -> bool {
        if self.watchers.is_empty() {
            return false;
        }
        let mut writes = commands.filter(|prepared| prepared.category == Category::Write);
        writes.any(|prepared| {
            prepared.keys().any(|(table, key)| {
                self.watchers.is_leased_away(&(table, key.into()), session.watch)
            })
        })
    }

    /// Whether the journal's disk has no space for what commands would write, or too few servers are there for what they would do.
    pub(super) fn must_wait<'p>(&self, commands: impl Iterator<Item = &'p Prepared>) -> bool {
        match self.measured.reach() {
            Reach::Nothing => true,
            Reach::Reads => self.would_change(commands),
            Reach::Whole | Reach::Through => {
                self.measured.is_journal_full() && self.would_change(commands)
            }
        }
    }

    /// Whether any of these commands would write into the journal.
    fn would_change<'p>(&self, mut commands: impl Iterator<Item = &'p Prepared>) -> bool {
        commands.any(|prepared| {
            prepared.category == Category::Write && prepared.changes_rows(&self.schema)
        })
    }

    /// Has a client's request wait until an X lease ends, or the journal has space or servers; then it asks again.
    pub(super) fn wait_for_lease(&mut self, client: ClientId, session: &mut Session, raw: &[u8]) {
        session.waiting = Some(Waiting::Lease { raw: raw.into() });
        self.watchers.wait(client);
    }

    /// Has a request that replaces a row wait until that has ended by the origin's clock, too; then it asks again.
    pub(super) fn wait_for_clock(
        &mut self,
        client: ClientId,
        session: &mut Session,
        at: Time,
        raw: &[u8],
    ) {
        self.freshness.sweep_mut().wait_until(at);
        self.wait_for_lease(client, session, raw);
    }

    /// Lets those ask again who wait for the origin's clock, if it agrees now; whether it does.
    pub(super) fn end_clock_waits(&mut self) -> bool {
        let agrees = self.freshness.sweep_mut().agrees(self.now);
        if agrees {
            self.wake_lease_waiters();
        }
        agrees
    }

    /// Has a request wait for its units.
    pub(super) fn wait_for_units(
        session: &mut Session,
        request: RequestId,
        raw: &[u8],
        units: &[UnitId],
    ) {
        session.waiting = Some(Waiting::Units { request, raw: raw.into(), units: units.into() });
    }
}
