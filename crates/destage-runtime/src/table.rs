//! A report as a table for people.

use crate::human::{bytes, count, percent, seconds};
use crate::status::{
    AbsentReport, AbsentTable, AutoReport, DerivedReport, InvalidationReport, Latencies,
    MountReport, OnceReport, PolicyReport, ReplicasReport, Report, RequestsReport, TrackingReport,
    VolumeReport,
};
use crate::units::Interval;
use destage_core::Span;
use std::fmt::Write;

type Rows = Vec<(&'static str, String)>;

pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    let paused = if report.paused { ", paused" } else { "" };
    let _ = writeln!(
        out,
        "destage {} {}, up {}, mode {}{paused}",
        report.version,
        report.front_end,
        seconds(report.uptime_seconds),
        report.mode,
    );
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    let sections: [(&str, Rows); 8] = [
        ("contract", contract(report)),
        ("origin", origin(report)),
        ("clients", clients(report)),
        ("writes", writes(report)),
        ("destage", destage(report)),
        ("cache", cache(report)),
        ("journal", journal(report)),
        ("memory", memory(report)),
    ];
    for (title, rows) in sections {
        let _ = writeln!(out, "\n{title}");
        for (label, value) in rows {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(auto) = report.auto.as_ref().filter(|_| report.volumes.is_empty()) {
        let _ = writeln!(out, "\nauto");
        for (label, value) in self::auto(auto) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(keys) = report.derived.as_ref().filter(|derived| derived.keys > 0) {
        let _ = writeln!(out, "\nderived keys");
        for (label, value) in derived(keys) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(once) = report.once.as_ref().filter(|once| once.tokens + once.refused_total > 0) {
        let _ = writeln!(out, "\nDESTAGE ONCE");
        for (label, value) in self::once(once) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    let told = |tracking: &&TrackingReport| tracking.clients + tracking.invalidations_total > 0;
    if let Some(tracking) = report.tracking.as_ref().filter(told) {
        let _ = writeln!(out, "\nkeys that clients hold");
        for (label, value) in self::tracking(tracking) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(absent) = &report.absent {
        let _ = writeln!(out, "\nrows that are not there");
        for (label, value) in self::absent(absent) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
        for table in absent.tables.iter().take(ABSENT_TABLES_MAX) {
            let _ = writeln!(out, "  {:<24} {}", table.name, absent_table(table));
        }
    }
    if let Some(mount) = &report.mount {
        let _ = writeln!(out, "\nmounted folder");
        for (label, value) in self::mount(mount) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(told) = report.invalidation.as_ref().filter(|told| told.tables > 0) {
        let _ = writeln!(out, "\nothers' changes");
        for (label, value) in invalidation(told) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if let Some(replicas) = &report.replicas {
        let _ = writeln!(out, "\nreplicas");
        for (label, value) in self::replicas(replicas) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    if !report.domains.is_empty() {
        let _ = writeln!(out, "\ndomains");
    }
    for d in &report.domains {
        let state = match (d.halted, d.failing) {
            (true, _) => ", halted",
            (false, true) => ", failing",
            (false, false) => "",
        };
        let (dirty, age, parked) = (d.dirty_groups, seconds(d.staleness_seconds), d.parked_groups);
        let decided = d.watermark;
        let _ = writeln!(
            out,
            "  {:<24} {dirty} undecided, {age} old, {parked} parked, decided up to {decided}{state}",
            d.name
        );
    }
    for volume in &report.volumes {
        let name = if volume.name.is_empty() { "(default)" } else { &volume.name };
        let _ = writeln!(out, "\nvolume {name}");
        for (label, value) in self::volume(volume) {
            let _ = writeln!(out, "  {label:<24} {value}");
        }
    }
    out
}

fn auto(auto: &AutoReport) -> Rows {
    let done = format!(
        "{}, {} steps kept, {} times back",
        count(auto.changes_total),
        count(auto.kept_total),
        count(auto.went_back_total)
    );
    let user = Interval(Span::from_nanos((auto.user_linger_seconds * 1e9).round() as u64));
    let mut rows = vec![
        ("auto", format!("{}, {}", auto.goal, auto.state)),
        ("set by the user", format!("linger {user}, batch {}", auto.user_batch_groups)),
        ("changes", done),
        ("last", auto.last.clone().unwrap_or_else(|| "none yet".into())),
    ];
    rows.extend(auto.advice.iter().map(|advice| ("advice", advice.clone())));
    rows
}

fn derived(derived: &DerivedReport) -> Rows {
    let queries = format!(
        "{}, {} of them behind writes destaged first",
        count(derived.queries_total),
        count(derived.destaged_first_total)
    );
    let given_up = format!(
        "{} at their deadline, {} queries failed",
        count(derived.timeouts_total),
        count(derived.failures_total)
    );
    vec![
        ("patterns", count(derived.keys)),
        (
            "answers",
            format!(
                "{} cached, {} by queries",
                count(derived.hits_total),
                count(derived.misses_total)
            ),
        ),
        ("queries", queries),
        ("given up", given_up),
        ("waiting", count(derived.waiting)),
    ]
}

fn once(once: &OnceReport) -> Rows {
    vec![
        ("tokens", format!("{} of {}", count(once.tokens), count(once.tokens_max))),
        ("memory", format!("{} of {}", bytes(once.bytes), bytes(once.bytes_max))),
        ("sent again", count(once.replayed_total)),
        ("refused, no room", count(once.refused_total)),
    ]
}

fn tracking(tracking: &TrackingReport) -> Rows {
    let items = format!(
        "{}, {} of {} with each client's",
        count(tracking.keys),
        count(tracking.items),
        count(tracking.items_max)
    );
    vec![
        ("clients", count(tracking.clients)),
        ("keys", items),
        ("prefixes", count(tracking.prefixes)),
        ("memory", bytes(tracking.bytes)),
        ("invalidations", count(tracking.invalidations_total)),
        ("dropped, no room", count(tracking.dropped_total)),
    ]
}

/// Tables that are listed with what is known of their absent rows; JSON has all.
const ABSENT_TABLES_MAX: usize = 100;

fn absent(absent: &AbsentReport) -> Rows {
    let tables = format!(
        "{} ready, {} filling, {} off",
        count(absent.ready),
        count(absent.filling),
        count(absent.off)
    );
    vec![
        ("tables", tables),
        ("keys", count(absent.keys)),
        ("memory", format!("{} of {}", bytes(absent.bytes), bytes(absent.bytes_max))),
        ("asked for all the same", format!("{:.2} %", absent.false_positive_rate * 100.0)),
        ("handed out, not written", count(absent.handed)),
        ("not asked for", count(absent.answered_total)),
    ]
}

fn absent_table(table: &AbsentTable) -> String {
    let why = table.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
    match table.state.as_str() {
        "off" => format!("off{why}"),
        state => format!("{state}, {} keys, {}{why}", count(table.keys), bytes(table.bytes)),
    }
}

fn mount(mount: &MountReport) -> Rows {
    let sent = format!(
        "{} files, {} changes of names",
        count(mount.files_written_total),
        count(mount.names_changed_total)
    );
    let room = mount.room_bytes.map_or_else(|| "the origin does not tell".to_owned(), bytes);
    let mut rows = vec![
        ("sent to the origin", sent),
        ("gone before they were due", count(mount.absorbed_files_total)),
        ("room", room),
        ("conflicts", count(mount.conflicts_total)),
        ("batches not taken", count(mount.origin_errors_total)),
    ];
    if mount.frozen {
        rows.push(("frozen", "until 'destage mount thaw'".to_owned()));
    }
    rows
}

fn invalidation(invalidation: &InvalidationReport) -> Rows {
    let listening = if invalidation.listening { "yes" } else { "no, trying again" };
    vec![
        ("tables", count(invalidation.tables)),
        ("listening", listening.to_owned()),
        ("notifications", count(invalidation.notifications_total)),
        ("copies dropped", count(invalidation.dropped_total)),
        ("resyncs", count(invalidation.resyncs_total)),
    ]
}

fn volume(v: &VolumeReport) -> Rows {
    let ratio =
        v.hit_ratio.map_or_else(|| "no reads yet".into(), |r| format!("{:.1} %", r * 100.0));
    let mut rows = vec![
        ("mode", v.mode.clone()),
        ("policy", v.policy.clone()),
        ("size", bytes(v.size_bytes)),
        ("origin", v.origin.clone()),
        ("cache", format!("{}, {} clean blocks", v.cache, count(v.clean_blocks))),
        (
            "staleness",
            format!(
                "{} now, {} at worst",
                seconds(v.staleness_seconds),
                seconds(v.staleness_max_seconds)
            ),
        ),
        ("dirty", format!("{} in {} writes", bytes(v.dirty_bytes), count(v.dirty_writes))),
        ("destage rate", format!("{:.0} writes/s", v.destage_writes_per_second)),
        ("hit ratio", ratio),
        ("log", format!("{} of {}", bytes(v.log_bytes), bytes(v.log_bytes_max))),
        (
            "latency p99",
            format!(
                "reads {}, writes {}",
                seconds(v.read_latency.p99_seconds),
                seconds(v.write_latency.p99_seconds)
            ),
        ),
        ("commit latency", latency(&v.commit_latency)),
        ("destage latency", latency(&v.destage_latency)),
        ("sync latency", latency(&v.fsync_latency)),
    ];
    rows.extend(v.auto.iter().flat_map(auto));
    rows.extend(v.requests.iter().filter(|asked| asked.requests_total > 0).map(requests));
    if v.cache_errors_total > 0 {
        rows.push(("cache errors", count(v.cache_errors_total)));
    }
    if v.origin_errors_total > 0 {
        rows.push((
            "origin errors",
            format!("{}, last: {}", count(v.origin_errors_total), v.origin_last_error),
        ));
    }
    rows
}

fn requests(asked: &RequestsReport) -> (&'static str, String) {
    let label = match asked.kind.as_str() {
        "read" => "reads",
        "write" => "writes",
        "flush" => "flushes",
        "trim" => "trims",
        "zero" => "zeros",
        _ => "other requests",
    };
    let (count, moved) = (count(asked.requests_total), bytes(asked.bytes_total));
    let errors = match asked.errors_total {
        0 => String::new(),
        errors => format!(", {} errors", self::count(errors)),
    };
    let (p50, p99) = (seconds(asked.latency.p50_seconds), seconds(asked.latency.p99_seconds));
    let max = seconds(asked.latency.max_seconds);
    (label, format!("{count}, {moved}{errors}, p50 {p50}, p99 {p99}, max {max}"))
}

fn replicas(replicas: &ReplicasReport) -> Vec<(String, String)> {
    let here = if replicas.owned_here { "this server" } else { replicas.owner.as_str() };
    let mut rows = vec![
        ("log".to_owned(), format!("{}, owned by {here}", replicas.log)),
        ("copies".to_owned(), format!("{} of {} servers", replicas.copies, replicas.servers.len())),
        ("loss".to_owned(), replicas.loss.clone()),
        ("undecided".to_owned(), bytes(replicas.undecided_bytes)),
    ];
    if !replicas.owned_here {
        rows.push(("behind".to_owned(), format!("{} entries", count(replicas.behind_entries))));
    }
    for server in &replicas.servers {
        let durable = if server.durable { "on disk" } else { "in memory" };
        let behind = match server.behind_entries {
            Some(0) => String::new(),
            Some(entries) => format!(", {} entries behind", count(entries)),
            None => ", behind by an unknown number of entries".to_owned(),
        };
        let held = server.held_bytes.map(|held| format!(", holds {}", bytes(held)));
        let held = held.unwrap_or_default();
        rows.push((server.address.clone(), format!("{}, {durable}{held}{behind}", server.state)));
    }
    rows
}

fn contract(r: &Report) -> Rows {
    let policy = &r.policy;
    let staleness = policy.staleness_seconds.map_or_else(|| "none".into(), seconds);
    let mut rows = vec![
        ("policy", format!("{}, {}, order {}", policy.name, policy.when, policy.order)),
        ("at a limit", policy.at_limit.clone()),
        (
            "lost if host crashes",
            format!("{} now, bound d = {}", seconds(r.rpo.host_crash_seconds), d(policy)),
        ),
        (
            "lost with the journal",
            format!(
                "{} now, {} at most so far, bound D = {staleness}",
                seconds(r.rpo.total_loss_seconds),
                seconds(r.rpo.total_loss_max_seconds),
            ),
        ),
    ];
    if let Some(word) = &policy.on_reject {
        rows.insert(2, ("what is rejected", on_reject(policy, word)));
    }
    rows
}

/// The bound d in the table's units, or the word that stands for it.
fn d(policy: &PolicyReport) -> String {
    let is_word = !policy.commit.is_empty() && policy.commit.parse::<Interval>().is_err();
    if is_word { policy.commit.clone() } else { seconds(policy.commit_seconds) }
}

fn origin(r: &Report) -> Rows {
    let origin = &r.origin;
    let state = match (origin.connected, origin.down) {
        (_, true) => "down",
        (true, false) => "connected",
        (false, false) => "not connected",
    };
    let mut rows = vec![
        ("store", origin.description.clone()),
        ("state", format!("{state}, {} retries", count(origin.retries_total))),
    ];
    if let Some(age) = origin.failing_for_seconds {
        rows.push(("failing for", seconds(age)));
    }
    if let Some(error) = &origin.last_error {
        rows.push(("last error", error.clone()));
    }
    rows
}

fn clients(r: &Report) -> Rows {
    let clients = &r.clients;
    let files = clients.open_files.filter(|&files| files > 0);
    let files = files.map(|files| ("open files", count(files)));
    let rows = [
        (
            "connections",
            format!("{} of {}", count(clients.connected), count(clients.connected_max)),
        ),
        (
            "commands",
            format!("{}, {} errors", count(clients.commands_total), count(clients.errors_total)),
        ),
        (
            "waiting, refused",
            format!("{}, {}", count(clients.waiting), count(clients.refused_total)),
        ),
    ];
    let (wrong, held) = (clients.auth_failures_total, clients.auth_held_total);
    let wrong = (wrong > 0)
        .then(|| ("wrong passwords", format!("{}, {} not looked at", count(wrong), count(held))));
    let unread = clients.unread_bytes.map(|unread| {
        let cut = count(clients.cut_off_total.unwrap_or(0));
        ("unread, cut off", format!("{}, {cut} clients", bytes(unread)))
    });
    files.into_iter().chain(rows).chain(wrong).chain(unread).collect()
}

fn writes(r: &Report) -> Rows {
    let writes = &r.writes;
    vec![
        ("groups", count(writes.groups_total)),
        (
            "dirty",
            format!(
                "{} groups, {} units, {} of {}",
                count(writes.dirty_groups),
                count(writes.dirty_units),
                bytes(writes.limited_bytes),
                bytes(r.policy.dirty_bytes_max),
            ),
        ),
        (
            "last, committed, decided",
            format!("{}, {}, {}", writes.last_lsn, writes.committed_lsn, writes.decided_lsn),
        ),
        ("commit latency", latency(&writes.commit_latency)),
    ]
}

fn on_reject(policy: &PolicyReport, word: &str) -> String {
    let halts = policy.parked_per_minute_max.map_or(String::new(), |most| {
        format!(", and halts its domain beyond {} a minute", count(most))
    });
    match word {
        "stop" => "halts its domain".into(),
        _ => format!("is parked{halts}"),
    }
}

fn destage(r: &Report) -> Rows {
    let destage = &r.destage;
    let coalescing =
        destage.coalescing_ratio.map_or_else(|| "none yet".into(), |x| format!("{x:.2}"));
    let mut rows = vec![
        (
            "groups, batches",
            format!(
                "{}, {}, {:.0} groups/s",
                count(destage.groups_total),
                count(destage.batches_total),
                destage.groups_per_second
            ),
        ),
        ("latency", latency(&destage.latency)),
        (
            "groups per batch",
            format!(
                "mean {:.1}, p50 {}, max {}",
                destage.batch_groups.mean, destage.batch_groups.p50, destage.batch_groups.max
            ),
        ),
        ("changes per row", coalescing),
    ];
    if let (Some(rejected), Some(parked)) = (destage.rejected_total, destage.parked_groups) {
        rows.push(("rejected, parked now", format!("{}, {}", count(rejected), count(parked))));
    }
    rows
}

fn cache(r: &Report) -> Rows {
    let cache = &r.cache;
    vec![
        (
            "units",
            format!(
                "{}, {} of {}, {} evicted",
                count(cache.units),
                bytes(cache.bytes),
                bytes(r.policy.cache_bytes_max),
                count(cache.evictions_total),
            ),
        ),
        (
            "hits",
            format!(
                "{} of {} accesses",
                cache.hit_ratio.map_or_else(|| "none".into(), percent),
                count(cache.hits_total + cache.misses_total)
            ),
        ),
    ]
}

fn depth(depth: Option<u64>) -> String {
    match depth {
        None => String::new(),
        Some(0) => ", buffered writes".to_owned(),
        Some(depth) => format!(", direct writes, up to {depth} at once"),
    }
}

fn journal(r: &Report) -> Rows {
    let journal = &r.journal;
    let mut rows = vec![
        (
            "files",
            format!(
                "{} segments, {}, {} undecided of {}",
                count(journal.segments),
                bytes(journal.bytes),
                bytes(journal.dirty_bytes),
                bytes(r.policy.journal_bytes_max),
            ),
        ),
        ("syncs", format!("{}{}", count(journal.syncs_total), depth(journal.depth))),
        ("sync latency", latency(&journal.fsync_latency)),
        (
            "at the start",
            format!(
                "{} groups taken up, {} cut",
                count(journal.recovered_groups_at_start),
                bytes(journal.cut_bytes_at_start)
            ),
        ),
    ];
    if let Some(kept) = journal.retained_seconds {
        rows.insert(1, ("kept", format!("decided groups of the last {}", seconds(kept))));
    }
    rows
}

fn memory(r: &Report) -> Rows {
    let memory = &r.memory;
    let parts = [
        ("rows", memory.rows_bytes),
        ("index", memory.index_bytes),
        ("groups", Some(memory.groups_bytes)),
        ("clients", Some(memory.clients_bytes)),
    ];
    let parts = parts.iter().filter_map(|(part, held)| held.map(|held| (part, held)));
    let parts: Vec<_> = parts.map(|(part, held)| format!("{part} {}", bytes(held))).collect();
    vec![("parts", parts.join(", ")), ("process", bytes(memory.resident_bytes))]
}

fn latency(l: &Latencies) -> String {
    format!(
        "p50 {}, p99 {}, p99.9 {}, max {}",
        seconds(l.p50_seconds),
        seconds(l.p99_seconds),
        seconds(l.p999_seconds),
        seconds(l.max_seconds)
    )
}
