//! Strings over one column of a table: GET, SET, INCR and their kin on keys that `[[string]]` maps.
//!
//! The key is the row's, the value one column of it; the other columns keep what they hold, or get their defaults. So a
//! string is destaged, parked, watched and evicted as the row that it is a part of.

use super::command::{Spec, Verb};
use super::deadline::{Change, refuse_expiry};
use super::numbers::{NOT_FLOAT, NOT_INTEGER, OVERFLOW, decimal, exact, integer, without_zeros};
use super::perform::Context;
use super::prepared::{Prepared, SetOptions, Trouble, unfit, wrong_type};
use super::txn::Update;
use crate::mapping::Shape;
use crate::resp::{Code, Reply, ReplyError};
use crate::schema::{PLAIN_HASH, PLAIN_STRING, Schema, Table};
use destage_core::UnitId;
use std::ops::Range;

/// Redis's own words, which clients compare.
const SYNTAX: ReplyError = ReplyError::fixed(Code::Err, "syntax error");

impl Verb {
    /// Whether the command works on strings alone.
    pub(super) fn is_of_strings(self) -> bool {
        matches!(
            self,
            Self::Get
                | Self::Set
                | Self::SetIf
                | Self::MGet
                | Self::MSet
                | Self::MSetNx
                | Self::IncrBy
                | Self::IncrByFloat
                | Self::Append
                | Self::StrLen
                | Self::GetRange
                | Self::GetDel
                | Self::GetEx
                | Self::DelIf
        )
    }
}

impl Prepared {
    /// Checks the arguments of a command on strings.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn read_string(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        match spec.verb {
            Verb::MGet => {
                return args[1..]
                    .iter()
                    .try_for_each(|key| self.push_string(schema, key).map(drop));
            }
            Verb::MSet | Verb::MSetNx => return self.read_pairs(schema, spec, &args[1..]),
            _ => {}
        }
        let (table, column) = self.push_string(schema, args[1])?;
        match spec.verb {
            Verb::Set | Verb::SetIf => self.read_set(table, column, spec, &args[2..]),
            Verb::GetEx => self.read_get_ex(table, spec, &args[2..]),
            Verb::DelIf => self.read_delete_if(spec, &args[2..]),
            Verb::IncrBy => self.read_increment(table, column, spec, args.get(2).copied()),
            Verb::IncrByFloat => {
                if table.columns[column].ty.is_number() {
                    self.push_number(table, column, false, args[2])
                } else {
                    self.amount.extend_from_slice(args[2]);
                    decimal(args[2]).map(drop).ok_or(NOT_FLOAT)
                }
            }
            Verb::Append => {
                self.amount.extend_from_slice(args[2]);
                Ok(())
            }
            Verb::GetRange => {
                let place = |arg| integer(arg).map_err(|_| NOT_INTEGER);
                self.places = (place(args[2])?, place(args[3])?);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Whether the command fails where a plain cache key is a hash.
    fn needs_string(&self) -> bool {
        match self.verb {
            Verb::MGet | Verb::Set | Verb::MSet | Verb::MSetNx => false,
            Verb::SetIf => self.options.get,
            _ => true,
        }
    }

    /// A key that must be a string's; its column is noted, too.
    fn push_string<'s>(
        &mut self,
        schema: &'s Schema,
        key: &[u8],
    ) -> Result<(&'s Table, usize), ReplyError> {
        let (table, shape) = self.push_key(schema, key)?;
        let column = match shape {
            Shape::String(column) => column,
            Shape::Plain => PLAIN_STRING,
            _ => return Err(wrong_type(key, shape)),
        };
        self.columns.push(column);
        Ok((table, column))
    }

    fn read_pairs(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        pairs: &[&[u8]],
    ) -> Result<(), ReplyError> {
        if !pairs.len().is_multiple_of(2) {
            return Err(ReplyError::err(format!(
                "wrong number of arguments for '{}' command",
                spec.name
            )));
        }
        self.expire.change = Change::Never;
        for pair in pairs.chunks_exact(2) {
            let (table, column) = self.push_string(schema, pair[0])?;
            self.push_value(table, column, pair[1])?;
        }
        Ok(())
    }

    fn push_value(&mut self, table: &Table, column: usize, value: &[u8]) -> Result<(), ReplyError> {
        let canonical = table.columns[column].ty.canonical(value);
        let canonical = canonical.map_err(|error| unfit(table, column, value, &error.0))?;
        let start = self.values.len();
        self.values.extend_from_slice(&canonical);
        self.sets.push((column, start..self.values.len()));
        Ok(())
    }

    /// SET key value [NX | XX] [GET] [KEEPTTL | EX s | PX ms | EXAT s | PXAT ms], SETNX key value, GETSET key value, SETEX key s
    /// value, PSETEX key ms value
    fn read_set(
        &mut self,
        table: &Table,
        column: usize,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let mut expire = None;
        let options = match spec.name {
            "setex" | "psetex" => {
                let word: &[u8] = if spec.name == "setex" { b"ex" } else { b"px" };
                expire = Change::read(word, args[0], spec.name)?;
                self.push_value(table, column, args[1])?;
                &args[2..]
            }
            _ => {
                self.push_value(table, column, args[0])?;
                &args[1..]
            }
        };
        match spec.name {
            "setnx" => (self.options.absent, self.options.counts) = (true, true),
            "getset" => self.options.get = true,
            _ => {}
        }
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let word = option.to_ascii_lowercase();
            match word.as_slice() {
                b"nx" => self.options.absent = true,
                b"xx" => self.options.present = true,
                b"get" => self.options.get = true,
                b"keepttl" if expire.is_none() => expire = Some(Change::Keep),
                b"ex" | b"px" | b"exat" | b"pxat" if expire.is_none() => {
                    let time = options.next().ok_or(SYNTAX)?;
                    expire = Change::read(&word, time, spec.name)?;
                }
                _ => return Err(SYNTAX),
            }
        }
        if self.options.absent && self.options.present {
            return Err(SYNTAX);
        }
        self.expire.change = expire.unwrap_or(Change::Never);
        let is_timed = self.expire.change.is_timed();
        if is_timed {
            refuse_expiry(self.shape, table)?;
        }
        if is_timed || self.options != SetOptions::default() {
            self.verb = Verb::SetIf;
        }
        Ok(())
    }

    /// GETEX key [PERSIST | EX s | PX ms | EXAT s | PXAT ms]
    fn read_get_ex(
        &mut self,
        table: &Table,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        self.expire.change = match args {
            [] => return Ok(()),
            [word] if word.eq_ignore_ascii_case(b"persist") => Change::Never,
            [word, time] => {
                Change::read(&word.to_ascii_lowercase(), time, spec.name)?.ok_or(SYNTAX)?
            }
            _ => return Err(SYNTAX),
        };
        if self.expire.change.is_timed() { refuse_expiry(self.shape, table) } else { Ok(()) }
    }

    /// DELEX key IFEQ | IFNE value, DELIFEQ key value
    fn read_delete_if(&mut self, spec: &Spec, args: &[&[u8]]) -> Result<(), ReplyError> {
        let value = match args {
            [value] if spec.name == "delifeq" => value,
            [condition, value] if condition.eq_ignore_ascii_case(b"ifeq") => value,
            [condition, value] if condition.eq_ignore_ascii_case(b"ifne") => {
                self.options.absent = true;
                value
            }
            [condition, _]
                if condition.eq_ignore_ascii_case(b"ifdeq")
                    || condition.eq_ignore_ascii_case(b"ifdne") =>
            {
                return Err(ReplyError::fixed(
                    Code::Err,
                    "there are no digests of values; DELEX takes IFEQ and IFNE with the value itself",
                ));
            }
            _ => return Err(SYNTAX),
        };
        self.amount.extend_from_slice(value);
        Ok(())
    }

    fn read_increment(
        &mut self,
        table: &Table,
        column: usize,
        spec: &Spec,
        by: Option<&[u8]>,
    ) -> Result<(), ReplyError> {
        let by = integer(by.unwrap_or(b"1")).map_err(|_| NOT_INTEGER)?;
        let by = match spec.name {
            "decr" | "decrby" => {
                by.checked_neg().ok_or(ReplyError::fixed(Code::Err, "decrement would overflow"))?
            }
            _ => by,
        };
        let amount = itoa::Buffer::new().format(by).as_bytes().to_vec();
        if table.columns[column].ty.is_number() {
            self.push_number(table, column, true, &amount)
        } else {
            self.amount = amount;
            Ok(())
        }
    }
}

impl Context<'_> {
    /// Performs one command on strings; its reply is appended.
    pub(super) fn perform_string(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let schema = self.schema;
        let table = schema.table(prepared.key_list[0].0);
        let (unit, column) = (units[0], prepared.columns[0]);
        if schema.plain.is_some() && prepared.needs_string() {
            self.refuse_hash(unit)?;
        }
        match prepared.verb {
            Verb::Get => reply.bulk_or_null(self.cell(unit, column)?),
            Verb::MGet => {
                reply.array(units.len());
                for (&unit, &column) in units.iter().zip(&prepared.columns) {
                    reply.bulk_or_null(self.cell(unit, column)?);
                }
            }
            Verb::StrLen => {
                reply.integer(self.cell(unit, column)?.map_or(0, |value| value.len() as i64));
            }
            Verb::GetRange => {
                let value = self.cell(unit, column)?.unwrap_or_default();
                reply.bulk(&value[range(prepared.places, value.len())]);
            }
            Verb::GetDel => {
                reply.bulk_or_null(self.cell(unit, column)?);
                if self.row(unit).is_some() {
                    self.remove(table.id, unit);
                }
            }
            Verb::DelIf => {
                let value = self.cell(unit, column)?;
                let is_meant = (value == Some(&prepared.amount[..])) != prepared.options.absent;
                let is_done = value.is_some() && is_meant;
                if is_done {
                    self.remove(table.id, unit);
                }
                reply.integer(i64::from(is_done));
            }
            Verb::GetEx => {
                let value = self.cell(unit, column)?;
                reply.bulk_or_null(value);
                let is_there = value.is_some();
                if is_there && table.ttl.is_some() {
                    if let Some(set) = self.end_set(table, unit, prepared.expire.change)? {
                        self.put(table, unit, vec![set])?;
                    }
                } else if is_there {
                    self.change_deadline(table.id, unit, prepared.expire.change);
                }
            }
            Verb::Set | Verb::MSet => {
                self.set_strings(prepared, units)?;
                reply.ok();
            }
            Verb::MSetNx => return self.set_all_absent(prepared, units, reply),
            Verb::SetIf => return self.set_if(prepared, units, reply),
            Verb::Append => return self.append(table, unit, prepared, reply),
            Verb::IncrBy | Verb::IncrByFloat => {
                return self.increment_string(table, unit, prepared, reply);
            }
            _ => unreachable!("not a command on strings"),
        }
        Ok(())
    }

    /// Sets each key's value, and its deadline.
    fn set_strings(&mut self, prepared: &Prepared, units: &[UnitId]) -> Result<(), Trouble> {
        let schema = self.schema;
        let mut ends = Vec::new();
        if schema.rows_end {
            // Before anything is changed.
            for ((table, _), &unit) in prepared.keys().zip(units) {
                ends.push(self.end_set(schema.table(table), unit, prepared.expire.change)?);
            }
        }
        let mut ends = ends.into_iter();
        for (((table, _), (column, value)), &unit) in
            prepared.keys().zip(prepared.sets()).zip(units)
        {
            let mut sets = vec![(column, Update::To(value.to_vec()))];
            if self.is_plain(unit) {
                sets.push((PLAIN_HASH, Update::Null));
            }
            sets.extend(ends.next().flatten());
            let table = schema.table(table);
            self.write(table, unit, sets)?;
            if table.ttl.is_none() {
                self.change_deadline(table.id, unit, prepared.expire.change);
            }
        }
        Ok(())
    }

    fn set_if(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let options = prepared.options;
        let old = self.cell(units[0], prepared.columns[0])?;
        let is_set = self.is_set(units[0], prepared.columns[0])?;
        let is_done = !(options.absent && is_set || options.present && !is_set);
        match (options.get, options.counts) {
            (true, _) => reply.bulk_or_null(old),
            (false, true) => reply.integer(i64::from(is_done)),
            (false, false) if is_done => reply.ok(),
            (false, false) => reply.null(),
        }
        if is_done {
            self.set_strings(prepared, units)?;
        }
        Ok(())
    }

    fn set_all_absent(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let mut is_done = true;
        for (&unit, &column) in units.iter().zip(&prepared.columns) {
            is_done &= !self.is_set(unit, column)?;
        }
        if is_done {
            self.set_strings(prepared, units)?;
        }
        reply.integer(i64::from(is_done));
        Ok(())
    }

    fn append(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let column = prepared.columns[0];
        let old = self.cell(unit, column)?.unwrap_or_default();
        self.check_bytes("a string", old.len() + prepared.amount.len())?;
        let longer = [old, &prepared.amount].concat();
        self.replace_string(table, unit, column, &longer, |new| {
            reply.integer(new.len() as i64);
        })
    }

    /// Refuses what has grown, one command after another, to more than one of them might bring.
    ///
    /// # Errors
    /// It has.
    pub(super) fn check_bytes(&self, what: &str, bytes: usize) -> Result<(), Trouble> {
        if bytes <= self.bytes_max {
            return Ok(());
        }
        let message = format!(
            "{what} of {bytes} bytes exceeds the maximum allowed size of {} (--max-request); nothing was done",
            self.bytes_max
        );
        Err(Trouble::Error(ReplyError::err(message)))
    }

    /// Increments a number, or a text that reads as one, as Redis's strings do.
    fn increment_string(
        &mut self,
        table: &Table,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let column = prepared.columns[0];
        let old = self.cell(unit, column)?.unwrap_or(b"0");
        let is_whole = prepared.verb == Verb::IncrBy;
        if table.columns[column].ty.is_number() {
            if is_whole {
                integer(old)?;
            }
            return self.increment(table, unit, prepared, reply);
        }
        if is_whole {
            let sum = integer(old)?.checked_add(integer(&prepared.amount)?);
            let sum = sum.ok_or(Trouble::Error(OVERFLOW))?;
            let text = itoa::Buffer::new().format(sum).as_bytes().to_vec();
            return self.replace_string(table, unit, column, &text, |_| reply.integer(sum));
        }
        let sum = decimal(old)
            .zip(decimal(&prepared.amount))
            .and_then(|(old, amount)| exact().add(&old, &amount).ok())
            .ok_or(Trouble::Error(NOT_FLOAT))?;
        let text = without_zeros(&sum).to_vec();
        self.replace_string(table, unit, column, &text, |new| reply.bulk(new))
    }

    /// Sets a value that follows from the old one.
    fn replace_string(
        &mut self,
        table: &Table,
        unit: UnitId,
        column: usize,
        value: &[u8],
        reply: impl FnOnce(&[u8]),
    ) -> Result<(), Trouble> {
        let canonical = table.columns[column].ty.canonical(value);
        let canonical = canonical.map_err(|error| unfit(table, column, value, &error.0))?;
        reply(&canonical);
        let sets = vec![(column, Update::To(canonical.into_owned()))];
        self.write(table, unit, sets)
    }

    /// Whether a key holds anything that SETNX leaves alone.
    fn is_set(&self, unit: UnitId, column: usize) -> Result<bool, Trouble> {
        if self.is_plain(unit) {
            Ok(self.row(unit).is_some())
        } else {
            Ok(self.cell(unit, column)?.is_some())
        }
    }
}

/// The bytes between two places, both included; negative ones count from the end, as in Redis.
fn range((first, last): (i64, i64), len: usize) -> Range<usize> {
    let len = len as i64;
    if first < 0 && last < 0 && first > last {
        return 0..0;
    }
    let place = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let (first, last) = (place(first), place(last).min(len - 1));
    if len == 0 || first > last { 0..0 } else { first as usize..last as usize + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_those_of_redis() {
        for (text, expected) in
            [("0", 0), ("7", 7), ("-12", -12), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(integer(text.as_bytes()).ok(), Some(expected), "{text}");
        }
        for text in ["", "007", "00", "-0", "+5", " 5", "5 ", "5.0", "9223372036854775808", "-"] {
            assert!(integer(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_are_those_of_redis() {
        for (places, expected) in [
            ((0, 3), 0..4),
            ((-3, -1), 6..9),
            ((0, -1), 0..9),
            ((10, 100), 0..0),
            ((5, 100), 5..9),
            ((-100, 2), 0..3),
            ((4, 2), 0..0),
            ((-1, -3), 0..0),
            ((-20, -10), 0..1),
            ((-10, -20), 0..0),
        ] {
            assert_eq!(range(places, 9), expected, "{places:?}");
        }
        assert_eq!(range((0, -1), 0), 0..0);
    }

    #[test]
    fn numbers_lose_zeros_that_say_nothing() {
        for (number, expected) in [("1.50", "1.5"), ("2.0", "2"), ("10", "10"), ("0.00", "0")] {
            assert_eq!(without_zeros(number.as_bytes()), expected.as_bytes());
        }
    }
}
