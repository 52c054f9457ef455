//! What is cached of a kind of entries. The engine's thread brings it up to date, a whole write group in one step; the
//! program's threads look into it and add to it.
//!
//! The program's code may panic. Where the engine's thread calls it, what it may have left wrong is dropped.

use super::pending::Pending;
use super::{AsOf, Entry, Merge, RowChange};
use crate::change::{self, GroupWriter};
use crate::domains::Partition;
use crate::engine::Observer;
use crate::schema::{Schema, TableId};
use crate::store::shelf::Shelf;
use destage_core::{DomainId, Lsn};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A kind of entries.
pub(super) struct Kind<E: Entry> {
    pub(super) entry: E,
    pub(super) partition: Arc<Partition>,
    state: Mutex<State<E::Value>>,
    /// Its code has panicked, which the log tells once.
    has_panicked: AtomicBool,
}

impl<E: Entry> std::fmt::Debug for Kind<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kind").finish_non_exhaustive()
    }
}

/// What is known of its entries.
pub(super) struct State<V> {
    pub(super) cached: Shelf<Cached<V>>,
    pub(super) pending: Pending,
    /// Counts what changed in ways that nobody knows.
    pub(super) unsure: u64,
    /// The newest group that may make any entry another, for each domain whose watermark tells of one: raw SQL, or a change
    /// that the mapping has panicked at.
    opaque: BTreeMap<DomainId, Lsn>,
    /// Whether entries come with their watermark, as far as is known.
    pub(super) tells_watermark: bool,
}

/// An entry that is cached.
pub(super) struct Cached<V> {
    pub(super) value: V,
    /// The newest change in it.
    pub(super) newest: Lsn,
    /// The watermarks as of which it was computed: changes up to there are in it already, later ones can be merged.
    pub(super) as_of: Option<AsOf>,
}

/// A miss under way: what its snapshot may lack is kept until this is dropped.
pub(super) struct Miss<'k, E: Entry> {
    kind: &'k Kind<E>,
    decided: Lsn,
}

impl<E: Entry> Drop for Miss<'_, E> {
    fn drop(&mut self) {
        self.kind.state().pending.end_miss(self.decided);
    }
}

impl<V> State<V> {
    /// The newest change that makes an entry another, or may, and that the origin may lack.
    pub(super) fn newest_pending(&self, name: &str) -> Option<Lsn> {
        let decided = self.pending.decided();
        let opaque = self.opaque.values().copied().filter(|lsn| *lsn > decided).max();
        self.pending.newest(name).max(opaque)
    }

    /// Whether an entry of this state may lack what made any entry another.
    pub(super) fn is_opaque_behind(&self, as_of: &AsOf) -> bool {
        self.opaque.iter().any(|(&domain, &lsn)| as_of.of(domain) < lsn)
    }

    /// Any entry may be another.
    fn doubt(&mut self) {
        self.cached.clear();
        self.unsure += 1;
    }

    /// Any entry may be another once the origin has decided a group, of which the watermark of this domain tells.
    fn doubt_until(&mut self, lsn: Lsn, domain: DomainId) {
        let newest = self.opaque.entry(domain).or_insert(lsn);
        *newest = lsn.max(*newest);
        self.doubt();
    }
}

impl<E: Entry> Kind<E> {
    /// Nothing is cached yet.
    pub(super) fn new(entry: E, partition: Arc<Partition>) -> Self {
        let state = State {
            cached: Shelf::new(entry.bytes_max()),
            pending: Pending::default(),
            unsure: 0,
            opaque: BTreeMap::new(),
            tells_watermark: true,
        };
        let has_panicked = AtomicBool::new(false);
        Self { entry, partition, state: Mutex::new(state), has_panicked }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State<E::Value>> {
        // Whatever panics while it is held has changed nothing yet: a value that is cloned, or measured.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A miss begins.
    pub(super) fn begin_miss(&self, state: &mut State<E::Value>) -> Miss<'_, E> {
        Miss { kind: self, decided: state.pending.begin_miss() }
    }

    /// Merges a change; the bytes that the value takes then, or `None` if it is of no use any more.
    pub(super) fn merge(
        &self,
        name: &str,
        value: &mut E::Value,
        change: &RowChange<'_>,
    ) -> Option<usize> {
        let merge = |entry: &E| match entry.merge(name, value, change) {
            Merge::Merged => Some(entry.bytes(value)),
            Merge::Drop => None,
        };
        self.guarded(merge).flatten()
    }

    /// Brings what is cached up to date with a change of this entry.
    fn merge_cached(
        &self,
        state: &mut State<E::Value>,
        name: &str,
        (lsn, domain): (Lsn, DomainId),
        change: &RowChange<'_>,
    ) {
        let Some(cached) = state.cached.get_mut(name) else { return };
        if cached.as_of.as_ref().is_some_and(|as_of| lsn <= as_of.of(domain)) {
            return;
        }
        cached.newest = cached.newest.max(lsn);
        let can_merge = cached.as_of.is_some();
        let bytes = can_merge.then(|| self.merge(name, &mut cached.value, change)).flatten();
        match bytes {
            Some(bytes) => state.cached.resize(name, bytes),
            None => state.cached.remove(name),
        }
    }

    /// The names of the entries that a change makes another, each once; `None` if nobody knows.
    fn names(&self, change: &RowChange<'_>) -> Option<Vec<String>> {
        let mut names = self.guarded(|entry| entry.mapping(change))?;
        names.sort_unstable();
        names.dedup();
        Some(names)
    }

    /// What the program's code makes of something; `None` if it panics.
    fn guarded<T>(&self, call: impl FnOnce(&E) -> T) -> Option<T> {
        let called = catch_unwind(AssertUnwindSafe(|| call(&self.entry)));
        if called.is_err() && !self.has_panicked.swap(true, Ordering::Relaxed) {
            tracing::error!(
                kind = std::any::type_name::<E>(),
                "the mapping or merge of a kind of cache entries has panicked: entries are dropped and computed again \
                 wherever it does, which is told only once"
            );
        }
        called.ok()
    }
}

impl<E: Entry> Observer for Kind<E> {
    fn changed(
        &self,
        schema: &Schema,
        lsn: Lsn,
        changes: &[change::Change<'_>],
    ) -> Option<Vec<String>> {
        let names = |change| self.names(&RowChange::of(schema, change));
        let named: Vec<_> = changes.iter().map(names).collect();
        // Nobody looks while a part of the group is merged.
        let mut state = self.state();
        let mut all = Some(Vec::new());
        for (change, names) in changes.iter().zip(named) {
            let domain = self.partition.of_row(change.table, change.key);
            let Some(names) = names else {
                state.doubt_until(lsn, domain);
                all = None;
                continue;
            };
            if names.is_empty() {
                continue;
            }
            for name in &names {
                let change = RowChange::of(schema, change);
                self.merge_cached(&mut state, name, (lsn, domain), &change);
            }
            state.pending.push(lsn, domain, &names, &encoded(change));
            if let Some(all) = &mut all {
                all.extend(names);
            }
        }
        all
    }

    fn raw_sql(&self, lsn: Lsn, domain: DomainId) {
        self.state().doubt_until(lsn, domain);
    }

    fn unsure(&self, _: &[TableId]) {
        self.state().doubt();
    }

    fn decided(&self, upto: Lsn) {
        self.state().pending.decide(upto);
    }
}

/// One change in the form of a group.
fn encoded(change: &change::Change<'_>) -> Arc<[u8]> {
    let mut writer = GroupWriter::new();
    writer.begin(change.table, change.op, change.key);
    change.sets().for_each(|(column, set)| writer.set(column, set));
    writer.finish().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::{Cell, push_cell};
    use crate::change::{Op, Set};
    use crate::schema::{Column, Table};
    use crate::store::{ColumnChange, Computed, Error};
    use crate::value::ColumnType;

    /// The sum over all rows. It panics at amounts that are no numbers.
    struct Sum;

    impl Entry for Sum {
        type Value = i64;

        fn compute(&self, _: &str) -> Result<Computed<i64>, Error> {
            unreachable!("nobody asks the origin")
        }

        fn mapping(&self, change: &RowChange<'_>) -> Vec<String> {
            assert_ne!(change.key("id"), "13", "the mapping panics");
            ["sum", "all", "sum"].map(Into::into).into()
        }

        fn merge(&self, _: &str, sum: &mut i64, change: &RowChange<'_>) -> Merge {
            let Some(ColumnChange::By(amount)) = change.column("n") else { return Merge::Drop };
            let text = std::str::from_utf8(amount).unwrap();
            *sum += text.parse::<i64>().expect("the merge panics");
            Merge::Merged
        }
    }

    fn schema() -> Schema {
        let mut table = Table::named("counts".into(), "counts".into());
        let int = |name| Column::named(name, ColumnType::Int { min: i64::MIN, max: i64::MAX });
        (table.columns, table.key_len) = (vec![int("id"), int("n")], 1);
        Schema::new(vec![table], vec![])
    }

    fn kind() -> Kind<Sum> {
        Kind::new(Sum, Arc::new(Partition::one(&schema())))
    }

    impl Kind<Sum> {
        /// The sum as of the beginning.
        fn keep(&self, sum: i64) {
            let cached =
                Cached { value: sum, newest: Lsn::ZERO, as_of: Some(AsOf::One(Lsn::ZERO)) };
            self.state().cached.insert("sum", cached, 8);
        }

        fn kept(&self) -> Option<i64> {
            self.state().cached.hit("sum").map(|cached| cached.value)
        }

        /// A group adds these amounts to rows.
        fn add(&self, lsn: u64, rows: &[(&str, &str)]) -> Option<Vec<String>> {
            let schema = schema();
            let mut writer = GroupWriter::new();
            for (id, amount) in rows {
                let mut key = Vec::new();
                push_cell(&mut key, Cell::Value(id.as_bytes()));
                writer.begin(TableId(0), Op::Update, &key);
                writer.set(1, Set::By(amount.as_bytes()));
            }
            let changes = change::changes(writer.finish(), |_| Some(1));
            let changes: Vec<_> = changes.map(|change| change.unwrap()).collect();
            self.changed(&schema, Lsn(lsn), &changes)
        }
    }

    #[test]
    fn an_entry_that_a_mapping_names_twice_is_merged_once() {
        let kind = kind();
        kind.keep(100);
        assert_eq!(kind.add(1, &[("1", "5")]), Some(vec!["all".into(), "sum".into()]));
        assert_eq!(kind.kept(), Some(105));
        assert_eq!(kind.state().pending.of("sum").count(), 1);
        // Two rows of a group are two changes.
        kind.add(2, &[("1", "5"), ("2", "5")]);
        assert_eq!(kind.kept(), Some(115));
        assert_eq!(kind.state().pending.of("sum").count(), 3);
    }

    #[test]
    fn an_entry_whose_merge_panics_is_dropped() {
        let kind = kind();
        kind.keep(100);
        assert!(kind.add(1, &[("1", "5"), ("2", "x")]).is_some());
        assert_eq!(kind.kept(), None);
        assert_eq!(kind.state().newest_pending("sum"), Some(Lsn(1)));
        let (mut sum, mut merged) = (100, Vec::new());
        let schema = schema();
        for lacking in kind.state().pending.of("sum") {
            for change in change::changes(&lacking.bytes, |_| Some(1)).flatten() {
                merged.push(kind.merge("sum", &mut sum, &RowChange::of(&schema, &change)));
            }
        }
        assert_eq!(merged, [Some(8), None], "nor does a miss merge it");
    }

    #[test]
    fn whatever_a_mapping_that_panics_may_have_named_is_dropped_until_the_origin_has_it() {
        let kind = kind();
        kind.keep(100);
        let unsure = kind.state().unsure;
        assert_eq!(kind.add(1, &[("1", "5"), ("13", "5")]), None, "nobody knows");
        assert_eq!(kind.kept(), None);
        assert_ne!(kind.state().unsure, unsure, "what is computed meanwhile is not kept");
        assert_eq!(kind.state().newest_pending("of no change"), Some(Lsn(1)));
        let is_behind = |upto| kind.state().is_opaque_behind(&AsOf::One(Lsn(upto)));
        assert!(is_behind(0) && !is_behind(1));
        // One that was told of behind it leaves it as it is.
        kind.add(2, &[("13", "5")]);
        kind.add(1, &[("13", "5")]);
        assert!(is_behind(1));
        kind.decided(Lsn(2));
        assert_eq!(kind.state().newest_pending("of no change"), None);
    }

    #[test]
    fn a_miss_whose_computation_panics_keeps_nothing_from_being_forgotten() {
        let kind = kind();
        let computes = || {
            let _miss = kind.begin_miss(&mut kind.state());
            let _state = kind.state();
            panic!("the computation panics");
        };
        assert!(catch_unwind(AssertUnwindSafe(computes)).is_err());
        kind.add(1, &[("1", "5")]);
        kind.decided(Lsn(1));
        assert_eq!(kind.state().pending.len(), 0);
    }
}
