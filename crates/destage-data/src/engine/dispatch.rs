//! From commands to the core.

use super::Engine;
use super::asking::Answer;
use super::collections::{Attempt, OVERTAKEN};
use super::command::{Category, Spec, Verb, find, is_http};
use super::once::TOKEN_BYTES_MAX;
use super::once::command::Once;
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::rows::{Kind, dedup};
use super::session::{Multi, Session};
use super::track_command::SUBSCRIBED;
use crate::resp::{Args, Code, Protocol, Reply, ReplyError, parse};
use destage_core::{Access, ClientId, Lsn, UnitId};

/// The work that a script counts as: most do little, but each may do as much as takes some milliseconds.
const SCRIPT_COST: usize = 16 << 10;

impl Engine {
    /// Executes one request as far as it goes.
    pub(super) fn request(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        args: &Args,
    ) {
        let mut few: [&[u8]; 32] = [&[]; 32];
        let many: Vec<&[u8]>;
        let list: &[&[u8]] = if args.len() <= few.len() {
            (0..args.len()).for_each(|i| few[i] = args.get(raw, i));
            &few[..args.len()]
        } else {
            many = (0..args.len()).map(|i| args.get(raw, i)).collect();
            &many
        };
        self.measured.command();
        session.asks_anew = false;
        let is_anew = std::mem::take(&mut session.is_put_back);
        if !is_anew && session.multi.is_none() && !std::mem::take(&mut session.caching_is_new) {
            session.caching = None;
        }
        if !is_anew {
            self.ended_waiting(session);
            session.parents.clear();
            session.holders.clear();
            self.unpin_answers(session);
            // A session under leases keeps what it was told of.
            if session.moment.is_none() {
                session.numbers.clear();
            }
        }
        let spec = match find(list) {
            Ok(spec) => spec,
            Err(message) => {
                session.closing = is_http(list);
                return self.fail(session, message);
            }
        };
        let may = session.may_ask(spec.verb).and_then(|()| self.may_send(session, spec, list));
        if let Err(message) = may {
            return self.fail(session, message);
        }
        (session.seen.at, session.seen.command) = (self.now, spec.name);
        if session.monitors && !matches!(spec.verb, Verb::Ping | Verb::Reset | Verb::Quit) {
            let message = "this connection is in MONITOR: it takes PING, RESET and QUIT";
            return self.fail(session, ReplyError::fixed(Code::Err, message));
        }
        if session.is_subscribed
            && session.protocol == Protocol::V2
            && !spec.verb.is_for_subscribers()
        {
            return self.fail(session, SUBSCRIBED);
        }
        if self.sessions.has_monitors()
            && !is_anew
            && !matches!(spec.verb, Verb::Auth | Verb::Hello)
        {
            // What is tried to be set may be a password, though it is refused.
            let is_secret = matches!(spec.verb, Verb::Config | Verb::Acl);
            let shown = if is_secret { &list[..2] } else { list };
            self.sessions.show(self.now, session.from, shown);
        }
        if self.refuses_hung_up(session, spec) {
            return;
        }
        if spec.verb == Verb::Destage && list[1].eq_ignore_ascii_case(b"once") {
            return self.once_command(client, session, raw, list);
        }
        if spec.verb == Verb::EvalSha {
            return self.eval_sha(client, session, list);
        }
        self.route(client, session, spec, raw, list);
    }

    /// EVALSHA or EVALSHA_RO: from here on it is the whole script.
    fn eval_sha(&mut self, client: ClientId, session: &mut Session, list: &[&[u8]]) {
        let raw = match self.whole_script(list) {
            Ok(raw) => raw,
            Err(message) => return self.fail(session, message),
        };
        let mut args = Args::default();
        parse(&raw, &self.config.limits, &mut args).expect("a request within the limits");
        let mut list = Vec::new();
        args.to_slices(&raw, &mut list);
        let spec = find(&list).expect("EVAL takes what EVALSHA takes");
        self.route(client, session, spec, &raw, &list);
    }

    /// Passes a request on to where it is executed.
    fn route(
        &mut self,
        client: ClientId,
        session: &mut Session,
        spec: &'static Spec,
        raw: &[u8],
        list: &[&[u8]],
    ) {
        if spec.verb == Verb::Eval {
            self.sessions.worked(SCRIPT_COST);
            self.keep_script(list[1]);
        }
        if self.derived.is_on() && self.derived_request(client, session, spec, list) {
            return;
        }
        let is_control = matches!(
            spec.verb,
            Verb::Exec | Verb::Discard | Verb::Multi | Verb::Watch | Verb::Quit | Verb::Reset
        );
        if session.multi.is_some() && !is_control {
            return if session.is_leased() {
                self.leased_request(client, session, spec, raw, list)
            } else {
                self.enqueue(session, spec, raw, list)
            };
        }
        match spec.category {
            Category::Server => self.server_command(client, session, spec, list),
            Category::Read | Category::Write => self.data_command(client, session, spec, raw, list),
        }
    }

    /// Keeps a command for EXEC, after checking all of it that can be checked now.
    pub(super) fn enqueue(
        &mut self,
        session: &mut Session,
        spec: &Spec,
        raw: &[u8],
        args: &[&[u8]],
    ) {
        let is_harmless = matches!(spec.verb, Verb::Ping | Verb::Echo | Verb::Unwatch);
        let is_dml = spec.verb == Verb::Destage && args[1].eq_ignore_ascii_case(b"execute");
        if is_dml && session.is_trusted {
            let checked = match args {
                [_, _, bytes] => self.check_dml(bytes),
                _ => Err(ReplyError::fixed(Code::Err, "raw SQL is one argument")),
            };
            if let Err(message) = checked {
                return self.fail(session, message);
            }
        } else if spec.category == Category::Server && !is_harmless {
            let message = ReplyError::err(format!("{} is not allowed in transactions", spec.name));
            return self.fail(session, message);
        }
        if spec.category != Category::Server {
            let mut prepared = std::mem::take(&mut self.scratch.prepared);
            let checked = prepared.read(&self.schema, spec, args, false);
            self.scratch.prepared = prepared;
            if let Err(message) = checked {
                return self.fail(session, message);
            }
        }
        let bytes_max = self.config.limits.bytes_max;
        let multi = session.multi.get_or_insert_with(Multi::default);
        if multi.requests.len() == Multi::COMMANDS_MAX {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "a transaction of more than 100000 commands"),
            );
        }
        if multi.bytes + raw.len() > bytes_max {
            let message = ReplyError::err(format!("a transaction of more than {bytes_max} bytes"));
            return self.fail(session, message);
        }
        multi.bytes += raw.len();
        multi.requests.push(raw.into());
        Reply::new(&mut session.out, session.protocol).simple("QUEUED");
    }

    pub(super) fn data_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        spec: &Spec,
        raw: &[u8],
        args: &[&[u8]],
    ) {
        let (once, args) = Once::split(args);
        let mut prepared = std::mem::take(&mut self.scratch.prepared);
        let read = prepared.read(&self.schema, spec, args, session.tracker.is_some());
        let refused = || once.as_ref().and_then(|_| self.refuses_once(&prepared));
        match read.err().or_else(refused) {
            Some(message) => self.fail(session, message),
            None if self.is_known(client, session, once.as_ref()) => {}
            None => {
                prepared.once = once;
                self.locate(&mut prepared, session.attempts);
                self.data_prepared(client, session, &prepared, raw);
            }
        }
        self.scratch.prepared = prepared;
    }

    pub(super) fn data_prepared(
        &mut self,
        client: ClientId,
        session: &mut Session,
        prepared: &Prepared,
        raw: &[u8],
    ) {
        if let Some(error) = self.refuses_for_copies(std::iter::once(prepared)) {
            return self.fail(session, error);
        }
        if self.must_wait(std::iter::once(prepared))
            || self.is_leased_to_another(session, std::iter::once(prepared))
        {
            return self.wait_for_lease(client, session, raw);
        }
        let mut few = [UnitId(0); 4];
        let many: Vec<UnitId>;
        let keys = prepared.keys();
        let all: &[UnitId] = if keys.len() <= few.len() {
            let count = keys.len();
            for (slot, (table, key)) in few.iter_mut().zip(keys) {
                *slot = self.rows.find_or_insert(table, key);
            }
            &few[..count]
        } else {
            many = keys.map(|(table, key)| self.rows.find_or_insert(table, key)).collect();
            &many
        };
        let distinct: Vec<UnitId>;
        let units = if all.len() < 2 {
            all
        } else {
            distinct = dedup(all);
            &distinct
        };
        let units = self.with_parents(session, units);
        let units = &*units;
        let request = self.asking.request_id(client.0);
        let intent = self.rules().intent(std::iter::once(prepared));
        match self.access(request, intent, units) {
            Answer::Now(access, observed) => {
                self.execute(client, session, prepared, all, units, access, observed, raw);
            }
            Answer::Refused(refusal) => self.refused(session, refusal),
            Answer::Later => {
                Self::wait_for_units(session, request, raw, units);
            }
        }
    }

    /// Executes a command whose units are all present.
    #[expect(
        clippy::too_many_arguments,
        reason = "the command, its place and the core's word on it"
    )]
    pub(super) fn execute(
        &mut self,
        client: ClientId,
        session: &mut Session,
        prepared: &Prepared,
        all: &[UnitId],
        units: &[UnitId],
        access: Access,
        observed: Lsn,
        raw: &[u8],
    ) {
        let once = prepared.once.as_ref();
        if self.is_known(client, session, once) {
            return self.release_locks(units, access);
        }
        if access == Access::Back && self.set_in_place(session, prepared, units[0]) {
            session.lsn = session.lsn.max(observed);
            return;
        }
        let start = session.out.len();
        let protocol = if once.is_some() { Protocol::V3 } else { session.protocol };
        let mut txn = std::mem::take(&mut self.scratch.txn);
        txn.clear();
        let schema = self.schema.clone();
        let performed = if self.is_blind(prepared, units) {
            txn.set_blind(prepared, units[0], &mut Reply::new(&mut session.out, protocol));
            Ok(())
        } else {
            let moment = self.freshness.fresh_mut().moment(self.now);
            let mut context = Context {
                schema: &schema,
                rows: &self.rows,
                txn: &mut txn,
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
            let bytes_max = start + self.config.output_bytes_max;
            let mut reply = Reply::new(&mut session.out, protocol).within(bytes_max);
            context.perform(prepared, all, &mut reply).and_then(|()| {
                txn.check(&schema, &self.rows)
                    .map_err(|message| Trouble::Error(ReplyError::err(message)))
            })
        };
        let performed = performed.and_then(|()| self.check_others(session, &txn, access));
        let performed =
            performed.and_then(|()| self.stage_token(session, &mut txn, once, start, access));
        let performed = performed.and_then(|()| self.write_group(None, &txn));
        if performed.is_ok() {
            // Before the command's own write takes effect: it may have read what was there.
            self.remember(session, prepared, all);
            self.rows.tracking_mut().begin_command();
            self.rows.tracking_mut().name_own(session.tracker, prepared.names());
        }
        // An error tells of what it met, too.
        session.lsn = session.lsn.max(observed);
        match performed {
            Ok(()) => {
                (session.settled, session.attempts) = (false, 0);
                self.commit(client, session, &mut txn, units, access, start);
            }
            Err(trouble) => {
                session.out.truncate(start);
                self.release_locks(units, access);
                match trouble {
                    Trouble::Error(message) => {
                        session.attempts = 0;
                        self.fail(session, message);
                    }
                    Trouble::Unknown => self.settle(client, session, units, raw),
                    Trouble::Again => self.perform_again(client, session, units, raw),
                    Trouble::Early(at) => self.wait_for_clock(client, session, at, raw),
                    Trouble::Parents(parents) => {
                        self.ask_for_parents(session, parents);
                        self.perform_anew(client, session, raw);
                    }
                    Trouble::Holders(asked) => self.ask_for_holders(client, session, asked, raw),
                    Trouble::Numbers(of) => self.wait_for_numbers(client, session, of, raw),
                }
            }
        }
        self.scratch.txn = txn;
    }

    /// Whether a blind write must do without the row.
    fn is_blind(&self, prepared: &Prepared, units: &[UnitId]) -> bool {
        prepared.category == Category::Write && self.rows.get(units[0]).kind == Kind::NotLoaded
    }

    /// Executes a command once more, with other parts of collections.
    fn perform_again(
        &mut self,
        client: ClientId,
        session: &mut Session,
        units: &[UnitId],
        raw: &[u8],
    ) {
        match self.attempt_again(session, units) {
            Attempt::TooMany => self.fail(session, OVERTAKEN),
            Attempt::Again => self.perform_anew(client, session, raw),
        }
    }

    /// Executes a command once more from its bytes.
    fn perform_anew(&mut self, client: ClientId, session: &mut Session, raw: &[u8]) {
        let mut args = Args::default();
        parse(raw, &self.config.limits, &mut args).expect("the request was read before");
        let mut list = Vec::new();
        args.to_slices(raw, &mut list);
        let (_, command) = Once::split(&list);
        let spec = find(command).expect("the command was found before");
        self.data_command(client, session, spec, raw, &list);
    }

    /// DESTAGE ONCE token command [args...], or EXEC as the command.
    pub(super) fn once_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        raw: &[u8],
        args: &[&[u8]],
    ) {
        let (Some(_), command) = Once::split(args) else {
            return self.fail(
                session,
                ReplyError::fixed(Code::Err, "DESTAGE ONCE token command [argument ...]"),
            );
        };
        let token = args[2];
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            let message = ReplyError::err(format!(
                "a token has 1 to {TOKEN_BYTES_MAX} bytes; nothing was done"
            ));
            return self.fail(session, message);
        }
        let spec = match find(command) {
            Ok(spec) => spec,
            Err(message) => return self.fail(session, message),
        };
        if spec.verb == Verb::Exec {
            if let Some(mut multi) = session.multi.take() {
                let limits = &self.config.limits;
                multi.once = Some(Once::of_transaction(limits, token, &multi.requests));
                session.multi = Some(multi);
            }
            return self.exec(client, session);
        }
        if session.multi.is_some() {
            return self.fail(
                session,
                ReplyError::fixed(
                    Code::Err,
                    "in a transaction, all is done once: DESTAGE ONCE token EXEC",
                ),
            );
        }
        match spec.category {
            Category::Write => self.data_command(client, session, spec, raw, args),
            Category::Read | Category::Server => {
                let message = ReplyError::err(format!(
                    "DESTAGE ONCE is for commands that write, and for EXEC: send {} without it",
                    spec.name.to_ascii_uppercase()
                ));
                self.fail(session, message);
            }
        }
    }
}
