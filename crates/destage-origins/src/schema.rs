//! What the origin's catalogue says about its tables, as far as caching depends on it.

use crate::checks::{Check, Condition};
use crate::collection::{Collection, CollectionId, Part};
use crate::defaults::Formula;
use crate::mapping::{MappingSettings, Mappings};
use crate::ttl::Ttl;
use crate::value::ColumnType;
use hashbrown::HashMap;

/// A table's position in [`Schema::tables`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId(pub u16);

/// The tables of an origin.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The reachable tables, ordered by name, and behind them the cache's own ones.
    pub tables: Vec<Table>,
    /// What cannot be reached, and why.
    pub unreachable: Vec<Unreachable>,
    /// Statements for the origin, in this order: after all of them keys reach the tables in whose keys texts that differ are
    /// one text today.
    pub key_changes: Vec<String>,
    /// Keys of the user's own making.
    pub mappings: Mappings,
    /// A write group may change one row only: the origin has no transactions over several.
    pub one_row_groups: bool,
    /// Unique columns of some table are asked for.
    pub asks_unique: bool,
    /// Rows of some table end, see [`Table::ttl`].
    pub rows_end: bool,
    /// New rows of some table are merged, see [`Table::merges_new`].
    pub merges_new: bool,
    /// Sets and sorted sets over tables.
    pub collections: Vec<Collection>,
    /// The table of the plain cache keys: of keys that name no row, where they are served.
    pub plain: Option<TableId>,
    /// How plain cache keys begin; empty: in any way.
    plain_prefixes: Vec<Vec<u8>>,
    by_name: HashMap<Vec<u8>, TableId>,
}

/// A table or view that no key reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Its name at the origin.
    pub name: String,
    /// Why, in words for the user ("it has no primary key").
    pub reason: String,
}

/// Why no key reaches a table that has none.
pub(crate) const NO_KEY: &str =
    "it has no primary key, and no unique index over columns that are NOT NULL and can be a key";

/// Why no key reaches a table without a primary key, where its best unique index is none for this reason.
pub(crate) fn no_index_key(index: &str, why: &str) -> String {
    format!("it has no primary key, and its unique index {index} does not take its place: {why}")
}

/// A table with a primary key, or a unique index in its place.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its place in the schema.
    pub id: TableId,
    /// The name that keys use: `name:pk`.
    pub name: String,
    /// The name for SQL, quoted and qualified as the origin needs it.
    pub sql_name: String,
    /// The columns: those of the primary key first, in key order, then the others in the table's order.
    pub columns: Vec<Column>,
    /// How many of the columns form the primary key.
    pub key_len: usize,
    /// The unique index whose columns are the key, of a table without a primary key.
    pub key_index: Option<String>,
    /// What the origin does beyond storing the row.
    pub class: Class,
    /// Tables that this one references by foreign keys, itself included if it does.
    pub references: Vec<TableId>,
    /// Tables that reference this one.
    pub referenced_by: Vec<TableId>,
    /// The foreign keys behind `references`, where the origin's catalogue tells their columns. A reference without an entry
    /// here counts as one between all rows of the two tables, which merges less.
    pub foreign_keys: Vec<ForeignKey>,
    /// The rows that they refer to are looked for before a write is acknowledged, as far as that can be done.
    pub asks_foreign_keys: bool,
    /// The CHECK constraints, those of its columns' domains among them.
    pub checks: Vec<Check>,
    /// Whether a unique or exclusion constraint or unique index exists besides the key.
    pub has_unique: bool,
    /// The unique constraints and indexes behind `has_unique`, where the catalogue tells their columns.
    pub uniques: Vec<Unique>,
    /// Whether other rows have the values of unique columns is looked for before a write is acknowledged.
    pub asks_unique: bool,
    /// The key column whose values the origin can hand out (identity, sequence, rowid), if any.
    pub generated_key: Option<usize>,
    /// The collections whose elements its rows are.
    pub collections: Vec<CollectionId>,
    /// Of the cache's own tables: what their units stand for.
    pub part: Option<(CollectionId, Part)>,
    /// Clients may have the cached copies of its rows expire.
    pub copies_expire: bool,
    /// Its rows end at the time that a column holds.
    pub ttl: Option<Ttl>,
    /// An insert that meets a row at the origin is merged with it: the columns that it gives win, the others stay.
    pub merges_new: bool,
    /// The columns that a new row is given here in the place of their defaults, if it is not given them otherwise.
    pub given_here: Vec<(usize, Formula)>,
    by_column: HashMap<Vec<u8>, u16>,
}

/// A foreign key, seen from the referencing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKey {
    /// The constraint's name, where the origin gives it one.
    pub name: Option<String>,
    /// The referencing columns, by index.
    pub columns: Vec<usize>,
    /// The referenced table.
    pub parent: TableId,
    /// The referenced columns, in the same order.
    pub parent_columns: Vec<usize>,
    /// Whether two values match exactly when their canonical forms are equal byte for byte (same type, binary collation).
    pub exact: bool,
}

/// A unique constraint or index besides the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unique {
    /// Its name.
    pub name: String,
    /// Its columns, by index; expressions are left out.
    pub columns: Vec<usize>,
    /// Any two rows with equal values in these columns violate it: it has no condition, no expressions and no beginnings of
    /// values.
    pub is_whole: bool,
}

/// What the origin does beyond storing the row as it was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Triggers, rules or row security: writes go through and the cached row is dropped.
    pub opaque: Option<String>,
    /// Deleting a row, or changing a referenced column, changes rows of these tables (ON DELETE / ON UPDATE actions).
    pub cascades_to: Vec<TableId>,
    /// A constraint of this table, or one that refers to it, is checked at commit (INITIALLY DEFERRED): each group is
    /// checked at its own end, so that batches reject what single groups would.
    pub deferred: bool,
    /// Columns that triggers set in the row which is written, and do nothing else.
    pub sets: Vec<SetByTrigger>,
}

/// A column that a trigger sets in the row which is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetByTrigger {
    /// The column, by index: neither of the key nor structural.
    pub column: usize,
    /// Whether it may do so when a row is made.
    pub on_insert: bool,
    /// Whether it may do so when a row is changed.
    pub on_update: bool,
    /// Whether it does so whatever is written, and two writes in one transaction leave what the last one alone would.
    pub merges: bool,
    /// Whether it gives a new row its value before NOT NULL is checked, so that a writer need not.
    pub fills: bool,
    /// The trigger whose text says so; `None`: the user does.
    pub by: Option<String>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, which is the field's name.
    pub name: String,
    /// The name quoted for SQL.
    pub sql_name: String,
    /// Which values it takes and how they are written.
    pub ty: ColumnType,
    /// The origin's own name of the type, for messages.
    pub type_name: String,
    /// Whether NULL is refused.
    pub not_null: bool,
    /// What a new row gets where the column is not given.
    pub default: ColumnDefault,
    /// Computed by the origin from other columns: read-only and unknown while the row is dirty.
    pub generated: bool,
    /// In a primary, unique, exclusion or foreign key, on either side: changes of it do not commute.
    pub structural: bool,
    /// A CHECK constraint (or an expression index) looks at it: intermediate values count.
    pub checked: bool,
}

/// What a new row gets where a column is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnDefault {
    /// NULL, or an error where the column is NOT NULL.
    None,
    /// A constant, in canonical form.
    Constant(Vec<u8>),
    /// Something that only the origin can tell (a function, a sequence): unknown until the row is at the origin.
    Computed,
    /// The same, unless it is given here: see [`Table::given_here`].
    Formula(Formula),
}

/// Most tables that are reachable.
pub const TABLES_MAX: usize = 1 << 14;

impl Schema {
    /// Builds a schema; assigns the tables' ids by their order. The caller fills `references` and `cascades_to` by position
    /// in `tables`, so the order must be final.
    pub fn new(mut tables: Vec<Table>, mut unreachable: Vec<Unreachable>) -> Self {
        for table in tables.drain(TABLES_MAX.min(tables.len())..) {
            let reason = format!("it is beyond the first {TABLES_MAX} tables");
            unreachable.push(Unreachable { name: table.name, reason });
        }
        let mut schema = Self { tables, unreachable, ..Self::default() };
        for (index, table) in schema.tables.iter_mut().enumerate() {
            table.id =
                TableId(u16::try_from(index).expect("an origin has fewer than 65,536 tables"));
            table.by_column = table
                .columns
                .iter()
                .enumerate()
                .map(|(i, column)| (column.name.clone().into_bytes(), i as u16))
                .collect();
            schema.by_name.insert(table.name.clone().into_bytes(), table.id);
        }
        schema
    }

    /// What is said before [`Self::key_changes`].
    pub const KEY_CHANGES: &str = "Texts that differ are one key of some tables. After all of these statements, which change the \
        collations of their keys, these tables can be reached:";

    /// Makes rows reachable under keys of the user's own making.
    ///
    /// # Errors
    /// Names the mapping, and what does not fit the tables; nothing has changed then.
    pub fn map_keys(&mut self, settings: &[MappingSettings]) -> Result<(), String> {
        self.mappings = Mappings::new(self, settings)?;
        Ok(())
    }

    /// The tables of the origin, without the cache's own ones.
    pub fn reachable(&self) -> &[Table] {
        let own = self.collections.len() * 2 + usize::from(self.plain.is_some());
        &self.tables[..self.tables.len() - own]
    }

    /// The tables behind the keys of the user's own making that begin so, up to their first place: of sets, the tables of
    /// the members.
    pub fn mapped_under(&self, prefix: &[u8]) -> Vec<TableId> {
        let tables = self.mappings.under(prefix).map(|table| match self.table(table).part {
            Some((id, _)) => self.collection(id).table,
            None => table,
        });
        let mut tables: Vec<TableId> = tables.collect();
        tables.sort_unstable();
        tables.dedup();
        tables
    }

    /// The triggers of a table do nothing but set these columns of the row that is written, as the user declares it.
    ///
    /// # Errors
    /// Names the column that cannot be left to a trigger.
    pub fn declare_sets(&mut self, table: TableId, columns: &[String]) -> Result<(), String> {
        crate::triggers::declare(&mut self.tables[usize::from(table.0)], columns)
    }

    /// Adds a collection and its tables; `None` if there are too many tables.
    pub(crate) fn add_collection(&mut self, mut collection: Collection) -> Option<&Collection> {
        if self.tables.len() + 2 > TABLES_MAX {
            return None;
        }
        let id = CollectionId(u16::try_from(self.collections.len()).ok()?);
        collection.id = id;
        for (place, part) in [Part::Whole, Part::Page].into_iter().enumerate() {
            let elements = self.table(collection.table);
            let mut table = Table::named(elements.name.clone(), String::new());
            table.id = TableId(u16::try_from(self.tables.len()).ok()?);
            table.columns =
                collection.owners.iter().map(|&index| elements.columns[index].clone()).collect();
            if part == Part::Page {
                let queries = std::iter::repeat_n(own_column(), crate::collection::QUERY_CELLS);
                table.columns.extend(queries);
            }
            table.key_len = table.columns.len();
            table.part = Some((id, part));
            collection.parts[place] = table.id;
            self.tables.push(table);
        }
        self.tables[usize::from(collection.table.0)].collections.push(id);
        self.collections.push(collection);
        self.collections.last()
    }

    /// Serves keys that name no row as plain cache keys: those that begin with one of `prefixes`, or all if there is none.
    /// After every collection has been added.
    ///
    /// # Errors
    /// There are too many tables, or keys that begin so name rows.
    pub fn serve_plain_keys(&mut self, prefixes: &[String]) -> Result<(), String> {
        if let Some(prefix) = prefixes.iter().find(|prefix| self.names_table(prefix.as_bytes())) {
            return Err(format!(
                "--unmapped names '{prefix}*', but keys that begin so are keys of a table: leave it out, or rename the keys"
            ));
        }
        if self.tables.len() >= TABLES_MAX {
            return Err(format!("{TABLES_MAX} tables leave none for plain cache keys"));
        }
        let mut table = Table::named(String::new(), String::new());
        table.id = TableId(u16::try_from(self.tables.len()).map_err(|error| error.to_string())?);
        table.columns = vec![own_column(); PLAIN_COLUMNS];
        table.key_len = 1;
        self.plain = Some(table.id);
        self.plain_prefixes = prefixes.iter().map(|prefix| prefix.clone().into_bytes()).collect();
        self.tables.push(table);
        Ok(())
    }

    /// The table of the plain cache keys, if a key that no mapping takes is one of them.
    pub fn plain_of(&self, key: &[u8]) -> Option<TableId> {
        self.plain_if(key, |prefix| key.starts_with(prefix))
    }

    /// The same if a key that begins so may be one of them.
    pub fn plain_below(&self, begin: &[u8]) -> Option<TableId> {
        self.plain_if(begin, |prefix| begin.starts_with(prefix) || prefix.starts_with(begin))
    }

    fn plain_if(&self, key: &[u8], is_meant: impl Fn(&[u8]) -> bool) -> Option<TableId> {
        let mut prefixes = self.plain_prefixes.iter();
        let is_one = self.plain_prefixes.is_empty() || prefixes.any(|prefix| is_meant(prefix));
        self.plain.filter(|_| is_one && !self.names_table(key))
    }

    /// Whether a key begins with the name of a table, be it one that cannot be reached.
    pub fn names_table(&self, key: &[u8]) -> bool {
        let Some(colon) = memchr::memchr(b':', key) else { return false };
        let name = crate::key_text::decode(&key[..colon]);
        let is_it = |table: &Unreachable| table.name.as_bytes() == &name[..];
        self.find(&name).is_some() || self.unreachable.iter().any(is_it)
    }

    /// Clients may have the cached copies of these tables' rows expire. After every collection has been added.
    pub fn let_copies_expire(&mut self, is_meant: impl Fn(&str) -> bool) {
        for table in &mut self.tables {
            table.copies_expire = is_meant(&table.name);
        }
    }

    /// The collection of that id.
    pub fn collection(&self, id: CollectionId) -> &Collection {
        &self.collections[usize::from(id.0)]
    }

    /// The table of that id.
    pub fn table(&self, id: TableId) -> &Table {
        &self.tables[usize::from(id.0)]
    }

    /// The table of that name.
    pub fn find(&self, name: &[u8]) -> Option<&Table> {
        self.by_name.get(name).map(|&id| self.table(id))
    }
}

/// The columns of plain cache keys: the key, its value if it is a string, its fields if it is a hash.
const PLAIN_COLUMNS: usize = 3;
/// The column of a plain string's value.
pub const PLAIN_STRING: usize = 1;
/// The column of a plain hash's fields.
pub const PLAIN_HASH: usize = 2;

/// A column of the cache's own tables.
fn own_column() -> Column {
    Column {
        name: String::new(),
        sql_name: String::new(),
        ty: ColumnType::Bytes,
        type_name: String::new(),
        not_null: false,
        default: ColumnDefault::None,
        generated: false,
        structural: false,
        checked: false,
    }
}

impl Column {
    /// A column of a table that is made here: it takes NULL and has no default, and nothing else looks at it.
    pub fn named(name: &str, ty: ColumnType) -> Self {
        Self {
            name: name.to_owned(),
            sql_name: name.to_owned(),
            ty,
            type_name: "such a type".to_owned(),
            not_null: false,
            default: ColumnDefault::None,
            generated: false,
            structural: false,
            checked: false,
        }
    }
}

impl Table {
    /// A table to be completed by the catalogue reader: no columns, plain, unrelated.
    pub fn named(name: String, sql_name: String) -> Self {
        Self {
            id: TableId(0),
            name,
            sql_name,
            columns: Vec::new(),
            key_len: 0,
            key_index: None,
            class: Class::default(),
            references: Vec::new(),
            referenced_by: Vec::new(),
            foreign_keys: Vec::new(),
            asks_foreign_keys: false,
            checks: Vec::new(),
            has_unique: false,
            uniques: Vec::new(),
            asks_unique: false,
            generated_key: None,
            collections: Vec::new(),
            part: None,
            copies_expire: false,
            ttl: None,
            merges_new: false,
            given_here: Vec::new(),
            by_column: HashMap::new(),
        }
    }

    /// Whether only the origin knows this column of a row that was written, made anew or changed.
    pub fn is_left_to_origin(&self, column: usize, is_new: bool) -> bool {
        let mut sets = self.class.sets.iter();
        self.columns[column].generated
            || sets.any(|set| {
                set.column == column && if is_new { set.on_insert } else { set.on_update }
            })
    }

    /// Whether the origin gives this column of a new row a value before it checks the row.
    pub fn is_filled_by_origin(&self, column: usize) -> bool {
        self.columns[column].generated
            || self.class.sets.iter().any(|set| set.column == column && set.fills)
    }

    /// Whether the origin may compute this column whenever the row is written.
    pub fn is_computed(&self, column: usize) -> bool {
        self.columns[column].generated || self.class.sets.iter().any(|set| set.column == column)
    }

    /// The CHECK constraints that are judged before the origin does, with their conditions. Where triggers may do anything,
    /// they may do it to the row before it is checked.
    pub fn checks_here(&self) -> impl Iterator<Item = (&Check, &Condition)> {
        let is_known = self.class.opaque.is_none();
        self.checks.iter().filter_map(move |check| {
            let condition = check.condition.as_ref().ok().filter(|_| is_known)?;
            Some((check, condition))
        })
    }

    /// Whether it may compute any.
    pub fn has_computed(&self) -> bool {
        !self.class.sets.is_empty() || self.columns.iter().any(|column| column.generated)
    }

    /// The index of the column of that name, whatever its case.
    pub(crate) fn column_like(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name.eq_ignore_ascii_case(name))
    }

    /// The index of the column of that name.
    pub fn column(&self, name: &[u8]) -> Option<usize> {
        self.by_column.get(name).map(|&i| usize::from(i))
    }

    /// The key columns.
    pub fn key(&self) -> &[Column] {
        &self.columns[..self.key_len]
    }

    /// Whether changes of different rows may be merged and reordered: nothing but storing happens at the origin.
    pub fn is_plain(&self) -> bool {
        self.class == Class::default() && !self.columns.iter().any(|c| c.generated)
    }
}
