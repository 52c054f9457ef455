//! The short way for the commonest write: HSET or SET of values as long as the old ones, in a row that is present. The row
//! is patched where it lies. Everything else takes the general way, which gives the same result.

use super::Engine;
use super::command::Verb;
use super::prepared::Prepared;
use super::rows::Kind;
use super::session::Session;
use crate::cells::{Cell, Reader};
use crate::change::{Op, Set};
use crate::mapping::Shape;
use crate::resp::Reply;
use crate::schema::Table;
use destage_core::{Access, UnitId};

impl Engine {
    /// Performs the command if the short way is open; otherwise nothing has been done.
    pub(super) fn set_in_place(
        &mut self,
        session: &mut Session,
        prepared: &Prepared,
        unit: UnitId,
    ) -> bool {
        if !matches!(prepared.verb, Verb::HSet | Verb::HMSet | Verb::Set)
            || prepared.sets().len() == 0
            || prepared.shape == Shape::Plain
            || prepared.once.is_some()
            // SET ends a deadline.
            || prepared.verb == Verb::Set && self.freshness.has_expiries()
        {
            return false;
        }
        let row = self.rows.get(unit);
        let table = self.schema.table(row.table);
        if row.kind != Kind::Row
            || !table.collections.is_empty()
            || table.has_computed()
            || Self::may_violate(table, prepared)
            || table.ttl.is_some()
            || self.may_refer_to_new(table, prepared.sets().map(|(column, _)| column))
        {
            return false;
        }
        let mut patches = std::mem::take(&mut self.scratch.patches);
        patches.clear();
        let all_found = find_patches(row.cells, prepared, &mut patches);
        if all_found {
            let id = table.id;
            let writer = self.log.begin();
            writer.begin(id, Op::Update, self.rows.key(unit));
            for (column, value) in prepared.sets() {
                writer.set(column, Set::To(Cell::Value(value)));
            }
        }
        let open = all_found && self.log.fits();
        if open && self.derived.is_on() {
            let before: Box<[u8]> = self.rows.get(unit).cells.into();
            let mut after = before.clone();
            patch(&mut after, &patches, prepared);
            self.note_derived_row(prepared.key_list[0].0, &before, &after);
        }
        if open {
            self.rows.tracking_mut().begin_command();
            self.rows.tracking_mut().name_own(session.tracker, prepared.names());
            self.rows.tracking_mut().begin_own(session.tracker);
            let cells = self.rows.cells_mut(unit);
            patch(cells, &patches, prepared);
            self.rows.tracking_mut().end_own();
            let size = self.rows.bytes(unit);
            self.append_group(session, &[(unit, size)], Access::Back);
            let mut reply = Reply::new(&mut session.out, session.protocol);
            match prepared.verb {
                Verb::HMSet | Verb::Set => reply.ok(),
                _ => reply.integer(0),
            }
        }
        self.scratch.patches = patches;
        open
    }

    /// Whether a constraint that is judged here looks at what the command sets.
    fn may_violate(table: &Table, prepared: &Prepared) -> bool {
        let is_checked = |(column, _): (usize, &[u8])| table.columns[column].checked;
        let refers = |(column, _): (usize, &[u8])| {
            table.foreign_keys.iter().any(|key| key.columns.contains(&column))
        };
        let is_unique = |(column, _): (usize, &[u8])| {
            table.uniques.iter().any(|unique| unique.columns.contains(&column))
        };
        table.checks_here().next().is_some() && prepared.sets().any(is_checked)
            || table.asks_foreign_keys && prepared.sets().any(refers)
            || table.asks_unique && prepared.sets().any(is_unique)
    }
}

/// Puts the new values in their places.
fn patch(cells: &mut [u8], patches: &[usize], prepared: &Prepared) {
    for (&start, (_, value)) in patches.iter().zip(prepared.sets()) {
        cells[start..start + value.len()].copy_from_slice(value);
    }
}

/// Where each new value goes; false if one of them is not as long as the old value.
fn find_patches(cells: &[u8], prepared: &Prepared, patches: &mut Vec<usize>) -> bool {
    let sets = prepared.sets();
    patches.resize(sets.len(), usize::MAX);
    let mut reader = Reader::new(cells);
    let mut left = sets.len();
    let mut column = 0;
    while left > 0 {
        let Some(cell) = reader.cell() else { return false };
        if let Some(index) = prepared.sets().position(|(set, _)| set == column) {
            let value = prepared.sets().nth(index).map_or(&[][..], |(_, value)| value);
            match cell {
                Cell::Value(old) if old.len() == value.len() => {
                    patches[index] = cells.len() - reader.rest().len() - old.len();
                }
                _ => return false,
            }
            left -= 1;
        }
        column += 1;
    }
    true
}
