//! Queries that take too long, or fail.

use super::{NONE, script};
use crate::engine::Io;
use crate::engine::tests::claims::Script;
use crate::origins::OriginError;
use destage_core::{Fault, Span};

impl Script {
    /// The queries that are to run with their limits, taken out.
    fn limits(&mut self) -> Vec<(u64, Span)> {
        let limit = |io: &Io| match io {
            Io::Query { job, limit, .. } => Some((*job, *limit)),
            _ => None,
        };
        let found = self.ios.iter().filter_map(limit).collect();
        self.asked();
        found
    }

    fn fail(&mut self, job: u64, error: OriginError) {
        self.engine.queried(self.now, job, Err(error));
        self.turn();
    }

    fn later(&mut self, by: Span) {
        self.now = self.now + by;
        self.turn();
    }
}

fn late() -> OriginError {
    OriginError::new(Fault::Unavailable, "cancelled").late()
}

const SECOND: Span = Span::from_secs(1);

#[test]
fn a_query_is_limited_to_the_time_of_the_last_who_waits_for_it() {
    let mut script = script();
    // Both places are taken while the third key's requests wait, the second one of them 4 s later than the first.
    script.another("GET children:0");
    script.another("GET children:1");
    let others = script.limits();
    assert_eq!(others.len(), 2);
    script.send("GET all");
    script.later(Span::from_secs(4));
    let last = script.another("GET all");
    script.later(SECOND);
    assert_eq!(script.limits().len(), 0);
    script.answer(others[0].0, "[]", 0);
    let limits = script.limits();
    assert_eq!(limits.len(), 1);
    let (job, limit) = limits[0];
    // It was asked for a second ago, and may take ten.
    assert!(limit >= Span::from_secs(9) && limit < Span::from_secs(10), "{limit:?}");
    script.answer(job, "[1]", 0);
    assert_eq!(script.received_by(last), "$3\r\n[1]\r\n");
}

#[test]
fn a_query_that_is_given_up_is_no_failure_of_the_origin_and_frees_its_place() {
    let mut script = script();
    script.send("GET all");
    let (job, limit) = script.limits()[0];
    script.later(limit);
    assert!(script.received().0.starts_with("-TIMEOUT the query of all has not ended"));
    script.fail(job, late());
    assert!(!script.engine.report().origin.down);
    assert_eq!(script.asked(), NONE, "nobody waits for it any more");
    script.send("GET all");
    assert_eq!(script.asked().len(), 1);
}

#[test]
fn whoever_asked_while_a_query_ran_that_was_given_up_has_it_run_again() {
    let mut script = script();
    let first = script.another("GET all");
    let (job, limit) = script.limits()[0];
    script.later(SECOND);
    script.send("GET all");
    script.later(Span(limit.0 - SECOND.0));
    assert!(script.received_by(first).starts_with("-TIMEOUT"));
    assert_eq!(script.received().0, "", "it has a second left");
    script.fail(job, late());
    let limits = script.limits();
    assert_eq!(limits.len(), 1);
    let (job, limit) = limits[0];
    assert!(limit <= SECOND, "{limit:?}");
    script.answer(job, "[1]", 0);
    assert_eq!(script.received().0, "$3\r\n[1]\r\n");
}

#[test]
fn an_origin_that_is_late_before_the_deadline_has_failed() {
    let mut script = script();
    script.send("GET all");
    let jobs = script.asked();
    script.later(SECOND);
    script.fail(jobs[0], late());
    assert!(script.received().0.starts_with("-UNAVAILABLE"));
    assert!(script.engine.report().origin.down);
}

#[test]
fn what_the_query_cannot_do_is_an_error_and_what_it_may_not_is_denied() {
    let mut script = script();
    for (fault, word) in [(Fault::Rejected, "-ERR "), (Fault::Denied, "-DENIED ")] {
        script.send("GET all");
        let jobs = script.asked();
        script.fail(jobs[0], OriginError::new(fault, "division by zero"));
        let (reply, _) = script.received();
        assert!(reply.starts_with(word) && reply.contains("division by zero"), "{reply}");
        assert!(!script.engine.report().origin.down);
    }
}
