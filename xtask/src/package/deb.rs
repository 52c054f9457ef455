//! The package for Debian and its relatives.

use super::stage::{SETTINGS, gzip, mode};
use super::{Package, output, read, write};
use crate::{Result, root};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Nobody is promised an answer there.
const MAINTAINER: &str = "The authors of Destage <destage@localhost>";

/// Packs the staged files with what describes them.
pub(super) fn make(package: &Package, stage: &Path) -> Result<PathBuf> {
    let control = stage.join("DEBIAN");
    let sources = root().join("packaging/debian");
    let overrides = read(&sources.join("lintian-overrides"))?;
    write(&stage.join("usr/share/lintian/overrides/destage"), &overrides)?;
    let size = output(Command::new("du").args(["-sk", "--exclude=DEBIAN"]).arg(stage))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let libraries = if package.is_static { "" } else { "libc6, libgcc-s1, " };
    let text = format!(
        "Package: destage\nVersion: {}-1\nArchitecture: amd64\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {size}\nDepends: {libraries}adduser\nSuggests: redis-tools, fuse3, nbd-client\n\
         Section: database\nPriority: optional\n\
         Description: write-back caching in front of databases and disks\n \
         Applications write at the speed of memory and a local journal. The database\n \
         or the disk behind follows within a stated time, in order, exactly once.\n .\n \
         destage serve speaks the Redis protocol in front of PostgreSQL, MariaDB,\n \
         SQLite and MongoDB; destage block serve exports volumes by NBD or as files.\n",
        package.version
    );
    write(&control.join("control"), text.as_bytes())?;
    let date = output(Command::new("date").args(["-Ru", "-d", &format!("@{}", package.date)]))?;
    let changes = format!(
        "destage ({}-1) unstable; urgency=medium\n\n  * Version {0}: changelog.gz says what changed.\n\n -- {MAINTAINER}  {date}",
        package.version
    );
    write(&stage.join("usr/share/doc/destage/changelog.Debian.gz"), &gzip(changes.as_bytes())?)?;
    write(&control.join("conffiles"), format!("/{SETTINGS}\n").as_bytes())?;
    for script in ["postinst", "postrm"] {
        write(&control.join(script), &read(&sources.join(script))?)?;
        mode(&control.join(script), 0o755)?;
    }
    let sums = "cd \"$1\" && find usr lib -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    let sums = output(Command::new("sh").args(["-c", sums, "sh"]).arg(stage))?;
    write(&control.join("md5sums"), sums.as_bytes())?;
    let path = package.out.join(format!("destage_{}-1_amd64.deb", package.version));
    let mut dpkg = Command::new("dpkg-deb");
    dpkg.args(["--root-owner-group", "-Zxz", "-z3", "--build"]).arg(stage).arg(&path);
    output(dpkg.env("SOURCE_DATE_EPOCH", package.date.to_string()))?;
    Ok(path)
}
