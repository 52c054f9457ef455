//! What an owner knows of a server.

use crate::{Beat, Epoch, Member, Position, RunId, View};
use alloc::collections::VecDeque;
use destage_core::Time;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The server's life.
    pub run: RunId,
    /// It writes to its disk before it answers.
    pub is_durable: bool,
}

/// A request under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sent {
    Look,
    Promise { epoch: Epoch },
    Configure { epoch: Epoch, rank: (Epoch, bool) },
    Append { epoch: Epoch, after: Position, upto: Position, at: Time },
    Read { epoch: Option<Epoch> },
    GiveUp,
}

/// A server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    pub(super) connection: Option<Connection>,
    pub(super) sent: VecDeque<Sent>,
    pub(super) asked_at: Option<Time>,
    /// As it last showed itself.
    pub(super) view: Option<View>,
    /// Since when nobody has shown itself there.
    pub(super) quiet_since: Option<(Beat, Time)>,
    /// Somebody has shown itself there since it was first looked at.
    pub(super) has_shown: bool,
    /// This owner, on this connection.
    pub(super) has_promised: bool,
    /// Which of this owner's configurations it has.
    pub(super) configured: Option<(Epoch, bool)>,
    /// It holds this owner's log up to here.
    pub(super) matched: Option<Position>,
    /// What it is sent next.
    pub(super) next: Position,
    /// How far to go back if that does not fit.
    pub(super) step: u64,
    /// When it was last sent something to append, or a renewal.
    pub(super) appended_at: Option<Time>,
    /// When the newest of what it has accepted was sent.
    pub(super) leased_at: Option<Time>,
    /// It has no memory for more; tried again with each renewal.
    pub(super) full_at: Option<Time>,
    /// Since then it has let go of what is decided, and is to be asked once more.
    pub(super) is_relieved: bool,
}

impl Peer {
    /// The connection is another one, or none.
    pub(super) fn forget(&mut self) {
        self.connection = None;
        self.sent.clear();
        self.view = None;
        self.asked_at = None;
        // The beat stays: it is compared with what the server says when it promises.
        self.begin_epoch();
    }

    /// Nothing is known that concerns this owner's epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.has_promised = false;
        self.configured = None;
        self.matched = None;
        self.next = Position::NONE;
        self.step = 1;
        self.full_at = None;
        self.is_relieved = false;
        self.appended_at = None;
    }

    /// Whether it is this member with all of its memory.
    pub(super) fn is_kept(&self, member: &Member) -> bool {
        let Some((view, connection)) = self.view.as_ref().zip(self.connection) else {
            return false;
        };
        member.has_kept(view, connection.run, connection.is_durable)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.connection.is_some() && self.sent.is_empty()
    }

    pub(super) fn saw(&mut self, now: Time, view: View) {
        if self.quiet_since.is_none_or(|(beat, _)| beat != view.beat) {
            self.has_shown |= self.quiet_since.is_some();
            self.quiet_since = Some((view.beat, now));
        }
        self.view = Some(view);
    }
}
