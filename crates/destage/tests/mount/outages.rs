//! What is behind the mount fails: an OSD, or the `ceph-fuse` that has mounted the origin, and the daemon with it.

use crate::crash::Loaded;
use crate::harness::{Random, Scratch, millis, seconds};
use crate::mounted::{Launch, Mounted};
use crate::origin::Origin;
use destage_testkit::needs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A CephFS of a test's own, which can be hurt. Ends when dropped.
struct Cluster {
    guard: Child,
    answers: Mutex<BufReader<std::process::ChildStdout>>,
    state: PathBuf,
}

impl Cluster {
    /// With one OSD, whose data survives it.
    fn new() -> Option<Self> {
        let script = needs::ceph("DESTAGE_TEST_CEPHFS_SCRIPT")?;
        let scripts = needs::ceph("DESTAGE_TEST_CEPHFS_SCRIPTS")?;
        let mut guard = Command::new("sh")
            .args([&script, &scripts, "--osds", "1", "--store", "bluestore", "--block-size", "2G"])
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
    fn tell(&self, command: &str) {
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

/// What fails.
#[derive(Clone, Copy, Debug)]
enum Outage {
    /// An OSD is killed; the daemon goes on for a while, and is killed before the OSD is back.
    Osd,
    /// The origin's own `ceph-fuse` is killed, and is mounted again. The daemon cannot go on.
    CephFuse,
}

impl Outage {
    fn disturb(self, cluster: &Cluster, mounted: &Mounted, random: &mut Random) {
        match self {
            Self::Osd => {
                cluster.tell("kill osd.0");
                thread::sleep(millis(random.between(100, 900)));
                mounted.cut();
            }
            Self::CephFuse => {
                cluster.tell("kill client.1");
                thread::sleep(millis(random.between(0, 500)));
                mounted.cut();
                cluster.tell("evict");
            }
        }
        cluster.tell("start");
    }
}

/// Rounds of an outage under load, on one CephFS; so many operations were answered in all.
fn rounds(cluster: &Cluster, outage: Outage, seed: u64, count: u64) -> Result<u64, String> {
    let scratch = Scratch::for_at_most(seconds(900));
    let origin = Origin::at(cluster.state.join(format!("mnt/1/{outage:?}{seed}")));
    let mut loaded = Loaded::new(Launch::before(&scratch, &origin), seed);
    let mut random = Random::new(seed, 3);
    let mut answered = 0;
    for _ in 0..count {
        answered += loaded.work(|mounted| outage.disturb(cluster, mounted, &mut random))?;
        loaded.start();
        loaded.check()?;
    }
    loaded.finish(&origin)?;
    Ok(answered)
}

/// A soak's round: a CephFS of its own, and some of each.
pub(crate) fn round(seed: u64) -> Option<Result<u64, String>> {
    let cluster = Cluster::new()?;
    let run = |outage| rounds(&cluster, outage, seed, 3);
    let both = run(Outage::Osd).and_then(|sum| Ok(sum + run(Outage::CephFuse)?));
    Some(both.map_err(|what| format!("outages, seed {seed}: {what}")))
}

#[test]
fn what_was_fsynced_survives_kills_of_an_osd_and_of_ceph_fuse() {
    let Some(cluster) = Cluster::new() else { return };
    for outage in [Outage::Osd, Outage::CephFuse] {
        rounds(&cluster, outage, 1, 2).unwrap_or_else(|what| panic!("{outage:?}: {what}"));
    }
}
