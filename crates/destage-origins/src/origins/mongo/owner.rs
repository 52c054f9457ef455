//! Destage's own state at the origin: one document, so that all of it changes at once.
//!
//! ```text
//! destage_owner  { _id: "owner", journal, epoch, since, domain_map, heartbeat, released,
//!                  watermarks: { "<domain>": seq }, parking: { a parked group on its way, if any },
//!                  unparking: { a decision on parked groups under way, if any, see `unpark` } }
//! destage_parked { _id: { domain, seq }, depends_on, reason, payload, parked_at }
//! ```
//!
//! A payload that is too long for one document goes on in others, which are there before the group is parked:
//!
//! ```text
//! destage_parked { _id: { domain, seq }, .., pieces: n, epoch }
//!                { _id: { domain: -1, seq, epoch }, payload } and so on to -n
//! ```

use super::connection::{Connection, Query};
use super::guard::Ours;
use super::statements::{Verb, durable};
use super::types::integer;
use super::unpark;
use crate::contract::verdict::{fenced, not_parked};
use crate::contract::{Claim, Mark, OriginError, Owner, ParkedGroup, WriteClaim};
use crate::origins::bound::Bound;
use crate::origins::ledger::{pieces, signed, unsigned};
use crate::parked::PIECE_MISSING;
use destage_core::{DomainId, Fault, Lsn};
use mongodb::bson::{Bson, DateTime, Document, doc};
use std::thread;
use std::time::Duration;

pub(super) const COLLECTION: &str = "destage_owner";
pub(super) const PARKED: &str = "destage_parked";
const ID: &str = "owner";
const PARK: &str = "park a group";
/// Of a payload in one document: it may be in the owner's at first, with what is there besides.
const PIECE_BYTES_MAX: usize = 8 << 20;
/// How often an origin is claimed from an owner who still changes it.
const CLAIMS_MAX: usize = 8;
/// A change of one document that had begun before is over by then.
const UNDER_WAY_MAX: Duration = Duration::from_millis(500);

/// The owner's document as it was read.
pub(super) struct State {
    document: Document,
}

impl State {
    /// Reads it; `None` where nobody has ever claimed the origin.
    pub(super) fn read(connection: &mut Connection) -> Result<Option<Self>, OriginError> {
        let query = Query { filter: doc! { "_id": ID }, limit: 1, ..Query::default() };
        let found = connection.find("read the owner", COLLECTION, query)?;
        Ok(found.into_iter().next().map(|document| Self { document }))
    }

    fn number(&self, name: &str) -> i64 {
        self.document.get(name).and_then(integer).unwrap_or(0)
    }

    pub(super) fn epoch(&self) -> u64 {
        unsigned(self.number("epoch"))
    }

    /// The first epoch of the journal that owns the origin.
    pub(super) fn since(&self) -> u64 {
        unsigned(self.number("since"))
    }

    /// Whose guards count, seen by the owner or by a reader.
    pub(super) fn ours(&self) -> Ours {
        Ours { epoch: self.epoch(), since: self.since(), ignored: false }
    }

    pub(super) fn watermarks(&self) -> Vec<(DomainId, Lsn)> {
        let Ok(all) = self.document.get_document("watermarks") else { return Vec::new() };
        let pair = |(domain, seq): (&String, &Bson)| {
            Some((DomainId(domain.parse().ok()?), Lsn(unsigned(integer(seq)?))))
        };
        all.iter().filter_map(pair).collect()
    }

    pub(super) fn watermark(&self, domain: DomainId) -> Option<Lsn> {
        let found = self.watermarks().into_iter().find(|(known, _)| *known == domain);
        found.map(|(_, lsn)| lsn)
    }

    fn parking(&self) -> Option<&Document> {
        self.document.get_document("parking").ok()
    }

    pub(super) fn unparking(&self) -> Option<&Document> {
        self.document.get_document("unparking").ok()
    }

    /// With the age of the heartbeat by the server's clock.
    pub(super) fn owner(&self, connection: &mut Connection) -> Result<Owner, OriginError> {
        let hello = connection.command("read the server's clock", doc! { "hello": 1 })?;
        let now = hello.get_datetime("localTime").copied().unwrap_or_else(|_| DateTime::now());
        let shown = self.document.get_datetime("heartbeat").copied().unwrap_or(DateTime::MIN);
        let age = now.timestamp_millis().saturating_sub(shown.timestamp_millis());
        Ok(Owner {
            journal: self.document.get_str("journal").unwrap_or_default().to_owned(),
            epoch: self.epoch(),
            domain_map: self.number("domain_map").cast_unsigned(),
            heartbeat_age: Duration::from_millis(unsigned(age)),
            released: self.document.get_bool("released").unwrap_or(false),
            watermarks: self.watermarks(),
            epochs_agree: true,
        })
    }
}

/// Claims the origin; false if somebody else did in between.
pub(super) fn claim(connection: &mut Connection, claim: &Claim) -> Result<bool, OriginError> {
    let state = State::read(connection)?;
    match (state, claim.expected) {
        (None, None) => claim_first(connection, claim),
        (Some(state), Some(expected)) if state.epoch() == expected => {
            let is_ours = claim_for_good(connection, claim, state)?;
            if is_ours && let Some(state) = State::read(connection)? {
                unpark::recover(connection, &state)?;
            }
            Ok(is_ours)
        }
        _ => Ok(false),
    }
}

fn claim_first(connection: &mut Connection, claim: &Claim) -> Result<bool, OriginError> {
    const WHAT: &str = "claim the origin";
    let zero = |domain: &DomainId| (domain.0.to_string(), Bson::Int64(0));
    let document = doc! {
        "_id": ID,
        "journal": &claim.journal,
        "epoch": signed(claim.epoch),
        "since": signed(claim.epoch),
        "domain_map": claim.domain_map.cast_signed(),
        // The server's own clock follows.
        "heartbeat": DateTime::MIN,
        "released": false,
        "watermarks": claim.domains.iter().map(zero).collect::<Document>(),
    };
    let command = Verb::Insert.command(COLLECTION, vec![document], connection.timeout());
    let reply = connection.command(WHAT, command)?;
    match super::writer::documents_met(WHAT, connection.place(), &reply) {
        Ok(_) => show(connection, claim.epoch),
        // A duplicate.
        Err(error) if error.fault == Fault::Rejected => Ok(false),
        Err(error) => Err(error),
    }
}

/// Claims it from its owner, and again if a change of that owner's that was under way has undone it: FerretDB reads a
/// document and writes it back whole, so that such a change brings back the epoch before ours. Once none of them comes any
/// more, all that the owner before begins finds our epoch.
fn claim_for_good(
    connection: &mut Connection,
    claim: &Claim,
    mut state: State,
) -> Result<bool, OriginError> {
    for _ in 0..CLAIMS_MAX {
        if !claim_from(connection, claim, &state)? {
            return Ok(false);
        }
        if !state.owner(connection)?.may_live() {
            return Ok(true);
        }
        thread::sleep(UNDER_WAY_MAX);
        let Some(found) = State::read(connection)? else { return Ok(false) };
        match found.epoch() {
            epoch if epoch == claim.epoch => return Ok(true),
            epoch if epoch == state.epoch() => state = found,
            _ => return Ok(false),
        }
    }
    Ok(false)
}

fn claim_from(
    connection: &mut Connection,
    claim: &Claim,
    state: &State,
) -> Result<bool, OriginError> {
    let is_same = state.document.get_str("journal").is_ok_and(|journal| journal == claim.journal);
    let since = if is_same { state.since() } else { claim.epoch };
    let mut set = doc! {
        "journal": &claim.journal,
        "epoch": signed(claim.epoch),
        "since": signed(since),
        "domain_map": claim.domain_map.cast_signed(),
        "released": false,
    };
    for domain in &claim.domains {
        if state.watermark(*domain).is_none() {
            set.insert(format!("watermarks.{}", domain.0), Bson::Int64(0));
        }
    }
    change(connection, "claim the origin", doc! { "epoch": signed(state.epoch()) }, set, true)
}

/// Renews the heartbeat; false if the origin is not ours any more.
pub(super) fn show(connection: &mut Connection, epoch: u64) -> Result<bool, OriginError> {
    let ours = doc! { "epoch": signed(epoch) };
    change(connection, "renew the heartbeat", ours, doc! { "released": false }, true)
}

/// Says that nothing is undecided; false if the origin is not ours any more.
pub(super) fn release(connection: &mut Connection, epoch: u64) -> Result<bool, OriginError> {
    let ours = doc! { "epoch": signed(epoch) };
    change(connection, "release the origin", ours, doc! { "released": true }, false)
}

/// Moves a domain's watermark from where the claim expects it; false if it is elsewhere, or the origin not ours any more. A
/// parked group goes the same way, since it is decided in the same moment.
pub(super) fn advance(
    connection: &mut Connection,
    claim: &WriteClaim<'_>,
    mark: Mark,
    parked: Option<&ParkedGroup>,
) -> Result<bool, OriginError> {
    let name = format!("watermarks.{}", mark.domain.0);
    let mut filter = Document::new();
    if !claim.unsafe_no_watermark {
        filter.insert("epoch", signed(claim.epoch));
        filter.insert(name.as_str(), signed(mark.expected.0));
    }
    let mut set = doc! { name: signed(mark.upto.0) };
    if let Some(parked) = parked {
        let pieces = pieces(&parked.payload, PIECE_BYTES_MAX);
        store_pieces(connection, claim.epoch, parked.lsn, &pieces[1..])?;
        set.insert("parking", parking(claim.epoch, parked, &pieces));
    }
    change(connection, "move the watermark", filter, set, false)
}

/// Moves the mark of all domains where it is as the claim expects and no domain is below its floor; whether that was so.
pub(super) fn mark_all(
    connection: &mut Connection,
    claim: &WriteClaim<'_>,
    mark: Mark,
    floors: &[(DomainId, Lsn)],
) -> Result<bool, OriginError> {
    let name = format!("watermarks.{}", mark.domain.0);
    let mut filter = doc! { "epoch": signed(claim.epoch) };
    filter.insert(name.as_str(), signed(mark.expected.0));
    for (domain, floor) in floors.iter().filter(|(_, floor)| *floor > Lsn::ZERO) {
        filter.insert(format!("watermarks.{}", domain.0), doc! { "$gte": signed(floor.0) });
    }
    change(
        connection,
        "move the mark of all domains",
        filter,
        doc! { name: signed(mark.upto.0) },
        false,
    )
}

/// Changes the owner's document where it is as `filter` says; whether it was.
pub(super) fn change(
    connection: &mut Connection,
    what: &str,
    mut filter: Document,
    set: Document,
    shows: bool,
) -> Result<bool, OriginError> {
    filter.insert("_id", ID);
    let mut update = doc! { "$set": set };
    if shows {
        update.insert("$currentDate", doc! { "heartbeat": true });
    }
    let statement = doc! { "q": filter, "u": update };
    let command = Verb::Update.command(COLLECTION, vec![statement], connection.timeout());
    let reply = connection.command(what, command)?;
    super::writer::documents_met(what, connection.place(), &reply).map(|met| met == 1)
}

fn parking(epoch: u64, parked: &ParkedGroup, pieces: &[&str]) -> Document {
    let mut parking = doc! {
        "domain": i64::from(parked.domain.0),
        "seq": signed(parked.lsn.0),
        "depends_on": parked.depends_on.map(|lsn| signed(lsn.0)),
        "reason": &parked.reason,
        "payload": pieces[0],
    };
    if pieces.len() > 1 {
        parking.insert("pieces", signed(pieces.len() as u64 - 1));
        parking.insert("epoch", signed(epoch));
    }
    parking
}

/// Stores what is left of a payload; nobody looks at it before the group is parked. The epoch keeps what an owner before us
/// may have left apart.
fn store_pieces(
    connection: &mut Connection,
    epoch: u64,
    lsn: Lsn,
    pieces: &[&str],
) -> Result<(), OriginError> {
    for (at, piece) in (1_i64..).zip(pieces) {
        let id = doc! { "domain": -at, "seq": signed(lsn.0), "epoch": signed(epoch) };
        let upsert =
            doc! { "q": { "_id": id }, "u": { "$set": { "payload": *piece } }, "upsert": true };
        let command = Verb::Update.command(PARKED, vec![upsert], connection.timeout());
        let reply = connection.command(PARK, command)?;
        super::writer::documents_met(PARK, connection.place(), &reply)?;
    }
    Ok(())
}

/// Brings a group that is being parked to the others. Doing so twice does no harm.
pub(super) fn finish_parking(
    connection: &mut Connection,
    state: &State,
) -> Result<(), OriginError> {
    let Some(parking) = state.parking() else { return Ok(()) };
    bring_to_others(connection, parking).map_err(not_parked)
}

fn bring_to_others(connection: &mut Connection, parking: &Document) -> Result<(), OriginError> {
    let mut fields = parking.clone();
    let (domain, seq) = (fields.remove("domain"), fields.remove("seq"));
    let upsert = doc! {
        "q": { "_id": { "domain": domain, "seq": seq.clone() } },
        "u": { "$set": fields, "$currentDate": { "parked_at": true } },
        "upsert": true,
    };
    let command = Verb::Update.command(PARKED, vec![upsert], connection.timeout());
    let reply = connection.command(PARK, command)?;
    super::writer::documents_met(PARK, connection.place(), &reply)?;
    let mut command = doc! {
        "update": COLLECTION,
        "updates": [{ "q": { "_id": ID, "parking.seq": seq }, "u": { "$unset": { "parking": "" } } }],
    };
    command.extend(durable(connection.timeout()));
    let reply = connection.command(PARK, command)?;
    super::writer::documents_met(PARK, connection.place(), &reply).map(drop)
}

/// Everything parked, in the order of its numbers.
pub(super) fn parked(
    connection: &mut Connection,
    bytes_max: u64,
) -> Result<Vec<ParkedGroup>, OriginError> {
    let query = Query { sorted: true, bound: Some(Bound::parked(bytes_max)), ..Query::default() };
    let mut documents = connection.find("read the parked groups", PARKED, query)?;
    for document in &mut documents {
        if let Ok(id) = document.get_document("_id").cloned() {
            document.extend(id);
        }
    }
    let (pieces, firsts): (Vec<_>, Vec<_>) = documents
        .into_iter()
        .partition(|document| number(document, "domain").is_some_and(|d| d < 0));
    let mut found: Vec<ParkedGroup> =
        firsts.iter().map(|first| parked_group(first, &pieces)).collect();
    let on_its_way = State::read(connection)?;
    if let Some(parking) = on_its_way.as_ref().and_then(State::parking) {
        let parking = parked_group(parking, &pieces);
        if !found.iter().any(|known| (known.domain, known.lsn) == (parking.domain, parking.lsn)) {
            found.push(parking);
        }
    }
    found.sort_by_key(|parked| (parked.lsn, parked.domain.0));
    Ok(found)
}

fn number(document: &Document, name: &str) -> Option<i64> {
    document.get(name).and_then(integer)
}

fn parked_group(document: &Document, pieces: &[Document]) -> ParkedGroup {
    let text = |name| document.get_str(name).unwrap_or_default().to_owned();
    let mut payload = text("payload");
    for at in 1..=number(document, "pieces").unwrap_or(0) {
        let is_it = |piece: &&Document| {
            let is_alike = |name| number(piece, name) == number(document, name);
            number(piece, "domain") == Some(-at) && is_alike("seq") && is_alike("epoch")
        };
        let Some(piece) = pieces.iter().find(is_it) else {
            // Someone has deleted it by hand.
            PIECE_MISSING.clone_into(&mut payload);
            break;
        };
        payload.push_str(piece.get_str("payload").unwrap_or_default());
    }
    let number = |name| number(document, name);
    ParkedGroup {
        domain: DomainId(number("domain").and_then(|d| d.try_into().ok()).unwrap_or(0)),
        lsn: Lsn(number("seq").map_or(0, unsigned)),
        depends_on: number("depends_on").map(|seq| Lsn(unsigned(seq))),
        reason: text("reason"),
        payload,
    }
}

/// The origin has another owner.
pub(super) fn not_ours(connection: &mut Connection, epoch: u64) -> OriginError {
    match State::read(connection) {
        Ok(state) => fenced(connection.place(), epoch, state.map(|state| state.epoch())),
        Err(error) => error,
    }
}
