//! Loads to be simulated where no trace is at hand: requests from a seed.
//!
//! The same parameters and seed give the same requests. What the loads stand for, and what is assumed, is in
//! `docs/SIMULATION.md`.

use crate::blocks::BLOCK_BYTES;
use crate::event::Stream;
use crate::trace::{Extent, Op, Request};
use destage_core::{Span, Time};
use std::fmt;
use std::io::{self, Write};

/// What is generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Generate {
    /// The kind of load.
    pub load: Load,
    /// How many requests.
    pub requests: u64,
    /// From one request to the next.
    pub interval: Span,
    /// Hosts that share the load; each request is of one of them, all equally likely.
    pub hosts: u16,
    /// Threads of each host.
    pub threads: u16,
    /// Of all random streams.
    pub seed: u64,
}

/// A kind of load.
#[derive(Clone, Debug, PartialEq)]
pub enum Load {
    /// Most requests go to a working set of regions that lie anywhere in a file system, the others anywhere: the statistically
    /// generated traces of Holland and others, "Flash caching on the storage client", USENIX ATC 2013.
    WorkingSet {
        /// Blocks of the working set.
        set_blocks: u64,
        /// Blocks of the file system.
        all_blocks: u64,
        /// Blocks of a region.
        region_blocks: u64,
        /// Requests outside of the working set, in percent.
        outside_percent: u8,
        /// Writes, in percent.
        write_percent: u8,
        /// Mean blocks of a request; each has from one to twice as many less one.
        request_blocks: u64,
    },
    /// Records of 1 KiB whose popularity is zipfian and spread over all: the core workloads of YCSB (Cooper and others, SoCC
    /// 2010).
    Ycsb {
        /// Which one.
        workload: Ycsb,
        /// Records.
        records: u64,
    },
}

/// A core workload of YCSB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ycsb {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// Reads and read-modify-writes, half and half.
    F,
}

/// Parameters that contradict one another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GenerateError(&'static str);

/// Bytes of a record of YCSB.
const RECORD: u64 = 1_024;
/// The skew of YCSB's zipfian distribution.
const ZIPF: f64 = 0.99;
/// Most blocks of a device, as for traces.
const BLOCKS_MAX: u64 = (1 << 56) / BLOCK_BYTES as u64;
/// Most records: their popularity is summed up once.
const RECORDS_MAX: u64 = 100_000_000;

impl Generate {
    /// The requests.
    ///
    /// # Errors
    /// Parameters out of range.
    pub fn requests(&self) -> Result<impl Iterator<Item = Request> + use<>, GenerateError> {
        let mut load = State::new(&self.load, self.seed)?;
        if self.hosts == 0 || self.threads == 0 {
            return Err(GenerateError("there must be at least one host and one thread"));
        }
        let mut issuer = Stream::new(self.seed, "issuer");
        let (interval, hosts, threads) = (self.interval, self.hosts, self.threads);
        Ok((0..self.requests).map(move |number| {
            let (op, offset, bytes) = load.next();
            Request {
                time: Time(number.saturating_mul(interval.0)),
                op,
                extent: Extent::Range { device: 0, offset, bytes },
                host: issuer.below(hosts.into()) as u16,
                thread: issuer.below(threads.into()) as u16,
            }
        }))
    }

    /// Writes the requests as a trace in the own format.
    ///
    /// # Errors
    /// As [`Generate::requests`], and those of the writer.
    pub fn write(&self, mut out: impl Write) -> io::Result<()> {
        let requests = self.requests().map_err(io::Error::other)?;
        writeln!(out, "time_ns,op,offset_bytes,size_bytes,host,thread")?;
        writeln!(out, "# destage {} {self}", env!("CARGO_PKG_VERSION"))?;
        for Request { time, op, extent, host, thread } in requests {
            let Extent::Range { offset, bytes, .. } = extent else { continue };
            let op = if op == Op::Read { 'R' } else { 'W' };
            writeln!(out, "{},{op},{offset},{bytes},{host},{thread}", time.0)?;
        }
        out.flush()
    }
}

impl fmt::Display for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { load, requests, interval, hosts, threads, seed } = self;
        write!(f, "{load:?} requests={requests} interval_ns={} hosts={hosts} ", interval.0)?;
        write!(f, "threads={threads} seed={seed}")
    }
}

/// What a load needs from one request to the next.
enum State {
    WorkingSet {
        /// Where the regions begin.
        regions: Vec<u64>,
        region_blocks: u64,
        all_blocks: u64,
        outside_percent: u8,
        write_percent: u8,
        request_blocks: u64,
        random: Stream,
    },
    Ycsb {
        workload: Ycsb,
        records: Zipf,
        random: Stream,
        /// The write of a read-modify-write.
        modified: Option<u64>,
    },
}

impl State {
    fn new(load: &Load, seed: u64) -> Result<Self, GenerateError> {
        let random = Stream::new(seed, "load");
        match *load {
            Load::WorkingSet {
                set_blocks,
                all_blocks,
                region_blocks,
                outside_percent,
                write_percent,
                request_blocks,
            } => {
                let percents = outside_percent <= 100 && write_percent <= 100;
                let sizes = region_blocks >= 1 && region_blocks <= set_blocks;
                let nested = set_blocks <= all_blocks && all_blocks <= BLOCKS_MAX;
                if !(percents && sizes && nested) {
                    return Err(GenerateError(
                        "a region lies in the working set, that in a file system below 2^56 bytes; shares are \
                         0 to 100 percent",
                    ));
                }
                if !(1..=1 << 15).contains(&request_blocks) {
                    return Err(GenerateError("a request has 1 to 32768 blocks on average"));
                }
                let mut places = Stream::new(seed, "regions");
                // Regions may overlap, as in a file system whose files share nothing they hardly do.
                let place = |_| places.below(all_blocks / region_blocks) * region_blocks;
                Ok(Self::WorkingSet {
                    regions: (0..set_blocks / region_blocks).map(place).collect(),
                    region_blocks,
                    all_blocks,
                    outside_percent,
                    write_percent,
                    request_blocks,
                    random,
                })
            }
            Load::Ycsb { records, .. } if !(1..=RECORDS_MAX).contains(&records) => {
                Err(GenerateError("there are 1 to 100000000 records"))
            }
            Load::Ycsb { workload, records } => {
                Ok(Self::Ycsb { workload, records: Zipf::new(records), random, modified: None })
            }
        }
    }

    /// Operation, offset and size of the next request.
    fn next(&mut self) -> (Op, u64, u64) {
        match self {
            Self::WorkingSet {
                regions,
                region_blocks,
                all_blocks,
                outside_percent,
                write_percent,
                request_blocks,
                random,
            } => {
                let is_outside = random.below(100) < u64::from(*outside_percent);
                let op = chance(random, *write_percent, Op::Write, Op::Read);
                let (from, len) = match is_outside {
                    true => (0, *all_blocks),
                    false => (regions[random.below(regions.len() as u64) as usize], *region_blocks),
                };
                let first = random.below(len);
                let blocks = (1 + random.below(2 * *request_blocks - 1)).min(len - first);
                let block = u64::from(BLOCK_BYTES);
                (op, (from + first) * block, blocks * block)
            }
            Self::Ycsb { workload, records, random, modified } => {
                if let Some(record) = modified.take() {
                    return (Op::Write, record * RECORD, RECORD);
                }
                let record = records.next(random);
                let op = match workload {
                    Ycsb::A => chance(random, 50, Op::Write, Op::Read),
                    Ycsb::B => chance(random, 5, Op::Write, Op::Read),
                    Ycsb::C => Op::Read,
                    Ycsb::F => {
                        *modified = chance(random, 50, Some(record), None);
                        Op::Read
                    }
                };
                (op, record * RECORD, RECORD)
            }
        }
    }
}

fn chance<T>(random: &mut Stream, percent: u8, then: T, otherwise: T) -> T {
    if random.below(100) < u64::from(percent) { then } else { otherwise }
}

/// Zipfian numbers in constant time, spread over all by a hash. Source: Gray, Sundaresan, Englert, Baclawski, Weinberger,
/// "Quickly generating billion-record synthetic databases", SIGMOD 1994, as YCSB has it.
struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    fn new(count: u64) -> Self {
        let term = |rank: u64| 1.0 / (rank as f64).powf(ZIPF);
        let zeta: f64 = (1..=count).map(term).sum();
        let two = term(1) + term(2);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - ZIPF)) / (1.0 - two / zeta);
        Self { count, zeta, alpha: 1.0 / (1.0 - ZIPF), eta }
    }

    fn next(&self, random: &mut Stream) -> u64 {
        const UNIT: u64 = 1 << 53;
        let uniform = random.below(UNIT) as f64 / UNIT as f64;
        let scaled = uniform * self.zeta;
        let rank = match scaled {
            _ if scaled < 1.0 => 0,
            _ if scaled < 1.0 + 0.5f64.powf(ZIPF) => 1,
            _ => {
                let share = (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
                (self.count as f64 * share) as u64
            }
        };
        crate::blocks::mix(rank.min(self.count - 1)) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Blocks;
    use crate::trace::{Options, Trace};
    use std::collections::HashMap;

    fn working_set() -> Load {
        Load::WorkingSet {
            set_blocks: 10_000,
            all_blocks: 10_000_000,
            region_blocks: 100,
            outside_percent: 20,
            write_percent: 30,
            request_blocks: 3,
        }
    }

    fn generate(load: Load, requests: u64) -> Generate {
        Generate { load, requests, interval: Span(1_000), hosts: 2, threads: 8, seed: 7 }
    }

    #[test]
    fn a_working_set_has_the_shares_asked_for() {
        let requests: Vec<Request> = generate(working_set(), 40_000).requests().unwrap().collect();
        let writes = requests.iter().filter(|request| request.op == Op::Write).count();
        assert!((11_500..12_500).contains(&writes), "{writes}");
        let mut blocks = Blocks::new(BLOCK_BYTES);
        let mut found = Vec::new();
        let mut uses = HashMap::new();
        let mut accesses = 0;
        for request in &requests {
            blocks.of(request, &mut found).unwrap();
            accesses += found.len();
            found.iter().for_each(|block| *uses.entry(block.id).or_insert(0) += 1);
        }
        assert!((110_000..130_000).contains(&accesses), "{accesses}");
        // Four fifths of the accesses are to the ten thousand blocks of the set, the others hardly ever to the same block twice.
        let often = uses.values().filter(|&&uses| uses > 2).count();
        assert!((9_000..10_500).contains(&often), "{often}");
        let hosts = requests.iter().filter(|request| request.host == 1).count();
        assert!((19_000..21_000).contains(&hosts), "{hosts}");
        assert!(requests.iter().any(|request| request.thread == 7));
    }

    #[test]
    fn ycsb_is_skewed_as_zipf_has_it() {
        let load = |workload| Load::Ycsb { workload, records: 1_000 };
        let requests: Vec<Request> = generate(load(Ycsb::A), 50_000).requests().unwrap().collect();
        let mut uses: HashMap<u64, u64> = HashMap::new();
        for request in &requests {
            let Extent::Range { offset, bytes, .. } = request.extent else { panic!() };
            assert_eq!((offset % RECORD, bytes), (0, RECORD));
            *uses.entry(offset).or_default() += 1;
        }
        let mut counts: Vec<u64> = uses.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        // The most popular of a thousand has 1 / 7.73 of all, the second half of that.
        assert!((6_000..7_000).contains(&counts[0]), "{}", counts[0]);
        assert!((2_900..3_700).contains(&counts[1]), "{}", counts[1]);
        let writes = |workload| {
            let requests = generate(load(workload), 10_000).requests().unwrap();
            requests.filter(|request| request.op == Op::Write).count()
        };
        assert!((4_800..5_200).contains(&writes(Ycsb::A)) && (400..600).contains(&writes(Ycsb::B)));
        assert_eq!(writes(Ycsb::C), 0);
        // Every second operation is a read and a write: one request in three.
        assert!((3_100..3_550).contains(&writes(Ycsb::F)), "{}", writes(Ycsb::F));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let generate = generate(working_set(), 1_000);
        let mut text = Vec::new();
        generate.write(&mut text).unwrap();
        let mut again = Vec::new();
        generate.write(&mut again).unwrap();
        assert_eq!(text, again);
        let trace =
            Trace::from_reader(io::Cursor::new(text), "generated", &Options::default()).unwrap();
        let read: Vec<Request> = trace.collect::<Result<_, _>>().unwrap();
        let requests: Vec<Request> = generate.requests().unwrap().collect();
        assert_eq!(read, requests);
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        let refused = |load| generate(load, 1).requests().err().is_some();
        let Load::WorkingSet { set_blocks, all_blocks, region_blocks, .. } = working_set() else {
            panic!()
        };
        let load = |set, all, region, outside, request| Load::WorkingSet {
            set_blocks: set,
            all_blocks: all,
            region_blocks: region,
            outside_percent: outside,
            write_percent: 30,
            request_blocks: request,
        };
        assert!(!refused(load(set_blocks, all_blocks, region_blocks, 100, 1)));
        assert!(refused(load(all_blocks + 1, all_blocks, region_blocks, 20, 1)));
        assert!(refused(load(set_blocks, all_blocks, set_blocks + 1, 20, 1)));
        assert!(refused(load(set_blocks, all_blocks, 0, 20, 1)));
        assert!(refused(load(set_blocks, BLOCKS_MAX + 1, region_blocks, 20, 1)));
        assert!(refused(load(set_blocks, all_blocks, region_blocks, 101, 1)));
        assert!(refused(load(set_blocks, all_blocks, region_blocks, 20, 0)));
        assert!(refused(Load::Ycsb { workload: Ycsb::A, records: 0 }));
        let no_hosts = Generate { hosts: 0, ..generate(working_set(), 1) };
        assert!(no_hosts.requests().err().is_some());
    }
}
