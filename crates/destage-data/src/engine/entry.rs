//! What whoever drives the engine calls besides [`Engine::receive`] and what the origin answers: time, the ends of
//! connections, the operator's word.

use super::Engine;
use super::login::WRONG;
use super::session::{Job, Waiting};
use super::unknown::HeldFetch;
use crate::origins::{EndedKeys, OriginError};
use crate::resp::Reply;
use crate::users::Users;
use destage_core::{AtLimit, ClientId, Fault, Input, Lsn, Time};
use destage_replicas_redis::Reach;
use std::sync::Arc;

impl Engine {
    /// Time passed, or the server has nothing more at hand.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        while let Some(client) = self.sessions.next_timed_out(self.now) {
            self.wait_timed_out(client);
        }
        self.expire_leases();
        if self.end_clock_waits() {
            // What they write is synced with this tick.
            self.run_ready();
        }
        self.expire_rows();
        self.expire_some();
        self.rows.tracking_mut().expire(self.now);
        self.drop_absent_plain();
        self.reload_doubtful();
        self.expire_held();
        self.end_waits();
        self.ask_put_off();
        self.config.auth.tell(self.now);
        self.keep_tokens();
        self.look_for_ended();
        self.reserve_numbers();
        self.read_keys();
        self.look_at_auto();
        self.core.handle(self.now, Input::Tick);
        if let Some(job) = self.domains.move_mark(self.now, self.core.decided()) {
            self.jobs.push(job);
        }
        self.measured.tick(self.now);
        self.pump();
        self.next_decision();
        self.run_ready();
    }

    /// Gives up what was held back for too long.
    pub(super) fn expire_held(&mut self) {
        let late = self.undecided.unknown_mut().take_late(self.now);
        if late.is_empty() {
            return;
        }
        for (lsn, fetch) in late {
            let message = format!(
                "raw SQL (write {}) that covers it has not been decided there within {} s",
                lsn.0,
                self.config.client_wait.as_secs_f64()
            );
            let error = OriginError::new(Fault::Unavailable, message);
            match fetch {
                HeldFetch::Row(unit) => self.held_in_vain(unit, &error),
                HeldFetch::Page(request, ..) => self.scanned(self.now, request, Err(error)),
            }
        }
        self.pump();
    }

    /// Keys of rows that have ended came, or not.
    pub fn ended(&mut self, now: Time, request: u64, result: Result<EndedKeys, OriginError>) {
        self.now = self.now.max(now);
        self.take_ended(request, result);
        self.pump();
        self.run_ready();
    }

    /// A password was looked at: which of the user's it is, if any.
    pub(crate) fn password_checked(&mut self, now: Time, id: u64, place: Option<usize>) {
        self.now = self.now.max(now);
        let Some((login, asked_by)) = self.looked_at(id, place) else { return };
        for request in asked_by {
            let Some((client, Job::LogIn(then))) = self.sessions.take_job(request) else {
                continue;
            };
            let Some(mut session) = self.sessions.take(client) else { continue };
            match &login {
                None => self.fail(&mut session, WRONG),
                Some(login) => {
                    session.log_in(login.clone());
                    match then {
                        Some(then) => Self::greeting(client, &mut session, then),
                        None => Reply::new(&mut session.out, session.protocol).ok(),
                    }
                }
            }
            self.sessions.restore_answered(client, session);
        }
        self.run_ready();
    }

    /// The users from now on. Whoever has lost a right, or the password by which it came, is disconnected; how many were.
    /// `key` is random, and kept from the first time.
    pub(crate) fn set_users(&mut self, now: Time, users: Arc<Users>, key: [u8; 32]) -> usize {
        self.now = self.now.max(now);
        let turned_out = self.take_users(users, key);
        self.pump();
        self.run_ready();
        turned_out
    }

    /// A client is gone. What it wrote stays; what it waited for is dropped.
    pub fn disconnect(&mut self, now: Time, client: ClientId) {
        self.now = self.now.max(now);
        let Some(mut session) = self.sessions.remove(client) else { return };
        self.unwatch(&mut session);
        self.untrack(&mut session);
        self.unpin_answers(&mut session);
        self.end_redirects(client);
        if let Some(request) = session.pending_request() {
            self.core.handle(self.now, Input::Cancel { request });
        }
        if let Some(Waiting::Derived { name, .. }) = &session.waiting {
            self.derived.leave(client, name);
        }
        self.pump();
        self.run_ready();
    }

    /// The client sends no more. What it has sent is carried out as long as nothing of it has to wait: then it may have given
    /// up, and what would be written for it is not.
    pub fn hang_up(&mut self, now: Time, client: ClientId) {
        self.now = self.now.max(now);
        let Some(session) = self.sessions.get_mut(client) else { return };
        session.hung_up = true;
        self.guard(client);
        self.pump();
        self.run_ready();
    }

    /// Destages again, as the words behind RESUME say: none, or PARK for what domains halted at to be parked if the origin
    /// rejects it once more.
    ///
    /// # Errors
    /// What is expected instead; nothing has changed.
    pub fn resume_by(&mut self, args: &[String]) -> Result<(), String> {
        self.resume_as(args)?;
        self.pump();
        self.run_ready();
        Ok(())
    }

    /// What the servers of the log allow from now on.
    pub(crate) fn reached(&mut self, reach: Reach) {
        let goes_through = self.core.policy().at_limit == AtLimit::WriteThrough;
        let offered = reach;
        let reach = match offered {
            Reach::Through if !goes_through => Reach::Reads,
            other => other,
        };
        let before = self.measured.set_reach(offered, reach);
        match reach {
            _ if before == reach => return,
            Reach::Whole => tracing::info!("enough servers of the log take writes again"),
            Reach::Through => tracing::warn!(
                "too few servers of the log take writes: each goes through, and is acknowledged once the origin has it"
            ),
            Reach::Reads => {
                tracing::error!("too few servers of the log take writes: none is acknowledged")
            }
            Reach::Nothing => {
                tracing::error!("too few servers of the log answer: nothing is answered")
            }
        }
        if reach != Reach::Nothing {
            self.wake_lease_waiters();
            self.run_ready();
        }
    }

    /// Whoever takes over finds what is in the log up to here. While too few servers hold it, that may go to the origin, if the
    /// policy says so.
    pub(crate) fn secured(&mut self, now: Time, upto: Lsn) {
        // The policy may be another one by now.
        self.reached(self.measured.offered());
        let secured = (self.measured.reach() == Reach::Through).then_some(upto);
        if secured == self.core.lacking() {
            return;
        }
        self.now = self.now.max(now);
        self.core.handle(self.now, Input::Lacking { secured });
        self.tokens_committed();
        self.pump();
        self.run_ready();
    }
}
