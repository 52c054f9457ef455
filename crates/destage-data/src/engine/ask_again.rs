//! What was put off for an origin that was away is asked again: see [`super::put_off`].

use super::put_off::Question;
use super::{Engine, FetchJob, Io};
use destage_core::{Fault, Input};

impl Engine {
    /// Asks again what it is time for, and gives up what nobody waits for any more.
    pub(super) fn ask_put_off(&mut self) {
        let mut asks = true;
        for question in self.jobs.put_off_mut().take_due(self.now) {
            let is_awaited = match &question {
                Question::Row(job) => self.is_awaited(job.unit),
                Question::Other(request, _) => {
                    self.sessions.waiting(*request).is_some() || self.awaits_numbers(*request)
                }
            };
            match question {
                Question::Row(job) if !is_awaited => self.row_failed(&job, Fault::Unavailable),
                Question::Other(request, Io::Scan { .. }) if !is_awaited => {
                    self.undecided.structural_mut().unpin(request.0);
                    self.domains.unask(request.0);
                }
                Question::Other(request, Io::NextKeys { .. }) if !is_awaited => {
                    self.forget_numbers(request);
                }
                _ if !is_awaited => {}
                question if !asks => self.put_off(question),
                Question::Row(job) => self.jobs.fetch(job),
                Question::Other(_, io) => self.jobs.push(io),
            }
            asks &= !is_awaited || !self.measured.is_read_failing();
        }
    }

    /// Whoever waits for a row is told that it does not come.
    pub(super) fn row_failed(&mut self, job: &FetchJob, fault: Fault) {
        let unit = job.unit;
        self.rows.pages().end(unit);
        self.decisions.fetch_failed(unit);
        let identity = self.rows.identity(job.table, &job.key);
        self.core.handle(self.now, Input::Fetched { unit, result: Err(fault), identity });
        self.pump();
    }
}
