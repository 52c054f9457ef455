//! A connection as the engine sees it: bytes in, bytes out, and what it waits for.

use super::claims::{Holder, Values};
use super::command::Verb;
use super::fresh::Moment;
use super::given::Given;
use super::handshake::HelloRest;
use super::inbox::Inbox;
use super::login::Login;
use super::once::command::Once;
use super::rows::RowKey;
use super::slow::Begun;
use super::tracking::TrackerId;
use super::txn::Txn;
use crate::resp::{Code, Protocol, Reply, ReplyError, each_reply};
use crate::schema::TableId;
use destage_core::lease::Token;
use destage_core::{Lsn, RequestId, Time, UnitId};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// What EXEC that did nothing is answered in RESP3, until it leaves as nil: RESP3 has one nil for everything.
pub(super) const NOT_DONE: &[u8] = b"_EXEC\r\n";

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Session {
    pub(crate) protocol: Protocol,
    pub(crate) authenticated: bool,
    /// Whose rights it has; all there are where it is none of `--users`.
    pub(crate) login: Option<Login>,
    /// When it is disconnected if it has not sent the password.
    pub(super) known_by: Option<Time>,
    /// Its address; none where there is none to be told from others.
    pub(crate) from: Option<SocketAddr>,
    /// The library in this very process, which may send raw SQL.
    pub(crate) is_trusted: bool,
    /// It has sent the password once, or needs none: it may have the server hold as much as the limits allow.
    pub(crate) known: bool,
    pub(crate) name: Vec<u8>,
    /// The unknown database that it has asked for before anything else.
    pub(crate) wrong_database: Option<i64>,
    /// It has used commands that are not about the connection.
    pub(crate) has_begun: bool,
    /// Requests received but not executed.
    pub(crate) inbox: Inbox,
    /// It goes on once others have had their turn.
    pub(crate) yielded: bool,
    /// Replies written since the last announcement.
    pub(crate) out: Vec<u8>,
    /// Replies announced to the core, which may not leave yet.
    pub(crate) gated: Vec<u8>,
    pub(crate) announced: bool,
    /// Replies that may leave.
    pub(crate) ready: Vec<u8>,
    /// One of the replies may be [`NOT_DONE`].
    has_not_done: bool,
    /// What is counted of these as unread.
    pub(super) unread_bytes: usize,
    /// It left too much unread: closed at once.
    pub(super) is_cut: bool,
    /// The highest group that the replies in `out` wrote or observed.
    pub(crate) lsn: Lsn,
    /// Whether they acknowledge a write.
    pub(crate) wrote: bool,
    /// The newest group that this connection wrote.
    pub(crate) last_write: Lsn,
    pub(crate) multi: Option<Multi>,
    /// The session of S leases on the keys that it watches.
    pub(crate) watch: Option<Token>,
    /// Begun by DESTAGE BEGIN: the moment of all that it does until it ends, which its commands are answered by.
    pub(super) moment: Option<Moment>,
    /// The numbers of its new rows, until its command, or what it has begun, has ended.
    pub(super) numbers: Given,
    /// The rows of which it says that the origin does not have them.
    pub(super) absent: BTreeSet<RowKey>,
    pub(crate) waiting: Option<Waiting>,
    /// The request that waits, or has waited and asks anew.
    pub(crate) begun: Option<Box<Begun>>,
    /// The next request has waited, and is asked anew.
    pub(crate) is_put_back: bool,
    /// It is shown what others ask for.
    pub(crate) monitors: bool,
    /// It is told of changes of what it reads.
    pub(super) tracker: Option<TrackerId>,
    /// Whether the next command's keys are to be held, as CLIENT CACHING has said.
    pub(super) caching: Option<bool>,
    /// That was the last command.
    pub(super) caching_is_new: bool,
    /// It takes messages in RESP2.
    pub(super) is_subscribed: bool,
    /// What it is told unasked, behind the replies in `out`.
    pub(super) pushes: Vec<u8>,
    /// The same behind those in `gated`.
    pub(super) gated_pushes: Vec<u8>,
    pub(crate) seen: LastSeen,
    /// When what waits is answered at the latest; kept for what was sent with it.
    pub(crate) bound: Option<Time>,
    /// What the core holds in `gated`.
    pub(crate) held: Held,
    /// When it is looked at whether a bound is reached.
    pub(crate) alarm: Option<Time>,
    /// The peer sends no more.
    pub(crate) hung_up: bool,
    /// Something of it waited then, or later: what it has sent and would change is not done.
    pub(crate) is_abandoned: bool,
    /// The next command is one that has waited and asks anew.
    pub(crate) asks_anew: bool,
    /// The next command's rows were destaged and fetched again for it.
    pub(crate) settled: bool,
    /// The rows that the next command's foreign keys refer to, as far as they had to be asked for.
    pub(super) parents: BTreeSet<RowKey>,
    /// What the origin has said of values that the next command gives to unique columns.
    pub(super) holders: BTreeMap<Values, Holder>,
    /// The questions that were answered so: what was decided since they were asked is kept until the command has ended.
    pub(super) pinned: Vec<u64>,
    /// How often the next command has asked for parts of a collection in vain.
    pub(crate) attempts: u32,
    /// Close once `ready` has been sent.
    pub(crate) closing: bool,
}

/// What is told of a connection to whoever asks who is there.
#[derive(Debug, Default)]
pub(crate) struct LastSeen {
    /// When it connected.
    pub(crate) since: Time,
    /// When it asked for something last, and for what.
    pub(crate) at: Time,
    pub(crate) command: &'static str,
    /// The client library's name and version, as it says.
    pub(crate) library: [Box<[u8]>; 2],
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    /// Whole requests.
    pub(crate) requests: Vec<Box<[u8]>>,
    pub(crate) bytes: usize,
    /// A command was refused: EXEC will refuse them all.
    pub(crate) failed: bool,
    /// Begun by DESTAGE BEGIN: commands are answered at once, under leases.
    pub(crate) leased: bool,
    /// What its writes under leases come to, if it is kept.
    pub(super) ahead: Option<Ahead>,
    /// Begun by DESTAGE BEGIN, also where MULTI has followed: it never waits for the leases of others.
    pub(crate) begun: bool,
    /// EXEC is carried out once.
    pub(super) once: Option<Once>,
}

impl Multi {
    /// Commands of one transaction: all of them are carried out at once, while nobody else is served.
    pub(crate) const COMMANDS_MAX: usize = 100_000;
}

/// What the writes of a session come to.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(super) txn: Txn,
    /// Losses of rows as of then.
    pub(super) losses: u64,
}

/// Replies that the core holds back, and for how long already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    pub(crate) since: Time,
    /// The highest group that they tell of.
    pub(crate) lsn: Lsn,
    /// They acknowledge a write.
    pub(crate) wrote: bool,
    /// They were answered otherwise: what comes next need not wait for them.
    pub(crate) is_answered: bool,
}

/// What keeps a connection from executing its next command.
#[derive(Debug)]
pub(crate) enum Waiting {
    /// Its command's rows are fetched, locked by others, or a limit is reached. The request is executed again from its
    /// bytes. These are the units that it may find locked for it then.
    Units { request: RequestId, raw: Box<[u8]>, units: Box<[UnitId]> },
    /// As `Units`, while values that only the origin knows are settled.
    Settling { request: RequestId, raw: Box<[u8]> },
    /// It is asked of the origin which rows have values. Then the request is executed again from its bytes.
    Holders { request: RequestId, raw: Box<[u8]>, questions: Vec<Values> },
    /// It needs numbers of the origin's sequences. Then the request is executed again from its bytes.
    Numbers { request: RequestId, raw: Box<[u8]> },
    /// A session has the right to what its write would change, or the journal's disk has no space for it, or
    /// too few servers of the log are there.
    Lease { raw: Box<[u8]> },
    /// Its write waits for the origin's word.
    Origin { lsn: Lsn },
    /// WAITAOF, DESTAGE WAIT, FLUSH or DRAIN.
    Wait { request: RequestId, kind: WaitKind, deadline: Option<Time> },
    /// The result of a derived key's query.
    Derived {
        request: RequestId,
        deadline: Time,
        name: super::derived::results::Name,
        key: Box<[u8]>,
    },
    /// An answer from the origin.
    Job { request: RequestId, job: Job },
}

impl Waiting {
    /// Whether it ends at a time that the command, or the key's settings, have named.
    pub(super) fn names_its_bound(&self) -> bool {
        matches!(self, Self::Wait { .. } | Self::Derived { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    Aof,
    Destaged,
    Decided(Lsn),
    Flushed,
    Drained,
}

/// A question to the origin that is no fetch.
#[derive(Debug)]
pub(crate) enum Job {
    Scan(super::cursors::Scan),
    NextKeys {
        table: TableId,
        column: usize,
        count: u32,
        /// Up to here everything was decided.
        decided: Lsn,
    },
    /// DESTAGE PARKED: the answer comes by itself.
    Parked,
    /// Whether a password is right, and how HELLO goes on then, if it was that.
    LogIn(Option<HelloRest>),
}

/// What is told to whoever asks for another database than the one that there is.
pub(super) fn wrong_database(index: i64) -> String {
    format!(
        "database {index} was asked for, and there is only 0, the origin's: leave the number out of the client's settings, or \
         SELECT 0"
    )
}

impl Session {
    /// Lets it use every command.
    pub(crate) fn authenticate(&mut self) {
        (self.authenticated, self.known, self.login) = (true, true, None);
    }

    /// Lets it use what a user may.
    pub(super) fn log_in(&mut self, login: Login) {
        (self.authenticated, self.known, self.login) = (true, true, Some(login));
    }

    /// Whether it may use a command now.
    ///
    /// # Errors
    /// A message for the client.
    pub(super) fn may_ask(&mut self, verb: Verb) -> Result<(), ReplyError> {
        if !self.authenticated
            && !matches!(verb, Verb::Auth | Verb::Hello | Verb::Quit | Verb::Reset)
        {
            return Err(ReplyError::fixed(Code::NoAuth, "Authentication required."));
        }
        if verb.is_of_connection() {
            return Ok(());
        }
        match self.wrong_database {
            Some(other) => Err(ReplyError::err(wrong_database(other).to_string())),
            None => {
                self.has_begun = true;
                Ok(())
            }
        }
    }

    /// Has a request that has waited ask anew, before what follows.
    pub(super) fn put_back(&mut self, request: &[u8]) {
        self.inbox.put_back(request);
        self.is_put_back = true;
    }

    /// Whether replies are held back that nobody has been told about.
    pub(crate) fn is_held(&self) -> bool {
        self.announced && !self.held.is_answered
    }

    /// Whether its next request may be executed.
    pub(super) fn may_execute(&self) -> bool {
        self.waiting.is_none() && !self.closing && !self.yielded
    }

    /// Whether it waits for nothing: everything that it has sent in whole is answered, and the answers are sent.
    pub(super) fn is_idle(&self) -> bool {
        let answered = self.waiting.is_none() && !self.is_held();
        let executed = self.closing || self.inbox.needs_more();
        answered && executed && self.out.is_empty() && self.ready.is_empty()
    }

    /// Whether more bytes are taken from it: not while there is something to execute, or a command waits and another one is
    /// there.
    pub(super) fn wants_input(&self) -> bool {
        let may_go_on = self.inbox.is_empty() || self.waiting.is_none();
        !self.closing && may_go_on && self.inbox.needs_more()
    }

    /// Answers EXEC that did nothing.
    pub(super) fn answer_not_done(&mut self) {
        let mut reply = Reply::new(&mut self.out, self.protocol);
        match self.protocol {
            Protocol::V2 => reply.null_array(),
            Protocol::V3 => {
                reply.raw(NOT_DONE);
                self.has_not_done = true;
            }
        }
    }

    /// Has what EXEC that did nothing is answered leave as nil. What has left already stays as it is.
    fn let_not_done(&mut self) {
        let mut all = Vec::with_capacity(self.ready.len());
        each_reply(&self.ready, |one| {
            all.extend_from_slice(if one == NOT_DONE { b"_\r\n" } else { one });
        });
        self.ready = all;
        self.has_not_done = !(self.out.is_empty() && self.gated.is_empty());
    }

    /// The replies that may leave, and whether it is to be closed afterwards.
    pub(super) fn outgoing(&mut self) -> (&mut Vec<u8>, bool) {
        if self.has_not_done {
            self.let_not_done();
        }
        // What is not released yet must be sent first.
        let closing = self.closing && !self.is_held() && self.out.is_empty();
        (&mut self.ready, closing || self.is_cut)
    }

    /// Announces its replies: the core will say when they may leave. They tell of groups up to the one returned, and whether
    /// they acknowledge a write.
    pub(super) fn announce(&mut self, now: Time) -> (Lsn, bool) {
        assert!(!self.announced, "what is announced is released before more is");
        std::mem::swap(&mut self.out, &mut self.gated);
        self.announced = true;
        let (lsn, wrote) = (self.lsn, self.wrote);
        self.held = Held { since: now, lsn, wrote, is_answered: false };
        (self.lsn, self.wrote) = (Lsn::ZERO, false);
        (lsn, wrote)
    }

    /// The core lets the announced replies leave; false if they were answered otherwise, so that nothing is to be sent.
    /// What was gated since then came after what may leave now, and is not told yet.
    pub(super) fn release(&mut self) -> bool {
        self.announced = false;
        if std::mem::take(&mut self.held.is_answered) {
            self.gated_pushes.append(&mut self.pushes);
            std::mem::swap(&mut self.gated_pushes, &mut self.pushes);
            if !self.gated.is_empty() {
                self.gated.append(&mut self.out);
                std::mem::swap(&mut self.gated, &mut self.out);
                self.lsn = self.lsn.max(self.held.lsn);
                self.wrote |= self.held.wrote;
            }
            return false;
        }
        if self.ready.is_empty() {
            std::mem::swap(&mut self.ready, &mut self.gated);
        } else {
            self.ready.extend_from_slice(&self.gated);
        }
        self.gated.clear();
        self.ready.append(&mut self.gated_pushes);
        true
    }

    /// Lets what it is told unasked leave, behind all replies that were made before; whether something may leave now. A reply
    /// that waits for the origin's word was made before, too.
    pub(super) fn let_pushes(&mut self) -> bool {
        let is_early = !self.out.is_empty() || matches!(self.waiting, Some(Waiting::Origin { .. }));
        if self.pushes.is_empty() || is_early {
            return false;
        }
        // What was answered otherwise keeps nothing back.
        let is_ahead = !(self.held.is_answered && self.gated.is_empty());
        if self.announced && is_ahead {
            self.gated_pushes.append(&mut self.pushes);
            return false;
        }
        self.ready.append(&mut self.pushes);
        true
    }

    /// Bytes of replies that wait.
    pub(crate) fn output_bytes(&self) -> usize {
        let pushes = self.pushes.len() + self.gated_pushes.len();
        self.out.len() + self.gated.len() + self.ready.len() + pushes
    }

    /// The request that the core or the origin still has to answer.
    pub(crate) fn pending_request(&self) -> Option<RequestId> {
        match self.waiting.as_ref()? {
            Waiting::Units { request, .. }
            | Waiting::Settling { request, .. }
            | Waiting::Holders { request, .. }
            | Waiting::Numbers { request, .. }
            | Waiting::Wait { request, .. }
            | Waiting::Derived { request, .. }
            | Waiting::Job { request, .. } => Some(*request),
            Waiting::Lease { .. } | Waiting::Origin { .. } => None,
        }
    }

    /// Whether it is between DESTAGE BEGIN and EXEC.
    pub(crate) fn is_leased(&self) -> bool {
        self.multi.as_ref().is_some_and(|multi| multi.leased)
    }
}
