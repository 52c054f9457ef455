//! Where each change goes.

use super::links::{Links, Structural};
use super::{Bucket, Datum, Plan, Raw, Sets, Target, fold, target};
use crate::cells::Cell;
use crate::change::{Change, Item, MalformedGroup, Op, items};
use crate::dml::Dml;
use crate::schema::{Schema, SetByTrigger, Table, TableId};
use hashbrown::hash_map::Entry;
use hashbrown::{DefaultHashBuilder, HashMap};
use std::hash::{BuildHasher, Hash, Hasher};

pub(super) struct Planner<'s, 'a> {
    schema: &'s Schema,
    plan: Plan<'a>,
    touches: Vec<Touch>,
    /// The newest bucket of each shape (table, operation, columns).
    shapes: HashMap<u64, u32>,
    hasher: DefaultHashBuilder,
    links: Links,
    /// Earlier buckets are closed.
    barrier: u32,
    /// The open group touched deferred constraints.
    deferred: bool,
    sets: Sets<'a>,
}

/// A row in a bucket, and the touch of the same row before it.
#[derive(Clone, Copy)]
struct Touch {
    bucket: u32,
    row: u32,
    before: u32,
}

const NONE: u32 = u32::MAX;

/// What a row's earlier touches mean for a change.
enum Earlier {
    Folded,
    /// It may join this bucket or a later one.
    Behind(u32),
}

impl<'s, 'a> Planner<'s, 'a> {
    pub(super) fn new(schema: &'s Schema, groups: usize) -> Self {
        let touched = HashMap::with_capacity(groups);
        Self {
            schema,
            plan: Plan { touched, ..Plan::default() },
            touches: Vec::with_capacity(groups),
            shapes: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
            links: Links::new(schema.tables.len()),
            barrier: 0,
            deferred: false,
            sets: Vec::new(),
        }
    }

    pub(super) fn group(&mut self, bytes: &'a [u8]) -> Result<(), MalformedGroup> {
        let schema = self.schema;
        let key_len = |id: TableId| schema.tables.get(usize::from(id.0)).map(|t| t.key_len);
        for item in items(bytes, key_len) {
            match item? {
                Item::Change(change) => self.change(change)?,
                Item::Dml(dml) => self.raw(dml),
            }
        }
        if self.deferred {
            self.deferred = false;
            self.close();
            let buckets = self.plan.buckets.len();
            let last = self.plan.raw.last_mut().filter(|raw| raw.before == buckets);
            match (last, self.plan.buckets.last_mut()) {
                (Some(raw), _) => raw.check_after = true,
                (None, Some(bucket)) => bucket.check_after = true,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Nobody knows what it does, deferred constraints included.
    fn raw(&mut self, dml: Dml<'a>) {
        self.close();
        self.deferred = true;
        self.plan.changes += 1;
        self.plan.raw.push(Raw { dml, check_after: false, before: self.plan.buckets.len() });
    }

    pub(super) fn finish(self) -> Plan<'a> {
        self.plan
    }

    fn change(&mut self, change: Change<'a>) -> Result<(), MalformedGroup> {
        let table = self.schema.table(change.table);
        self.read_sets(table, &change)?;
        self.plan.changes += 1;
        let structural = change.op != Op::Update || self.any(table, |c| c.structural);
        let free = !structural && !self.any(table, |c| c.checked);
        if stands_alone(table, change.op, structural) {
            self.deferred |= table.class.deferred;
            self.close();
            let bucket = self.open(&change, false);
            self.push(bucket, change.key);
            self.close();
            return Ok(());
        }
        let mut behind = match self.earlier(table, &change, free) {
            Earlier::Folded => return Ok(()),
            Earlier::Behind(bucket) => bucket.max(self.barrier),
        };
        if !structural {
            let bucket = self.join(&change, behind, free);
            self.touch(&change, bucket);
            return Ok(());
        }
        let links = Structural { table, op: change.op, key: change.key, sets: &self.sets };
        behind = behind.max(self.links.earliest(self.schema, links));
        if change.op == Op::Update && table.has_unique {
            // Two of them in one statement could be checked in another order than they were made.
            behind = self.plan.buckets.len() as u32;
        }
        let bucket = self.join(&change, behind, free);
        let links = Structural { table, op: change.op, key: change.key, sets: &self.sets };
        self.links.note(self.schema, links, bucket);
        self.touch(&change, bucket);
        Ok(())
    }

    fn read_sets(&mut self, table: &Table, change: &Change<'a>) -> Result<(), MalformedGroup> {
        self.sets.clear();
        for (column, set) in change.sets() {
            let (target, cell) = target(column, set).ok_or(MalformedGroup)?;
            let known = (table.key_len..table.columns.len()).contains(&column);
            if !known || (target.increment && change.op == Op::Insert) {
                return Err(MalformedGroup);
            }
            let at = self.sets.partition_point(|(t, _)| t.column < target.column);
            if self.sets.get(at).is_some_and(|(t, _)| t.column == target.column) {
                return Err(MalformedGroup);
            }
            self.sets.insert(at, (target, cell));
        }
        Ok(())
    }

    fn any(&self, table: &Table, is: impl Fn(&crate::schema::Column) -> bool) -> bool {
        self.sets.iter().any(|(t, _)| is(&table.columns[usize::from(t.column)]))
    }

    /// Walks back over the touches of the row: folds the change into one, passes those it commutes with.
    fn earlier(&mut self, table: &Table, change: &Change<'a>, free: bool) -> Earlier {
        let Some(&newest) = self.plan.touched.get(&(change.table, change.key)) else {
            return Earlier::Behind(0);
        };
        let mut behind = 0;
        let mut at = newest;
        while at != NONE {
            let touch = self.touches[at as usize];
            let bucket = &mut self.plan.buckets[touch.bucket as usize];
            // Once something stands in between, the change cannot move before it.
            if behind <= touch.bucket
                && free
                && fold::fold(table, bucket, touch.row as usize, &self.sets)
            {
                return Earlier::Folded;
            }
            if !(free && bucket.free && disjoint(&bucket.columns, &self.sets)) {
                behind = behind.max(touch.bucket + 1);
                if !bucket.free {
                    // It commutes with nothing on this row, so older touches are in earlier buckets.
                    break;
                }
            }
            at = touch.before;
        }
        Earlier::Behind(behind)
    }

    /// The bucket that takes the change: the newest of its shape unless it is before `behind`, else a new one.
    fn join(&mut self, change: &Change<'a>, behind: u32, free: bool) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        (change.table.0, change.op).hash(&mut hasher);
        for (target, _) in &self.sets {
            target.hash(&mut hasher);
        }
        let shape = hasher.finish();
        if let Some(&bucket) = self.shapes.get(&shape)
            && bucket >= behind
            && self.has_shape(bucket, change)
        {
            return bucket;
        }
        let bucket = self.open(change, free);
        self.shapes.insert(shape, bucket);
        bucket
    }

    fn has_shape(&self, bucket: u32, change: &Change<'a>) -> bool {
        let bucket = &self.plan.buckets[bucket as usize];
        bucket.table == change.table
            && bucket.op == change.op
            && bucket.columns.iter().eq(self.sets.iter().map(|(target, _)| target))
    }

    fn open(&mut self, change: &Change<'a>, free: bool) -> u32 {
        self.plan.buckets.push(Bucket {
            table: change.table,
            op: change.op,
            columns: self.sets.iter().map(|(target, _)| *target).collect(),
            check_after: false,
            keys: Vec::new(),
            values: Vec::new(),
            free,
        });
        self.plan.buckets.len() as u32 - 1
    }

    fn push(&mut self, bucket: u32, key: &'a [u8]) -> u32 {
        let bucket = &mut self.plan.buckets[bucket as usize];
        bucket.keys.push(key);
        bucket.values.extend(self.sets.iter().map(|(_, cell)| Datum::Borrowed(*cell)));
        bucket.keys.len() as u32 - 1
    }

    fn touch(&mut self, change: &Change<'a>, bucket: u32) {
        let row = self.push(bucket, change.key);
        let new = self.touches.len() as u32;
        let before = match self.plan.touched.entry((change.table, change.key)) {
            Entry::Occupied(mut entry) => std::mem::replace(entry.get_mut(), new),
            Entry::Vacant(entry) => {
                entry.insert(new);
                NONE
            }
        };
        self.touches.push(Touch { bucket, row, before });
    }

    /// Nothing may join the buckets so far, so what they hold need not be remembered.
    fn close(&mut self) {
        self.barrier = self.plan.buckets.len() as u32;
        self.plan.touched.clear();
        self.touches.clear();
        self.shapes.clear();
    }
}

/// Whether the change may cause more at the origin than its own row shows.
fn stands_alone(table: &Table, op: Op, structural: bool) -> bool {
    let is_told = |set: &SetByTrigger| !set.merges || table.columns[set.column].checked;
    table.class.opaque.is_some()
        || table.class.sets.iter().any(is_told)
        || table.class.deferred
        || table.columns.iter().any(|c| c.generated)
        || (!table.class.cascades_to.is_empty() && structural && op != Op::Insert)
}

fn disjoint(columns: &[Target], sets: &[(Target, Cell<'_>)]) -> bool {
    sets.iter().all(|(t, _)| columns.binary_search_by_key(&t.column, |c| c.column).is_err())
}
