//! YCSB's core workloads on records of a fixed size.

use super::random::{Zipf, chance};
use super::{Access, GenerateError, Operations, Ycsb};
use crate::event::Stream;
use crate::trace::Op;
use std::collections::VecDeque;

/// Bytes of a record.
pub(super) const RECORD: u64 = 1_024;
/// Most records: their popularity is summed up once.
const RECORDS_MAX: u64 = 100_000_000;

/// [`super::Load::Ycsb`].
pub(super) struct Records {
    workload: Ycsb,
    records: Zipf,
    random: Stream,
}

impl Records {
    pub(super) fn new(workload: Ycsb, records: u64, random: Stream) -> Result<Self, GenerateError> {
        if !(1..=RECORDS_MAX).contains(&records) {
            return Err(GenerateError("there are 1 to 100000000 records"));
        }
        Ok(Self { workload, records: Zipf::new(records), random })
    }
}

impl Operations for Records {
    fn next(&mut self, accesses: &mut VecDeque<Access>) {
        let offset = self.records.next(&mut self.random) * RECORD;
        let access = |op| Access { op, offset, bytes: RECORD };
        let update = |random: &mut Stream, percent| chance(random, percent, Op::Write, Op::Read);
        let op = match self.workload {
            Ycsb::A => update(&mut self.random, 50),
            Ycsb::B => update(&mut self.random, 5),
            Ycsb::C | Ycsb::F => Op::Read,
        };
        accesses.push_back(access(op));
        if self.workload == Ycsb::F {
            let is_modified = chance(&mut self.random, 50, true, false);
            accesses.extend(is_modified.then(|| access(Op::Write)));
        }
    }
}
