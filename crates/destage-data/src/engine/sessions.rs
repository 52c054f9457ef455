//! The connections: which of them there are, who may go on, whose time may be over, and who has replies to send.
//!
//! A session is taken out of its place while something is done with it, so that what is done may change the engine as well.
//! What concerns the client meanwhile finds its place empty: replies that are released then are noted, and released once the
//! session is back ([`Sessions::take_released_late`]).

mod monitors;
mod timers;
mod turns;
mod unread;

use super::cursors::{Cursors, Scan};
use super::login::Logins;
use super::script::kept::Scripts;
use super::session::{Job, Session, Waiting};
use super::set_scan::Place;
use crate::resp::{Code, ReplyError};
use destage_core::{ClientId, Lsn, RequestId, Time};
use destage_record::client_of;
use monitors::Monitors;
use std::cell::RefCell;
use std::collections::HashSet;
use timers::Timers;
use turns::Turns;
use unread::Unread;

pub(super) use monitors::{MONITORS_MAX, address};
pub(super) use turns::COMMAND_COST;
pub(crate) use turns::TURN;

/// The clients of an engine.
#[derive(Debug)]
pub(super) struct Sessions {
    /// By the client's number; empty where that is free, or its session is taken out.
    slots: Vec<Option<Box<Session>>>,
    free: Vec<u32>,
    /// Clients that left while the core held replies for them: their numbers are not free before it lets go of these.
    zombies: HashSet<ClientId>,
    connected: usize,
    connected_max: usize,
    timers: Timers,
    turns: Turns,
    unread: Unread,
    /// Who has replies to send.
    sends: Vec<ClientId>,
    /// Whose replies were released while the session was taken out.
    released_late: Vec<ClientId>,
    /// Where their scans go on.
    cursors: Cursors<Scan>,
    /// The same of their scans of sets, which are noted as these are performed.
    set_places: RefCell<Cursors<Place>>,
    /// What they may name by its digest.
    scripts: Scripts,
    /// Who logs in.
    logins: Logins,
    monitors: Monitors,
}

impl Sessions {
    /// No clients yet, and at most so many; `output_bytes_max` of replies may be left unread by one of them, and
    /// `output_total_bytes_max` by all.
    pub(super) fn new(
        connected_max: usize,
        output_bytes_max: usize,
        output_total_bytes_max: usize,
    ) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            zombies: HashSet::new(),
            connected: 0,
            connected_max,
            timers: Timers::default(),
            turns: Turns::default(),
            unread: Unread::new(output_bytes_max, output_total_bytes_max),
            sends: Vec::new(),
            released_late: Vec::new(),
            cursors: Cursors::default(),
            set_places: RefCell::default(),
            scripts: Scripts::default(),
            logins: Logins::default(),
            monitors: Monitors::default(),
        }
    }

    /// The scripts that clients may name by their digest.
    pub(super) fn scripts(&self) -> &Scripts {
        &self.scripts
    }

    /// The same, to keep one or to forget them.
    pub(super) fn scripts_mut(&mut self) -> &mut Scripts {
        &mut self.scripts
    }

    /// Whether no further client may come.
    pub(super) fn is_full(&self) -> bool {
        self.connected >= self.connected_max
    }

    /// How many there are.
    pub(super) fn connected(&self) -> usize {
        self.connected
    }

    /// A client has come; its number is returned.
    pub(super) fn add(&mut self, session: Box<Session>) -> ClientId {
        self.connected += 1;
        match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                assert!(slot.is_none(), "a number is free once its client is gone");
                *slot = Some(session);
                ClientId(index)
            }
            None => {
                self.slots.push(Some(session));
                ClientId(self.slots.len() as u32 - 1)
            }
        }
    }

    /// A client is gone, and what was noted for it with it. While the core still holds replies for its number, no other
    /// client gets that.
    pub(super) fn remove(&mut self, client: ClientId) -> Option<Box<Session>> {
        let session = self.take(client)?;
        self.unread.forget(&session);
        self.timers.forget(client, &session);
        self.unmonitor(client);
        self.connected -= 1;
        if session.announced {
            self.zombies.insert(client);
        } else {
            self.free.push(client.0);
        }
        Some(session)
    }

    #[inline]
    pub(super) fn get(&self, client: ClientId) -> Option<&Session> {
        self.slots.get(client.0 as usize)?.as_deref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut Session> {
        self.slots.get_mut(client.0 as usize)?.as_deref_mut()
    }

    /// Takes a session out, for something to be done with it.
    #[inline]
    pub(super) fn take(&mut self, client: ClientId) -> Option<Box<Session>> {
        self.slots.get_mut(client.0 as usize)?.take()
    }

    /// Puts it back where it was.
    #[inline]
    pub(super) fn restore(&mut self, client: ClientId, session: Box<Session>) {
        let slot = &mut self.slots[client.0 as usize];
        debug_assert!(slot.is_none(), "a session that is taken out leaves its place empty");
        *slot = Some(session);
    }

    /// Puts it back, and lets it go on.
    pub(super) fn restore_ready(&mut self, client: ClientId, session: Box<Session>) {
        self.restore(client, session);
        self.turns.ready(client);
    }

    /// The same for one whose request was answered: what comes next has waited for nothing yet.
    pub(super) fn restore_answered(&mut self, client: ClientId, mut session: Box<Session>) {
        if session.waiting.is_none() && !session.asks_anew {
            session.bound = None;
        }
        self.restore_ready(client, session);
    }

    /// Takes a session out if it still waits for this request.
    pub(super) fn take_waiting(&mut self, request: RequestId) -> Option<(ClientId, Box<Session>)> {
        let client = client_of(request);
        let slot = self.slots.get_mut(client.0 as usize)?;
        let session = slot.take_if(|session| session.pending_request() == Some(request))?;
        Some((client, session))
    }

    /// What a client waits for by this request, if it still does.
    pub(super) fn waiting(&self, request: RequestId) -> Option<&Waiting> {
        let session = self.get(client_of(request))?;
        session.waiting.as_ref().filter(|_| session.pending_request() == Some(request))
    }

    /// The same for one that waits for the origin's word on a write.
    pub(super) fn take_waiting_for(&mut self, client: ClientId, lsn: Lsn) -> Option<Box<Session>> {
        let waits = |session: &mut Box<Session>| matches!(session.waiting, Some(Waiting::Origin { lsn: waits }) if waits == lsn);
        self.slots.get_mut(client.0 as usize)?.take_if(waits)
    }

    /// Takes the job that a client waits for, if it still does.
    pub(super) fn take_job(&mut self, request: RequestId) -> Option<(ClientId, Job)> {
        let client = client_of(request);
        let session = self.get_mut(client)?;
        let is_it = |waiting: &mut Waiting| matches!(waiting, Waiting::Job { request: waits, .. } if *waits == request);
        let Some(Waiting::Job { job, .. }) = session.waiting.take_if(is_it) else { return None };
        session.bound = None;
        Some((client, job))
    }

    /// Lets a client that waits for a lease ask again.
    pub(super) fn ask_again(&mut self, client: ClientId) {
        let Some(session) = self.get_mut(client) else { return };
        if let Some(Waiting::Lease { raw }) =
            session.waiting.take_if(|waiting| matches!(waiting, Waiting::Lease { .. }))
        {
            session.put_back(&raw);
            self.turns.ready(client);
        }
    }

    /// Keeps the place where a scan goes on; its cursor is returned.
    pub(super) fn keep_place(&mut self, scan: Scan) -> u64 {
        self.cursors.insert(scan)
    }

    /// The place that a cursor stands for, unless that is forgotten.
    pub(super) fn place_of(&self, cursor: u64) -> Option<&Scan> {
        self.cursors.get(cursor)
    }

    /// Who logs in.
    pub(super) fn logins(&self) -> &Logins {
        &self.logins
    }

    /// The same, to change it.
    pub(super) fn logins_mut(&mut self) -> &mut Logins {
        &mut self.logins
    }

    /// Where scans of sets go on.
    pub(super) fn set_places(&self) -> &RefCell<Cursors<Place>> {
        &self.set_places
    }

    /// All that are in their places, with their numbers.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (ClientId, &Session)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, slot)| Some((ClientId(at as u32), slot.as_deref()?)))
    }

    /// The same, to change them.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Session)> {
        let slots = self.slots.iter_mut().enumerate();
        slots.filter_map(|(at, slot)| Some((ClientId(at as u32), slot.as_deref_mut()?)))
    }

    /// All that are in their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().filter_map(Option::as_deref)
    }
}

/// Replies.
impl Sessions {
    /// The core lets the announced replies of a client leave.
    pub(super) fn release(&mut self, client: ClientId) {
        let Some(session) = self.slots[client.0 as usize].as_deref_mut() else {
            if self.zombies.remove(&client) {
                self.free.push(client.0);
            } else {
                self.released_late.push(client);
            }
            return;
        };
        if session.release() {
            self.sends.push(client);
            if session.out.is_empty() {
                return;
            }
        }
        self.turns.ready(client);
    }

    /// Whose replies were released while the session was taken out. It is back now.
    pub(super) fn take_released_late(&mut self) -> Vec<ClientId> {
        std::mem::take(&mut self.released_late)
    }

    /// A client has replies that may leave, or is to be closed.
    pub(super) fn send(&mut self, client: ClientId) {
        self.sends.push(client);
    }

    /// Clients with replies to send, in the place of what is there.
    pub(super) fn take_sends(&mut self, sends: &mut Vec<ClientId>) {
        sends.clear();
        std::mem::swap(sends, &mut self.sends);
    }

    /// Whether a client leaves too much unread. Where all of them together do, those go first that leave more than this one.
    pub(super) fn outgrows(&mut self, session: &mut Session) -> bool {
        self.unread.count(session);
        let own = session.unread_bytes;
        own > self.unread.bytes_max(session) || !self.make_room(0, own)
    }

    /// Disconnects clients that leave more than `least` bytes unread, most first, until there is room for so many bytes;
    /// false if there is none then.
    fn make_room(&mut self, bytes: usize, least: usize) -> bool {
        while !self.unread.has_room(bytes) {
            let sessions = self.slots.iter_mut().enumerate();
            let unread = sessions.filter_map(|(at, slot)| Some((at, slot.as_deref_mut()?)));
            let most = unread.max_by_key(|(_, session)| session.unread_bytes);
            let Some((at, session)) = most.filter(|(_, session)| session.unread_bytes > least)
            else {
                return false;
            };
            let client = ClientId(at as u32);
            self.unread.cut_off(client, session);
            self.sends.push(client);
        }
        true
    }

    /// Whether one more client may be given a copy of a reply of so many bytes that others were given just now, who are not to
    /// go for it.
    ///
    /// # Errors
    /// The reply to give instead.
    pub(super) fn may_copy(&mut self, bytes: usize) -> Result<(), ReplyError> {
        if self.unread.is_too_long(bytes) {
            return Err(crate::resp::TOO_LONG);
        }
        if self.make_room(bytes, bytes.saturating_mul(2)) {
            return Ok(());
        }
        Err(ReplyError::new(
            Code::Busy,
            "clients have left too many replies unread (--output-limit-total); try again",
        ))
    }

    /// Counts what a client has been given beside its own turn.
    pub(super) fn count_unread(&mut self, session: &mut Session) {
        self.unread.count(session);
    }

    /// Replies of a client were sent.
    pub(super) fn sent(&mut self, client: ClientId) {
        if let Some(Some(session)) = self.slots.get_mut(client.0 as usize) {
            self.unread.count(session);
        }
    }

    /// Disconnects a client that leaves too much unread.
    pub(super) fn cut_off(&mut self, client: ClientId, session: &mut Session) {
        self.unread.cut_off(client, session);
        self.sends.push(client);
    }

    /// Disconnects a client that has lost the right to be here. It waits for nothing any more: no time that was named for that
    /// may be left for whoever gets its number next.
    pub(super) fn turn_away(&mut self, client: ClientId, session: &mut Session) {
        self.timers.end_wait(client, session);
        session.waiting = None;
        self.unmonitor(client);
        self.unread.give_up(session);
        self.sends.push(client);
    }

    /// Bytes of replies that wait for clients, and how many clients were disconnected for them.
    pub(super) fn unread(&self) -> (u64, u64) {
        (self.unread.bytes(), self.unread.cut())
    }
}

/// Turns: see [`turns`].
impl Sessions {
    /// A client may go on.
    pub(super) fn ready(&mut self, client: ClientId) {
        self.turns.ready(client);
    }

    /// The next client who may go on.
    pub(super) fn next_ready(&mut self) -> Option<ClientId> {
        self.turns.next_ready()
    }

    /// A client has more to execute, and lets the others have their turn first.
    pub(super) fn yield_turn(&mut self, client: ClientId, session: &mut Session) {
        session.yielded = true;
        self.turns.yielded(client);
    }

    /// How many have yielded.
    pub(super) fn yielded_len(&self) -> usize {
        self.turns.yielded_len()
    }

    /// The next client who has yielded goes on; the inner `None` if it is gone.
    pub(super) fn end_yield(&mut self) -> Option<Option<ClientId>> {
        let client = self.turns.next_yielded()?;
        let session = self.get_mut(client);
        Some(session.map(|session| {
            session.yielded = false;
            client
        }))
    }

    /// Whether there is something to execute that waits for nothing but its turn.
    pub(super) fn has_work(&self) -> bool {
        self.turns.has_work()
    }

    /// What was executed so far, in the units of [`TURN`].
    #[inline]
    pub(super) fn work(&self) -> usize {
        self.turns.work()
    }

    /// So much more was executed.
    #[inline]
    pub(super) fn worked(&mut self, work: usize) {
        self.turns.worked(work);
    }
}

/// Times: see [`timers`].
impl Sessions {
    /// A client waits until this time, which its command has named.
    pub(super) fn set_deadline(&mut self, client: ClientId, deadline: Time) {
        self.timers.set_deadline(client, deadline);
    }

    /// It does not wait any more.
    pub(super) fn clear_deadline(&mut self, client: ClientId, deadline: Time) {
        self.timers.clear_deadline(client, deadline);
    }

    /// The next client whose named time is over.
    pub(super) fn next_timed_out(&mut self, now: Time) -> Option<ClientId> {
        self.timers.next_timed_out(now)
    }

    /// Has a client be looked at when this time comes, unless it is looked at earlier: that look decides when the next one
    /// is.
    pub(super) fn set_alarm(&mut self, client: ClientId, due: Time) {
        if let Some(Some(session)) = self.slots.get_mut(client.0 as usize) {
            self.timers.set_alarm(client, session, due);
        }
    }

    /// The next client that is to be looked at now.
    pub(super) fn next_alarmed(&mut self, now: Time) -> Option<ClientId> {
        loop {
            let client = self.timers.next_alarmed(now)?;
            if let Some(session) = self.get_mut(client) {
                session.alarm = None;
                return Some(client);
            }
        }
    }

    /// When the next of these comes.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.timers.next_timeout()
    }

    /// No client waits until a time that its command has named.
    #[cfg(test)]
    pub(super) fn is_free_of_deadlines(&self) -> bool {
        self.timers.is_free_of_deadlines()
    }

    /// Nothing is left of anyone, as it must be once all are gone.
    #[cfg(test)]
    pub(super) fn assert_gone(&self) {
        assert!(self.iter().next().is_none() && self.connected == 0, "a session is left");
        assert_eq!(self.free.len(), self.slots.len(), "a client number is lost");
        assert!(self.timers.is_free_of_deadlines() && !self.has_work());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(2, 100, 150)
    }

    fn announced() -> Box<Session> {
        let mut session = Box::<Session>::default();
        (session.announced, session.known) = (true, true);
        session.gated.extend_from_slice(b"+OK\r\n");
        session
    }

    #[test]
    fn a_number_for_which_the_core_holds_replies_is_not_given_away() {
        let mut all = sessions();
        let first = all.add(announced());
        assert!(all.remove(first).is_some());
        let second = all.add(Box::default());
        assert_ne!(first, second);
        all.release(first);
        assert_eq!(all.add(Box::default()), first);
        assert!(all.is_full());
    }

    #[test]
    fn what_is_released_while_the_session_is_out_is_told_once_it_is_back() {
        let mut all = sessions();
        let client = all.add(announced());
        let session = all.take(client).unwrap();
        all.release(client);
        all.restore(client, session);
        let mut sends = vec![ClientId(9)];
        all.take_sends(&mut sends);
        assert!(sends.is_empty());
        for late in all.take_released_late() {
            all.release(late);
        }
        all.take_sends(&mut sends);
        assert_eq!((sends, &all.get(client).unwrap().ready[..]), (vec![client], &b"+OK\r\n"[..]));
    }

    #[test]
    fn a_session_is_taken_out_by_what_it_waits_for_alone() {
        let mut all = sessions();
        let client = all.add(Box::default());
        let request = RequestId(u64::from(client.0) << 32 | 7);
        let waiting = Waiting::Units { request, raw: Box::default(), units: Box::default() };
        all.get_mut(client).unwrap().waiting = Some(waiting);
        assert!(all.take_waiting(RequestId(request.0 + 1)).is_none());
        assert!(all.take_job(request).is_none() && all.take_waiting_for(client, Lsn(1)).is_none());
        let (found, session) = all.take_waiting(request).unwrap();
        assert_eq!((found, all.next_ready()), (client, None));
        all.restore_answered(found, session);
        assert_eq!(all.next_ready(), Some(client));
    }

    #[test]
    fn whoever_leaves_most_unread_goes_first() {
        let mut all = sessions();
        let of = |bytes| {
            let mut session = Box::<Session>::default();
            (session.ready, session.known) = (vec![b'x'; bytes], true);
            session
        };
        let (greedy, modest) = (all.add(of(90)), all.add(of(70)));
        let mut session = all.take(greedy).unwrap();
        assert!(!all.outgrows(&mut session));
        all.restore(greedy, session);
        let mut session = all.take(modest).unwrap();
        assert!(!all.outgrows(&mut session), "the other one has gone for it");
        assert!(all.get(greedy).unwrap().is_cut && all.unread() == (70, 1));
    }
}
