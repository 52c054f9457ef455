//! The arguments that all comparisons have.

use std::path::PathBuf;

use clap::Args;

/// The name of one of these.
///
/// # Errors
/// It is none of them.
pub(crate) fn one_of(
    text: &str,
    names: impl IntoIterator<Item = &'static str>,
) -> Result<String, String> {
    let names: Vec<&str> = names.into_iter().collect();
    if names.contains(&text) {
        Ok(text.to_owned())
    } else {
        Err(format!("unknown case: use one of {}", names.join(", ")))
    }
}

/// What every comparison asks: the program, the place, where the figures go.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The program to measure [default: `destage` beside this program]
    #[arg(long, env = "DESTAGE_BIN", hide_env = true, value_name = "PATH")]
    pub(crate) destage_bin: Option<PathBuf>,
    /// A further argument for the server that is measured; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    pub(crate) destage_arg: Vec<String>,
    /// Folder for the servers' and the caches' data, on the disk to be measured; removed afterwards [default: the build's
    /// target folder]
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the data and the logs
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write every run's figures to this file
    #[arg(long, value_name = "PATH")]
    pub(crate) json: Option<PathBuf>,
    /// Put the tables between the markers of this document
    #[arg(long, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
}
