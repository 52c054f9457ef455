//! `destage journal`: looking at, checking, exporting and repairing the journal in a data folder.

use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_data::catalog::Catalog;
use destage_data::schema::Schema;
use destage_data::serve::origin_of;
use destage_data::{parked, settings};
use destage_journal::{
    CheckReport, DirDisk, Disk, Error, ErrorKind, Position, RepairReport, SegmentReport,
    SegmentState, check_with, export_with, inspect_with, repair,
};
use destage_runtime::exit;
use destage_runtime::foreign::escaped;
use destage_runtime::human::{bytes, count};
use destage_runtime::progress;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Flags of `journal`.
#[derive(Debug, clap::Args)]
pub(crate) struct JournalArgs {
    #[command(subcommand)]
    command: JournalCommand,
}

#[derive(Debug, clap::Subcommand)]
enum JournalCommand {
    /// List the journal's files and what each holds; changes nothing, works beside a running server.
    Inspect(LookArgs),
    /// Read the whole journal as a start would, changing nothing; exit code 13 if it is damaged.
    Check(LookArgs),
    /// Write the write groups that can be read as JSON, one per line.
    Export(ExportArgs),
    /// Cut a damaged journal at the place that the refusal names; the damaged files are kept aside.
    Repair(RepairArgs),
}

#[derive(Debug, clap::Args)]
struct DataArgs {
    /// The server's data folder.
    #[arg(long, default_value = "./destage-data", value_name = "DIR")]
    data: PathBuf,
}

#[derive(Debug, clap::Args)]
struct LookArgs {
    #[command(flatten)]
    data: DataArgs,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Debug, clap::Args)]
struct ExportArgs {
    #[command(flatten)]
    data: DataArgs,

    /// The first group to write; older ones may have been reclaimed.
    #[arg(long, default_value = "0", value_name = "LSN")]
    from: u64,
}

#[derive(Debug, clap::Args)]
struct RepairArgs {
    #[command(flatten)]
    data: DataArgs,

    /// Where to cut, as 'destage journal check' and the server's refusal name it.
    #[arg(long, value_name = "SEGMENT:OFFSET")]
    cut: Position,

    /// Accept that the groups behind the cut are lost, but for those that the origin has decided. Without it, what would be
    /// lost is shown and nothing is changed.
    #[arg(long)]
    give_up: bool,
}

/// Does what was asked.
pub(crate) fn run(args: &JournalArgs) -> Result<(), CliError> {
    match &args.command {
        JournalCommand::Inspect(args) => {
            let disk = look(&args.data)?;
            let inspected =
                progress::of_segments("reading the journal", |shown| inspect_with(&*disk, shown));
            let reports = inspected.map_err(unusable)?;
            let origin = origin_of(&args.data.data).filter(|_| !reports.is_empty());
            match args.format {
                Format::Table => {
                    let origin = origin.map_or_else(String::new, |origin| {
                        format!("writes for the origin {}\n", escaped(&origin))
                    });
                    print(&(origin + &segments_table(&reports)))
                }
                Format::Json => {
                    print_json(&json!({ "origin": origin, "segments": segments_json(&reports) }))
                }
            }
        }
        JournalCommand::Check(args) => run_check(args),
        JournalCommand::Export(args) => run_export(args),
        JournalCommand::Repair(args) => {
            let disk = DirDisk::open(folder(&args.data)?).map_err(failed)?;
            print(&repaired(&repair(&disk, args.cut, args.give_up).map_err(failed)?))
        }
    }
}

/// The folder of the journal inside the data folder; a journal's own folder is taken too.
fn folder(args: &DataArgs) -> Result<PathBuf, CliError> {
    let inside = settings::journal_dir(&args.data);
    let missing = |path: &Path| {
        CliError::usage(format!(
            "there is no folder {}: give the server's data folder by --data",
            path.display()
        ))
    };
    match (inside.is_dir(), args.data.is_dir()) {
        (true, _) => Ok(inside),
        (false, true) => Ok(args.data.clone()),
        (false, false) => Err(missing(&args.data)),
    }
}

fn look(args: &DataArgs) -> Result<Arc<dyn Disk>, CliError> {
    Ok(Arc::new(DirDisk::open_read_only(folder(args)?).map_err(unusable)?))
}

/// Where what was asked for may be wrong: a cut at another place, groups that are no longer there.
fn failed(error: Error) -> CliError {
    match error.kind() {
        ErrorKind::Invalid => CliError::usage(error),
        _ => unusable(error),
    }
}

fn unusable(error: Error) -> CliError {
    let way_on = match error.position() {
        Some(at) => format!(
            "; 'destage journal export' saves what can be read, 'destage journal repair --cut {at}' \
             shows what cutting it there would lose"
        ),
        None => String::new(),
    };
    CliError::new(exit::JOURNAL_UNUSABLE, format!("{error}{way_on}"))
}

fn run_check(args: &LookArgs) -> Result<(), CliError> {
    let disk = look(&args.data)?;
    let checked = progress::of_segments("reading the journal", |shown| check_with(&*disk, shown));
    let Some(report) = checked.map_err(unusable)? else {
        return print(match args.format {
            Format::Table => "there is no journal yet",
            Format::Json => "null",
        });
    };
    match args.format {
        Format::Table => print(&check_table(&report)),
        Format::Json => print_json(&json!({
            "uuid": report.uuid,
            "incarnation": report.incarnation,
            "first_lsn": report.first_lsn,
            "last_lsn": report.last_lsn,
            "segments": report.segments,
            "clean_shutdown": report.clean_shutdown,
            "torn": report.torn.as_ref().map(|torn| json!({
                "at": torn.at.to_string(),
                "bytes": torn.bytes,
            })),
        })),
    }
}

fn check_table(report: &CheckReport) -> String {
    let end = match &report.torn {
        Some(torn) => {
            format!("torn at {}: the next start cuts {}", torn.at, bytes(torn.bytes))
        }
        None if report.clean_shutdown => "closed in order".into(),
        None => "not closed: the process is running or was killed".into(),
    };
    format!(
        "journal {} is sound\n  incarnation  {}\n  groups       {} to {} in {} segments\n  end          \
         {end}\n",
        report.uuid, report.incarnation, report.first_lsn, report.last_lsn, report.segments
    )
}

fn segments_table(reports: &[SegmentReport]) -> String {
    let width = reports.iter().map(|report| report.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for report in reports {
        let size = bytes(report.bytes);
        let _ = writeln!(out, "{:<width$}  {size:>10}  {}", report.name, state(&report.state));
    }
    if out.is_empty() { "there is no journal yet\n".into() } else { out }
}

fn state(state: &SegmentState) -> String {
    match state {
        SegmentState::Begun {
            first_lsn,
            last_lsn,
            batches,
            records,
            incarnations,
            end,
            problem,
            ..
        } => {
            let groups = match records {
                0 => "no groups".into(),
                _ => format!("{} groups, {first_lsn} to {last_lsn}", count(*records)),
            };
            let problem = problem.as_ref().map_or_else(String::new, |what| format!("; {what}"));
            format!(
                "{groups}, {} batches, {} used, incarnations {} to {}{problem}",
                count(*batches),
                bytes(*end),
                incarnations.0,
                incarnations.1
            )
        }
        SegmentState::NotBegun => "ready, or damaged at its start: 'check' tells".into(),
        SegmentState::Spare => "spare".into(),
        SegmentState::Version(version) => format!("of format version {version}, not readable here"),
        SegmentState::Other => "not a part of the journal".into(),
    }
}

fn segments_json(reports: &[SegmentReport]) -> Vec<Value> {
    let segment = |report: &SegmentReport| {
        let mut value = match &report.state {
            SegmentState::Begun {
                first_lsn,
                last_lsn,
                batches,
                records,
                incarnations,
                catalog_bytes,
                end,
                problem,
            } => json!({
                "state": "begun",
                "first_lsn": first_lsn,
                "last_lsn": last_lsn,
                "batches": batches,
                "groups": records,
                "incarnation_first": incarnations.0,
                "incarnation_last": incarnations.1,
                "catalog_bytes": catalog_bytes,
                "end": end,
                "problem": problem,
            }),
            SegmentState::NotBegun => json!({ "state": "not begun" }),
            SegmentState::Spare => json!({ "state": "spare" }),
            SegmentState::Version(version) => json!({ "state": "version", "version": version }),
            SegmentState::Other => json!({ "state": "other" }),
        };
        value["name"] = report.name.clone().into();
        value["bytes"] = report.bytes.into();
        value
    };
    reports.iter().map(segment).collect()
}

fn run_export(args: &ExportArgs) -> Result<(), CliError> {
    let disk = look(&args.data)?;
    // What is written afterwards shows by itself how far it is.
    let exported =
        progress::of_segments("reading the journal", |shown| export_with(&disk, args.from, shown));
    let (mut records, damage) = exported.map_err(failed)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    // The names that the journal keeps with its records, for as long as they stay the same.
    let mut known: Option<(Vec<u8>, Option<Schema>)> = None;
    while let Some(record) = records.advance().map_err(failed)? {
        let mut line = json!({
            "lsn": record.lsn,
            "time": time(record.stamp_ns),
            "domain": record.domain,
        });
        if known.as_ref().is_none_or(|(bytes, _)| bytes[..] != record.catalog[..]) {
            let schema = Catalog::decode(record.catalog).map(|catalog| catalog.to_schema());
            known = Some((record.catalog.to_vec(), schema));
        }
        let schema = known.as_ref().and_then(|(_, schema)| schema.as_ref());
        match schema.map(|schema| parked::encode(schema, record.payload)) {
            Some(Ok(text)) => line["changes"] = changes(text),
            Some(Err(_)) | None => line["bytes_hex"] = hex(record.payload).into(),
        }
        written(writeln!(out, "{line}"))?;
    }
    written(out.flush())?;
    damage.map_or(Ok(()), |error| Err(failed(error)))
}

/// The list of changes in a group's text.
fn changes(text: String) -> Value {
    let mut group = serde_json::from_str::<Value>(&text).unwrap_or(Value::Null);
    match group.get_mut("changes") {
        Some(changes) => changes.take(),
        None => Value::String(text),
    }
}

fn written(result: std::io::Result<()>) -> Result<(), CliError> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(exit::OK.into()),
        other => other.map_err(|e| CliError::unwritable(format!("failed to write to stdout: {e}"))),
    }
}

fn time(nanos: u64) -> String {
    jiff::Timestamp::from_nanosecond(nanos.into())
        .map_or_else(|_| nanos.to_string(), |stamp| stamp.to_string())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn repaired(report: &RepairReport) -> String {
    let remains = match report.last_lsn {
        Some(last) => format!("its newest group is {last}"),
        None => "nothing remains; the next start makes a new journal".into(),
    };
    let first = report.last_lsn.map_or(1, |last| last + 1);
    let lost = if report.lost_to_lsn >= first {
        format!(
            "groups {first} to {}, at least, are given up, but for those that the origin has decided",
            report.lost_to_lsn
        )
    } else {
        "no group was recognised behind the cut".into()
    };
    format!(
        "the journal was cut at {}: {remains}\n{lost}\nkept aside: {}\n",
        report.cut,
        report.kept_aside.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_bytes_are_shown_for_people() {
        assert_eq!(time(1_700_000_000_500_000_000), "2023-11-14T22:13:20.5Z");
        assert_eq!(hex(&[0, 0xab, 255]), "00abff");
        assert_eq!(changes(r#"{"changes":[{"op":"delete"}]}"#.into()), json!([{ "op": "delete" }]));
    }

    #[test]
    fn a_data_folder_is_found_with_or_without_its_journal_inside() {
        let dir = tempfile::tempdir().unwrap();
        let args = |path: &Path| DataArgs { data: path.into() };
        assert_eq!(folder(&args(dir.path())).unwrap(), dir.path());
        let inside = settings::journal_dir(dir.path());
        std::fs::create_dir(&inside).unwrap();
        assert_eq!(folder(&args(dir.path())).unwrap(), inside);
        let error = folder(&args(&dir.path().join("no"))).unwrap_err();
        assert!(error.code == 2 && error.to_string().contains("--data"), "{error}");
    }

    #[test]
    fn an_empty_folder_has_no_journal_yet() {
        let dir = tempfile::tempdir().unwrap();
        let disk = DirDisk::open(dir.path()).unwrap();
        assert_eq!(destage_journal::check(&disk).unwrap(), None);
        assert!(segments_table(&[]).contains("no journal yet"));
    }

    #[test]
    fn a_repair_says_what_remains_and_what_is_lost() {
        let report = RepairReport {
            cut: Position { segment: 3, offset: 4096 },
            last_lsn: Some(41),
            lost_to_lsn: 57,
            kept_aside: vec!["3.damaged".into()],
        };
        let text = repaired(&report);
        assert!(text.contains("cut at 3:4096: its newest group is 41"), "{text}");
        assert!(text.contains("groups 42 to 57") && text.contains("3.damaged"), "{text}");
    }
}
