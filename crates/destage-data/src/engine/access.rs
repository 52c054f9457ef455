//! Asking the core for units.

use super::Engine;
use super::asking::Answer;
use destage_core::{Effect, Input, Intent, RequestId, UnitId};
use destage_engine::{Drive, carry_out};

impl Engine {
    /// Asks the core for units; other effects that precede the answer are carried out, see [`super::asking`]. With
    /// [`Answer::Now`] they are present, and locked if the access is not write-back, until anything else happens: whoever
    /// asked goes on at once.
    pub(super) fn access(
        &mut self,
        request: RequestId,
        intent: Intent,
        units: &[UnitId],
    ) -> Answer {
        if self.freshness.has_expiries() {
            self.expire_due(units);
        }
        if !self.watchers.assumed().is_empty() {
            self.doubt_assumed(request, units);
        }
        if self.core.is_recording() {
            for &unit in units {
                self.core.name(self.now, unit, || self.rows.recorded_identity(unit));
            }
        }
        self.core.handle(self.now, Input::Access { request, intent, units });
        while let Some(effect) = Drive::next_effect(self) {
            match effect {
                Effect::Execute { request: answered, access, observed } if answered == request => {
                    return Answer::Now(access, observed);
                }
                Effect::Refuse { request: answered, refusal } if answered == request => {
                    return Answer::Refused(refusal);
                }
                other => {
                    // Another request may go on because of it, ask the core in turn, and come upon the answer to this one.
                    self.asking.begin(request);
                    carry_out(self, other);
                    if let Some(answer) = self.asking.end(request) {
                        return answer;
                    }
                }
            }
        }
        Answer::Later
    }
}
