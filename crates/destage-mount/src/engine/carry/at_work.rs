//! When this mount last changed files at the origin, by the origin's own clock.
//!
//! A further attempt at a batch finds files neither as they were nor as they were to be, and the earlier attempt may have left
//! them so. What tells its traces from the work of others is the time: while it changes files, a mount keeps saying so in a file
//! of its own at the origin. What has changed a good while after that was changed by others.

use super::super::plan::{FileWork, Plan};
use super::Carrier;
use crate::ask::{Errno, Ino, Kind, Moment};
use crate::origin::Result;
use destage_core::{Span, Time};
use std::sync::{Mutex, PoisonError};

/// When this process last said that it changes files, by its own clock.
#[derive(Debug, Default)]
pub(crate) struct AtWork(Mutex<Option<Time>>);

impl Carrier<'_> {
    /// To be called before each effect on a file of the tree: the origin says durably by then that there are some about now.
    pub(super) fn is_at_work(&self) -> Result<()> {
        let now = (self.clock)();
        // A panic ends the process: see the program's `main`. Whoever comes meanwhile waits, for nothing is said yet.
        let mut said = self.at_work.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|said| now >= said + SAY_EVERY) {
            self.origin.write(&self.own.at_work, 0, b"1")?;
            self.origin.sync(&self.own.at_work)?;
            *said = Some(now);
        }
        Ok(())
    }

    /// Files that others have changed since an earlier attempt may have.
    pub(super) fn changed_since(&self, plan: &Plan) -> Result<Vec<Ino>> {
        let mut others = Vec::new();
        let is_tried = |file: &&FileWork| {
            file.is_brought && file.has_content && !file.is_lost && !file.is_others
        };
        let mut tried = plan.files.iter().filter(is_tried).peekable();
        // Among hosts with tokens nobody else has had the file: else it is lost. And what the server of CephFS does to the
        // times of files after an eviction comes later.
        if plan.is_shared || tried.peek().is_none() {
            return Ok(others);
        }
        let until = later(self.origin.stat(&self.own.at_work)?.ctime, TRACES_MAX);
        for file in tried.filter(|file| file.stat.kind == Kind::File) {
            match self.origin.stat(&file.key) {
                Ok(found) if found.ctime <= until => {}
                // As it was before the first attempt.
                Ok(found) if file.tried.is_some_and(|base| base.is_of(&found, false)) => {}
                Ok(_) if self.is_only_here(file)? => {}
                Ok(_) => others.push(file.key.ino),
                // Whoever brings it finds that out.
                Err(Errno::STALE | Errno::NOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(others)
    }
}

fn later(moment: Moment, span: Span) -> Moment {
    Moment { seconds: moment.seconds + (span.0 / 1_000_000_000) as i64, ..moment }
}

/// How often the origin is told.
const SAY_EVERY: Span = Span::from_secs(1);
/// How long after it was told an effect may show: one that is under way by then takes its time, and clocks are coarse.
const TRACES_MAX: Span = Span::from_secs(10);
