//! Between a host and the filer, and the devices' queues.

use super::device;
use super::disk::REDO_PLACE;
use super::run::{Event, Machine};
use super::settings::{FaultKind, Faulty};
use super::task::{Arrives, Remote, Task, TaskId, Units};
use crate::event::{Job, JobKind};
use destage_core::Time;

impl Machine<'_> {
    /// Reads or writes neighbouring blocks at the filer.
    pub(super) fn remote(
        &mut self,
        host: u16,
        parent: TaskId,
        units: &Units,
        is_write: bool,
        versions: Vec<u32>,
    ) {
        let blocks = units.as_slice().len() as u32;
        let origin = &mut self.origin;
        if is_write {
            origin.write_requests += 1;
            origin.write_blocks += u64::from(blocks);
        } else {
            origin.read_requests += 1;
            origin.read_blocks += u64::from(blocks);
        }
        let arrives = if versions.is_empty() {
            None
        } else {
            Some(Box::new(Arrives { units: units.clone(), versions }))
        };
        let block = self.places[units.as_slice()[0].0 as usize];
        self.transfer(Remote {
            host,
            parent,
            is_write,
            is_halfway: false,
            failed: false,
            block,
            blocks,
            arrives,
        });
    }

    /// Writes so many blocks to the redo store in one piece.
    pub(super) fn redo(&mut self, host: u16, parent: TaskId, blocks: u32) {
        self.origin.write_requests += 1;
        self.origin.redo_blocks += u64::from(blocks);
        self.transfer(Remote {
            host,
            parent,
            is_write: true,
            is_halfway: false,
            failed: false,
            // Behind everything else, so that no write in place joins it.
            block: REDO_PLACE,
            blocks,
            arrives: None,
        });
    }

    fn transfer(&mut self, remote: Remote) {
        let id = self.tasks.add(Task::Remote(remote));
        self.begin_stage(id);
    }

    /// A read is answered by the filer and carried by the network, a write the other way round.
    fn begin_stage(&mut self, id: TaskId) {
        let filer = self.stations.len() as u16 - 1;
        let Task::Remote(remote) = self.tasks.get(id) else { return };
        if self.disk.is_some() {
            // The way there and back is a part of its times.
            remote.is_halfway = true;
            let kind = if remote.is_write { JobKind::Write } else { JobKind::Read };
            let (block, blocks) = (remote.block, remote.blocks.into());
            return self.ask_disk(id, kind, block, blocks);
        }
        let at_filer = remote.is_write == remote.is_halfway;
        let station = if at_filer { filer } else { device::link_of(remote.host, remote.is_write) };
        let kind = if remote.is_write { JobKind::Write } else { JobKind::Read };
        let (block, blocks) = (remote.block, remote.blocks.into());
        self.submit(station, id, kind, block, blocks);
    }

    /// A stage of a transfer is over.
    pub(super) fn stage_done(&mut self, id: TaskId) {
        let fails = self.filer_fails();
        let Task::Remote(remote) = self.tasks.get(id) else { return };
        let was_at_filer = remote.is_write == remote.is_halfway || self.disk.is_some();
        remote.failed |= was_at_filer && fails;
        if !remote.is_halfway {
            remote.is_halfway = true;
            return self.begin_stage(id);
        }
        let Task::Remote(remote) = self.tasks.take(id) else { return };
        if let (Some(watch), Some(arrives), false) =
            (&mut self.watch, &remote.arrives, remote.failed)
        {
            watch.arrived(arrives.units.as_slice(), &arrives.versions);
        }
        self.ready.push_back((remote.parent, !remote.failed));
    }

    fn filer_fails(&self) -> bool {
        self.settings.faults.iter().any(|fault| {
            let at = Time::ZERO + fault.at.span();
            let lasts = self.now >= at && self.now < at + fault.lasts.span();
            lasts && fault.device == Faulty::Filer && fault.kind == FaultKind::Fail
        })
    }

    /// Gives a device something to do.
    pub(super) fn submit(
        &mut self,
        station: u16,
        task: TaskId,
        kind: JobKind,
        block: u64,
        blocks: u64,
    ) {
        let job = Job { id: task.into(), kind, block, blocks };
        if let Some(begun) = self.stations[usize::from(station)].submit(self.now, job) {
            let server = begun.server as u16;
            self.events.plan(begun.at, Event::Served { station, server });
        }
    }

    /// A server of a device is done.
    pub(super) fn served(&mut self, station: u16, server: u16) {
        let (jobs, begun) = self.stations[usize::from(station)].done(self.now, server.into());
        if let Some(begun) = begun {
            let server = begun.server as u16;
            self.events.plan(begun.at, Event::Served { station, server });
        }
        self.ready.extend(jobs.iter().map(|job| (job.id as TaskId, true)));
    }
}
