//! Rows that end: not seen from the time on that their column holds ([`crate::ttl`]), and deleted at the origin later.
//!
//! What is seen is decided on by the cached row and the engine's time alone, so nothing has to happen at that moment. To
//! delete them, the origin is asked for the keys of rows that have ended, page by page, and each becomes a write group that
//! deletes the row if it still has ended when the group arrives there ([`Op::End`]). Such a group changes no cached row:
//! that one is not seen any more, or was prolonged by another program and stays. A command that writes a row which has ended
//! deletes it in the same way, and makes a new one.
//!
//! Another program may have prolonged a row since it was read. So the copy of a row is dropped when its end comes, and what
//! is fetched then counts for a while ([`LOOK_AGAIN_AFTER`]).

use super::command::Verb;
use super::deadline::{Change, milliseconds, time_of, ttl_reply};
use super::measured::Way;
use super::perform::Context;
use super::prepared::{Prepared, Trouble};
use super::rows::Kind;
use super::session::Session;
use super::txn::Update;
use super::undeleted::Undeleted;
use super::{Engine, Io};
use crate::cells::{Cell, Reader};
use crate::change::{Op, Set};
use crate::origins::{EndedAsk, EndedKeys, OriginError};
use crate::resp::{Reply, ReplyError};
use crate::schema::{Schema, Table, TableId};
use crate::ttl::Ttl;
use destage_core::{Access, Lsn, Mode, Span, Time, UnitId};
use destage_replicas_redis::Reach;
use destage_runtime::status::EndedReport;

/// Keys that are asked for at once.
pub(super) const PAGE: usize = 500;
/// A round over all tables begins so long after the one before.
pub(super) const ROUND_EVERY: Span = Span::from_secs(10);
/// While the origin refuses deletions, a round takes twice as long as the one before, up to 11 minutes.
const REFUSED_ROUNDS_MAX: u32 = 6;
/// What cannot go on now is looked at again after so long.
const AGAIN_AFTER: Span = Span::from_secs(1);
/// Only what has ended so long ago is deleted, by the clock here and by the origin's.
const MARGIN_MS: i64 = 1_000;
/// So many writes may wait for the origin before the next page is asked for.
const BACKLOG_MAX: u64 = 5_000;
/// What has ended is fetched again after so long, if anybody asks for it.
pub(super) const LOOK_AGAIN_AFTER: Span = ROUND_EVERY;
/// Clocks that differ by more are told of.
const SKEW_MS_MAX: i64 = 1_000;
/// A write waits for so long for the origin's clock to agree that a row has ended; if it has to wait longer, it is an error.
const AGREES_WITHIN_MS_MAX: i64 = SKEW_MS_MAX;
/// After a question that took longer than this,
const QUICK: Span = Span::from_millis(250);
/// nothing is asked for so many times as long: without an index the origin looks through the whole table for each answer.
const REST: u64 = 4;
/// An answer that was held up, as by an origin that was away, says little.
const REST_MAX: Span = Span::from_secs(40);

/// By how many milliseconds this clock is ahead of the origin's; negative: behind. The origin's was read at some time between
/// the two times of this one, in milliseconds. What was known before holds as far as it fits, so a slow answer says little.
pub(crate) fn ahead_ms([asked, told]: [i64; 2], origin_ms: i64, known_ms: i64) -> i64 {
    known_ms.max(asked.saturating_sub(origin_ms)).min(told.saturating_sub(origin_ms))
}

/// Looking for rows that have ended.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    /// The tables whose rows end, and which of them it is at.
    tables: Vec<TableId>,
    at: usize,
    /// Keys up to here were looked at.
    after: Option<Box<[u8]>>,
    /// The question under way, and when it was asked.
    asked: Option<(u64, Time)>,
    questions: u64,
    due: Time,
    /// The newest group that ends a row.
    last: Lsn,
    is_stopped: bool,
    is_skew_told: bool,
    /// By how much this clock was ahead of the origin's when they were compared last; negative: behind.
    skew_ms: i64,
    /// Rows found in this round that cannot be deleted; and in the round before.
    keeping: u64,
    kept: u64,
    ended: u64,
    refused: u64,
    /// The origin refused some of what the round before found, or this one; and how many rounds in a row it did.
    is_refused: bool,
    refused_rounds: u32,
    undeleted: Undeleted,
    /// When the first write asks again that waits for the origin's clock.
    agrees_at: Option<Time>,
}

impl Sweep {
    pub(super) fn new(schema: &Schema) -> Self {
        let ends = schema.tables.iter().filter(|table| table.ttl.is_some());
        Self { tables: ends.map(|table| table.id).collect(), ..Self::default() }
    }

    /// What has ended by this time, in milliseconds, has ended by the origin's clock, too, as far as is known.
    pub(super) fn agreed_ms(&self, now: Time) -> i64 {
        milliseconds(now).saturating_sub(self.skew_ms.max(0))
    }

    /// When the next question is asked at the earliest.
    fn next_question(&self) -> Option<Time> {
        let is_idle = self.tables.is_empty() || self.is_stopped || self.asked.is_some();
        (!is_idle).then_some(self.due)
    }

    /// When there is something to do at the latest.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.next_question().into_iter().chain(self.agrees_at).min()
    }

    /// A write asks again then.
    pub(super) fn wait_until(&mut self, at: Time) {
        self.agrees_at = Some(self.agrees_at.map_or(at, |other| other.min(at)));
    }

    /// Whether writes ask again now.
    pub(super) fn agrees(&mut self, now: Time) -> bool {
        self.agrees_at.take_if(|at| *at <= now).is_some()
    }

    /// The origin did not let so many rows go. Each costs it a failed transaction, so they are tried again less and less often.
    pub(super) fn refused(&mut self, now: Time, rows: u64) {
        if rows > 0 {
            self.refused += rows;
            self.is_refused = true;
            let rest = Span::from_nanos(ROUND_EVERY.as_nanos() << self.refused_rounds);
            self.due = self.due.max(now + rest);
        }
    }

    /// The first question of a round is asked.
    fn begin_round(&mut self, now: Time) {
        let is_refused = std::mem::take(&mut self.is_refused);
        self.undeleted.begin_round(is_refused, milliseconds(now) - MARGIN_MS);
        self.refused_rounds =
            if is_refused { (self.refused_rounds + 1).min(REFUSED_ROUNDS_MAX) } else { 0 };
    }

    fn report(&self) -> Option<EndedReport> {
        (!self.tables.is_empty()).then(|| EndedReport {
            tables: self.tables.len() as u64,
            ended_total: self.ended,
            kept: self.kept.max(self.keeping),
            refused_total: self.refused,
            undeleted: self.undeleted.count(),
            clock_ahead_seconds: self.skew_ms as f64 / 1_000.0,
        })
    }

    /// The table is looked through: on to the next one; true if that was the last of a round.
    fn next_table(&mut self) -> bool {
        self.after = None;
        self.at = (self.at + 1) % self.tables.len();
        if self.at == 0 {
            self.kept = std::mem::take(&mut self.keeping);
        }
        self.at == 0
    }
}

/// Whether a row has ended.
pub(super) fn has_ended(schema: &Schema, table: TableId, row: &[u8], now: Time) -> bool {
    let ttl = schema.tables.get(usize::from(table.0)).and_then(|table| table.ttl.as_ref());
    let end = ttl.and_then(|ttl| ttl.end_of_row(row));
    end.is_some_and(|end| end <= milliseconds(now))
}

impl Context<'_> {
    /// Changes columns of a row; in the place of one that has ended a new one is made.
    ///
    /// # Errors
    /// Rows of other tables may refer to the one that has ended, so that the origin may not let it go; or it has not ended by
    /// the origin's clock, and will not soon.
    pub(super) fn put(
        &mut self,
        table: &Table,
        unit: UnitId,
        sets: Vec<(usize, Update)>,
    ) -> Result<(), Trouble> {
        if let Some(ttl) = &table.ttl
            && self.row(unit).is_none()
            && let Some(row) = self.txn.row(self.rows, unit)
        {
            if !table.referenced_by.is_empty() {
                return Err(Trouble::Error(ReplyError::err(format!(
                    "this row of {} has ended, and rows of other tables may refer to it: nothing was done; a new one can be \
                     made once the origin has let the old one go",
                    table.name
                ))));
            }
            let early_ms = ttl.end_of_row(row).map_or(0, |end| end.saturating_sub(self.agreed_ms));
            if (1..=AGREES_WITHIN_MS_MAX).contains(&early_ms) {
                let at = self.now + Span::from_millis(early_ms.unsigned_abs());
                return Err(Trouble::Early(at));
            }
            if early_ms > 0 {
                return Err(Trouble::Error(ReplyError::err(format!(
                    "this row of {} has ended by Destage's clock, but not by the origin's, which is {} ms behind: nothing was \
                     done; a new one can be made once both clocks agree",
                    table.name,
                    milliseconds(self.now) - self.agreed_ms
                ))));
            }
            let cutoff = ttl.cutoff(self.agreed_ms);
            let cutoff = cutoff.map_err(|why| ReplyError::err(format!("{}: {why}", table.name)))?;
            self.txn.end(table.id, unit, (ttl.column, Update::To(cutoff)));
        }
        self.change(table, unit, sets)
    }

    /// What a change of a row's end sets; nothing where that leaves it as it is.
    ///
    /// # Errors
    /// The column holds no such time, or always holds one.
    pub(super) fn end_set(
        &self,
        table: &Table,
        unit: UnitId,
        change: Change,
    ) -> Result<Option<(usize, Update)>, Trouble> {
        let Some(ttl) = &table.ttl else { return Ok(None) };
        let column = &table.columns[ttl.column];
        if let Some(at) = change.deadline(self.now) {
            let value = ttl
                .value(milliseconds(at))
                .map_err(|why| ReplyError::err(format!("{}.{}: {why}", table.name, column.name)))?;
            return Ok(Some((ttl.column, Update::To(value))));
        }
        let Some(row) = self.row(unit).filter(|_| change == Change::Never) else { return Ok(None) };
        match Reader::new(row).nth(ttl.column) {
            Some(Cell::Null) | None => Ok(None),
            // It lasts with what it holds, such as 0.
            Some(Cell::Value(value)) if column.not_null && ttl.end_of(value).is_none() => Ok(None),
            Some(_) if column.not_null => Err(Trouble::Error(ReplyError::err(format!(
                "{}.{} is NOT NULL, so each row ends: give a time, or KEEPTTL",
                table.name, column.name
            )))),
            Some(_) => Ok(Some((ttl.column, Update::Null))),
        }
    }

    /// Performs a command on the end of a row; its reply is appended.
    pub(super) fn perform_end(
        &mut self,
        table: &Table,
        ttl: &Ttl,
        unit: UnitId,
        prepared: &Prepared,
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let is_there = self.row(unit).is_some();
        let old = self.cell(unit, ttl.column)?.and_then(|value| ttl.end_of(value)).map(time_of);
        let change = match prepared.verb {
            Verb::Expire => {
                let new = prepared.expire.change.deadline(self.now);
                let is_done = new.is_some_and(|new| prepared.expire.conditions.allow(old, new));
                (is_there && is_done).then_some(prepared.expire.change)
            }
            Verb::Persist => (is_there && old.is_some()).then_some(Change::Never),
            verb => {
                reply.integer(match (is_there, old) {
                    (false, _) => -2,
                    (true, None) => -1,
                    (true, Some(at)) => ttl_reply(verb, at, self.now),
                });
                return Ok(());
            }
        };
        if let Some(change) = change
            && let Some(set) = self.end_set(table, unit, change)?
        {
            self.put(table, unit, vec![set])?;
        }
        reply.integer(i64::from(change.is_some()));
        Ok(())
    }
}

impl Engine {
    /// Whether a row is cached that has ended.
    pub(super) fn is_known_to_have_ended(&self, table: &Table, key: &[u8]) -> bool {
        let unit = self.rows.find(table.id, key).filter(|_| table.ttl.is_some());
        unit.is_some_and(|unit| self.rows.get(unit).kind == Kind::Row && !self.is_seen(table, unit))
    }

    /// Whether the cache shows a row there.
    fn is_seen(&self, table: &Table, unit: UnitId) -> bool {
        let row = self.rows.get(unit);
        row.kind == Kind::Row && !has_ended(&self.schema, table.id, row.cells, self.now)
    }

    /// No further rows are looked for: the server ends.
    pub(crate) fn stop_ending(&mut self) {
        self.freshness.sweep_mut().is_stopped = true;
    }

    /// Adds what is to be seen of rows that end.
    pub(super) fn report_ended(&self) -> Option<EndedReport> {
        self.freshness.sweep().report()
    }

    /// Whether groups may be written of which no client is in need: nothing is at a limit, and the origin takes them.
    fn may_end(&self) -> bool {
        let (status, limits) = (self.core.status(), &self.core.policy().limits);
        // The mode follows only when the core is told of the time.
        let has_room = status.dirty_bytes + status.pinned_bytes < limits.dirty_bytes_low
            && status.journal_bytes < limits.journal_bytes_max / 4 * 3;
        has_room
            && status.mode == Mode::Normal
            && !status.origin_down
            && !status.paused
            && !self.measured.is_failing()
            && !self.measured.is_journal_full()
            && self.measured.reach() == Reach::Whole
            && !self.core.is_halted()
    }

    /// Asks the origin for the next rows that have ended, if it is time to.
    pub(super) fn look_for_ended(&mut self) {
        if self.freshness.sweep().next_question().is_none_or(|due| due > self.now) {
            return;
        }
        // What was found last is to be gone before it is looked for again.
        let is_first = self.freshness.sweep().at == 0 && self.freshness.sweep().after.is_none();
        let is_early = is_first && self.core.decided() < self.freshness.sweep().last;
        if is_early || self.core.undecided() > BACKLOG_MAX || !self.may_end() {
            self.freshness.sweep_mut().due = self.now + AGAIN_AFTER;
            return;
        }
        if is_first {
            let now = self.now;
            self.freshness.sweep_mut().begin_round(now);
        }
        self.freshness.sweep_mut().questions += 1;
        self.freshness.sweep_mut().asked = Some((self.freshness.sweep_mut().questions, self.now));
        let sweep = self.freshness.sweep();
        let ask = EndedAsk {
            table: sweep.tables[sweep.at],
            after: sweep.after.clone(),
            cutoff_ms: sweep.undeleted.cutoff(milliseconds(self.now) - MARGIN_MS),
            margin_ms: MARGIN_MS,
            limit: PAGE,
        };
        self.jobs.push(Io::Ended { request: sweep.questions, ask });
    }

    /// Keys of rows that have ended came, or not.
    pub(super) fn take_ended(&mut self, request: u64, result: Result<EndedKeys, OriginError>) {
        let asked = self.freshness.sweep_mut().asked.take_if(|(asked, _)| *asked == request);
        let Some((_, asked_at)) = asked else { return };
        let took = self.now.since(asked_at);
        let rest = Span::from_nanos(took.as_nanos().saturating_mul(REST)).min(REST_MAX);
        let rested = if took > QUICK { self.now + rest } else { self.now };
        let schema = self.schema.clone();
        let table = schema.table(self.freshness.sweep().tables[self.freshness.sweep().at]);
        match result {
            Err(error) => {
                self.measured.read_failed(self.now, &table.name, &error);
                // Another table may be asked for meanwhile.
                self.freshness.sweep_mut().next_table();
                self.freshness.sweep_mut().due = self.now + ROUND_EVERY;
            }
            Ok(page) => {
                self.measured.origin_works(Way::Read);
                let times = [asked_at, self.now].map(milliseconds);
                let known_ms = self.freshness.sweep().skew_ms;
                self.clock_is_ahead(ahead_ms(times, page.clock_ms, known_ms));
                let is_last = page.keys.len() < PAGE;
                let is_through = self.end_rows(table, &page);
                self.tell_undeleted(table);
                self.freshness.sweep_mut().due = match () {
                    () if !is_through => self.now + AGAIN_AFTER,
                    () if is_last && self.freshness.sweep_mut().next_table() => {
                        self.now + ROUND_EVERY
                    }
                    () => self.now,
                };
            }
        }
        let sweep = self.freshness.sweep_mut();
        sweep.due = sweep.due.max(rested);
    }

    /// Tells of rows that the origin still has although it was told to delete them, once until they are gone.
    fn tell_undeleted(&mut self, table: &Table) {
        let undeleted = &mut self.freshness.sweep_mut().undeleted;
        if undeleted.is_to_tell(table.id) {
            tracing::error!(
                table = table.name,
                "rows that have ended are still there although their deletion was carried out: a trigger or a rule swallows it, \
                 or row-level security hides them from it. Have that let deletions by Destage's user through. They are tried \
                 again less and less often"
            );
        }
    }

    /// Writes a group for each of these rows that can be deleted; false if it has to stop before the last.
    fn end_rows(&mut self, table: &Table, page: &EndedKeys) -> bool {
        let Some(ttl) = &table.ttl else { return true };
        // By this clock, which may have been behind when the origin was asked, they have ended, too.
        let cutoff_ms = page.cutoff_ms.min(milliseconds(self.now));
        let Ok(cutoff) = ttl.cutoff(cutoff_ms) else { return true };
        for (key, is_referenced) in &page.keys {
            let unit = self.rows.find(table.id, key);
            // What its newest writes make of the row is not known to the origin yet.
            let is_dirty = unit.is_some_and(|unit| self.core.is_dirty(unit));
            // Another program has made it end earlier: clients are to see that before it goes.
            let is_stale = unit.is_some_and(|unit| self.is_seen(table, unit));
            if *is_referenced {
                self.freshness.sweep_mut().keeping += 1;
            } else if !is_dirty {
                if !self.may_end() {
                    return false;
                }
                let is_sent =
                    !is_stale && self.freshness.sweep_mut().undeleted.found(table.id, key);
                if is_sent {
                    self.end_row(table.id, key, (ttl.column, &cutoff));
                }
                if let Some(unit) = unit {
                    self.invalidate(unit);
                }
            }
            self.freshness.sweep_mut().after = Some(key.clone());
        }
        true
    }

    fn end_row(&mut self, table: TableId, key: &[u8], (column, cutoff): (usize, &[u8])) {
        let writer = self.log.begin();
        writer.begin(table, Op::End, key);
        writer.set(column, Set::To(Cell::Value(cutoff)));
        if self.log.check().is_err() {
            return;
        }
        let mut session = Session::default();
        if !self.watchers.is_empty() {
            self.watchers.change(&(table, key.into()));
            self.note_table_watched(table);
        }
        self.append_group(&mut session, &[], Access::Back);
        self.freshness.sweep_mut().last = session.last_write;
        self.freshness.sweep_mut().ended += 1;
    }

    /// The clocks were compared: this one is ahead of the origin's by so much; negative: behind. Tells of it if it is much.
    pub(crate) fn clock_is_ahead(&mut self, ahead_ms: i64) {
        let sweep = self.freshness.sweep_mut();
        sweep.skew_ms = ahead_ms;
        let is_much = ahead_ms.saturating_abs() > SKEW_MS_MAX;
        if is_much && !sweep.is_skew_told {
            tracing::warn!(
                ahead_ms,
                "the clock of this process and the origin's differ by so much (negative: the origin's is ahead). Rows end by \
                 this process' clock, and are deleted at the origin once both say so: set both right, as by NTP, and restart"
            );
        }
        sweep.is_skew_told = is_much;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_answer_makes_no_clock_wrong() {
        assert_eq!(ahead_ms([10_000, 15_000], 12_000, 0), 0);
        assert_eq!(ahead_ms([10_000, 15_000], 4_000, 0), 6_000);
        assert_eq!(ahead_ms([10_000, 15_000], 70_000, 0), -55_000);
        assert_eq!(ahead_ms([i64::MAX, i64::MAX], i64::MIN, 0), i64::MAX);
        // Nor one right that is known to be wrong.
        assert_eq!(ahead_ms([10_000, 15_000], 12_000, 3_000), 3_000);
        assert_eq!(ahead_ms([10_000, 10_001], 10_000, 3_000), 1);
    }
}
