//! What is compared: two origins, and a mount in front of each.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::syncfs;
use rustix::process::{Pid, Signal, kill_process};

use super::ceph::{Ceph, Received};
use super::options::Options;
use crate::Result;

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    CephFuse,
    CephFuseCached,
    MountOnCeph,
    Local,
    MountOnLocal,
}

impl Side {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::CephFuse => "ceph-fuse, no page cache",
            Self::CephFuseCached => "ceph-fuse, page cache",
            Self::MountOnCeph => "destage mount, CephFS",
            Self::Local => "local folder",
            Self::MountOnLocal => "destage mount, local folder",
        }
    }

    /// What it is compared with.
    pub(super) fn peer(self) -> Self {
        match self {
            Self::CephFuse | Self::CephFuseCached | Self::MountOnCeph => Self::CephFuse,
            Self::Local | Self::MountOnLocal => Self::Local,
        }
    }

    pub(super) fn is_on_ceph(self) -> bool {
        self.peer() == Self::CephFuse
    }

    fn is_mount(self) -> bool {
        matches!(self, Self::MountOnCeph | Self::MountOnLocal)
    }
}

/// The places of all sides.
#[derive(Debug)]
pub(super) struct Sides {
    ceph: Option<Ceph>,
    dir: PathBuf,
    bin: PathBuf,
    extra: Vec<String>,
}

impl Sides {
    /// Brings a CephFS up, if there are scripts for it.
    ///
    /// # Errors
    ///
    /// It does not come up.
    pub(super) fn start(options: &Options, dir: &Path) -> Result<Self> {
        let start = |scripts: &PathBuf| Ceph::start(scripts, dir, options.osds, options.is_quick);
        let ceph = options.ceph.as_ref().map(start).transpose()?;
        for folder in ["local", "mnt"] {
            fs::create_dir(dir.join(folder))?;
        }
        Ok(Self {
            ceph,
            dir: dir.to_owned(),
            bin: options.bin.clone(),
            extra: options.extra.clone(),
        })
    }

    /// Those that there are, in the order of the tables.
    pub(super) fn all(&self) -> Vec<Side> {
        let local = [Side::Local, Side::MountOnLocal];
        let ceph = [Side::CephFuse, Side::CephFuseCached, Side::MountOnCeph];
        let ceph = ceph.into_iter().filter(|_| self.ceph.is_some());
        ceph.chain(local).collect()
    }

    /// A new folder on that side for one run.
    ///
    /// # Errors
    ///
    /// It cannot be made, or the mount does not start.
    pub(super) fn open(&self, side: Side, name: &str) -> Result<Place<'_>> {
        let base = match (side, &self.ceph) {
            (Side::CephFuseCached, _) => self.dir.join("page-cache"),
            (Side::Local | Side::MountOnLocal, _) => self.dir.join("local"),
            (_, Some(ceph)) => ceph.folder(),
            (_, None) => return Err("there is no CephFS".into()),
        };
        let origin = base.join(name);
        fs::create_dir(&origin)?;
        let folder = if side.is_mount() { self.dir.join("mnt") } else { origin.clone() };
        let journal = self.dir.join(format!("journal-{name}"));
        let mut place = Place { sides: self, side, origin, folder, journal, daemon: None };
        place.mount()?;
        Ok(place)
    }
}

/// Where a run works. What it leaves is removed when dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    sides: &'a Sides,
    side: Side,
    origin: PathBuf,
    folder: PathBuf,
    journal: PathBuf,
    daemon: Option<Child>,
}

impl Place<'_> {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn mount(&mut self) -> Result<()> {
        if !self.side.is_mount() {
            return Ok(());
        }
        let log = self.sides.dir.join("mount.log");
        let mut command = Command::new(&self.sides.bin);
        command.arg("mount").arg(&self.origin).arg(&self.folder);
        command
            .args(["--drain-timeout", "none", "--admin", "127.0.0.1:0", "--journal"])
            .arg(&self.journal)
            .args(&self.sides.extra);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut daemon = command.spawn()?;
        let output = daemon.stdout.take().ok_or("destage has no standard output")?;
        let ready = BufReader::new(output).lines().next().transpose()?;
        self.daemon = Some(daemon);
        if ready.is_some() && is_mounted(&self.folder) {
            return Ok(());
        }
        let said = fs::read_to_string(&log).unwrap_or_default();
        Err(format!("destage mount did not get ready; it said: {}", said.trim()).into())
    }

    /// Brings everything to the origin; how long that took. A mount ends with it.
    ///
    /// # Errors
    ///
    /// The mount does not drain.
    pub(super) fn drain(&mut self) -> Result<Duration> {
        let start = Instant::now();
        match self.daemon.take() {
            Some(mut daemon) => {
                end(&mut daemon, Signal::TERM)?;
                if is_mounted(&self.folder) {
                    return Err("destage mount ended without unmounting".into());
                }
            }
            None => sync(&self.folder)?,
        }
        Ok(start.elapsed())
    }

    /// The same, and goes on.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.drain()?;
        self.mount()
    }

    /// What the OSDs have received, where there are any behind it.
    pub(super) fn received(&self) -> Result<Option<Received>> {
        let ceph = self.sides.ceph.as_ref().filter(|_| self.side.is_on_ceph());
        ceph.map(Ceph::received).transpose()
    }
}

/// A FUSE file system does not hear of `syncfs`: each file is synced.
fn sync(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        // It may have been removed meanwhile by nobody: the load has ended.
        let status = fs::symlink_metadata(&path)?;
        if status.is_dir() {
            sync(&path)?;
        } else if status.is_file() {
            File::open(&path)?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()?;
    Ok(syncfs(File::open(folder)?)?)
}

fn end(daemon: &mut Child, signal: Signal) -> Result<()> {
    let id = Pid::from_child(daemon);
    kill_process(id, signal)?;
    let deadline = Instant::now() + DRAIN_MAX;
    loop {
        match daemon.try_wait()? {
            Some(status) if status.success() || signal == Signal::KILL => return Ok(()),
            Some(status) => return Err(format!("destage mount ended with {status}").into()),
            None if Instant::now() > deadline => return Err("destage mount does not drain".into()),
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

const DRAIN_MAX: Duration = Duration::from_secs(600);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ = end(&mut daemon, Signal::KILL);
            let _ = Command::new("umount").arg("--lazy").arg(&self.folder).status();
        }
        // What stays goes with the run's folder or with the CephFS.
        let _ = fs::remove_dir_all(&self.origin);
        let _ = fs::remove_dir_all(&self.journal);
    }
}

/// Whether something is mounted there.
pub(super) fn is_mounted(folder: &Path) -> bool {
    let place = folder.display().to_string();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*place))
}
