//! Rows that end at a time which a column of theirs holds.
//!
//! Times are counted in milliseconds since 1970, and what is read is rounded up: a row has ended at `now` if and only if
//! its column is not greater than `now` to the database, too.

use crate::cells::{Cell, Reader};
use crate::error::OriginError;
use crate::schema::{Column, Schema, Table, TableId};
use crate::settings::TableSettings;
use crate::value::{ColumnType, MysqlType};
use destage_core::Fault;
use std::collections::BTreeMap;

/// In which column of a table the times stand, as the settings say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TtlSettings {
    /// The column's name.
    pub column: String,
    /// What its numbers count; `None`: seconds. Only numbers have one.
    pub unit: Option<TtlUnit>,
}

/// What the numbers of a column count, from 1970 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TtlUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
}

/// The column at whose time the rows of a table end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ttl {
    /// Its index.
    pub column: usize,
    form: Form,
    ty: ColumnType,
}

/// Numbers of milliseconds below it, in March 1973, are none: they are the seconds of a column that was declared wrongly.
const MILLISECONDS_MIN: i64 = 100_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A number of units of so many milliseconds.
    Number(i64),
    /// A timestamp with so many digits after the second.
    Timestamp(u8),
    /// A text as SQLite's functions read it.
    SqliteText,
}

/// A time before all others.
const ALWAYS: i64 = i64::MIN;
const SECOND: i64 = 1_000;
const DAY: i64 = 86_400 * SECOND;
/// The earliest and the latest time that a timestamp is given: years 1970 to 9999.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = 0..=253_402_300_799_000;

impl TtlSettings {
    /// Reads `column NAME [s | ms]`.
    ///
    /// # Errors
    /// What is expected instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (column, unit) = match words[..] {
            ["column", column] => (column, None),
            ["column", column, "s"] => (column, Some(TtlUnit::Seconds)),
            ["column", column, "ms"] => (column, Some(TtlUnit::Milliseconds)),
            _ => {
                return Err(format!(
                    "'{text}' is none of \"refuse\", \"cached-copy\" and \"column NAME\", with s or ms behind the name of a column \
                     of numbers"
                ));
            }
        };
        Ok(Self { column: column.to_owned(), unit })
    }
}

impl Ttl {
    fn new(table: &Table, settings: &TtlSettings) -> Result<Self, String> {
        let name = &settings.column;
        let column = table
            .column(name.as_bytes())
            .ok_or_else(|| format!("{} has no column {name}", table.name))?;
        let index = column;
        let column = &table.columns[index];
        if index < table.key_len || column.structural {
            return Err(format!("{name} is part of a key or of a constraint over rows"));
        }
        if table.is_computed(index) {
            return Err(format!("{name} is computed by the origin, or set by a trigger"));
        }
        let form = match &column.ty {
            ColumnType::Int { max, .. } => {
                let unit = if settings.unit == Some(TtlUnit::Milliseconds) { 1 } else { SECOND };
                if *max < 1 << 40 && unit == 1 || *max < 1 << 30 {
                    return Err(format!("{name} is too small for such a number"));
                }
                Form::Number(unit)
            }
            _ if settings.unit.is_some() => {
                return Err(format!(
                    "{name} is no whole number, so it has no unit: leave s or ms out"
                ));
            }
            ColumnType::Timestamp { precision, .. }
            | ColumnType::Mysql(MysqlType::Timestamp { precision }) => Form::Timestamp(*precision),
            ColumnType::SqliteNumeric => Form::SqliteText,
            _ => {
                return Err(format!(
                    "{name} is {}: it takes a timestamp, or a whole number since 1970",
                    column.type_name
                ));
            }
        };
        Ok(Self { column: index, form, ty: column.ty.clone() })
    }

    /// The time that a value of the column stands for, rounded up; `None` if it is none that ever comes.
    pub fn end_of(&self, value: &[u8]) -> Option<i64> {
        match self.form {
            Form::Number(unit) => {
                let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
                (number >= least(unit)).then(|| number.saturating_mul(unit))
            }
            Form::Timestamp(_) if value == b"-infinity" || value.ends_with(b" BC") => Some(ALWAYS),
            Form::Timestamp(_) => Scan(value).instant(false),
            Form::SqliteText => Scan(value).instant(true),
        }
    }

    /// When a row ends; `None` if it does not, or if only the origin knows.
    pub fn end_of_row(&self, row: &[u8]) -> Option<i64> {
        match Reader::new(row).nth(self.column) {
            Some(Cell::Value(value)) => self.end_of(value),
            _ => None,
        }
    }

    /// The value with which a row lasts until `ms`, or as little longer as the column allows.
    ///
    /// # Errors
    /// The column holds no such time.
    pub fn value(&self, ms: i64) -> Result<Vec<u8>, String> {
        let text = match self.form {
            Form::Number(unit) => {
                let number = ms.div_euclid(unit).saturating_add(i64::from(ms.rem_euclid(unit) > 0));
                number.max(least(unit)).to_string()
            }
            Form::Timestamp(precision) => {
                let grain = grain(precision);
                let up = ms.saturating_add(grain - 1).div_euclid(grain).saturating_mul(grain);
                timestamp(up.max(*TIMESTAMPS.start())).ok_or("the time is beyond the year 9999")?
            }
            Form::SqliteText => timestamp(ms.max(0)).ok_or("the time is beyond the year 9999")?,
        };
        self.canonical(&text)
    }

    /// A value that is not greater than those of rows that last beyond `ms`, and not less than those of rows that have ended
    /// at `ms`.
    ///
    /// # Errors
    /// The column holds no such time.
    pub fn cutoff(&self, ms: i64) -> Result<Vec<u8>, String> {
        match self.form {
            Form::Number(unit) => {
                let number = ms.div_euclid(unit);
                let number = match self.ty {
                    // Beyond the type's greatest number all rows have ended.
                    ColumnType::Int { min, max } => number.max(min).min(max),
                    _ => number,
                };
                self.canonical(&number.to_string())
            }
            Form::Timestamp(precision) => {
                let ms = ms.clamp(*TIMESTAMPS.start(), *TIMESTAMPS.end());
                let ms = ms - ms.rem_euclid(grain(precision));
                let text = timestamp(ms).ok_or("no such time")?;
                let zone = match &self.ty {
                    ColumnType::Timestamp { zone, .. } => *zone,
                    _ => true,
                };
                Ok(if zone { format!("{text}+00") } else { text }.into_bytes())
            }
            Form::SqliteText => self.value(ms),
        }
    }

    fn canonical(&self, text: &str) -> Result<Vec<u8>, String> {
        let value = self.ty.canonical(text.as_bytes());
        value.map(std::borrow::Cow::into_owned).map_err(|error| error.to_string())
    }

    /// In words: what its values are.
    pub fn describe(&self) -> &'static str {
        match self.form {
            Form::Number(1) => "milliseconds since 1970",
            Form::Number(_) => "seconds since 1970",
            Form::Timestamp(_) => match &self.ty {
                ColumnType::Timestamp { zone: false, .. } => "a time in UTC",
                _ => "a time",
            },
            Form::SqliteText => "a text such as 2026-01-31 13:37:00, in UTC",
        }
    }
}

/// The least number that is a time. To many programs 0 and negative numbers mean that a row never ends.
fn least(unit: i64) -> i64 {
    if unit == 1 { MILLISECONDS_MIN } else { 1 }
}

/// The least number of a column that is a time; `None` for a column that holds no numbers.
pub(crate) fn least_number(table: &Table, column: &Column) -> Option<i64> {
    if !matches!(column.ty, ColumnType::Int { .. }) {
        return None;
    }
    let ttl = table.ttl.as_ref().filter(|ttl| table.columns[ttl.column].name == column.name);
    // A column whose declaration was taken back while deletions were on their way.
    Some(ttl.map_or(1, |ttl| match ttl.form {
        Form::Number(unit) => least(unit),
        _ => 1,
    }))
}

/// Milliseconds by which timestamps of so many digits differ at least, as far as milliseconds tell.
fn grain(precision: u8) -> i64 {
    10_i64.pow(3 - u32::from(precision.min(3)))
}

/// `YYYY-MM-DD HH:MM:SS[.mmm]`, without zeros at the end of the fraction.
fn timestamp(ms: i64) -> Option<String> {
    if ms > *TIMESTAMPS.end() + 999 {
        return None;
    }
    let (year, month, day) = civil(ms.div_euclid(DAY));
    let rest = ms.rem_euclid(DAY);
    let (seconds, fraction) = (rest / SECOND, rest % SECOND);
    let mut out = format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        seconds / 3_600,
        seconds / 60 % 60,
        seconds % 60
    );
    if fraction > 0 {
        let digits = format!("{fraction:03}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
    Some(out)
}

/// Years of the Gregorian calendar are counted from March here, in eras of 400, so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH
}

fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;

/// Reads dates and times.
struct Scan<'a>(&'a [u8]);

impl Scan<'_> {
    /// `YYYY-MM-DD[ HH:MM[:SS[.f...]]][zone]` as milliseconds since 1970, rounded up; of SQLite with four digits of the year,
    /// two parts of the zone and any white space, as its functions take them.
    fn instant(mut self, is_sqlite: bool) -> Option<i64> {
        if is_sqlite {
            // Its functions read up to there.
            self.0 = self.0.split(|byte| *byte == 0).next()?;
        }
        let year_digits = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if year_digits < 4 || year_digits > if is_sqlite { 4 } else { 6 } {
            return None;
        }
        let year = self.number(year_digits)?;
        self.take(b'-')?;
        let month = self.number(2).filter(|month| (1..=12).contains(month))?;
        self.take(b'-')?;
        let day = self.number(2).filter(|day| (1..=31).contains(day))?;
        let mut ms = days(year, month, day) * DAY;
        while self.space().or_else(|| self.take(b'T')).is_some() {}
        if self.0.is_empty() {
            return Some(ms);
        }
        ms += self.number(2).filter(|hour| *hour <= 24)? * 3_600 * SECOND;
        self.take(b':')?;
        ms += self.number(2).filter(|minute| *minute <= 59)? * 60 * SECOND;
        if self.take(b':').is_some() {
            ms += self.number(2).filter(|second| *second <= 59)? * SECOND;
            ms += self.fraction()?;
        }
        while self.space().is_some() {}
        ms -= self.zone(is_sqlite)?;
        while self.space().is_some() {}
        self.0.is_empty().then_some(ms)
    }

    /// Takes a byte of white space.
    fn space(&mut self) -> Option<()> {
        let (b'\t'..=b'\r' | b' ', rest) = self.0.split_first()? else { return None };
        self.0 = rest;
        Some(())
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        let (first, rest) = self.0.split_first()?;
        (*first == byte).then(|| self.0 = rest)
    }

    fn number(&mut self, digits: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(digits)?;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        self.0 = rest;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// Milliseconds, rounded up.
    fn fraction(&mut self) -> Option<i64> {
        if self.take(b'.').is_none() {
            return Some(0);
        }
        let count = self.0.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return None;
        }
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let digit = |at: usize| digits.get(at).map_or(0, |digit| i64::from(digit - b'0'));
        let more = digits.iter().skip(3).any(|digit| *digit != b'0');
        Some(digit(0) * 100 + digit(1) * 10 + digit(2) + i64::from(more))
    }

    /// Milliseconds that the zone is ahead of UTC.
    fn zone(&mut self, is_sqlite: bool) -> Option<i64> {
        if self.0.is_empty() || self.take(b'Z').or_else(|| self.take(b'z')).is_some() {
            return Some(0);
        }
        let sign = if self.take(b'+').is_some() { 1 } else { self.take(b'-').map(|()| -1)? };
        let hours_max = if is_sqlite { 14 } else { 15 };
        let hours = self.number(2).filter(|hours| *hours <= hours_max)?;
        let minutes = if self.take(b':').is_some() {
            self.number(2).filter(|minutes| *minutes <= 59)?
        } else if is_sqlite {
            return None;
        } else {
            0
        };
        Some(sign * (hours * 60 + minutes) * 60 * SECOND)
    }
}

impl Schema {
    /// Rows of these tables end at the times that a column holds. After every collection has been added.
    ///
    /// # Errors
    /// Names the table, and why its rows cannot end.
    pub fn let_rows_end(
        &mut self,
        settings: &BTreeMap<String, TableSettings>,
    ) -> Result<(), String> {
        for (name, settings) in settings {
            let Some(ttl) = &settings.ttl else { continue };
            let Some(id) = self.find(name.as_bytes()).map(|table| table.id) else { continue };
            let table = self.table(id);
            let refuse =
                |why: &str| Err(format!("[table.{name}] ttl = \"column {}\": {why}", ttl.column));
            let refused = if self.one_row_groups {
                "MongoDB's documents cannot end here; a TTL index of its own deletes them"
            } else if settings.goes_through(table) {
                "its writes go through to the origin, where triggers may do more with the row"
            } else if settings.ack_origin {
                "its writes wait for the origin (ack = \"origin\")"
            } else if settings.blind {
                "its rows are written blind, so nobody knows whether they have ended"
            } else if !table.class.cascades_to.is_empty() {
                "deleting its rows changes rows of other tables (ON DELETE), which would outlive them in the cache"
            } else if !table.collections.is_empty() {
                "a set or sorted set over it would show rows that have ended"
            } else {
                ""
            };
            if !refused.is_empty() {
                return refuse(refused);
            }
            let ttl = match Ttl::new(table, ttl) {
                Ok(ttl) => ttl,
                Err(why) => return refuse(&why),
            };
            self.tables[usize::from(id.0)].ttl = Some(ttl);
            self.rows_end = true;
        }
        Ok(())
    }
}

/// Which rows are asked for that have ended.
#[derive(Clone, Debug)]
pub struct EndedAsk {
    /// The table.
    pub table: TableId,
    /// Keys greater than this one, in the order of `scan`.
    pub after: Option<Box<[u8]>>,
    /// They ended at this time or before, in milliseconds since 1970.
    pub cutoff_ms: i64,
    /// And so long ago or longer by the origin's clock, in milliseconds.
    pub margin_ms: i64,
    /// At most so many.
    pub limit: usize,
}

/// The statement that creates an index on the column at whose time the rows of a table end; `create` are its first words.
pub(crate) fn index_statement(create: &str, table: &Table, ttl: &Ttl) -> String {
    let column = &table.columns[ttl.column];
    let plain = |name: &str| {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
        name.chars().map(plain).take(20).collect::<String>()
    };
    let (of_table, of_column) = (plain(&table.name), plain(&column.name));
    format!("{create} ended_{of_table}_{of_column} ON {} ({})", table.sql_name, column.sql_name)
}

/// By which column and up to which time rows of a table are looked for that have ended, while the origin's clock is that.
pub(crate) fn cutoff_of<'a>(
    table: &'a Table,
    ask: &EndedAsk,
    clock_ms: i64,
) -> Result<(&'a Ttl, i64, Vec<u8>), OriginError> {
    let refuse = |why: String| OriginError::new(Fault::Denied, why);
    let ttl = table.ttl.as_ref();
    let ttl = ttl.ok_or_else(|| refuse(format!("the rows of {} do not end", table.name)))?;
    let cutoff_ms = ask.cutoff_ms.min(clock_ms.saturating_sub(ask.margin_ms));
    let cutoff = ttl.cutoff(cutoff_ms).map_err(refuse)?;
    Ok((ttl, cutoff_ms, cutoff))
}

/// An SQL expression: whether rows of other tables refer to a row of the table `t`, so that it cannot be deleted. As far as
/// the catalogue tells.
pub(crate) fn is_referenced(schema: &Schema, table: &Table) -> String {
    let children = table.referenced_by.iter().map(|&child| schema.table(child));
    let children = children.flat_map(|child| {
        let keys = child.foreign_keys.iter().filter(|key| key.parent == table.id);
        keys.map(move |key| {
            let pairs = key.columns.iter().zip(&key.parent_columns);
            let equal = pairs.map(|(own, parent)| {
                let (own, parent) = (&child.columns[*own], &table.columns[*parent]);
                format!("destage_c.{} = t.{}", own.sql_name, parent.sql_name)
            });
            let equal: Vec<String> = equal.collect();
            format!(
                "EXISTS (SELECT 1 FROM {} AS destage_c WHERE {})",
                child.sql_name,
                equal.join(" AND ")
            )
        })
    });
    let all: Vec<String> = children.collect();
    if all.is_empty() { "1 = 0".to_owned() } else { all.join(" OR ") }
}

#[cfg(test)]
pub(crate) mod tests;
