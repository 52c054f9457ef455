//! Policies as users write and read them; the same words in flags, settings files, run-time commands and reports.

use crate::status::PolicyReport;
use crate::units::{Bytes, Interval};
use destage_core::{Acknowledge, AtLimit, Mode, OnReject, Order, Policy, Span, When};
use destage_engine::{WritePolicy, commit_on_flush, set_dirty_limit};

/// A policy, or a part of one, that cannot be read or is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyTextError(String);

/// Reads `write-back`, `write-through` or `write-around`.
///
/// # Errors
/// Lists what is possible.
pub fn parse_acknowledge(text: &str) -> Result<Acknowledge, PolicyTextError> {
    WritePolicy::parse(text)
        .filter(|named| named.order() == Order::Any)
        .map(WritePolicy::acknowledge)
        .ok_or_else(|| unknown(text, "a policy", "write-back, write-through or write-around"))
}

/// Reads `async`, `adaptive`, `periodic:10s`, `interval:30s,1s` (age, check) or `pressure`.
///
/// # Errors
/// Lists what is possible.
pub fn parse_when(text: &str) -> Result<When, PolicyTextError> {
    let span = |text: &str| {
        text.parse::<Interval>().map(Interval::span).map_err(|e| PolicyTextError(e.to_string()))
    };
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    match (name, rest) {
        ("async", None) => Ok(When::Async),
        ("adaptive", None) => Ok(When::Adaptive),
        ("pressure", None) => Ok(When::OnPressure),
        ("periodic", Some(every)) => Ok(When::Periodic { every: span(every)? }),
        ("interval", Some(rest)) => {
            let (age, check) = rest.split_once(',').unwrap_or((rest, "1s"));
            Ok(When::Interval { age: span(age)?, check: span(check)? })
        }
        _ => Err(unknown(
            text,
            "a time to destage",
            "async, adaptive, periodic:10s, interval:30s,1s (age, check) or pressure",
        )),
    }
}

/// Reads `throttle`, `block`, `write-through` or `fail`.
///
/// # Errors
/// Lists what is possible.
pub fn parse_at_limit(text: &str) -> Result<AtLimit, PolicyTextError> {
    match text {
        "throttle" => Ok(AtLimit::Throttle),
        "block" => Ok(AtLimit::Block),
        "write-through" => Ok(AtLimit::WriteThrough),
        "fail" => Ok(AtLimit::Fail),
        _ => Err(unknown(text, "a choice at a limit", "throttle, block, write-through or fail")),
    }
}

/// Reads `park` or `stop`.
///
/// # Errors
/// Lists what is possible.
pub fn parse_on_reject(text: &str) -> Result<OnReject, PolicyTextError> {
    match text {
        "park" => Ok(OnReject::Park),
        "stop" => Ok(OnReject::Stop),
        _ => Err(unknown(text, "a choice for rejected writes", "park or stop")),
    }
}

/// Reads how many writes may be parked in a minute, or `none`, as [`destage_core::Limits::parked_per_minute_max`] has it.
///
/// # Errors
/// It is neither a number from 1 to 1,000,000 nor `none`.
pub fn parse_parked_per_minute(text: &str) -> Result<u32, PolicyTextError> {
    match text.parse() {
        _ if text == "none" => Ok(u32::MAX),
        Ok(most @ 1..=1_000_000) => Ok(most),
        _ => Err(unknown(text, "a number of parked writes", "1 to 1000000, or none")),
    }
}

/// Changes parts of `policy` as a run-time command asks: each argument is a policy (`write-through`) or `part=value` with
/// the parts `policy`, `when`, `read-priority`, `commit`, `staleness`, `at-limit`, `dirty-limit`, `cache-size`,
/// `journal-size`, `batch`, `linger`, `on-reject` and `parked-per-minute` (of a data server), `bypass-sequential` (of a volume).
///
/// # Errors
/// An argument cannot be read or the resulting policy is out of range; `policy` is not changed then.
pub fn change(policy: &Policy, args: &[String]) -> Result<Policy, PolicyTextError> {
    let mut changed = policy.clone();
    for arg in args {
        match arg.split_once('=') {
            None => changed.acknowledge = parse_acknowledge(arg)?,
            Some((part, value)) => change_part(&mut changed, part, value)?,
        }
    }
    changed.validate().map_err(|e| PolicyTextError(e.to_string()))?;
    Ok(changed)
}

fn change_part(policy: &mut Policy, part: &str, value: &str) -> Result<(), PolicyTextError> {
    let in_part = |e: &dyn std::error::Error| PolicyTextError(format!("{part}: {e}"));
    let span = || value.parse::<Interval>().map(Interval::span).map_err(|e| in_part(&e));
    let bytes = || value.parse::<Bytes>().map(Bytes::get).map_err(|e| in_part(&e));
    match part {
        "policy" => policy.acknowledge = parse_acknowledge(value)?,
        "when" => policy.when = parse_when(value)?,
        "read-priority" => policy.read_priority = parse_switch(value).map_err(|e| in_part(&e))?,
        "commit" => policy.commit = span()?,
        "staleness" => policy.staleness = span()?,
        "at-limit" => policy.at_limit = parse_at_limit(value)?,
        "dirty-limit" => set_dirty_limit(policy, bytes()?),
        "cache-size" => policy.limits.cache_bytes_max = bytes()?,
        "journal-size" => policy.limits.journal_bytes_max = bytes()?,
        "batch" => policy.limits.batch_groups_max = value.parse().map_err(|e| in_part(&e))?,
        "linger" => policy.limits.linger = span()?,
        "on-reject" => policy.on_reject = parse_on_reject(value)?,
        "parked-per-minute" => {
            policy.limits.parked_per_minute_max = parse_parked_per_minute(value)?;
        }
        "bypass-sequential" if value == "none" => policy.limits.sequential_bytes_max = u64::MAX,
        "bypass-sequential" => policy.limits.sequential_bytes_max = bytes()?,
        _ => {
            return Err(unknown(
                part,
                "a part of the policy",
                "policy, when, read-priority, commit, staleness, at-limit, dirty-limit, cache-size, \
                 journal-size, batch, linger, on-reject, parked-per-minute or bypass-sequential",
            ));
        }
    }
    Ok(())
}

fn parse_switch(text: &str) -> Result<bool, PolicyTextError> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(unknown(text, "a choice", "on or off")),
    }
}

/// The policy for people and machines.
pub fn describe(policy: &Policy) -> PolicyReport {
    let bound = |span: Span| (span != Span::MAX).then(|| span.as_secs_f64());
    PolicyReport {
        name: acknowledge_name(policy.acknowledge).into(),
        commit: Interval(policy.commit).to_string(),
        acknowledge: acknowledge_name(policy.acknowledge).into(),
        when: when_text(policy.when),
        order: match policy.order {
            Order::Unit { batches_max } => format!("unit, up to {batches_max} batches at once"),
            Order::Domain => "domain".into(),
            Order::Any => "any".into(),
            Order::Epoch => "epoch".into(),
            Order::Strict => "strict".into(),
        },
        read_priority: policy.read_priority,
        at_limit: at_limit_name(policy.at_limit).into(),
        on_reject: Some(on_reject_name(policy.on_reject).into()),
        commit_seconds: policy.commit.as_secs_f64(),
        staleness_seconds: bound(policy.staleness),
        dirty_bytes_max: policy.limits.dirty_bytes_max,
        dirty_bytes_low: policy.limits.dirty_bytes_low,
        journal_bytes_max: policy.limits.journal_bytes_max,
        cache_bytes_max: policy.limits.cache_bytes_max,
        batch_groups_max: u64::from(policy.limits.batch_groups_max),
        batch_bytes_max: policy.limits.batch_bytes_max,
        linger_seconds: policy.limits.linger.as_secs_f64(),
        parked_groups_max: Some(u64::from(policy.limits.parked_max)),
        parked_per_minute_max: Some(policy.limits.parked_per_minute_max)
            .filter(|&most| most != u32::MAX)
            .map(u64::from),
    }
}

/// One line with the policy and both bounds, as the ready line shows it: `write-back, async, d = 0, D = 30s, at limit throttle`.
pub fn summary(policy: &Policy) -> String {
    summary_named(
        acknowledge_name(policy.acknowledge),
        &Interval(policy.commit).to_string(),
        policy,
    )
}

/// The same of a volume, whose policies have names by their order as well, and whose `d` may be a flush: `journaled, async,
/// d = flush, ...`.
pub fn volume_summary(policy: &Policy) -> String {
    let is_on_flush = policy.commit == commit_on_flush(policy.staleness);
    let commit = if is_on_flush { "flush".into() } else { Interval(policy.commit).to_string() };
    summary_named(WritePolicy::of(policy).name(), &commit, policy)
}

/// All that is in force, for the head of a report: the policy's line, which is that of [`summary`] or [`volume_summary`], and
/// the limits.
pub fn in_force(line: &str, policy: &Policy) -> String {
    let limits = &policy.limits;
    let bytes = |bytes: u64| match bytes {
        // More than any disk: no limit.
        NO_LIMIT.. => "none".to_owned(),
        _ => Bytes(bytes).to_string(),
    };
    format!(
        "{line}{}; dirty limit {}, journal limit {}, cache limit {}, batches of at most {} groups and {}, linger {}",
        if policy.read_priority { ", read priority" } else { "" },
        bytes(limits.dirty_bytes_max),
        bytes(limits.journal_bytes_max),
        bytes(limits.cache_bytes_max),
        limits.batch_groups_max,
        bytes(limits.batch_bytes_max),
        Interval(limits.linger),
    )
}

/// Limits from here on limit nothing.
const NO_LIMIT: u64 = 1 << 60;

fn summary_named(name: &str, commit: &str, policy: &Policy) -> String {
    format!(
        "{name}, {}, d = {commit}, D = {}, at limit {}{}",
        when_text(policy.when),
        Interval(policy.staleness),
        at_limit_name(policy.at_limit),
        if policy.on_reject == OnReject::Stop { ", on reject stop" } else { "" },
    )
}

/// The word that [`parse_acknowledge`] reads.
pub fn acknowledge_name(acknowledge: Acknowledge) -> &'static str {
    match acknowledge {
        Acknowledge::Journal => WritePolicy::WriteBack.name(),
        Acknowledge::Origin => WritePolicy::WriteThrough.name(),
        Acknowledge::OriginInvalidate => WritePolicy::WriteAround.name(),
    }
}

/// The text that [`parse_when`] reads.
pub fn when_text(when: When) -> String {
    match when {
        When::Async => "async".into(),
        When::Adaptive => "adaptive".into(),
        When::Periodic { every } => format!("periodic:{}", Interval(every)),
        When::Interval { age, check } => format!("interval:{},{}", Interval(age), Interval(check)),
        When::OnPressure => "pressure".into(),
    }
}

/// The word that [`parse_at_limit`] reads.
pub fn at_limit_name(at_limit: AtLimit) -> &'static str {
    match at_limit {
        AtLimit::Throttle => "throttle",
        AtLimit::Block => "block",
        AtLimit::WriteThrough => "write-through",
        AtLimit::Fail => "fail",
    }
}

/// The word that [`parse_on_reject`] reads.
pub fn on_reject_name(on_reject: OnReject) -> &'static str {
    match on_reject {
        OnReject::Park => "park",
        OnReject::Stop => "stop",
    }
}

/// Every mode's name; where several hold, the last of them is reported.
pub const MODES: [&str; 11] = [
    "normal",
    "throttled",
    "full",
    "fallback",
    COPIES_FALLBACK,
    "staleness-exceeded",
    TOO_FEW_COPIES,
    DISK_FULL,
    CACHE_LOST,
    "stopped",
    STANDBY,
];

/// Another process owns the log on other servers, and this one follows it. There is no core yet.
pub const STANDBY: &str = "standby";

/// Too few servers of the log on other servers take writes, which go through to the origin. For the core that is
/// [`Mode::Fallback`].
pub const COPIES_FALLBACK: &str = "copies-fallback";

/// Too few servers of the log on other servers take writes, or answer. The core does not know it either.
pub const TOO_FEW_COPIES: &str = "too-few-copies";

/// The journal's disk is full: no write is acknowledged. The core does not know it; for it a sync takes its time.
pub const DISK_FULL: &str = "disk-full";

/// The cache of a volume is lost: no write is acknowledged. The core does not know it.
pub const CACHE_LOST: &str = "cache-lost";

/// The mode's name in reports and metrics.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Normal => MODES[0],
        Mode::Throttled => MODES[1],
        Mode::Full => MODES[2],
        Mode::Fallback => MODES[3],
        Mode::StalenessExceeded => MODES[5],
        Mode::Stopped => MODES[9],
    }
}

/// What the mode means, for the log.
pub fn mode_meaning(mode: Mode) -> &'static str {
    match mode {
        Mode::Normal => "the policy is in force",
        Mode::Throttled => "dirty bytes are above the low mark: writes are delayed",
        Mode::Full => "the dirty or the journal's limit is reached: writes wait or fail",
        Mode::Fallback => {
            "the dirty or the journal's limit is reached, or servers of the log are lacking: writes go through"
        }
        Mode::StalenessExceeded => "the oldest undecided write is older than D",
        Mode::Stopped => "fenced by another owner, or the journal failed",
    }
}

fn unknown(text: &str, kind: &str, possible: &str) -> PolicyTextError {
    PolicyTextError(format!("'{text}' is not {kind}: use {possible}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_choice_reads_back_as_shown() {
        for text in ["write-back", "write-through", "write-around"] {
            assert_eq!(acknowledge_name(parse_acknowledge(text).unwrap()), text);
        }
        for text in ["async", "adaptive", "periodic:10s", "interval:30s,1s", "pressure"] {
            assert_eq!(when_text(parse_when(text).unwrap()), text);
        }
        assert_eq!(when_text(parse_when("interval:5s").unwrap()), "interval:5s,1s");
        for text in ["park", "stop"] {
            assert_eq!(on_reject_name(parse_on_reject(text).unwrap()), text);
        }
        for text in ["throttle", "block", "write-through", "fail"] {
            assert_eq!(at_limit_name(parse_at_limit(text).unwrap()), text);
        }
    }

    #[test]
    fn what_cannot_be_read_lists_what_can() {
        let error = parse_when("hourly").unwrap_err().to_string();
        assert!(
            error.contains("'hourly' is not a time to destage: use async, adaptive, periodic:10s")
        );
        assert!(parse_when("periodic").is_err() && parse_when("async:1s").is_err());
        assert!(parse_when("periodic:10").unwrap_err().to_string().contains("has no unit"));
        let error = parse_acknowledge("writeback").unwrap_err().to_string();
        assert!(error.ends_with("use write-back, write-through or write-around"));
    }

    #[test]
    fn a_change_is_whole_or_not_at_all() {
        let policy = Policy::default();
        let changed = change(
            &policy,
            &strings(&["write-through", "when=periodic:5s", "staleness=1m", "dirty-limit=64M"]),
        )
        .unwrap();
        assert_eq!(changed.acknowledge, Acknowledge::Origin);
        assert_eq!(changed.when, When::Periodic { every: Span::from_secs(5) });
        assert_eq!(changed.staleness, Span::from_secs(60));
        assert_eq!(changed.limits.dirty_bytes_low, 48 << 20);
        for (args, part) in [
            (["commit=40s"], "must exceed the commit interval"),
            (["colour=red"], "'colour' is not a part of the policy"),
            (["batch=many"], "batch: "),
            (["on-reject=drop"], "use park or stop"),
            (["parked-per-minute=0"], "1 to 1000000, or none"),
            (["when=periodic:1ms"], "10 ms to 1 h"),
            (["read-priority=yes"], "read-priority: 'yes' is not a choice: use on or off"),
        ] {
            let error = change(&policy, &strings(&args)).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn summary_names_both_bounds() {
        let mut policy = Policy { staleness: Span::MAX, ..Policy::default() };
        policy.commit = Span::from_secs(1);
        assert_eq!(summary(&policy), "write-back, async, d = 1s, D = none, at limit throttle");
        assert_eq!(describe(&policy).staleness_seconds, None);
        for named in WritePolicy::ALL {
            named.apply(&mut policy);
            assert!(volume_summary(&policy).starts_with(named.name()), "{named:?}");
        }
        policy = Policy { staleness: Span::MAX, ..Policy::default() };
        policy.on_reject = OnReject::Stop;
        assert!(summary(&policy).ends_with(", at limit throttle, on reject stop"));
    }
}
