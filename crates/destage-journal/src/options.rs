//! What a journal's user chooses.

use crate::error::Error;
use crate::format::PAGE;
use crate::summary::Summarise;
use std::time::Duration;

/// How a journal is kept. Build one from [`Options::default`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes per segment file: the grain of reclaiming and, halved, the longest record. Default 32 MiB, 64 KiB to
    /// 256 MiB, rounded up to 4 KiB. The first segment of a new journal is smaller, so that the first start is quick.
    pub segment_bytes: u64,
    /// Above this many bytes on disk, decided segments are reclaimed before [`Options::retain`] has passed. Not a hard
    /// limit: undecided groups are kept whatever they take; [`crate::JournalStatus::pinned_bytes`] shows them. Default
    /// 4 GiB.
    pub journal_bytes_max: u64,
    /// How long decided groups are kept, for replay at an origin that went back. Default 10 min.
    pub retain: Duration,
    /// What explains the records (names of tables and columns), kept at the start of every segment. At most a quarter of
    /// `segment_bytes`. Default empty.
    pub catalog: Vec<u8>,
    /// The identity of a new journal; a random one if none is given. One that is there keeps its own.
    pub uuid: Option<[u8; 16]>,
    /// Prepare and recycle segments on a thread of the journal's own, so that a roll does not wait for it. Default true;
    /// false makes the sequence of disk operations deterministic.
    pub background: bool,
    /// How many reclaimed segment files are kept to be used again; others are removed. Default 2. A medium of fixed size
    /// that is the journal's alone keeps them all, which saves filling them with zeros again.
    pub spares_max: usize,
    /// Keep one spare file until the disk has room for no other one, so that a full disk holds up nothing that is buffered: see
    /// [`crate::Journal::room`]. Default false.
    pub keeps_spare: bool,
    /// What a start needs of each payload. With it, sealed segments carry summaries, and a start reads those instead of the
    /// segments: payloads are then not compared with their checksums before their user reads them. Default none.
    pub summarise: Option<Summarise>,
    /// Claim durability without asking the medium for it. Loses acknowledged writes; exists so that tests can show that
    /// they would notice. Default false.
    pub unsafe_no_fsync: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_bytes: 32 << 20,
            journal_bytes_max: 4 << 30,
            retain: Duration::from_secs(600),
            catalog: Vec::new(),
            uuid: None,
            background: true,
            spares_max: 2,
            keeps_spare: false,
            summarise: None,
            unsafe_no_fsync: false,
        }
    }
}

impl Options {
    /// The smallest [`Options::segment_bytes`].
    pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
    /// The largest [`Options::segment_bytes`].
    pub const SEGMENT_BYTES_MAX: u64 = 256 << 20;

    pub(crate) fn validate(&mut self) -> Result<(), Error> {
        let range = Self::SEGMENT_BYTES_MIN..=Self::SEGMENT_BYTES_MAX;
        if !range.contains(&self.segment_bytes) {
            return Err(Error::invalid("a segment is 64 KiB to 256 MiB"));
        }
        self.segment_bytes = self.segment_bytes.next_multiple_of(PAGE as u64);
        check_catalog(&self.catalog, self.segment_bytes)
    }
}

pub(crate) fn check_catalog(catalog: &[u8], segment_bytes: u64) -> Result<(), Error> {
    if catalog.len() as u64 <= segment_bytes / 4 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the catalog of {} bytes exceeds a quarter of a segment: use segments of at least {} bytes",
        catalog.len(),
        catalog.len() * 4
    )))
}
