//! The decisions that were asked for, the one that is under way, and what it makes doubtful.

use super::super::job::FetchJob;
use super::asker::{Asker, ParkedCommand};
use super::known::{KnownGroups, Units};
use crate::resp::ReplyError;
use crate::schema::TableId;
use destage_core::{Lsn, UnitId};
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

/// The decisions that were asked for, and what they are about.
#[derive(Debug, Default)]
pub(in crate::engine) struct Decisions {
    known: KnownGroups,
    lists: HashMap<u64, (ParkedCommand, Asker)>,
    waiting: VecDeque<(ParkedCommand, Asker)>,
    active: Option<Active>,
    /// Units whose fetch under way may have looked at the origin before it changed them otherwise than by a batch.
    refetch: BTreeSet<UnitId>,
    last_list: u64,
    /// Why the origin denied to park a group, the last time that it did.
    denial: String,
    /// Negative control for the tests: what is fetched meanwhile is installed.
    unsafe_installs: bool,
}

/// The decision under way.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) command: ParkedCommand,
    pub(super) asker: Asker,
    /// Its transaction that is under way.
    pub(super) sent: Option<Sent>,
    /// Of all, those up to here had their turn.
    pub(super) upto: Lsn,
    pub(super) applied: u64,
    pub(super) refused: Option<ReplyError>,
}

/// A transaction under way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) root: Lsn,
    pub(super) lsns: Vec<Lsn>,
    /// What it changes in the place of what was parked.
    pub(super) edited: Units,
    /// Tables of which the origin may change further rows.
    pub(super) reached: Vec<TableId>,
    pub(super) units: HashSet<UnitId>,
    /// Tables of which raw SQL among it covers all rows.
    pub(super) tables: Vec<TableId>,
    pub(super) held_back: Vec<FetchJob>,
}

impl Sent {
    fn concerns(&self, job: &FetchJob) -> bool {
        self.units.contains(&job.unit) || self.tables.contains(&job.table)
    }
}

/// What becomes of what a fetch has brought.
#[derive(Debug)]
pub(in crate::engine) enum Brought {
    /// It is installed.
    Install(FetchJob),
    /// It is fetched once more.
    Fetch(FetchJob),
    /// It waits for the decision.
    Held,
}

impl Decisions {
    /// The parked groups.
    pub(in crate::engine) fn known(&self) -> &KnownGroups {
        &self.known
    }

    /// The same, to be changed.
    pub(super) fn known_mut(&mut self) -> &mut KnownGroups {
        &mut self.known
    }

    /// Someone wants a decision.
    pub(super) fn ask(&mut self, command: ParkedCommand, asker: Asker) {
        self.waiting.push_back((command, asker));
    }

    /// Someone wants to look at what is parked; the question's number.
    pub(super) fn ask_list(&mut self, command: ParkedCommand, asker: Asker) -> u64 {
        self.last_list += 1;
        self.lists.insert(self.last_list, (command, asker));
        self.last_list
    }

    /// The question with this number has its answer.
    pub(super) fn end_list(&mut self, request: u64) -> Option<(ParkedCommand, Asker)> {
        self.lists.remove(&request)
    }

    /// Begins the next decision, if none is under way and one is wanted; whether it has.
    pub(super) fn begin_next(&mut self) -> bool {
        if self.active.is_some() {
            return false;
        }
        let Some((command, asker)) = self.waiting.pop_front() else { return false };
        let (upto, applied) = (Lsn::ZERO, 0);
        self.active = Some(Active { command, asker, sent: None, upto, applied, refused: None });
        true
    }

    /// Takes the decision out whose next transaction is to be sent.
    pub(super) fn take_unsent(&mut self) -> Option<Active> {
        self.active.take_if(|active| active.sent.is_none())
    }

    /// Whether a decision's transaction is under way.
    pub(in crate::engine) fn is_sent(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.sent.is_some())
    }

    /// Takes the decision out whose transaction has come back, with that.
    pub(super) fn take_sent(&mut self) -> (Active, Sent) {
        let mut active = self.active.take().expect("one decision is under way");
        let sent = active.sent.take().expect("its transaction has ended");
        (active, sent)
    }

    /// The origin denied to park a group.
    pub(in crate::engine) fn note_denial(&mut self, reason: &str) {
        reason.clone_into(&mut self.denial);
    }

    /// Why it did so the last time.
    pub(super) fn denial(&self) -> &str {
        &self.denial
    }

    /// It goes on.
    pub(super) fn go_on(&mut self, active: Active) {
        assert!(self.active.is_none(), "one decision at a time");
        self.active = Some(active);
    }

    /// What becomes of what a fetch of a row has brought, or of a part of a large set, which is as doubtful as the set. A
    /// decision under way makes it doubtful: nobody knows on which side of its transaction the fetch looked.
    pub(in crate::engine) fn brought(&mut self, job: FetchJob, set: Option<UnitId>) -> Brought {
        let sent = self.active.as_mut().and_then(|active| active.sent.as_mut());
        let is_doubtful = |sent: &&mut Sent| {
            sent.concerns(&job) || set.is_some_and(|set| sent.units.contains(&set))
        };
        if let Some(sent) = sent.filter(|_| !self.unsafe_installs).filter(is_doubtful) {
            sent.held_back.push(job);
            return Brought::Held;
        }
        if self.refetch.remove(&job.unit) { Brought::Fetch(job) } else { Brought::Install(job) }
    }

    /// Whether a decision is under way, so that what is fetched may be doubtful.
    #[inline]
    pub(in crate::engine) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// A fetch brought nothing, which is not out of date.
    pub(in crate::engine) fn fetch_failed(&mut self, unit: UnitId) {
        self.refetch.remove(&unit);
    }

    /// What is being fetched is out of date: it is fetched once more.
    pub(in crate::engine) fn fetch_again(&mut self, unit: UnitId) {
        self.refetch.insert(unit);
    }

    /// Negative control for the tests: what is fetched meanwhile is installed.
    #[cfg(test)]
    pub(in crate::engine) fn set_unsafe_installs(&mut self, unsafe_installs: bool) {
        self.unsafe_installs = unsafe_installs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(unit: u32) -> FetchJob {
        let (unit, table) = (UnitId(unit), TableId(1));
        FetchJob { unit, table, key: Box::default(), confirmed: Lsn::ZERO }
    }

    fn sent(units: &[u32]) -> Sent {
        Sent {
            root: Lsn(1),
            lsns: vec![Lsn(1)],
            edited: Units::default(),
            reached: Vec::new(),
            units: units.iter().copied().map(UnitId).collect(),
            tables: Vec::new(),
            held_back: Vec::new(),
        }
    }

    #[test]
    fn what_a_decision_is_about_is_not_installed_while_it_is_under_way() {
        let mut all = Decisions::default();
        all.ask(ParkedCommand::Skip(Lsn(1)), Asker::new(drop));
        assert!(all.begin_next() && !all.begin_next());
        let mut active = all.take_unsent().unwrap();
        active.sent = Some(sent(&[1, 2]));
        all.go_on(active);
        assert!(all.take_unsent().is_none());
        assert!(matches!(all.brought(job(1), None), Brought::Held));
        assert!(matches!(all.brought(job(5), Some(UnitId(2))), Brought::Held));
        assert!(matches!(all.brought(job(5), None), Brought::Install(_)));
        let (_, sent) = all.take_sent();
        assert_eq!(sent.held_back.len(), 2);
        assert!(matches!(all.brought(job(1), None), Brought::Install(_)) && !all.is_active());
    }

    #[test]
    fn what_was_out_of_date_as_it_was_fetched_is_fetched_once_more() {
        let mut all = Decisions::default();
        all.fetch_again(UnitId(1));
        assert!(matches!(all.brought(job(1), None), Brought::Fetch(_)));
        assert!(matches!(all.brought(job(1), None), Brought::Install(_)));
        all.fetch_again(UnitId(1));
        all.fetch_failed(UnitId(1));
        assert!(matches!(all.brought(job(1), None), Brought::Install(_)));
    }
}
