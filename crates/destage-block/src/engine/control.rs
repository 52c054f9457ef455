//! What an operator asks: another policy, a pause, an application-consistent point, the end.

use super::Volume;
use super::recover::{check_policy, fit};
use super::waits::Wait;
use super::write::NewGroup;
use crate::block::BLOCK;
use crate::cache::record::GroupKind;
use crate::request::RequestError;
use destage_core::{Access, Input, Lsn, Order, Policy, StopReason, Time, WaitFor};
use destage_engine::Drive;
use destage_journal::Journal;

impl Volume {
    /// The next policy: [`Drive::set_policy`].
    ///
    /// # Errors
    /// What is wrong with it; also if it has to wait for destaging while that is paused.
    pub(super) fn change_policy(&mut self, policy: &Policy) -> Result<(), &'static str> {
        self.check_change(policy)?;
        let policy = fit(policy, &self.shape, self.slots.index().slots());
        let waits = self.drains_before(&policy);
        self.service.change_policy(policy);
        if waits {
            self.hurry_for_change();
        }
        Ok(())
    }

    /// The policy that was asked for last: the one that is to come into force, or the one in force.
    pub fn wanted_policy(&self) -> &Policy {
        self.service.next_policy().unwrap_or_else(|| self.core.policy())
    }

    /// Whether [`Drive::set_policy`] would take this policy now.
    ///
    /// # Errors
    /// Why not.
    pub fn check_change(&self, policy: &Policy) -> Result<(), &'static str> {
        let policy = fit(policy, &self.shape, self.slots.index().slots());
        check_policy(&policy, &self.shape)?;
        if self.service.has_lost_log(&policy) {
            return Err("the cache's file is not what it was: only write-through needs no cache");
        }
        let leaves_some = self.undecided() > 0 || self.fragments.is_write_under_way();
        if self.drains_before(&policy) && self.core.status().paused && leaves_some {
            return Err(
                "this change waits until everything is at the origin, and destaging is paused: resume first",
            );
        }
        Ok(())
    }

    /// Whether a policy takes effect only once everything undecided is at the origin: one that writes through, and any with
    /// another order. The one before may have sent a part of what the next one sends as a whole, or newer versions ahead. What
    /// it sent as a whole may have failed, and would be repeated in parts. And its writes lack the next one's levels.
    fn drains_before(&self, next: &Policy) -> bool {
        let current = self.core.policy();
        let has_other_order = next.order != Order::Any && next.order != current.order;
        // What an earlier run left is sent also while writes go past the log.
        let sends = !current.waits_for_origin() || self.undecided() > 0;
        next.waits_for_origin() || (has_other_order && sends)
    }

    /// Whether a policy takes effect only once the origin holds durably what went past the log: one with an order. What comes
    /// later must not outlive at the origin what came before, nor be compared with it after a crash.
    fn flushes_before(&self, next: &Policy) -> bool {
        let current = self.core.policy();
        let is_other = current.waits_for_origin() || next.order != current.order;
        is_other && next.order != Order::Any && !next.waits_for_origin()
    }

    /// Whether the origin holds durably what went past the log; it is flushed if it may not.
    fn is_flushed_for_change(&mut self) -> bool {
        if !self.write_through.needs_flush() {
            return true;
        }
        let is_due = self.service.next_try().is_none_or(|at| at <= self.now);
        // What is being closed flushes the origin once more itself.
        if is_due && !self.write_through.is_flushing() && !self.service.is_closing() {
            self.flush_origin(NOBODY);
        }
        false
    }

    /// The next policy waits until everything up to here is at the origin.
    fn hurry_for_change(&mut self) {
        self.wait_for(Wait::Policy, self.last(), WaitFor::Decided);
    }

    /// Puts the next policy in force if it may be.
    pub(super) fn try_next_policy(&mut self) -> bool {
        let Some(next) = self.service.next_policy() else { return true };
        let is_quiet = !self.fragments.is_write_under_way();
        let is_drained = is_quiet && self.core.decided() == self.last();
        if self.drains_before(next) && !is_drained {
            // Writes that had begun are logged meanwhile, and marks: these are hurried as well.
            if self.core.decided() < self.last() && !self.waits.is_policy_waiting() {
                self.hurry_for_change();
            }
            return false;
        }
        if self.flushes_before(next) && !(is_quiet && self.is_flushed_for_change()) {
            return false;
        }
        let Some((policy, pauses)) = self.service.take_next_policy() else { return true };
        self.batches.forget_pre_images();
        self.core.handle(self.now, Input::SetPolicy(&policy));
        if pauses {
            self.core.handle(self.now, Input::Pause);
        }
        self.core.handle(self.now, Input::Tick);
        true
    }

    /// The volume has so many bytes from now on. The origin has them already, durably, and whoever starts this volume again
    /// finds them there.
    ///
    /// # Panics
    /// If it shrinks, or what was its last block was a part of one: nobody knows what the rest of it holds.
    pub fn grow(&mut self, size: u64) {
        assert!(
            size >= self.shape.size && self.shape.size.is_multiple_of(BLOCK as u64),
            "a volume of whole blocks that grows"
        );
        self.shape.size = size;
    }

    /// The cache's file is not what it was: what is logged from now on may not be there after a crash. No write and no flush is
    /// taken any more, unless the policy writes through; what is dirty is sent to the origin as far as it can be read.
    pub fn lose_cache(&mut self, now: Time) {
        self.service.lose_cache();
        if self.service.next_policy().is_some_and(|next| self.service.has_lost_log(next)) {
            self.service.cancel_change();
        }
        self.thaw(now);
        self.resume(now);
        self.drain(now);
    }

    /// Ends a group: every state of the origin from here on either holds nothing newer than this point, or was at exactly
    /// this point before, where the policy keeps the order of the log. Survives a crash. Returns the point, for
    /// [`Volume::wait`].
    pub fn mark(&mut self, now: Time) -> Lsn {
        self.now = self.now.max(now);
        let lsn = self.mark_here();
        self.pump();
        lsn
    }

    fn mark_here(&mut self) -> Lsn {
        if self.service.is_stopped() {
            return self.last();
        }
        let lsn = self.log(
            NewGroup {
                kind: GroupKind::Mark,
                extents: Vec::new(),
                units: Vec::new(),
                data: Vec::new(),
                continues: false,
                passes_by: false,
            },
            Access::Back,
        );
        self.batches.cut_after(lsn);
        lsn
    }

    /// Answers with [`crate::request::Reply::Done`] under this tag once a group is committed or decided.
    pub fn wait(&mut self, now: Time, tag: u64, lsn: Lsn, until: WaitFor) {
        self.now = self.now.max(now);
        if self.service.is_stopped() {
            return self.requests.fail(tag, RequestError::Io);
        }
        self.wait_for(Wait::Caller(tag), lsn.min(self.last()), until);
        self.pump();
    }

    /// Lets no further write begin; answers under this tag once those under way are logged and durable. The point is marked
    /// as by [`Volume::mark`].
    pub fn freeze(&mut self, now: Time, tag: u64) {
        self.now = self.now.max(now);
        if self.service.is_stopped() {
            return self.requests.fail(tag, RequestError::Io);
        }
        self.service.freeze(tag);
        self.pump();
    }

    pub(super) fn finish_freezing(&mut self) {
        if !self.service.is_freezing() || self.fragments.is_write_under_way() {
            return;
        }
        let lsn = self.mark_here();
        for tag in self.service.take_freezing() {
            self.wait_for(Wait::Caller(tag), lsn, WaitFor::Committed);
        }
    }

    /// Whether no write is under way and none can begin, and everything written is durable in the log.
    pub fn is_frozen(&self) -> bool {
        self.service.is_frozen() && self.core.committed() == self.last()
    }

    /// Lets writes begin again.
    pub fn thaw(&mut self, now: Time) {
        self.now = self.now.max(now);
        for tag in self.service.thaw() {
            self.requests.fail(tag, RequestError::Busy);
        }
        self.pump();
    }

    /// Begins the end: further requests are refused, what is under way is finished, everything is made durable in the log
    /// and the index of clean blocks is checkpointed. What is dirty stays in the log; [`Drive::drain`] first to have it at
    /// the origin.
    pub fn close(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.service.close();
        self.upkeep.close();
        self.wait_for(Wait::Nobody, self.last(), WaitFor::Committed);
        if self.service.next_policy().is_some() {
            // They wait for a policy that may never come.
            self.refuse_held_writes();
        }
        // A flush under way may fail.
        if self.write_through.needs_flush() {
            self.flush_origin(NOBODY);
        }
        self.pump();
    }

    fn refuse_held_writes(&mut self) {
        for id in self.fragments.take_writes_waiting() {
            self.abandon(id, RequestError::Stopping);
        }
        for asked in self.requests.take_rests() {
            self.fragment_done(asked, Err(RequestError::Stopping));
        }
    }

    /// Whether nothing is under way but what a closed volume still has to write.
    pub(super) fn is_quiet_for_close(&self) -> bool {
        self.requests.is_empty()
            && self.jobs.is_idle()
            && self.batches.is_empty()
            && !self.log.is_wanted()
            && !self.slots.has_installs()
            && self.core.committed() == self.last()
    }

    /// Whether [`Volume::close`] has done all it can, and no job is under way.
    pub fn is_closed(&self) -> bool {
        let is_done = self.upkeep.is_closed() || self.service.is_stopped();
        self.service.is_closing() && is_done && self.requests.is_empty() && !self.jobs.is_running()
    }

    /// Whether writes went past the log that the origin is not known to hold durably; after [`Volume::close`] it tells whether
    /// the last flush has failed.
    pub fn is_origin_unflushed(&self) -> bool {
        self.write_through.is_unflushed()
    }

    /// How often a flush found that writes which went past the log may be lost at the origin: each connection's next flush
    /// after that must fail, see [`crate::engine::ReportedLosses`].
    pub fn losses_found(&self) -> u64 {
        self.write_through.losses_found()
    }

    /// Ends it, to close the journal.
    pub fn into_journal(self) -> Journal {
        self.log.journal
    }

    /// Whether it takes no writes any more because the log failed or another host took the origin over.
    pub fn is_stopped(&self) -> bool {
        self.service.is_stopped()
    }

    /// Why it takes no writes any more, if so.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.service.stop_reason()
    }
}

/// No request: their numbers begin at 1.
pub(super) const NOBODY: u32 = 0;
