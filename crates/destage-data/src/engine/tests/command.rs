//! Commands as clients send them, what the model makes of them, and the replies read back.

use super::client::raw;
use super::sets;
use super::shop::{self, NAMES};
use destage_testkit::origin::{self, Change, Op, Place, Row, Set};
use std::collections::{BTreeMap, BTreeSet};

/// A data command.
#[derive(Clone, Debug)]
pub(super) enum Data {
    Set(Place, Vec<(usize, String)>),
    SetAbsent(Place, usize, String),
    Add(Place, usize, i64),
    Clear(Place, usize),
    Delete(Place),
    /// Raw SQL that changes one item, or all.
    Raw(u64, Option<i64>),
    /// Raises a member's score, or makes it one.
    Raise(Place, i64),
    /// Takes a member out of its set.
    Leave(Place),
    Get(Place, usize),
    GetSome(Place, Vec<usize>),
    GetAll(Place),
    Exists(Place),
}

/// A reply, the same for both versions of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    List(Vec<Self>),
}

/// The columns' names, in the schema's order.
fn columns(table: usize) -> &'static [&'static str] {
    match table {
        shop::CHILD => &["id", "parent", "qty", "tag"],
        shop::DERIVED => &["id", "a", "twice", "made", "u", "tag"],
        shop::ITEM => &["id", "n", "tag", "u", "note"],
        _ => &["id", "tag", "total"],
    }
}

impl Data {
    pub(super) fn place(&self) -> Place {
        match self {
            Self::Set(place, _)
            | Self::SetAbsent(place, ..)
            | Self::Add(place, ..)
            | Self::Clear(place, _)
            | Self::Delete(place)
            | Self::Raise(place, _)
            | Self::Leave(place)
            | Self::Get(place, _)
            | Self::GetSome(place, _)
            | Self::GetAll(place)
            | Self::Exists(place) => *place,
            Self::Raw(_, key) => (shop::ITEM, key.unwrap_or(0)),
        }
    }

    pub(super) fn is_write(&self) -> bool {
        !matches!(self, Self::Get(..) | Self::GetSome(..) | Self::GetAll(_) | Self::Exists(_))
    }

    /// Whether its group carries something that no other command's does.
    pub(super) fn is_tagged(&self) -> bool {
        matches!(self, Self::Set(..) | Self::SetAbsent(..) | Self::Add(..) | Self::Raw(..))
    }

    pub(super) fn words(&self) -> Vec<String> {
        if let Self::Raw(number, key) = self {
            return vec!["DESTAGE".into(), "EXECUTE".into(), raw::word(*number, *key)];
        }
        let (table, key) = self.place();
        let names = columns(table);
        let name = |column: &usize| names[*column].to_owned();
        let of_set = |command: &str, rest: &[String]| {
            let words = [command.to_owned(), sets::KEY.into()].into_iter();
            words.chain(rest.iter().cloned()).collect()
        };
        match self {
            Self::Raise(_, amount) => {
                return of_set("ZINCRBY", &[amount.to_string(), key.to_string()]);
            }
            Self::Leave(_) => return of_set("ZREM", &[key.to_string()]),
            _ => {}
        }
        let mut words = match self {
            Self::Set(..) => vec!["HSET".to_owned()],
            Self::SetAbsent(..) => vec!["HSETNX".into()],
            Self::Add(..) => vec!["HINCRBY".into()],
            Self::Clear(..) => vec!["HDEL".into()],
            Self::Delete(_) | Self::Raise(..) | Self::Leave(_) => vec!["DEL".into()],
            Self::Get(..) => vec!["HGET".into()],
            Self::GetSome(..) => vec!["HMGET".into()],
            Self::GetAll(_) => vec!["HGETALL".into()],
            Self::Exists(_) => vec!["EXISTS".into()],
            Self::Raw(..) => unreachable!("told above"),
        };
        words.push(format!("{}:{key}", NAMES[table]));
        match self {
            Self::Set(_, sets) => {
                for (column, value) in sets {
                    words.extend([name(column), value.clone()]);
                }
            }
            Self::SetAbsent(_, column, value) => words.extend([name(column), value.clone()]),
            Self::Add(_, column, amount) => words.extend([name(column), amount.to_string()]),
            Self::Clear(_, column) | Self::Get(_, column) => words.push(name(column)),
            Self::GetSome(_, columns) => words.extend(columns.iter().map(name)),
            Self::Delete(_) | Self::Raise(..) | Self::Leave(_) | Self::Raw(..) => {}
            Self::GetAll(_) | Self::Exists(_) => {}
        }
        words
    }
}

pub(super) fn encode(words: &[String]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    out
}

/// Rows as a transaction sees and changes them.
pub(super) struct Rows<'a> {
    pub(super) tables: &'a [origin::Table],
    pub(super) rows: BTreeMap<Place, Option<Row>>,
    inserted: BTreeMap<Place, Vec<usize>>,
    changed: BTreeSet<Place>,
    /// A new row was deleted again that was not complete.
    dropped_incomplete: bool,
}

impl<'a> Rows<'a> {
    pub(super) fn new(tables: &'a [origin::Table], rows: BTreeMap<Place, Option<Row>>) -> Self {
        let (inserted, changed) = (BTreeMap::new(), BTreeSet::new());
        Self { tables, rows, inserted, changed, dropped_incomplete: false }
    }

    /// What the origin computes is not known in the transaction that changes it.
    fn is_unknown(&self, command: &Data) -> bool {
        let place = command.place();
        let unknown = |column: &usize| {
            (place.0 == shop::DERIVED && *column == 2 && self.changed.contains(&place))
                || (place.0 == shop::DERIVED && *column == 3 && self.inserted.contains_key(&place))
        };
        match command {
            Data::Get(_, column) => unknown(column),
            Data::GetSome(_, columns) => columns.iter().any(unknown),
            Data::GetAll(_) => [2, 3].iter().any(unknown),
            _ => false,
        }
    }

    fn change(&mut self, place: Place, op: Op, sets: Vec<(usize, Set)>) {
        if op == Op::Insert {
            self.inserted.insert(place, Vec::new());
        }
        if let Some(given) = self.inserted.get_mut(&place) {
            given.extend(sets.iter().map(|(column, _)| *column));
        }
        let table = &self.tables[place.0];
        let row = origin::apply(table, self.rows[&place].as_ref(), &Change { place, op, sets });
        self.changed.insert(place);
        if row.is_none() {
            let given = self.inserted.remove(&place);
            self.dropped_incomplete |= given.is_some_and(|given| !self.is_complete(place, &given));
            self.changed.remove(&place);
        }
        self.rows.insert(place, row);
    }

    /// Executes one command; `None` for an error.
    pub(super) fn execute(&mut self, command: &Data) -> Option<Value> {
        let place = command.place();
        let row = self.rows[&place].clone();
        let cell = |column: usize| row.as_ref().and_then(|row| row[column].clone());
        let text = |value: Option<String>| value.map_or(Value::Nil, Value::Text);
        if self.is_unknown(command) {
            return None;
        }
        let op = if row.is_some() { Op::Update } else { Op::Insert };
        Some(match command {
            Data::Get(_, column) => text(cell(*column)),
            Data::GetSome(_, columns) => {
                Value::List(columns.iter().map(|&column| text(cell(column))).collect())
            }
            Data::GetAll(_) => {
                let names = columns(place.0);
                let cells = row.unwrap_or_default().into_iter().zip(names);
                let pairs = cells.filter_map(|(cell, name)| Some([(*name).to_owned(), cell?]));
                Value::List(pairs.flatten().map(Value::Text).collect())
            }
            Data::Exists(_) => Value::Int(i64::from(row.is_some())),
            Data::Raw(number, key) => {
                for change in raw::changes_of(*number, *key) {
                    if self.rows.get(&change.place).is_some_and(Option::is_some) {
                        self.change(change.place, Op::Update, change.sets);
                    }
                }
                Value::Text("OK".into())
            }
            Data::Raise(_, amount) => {
                let old = cell(sets::SCORE).map_or(Some(0), |old| old.parse::<i64>().ok())?;
                let sum = old.checked_add(*amount)?.to_string();
                self.change(place, op, vec![(sets::SCORE, Set::To(Some(sum.clone())))]);
                Value::Text(sum)
            }
            Data::Delete(_) | Data::Leave(_) => {
                if row.is_some() {
                    self.change(place, Op::Delete, vec![]);
                }
                Value::Int(i64::from(row.is_some()))
            }
            Data::Set(_, sets) => {
                let added = sets.iter().filter(|(column, _)| cell(*column).is_none()).count();
                let sets = sets.iter().map(|(c, v)| (*c, Set::To(Some(v.clone())))).collect();
                let is_new = row.is_none();
                let count = if is_new { Vec::len(&sets) } else { added };
                self.change(place, op, sets);
                Value::Int(count as i64)
            }
            Data::SetAbsent(_, column, value) => {
                let is_set = cell(*column).is_some();
                if !is_set {
                    self.change(place, op, vec![(*column, Set::To(Some(value.clone())))]);
                }
                Value::Int(i64::from(!is_set))
            }
            Data::Clear(_, column) => {
                let is_set = cell(*column).is_some();
                if is_set {
                    self.change(place, op, vec![(*column, Set::To(None))]);
                }
                Value::Int(i64::from(is_set))
            }
            Data::Add(_, column, amount) => {
                let old = cell(*column).map_or(Some(0), |old| old.parse::<i64>().ok())?;
                let sum = old.checked_add(*amount)?;
                self.change(place, op, vec![(*column, Set::To(Some(sum.to_string())))]);
                Value::Int(sum)
            }
        })
    }

    /// Whether new rows have every column that they need.
    pub(super) fn are_complete(&self) -> bool {
        self.inserted.iter().all(|(&place, given)| self.is_complete(place, given))
    }

    fn is_complete(&self, (table, _): Place, given: &[usize]) -> bool {
        self.tables[table].columns.iter().enumerate().skip(1).all(|(index, column)| {
            !column.not_null || column.default.is_some() || given.contains(&index)
        })
    }

    /// Whether the origin itself would refuse the transaction, since it would not take a row that is deleted further on. Where
    /// nothing else is changed in between, nothing of the row is sent.
    pub(super) fn may_be_refused(&self) -> bool {
        self.dropped_incomplete
    }
}

/// Reads one reply from the front of `bytes`; `None` if it is not whole.
///
/// # Errors
/// What is not as the protocol says.
pub(super) fn read_reply(bytes: &[u8], resp3: bool) -> Result<Option<(Value, usize)>, String> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let line = String::from_utf8(bytes[1..end].to_vec()).map_err(|e| e.to_string())?;
    let number = || line.parse::<i64>().map_err(|_| format!("no number: {line}"));
    let used = end + 2;
    let value = match bytes[0] {
        b'+' => Value::Text(line),
        b'-' => Value::Error(line),
        b':' => Value::Int(number()?),
        b',' if resp3 => Value::Text(line),
        b'_' if resp3 && line.is_empty() => Value::Nil,
        b'$' if number()? < 0 && !resp3 => Value::Nil,
        kind @ (b'$' | b'=') => {
            if kind == b'=' && !resp3 {
                return Err("verbatim text in RESP2".into());
            }
            let len = usize::try_from(number()?).map_err(|e| e.to_string())?;
            if bytes.len() < used + len + 2 {
                return Ok(None);
            }
            if &bytes[used + len..used + len + 2] != b"\r\n" {
                return Err("a bulk string without its end".into());
            }
            let text = String::from_utf8_lossy(&bytes[used..used + len]).into_owned();
            return Ok(Some((Value::Text(text), used + len + 2)));
        }
        b'*' if number()? < 0 && !resp3 => Value::Nil,
        kind @ (b'*' | b'%') => {
            if kind == b'%' && !resp3 {
                return Err("a map in RESP2".into());
            }
            let count = number()? * if kind == b'%' { 2 } else { 1 };
            let mut list = Vec::new();
            let mut at = used;
            for _ in 0..count {
                let Some((value, len)) = read_reply(&bytes[at..], resp3)? else { return Ok(None) };
                list.push(value);
                at += len;
            }
            return Ok(Some((Value::List(list), at)));
        }
        other => return Err(format!("a reply of kind {:?}", char::from(other))),
    };
    Ok(Some((value, used)))
}
