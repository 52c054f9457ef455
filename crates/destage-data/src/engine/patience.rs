//! For how long a read waits for a row that a write on its way to the origin has locked.
//!
//! Such a write is shown to nobody before the origin has answered it, and the row as it was is no longer what a session may
//! build on. So reads of the row wait with the write, though not for longer than for raw SQL. A session under leases waits
//! for nothing once its time is up. What is merely fetched is bounded by the fetch.

use super::Engine;
use super::exec::EXEC;
use super::key::format_key;
use super::opaque::HELD_MAX;
use super::session::{Session, Waiting};
use crate::cells::Reader;
use destage_core::{ClientId, Input, Intent, RequestId, Span, Time, UnitId};

/// How often a read is looked at that has waited for so long already, and for no lock when it was looked at last.
const LOOK_AGAIN: Span = Span::from_secs(1);

impl Engine {
    /// Has a request wait for its units; one that reads, not for ever.
    pub(super) fn wait_for_units(
        &mut self,
        client: ClientId,
        session: &mut Session,
        request: RequestId,
        intent: Intent,
        raw: &[u8],
    ) {
        let deadline = (intent == Intent::Read).then(|| self.next_look(client, session, HELD_MAX));
        session.waiting = Some(Waiting::Units { request, raw: raw.into(), deadline });
    }

    /// Sets the time at which a waiting read is looked at.
    fn next_look(&mut self, client: ClientId, session: &Session, span: Span) -> Time {
        let mut at = self.now + span;
        if let (Some(token), true) = (session.watch, session.is_leased()) {
            let end = self.watched.leases.deadline(token).filter(|&end| end > self.now);
            at = end.map_or(at, |end| end.min(at));
        }
        self.deadlines.insert((at, client));
        at
    }

    /// A request waits for its units no longer.
    pub(super) fn end_patience(&mut self, client: ClientId, deadline: Option<Time>) {
        if let Some(deadline) = deadline {
            self.deadlines.remove(&(deadline, client));
        }
    }

    /// A read has waited for long: it gives up if a row of it is locked, or if it is in a session whose time is up.
    pub(super) fn lose_patience(&mut self, client: ClientId, request: RequestId) {
        let Some((client, mut session)) = self.take_waiting(request).filter(|(c, _)| *c == client)
        else {
            return;
        };
        let token = session.watch.filter(|_| session.is_leased());
        let lost = token.and_then(|token| self.watched.leases.check(self.now, token).err());
        let locked = self.core.locked_for(request);
        if lost.is_none() && locked.is_none() {
            let next = self.next_look(client, &session, LOOK_AGAIN);
            if let Some(Waiting::Units { deadline, .. }) = &mut session.waiting {
                *deadline = Some(next);
            }
            self.sessions[client.0 as usize] = Some(session);
            return;
        }
        self.core.handle(self.now, Input::Cancel { request });
        let is_exec =
            matches!(session.waiting.take(), Some(Waiting::Units { raw, .. }) if *raw == *EXEC);
        if let Some(denied) = lost {
            self.lost(&mut session, denied);
        } else if let Some(unit) = locked {
            if is_exec {
                self.end_multi(&mut session);
            }
            let message = format!(
                "UNAVAILABLE {} has not answered a write of {} within {} s, and it is not read before that; see DESTAGE \
                 STATUS",
                self.config.origin,
                self.name_of(unit),
                HELD_MAX.as_secs_f64()
            );
            self.fail(&mut session, &message);
        }
        self.put_back(client, session);
        self.pump();
    }

    /// What people call a unit.
    fn name_of(&self, unit: UnitId) -> String {
        let id = self.rows.get(unit).table;
        let table = self.schema.tables.get(usize::from(id.0));
        match table.filter(|table| table.part.is_none() && self.schema.plain != Some(id)) {
            Some(table) => {
                let mut key = Vec::new();
                format_key(table, Reader::new(self.rows.key(unit)), &mut key);
                String::from_utf8_lossy(&key).into_owned()
            }
            None => "what is asked for".to_owned(),
        }
    }
}
