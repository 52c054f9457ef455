//! The arguments of `destage-bench mount`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::cases::CASES;
use super::options::Options;
use crate::Result;
use crate::args::{RunArgs, one_of};
use crate::place;

#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// Few files, short runs, one round, one OSD in memory: shows that it works, not how fast
    #[arg(long)]
    pub(crate) quick: bool,
    /// Run only these cases, in their own order: varmail, fileserver, createfiles, metadata, fsync, sqlite, build, zipf,
    /// filebench-varmail, filebench-fileserver, filebench-createfiles
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = case_name)]
    pub(crate) cases: Vec<String>,
    /// Length of one run, seconds [default: 10, with --quick 0.5]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// Rounds of runs per case, each with every side in turn [default: 5, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    pairs: Option<usize>,
    /// Seed of the choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Files of the loads that have many [default: 1000, with --quick 64]
    #[arg(long, value_name = "COUNT")]
    files: Option<u64>,
    /// The file that is written to at zipfian places, MiB [default: 512, with --quick 8]
    #[arg(long, value_name = "MIB")]
    zipf: Option<u64>,
    /// OSDs of the CephFS, and copies of what it holds [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT")]
    osds: Option<u32>,
    /// The folder of the scripts `start.sh` and `stop.sh` that bring the CephFS up; without it only the local folder is measured
    #[arg(long, env = "DESTAGE_CEPH", value_name = "PATH")]
    ceph: Option<PathBuf>,
    /// Where filebench is installed; without it the cases of that name are left out
    #[arg(long, env = "DESTAGE_TEST_FILEBENCH", value_name = "PATH")]
    filebench: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) run: RunArgs,
}

fn case_name(text: &str) -> std::result::Result<String, String> {
    one_of(text, CASES.iter().map(|case| case.name))
}

impl MountArgs {
    pub(crate) fn options(&self) -> Result<Options> {
        let quick = self.quick;
        let seconds = self.seconds.unwrap_or(if quick { 0.5 } else { 10.0 });
        let options = Options {
            bin: place::program(self.run.destage_bin.as_deref())?,
            time: Duration::try_from_secs_f64(seconds)?,
            pairs: self.pairs.unwrap_or(if quick { 1 } else { 5 }),
            seed: self.seed,
            files: self.files.unwrap_or(if quick { 64 } else { 1_000 }),
            zipf_mib: self.zipf.unwrap_or(if quick { 8 } else { 512 }),
            osds: self.osds.unwrap_or(if quick { 1 } else { 3 }),
            is_quick: quick,
            ceph: self.ceph.clone(),
            filebench: self.filebench.clone(),
            extra: self.run.destage_arg.clone(),
        };
        if options.pairs == 0 || seconds <= 0.0 || options.files < 16 || options.zipf_mib == 0 {
            return Err("--pairs, --seconds and --zipf must be above 0, --files at least 16".into());
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_case() {
        let help = MountArgs::augment_args(clap::Command::new("mount"))
            .render_long_help()
            .to_string()
            .replace('\n', " ");
        let words: Vec<&str> = help.split(&[' ', ','][..]).collect();
        for case in CASES {
            assert!(words.contains(&case.name), "{} is missing: {help}", case.name);
        }
    }
}
