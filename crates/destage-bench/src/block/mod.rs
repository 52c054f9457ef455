//! `destage-bench block`: the cases in their order, then the report.

mod bench;
mod cases;
mod cli;
pub(crate) mod clients;
mod files;
mod steady;
mod streams;

use std::path::Path;

use self::bench::{BlockBench, Options};
use self::cases::CASES;
pub(crate) use self::cli::BlockArgs;
pub(crate) use self::clients::Progress;
pub(crate) use self::files::{FileLoad, FileMount, FileSystem, Worker, check};
use crate::Result;
use crate::device::Profile;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;
use crate::servers::{BlockServer, QemuNbd};

/// Runs the chosen cases.
///
/// # Errors
///
/// The machine cannot be read, or at least one case could not be measured; the report of the others is written all the
/// same.
pub(crate) fn run(arguments: &BlockArgs) -> Result<()> {
    let options = arguments.options()?;
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the logs are kept in {}", folder.keep().display());
    }
    let mut report = new_report(&options, &path)?;
    let mut bench = BlockBench::new(options, &path);
    for (name, body) in CASES {
        let chosen = arguments.cases.is_empty() || arguments.cases.iter().any(|it| it == name);
        if chosen && let Err(error) = body(&mut bench) {
            bench.fail(&format!("{name}: {error}"));
        }
    }
    report.figures = bench.figures;
    report.tables = bench.tables;
    report.memory = bench.memory;
    report.failures = bench.failures;
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

fn new_report(options: &Options, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let bin = options.bin.to_string_lossy().into_owned();
    for (name, program) in [("Destage", bin.as_str()), ("fio", "fio"), ("qemu-nbd", "qemu-nbd")] {
        let version = output(program, &["--version"]).unwrap_or_else(|| "not installed".into());
        machine.versions.push((name.into(), version));
    }
    let serve = format!("--staleness {} {}", BlockServer::STALENESS, options.extra.join(" "));
    let mut settings = vec![
        (
            "Destage's settings".to_owned(),
            format!("`{}`, the rest as each case says", serve.trim()),
        ),
        ("qemu-nbd's settings".to_owned(), format!("`{}`", QemuNbd::SETTINGS.join(" "))),
        (
            "blocks in use".to_owned(),
            format!("{} MiB unless a case says otherwise", options.region >> 20),
        ),
    ];
    let disks = Profile::ALL.iter().map(|disk| ("modelled disk".to_owned(), disk.summary()));
    settings.extend(disks);
    let report = Report {
        front_end: "block",
        command: place::command_line(),
        seed: options.seed,
        seconds: options.time.as_secs_f64(),
        pairs: options.pairs,
        machine,
        settings,
        ..Report::default()
    };
    eprintln!("{}", report.markdown());
    Ok(report)
}
