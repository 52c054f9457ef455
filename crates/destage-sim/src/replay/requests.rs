//! A recording as requests of a trace, for everything that takes traces.

use super::load::{Arrival, Load};
use crate::trace::{Extent, Op, Request};
use destage_core::replace::unspread;
use destage_core::{Intent, Time, WaitFor};
use destage_record::{Asked, What};

/// Bytes of a volume's block.
const BLOCK: u64 = 4_096;
/// The device of blocks whose place the recording does not tell.
const ELSEWHERE: u32 = 1;

/// Longest request of each kind: what a trace of any format may hold, so that a conversion is one.
const TRANSFER_MAX: u64 = 1 << 30;
const DISCARD_MAX: u64 = 64 << 30;

impl Load {
    /// What clients asked for, in order, from the first request on. Of a volume, bytes at their places. Where an older recording does
    /// not tell those, blocks: those that were fetched or evicted while it was recorded lie where they lie, the others on a device of
    /// their own, in the order of their appearance. Of rows, objects by a hash of their keys. Waiting for the log is a flush.
    pub fn trace(&self, is_volume: bool) -> Vec<Request> {
        let began = self.began.unwrap_or_default();
        let mut requests = Vec::new();
        let mut asked = self.asked.iter().peekable();
        for (number, (at, arrival)) in self.arrivals.iter().enumerate() {
            while let Some(asked) = asked.next_if(|(.., before)| *before as usize <= number) {
                ranges(began, asked, &mut requests);
            }
            let time = Time(at.since(began).0);
            match arrival {
                Arrival::Request(_) if self.tells_places() => {}
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
        asked.for_each(|asked| ranges(began, asked, &mut requests));
        requests
    }

    /// Whether the recording tells what clients asked a volume for.
    pub fn tells_places(&self) -> bool {
        !self.asked.is_empty()
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

/// What was asked for, cut into what a trace may hold. What becomes zeros leaves the cache as what is given up does.
fn ranges(began: Time, (at, asked, _): &(Time, Asked, u32), requests: &mut Vec<Request>) {
    let (op, most) = match asked.what {
        What::Read | What::Cache => (Op::Read, TRANSFER_MAX),
        What::Write => (Op::Write, TRANSFER_MAX),
        What::Zero | What::Discard => (Op::Discard, DISCARD_MAX),
    };
    let time = Time(at.since(began).0);
    let (mut offset, end) = (asked.offset, asked.offset + asked.bytes);
    while offset < end {
        let bytes = (end - offset).min(most);
        let extent = Extent::Range { device: 0, offset, bytes };
        requests.push(Request { time, op, extent, host: 0, thread: 0 });
        offset += bytes;
    }
}
