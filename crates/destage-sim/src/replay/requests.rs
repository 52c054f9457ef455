//! A recording as requests of a trace, for everything that takes traces.

use super::load::{Arrival, Load};
use crate::trace::{Extent, Op, Request};
use destage_core::{Intent, Time, WaitFor};

/// Bytes of a volume's block.
const BLOCK: u64 = 4_096;
/// The device of blocks whose place the recording does not tell.
const ELSEWHERE: u32 = 1;

/// What stands for itself under [`destage_core::replace::spread`], backwards.
const fn unspread(identity: u64) -> u64 {
    let identity = identity ^ identity >> 31 ^ identity >> 62;
    let identity = identity.wrapping_mul(0x3196_42b2_d24d_8ec3);
    let identity = identity ^ identity >> 27 ^ identity >> 54;
    let identity = identity.wrapping_mul(0x96de_1b17_3f11_9089);
    let identity = identity ^ identity >> 30 ^ identity >> 60;
    identity.wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

impl Load {
    /// What clients asked for, in order, from the first request on. Of a volume, blocks at their places: those that were fetched
    /// or evicted while it was recorded lie where they lie, the others on a device of their own, in the order of their
    /// appearance. Of rows, objects by a hash of their keys. Waiting for the log is a flush.
    pub fn trace(&self, is_volume: bool) -> Vec<Request> {
        let began = self.began.unwrap_or_default();
        let mut requests = Vec::new();
        for (at, arrival) in &self.arrivals {
            let time = Time(at.since(began).0);
            match arrival {
                Arrival::Request(index) => {
                    let request = &self.requests[*index as usize];
                    let op = match request.intent {
                        Intent::Read | Intent::ReadSettled => Op::Read,
                        Intent::Write { .. } => Op::Write,
                    };
                    let new = |extent| Request { time, op, extent, host: 0, thread: 0 };
                    if is_volume {
                        requests.extend(self.runs(&request.items).into_iter().map(new));
                    } else {
                        requests.extend(request.items.iter().map(|&item| new(self.object(item))));
                    }
                }
                Arrival::Wait(WaitFor::Committed) => {
                    let extent = Extent::Range { device: 0, offset: 0, bytes: 0 };
                    requests.push(Request { time, op: Op::Flush, extent, host: 0, thread: 0 });
                }
                _ => {}
            }
        }
        requests
    }

    /// How many blocks or rows the recording touches, and of how many it tells what they are.
    pub fn known(&self) -> (u64, u64) {
        let known = self.identities.iter().filter(|identity| identity.is_some()).count();
        (self.identities.len() as u64, known as u64)
    }

    /// Neighbouring blocks together.
    fn runs(&self, items: &[u32]) -> Vec<Extent> {
        let mut places: Vec<(u32, u64)> = items.iter().map(|&item| self.place(item)).collect();
        places.sort_unstable();
        places.dedup();
        let mut runs: Vec<Extent> = Vec::new();
        for (place_device, block) in places {
            match runs.last_mut() {
                Some(Extent::Range { device, offset, bytes })
                    if *device == place_device && *offset + *bytes == block * BLOCK =>
                {
                    *bytes += BLOCK;
                }
                _ => {
                    let offset = block * BLOCK;
                    runs.push(Extent::Range { device: place_device, offset, bytes: BLOCK });
                }
            }
        }
        runs
    }

    pub(super) fn place(&self, item: u32) -> (u32, u64) {
        let block = self.identities[item as usize].map(unspread);
        // What is no block of a volume is no place either.
        block
            .filter(|block| block >> 44 == 0)
            .map_or_else(|| (ELSEWHERE, item.into()), |block| (0, block))
    }

    fn object(&self, item: u32) -> Extent {
        let id = self.identities[item as usize].unwrap_or_else(|| u64::from(item));
        Extent::Object { id, bytes: u64::from(self.sizes[item as usize]).max(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::replace::spread;

    #[test]
    fn a_block_is_found_again_by_what_it_is_known_by() {
        for block in (0..100_000).chain([u64::MAX, 1 << 43, 0x1234_5678_9abc]) {
            assert_eq!(unspread(spread(block)), block);
        }
    }
}
