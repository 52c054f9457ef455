//! Real file systems and databases before a slow origin: the server is killed at random moments with much that is not
//! destaged, the cache is thrown away, and what the origin holds is mounted and examined.

use crate::applications::{Application, Steps};
use crate::disks::{Folder, Kind, Loop, Mounted, argument, run};
use crate::harness::{PATIENCE, Random, Scratch, eventually, seconds};
use crate::server::{Launch, Server, SlowDisk, image, replay};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How slow the disk is, for each write.
const DELAY_MS: u32 = 20;
/// The same for each request of a disk that does one at a time, to be found in the middle of a long backlog.
const DELAY_ONE_BY_ONE_MS: u32 = 30;
/// Steps that an application does before its kill, at the least.
const STEPS_MIN: u64 = 2;
/// Steps that make it long.
const STEPS_BEHIND: u64 = 60;
/// How long an application may take until its kill, if the machine is slow.
const WORK_MAX: Duration = seconds(30);
/// Kills of each test, unless `DESTAGE_KILLS` says how many.
const KILLS: u64 = 2;
/// Kills within which a policy without order must be found out. Each finds it out, unless the machine stands still for
/// longer than the disk takes for the second half of a backlog.
const KILLS_CONTROL: u64 = 12;

/// What is run on what, and under which policy.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    kind: Kind,
    application: Application,
    policy: &'static str,
    seed: u64,
}

/// What the origin lacks when the server is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacks {
    /// What it has not taken yet, by chance.
    Something,
    /// The last steps for certain, however fast it is and slow the application: they are held back.
    LastSteps,
    /// A part of a long backlog that is being sent.
    HalfTheBacklog,
}

/// What came of a kill.
#[derive(Debug)]
struct Outcome {
    /// The last step that was durable in the cache.
    done: u64,
    /// The last one that was marked and destaged.
    marked: u64,
    /// The last one found at the origin, or what is broken there.
    found: Result<u64, String>,
}

impl Case {
    /// Works on a file system, marks a point and brings it to the origin, kills the server, and looks at the origin.
    fn kill(&self, round: u64, lacks: Lacks) -> Option<Outcome> {
        if !self.kind.is_known() {
            return None;
        }
        let scratch = Scratch::new();
        let folder = Folder::new(&scratch);
        let mut random = Random::new(self.seed, round);
        let image = image(&scratch, self.kind.disk_bytes());
        self.kind.make(&image);
        let disk = match lacks {
            Lacks::HalfTheBacklog => SlowDisk::one_by_one(&scratch, &image, DELAY_ONE_BY_ONE_MS),
            _ => SlowDisk::start(&scratch, &image, DELAY_MS),
        }?;
        let launch = Launch::before(&scratch, &disk.uri).redo_at(scratch.join("redo"));
        let launch = launch.with(&folder.flags()).with(&["--policy", self.policy]);
        let launch = launch.with(&["--cache-size", "256M", "--linger", "0", "--batch-size", "1M"]);
        // Room for the longest backlog.
        let launch = launch.with(&["--log-size", "128M"]);
        // However slow the application, the bound does not stop it while destaging is paused.
        let launch = launch.with(&["-D", "1h"]);
        let (done, marked) = self.work_and_kill(&scratch, &folder, &launch, &mut random, lacks);
        assert!(done >= STEPS_MIN, "the application has done {done} steps: that proves nothing");
        // With what it was still waiting to write.
        drop(disk);
        std::fs::remove_file(&launch.cache).expect("the cache can be deleted");
        let disk = SlowDisk::start(&scratch, &image, 0).expect("it was there");
        replay(&disk.uri, &scratch.join("redo"));
        drop(disk);
        let found = self.examine(&scratch, &image);
        Some(Outcome { done, marked, found })
    }

    /// The last durable step, and the last one that was marked and destaged.
    fn work_and_kill(
        &self,
        scratch: &Scratch,
        folder: &Folder,
        launch: &Launch,
        random: &mut Random,
        lacks: Lacks,
    ) -> (u64, u64) {
        let server = launch.start();
        let device = Loop::on(&folder.file(), self.kind);
        let mounted =
            Mounted::new(scratch, device.path(), "noatime").expect("the file system mounts");
        let steps = Steps::default();
        let mut choices = Random::new(random.next(), 0);
        let marked = thread::scope(|scope| {
            let work = || self.application.work(mounted.path(), &steps, &mut choices);
            let worker = scope.spawn(work);
            let least = random.between(STEPS_MIN, 6);
            eventually("the application works", PATIENCE, || {
                steps.done() >= least || worker.is_finished()
            });
            let marked = steps.done();
            server.ask(&["mark"]);
            server.ask(&["checkpoint", "--wait"]);
            if lacks == Lacks::HalfTheBacklog {
                server.ask(&["pause"]);
                empty_log(&mounted);
            }
            let behind = if lacks == Lacks::HalfTheBacklog { STEPS_BEHIND } else { 0 };
            let more = steps.done() + behind + random.between(5, 60);
            let until = Instant::now() + WORK_MAX;
            // A slow one is killed where it is by then.
            eventually("the application goes on", PATIENCE, || {
                let is_stuck = behind > 0 && is_full(&server);
                steps.done() >= more || worker.is_finished() || is_stuck || Instant::now() > until
            });
            thread::sleep(Duration::from_millis(random.between(0, 100)));
            match lacks {
                Lacks::Something => {}
                Lacks::LastSteps => {
                    server.ask(&["pause"]);
                    // The first of them may have begun before. Where there is no room left, it holds much more than a step.
                    let held = steps.done() + 3;
                    eventually("the application goes on without the origin", PATIENCE, || {
                        steps.done() >= held || worker.is_finished() || is_full(&server)
                    });
                }
                Lacks::HalfTheBacklog => {
                    // Else it might write as fast as that is sent.
                    steps.hold(true);
                    if !is_full(&server) {
                        empty_log(&mounted);
                    }
                    half_sent(&server);
                }
            }
            server.kill();
            steps.hold(false);
            marked
        });
        // A file system without a disk: it can be unmounted, whatever it says.
        let _ = mounted.unmount();
        (steps.done(), marked)
    }

    /// Mounts what the origin holds, which replays the file system's own log, asks the application, and checks everything.
    fn examine(&self, scratch: &Scratch, image: &Path) -> Result<u64, String> {
        let device = Loop::on(image, self.kind);
        let mounted = Mounted::new(scratch, device.path(), "noatime")?;
        let found = self.application.check(mounted.path());
        mounted.unmount()?;
        let sound = self.kind.check(device.path());
        // The application is asked first: what it misses says more.
        let found = found?;
        sound.map(|()| found)
    }

    /// One kill with this seed: the steps that were done, or what is wrong.
    pub(crate) fn reseeded(&self, seed: u64) -> Option<Result<u64, String>> {
        let outcome = Self { seed, ..*self }.kill(0, Lacks::Something)?;
        Some(outcome.verdict().map(|_| outcome.done))
    }

    /// Nothing may ever be wrong.
    fn holds(&self) {
        let kills = std::env::var("DESTAGE_KILLS").ok();
        let kills = kills.map_or(KILLS, |text| text.parse().expect("DESTAGE_KILLS is a number"));
        for round in 0..kills {
            let is_held_back = round + 1 == kills;
            let lacks = if is_held_back { Lacks::LastSteps } else { Lacks::Something };
            let Some(outcome) = self.kill(round, lacks) else { return };
            let place =
                format!("{:?}, {}, seed {}, round {round}", self.kind, self.policy, self.seed);
            eprintln!("{place}: {outcome:?}");
            let found = outcome.verdict().unwrap_or_else(|error| panic!("{place}: {error}"));
            let is_behind = found < outcome.done;
            assert!(is_behind || !is_held_back, "{place}: the origin has what was held back");
        }
    }

    /// Something must be wrong sooner or later.
    fn fails(&self) {
        for round in 0..KILLS_CONTROL {
            let Some(outcome) = self.kill(round, Lacks::HalfTheBacklog) else { return };
            eprintln!("{:?}, {}, round {round}: {outcome:?}", self.kind, self.policy);
            if outcome.verdict().is_err() {
                return;
            }
        }
        panic!("{} kept an order {KILLS_CONTROL} times: the checks prove nothing", self.policy);
    }
}

impl Outcome {
    /// The step that the origin holds, or what is wrong with it.
    fn verdict(&self) -> Result<u64, String> {
        let Self { done, marked, .. } = *self;
        let found = self.found.clone()?;
        if found < marked {
            return Err(format!("step {marked} was marked and destaged, {found} is there"));
        }
        // The step after the last durable one may have become durable without anyone being told.
        if found > done + 1 {
            return Err(format!("step {found} is there, the last one was {done}"));
        }
        Ok(found)
    }
}

fn is_full(server: &Server) -> bool {
    server.volume("mode") == "full"
}

/// Has an ext4 write everything in place and call its own log empty. Done before a backlog and at its end, the blocks that
/// say so are among its first, where a policy without order sends the newest that there is of a block: half of the backlog
/// then is metadata of the end, a log that is empty, and none of the blocks that were written late for the first time.
fn empty_log(mounted: &Mounted) {
    for what in ["--freeze", "--unfreeze"] {
        run("fsfreeze", &[what, argument(mounted.path())])
            .expect("the file system stops and goes on");
    }
}

/// Lets the backlog be sent, and returns when about half of it is at the origin.
fn half_sent(server: &Server) {
    let dirty = || server.volume("dirty_writes").as_u64().expect("a number");
    let before = dirty();
    server.ask(&["resume"]);
    eventually("half of the backlog is sent", PATIENCE, || dirty() <= before / 2);
}

/// What long runs kill, each with a name.
pub(crate) fn soaked() -> [(&'static str, Case); 8] {
    let files = |kind, policy| case(kind, Application::Files, policy, 0);
    let database = |application, policy| case(Kind::Ext4, application, policy, 0);
    [
        ("ext4-ordered", files(Kind::Ext4, "ordered")),
        ("ext4-journaled", files(Kind::Ext4, "journaled")),
        ("xfs-ordered", files(Kind::Xfs, "ordered")),
        ("xfs-journaled", files(Kind::Xfs, "journaled")),
        ("btrfs-ordered", files(Kind::Btrfs, "ordered")),
        ("btrfs-journaled", files(Kind::Btrfs, "journaled")),
        ("sqlite-rollback-ordered", database(Application::SqliteRollback, "ordered")),
        ("sqlite-wal-journaled", database(Application::SqliteWal, "journaled")),
    ]
}

fn case(kind: Kind, application: Application, policy: &'static str, seed: u64) -> Case {
    Case { kind, application, policy, seed }
}

#[test]
fn ext4_survives_without_the_cache_under_ordered() {
    case(Kind::Ext4, Application::Files, "ordered", 1).holds();
}

#[test]
fn ext4_survives_without_the_cache_under_journaled() {
    case(Kind::Ext4, Application::Files, "journaled", 2).holds();
}

#[test]
fn xfs_survives_without_the_cache_under_ordered() {
    case(Kind::Xfs, Application::Files, "ordered", 3).holds();
}

#[test]
fn xfs_survives_without_the_cache_under_journaled() {
    case(Kind::Xfs, Application::Files, "journaled", 4).holds();
}

#[test]
fn btrfs_survives_without_the_cache_under_ordered() {
    case(Kind::Btrfs, Application::Files, "ordered", 5).holds();
}

#[test]
fn btrfs_survives_without_the_cache_under_journaled() {
    case(Kind::Btrfs, Application::Files, "journaled", 6).holds();
}

#[test]
fn sqlite_with_a_rollback_journal_survives_without_the_cache() {
    case(Kind::Ext4, Application::SqliteRollback, "ordered", 7).holds();
    case(Kind::Ext4, Application::SqliteRollback, "journaled", 8).holds();
}

#[test]
fn sqlite_with_a_write_ahead_log_survives_without_the_cache() {
    case(Kind::Ext4, Application::SqliteWal, "ordered", 9).holds();
    case(Kind::Ext4, Application::SqliteWal, "journaled", 10).holds();
}

/// The same checks find out a policy that keeps no order.
#[test]
fn ext4_does_not_survive_without_the_cache_under_plain_write_back() {
    case(Kind::Ext4, Application::Files, "write-back", 11).fails();
}

#[test]
fn sqlite_does_not_survive_without_the_cache_under_plain_write_back() {
    case(Kind::Ext4, Application::SqliteRollback, "write-back", 12).fails();
}
