//! `fio` as the client of block devices: a file by io_uring and O_DIRECT, or an NBD export.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use crate::Result;
use crate::command::output_within;

/// Where the device is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    File(PathBuf),
    Nbd(String),
}

/// What to do there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    /// As fio names it: `randwrite`, `read`.
    pub(crate) kind: &'static str,
    pub(crate) block_bytes: u64,
    pub(crate) depth: u32,
    /// The part of the device from its start that is used.
    pub(crate) region_bytes: u64,
    /// A flush after every so many writes; 0 for none.
    pub(crate) flush_every: u32,
    /// Each write durable before it is answered, for a file.
    pub(crate) is_synchronous: bool,
    pub(crate) spread: Spread,
    pub(crate) until: Until,
    pub(crate) seed: u64,
}

/// Which blocks are used how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    Uniform,
    /// Zipfian with constant 0.99.
    Zipfian,
    /// Each block once.
    Each,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Until {
    pub(crate) time: Duration,
    /// Bytes moved, if they come first.
    pub(crate) bytes_max: Option<u64>,
}

impl Job {
    /// 4 KiB at random places, uniform, one at a time, without flushes.
    pub(crate) fn random(kind: &'static str, region_bytes: u64, time: Duration, seed: u64) -> Self {
        Self {
            kind,
            block_bytes: 4096,
            depth: 1,
            region_bytes,
            flush_every: 0,
            is_synchronous: false,
            spread: Spread::Uniform,
            until: Until { time, bytes_max: None },
            seed,
        }
    }

    /// Everything once from the start to the end, in large requests.
    pub(crate) fn whole(kind: &'static str, region_bytes: u64) -> Self {
        Self {
            block_bytes: 1 << 20,
            depth: 4,
            spread: Spread::Each,
            until: Until { time: RUN_MAX, bytes_max: Some(region_bytes) },
            ..Self::random(kind, region_bytes, RUN_MAX, 1)
        }
    }
}

/// What it printed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Printed {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Printed {
    pub(crate) fn per_second(&self) -> f64 {
        self.requests as f64 / self.seconds.max(1e-6)
    }
}

/// Runs a job to its end; `dir` is for its own files.
///
/// # Errors
///
/// fio is not installed, or a request failed.
pub(crate) fn run(dir: &Path, place: &Place, job: &Job) -> Result<Printed> {
    // Several may run at a time.
    let report = tempfile::Builder::new().prefix("fio-").tempfile_in(dir)?.into_temp_path();
    let mut command = Command::new("fio");
    command.args(arguments(place, job)).arg("--output-format=json");
    command.arg(format!("--output={}", report.display())).current_dir(dir);
    let output = output_within(&mut command, job.until.time + RUN_MAX)?;
    let text = std::fs::read_to_string(&*report).unwrap_or_default();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("fio failed: {} {}", said.trim(), text.trim()).into());
    }
    parse(&text, job.kind)
}

/// No run takes longer than its time by more, unless something is stuck.
const RUN_MAX: Duration = Duration::from_secs(600);

fn arguments(place: &Place, job: &Job) -> Vec<String> {
    let mut all = vec![
        "--name=bench".to_owned(),
        format!("--rw={}", job.kind),
        format!("--bs={}", job.block_bytes),
        format!("--iodepth={}", job.depth),
        format!("--size={}", job.region_bytes),
        format!("--runtime={}ms", job.until.time.as_millis()),
        format!("--randseed={}", job.seed),
    ];
    let mut add = |text: &str| all.push(text.to_owned());
    let flush = match place {
        Place::File(path) => {
            add("--ioengine=io_uring");
            add("--direct=1");
            add(&format!("--filename={}", path.display()));
            "fdatasync"
        }
        Place::Nbd(uri) => {
            add("--ioengine=nbd");
            add(&format!("--uri={uri}"));
            "fsync"
        }
    };
    if job.flush_every > 0 {
        add(&format!("--{flush}={}", job.flush_every));
    }
    if job.is_synchronous {
        add("--sync=dsync");
    }
    match job.spread {
        Spread::Each => {}
        Spread::Uniform => add("--norandommap"),
        Spread::Zipfian => {
            add("--norandommap");
            add("--random_distribution=zipf:0.99");
        }
    }
    match job.until.bytes_max {
        Some(bytes) => add(&format!("--io_size={bytes}")),
        None => add("--time_based"),
    }
    all
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<JobReport>,
}

#[derive(Deserialize)]
struct JobReport {
    error: i64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    /// Milliseconds.
    runtime: f64,
    clat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: std::collections::HashMap<String, f64>,
}

fn parse(text: &str, kind: &str) -> Result<Printed> {
    // Warnings may stand before the report.
    let json = &text[text.find('{').unwrap_or(text.len())..];
    let report: Report =
        serde_json::from_str(json).map_err(|error| format!("fio's report: {error}: {text}"))?;
    let job = report.jobs.first().ok_or("fio's report has no job")?;
    if job.error != 0 {
        return Err(format!("fio failed with error {}", job.error).into());
    }
    let direction = if kind.contains("write") { &job.write } else { &job.read };
    let at = |name: &str| direction.clat_ns.percentile.get(name).copied().unwrap_or(0.0) / 1e3;
    Ok(Printed {
        requests: direction.total_ios,
        seconds: direction.runtime / 1e3,
        p50_us: at("50.000000"),
        p99_us: at("99.000000"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job::random("randwrite", 1 << 20, Duration::from_millis(1500), 7)
    }

    #[test]
    fn a_flush_is_fdatasync_of_a_file_and_a_flush_of_an_export() {
        let job = Job { flush_every: 16, ..job() };
        let file = arguments(&Place::File("/disk".into()), &job);
        let export = arguments(&Place::Nbd("nbd://host".into()), &job);
        assert!(file.contains(&"--fdatasync=16".to_owned()), "{file:?}");
        assert!(file.contains(&"--direct=1".to_owned()), "{file:?}");
        assert!(export.contains(&"--fsync=16".to_owned()), "{export:?}");
        assert!(export.contains(&"--time_based".to_owned()), "{export:?}");
        assert!(export.contains(&"--runtime=1500ms".to_owned()), "{export:?}");
    }

    #[test]
    fn the_report_is_read_behind_warnings() {
        let text = r#"fio: a warning
{ "jobs": [ { "error": 0,
  "read": { "total_ios": 0, "runtime": 0, "clat_ns": {} },
  "write": { "total_ios": 3000, "runtime": 1500,
             "clat_ns": { "percentile": { "50.000000": 1500, "99.000000": 9000 } } } } ] }"#;
        let printed = parse(text, "randwrite").expect("a report");
        assert_eq!((printed.requests, printed.per_second()), (3000, 2000.0));
        assert_eq!((printed.p50_us, printed.p99_us), (1.5, 9.0));
        assert!(parse(&text.replace("\"error\": 0", "\"error\": 5"), "randwrite").is_err());
        assert!(parse("nothing", "read").is_err());
    }
}
