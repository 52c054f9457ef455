//! When what was asked for in a recording comes under another policy.

use crate::event::Events;
use crate::replay::Load;
use crate::replay::causes::{CLIENT_THINK_MAX, Cause, Moment, THINK_MAX};
use crate::replay::load::Arrival;
use destage_core::Time;

/// The arrivals of a load that have not come.
///
/// Each follows what it followed, as far as that is known, at the distance at which it did. After a long pause it comes when it
/// came: whatever it waited for was a time. What is no request comes when it came.
pub(super) struct Schedule<'l> {
    load: &'l Load,
    due: Events<u32>,
    /// What is no request: no client that waits holds it back.
    controls: Events<u32>,
    /// The first that follows each arrival, and the next one that follows the same.
    followers: Vec<u32>,
    next: Vec<u32>,
    has_come: Vec<bool>,
    /// How many have not.
    left: usize,
    /// The newest one: when it came, and when it did in the recording.
    newest: (Time, Time),
}

impl<'l> Schedule<'l> {
    pub(super) fn new(load: &'l Load, began: Time) -> Self {
        let all = load.arrivals.len();
        let mut schedule = Self {
            load,
            due: Events::default(),
            controls: Events::default(),
            followers: vec![NONE; all],
            next: vec![NONE; all],
            has_come: vec![false; all],
            left: all,
            newest: (began, began),
        };
        for (index, cause) in load.causes.iter().enumerate().rev() {
            if let Some(cause) = cause {
                let first = &mut schedule.followers[cause.arrival as usize];
                schedule.next[index] = std::mem::replace(first, index as u32);
            }
        }
        for (index, (at, _)) in load.arrivals.iter().enumerate() {
            if load.causes[index].is_none() {
                schedule.plan(*at, index);
            }
        }
        schedule
    }

    fn plan(&mut self, at: Time, index: usize) {
        let is_control = matches!(
            self.load.arrivals[index].1,
            Arrival::Policy(_) | Arrival::Pause | Arrival::Resume | Arrival::Drain
        );
        let is_control = is_control && self.load.counts_writes_only;
        let queue = if is_control { &mut self.controls } else { &mut self.due };
        queue.plan(at, index as u32);
    }

    /// When the next one comes; `is_full` if clients wait, and send nothing.
    pub(super) fn next_at(&self, is_full: bool) -> Option<Time> {
        let due = self.due.next_at().filter(|_| !is_full);
        [self.controls.next_at(), due].into_iter().flatten().min()
    }

    /// Takes the next one, with its place, if it is due.
    pub(super) fn take_until(
        &mut self,
        now: Time,
        is_full: bool,
    ) -> Option<(u32, &'l (Time, Arrival))> {
        let index = self.controls.take_until(now).or_else(|| {
            let next = || if is_full { None } else { self.due.take_until(now) };
            let mut due = std::iter::from_fn(next);
            // Two parts of one answer may both be refused, and what follows it be due twice.
            due.find(|&index| !self.has_come[index as usize])
        })?;
        let arrival = &self.load.arrivals[index as usize];
        // What came at a time of its own tells nothing of how far the others are, unless they are further.
        let cause = self.load.causes[index as usize];
        let is_chained = cause.is_some_and(|cause| self.is_chained(cause));
        if is_chained || arrival.0 <= self.recorded(now) {
            self.newest = (now, arrival.0);
        }
        self.has_come[index as usize] = true;
        self.left -= 1;
        Some((index, arrival))
    }

    /// Something became of an arrival: what follows it is due in a while.
    pub(super) fn happened(&mut self, now: Time, arrival: u32, moment: Moment) {
        let mut follower = self.followers[arrival as usize];
        while follower != NONE {
            let index = follower as usize;
            follower = self.next[index];
            let cause = self.load.causes[index].filter(|cause| cause.moment == moment);
            let Some(cause) = cause.filter(|_| !self.has_come[index]) else { continue };
            let recorded = self.load.arrivals[index].0;
            let at = if self.is_chained(cause) { now + cause.gap } else { now.max(recorded) };
            self.plan(at, index);
        }
    }

    /// Whether it came because of what it followed, and not at a time of its own.
    fn is_chained(&self, cause: Cause) -> bool {
        cause.gap <= if self.load.counts_writes_only { THINK_MAX } else { CLIENT_THINK_MAX }
    }

    /// Whether all have come.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// When it was in the recording what it is now.
    pub(super) fn recorded(&self, now: Time) -> Time {
        let (came, recorded) = self.newest;
        recorded + now.since(came)
    }

    /// When it will be now what it was in the recording then, once all have come.
    pub(super) fn shifted(&self, recorded: Time) -> Time {
        let (came, then) = self.newest;
        came + recorded.since(then)
    }
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::{Span, WaitFor};

    fn at(ms: u64) -> Time {
        Time::from_secs(1) + Span::from_millis(ms)
    }

    /// One wait after the other: the second follows the first by 1 ms, the third comes at a time of its own. Then the server drains.
    fn load() -> Load {
        let cause = |arrival, gap| {
            let (moment, gap) = (Moment::Answered, Span::from_millis(gap));
            Some(Cause { arrival, moment, gap })
        };
        let wait = Arrival::Wait(WaitFor::Committed);
        let mut load = Load::default();
        load.note_subject("block v");
        load.arrivals = [0, 11, 500].map(|ms| (at(ms), wait.clone())).to_vec();
        load.arrivals.push((at(510), Arrival::Drain));
        load.causes = vec![None, cause(0, 1), cause(1, 480), None];
        load
    }

    #[test]
    fn what_follows_an_answer_comes_as_long_after_it_as_it_did() {
        let load = load();
        let mut schedule = Schedule::new(&load, at(0));
        let take = |schedule: &mut Schedule<'_>, ms| {
            schedule.take_until(at(ms), false).map(|(place, _)| place)
        };
        assert_eq!((take(&mut schedule, 0), take(&mut schedule, 509)), (Some(0), None));
        schedule.happened(at(3), 0, Moment::Executed);
        assert_eq!(schedule.next_at(false), Some(at(510)), "it is not answered");
        schedule.happened(at(3), 0, Moment::Answered);
        schedule.happened(at(3), 0, Moment::Answered);
        assert_eq!(schedule.next_at(true), Some(at(510)), "clients that wait hold back no drain");
        assert_eq!(schedule.take_until(at(4), true).map(|(place, _)| place), None);
        assert_eq!((take(&mut schedule, 3), take(&mut schedule, 4)), (None, Some(1)));
        assert_eq!(schedule.recorded(at(6)), at(13));
        schedule.happened(at(6), 1, Moment::Answered);
        assert_eq!((take(&mut schedule, 499), take(&mut schedule, 500)), (None, Some(2)));
        assert!(!schedule.is_over());
        assert_eq!((take(&mut schedule, 509), take(&mut schedule, 510)), (None, Some(3)));
        assert!(schedule.is_over());
        // Slower than it was: nothing comes before the answer, but what is no request comes when it came.
        let mut schedule = Schedule::new(&load, at(0));
        assert_eq!((take(&mut schedule, 0), take(&mut schedule, 510)), (Some(0), Some(3)));
        schedule.happened(at(600), 0, Moment::Answered);
        assert_eq!(take(&mut schedule, 601), Some(1));
        assert_eq!(schedule.next_at(false), None);
        schedule.happened(at(700), 1, Moment::Answered);
        assert_eq!((take(&mut schedule, 700), take(&mut schedule, 700)), (Some(2), None));
    }

    #[test]
    fn what_followed_nothing_comes_when_it_came() {
        let mut load = load();
        load.note_subject("serve");
        load.causes = vec![None; 4];
        let mut schedule = Schedule::new(&load, at(0));
        let all = std::iter::from_fn(|| {
            let next = schedule.next_at(false)?;
            schedule.take_until(next, false).map(|(place, _)| (place, next))
        });
        let came: Vec<_> = all.collect();
        assert_eq!(came, [(0, at(0)), (1, at(11)), (2, at(500)), (3, at(510))]);
    }
}
