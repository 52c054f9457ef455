//! A device as a queue with servers: who is served next, and which writes are served together. How long a service takes is
//! told by a [`Service`].

use super::service::Service;
use super::waiting::Waiting;
use destage_core::{Span, Time};

/// What the device does for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Reads the blocks.
    Read,
    /// Writes the blocks.
    Write,
}

/// Neighbouring blocks to be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Chosen by the caller.
    pub id: u64,
    /// Read or write.
    pub kind: JobKind,
    /// The first block's place.
    pub block: u64,
    /// How many blocks; 0 for a mere place, where a scan serves all that wait there before it goes on.
    pub blocks: u64,
}

/// Which job is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discipline {
    /// First come, first served.
    Fifo,
    /// Upwards from the place served last to the highest one, then again from the lowest (circular scan).
    CScan,
    /// Reads before writes, unless the oldest write has waited so long.
    ReadPriority {
        /// The longest that reads pass a write.
        starvation: Span,
    },
}

/// How a device serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which job is next.
    pub discipline: Discipline,
    /// Services at once, at least 1.
    pub servers: usize,
    /// Waiting writes whose blocks follow those of the write that is chosen join its service, up to so many blocks in all; 0
    /// for none.
    pub merge_blocks_max: u64,
}

impl From<Discipline> for Rules {
    /// One server, nothing merged.
    fn from(discipline: Discipline) -> Self {
        Self { discipline, servers: 1, merge_blocks_max: 0 }
    }
}

/// A service that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Whom to ask for the result: see [`Station::done`].
    pub server: usize,
    /// When it will be done.
    pub at: Time,
}

/// A device with its queue.
#[derive(Debug)]
pub struct Station {
    rules: Rules,
    service: Box<dyn Service>,
    waiting: Waiting,
    /// What each server does; empty if it is idle.
    under_way: Vec<Vec<Job>>,
    /// How many are idle.
    idle: usize,
    served: u64,
    busy_time: Span,
}

impl Station {
    /// A device that serves by these rules.
    ///
    /// # Panics
    /// Without a server.
    pub fn new(rules: Rules, service: Box<dyn Service>) -> Self {
        assert!(rules.servers > 0, "a device has a server");
        Self {
            rules,
            service,
            waiting: Waiting::new(rules.discipline, rules.merge_blocks_max > 0),
            under_way: vec![Vec::new(); rules.servers],
            idle: rules.servers,
            served: 0,
            busy_time: Span::ZERO,
        }
    }

    /// Takes a job. If a server is idle, it begins at once.
    pub fn submit(&mut self, now: Time, job: Job) -> Option<Begun> {
        if self.idle == 0 {
            self.waiting.push(now, job);
            return None;
        }
        let idle = self.under_way.iter().position(Vec::is_empty)?;
        // Where a server is idle, nobody waits.
        Some(self.begin(now, idle, job))
    }

    /// A service that has [`Begun`] ends: its jobs, of which there are several only where writes were merged, and what the
    /// server does next.
    ///
    /// # Panics
    /// If that server is idle.
    pub fn done(&mut self, now: Time, server: usize) -> (Vec<Job>, Option<Begun>) {
        let mut jobs = Vec::new();
        let begun = self.done_into(now, server, &mut jobs);
        (jobs, begun)
    }

    /// As [`Station::done`], the jobs into an empty list.
    ///
    /// # Panics
    /// If that server is idle.
    pub fn done_into(&mut self, now: Time, server: usize, jobs: &mut Vec<Job>) -> Option<Begun> {
        std::mem::swap(&mut self.under_way[server], jobs);
        assert!(!jobs.is_empty(), "a service under way ends");
        self.served += jobs.len() as u64;
        self.idle += 1;
        let next = self.waiting.next(now)?;
        Some(self.begin(now, server, next))
    }

    /// Jobs that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many are served at once.
    pub fn servers(&self) -> usize {
        self.under_way.len()
    }

    /// Jobs served so far, and for how long all servers worked.
    pub fn served(&self) -> (u64, Span) {
        (self.served, self.busy_time)
    }

    fn begin(&mut self, now: Time, server: usize, first: Job) -> Begun {
        let mut whole = first;
        let jobs = &mut self.under_way[server];
        jobs.push(first);
        self.idle -= 1;
        while whole.blocks < self.rules.merge_blocks_max && first.kind == JobKind::Write {
            let room = self.rules.merge_blocks_max - whole.blocks;
            let Some(job) = self.waiting.follower(whole.block + whole.blocks, room) else { break };
            whole.blocks += job.blocks;
            jobs.push(job);
        }
        self.waiting.begins_behind(whole.block + whole.blocks);
        let time = self.service.time(now, &whole);
        self.busy_time = Span(self.busy_time.0.saturating_add(time.0));
        Begun { server, at: now + time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 ms for every service, however long.
    #[derive(Debug)]
    struct Even;

    impl Service for Even {
        fn time(&mut self, _: Time, _: &Job) -> Span {
            Span::from_millis(10)
        }
    }

    fn job(id: u64, kind: JobKind, block: u64) -> Job {
        Job { id, kind, block, blocks: 1 }
    }

    /// Serves everything; the ids that each service ended, with its end in milliseconds.
    fn serve(rules: Rules, jobs: &[Job]) -> Vec<(Vec<u64>, u64)> {
        let mut station = Station::new(rules, Box::new(Even));
        let mut begun: Vec<Begun> =
            jobs.iter().filter_map(|&job| station.submit(Time::ZERO, job)).collect();
        let mut order = Vec::new();
        while !begun.is_empty() {
            let Begun { server, at } = begun.remove(0);
            let (jobs, next) = station.done(at, server);
            order.push((jobs.iter().map(|job| job.id).collect(), at.0 / 1_000_000));
            begun.extend(next);
        }
        assert_eq!((station.waiting(), station.served().0), (0, jobs.len() as u64));
        assert_eq!(station.served().1, Span::from_millis(10 * order.len() as u64));
        order
    }

    fn order(rules: impl Into<Rules>, jobs: &[Job]) -> Vec<u64> {
        serve(rules.into(), jobs).into_iter().flat_map(|(ids, _)| ids).collect()
    }

    #[test]
    fn the_discipline_chooses_who_is_next() {
        use JobKind::{Read, Write};
        let kinds = [(0, Write), (1, Write), (2, Read), (3, Write), (4, Read)];
        let jobs = kinds.map(|(id, kind)| job(id, kind, id * 100));
        assert_eq!(order(Discipline::Fifo, &jobs), [0, 1, 2, 3, 4]);
        let forever = Discipline::ReadPriority { starvation: Span::MAX };
        assert_eq!(order(forever, &jobs), [0, 2, 4, 1, 3]);
        let never = Discipline::ReadPriority { starvation: Span::ZERO };
        assert_eq!(order(never, &jobs), [0, 1, 3, 2, 4]);
        // The oldest write has waited for 20 ms when the third service begins.
        let bounded = Discipline::ReadPriority { starvation: Span::from_millis(20) };
        assert_eq!(order(bounded, &jobs), [0, 2, 1, 3, 4]);
    }

    #[test]
    fn a_scan_goes_up_and_begins_again_below() {
        let blocks = [50, 40, 70, 60, 10, 70];
        let jobs: Vec<_> =
            (0..).zip(blocks).map(|(id, block)| job(id, JobKind::Read, block)).collect();
        // The second one at 70 came to lie behind the head: nobody starves by requests for one place.
        assert_eq!(order(Discipline::CScan, &jobs), [0, 3, 2, 4, 1, 5]);
        assert_eq!(order(Discipline::Fifo, &jobs), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn servers_work_at_once() {
        let jobs: Vec<_> = (0..5).map(|id| job(id, JobKind::Read, id * 9)).collect();
        let rules = Rules { servers: 2, ..Discipline::Fifo.into() };
        let ends: Vec<u64> = serve(rules, &jobs).into_iter().map(|(_, end)| end).collect();
        assert_eq!(ends, [10, 10, 20, 20, 30]);
    }

    #[test]
    fn waiting_writes_of_neighbouring_blocks_are_served_together_up_to_the_limit() {
        use JobKind::{Read, Write};
        let places = [(Write, 90), (Write, 5), (Write, 7), (Write, 6), (Read, 9), (Write, 8)];
        let jobs: Vec<_> =
            (0..).zip(places).map(|(id, (kind, block))| job(id, kind, block)).collect();
        for discipline in [Discipline::Fifo, Discipline::ReadPriority { starvation: Span::ZERO }] {
            let rules = Rules { merge_blocks_max: 3, ..discipline.into() };
            let services: Vec<_> = serve(rules, &jobs).into_iter().map(|(ids, _)| ids).collect();
            assert_eq!(services[..2], [vec![0], vec![1, 3, 2]], "{discipline:?}");
            assert_eq!(services.len(), 4);
        }
        let rules = Rules { merge_blocks_max: 16, ..Discipline::CScan.into() };
        let services: Vec<_> = serve(rules, &jobs).into_iter().map(|(ids, _)| ids).collect();
        assert_eq!(services, [vec![0], vec![1, 3, 2, 5], vec![4]]);
    }
}
