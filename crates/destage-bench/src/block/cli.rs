//! The arguments of `destage-bench block`.

use std::time::Duration;

use clap::Args;
use destage_runtime::units::Bytes;

use super::bench::Options;
use super::cases::CASES;
use crate::Result;
use crate::args::{RunArgs, one_of};
use crate::place;

#[derive(Debug, Args)]
pub(crate) struct BlockArgs {
    /// Small volumes, short runs, one round: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only these cases, in their own order: raw, synchronous, burst, sustained, policies, cache-sizes, journal-sizes,
    /// files, file-systems, recovery, full
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = case_name)]
    pub(crate) cases: Vec<String>,
    /// Length of one run, seconds [default: 5, with --quick 0.5]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Rounds of runs per case, each with every side in turn [default: 5, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pub(crate) pairs: Option<usize>,
    /// Seed of the addresses and of the modelled disks
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The blocks that are read and written [default: 256M, with --quick 64M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) region: Option<Bytes>,
    /// Most that one burst writes [default: 512M, with --quick 64M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) burst: Option<Bytes>,
    /// The log that is recovered; three eighths of it are undestaged writes [default: 2G, with --quick 128M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) recovery_log: Option<Bytes>,
    /// The clean cache whose start and memory are measured [default: 4G, with --quick 256M]
    #[arg(long, value_name = "SIZE")]
    pub(crate) full_cache: Option<Bytes>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

fn case_name(text: &str) -> std::result::Result<String, String> {
    one_of(text, CASES.iter().map(|(name, _)| *name))
}

impl BlockArgs {
    pub(crate) fn options(&self) -> Result<Options> {
        let quick = self.quick;
        let bytes = |given: Option<Bytes>, whole: u64, quickly: u64| {
            given.map_or(if quick { quickly } else { whole } << 20, Bytes::get)
        };
        let seconds = self.seconds.unwrap_or(if quick { 0.5 } else { 5.0 });
        let options = Options {
            bin: place::program(self.run.destage_bin.as_deref())?,
            time: Duration::try_from_secs_f64(seconds)?,
            pairs: self.pairs.unwrap_or(if quick { 1 } else { 5 }),
            seed: self.seed,
            region: bytes(self.region, 256, 64),
            burst: bytes(self.burst, 512, 64),
            recovery_log: bytes(self.recovery_log, 2048, 128),
            full_cache: bytes(self.full_cache, 4096, 256),
            is_quick: quick,
            extra: self.run.destage_arg.clone(),
        };
        if options.pairs == 0 || seconds <= 0.0 {
            return Err("--pairs and --seconds must be above 0".into());
        }
        for (flag, bytes, least) in [
            ("--region", options.region, 16),
            ("--burst", options.burst, 16),
            ("--recovery-log", options.recovery_log, 64),
            ("--full-cache", options.full_cache, 128),
        ] {
            if bytes < least << 20 {
                return Err(format!("{flag} must be at least {least}M").into());
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_case() {
        let help = BlockArgs::augment_args(clap::Command::new("block"))
            .render_long_help()
            .to_string()
            .replace('\n', " ");
        let words: Vec<&str> = help.split(&[' ', ','][..]).collect();
        for (name, _) in CASES {
            assert!(words.contains(&name), "{name} is missing: {help}");
        }
    }
}
