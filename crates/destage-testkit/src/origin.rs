//! A model of an origin: tables of rows, constraints, one watermark with its epoch, parked groups.
//!
//! It knows nothing of how Destage encodes rows or plans statements, so that it can contradict them. A batch is applied
//! change by change in one transaction, or not at all. What a test makes it suffer (being away, being slow, losing a reply,
//! going back to an older state) is the test's business: [`Origin::clone`] is a backup, assigning it back is a restore.

use std::collections::BTreeMap;

/// A row's values; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// A row's place: table and key. Keys are whole numbers; column 0 holds them.
pub type Place = (usize, i64);

/// A table's columns, the key first.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Its columns.
    pub columns: Vec<Column>,
}

/// What the origin checks and computes for a column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// NULL is refused.
    pub not_null: bool,
    /// No two rows may have the same value.
    pub unique: bool,
    /// A row of this table must have the value as its key.
    pub references: Option<usize>,
    /// Rows go with the row that they refer to.
    pub cascades: bool,
    /// What a new row gets where nothing is given, from its key.
    pub default: Option<fn(i64) -> String>,
    /// Computed from the row at every change.
    pub computed: Option<fn(&Row) -> Option<String>>,
    /// Values above this are refused.
    pub max: Option<i64>,
}

/// What happens to a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It must not exist yet.
    Insert,
    /// It must exist.
    Update,
    /// It must exist.
    Delete,
    /// It changes if it exists.
    UpdateIfThere,
}

/// How a column changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Set {
    /// Takes the value.
    To(Option<String>),
    /// Grows by the amount.
    By(i64),
}

/// One change of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The row.
    pub place: Place,
    /// What happens to it.
    pub op: Op,
    /// The changed columns.
    pub sets: Vec<(usize, Set)>,
}

/// A group on its way to the origin.
#[derive(Clone, Debug)]
pub struct ModelGroup {
    /// Its number.
    pub lsn: u64,
    /// Its changes.
    pub changes: Vec<Change>,
}

/// Why nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The data.
    Rejected(String),
    /// The epoch is another owner's.
    Fenced,
    /// The watermark is neither where the writer believes nor beyond what it sent.
    Elsewhere(u64),
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Applied.
    Applied,
    /// Kept among the parked ones.
    Parked,
    /// Moved past without a trace.
    Dropped,
}

/// What a writer states about itself.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Its epoch.
    pub epoch: u64,
    /// Negative control: the watermark is moved without being compared.
    pub unsafe_no_watermark: bool,
}

/// How a write moves the watermark of one domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The domain.
    pub domain: u16,
    /// Where the writer believes its watermark to be.
    pub expected: u64,
    /// Where it is then.
    pub upto: u64,
}

/// The origin.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    tables: Vec<Table>,
    /// The rows.
    pub rows: BTreeMap<Place, Row>,
    /// Groups up to here are decided, of the first domain.
    pub watermark: u64,
    /// The same for other domains, by number.
    pub others: BTreeMap<u16, u64>,
    /// Who owns it: the journal's identity and the epoch.
    pub owner: Option<(String, u64)>,
    /// Parked groups, with whatever the writer stored.
    pub parked: BTreeMap<u64, String>,
    /// What became of each group.
    pub fates: BTreeMap<u64, Fate>,
    /// What groups changed besides, by cascades.
    pub implied: BTreeMap<u64, Vec<Change>>,
    /// Of a batch of one domain that it rejects, it keeps what is in front of the group that it does not take, as an origin does
    /// that applies a batch in several transactions.
    pub lands_in_part: bool,
}

impl Origin {
    /// Empty tables.
    pub fn new(tables: Vec<Table>) -> Self {
        Self { tables, ..Self::default() }
    }

    /// The tables.
    pub fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// From now on values of a column above `max` are refused, or none are.
    pub fn limit(&mut self, table: usize, column: usize, max: Option<i64>) {
        self.tables[table].columns[column].max = max;
    }

    /// Makes `journal` the owner if the epoch still is `expected`; the new epoch is returned.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if someone claimed it in between.
    pub fn claim(&mut self, journal: &str, expected: Option<u64>) -> Result<u64, Refusal> {
        if self.owner.as_ref().map(|(_, epoch)| *epoch) != expected {
            return Err(Refusal::Fenced);
        }
        let epoch = expected.unwrap_or(0) + 1;
        self.owner = Some((journal.to_owned(), epoch));
        Ok(epoch)
    }

    /// Applies the groups in order and moves the watermarks, or does nothing but what [`Self::lands_in_part`] says. True if they
    /// had landed before.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn apply(
        &mut self,
        claim: Claim,
        marks: &[Mark],
        groups: &[ModelGroup],
    ) -> Result<bool, Refusal> {
        let (mut marks, mut groups) = (marks.to_vec(), groups);
        if let [mark] = &mut marks[..]
            && let at = self.at(mark.domain)
            && at < mark.upto
            && let Some(landed) = groups.iter().position(|group| group.lsn == at)
            && !claim.unsafe_no_watermark
        {
            (mark.expected, groups) = (at, &groups[landed + 1..]);
        }
        if self.has_landed(claim, &marks)? {
            return Ok(true);
        }
        let before = self.rows.clone();
        for (index, group) in groups.iter().enumerate() {
            if let Err(reason) = self.apply_group(group) {
                self.rows = before;
                self.implied.retain(|lsn, _| groups.iter().all(|group| group.lsn != *lsn));
                if let ([mark], true) = (&marks[..], self.lands_in_part) {
                    self.land(&groups[..index], *mark);
                }
                return Err(Refusal::Rejected(format!("group {}: {reason}", group.lsn)));
            }
        }
        self.reach(&marks);
        self.fates.extend(groups.iter().map(|group| (group.lsn, Fate::Applied)));
        Ok(false)
    }

    /// The first groups of a batch that is rejected land all the same.
    fn land(&mut self, groups: &[ModelGroup], mark: Mark) {
        let Some(last) = groups.last() else { return };
        for group in groups {
            self.apply_group(group).expect("it was applied a moment ago");
        }
        self.reach(&[Mark { upto: last.lsn, ..mark }]);
        self.fates.extend(groups.iter().map(|group| (group.lsn, Fate::Applied)));
    }

    /// Moves the watermarks past one group and keeps `parked`. True if that had happened before.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn park(
        &mut self,
        claim: Claim,
        marks: &[Mark],
        lsn: u64,
        parked: Option<String>,
    ) -> Result<bool, Refusal> {
        if self.has_landed(claim, marks)? {
            return Ok(true);
        }
        self.reach(marks);
        self.fates.insert(lsn, if parked.is_some() { Fate::Parked } else { Fate::Dropped });
        self.parked.extend(parked.map(|parked| (lsn, parked)));
        Ok(false)
    }

    /// Takes groups out of the parked ones and applies `groups` in their order, or does nothing.
    ///
    /// # Errors
    /// See [`Refusal`]; also rejected if one of them is not parked.
    pub fn unpark(
        &mut self,
        epoch: u64,
        parked: &[u64],
        groups: &[ModelGroup],
    ) -> Result<(), Refusal> {
        if self.owner.as_ref().is_none_or(|(_, owner)| *owner != epoch) {
            return Err(Refusal::Fenced);
        }
        if let Some(lsn) = parked.iter().find(|lsn| !self.parked.contains_key(lsn)) {
            return Err(Refusal::Rejected(format!("group {lsn} is not parked")));
        }
        let before = self.rows.clone();
        for group in groups {
            if let Err(reason) = self.apply_group(group) {
                self.rows = before;
                self.implied.retain(|lsn, _| groups.iter().all(|group| group.lsn != *lsn));
                return Err(Refusal::Rejected(format!("group {}: {reason}", group.lsn)));
            }
        }
        self.parked.retain(|lsn, _| !parked.contains(lsn));
        self.fates.extend(groups.iter().map(|group| (group.lsn, Fate::Applied)));
        Ok(())
    }

    /// Moves the watermark of what is no domain of groups, unless a domain stands below what is expected of it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn mark(&mut self, claim: Claim, mark: Mark, floors: &[Mark]) -> Result<bool, Refusal> {
        if let Some(low) = floors.iter().find(|floor| self.at(floor.domain) < floor.expected) {
            return Err(Refusal::Elsewhere(self.at(low.domain)));
        }
        let landed = self.has_landed(claim, &[mark])?;
        if !landed {
            self.reach(&[mark]);
        }
        Ok(landed)
    }

    /// Where a domain stands.
    pub fn at(&self, domain: u16) -> u64 {
        match domain {
            0 => self.watermark,
            _ => self.others.get(&domain).copied().unwrap_or(0),
        }
    }

    fn reach(&mut self, marks: &[Mark]) {
        for mark in marks {
            match mark.domain {
                0 => self.watermark = mark.upto,
                domain => drop(self.others.insert(domain, mark.upto)),
            }
        }
    }

    fn has_landed(&self, claim: Claim, marks: &[Mark]) -> Result<bool, Refusal> {
        if claim.unsafe_no_watermark {
            return Ok(false);
        }
        if self.owner.as_ref().is_none_or(|(_, epoch)| *epoch != claim.epoch) {
            return Err(Refusal::Fenced);
        }
        if marks.iter().all(|mark| self.at(mark.domain) == mark.expected) {
            return Ok(false);
        }
        match marks.iter().find(|mark| self.at(mark.domain) < mark.upto) {
            None => Ok(true),
            Some(mark) => Err(Refusal::Elsewhere(self.at(mark.domain))),
        }
    }

    fn apply_group(&mut self, group: &ModelGroup) -> Result<(), String> {
        for change in &group.changes {
            self.change(change)?;
            if change.op == Op::Delete {
                self.cascade(group.lsn, change.place);
            }
            self.check(change)?;
        }
        Ok(())
    }

    /// Deletes the rows that go with a deleted one.
    fn cascade(&mut self, lsn: u64, (parent, key): Place) {
        let value = Some(key.to_string());
        let tables = &self.tables;
        let goes = |((table, _), row): &(&Place, &Row)| {
            let columns = tables[*table].columns.iter().enumerate();
            let mut referring = columns.filter(|(_, c)| c.cascades && c.references == Some(parent));
            referring.any(|(index, _)| row[index] == value)
        };
        let gone: Vec<Place> = self.rows.iter().filter(goes).map(|(place, _)| *place).collect();
        for place in gone {
            self.rows.remove(&place);
            let change = Change { place, op: Op::Delete, sets: Vec::new() };
            self.implied.entry(lsn).or_default().push(change);
        }
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        let exists = self.rows.contains_key(&change.place);
        if change.op == Op::UpdateIfThere && !exists {
            return Ok(());
        }
        if exists == (change.op == Op::Insert) {
            return Err(format!("{change:?} meets a row that does not fit"));
        }
        let table = &self.tables[change.place.0];
        let changed = apply(table, self.rows.get(&change.place), change);
        match changed {
            Some(row) => self.rows.insert(change.place, row),
            None => self.rows.remove(&change.place),
        };
        Ok(())
    }

    /// What the tables' constraints say of the row just changed.
    fn check(&self, change: &Change) -> Result<(), String> {
        let (table, key) = change.place;
        let Some(row) = self.rows.get(&change.place) else {
            return self.check_children(table, key);
        };
        for (index, column) in self.tables[table].columns.iter().enumerate() {
            let Some(value) = &row[index] else {
                if column.not_null {
                    return Err(format!("{:?}: column {index} is NULL", change.place));
                } else {
                    continue;
                }
            };
            let same = |(&(t, k), other): (&Place, &Row)| {
                t == table && k != key && other[index].as_ref() == Some(value)
            };
            if column.unique && self.rows.iter().any(same) {
                return Err(format!("{:?}: column {index} is not unique", change.place));
            }
            let number = value.parse::<i64>();
            if let (Some(max), Ok(number)) = (column.max, &number)
                && *number > max
            {
                return Err(format!("{:?}: column {index} exceeds {max}", change.place));
            }
            if let (Some(parent), Ok(number)) = (column.references, number)
                && !self.rows.contains_key(&(parent, number))
            {
                return Err(format!("{:?}: column {index} has no parent", change.place));
            }
        }
        Ok(())
    }

    fn check_children(&self, parent: usize, key: i64) -> Result<(), String> {
        let value = Some(key.to_string());
        let refers = |((table, _), row): (&Place, &Row)| {
            let columns = self.tables[*table].columns.iter().enumerate();
            columns.filter(|(_, c)| c.references == Some(parent)).any(|(i, _)| row[i] == value)
        };
        if self.rows.iter().any(refers) {
            Err(format!("row {parent}:{key} is referenced"))
        } else {
            Ok(())
        }
    }

    /// Keys of a table greater than `after`, in order.
    pub fn scan(&self, table: usize, after: Option<i64>, limit: usize) -> Vec<i64> {
        let from = after.map_or(i64::MIN, |after| after + 1);
        self.rows
            .range((table, from)..(table + 1, i64::MIN))
            .map(|(p, _)| p.1)
            .take(limit)
            .collect()
    }
}

/// A row after a change, whatever the constraints say; an update of nothing is nothing.
pub fn apply(table: &Table, row: Option<&Row>, change: &Change) -> Option<Row> {
    let key = change.place.1;
    let mut row = match (change.op, row) {
        (Op::Delete, _) | (Op::Update | Op::UpdateIfThere, None) => return None,
        (Op::Update | Op::UpdateIfThere, Some(row)) => row.clone(),
        (Op::Insert, _) => {
            let defaults = table.columns.iter().map(|column| column.default.map(|make| make(key)));
            let mut row: Row = defaults.collect();
            row[0] = Some(key.to_string());
            row
        }
    };
    for (column, set) in &change.sets {
        let old = row[*column].as_ref().and_then(|old| old.parse::<i64>().ok());
        row[*column] = match set {
            Set::To(value) => value.clone(),
            Set::By(amount) => old.map(|old| (old + amount).to_string()),
        };
    }
    for index in 0..row.len() {
        if let Some(compute) = table.columns[index].computed {
            row[index] = compute(&row);
        }
    }
    Some(row)
}
