//! Clients that keep books of what they were told.

use crate::world::Client;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// Each write is of a row of its own.
#[derive(Default)]
pub(crate) struct Books {
    next: AtomicI64,
    acknowledged: Mutex<Vec<i64>>,
    unknown: Mutex<Vec<i64>>,
}

impl Books {
    /// Writes for so long, to whichever of the servers takes it.
    pub(crate) fn write(&self, addresses: &[String], span: Duration) {
        let until = Instant::now() + span;
        let mut at = 0;
        let mut client = None;
        while Instant::now() < until {
            let row = self.next.fetch_add(1, Ordering::SeqCst) + 1;
            let Some(open) = client.as_mut() else {
                at += 1;
                client = Client::try_open(&addresses[at % addresses.len()]);
                if client.is_none() {
                    std::thread::sleep(Duration::from_millis(20));
                }
                continue;
            };
            let open: &mut Client = open;
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

    /// How many writes were acknowledged so far.
    pub(crate) fn acknowledged(&self) -> usize {
        self.lock(&self.acknowledged).len()
    }

    fn lock<'a>(&self, rows: &'a Mutex<Vec<i64>>) -> std::sync::MutexGuard<'a, Vec<i64>> {
        rows.lock().expect("no writer has panicked")
    }

    /// Compares with what the origin has; how many were acknowledged, and how many may be.
    pub(crate) fn check(&self, rows: &[(i64, i64)]) -> (u64, u64) {
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
