//! A CephFS of a test's own.

use destage_testkit::needs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A CephFS of a test's own, which can be hurt. Ends when dropped.
pub(crate) struct Cluster {
    guard: Child,
    answers: Mutex<BufReader<std::process::ChildStdout>>,
    pub(crate) state: PathBuf,
}

impl Cluster {
    /// With one OSD, whose data survives it, and one mount.
    pub(crate) fn new() -> Option<Self> {
        Self::with_mounts(1)
    }

    /// The same, mounted so many times, each by a `ceph-fuse` of its own: `mnt/1` and so on.
    pub(crate) fn with_mounts(count: u32) -> Option<Self> {
        let script = needs::ceph("DESTAGE_TEST_CEPHFS_SCRIPT")?;
        let scripts = needs::ceph("DESTAGE_TEST_CEPHFS_SCRIPTS")?;
        let mut guard = Command::new("sh")
            .args([&script, &scripts, "--osds", "1", "--store", "bluestore", "--block-size", "2G"])
            .args(["--mounts", &count.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell starts");
        let mut answers = BufReader::new(guard.stdout.take().expect("the output is piped"));
        let mut state = String::new();
        answers.read_line(&mut state).expect("it says where it is");
        assert!(!state.is_empty(), "the CephFS did not start");
        Some(Self { guard, answers: Mutex::new(answers), state: state.trim().into() })
    }

    /// A command of the script; waits until it is done.
    #[track_caller]
    pub(crate) fn tell(&self, command: &str) {
        // One at a time, with its answer.
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut input = self.guard.stdin.as_ref().expect("the input is piped");
        writeln!(input, "{command}").expect("it listens");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("it answers");
        assert_eq!(answer, "ok\n", "{command}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // It says what it misses.
        let _ = self.guard.wait();
    }
}
