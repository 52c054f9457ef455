//! A recording as it is replayed: what was asked for, and what came of it once the warm-up was over.

use super::{Answers, Load, Observer, RecordedRun, Tally};
use destage_core::{Core, Effect, Input, Span, Time, UnitId};
use destage_record::Asked;
use std::sync::Arc;

/// Watches a replay.
#[derive(Debug)]
pub struct Watched {
    load: Load,
    tally: Tally,
    answers: Answers,
    is_warm: bool,
}

impl Watched {
    /// What comes in the first `warmup`, from the first request on, is not counted.
    pub fn new(warmup: Span) -> Self {
        let mut load = Load::default();
        load.set_warmup(warmup);
        let is_warm = warmup == Span::ZERO;
        Self { load, tally: Tally::default(), answers: Answers::default(), is_warm }
    }

    /// What the recording is of, as its parts say.
    pub fn note_subject(&mut self, subject: &str) {
        self.load.note_subject(subject);
        self.answers.note_subject(subject);
    }

    /// What clients asked for, and the run; no run if nothing was recorded.
    pub fn into_run(mut self) -> (Arc<Load>, Option<RecordedRun>) {
        if !self.is_warm {
            self.count_anew();
        }
        let run = self.answers.run(self.load.policy(), &self.tally);
        let load = Arc::new(self.load);
        let run = run.map(|run| RecordedRun { load: Some(Arc::clone(&load)), ..run });
        (load, run)
    }

    /// The warm-up is over.
    fn count_anew(&mut self) {
        self.is_warm = true;
        self.tally.count_anew();
        self.answers.count_anew();
    }
}

impl Observer for Watched {
    fn asked(&mut self, now: Time, asked: &Asked) {
        self.load.asked(now, asked);
    }

    fn named(&mut self, unit: UnitId, identity: u64) {
        self.load.named(unit, identity);
    }

    fn input(&mut self, now: Time, input: &Input<'_>, core: &Core) {
        if !self.is_warm && self.load.is_warm(now) {
            self.count_anew();
        }
        self.load.input(now, input, core);
        self.tally.input(now, input, core);
        self.answers.input(now, input, core);
    }

    fn effect(&mut self, now: Time, effect: &Effect, core: &Core) {
        self.load.effect(now, effect, core);
        self.tally.effect(now, effect, core);
        self.answers.effect(now, effect, core);
    }
}
