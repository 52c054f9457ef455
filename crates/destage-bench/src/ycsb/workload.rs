//! What clients ask for: pure streams of actions, the same for every side.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 4.1 and table 3; the mixes
//! A to C are those of YCSB (Cooper et al., SoCC 2010).

use std::fmt;
use std::str::FromStr;

use crate::keys::{Keys, Rng, Shape};

/// Records that a scan reads; the paper's cardinality.
pub(super) const SCANNED: u64 = 5;
/// Kinds of actions.
pub(super) const KINDS: usize = 4;
pub(super) const READ: usize = 0;
pub(super) const SCAN: usize = 1;
pub(super) const UPDATE: usize = 2;
pub(super) const INSERT: usize = 3;
/// Serial numbers of one client; ten digits hold that of a hundred clients.
const SERIALS: u64 = 100_000_000;

/// A mix of actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads only.
    C,
    /// 95 % scans, 5 % updates.
    S,
    /// Nothing but new records, as in the load phase.
    Load,
}

impl Workload {
    /// All of them, in the order in which they run.
    pub(crate) const ALL: [Self; 5] = [Self::Load, Self::A, Self::B, Self::C, Self::S];

    /// The kind of an action that is drawn, `dice` being 0 to 99.
    fn kind(self, dice: u64) -> usize {
        let (most, percent, rest) = match self {
            Self::A => (READ, 50, UPDATE),
            Self::B => (READ, 95, UPDATE),
            Self::C => (READ, 100, READ),
            Self::S => (SCAN, 95, UPDATE),
            Self::Load => (INSERT, 100, INSERT),
        };
        if dice < percent { most } else { rest }
    }

    /// Whether it changes anything.
    pub(super) fn writes(self) -> bool {
        self != Self::C
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
            Self::C => "C",
            Self::S => "S",
            Self::Load => "load",
        })
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|it| it.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("unknown workload {text:?}: use load, A, B, C or S"))
    }
}

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// All fields of a record.
    Read(u64),
    /// All fields of [`SCANNED`] records in the order of their keys.
    Scan(u64),
    /// New values for all fields of a record.
    Update { key: u64, serial: u64 },
    /// A record that is new.
    Insert { key: u64, serial: u64 },
}

impl Action {
    pub(super) fn kind(self) -> usize {
        match self {
            Self::Read(_) => READ,
            Self::Scan(_) => SCAN,
            Self::Update { .. } => UPDATE,
            Self::Insert { .. } => INSERT,
        }
    }

    /// The record and the serial number of what is written.
    pub(super) fn written(self) -> Option<(u64, u64)> {
        match self {
            Self::Update { key, serial } | Self::Insert { key, serial } => Some((key, serial)),
            Self::Read(_) | Self::Scan(_) => None,
        }
    }
}

/// What all clients of a run share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) workload: Workload,
    pub(super) shape: Shape,
    /// Records there are: 0 to this minus one.
    pub(super) records: u64,
    /// The first key of those that are inserted.
    pub(super) first_new: u64,
    pub(super) seed: u64,
    pub(super) clients: u64,
}

/// One client's stream.
#[derive(Clone, Debug)]
pub(super) struct Generator {
    stream: Stream,
    keys: Keys,
    dice: Rng,
    serial: u64,
    new: u64,
}

impl Generator {
    /// That of client `lane`.
    pub(super) fn new(stream: Stream, lane: u64) -> Self {
        assert!(stream.records >= SCANNED && lane < 100, "a scan fits, and so do serial numbers");
        Self {
            stream,
            keys: Keys::new(stream.shape, stream.records, stream.seed, lane, stream.clients),
            dice: Rng::new(stream.seed ^ (lane + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)),
            serial: lane * SERIALS,
            new: stream.first_new + lane,
        }
    }

    pub(super) fn next(&mut self) -> Action {
        match self.stream.workload.kind(self.dice.below(100)) {
            READ => Action::Read(self.keys.next()),
            SCAN => Action::Scan(self.keys.next().min(self.stream.records - SCANNED)),
            UPDATE => Action::Update { key: self.keys.next(), serial: self.next_serial() },
            _ => {
                let key = self.new;
                self.new += self.stream.clients;
                Action::Insert { key, serial: self.next_serial() }
            }
        }
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// Which client wrote that serial number.
pub(super) fn lane_of(serial: u64) -> u64 {
    serial / SERIALS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(workload: Workload, shape: Shape) -> Stream {
        Stream { workload, shape, records: 1000, first_new: 5000, seed: 3, clients: 4 }
    }

    #[test]
    fn mixes_are_those_of_the_paper() {
        for (workload, shares) in [
            (Workload::A, [50, 0, 50, 0]),
            (Workload::B, [95, 0, 5, 0]),
            (Workload::C, [100, 0, 0, 0]),
            (Workload::S, [0, 95, 5, 0]),
            (Workload::Load, [0, 0, 0, 100]),
        ] {
            let mut counts = [0_i64; KINDS];
            (0..100).for_each(|dice| counts[workload.kind(dice)] += 1);
            assert_eq!(counts, shares, "{workload}");
            assert_eq!(workload.writes(), shares[UPDATE] + shares[INSERT] > 0);
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        assert!("d".parse::<Workload>().is_err());
    }

    #[test]
    fn streams_repeat_with_their_seed_and_differ_between_clients() {
        let draw = |lane, seed| -> Vec<Action> {
            let stream = Stream { seed, ..stream(Workload::A, Shape::Zipfian) };
            let mut generator = Generator::new(stream, lane);
            (0..200).map(|_| generator.next()).collect()
        };
        assert_eq!(draw(1, 7), draw(1, 7));
        assert_ne!(draw(1, 7), draw(2, 7));
        assert_ne!(draw(1, 7), draw(1, 8));
    }

    #[test]
    fn scans_fit_and_new_records_are_everybodys_own() {
        let mut generator = Generator::new(stream(Workload::S, Shape::Uniform), 0);
        let mut scans = 0;
        for _ in 0..2000 {
            if let Action::Scan(key) = generator.next() {
                assert!(key + SCANNED <= 1000);
                scans += 1;
            }
        }
        assert!(scans > 1000);
        let mut keys = std::collections::HashSet::new();
        for lane in 0..4 {
            let mut generator = Generator::new(stream(Workload::Load, Shape::Uniform), lane);
            for _ in 0..100 {
                let (key, serial) = generator.next().written().expect("an insert");
                assert!(key >= 5000 && keys.insert(key));
                assert_eq!(lane_of(serial), lane);
            }
        }
    }

    #[test]
    fn zipfian_reads_favour_few_records() {
        let share = |shape| {
            let mut generator = Generator::new(stream(Workload::C, shape), 0);
            let mut counts = [0_u32; 1000];
            for _ in 0..20_000 {
                let Action::Read(key) = generator.next() else { panic!("reads only") };
                counts[key as usize] += 1;
            }
            counts.sort_unstable();
            counts[990..].iter().sum::<u32>()
        };
        // The ten hottest of a thousand have about two fifths of all accesses, and a hundredth where all are alike.
        assert!(share(Shape::Zipfian) > 6_000 && share(Shape::Uniform) < 1_000);
    }
}
