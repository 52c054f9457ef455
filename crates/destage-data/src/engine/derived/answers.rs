//! What the origin has answered to a query.

use super::super::Engine;
use super::super::measured::Way;
use super::results::Running;
use crate::derived::Answer;
use crate::origins::OriginError;
use destage_core::Time;

impl Engine {
    /// A query ended.
    pub fn queried(&mut self, now: Time, job: u64, result: Result<Answer, OriginError>) {
        self.now = self.now.max(now);
        let Some(running) = self.derived.end(job) else { return };
        let result = result.and_then(|answer| self.not_older(answer, &running));
        let Running { name, version, at, ends, .. } = running;
        match result {
            Ok(answer) => {
                self.measured.origin_works(Way::Read);
                self.answer(&name, version, at, &answer.json);
            }
            Err(error) if error.is_late && self.now >= ends => {
                if self.derived.given_up(&name, self.now) {
                    self.begin_query(name);
                }
            }
            Err(error) => self.query_failed(&name, &error),
        }
        self.start_queries();
        self.pump();
        self.run_ready();
    }
}
