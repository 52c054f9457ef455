//! Ordering domains that have halted: what people are told, and how they have them go on.

use super::Engine;
use crate::domains::Partition;
use destage_core::{Core, DomainId, Halt, Input};
use destage_runtime::status::HaltReport;

impl Engine {
    pub(super) fn resume_as(&mut self, args: &[String]) -> Result<(), String> {
        let input = match args {
            [] => Input::Resume,
            [park] if park.eq_ignore_ascii_case("park") => Input::ResumeParking,
            _ => return Err("use RESUME or RESUME PARK".into()),
        };
        self.core.handle(self.now, input);
        Ok(())
    }

    /// Whether all that is undecided waits for someone to look at a domain that halted.
    pub fn is_halted(&self) -> bool {
        self.core.is_halted()
    }

    /// What the log is told of a domain that has just halted.
    pub(super) fn tell_halted(&mut self, domain: DomainId, halt: Halt) {
        let report = self.halt_report(domain, halt);
        let (domain, reason) = (report.domain, report.reason);
        match halt {
            Halt::Rejected(lsn) => tracing::error!(
                domain,
                lsn = lsn.0,
                reason,
                "the origin rejected a write, and its ordering domain halts there (on_reject = stop): mend what the origin \
                 lacks and DESTAGE RESUME; DESTAGE RESUME PARK parks the write"
            ),
            Halt::ParkedTooFast => tracing::error!(
                domain,
                reason,
                "an ordering domain halts: look at DESTAGE PARKED LIST, then DESTAGE RESUME"
            ),
        }
    }

    /// The domains that have halted.
    pub(super) fn halt_reports(&self) -> Vec<HaltReport> {
        self.core.halts().map(|(domain, halt)| self.halt_report(domain, halt)).collect()
    }

    fn halt_report(&self, domain: DomainId, halt: Halt) -> HaltReport {
        let (write, reason) = match halt {
            Halt::Rejected(lsn) => {
                let reason = self.undecided.reason(lsn).map(|error| error.message.clone());
                (Some(lsn.0), reason.unwrap_or_default())
            }
            Halt::ParkedTooFast => {
                let most = self.core.policy().limits.parked_per_minute_max;
                (None, format!("more than {most} of its writes were parked within a minute"))
            }
        };
        HaltReport { domain: self.partition().name(domain).to_owned(), write, reason }
    }
}

/// Tells a core what becomes of the rejected writes of the domains that have a choice of their own.
pub(super) fn with_choices(core: Core, partition: &Partition) -> Core {
    partition.ids().fold(core, |core, domain| match partition.on_reject(domain) {
        Some(on_reject) => core.with_on_reject(domain, on_reject),
        None => core,
    })
}
