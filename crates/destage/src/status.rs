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
    admin: AdminArgs,

    /// Show it again every so many seconds until interrupted; 1 to 3600, 2 where no number is given.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "2",
        value_parser = clap::value_parser!(u64).range(1..=3600),
        value_name = "SECONDS"
    )]
    watch: Option<u64>,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Shows the report, once or again and again.
pub(crate) fn run(args: &StatusArgs) -> Result<(), CliError> {
    let Some(seconds) = args.watch else {
        return print(&show(args)?);
    };
    let clear = args.format == Format::Table && std::io::stdout().is_terminal();
    loop {
        // A server that restarts comes back into view by itself.
        let text = show(args).unwrap_or_else(|error| format!("{error}\n"));
        // Home, the text, then whatever the last one left behind is erased: no flicker.
        print(&if clear { format!("\x1b[H\x1b[2J{text}") } else { text })?;
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

fn show(args: &StatusArgs) -> Result<String, CliError> {
    let body = args.admin.get("/status")?;
    match args.format {
        Format::Json => Ok(body),
        Format::Table => {
            let report: Report = serde_json::from_str(&body).map_err(|e| {
                let addr = &args.admin.admin;
                let message = format!("{addr} does not answer as a destage server does: {e}");
                CliError::new(exit::SERVER_UNREACHABLE, message)
            })?;
            Ok(report.to_table())
        }
    }
}
