//! The partition of an origin into ordering domains: to which one a row belongs, and what stands against it.
//!
//! A row's domain follows from its table and its key alone, so it never changes and every change of the row tells it. Tables
//! that no `[[domain]]` names form the first domain. Left to others: what the order inside a domain is, and who keeps it.

mod crossing;

use crate::cells::Reader;
use crate::change::{Item, items};
use crate::dml::Dml;
use crate::schema::{Schema, Table, TableId};
use crate::settings::{DomainSettings, TableSettings};
use destage_core::{DomainId, OnReject};
use std::collections::BTreeMap;

/// Most domains of an origin. Each costs a row at the origin, and a queue.
pub const DOMAINS_MAX: u16 = 64;
/// Into how many domains a column's values are spread unless the settings say.
pub const COUNT_DEFAULT: u16 = 8;
/// The name of the domain of all tables that no settings name.
pub const REST: &str = "default";
/// The hash of the partition into one domain.
pub const MAP_OF_ONE: u64 = 1;
/// What the journal notes as the domain of a group that belongs to several.
pub const SEVERAL: DomainId = DomainId(u16::MAX);

/// The partition in force.
#[derive(Clone, Debug)]
pub struct Partition {
    /// By domain.
    names: Vec<String>,
    /// By table.
    places: Vec<Place>,
    map: u64,
    /// By domain, what becomes of its rejected writes, where that is said of it.
    on_reject: Vec<Option<OnReject>>,
    /// A write may have the origin change rows of other domains, which was declared to be harmless.
    has_effects_across: bool,
}

/// Where a table's rows belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Whole(DomainId),
    /// By the value of a column of the key, spread over `count` domains from `first` on.
    Split {
        column: usize,
        first: u16,
        count: u16,
    },
}

impl Place {
    const REST: Self = Self::Whole(DomainId(0));
}

/// The domains of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spread {
    /// The only one.
    One(DomainId),
    /// Several, ascending.
    Several(Box<[DomainId]>),
}

impl Spread {
    /// The domains, ascending.
    pub fn as_slice(&self) -> &[DomainId] {
        match self {
            Self::One(domain) => std::slice::from_ref(domain),
            Self::Several(domains) => domains,
        }
    }

    /// What the journal's record and the core's group name: the domain itself, or the first.
    pub fn first(&self) -> DomainId {
        self.as_slice()[0]
    }

    /// What the journal's record holds.
    pub fn noted(&self) -> DomainId {
        match self {
            Self::One(domain) => *domain,
            Self::Several(_) => SEVERAL,
        }
    }
}

impl Partition {
    /// One domain for the whole origin.
    pub fn one(schema: &Schema) -> Self {
        let places = vec![Place::Whole(DomainId(0)); schema.tables.len()];
        let names = vec![REST.to_owned()];
        let on_reject = vec![None];
        Self { names, places, map: MAP_OF_ONE, on_reject, has_effects_across: false }
    }

    /// The partition that the settings ask for.
    ///
    /// # Errors
    /// In words: what does not fit the schema, or the constraints that cross the domains.
    pub fn new(
        schema: &Schema,
        domains: &[DomainSettings],
        tables: &BTreeMap<String, TableSettings>,
    ) -> Result<Self, String> {
        let mut partition = Self::one(schema);
        if domains.is_empty() {
            return Ok(partition);
        }
        let mut owners: Vec<Option<usize>> = vec![None; schema.tables.len()];
        for (index, domain) in domains.iter().enumerate() {
            check_name(domain, &domains[..index])?;
            for name in domain.columns.keys() {
                find(schema, domain, name)?;
            }
            for name in &domain.tables {
                let table = find(schema, domain, name)?;
                if let Some(other) = owners[usize::from(table.0)].replace(index) {
                    let other = &domains[other].name;
                    let own = &domain.name;
                    return Err(format!("the table {name} is in two domains, {other} and {own}"));
                }
            }
        }
        for (index, domain) in domains.iter().enumerate() {
            partition.place(schema, index, domain, &mut owners)?;
            partition.on_reject.resize(partition.names.len(), domain.on_reject);
        }
        if partition.names.len() > usize::from(DOMAINS_MAX) {
            let count = partition.names.len();
            return Err(format!("these are {count} ordering domains; the most is {DOMAINS_MAX}"));
        }
        let independent = |table: TableId| {
            owners[usize::from(table.0)].is_some_and(|index| domains[index].assume_independent)
        };
        partition.check_crossings(schema, tables, independent)?;
        partition.place_sets(schema)?;
        partition.has_effects_across = partition.has_effects_across(schema, tables);
        partition.map = map_of(domains);
        Ok(partition)
    }

    /// Adds a domain, or those of a column's values.
    fn place(
        &mut self,
        schema: &Schema,
        index: usize,
        domain: &DomainSettings,
        owners: &mut [Option<usize>],
    ) -> Result<(), String> {
        let first = self.names.len() as u16;
        if domain.column.is_none() && domain.columns.is_empty() {
            self.names.push(domain.name.clone());
            for (place, _) in self.places.iter_mut().zip(owners).filter(|(_, o)| **o == Some(index))
            {
                *place = Place::Whole(DomainId(first));
            }
            return Ok(());
        }
        let mut is_used = false;
        for table in schema.reachable() {
            let owner = &mut owners[usize::from(table.id.0)];
            let named = domain.columns.get(&table.name).or(domain.column.as_ref());
            let is_free = domain.tables.is_empty() && owner.is_none();
            let (true, Some(name)) = (*owner == Some(index) || is_free, named) else { continue };
            let Some(column) = table.key().iter().position(|column| column.name == *name) else {
                if is_free && !domain.columns.contains_key(&table.name) {
                    continue;
                }
                return Err(format!(
                    "[[domain]] {}: the key of {} has no column {name}, so that its rows do not tell where they \
                     belong; name the column in columns = {{ {} = \"...\" }}, or leave the table out",
                    domain.name, table.name, table.name
                ));
            };
            *owner = Some(index);
            is_used = true;
            self.places[usize::from(table.id.0)] =
                Place::Split { column, first, count: domain.count };
        }
        if !is_used {
            let column = domain.column.as_deref().unwrap_or_default();
            return Err(format!(
                "[[domain]] {}: no table has a column {column} in its key",
                domain.name
            ));
        }
        self.names.extend((0..domain.count).map(|at| format!("{}.{at}", domain.name)));
        Ok(())
    }

    /// A set belongs where its members do, which its own key has to tell.
    fn place_sets(&mut self, schema: &Schema) -> Result<(), String> {
        for collection in &schema.collections {
            let table = schema.table(collection.table);
            let place = match self.places[usize::from(table.id.0)] {
                Place::Split { column, first, count } => {
                    let owner = collection.owners.iter().position(|&owner| owner == column);
                    let column = owner.ok_or_else(|| {
                        let (name, column) = (&table.name, &table.columns[column].name);
                        format!(
                            "the rows of {name} are divided into ordering domains by {column}, which is the member in a [[set]] \
                             or [[zset]] over {name}: such a set would belong to several domains. Leave that mapping out, or \
                             put {name} into one domain by tables = [\"{name}\"]"
                        )
                    })?;
                    Place::Split { column, first, count }
                }
                whole @ Place::Whole(_) => whole,
            };
            for part in collection.parts {
                self.places[usize::from(part.0)] = place;
            }
        }
        Ok(())
    }

    /// How many domains there are; at least one.
    #[expect(clippy::len_without_is_empty, reason = "a partition is never empty")]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether the whole origin is one domain.
    pub fn is_one(&self) -> bool {
        self.names.len() == 1
    }

    /// All domains.
    pub fn ids(&self) -> impl Iterator<Item = DomainId> + use<> {
        (0..self.names.len() as u16).map(DomainId)
    }

    /// A domain's name.
    pub fn name(&self, domain: DomainId) -> &str {
        &self.names[usize::from(domain.0)]
    }

    /// What becomes of a domain's rejected writes; `None` where the policy says it.
    pub fn on_reject(&self, domain: DomainId) -> Option<OnReject> {
        self.on_reject[usize::from(domain.0)]
    }

    /// The partition as a number, for the owner's row at the origin.
    pub fn map(&self) -> u64 {
        self.map
    }

    /// The domain of a row.
    pub fn of_row(&self, table: TableId, key: &[u8]) -> DomainId {
        let place = self.places.get(usize::from(table.0)).copied();
        match place.unwrap_or(Place::REST) {
            Place::Whole(domain) => domain,
            Place::Split { column, first, count } => {
                let cell = Reader::new(key).nth(column);
                let value = cell.and_then(|cell| cell.value()).unwrap_or_default();
                DomainId(first + spread(value, count))
            }
        }
    }

    /// Whether a write may have the origin change rows of other domains.
    pub fn reaches_across(&self) -> bool {
        self.has_effects_across
    }

    /// The domains that have rows of a table, ascending.
    pub fn homes(&self, table: TableId) -> Vec<DomainId> {
        match self.places.get(usize::from(table.0)).copied().unwrap_or(Place::REST) {
            Place::Whole(domain) => vec![domain],
            Place::Split { first, count, .. } => (first..first + count).map(DomainId).collect(),
        }
    }

    /// The domains of all that raw SQL is declared to touch, ascending.
    pub fn of_dml(&self, dml: &Dml<'_>) -> Vec<DomainId> {
        let homes = dml.declared().flat_map(|(table, row)| match row {
            Some(key) => vec![self.of_row(table, key)],
            None => self.homes(table),
        });
        ascending(homes.collect())
    }

    /// The domains whose writes may change rows of these tables, ascending.
    pub fn of_tables(&self, tables: impl Iterator<Item = TableId>) -> Box<[DomainId]> {
        if self.has_effects_across {
            return self.ids().collect();
        }
        ascending(tables.flat_map(|table| self.homes(table)).collect()).into()
    }

    /// The domains of a group that is known to be whole.
    pub fn of_group(&self, schema: &Schema, bytes: &[u8]) -> Spread {
        if self.is_one() {
            return Spread::One(DomainId(0));
        }
        let key_len = |table: TableId| schema.tables.get(usize::from(table.0)).map(|t| t.key_len);
        let mut domains: Vec<DomainId> = Vec::new();
        for item in items(bytes, key_len) {
            match item.expect("groups are checked when they are written or recovered") {
                Item::Change(change) => domains.push(self.of_row(change.table, change.key)),
                Item::Dml(dml) => domains.extend(self.of_dml(&dml)),
            }
        }
        let domains = ascending(domains);
        match domains[..] {
            [] => Spread::One(DomainId(0)),
            [only] => Spread::One(only),
            _ => Spread::Several(domains.into()),
        }
    }
}

fn ascending(mut domains: Vec<DomainId>) -> Vec<DomainId> {
    domains.sort_unstable();
    domains.dedup();
    domains
}

/// Which of `count` domains a value belongs to: whole numbers in turn, so that as many domains as there are numbers are one
/// each; others by a hash.
fn spread(value: &[u8], count: u16) -> u16 {
    let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
    let number = number.unwrap_or_else(|| fnv1a(FNV_BASIS, value));
    (number % u64::from(count)) as u16
}

fn check_name(domain: &DomainSettings, before: &[DomainSettings]) -> Result<(), String> {
    let name = &domain.name;
    if name.is_empty() || name == REST || before.iter().any(|other| other.name == *name) {
        return Err(format!(
            "[[domain]]: each needs a name of its own other than '{REST}', which is that of all other tables; '{name}' is \
             not"
        ));
    }
    let by_value = domain.column.is_some() || !domain.columns.is_empty();
    if !by_value && domain.tables.is_empty() {
        return Err(format!("[[domain]] {name}: it needs tables = [...] or column = \"...\""));
    }
    if !(1..=DOMAINS_MAX).contains(&domain.count) {
        return Err(format!("[[domain]] {name}: count is 1 to {DOMAINS_MAX}"));
    }
    Ok(())
}

fn find(schema: &Schema, domain: &DomainSettings, name: &str) -> Result<TableId, String> {
    let table = schema.find(name.as_bytes()).map(|table: &Table| table.id);
    table.ok_or_else(|| {
        let domain = &domain.name;
        format!("[[domain]] {domain}: the table '{name}' is not reachable; see destage schema")
    })
}

/// A number for the settings, the same on every machine. New tables at the origin leave it as it is.
fn map_of(domains: &[DomainSettings]) -> u64 {
    let mut hash = FNV_BASIS;
    let mut add = |text: &str| {
        hash = fnv1a(hash, text.as_bytes());
        hash = fnv1a(hash, &[0]);
    };
    for domain in domains {
        let mut tables = domain.tables.clone();
        tables.sort_unstable();
        add(&domain.name);
        tables.iter().for_each(|table| add(table));
        add(domain.column.as_deref().unwrap_or_default());
        for (table, column) in &domain.columns {
            add(table);
            add(column);
        }
        add(&domain.count.to_string());
    }
    // Origins keep it with or without a sign; 0 and 1 have a meaning of their own.
    (hash >> 1).max(MAP_OF_ONE + 1)
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
