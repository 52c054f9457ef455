//! The guest's first file system: the distribution's kernel modules, and the programs of this host with their libraries.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Result;

/// What was unpacked from the distribution's packages: see `cargo xtask bench`.
#[derive(Clone, Debug)]
pub(super) struct Packages {
    folder: PathBuf,
    /// The kernel's release, which names its folder of modules.
    pub(super) release: String,
}

impl Packages {
    /// # Errors
    ///
    /// There is no kernel in the folder.
    pub(super) fn in_folder(folder: &Path) -> Result<Self> {
        let failed = |error| format!("failed to read {}: {error}", folder.display());
        // Its programs are started from elsewhere.
        let folder = folder.canonicalize().map_err(failed)?;
        let boot = fs::read_dir(folder.join("boot")).map_err(failed)?.flatten();
        let names = boot.filter_map(|file| file.file_name().into_string().ok());
        let release = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
        let release = release.max().ok_or_else(|| format!("no kernel in {}", folder.display()))?;
        Ok(Self { folder, release })
    }

    pub(super) fn kernel(&self) -> PathBuf {
        self.folder.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// Name and version of each package.
    pub(super) fn versions(&self) -> Result<Vec<(String, String)>> {
        let list = fs::read_to_string(self.folder.join(LIST))?;
        let lines = list.lines().filter_map(|line| line.split_once(' '));
        Ok(lines.map(|(name, version)| (name.to_owned(), version.to_owned())).collect())
    }

    fn busybox(&self) -> PathBuf {
        self.folder.join("bin/busybox")
    }

    /// These modules and all that they need, as paths below the folder.
    fn modules(&self, names: &[&str]) -> Result<BTreeSet<String>> {
        let below = format!("lib/modules/{}", self.release);
        let list = fs::read_to_string(self.folder.join(&below).join("modules.dep"))?;
        let mut found = BTreeSet::new();
        let mut wanted = Vec::new();
        for name in names {
            let path = list.lines().filter_map(|line| line.split(':').next()).find(|path| {
                let file = path.rsplit('/').next().unwrap_or_default();
                file.strip_suffix(".ko").is_some_and(|file| file.replace('-', "_") == *name)
            });
            wanted.push(path.ok_or_else(|| format!("the kernel has no module {name}"))?);
        }
        while let Some(path) = wanted.pop() {
            if found.insert(format!("{below}/{path}")) {
                let line = list.lines().find_map(|line| line.strip_prefix(path)?.strip_prefix(':'));
                wanted.extend(line.unwrap_or_default().split_whitespace());
            }
        }
        Ok(found)
    }
}

/// What `cargo xtask bench` notes of the packages: a name and a version in each line.
const LIST: &str = "packages";
/// What the guest loads, in this order.
const MODULES: [&str; 7] =
    ["virtio_pci", "virtio_blk", "virtio_rng", "crc32c_generic", "bcache", "dm_writecache", "nbd"];
/// What it runs from this host.
const PROGRAMS: [&str; 3] = ["fio", "dmsetup", "nbd-client"];
/// Where those are that are in no user's path.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// A file system that is being gathered in a folder.
pub(super) struct Image<'a> {
    packages: &'a Packages,
    root: PathBuf,
}

impl<'a> Image<'a> {
    /// All that does not change from guest to guest; `root` is made.
    ///
    /// # Errors
    ///
    /// Something is missing, or cannot be copied.
    pub(super) fn new(packages: &'a Packages, root: &Path, destage: &Path) -> Result<Self> {
        let image = Self { packages, root: root.to_owned() };
        image.copy(&packages.busybox(), "bin/busybox")?;
        for applet in applets(&packages.busybox())? {
            let link = image.root.join("bin").join(&applet);
            if applet != "busybox" {
                std::os::unix::fs::symlink("busybox", link)?;
            }
        }
        for path in packages.modules(&MODULES)? {
            image.copy(&packages.folder.join(&path), &path)?;
        }
        let modules = format!("lib/modules/{}", packages.release);
        for list in ["modules.dep", "modules.builtin"] {
            let path = format!("{modules}/{list}");
            image.copy(&packages.folder.join(&path), &path)?;
        }
        image.program("make-bcache", &packages.folder.join("usr/sbin/make-bcache"))?;
        for name in PROGRAMS {
            let mut places = FOLDERS.iter().map(|folder| Path::new(folder).join(name));
            let found = places.find(|path| path.is_file());
            image.program(name, &found.ok_or_else(|| format!("{name} is not installed"))?)?;
        }
        image.program("destage", destage)?;
        image.program("destage-bench", &std::env::current_exe()?)?;
        image.write("init", include_str!("init.sh"), 0o755)?;
        image.write("sides.sh", include_str!("sides.sh"), 0o644)?;
        Ok(image)
    }

    /// Puts in a file of this content.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn write(&self, path: &str, text: &str, mode: u32) -> Result<()> {
        let path = self.place(path)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
    }

    /// The modules to load, as a shell's words.
    pub(super) fn modules() -> String {
        MODULES.join(" ")
    }

    /// Writes all of it as the kernel takes it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub(super) fn pack(&self, to: &Path) -> Result<()> {
        let mut names = Vec::new();
        gather(&self.root, Path::new(""), &mut names)?;
        let mut cpio = Command::new(self.packages.busybox())
            .args(["cpio", "-o", "-H", "newc"])
            .current_dir(&self.root)
            .stdin(Stdio::piped())
            .stdout(File::create(to)?)
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = cpio.stdin.take().ok_or("its input is piped")?;
        input.write_all(names.join("\n").as_bytes())?;
        drop(input);
        let output = cpio.wait_with_output()?;
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("failed to pack: {}", String::from_utf8_lossy(&output.stderr)).into())
        }
    }

    /// A program with the libraries that it is linked with, without what only a debugger needs.
    fn program(&self, name: &str, from: &Path) -> Result<()> {
        let to = self.place(&format!("bin/{name}"))?;
        let strip = Command::new("strip").arg("-o").arg(&to).arg(from).status();
        if !strip.is_ok_and(|status| status.success()) {
            fs::copy(from, &to)?;
        }
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        let output = Command::new("ldd").arg(from).output()?;
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            self.copy(Path::new(&library), library.trim_start_matches('/'))?;
        }
        Ok(())
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let to = self.place(to)?;
        if !to.exists() {
            fs::copy(from, &to)
                .map_err(|error| format!("failed to copy {}: {error}", from.display()))?;
        }
        Ok(())
    }

    /// A path below the root, whose folder is made.
    fn place(&self, path: &str) -> Result<PathBuf> {
        let path = self.root.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        Ok(path)
    }
}

/// The names by which busybox can be called.
fn applets(busybox: &Path) -> Result<Vec<String>> {
    let output = Command::new(busybox).arg("--list").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// The paths in what ldd prints: `name => /path (address)` or `/path (address)`.
fn libraries(text: &str) -> Vec<String> {
    let words = text.lines().filter_map(|line| {
        let behind = line.split_once("=>").map_or(line, |(_, path)| path);
        behind.split_whitespace().next()
    });
    words.filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

/// All that is below a folder, each folder before what is in it.
fn gather(root: &Path, below: &Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        names.push(path.to_str().ok_or("names are UTF-8")?.to_owned());
        if entry.file_type()?.is_dir() {
            gather(root, &path, names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_prints() {
        let text = "\tlinux-vdso.so.1 (0x00007f)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        assert_eq!(
            libraries(text),
            ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
        assert_eq!(libraries("\tstatically linked\n"), [""; 0]);
    }
}
