//! Advice: which policy of a front end meets what is asked for, on this load.
//!
//! The candidates are run in virtual time ([`crate::machine`]) with crashes looked at on the way; each is judged by what it was
//! found to do and by what its policy can promise, and those that meet everything are ranked by how long requests take.

mod losses;
mod recorded;
mod sure;
mod tune;

pub use losses::{Amounts, Losses, Violations, random_times};
pub use sure::{Predicted, Sure, Trust};
pub use tune::{Choice, Tuned};

use self::recorded::promise as promise_of;
use crate::machine::{self, Meter, Report, RunError, Settings, Tier, WritePolicy};
use crate::replay::RecordedRun;
use crate::trace::Request;
use destage_core::{Span, When};
use destage_engine::defaults;
use destage_runtime::human::{count, seconds};
use destage_runtime::units::{Bytes, Interval};
use rayon::prelude::*;
use std::cmp::Reverse;
use std::convert::Infallible;

/// Which front end is asked about, and what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Blocks: `destage block serve`.
    Block {
        /// Bytes of the flash cache, its log included; at least [`FLASH_MIN`].
        flash: u64,
        /// Bytes of RAM before it, as the page cache of its clients; 0 for none. It holds nothing that the flash does not hold.
        ram: u64,
    },
    /// Rows: `destage serve`.
    Data {
        /// Bytes of memory for rows, half of it for buffered writes; at least [`RAM_MIN`].
        ram: u64,
        /// Bytes of a row, mean; at least 1.
        row: u64,
    },
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// How many of the latest writes, in time, may be lost with host and cache; 100 ms to 1 day.
    pub rpo: Span,
    /// How many of the latest writes of rows, in time, a crash may lose that the journal survives; less than `rpo`. None: no more
    /// than in force. Volumes keep what was flushed, as a disk does.
    pub rpo_crash: Option<Span>,
    /// How long 99 % of the reads may take at most.
    pub p99_read: Option<Span>,
    /// How long 99 % of the writes may take at most.
    pub p99_write: Option<Span>,
    /// Where.
    pub front: Front,
}

/// The smallest memory for rows that advice is given on, bytes.
pub const RAM_MIN: u64 = 1 << 20;
/// The smallest cache of the block front end, bytes.
pub const FLASH_MIN: u64 = 64 << 20;
/// The smallest log in it that is tried, bytes.
const LOG_MIN: u64 = 32 << 20;
/// The largest.
const LOG_MAX: u64 = 1 << 40;
/// The largest dirty limit of the block front end, bytes.
const DIRTY_MAX: u64 = 1 << 40;
/// The shares of the memory for rows that are tried for buffered writes, in quarters; the rest is for cached rows.
const ROWS_DIRTY_QUARTERS: [u64; 3] = [1, 2, 3];

/// A candidate after its run.
#[derive(Clone, Debug)]
pub struct Judged {
    /// What it did.
    pub report: Report,
    /// What crashes would have lost with host and cache.
    pub losses: Losses,
    /// What it misses of what is asked for, in words; nothing if it meets all of it.
    pub misses: Vec<String>,
    /// Whether it promises less than what is in force. It is advised only if nothing else is left.
    pub is_weaker: bool,
    /// How far the origin was behind at most, seconds.
    pub behind: f64,
}

impl Wish {
    /// Bytes of the log of a flash cache as the block front end has it, a quarter of it unless that is little or much; 0 for rows.
    pub fn log(&self) -> u64 {
        match self.front {
            Front::Block { flash, .. } => defaults::volume::log_bytes(flash),
            Front::Data { .. } => 0,
        }
    }

    /// The settings to be run: each policy with each time of destaging.
    pub fn candidates(&self, base: &Settings) -> Vec<Settings> {
        let half = Span((self.rpo.0 / 2).min(Span::from_secs(3_600).0));
        let check = Span((half.0 / 10).clamp(1_000_000, 1_000_000_000));
        let times = [
            When::Async,
            When::Adaptive,
            When::Interval { age: half, check },
            When::Periodic { every: half },
            When::OnPressure,
        ];
        let policies = match self.front {
            Front::Block { .. } => &[
                WritePolicy::Journaled,
                WritePolicy::Ordered,
                WritePolicy::Strict,
                WritePolicy::WriteBack,
            ][..],
            // Sessions reach the origin whole and in order, whatever is chosen: there is no other write-back.
            Front::Data { .. } => &[WritePolicy::Journaled],
        };
        let mut candidates = vec![self.candidate(base, WritePolicy::WriteThrough, When::Async)];
        for &policy in policies {
            candidates.extend(times.map(|when| self.candidate(base, policy, when)));
        }
        candidates
    }

    fn candidate(&self, base: &Settings, policy: WritePolicy, when: When) -> Settings {
        match self.front {
            Front::Block { flash, ram } => self.of_blocks(base, policy, when, [flash, ram]),
            Front::Data { ram, row } => self.of_rows(base, policy, when, [ram, row]),
        }
    }

    fn of_rows(
        &self,
        base: &Settings,
        policy: WritePolicy,
        when: When,
        [ram, row]: [u64; 2],
    ) -> Settings {
        // One half for cached rows, the other one for buffered writes.
        let dirty = ram / 4 * 2;
        let flash = Tier::of_rows(ram - dirty, dirty, row, base.block.get());
        let commit = self.rpo_crash.map_or(flash.commit, Interval);
        let flash = Tier { policy, when, commit, staleness: Interval(self.rpo), ..flash };
        Settings { flash, ram: Tier { size: Bytes(0), ..base.ram.clone() }, ..base.clone() }
    }

    fn of_blocks(
        &self,
        base: &Settings,
        policy: WritePolicy,
        when: When,
        [flash, ram]: [u64; 2],
    ) -> Settings {
        let log = self.log();
        let dirty = defaults::volume::dirty_bytes(log).min(DIRTY_MAX);
        let flash = Tier::of_volume(flash).with_log(flash, log, dirty);
        let flash = Tier { policy, when, ..flash.with_staleness(Interval(self.rpo)) };
        // What only RAM held would be lost without a word.
        let ram = Tier {
            size: Bytes(ram),
            policy: WritePolicy::WriteThrough,
            replacement: crate::hits::Replacements::Lru,
            ..base.ram.clone()
        };
        Settings { flash, ram, ..base.clone() }
    }

    /// Runs the candidates on all cores and ranks them, the best first. Those that the meter's end has interrupted are left out.
    ///
    /// # Errors
    /// Those of the first candidate that cannot be run.
    pub fn judge(
        &self,
        requests: &[Request],
        candidates: Vec<Settings>,
        meter: &Meter,
    ) -> Result<Vec<Judged>, RunError<Infallible>> {
        self.judge_recorded(requests, None, candidates, meter)
    }

    /// The same on a recording: how long requests take, what the origin does and how far it is behind is what the recorded load
    /// comes to, and what promises less than the policy that was in force comes last.
    ///
    /// # Errors
    /// As [`Wish::judge`].
    pub fn judge_recorded(
        &self,
        requests: &[Request],
        recorded: Option<&RecordedRun>,
        candidates: Vec<Settings>,
        meter: &Meter,
    ) -> Result<Vec<Judged>, RunError<Infallible>> {
        let whole = |mut report: Report| {
            if let Some(run) = recorded
                && let Some(load) = run.load.as_deref()
            {
                // A few bytes of a limit may make a difference: what is in force is judged as it was.
                let in_force = self.in_force(&report.settings, run);
                let policy = in_force.unwrap_or_else(|| self.live_policy(&report.settings));
                self.tell(load, &policy, &mut report);
            }
            self.judged(report, recorded)
        };
        let run = |settings: Settings| {
            let source = requests.iter().map(|&request| Ok(request));
            let report = machine::run_metered(source, &settings, meter);
            let whole = |report: Report| report.interrupted.is_none().then(|| whole(report));
            report.map(whole).transpose()
        };
        let mut judged: Vec<Judged> =
            candidates.into_par_iter().filter_map(run).collect::<Result<_, _>>()?;
        judged.sort_by_key(Judged::rank);
        Ok(judged)
    }

    fn judged(&self, report: Report, recorded: Option<&RecordedRun>) -> Judged {
        let losses = Losses::of(&report.crashes, true);
        let mut misses = Vec::new();
        let slow = |what: &str, took: f64, limit: Option<Span>| {
            let limit = limit.map(|limit| limit.as_secs_f64()).filter(|&limit| took > limit)?;
            Some(format!("{what} take {} (p99), more than {}", seconds(took), seconds(limit)))
        };
        misses.extend(slow("reads", report.reads.latency.p99, self.p99_read));
        misses.extend(slow("writes", report.writes.latency.p99, self.p99_write));
        let is_replayed = recorded.is_some_and(|run| run.load.is_some());
        let behind = if is_replayed {
            report.destage.staleness_max
        } else {
            losses.staleness_seconds.max.max(report.destage.staleness_max)
        };
        if behind > self.rpo.as_secs_f64() {
            misses.push(format!("the origin is up to {} behind", seconds(behind)));
        }
        if report.settings.flash.policy == WritePolicy::WriteBack {
            misses.push(format!(
                "without the cache the origin may be in a state that never was ({} of {} crashes left writes out of order)",
                count(losses.order_violations.crashes),
                count(losses.crashes)
            ));
        }
        if let Some(overload) = &report.overload {
            misses.push(format!(
                "more comes than {} can do: at the end requests wait {}",
                overload.busiest,
                seconds(overload.behind_seconds)
            ));
        }
        if report.failed > 0 {
            misses.push(format!("{} requests fail", count(report.failed)));
        }
        let in_force = recorded.map(|run| WritePolicy::of(&run.policy));
        // Nobody has asked for plain write-back where nothing is in force yet.
        let least = in_force.map_or(1, promise_of);
        let is_weaker = promise_of(report.settings.flash.policy) < least;
        Judged { report, losses, misses, is_weaker, behind }
    }
}

impl Judged {
    /// Whether it does everything that is asked for.
    pub fn meets(&self) -> bool {
        self.misses.is_empty()
    }

    /// Its policy.
    pub fn policy(&self) -> WritePolicy {
        self.report.settings.flash.policy
    }

    /// How long a request takes on average, seconds.
    pub fn mean(&self) -> f64 {
        let [reads, writes] = [&self.report.reads, &self.report.writes].map(|kind| &kind.latency);
        let sum = reads.mean * reads.count as f64 + writes.mean * writes.count as f64;
        sum / (reads.count + writes.count).max(1) as f64
    }

    /// What promises less than what is in force last; fewest misses first; then the shortest requests, alike within some percent;
    /// then, of those that buffer writes, what promises more; then the fewest writes at the origin.
    fn rank(&self) -> (bool, usize, i64, Reverse<u8>, u64) {
        let magnitude = (self.mean().max(1e-12).ln() * 25.0).floor() as i64;
        let promise = if self.is_buffered() { promise_of(self.policy()) } else { 0 };
        let writes = self.report.origin.write_requests;
        (self.is_weaker, self.misses.len(), magnitude, Reverse(promise), writes)
    }

    /// Whether writes are acknowledged before the origin has them.
    fn is_buffered(&self) -> bool {
        !matches!(self.policy(), WritePolicy::WriteThrough | WritePolicy::WriteAround)
    }
}

/// Why the first of the ranking is the first, in sentences.
pub fn reason(wish: &Wish, ranking: &[Judged]) -> Vec<String> {
    let Some(best) = ranking.first() else { return Vec::new() };
    let mut reasons = Vec::new();
    let is_aside = |judged: &&Judged| judged.is_weaker && !best.is_weaker;
    let (aside, meeting): (Vec<_>, Vec<_>) =
        ranking.iter().filter(|judged| judged.meets()).partition(is_aside);
    if best.meets() {
        reasons.push(format!(
            "{} of {} candidates meet everything asked for; of these it has the shortest requests, {} on average.",
            meeting.len(),
            ranking.len(),
            seconds(best.mean())
        ));
    } else {
        reasons.push(format!(
            "None of the {} candidates {}meets everything asked for. This one comes nearest, but {}.",
            ranking.len() - aside.len(),
            if aside.is_empty() { "" } else { "left " },
            best.misses.join(", and ")
        ));
    }
    if !aside.is_empty() {
        reasons.push(format!(
            "Set aside are {} more that would meet it: they promise less than what is in force.",
            aside.len()
        ));
    }
    let through = ranking.iter().find(|judged| judged.policy() == WritePolicy::WriteThrough);
    if let Some(through) = through.filter(|_| best.policy() != WritePolicy::WriteThrough) {
        reasons.push(format!(
            "Write-through, which loses nothing, takes {} on average and {} for 99 % of the writes (here {}), and writes {} blocks \
             to the origin (here {}).",
            seconds(through.mean()),
            seconds(through.report.writes.latency.p99),
            seconds(best.report.writes.latency.p99),
            count(through.report.origin.write_blocks),
            count(best.report.origin.write_blocks),
        ));
    }
    reasons.push(promise(wish, best));
    reasons
}

/// What is left if host and cache are lost.
pub fn promise(wish: &Wish, best: &Judged) -> String {
    let found = format!(
        "in {} simulated crashes it was at most {} behind, with at most {} writes lost",
        count(best.losses.crashes),
        seconds(best.losses.staleness_seconds.max),
        count(best.losses.lost_writes.max as u64)
    );
    let bound = seconds(wish.rpo.as_secs_f64());
    match best.policy() {
        WritePolicy::WriteThrough => {
            "If host and cache are lost, the origin has every acknowledged write.".into()
        }
        WritePolicy::Journaled if matches!(wish.front, Front::Data { .. }) => {
            let commit = best.report.settings.flash.commit;
            let alone = if commit.span() == Span::ZERO {
                "nothing that was acknowledged".to_owned()
            } else {
                format!("the writes of the last {commit} at most")
            };
            format!(
                "If host and journal are lost, the origin is a state that existed, at most {bound} old: {found}. A crash of the \
                 host alone loses {alone}."
            )
        }
        WritePolicy::Journaled => format!(
            "If host and cache are lost, the origin is a state that existed, at most {bound} old: {found}."
        ),
        WritePolicy::Ordered | WritePolicy::Strict => format!(
            "If host and cache are lost, the origin is a state that a crash of a disk could have left, at most {bound} old: \
             {found}."
        ),
        _ => format!(
            "If host and cache are lost, the origin may be in a state that never was: {found}."
        ),
    }
}

#[cfg(test)]
mod tests;
