//! What whoever drives the volume calls when time has passed, and to take its jobs.

use super::Volume;
use super::job::Job;
use destage_core::{Input, Time};
use destage_engine::Drive;

impl Volume {
    /// Time passed, or nothing more is at hand. Harmless at any time.
    pub fn tick(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.fetches.retry(self.now);
        self.go_on();
        self.core.handle(self.now, Input::Tick);
        self.modes.tick(self.now);
        self.pump();
    }

    /// The next job to be carried out. Jobs may run at the same time and end in any order.
    pub fn poll_job(&mut self) -> Option<Job> {
        let job = self.take_sync().or_else(|| self.jobs.pop()).or_else(|| self.take_batch())?;
        self.jobs.started();
        Some(job)
    }

    /// When to call [`Volume::tick`] at the latest.
    pub fn next_timeout(&self) -> Option<Time> {
        let core = self.core.next_timeout();
        let rest = self.requests.has_rests().then_some(self.now);
        let told = self.modes.due();
        [core, self.fetches.retry_at(), self.upkeep_at(), rest, told].into_iter().flatten().min()
    }
}
