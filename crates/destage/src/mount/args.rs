//! The flags of `destage mount`.

use crate::error::CliError;
use crate::server::{RecordArgs, check_admin};
use crate::values::{Admin, admin, bytes, interval, password, size, staleness};
use clap::{Args, ValueEnum};
use destage_core::{Acknowledge, AtLimit, Policy, Span, When};
use destage_engine::{journal_limit, set_dirty_limit};
use destage_mount::settings::Settings;
use destage_mount::tokens::{CephCommand, EtcdAddress, FenceBy, TokenSettings};
use destage_runtime::policy::{parse_at_limit, parse_when};
use destage_runtime::units::{Bytes, Interval, Size};
use std::path::{Component, PathBuf};

/// Flags of `destage mount` itself.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// The folder that is cached: any directory of a mounted file system with file handles, such as CephFS, ext4, XFS
    /// or btrfs.
    #[arg(value_name = "ORIGIN", requires = "mountpoint")]
    origin: Option<PathBuf>,

    /// Where programs find it from now on: an empty folder; made if it is absent.
    #[arg(value_name = "MOUNTPOINT", requires = "journal")]
    mountpoint: Option<PathBuf>,

    /// The journal's folder, on a disk of this host; made if it is absent. One for each mount.
    #[arg(long, requires = "origin", value_name = "DIR")]
    journal: Option<PathBuf>,

    /// Bytes of the journal: what is written waits here for the origin. 64M to 1T.
    #[arg(long, default_value = "2G", value_parser = |s: &str| bytes(s, "64M", "1T"), value_name = "SIZE")]
    journal_size: Bytes,

    /// d: what a crash of this host may lose of what was not fsynced. 0: nothing that was answered; otherwise the
    /// most recent changes of that time, 1ms to 60s.
    #[arg(short = 'd', long, default_value = "1s", value_parser = |s: &str| interval(s, "0", "60s"), value_name = "TIME")]
    commit: Interval,

    /// The choices of a paper's system under one name, for --when, --fsync and --staleness where they are not given.
    #[arg(long, value_enum, default_value = "destage", value_name = "NAME")]
    preset: Preset,

    /// Whose word an fsync waits for; the journal's, unless the preset says otherwise.
    #[arg(long, value_enum, value_name = "WHO")]
    fsync: Option<FsyncWord>,

    /// Files in these folders of the mount, and below, have their fsync answered by the origin, whatever --fsync says: names from
    /// the mount's top on. Several are separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "FOLDER")]
    fsync_origin: Vec<PathBuf>,

    /// D: how old the origin may be if host and journal are lost. Writes stop before it is exceeded. 100ms to 1d, or
    /// none; 2m unless the preset says otherwise.
    #[arg(short = 'D', long, value_parser = staleness, value_name = "TIME")]
    staleness: Option<Interval>,

    /// When to destage: async, adaptive, periodic:10s, interval:30s,1s (age, check) or pressure; interval:60s,1s unless the
    /// preset says otherwise.
    #[arg(long, value_parser = parse_when, value_name = "WHEN")]
    when: Option<When>,

    /// What happens to writes at a limit: throttle, block, write-through or fail.
    #[arg(long, default_value = "throttle", value_parser = parse_at_limit, value_name = "CHOICE")]
    at_limit: AtLimit,

    /// Most bytes in memory that the origin does not have. 1M to 1T, or a share of the journal, such as 50%.
    #[arg(long, default_value = "25%", value_parser = |s: &str| size(s, "1M", "1T"), value_name = "SIZE")]
    dirty_limit: Size,

    /// How long the kernel may remember names and attributes: for so long changes that other programs make at the origin go
    /// unseen. 0 to 1h.
    #[arg(long, default_value = "3s", value_parser = |s: &str| interval(s, "0", "1h"), value_name = "TIME")]
    origin_check: Interval,

    /// Threads that take the kernel's requests, and ask the origin for what is not here. 1 to 16.
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u8).range(1..=16), value_name = "COUNT")]
    threads: u8,

    /// The admin port for status, metrics and commands; 'none' for none. Addresses other than loopback need --password or --no-auth.
    #[arg(long, default_value = super::ADMIN, value_parser = admin, value_name = "ADDR")]
    admin: Admin,

    /// A name by which the admin port may be asked, besides addresses and localhost. Several are separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    admin_host: Vec<String>,

    /// What the admin port's commands need as bearer token. Printable ASCII. Prefer the environment.
    #[arg(long, env = "DESTAGE_PASSWORD", hide_env_values = true, value_name = "PASSWORD")]
    password: Option<String>,

    /// Let other hosts command the mount by its admin port without a password.
    #[arg(long)]
    no_auth: bool,

    #[command(flatten)]
    record: RecordArgs,

    /// How long a shutdown may destage what is dirty before it leaves the rest to the next start; none for no limit.
    #[arg(long, default_value = "30s", value_name = "TIME")]
    drain_timeout: Interval,

    #[command(flatten)]
    tokens: TokenArgs,

    /// Run this command by the shell with $mountpoint set, and end with it.
    #[arg(long, value_name = "CMD")]
    run: Option<String>,
}

/// Flags of an origin that several hosts share.
#[derive(Clone, Args)]
pub(crate) struct TokenArgs {
    /// Experimental. The etcd by which several hosts share the origin, each with a mount of its own: what one has changed,
    /// the others see. etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...], or etcds:// for TLS, with
    /// ?sslrootcert=FILE&sslcert=FILE&sslkey=FILE as for origins. Prefer the environment for a password.
    #[arg(long, env = "DESTAGE_TOKENS", hide_env_values = true, value_name = "URL")]
    tokens: Option<String>,

    /// With --tokens: how long a host may be silent before others may shut it out. 3s to 10m.
    #[arg(long, default_value = "15s", value_parser = |s: &str| interval(s, "3s", "10m"), value_name = "TIME")]
    token_lease: Interval,

    /// With --tokens: what shuts a silent host out whose lock at the origin is still held, run by the shell: nothing of that host may
    /// reach the origin once it has succeeded. $DESTAGE_FENCE_HOST and $DESTAGE_FENCE_PROCESS say whom.
    #[arg(long, requires = "tokens", value_name = "CMD")]
    fence_command: Option<String>,

    /// With --tokens: the same, built in. A start tries out what it needs, and is refused where that does not work.
    #[arg(
        long,
        requires = "tokens",
        conflicts_with = "fence_command",
        value_enum,
        value_name = "HOW"
    )]
    fence: Option<FenceHow>,

    /// With --fence ceph: the ceph command's --conf.
    #[arg(long, requires = "fence", value_name = "FILE")]
    ceph_conf: Option<PathBuf>,

    /// With --fence ceph: the ceph command's --name, such as client.destage. It needs a keyring that lets it read the monitors and
    /// evict clients (mds 'allow *').
    #[arg(long, requires = "fence", value_name = "NAME")]
    ceph_name: Option<String>,

    /// For tests: tokens are given up with what changed under them left where it is.
    #[arg(long, hide = true)]
    unsafe_no_revocation: bool,
}

/// What shuts silent hosts out, built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FenceHow {
    /// Their clients of CephFS are evicted, by the ceph command of the package ceph-common.
    Ceph,
}

// By hand: the password stays out of logs.
impl std::fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenArgs").field("token_lease", &self.token_lease).finish_non_exhaustive()
    }
}

impl TokenArgs {
    /// The address is looked at here and not while flags are read, since what is wrong with a flag is told with its value.
    fn settings(self) -> Result<Option<TokenSettings>, CliError> {
        let lease = self.token_lease.span();
        let ceph =
            self.fence.map(|FenceHow::Ceph| CephCommand::new(self.ceph_conf, self.ceph_name));
        let fence = ceph.map(FenceBy::Ceph).or_else(|| self.fence_command.map(FenceBy::Command));
        let no_revocation = self.unsafe_no_revocation;
        let Some(url) = self.tokens.filter(|url| !url.is_empty()) else { return Ok(None) };
        let etcd = EtcdAddress::parse(&url)
            .map_err(|error| CliError::usage(format!("--tokens (or DESTAGE_TOKENS): {error}")))?;
        Ok(Some(TokenSettings { etcd, lease, fence, no_revocation }))
    }
}

/// Whose word an fsync waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FsyncWord {
    /// The journal's, on a disk of this host.
    Journal,
    /// The origin's, as without Destage.
    Origin,
}

/// The systems that "Host-side filesystem journaling for durable shared storage" compares, and this one's own choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preset {
    /// Destaged at an age of 60 s, looked at every second.
    Destage,
    /// Arion-60: destaged at an age of 60 s, looked at every 60 s.
    #[value(name = "arion-60")]
    Arion60,
    /// Arion-inf: destaged only when memory or the journal runs short.
    ArionInf,
    /// Ceph: destaged at an age of 30 s, looked at every 5 s; an fsync is the origin's.
    Ceph,
    /// Ceph-1: the same with 1 s for both.
    #[value(name = "ceph-1")]
    Ceph1,
    /// Ceph-sync: each change is answered once the origin has it.
    CephSync,
}

impl Preset {
    fn acknowledge(self) -> Acknowledge {
        if self == Self::CephSync { Acknowledge::Origin } else { Acknowledge::Journal }
    }

    fn when(self) -> When {
        let interval = |age, check| When::Interval {
            age: Span::from_secs(age),
            check: Span::from_secs(check),
        };
        match self {
            Self::Destage => interval(60, 1),
            Self::Arion60 => interval(60, 60),
            Self::ArionInf => When::OnPressure,
            Self::Ceph => interval(30, 5),
            Self::Ceph1 => interval(1, 1),
            Self::CephSync => When::Async,
        }
    }

    fn staleness(self) -> Span {
        if self == Self::Destage { Span::from_secs(120) } else { Span::MAX }
    }

    fn fsync(self) -> FsyncWord {
        match self {
            Self::Destage | Self::Arion60 | Self::ArionInf => FsyncWord::Journal,
            Self::Ceph | Self::Ceph1 | Self::CephSync => FsyncWord::Origin,
        }
    }
}

/// What is made where nothing is named.
const EXAMPLE: &str = "destage-mount-example";

impl ServeArgs {
    /// Checked settings; an example where no origin is named.
    pub(crate) fn into_settings(self) -> Result<Settings, CliError> {
        let policy = self.policy().map_err(CliError::usage)?;
        let password = password(self.password)?;
        check_admin(self.admin.0, password.as_deref(), self.no_auth)?;
        let is_example = self.origin.is_none();
        let (origin, mountpoint, journal) = match (self.origin, self.mountpoint, self.journal) {
            (Some(origin), Some(mountpoint), Some(journal)) => (origin, mountpoint, journal),
            _ => example()?,
        };
        Ok(Settings {
            origin,
            mountpoint,
            journal,
            journal_bytes: self.journal_size.get(),
            fsync_origin: self.fsync.unwrap_or_else(|| self.preset.fsync()) == FsyncWord::Origin,
            fsync_origin_below: self
                .fsync_origin
                .into_iter()
                .map(from_the_top)
                .collect::<Result<_, _>>()?,
            policy,
            origin_check: self.origin_check.span(),
            threads: self.threads.into(),
            admin: self.admin.0,
            admin_hosts: self.admin_host,
            password,
            record: self.record.settings(),
            drain_timeout: self.drain_timeout.span(),
            run: self.run,
            tokens: self.tokens.settings()?,
            is_example,
        })
    }

    /// For a journal that is brought to its origin and not mounted, within this time.
    pub(crate) fn to_replay(
        origin: PathBuf,
        journal: PathBuf,
        tokens: TokenArgs,
        limit: Interval,
    ) -> Result<Settings, CliError> {
        let mountpoint = journal.clone().into_os_string();
        let argv = [
            "mount".into(),
            origin.into_os_string(),
            mountpoint,
            "--journal".into(),
            journal.into_os_string(),
        ];
        let matches = crate::file::command::<Self>().try_get_matches_from(argv);
        let args =
            matches.and_then(|matches| <Self as clap::FromArgMatches>::from_arg_matches(&matches));
        Self { tokens, drain_timeout: limit, ..args.map_err(CliError::usage)? }.into_settings()
    }

    fn policy(&self) -> Result<Policy, String> {
        let mut policy = Policy {
            acknowledge: self.preset.acknowledge(),
            when: self.when.unwrap_or_else(|| self.preset.when()),
            commit: self.commit.span(),
            staleness: self.staleness.map_or_else(|| self.preset.staleness(), Interval::span),
            at_limit: self.at_limit,
            ..Policy::default()
        };
        let journal = self.journal_size.get();
        policy.limits.journal_bytes_max = journal_limit(journal);
        set_dirty_limit(&mut policy, self.dirty_limit.of(journal).get());
        // Where the journal runs full the oldest changes make room, and most files that these made are gone by then. A batch that
        // took all there is would bring the newest ones as well.
        policy.limits.batch_groups_max = 8_192;
        policy.limits.batch_bytes_max = 256 << 20;
        policy.validate().map_err(|error| {
            format!("the policy does not fit together: {error} (--commit, --staleness, --when)")
        })?;
        Ok(policy)
    }
}

/// A name from the mount's top on.
fn from_the_top(folder: PathBuf) -> Result<PathBuf, CliError> {
    let is_plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let is_named = folder.components().any(|part| matches!(part, Component::Normal(_)));
    if is_named && folder.components().all(is_plain) {
        return Ok(folder);
    }
    Err(CliError::usage(format!(
        "--fsync-origin {}: name a folder from the mount's top on, such as mail/new, without '..' and without '/' in front",
        folder.display()
    )))
}

/// A folder to try things in, where this is run.
fn example() -> Result<(PathBuf, PathBuf, PathBuf), CliError> {
    let place = std::path::Path::new(EXAMPLE);
    let origin = place.join("origin");
    let failed = |error: std::io::Error| {
        CliError::usage(format!(
            "cannot make the example folder {EXAMPLE} here: {error}; name folders: destage mount ORIGIN MOUNTPOINT --journal DIR"
        ))
    };
    let is_new = !origin.exists();
    std::fs::create_dir_all(&origin).map_err(failed)?;
    if is_new {
        let text =
            "What you change in 'mounted' is in the journal at once, and here a little later.\n";
        std::fs::write(origin.join("README"), text).map_err(failed)?;
    }
    Ok((origin, place.join("mounted"), place.join("journal")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn settings(flags: &[&str]) -> Result<Settings, String> {
        let argv = ["mount", "/o", "/m", "--journal", "/j"].iter().chain(flags);
        let matches = crate::file::command::<ServeArgs>().try_get_matches_from(argv).unwrap();
        let args = ServeArgs::from_arg_matches(&matches).unwrap();
        args.into_settings().map_err(|error| error.to_string())
    }

    #[test]
    fn the_admin_port_is_open_to_other_hosts_with_a_password_or_where_that_is_meant() {
        let other = ["--admin", "0.0.0.0:6383"];
        let error = settings(&other).err().expect("nothing keeps strangers out");
        assert!(error.contains("--admin 0.0.0.0:6383") && error.contains("--no-auth"), "{error}");
        for more in [&["--password", "secret"][..], &["--no-auth"]] {
            let settings = settings(&[&other, more].concat()).unwrap();
            assert!(settings.admin.is_some_and(|addr| !addr.ip().is_loopback()));
        }
        assert!(settings(&["--admin", "[::1]:6383"]).is_ok());
        assert!(settings(&["--admin", "none"]).is_ok());
    }
}
