//! Requests on their way.

use super::{Front, Submitted, moment};
use crate::ask::{Answer, Answered, Ask, Caller, Errno, Handle, Ino, Name};
use crate::engine::exec::{Context, Done, Reply};
use crate::engine::needs::{Hints, Need, Seen, Stop};
use crate::engine::node::Node;
use crate::engine::room::wanted;
use crate::engine::tree::Known;
use crate::engine::views::Way;
use destage_core::{Access, Ack, ClientId, Input, Intent, Lsn, RequestId, Span, Time, WaitFor};
use destage_engine::Drive;
use destage_tokens::Need as TokenNeed;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A request and all that is known of it.
pub(crate) struct Pending {
    pub(crate) caller: Caller,
    pub(crate) ask: Ask,
    pub(crate) hints: Hints,
    pub(crate) answer: Box<dyn Answer>,
    /// The tokens under which it is carried out, where several hosts share the origin.
    pub(crate) ticket: Option<Ticket>,
}

/// What a request has been admitted under.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    pub(crate) needs: BTreeSet<TokenNeed>,
    /// Its number at the tokens.
    pub(crate) ask: Arc<AtomicU64>,
}

/// All that are on their way.
#[derive(Default)]
pub(super) struct Requests {
    /// Not executed yet.
    waiting: HashMap<u64, Waiting>,
    /// Executed, not answered.
    executed: HashMap<u64, (Box<dyn Answer>, Answered)>,
    /// Those of them that wait for the origin's word on a group.
    settling: BTreeMap<Lsn, u64>,
    next: u32,
}

/// So long it counts what the origin has said for a request that waits, whatever is asked for.
const HINTS_FRESH: Span = Span::from_millis(100);

struct Waiting {
    pending: Pending,
    /// What it means, while nothing has happened since that was found out.
    done: Option<(Done, KnownAt)>,
}

/// The newest group, what was settled, and for an open the newest handle.
type KnownAt = (Lsn, u64, Option<Handle>);

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.executed.len()
    }

    pub(super) fn settled(&mut self, lsn: Lsn) -> Option<RequestId> {
        self.settling.remove(&lsn).map(RequestId)
    }

    pub(super) fn unheard(&mut self) -> RequestId {
        RequestId(self.number())
    }

    /// Numbers come again after four billion, when nothing of the first ones is left.
    fn number(&mut self) -> u64 {
        self.next = self.next.wrapping_add(1);
        self.next.into()
    }
}

impl Front {
    /// A request comes.
    pub(crate) fn submit(&mut self, now: Time, mut pending: Pending) -> Submitted {
        self.advance(now);
        if let Some(needs) = self.tokens_missing(&pending) {
            return Submitted::NeedsTokens(pending, needs);
        }
        self.counted.requests += 1;
        self.recall(&mut pending);
        match &pending.ask {
            Ask::Forget { ino, count } => {
                let (ino, count) = (*ino, *count);
                self.forgotten(ino, count);
                return self.answered(pending, Ok(Answered::Done));
            }
            Ask::Release { ino, handle } | Ask::ReleaseDir { ino, handle } => {
                let (ino, handle) = (*ino, *handle);
                self.released(ino, handle);
                return self.answered(pending, Ok(Answered::Done));
            }
            Ask::ReadDir { handle, anew: false, .. } => {
                if let Some(names) = self.listings.get(handle).cloned() {
                    return self.answered(pending, Ok(Answered::Names(names)));
                }
            }
            Ask::Fsync { ino } => {
                let ino = *ino;
                return self.fsync(ino, pending);
            }
            _ => {}
        }
        let done = self.exec(&mut pending);
        match done.and_then(|done| self.check_room(&pending).map(|()| done)) {
            Err(Stop::Need(need)) => {
                (pending.hints.asked, pending.hints.asked_at) = (self.tree.settled(), self.now);
                pending.hints.since.get_or_insert(self.now);
                Submitted::Needs(pending, need)
            }
            Err(Stop::Errno(errno)) => {
                self.note_looked(&pending);
                self.hurry_if_busy(errno);
                self.answered(pending, Err(errno))
            }
            Ok(done) if done.records.is_empty() => self.looked(pending, done),
            Ok(_) if self.stopped.is_some() => self.answered(pending, Err(Errno::IO)),
            Ok(done) => {
                match &mut self.frozen {
                    Some(held) => {
                        pending.hints.outdate();
                        held.push(pending);
                    }
                    None => self.change(pending, done),
                }
                Submitted::Taken
            }
        }
    }

    /// Whether the origin has room for what is asked, as far as is known. What lacks it has the origin asked once more.
    fn check_room(&mut self, pending: &Pending) -> Result<(), Stop> {
        if self.has_room_for(&pending.ask) {
            return Ok(());
        }
        let (space, landed) = pending.hints.space(self.landed())?;
        self.set_space(&space, landed);
        if self.has_room_for(&pending.ask) { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }

    fn has_room_for(&self, ask: &Ask) -> bool {
        let wanted = wanted(ask);
        let fits = self.room.is_none_or(|room| wanted <= room);
        wanted == 0 || fits || self.settings.controls.no_room
    }

    /// The tokens that a request needs, with those that it has, if any is missing.
    fn tokens_missing(&self, pending: &Pending) -> Option<BTreeSet<TokenNeed>> {
        self.covers.as_ref()?;
        let mut needs = self.tree.tokens_for(&pending.ask, &pending.hints);
        match &pending.ticket {
            // Whoever waits for its word goes on as if this host were not shut out: that needs the lease.
            None if needs.is_empty() && !matches!(pending.ask, Ask::Fsync { .. }) => None,
            Some(ticket) if needs.is_subset(&ticket.needs) => None,
            known => {
                needs.extend(known.iter().flat_map(|ticket| ticket.needs.iter().cloned()));
                Some(needs)
            }
        }
    }

    /// What a request means, or what has to be known first.
    fn exec(&mut self, pending: &mut Pending) -> Result<Done, Stop> {
        if !matches!(pending.ask, Ask::ReadDir { .. } | Ask::RmDir { .. }) {
            self.views.learn(&pending.hints);
        }
        loop {
            let context = Context {
                caller: pending.caller,
                now: moment(self.now),
                hints: &pending.hints,
                handle: self.last_handle + 1,
            };
            let (dir, name) = match self.tree.exec(&context, &pending.ask) {
                Err(Stop::Need(Need::Name(dir, name))) if self.covers.is_none() => (dir, name),
                done => return done,
            };
            match self.views.way(self.now, &self.tree, &dir, &name) {
                Way::Ask => return Err(Need::Name(dir, name).into()),
                Way::List => return Err(Need::List(dir).into()),
                Way::Nobodys => {
                    let seen = Seen { found: None, asked: self.tree.settled() };
                    pending.hints.recall(dir.ino, &name, seen);
                }
            }
        }
    }

    /// What the kernel has just looked up is not looked up once more for what it asks then. Where several hosts share the origin,
    /// others may have had the tokens meanwhile.
    fn recall(&mut self, pending: &mut Pending) {
        if self.covers.is_some() || matches!(pending.ask, Ask::Lookup { .. }) {
            return;
        }
        if let Some((dir, name)) = main_name(&pending.ask)
            && let Some(seen) = self.looked.take(self.now, dir, name)
        {
            pending.hints.recall(dir, name, seen);
        }
    }

    fn note_looked(&mut self, pending: &Pending) {
        if let Ask::Lookup { dir, name } = &pending.ask
            && self.covers.is_none()
            && let Some(seen) = pending.hints.seen(*dir, name)
        {
            self.looked.note(self.now, *dir, name, seen);
        }
    }

    /// A request that changes nothing.
    fn looked(&mut self, pending: Pending, done: Done) -> Submitted {
        self.note(&pending.ask, &done);
        self.note_looked(&pending);
        match done.reply {
            Reply::Ready(answered) => {
                if let (Ask::ReadDir { handle, .. }, Answered::Names(names)) =
                    (&pending.ask, &answered)
                {
                    self.listings.insert(*handle, names.clone());
                }
                self.answered(pending, Ok(answered))
            }
            Reply::Read(key, range) => {
                if self.tree.is_stored_to(&pending.ask) {
                    self.mapped.insert(key.ino);
                }
                let Some(node) = self.tree.node(key.ino) else {
                    return self.answered(pending, Err(Errno::STALE));
                };
                let is_clean = node.stat.is_none();
                let limit = if is_clean { u64::MAX } else { node.content.limit };
                let fragments = node.content.extents.fragments(range);
                Submitted::Read(pending.answer, key, fragments, limit)
            }
        }
    }

    /// A request that changes something: the core says when.
    fn change(&mut self, pending: Pending, done: Done) {
        let bytes = done.records.iter().map(super::data_bytes).sum::<usize>() as u32;
        let unit = self.unit(done.ino);
        let id = self.requests.number();
        let at = self.known_at(&done);
        self.requests.waiting.insert(id, Waiting { pending, done: Some((done, at)) });
        let intent = Intent::Write { bytes, ack: Ack::Policy, fetch: false };
        let units: Vec<_> = unit.into_iter().collect();
        let request = RequestId(id);
        self.core.handle(self.now, Input::Access { request, intent, units: &units });
        self.core.handle(self.now, Input::Tick);
        self.pump();
    }

    /// What comes of a request rests on no more than this.
    fn known_at(&self, done: &Done) -> KnownAt {
        let handle = done.opened.map(|_| self.last_handle);
        (self.core.last(), self.tree.settled(), handle)
    }

    /// It is its turn.
    pub(super) fn execute_request(&mut self, request: RequestId, access: Access) {
        let Some(Waiting { mut pending, done }) = self.requests.waiting.remove(&request.0) else {
            return;
        };
        if let Some(bytes) = self.lacks_journal_room(&pending.ask) {
            self.release_units(access, &pending);
            return self.hold(pending, bytes);
        }
        if !self.has_room_for(&pending.ask) {
            // It was taken by others while this waited; what was known then is old.
            pending.hints.outdate();
            let need = Need::Space(self.landed());
            return self.retry(access, pending, need);
        }
        let done = match done.filter(|(done, at)| *at == self.known_at(done)) {
            Some((done, _)) => done,
            None => {
                // What was known when it came may not be so any more. If everybody who asks the origin began anew whenever another
                // one has changed something, they would wait for as long as somebody writes at a limit.
                let since = pending.hints.since.unwrap_or_default();
                let age = Span(self.now.0.saturating_sub(since.0));
                if self.covers.is_some() || age > self.settings.names_fresh.max(HINTS_FRESH) {
                    pending.hints.outdate();
                }
                if self.tokens_missing(&pending).is_some() {
                    self.release_units(access, &pending);
                    self.out.again.push(pending);
                    return;
                }
                let context = Context {
                    caller: pending.caller,
                    now: moment(self.now),
                    hints: &pending.hints,
                    handle: self.last_handle + 1,
                };
                match self.tree.exec(&context, &pending.ask) {
                    Ok(done) => done,
                    Err(Stop::Errno(errno)) => {
                        self.release_units(access, &pending);
                        let _ = self.answered(pending, Err(errno));
                        return;
                    }
                    Err(Stop::Need(need)) => return self.retry(access, pending, need),
                }
            }
        };
        self.perform(request, access, pending, done);
    }

    /// It has to know more of the origin, and comes again.
    fn retry(&mut self, access: Access, mut pending: Pending, need: Need) {
        self.release_units(access, &pending);
        (pending.hints.asked, pending.hints.asked_at) = (self.tree.settled(), self.now);
        pending.hints.since.get_or_insert(self.now);
        self.out.retries.push((pending, need));
    }

    /// It wrote nothing after all.
    fn release_units(&mut self, access: Access, pending: &Pending) {
        if access != Access::Back {
            let unit = main_ino(&pending.ask).and_then(|ino| self.unit(ino));
            let units: Vec<_> = unit.into_iter().collect();
            self.core.handle(self.now, Input::Release { units: &units });
        }
    }

    fn perform(&mut self, request: RequestId, access: Access, pending: Pending, done: Done) {
        let unit = self.unit(done.ino);
        let lsn = self.write(access, unit, &done.records);
        self.note(&pending.ask, &done);
        self.pin_unnamed(&done);
        self.out.outdated.extend(done.is_other_mode.then_some(done.ino));
        let Pending { ask, mut hints, answer, .. } = pending;
        self.room = self.room.map(|room| room.saturating_sub(wanted(&ask)));
        self.refused.append(&mut hints.refused);
        if !matches!(ask, Ask::Make { .. }) {
            self.out.unused.extend(hints.staged.take());
        }
        let Reply::Ready(answered) = done.reply else { return };
        self.requests.executed.insert(request.0, (answer, answered));
        if access != Access::Back {
            self.requests.settling.insert(lsn, request.0);
        } else if matches!(ask, Ask::Write { sync: true, .. }) {
            self.wait_durable(request, lsn, done.ino);
        } else {
            let client = ClientId(request.0 as u32);
            self.core.handle(self.now, Input::Respond { client, lsn, wrote: true });
        }
    }

    fn wait_durable(&mut self, request: RequestId, lsn: Lsn, ino: Ino) {
        if self.settings.controls.no_commit {
            return self.finish_request(request);
        }
        let is_below = self.tree.node(ino).is_some_and(|node| node.place.is_below);
        let is_by_origin = self.settings.fsync_origin || is_below;
        let until = if is_by_origin { WaitFor::Decided } else { WaitFor::Committed };
        self.core.handle(self.now, Input::Wait { request, lsn, until });
    }

    /// All that was done so far is to be durable, of whichever file: the journal is one order, and who waits for a file has
    /// as a rule done something else before, on which the file builds.
    fn fsync(&mut self, ino: Ino, pending: Pending) -> Submitted {
        if self.tree.node(ino).is_none() {
            return self.answered(pending, Err(Errno::STALE));
        }
        let lsn = self.last();
        if self.stopped.is_some() {
            return self.answered(pending, Err(Errno::IO));
        }
        let id = self.requests.number();
        self.requests.executed.insert(id, (pending.answer, Answered::Done));
        self.out.unused.extend(pending.hints.staged);
        self.wait_durable(RequestId(id), lsn, ino);
        self.core.handle(self.now, Input::Tick);
        self.pump();
        Submitted::Taken
    }

    /// It may be answered.
    pub(super) fn finish_request(&mut self, request: RequestId) {
        if let Some((answer, answered)) = self.requests.executed.remove(&request.0) {
            self.out.answers.push((answer, Ok(answered)));
        }
    }

    pub(super) fn fail_request(&mut self, request: RequestId, errno: Errno) {
        if let Some(waiting) = self.requests.waiting.remove(&request.0) {
            let _ = self.answered(waiting.pending, Err(errno));
        }
    }

    pub(super) fn fail_all(&mut self, errno: Errno) {
        for (_, (answer, _)) in self.requests.executed.drain() {
            self.out.answers.push((answer, Err(errno)));
        }
        self.requests.settling.clear();
    }

    fn answered(&mut self, mut pending: Pending, answered: Result<Answered, Errno>) -> Submitted {
        self.counted.errors += u64::from(answered.is_err());
        self.refused.append(&mut pending.hints.refused);
        self.out.unused.extend(pending.hints.staged);
        self.out.answers.push((pending.answer, answered));
        Submitted::Taken
    }

    /// The kernel knows a file, or has it open, from now on.
    fn note(&mut self, ask: &Ask, done: &Done) {
        if let Some((key, kind)) = &done.looked {
            self.tree.learn(key, *kind).lookups += 1;
        }
        if !self.settings.fsync_origin_below.is_empty() {
            self.note_place(ask, done);
        }
        if let Some(node) = done.opened.and_then(|ino| self.tree.node_mut(ino)) {
            node.opens += 1;
            self.last_handle += 1;
            let flags = match ask {
                Ask::Open { flags, .. } | Ask::Make { open: Some(flags), .. } => *flags,
                _ => libc::O_RDONLY,
            };
            // A mapping that can be stored to needs a file that can be read, too.
            if flags & libc::O_ACCMODE == libc::O_RDWR {
                node.writers += 1;
                self.writers.insert(self.last_handle, node.key.ino);
            }
        }
    }

    /// A file is where it was looked up last, or was moved to. What is in a folder that was moved is looked up again, once the
    /// kernel does not remember it any more.
    fn note_place(&mut self, ask: &Ask, done: &Done) {
        let Some((dir, name)) = main_name(ask) else { return };
        let there = match self.tree.child(dir, name) {
            Known::File(ino) => Some(ino),
            _ => done.looked.as_ref().map(|(key, _)| key.ino),
        };
        let Some(place) =
            self.tree.node(dir).map(|dir| self.settings.fsync_origin_below.enter(&dir.place, name))
        else {
            return;
        };
        if let Some(node) = there.and_then(|ino| self.tree.node_mut(ino)) {
            node.place = place;
        }
    }

    /// What has lost its last name and is open stays readable.
    fn pin_unnamed(&mut self, done: &Done) {
        for record in &done.records {
            let crate::engine::record::Record::Meta { stat, .. } = record else { continue };
            if self.tree.node(stat.ino).is_some_and(|node| node.staged.is_none()) {
                self.pin_if_unnamed(stat.ino);
            }
        }
    }

    /// The same of one that has no name and is open.
    pub(super) fn pin_if_unnamed(&mut self, ino: Ino) {
        let Some(node) = self.tree.node_mut(ino) else { return };
        if node.dead.is_none() || node.opens == 0 || node.is_pinned {
            return;
        }
        match self.origin.pin(&node.key) {
            Ok(()) => node.is_pinned = true,
            Err(error) => {
                tracing::warn!(%error, ino, "a deleted file that is open cannot be kept at the origin");
            }
        }
    }

    fn forgotten(&mut self, ino: Ino, count: u64) {
        if let Some(node) = self.tree.node_mut(ino) {
            node.lookups = node.lookups.saturating_sub(count);
            node.free_if_gone();
        }
        self.tree.drop_if_idle(ino, self.core.decided());
        self.may_be_given_back(ino);
    }

    fn released(&mut self, ino: Ino, handle: Handle) {
        self.listings.remove(&handle);
        let could_write = self.writers.remove(&handle).is_some();
        let Some(node) = self.tree.node_mut(ino) else { return };
        node.opens = node.opens.saturating_sub(1);
        node.writers = node.writers.saturating_sub(could_write.into());
        if node.opens > 0 {
            return;
        }
        if std::mem::take(&mut node.is_pinned) {
            self.origin.unpin(&node.key);
        }
        let free = self.tree.close_dead(ino, self.core.decided());
        self.out.free.extend(free);
        self.tree.drop_if_idle(ino, self.core.decided());
        self.may_be_given_back(ino);
    }

    /// Somebody knows a file no longer. Where several hosts share the origin it keeps its number: tokens are for numbers.
    fn may_be_given_back(&mut self, ino: Ino) {
        let life = self.tree.node(ino).and_then(Node::life);
        if let Some(life) = life.filter(|_| self.covers.is_none()) {
            self.gone.insert((life.to, ino));
            self.give_back();
            // One sync for many of them costs less than files made in advance for those who create some meanwhile.
            if self.gone.len() == GONE_MAX {
                self.commit_soon(self.now);
            }
        }
    }

    /// Files that the origin never saw are given out again once the journal says durably that they are gone: what is done with
    /// the file at the origin from then on is done to nobody's.
    pub(super) fn give_back(&mut self) {
        let is_unsafe = self.settings.controls.no_wait_for_gone;
        let durable = if is_unsafe { self.core.last() } else { self.core.committed() };
        while let Some(&(dead, ino)) = self.gone.first().filter(|(dead, _)| *dead <= durable) {
            self.gone.remove(&(dead, ino));
            self.out.unchanged.extend(self.tree.give_back(ino, durable));
        }
    }

    /// Who has to wait for changes to be at the origin is not to wait until they are due.
    fn hurry_if_busy(&mut self, errno: Errno) {
        let last = self.last();
        if errno == Errno::BUSY && self.hurried < last {
            self.hurried = last;
            self.hurry(self.now);
        }
    }

    /// A request could not find out what it needs.
    pub(crate) fn cannot_know(&mut self, pending: Pending, errno: Errno) {
        let _ = self.answered(pending, Err(errno));
    }
}

/// So many files that may soon be given out again wait for a commit.
const GONE_MAX: usize = 64;

fn main_ino(ask: &Ask) -> Option<Ino> {
    Some(match *ask {
        Ask::SetAttr { ino, .. }
        | Ask::Open { ino, .. }
        | Ask::Write { ino, .. }
        | Ask::SetXattr { ino, .. }
        | Ask::RemoveXattr { ino, .. }
        | Ask::Fallocate { ino, .. } => ino,
        Ask::Make { dir, .. }
        | Ask::Unlink { dir, .. }
        | Ask::RmDir { dir, .. }
        | Ask::Link { dir, .. } => dir,
        Ask::Rename { to_dir, .. } => to_dir,
        _ => return None,
    })
}

/// The name that a request is about: of a rename, the new one.
fn main_name(ask: &Ask) -> Option<(Ino, &Name)> {
    Some(match ask {
        Ask::Lookup { dir, name }
        | Ask::Make { dir, name, .. }
        | Ask::Unlink { dir, name }
        | Ask::Link { dir, name, .. } => (*dir, name),
        Ask::Rename { to_dir, to_name, .. } => (*to_dir, to_name),
        _ => return None,
    })
}
