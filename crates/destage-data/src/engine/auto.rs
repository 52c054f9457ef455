//! Settings that are tried out while the server runs: `--auto`.

use super::Engine;
use destage_core::{Input, Policy};
use destage_engine::auto::Counts;
use destage_runtime::advice::{Front, Question};
use destage_runtime::auto::{goal_name, take_goal};
use destage_runtime::policy;

impl Engine {
    /// Looks whether another setting is to be tried, kept or taken back.
    pub(super) fn look_at_auto(&mut self) {
        if self.measured.auto().due().is_none_or(|at| at > self.now) {
            return;
        }
        let status = self.core.status();
        let counts = self.measured.counts(Counts::of(&status));
        if let Some(policy) = self.measured.auto_mut().look(self.now, self.core.policy(), &counts) {
            self.put_in_force(&policy);
        }
    }

    /// What advice is to be for, while it is wanted.
    pub(crate) fn question(&self) -> Option<Question> {
        let policy = self.core.policy();
        let limits = &policy.limits;
        let memory = limits.cache_bytes_max.saturating_add(limits.dirty_bytes_max);
        let question = Question { staleness: policy.staleness, front: Front::Rows(memory) };
        self.measured.auto().wants_advice().then_some(question)
    }

    /// This was advised, or why nothing was.
    ///
    /// # Errors
    /// The words cannot be read.
    pub(crate) fn advise(&mut self, advice: Result<Vec<String>, String>) -> Result<(), String> {
        let advised = self.measured.auto_mut().advise(self.core.policy(), advice);
        advised.map_err(|error| error.to_string())
    }

    fn put_in_force(&mut self, policy: &Policy) {
        self.core.handle(self.now, Input::SetPolicy(policy));
    }

    /// Changes the policy, or what is tried out of it; the policy's new form is returned. Without arguments nothing changes.
    ///
    /// # Errors
    /// An argument does not fit; nothing has changed.
    pub fn change_policy(&mut self, args: &[String]) -> Result<String, String> {
        let (goal, args) = take_goal(args)?;
        let changed =
            policy::change(self.core.policy(), &args).map_err(|error| error.to_string())?;
        if changed != *self.core.policy() {
            tracing::info!(policy = policy::summary(&changed), "policy changed");
            self.put_in_force(&changed);
        }
        self.measured.auto_mut().name(&args, &changed);
        if let Some(goal) = goal
            && let Some(policy) =
                self.measured.auto_mut().switch(self.now, goal, self.core.policy())
        {
            self.put_in_force(&policy);
        }
        let summary = policy::summary(self.core.policy());
        Ok(match self.measured.auto().goal() {
            None => summary,
            goal => format!("{summary}, auto {}", goal_name(goal)),
        })
    }
}
