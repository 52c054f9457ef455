//! `destage check`: everything that a start would check, and changes nothing anywhere.

use crate::block;
use crate::error::CliError;
use crate::file;
use crate::output::{Format, print, print_json};
use crate::sample::FrontEnd;
use crate::serve;
use destage_runtime::findings::Findings;
use serde_json::json;
use std::fmt::Write;
use std::path::PathBuf;

/// Flags of `check`.
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The settings file, as for 'destage serve' or 'destage block serve'.
    #[arg(long, env = "DESTAGE_CONFIG", value_name = "FILE")]
    config: PathBuf,

    /// Whose settings they are. Unless told, the keys tell: those of a volume are a block server's.
    #[arg(long, value_enum, value_name = "FRONT_END")]
    front_end: Option<FrontEnd>,

    /// The form of the result.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Looks at everything and says what it is like.
pub(crate) fn run(args: &CheckArgs) -> Result<(), CliError> {
    let front_end = args.front_end()?;
    let findings = match front_end {
        FrontEnd::Serve => destage_data::serve::check(&serve::checked(&args.config)?),
        FrontEnd::Block => destage_block::serve::check(&block::of_file(&args.config)?),
    };
    match args.format {
        Format::Table => print(&table(&findings))?,
        Format::Json => print_json(&as_json(&findings))?,
    }
    match findings.first_refusal() {
        None => Ok(()),
        Some(error) => Err(CliError::new(error.exit_code(), "a start would be refused: see above")),
    }
}

impl CheckArgs {
    fn front_end(&self) -> Result<FrontEnd, CliError> {
        if let Some(front_end) = self.front_end {
            return Ok(front_end);
        }
        let is_block = file::read(&self.config, |text| {
            let keys = file::keys(text)?;
            Ok(["volume", "cache", "fuse"].into_iter().any(|key| keys.contains_key(key)))
        })?;
        Ok(if is_block { FrontEnd::Block } else { FrontEnd::Serve })
    }
}

fn table(findings: &Findings) -> String {
    let mut out = String::from("settings        can be read, and fit together\n");
    for finding in findings.all() {
        let (mark, text) = match &finding.result {
            Ok(text) => ("  ", text.clone()),
            Err(error) => ("! ", error.to_string()),
        };
        let _ = writeln!(out, "{mark}{}: {text}", finding.what);
    }
    let end = match findings.first_refusal() {
        None => "a start would succeed, as far as can be told without claiming the origin\n",
        Some(_) => "a start would be refused\n",
    };
    out + end
}

fn as_json(findings: &Findings) -> serde_json::Value {
    let each = findings.all().iter().map(|finding| match &finding.result {
        Ok(text) => json!({ "what": finding.what, "ok": true, "text": text }),
        Err(error) => json!({
            "what": finding.what, "ok": false, "text": error.to_string(), "exit_code": error.exit_code(),
        }),
    });
    json!({ "ok": findings.first_refusal().is_none(), "findings": each.collect::<Vec<_>>() })
}
