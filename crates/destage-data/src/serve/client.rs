//! One connection.

use destage_runtime::sockets::Stream;

/// One connection.
pub(super) struct Client {
    pub(super) stream: Stream,
    /// How much of the outgoing bytes has been sent.
    pub(super) sent: usize,
    /// There may be more to read than was read.
    pub(super) readable: bool,
    /// The socket takes no more for now.
    pub(super) blocked: bool,
    /// The peer has announced that it sends no more: nothing else will, so the socket is read to its end.
    pub(super) ending: bool,
    /// It was read to its end. The connection is closed once everything asked before is answered.
    pub(super) ended: bool,
}
