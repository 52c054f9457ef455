//! Who has the next turn: clients whose commands were answered, and clients who had a turn and have more to execute.

use destage_core::ClientId;
use std::collections::VecDeque;

/// What a command counts for besides its bytes.
pub(in crate::engine) const COMMAND_COST: usize = 64;
/// What one client executes before others have their turn: bytes of requests and replies.
pub(crate) const TURN: usize = 256 << 10;

/// The clients who wait for nothing but their turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    ready: VecDeque<ClientId>,
    /// They let the others have their turn first.
    yielded: VecDeque<ClientId>,
    /// What was executed so far.
    work: usize,
}

impl Turns {
    pub(super) fn ready(&mut self, client: ClientId) {
        self.ready.push_back(client);
    }

    pub(super) fn next_ready(&mut self) -> Option<ClientId> {
        self.ready.pop_front()
    }

    pub(super) fn yielded(&mut self, client: ClientId) {
        self.yielded.push_back(client);
    }

    pub(super) fn next_yielded(&mut self) -> Option<ClientId> {
        self.yielded.pop_front()
    }

    pub(super) fn yielded_len(&self) -> usize {
        self.yielded.len()
    }

    pub(super) fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.yielded.is_empty()
    }

    pub(super) fn work(&self) -> usize {
        self.work
    }

    pub(super) fn worked(&mut self, work: usize) {
        self.work += work;
    }
}
