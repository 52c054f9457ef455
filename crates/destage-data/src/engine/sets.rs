//! Commands on sets and sorted sets: their arguments, and what they do upon rows and collections that are present.

use super::ask::{Ask, What, large};
use super::command::{Spec, Verb};
use super::elements::{self, Element, Page, SetState, compare_by, elements, number};
use super::key::resolve;
use super::perform::Context;
use super::prepared::{Prepared, ScoreConditions, SetCommand, Trouble, unfit, wrong_type};
use super::rows::Kind;
use super::set_scan::{Place, SetScan, UNKNOWN};
use super::txn::Update;
use crate::cells::{Cell, Reader};
use crate::collection::Collection;
use crate::mapping::Shape;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::{Column, Schema};
use crate::value::ColumnType;
use destage_core::UnitId;
use std::borrow::Cow;

const SYNTAX: ReplyError = ReplyError::fixed(Code::Err, "syntax error");
const NOT_FLOAT: ReplyError = ReplyError::fixed(Code::Err, "value is not a valid float");

impl Verb {
    /// Whether the command works on sets or sorted sets alone.
    pub(super) fn is_of_sets(self) -> bool {
        matches!(
            self,
            Self::AddMembers
                | Self::RemoveMembers
                | Self::HasMembers
                | Self::AddScores
                | Self::Scores
                | Self::Ask
        )
    }
}

impl Prepared {
    /// Checks the arguments of a command on sets.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read_set_command(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let mut owners = Vec::new();
        let (_, shape) = resolve(schema, args[1], &mut owners)?;
        let is_sorted = spec.name.starts_with('z');
        let collection = match shape {
            Shape::Set(id) if !is_sorted => schema.collection(id),
            Shape::SortedSet(id) if is_sorted => schema.collection(id),
            _ => return Err(wrong_type(args[1], shape)),
        };
        self.push_name(args[1]);
        let mut command = SetCommand {
            collection: collection.id,
            is_many: matches!(spec.name, "smismember" | "zmscore"),
            conditions: ScoreConditions::default(),
            scores: Vec::new(),
            ask: None,
        };
        match spec.verb {
            Verb::Ask => {
                let mut ask = match spec.name {
                    "sscan" | "zscan" => SetScan::read(&args[2..], collection.members_max)?,
                    _ => Ask::read(spec.name, &args[2..])?,
                };
                if let What::Rank(member) = &mut ask.what {
                    *member = canonical_member(schema, collection, member)?.into_owned();
                }
                command.ask = Some(ask);
                let start = self.keys.len();
                self.keys.extend_from_slice(&owners);
                self.key_list.push((collection.whole(), start..self.keys.len()));
            }
            Verb::AddScores => self.read_scores(schema, spec, &owners, args, &mut command)?,
            _ => {
                for member in &args[2..] {
                    self.push_element(schema, collection, &owners, member)?;
                }
            }
        }
        self.set = Some(Box::new(command));
        Ok(())
    }

    fn push_element(
        &mut self,
        schema: &Schema,
        collection: &Collection,
        owners: &[u8],
        member: &[u8],
    ) -> Result<(), ReplyError> {
        let member = canonical_member(schema, collection, member)?;
        self.push_element_key(schema, collection, owners, &member);
        Ok(())
    }

    /// Adds the key of an element.
    pub(super) fn push_element_key(
        &mut self,
        schema: &Schema,
        collection: &Collection,
        owners: &[u8],
        member: &[u8],
    ) {
        let start = self.keys.len();
        let key_len = schema.table(collection.table).key_len;
        collection.push_element(key_len, owners, member, &mut self.keys);
        self.key_list.push((collection.table, start..self.keys.len()));
    }

    /// ZADD key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...], ZINCRBY key score member
    fn read_scores(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        owners: &[u8],
        args: &[&[u8]],
        command: &mut SetCommand,
    ) -> Result<(), ReplyError> {
        let collection = schema.collection(command.collection);
        let conditions = &mut command.conditions;
        let mut rest = &args[2..];
        if spec.name == "zincrby" {
            conditions.increments = true;
        } else {
            while let Some((option, tail)) = rest.split_first() {
                match option.to_ascii_lowercase().as_slice() {
                    b"nx" => conditions.absent = true,
                    b"xx" => conditions.present = true,
                    b"gt" => conditions.greater = true,
                    b"lt" => conditions.less = true,
                    b"ch" => conditions.counts_changes = true,
                    b"incr" => conditions.increments = true,
                    _ => break,
                }
                rest = tail;
            }
            if conditions.absent && conditions.present {
                return Err(ReplyError::fixed(
                    Code::Err,
                    "XX and NX options at the same time are not compatible",
                ));
            }
            let compares = u8::from(conditions.greater) + u8::from(conditions.less);
            if compares + u8::from(conditions.absent) > 1 {
                return Err(ReplyError::fixed(
                    Code::Err,
                    "GT, LT, and/or NX options at the same time are not compatible",
                ));
            }
        }
        if rest.is_empty() || !rest.len().is_multiple_of(2) {
            return Err(SYNTAX);
        }
        if conditions.increments && rest.len() > 2 {
            return Err(ReplyError::fixed(
                Code::Err,
                "INCR option supports a single increment-element pair",
            ));
        }
        let column = score_column(schema, collection);
        for pair in rest.chunks_exact(2) {
            command.scores.push(canonical_score(schema, collection, column, pair[0])?);
            self.push_element(schema, collection, owners, pair[1])?;
            // Counts as what the write buffers.
            self.values.extend_from_slice(pair[0]);
        }
        Ok(())
    }
}

fn score_column<'s>(schema: &'s Schema, collection: &Collection) -> &'s Column {
    let score = collection.score.expect("only sorted sets have scores");
    &schema.table(collection.table).columns[score]
}

fn canonical_member<'a>(
    schema: &Schema,
    collection: &Collection,
    member: &'a [u8],
) -> Result<Cow<'a, [u8]>, ReplyError> {
    let table = schema.table(collection.table);
    let canonical = table.columns[collection.member].ty.canonical(member);
    canonical.map_err(|error| unfit(table, collection.member, member, &error.0))
}

/// A score as its column takes it. Clients send doubles: whole ones fit a column of whole numbers in any notation.
fn canonical_score(
    schema: &Schema,
    collection: &Collection,
    column: &Column,
    text: &[u8],
) -> Result<Vec<u8>, ReplyError> {
    let value = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    let value = value.filter(|value| !value.is_nan()).ok_or(NOT_FLOAT)?;
    let is_whole = value == value.trunc() && value.abs() < 9.0e15;
    let whole = (value as i64).to_string();
    let text = match column.ty {
        ColumnType::Int { .. } if is_whole => whole.as_bytes(),
        _ => text.strip_prefix(b"+").unwrap_or(text),
    };
    let table = schema.table(collection.table);
    let index = collection.score.expect("only sorted sets have scores");
    let canonical = column.ty.canonical(text);
    let canonical = canonical.map_err(|error| unfit(table, index, text, &error.0))?;
    Ok(canonical.into_owned())
}

impl Context<'_> {
    /// Performs one command on sets; its reply is appended.
    pub(super) fn perform_set(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let command = prepared.set.as_deref().expect("every command on sets has one");
        let collection = self.schema.collection(command.collection);
        match prepared.verb {
            Verb::AddMembers => self.add_members(collection, units, reply)?,
            Verb::RemoveMembers => self.remove_members(collection, units, reply),
            Verb::HasMembers => {
                if command.is_many {
                    reply.array(units.len());
                }
                for &unit in units {
                    reply.integer(i64::from(self.row(unit).is_some()));
                }
            }
            Verb::Scores => {
                let score = collection.score.expect("only sorted sets have scores");
                if command.is_many {
                    reply.array(units.len());
                }
                for &unit in units {
                    match self.cell(unit, score)? {
                        Some(score) => reply.double(&elements::format(number(score))),
                        None => reply.null(),
                    }
                }
            }
            Verb::AddScores => return self.add_scores(collection, command, units, reply),
            Verb::Ask => {
                let ask = command.ask.as_ref().expect("every question is one");
                if ask.scan.as_ref().is_some_and(|scan| scan.cursor().is_some()) {
                    return Err(Trouble::Error(UNKNOWN));
                }
                return self.ask(collection, ask, units, reply);
            }
            _ => unreachable!("not a command on sets"),
        }
        Ok(())
    }

    fn add_members(
        &mut self,
        collection: &Collection,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let table = self.schema.table(collection.table);
        let mut added = 0;
        for &unit in units {
            if self.row(unit).is_none() {
                self.change(table, unit, Vec::new())?;
                added += 1;
            }
        }
        reply.integer(added);
        Ok(())
    }

    fn remove_members(&mut self, collection: &Collection, units: &[UnitId], reply: &mut Reply<'_>) {
        let mut removed = 0;
        for &unit in units {
            if self.row(unit).is_some() {
                self.txn.delete(collection.table, unit);
                removed += 1;
            }
        }
        reply.integer(removed);
    }

    fn add_scores(
        &mut self,
        collection: &Collection,
        command: &SetCommand,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let table = self.schema.table(collection.table);
        let column = collection.score.expect("only sorted sets have scores");
        let conditions = command.conditions;
        let (mut added, mut changed, mut last) = (0, 0, None);
        for (&unit, given) in units.iter().zip(&command.scores) {
            let old = self.cell(unit, column)?.map(<[u8]>::to_vec);
            let new = match &old {
                Some(old) if conditions.increments => {
                    let sum = table.columns[column].ty.add(old, &plain(given)?);
                    sum.map_err(|error| {
                        Trouble::Error(ReplyError::err(format!("the score {error}")))
                    })?
                }
                _ => given.clone(),
            };
            let is_wanted = match &old {
                None => !conditions.present,
                Some(old) => {
                    let (old, new) = (number(old), number(&new));
                    let fits =
                        (!conditions.greater || new > old) && (!conditions.less || new < old);
                    !conditions.absent && fits
                }
            };
            if !is_wanted {
                continue;
            }
            last = Some(number(&new));
            let is_new = old.is_none();
            if is_new || old.is_some_and(|old| old != new) {
                self.change(table, unit, vec![(column, Update::To(new))])?;
                added += i64::from(is_new);
                changed += 1;
            }
        }
        match (conditions.increments, last) {
            (true, Some(score)) => reply.double(&elements::format(score)),
            (true, None) => reply.null(),
            (false, _) => reply.integer(if conditions.counts_changes { changed } else { added }),
        }
        Ok(())
    }

    fn ask(
        &self,
        collection: &Collection,
        ask: &Ask,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let (owners, state) = self.set_state(collection, units[0]);
        let is_large = matches!(state, SetState::Large { .. });
        if is_large && ask.is_empty() {
            answer(collection, ask, &[], None, reply);
            return Ok(());
        }
        if !is_large || ask.needs_all() {
            let run = self.members(collection, units[0], units)?;
            let run = run.ok_or_else(|| Trouble::Error(large(collection)))?;
            if ask.scan.is_some() {
                self.scan_part(collection, ask, owners, (&run, true), reply);
            } else {
                answer(collection, ask, &run, None, reply);
            }
            return Ok(());
        }
        match self.fresh_page(collection, units[0], units)? {
            Page::Count { count, .. } => {
                reply.integer(count + self.staged_growth(collection, owners));
                Ok(())
            }
            Page::Elements { is_complete, elements: run, .. } => {
                self.answer_page(collection, ask, owners, (run, is_complete), reply)
            }
            Page::Unknown => Err(Trouble::Unknown),
        }
    }

    /// How many members this transaction adds.
    fn staged_growth(&self, collection: &Collection, owners: &[u8]) -> i64 {
        let existed = |unit| self.rows.get(unit).kind == Kind::Row;
        let growth = self
            .staged(collection, owners)
            .map(|(unit, _, row)| i64::from(row.is_some()) - i64::from(existed(unit)));
        growth.sum()
    }

    fn answer_page(
        &self,
        collection: &Collection,
        ask: &Ask,
        owners: &[u8],
        (run, is_complete): (&[u8], bool),
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let flip = ask.window(None).is_some_and(|(flip, ..)| flip);
        let all = self.with_staged(collection, owners, run);
        let horizon =
            if is_complete { None } else { furthest(collection, run, ask.reverse != flip) };
        let is_within = |element: &Element<'_>| match &horizon {
            None => true,
            Some(horizon) if ask.reverse != flip => {
                compare_by(ask.order(), element, horizon).is_ge()
            }
            Some(horizon) => compare_by(ask.order(), element, horizon).is_le(),
        };
        let mut kept = Vec::new();
        let mut found = 0;
        for element in elements(&all, collection.is_sorted()).filter(|e| is_within(e)) {
            found += usize::from(ask.takes(&element));
            elements::push(&mut kept, collection.is_sorted(), element);
        }
        if !is_complete && !ask.is_answered(collection, found)? {
            return Err(Trouble::Again);
        }
        if ask.scan.is_some() {
            self.scan_part(collection, ask, owners, (&kept, is_complete), reply);
        } else {
            answer(collection, ask, &kept, Some(flip), reply);
        }
        Ok(())
    }

    /// Answers a scan from the elements that are at hand, and notes where it goes on.
    fn scan_part(
        &self,
        collection: &Collection,
        ask: &Ask,
        owners: &[u8],
        (run, is_complete): (&[u8], bool),
        reply: &mut Reply<'_>,
    ) {
        let is_sorted = collection.is_sorted();
        let mut shown: Vec<Element<'_>> =
            elements(run, is_sorted).filter(|element| ask.takes(element)).collect();
        shown.sort_unstable_by_key(|element| element.member);
        let is_last = is_complete && shown.len() <= ask.limit;
        shown.truncate(ask.limit);
        let last = shown.last().filter(|_| !is_last);
        let next = last.map_or(0, |last| {
            let (table, after) = (collection.whole(), last.member.into());
            self.places.borrow_mut().insert(Place { table, owners: owners.into(), after })
        });
        let scan = ask.scan.as_ref().expect("only scans are answered so");
        scan.tell(next, &shown, is_sorted, reply);
    }
}

/// The last element of a part that was read in that direction.
fn furthest<'r>(collection: &Collection, run: &'r [u8], reverse: bool) -> Option<Element<'r>> {
    let mut elements = elements(run, collection.is_sorted());
    if reverse { elements.next() } else { elements.last() }
}

/// The score in an element's row, of sets nothing.
pub(super) fn score_of<'r>(collection: &Collection, row: &'r [u8]) -> &'r [u8] {
    let score = collection.score.and_then(|score| Reader::new(row).nth(score));
    score.and_then(Cell::value).unwrap_or_default()
}

/// An increment in plain notation, which columns add.
fn plain(score: &[u8]) -> Result<Vec<u8>, Trouble> {
    let plain = ColumnType::DECIMAL.canonical(score).map_err(|_| Trouble::Error(NOT_FLOAT))?;
    Ok(plain.into_owned())
}

/// Answers a question from the elements; `part` says that these are a part of them, and whether it begins at the other end.
fn answer(
    collection: &Collection,
    ask: &Ask,
    run: &[u8],
    part: Option<bool>,
    reply: &mut Reply<'_>,
) {
    let mut meant: Vec<Element<'_>> =
        elements(run, collection.is_sorted()).filter(|element| ask.takes(element)).collect();
    match &ask.what {
        What::Count | What::CountScore(_) | What::CountLex(_) => {
            return reply.integer(meant.len() as i64);
        }
        What::Rank(member) => return rank(ask, member, &meant, reply),
        What::Lex(_) => meant.sort_unstable_by_key(|element| element.member),
        What::All | What::Index(..) | What::Score(_) => {}
    }
    let len = part.is_none().then_some(meant.len());
    let (flip, skip, take) = ask.window(len).unwrap_or((false, 0, 0));
    if ask.reverse != flip {
        meant.reverse();
    }
    let mut shown: Vec<Element<'_>> = meant.into_iter().skip(skip).take(take).collect();
    if flip {
        shown.reverse();
    }
    let is_nested = ask.with_scores && reply.is_typed();
    match (&ask.what, ask.with_scores && !is_nested) {
        (What::All, _) => reply.set(shown.len()),
        (_, true) => reply.array(shown.len() * 2),
        (_, false) => reply.array(shown.len()),
    }
    for element in shown {
        if is_nested {
            reply.array(2);
        }
        reply.bulk(element.member);
        if ask.with_scores {
            reply.double(&elements::format(number(element.score)));
        }
    }
}

fn rank(ask: &Ask, member: &[u8], elements: &[Element<'_>], reply: &mut Reply<'_>) {
    let Some(place) = elements.iter().position(|element| element.member == member) else {
        return if ask.with_scores { reply.null_array() } else { reply.null() };
    };
    let rank = if ask.reverse { elements.len() - 1 - place } else { place };
    if ask.with_scores {
        reply.array(2);
    }
    reply.integer(rank as i64);
    if ask.with_scores {
        reply.double(&elements::format(number(elements[place].score)));
    }
}
