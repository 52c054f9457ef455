//! Several things at a time, where the origin is quicker so.

use std::panic::resume_unwind;
use std::thread;

/// Does something with each part, all at once; the results are in the order of the parts. A single part takes no thread.
pub(crate) fn each<P: Send, T: Send>(
    parts: impl IntoIterator<Item = P, IntoIter: ExactSizeIterator>,
    work: impl Fn(P) -> T + Sync,
) -> Vec<T> {
    let mut parts = parts.into_iter();
    if parts.len() < 2 {
        return parts.next().map(work).into_iter().collect();
    }
    thread::scope(|scope| {
        let work = &work;
        let lanes: Vec<_> = parts.map(|part| scope.spawn(move || work(part))).collect();
        let joined = lanes.into_iter();
        joined.map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}
