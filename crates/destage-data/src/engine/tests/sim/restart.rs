//! Crash and restart: what survives, and whether that is what was promised.

use super::disk::{PLACES, group_commit};
use super::{Committing, Sim, with_domains};
use crate::engine::Engine;
use crate::origins::ALL_DOMAINS;
use destage_core::{Lsn, Span, StopReason, Time};
use destage_engine::{Drive, recover};
use destage_journal::Journal;
use destage_runtime::commit::LANES_MAX;
use destage_testkit::disk::Count;
use destage_testkit::origin::Fate;
use std::convert::Infallible;
use std::sync::Arc;

impl Sim {
    /// The process dies; with `power`, so does the machine.
    pub(super) fn restart(&mut self, power: bool) {
        self.crashes += u64::from(power);
        self.counts.crashes += 1;
        let mut stopped = self.stopped.take();
        // What a journal that failed holds, nobody knows: it is as if the process had been killed.
        if stopped.take_if(|reason| *reason == StopReason::JournalFailed).is_some() {
            assert!(self.options.fails_syncs, "the journal failed without a cause");
            self.disk.evict(self.rng.next());
        }
        if stopped.is_some() {
            assert!(self.options.rewind.is_some(), "stopped without a cause: {stopped:?}");
            if !self.flush_at_last() {
                assert!(self.options.fails_syncs, "the journal failed without a cause");
                self.disk.evict(self.rng.next());
            }
        }
        self.look_at_absent();
        self.life += 1;
        self.ticking = None;
        self.fetching.clear();
        self.scanning.clear();
        self.asking.clear();
        if power && self.rng.chance(60) {
            // The power goes in the middle of what the disk was doing.
            self.disk.power_off_after(1 + self.rng.below(4));
            for place in 0..PLACES {
                let is_begun = matches!(self.committing[place], Committing::Begun(_));
                if place == 0 || is_begun && place > LANES_MAX && self.rng.chance(60) {
                    self.committing[place].run();
                }
            }
        }
        self.committing = [const { Committing::Nothing }; PLACES];
        self.commit = group_commit(&self.options, self.now);
        for client in &mut self.clients {
            client.forget();
        }
        if power && self.rng.chance(80) {
            self.disk.crash(self.rng.next())
        } else {
            self.disk.kill()
        }
        self.crashed_at = self.now;
        self.now = self.now + Span(self.rng.pick(&[0, 1_000_000, 3_000_000_000]));
        self.start(stopped);
        self.begin_life();
    }

    /// The disk fails to sync, or to do anything, at some time to come, if this run is one of those.
    pub(super) fn threaten_sync(&mut self) {
        if self.options.fails_syncs && !self.quiet {
            let count = self.rng.pick(&[Count::Syncs, Count::All]);
            let after = 1 + self.rng.below(100);
            self.disk.fail_after(count, after, std::io::ErrorKind::Other);
        }
    }

    /// A server that stops by itself leaves nothing in memory, unless its disk fails at last.
    fn flush_at_last(&mut self) -> bool {
        for place in (0..PLACES).filter(|place| *place == 0 || *place > LANES_MAX) {
            let Some(done) = self.committing[place].take_ran() else { continue };
            let is_done = done.result.is_ok();
            self.commit.ended(self.now, self.engine.journal(), done);
            // The journal hears of what counts; nobody else does any more.
            while self.commit.poll_news(self.engine.journal()).is_some() {}
            if !is_done {
                return false;
            }
        }
        self.engine.journal().take().run(true).is_ok()
    }

    pub(super) fn open_journal(&mut self) -> (Journal, destage_journal::Recovery) {
        loop {
            if self.rng.chance(10) {
                // Power fails again while the journal is taken up.
                self.disk.power_off_after(1 + self.rng.below(6));
            }
            match Journal::open(Arc::new(self.disk.clone()), self.options.journal()) {
                Ok((mut journal, recovery)) => {
                    self.disk.power_off_after(u64::MAX / 2);
                    journal.allow_durable_writes(self.options.durable_writes);
                    return (journal, recovery);
                }
                Err(error) => {
                    assert!(self.disk.is_powered_off(), "the journal is unusable: {error}");
                    self.disk.crash(self.rng.next());
                }
            }
        }
    }

    /// As the server starts: journal, owner, claim, parked groups, undecided groups.
    pub(super) fn start(&mut self, stopped: Option<StopReason>) {
        let (journal, recovery) = self.open_journal();
        let lands = self.rng.below(5);
        if lands == 0 {
            self.land_writes(self.epoch);
        }
        let (uuid, epoch) = self.origin.owner.clone().expect("it was claimed");
        assert_eq!(uuid, journal.uuid(), "the journal is another one");
        if lands == 1 {
            self.land_writes(epoch);
        }
        self.epoch = self.origin.claim(journal.uuid(), Some(epoch)).unwrap();
        if lands == 2 {
            self.land_writes(epoch);
        }
        self.writes.clear();
        let found = self.watermarks();
        let newest = found.iter().map(|(_, lsn)| lsn.0).max().unwrap_or(0);
        let watermark = match self.options.domains {
            Some(_) => self.origin.at(ALL_DOMAINS.0),
            None => self.origin.watermark,
        };
        assert!(
            newest <= recovery.last_lsn,
            "the origin has group {newest}, the journal ends at {}",
            recovery.last_lsn
        );
        assert!(watermark + 1 >= recovery.first_lsn, "the journal let go of what is needed");
        let given_up = self.given_up(&recovery);
        self.lose(recovery.last_lsn, stopped);
        let mut engine = Engine::new(
            self.now,
            self.options.schema(),
            journal,
            &self.options.settings(),
            "model".into(),
            Lsn(watermark),
        );
        engine = with_domains(engine, &self.options, &found);
        self.options.derive(&mut engine);
        self.parked = self.origin.parked.keys().map(|&lsn| (lsn, None)).collect();
        self.history.unseen.clear();
        self.undone.clear();
        if self.options.skips {
            self.find_skipped();
        }
        let (now, last) = (self.now, self.history.last());
        for &lsn in self.origin.implied.range(..=last).map(|(lsn, _)| lsn) {
            self.history.entry_mut(lsn).implied_at.get_or_insert(now);
        }
        for (lsn, payload) in &self.origin.parked {
            let bytes = crate::parked::decode(engine.schema(), payload).unwrap();
            engine.recover_parked(Lsn(*lsn), &bytes);
        }
        self.recover_tokens(&mut engine, &recovery);
        let mut records = recovery.records(watermark + 1);
        let taken: Result<(), Infallible> =
            recover(&mut engine, now, Lsn(recovery.last_lsn), |engine| {
                let Some(record) = records.advance().unwrap() else { return Ok(false) };
                let entry = self.history.entry(record.lsn);
                assert_eq!(
                    entry.bytes, record.payload,
                    "group {} changed in the journal",
                    record.lsn
                );
                let (spread, open) = engine.undecided_in(&found, Lsn(record.lsn), record.payload);
                if given_up.contains(&Lsn(record.lsn)) {
                    return Ok(true);
                }
                if self.options.unsafe_flags.one_watermark || open > 0 {
                    assert!(
                        open == spread.as_slice().len() || self.options.unsafe_flags.one_watermark,
                        "group {} is decided in some of its domains only",
                        record.lsn
                    );
                    engine.recover(Lsn(record.lsn), Time(record.stamp_ns), record.payload);
                }
                Ok(true)
            });
        taken.expect("the journal is whole");
        self.engine = engine;
        self.threaten_sync();
        if self.quiet {
            self.engine.drain(self.now);
        }
    }

    /// What someone gave up before the process ended, which never heard of it.
    fn find_skipped(&mut self) {
        let is_skipped = |lsn: &u64| {
            self.origin.fates.get(lsn) == Some(&Fate::Parked)
                && !self.origin.parked.contains_key(lsn)
                && self.history.entry(*lsn).skipped.is_none()
        };
        let skipped: Vec<u64> = (1..=self.history.last()).filter(is_skipped).collect();
        skipped.into_iter().for_each(|lsn| self.skip(lsn));
    }

    /// Some of what was under way reaches the origin late.
    fn land_writes(&mut self, epoch: u64) {
        let jobs: Vec<u64> = self.writes.keys().copied().collect();
        for job in jobs {
            if self.rng.chance(70) {
                self.land_write(job, epoch);
            }
        }
    }

    /// Compares what the journal still holds with what was promised.
    pub(super) fn lose(&mut self, last: u64, stopped: Option<StopReason>) {
        let commit = self.options.commit;
        if commit == Span::ZERO || stopped.is_some() {
            assert!(
                last >= self.revealed,
                "group {} was seen by a client, but the journal ends at {last}",
                self.revealed
            );
        }
        for lost in self.history.truncate(last) {
            let age = self.crashed_at.since(lost.stamp);
            let is_promised = lost.acked.is_some() && age > commit;
            assert!(!is_promised, "a write of {age:?} ago was lost with d = {commit:?}: {lost:?}");
        }
        self.revealed = self.revealed.min(last);
        self.lose_sendings(last);
        self.groups_of.retain(|_, lsn| *lsn <= last);
        for lsn in self.history.hidden() {
            let fate = self.origin.fates.get(&lsn).copied();
            self.history.show(lsn, fate == Some(Fate::Dropped));
        }
    }
}
