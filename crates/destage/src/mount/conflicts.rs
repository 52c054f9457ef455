//! `destage mount conflicts`: what could not be written since others had changed the origin.

use super::commands::Mounted;
use crate::error::CliError;
use crate::output::{print, print_json};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConflictsCommand {
    /// Show all of them.
    List(Mounted),
    /// Show what is known of one, and where at the origin its content is.
    Show(ConflictArgs),
    /// Copy what this host had to a place of your choice, and forget the conflict.
    Restore(RestoreArgs),
    /// Forget one, and delete what was kept of it.
    Drop(ConflictArgs),
}

/// Flags of `show` and `drop`.
#[derive(Debug, clap::Args)]
pub(crate) struct ConflictArgs {
    /// Which one, as 'list' shows it.
    #[arg(value_name = "CONFLICT")]
    conflict: String,

    #[command(flatten)]
    mounted: Mounted,
}

/// Flags of `restore`.
#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// Which one, as 'list' shows it.
    #[arg(value_name = "CONFLICT")]
    conflict: String,

    /// Where it is to be copied to; must not be there.
    #[arg(value_name = "PATH")]
    to: PathBuf,

    #[command(flatten)]
    mounted: Mounted,
}

impl ConflictsCommand {
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match self {
            Self::List(mounted) => {
                let found = mounted.admin()?.command("conflicts", &["list".into()])?;
                print(&table(&found))
            }
            Self::Show(args) => print_json(&ask(&args.mounted, "show", &args.conflict)?),
            Self::Drop(args) => {
                ask(&args.mounted, "drop", &args.conflict)?;
                print("dropped\n")
            }
            Self::Restore(args) => args.run(),
        }
    }
}

impl RestoreArgs {
    fn run(&self) -> Result<(), CliError> {
        let about = ask(&self.mounted, "show", &self.conflict)?;
        let Some(kept) = about["kept"].as_str() else {
            return Err(CliError::usage(
                "nothing was kept of this conflict but that it happened: see 'show', then 'drop' it",
            ));
        };
        if self.to.symlink_metadata().is_ok() {
            let to = self.to.display();
            return Err(CliError::usage(format!(
                "{to} is there already: name a path that is free"
            )));
        }
        copy(Path::new(kept), &self.to).map_err(|error| {
            CliError::usage(format!(
                "cannot copy {kept} to {}: {error}; the conflict is still there",
                self.to.display()
            ))
        })?;
        ask(&self.mounted, "drop", &self.conflict)?;
        print(&format!("restored to {}\n", self.to.display()))
    }
}

fn ask(mounted: &Mounted, command: &str, conflict: &str) -> Result<Value, CliError> {
    mounted.admin()?.command("conflicts", &[command.to_owned(), conflict.to_owned()])
}

fn table(found: &Value) -> String {
    let mut text = String::new();
    for conflict in found.as_array().into_iter().flatten() {
        let field = |name: &str| conflict[name].as_str().unwrap_or("").to_owned();
        text.push_str(&format!("{}  {}\n", field("conflict"), field("reason")));
    }
    if text.is_empty() { "no conflicts\n".to_owned() } else { text }
}

/// A file or a folder with all that is in it.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut left = vec![(from.to_owned(), to.to_owned())];
    while let Some((from, to)) = left.pop() {
        let kind = from.symlink_metadata()?.file_type();
        if kind.is_dir() {
            fs::create_dir(&to)?;
            for entry in fs::read_dir(&from)? {
                let entry = entry?;
                left.push((entry.path(), to.join(entry.file_name())));
            }
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
        } else {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}
