//! DESTAGE PARKED: what is decided on groups that the origin rejected. They are applied after all, as they are or edited, or
//! given up.
//!
//! One decision at a time, in one transaction at the origin. A group takes along those parked behind it, in order; what
//! builds on another parked group as well stays. Until the decision is known,
//! - no group is parked behind those that may leave ([`Input::HoldParked`]);
//! - their rows are served from the cache, which shows them changed either way, and none of them is installed from a
//!   fetch, since nobody knows on which side of the transaction it looked; the same holds for the sets whose members they
//!   are, and for parts of large sets.
//!
//! Afterwards the rows and sets are fetched again, with the undecided changes overlaid. A set stands for many rows: it
//! follows its members, and nothing builds on a group for having changed the same set.

mod answers;
mod asker;
mod decisions;
mod known;
mod view;

use super::rows::dedup;
use super::session::{Job, Session, Waiting};
use super::{Engine, FetchJob, Groups, Io};
use crate::origins::OriginError;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::TableId;
use asker::Who;
pub use asker::{Asker, ParkedAnswer, ParkedCommand};
use decisions::{Active, Sent};
pub(super) use decisions::{Brought, Decisions};
use destage_core::{ClientId, Fault, Input, Lsn, StopReason, UnitId};
use known::Units;
use serde_json::json;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use view::push_value;

impl Engine {
    /// Takes a group that is parked at the origin.
    pub fn recover_parked(&mut self, lsn: Lsn, bytes: &[u8]) {
        self.domains.count_parked(&self.schema, bytes);
        self.show_parked(lsn, bytes);
        let units = &self.decisions.known()[lsn].units;
        let all: Vec<UnitId> = units.all().collect();
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &all });
    }

    /// Has readers go on seeing a group that is parked, whose units the core is about to be told of.
    pub(super) fn show_parked(&mut self, lsn: Lsn, bytes: &[u8]) {
        let units = self.units_of(bytes);
        let units = self.apart(units);
        let shared: Arc<[u8]> = bytes.into();
        units.all().for_each(|unit| self.overlay.park(unit, lsn, &shared));
        self.undecided.structural_mut().park(&self.schema, lsn, bytes);
        let covers = self.covered(bytes);
        self.undecided.unknown_mut().park(lsn, &covers);
        if !units.sets.is_empty() {
            self.core.handle(self.now, Input::Collective { units: &units.sets });
        }
        self.decisions.known_mut().add(lsn, units, Ok(shared));
    }

    fn apart(&self, units: Vec<UnitId>) -> Units {
        let (sets, rows) = units.into_iter().partition(|&unit| self.is_set(unit));
        Units { rows, sets }
    }

    /// Takes a group that is parked at the origin and cannot be read any more. Readers do not see it.
    pub fn recover_unreadable(&mut self, lsn: Lsn, why: String) {
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &[] });
        self.decisions.known_mut().add(lsn, Units::default(), Err(why));
    }

    /// DESTAGE PARKED ...
    pub(super) fn parked_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        args: &[String],
    ) {
        match ParkedCommand::parse(args) {
            Ok(command) => {
                let request = self.asking.request_id(client.0);
                session.waiting = Some(Waiting::Job { request, job: Job::Parked });
                self.ask_parked(command, Asker(Who::Client(request)));
            }
            Err(message) => self.fail(session, ReplyError::err(message)),
        }
    }

    /// Shows or decides. The asker is told at a later [`Engine::tick`] or completion.
    pub fn ask_parked(&mut self, command: ParkedCommand, asker: Asker) {
        if !matches!(command, ParkedCommand::List | ParkedCommand::Show(_)) {
            return self.decisions.ask(command, asker);
        }
        let request = self.decisions.ask_list(command, asker);
        self.jobs.push(Io::ListParked { request });
    }

    /// Begins the next decision, if there is one and nothing is in its way.
    pub(super) fn next_decision(&mut self) {
        if self.decisions.begin_next() {
            self.core.handle(self.now, Input::HoldParked { held: true });
            self.pump();
        }
        let Some(active) = self.decisions.take_unsent() else { return };
        if self.core.is_parking() {
            // Those on their way are to be told from those that come later.
            if self.core.is_parking_paused() {
                let message = ReplyError::fixed(
                    Code::Paused,
                    "rejected writes are on their way to the parked ones, and destaging is paused: \
                               DESTAGE RESUME first",
                );
                return self.end_decision(active, Some(message));
            }
            if self.core.is_parking_denied() {
                let message = format!(
                    "rejected writes are on their way to the parked ones, and the origin does not take them; it is asked again, \
                     at once after DESTAGE RESUME: {}",
                    self.decisions.denial()
                );
                return self.end_decision(active, Some(ReplyError::new(Code::Denied, message)));
            }
            self.decisions.go_on(active);
            return;
        }
        self.send_decision(active);
    }

    /// Sends the decision's next transaction, or ends it.
    fn send_decision(&mut self, mut active: Active) {
        let root = match active.command {
            ParkedCommand::Retry(None) => match self.decisions.known().next_of_all(active.upto) {
                Some(root) => root,
                None => return self.end_decision(active, None),
            },
            ParkedCommand::Retry(Some(lsn))
            | ParkedCommand::Edit(lsn, _)
            | ParkedCommand::Skip(lsn) => lsn,
            ParkedCommand::List | ParkedCommand::Show(_) => unreachable!("nothing is decided"),
        };
        match self.transaction_of(&active.command, root) {
            Ok((sent, groups)) => {
                self.note_unparked_keys(&groups);
                self.jobs.push(Io::Unpark { parked: sent.lsns.clone(), groups });
                active.sent = Some(sent);
                self.decisions.go_on(active);
            }
            Err(error) => self.end_decision(active, Some(error)),
        }
    }

    fn transaction_of(
        &mut self,
        command: &ParkedCommand,
        root: Lsn,
    ) -> Result<(Sent, Groups), ReplyError> {
        let mut groups = Groups::default();
        let held_back = Vec::new();
        if let ParkedCommand::Skip(_) = command {
            let known = self.decisions.known().find(root)?;
            let (units, edited) = (known.units.all().collect(), Units::default());
            let (lsns, reached, tables) = (vec![root], Vec::new(), Vec::new());
            return Ok((Sent { root, lsns, edited, reached, units, tables, held_back }, groups));
        }
        let changed = match command {
            ParkedCommand::Edit(_, changes) => Some(
                crate::parked::decode_edited(&self.schema, root, changes)
                    .map_err(|error| ReplyError::err(format!("{error}")))?,
            ),
            _ => None,
        };
        // Not before it is certain that it goes on: units are made for rows that nobody has asked for.
        self.decisions.known().check(root, &Units::default())?;
        let edited = changed.as_deref().map(|bytes| self.units_of(bytes)).unwrap_or_default();
        let edited = self.apart(edited);
        let known = self.decisions.known().check(root, &edited)?;
        let is_elsewhere = changed.is_some() && edited.rows != known.units.rows;
        if self.schema.one_row_groups && is_elsewhere {
            return Err(ReplyError::fixed(
                Code::Err,
                "before this kind of origin EDIT changes the document of the parked write and no other: SKIP the write \
                 and make another one",
            ));
        }
        let (lsns, units) =
            self.decisions.known().with_followers(root, &edited, self.schema.one_row_groups);
        let (mut reached, mut tables) = (Vec::new(), Vec::new());
        for &lsn in &lsns {
            let bytes = match &changed {
                Some(bytes) if lsn == root => bytes,
                _ => self.decisions.known()[lsn].readable(lsn)?,
            };
            reached.extend(self.rules().reached_by_group(bytes));
            groups.push(lsn, bytes);
            tables.extend(self.covered(bytes).tables);
        }
        Ok((Sent { root, lsns, edited, reached, units, tables, held_back }, groups))
    }

    /// Rows that an edit has changed may have left the cache meanwhile and come back under other numbers.
    fn find_edited(&mut self, command: &ParkedCommand, sent: &mut Sent) {
        if let ParkedCommand::Edit(_, changes) = command
            && let Ok(bytes) = crate::parked::decode_edited(&self.schema, sent.root, changes)
        {
            let units = self.units_of(&bytes);
            sent.edited = self.apart(units);
            sent.units.extend(sent.edited.all());
        }
    }

    fn end_decision(&mut self, mut active: Active, mut error: Option<ReplyError>) {
        self.core.handle(self.now, Input::HoldParked { held: false });
        let left = self.decisions.known().len();
        if active.command == ParkedCommand::Retry(None) && (active.applied > 0 || error.is_none()) {
            // Whoever asked for all is told what was done, whatever ended it, and why not all was.
            let ended = error.take();
            let refused = active.refused.take().or(ended);
            active.refused = refused.or_else(|| self.decisions.known().first_unreadable());
        }
        let answer = match (error, &active.command) {
            (Some(error), _) => Err(error),
            (None, ParkedCommand::Skip(_)) => Ok(json!({ "skipped": 1, "parked": left })),
            (None, _) => {
                let mut answer = json!({ "applied": active.applied, "parked": left });
                if let Some(refused) = active.refused {
                    answer["refused"] = refused.to_string().into();
                }
                Ok(answer)
            }
        };
        if let Ok(answer) = &answer {
            tracing::info!(command = %active.command.in_short(), %answer, "decided on parked writes");
        }
        self.answer_parked(active.asker, answer);
        self.pump();
    }

    /// Groups are parked no more: forgets them, and whatever shows them.
    fn let_go(&mut self, sent: &Sent) {
        let mut gone = Vec::new();
        for lsn in &sent.lsns {
            let known = self.decisions.known_mut().remove(*lsn);
            if let Some(Ok(bytes)) = known.as_ref().map(|known| &known.bytes) {
                self.domains.uncount_parked(&self.schema, bytes);
            }
            let mut units: Vec<UnitId> = known.iter().flat_map(|known| known.units.all()).collect();
            units.iter().for_each(|&unit| self.overlay.unpark(unit, *lsn));
            if *lsn == sent.root {
                units.extend(sent.edited.all());
            }
            gone.push((*lsn, dedup(&units)));
            self.undecided.unknown_mut().unpark(*lsn);
        }
        // Raw SQL that covers a table may have changed any row of it.
        let within = self.rows.units_of_tables(&sent.tables);
        let still = self.decisions.known().iter();
        let still = still.filter_map(|(lsn, known)| Some((lsn, known.bytes.as_deref().ok()?)));
        self.undecided.structural_mut().unpark(&self.schema, still);
        // What changed a set is kept for it in any case.
        let is_row = |unit: &UnitId| !self.is_set(*unit);
        let changed: HashSet<UnitId> = sent.units.iter().copied().filter(is_row).collect();
        let doubtful: HashSet<UnitId> =
            sent.units.iter().chain(&within).copied().filter(is_row).collect();
        self.chain_again(&doubtful);
        for (lsn, units) in gone {
            let changed: Vec<(UnitId, u32)> = units.iter().map(|&unit| (unit, 0)).collect();
            self.note_changes(&changed);
            self.core.handle(self.now, Input::Unparked { lsn, units: &units });
            for unit in units {
                self.unload_twice(unit);
            }
        }
        let fetching = within.iter().filter(|&&unit| self.core.is_fetching(unit));
        fetching.for_each(|&unit| self.decisions.fetch_again(unit));
        self.drop_copies(&within);
        for job in &sent.held_back {
            self.decisions.fetch_failed(job.unit);
        }
        let tables: BTreeSet<TableId> = changed
            .iter()
            .map(|&unit| self.rows.get(unit).table)
            .chain(sent.tables.iter().copied())
            .collect();
        tables.iter().for_each(|&table| self.note_derived_foreign(table));
        if !tables.is_empty() {
            self.watchers.tell_unsure(&tables.into_iter().collect::<Vec<_>>());
        }
        self.wake_lease_waiters();
        self.set_off(&sent.reached);
    }

    /// Keeps a fetched row back, or has it fetched again, if a decision makes it doubtful.
    pub(super) fn hold_back(&mut self, job: FetchJob) -> Option<FetchJob> {
        let is_active = self.decisions.is_active();
        let set = is_active.then(|| self.set_of_page(job.table, &job.key)).flatten();
        match self.decisions.brought(job, set) {
            Brought::Install(job) => Some(job),
            Brought::Fetch(job) => {
                self.jobs.fetch(job);
                None
            }
            Brought::Held => None,
        }
    }

    /// The words for an origin's refusal.
    fn refusal(&mut self, error: &OriginError) -> ReplyError {
        let code = match error.fault {
            Fault::Rejected => Code::Rejected,
            Fault::Unavailable => Code::Unavailable,
            Fault::Denied => Code::Denied,
            Fault::Fenced => {
                self.jobs.push(Io::Stop(StopReason::Fenced));
                Code::Stopped
            }
            Fault::Failed | Fault::JournalDamaged => Code::Err,
        };
        let is_nothing_done = matches!(code, Code::Rejected | Code::Unavailable | Code::Denied);
        let before = if is_nothing_done { "nothing was done: " } else { "" };
        ReplyError::new(code, format!("{before}{}", error.message))
    }

    fn answer_parked(&mut self, asker: Asker, answer: ParkedAnswer) {
        let request = match asker.0 {
            Who::Other(tell) => return tell(answer),
            Who::Client(request) => request,
        };
        let Some((client, Job::Parked)) = self.sessions.take_job(request) else { return };
        let Some(mut session) = self.sessions.take(client) else { return };
        match answer {
            Ok(value) => push_value(&mut Reply::new(&mut session.out, session.protocol), &value),
            Err(error) => self.fail(&mut session, error),
        }
        self.sessions.restore_ready(client, session);
    }
}
