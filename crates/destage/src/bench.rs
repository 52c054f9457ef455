//! `destage bench`: hands over to `destage-bench`, the program of the benchmarks, beside this one or on the PATH.

use crate::error::CliError;
use destage_runtime::exit;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "destage-bench";
/// Where the benchmarks look for the program to measure.
const MEASURED: &str = "DESTAGE_BIN";

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct BenchArgs {
    /// What to measure and how: ycsb, bg, tpcc, data, block, mount, sim, or --help for all of them.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENTS"
    )]
    arguments: Vec<OsString>,
}

/// Replaces this process, so that signals, output and exit code are those of the benchmark.
pub(crate) fn run(args: &BenchArgs) -> Result<(), CliError> {
    let own = env::current_exe()
        .map_err(|error| CliError::new(exit::BUG, format!("the program's own path: {error}")))?;
    let beside = own.parent().into_iter().map(Path::to_owned);
    let path = env::var_os("PATH").unwrap_or_default();
    let program = find(beside.chain(env::split_paths(&path))).ok_or_else(|| {
        CliError::usage(format!(
            "{PROGRAM} is neither beside {} nor on the PATH: cargo build --release -p {PROGRAM} makes it",
            own.display()
        ))
    })?;
    let mut command = Command::new(&program);
    command.args(&args.arguments);
    if env::var_os(MEASURED).is_none() {
        command.env(MEASURED, &own);
    }
    let error = command.exec();
    let message = format!("{} does not start: {error}", program.display());
    Err(CliError::new(exit::BENCHMARK_FAILED, message))
}

fn find(folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join(PROGRAM)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_folder_that_has_it_counts() {
        let folders = [(); 3].map(|()| tempfile::tempdir().expect("a folder"));
        let paths = || folders.iter().map(|folder| folder.path().to_owned());
        assert_eq!(find(paths()), None);
        for folder in [2, 1] {
            let program = folders[folder].path().join(PROGRAM);
            std::fs::write(&program, "").expect("it can be written");
            assert_eq!(find(paths()), Some(program));
        }
    }
}
