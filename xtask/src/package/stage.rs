//! The files of an installation, in a folder as they are to stand in the system.

use super::{Package, create, output, read, write};
use crate::{Result, root};
use flate2::{Compression, GzBuilder};
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Settings that an administrator changes.
pub(super) const SETTINGS: &str = "etc/destage/destage.toml";
const DOCS: &str = "usr/share/doc/destage";

/// Copies and makes everything; the folder.
pub(super) fn make(package: &Package) -> Result<PathBuf> {
    let stage = package.out.join("stage");
    let binary = stage.join("usr/bin/destage");
    write(&binary, &read(&package.binary)?)?;
    mode(&binary, 0o755)?;
    // What has symbols left is stripped here: packages of the test build are as those of users.
    output(Command::new("strip").args(["--strip-all"]).arg(&binary))?;
    let ask = |arguments: &[&str]| output(Command::new(&binary).args(arguments));
    for (shell, place) in [
        ("bash", "usr/share/bash-completion/completions/destage"),
        ("zsh", "usr/share/zsh/vendor-completions/_destage"),
        ("fish", "usr/share/fish/vendor_completions.d/destage.fish"),
    ] {
        write(&stage.join(place), ask(&["completions", shell])?.as_bytes())?;
    }
    manual(&binary, &stage)?;
    for unit in ["destage.service", "destage-block@.service"] {
        let text = read(&root().join("packaging/systemd").join(unit))?;
        write(&stage.join("lib/systemd/system").join(unit), &text)?;
    }
    write(&stage.join(SETTINGS), ask(&["settings", "serve"])?.as_bytes())?;
    mode(&stage.join(SETTINGS), 0o640)?;
    mode(&stage.join("etc/destage"), 0o750)?;
    for front_end in ["serve", "block"] {
        let sample = stage.join(DOCS).join(format!("examples/{front_end}.toml"));
        write(&sample, ask(&["settings", front_end])?.as_bytes())?;
    }
    let drop_in = "destage-block-root.conf";
    let text = read(&root().join("packaging/systemd").join(drop_in))?;
    write(&stage.join(DOCS).join("examples").join(drop_in), &text)?;
    documents(&stage)?;
    Ok(stage)
}

fn manual(binary: &Path, stage: &Path) -> Result<()> {
    let folder = stage.join("usr/share/man/man1");
    output(Command::new(binary).arg("man").arg(&folder))?;
    for page in files(&folder)? {
        let packed = gzip(&read(&page)?)?;
        write(&page.with_extension("1.gz"), &packed)?;
        fs::remove_file(&page).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn documents(stage: &Path) -> Result<()> {
    let place = stage.join(DOCS);
    for page in files(&root().join("docs"))? {
        let name = page.file_name().unwrap_or_default();
        if page.extension().is_some_and(|extension| extension == "md") {
            write(&place.join("docs").join(name), &read(&page)?)?;
        }
    }
    write(&place.join("README.md"), &read(&root().join("README.md"))?)?;
    write(&place.join("changelog.gz"), &gzip(&read(&root().join("CHANGELOG.md"))?)?)?;
    write(&place.join("copyright"), &read(&root().join("packaging/debian/copyright"))?)
}

/// The plain files of a folder, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

/// Packed without a name and a date, so that the same bytes come out each time.
pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    // Packages want their pages packed as well as can be; for all of an archive that takes minutes.
    let level = if bytes.len() < 1 << 20 { Compression::best() } else { Compression::fast() };
    let mut packer = GzBuilder::new().mtime(0).write(Vec::new(), level);
    packer.write_all(bytes).and_then(|()| packer.finish()).map_err(|error| error.to_string())
}

pub(super) fn mode(path: &Path, mode: u32) -> Result<()> {
    create(path.parent().unwrap_or(path))?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}
