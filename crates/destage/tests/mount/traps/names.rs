//! Traps about names.

use super::{Trap, has_python, inode, sh, sync};
use crate::harness::{Random, Scratch};
use crate::mounted::{Launch, Unmounting};
use crate::origin::{Kind, Origin, read_anew};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

#[test]
fn trap_01_a_rename_between_folders_is_replayed_whole() {
    let mut trap = Trap::new();
    trap.sh("mkdir a b; echo old > a/file; echo over > b/taken");
    trap.restart();
    trap.sh("mv a/file b/file; mv b/file a/again; mv a/again b/taken; mkdir a/inner; mv a/inner b/inner; touch b/inner/x");
    sync(&trap.join("b/inner/x"));
    trap.crash();
    trap.crash();
    assert_eq!(trap.sh("find a b | sort; cat b/taken"), "a\nb\nb/inner\nb/inner/x\nb/taken\nold\n");
    assert_eq!(
        trap.at_the_origin("find a b | sort; cat b/taken"),
        "a\nb\nb/inner\nb/inner/x\nb/taken\nold\n"
    );
}

#[test]
fn trap_02_an_open_file_without_a_name_can_be_used_and_never_returns() {
    let mut trap = Trap::new();
    trap.sh("echo known > known");
    trap.restart();
    for name in ["known", "new"] {
        let path = trap.join(name);
        let file = File::options().read(true).append(true).create(true).open(&path);
        let mut file = file.expect("it opens");
        let len = file.metadata().expect("it is open").len();
        fs::remove_file(&path).expect("it goes");
        assert_eq!(file.metadata().expect("it is open").nlink(), 0);
        file.write_all(b"more").expect("it is written");
        file.seek(SeekFrom::Start(len)).expect("it is open");
        let mut read = String::new();
        file.read_to_string(&mut read).expect("it is read");
        assert_eq!(read, "more");
        file.sync_all().expect("it is made durable");
        assert!(!path.exists());
    }
    trap.crash();
    assert_eq!(trap.sh("ls -A"), "");
    // Neither does it lie about in what is kept at the origin.
    assert_eq!(
        trap.at_the_origin(
            "ls -A | grep -v '^.destage$' || true; find . -size +0 -path '*orphans*'"
        ),
        ""
    );
}

#[test]
fn trap_03_two_names_of_a_file_are_one_file() {
    let mut trap = Trap::new();
    trap.sh("echo one > first; ln first second");
    assert_eq!(
        trap.sh("echo two >> second; cat first; stat -c %h first second"),
        "one\ntwo\n2\n2\n"
    );
    trap.restart();
    trap.sh("echo three >> first; ln second third; rm first");
    sync(&trap.join("third"));
    trap.crash();
    assert_eq!(
        trap.sh("cat second third; stat -c %h third"),
        "one\ntwo\nthree\none\ntwo\nthree\n2\n"
    );
    assert_eq!(inode(&trap.join("second")), inode(&trap.join("third")));
    assert_eq!(
        trap.at_the_origin("ls; cat third; stat -c %h second"),
        "second\nthird\none\ntwo\nthree\n2\n"
    );
}

#[test]
fn trap_04_a_file_keeps_its_number() {
    let mut trap = Trap::new();
    trap.sh("mkdir folder; echo text > folder/file");
    let (file, folder) = (inode(&trap.join("folder/file")), inode(&trap.join("folder")));
    trap.sh("mv folder/file folder/renamed; mv folder elsewhere");
    assert_eq!(inode(&trap.join("elsewhere/renamed")), file);
    trap.crash();
    // Without fsync a crash may take the changes of the last second back.
    let name = if trap.join("elsewhere/renamed").exists() { "elsewhere" } else { "folder" };
    if trap.join(name).exists() {
        assert_eq!(inode(&trap.join(name)), folder);
    }
    trap.sh("mkdir -p kept; echo text > kept/file");
    let (file, folder) = (inode(&trap.join("kept/file")), inode(&trap.join("kept")));
    sync(&trap.join("kept/file"));
    trap.crash();
    assert_eq!(
        (inode(&trap.join("kept/file")), inode(&trap.join("kept"))),
        (file, folder),
        "after a crash"
    );
    trap.restart();
    assert_eq!(
        (inode(&trap.join("kept/file")), inode(&trap.join("kept"))),
        (file, folder),
        "drained"
    );
}

#[test]
fn trap_13_a_folder_that_was_fsynced_keeps_its_names() {
    let mut trap = Trap::new();
    trap.sh("mkdir -p a/b; touch a/b/one; ln -s one a/b/link; mkfifo a/b/pipe; rm a/b/one; touch a/b/two");
    sync(&trap.join("a/b"));
    trap.crash();
    let kinds = "cd a/b; find . -mindepth 1 -printf '%P %y\\n' | sort";
    assert_eq!(trap.sh(kinds), "link l\npipe p\ntwo f\n");
    assert_eq!(trap.at_the_origin(kinds), "link l\npipe p\ntwo f\n");
}

/// A name that is there all the while is listed once, whatever else comes and goes.
#[test]
fn trap_21_a_folder_is_listed_whole_while_it_changes() {
    let mut trap = Trap::new();
    trap.sh("mkdir big; cd big; for i in $(seq 400); do : > known$i; done");
    trap.restart();
    trap.sh("cd big; for i in $(seq 400); do : > new$i; done; rm known1?");
    let folder = trap.join("big");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                let path = folder.join(format!("passing{}", round % 50));
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                File::create(&path)
                    .and_then(|_| fs::remove_file(&path))
                    .expect("it comes and goes");
            }
        });
        for _ in 0..20 {
            let mut listed: BTreeMap<String, u32> = BTreeMap::new();
            for entry in fs::read_dir(&folder).expect("it is listed") {
                let name = entry.expect("an entry").file_name().into_string().expect("text");
                *listed.entry(name).or_default() += 1;
            }
            let lasting: Vec<_> =
                listed.iter().filter(|(name, _)| !name.starts_with("passing")).collect();
            let twice: Vec<_> = lasting.iter().filter(|(_, count)| **count != 1).collect();
            if lasting.len() != 790 || !twice.is_empty() {
                is_over.store(true, Ordering::SeqCst);
                panic!("{} of 790 names; twice: {twice:?}", lasting.len());
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!(trap.at_the_origin("ls big | grep -vc passing"), "790\n");
}

/// They may be refused, as ceph-fuse refuses them, and change nothing then.
#[test]
fn trap_23_a_file_without_a_name_and_an_exchange_of_names_work_or_are_refused() {
    if !has_python() {
        return;
    }
    let trap = Trap::new();
    trap.sh("echo a > a; echo b > b");
    let script = "
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
done = libc.renameat2(-100, b'a', -100, b'b', 2)
assert done == 0 or ctypes.get_errno() in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS), ctypes.get_errno()
print('exchanged' if done == 0 else 'as before')
try:
    fd = os.open('.', os.O_TMPFILE | os.O_RDWR)
    os.write(fd, b'text')
    assert os.pread(fd, 9, 0) == b'text'
except OSError as error:
    assert error.errno in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EISDIR), error
";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    let said = trap.sh(&format!("python3 {}", trap.scratch.join("script.py").display()));
    let wanted = if said == "exchanged\n" { "b\na\n" } else { "a\nb\n" };
    assert_eq!(trap.sh("cat a b; ls -A"), format!("{wanted}a\nb\n"));
    assert_eq!(trap.at_the_origin("cat a b"), wanted);
}

/// Names are bytes: anything but `/` and NUL, up to 255 of them; trees may be deep.
#[test]
fn trap_names_of_any_bytes_and_deep_trees_are_kept() {
    let mut trap = Trap::new();
    let script = "printf x > \"$(printf 'a\\tb\\nc\\377\\001')\"; printf y > \"$(printf '%0255d' 0)\"; \
                  ! touch \"$(printf '%0256d' 0)\" 2>/dev/null; for i in $(seq 300); do mkdir d; cd d; done; echo deep > bottom; sync bottom";
    trap.sh(script);
    trap.crash();
    let look =
        "ls -A | grep -av '^.destage$' | md5sum; for i in $(seq 300); do cd d; done; cat bottom";
    let seen = trap.sh(look);
    assert!(seen.ends_with("deep\n"), "{seen}");
    let names = "d\n".len() + 256 + "a\tb\nc\u{ff}\u{1}\n".len();
    let count: usize =
        trap.sh("ls -A | grep -av '^.destage$' | wc -c").trim().parse().expect("a number");
    // In Latin-1 the byte 0xff is one byte, in the text above it is two.
    assert_eq!(count, names - 1);
    assert_eq!(trap.at_the_origin(look), seen);
}

/// What others change behind the mount's back, in what is clean, is seen after a while.
#[test]
fn trap_17_a_foreign_change_of_clean_files_is_seen() {
    let mut trap = Trap::with(&["--origin-check", "1s"]);
    trap.sh("echo ours > clean; mkdir folder");
    trap.restart();
    assert_eq!(trap.sh("cat clean; ls folder; cat folder/new later 2>&- || true"), "ours\n");
    let others = "echo longer than before > clean; echo foreign > folder/new; echo too > later";
    sh(trap.origin.folder(), others);
    crate::harness::eventually("it is seen", crate::harness::seconds(30), || {
        trap.sh("cat clean; cat folder/new later || true") == "longer than before\nforeign\ntoo\n"
    });
}

/// A build or a database asks again and again for names that are not there. What is made here is there at once all the same.
#[test]
fn a_name_that_is_not_there_is_asked_for_once_for_a_while() {
    let trap = Trap::with(&["--origin-check", "1h"]);
    let asked = || {
        let address = destage_mount::admin_of(trap.mounted().folder()).expect("it tells");
        let answer = ureq::get(format!("http://{address}/metrics")).call().expect("an answer");
        let metrics = answer.into_body().read_to_string().expect("text");
        let line = metrics.lines().find(|line| line.starts_with("destage_commands_total "));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).expect("a number")
    };
    let is_there = || trap.join("header.h").exists();
    assert!(!is_there());
    let before = asked();
    assert!((0..1_000).all(|_| !is_there()));
    assert!(asked() - before < 500.0, "the kernel knows it");
    for made in [
        "echo > header.h",
        "mkdir header.h",
        "ln -s nowhere header.h; rm header.h; touch header.h",
        "echo > other; mv other header.h",
        "echo > other; ln other header.h",
    ] {
        trap.sh(made);
        assert!(is_there(), "{made}");
        trap.sh("rm -r header.h");
        assert!(!is_there(), "{made}");
    }
}

/// Others write as many bytes and set the time of change back: the time at which the origin noticed that cannot be set.
#[test]
fn trap_06_a_foreign_change_of_the_same_size_and_time_is_a_conflict() {
    let mut trap = Trap::new();
    trap.sh("echo first > file");
    trap.restart();
    trap.sh("echo ours! > file");
    sync(&trap.join("file"));
    sh(
        trap.origin.folder(),
        "touch -r file stamp; echo their > file; touch -m -r stamp file; rm stamp",
    );
    let drained = trap.mounted().ask(&["drain"]);
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
    assert_eq!(
        sh(trap.origin.folder(), "cat file"),
        "their\n",
        "nothing of others is written over"
    );
    assert_eq!(
        sh(trap.origin.folder(), "cat .destage/conflicts/*/*/data"),
        "ours!\n",
        "it is kept"
    );
    let status = trap.mounted().ask(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("1 conflicts were kept"));
    assert_eq!(trap.sh("cat file"), "their\n");
}

/// A client of CephFS may forget names of a file one of whose names a rename has replaced: what it says of them is not believed.
#[test]
fn names_beside_one_that_was_replaced_come_right() {
    for kind in [Kind::Local, Kind::Ceph] {
        let scratch = Scratch::new();
        let Some(origin) = Origin::new(kind, &scratch) else { continue };
        let launch = Launch::before(&scratch, &origin);
        let mounted = launch.start();
        let _unmounting = Unmounting(mounted.folder().to_owned());
        let mut random = Random::new(7, 1);
        let mut wanted = BTreeMap::new();
        for round in 0..ROUNDS {
            let top = format!("round{round}");
            let at = |name: &str| mounted.folder().join(&top).join(name);
            fs::create_dir_all(at("inner")).expect("it is made");
            fs::write(at("first"), "many names").expect("it is made");
            let mut names = vec!["first".to_owned()];
            for step in 0..STEPS {
                let one = names[random.between(0, names.len() as u64) as usize].clone();
                let folder = ["", "inner/"][random.between(0, 2) as usize];
                let next = format!("{folder}name{step}");
                match random.between(0, 3) {
                    0 => {
                        fs::hard_link(at(&one), at(&next)).expect("it gets a name");
                        names.push(next);
                    }
                    1 => {
                        fs::rename(at(&one), at(&next)).expect("it is renamed");
                        names.retain(|name| *name != one);
                        names.push(next);
                    }
                    _ if names.len() > 1 => {
                        fs::write(at("other"), "another").expect("it is made");
                        fs::rename(at("other"), at(&one)).expect("it is replaced");
                        names.retain(|name| *name != one);
                        wanted.insert(format!("{top}/{one}"), "another");
                    }
                    _ => {}
                }
                if step % 4 == 3 {
                    let drained = mounted.ask(&["drain"]);
                    assert!(drained.status.success(), "{}", mounted.said());
                }
            }
            wanted.extend(names.into_iter().map(|name| (format!("{top}/{name}"), "many names")));
        }
        mounted.stop();
        read_anew(origin.folder());
        let found = sh(origin.folder(), "find . -path ./.destage -prune -o -type f -print | sort");
        let found: BTreeMap<String, String> = found
            .lines()
            .map(|path| path.trim_start_matches("./").to_owned())
            .map(|path| {
                let content = fs::read_to_string(origin.folder().join(&path));
                (path, content.unwrap_or_else(|error| error.to_string()))
            })
            .collect();
        let wanted = wanted.into_iter().map(|(path, content)| (path, content.to_owned())).collect();
        assert_eq!(found, wanted, "{kind:?}");
    }
}

const ROUNDS: u64 = 16;
const STEPS: u64 = 16;
