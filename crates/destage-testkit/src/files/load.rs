//! A client that works in a folder of its own and writes down what it does.

use super::books::Books;
use super::tree::{Change, Entry, Tree, bytes};
use crate::virtual_time::rng::Rng;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// A client, its folder and its books. It asks for nothing that would fail.
pub struct Client {
    /// What it did.
    pub books: Books,
    folder: PathBuf,
    random: Rng,
    tree: Tree,
    /// Versions so far; each write has one of its own.
    version: u64,
    clock: Instant,
}

/// Why a client stopped.
#[derive(Debug)]
pub enum Ended {
    /// It was told to.
    Stopped,
    /// The last operation failed so. It may have been done or not.
    Failed(io::Error),
}

/// So large is a file at the most. A round looks at all of them.
const LEN_MAX: u64 = 96 << 10;
/// One request of the kernel, which has room for 32 pages, wherever the write begins.
const WRITE_MAX: u64 = 48 << 10;
const FILES_MAX: usize = 24;
const DIRS_MAX: usize = 4;

impl Client {
    /// In a folder that is there and empty; all clients of one mount have the same clock.
    pub fn new(folder: &Path, seed: u64, clock: Instant) -> Self {
        let (books, tree) = (Books::default(), Tree::default());
        let random = Rng::new(seed, 0x66_69_6c_65);
        // So that no two clients write the same.
        let version = (seed & 0xffff) << 32;
        Self { books, folder: folder.to_owned(), random, tree, version, clock }
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Works until it is told to stop, which it asks after each operation, with how many were answered in all; or until one
    /// fails.
    pub fn work(&mut self, mut is_over: impl FnMut(u64) -> bool) -> Ended {
        // What a crash took away is not there any more.
        self.tree = self.books.present();
        while !is_over(self.books.acknowledged()) {
            if let Err(error) = self.step() {
                return Ended::Failed(error);
            }
        }
        Ended::Stopped
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    fn step(&mut self) -> io::Result<()> {
        match self.random.below(100) {
            0..14 => self.sync(),
            14..18 => self.sync_folder(),
            18..24 => self.replace(),
            _ => {
                let Some(change) = self.choose() else { return Ok(()) };
                self.change(change)
            }
        }
    }

    fn change(&mut self, change: Change) -> io::Result<()> {
        self.books.begin(change.clone(), self.now());
        let is_durable = self.carry_out(&change)?;
        self.books.end(self.now());
        self.tree.apply(&change);
        if is_durable {
            self.books.durable();
        }
        Ok(())
    }

    /// As editors do it: the new version beside the old one, made durable, then in its place.
    fn replace(&mut self) -> io::Result<()> {
        let (Some(to), Some(from)) = (self.file(), self.fresh()) else { return Ok(()) };
        self.change(Change::Create { name: from.clone(), mode: 0o600 })?;
        let (len, version) = (1 + self.random.below(WRITE_MAX) as usize, self.next_version());
        self.change(Change::Write { name: from.clone(), offset: 0, len, version })?;
        File::open(self.path(&from))?.sync_all()?;
        self.books.durable_of(&from);
        self.change(Change::Rename { from, to })
    }

    fn sync(&mut self) -> io::Result<()> {
        let Some(name) = self.file() else { return Ok(()) };
        let file = File::open(self.path(&name))?;
        if self.random.chance(50) {
            file.sync_all()?
        } else {
            file.sync_data()?
        }
        self.books.durable();
        Ok(())
    }

    fn sync_folder(&mut self) -> io::Result<()> {
        let folder = self.folder_name();
        File::open(self.path(&folder))?.sync_all()?;
        self.books.durable_of(&folder);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn one_of(&mut self, is_wanted: impl Fn(&Entry) -> bool) -> Option<String> {
        let names = self.tree.names_of(is_wanted);
        let count = names.len() as u64;
        (count > 0).then(|| names[self.random.below(count) as usize].to_owned())
    }

    fn file(&mut self) -> Option<String> {
        self.one_of(|entry| matches!(entry, Entry::File(_)))
    }

    /// The top or a folder.
    fn folder_name(&mut self) -> String {
        let inner = self.one_of(is_dir);
        inner.filter(|_| self.random.chance(60)).unwrap_or_default()
    }

    /// A name that nothing has.
    fn fresh(&mut self) -> Option<String> {
        let folder = self.folder_name();
        let own = format!("f{}", self.random.below(40));
        let name = if folder.is_empty() { own } else { format!("{folder}/{own}") };
        (!self.tree.names().contains_key(&name)).then_some(name)
    }

    /// What to do next, if that can be done.
    fn choose(&mut self) -> Option<Change> {
        let files = self.tree.names_of(|entry| !is_dir(entry)).len();
        match self.random.below(100) {
            0..40 => self.write(),
            40..46 => {
                let name = self.file()?;
                let len = self.tree.content(&name)?.bytes.len() as u64;
                let room = LEN_MAX.checked_sub(len).filter(|&room| room > 0)?.min(WRITE_MAX);
                let len = 1 + self.random.below(room) as usize;
                Some(Change::Append { name, len, version: self.next_version() })
            }
            46..61 if files < FILES_MAX => {
                let mode = self.random.pick(&[0o644, 0o600, 0o755]);
                self.fresh().map(|name| Change::Create { name, mode })
            }
            61..67 => {
                let name = self.file()?;
                Some(Change::Truncate { name, len: self.random.below(LEN_MAX) as usize })
            }
            67..75 => self.rename(),
            75..79 if files < FILES_MAX => {
                let (from, to) = (self.file()?, self.fresh()?);
                Some(Change::Link { from, to })
            }
            79..82 if files < FILES_MAX => {
                let target = format!("elsewhere/{}", self.next_version());
                self.fresh().map(|name| Change::Symlink { name, target })
            }
            82..91 => {
                let name = self.one_of(|entry| !is_dir(entry))?;
                Some(Change::Unlink { name })
            }
            91..94 => {
                let name = format!("d{}", self.random.below(DIRS_MAX as u64 + 2));
                let dirs = self.tree.names_of(is_dir).len();
                let is_free = !self.tree.names().contains_key(&name);
                (is_free && dirs < DIRS_MAX).then_some(Change::MakeDir { name })
            }
            94..96 => {
                let name = self.one_of(is_dir)?;
                self.tree.is_empty(&name).then_some(Change::RemoveDir { name })
            }
            96..98 => {
                let from = self.one_of(is_dir)?;
                let to = format!("d{}", self.random.below(DIRS_MAX as u64 + 2));
                let is_free = !self.tree.names().contains_key(&to);
                is_free.then_some(Change::Rename { from, to })
            }
            _ => {
                let name = self.file()?;
                Some(Change::Chmod { name, mode: self.random.pick(&[0o644, 0o640, 0o700]) })
            }
        }
    }

    fn write(&mut self) -> Option<Change> {
        let name = self.file()?;
        let present = self.tree.content(&name)?.bytes.len() as u64;
        // Often whole blocks, sometimes behind the end.
        let grain = self.random.pick(&[1, 512, 4096]);
        let most = (present + 8192).min(LEN_MAX - 1);
        let offset = self.random.below(most + 1) / grain * grain;
        let len = (1 + self.random.below(WRITE_MAX)).next_multiple_of(grain);
        let len = len.min(WRITE_MAX).min(LEN_MAX - offset) as usize;
        let version = self.next_version();
        Some(Change::Write { name, offset: offset as usize, len, version })
    }

    fn rename(&mut self) -> Option<Change> {
        let from = self.one_of(|entry| !is_dir(entry))?;
        let over = self.one_of(|entry| !is_dir(entry))?;
        let to = if self.random.chance(50) { self.fresh()? } else { over };
        // Between two names of one file a rename does nothing.
        let is_same = self.tree.names().get(&from) == self.tree.names().get(&to);
        (!is_same).then_some(Change::Rename { from, to })
    }

    /// Does it really; whether the answer says that it is durable.
    fn carry_out(&mut self, change: &Change) -> io::Result<bool> {
        let path = |name: &str| self.folder.join(name);
        match change {
            Change::Create { name, mode } => {
                OpenOptions::new().write(true).create_new(true).mode(*mode).open(path(name))?;
            }
            Change::Write { name, offset, len, version } => {
                let is_durable = self.random.chance(5);
                let flags = if is_durable { DSYNC } else { 0 };
                let file = OpenOptions::new().write(true).custom_flags(flags).open(path(name))?;
                let count = file.write_at(&bytes(*version, *len), *offset as u64)?;
                return whole(count, *len).map(|()| is_durable);
            }
            Change::Append { name, len, version } => {
                let mut file = OpenOptions::new().append(true).open(path(name))?;
                let count = file.write(&bytes(*version, *len))?;
                whole(count, *len)?;
            }
            Change::Truncate { name, len } => {
                OpenOptions::new().write(true).open(path(name))?.set_len(*len as u64)?;
            }
            Change::Rename { from, to } => fs::rename(path(from), path(to))?,
            Change::Link { from, to } => fs::hard_link(path(from), path(to))?,
            Change::Unlink { name } => fs::remove_file(path(name))?,
            Change::MakeDir { name } => fs::create_dir(path(name))?,
            Change::RemoveDir { name } => fs::remove_dir(path(name))?,
            Change::Symlink { name, target } => symlink(target, path(name))?,
            Change::Chmod { name, mode } => {
                fs::set_permissions(path(name), fs::Permissions::from_mode(*mode))?;
            }
        }
        Ok(false)
    }
}

fn is_dir(entry: &Entry) -> bool {
    matches!(entry, Entry::Dir(_))
}

/// `O_DSYNC` of Linux.
const DSYNC: i32 = 0o10000;

/// A write that takes less than it was given has done no one thing.
fn whole(count: usize, len: usize) -> io::Result<()> {
    if count == len {
        Ok(())
    } else {
        Err(io::Error::other(format!("a write took {count} bytes of {len}")))
    }
}
