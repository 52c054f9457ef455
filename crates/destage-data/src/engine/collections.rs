//! Collections as units: fetched, kept in step with the rows of their elements, dropped.
//!
//! Every group that changes an element changes its collections too: it is noted for them whether they are loaded or not, so
//! that what a fetch brings can be overlaid, and it is applied to what is loaded. A page holds as long as its collection has
//! not changed since; moments are counted by a clock of the engine's own.

use super::Engine;
use super::ask::everything;
use super::command::Verb;
use super::elements::{self, Element, Page, SetState, compare_by, elements, number, set_of_table};
use super::overlay::changes;
use super::prepared::Prepared;
use super::rows::{Kind, dedup};
use super::session::Session;
use super::set_scan::Place;
use crate::cells::{Cell, Reader};
use crate::change::{Change, Op, Set};
use crate::collection::{By, Collection, CollectionId, Part, Query};
use crate::resp::{Code, ReplyError};
use crate::schema::{ColumnDefault, TableId};
use destage_core::{Access, Input, Lsn, UnitId};
use std::collections::HashMap;

/// What became of an attempt that needs other parts of a collection than it was given.
pub(super) enum Attempt {
    /// Try again: they will be asked for.
    Again,
    /// There were too many attempts.
    TooMany,
}

/// What a client is told whose question was overtaken by writes again and again.
pub(super) const OVERTAKEN: ReplyError =
    ReplyError::fixed(Code::Busy, "the set changes faster than parts of it can be read; try again");

impl Engine {
    /// Adds the units that a command needs besides its keys, as far as that is known: a page of a large collection, or the
    /// rows of all elements.
    pub(super) fn locate(&mut self, prepared: &mut Prepared, attempts: u32) {
        if self.schema.collections.is_empty() {
            return;
        }
        match prepared.verb {
            Verb::Ask => self.locate_page(prepared, attempts),
            Verb::Del => self.locate_members(prepared, attempts),
            verb if verb == Verb::Exists || verb == Verb::Type || verb.is_of_expiry() => {
                self.locate_shrunk(prepared, false, attempts);
            }
            _ => {}
        }
    }

    /// For a question: the page that answers it.
    fn locate_page(&mut self, prepared: &mut Prepared, attempts: u32) {
        self.locate_place(prepared);
        let Some(command) = prepared.set.as_deref() else { return };
        let Some(ask) = &command.ask else { return };
        let schema = self.schema.clone();
        let collection = schema.collection(command.collection);
        if ask.needs_all() {
            return self.locate_shrunk(prepared, true, attempts);
        }
        let (table, owners) = prepared.keys().next().expect("a question has a key");
        let Some(unit) = self.rows.find(table, owners) else { return };
        let Some(SetState::Large { .. }) = self.set_state(collection, unit) else { return };
        // What cannot be asked is told when it is performed.
        let elements = schema.table(collection.table);
        let Ok(query) = ask.page(collection, elements, attempts) else { return };
        let mut key = owners.to_vec();
        query.encode(&mut key);
        prepared.push_own_key(collection.page(), &key);
    }

    /// For a scan of a set: the place that its cursor stands for, if that is known.
    fn locate_place(&self, prepared: &mut Prepared) {
        let ask = prepared.set.as_deref().and_then(|command| command.ask.as_ref());
        let Some(cursor) = ask.and_then(|ask| ask.scan.as_ref()?.cursor()) else { return };
        let (table, owners) = prepared.keys().next().expect("a question has a key");
        let places = self.sessions.set_places().borrow();
        let is_of_it = |place: &&Place| place.table == table && *place.owners == *owners;
        let Some(place) = places.get(cursor).filter(is_of_it).cloned() else { return };
        if let Some(ask) = prepared.set.as_deref_mut().and_then(|command| command.ask.as_mut()) {
            ask.go_on(&place);
        }
    }

    /// Sets among the keys that had too many members, and of which it is not certain any more that they have too many, or if
    /// not all are needed any: each is fetched as a whole again, or, where undecided changes keep it, a page of all its
    /// members is read.
    fn locate_shrunk(&mut self, prepared: &mut Prepared, needs_all: bool, attempts: u32) {
        let schema = self.schema.clone();
        let mut pages = Vec::new();
        for (table, owners) in prepared.keys() {
            let Some(id) = set_of_table(&schema, table) else { continue };
            let collection = schema.collection(id);
            let Some(unit) = self.rows.find(table, owners) else { continue };
            let Some(SetState::Large { loaded, changed, at_least }) =
                self.set_state(collection, unit)
            else {
                continue;
            };
            // What was tried in vain was not certain either: the transaction itself removes members.
            let enough = if needs_all { collection.members_max } else { 0 };
            if at_least > enough && attempts == 0 {
                continue;
            }
            if changed > loaded {
                self.invalidate(unit);
                if !self.core.is_present(unit) {
                    continue;
                }
            }
            let mut key = owners.to_vec();
            everything(collection, attempts).encode(&mut key);
            pages.push((collection.page(), key));
        }
        pages.into_iter().for_each(|(page, key)| prepared.push_own_key(page, &key));
    }

    /// For DEL: the members' rows.
    fn locate_members(&mut self, prepared: &mut Prepared, attempts: u32) {
        let schema = self.schema.clone();
        self.locate_shrunk(prepared, true, attempts);
        let mut found: Vec<(CollectionId, Vec<u8>, Vec<u8>)> = Vec::new();
        for (table, key) in prepared.keys() {
            let Some((id, _)) = schema.table(table).part else { continue };
            let collection = schema.collection(id);
            let Some(unit) = self.rows.find(table, key) else { continue };
            let Some((owners, run)) = self.loaded_members(collection, unit) else { continue };
            let members = elements(run, collection.is_sorted());
            found.extend(members.map(|e| (id, owners.to_vec(), e.member.to_vec())));
        }
        for (id, owners, member) in found {
            prepared.push_element_key(&schema, schema.collection(id), &owners, &member);
        }
    }

    /// The owner and the members that a unit of a collection holds, whole or page, if it is present.
    fn loaded_members(&self, collection: &Collection, unit: UnitId) -> Option<(&[u8], &[u8])> {
        let row = self.rows.get(unit);
        if row.kind != Kind::Row || !self.core.is_present(unit) {
            return None;
        }
        let mut cells = Reader::new(row.cells);
        let owners = cells.cells(collection.owners.len())?;
        if row.table == collection.whole() {
            let SetState::Full(run) = SetState::read(cells) else { return None };
            return Some((owners, run));
        }
        Query::decode(&mut cells)?;
        let Page::Elements { elements: run, .. } = Page::read(cells) else { return None };
        Some((owners, run))
    }

    /// What is known of a collection whose unit is present.
    fn set_state(&self, collection: &Collection, unit: UnitId) -> Option<SetState<'_>> {
        let row = self.rows.get(unit);
        if row.kind != Kind::Row || !self.core.is_present(unit) {
            return None;
        }
        let mut cells = Reader::new(row.cells);
        cells.cells(collection.owners.len())?;
        Some(SetState::read(cells))
    }

    /// Whether a unit stands for a set or a part of one.
    pub(super) fn is_set(&self, unit: UnitId) -> bool {
        // Behind the schema's tables are those of what is no row.
        let table = self.schema.tables.get(usize::from(self.rows.get(unit).table.0));
        table.is_some_and(|table| table.part.is_some())
    }

    /// The set that a page is a part of, if the unit is one and the set is known.
    pub(super) fn set_of_page(&self, table: TableId, key: &[u8]) -> Option<UnitId> {
        let (id, Part::Page) = self.schema.table(table).part? else { return None };
        let collection = self.schema.collection(id);
        let owners = Reader::new(key).cells(collection.owners.len())?;
        self.rows.find(collection.whole(), owners)
    }

    /// A page is asked for at the origin.
    pub(super) fn begin_page(&mut self, unit: UnitId) {
        let table = self.rows.get(unit).table;
        if let Some((_, Part::Page)) = self.schema.table(table).part {
            self.rows.pages().begin(unit);
        }
    }

    /// Installs what a fetch of a collection brought.
    pub(super) fn install_members(
        &mut self,
        unit: UnitId,
        (id, part): (CollectionId, Part),
        key: &[u8],
        fetched: Option<&[u8]>,
        watermark: Lsn,
    ) {
        let now = self.rows.pages().tick();
        let started = self.rows.pages().end(unit);
        let schema = self.schema.clone();
        let collection = schema.collection(id);
        let mut cells = Reader::new(key);
        let owners = cells.cells(collection.owners.len()).expect("keys begin with the owner");
        let query = match part {
            Part::Whole => None,
            Part::Page => Some(Query::decode(&mut cells).expect("keys of pages are made here")),
        };
        let whole = match part {
            Part::Whole => Some(unit),
            Part::Page => self.rows.find(collection.whole(), owners),
        };
        if part == Part::Whole {
            self.undecided.note_fetched(unit, watermark);
        }
        let groups = match (whole, self.config.unsafe_flags.in_force().no_overlay) {
            (Some(unit), false) => self.overlay.later(unit, watermark),
            _ => Vec::new(),
        };
        let mut pending = Vec::new();
        for (_, bytes) in &groups {
            pending.extend(changes_of(&schema, collection, owners, bytes));
        }
        let fetched = fetched.unwrap_or_default();
        let mut row = key.to_vec();
        match query {
            Some(query) if query.by == By::Count => {
                count_of(fetched, &pending, started, now).write(&mut row);
            }
            query => {
                let limit = query.as_ref().map_or(collection.members_max + 1, |query| query.limit);
                let reverse = query.as_ref().is_some_and(|query| query.reverse);
                let by = query.as_ref().map_or(By::Score, |query| query.by);
                let is_page = query.is_some();
                let read =
                    overlaid(&schema, collection, fetched, &pending, (limit, reverse, by), is_page);
                match (&query, &read) {
                    (None, Some(read))
                        if read.is_complete && read.len <= collection.members_max =>
                    {
                        SetState::Full(&read.run).write(&mut row);
                    }
                    (None, Some(read)) => {
                        let at_least = read.len;
                        SetState::Large { loaded: now, changed: now, at_least }.write(&mut row);
                    }
                    (None, None) => SetState::Unknown.write(&mut row),
                    (Some(_), Some(read)) => Page::Elements {
                        started,
                        installed: now,
                        is_complete: read.is_complete,
                        elements: &read.run,
                    }
                    .write(&mut row),
                    (Some(_), None) => Page::Unknown.write(&mut row),
                }
            }
        }
        self.rows.set(unit, Some(&row));
    }

    /// Lets collections follow a group that is visible from now on, which the writer holds. Each collection that it changes
    /// is added to what it changed.
    pub(super) fn note_members(&mut self, lsn: Lsn, changed: &mut Vec<(UnitId, u32)>) {
        if self.schema.collections.is_empty() {
            return;
        }
        let mut writer = self.log.take_group();
        for unit in self.collections_of(writer.finish(), true) {
            self.overlay.chain(unit, lsn);
            self.follow(unit, writer.finish());
            changed.push((unit, self.rows.bytes(unit)));
        }
        self.log.give_back(writer);
    }

    /// Lets collections follow a group that waited for the origin's word, and got it.
    pub(super) fn settle_members(&mut self, lsn: Lsn) {
        if self.schema.collections.is_empty() {
            return;
        }
        let Some(bytes) = self.overlay.get(lsn).map(|group| group.bytes.clone()) else { return };
        for unit in self.collections_of(&bytes, false) {
            self.overlay.chain(unit, lsn);
            if self.core.is_present(unit) {
                if !self.undecided.is_held_ahead(unit, lsn) {
                    self.follow(unit, &bytes);
                }
                let units = [(unit, self.rows.bytes(unit))];
                // The group has changed members. Who has the collection locked is another one.
                let input = Input::Through { units: &units, access: Access::Back, result: Ok(()) };
                self.core.handle(self.now, input);
            }
        }
    }

    /// Tells those who watch them that a group, which the writer holds, changes collections.
    pub(super) fn note_watched_members(&mut self) {
        if self.schema.collections.is_empty() || self.watchers.is_empty() {
            return;
        }
        let mut writer = self.log.take_group();
        let schema = self.schema.clone();
        for change in changes(&schema, writer.finish()) {
            for &id in &schema.table(change.table).collections {
                let collection = schema.collection(id);
                let mut owners = Vec::new();
                collection.split(change.key, &mut owners);
                self.watchers.change(&(collection.whole(), owners.into()));
            }
        }
        self.log.give_back(writer);
    }

    /// The units of the collections that a group changes, each once; those that have none get one if `insert` says so.
    pub(super) fn collections_of(&mut self, bytes: &[u8], insert: bool) -> Vec<UnitId> {
        let schema = self.schema.clone();
        let mut units = Vec::new();
        let mut owners = Vec::new();
        for change in changes(&schema, bytes) {
            for &id in &schema.table(change.table).collections {
                let collection = schema.collection(id);
                owners.clear();
                collection.split(change.key, &mut owners);
                if insert {
                    units.push(self.rows.find_or_insert(collection.whole(), &owners))
                } else {
                    units.extend(self.rows.find(collection.whole(), &owners))
                }
            }
        }
        if units.len() > 1 { dedup(&units) } else { units }
    }

    /// Applies a group to what is loaded of a collection.
    fn follow(&mut self, unit: UnitId, bytes: &[u8]) {
        let schema = self.schema.clone();
        let table = schema.table(self.rows.get(unit).table);
        let Some((id, _)) = table.part else { return };
        let collection = schema.collection(id);
        let now = self.rows.pages().tick();
        let Some(whole) = self.set_state(collection, unit) else { return };
        let owners = self.rows.key(unit).to_vec();
        let mut row = owners.clone();
        match whole {
            SetState::Unknown => return,
            SetState::Large { loaded, at_least, .. } => {
                let own = changes_of(&schema, collection, &owners, bytes);
                // An insert counts for nothing: another writer may have made the row before.
                let removed = own.filter(|(_, change)| change.op == Op::Delete).count();
                let at_least = at_least.saturating_sub(removed);
                SetState::Large { loaded, changed: now, at_least }.write(&mut row);
            }
            SetState::Full(run) => {
                let mut run = Some(run.to_vec());
                for (member, change) in changes_of(&schema, collection, &owners, bytes) {
                    run = run.and_then(|run| after(&schema, collection, run, &member, &change));
                }
                let count = |run: &[u8]| elements(run, collection.is_sorted()).count();
                match run.map(|run| (count(&run), run)) {
                    None => SetState::Unknown.write(&mut row),
                    Some((at_least, _)) if at_least > collection.members_max => {
                        SetState::Large { loaded: now, changed: now, at_least }.write(&mut row);
                    }
                    Some((_, run)) => SetState::Full(&run).write(&mut row),
                }
            }
        }
        self.rows.set(unit, Some(&row));
    }

    /// A collection may have changed at the origin by itself, while changes of its own keep it where it is: it is destaged
    /// and fetched again before it is used.
    pub(super) fn doubt(&mut self, unit: UnitId) {
        let row = self.rows.get(unit);
        if row.kind == Kind::Row && set_of_table(&self.schema, row.table).is_some() {
            let mut row = self.rows.key(unit).to_vec();
            SetState::Unknown.write(&mut row);
            self.rows.set(unit, Some(&row));
        }
    }

    /// A command needs other parts of a collection than it was given: those that are of no use are dropped.
    pub(super) fn attempt_again(&mut self, session: &mut Session, units: &[UnitId]) -> Attempt {
        session.attempts += 1;
        for &unit in units {
            let table = self.rows.get(unit).table;
            if let Some((_, Part::Page)) = self.schema.table(table).part {
                self.invalidate(unit);
            }
        }
        if session.attempts > super::ask::ATTEMPTS_MAX {
            session.attempts = 0;
            Attempt::TooMany
        } else {
            Attempt::Again
        }
    }
}

/// The changes of a group to the elements of one owner, with their members.
fn changes_of<'b>(
    schema: &'b crate::schema::Schema,
    collection: &Collection,
    owners: &[u8],
    bytes: &'b [u8],
) -> impl Iterator<Item = (Vec<u8>, Change<'b>)> {
    changes(schema, bytes).filter(|change| change.table == collection.table).filter_map(
        move |change| {
            let mut own = Vec::new();
            let member = collection.split(change.key, &mut own).to_vec();
            (own == owners).then_some((member, change))
        },
    )
}

/// The elements of a fetched part, with every later change.
struct Read {
    run: Vec<u8>,
    len: usize,
    /// Whether there are no more behind it.
    is_complete: bool,
}

/// A fetched part with pending changes; `None` if only the origin knows what becomes of them.
fn overlaid(
    schema: &crate::schema::Schema,
    collection: &Collection,
    fetched: &[u8],
    pending: &[(Vec<u8>, Change<'_>)],
    (limit, reverse, by): (usize, bool, By),
    is_page: bool,
) -> Option<Read> {
    let is_sorted = collection.is_sorted();
    let mut read: Vec<Element<'_>> = elements(fetched, is_sorted).collect();
    let compare = |a: &Element<'_>, b: &Element<'_>| compare_by(by, a, b);
    read.sort_unstable_by(compare);
    let is_complete = read.len() < limit;
    let horizon = if reverse { read.first() } else { read.last() }.copied();
    let mut scores: HashMap<Vec<u8>, Vec<u8>> =
        read.iter().map(|element| (element.member.to_vec(), element.score.to_vec())).collect();
    for (member, change) in pending {
        let old = scores.get(member).map(Vec::as_slice);
        match scored(schema, collection, old, change, is_complete && !is_page)? {
            Some(score) => drop(scores.insert(member.clone(), score)),
            None => drop(scores.remove(member)),
        }
    }
    let mut all: Vec<Element<'_>> =
        scores.iter().map(|(member, score)| Element { score, member }).collect();
    if let (false, Some(horizon)) = (is_complete, horizon) {
        all.retain(|element| {
            if reverse {
                compare(element, &horizon).is_ge()
            } else {
                compare(element, &horizon).is_le()
            }
        });
    }
    all.sort_unstable_by(compare);
    let mut run = Vec::new();
    all.iter().for_each(|&element| elements::push(&mut run, is_sorted, element));
    Some(Read { run, len: all.len(), is_complete })
}

/// An element's score after a change; the inner `None` if it is no element then, the outer one if only the origin knows.
/// `is_all`: what is not among those at hand is no element. The origin rejects an update of it.
fn scored(
    schema: &crate::schema::Schema,
    collection: &Collection,
    old: Option<&[u8]>,
    change: &Change<'_>,
    is_all: bool,
) -> Option<Option<Vec<u8>>> {
    let table = schema.table(collection.table);
    let set = change.sets().find(|(column, _)| Some(*column) == collection.score);
    match (change.op, set) {
        (Op::Delete | Op::End, _) => Some(None),
        (Op::Update, _) if is_all && old.is_none() => Some(None),
        (Op::Insert | Op::Update, Some((_, Set::To(Cell::Value(score))))) => {
            Some(Some(score.to_vec()))
        }
        (Op::Insert, _) => match collection.score.map(|column| &table.columns[column].default) {
            Some(ColumnDefault::Constant(score)) => Some(Some(score.clone())),
            Some(ColumnDefault::Computed | ColumnDefault::Formula(_)) => None,
            Some(ColumnDefault::None) | None => Some(Some(Vec::new())),
        },
        (Op::Update, Some((column, Set::By(amount)))) => {
            table.columns[column].ty.add(old?, amount).ok().map(Some)
        }
        (Op::Update, _) => Some(old.map(<[u8]>::to_vec)),
    }
}

/// A run of all elements after a change; `None` if only the origin knows.
fn after(
    schema: &crate::schema::Schema,
    collection: &Collection,
    run: Vec<u8>,
    member: &[u8],
    change: &Change<'_>,
) -> Option<Vec<u8>> {
    let is_sorted = collection.is_sorted();
    let old = elements(&run, is_sorted).find(|element| element.member == member);
    let new = scored(schema, collection, old.map(|element| element.score), change, true)?;
    if old.is_some_and(|old| new.as_deref() == Some(old.score)) {
        return Some(run);
    }
    Some(elements::changed(&run, is_sorted, member, new.as_deref()))
}

/// The number of elements with pending inserts and deletes.
fn count_of<'a>(
    fetched: &[u8],
    pending: &[(Vec<u8>, Change<'_>)],
    started: u64,
    installed: u64,
) -> Page<'a> {
    let count = Reader::new(fetched).cell().and_then(Cell::value).map_or(0.0, number) as i64;
    let growth = pending.iter().map(|(_, change)| match change.op {
        Op::Insert => 1,
        Op::Update => 0,
        Op::Delete | Op::End => -1,
    });
    Page::Count { started, installed, count: count + growth.sum::<i64>() }
}
