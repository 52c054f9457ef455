//! One [`Writer`] for all databases that speak SQL. A database brings its [`Dialect`] and what [`Database`] asks of it.
//!
//! The ledger's rows are changed in the same transaction as the batch. Which statements that takes is decided here; how they
//! are sent, all at once or one by one, is the database's.

use super::{Dialect, Statement, parse_watermarks, unsigned};
use crate::change::only_ends;
use crate::contract::verdict::{check_floors, fenced, landed, not_parked, outrun};
use crate::contract::{
    Applied, Claim, GroupRef, OriginError, Owner, ParkedGroup, Watermarks, WriteClaim, Writer,
};
use crate::origins::bound::Bound;
use crate::parked::PIECE_MISSING;
use crate::plan::{Plan, plan};
use crate::schema::{Schema, TableId};
use destage_core::{DomainId, Fault, Lsn};
use std::time::{Duration, Instant};

/// A value of a row: its text, or NULL.
pub(in crate::origins) type Field = Option<String>;

/// A database with tables for the ledger, on a connection that is used for nothing but writes.
pub(in crate::origins) trait Database: Send {
    /// How its SQL is written.
    const DIALECT: Dialect;

    /// What it is called in messages.
    fn place(&self) -> &str;

    /// The time that one operation may take.
    fn timeout(&self) -> Duration;

    /// Runs a statement; how many rows it met.
    ///
    /// # Errors
    /// As [`Writer`] has them.
    fn execute(&mut self, what: &str, statement: &Statement) -> Result<u64, OriginError>;

    /// The rows of a query, at most so much of them.
    ///
    /// # Errors
    /// As [`Writer`] has them.
    fn query(
        &mut self,
        what: &str,
        statement: &Statement,
        bound: Bound,
    ) -> Result<Vec<Vec<Field>>, OriginError>;

    /// Begins a transaction of statements that are sent one by one.
    ///
    /// # Errors
    /// As [`Writer`] has them.
    fn begin(&mut self, what: &str) -> Result<(), OriginError>;

    /// Makes it durable.
    ///
    /// # Errors
    /// As [`Writer`] has them; the outcome may be unknown.
    fn commit(&mut self, what: &str) -> Result<(), OriginError>;

    /// Undoes it. Where that fails, the connection is lost, and the database does it.
    fn roll_back(&mut self);

    /// Runs a whole transaction.
    ///
    /// # Errors
    /// As [`Writer`] has them, [`Fault::Rejected`] where a row was refused or not met. Nothing of it is left then, unless
    /// the outcome is unknown.
    fn transact(&mut self, transaction: &Transaction<'_>) -> Result<End, OriginError>;

    /// The most bytes of a parked group's payload that one statement stores.
    fn piece_bytes_max(&self) -> usize {
        usize::MAX
    }

    /// Applies groups of one domain from the first on, as many as the database takes at once.
    ///
    /// # Errors
    /// As for [`Self::transact`]; of what was applied nothing need be told then.
    fn apply_some(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Part, OriginError> {
        apply_first(self, schema, claim, groups, groups.len())
    }

    /// Something failed: whether it may have been for what was known of the tables, which is known better now.
    fn has_caught_up(&mut self) -> bool {
        false
    }

    /// The heartbeat is renewed.
    fn at_heartbeat(&mut self) {}
}

/// A transaction: first the watermarks, then the parked groups, then the batch.
pub(in crate::origins) struct Transaction<'a> {
    /// What it does, for messages.
    pub(in crate::origins) what: &'static str,
    /// Each meets one row, or the transaction ends as [`End::Moved`].
    pub(in crate::origins) watermarks: Vec<Statement>,
    /// Whether it is looked at how many rows those meet; always but in a control of the tests.
    pub(in crate::origins) compares: bool,
    /// Each meets one row; one that gives a group up meets one for each of its pieces.
    pub(in crate::origins) parked: Vec<Statement>,
    /// Each may meet any number of rows. None is sent to a database that stores no pieces.
    pub(in crate::origins) pieces: Vec<Statement>,
    pub(in crate::origins) schema: &'a Schema,
    pub(in crate::origins) plan: &'a Plan<'a>,
}

/// How a transaction ended. Unless it is committed, nothing of it is left.
pub(in crate::origins) enum End {
    Committed,
    /// A watermark was not where it was expected.
    Moved,
}

/// What became of the first groups of a batch.
pub(in crate::origins) struct Part {
    /// So many of them are at the origin.
    pub(in crate::origins) groups: usize,
    pub(in crate::origins) applied: Applied,
    /// The watermark was not where it was expected behind them.
    pub(in crate::origins) moved: bool,
}

/// Applies the first `count` groups in one transaction.
///
/// # Errors
/// As for [`Database::transact`].
pub(in crate::origins) fn apply_first<D: Database + ?Sized>(
    database: &mut D,
    schema: &Schema,
    claim: &WriteClaim<'_>,
    groups: &[GroupRef<'_>],
    count: usize,
) -> Result<Part, OriginError> {
    let groups = &groups[..count.min(groups.len())];
    let mut mark = claim.only()?;
    mark.upto = groups.last().map_or(mark.upto, |last| last.lsn);
    let claim = WriteClaim { marks: &[mark], ..*claim };
    let (end, applied) = apply_whole(database, schema, &claim, groups)?;
    Ok(match end {
        End::Committed => Part { groups: groups.len(), applied, moved: false },
        End::Moved => Part { groups: 0, applied: Applied::default(), moved: true },
    })
}

/// Applies all groups in one transaction.
fn apply_whole<D: Database + ?Sized>(
    database: &mut D,
    schema: &Schema,
    claim: &WriteClaim<'_>,
    groups: &[GroupRef<'_>],
) -> Result<(End, Applied), OriginError> {
    let plan = planned(schema, groups, Fault::Failed)?;
    let transaction = Transaction {
        what: "apply a batch",
        watermarks: moves::<D>(claim),
        compares: !claim.unsafe_no_watermark,
        parked: Vec::new(),
        pieces: Vec::new(),
        schema,
        plan: &plan,
    };
    let end = database.transact(&transaction)?;
    Ok((end, applied(&plan)))
}

/// The statements that move a claim's watermarks.
fn moves<D: Database + ?Sized>(claim: &WriteClaim<'_>) -> Vec<Statement> {
    claim.marks.iter().map(|mark| D::DIALECT.compare_and_set(claim, mark)).collect()
}

/// What a plan does.
pub(in crate::origins) fn applied(plan: &Plan<'_>) -> Applied {
    Applied { changes: plan.changes as u64, rows: plan.rows() as u64, kept: 0 }
}

/// Whether a group does nothing but end rows.
fn ends_alone(schema: &Schema, bytes: &[u8]) -> bool {
    let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|table| table.key_len);
    only_ends(bytes, key_len)
}

/// What a batch that failed means for rows that end.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// It does nothing but end rows, and these stay.
    Kept,
    /// One that only ends rows may be all that is not allowed. Nobody waits for it, so it must not hold up the others.
    OneByOne,
    /// Nothing.
    Other,
}

fn refusal(schema: &Schema, error: &OriginError, groups: &[GroupRef<'_>]) -> Refusal {
    match groups {
        _ if !error.is_partial() => Refusal::Other,
        [group] if ends_alone(schema, group.bytes) => Refusal::Kept,
        [_, _, ..] if groups.iter().any(|group| ends_alone(schema, group.bytes)) => {
            Refusal::OneByOne
        }
        _ => Refusal::Other,
    }
}

fn planned<'a>(
    schema: &Schema,
    groups: &[GroupRef<'a>],
    fault: Fault,
) -> Result<Plan<'a>, OriginError> {
    let bytes = groups.iter().map(|group| group.bytes);
    plan(schema, bytes).map_err(|error| OriginError::new(fault, error))
}

/// A writer to a database that keeps the ledger in tables.
pub(in crate::origins) struct SqlWriter<D>(pub(in crate::origins) D);

impl<D: Database> SqlWriter<D> {
    /// Does something, and once more if it failed for what was known of the tables and is out of date. Nothing of it was
    /// done then but whole transactions, which a second attempt finds done.
    fn up_to_date<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        match attempt(self) {
            Err(error) if error.fault == Fault::Denied && self.0.has_caught_up() => {
                tracing::info!(reason = error.message, "the tables have changed: trying again");
                attempt(self)
            }
            other => other,
        }
    }

    /// Applies groups of one domain, in as many transactions as it takes.
    fn apply_all(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        mut groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let mut sum = Applied::default();
        let mut mark = claim.only()?;
        let mut shown = Instant::now();
        while !groups.is_empty() {
            let claim = WriteClaim { marks: &[mark], ..*claim };
            let part = self.0.apply_some(schema, &claim, groups)?;
            sum.changes += part.applied.changes;
            sum.rows += part.applied.rows;
            sum.kept += part.applied.kept;
            if let Some(last) = part.groups.checked_sub(1) {
                mark.expected = groups[last].lsn;
            }
            groups = &groups[part.groups..];
            if part.moved {
                let claim = WriteClaim { marks: &[mark], ..claim };
                mark.expected = self.landed(&claim, groups)?;
                groups = &groups[groups.partition_point(|group| group.lsn <= mark.expected)..];
            }
            if !groups.is_empty() && shown.elapsed() >= self.0.timeout() / PATIENCE {
                // It takes long: other processes must not take this one for dead.
                self.heartbeat(claim.epoch)?;
                shown = Instant::now();
            }
        }
        Ok(sum)
    }

    /// A watermark was not where it was expected: the number up to which the groups had landed before.
    fn landed(
        &mut self,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Lsn, OriginError> {
        let rows = self.0.query("read the watermarks", &D::DIALECT.marks(), Bound::default())?;
        let found = |domain: DomainId| {
            let row = rows.iter().find(|row| number(row, 0) == u64::from(domain.0))?;
            Some((Lsn(number(row, 1)), number(row, 2)))
        };
        landed(self.0.place(), claim, found, groups)
    }

    /// Someone else owns the origin.
    fn fenced(&mut self, ours: u64) -> OriginError {
        match self.owner() {
            Ok(owner) => fenced(self.0.place(), ours, owner.map(|owner| owner.epoch)),
            Err(error) => error,
        }
    }
}

/// The statements of a claim, in a transaction that has begun; true if the owner was the one expected.
fn claim_rows<D: Database>(database: &mut D, claim: &Claim) -> Result<bool, OriginError> {
    if database.execute(CLAIM, &D::DIALECT.claim_owner(claim))? != 1 {
        return Ok(false);
    }
    database.execute(CLAIM, &D::DIALECT.claim_watermarks(claim))?;
    if !claim.domains.is_empty() {
        database.execute(CLAIM, &D::DIALECT.add_watermarks(claim))?;
    }
    database.commit(CLAIM).map(|()| true)
}

impl<D: Database> Writer for SqlWriter<D> {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        let rows = self.0.query("read the owner", &D::DIALECT.owner(), Bound::default())?;
        let Some(row) = rows.first() else { return Ok(None) };
        let age = text(row, 3).parse::<f64>().unwrap_or(0.0).max(0.0);
        let map = text(row, 2);
        // A database without unsigned numbers holds its bits.
        let signed_map = || map.parse().map(i64::cast_unsigned).unwrap_or(0);
        Ok(Some(Owner {
            journal: text(row, 0).to_owned(),
            epoch: number(row, 1),
            domain_map: map.parse().unwrap_or_else(|_| signed_map()),
            heartbeat_age: Duration::try_from_secs_f64(age).unwrap_or(Duration::MAX),
            released: text(row, 5) == "1",
            watermarks: parse_watermarks(field(row, 4)),
            epochs_agree: text(row, 6) == "1",
        }))
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        self.0.begin(CLAIM)?;
        let claimed = claim_rows(&mut self.0, claim);
        if !matches!(claimed, Ok(true)) {
            self.0.roll_back();
        }
        if claimed? { Ok(()) } else { Err(outrun(self.0.place())) }
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let applied = self.up_to_date(|writer| {
            if let [_] = claim.marks {
                return writer.apply_all(schema, claim, groups);
            }
            match apply_whole(&mut writer.0, schema, claim, groups)? {
                (End::Committed, applied) => Ok(applied),
                (End::Moved, _) => writer.landed(claim, groups).map(|_| Applied::default()),
            }
        });
        let error = match applied {
            Ok(applied) => return Ok(applied),
            Err(error) => error,
        };
        match refusal(schema, &error, groups) {
            Refusal::Kept => {
                tracing::debug!(reason = error.message, "the origin keeps a row that has ended");
                self.park(claim, None).map(|()| Applied { changes: 1, rows: 0, kept: 1 })
            }
            Refusal::OneByOne => Err(OriginError { fault: Fault::Rejected, ..error }),
            Refusal::Other => Err(error),
        }
    }

    fn park(
        &mut self,
        claim: &WriteClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        let schema = Schema::default();
        let bytes_max = self.0.piece_bytes_max();
        let stored = parked.map(|parked| D::DIALECT.store_parked(parked, bytes_max));
        let transaction = Transaction {
            what: "park a group",
            watermarks: moves::<D>(claim),
            compares: !claim.unsafe_no_watermark,
            parked: stored.unwrap_or_default(),
            pieces: Vec::new(),
            schema: &schema,
            plan: &Plan::default(),
        };
        let upto = claim.marks.iter().map(|mark| mark.upto).max().unwrap_or(Lsn::ZERO);
        let group = [GroupRef { lsn: upto, bytes: &[] }];
        let done = self.up_to_date(|writer| match writer.0.transact(&transaction)? {
            End::Committed => Ok(()),
            End::Moved => writer.landed(claim, &group).map(drop),
        });
        done.map_err(not_parked)
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim<'_>,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        let mark = claim.only()?;
        let statement = D::DIALECT.mark_all(claim, &mark, floors);
        if self.0.execute("move the mark of all domains", &statement)? == 1 {
            return Ok(());
        }
        let found = self.heartbeat(claim.epoch)?;
        check_floors(self.0.place(), &found, floors)?;
        self.landed(claim, &[GroupRef { lsn: mark.upto, bytes: &[] }]).map(drop)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError> {
        const WHAT: &str = "renew the heartbeat";
        self.0.at_heartbeat();
        let renew = D::DIALECT.heartbeat(epoch);
        let rows = if D::DIALECT.returns {
            self.0.query(WHAT, &renew, Bound::default())?
        } else if self.0.execute(WHAT, &renew)? == 1 {
            self.0.query(WHAT, &D::DIALECT.watermarks(), Bound::default())?
        } else {
            Vec::new()
        };
        match rows.first() {
            Some(row) => Ok(parse_watermarks(field(row, 0))),
            None => Err(self.fenced(epoch)),
        }
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        if self.0.execute("release the origin", &D::DIALECT.release(epoch))? == 1 {
            return Ok(());
        }
        Err(self.fenced(epoch))
    }

    fn parked(&mut self, bytes_max: u64) -> Result<Vec<ParkedGroup>, OriginError> {
        let rows = self.0.query(
            "read the parked groups",
            &D::DIALECT.parked(),
            Bound::parked(bytes_max),
        )?;
        let mut groups: Vec<ParkedGroup> = Vec::with_capacity(rows.len());
        let mut pieces = 0;
        for row in &rows {
            let lsn = Lsn(number(row, 1));
            if let Some(piece) = text(row, 0).strip_prefix('-') {
                // Without the first one nobody knows what it belongs to.
                let Some(group) = groups.last_mut().filter(|group| group.lsn == lsn) else {
                    continue;
                };
                pieces += 1;
                if piece.parse() == Ok(pieces) {
                    group.payload.push_str(text(row, 4));
                } else {
                    PIECE_MISSING.clone_into(&mut group.payload);
                }
                continue;
            }
            pieces = 0;
            groups.push(ParkedGroup {
                domain: DomainId(text(row, 0).parse().unwrap_or(0)),
                lsn,
                depends_on: field(row, 2).map(|_| Lsn(number(row, 2))),
                reason: text(row, 3).to_owned(),
                payload: text(row, 4).to_owned(),
            });
        }
        Ok(groups)
    }

    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        let mark = claim.only()?;
        let plan = planned(schema, groups, Fault::Rejected)?;
        // What is given up need not be whole. What is applied was not deleted by anybody.
        let take = |lsn: &Lsn| match groups {
            [] => D::DIALECT.give_up_parked(*lsn),
            _ => D::DIALECT.take_parked(*lsn),
        };
        let end = self.up_to_date(|writer| {
            writer.0.transact(&Transaction {
                what: "take back parked groups",
                watermarks: vec![D::DIALECT.hold(claim, &mark)],
                compares: true,
                parked: parked.iter().map(take).collect(),
                pieces: parked.iter().map(|lsn| D::DIALECT.take_pieces(*lsn)).collect(),
                schema,
                plan: &plan,
            })
        })?;
        match end {
            End::Committed => Ok(applied(&plan)),
            End::Moved => Err(self.fenced(claim.epoch)),
        }
    }
}

/// A field; nothing where an origin that is not what it seems sends fewer of them.
fn field(row: &[Field], at: usize) -> Option<&str> {
    row.get(at).and_then(|field| field.as_deref())
}

fn text(row: &[Field], at: usize) -> &str {
    field(row, at).unwrap_or_default()
}

/// A number that is not negative; 0 for what nobody but a stranger can have written.
fn number(row: &[Field], at: usize) -> u64 {
    text(row, at).parse().map_or(0, unsigned)
}

const CLAIM: &str = "claim the origin";
/// The part of the time for an operation in which nothing of us need be seen.
const PATIENCE: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::change::{GroupWriter, Op, Set};
    use crate::error::Stage;
    use crate::schema::Table;

    #[test]
    fn a_deletion_of_ended_rows_that_is_not_allowed_holds_up_nothing() {
        let mut table = Table::named("t".into(), "t".into());
        table.key_len = 1;
        let schema = Schema::new(vec![table], Vec::new());
        let mut key = Vec::new();
        push_cell(&mut key, Cell::Value(b"42"));
        let group = |op: Op| {
            let mut writer = GroupWriter::new();
            writer.begin(TableId(0), op, &key);
            writer.set(1, Set::To(Cell::Value(b"1")));
            writer.finish().to_vec()
        };
        let (end, update) = (group(Op::End), group(Op::Update));
        let of = |error: &OriginError, groups: &[&[u8]]| {
            let groups: Vec<_> =
                (1..).zip(groups).map(|(lsn, &bytes)| GroupRef { lsn: Lsn(lsn), bytes }).collect();
            refusal(&schema, error, &groups)
        };
        for fault in [Fault::Denied, Fault::Rejected] {
            let error = OriginError::new(fault, "no");
            assert_eq!(of(&error, &[&end]), Refusal::Kept);
            assert_eq!(of(&error, &[&end, &update]), Refusal::OneByOne);
            assert_eq!(of(&error, &[&end, &end]), Refusal::OneByOne);
            // What clients wrote waits for a person, or is parked.
            assert_eq!(of(&error, &[&update]), Refusal::Other);
            assert_eq!(of(&error, &[&update, &update]), Refusal::Other);
        }
        // A user that may not connect, or a server that is away, is no answer about this row.
        let connection = OriginError::new(Fault::Denied, "no").at(Stage::Connection);
        for error in [connection, OriginError::new(Fault::Unavailable, "away")] {
            assert_eq!(of(&error, &[&end]), Refusal::Other);
            assert_eq!(of(&error, &[&end, &update]), Refusal::Other);
        }
    }
}
