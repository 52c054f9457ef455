//! A sixth origin, in memory: what is left of an origin where there is no database behind it. It passes the suite, which so
//! needs nothing that only a database has.

use destage_core::{DomainId, Fault, Lsn};
use destage_origins::cells::{self, Cell, push_cell};
use destage_origins::change::{Change, Item, Op, Set, items};
use destage_origins::contract::verdict::{
    check_floors, fenced, landed, missed, not_parked, outrun,
};
use destage_origins::contract::{
    Applied, Claim, GroupRef, Keys, Mark, NextKeys, Origin, OriginError, Owner, ParkedGroup,
    Reader, Snapshot, Watermarks, WriteClaim, Writer,
};
use destage_origins::schema::{Column, ColumnDefault, Schema, Table, TableId};
use destage_origins::value::ColumnType;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

const PLACE: &str = "the memory";

/// A table of whole numbers, `items (id, n)`, with the ledger beside it.
#[derive(Clone)]
pub(crate) struct Memory {
    state: Arc<Mutex<State>>,
    flaw: Option<Flaw>,
}

/// A promise that is not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    ClaimsFromAnyOwner,
    HeedsNoEpoch,
    ResetsWatermarks,
    HeedsNoWatermark,
    TakesAnyWatermarkForLanded,
    LeavesHalfABatch,
    MovesOneDomain,
    ParksWithoutTheWatermark,
    ParksNothing,
    RejectsAParking,
    TakesBackWhatIsNotThere,
    TellsOldWatermarks,
    OrdersKeysAsTexts,
    GivesAKeyTwice,
    StaysReleased,
    HeedsNoFloors,
    TellsThePassword,
}

impl Flaw {
    pub(crate) const ALL: [Self; 17] = [
        Self::ClaimsFromAnyOwner,
        Self::HeedsNoEpoch,
        Self::ResetsWatermarks,
        Self::HeedsNoWatermark,
        Self::TakesAnyWatermarkForLanded,
        Self::LeavesHalfABatch,
        Self::MovesOneDomain,
        Self::ParksWithoutTheWatermark,
        Self::ParksNothing,
        Self::RejectsAParking,
        Self::TakesBackWhatIsNotThere,
        Self::TellsOldWatermarks,
        Self::OrdersKeysAsTexts,
        Self::GivesAKeyTwice,
        Self::StaysReleased,
        Self::HeedsNoFloors,
        Self::TellsThePassword,
    ];
}

pub(crate) const PASSWORD: &str = "hush";

#[derive(Clone, Default)]
struct State {
    rows: BTreeMap<i64, i64>,
    next_key: i64,
    owner: Option<OwnerRow>,
    /// Each with the epoch of its owner.
    watermarks: BTreeMap<DomainId, (Lsn, u64)>,
    parked: BTreeMap<Lsn, ParkedGroup>,
    refuses_parking: bool,
}

#[derive(Clone)]
struct OwnerRow {
    journal: String,
    epoch: u64,
    domain_map: u64,
    heartbeat: Instant,
    released: bool,
}

impl Memory {
    pub(crate) fn with_rows(ids: &[i64], flaw: Option<Flaw>) -> Self {
        let rows = ids.iter().map(|id| (*id, 0)).collect();
        let next_key = ids.iter().max().map_or(1, |last| last + 1);
        let state = State { rows, next_key, ..State::default() };
        Self { state: Arc::new(Mutex::new(state)), flaw }
    }

    pub(crate) fn set_watermark(&self, domain: DomainId, lsn: Lsn) {
        self.state().watermarks.get_mut(&domain).unwrap().0 = lsn;
    }

    pub(crate) fn refuse_parking(&self, is_refused: bool) {
        self.state().refuses_parking = is_refused;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Whether the watermarks are where the claim expects them.
    fn is_at(&self, state: &State, claim: &WriteClaim<'_>) -> bool {
        let is_at = |mark: &Mark| {
            let found = state.watermark(mark.domain);
            let is_ours = |epoch| epoch == claim.epoch || self.has(Flaw::HeedsNoEpoch);
            found.is_some_and(|(lsn, epoch)| lsn == mark.expected && is_ours(epoch))
        };
        let is_ignored = claim.unsafe_no_watermark || self.has(Flaw::HeedsNoWatermark);
        is_ignored || claim.marks.iter().all(is_at)
    }

    /// Up to where the groups had landed.
    fn landed(
        &self,
        state: &State,
        claim: &WriteClaim<'_>,
        groups: &[GroupRef<'_>],
    ) -> Result<Lsn, OriginError> {
        if self.has(Flaw::TakesAnyWatermarkForLanded) {
            return Ok(claim.marks[0].upto);
        }
        landed(PLACE, claim, |domain| state.watermark(domain), groups)
    }

    fn advance(&self, state: &mut State, claim: &WriteClaim<'_>) {
        let count = if self.has(Flaw::MovesOneDomain) { 1 } else { claim.marks.len() };
        for mark in &claim.marks[..count] {
            state.watermarks.insert(mark.domain, (mark.upto, claim.epoch));
        }
    }

    /// Makes all of a change, or nothing where it fails.
    fn transact<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, OriginError>,
    ) -> Result<T, OriginError> {
        let mut state = self.state();
        let mut after = state.clone();
        let done = change(&mut after);
        if done.is_ok() || self.has(Flaw::LeavesHalfABatch) {
            *state = after;
        }
        done
    }
}

impl Origin for Memory {
    fn describe(&self) -> String {
        PLACE.to_owned()
    }

    fn schema(&self) -> Result<Schema, OriginError> {
        let column = |name: &str, is_key: bool| Column {
            name: name.to_owned(),
            sql_name: name.to_owned(),
            ty: ColumnType::Int { min: i64::MIN, max: i64::MAX },
            type_name: "number".to_owned(),
            not_null: true,
            default: ColumnDefault::None,
            generated: false,
            structural: is_key,
            checked: false,
        };
        let mut table = Table::named("items".to_owned(), "items".to_owned());
        table.columns = vec![column("id", true), column("n", false)];
        table.key_len = 1;
        table.generated_key = Some(0);
        Ok(Schema::new(vec![table], Vec::new()))
    }

    fn has_domains(&self) -> bool {
        true
    }

    fn reader(&self) -> Result<Box<dyn Reader>, OriginError> {
        Ok(Box::new(self.clone()))
    }

    fn writer(&self) -> Result<Box<dyn Writer>, OriginError> {
        Ok(Box::new(self.clone()))
    }
}

impl Reader for Memory {
    fn fetch(&mut self, _: &Table, keys: &[&[u8]]) -> Result<Snapshot, OriginError> {
        let state = self.state();
        let row = |key: &&[u8]| state.rows.get(&id(key)).map(|n| row(&[id(key), *n]));
        let rows = keys.iter().map(row).collect();
        let mut watermarks = state.watermarks();
        if self.has(Flaw::TellsOldWatermarks) {
            watermarks.iter_mut().for_each(|(_, lsn)| lsn.0 = lsn.0.saturating_sub(1));
        }
        Ok(Snapshot { rows, watermarks, seen: Vec::new() })
    }

    fn scan(
        &mut self,
        _: &Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<(Keys, Watermarks), OriginError> {
        let state = self.state();
        let from = after.map_or(Unbounded, |key| Excluded(id(key)));
        let mut ids: Vec<i64> = state.rows.range((from, Unbounded)).map(|(id, _)| *id).collect();
        if self.has(Flaw::OrdersKeysAsTexts) {
            ids.sort_by_key(i64::to_string);
        }
        Ok((ids.iter().take(limit).map(|id| row(&[*id])).collect(), state.watermarks()))
    }

    fn next_keys(&mut self, _: &Table, count: u32) -> Result<NextKeys, OriginError> {
        let mut state = self.state();
        let first = state.next_key;
        if !self.has(Flaw::GivesAKeyTwice) {
            state.next_key += i64::from(count);
        }
        Ok(NextKeys { keys: (first..first + i64::from(count)).collect(), are_new: false })
    }
}

impl Writer for Memory {
    fn owner(&mut self) -> Result<Option<Owner>, OriginError> {
        let state = self.state();
        Ok(state.owner.as_ref().map(|owner| Owner {
            journal: owner.journal.clone(),
            epoch: owner.epoch,
            domain_map: owner.domain_map,
            heartbeat_age: owner.heartbeat.elapsed(),
            released: owner.released,
            watermarks: state.watermarks(),
            epochs_agree: state.watermarks.values().all(|(_, epoch)| *epoch == owner.epoch),
        }))
    }

    fn claim(&mut self, claim: &Claim) -> Result<(), OriginError> {
        self.transact(|state| {
            let found = state.owner.as_ref().map(|owner| owner.epoch);
            if found != claim.expected && !self.has(Flaw::ClaimsFromAnyOwner) {
                return Err(if self.has(Flaw::TellsThePassword) {
                    OriginError::new(Fault::Fenced, format!("memory:{PASSWORD}@ is another's"))
                } else {
                    outrun(PLACE)
                });
            }
            if self.has(Flaw::ResetsWatermarks) {
                state.watermarks.clear();
            }
            let Claim { journal, epoch, domain_map, .. } = claim.clone();
            let (heartbeat, released) = (Instant::now(), false);
            state.owner = Some(OwnerRow { journal, epoch, domain_map, heartbeat, released });
            for domain in &claim.domains {
                state.watermarks.entry(*domain).or_default();
            }
            state.watermarks.values_mut().for_each(|(_, theirs)| *theirs = epoch);
            Ok(())
        })
    }

    fn apply(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        mut groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        self.transact(|state| {
            if !self.is_at(state, claim) {
                let upto = self.landed(state, claim, groups)?;
                groups = &groups[groups.partition_point(|group| group.lsn <= upto)..];
            }
            if groups.is_empty() {
                return Ok(Applied::default());
            }
            let changes = state.change(schema, groups)?;
            self.advance(state, claim);
            Ok(Applied { changes, rows: changes, kept: 0 })
        })
    }

    fn park(
        &mut self,
        claim: &WriteClaim<'_>,
        parked: Option<&ParkedGroup>,
    ) -> Result<(), OriginError> {
        self.transact(|state| {
            if !self.is_at(state, claim) {
                let group = [GroupRef { lsn: claim.marks[0].upto, bytes: &[] }];
                return self.landed(state, claim, &group).map(drop);
            }
            if let Some(parked) = parked.filter(|_| !self.has(Flaw::ParksNothing)) {
                if state.refuses_parking {
                    let error = rejected("nothing is parked".to_owned());
                    let is_kept = self.has(Flaw::RejectsAParking);
                    return Err(if is_kept { error } else { not_parked(error) });
                }
                state.parked.insert(parked.lsn, parked.clone());
            }
            if !self.has(Flaw::ParksWithoutTheWatermark) {
                self.advance(state, claim);
            }
            Ok(())
        })
    }

    fn mark_all(
        &mut self,
        claim: &WriteClaim<'_>,
        floors: &[(DomainId, Lsn)],
    ) -> Result<(), OriginError> {
        if !self.has(Flaw::HeedsNoFloors) {
            check_floors(PLACE, &self.state().watermarks(), floors)?;
        }
        self.park(claim, None)
    }

    fn heartbeat(&mut self, epoch: u64) -> Result<Watermarks, OriginError> {
        self.transact(|state| {
            let owner = state.owned_by(epoch)?;
            owner.heartbeat = Instant::now();
            owner.released &= self.has(Flaw::StaysReleased);
            Ok(state.watermarks())
        })
    }

    fn release(&mut self, epoch: u64) -> Result<(), OriginError> {
        self.transact(|state| state.owned_by(epoch).map(|owner| owner.released = true))
    }

    fn parked(&mut self, _bytes_max: u64) -> Result<Vec<ParkedGroup>, OriginError> {
        Ok(self.state().parked.values().cloned().collect())
    }

    fn unpark(
        &mut self,
        schema: &Schema,
        claim: &WriteClaim<'_>,
        parked: &[Lsn],
        groups: &[GroupRef<'_>],
    ) -> Result<Applied, OriginError> {
        self.transact(|state| {
            state.owned_by(claim.epoch)?;
            for lsn in parked {
                if state.parked.remove(lsn).is_none() && !self.has(Flaw::TakesBackWhatIsNotThere) {
                    return Err(rejected(missed(None, 1, 0)));
                }
            }
            let changes = state.change(schema, groups)?;
            Ok(Applied { changes, rows: changes, kept: 0 })
        })
    }
}

impl State {
    fn watermarks(&self) -> Watermarks {
        self.watermarks.iter().map(|(domain, (lsn, _))| (*domain, *lsn)).collect()
    }

    fn watermark(&self, domain: DomainId) -> Option<(Lsn, u64)> {
        self.watermarks.get(&domain).copied()
    }

    fn owned_by(&mut self, epoch: u64) -> Result<&mut OwnerRow, OriginError> {
        let found = self.owner.as_ref().map(|owner| owner.epoch);
        let ours = self.owner.as_mut().filter(|owner| owner.epoch == epoch);
        ours.ok_or_else(|| fenced(PLACE, epoch, found))
    }

    fn change(&mut self, schema: &Schema, groups: &[GroupRef<'_>]) -> Result<u64, OriginError> {
        let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|table| table.key_len);
        let mut changes = 0;
        for group in groups {
            for item in items(group.bytes, key_len) {
                match item.map_err(|error| OriginError::new(Fault::Failed, error))? {
                    Item::Change(change) => self.change_row(schema, &change)?,
                    Item::Dml(_) => return Err(rejected("it takes no SQL".to_owned())),
                }
                changes += 1;
            }
        }
        Ok(changes)
    }

    fn change_row(&mut self, schema: &Schema, change: &Change<'_>) -> Result<(), OriginError> {
        let table = schema.table(change.table);
        let id = id(change.key);
        let before = self.rows.remove(&id);
        let is_merged = change.op == Op::Insert && table.merges_new;
        if before.is_some() == (change.op == Op::Insert) && !is_merged {
            return Err(rejected(missed(Some((table, change.op)), 1, 0)));
        }
        let mut n = before.unwrap_or_default();
        for (_, set) in change.sets() {
            n = match set {
                Set::To(cell) => whole(cell),
                Set::By(amount) => n + whole(Cell::Value(amount)),
            };
        }
        if change.op != Op::Delete {
            self.rows.insert(id, n);
        }
        Ok(())
    }
}

fn rejected(message: String) -> OriginError {
    OriginError::new(Fault::Rejected, message)
}

fn id(key: &[u8]) -> i64 {
    whole(cells::Reader::new(key).next().unwrap())
}

fn whole(cell: Cell<'_>) -> i64 {
    std::str::from_utf8(cell.value().unwrap()).unwrap().parse().unwrap()
}

fn row(numbers: &[i64]) -> Box<[u8]> {
    let mut row = Vec::new();
    for number in numbers {
        push_cell(&mut row, Cell::Value(number.to_string().as_bytes()));
    }
    row.into()
}
