//! A file system on a volume: the volume as a file, a loop device on it, and the mount.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::syncfs;

use crate::Result;
use crate::block::bench::{BlockBench, Disk, Sizes, Volume};
use crate::command::output_within;

/// A file system in a mode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    /// For the report.
    pub(crate) name: &'static str,
    /// As `mount` and `mkfs` name it.
    kind: &'static str,
    options: &'static str,
}

impl FileSystem {
    /// The paper's, in the order of its section 5.3.3; "ordered" and "writeback" are modes of the file system's journal.
    pub(crate) const PAPER: [Self; 8] = [
        Self { name: "ext2", kind: "ext2", options: "noatime" },
        Self::with_journal("ext3 writeback", "ext3", "noatime,data=writeback"),
        Self::with_journal("ext3 ordered", "ext3", "noatime,data=ordered"),
        Self::with_journal("ext3 data", "ext3", "noatime,data=journal"),
        Self::with_journal("ext4 writeback", "ext4", "noatime,data=writeback"),
        Self::EXT4,
        Self::with_journal("ext4 data", "ext4", "noatime,data=journal"),
        Self { name: "btrfs", kind: "btrfs", options: "noatime" },
    ];
    /// As people have it.
    pub(crate) const EXT4: Self =
        Self::with_journal("ext4 ordered", "ext4", "noatime,data=ordered");
    /// The least volume that all of them can be made on, bytes.
    pub(crate) const VOLUME_MIN: u64 = 160 << 20;

    const fn with_journal(name: &'static str, kind: &'static str, options: &'static str) -> Self {
        Self { name, kind, options }
    }

    /// Whether the kernel knows it; a module of it is loaded.
    pub(crate) fn is_known(self) -> bool {
        let knows = || {
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            known.lines().any(|line| line.split_whitespace().last() == Some(self.kind))
        };
        knows() || (Command::new("modprobe").arg(self.kind).output().is_ok() && knows())
    }

    fn make(self, device: &Path) -> Result<()> {
        let mut command = Command::new(format!("mkfs.{}", self.kind));
        match self.kind {
            "btrfs" => command.args(["-q", "-f", "--nodiscard"]),
            // Nothing is to be written behind the measurement's back.
            "ext2" => command.args(["-q", "-F", "-b", "4096", "-E", "nodiscard"]),
            _ => command
                .args(["-q", "-F", "-b", "4096", "-E"])
                .arg("nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
        };
        run(command.arg(device)).map(drop)
    }
}

/// A volume with a file system on it. Everything is taken apart in the order of the fields.
#[derive(Debug)]
pub(crate) struct FileVolume {
    mount: FileMount,
    pub(crate) volume: Volume,
}

impl FileVolume {
    /// Starts a volume before a modelled disk, and makes and mounts the file system. The disk takes no time yet.
    ///
    /// # Errors
    ///
    /// This is not root, the kernel has no loop devices, no FUSE or not this file system, or a program for it is missing.
    pub(crate) fn start(
        bench: &BlockBench,
        disk: Disk,
        sizes: Sizes,
        file_system: FileSystem,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("files-").tempdir_in(&bench.dir)?.keep();
        let (shown, mounted) = (folder.join("volume"), folder.join("mounted"));
        let further = ["--fuse".to_owned(), shown.display().to_string()];
        let volume = Volume::start_with(bench, disk, sizes, "write-back", &further)?;
        let mount = FileMount::new(&shown, mounted, file_system, true)?;
        Ok(Self { mount, volume })
    }

    /// Where the files are.
    pub(crate) fn folder(&self) -> &Path {
        self.mount.folder()
    }

    /// Lets the kernel write what it holds, so that the volume has everything.
    pub(crate) fn sync(&self) -> Result<()> {
        self.mount.sync()
    }
}

/// The file system of a volume that is shown as a file. Both are taken apart in the order of the fields.
#[derive(Debug)]
pub(crate) struct FileMount {
    mounted: Mounted,
    _loop: LoopDevice,
}

impl FileMount {
    /// Mounts the volume shown in the folder `shown` at `folder`, and makes the file system before if the volume is new.
    ///
    /// # Errors
    ///
    /// As for [`FileVolume::start`].
    pub(crate) fn new(
        shown: &Path,
        folder: PathBuf,
        file_system: FileSystem,
        is_new: bool,
    ) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let device = LoopDevice::on(&shown.join("disk"))?;
        if is_new {
            file_system.make(&device.0)?;
        }
        let mounted = Mounted::new(&device.0, folder, file_system)?;
        Ok(Self { mounted, _loop: device })
    }

    /// Where the files are.
    pub(crate) fn folder(&self) -> &Path {
        &self.mounted.0
    }

    /// Lets the kernel write what it holds, so that the volume has everything.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(syncfs(File::open(self.folder())?)?)
    }
}

#[derive(Debug)]
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path, folder: PathBuf, file_system: FileSystem) -> Result<Self> {
        let FileSystem { kind, options, .. } = file_system;
        let mut command = Command::new("mount");
        command.args(["-t", kind, "-o", options]).arg(device).arg(&folder);
        run(&mut command)?;
        Ok(Self(folder))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmount = |flags: &[&str]| run(Command::new("umount").args(flags).arg(&self.0));
        if let Err(error) = unmount(&[]) {
            eprintln!("warning: {error}");
            let _ = unmount(&["--lazy"]);
        }
    }
}

#[derive(Debug)]
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// On this file, past the page cache. Others look for a free one at the same time, so it is tried again.
    fn on(file: &Path) -> Result<Self> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let mut command = Command::new("losetup");
            command.args(["--find", "--show", "--direct-io=on", "--sector-size", "4096"]);
            match run(command.arg(file)) {
                Ok(device) => return Ok(Self(device.trim().into())),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn is_attached(&self) -> bool {
        let name = self.0.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join("loop/backing_file").exists()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("losetup").arg("--detach").arg(&self.0)) {
            eprintln!("warning: {error}");
        }
        // The device goes once the last who has it open lets go; the server below must not end before.
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.is_attached() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether this machine can mount volumes, else what is missing.
///
/// # Errors
///
/// What is missing.
pub(crate) fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("loads of files mount file systems: run them as root".into());
    }
    match ["/dev/loop-control", "/dev/fuse"].into_iter().find(|path| !Path::new(path).exists()) {
        Some(path) => {
            Err(format!("loads of files mount volumes as loop devices: {path} is missing").into())
        }
        None => Ok(()),
    }
}

/// Runs a program to its end; what it printed.
///
/// # Errors
///
/// It is missing, failed, or took more than two minutes.
fn run(command: &mut Command) -> Result<String> {
    let output = output_within(command, Duration::from_secs(120))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let (name, said) =
        (command.get_program().to_string_lossy(), String::from_utf8_lossy(&output.stderr));
    Err(format!("{name} failed: {}", said.trim()).into())
}
