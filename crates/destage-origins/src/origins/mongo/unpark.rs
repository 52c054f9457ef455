//! Decisions on parked groups: applied after all, or given up.
//!
//! All groups of one decision change the same document, so they become one update of it, whose guard also holds the number
//! of the first of them: `_destage: { epoch, seq, unparked }`. Whoever sends it again finds that number and changes nothing;
//! nothing else of ours writes to the document meanwhile, since its later groups wait. Only then are the groups taken out of
//! the parked ones. In between they are named in the owner's document, so that a start after a crash finds out which of the
//! two holds:
//!
//! ```text
//! unparking: { seqs: [ .. ], c: collection, k: _id, first, since }
//! ```
//!
//! Numbers of ordinary groups cannot tell that: while a parked group could not be read, later ones may have passed it.

use super::collections::check_write;
use super::connection::{Connection, Query};
use super::guard::{self, Guard, Ours};
use super::owner::{self, State};
use super::statements::{Verb, bytes_of, durable, guarded, id};
use super::steps::{Effect, Step, steps};
use super::tombstones;
use super::types::integer;
use super::writer::{LOOKS_MAX, documents_met};
use crate::contract::verdict::{fenced, missed};
use crate::contract::{Applied, GroupRef, OriginError};
use crate::origins::ledger::{signed, unsigned};
use crate::schema::{Schema, Table};
use destage_core::{Fault, Lsn};
use mongodb::bson::{Bson, Document, doc};

const WHAT: &str = "take back parked groups";
/// The field of a guard that names the first group of a decision.
const UNPARKED: &str = "unparked";

/// The document of a decision.
struct Target<'a> {
    collection: &'a str,
    id: Bson,
    /// The first of the groups that are decided on.
    first: Lsn,
}

/// What is found of it.
struct Found {
    /// Its field `_destage`; `None` if it does not exist.
    guard: Option<Option<Document>>,
    is_landed: bool,
}

/// See [`crate::contract::Writer::unpark`].
pub(super) fn unpark(
    connection: &mut Connection,
    schema: &Schema,
    ours: Ours,
    parked: &[Lsn],
    groups: &[GroupRef<'_>],
) -> Result<Applied, OriginError> {
    let Some(&first) = parked.first() else { return Ok(Applied::default()) };
    let listed = owner::parked(connection, u64::MAX)?;
    let there = parked.iter().filter(|lsn| listed.iter().any(|group| group.lsn == **lsn)).count();
    let bytes: Vec<u8> = groups.iter().flat_map(|group| group.bytes).copied().collect();
    let last = groups.last().map_or(first, |group| group.lsn);
    let all = [GroupRef { lsn: last, bytes: &bytes }];
    let step = one_step(schema, &all)?;
    if let Some(mut step) = step.filter(|step| step.effect != Effect::Nothing) {
        let table = schema.table(step.table);
        let target = Target { collection: &table.name, id: id(table, step.key)?, first };
        let found = look(connection, ours, &target)?;
        if !found.is_landed {
            are_there(parked, there)?;
            if let Some(verb) = Verb::of(&step.effect).filter(|_| found.guard.is_none()) {
                check_write(connection, WHAT, &table.name, verb)?;
            }
            begin(connection, ours, &target, parked)?;
            if let Err(error) = apply(connection, ours, table, &target, &mut step) {
                if error.fault == Fault::Rejected {
                    end(connection, ours.epoch)?;
                }
                return Err(error);
            }
        }
    } else {
        if groups.is_empty() && there == 0 {
            // Who has deleted them by hand has left their pieces, perhaps.
            take(connection, parked)?;
        }
        are_there(parked, there)?;
    }
    take(connection, parked)?;
    end(connection, ours.epoch)?;
    Ok(Applied { changes: groups.len() as u64, rows: u64::from(!groups.is_empty()), kept: 0 })
}

/// Brings a decision to an end that a crash has cut short: done if its document tells so, or else it never was.
pub(super) fn recover(connection: &mut Connection, state: &State) -> Result<(), OriginError> {
    let Some(unparking) = state.unparking().cloned() else { return Ok(()) };
    let number = |name| unparking.get(name).and_then(integer).map_or(0, unsigned);
    let target = Target {
        collection: unparking.get_str("c").unwrap_or_default(),
        id: unparking.get("k").cloned().unwrap_or(Bson::Null),
        first: Lsn(number("first")),
    };
    let seqs = unparking.get_array("seqs").map(Vec::as_slice).unwrap_or_default();
    let parked: Vec<Lsn> = seqs.iter().filter_map(integer).map(|seq| Lsn(unsigned(seq))).collect();
    // The guards of whoever began it count, whose journal that ever was.
    let theirs = Ours { epoch: state.epoch(), since: number("since"), ignored: false };
    if look(connection, theirs, &target)?.is_landed || shut_out(connection, state.ours(), &target)?
    {
        take(connection, &parked)?;
    }
    end(connection, state.epoch())
}

/// The groups as one step.
fn one_step<'a>(
    schema: &Schema,
    groups: &'a [GroupRef<'a>],
) -> Result<Option<Step<'a>>, OriginError> {
    let mut steps = steps(schema, groups).map_err(|error| {
        let message = format!(
            "{}; what is decided on has to become one change of one document: decide on the writes one by one, SKIP the \
             last ones first",
            error.message
        );
        OriginError::new(Fault::Rejected, message)
    })?;
    Ok(steps.pop())
}

fn are_there(parked: &[Lsn], there: usize) -> Result<(), OriginError> {
    if there == parked.len() {
        return Ok(());
    }
    let message = missed(None, parked.len() as u64, there as u64);
    Err(OriginError::new(Fault::Rejected, format!("failed to {WHAT}: {message}")))
}

/// What the document, or what is left of it, says.
fn look(
    connection: &mut Connection,
    ours: Ours,
    target: &Target<'_>,
) -> Result<Found, OriginError> {
    let mut one = |collection: &str, id: Bson| -> Result<Option<Document>, OriginError> {
        let query = Query { filter: doc! { "_id": id }, limit: 1, ..Query::default() };
        Ok(connection.find(WHAT, collection, query)?.into_iter().next())
    };
    let tells = |guard: &Document| {
        let is_meant = guard.get(UNPARKED).and_then(integer) == Some(signed(target.first.0));
        is_meant && matches!(ours.read(Some(&Bson::Document(guard.clone()))), Guard::Upto(_))
    };
    if let Some(document) = one(target.collection, target.id.clone())? {
        let field = document.get(guard::FIELD);
        if let Guard::Fenced(epoch) = ours.read(field) {
            return Err(fenced(connection.place(), ours.epoch, Some(epoch)));
        }
        let guard = field.and_then(Bson::as_document).cloned();
        let is_landed = guard.as_ref().is_some_and(tells);
        return Ok(Found { guard: Some(guard), is_landed });
    }
    let deleted = one(tombstones::COLLECTION, tombstone(target))?;
    Ok(Found { guard: None, is_landed: deleted.as_ref().is_some_and(tells) })
}

fn tombstone(target: &Target<'_>) -> Bson {
    Bson::Document(doc! { "c": target.collection, "k": target.id.clone() })
}

/// Changes the document, whoever else may have sent the same.
fn apply(
    connection: &mut Connection,
    ours: Ours,
    table: &Table,
    target: &Target<'_>,
    step: &mut Step<'_>,
) -> Result<(), OriginError> {
    let mut failed: Option<(Verb, OriginError)> = None;
    for _ in 0..LOOKS_MAX {
        let found = look(connection, ours, target)?;
        if found.is_landed {
            return Ok(());
        }
        if let Effect::Merge { is_there, .. } = &mut step.effect {
            *is_there = found.guard.is_some();
        }
        let Some(verb) = Verb::of(&step.effect) else { return Ok(()) };
        if let Some((sent, error)) = failed.take()
            && sent == verb
        {
            return Err(error);
        }
        let place = connection.place();
        let refusal = match (&found.guard, verb) {
            (Some(_), Verb::Insert) => Some(format!(
                "an insert into {} at {place} met a document with the same _id",
                table.name
            )),
            (None, Verb::Update | Verb::Delete) => {
                Some(format!("failed to {WHAT} at {place}: the document is not in {}", table.name))
            }
            _ => None,
        };
        if let Some(message) = refusal {
            return Err(OriginError::new(Fault::Rejected, message));
        }
        let before = found.guard.flatten();
        let guard = decided(ours, before.as_ref(), target.first, step.last);
        if verb == Verb::Delete {
            bury(connection, target, &guard)?;
        }
        let filter = as_found(target, before);
        let statement = guarded(table, &target.id, &step.effect, filter, guard)?;
        bytes_of(table, &statement)?;
        let command = verb.command(target.collection, vec![statement], connection.timeout());
        let reply = connection.command(WHAT, command);
        match reply.and_then(|reply| documents_met(WHAT, connection.place(), &reply)) {
            Ok(1) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.fault == Fault::Rejected => failed = Some((verb, error)),
            Err(error) => return Err(error),
        }
    }
    let message = format!("a document of {} keeps changing under the write to it", table.name);
    Err(OriginError::new(Fault::Unavailable, message))
}

/// The document as it was found.
fn as_found(target: &Target<'_>, guard: Option<Document>) -> Document {
    let mut filter = doc! { "_id": target.id.clone() };
    filter.insert(guard::FIELD, guard.map_or_else(|| doc! { "$exists": false }.into(), Bson::from));
    filter
}

/// The guard that says that the decision is in the document, and every later group that was in it before.
fn decided(ours: Ours, before: Option<&Document>, first: Lsn, last: Lsn) -> Document {
    let seen = match ours.read(before.cloned().map(Bson::Document).as_ref()) {
        Guard::Upto(lsn) => lsn.max(last),
        Guard::None | Guard::Fenced(_) => last,
    };
    let mut guard = ours.written(seen);
    guard.insert(UNPARKED, signed(first.0));
    guard
}

/// Leaves word of a document that is about to go.
fn bury(
    connection: &mut Connection,
    target: &Target<'_>,
    guard: &Document,
) -> Result<(), OriginError> {
    let upsert =
        doc! { "q": { "_id": tombstone(target) }, "u": { "$set": guard.clone() }, "upsert": true };
    let command = Verb::Update.command(tombstones::COLLECTION, vec![upsert], connection.timeout());
    let reply = connection.command(WHAT, command)?;
    documents_met(WHAT, connection.place(), &reply).map(drop)
}

/// Keeps what a process before us may have sent from its document, if there is one; whether it had got there all the same.
fn shut_out(
    connection: &mut Connection,
    ours: Ours,
    target: &Target<'_>,
) -> Result<bool, OriginError> {
    for _ in 0..LOOKS_MAX {
        let found = look(connection, ours, target)?;
        let Some(before) = found.guard.filter(|_| !found.is_landed) else {
            return Ok(found.is_landed);
        };
        let seen = match ours.read(before.clone().map(Bson::Document).as_ref()) {
            Guard::Upto(lsn) => lsn,
            Guard::None | Guard::Fenced(_) => Lsn::ZERO,
        };
        let set = doc! { "$set": { guard::FIELD: ours.written(seen) } };
        let statement = doc! { "q": as_found(target, before), "u": set };
        let command =
            Verb::Update.command(target.collection, vec![statement], connection.timeout());
        let reply = connection.command(WHAT, command)?;
        if documents_met(WHAT, connection.place(), &reply)? == 1 {
            return Ok(false);
        }
    }
    let message = format!("a document of {} keeps changing", target.collection);
    Err(OriginError::new(Fault::Unavailable, message))
}

/// Notes what is about to be done.
fn begin(
    connection: &mut Connection,
    ours: Ours,
    target: &Target<'_>,
    parked: &[Lsn],
) -> Result<(), OriginError> {
    let unparking = doc! {
        "seqs": parked.iter().map(|lsn| signed(lsn.0)).collect::<Vec<i64>>(),
        "c": target.collection,
        "k": target.id.clone(),
        "first": signed(target.first.0),
        "since": signed(ours.since),
    };
    let filter = doc! { "epoch": signed(ours.epoch) };
    if owner::change(connection, WHAT, filter, doc! { "unparking": unparking }, false)? {
        Ok(())
    } else {
        Err(owner::not_ours(connection, ours.epoch))
    }
}

/// It is done, or will not be.
fn end(connection: &mut Connection, epoch: u64) -> Result<(), OriginError> {
    let mut command = doc! {
        "update": owner::COLLECTION,
        "updates": [{ "q": { "epoch": signed(epoch) }, "u": { "$unset": { "unparking": "" } } }],
    };
    command.extend(durable(connection.timeout()));
    let reply = connection.command(WHAT, command)?;
    documents_met(WHAT, connection.place(), &reply).map(drop)
}

/// Takes groups out of the parked ones, as far as they are there. Their pieces go last: no group is ever without them.
fn take(connection: &mut Connection, parked: &[Lsn]) -> Result<(), OriginError> {
    let mut command = taking(parked);
    command.extend(durable(connection.timeout()));
    let reply = connection.command(WHAT, command)?;
    documents_met(WHAT, connection.place(), &reply).map(drop)
}

fn taking(parked: &[Lsn]) -> Document {
    let seqs: Vec<i64> = parked.iter().map(|lsn| signed(lsn.0)).collect();
    let all = doc! { "_id.seq": { "$in": seqs } };
    let mut firsts = all.clone();
    firsts.insert("_id.domain", doc! { "$gte": 0 });
    doc! {
        "delete": owner::PARKED,
        "deletes": [{ "q": firsts, "limit": 0 }, { "q": all, "limit": 0 }],
        "ordered": true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_goes_before_its_pieces() {
        let seqs = doc! { "$in": [7_i64, 9_i64] };
        let firsts = doc! { "_id.seq": seqs.clone(), "_id.domain": { "$gte": 0 } };
        let expected = doc! {
            "delete": "destage_parked",
            "deletes": [{ "q": firsts, "limit": 0 }, { "q": { "_id.seq": seqs }, "limit": 0 }],
            "ordered": true,
        };
        assert_eq!(taking(&[Lsn(7), Lsn(9)]), expected);
    }
}
