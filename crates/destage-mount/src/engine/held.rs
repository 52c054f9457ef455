//! Bytes that are held in memory until the origin has them, and which of them are held no more: they were overwritten or cut
//! off, or their file is gone. Those do not count as dirty, however long their group still waits for its turn.

use destage_core::Lsn;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The bytes of a write, with whoever is to be told of their end.
pub(crate) struct Held {
    bytes: Arc<[u8]>,
    of: Option<(Lsn, Freed)>,
}

/// Groups and how many of their bytes are held no more. Whoever lets go of bytes last need not be whoever counts them: a batch on
/// its way holds them as well.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freed(Arc<Mutex<Vec<(Lsn, u32)>>>);

impl Freed {
    /// Holds bytes of a group.
    pub(crate) fn hold(&self, lsn: Lsn, bytes: Arc<[u8]>) -> Arc<Held> {
        Arc::new(Held { bytes, of: Some((lsn, self.clone())) })
    }

    /// What was let go since this was asked.
    pub(crate) fn take(&self) -> Vec<(Lsn, u32)> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::ops::Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Arc<[u8]>> for Held {
    /// Nobody counts them.
    fn from(bytes: Arc<[u8]>) -> Self {
        Self { bytes, of: None }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((lsn, freed)) = &self.of {
            let mut freed = freed.0.lock().unwrap_or_else(PoisonError::into_inner);
            freed.push((*lsn, self.bytes.len() as u32));
        }
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Held {}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.bytes.len())
    }
}
