//! What the entries of the log hold: parcels of the journal's records.

use super::ServeError;
use destage_core::Lsn;
use destage_journal::{Error, Journal, ParcelReader, ParcelRecord, Records};
use destage_replicas::{Payload, Position};

pub(super) type Entries = [(Position, Payload)];

/// Whether a journal ends as the log does, and holds the same wherever both have something. Reads each segment once.
///
/// # Errors
/// An entry is no parcel, or the journal cannot be read.
pub(super) fn says_the_same(journal: &Journal, entries: &Entries) -> Result<bool, ServeError> {
    let oldest = journal.status().oldest_lsn;
    let mut last = 0;
    let mut here = None;
    for (_, payload) in entries.iter().filter(|(_, payload)| !payload.is_empty()) {
        let mut reader = ParcelReader::open(payload)?;
        while let Some(record) = reader.advance()? {
            if record.lsn <= last {
                // It is said once more.
                here = None;
            }
            last = record.lsn;
            if record.lsn < oldest {
                continue;
            }
            let here = here.get_or_insert_with(|| journal.read(record.lsn, journal.last()));
            if !comes(here, &record)? {
                return Ok(false);
            }
        }
    }
    Ok(journal.last() == last)
}

/// Whether a record comes, behind earlier ones.
fn comes(here: &mut Records, record: &ParcelRecord<'_>) -> Result<bool, Error> {
    while let Some(found) = here.advance()? {
        if found.lsn >= record.lsn {
            let is_same = found.payload == record.payload && found.stamp_ns == record.stamp_ns;
            return Ok(is_same && found.lsn == record.lsn);
        }
    }
    Ok(false)
}

/// The newest write of an entry, and whether that explains itself.
///
/// # Errors
/// It is no parcel.
pub(super) fn of_parcel(payload: &[u8]) -> Result<(Lsn, bool), ServeError> {
    let mut reader = ParcelReader::open(payload)?;
    let is_explained = reader.catalog.is_some();
    let mut last = Lsn::ZERO;
    while let Some(record) = reader.advance()? {
        last = Lsn(record.lsn);
    }
    Ok((last, is_explained))
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_journal::{Disk, DiskFile, MemDisk, Options};
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts how often a file is opened.
    #[derive(Debug, Default)]
    struct Counting {
        disk: MemDisk,
        opened: AtomicUsize,
    }

    impl Disk for Counting {
        fn list(&self) -> io::Result<Vec<String>> {
            self.disk.list()
        }

        fn open(&self, name: &str, create: bool) -> io::Result<Box<dyn DiskFile>> {
            self.opened.fetch_add(1, Ordering::Relaxed);
            self.disk.open(name, create)
        }

        fn rename(&self, from: &str, to: &str) -> io::Result<()> {
            self.disk.rename(from, to)
        }

        fn remove(&self, name: &str) -> io::Result<()> {
            self.disk.remove(name)
        }

        fn sync_dir(&self) -> io::Result<()> {
            self.disk.sync_dir()
        }
    }

    const COUNT: u64 = 300;

    fn payload(lsn: u64) -> Vec<u8> {
        vec![lsn as u8; 1_000]
    }

    /// A journal of [`COUNT`] records, and the entries that it has handed over, a parcel for every tenth.
    fn sample(disk: Arc<Counting>) -> (Journal, Vec<(Position, Payload)>) {
        let options = Options {
            segment_bytes: Options::SEGMENT_BYTES_MIN,
            background: false,
            catalog: b"tables".to_vec(),
            ..Options::default()
        };
        let (mut journal, _) = Journal::open(disk, options).unwrap();
        journal.hand_over();
        let mut entries = Vec::new();
        for lsn in 1..=COUNT {
            journal.append(lsn, lsn, 0, &payload(lsn));
            if lsn % 10 == 0 {
                let parcel = journal.take_parcel(lsn == 10).unwrap();
                entries.push((Position(lsn), parcel.finish().into()));
                let mut flush = journal.take();
                flush.run(true).unwrap();
                journal.give_back(flush);
            }
        }
        (journal, entries)
    }

    #[test]
    fn a_journal_is_compared_with_its_log_by_reading_it_once() {
        let disk = Arc::new(Counting::default());
        let (journal, entries) = sample(disk.clone());
        let segments = journal.status().segments;
        assert!(segments > 3, "{segments}");
        let before = disk.opened.load(Ordering::Relaxed);
        assert!(says_the_same(&journal, &entries).unwrap());
        let opened = disk.opened.load(Ordering::Relaxed) - before;
        assert!(opened <= segments, "{opened} times, with {segments} segments");
    }

    #[test]
    fn a_journal_differs_from_its_log_where_either_lacks_something_or_says_another_thing() {
        let (mut journal, mut entries) = sample(Arc::default());
        let again = entries[3].clone();
        entries.insert(4, again);
        assert!(says_the_same(&journal, &entries).unwrap(), "an entry that is there twice");
        assert!(says_the_same(&journal, &entries[9..]).unwrap(), "the log begins later");
        assert!(!says_the_same(&journal, &entries[..9]).unwrap(), "the journal has more");

        let other = |stamp, payload: &[u8]| {
            let (mut other, _) = Journal::open(
                Arc::new(MemDisk::default()),
                Options { background: false, ..Options::default() },
            )
            .unwrap();
            other.hand_over();
            other.skip_to(COUNT);
            other.append(COUNT, stamp, 0, payload);
            (Position(COUNT), other.take_parcel(true).unwrap().finish().into())
        };
        assert!(says_the_same(&journal, &[other(COUNT, &payload(COUNT))]).unwrap());
        assert!(!says_the_same(&journal, &[other(COUNT, b"another")]).unwrap());
        assert!(!says_the_same(&journal, &[other(COUNT + 1, &payload(COUNT))]).unwrap());

        journal.reclaim(COUNT - 50, u64::MAX);
        assert!(journal.status().oldest_lsn > 100, "{:?}", journal.status());
        assert!(says_the_same(&journal, &entries).unwrap(), "the journal begins later");
    }
}
