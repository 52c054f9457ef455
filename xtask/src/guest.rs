//! What the guest of `destage-bench peers` is made of: the distribution's kernel with bcache and dm-writecache, and what goes
//! with them. They are downloaded as packages and unpacked, never installed.

use crate::clients::run;
use crate::{Result, target, tools};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Beside the kernel.
const PACKAGES: [&str; 2] = ["bcache-tools", "busybox-static"];
/// Names the present kernel as what it depends on.
const KERNEL: &str = "linux-image-amd64";
/// Notes a name and a version in each line. It is there once all else is.
const LIST: &str = "packages";

/// Where it is, for the benchmark's environment. What cannot be had is said and left out.
pub(crate) fn prepare() -> Option<(&'static str, String)> {
    match unpacked() {
        Ok(folder) => Some(("DESTAGE_TEST_GUEST", folder.display().to_string())),
        Err(what) => {
            println!("the guest of `bench peers` cannot be had: {what}");
            None
        }
    }
}

/// The folder of the unpacked packages, which are fetched if they are not there yet.
fn unpacked() -> Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        return Err("it is for x86_64".to_owned());
    }
    let home = target().join("xtask/guest");
    let failed = |error| format!("failed to write {}: {error}", home.display());
    if !home.join(LIST).is_file() {
        let part = home.with_extension("part");
        for folder in [&home, &part].into_iter().filter(|folder| folder.exists()) {
            std::fs::remove_dir_all(folder).map_err(failed)?;
        }
        std::fs::create_dir_all(&part).map_err(failed)?;
        fetch(&part)?;
        std::fs::rename(&part, &home).map_err(failed)?;
    }
    home.canonicalize().map_err(|error| format!("failed to find {}: {error}", home.display()))
}

fn fetch(folder: &Path) -> Result<()> {
    println!("fetching the kernel of a guest");
    let download = || -> Result<()> {
        let kernel =
            kernel_package(&printed(Command::new("apt-cache").args(["depends", KERNEL]))?)?;
        let mut get = Command::new("apt-get");
        // Its own user may not write here.
        get.args(["--quiet=2", "--option=APT::Sandbox::User=root", "download", &kernel]);
        run("apt-get download", get.args(PACKAGES).current_dir(folder))
    };
    if let Err(what) = download() {
        // The package lists are too old, or there are none.
        println!("{what}");
        tools::refresh();
        download()?;
    }
    let mut list = String::new();
    let files = std::fs::read_dir(folder)
        .map_err(|error| format!("failed to read {}: {error}", folder.display()))?;
    for package in files.flatten().map(|file| file.path()) {
        let unpack = ["--extract".as_ref(), package.as_os_str(), folder.as_os_str()];
        run("dpkg-deb", Command::new("dpkg-deb").args(unpack))?;
        let show = ["--show".as_ref(), package.as_os_str()];
        list += &printed(Command::new("dpkg-deb").args(show))?.replace('\t', " ");
        std::fs::remove_file(&package)
            .map_err(|error| format!("failed to remove {}: {error}", package.display()))?;
    }
    let release = list.lines().find_map(|line| {
        let name = line.split(' ').next()?;
        name.strip_prefix("linux-image-")
    });
    let release = release.ok_or("the kernel has no package")?;
    // What is done where a kernel is installed: which module needs which.
    let mut depmod = Command::new(folder.join("bin/busybox"));
    run("depmod", depmod.args(["depmod", "-b"]).arg(folder).arg(release))?;
    std::fs::write(folder.join(LIST), &list)
        .map_err(|error| format!("failed to write {LIST}: {error}"))
}

/// The package in `  Depends: linux-image-6.1.0-57-amd64`.
fn kernel_package(depends: &str) -> Result<String> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let found = names.find(|name| name.starts_with("linux-image-"));
    found.map(str::to_owned).ok_or_else(|| format!("{KERNEL} names no kernel"))
}

fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("failed to start {command:?}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_what_its_name_of_no_version_depends_on() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-57-amd64\n";
        assert_eq!(kernel_package(text).as_deref(), Ok("linux-image-6.1.0-57-amd64"));
        assert!(kernel_package("linux-image-amd64\n").is_err());
    }
}
