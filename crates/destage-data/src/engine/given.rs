//! Numbers of the origin's sequences, which new rows are given here.
//!
//! They are reserved as DESTAGE NEXTID reserves keys, a block at a time and ahead of need, so that a new row does not wait
//! for the origin. A number is given to one row only, and is a part of its write. What is left of a block at a crash is
//! lost, as what PostgreSQL's CACHE holds is.

use super::session::{Job, Session, Waiting};
use super::{Engine, Io, PREFETCH_CLIENT};
use crate::defaults::Formula;
use crate::schema::{Schema, TableId};
use crate::value::ColumnType;
use destage_core::{ClientId, Lsn, RequestId, Span, Time};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

/// A column that a sequence numbers.
pub(super) type Numbered = (TableId, usize);
/// What the new rows of one command, or of one session under leases, are given: the same where it is performed again.
pub(super) type Given = BTreeMap<(TableId, usize, Box<[u8]>), i64>;

/// Most numbers of a block.
const BLOCK_MAX: i64 = 1_000;
/// A block takes a small part of what the column can hold at all.
const BLOCKS_MIN: i64 = 1_000_000;
/// Fewest numbers of a block, however small the column is.
const BLOCK_MIN: i64 = 10;
/// So many blocks at once for a command that has used up a whole one.
const BLOCKS_FOR_MANY: u32 = 10;
/// How long after a failure numbers are asked for again that nobody waits for.
pub(super) const ASK_AGAIN: Span = Span::from_secs(1);

/// The numbers at hand.
#[derive(Debug, Default)]
pub(super) struct Numbers(BTreeMap<Numbered, Pool>);

/// Those of one column.
#[derive(Debug)]
pub(super) struct Pool {
    /// Reserved, and given to no row.
    left: RefCell<VecDeque<i64>>,
    block: u32,
    /// The block that was asked for.
    asked: Option<RequestId>,
    /// The clients' requests that wait for it.
    waiting: Vec<RequestId>,
    /// When the next one may be asked for that nobody waits for.
    not_before: Time,
}

impl Pool {
    fn new(ty: &ColumnType) -> Self {
        let ColumnType::Int { max, .. } = ty else {
            unreachable!("only whole numbers are numbered here")
        };
        Self {
            left: RefCell::default(),
            block: (max / BLOCKS_MIN).clamp(BLOCK_MIN, BLOCK_MAX) as u32,
            asked: None,
            waiting: Vec::new(),
            not_before: Time::ZERO,
        }
    }

    /// How many numbers a question asks for.
    pub(super) fn block(&self) -> u32 {
        self.block
    }

    /// The block has come, or not; then the next one may be asked for from `not_before` on. Returns the requests that waited.
    pub(super) fn answered(
        &mut self,
        numbers: Option<Vec<i64>>,
        not_before: Time,
    ) -> Vec<RequestId> {
        self.asked = None;
        match numbers {
            Some(numbers) => self.left.borrow_mut().extend(numbers),
            None => self.not_before = not_before,
        }
        std::mem::take(&mut self.waiting)
    }

    fn is_low(&self) -> bool {
        self.left.borrow().len() < self.block as usize / 2
    }

    /// When a block is to be asked for ahead of need.
    fn due(&self) -> Option<Time> {
        (self.asked.is_none() && self.is_low()).then_some(self.not_before)
    }
}

impl Numbers {
    pub(super) fn new(schema: &Schema) -> Self {
        let given = schema.tables.iter().flat_map(|table| {
            let numbered =
                table.given_here.iter().filter(|(_, formula)| *formula == Formula::Number);
            numbered.map(|&(column, _)| ((table.id, column), Pool::new(&table.columns[column].ty)))
        });
        Self(given.collect())
    }

    /// A number that no other row is given; `None` if there is none at hand.
    pub(super) fn take(&self, of: Numbered) -> Option<i64> {
        self.0.get(&of)?.left.borrow_mut().pop_front()
    }

    /// When more are to be asked for.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.0.values().filter_map(Pool::due).min()
    }
}

impl Engine {
    /// Asks for numbers before they are needed.
    pub(super) fn reserve_numbers(&mut self) {
        let pools = &mut self.freshness.fresh_mut().numbers_mut().0;
        for (&(table, column), pool) in pools {
            if pool.due().is_some_and(|due| due <= self.now) {
                let request = self.asking.request_id(PREFETCH_CLIENT);
                pool.asked = Some(request);
                let count = pool.block;
                self.jobs.push(Io::NextKeys { request: request.0, table, column, count });
            }
        }
    }

    /// A command waits for numbers, and is performed once more when they are here.
    pub(super) fn wait_for_numbers(
        &mut self,
        client: ClientId,
        session: &mut Session,
        of: Numbered,
        raw: &[u8],
    ) {
        let waits = self.asking.request_id(client.0);
        let (table, column) = of;
        let pools = &mut self.freshness.fresh_mut().numbers_mut().0;
        let pool = pools.get_mut(&of).expect("a column that is numbered here has a pool");
        pool.waiting.push(waits);
        if pool.asked.is_none() {
            let request = self.asking.request_id(PREFETCH_CLIENT);
            pool.asked = Some(request);
            let is_large = session.numbers.len() >= pool.block as usize;
            let count = pool.block * if is_large { BLOCKS_FOR_MANY } else { 1 };
            self.jobs.push(Io::NextKeys { request: request.0, table, column, count });
        }
        session.waiting = Some(Waiting::Numbers { request: waits, raw: raw.into() });
    }

    pub(super) fn asked_pool(&mut self, request: RequestId) -> Option<(Numbered, &mut Pool)> {
        let pools = self.freshness.fresh_mut().numbers_mut().0.iter_mut();
        let mut asked = pools.filter(|(_, pool)| pool.asked == Some(request));
        asked.next().map(|(&of, pool)| (of, pool))
    }

    /// Whether a client waits for the numbers of this question.
    pub(super) fn awaits_numbers(&mut self, request: RequestId) -> bool {
        let Some((_, pool)) = self.asked_pool(request) else { return false };
        let waiting = pool.waiting.clone();
        waiting.into_iter().any(|waits| self.sessions.waiting(waits).is_some())
    }

    /// A question for numbers is not asked again, since nobody waits for them any more.
    pub(super) fn forget_numbers(&mut self, request: RequestId) {
        let not_before = self.now + ASK_AGAIN;
        if let Some((_, pool)) = self.asked_pool(request) {
            (pool.asked, pool.not_before) = (None, not_before);
            pool.waiting.clear();
        }
    }

    /// Asks for keys to be handed out; what their client waits for.
    pub(super) fn ask_next_keys(
        &mut self,
        client: ClientId,
        table: TableId,
        column: usize,
        count: u32,
    ) -> Waiting {
        let request = self.asking.request_id(client.0);
        let (newest, decided) = (Lsn(self.core.next_lsn().0 - 1), self.core.decided());
        self.absent.expect_keys(table, newest);
        self.jobs.push(Io::NextKeys { request: request.0, table, column, count });
        Waiting::Job { request, job: Job::NextKeys { table, column, count, decided } }
    }
}
