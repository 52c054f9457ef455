//! What tells one run from all others: its requests, its settings and the version of the program.

use crate::trace::{Extent, Op, Request};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// A digest of requests, one after the other.
#[derive(Clone, Debug, Default)]
pub struct RequestDigest(Sha256);

impl RequestDigest {
    /// Takes the next request.
    pub fn add(&mut self, request: &Request) {
        let op = match request.op {
            Op::Read => 0u8,
            Op::Write => 1,
            Op::Discard => 2,
            Op::Flush => 3,
        };
        let (device, place, bytes) = match request.extent {
            Extent::Range { device, offset, bytes } => (device, offset, bytes),
            Extent::Object { id, bytes } => (u32::MAX, id, bytes),
        };
        let mut record = [0u8; 33];
        record[0] = op;
        record[1..5].copy_from_slice(&device.to_le_bytes());
        record[5..13].copy_from_slice(&place.to_le_bytes());
        record[13..21].copy_from_slice(&bytes.to_le_bytes());
        record[21..29].copy_from_slice(&request.time.0.to_le_bytes());
        record[29..31].copy_from_slice(&request.host.to_le_bytes());
        record[31..33].copy_from_slice(&request.thread.to_le_bytes());
        self.0.update(record);
    }

    /// The digest as text.
    pub fn finish(self) -> String {
        hex(&self.0.finalize())
    }
}

/// The key of a run.
pub fn key(requests: &str, settings: &impl Serialize) -> String {
    let settings = serde_json::to_string(settings).expect("settings have text keys only");
    let version = env!("CARGO_PKG_VERSION");
    hex(&Sha256::digest(format!("{version}\n{requests}\n{settings}")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::Time;

    #[test]
    fn every_difference_changes_the_key() {
        let extent = Extent::Range { device: 0, offset: 4_096, bytes: 512 };
        let base = Request { time: Time(7), op: Op::Read, extent, host: 0, thread: 0 };
        let others = [
            base,
            Request { time: Time(8), ..base },
            Request { op: Op::Write, ..base },
            Request { extent: Extent::Range { device: 1, offset: 4_096, bytes: 512 }, ..base },
            Request { extent: Extent::Range { device: 0, offset: 4_096, bytes: 513 }, ..base },
            Request { extent: Extent::Object { id: 4_096, bytes: 512 }, ..base },
            Request { host: 1, ..base },
            Request { thread: 1, ..base },
        ];
        let digest = |requests: &[Request]| {
            let mut digest = RequestDigest::default();
            requests.iter().for_each(|request| digest.add(request));
            digest.finish()
        };
        let mut keys: Vec<_> =
            others.iter().map(|request| key(&digest(&[*request]), &("lru", 1))).collect();
        keys.push(key(&digest(&[base, base]), &("lru", 1)));
        keys.push(key(&digest(&[base]), &("lru", 2)));
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(keys[0], key(&digest(&[base]), &("lru", 1)));
        assert_eq!(keys[0].len(), 32);
    }
}
