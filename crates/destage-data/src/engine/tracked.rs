//! What clients hold in caches of their own: which of their reads are noted, and what they are told.
//!
//! A read is noted in the step in which its reply is made, and before what the same command writes takes effect. What is told
//! leaves behind all replies that were made before, so that nobody gets the news before the value that it is about. See
//! [`super::tracking`].

use super::Engine;
use super::command::{Category, Verb};
use super::derived::Name;
use super::key::format_key;
use super::prepared::Prepared;
use super::queued::{Queued, data_commands};
use super::rights::limited;
use super::rows::Kind;
use super::session::Session;
use super::tracking::{Mode, Told, Tracker, TrackerId};
use super::txn::Txn;
use crate::cells::Reader;
use crate::resp::{Protocol, Reply};
use crate::schema::TableId;
use crate::users::Reach;
use destage_core::{ClientId, Time, UnitId};
use std::collections::BTreeSet;

/// Where RESP2 is told which keys have changed.
pub(super) const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Reads.
impl Engine {
    /// Notes what a client has read by a command: it may hold that from now on.
    pub(super) fn remember(&mut self, session: &Session, prepared: &Prepared, units: &[UnitId]) {
        let Some(id) = self.noting(session) else { return };
        if prepared.category != Category::Read && prepared.verb != Verb::Eval {
            return;
        }
        let count = prepared.names().len();
        for (index, &unit) in units.iter().enumerate() {
            let (skipped, taken) = if count > 1 && index < count { (index, 1) } else { (0, count) };
            for name in prepared.names().skip(skipped).take(taken) {
                self.remember_row(id, unit, name);
            }
        }
    }

    /// The same for the commands of a transaction, which may be about to write.
    pub(super) fn remember_all(&mut self, session: &Session, queued: &[Queued], all: &[UnitId]) {
        if session.tracker.is_none() {
            return;
        }
        let mut rest = all;
        self.rows.tracking_mut().begin_command();
        for prepared in data_commands(queued) {
            self.rows.tracking_mut().name_own(session.tracker, prepared.names());
            let (units, later) = rest.split_at(prepared.key_list.len());
            rest = later;
            self.remember(session, prepared, units);
        }
    }

    /// Tells a client at once of what it has read behind DESTAGE BEGIN: that may be its own writes, which may not be done.
    pub(super) fn tell_of_leased(&mut self, session: &Session, last: Option<&Queued>) {
        let Some(id) = self.noting(session) else { return };
        if let Some(Queued::Data(prepared)) = last {
            for name in prepared.names() {
                self.rows.tracking_mut().tell(id, name.into());
            }
        }
    }

    /// Notes that a client has read the result of a query: `count` and `at` say which.
    pub(super) fn remember_result(
        &mut self,
        session: &Session,
        key: &[u8],
        name: &Name,
        (count, at): (u64, Time),
    ) {
        let Some(id) = self.noting(session) else { return };
        if !self.is_wanted(id, key) {
            return;
        }
        let tracking = self.rows.tracking_mut();
        if self.derived.needed(name).count > count {
            // It is as of an earlier change than the newest one.
            return tracking.tell(id, key.into());
        }
        let query = self.derived.query(name);
        for dependency in query.dependencies() {
            tracking.remember_result(id, Some(dependency.table), key);
        }
        if query.tables().is_none() {
            tracking.remember_result(id, None, key);
        }
        let (table, place) = self.derived.place(name);
        tracking.remember(id, table, &place, key);
        if let Some(age_max) = query.max_age {
            tracking.hold_until(at + age_max, table, &place);
        }
    }

    /// The number of a client whose next reads are noted.
    fn noting(&self, session: &Session) -> Option<TrackerId> {
        let id = session.tracker?;
        let is_noted = match self.rows.tracking().tracker(id)?.mode {
            Mode::Read | Mode::Broadcast => true,
            Mode::OptIn => session.caching == Some(true),
            Mode::OptOut => session.caching != Some(false),
        };
        is_noted.then_some(id)
    }

    /// Whether a client is told of this key at all.
    fn is_wanted(&self, id: TrackerId, name: &[u8]) -> bool {
        let Some(tracker) = self.rows.tracking().tracker(id) else { return false };
        tracker.mode != Mode::Broadcast || begins(tracker, name)
    }

    fn remember_row(&mut self, id: TrackerId, unit: UnitId, name: &[u8]) {
        if !self.is_wanted(id, name) {
            return;
        }
        let row = self.rows.get(unit);
        let (kind, table) = (row.kind, row.table);
        let key: Box<[u8]> = self.rows.key(unit).into();
        if kind == Kind::NotLoaded {
            return self.rows.tracking_mut().tell(id, name.into());
        }
        let tracker = self.rows.tracking().tracker(id);
        if tracker.is_some_and(|tracker| tracker.mode == Mode::Broadcast)
            && self.name_of_row(table, &key).is_some_and(|written| written == name)
        {
            // It is told of all changes of the row by this name.
            return;
        }
        self.rows.tracking_mut().remember(id, table, &key, name);
    }

    /// The key of a row as SCAN writes it; `None` of what is no row: parts of collections, results.
    fn name_of_row(&self, table: TableId, key: &[u8]) -> Option<Vec<u8>> {
        let row = self.schema.tables.get(usize::from(table.0))?;
        if row.part.is_some() {
            return None;
        }
        if self.schema.plain == Some(table) {
            return Reader::new(key).next()?.value().map(<[u8]>::to_vec);
        }
        let mut name = Vec::new();
        format_key(row, Reader::new(key), &mut name);
        Some(name)
    }

    /// What a transaction is about to change is its client's own write. Columns that the origin sets are not.
    pub(super) fn begin_own(&mut self, session: &Session, txn: &Txn) {
        let Some(id) = session.tracker else { return };
        let mut tables = txn.touched().map(|(table, ..)| self.schema.table(table));
        if !tables.any(|table| table.has_computed()) {
            self.rows.tracking_mut().begin_own(Some(id));
        }
    }
}

/// Whether a key begins as a client has asked.
fn begins(tracker: &Tracker, name: &[u8]) -> bool {
    let mut prefixes = tracker.prefixes.iter();
    tracker.prefixes.is_empty() || prefixes.any(|prefix| name.starts_with(prefix))
}

/// What is told.
impl Engine {
    /// Lets clients know which of their copies are old. `own` is a client whose session is taken out.
    pub(super) fn tell_trackers(&mut self, mut own: Option<(ClientId, &mut Session)>) {
        if !self.rows.tracking().has_pending() {
            return self.rows.tracking_mut().forget_names();
        }
        self.tell_broadcasters(own.as_ref().map(|(client, session)| (*client, &**session)));
        self.rows.tracking_mut().forget_names();
        for (id, told) in self.rows.tracking_mut().take_pending() {
            let Some(tracker) = self.rows.tracking().tracker(id) else { continue };
            if tracker.is_broken {
                continue;
            }
            let is_redirected = tracker.redirect.is_some();
            let target = tracker.redirect.unwrap_or(tracker.client);
            if let Some((client, session)) = &mut own
                && *client == target
            {
                push_told(session, is_redirected, &told);
            } else if let Some(session) = self.sessions.get_mut(target) {
                push_told(session, is_redirected, &told);
                self.sessions.ready(target);
            }
        }
    }

    /// Adds what those are to be told who are told of all keys, as far as they may read these.
    fn tell_broadcasters(&mut self, own: Option<(ClientId, &Session)>) {
        let changed = self.rows.tracking_mut().take_changed();
        if changed.rows.is_empty() && !changed.all {
            return;
        }
        let names = changed.rows.into_iter().filter_map(|((table, key), by)| {
            Some((self.name_of_row(table, &key)?.into_boxed_slice(), by))
        });
        let names: BTreeSet<(Box<[u8]>, Option<TrackerId>)> = names.collect();
        let mut told: Vec<(TrackerId, Box<[u8]>)> = Vec::new();
        for (id, tracker) in self.rows.tracking().broadcasters() {
            let session = match own {
                Some((client, session)) if client == tracker.client => Some(session),
                _ => self.sessions.get(tracker.client),
            };
            let user = session.and_then(limited);
            let may_read =
                |name: &[u8]| user.as_ref().is_none_or(|user| user.reaches(Reach::Read, name));
            let is_own = |name: &[u8], by: &Option<TrackerId>| {
                *by == Some(id) && self.rows.tracking().has_named(name)
            };
            let meant = names
                .iter()
                .filter(|(name, by)| !is_own(name, by) && begins(tracker, name) && may_read(name));
            told.extend(meant.map(|(name, _)| (id, name.clone())));
        }
        let all: Vec<TrackerId> = if changed.all {
            self.rows.tracking().broadcasters().map(|(id, _)| id).collect()
        } else {
            Vec::new()
        };
        let tracking = self.rows.tracking_mut();
        told.into_iter().for_each(|(id, name)| tracking.tell(id, name));
        all.into_iter().for_each(|id| tracking.tell_all(id));
    }

    /// A client is told nothing more.
    pub(super) fn untrack(&mut self, session: &mut Session) {
        session.caching = None;
        if let Some(id) = session.tracker.take() {
            self.rows.tracking_mut().untrack(id);
        }
    }

    /// A connection is gone: those who were told by it are told so.
    pub(super) fn end_redirects(&mut self, target: ClientId) {
        for client in self.rows.tracking_mut().break_redirects(target) {
            let Some(session) = self.sessions.get_mut(client) else { continue };
            if session.protocol == Protocol::V3 {
                let mut reply = Reply::new(&mut session.pushes, Protocol::V3);
                reply.push(2);
                reply.bulk(b"tracking-redir-broken");
                reply.integer(i64::from(target.0) + 1);
                self.sessions.ready(client);
            }
        }
    }
}

/// Adds what a connection is told. In RESP2 it must be another one than that which reads, and wait for messages.
fn push_told(session: &mut Session, is_redirected: bool, told: &Told) {
    let protocol = session.protocol;
    let is_message = protocol == Protocol::V2;
    if is_message && !(is_redirected && session.is_subscribed) {
        return;
    }
    let mut reply = Reply::new(&mut session.pushes, protocol);
    if is_message {
        reply.array(3);
        reply.bulk(b"message");
        reply.bulk(CHANNEL);
    } else {
        reply.push(2);
        reply.bulk(b"invalidate");
    }
    if told.all {
        return reply.null();
    }
    reply.array(told.names.len());
    told.names.iter().for_each(|name| reply.bulk(name));
}
