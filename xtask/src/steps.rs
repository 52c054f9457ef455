//! Steps of a run: each has a name, takes a time, and passes or fails; the tests inside are counted.

use crate::Result;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the steps so far came to.
#[derive(Default)]
pub(crate) struct Steps {
    passed: u64,
    failed: u64,
    broken: Vec<String>,
}

impl Steps {
    /// Runs a command as one check.
    pub(crate) fn check(&mut self, name: &str, command: &mut Command) -> bool {
        self.step(name, |steps| {
            let done = command.stdin(Stdio::null()).status().is_ok_and(|status| status.success());
            steps.count(u64::from(done), u64::from(!done));
            done
        })
    }

    /// Does something as one check.
    pub(crate) fn work(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> bool {
        self.step(name, |steps| {
            let done = work().map_err(|message| eprintln!("xtask: {message}")).is_ok();
            steps.count(u64::from(done), u64::from(!done));
            done
        })
    }

    /// Runs test programs and counts what they report.
    pub(crate) fn tests(&mut self, name: &str, command: &mut Command) -> bool {
        self.step(name, |steps| {
            let (passed, failed, success) = match counted(command) {
                Ok(counts) => counts,
                Err(message) => {
                    eprintln!("xtask: {message}");
                    (0, 0, false)
                }
            };
            // A step that dies before its tests report anything still counts as one failure.
            let unreported = u64::from(!success && failed == 0);
            steps.count(passed, failed + unreported);
            success
        })
    }

    fn step(&mut self, name: &str, body: impl FnOnce(&mut Self) -> bool) -> bool {
        println!("\n==> {name}");
        let start = Instant::now();
        let done = body(self);
        let verdict = if done { "ok" } else { "FAILED" };
        println!("==> {name}: {verdict} in {:.1} s", start.elapsed().as_secs_f64());
        if !done {
            self.broken.push(name.to_owned());
        }
        done
    }

    fn count(&mut self, passed: u64, failed: u64) {
        self.passed += passed;
        self.failed += failed;
    }

    /// Prints the summary; whether everything passed.
    pub(crate) fn finish(self) -> bool {
        println!();
        for name in &self.broken {
            println!("failed: {name}");
        }
        println!("{} passed, {} failed", self.passed, self.failed);
        self.failed == 0 && self.broken.is_empty()
    }
}

/// Passes the command's output on and adds up its `test result:` lines.
fn counted(command: &mut Command) -> Result<(u64, u64, bool)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start {command:?}: {error}"))?;
    let output = child.stdout.take().expect("the output is piped");
    let (mut passed, mut failed) = (0, 0);
    let mut out = std::io::stdout();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("failed to read a step's output: {error}"))?;
        // Nobody reads the output any more: the verdict still counts.
        let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        if let Some((ok, bad)) = result_line(&String::from_utf8_lossy(&line)) {
            passed += ok;
            failed += bad;
        }
    }
    let status = child.wait().map_err(|error| format!("failed to wait for a step: {error}"))?;
    Ok((passed, failed, status.success()))
}

/// The counts of `test result: ok. 3 passed; 0 failed; ...`.
fn result_line(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |word: &str| {
        let part = counts.split("; ").find(|part| part.ends_with(word))?;
        part.split(' ').next()?.parse().ok()
    };
    Some((number("passed")?, number("failed")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; \
                    finished in 0.10s";
        assert_eq!(result_line(line), Some((12, 3)));
        assert_eq!(result_line("running 3 tests"), None);
    }
}
