//! What clients ask for.

use super::log::Op;
use super::rng::Rng;
use super::setup::Options;
use destage_core::{Ack, Intent, Lsn};

/// What a client wants next.
#[derive(Clone, Debug)]
pub(super) enum Wish {
    /// Read, or write, these keys.
    Access {
        keys: Vec<u32>,
        intent: Intent,
        change: Change,
    },
    /// Know that its last write is committed, or decided.
    WaitCommitted,
    WaitDecided,
}

/// What an executed request does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    /// Was allowed to write and does not.
    Declined,
    Write(Vec<Op>),
}

/// One client: one request at a time.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) rng: Rng,
    pub(super) steps: u32,
    /// The request under way.
    pub(super) request: Option<(u64, Wish)>,
    /// Its write, once executed.
    pub(super) wrote: Option<Lsn>,
    /// The highest group that its reply reveals, as the core said.
    pub(super) observed: Lsn,
    /// Groups whose results its reply shows.
    pub(super) seen: Vec<Lsn>,
    /// Its reply waits to be sent.
    pub(super) responding: bool,
    pub(super) last_write: Lsn,
}

impl Client {
    pub(super) fn new(rng: Rng, steps: u32) -> Self {
        Self {
            rng,
            steps,
            request: None,
            wrote: None,
            observed: Lsn::ZERO,
            seen: Vec::new(),
            responding: false,
            last_write: Lsn::ZERO,
        }
    }

    pub(super) fn wish(&mut self, options: &Options) -> Wish {
        let rng = &mut self.rng;
        match rng.below(20) {
            0 => return Wish::WaitCommitted,
            1 => return Wish::WaitDecided,
            _ => {}
        }
        let mut keys = vec![rng.below(u64::from(options.keys)) as u32];
        // A second key of the same domain.
        let other = (keys[0] + u32::from(options.domains)) % options.keys;
        if rng.chance(30) && other != keys[0] {
            keys.push(other);
        }
        if !rng.chance(options.write_percent) {
            let intent = if rng.chance(15) { Intent::ReadSettled } else { Intent::Read };
            return Wish::Access { keys, intent, change: Change::Nothing };
        }
        let ack = match rng.below(40) {
            0 => Ack::Origin,
            1 => Ack::OriginInvalidate,
            _ => Ack::Policy,
        };
        let intent = Intent::Write { bytes: 4_000, ack, fetch: !rng.chance(20) };
        let change = if rng.chance(10) {
            Change::Declined
        } else {
            Change::Write(keys.iter().map(|_| Self::op(rng, options)).collect())
        };
        Wish::Access { keys, intent, change }
    }

    fn op(rng: &mut Rng, options: &Options) -> Op {
        if options.poison_percent == 0 && rng.chance(50) {
            Op::Set((rng.next() >> 24) as i64)
        } else {
            Op::Add(1 + rng.below(9) as i64)
        }
    }
}
