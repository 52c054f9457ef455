//! What `destage block serve` is told, parsed and checked: flags and files are read elsewhere.

use crate::nbd::tls::{Identity, TlsError, client_config};
use crate::origin::NbdOptions;
use destage_core::{Policy, Span};
use destage_engine::{defaults, journal_limit, set_dirty_limit};
use destage_record::RecordSettings;
use destage_runtime::auto::AutoOptions;
use destage_runtime::sockets::Listen;
use destage_runtime::tls::ServerFiles;
use destage_runtime::units::Size;
use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

/// Everything that the block front end needs to start.
///
/// Not `Debug`: it holds a password.
#[derive(Clone)]
pub struct Settings {
    /// Where NBD clients connect.
    pub listen: Listen,
    /// A folder in which each volume appears as a file; `None` for none.
    pub fuse: Option<PathBuf>,
    /// The admin port; `None` for none.
    pub admin: Option<SocketAddr>,
    /// Names by which the admin port may be asked, besides addresses and `localhost`.
    pub admin_hosts: Vec<String>,
    /// What the admin port's commands need.
    pub password: Option<String>,
    /// Encryption of the clients' connections; `None` for none.
    pub tls: Option<TlsSettings>,
    /// Most connections at once.
    pub clients_max: usize,
    /// How long a client may take to open an export.
    pub handshake_timeout: Span,
    /// How long the server's thread stays awake for the next event where these come quickly.
    pub spin: Span,
    /// How long a shutdown may destage.
    pub drain_timeout: Span,
    /// A command to run with `$uri` set; the server ends with it.
    pub run: Option<String>,
    /// The volumes, each with another name.
    pub volumes: Vec<VolumeSettings>,
}

/// Encryption of the clients' connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// What encrypts them.
    pub files: ServerFiles,
    /// Whether clients may go on without encryption.
    pub optional: bool,
}

/// Encryption of the connections to an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginTls {
    /// PEM file of the authorities that vouch for the server.
    pub ca: PathBuf,
    /// Who one is for a server that asks.
    pub identity: Option<Identity>,
}

impl OriginTls {
    /// How to reach an origin, encrypted where its address says so.
    ///
    /// # Errors
    /// Files that cannot be read, are no PEM, or do not belong together.
    pub fn options(tls: Option<&Self>) -> Result<NbdOptions, TlsError> {
        let mut options = NbdOptions::default();
        if let Some(tls) = tls {
            options.client.tls = Some(client_config(&tls.ca, tls.identity.as_ref())?);
        }
        Ok(options)
    }
}

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumeSettings {
    /// Its export name; empty for the default one.
    pub name: String,
    /// The origin as the user names it.
    pub origin: String,
    /// Encryption of the connections to the origin and the redo store; `None` for none.
    pub origin_tls: Option<OriginTls>,
    /// The cache: a file or a block device.
    pub cache: PathBuf,
    /// Bytes of the cache, for one that is to be created; `None` for [`new_cache_bytes`].
    pub cache_bytes: Option<u64>,
    /// Bytes of the log in it; `None` for a quarter.
    pub log_bytes: Option<u64>,
    /// The policy. `commit` is what the engine commits by even if nobody asks.
    pub policy: Policy,
    /// Settings of the policy that are tried out while the server runs.
    pub auto: AutoOptions,
    /// The most dirty bytes, of which a share is one of the log; `None` for a quarter of it.
    pub dirty_limit: Option<Size>,
    /// Whether only FLUSH and FUA promise durability (`d = flush`).
    pub commit_on_flush: bool,
    /// Where atomic groups are kept at the origin; `None` beside it.
    pub redo: Option<String>,
    /// How a group becomes new at the origin as a whole.
    pub atomic: Atomic,
    /// The consistency group that it is in, if any.
    pub group: Option<GroupSettings>,
    /// Serve reads only.
    pub read_only: bool,
    /// Go on although the origin was changed by something else, or the cache belongs to another origin: the cached copies are
    /// dropped.
    pub adopt: bool,
    /// How long a read waits for an origin that is away before it fails.
    pub origin_timeout: Span,
    /// Where to record what the core is told; `None` for nowhere.
    pub record: Option<RecordSettings>,
    /// Negative controls of the tests.
    pub unsafe_flags: UnsafeFlags,
}

impl VolumeSettings {
    /// The policy with the limits that follow from the size of the log, which a cache that is there keeps whatever was asked for.
    pub fn policy_with_log(&self, log_bytes: u64) -> Policy {
        let mut policy = self.policy.clone();
        policy.limits.journal_bytes_max = journal_limit(log_bytes);
        let dirty = self.dirty_limit.map_or(log_bytes / 4, |size| size.of(log_bytes).get());
        set_dirty_limit(&mut policy, dirty);
        policy
    }
}

/// How the journaled policy makes a group new at the origin as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atomic {
    /// By a redo store beside the origin: after a crash the origin is whole once it is replayed.
    #[default]
    Redo,
    /// By replacing the origin's file: it is whole at any moment.
    Snapshot,
}

/// A volume's place in a consistency group: volumes whose origins are one state together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSettings {
    /// The group's name.
    pub name: String,
    /// Whether this volume's redo store keeps the commit records: exactly one volume of the group.
    pub is_coordinator: bool,
}

/// Each switches off what one promise rests on, so that tests can show that they would notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnsafeFlags {
    /// Claim durability of the log without asking the medium.
    pub no_fsync: bool,
    /// Reclaim the log past the index checkpoint.
    pub reclaim_past_checkpoint: bool,
    /// Change the file itself where a copy should take its place.
    pub in_place: bool,
}

impl UnsafeFlags {
    /// Whether any is set.
    pub fn any(self) -> bool {
        self != Self::default()
    }

    /// Those that have an effect: none in a build without negative controls.
    #[inline]
    pub(crate) fn in_force(self) -> Self {
        if destage_engine::CONTROLS { self } else { Self::default() }
    }
}

/// Why a volume does not try out settings.
pub const AUTO_IN_GROUP: &str =
    "--auto does not go with --group: the volumes of a consistency group are destaged together";

/// The size of a new cache there unless told, bytes: 4 GiB, or all of a smaller block device.
pub fn new_cache_bytes(cache: &Path) -> u64 {
    let device = std::fs::metadata(cache).ok().filter(|meta| meta.file_type().is_block_device());
    // A device that cannot be opened is named by the start, which opens it.
    let device =
        device.and_then(|_| File::open(cache).and_then(|mut it| it.seek(SeekFrom::End(0))).ok());
    device.map_or(defaults::volume::CACHE_BYTES, |bytes| bytes.min(defaults::volume::CACHE_BYTES))
}
