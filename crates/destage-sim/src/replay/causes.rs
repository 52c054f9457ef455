//! What each arrival of a volume's recording followed.
//!
//! Who reads or writes a volume sends most requests because an earlier one has been answered: a program that waits for its data, a
//! file system that orders its writes. A recording does not say which. The answer that came last before a request and that no other
//! request has followed is taken to be the one.

use destage_core::{ClientId, RequestId, Span, Time};
use hashbrown::HashMap;
use std::collections::VecDeque;

/// A request that comes later than this after an answer comes at a time of its own, such as that of a schedule, and only not
/// before the answer.
pub(super) const THINK_MAX: Span = Span::from_millis(100);
/// The same of a client of rows. A connection may be lent to one user after the other: of longer pauses nobody knows whose they
/// are.
pub(super) const CLIENT_THINK_MAX: Span = Span::from_millis(10);

/// What an arrival followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// The place of an earlier arrival.
    pub(super) arrival: u32,
    pub(super) moment: Moment,
    /// So long after it.
    pub(super) gap: Span,
}

/// What became of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Told,
    Executed,
    Answered,
}

/// Finds causes while a recording is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Causes {
    /// Answers that nothing has followed, in order of time.
    free: VecDeque<(Time, u32)>,
    /// The newest answer, which something may have followed.
    newest: Option<(Time, u32)>,
    /// Answers that the core may still hold back, by the client that stands for them.
    leaving: HashMap<ClientId, u32>,
    /// Requests that wait for the log or the origin.
    waiting: HashMap<RequestId, u32>,
}

impl Causes {
    /// What comes now followed this.
    pub(super) fn take(&mut self, now: Time) -> Option<Cause> {
        while self.free.front().is_some_and(|&(at, _)| now.since(at) > THINK_MAX) {
            self.free.pop_front();
        }
        let (at, arrival) = self.free.pop_back().or(self.newest)?;
        Some(Cause { arrival, moment: Moment::Answered, gap: now.since(at) })
    }

    pub(super) fn answered(&mut self, now: Time, arrival: u32) {
        self.newest = Some((now, arrival));
        self.free.push_back((now, arrival));
    }

    /// An answer may leave once the core lets it.
    pub(super) fn responds(&mut self, client: ClientId, arrival: u32) {
        self.leaving.insert(client, arrival);
    }

    pub(super) fn sent(&mut self, now: Time, client: ClientId) {
        if let Some(arrival) = self.leaving.remove(&client) {
            self.answered(now, arrival);
        }
    }

    pub(super) fn waits(&mut self, request: RequestId, arrival: u32) {
        self.waiting.insert(request, arrival);
    }

    pub(super) fn waited(&mut self, now: Time, request: RequestId) {
        if let Some(arrival) = self.waiting.remove(&request) {
            self.answered(now, arrival);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_is_followed_once_before_any_is_followed_twice() {
        let at = |ms| Time::from_secs(1) + Span::from_millis(ms);
        let mut causes = Causes::default();
        assert_eq!(causes.take(at(0)), None, "nothing was answered");
        for (client, ms) in [(7, 1), (8, 2)] {
            causes.responds(ClientId(client), client);
            causes.sent(at(ms), ClientId(client));
        }
        causes.sent(at(2), ClientId(9));
        let mut cause =
            |ms| causes.take(at(ms)).map(|cause| (cause.arrival, cause.gap.0 / 1_000_000));
        assert_eq!((cause(3), cause(4)), (Some((8, 1)), Some((7, 3))));
        assert_eq!(cause(5), Some((8, 3)), "all were followed: the newest");
        causes.waits(RequestId(1), 10);
        causes.waited(at(6), RequestId(1));
        causes.waited(at(6), RequestId(2));
        let late = causes.take(at(300)).expect("the newest");
        assert_eq!((late.arrival, late.gap), (10, Span::from_millis(294)));
    }
}
