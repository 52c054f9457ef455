//! Parked groups after they were parked: held while someone decides on them, and let go.

use super::Core;
use super::destage::Destager;
use super::queue::{Domain, Repeat};
use crate::id::{DomainId, Lsn, UnitId};

impl Destager {
    /// See [`crate::Input::HoldParked`].
    pub(super) fn hold_parked(&mut self, held: bool) {
        self.parked_held = held;
        self.unblock();
    }

    /// Whether groups are on their way to the parked ones, or are to be sent there again.
    pub(super) fn is_parking(&self) -> bool {
        !self.parkings.is_empty() || self.domains.iter().any(Domain::parks_again)
    }

    /// Whether groups are to be sent to the parked ones again, and nothing is sent before someone says so.
    pub(super) fn is_parking_paused(&self) -> bool {
        self.parks_nothing_while(|domain| domain.halt.is_some())
    }

    /// The same where they wait for someone to mend what the origin denied, or to say so.
    pub(super) fn is_parking_denied(&self) -> bool {
        self.parks_nothing_while(|domain| domain.denied || domain.halt.is_some())
    }

    fn parks_nothing_while(&self, stands: impl Fn(&Domain) -> bool) -> bool {
        let mut again = self.domains.iter().filter(|domain| domain.parks_again());
        self.parkings.is_empty() && self.is_parking() && again.all(|it| self.paused || stands(it))
    }
}

impl Domain {
    fn parks_again(&self) -> bool {
        self.repeats.iter().any(|repeat| matches!(repeat, Repeat::Park(_)))
    }
}

impl Core {
    /// See [`crate::Input::BuildsOn`].
    pub(super) fn builds_on(&mut self, lsn: Lsn, on: &[Lsn]) {
        assert!(
            lsn == self.groups.last(),
            "what a group builds on is told before the next is written"
        );
        assert!(on.is_sorted_by(|a, b| a < b), "what a group builds on is ascending, each once");
        assert!(on.last().is_none_or(|&newest| newest < lsn), "a group builds on older ones");
        if !on.is_empty()
            && let Some(group) = self.groups.get_mut(lsn)
        {
            group.builds_on = true;
            self.destager.builds_on.insert(lsn, on.into());
        }
    }

    /// A group of one domain has been sent, and is to be sent again. It may have landed. What it builds on in other domains was
    /// not parked when it was sent, and makes no difference any more. What it builds on in its own is in front of it: where that
    /// has not landed, neither has the group.
    pub(super) fn forget_other_domains(&mut self, lsn: Lsn, domain: DomainId) {
        let Some(on) = self.destager.builds_on.remove(&lsn) else { return };
        let mut left = on.into_vec();
        left.retain(|&on| self.is_in(on, domain));
        if !left.is_empty() {
            self.destager.builds_on.insert(lsn, left.into());
        }
    }

    /// Whether the domain's head would be parked behind groups that may be about to leave.
    pub(super) fn waits_for_decision(&self, domain: &Domain) -> bool {
        let depends = || domain.head().is_some_and(|head| self.depends_on(head).is_some());
        self.destager.parked_held && domain.repeats.is_empty() && depends()
    }

    /// At the cap someone has to look first.
    pub(super) fn pause_if_overfull(&mut self) {
        let is_overfull = self.destager.parked_groups >= u64::from(self.policy.limits.parked_max);
        if is_overfull && !self.destager.paused {
            self.destager.pause();
            self.destager.overfull = true;
        }
    }

    /// See [`crate::Input::Unparked`].
    pub(super) fn unparked(&mut self, lsn: Lsn, units: &[UnitId]) {
        if self.destager.parked.remove(&lsn) {
            self.destager.parked_groups -= 1;
        }
        let has_room = self.destager.parked_groups < u64::from(self.policy.limits.parked_max);
        if self.destager.overfull && has_room {
            self.destager.unpause();
        }
        for &unit in units {
            self.units.unpark(unit, lsn);
            self.drop_if_idle(unit);
        }
        self.destager.unblock();
    }
}
