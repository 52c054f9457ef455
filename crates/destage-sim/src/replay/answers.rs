//! How long the requests of a recorded run took, as its core saw it.

use super::load::NOBODY;
use super::{Load, Observer, Tally, is_of_rows};
use crate::machine::{Gathered, Latency};
use destage_core::{
    Access, ClientId, Core, Effect, Input, Intent, Lsn, Policy, RequestId, Time, UnitId,
};
use destage_record::{answer, answer_of};
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// A recorded run.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    /// What clients asked for and how long the devices took, to be run under other policies; `None` if that is not known.
    pub load: Option<Arc<Load>>,
    /// The policy that was in force at the beginning.
    pub policy: Policy,
    /// Counts.
    pub tally: Tally,
    /// Reads, from the core's being asked to the answer's leaving; `None` where the recording does not tell.
    pub reads: Option<Latency>,
    /// Writes, likewise. Those that had to be on the medium by themselves are left out: they are a write and a flush.
    pub writes: Option<Latency>,
}

/// Finds out when requests were answered.
///
/// Of a volume a recording tells which requests an answer is for: the first of them is where it began. An answer of which nothing
/// was asked is one of a read that went past the cache, and is left out.
/// Of rows it does not. A read is announced while it is executed, and so is a write. The answers of one connection are announced
/// together, by the newest of their groups. So a write that was not announced at once is taken to be announced by the first answer
/// of writes that reaches its group.
#[derive(Debug, Default)]
pub struct Answers {
    asked: HashMap<RequestId, (Asked, Box<[UnitId]>)>,
    /// The write that was executed by the last effect, and the units that it has written.
    writing: Option<Asked>,
    written: Vec<UnitId>,
    /// Of rows: writes that were not announced at once, by their group.
    unannounced: VecDeque<(Lsn, Asked)>,
    announces_together: bool,
    /// Of a volume: what was asked first for each answer.
    parts: HashMap<u32, Asked>,
    /// Reads of rows that were executed.
    reading: VecDeque<Asked>,
    /// Writes that write through, by their first unit, and by their group once they have one.
    through: HashMap<UnitId, Asked>,
    settling: HashMap<Lsn, Asked>,
    /// What is announced.
    leaving: HashMap<ClientId, Vec<Asked>>,
    reads: Gathered,
    writes: Gathered,
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    at: Time,
    is_write: bool,
}

/// Of a hundred reads answered so many may be left at the end without an answer: with more, answers were for several at once.
const UNANSWERED_PERCENT: u64 = 5;

impl Answers {
    /// What the recording is of, as its parts say.
    pub fn note_subject(&mut self, subject: &str) {
        self.announces_together = is_of_rows(subject);
    }

    /// The run, with what else is known of it; `None` if nothing was recorded.
    pub fn run(&self, policy: Option<&Policy>, tally: &Tally) -> Option<RecordedRun> {
        let known = |gathered: &Gathered| Some(gathered.latency()).filter(|of| of.count > 0);
        let parts = self.parts.iter().filter(|(answer, _)| **answer != NOBODY);
        let parts = parts.map(|(_, asked)| asked);
        let reading = parts.chain(&self.reading).filter(|asked| !asked.is_write);
        let reading = reading.count() as u64;
        let reads =
            known(&self.reads).filter(|reads| reading * 100 <= reads.count * UNANSWERED_PERCENT);
        let writes = known(&self.writes);
        Some(RecordedRun {
            load: None,
            policy: policy?.clone(),
            tally: tally.clone(),
            reads,
            writes,
        })
    }

    /// Forgets the times so far, and no request that waits.
    pub(super) fn count_anew(&mut self) {
        (self.reads, self.writes) = Default::default();
    }

    fn ended(&mut self, asked: Option<Asked>, now: Time) {
        let Some(asked) = asked else { return };
        let gathered = if asked.is_write { &mut self.writes } else { &mut self.reads };
        gathered.add(now.since(asked.at));
    }

    /// Notes what is asked for an answer, unless another part of it was asked before.
    fn is_part(&mut self, request: RequestId, asked: Asked) {
        if self.announces_together {
            return;
        }
        self.parts.entry(answer_of(request)).or_insert(asked);
    }

    /// What an answer is for.
    fn answered(&mut self, client: ClientId, wrote: bool) -> Option<Asked> {
        if self.announces_together {
            return if wrote { self.writing.take() } else { self.reading.pop_back() };
        }
        let first = self.parts.remove(&answer(client))?;
        // One that had to be on the medium by itself is announced later.
        let is_told = if wrote { self.writing.take().is_some() } else { !first.is_write };
        is_told.then_some(first)
    }

    /// Whether the driver only makes sure that units which were just written count as present.
    fn is_driver(&self, units: &[UnitId], core: &Core) -> bool {
        !self.written.is_empty()
            && units.iter().all(|unit| self.written.contains(unit) && !core.is_present(*unit))
    }

    fn first_through(&mut self, units: &[(UnitId, u32)]) -> Option<Asked> {
        units.first().and_then(|(unit, _)| self.through.remove(unit))
    }
}

impl Observer for Answers {
    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        match *input {
            Input::Access { request, intent, units } if !self.is_driver(units, core) => {
                let is_write = matches!(intent, Intent::Write { .. });
                let asked = Asked { at: now, is_write };
                self.is_part(request, asked);
                self.asked.insert(request, (asked, units.into()));
            }
            Input::Write { units, access: Access::Back, .. } => {
                self.written.extend(units.iter().map(|(unit, _)| *unit));
            }
            Input::Write { units, .. } => {
                if let Some(asked) = self.first_through(units) {
                    self.settling.insert(core.next_lsn(), asked);
                }
            }
            Input::Through { units, .. } => {
                let asked = self.first_through(units);
                self.ended(asked, now);
            }
            Input::Release { units } => units.iter().for_each(|unit| {
                self.through.remove(unit);
            }),
            Input::Respond { client, wrote, lsn } => {
                let asked = self.answered(client, wrote);
                let leaving = self.leaving.entry(client).or_default();
                leaving.extend(asked);
                let is_reached = |(written, _): &mut (Lsn, Asked)| wrote && *written <= lsn;
                while let Some((_, asked)) = self.unannounced.pop_front_if(is_reached) {
                    leaving.push(asked);
                }
            }
            _ => {}
        }
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        if let Some(asked) = self.writing.take()
            && self.announces_together
        {
            self.unannounced.push_back((core.last(), asked));
        }
        self.written.clear();
        match *effect {
            Effect::Execute { request, access, .. } => {
                let Some((asked, units)) = self.asked.remove(&request) else { return };
                if access != Access::Back {
                    self.through.extend(units.iter().map(|&unit| (unit, asked)));
                } else if asked.is_write {
                    self.writing = Some(asked);
                } else if self.announces_together {
                    self.reading.push_back(asked);
                }
            }
            Effect::Refuse { request, .. } => {
                self.parts.remove(&answer_of(request));
                self.asked.remove(&request);
            }
            Effect::Send { client } => {
                for asked in self.leaving.remove(&client).into_iter().flatten() {
                    self.ended(Some(asked), now);
                }
            }
            Effect::Settled { lsn, .. } => {
                let asked = self.settling.remove(&lsn);
                self.ended(asked, now);
            }
            _ => {}
        }
    }
}
