//! Traps about bytes.

use super::{Trap, has_python, sync};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const SYNC: i32 = 0o4010000;
const DSYNC: i32 = 0o10000;

/// The kernel's own idea of a file's end, which it computes offsets of appends from, may be old.
#[test]
fn trap_07_appends_by_several_programs_lose_nothing() {
    let trap = Trap::new();
    let script = "for p in 1 2 3 4; do (for i in $(seq 200); do echo \"$p $i\" >> log; done) & done; wait; wc -l < log; sort -u log | wc -l";
    assert_eq!(trap.sh(script), "800\n800\n");
    assert_eq!(trap.at_the_origin("sort -u log | wc -l"), "800\n");
}

#[test]
fn trap_08_every_handle_knows_the_end() {
    let trap = Trap::new();
    let path = trap.join("file");
    let mut one =
        File::options().read(true).write(true).create_new(true).open(&path).expect("it is made");
    let mut two = File::open(&path).expect("it opens");
    for round in 1..50_u64 {
        one.write_all(&[7; 1_000]).expect("it is written");
        assert_eq!(two.seek(SeekFrom::End(0)).expect("it is open"), round * 1_000);
        assert_eq!(fs::metadata(&path).expect("it is there").len(), round * 1_000);
    }
    one.set_len(10).expect("it is cut");
    assert_eq!(two.seek(SeekFrom::End(0)).expect("it is open"), 10);
    one.write_at(b"x", 100).expect("behind the end");
    let mut read = [1; 101];
    assert_eq!(two.read_at(&mut read, 0).expect("it is read"), 101);
    assert_eq!((&read[..10], &read[10..100], read[100]), (&[7; 10][..], &[0; 90][..], b'x'));
}

#[test]
fn trap_09_stores_into_a_shared_mapping_are_written() {
    if !has_python() {
        return;
    }
    let mut trap = Trap::new();
    let script = "
import mmap, os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.truncate(fd, 8192)
view = mmap.mmap(fd, 8192)
view[0:5] = b'first'
view[5000:5006] = b'second'
view.flush()
assert os.pread(fd, 5, 0) == b'first'
os.pwrite(fd, b'third', 6000)
assert view[6000:6005] == b'third'
os.fsync(fd)
view[100:106] = b'fourth'
view.close()
os.close(fd)
";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    trap.sh(&format!("python3 {}", trap.scratch.join("script.py").display()));
    let look = "tr -d '\\000' < file";
    assert_eq!(trap.sh(look), "firstfourthsecondthird");
    sync(&trap.join("file"));
    trap.crash();
    assert_eq!(trap.sh(look), "firstfourthsecondthird");
    assert_eq!(trap.at_the_origin(look), "firstfourthsecondthird");
}

/// The kernel says nothing of a store into a mapping: it is asked for them. So they are durable within d, whoever syncs.
#[test]
fn trap_09_stores_into_a_mapping_that_stays_are_durable_within_d() {
    if !has_python() {
        return;
    }
    let mut trap = Trap::with(&["--commit", "200ms"]);
    let script = "
import mmap, os, sys, time
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.truncate(fd, 8192)
view = mmap.mmap(fd, 8192)
for round in range(3):
    view[0:6] = b'stored'
    time.sleep(0.3)
view[4096:4100] = b'late'
print('done', flush=True)
time.sleep(60)
";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    let mut python = Command::new("python3");
    python.arg(trap.scratch.join("script.py")).current_dir(trap.join(""));
    let mut program = python.stdout(Stdio::piped()).spawn().expect("Python starts");
    let mut line = String::new();
    let said = program.stdout.take().expect("its output is piped");
    BufReader::new(said).read_line(&mut line).expect("it says so");
    assert_eq!(line, "done\n");
    // d, and as much again for a machine that is busy.
    thread::sleep(std::time::Duration::from_secs(2));
    trap.crash();
    program.kill().and_then(|()| program.wait()).expect("it is our child");
    assert_eq!(trap.sh("tr -d '\\000' < file"), "storedlate");
}

#[test]
fn trap_10_locks_exclude_other_programs_and_end_with_their_holder() {
    if !has_python() {
        return;
    }
    let trap = Trap::new();
    let script = "
import fcntl, os, signal, sys, time
for lock in (fcntl.flock, fcntl.lockf):
    ours = open('file', 'w')
    lock(ours, fcntl.LOCK_EX)
    child = os.fork()
    if child == 0:
        try:
            lock(open('file', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3, 'taken twice'
    lock(ours, fcntl.LOCK_UN)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        theirs = open('file', 'w')
        lock(theirs, fcntl.LOCK_EX)
        os.write(write, b'x')
        time.sleep(60)
    os.read(read, 1)
    try:
        lock(ours, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.exit('taken twice')
    except BlockingIOError:
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    lock(ours, fcntl.LOCK_EX)
    ours.close()
print('ok')
";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    assert_eq!(trap.sh(&format!("python3 {}", trap.scratch.join("script.py").display())), "ok\n");
}

/// Whoever looks at the origin meanwhile sees a file grow by what was written, never by zeros.
#[test]
fn trap_14_the_origin_never_has_zeros_where_data_belongs() {
    let trap = Trap::with(&["--when", "interval:100ms,50ms"]);
    let is_over = AtomicBool::new(false);
    let (folder, origin) = (trap.join(""), trap.origin.folder().to_owned());
    let looks = thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..60 {
                let mut file =
                    File::create(folder.join(format!("file{}", round % 7))).expect("it is made");
                for _ in 0..16 {
                    file.write_all(&[b'x'; 40_000]).expect("it is written");
                }
                thread::sleep(std::time::Duration::from_millis(20));
            }
            is_over.store(true, Ordering::SeqCst);
        });
        let mut looks = 0;
        while !is_over.load(Ordering::SeqCst) {
            for number in 0..7 {
                // It may not be there yet.
                let Ok(bytes) = fs::read(origin.join(format!("file{number}"))) else { continue };
                looks += usize::from(!bytes.is_empty());
                let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
                assert_eq!(zeros, 0, "file{number} of {} bytes has zeros", bytes.len());
            }
        }
        looks
    });
    assert!(looks > 10, "hardly anything was seen: {looks}");
    assert_eq!(
        trap.at_the_origin("cat file? | wc -c; cat file? | tr -d x | wc -c"),
        "4480000\n0\n"
    );
}

#[test]
fn trap_19_synchronous_writes_survive_a_crash() {
    let mut trap = Trap::new();
    for (name, flags) in [("sync", SYNC), ("dsync", DSYNC)] {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags)
            .open(trap.join(name));
        let file = file.expect("it opens");
        for number in 0..20 {
            file.write_at(format!("{number:04}").as_bytes(), number * 4).expect("it is written");
        }
        trap.crash();
        let kept = fs::read_to_string(trap.join(name)).expect("it is there");
        assert!(kept.len() == 80 && kept.ends_with("0019"), "{name}: {kept}");
    }
}

#[test]
fn trap_20_what_was_closed_without_fsync_arrives_when_the_mount_ends() {
    let trap = Trap::new();
    trap.sh("for i in $(seq 50); do echo $i > file$i; done");
    assert_eq!(trap.at_the_origin("cat file* | sort -n | tail -n 1; ls file* | wc -l"), "50\n50\n");
}

#[test]
fn trap_22_truncation_holes_and_ranges_are_in_order() {
    if !has_python() {
        return;
    }
    let mut trap = Trap::new();
    let script = "
import errno, os
fd = os.open('file', os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b'a' * 10000, 0)
os.ftruncate(fd, 100)
os.ftruncate(fd, 9000)
os.pwrite(fd, b'b' * 10, 8000)
def tried(call):
    try:
        call()
        return True
    except OSError as error:
        assert error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EXDEV), error
        return False
if tried(lambda: os.posix_fallocate(fd, 0, 12000)):
    assert os.fstat(fd).st_size == 12000
os.ftruncate(fd, 12000)
other = os.open('copy', os.O_RDWR | os.O_CREAT)
if not tried(lambda: os.copy_file_range(fd, other, 12000, 0, 0)):
    os.pwrite(other, os.pread(fd, 12000, 0), 0)
os.lseek(fd, 0, os.SEEK_DATA)
assert os.lseek(fd, 0, os.SEEK_HOLE) >= 100
assert os.lseek(fd, 0, os.SEEK_END) == 12000
os.fsync(fd); os.fsync(other)
";
    fs::write(trap.scratch.join("script.py"), script).expect("it is written");
    trap.sh(&format!("python3 {}", trap.scratch.join("script.py").display()));
    trap.crash();
    let look = "cmp file copy; stat -c %s file; tr -d '\\000' < file | md5sum; head -c 100 file | tr -d a | wc -c; tail -c 4000 file | head -c 10";
    let seen = trap.sh(look);
    assert!(seen.starts_with("12000\n") && seen.ends_with("0\nbbbbbbbbbb"), "{seen}");
    assert_eq!(trap.at_the_origin(look), seen);
}

#[test]
fn trap_22_huge_and_sparse_offsets_are_kept() {
    let mut trap = Trap::new();
    let path = trap.join("sparse");
    let file = File::create(&path).expect("it is made");
    let far = 1 << 40;
    file.write_at(b"far", far).expect("it is written");
    file.write_at(b"near", 5).expect("it is written");
    file.sync_all().expect("it is made durable");
    drop(file);
    trap.crash();
    let file = File::open(&path).expect("it opens");
    let mut read = [1; 3];
    file.read_exact_at(&mut read, far).expect("it is read");
    assert_eq!(&read, b"far");
    file.read_exact_at(&mut read, far / 2).expect("it is read");
    assert_eq!(read, [0; 3]);
    drop(file);
    assert_eq!(
        trap.at_the_origin("stat -c %s sparse; tail -c 3 sparse; head -c 9 sparse | tr -d '\\000'"),
        "1099511627779\nfarnear"
    );
}

/// The kernel tells a FUSE server nothing of `sync`: there are commands for it.
#[test]
fn trap_25_there_are_commands_to_make_everything_durable() {
    let mut trap = Trap::new();
    let ask = |trap: &Trap, command: &str| {
        let done = trap.mounted().ask(&[command]);
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    };
    trap.sh("for i in $(seq 50); do echo $i > file$i; done");
    ask(&trap, "sync");
    trap.crash();
    assert_eq!(trap.sh("cat file* | wc -l"), "50\n", "it is in the journal");
    trap.sh("echo more > more");
    ask(&trap, "drain");
    assert_eq!(
        super::sh(trap.origin.folder(), "cat file* more | wc -l"),
        "51\n",
        "it is at the origin"
    );
    assert_eq!(trap.sh("cat file* more | wc -l"), "51\n", "and the mount goes on");
}
