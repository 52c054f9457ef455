//! Steps of a run: each has a name, takes a time, and passes or fails; the tests inside are counted. Those that lack something
//! from outside and were left out are no passed ones.

use crate::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What the steps so far came to.
#[derive(Default)]
pub(crate) struct Steps {
    passed: u64,
    failed: u64,
    /// The tests that were left out, wholly or in part, and what they said of it.
    left_out: BTreeMap<String, BTreeSet<String>>,
    broken: Vec<String>,
    /// The tests that failed, and how their output begins: whoever sees only the end of the output sees why.
    why: Vec<(String, Vec<String>)>,
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
        self.tests_at_once(name, std::slice::from_mut(command))
    }

    /// Runs several of them at once, as one step: for those that look at no time.
    pub(crate) fn tests_at_once(&mut self, name: &str, commands: &mut [Command]) -> bool {
        self.step(name, |steps| {
            let all: Vec<Result<Counted>> = std::thread::scope(|scope| {
                let run = |command| scope.spawn(|| counted(command));
                let running: Vec<_> = commands.iter_mut().map(run).collect();
                let failed = |_| Err("a step's output was not read to its end".to_owned());
                running.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
            });
            let mut is_well = true;
            for counted in all {
                let counted = counted.unwrap_or_else(|message| {
                    eprintln!("xtask: {message}");
                    Counted::default()
                });
                is_well &= steps.take(name, counted);
            }
            is_well
        })
    }

    /// Notes what a step could not do, since something from outside is missing.
    pub(crate) fn leave_out(&mut self, what: &str, needs: &str) {
        println!("{LEFT_OUT}{what} {needs}");
        self.left_out.entry(what.to_owned()).or_default().insert(needs.to_owned());
    }

    /// Adds what test programs have reported; whether all is well.
    fn take(&mut self, name: &str, counted: Counted) -> bool {
        let Counted { passed, failed, success, left_out, why, .. } = counted;
        self.why.extend(why.into_iter().map(|(test, lines)| (format!("{name}: {test}"), lines)));
        // A step that dies before its tests report anything still counts as one failure.
        let unreported = u64::from(!success && failed == 0);
        self.count(passed.saturating_sub(left_out.len() as u64), failed + unreported);
        let is_allowed = |needs: &String| MAY_LACK.iter().any(|what| needs.ends_with(what));
        let is_allowed = left_out.values().flatten().all(is_allowed);
        if !is_allowed {
            println!("tests were left out although everything was installed");
        }
        let of_step = |(test, needs)| (format!("{name}: {test}"), needs);
        self.left_out.extend(left_out.into_iter().map(of_step));
        success && is_allowed
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
        for (test, lines) in &self.why {
            println!("{test}");
            lines.iter().for_each(|line| println!("    {line}"));
        }
        for name in &self.broken {
            println!("failed: {name}");
        }
        for (test, needs) in &self.left_out {
            let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
            println!("left out: {test} {}", needs.join(", "));
        }
        let (passed, failed, left_out) = (self.passed, self.failed, self.left_out.len());
        println!("{passed} passed, {failed} failed, {left_out} left out");
        self.failed == 0 && self.broken.is_empty()
    }
}

/// What test programs have reported.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counted {
    passed: u64,
    failed: u64,
    success: bool,
    /// By the tests' names, what they need.
    left_out: BTreeMap<String, BTreeSet<String>>,
    /// By the names of tests that failed, how their output begins.
    why: BTreeMap<String, Vec<String>>,
    /// The test whose output comes, unless enough of it has come.
    of: Option<String>,
}

/// So many lines and so many bytes of each are kept of the output of a test that failed.
const WHY_LINES: usize = 8;
const WHY_BYTES: usize = 1000;

impl Counted {
    fn note(&mut self, line: &str) {
        self.note_why(line);
        if let Some((passed, failed)) = result_line(line) {
            self.passed += passed;
            self.failed += failed;
        }
        // Behind the test's name, where tests run one by one.
        if let Some((_, said)) = line.split_once(LEFT_OUT)
            && let Some((test, needs)) = said.trim().split_once(' ')
        {
            self.left_out.entry(test.to_owned()).or_default().insert(needs.to_owned());
        }
    }
}

impl Counted {
    fn note_why(&mut self, line: &str) {
        if let Some(test) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.of = Some(test.to_owned());
            return;
        }
        if line == "failures:" || line == "stack backtrace:" {
            self.of = None;
        }
        let Some(test) = &self.of else { return };
        let lines = self.why.entry(test.clone()).or_default();
        if !line.trim().is_empty() && lines.len() < WHY_LINES {
            lines.push(line.chars().take(WHY_BYTES).collect());
        }
    }
}

/// As tests say it: see `destage_testkit::needs`.
const LEFT_OUT: &str = "left out: ";
/// What they alone may lack: real traces and the suites and scripts of others are no part of the project, and no package brings
/// another kernel.
const MAY_LACK: [&str; 5] = [
    "needs btrfs in the kernel",
    "needs xfs in the kernel",
    "in the folder that DESTAGE_TRACES names",
    "in the folder that DESTAGE_SUITES names",
    "in the folder that DESTAGE_CEPH names",
];

/// Passes the command's output on, adds up its `test result:` lines, and notes who was left out.
fn counted(command: &mut Command) -> Result<Counted> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("failed to start {command:?}: {error}"))?;
    let output = child.stdout.take().expect("the output is piped");
    let mut counted = Counted::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(|error| format!("failed to read a step's output: {error}"))?;
        // Whole lines, where several run at once. Nobody reads the output any more: the verdict still counts.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
        counted.note(&String::from_utf8_lossy(&line));
    }
    let status = child.wait().map_err(|error| format!("failed to wait for a step: {error}"))?;
    counted.success = status.success();
    Ok(counted)
}

/// The counts of `test result: ok. 3 passed; 0 failed; ...`.
pub(crate) fn result_line(line: &str) -> Option<(u64, u64)> {
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

    fn of(lines: &[&str]) -> Counted {
        let mut counted = Counted { success: true, ..Counted::default() };
        lines.iter().for_each(|line| counted.note(line));
        counted
    }

    #[test]
    fn the_end_says_why_tests_failed() {
        let counted = of(&[
            "test good ... ok",
            "test bad ... FAILED",
            "failures:",
            "",
            "---- bad stdout ----",
            "",
            "thread 'bad' (7) panicked at tests/it.rs:1:2:",
            "the disk is full",
            "stack backtrace:",
            "   0: nobody reads that",
            "",
            "failures:",
            "    bad",
        ]);
        let why = ["thread 'bad' (7) panicked at tests/it.rs:1:2:", "the disk is full"];
        assert_eq!(counted.why["bad"], why);
        assert_eq!(counted.why.len(), 1);
    }

    #[test]
    fn who_was_left_out_did_not_pass() {
        let counted = of(&[
            "left out: one needs redis-cli; `cargo xtask test` provides it",
            "left out: one needs redis-cli; `cargo xtask test` provides it",
            "left out: one needs psql; `cargo xtask test` provides it",
            "test two ... left out: two needs fio; `cargo xtask test` provides it",
            "test result: ok. 5 passed; 0 failed; 0 ignored",
        ]);
        let mut steps = Steps::default();
        assert!(!steps.take("it", counted), "everything was installed");
        assert_eq!((steps.passed, steps.failed, steps.left_out.len()), (3, 0, 2));
        assert_eq!(steps.left_out["it: one"].len(), 2, "{:?}", steps.left_out);
    }

    #[test]
    fn only_real_traces_may_be_missing() {
        let counted = of(&[
            "left out: one needs mail.csv in the folder that DESTAGE_TRACES names",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
        ]);
        let mut steps = Steps::default();
        assert!(steps.take("it", counted));
        assert_eq!((steps.passed, steps.left_out.len()), (0, 1));
        assert!(steps.finish());
    }
}
