//! Jobs under way in virtual time.

use crate::engine::job::{Done, JobDone, Work};
use crate::engine::{Context, Job, JobKind};
use destage_core::Lsn;

/// A job whose end is to come.
#[derive(Debug)]
pub(super) enum Running {
    /// All that it does happens at its end.
    Whole(Job),
    /// All that it does has happened at its beginning: what goes on meanwhile is none of it.
    Done(Box<JobDone>),
}

impl Running {
    /// Carries out a sync beside writes, which covers what was written before, and with `reads_now` what takes no waiting, as a
    /// server does; leaves anything else to its end.
    pub(super) fn begun(job: Job, context: &Context, reads_now: bool) -> Self {
        match job.0 {
            Work::Log(ref work) if work.lane().is_some() => Self::Done(Box::new(job.run(context))),
            _ if reads_now => match job.run_now(context) {
                Ok(done) => Self::Done(Box::new(done)),
                Err(job) => Self::Whole(job),
            },
            _ => Self::Whole(job),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }

    pub(super) fn is_destage(&self) -> bool {
        matches!(self, Self::Whole(job) if job.kind() == JobKind::Destage)
    }

    pub(super) fn end(self, context: &Context) -> JobDone {
        match self {
            Self::Whole(job) => job.run(context),
            Self::Done(done) => *done,
        }
    }
}

/// A sync beside writes as if it had covered all that was logged by its end, which it must not claim.
pub(super) fn claiming(done: JobDone, last: Lsn) -> JobDone {
    match done.0 {
        Done::Log(mut sync) if !sync.is_flush() => {
            sync.result = sync.result.map(|_| last);
            JobDone(Done::Log(sync))
        }
        other => JobDone(other),
    }
}
