//! `destage status`: what a running server does.

use crate::admin::AdminArgs;
use crate::error::CliError;
use crate::output::{Format, print};
use destage_runtime::exit;
use destage_runtime::status::Report;
use std::io::IsTerminal;
use std::time::Duration;

/// Flags of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) admin: AdminArgs,

    /// Show it again every so many seconds until interrupted; 1 to 3600, 2 where no number is given.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600),
        value_name = "SECONDS"
    )]
    watch: Option<u64>,

    /// Of a block server only these volumes, by their export names. May be given several times.
    #[arg(long, value_name = "NAME")]
    volume: Vec<String>,

    /// Only whether clients are served as the policy says: exit code 20 with the reason if they are not. For health checks.
    #[arg(long, conflicts_with_all = ["watch", "volume"])]
    ready: bool,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Shows the report, once or again and again.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    if args.ready {
        return print(&args.admin.get("/readyz")?);
    }
    let Some(seconds) = args.watch else {
        return print(&show(args)?);
    };
    let clear = args.format == Format::Table && std::io::stdout().is_terminal();
    loop {
        // A server that restarts comes back into view by itself.
        let text = match show(args) {
            // A program that reads JSON gets nothing else.
            Err(error) if args.format == Format::Json => {
                tracing::warn!("{error}");
                None
            }
            shown => Some(shown.unwrap_or_else(|error| format!("{error}\n"))),
        };
        // Home, the text, then whatever the last one left behind is erased: no flicker.
        if let Some(text) = text {
            print(&if clear { format!("\x1b[H\x1b[2J{text}") } else { text })?;
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn show(args: &StatusArgs) -> Result<String, CliError> {
    let body = args.admin.get("/status")?;
    if args.format == Format::Json && args.volume.is_empty() {
        return Ok(body);
    }
    let mut report: Report = serde_json::from_str(&body).map_err(|e| {
        let addr = &args.admin.admin;
        let message = format!("{addr} does not answer as a destage server does: {e}");
        CliError::new(exit::SERVER_UNREACHABLE, message)
    })?;
    keep_volumes(&mut report, &args.volume)?;
    match args.format {
        Format::Json => serde_json::to_string(&report)
            .map_err(|error| CliError::new(exit::BUG, format!("failed to write JSON: {error}"))),
        Format::Table => Ok(report.to_table()),
    }
}

/// Leaves the volumes of these names; all of them where none is named.
fn keep_volumes(report: &mut Report, names: &[String]) -> Result<(), CliError> {
    let known = |name: &&String| report.volumes.iter().any(|volume| volume.name == **name);
    if let Some(missing) = names.iter().find(|name| !known(name)) {
        let all: Vec<&str> = report.volumes.iter().map(|volume| &*volume.name).collect();
        return Err(CliError::usage(match all.len() {
            0 => "this server has no volumes: --volume is for block servers".to_owned(),
            _ => format!("there is no volume '{missing}': the volumes are {}", all.join(", ")),
        }));
    }
    if !names.is_empty() {
        report.volumes.retain(|volume| names.contains(&volume.name));
    }
    Ok(())
}
