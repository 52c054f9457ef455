//! Before a log is begun where no server holds anything: whether the origin knows of one that all of them have forgotten.

use super::super::{ServeError, identity, start};
use crate::origins::{self, Owner};
use crate::settings::{ReplicaSettings, Settings};
use destage_runtime::exit;
use std::time::{Duration, Instant};

/// How often the origin is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What the origin has said so far.
#[derive(Debug, Default)]
pub(super) struct Founding {
    looked_at: Option<Instant>,
    is_told: bool,
}

impl Founding {
    /// Whether a log may be begun. A standby waits while the owner of a forgotten log shows itself at the origin: that one brings
    /// what it has acknowledged there, and would be deposed by a new log.
    ///
    /// # Errors
    /// The origin knows of another log, or cannot be asked.
    pub(super) fn is_allowed(
        &mut self,
        settings: &Settings,
        replicas: &ReplicaSettings,
    ) -> Result<bool, ServeError> {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(false);
        }
        let looked = look(settings);
        self.looked_at = Some(Instant::now());
        let (error, may_change) = match looked {
            Ok((describe, owner)) => {
                match identity::check_new(settings, &describe, owner.as_ref()) {
                    Ok(()) => {
                        // Once it has been begun, there is one.
                        self.looked_at = None;
                        return Ok(true);
                    }
                    Err(error) => (error, owner.is_some_and(|owner| owner.may_live())),
                }
            }
            Err(error) => {
                let is_away = error.exit_code() == exit::ORIGIN_UNREACHABLE;
                (error, is_away)
            }
        };
        if !replicas.standby || !may_change {
            return Err(error);
        }
        if !self.is_told {
            self.is_told = true;
            tracing::warn!(%error, "no server holds the log, and no other one is begun in its place yet");
        }
        Ok(false)
    }
}

fn look(settings: &Settings) -> Result<(String, Option<Owner>), ServeError> {
    start::create_folder(settings)?;
    let (url, _) = start::origin_url(settings)?;
    let origin = origins::open(&url, settings.origin_timeout, &settings.tables)?;
    let owner = origin.writer()?.owner()?;
    Ok((origin.describe(), owner))
}
