//! Jobs: those that wait to be carried out, and how many are being carried out.

use super::job::{Job, Work};
use std::collections::VecDeque;

/// The jobs of a volume.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    queue: VecDeque<Job>,
    running: usize,
}

impl Jobs {
    /// Puts work at the end of the queue.
    pub(super) fn push(&mut self, work: Work) {
        self.queue.push_back(Job(work));
    }

    /// Takes the job that waits longest.
    pub(super) fn pop(&mut self) -> Option<Job> {
        self.queue.pop_front()
    }

    /// Someone carries a job out from now on.
    pub(super) fn started(&mut self) {
        self.running += 1;
    }

    /// A job has been carried out.
    pub(super) fn ended(&mut self) {
        self.running -= 1;
    }

    /// Whether a job is being carried out.
    pub(super) fn is_running(&self) -> bool {
        self.running > 0
    }

    /// Whether no job waits and none is being carried out.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && !self.is_running()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::job::JobKind;

    #[test]
    fn a_job_counts_until_it_has_been_carried_out() {
        let mut jobs = Jobs::default();
        assert!(jobs.is_idle());
        jobs.push(Work::OriginFlush { asked: 1 });
        assert!(!jobs.is_idle() && !jobs.is_running());
        let job = jobs.pop().expect("a job waits");
        jobs.started();
        assert_eq!(job.kind(), JobKind::Through);
        assert!(jobs.pop().is_none() && jobs.is_running() && !jobs.is_idle());
        jobs.ended();
        assert!(jobs.is_idle());
    }
}
