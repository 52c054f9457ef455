//! What the command lines of all servers share: flags, and the rules about negative controls.

use crate::error::CliError;
use crate::values::{bytes, interval};
use clap::Args;
use destage_core::Span;
use destage_engine::auto::{Goal, PERIOD, Ranges};
use destage_record::RecordSettings;
use destage_runtime::auto::{AutoOptions, parse_goal};
use destage_runtime::units::{Bytes, Interval};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The flags of a recording.
#[derive(Clone, Debug, Args)]
pub(crate) struct RecordArgs {
    /// Record what the policy is told and what it answers, for `destage sim`: files FILE.1, FILE.2 and so on. Sizes, times,
    /// addresses of volumes and hashes of keys, no data.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    /// Bytes of the recording; the oldest file is deleted before it gets larger. 4M to 16T.
    #[arg(long, default_value = "1G", value_parser = |s: &str| bytes(s, "4M", "16T"), value_name = "SIZE")]
    record_size: Bytes,

    /// Record addresses and hashes of keys so that nobody can read them: 1 MiB at a time, addresses change places at random. The hashes
    /// have a key that is thrown away.
    #[arg(long, requires = "record")]
    record_anonymous: bool,
}

impl RecordArgs {
    /// Where a recording goes, if there is to be one.
    pub(crate) fn settings(self) -> Option<RecordSettings> {
        let bytes_max = self.record_size.get();
        let is_anonymous = self.record_anonymous;
        self.record.map(|path| RecordSettings { path, bytes_max, is_anonymous })
    }
}

/// The flags of settings that the server tries out by itself.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AutoArgs {
    /// Let the server try other values of --linger (with 'serve' also of --batch) and keep what helps: so that the origin writes
    /// less (writes), or acknowledgements take less (latency). Nothing else of the policy changes. off, writes or latency.
    #[arg(long, default_value = "off", value_parser = goal, value_name = "GOAL")]
    auto: GoalWord,

    /// The values of --linger that --auto may try, MIN..MAX. 1ms..1s unless told, and at most a quarter of D in any case.
    #[arg(long, value_parser = linger_range, value_name = "RANGE")]
    auto_linger: Option<LingerRange>,

    /// How long --auto measures one setting before it decides. 1s to 1h.
    #[arg(long, default_value_t = Interval(PERIOD), value_parser = |s: &str| interval(s, "1s", "1h"), value_name = "TIME")]
    auto_period: Interval,

    /// How often --auto asks 'destage sim advise' about the server's own recording (--record), and tries what it may change of the
    /// advice as one step. The search is a process of its own at the lowest priority. 1s to 1d, or none.
    #[arg(long, default_value = "none", value_parser = advice, value_name = "TIME")]
    auto_advice: AdviceEvery,
}

/// A goal, or none.
#[derive(Clone, Copy, Debug)]
struct GoalWord(Option<Goal>);

#[derive(Clone, Copy, Debug)]
struct LingerRange(Span, Span);

/// A time between two advices, or none.
#[derive(Clone, Copy, Debug)]
struct AdviceEvery(Option<Span>);

fn goal(text: &str) -> Result<GoalWord, String> {
    parse_goal(text).map(GoalWord)
}

fn linger_range(text: &str) -> Result<LingerRange, String> {
    let (low, high) = range(text, "1ms..500ms", |end| interval(end, "0", "1s"))?;
    Ok(LingerRange(low.span(), high.span()))
}

fn advice(text: &str) -> Result<AdviceEvery, String> {
    if text == "none" {
        return Ok(AdviceEvery(None));
    }
    let every = interval(text, "1s", "1d").map_err(|error| format!("{error}; or 'none'"))?;
    Ok(AdviceEvery(Some(every.span())))
}

/// `MIN..MAX`, both included.
pub(crate) fn range<T: PartialOrd>(
    text: &str,
    example: &str,
    end: impl Fn(&str) -> Result<T, String>,
) -> Result<(T, T), String> {
    let form = || format!("write MIN..MAX, such as {example}");
    let (low, high) = text.split_once("..").ok_or_else(form)?;
    let (low, high) = (end(low)?, end(high)?);
    if low <= high { Ok((low, high)) } else { Err(form()) }
}

impl AutoArgs {
    /// What is to be tried, with the groups of a batch in this range.
    ///
    /// # Errors
    /// Advice is to be asked for, and nobody would take it or there is nothing to ask about.
    pub(crate) fn options(
        self,
        batch: Option<(u32, u32)>,
        record: &RecordArgs,
    ) -> Result<AutoOptions, String> {
        let linger = self.auto_linger.map(|LingerRange(low, high)| (low, high));
        let (goal, AdviceEvery(advice)) = (self.auto.0, self.auto_advice);
        if advice.is_some() && (goal.is_none() || record.record.is_none()) {
            return Err(
                "--auto-advice asks about the server's own recording, for --auto to try: give --record FILE and --auto writes \
                 or latency as well"
                    .into(),
            );
        }
        let period = self.auto_period.span();
        Ok(AutoOptions { goal, ranges: Ranges { linger, batch }, period, advice })
    }
}

/// Refuses an admin port that other machines could command. Certificates and users of clients do not count: it knows neither.
///
/// # Errors
/// It listens on another address than loopback, there is no password, and nobody has said that this is meant.
pub(crate) fn check_admin(
    admin: Option<SocketAddr>,
    password: Option<&str>,
    no_auth: bool,
) -> Result<(), CliError> {
    match admin {
        Some(addr) if !addr.ip().is_loopback() && password.is_none() && !no_auth => {
            Err(CliError::usage(format!(
                "--admin {addr} can be reached from other machines without a password: set --password \
                 (or DESTAGE_PASSWORD), use 127.0.0.1, or say --no-auth"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses flags of negative controls in a build that has none.
///
/// # Errors
/// There are some, and this build has none.
pub(crate) fn refuse_controls(any: bool) -> Result<(), CliError> {
    if any && !destage_engine::CONTROLS {
        return Err(CliError::usage(
            "--unsafe-...: this build keeps all its promises; what breaks them on purpose is for tests, in a build with \
             --features destage-engine/controls",
        ));
    }
    Ok(())
}

/// Says aloud, whatever the log level, what has been switched off: of each flag whether it is given, its name and what it
/// costs.
pub(crate) fn warn_of_controls(flags: &[(bool, &str, &str)]) {
    for (_, flag, loss) in flags.iter().filter(|(is_set, ..)| *is_set) {
        eprintln!("WARNING: {flag}: {loss}; for tests only, never with data that matters");
    }
}
