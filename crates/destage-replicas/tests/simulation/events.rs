//! What can happen.

use destage_replicas::Position;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A request arrives, by a link's number; answered if it is still that one.
    Deliver {
        from: usize,
        server: usize,
        link: u64,
        id: u64,
    },
    Answer {
        to: usize,
        server: usize,
        link: u64,
        id: u64,
    },
    Connect {
        process: usize,
        server: usize,
        link: u64,
    },
    Tick {
        process: usize,
        life: u64,
    },
    Start {
        process: usize,
    },
    /// A batch arrives at the origin, and its outcome comes back.
    Apply {
        id: u64,
    },
    Applied {
        process: usize,
        life: u64,
        watermark: Option<Position>,
    },
    ServerBack {
        server: usize,
    },
    Heal,
    Fault,
    /// All servers forget the log, if it has an owner that goes on.
    AllForget,
}
