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

mod known;
mod telling;

use super::session::{Job, Session, Waiting};
use super::{Engine, FetchJob, Groups, Io};
use crate::origins::{Applied, OriginError, ParkedGroup};
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::{ClientId, Fault, Input, Lsn, RequestId, StopReason, UnitId};
use known::{KnownGroups, Units};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use telling::{in_short, push_value, shown};

/// What someone wants of the parked groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParkedCommand {
    /// All of them, in short.
    List,
    /// One of them, with its changes.
    Show(Lsn),
    /// Apply one and what builds on it, or with `None` all, as far as the origin takes them.
    Retry(Option<Lsn>),
    /// Apply these changes in the place of one, and what builds on it.
    Edit(Lsn, String),
    /// Give one up.
    Skip(Lsn),
}

/// What is told: JSON, or an error that begins with its word.
pub type ParkedAnswer = Result<Value, String>;

/// Who is told.
pub struct Asker(Who);

enum Who {
    Client(RequestId),
    Other(Box<dyn FnOnce(ParkedAnswer) + Send>),
}

/// The decisions that were asked for, and what they are about.
#[derive(Debug, Default)]
pub(super) struct Decisions {
    pub(super) known: KnownGroups,
    lists: HashMap<u64, (ParkedCommand, Asker)>,
    waiting: VecDeque<(ParkedCommand, Asker)>,
    active: Option<Active>,
    /// Units whose fetch under way may have looked at the origin before it changed them otherwise than by a batch.
    refetch: BTreeSet<UnitId>,
    next_list: u64,
    /// Negative control for the tests: what is fetched meanwhile is installed.
    pub(super) unsafe_installs: bool,
}

/// The decision under way.
#[derive(Debug)]
struct Active {
    command: ParkedCommand,
    asker: Asker,
    sent: Option<Sent>,
    /// Of all, those up to here had their turn.
    upto: Lsn,
    applied: u64,
    refused: Option<String>,
}

/// A transaction under way.
#[derive(Debug)]
struct Sent {
    root: Lsn,
    lsns: Vec<Lsn>,
    /// What it changes in the place of what was parked.
    edited: Units,
    /// Tables of which the origin may change further rows.
    reached: Vec<TableId>,
    units: HashSet<UnitId>,
    /// Tables of which raw SQL among it covers all rows.
    tables: Vec<TableId>,
    held_back: Vec<FetchJob>,
}

impl Sent {
    fn concerns(&self, job: &FetchJob) -> bool {
        self.units.contains(&job.unit) || self.tables.contains(&job.table)
    }
}

impl ParkedCommand {
    /// As it is logged: changes may be many megabytes, and are nobody's business there.
    fn in_short(&self) -> String {
        match self {
            Self::Edit(lsn, changes) => format!("Edit({}, {} bytes)", lsn.0, changes.len()),
            other => format!("{other:?}"),
        }
    }

    /// Reads the words behind `DESTAGE PARKED`.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(args: &[String]) -> Result<Self, String> {
        let id = |text: &str| -> Result<Lsn, String> {
            let number = text.parse().map_err(|_| {
                format!("'{text}' is no number of a parked write; PARKED LIST shows them")
            })?;
            Ok(Lsn(number))
        };
        let texts: Vec<&str> = args.iter().map(String::as_str).collect();
        let word = texts.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        match (word.as_str(), &texts[texts.len().min(1)..]) {
            ("list", []) => Ok(Self::List),
            ("show", [one]) => Ok(Self::Show(id(one)?)),
            ("retry", [all]) if all.eq_ignore_ascii_case("all") => Ok(Self::Retry(None)),
            ("retry", [one]) => Ok(Self::Retry(Some(id(one)?))),
            ("edit", [one, changes]) => Ok(Self::Edit(id(one)?, (*changes).to_owned())),
            ("skip", [one]) => Ok(Self::Skip(id(one)?)),
            _ => Err("use PARKED LIST | SHOW id | RETRY id|ALL | EDIT id changes | SKIP id".into()),
        }
    }
}

impl Asker {
    /// Tells a function, once.
    pub fn new(tell: impl FnOnce(ParkedAnswer) + Send + 'static) -> Self {
        Self(Who::Other(Box::new(tell)))
    }
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Who::Client(request) => write!(f, "Client({request:?})"),
            Who::Other(_) => f.write_str("Other"),
        }
    }
}

impl Decisions {
    /// A fetch brought nothing, which is not out of date.
    pub(super) fn fetch_failed(&mut self, unit: UnitId) {
        self.refetch.remove(&unit);
    }

    /// What is being fetched is out of date: it is fetched once more.
    pub(super) fn fetch_again(&mut self, unit: UnitId) {
        self.refetch.insert(unit);
    }
}

impl Engine {
    /// Takes a group that is parked at the origin.
    pub fn recover_parked(&mut self, lsn: Lsn, bytes: &[u8]) {
        self.count_parked(bytes);
        self.show_parked(lsn, bytes);
        let units = &self.decisions.known[lsn].units;
        let all: Vec<UnitId> = units.all().collect();
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &all });
    }

    /// Has readers go on seeing a group that is parked, whose units the core is about to be told of.
    pub(super) fn show_parked(&mut self, lsn: Lsn, bytes: &[u8]) {
        let units = self.units_of(bytes);
        let units = self.apart(units);
        let shared: Arc<[u8]> = bytes.into();
        units.all().for_each(|unit| self.overlay.park(unit, lsn, &shared));
        self.structural.park(&self.schema, lsn, bytes);
        let covers = self.covered(bytes);
        self.opaque.park(lsn, &covers);
        if !units.sets.is_empty() {
            self.core.handle(self.now, Input::Collective { units: &units.sets });
        }
        self.decisions.known.add(lsn, units, Ok(shared));
    }

    fn apart(&self, units: Vec<UnitId>) -> Units {
        let (sets, rows) = units.into_iter().partition(|&unit| self.is_set(unit));
        Units { rows, sets }
    }

    /// Takes a group that is parked at the origin and cannot be read any more. Readers do not see it.
    pub fn recover_unreadable(&mut self, lsn: Lsn, why: String) {
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &[] });
        self.decisions.known.add(lsn, Units::default(), Err(why));
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
                let request = self.request_id(client.0);
                session.waiting = Some(Waiting::Job { request, job: Job::Parked });
                self.ask_parked(command, Asker(Who::Client(request)));
            }
            Err(message) => self.fail(session, &format!("ERR {message}")),
        }
    }

    /// Shows or decides. The asker is told at a later [`Engine::tick`] or completion.
    pub fn ask_parked(&mut self, command: ParkedCommand, asker: Asker) {
        if !matches!(command, ParkedCommand::List | ParkedCommand::Show(_)) {
            return self.decisions.waiting.push_back((command, asker));
        }
        self.decisions.next_list += 1;
        let request = self.decisions.next_list;
        self.decisions.lists.insert(request, (command, asker));
        self.io.push(Io::ListParked { request });
    }

    /// Everything parked was read, or not.
    pub fn parked_listed(&mut self, request: u64, result: Result<Vec<ParkedGroup>, OriginError>) {
        let Some((command, asker)) = self.decisions.lists.remove(&request) else { return };
        let answer = result.map_err(|error| self.told(&error)).and_then(|groups| match command {
            ParkedCommand::Show(lsn) => shown(&groups, lsn),
            _ => Ok(groups.iter().map(|group| in_short(&groups, group)).collect()),
        });
        self.answer_parked(asker, answer);
        self.run_ready();
    }

    /// Begins the next decision, if there is one and nothing is in its way.
    pub(super) fn next_decision(&mut self) {
        if self.decisions.active.is_none() {
            let Some((command, asker)) = self.decisions.waiting.pop_front() else { return };
            self.core.handle(self.now, Input::HoldParked { held: true });
            self.pump();
            let (upto, applied) = (Lsn::ZERO, 0);
            let active = Active { command, asker, sent: None, upto, applied, refused: None };
            self.decisions.active = Some(active);
        }
        let Some(active) = self.decisions.active.take_if(|active| active.sent.is_none()) else {
            return;
        };
        if self.core.is_parking() {
            // Those on their way are to be told from those that come later.
            if self.core.is_parking_paused() {
                let message = "PAUSED rejected writes are on their way to the parked ones, and destaging is paused: \
                               DESTAGE RESUME first";
                return self.end_decision(active, Some(message.into()));
            }
            self.decisions.active = Some(active);
            return;
        }
        self.send_decision(active);
    }

    /// Sends the decision's next transaction, or ends it.
    fn send_decision(&mut self, mut active: Active) {
        let root = match active.command {
            ParkedCommand::Retry(None) => match self.decisions.known.next_of_all(active.upto) {
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
                self.io.push(Io::Unpark { parked: sent.lsns.clone(), groups });
                active.sent = Some(sent);
                self.decisions.active = Some(active);
            }
            Err(message) => self.end_decision(active, Some(message)),
        }
    }

    fn transaction_of(
        &mut self,
        command: &ParkedCommand,
        root: Lsn,
    ) -> Result<(Sent, Groups), String> {
        let mut groups = Groups::default();
        let held_back = Vec::new();
        if let ParkedCommand::Skip(_) = command {
            let known = self.decisions.known.find(root)?;
            let (units, edited) = (known.units.all().collect(), Units::default());
            let (lsns, reached, tables) = (vec![root], Vec::new(), Vec::new());
            return Ok((Sent { root, lsns, edited, reached, units, tables, held_back }, groups));
        }
        let changed = match command {
            ParkedCommand::Edit(_, changes) => Some(
                crate::parked::decode_edited(&self.schema, root, changes)
                    .map_err(|error| format!("ERR {error}"))?,
            ),
            _ => None,
        };
        // Not before it is certain that it goes on: units are made for rows that nobody has asked for.
        self.decisions.known.check(root, &Units::default())?;
        let edited = changed.as_deref().map(|bytes| self.units_of(bytes)).unwrap_or_default();
        let edited = self.apart(edited);
        let known = self.decisions.known.check(root, &edited)?;
        let is_elsewhere = changed.is_some() && edited.rows != known.units.rows;
        if self.schema.one_row_groups && is_elsewhere {
            return Err(
                "ERR before this kind of origin EDIT changes the document of the parked write and no other: SKIP the write \
                 and make another one"
                    .into(),
            );
        }
        let (lsns, units) =
            self.decisions.known.with_followers(root, &edited, self.schema.one_row_groups);
        let (mut reached, mut tables) = (Vec::new(), Vec::new());
        for &lsn in &lsns {
            let bytes = match &changed {
                Some(bytes) if lsn == root => bytes,
                _ => self.decisions.known[lsn].readable(lsn)?,
            };
            reached.extend(self.reached_by_group(bytes));
            groups.push(lsn, bytes);
            tables.extend(self.covered(bytes).tables);
        }
        Ok((Sent { root, lsns, edited, reached, units, tables, held_back }, groups))
    }

    /// The transaction took effect, or nothing of it did.
    pub fn unparked(&mut self, now: destage_core::Time, result: Result<Applied, OriginError>) {
        self.now = self.now.max(now);
        let mut active = self.decisions.active.take().expect("one decision is under way");
        let mut sent = active.sent.take().expect("its transaction has ended");
        let is_skip = matches!(active.command, ParkedCommand::Skip(_));
        let refused = match result {
            // Someone has removed it by hand, which is what was asked for.
            Err(error) if is_skip && error.fault == Fault::Rejected => None,
            Err(error) => Some((error.fault, self.told(&error))),
            Ok(_) => None,
        };
        match &refused {
            None => {
                active.applied += sent.lsns.len() as u64;
                self.find_edited(&active.command, &mut sent);
                self.let_go(&sent);
            }
            // Units that were made for it alone are dropped again.
            Some(_) => sent.edited.all().for_each(|unit| self.invalidate(unit)),
        }
        self.fetches.extend(sent.held_back);
        let goes_on = refused.as_ref().is_none_or(|(fault, _)| *fault == Fault::Rejected);
        let message = refused.map(|(_, message)| message);
        if goes_on && active.command == ParkedCommand::Retry(None) {
            active.upto = sent.root;
            active.refused = active.refused.or(message);
            self.decisions.active = Some(active);
        } else {
            self.end_decision(active, message);
        }
        self.pump();
        self.next_decision();
        self.run_ready();
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

    fn end_decision(&mut self, mut active: Active, mut message: Option<String>) {
        self.core.handle(self.now, Input::HoldParked { held: false });
        let left = self.decisions.known.len();
        if active.command == ParkedCommand::Retry(None) && (active.applied > 0 || message.is_none())
        {
            // Whoever asked for all is told what was done, whatever ended it, and why not all was.
            let ended = message.take();
            let refused = active.refused.take().or(ended);
            active.refused = refused.or_else(|| self.decisions.known.first_unreadable());
        }
        let answer = match (message, &active.command) {
            (Some(message), _) => Err(message),
            (None, ParkedCommand::Skip(_)) => Ok(json!({ "skipped": 1, "parked": left })),
            (None, _) => {
                let mut answer = json!({ "applied": active.applied, "parked": left });
                if let Some(refused) = active.refused {
                    answer["refused"] = refused.into();
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
            let known = self.decisions.known.remove(*lsn);
            if let Some(Ok(bytes)) = known.as_ref().map(|known| &known.bytes) {
                self.uncount_parked(bytes);
            }
            let mut units: Vec<UnitId> = known.iter().flat_map(|known| known.units.all()).collect();
            units.iter().for_each(|&unit| self.overlay.unpark(unit, *lsn));
            if *lsn == sent.root {
                units.extend(sent.edited.all());
            }
            gone.push((*lsn, super::dispatch::dedup(&units)));
            self.opaque.unpark(*lsn);
        }
        // Raw SQL that covers a table may have changed any row of it.
        let within = self.rows.units_of_tables(&sent.tables);
        let still = self.decisions.known.iter();
        let still = still.filter_map(|(lsn, known)| Some((lsn, known.bytes.as_deref().ok()?)));
        self.structural.unpark(&self.schema, still);
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
        let fetching = within.iter().copied().filter(|&unit| self.core.is_fetching(unit));
        self.decisions.refetch.extend(fetching);
        self.drop_copies(&within);
        for job in &sent.held_back {
            self.decisions.refetch.remove(&job.unit);
        }
        let tables: BTreeSet<TableId> = changed
            .iter()
            .map(|&unit| self.rows.get(unit).table)
            .chain(sent.tables.iter().copied())
            .collect();
        tables.iter().for_each(|&table| self.note_derived_foreign(table));
        if !tables.is_empty() {
            self.tell_unsure(&tables.into_iter().collect::<Vec<_>>());
        }
        self.wake_lease_waiters();
        self.set_off(&sent.reached);
    }

    /// Keeps a fetched row back, or has it fetched again, if a decision makes it doubtful.
    pub(super) fn hold_back(&mut self, job: FetchJob) -> Option<FetchJob> {
        if self.decisions.active.is_some() && !self.decisions.unsafe_installs {
            // A part of a large set is as doubtful as the set.
            let set = self.set_of_page(job.table, &job.key);
            let sent = self.decisions.active.as_mut().and_then(|active| active.sent.as_mut());
            let is_doubtful = |sent: &&mut Sent| {
                sent.concerns(&job) || set.is_some_and(|set| sent.units.contains(&set))
            };
            if let Some(sent) = sent.filter(is_doubtful) {
                sent.held_back.push(job);
                return None;
            }
        }
        if self.decisions.refetch.remove(&job.unit) {
            self.fetches.push_back(job);
            return None;
        }
        Some(job)
    }

    /// The words for an origin's refusal.
    fn told(&mut self, error: &OriginError) -> String {
        let word = match error.fault {
            Fault::Rejected => "REJECTED nothing was done:",
            Fault::Unavailable => "UNAVAILABLE nothing was done:",
            Fault::Denied => "DENIED nothing was done:",
            Fault::Fenced => {
                self.io.push(Io::Stop(StopReason::Fenced));
                "STOPPED"
            }
            Fault::Failed | Fault::JournalDamaged => "ERR",
        };
        format!("{word} {}", error.message)
    }

    fn answer_parked(&mut self, asker: Asker, answer: ParkedAnswer) {
        let request = match asker.0 {
            Who::Other(tell) => return tell(answer),
            Who::Client(request) => request,
        };
        let Some((client, Job::Parked)) = self.take_job(request.0) else { return };
        let Some(mut session) = self.sessions[client.0 as usize].take() else { return };
        match answer {
            Ok(value) => push_value(&mut Reply::new(&mut session.out, session.protocol), &value),
            Err(message) => self.fail(&mut session, &message),
        }
        self.sessions[client.0 as usize] = Some(session);
        self.runnable.push_back(client);
    }
}
