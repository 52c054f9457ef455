//! Collections that are gone for a while: renamed, or dropped to be restored.
//!
//! MongoDB takes a collection that is not there for an empty one, and makes it with the first insert. Its documents would
//! count as absent then and the writes to them as rejected, and what an insert makes would stand in the way of its return.
//! So wherever no document was found it is asked for the collection: where it is gone, reads fail and writes wait, as with a
//! table that is gone elsewhere.

use super::connection::Connection;
use super::statements::Verb;
use crate::contract::OriginError;
use destage_core::Fault;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// Those that were there; shared by all connections to one origin.
#[derive(Debug, Default)]
pub(super) struct Collections(Mutex<HashSet<String>>);

impl Collections {
    /// It is there.
    pub(super) fn note(&self, name: &str) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(name) {
            known.insert(name.to_owned());
        }
    }

    fn was_there(&self, name: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

/// Before a read that found nothing is believed.
///
/// # Errors
/// [`Fault::Denied`] if the collection was there, and is gone. One that never was is empty.
pub(super) fn check_read(
    connection: &mut Connection,
    what: &str,
    name: &str,
) -> Result<(), OriginError> {
    if connection.collections().was_there(name) { check(connection, what, name) } else { Ok(()) }
}

/// Before documents that are not there are written, or said to be missing.
///
/// # Errors
/// [`Fault::Denied`] if the collection is gone; for an insert, which may make it, if it was there.
pub(super) fn check_write(
    connection: &mut Connection,
    what: &str,
    name: &str,
    verb: Verb,
) -> Result<(), OriginError> {
    match verb {
        Verb::Insert => check_read(connection, what, name),
        Verb::Update | Verb::Delete => check(connection, what, name),
    }
}

fn check(connection: &mut Connection, what: &str, name: &str) -> Result<(), OriginError> {
    if connection.has_collection(what, name)? {
        return Ok(());
    }
    let place = connection.place();
    let message = format!(
        "failed to {what} at {place}: the collection {name} is gone, renamed or dropped: bring it back, or create it if its \
         documents shall not come back"
    );
    Err(OriginError::new(Fault::Denied, message))
}
