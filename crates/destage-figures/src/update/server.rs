//! The disk, alone or in a server whose memory needs no power.

use super::Server;
use destage_core::{Span, Time};
use destage_sim::event::{Begun, Job, JobKind, Station};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Storage {
    disk: Station,
    nvram: Option<Nvram>,
}

/// Writes that are over for the host and not on the disk yet. They go there one at a time, so that a read waits for one of them.
#[derive(Debug, Default)]
struct Nvram {
    /// Blocks that it has room for.
    room: u64,
    kept: VecDeque<Job>,
    /// Writes that there was no room for.
    waiting: VecDeque<Job>,
    is_writing: bool,
}

impl Storage {
    pub(super) fn new(disk: Station, server: Option<Server>) -> Self {
        let room = server.map_or(0, |server| server.nvram_blocks);
        Self { disk, nvram: (room > 0).then(|| Nvram { room, ..Nvram::default() }) }
    }

    /// How long the disk worked.
    pub(super) fn busy(&self) -> Span {
        self.disk.served().1
    }

    /// Takes a job. Whether it is over, and what the disk has begun.
    pub(super) fn submit(&mut self, now: Time, job: Job, begun: &mut Vec<Begun>) -> bool {
        let Some(nvram) = self.nvram.as_mut().filter(|_| job.kind == JobKind::Write) else {
            begun.extend(self.disk.submit(now, job));
            return false;
        };
        if nvram.room == 0 {
            nvram.waiting.push_back(job);
            return false;
        }
        nvram.room -= 1;
        nvram.kept.push_back(job);
        self.write_next(now, begun);
        true
    }

    /// A service of the disk is over: the jobs that are.
    pub(super) fn done(&mut self, now: Time, server: usize, begun: &mut Vec<Begun>) -> Vec<Job> {
        let (mut jobs, next) = self.disk.done(now, server);
        begun.extend(next);
        let Some(nvram) = &mut self.nvram else { return jobs };
        let before = jobs.len();
        jobs.retain(|job| job.kind == JobKind::Read);
        let written = before - jobs.len();
        nvram.is_writing &= written == 0;
        for _ in 0..written {
            match nvram.waiting.pop_front() {
                Some(job) => {
                    nvram.kept.push_back(job);
                    jobs.push(job);
                }
                None => nvram.room += 1,
            }
        }
        self.write_next(now, begun);
        jobs
    }

    fn write_next(&mut self, now: Time, begun: &mut Vec<Begun>) {
        let Some(nvram) = self.nvram.as_mut().filter(|nvram| !nvram.is_writing) else { return };
        let Some(job) = nvram.kept.pop_front() else { return };
        nvram.is_writing = true;
        begun.extend(self.disk.submit(now, job));
    }
}
