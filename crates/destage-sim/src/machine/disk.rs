//! The modelled disk in the filer's place.

use super::run::{Event, Machine};
use super::settings::Disk;
use super::task::TaskId;
use crate::disk::{Access, Counts, Model, Moment};
use crate::event::JobKind;
use destage_core::{Span, Time};

/// The disk, and when to look at it again.
#[derive(Debug)]
pub(super) struct Filer {
    model: Model,
    bytes: u64,
    planned: Option<Time>,
}

/// From here on a place is one of the redo store, which lies behind the disk's bytes.
pub(super) const REDO_PLACE: u64 = 1 << 62;

impl Filer {
    pub(super) fn new(disk: Disk, seed: u64) -> Self {
        Self { model: disk.model(seed), bytes: disk.size.get(), planned: None }
    }

    /// Requests that were asked, and for how long the arms worked, on average.
    pub(super) fn served(&self) -> (u64, Span) {
        let Counts { reads, writes, .. } = self.model.counts();
        (reads + writes, Span(self.model.busy().as_nanos() as u64))
    }
}

impl Machine<'_> {
    /// Gives the modelled disk something to do.
    pub(super) fn ask_disk(&mut self, task: TaskId, kind: JobKind, place: u64, blocks: u64) {
        let Some(disk) = &mut self.disk else { return };
        let block = self.settings.block.get();
        let offset = match place {
            REDO_PLACE.. => disk.bytes,
            _ => place.saturating_mul(block) % disk.bytes,
        };
        let access = match kind {
            JobKind::Read => Access::Read,
            JobKind::Write => Access::Write { through: false },
        };
        let now = moment(self.now);
        disk.model.submit(now, task.into(), access, offset, blocks * block);
        self.plan_disk();
    }

    /// What the disk has answered by now is over.
    pub(super) fn disk_moved(&mut self) {
        let now = self.now;
        let Some(disk) = &mut self.disk else { return };
        if disk.planned != Some(now) {
            return;
        }
        disk.planned = None;
        let answered = disk.model.done(moment(now));
        self.ready.extend(answered.into_iter().map(|task| (task as TaskId, true)));
        self.plan_disk();
    }

    fn plan_disk(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let Some(next) = disk.model.next_moment() else { return };
        let at = Time(next.as_nanos() as u64);
        if disk.planned.is_none_or(|planned| at < planned) {
            disk.planned = Some(at);
            self.events.plan(at, Event::Disk);
        }
    }
}

fn moment(now: Time) -> Moment {
    Moment::from_nanos(now.0)
}
