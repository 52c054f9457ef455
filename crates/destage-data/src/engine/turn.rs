//! Turns: from a client's bytes to its requests, as many as it may execute before others go on.
//!
//! One thread serves all clients, so whoever sends much at once is stopped after a bounded amount of work and goes on once the
//! others were looked at. The amount is counted in commands and bytes, which is the same each time, and not in time. One command
//! is never divided, nor is one EXEC.

use super::command::{Category, find};
use super::inbox::Seen;
use super::rows::Kind;
use super::session::{Session, Waiting};
use super::sessions::{COMMAND_COST, TURN};
use super::{Engine, PREFETCH_CLIENT};
use crate::resp::{Args, Parse, Reply, ReplyError, RequestLimits, parse, resume};
use destage_core::{ClientId, Input, Intent, Lsn, Time};

/// How many bytes of replies may come before it is looked at whether they are too many.
const LOOK_EVERY_BYTES: usize = 1 << 10;
/// How far ahead of a waiting command the rows of later commands are asked for.
const PREFETCH_MAX: usize = 128;
/// What clients may send that have not sent the password, as in Redis: enough to do so, and little to be held for each.
const STRANGER: RequestLimits = RequestLimits { bytes_max: 16 << 10, args_max: 10 };
impl Engine {
    /// Takes bytes from a client and executes what they complete.
    pub fn receive(&mut self, now: Time, client: ClientId, bytes: &[u8]) {
        self.now = self.now.max(now);
        let Some(mut session) = self.sessions.take(client) else { return };
        if session.inbox.is_empty() && session.may_execute() {
            let mut seen = Seen::default();
            let used = self.run(client, &mut session, bytes, &mut seen);
            session.inbox.push_rest(&bytes[used..], seen);
            self.conclude(client, session);
        } else {
            session.inbox.push(bytes);
            self.sessions.restore(client, session);
            self.step(client);
        }
        self.run_ready();
    }

    /// Lets clients go on whose commands were answered; those that are left when much was executed, at the next call.
    pub(super) fn run_ready(&mut self) {
        let end = self.sessions.work() + TURN;
        loop {
            self.tell_trackers(None);
            while self.sessions.work() < end
                && let Some(client) = self.sessions.next_ready()
            {
                self.step(client);
            }
            // A change may have ended a lease, whatever made it.
            let has_freed = self.watchers.has_freed();
            if has_freed {
                self.wake_lease_waiters();
            }
            // What the last one changed is told before anything else comes in.
            if !has_freed && !self.rows.tracking().has_pending() {
                break;
            }
        }
    }

    /// Lets clients go on who have yielded: each once, until about one turn's work is done. For whoever drives the engine to call
    /// between looks at its sockets; how many clients went on.
    pub fn go_on(&mut self, now: Time) -> usize {
        self.now = self.now.max(now);
        let (end, mut count) = (self.sessions.work() + TURN, 0);
        for _ in 0..self.sessions.yielded_len() {
            if self.sessions.work() >= end {
                break;
            }
            let Some(yielded) = self.sessions.end_yield() else { break };
            let Some(client) = yielded else { continue };
            count += 1;
            self.step(client);
            // One that has sent everything is closed once that is executed, also where there was nothing to answer.
            if self.is_idle(client) {
                self.sessions.send(client);
            }
        }
        self.run_ready();
        count
    }

    /// Whether there is something to execute that waits for nothing but its turn.
    pub fn has_work(&self) -> bool {
        self.sessions.has_work()
    }

    /// What was executed so far, in the units of [`TURN`].
    pub(crate) fn work(&self) -> usize {
        self.sessions.work()
    }

    /// Executes what a client has sent so far, and announces its replies.
    fn step(&mut self, client: ClientId) {
        let Some(mut session) = self.sessions.take(client) else { return };
        if !session.inbox.is_empty() && session.may_execute() {
            let mut inbox = std::mem::take(&mut session.inbox);
            let (buffer, seen) = inbox.parts();
            let used = self.run(client, &mut session, buffer, seen);
            inbox.pass(used);
            let (anew, _) = session.inbox.parts();
            if !anew.is_empty() {
                inbox.put_back(anew);
            }
            session.inbox = inbox;
        }
        self.conclude(client, session);
    }

    /// Announces the replies of a client that has executed what it can.
    fn conclude(&mut self, client: ClientId, mut session: Box<Session>) {
        self.tell_trackers(Some((client, &mut session)));
        if !session.is_cut && self.sessions.outgrows(&mut session) {
            self.sessions.cut_off(client, &mut session);
        }
        if session.waiting.is_none() && !session.is_put_back {
            self.ended_waiting(&mut session);
            self.unpin_answers(&mut session);
        }
        let has_more = !session.announced && !session.out.is_empty();
        let announced = has_more.then(|| session.announce(self.now));
        if !has_more && session.held.is_answered && !session.out.is_empty() {
            self.follow_answered(client, &mut session);
        }
        if session.let_pushes() {
            self.sessions.send(client);
        }
        self.sessions.restore(client, session);
        for late in self.sessions.take_released_late() {
            self.sessions.release(late);
        }
        for (request, lsn, until) in self.asking.take_waits() {
            self.core.handle(self.now, Input::Wait { request, lsn, until });
            self.pump();
        }
        if let Some((lsn, wrote)) = announced {
            let lsn =
                if self.config.unsafe_flags.in_force().no_read_gate { Lsn::ZERO } else { lsn };
            self.core.handle(self.now, Input::Respond { client, lsn, wrote });
            self.pump();
        }
        self.guard(client);
    }

    /// Executes requests from the front of `buffer` until one waits or is incomplete, or others are to have their turn; the bytes
    /// used are returned.
    fn run(
        &mut self,
        client: ClientId,
        session: &mut Session,
        buffer: &[u8],
        seen: &mut Seen,
    ) -> usize {
        let mut args = Args::default();
        let mut used = 0;
        let mut count = 0;
        let end = self.sessions.work() + TURN;
        let mut look_at = 0;
        while session.may_execute() {
            if session.out.len() >= look_at {
                if self.sessions.outgrows(session) {
                    // Disconnected by the caller: what follows would only add to it.
                    break;
                }
                look_at = session.out.len() + LOOK_EVERY_BYTES;
            }
            if used < buffer.len()
                && (count == self.config.pipeline_max || self.sessions.work() >= end)
            {
                self.sessions.yield_turn(client, session);
                break;
            }
            let limits = if session.known { &self.config.limits } else { &STRANGER };
            match resume(&buffer[used..], limits, &mut seen.place, &mut args) {
                Ok(Parse::Request(len)) => {
                    let raw = &buffer[used..used + len];
                    used += len;
                    count += 1;
                    if !seen.is_late() {
                        session.bound = None;
                    }
                    seen.pass(len);
                    if !args.is_empty() {
                        let before = session.out.len();
                        self.sessions.worked(raw.len() + COMMAND_COST);
                        self.request(client, session, raw, &args);
                        self.begins_to_wait(session, raw, &args);
                        self.sessions.worked(session.out.len().saturating_sub(before));
                        self.pump();
                    }
                }
                Ok(Parse::Incomplete) => {
                    seen.end_in_part();
                    break;
                }
                Err(error) => {
                    let why = if session.known { "" } else { " before AUTH" };
                    let message = ReplyError::err(format!("{error}{why}"));
                    Reply::new(&mut session.out, session.protocol).error(&message);
                    session.closing = true;
                    used = buffer.len();
                }
            }
            if !session.inbox.is_empty() {
                // It asks anew, before what follows.
                self.sessions.ready(client);
                break;
            }
        }
        if matches!(session.waiting, Some(Waiting::Units { .. })) {
            self.prefetch(session, &buffer[used..], seen);
        }
        used
    }

    /// Asks for the rows of the commands that follow a waiting one, so that a pipeline of misses costs one round trip.
    /// Each command is looked at once.
    fn prefetch(&mut self, session: &Session, buffer: &[u8], seen: &mut Seen) {
        // What is asked for ahead of need leaves room for the requests of others.
        let waiting_max = u64::from(self.core.policy().limits.waiting_max);
        if self.core.status().waiting > waiting_max / 2 {
            return;
        }
        let mut args = Args::default();
        let mut prepared = std::mem::take(&mut self.scratch.prepared);
        while seen.ahead < PREFETCH_MAX && !seen.ahead_is_part {
            let rest = &buffer[seen.ahead_bytes..];
            let Ok(Parse::Request(len)) = parse(rest, &self.config.limits, &mut args) else {
                seen.ahead_is_part = true;
                break;
            };
            let mut list = Vec::new();
            args.to_slices(&rest[..len], &mut list);
            let Some(Ok(spec)) = (!list.is_empty()).then(|| find(&list)) else { break };
            if spec.category == Category::Server
                || self.may_send(session, spec, &list).is_err()
                || prepared.read(&self.schema, spec, &list, false).is_err()
            {
                break;
            }
            seen.ahead += 1;
            seen.ahead_bytes += len;
            for (table, key) in prepared.keys() {
                let unit = self.rows.find_or_insert(table, key);
                if self.rows.get(unit).kind == Kind::NotLoaded {
                    let request = self.asking.request_id(PREFETCH_CLIENT);
                    let _ = self.access(request, Intent::Read, &[unit]);
                }
            }
        }
        self.scratch.prepared = prepared;
        self.pump();
    }
}
