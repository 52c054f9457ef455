//! Settings that are tried out while the server runs: `--auto`.

use super::Served;
use super::requests::Kind;
use crate::engine::VolumeMode;
use crate::settings::AUTO_IN_GROUP;
use destage_core::Time;
use destage_engine::Drive;
use destage_engine::auto::{Counts, Goal};

impl Served {
    /// Looks whether another setting is to be tried, kept or taken back.
    pub(super) fn look_at_auto(&mut self, now: Time) {
        if self.auto.due().is_none_or(|at| at > now) {
            return;
        }
        let status = self.volume.status();
        let of_core = Counts::of(&status.core);
        let (answers, answers_nanos) = self.requests.totals(Kind::Write);
        let counts = Counts {
            changes: status.core.destaged,
            sent: status.sent_blocks,
            answers,
            answers_nanos,
            is_disturbed: of_core.is_disturbed || !matches!(status.mode, VolumeMode::Serving(_)),
            ..of_core
        };
        if let Some(policy) = self.auto.look(now, self.volume.policy(), &counts)
            && let Err(why) = self.volume.set_policy(now, &policy)
        {
            tracing::warn!(volume = self.name, why, "auto: the volume does not take the setting");
        }
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
        let policy = self.auto.switch(now, goal, self.volume.policy());
        policy.map_or(Ok(()), |policy| self.volume.set_policy(now, &policy)).map_err(str::to_owned)
    }

    /// Why it cannot be switched on, if it cannot.
    pub(super) fn refuses_auto(&self) -> Option<String> {
        let name = &self.name;
        self.group.as_ref().map(|_| format!("volume '{name}': {AUTO_IN_GROUP}"))
    }
}
