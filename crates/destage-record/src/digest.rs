//! Effects as one number.

use crate::codec::put;
use destage_core::{Access, Core, Effect, Halt, Lsn, Mode, Outcome, Refusal, StopReason};

/// A digest of the effects that a core has given, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    state: u64,
    scratch: Vec<u8>,
}

/// FNV-1a over 64 bits.
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

impl Default for Digest {
    fn default() -> Self {
        Self { state: BASIS, scratch: Vec::new() }
    }
}

impl Digest {
    /// Takes what [`Core::poll_effect`] has just given; also that it gave nothing.
    pub fn add(&mut self, core: &Core, effect: Option<&Effect>) {
        self.scratch.clear();
        encode(&mut self.scratch, core, effect);
        for &byte in &self.scratch {
            self.state = (self.state ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    }

    /// The same as so many times [`Digest::add`] with nothing given.
    pub fn add_nothing(&mut self, mut times: u64) {
        let mut factor = PRIME;
        while times > 0 {
            if times & 1 == 1 {
                self.state = self.state.wrapping_mul(factor);
            }
            factor = factor.wrapping_mul(factor);
            times >>= 1;
        }
    }

    /// The digest of all effects so far.
    pub fn all(&self) -> u64 {
        self.state
    }

    /// The same in two bytes.
    pub fn short(&self) -> u16 {
        let half = self.state ^ (self.state >> 32);
        (half ^ (half >> 16)) as u16
    }
}

fn encode(out: &mut Vec<u8>, core: &Core, effect: Option<&Effect>) {
    let lsn = |out: &mut Vec<u8>, lsn: Lsn| put(out, lsn.0);
    match effect {
        None => out.push(0),
        Some(Effect::Execute { request, access, observed }) => {
            let access = match access {
                Access::Back => 0,
                Access::Through => 1,
                Access::Around => 2,
            };
            out.extend([1, access]);
            put(out, request.0);
            lsn(out, *observed);
        }
        Some(Effect::Refuse { request, refusal }) => {
            out.extend([2, refusal_code(*refusal)]);
            put(out, request.0);
        }
        Some(Effect::Send { client }) => numbers(out, 3, [client.0.into()]),
        Some(Effect::Waited { request, outcome }) => {
            let outcome = match outcome {
                Outcome::Done => 0,
                Outcome::Parked => 1,
            };
            numbers(out, 4, [request.0, outcome]);
        }
        Some(Effect::Sync { upto }) => numbers(out, 5, [upto.0]),
        Some(Effect::Fetch { unit }) => numbers(out, 6, [unit.0.into()]),
        Some(Effect::Destage { batch, domain }) => {
            numbers(out, 7, [batch.0, domain.0.into()]);
            core.batch(*batch).iter().for_each(|&group| lsn(out, group));
        }
        Some(Effect::Park { lsn, domain, depends_on, keep }) => {
            let on = depends_on.map_or(0, |lsn| lsn.0);
            numbers(out, 8, [lsn.0, domain.0.into(), on, u64::from(*keep)]);
        }
        Some(Effect::Settled { lsn, applied }) => numbers(out, 9, [lsn.0, u64::from(*applied)]),
        Some(Effect::Forget { upto }) => numbers(out, 10, [upto.0]),
        Some(Effect::Evict { unit }) => numbers(out, 11, [unit.0.into()]),
        Some(Effect::Mode(mode)) => out.extend([12, mode_code(*mode)]),
        Some(Effect::Stop(reason)) => out.extend([13, reason_code(*reason)]),
        Some(Effect::Halted { domain, halt }) => {
            let at = match halt {
                Halt::Rejected(lsn) => lsn.0,
                Halt::ParkedTooFast => 0,
            };
            numbers(out, 14, [domain.0.into(), at]);
        }
    }
}

fn numbers<const N: usize>(out: &mut Vec<u8>, tag: u8, numbers: [u64; N]) {
    out.push(tag);
    numbers.into_iter().for_each(|number| put(out, number));
}

fn refusal_code(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::Stale => 0,
        Refusal::Full => 1,
        Refusal::Busy => 2,
        Refusal::Unavailable => 3,
        Refusal::Denied => 4,
        Refusal::Stopped => 5,
    }
}

fn mode_code(mode: Mode) -> u8 {
    match mode {
        Mode::Normal => 0,
        Mode::Throttled => 1,
        Mode::Full => 2,
        Mode::Fallback => 3,
        Mode::StalenessExceeded => 4,
        Mode::Stopped => 5,
    }
}

fn reason_code(reason: StopReason) -> u8 {
    match reason {
        StopReason::JournalFailed => 0,
        StopReason::Fenced => 1,
        StopReason::OriginChanged => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use destage_core::{Policy, Time};

    #[test]
    fn nothing_many_times_is_nothing_each_time() {
        let core = Core::new(Time::ZERO, Policy::default());
        let (mut each, mut at_once) = (Digest::default(), Digest::default());
        for times in 0..70 {
            (0..times).for_each(|_| each.add(&core, None));
            at_once.add_nothing(times);
            assert_eq!(
                each,
                Digest { scratch: each.scratch.clone(), ..at_once.clone() },
                "{times}"
            );
        }
        assert_ne!(at_once.all(), Digest::default().all());
    }
}
