//! What the server tells of itself.

use super::Served;
use super::requests::Kind;
use crate::block::BLOCK;
use crate::engine::{VolumeMode, VolumeStatus};
use destage_core::{Mode, Order, Policy, StopReason, Time};
use destage_engine::{Drive, WritePolicy};
use destage_runtime::policy;
use destage_runtime::status::{Report, VolumeReport};
use destage_runtime::units::Interval;

/// What a start found in a volume's log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    pub(super) undecided: u64,
    pub(super) cut_bytes: u64,
}

/// The policy's word on the command line.
pub(super) fn policy_name(policy: &Policy) -> &'static str {
    match WritePolicy::of(policy) {
        WritePolicy::WriteAround => WritePolicy::WriteThrough.name(),
        WritePolicy::Strict => WritePolicy::Ordered.name(),
        named => named.name(),
    }
}

/// The volume's policy and its bounds, as the ready line shows them.
pub(super) fn policy_summary(served: &Served) -> String {
    let policy = summary_of(served.volume.policy(), served.commits_on_flush);
    match &served.group {
        Some(group) => format!("{policy} group={group}"),
        None => policy,
    }
}

/// The same for any policy.
pub(super) fn summary_of(policy: &Policy, commits_on_flush: bool) -> String {
    let order = match policy.order {
        Order::Epoch if policy_name(policy) == "ordered" => " order=epoch",
        Order::Strict if policy_name(policy) == "ordered" => " order=strict",
        _ => "",
    };
    let d = commit_word(policy, commits_on_flush);
    let when = policy::when_text(policy.when);
    format!(
        "policy={}{order} d={d} D={} when={when}",
        policy_name(policy),
        Interval(policy.staleness)
    )
}

fn mode_name(mode: VolumeMode) -> &'static str {
    match mode {
        VolumeMode::Serving(mode) => policy::mode_name(mode),
        VolumeMode::Frozen => "frozen",
        VolumeMode::ChangingPolicy => "changing-policy",
        VolumeMode::Stopped(_) => policy::mode_name(Mode::Stopped),
        VolumeMode::CacheLost => policy::CACHE_LOST,
        VolumeMode::Closing => "closing",
    }
}

/// Why a volume has stopped, if it has, and what to do.
pub(super) fn stopped(served: &Served) -> Option<String> {
    let why = match served.volume.stop_reason()? {
        StopReason::JournalFailed => format!(
            "the log in its cache failed or is damaged; 'destage block check --cache {}' tells what is broken, and the manual \
             what can be saved",
            served.cache
        ),
        StopReason::Fenced => "another host has taken its origin over".to_owned(),
        StopReason::OriginChanged => "its origin is not as it was left".to_owned(),
    };
    Some(format!("volume '{}' has stopped: {why}", served.name))
}

/// What has become of a volume's cache file, if it is not as it was, and what to do.
pub(super) fn tampered(served: &Served) -> Option<String> {
    let (name, cache, found) = (&served.name, &served.cache, served.watch.found()?);
    Some(format!(
        "volume '{name}': the cache {cache} {found} while it was in use: it takes no writes, and sends what it holds to the origin \
         as long as it can be read; then end the server and give it a sound cache"
    ))
}

/// d as the user gives it.
fn commit_word(policy: &Policy, commits_on_flush: bool) -> String {
    if commits_on_flush { "flush".to_owned() } else { Interval(policy.commit).to_string() }
}

/// One volume.
pub(super) fn volume(served: &mut Served, now: Time) -> VolumeReport {
    let status = served.volume.status();
    let latencies = served.volume.latencies();
    let requests = served.requests.report(now);
    let latency_of = |kind: Kind| requests[kind as usize].latency;
    let policy = served.volume.policy();
    VolumeReport {
        name: served.name.clone(),
        mode: mode_name(status.mode).into(),
        policy: policy_summary(served),
        policy_name: policy_name(policy).into(),
        commit: commit_word(policy, served.commits_on_flush),
        size_bytes: status.volume_bytes,
        origin: served.description.clone(),
        cache: served.cache.clone(),
        staleness_seconds: status.core.staleness.as_secs_f64(),
        staleness_max_seconds: status.core.staleness_max.as_secs_f64(),
        dirty_bytes: status.core.dirty_units * BLOCK as u64,
        dirty_writes: status.core.dirty_groups,
        hit_ratio: status.hit_ratio(),
        hit_blocks_total: status.hit_blocks,
        miss_blocks_total: status.miss_blocks,
        clean_blocks: status.core.cache_units,
        bypassed_blocks_total: status.passed_blocks + status.bypassed_blocks,
        destaged_blocks_total: status.sent_blocks,
        before_cached_blocks_total: status.before_cached_blocks,
        before_fetched_blocks_total: status.before_fetched_blocks,
        destage_writes_per_second: status.core.destage_rate,
        level: status.level,
        log_bytes: status.log.pinned_bytes,
        log_bytes_max: status.log_bytes,
        checkpoint_age_seconds: status.checkpoint_age.as_secs_f64(),
        marks_ahead: status.marks_ahead as u64,
        cache_errors_total: status.slot_errors + status.log_read_errors,
        origin_errors_total: status.origin_errors,
        origin_last_error: status.origin_error.clone(),
        read_latency: latency_of(Kind::Read),
        write_latency: latency_of(Kind::Write),
        commit_latency: latencies.commit,
        destage_latency: latencies.destage,
        fsync_latency: latencies.sync,
        requests,
        auto: served.auto.report(served.volume.policy()),
    }
}

/// What the server itself counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    pub(super) started: Time,
    pub(super) connected: usize,
    pub(super) connected_max: usize,
    pub(super) open_files: u64,
    pub(super) accepted_total: u64,
    pub(super) requests_total: u64,
    pub(super) errors_total: u64,
    pub(super) client_bytes: usize,
}

/// The mode of a volume that acknowledges no write although nobody has asked for that.
fn silent(served: &Served) -> Option<&'static str> {
    let status = served.volume.status();
    match status.mode {
        VolumeMode::Stopped(_) => Some(policy::mode_name(Mode::Stopped)),
        VolumeMode::CacheLost if !served.volume.policy().waits_for_origin() => {
            Some(policy::CACHE_LOST)
        }
        _ => Some(status.core.mode)
            .filter(|&mode| mode == Mode::StalenessExceeded)
            .map(policy::mode_name),
    }
}

/// Everything. Counters are those of all volumes together, and the mode is that of any volume that acknowledges no write;
/// the other common fields are those of the volume whose origin is furthest behind.
pub(super) fn report(volumes: &mut [Served], counted: Counted, now: Time) -> Report {
    let behind = volumes.iter_mut().max_by_key(|served| served.volume.status().core.staleness);
    let mut report = behind.map_or_else(Report::default, of_one);
    add_up(&mut report, volumes);
    report.uptime_seconds = now.since(counted.started).as_secs_f64();
    report.clients.connected = counted.connected as u64;
    report.clients.connected_max = counted.connected_max as u64;
    report.clients.open_files = Some(counted.open_files);
    report.clients.accepted_total = counted.accepted_total;
    report.clients.commands_total = counted.requests_total;
    report.clients.errors_total = counted.errors_total;
    report.memory.clients_bytes = counted.client_bytes as u64;
    report.volumes = volumes.iter_mut().map(|served| volume(served, now)).collect();
    report.auto =
        report.volumes.iter().filter_map(|volume| volume.auto.clone()).reduce(|mut all, one| {
            all.add(&one);
            all
        });
    let rank = |mode: &&str| policy::MODES.iter().position(|known| known == mode);
    if let Some(worst) = volumes.iter().filter_map(silent).max_by_key(rank) {
        report.mode = worst.into();
    }
    for served in volumes.iter() {
        report.warnings.extend(tampered(served));
    }
    report.finish()
}

/// The common fields as one volume has them.
fn of_one(served: &mut Served) -> Report {
    let status = served.volume.status();
    let latencies = served.volume.latencies();
    let policy = served.volume.policy();
    let mut report = Report::from_core("block", &status.core, policy);
    report.policy.name = policy_name(policy).into();
    report.policy.commit = commit_word(policy, served.commits_on_flush);
    // An origin of blocks rejects none.
    (report.policy.on_reject, report.policy.parked_groups_max) = (None, None);
    report.policy.parked_per_minute_max = None;
    (report.destage.rejected_total, report.destage.parked_groups) = (None, None);
    report.writes.commit_latency = latencies.commit;
    report.destage.latency = latencies.destage;
    report.destage.batch_groups = latencies.batch_groups;
    report.journal.fsync_latency = latencies.sync;
    report.journal.segments = status.log.segments as u64;
    report.journal.bytes = status.log.bytes;
    report.journal.recovered_groups_at_start = served.found.undecided;
    report.journal.cut_bytes_at_start = served.found.cut_bytes;
    report.origin.description.clone_from(&served.description);
    report.origin.last_error = (!status.origin_error.is_empty()).then_some(status.origin_error);
    report
}

/// What is counted since the start, and the memory, of all volumes together.
fn add_up(report: &mut Report, volumes: &[Served]) {
    let of: Vec<VolumeStatus> = volumes.iter().map(|served| served.volume.status()).collect();
    let sum = |value: fn(&VolumeStatus) -> u64| of.iter().map(value).sum::<u64>();
    report.writes.groups_total = sum(|status| status.core.writes);
    report.destage.groups_total = sum(|status| status.core.destaged);
    report.destage.batches_total = sum(|status| status.core.batches);
    report.destage.changes_total = sum(|status| status.core.destaged);
    report.destage.rows_total = sum(|status| status.sent_blocks);
    report.cache.hits_total = sum(|status| status.hit_blocks);
    report.cache.misses_total = sum(|status| status.miss_blocks);
    report.cache.evictions_total = sum(|status| status.core.evictions);
    report.journal.syncs_total = sum(|status| status.core.syncs);
    report.origin.retries_total = sum(|status| status.core.retries);
    report.clients.refused_total = sum(|status| status.core.refused);
    report.clients.waiting = sum(|status| status.core.waiting);
    report.memory.groups_bytes = sum(|status| status.memory_bytes);
}
