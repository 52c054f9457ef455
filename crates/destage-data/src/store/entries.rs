//! Cache entries of any type: what a program computes from the origin, kept as it would be computed now.
//!
//! A *mapping* names the entries that a change of a row makes another. On a miss the mapping tells which buffered writes
//! matter to the entry. Either the origin decides them first, and then the entry is computed there (Algorithm 1); or it is
//! computed at once, and the changes that the origin lacks are merged into it as *query result changes* (Algorithm 3). What
//! is cached is merged with later changes in the same way, before those are acknowledged, or dropped.
//!
//! *Source:* Ghandeharizadeh and Nguyen, write-back with cache augmented data stores, section 3.

mod kind;
mod pending;

use super::{Error, ErrorKind, Session, Store};
use crate::cells::{Cell, Reader};
use crate::change::{self, Op, Set};
use crate::origins::{Watermarks, decided_of};
use crate::schema::{Schema, Table, TableId};
use destage_core::{DomainId, Lsn};
use kind::{Cached, Kind, State};
use std::sync::Arc;

/// How often a miss starts anew because the entry changed while it was computed, before it gives up keeping it.
const MISSES_MAX: u32 = 8;
/// Most bytes of cached entries of a kind, unless given: 64 MiB.
pub const ENTRIES_BYTES_MAX_DEFAULT: u64 = 64 << 20;

/// A kind of cache entries. Mappings and merges are called on the engine's thread: they compute, and ask nobody.
///
/// They should not panic. An entry whose merge does is dropped and computed again, and where a mapping does, all entries of
/// the kind are; the log tells of the first time. A panic in [`Entry::compute`] goes on in [`Entries::get`]. A program that
/// is built to abort at panics ends.
///
/// `examples/social_counter.rs` has one.
pub trait Entry: Send + Sync + 'static {
    /// What is cached.
    type Value: Clone + Send + 'static;

    /// Computes an entry at the origin, by whatever means the program has to ask it.
    ///
    /// # Errors
    /// Whatever went wrong: [`Error::abort_with`].
    fn compute(&self, name: &str) -> Result<Computed<Self::Value>, Error>;

    /// The mapping: the names of the entries that this change makes another. All that a change *may* make another must be
    /// named, or reads see old entries.
    fn mapping(&self, change: &RowChange<'_>) -> Vec<String>;

    /// Merges a change into an entry that the mapping has named for it and that was computed with its watermark. By default
    /// the entry is dropped instead, and computed again when it is next asked for.
    fn merge(&self, name: &str, value: &mut Self::Value, change: &RowChange<'_>) -> Merge {
        let _ = (name, value, change);
        Merge::Drop
    }

    /// Bytes that a value takes. By default those of the type itself: whoever keeps texts or lists adds what these hold, or the
    /// limit means nothing.
    fn bytes(&self, value: &Self::Value) -> usize {
        size_of_val(value)
    }

    /// Most bytes of cached entries of this kind, names and overhead included. S3-FIFO chooses those that leave, as for rows.
    /// They count beside the rows' `--cache-size`, not within it.
    fn bytes_max(&self) -> u64 {
        ENTRIES_BYTES_MAX_DEFAULT
    }
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// It is now as if it had been computed after the change.
    Merged,
    /// It must be computed again.
    Drop,
}

/// An entry as computed at the origin.
#[derive(Clone, Debug)]
pub struct Computed<T> {
    value: T,
    as_of: Option<AsOf>,
}

/// Where the origin stood: each ordering domain by its number, or the only one.
#[derive(Clone, Debug)]
enum AsOf {
    One(Lsn),
    Each(Watermarks),
}

impl AsOf {
    fn of(&self, domain: DomainId) -> Lsn {
        match self {
            Self::One(watermark) => *watermark,
            Self::Each(watermarks) => decided_of(watermarks, domain),
        }
    }

    fn newest(&self) -> Lsn {
        match self {
            Self::One(watermark) => *watermark,
            Self::Each(watermarks) => {
                watermarks.iter().map(|&(_, lsn)| lsn).max().unwrap_or(Lsn::ZERO)
            }
        }
    }
}

impl<T> Computed<T> {
    /// An entry from a state of the origin that is not known closer: what the mapping names is destaged before it is
    /// computed (Algorithm 1).
    pub fn after_destaging(value: T) -> Self {
        Self { value, as_of: None }
    }

    /// An entry together with the origin's watermark in the same snapshot (`SELECT seq FROM destage_watermark WHERE domain =
    /// 0`, as a part of the same statement): what the origin lacks is merged into it (Algorithm 3). For origins that
    /// have always been one ordering domain; see [`Computed::as_of_each`] for others.
    pub fn as_of(value: T, watermark: u64) -> Self {
        Self { value, as_of: Some(AsOf::One(Lsn(watermark))) }
    }

    /// The same with all watermarks (`SELECT domain, seq FROM destage_watermark`, as a part of the same statement), for
    /// origins with any number of ordering domains.
    pub fn as_of_each(value: T, watermarks: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let watermarks = watermarks.into_iter().map(|(domain, seq)| (DomainId(domain), Lsn(seq)));
        Self { value, as_of: Some(AsOf::Each(watermarks.collect())) }
    }
}

/// A change of one row, as mappings and merges see it.
#[derive(Clone, Copy, Debug)]
pub struct RowChange<'a> {
    table: &'a Table,
    change: &'a change::Change<'a>,
}

/// What a change does to a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnChange<'a> {
    /// It takes this value; `None` is NULL.
    To(Option<&'a [u8]>),
    /// It grows by this amount, a decimal number in text form.
    By(&'a [u8]),
}

impl<'a> RowChange<'a> {
    fn of(schema: &'a Schema, change: &'a change::Change<'a>) -> Self {
        Self { table: schema.table(change.table), change }
    }

    /// The table's name.
    pub fn table(&self) -> &'a str {
        &self.table.name
    }

    /// Whether the row is made, changed or deleted.
    pub fn op(&self) -> Op {
        self.change.op
    }

    /// A column of the primary key, in text form; empty if there is no such one.
    pub fn key(&self, column: &str) -> &'a str {
        let mut cells = self.table.key().iter().zip(Reader::new(self.change.key));
        let found = cells.find(|(key, _)| key.name == column);
        let value = found.and_then(|(_, cell)| cell.value()).unwrap_or_default();
        std::str::from_utf8(value).unwrap_or_default()
    }

    /// What happens to a column; `None` if nothing does. Of a row that is made, columns with constant defaults are named,
    /// too; of one that is changed, only those that change: a mapping that depends on other columns must be told by them.
    pub fn column(&self, name: &str) -> Option<ColumnChange<'a>> {
        let index = self.table.column(name.as_bytes())?;
        let (_, set) = self.change.sets().find(|(column, _)| *column == index)?;
        Some(match set {
            Set::To(Cell::Value(value)) => ColumnChange::To(Some(value)),
            Set::To(Cell::Null | Cell::Unknown) => ColumnChange::To(None),
            Set::By(amount) => ColumnChange::By(amount),
        })
    }

    /// A column's new value as a number, if the change sets it to one.
    pub fn number(&self, name: &str) -> Option<i64> {
        match self.column(name)? {
            ColumnChange::To(value) => std::str::from_utf8(value?).ok()?.parse().ok(),
            ColumnChange::By(_) => None,
        }
    }
}

/// The entries of one kind, from [`Store::entries`]. They are followed until this is dropped.
pub struct Entries<'s, E: Entry> {
    store: &'s Store,
    kind: Arc<Kind<E>>,
}

impl Store {
    /// Follows cache entries of a kind from now on.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`].
    pub fn entries<E: Entry>(&self, entry: E) -> Result<Entries<'_, E>, Error> {
        let kind = Arc::new(Kind::new(entry, self.manager.partition()?));
        self.manager.observe(kind.clone())?;
        Ok(Entries { store: self, kind })
    }
}

impl<E: Entry> Entries<'_, E> {
    /// The entry of this name: as it is after every write that was acknowledged before.
    ///
    /// # Errors
    /// What [`Entry::compute`] said; [`ErrorKind::Timeout`] if the buffered writes that matter could not be destaged;
    /// [`ErrorKind::Busy`] with too many sessions at once; [`ErrorKind::Closed`].
    pub fn get(&self, name: &str) -> Result<E::Value, Error> {
        let (value, newest) = self.find(name)?;
        // Under d = 0 nobody sees what a crash could undo.
        self.store.manager.see(newest)?;
        Ok(value)
    }

    /// As [`Entries::get`], within a session, which holds an S lease on the entry: should a change make it another before
    /// the session has ended, the session runs again. What the session itself has changed is not in it.
    ///
    /// # Errors
    /// As for [`Entries::get`] and [`Session::read`].
    pub fn get_in(&self, session: &mut Session<'_>, name: &str) -> Result<E::Value, Error> {
        session.share(name)?;
        self.get(name)
    }

    /// Whether the entry is cached.
    pub fn is_cached(&self, name: &str) -> bool {
        self.kind.state().cached.contains(name)
    }

    /// How many entries are cached, and the bytes that they take, overhead included.
    pub fn size(&self) -> (usize, u64) {
        self.kind.state().cached.size()
    }

    fn find(&self, name: &str) -> Result<(E::Value, Lsn), Error> {
        for attempt in 1.. {
            let mut state = self.kind.state();
            if let Some(cached) = state.cached.hit(name) {
                return Ok((cached.value.clone(), cached.newest));
            }
            let mut before = AtMiss {
                newest: state.newest_pending(name),
                unsure: state.unsure,
                decided: vec![state.pending.decided()],
            };
            let tells_watermark = state.tells_watermark;
            let miss = self.kind.begin_miss(&mut state);
            drop(state);
            let computed = self.known(&mut before).and_then(|()| {
                let computed = self.compute(name, before.newest, tells_watermark)?;
                self.check_domains(&computed)?;
                Ok(computed)
            });
            let mut state = self.kind.state();
            let found = computed.map(|computed| self.install(&mut state, name, computed, &before));
            let newest = state.newest_pending(name);
            drop(state);
            drop(miss);
            match (found?, newest) {
                (Found::Kept(value, newest), _) => return Ok((value, newest)),
                (Found::Fit(value, newest), _) if attempt >= MISSES_MAX => {
                    return Ok((value, newest));
                }
                (Found::Old, _) if attempt >= MISSES_MAX => break,
                (Found::Old, Some(newest)) => self.store.manager.decide(newest)?,
                (Found::Fit(..) | Found::Old, _) => {}
            }
        }
        let message =
            format!("the entry '{name}' changes faster than it can be computed; try again");
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Completes where each of several domains is known to stand.
    fn known(&self, before: &mut AtMiss) -> Result<(), Error> {
        if !self.kind.partition.is_one() {
            before.decided = self.store.manager.watermarks()?;
        }
        Ok(())
    }

    /// One watermark says nothing about several domains.
    fn check_domains(&self, computed: &Computed<E::Value>) -> Result<(), Error> {
        match computed.as_of {
            Some(AsOf::One(_)) if !self.kind.partition.is_one() => Err(Error::new(
                ErrorKind::Invalid,
                "the origin has several ordering domains: compute entries by Computed::as_of_each or after_destaging",
            )),
            _ => Ok(()),
        }
    }

    /// Computes the entry; unless it tells its watermark, the writes that matter are at the origin before.
    fn compute(
        &self,
        name: &str,
        newest: Option<Lsn>,
        tells_watermark: bool,
    ) -> Result<Computed<E::Value>, Error> {
        if let Some(newest) = newest.filter(|_| !tells_watermark) {
            self.store.manager.decide(newest)?;
        }
        let computed = self.kind.entry.compute(name)?;
        if computed.as_of.is_some() || !tells_watermark {
            return Ok(computed);
        }
        // The first one of its kind.
        self.kind.state().tells_watermark = false;
        match newest {
            Some(newest) => {
                self.store.manager.decide(newest)?;
                self.kind.entry.compute(name)
            }
            None => Ok(computed),
        }
    }

    /// Keeps what was computed, if that can be told as of now.
    fn install(
        &self,
        state: &mut State<E::Value>,
        name: &str,
        computed: Computed<E::Value>,
        before: &AtMiss,
    ) -> Found<E::Value> {
        let Computed { mut value, as_of } = computed;
        let last = match &as_of {
            // Older than what is known to be there: a replica that lags. What it lacks may be forgotten.
            Some(as_of) if before.is_ahead_of(as_of) || state.is_opaque_behind(as_of) => {
                return Found::Old;
            }
            Some(as_of) => match self.merge_pending(state, name, &mut value, as_of) {
                Some(last) => last,
                None => return Found::Old,
            },
            None => before.newest.unwrap_or(Lsn::ZERO),
        };
        let has_changed = as_of.is_none() && state.newest_pending(name) > before.newest;
        if has_changed || state.unsure != before.unsure {
            return Found::Fit(value, last);
        }
        let cached = Cached { value: value.clone(), newest: last, as_of };
        let bytes = self.kind.entry.bytes(&cached.value);
        state.cached.insert(name, cached, bytes);
        Found::Kept(value, last)
    }

    /// Merges what the origin lacked (Algorithm 3); the newest change is returned, or `None` if one cannot be merged.
    fn merge_pending(
        &self,
        state: &State<E::Value>,
        name: &str,
        value: &mut E::Value,
        as_of: &AsOf,
    ) -> Option<Lsn> {
        let schema = self.store.schema();
        let key_len = |id: TableId| Some(schema.table(id).key_len);
        let mut last = as_of.newest();
        let pending = state.pending.of(name);
        for lacking in pending.filter(|pending| pending.lsn > as_of.of(pending.domain)) {
            last = last.max(lacking.lsn);
            for change in change::changes(&lacking.bytes, key_len).flatten() {
                self.kind.merge(name, value, &RowChange::of(schema, &change))?;
            }
        }
        Some(last)
    }
}

/// What was known when a miss began.
struct AtMiss {
    /// The newest change that the origin may lack.
    newest: Option<Lsn>,
    unsure: u64,
    /// Where each ordering domain stands at the origin, by its number.
    decided: Vec<Lsn>,
}

impl AtMiss {
    fn is_ahead_of(&self, as_of: &AsOf) -> bool {
        let mut domains = (0..).map(DomainId).zip(&self.decided);
        domains.any(|(domain, &decided)| as_of.of(domain) < decided)
    }
}

/// What came of a miss, with the newest change in it.
enum Found<V> {
    /// It is kept.
    Kept(V, Lsn),
    /// It holds everything from before it was asked for, and may lack what came since.
    Fit(V, Lsn),
    /// It lacks more.
    Old,
}
