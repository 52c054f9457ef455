//! Keys as the user writes them, over tables of the origin: strings over a column, hashes under other names.
//!
//! A pattern is literal text and places for key columns: `counter:{id}`. `{id=user*}` takes only values that begin with
//! `user`, which is part of the value. Patterns are tried in the order of the settings, before `table:primary-key`.

use crate::cells::{Cell, push_cell};
use crate::collection::{self, Collection, CollectionId};
use crate::schema::{Schema, Table, TableId};
use crate::value::ColumnType;

/// A mapping as the settings file has it, not yet compared with the origin's tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingSettings {
    /// The pattern of the keys.
    pub key: String,
    /// The table's name.
    pub table: String,
    /// What the keys are to clients.
    pub shape: ShapeSettings,
}

/// What the keys of a mapping are to clients, by the columns' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShapeSettings {
    /// The row, as under `table:primary-key`.
    Hash,
    /// One column of the row.
    String {
        /// The column.
        value: String,
    },
    /// The members of the rows that share the rest of the primary key.
    Set {
        /// The column of the members, part of the primary key.
        member: String,
        /// The column of the scores, of a sorted set.
        score: Option<String>,
        /// Most members that are cached as a whole.
        members_max: usize,
    },
}

/// Members that are cached as a whole, unless the settings say otherwise, and how many they may allow.
pub const MEMBERS_MAX_DEFAULT: usize = 10_000;
/// See [`MEMBERS_MAX_DEFAULT`].
pub const MEMBERS_MAX_RANGE: std::ops::RangeInclusive<usize> = 1..=1_000_000;

/// What a key is to clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A row.
    Hash,
    /// A column of a row, by its index.
    String(usize),
    /// A set.
    Set(CollectionId),
    /// A sorted set.
    SortedSet(CollectionId),
    /// A plain cache key, which is a string, a hash or nothing.
    Plain,
}

/// The mappings of a schema, in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    list: Vec<Mapping>,
}

#[derive(Clone, Debug)]
struct Mapping {
    pattern: Pattern,
    table: TableId,
    shape: Shape,
    /// For each key column in key order, the place of the pattern that gives it.
    key: Vec<usize>,
}

/// A key that a mapping takes: its encoded key cells have been appended.
#[derive(Clone, Copy, Debug)]
pub struct Mapped {
    /// The row's table.
    pub table: TableId,
    /// What the key shows of the row.
    pub shape: Shape,
}

impl Mappings {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The mappings, compared with the tables.
    ///
    /// # Errors
    /// Names the mapping, and what does not fit.
    pub fn new(schema: &mut Schema, settings: &[MappingSettings]) -> Result<Self, String> {
        let mut list: Vec<Mapping> = Vec::with_capacity(settings.len());
        for one in settings {
            let blame = |error| format!("the mapping of the keys '{}': {error}", one.key);
            let mapping = Mapping::new(schema, one).map_err(blame)?;
            if let Some(first) = list.iter().position(|m| m.pattern.covers(&mapping.pattern)) {
                return Err(blame(format!(
                    "'{}', which is looked at before, takes all of them; leave out one of the two",
                    settings[first].key
                )));
            }
            list.push(mapping);
        }
        Ok(Self { list })
    }

    /// The tables of the mappings whose patterns begin so, up to their first place.
    pub fn under(&self, prefix: &[u8]) -> impl Iterator<Item = TableId> {
        self.list.iter().filter(move |mapping| mapping.pattern.head == prefix).map(|m| m.table)
    }

    /// Finds the mapping of a key and appends the key cells of its row to `out`; `None` if no pattern takes the key.
    ///
    /// # Errors
    /// The key fits a pattern, but not the type of a column.
    pub fn resolve(
        &self,
        schema: &Schema,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Result<Mapped, String>> {
        let mut values = Vec::new();
        let mapping = self.list.iter().find(|mapping| mapping.pattern.matches(key, &mut values))?;
        let table = schema.table(mapping.table);
        let start = out.len();
        for (column, &place) in table.key().iter().zip(&mapping.key) {
            match column.ty.canonical(&values[place]) {
                Ok(canonical) => push_cell(out, Cell::Value(&canonical)),
                Err(error) => {
                    out.truncate(start);
                    let name = format!("{}.{}", table.name, column.name);
                    let value = crate::key_text::show(&values[place]);
                    let message = format!("{name} does not take '{value}': {error}");
                    return Some(Err(message));
                }
            }
        }
        Some(Ok(Mapped { table: mapping.table, shape: mapping.shape }))
    }
}

impl Mapping {
    fn new(schema: &mut Schema, settings: &MappingSettings) -> Result<Self, String> {
        let pattern = Pattern::parse(&settings.key)?;
        if let ShapeSettings::Set { member, score, members_max } = &settings.shape {
            let shape = add_set(schema, &settings.table, member, score.as_deref(), *members_max)?;
            return Self::over(schema, pattern, shape.0, shape.1);
        }
        let table = find_table(schema, &settings.table)?;
        let shape = match &settings.shape {
            ShapeSettings::Hash | ShapeSettings::Set { .. } => Shape::Hash,
            ShapeSettings::String { value } => Shape::String(value_column(table, value)?),
        };
        let table = table.id;
        Self::over(schema, pattern, table, shape)
    }

    /// A mapping whose pattern gives the key of that table.
    fn over(
        schema: &Schema,
        pattern: Pattern,
        table: TableId,
        shape: Shape,
    ) -> Result<Self, String> {
        let table = schema.table(table);
        let key = (0..table.key_len).map(|column| place_of(&pattern, table, column));
        let key = key.collect::<Result<Vec<usize>, String>>()?;
        if let Some(extra) = pattern.names().nth(key.len()) {
            let columns = names(table.key());
            return Err(match columns.as_str() {
                "" => format!(
                    "'{extra}' is one name too many: all rows of {} are members",
                    table.name
                ),
                columns => format!(
                    "'{extra}' is one name too many: of the key of {} it takes {columns}",
                    table.name
                ),
            });
        }
        Ok(Self { pattern, table: table.id, shape, key })
    }
}

/// Adds a collection to the schema.
fn add_set(
    schema: &mut Schema,
    table: &str,
    member: &str,
    score: Option<&str>,
    members_max: usize,
) -> Result<(TableId, Shape), String> {
    if !MEMBERS_MAX_RANGE.contains(&members_max) {
        let (low, high) = (MEMBERS_MAX_RANGE.start(), MEMBERS_MAX_RANGE.end());
        return Err(format!("members-max is {low} to {high}"));
    }
    if schema.one_row_groups {
        return Err("sets are not served before this kind of origin".into());
    }
    let table = find_table(schema, table)?;
    let member = find_column(table, member)?;
    let score = score.map(|score| find_column(table, score)).transpose()?;
    collection::check(table, member, score)?;
    let collection = Collection {
        id: CollectionId(0),
        table: table.id,
        parts: [TableId(0); 2],
        owners: (0..table.key_len).filter(|&column| column != member).collect(),
        member,
        score,
        members_max,
    };
    let added = schema.add_collection(collection).ok_or("there are too many tables")?;
    let shape = if added.is_sorted() { Shape::SortedSet(added.id) } else { Shape::Set(added.id) };
    Ok((added.whole(), shape))
}

fn find_table<'s>(schema: &'s Schema, name: &str) -> Result<&'s Table, String> {
    schema.find(name.as_bytes()).ok_or_else(|| {
        let unreachable = schema.unreachable.iter().find(|table| table.name == name);
        match unreachable {
            Some(table) => format!("the table {name} cannot be reached: {}", table.reason),
            None => format!("there is no table {name}; see destage schema"),
        }
    })
}

fn value_column(table: &Table, name: &str) -> Result<usize, String> {
    let index = find_column(table, name)?;
    let column = &table.columns[index];
    if index < table.key_len {
        return Err(format!("{name} is part of the key of {}, so it is no value", table.name));
    }
    if table.is_computed(index) || column.ty == ColumnType::Opaque {
        return Err(format!("{}.{name} cannot be written", table.name));
    }
    Ok(index)
}

fn find_column(table: &Table, name: &str) -> Result<usize, String> {
    table.column(name.as_bytes()).ok_or_else(|| {
        format!("{} has no column '{name}'; it has: {}", table.name, names(&table.columns))
    })
}

/// The place of the pattern that gives a key column.
fn place_of(pattern: &Pattern, table: &Table, column: usize) -> Result<usize, String> {
    let name = &table.columns[column].name;
    let mut places = pattern.names().enumerate().filter(|(_, place)| place == name);
    match (places.next(), places.next()) {
        (Some((place, _)), None) => Ok(place),
        (None, _) => {
            Err(format!("the pattern lacks {{{name}}}, which is part of the key of {}", table.name))
        }
        (Some(_), Some(_)) => Err(format!("the pattern names {{{name}}} twice")),
    }
}

fn names(columns: &[crate::schema::Column]) -> String {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    names.join(", ")
}

/// A pattern: literal text before, between and after its places.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    /// What comes before the first place.
    head: Vec<u8>,
    places: Vec<Place>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    name: String,
    /// What its values begin with.
    prefix: Vec<u8>,
    /// The literal text behind it.
    tail: Vec<u8>,
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, String> {
        let (head, mut rest) = text.split_once('{').map_or((text, None), |(h, r)| (h, Some(r)));
        let mut places: Vec<Place> = Vec::new();
        while let Some(open) = rest {
            let (place, behind) =
                open.split_once('}').ok_or("a '{' without '}'; places are {column}")?;
            let (tail, next) = behind.split_once('{').map_or((behind, None), |(t, r)| (t, Some(r)));
            let (name, prefix) = match place.split_once('=') {
                None => (place, ""),
                Some((name, prefix)) => {
                    let prefix = prefix.strip_suffix('*');
                    let wrong = "after '=' comes how the values begin, and then '*'";
                    (name, prefix.filter(|prefix| !prefix.contains('*')).ok_or(wrong)?)
                }
            };
            if name.is_empty() {
                return Err("a place without a column's name".into());
            }
            if tail.is_empty() && next.is_some() {
                return Err("two places need some text between them".into());
            }
            places.push(Place { name: name.into(), prefix: prefix.into(), tail: tail.into() });
            rest = next;
        }
        if head.contains('}') || text.is_empty() {
            return Err("a pattern is text with places like {column}".into());
        }
        Ok(Self { head: head.into(), places })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.name.as_str())
    }

    /// Whether it takes every key that the other one takes, as far as their form tells.
    fn covers(&self, other: &Self) -> bool {
        let place = |(own, other): (&Place, &Place)| {
            own.tail == other.tail && other.prefix.starts_with(&own.prefix)
        };
        self.head == other.head
            && self.places.len() == other.places.len()
            && self.places.iter().zip(&other.places).all(place)
    }

    /// Whether the pattern takes the key; the places' values are left in `values`. A value is never empty, and ends where
    /// the text behind it first occurs; in it, `%3A` and `%25` are decoded. The last one goes on to the end, as it is.
    fn matches<'k>(&self, key: &'k [u8], values: &mut Vec<std::borrow::Cow<'k, [u8]>>) -> bool {
        values.clear();
        let Some(mut rest) = key.strip_prefix(&self.head[..]) else { return false };
        for (at, place) in self.places.iter().enumerate() {
            let is_last = at + 1 == self.places.len();
            let end = if is_last {
                rest.ends_with(&place.tail).then(|| rest.len() - place.tail.len())
            } else {
                memchr::memmem::find(rest, &place.tail)
            };
            let Some(end) = end.filter(|&end| end > 0) else { return false };
            let value =
                if is_last { rest[..end].into() } else { crate::key_text::decode(&rest[..end]) };
            if !value.starts_with(&place.prefix) {
                return false;
            }
            values.push(value);
            rest = &rest[end + place.tail.len()..];
        }
        rest.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(pattern: &str, key: &str) -> Option<Vec<String>> {
        let mut values = Vec::new();
        let is_match = Pattern::parse(pattern).unwrap().matches(key.as_bytes(), &mut values);
        let text = |value: &std::borrow::Cow<'_, [u8]>| String::from_utf8(value.to_vec()).unwrap();
        is_match.then(|| values.iter().map(text).collect())
    }

    #[test]
    fn patterns_take_what_they_say() {
        for (pattern, key, expected) in [
            ("counter:{id}", "counter:7", Some(vec!["7"])),
            ("counter:{id}", "counter:", None),
            ("counter:{id}", "counters:7", None),
            ("{a}:{b}:end", "x:y:z:end", Some(vec!["x", "y:z"])),
            ("{a}:{b}", "x%3Ay:z%3A", Some(vec!["x:y", "z%3A"])),
            ("{a=x:*}:{b}", "x%3Ay:z", Some(vec!["x:y", "z"])),
            ("{a=%3A*}", "%3A", Some(vec!["%3A"])),
            ("{k=user*}", "user42", Some(vec!["user42"])),
            ("{k=user*}", "item42", None),
            ("only", "only", Some(vec![])),
            ("only", "only2", None),
            ("{a}s", "cats", Some(vec!["cat"])),
            ("{a}s", "s", None),
        ] {
            let expected = expected.map(|values| values.into_iter().map(String::from).collect());
            assert_eq!(matched(pattern, key), expected, "{pattern} {key}");
        }
    }

    #[test]
    fn a_pattern_that_could_never_match_behind_another_is_covered_by_it() {
        for (first, second, expected) in [
            ("counter:{id}", "counter:{id}", true),
            ("counter:{id}", "counter:{name}", true),
            ("{k}", "{k=user*}", true),
            ("{k=us*}", "{k=user*}", true),
            ("{k=user*}", "{k}", false),
            ("{k=user*}", "{k=item*}", false),
            ("counter:{id}", "counters:{id}", false),
            ("{a}:{b}", "{a}:{b}:end", false),
            ("only", "only", true),
        ] {
            let [one, other] = [first, second].map(|text| Pattern::parse(text).unwrap());
            assert_eq!(one.covers(&other), expected, "{first} {second}");
        }
    }

    #[test]
    fn wrong_patterns_are_told_what_is_wrong() {
        for (pattern, part) in [
            ("", "a pattern is text"),
            ("a}", "a pattern is text"),
            ("a{b", "without '}'"),
            ("a{}", "without a column's name"),
            ("{a}{b}", "text between"),
            ("{a=b}", "then '*'"),
            ("{a=b*c*}", "then '*'"),
        ] {
            let error = Pattern::parse(pattern).unwrap_err();
            assert!(error.contains(part), "{pattern}: {error}");
        }
    }
}
