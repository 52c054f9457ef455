//! What disks the model knows: service times, parallelism, write cache.
//!
//! # Source
//! Koller et al., "Write Policies for Host-side Flash Caches", FAST'13, table 1 ("Access times in microseconds for local
//! PCI-e SSD vs. networked RAID HDD storage").

use std::time::Duration;

/// Table 1, networked RAID HDD storage, microseconds per access.
pub const TABLE_1_RAID_US: Accesses =
    Accesses { sequential_read: 593, sequential_write: 891, random_read: 4813, random_write: 5285 };

/// Table 1, local PCI-e SSD, microseconds per access.
pub const TABLE_1_SSD_US: Accesses =
    Accesses { sequential_read: 93, sequential_write: 82, random_read: 177, random_write: 66 };

/// Microseconds per access of 4 KiB, one at a time, including the way there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accesses {
    /// A read that goes on where the last access ended.
    pub sequential_read: u64,
    /// The same of a write.
    pub sequential_write: u64,
    /// A read anywhere else, mean.
    pub random_read: u64,
    /// The same of a write.
    pub random_write: u64,
}

/// A kind of disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// As flags and settings have it.
    pub name: &'static str,
    /// Of an access of [`FIRST_BYTES`]; longer ones take [`Profile::bytes_per_second`] on top.
    pub accesses_us: Accesses,
    /// The part of each access that is the way there and back: nobody waits for another there.
    pub link_us: u64,
    /// What works at the same time: arms, or channels.
    pub arms: usize,
    /// The addresses go round the arms in stripes of so many bytes.
    pub stripe_bytes: u64,
    /// Of one arm.
    pub bytes_per_second: u64,
    /// Bytes of the volatile write cache; 0 for none. A write is answered once it is in, a flush once all are out.
    pub write_cache_bytes: u64,
    /// What a flush costs when there was something to flush, on top of it.
    pub flush_us: u64,
}

/// What the access times are of.
pub const FIRST_BYTES: u64 = 4096;

impl Profile {
    /// The paper's storage: two disks of 7,200 turns a minute behind a network (its evaluation), with the times of its
    /// table 1 and a write cache of 8 MiB, which its table shows none of.
    pub const RAID: Self = Self {
        name: "raid",
        accesses_us: TABLE_1_RAID_US,
        link_us: 250,
        arms: 2,
        stripe_bytes: 64 << 10,
        bytes_per_second: 110_000_000,
        write_cache_bytes: 8 << 20,
        flush_us: 500,
    };

    /// Networked flash: half a millisecond wherever the address lies, eight at a time.
    pub const FLASH: Self = Self {
        name: "flash",
        accesses_us: Accesses {
            sequential_read: 500,
            sequential_write: 500,
            random_read: 500,
            random_write: 500,
        },
        link_us: 100,
        arms: 8,
        stripe_bytes: 64 << 10,
        bytes_per_second: 500_000_000,
        write_cache_bytes: 8 << 20,
        flush_us: 500,
    };

    /// Those that have a name.
    pub const ALL: [Self; 2] = [Self::RAID, Self::FLASH];

    /// The profile of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name == name)
    }

    /// The same disk with a write cache of so many bytes; 0 for none.
    pub fn with_write_cache(self, bytes: u64) -> Self {
        Self { write_cache_bytes: bytes, ..self }
    }

    /// The part of each access that is the way there and back.
    pub fn link(&self) -> Duration {
        Duration::from_micros(self.link_us)
    }

    /// One line for a report.
    pub fn summary(&self) -> String {
        let Accesses { sequential_read, sequential_write, random_read, random_write } =
            self.accesses_us;
        let cache = match self.write_cache_bytes {
            0 => "no write cache".to_owned(),
            bytes => format!("volatile write cache of {} MiB", bytes >> 20),
        };
        format!(
            "{}: 4 KiB in {sequential_read}/{sequential_write} µs sequential read/write, {random_read}/{random_write} µs \
             random, {} arms, {} MB/s each, {cache}, {} µs for a flush",
            self.name,
            self.arms,
            self.bytes_per_second / 1_000_000,
            self.flush_us,
        )
    }
}
