//! What `destage serve` is told, parsed and checked: flags and files are read elsewhere.

use crate::derived::QuerySettings;
use crate::mapping::MappingSettings;
use crate::schema::Table;
use destage_core::{OnReject, Policy, Span};
use destage_record::RecordSettings;
use destage_runtime::sockets::Listen;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that the data front end needs to start. The defaults are those of the command line.
///
/// Not `Debug`: it holds passwords.
#[derive(Clone)]
pub struct Settings {
    /// Where clients connect.
    pub listen: Listen,
    /// The admin port; `None` for none.
    pub admin: Option<SocketAddr>,
    /// Names by which the admin port may be asked, besides addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// The folder of the journal (and of the example shop).
    pub data: PathBuf,
    /// The origin's address as given, password included; `None` for the example shop.
    pub origin: Option<String>,
    /// The policy, validated.
    pub policy: Policy,
    /// How long decided groups are kept in the journal.
    pub retain: Span,
    /// How long a shutdown may drain; [`Span::MAX`] for as long as it takes.
    pub drain_timeout: Span,
    /// What clients must send by AUTH, and the admin port's POSTs as bearer token.
    pub password: Option<String>,
    /// Serve without a password where one would be asked for.
    pub no_auth: bool,
    /// Most connections at once.
    pub clients_max: usize,
    /// Most bytes of one command.
    pub request_bytes_max: usize,
    /// Most commands of one connection that are read ahead of their replies.
    pub pipeline_max: usize,
    /// Most bytes of replies that wait for one connection before it is closed.
    pub output_bytes_max: usize,
    /// Most bytes of replies that all clients together may leave unread.
    pub output_total_bytes_max: usize,
    /// Longest wait of a client for an answer, whatever it waits for, unless its command names another bound.
    pub client_wait: Span,
    /// How long a client may take to send the password; then it is disconnected.
    pub handshake_timeout: Span,
    /// Most tokens of `DESTAGE ONCE` at once.
    pub once_tokens_max: usize,
    /// Most memory that they take, bytes.
    pub once_bytes_max: u64,
    /// Longest wait for the origin's answer to one request of ours.
    pub origin_timeout: Duration,
    /// Take the origin over from an owner that still shows itself.
    pub take_over: bool,
    /// Accept an origin whose watermark is beyond the journal's last group, and go on after it.
    pub adopt: bool,
    /// `FROM=TO`: send to the origin TO what the journal's own origin FROM has not decided, both in the words of the refusal.
    pub change_origin: Option<String>,
    /// Settings of single tables, by the table's name.
    pub tables: BTreeMap<String, TableSettings>,
    /// Keys besides `table:primary-key`, in the order in which they are tried.
    pub mappings: Vec<MappingSettings>,
    /// The derived keys.
    pub queries: Vec<QuerySettings>,
    /// What becomes of keys that name no row.
    pub unmapped: Unmapped,
    /// The partition into ordering domains; empty for one domain over the whole origin.
    pub domains: Vec<DomainSettings>,
    /// Where to record what the core is told; `None` for nowhere.
    pub record: Option<RecordSettings>,
    /// A shell command to run against the started server; it drains and ends with it.
    pub run: Option<String>,
    /// Negative controls of the tests.
    pub unsafe_flags: UnsafeFlags,
}

/// What becomes of keys that name no row: neither `table:primary-key` nor a mapping takes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmapped {
    /// They are refused.
    #[default]
    Reject,
    /// They are plain cache keys: held in memory alone, evicted like cached rows, gone at the end of the process.
    Cache,
}

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
    /// Cached rows are fetched again after this time, for what others change at the origin.
    pub max_age: Option<Span>,
    /// EXPIRE and its kin work on the table's keys: the cached copy expires and is fetched again, never the row.
    pub copies_expire: bool,
    /// What the documents of a MongoDB collection hold. `None`: not declared, so the collection's validator says it.
    pub document: Option<DocumentSettings>,
}

impl TableSettings {
    /// Whether each write of that table waits for the origin, which may do more with it than store it, and drops the cached row.
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
    /// Its tables. With a column none may be given: then all tables whose key has the column, as far as they are in no other.
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

/// Ways to break promises on purpose, so that the tests can see that they would notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeFlags {
    /// The journal is written but not made durable.
    pub no_fsync: bool,
    /// Batches are applied without looking at the watermark.
    pub no_watermark: bool,
    /// A row that is fetched shows the origin's state without the buffered writes.
    pub no_overlay: bool,
    /// Replies leave before the values that they show are committed.
    pub no_read_gate: bool,
    /// Each command of a transaction is a write group of its own.
    pub split_sessions: bool,
    /// Neither leases nor watched keys stop anybody.
    pub no_leases: bool,
    /// A derived key's query runs before the writes are destaged that it must show.
    pub no_query_destage: bool,
    /// Writes leave the cached results of queries as they are.
    pub no_query_invalidation: bool,
    /// One watermark for all ordering domains, whichever a batch belongs to.
    pub one_watermark: bool,
    /// What raw SQL is declared to touch is read without waiting for it.
    pub no_opaque_wait: bool,
    /// What a transaction has read, and what its rows refer to, is not told with its group.
    pub no_builds_on: bool,
}

impl UnsafeFlags {
    /// Those that have an effect: none in a build without negative controls, so that nothing of them is left in it.
    #[inline]
    pub(crate) fn in_force(self) -> Self {
        if destage_engine::CONTROLS { self } else { Self::default() }
    }

    /// Whether any is set.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// The example shop, inside the data folder.
pub const EXAMPLE_FILE: &str = "shop.db";

/// The folder of the journal inside the data folder.
pub fn journal_dir(data: &Path) -> PathBuf {
    data.join("journal")
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp((Ipv4Addr::LOCALHOST, 6380).into()),
            admin: Some((Ipv4Addr::LOCALHOST, 6381).into()),
            admin_hosts: Vec::new(),
            data: "destage-data".into(),
            origin: None,
            policy: Policy::default(),
            retain: Span::from_secs(600),
            drain_timeout: Span::from_secs(30),
            password: None,
            no_auth: false,
            clients_max: 10_000,
            request_bytes_max: 64 << 20,
            pipeline_max: 10_000,
            output_bytes_max: 256 << 20,
            output_total_bytes_max: 1 << 30,
            client_wait: Span::from_secs(4),
            handshake_timeout: Span::from_secs(30),
            once_tokens_max: 1_000_000,
            once_bytes_max: 256 << 20,
            origin_timeout: Duration::from_secs(10),
            take_over: false,
            adopt: false,
            change_origin: None,
            tables: BTreeMap::new(),
            mappings: Vec::new(),
            queries: Vec::new(),
            unmapped: Unmapped::default(),
            domains: Vec::new(),
            record: None,
            run: None,
            unsafe_flags: UnsafeFlags::default(),
        }
    }
}
