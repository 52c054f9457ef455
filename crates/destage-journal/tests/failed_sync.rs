//! A sync fails, the process starts anew, and then the power goes. The system shows the new process what no sync brought to
//! the medium; what that process builds on it must be there after the power loss all the same.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use destage_journal::{Error, Journal, Options, Recovery};
use destage_testkit::SimDisk;
use destage_testkit::disk::{Count, Random};
use std::io::ErrorKind;
use std::sync::Arc;

/// A disk, and what must and may be on it.
struct Run {
    disk: SimDisk,
    options: Options,
    random: Random,
    /// Payload of each number as last appended, from 1.
    appended: Vec<Vec<u8>>,
    acknowledged: u64,
}

impl Run {
    fn new(seed: u64) -> Self {
        let options =
            if seed.is_multiple_of(2) { common::options() } else { common::summarising() };
        Self {
            disk: SimDisk::new(),
            options,
            random: Random(seed),
            appended: Vec::new(),
            acknowledged: 0,
        }
    }

    /// Opens and compares, then works until something fails or `steps` are done. `None` if that was well.
    fn live(&mut self, steps: usize) -> Result<Option<Error>, String> {
        let opened = Journal::open(Arc::new(self.disk.clone()), self.options.clone());
        let (mut journal, recovery) = match opened {
            Ok(opened) => opened,
            Err(error) if error.position().is_some() => return Err(format!("refused: {error}")),
            Err(error) => return Ok(Some(error)),
        };
        self.check(&recovery)?;
        self.appended.truncate(recovery.last_lsn as usize);
        self.acknowledged = recovery.last_lsn;
        for step in 0..steps {
            for _ in 0..self.random.below(3) {
                let lsn = journal.last() + 1;
                // Lives use other payloads, so that old bytes show.
                let mut payload = self.random.bits().to_le_bytes().to_vec();
                payload.resize(20 + self.random.below(9_000), 7);
                journal.append(lsn, lsn * 1_000, (lsn % 7) as u16, &payload);
                self.appended.push(payload);
            }
            if self.random.below(12) == 0 {
                journal.set_catalog(&[step as u8; 9]).unwrap();
            }
            let sync = self.random.below(3) > 0;
            match common::flush(&mut journal, sync) {
                Ok(upto) if sync => self.acknowledged = upto,
                Ok(_) => {}
                Err(error) => return Ok(Some(error)),
            }
            if self.random.below(10) == 0 {
                // Nothing refers to what is gone: the comparison is with what is there.
                journal.reclaim(self.acknowledged / 2, u64::MAX);
            }
        }
        Ok(journal.close().err())
    }

    fn check(&self, recovery: &Recovery) -> Result<(), String> {
        if recovery.last_lsn < self.acknowledged {
            return Err(format!("{} of {} are there", recovery.last_lsn, self.acknowledged));
        }
        for record in recovery.records(1) {
            let record = record.map_err(|error| error.to_string())?;
            if self.appended.get(record.lsn as usize - 1) != Some(&record.payload) {
                return Err(format!("record {} is not what was written", record.lsn));
            }
        }
        Ok(())
    }

    /// The process dies. Its successor sees what the cache shows, or in parts what reached the medium.
    fn kill(&mut self) {
        self.disk.kill();
        if self.random.below(3) == 0 {
            let seed = self.random.bits();
            self.disk.evict(seed);
        }
    }
}

/// The `failing`-th sync fails, then power is lost at the `lost`-th operation of the next process.
fn run(seed: u64, failing: u64, lost: u64, without_rewrites: bool) -> Result<bool, String> {
    let mut run = Run::new(seed);
    run.disk.fail_after(Count::Syncs, failing, ErrorKind::Other);
    if run.live(40)?.is_none() {
        return Ok(false);
    }
    run.kill();
    run.disk.set_unsafe_no_rewrites(without_rewrites);
    run.disk.power_off_after(lost);
    let steps = 12;
    let is_lost = run.live(steps)?.is_some();
    run.disk.set_unsafe_no_rewrites(false);
    let crash = run.random.bits();
    run.disk.crash(crash);
    match run.live(4)? {
        None => Ok(is_lost),
        Some(error) => Err(format!("the disk works, and yet: {error}")),
    }
}

#[test]
fn what_a_start_has_seen_outlives_a_power_loss_though_a_sync_had_failed_before() {
    let mut lost = 0;
    for failing in 1..=24 {
        for at in 1..=40 {
            let seed = failing * 100 + at;
            match run(seed, failing, at, false) {
                Ok(is_lost) => lost += u32::from(is_lost),
                Err(why) => panic!("sync {failing}, operation {at}: {why}"),
            }
        }
    }
    assert!(lost > 400, "the power goes in most runs: {lost}");
}

#[test]
fn a_start_that_only_syncs_what_it_has_seen_fails_the_same_test() {
    let broken = |failing| (1..=40).any(|at| run(failing * 100 + at, failing, at, true).is_err());
    let caught = (1..=24).filter(|&failing| broken(failing)).count();
    assert!(caught > 0, "a journal that trusts a sync after a failed one would pass");
}

/// Syncs fail at one start after the other, before one succeeds.
#[test]
fn several_failed_syncs_in_a_row_lose_nothing_either() {
    for seed in 0..200 {
        let mut world = Run::new(seed);
        for round in 0..6 {
            let failing = 1 + world.random.below(if round == 0 { 20 } else { 4 }) as u64;
            world.disk.fail_after(Count::Syncs, failing, ErrorKind::Other);
            let lived = world.live(10);
            assert!(lived.is_ok(), "seed {seed}, round {round}: {lived:?}");
            world.kill();
        }
        world.disk.power_off_after(1 + world.random.below(60) as u64);
        let lived = world.live(30);
        assert!(lived.is_ok(), "seed {seed}: {lived:?}");
        let crash = world.random.bits();
        world.disk.crash(crash);
        let end = world.live(4);
        assert!(matches!(end, Ok(None)), "seed {seed}: {end:?}");
    }
}
