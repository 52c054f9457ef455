//! Clients that write sectors with their names on them, and check what they read.

use super::model::Registers;
use super::random::Random;
use super::world::{SECTOR, ids, sector_bytes};
use crate::request::{Reply, Request, RequestError, Status};
use std::collections::BTreeMap;
use std::ops::Range;

/// What they have asked and what they know.
#[derive(Debug)]
pub(super) struct Clients {
    pub(super) registers: Registers,
    sectors: usize,
    asked: BTreeMap<u64, Asked>,
    next: u32,
    /// Where they mostly write.
    hot: Range<u64>,
}

#[derive(Debug)]
enum Asked {
    Read { begun: u64, first: usize },
    Write { id: u32, fua: bool },
    Flush { begun: u64 },
    Status { begun: u64, sectors: Range<usize> },
    Other,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Read,
    Write,
    Flush,
    Other,
    Failed,
}

impl Clients {
    pub(super) fn new(values: &[u32], random: &mut Random) -> Self {
        let sectors = values.len();
        let from = random.below(sectors as u64 / 2);
        Self {
            registers: Registers::new(values),
            sectors,
            asked: BTreeMap::new(),
            next: 1_000_000,
            hot: from..from + sectors as u64 / 4,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Nobody will be answered any more.
    pub(super) fn forget(&mut self) {
        self.asked.clear();
    }

    fn range(&mut self, random: &mut Random) -> Range<usize> {
        let all = self.sectors as u64;
        let mut first = if random.chance(60) {
            self.hot.start + random.below(self.hot.end - self.hot.start)
        } else {
            random.below(all)
        };
        let mut len = match random.below(10) {
            0 => 1 + random.below(200),
            1..=2 => 1 + random.below(12),
            _ => 8 * (1 + random.below(6)),
        };
        if random.chance(60) {
            first = first / 8 * 8;
            len = len.next_multiple_of(8);
        }
        let end = (first + len).min(all);
        first as usize..end as usize
    }

    /// A request and its tag.
    pub(super) fn ask(&mut self, random: &mut Random) -> (u64, Request) {
        self.next += 1;
        let (id, tag) = (self.next, u64::from(self.next));
        let sectors = self.range(random);
        let (offset, len) = ((sectors.start * SECTOR) as u64, (sectors.len() * SECTOR) as u64);
        let fua = random.chance(10);
        let request = match random.below(100) {
            0..=39 => {
                self.asked.insert(tag, Asked::Write { id, fua });
                let data: Vec<u8> =
                    sectors.clone().flat_map(|sector| sector_bytes(id, sector)).collect();
                self.registers.begin(id, id, sectors);
                Request::Write { offset, data, fua }
            }
            40..=49 => {
                self.asked.insert(tag, Asked::Write { id, fua });
                self.registers.begin(id, 0, sectors);
                Request::Zero { offset, len, fua, punch: random.chance(50) }
            }
            50..=57 => {
                let begun = self.registers.moment();
                self.asked.insert(tag, Asked::Flush { begun });
                Request::Flush
            }
            58..=60 => {
                let begun = self.registers.moment();
                self.asked.insert(tag, Asked::Status { begun, sectors });
                Request::Status { offset, len }
            }
            61..=63 => {
                self.asked.insert(tag, Asked::Other);
                Request::Cache { offset, len }
            }
            _ => return (tag, self.read(tag, sectors)),
        };
        (tag, request)
    }

    fn read(&mut self, tag: u64, sectors: Range<usize>) -> Request {
        let begun = self.registers.moment();
        self.asked.insert(tag, Asked::Read { begun, first: sectors.start });
        Request::Read {
            offset: (sectors.start * SECTOR) as u64,
            len: (sectors.len() * SECTOR) as u32,
        }
    }

    /// What is told to be a hole must read as zeros.
    fn check_holes(&self, begun: u64, sectors: &Range<usize>, parts: &[Status]) {
        let len: u64 = parts.iter().map(|part| part.len).sum();
        assert!(0 < len && len <= (sectors.len() * SECTOR) as u64, "{parts:?} of {sectors:?}");
        let mut at = sectors.start * SECTOR;
        for part in parts {
            let end = at + part.len as usize;
            for sector in at.div_ceil(SECTOR)..end / SECTOR {
                if part.is_hole {
                    self.registers.check_read(sector, 0, begun);
                }
            }
            at = end;
        }
    }

    /// Takes a reply; `is_durable` if the policy makes each write durable before its reply.
    pub(super) fn answered(&mut self, tag: u64, reply: &Reply, is_durable: bool) -> Ended {
        let asked = self.asked.remove(&tag).expect("each request is answered once");
        match (asked, reply) {
            (_, Reply::Error(RequestError::Invalid)) => panic!("request {tag} was called invalid"),
            (_, Reply::Error(_)) => Ended::Failed,
            (Asked::Read { begun, first }, Reply::Data(data)) => {
                for (index, value) in ids(data, first).into_iter().enumerate() {
                    self.registers.check_read(first + index, value, begun);
                }
                Ended::Read
            }
            (Asked::Write { id, fua }, Reply::Done) => {
                self.registers.end(id, fua || is_durable);
                Ended::Write
            }
            (Asked::Flush { begun }, Reply::Done) => {
                self.registers.flushed(begun);
                Ended::Flush
            }
            (Asked::Status { begun, sectors }, Reply::Status(parts)) => {
                self.check_holes(begun, &sectors, parts);
                Ended::Other
            }
            (Asked::Other, Reply::Done) => Ended::Other,
            (asked, reply) => panic!("{asked:?} was answered by {reply:?}"),
        }
    }
}
