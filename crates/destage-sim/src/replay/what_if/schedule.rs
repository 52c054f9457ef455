//! When what was asked for in a recording comes under another policy.

use crate::event::Events;
use crate::replay::Load;
use crate::replay::causes::{Moment, THINK_MAX};
use crate::replay::load::Arrival;
use destage_core::Time;

/// The arrivals of a load that have not come.
///
/// Of rows each comes when it came. Of a volume each follows what it followed, at the distance at which it did. After a long
/// pause it comes when it came, too: whatever it waited for was a time. What is no request comes once all has come that came
/// before it.
pub(super) struct Schedule<'l> {
    load: &'l Load,
    due: Events<u32>,
    /// The first that follows each arrival, and the next one that follows the same.
    followers: Vec<u32>,
    next: Vec<u32>,
    has_come: Vec<bool>,
    /// The first that has not come, and how many have not.
    lowest: usize,
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
            followers: vec![NONE; all],
            next: vec![NONE; all],
            has_come: vec![false; all],
            lowest: 0,
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
            if load.causes[index].is_none() && !schedule.is_in_turn(index) {
                schedule.due.plan(*at, index as u32);
            }
        }
        schedule.turn(began);
        schedule
    }

    /// Whether it comes only once all has come that came before it.
    fn is_in_turn(&self, index: usize) -> bool {
        let is_request =
            matches!(self.load.arrivals[index].1, Arrival::Request(_) | Arrival::Wait(_));
        self.load.counts_writes_only && !is_request
    }

    fn turn(&mut self, now: Time) {
        while self.has_come.get(self.lowest) == Some(&true) {
            self.lowest += 1;
        }
        if self.lowest < self.has_come.len() && self.is_in_turn(self.lowest) {
            let (at, arrival) = &self.load.arrivals[self.lowest];
            let at = if matches!(arrival, Arrival::Invalidate(_)) { now } else { now.max(*at) };
            self.due.plan(at, self.lowest as u32);
        }
    }

    pub(super) fn next_at(&self) -> Option<Time> {
        self.due.next_at()
    }

    /// Takes the next one, with its place, if it is due.
    pub(super) fn take_until(&mut self, now: Time) -> Option<(u32, &'l (Time, Arrival))> {
        let mut due = std::iter::from_fn(|| self.due.take_until(now));
        // Two parts of one answer may both be refused, and what follows it be due twice.
        let index = due.find(|&index| !self.has_come[index as usize])?;
        let arrival = &self.load.arrivals[index as usize];
        self.newest = (now, arrival.0);
        self.has_come[index as usize] = true;
        self.left -= 1;
        if self.lowest == index as usize {
            self.turn(now);
        }
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
            let at = if cause.gap <= THINK_MAX { now + cause.gap } else { now.max(recorded) };
            self.due.plan(at, index as u32);
        }
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
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::causes::Cause;
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
        let take =
            |schedule: &mut Schedule<'_>, ms| schedule.take_until(at(ms)).map(|(place, _)| place);
        assert_eq!((take(&mut schedule, 0), take(&mut schedule, 600)), (Some(0), None));
        schedule.happened(at(3), 0, Moment::Executed);
        assert_eq!(schedule.next_at(), None, "it is not answered");
        schedule.happened(at(3), 0, Moment::Answered);
        schedule.happened(at(3), 0, Moment::Answered);
        assert_eq!((take(&mut schedule, 3), take(&mut schedule, 4)), (None, Some(1)));
        assert_eq!(schedule.recorded(at(6)), at(13));
        schedule.happened(at(6), 1, Moment::Answered);
        assert_eq!((take(&mut schedule, 499), take(&mut schedule, 500)), (None, Some(2)));
        assert!(!schedule.is_over());
        assert_eq!((take(&mut schedule, 509), take(&mut schedule, 510)), (None, Some(3)));
        assert!(schedule.is_over());
        // Slower than it was: nothing comes before the answer, and the drain comes last.
        let mut schedule = Schedule::new(&load, at(0));
        assert_eq!(take(&mut schedule, 0), Some(0));
        schedule.happened(at(600), 0, Moment::Answered);
        assert_eq!(take(&mut schedule, 601), Some(1));
        assert_eq!(schedule.next_at(), None);
        schedule.happened(at(700), 1, Moment::Answered);
        assert_eq!((take(&mut schedule, 700), take(&mut schedule, 700)), (Some(2), Some(3)));
    }

    #[test]
    fn of_rows_each_comes_when_it_came() {
        let mut load = load();
        load.note_subject("serve");
        load.causes = vec![None; 4];
        let mut schedule = Schedule::new(&load, at(0));
        let all = std::iter::from_fn(|| {
            let next = schedule.next_at()?;
            schedule.take_until(next).map(|(place, _)| (place, next))
        });
        let came: Vec<_> = all.collect();
        assert_eq!(came, [(0, at(0)), (1, at(11)), (2, at(500)), (3, at(510))]);
    }
}
