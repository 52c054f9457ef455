//! Steps of a run: each has a name, takes a time, and passes or fails; the tests inside are counted. Those that lack something
//! from outside and were left out are no passed ones.

use crate::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
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

    /// Runs a test program and counts what it reports.
    pub(crate) fn tests(&mut self, name: &str, command: &mut Command) -> bool {
        self.step(name, |steps| steps.take(name, counted(command)))
    }

    /// Runs several of them, so many at once: for those that look at no time. Each is a step; what it prints comes when it ends.
    pub(crate) fn tests_at_once(&mut self, programs: Vec<(String, Command)>, at_once: usize) {
        let at_once = programs.len().min(at_once);
        let programs = Mutex::new(programs.into_iter());
        let next = || programs.lock().expect("no holder panics").next();
        let steps = Mutex::new(self);
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some((name, command)) = next() {
                        let start = Instant::now();
                        let (output, counted) = counted_whole(command);
                        let mut steps = steps.lock().expect("no holder panics");
                        println!("\n==> {name}");
                        show(&output);
                        let is_well = steps.take(&name, counted);
                        steps.end(&name, start, is_well);
                    }
                });
            }
        });
    }

    /// Takes these steps while others are taken, with what these leave of the processors.
    pub(crate) fn beside(
        &mut self,
        low: impl FnOnce(&mut Self) + Send,
        others: impl FnOnce(&mut Self),
    ) {
        let mut beside = Self::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                // On Linux it is the thread's own, and that of the processes which it starts.
                if let Err(error) = rustix::process::setpriority_process(None, PRIORITY_LOW) {
                    println!("xtask: steps run beside others at the same priority: {error}");
                }
                low(&mut beside);
            });
            others(self);
        });
        self.count(beside.passed, beside.failed);
        self.left_out.extend(beside.left_out);
        self.broken.extend(beside.broken);
        self.why.extend(beside.why);
    }

    /// Notes what a step could not do, since something from outside is missing.
    pub(crate) fn leave_out(&mut self, what: &str, needs: &str) {
        println!("{LEFT_OUT}{what} {needs}");
        self.left_out.entry(what.to_owned()).or_default().insert(needs.to_owned());
    }

    /// Adds what test programs have reported; whether all is well.
    fn take(&mut self, name: &str, counted: Result<Counted>) -> bool {
        let counted = counted.unwrap_or_else(|message| {
            eprintln!("xtask: {message}");
            Counted::default()
        });
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
        self.end(name, start, done);
        done
    }

    fn end(&mut self, name: &str, start: Instant, done: bool) {
        let verdict = if done { "ok" } else { "FAILED" };
        println!("==> {name}: {verdict} in {:.1} s", start.elapsed().as_secs_f64());
        if !done {
            self.broken.push(name.to_owned());
        }
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
    /// What the lines of an output say, each of which is shown as well.
    fn of(output: impl Read, mut show: impl FnMut(&[u8])) -> Result<Self> {
        let mut counted = Self::default();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(|error| format!("failed to read a step's output: {error}"))?;
            show(&line);
            counted.note(&String::from_utf8_lossy(&line));
        }
        Ok(counted)
    }

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

/// If nobody reads the output any more, the verdict still counts. What the tests of this file show is not to be counted: only
/// what is printed is kept from the output of a test.
fn show(output: &[u8]) {
    if cfg!(test) {
        print!("{}", String::from_utf8_lossy(output));
    } else {
        let _ = std::io::stdout().lock().write_all(output);
    }
}

/// Lower than anything else that runs, but not the lowest.
const PRIORITY_LOW: i32 = 15;

/// Passes the command's output on, adds up its `test result:` lines, and notes who was left out.
fn counted(command: &mut Command) -> Result<Counted> {
    let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = started.map_err(|error| format!("failed to start {command:?}: {error}"))?;
    let output = child.stdout.take().expect("the output is piped");
    // Whole lines, where others write, too.
    let counted = Counted::of(output, |line| show(&[line, b"\n"].concat()))?;
    let status = child.wait().map_err(|error| format!("failed to wait for a step: {error}"))?;
    Ok(Counted { success: status.success(), ..counted })
}

/// The same, with the output (errors included) in one piece.
fn counted_whole(mut command: Command) -> (Vec<u8>, Result<Counted>) {
    let mut whole = Vec::new();
    let counted = || -> Result<Counted> {
        let failed = |error| format!("failed to start {command:?}: {error}");
        let (output, input) = std::io::pipe().map_err(failed)?;
        let errors = input.try_clone().map_err(failed)?;
        let started = command.stdin(Stdio::null()).stdout(input).stderr(errors).spawn();
        let mut child = started.map_err(|error| format!("failed to start {command:?}: {error}"))?;
        // It holds the pipe's other end, which is to end with the child.
        drop(command);
        let counted = Counted::of(output, |line| {
            whole.extend_from_slice(line);
            whole.push(b'\n');
        })?;
        let status = child.wait().map_err(|error| format!("failed to wait for a step: {error}"))?;
        Ok(Counted { success: status.success(), ..counted })
    };
    let counted = counted();
    (whole, counted)
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
        assert!(!steps.take("it", Ok(counted)), "everything was installed");
        assert_eq!((steps.passed, steps.failed, steps.left_out.len()), (3, 0, 2));
        assert_eq!(steps.left_out["it: one"].len(), 2, "{:?}", steps.left_out);
    }

    fn says(what: &str) -> (String, Command) {
        let mut shell = Command::new("sh");
        shell.args(["-c", what]);
        (what.to_owned(), shell)
    }

    #[test]
    fn all_that_run_at_once_or_beside_others_are_counted() {
        let result = |passed, failed, code| {
            says(&format!(
                "echo 'test result: ok. {passed} passed; {failed} failed; 0 ignored'; exit {code}"
            ))
        };
        let mut steps = Steps::default();
        steps.tests_at_once(vec![result(1, 0, 0), result(10, 0, 0), result(100, 0, 0)], 2);
        assert_eq!((steps.passed, steps.failed, steps.broken.len()), (111, 0, 0));
        let (_, mut fails) = says("exit 3");
        steps.beside(
            |steps| assert!(!steps.check("beside", &mut fails)),
            |steps| steps.tests_at_once(vec![result(1000, 1, 1), says("exit 4")], usize::MAX),
        );
        // One that dies before it reports anything counts as one.
        assert_eq!((steps.passed, steps.failed, steps.broken.len()), (1111, 3, 3));
    }

    #[test]
    fn only_real_traces_may_be_missing() {
        let counted = of(&[
            "left out: one needs mail.csv in the folder that DESTAGE_TRACES names",
            "test result: ok. 1 passed; 0 failed; 0 ignored",
        ]);
        let mut steps = Steps::default();
        assert!(steps.take("it", Ok(counted)));
        assert_eq!((steps.passed, steps.left_out.len()), (0, 1));
        assert!(steps.finish());
    }
}
