//! The flags of `serve`. The same names are the keys of the settings file.

mod replicas;

use crate::error::CliError;
use crate::server::{AutoArgs, RecordArgs, range};
use crate::tls::TlsArgs;
use crate::values::{
    AbsentFilter, Admin, AwayChoice, JournalDepth, UnmappedWord, admin, all_unmapped, bytes,
    interval, listen, password, size, staleness, unmapped,
};
use clap::Args;
use destage_core::{Acknowledge, AtLimit, OnReject, Policy, When};
use destage_data::settings::{EXAMPLE_FILE, Settings, UnsafeFlags};
use destage_data::users::UsersFile;
use destage_engine::{defaults, set_dirty_limit};
use destage_runtime::memory;
use destage_runtime::policy::{
    acknowledge_name, at_limit_name, parse_acknowledge, parse_at_limit, parse_on_reject,
    parse_parked_per_minute, parse_when,
};
use destage_runtime::sockets::Listen;
use destage_runtime::units::{Bytes, Interval, Size};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Copies of each buffered write, the log's name, how long its owner may be silent, and decided writes are kept, unless told.
const COPIES: u8 = 2;
const REPLICA_LOG: &str = "destage";
const FAILOVER: &str = "3s";
const RETAIN: &str = "10m";

/// Flags of `serve`.
#[derive(Args, Clone)]
pub(crate) struct ServeArgs {
    /// The origin: sqlite:FILE, postgres://USER:PASSWORD@HOST[:PORT]/DATABASE, for MariaDB
    /// mysql://USER:PASSWORD@HOST[:PORT]/DATABASE, or mongodb://USER:PASSWORD@HOST[:PORT]/DATABASE. Without one, a small example
    /// shop in SQLite is created in the data folder. With a password, prefer the environment or the settings file: flags are
    /// seen by other users of the machine.
    #[arg(long, env = "DESTAGE_ORIGIN", hide_env_values = true, value_name = "URL")]
    origin: Option<String>,

    /// Where Redis clients connect: ADDRESS:PORT (port 0 lets the system choose) or unix:/path. Addresses other than loopback
    /// need --password, --tls-client-ca or --no-auth.
    #[arg(long, default_value = "127.0.0.1:6380", value_parser = listen, value_name = "ADDR")]
    listen: Listen,

    /// The admin port (status, metrics, commands): ADDRESS:PORT, or none. Addresses other than loopback need --password or --no-auth.
    #[arg(long, default_value = "127.0.0.1:6381", value_parser = admin, value_name = "ADDR")]
    admin: Admin,

    /// A name by which the admin port may be asked, besides addresses and localhost: requests that name the host otherwise get 421,
    /// since a web page can lead a browser here under a name of its own. Several are separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    admin_host: Vec<String>,

    /// The folder of the journal; created readable by its owner only. By default ./destage-data, for the example shop
    /// ./destage-example.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// When a write is acknowledged: write-back (once the journal holds it), write-through or write-around (once the origin
    /// has it; the cached copy is refreshed or dropped).
    #[arg(long, default_value = acknowledge_name(defaults::rows::policy().acknowledge), value_parser = parse_acknowledge, value_name = "POLICY")]
    policy: Acknowledge,

    /// When dirty rows are destaged: async (at once, in batches), adaptive (at the rate that D asks for), periodic:10s
    /// (everything, every so often), interval:30s,1s (rows of that age, looked at every so often) or pressure (at the dirty
    /// limit). Periods and ages are 10ms to 1h.
    #[arg(long, default_value = "async", value_parser = parse_when, value_name = "WHEN")]
    when: When,

    /// Destage while nobody reads at the origin, as far as D and the limits allow.
    #[arg(long)]
    read_priority: bool,

    /// d: the most that a crash of this host may lose. 0 loses nothing acknowledged; otherwise the journal commits so often, 1ms
    /// to 60s.
    #[arg(long, default_value_t = Interval(defaults::rows::COMMIT), value_parser = |s: &str| interval(s, "0", "60s"), value_name = "TIME")]
    commit: Interval,

    /// D: the most that losing this host and its journal may lose; no write is acknowledged past it. 100ms to 1d, or none.
    #[arg(
        long,
        default_value_t = Interval(defaults::STALENESS),
        value_parser = staleness,
        value_name = "TIME"
    )]
    staleness: Interval,

    /// What happens to a write at the dirty or journal limit: throttle (more and more, from three quarters of the dirty limit
    /// on), block, write-through or fail.
    #[arg(long, default_value = at_limit_name(defaults::AT_LIMIT), value_parser = parse_at_limit, value_name = "CHOICE")]
    at_limit: AtLimit,

    /// What becomes of an acknowledged write that the origin rejects: it is kept there and the others go on (park), or its ordering
    /// domain halts at it until 'destage resume' (stop). A [[domain]] may choose otherwise.
    #[arg(long, default_value = "park", value_parser = parse_on_reject, value_name = "CHOICE")]
    on_reject: OnReject,

    /// How many writes of one ordering domain may be parked within a minute before it halts until 'destage resume'. 1 to 1000000,
    /// or none.
    #[arg(long, default_value = "1000", value_parser = parse_parked_per_minute, value_name = "COUNT")]
    parked_per_minute: u32,

    /// Most bytes of parked writes that are read from the origin, as they stand in 'destage_parked'; with more, a start is refused
    /// and lists are not shown. 1M to 1T.
    #[arg(long, default_value = "256M", value_parser = |s: &str| bytes(s, "1M", "1T"), value_name = "SIZE")]
    parked_limit: Bytes,

    /// Memory of the buffered writes. 64K to 1T, or a share of the memory that this process may use, such as 10%.
    #[arg(long, default_value = "1G", value_parser = |s: &str| size(s, "64K", "1T"), value_name = "SIZE")]
    dirty_limit: Size,

    /// Journal space of the undecided writes. 1M to 16T.
    #[arg(long, default_value_t = Bytes(defaults::rows::JOURNAL_BYTES), value_parser = |s: &str| bytes(s, "1M", "16T"), value_name = "SIZE")]
    journal_size: Bytes,

    /// Memory of the cached rows that may be dropped. 0 to 16T, or a share of the memory that this process may use, such as 50%.
    #[arg(long, default_value = "1G", value_parser = |s: &str| size(s, "0", "16T"), value_name = "SIZE")]
    cache_size: Size,

    /// Most write groups that are destaged at once: one transaction at the origin, on PostgreSQL and MariaDB one for each
    /// 1,000 groups, two of which may be under way on PostgreSQL. 1 to 65536.
    #[arg(
        long,
        default_value_t = defaults::rows::BATCH_GROUPS,
        value_parser = clap::value_parser!(u32).range(1..=65_536),
        value_name = "COUNT"
    )]
    batch: u32,

    /// How long a lone write waits for company before it is destaged. 0 to 1s.
    #[arg(long, default_value_t = Interval(defaults::rows::LINGER), value_parser = |s: &str| interval(s, "0", "1s"), value_name = "TIME")]
    linger: Interval,

    #[command(flatten)]
    auto: AutoArgs,

    /// The values of --batch that --auto may try, MIN..MAX. A quarter of --batch to four times that unless told.
    #[arg(long, value_parser = batch_range, value_name = "RANGE")]
    auto_batch: Option<BatchRange>,

    /// Servers that hold the buffered writes: Valkey or Redis 6.2 or later as redis://:PASSWORD@HOST:PORT or rediss://, separated by
    /// commas. The writes then survive this host and its disk. Prefer the environment or the settings file for passwords.
    #[arg(long, env = "DESTAGE_REPLICAS", hide_env_values = true, value_name = "URLS")]
    replicas: Option<String>,

    /// So many of the --replicas hold a write before it is acknowledged. 1 to their number.
    #[arg(long, default_value_t = COPIES, value_parser = clap::value_parser!(u8).range(1..=64), value_name = "COUNT")]
    copies: u8,

    /// What holds the buffered writes: the disk of this host (local), the --replicas (replicas), or each of the two (both). By default
    /// replicas where there are some, else local.
    #[arg(long, value_enum, value_name = "KIND")]
    journal: Option<JournalWord>,

    /// Go on with the journal of --journal both on this disk, without the --replicas: what it acknowledges then is lost with the disk,
    /// up to D. It is lost, too, if a standby takes the log over. The folder does not go back to the servers.
    #[arg(long)]
    journal_alone: bool,

    /// Names the log on the --replicas, so that several logs share them. The same on all hosts that share a log.
    #[arg(long, default_value = REPLICA_LOG, value_name = "NAME")]
    replica_log: String,

    /// How long the owner of the log must not have shown itself before another server takes it over. It answers nothing for the last
    /// two fifths of that time. 300ms to 1m.
    #[arg(long, default_value = FAILOVER, value_parser = |s: &str| interval(s, "300ms", "1m"), value_name = "TIME")]
    failover: Interval,

    /// Follow the log of the server that owns it, and take it over when that one is gone.
    #[arg(long)]
    standby: bool,

    /// Where clients reach this server, for others to tell them: HOST:PORT. By default what --listen says.
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,

    /// Durable writes of the journal that may be under way at once, past the page cache. auto measures the disk at the start. 0:
    /// buffered writes, and one sync after another. 0 to 32.
    #[arg(long, default_value = "auto", value_name = "COUNT|auto")]
    journal_depth: JournalDepth,

    /// How long destaged writes are kept in the journal on this host's disk, so that they can be replayed onto an origin that went
    /// back. With --journal replicas none are kept. 0 to 7d.
    #[arg(long, default_value = RETAIN, value_parser = |s: &str| interval(s, "0", "7d"), value_name = "TIME")]
    retain: Interval,

    /// How long a shutdown may destage what is dirty before it leaves the rest to the next start; none for no limit.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    drain_timeout: Interval,

    /// What clients must send by AUTH, and the admin port's commands as bearer token. Printable ASCII. Prefer the environment:
    /// flags are seen by other users of the machine.
    #[arg(long, env = "DESTAGE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,

    /// Users beside --password, by a file with a line for each: user NAME on|off read|write|admin ~PATTERN... $HASH, with the hash
    /// that 'destage users hash' prints. Read again at SIGHUP. Without --password the user default is one of them, or nobody.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,

    /// Serve without a password or client certificates: on addresses other than loopback, and origins other than the example shop.
    #[arg(long)]
    no_auth: bool,

    #[command(flatten)]
    tls: TlsArgs,

    /// Most connections of clients. 1 to 1000000.
    #[arg(
        long,
        default_value = "10000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        value_name = "COUNT"
    )]
    max_clients: u32,

    /// How long a client may take from connecting to sending the password and to agreeing on TLS, where there are such; then it is
    /// disconnected. 100ms to 1h.
    #[arg(long, default_value = "30s", value_parser = |s: &str| interval(s, "100ms", "1h"), value_name = "TIME")]
    handshake_timeout: Interval,

    /// Most bytes of one command. 16K to 512M.
    #[arg(long, default_value = "64M", value_parser = |s: &str| bytes(s, "16K", "512M"), value_name = "SIZE")]
    max_request: Bytes,

    /// Most commands of one connection that are read ahead of their replies. 1 to 1000000.
    #[arg(
        long,
        default_value = "10000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
        value_name = "COUNT"
    )]
    max_pipeline: u32,

    /// Most bytes of replies that a client may leave unread before it is disconnected. 1M to 16G.
    #[arg(long, default_value = "256M", value_parser = |s: &str| bytes(s, "1M", "16G"), value_name = "SIZE")]
    output_limit: Bytes,

    /// Most bytes of replies that all clients together may leave unread; beyond it those are disconnected that leave most. The
    /// reply under way may go beyond it. 1M to 1T.
    #[arg(long, default_value = "1G", value_parser = |s: &str| bytes(s, "1M", "1T"), value_name = "SIZE")]
    output_limit_total: Bytes,

    /// Longest wait of a client for an answer, whatever it waits for: D that is exceeded, the origin, a full disk, a lock. Then it
    /// is told that nothing was done, or that its write is in the journal and not to be repeated. Keep it below the time-outs of
    /// the clients (often 5 s, some 2 s or 3 s), which else send again what is still under way. Waits that name their own bound
    /// (WAITAOF, DESTAGE WAIT, FLUSH and DRAIN, a derived key's deadline) keep it. 100ms to 1h.
    #[arg(
        long,
        default_value = "4s",
        value_parser = |s: &str| interval(s, "100ms", "1h"),
        value_name = "TIME"
    )]
    client_wait: Interval,

    /// What becomes of a command that needs the origin while it is away, such as a read of a row that is not cached: it is refused
    /// at once (fail), or it waits for the origin to be back, for no longer than --client-wait (wait), which is then to be longer
    /// than the outages that clients shall not notice.
    #[arg(long, value_enum, default_value = "fail", value_name = "CHOICE")]
    on_away: AwayChoice,

    /// Most tokens of `DESTAGE ONCE` at once. Each is kept for an hour, or for as long as --retain says if that is longer;
    /// where there is no room, commands with further tokens are refused. 0 to 100000000.
    #[arg(
        long,
        default_value = "1000000",
        value_parser = clap::value_parser!(u32).range(0..=100_000_000),
        value_name = "COUNT"
    )]
    once_tokens: u32,

    /// Most memory of these tokens with what their commands were answered, and at most a quarter of --journal-size. 0 to 1T.
    #[arg(long, default_value = "256M", value_parser = |s: &str| bytes(s, "0", "1T"), value_name = "SIZE")]
    once_limit: Bytes,

    /// Most keys of which clients are told when they change (`CLIENT TRACKING`), counted once for each client that holds it. Of
    /// one beyond these a client is told at once, and no more. 1 to 100000000.
    #[arg(
        long,
        default_value = "1000000",
        value_parser = clap::value_parser!(u32).range(1..=100_000_000),
        value_name = "COUNT"
    )]
    tracking_table_max_keys: u32,

    /// Longest wait for one answer of the origin. 100ms to 5m.
    #[arg(
        long,
        default_value = "10s",
        value_parser = |s: &str| interval(s, "100ms", "5m"),
        value_name = "TIME"
    )]
    origin_timeout: Interval,

    /// Take the origin over from another server that still shows itself there. Writes in that one's journal are stranded.
    #[arg(long)]
    take_over: bool,

    /// Go on behind an origin that has seen more than this journal knows: the journal was lost or cut.
    #[arg(long)]
    adopt: bool,

    /// Send to another origin what the journal's own one has not taken: both, as the refusal of a start names them. What its own
    /// one has taken is not sent.
    #[arg(long, value_parser = both_origins, value_name = "FROM=TO")]
    change_origin: Option<String>,

    /// What becomes of keys that name no row, neither as table:primary-key nor by a mapping: they are refused (reject), or they are
    /// plain cache keys (cache), held in memory alone as in a Redis without persistence, and evicted within --cache-size. Patterns
    /// such as sess:*,lock:* make plain cache keys of those that begin so, and the others are refused.
    #[arg(long, default_value = "reject", value_delimiter = ',', value_parser = unmapped, value_name = "CHOICE")]
    unmapped: Vec<UnmappedWord>,

    /// Rows that do not exist: the origin is asked for each that is not cached (none), or the keys of all tables are read at the
    /// start, and the origin is not asked for a key that is certainly not among them (keys). For tables into which no other
    /// program puts rows; writers = "others" in a table's section says which are not.
    #[arg(long, value_enum, default_value = "none", value_name = "CHOICE")]
    absent_filter: AbsentFilter,

    /// Settings from a file: the flags' names without dashes in front as keys, [table.NAME] sections, [[string]], [[set]], [[zset]]
    /// and [[hash]] sections that map keys to tables, [[query]] sections, and [[domain]] sections. Flags and environment override it.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    record: RecordArgs,

    /// Start the server, run CMD in a shell with $DESTAGE_URL, $DESTAGE_HOST and $DESTAGE_PORT set, then drain and exit with
    /// its status.
    #[arg(long, value_name = "CMD")]
    run: Option<String>,

    /// For tests: the journal is not made durable.
    #[arg(long, hide = true)]
    unsafe_no_fsync: bool,

    /// For tests: batches are applied whatever the watermark says.
    #[arg(long, hide = true)]
    unsafe_no_watermark: bool,

    /// For tests: fetched rows show the origin's state without the buffered writes.
    #[arg(long, hide = true)]
    unsafe_no_overlay: bool,

    /// For tests: replies do not wait for the commit of what they show.
    #[arg(long, hide = true)]
    unsafe_no_read_gate: bool,

    /// For tests: each command between MULTI and EXEC is journaled and destaged apart.
    #[arg(long, hide = true)]
    unsafe_split_sessions: bool,

    /// For tests: neither leases nor watched keys stop anybody.
    #[arg(long, hide = true)]
    unsafe_no_leases: bool,

    /// For tests: a derived key's query runs before what it must show is destaged.
    #[arg(long, hide = true)]
    unsafe_no_query_destage: bool,

    /// For tests: writes leave the cached results of derived keys as they are.
    #[arg(long, hide = true)]
    unsafe_no_query_invalidation: bool,
    /// For tests: all ordering domains move one watermark.
    #[arg(long, hide = true)]
    unsafe_one_watermark: bool,

    /// For tests: the --replicas let go of what the origin has not decided.
    #[arg(long, hide = true)]
    unsafe_early_reclaim: bool,

    /// For tests: the owner of the log answers without being sure to own it.
    #[arg(long, hide = true)]
    unsafe_no_log_lease: bool,
}

// By hand: the origin's address and the password stay out of logs.
impl std::fmt::Debug for ServeArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServeArgs").field("listen", &self.listen).finish_non_exhaustive()
    }
}

/// What holds the buffered writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum JournalWord {
    /// The disk of this host.
    Local,
    /// The servers of --replicas.
    Replicas,
    /// Each of the two.
    Both,
}

impl ServeArgs {
    /// The settings, with the policy checked as a whole.
    pub(crate) fn into_settings(self) -> Result<Settings, CliError> {
        let policy = self.policy()?;
        let batch = self.auto_batch.map(|BatchRange(few, many)| (few, many));
        let auto = self.auto.options(batch, &self.record).map_err(CliError::usage)?;
        let replicas = self.replicas()?;
        let password = password(self.password)?;
        let users = self.users.filter(|path| !path.as_os_str().is_empty());
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        // An empty variable in the environment means that there is none.
        let origin = filled(self.origin);
        Ok(Settings {
            listen: self.listen,
            admin: self.admin.0,
            admin_hosts: self.admin_host,
            data: self.data.unwrap_or_else(|| default_data(origin.is_some())),
            origin,
            policy,
            auto,
            replicas,
            journal_alone: self.journal_alone,
            journal_depth: self.journal_depth.0,
            retain: self.retain.span(),
            drain_timeout: self.drain_timeout.span(),
            users: users.map(|path| UsersFile::new(path, password.is_some())),
            password,
            no_auth: self.no_auth,
            tls: self.tls.files(),
            clients_max: self.max_clients as usize,
            parked_bytes_max: self.parked_limit.get(),
            request_bytes_max: length(self.max_request),
            pipeline_max: self.max_pipeline as usize,
            output_bytes_max: length(self.output_limit),
            output_total_bytes_max: length(self.output_limit_total),
            client_wait: self.client_wait.span(),
            on_away: self.on_away.into(),
            handshake_timeout: self.handshake_timeout.span(),
            once_tokens_max: self.once_tokens as usize,
            once_bytes_max: self.once_limit.get(),
            tracking_keys_max: self.tracking_table_max_keys as usize,
            origin_timeout: self.origin_timeout.duration().expect("none is out of its range"),
            take_over: self.take_over,
            adopt: self.adopt,
            change_origin: filled(self.change_origin),
            tables: BTreeMap::new(),
            mappings: Vec::new(),
            queries: Vec::new(),
            unmapped: all_unmapped(self.unmapped)?,
            absent_filter: self.absent_filter == AbsentFilter::Keys,
            domains: Vec::new(),
            record: self.record.settings(),
            run: self.run,
            unsafe_flags: UnsafeFlags {
                no_fsync: self.unsafe_no_fsync,
                no_watermark: self.unsafe_no_watermark,
                no_overlay: self.unsafe_no_overlay,
                no_read_gate: self.unsafe_no_read_gate,
                split_sessions: self.unsafe_split_sessions,
                no_leases: self.unsafe_no_leases,
                no_query_destage: self.unsafe_no_query_destage,
                no_query_invalidation: self.unsafe_no_query_invalidation,
                one_watermark: self.unsafe_one_watermark,
                no_opaque_wait: false,
                no_builds_on: false,
                forgetful_filter: false,
                early_reclaim: self.unsafe_early_reclaim,
                no_log_lease: self.unsafe_no_log_lease,
            },
        })
    }

    fn policy(&self) -> Result<Policy, CliError> {
        let mut policy = Policy {
            acknowledge: self.policy,
            when: self.when,
            read_priority: self.read_priority,
            commit: self.commit.span(),
            staleness: self.staleness.span(),
            at_limit: self.at_limit,
            on_reject: self.on_reject,
            ..defaults::rows::policy()
        };
        set_dirty_limit(&mut policy, of_memory("--dirty-limit", self.dirty_limit)?);
        policy.limits.journal_bytes_max = self.journal_size.get();
        policy.limits.cache_bytes_max = of_memory("--cache-size", self.cache_size)?;
        policy.limits.batch_groups_max = self.batch;
        policy.limits.linger = self.linger.span();
        policy.limits.parked_per_minute_max = self.parked_per_minute;
        policy.validate().map_err(|e| {
            CliError::usage(format!(
                "the policy does not fit together: {e} (--commit, --staleness, --when)"
            ))
        })?;
        Ok(policy)
    }
}

#[derive(Clone, Copy)]
struct BatchRange(u32, u32);

fn batch_range(text: &str) -> Result<BatchRange, String> {
    let end = |end: &str| {
        let count = end.parse().ok().filter(|count| (1..=65_536).contains(count));
        count.ok_or_else(|| format!("'{end}' is not a number from 1 to 65536"))
    };
    range(text, "1000..16000", end).map(|(few, many)| BatchRange(few, many))
}

/// The example and an origin of the user's do not share a folder, so that neither finds the other's journal.
fn both_origins(text: &str) -> Result<String, String> {
    let is_both = text.split_once('=').is_some_and(|(from, to)| !from.is_empty() && !to.is_empty());
    // Empty is unset, as in the environment.
    if is_both || text.is_empty() {
        return Ok(text.to_owned());
    }
    Err("name both origins, FROM=TO, as the refusal of the start does".to_owned())
}

fn default_data(has_origin: bool) -> PathBuf {
    let data = PathBuf::from("./destage-data");
    // Earlier builds have made the example there.
    if has_origin || data.join(EXAMPLE_FILE).is_file() {
        return data;
    }
    "./destage-example".into()
}

/// Memory, of which shares are of what this process may use.
fn of_memory(flag: &str, size: Size) -> Result<u64, CliError> {
    let whole = match size {
        Size::Bytes(_) => Some(0),
        Size::Share(_) => memory::usable_bytes(),
    };
    whole.map(|whole| size.of(whole).get()).ok_or_else(|| {
        CliError::usage(format!(
            "{flag}: the system does not tell how much memory there is: give a size, such as 1G"
        ))
    })
}

fn length(bytes: Bytes) -> usize {
    usize::try_from(bytes.get()).unwrap_or(usize::MAX)
}
