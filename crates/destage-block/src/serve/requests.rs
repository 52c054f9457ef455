//! What clients ask of a volume: how much, and how long they wait.

use crate::request::Request;
use destage_core::{Span, Time};
use destage_runtime::latency::Latency;
use destage_runtime::status::RequestsReport;

/// What a request is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Read,
    Write,
    Flush,
    /// Zeros whose space the origin may give back.
    Trim,
    /// Zeros that keep their space.
    Zero,
    /// Which blocks there are, and what to fetch ahead.
    Other,
}

/// The names in the order of [`Kind`].
const KINDS: [&str; 6] = ["read", "write", "flush", "trim", "zero", "other"];

impl Kind {
    pub(super) fn of(request: &Request) -> Self {
        match request {
            Request::Read { .. } => Self::Read,
            Request::Write { .. } => Self::Write,
            Request::Flush => Self::Flush,
            Request::Zero { punch: true, .. } => Self::Trim,
            Request::Zero { punch: false, .. } => Self::Zero,
            Request::Status { .. } | Request::Cache { .. } => Self::Other,
        }
    }
}

/// All kinds of requests to one volume.
pub(super) struct Requests([Counted; KINDS.len()]);

struct Counted {
    requests: u64,
    errors: u64,
    bytes: u64,
    latency: Latency,
}

impl Requests {
    pub(super) fn new(now: Time) -> Self {
        Self(KINDS.map(|_| Counted {
            requests: 0,
            errors: 0,
            bytes: 0,
            latency: Latency::new(now),
        }))
    }

    /// A request has its reply.
    pub(super) fn answered(&mut self, now: Time, kind: Kind, bytes: u64, took: Span, failed: bool) {
        let counted = &mut self.0[kind as usize];
        counted.requests += 1;
        counted.errors += u64::from(failed);
        counted.bytes += bytes;
        counted.latency.record(now, took);
    }

    /// Since the start: how many of a kind there were, and what they took together, nanoseconds.
    pub(super) fn totals(&self, kind: Kind) -> (u64, u128) {
        self.0[kind as usize].latency.totals()
    }

    /// In the order of [`Kind`].
    pub(super) fn report(&mut self, now: Time) -> Vec<RequestsReport> {
        let counted = KINDS.iter().zip(&mut self.0);
        counted
            .map(|(kind, counted)| RequestsReport {
                kind: (*kind).into(),
                requests_total: counted.requests,
                errors_total: counted.errors,
                bytes_total: counted.bytes,
                latency: counted.latency.summary(now),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_counts_as_its_kind() {
        let zero = |punch| Request::Zero { offset: 0, len: 512, fua: false, punch };
        let write = Request::Write { offset: 0, data: vec![1; 100], fua: true };
        let mut requests = Requests::new(Time::ZERO);
        for request in [
            Request::Read { offset: 0, len: 4_096 },
            write,
            Request::Flush,
            zero(true),
            zero(false),
            Request::Status { offset: 0, len: 7 },
        ] {
            let (kind, bytes) = (Kind::of(&request), request.bytes());
            requests.answered(Time::ZERO, kind, bytes, Span::from_millis(2), bytes == 7);
        }
        let report = requests.report(Time::ZERO);
        let shown = report.iter().map(|one| (one.kind.as_str(), one.bytes_total, one.errors_total));
        let expected = [4_096, 100, 0, 512, 512, 7].into_iter().zip([0, 0, 0, 0, 0, 1]);
        let expected =
            KINDS.iter().zip(expected).map(|(kind, (bytes, errors))| (*kind, bytes, errors));
        assert!(shown.eq(expected), "{report:?}");
        assert!(report.iter().all(|one| one.requests_total == 1 && one.latency.count == 1));
    }
}
