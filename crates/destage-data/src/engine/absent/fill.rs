//! Reading the keys of tables from the origin, a page at a time, and taking in what is made here meanwhile.

use super::super::asking::PREFETCH_CLIENT;
use super::super::measured::Way;
use super::super::unknown::Covers;
use super::super::{Engine, Groups, Io, overlay};
use super::{
    AGAIN_AFTER, Absent, Asked, Filling, PAGE, PAGE_MAX, QUICK, REFILL_EVERY, UNDECIDED_MAX,
};
use crate::cells::{Cell, Reader};
use crate::change::Op;
use crate::origins::{Keys, OriginError, Watermarks};
use crate::schema::{Table, TableId};
use destage_core::{Fault, Lsn, Time};
use std::collections::BTreeSet;

/// What stands in the way of a set that is to be begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    decided: Lsn,
    undecided: u64,
    /// Parked groups are on their way to the origin. It may take them after the page that would show their rows.
    is_unparking: bool,
}

/// Nothing does.
#[cfg(test)]
pub(super) const READY: Standing =
    Standing { decided: Lsn(u64::MAX), undecided: 0, is_unparking: false };

impl Absent {
    /// When the next page is asked for at the earliest.
    pub(in crate::engine) fn next_timeout(&self) -> Option<Time> {
        (self.asked.is_none() && !self.pending.is_empty()).then_some(self.due)
    }

    /// The table whose keys are read next, if it is time to.
    pub(super) fn next(&mut self, now: Time, standing: Standing) -> Option<TableId> {
        if self.next_timeout().is_none_or(|due| due > now) {
            return None;
        }
        let next = self.pending.iter().copied().find(|table| {
            let known = &self.tables[usize::from(table.0)];
            let may_begin = known.begun.is_none_or(|begun| now >= begun + REFILL_EVERY)
                && known.not_before <= standing.decided
                && standing.undecided <= UNDECIDED_MAX
                && !standing.is_unparking;
            !known.is_deaf && (known.filling.is_some() || may_begin)
        });
        if next.is_none() {
            self.due = now + AGAIN_AFTER;
        }
        next
    }

    /// Begins a set, unless one is begun already; whether it was.
    fn begin(&mut self, now: Time, table: TableId) -> bool {
        let known = &mut self.tables[usize::from(table.0)];
        let is_new = known.filling.is_none();
        if is_new {
            let held = known.whole.as_ref().map_or(0, |keys| keys.len());
            known.filling = Some(Filling::new(held + held / 4));
            (known.begun, known.deleted) = (Some(now), 0);
        }
        is_new
    }

    /// Takes in a page. A key that the set in use lacks, though it was whole, is returned as a sign of another program.
    fn take(&mut self, now: Time, asked: Asked, page: &[Box<[u8]>]) -> bool {
        let Some(known) = self.known_mut(asked.table) else { return false };
        let Some(filling) = known.filling.as_mut().filter(|_| known.epoch == asked.epoch) else {
            return false;
        };
        let whole = known.whole.as_ref();
        let is_foreign = page.iter().any(|key| {
            known.doubted.contains(key) || whole.is_some_and(|keys| !keys.may_hold(key))
        });
        let grew = page.iter().fold(false, |grew, key| filling.keys.insert(key) | grew);
        if let Some(last) = page.last() {
            filling.after = Some(last.clone());
        }
        if page.len() < asked.limit {
            known.whole = known.filling.take().map(|filling| filling.keys);
            known.begun = Some(now);
            known.doubted.clear();
            self.pending.remove(&asked.table);
            self.page = PAGE;
        }
        if grew {
            self.bound(asked.table);
        }
        is_foreign
    }

    /// Raw SQL may make any of these rows, until the origin has decided everything up to `lsn`.
    pub(in crate::engine) fn note_covered(&mut self, covers: &Covers, lsn: Lsn) {
        for (table, key) in &covers.rows {
            self.add(*table, key);
        }
        covers.tables.iter().for_each(|&table| self.forget(table, lsn));
    }
}

impl Engine {
    /// Notes the rows that a group makes and deletes, before anybody is told of it.
    pub(in crate::engine) fn note_keys(&mut self, bytes: &[u8]) {
        if self.absent.is_off() || self.absent.unsafe_forgets {
            return;
        }
        for change in overlay::changes(&self.schema, bytes) {
            match change.op {
                Op::Insert => self.absent.add(change.table, change.key),
                op if op.removes() => self.absent.deleted(change.table),
                _ => {}
            }
        }
    }

    /// The origin is given these parked groups after all.
    pub(in crate::engine) fn note_unparked_keys(&mut self, groups: &Groups) {
        for group in groups.iter() {
            self.note_keys(group.bytes);
            let covers = self.covered(group.bytes);
            self.absent.note_covered(&covers, Lsn::ZERO);
        }
    }

    /// Rows of these tables may have come to be, until the origin has decided everything up to `lsn`.
    pub(in crate::engine) fn forget_keys(&mut self, tables: &[TableId], lsn: Lsn) {
        tables.iter().for_each(|&table| self.absent.forget(table, lsn));
    }

    /// The origin has rejected a group: perhaps another program has made a row that it inserts.
    pub(in crate::engine) fn doubt_keys(&mut self, lsn: Lsn) {
        if self.absent.is_off() {
            return;
        }
        let Some(group) = self.overlay.get(lsn) else { return };
        // A row that the group deletes as well was there before.
        let mut deleted = BTreeSet::new();
        for change in overlay::changes(&self.schema, &group.bytes) {
            if change.op.removes() {
                deleted.insert((change.table, change.key));
            } else if change.op == Op::Insert && !deleted.contains(&(change.table, change.key)) {
                self.absent.doubt(change.table, change.key);
            }
        }
    }

    /// Asks the origin for the next keys, if it is time to.
    pub(in crate::engine) fn read_keys(&mut self) {
        let standing = Standing {
            decided: self.core.decided(),
            undecided: self.core.undecided(),
            is_unparking: self.decisions.is_sent(),
        };
        let Some(table) = self.absent.next(self.now, standing) else { return };
        if self.absent.begin(self.now, table) {
            self.take_in_undecided(table);
        }
        let request = self.asking.request_id(PREFETCH_CLIENT).0;
        self.undecided.structural_mut().pin(request);
        self.domains.ask(request);
        let known = &self.absent.tables[usize::from(table.0)];
        let after = known.filling.as_ref().and_then(|filling| filling.after.clone());
        let (epoch, at, limit) = (known.epoch, self.now, self.absent.page);
        self.absent.asked = Some(Asked { request, table, epoch, at, limit });
        self.jobs.push(Io::Scan { request, table, after, limit });
    }

    /// Takes the rows that undecided groups make into a set that was just begun: the pages need not show them.
    fn take_in_undecided(&mut self, table: TableId) {
        let declared: Vec<_> =
            self.overlay.undecided().flat_map(|bytes| self.covered(bytes).rows).collect();
        let filling = self.absent.tables[usize::from(table.0)].filling.as_mut();
        let Some(Filling { keys, .. }) = filling else { return };
        for (_, key) in declared.iter().filter(|(of, _)| *of == table) {
            keys.insert(key);
        }
        for bytes in self.overlay.undecided() {
            for change in overlay::changes(&self.schema, bytes) {
                if change.op == Op::Insert && change.table == table {
                    keys.insert(change.key);
                }
            }
        }
    }

    /// A page of keys came, or failed; what came is returned if somebody else has asked for it.
    pub(in crate::engine) fn take_keys(
        &mut self,
        request: u64,
        result: Result<(Keys, Watermarks), OriginError>,
    ) -> Option<Result<(Keys, Watermarks), OriginError>> {
        let asked = self.absent.asked.take_if(|asked| asked.request == request);
        let Some(asked) = asked else { return Some(result) };
        let schema = self.schema.clone();
        let table = schema.table(asked.table);
        let took = self.now.since(asked.at);
        // So another reader has a turn, and a busy origin more than that.
        self.absent.due = self.now + took;
        match result {
            Err(error) => {
                self.domains.unask(request);
                self.measured.read_failed(self.now, &table.name, &error);
                self.absent.due = self.now + AGAIN_AFTER;
                if error.fault == Fault::Denied {
                    let why = format!("the origin refuses its keys: {}", error.message);
                    self.absent.turn_off(asked.table, why);
                }
            }
            Ok((page, watermarks)) => {
                if took > QUICK {
                    self.absent.page = (self.absent.page * 4).min(PAGE_MAX);
                }
                self.measured.origin_works(Way::Read);
                if self.seen_page(request, &watermarks).is_some() {
                    self.install_keys(table, asked, &page);
                }
            }
        }
        self.undecided.structural_mut().unpin(request);
        None
    }

    fn install_keys(&mut self, table: &Table, asked: Asked, page: &[Box<[u8]>]) {
        if let Some(column) = other_spelling(table, page) {
            let why = format!("values of {column} have other spellings at the origin");
            return self.absent.turn_off(table.id, why);
        }
        let is_foreign = self.absent.take(self.now, asked, page);
        if is_foreign && !self.freshness.listening().tells_of(table.id) {
            tracing::warn!(
                table = table.name,
                "another program makes rows in this table: from now on the origin is asked for each row that is not cached. \
                 Say writers = \"others\" in the table's section of the settings file, or --absent-filter none"
            );
            self.absent.turn_off(table.id, "another program has made rows in it".into());
        }
    }
}

/// The first key column of which the origin holds another form than the one that commands are brought into: its keys would
/// not be found. What no command takes is asked for by none.
fn other_spelling<'t>(table: &'t Table, page: &[Box<[u8]>]) -> Option<&'t str> {
    page.iter().find_map(|key| {
        let mut cells = table.key().iter().zip(Reader::new(key));
        let found = cells.find(|(column, cell)| match cell {
            Cell::Value(value) => {
                column.ty.canonical(value).is_ok_and(|canonical| canonical != *value)
            }
            _ => false,
        });
        found.map(|(column, _)| column.name.as_str())
    })
}
