//! Whether a server can be reached, as those who read see it.
//!
//! The driver looks for a server for as long as it may before it says that there is none. Only the first read waits for
//! that: from then on a thread looks, and reads fail at once until it has found one.

use super::connection::{Connection, Use};
use super::settings::Settings;
use crate::contract::OriginError;
use destage_core::Fault;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

/// Shared by all connections to one origin.
#[derive(Debug, Default)]
pub(super) struct Reachability(Mutex<Option<OriginError>>);

impl Reachability {
    /// Whether a server is there, as far as is known.
    ///
    /// # Errors
    /// What was said when one was looked for last.
    pub(super) fn check(&self) -> Result<(), OriginError> {
        self.error().clone().map_or(Ok(()), Err)
    }

    /// No server was found: others need not look for one.
    pub(super) fn begin(self: &Arc<Self>, settings: &Settings, error: &OriginError) {
        if self.error().replace(error.clone()).is_some() {
            return;
        }
        let (away, settings) = (Arc::downgrade(self), settings.clone());
        // The settings know the origin's state, and must not keep it alive.
        let settings = Settings { reachability: Arc::default(), ..settings };
        let looking = move || {
            while is_still_away(&away, &settings) {
                thread::sleep(PAUSE);
            }
        };
        if let Err(error) = thread::Builder::new().name("finder".into()).spawn(looking) {
            tracing::warn!(%error, "no thread can look for the origin; each read does");
            self.end();
        }
    }

    /// A server has answered.
    pub(super) fn end(&self) {
        *self.error() = None;
    }

    /// Every value is whole, whoever panicked.
    fn error(&self) -> MutexGuard<'_, Option<OriginError>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks once. False as soon as nobody needs to look any more.
fn is_still_away(away: &Weak<Reachability>, settings: &Settings) -> bool {
    if away.strong_count() == 0 {
        return false;
    }
    let found = Connection::open(settings, Use::Finding);
    let Some(away) = away.upgrade() else { return false };
    let mut known = away.error();
    // Somebody else may have found one meanwhile. What cannot be mended by waiting is told to those who ask.
    *known =
        known.take().and_then(|_| found.err()).filter(|error| error.fault == Fault::Unavailable);
    known.is_some()
}

/// Between two looks, each of which takes its own time where nothing answers.
const PAUSE: Duration = Duration::from_millis(100);
