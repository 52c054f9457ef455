//! `redis-benchmark` as the client.

use std::process::Command;
use std::time::Duration;

use destage_runtime::sockets::Listen;

use crate::Result;
use crate::command::output_within;

/// No run takes longer unless something is stuck.
const RUN_MAX: Duration = Duration::from_secs(180);

/// A `redis-benchmark` run to be repeated.
#[derive(Clone, Debug)]
pub(crate) struct RedisBenchmark {
    pub(crate) connections: usize,
    pub(crate) pipeline: usize,
    pub(crate) keys: u64,
    pub(crate) command: Vec<String>,
}

/// What it printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Printed {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl RedisBenchmark {
    /// The number of requests that takes about `time` at `address`, by a short trial.
    pub(crate) fn requests_for(&self, address: &Listen, time: Duration) -> Result<u64> {
        let mut requests = ((self.connections * self.pipeline) as u64 * 4).max(200);
        loop {
            let trial = self.run(address, requests)?;
            let seconds = requests as f64 / trial.per_second;
            if seconds > 0.3 {
                return Ok((trial.per_second * time.as_secs_f64()) as u64);
            }
            requests = (trial.per_second * 0.5) as u64;
        }
    }

    /// Sends `requests` and reads the figures that it prints.
    ///
    /// # Errors
    ///
    /// It is not installed, or the server answered with an error.
    pub(crate) fn run(&self, address: &Listen, requests: u64) -> Result<Printed> {
        let numbers = [
            ("-n", requests.to_string()),
            ("-c", self.connections.to_string()),
            ("-P", self.pipeline.to_string()),
            ("-r", self.keys.to_string()),
        ];
        let mut command = Command::new("redis-benchmark");
        match address {
            Listen::Tcp(address) => {
                command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()])
            }
            Listen::Unix(path) => command.arg("-s").arg(path),
        };
        command.args(["-q", "--csv", "--precision", "3"]);
        numbers.iter().for_each(|(flag, value)| {
            command.arg(flag).arg(value);
        });
        let out = output_within(command.args(&self.command), RUN_MAX)?;
        let text = String::from_utf8_lossy(&out.stdout);
        let said = String::from_utf8_lossy(&out.stderr);
        if !out.status.success() {
            return Err(format!("redis-benchmark failed: {text} {said}").into());
        }
        parse(&text, requests)
            .ok_or_else(|| format!("redis-benchmark printed no figures: {text} {said}").into())
    }
}

/// The last line: the command, requests per second, and latencies in milliseconds.
fn parse(text: &str, requests: u64) -> Option<Printed> {
    let line = text.lines().rev().find(|line| line.starts_with('"'))?;
    let mut fields = line.trim().trim_matches('"').rsplit("\",\"");
    let mut next = || fields.next()?.parse::<f64>().ok();
    let [_max, p99, _p95, p50, _min, _mean, per_second] =
        [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
    Some(Printed { requests, per_second, p50_us: p50 * 1e3, p99_us: p99 * 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_line_is_read_from_its_end() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"HSET a:__rand_int__ f0 \"x\",\"y\"\",\"81967.21\",\"0.330\",\"0.080\",\
                    \"0.319\",\"0.495\",\"0.671\",\"1.231\"\n";
        let expected = Printed { requests: 10, per_second: 81967.21, p50_us: 319.0, p99_us: 671.0 };
        assert_eq!(parse(text, 10), Some(expected));
        assert_eq!(parse("nothing", 10), None);
    }
}
