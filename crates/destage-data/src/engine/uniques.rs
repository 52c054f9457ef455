//! Unique columns that are judged before a write is acknowledged: whether another row has the values (`unique = "ask"`).
//!
//! What undecided writes have set is known here ([`super::claims`]). What the origin has is asked for anew by each write,
//! and compared by the origin itself. A write is refused only where the other row has the values for certain: it is seen
//! here with them, or the origin has them in a row that nothing undecided changes. Whatever is not certain is left to the
//! origin.

use super::Engine;
use super::claims::{Holder, Values, values_of};
use super::job::Io;
use super::key::key_shown;
use super::prepared::Trouble;
use super::rows::RowKey;
use super::session::{Session, Waiting};
use super::txn::{Txn, Update};
use crate::cells::Reader;
use crate::change::Op;
use crate::key_text::show;
use crate::resp::ReplyError;
use crate::schema::{Table, TableId, Unique};
use destage_core::{Access, ClientId, UnitId};
use std::collections::{BTreeSet, HashMap};

/// What has to be found out before a transaction can be judged.
#[derive(Default)]
struct Asked {
    parents: BTreeSet<RowKey>,
    questions: BTreeSet<Values>,
    /// The rows of the transaction itself that have values.
    own: HashMap<Values, UnitId>,
}

impl Engine {
    /// Judges what a transaction's rows have to do with other rows, as far as that is asked for: those that they refer to, and
    /// those that have their values.
    ///
    /// # Errors
    /// What a row would violate; or what has to be found out first.
    pub(super) fn check_others(
        &self,
        session: &Session,
        txn: &Txn,
        access: Access,
    ) -> Result<(), Trouble> {
        self.check_parents(session, txn)?;
        // Otherwise the origin's own word is waited for.
        if access == Access::Back { self.check_uniques(session, txn) } else { Ok(()) }
    }

    /// Judges the values that a transaction gives to unique columns, as its rows will be.
    ///
    /// # Errors
    /// Another row has them; or that is not known of some.
    fn check_uniques(&self, session: &Session, txn: &Txn) -> Result<(), Trouble> {
        let mut asked = Asked::default();
        // What raw SQL makes of the rows in between is not known here.
        let changes = txn.row_changes().filter(|_| !txn.has_dml());
        for (unit, table, op, sets) in changes {
            if self.schema.table(table).asks_unique && !op.removes() {
                self.check_unique_row(session, txn, (unit, table, op, sets), &mut asked)?;
            }
        }
        if !asked.parents.is_empty() {
            Err(Trouble::Parents(asked.parents))
        } else if !asked.questions.is_empty() {
            Err(Trouble::Holders(asked.questions.into_iter().collect()))
        } else {
            Ok(())
        }
    }

    fn check_unique_row(
        &self,
        session: &Session,
        txn: &Txn,
        (unit, table, op, sets): (UnitId, TableId, Op, &[(usize, Update)]),
        asked: &mut Asked,
    ) -> Result<(), Trouble> {
        let Some((cells, before)) = txn.around(&self.rows, unit, op) else { return Ok(()) };
        let table = self.schema.table(table);
        for (at, unique) in self.schema.uniques_asked(table) {
            let is_set =
                op == Op::Insert || sets.iter().any(|(set, _)| unique.columns.contains(set));
            let Some(values) = values_of(unique, &cells).filter(|_| is_set) else { continue };
            let is_as_before = before.as_ref().and_then(|before| values_of(unique, before));
            if is_as_before.as_ref() == Some(&values) {
                continue;
            }
            let values = (table.id, at, values);
            let own = asked.own.insert(values.clone(), unit).filter(|&own| own != unit);
            let other = match own {
                Some(own) => Some(self.rows.key(own).into()),
                None => self.other_with(session, txn, unit, &values, asked),
            };
            if let Some(other) = other {
                return Err(self.taken(unit, table, unique, &values.2, &other).into());
            }
        }
        Ok(())
    }

    /// Another row that has these values for certain.
    fn other_with(
        &self,
        session: &Session,
        txn: &Txn,
        unit: UnitId,
        values: &Values,
        asked: &mut Asked,
    ) -> Option<Box<[u8]>> {
        let is_other = |key: &[u8]| self.rows.find(values.0, key) != Some(unit);
        let answer = session.holders.get(values);
        let changed = match answer {
            Some(Holder::Changed(key)) => Some(&**key),
            _ => None,
        };
        let claims = self.undecided.claims();
        for key in claims.rows(values).chain(changed).filter(|key| is_other(key)) {
            match self.row_with(session, txn, key, values) {
                Some(true) => return Some(key.into()),
                Some(false) => {}
                None => drop(asked.parents.insert((values.0, key.into()))),
            }
        }
        match answer {
            None => {
                asked.questions.insert(values.clone());
                None
            }
            Some(Holder::Row(key)) if is_other(key) => {
                let is_changed =
                    self.rows.find(values.0, key).is_some_and(|unit| txn.changes_row(unit));
                let has = !is_changed || self.row_with(session, txn, key, values) == Some(true);
                has.then(|| key.clone())
            }
            Some(Holder::Row(_) | Holder::Changed(_) | Holder::None) => None,
        }
    }

    /// Whether a row is seen with these values; `None` if it has to be fetched for that.
    fn row_with(&self, session: &Session, txn: &Txn, key: &[u8], values: &Values) -> Option<bool> {
        let (unit, _) = self.known_row(session, txn, &(values.0, key.into()))?;
        let unique = &self.schema.table(values.0).uniques[values.1];
        let cells = txn.row(&self.rows, unit).map(|row| Reader::new(row).collect::<Vec<_>>());
        Some(cells.and_then(|cells| values_of(unique, &cells)).as_ref() == Some(&values.2))
    }

    fn taken(
        &self,
        unit: UnitId,
        table: &Table,
        unique: &Unique,
        values: &[u8],
        other: &[u8],
    ) -> ReplyError {
        let (row, other) = (key_shown(table, self.rows.key(unit)), key_shown(table, other));
        let values = Reader::new(values).filter_map(|cell| cell.value().map(show));
        ReplyError::err(format!(
            "{row} would violate {}: {other} has {} already, so nothing was written; give {row} another value, or change \
             {other} first",
            unique.shown(table),
            values.collect::<Vec<_>>().join(", ")
        ))
    }

    /// A command has ended, or nobody waits for it any more: what was decided since its questions were asked is not needed.
    pub(super) fn unpin_answers(&mut self, session: &mut Session) {
        for request in std::mem::take(&mut session.pinned) {
            self.undecided.claims_mut().unpin(request);
        }
        if let Some(Waiting::Holders { request, .. }) = &session.waiting {
            self.undecided.claims_mut().unpin(request.0);
        }
    }

    /// Has the origin asked which rows have values; the command is performed once more with the answers.
    pub(super) fn ask_for_holders(
        &mut self,
        client: ClientId,
        session: &mut Session,
        questions: Vec<Values>,
        raw: &[u8],
    ) {
        let request = self.asking.request_id(client.0);
        self.undecided.claims_mut().pin(request.0);
        self.jobs.push(Io::Holders { request: request.0, questions: questions.clone() });
        session.waiting = Some(Waiting::Holders { request, raw: raw.into(), questions });
    }
}
