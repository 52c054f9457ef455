//! Settings that are tried out while the volume serves: `--auto`.

use super::{Volume, VolumeMode};
use destage_core::Time;
use destage_engine::Drive;
use destage_engine::auto::{Counts, Goal};
use destage_runtime::auto::AutoPilot;

impl Volume {
    /// When to call [`Volume::look_at_auto`] next. Not while the policy is being changed: nothing that is counted says anything
    /// then, and what was asked for must not be replaced by what is in force.
    pub fn auto_due(&self, auto: &AutoPilot) -> Option<Time> {
        auto.due().filter(|_| self.service.next_policy().is_none())
    }

    /// Looks whether another setting is to be tried, kept or taken back. So many writes were answered, and took so many
    /// nanoseconds together.
    ///
    /// # Errors
    /// Why the volume does not take the setting.
    pub fn look_at_auto(
        &mut self,
        now: Time,
        auto: &mut AutoPilot,
        (answers, answers_nanos): (u64, u128),
    ) -> Result<(), &'static str> {
        if self.auto_due(auto).is_none_or(|at| at > now) {
            return Ok(());
        }
        let status = self.status();
        let of_core = Counts::of(&status.core);
        let counts = Counts {
            changes: status.core.destaged,
            sent: status.sent_blocks,
            answers,
            answers_nanos,
            is_disturbed: of_core.is_disturbed || !matches!(status.mode, VolumeMode::Serving(_)),
            ..of_core
        };
        let policy = auto.look(now, self.policy(), &counts);
        policy.map_or(Ok(()), |policy| self.set_policy(now, &policy))
    }

    /// Another goal, or none.
    ///
    /// # Errors
    /// The volume does not take what the user had set before; it does so once what stands in the way is over.
    pub fn switch_auto(
        &mut self,
        now: Time,
        auto: &mut AutoPilot,
        goal: Option<Goal>,
    ) -> Result<(), &'static str> {
        let policy = auto.switch(now, goal, self.wanted_policy());
        policy.map_or(Ok(()), |policy| self.set_policy(now, &policy))
    }
}
