//! A host's life at the store: its lease, its session, and what becomes of others whose session has ended.

use super::{Effect, Host, Kept, Stage};
use crate::{HostId, Key, LeaseId, Mode, Rev, Root, Snapshot};
use destage_core::{Span, Time};

/// The lease, and what is known by it.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Lease {
    pub(super) id: Option<LeaseId>,
    /// Nothing is served from then on.
    pub(super) valid_until: Time,
    renew_at: Time,
    is_renewing: bool,
    /// No lease was to be had: not asked for again before.
    retry_at: Time,
    is_asked: bool,
    /// What the store holds must be read again, but not before then.
    pub(super) is_load_due: bool,
    load_at: Time,
    is_loading: bool,
    /// How often that has been so since the store last answered a transaction.
    pub(super) doubts: u8,
}

impl Lease {
    pub(super) fn is_loaded(&self) -> bool {
        self.id.is_some() && !self.is_load_due && !self.is_loading
    }
}

/// A host that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Fencing {
    /// Since when; it may be a matter of news that are late.
    Silent(Time),
    /// It is being shut out, in the life that began at this revision.
    Asked(Rev),
    /// It is: the store is to hear of it.
    Done(Rev),
}

impl Host {
    /// Begins.
    pub fn start(&mut self, now: Time) {
        self.stage = Stage::Leasing;
        self.step(now);
    }

    /// What came of asking for a lease, at `asked`.
    pub fn leased(&mut self, now: Time, asked: Time, lease: Option<LeaseId>) {
        self.lease.is_asked = false;
        match lease {
            Some(lease) if self.stage == Stage::Leasing => {
                self.lease.id = Some(lease);
                self.lease.is_load_due = true;
                self.extend(asked);
                self.stage = Stage::Loading;
            }
            _ => self.lease.retry_at = after(now, self.settings.retry_after),
        }
        self.step(now);
    }

    /// What came of renewing it, at `asked`.
    pub fn kept(&mut self, now: Time, asked: Time, lease: LeaseId, kept: Kept) {
        self.lease.is_renewing = false;
        if self.lease.id == Some(lease) {
            match kept {
                Kept::Renewed => self.extend(asked),
                Kept::Gone => self.lose(),
                Kept::Failed => self.lease.renew_at = after(now, self.settings.retry_after),
            }
        }
        self.step(now);
    }

    /// What the store holds at a revision, in any order. What changes from there is told by [`Host::event`].
    pub fn loaded(&mut self, now: Time, all: Option<Snapshot>) {
        self.lease.is_loading = false;
        match all {
            Some(all) => {
                self.mirror.replace(all);
                if self.stage == Stage::Loading {
                    self.stage = Stage::Entering;
                }
            }
            None => {
                self.lease.is_load_due = true;
                self.lease.load_at = after(now, self.settings.retry_after);
            }
        }
        self.step(now);
    }

    /// The store tells of no changes any more.
    pub fn unwatched(&mut self, now: Time) {
        self.load_later(now);
        self.step(now);
    }

    /// What the store holds must be read again. Not at once: a store that refuses a transaction refuses it again, and reading all
    /// of it is the dearest thing that hosts ask of it. Nor so late that others wait for long for what this host is asked for.
    pub(super) fn load_later(&mut self, now: Time) {
        let lease = &mut self.lease;
        let longest = Span(self.settings.lease.0 / PAUSE_DIVISOR).max(self.settings.retry_after);
        let pause =
            |doubts: u8| Span(self.settings.retry_after.0.saturating_mul(1 << doubts)).min(longest);
        if now > after(lease.load_at, pause(DOUBLINGS_MAX)) {
            // All went well meanwhile.
            lease.doubts = 0;
        }
        lease.load_at = after(now, pause(lease.doubts));
        lease.doubts = (lease.doubts + 1).min(DOUBLINGS_MAX);
        lease.is_load_due = true;
    }

    /// The lease has ended, for all that this host knows.
    pub fn lose(&mut self) {
        self.lease.id = None;
        self.lease.valid_until = Time::ZERO;
        if matches!(
            self.stage,
            Stage::Loading
                | Stage::Entering
                | Stage::Confirming
                | Stage::Recovering
                | Stage::Online
                | Stage::Leaving
        ) {
            self.stage = Stage::Leasing;
        }
    }

    /// It serves no more, whatever comes. What it holds stays its own until others shut it out.
    pub fn stop(&mut self) {
        self.lose();
        self.stage = Stage::Offline;
        self.effects.clear();
    }

    /// Gives everything back. All that it has changed is at the origin, and no request is under way.
    pub fn leave(&mut self, now: Time) {
        if self.stage == Stage::Online {
            self.stage = Stage::Leaving;
        }
        self.step(now);
    }

    /// What came of shutting a host out.
    pub fn fence_ended(&mut self, now: Time, host: HostId, is_done: bool) {
        if let Some(fencing) = self.fencing.get_mut(&host)
            && let Fencing::Asked(life) = *fencing
        {
            *fencing = if is_done { Fencing::Done(life) } else { Fencing::Silent(now) };
        }
        self.step(now);
    }

    /// When to call [`Host::tick`] if nothing else happens before.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        if matches!(self.stage, Stage::Offline | Stage::Fenced | Stage::Left) {
            return None;
        }
        let lease = &self.lease;
        let retry = (lease.id.is_none() && !lease.is_asked).then_some(lease.retry_at);
        // What is under way ends by itself, and the load comes then.
        let loads = lease.id.is_some() && lease.is_load_due && !lease.is_loading;
        let load = (loads && self.inflight.is_none()).then_some(lease.load_at);
        let renew = (lease.id.is_some() && !lease.is_renewing).then_some(lease.renew_at);
        let end = lease.id.map(|_| lease.valid_until);
        let fences = self.fencing.values().filter_map(|fencing| match fencing {
            Fencing::Silent(since) => Some(after(*since, self.settings.margin)),
            Fencing::Asked(_) | Fencing::Done(_) => None,
        });
        retry.into_iter().chain(load).chain(renew).chain(end).chain(fences).min()
    }

    fn extend(&mut self, asked: Time) {
        let lasts = Span(self.settings.lease.0.saturating_sub(self.settings.margin.0));
        self.lease.valid_until = self.lease.valid_until.max(after(asked, lasts));
        self.lease.renew_at = after(asked, self.settings.renew_every);
    }

    pub(super) fn keep_lease(&mut self, now: Time) {
        let is_over = now >= self.lease.valid_until && !self.settings.controls.ignores_lease;
        if self.lease.id.is_some() && is_over {
            self.lose();
        }
        let lease = &mut self.lease;
        if self.stage == Stage::Leasing && !lease.is_asked && now >= lease.retry_at {
            lease.is_asked = true;
            self.effects.push_back(Effect::Lease);
        }
        if let Some(id) = lease.id.filter(|_| !lease.is_renewing && now >= lease.renew_at) {
            lease.is_renewing = true;
            self.effects.push_back(Effect::Renew(id));
        }
    }

    pub(super) fn load_if_due(&mut self, now: Time) {
        let lease = &mut self.lease;
        let is_due = lease.id.is_some() && lease.is_load_due && !lease.is_loading;
        if is_due && self.inflight.is_none() && now >= lease.load_at {
            (lease.is_loading, lease.is_load_due) = (true, false);
            self.effects.push_back(Effect::Load);
        }
    }

    /// Those who are silent for long enough are shut out. Those who speak again are not.
    pub(super) fn see_silent(&mut self, now: Time, silent: &[HostId]) {
        self.fencing
            .retain(|host, fencing| silent.contains(host) || matches!(fencing, Fencing::Asked(_)));
        for host in silent {
            let life = self.mirror.rev(&Key::Life(*host));
            let fencing = self.fencing.entry(*host).or_insert(Fencing::Silent(now));
            if matches!(*fencing, Fencing::Done(known) if known != life)
                && !self.settings.controls.any_life
            {
                *fencing = Fencing::Silent(now);
            }
            let Fencing::Silent(since) = *fencing else { continue };
            if self.settings.controls.no_fence {
                *fencing = Fencing::Done(life);
            } else if now >= after(since, self.settings.margin) {
                *fencing = Fencing::Asked(life);
                self.effects.push_back(Effect::Fence(*host));
            }
        }
    }

    pub(super) fn fenced_out(&mut self) {
        self.stage = Stage::Fenced;
        self.effects.push_back(Effect::Fenced);
    }

    /// It is not known at the store any more, by its own wish.
    pub(super) fn left(&mut self) {
        self.stage = Stage::Left;
        self.effects.push_back(Effect::Left);
    }

    /// It is known at the store, in this epoch.
    pub(super) fn entered(&mut self, epoch: Rev) {
        self.mirror.set_epoch(epoch);
        self.stage = Stage::Confirming;
    }

    /// All that is still its own carries its epoch now.
    pub(super) fn all_confirmed(&mut self) {
        self.stage = if self.is_recovered { Stage::Online } else { Stage::Recovering };
        if self.confirmed.is_none() {
            let mine = self.mirror.mine();
            // Without the volume's, somebody may have had everything.
            let is_whole = mine.contains_key(&Root::Volume);
            let confirmed = mine
                .iter()
                .filter(|(_, mode)| is_whole && **mode == Mode::Exclusive)
                .map(|(root, _)| root.clone());
            self.confirmed = Some(confirmed.collect());
            self.effects.push_back(Effect::Entered);
        }
    }

    /// What an earlier life has left is taken up, and said by [`Host::born`] where a directory's token covers it.
    pub fn recovered(&mut self, now: Time) {
        self.is_recovered = true;
        if self.stage == Stage::Recovering {
            self.stage = Stage::Online;
        }
        self.step(now);
    }
}

pub(super) fn after(time: Time, span: Span) -> Time {
    Time(time.0.saturating_add(span.0))
}

/// The longest pause is so many times twice as long as the first one.
const DOUBLINGS_MAX: u8 = 4;
/// No pause is longer than this share of a lease.
const PAUSE_DIVISOR: u64 = 8;
