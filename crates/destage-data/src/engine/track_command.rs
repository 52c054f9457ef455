//! CLIENT TRACKING and its kin, and the one channel that can be subscribed to.

use super::Engine;
use super::clients::number_of;
use super::session::Session;
use super::tracked::CHANNEL;
use super::tracking::{Mode, Tracker};
use super::waits::number;
use crate::resp::{Code, Protocol, Reply, ReplyError};
use destage_core::ClientId;

/// Most prefixes of a client, and most bytes of one: each change is compared with all of them.
const PREFIXES_MAX: usize = 64;
const PREFIX_BYTES_MAX: usize = 256;

const USAGE: ReplyError = ReplyError::fixed(
    Code::Err,
    "CLIENT TRACKING ON|OFF [REDIRECT id] [BCAST] [PREFIX prefix ...] [OPTIN] [OPTOUT] [NOLOOP]",
);
/// What is said to a RESP2 connection that waits for messages and asks for anything else.
pub(super) const SUBSCRIBED: ReplyError = ReplyError::fixed(
    Code::Err,
    "this connection waits for messages: it takes SUBSCRIBE, UNSUBSCRIBE, PING, QUIT and RESET",
);
const OTHER_CHANNEL: ReplyError = ReplyError::fixed(
    Code::Err,
    "nothing is passed on between clients; use a broker, or LISTEN and NOTIFY of PostgreSQL. Only __redis__:invalidate can be \
     subscribed to, for CLIENT TRACKING ON REDIRECT",
);

const fn error(text: &'static str) -> ReplyError {
    ReplyError::fixed(Code::Err, text)
}

impl Engine {
    /// CLIENT TRACKING ON|OFF [options]
    pub(super) fn tracking_command(
        &mut self,
        client: ClientId,
        session: &mut Session,
        args: &[&[u8]],
    ) {
        let done = match args {
            [on, options @ ..] if on.eq_ignore_ascii_case(b"on") => {
                self.begin_tracking(client, session, options)
            }
            [off] if off.eq_ignore_ascii_case(b"off") => {
                self.untrack(session);
                Ok(())
            }
            _ => Err(USAGE),
        };
        match done {
            Ok(()) => Reply::new(&mut session.out, session.protocol).ok(),
            Err(error) => self.fail(session, error),
        }
    }

    fn begin_tracking(
        &mut self,
        client: ClientId,
        session: &mut Session,
        options: &[&[u8]],
    ) -> Result<(), ReplyError> {
        let mut tracker = Tracker::of(client);
        let (mut opts_in, mut opts_out) = (false, false);
        let mut rest = options;
        while let Some((option, tail)) = rest.split_first() {
            rest = match (option.to_ascii_lowercase().as_slice(), tail) {
                (b"redirect", [id, tail @ ..]) => {
                    tracker.redirect = self.target(client, tracker.redirect, id)?;
                    tail
                }
                (b"prefix", [prefix, tail @ ..]) => {
                    tracker.prefixes.push((*prefix).into());
                    tail
                }
                (b"bcast", _) => {
                    tracker.mode = Mode::Broadcast;
                    tail
                }
                (b"optin", _) => {
                    opts_in = true;
                    tail
                }
                (b"optout", _) => {
                    opts_out = true;
                    tail
                }
                (b"noloop", _) => {
                    tracker.noloop = true;
                    tail
                }
                _ => return Err(USAGE),
            };
        }
        tracker.mode = match (tracker.mode, opts_in, opts_out) {
            (mode, false, false) => mode,
            (Mode::Broadcast, ..) => return Err(error("OPTIN and OPTOUT do not go with BCAST")),
            (_, true, true) => return Err(error("OPTIN and OPTOUT do not go together")),
            (_, true, false) => Mode::OptIn,
            (_, false, true) => Mode::OptOut,
        };
        if !tracker.prefixes.is_empty() && tracker.mode != Mode::Broadcast {
            return Err(error("PREFIX needs BCAST"));
        }
        let known = session.tracker.and_then(|id| self.rows.tracking().tracker(id));
        if let Some(known) = known {
            if known.mode != tracker.mode {
                return Err(error(
                    "BCAST, OPTIN and OPTOUT cannot be switched while tracking is on: CLIENT TRACKING OFF first",
                ));
            }
            let added = std::mem::take(&mut tracker.prefixes);
            tracker.prefixes.clone_from(&known.prefixes);
            tracker.prefixes.extend(added.into_iter().filter(|one| !known.prefixes.contains(one)));
        }
        check_prefixes(&tracker.prefixes)?;
        session.tracker = Some(self.rows.tracking_mut().track(session.tracker, tracker));
        Ok(())
    }

    /// The connection that is told in this client's place.
    fn target(
        &self,
        client: ClientId,
        known: Option<ClientId>,
        id: &[u8],
    ) -> Result<Option<ClientId>, ReplyError> {
        if known.is_some() {
            return Err(error("a client redirects to one connection only"));
        }
        let id: u64 = number(id).ok_or(error("the id of a connection is a whole number"))?;
        if id == 0 {
            return Ok(None);
        }
        let target = u32::try_from(id - 1).ok().map(ClientId);
        let is_there = |id: &ClientId| *id == client || self.sessions.get(*id).is_some();
        let target = target.filter(is_there);
        let target = target.ok_or(error("there is no connection of that id to redirect to"))?;
        Ok((target != client).then_some(target))
    }

    /// CLIENT CACHING YES|NO
    pub(super) fn caching_command(&mut self, session: &mut Session, args: &[&[u8]]) {
        let is_yes = match args {
            [word] if word.eq_ignore_ascii_case(b"yes") => true,
            [word] if word.eq_ignore_ascii_case(b"no") => false,
            _ => return self.fail(session, error("CLIENT CACHING YES|NO")),
        };
        let tracker = session.tracker.and_then(|id| self.rows.tracking().tracker(id));
        match (tracker.map(|tracker| tracker.mode), is_yes) {
            (Some(Mode::OptIn), true) | (Some(Mode::OptOut), false) => {
                (session.caching, session.caching_is_new) = (Some(is_yes), true);
                Reply::new(&mut session.out, session.protocol).ok();
            }
            _ => self.fail(
                session,
                error("CLIENT CACHING YES goes with CLIENT TRACKING ON OPTIN, and NO with OPTOUT"),
            ),
        }
    }

    /// CLIENT GETREDIR
    pub(super) fn redirection(&self, session: &Session) -> i64 {
        let tracker = session.tracker.and_then(|id| self.rows.tracking().tracker(id));
        tracker.map_or(-1, |tracker| tracker.redirect.map_or(0, number_of))
    }

    /// CLIENT TRACKINGINFO
    pub(super) fn tracking_info(&self, session: &mut Session) {
        let tracker = session.tracker.and_then(|id| self.rows.tracking().tracker(id)).cloned();
        let is_on = tracker.is_some();
        let tracker = tracker.unwrap_or_else(|| Tracker::of(ClientId(0)));
        let flags = [
            (if is_on { "on" } else { "off" }, true),
            ("bcast", tracker.mode == Mode::Broadcast),
            ("optin", tracker.mode == Mode::OptIn),
            ("optout", tracker.mode == Mode::OptOut),
            ("caching-yes", session.caching == Some(true)),
            ("caching-no", session.caching == Some(false)),
            ("noloop", tracker.noloop),
            ("broken_redirect", tracker.is_broken),
        ];
        let flags: Vec<&str> = flags.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
        let redirect = self.redirection(session);
        let mut reply = Reply::new(&mut session.out, session.protocol);
        reply.map(3);
        reply.bulk(b"flags");
        reply.set(flags.len());
        flags.iter().for_each(|flag| reply.bulk(flag.as_bytes()));
        reply.bulk(b"redirect");
        reply.integer(redirect);
        reply.bulk(b"prefixes");
        reply.set(tracker.prefixes.len());
        tracker.prefixes.iter().for_each(|prefix| reply.bulk(prefix));
    }

    /// SUBSCRIBE __redis__:invalidate
    pub(super) fn subscribe(&mut self, session: &mut Session, channels: &[&[u8]]) {
        if channels.iter().any(|channel| *channel != CHANNEL) {
            return self.fail(session, OTHER_CHANNEL);
        }
        session.is_subscribed = true;
        channels.iter().for_each(|channel| confirm(session, b"subscribe", Some(channel)));
    }

    /// UNSUBSCRIBE [channel ...]
    pub(super) fn unsubscribe(&mut self, session: &mut Session, channels: &[&[u8]]) {
        if session.protocol == Protocol::V2 {
            session.out.append(&mut session.pushes);
        }
        if channels.is_empty() {
            let channel = std::mem::take(&mut session.is_subscribed).then_some(CHANNEL);
            return confirm(session, b"unsubscribe", channel);
        }
        for channel in channels {
            session.is_subscribed &= *channel != CHANNEL;
            confirm(session, b"unsubscribe", Some(channel));
        }
    }
}

/// Answers one channel of SUBSCRIBE or UNSUBSCRIBE.
fn confirm(session: &mut Session, what: &[u8], channel: Option<&[u8]>) {
    let mut reply = Reply::new(&mut session.out, session.protocol);
    if session.protocol == Protocol::V3 {
        reply.push(3)
    } else {
        reply.array(3)
    }
    reply.bulk(what);
    reply.bulk_or_null(channel);
    reply.integer(i64::from(session.is_subscribed));
}

/// Prefixes of one client that overlap would have it told twice.
fn check_prefixes(prefixes: &[Box<[u8]>]) -> Result<(), ReplyError> {
    if prefixes.len() > PREFIXES_MAX || prefixes.iter().any(|one| one.len() > PREFIX_BYTES_MAX) {
        return Err(error("a client has at most 64 prefixes of 256 bytes each"));
    }
    for (index, one) in prefixes.iter().enumerate() {
        if prefixes[..index].iter().any(|two| one.starts_with(two) || two.starts_with(one)) {
            return Err(error(
                "prefixes of one client must not overlap: one of these begins another",
            ));
        }
    }
    Ok(())
}
