//! WAITAOF, DESTAGE WAIT, FLUSH and DRAIN: how they begin and end.

use super::Engine;
use super::session::{Session, WaitKind, Waiting};
use crate::resp::{Code, Reply, ReplyError};
use destage_core::{ClientId, Input, Lsn, Outcome, RequestId, Span, WaitFor};

impl Engine {
    /// WAITAOF numlocal numreplicas timeout-ms: waits until the connection's writes are durable in the journal.
    pub(super) fn wait_aof(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let numbers: Vec<u64> = args[1..].iter().filter_map(|arg| number(arg)).collect();
        let [local, replicas, timeout] = numbers[..] else {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "value is not an integer or out of range"),
            );
        };
        if replicas > 0 || local > 1 {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "there is one journal and no replica: WAITAOF 1 0 ms"),
            );
        }
        if local == 0 {
            let mut reply = Reply::new(&mut session.out, session.protocol);
            let done = session.last_write <= self.core.committed();
            reply.array(2);
            reply.integer(i64::from(done));
            reply.integer(0);
            return;
        }
        self.wait(client, session, WaitKind::Aof, timeout);
    }

    /// DESTAGE DECIDED lsn ms, of the library: waits until the origin has decided a write, applied or parked.
    pub(super) fn wait_decided(&mut self, client: ClientId, session: &mut Session, args: &[&[u8]]) {
        let numbers: Vec<u64> = args.iter().filter_map(|arg| number(arg)).collect();
        let [lsn, timeout] = numbers[..] else {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "value is not an integer or out of range"),
            );
        };
        self.wait(client, session, WaitKind::Decided(Lsn(lsn)), timeout);
    }

    /// DESTAGE FLUSH [ms]: everything so far is in the journal. DESTAGE DRAIN [ms]: everything so far is at the origin.
    pub(super) fn wait_for_all(
        &mut self,
        client: ClientId,
        session: &mut Session,
        kind: WaitKind,
        timeout: Option<&[u8]>,
    ) {
        match timeout.map_or(Some(0), number) {
            Some(timeout) => self.wait(client, session, kind, timeout),
            None => self.fail(
                session,
                ReplyError::fixed(Code::Err, "the timeout is a number of milliseconds; 0 for none"),
            ),
        }
    }

    /// Waits until the connection's newest write is committed or decided; a timeout of 0 waits as long as it takes.
    pub(super) fn wait(
        &mut self,
        client: ClientId,
        session: &mut Session,
        kind: WaitKind,
        timeout: u64,
    ) {
        let request = self.asking.request_id(client.0);
        let deadline = (timeout > 0).then(|| self.now + Span::from_millis(timeout));
        let lsn = match kind {
            WaitKind::Flushed | WaitKind::Drained => self.core.last(),
            WaitKind::Aof | WaitKind::Destaged => session.last_write,
            WaitKind::Decided(lsn) => lsn,
        };
        let until = match kind {
            WaitKind::Aof | WaitKind::Flushed => WaitFor::Committed,
            WaitKind::Destaged => WaitFor::Decided,
            WaitKind::Drained | WaitKind::Decided(_) => WaitFor::AllDecided,
        };
        if let Some(deadline) = deadline {
            self.sessions.set_deadline(client, deadline);
        }
        session.waiting = Some(Waiting::Wait { request, kind, deadline });
        // Told to the core once the session is in its place again, since the answer may come at once.
        self.asking.wait((request, lsn, until));
    }

    pub(super) fn waited(&mut self, request: RequestId, outcome: Outcome) {
        self.finish_wait(request, Some(outcome));
    }

    /// Ends a WAITAOF, DESTAGE WAIT, FLUSH or DRAIN; without an outcome it timed out.
    pub(super) fn finish_wait(&mut self, request: RequestId, outcome: Option<Outcome>) {
        let Some((client, mut session)) = self.sessions.take_waiting(request) else { return };
        let is_it = |waiting: &mut Waiting| matches!(waiting, Waiting::Wait { .. });
        let Some(Waiting::Wait { kind, deadline, .. }) = session.waiting.take_if(is_it) else {
            return self.sessions.restore(client, session);
        };
        if let Some(deadline) = deadline {
            self.sessions.clear_deadline(client, deadline);
        }
        let last = session.last_write;
        let mut reply = Reply::new(&mut session.out, session.protocol);
        match (kind, outcome) {
            (WaitKind::Aof, done) => {
                reply.array(2);
                reply.integer(i64::from(done.is_some()));
                reply.integer(0);
            }
            // Parked is decided: what others were refused concerns this client no more than their successes.
            (WaitKind::Flushed | WaitKind::Drained, Some(_)) => reply.ok(),
            (WaitKind::Decided(_), done) => reply.integer(i64::from(done.is_some())),
            (_, Some(Outcome::Parked)) => reply.error(&ReplyError::new(
                Code::Parked,
                format!(
                    "the origin rejected write {}; it is kept in destage_parked with the reason",
                    last.0
                ),
            )),
            (WaitKind::Destaged, done) => reply.integer(i64::from(done.is_some())),
            (WaitKind::Flushed, None) => {
                reply.error(&ReplyError::fixed(
                    Code::Timeout,
                    "not everything is in the journal yet; see DESTAGE STATUS",
                ));
            }
            (WaitKind::Drained, None) => {
                reply.error(&ReplyError::fixed(
                    Code::Timeout,
                    "not everything is destaged yet; see DESTAGE STATUS",
                ));
            }
        }
        self.sessions.restore_answered(client, session);
    }

    /// A time that a client's command has named is over. What it waits for by now is looked at first: a time that was left
    /// behind ends nothing else.
    pub(super) fn wait_timed_out(&mut self, client: ClientId) {
        match self.sessions.get(client).and_then(|session| session.waiting.as_ref()) {
            Some(&Waiting::Wait { request, deadline: Some(deadline), .. })
                if deadline <= self.now =>
            {
                self.core.handle(self.now, Input::Cancel { request });
                self.finish_wait(request, None);
            }
            Some(Waiting::Derived { request, deadline, name, .. }) if *deadline <= self.now => {
                let (request, name) = (*request, name.clone());
                self.core.handle(self.now, Input::Cancel { request });
                self.derived_timed_out(client, &name);
            }
            _ => {}
        }
    }
}

pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
