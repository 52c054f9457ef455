//! Batches on their way to the origin, and the journal's room.

use super::{Front, Landed, Plan};
use crate::ask::{Ino, Kind};
use crate::engine::carry::Carried;
use crate::engine::lives::Life;
use crate::engine::plan::Step;
use crate::engine::record::{Base, Record};
use crate::engine::traces::Judged;
use destage_core::Time;
use destage_core::{Access, BatchId, Fault, Input, Lsn, RequestId, WaitFor};
use destage_engine::Drive;
use std::collections::VecDeque;

/// What is under way.
#[derive(Debug, Default)]
pub(super) struct Batches {
    /// Waits for its intent to be durable.
    intended: Option<(RequestId, BatchId, Plan)>,
    checkpoints: Checkpoints,
}

/// Groups that say how far the origin is, and how far that is, the oldest first.
#[derive(Debug, Default)]
struct Checkpoints(VecDeque<(Lsn, Lsn)>);

impl Checkpoints {
    fn push(&mut self, said_at: Lsn, upto: Lsn) {
        self.0.push_back((said_at, upto));
    }

    /// How far the origin is by the newest of those that may not be durable.
    fn newest(&self) -> Option<Lsn> {
        self.0.back().map(|&(_, upto)| upto)
    }

    /// How far it is by the newest durable one. That one lets older groups go although the disk is too full for a newer one.
    fn take_durable(&mut self, committed: Lsn) -> Option<Lsn> {
        let mut newest = None;
        while let Some((_, upto)) = self.0.pop_front_if(|(said_at, _)| *said_at <= committed) {
            newest = newest.max(Some(upto));
        }
        newest
    }
}

impl Front {
    /// The core wants a batch at the origin.
    pub(super) fn begin_batch(&mut self, batch: BatchId) {
        if let Some(mut plan) = self.plan(batch) {
            if plan.is_to_be_judged() && !self.settings.controls.no_intent {
                plan.step = Step::Judge;
                self.out.batches.push((batch, plan));
            } else {
                self.intend(batch, plan, &Judged::default());
            }
        }
    }

    /// What a batch does now, if anything.
    fn plan(&mut self, batch: BatchId) -> Option<Plan> {
        if self.has_lost_origin() {
            let result = Err(Fault::Unavailable);
            self.core.handle(self.now, Input::Destaged { batch, result });
            return None;
        }
        let upto = self.core.batch(batch).last().copied().unwrap_or(Lsn::ZERO);
        let mut plan = self.tree.plan(upto, self.core.last());
        plan.is_shared = self.covers.is_some();
        if plan.is_empty() {
            // Nothing but what the journal says of itself, or what went along with an earlier batch.
            self.say_decided(upto);
            self.tree.nothing_left(upto);
            self.core.handle(self.now, Input::Destaged { batch, result: Ok(()) });
            return None;
        }
        if plan.files.is_empty() && plan.names.is_empty() {
            // All that is due is void.
            self.land(batch, &plan, &Landed::default(), &[]);
            return None;
        }
        Some(plan)
    }

    /// Nothing of a batch has been changed yet. What others have changed by now is said in the journal, for later nobody could
    /// tell; with that, in one group, what the batch may change. It is planned anew: what it was to bring may be gone.
    fn judged(&mut self, batch: BatchId, plan: Plan, judged: &Judged) {
        if !judged.others.is_empty() {
            tracing::warn!(
                files = judged.others.len(),
                "others have changed files at the origin that this host has changed, too: its versions are kept as conflicts"
            );
        }
        self.tree.failed(&plan, &[]);
        self.tree.traces.judged(judged);
        drop(plan);
        if let Some(plan) = self.plan(batch) {
            return self.intend(batch, plan, judged);
        }
        for record in judged.records(self.tree.begun_upto().0, ENTRIES_MAX) {
            self.write(Access::Back, None, &[record]);
        }
    }

    fn intend(&mut self, batch: BatchId, plan: Plan, judged: &Judged) {
        self.tree.begin(&plan);
        // Its name may come to the origin with this batch, and go.
        plan.files.iter().for_each(|file| self.pin_if_unnamed(file.key.ino));
        if self.settings.controls.no_intent {
            self.out.batches.push((batch, plan));
            return;
        }
        let mut records = judged.records(self.tree.begun_upto().0, ENTRIES_MAX);
        let files = plan.may_touch.keys().copied();
        let is_new = self.tree.traces.begin(plan.upto, files, &plan.absorbed);
        let lsn = if is_new || !records.is_empty() {
            while records.len() > 1 {
                let later = records.split_off(1);
                self.write(Access::Back, None, &records);
                records = later;
            }
            records.push(plan.intent());
            self.write(Access::Back, None, &records)
        } else {
            // One that fails for hours is not to fill the journal. What it brings has to be durable here all the same.
            plan.at
        };
        let request = self.unheard();
        self.batches.intended = Some((request, batch, plan));
        let until = WaitFor::Committed;
        self.core.handle(self.now, Input::Wait { request, lsn, until });
    }

    /// Whether this was the wait of a batch, which goes out now.
    pub(super) fn intent_committed(&mut self, request: RequestId) -> bool {
        let Some((_, batch, plan)) =
            self.batches.intended.take_if(|(waiting, _, _)| *waiting == request)
        else {
            return false;
        };
        let plan = Plan { step: Step::Carry, ..plan };
        self.out.batches.push((batch, plan));
        true
    }

    /// A batch has been carried out, or not.
    pub(crate) fn batch_ended(&mut self, now: Time, batch: BatchId, plan: Plan, carried: Carried) {
        self.advance(now);
        match carried {
            Carried::Judged(judged) => self.judged(batch, plan, &judged),
            Carried::Landed(landed, beyond) => {
                self.counted.origin_error = None;
                self.land(batch, &plan, &landed, &beyond);
            }
            Carried::Failed(errno, changed) => {
                if errno.is_end_of_mount() {
                    self.lose_origin(now, errno);
                } else {
                    tracing::warn!(error = %errno, "the origin did not take a batch; trying again");
                }
                self.counted.origin_errors += 1;
                self.counted.origin_error = Some(errno.to_string());
                self.measured.origin_failed(self.now);
                self.tree.failed(&plan, &changed);
                let result = Err(Fault::Unavailable);
                self.core.handle(self.now, Input::Destaged { batch, result });
            }
        }
        self.core.handle(self.now, Input::Tick);
        self.pump();
    }

    fn land(
        &mut self,
        batch: BatchId,
        plan: &Plan,
        landed: &Landed,
        beyond: &[(Ino, Option<Base>)],
    ) {
        let files = plan.files.iter().filter(|file| file.stat.kind == Kind::File);
        self.counted.files_written += files.count() as u64;
        self.counted.names_changed += plan.names.len() as u64;
        let freed = self.tree.land(plan, landed);
        self.counted.absorbed += plan.absorbed_now;
        self.out.free.extend(freed.numbers);
        self.out.unchanged.extend(freed.unchanged);
        let tree = &self.tree;
        for staged in self.refused.extract_if(.., |staged| !tree.is_taken(&staged.key)) {
            // Of other kinds there is no stock to which they could be given back.
            let is_file = staged.stat.kind == Kind::File;
            let out = if is_file { &mut self.out.unchanged } else { &mut self.out.unused };
            out.push(staged);
        }
        let bases = self.tree.bases_behind(landed);
        let mut records = vec![self.checkpoint(plan.upto, bases)];
        for conflict in &landed.conflicts {
            if records.len() > CONFLICTS_MAX {
                // In front of the checkpoint, which does not take all of them.
                self.write(Access::Back, None, &records.split_off(1));
            }
            self.counted.conflicts += 1;
            tracing::error!(
                ino = conflict.ino,
                place = conflict.place,
                reason = conflict.reason,
                "a conflict: what this host had is kept; see 'destage mount conflicts list'"
            );
            records.push(Record::Conflict {
                number: self.counted.conflicts,
                ino: conflict.ino,
                reason: conflict.reason.to_owned(),
            });
        }
        // Of attempts that went further, these files are known again.
        let begun = self.tree.begun_upto();
        if begun > plan.upto {
            self.tree.traces.failed(beyond);
            let left = beyond.iter().filter_map(|&(ino, base)| Some((ino, base?))).collect();
            let rest = plan.touched.keys().copied().collect();
            let known = Judged { left, rest, ..Judged::default() };
            records.extend(known.records(begun.0, usize::MAX));
            let unknown = beyond.iter().filter(|(_, base)| base.is_none());
            let files: Vec<Ino> = unknown.map(|(ino, _)| *ino).collect();
            if !files.is_empty() {
                records.push(Record::Intent { upto: begun.0, files, absorbed: Vec::new() });
            }
        }
        let lsn = self.write(Access::Back, None, &records);
        self.batches.checkpoints.push(lsn, plan.upto);
        let groups = self.core.batch(batch).to_vec();
        self.note_destaged(&groups);
        self.core.handle(self.now, Input::Destaged { batch, result: Ok(()) });
    }

    /// That everything up to a group is at the origin. What does not fit into one group is written in front of it.
    fn checkpoint(&mut self, upto: Lsn, mut bases: Vec<(Ino, Base)>) -> Record {
        let mut absorbed: Vec<Life> = self.tree.absorbed.iter().collect();
        let upto = upto.0;
        while bases.len() > ENTRIES_MAX || absorbed.len() > ENTRIES_MAX {
            let (bases_left, absorbed_left) = (bases.len(), absorbed.len());
            let bases = bases.split_off(bases_left.saturating_sub(ENTRIES_MAX));
            let absorbed = absorbed.split_off(absorbed_left.saturating_sub(ENTRIES_MAX));
            self.write(Access::Back, None, &[Record::Part { upto, bases, absorbed }]);
        }
        Record::Ckpt { upto, bases, absorbed }
    }

    /// The journal says of what a batch has taken along that it is at the origin, and of every change made under a token where
    /// several hosts share the origin: else a start would bring it there once more, although others may have changed it since.
    fn say_decided(&mut self, upto: Lsn) {
        let said = self.batches.checkpoints.newest().unwrap_or(self.checkpointed);
        let is_covered = self.covers.is_some() && self.tree.covered_newest() > said;
        if upto <= said || !(is_covered || self.tree.has_taken_along(upto)) {
            return;
        }
        let bases = self.tree.bases_known();
        let checkpoint = self.checkpoint(upto, bases);
        let lsn = self.write(Access::Back, None, &[checkpoint]);
        self.batches.checkpoints.push(lsn, upto);
    }

    /// Lets go of what the journal holds of groups that are at the origin, once the journal itself says so durably.
    pub(super) fn reclaim(&mut self) {
        let committed = self.core.committed();
        if let Some(upto) = self.batches.checkpoints.take_durable(committed) {
            self.journal.reclaim(upto.0, self.now.0);
            self.checkpointed = self.checkpointed.max(upto);
            if self.covers.is_some() {
                self.tree.forget_covers(upto);
            }
        }
    }
}

/// Conflicts in the group of a checkpoint.
const CONFLICTS_MAX: usize = 1_000;
/// So many entries of a kind are in one group at most: a group has to fit into a segment of the journal.
#[cfg(not(test))]
const ENTRIES_MAX: usize = 20_000;
/// Few enough for tests to write several.
#[cfg(test)]
const ENTRIES_MAX: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_checkpoint_counts_although_a_newer_one_is_not() {
        let mut checkpoints = Checkpoints::default();
        for (said_at, upto) in [(10, 4), (20, 9), (30, 25)] {
            checkpoints.push(Lsn(said_at), Lsn(upto));
        }
        assert_eq!(checkpoints.take_durable(Lsn(9)), None);
        assert_eq!(checkpoints.take_durable(Lsn(29)), Some(Lsn(9)));
        assert_eq!(
            (checkpoints.take_durable(Lsn(29)), checkpoints.newest()),
            (None, Some(Lsn(25)))
        );
        assert_eq!(checkpoints.take_durable(Lsn(30)), Some(Lsn(25)));
        assert_eq!(checkpoints.newest(), None);
    }
}
