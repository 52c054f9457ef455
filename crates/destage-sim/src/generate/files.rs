//! Loads of files, as the blocks of a file system without metadata: PostMark, Filebench's file server and mail server.
//!
//! A file's blocks are the lowest that are free; deleting it discards them. Requests are of whole blocks and at most 1 MiB.

use super::random::{chance, gamma};
use super::{Access, BLOCK, GenerateError, Operations};
use crate::event::Stream;
use crate::trace::Op;
use std::collections::{BTreeMap, VecDeque};

/// Largest request, blocks: Filebench's I/O size of 1 MiB.
const REQUEST_BLOCKS_MAX: u64 = (1 << 20) / BLOCK;
const FILES_MAX: u64 = 10_000_000;

/// So many files, within bounds.
fn checked(files: u64) -> Result<u64, GenerateError> {
    let fits = (1..=FILES_MAX).contains(&files);
    if fits { Ok(files) } else { Err(GenerateError("there are 1 to 10000000 files")) }
}

/// First block and count.
type Run = (u64, u64);

/// A volume that is as large as it has to be.
#[derive(Debug, Default)]
struct Space {
    /// Free runs below the end.
    free: BTreeMap<u64, u64>,
    end: u64,
}

impl Space {
    fn take(&mut self, mut blocks: u64) -> Vec<Run> {
        let mut runs = Vec::new();
        while blocks > 0 {
            let Some((first, count)) = self.free.pop_first() else {
                runs.push((self.end, blocks));
                self.end += blocks;
                break;
            };
            let taken = count.min(blocks);
            runs.push((first, taken));
            if taken < count {
                self.free.insert(first + taken, count - taken);
            }
            blocks -= taken;
        }
        runs
    }

    fn give(&mut self, (mut first, mut count): Run) {
        if let Some((&before, &length)) = self.free.range(..first).next_back()
            && before + length == first
        {
            self.free.remove(&before);
            first = before;
            count += length;
        }
        if let Some(length) = self.free.remove(&(first + count)) {
            count += length;
        }
        self.free.insert(first, count);
    }
}

#[derive(Debug)]
struct File {
    bytes: u64,
    runs: Vec<Run>,
}

/// All files.
#[derive(Debug, Default)]
struct Files {
    space: Space,
    files: Vec<File>,
}

impl Files {
    /// Writes a new file.
    fn create(&mut self, bytes: u64, accesses: &mut VecDeque<Access>) {
        let bytes = bytes.max(1);
        let runs = self.space.take(bytes.div_ceil(BLOCK));
        runs.iter().for_each(|&run| push(Op::Write, run, accesses));
        self.files.push(File { bytes, runs });
    }

    /// Reads a whole file.
    fn read(&self, file: usize, accesses: &mut VecDeque<Access>) {
        self.files[file].runs.iter().for_each(|&run| push(Op::Read, run, accesses));
    }

    /// Writes at a file's end. A last block that is not full is written again.
    fn append(&mut self, file: usize, bytes: u64, accesses: &mut VecDeque<Access>) {
        let file = &mut self.files[file];
        if bytes == 0 {
            return;
        }
        let blocks = file.bytes.div_ceil(BLOCK);
        if !file.bytes.is_multiple_of(BLOCK)
            && let Some(&(first, count)) = file.runs.last()
        {
            push(Op::Write, (first + count - 1, 1), accesses);
        }
        file.bytes += bytes;
        let runs = self.space.take(file.bytes.div_ceil(BLOCK) - blocks);
        for run in runs {
            push(Op::Write, run, accesses);
            file.runs.push(run);
        }
    }

    fn delete(&mut self, file: usize, accesses: &mut VecDeque<Access>) {
        for run in self.files.swap_remove(file).runs {
            accesses.push_back(Access::blocks(Op::Discard, run.0, run.1));
            self.space.give(run);
        }
    }

    /// Any file, all equally likely.
    fn any(&self, random: &mut Stream) -> Option<usize> {
        let count = self.files.len() as u64;
        (count > 0).then(|| random.below(count) as usize)
    }
}

fn push(op: Op, (first, count): Run, accesses: &mut VecDeque<Access>) {
    for from in (0..count).step_by(REQUEST_BLOCKS_MAX as usize) {
        let blocks = REQUEST_BLOCKS_MAX.min(count - from);
        accesses.push_back(Access::blocks(op, first + from, blocks));
    }
}

/// [`super::Load::PostMark`]: first all files are created, then transactions: of each two, one creates or deletes, one reads or
/// appends. Sizes are those of PostMark's defaults.
pub(super) struct PostMark {
    files: Files,
    to_create: u64,
    random: Stream,
}

const POSTMARK_BYTES: [u64; 2] = [500, 9_770];

impl PostMark {
    pub(super) fn new(files: u64, random: Stream) -> Result<Self, GenerateError> {
        Ok(Self { files: Files::default(), to_create: checked(files)?, random })
    }

    fn size(&mut self) -> u64 {
        let [low, high] = POSTMARK_BYTES;
        low + self.random.below(high - low + 1)
    }
}

impl Operations for PostMark {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        if self.to_create > 0 {
            self.to_create -= 1;
            let size = self.size();
            return self.files.create(size, accesses);
        }
        if let Some(file) = self.files.any(&mut self.random) {
            if chance(&mut self.random, 50, true, false) {
                self.files.read(file, accesses);
            } else {
                // What is appended stays within the largest size; a file of that size is left alone.
                let room = POSTMARK_BYTES[1] - self.files.files[file].bytes;
                let bytes = self.random.below(room + 1);
                self.files.append(file, bytes, accesses);
            }
        }
        let doomed = self.files.any(&mut self.random);
        match doomed.filter(|_| chance(&mut self.random, 50, true, false)) {
            Some(file) => self.files.delete(file, accesses),
            None => {
                let size = self.size();
                self.files.create(size, accesses);
            }
        }
    }
}

/// [`super::Load::FileServer`]: each round writes a new file, appends to one, reads one and deletes one.
pub(super) struct FileServer {
    files: Files,
    to_create: u64,
    random: Stream,
}

const SERVED_MEAN: u64 = 128 << 10;
const APPEND_MAX: u64 = 16 << 10;

impl FileServer {
    pub(super) fn new(files: u64, random: Stream) -> Result<Self, GenerateError> {
        Ok(Self { files: Files::default(), to_create: checked(files)?, random })
    }
}

impl Operations for FileServer {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        let size = gamma(&mut self.random, SERVED_MEAN);
        self.files.create(size, accesses);
        if self.to_create > 0 {
            self.to_create -= 1;
            return;
        }
        let append = 1 + self.random.below(APPEND_MAX);
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.append(file, append, accesses);
        }
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.read(file, accesses);
        }
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.delete(file, accesses);
        }
    }
}

/// [`super::Load::MailServer`]: each round deletes a message, writes a new one and syncs it, reads one, appends to it and
/// syncs it, and reads another one.
pub(super) struct MailServer {
    files: Files,
    to_create: u64,
    random: Stream,
}

const MESSAGE_MEAN: u64 = 16 << 10;

impl MailServer {
    pub(super) fn new(files: u64, random: Stream) -> Result<Self, GenerateError> {
        Ok(Self { files: Files::default(), to_create: checked(files)?, random })
    }
}

impl Operations for MailServer {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        if self.to_create > 0 {
            self.to_create -= 1;
            let size = gamma(&mut self.random, MESSAGE_MEAN);
            return self.files.create(size, accesses);
        }
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.delete(file, accesses);
        }
        let message = 1 + self.random.below(APPEND_MAX);
        self.files.create(message, accesses);
        accesses.push_back(Access::flush());
        let append = 1 + self.random.below(APPEND_MAX);
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.read(file, accesses);
            self.files.append(file, append, accesses);
            accesses.push_back(Access::flush());
        }
        if let Some(file) = self.files.any(&mut self.random) {
            self.files.read(file, accesses);
        }
    }
}
