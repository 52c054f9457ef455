//! The journal's side: when to sync, and which replies may leave.
//!
//! A reply leaves when the journal durably holds every group that the reply reveals: the client's own write, and what others
//! wrote that it has read. Otherwise a crash could take back what a client has already acted upon. One sync covers every group
//! appended before it began, so a reply waits for the sync under way only if that one began late enough (`now`), and else for
//! the next one (`next`).

use super::Core;
use crate::id::{ClientId, Lsn, RequestId};
use crate::io::{Effect, Fault, Outcome, StopReason};
use crate::policy::Order;
use crate::rate::Average;
use crate::time::{Span, Time};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// Replies of one client, held until the journal holds what they reveal.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct Held {
    client: ClientId,
    lsn: Lsn,
    wrote: bool,
}

/// What is durable, and who waits for it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Gate {
    pub(super) committed: Lsn,
    /// See [`crate::Input::Lacking`].
    secured: Lsn,
    is_lacking: bool,
    appended: Lsn,
    /// When the oldest group that no sync covers was appended.
    uncommitted_since: Option<Time>,
    /// The same for the groups that the sync under way covers.
    syncing_since: Option<Time>,
    /// The sync under way: upto, and when it began.
    syncing: Option<(Lsn, Time)>,
    latency: Average,
    hurry: bool,
    /// Replies that the sync under way releases, and those that need the next one.
    now: Vec<Held>,
    next: Vec<Held>,
    /// Acknowledgements held back because `D` is exceeded.
    stale: VecDeque<Held>,
    waits: BTreeMap<Lsn, Vec<RequestId>>,
}

impl Gate {
    pub(super) fn new(committed: Lsn) -> Self {
        Self {
            committed,
            secured: committed,
            is_lacking: false,
            appended: committed,
            uncommitted_since: None,
            syncing_since: None,
            syncing: None,
            latency: Average::default(),
            hurry: false,
            now: Vec::new(),
            next: Vec::new(),
            stale: VecDeque::new(),
            waits: BTreeMap::new(),
        }
    }

    pub(super) fn appended(&mut self, now: Time, lsn: Lsn) {
        self.appended = lsn;
        self.uncommitted_since.get_or_insert(now);
    }

    /// Up to here groups may be destaged. What the journal does not hold durably may not, since a crash would leave the origin
    /// ahead of the journal.
    pub(super) fn secured(&self) -> Lsn {
        self.secured.max(self.committed)
    }

    /// What was said last of copies of the journal that are lacking.
    pub(super) fn lacking(&self) -> Option<Lsn> {
        self.is_lacking.then_some(self.secured)
    }

    /// A group that the journal held at start is durable.
    pub(super) fn recovered(&mut self, lsn: Lsn) {
        self.appended = lsn;
        self.committed = lsn;
    }

    /// Someone waits for the groups up to here: sync as soon as possible.
    pub(super) fn hurry(&mut self, upto: Lsn) {
        let covered = self.syncing.map_or(self.committed, |(upto, _)| upto);
        self.hurry |= upto > covered;
    }

    /// What a host crash would lose now.
    pub(super) fn uncommitted_age(&self, now: Time) -> Span {
        let since = self.syncing_since.or(self.uncommitted_since);
        since.map_or(Span::ZERO, |since| now.since(since))
    }

    pub(super) fn cancel(&mut self, request: RequestId) {
        for requests in self.waits.values_mut() {
            requests.retain(|&waiting| waiting != request);
        }
    }
}

impl Core {
    /// Copies of the journal are lacking, or no more.
    pub(super) fn take_lacking(&mut self, secured: Option<Lsn>) {
        self.gate.is_lacking = secured.is_some();
        if let Some(secured) = secured {
            assert!(secured <= self.gate.appended, "only what is written is secured");
            self.gate.secured = self.gate.secured.max(secured);
            self.requests.fallback = true;
        }
        self.leave_fallback();
        // What could not start before may now.
        self.destager.unblock();
    }

    pub(super) fn respond(&mut self, client: ClientId, lsn: Lsn, wrote: bool) {
        let commit = self.policy.commit;
        let gate = &mut self.gate;
        // With an interval, memory is enough unless the journal falls behind by more than the interval: then nothing more
        // is acknowledged. With d = 0 nobody may see what a crash could take back.
        let is_behind = wrote && gate.uncommitted_age(self.now) >= commit;
        if lsn <= gate.committed || (commit > Span::ZERO && !is_behind) {
            return self.send(Held { client, lsn, wrote });
        }
        let covered = gate.syncing.is_some_and(|(upto, _)| lsn <= upto);
        let held = Held { client, lsn, wrote };
        if covered { gate.now.push(held) } else { gate.next.push(held) }
    }

    /// Sends replies, unless they acknowledge a write while `D` is exceeded.
    fn send(&mut self, held: Held) {
        if self.stopped.is_some() {
            return;
        }
        if held.wrote && self.is_stale() {
            self.gate.stale.push_back(held);
        } else {
            if held.wrote && self.policy.order == Order::Strict {
                self.level.close();
            }
            self.effects.push_back(Effect::Send { client: held.client });
        }
    }

    pub(super) fn release_held(&mut self) {
        if self.gate.stale.is_empty() || self.is_stale() {
            return;
        }
        // Meanwhile the journal may have fallen behind: the whole question is asked again.
        for Held { client, lsn, wrote } in core::mem::take(&mut self.gate.stale) {
            self.respond(client, lsn, wrote);
        }
    }

    pub(super) fn wait_committed(&mut self, request: RequestId, lsn: Lsn) {
        if self.stopped.is_some() {
            return;
        }
        if lsn <= self.gate.committed {
            return self.tell_committed(request);
        }
        self.gate.waits.entry(lsn).or_default().push(request);
        self.gate.hurry(lsn);
    }

    /// When the next sync is due if `Tick` came then.
    pub(super) fn sync_at(&self) -> Option<Time> {
        let gate = &self.gate;
        if gate.syncing.is_some() {
            return None;
        }
        let since = gate.uncommitted_since?;
        if self.policy.commit == Span::ZERO || gate.hurry || self.destager.draining {
            return Some(self.now);
        }
        // Durable within d means begun earlier, by what a sync takes; at the least at half of d, as long as that is unknown
        // too. A tenth of d to spare covers a sync that takes longer than usual.
        let commit = self.policy.commit.0;
        let usual = gate.latency.get().map_or(u64::MAX, |nanos| nanos as u64 * 2);
        let reserve = Span(usual.clamp(commit / 10, commit / 2));
        let by_interval = since + self.policy.commit.saturating_sub(reserve);
        if self.awaits_commit() {
            return Some(self.now);
        }
        // Only what the journal holds is destaged, so `D` hurries the journal as well.
        Some(self.pressed_from(since).map_or(by_interval, |at| by_interval.min(at - reserve)))
    }

    /// Lets the replies that are held leave as soon as the journal allows.
    pub(super) fn hurry_held(&mut self) {
        if let Some(held) = self.gate.next.last() {
            self.gate.hurry(held.lsn);
        }
    }

    pub(super) fn start_sync(&mut self) {
        if self.sync_at().is_none_or(|at| at > self.now) {
            return;
        }
        let gate = &mut self.gate;
        let upto = gate.appended;
        gate.syncing = Some((upto, self.now));
        gate.syncing_since = gate.uncommitted_since.take();
        gate.hurry = false;
        gate.now.append(&mut gate.next);
        self.effects.push_back(Effect::Sync { upto });
    }

    pub(super) fn synced(&mut self, upto: Lsn, result: Result<(), Fault>) {
        let under_way = self.gate.syncing.take();
        if result.is_err() {
            return self.stop(StopReason::JournalFailed);
        }
        // What nobody had asked for covers whatever it covers.
        let (asked, began) = under_way.unwrap_or((Lsn::ZERO, self.now));
        assert!(
            upto > self.gate.committed || upto >= asked,
            "a sync that covers nothing has failed"
        );
        let gate = &mut self.gate;
        let since = gate.syncing_since.take();
        gate.committed = upto.max(gate.committed);
        if upto < asked {
            // The journal had room for a part: whoever waits for the rest still does.
            gate.uncommitted_since = since.or(gate.uncommitted_since);
            gate.hurry = true;
        } else if under_way.is_some() {
            gate.latency.add(self.now.since(began).as_nanos() as f64);
        }
        if upto >= gate.appended {
            gate.uncommitted_since = None;
            gate.hurry = false;
        }
        self.counters.syncs += 1;
        if self.stopped.is_some() {
            return;
        }
        self.release_synced(upto);
        let later = self.gate.waits.split_off(&upto.next());
        for request in core::mem::replace(&mut self.gate.waits, later).into_values().flatten() {
            self.tell_committed(request);
        }
    }

    fn tell_committed(&mut self, request: RequestId) {
        // Whatever the order is now: it may become one that keeps what was flushed before.
        self.level.close();
        self.effects.push_back(Effect::Waited { request, outcome: Outcome::Done });
    }

    /// Sends the replies that a sync covers; it may cover more than it was asked to.
    fn release_synced(&mut self, upto: Lsn) {
        let mut held = core::mem::take(&mut self.gate.now);
        held.append(&mut self.gate.next);
        for held in held.drain(..) {
            if held.lsn <= upto { self.send(held) } else { self.gate.next.push(held) }
        }
        self.gate.now = held;
    }
}
