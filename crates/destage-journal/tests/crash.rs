//! Power lost at any operation, with any part of what was not synced lost or torn: every record that a sync acknowledged
//! is there, and what is missing is a suffix.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use destage_journal::{ErrorKind, Journal, Options, Summarise, Sync};
use destage_testkit::SimDisk;
use destage_testkit::disk::{Count, Random};
use std::sync::Arc;

/// One disk through several lives, with a model of what must and may be on it.
struct Run {
    disk: SimDisk,
    options: Options,
    random: Random,
    /// Payload of each number as last appended, from 1. Lives use other payloads, so old bytes show.
    appended: Vec<Vec<u8>>,
    acknowledged: u64,
    reclaimed: u64,
    life: u8,
    /// A sync beside flushes is taken for one of what they wrote before it was handed back.
    claims_late: bool,
    /// Durable writes count as they end.
    counts_any_order: bool,
}

impl Run {
    fn new(seed: u64, no_fsync: bool) -> Self {
        Self {
            disk: SimDisk::new(),
            options: Options { unsafe_no_fsync: no_fsync, ..common::options() },
            random: Random(seed),
            appended: Vec::new(),
            acknowledged: 0,
            reclaimed: 0,
            life: 0,
            claims_late: false,
            counts_any_order: false,
        }
    }

    /// Opens (perhaps losing power meanwhile), checks, then works until the power goes.
    fn live(&mut self) -> Result<(), String> {
        self.life += 1;
        let operations = if self.life == 1 { 400 } else { 60 };
        self.disk.power_off_after(1 + self.random.below(operations) as u64);
        // Some lives write summaries, and read those of others.
        let summarise = (self.random.below(3) > 0).then_some(common::head as Summarise);
        let options = Options { summarise, ..self.options.clone() };
        let opened = Journal::open(Arc::new(self.disk.clone()), options);
        let (journal, recovery) = match opened {
            Ok(opened) => opened,
            Err(_) if self.disk.is_powered_off() => return Ok(()),
            Err(e) => return Err(format!("refused: {e}")),
        };
        self.check(&recovery)?;
        if summarise.is_some() {
            self.check_summaries(&recovery)?;
        }
        self.appended.truncate(recovery.last_lsn as usize);
        // Recovery makes durable what it shows.
        self.acknowledged = recovery.last_lsn;
        self.work(journal);
        if !self.disk.is_powered_off() {
            return Err("work ends by the power only".to_owned());
        }
        Ok(())
    }

    fn check(&self, recovery: &destage_journal::Recovery) -> Result<(), String> {
        if recovery.last_lsn < self.acknowledged {
            return Err(format!("lost {} of {}", recovery.last_lsn, self.acknowledged));
        }
        if recovery.first_lsn > self.reclaimed + 1 {
            return Err(format!("first {} after {}", recovery.first_lsn, self.reclaimed));
        }
        let mut next = recovery.first_lsn;
        for record in recovery.records(1) {
            let record = record.map_err(|e| e.to_string())?;
            let expected = self.appended.get(record.lsn as usize - 1);
            if record.lsn != next || Some(&record.payload) != expected {
                return Err(format!("record {} is not what was written", record.lsn));
            }
            next += 1;
        }
        if next != recovery.last_lsn + 1 {
            return Err(format!("records end before {next}"));
        }
        Ok(())
    }

    fn check_summaries(&self, recovery: &destage_journal::Recovery) -> Result<(), String> {
        let mut summaries = recovery.summaries(1);
        for lsn in recovery.first_lsn..=recovery.last_lsn {
            let summary = summaries.advance().map_err(|e| e.to_string())?;
            let summary = summary.ok_or_else(|| format!("no summary of {lsn}"))?;
            let payload = &self.appended[lsn as usize - 1];
            let mut expected = Vec::new();
            common::head(payload, &mut expected);
            let found = (summary.lsn, summary.payload_bytes as usize, summary.summary);
            if found != (lsn, payload.len(), &expected[..]) {
                return Err(format!("the summary of {lsn} is not of what was written"));
            }
            let segment = self.disk.bytes(&format!("segment-{:010}", summary.at.segment));
            let at = summary.at.offset as usize;
            if segment.is_none_or(|bytes| bytes.get(at..at + payload.len()) != Some(&payload[..])) {
                return Err(format!("the payload of {lsn} does not lie at {}", summary.at));
            }
        }
        match summaries.advance() {
            Ok(None) => Ok(()),
            other => Err(format!("a summary after the last: {other:?}")),
        }
    }

    fn append(&mut self, journal: &mut Journal) {
        let lsn = journal.last() + 1;
        let size = if self.random.below(20) == 0 { 9_000 } else { 700 };
        let mut payload = vec![self.life; self.random.below(size)];
        payload.extend_from_slice(&lsn.to_le_bytes());
        journal.append(lsn, lsn, 0, &payload);
        self.appended.push(payload);
    }

    fn work(&mut self, mut journal: Journal) {
        journal.allow_durable_writes(self.random.below(3));
        // It has run, and its owner does not know yet.
        let mut syncing = None;
        for step in 0.. {
            for _ in 0..self.random.below(4) {
                self.append(&mut journal);
            }
            if !self.write_durably(&mut journal) {
                return;
            }
            if self.random.below(10) == 0 {
                journal.set_catalog(&[step as u8; 9]).unwrap();
            }
            // Flushes that sync would make up for what the other kind claims too much.
            let sync =
                if self.claims_late { self.random.below(8) == 0 } else { self.random.below(3) > 0 };
            let mut flush = journal.take();
            let result = flush.run(sync);
            journal.give_back(flush);
            match result {
                Ok(upto) if sync => self.acknowledged = upto,
                Ok(_) => {}
                Err(_) => return,
            }
            if !self.sync_beside(&mut journal, &mut syncing) {
                return;
            }
            if self.random.below(8) == 0 {
                self.reclaimed = self.reclaimed.max(self.acknowledged);
                journal.reclaim(self.acknowledged, u64::MAX);
            }
        }
    }

    /// Several durable writes at once, which end in any order. False if the power is gone.
    fn write_durably(&mut self, journal: &mut Journal) -> bool {
        let mut under_way = Vec::new();
        for _ in 0..self.random.below(5) {
            let Some(write) = journal.take_durable() else { break };
            if self.random.below(2) == 0 && write.begun().is_err() {
                return false;
            }
            under_way.push((write, false));
            for _ in 0..self.random.below(3) {
                self.append(journal);
            }
        }
        while !under_way.is_empty() {
            let (write, is_done) = {
                let at = self.random.below(under_way.len());
                &mut under_way[at]
            };
            if !std::mem::replace(is_done, true) {
                let Ok(upto) = write.run() else { return false };
                if self.counts_any_order {
                    self.acknowledged = self.acknowledged.max(upto);
                }
            }
            let done = under_way.iter().take_while(|(_, is_done)| *is_done).count();
            for (write, _) in under_way.drain(..done) {
                journal.wrote_durably(&write);
                self.acknowledged = self.acknowledged.max(journal.status().durable_lsn);
            }
        }
        true
    }

    /// Begins a sync beside further flushes, or hands one back. False if the power is gone.
    fn sync_beside(&mut self, journal: &mut Journal, syncing: &mut Option<Sync>) -> bool {
        match syncing.take() {
            None if self.random.below(2) == 0 => {
                let Some(mut sync) = journal.sync() else { return true };
                if self.random.below(2) == 0 && !self.run_second(journal) {
                    return false;
                }
                let Ok(upto) = sync.run() else { return false };
                self.acknowledged = self.acknowledged.max(upto);
                *syncing = Some(sync);
            }
            Some(sync) if self.random.below(2) == 0 => {
                journal.synced(&sync);
                if self.claims_late {
                    self.acknowledged = journal.written();
                }
            }
            other => *syncing = other,
        }
        true
    }

    /// Writes more and makes that durable by a sync that overtakes the one under way.
    fn run_second(&mut self, journal: &mut Journal) -> bool {
        let lsn = journal.last() + 1;
        let payload = vec![self.life; 100];
        journal.append(lsn, lsn, 0, &payload);
        self.appended.push(payload);
        let mut flush = journal.take();
        let written = flush.run(false);
        journal.give_back(flush);
        let Ok(Some(mut second)) = written.and_then(|_| journal.sync_beside()) else {
            return false;
        };
        let Ok(upto) = second.run() else { return false };
        self.acknowledged = self.acknowledged.max(upto);
        journal.synced(&second);
        true
    }
}

fn run(seed: u64, no_fsync: bool) -> Result<(), String> {
    live_and_crash(Run::new(seed, no_fsync))
}

fn live_and_crash(mut run: Run) -> Result<(), String> {
    for _ in 0..6 {
        run.live()?;
        let crash = run.random.bits();
        run.disk.crash(crash);
    }
    Ok(())
}

#[test]
fn acknowledged_records_survive_every_crash() {
    let seeds = std::env::var("JOURNAL_SEEDS").map_or(400, |n| n.parse().unwrap());
    for seed in 0..seeds {
        if let Err(why) = run(seed, false) {
            panic!("seed {seed}: {why}");
        }
    }
}

#[test]
fn without_fsync_the_same_test_fails_within_50_seeds() {
    let failed = (0..50).filter(|&seed| run(seed, true).is_err()).count();
    assert!(failed > 0, "the crash test would not notice a journal that never syncs");
}

#[test]
fn a_sync_does_not_cover_what_was_written_while_it_ran() {
    let claims_late = |seed| Run { claims_late: true, ..Run::new(seed, false) };
    let failed = (0..50).filter(|&seed| live_and_crash(claims_late(seed)).is_err()).count();
    assert!(failed > 0, "the crash test would not notice a sync that claims too much");
}

#[test]
fn a_durable_write_does_not_cover_those_before_it() {
    let counts_any_order = |seed| Run { counts_any_order: true, ..Run::new(seed, false) };
    let failed = (0..50).filter(|&seed| live_and_crash(counts_any_order(seed)).is_err()).count();
    assert!(failed > 0, "the crash test would not notice acknowledgements out of order");
}

#[test]
fn of_durable_writes_none_counts_behind_one_that_failed() {
    for failing in 0..3 {
        let disk = SimDisk::new();
        let (mut journal, _) = common::open(&disk).unwrap();
        journal.allow_durable_writes(3);
        let mut writes: Vec<_> = (1..=3u64)
            .map(|lsn| {
                journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &[7; 600]);
                journal.take_durable().unwrap()
            })
            .collect();
        assert!(journal.take_durable().is_none(), "nothing is buffered");
        for (at, write) in writes.iter_mut().enumerate().rev() {
            if at == failing {
                disk.fail_after(Count::Writes, 1, std::io::ErrorKind::Other);
            }
            assert_eq!(write.run().is_ok(), at > failing, "{at}");
        }
        writes.iter().for_each(|write| journal.wrote_durably(write));
        assert_eq!(journal.status().durable_lsn, 0);
        journal.append(4, 4_000, 4, &[7; 600]);
        assert_eq!(common::flush(&mut journal, true).unwrap_err().kind(), ErrorKind::Fenced);
        drop(journal);
        disk.crash(failing as u64);
        // What was never acknowledged may be there, from the first on, and the journal goes on behind it.
        let (mut journal, recovery) = common::open(&disk).unwrap();
        assert!(recovery.last_lsn <= 3);
        common::commit(&mut journal, &[9; 10]);
    }
}

/// Every operation of one fixed run, in turn, as the one during which the power goes.
#[test]
fn power_lost_at_each_operation_in_turn_loses_nothing_acknowledged() {
    let whole = SimDisk::new();
    fixed_work(&whole, &common::summarising());
    let operations = whole.operations(Count::All);
    assert!(operations > 100, "{operations}");
    for at in 1..=operations {
        for seed in 0..4 {
            let options = if seed < 2 { common::options() } else { common::summarising() };
            let disk = SimDisk::new();
            disk.power_off_after(at);
            let acknowledged = fixed_work(&disk, &options);
            disk.crash(at * 31 + seed);
            let opened = Journal::open(Arc::new(disk.clone()), options);
            let (_, recovery) = opened.unwrap_or_else(|e| panic!("{at}/{seed}: {e}"));
            assert!(recovery.last_lsn >= acknowledged, "{at}/{seed}");
            for record in recovery.records(1) {
                let record = record.unwrap();
                assert_eq!(record.payload, record.lsn.to_le_bytes().repeat(60), "{at}/{seed}");
            }
        }
    }
}

/// Returns the newest acknowledged number when the power goes, or at the end.
fn fixed_work(disk: &SimDisk, options: &Options) -> u64 {
    let opened = Journal::open(Arc::new(disk.clone()), options.clone());
    let Ok((mut journal, _)) = opened else { return 0 };
    let mut acknowledged = 0;
    for lsn in 1..=220u64 {
        journal.append(lsn, lsn, 0, &lsn.to_le_bytes().repeat(60));
        if lsn % 2 == 0 {
            match common::flush(&mut journal, lsn % 4 == 0) {
                Ok(upto) if lsn % 4 == 0 => acknowledged = upto,
                Ok(_) => {}
                Err(_) => return acknowledged,
            }
        }
        if lsn % 64 == 0 {
            journal.reclaim(acknowledged, u64::MAX);
        }
    }
    journal.close().unwrap_or(acknowledged)
}

#[test]
fn a_failed_operation_fences_and_acknowledged_records_survive() {
    for count in [Count::Writes, Count::Syncs, Count::All] {
        for n in 1..60 {
            let disk = SimDisk::new();
            let (mut journal, _) = common::open(&disk).unwrap();
            disk.fail_after(count, n, std::io::ErrorKind::Other);
            let mut acknowledged = 0;
            let failed = (0..150u64).find_map(|i| {
                journal.append(i + 1, (i + 1) * 1_000, ((i + 1) % 7) as u16, &[7; 600]);
                match common::flush(&mut journal, true) {
                    Ok(upto) => acknowledged = upto,
                    Err(error) => return Some(error),
                }
                None
            });
            let failed = failed.expect("the fault strikes");
            assert_eq!(failed.kind(), ErrorKind::Fenced, "{failed}");
            assert!(journal.status().fenced);
            let operations = disk.operations(Count::All);
            for _ in 0..3 {
                let again = common::flush(&mut journal, true).unwrap_err();
                assert_eq!(again.kind(), ErrorKind::Fenced);
            }
            journal.reclaim(acknowledged, u64::MAX);
            assert_eq!(
                disk.operations(Count::All),
                operations,
                "a fenced journal leaves the disk alone"
            );
            disk.crash(n);
            let (_, recovery) = common::open(&disk).unwrap();
            assert!(recovery.last_lsn >= acknowledged, "{count:?} {n}");
        }
    }
}

#[test]
fn of_two_syncs_at_a_time_neither_succeeds_once_one_has_failed() {
    for is_first in [true, false] {
        let disk = SimDisk::new();
        let (mut journal, _) = common::open(&disk).unwrap();
        let mut write = |lsn: u64| {
            journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &[7; 600]);
            common::flush(&mut journal, false).unwrap();
            if lsn == 1 { journal.sync() } else { journal.sync_beside().unwrap() }
        };
        let mut syncs = [write(1).unwrap(), write(2).unwrap()];
        if !is_first {
            syncs.reverse();
        }
        disk.fail_after(Count::Syncs, 1, std::io::ErrorKind::Other);
        let [failed, other] = &mut syncs;
        assert_eq!(failed.run().unwrap_err().kind(), ErrorKind::Fenced);
        assert_eq!(other.run().unwrap_err().kind(), ErrorKind::Fenced);
        let durable = journal.status().durable_lsn;
        syncs.iter().for_each(|sync| journal.synced(sync));
        assert_eq!(journal.status().durable_lsn, durable);
    }
}

#[test]
fn a_full_disk_says_so_and_the_same_flush_runs_again() {
    let disk = SimDisk::new();
    let (mut journal, _) = common::open(&disk).unwrap();
    disk.limit_bytes(Some(100 << 10));
    for lsn in 1..=40u64 {
        journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &[lsn as u8; 4_000]);
    }
    let mut flush = journal.take();
    let full = flush.run(true).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Full, "{full}");
    assert!(full.to_string().contains("free some space"), "{full}");
    assert_eq!(flush.run(true).unwrap_err().kind(), ErrorKind::Full);
    journal.give_back(flush);
    journal.append(41, 41_000, 6, &[41; 4_000]);
    disk.limit_bytes(None);
    assert_eq!(common::flush(&mut journal, true).unwrap(), 41);
    disk.crash(3);
    let payloads = common::payloads(&common::open(&disk).unwrap().1, 1);
    assert_eq!(payloads.len(), 41);
    assert!(payloads.iter().zip(1u8..).all(|(p, i)| *p == [i; 4_000]));
}

/// What there is room for is written though the disk is full, with as much as a quarter of a segment behind it.
#[test]
fn what_a_journal_has_room_for_needs_no_further_file() {
    for (keeps_spare, len) in [(true, 300), (true, 2_900), (true, 9_000), (false, 2_900)] {
        let disk = SimDisk::new();
        let options = Options { keeps_spare, ..common::options() };
        let segment = options.segment_bytes;
        let (mut journal, _) = Journal::open(Arc::new(disk.clone()), options).unwrap();
        let append = |journal: &mut Journal, len| {
            let lsn = journal.last() + 1;
            journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &vec![1; len]);
        };
        let mut taken = 0;
        for _ in 0..40 {
            common::commit(&mut journal, &vec![1; len]);
        }
        disk.limit_bytes(Some(journal.status().bytes));
        // Some of it is out, and some is buffered.
        let fits = |journal: &Journal| journal.room() >= len as u64 + 100;
        let stuck = loop {
            let before = taken;
            for part in [1, 3] {
                while fits(&journal) && taken - before < part * 4 {
                    append(&mut journal, len);
                    taken += 1;
                }
            }
            let is_done = taken == before;
            if is_done {
                append(&mut journal, segment as usize / 4 - 100);
            }
            match common::flush(&mut journal, true) {
                Ok(_) if is_done => break false,
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                    break true;
                }
            }
        };
        // The control: without a spare file that is kept there is always room, until there is none.
        assert_eq!(stuck, !keeps_spare, "{len}");
        assert!(taken > 0, "{len}");
        if keeps_spare {
            assert!(journal.is_short());
            // Older groups leave, and their files are used again.
            journal.reclaim(journal.last(), journal.last() * 1_000);
            assert!(!journal.is_short() && fits(&journal), "{len}");
        }
    }
}

#[test]
fn a_journal_that_filled_its_disk_opens_again_and_again() {
    // Whatever the last segment has left when there is no room for another one.
    for len in [0, 300, 1_000, 2_400, 3_000] {
        let disk = SimDisk::new();
        let (mut journal, _) = common::open(&disk).unwrap();
        for _ in 0..10 {
            common::commit(&mut journal, &vec![1; len]);
        }
        let used: u64 = journal.status().bytes;
        disk.limit_bytes(Some(used));
        let kept = loop {
            let lsn = journal.last() + 1;
            journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &vec![2; len]);
            if let Err(error) = common::flush(&mut journal, true) {
                assert_eq!(error.kind(), ErrorKind::Full, "{error}");
                break lsn - 1;
            }
        };
        for start in 0..6 {
            disk.crash(start);
            let (again, recovery) =
                common::open(&disk).unwrap_or_else(|error| panic!("{len}: {error}"));
            assert_eq!(recovery.last_lsn, kept);
            journal = again;
        }
        disk.limit_bytes(None);
        assert_eq!(common::commit(&mut journal, &[3; 100]), kept + 1);
    }
}
