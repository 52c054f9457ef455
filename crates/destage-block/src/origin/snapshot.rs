//! A file that is replaced as a whole: each group of changes is made to a copy that shares the file's blocks (a *reflink*), and
//! the copy is durable before it takes the file's name.
//!
//! So whoever opens the path sees a state between two groups, at any moment and after any crash. Whoever has the file open
//! already goes on seeing the state of that time. The copy carries a note of what it is, in an extended attribute, because
//! nothing else changes in the same instant as the name.

use super::file::{FileOrigin, check_in_place, lock};
use super::holders::holders;
use super::{Change, Identity, Origin, OriginIoError, OriginIoErrorKind, Run};
use crc32c::crc32c;
use destage_core::Lsn;
use rustix::fs::{XattrFlags, fchown, fgetxattr, flistxattr, fsetxattr, ioctl_ficlone};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What stands with a file that [`Origin::replace`] has put in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotNote {
    /// [`Identity::store`] of the first file of the line.
    pub store: String,
    /// UUID of the cache whose log it is.
    pub cache: [u8; 16],
    /// The file is that log up to here.
    pub done: Lsn,
}

impl SnapshotNote {
    /// The note of this very file; that of a file that it was copied from does not count.
    pub(super) fn of(file: &File, meta: &Metadata) -> Option<Self> {
        let mut bytes = [0; NOTE_BYTES_MAX];
        let len = fgetxattr(file, ATTRIBUTE, &mut bytes[..]).ok()?;
        Self::decode(&bytes[..len], meta.ino())
    }

    fn encode(&self, inode: u64) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend_from_slice(&inode.to_le_bytes());
        out.extend_from_slice(&self.cache);
        out.extend_from_slice(&self.done.0.to_le_bytes());
        out.extend_from_slice(self.store.as_bytes());
        let crc = crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8], inode: u64) -> Option<Self> {
        let (crc, rest) = bytes.split_first_chunk()?;
        let (its_inode, rest) = rest.split_first_chunk()?;
        let (cache, rest) = rest.split_first_chunk()?;
        let (done, store) = rest.split_first_chunk()?;
        if u32::from_le_bytes(*crc) != crc32c(&bytes[4..])
            || u64::from_le_bytes(*its_inode) != inode
        {
            return None;
        }
        let store = String::from_utf8(store.to_vec()).ok()?;
        Some(Self { store, cache: *cache, done: Lsn(u64::from_le_bytes(*done)) })
    }
}

/// A file on a file system with reflinks.
#[derive(Debug)]
pub struct SnapshotOrigin {
    /// Without symbolic links: a rename must not replace one of them.
    path: PathBuf,
    current: RwLock<Arc<FileOrigin>>,
    /// Held by each write, and alone while the file is replaced.
    writes: RwLock<()>,
    /// Of the files before the current one.
    losses: AtomicU64,
    /// Negative control of the tests: changes are made to the file itself.
    unsafe_in_place: bool,
}

impl SnapshotOrigin {
    /// Opens an existing file; removes what a crash left of a copy, and tries whether one can be made.
    ///
    /// # Errors
    /// As [`FileOrigin::open`]; `Denied` for a device, a file with several names, one that others have open, and where no
    /// copy can be made.
    pub fn open(path: &Path) -> Result<Self, OriginIoError> {
        let denied = |why: String| Err(OriginIoError::new(OriginIoErrorKind::Denied, why));
        let shown = path.display().to_string();
        // Whatever is wrong with the path itself, opening says.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let file = FileOrigin::open(&path)?;
        let meta = metadata(&file.handle(), &path)?;
        if !meta.is_file() {
            return denied(format!(
                "{shown} is a device, of which no copy can be made: use --atomic redo, or a file on XFS or btrfs"
            ));
        }
        if meta.nlink() != 1 {
            return denied(format!(
                "{shown} has {} names, and only one of them would be given to each new state: remove the others, or use \
                 --atomic redo",
                meta.nlink()
            ));
        }
        if let Some(holder) = holders(&path, &meta).first() {
            return denied(format!(
                "{shown} is open in {holder}, which would go on seeing what it is now: stop that first, or use --atomic redo"
            ));
        }
        let origin = Self {
            path,
            current: RwLock::new(Arc::new(file)),
            writes: RwLock::new(()),
            losses: AtomicU64::new(0),
            unsafe_in_place: false,
        };
        let attempt = origin.copy(&origin.current());
        origin.remove_copy();
        attempt.map(|_| origin)
    }

    /// For tests only: changes are made to the file itself, so that everything but the exchange is the same.
    #[must_use]
    pub fn unsafe_in_place(self) -> Self {
        Self { unsafe_in_place: true, ..self }
    }

    fn current(&self) -> Arc<FileOrigin> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn copy_path(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.destage-next"))
    }

    fn remove_copy(&self) {
        // If it stays, the next one removes it or says what is in its way.
        let _ = std::fs::remove_file(self.copy_path());
    }

    /// A locked copy under a name of its own, with the owner and the attributes of the file.
    fn copy(&self, of: &FileOrigin) -> Result<File, OriginIoError> {
        let path = self.copy_path();
        let shown = path.display().to_string();
        let failed = |what: &str, error: io::Error| {
            OriginIoError::io(
                &format!("{what} {shown}, the next state of {}", self.path.display()),
                &error,
            )
        };
        let from = of.handle();
        let meta = metadata(&from, &self.path)?;
        self.remove_copy();
        let mut options = OpenOptions::new();
        let copy = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let copy = copy.map_err(|error| failed("make", error))?;
        lock(&copy, &path)?;
        ioctl_ficlone(&copy, &*from).map_err(|error| self.no_reflinks(error))?;
        copy_attributes(&from, &copy, &meta)
            .map_err(|error| failed("give owner and attributes to", error))?;
        Ok(copy)
    }

    fn no_reflinks(&self, error: Errno) -> OriginIoError {
        let shown = self.path.display();
        match error {
            Errno::OPNOTSUPP | Errno::INVAL | Errno::NOTTY | Errno::XDEV | Errno::NOSYS => {
                let message = format!(
                    "the file system of {shown} cannot make a copy that shares its blocks ({error}): use --atomic redo, or a \
                     file on XFS or btrfs, there without the attribute C (chattr)"
                );
                OriginIoError::new(OriginIoErrorKind::Denied, message)
            }
            error => OriginIoError::io(&format!("make a copy of {shown}"), &error.into()),
        }
    }

    /// Changes a copy and gives it the file's name.
    fn exchange(
        &self,
        old: &FileOrigin,
        note: &SnapshotNote,
        change: &Change<'_>,
    ) -> Result<(), OriginIoError> {
        check_in_place(&old.handle(), &self.path)?;
        let copy_path = self.copy_path();
        let file = self.copy(old)?;
        let io = |what: &str, error: io::Error| {
            OriginIoError::io(&format!("{what} {}", self.path.display()), &error)
        };
        let inode = metadata(&file, &copy_path)?.ino();
        fsetxattr(&file, ATTRIBUTE, &note.encode(inode), XattrFlags::empty())
            .map_err(|error| io("note what is in the next state of", error.into()))?;
        let handle = file.try_clone().map_err(|error| io("open the next state of", error))?;
        // What others have added at the end counts once it is taken up.
        let copy = FileOrigin::of(handle, &copy_path)?.of_size(old.size());
        change(&copy)?;
        // Beside its bytes its length, owner and note, none of which the name may come before.
        file.sync_all().map_err(|error| io("make durable the next state of", error))?;
        let next = FileOrigin::of(file, &self.path)?.of_size(old.size());
        std::fs::rename(&copy_path, &self.path).map_err(|error| io("replace", error))?;
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        self.losses.fetch_add(current.losses(), Ordering::AcqRel);
        *current = Arc::new(next);
        drop(current);
        sync_folder(&self.path).map_err(|error| io("make durable the name of", error))
    }
}

impl Origin for SnapshotOrigin {
    fn size(&self) -> u64 {
        self.current().size()
    }

    /// What was added to a file that was being replaced at that moment is not part of the next one: then it has not grown.
    fn take_up_growth(&self) -> Result<u64, OriginIoError> {
        let _alone = self.writes.write().unwrap_or_else(PoisonError::into_inner);
        self.current().take_up_growth()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), OriginIoError> {
        self.current().read(offset, buf)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OriginIoError> {
        let _write = self.writes.read().unwrap_or_else(PoisonError::into_inner);
        self.current().write(offset, bytes)
    }

    fn zero(&self, offset: u64, len: u64, punch: bool) -> Result<(), OriginIoError> {
        let _write = self.writes.read().unwrap_or_else(PoisonError::into_inner);
        self.current().zero(offset, len, punch)
    }

    fn flush(&self) -> Result<(), OriginIoError> {
        let _write = self.writes.read().unwrap_or_else(PoisonError::into_inner);
        self.current().flush()
    }

    fn losses(&self) -> u64 {
        // Both under one lock, or a file could be counted twice or not at all.
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        self.losses.load(Ordering::Acquire) + current.losses()
    }

    fn parallelism(&self) -> usize {
        self.current().parallelism()
    }

    fn allocation(&self, offset: u64, len: u64) -> Result<Vec<Run>, OriginIoError> {
        self.current().allocation(offset, len)
    }

    fn identity(&self) -> Result<Identity, OriginIoError> {
        self.current().identity()
    }

    fn replace(&self, note: &SnapshotNote, change: &Change<'_>) -> Result<(), OriginIoError> {
        let _alone = self.writes.write().unwrap_or_else(PoisonError::into_inner);
        let old = self.current();
        let note = SnapshotNote { store: old.lineage().to_owned(), ..note.clone() };
        if self.unsafe_in_place {
            return change(&*old).and_then(|()| old.flush());
        }
        let done = self.exchange(&old, &note, change);
        if done.is_err() {
            self.remove_copy();
        }
        done
    }

    fn snapshot_note(&self) -> Option<SnapshotNote> {
        self.current().snapshot_note()
    }
}

/// What a copy of the blocks lacks: mode, owner, and attributes such as access lists.
fn copy_attributes(from: &File, to: &File, meta: &Metadata) -> io::Result<()> {
    let own = to.metadata()?;
    if (own.uid(), own.gid()) != (meta.uid(), meta.gid()) {
        let owner = rustix::fs::Uid::from_raw(meta.uid());
        fchown(to, Some(owner), Some(rustix::fs::Gid::from_raw(meta.gid())))?;
    }
    to.set_permissions(meta.permissions())?;
    let mut names = vec![0; ATTRIBUTES_BYTES_MAX];
    let len = match flistxattr(from, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        other => other?,
    };
    let mut value = vec![0; ATTRIBUTES_BYTES_MAX];
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if name == ATTRIBUTE.as_bytes() {
            continue;
        }
        let len = fgetxattr(from, name, &mut value[..])?;
        // A label that the folder gives to new files, and that this process may not set, is there already.
        let is_refused = fsetxattr(to, name, &value[..len], XattrFlags::empty()).is_err();
        if is_refused && !name.starts_with(b"security.") {
            let name = String::from_utf8_lossy(name).into_owned();
            return Err(io::Error::other(format!("the attribute {name} cannot be set")));
        }
    }
    Ok(())
}

fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
}

fn metadata(file: &File, path: &Path) -> Result<Metadata, OriginIoError> {
    file.metadata().map_err(|e| OriginIoError::io(&format!("look at {}", path.display()), &e))
}

const ATTRIBUTE: &str = "user.destage.snapshot";
/// The fixed part and a name; the longest that any file system takes is far longer.
const NOTE_BYTES_MAX: usize = 512;
/// What Linux takes at most.
const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;
