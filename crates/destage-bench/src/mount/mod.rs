//! `destage-bench mount`: the same loads of files on a CephFS, on a local folder, and on a mount in front of each, in turn.
//!
//! A run is counted twice: when the load ends, and when everything that it wrote is at the origin. What the OSDs of the CephFS
//! received is asked of them at the same two moments.

mod cases;
mod ceph;
mod cli;
mod loads;
mod options;
mod sides;
mod table;

use std::path::Path;

pub(crate) use self::cli::MountArgs;
use crate::Result;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;

/// Runs the chosen cases.
///
/// # Errors
///
/// This is not root, there is no CephFS, or at least one case could not be measured; the report of the others is written all
/// the same.
pub(crate) fn run(arguments: &MountArgs) -> Result<()> {
    let options = arguments.options()?;
    if !rustix::process::geteuid().is_root() {
        return Err("loads of files are measured on mounts: run them as root".into());
    }
    let folder = place::run_folder(arguments.run.dir.as_deref())?;
    let path = folder.path().to_owned();
    if arguments.run.keep {
        eprintln!("the logs are kept in {}", folder.keep().display());
    }
    let mut report = new_report(&options, &path)?;
    let sides = sides::Sides::start(&options, &path)?;
    for case in cases::CASES {
        let is_chosen =
            arguments.cases.is_empty() || arguments.cases.iter().any(|it| it == case.name);
        if !is_chosen {
            continue;
        }
        match case.measure(&options, &sides) {
            Ok(table) => report.tables.push(table),
            Err(error) => {
                eprintln!("{}: {error}", case.name);
                report.failures.push(format!("{}: {error}", case.name));
            }
        }
    }
    report.publish(arguments.run.json.as_deref(), arguments.run.output.as_deref())
}

fn new_report(options: &options::Options, dir: &Path) -> Result<Report> {
    let mut machine = Machine::look(dir)?;
    let bin = options.bin.to_string_lossy().into_owned();
    for (name, program) in [("Destage", bin.as_str()), ("Ceph", "ceph-fuse"), ("fio", "fio")] {
        let version = output(program, &["--version"]).unwrap_or_else(|| "not installed".into());
        machine.versions.push((name.into(), version));
    }
    let settings = vec![
        (
            "CephFS".to_owned(),
            format!("{} OSDs, as many copies, on the loopback interface", options.osds),
        ),
        ("Destage's settings".to_owned(), format!("the defaults {}", options.extra.join(" "))),
        ("files".to_owned(), format!("{} unless a case says otherwise", options.files)),
    ];
    let report = Report {
        front_end: "mount",
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
