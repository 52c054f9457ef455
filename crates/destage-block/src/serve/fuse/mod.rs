//! `--fuse DIR`: each volume as a file, for loop devices and whatever else wants a file.
//!
//! Threads of their own take what the kernel asks. What concerns only names and sizes they answer themselves; everything
//! that touches a volume goes to the server's thread as a [`FileEvent`], and is answered from there. The kernel keeps
//! nothing back in its page cache: a write that has returned was seen by the volume, and an fsync is a FLUSH.
//!
//! It survives a mount that a killed server left behind, and a user who unmounts the folder.

mod directory;
mod requests;

use super::Outbox;
use super::{ServeError, Served};
use crate::request::{Reply, Request, RequestError};
use crate::settings::Settings;
use destage_core::Time;
use destage_runtime::{exit, fuse};
use directory::{Directory, Entry};
use fuser::{
    BackgroundSession, Config, Errno, FileHandle, FopenFlags, MountOption, Notifier, ReplyData,
    ReplyEmpty, ReplyOpen, ReplyWrite, SessionACL,
};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the file of a volume without a name is called.
const DEFAULT_NAME: &str = "disk";
const FLAG: &str = "--fuse";

/// What the kernel wants of the server's thread.
pub(super) enum FileEvent {
    /// Someone opens a file.
    Open(ReplyOpen),
    /// Someone has closed one.
    Close,
    /// A request to a volume.
    Ask(Ask),
    /// Nothing more will come: the folder was unmounted.
    Ended,
}

/// A request by way of a file.
pub(super) struct Ask {
    pub(super) volume: usize,
    pub(super) request: Request,
    pub(super) answer: Answer,
}

/// Whom to answer. Dropped without an answer, it says that there was an I/O error.
pub(super) enum Answer {
    /// A read.
    Read(ReplyData),
    /// A write of so many bytes.
    Write(ReplyWrite, u32),
    /// Anything else.
    Plain(ReplyEmpty),
}

impl Answer {
    /// Answers.
    pub(super) fn give(self, reply: Reply) {
        match (self, reply) {
            (Self::Read(answer), Reply::Data(bytes)) => answer.data(&bytes),
            (Self::Write(answer, len), Reply::Done) => answer.written(len),
            (Self::Plain(answer), Reply::Done) => answer.ok(),
            (answer, Reply::Error(error)) => answer.fail(to_errno(error)),
            (answer, Reply::Done | Reply::Data(_) | Reply::Status(_)) => answer.fail(Errno::EIO),
        }
    }

    fn fail(self, error: Errno) {
        match self {
            Self::Read(answer) => answer.error(error),
            Self::Write(answer, _) => answer.error(error),
            Self::Plain(answer) => answer.error(error),
        }
    }
}

/// What a failure is called at a file.
pub(super) fn to_errno(error: RequestError) -> Errno {
    match error {
        RequestError::Io => Errno::EIO,
        RequestError::NoSpace => Errno::ENOSPC,
        RequestError::ReadOnly => Errno::EROFS,
        RequestError::Invalid => Errno::EINVAL,
        RequestError::Busy => Errno::ENOMEM,
        RequestError::Stopping => Errno::ESHUTDOWN,
    }
}

/// Lets someone open a file: past the page cache, and several writes at a time.
pub(super) fn opened(answer: ReplyOpen) {
    let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
    answer.opened(FileHandle(0), flags);
}

/// The files' sizes.
#[derive(Clone)]
pub(super) struct Sizes {
    sizes: Vec<Arc<AtomicU64>>,
    paths: Vec<PathBuf>,
    notifier: Notifier,
}

impl Sizes {
    /// A volume's file has another size from now on, also for who has it open, such as a loop device. Not to be called on a
    /// thread that serves the files: the kernel asks for the size meanwhile.
    pub(super) fn set(&self, volume: usize, size: u64) {
        self.sizes[volume].store(size, Ordering::Release);
        // Of the attributes only: nothing of the content is in the page cache. A file that the kernel does not know is no
        // error: it will ask.
        let _ = self.notifier.inval_inode(directory::inode_of(volume), -1, 0);
        if let Err(error) = learn(&self.paths[volume], size) {
            let file = self.paths[volume].display();
            tracing::warn!(%error, "the kernel does not know the new size of {file} yet: 'stat' it before 'losetup -c'");
        }
    }
}

/// Has the kernel ask for a file's size, which a loop device does not do: the end that a seek finds is what the kernel
/// knows. While writes end it drops the answers.
fn learn(file: &Path, size: u64) -> io::Result<()> {
    let mut file = File::open(file)?;
    for _ in 0..LEARN_TIMES_MAX {
        if file.seek(SeekFrom::End(0))? == size {
            return Ok(());
        }
        std::thread::sleep(LEARN_AGAIN);
    }
    Err(io::Error::other("writes under way keep it from asking"))
}

/// The mounted folder. Unmounted when dropped.
pub(super) struct Files {
    session: Option<BackgroundSession>,
    folder: PathBuf,
    names: Vec<String>,
    sizes: Sizes,
    /// How often the files are open. A loop device holds its file open.
    pub(super) open: usize,
    /// Requests that wait until their volumes have room, and since when; the oldest first.
    pub(super) waiting: VecDeque<(Time, Ask)>,
}

/// A folder that can be mounted on. If it was made for that, it goes again unless it is.
pub(super) struct Place {
    folder: PathBuf,
    names: Vec<String>,
    is_made: bool,
}

impl Place {
    /// Makes the folder ready, if the settings ask for one, before anything else is begun.
    ///
    /// # Errors
    /// What is wrong with the folder or the volumes' names, and what to do.
    pub(super) fn prepare(settings: &Settings) -> Result<Option<Self>, ServeError> {
        let Some(folder) = &settings.fuse else { return Ok(None) };
        let names = names(settings.volumes.iter().map(|volume| &volume.name[..]))?;
        // A dead mount is there, though nothing is known of it.
        let found = folder.symlink_metadata();
        let is_made = found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        Ok(Some(Self { folder: fuse::prepare(folder, FLAG)?, names, is_made }))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_made {
            // What others have put there meanwhile stays, and the folder with it.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

impl Files {
    /// Mounts the folder.
    ///
    /// # Errors
    /// What is wrong with the folder, or what is missing, and what to do.
    pub(super) fn mount(
        mut place: Place,
        settings: &Settings,
        volumes: &[Served],
        outbox: &Outbox,
    ) -> Result<Self, ServeError> {
        let (folder, names) = (place.folder.clone(), std::mem::take(&mut place.names));
        let entries = volumes.iter().zip(&settings.volumes).zip(&names);
        let entries = entries.map(|((served, volume), name)| Entry {
            name: name.clone(),
            size: Arc::new(AtomicU64::new(served.volume.size())),
            read_only: volume.read_only,
        });
        let entries: Vec<Entry> = entries.collect();
        let sizes = entries.iter().map(|entry| entry.size.clone()).collect();
        let directory = Directory::new(entries, outbox.clone());
        let session = fuse::mount(directory, &folder, &config(), FLAG)?;
        place.is_made = false;
        let notifier = session.notifier();
        let paths = names.iter().map(|name| folder.join(name)).collect();
        let sizes = Sizes { sizes, paths, notifier };
        let session = Some(session);
        Ok(Self { session, folder, names, sizes, open: 0, waiting: VecDeque::new() })
    }

    /// Where a volume's file is.
    pub(super) fn path(&self, volume: usize) -> PathBuf {
        self.folder.join(&self.names[volume])
    }

    /// For whoever changes the files' sizes.
    pub(super) fn sizes(&self) -> Sizes {
        self.sizes.clone()
    }

    /// The mounted folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes the folder away. Whoever still uses a file gets I/O errors once this process has ended.
    pub(super) fn unmount(&mut self) {
        if let Some(session) = self.session.take() {
            fuse::unmount(session, &self.folder);
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// How the folder is mounted.
fn config() -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("destage".into()),
        MountOption::Subtype("destage".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        MountOption::NoAtime,
    ];
    // Loop devices are root's, whoever serves their files.
    let is_root = rustix::process::geteuid().is_root();
    config.acl = if is_root { SessionACL::Owner } else { SessionACL::RootAndOwner };
    config
}

/// The files' names, from the volumes'.
fn names<'a>(volumes: impl Iterator<Item = &'a str>) -> Result<Vec<String>, ServeError> {
    let mut names: Vec<String> = Vec::new();
    for volume in volumes {
        let name = if volume.is_empty() { DEFAULT_NAME } else { volume };
        let is_good =
            name.len() <= NAME_MAX && !matches!(name, "." | "..") && !name.contains(['/', '\0']);
        let wrong = if !is_good {
            format!("a file cannot be called '{name}'")
        } else if names.iter().any(|known| known == name) {
            format!("the volume without a name and another one would both be the file '{name}'")
        } else {
            names.push(name.to_owned());
            continue;
        };
        let message = format!("--fuse: {wrong}: give the volume another name");
        return Err(ServeError::new(exit::USAGE, message));
    }
    Ok(names)
}

/// How often the kernel is made to ask for a size, and the time in between.
const LEARN_TIMES_MAX: u32 = 100;
const LEARN_AGAIN: Duration = Duration::from_millis(20);
/// Most bytes of a file's name.
const NAME_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_files_of_their_names() {
        let found = names(["", "database", "log"].into_iter());
        assert_eq!(found.unwrap(), ["disk", "database", "log"]);
        let long = "x".repeat(256);
        for (volumes, part) in [
            (["a/b", "c"], "'a/b'"),
            (["a", ".."], "'..'"),
            (["", "disk"], "'disk'"),
            (["a", &long], "xxx"),
        ] {
            let error = names(volumes.into_iter()).expect_err("refused");
            assert_eq!(error.exit_code(), exit::USAGE);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn every_failure_has_its_errno() {
        for (error, errno) in [
            (RequestError::Io, libc::EIO),
            (RequestError::NoSpace, libc::ENOSPC),
            (RequestError::ReadOnly, libc::EROFS),
            (RequestError::Invalid, libc::EINVAL),
            (RequestError::Busy, libc::ENOMEM),
            (RequestError::Stopping, libc::ESHUTDOWN),
        ] {
            assert_eq!(to_errno(error).code(), errno, "{error:?}");
        }
    }
}
