//! Who stands before the slow disk, and what is asked of it.

use std::time::Duration;

/// Whose slow disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Slow,
    Bcache,
    Writecache,
    Ordered,
    Journaled,
    WriteBack,
}

impl Side {
    pub(super) const ALL: [Self; 6] = [
        Self::Slow,
        Self::Bcache,
        Self::Writecache,
        Self::Ordered,
        Self::Journaled,
        Self::WriteBack,
    ];
    pub(super) const PEERS: [Self; 2] = [Self::Bcache, Self::Writecache];
    pub(super) const OURS: [Self; 3] = [Self::Ordered, Self::Journaled, Self::WriteBack];

    /// What the guest's scripts call it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Bcache => "bcache",
            Self::Writecache => "writecache",
            Self::Ordered => "ordered",
            Self::Journaled => "journaled",
            Self::WriteBack => "write-back",
        }
    }

    pub(super) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.word() == word)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slow => "the slow disk alone",
            Self::Bcache => "bcache",
            Self::Writecache => "dm-writecache",
            Self::Ordered => "Destage, ordered",
            Self::Journaled => "Destage, journaled",
            Self::WriteBack => "Destage, write-back",
        }
    }

    pub(super) fn is_ours(self) -> bool {
        Self::OURS.contains(&self)
    }

    /// Where the volume's first block is on the slow disk.
    pub(super) fn offset(self) -> u64 {
        // bcache's superblock is before it.
        if self == Self::Bcache { 8192 } else { 0 }
    }
}

/// What fio does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    /// What the guest's scripts call it. Those that end with `-reads` only read.
    pub(super) word: &'static str,
    pub(super) name: &'static str,
    arguments: &'static str,
}

impl Load {
    pub(super) const ALL: [Self; 5] = [
        Self {
            word: "synced",
            name: "random writes, each synced, depth 1",
            arguments: "--ioengine=psync --rw=randwrite --fsync=1",
        },
        Self {
            word: "deep",
            name: "random writes, depth 16",
            arguments: "--ioengine=io_uring --iodepth=16 --rw=randwrite",
        },
        Self {
            word: "mixed",
            name: "zipfian reads and writes, half and half, depth 4",
            arguments: "--ioengine=io_uring --iodepth=4 --rw=randrw --random_distribution=zipf:0.99",
        },
        Self {
            word: "new-reads",
            name: "random reads of what was just written, depth 4",
            arguments: "--ioengine=io_uring --iodepth=4 --rw=randread",
        },
        Self {
            word: "old-reads",
            name: "random reads of what was written and destaged, depth 4",
            arguments: "--ioengine=io_uring --iodepth=4 --rw=randread",
        },
    ];

    pub(super) fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|load| load.word == word)
    }

    pub(super) fn writes(self) -> bool {
        !self.word.ends_with("-reads")
    }

    /// What fio is told, but for its device.
    pub(super) fn fio(self, blocks: u64, time: Duration, seed: u64) -> String {
        let (own, size, milliseconds) = (self.arguments, blocks * 4, time.as_millis());
        format!(
            "{own} --bs=4k --direct=1 --norandommap --size={size}k --runtime={milliseconds}ms --time_based --randseed={seed}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_is_known() {
        for side in Side::ALL {
            assert_eq!(Side::named(side.word()), Some(side));
            // A name of a disk has room for 20 bytes.
            assert!(side.word().len() + "-slow".len() <= 20);
        }
        for load in Load::ALL {
            assert_eq!(Load::named(load.word), Some(load));
        }
        assert_eq!(Load::ALL.iter().filter(|load| load.writes()).count(), 3);
    }

    #[test]
    fn the_scripts_know_each_load_and_peer() {
        // Those that find the device full, or full and drained.
        let script = include_str!("init.sh");
        for word in ["mixed", "old-reads"] {
            assert!(Load::named(word).is_some() && script.contains(word), "{word}");
        }
        let sides = include_str!("sides.sh");
        for side in Side::ALL.into_iter().filter(|side| !side.is_ours()) {
            assert!(sides.contains(&format!("    {})\n", side.word())), "{}", side.word());
        }
    }
}
