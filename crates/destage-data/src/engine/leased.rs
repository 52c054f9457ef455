//! Sessions whose commands are answered at once: `DESTAGE BEGIN`, commands, `EXEC`.
//!
//! Such a session holds an S lease on what it has read and an X lease on what it writes ([`destage_core::lease`]), for a
//! limited time. Its writes are kept as they came, and performed again before its commands, or what they come to is kept, too,
//! so that it sees them and nobody else does; EXEC makes one write group of them, as of every transaction. Other sessions are refused what
//! their leases do not allow; single commands and transactions that write what a session may write wait until it ends.
//! A session that lost a lease is told so by every further command, and its EXEC does nothing. A command that is refused
//! ends the session's leases, too, and its EXEC is refused as of every transaction.

use super::Engine;
use super::asking::Answer;
use super::assumed::Claim;
use super::collections::{Attempt, OVERTAKEN};
use super::command::{Category, Spec, Verb, find};
use super::fresh::Moment;
use super::key::{key_cells, resolve};
use super::observer::entry_key;
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::queued::Queued;
use super::rows::RowKey;
use super::session::{Ahead, Multi, Session};
use super::txn::Txn;
use super::watch::KEYS_MAX;
use crate::mapping::Shape;
use crate::resp::{Args, Code, Reply, ReplyError, parse};
use crate::schema::TableId;
use destage_core::lease::{Denied, Token};
use destage_core::{Access, ClientId, Intent, Lsn, UnitId};

/// Most writes of one session: a command performs all of them again unless what they come to was kept.
const WRITES_MAX: usize = 1_000;
/// Most bytes of rows that are kept for that.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// Most rows that one session takes for absent: a transaction makes no more.
const ABSENT_MAX: usize = Multi::COMMANDS_MAX;
/// What further commands of a session are told of which one was refused: its leases have ended.
const SPOILT: ReplyError = ReplyError::fixed(
    Code::ExecAbort,
    "an earlier command of this session was refused, so nothing of it is done: EXEC or \
                      DISCARD, and begin anew",
);

/// What a session is told that has asked for leases on too many keys.
fn too_many() -> ReplyError {
    ReplyError::err(format!(
        "a session has leases on at most {KEYS_MAX} keys, read or written: divide it, or use MULTI"
    ))
}

impl Engine {
    /// DESTAGE EXCLUDE key [key ...]: X leases on rows that are to be read and then written.
    fn exclude(&mut self, session: &mut Session, keys: &[&[u8]]) {
        let Some(rows) = self.row_keys(session, keys, "EXCLUDE") else { return };
        let token = session.watch.expect("a session under leases has a token until it ends");
        if !self.config.unsafe_flags.in_force().no_leases {
            let mut taken = rows.iter().map(|key| self.watchers.exclude(self.now, token, key));
            if let Some(denied) = taken.find_map(Result::err) {
                return self.lost(session, denied);
            }
            if self.has_too_many(token) {
                return self.fail(session, too_many());
            }
            self.note_ends(&rows);
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// DESTAGE SHARE name [name ...]: S leases on cache entries of the library, by their names.
    fn share_entries(&mut self, session: &mut Session, names: &[&[u8]]) {
        let token = session.watch.expect("a session under leases has a token until it ends");
        if !self.config.unsafe_flags.in_force().no_leases {
            let watchers = &mut self.watchers;
            let mut taken =
                names.iter().map(|name| watchers.share(self.now, token, &entry_key(name)));
            if let Some(denied) = taken.find_map(Result::err) {
                return self.lost(session, denied);
            }
            if self.has_too_many(token) {
                return self.fail(session, too_many());
            }
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }

    /// DESTAGE ABSENT key [key ...]: rows that the origin does not have, see [`super::assumed`].
    fn assume_absent(&mut self, client: ClientId, session: &mut Session, keys: &[&[u8]]) {
        let Some(rows) = self.row_keys(session, keys, "ABSENT") else { return };
        let token = session.watch.expect("a session under leases has a token until it ends");
        if let Err(denied) = self.watchers.check(self.now, token) {
            return self.lost(session, denied);
        }
        if session.absent.len() + rows.len() > ABSENT_MAX {
            let message = ReplyError::err(format!(
                "a session says of at most {ABSENT_MAX} rows that they are absent; leave the others out, and the origin is \
                 asked"
            ));
            return self.fail(session, message);
        }
        let now = self.now;
        let (leases, assumed) = self.watchers.leases_and_assumed();
        for key in rows {
            let counts = |other| leases.check(now, other).is_ok();
            assumed.claim(&key, Claim { token, client }, counts);
            session.absent.insert(key);
        }
        Reply::new(&mut session.out, session.protocol).ok();
    }

    fn row_keys(
        &mut self,
        session: &mut Session,
        keys: &[&[u8]],
        command: &str,
    ) -> Option<Vec<RowKey>> {
        if keys.is_empty() {
            self.fail(session, ReplyError::err(format!("DESTAGE {command} key [key ...]")));
            return None;
        }
        let mut rows = Vec::with_capacity(keys.len());
        for key in keys {
            let named = key_cells(&self.schema, key).map(|(table, cells)| (table.id, cells));
            match named.or_else(|message| self.mapped_row(key).ok_or(message)) {
                Ok((table, cells)) => rows.push((table, cells.into())),
                Err(message) => {
                    self.fail(session, message);
                    return None;
                }
            }
        }
        Some(rows)
    }

    /// The row behind a key of the user's own making.
    fn mapped_row(&self, key: &[u8]) -> Option<(TableId, Vec<u8>)> {
        let mut cells = Vec::new();
        match resolve(&self.schema, key, &mut cells).ok()? {
            (table, Shape::Hash | Shape::String(_)) => Some((table.id, cells)),
            (_, Shape::Set(_) | Shape::SortedSet(_) | Shape::Plain) => None,
        }
    }

    /// A command between DESTAGE BEGIN and EXEC.
    pub(super) fn leased_request(
        &mut self,
        client: ClientId,
        session: &mut Session,
        spec: &Spec,
        raw: &[u8],
        args: &[&[u8]],
    ) {
        let is_harmless = matches!(spec.verb, Verb::Ping | Verb::Echo);
        if session.multi.as_ref().is_some_and(|multi| multi.failed) && !is_harmless {
            return self.complain(session, SPOILT);
        }
        match (spec.category, spec.verb) {
            (Category::Server, _) if is_harmless => {
                return self.server_command(client, session, spec, args);
            }
            (Category::Server, Verb::Destage) if args[1].eq_ignore_ascii_case(b"exclude") => {
                return self.exclude(session, &args[2..]);
            }
            (Category::Server, Verb::Destage) if args[1].eq_ignore_ascii_case(b"share") => {
                return self.share_entries(session, &args[2..]);
            }
            (Category::Server, Verb::Destage) if args[1].eq_ignore_ascii_case(b"absent") => {
                return self.assume_absent(client, session, &args[2..]);
            }
            (Category::Server, _) => {
                let message =
                    ReplyError::err(format!("{} is not allowed in transactions", spec.name));
                return self.fail(session, message);
            }
            (Category::Read | Category::Write, _) => {}
        }
        let mut prepared = Prepared::default();
        if let Err(message) = prepared.read(&self.schema, spec, args, session.tracker.is_some()) {
            return self.fail(session, message);
        }
        if let Err(denied) = self.take_leases(session, &prepared) {
            return self.lost(session, denied);
        }
        if session.watch.is_some_and(|token| self.has_too_many(token)) {
            return self.fail(session, too_many());
        }
        let Some(multi) = session.multi.take() else { return };
        let is_more = multi.bytes + raw.len() > self.config.limits.bytes_max
            || multi.requests.len() >= WRITES_MAX;
        let before = if self.is_kept(&multi) { &[][..] } else { &multi.requests };
        let queued = self.read_queued(before, session);
        session.multi = Some(multi);
        if is_more && spec.category == Category::Write {
            let message = ReplyError::err(format!(
                "a session under leases takes {WRITES_MAX} writes and {} bytes; use MULTI",
                self.config.limits.bytes_max
            ));
            return self.fail(session, message);
        }
        self.locate(&mut prepared, session.attempts);
        let queued: Vec<Queued> =
            queued.into_iter().chain([Queued::Data(Box::new(prepared))]).collect();
        let (_, units) = self.queued_units(&queued);
        let request = self.asking.request_id(client.0);
        match self.access(request, Intent::Read, &units) {
            Answer::Now(_, observed) => self.leased_now(client, session, raw, observed),
            Answer::Refused(refusal) => self.refused(session, refusal),
            Answer::Later => {
                Self::wait_for_units(session, request, raw, &units);
            }
        }
    }

    /// Whether a session has leases on more keys than it may. The refusal ends all of them.
    fn has_too_many(&self, token: Token) -> bool {
        self.watchers.keys(token).len() > KEYS_MAX
    }

    /// S leases on all keys of a command, X leases if it writes them.
    fn take_leases(&mut self, session: &Session, prepared: &Prepared) -> Result<(), Denied> {
        if self.config.unsafe_flags.in_force().no_leases {
            return Ok(());
        }
        let token = session.watch.expect("a session under leases has a token until it ends");
        for (table, key) in prepared.keys() {
            let key = (table, key.into());
            self.watchers.share(self.now, token, &key)?;
            if prepared.category == Category::Write {
                self.watchers.exclude(self.now, token, &key)?;
            }
            self.note_ends(&[key]);
        }
        Ok(())
    }

    /// Performs a command of a leased session, behind the session's writes: all rows are present.
    pub(super) fn leased_now(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        observed: Lsn,
    ) {
        let token = session.watch.expect("a session under leases has a token until it ends");
        if let Err(denied) = self.watchers.check(self.now, token) {
            return self.lost(session, denied);
        }
        let Some(mut multi) = session.multi.take() else { return };
        let is_kept = self.is_kept(&multi);
        let kept = multi.ahead.take().filter(|_| is_kept);
        multi.requests.push(raw.into());
        let first = if is_kept { multi.requests.len() - 1 } else { 0 };
        let queued = self.read_queued(&multi.requests[first..], session);
        multi.requests.pop();
        let (all, units) = self.queued_units(&queued);
        session.multi = Some(multi);
        if !self.are_present(&units) {
            // At once where collections are: what has come is kept for it while a page is fetched, however little room
            // there is.
            return if self.schema.collections.is_empty() {
                self.begin_anew(session, &units, Access::Back, raw)
            } else {
                self.leased_anew(client, session, raw)
            };
        }
        let mut txn = kept.map_or_else(Txn::default, |ahead| ahead.txn);
        let fresh = self.freshness.fresh_mut();
        let moment = *session.moment.get_or_insert_with(|| fresh.moment(self.now));
        let performed = self.replay(session, moment, &queued, &all, &mut txn);
        session.lsn = session.lsn.max(observed);
        match performed {
            Ok(reply) => {
                (session.settled, session.attempts) = (false, 0);
                session.out.extend_from_slice(&reply);
                let ahead = self.keep(txn);
                self.tell_of_leased(session, queued.last());
                let Some(multi) = &mut session.multi else { return };
                multi.ahead = ahead;
                if is_write(queued.last()) {
                    multi.bytes += raw.len();
                    multi.requests.push(raw.into());
                }
            }
            Err(Trouble::Error(message)) => {
                session.attempts = 0;
                self.fail(session, message);
            }
            Err(Trouble::Numbers(of)) => self.wait_for_numbers(client, session, of, raw),
            Err(Trouble::Early(at)) => self.wait_for_clock(client, session, at, raw),
            // Behind what was kept: once more behind all that it came from.
            Err(Trouble::Unknown | Trouble::Again) if is_kept => {
                self.leased_anew(client, session, raw);
            }
            Err(Trouble::Unknown) => self.settle(client, session, &units, raw),
            Err(Trouble::Parents(_) | Trouble::Holders(_)) => {
                unreachable!("EXEC asks for them")
            }
            Err(Trouble::Again) => match self.attempt_again(session, &units) {
                Attempt::TooMany => self.fail(session, OVERTAKEN),
                Attempt::Again => self.leased_anew(client, session, raw),
            },
        }
    }

    /// Whether what a session's writes come to is known, so that its next command need not perform them again. It is not once a
    /// row was dropped from the cache, which the session may have read, or whose number another one may have got.
    fn is_kept(&self, multi: &Multi) -> bool {
        multi.ahead.as_ref().is_some_and(|ahead| ahead.losses == self.rows.losses())
    }

    /// Keeps what a session's writes come to, unless it is large, or other things than writes change it: which part of a
    /// collection is at hand, and the time at which plain keys expire and rows end.
    fn keep(&self, txn: Txn) -> Option<Ahead> {
        let schema = &self.schema;
        let is_lasting =
            schema.collections.is_empty() && schema.plain.is_none() && !schema.rows_end;
        let is_safe = is_lasting && !self.config.unsafe_flags.in_force().no_leases;
        (is_safe && txn.staged_bytes() <= AHEAD_BYTES_MAX)
            .then(|| Ahead { txn, losses: self.rows.losses() })
    }

    /// Executes a command of a leased session once more from its bytes.
    fn leased_anew(&mut self, client: ClientId, session: &mut Session, raw: &[u8]) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let spec = find(&list).expect("the command was found before");
        self.leased_request(client, session, spec, raw, &list);
    }

    /// Performs commands one after the other; the last one's reply is returned.
    fn replay(
        &self,
        session: &mut Session,
        moment: Moment,
        queued: &[Queued],
        all: &[UnitId],
        txn: &mut Txn,
    ) -> Result<Vec<u8>, Trouble> {
        let mut context = Context {
            schema: &self.schema,
            rows: &self.rows,
            txn,
            fields: &self.config.fields,
            bytes_max: self.config.limits.bytes_max,
            now: self.now,
            agreed_ms: self.freshness.sweep().agreed_ms(self.now),
            expiries: self.freshness.expiries(),
            places: self.sessions.set_places(),
            fresh: self.freshness.fresh(),
            given: &mut session.numbers,
            moment,
        };
        let (mut out, mut rest) = (Vec::new(), all);
        for command in queued {
            let Queued::Data(prepared) = command else { continue };
            let (units, later) = rest.split_at(prepared.key_list.len());
            rest = later;
            out.clear();
            let mut reply =
                Reply::new(&mut out, session.protocol).within(self.config.output_bytes_max);
            context.perform(prepared, units, &mut reply)?;
        }
        Ok(out)
    }
}

fn is_write(command: Option<&Queued>) -> bool {
    matches!(command, Some(Queued::Data(prepared)) if prepared.category == Category::Write)
}
