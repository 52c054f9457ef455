//! What an owner asks of a server, and what the server says.

use crate::{Address, Config, Entry, Epoch, Position};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// When an owner last showed itself at a server: it differs after each renewal and each promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Beat {
    /// Whom the server has promised.
    pub promise: Epoch,
    /// The newest renewal's number.
    pub count: u64,
}

/// What is asked of a server. Each is carried out whole or not at all, and may be carried out twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// How it stands; nothing changes.
    Look,
    /// Nobody with a lower epoch may change anything any more.
    Promise {
        /// Of the new owner.
        epoch: Epoch,
        /// Only if nobody has shown itself since.
        unless_since: Option<Beat>,
        /// Where clients reach the new owner.
        place: Address,
    },
    /// Which servers hold the log, unless a later configuration is known, and that this one is among them.
    Configure {
        /// Of the owner, whom the server has promised.
        epoch: Epoch,
        /// The configuration.
        config: Arc<Config>,
        /// Under which epoch this server was admitted.
        admitted: Epoch,
    },
    /// Entries, behind one that the server has. Whatever is there instead goes. Without entries, a renewal.
    Append {
        /// Of the owner, whom the server has promised.
        epoch: Epoch,
        /// Under which epoch this server was admitted.
        admitted: Epoch,
        /// Behind this one.
        after: Position,
        /// Whose epoch this is.
        after_epoch: Epoch,
        /// In order.
        entries: Vec<Entry>,
        /// Entries before this one are decided, and go.
        base: Position,
        /// Everything up to `after` is decided: a server that has something else there, or less, begins anew behind it.
        begins: bool,
        /// The renewal's number.
        beat: u64,
    },
    /// Entries, if nobody but the owner of this epoch was promised; without an epoch, whoever was.
    Read {
        /// Of the owner.
        epoch: Option<Epoch>,
        /// From here on.
        from: Position,
        /// Most bytes besides the first entry. The one after that comes however large it is.
        bytes_max: usize,
    },
    /// The owner of this epoch has ended in order.
    GiveUp {
        /// Of the owner.
        epoch: Epoch,
    },
}

/// How a server stands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// Whom it has promised, and when that one last showed itself.
    pub beat: Beat,
    /// Where clients reach that one.
    pub place: Address,
    /// The newest configuration that it knows.
    pub config: Option<Arc<Config>>,
    /// Under which epoch it was admitted; [`Epoch::NONE`] if it never was, or has lost its memory since.
    pub admitted: Epoch,
    /// The first entry that is not decided, there or to come.
    pub base: Position,
    /// The epoch of the entry before that.
    pub base_epoch: Epoch,
    /// The newest entry.
    pub last: Position,
    /// Its epoch.
    pub last_epoch: Epoch,
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// To [`Request::Look`].
    Seen(View),
    /// It has promised.
    Promised(View),
    /// Somebody has shown itself since.
    Lively(View),
    /// It has promised somebody else.
    Fenced {
        /// Whom.
        promise: Epoch,
        /// Where clients reach that one.
        place: Address,
    },
    /// It was never admitted so, or has lost its memory since.
    Stranger,
    /// To [`Request::Configure`].
    Configured,
    /// It has everything up to the last entry of the append.
    Appended,
    /// It lacks the entry before, or has another one there.
    Gap {
        /// Its newest entry.
        last: Position,
    },
    /// To [`Request::Read`].
    Entries {
        /// Of the first.
        from: Position,
        /// In order; none if there are none from there on.
        entries: Vec<Entry>,
        /// How the server stands.
        view: View,
    },
    /// To [`Request::GiveUp`].
    GivenUp,
    /// It refused for lack of memory, and changed nothing.
    Full,
}
