//! A device as a queue with one server.

use super::Stream;
use destage_core::{Span, Time};
use std::collections::VecDeque;

/// What the device does for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Reads the block.
    Read,
    /// Writes the block.
    Write,
}

/// One block to be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Chosen by the caller.
    pub id: u64,
    /// Read or write.
    pub kind: JobKind,
    /// The block's place.
    pub block: u64,
}

/// Which job is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First come, first served.
    Fifo,
    /// Reads before writes, unless the oldest write has waited so long.
    ReadPriority {
        /// The longest that reads pass a write.
        starvation: Span,
    },
}

/// A disk by its mean times. A service takes a part that is uniform up to one rotation and a part that is uniform around what
/// remains of the mean.
#[derive(Debug)]
pub struct Station {
    discipline: Discipline,
    access: Span,
    near: Span,
    rotation: Span,
    random: Stream,
    reads: VecDeque<(Time, Job)>,
    writes: VecDeque<(Time, Job)>,
    busy: Option<Job>,
    /// The block written last, unless something else was served since.
    last_written: Option<u64>,
    served: u64,
    busy_time: Span,
}

impl Station {
    /// A disk whose services take `access` on average, `near` where a write follows one to the block before it.
    pub fn new(
        discipline: Discipline,
        [access, near, rotation]: [Span; 3],
        random: Stream,
    ) -> Self {
        Self {
            discipline,
            access,
            near,
            rotation,
            random,
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            busy: None,
            last_written: None,
            served: 0,
            busy_time: Span::ZERO,
        }
    }

    /// Takes a job. If the disk was idle, it begins at once; when it will be done is returned.
    pub fn submit(&mut self, now: Time, job: Job) -> Option<Time> {
        match job.kind {
            JobKind::Read => self.reads.push_back((now, job)),
            JobKind::Write => self.writes.push_back((now, job)),
        }
        if self.busy.is_some() { None } else { self.begin(now) }
    }

    /// The job under way is done; when the next one will be is returned, if there is one.
    ///
    /// # Panics
    /// If there is none under way.
    pub fn done(&mut self, now: Time) -> (Job, Option<Time>) {
        let job = self.busy.take().expect("a job is under way");
        self.served += 1;
        (job, self.begin(now))
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.reads.len() + self.writes.len()
    }

    /// Jobs served so far, and for how long.
    pub fn served(&self) -> (u64, Span) {
        (self.served, self.busy_time)
    }

    fn begin(&mut self, now: Time) -> Option<Time> {
        let job = self.next(now)?;
        self.busy = Some(job);
        let service = self.service(job);
        self.busy_time = Span(self.busy_time.0 + service.0);
        Some(now + service)
    }

    fn next(&mut self, now: Time) -> Option<Job> {
        let (read, write) = (self.reads.front(), self.writes.front());
        let takes_read = match (read, write) {
            (None, _) => false,
            (_, None) => true,
            (Some((read_at, read)), Some((write_at, write))) => match self.discipline {
                Discipline::Fifo => (read_at, read.id) < (write_at, write.id),
                Discipline::ReadPriority { starvation } => now.since(*write_at) < starvation,
            },
        };
        let queue = if takes_read { &mut self.reads } else { &mut self.writes };
        queue.pop_front().map(|(_, job)| job)
    }

    fn service(&mut self, job: Job) -> Span {
        let follows = |last: u64| job.kind == JobKind::Write && job.block == last + 1;
        let mean = if self.last_written.is_some_and(follows) { self.near } else { self.access };
        self.last_written = (job.kind == JobKind::Write).then_some(job.block);
        let half = Span(self.rotation.0 / 2);
        let rest = self.random.around(mean.saturating_sub(half));
        Span(self.random.around(half).0 + rest.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: [Span; 3] = [Span::from_millis(18), Span::from_millis(8), Span::from_millis(11)];

    fn job(id: u64, kind: JobKind) -> Job {
        Job { id, kind, block: id * 100 }
    }

    /// Serves everything; the order of the ids.
    fn serve(discipline: Discipline, jobs: &[(u64, JobKind)]) -> Vec<u64> {
        let mut station = Station::new(discipline, MS, Stream::new(1, "disk"));
        let mut next = None;
        for &(id, kind) in jobs {
            let begun = station.submit(Time::ZERO, job(id, kind));
            next = next.or(begun);
        }
        let mut order = Vec::new();
        while let Some(at) = next {
            let (job, then) = station.done(at);
            order.push(job.id);
            next = then;
        }
        assert_eq!((station.waiting(), station.served().0), (0, jobs.len() as u64));
        order
    }

    #[test]
    fn the_discipline_chooses_who_is_next() {
        use JobKind::{Read, Write};
        let jobs = [(0, Write), (1, Write), (2, Read), (3, Write), (4, Read)];
        assert_eq!(serve(Discipline::Fifo, &jobs), [0, 1, 2, 3, 4]);
        let forever = Discipline::ReadPriority { starvation: Span::MAX };
        assert_eq!(serve(forever, &jobs), [0, 2, 4, 1, 3]);
        let never = Discipline::ReadPriority { starvation: Span::ZERO };
        assert_eq!(serve(never, &jobs), [0, 1, 3, 2, 4]);
    }

    #[test]
    fn services_have_their_means() {
        let mean = |near: bool| {
            let mut station = Station::new(Discipline::Fifo, MS, Stream::new(1, "disk"));
            let mut now = Time::ZERO;
            for id in 0..4_000 {
                let block = if near { id } else { id * 50 };
                let job = Job { id, kind: JobKind::Write, block };
                now = station.submit(now, job).expect("it was idle");
                station.done(now);
            }
            assert_eq!(station.served().1, now.since(Time::ZERO));
            now.0 / 4_000 / 10_000
        };
        assert!((1_750..1_850).contains(&mean(false)), "{}", mean(false));
        assert!((770..830).contains(&mean(true)), "{}", mean(true));
    }
}
