//! Defaults that give each new row a value of its own, and that can be given here as well as at the origin: the time, the
//! day, a UUID, a number of a sequence.

use crate::schema::{ColumnDefault, Schema, Table};
use crate::settings::TableSettings;
use crate::value::{ColumnType, MysqlType, instant};
use destage_core::Time;
use std::collections::BTreeMap;

/// What such a default computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formula {
    /// The time in UTC.
    Time {
        /// Most digits after the second, 0 to 6.
        digits: u8,
    },
    /// The day in UTC.
    Date,
    /// A random UUID.
    Uuid,
    /// The next number of a sequence that the column owns.
    Number,
}

impl Formula {
    /// The time, with as many digits after the second as the text says that follows the function's name: `()`, `(3)` or
    /// nothing, which stands for `unsaid`.
    pub(crate) fn time(arguments: &str, unsaid: u8) -> Option<Self> {
        let digits = match arguments.trim() {
            "" | "()" => unsaid,
            text => text.strip_prefix('(')?.strip_suffix(')')?.trim().parse().ok()?,
        };
        (digits <= 6).then_some(Self::Time { digits })
    }

    /// The formula, if it is known here what a column of that type makes of its values. `are_texts`: the database holds times
    /// as texts of one form.
    pub(crate) fn fitting(self, ty: &ColumnType, are_texts: bool) -> Option<Self> {
        let is_text = matches!(ty, ColumnType::Text { .. })
            || matches!(ty, ColumnType::SqliteNumeric if are_texts);
        let fits = match (self, ty) {
            (Self::Number, ty) => matches!(ty, ColumnType::Int { .. }),
            _ if is_text => are_texts || self == Self::Uuid,
            (
                Self::Uuid,
                ColumnType::Uuid
                | ColumnType::Mysql(MysqlType::Trimmed { .. } | MysqlType::Text { .. }),
            ) => true,
            (
                Self::Time { .. } | Self::Date,
                ColumnType::Date
                | ColumnType::Timestamp { .. }
                | ColumnType::Mysql(MysqlType::Timestamp { .. }),
            ) => true,
            _ => false,
        };
        let some = match self {
            Self::Number => "1",
            _ => "00000000-0000-4000-8000-000000000000",
        };
        let fresh = || Some(some.to_owned());
        // A text may be too short for it.
        self.value(ty, Time::from_secs(1_000_000_000), fresh).filter(|_| fits).map(|_| self)
    }

    /// The value of a column of that type at that time, cut off behind the last digit that it holds. `None` if the column does
    /// not hold it, or there is no UUID or number: `fresh` is the new one.
    pub fn value(
        self,
        ty: &ColumnType,
        now: Time,
        fresh: impl FnOnce() -> Option<String>,
    ) -> Option<Vec<u8>> {
        let holds = match ty {
            ColumnType::Timestamp { precision, .. }
            | ColumnType::Mysql(MysqlType::Timestamp { precision }) => *precision,
            _ => 6,
        };
        let mut text = match self {
            Self::Time { digits } => instant(now, digits.min(holds)),
            Self::Date => instant(now, 0),
            Self::Uuid | Self::Number => fresh()?,
        };
        if self == Self::Date || *ty == ColumnType::Date {
            text.truncate("2026-01-31".len());
        }
        ty.canonical(text.as_bytes()).ok().map(std::borrow::Cow::into_owned)
    }
}

impl Table {
    /// The columns whose defaults can be given here to a new row. Those of the key are always given, and what a trigger or the
    /// origin itself computes is left to it.
    pub fn givable(&self) -> impl Iterator<Item = (usize, Formula)> + '_ {
        let columns = self.columns.iter().enumerate().skip(self.key_len);
        columns.filter_map(|(index, column)| match column.default {
            ColumnDefault::Formula(formula) if !self.is_left_to_origin(index, true) => {
                Some((index, formula))
            }
            _ => None,
        })
    }
}

impl Schema {
    /// New rows of these tables are given here what their defaults compute. After the triggers are known.
    ///
    /// # Errors
    /// Names the table, and why nothing can be given.
    pub fn give_defaults(
        &mut self,
        settings: &BTreeMap<String, TableSettings>,
    ) -> Result<(), String> {
        for (name, settings) in settings.iter().filter(|(_, settings)| settings.defaults_here) {
            let Some(id) = self.find(name.as_bytes()).map(|table| table.id) else { continue };
            let given: Vec<_> = self.table(id).givable().collect();
            let refused = if self.one_row_groups {
                "MongoDB's collections have no defaults"
            } else if settings.blind {
                "its rows are written blind, so nobody knows which of them are new"
            } else if given.is_empty() {
                "no column behind its key has a default that is known here and that no trigger sets: now(), CURRENT_TIMESTAMP, \
                 LOCALTIMESTAMP, CURRENT_DATE, gen_random_uuid(), uuid(), a sequence that the column owns (PostgreSQL)"
            } else {
                self.tables[usize::from(id.0)].given_here = given;
                continue;
            };
            return Err(format!("[table.{name}] defaults = \"here\": {refused}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
