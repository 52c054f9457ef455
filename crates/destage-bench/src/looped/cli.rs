//! The arguments of `destage-bench loop`.

use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::{Bench, CASES};
use crate::Result;
use crate::args::{RunArgs, one_of};
use crate::place;

#[derive(Debug, Args)]
pub(crate) struct LoopArgs {
    /// Few files and rows, short runs: shows that it works, not how good the advice is
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only these loads, in their own order: mail, database, rows
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = case_name)]
    pub(crate) cases: Vec<String>,
    /// How long a load comes, seconds [default: 10, with --quick 1]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Operations that come at once [default: 800, with --quick 32]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(16..=100_000))]
    pub(crate) burst: Option<u64>,
    /// How often each load goes round, each time with the next seed [1 to 20]
    #[arg(long, default_value_t = 1, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(1..=20))]
    pub(crate) pairs: u8,
    /// Seed of the choices and of the modelled disk
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

fn case_name(text: &str) -> std::result::Result<String, String> {
    one_of(text, CASES.iter().map(|case| case.name))
}

impl LoopArgs {
    pub(super) fn bench(&self, dir: &Path) -> Result<Bench> {
        let quick = self.quick;
        let seconds = self.seconds.unwrap_or(if quick { 1.0 } else { 10.0 });
        if !(0.1..=3600.0).contains(&seconds) {
            return Err("--seconds takes 0.1 to 3600".into());
        }
        Ok(Bench {
            bin: place::program(self.run.destage_bin.as_deref())?,
            dir: dir.to_owned(),
            time: Duration::try_from_secs_f64(seconds)?,
            seed: self.seed,
            extra: self.run.destage_arg.clone(),
            // More than the defaults leave of the cache for what is read, and less than all of it.
            file_bytes: if quick { 8 << 20 } else { 80 << 20 },
            rows: if quick { 500 } else { 20_000 },
            burst: self.burst.unwrap_or(if quick { 32 } else { 800 }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_load() {
        let help = LoopArgs::augment_args(clap::Command::new("loop"))
            .render_long_help()
            .to_string()
            .replace('\n', " ");
        let words: Vec<&str> = help.split(&[' ', ','][..]).collect();
        for case in &CASES {
            assert!(words.contains(&case.name), "{} is missing: {help}", case.name);
        }
    }
}
