//! The flags of `destage block serve`.

use crate::error::CliError;
use crate::server::{AutoArgs, RecordArgs, check_admin};
use crate::tls::TlsArgs;
use crate::values::{Admin, admin, bytes, interval, listen, password, size, staleness};
use clap::{Args, ValueEnum};
use destage_block::nbd::tls::Identity;
use destage_block::origin::NbdOptions;
use destage_block::settings::{
    AUTO_IN_GROUP, Atomic, GroupSettings, OriginTls, Settings, TlsSettings, UnsafeFlags,
    VolumeSettings, new_cache_bytes,
};
use destage_core::{AtLimit, Policy, Span, When};
use destage_engine::{WritePolicy, commit_on_flush, defaults, set_dirty_limit};
use destage_runtime::policy::{at_limit_name, parse_at_limit, parse_when};
use destage_runtime::sockets::Listen;
use destage_runtime::units::{Bytes, Interval, Size};
use std::path::PathBuf;

/// Flags of `destage block serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct BlockServeArgs {
    /// A settings file (destage.toml): the same names as the flags, and one section [volume.NAME] for each volume.
    #[arg(long, env = "DESTAGE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Where NBD clients connect: an address with a port, or unix:/path.
    #[arg(long, default_value = "127.0.0.1:10809", value_parser = listen, value_name = "ADDR")]
    listen: Listen,

    /// Mount a folder here in which each volume is a file as well, called as the volume is or 'disk': for loop devices, and so
    /// for file systems. An empty folder; made if it is absent.
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,

    /// The admin port for status, metrics and commands; 'none' for none. Addresses other than loopback need --password or --no-auth.
    #[arg(long, default_value = super::ADMIN, value_parser = admin, value_name = "ADDR")]
    admin: Admin,

    /// A name by which the admin port may be asked, besides addresses and localhost: requests that name the host otherwise get 421,
    /// since a web page can lead a browser here under a name of its own. Several are separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    admin_host: Vec<String>,

    /// What the admin port's commands need as bearer token. Printable ASCII. Prefer the environment.
    #[arg(long, env = "DESTAGE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,

    /// Serve other hosts although no client certificates (--listen) or no password (--admin) keep strangers out.
    #[arg(long)]
    no_auth: bool,

    #[command(flatten)]
    tls: TlsArgs,

    /// Let clients go on without encryption.
    #[arg(long, requires = "tls_certificate")]
    tls_optional: bool,

    /// Most connections at once. 1 to 10000.
    #[arg(long, default_value = "256", value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "COUNT")]
    max_clients: u32,

    /// How long a client may take from connecting to opening an export; then it is disconnected. 100ms to 1h.
    #[arg(long, default_value = "30s", value_parser = |s: &str| interval(s, "100ms", "1h"), value_name = "TIME")]
    handshake_timeout: Interval,

    /// How long the server looks for the next request before it sleeps, if requests have been coming that quickly: takes
    /// processor time, and spares clients with few requests at a time the wake-up. 0 to 1ms; 0 for never.
    #[arg(long, default_value = "50us", value_parser = |s: &str| interval(s, "0", "1ms"), value_name = "TIME")]
    spin: Interval,

    /// How long a shutdown may destage what is dirty before it leaves the rest to the next start; none for no limit.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    drain_timeout: Interval,

    /// Run this command by the shell with $uri (and $nbd_uri; with --fuse also $file) set, and end with it.
    #[arg(long, value_name = "CMD")]
    run: Option<String>,

    #[command(flatten)]
    volume: VolumeArgs,
}

/// Flags of one volume; also the keys of a section [volume.NAME].
#[derive(Clone, Debug, Args)]
pub(crate) struct VolumeArgs {
    /// The store behind: file:/path, /dev/..., nbd://host:port/export or nbd+unix:///export?socket=/path.
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<String>,

    #[command(flatten)]
    origin_tls: OriginTlsArgs,

    /// The cache: a file on a fast disk, created if it is absent, or a block device of its own.
    #[arg(long, value_name = "PATH")]
    cache: Option<PathBuf>,

    /// Bytes of the cache when it is created; unless told 4G, or all of a smaller device. 64M to 16T.
    #[arg(long, value_parser = |s: &str| bytes(s, "64M", "16T"), value_name = "SIZE")]
    cache_size: Option<Bytes>,

    /// Bytes of the log inside the cache when it is created; unless told a quarter of the cache, but 64M to 32G, and at most
    /// half. 32M to 1T, or a share of the cache, such as 50%.
    #[arg(long, value_parser = |s: &str| size(s, "32M", "1T"), value_name = "SIZE")]
    log_size: Option<Size>,

    /// What an acknowledged write means, and what the origin holds if host and cache are lost.
    #[arg(long, value_enum, default_value = defaults::volume::POLICY.name(), value_name = "POLICY")]
    policy: PolicyWord,

    /// What the ordered policy keeps in order: writes before a flush and after it, or every write after those that completed
    /// before it was issued.
    #[arg(long, value_enum, default_value = "epoch", value_name = "ORDER")]
    order: OrderWord,

    /// d: what a crash of this host may lose while the cache survives. flush: what was not flushed, as with any disk; 0: nothing
    /// acknowledged; otherwise the most recent writes of that time, 1ms to 60s.
    #[arg(short = 'd', long = "commit", default_value = "flush", value_parser = commit, value_name = "TIME")]
    commit: Commit,

    /// D: how old the origin may be if host and cache are lost. Writes stop before it is exceeded. 100ms to 1d, or none.
    #[arg(short = 'D', long, default_value_t = Interval(defaults::STALENESS), value_parser = staleness, value_name = "TIME")]
    staleness: Interval,

    /// When to destage: async, adaptive, periodic:10s, interval:30s,1s (age, check) or pressure.
    #[arg(long, default_value = "async", value_parser = parse_when, value_name = "WHEN")]
    when: When,

    /// Destage while nobody reads at the origin, as far as D and the limits allow.
    #[arg(long)]
    read_priority: bool,

    /// Sequential reads and writes of more than this many bytes are not kept in the cache: reads as far as it holds nothing of
    /// what they read, writes once the origin has them. A size from 64K, or none.
    #[arg(long, default_value = "none", value_parser = bypass, value_name = "SIZE")]
    bypass_sequential: Bypass,

    /// What happens to writes at a limit: throttle, block, write-through or fail.
    #[arg(long, default_value = at_limit_name(defaults::AT_LIMIT), value_parser = parse_at_limit, value_name = "CHOICE")]
    at_limit: AtLimit,

    /// Most bytes of writes that the origin does not have; a quarter of the log unless told. 64K to 1T, or a share of the log,
    /// such as 50%.
    #[arg(long, value_parser = |s: &str| size(s, "64K", "1T"), value_name = "SIZE")]
    dirty_limit: Option<Size>,

    /// Most bytes in one batch at the origin, and in one atomic group. 64K to 1G.
    #[arg(long, default_value_t = Bytes(defaults::volume::BATCH_BYTES), value_parser = |s: &str| bytes(s, "64K", "1G"), value_name = "SIZE")]
    batch_size: Bytes,

    /// How long a lone write waits for company before it is destaged. 0 to 1s.
    #[arg(long, default_value_t = Interval(defaults::volume::LINGER), value_parser = |s: &str| interval(s, "0", "1s"), value_name = "TIME")]
    linger: Interval,

    #[command(flatten)]
    auto: AutoArgs,

    /// Where the journaled policy keeps atomic groups, in the origin's own failure domain: a file or an NBD export. Beside a
    /// file origin (NAME.destage) unless told.
    #[arg(long, value_name = "PLACE")]
    redo: Option<String>,

    /// How the journaled policy makes a group of writes new at the origin as a whole.
    #[arg(long, value_enum, default_value = "redo", value_name = "HOW")]
    atomic: AtomicWord,

    /// The consistency group of the volume: volumes with the same name here, such as a database and its log, are destaged
    /// together, so that their origins are one state across volumes. Journaled policy only.
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Keep the commit records of the consistency group in this volume's redo store; exactly one volume of the group does.
    #[arg(long, requires = "group")]
    coordinator: bool,

    /// How long a read of what is not cached waits for an origin that is away before it fails. 1s to 1d.
    #[arg(long, default_value = "30s", value_parser = |s: &str| interval(s, "1s", "1d"), value_name = "TIME")]
    origin_timeout: Interval,

    /// Serve reads only.
    #[arg(long)]
    read_only: bool,

    /// Go on although something else changed the origin, or the cache belonged to another one: cached copies are dropped.
    #[arg(long)]
    adopt: bool,

    #[command(flatten)]
    record: RecordArgs,

    #[arg(long, hide = true)]
    unsafe_no_fsync: bool,

    #[arg(long, hide = true)]
    unsafe_reclaim_past_checkpoint: bool,

    #[arg(long, hide = true)]
    unsafe_in_place: bool,
}

/// How origins behind `nbds://` are reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct OriginTlsArgs {
    /// PEM file of the authorities that vouch for the servers of the origin and the redo store, for nbds:// addresses.
    #[arg(long, value_name = "FILE")]
    origin_tls_ca: Option<PathBuf>,

    /// PEM file of the certificate chain by which those servers know this client.
    #[arg(long, requires = "origin_tls_ca", requires = "origin_tls_key", value_name = "FILE")]
    origin_tls_certificate: Option<PathBuf>,

    /// PEM file of that certificate's private key.
    #[arg(long, requires = "origin_tls_certificate", value_name = "FILE")]
    origin_tls_key: Option<PathBuf>,
}

impl OriginTlsArgs {
    fn settings(&self) -> Option<OriginTls> {
        let key = self.origin_tls_certificate.clone().zip(self.origin_tls_key.clone());
        let identity = key.map(|(certificate, key)| Identity { certificate, key });
        self.origin_tls_ca.clone().map(|ca| OriginTls { ca, identity })
    }

    /// For the commands that open an origin themselves.
    pub(crate) fn options(&self) -> Result<NbdOptions, CliError> {
        OriginTls::options(self.settings().as_ref()).map_err(CliError::usage)
    }
}

/// The four policies of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PolicyWord {
    /// Acknowledged after the origin: nothing is ever lost.
    WriteThrough,
    /// Acknowledged from the cache, destaged in any order: if the cache is lost, the origin may be garbage.
    WriteBack,
    /// Acknowledged from the cache, destaged in order: if the cache is lost, the origin is a state that a crash could have left.
    Ordered,
    /// Acknowledged from the cache, destaged in atomic groups: if the cache is lost, the origin is a state that really existed.
    Journaled,
}

/// How a group becomes new as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AtomicWord {
    /// By the redo store: if the host is lost, the origin is whole after `destage block replay`.
    Redo,
    /// By a copy that shares the image's blocks and takes its name: the image is whole at any moment. For files on XFS or btrfs.
    Snapshot,
}

impl From<AtomicWord> for Atomic {
    fn from(word: AtomicWord) -> Self {
        match word {
            AtomicWord::Redo => Self::Redo,
            AtomicWord::Snapshot => Self::Snapshot,
        }
    }
}

/// What the ordered policy keeps in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OrderWord {
    /// Flush to flush.
    Epoch,
    /// Completion to issue.
    Strict,
}

/// `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Commit {
    Flush,
    Every(Span),
}

fn commit(text: &str) -> Result<Commit, String> {
    match text {
        "flush" => Ok(Commit::Flush),
        _ => interval(text, "0", "60s")
            .map(|interval| Commit::Every(interval.span()))
            .map_err(|error| format!("{error}; or 'flush'")),
    }
}

/// Bytes that a sequential read or write may have before it passes the cache by.
#[derive(Clone, Copy, Debug)]
struct Bypass(u64);

fn bypass(text: &str) -> Result<Bypass, String> {
    match text {
        "none" => Ok(Bypass(u64::MAX)),
        _ => bytes(text, "64K", "1T")
            .map(|bytes| Bypass(bytes.get()))
            .map_err(|error| format!("{error}; or 'none'")),
    }
}

impl BlockServeArgs {
    /// Checked settings; `more` are the volumes of the settings file, each with its name.
    pub(crate) fn into_settings(
        self,
        more: Vec<(String, VolumeArgs)>,
    ) -> Result<Settings, CliError> {
        let own = (self.volume.origin.is_some() || self.volume.cache.is_some() || more.is_empty())
            .then(|| (String::new(), self.volume.clone()));
        let volumes: Vec<VolumeSettings> = own
            .into_iter()
            .chain(more)
            .map(|(name, volume)| volume.into_settings(name))
            .collect::<Result<_, _>>()?;
        check_recordings(&volumes)?;
        let files = self.tls.files();
        let knows_clients = files.as_ref().is_some_and(|files| files.client_ca.is_some());
        let tls = files.map(|files| TlsSettings { files, optional: self.tls_optional });
        if let Listen::Tcp(address) = self.listen
            && !address.ip().is_loopback()
            && !self.no_auth
            && !knows_clients
        {
            return Err(CliError::usage(format!(
                "--listen {address} lets other hosts in, and NBD itself knows no password: ask for client certificates \
                 (--tls-certificate, --tls-key, --tls-client-ca), listen on 127.0.0.1 or unix:/path, or say --no-auth"
            )));
        }
        let password = password(self.password)?;
        check_admin(self.admin.0, password.as_deref(), self.no_auth)?;
        Ok(Settings {
            listen: self.listen,
            fuse: self.fuse,
            admin: self.admin.0,
            admin_hosts: self.admin_host,
            password,
            tls,
            clients_max: self.max_clients as usize,
            handshake_timeout: self.handshake_timeout.span(),
            spin: self.spin.span(),
            drain_timeout: self.drain_timeout.span(),
            run: self.run,
            volumes,
        })
    }
}

/// Two volumes in one recording could not be told apart.
fn check_recordings(volumes: &[VolumeSettings]) -> Result<(), CliError> {
    let mut paths: Vec<_> = volumes
        .iter()
        .filter_map(|volume| volume.record.as_ref())
        .map(|record| &record.path)
        .collect();
    paths.sort_unstable();
    match paths.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => Err(CliError::usage(format!(
            "two volumes record to {}: give each a --record of its own",
            pair[0].display()
        ))),
    }
}

impl VolumeArgs {
    fn into_settings(self, name: String) -> Result<VolumeSettings, CliError> {
        let place = if name.is_empty() { String::new() } else { format!("[volume.{name}]: ") };
        let usage = |message: String| CliError::usage(format!("{place}{message}"));
        // First, since it is wrong whatever a command line adds to a settings file.
        let policy = self.policy().map_err(usage)?;
        let Some(origin) = self.origin.clone() else {
            return Err(usage(
                "--origin is missing: file:/path, /dev/... or nbd://host/export".into(),
            ));
        };
        let Some(cache) = self.cache.clone() else {
            return Err(usage(
                "--cache is missing: a file on a fast disk, such as /ssd/cache.img".into(),
            ));
        };
        let auto = self.auto.options(None, &self.record).map_err(usage)?;
        if auto.goal.is_some() && self.group.is_some() {
            return Err(usage(AUTO_IN_GROUP.into()));
        }
        Ok(VolumeSettings {
            name,
            origin,
            origin_tls: self.origin_tls.settings(),
            cache,
            cache_bytes: self.cache_size.map(Bytes::get),
            log_bytes: self.log_bytes(),
            policy,
            auto,
            dirty_limit: self.dirty_limit,
            commit_on_flush: self.commit == Commit::Flush,
            redo: self.redo,
            atomic: self.atomic.into(),
            group: self.group.map(|name| GroupSettings { name, is_coordinator: self.coordinator }),
            read_only: self.read_only,
            adopt: self.adopt,
            origin_timeout: self.origin_timeout.span(),
            record: self.record.settings(),
            unsafe_flags: UnsafeFlags {
                no_fsync: self.unsafe_no_fsync,
                reclaim_past_checkpoint: self.unsafe_reclaim_past_checkpoint,
                in_place: self.unsafe_in_place,
            },
        })
    }

    fn log_bytes(&self) -> Option<u64> {
        self.log_size.map(|size| size.of(self.cache_bytes()).get())
    }

    fn cache_bytes(&self) -> u64 {
        let told = self.cache_size.map(Bytes::get);
        let unless_told = || self.cache.as_deref().map(new_cache_bytes);
        told.or_else(unless_told).unwrap_or(defaults::volume::CACHE_BYTES)
    }

    fn policy(&self) -> Result<Policy, String> {
        let named = match (self.policy, self.order) {
            (PolicyWord::WriteThrough, _) => WritePolicy::WriteThrough,
            (PolicyWord::WriteBack, _) => WritePolicy::WriteBack,
            (PolicyWord::Ordered, OrderWord::Epoch) => WritePolicy::Ordered,
            (PolicyWord::Ordered, OrderWord::Strict) => WritePolicy::Strict,
            (PolicyWord::Journaled, _) => WritePolicy::Journaled,
        };
        let commit = match self.commit {
            Commit::Every(span) => span,
            Commit::Flush => commit_on_flush(self.staleness.span()),
        };
        let log =
            self.log_bytes().unwrap_or_else(|| defaults::volume::log_bytes(self.cache_bytes()));
        let mut policy = Policy {
            when: self.when,
            read_priority: self.read_priority,
            commit,
            staleness: self.staleness.span(),
            at_limit: self.at_limit,
            ..defaults::volume::policy(log)
        };
        named.apply(&mut policy);
        if let Some(limit) = self.dirty_limit {
            set_dirty_limit(&mut policy, limit.of(log).get());
        }
        policy.limits.batch_bytes_max = self.batch_size.get();
        policy.limits.linger = self.linger.span();
        policy.limits.sequential_bytes_max = self.bypass_sequential.0;
        policy.validate().map_err(|error| {
            format!("the policy does not fit together: {error} (--commit, --staleness, --when)")
        })?;
        Ok(policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_log_follows_the_log() {
        for (flags, log, dirty) in [
            (&["--cache-size", "1GB"][..], None, 64 << 20),
            (&["--cache-size", "1GB", "--dirty-limit", "50%"], None, 128 << 20),
            (&["--cache-size", "1GB", "--log-size", "50%"], Some(512 << 20), 128 << 20),
            (
                &["--cache-size", "1GB", "--log-size", "50%", "--dirty-limit", "100%"],
                Some(512 << 20),
                512 << 20,
            ),
            (&["--dirty-limit", "64MB"], None, 64 << 20),
        ] {
            let argv = ["destage", "--origin", "file:/a", "--cache", "/b"].iter().chain(flags);
            let matches = crate::file::command::<VolumeArgs>().try_get_matches_from(argv).unwrap();
            let args = <VolumeArgs as clap::FromArgMatches>::from_arg_matches(&matches).unwrap();
            let settings = args.into_settings("v".into()).map_err(|e| e.to_string()).unwrap();
            assert_eq!(settings.log_bytes, log, "{flags:?}");
            assert_eq!(settings.policy.limits.dirty_bytes_max, dirty, "{flags:?}");
        }
    }
}
