//! Writes whose order is known, and what a volume may look like after a crash.

use crate::harness::Random;
use destage_block::nbd::client::{Client, ClientError};

pub(crate) const BLOCK: usize = 4096;
/// Blocks that are written; few, so that they are overwritten often.
pub(crate) const BLOCKS: u64 = 192;

/// What one client wrote, one after the other; the number of a write is its place, from 1.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// The block of each write, and its epoch.
    writes: Vec<(u64, u64)>,
    epoch: u64,
    /// Writes whose flush was answered.
    pub(crate) flushed: u64,
    /// Writes that were answered.
    pub(crate) acknowledged: u64,
}

/// The number in each block: the write that it came from, 0 for none.
pub(crate) type State = Vec<u64>;

impl History {
    /// The next write, to this block; its number.
    pub(crate) fn note(&mut self, block: u64) -> u64 {
        self.writes.push((block, self.epoch));
        self.writes.len() as u64
    }

    /// Writes at random places and flushes now and then, until the connection breaks or `enough` says so.
    pub(crate) fn write(
        &mut self,
        client: &Client,
        random: &mut Random,
        mut enough: impl FnMut(u64) -> bool,
    ) {
        loop {
            if enough(self.writes.len() as u64 + 1) {
                return;
            }
            if self.put(client, random.between(0, BLOCKS)).is_err() {
                return;
            }
            if random.between(0, 12) == 0 && self.flush(client).is_err() {
                return;
            }
        }
    }

    /// One write, to this block.
    pub(crate) fn put(&mut self, client: &Client, block: u64) -> Result<(), ClientError> {
        let number = self.note(block);
        client.write(block * BLOCK as u64, &stamped(number), false)?;
        self.acknowledged = number;
        Ok(())
    }

    /// Ends the epoch.
    pub(crate) fn flush(&mut self, client: &Client) -> Result<(), ClientError> {
        client.flush()?;
        self.flushed = self.acknowledged;
        self.epoch += 1;
        Ok(())
    }

    /// Whether this block was written after that number.
    pub(crate) fn is_overwritten(&self, block: u64, after: u64) -> bool {
        self.next(block, after).is_some()
    }

    /// The first write to this block after that number, if there is one.
    fn next(&self, block: u64, after: u64) -> Option<usize> {
        (after as usize..self.writes.len()).find(|&index| self.writes[index].0 == block)
    }

    fn check_stamps(&self, state: &State) -> Result<(), String> {
        for (block, &number) in state.iter().enumerate() {
            let known = number == 0
                || self.writes.get(number as usize - 1).is_some_and(|w| w.0 == block as u64);
            if !known {
                return Err(format!("block {block} holds {number}, which was never written there"));
            }
        }
        Ok(())
    }

    /// Whether the state is the log up to one write, not before `least`.
    pub(crate) fn is_prefix(&self, state: &State, least: u64) -> Result<(), String> {
        self.check_stamps(state)?;
        let newest = state.iter().copied().max().unwrap_or(0).max(least);
        for (block, &number) in state.iter().enumerate() {
            if let Some(next) = self.next(block as u64, number)
                && (next as u64) < newest
            {
                return Err(format!(
                    "block {block} holds {number} and lacks {}, but write {newest} is there or must be",
                    next + 1
                ));
            }
        }
        Ok(())
    }

    /// Whether the state is all epochs up to some one whole, and any part of the next.
    pub(crate) fn is_epochs(&self, state: &State) -> Result<(), String> {
        self.check_stamps(state)?;
        let epoch_of = |number: u64| self.writes[number as usize - 1].1;
        let newest = state.iter().filter(|&&number| number > 0).map(|&n| epoch_of(n)).max();
        let Some(newest) = newest else { return Ok(()) };
        for (block, &number) in state.iter().enumerate() {
            if let Some(next) = self.next(block as u64, number)
                && self.writes[next].1 < newest
            {
                return Err(format!(
                    "block {block} holds {number} and lacks {} of epoch {}, but there is a write of epoch {newest}",
                    next + 1,
                    self.writes[next].1
                ));
            }
        }
        Ok(())
    }
}

/// A block full of one number.
pub(crate) fn stamped(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// What an image holds; an error for a block that is torn.
pub(crate) fn state_of(bytes: &[u8]) -> Result<State, String> {
    let blocks = bytes.chunks_exact(BLOCK).take(BLOCKS as usize).enumerate();
    blocks
        .map(|(block, bytes)| {
            let number = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
            if bytes == stamped(number) {
                Ok(number)
            } else {
                Err(format!("block {block} is torn"))
            }
        })
        .collect()
}

/// What a volume holds.
pub(crate) fn read_state(client: &Client) -> Result<State, String> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK];
    client.read(0, &mut bytes).expect("the volume can be read");
    state_of(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(writes: &[(u64, u64)]) -> History {
        History { writes: writes.to_vec(), ..History::default() }
    }

    #[test]
    fn the_predicates_tell_states_apart() {
        // Blocks 0, 1, 0, 2 with a flush after the second write.
        let history = history(&[(0, 0), (1, 0), (0, 1), (2, 1)]);
        for (state, prefix, epochs) in [
            ([0, 0, 0], true, true),
            ([1, 2, 0], true, true),
            ([3, 2, 0], true, true),
            ([1, 2, 4], false, true),
            ([0, 2, 0], false, true),
            ([3, 0, 0], false, false),
            ([0, 2, 4], false, false),
        ] {
            assert_eq!(history.is_prefix(&state.to_vec(), 0).is_ok(), prefix, "{state:?}");
            assert_eq!(history.is_epochs(&state.to_vec()).is_ok(), epochs, "{state:?}");
        }
        assert!(history.is_prefix(&vec![1, 2, 0], 3).is_err(), "write 3 was promised");
        assert!(history.is_prefix(&vec![2, 2, 0], 0).is_err(), "2 went elsewhere");
    }
}
