//! What else can be set: once it is known how writes are best treated and when they are best destaged, the log, the dirty limit,
//! the ages, and how much goes at once.

use super::sure::ADVISED_GAIN_MIN;
use super::{FLASH_MIN, Front, Judged, LOG_MAX, LOG_MIN, Meter, Wish};
use crate::machine::{RunError, Settings, Tier, WritePolicy};
use crate::replay::RecordedRun;
use crate::trace::Request;
use destage_core::{Span, When};
use destage_runtime::human::seconds;
use destage_runtime::units::{Bytes, Interval};
use serde::Serialize;
use std::convert::Infallible;

/// One thing set otherwise than in the best candidate, and what that came to.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Which one, in the words of the server's flags.
    pub what: String,
    /// The mean of all requests with it, seconds.
    pub mean_seconds: f64,
    /// The mean over that of the best candidate: below 1 is faster.
    pub mean_ratio: f64,
    /// Requests that write at the origin over those of the best candidate.
    pub origin_writes_ratio: f64,
    /// What is missed of what is asked for.
    pub misses: Vec<String>,
    /// Whether it is part of the advice.
    pub is_taken: bool,
}

/// The best candidate with all that is better set otherwise.
#[derive(Clone, Debug)]
pub struct Tuned {
    /// What to put into service.
    pub best: Judged,
    /// The candidate that this was before anything was set otherwise.
    pub base: Judged,
    /// What was tried.
    pub choices: Vec<Choice>,
    /// It is what is in force already, but for D.
    pub is_kept: bool,
}

/// Something that is set otherwise. Of those about the same thing at most one is taken.
struct Variation {
    about: &'static str,
    what: String,
    change: Change,
}

enum Change {
    /// Bytes of the log.
    Log(u64),
    /// Bytes that may be dirty; of rows the others are for cached ones.
    Dirty(u64),
    Linger(Span),
    Batch(u64),
    Groups(u32),
    When(When),
}

/// A choice is better if requests get shorter by more than this share. On a recording by [`ADVISED_GAIN_MIN`]: how full the log
/// gets of a longer linger, or how slow a larger batch is, no recorded run has shown.
const GAIN_MIN: f64 = 0.02;

impl Wish {
    /// Tries what else can be set, one thing after the other, and then all that was better at once. What is interrupted is left
    /// out.
    ///
    /// # Errors
    /// Those of the first run that is not possible.
    pub fn tune(
        &self,
        requests: &[Request],
        best: &Judged,
        meter: &Meter,
    ) -> Result<Tuned, RunError<Infallible>> {
        self.tune_recorded(requests, None, best, meter)
    }

    /// The same on a recording, as [`Wish::judge_recorded`] does it.
    ///
    /// # Errors
    /// As [`Wish::tune`].
    pub fn tune_recorded(
        &self,
        requests: &[Request],
        recorded: Option<&RecordedRun>,
        best: &Judged,
        meter: &Meter,
    ) -> Result<Tuned, RunError<Infallible>> {
        let base = &best.report.settings;
        let mut variations = self.variations(base);
        // Not everything goes with everything.
        variations.retain(|variation| self.with(base, &[variation]).validate().is_ok());
        let settings: Vec<Settings> =
            variations.iter().map(|variation| self.with(base, &[variation])).collect();
        let judged = self.judge_recorded(requests, recorded, settings.clone(), meter)?;
        let gain_min = if recorded.is_some() { ADVISED_GAIN_MIN } else { GAIN_MIN };
        let mut choices = Vec::new();
        let mut taken: Vec<(&Variation, f64)> = Vec::new();
        for (variation, settings) in variations.iter().zip(&settings) {
            let found = judged.iter().find(|judged| judged.report.settings == *settings);
            let Some(found) = found else { continue };
            let mean_ratio = found.mean() / best.mean().max(1e-12);
            let is_better = found.misses.len() < best.misses.len()
                || (found.misses.len() == best.misses.len() && mean_ratio < 1.0 - gain_min);
            if is_better {
                match taken.iter_mut().find(|(other, _)| other.about == variation.about) {
                    Some(other) if mean_ratio < other.1 => *other = (variation, mean_ratio),
                    Some(_) => {}
                    None => taken.push((variation, mean_ratio)),
                }
            }
            choices.push(Choice {
                what: variation.what.clone(),
                mean_seconds: found.mean(),
                mean_ratio,
                origin_writes_ratio: found.report.origin.write_requests as f64
                    / best.report.origin.write_requests.max(1) as f64,
                misses: found.misses.clone(),
                is_taken: false,
            });
        }
        // All at once, and each alone, for two may want the same room.
        let changes: Vec<&Variation> = taken.iter().map(|(variation, _)| *variation).collect();
        let all = self.with(base, &changes);
        let together = if changes.len() > 1 && all.validate().is_ok() {
            self.judge_recorded(requests, recorded, vec![all], meter)?
        } else {
            Vec::new()
        };
        let alone = judged.iter().filter(|judged| {
            changes.iter().any(|change| judged.report.settings == self.with(base, &[change]))
        });
        let better = alone.chain(&together).chain(std::iter::once(best));
        let chosen = better.min_by_key(|judged| (judged.misses.len(), judged.mean().to_bits()));
        let chosen = chosen.unwrap_or(best).clone();
        let is_all =
            together.first().is_some_and(|all| all.report.settings == chosen.report.settings);
        for choice in &mut choices {
            choice.is_taken = changes.iter().any(|change| {
                let is_alone = self.with(base, &[change]) == chosen.report.settings;
                change.what == choice.what && (is_all || is_alone)
            });
        }
        Ok(Tuned { best: chosen, base: best.clone(), choices, is_kept: false })
    }

    /// The candidate that treats and destages writes as they are in force, with all that is better set otherwise, unless the
    /// fastest gains more than a fifth on it: of how another policy does here the recording tells least.
    ///
    /// # Errors
    /// As [`Wish::tune`].
    pub fn tune_in_force(
        &self,
        requests: &[Request],
        run: &RecordedRun,
        ranking: &[Judged],
        fastest: Tuned,
        meter: &Meter,
    ) -> Result<Tuned, RunError<Infallible>> {
        let is_alike = |judged: &&Judged| {
            judged.policy() == WritePolicy::of(&run.policy)
                && judged.report.settings.flash.when == run.policy.when
        };
        let alike = ranking.iter().find(is_alike);
        let is_other = |judged: &&Judged| {
            judged.report.settings != fastest.base.report.settings
                && judged.misses.len() <= fastest.best.misses.len()
        };
        let Some(alike) = alike.filter(is_other) else { return Ok(fastest) };
        let tuned = self.tune_recorded(requests, Some(run), alike, meter)?;
        let gains = fastest.best.mean() < tuned.best.mean() * (1.0 - ADVISED_GAIN_MIN);
        let is_worse = tuned.best.misses.len() > fastest.best.misses.len();
        Ok(if gains || is_worse { fastest } else { tuned })
    }

    fn variations(&self, base: &Settings) -> Vec<Variation> {
        let tier = &base.flash;
        let new = |about, what, change| Variation { about, what, change };
        let mut all = Vec::new();
        match self.front {
            Front::Block { flash, .. } => {
                let in_force = flash - tier.size.get();
                for log in [flash / 8, flash / 4, flash / 8 * 3, flash / 2] {
                    let can_be = (LOG_MIN..=LOG_MAX).contains(&log) && flash - log >= FLASH_MIN / 2;
                    if can_be && log != in_force {
                        all.push(new(
                            "log",
                            format!("--log-size {}", Bytes(log)),
                            Change::Log(log),
                        ));
                    }
                }
                for dirty in [in_force / 2, in_force / 4 * 3] {
                    let what = format!("--dirty-limit {}", Bytes(dirty));
                    all.push(new("dirty", what, Change::Dirty(dirty)));
                }
                for batch in [4 << 20, 64 << 20] {
                    let what = format!("--batch-size {}", Bytes(batch));
                    all.push(new("batch", what, Change::Batch(batch)));
                }
            }
            Front::Data { ram, .. } => {
                for dirty in [ram / 4, ram / 4 * 3] {
                    let what = format!("--dirty-limit {}", Bytes(dirty));
                    all.push(new("dirty", what, Change::Dirty(dirty)));
                }
                for groups in [1_000, 16_000] {
                    all.push(new("batch", format!("--batch {groups}"), Change::Groups(groups)));
                }
            }
        }
        for linger in [Span::ZERO, Span::from_millis(20), Span::from_millis(500)] {
            if linger != tier.linger.span() {
                let what = format!("--linger {}", Interval(linger));
                all.push(new("linger", what, Change::Linger(linger)));
            }
        }
        for quarter in [1, 3] {
            // A quarter and three quarters of D instead of half of it.
            let age = Span(self.rpo.0 / 4 * quarter);
            let when = match tier.when {
                When::Interval { check, .. } => When::Interval { age, check: check.min(age) },
                When::Periodic { .. } => When::Periodic { every: age },
                _ => continue,
            };
            if (Span::from_millis(10)..=Span::from_secs(3_600)).contains(&age) {
                let what = format!(
                    "--when with {} for {}",
                    Interval(age),
                    seconds(self.rpo.as_secs_f64() / 2.0)
                );
                all.push(new("when", what, Change::When(when)));
            }
        }
        all
    }

    fn with(&self, base: &Settings, variations: &[&Variation]) -> Settings {
        let mut settings = base.clone();
        let tier = &mut settings.flash;
        for variation in variations {
            match (&variation.change, self.front) {
                (Change::Log(log), Front::Block { flash, .. }) => {
                    let before = flash - tier.size.get();
                    // The limit keeps its share of the log.
                    let dirty = u128::from(tier.dirty.get()) * u128::from(*log);
                    let dirty = (dirty / u128::from(before.max(1))) as u64;
                    *tier = tier.clone().with_log(flash, *log, dirty);
                }
                (Change::Dirty(dirty), Front::Data { ram, row }) => {
                    let rows = Tier::of_rows(ram - dirty, *dirty, row, base.block.get());
                    (tier.size, tier.dirty) = (rows.size, rows.dirty);
                }
                (Change::Dirty(dirty), _) => tier.dirty = Bytes(*dirty),
                (Change::Linger(linger), _) => tier.linger = Interval(*linger),
                (Change::Batch(batch), _) => tier.batch = Bytes(*batch),
                (Change::Groups(groups), _) => tier.batch_groups = *groups,
                (Change::When(when), _) => tier.when = *when,
                (Change::Log(_), Front::Data { .. }) => {}
            }
        }
        settings
    }
}
