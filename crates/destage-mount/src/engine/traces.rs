//! What is known of files that an attempt at a batch may have changed at the origin, and did not bring to its end.
//!
//! Others may change them before the next attempt. What tells their work from what the attempt has left:
//!
//! - In the same process it is looked at the files as soon as the attempt has failed.
//! - After a crash nobody has. Then it is the time: see [`AtWork`](super::carry::AtWork).
//!
//! What others have changed is said in the journal before anything else is changed there: later nobody could tell.

use super::lives::{Life, Lives};
use super::record::{Base, Record};
use crate::ask::Ino;
use destage_core::Lsn;
use std::collections::{BTreeMap, BTreeSet};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    /// What the origin held of them once an attempt had ended.
    left: BTreeMap<Ino, Base>,
    /// Of these that is not known.
    unsure: BTreeSet<Ino>,
    /// Others have changed these since.
    others: BTreeSet<Ino>,
    said: Said,
}

/// What the journal says of attempts that may have begun.
#[derive(Debug, Default)]
struct Said {
    upto: Lsn,
    /// Of these nothing of what was found afterwards is said.
    files: BTreeSet<Ino>,
    absorbed: Lives,
}

/// What was found of files before an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// What an attempt has left of them, or whatever was there before.
    pub(crate) left: Vec<(Ino, Base)>,
    /// Others have changed them.
    pub(crate) others: Vec<Ino>,
    /// Of these nothing needs to be known.
    pub(crate) rest: Vec<Ino>,
}

impl Judged {
    fn files(&self) -> impl Iterator<Item = Ino> {
        let left = self.left.iter().map(|(ino, _)| ino);
        left.chain(&self.others).chain(&self.rest).copied()
    }

    /// What the journal is to say of it, of batches up to a group: in parts, for a group has to fit into a segment.
    pub(crate) fn records(&self, upto: u64, entries_max: usize) -> Vec<Record> {
        let parts = [self.left.len(), self.others.len(), self.rest.len()];
        let parts = parts.map(|len| len.div_ceil(entries_max)).into_iter().max().unwrap_or(0);
        let part = |index: usize| {
            let (from, to) = (index * entries_max, (index + 1).saturating_mul(entries_max));
            let within = |len: usize| from.min(len)..to.min(len);
            Record::Judged {
                upto,
                left: self.left[within(self.left.len())].to_vec(),
                others: self.others[within(self.others.len())].to_vec(),
                rest: self.rest[within(self.rest.len())].to_vec(),
            }
        };
        (0..parts).map(part).collect()
    }
}

impl Traces {
    /// What a start finds in the journal: of batches up to a group, which leave these out.
    pub(crate) fn found(
        left: BTreeMap<Ino, Base>,
        unsure: BTreeSet<Ino>,
        others: BTreeSet<Ino>,
        upto: Lsn,
        absorbed: Lives,
    ) -> Self {
        let said = Said { upto, files: unsure.clone(), absorbed };
        let unsure = unsure.difference(&others).copied().collect();
        Self { left, unsure, others, said }
    }

    /// What the origin holds of a file unless others have changed it, where something else was known of it before all attempts;
    /// `None` if that is not known.
    pub(crate) fn base(&self, ino: Ino, before: Option<Base>) -> Option<Base> {
        self.last_known(ino, before).filter(|_| !self.unsure.contains(&ino))
    }

    /// What was known before the attempts of which nobody knows what they have left.
    pub(crate) fn last_known(&self, ino: Ino, before: Option<Base>) -> Option<Base> {
        self.left.get(&ino).copied().or(before)
    }

    pub(crate) fn is_others(&self, ino: Ino) -> bool {
        self.others.contains(&ino)
    }

    /// Of which it has to be found out what is theirs before anything is changed.
    pub(crate) fn unsure(&self) -> impl Iterator<Item = Ino> {
        self.unsure.iter().copied()
    }

    /// An attempt at a batch up to a group may change these. True if the journal does not say so yet.
    pub(crate) fn begin(
        &mut self,
        upto: Lsn,
        files: impl Iterator<Item = Ino>,
        absorbed: &Lives,
    ) -> bool {
        let said = &mut self.said;
        let before = said.files.len();
        said.files.extend(files);
        let is_said = |life: Life| said.absorbed.of(life.ino, life.from) == Some(life);
        let is_new = upto > said.upto || said.files.len() > before || !absorbed.iter().all(is_said);
        said.upto = said.upto.max(upto);
        said.absorbed.extend(absorbed.iter());
        is_new
    }

    /// It has failed, and has changed these: what they are like now, where that could be asked.
    pub(crate) fn failed(&mut self, changed: &[(Ino, Option<Base>)]) {
        for &(ino, base) in changed {
            match base {
                Some(base) => {
                    self.left.insert(ino, base);
                    self.unsure.remove(&ino);
                }
                None => _ = self.unsure.insert(ino),
            }
        }
    }

    pub(crate) fn judged(&mut self, judged: &Judged) {
        judged.files().for_each(|ino| self.forget(ino));
        self.left.extend(judged.left.iter().copied());
        self.others.extend(&judged.others);
    }

    /// A batch has brought these, while earlier attempts have gone further. What the journal said of it is void with it.
    pub(crate) fn landed(&mut self, files: impl Iterator<Item = Ino>) {
        files.for_each(|ino| self.forget(ino));
        self.said = Said::default();
    }

    /// A batch has brought a file, and the journal says what the origin holds; or the number is another file's.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.left.remove(&ino);
        self.unsure.remove(&ino);
        self.others.remove(&ino);
        self.said.files.remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::Moment;

    #[test]
    fn what_is_said_in_parts_is_all_that_was_found() {
        let moment = Moment { seconds: 1, nanos: 2 };
        let base = Base { size: 3, mtime: moment, ctime: moment };
        let left = (0..5).map(|ino| (ino, base)).collect();
        let judged = Judged { left, others: vec![8, 9], rest: vec![] };
        let mut found = Judged::default();
        for record in judged.records(7, 2) {
            let Record::Judged { upto: 7, left, others, rest } = record else { panic!() };
            assert!(left.len() <= 2 && others.len() <= 2);
            found.left.extend(left);
            found.others.extend(others);
            found.rest.extend(rest);
        }
        assert_eq!(found, judged);
        assert!(Judged::default().records(7, 2).is_empty());
    }

    #[test]
    fn what_an_attempt_has_left_is_what_was_found_last() {
        let at = |seconds| {
            let moment = Moment { seconds, nanos: 0 };
            Base { size: 1, mtime: moment, ctime: moment }
        };
        let begin = |traces: &mut Traces, files: &[Ino]| {
            traces.begin(Lsn(7), files.iter().copied(), &Lives::default())
        };
        let mut traces = Traces::default();
        assert!(begin(&mut traces, &[1, 2]));
        assert!(!begin(&mut traces, &[2]), "the journal says so");
        // Only one of them was changed.
        traces.failed(&[(2, Some(at(5)))]);
        assert_eq!(traces.base(1, Some(at(4))), Some(at(4)));
        assert_eq!(traces.base(2, Some(at(4))), Some(at(5)));
        traces.failed(&[(2, None)]);
        assert_eq!(traces.base(2, Some(at(4))), None);
        assert_eq!(traces.last_known(2, Some(at(4))), Some(at(5)));
        traces.judged(&Judged { others: vec![2], ..Judged::default() });
        assert!(traces.is_others(2));
        assert!(begin(&mut traces, &[2]), "what was found is said, and a new attempt is not");
        traces.forget(2);
        assert!(!traces.is_others(2));
    }
}
