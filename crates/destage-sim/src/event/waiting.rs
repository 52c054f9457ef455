//! The jobs that wait at a device, and which of them is next. Each step takes a time that does not grow with the queue, or with
//! its logarithm under a scan.

use super::{Discipline, Job, JobKind};
use destage_core::Time;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};

/// Jobs that wait.
#[derive(Debug)]
pub(super) struct Waiting {
    discipline: Discipline,
    sequence: u64,
    reads: VecDeque<(u64, Job)>,
    writes: Writes,
    /// In their place under [`Discipline::CScan`].
    scan: BTreeMap<(u64, u64), Job>,
    /// Where the scan goes on.
    head: u64,
}

/// Writes in the order of their arrival; those for one block are chained, so that a follower is found at once.
#[derive(Debug, Default)]
struct Writes {
    queue: VecDeque<Write>,
    /// The number of the front of the queue; the others count on from there.
    first: u64,
    /// Of those that have not joined another one's service.
    len: usize,
    /// The first and the last write that waits for each block; `None` where none joins another.
    by_block: Option<HashMap<u64, (u64, u64)>>,
}

#[derive(Debug)]
struct Write {
    since: Time,
    sequence: u64,
    job: Job,
    /// The next write for the same block; 0 for none.
    next: u64,
    /// It has joined another one's service.
    is_gone: bool,
}

impl Waiting {
    /// Nobody waits; `merges` says whether writes join others.
    pub(super) fn new(discipline: Discipline, merges: bool) -> Self {
        let by_block = merges.then(HashMap::new);
        Self {
            discipline,
            sequence: 0,
            reads: VecDeque::new(),
            writes: Writes { first: 1, by_block, ..Writes::default() },
            scan: BTreeMap::new(),
            head: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.writes.len + self.scan.len()
    }

    pub(super) fn push(&mut self, now: Time, job: Job) {
        let sequence = self.sequence;
        self.sequence += 1;
        match (self.discipline, job.kind) {
            (Discipline::CScan, _) => {
                self.scan.insert((job.block, sequence), job);
            }
            (_, JobKind::Read) => self.reads.push_back((sequence, job)),
            (_, JobKind::Write) => self.writes.push(now, sequence, job),
        }
    }

    /// Takes out the job that is served next.
    pub(super) fn next(&mut self, now: Time) -> Option<Job> {
        let takes_read = match (self.discipline, self.reads.front(), self.writes.queue.front()) {
            (Discipline::CScan, ..) => return self.next_in_scan(),
            (_, None, _) => false,
            (_, _, None) => true,
            (Discipline::Fifo, Some((read, _)), Some(write)) => *read < write.sequence,
            (Discipline::ReadPriority { starvation }, _, Some(write)) => {
                now.since(write.since) < starvation
            }
        };
        if takes_read { self.reads.pop_front().map(|(_, job)| job) } else { self.writes.pop() }
    }

    fn next_in_scan(&mut self) -> Option<Job> {
        let ahead = self.scan.range((self.head, 0)..).next();
        let place = *ahead.or_else(|| self.scan.first_key_value())?.0;
        self.scan.remove(&place)
    }

    /// A scan goes on from here.
    pub(super) fn begins_behind(&mut self, block: u64) {
        self.head = block;
    }

    /// Takes out a write of at most `room` blocks that begins at `block`.
    pub(super) fn follower(&mut self, block: u64, room: u64) -> Option<Job> {
        if self.discipline != Discipline::CScan {
            return self.writes.follower(block, room);
        }
        let fits = |job: &Job| job.kind == JobKind::Write && job.blocks <= room;
        let mut here = self.scan.range((block, 0)..=(block, u64::MAX));
        let place = here.find(|(_, job)| fits(job)).map(|(place, _)| *place)?;
        self.scan.remove(&place)
    }
}

impl Writes {
    fn at(&mut self, number: u64) -> &mut Write {
        &mut self.queue[(number - self.first) as usize]
    }

    fn push(&mut self, since: Time, sequence: u64, job: Job) {
        let number = self.first + self.queue.len() as u64;
        self.queue.push_back(Write { since, sequence, job, next: 0, is_gone: false });
        self.len += 1;
        let Some(by_block) = &mut self.by_block else { return };
        let (_, last) = by_block.entry(job.block).or_insert((number, number));
        let before = std::mem::replace(last, number);
        if before != number {
            self.at(before).next = number;
        }
    }

    /// Takes out the oldest.
    fn pop(&mut self) -> Option<Job> {
        let job = self.queue.front()?.job;
        self.take(0, self.first);
        Some(job)
    }

    fn follower(&mut self, block: u64, room: u64) -> Option<Job> {
        let (mut number, _) = *self.by_block.as_ref()?.get(&block)?;
        let mut before = 0;
        while self.at(number).job.blocks > room {
            (before, number) = (number, self.at(number).next);
            if number == 0 {
                return None;
            }
        }
        let job = self.at(number).job;
        self.take(before, number);
        Some(job)
    }

    /// Takes out a write; `before` is the one before it in the chain of its block, 0 for none.
    fn take(&mut self, before: u64, number: u64) {
        let write = self.at(number);
        write.is_gone = true;
        let (block, next) = (write.job.block, write.next);
        self.len -= 1;
        if before != 0 {
            self.at(before).next = next;
        }
        if let Some(by_block) = &mut self.by_block
            && let Some((first, last)) = by_block.get_mut(&block)
        {
            match (before, next) {
                (0, 0) => {
                    by_block.remove(&block);
                }
                (0, _) => *first = next,
                (_, 0) => *last = before,
                _ => {}
            }
        }
        while self.queue.front().is_some_and(|write| write.is_gone) {
            self.queue.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Stream;
    use destage_core::Span;

    /// The same over a plain list.
    #[derive(Default)]
    struct Plain(Vec<(Time, Job)>);

    impl Plain {
        fn next(&mut self, now: Time, discipline: Discipline) -> Option<Job> {
            let oldest = |kind| self.0.iter().position(|(_, job)| job.kind == kind);
            let (read, write) = (oldest(JobKind::Read), oldest(JobKind::Write));
            let place = match (discipline, read, write) {
                (Discipline::ReadPriority { starvation }, Some(read), Some(write)) => {
                    let starves = now.since(self.0[write].0) >= starvation;
                    if starves { write } else { read }
                }
                _ => read.into_iter().chain(write).min()?,
            };
            Some(self.0.remove(place).1)
        }

        fn follower(&mut self, block: u64, room: u64) -> Option<Job> {
            let fits = |(_, job): &(Time, Job)| {
                job.kind == JobKind::Write && job.block == block && job.blocks <= room
            };
            let place = self.0.iter().position(fits)?;
            Some(self.0.remove(place).1)
        }
    }

    #[test]
    fn jobs_leave_as_from_a_plain_list() {
        let priority = Discipline::ReadPriority { starvation: Span(40) };
        for discipline in [Discipline::Fifo, priority] {
            let mut random = Stream::new(3, "jobs");
            let (mut ours, mut plain) = (Waiting::new(discipline, true), Plain::default());
            let mut followers = 0;
            for id in 0..20_000 {
                let now = Time(id);
                match random.below(100) {
                    0..50 => {
                        let kind = [JobKind::Read, JobKind::Write][random.below(2) as usize];
                        let (block, blocks) = (random.below(12), 1 + random.below(4));
                        let job = Job { id, kind, block, blocks };
                        ours.push(now, job);
                        plain.0.push((now, job));
                    }
                    50..80 => {
                        let (block, room) = (random.below(12), random.below(4));
                        let follower = ours.follower(block, room);
                        followers += u64::from(follower.is_some());
                        assert_eq!(follower, plain.follower(block, room), "{discipline:?} {id}");
                    }
                    _ => assert_eq!(
                        ours.next(now),
                        plain.next(now, discipline),
                        "{discipline:?} {id}"
                    ),
                }
                assert_eq!(ours.len(), plain.0.len());
            }
            assert!(followers > 1_000 && ours.len() > 10, "{followers} {}", ours.len());
        }
    }
}
