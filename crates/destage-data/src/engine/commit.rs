//! From a performed transaction to a write group: appended to the journal, told to the core, visible or waiting for the
//! origin's word.
//!
//! All of it happens in one step, in this order. The rows become what they will be (under write-back), since the group's
//! size is that of the rows behind it. Collections, derived keys and whoever watches are told. Then the group gets its
//! number: the journal, the overlay and the core take it in one call, so none of them knows of a group that another one
//! lacks. Observers come last, but before any reply leaves. A write that waits for the origin's word changes no row: what
//! it would make of them is kept with it, and its units stay locked.

use super::Engine;
use super::overlay::GROUP_OVERHEAD;
use super::prepared::Trouble;
use super::session::{Session, Waiting};
use super::txn::{Beside, Txn};
use super::undecided::WriteThrough;
use super::unknown::Covers;
use crate::change;
use destage_core::lease::Token;
use destage_core::{Access, ClientId, UnitId};
use destage_engine::Append;
use std::collections::HashSet;

impl Engine {
    /// Puts the changes of a transaction into the writer, which is conditional on what was watched by this.
    ///
    /// # Errors
    /// They are more than the journal takes in one group.
    pub(super) fn write_group(&mut self, watch: Option<Token>, txn: &Txn) -> Result<(), Trouble> {
        if txn.is_empty() && txn.once_record.is_none() {
            return Ok(());
        }
        let on = self.builds_on(watch, txn);
        txn.write(&self.schema, &self.rows, &on, self.log.begin());
        self.log.check().map_err(Trouble::Error)
    }

    /// Turns a transaction, which the writer holds, into a write group. What precedes `start` in the output belongs to earlier
    /// commands.
    pub(super) fn commit(
        &mut self,
        client: ClientId,
        session: &mut Session,
        txn: &mut Txn,
        units: &[UnitId],
        access: Access,
        start: usize,
    ) {
        debug_assert!(
            access == Access::Back || !units.is_empty(),
            "what waits for the origin's word has locked what it changes"
        );
        let mut beside = self.take_beside(txn);
        if access != Access::Back {
            self.note_old_deadlines(&mut beside);
        }
        let record = txn.once_record.take();
        if txn.is_empty() {
            // A lock is given back once: the next one to have it may be another request's.
            let unchanged = keep_locked(&mut beside, units, access, &HashSet::new());
            self.keep_beside(beside);
            self.release_locks(&unchanged, access);
            if record.is_some() {
                self.record_token(self.core.next_lsn(), record);
                self.append_group(session, &[], Access::Back);
            }
            return;
        }
        txn.forget_unchanged();
        self.note_derived(txn);
        let lsn = self.core.next_lsn();
        if access == Access::Back {
            // What the origin may still reject, no scan shows.
            self.undecided.structural_mut().note(&self.schema, lsn, self.log.bytes());
        }
        self.undecided.claims_mut().note(&self.schema, lsn, self.log.bytes());
        let mut changed: Vec<(UnitId, u32)> = Vec::with_capacity(txn.staged.len());
        self.begin_own(session, txn);
        for staged in &txn.staged {
            if access == Access::Back {
                self.rows.set(staged.unit, staged.row.as_deref());
                self.drop_at_end(staged.unit);
            }
            changed.push((staged.unit, self.rows.bytes(staged.unit)));
        }
        for unit in txn.blind_units() {
            self.overlay.chain(unit, lsn);
            self.rows.touch(unit);
            changed.push((unit, self.rows.bytes(unit)));
        }
        match access {
            Access::Back => self.note_members(lsn, &mut changed),
            Access::Through | Access::Around => self.note_watched_members(),
        }
        self.rows.tracking_mut().end_own();
        let covers = if txn.has_dml() { self.covered_by_writer() } else { Covers::default() };
        if !covers.is_empty() {
            self.cover(&covers, access, &mut changed);
        }
        self.record_token(lsn, record);
        self.append_group(session, &changed, access);
        if !covers.is_empty() {
            self.make_unknown(lsn, &covers);
        }
        if access == Access::Back {
            return self.keep_beside(beside);
        }
        let written: HashSet<UnitId> = changed.iter().map(|(unit, _)| *unit).collect();
        // What changes beside the group stays locked, too, until the origin has decided.
        let unchanged = keep_locked(&mut beside, units, access, &written);
        self.release_locks(&unchanged, access);
        self.undecided.begin_through(
            lsn,
            WriteThrough {
                client,
                reply: session.out.split_off(start),
                staged: txn.take_staged(),
                access,
                invalidates: self.rules().reached_by_txn(txn),
                units: changed.iter().map(|(unit, _)| *unit).collect(),
                beside,
            },
        );
        session.waiting = Some(Waiting::Origin { lsn });
    }

    /// What the raw SQL of the group in the writer covers.
    fn covered_by_writer(&mut self) -> Covers {
        let mut writer = self.log.take_group();
        let covers = self.covered(writer.finish());
        self.log.give_back(writer);
        covers
    }

    /// Appends the group in the writer to the journal, and tells the core of it.
    pub(super) fn append_group(
        &mut self,
        session: &mut Session,
        changed: &[(UnitId, u32)],
        access: Access,
    ) {
        let mut named;
        let changed = if self.undecided.unknown().covers_tables() {
            named = changed.to_vec();
            self.name_tables(&mut named);
            &named
        } else {
            changed
        };
        self.note_changes(changed);
        // Undecided changes keep the core from repeating it.
        let outdated = changed.iter().filter(|&&(unit, _)| self.core.is_outdated(unit));
        outdated.for_each(|&(unit, _)| self.decisions.fetch_again(unit));
        if !self.absent.is_off() {
            let mut writer = self.log.take_group();
            self.note_keys(writer.finish());
            self.log.give_back(writer);
        }
        let bytes = self.log.bytes();
        let on = change::builds_on(bytes);
        let spread = self.domains.partition().of_group(&self.schema, bytes);
        let journal_bytes = bytes.len() as u32;
        let group = Append {
            domains: spread.as_slice(),
            units: changed,
            bytes: journal_bytes + (GROUP_OVERHEAD + size_of_val(&on[..])) as u32,
            journal_bytes,
            access,
            continues: false,
            builds_on: &on,
        };
        let (now, log, overlay) = (self.now, &mut self.log, &mut self.overlay);
        let lsn = destage_engine::write(&mut self.core, now, &group, |lsn| {
            let bytes = log.append(lsn, now, spread.noted().0);
            overlay.push(lsn, now, bytes.into());
        });
        debug_assert!(self.overlay.get(lsn).is_some(), "an undecided group is kept");
        session.last_write = lsn;
        self.tell_raw_sql(lsn);
        if access == Access::Back {
            session.lsn = lsn;
            session.wrote = true;
            self.tell_changed(lsn);
        }
    }
}

/// Notes which of a request's units stay locked for what it does beside its group, which unlocks what it has written itself.
/// The rest is returned.
fn keep_locked(
    beside: &mut Beside,
    units: &[UnitId],
    access: Access,
    written: &HashSet<UnitId>,
) -> Vec<UnitId> {
    if access == Access::Back {
        return Vec::new();
    }
    let changed = beside.units();
    let others = units.iter().copied().filter(|unit| !written.contains(unit));
    let (locked, unchanged) = others.partition(|unit| changed.contains(unit));
    beside.locked = locked;
    unchanged
}
