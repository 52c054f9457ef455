//! DESTAGE PARKED: what is decided on groups that the origin rejected. They are applied after all, as they are or edited, or
//! given up.
//!
//! One decision at a time, in one transaction at the origin. A group takes along those parked behind it, in order; what
//! builds on another parked group as well stays. Until the decision is known,
//! - no group is parked behind those that may leave ([`Input::HoldParked`]);
//! - their rows are served from the cache, which shows them changed either way, and none of them is installed from a
//!   fetch, since nobody knows on which side of the transaction it looked.
//!
//! Afterwards the rows are fetched again, with the undecided changes overlaid.

use super::session::{Job, Session, Waiting};
use super::{Engine, FetchJob, Groups, Io, overlay};
use crate::origins::{Applied, OriginError, ParkedGroup};
use crate::resp::Reply;
use crate::schema::TableId;
use destage_core::{ClientId, Fault, Input, Lsn, RequestId, StopReason, UnitId};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

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
    known: BTreeMap<Lsn, Known>,
    lists: HashMap<u64, (ParkedCommand, Asker)>,
    waiting: VecDeque<(ParkedCommand, Asker)>,
    active: Option<Active>,
    /// Units whose fetch under way may have looked at the origin before a decision.
    refetch: BTreeSet<UnitId>,
    next_list: u64,
}

/// A parked group: its units, and its changes or why they cannot be read.
#[derive(Debug)]
struct Known {
    units: Vec<UnitId>,
    bytes: Result<Arc<[u8]>, String>,
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
    /// Units that it changes in the place of what was parked.
    edited: Vec<UnitId>,
    units: HashSet<UnitId>,
    held_back: Vec<FetchJob>,
}

impl ParkedCommand {
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
    /// A group is parked.
    pub(super) fn know(&mut self, lsn: Lsn, units: Vec<UnitId>, bytes: Result<Arc<[u8]>, String>) {
        self.known.insert(lsn, Known { units, bytes });
    }

    /// A fetch brought nothing, which is not out of date.
    pub(super) fn fetch_failed(&mut self, unit: UnitId) {
        self.refetch.remove(&unit);
    }

    /// Whether a group may leave before the others.
    fn check(&self, root: Lsn, edited: &[UnitId]) -> Result<&Known, String> {
        let known = self
            .known
            .get(&root)
            .ok_or_else(|| format!("ERR write {} is not parked; see PARKED LIST", root.0))?;
        let shares =
            |other: &Known| known.units.iter().chain(edited).any(|unit| other.units.contains(unit));
        match self.known.range(..root).rev().find(|(_, other)| shares(other)) {
            Some((before, _)) => Err(format!(
                "ERR write {} builds on the rejected write {}: decide on that one first",
                root.0, before.0
            )),
            None => Ok(known),
        }
    }

    /// A group and all that can follow it: what shares a unit with them and with nothing that stays.
    fn with_followers(&self, root: Lsn, edited: &[UnitId]) -> (Vec<Lsn>, HashSet<UnitId>) {
        let mut leaving: HashSet<UnitId> = edited.iter().copied().collect();
        let mut staying: HashSet<UnitId> = HashSet::new();
        let mut lsns = Vec::new();
        for (&lsn, known) in &self.known {
            let follows = known.units.iter().any(|unit| leaving.contains(unit));
            let is_bound = known.units.iter().any(|unit| staying.contains(unit));
            if lsn == root || (lsn > root && follows && !is_bound) {
                lsns.push(lsn);
                leaving.extend(&known.units);
            } else {
                staying.extend(&known.units);
            }
        }
        (lsns, leaving)
    }

    /// Of all, the next one that may leave.
    fn next_of_all(&self, upto: Lsn) -> Option<Lsn> {
        let may_leave = |lsn: &Lsn| self.check(*lsn, &[]).is_ok_and(|known| known.bytes.is_ok());
        self.known.range(upto.next()..).map(|(&lsn, _)| lsn).find(may_leave)
    }
}

impl Engine {
    /// Takes a group that is parked at the origin.
    pub fn recover_parked(&mut self, lsn: Lsn, bytes: &[u8]) {
        let units = self.units_of(bytes);
        self.count_parked(bytes);
        let shared: Arc<[u8]> = bytes.into();
        for &unit in &units {
            self.overlay.park(unit, lsn, &shared);
        }
        self.structural.park(&self.schema, bytes);
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &units });
        self.decisions.know(lsn, units, Ok(shared));
    }

    /// Takes a group that is parked at the origin and cannot be read any more. Readers do not see it.
    pub fn recover_unreadable(&mut self, lsn: Lsn, why: String) {
        self.core.handle(self.now, Input::RecoveredParked { lsn, units: &[] });
        self.decisions.know(lsn, Vec::new(), Err(why));
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
            self.decisions.active = Some(active);
            return;
        }
        self.send_decision(active);
    }

    /// Sends the decision's next transaction, or ends it.
    fn send_decision(&mut self, mut active: Active) {
        let root = match active.command {
            ParkedCommand::Retry(None) => match self.decisions.next_of_all(active.upto) {
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
        if !self.schema.collections.is_empty() {
            return Err(
                "ERR with sets in the settings file, parked writes are not decided on yet: \
                        start without them to do so"
                    .into(),
            );
        }
        let mut groups = Groups::default();
        let held_back = Vec::new();
        if let ParkedCommand::Skip(_) = command {
            let known =
                self.decisions.known.get(&root).ok_or_else(|| {
                    format!("ERR write {} is not parked; see PARKED LIST", root.0)
                })?;
            let units = known.units.iter().copied().collect();
            return Ok((
                Sent { root, lsns: vec![root], edited: Vec::new(), units, held_back },
                groups,
            ));
        }
        let changed = match command {
            ParkedCommand::Edit(_, changes) => Some(
                crate::parked::decode(&self.schema, changes)
                    .map_err(|error| format!("ERR {error}"))?,
            ),
            _ => None,
        };
        // Not before it is certain that it goes on: units are made for rows that nobody has asked for.
        self.decisions.check(root, &[])?;
        let edited = changed.as_deref().map(|bytes| self.units_of(bytes)).unwrap_or_default();
        self.decisions.check(root, &edited)?;
        let (lsns, units) = self.decisions.with_followers(root, &edited);
        for &lsn in &lsns {
            let bytes = match &changed {
                Some(bytes) if lsn == root => bytes,
                _ => match &self.decisions.known[&lsn].bytes {
                    Ok(bytes) => &bytes[..],
                    Err(why) => {
                        return Err(format!("ERR {why}; EDIT write {} or SKIP it", lsn.0));
                    }
                },
            };
            groups.push(lsn, bytes);
        }
        Ok((Sent { root, lsns, edited, units, held_back }, groups))
    }

    /// The transaction took effect, or nothing of it did.
    pub fn unparked(&mut self, now: destage_core::Time, result: Result<Applied, OriginError>) {
        self.now = self.now.max(now);
        let mut active = self.decisions.active.take().expect("one decision is under way");
        let sent = active.sent.take().expect("its transaction has ended");
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
                self.let_go(&sent);
            }
            // Units that were made for it alone are dropped again.
            Some(_) => sent.edited.iter().for_each(|&unit| self.invalidate(unit)),
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

    fn end_decision(&mut self, active: Active, message: Option<String>) {
        self.core.handle(self.now, Input::HoldParked { held: false });
        let left = self.decisions.known.len();
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
            tracing::info!(command = ?active.command, %answer, "decided on parked writes");
        }
        self.answer_parked(active.asker, answer);
        self.pump();
    }

    /// Groups are parked no more: forgets them, and whatever shows them.
    fn let_go(&mut self, sent: &Sent) {
        let mut gone = Vec::new();
        for lsn in &sent.lsns {
            let known = self.decisions.known.remove(lsn);
            if let Some(Ok(bytes)) = known.as_ref().map(|known| &known.bytes) {
                self.uncount_parked(bytes);
            }
            let mut units = known.map(|known| known.units).unwrap_or_default();
            units.iter().for_each(|&unit| self.overlay.unpark(unit, *lsn));
            if *lsn == sent.root {
                units.extend(&sent.edited);
            }
            gone.push((*lsn, super::dispatch::dedup(&units)));
        }
        let still = self.decisions.known.values().filter_map(|known| known.bytes.as_deref().ok());
        self.structural.unpark(&self.schema, still);
        let (schema, rows) = (&self.schema, &self.rows);
        self.overlay.chain_again(&sent.units, |bytes| {
            let changes = overlay::changes(schema, bytes);
            changes.filter_map(|change| rows.find(change.table, change.key)).collect()
        });
        for (lsn, units) in gone {
            let changed: Vec<(UnitId, u32)> = units.iter().map(|&unit| (unit, 0)).collect();
            self.note_changes(&changed);
            self.core.handle(self.now, Input::Unparked { lsn, units: &units });
            for unit in units {
                if self.core.is_fetching(unit) {
                    self.decisions.refetch.insert(unit);
                }
                self.rows.unload(unit);
            }
        }
        for job in &sent.held_back {
            self.decisions.refetch.remove(&job.unit);
        }
        let tables: BTreeSet<TableId> =
            sent.units.iter().map(|&unit| self.rows.get(unit).table).collect();
        tables.iter().for_each(|&table| self.note_derived_foreign(table));
        if !tables.is_empty() {
            self.tell_unsure(&tables.into_iter().collect::<Vec<_>>());
        }
        self.wake_lease_waiters();
    }

    /// Keeps a fetched row back, or has it fetched again, if a decision makes it doubtful.
    pub(super) fn hold_back(&mut self, job: FetchJob) -> Option<FetchJob> {
        let sent = self.decisions.active.as_mut().and_then(|active| active.sent.as_mut());
        if let Some(sent) = sent
            && sent.units.contains(&job.unit)
        {
            sent.held_back.push(job);
            return None;
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

/// The group that another one is parked behind, if that still is there.
fn builds_on(groups: &[ParkedGroup], group: &ParkedGroup) -> Option<u64> {
    let lsn = group.depends_on?;
    groups.iter().any(|other| other.lsn == lsn).then_some(lsn.0)
}

fn in_short(groups: &[ParkedGroup], group: &ParkedGroup) -> Value {
    let payload: Value = serde_json::from_str(&group.payload).unwrap_or_default();
    let changes = payload["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let tables: BTreeSet<&str> =
        changes.iter().filter_map(|change| change["table"].as_str()).collect();
    json!({
        "id": group.lsn.0,
        "builds_on": builds_on(groups, group),
        "tables": tables,
        "reason": group.reason,
    })
}

fn shown(groups: &[ParkedGroup], lsn: Lsn) -> ParkedAnswer {
    let group = groups
        .iter()
        .find(|group| group.lsn == lsn)
        .ok_or_else(|| format!("ERR write {} is not parked; see PARKED LIST", lsn.0))?;
    let payload = serde_json::from_str(&group.payload);
    Ok(json!({
        "id": group.lsn.0,
        "domain": group.domain.0,
        "builds_on": builds_on(groups, group),
        "reason": group.reason,
        "payload": payload.unwrap_or_else(|_| Value::String(group.payload.clone())),
    }))
}

/// An answer for Redis clients: lists and their maps as such; a map inside a map as the JSON text that EDIT takes.
fn push_value(reply: &mut Reply<'_>, value: &Value) {
    match value {
        Value::Array(values) => {
            reply.array(values.len());
            values.iter().for_each(|value| push_value(reply, value));
        }
        Value::Object(fields) => {
            reply.map(fields.len());
            for (name, value) in fields {
                reply.bulk(name.as_bytes());
                match value {
                    Value::Object(_) => reply.bulk(value.to_string().as_bytes()),
                    _ => push_value(reply, value),
                }
            }
        }
        Value::String(text) => reply.bulk(text.as_bytes()),
        Value::Null => reply.null(),
        Value::Bool(_) | Value::Number(_) => match value.as_i64() {
            Some(number) => reply.integer(number),
            None => reply.bulk(value.to_string().as_bytes()),
        },
    }
}
