//! Loads on a pool of files: servers of files and of mail, and PostMark.

use std::cmp::Ordering;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use rustix::fs::{Advice, fadvise, syncfs};

use super::{Place, Worker};
use crate::Result;
use crate::block::clients::Progress;
use crate::keys::Rng;

const KIB: usize = 1024;
/// What the file server's files hold; appended ones more, until they are written anew.
const FILE: usize = 128 * KIB;
const MAIL: usize = 16 * KIB;
/// PostMark's range of sizes.
const SMALL: std::ops::RangeInclusive<u64> = 500..=9_765;
/// What such a file takes on average, in whole blocks.
const SMALL_MEAN: u64 = 8 * KIB as u64;

/// A thread's files.
struct Pool {
    folder: PathBuf,
    /// The names of those that are there.
    files: Vec<u64>,
    next: u64,
    rng: Rng,
    payload: Vec<u8>,
    buffer: Vec<u8>,
    operations: u64,
}

pub(super) fn file_server(place: &Place<'_>) -> Result<Worker> {
    let mut pool = Pool::new(place);
    pool.fill(place.bytes / FILE as u64, |_| FILE)?;
    Ok(Box::new(move |progress| {
        let (anew, longer, read, seen) = (pool.any(), pool.any(), pool.any(), pool.any());
        pool.write(anew, FILE)?;
        pool.append(longer, 16 * KIB)?;
        pool.read(read, progress)?;
        fs::metadata(pool.path(seen))?;
        pool.sync_every(16)
    }))
}

pub(super) fn mail_server(place: &Place<'_>) -> Result<Worker> {
    let mut pool = Pool::new(place);
    pool.fill(place.bytes / MAIL as u64, |_| MAIL)?;
    Ok(Box::new(move |progress| {
        pool.delete()?;
        let name = pool.add(MAIL)?;
        File::open(pool.path(name))?.sync_all()?;
        let (read, longer) = (pool.any(), pool.any());
        pool.read(read, progress)?;
        pool.append(longer, 4 * KIB)?.sync_all()?;
        Ok(())
    }))
}

pub(super) fn post_mark(place: &Place<'_>) -> Result<Worker> {
    let mut pool = Pool::new(place);
    let files = (place.bytes / SMALL_MEAN).max(16);
    pool.fill(files, small)?;
    Ok(Box::new(move |progress| {
        // The pool keeps its size.
        let grows = match (pool.files.len() as u64).cmp(&files) {
            Ordering::Less => true,
            Ordering::Equal => pool.rng.below(2) == 0,
            Ordering::Greater => false,
        };
        if grows {
            pool.add_small()?
        } else {
            pool.delete()?
        }
        let other = pool.any();
        let is_long = fs::metadata(pool.path(other))?.len() > *SMALL.end();
        match pool.rng.below(2) {
            0 => pool.read(other, progress)?,
            // Long ones begin again, so that the files keep their size.
            _ if is_long => pool.write_small(other)?,
            _ => {
                pool.append(other, *SMALL.start() as usize)?;
            }
        }
        pool.sync_every(32)
    }))
}

fn small(rng: &mut Rng) -> usize {
    (SMALL.start() + rng.below(SMALL.end() - SMALL.start() + 1)) as usize
}

impl Pool {
    fn new(place: &Place<'_>) -> Self {
        Self {
            folder: place.folder.to_owned(),
            files: Vec::new(),
            next: 0,
            rng: Rng::new(place.seed),
            payload: vec![place.seed as u8 | 1; FILE],
            buffer: Vec::new(),
            operations: 0,
        }
    }

    fn fill(&mut self, files: u64, bytes: fn(&mut Rng) -> usize) -> Result<()> {
        self.find()?;
        if !self.files.is_empty() {
            return Ok(());
        }
        for _ in 0..files.max(4) {
            let bytes = bytes(&mut self.rng);
            self.add(bytes)?;
        }
        Ok(syncfs(File::open(&self.folder)?)?)
    }

    /// Takes the files that are there already, in the order of their names.
    fn find(&mut self) -> Result<()> {
        for folder in fs::read_dir(&self.folder)? {
            for file in fs::read_dir(folder?.path())? {
                self.files
                    .extend(file?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
            }
        }
        self.files.sort_unstable();
        self.next = self.files.last().map_or(0, |last| last + 1);
        Ok(())
    }

    fn path(&self, name: u64) -> PathBuf {
        // As many to a folder as PostMark's subdirectories hold.
        self.folder.join(format!("{:03}", name / 256 % 64)).join(name.to_string())
    }

    /// One of the files, by its name.
    fn any(&mut self) -> u64 {
        let at = self.rng.below(self.files.len() as u64);
        self.files[at as usize]
    }

    fn add_small(&mut self) -> Result<()> {
        let bytes = small(&mut self.rng);
        self.add(bytes)?;
        Ok(())
    }

    fn write_small(&mut self, name: u64) -> Result<()> {
        let bytes = small(&mut self.rng);
        self.write(name, bytes)
    }

    fn add(&mut self, bytes: usize) -> Result<u64> {
        let name = self.next;
        self.next += 1;
        if let Some(folder) = self.path(name).parent() {
            fs::create_dir_all(folder)?;
        }
        self.write(name, bytes)?;
        self.files.push(name);
        Ok(name)
    }

    fn delete(&mut self) -> Result<()> {
        let at = self.rng.below(self.files.len() as u64);
        let name = self.files.swap_remove(at as usize);
        Ok(fs::remove_file(self.path(name))?)
    }

    /// Writes a file whole.
    fn write(&mut self, name: u64, bytes: usize) -> Result<()> {
        Ok(fs::write(self.path(name), &self.payload[..bytes])?)
    }

    fn append(&mut self, name: u64, bytes: usize) -> Result<File> {
        let mut file = OpenOptions::new().append(true).open(self.path(name))?;
        file.write_all(&self.payload[..bytes])?;
        Ok(file)
    }

    /// Reads a file whole, from the disk where it can be.
    fn read(&mut self, name: u64, progress: &Progress) -> Result<()> {
        let path = self.path(name);
        let buffer = &mut self.buffer;
        progress.read(|| {
            let mut file = File::open(path)?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            buffer.clear();
            file.read_to_end(buffer)?;
            Ok(())
        })
    }

    /// Syncs the file system after every so many operations.
    fn sync_every(&mut self, operations: u64) -> Result<()> {
        self.operations += 1;
        if self.operations.is_multiple_of(operations) {
            syncfs(File::open(&self.folder)?)?;
        }
        Ok(())
    }
}
