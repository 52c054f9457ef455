//! `destage sim run` with devices: requests through hosts, caches, a network and a filer, in virtual time.

mod shown;

use super::report::{failed_blocks, named};
use super::run::{RAM_REPLACEMENT, REPLACEMENT};
use super::trace::{TraceArgs, interrupt, is_interrupted};
use crate::error::CliError;
use crate::file;
use crate::output::{print, print_json};
use clap::ValueEnum;
use destage_core::{AtLimit, Span, Time, When};
use destage_engine::defaults;
use destage_runtime::exit;
use destage_runtime::human::{count, seconds};
use destage_runtime::policy::{parse_at_limit, parse_when};
use destage_runtime::units::{Bytes, Interval, UnitError};
use destage_sim::advise::{Losses, random_times};
use destage_sim::hits::Replacements;
use destage_sim::machine::{
    self, Architecture, Arrivals, Devices, Meter, Report, RunError, Settings, Start, Tier,
    WritePolicy,
};
use serde::Serialize;
pub(super) use shown::settings_in_force;
use shown::{csv, table};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Flags of `sim run` with devices.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "With devices, in virtual time")]
pub(crate) struct MachineArgs {
    /// What an acknowledged write means, and the order of destaging: write-through, write-around, write-back, ordered, strict or
    /// journaled; of the flash, or of the RAM where there is none. With it, --devices or --settings the run has devices and
    /// times.
    #[arg(long, value_parser = word::<WritePolicy>, value_name = "POLICY")]
    policy: Option<WritePolicy>,

    /// The devices: a file with the times of RAM, flash, network and filer.
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,

    /// A file with any of the settings of a run; flags given here count for more.
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,

    /// When to destage: async, adaptive, periodic:10s, interval:30s,1s (age, check) or pressure; of the tier of --policy.
    #[arg(long, value_parser = parse_when, value_name = "WHEN")]
    when: Option<When>,

    /// d: 0, or how often the tier of --policy commits.
    #[arg(short = 'd', long, value_name = "TIME")]
    commit: Option<Interval>,

    /// D: how old the origin may be, or none; of the tier of --policy.
    #[arg(short = 'D', long, value_name = "TIME")]
    staleness: Option<Interval>,

    /// What happens to writes at a limit: throttle, block, write-through or fail.
    #[arg(long, value_parser = parse_at_limit, value_name = "CHOICE")]
    at_limit: Option<AtLimit>,

    /// Bytes of the log inside --flash; unless told a quarter of it, but 64M to 32G, and at most half.
    #[arg(long, value_name = "SIZE")]
    log_size: Option<Bytes>,

    /// Most bytes of writes that the origin does not have; a quarter of the log unless told.
    #[arg(long, value_name = "SIZE")]
    dirty_limit: Option<Bytes>,

    /// Most bytes in one batch at the origin; 16M unless told.
    #[arg(long, value_name = "SIZE")]
    batch_size: Option<Bytes>,

    /// How long a lone write waits for company; 100ms unless told.
    #[arg(long, value_name = "TIME")]
    linger: Option<Interval>,

    /// The policy of the RAM where it stands before flash; write-back unless told.
    #[arg(long, value_parser = word::<WritePolicy>, value_name = "POLICY")]
    ram_policy: Option<WritePolicy>,

    /// When the RAM destages where it stands before flash; async unless told.
    #[arg(long, value_parser = parse_when, value_name = "WHEN")]
    ram_when: Option<When>,

    /// How RAM and flash work together: naive (flash is a layer of its own) or unified (one cache).
    #[arg(long, value_parser = word::<Architecture>, value_name = "NAME")]
    architecture: Option<Architecture>,

    /// Hosts in front of the filer, each with its own caches; what one writes, the others drop.
    #[arg(long, value_name = "N")]
    hosts: Option<u16>,

    /// A closed loop: so many threads wait for each request before the next one. Unless told, requests come at their times.
    #[arg(long, value_name = "N")]
    threads: Option<u16>,

    /// So many requests come first and are not measured.
    #[arg(long, value_name = "N")]
    warmup: Option<u64>,

    /// What those leave behind: warm, cold (they are left out) or restarted (what a crash of the hosts spares).
    #[arg(long, value_parser = word::<Start>, value_name = "NAME")]
    start: Option<Start>,

    /// Of all random streams.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Look what a crash would lose: at these times, separated by commas, or at so many random ones: random:1000.
    #[arg(long, value_delimiter = ',', value_parser = crash_at, value_name = "TIMES")]
    crash_at: Vec<CrashAt>,

    /// The crashes lose the caches as well as the hosts: then what the origin holds is all there is.
    #[arg(long, requires = "crash_at")]
    lose_cache: bool,

    /// Run twice and fail if the results differ.
    #[arg(long)]
    check: bool,
}

/// What the other flags of `sim run` say; nothing where they are not given.
pub(crate) struct Caches<'a> {
    pub(crate) block: Option<Bytes>,
    pub(crate) ram: &'a [Bytes],
    pub(crate) flash: &'a [Bytes],
    pub(crate) replacement: &'a [Replacements],
    pub(crate) ram_replacement: Option<Replacements>,
}

/// The only value of a flag, if it was given.
fn one<T: Copy>(given: &[T]) -> Result<Option<T>, CliError> {
    match given {
        [] => Ok(None),
        [value] => Ok(Some(*value)),
        _ => Err(CliError::usage(
            "a run with devices takes one size of --ram and --flash and one --replacement: compare with sim sweep",
        )),
    }
}

/// When to look what a crash would lose.
#[derive(Clone, Copy, Debug)]
enum CrashAt {
    Time(Interval),
    Random(u32),
}

fn crash_at(text: &str) -> Result<CrashAt, String> {
    let Some(count) = text.strip_prefix("random:") else {
        return text.parse().map(CrashAt::Time).map_err(|error: UnitError| error.to_string());
    };
    match count.parse() {
        Ok(count @ 1..=100_000) => Ok(CrashAt::Random(count)),
        _ => Err("random: is followed by how many, 1 to 100000".into()),
    }
}

/// A word of the settings on the command line.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let value = serde::de::value::StrDeserializer::<serde::de::value::Error>::new(text);
    T::deserialize(value).map_err(|error| error.to_string())
}

/// The form of a result.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    Table,
    Csv,
    Json,
}

/// A report with what it is of.
#[derive(Debug, Serialize)]
struct Row<'a> {
    in_force: BTreeMap<String, String>,
    trace: String,
    format: &'static str,
    bad_records: u64,
    #[serde(flatten)]
    report: &'a Report,
    losses: Option<Losses>,
}

impl MachineArgs {
    /// Whether any flag asks for devices.
    pub(crate) fn is_asked(&self) -> bool {
        self.policy.is_some() || self.devices.is_some() || self.settings.is_some()
    }

    /// Refuses flags that count only in a run with devices, in one without.
    pub(crate) fn check_unused(&self) -> Result<(), CliError> {
        let given = [
            ("when", self.when.is_some()),
            ("commit", self.commit.is_some()),
            ("staleness", self.staleness.is_some()),
            ("at-limit", self.at_limit.is_some()),
            ("log-size", self.log_size.is_some()),
            ("dirty-limit", self.dirty_limit.is_some()),
            ("batch-size", self.batch_size.is_some()),
            ("linger", self.linger.is_some()),
            ("ram-policy", self.ram_policy.is_some()),
            ("ram-when", self.ram_when.is_some()),
            ("architecture", self.architecture.is_some()),
            ("hosts", self.hosts.is_some()),
            ("threads", self.threads.is_some()),
            ("warmup", self.warmup.is_some()),
            ("start", self.start.is_some()),
            ("seed", self.seed.is_some()),
            ("crash-at", !self.crash_at.is_empty()),
            ("check", self.check),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => Err(CliError::usage(format!(
                "--{name} counts in a run with devices only, and hits are counted without: name --policy, --devices or --settings \
                 as well, or leave it out"
            ))),
        }
    }

    /// Settings of the file, completed by the flags.
    pub(crate) fn settings(&self, caches: &Caches<'_>) -> Result<Settings, CliError> {
        let mut settings: Settings = match &self.settings {
            Some(path) => file::read(path, |text| toml::from_str(text).map_err(|e| e.to_string()))?,
            None => Settings::default(),
        };
        if let Some(path) = &self.devices {
            let parse = |text: &str| toml::from_str::<Devices>(text).map_err(|e| e.to_string());
            settings.devices = file::read(path, parse)?;
        }
        settings.block = caches.block.unwrap_or(settings.block);
        self.set_caches(&mut settings, caches)?;
        self.set_policies(&mut settings);
        if let Some(architecture) = self.architecture {
            settings.architecture = architecture;
        }
        if settings.architecture == Architecture::Unified {
            settings.flash = settings.flash.unified();
        }
        if let Some(threads) = self.threads {
            settings.arrivals = Arrivals::Closed { threads, think: Interval::default() };
        }
        settings.hosts = self.hosts.unwrap_or(settings.hosts);
        settings.warmup_requests = self.warmup.unwrap_or(settings.warmup_requests);
        settings.start = self.start.unwrap_or(settings.start);
        settings.seed = self.seed.unwrap_or(settings.seed);
        let times = self.crash_at.iter().filter_map(|at| match at {
            CrashAt::Time(time) => Some(*time),
            CrashAt::Random(_) => None,
        });
        settings.crashes.extend(times);
        settings.validate().map_err(CliError::usage)?;
        Ok(settings)
    }

    /// Whether the random crashes need to know how long the trace is.
    pub(crate) fn has_random_crashes(&self) -> bool {
        self.crash_at.iter().any(|at| matches!(at, CrashAt::Random(_)))
    }

    /// Adds the random crashes, within so long.
    pub(crate) fn set_random_crashes(&self, settings: &mut Settings, within: Span) {
        for at in &self.crash_at {
            if let CrashAt::Random(count) = at {
                settings.crashes.extend(random_times(*count, within, settings.seed));
            }
        }
    }

    /// Whether crashes lose the caches.
    pub(crate) fn loses_cache(&self) -> bool {
        self.lose_cache
    }

    /// What the crashes would lose, if there are any.
    pub(crate) fn losses(&self, report: &Report) -> Option<Losses> {
        (!report.crashes.is_empty()).then(|| Losses::of(&report.crashes, self.lose_cache))
    }

    fn set_caches(&self, settings: &mut Settings, caches: &Caches<'_>) -> Result<(), CliError> {
        let ram = one(caches.ram)?;
        let flash = one(caches.flash)?;
        let replacement = one(caches.replacement)?;
        settings.ram.size = ram.unwrap_or(settings.ram.size);
        settings.flash.size = flash.unwrap_or(settings.flash.size);
        let is_file = self.settings.is_some();
        if is_file && self.log_size.is_some() {
            return Err(CliError::usage(
                "--log-size counts for nothing with --settings: there the file has the log, beside --flash",
            ));
        }
        if let Some(flash) = flash.filter(|flash| !is_file && flash.get() > 0) {
            settings.flash = self.volume(flash.get())?;
        }
        // What the file says counts where no flag does.
        let default = |unless_told| (!is_file).then_some(unless_told);
        let replacement = replacement.or_else(|| default(REPLACEMENT));
        let [has_ram, has_flash] = [&settings.ram, &settings.flash].map(|tier| tier.size.get() > 0);
        if has_flash {
            let tier = &mut settings.flash;
            tier.replacement = replacement.unwrap_or(tier.replacement);
        }
        let before_flash = caches.ram_replacement.or_else(|| default(RAM_REPLACEMENT));
        if has_ram && !has_flash && !is_file {
            settings.ram = settings.ram.clone().alone();
        }
        let of_ram = if has_flash { before_flash } else { replacement };
        if has_ram {
            settings.ram.replacement = of_ram.unwrap_or(settings.ram.replacement);
        }
        Ok(())
    }

    /// Refuses flags of caches that are not what is simulated. In a sweep they may be, in other runs.
    fn check_counts(&self, caches: &Caches<'_>, settings: &Settings) -> Result<(), CliError> {
        let has_flash = settings.flash.size.get() > 0;
        if self.log_size.is_some() && !has_flash {
            return Err(CliError::usage("--log-size is of the log inside --flash: give that, too"));
        }
        let given = [
            ("ram-policy", self.ram_policy.is_some()),
            ("ram-when", self.ram_when.is_some()),
            ("ram-replacement", caches.ram_replacement.is_some()),
        ];
        let is_both = has_flash && settings.ram.size.get() > 0;
        match given.into_iter().find(|(_, is_given)| *is_given && !is_both) {
            None => Ok(()),
            Some((name, _)) => Err(CliError::usage(format!(
                "--{name} is of RAM that stands before flash: give both --ram and --flash, or leave it out"
            ))),
        }
    }

    /// The cache of a volume as the server has it, with what flags say of its log.
    fn volume(&self, flash: u64) -> Result<Tier, CliError> {
        let tier = Tier::of_volume(flash);
        let log = self.log_size.map_or_else(|| defaults::volume::log_bytes(flash), Bytes::get);
        if log >= flash {
            let message = format!("a log of {} leaves no room for blocks in --flash", Bytes(log));
            return Err(CliError::usage(message));
        }
        let dirty = self.dirty_limit.map_or_else(|| defaults::volume::dirty_bytes(log), Bytes::get);
        Ok(tier.with_log(flash, log, dirty))
    }

    fn set_policies(&self, settings: &mut Settings) {
        let has_flash = settings.flash.size.get() > 0;
        if has_flash {
            let ram = &mut settings.ram;
            ram.policy = self.ram_policy.unwrap_or(ram.policy);
            ram.when = self.ram_when.unwrap_or(ram.when);
        }
        let tier = if has_flash { &mut settings.flash } else { &mut settings.ram };
        tier.policy = self.policy.unwrap_or(tier.policy);
        tier.when = self.when.unwrap_or(tier.when);
        if let Some(staleness) = self.staleness {
            *tier = tier.clone().with_staleness(staleness);
        }
        tier.commit = self.commit.unwrap_or(tier.commit);
        tier.dirty = self.dirty_limit.unwrap_or(tier.dirty);
        tier.batch = self.batch_size.unwrap_or(tier.batch);
        tier.linger = self.linger.unwrap_or(tier.linger);
        tier.at_limit = self.at_limit.unwrap_or(tier.at_limit);
    }

    /// Runs the trace and shows what it came to.
    pub(crate) fn run(
        &self,
        trace: &TraceArgs,
        caches: &Caches<'_>,
        output: Output,
    ) -> Result<(), CliError> {
        let mut settings = self.settings(caches)?;
        self.check_counts(caches, &settings)?;
        if (self.check || self.has_random_crashes()) && trace.trace.as_os_str() == "-" {
            return Err(CliError::usage(
                "--check and --crash-at random read the trace twice, which standard input does not allow",
            ));
        }
        if self.has_random_crashes() {
            let mut last = Time::ZERO;
            trace.read(|request| {
                last = request.time;
                Ok(())
            })?;
            self.set_random_crashes(&mut settings, last.since(Time::ZERO));
        }
        let (format, bad_records, report) = simulate(trace, &settings)?;
        if self.check && !is_interrupted() && simulate(trace, &settings)?.2.hash != report.hash {
            let message = format!("two runs with seed {} differ", settings.seed);
            return Err(CliError::new(exit::BUG, message));
        }
        let name = trace.trace.display().to_string();
        let losses = self.losses(&report);
        let in_force = named(&settings_in_force(&report.settings, None));
        let row = Row { in_force, trace: name, format, bad_records, report: &report, losses };
        match output {
            Output::Table => print(&table(&row)),
            Output::Csv => print(&csv(&row)?),
            Output::Json => print_json(&row),
        }
    }
}

fn simulate(
    trace: &TraceArgs,
    settings: &Settings,
) -> Result<(&'static str, u64, Report), CliError> {
    let started = Instant::now();
    let mut reading = trace.open("simulating")?;
    let meter = Meter::new(interrupt()?);
    let report =
        machine::run_metered(&mut reading, settings, &meter).map_err(|error| match error {
            RunError::Settings(error) => CliError::usage(error),
            RunError::Blocks(error) => failed_blocks(error),
            RunError::Source(error) => error,
        })?;
    let (format, counts) = reading.finish();
    let elapsed = started.elapsed().as_secs_f64();
    tracing::info!(
        "{} requests in {}: {} per second",
        count(counts.requests),
        seconds(elapsed),
        count((counts.requests as f64 / elapsed.max(1e-9)) as u64),
    );
    Ok((format.name(), counts.bad, report))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Subcommand};
    use crate::sim::SimCommand;
    use crate::sim::run::RunArgs;
    use clap::Parser;
    use destage_core::Limits;

    fn args(words: &[&str]) -> RunArgs {
        let all = ["destage", "sim", "run", "--trace", "t"];
        let cli = Cli::try_parse_from(all.iter().chain(words));
        let cli = cli.unwrap_or_else(|error| panic!("{error}"));
        let Subcommand::Sim { command: SimCommand::Run(args) } = cli.command else {
            panic!("it is a run")
        };
        *args
    }

    /// The settings of a run, once what counts for nothing was refused.
    fn settings(words: &[&str]) -> Result<Settings, String> {
        let args = args(words);
        let settings = args.settings().map_err(|error| error.to_string())?;
        let counts = args.machine.check_counts(&args.caches(), &settings);
        counts.map(|()| settings).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_that_are_given_count_for_more_than_the_file_and_others_do_not() {
        let folder = tempfile::tempdir().expect("it works");
        let file = folder.path().join("settings.toml");
        let lines = "block = '8K'\n[ram]\nsize = '1M'\nreplacement = 'clock'\n[flash]\nsize = '4M'\nreplacement = 'arc'\n";
        std::fs::write(&file, lines).expect("it works");
        let file = file.display().to_string();
        let of = |words: &[&str]| {
            let settings = settings(&[&["--settings", &file], words].concat());
            let settings = settings.unwrap_or_else(|error| panic!("{error}"));
            let tier = |tier: &Tier| (tier.size.get() >> 20, tier.replacement.name());
            (settings.block.get(), tier(&settings.ram), tier(&settings.flash))
        };
        let tier = |mib: u64, name: &'static str| (mib, name);
        assert_eq!(of(&[]), (8_192, tier(1, "clock"), tier(4, "arc")));
        assert_eq!(of(&["--flash", "2M"]), (8_192, tier(1, "clock"), tier(2, "arc")));
        assert_eq!(of(&["--replacement", "lru"]), (8_192, tier(1, "clock"), tier(4, "lru")));
        let given = ["--block", "4K", "--ram", "3M", "--ram-replacement", "sieve"];
        assert_eq!(of(&given), (4_096, tier(3, "sieve"), tier(4, "arc")));
        let error = settings(&["--settings", &file, "--log-size", "1M"]).err();
        assert!(error.is_some_and(|error| error.contains("--log-size counts for nothing")));
        // The control: without a file there are defaults.
        let plain = settings(&["--flash", "64M", "--policy", "journaled"]);
        let plain = plain.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((plain.block.get(), plain.flash.replacement), (4_096, REPLACEMENT));
    }

    #[test]
    fn ram_alone_has_what_the_servers_have_and_ram_before_flash_has_not() {
        let of = |words: &[&str]| {
            let settings = settings(&[&["--policy", "journaled", "--ram", "64M"], words].concat());
            let ram = settings.unwrap_or_else(|error| panic!("{error}")).ram;
            let policy = ram.core_policy(16_384, 4_096, true);
            let Limits { linger, batch_groups_max, batch_bytes_max, .. } = policy.limits;
            let batch = (batch_groups_max, batch_bytes_max);
            ((policy.staleness, policy.at_limit), linger, batch, ram.replacement)
        };
        let served = defaults::volume::policy(16 << 20);
        let Limits { linger, batch_groups_max, batch_bytes_max, .. } = served.limits;
        let (bounds, batch) =
            ((served.staleness, served.at_limit), (batch_groups_max, batch_bytes_max));
        assert_eq!(of(&[]), (bounds, linger, batch, REPLACEMENT));
        let told = of(&["--staleness", "7s", "--at-limit", "fail", "--linger", "0"]);
        assert_eq!(told, ((Span::from_secs(7), AtLimit::Fail), Span::ZERO, batch, REPLACEMENT));
        // The controls: before flash it is neutral, and a file of settings has neither linger nor that replacement.
        let neutral = ((Span::MAX, AtLimit::Block), Span::ZERO, batch, RAM_REPLACEMENT);
        assert_eq!(of(&["--flash", "256M"]), neutral);
        let folder = tempfile::tempdir().expect("it works");
        let file = folder.path().join("settings.toml");
        std::fs::write(&file, "[ram]\nsize = '1M'\n").expect("it works");
        let of_file = of(&["--settings", &file.display().to_string()]);
        assert_eq!(of_file, (bounds, Span::ZERO, batch, RAM_REPLACEMENT));
    }

    #[test]
    fn what_counts_for_nothing_is_refused() {
        let journaled = ["--policy", "journaled", "--flash", "64M"];
        for flag in
            [["--ram-policy", "ordered"], ["--ram-when", "async"], ["--ram-replacement", "arc"]]
        {
            let refused = settings(&[&journaled[..], &flag].concat());
            let error = refused.err().unwrap_or_default();
            assert!(error.contains(flag[0]) && error.contains("--ram and --flash"), "{error}");
            let both = settings(&[&journaled[..], &flag, &["--ram", "1M"]].concat());
            both.unwrap_or_else(|error| panic!("{error}"));
        }
        let refused = settings(&["--policy", "write-back", "--ram", "1M", "--log-size", "1M"]);
        assert!(refused.is_err_and(|error| error.contains("--log-size is of the log")));
    }

    #[test]
    fn the_devices_of_the_documentation_are_the_defaults() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/SIMULATION.md");
        let page = std::fs::read_to_string(page).expect("the page is readable");
        let section = page.split("## Devices and times").nth(1).expect("the heading is there");
        let file = section.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
        let devices: Devices = toml::from_str(file.expect("a file is shown")).expect("it is TOML");
        assert_eq!(devices, Devices::default());
    }
}
