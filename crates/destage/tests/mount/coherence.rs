//! Several mounts in front of one origin, by one etcd: what one has changed, the others see.

mod evicted;

use crate::books::{Books, exercised};
use crate::cluster::Cluster;
use crate::etcd::{Etcd, How};
use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually, seconds};
use crate::mounted::{Launch, Mounted, Unmounting};
use crate::origin::{Kind, Origin};
use crate::told::Told;
use crate::traps::{Disk, has_python};
use rustix::process::Signal;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

/// Hosts that share an origin, each a mount with a journal of its own.
pub(crate) struct Hosts {
    launches: Vec<Launch>,
    mounted: Vec<Option<Mounted>>,
    pub(crate) folders: Vec<PathBuf>,
    // After the mounts, which are gone or dead by then.
    _unmounting: Vec<Unmounting>,
}

/// Silent for longer than that, a host may be shut out.
pub(crate) const SHORT: &str = "3s";
/// No start takes so long.
pub(crate) const LONG: &str = "5m";

impl Hosts {
    /// One for each of these folders, which are one folder.
    pub(crate) fn start(
        scratch: &Scratch,
        origins: &[PathBuf],
        etcd: &Etcd,
        lease: &str,
        more: &[&str],
    ) -> Self {
        let mut hosts =
            Self { launches: vec![], mounted: vec![], folders: vec![], _unmounting: vec![] };
        for (number, origin) in origins.iter().enumerate() {
            let own = scratch.join(format!("host{number}-{lease}"));
            let launch = Launch::before_folder(&own, origin)
                // Nothing that was answered is lost with a process, so that books can be kept.
                .with(&["--tokens", &etcd.url(), "--token-lease", lease, "-d", "0"])
                .with(more);
            let folder = own.join("mnt");
            hosts._unmounting.push(Unmounting(folder.clone()));
            hosts.mounted.push(Some(launch.start()));
            hosts.launches.push(launch);
            hosts.folders.push(folder);
        }
        hosts
    }

    pub(crate) fn process(&self, host: usize) -> u32 {
        self.mounted[host].as_ref().map(Mounted::id).expect("it runs")
    }

    /// What a host's mount said.
    fn said(&self, host: usize) -> String {
        self.mounted[host].as_ref().map(Mounted::said).expect("it runs")
    }

    /// A host dies.
    pub(crate) fn lose(&mut self, host: usize) {
        self.mounted[host].take().expect("it runs").kill();
    }

    /// A host dies, and starts again.
    pub(crate) fn kill(&mut self, host: usize) {
        self.mounted[host].take().expect("it runs").kill();
        self.mounted[host] = Some(self.launches[host].start());
    }

    /// A host is stopped for longer than its lease.
    fn pause(&self, host: usize) {
        signal(self.process(host), Signal::STOP);
        thread::sleep(seconds(5));
        signal(self.process(host), Signal::CONT);
    }

    /// Ends those that run; what they said until then.
    #[track_caller]
    pub(crate) fn stop(mut self) -> String {
        self.mounted.iter_mut().filter_map(Option::take).map(Mounted::stop).collect()
    }
}

#[track_caller]
fn check(books: &Books, folder: &Path) {
    books.check(folder).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{}: nothing stale, nothing lost", books.done());
}

pub(crate) fn local(scratch: &Scratch, count: usize) -> Option<(Origin, Vec<PathBuf>)> {
    let origin = Origin::new(Kind::Local, scratch)?;
    let folders = vec![origin.folder().to_owned(); count];
    Some((origin, folders))
}

#[test]
fn what_one_host_has_changed_every_other_one_sees() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((origin, folders)) = local(&scratch, 3) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    let books = exercised(&hosts.folders, 1, |books| books.goes_on(60));
    assert!(!books.has_failures(), "nothing fails while nothing happens");
    check(&books, &hosts.folders[1]);
    hosts.stop();
    check(&books, origin.folder());
}

/// Has a file mapped, and stores to it or looks at it when it is told to.
const MAPPED: &str = "
import mmap, os, sys
fd = os.open('mapped', os.O_RDWR)
view = mmap.mmap(fd, 4096)
for line in sys.stdin:
    if line.strip():
        view[0:8] = line.strip().encode()
    print(view[0:8].decode(), flush=True)
";

/// Of a store through a mapping the kernel says nothing by itself.
#[test]
fn trap_09_what_one_host_stores_through_a_mapping_every_other_one_sees() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((origin, folders)) = local(&scratch, 2) else { return };
    if !has_python() {
        return;
    }
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    fs::write(hosts.folders[0].join("mapped"), [b'0'; 4096]).expect("a file can be made");
    let mut mapped =
        hosts.folders.iter().map(|folder| Told::new(MAPPED, folder)).collect::<Vec<_>>();
    for round in 1..=20 {
        let word = format!("{round:08}");
        let (own, other) = (round % 2, (round + 1) % 2);
        assert_eq!(mapped[own].ask(&word), word);
        if round % 3 > 0 {
            assert_eq!(mapped[other].ask(""), word, "by a mapping");
        }
        let read = fs::read(hosts.folders[other].join("mapped")).expect("it is there");
        assert_eq!(read[..8], *word.as_bytes(), "by a read");
    }
    drop(mapped);
    hosts.stop();
    let read = fs::read(origin.folder().join("mapped")).expect("it is there");
    assert_eq!(read[..8], *b"00000020");
}

/// Has a file mapped to be read, and says what it holds.
const SHOWN: &str = "
import mmap, os, sys
view = mmap.mmap(os.open('shown', os.O_RDONLY), 4096, prot=mmap.PROT_READ)
for line in sys.stdin:
    print(view[0:8].decode(), flush=True)
";

/// Whoever has a file mapped asks nobody for the pages that are there.
#[test]
fn trap_09_what_is_mapped_for_reading_is_not_shown_without_a_lease() {
    let scratch = Scratch::new();
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 1) else { return };
    if !has_python() {
        return;
    }
    let hosts = Hosts::start(&scratch, &folders, &etcd, SHORT, &[]);
    fs::write(hosts.folders[0].join("shown"), [b'1'; 4096]).expect("a file can be made");
    let mut shown = Told::new(SHOWN, &hosts.folders[0]);
    for _ in 0..2 {
        assert_eq!(shown.ask(""), "11111111");
        etcd.kill();
        eventually("it is not shown any more", PATIENCE, || !shown.answers(""));
        etcd.again();
        assert_eq!(shown.answer(), "11111111", "it is once there is a lease again");
    }
    drop(shown);
    hosts.stop();
}

/// Has two files mapped. Children of it store to one, each to a page of its own; it stores to the other when it is told to.
const FAULTS: &str = "
import mmap, os, sys
PAGES, STEP = 90, 1 << 20
held = mmap.mmap(os.open('held', os.O_RDWR), PAGES * STEP)
mine = mmap.mmap(os.open('mine', os.O_RDWR), 4096)
children = []
for line in sys.stdin:
    word = line.strip()
    if word == 'fault':
        for page in range(PAGES):
            child = os.fork()
            if child == 0:
                held[page * STEP] = 49
                os._exit(0)
            children.append(child)
    elif word == 'waiting':
        stats = [open(f'/proc/{child}/stat').read() for child in children]
        word = str(sum(stat.rsplit(')', 1)[1].split()[0] == 'D' for stat in stats))
    elif word == 'ended':
        word = str(sum(os.waitpid(child, 0)[1] for child in children))
    elif word:
        mine[0:8] = word.encode()
        mine.flush()
    print(word, flush=True)
";

/// More of them than the kernel sends at a time by itself, so that the answer that they wait for must get by.
#[test]
fn trap_09_stores_that_wait_for_a_silent_host_hold_up_nothing_else() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 3) else { return };
    if !has_python() {
        return;
    }
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    let [silent, own, other] = [0, 1, 2].map(|host| hosts.folders[host].clone());
    fs::write(own.join("mine"), [b'0'; 4096]).expect("a file can be made");
    fs::write(silent.join("held"), "0").expect("a file can be made");
    let mut held = OpenOptions::new().write(true).open(silent.join("held")).expect("it opens");
    held.set_len(90 << 20).expect("it may be long");
    let mut mapped = Told::new(FAULTS, &own);
    assert_eq!(mapped.ask("00000001"), "00000001", "it has both mapped");
    let seen = || fs::read(other.join("mine")).expect("it is there")[..8].to_vec();
    assert_eq!(seen(), b"00000001");
    held.write_all(b"0").expect("it is written");
    signal(hosts.process(0), Signal::STOP);
    mapped.ask("fault");
    eventually("all of them wait", PATIENCE, || mapped.ask("waiting") == "90");
    for round in 2..=4 {
        let word = format!("{round:08}");
        assert_eq!(mapped.ask(&word), word);
        assert_eq!(seen(), word.as_bytes(), "by another host");
    }
    assert_eq!(mapped.ask("waiting"), "90", "all that time they waited");
    signal(hosts.process(0), Signal::CONT);
    assert_eq!(mapped.ask("ended"), "0");
    drop((mapped, held));
    let stored = fs::read(silent.join("held")).expect("it is there");
    assert_eq!(stored.iter().filter(|byte| **byte == b'1').count(), 90);
    hosts.stop();
}

/// The control: what changed under a token stays where it is when the token goes.
#[test]
fn tokens_that_are_given_up_without_what_changed_under_them_are_noticed() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &["--unsafe-no-revocation"]);
    let books = exercised(&hosts.folders, 1, |books| {
        eventually("something is wrong", PATIENCE, || books.is_wrong());
    });
    println!("{}", books.check(&hosts.folders[1]).unwrap_err());
    // What they have for each other they cannot bring.
    hosts.mounted.into_iter().flatten().for_each(Mounted::kill);
}

fn disturbed(scratch: &Scratch, folders: &[PathBuf], etcd: &mut Etcd, rounds: usize) {
    let mut hosts = Hosts::start(scratch, folders, etcd, LONG, &[]);
    let mounts = hosts.folders.clone();
    // One that is back before it counts as silent.
    let books = exercised(&mounts, 2, |books| {
        for round in 0..rounds {
            books.goes_on(4);
            hosts.kill(round % 3);
        }
        books.goes_on(4);
    });
    check(&books, &hosts.folders[2]);
    hosts.stop();
    check(&books, &folders[0]);
    cleared(&folders[0]);

    let hosts = Hosts::start(scratch, folders, etcd, SHORT, &[]);
    let books = exercised(&hosts.folders, 3, |books| {
        for round in 0..rounds {
            books.goes_on(4);
            // Its lock at the origin keeps others from what it holds.
            hosts.pause(round % 3);
            books.goes_on(4);
            etcd.kill();
            thread::sleep(seconds(4));
            etcd.again();
        }
        books.goes_on(4);
    });
    check(&books, &hosts.folders[2]);
    hosts.stop();
    check(&books, &folders[0]);
    cleared(&folders[0]);
}

/// For the next ones.
fn cleared(folder: &Path) {
    fs::remove_dir_all(folder.join("names")).expect("it is there");
    fs::remove_file(folder.join("log")).expect("it is there");
}

#[test]
fn hosts_killed_and_stopped_and_an_etcd_that_restarts_leave_nothing_stale_and_lose_no_append() {
    let scratch = Scratch::for_at_most(seconds(900));
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 3) else { return };
    disturbed(&scratch, &folders, &mut etcd, 3);
}

/// Three hosts, each with a `ceph-fuse` of its own; evicted, in the end.
#[test]
fn the_same_holds_in_front_of_three_clients_of_a_cephfs() {
    let scratch = Scratch::for_at_most(seconds(1_500));
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some(cluster) = Cluster::with_mounts(3) else { return };
    let folders = folders_of(&cluster, "shared");
    let origin = Origin::at(folders[0].clone());
    disturbed(&scratch, &folders, &mut etcd, 2);

    // The control: by themselves they lose appends, or show them late.
    let plain = folders_of(&cluster, "plain");
    let _plain = Origin::at(plain[0].clone());
    let mut wrong = None;
    exercised(&plain, 4, |books| {
        eventually("something is wrong", PATIENCE * 2, || {
            wrong = books.check(&plain[0]).err();
            wrong.is_some()
        });
    });
    println!("without tokens: {}", wrong.expect("that ended it"));

    let mut hosts = Hosts::start(&scratch, &folders, &etcd, "4m", &[]);
    let mounts = hosts.folders.clone();
    let books = exercised(&mounts, 5, |books| {
        books.goes_on(4);
        // As a host that is silent is shut out: nothing of it runs on when it is evicted, and the time of a lease has gone by, so
        // that its `ceph-fuse` has brought its server what it kept of files. One that is evicted beneath a running mount shows for
        // a moment what is old, and the server guesses anew when files were changed that it had just written.
        for mounted in &mut hosts.mounted {
            mounted.take().expect("it runs").kill();
        }
        thread::sleep(seconds(15));
        cluster.tell("evict");
        for number in 1..=3 {
            cluster.tell(&format!("kill client.{number}"));
        }
        cluster.tell("start");
        for (launch, mounted) in hosts.launches.iter().zip(&mut hosts.mounted) {
            *mounted = Some(launch.start());
        }
        books.goes_on(4);
    });
    check(&books, &mounts[1]);
    hosts.stop();
    check(&books, origin.folder());
}

fn folders_of(cluster: &Cluster, name: &str) -> [PathBuf; 3] {
    [1, 2, 3].map(|number| cluster.state.join(format!("mnt/{number}/{name}")))
}

/// What is kept of conflicts at an origin.
pub(crate) fn kept(origin: &Path) -> Vec<Vec<u8>> {
    let conflicts = origin.join(".destage/conflicts");
    let journals = fs::read_dir(conflicts).expect("a folder").flatten();
    let places = journals.flat_map(|journal| fs::read_dir(journal.path())).flatten().flatten();
    places.flat_map(|place| fs::read(place.path().join("data"))).collect()
}

/// Two files that both hosts know, and whose newest bytes only the first host's journal has.
fn leave_behind(first: &Path, second: &Path) {
    for name in ["taken", "kept"] {
        fs::write(first.join(name), "before").expect("a file can be made");
        assert_eq!(fs::read(second.join(name)).expect("the other host sees it"), b"before");
    }
    // Both are durable in the first host's journal, and not at the origin.
    for name in ["taken", "kept"] {
        let mut file = OpenOptions::new().write(true).open(first.join(name)).expect("it opens");
        file.write_all(b"behind").and_then(|()| file.sync_all()).expect("it is written");
    }
}

#[test]
fn trap_15_a_host_that_was_shut_out_keeps_what_others_have_replaced_as_a_conflict() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((origin, folders)) = local(&scratch, 2) else { return };
    let fence = ["--fence-command", "kill -9 $DESTAGE_FENCE_PROCESS"];
    let mut hosts = Hosts::start(&scratch, &folders, &etcd, SHORT, &fence);
    let [first, second] = [hosts.folders[0].clone(), hosts.folders[1].clone()];
    leave_behind(&first, &second);
    signal(hosts.process(0), Signal::STOP);
    let began = Instant::now();
    assert_eq!(fs::read(second.join("taken")).expect("others go on"), b"before");
    assert!(began.elapsed() > Duration::from_secs(2), "no host is shut out within its lease");
    fs::write(second.join("taken"), "after!").expect("others may change it");
    hosts.kill(0);
    assert_eq!(fs::read(first.join("taken")).expect("it is there"), b"after!");
    assert_eq!(fs::read(second.join("kept")).expect("it is there"), b"behind");
    assert_eq!(kept(origin.folder()), [b"behind"], "what was acknowledged is not discarded");
    hosts.stop();
}

/// A host that can keep nothing ends, and others go on with what the origin has.
#[test]
fn a_host_whose_journal_fails_ends_and_keeps_nobody_waiting() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    if !has_python() {
        return;
    }
    let disk = Disk::new(&scratch, 256);
    let own = scratch.join("failing");
    let launch = Launch::before_folder(&own, &folders[0])
        .with(&[
            "--tokens",
            &etcd.url(),
            "--token-lease",
            SHORT,
            "-d",
            "0",
            "--journal-size",
            "64M",
        ])
        .journaled_in(disk.0.join("journal"));
    let _unmounting = Unmounting(own.join("mnt"));
    let mut failing = launch.start();
    let (first, file) = (own.join("mnt"), own.join("mnt/file"));
    fs::write(&file, "before").expect("a file can be made");
    let hosts = Hosts::start(&scratch, &folders[1..], &etcd, SHORT, &[]);
    let second = hosts.folders[0].join("file");
    assert_eq!(fs::read(&second).expect("the other host sees it"), b"before");
    fs::write(first.join("mine"), "mine").expect("a file can be made");
    // As a disk that has died: ext4 is told to take nothing any more, EXT4_IOC_SHUTDOWN.
    let script =
        "import fcntl, os; fcntl.ioctl(os.open('.', os.O_RDONLY), 0x8004587d, b'\\2\\0\\0\\0')";
    let shut = Command::new("python3").args(["-c", script]).current_dir(&disk.0).status();
    assert!(shut.expect("Python starts").success(), "the journal's file system is shut down");
    fs::write(&file, "lost").unwrap_err();
    assert_eq!(failing.ended(), Some(13), "{}", failing.said());
    fs::write(&second, "after!").expect("the others go on");
    assert_eq!(fs::read(&second).expect("it is there"), b"after!");
    hosts.stop();
}

#[test]
fn one_mount_alone_and_hosts_that_share_keep_each_other_out() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((origin, folders)) = local(&scratch, 1) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, SHORT, &[]);
    let alone = Launch::before(&scratch.folder("alone"), &origin);
    let (code, text) = alone.refused();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains("--tokens"), "{text}");
    hosts.stop();
    alone.start().stop();
}

/// What is wrong with an address is told without the password in it, wherever it was given.
#[test]
fn a_wrong_address_of_etcd_is_told_without_its_password() {
    let scratch = Scratch::new();
    let Some((origin, _)) = local(&scratch, 1) else { return };
    for wrong in ["etcd://me:geheim@host", "me:geheim@host:1", "etcd://me:geheim"] {
        let launch = Launch::before(&scratch, &origin);
        let by_flag = launch.clone().with(&["--tokens", wrong]).refused();
        let by_environment = launch.with_environment("DESTAGE_TOKENS", wrong).refused();
        for (code, text) in [by_flag, by_environment] {
            assert_eq!(code, 2, "{text}");
            assert!(text.contains("--tokens"), "{text}");
            assert!(!text.contains("geheim"), "{text}");
        }
    }
}

/// A start waits for an etcd that is away, but not for ever.
#[test]
fn a_start_without_etcd_ends_and_says_so() {
    let scratch = Scratch::new();
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 1) else { return };
    etcd.kill();
    let launch = Launch::before_folder(&scratch.join("host"), &folders[0]);
    let launch = launch.with(&["--tokens", &etcd.url(), "--token-lease"]);
    let (code, text) = launch.clone().with(&[SHORT]).refused();
    assert_eq!(code, 16, "{text}");
    assert!(text.contains("no tokens from etcd at etcd://127.0.0.1"), "{text}");
    etcd.again();
    // Nobody waits for this lease, and a busy etcd has its time.
    launch.with(&[LONG]).start().stop();
}

/// It is asked several times a second, by several threads.
#[test]
fn that_etcd_is_away_is_told_once_and_once_that_it_is_back() {
    let scratch = Scratch::new();
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 1) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, "15s", &[]);
    let file = hosts.folders[0].join("file");
    fs::write(&file, "before").expect("a file can be made");
    let told = |what: &str| hosts.said(0).matches(what).count();
    // Whichever of its threads notices first.
    let away = || {
        let words = [
            "the tokens cannot be read",
            "the lease is not renewed",
            "no lease",
            "may not have been made",
        ];
        words.into_iter().map(told).sum::<usize>()
    };
    let back = "etcd answers again";
    let before = (away(), told(back));
    for round in 1..=2 {
        etcd.kill();
        eventually("it is told", PATIENCE, || away() == before.0 + round);
        // By then it was asked to prolong the lease, and again and again for what it holds.
        thread::sleep(seconds(6));
        assert_eq!(away(), before.0 + round, "{}", hosts.said(0));
        etcd.again();
        eventually("it is told", PATIENCE, || told(back) >= before.1 + round);
        fs::write(&file, "after").expect("it goes on");
        assert_eq!(told(back), before.1 + round, "{}", hosts.said(0));
    }
    hosts.stop();
}

/// With certificates, and with a user: who has neither is not let in.
#[test]
fn etcd_is_reached_by_tls_and_by_users() {
    for how in [How::Tls, How::User] {
        let scratch = Scratch::new();
        let Some(etcd) = Etcd::start(&scratch, how) else { return };
        let Some((_origin, folders)) = local(&scratch, 2) else { return };
        let stranger = scratch.join("stranger");
        let (code, text) = Launch::before_folder(&stranger, &folders[0])
            .with(&["--tokens", &etcd.strangers_url(), "--token-lease", SHORT])
            .refused();
        assert_eq!(code, 16, "{text}");
        assert!(!text.contains("geheim"), "{text}");
        let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
        fs::write(hosts.folders[0].join("file"), "content").expect("a file can be made");
        assert_eq!(fs::read(hosts.folders[1].join("file")).expect("it is there"), b"content");
        hosts.stop();
    }
}
