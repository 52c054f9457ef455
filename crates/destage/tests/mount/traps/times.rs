//! Traps about times, owners and what else is said of a file.

use super::{Trap, has_python, sync};
use crate::harness::server::signal;
use crate::harness::{eventually, has, seconds};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Instant;

#[test]
fn trap_05_times_are_kept_to_the_nanosecond_and_never_go_back() {
    let mut trap = Trap::new();
    trap.sh("echo text > file; touch -d '2001-02-03 04:05:06.123456789' file");
    let changed = |trap: &Trap| {
        let status = fs::metadata(trap.join("file")).expect("it is there");
        (status.ctime(), status.ctime_nsec())
    };
    let shown = |trap: &Trap| trap.sh("stat -c %y file | cut -c1-29");
    let before = changed(&trap);
    assert_eq!(shown(&trap), "2001-02-03 04:05:06.123456789\n");
    sync(&trap.join("file"));
    trap.crash();
    assert_eq!(shown(&trap), "2001-02-03 04:05:06.123456789\n");
    assert!(changed(&trap) >= before, "after a crash");
    trap.restart();
    assert_eq!(shown(&trap), "2001-02-03 04:05:06.123456789\n");
    assert!(changed(&trap) >= before, "drained");
    let moment = changed(&trap);
    trap.sh("chmod 600 file");
    assert!(changed(&trap) > moment, "a change is seen in the time of change");
    assert_eq!(
        trap.at_the_origin("stat -c '%a %y' file | cut -c1-33"),
        "600 2001-02-03 04:05:06.123456789\n"
    );
}

/// What was allowed when it was done is done, whatever may be allowed when it is replayed.
#[test]
fn trap_12_permissions_are_checked_once() {
    if !has("setpriv") {
        return;
    }
    let mut trap = Trap::new();
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    trap.sh(&format!("chmod 755 .; mkdir -m 777 open; {nobody} sh -c 'umask 0; echo mine > open/file; mkdir open/inner; touch open/inner/x'"));
    trap.sh("chmod 0 open; chown 0:0 open; sync open");
    sync(&trap.join("open"));
    trap.crash();
    let look = "stat -c '%n %a %u %g' open open/file open/inner open/inner/x; cat open/file";
    let wanted = "open 0 0 0\nopen/file 666 65534 65534\nopen/inner 777 65534 65534\nopen/inner/x 666 65534 65534\nmine\n";
    assert_eq!(trap.sh(look), wanted);
    assert_eq!(
        trap.sh(&format!("{nobody} cat open/file 2>&1 || true")),
        "cat: open/file: Permission denied\n"
    );
    assert_eq!(trap.at_the_origin(look), wanted);
}

#[test]
fn trap_12_a_write_by_another_takes_the_right_to_act_as_the_owner() {
    if has("setpriv") {
        a_write_by_another_takes_privileges(Trap::new());
    }
}

#[test]
fn trap_12_so_does_one_in_front_of_a_cephfs() {
    if let Some(trap) = Trap::on_ceph().filter(|_| has("setpriv")) {
        a_write_by_another_takes_privileges(trap);
    }
}

#[track_caller]
fn a_write_by_another_takes_privileges(trap: Trap) {
    trap.sh("chmod 755 .; echo '#!/bin/true' > program; chmod 6777 program");
    trap.sh("setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo more >> program'");
    assert_eq!(trap.sh("stat -c %a program"), "777\n");
    assert_eq!(trap.at_the_origin("stat -c %a program; tail -n 1 program"), "777\nmore\n");
}

#[test]
fn trap_18_extended_attributes_are_kept() {
    if !has("setfattr") || !has_python() {
        return;
    }
    let mut trap = Trap::new();
    trap.sh("touch file; mkdir folder; setfattr -n user.one -v 1 file; setfattr -n user.two -v 2 file; setfattr -n trusted.three -v 3 folder");
    trap.restart();
    trap.sh("setfattr -x user.one file; setfattr -n user.two -v 22 file; setfattr -n user.four -v '' file");
    sync(&trap.join("file"));
    trap.crash();
    let look = "getfattr -d -m - file folder";
    let wanted =
        "# file: file\nuser.four=\"\"\nuser.two=\"22\"\n\n# file: folder\ntrusted.three=\"3\"\n\n";
    assert_eq!(trap.sh(look), wanted);
    // What the origin does not take is refused when it is asked for.
    let script = "import os\ntry:\n    os.setxattr('file', 'user.big', b'x' * 65000)\nexcept OSError:\n    print('refused')\nelse:\n    print(len(os.getxattr('file', 'user.big')))\n    os.removexattr('file', 'user.big')";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    let big = format!("python3 {}", trap.scratch.join("script.py").display());
    let through = trap.sh(&big);
    // Beside it: what others change there while changes of ours wait would be a conflict.
    let beside = format!("mkdir beside; cd beside; touch file; {big}; cd ..; rm -r beside");
    let at_the_origin = super::sh(trap.origin.folder(), &beside);
    assert_eq!(through, at_the_origin, "as at the origin");
    assert_eq!(trap.at_the_origin(look), wanted);
}

/// Those of users the kernel does not give to a link, here or elsewhere.
#[test]
fn trap_18_a_symbolic_link_has_attributes_of_its_own() {
    if !has("setfattr") {
        return;
    }
    let mut trap = Trap::new();
    trap.sh("echo there > there; ln -s there link; setfattr -h -n trusted.one -v 1 link; ln -s there old");
    trap.restart();
    trap.sh("setfattr -h -n trusted.two -v 2 link; setfattr -h -x trusted.one link; setfattr -h -n trusted.old -v 3 old");
    trap.sh("! setfattr -h -n user.one -v 1 link 2>/dev/null");
    sync(&trap.join("there"));
    trap.crash();
    let look = "getfattr -h -d -m trusted link old there";
    let wanted = "# file: link\ntrusted.two=\"2\"\n\n# file: old\ntrusted.old=\"3\"\n\n";
    assert_eq!(trap.sh(look), wanted);
    assert_eq!(trap.at_the_origin(look), wanted);
}

/// What was done while the daemon did not run, as on a host that slept, is as old as the time that passed.
#[test]
fn trap_16_time_in_which_the_daemon_slept_counts() {
    let trap = Trap::with(&["--when", "interval:3s,100ms", "--staleness", "60s"]);
    trap.sh("echo early > early");
    signal(trap.mounted().id(), Signal::STOP);
    thread::sleep(seconds(4));
    signal(trap.mounted().id(), Signal::CONT);
    let woken = Instant::now();
    let early = trap.origin.folder().join("early");
    eventually("it is at the origin", seconds(30), || early.exists());
    assert!(woken.elapsed() < seconds(3), "its age began anew: {:?}", woken.elapsed());
    trap.sh("echo late > late");
    assert_eq!(trap.at_the_origin("cat early late"), "early\nlate\n");
}

#[test]
fn trap_31_a_time_of_access_that_is_set_is_kept() {
    let mut trap = Trap::new();
    trap.sh("echo text > file; touch -a -d '2011-02-03 04:05:06' file");
    sync(&trap.join("file"));
    trap.crash();
    assert_eq!(trap.sh("stat -c %x file | cut -c1-19"), "2011-02-03 04:05:06\n");
    assert_eq!(trap.at_the_origin("stat -c %x file | cut -c1-19"), "2011-02-03 04:05:06\n");
}
