//! Settings that are tried out while the server runs: `--auto`.

use super::Served;
use super::requests::Kind;
use crate::settings::{AUTO_IN_GROUP, Settings, VolumeSettings};
use destage_core::Time;
use destage_engine::Drive;
use destage_engine::auto::Goal;
use destage_runtime::advice::{Front, Question, Recording};

impl Served {
    /// When [`Served::look_at_auto`] has something to do.
    pub(super) fn auto_due(&self) -> Option<Time> {
        self.volume.auto_due(&self.auto)
    }

    /// Looks whether another setting is to be tried, kept or taken back.
    pub(super) fn look_at_auto(&mut self, now: Time) {
        if self.auto_due().is_none_or(|at| at > now) {
            return;
        }
        let answers = self.requests.totals(Kind::Write);
        if let Err(why) = self.volume.look_at_auto(now, &mut self.auto, answers) {
            tracing::warn!(volume = self.name, why, "auto: the volume does not take the setting");
        }
    }

    /// What advice is to be for, while it is wanted.
    pub(super) fn question(&self) -> Option<Question> {
        let (staleness, front) = (self.volume.policy().staleness, Front::Blocks(self.cache_bytes));
        self.auto.wants_advice().then_some(Question { staleness, front })
    }

    /// This was advised, or why nothing was.
    ///
    /// # Errors
    /// The words cannot be read.
    pub(super) fn advise(&mut self, advice: Result<Vec<String>, String>) -> Result<(), String> {
        let advised = self.auto.advise(self.volume.policy(), advice);
        advised.map_err(|error| error.to_string())
    }

    /// Another goal, if one was named.
    ///
    /// # Errors
    /// The volume does not take what the user had set before; it does so once what stands in the way is over.
    pub(super) fn switch_auto(
        &mut self,
        now: Time,
        goal: Option<Option<Goal>>,
    ) -> Result<(), String> {
        let Some(goal) = goal else { return Ok(()) };
        self.volume.switch_auto(now, &mut self.auto, goal).map_err(str::to_owned)
    }

    /// Why it cannot be switched on, if it cannot.
    pub(super) fn refuses_auto(&self) -> Option<String> {
        let name = &self.name;
        self.group.as_ref().map(|_| format!("volume '{name}': {AUTO_IN_GROUP}"))
    }
}

/// The volumes' recordings, where advice on them is wanted.
pub(super) fn recordings(settings: &Settings) -> Vec<Recording> {
    let of = |volume: &VolumeSettings| {
        let (record, every) = volume.record.as_ref().zip(volume.auto.advice)?;
        Some(Recording { place: volume.name.clone(), path: record.path.clone(), every })
    };
    settings.volumes.iter().filter_map(of).collect()
}
