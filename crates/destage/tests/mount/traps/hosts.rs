//! Traps of several hosts that share an origin.

use super::has_python;
use crate::cluster::Cluster;
use crate::coherence::{Hosts, LONG, SHORT, kept, local};
use crate::etcd::{Etcd, How};
use crate::harness::{PATIENCE, Scratch, eventually, output, seconds};
use crate::told::Told;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn trap_07_appends_by_programs_on_two_hosts_lose_nothing() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    std::thread::scope(|scope| {
        for (host, folder) in hosts.folders.iter().enumerate() {
            scope.spawn(move || {
                let path = folder.join("log");
                let mut log =
                    OpenOptions::new().append(true).create(true).open(path).expect("it opens");
                for line in 0..APPENDS {
                    let line = format!("host {host} line {line}\n");
                    // In one call, as a line of a log is.
                    log.write_all(line.as_bytes()).expect("it is appended");
                }
            });
        }
    });
    hosts.stop();
    let log = fs::read_to_string(origin.folder().join("log")).expect("it is there");
    for host in 0..2 {
        let lines = log.lines().filter_map(|line| line.strip_prefix(&format!("host {host} line ")));
        let numbers: Vec<usize> = lines.map(|line| line.parse().expect("a number")).collect();
        assert!(numbers.iter().copied().eq(0..APPENDS), "host {host}: {numbers:?}");
    }
    assert_eq!(log.lines().count(), 2 * APPENDS);
}

/// Two hosts make one file at the same moment: each has it, and of two that want a new one only one.
#[test]
fn files_that_two_hosts_make_at_the_same_moment_are_one() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    let barrier = std::sync::Barrier::new(2);
    let at_once = |open: &(dyn Fn(&Path) -> std::io::Result<File> + Sync)| {
        std::thread::scope(|scope| {
            let both = [0, 1].map(|host| {
                let (barrier, folder) = (&barrier, &hosts.folders[host]);
                scope.spawn(move || {
                    barrier.wait();
                    open(folder)
                })
            });
            both.map(|one| one.join().expect("it does not panic"))
        })
    };
    for round in 0..40 {
        let name = format!("any-{round}");
        let opened = at_once(&|folder| {
            OpenOptions::new().append(true).create(true).open(folder.join(&name))
        });
        for mut file in opened.map(|file| file.expect("it is there or made")) {
            file.write_all(b"line\n").expect("it is written");
        }
        let content = fs::read(hosts.folders[0].join(&name)).expect("it is there");
        assert_eq!(content, b"line\nline\n", "round {round}");
        let name = format!("new-{round}");
        let made = at_once(&|folder| File::create_new(folder.join(&name)));
        assert_eq!(made.iter().filter(|file| file.is_ok()).count(), 1, "round {round}");
    }
    hosts.stop();
}

/// What the kernel remembers of a file's size another host's write makes wrong.
#[test]
fn trap_08_a_handle_on_one_host_knows_the_end_that_another_host_has_moved() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    let open = |host: usize| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(hosts.folders[host].join("file")).expect("it opens")
    };
    let mut files = [open(0), open(1)];
    let mut wanted = Vec::new();
    for round in 0..12 {
        let [own, other] = &mut files;
        let (own, other) = if round % 2 == 0 { (own, other) } else { (other, own) };
        if round % 3 == 2 {
            wanted.truncate(wanted.len() / 2);
            own.set_len(wanted.len() as u64).expect("it is cut");
        } else {
            // Behind the end, so that there is a hole.
            wanted.resize(wanted.len() + 10, 0);
            wanted.extend(format!("round {round}").bytes());
            own.seek(SeekFrom::End(10)).expect("it has an end");
            write!(own, "round {round}").expect("it is written");
        }
        assert_eq!(other.seek(SeekFrom::End(0)).expect("it has an end"), wanted.len() as u64);
        assert_eq!(other.metadata().expect("it is there").len(), wanted.len() as u64);
        other.rewind().expect("it can be read");
        let mut found = Vec::new();
        other.read_to_end(&mut found).expect("it can be read");
        assert_eq!(found, wanted, "round {round}");
    }
    drop(files);
    hosts.stop();
}

/// Stores through a mapping and truncates, until its time is over.
const STORER: &str = "
import mmap, os, time
file = open('mapped', 'r+b')
pages = mmap.mmap(file.fileno(), 8192)
end, round = time.monotonic() + 5, 0
while time.monotonic() < end:
    round += 1
    pages[0] = round % 256
    os.ftruncate(file.fileno(), 8192 + round % 2)
";
/// Reads what the other one stores, as often.
const READER: &str = "
import time
end = time.monotonic() + 5
while time.monotonic() < end:
    with open('mapped', 'rb') as file:
        file.read(1)
";

/// While a truncation is under way, the kernel writes no page of its file back: whoever gives the file up waits for pages, and
/// the truncation is not to wait for that.
#[test]
fn trap_08_a_truncation_and_pages_that_another_host_wants_do_not_wait_for_each_other() {
    if !has_python() {
        return;
    }
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    fs::write(hosts.folders[0].join("mapped"), vec![0; 8192]).expect("it is made");
    let programs = [STORER, READER].iter().zip(&hosts.folders).map(|(program, folder)| {
        let mut python = Command::new("python3");
        python.args(["-c", program]).current_dir(folder).spawn().expect("python starts")
    });
    for mut program in programs.collect::<Vec<_>>() {
        let mut status = None;
        eventually("nobody waits for ever", PATIENCE, || {
            status = program.try_wait().expect("it can be waited for");
            status.is_some()
        });
        assert!(status.expect("it has ended").success());
    }
    hosts.stop();
}

/// Locks a file and gives it up as it is told.
const LOCKER: &str = "
import fcntl, signal, struct, sys
def alarm(*_):
    raise InterruptedError
signal.signal(signal.SIGALRM, alarm)
file = open('locked', 'a+b')
for line in sys.stdin:
    how, what, start, count = line.split()
    kinds = {'take': fcntl.LOCK_EX, 'share': fcntl.LOCK_SH, 'free': fcntl.LOCK_UN}
    try:
        wait = what in ('wait', 'alarm')
        if what == 'alarm':
            signal.alarm(1)
        kind = kinds[how] | (0 if wait or how == 'free' else fcntl.LOCK_NB)
        if what == 'open':
            # F_OFD_SETLK: of the open itself, whoever has its descriptors.
            fcntl.fcntl(file, 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, int(start), int(count), 0))
        elif start == 'flock':
            fcntl.flock(file, kind)
        else:
            fcntl.lockf(file, kind, int(count), int(start))
        print('done', flush=True)
    except BlockingIOError:
        print('taken', flush=True)
    except InterruptedError:
        print('interrupted', flush=True)
    signal.alarm(0)
";

fn locker(folder: &Path) -> Told {
    Told::new(LOCKER, folder)
}

/// Whether it waits for a lock: in `fcntl` or `flock`, on the machines that CI has.
fn waits(locker: &Told) -> bool {
    locker.is_in(&[72, 73, 25, 32])
}

/// What two programs, each on a host of its own, may lock at the same time.
#[track_caller]
fn exclude_each_other(folders: &[PathBuf]) {
    let [mut one, mut two] = [0, 1].map(|host| locker(&folders[host]));
    for place in ["0 0", "flock 0"] {
        assert_eq!(one.ask(&format!("take now {place}")), "done");
        assert_eq!(two.ask(&format!("take now {place}")), "taken", "{place}");
        assert_eq!(two.ask(&format!("share now {place}")), "taken", "{place}");
        // A wait ends when a signal comes, and others are served meanwhile.
        assert_eq!(two.ask(&format!("take alarm {place}")), "interrupted", "{place}");
        assert_eq!(one.ask(&format!("share now {place}")), "done");
        assert_eq!(two.ask(&format!("share now {place}")), "done", "both may read: {place}");
        assert_eq!(one.ask(&format!("take now {place}")), "taken", "{place}");
        assert_eq!(two.ask(&format!("free now {place}")), "done");
        assert_eq!(one.ask(&format!("take now {place}")), "done");
        two.tell(&format!("take wait {place}"));
        eventually("it waits", PATIENCE, || waits(&two));
        assert_eq!(one.ask(&format!("free now {place}")), "done");
        assert_eq!(two.answer(), "done", "{place}");
        assert_eq!(two.ask(&format!("free now {place}")), "done");
    }
    assert_eq!(one.ask("take now 0 10"), "done");
    assert_eq!(two.ask("take now 10 10"), "done", "ranges beside each other");
    assert_eq!(two.ask("take now 9 1"), "taken");
    // A program that dies while another one waits gives up all that it has.
    two.tell("take wait 0 10");
    eventually("it waits", PATIENCE, || waits(&two));
    drop(one);
    assert_eq!(two.answer(), "done");
    // So does one whose locks are those of an open, not of a process.
    assert_eq!(two.ask("free now 0 0"), "done");
    let mut one = locker(&folders[0]);
    assert_eq!(one.ask("take open 0 10"), "done");
    assert_eq!(two.ask("take now 0 10"), "taken");
    two.tell("take wait 0 10");
    eventually("it waits", PATIENCE, || waits(&two));
    drop(one);
    assert_eq!(two.answer(), "done");
    // One that dies while it waits waits no more.
    let mut three = locker(&folders[0]);
    three.tell("take wait 0 10");
    eventually("it waits", PATIENCE, || waits(&three));
    drop(three);
    assert_eq!(two.ask("free now 0 0"), "done");
    assert_eq!(locker(&folders[0]).ask("take now 0 0"), "done");
}

#[test]
fn trap_10_locks_exclude_programs_on_other_hosts_and_a_wait_can_be_interrupted() {
    let scratch = Scratch::new();
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    if !has_python() {
        return;
    }
    // As many programs as threads wait, and it goes on.
    let mut hosts = Hosts::start(&scratch, &folders, &etcd, SHORT, &["--threads", "1"]);
    exclude_each_other(&hosts.folders);

    // A host that is lost has no locks any more.
    let [mut one, mut two] = [0, 1].map(|host| locker(&hosts.folders[host]));
    assert_eq!(one.ask("take now 0 0"), "done");
    two.tell("take wait 0 0");
    eventually("it waits", PATIENCE, || waits(&two));
    hosts.lose(0);
    assert_eq!(two.answer(), "done");
    drop((one, two));
    hosts.stop();
}

#[test]
fn trap_10_so_they_do_in_front_of_two_clients_of_a_cephfs() {
    let scratch = Scratch::for_at_most(seconds(480));
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some(cluster) = Cluster::with_mounts(2) else { return };
    if !has_python() {
        return;
    }
    let folders = [1, 2].map(|number| cluster.state.join(format!("mnt/{number}/locks")));
    fs::create_dir(&folders[0]).expect("a folder can be made");
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    exclude_each_other(&hosts.folders);
    hosts.stop();
}

/// Programs that count by locks: one that reads what the other one has not brought yet loses a count.
#[test]
fn trap_10_what_is_changed_under_a_lock_is_seen_under_the_next_one() {
    let scratch = Scratch::for_at_most(seconds(480));
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    if !has_python() {
        return;
    }
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    fs::write(hosts.folders[0].join("count"), "0").expect("a file can be made");
    let script = "
import fcntl
for lock in (fcntl.flock, fcntl.lockf):
    for round in range(40):
        with open('count', 'r+') as file:
            lock(file, fcntl.LOCK_EX)
            count = int(file.read())
            file.seek(0)
            file.write(str(count + 1))
            file.flush()
            lock(file, fcntl.LOCK_UN)
";
    std::thread::scope(|scope| {
        for folder in [0, 1, 0, 1].map(|host| &hosts.folders[host]) {
            scope.spawn(move || {
                output(Command::new("python3").args(["-c", script]).current_dir(folder))
            });
        }
    });
    assert_eq!(fs::read_to_string(hosts.folders[1].join("count")).expect("it is there"), "320");
    hosts.stop();
}

/// Beside what others have changed, and what they have not: the server of CephFS sets anew when files were changed that an evicted
/// client had open.
#[test]
fn trap_06_a_time_that_an_eviction_has_changed_makes_no_conflict() {
    let scratch = Scratch::for_at_most(seconds(480));
    let Some(etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some(cluster) = Cluster::with_mounts(2) else { return };
    let folders = [1, 2].map(|number| cluster.state.join(format!("mnt/{number}/evicted")));
    fs::create_dir(&folders[0]).expect("a folder can be made");
    let mut hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    fs::write(hosts.folders[0].join("file"), "theirs").expect("a file can be made");
    // Not at the origin yet; what the first host wrote is.
    let mut file = File::options();
    let mut file = file.write(true).open(hosts.folders[1].join("file")).expect("it opens");
    file.write_all(b"behind").and_then(|()| file.sync_all()).expect("it is written");
    drop(file);
    let place = folders[1].join("file");
    assert_eq!(fs::read(&place).expect("it is there"), b"theirs");
    // The first host's client has it open for writing, as it has what is just being destaged.
    let held = File::options().append(true).open(folders[0].join("file")).expect("it opens");
    let changed = || fs::metadata(&place).and_then(|found| found.modified()).expect("it is there");
    let before = changed();
    cluster.tell("evict 1");
    eventually("the server sets the time anew", PATIENCE, || changed() != before);
    drop(held);
    hosts.lose(0);
    let said = hosts.stop();
    assert_eq!(fs::read(&place).expect("it is there"), b"behind", "{said}");
    assert!(kept(&folders[1]).is_empty(), "{said}");
    assert!(said.contains("that is no conflict"), "{said}");
}

/// Each has its own part, and no part goes back and forth: once they have looked at each other, neither needs anybody.
#[test]
fn trap_32_hosts_that_work_beside_each_other_need_no_new_tokens() {
    let scratch = Scratch::new();
    let Some(mut etcd) = Etcd::start(&scratch, How::Plain) else { return };
    let Some((_origin, folders)) = local(&scratch, 2) else { return };
    let hosts = Hosts::start(&scratch, &folders, &etcd, LONG, &[]);
    let own = [0, 1].map(|host| hosts.folders[host].join(format!("own{host}")));
    let work = |round: usize| {
        for own in &own {
            for file in 0..20 {
                fs::write(own.join(format!("{file}")), format!("round {round}"))
                    .expect("it is written");
            }
            fs::rename(own.join("0"), own.join("moved")).expect("it is moved");
            fs::remove_file(own.join("moved")).expect("it is removed");
            assert_eq!(fs::read_dir(own).expect("it is there").count(), 19);
        }
    };
    for own in &own {
        fs::create_dir(own).expect("a folder can be made");
    }
    for host in [0, 1] {
        let seen = fs::read_dir(&hosts.folders[host]).expect("it is there").count();
        assert_eq!(seen, 2, "each looks at the other's");
    }
    work(0);
    etcd.kill();
    // Within the lease; who needs a token from now on waits past the test's end.
    (1..4).for_each(work);
    etcd.again();
    assert_eq!(fs::read(hosts.folders[0].join("own1/1")).expect("it is there"), b"round 3");
    hosts.stop();
}

const APPENDS: usize = 500;
