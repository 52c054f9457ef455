//! The guard that each document carries: the number of the last write group that changed it.
//!
//! A group is applied to its document by one update whose filter says "not yet": the guard is of another owner before us, or
//! its number is smaller. The same update sets the guard. So a group that is delivered again, after a crash or an answer
//! that was lost, finds nothing to update and changes nothing, whatever else has happened to the document since.

use super::types::integer;
use crate::origins::ledger::{signed, unsigned};
use destage_core::Lsn;
use mongodb::bson::{Bson, Document, doc};

/// The field that holds it.
pub(super) const FIELD: &str = "_destage";

/// Whose guards count: those of the present journal, which is the owner since an epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ours {
    /// Our epoch.
    pub(super) epoch: u64,
    /// The first epoch of this journal.
    pub(super) since: u64,
    /// Negative control: guards are neither looked at nor asked for.
    pub(super) ignored: bool,
}

/// What a document's guard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    /// None of our groups has changed it.
    None,
    /// All of ours up to this one that concern it are in it.
    Upto(Lsn),
    /// Somebody has claimed the origin after us.
    Fenced(u64),
}

impl Ours {
    /// What a document with this value in its [`FIELD`] has seen.
    pub(super) fn read(self, field: Option<&Bson>) -> Guard {
        let Some(Bson::Document(guard)) = field.filter(|_| !self.ignored) else {
            return Guard::None;
        };
        let number = |name| guard.get(name).and_then(integer).map(unsigned);
        match (number("epoch"), number("seq")) {
            (Some(epoch), Some(_)) if epoch > self.epoch => Guard::Fenced(epoch),
            (Some(epoch), Some(seq)) if epoch >= self.since => Guard::Upto(Lsn(seq)),
            _ => Guard::None,
        }
    }

    /// Finds the document `id` unless it has seen the group `first` or a later one, or is another owner's.
    pub(super) fn filter(self, id: &Bson, first: Lsn) -> Document {
        if self.ignored {
            return doc! { "_id": id.clone() };
        }
        doc! {
            "_id": id.clone(),
            "_destage.epoch": { "$not": { "$gt": signed(self.epoch) } },
            "$or": [
                { "_destage.epoch": { "$not": { "$gte": signed(self.since) } } },
                { "_destage.seq": { "$lt": signed(first.0) } },
            ],
        }
    }

    /// The guard that says that the group `last` is in the document.
    pub(super) fn written(self, last: Lsn) -> Document {
        doc! { "epoch": signed(self.epoch), "seq": signed(last.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_count_from_the_first_epoch_of_the_journal_to_ours() {
        let ours = Ours { epoch: 7, since: 5, ignored: false };
        let read = |epoch: i64, seq: i64| {
            ours.read(Some(&Bson::from(doc! { "epoch": epoch, "seq": seq })))
        };
        assert_eq!(ours.read(None), Guard::None);
        assert_eq!(ours.read(Some(&Bson::Int32(1))), Guard::None);
        assert_eq!(read(4, 100), Guard::None);
        assert_eq!(read(5, 100), Guard::Upto(Lsn(100)));
        assert_eq!(read(7, 100), Guard::Upto(Lsn(100)));
        assert_eq!(read(8, 100), Guard::Fenced(8));
        let control = Ours { ignored: true, ..ours };
        assert_eq!(control.read(Some(&Bson::from(doc! { "epoch": 7, "seq": 1 }))), Guard::None);
    }
}
