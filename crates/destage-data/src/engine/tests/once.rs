//! Clients that send commands again, which are carried out once (`DESTAGE ONCE`): through crashes, and after their segments
//! have left the journal.

use super::client::{Client, Request, is_refusal};
use super::command::Value;
use super::options::Options;
use super::sim::Sim;
use super::{LOAD, failure, run_all};
use crate::change::token_records;
use crate::engine::Engine;
use crate::once::TokenRecord;
use destage_core::{Acknowledge, Lsn, Span, Time};
use destage_journal::Recovery;
use destage_testkit::origin::Fate;
use std::collections::{BTreeMap, HashSet};

/// Whether commands are carried out once, and what a start takes no notice of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Once {
    Never,
    Always,
    /// A start forgets all tokens.
    Forgets,
    /// A start forgets those that were written anew.
    ForgetsCarried,
    /// A start applies what was given up.
    AppliesGivenUp,
}

/// The commands that were sent, and what the first of their answers was.
#[derive(Debug, Default)]
pub(super) struct Sendings {
    numbers: Vec<u64>,
    answers: BTreeMap<u64, Value>,
}

impl Options {
    pub(super) fn with_once(self, once: Once) -> Self {
        let (derives, rewind) = (false, None);
        Self { once, derives, rewind, watches: false, bulky: true, ..self }
    }
}

impl Sim {
    /// A command that is sent for the first time, or again.
    pub(super) fn send_once(&mut self, client: &mut Client, bytes: &mut Vec<u8>) {
        let sent = &self.sendings.numbers;
        let known = client.rng.below(1 + sent.len() as u64 * 2) as usize;
        let number = match sent.get(known) {
            Some(&number) => number,
            None => {
                let number = self.number();
                let command = loop {
                    let command = self.command(&mut client.rng, number);
                    if command.is_tagged() {
                        break command;
                    }
                };
                self.issue(number, vec![command], false);
                self.sendings.numbers.push(number);
                number
            }
        };
        let command = self.issued[&number].command().words();
        let words = ["DESTAGE".into(), "ONCE".into(), format!("t{number}")];
        let words: Vec<String> = words.into_iter().chain(command).collect();
        self.send(client, bytes, Request::Once(number), &words);
    }

    /// Whatever came in between, it is answered as the first time; its group is returned, 0 where it changed nothing,
    /// and none for an error.
    pub(super) fn check_once(&mut self, number: u64, value: &Value) -> Option<u64> {
        let lsn = self.groups_of.get(&number).copied();
        if let Value::Error(error) = value {
            assert!(!error.contains("another command") && !error.contains("keeps"), "{error}");
            if error.starts_with("PARKED the origin rejected write") {
                let lsn = lsn.expect("what is parked was written");
                let fate = self.origin.fates.get(&lsn);
                assert!(self.parked.contains_key(&lsn) || fate == Some(&Fate::Parked), "{error}");
            }
            self.counts.refused += u64::from(is_refusal(error));
            let is_answer = ["PARKED the origin rejected write", "REJECTED"];
            return lsn.filter(|_| is_answer.iter().any(|begin| error.starts_with(begin)));
        }
        let first = self.sendings.answers.entry(number).or_insert_with(|| value.clone());
        assert_eq!(first, value, "command {number} was answered otherwise the first time");
        let issued = self.issued[&number].clone();
        if let Some(lsn) = lsn {
            self.counts.again += u64::from(self.history.entry(lsn).acked.is_some());
            self.check_written(lsn, &issued, value);
        }
        Some(lsn.unwrap_or(0))
    }

    /// A crash took writes away, and their tokens with them.
    pub(super) fn lose_sendings(&mut self, last: u64) {
        if self.options.commit == Span::ZERO {
            return;
        }
        let is_kept = |number: &u64| self.groups_of.get(number).is_some_and(|&lsn| lsn <= last);
        self.sendings.answers.retain(|number, _| is_kept(number));
    }

    /// What the journal gives up, which is dropped whatever the origin has heard of it.
    pub(super) fn given_up(&mut self, recovery: &Recovery) -> HashSet<Lsn> {
        let mut lsns = HashSet::new();
        let mut records = recovery.records(0);
        while let Some(record) = records.advance().unwrap() {
            let given_up = token_records(record.payload).filter_map(|told| match told {
                TokenRecord::GivenUp(lsn) => Some(lsn),
                TokenRecord::Done(_) => None,
            });
            lsns.extend(given_up);
        }
        if self.options.once == Once::AppliesGivenUp {
            lsns.clear();
        }
        for lsn in &lsns {
            let fate = *self.origin.fates.entry(lsn.0).or_insert(Fate::Dropped);
            assert_eq!(fate, Fate::Dropped, "group {} is given up", lsn.0);
        }
        lsns
    }

    /// Tells a new engine what the journal tells of tokens.
    pub(super) fn recover_tokens(&mut self, engine: &mut Engine, recovery: &Recovery) {
        let mut given_up = HashSet::new();
        let mut records = recovery.records(0);
        while let Some(record) = records.advance().unwrap() {
            let carries = token_records(record.payload)
                .any(|told| matches!(told, TokenRecord::Done(done) if done.lsn > Lsn::ZERO));
            self.counts.carried += u64::from(carries);
            let is_forgotten = match self.options.once {
                Once::Never | Once::Always | Once::AppliesGivenUp => false,
                Once::Forgets => true,
                Once::ForgetsCarried => carries,
            };
            if !is_forgotten {
                let (lsn, stamp) = (Lsn(record.lsn), Time(record.stamp_ns));
                engine.recover_once(lsn, stamp, record.payload, &mut given_up);
            }
        }
        self.counts.given_up += given_up.len() as u64;
    }
}

/// Crashes and rejections, and segments that leave early.
fn options(seed: u64, once: Once) -> Options {
    let chosen = Options::choose(seed);
    Options {
        crash_at: 10 + seed * 37 % 500,
        crashes_max: 3,
        poison_percent: [0, 15][seed as usize % 2],
        domains: [None, None, Some(3)][seed as usize % 3],
        clients: chosen.clients + 2,
        // Long enough for several segments.
        load: Span(4 * LOAD.0),
        ..chosen.with_once(once)
    }
}

#[test]
fn commands_are_carried_out_once_whatever_happens() {
    let name = "commands_are_carried_out_once_whatever_happens";
    let total = run_all(name, 40, |seed| options(seed, Once::Always));
    let met = total.again > 500 && total.carried > 10;
    assert!(met || super::number("DESTAGE_SEED").is_some(), "{total:?}");
}

/// What the first seed says that notices.
fn caught(options: impl Fn(u64) -> Options) -> String {
    let caught = (0..400).find_map(|seed| Some((seed, failure(options(seed))?)));
    let (seed, message) = caught.expect("four hundred seeds notice");
    format!("seed {seed}: {message}")
}

#[test]
fn a_start_that_forgets_tokens_is_noticed() {
    for once in [Once::Forgets, Once::ForgetsCarried] {
        let noticed = caught(|seed| options(seed, once));
        let is_twice = noticed.contains("executed twice") || noticed.contains("answered otherwise");
        assert!(is_twice, "{once:?}: {noticed}");
    }
}

/// The origin rejects much of what clients wait for, and what moves the watermark past it takes many attempts.
fn rejected(seed: u64, once: Once) -> Options {
    Options {
        acknowledge: Acknowledge::Origin,
        switches: false,
        commit: Span::ZERO,
        poison_percent: 60,
        fail_percent: 60,
        sync_ns: 100_000,
        write_ns: 1_000_000,
        downs: Vec::new(),
        crash_at: 40 + seed * 3,
        crashes_max: 20,
        ..Options { load: LOAD, ..options(seed, once) }
    }
}

#[test]
fn what_the_origin_rejected_is_given_up_through_crashes() {
    let name = "what_the_origin_rejected_is_given_up_through_crashes";
    let total = run_all(name, 60, |seed| rejected(seed, Once::Always));
    let met = total.given_up > 10 && total.dropped > 10;
    assert!(met || super::number("DESTAGE_SEED").is_some(), "{total:?}");
}

#[test]
fn a_start_that_applies_what_was_given_up_is_noticed() {
    // One sync at a time, by a thread: crashes come between a record and its sync more often.
    let noticed = caught(|seed| {
        let (one_lane, syncs_here, durable_writes) = (true, false, 0);
        Options { one_lane, syncs_here, durable_writes, ..rejected(seed, Once::AppliesGivenUp) }
    });
    assert!(noticed.contains("executed twice"), "{noticed}");
}

/// Long after the last of all tokens.
#[test]
fn tokens_are_forgotten_in_the_end() {
    let mut sim = Sim::new(options(1, Once::Always));
    sim.run(Time::from_secs(1_000) + LOAD);
    sim.finish();
    sim.engine.tick(sim.now);
    assert!(sim.engine.once.report().tokens > 0);
    sim.engine.tick(sim.now + Span::from_secs(3_601));
    assert_eq!(sim.engine.once.report().tokens, 0);
    assert_eq!(sim.engine.once.report().bytes, 0);
}
