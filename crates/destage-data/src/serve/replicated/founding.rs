//! The beginning of a log where no server holds anything: whether the origin knows of one that all of them have forgotten, and
//! whose the new one's records are.

use super::super::{ServeError, identity, start};
use super::{LOOK_AGAIN, PATIENCE, SEGMENT, is_lost, lost, too_few};
use crate::origins::{self, Owner};
use crate::settings::{JournalKind, ReplicaSettings, Settings};
use destage_journal::Parcel;
use destage_replicas_redis::{Replicas, Said};
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
    /// Begins a log, if it may, or waits for a while.
    ///
    /// # Errors
    /// It may not be begun.
    pub(super) fn go_on(
        &mut self,
        settings: &Settings,
        replicas: &ReplicaSettings,
        log: &Replicas,
    ) -> Result<(), ServeError> {
        match self.is_allowed(settings, replicas) {
            Ok(true) => log.found(),
            Ok(false) => std::thread::sleep(LOOK_AGAIN),
            Err(error) => {
                // Another process may have begun one while the origin was looked at, and told it so.
                std::thread::sleep(LOOK_AGAIN);
                if log.said().is_blank {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Whether a log may be begun. A standby waits while the owner of a forgotten log shows itself at the origin: that one brings
    /// what it has acknowledged there, and would be deposed by a new log.
    ///
    /// # Errors
    /// The origin knows of another log, or cannot be asked.
    fn is_allowed(
        &mut self,
        settings: &Settings,
        replicas: &ReplicaSettings,
    ) -> Result<bool, ServeError> {
        if self.looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return Ok(false);
        }
        start::create_folder(settings)?;
        let has_journal = replicas.journal == JournalKind::Both && has_journal(settings)?;
        let looked = look(settings);
        self.looked_at = Some(Instant::now());
        let (error, may_change) = match looked {
            Ok((describe, owner)) => {
                let checked = identity::check_new(settings, &describe, owner.as_ref());
                match if has_journal { Err(kept_without(settings)) } else { checked } {
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

/// The journal on the disk here is of a log that the servers do not hold.
pub(super) fn kept_without(settings: &Settings) -> ServeError {
    ServeError::new(
        exit::JOURNAL_UNUSABLE,
        format!(
            "the journal in {} was kept without these servers, or they have forgotten the log: it holds writes that their log \
             lacks or does not know. Start with --journal-alone and without --replicas once and let it drain, then use an empty \
             --data folder and --adopt",
            settings.data.display()
        ),
    )
}

/// Whether there is a journal on the disk here: it is not that of a log that is only begun.
fn has_journal(settings: &Settings) -> Result<bool, ServeError> {
    match std::fs::read_dir(settings.data.join("journal")) {
        Ok(entries) => {
            let names = entries.flatten().map(|entry| entry.file_name());
            Ok(names.into_iter().any(|name| name.to_string_lossy().starts_with(SEGMENT)))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ServeError::internal(&error)),
    }
}

fn look(settings: &Settings) -> Result<(String, Option<Owner>), ServeError> {
    let (url, _) = start::origin_url(settings)?;
    let origin = origins::open(&url, settings.origin_timeout, &settings.tables)?;
    let owner = origin.writer()?.owner()?;
    Ok((origin.describe(), owner))
}

/// Says whose the records of a new log are, before the origin hears of it.
pub(super) fn begin(
    settings: &Settings,
    log: &Replicas,
    catalog: &[u8],
) -> Result<[u8; 16], ServeError> {
    let identity = uuid::Uuid::new_v4().into_bytes();
    let payload: destage_replicas::Payload = Parcel::first(identity, catalog).finish().into();
    let began = Instant::now();
    let mut at = None;
    loop {
        // None while the servers' configuration is being changed, which takes a few round trips.
        at = at.or_else(|| log.append(payload.clone()));
        let is_held = |said: &Said| at.is_some_and(|at| said.committed >= at);
        let said = log.wait(LOOK_AGAIN, |said| is_held(said) || is_lost(said));
        if is_held(&said) {
            return Ok(identity);
        }
        if is_lost(&said) {
            return Err(lost(&said));
        }
        if began.elapsed() > PATIENCE
            && let Some(replicas) = &settings.replicas
        {
            return Err(too_few(log, replicas));
        }
    }
}
