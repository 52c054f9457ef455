//! `destage parked`: what the origin rejected, and what becomes of it.

use crate::admin::AdminArgs;
use crate::commands::show;
use crate::error::CliError;
use crate::output::{Format, print, print_json};
use destage_runtime::exit;
use serde::Deserialize;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What to do with parked writes.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ParkedCommand {
    /// All of them with their reasons.
    List(ListArgs),
    /// One of them with its changes.
    Show(OneArgs),
    /// Apply one, and what is parked behind it, in one transaction; or all, each with what is behind it.
    Retry(RetryArgs),
    /// Apply other changes in the place of one, and what is parked behind it, in one transaction.
    Edit(EditArgs),
    /// Give one up: it is deleted for good. What is parked behind it stays.
    Skip(OneArgs),
}

/// Flags of `parked list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Flags of `parked show` and `parked skip`.
#[derive(Debug, clap::Args)]
pub(crate) struct OneArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The write's number, as 'parked list' shows it.
    #[arg(value_name = "ID")]
    id: u64,
}

/// Flags of `parked retry`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which").required(true).args(["id", "all"]))]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The write's number, as 'parked list' shows it.
    #[arg(value_name = "ID")]
    id: Option<u64>,

    /// All that are parked, oldest first, as far as the origin takes them.
    #[arg(long)]
    all: bool,
}

/// Flags of `parked edit`.
#[derive(Debug, clap::Args)]
pub(crate) struct EditArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// The write's number, as 'parked list' shows it.
    #[arg(value_name = "ID")]
    id: u64,

    /// A file with the new changes: what 'parked show' prints, or its payload alone; - reads them from stdin.
    #[arg(value_name = "FILE")]
    changes: PathBuf,
}

#[derive(Deserialize)]
struct Line {
    id: u64,
    builds_on: Option<u64>,
    tables: Vec<String>,
    reason: String,
}

/// Shows or decides.
pub(crate) fn run(command: &ParkedCommand) -> Result<(), CliError> {
    let send = |admin: &AdminArgs, args: &[&str]| {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        admin.command_within(None, "parked", &args)
    };
    match command {
        ParkedCommand::List(args) => {
            let listed = send(&args.admin, &["list"])?;
            match args.format {
                Format::Json => print_json(&listed),
                Format::Table => print(&table(listed)?),
            }
        }
        ParkedCommand::Show(args) => show(&send(&args.admin, &["show", &args.id.to_string()])?),
        ParkedCommand::Skip(args) => show(&send(&args.admin, &["skip", &args.id.to_string()])?),
        ParkedCommand::Retry(args) => {
            let id = args.id.map_or_else(|| "all".to_owned(), |id| id.to_string());
            let answer = send(&args.admin, &["retry", &id])?;
            show(&answer)?;
            all_taken(&answer)
        }
        ParkedCommand::Edit(args) => {
            let changes = read(&args.changes)?;
            show(&send(&args.admin, &["edit", &args.id.to_string(), &changes])?)
        }
    }
}

/// Fails where the server has refused some of them.
fn all_taken(answer: &Value) -> Result<(), CliError> {
    match answer["refused"].as_str() {
        None => Ok(()),
        Some(first) => Err(CliError::new(
            exit::REFUSED,
            format!("{} writes are still parked: {first}", answer["parked"]),
        )),
    }
}

/// The changes in a file, without the blanks that make them easy to read: what a command may take is limited.
fn read(path: &Path) -> Result<String, CliError> {
    let mut text = String::new();
    let result = if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(path).map(|read| text = read)
    };
    match result {
        // What is no JSON is the server's to refuse, with its reason.
        Ok(()) => Ok(serde_json::from_str(&text).map_or(text, |json: Value| json.to_string())),
        Err(error) => Err(CliError::usage(format!(
            "cannot read the changes from {}: {error}",
            path.display()
        ))),
    }
}

fn table(listed: Value) -> Result<String, CliError> {
    let lines: Vec<Line> = serde_json::from_value(listed).map_err(|error| {
        let message = format!("the server's list cannot be read: {error}; is it another version?");
        CliError::new(exit::SERVER_UNREACHABLE, message)
    })?;
    if lines.is_empty() {
        return Ok("nothing is parked".into());
    }
    let mut text = format!("{:>10}  {:>10}  {:<20}  reason\n", "id", "builds on", "tables");
    for line in &lines {
        let builds_on = line.builds_on.map_or_else(|| "-".to_owned(), |id| id.to_string());
        let tables = line.tables.join(",");
        text.push_str(&format!(
            "{:>10}  {builds_on:>10}  {tables:<20}  {}\n",
            line.id, line.reason
        ));
    }
    Ok(text)
}
