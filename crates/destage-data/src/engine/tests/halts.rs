//! Ordering domains that halt: whatever happens meanwhile, nothing overtakes what they halted at.

use super::claims::Script;
use super::options::Options;
use super::{failure, number, run_all, sweep, with_domains};
use crate::engine::Io;
use crate::origins::OriginError;
use destage_core::{Fault, OnReject, Span};
use destage_engine::Drive;

/// Domains halt at what is rejected; in some runs it may be parked then.
fn halting(seed: u64) -> Options {
    let options = if seed.is_multiple_of(2) { Options::choose(seed) } else { with_domains(seed) };
    Options { halts: true, parks_halted: seed % 4 < 2, poison_percent: 10, ..options }
}

#[test]
fn nothing_promised_is_broken_where_domains_halt() {
    let total = run_all("nothing_promised_is_broken_where_domains_halt", 40, halting);
    let met = total.halted > 20 && total.parked > 10 && total.unparked > 0 && total.across > 10;
    assert!(met || number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_crash_at_any_step_keeps_every_promise_where_domains_halt() {
    sweep(&[2, 5], 1..40, halting);
}

/// The runs in which nothing may be parked find it out where something is.
#[test]
fn a_domain_that_parks_where_it_should_halt_is_noticed() {
    let parks =
        |seed| Options { parks_halted: false, unsafe_parks: true, rewind: None, ..halting(seed) };
    let noticed =
        |seed| failure(parks(seed)).is_some_and(|why| why.contains("that stops has parked"));
    assert!((0..50).any(noticed));
}

/// The write of a row is rejected.
fn rejected(script: &mut Script, why: &str) {
    let at = script.ios.iter().position(|io| matches!(io, Io::Destage { .. }));
    let Io::Destage { batch, .. } = script.ios.remove(at.expect("a batch is due")) else { return };
    let error = OriginError::new(Fault::Rejected, why);
    script.engine.destaged(script.now, batch, Err(error));
    script.turn();
}

#[test]
fn a_halt_is_told_with_its_write_its_reason_and_what_to_do() {
    let mut script = Script::new();
    let mut policy = script.engine.policy().clone();
    policy.on_reject = OnReject::Stop;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.send("HSET item:0 n 5");
    script.fetch(0);
    script.sync();
    script.now = script.now + Span::from_millis(50);
    script.turn();
    rejected(&mut script, "no such parent");
    let report = script.engine.report();
    let halt = &report.halted[0];
    assert_eq!((&*halt.domain, halt.write, &*halt.reason), ("default", Some(1), "no such parent"));
    assert!(report.warnings.iter().any(|w| w.contains("destage resume --park")), "{report:?}");
    assert!(script.engine.is_halted());

    assert!(script.told("DESTAGE RESUME LATER").contains("use RESUME or RESUME PARK"));
    assert!(script.told("DESTAGE RESUME").contains("+OK"));
    script.destage();
    let report = script.engine.report();
    assert_eq!((report.halted.len(), report.writes.dirty_groups), (0, 0));
    script.engine.undecided.assert_decided();
    assert!(script.engine.domains.watermarks().is_quiet());
}
