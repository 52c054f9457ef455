//! What the settings file says of single tables and of ordering domains.

use crate::schema::Table;
use crate::ttl::TtlSettings;
use destage_core::{OnReject, Span};
use std::collections::BTreeMap;

/// Settings of one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSettings {
    /// Acknowledge writes without knowing the old row: counts in replies are meaningless then.
    pub blind: bool,
    /// Acknowledge writes after the origin, whatever the policy says.
    pub ack_origin: bool,
    /// The tables that this one's triggers, rules or policies change, as the user declares them; an empty list for none.
    /// `None`: not declared, so writes go through.
    pub triggers: Option<Vec<String>>,
    /// The columns of the written row that this table's triggers set, as the user declares it: they do nothing else, so
    /// `triggers` is empty.
    pub trigger_sets: Vec<String>,
    /// Other programs make or change rows of the table.
    pub others_write: bool,
    /// A new row that meets a row at the origin is merged with it, rather than rejected.
    pub merges_new: bool,
    /// Cached rows are fetched again after this time, for what others change at the origin.
    pub max_age: Option<Span>,
    /// EXPIRE and its kin work on the table's keys: the cached copy expires and is fetched again, never the row.
    pub copies_expire: bool,
    /// In which column the times stand at which rows end. `None`: they do not.
    pub ttl: Option<TtlSettings>,
    /// New rows are given here what their defaults compute, as far as it is known here.
    pub defaults_here: bool,
    /// The rows that foreign keys refer to are looked for before a write is acknowledged.
    pub ask_foreign_keys: bool,
    /// Whether other rows have the values of unique columns is looked for before a write is acknowledged.
    pub ask_unique: bool,
    /// What the documents of a MongoDB collection hold. `None`: not declared, so the collection's validator says it.
    pub document: Option<DocumentSettings>,
}

impl TableSettings {
    /// Whether each write of that table waits for the origin, which may do more with it than store it, and drops the cached
    /// row.
    pub fn goes_through(&self, table: &Table) -> bool {
        // Declared to change nothing that is cached.
        let is_harmless = self.triggers.as_ref().is_some_and(Vec::is_empty);
        table.class.opaque.is_some() && (self.ack_origin || !is_harmless)
    }
}

/// What the documents of a collection hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentSettings {
    /// The type of `_id`: string, int, long or objectId.
    pub id: Option<String>,
    /// The fields by name (with dots in between: inside nested documents) and their types: string, int, long, double, bool,
    /// date, objectId, binData, array, or json for all else.
    pub fields: BTreeMap<String, String>,
    /// The fields without which no document is made.
    pub required: Vec<String>,
}

/// An ordering domain by its tables, or several by the value of a column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// Its name, which status, metrics and messages use.
    pub name: String,
    /// Its tables. With a column none may be given: then all tables whose key has the column, as far as they are in no
    /// other.
    pub tables: Vec<String>,
    /// The column of the primary key by whose value the rows are told apart; `None`: the tables are one domain as a whole.
    pub column: Option<String>,
    /// Tables that call the column otherwise, and how.
    pub columns: BTreeMap<String, String>,
    /// Into how many domains the column's values are spread; 1 to [`crate::domains::DOMAINS_MAX`].
    pub count: u16,
    /// Constraints, cascades and triggers that cross its border are known to be harmless.
    pub assume_independent: bool,
    /// What becomes of its rejected writes; `None`: as the policy says.
    pub on_reject: Option<OnReject>,
}

impl DomainSettings {
    /// These tables, as one domain.
    pub fn of_tables<'t>(
        name: impl Into<String>,
        tables: impl IntoIterator<Item = &'t str>,
    ) -> Self {
        let tables = tables.into_iter().map(str::to_owned).collect();
        Self { name: name.into(), tables, count: 1, ..Self::default() }
    }

    /// Tables and the column of each one's primary key by whose value its rows are told apart, as `count` domains.
    pub fn by_columns<'t>(
        name: impl Into<String>,
        columns: impl IntoIterator<Item = (&'t str, &'t str)>,
        count: u16,
    ) -> Self {
        let owned = |(table, column): (&str, &str)| (table.to_owned(), column.to_owned());
        let columns = columns.into_iter().map(owned).collect();
        Self { name: name.into(), columns, count, ..Self::default() }
    }
}
