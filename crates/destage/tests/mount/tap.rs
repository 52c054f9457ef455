//! Test scripts that report in the Test Anything Protocol: each in a folder of its own, several at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

/// Most of their time the scripts sleep, to see times of files differ.
const SCRIPTS_AT_A_TIME: usize = 8;
/// A script that hangs fails after so many seconds.
const SECONDS_MAX: &str = "240";

/// What scripts have reported, by their names.
#[derive(Debug, Default)]
pub(crate) struct Reports(pub(crate) BTreeMap<String, Report>);

/// What one script has reported.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// So many checks were to come; `None` if it did not say.
    planned: Option<u32>,
    /// So many came.
    ran: u32,
    /// The numbers of those that failed, and what was said of them.
    failed: BTreeMap<u32, String>,
}

impl Report {
    fn read(text: &str) -> Self {
        let mut report = Self::default();
        for line in text.lines() {
            if let Some(count) = line.strip_prefix("1..") {
                report.planned = count.split(' ').next().and_then(|count| count.parse().ok());
                continue;
            }
            let (is_ok, rest) = match (line.strip_prefix("ok"), line.strip_prefix("not ok")) {
                (Some(rest), _) => (true, rest),
                (None, Some(rest)) => (false, rest),
                (None, None) => continue,
            };
            report.ran += 1;
            let number = rest.split_whitespace().next().and_then(|word| word.parse().ok());
            // What is marked as to be done is known to its authors.
            if !is_ok && !rest.contains("# TODO") {
                report.failed.insert(number.unwrap_or(report.ran), rest.trim().to_owned());
            }
        }
        report
    }
}

impl Reports {
    /// So many checks ran.
    pub(crate) fn ran(&self) -> u32 {
        self.0.values().map(|report| report.ran).sum()
    }

    /// What failed, as `script number`; a script that did not run as many checks as planned, as `script plan`.
    pub(crate) fn failed(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for (script, report) in &self.0 {
            all.extend(report.failed.keys().map(|number| format!("{script} {number}")));
            if report.planned != Some(report.ran) {
                all.insert(format!("{script} plan"));
            }
        }
        all
    }

    /// What was said of a failure.
    pub(crate) fn said(&self, failure: &str) -> String {
        let found = failure.split_once(' ').and_then(|(script, number)| {
            let report = self.0.get(script)?;
            match number.parse() {
                Ok(number) => report.failed.get(&number).cloned(),
                Err(_) => Some(format!("{} checks of {:?} ran", report.ran, report.planned)),
            }
        });
        format!("{failure}: {}", found.unwrap_or_default())
    }
}

/// The scripts below this folder, by the names that they have in baselines.
pub(crate) fn scripts(folder: &Path) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    let groups =
        fs::read_dir(folder).expect("a folder").flatten().filter(|one| one.path().is_dir());
    for group in groups {
        for script in fs::read_dir(group.path()).expect("a folder").flatten() {
            let path = script.path();
            if path.extension().is_some_and(|extension| extension == "t") {
                let (group, name) = (group.file_name(), path.file_stem().expect("it has a name"));
                found.insert(format!("{}/{}", group.display(), name.display()), path);
            }
        }
    }
    found
}

/// Runs scripts, each in a new folder inside `folder`; what they report.
pub(crate) fn run(scripts: &BTreeMap<String, PathBuf>, folder: &Path) -> Reports {
    let waiting = Mutex::new(scripts.iter());
    let reports = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().expect("no holder panics").next();
    thread::scope(|scope| {
        for _ in 0..SCRIPTS_AT_A_TIME {
            scope.spawn(|| {
                while let Some((name, script)) = next() {
                    let place = folder.join(name.replace('/', "-"));
                    let report = Report::read(&run_one(script, &place));
                    reports.lock().expect("no holder panics").insert(name.clone(), report);
                }
            });
        }
    });
    Reports(reports.into_inner().expect("no holder panics"))
}

fn run_one(script: &Path, place: &Path) -> String {
    fs::create_dir(place).expect("a folder can be made");
    fs::set_permissions(place, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", SECONDS_MAX, "sh"]).arg(script).current_dir(place);
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    String::from_utf8_lossy(&output.expect("timeout starts").stdout).into_owned()
}

#[test]
fn a_script_that_stops_early_fails() {
    let report = Report::read("1..3\nok 1\nnot ok 2 - tried it\n# a remark\n");
    let reports = Reports(BTreeMap::from([("open/00".to_owned(), report)]));
    assert_eq!(reports.ran(), 2);
    assert_eq!(reports.failed(), ["open/00 2", "open/00 plan"].map(str::to_owned).into());
    assert_eq!(reports.said("open/00 2"), "open/00 2: 2 - tried it");
}

#[test]
fn a_script_that_says_nothing_fails() {
    let reports = Reports(BTreeMap::from([("open/00".to_owned(), Report::read(""))]));
    assert_eq!(reports.failed(), ["open/00 plan".to_owned()].into());
}

#[test]
fn what_its_authors_know_of_is_no_failure() {
    let report = Report::read("1..2\nok 1 # TODO some day\nnot ok 2 # TODO some day\n");
    assert_eq!((report.ran, report.failed.len()), (2, 0));
}
