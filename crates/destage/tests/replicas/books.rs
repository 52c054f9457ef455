//! Clients that keep books of what they were told.

use crate::world::Client;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Each write is of a row of its own.
#[derive(Default)]
pub(crate) struct Books {
    next: AtomicI64,
    acknowledged: Mutex<Vec<i64>>,
    unknown: Mutex<Vec<i64>>,
    /// Rows that a reader did not find although they had been acknowledged.
    missed: Mutex<Vec<(i64, String)>>,
}

/// So many writes come in front of each read.
const READS_EVERY: i64 = 4;

impl Books {
    /// Writes as long as it is to go on, to whichever takes it of the servers that are named then. Reads in between.
    pub(crate) fn write_while(&self, addresses: &Mutex<Vec<String>>, goes_on: impl Fn() -> bool) {
        let mut at = 0;
        let mut client = None;
        while goes_on() {
            let row = self.next.fetch_add(1, Ordering::SeqCst) + 1;
            let Some(open) = client.as_mut() else {
                at += 1;
                client = {
                    let addresses = addresses.lock().expect("addresses");
                    Client::try_open(&addresses[at % addresses.len()])
                };
                if client.is_none() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                continue;
            };
            let open: &mut Client = open;
            if row % READS_EVERY == 0 {
                if !self.read(open, row) {
                    client = None;
                }
                continue;
            }
            match open.try_ask(&["HINCRBY", &format!("t:{row}"), "n", "1"]) {
                Some(answer) if answer == ":1" => self.lock(&self.acknowledged).push(row),
                Some(answer) if answer.starts_with("-READONLY") => client = None,
                // It may have been done or not.
                _ => {
                    self.lock(&self.unknown).push(row);
                    client = None;
                }
            }
        }
    }

    /// Reads a row that was acknowledged before; false if nothing is answered.
    fn read(&self, client: &mut Client, seed: i64) -> bool {
        let row = {
            let rows = self.lock(&self.acknowledged);
            // The newest ones are those that may be missed.
            let Some(back) = (rows.len() as i64).checked_rem(1 << (seed % 8)) else { return true };
            let Some(&row) = rows.get(rows.len().wrapping_sub(1 + back as usize)) else {
                return true;
            };
            row
        };
        match client.try_ask(&["HGET", &format!("t:{row}"), "n"]) {
            Some(answer) if answer == "1" => true,
            Some(answer) if answer.starts_with('-') => false,
            Some(answer) => {
                self.missed.lock().expect("no writer has panicked").push((row, answer));
                true
            }
            None => false,
        }
    }

    /// How many writes were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.lock(&self.acknowledged).len()
    }

    fn lock<'a>(&self, rows: &'a Mutex<Vec<i64>>) -> std::sync::MutexGuard<'a, Vec<i64>> {
        rows.lock().expect("no writer has panicked")
    }

    /// Compares with what the origin has; how many were acknowledged, and how many may be.
    pub(crate) fn check(&self, rows: &[(i64, i64)]) -> (u64, u64) {
        let missed = self.missed.lock().expect("no writer has panicked");
        assert!(missed.is_empty(), "readers were not shown what was acknowledged: {missed:?}");
        let mut rows: BTreeMap<i64, i64> = rows.iter().copied().collect();
        let acknowledged = self.lock(&self.acknowledged);
        for row in acknowledged.iter() {
            assert_eq!(rows.remove(row), Some(1), "row {row} was acknowledged");
        }
        let unknown = self.lock(&self.unknown);
        for row in unknown.iter() {
            assert!(matches!(rows.remove(row), None | Some(1)), "row {row} was written twice");
        }
        assert!(rows.is_empty(), "nobody wrote {rows:?}");
        (acknowledged.len() as u64, unknown.len() as u64)
    }
}
