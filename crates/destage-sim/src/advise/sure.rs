//! How sure advice is: what the model makes of the recorded run itself, against what was recorded of it.

use super::{Choice, Front, Judged, Meter, Tuned, Wish};
use crate::machine::{RunError, Settings, Tier, WritePolicy};
use crate::replay::RecordedRun;
use crate::trace::Request;
use destage_core::{Policy, Span, When};
use destage_runtime::human::{count, seconds};
use destage_runtime::units::Bytes;
use serde::Serialize;
use std::convert::Infallible;

/// A figure that advice predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Predicted {
    /// How long a request takes on average, seconds.
    Mean,
    /// How long 99 % of the reads take at most, seconds.
    P99Read,
    /// How long 99 % of the writes take at most, seconds.
    P99Write,
    /// How long what changed is dirty before a batch takes it, on average, seconds.
    DirtyAge,
    /// How far the origin is behind at most, seconds.
    Behind,
    /// Blocks or rows written at the origin.
    OriginWrites,
    /// Blocks or rows read at the origin.
    OriginReads,
}

/// How far the model is to be trusted: each figure of the recorded run, as it was recorded and as the model has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Trust {
    figures: Vec<(Predicted, f64, f64)>,
    /// D of the recorded run.
    staleness: Span,
}

/// A predicted figure and how sure it is. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sure {
    /// Which one.
    pub what: Predicted,
    /// Of the recorded run, as it was recorded.
    pub recorded: f64,
    /// Of the recorded run, by the model.
    pub modelled: f64,
    /// Of the advised settings, by the model.
    pub predicted: f64,
    /// What it may be instead: if the model is as wrong about them as about the recorded run, or not at all.
    pub low: f64,
    /// Likewise.
    pub high: f64,
}

/// Other settings must let requests take at least this share less than was recorded. Two runs of the same settings differ by as
/// much.
pub(super) const ADVISED_GAIN_MIN: f64 = 0.2;
/// Times below this are not told apart, seconds: rows in memory take none in the model.
const SHORTEST: f64 = 1e-6;

impl Wish {
    /// Runs the recorded run itself in the model; `None` if it was interrupted.
    ///
    /// # Errors
    /// It cannot be run.
    pub fn trust(
        &self,
        run: &RecordedRun,
        requests: &[Request],
        base: &Settings,
        meter: &Meter,
    ) -> Result<Option<Trust>, RunError<Infallible>> {
        let block = base.block.get();
        let flash = match self.front {
            Front::Block { .. } => Tier::of_running_volume(&run.policy, block),
            Front::Data { row, .. } => Tier::of_running_rows(&run.policy, row, block),
        };
        let ram = Tier { size: Bytes(0), ..base.ram.clone() };
        let settings = Settings { flash, ram, ..base.clone() };
        let mut judged = self.judge(requests, vec![settings], meter)?;
        if let (Some(load), Some(judged)) = (&run.load, judged.first_mut()) {
            let mut report = judged.report.clone();
            self.tell(load, &run.policy, &mut report);
            *judged = self.judged(report, Some(run));
        }
        let recorded = |what| of_run(run, what);
        let trust = |judged: &Judged| {
            let known = Predicted::ALL
                .into_iter()
                .filter_map(|what| Some((what, recorded(what)?, of_judged(judged, what))));
            Trust { figures: known.collect(), staleness: run.policy.staleness }
        };
        Ok(judged.first().map(trust))
    }
}

impl Wish {
    /// The policy of the recorded run with the bounds of these settings; `None` if they differ in more than D, the commit that
    /// follows from it, and a few bytes of the limits.
    pub(super) fn in_force(&self, settings: &Settings, run: &RecordedRun) -> Option<Policy> {
        let (live, theirs) = (self.live_policy(settings), &run.policy);
        let near = |ours: u64, theirs: u64| ours.abs_diff(theirs) <= theirs / 50;
        let commits_on_flush = |policy: &Policy| {
            let is_volume = matches!(self.front, Front::Block { .. });
            is_volume && policy.commit == destage_engine::commit_on_flush(policy.staleness)
        };
        let is_it = WritePolicy::of(&live) == WritePolicy::of(theirs)
            && live.when == theirs.when
            && live.read_priority == theirs.read_priority
            && (live.commit == theirs.commit
                || (commits_on_flush(&live) && commits_on_flush(theirs)))
            && live.at_limit == theirs.at_limit
            && live.limits.linger == theirs.limits.linger
            && near(live.limits.dirty_bytes_max, theirs.limits.dirty_bytes_max)
            && near(live.limits.cache_bytes_max, theirs.limits.cache_bytes_max)
            && live.limits.batch_groups_max == theirs.limits.batch_groups_max
            && near(live.limits.batch_bytes_max, theirs.limits.batch_bytes_max);
        let (commit, staleness) = (live.commit, live.staleness);
        is_it.then(|| Policy { commit, staleness, ..theirs.clone() })
    }

    /// What is in force instead, but for D as it was asked for, unless the best is predicted to gain on what was recorded more than
    /// a fifth, and more than the model was off for the recorded run. What was measured counts more than what the model has, which
    /// may err about the one and not about the other.
    pub fn keep_in_force(&self, run: &RecordedRun, ranking: &[Judged], tuned: Tuned) -> Tuned {
        let is_in_force = |judged: &&Judged| self.in_force(&judged.report.settings, run).is_some();
        let recorded = of_run(run, Predicted::Mean);
        let is_as_fast = |kept: &&Judged| {
            recorded.is_some_and(|mean| {
                let error = (kept.mean() / mean.max(SHORTEST) - 1.0).abs();
                tuned.best.mean() >= mean * (1.0 - error.max(ADVISED_GAIN_MIN))
            })
        };
        // The best may be what is in force although no candidate is, by what is set otherwise in it.
        let best = Some(&tuned.best).filter(is_in_force);
        let kept = best.or_else(|| ranking.iter().find(is_in_force).filter(is_as_fast));
        match kept.filter(|kept| kept.misses.len() <= tuned.best.misses.len()) {
            None => tuned,
            Some(kept) => {
                let kept = kept.clone();
                let not_taken = |choice| Choice { is_taken: false, ..choice };
                let choices = tuned.choices.into_iter().map(not_taken).collect();
                Tuned { best: kept.clone(), base: kept, choices, is_kept: true }
            }
        }
    }
}

impl Predicted {
    /// Each once.
    pub const ALL: [Self; 7] = [
        Self::Mean,
        Self::P99Read,
        Self::P99Write,
        Self::DirtyAge,
        Self::Behind,
        Self::OriginWrites,
        Self::OriginReads,
    ];

    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Mean => "a request, mean",
            Self::P99Read => "99 % of the reads",
            Self::P99Write => "99 % of the writes",
            Self::DirtyAge => "dirty age when sent, mean",
            Self::Behind => "origin behind, at most",
            Self::OriginWrites => "written at the origin",
            Self::OriginReads => "read at the origin",
        }
    }

    /// A value of it, for people.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::OriginWrites | Self::OriginReads => count(value.round() as u64),
            _ => seconds(value),
        }
    }

    /// The least that is told apart.
    fn least(self) -> f64 {
        match self {
            Self::OriginWrites | Self::OriginReads => 1.0,
            _ => SHORTEST,
        }
    }

    /// What was asked for of it.
    fn limit(self, wish: &Wish) -> Option<Span> {
        match self {
            Self::P99Read => wish.p99_read,
            Self::P99Write => wish.p99_write,
            Self::Behind => Some(wish.rpo),
            _ => None,
        }
    }
}

fn of_run(run: &RecordedRun, what: Predicted) -> Option<f64> {
    let (reads, writes) = (run.reads.as_ref(), run.writes.as_ref());
    match what {
        Predicted::Mean => {
            let (reads, writes) = (reads?, writes?);
            let sum = reads.mean * reads.count as f64 + writes.mean * writes.count as f64;
            Some(sum / (reads.count + writes.count) as f64)
        }
        Predicted::P99Read => reads.map(|reads| reads.p99),
        Predicted::P99Write => writes.map(|writes| writes.p99),
        Predicted::DirtyAge => Some(run.tally.dirty_age_mean),
        Predicted::Behind => Some(run.tally.staleness_max),
        Predicted::OriginWrites => Some(run.tally.origin_writes as f64),
        Predicted::OriginReads => Some(run.tally.fetches as f64),
    }
}

fn of_judged(judged: &Judged, what: Predicted) -> f64 {
    let report = &judged.report;
    match what {
        Predicted::Mean => judged.mean(),
        Predicted::P99Read => report.reads.latency.p99,
        Predicted::P99Write => report.writes.latency.p99,
        Predicted::DirtyAge => report.destage.dirty_age_mean,
        Predicted::Behind => judged.behind,
        Predicted::OriginWrites => report.origin.write_blocks as f64,
        Predicted::OriginReads => report.origin.read_blocks as f64,
    }
}

impl Trust {
    /// How sure the figures of what is advised are, as far as the recording tells. Of what is in force already they are those that
    /// were recorded: no model knows better. Another D changes nothing as long as the origin was never that far behind, but for
    /// `adaptive`, whose pace it sets.
    pub fn of(&self, tuned: &Tuned) -> Vec<Sure> {
        let behind = self.figures.iter().find(|(what, ..)| *what == Predicted::Behind);
        let flash = &tuned.best.report.settings.flash;
        let bound = flash.staleness.span();
        let is_within = behind.is_some_and(|&(_, recorded, _)| recorded <= bound.as_secs_f64());
        let is_by_pace = matches!(flash.when, When::Adaptive);
        let is_alike = bound == self.staleness || (is_within && !is_by_pace);
        let is_as_recorded = tuned.is_kept && is_alike;
        let sure = |&(what, recorded, modelled): &(Predicted, f64, f64)| {
            if is_as_recorded {
                let (low, high) = (recorded.min(modelled), recorded.max(modelled));
                return Sure { what, recorded, modelled, predicted: recorded, low, high };
            }
            let predicted = of_judged(&tuned.best, what);
            let least = what.least();
            let ratio = recorded.max(least) / modelled.max(least);
            let other = predicted * ratio;
            let (low, high) = (predicted.min(other), predicted.max(other));
            Sure { what, recorded, modelled, predicted, low, high }
        };
        self.figures.iter().map(sure).collect()
    }
}

impl Sure {
    /// That what is asked for may be missed although the model does not say so, in words.
    pub fn doubt(&self, wish: &Wish) -> Option<String> {
        let limit = self.what.limit(wish)?.as_secs_f64();
        // What stays is predicted as it was recorded, and judged by the model.
        if self.predicted == self.recorded && self.recorded > limit && self.modelled <= limit {
            return Some(format!(
                "Missed is {}: it was recorded to be {}, more than {}, and is {} in the model.",
                self.what.words(),
                seconds(self.recorded),
                seconds(limit),
                seconds(self.modelled),
            ));
        }
        (self.predicted <= limit && self.high > limit).then(|| {
            format!(
                "Not sure is {}: it may be {}, more than {}, if the model errs as it does about the recorded run ({} instead of {}).",
                self.what.words(),
                seconds(self.high),
                seconds(limit),
                seconds(self.modelled),
                seconds(self.recorded),
            )
        })
    }
}

impl std::fmt::Display for Sure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value| self.what.text(value);
        write!(
            f,
            "{}: {}, {} to {} (the recorded run: {} recorded, {} modelled)",
            self.what.words(),
            text(self.predicted),
            text(self.low),
            text(self.high),
            text(self.recorded),
            text(self.modelled)
        )
    }
}
