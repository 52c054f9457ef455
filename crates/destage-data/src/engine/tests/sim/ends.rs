//! What the engine wrote, and what must hold when everything is over.

use super::Sim;
use crate::engine::tests::client::{Client, raw};
use crate::engine::tests::history::{Entry, Look};
use crate::engine::tests::shop;
use destage_core::{Lsn, OnReject, Span};
use destage_engine::Drive;
use destage_testkit::disk::Count;
use destage_testkit::origin::Fate;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

impl Sim {
    /// Takes up the groups that were written since the last look, and what became of those that waited for the origin.
    pub(super) fn take_groups(&mut self) {
        self.take_settled();
        if self.options.raw {
            self.note_unseen();
        }
        while self.history.last() < self.engine.last().0 {
            let lsn = self.history.last() + 1;
            let group = self.engine.overlay.get(Lsn(lsn)).expect("a new group is kept");
            let bytes = group.bytes.to_vec();
            let through = self.engine.undecided.is_through(Lsn(lsn));
            let entry = Entry {
                stamp: group.stamp,
                changes: shop::changes(&bytes),
                bytes,
                hidden: through,
                through,
                dropped: false,
                skipped: None,
                implied: Vec::new(),
                implied_at: None,
                acked: None,
                command: None,
            };
            self.mix(lsn);
            self.history.push(entry);
            self.counts.groups += 1;
            self.match_group(lsn);
        }
    }

    pub(super) fn take_settled(&mut self) {
        for lsn in self.history.hidden() {
            if self.engine.undecided.is_through(Lsn(lsn)) {
                continue;
            }
            let fate = self.origin.fates.get(&lsn);
            assert_ne!(fate, Some(&Fate::Parked), "group {lsn} is parked, its client waits");
            let dropped = fate == Some(&Fate::Dropped);
            self.history.show(lsn, dropped);
            self.counts.dropped += u64::from(dropped);
        }
    }

    /// Counts the rows for which the origin was not asked. There is no other program here, so none is ever suspected.
    pub(super) fn look_at_absent(&mut self) {
        let report = self.engine.report_absent().unwrap_or_default();
        self.counts.absent += report.answered_total;
        assert_eq!(report.off, 0, "{:?}", report.tables);
    }

    /// Ends the load, drains, and compares everything with everything.
    pub(in crate::engine::tests) fn finish(&mut self) {
        self.quiet = true;
        self.down = false;
        self.crash_at = u64::MAX;
        if self.options.halts {
            self.halt_no_more();
        }
        self.options.calm();
        self.destage_all();
        // A failure that is still to come would start everything anew after the clients have left.
        self.disk.fail_after(Count::All, u64::MAX / 2, std::io::ErrorKind::Other);
        self.destage_all();
        let waiting: Vec<_> = self.clients.iter().filter(|client| client.is_waiting()).collect();
        assert!(waiting.is_empty(), "clients wait for ever: {waiting:?}");
        assert_eq!(self.engine.undecided(), 0, "not everything is destaged");
        self.look_at_absent();
        let partition = self.engine.partition().clone();
        for domain in partition.ids() {
            let is_in = |lsn: &u64| {
                let spread =
                    partition.of_group(self.engine.schema(), &self.history.entry(*lsn).bytes);
                spread.as_slice().contains(&domain)
            };
            let newest = (1..=self.history.last()).rev().find(is_in).unwrap_or(0);
            assert_eq!(self.origin.at(domain.0), newest, "domain {}", partition.name(domain));
        }
        self.check_end();
        self.check_leaks();
    }

    /// Runs until nothing is left to be done, or for long.
    fn destage_all(&mut self) {
        self.engine.resume(self.now);
        self.engine.drain(self.now);
        for _ in 0..400 {
            let until = self.now + Span::from_millis(50);
            self.run(until);
            let busy = self.clients.iter().any(Client::is_waiting);
            // The mark of all domains may be the first to find that the origin went back.
            let marked = self.engine.last_mark().is_none() && self.writes.is_empty();
            if self.engine.undecided() == 0 && !busy && self.fetching.is_empty() && marked {
                break;
            }
        }
    }

    /// Someone has domains go on that halted.
    pub(super) fn look_at_halts(&mut self) {
        self.counts.halted += self.engine.core.halts().count() as u64;
        let parks = self.options.parks_halted && self.rng.chance(60);
        let words: &[String] = if parks { &["park".to_owned()] } else { &[] };
        self.engine.resume_by(words).unwrap();
    }

    /// Nobody looks at halted domains any more.
    fn halt_no_more(&mut self) {
        let may_park = self.options.parks_halted;
        assert!(may_park || self.origin.parked.is_empty(), "a domain that stops has parked");
        let mut policy = self.engine.policy().clone();
        policy.on_reject = OnReject::Park;
        policy.limits.parked_per_minute_max = u32::MAX;
        self.engine.set_policy(self.now, &policy).unwrap();
    }

    pub(super) fn check_end(&mut self) {
        let fates = &self.origin.fates;
        let applied = |lsn, _: &Entry| fates.get(&lsn) == Some(&Fate::Applied);
        for table in 0..shop::NAMES.len() {
            for key in 0..shop::KEYS[table] {
                let place = (table, key);
                let ends = (self.history.last(), Look::NOW);
                let expected = self.history.fold(place, ends, applied);
                assert_eq!(self.origin.rows.get(&place), expected.as_ref(), "row {place:?}");
            }
        }
        self.counts.parked = self.origin.parked.len() as u64;
        self.read_everything();
    }

    /// Every client leaves: nothing remains but what is parked.
    pub(super) fn check_leaks(&mut self) {
        for client in std::mem::take(&mut self.clients) {
            self.engine.disconnect(self.now, client.id);
        }
        let mut policy = self.engine.policy().clone();
        policy.limits.cache_bytes_max = 0;
        self.engine.set_policy(self.now, &policy).unwrap();
        self.step();
        self.run(self.now + Span::from_secs(5));
        let kept_of_sets = self.kept_of_sets();
        let engine = &mut self.engine;
        let status = engine.core.status();
        self.counts.evictions = status.evictions;
        assert_eq!((status.waiting, status.dirty_groups, status.dirty_units), (0, 0, 0));
        assert_eq!((status.dirty_bytes, status.pinned_bytes), (0, 0));
        assert_eq!((status.journal_bytes, status.cache_units, status.cache_bytes), (0, 0, 0));
        engine.sessions.assert_gone();
        engine.undecided.assert_decided();
        assert!(engine.domains.watermarks().is_quiet());
        assert!(engine.asking.is_idle() && !engine.has_work());
        assert!(engine.overlay.get(engine.core.decided()).is_none(), "a decided group is kept");
        let parked: BTreeSet<_> = self
            .origin
            .parked
            .keys()
            .flat_map(|&lsn| self.history.entry(lsn).changes.iter().map(|change| change.place))
            .collect();
        assert!(engine.undecided.unknown().is_empty(), "raw SQL is remembered that is decided");
        // What covers a table keeps whatever was dirty in it.
        let mut covering = self.origin.parked.keys().map(|&lsn| &self.history.entry(lsn).bytes);
        if !covering.any(|bytes| raw::covers_table(bytes) == Some(true)) {
            // Those that stand for tables are there only for what built on something that covered these.
            let rows = engine.rows.len() - engine.part_units();
            let kept = kept_of_sets.start() + parked.len()..=kept_of_sets.end() + parked.len();
            assert!(kept.contains(&rows), "{rows} rows are kept, and {kept:?} are needed");
        }
    }

    /// How many sets are kept for what is parked: the one whose members plain changes are of. Raw SQL on a member covers it,
    /// which keeps it if it was dirty then.
    fn kept_of_sets(&self) -> RangeInclusive<usize> {
        let members = |lsn: &u64| {
            let entry = self.history.entry(*lsn);
            let changes_any = entry.changes.iter().any(|change| change.place.0 == shop::ITEM);
            changes_any.then(|| raw::covers_table(&entry.bytes).is_some())
        };
        let are_raw: Vec<bool> = self.origin.parked.keys().filter_map(members).collect();
        let count = |is_kept| usize::from(is_kept && self.options.sets.is_some());
        count(are_raw.contains(&false))..=count(!are_raw.is_empty())
    }
}
