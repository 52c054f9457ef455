//! One run of `destage-bench block`: options, volumes before modelled disks, and what has been measured so far.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::Result;
use crate::bench::{Side, cpu_us, in_turn};
use crate::figure::{Figure, Memory, Run, Target};
use crate::fio::{self, Job, Place, Until};
use crate::report::Table;
use crate::servers::{BlockConfig, BlockServer, DeviceConfig, DeviceServer};

/// How much to measure, and with what. Sizes are bytes.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) bin: PathBuf,
    pub(crate) time: Duration,
    pub(crate) pairs: usize,
    pub(crate) seed: u64,
    pub(crate) region: u64,
    pub(crate) burst: u64,
    pub(crate) recovery_log: u64,
    pub(crate) full_cache: u64,
    pub(crate) is_quick: bool,
    pub(crate) extra: Vec<String>,
}

/// The state of a run.
#[derive(Debug)]
pub(crate) struct BlockBench {
    pub(crate) options: Options,
    pub(crate) dir: PathBuf,
    pub(crate) figures: Vec<Figure>,
    pub(crate) tables: Vec<Table>,
    pub(crate) memory: Vec<Memory>,
    pub(crate) failures: Vec<String>,
}

/// The four policies, as the flag takes them.
pub(crate) const POLICIES: [&str; 4] = ["write-through", "write-back", "ordered", "journaled"];

/// Which of several sides run in turn are compared with which, and what the ratio should reach.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) group: &'static str,
    pub(crate) case: String,
    pub(crate) peer: String,
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
    pub(crate) target: Target,
}

impl BlockBench {
    pub(crate) fn new(options: Options, dir: &Path) -> Self {
        Self {
            options,
            dir: dir.to_owned(),
            figures: Vec::new(),
            tables: Vec::new(),
            memory: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Runs all sides in turn and keeps a figure for each comparison. A side that fails ends the case and is reported;
    /// other cases go on.
    pub(crate) fn rounds<const SIDES: usize>(
        &mut self,
        name: &str,
        comparisons: Vec<Comparison>,
        sides: [Side<'_, Self>; SIDES],
    ) {
        let (runs, ended) = in_turn(self, name, self.options.pairs, sides);
        if let Err(error) = ended {
            self.fail(&format!("{name}: {error}"));
        }
        if runs[0].is_empty() {
            return;
        }
        self.figures.extend(comparisons.into_iter().map(|it| Figure {
            group: it.group,
            case: it.case,
            peer: it.peer,
            ours: runs[it.ours].clone(),
            theirs: runs[it.theirs].clone(),
            target: it.target,
        }));
    }

    pub(crate) fn fail(&mut self, what: &str) {
        eprintln!("error: {what}");
        self.failures.push(what.to_owned());
    }

    /// 4 KiB at random places of the region, for as long as a run takes.
    pub(crate) fn random(&self, kind: &'static str) -> Job {
        Job::random(kind, self.options.region, self.options.time, self.options.seed)
    }

    /// A run of something that is no server.
    pub(crate) fn fio(&self, place: &Place, job: &Job) -> Result<Run> {
        fio::run(&self.dir, place, job).map(run_of)
    }

    /// A run at a server, with its CPU time.
    pub(crate) fn fio_at(
        &self,
        uri: String,
        job: &Job,
        cpu: impl Fn() -> Result<Duration>,
    ) -> Result<Run> {
        let before = cpu()?;
        let run = self.fio(&Place::Nbd(uri), job)?;
        Ok(Run { cpu_us: cpu_us(before, cpu()?, run.requests), ..run })
    }

    /// Writes every byte of the region once.
    pub(crate) fn fill(&self, place: &Place) -> Result<()> {
        self.fio(place, &Job::whole("write", self.options.region)).map(drop)
    }
}

fn run_of(printed: fio::Printed) -> Run {
    Run {
        requests: printed.requests,
        per_second: printed.per_second(),
        p50_us: printed.p50_us,
        p99_us: printed.p99_us,
        ..Run::default()
    }
}

/// The sizes of a volume and its cache, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) volume: u64,
    /// Room for blocks.
    pub(crate) blocks: u64,
    pub(crate) log: u64,
    /// The dirty limit, which counts undestaged writes and dirty blocks: twice what is written once.
    pub(crate) dirty: u64,
}

impl Sizes {
    /// Room for all blocks of a region, and for so many bytes written in a row before anything waits for the origin.
    pub(crate) fn of(region: u64, burst: u64) -> Self {
        // Writes slow down before the limit.
        let dirty = burst / 2 * 5;
        // An eighth of the blocks is a reserve, and dirty ones have their share before clean ones.
        let blocks = (region + dirty / 2).max(dirty) / 7 * 8 + (16 << 20);
        // Half of a log at most is undecided, and records are longer than what they hold.
        Self { volume: region, blocks, log: dirty, dirty }
    }
}

/// Destage before a modelled disk, with a cache of its own.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) server: BlockServer,
    pub(crate) device: DeviceServer,
    config: BlockConfig,
    /// The cache and the sockets, removed once both processes have stopped.
    folder: TempDir,
}

/// What is behind a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disk {
    pub(crate) profile: &'static str,
    /// Bytes of its write cache, as the profile says unless told.
    pub(crate) write_cache: Option<u64>,
}

impl Disk {
    /// The paper's disks, which have no write cache in its table 1.
    pub(crate) const PAPER: Self = Self { profile: "raid", write_cache: Some(0) };

    pub(crate) fn new(profile: &'static str) -> Self {
        Self { profile, write_cache: None }
    }
}

impl Volume {
    /// Starts both; the disk takes no time yet.
    pub(crate) fn start(
        bench: &BlockBench,
        disk: Disk,
        sizes: Sizes,
        policy: &'static str,
    ) -> Result<Self> {
        Self::start_with(bench, disk, sizes, policy, &[])
    }

    /// The same with further arguments for the server.
    pub(crate) fn start_with(
        bench: &BlockBench,
        disk: Disk,
        sizes: Sizes,
        policy: &'static str,
        further: &[String],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("volume-").tempdir_in(&bench.dir)?;
        let Disk { profile, write_cache } = disk;
        let seed = bench.options.seed;
        let device = DeviceConfig { profile, size: sizes.volume, write_cache, seed };
        let device = DeviceServer::start(folder.path(), &device)?;
        let config = BlockConfig {
            bin: bench.options.bin.clone(),
            origin: device.uri("disk"),
            redo: device.uri("redo"),
            cache: folder.path().join("cache"),
            cache_bytes: sizes.blocks + sizes.log,
            log_bytes: sizes.log,
            dirty_bytes: sizes.dirty,
            policy,
            extra: [&bench.options.extra[..], further].concat(),
        };
        let server = BlockServer::start(folder.path(), &config)?;
        Ok(Self { server, device, config, folder })
    }

    /// Ends the server, as a crash would or as asked, and starts another on the same cache after `between`.
    pub(crate) fn restart(
        self,
        crashes: bool,
        between: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        let Self { server, mut device, config, folder } = self;
        device.instant()?;
        if crashes {
            server.kill()?
        } else {
            drop(server)
        }
        between(&config.cache)?;
        let server = BlockServer::start(folder.path(), &config)?;
        Ok(Self { server, device, config, folder })
    }

    /// Brings everything to the origin in no time, then lets the disk take its time.
    pub(crate) fn rest(&mut self) -> Result<()> {
        self.device.instant()?;
        self.server.drain()?;
        self.device.timed()
    }

    /// The same, and another policy from then on.
    pub(crate) fn rest_with(&mut self, changes: &[&str]) -> Result<()> {
        self.device.instant()?;
        self.server.drain()?;
        self.server.set_policy(changes)?;
        self.device.timed()
    }

    /// Writes the log once round, so that later writes find it laid out, and brings all of it to the origin.
    pub(crate) fn lay_out(&mut self, bench: &BlockBench) -> Result<()> {
        self.device.instant()?;
        let region = bench.options.region;
        let whole = Job::whole("write", region);
        let bytes_max = Some(self.config.log_bytes.max(region));
        let job = Job { until: Until { bytes_max, ..whole.until }, ..whole };
        bench.fio(&Place::Nbd(self.server.uri()), &job)?;
        self.server.drain()
    }

    /// Reads the region once, so that it is cached.
    pub(crate) fn warm(&mut self, bench: &BlockBench) -> Result<()> {
        self.device.instant()?;
        let whole = Job::whole("read", bench.options.region);
        bench.fio(&Place::Nbd(self.server.uri()), &whole).map(drop)
    }

    /// Runs a job that reads what is cached, from a state of rest.
    ///
    /// # Errors
    ///
    /// It failed, or some of it was not cached.
    pub(crate) fn hits(&mut self, bench: &BlockBench, job: &Job) -> Result<Run> {
        self.warm(bench)?;
        let before = self.server.status()?;
        let run = self.burst(bench, job)?;
        let after = self.server.status()?;
        let misses = after.miss_blocks_total - before.miss_blocks_total;
        let all = misses + after.hit_blocks_total - before.hit_blocks_total;
        match misses {
            0 => Ok(run),
            _ => Err(format!("{misses} of {all} blocks read were not cached").into()),
        }
    }

    /// Runs a job from a state of rest.
    pub(crate) fn burst(&mut self, bench: &BlockBench, job: &Job) -> Result<Run> {
        self.rest()?;
        bench.fio_at(self.server.uri(), job, || self.server.cpu())
    }
}
