//! MULTI ... EXEC: all commands fetch their rows first, then run in one step and become one write group; any error aborts
//! all of them.

use super::Engine;
use super::asking::Answer;
use super::claims::Values;
use super::collections::{Attempt, OVERTAKEN};
use super::command::{Category, EXEC, Verb, find};
use super::given::Numbered;
use super::once::command::Once;
use super::overlay::GROUP_OVERHEAD;
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::queued::{Queued, data_commands, discarded, dmls};
use super::resume::has_others_locked;
use super::rows::{RowKey, dedup};
use super::rules::stronger;
use super::session::{Multi, Session};
use super::sessions::COMMAND_COST;
use super::txn::Txn;
use crate::resp::{Args, Code, Protocol, Reply, ReplyError, parse};
use destage_core::{Access, Ack, ClientId, Intent, Lsn, Time, UnitId};
use std::collections::BTreeSet;

/// What became of a transaction.
enum Performed {
    /// It was done, or refused.
    Done,
    /// Values are needed that only the origin knows.
    Unknown,
    /// Other parts of collections are needed.
    Again,
    /// A row has not ended by the origin's clock before this time.
    Early(Time),
    /// Rows are referred to of which it is not known whether they are there.
    Parents(BTreeSet<RowKey>),
    /// It has to be asked which rows have these values.
    Holders(Vec<Values>),
    /// A number of the sequence of this column is needed.
    Numbers(Numbered),
}

impl Engine {
    pub(super) fn exec(&mut self, client: ClientId, session: &mut Session) {
        let Some(multi) = session.multi.take() else {
            return self.fail(session, ReplyError::fixed(Code::Err, "EXEC without MULTI"));
        };
        if multi.failed {
            self.unwatch(session);
            return self.fail(
                session,
                ReplyError::fixed(
                    Code::ExecAbort,
                    "Transaction discarded because of previous errors.",
                ),
            );
        }
        if self.is_known(client, session, multi.once.as_ref()) {
            return self.unwatch(session);
        }
        if !self.is_unchanged(session) {
            return self.not_done(session);
        }
        let queued = self.read_queued(&multi.requests, session);
        if let Some(refused) = multi.once.as_ref().and_then(|_| self.refuses_all_once(&queued)) {
            self.unwatch(session);
            return self.fail(session, refused);
        }
        if let Some(error) = self.refuses_all_for_copies(&queued, multi.begun) {
            self.unwatch(session);
            return self.fail(session, error);
        }
        if !multi.begun && self.must_wait(data_commands(&queued)) {
            session.multi = Some(multi);
            return self.wait_for_lease(client, session, EXEC);
        }
        if self.is_leased_away(session, &queued) {
            return self.exec_leased_away(client, session, multi);
        }
        let (_, units) = self.queued_units(&queued);
        let units = self.with_parents(session, &units);
        if units.is_empty() {
            let once = multi.once.as_ref();
            self.perform_all(client, session, &queued, once, &[], &[], Access::Back, Lsn::ZERO);
            return;
        }
        let request = self.asking.request_id(client.0);
        let intent = self.exec_intent(&queued);
        match self.access(request, intent, &units) {
            Answer::Now(access, observed) => {
                // Which parts of collections are meant may have changed meanwhile.
                let queued = if self.schema.collections.is_empty() {
                    queued
                } else {
                    self.read_queued(&multi.requests, session)
                };
                self.exec_queued(client, session, multi, &queued, &units, access, observed);
            }
            Answer::Refused(refusal) => {
                self.unwatch(session);
                self.refused(session, refusal);
            }
            Answer::Later => {
                session.multi = Some(multi);
                Self::wait_for_units(session, request, EXEC, &units);
            }
        }
    }

    /// What the commands mean to do with their units.
    fn exec_intent(&self, queued: &[Queued]) -> Intent {
        let mut intent = self.rules().intent(data_commands(queued));
        // Later commands read what a blind one writes, so a transaction knows its rows; raw SQL needs none.
        let fetch = data_commands(queued).next().is_some();
        if let Intent::Write { fetch: fetches, .. } = &mut intent {
            *fetches = fetch;
        }
        for dml in dmls(queued) {
            let (bytes, ack) = match intent {
                Intent::Write { bytes, ack, .. } => (bytes, ack),
                Intent::Read | Intent::ReadSettled => (GROUP_OVERHEAD as u32, Ack::Policy),
            };
            let size = u32::try_from(dml.bytes().len()).unwrap_or(u32::MAX);
            let ack = stronger(ack, self.rules().ack_of_dml(&dml));
            intent = Intent::Write { bytes: bytes.saturating_add(size), ack, fetch };
        }
        intent
    }

    /// Whether commands would write what another session holds an X lease on.
    fn is_leased_away(&self, session: &Session, queued: &[Queued]) -> bool {
        self.is_leased_to_another(session, data_commands(queued))
            || dmls(queued).any(|dml| self.is_covered_by_lease(session, &dml))
    }

    /// Another session may write what this one would: transactions wait until it ends; sessions, whose own leases others
    /// might wait for, end.
    fn exec_leased_away(&mut self, client: ClientId, session: &mut Session, multi: Multi) {
        if multi.begun {
            return self.not_done(session);
        }
        session.multi = Some(multi);
        self.wait_for_lease(client, session, EXEC);
    }

    /// Executes the transaction: its units are present, and locked if the access is not write-back.
    pub(super) fn exec_now(
        &mut self,
        client: ClientId,
        session: &mut Session,
        locked: &[UnitId],
        access: Access,
        observed: Lsn,
    ) {
        let multi = session.multi.take().expect("EXEC waits with its commands");
        let queued = self.read_queued(&multi.requests, session);
        self.exec_queued(client, session, multi, &queued, locked, access, observed);
    }

    #[expect(clippy::too_many_arguments, reason = "the commands and the core's word")]
    fn exec_queued(
        &mut self,
        client: ClientId,
        session: &mut Session,
        multi: Multi,
        queued: &[Queued],
        locked: &[UnitId],
        access: Access,
        observed: Lsn,
    ) {
        let (all, units) = self.queued_units(queued);
        let units = self.with_parents(session, &units);
        let needed = self.with_parents(session, &all);
        if has_others_locked(locked, &units, access) {
            self.release_locks(locked, access);
            session.multi = Some(multi);
            return self.exec(client, session);
        }
        if self.is_known(client, session, multi.once.as_ref()) {
            self.unwatch(session);
            return self.release_locks(&units, access);
        }
        if !self.is_unchanged(session) {
            self.release_locks(&units, access);
            return self.not_done(session);
        }
        if let Some(error) = self.refuses_all_for_copies(queued, multi.begun) {
            self.unwatch(session);
            self.release_locks(&units, access);
            return self.fail(session, error);
        }
        if !multi.begun && self.must_wait(data_commands(queued)) {
            self.release_locks(&units, access);
            session.multi = Some(multi);
            return self.wait_for_lease(client, session, EXEC);
        }
        if self.is_leased_away(session, queued) {
            self.release_locks(&units, access);
            return self.exec_leased_away(client, session, multi);
        }
        // What raw SQL alone touches need not be known.
        if !self.are_present(&needed) {
            session.multi = Some(multi);
            if !self.schema.collections.is_empty() {
                self.release_locks(&units, access);
                return self.exec(client, session);
            }
            return self.begin_anew(session, &units, access, EXEC);
        }
        let once = multi.once.as_ref();
        match self.perform_all(client, session, queued, once, &all, &units, access, observed) {
            Performed::Done => {}
            // Values are needed that only the origin knows; EXEC starts anew once they are here.
            Performed::Unknown => {
                session.multi = Some(multi);
                self.settle(client, session, &units, EXEC);
            }
            Performed::Early(at) => {
                session.multi = Some(multi);
                self.wait_for_clock(client, session, at, EXEC);
            }
            Performed::Parents(parents) => {
                session.multi = Some(multi);
                self.ask_for_parents(session, parents);
                self.exec(client, session);
            }
            Performed::Holders(asked) => {
                session.multi = Some(multi);
                self.ask_for_holders(client, session, asked, EXEC);
            }
            Performed::Numbers(of) => {
                session.multi = Some(multi);
                self.wait_for_numbers(client, session, of, EXEC);
            }
            Performed::Again => match self.attempt_again(session, &units) {
                Attempt::Again => {
                    session.multi = Some(multi);
                    self.exec(client, session);
                }
                Attempt::TooMany => {
                    self.unwatch(session);
                    self.fail(session, discarded(&OVERTAKEN));
                }
            },
        }
    }

    pub(super) fn read_queued(&mut self, requests: &[Box<[u8]>], session: &Session) -> Vec<Queued> {
        self.sessions.worked(requests.iter().map(|raw| raw.len() + COMMAND_COST).sum::<usize>());
        let mut args = Args::default();
        let mut queued = Vec::with_capacity(requests.len());
        for raw in requests {
            parse(raw, &self.config.limits, &mut args).expect("the request was read before");
            let mut list = Vec::new();
            args.to_slices(raw, &mut list);
            let spec = find(&list).expect("the command was found before");
            queued.push(match spec.category {
                Category::Server if spec.verb == Verb::Destage => Queued::Dml(list[2].into()),
                Category::Server if spec.verb == Verb::Unwatch => Queued::Unwatch,
                Category::Server if spec.verb == Verb::Ping && list.len() == 1 => {
                    Queued::Echo(None)
                }
                Category::Server => Queued::Echo(Some(list[1].to_vec())),
                Category::Read | Category::Write => {
                    let mut prepared = Box::<Prepared>::default();
                    let keeps_names = session.tracker.is_some();
                    let checked = prepared.read(&self.schema, spec, &list, keeps_names);
                    checked.expect("the arguments were checked when they were queued");
                    self.locate(&mut prepared, session.attempts);
                    Queued::Data(prepared)
                }
            });
        }
        queued
    }

    /// The units of all data commands in order; and each once, with those of raw SQL.
    pub(super) fn queued_units(&mut self, queued: &[Queued]) -> (Vec<UnitId>, Vec<UnitId>) {
        let keys = data_commands(queued).flat_map(|prepared| prepared.keys());
        let all: Vec<UnitId> =
            keys.map(|(table, key)| self.rows.find_or_insert(table, key)).collect();
        let raw: Vec<UnitId> = dmls(queued).flat_map(|dml| self.units_of_dml(&dml)).collect();
        let units = if raw.is_empty() { dedup(&all) } else { dedup(&[&all[..], &raw].concat()) };
        (all, units)
    }

    /// Unless it is done, nothing has been done.
    #[expect(clippy::too_many_arguments, reason = "the commands, their place and the core's word")]
    fn perform_all(
        &mut self,
        client: ClientId,
        session: &mut Session,
        queued: &[Queued],
        once: Option<&Once>,
        all: &[UnitId],
        units: &[UnitId],
        access: Access,
        observed: Lsn,
    ) -> Performed {
        let start = session.out.len();
        let mut txn = std::mem::take(&mut self.scratch.txn);
        txn.clear();
        if self.config.unsafe_flags.in_force().split_sessions && access == Access::Back {
            self.perform_apart(client, session, queued, all, &mut txn);
            self.scratch.txn = txn;
            return Performed::Done;
        }
        let protocol = session.protocol;
        if once.is_some() {
            session.protocol = Protocol::V3;
        }
        let performed = self.perform_queued(session, queued, all, &mut txn);
        session.protocol = protocol;
        let checked = performed.and_then(|()| self.check_absent(session, &txn));
        let checked = checked.and_then(|()| {
            txn.check(&self.schema, &self.rows).map_err(|why| Trouble::Error(ReplyError::err(why)))
        });
        let checked = checked.and_then(|()| self.check_others(session, &txn, access));
        let checked =
            checked.and_then(|()| self.stage_token(session, &mut txn, once, start, access));
        let checked = checked.and_then(|()| self.write_group(session.watch, &txn));
        if checked.is_ok() {
            self.remember_all(session, queued, all);
        }
        // An error tells of what it met, too.
        session.lsn = session.lsn.max(observed);
        let done = match checked {
            Ok(()) => {
                (session.settled, session.attempts) = (false, 0);
                // What is made of the rows that the session took for absent is written before those of no use are dropped.
                let absent = session.watch.zip(Some(std::mem::take(&mut session.absent)));
                self.unwatch(session);
                self.commit(client, session, &mut txn, units, access, start);
                if let Some((token, keys)) = absent {
                    self.withdraw_absent(token, keys);
                }
                Performed::Done
            }
            Err(trouble) => {
                session.out.truncate(start);
                if !units.is_empty() {
                    self.release_locks(units, access);
                }
                match trouble {
                    Trouble::Unknown => Performed::Unknown,
                    Trouble::Again => Performed::Again,
                    Trouble::Early(at) => Performed::Early(at),
                    Trouble::Parents(parents) => Performed::Parents(parents),
                    Trouble::Holders(asked) => Performed::Holders(asked),
                    Trouble::Numbers(of) => Performed::Numbers(of),
                    Trouble::Error(error) => {
                        session.attempts = 0;
                        self.unwatch(session);
                        self.fail(session, discarded(&error));
                        Performed::Done
                    }
                }
            }
        };
        self.scratch.txn = txn;
        done
    }

    /// For the tests' negative control: each command is a group of its own.
    fn perform_apart(
        &mut self,
        client: ClientId,
        session: &mut Session,
        queued: &[Queued],
        all: &[UnitId],
        txn: &mut Txn,
    ) {
        Reply::new(&mut session.out, session.protocol).array(queued.len());
        let mut rest = all;
        for command in queued {
            let count =
                if let Queued::Data(prepared) = command { prepared.key_list.len() } else { 0 };
            let (units, later) = rest.split_at(count);
            rest = later;
            txn.clear();
            let mut whole = Vec::new();
            std::mem::swap(&mut session.out, &mut whole);
            let performed = self.perform_queued(session, std::slice::from_ref(command), units, txn);
            let written = performed.and_then(|()| self.write_group(session.watch, txn));
            // The reply without the head of its array.
            let head = b"*1\r\n".len().min(session.out.len());
            let reply = session.out.split_off(head);
            session.out = whole;
            match written {
                Ok(()) => {
                    session.out.extend_from_slice(&reply);
                    let start = session.out.len();
                    self.commit(client, session, txn, units, Access::Back, start);
                }
                Err(_) => self.fail(
                    session,
                    ReplyError::fixed(Code::Err, "a part of a session that was taken apart"),
                ),
            }
        }
        self.unwatch(session);
    }

    fn perform_queued(
        &mut self,
        session: &mut Session,
        queued: &[Queued],
        all: &[UnitId],
        txn: &mut Txn,
    ) -> Result<(), Trouble> {
        let bytes_max = self.config.output_bytes_max;
        let mut reply = Reply::new(&mut session.out, session.protocol).within(bytes_max);
        reply.array(queued.len());
        let moment = session.moment.unwrap_or_else(|| self.freshness.fresh_mut().moment(self.now));
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
        let mut rest = all;
        for command in queued {
            match command {
                Queued::Echo(None) => reply.simple("PONG"),
                Queued::Echo(Some(bytes)) => reply.bulk(bytes),
                Queued::Unwatch => reply.ok(),
                Queued::Dml(bytes) => {
                    context.txn.dml(bytes.clone());
                    reply.ok();
                }
                Queued::Data(prepared) => {
                    let (units, later) = rest.split_at(prepared.key_list.len());
                    rest = later;
                    context.perform(prepared, units, &mut reply)?;
                }
            }
            reply.is_within()?;
        }
        Ok(())
    }
}
