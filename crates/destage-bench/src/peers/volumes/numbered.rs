//! `destage-bench numbered`: numbered writes of 4 KiB, one after the other, each to a block that its number and the seed tell.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::Result;
use crate::keys::Rng;

/// Bytes of a block and of a write.
pub(super) const BLOCK: usize = 4096;
/// How often the program says how far it is.
const EVERY: Duration = Duration::from_millis(100);
/// A block begins with this, the seed and the number of its write.
const MAGIC: &[u8; 8] = b"numbered";

/// The arguments of `destage-bench numbered`.
#[derive(Debug, Args)]
pub(crate) struct NumberedArgs {
    /// The device to write to
    #[arg(long, value_name = "PATH")]
    pub(crate) device: PathBuf,
    /// Blocks of 4 KiB that are written, from the start of the device
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 32), value_name = "COUNT")]
    pub(crate) blocks: u64,
    /// Seed of the blocks' order
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: u64,
    /// A sync after so many writes
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT")]
    pub(crate) sync_every: u64,
    /// What the lines call the device
    #[arg(long, value_name = "NAME")]
    pub(crate) side: String,
}

/// Which block each write goes to: the first write's comes first.
#[derive(Clone, Debug)]
pub(super) struct Order {
    rng: Rng,
    blocks: u64,
}

impl Order {
    pub(super) fn new(seed: u64, blocks: u64) -> Self {
        Self { rng: Rng::new(seed), blocks }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.rng.below(self.blocks)
    }
}

/// Aligned as direct writes must be.
#[repr(align(4096))]
struct Block([u8; BLOCK]);

/// Writes until somebody ends it. Each line that it prints says how many writes were answered, and after how many milliseconds.
///
/// # Errors
///
/// The device cannot be opened, or a write failed.
pub(crate) fn run(arguments: &NumberedArgs) -> Result<()> {
    let mut options = OpenOptions::new();
    let device = options.write(true).custom_flags(libc::O_DIRECT).open(&arguments.device)?;
    let mut order = Order::new(arguments.seed, arguments.blocks);
    let mut block = Box::new(Block([0; BLOCK]));
    let begun = Instant::now();
    let mut said = begun;
    for number in 1.. {
        fill(&mut block.0, arguments.seed, number);
        device.write_all_at(&block.0, order.next() * BLOCK as u64)?;
        if said.elapsed() >= EVERY {
            said = Instant::now();
            // One write, so that the lines of several programs stay whole.
            let line = line(&arguments.side, number, said - begun);
            std::io::stdout().write_all(line.as_bytes())?;
        }
        if number % arguments.sync_every == 0 {
            device.sync_data()?;
        }
    }
    Ok(())
}

fn line(side: &str, number: u64, after: Duration) -> String {
    format!("@numbered {side} {number} {}\n", after.as_millis())
}

fn fill(block: &mut [u8; BLOCK], seed: u64, number: u64) {
    let head = [*MAGIC, seed.to_le_bytes(), number.to_le_bytes()].concat();
    // At both ends, so that a block of which a part is older is seen.
    block[..head.len()].copy_from_slice(&head);
    block[BLOCK - head.len()..].copy_from_slice(&head);
}

/// The number of the write that a block holds; 0 if it holds none of them.
///
/// # Errors
///
/// Its two ends are of different writes.
pub(super) fn number_of(block: &[u8], seed: u64) -> Result<u64> {
    let at = |from: usize| -> u64 {
        let head = &block[from..from + 24];
        let is_ours = head.starts_with(MAGIC) && head[8..16] == seed.to_le_bytes();
        let number = head[16..].try_into().map_or(0, u64::from_le_bytes);
        if is_ours { number } else { 0 }
    };
    let (first, last) = (at(0), at(BLOCK - 24));
    if first == last {
        Ok(first)
    } else {
        Err(format!("one block holds write {first} and write {last}").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_tells_its_write_and_a_torn_one_is_seen() {
        let mut block = [7; BLOCK];
        assert_eq!(number_of(&block, 1).expect("whole"), 0);
        fill(&mut block, 1, 300);
        assert_eq!(number_of(&block, 1).expect("whole"), 300);
        assert_eq!(number_of(&block, 2).expect("another run's"), 0);
        block[..512].fill(0);
        assert!(number_of(&block, 1).is_err());
    }

    #[test]
    fn writes_go_where_the_judge_looks_for_them() {
        let mut here = Order::new(5, 100);
        let mut there = Order::new(5, 100);
        let places: Vec<u64> = (0..50).map(|_| here.next()).collect();
        assert!(places.iter().all(|place| *place < 100 && there.next() == *place));
    }
}
