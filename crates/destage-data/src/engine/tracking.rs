//! Which keys clients hold in caches of their own (CLIENT TRACKING), and whom a change concerns.
//!
//! What is kept hangs on cached rows: [`super::rows::Rows`] says of every row that changes, or leaves the cache, before
//! anything else is read. So a key is held by a client only as long as the rows that its reply was made of are in memory as
//! they were. That a row leaves is told like a change: Destage hears of what others write only for rows that it holds, and
//! bounds only their age. So the table of keys is never larger than the cache, besides its own bound.

use super::rows::RowKey;
use crate::schema::TableId;
use destage_core::{ClientId, Time};
use destage_runtime::status::TrackingReport;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

/// A client that is told, from CLIENT TRACKING ON until OFF; never used again.
pub(crate) type TrackerId = u64;

/// Most names that one client is told at a time: of more, it is told that all may have changed.
const NAMES_MAX: usize = 10_000;
/// What an entry takes besides its key and its name, bytes.
const ENTRY_BYTES: usize = 112;
/// Most bytes of entries, on average.
const BYTES_EACH: usize = 1024;
/// What depends on tables that nobody names stands under this number, which no table has.
const ANY_TABLE: TableId = TableId(u16::MAX);

/// Of which keys a client is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Of those that it reads.
    #[default]
    Read,
    /// Of those that it reads behind CLIENT CACHING YES.
    OptIn,
    /// Of those that it reads, but behind CLIENT CACHING NO.
    OptOut,
    /// Of all, or of those that begin with its prefixes.
    Broadcast,
}

/// How a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracker {
    pub(super) client: ClientId,
    /// The connection that is told in its place.
    pub(super) redirect: Option<ClientId>,
    /// That connection is gone.
    pub(super) is_broken: bool,
    pub(super) mode: Mode,
    /// It is not told of its own writes.
    pub(super) noloop: bool,
    /// All keys, if there are none.
    pub(super) prefixes: Vec<Box<[u8]>>,
}

impl Tracker {
    /// Of what this client reads.
    pub(super) fn of(client: ClientId) -> Self {
        let (redirect, prefixes) = (None, Vec::new());
        Self { client, redirect, is_broken: false, mode: Mode::Read, noloop: false, prefixes }
    }
}

/// A client holds what this key was when it read this row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    table: TableId,
    key: Box<[u8]>,
    name: Box<[u8]>,
    tracker: TrackerId,
}

/// What a client is to be told.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) names: BTreeSet<Box<[u8]>>,
    /// Any key may have changed.
    pub(super) all: bool,
}

impl Told {
    fn add(&mut self, name: Box<[u8]>) {
        if self.all {
            return;
        }
        self.names.insert(name);
        if self.names.len() > NAMES_MAX {
            self.set_all();
        }
    }

    fn set_all(&mut self) {
        (self.names, self.all) = (BTreeSet::new(), true);
    }
}

/// Rows that changed and are to be told to whoever is told of keys that it has not read; and by whose own write.
#[derive(Debug, Default)]
pub(super) struct Changed {
    pub(super) rows: BTreeMap<RowKey, Option<TrackerId>>,
    pub(super) all: bool,
}

/// All that clients hold.
#[derive(Debug, Default)]
pub(super) struct Tracking {
    trackers: BTreeMap<TrackerId, Tracker>,
    last: TrackerId,
    broadcasters: usize,
    entries: BTreeSet<Entry>,
    entries_max: usize,
    /// Entries that differ by more than the client.
    keys: usize,
    bytes: usize,
    /// Where the search for an entry to drop goes on.
    hand: Option<Entry>,
    /// What is held until a time at most, which is the earliest that was asked for.
    deadlines: BTreeSet<(Time, RowKey)>,
    held_until: BTreeMap<RowKey, Time>,
    /// Whose write is being made visible.
    own: Option<TrackerId>,
    /// The keys that writes have named since clients were told last, each with the newest of these commands. Whatever else shows
    /// the same rows, its client is told of.
    own_names: BTreeMap<Box<[u8]>, u64>,
    /// The number of the command that is about to write.
    command: u64,
    pending: BTreeMap<TrackerId, Told>,
    changed: Changed,
    told_total: u64,
    dropped_total: u64,
}

/// Clients.
impl Tracking {
    /// Nobody is told anything; at most so many entries are kept.
    pub(super) fn new(entries_max: usize) -> Self {
        Self { entries_max, ..Self::default() }
    }

    /// The most entries that are kept.
    pub(super) fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// A client is told from now on, or otherwise than before; its number is returned.
    pub(super) fn track(&mut self, known: Option<TrackerId>, tracker: Tracker) -> TrackerId {
        let id = known.unwrap_or_else(|| {
            self.last += 1;
            self.last
        });
        self.trackers.insert(id, tracker);
        self.count_broadcasters();
        id
    }

    /// It is told nothing more.
    pub(super) fn untrack(&mut self, id: TrackerId) {
        self.trackers.remove(&id);
        self.pending.remove(&id);
        self.count_broadcasters();
        if self.trackers.is_empty() {
            // What others left is forgotten one by one, as it changes; here all of it at once.
            let Self { last, entries_max, told_total, dropped_total, .. } = *self;
            *self = Self { last, entries_max, told_total, dropped_total, ..Self::default() };
        }
    }

    fn count_broadcasters(&mut self) {
        let modes = self.trackers.values().map(|tracker| tracker.mode);
        self.broadcasters = modes.filter(|mode| *mode == Mode::Broadcast).count();
    }

    /// How a client is told.
    pub(super) fn tracker(&self, id: TrackerId) -> Option<&Tracker> {
        self.trackers.get(&id)
    }

    /// Those that are told of keys that they have not read.
    pub(super) fn broadcasters(&self) -> impl Iterator<Item = (TrackerId, &Tracker)> {
        let all = self.trackers.iter().filter(|(_, tracker)| tracker.mode == Mode::Broadcast);
        all.map(|(id, tracker)| (*id, tracker))
    }

    /// A connection is gone: who was told by it, and is told no more.
    pub(super) fn break_redirects(&mut self, target: ClientId) -> Vec<ClientId> {
        let broken = self.trackers.values_mut().filter(|one| one.redirect == Some(target));
        let broken = broken.filter(|one| !one.is_broken).map(|one| {
            one.is_broken = true;
            one.client
        });
        broken.collect()
    }

    /// What there is to see.
    pub(super) fn report(&self) -> TrackingReport {
        let prefixes = self.broadcasters().map(|(_, tracker)| tracker.prefixes.len().max(1) as u64);
        TrackingReport {
            clients: self.trackers.len() as u64,
            keys: self.keys as u64,
            items: self.entries.len() as u64,
            items_max: self.entries_max as u64,
            prefixes: prefixes.sum(),
            bytes: self.bytes as u64,
            invalidations_total: self.told_total,
            dropped_total: self.dropped_total,
        }
    }
}

/// What they hold.
impl Tracking {
    /// Whether no change concerns anyone.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.trackers.is_empty()
    }

    /// A client holds what this name is, which this row says.
    pub(super) fn remember(&mut self, tracker: TrackerId, table: TableId, key: &[u8], name: &[u8]) {
        let entry = Entry { table, key: key.into(), name: name.into(), tracker };
        let is_known_key = self.has_key_of(&entry);
        let size = ENTRY_BYTES + key.len() + name.len();
        if !self.entries.insert(entry) {
            return;
        }
        self.keys += usize::from(!is_known_key);
        self.bytes += size;
        // Clients choose how long a name is, as far as there are several spellings.
        let bytes_max = self.entries_max.saturating_mul(BYTES_EACH);
        while self.entries.len() > self.entries_max || self.bytes > bytes_max {
            self.drop_one();
        }
    }

    /// Whether any client holds this name by this row.
    fn has_key_of(&self, entry: &Entry) -> bool {
        let first = Entry { tracker: 0, ..entry.clone() };
        let found = self.entries.range(first..).next();
        found.is_some_and(|found| {
            (found.table, &found.key, &found.name) == (entry.table, &entry.key, &entry.name)
        })
    }

    fn forget(&mut self, entry: &Entry) {
        if self.entries.remove(entry) {
            self.bytes -= ENTRY_BYTES + entry.key.len() + entry.name.len();
            self.keys -= usize::from(!self.has_key_of(entry));
        }
    }

    /// There is no room for all entries: one of them is dropped, and its client told. They are dropped in the order of their
    /// keys, which has nothing to do with their use.
    fn drop_one(&mut self) {
        let behind = self.hand.take();
        let next = behind.and_then(|hand| self.entries.range((Excluded(hand), Unbounded)).next());
        let Some(entry) = next.or_else(|| self.entries.first()).cloned() else { return };
        self.forget(&entry);
        self.tell(entry.tracker, entry.name.clone());
        self.dropped_total += 1;
        self.hand = Some(entry);
    }

    /// What hangs on a row is held until this time at most.
    pub(super) fn hold_until(&mut self, at: Time, table: TableId, key: &[u8]) {
        let row: RowKey = (table, key.into());
        if self.held_until.get(&row).is_some_and(|known| *known <= at) {
            return;
        }
        if let Some(later) = self.held_until.insert(row.clone(), at) {
            self.deadlines.remove(&(later, row.clone()));
        }
        self.deadlines.insert((at, row));
    }

    /// It is another, and nobody holds it until any time.
    fn end_hold(&mut self, table: TableId, key: &[u8]) {
        if self.held_until.is_empty() {
            return;
        }
        let row: RowKey = (table, key.into());
        if let Some(at) = self.held_until.remove(&row) {
            self.deadlines.remove(&(at, row));
        }
    }

    /// What is held no longer.
    pub(super) fn expire(&mut self, now: Time) {
        while let Some((at, (table, key))) = self.deadlines.first().cloned()
            && at <= now
        {
            self.row_changed(table, &key);
        }
    }

    /// When that is to be looked at next; at once where something is to be told.
    pub(super) fn next_timeout(&self, now: Time) -> Option<Time> {
        if self.has_pending() {
            return Some(now);
        }
        self.deadlines.first().map(|(at, _)| *at)
    }
}

/// Changes.
impl Tracking {
    /// Another command is about to write.
    pub(super) fn begin_command(&mut self) {
        self.command += 1;
    }

    /// Its client, and keys that it names.
    pub(super) fn name_own<'n>(
        &mut self,
        tracker: Option<TrackerId>,
        names: impl Iterator<Item = &'n [u8]>,
    ) {
        if tracker.and_then(|id| self.trackers.get(&id)).is_some_and(|one| one.noloop) {
            self.own_names.extend(names.map(|name| (name.into(), self.command)));
        }
    }

    /// Nobody is about to write.
    pub(super) fn forget_names(&mut self) {
        self.own_names.clear();
    }

    /// What changes until [`Tracking::end_own`] is this client's own write, as far as it has named it.
    pub(super) fn begin_own(&mut self, tracker: Option<TrackerId>) {
        self.own = tracker.filter(|id| self.trackers.get(id).is_some_and(|one| one.noloop));
    }

    /// Whether a write of its own has named this key.
    pub(super) fn has_named(&self, name: &[u8]) -> bool {
        self.own_names.contains_key(name)
    }

    /// What changes from now on is not.
    pub(super) fn end_own(&mut self) {
        self.own = None;
    }

    /// A row is another from now on, or not in memory any more.
    pub(super) fn row_changed(&mut self, table: TableId, key: &[u8]) {
        if self.broadcasters > 0 && !key.is_empty() && !self.changed.all {
            let by = self.changed.rows.entry((table, key.into())).or_insert(self.own);
            if *by != self.own {
                *by = None;
            }
            if self.changed.rows.len() > NAMES_MAX {
                self.changed = Changed { rows: BTreeMap::new(), all: true };
            }
        }
        self.end_hold(table, key);
        if self.entries.is_empty() {
            return;
        }
        let first = Entry { table, key: key.into(), name: Box::default(), tracker: 0 };
        let of_row = self.entries.range(first..);
        let of_row = of_row.take_while(|entry| entry.table == table && *entry.key == *key);
        // Its own write does not end what a client holds: the next one of another client is to be told.
        let is_own = |entry: &Entry| {
            Some(entry.tracker) == self.own
                && self.own_names.get(&entry.name) == Some(&self.command)
        };
        let found: Vec<Entry> = of_row.filter(|entry| !is_own(entry)).cloned().collect();
        for entry in found {
            self.forget(&entry);
            self.tell(entry.tracker, entry.name);
        }
    }

    /// The results of queries about a table are others from now on; without one, those of all tables.
    pub(super) fn results_changed(&mut self, table: Option<TableId>) {
        if self.entries.is_empty() {
            return;
        }
        let Some(table) = table else {
            return self
                .tables_of_results()
                .into_iter()
                .for_each(|table| self.row_changed(table, &[]));
        };
        self.row_changed(table, &[]);
        self.row_changed(ANY_TABLE, &[]);
    }

    /// The tables that results depend on which clients hold. Their entries are the first ones of their table.
    fn tables_of_results(&self) -> Vec<TableId> {
        let (mut tables, mut from) = (Vec::new(), Some(0));
        while let Some(number) = from {
            let (key, name) = (Box::default(), Box::default());
            let first = Entry { table: TableId(number), key, name, tracker: 0 };
            let Some(found) = self.entries.range(first..).next() else { break };
            if found.key.is_empty() {
                tables.push(found.table);
            }
            from = found.table.0.checked_add(1);
        }
        tables
    }

    /// A client holds a result that depends on a table; without one, on tables that nobody names.
    pub(super) fn remember_result(
        &mut self,
        tracker: TrackerId,
        table: Option<TableId>,
        name: &[u8],
    ) {
        self.remember(tracker, table.unwrap_or(ANY_TABLE), &[], name);
    }

    /// A client is told of a name.
    pub(super) fn tell(&mut self, tracker: TrackerId, name: Box<[u8]>) {
        if self.trackers.contains_key(&tracker) {
            self.pending.entry(tracker).or_default().add(name);
        }
    }

    /// A client is told that all may have changed.
    pub(super) fn tell_all(&mut self, tracker: TrackerId) {
        self.pending.entry(tracker).or_default().set_all();
    }

    /// Whether there is something to be told.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || !self.changed.rows.is_empty() || self.changed.all
    }

    /// The rows that whoever is told of all keys is to be told of.
    pub(super) fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.changed)
    }

    /// What clients are to be told.
    pub(super) fn take_pending(&mut self) -> BTreeMap<TrackerId, Told> {
        let pending = std::mem::take(&mut self.pending);
        let names = pending.values().map(|told| told.names.len() as u64 + u64::from(told.all));
        self.told_total += names.sum::<u64>();
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TableId = TableId(1);

    fn tracking(entries_max: usize, trackers: &[Tracker]) -> Tracking {
        let mut tracking = Tracking::new(entries_max);
        for one in trackers {
            tracking.track(None, one.clone());
        }
        tracking
    }

    fn told(tracking: &mut Tracking) -> Vec<(TrackerId, String)> {
        let names = |(id, told): (TrackerId, Told)| {
            let text = |name: Box<[u8]>| String::from_utf8_lossy(&name).into_owned();
            told.names.into_iter().map(move |name| (id, text(name))).collect::<Vec<_>>()
        };
        tracking.take_pending().into_iter().flat_map(names).collect()
    }

    #[test]
    fn a_change_is_told_once_to_all_who_hold_the_row_under_each_of_its_names() {
        let mut tracking = tracking(100, &[Tracker::of(ClientId(0)), Tracker::of(ClientId(0))]);
        for (tracker, name) in [(1, "t:1"), (1, "t:01"), (2, "t:1"), (1, "t:1")] {
            tracking.remember(tracker, T, b"1", name.as_bytes());
        }
        tracking.remember(2, T, b"2", b"t:2");
        let report = tracking.report();
        assert_eq!((report.items, report.keys), (4, 3));
        tracking.row_changed(T, b"1");
        tracking.row_changed(T, b"1");
        let all = [(1, "t:01"), (1, "t:1"), (2, "t:1")].map(|(id, name)| (id, name.to_owned()));
        assert_eq!(told(&mut tracking), all);
        tracking.row_changed(T, b"1");
        assert!(!tracking.has_pending());
        assert_eq!((tracking.report().items, tracking.report().keys), (1, 1));
        tracking.untrack(1);
        tracking.untrack(2);
        assert_eq!((tracking.report().items, tracking.report().bytes), (0, 0));
    }

    #[test]
    fn what_has_no_room_is_dropped_and_told() {
        let mut tracking = tracking(10, &[Tracker::of(ClientId(0))]);
        for n in 0..30_u8 {
            tracking.remember(1, T, &[n], format!("t:{n}").as_bytes());
            assert!(tracking.report().items <= 10);
        }
        assert_eq!((told(&mut tracking).len(), tracking.report().dropped_total), (20, 20));
    }

    #[test]
    fn who_does_not_want_its_own_writes_is_told_of_the_next_one_by_another() {
        let own = Tracker { noloop: true, ..Tracker::of(ClientId(0)) };
        let mut tracking = tracking(10, &[own, Tracker::of(ClientId(0))]);
        tracking.remember(1, T, b"1", b"t:1");
        // Of another key that shows the row it knows nothing.
        tracking.remember(1, T, b"1", b"set");
        tracking.begin_command();
        tracking.name_own(Some(1), [&b"t:1"[..]].into_iter());
        tracking.begin_own(Some(1));
        tracking.row_changed(T, b"1");
        tracking.end_own();
        assert_eq!(told(&mut tracking), [(1, "set".to_owned())]);
        tracking.begin_command();
        tracking.begin_own(Some(2));
        tracking.row_changed(T, b"1");
        assert_eq!(told(&mut tracking), [(1, "t:1".to_owned())]);
    }

    #[test]
    fn a_result_is_held_until_the_earliest_time_and_remembered_once() {
        let mut tracking = tracking(100, &[Tracker::of(ClientId(0))]);
        for at in [9, 5, 7, 6] {
            tracking.remember(1, T, b"q", b"top");
            tracking.hold_until(Time::from_secs(at), T, b"q");
        }
        assert_eq!((tracking.deadlines.len(), tracking.held_until.len()), (1, 1));
        tracking.expire(Time::from_secs(4));
        assert_eq!(tracking.next_timeout(Time::ZERO), Some(Time::from_secs(5)));
        tracking.expire(Time::from_secs(5));
        assert_eq!(told(&mut tracking), [(1, "top".to_owned())]);
        // It changes before its time: nothing is left of that.
        tracking.remember(1, T, b"q", b"top");
        tracking.hold_until(Time::from_secs(9), T, b"q");
        tracking.row_changed(T, b"q");
        assert_eq!((tracking.deadlines.len(), tracking.held_until.len()), (0, 0));
    }

    #[test]
    fn long_names_are_dropped_earlier_than_many() {
        let mut tracking = tracking(100, &[Tracker::of(ClientId(0))]);
        for n in 0..30_usize {
            tracking.remember(1, T, &[n as u8], &vec![b'0'; 10_000 + n]);
            assert!(tracking.report().bytes <= (100 * BYTES_EACH) as u64);
        }
        assert!(tracking.report().items > 5 && tracking.report().dropped_total > 15);
    }

    #[test]
    fn results_of_any_table_are_found_among_all_that_is_held() {
        let mut tracking = tracking(100, &[Tracker::of(ClientId(0))]);
        for table in [0, 3, 9, u16::MAX - 1] {
            tracking.remember(1, TableId(table), b"row", b"row");
        }
        for table in [Some(TableId(3)), Some(TableId(7)), None] {
            tracking.remember_result(1, table, format!("{table:?}").as_bytes());
        }
        assert_eq!(tracking.tables_of_results(), [TableId(3), TableId(7), ANY_TABLE]);
        tracking.results_changed(None);
        assert_eq!(told(&mut tracking).len(), 3);
        assert_eq!(tracking.report().items, 4, "rows are held on");
    }

    #[test]
    fn too_many_names_are_told_as_all() {
        let mut tracking = tracking(usize::MAX, &[Tracker::of(ClientId(0))]);
        for n in 0..=NAMES_MAX as u32 {
            tracking.remember(1, T, &n.to_le_bytes(), format!("t:{n}").as_bytes());
        }
        (0..=NAMES_MAX as u32).for_each(|n| tracking.row_changed(T, &n.to_le_bytes()));
        let pending = tracking.take_pending();
        assert!(pending[&1].all && pending[&1].names.is_empty());
    }
}
