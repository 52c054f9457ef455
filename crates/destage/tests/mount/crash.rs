//! Kills of the daemon at random moments, under clients that keep books: what was made durable is there, what is there is what
//! was there at one moment, and a second replay changes nothing.

use crate::harness::{Random, Scratch, seconds};
use crate::mounted::{Launch, Mounted, Unmounting};
use crate::origin::{Kind, Origin, read_anew};
use destage_testkit::files::{Client, Ended, Found, Seen, across, look};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 3;
/// So many operations are answered before a kill, at the least; usually it is several times as many. A mount that answers
/// nothing loses nothing.
const ANSWERED_MIN: u64 = 60;
/// A round that is not so far by then fails.
const ROUND_MAX: Duration = seconds(60);
/// One round in so many kills the daemon once more as it replays.
const TWICE: u64 = 3;

/// What is killed, and how often in a row.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    kind: Kind,
    arguments: &'static [&'static str],
}

/// Everything that must hold.
pub(crate) const CASES: [Case; 2] = [
    Case { name: "mount-local", kind: Kind::Local, arguments: &[] },
    Case { name: "mount-ceph", kind: Kind::Ceph, arguments: &[] },
];

/// A mount under load, with the clients' books.
pub(crate) struct Loaded {
    launch: Launch,
    pub(crate) mounted: Option<Mounted>,
    clients: Vec<Client>,
    pub(crate) random: Random,
    _unmounting: Unmounting,
}

impl Loaded {
    /// Mounts, and gives each client an empty folder.
    pub(crate) fn new(launch: Launch, seed: u64) -> Self {
        let mounted = launch.start();
        let folder = mounted.folder().to_owned();
        let unmounting = Unmounting(folder.clone());
        let clock = Instant::now();
        let clients = (0..CLIENTS).map(|number| {
            let own = folder.join(format!("client{number}"));
            fs::create_dir(&own).expect("a folder can be made");
            Client::new(&own, seed.wrapping_mul(CLIENTS).wrapping_add(number), clock)
        });
        let clients = clients.collect();
        File::open(&folder).and_then(|top| top.sync_all()).expect("the folders are made durable");
        let random = Random::new(seed, 1);
        Self { launch, mounted: Some(mounted), clients, random, _unmounting: unmounting }
    }

    /// Lets the clients work until `disturb` has done what makes every operation fail; it is told how many were answered so
    /// far, and starts when that are enough.
    ///
    /// # Errors
    /// An operation that failed before; a round in which too little was answered.
    pub(crate) fn work(&mut self, disturb: impl FnOnce(&Mounted)) -> Result<u64, String> {
        let answered = AtomicU64::new(0);
        let is_disturbed = AtomicBool::new(false);
        let mounted = self.mounted.as_ref().expect("it is mounted");
        let least = Duration::from_millis(self.random.between(50, 400));
        let (answered_by, disturbed) = (&answered, &is_disturbed);
        let ended: Vec<Result<(), String>> = thread::scope(|scope| {
            let work = |client: &mut Client| {
                let start = Instant::now();
                let mut last = client.books.acknowledged();
                let ended = client.work(|acknowledged| {
                    answered_by.fetch_add(acknowledged - last, Ordering::SeqCst);
                    last = acknowledged;
                    start.elapsed() > ROUND_MAX
                });
                match ended {
                    Ended::Failed(_) if disturbed.load(Ordering::SeqCst) => Ok(()),
                    Ended::Failed(error) => Err(format!(
                        "{:?} failed although nothing had happened: {error}",
                        client.books.last()
                    )),
                    Ended::Stopped => Err("the clients were not disturbed in time".to_owned()),
                }
            };
            let clients: Vec<_> =
                self.clients.iter_mut().map(|client| scope.spawn(move || work(client))).collect();
            let start = Instant::now();
            let is_early =
                || start.elapsed() < least || answered.load(Ordering::SeqCst) < ANSWERED_MIN;
            while is_early()
                && start.elapsed() < ROUND_MAX
                && !clients.iter().any(|one| one.is_finished())
            {
                thread::sleep(Duration::from_millis(2));
            }
            is_disturbed.store(true, Ordering::SeqCst);
            disturb(mounted);
            clients.into_iter().map(|client| client.join().expect("it does not panic")).collect()
        });
        ended.into_iter().collect::<Result<(), String>>()?;
        let answered = answered.into_inner();
        if answered < ANSWERED_MIN {
            return Err(format!("{answered} operations were answered: that proves nothing"));
        }
        Ok(answered)
    }

    /// Mounts again after a kill.
    pub(crate) fn start(&mut self) {
        if let Some(dead) = self.mounted.take() {
            dead.kill();
        }
        self.mounted = Some(self.launch.start());
    }

    fn look(&self) -> Result<Vec<Seen>, String> {
        let seen = self.clients.iter().map(|client| look(client.folder()));
        seen.collect::<Result<_, _>>()
            .map_err(|error| format!("what is there cannot be read: {error}"))
    }

    /// Looks at what is there, and goes on from it.
    ///
    /// # Errors
    /// What is not as the books say.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let seen = self.look()?;
        let mut found: Vec<Found> = Vec::new();
        for (number, (client, seen)) in self.clients.iter().zip(&seen).enumerate() {
            let checked = client.books.check(seen);
            found.push(checked.map_err(|what| format!("client {number}: {what}"))?);
        }
        let all: Vec<_> =
            self.clients.iter().zip(&found).map(|(client, found)| (&client.books, found)).collect();
        across(&all)?;
        self.clients.iter_mut().zip(&found).for_each(|(client, found)| client.books.go_on(found));
        Ok(())
    }

    /// Kills the daemon again, soon after its start, and starts it once more: nothing may have changed.
    fn replay_again(&mut self) -> Result<(), String> {
        let before = self.look()?;
        thread::sleep(Duration::from_millis(self.random.between(0, 150)));
        self.start();
        for (before, after) in before.iter().zip(self.look()?) {
            let differences = before.differs_from(&after);
            if !differences.is_empty() {
                return Err(format!("a second replay changed:\n  {}", differences.join("\n  ")));
            }
        }
        Ok(())
    }

    /// Kills the daemon under load, and looks; so many operations were answered before.
    fn round(&mut self) -> Result<u64, String> {
        let answered = self.work(Mounted::cut)?;
        self.start();
        self.check()?;
        if self.random.between(0, TWICE) == 0 {
            self.replay_again()?;
        }
        Ok(answered)
    }

    /// Ends the mount, which drains it: the origin holds what was seen through it.
    pub(crate) fn finish(mut self, origin: &Origin) -> Result<(), String> {
        let through = self.look()?;
        self.mounted.take().expect("it is mounted").stop();
        for (client, through) in self.clients.iter().zip(&through) {
            let own = origin.folder().join(client.folder().file_name().expect("it has a name"));
            read_anew(&own);
            let behind = look(&own).map_err(|error| format!("at the origin: {error}"))?;
            let differences = through.differs_from(&behind);
            if !differences.is_empty() {
                let all = differences.join("\n  ");
                return Err(format!("through the mount and, drained, at the origin:\n  {all}"));
            }
        }
        Ok(())
    }
}

impl Case {
    /// So many kills in a row; how many operations were answered in all, or what is wrong. `None` where there is no such
    /// origin.
    pub(crate) fn kills(&self, seed: u64, count: u64) -> Option<Result<u64, String>> {
        let scratch = Scratch::new();
        let origin = Origin::new(self.kind, &scratch)?;
        let launch = Launch::before(&scratch, &origin).with(self.arguments);
        let mut loaded = Loaded::new(launch, seed);
        let mut kills = || -> Result<u64, String> { (0..count).map(|_| loaded.round()).sum() };
        let done = kills().and_then(|sum| loaded.finish(&origin).map(|()| sum));
        Some(done.map_err(|what| format!("{}, seed {seed}: {what}", self.name)))
    }

    fn holds(&self, seeds: std::ops::Range<u64>, kills: u64) {
        for seed in seeds {
            let Some(done) = self.kills(seed, kills) else { return };
            done.unwrap_or_else(|what| panic!("{what}"));
        }
    }
}

/// Zeros in the second half of what the journal's newest file holds, as if that had never reached the disk.
fn lose_the_end(journal: &Path) -> bool {
    let files = fs::read_dir(journal).expect("a folder").flatten().map(|entry| entry.path());
    let written = |path: &PathBuf| -> Option<usize> {
        let bytes = fs::read(path).ok()?;
        bytes.iter().rposition(|&byte| byte != 0).map(|last| last + 1)
    };
    let is_segment = |path: &PathBuf| path.to_string_lossy().contains("/segment-");
    let newest = files.filter(is_segment).filter_map(|path| written(&path).map(|len| (path, len)));
    let (path, len) = newest.max().expect("the journal has a segment");
    if len < LOST_OF_MIN {
        return false;
    }
    let file = File::options().write(true).open(path).expect("it is there");
    file.write_all_at(&vec![0; len / 2], (len - len / 2) as u64).expect("it can be written");
    true
}

/// A segment that has hardly begun has no half to lose: without its head it is damaged, and a start says so.
const LOST_OF_MIN: usize = 64 << 10;

/// The control of all these: a journal that answers before it has anything on its disk.
#[test]
fn a_journal_that_has_lost_its_end_is_noticed() {
    let scratch = Scratch::new();
    let origin = Origin::new(Kind::Local, &scratch).expect("a folder is always there");
    let launch = Launch::before(&scratch, &origin);
    let mut loaded = Loaded::new(launch.clone(), 77);
    let mut is_lost = false;
    for _ in 0..10 {
        loaded.work(Mounted::cut).unwrap_or_else(|what| panic!("{what}"));
        loaded.mounted.take().expect("it is mounted").kill();
        is_lost = lose_the_end(launch.journal());
        loaded.start();
        if is_lost {
            break;
        }
        // Nothing is lost yet: the clients go on from what is there, as after any kill.
        loaded.check().unwrap_or_else(|what| panic!("{what}"));
    }
    assert!(is_lost, "the newest segment had hardly begun ten times");
    let what = loaded.check().expect_err("half of the journal is gone: the books prove nothing");
    let is_noticed =
        ["lost: ", "returned: ", "cannot be read"].iter().any(|one| what.contains(one));
    assert!(is_noticed, "{what}");
}

#[test]
fn what_was_fsynced_survives_kills_in_front_of_a_local_folder() {
    CASES[0].holds(0..5, 5);
}

#[test]
fn what_was_fsynced_survives_kills_in_front_of_ceph_fuse() {
    CASES[1].holds(0..5, 5);
}
