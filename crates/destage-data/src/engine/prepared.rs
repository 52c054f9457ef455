//! The commands on data, with their arguments checked and made canonical.

use super::ask::Ask;
use super::claims::Values;
use super::command::{Category, Spec, Verb};
use super::deadline::Expire;
use super::given::Numbered;
use super::hash_scan::HashScan;
use super::key::resolve;
use super::numbers::{NOT_FLOAT, NOT_INTEGER};
use super::once::command::Once;
use super::rows::RowKey;
use super::script::call::Call;
use crate::collection::CollectionId;
use crate::key_text::show;
use crate::mapping::Shape;
use crate::resp::{Code, ReplyError};
use crate::schema::{Schema, Table, TableId};
use destage_core::Time;
use std::collections::BTreeSet;
use std::ops::Range;

/// Why a command was not performed. Nothing has been done.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// An error for the client.
    Error(ReplyError),
    /// A value is needed that only the origin knows: destage and fetch the rows again first.
    Unknown,
    /// Other parts of a collection are needed than those given.
    Again,
    /// A row has not ended by the origin's clock yet: ask again at this time.
    Early(Time),
    /// It is to be performed beside these rows, to which others of it refer.
    Parents(BTreeSet<RowKey>),
    /// It has to be asked which rows have these values.
    Holders(Vec<Values>),
    /// A number of the sequence of this column is needed, and none is at hand.
    Numbers(Numbered),
}

impl From<ReplyError> for Trouble {
    fn from(error: ReplyError) -> Self {
        Self::Error(error)
    }
}

/// What a command on a collection says besides its keys.
#[derive(Clone, Debug)]
pub(super) struct SetCommand {
    pub(super) collection: CollectionId,
    /// Whether the reply is an array even for one member.
    pub(super) is_many: bool,
    pub(super) conditions: ScoreConditions,
    /// The scores of the elements, in canonical form.
    pub(super) scores: Vec<Vec<u8>>,
    pub(super) ask: Option<Ask>,
}

/// The options of ZADD.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScoreConditions {
    pub(super) absent: bool,
    pub(super) present: bool,
    pub(super) greater: bool,
    pub(super) less: bool,
    pub(super) counts_changes: bool,
    pub(super) increments: bool,
}

/// What SET and its kin ask besides the value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetOptions {
    /// NX: only if there is no value.
    pub(super) absent: bool,
    /// XX: only if there is one.
    pub(super) present: bool,
    /// GET: reply with the old value.
    pub(super) get: bool,
    /// SETNX replies with a number.
    pub(super) counts: bool,
}

/// A data command with its arguments checked; reused from command to command.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) verb: Verb,
    pub(crate) category: Category,
    /// What the first key is.
    pub(super) shape: Shape,
    /// Encoded keys, one after the other, with their tables.
    pub(super) keys: Vec<u8>,
    pub(crate) key_list: Vec<(TableId, Range<usize>)>,
    /// The keys as they were given, one after the other, and where each of them ends.
    names: Vec<u8>,
    name_ends: Vec<usize>,
    keeps_names: bool,
    /// Columns asked for or to be cleared.
    pub(crate) columns: Vec<usize>,
    /// Columns to set, with their canonical values.
    pub(super) values: Vec<u8>,
    pub(super) sets: Vec<(usize, Range<usize>)>,
    /// For the increments: the amount as given; for APPEND: what is appended.
    pub(crate) amount: Vec<u8>,
    pub(super) options: SetOptions,
    /// GETRANGE's places.
    pub(super) places: (i64, i64),
    /// What a command on a collection says besides.
    pub(super) set: Option<Box<SetCommand>>,
    /// What becomes of the key's deadline.
    pub(super) expire: Expire,
    /// Fields of a plain hash, and between them the values that they are to have, in `values`.
    pub(super) fields: Vec<Range<usize>>,
    /// How many of the keys were given; others are those of a set's elements.
    pub(super) own_keys: usize,
    /// What HSCAN is to show.
    pub(super) hash_scan: HashScan,
    /// The script of EVAL.
    pub(super) script: Option<Box<Call>>,
    /// It is carried out once.
    pub(super) once: Option<Once>,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            verb: Verb::Type,
            category: Category::Read,
            shape: Shape::Hash,
            keys: Vec::new(),
            key_list: Vec::new(),
            names: Vec::new(),
            name_ends: Vec::new(),
            keeps_names: false,
            columns: Vec::new(),
            values: Vec::new(),
            sets: Vec::new(),
            amount: Vec::new(),
            options: SetOptions::default(),
            places: (0, 0),
            set: None,
            expire: Expire::default(),
            fields: Vec::new(),
            own_keys: 0,
            hash_scan: HashScan::default(),
            script: None,
            once: None,
        }
    }
}

impl Prepared {
    /// The keys with their tables.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = (TableId, &[u8])> {
        self.key_list.iter().map(|(table, range)| (*table, &self.keys[range.clone()]))
    }

    /// The keys as they were given. The first so many of [`Prepared::keys`] are theirs, in order; of one, all.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.name_ends.iter().enumerate().map(|(index, &end)| {
            let start = if index == 0 { 0 } else { self.name_ends[index - 1] };
            &self.names[start..end]
        })
    }

    /// Keeps a key as it was given.
    pub(super) fn push_name(&mut self, key: &[u8]) {
        if !self.keeps_names {
            return;
        }
        self.names.extend_from_slice(key);
        self.name_ends.push(self.names.len());
    }

    /// The values to set.
    pub(crate) fn sets(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.sets.iter().map(|(column, range)| (*column, &self.values[range.clone()]))
    }

    /// An upper estimate of what the write will buffer, bytes.
    pub(crate) fn buffered_bytes(&self) -> u32 {
        let bytes = self.values.len() + self.keys.len() + 16 * (self.sets.len() + 2);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    fn clear(&mut self, spec: &Spec) {
        self.verb = spec.verb;
        self.category = spec.category;
        self.keys.clear();
        self.key_list.clear();
        self.names.clear();
        self.name_ends.clear();
        self.columns.clear();
        self.values.clear();
        self.sets.clear();
        self.amount.clear();
        self.options = SetOptions::default();
        self.set = None;
        self.expire = Expire::default();
        self.fields.clear();
        self.hash_scan = HashScan::default();
        self.script = None;
        self.once = None;
    }

    /// Checks a data command's arguments and stores them.
    ///
    /// # Errors
    /// A message for the client; nothing has been done.
    pub(crate) fn read(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
        keeps_names: bool,
    ) -> Result<(), ReplyError> {
        self.clear(spec);
        self.keeps_names = keeps_names;
        if matches!(spec.verb, Verb::Del | Verb::Exists) {
            self.own_keys = args.len() - 1;
            return args[1..].iter().try_for_each(|key| self.push_key(schema, key).map(|_| ()));
        }
        if matches!(spec.verb, Verb::Eval | Verb::EvalSha) {
            return self.read_script(schema, spec, args);
        }
        if spec.verb == Verb::DelIf && args.len() == 2 {
            // Without a condition it is DEL of one key, whatever that holds.
            (self.verb, self.own_keys) = (Verb::Del, 1);
            return self.push_key(schema, args[1]).map(drop);
        }
        if spec.verb.is_of_sets() {
            return self.read_set_command(schema, spec, args);
        }
        if spec.verb.is_of_expiry() {
            return self.read_expiry(schema, spec, args);
        }
        if spec.verb.is_of_strings() {
            return self.read_string(schema, spec, args);
        }
        let (table, shape) = self.push_key(schema, args[1])?;
        let rest = &args[2..];
        match shape {
            _ if spec.verb == Verb::Type => return Ok(()),
            Shape::Hash | Shape::Plain if spec.verb == Verb::HScan => {
                self.hash_scan = HashScan::read(rest)?;
                return Ok(());
            }
            Shape::Hash => {}
            Shape::Plain => return self.read_fields(spec, rest),
            _ => return Err(wrong_type(args[1], shape)),
        }
        match spec.verb {
            Verb::HGet | Verb::HMGet | Verb::HExists | Verb::HStrLen => {
                rest.iter().try_for_each(|field| self.push_column(table, field))
            }
            Verb::HDel => rest.iter().try_for_each(|field| self.push_cleared(table, field)),
            Verb::HSet | Verb::HMSet | Verb::HSetNx => self.push_sets(table, spec, rest),
            Verb::HIncrBy | Verb::HIncrByFloat => self.push_amount(table, spec, rest[0], rest[1]),
            _ => Ok(()),
        }
    }

    /// Adds a key that is encoded already.
    pub(super) fn push_own_key(&mut self, table: TableId, key: &[u8]) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        self.key_list.push((table, start..self.keys.len()));
    }

    pub(super) fn push_key<'s>(
        &mut self,
        schema: &'s Schema,
        key: &[u8],
    ) -> Result<(&'s Table, Shape), ReplyError> {
        let start = self.keys.len();
        let (table, shape) = resolve(schema, key, &mut self.keys)?;
        self.push_name(key);
        if self.key_list.is_empty() {
            self.shape = shape;
        }
        self.key_list.push((table.id, start..self.keys.len()));
        Ok((table, shape))
    }

    fn push_column(&mut self, table: &Table, field: &[u8]) -> Result<(), ReplyError> {
        self.columns.push(find_column(table, field)?);
        Ok(())
    }

    fn push_cleared(&mut self, table: &Table, field: &[u8]) -> Result<(), ReplyError> {
        let index = find_writable(table, field)?;
        let column = &table.columns[index];
        if index < table.key_len {
            return Err(ReplyError::err(format!(
                "{}.{} is part of the key",
                table.name, column.name
            )));
        }
        if column.not_null {
            return Err(ReplyError::err(format!(
                "{}.{} is NOT NULL: HDEL would set it to NULL; HSET a value, or DEL the row",
                table.name, column.name
            )));
        }
        if !self.columns.contains(&index) {
            self.columns.push(index);
        }
        Ok(())
    }

    fn push_sets(&mut self, table: &Table, spec: &Spec, rest: &[&[u8]]) -> Result<(), ReplyError> {
        if !rest.len().is_multiple_of(2) {
            return Err(ReplyError::err(format!(
                "wrong number of arguments for '{}' command",
                spec.name
            )));
        }
        for pair in rest.chunks_exact(2) {
            let index = find_writable(table, pair[0])?;
            let column = &table.columns[index];
            let value =
                column.ty.canonical(pair[1]).map_err(|e| unfit(table, index, pair[1], &e.0))?;
            if index < table.key_len {
                if self.is_own_key(table, index, &value) {
                    continue;
                }
                return Err(ReplyError::err(format!(
                    "{}.{} is part of the key and cannot change; write the row under its new key",
                    table.name, column.name
                )));
            }
            let start = self.values.len();
            self.values.extend_from_slice(&value);
            let range = start..self.values.len();
            match self.sets.iter_mut().find(|(set, _)| *set == index) {
                Some(set) => set.1 = range,
                None => self.sets.push((index, range)),
            }
        }
        Ok(())
    }

    /// Whether a value given for a key column is the one in the key.
    fn is_own_key(&self, table: &Table, index: usize, value: &[u8]) -> bool {
        let mut cells = crate::cells::Reader::new(&self.keys[self.key_list[0].1.clone()]);
        debug_assert!(index < table.key_len);
        cells.nth(index).and_then(crate::cells::Cell::value) == Some(value)
    }

    fn push_amount(
        &mut self,
        table: &Table,
        spec: &Spec,
        field: &[u8],
        amount: &[u8],
    ) -> Result<(), ReplyError> {
        let index = find_writable(table, field)?;
        if index < table.key_len {
            let name = &table.columns[index].name;
            return Err(ReplyError::err(format!("{}.{name} is part of the key", table.name)));
        }
        self.push_number(table, index, spec.verb == Verb::HIncrBy, amount)
    }

    /// Checks the amount by which a column is to grow; `is_integer` as HINCRBY wants it.
    pub(super) fn push_number(
        &mut self,
        table: &Table,
        index: usize,
        is_integer: bool,
        amount: &[u8],
    ) -> Result<(), ReplyError> {
        let column = &table.columns[index];
        if table.is_computed(index) {
            return Err(ReplyError::err(format!(
                "{}.{} is set by a trigger, so what an increment makes of it is not known here",
                table.name, column.name
            )));
        }
        let text = std::str::from_utf8(amount).unwrap_or("");
        let number = text.strip_prefix('+').unwrap_or(text);
        let amount_fits = if is_integer {
            number.parse::<i64>().is_ok()
        } else {
            number.parse::<f64>().is_ok_and(f64::is_finite)
        };
        if !amount_fits {
            return Err(if is_integer { NOT_INTEGER } else { NOT_FLOAT });
        }
        if !column.ty.is_number() {
            return Err(ReplyError::err(format!(
                "{}.{} ({}) is not a number and cannot be incremented",
                table.name, column.name, column.type_name
            )));
        }
        // Clients whose amounts are floating-point numbers write whole ones so.
        let is_whole = matches!(column.ty, crate::value::ColumnType::Int { .. });
        let number = if is_whole { without_zeros(number) } else { number };
        // A fraction added to a whole-number column fails here, by the column's own rule.
        let kept = column.ty.amount(number.as_bytes());
        let kept = kept.map_err(|error| unfit(table, index, amount, &error.0))?;
        self.columns.push(index);
        self.amount.extend_from_slice(&kept);
        Ok(())
    }
}

/// A command does not fit what the key is.
pub(super) fn wrong_type(key: &[u8], shape: Shape) -> ReplyError {
    let (is, hint) = match shape {
        Shape::Hash => (
            "a row, read as a hash",
            "use HGET, HSET, HINCRBY; [[string]] in the settings maps keys to single columns",
        ),
        Shape::String(_) => ("a string", "use GET, SET, INCRBY"),
        Shape::Set(_) => ("a set", "use SADD, SREM, SMEMBERS"),
        Shape::SortedSet(_) => ("a sorted set", "use ZADD, ZREM, ZRANGE"),
        Shape::Plain => (
            "a plain cache key, which is a string or a hash",
            "[[set]] and [[zset]] in the settings map keys to tables",
        ),
    };
    ReplyError::new(Code::WrongType, format!("the key '{}' is {is}: {hint}", show(key)))
}

/// `1.0` as `1`; everything else as it is.
fn without_zeros(number: &str) -> &str {
    match number.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => number,
    }
}

pub(super) fn unfit(table: &Table, index: usize, value: &[u8], why: &str) -> ReplyError {
    let column = &table.columns[index];
    ReplyError::err(format!(
        "{}.{} ({}) does not take '{}': {why}",
        table.name,
        column.name,
        column.type_name,
        show(value)
    ))
}

fn find_column(table: &Table, field: &[u8]) -> Result<usize, ReplyError> {
    table.column(field).ok_or_else(|| {
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        ReplyError::err(format!(
            "{} has no column '{}'; it has: {}",
            table.name,
            show(field),
            names.join(", ")
        ))
    })
}

fn find_writable(table: &Table, field: &[u8]) -> Result<usize, ReplyError> {
    let index = find_column(table, field)?;
    let column = &table.columns[index];
    if column.generated {
        return Err(ReplyError::err(format!(
            "{}.{} is computed by the origin and cannot be written",
            table.name, column.name
        )));
    }
    Ok(index)
}
