//! Writes: who owns the origin, and groups applied exactly once, one after the other.

use super::collections::check_write;
use super::connection::{Connection, Query};
use super::guard::{self, Guard, Ours};
use super::owner::{self, State};
use super::statements::{BYTES_MAX, Verb, id, statements};
use super::steps::{Effect, Step, steps};
use super::tombstones::Tombstones;
use super::types::{integer, key_cells};
use super::unpark;
use crate::change::Op;
use crate::contract::verdict::{self, fenced, missed};
use crate::contract::{
    ALL_DOMAINS, Applied, Claim, GroupRef, Mark, OriginError, Owner, ParkedGroup, WriteClaim,
    Writer, decided_of,
};
use crate::origins::ledger::unsigned;
use crate::schema::{Schema, Table};
use destage_core::{DomainId, Fault, Lsn};
use hashbrown::HashMap;
use mongodb::bson::{Document, doc};
use std::time::Instant;

pub(super) struct MongoWriter {
    connection: Connection,
    tombstones: Option<Tombstones>,
}

/// What a batch works with.
struct Batch<'a> {
    schema: &'a Schema,
    groups: &'a [GroupRef<'a>],
    ours: Ours,
}

/// A batch stopped: everything before the group of this index is in its documents.
struct Stopped {
    before: usize,
    error: OriginError,
}

/// What a step has to do, once its document was looked at.
enum Verdict<'a> {
    /// It is in the document already.
    Landed,
    Apply,
    /// Some of its groups are in the document already; this is the rest.
    Rest(Step<'a>),
    /// The document is not as the step needs it.
    Refused(String),
}

impl MongoWriter {
    pub(super) fn new(connection: Connection) -> Self {
        Self { connection, tombstones: None }
    }

    /// The state with the watermark of the claim's only domain, provided that the origin is ours.
    fn look(&mut self, claim: &WriteClaim<'_>) -> Result<(State, Option<Lsn>), OriginError> {
        let Some(state) = State::read(&mut self.connection)? else {
            let message = format!("{} has no owner: claim it first", self.connection.place());
            return Err(OriginError::new(Fault::Failed, message));
        };
        if state.epoch() != claim.epoch {
            return Err(fenced(self.connection.place(), claim.epoch, Some(state.epoch())));
        }
        owner::finish_parking(&mut self.connection, &state)?;
        let watermark = state.watermark(claim.only()?.domain);
        Ok((state, watermark))
    }

    /// Moves the watermark; if it is not where it was, the number up to which the groups had landed before.
    fn advance(
        &mut self,
        claim: &WriteClaim<'_>,
        mark: Mark,
        parked: Option<&ParkedGroup>,
        groups: &[GroupRef<'_>],
    ) -> Result<Lsn, OriginError> {
        let claim = WriteClaim { marks: &[mark], ..*claim };
        if owner::advance(&mut self.connection, &claim, mark, parked)? {
            return Ok(mark.upto);
        }
        let found = State::read(&mut self.connection)?;
        let found = found.and_then(|state| Some((state.watermark(mark.domain)?, state.epoch())));
        verdict::landed(self.connection.place(), &claim, |_| found, groups)
    }

    /// Applies steps up to the first that does not go.
    fn apply_steps<'a>(&mut self, batch: &Batch<'a>, steps: Vec<Step<'a>>) -> Result<u64, Stopped> {
        let mut written = 0;
        let mut rest = steps;
        let mut shown = Instant::now();
        while let Some(first) = rest.first() {
            let before = first.groups.start;
            if shown.elapsed() > self.connection.timeout() / PATIENCE {
                // It takes long: other processes must not take this one for dead.
                self.heartbeat(batch.ours.epoch).map_err(|error| Stopped { before, error })?;
                shown = Instant::now();
            }
            let later = rest.split_off(run_length(&rest));
            written += self.run(batch, rest)?;
            rest = later;
        }
        Ok(written)
    }

    /// Applies the steps of one command: looks at their documents, leaves out what has landed and sends the others, until
    /// none is left.
    fn run<'a>(&mut self, batch: &Batch<'a>, mut steps: Vec<Step<'a>>) -> Result<u64, Stopped> {
        let Some(first) = steps.first() else { return Ok(0) };
        if first.effect == Effect::Nothing {
            return Ok(0);
        }
        let table = batch.schema.table(first.table);
        let mut before = first.groups.start;
        let mut written = 0;
        let mut refusal: Option<Stopped> = None;
        let mut failed: Option<(Verb, OriginError)> = None;
        'looks: for _ in 0..LOOKS_MAX {
            let judged = self.judged(batch, table, steps, &mut refusal);
            steps = judged.map_err(|error| Stopped { before, error })?;
            let Some(first) = steps.first() else {
                return refusal.map_or(Ok(written), Err);
            };
            before = first.groups.start;
            if let Some((verb, error)) = failed.take()
                && Verb::of(&first.effect) == Some(verb)
            {
                // They were sent in order, and this is the first that is not there. One that is merged may have turned up
                // meanwhile, or be gone.
                return Err(Stopped { before, error });
            }
            let mut rest = &steps[..];
            while let Some(verb) = rest.first().and_then(|step| Verb::of(&step.effect)) {
                let is_alike = |step: &&Step<'_>| Verb::of(&step.effect) == Some(verb);
                let alike = &rest[..rest.iter().take_while(is_alike).count()];
                let sent = match self.send(batch, table, verb, alike) {
                    Ok((sent, met)) => {
                        written += met;
                        if met != sent as u64 && !batch.ours.ignored {
                            continue 'looks;
                        }
                        sent
                    }
                    Err(error) if error.fault == Fault::Rejected && !batch.ours.ignored => {
                        failed = Some((verb, error));
                        continue 'looks;
                    }
                    Err(error) => return Err(Stopped { before, error }),
                };
                rest = &rest[sent..];
            }
            return refusal.map_or(Ok(written), Err);
        }
        let message = format!(
            "documents of {} at {} keep changing under the writes to them",
            table.name,
            self.connection.place()
        );
        Err(Stopped { before, error: OriginError::new(Fault::Unavailable, message) })
    }

    /// Which of the steps are still to be applied, up to the first that cannot be.
    fn judged<'a>(
        &mut self,
        batch: &Batch<'a>,
        table: &Table,
        steps: Vec<Step<'a>>,
        refusal: &mut Option<Stopped>,
    ) -> Result<Vec<Step<'a>>, OriginError> {
        let documents = self.documents(table, &steps, batch.ours)?;
        let verb = steps.first().and_then(|step| Verb::of(&step.effect));
        let mut left = Vec::with_capacity(steps.len());
        for mut step in steps {
            let found = documents.get(step.key).copied();
            if let Effect::Merge { is_there, .. } = &mut step.effect {
                *is_there = found.is_some();
            }
            match self.judge(batch, table, &step, found)? {
                Verdict::Landed => {}
                Verdict::Apply => left.push(step),
                Verdict::Rest(rest) => left.push(rest),
                Verdict::Refused(message) => {
                    let error = OriginError::new(Fault::Rejected, message);
                    *refusal = Some(Stopped { before: step.groups.start, error });
                    break;
                }
            }
        }
        let has_landed = left.is_empty() && refusal.is_none();
        if let Some(verb) = verb.filter(|_| documents.is_empty() && !has_landed) {
            check_write(&mut self.connection, APPLY, &table.name, verb)?;
        }
        Ok(left)
    }

    fn judge<'a>(
        &self,
        batch: &Batch<'a>,
        table: &Table,
        step: &Step<'a>,
        found: Option<Guard>,
    ) -> Result<Verdict<'a>, OriginError> {
        let tombstones = self.tombstones.as_ref().filter(|_| !batch.ours.ignored);
        let deleted = tombstones.and_then(|known| known.get(step.table, step.key));
        let op = match step.effect {
            Effect::Nothing => return Ok(Verdict::Landed),
            Effect::Insert(_) | Effect::Merge { .. } => Op::Insert,
            Effect::Delete => Op::Delete,
            Effect::Update(_) | Effect::Replace(_) => Op::Update,
        };
        let place = self.connection.place();
        Ok(match (found, op) {
            (Some(Guard::Fenced(epoch)), _) => {
                return Err(fenced(place, batch.ours.epoch, Some(epoch)));
            }
            (Some(Guard::Upto(lsn)), _) if lsn >= step.last => Verdict::Landed,
            (Some(Guard::Upto(lsn)), _) if lsn >= step.first => {
                Verdict::Rest(rest(batch, step, lsn)?)
            }
            (None, _) if deleted.is_some_and(|lsn| lsn >= step.last) => Verdict::Landed,
            (Some(_), Op::Insert) if !table.merges_new => Verdict::Refused(format!(
                "an insert into {} at {place} met a document with the same _id",
                table.name
            )),
            (None, Op::Update | Op::Delete | Op::End) => {
                let missed = missed(Some((table, op)), 1, 0);
                Verdict::Refused(format!("failed to {APPLY} at {place}: {missed}"))
            }
            (Some(_), _) | (None, Op::Insert) => Verdict::Apply,
        })
    }

    /// What the documents of steps have seen; those that do not exist are left out.
    fn documents(
        &mut self,
        table: &Table,
        steps: &[Step<'_>],
        ours: Ours,
    ) -> Result<HashMap<Box<[u8]>, Guard>, OriginError> {
        let ids = steps.iter().map(|step| id(table, step.key)).collect::<Result<Vec<_>, _>>()?;
        let query = Query {
            filter: doc! { "_id": { "$in": ids } },
            projection: Some(doc! { guard::FIELD: 1 }),
            ..Query::default()
        };
        let what = format!("look at documents of {}", table.name);
        let found = self.connection.find(&what, &table.name, query)?;
        let guards = found.iter().filter_map(|document| {
            let key = key_cells(&table.columns[0], document.get("_id")?)?;
            Some((key, ours.read(document.get(guard::FIELD))))
        });
        Ok(guards.collect())
    }

    /// Sends as many of the steps as one command holds; how many these are, and how many documents they met.
    fn send(
        &mut self,
        batch: &Batch<'_>,
        table: &Table,
        verb: Verb,
        steps: &[Step<'_>],
    ) -> Result<(usize, u64), OriginError> {
        let what = format!("apply a batch to {}", table.name);
        let statements = statements(table, steps, batch.ours)?;
        let steps = &steps[..statements.len()];
        if let (Verb::Delete, Some(tombstones)) = (verb, self.tombstones.as_mut()) {
            let mut deleted = Vec::with_capacity(steps.len());
            for step in steps {
                deleted.push((step.key, id(table, step.key)?, step.last));
            }
            let schema = batch.schema;
            tombstones.write(&mut self.connection, schema, batch.ours, table.id, &deleted)?;
        }
        let command = verb.command(&table.name, statements, self.connection.timeout());
        let reply = self.connection.command(&what, command)?;
        if verb == Verb::Insert {
            self.connection.collections().note(&table.name);
        }
        let met = documents_met(&what, self.connection.place(), &reply)?;
        Ok((steps.len(), met))
    }
}

impl Writer for MongoWriter {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        match State::read(&mut self.connection)? {
            None => Ok(None),
            Some(state) => state.owner(&mut self.connection).map(Some),
        }
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        if owner::claim(&mut self.connection, claim)? {
            Ok(())
        } else {
            Err(verdict::outrun(self.connection.place()))
        }
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let (state, watermark) = self.look(claim)?;
        let mut mark = claim.only()?;
        let mut groups = groups;
        if watermark != Some(mark.expected) && !claim.unsafe_no_watermark {
            let found = watermark.map(|watermark| (watermark, state.epoch()));
            mark.expected = verdict::landed(self.connection.place(), claim, |_| found, groups)?;
            groups = &groups[groups.partition_point(|group| group.lsn <= mark.expected)..];
        }
        let Some(last) = groups.last() else { return Ok(Applied::default()) };
        let ours = Ours { ignored: claim.unsafe_no_watermark, ..state.ours() };
        if self.tombstones.is_none() {
            let passed = passed(&state.watermarks(), mark.domain, mark.expected);
            self.tombstones = Some(Tombstones::load(&mut self.connection, schema, ours, passed)?);
        }
        let steps = steps(schema, groups)?;
        let batch = Batch { schema, groups, ours };
        let rows = match self.apply_steps(&batch, steps) {
            Ok(rows) => rows,
            Err(Stopped { before, error }) => {
                if error.fault == Fault::Rejected && before > 0 {
                    // What is before it is decided, and need not be looked at again.
                    let mark = Mark { upto: groups[before - 1].lsn, ..mark };
                    self.advance(claim, mark, None, groups)?;
                }
                return Err(error);
            }
        };
        self.advance(claim, Mark { upto: last.lsn, ..mark }, None, groups)?;
        if let Some(tombstones) = &mut self.tombstones {
            let passed = passed(&state.watermarks(), mark.domain, last.lsn);
            tombstones.forget(&mut self.connection, passed)?;
        }
        Ok(Applied { changes: groups.len() as u64, rows, kept: 0 })
    }

    fn park(
        &mut self,
        claim: &WriteClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        let mark = claim.only()?;
        let groups = [GroupRef { lsn: mark.upto, bytes: &[] }];
        let (state, watermark) = self.look(claim)?;
        if watermark != Some(mark.expected) && !claim.unsafe_no_watermark {
            let found = watermark.map(|watermark| (watermark, state.epoch()));
            return verdict::landed(self.connection.place(), claim, |_| found, &groups).map(drop);
        }
        self.advance(claim, mark, parked, &groups).map_err(verdict::not_parked)?;
        match State::read(&mut self.connection)? {
            Some(state) => owner::finish_parking(&mut self.connection, &state),
            None => Ok(()),
        }
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim<'_>,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        let mark = claim.only()?;
        if owner::mark_all(&mut self.connection, claim, mark, floors)? {
            return Ok(());
        }
        let (state, watermark) = self.look(claim)?;
        let found = watermark.map(|watermark| (watermark, state.epoch()));
        verdict::check_floors(self.connection.place(), &state.watermarks(), floors)?;
        let groups = [GroupRef { lsn: mark.upto, bytes: &[] }];
        verdict::landed(self.connection.place(), claim, |_| found, &groups).map(drop)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Vec<(DomainId, Lsn)>, OriginError> {
        if !owner::show(&mut self.connection, epoch)? {
            return Err(owner::not_ours(&mut self.connection, epoch));
        }
        let state = State::read(&mut self.connection)?;
        Ok(state.map(|state| state.watermarks()).unwrap_or_default())
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        if owner::release(&mut self.connection, epoch)? {
            Ok(())
        } else {
            Err(owner::not_ours(&mut self.connection, epoch))
        }
    }

    fn parked(&mut self, bytes_max: u64) -> Result<Vec<ParkedGroup>, OriginError> {
        owner::parked(&mut self.connection, bytes_max)
    }

    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let (state, _) = self.look(claim)?;
        unpark::unpark(&mut self.connection, schema, state.ours(), parked, groups)
    }

    fn settle_unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<bool, OriginError> {
        // What was sent may come later still, so it is sent again: whichever is the first counts.
        match self.unpark(schema, claim, parked, groups) {
            Ok(_) => Ok(true),
            Err(error) if error.fault == Fault::Rejected => {
                let left = owner::parked(&mut self.connection, u64::MAX)?;
                Ok(!left.iter().any(|group| parked.contains(&group.lsn)))
            }
            Err(error) => Err(error),
        }
    }
}

/// Up to where the watermarks of all domains have passed, with that of `domain` at `upto`.
fn passed(watermarks: &[(DomainId, Lsn)], domain: DomainId, upto: Lsn) -> Lsn {
    let others = watermarks.iter().filter(|(d, _)| *d != domain && *d != ALL_DOMAINS);
    others.map(|(d, _)| decided_of(watermarks, *d)).fold(upto, Lsn::min)
}

/// How many of the first steps are looked at together, and go into one command if they fit.
fn run_length(steps: &[Step<'_>]) -> usize {
    let Some(first) = steps.first() else { return 0 };
    let verb = Verb::of(&first.effect);
    let mut bytes = 0;
    let mut count = 0;
    for step in steps {
        bytes += size(step);
        let is_alike = step.table == first.table && Verb::of(&step.effect) == verb;
        if !is_alike || count == STATEMENTS_MAX || (bytes > BYTES_MAX && count > 0) {
            break;
        }
        count += 1;
    }
    count
}

/// About how many bytes a step's statement takes; of JSON it may be several times as many as BSON.
fn size(step: &Step<'_>) -> usize {
    use super::steps::Value;
    let fields = match &step.effect {
        Effect::Insert(fields)
        | Effect::Merge { fields, .. }
        | Effect::Update(fields)
        | Effect::Replace(fields) => &fields[..],
        Effect::Delete | Effect::Nothing => &[],
    };
    let value = |value: &Value<'_>| match value {
        Value::Null => 0,
        Value::To(bytes) | Value::By(bytes) => bytes.len(),
    };
    let fields: usize = fields.iter().map(|field| value(&field.value) + FIELD_BYTES).sum();
    STATEMENT_BYTES + step.key.len() + fields
}

/// A step without those of its groups that are in the document.
fn rest<'a>(batch: &Batch<'a>, step: &Step<'a>, landed: Lsn) -> Result<Step<'a>, OriginError> {
    let groups = &batch.groups[step.groups.clone()];
    let skipped = groups.partition_point(|group| group.lsn <= landed);
    let mut left = steps(batch.schema, &groups[skipped..])?;
    match (left.pop(), left.is_empty()) {
        (Some(mut only), true) => {
            only.groups = step.groups.start + skipped..step.groups.end;
            Ok(only)
        }
        _ => Err(OriginError::new(Fault::Failed, "a step does not come apart as it was made")),
    }
}

/// How many documents a command met, if it did everything it was told.
///
/// # Errors
/// The first of its statements that failed.
pub(super) fn documents_met(what: &str, place: &str, reply: &Document) -> Result<u64, OriginError> {
    let errors = reply.get_array("writeErrors").ok().and_then(|errors| errors.first());
    if let Some(error) = errors.and_then(|error| error.as_document()) {
        return Err(super::error::command_failed(what, place, error));
    }
    let met = reply.get("n").and_then(integer).unwrap_or(0);
    Ok(unsigned(met))
}

const APPLY: &str = "apply a batch";
/// Statements in one command. FerretDB keeps a connection to its SQLite file for each update until the whole command ends,
/// and waits for ever for one more than its hundred; others need some meanwhile.
const STATEMENTS_MAX: usize = 32;
/// What a statement takes besides its key and values.
const STATEMENT_BYTES: usize = 400;
/// What a field takes besides its value; names are short.
const FIELD_BYTES: usize = 64;
/// Looks at the documents of a command before giving up: whatever else writes to them, it cannot be this busy.
pub(super) const LOOKS_MAX: usize = 8;
/// The part of the time for an operation in which nothing of us need be seen.
const PATIENCE: u32 = 4;
