//! When clients are looked at because of the time: deadlines that their commands have named, and alarms, at which it is
//! looked whether a client has waited for as long as it may.

use super::super::session::{Session, Waiting};
use destage_core::{ClientId, Time};
use std::collections::BTreeSet;

/// The times of all clients.
#[derive(Debug, Default)]
pub(super) struct Timers {
    deadlines: BTreeSet<(Time, ClientId)>,
    /// At most one of each client, which its session knows.
    alarms: BTreeSet<(Time, ClientId)>,
}

fn next_due(times: &mut BTreeSet<(Time, ClientId)>, now: Time) -> Option<ClientId> {
    let &(time, client) = times.first()?;
    (time <= now).then(|| {
        times.pop_first();
        client
    })
}

impl Timers {
    pub(super) fn set_deadline(&mut self, client: ClientId, deadline: Time) {
        self.deadlines.insert((deadline, client));
    }

    pub(super) fn clear_deadline(&mut self, client: ClientId, deadline: Time) {
        self.deadlines.remove(&(deadline, client));
    }

    /// The next client whose deadline is reached.
    pub(super) fn next_timed_out(&mut self, now: Time) -> Option<ClientId> {
        next_due(&mut self.deadlines, now)
    }

    /// Rings at this time, unless it rings earlier.
    pub(super) fn set_alarm(&mut self, client: ClientId, session: &mut Session, due: Time) {
        if session.alarm.is_some_and(|alarm| alarm <= due) {
            return;
        }
        if let Some(alarm) = session.alarm.replace(due) {
            self.alarms.remove(&(alarm, client));
        }
        self.alarms.insert((due, client));
    }

    /// The next client whose alarm rings.
    pub(super) fn next_alarmed(&mut self, now: Time) -> Option<ClientId> {
        next_due(&mut self.alarms, now)
    }

    /// What a client waits for now is given up: the time that was named for it, if there was one, is cleared.
    pub(super) fn end_wait(&mut self, client: ClientId, session: &Session) {
        if let Some(
            Waiting::Wait { deadline: Some(deadline), .. } | Waiting::Derived { deadline, .. },
        ) = &session.waiting
        {
            self.clear_deadline(client, *deadline);
        }
    }

    /// A client is gone.
    pub(super) fn forget(&mut self, client: ClientId, session: &Session) {
        self.end_wait(client, session);
        if let Some(alarm) = session.alarm {
            self.alarms.remove(&(alarm, client));
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        let first = |times: &BTreeSet<(Time, ClientId)>| times.first().map(|&(time, _)| time);
        [first(&self.deadlines), first(&self.alarms)].into_iter().flatten().min()
    }

    #[cfg(test)]
    pub(super) fn is_free_of_deadlines(&self) -> bool {
        self.deadlines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_moves_forward_only_and_leaves_nothing_behind() {
        let (mut timers, mut session) = (Timers::default(), Session::default());
        let client = ClientId(3);
        for due in [9, 5, 7] {
            timers.set_alarm(client, &mut session, Time(due));
        }
        assert_eq!((session.alarm, timers.next_timeout()), (Some(Time(5)), Some(Time(5))));
        assert_eq!(timers.next_alarmed(Time(4)), None);
        assert_eq!(timers.next_alarmed(Time(5)), Some(client));
        assert_eq!(timers.next_alarmed(Time(99)), None);
        session.alarm = None;
        timers.set_alarm(client, &mut session, Time(7));
        timers.set_deadline(client, Time(6));
        assert_eq!(timers.next_timed_out(Time(6)), Some(client));
        timers.forget(client, &session);
        assert_eq!(timers.next_timeout(), None);
    }
}
