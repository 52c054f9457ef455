//! `destage mount conflicts`: what could not be written since others had changed the origin.

use super::commands::Mounted;
use crate::error::CliError;
use crate::output::{print, print_json};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

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
                "no bytes were kept of this conflict, as only attributes or a name were changed here: see 'show', then 'drop' it",
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
        set(&about, &self.to).map_err(|error| {
            CliError::usage(format!(
                "copied to {}, but not with all its attributes: {error}; the conflict is still there: 'drop' it once you have all \
                 that 'show' tells of",
                self.to.display()
            ))
        })?;
        // What was kept is deleted next.
        make_durable(&self.to).map_err(|error| {
            CliError::usage(format!(
                "copied to {}, but a crash may still lose that: {error}; the conflict is still there: 'drop' it once the copy is \
                 durable",
                self.to.display()
            ))
        })?;
        ask(&self.mounted, "drop", &self.conflict)?;
        let others = if parts(&about) {
            let ranges = &about["ranges"];
            format!(
                "; this host's are only these bytes [offset, length], all others are zeros: {ranges}"
            )
        } else {
            String::new()
        };
        print(&format!("restored to {}{others}\n", self.to.display()))
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

/// Whether only parts of a file are this host's.
fn parts(about: &Value) -> bool {
    let Some(ranges) = about["ranges"].as_array() else { return false };
    let mine: u64 = ranges.iter().filter_map(|range| range[1].as_u64()).sum();
    about["packed"] != true && about["size"].as_u64().is_some_and(|size| mine < size)
}

/// Gives a copy the attributes that the file had on this host, as far as they were kept apart from it.
fn set(about: &Value, to: &Path) -> std::io::Result<()> {
    let number = |name: &str| about[name].as_u64().and_then(|number| u32::try_from(number).ok());
    if let (Some(uid), Some(gid)) = (number("uid"), number("gid")) {
        lchown(to, Some(uid), Some(gid))?;
    }
    if let Some(mode) = number("mode") {
        fs::set_permissions(to, fs::Permissions::from_mode(mode & 0o7777))?;
    }
    for xattr in about["xattrs"].as_array().into_iter().flatten() {
        let (name, value) = (xattr["name"].as_str(), xattr["value"].as_str());
        if let (Some(name), Some(value)) = (name, value.and_then(bytes_of)) {
            rustix::fs::lsetxattr(to, name, &value, rustix::fs::XattrFlags::empty())?;
        }
    }
    if let Some(mtime) = about["mtime"].as_u64() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(mtime);
        fs::File::open(to)?.set_modified(time)?;
    }
    Ok(())
}

/// Bytes of which each is written as two digits.
fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

/// Has a copy survive a crash, with all that is in it and with its name.
fn make_durable(to: &Path) -> std::io::Result<()> {
    sync(to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    fs::File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn sync(path: &Path) -> std::io::Result<()> {
    let kind = path.symlink_metadata()?.file_type();
    if kind.is_dir() {
        for entry in fs::read_dir(path)? {
            sync(&entry?.path())?;
        }
    }
    // Links and special files are all in their folder.
    if kind.is_dir() || kind.is_file() { fs::File::open(path)?.sync_all() } else { Ok(()) }
}

/// A file or a folder with all that is in it, and all that is known of these.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut command = Command::new("cp");
    command.args(["--archive", "--no-target-directory", "--"]).arg(from).arg(to);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
