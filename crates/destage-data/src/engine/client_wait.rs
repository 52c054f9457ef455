//! For how long a client waits for an answer, whatever keeps it: one bound for all of it (`--client-wait`).
//!
//! Clients have time-outs of their own, and most of them send again what they got no answer to. So nobody waits for longer than
//! the bound, which is shorter than those: a request that has written nothing yet is given up, and its answer says that nothing
//! was done; one whose write is in the journal, and whose acknowledgement waits, is told that it is kept. And what a client that
//! has gone still had waiting is given up, too. Only waits that name their own bound last longer: WAITAOF, DESTAGE WAIT and the
//! like, and derived keys with their deadline.
//!
//! A session under leases waits for nothing once its time is up.

use super::Engine;
use super::command::{Category, EXEC, Spec, Verb, find};
use super::copies::WITHHELD_BYTES;
use super::key::key_shown;
use super::session::{Held, Job, Session, Waiting};
use crate::resp::{Args, Code, Reply, ReplyError, count_replies, parse};
use destage_core::lease::Denied;
use destage_core::{ClientId, Input, Lsn, Mode, UnitId};
use destage_replicas_redis::Reach;

/// Why a request is given up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivenUp {
    /// It has waited for as long as it may.
    Late,
    /// Its client sends no more, and is taken to be gone.
    HungUp,
}

impl Engine {
    /// Looks after a client whose command may have begun to wait.
    pub(super) fn guard(&mut self, client: ClientId) {
        let until = self.now + self.config.client_wait;
        let Some(session) = self.sessions.get_mut(client) else { return };
        if let Some(waiting) = &session.waiting {
            session.is_abandoned |= session.hung_up;
            if !waiting.names_its_bound() && session.bound.is_none() {
                session.bound = Some(until);
                session.inbox.set_late();
            }
        }
        self.look_after(client);
    }

    /// The clients whose time may be over.
    pub(super) fn end_waits(&mut self) {
        while let Some(client) = self.sessions.next_alarmed(self.now) {
            self.look_after(client);
        }
    }

    /// Answers what has waited for too long, and sees to it that the rest is looked at in time.
    pub(super) fn look_after(&mut self, client: ClientId) {
        let (now, wait) = (self.now, self.config.client_wait);
        let Some(session) = self.sessions.get(client) else { return };
        let known_by = session.known_by.filter(|_| !session.known);
        if known_by.is_some_and(|until| until <= now) {
            return self.turn_out(client);
        }
        let waits = session.waiting.as_ref().filter(|waiting| !waiting.names_its_bound());
        let bound = waits.and(session.bound);
        let is_late = bound.is_some_and(|bound| bound <= now);
        let is_abandoned =
            session.is_abandoned && waits.is_some_and(|waits| self.would_write(session, waits));
        if is_late || is_abandoned {
            let why = if is_abandoned { GivenUp::HungUp } else { GivenUp::Late };
            return self.give_up(client, why);
        }
        let held = session.announced && !session.gated.is_empty();
        let held = held.then(|| session.held.since + wait);
        let leased = session.watch.filter(|_| session.is_leased() && waits.is_some());
        let lease_end = leased.and_then(|token| self.watchers.deadline(token));
        let is_over = lease_end.is_none_or(|end| end <= now);
        let lost = leased.filter(|_| is_over);
        if let Some(denied) = lost.and_then(|t| self.watchers.check(now, t).err())
            && self.lease_lost(client, denied)
        {
            return;
        }
        if held.is_some_and(|until| until <= now) {
            return self.withhold(client);
        }
        let lease_end = lease_end.filter(|&end| end > now);
        let due = [bound, lease_end, held, known_by].into_iter().flatten().min();
        // One that rings too early only looks again.
        if let Some(due) = due {
            self.sessions.set_alarm(client, due);
        }
    }

    /// Disconnects a client that has not sent the password: it takes the place of one that has. It is told so if it takes in what
    /// it is told.
    fn turn_out(&mut self, client: ClientId) {
        let limit = self.config.handshake_timeout.as_secs_f64();
        let Some(session) = self.sessions.get_mut(client) else { return };
        session.is_cut = session.output_bytes() > 0;
        session.closing = true;
        let message = ReplyError::new(
            Code::NoAuth,
            format!("no password was sent within {limit} s (--handshake-timeout): closing"),
        );
        Reply::new(&mut session.ready, session.protocol).error(&message);
        self.sessions.send(client);
    }

    /// A session under leases has waited until its time was up; false if it waits for something that does not end so.
    fn lease_lost(&mut self, client: ClientId, denied: Denied) -> bool {
        let Some(session) = self.sessions.get_mut(client) else { return false };
        let Some(Waiting::Units { request, .. } | Waiting::Settling { request, .. }) =
            session.waiting
        else {
            return false;
        };
        let Some((client, mut session)) = self.sessions.take_waiting(request) else { return false };
        session.waiting = None;
        self.core.handle(self.now, Input::Cancel { request });
        self.lost(&mut session, denied);
        self.sessions.restore_answered(client, session);
        self.pump();
        true
    }

    /// Whether a request that waits would write, and has not yet.
    fn would_write(&self, session: &Session, waiting: &Waiting) -> bool {
        match waiting {
            Waiting::Units { raw, .. }
            | Waiting::Settling { raw, .. }
            | Waiting::Holders { raw, .. }
            | Waiting::Numbers { raw, .. }
            | Waiting::Lease { raw } => self.is_write(session, raw),
            _ => false,
        }
    }

    fn is_write(&self, session: &Session, raw: &[u8]) -> bool {
        if *raw == *EXEC {
            let multi = session.multi.as_ref();
            return multi
                .is_none_or(|multi| multi.requests.iter().any(|raw| self.is_write(session, raw)));
        }
        let mut args = Args::default();
        let mut list = Vec::new();
        if parse(raw, &self.config.limits, &mut args).is_ok() {
            args.to_slices(raw, &mut list);
        }
        !list.is_empty() && find(&list).is_ok_and(may_change)
    }

    /// Refuses what a client has sent that has gone since, as far as it changes anything; false if it is none of that.
    pub(super) fn refuses_hung_up(&mut self, session: &mut Session, spec: &Spec) -> bool {
        let is_refused = session.is_abandoned && (may_change(spec) || spec.verb == Verb::Exec);
        if is_refused {
            self.fail(session, HUNG_UP);
        }
        is_refused
    }

    /// Gives up what a client waits for.
    fn give_up(&mut self, client: ClientId, why: GivenUp) {
        let Some(mut session) = self.sessions.take(client) else { return };
        let Some(waiting) = session.waiting.take() else {
            unreachable!("only what waits is given up")
        };
        let error = match why {
            GivenUp::HungUp => HUNG_UP,
            GivenUp::Late => self.late(&session, &waiting),
        };
        self.measured.gave_up(1);
        self.unpin_answers(&mut session);
        (session.settled, session.attempts) = (false, 0);
        match waiting {
            Waiting::Units { request, raw, .. } | Waiting::Settling { request, raw } => {
                self.core.handle(self.now, Input::Cancel { request });
                self.fail_waiting(&mut session, &raw, error);
            }
            Waiting::Holders { request, raw, .. } => {
                self.undecided.claims_mut().unpin(request.0);
                self.fail_waiting(&mut session, &raw, error);
            }
            Waiting::Numbers { raw, .. } => self.fail_waiting(&mut session, &raw, error),
            Waiting::Lease { raw } => {
                self.watchers.leave(client);
                self.fail_waiting(&mut session, &raw, error);
            }
            // It tells of what is in the journal, so it leaves with that.
            Waiting::Origin { lsn } => {
                session.lsn = session.lsn.max(lsn);
                self.complain(&mut session, error);
            }
            Waiting::Job { .. } => self.fail(&mut session, error),
            Waiting::Wait { .. } | Waiting::Derived { .. } => {
                unreachable!("they end at their own bound")
            }
        }
        // The bound stays: what was sent with it and has to wait, too, has waited for as long.
        self.sessions.restore_ready(client, session);
        self.pump();
    }

    fn fail_waiting(&mut self, session: &mut Session, raw: &[u8], error: ReplyError) {
        if *raw == *EXEC {
            self.end_multi(session);
        }
        self.fail(session, error);
    }

    /// What a client is told whose time is over.
    fn late(&self, session: &Session, waiting: &Waiting) -> ReplyError {
        let (origin, limit) = (&self.config.origin, self.config.client_wait.as_secs_f64());
        let nothing = |what: String| {
            ReplyError::new(
                Code::Unavailable,
                format!(
                    "{what} within {limit} s (--client-wait), and nothing was done; see DESTAGE STATUS"
                ),
            )
        };
        match waiting {
            Waiting::Units { request, .. } | Waiting::Settling { request, .. } => {
                if self.would_write(session, waiting)
                    && let Some(what) = self.keeps_writes()
                {
                    return nothing(what);
                }
                nothing(match self.core.locked_for(*request) {
                    Some(unit) => {
                        format!("{origin} has not answered a write of {}", self.name_of(unit))
                    }
                    None => format!("{origin} has not answered"),
                })
            }
            Waiting::Lease { .. } => nothing(self.keeps_writes().unwrap_or_else(|| {
                "another session that has the right to write this has not ended".to_owned()
            })),
            Waiting::Origin { lsn } => ReplyError::new(
                Code::Pending,
                format!(
                    "write {} is in the journal and goes to {origin}, which has not answered within {limit} s \
                 (--client-wait): do not repeat it{BUT_ONCE}; should {origin} reject it, the log tells so",
                    lsn.0
                ),
            ),
            Waiting::Job { job: Job::NextKeys { .. }, .. } => ReplyError::new(
                Code::Unavailable,
                format!(
                    "{origin} has not answered within {limit} s (--client-wait), and no key was handed out; keys that it \
                 reserves yet stay unused; see DESTAGE STATUS"
                ),
            ),
            Waiting::Job { job: Job::Parked, .. } => ReplyError::new(
                Code::Pending,
                format!(
                    "{origin} has not answered within {limit} s (--client-wait), and what was decided is under way: see \
                 DESTAGE PARKED LIST before you repeat it"
                ),
            ),
            Waiting::Job { job: Job::LogIn(_), .. } => {
                nothing("other passwords are looked at, and this one was not".to_owned())
            }
            _ => nothing(format!("{origin} has not answered")),
        }
    }

    /// What keeps all writes from being taken now.
    fn keeps_writes(&self) -> Option<String> {
        let policy = self.core.policy();
        if self.measured.is_journal_full() {
            return Some("the journal's disk is full, and has had no space".to_owned());
        }
        if let Some(what) = self.lack_of_copies() {
            return Some(format!("{what}, and no more have come"));
        }
        if self.measured.reach() == Reach::Through {
            let origin = &self.config.origin;
            return Some(format!(
                "too few servers of the log take writes, and {origin} has not taken enough of them"
            ));
        }
        match self.core.status().mode {
            Mode::StalenessExceeded => Some(format!(
                "the oldest write has waited for {} longer than D = {:.1} s, and was not decided",
                self.config.origin,
                policy.staleness.as_secs_f64()
            )),
            Mode::Full | Mode::Fallback | Mode::Throttled => Some(format!(
                "the limit of {} bytes of buffered writes is reached, and {} has not taken enough of them",
                policy.limits.dirty_bytes_max, self.config.origin
            )),
            Mode::Normal | Mode::Stopped => None,
        }
    }

    /// Answers otherwise than by the replies that the core holds back. What they tell of is done, and cannot be undone.
    fn withhold(&mut self, client: ClientId) {
        let limit = self.config.client_wait.as_secs_f64();
        let committed = self.core.committed();
        let origin = self.config.origin.clone();
        let Some(session) = self.sessions.get_mut(client) else { return };
        let count = count_replies(&session.gated);
        if count.saturating_mul(WITHHELD_BYTES) > self.config.output_bytes_max {
            return self.cut_off(client);
        }
        let is_journaled = session.held.lsn <= committed;
        let error = match (session.held.wrote, is_journaled) {
            (true, true) => ReplyError::new(
                Code::Pending,
                format!(
                    "its answer has to wait: if it wrote, that is in the journal and will reach {origin}, but older writes \
                 were not decided within {limit} s (--client-wait), and nothing is acknowledged before that: do not repeat it{BUT_ONCE}"
                ),
            ),
            (true, false) => ReplyError::new(
                Code::Pending,
                format!(
                    "its answer has to wait: if it wrote, that is not durable in the journal after {limit} s \
                 (--client-wait); it will be, and reach {origin}, unless this server ends before: do not repeat it{BUT_ONCE}; \
                 see DESTAGE STATUS"
                ),
            ),
            (false, _) => ReplyError::new(
                Code::Unavailable,
                format!(
                    "it tells of a write that is not durable in the journal after {limit} s (--client-wait), and is not \
                 told before that; see DESTAGE STATUS"
                ),
            ),
        };
        session.gated.clear();
        session.held.is_answered = true;
        let mut reply = Reply::new(&mut session.ready, session.protocol);
        (0..count).for_each(|_| reply.error(&error));
        session.ready.append(&mut session.gated_pushes);
        self.measured.gave_up(count as u64);
        self.sessions.send(client);
        if self.sessions.get_mut(client).is_some_and(|session| !session.out.is_empty()) {
            self.sessions.ready(client);
        }
    }

    /// What would be told instead of so many replies is more than a client may leave unread.
    fn cut_off(&mut self, client: ClientId) {
        if let Some(mut session) = self.sessions.take(client) {
            self.sessions.cut_off(client, &mut session);
            self.sessions.restore(client, session);
        }
    }

    /// Replies behind some that the core holds back and that were answered otherwise: what tells of nothing that is not
    /// durable may leave, the rest waits as those do.
    pub(super) fn follow_answered(&mut self, client: ClientId, session: &mut Session) {
        let is_free =
            session.gated.is_empty() && session.lsn <= self.core.committed() && !session.wrote;
        let to = if is_free { &mut session.ready } else { &mut session.gated };
        if !is_free {
            let before = if to.is_empty() { Held::default() } else { session.held };
            let since = if to.is_empty() { self.now } else { before.since };
            let (lsn, wrote) = (before.lsn.max(session.lsn), before.wrote || session.wrote);
            session.held = Held { since, lsn, wrote, is_answered: true };
        }
        to.append(&mut session.out);
        (session.lsn, session.wrote) = (Lsn::ZERO, false);
        if is_free {
            self.sessions.send(client);
        }
    }

    /// What people call a unit.
    fn name_of(&self, unit: UnitId) -> String {
        let id = self.rows.get(unit).table;
        let table = self.schema.tables.get(usize::from(id.0));
        match table.filter(|table| table.part.is_none() && self.schema.plain != Some(id)) {
            Some(table) => key_shown(table, self.rows.key(unit)),
            None => "what is asked for".to_owned(),
        }
    }
}

/// What may be repeated nevertheless.
const BUT_ONCE: &str = ", unless by DESTAGE ONCE";

/// What is told to whoever may not be there any more.
const HUNG_UP: ReplyError = ReplyError::fixed(
    Code::Unavailable,
    "the other end of the connection was closed while it waited, and nothing was done",
);

/// Whether a command may change anything.
fn may_change(spec: &Spec) -> bool {
    spec.category == Category::Write || spec.verb == Verb::Destage
}
