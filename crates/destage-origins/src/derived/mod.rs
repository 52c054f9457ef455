//! Derived keys: read-only keys whose value is the result of a query at the origin (`[[query]]`).
//!
//! Owned here: what the settings say of them, checked against the schema ([`Queries`]), and which writes make which cached
//! results old ([`Versions`]). When the query runs, and what is destaged before it, is the engine's; how it is run, the
//! origin's.

mod check;
mod json;
mod pattern;
mod sql;
mod versions;

pub use check::check;
pub(crate) use json::{Json, Kind, ONLY_READS, only_reads, too_large};
pub use versions::{Version, Versions};

use crate::contract::OriginError;
use crate::schema::{Schema, TABLES_MAX, Table, TableId};
use crate::value::{ColumnType, MysqlType};
use destage_core::{DomainId, Fault, Lsn, Span};
use pattern::Pattern;
pub use sql::Statement;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// A `[[query]]` of the settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuerySettings {
    /// The keys, `top:{region}`: parts between colons are texts or parameters.
    pub key: String,
    /// One SELECT; `$region` stands for the parameter's value.
    pub sql: String,
    /// Every table that the query reads.
    pub depends_on: Vec<String>,
    /// Types of parameters that are not texts: `integer` or `number`.
    pub types: BTreeMap<String, String>,
    /// `region = "orders.region"`: only rows of `orders` that have the parameter's value in this column, before or after a
    /// write, change the result.
    pub matches: BTreeMap<String, String>,
    /// The result is fetched again after this time, whatever was written.
    pub max_age: Option<Span>,
    /// Writes leave the cached result as it is until it has reached its `max_age`.
    pub keep: bool,
    /// Longest wait for what must be destaged first and for the query itself.
    pub deadline: Span,
}

impl QuerySettings {
    /// The longest wait by default.
    pub const DEADLINE_DEFAULT: Span = Span::from_secs(10);
}

/// How a parameter's value is given to the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// UTF-8 text.
    Text,
    /// A whole number of 64 bits.
    Integer,
    /// A decimal number.
    Number,
}

/// A parameter of a key.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Its name in the key and, behind `$`, in the SQL.
    pub name: String,
    /// Its type.
    pub ty: ParameterType,
    /// The column whose values it takes.
    column: Option<(TableId, usize)>,
}

/// A table that a query reads.
#[derive(Clone, Copy, Debug)]
pub struct Dependency {
    /// The table.
    pub table: TableId,
    /// The place of the column among those that [`Versions`] follow, and the parameter that its value is compared to.
    pub matched: Option<(usize, usize)>,
}

/// A derived key's query, checked.
#[derive(Clone, Debug)]
pub struct Query {
    /// The pattern as given, for people.
    pub key: String,
    /// The statement.
    pub statement: Statement,
    /// Its parameters, by number.
    pub parameters: Vec<Parameter>,
    /// The tables declared, reachable or not, by name.
    pub depends_on: Vec<String>,
    /// As in [`QuerySettings`].
    pub max_age: Option<Span>,
    /// As in [`QuerySettings`].
    pub keep: bool,
    /// As in [`QuerySettings`].
    pub deadline: Span,
    dependencies: Vec<Dependency>,
    pattern: Pattern,
}

/// All derived keys.
#[derive(Clone, Debug, Default)]
pub struct Queries {
    list: Vec<Query>,
    /// The columns whose values decide which results a write changes.
    followed: Vec<(TableId, usize)>,
}

/// A result.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// An array of objects.
    pub json: Vec<u8>,
    /// Each domain's watermark in the same snapshot.
    pub watermarks: Vec<(DomainId, Lsn)>,
}

/// Which tables a query reads, as far as the origin can tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    /// The tables' names, as keys have them where they are reachable.
    pub tables: Vec<String>,
    /// Whether these are all there are, those behind views included.
    pub is_exact: bool,
}

/// Most rows of a result.
pub const ROWS_MAX: usize = 100_000;
/// Most bytes of a result.
pub const RESULT_BYTES_MAX: usize = 16 << 20;
/// Whether a result's columns can be the members of an object.
///
/// # Errors
/// [`Fault::Denied`] where two have one name.
pub(crate) fn check_columns<'n>(names: impl Iterator<Item = &'n str>) -> Result<(), OriginError> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            let message = format!("two columns of the result are named '{name}': name them by AS");
            return Err(OriginError::new(Fault::Denied, message));
        }
    }
    Ok(())
}

/// Most derived key patterns.
const QUERIES_MAX: usize = 1_000;

impl Queries {
    /// Checks the settings against the schema.
    ///
    /// # Errors
    /// A message that begins with the key concerned and says what would work.
    pub fn new(settings: &[QuerySettings], schema: &Schema) -> Result<Self, String> {
        if settings.len() > QUERIES_MAX || schema.tables.len() + settings.len() > TABLES_MAX {
            return Err(format!("{} [[query]] sections: at most {QUERIES_MAX}", settings.len()));
        }
        let mut queries = Self::default();
        for settings in settings {
            let blame = |error| format!("[[query]] key = '{}': {error}", settings.key);
            let query = queries.query(settings, schema).map_err(blame)?;
            let twin = queries.list.iter().find(|other| other.pattern.overlaps(&query.pattern));
            if let Some(twin) = twin {
                return Err(blame(format!(
                    "'{}' means the same keys; begin one of them with another word",
                    twin.key
                )));
            }
            queries.list.push(query);
        }
        Ok(queries)
    }

    fn query(&mut self, settings: &QuerySettings, schema: &Schema) -> Result<Query, String> {
        let pattern = Pattern::parse(&settings.key)?;
        if let Some(table) = schema.find(pattern.first().as_bytes()) {
            return Err(format!(
                "the keys of the table {} begin so; begin this one with another word",
                table.name
            ));
        }
        let names = pattern.parameters();
        let statement = Statement::parse(&settings.sql, &names)?;
        if settings.keep && settings.max_age.is_none() {
            return Err(
                "on_write = 'keep' needs a max_age, after which the result is fetched again".into(),
            );
        }
        for name in settings.types.keys().chain(settings.matches.keys()) {
            if !names.contains(name) {
                return Err(format!("the key has no parameter {{{name}}}"));
            }
        }
        let ends = |name: &&String| schema.find(name.as_bytes()).is_some_and(|t| t.ttl.is_some());
        if let Some(table) = settings.depends_on.iter().find(ends) {
            return Err(format!(
                "it reads {table}, whose rows end at a time (ttl): a result would show rows that have ended"
            ));
        }
        let parameters = names
            .into_iter()
            .map(|name| parameter(settings, schema, name))
            .collect::<Result<Vec<_>, _>>()?;
        let dependencies = self.dependencies(settings, schema, &parameters)?;
        Ok(Query {
            key: settings.key.clone(),
            statement,
            parameters,
            depends_on: settings.depends_on.clone(),
            max_age: settings.max_age,
            keep: settings.keep,
            deadline: settings.deadline,
            dependencies,
            pattern,
        })
    }

    fn dependencies(
        &mut self,
        settings: &QuerySettings,
        schema: &Schema,
        parameters: &[Parameter],
    ) -> Result<Vec<Dependency>, String> {
        if settings.depends_on.is_empty() {
            return Err("depends_on must list the tables that the query reads".into());
        }
        let mut dependencies = Vec::new();
        for name in &settings.depends_on {
            let Some(table) = schema.find(name.as_bytes()) else {
                if schema.unreachable.iter().any(|table| table.name == *name) {
                    // Destage never writes it.
                    continue;
                }
                return Err(format!(
                    "depends_on names '{name}', and there is no such table; see destage schema"
                ));
            };
            let matched = parameters.iter().enumerate().find_map(|(at, parameter)| {
                let (of, column) = parameter.column?;
                (of == table.id).then_some((at, column))
            });
            let matched = matched.map(|(at, column)| (self.follow(table.id, column), at));
            dependencies.push(Dependency { table: table.id, matched });
        }
        let declared = |id| dependencies.iter().any(|dependency| dependency.table == id);
        for (table, _) in parameters.iter().filter_map(|parameter| parameter.column) {
            if !declared(table) {
                let name = &schema.table(table).name;
                return Err(format!(
                    "match names the table {name}, which depends_on does not list"
                ));
            }
        }
        Ok(dependencies)
    }

    /// The place of a column among those that are followed.
    fn follow(&mut self, table: TableId, column: usize) -> usize {
        let place = self.followed.iter().position(|&followed| followed == (table, column));
        place.unwrap_or_else(|| {
            self.followed.push((table, column));
            self.followed.len() - 1
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// The query of that number.
    pub fn get(&self, index: usize) -> &Query {
        &self.list[index]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Query> {
        self.list.iter()
    }

    /// The query that a key belongs to, and the parts that are its parameters.
    pub fn find<'k>(&self, key: &'k [u8]) -> Option<(usize, Vec<Cow<'k, [u8]>>)> {
        let mut queries = self.list.iter().enumerate();
        queries.find_map(|(index, query)| Some((index, query.pattern.matches(key)?)))
    }

    /// A query whose keys begin as this one does.
    pub fn begins(&self, key: &[u8]) -> Option<&Query> {
        let word = key.split(|&byte| byte == b':').next().unwrap_or_default();
        self.of_word(word).next().map(|index| &self.list[index])
    }

    /// The queries whose keys begin with a word.
    pub fn of_word<'q>(&'q self, word: &'q [u8]) -> impl Iterator<Item = usize> + 'q {
        let queries = self.list.iter().enumerate();
        queries.filter(move |(_, query)| query.pattern.first().as_bytes() == word).map(|(at, _)| at)
    }
}

impl Query {
    /// The tables that it reads and Destage writes.
    pub fn dependencies(&self) -> &[Dependency] {
        &self.dependencies
    }

    /// The tables whose writes may change a result; `None` if it reads others as well, which Destage does not know.
    pub fn tables(&self) -> Option<impl Iterator<Item = TableId>> {
        let all = self.dependencies.iter().map(|dependency| dependency.table);
        let known: BTreeSet<TableId> = all.clone().collect();
        let declared: BTreeSet<&str> = self.depends_on.iter().map(String::as_str).collect();
        (known.len() == declared.len()).then_some(all)
    }

    /// The parameters' values in the form in which the origin gets them.
    ///
    /// # Errors
    /// A message for the client.
    pub fn canonical(
        &self,
        schema: &Schema,
        parts: &[Cow<'_, [u8]>],
    ) -> Result<Vec<Box<[u8]>>, String> {
        let values = self.parameters.iter().zip(parts);
        values.map(|(parameter, part)| parameter.canonical(schema, part)).collect()
    }
}

impl Parameter {
    fn canonical(&self, schema: &Schema, part: &[u8]) -> Result<Box<[u8]>, String> {
        let refuse = |takes: &str| {
            let shown = part[..part.len().min(48)].escape_ascii();
            format!("the key's part {{{}}} takes {takes}, not '{shown}'", self.name)
        };
        if let Some((table, column)) = self.column {
            let column = &schema.table(table).columns[column];
            return match column.ty.canonical(part) {
                Ok(value) => Ok(value.as_ref().into()),
                Err(error) => Err(refuse(&format!("a value of {}: {error}", column.name))),
            };
        }
        let text = std::str::from_utf8(part).map_err(|_| refuse("UTF-8 text"))?;
        match self.ty {
            ParameterType::Text if text.contains('\0') => Err(refuse("text without NUL")),
            ParameterType::Text => Ok(part.into()),
            ParameterType::Integer => match text.parse::<i64>() {
                Ok(number) => Ok(number.to_string().into_bytes().into()),
                Err(_) => Err(refuse("a whole number of 64 bits")),
            },
            ParameterType::Number => match text.parse::<bigdecimal::BigDecimal>() {
                Ok(number) if number.fractional_digit_count().unsigned_abs() <= DIGITS_MAX => {
                    Ok(number.normalized().to_plain_string().into_bytes().into())
                }
                _ => Err(refuse("a decimal number")),
            },
        }
    }
}

/// Most digits before or after the point of a number in a key.
const DIGITS_MAX: u64 = 100;

fn parameter(settings: &QuerySettings, schema: &Schema, name: String) -> Result<Parameter, String> {
    let given = match settings.types.get(&name).map(String::as_str) {
        None => None,
        Some("text") => Some(ParameterType::Text),
        Some("integer") => Some(ParameterType::Integer),
        Some("number") => Some(ParameterType::Number),
        Some(other) => {
            return Err(format!("types.{name} = '{other}': use text, integer or number"));
        }
    };
    let column = settings.matches.get(&name).map(|place| column(schema, &name, place));
    let column = column.transpose()?;
    let Some((table, index)) = column else {
        return Ok(Parameter { name, ty: given.unwrap_or(ParameterType::Text), column: None });
    };
    let ty = matched_type(schema.table(table), index)?;
    if given.is_some_and(|given| given != ty) {
        return Err(format!(
            "types.{name} contradicts match.{name}, which gives it the column's type"
        ));
    }
    Ok(Parameter { name, ty, column: Some((table, index)) })
}

/// The column that a `match` names.
fn column(schema: &Schema, name: &str, place: &str) -> Result<(TableId, usize), String> {
    let wrong = || format!("match.{name} = '{place}' names no table.column; see destage schema");
    // A table's name may hold points.
    let (table, column) = place.rsplit_once('.').ok_or_else(wrong)?;
    let table = schema.find(table.as_bytes()).ok_or_else(wrong)?;
    let column = table.column(column.as_bytes()).ok_or_else(wrong)?;
    Ok((table.id, column))
}

/// How the values of a column that is matched are given. Only types whose equal values have one canonical form, texts aside,
/// for which [`Versions`] is careful.
fn matched_type(table: &Table, index: usize) -> Result<ParameterType, String> {
    let column = &table.columns[index];
    match &column.ty {
        _ if table.is_computed(index) => {
            Err(format!("match: {}.{} is computed by the origin", table.name, column.name))
        }
        ColumnType::Int { .. } => Ok(ParameterType::Integer),
        ColumnType::Text { .. }
        | ColumnType::PaddedText { .. }
        | ColumnType::Mysql(MysqlType::Trimmed { .. } | MysqlType::Text { .. })
        | ColumnType::Bool
        | ColumnType::Uuid
        | ColumnType::Date
        | ColumnType::Enum(_) => Ok(ParameterType::Text),
        _ => Err(format!(
            "match: {}.{} ({}) has values that are equal in several forms; match whole numbers, texts, dates, booleans, \
             UUIDs or enumerations",
            table.name, column.name, column.type_name
        )),
    }
}

#[cfg(test)]
mod tests;
