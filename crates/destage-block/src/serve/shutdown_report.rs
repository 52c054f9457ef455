//! The report of a shutdown: what the volumes leave behind, and the exit code that says so.

use super::{ServeError, Served, report};
use destage_core::StopReason;
use destage_engine::Drive;
use destage_runtime::exit;

/// What the volumes leave behind.
#[derive(Debug, Default)]
pub(super) struct ShutdownReport {
    /// Volumes whose log cannot be gone on with.
    failed: Vec<String>,
    /// Volumes that another host has taken over.
    fenced: Vec<String>,
    /// Volumes with writes that the next start sends.
    dirty: Vec<String>,
    /// Volumes whose origin has not confirmed what was written through.
    unflushed: Vec<String>,
}

impl ShutdownReport {
    /// Looks at a volume that is about to be closed.
    pub(super) fn note(&mut self, served: &Served) {
        let (name, origin) = (&served.name, &served.description);
        let writes = served.volume.undecided();
        if let Some(why) = report::tampered(served) {
            self.failed.push(match writes {
                0 => format!("{why}; everything is at {origin}"),
                _ => format!("{why}; {writes} writes are not known to be at {origin}"),
            });
            return;
        }
        if served.volume.stop_reason() == Some(StopReason::Fenced) {
            self.fenced.push(format!(
                "another host has taken {origin} over from volume '{name}': {writes} writes that were not known to be there stay in \
                 {}, and no start sends them over newer ones",
                served.cache
            ));
            return;
        }
        let has_failed = served.volume.stop_reason() == Some(StopReason::JournalFailed);
        if let (true, Some(why)) = (has_failed, report::stopped(served)) {
            self.failed.push(format!("{why}; {writes} writes are not known to be at {origin}"));
        } else if writes > 0 {
            self.dirty
                .push(format!("volume '{name}': {writes} writes that {origin} has not taken"));
        } else if served.volume.is_origin_unflushed() {
            self.unflushed.push(format!("volume '{name}' ({origin})"));
        }
    }

    /// # Errors
    /// With the code of the worst: `JOURNAL_UNUSABLE`, `FENCED` or `DIRTY_REMAINS`, and all volumes that are concerned.
    pub(super) fn verdict(mut self) -> Result<(), ServeError> {
        let dirty = (!self.dirty.is_empty()).then(|| {
            format!(
                "stopped with {}; they are in the cache, and the next start destages them",
                self.dirty.join(", ")
            )
        });
        if !self.failed.is_empty() {
            self.failed.extend(self.fenced);
            self.failed.extend(dirty);
            return Err(ServeError::new(exit::JOURNAL_UNUSABLE, self.failed.join("; ")));
        }
        if !self.fenced.is_empty() {
            self.fenced.extend(dirty);
            return Err(ServeError::new(exit::FENCED, self.fenced.join("; ")));
        }
        if let Some(message) = dirty {
            return Err(ServeError::new(exit::DIRTY_REMAINS, message));
        }
        if !self.unflushed.is_empty() {
            return Err(ServeError::new(
                exit::DIRTY_REMAINS,
                format!(
                    "the origin has not confirmed that what was written through is durable: {}; look after it, start once \
                     more and flush",
                    self.unflushed.join(", ")
                ),
            ));
        }
        Ok(())
    }
}
