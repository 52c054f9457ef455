//! What is simulated: every parameter of a run, as files and reports have them.

use super::words;
use crate::disk::{Model, Profile};
use crate::hits::Replacements;
use destage_core::{AtLimit, Limits, OnReject, Order, Policy, Span, When};
use destage_engine::WritePolicy;
use destage_runtime::units::{Bytes, Interval};
use serde::{Deserialize, Serialize};

/// Everything that decides a run besides its requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Settings {
    /// The size of a block, a power of two from 512 bytes to 1 MiB; default 4K.
    pub block: Bytes,
    /// Hosts, each with its own caches before the same filer; requests of host `n` run on host `n` modulo this. Default 1.
    pub hosts: u16,
    /// How RAM and flash work together.
    pub architecture: Architecture,
    /// The RAM tier of each host.
    pub ram: Tier,
    /// The flash tier of each host.
    pub flash: Tier,
    /// When requests arrive.
    pub arrivals: Arrivals,
    /// So many requests come first and are not measured; default 0.
    pub warmup_requests: u64,
    /// What those requests leave behind.
    pub start: Start,
    /// A flush follows every so many writes of a host, for traces without flushes; 0, the default, for none.
    pub flush_every: u32,
    /// After every so many writes of a host everything dirty begins to leave, as `destage block drain` asks for; 0, the default,
    /// for never.
    pub drain_every: u32,
    /// The devices.
    pub devices: Devices,
    /// What happens to devices.
    pub faults: Vec<InjectedFault>,
    /// When to look what a crash would lose, from the start of the run; see [`super::Crash`].
    pub crashes: Vec<Interval>,
    /// Of all random streams; default 1.
    pub seed: u64,
}

/// How RAM and flash work together: the two designs of Holland and others, "Flash caching on the storage client", 2013.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// Flash is a layer of its own below the RAM, whose blocks it holds as well.
    #[default]
    Naive,
    /// One cache whose places lie in RAM or in flash; a block takes the place that is free next, and stays there.
    Unified,
}

/// One tier of a host's cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Tier {
    /// Its size; 0, the default, for none.
    pub size: Bytes,
    /// Which blocks leave it: lru (default) or another one, not belady.
    pub replacement: Replacements,
    /// What an acknowledged write means, and the order of destaging.
    pub policy: WritePolicy,
    /// When to destage.
    #[serde(with = "words::when")]
    pub when: When,
    /// Destaging waits while blocks are read from below.
    pub read_priority: bool,
    /// `d`: 0 acknowledges a write once the tier's medium holds it.
    pub commit: Interval,
    /// `D`, or none.
    pub staleness: Interval,
    /// What happens to writes at a limit.
    #[serde(with = "words::at_limit")]
    pub at_limit: AtLimit,
    /// Most bytes of writes that the level below does not have; 0, the default, for `dirty-percent` of the tier.
    pub dirty: Bytes,
    /// Most of the tier that may be dirty, in percent; 1 to 100, default 50.
    pub dirty_percent: u8,
    /// Whether dirty blocks have room of their own beside `size`, as in `destage block`; default false.
    pub dirty_apart: bool,
    /// Bytes of the whole cache of a volume, of which `size` is for blocks and the rest for its log. Limits are then lowered to
    /// what its slots can keep, as `destage block serve` lowers them. 0, the default, for a cache that is none of its.
    pub volume_cache: Bytes,
    /// Whether the bytes of writes alone count as dirty, as in `destage block`. If not, the default, a dirty block counts as
    /// well, against twice as much, so that writes to one block leave each other more room than writes to many.
    pub counts_writes: bool,
    /// The low mark, in percent of that; 0 to 99, default 75.
    pub low_percent: u8,
    /// Most bytes of undecided writes that its log holds; 0, the default, for no limit but that of the dirty blocks.
    pub log: Bytes,
    /// Most write groups of a batch; 1 to 65,536, which is the default.
    pub batch_groups: u32,
    /// Batches of a RAM tier that is not ordered under way at once; 1 to 64, which is the default. Flash has one.
    pub batches: u32,
    /// Most bytes of a batch; default 16M.
    pub batch: Bytes,
    /// How long a lone write waits for company. Default 0.
    pub linger: Interval,
    /// Whether the groups of a journaled tier go to a redo store before they are written in place, as Destage has it; if
    /// not, the storage itself takes each as a whole, and what a crash leaves there is not looked at. Default true.
    pub redo: bool,
    /// Whether it survives a crash of its host.
    pub persistent: bool,
    /// As the data front end has it: copies are in memory and only its log is on the device, and a batch reaches the origin in
    /// one transaction, which takes a write and `next` for each further row. Of the flash only.
    pub rows: bool,
}

/// When requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "loop")]
pub enum Arrivals {
    /// Open loop: at the times of the trace.
    Open {
        /// Faster or slower than the trace, in percent of its speed; default 100.
        #[serde(default = "hundred")]
        speed_percent: u32,
    },
    /// Closed loop: each thread waits for its request before it issues the next one of the trace; times are not used.
    Closed {
        /// Threads, over all hosts.
        threads: u16,
        /// What a thread does between two requests.
        #[serde(default)]
        think: Interval,
    },
}

/// What the requests before the measurement leave behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Warm caches.
    #[default]
    Warm,
    /// Nothing: they are left out, as if the caches were new.
    Cold,
    /// What a crash and restart of all hosts spare: nothing clean in RAM, nor in flash that is not persistent.
    Restarted,
}

/// The devices of each host, the network and the filer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Devices {
    /// What a block in RAM takes, read or written; default 400ns.
    pub ram: Interval,
    /// The flash of each host.
    pub flash: Device,
    /// What a packet takes on each host's network link beside its bytes; default 8.2us.
    pub packet: Interval,
    /// What 1,024 bytes take on the link; default 8.2us, as 1 Gbit/s has it.
    pub kilobyte: Interval,
    /// The filer, or the origin whatever it is.
    pub filer: Device,
    /// A modelled disk that takes the filer's place: then `filer` does not count, nor do `packet` and `kilobyte`, for its
    /// times are those at the host.
    pub disk: Option<Disk>,
}

/// A disk that knows where its arms are: see [`crate::disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Disk {
    /// Which one.
    pub profile: DiskProfile,
    /// Its bytes, over which seeks go; 1M to 16T.
    pub size: Bytes,
    /// Bytes of its volatile write cache; 0, the default, for none.
    #[serde(default)]
    pub write_cache: Bytes,
}

/// A disk that the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskProfile {
    /// Two disks behind a network, by table 1 of Koller and others, "Write policies for host-side flash caches", 2013.
    Raid,
    /// Networked flash.
    Flash,
}

/// A device as a station.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Device {
    /// Reading a block, mean.
    pub read: Interval,
    /// A read that the device does not hold in its own cache takes so long instead, mean.
    pub slow_read: Interval,
    /// So many reads are slow, in percent.
    pub slow_percent: u8,
    /// Writing a block, mean.
    pub write: Interval,
    /// Each further block of the same request.
    pub next: Interval,
    /// How times spread around their mean.
    pub spread: Spread,
    /// Requests served at once; 1 to 1,024.
    pub servers: u16,
    /// Which request is next.
    pub discipline: Discipline,
    /// For read-priority: the longest that reads pass a write.
    pub starvation: Interval,
    /// Waiting writes of neighbouring blocks are served together, up to so many blocks; 0 for none.
    pub merge_blocks: u32,
    /// Writes of a block for each block written, as where metadata is written beside it: persistence of a cache. Default 1.
    pub writes_per_block: u8,
}

/// How times spread around their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Not at all.
    #[default]
    Fixed,
    /// Evenly from zero to twice the mean.
    Uniform,
    /// Exponentially.
    Exponential,
}

/// Which request a device serves next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// First come, first served.
    #[default]
    Fifo,
    /// Upwards over the device and again from the lowest place.
    CScan,
    /// Reads before writes that have not waited too long.
    ReadPriority,
}

/// Something that happens to a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct InjectedFault {
    /// Which device.
    pub device: Faulty,
    /// What happens.
    pub kind: FaultKind,
    /// From when on, since the start of the run.
    pub at: Interval,
    /// For how long.
    pub lasts: Interval,
    /// For slow: by this factor; default 10.
    #[serde(default = "ten")]
    pub factor: u32,
}

/// A device that can be faulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Faulty {
    /// The flash of every host.
    Flash,
    /// The filer.
    Filer,
}

/// What can happen to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// Its requests end with errors, and are tried again. The filer only.
    Fail,
    /// It begins nothing.
    Stall,
    /// It takes longer.
    Slow,
}

/// Why a run cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

impl Default for Settings {
    fn default() -> Self {
        let ram = Tier { staleness: Interval::NONE, at_limit: AtLimit::Block, ..Tier::default() };
        Self {
            block: Bytes(4_096),
            hosts: 1,
            architecture: Architecture::Naive,
            ram,
            flash: Tier { persistent: true, ..Tier::default() },
            arrivals: Arrivals::Open { speed_percent: 100 },
            warmup_requests: 0,
            start: Start::Warm,
            flush_every: 0,
            drain_every: 0,
            devices: Devices::default(),
            faults: Vec::new(),
            crashes: Vec::new(),
            seed: 1,
        }
    }
}

impl Default for Tier {
    fn default() -> Self {
        Self {
            size: Bytes(0),
            replacement: Replacements::Lru,
            policy: WritePolicy::WriteBack,
            when: When::Async,
            read_priority: false,
            commit: Interval(Span::ZERO),
            staleness: Interval(Span::from_secs(30)),
            at_limit: AtLimit::Throttle,
            dirty: Bytes(0),
            dirty_percent: 50,
            dirty_apart: false,
            volume_cache: Bytes(0),
            counts_writes: false,
            low_percent: 75,
            log: Bytes(0),
            batch_groups: 65_536,
            batches: 64,
            batch: Bytes(16 << 20),
            linger: Interval(Span::ZERO),
            redo: true,
            persistent: false,
            rows: false,
        }
    }
}

impl Default for Devices {
    fn default() -> Self {
        let us = |n| Interval(Span::from_micros(n));
        let flash = Device { read: us(88), write: us(21), next: us(11), ..Device::default() };
        let filer = Device {
            read: us(92),
            slow_read: us(7_952),
            slow_percent: 15,
            write: us(92),
            next: us(10),
            servers: 64,
            ..Device::default()
        };
        let packet = Interval(Span::from_nanos(8_200));
        Self {
            ram: Interval(Span::from_nanos(400)),
            flash,
            packet,
            kilobyte: packet,
            filer,
            disk: None,
        }
    }
}

impl Default for Device {
    fn default() -> Self {
        let zero = Interval(Span::ZERO);
        Self {
            read: zero,
            slow_read: zero,
            slow_percent: 0,
            write: zero,
            next: zero,
            spread: Spread::Fixed,
            servers: 4,
            discipline: Discipline::Fifo,
            starvation: Interval(Span::from_secs(1)),
            merge_blocks: 256,
            writes_per_block: 1,
        }
    }
}

impl Devices {
    /// Devices that take no time, so that only counts are left.
    pub fn infinitely_fast() -> Self {
        let zero = Interval(Span::ZERO);
        let device = Device { servers: 1_024, merge_blocks: 0, ..Device::default() };
        Self {
            ram: zero,
            packet: zero,
            kilobyte: zero,
            flash: device.clone(),
            filer: device,
            disk: None,
        }
    }
}

impl Disk {
    /// The disk as the model has it.
    pub(super) fn model(&self, seed: u64) -> Model {
        let profile = match self.profile {
            DiskProfile::Raid => Profile::RAID,
            DiskProfile::Flash => Profile::FLASH,
        };
        Model::new(profile.with_write_cache(self.write_cache.get()), self.size.get(), seed)
    }
}

impl Settings {
    /// Checks every range.
    ///
    /// # Errors
    /// Names the setting and its range.
    pub fn validate(&self) -> Result<(), SettingsError> {
        let block = self.block.get();
        let percents = |tier: &Tier| {
            (1..=100).contains(&tier.dirty_percent) && (0..=99).contains(&tier.low_percent)
        };
        let has_servers = |device: &Device| (1..=1_024).contains(&device.servers);
        let is_loop = match self.arrivals {
            Arrivals::Open { speed_percent } => speed_percent > 0,
            Arrivals::Closed { threads, .. } => threads > 0,
        };
        let disk = self.devices.disk;
        let fits = |disk: Disk| (1 << 20..=1 << 44).contains(&disk.size.get());
        let disturbs_disk =
            |fault: &InjectedFault| fault.device == Faulty::Filer && fault.kind != FaultKind::Fail;
        let fails_flash =
            |fault: &InjectedFault| fault.device == Faulty::Flash && fault.kind == FaultKind::Fail;
        let both = self.ram.size.get() > 0 && self.flash.size.get() > 0;
        let spans = [&self.devices.flash, &self.devices.filer]
            .into_iter()
            .flat_map(|device| [device.read, device.slow_read, device.write, device.next]);
        let devices = [self.devices.ram, self.devices.packet, self.devices.kilobyte];
        let is_span = |span: Interval| span.span() <= Span::from_secs(3_600);
        for (holds, message) in [
            (
                block.is_power_of_two() && (512..=1 << 20).contains(&block),
                "a block is a power of two, from 512 bytes to 1M",
            ),
            ((1..=256).contains(&self.hosts), "there are 1 to 256 hosts"),
            (is_loop, "a closed loop has at least one thread, an open loop a speed above 0"),
            (
                percents(&self.ram) && percents(&self.flash),
                "a dirty share is 1 to 100 percent, its low mark 0 to 99",
            ),
            (
                has_servers(&self.devices.flash) && has_servers(&self.devices.filer),
                "a device has 1 to 1024 servers",
            ),
            (
                self.devices.flash.slow_percent <= 100 && self.devices.filer.slow_percent <= 100,
                "a share of slow reads is 0 to 100 percent",
            ),
            (spans.chain(devices).all(is_span), "a device takes at most 1h for a block"),
            (!self.faults.iter().any(fails_flash), "the flash can stall or be slow, but not fail"),
            (
                self.crashes.is_empty() || (self.ram.redo && self.flash.redo),
                "what a crash leaves is known only of groups with a redo store",
            ),
            (disk.is_none_or(fits), "a modelled disk has 1M to 16T"),
            (
                disk.is_none() || !self.faults.iter().any(disturbs_disk),
                "a modelled disk can fail, but neither stall nor be slow",
            ),
            (
                self.architecture == Architecture::Naive || both,
                "the unified architecture needs RAM and flash",
            ),
        ] {
            if !holds {
                return Err(SettingsError(message.into()));
            }
        }
        self.check_tier(&self.ram, true)?;
        self.check_tier(&self.flash, false)
    }

    fn check_tier(&self, tier: &Tier, is_ram: bool) -> Result<(), SettingsError> {
        let name = if is_ram { "ram" } else { "flash" };
        let error = |message: String| Err(SettingsError(format!("{name}: {message}")));
        let blocks = tier.size.get() / self.block.get();
        if tier.size.get() == 0 {
            return Ok(());
        }
        if blocks == 0 {
            return error(format!("{} is less than one block", tier.size));
        }
        if blocks > u32::MAX.into() {
            return error(format!("{} is more than 4294967295 blocks", tier.size));
        }
        if tier.volume_cache.get() > 0 && tier.volume_cache.get() < tier.size.get() {
            return error(format!(
                "a volume-cache of {} has no room for {}",
                tier.volume_cache, tier.size
            ));
        }
        if tier.replacement.choice().is_none() {
            return error(
                "belady knows the future, which only hit ratios without time allow".into(),
            );
        }
        tier.core_policy(blocks, self.block.get(), is_ram)
            .validate()
            .or_else(|e| error(e.to_string()))
    }
}

impl Tier {
    /// The core's policy for a tier of so many blocks.
    pub fn core_policy(&self, blocks: u64, block: u64, is_ram: bool) -> Policy {
        // A dirty block counts twice unless told: the write that made it so, and itself.
        let times = if self.counts_writes { 1 } else { 2 };
        let share = blocks * u64::from(self.dirty_percent) / 100 * times * block;
        let dirty_max = if self.dirty.get() > 0 { self.dirty.get() } else { share }.max(DIRTY_MIN);
        let log = if self.log.get() == 0 { 1 << 60 } else { self.log.get() };
        let mut policy = Policy {
            acknowledge: self.policy.acknowledge(),
            when: self.when,
            order: match self.policy.order() {
                // A buffer cache hands out blocks as they come, one batch beside the other.
                Order::Any if is_ram => Order::Unit { batches_max: self.batches },
                order => order,
            },
            read_priority: self.read_priority,
            // Nothing is rejected here.
            on_reject: OnReject::Park,
            commit: self.commit.span(),
            staleness: self.staleness.span(),
            at_limit: self.at_limit,
            limits: Limits {
                dirty_bytes_max: dirty_max,
                dirty_bytes_low: match self.low_percent {
                    // As the servers have it.
                    75 if self.dirty.get() > 0 => dirty_max / 4 * 3,
                    percent => dirty_max / 100 * u64::from(percent),
                },
                journal_bytes_max: log,
                cache_bytes_max: blocks * block,
                batch_groups_max: self.batch_groups,
                batch_bytes_max: self.batch.get().max(block),
                linger: self.linger.span(),
                waiting_max: u32::MAX,
                ..Limits::default()
            },
        };
        self.fit(&mut policy, block);
        policy
    }

    /// Whether the newest version of a block may stand for older ones.
    pub(super) fn is_unordered(&self) -> bool {
        !matches!(self.policy, WritePolicy::Ordered | WritePolicy::Strict | WritePolicy::Journaled)
    }
}

/// The least dirty limit, bytes.
pub(super) const DIRTY_MIN: u64 = 65_536;

fn hundred() -> u32 {
    100
}

fn ten() -> u32 {
    10
}
