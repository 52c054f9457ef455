//! What `destage serve` is told, parsed and checked: flags and files are read elsewhere.

use crate::derived::QuerySettings;
use crate::mapping::MappingSettings;
use crate::users::UsersFile;
use destage_core::{Policy, Span};
pub use destage_origins::settings::{DocumentSettings, DomainSettings, TableSettings};
use destage_record::RecordSettings;
pub use destage_replicas_redis::Places;
use destage_runtime::auto::AutoOptions;
pub use destage_runtime::commit_ring::DEPTH_MAX;
use destage_runtime::sockets::Listen;
use destage_runtime::tls::ServerFiles;
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
    /// Settings of the policy that are tried out while the server runs.
    pub auto: AutoOptions,
    /// The servers that hold the buffered writes, if any do.
    pub replicas: Option<ReplicaSettings>,
    /// Go on with a journal that is one copy of a log on other servers, without them.
    pub journal_alone: bool,
    /// Durable writes of the journal that may be under way at once, at most [`DEPTH_MAX`]; 0 for buffered writes and syncs;
    /// `None` to measure the disk at the start.
    pub journal_depth: Option<usize>,
    /// How long decided groups are kept in the journal on this host's disk. [`JournalKind::Replicas`] keeps none.
    pub retain: Span,
    /// How long a shutdown may drain; [`Span::MAX`] for as long as it takes.
    pub drain_timeout: Span,
    /// What clients must send by AUTH, and the admin port's POSTs as bearer token.
    pub password: Option<String>,
    /// Users beside that password, by a file of them; `None` for none.
    pub users: Option<UsersFile>,
    /// Serve without a password where one would be asked for.
    pub no_auth: bool,
    /// Encryption of the clients' connections; `None` for none.
    pub tls: Option<ServerFiles>,
    /// Most connections at once.
    pub clients_max: usize,
    /// Most bytes that all parked writes may have as the origin holds them; more are not read.
    pub parked_bytes_max: u64,
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
    /// What a command does that needs the origin while it is away.
    pub on_away: OnAway,
    /// How long a client may take to send the password, and to agree on the encryption; then it is disconnected.
    pub handshake_timeout: Span,
    /// Most tokens of `DESTAGE ONCE` at once.
    pub once_tokens_max: usize,
    /// Most memory that they take, bytes.
    pub once_bytes_max: u64,
    /// Most keys, counted once for each client, of which clients are told when they change.
    pub tracking_keys_max: usize,
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
    /// The keys of all tables are kept, so that the origin is not asked for rows that it certainly does not have.
    pub absent_filter: bool,
    /// The partition into ordering domains; empty for one domain over the whole origin.
    pub domains: Vec<DomainSettings>,
    /// Where to record what the core is told; `None` for nowhere.
    pub record: Option<RecordSettings>,
    /// A shell command to run against the started server; it drains and ends with it.
    pub run: Option<String>,
    /// Negative controls of the tests.
    pub unsafe_flags: UnsafeFlags,
}

/// Servers that hold the buffered writes, beside the journal on the local disk or instead of it.
#[derive(Clone, Debug)]
pub struct ReplicaSettings {
    /// The servers.
    pub places: Places,
    /// So many of them hold a write before it is acknowledged. *Range:* 1 to the number of servers.
    pub copies: usize,
    /// What holds the writes.
    pub journal: JournalKind,
    /// Names the log on the servers, so that several logs share them.
    pub name: String,
    /// How long an owner must not have shown itself before another one takes over.
    pub failover: Duration,
    /// Follow whoever owns the log, and take over from it.
    pub standby: bool,
    /// Where clients reach this server, if not where it listens.
    pub advertise: Option<String>,
}

/// What holds the buffered writes until the origin has decided them, where there are servers for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalKind {
    /// The servers alone.
    #[default]
    Replicas,
    /// The servers and the journal on the local disk, both.
    Both,
}

/// What a command does that needs the origin while it is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnAway {
    /// It is refused at once.
    #[default]
    Fail,
    /// It waits until the origin is back, for no longer than [`Settings::client_wait`].
    Wait,
}

/// What becomes of keys that name no row: neither `table:primary-key` nor a mapping takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Unmapped {
    /// They are refused.
    #[default]
    Reject,
    /// They are plain cache keys: held in memory alone, evicted like cached rows, gone at the end of the process.
    Cache,
    /// Those that begin with one of these are plain cache keys; the others are refused. None is empty.
    Prefixes(Vec<String>),
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
    /// Rows that are made here are not taken for rows that the origin may have.
    pub forgetful_filter: bool,
    /// The servers of the log let go of what they hold before the origin has decided it.
    pub early_reclaim: bool,
    /// The owner of the log answers whether or not it is sure to own it still.
    pub no_log_lease: bool,
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
            auto: AutoOptions::default(),
            replicas: None,
            journal_alone: false,
            journal_depth: None,
            retain: Span::from_secs(600),
            drain_timeout: Span::from_secs(30),
            password: None,
            users: None,
            no_auth: false,
            tls: None,
            clients_max: 10_000,
            parked_bytes_max: 256 << 20,
            request_bytes_max: 64 << 20,
            pipeline_max: 10_000,
            output_bytes_max: 256 << 20,
            output_total_bytes_max: 1 << 30,
            client_wait: Span::from_secs(4),
            on_away: OnAway::Fail,
            handshake_timeout: Span::from_secs(30),
            once_tokens_max: 1_000_000,
            once_bytes_max: 256 << 20,
            tracking_keys_max: 1_000_000,
            origin_timeout: Duration::from_secs(10),
            take_over: false,
            adopt: false,
            change_origin: None,
            tables: BTreeMap::new(),
            mappings: Vec::new(),
            queries: Vec::new(),
            unmapped: Unmapped::default(),
            absent_filter: false,
            domains: Vec::new(),
            record: None,
            run: None,
            unsafe_flags: UnsafeFlags::default(),
        }
    }
}
