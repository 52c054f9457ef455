//! What the entries of the log hold: parcels of the journal's records.

use super::ServeError;
use destage_core::Lsn;
use destage_journal::{Journal, ParcelReader};
use destage_replicas::{Payload, Position};

pub(super) type Entries = [(Position, Payload)];

/// Whether a journal ends as the log does, and holds the same wherever both have something.
///
/// # Errors
/// An entry is no parcel, or the journal cannot be read.
pub(super) fn says_the_same(journal: &Journal, entries: &Entries) -> Result<bool, ServeError> {
    let mut last = 0;
    for (_, payload) in entries.iter().filter(|(_, payload)| !payload.is_empty()) {
        let mut reader = ParcelReader::open(payload)?;
        while let Some(record) = reader.advance()? {
            last = record.lsn;
            let mut found = journal.read(record.lsn, record.lsn);
            let Some(found) = found.advance()? else {
                if record.lsn < journal.status().oldest_lsn {
                    continue;
                }
                return Ok(false);
            };
            if found.payload != record.payload || found.stamp_ns != record.stamp_ns {
                return Ok(false);
            }
        }
    }
    Ok(journal.last() == last)
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
