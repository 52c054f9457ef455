//! What the volume does with requests: serves them, holds writes up, refuses them.

use super::status::VolumeMode;
use destage_core::{Mode, Policy, StopReason, Time};

/// Everything that keeps requests from being served as usual.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Why no write is taken any more.
    stopped: Option<StopReason>,
    is_closing: bool,
    is_cache_lost: bool,
    is_frozen: bool,
    /// Tags of those who wait for the volume to be frozen.
    freezing: Vec<u64>,
    /// The policy that comes into force once everything undecided is at the origin.
    next_policy: Option<Box<Policy>>,
    /// When what it waits for is tried again, after a failure.
    next_try: Option<Time>,
    /// Destaging pauses as soon as the next policy is in force.
    is_pause_due: bool,
}

impl Service {
    /// Nothing may be acknowledged any more.
    pub(super) fn stop(&mut self, reason: StopReason) {
        self.stopped = Some(reason);
    }

    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        self.stopped
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Requests are refused from now on. Writes that were held up go on.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
        self.is_frozen = false;
    }

    pub(super) fn is_closing(&self) -> bool {
        self.is_closing
    }

    /// What the cache holds is not safe any more.
    pub(super) fn lose_cache(&mut self) {
        self.is_cache_lost = true;
    }

    /// Whether nothing that is logged counts as durable any more. What goes to the origin first needs no cache.
    pub(super) fn has_lost_log(&self, policy: &Policy) -> bool {
        self.is_cache_lost() && !policy.waits_for_origin()
    }

    pub(super) fn is_cache_lost(&self) -> bool {
        self.is_cache_lost
    }

    /// Lets no write begin; `tag` waits until those under way are logged.
    pub(super) fn freeze(&mut self, tag: u64) {
        self.is_frozen = true;
        self.freezing.push(tag);
    }

    /// Whether no write may begin, and nobody waits for those under way.
    pub(super) fn is_frozen(&self) -> bool {
        self.is_frozen && self.freezing.is_empty()
    }

    /// Whether someone waits for the writes under way.
    pub(super) fn is_freezing(&self) -> bool {
        !self.freezing.is_empty()
    }

    /// Returns the tags of those who wait for the writes under way.
    pub(super) fn take_freezing(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.freezing)
    }

    /// Lets writes begin again. Returns the tags of those who wait in vain.
    pub(super) fn thaw(&mut self) -> Vec<u64> {
        self.is_frozen = false;
        self.take_freezing()
    }

    /// A policy is to come into force.
    pub(super) fn change_policy(&mut self, policy: Policy) {
        self.next_policy = Some(Box::new(policy));
    }

    /// The policy in force stays.
    pub(super) fn cancel_change(&mut self) {
        (self.next_policy, self.next_try, self.is_pause_due) = (None, None, false);
    }

    /// What the next policy waits for has failed, and is not to be tried before this time.
    pub(super) fn try_again_at(&mut self, at: Time) {
        self.next_try = self.next_policy.is_some().then_some(at);
    }

    /// When what the next policy waits for may be tried again, if it has failed.
    pub(super) fn next_try(&self) -> Option<Time> {
        self.next_try
    }

    pub(super) fn next_policy(&self) -> Option<&Policy> {
        self.next_policy.as_deref()
    }

    /// The next policy comes into force. Returns it, and whether destaging pauses then.
    pub(super) fn take_next_policy(&mut self) -> Option<(Box<Policy>, bool)> {
        let policy = self.next_policy.take()?;
        self.next_try = None;
        Some((policy, std::mem::take(&mut self.is_pause_due)))
    }

    /// Whether a pause has to wait for the next policy, since writes wait for that; it begins then.
    pub(super) fn defers_pause(&mut self) -> bool {
        self.is_pause_due |= self.next_policy.is_some();
        self.next_policy.is_some()
    }

    /// No pause is due any more.
    pub(super) fn cancel_pause(&mut self) {
        self.is_pause_due = false;
    }

    /// Whether no write may begin now.
    pub(super) fn holds_writes(&self) -> bool {
        self.is_frozen || self.next_policy.is_some() || self.is_stopped()
    }

    /// What a user is told.
    pub(super) fn mode(&self, core: Mode) -> VolumeMode {
        match self.stopped {
            Some(reason) => VolumeMode::Stopped(reason),
            None if self.is_closing => VolumeMode::Closing,
            None if self.is_cache_lost => VolumeMode::CacheLost,
            None if self.is_frozen => VolumeMode::Frozen,
            None if self.next_policy.is_some() => VolumeMode::ChangingPolicy,
            None => VolumeMode::Serving(core),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freeze_holds_writes_and_is_complete_once_nobody_waits() {
        let mut service = Service::default();
        service.freeze(1);
        service.freeze(2);
        assert!(service.holds_writes() && service.is_freezing() && !service.is_frozen());
        assert_eq!(service.take_freezing(), [1, 2]);
        assert!(service.is_frozen() && service.holds_writes());
        service.freeze(3);
        assert_eq!(service.thaw(), [3]);
        assert!(!service.is_frozen() && !service.holds_writes());
    }

    #[test]
    fn closing_lets_writes_go_on_and_those_who_freeze_are_answered() {
        let mut service = Service::default();
        service.freeze(1);
        service.close();
        assert!(!service.holds_writes() && service.is_freezing());
    }

    #[test]
    fn a_pause_waits_for_the_next_policy() {
        let mut service = Service::default();
        assert!(!service.defers_pause());
        service.change_policy(Policy::default());
        assert!(service.holds_writes() && service.defers_pause());
        let (_, pauses) = service.take_next_policy().expect("one is due");
        assert!(pauses && !service.holds_writes() && service.take_next_policy().is_none());
        service.change_policy(Policy::default());
        assert!(service.defers_pause());
        service.cancel_pause();
        assert!(!service.take_next_policy().expect("one is due").1);
    }

    #[test]
    fn the_gravest_state_is_told() {
        let mut service = Service::default();
        let told = |service: &Service| service.mode(Mode::Normal);
        assert_eq!(told(&service), VolumeMode::Serving(Mode::Normal));
        service.change_policy(Policy::default());
        assert_eq!(told(&service), VolumeMode::ChangingPolicy);
        service.freeze(1);
        assert_eq!(told(&service), VolumeMode::Frozen);
        service.lose_cache();
        assert_eq!(told(&service), VolumeMode::CacheLost);
        service.close();
        assert_eq!(told(&service), VolumeMode::Closing);
        service.stop(StopReason::Fenced);
        assert_eq!(told(&service), VolumeMode::Stopped(StopReason::Fenced));
    }
}
