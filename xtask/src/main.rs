//! Everything that developing Destage takes, one command each: `cargo xtask test` is what the CI runs.

mod bench;
mod book;
mod cachesim;
mod clients;
mod faults;
mod ferretdb;
mod file_suites;
mod go;
mod guest;
mod leftovers;
mod licences;
mod mutants;
mod package;
mod programs;
mod servers;
mod soak;
mod steps;
mod suites;
mod test;
mod tools;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Tests, benchmarks and soak runs of Destage.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Formatting, lints, unit and integration tests, the real binary before real clients and databases, a short soak.
    ///
    /// Installs what is missing through apt-get (as root), pip, go and npm, builds FerretDB, and starts a private PostgreSQL and MariaDB that end with
    /// the run.
    Test {
        /// Run one step (fmt, book, clippy, unit, build, e2e, bench, package, soak), or the end-to-end tests whose names contain this.
        #[arg(long, value_name = "NAME")]
        only: Option<String>,
        /// Test the build that users get, with link-time optimisation, instead of one that is built quickly.
        #[arg(long)]
        release: bool,
    },
    /// Install what the tests need, start the private databases, and run a command (by default: a shell) that finds them in its environment.
    ///
    /// So `cargo xtask with cargo test -p destage --test e2e whose::` runs a few tests on a development build.
    With {
        /// The command and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Crash and outage tests with new seeds until the time is up; ends with `reproduce:` lines for what failed.
    Soak(soak::SoakArgs),
    /// The tests of `destage mount` alone: suites that others wrote for file systems, applications, crashes; the long ones, too.
    ///
    /// Needs the suites' archives and the scripts for a CephFS, in `../shared/suites` and `../shared/ceph` beside the checkout or
    /// where DESTAGE_SUITES and DESTAGE_CEPH say. Starts a CephFS that ends with the run.
    Suites(file_suites::SuitesArgs),
    /// Put each fault of `xtask/faults.toml` into the code, one at a time, and show which of them no test notices.
    ///
    /// In a git worktree of its own, which holds what is committed. Takes a minute or so for each.
    Mutants(mutants::MutantsArgs),
    /// Build what users install (static binary, .deb, archive, image, checksums), install each and use it. In `target/package`.
    Package(package::PackageArgs),
    /// Build the book of all pages in `target/book`. Dead links, and pages that docs/SUMMARY.md does not name, are refused.
    Book,
    /// Build and run the benchmarks; everything after `bench` goes to them.
    Bench {
        /// Arguments of `destage-bench`, for example `data --quick`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Test { only, release } => test::run(only.as_deref(), release),
        Task::With { command } => test::with(&command),
        Task::Soak(arguments) => soak::run(&arguments),
        Task::Suites(arguments) => file_suites::run(&arguments),
        Task::Mutants(arguments) => mutants::run(&arguments),
        Task::Book => book::build().map(|page| {
            println!("{}", page.display());
            true
        }),
        Task::Package(arguments) => package::run(&arguments),
        Task::Bench { arguments } => bench::run(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// What a task says when it cannot go on.
type Result<T> = std::result::Result<T, String>;

/// The workspace's folder.
fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask is a folder of the workspace").to_owned()
}

/// The build folder, as cargo chooses it.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The cargo that runs this, so that a toolchain override holds for the steps too.
fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned())
}
