//! What else can be set: once it is known how writes are best treated and when they are best destaged, the log, the dirty limit,
//! the ages, and how much goes at once.

use super::sure::ADVISED_GAIN_MIN;
use super::{
    DIRTY_MAX, FLASH_MIN, Front, Judged, LOG_MAX, LOG_MIN, Meter, ROWS_DIRTY_QUARTERS, Wish,
};
use crate::machine::{RunError, Settings, Tier, WritePolicy};
use crate::replay::RecordedRun;
use crate::trace::Request;
use destage_core::{Span, When};
use destage_runtime::human::seconds;
use destage_runtime::units::{Bytes, Interval};
use serde::Serialize;
use std::convert::Infallible;

/// One thing set otherwise, and what that came to: the log with the dirty limit against the candidate, the rest against the
/// candidate with the best of these.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// Which one, in the words of the server's flags.
    pub what: String,
    /// The mean of all requests with it, seconds.
    pub mean_seconds: f64,
    /// The mean over that of what it was tried on: below 1 is faster.
    pub mean_ratio: f64,
    /// Requests that write at the origin over those of what it was tried on.
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

/// A variation with the settings that it makes.
struct Tried {
    what: String,
    settings: Settings,
    variation: Variation,
}

enum Change {
    /// Bytes of the log of a volume, and bytes that may be dirty.
    Room {
        log: u64,
        dirty: u64,
    },
    /// Bytes of rows that may be dirty; the others are for cached ones.
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
    /// Tries what else can be set: first the log with the dirty limit, on the best of these one thing after the other, and then all
    /// that was better at once. What is interrupted is left out.
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
        self.tune_best(requests, recorded, best, &[], meter)
    }

    /// Tunes the best candidate and the first one of each other policy of the ranking, and gives what is best then. A policy that a
    /// small log holds up may be the best one with a larger log.
    ///
    /// # Errors
    /// As [`Wish::tune`].
    pub fn tune_best(
        &self,
        requests: &[Request],
        recorded: Option<&RecordedRun>,
        best: &Judged,
        ranking: &[Judged],
        meter: &Meter,
    ) -> Result<Tuned, RunError<Infallible>> {
        let bases = firsts(best, ranking);
        let rooms: Vec<Vec<Tried>> =
            bases.iter().map(|base| self.tries(base, self.rooms(base))).collect();
        // All at once, so that no core waits for the last run of a policy.
        let settings = rooms.iter().flatten().map(|tried| tried.settings.clone()).collect();
        let judged = self.judge_recorded(requests, recorded, settings, meter)?;
        let roomy = bases.iter().zip(rooms).map(|(base, rooms)| {
            let mut choices = Vec::new();
            let taken = better(base, &rooms, &judged, recorded.is_some(), &mut choices);
            let best = taken.first().map_or(*base, |&(_, found)| found).clone();
            for choice in &mut choices {
                choice.is_taken = taken.first().is_some_and(|(tried, _)| tried.what == choice.what);
            }
            Tuned { best, base: (*base).clone(), choices, is_kept: false }
        });
        // Log, dirty limit and batches do nothing for write-through.
        let as_it_is =
            Tuned { best: best.clone(), base: best.clone(), choices: Vec::new(), is_kept: false };
        let through = (!best.is_buffered()).then(|| as_it_is.clone());
        let tuned = roomy.chain(through).min_by_key(|tuned| tuned.best.rank());
        let tuned = tuned.unwrap_or(as_it_is);
        if !tuned.best.is_buffered() {
            return Ok(tuned);
        }
        self.tune_rest(requests, recorded, tuned, meter)
    }

    /// How many runs [`Wish::tune_best`] makes at most.
    pub fn tune_runs_max(&self, best: &Judged, ranking: &[Judged]) -> usize {
        let bases = firsts(best, ranking);
        let runs = |variations: Vec<Variation>| variations.len();
        let rooms: usize = bases.iter().map(|base| runs(self.rooms(base))).sum();
        let rest = bases.iter().map(|base| runs(self.variations(&base.report.settings))).max();
        rooms + rest.map_or(0, |rest| rest + 1)
    }

    /// Tries the rest on what has the best log and dirty limit already, and then all that was better at once.
    fn tune_rest(
        &self,
        requests: &[Request],
        recorded: Option<&RecordedRun>,
        roomy: Tuned,
        meter: &Meter,
    ) -> Result<Tuned, RunError<Infallible>> {
        let Tuned { best, base, mut choices, is_kept } = roomy;
        let tries = self.tries(&best, self.variations(&best.report.settings));
        let settings = tries.iter().map(|tried| tried.settings.clone()).collect();
        let judged = self.judge_recorded(requests, recorded, settings, meter)?;
        let before = choices.len();
        let taken = better(&best, &tries, &judged, recorded.is_some(), &mut choices);
        // All at once, and each alone, for two may hinder one another.
        let changes: Vec<&Variation> = taken.iter().map(|(tried, _)| &tried.variation).collect();
        let all = self.with(&best.report.settings, &changes);
        let together = if changes.len() > 1 && all.validate().is_ok() {
            self.judge_recorded(requests, recorded, vec![all], meter)?
        } else {
            Vec::new()
        };
        let alone = taken.iter().map(|&(_, found)| found);
        let better = alone.chain(&together).chain(std::iter::once(&best));
        let chosen = better.min_by_key(|judged| (judged.misses.len(), judged.mean().to_bits()));
        let chosen = chosen.unwrap_or(&best).clone();
        let is_all =
            together.first().is_some_and(|all| all.report.settings == chosen.report.settings);
        for choice in &mut choices[before..] {
            choice.is_taken = taken.iter().any(|(tried, found)| {
                let is_alone = found.report.settings == chosen.report.settings;
                tried.what == choice.what && (is_all || is_alone)
            });
        }
        Ok(Tuned { best: chosen, base, choices, is_kept })
    }

    fn tries(&self, base: &Judged, variations: Vec<Variation>) -> Vec<Tried> {
        let base = &base.report.settings;
        let tried = |variation: Variation| {
            let settings = self.with(base, &[&variation]);
            Tried { what: variation.what.clone(), settings, variation }
        };
        // Not everything goes with everything.
        let tries = variations.into_iter().map(tried);
        tries.filter(|tried| tried.settings.validate().is_ok()).collect()
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

    /// The log and the dirty limit, which want the same room: all of one with all of the other.
    fn rooms(&self, base: &Judged) -> Vec<Variation> {
        let tier = &base.report.settings.flash;
        let mut all = Vec::new();
        match self.front {
            Front::Block { flash, .. } => {
                let in_force = flash - tier.size.get();
                let mut logs = vec![in_force];
                for log in [flash / 8, flash / 4, flash / 8 * 3, flash / 2] {
                    let can_be = (LOG_MIN..=LOG_MAX).contains(&log) && flash - log >= FLASH_MIN / 2;
                    if can_be && log != in_force {
                        logs.push(log);
                    }
                }
                for log in logs {
                    for dirty in [log / 4, log / 2, log / 4 * 3] {
                        let dirty = dirty.min(DIRTY_MAX);
                        let size = format!("--log-size {} ", Bytes(log));
                        let size = if log == in_force { "" } else { &size };
                        let what = format!("{size}--dirty-limit {}", Bytes(dirty));
                        if log != in_force || dirty != tier.dirty.get() {
                            let change = Change::Room { log, dirty };
                            all.push(Variation { about: "room", what, change });
                        }
                    }
                }
            }
            Front::Data { ram, .. } => {
                let in_force = self.live_policy(&base.report.settings).limits.dirty_bytes_max;
                let all_shares = ROWS_DIRTY_QUARTERS.map(|quarters| ram / 4 * quarters);
                for dirty in all_shares.into_iter().filter(|&dirty| dirty != in_force) {
                    let what = format!("--dirty-limit {}", Bytes(dirty));
                    all.push(Variation { about: "room", what, change: Change::Dirty(dirty) });
                }
            }
        }
        all
    }

    fn variations(&self, base: &Settings) -> Vec<Variation> {
        let tier = &base.flash;
        let new = |about, what, change| Variation { about, what, change };
        let mut all = Vec::new();
        match self.front {
            Front::Block { .. } => {
                for batch in [4 << 20, 64 << 20] {
                    let what = format!("--batch-size {}", Bytes(batch));
                    all.push(new("batch", what, Change::Batch(batch)));
                }
            }
            Front::Data { .. } => {
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
                (Change::Room { log, dirty }, Front::Block { flash, .. }) => {
                    *tier = tier.clone().with_log(flash, *log, *dirty);
                }
                (Change::Dirty(dirty), Front::Data { ram, row }) => {
                    let rows = Tier::of_rows(ram - dirty, *dirty, row, base.block.get());
                    (tier.size, tier.dirty) = (rows.size, rows.dirty);
                }
                (Change::Linger(linger), _) => tier.linger = Interval(*linger),
                (Change::Batch(batch), _) => tier.batch = Bytes(*batch),
                (Change::Groups(groups), _) => tier.batch_groups = *groups,
                (Change::When(when), _) => tier.when = *when,
                (Change::Room { .. }, Front::Data { .. })
                | (Change::Dirty(_), Front::Block { .. }) => {}
            }
        }
        settings
    }
}

/// The best candidate, the first one of each other policy, and those that destage at once, for which a small log does not tell
/// what a larger one does: of those that buffer writes and are no weaker than the best.
fn firsts<'a>(best: &'a Judged, ranking: &'a [Judged]) -> Vec<&'a Judged> {
    let mut firsts: Vec<&Judged> = Vec::new();
    for judged in std::iter::once(best).chain(ranking) {
        let is_known = |first: &&Judged| first.report.settings == judged.report.settings;
        let is_first = firsts.iter().all(|first| first.policy() != judged.policy());
        let is_at_once = judged.report.settings.flash.when == When::Async;
        let is_new = is_first || is_at_once && !firsts.iter().any(is_known);
        if is_new && judged.is_buffered() && judged.is_weaker <= best.is_weaker {
            firsts.push(judged);
        }
    }
    firsts
}

/// Of each thing the best that is better than the base. All that was tried is added to the choices.
fn better<'a>(
    base: &Judged,
    tries: &'a [Tried],
    judged: &'a [Judged],
    is_recording: bool,
    choices: &mut Vec<Choice>,
) -> Vec<(&'a Tried, &'a Judged)> {
    let gain_min = if is_recording { ADVISED_GAIN_MIN } else { GAIN_MIN };
    let mut taken: Vec<(&Tried, &Judged)> = Vec::new();
    let order = |judged: &Judged| (judged.misses.len(), judged.mean().to_bits());
    for tried in tries {
        let found = judged.iter().find(|judged| judged.report.settings == tried.settings);
        let Some(found) = found else { continue };
        let mean_ratio = found.mean() / base.mean().max(1e-12);
        let is_better = found.misses.len() < base.misses.len()
            || (found.misses.len() == base.misses.len() && mean_ratio < 1.0 - gain_min);
        if is_better {
            let about = tried.variation.about;
            match taken.iter_mut().find(|(other, _)| other.variation.about == about) {
                Some(other) if order(found) < order(other.1) => *other = (tried, found),
                Some(_) => {}
                None => taken.push((tried, found)),
            }
        }
        choices.push(Choice {
            what: tried.what.clone(),
            mean_seconds: found.mean(),
            mean_ratio,
            origin_writes_ratio: found.report.origin.write_requests as f64
                / base.report.origin.write_requests.max(1) as f64,
            misses: found.misses.clone(),
            is_taken: false,
        });
    }
    taken
}
