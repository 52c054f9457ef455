//! Changes that wait until the journal has room for them.
//!
//! What is buffered goes into files of the journal that are there, and the groups behind it that say what is done at the origin
//! do, too. Otherwise a full disk would keep those back for ever: they are what makes room.

use super::{Front, Pending};
use crate::ask::Ask;
use destage_core::{Lsn, Span, Time};
use destage_engine::Drive;
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub(super) struct Held {
    /// With the bytes that each takes there.
    changes: VecDeque<(u64, Pending)>,
    /// When it is to be looked again whether the disk has room.
    look_at: Time,
    /// So far the journal was told to write, and the origin to take.
    committing: Lsn,
    destaging: Lsn,
    is_short: bool,
}

impl Held {
    pub(super) fn next_timeout(&self) -> Option<Time> {
        (!self.changes.is_empty()).then_some(self.look_at)
    }

    /// How many changes wait.
    pub(super) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether changes wait because the journal's disk is full.
    pub(super) fn is_for_want_of_disk(&self) -> bool {
        self.is_short
    }
}

impl Front {
    /// The bytes for which the journal has no room now.
    pub(super) fn lacks_journal_room(&self, ask: &Ask) -> Option<u64> {
        let bytes = match ask {
            Ask::Write { data, .. } => data.len() as u64 + CHANGE_BYTES,
            Ask::SetXattr { value, .. } => value.len() as u64 + CHANGE_BYTES,
            _ => CHANGE_BYTES,
        };
        let is_lacking = bytes > self.journal.room() && !self.settings.controls.no_journal_room;
        is_lacking.then_some(bytes)
    }

    /// It comes again once there is room.
    pub(super) fn hold(&mut self, mut pending: Pending, bytes: u64) {
        pending.hints.outdate();
        self.held.changes.push_back((bytes, pending));
    }

    /// What there is room for may begin. For the rest room is made: what is buffered is written, and if the disk is full, the
    /// origin takes what it can.
    pub(super) fn release_held(&mut self) {
        if self.held.changes.is_empty() {
            self.held.is_short &= self.journal.is_short();
            return;
        }
        if self.held.look_at <= self.now {
            let is_full = self.journal.is_short();
            self.held.look_at = self.now + if is_full { LOOK_AGAIN } else { SOON };
            self.journal.restock();
        }
        let mut room = self.journal.room();
        while let Some((bytes, _)) = self.held.changes.front()
            && (*bytes <= room || self.stopped.is_some())
        {
            room = room.saturating_sub(*bytes);
            self.out.again.extend(self.held.changes.pop_front().map(|(_, pending)| pending));
        }
        let is_short = self.journal.is_short();
        if !std::mem::replace(&mut self.held.is_short, is_short) && is_short {
            tracing::error!(
                "the journal's disk is full: changes wait until the origin has taken older ones"
            );
        }
        let (last, now) = (self.last(), self.now);
        if self.held.changes.is_empty() || self.stopped.is_some() {
            return;
        }
        if last > self.held.committing {
            self.held.committing = last;
            self.commit_soon(now);
        }
        if is_short && last > self.held.destaging {
            self.held.destaging = last;
            self.hurry(now);
        }
    }
}

/// What a change takes in the journal besides its data, at the most: two names and extended attributes.
const CHANGE_BYTES: u64 = 4 << 10;
/// How often it is looked whether the journal's disk has room again.
const LOOK_AGAIN: Span = Span::from_millis(500);
/// How often it is looked whether a file is ready that is being made.
const SOON: Span = Span::from_millis(10);
