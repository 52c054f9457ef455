//! What the origins themselves fail, frozen in files: a mount may fail no more than the origin behind it.

use crate::origin::Kind;
use std::collections::BTreeSet;

/// The failures of one suite on one kind of origin, and how many checks ran when they were found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Baseline {
    /// Fewer checks than these prove less than they should.
    pub(crate) ran: u32,
    failed: BTreeSet<String>,
}

const PJDFSTEST_LOCAL: &str = include_str!("baseline/pjdfstest-local.txt");
const PJDFSTEST_CEPH_FUSE: &str = include_str!("baseline/pjdfstest-ceph-fuse.txt");

impl Baseline {
    /// Of pjdfstest.
    pub(crate) fn pjdfstest(kind: Kind) -> Self {
        Self::read(match kind {
            Kind::Local => PJDFSTEST_LOCAL,
            Kind::Ceph => PJDFSTEST_CEPH_FUSE,
        })
    }

    /// A line `ran COUNT`, then a failure a line; `#` begins a remark.
    fn read(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let mut lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let ran = lines.next().and_then(|line| line.strip_prefix("ran ")?.parse().ok());
        Self {
            ran: ran.expect("a baseline begins with `ran`"),
            failed: lines.map(str::to_owned).collect(),
        }
    }

    /// What failed here and not at the origin.
    ///
    /// # Errors
    /// Those failures, described; or that fewer checks ran than then.
    pub(crate) fn holds(
        &self,
        ran: u32,
        failed: &BTreeSet<String>,
        describe: impl Fn(&str) -> String,
    ) -> Result<(), String> {
        if ran < self.ran {
            return Err(format!(
                "{ran} checks ran, at the origin {}: that proves too little",
                self.ran
            ));
        }
        let new: Vec<_> = failed.difference(&self.failed).map(|one| describe(one)).collect();
        if new.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "{} failures that the origin does not have:\n{}",
                new.len(),
                new.join("\n")
            ))
        }
    }

    /// The same list again, for a look at the origin itself.
    ///
    /// # Errors
    /// What is not as it was.
    pub(crate) fn is_exactly(&self, ran: u32, failed: &BTreeSet<String>) -> Result<(), String> {
        if (ran, failed) == (self.ran, &self.failed) {
            return Ok(());
        }
        let list: Vec<_> = failed.iter().map(String::as_str).collect();
        Err(format!("the baseline should be:\nran {ran}\n{}", list.join("\n")))
    }
}

fn set(failures: &[&str]) -> BTreeSet<String> {
    failures.iter().map(|one| (*one).to_owned()).collect()
}

#[test]
fn a_mount_may_fail_what_its_origin_fails_and_no_more() {
    let baseline = Baseline::read("# of an origin\nran 100\nopen/06 1\nopen/06 2\n");
    let holds = |failed: &[&str]| baseline.holds(100, &set(failed), str::to_owned);
    assert_eq!(holds(&["open/06 2"]), Ok(()));
    assert!(holds(&["open/06 3"]).is_err_and(|what| what.ends_with("open/06 3")));
}

#[test]
fn a_suite_that_runs_nothing_proves_nothing() {
    let baseline = Baseline::read("ran 100\n");
    assert!(baseline.holds(0, &set(&[]), str::to_owned).is_err());
    assert!(baseline.holds(99, &set(&[]), str::to_owned).is_err());
    assert_eq!(baseline.is_exactly(100, &set(&[])), Ok(()));
}
