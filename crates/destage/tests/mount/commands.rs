//! What a mount is asked on the command line, and what it refuses.

use crate::harness::{PATIENCE, Scratch, eventually, output, seconds};
use crate::mounted::{Launch, Mounted, Unmounting, destage};
use crate::origin::{Kind, Origin};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

fn local(scratch: &Scratch) -> Origin {
    Origin::new(Kind::Local, scratch).expect("a local folder is there for every test")
}

/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "none"];

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn done(mounted: &Mounted, arguments: &[&str]) -> String {
    let output = mounted.ask(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    said(&output)
}

fn of_conflicts(mounted: &Mounted, arguments: &[&str]) -> Output {
    let mut process = destage();
    process.args(["mount", "conflicts"]).args(arguments).arg(mounted.folder());
    process.output().expect("the binary starts")
}

#[track_caller]
fn conflicts(mounted: &Mounted, arguments: &[&str]) -> String {
    let output = of_conflicts(mounted, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    said(&output)
}

#[test]
fn a_mount_is_found_by_its_folder_and_does_what_it_is_asked() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    let mounted = launch.start();
    let (here, there) = (mounted.folder().join("file"), origin.folder().join("file"));
    fs::write(&here, "content").expect("the mount takes it");
    done(&mounted, &["sync"]);
    assert!(!there.exists(), "it is destaged when it is due");
    let status = done(&mounted, &["status", "--format", "json"]);
    assert!(status.contains(r#""front_end":"mount""#), "{status}");
    done(&mounted, &["drain"]);
    assert_eq!(fs::read(&there).expect("it is there"), b"content");
    let policy = done(&mounted, &["policy", "--set", "when=periodic:10s"]);
    assert!(policy.contains("periodic:10s"), "{policy}");
    let wrong = mounted.ask(&["policy", "--set", "when=hourly"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong));

    done(&mounted, &["freeze"]);
    let path = mounted.folder().join("frozen");
    let writer = std::thread::spawn(move || fs::write(path, "later"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(!writer.is_finished(), "a change waits");
    done(&mounted, &["thaw"]);
    writer.join().expect("it ends").expect("the change is done");
    mounted.stop();
    assert_eq!(fs::read(origin.folder().join("frozen")).expect("it is there"), b"later");
}

#[test]
fn a_second_mount_of_a_folder_is_refused_with_whose_it_is() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let first = Launch::before(&scratch, &origin).with(&LATER).start();
    let other = Scratch::new();
    let (code, text) = Launch::before(&other, &origin).with(&LATER).refused();
    assert_eq!(code, 11, "{text}");
    assert!(text.contains(&format!("process {},", first.id())), "{text}");
    first.stop();
    Launch::before(&other, &origin).with(&LATER).start().stop();
}

#[test]
fn what_cannot_be_an_origin_is_refused_before_anything_is_begun() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    fs::remove_dir(origin.folder()).expect("it is empty");
    let (code, text) = launch.refused();
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("name a folder that is there"), "{text}");
    assert!(!launch.journal().exists(), "no journal was made");
    fs::create_dir(origin.folder()).expect("it can be made");
    let inside = origin.folder().join("journal");
    let output = destage()
        .args(["mount".as_ref(), origin.folder().as_os_str()])
        .arg(scratch.join("elsewhere"))
        .arg("--journal")
        .arg(&inside)
        .output()
        .expect("the binary starts");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("lies in the origin"), "{}", said(&output));
    // Whoever names a journal does not want the example.
    let mut without = destage();
    without.args(["mount", "--journal"]).arg(launch.journal()).current_dir(scratch.join(""));
    let output = without.output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("<ORIGIN>"), "{}", said(&output));
    assert!(!scratch.join("destage-mount-example").exists(), "the example was made");
}

/// A library with which no program makes anything durable.
fn syncs_fail(scratch: &Scratch) -> PathBuf {
    let (source, library) = (scratch.join("syncs.c"), scratch.join("syncs.so"));
    let text = "#include <errno.h>\nint fsync(int file) { errno = EIO; return -1; }\n";
    fs::write(&source, text).expect("the file can be written");
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    output(&mut compile);
    library
}

#[test]
fn a_conflict_is_kept_listed_restored_and_forgotten() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    let mounted = launch.start();
    let (here, there) = (mounted.folder().join("shared"), origin.folder().join("shared"));
    fs::write(&here, "first").expect("the mount takes it");
    done(&mounted, &["drain"]);
    fs::write(&here, "ours").expect("the mount takes it");
    fs::set_permissions(&here, fs::Permissions::from_mode(0o640)).expect("the mount takes it");
    let whole = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&here, "user.whose", b"ours", whole).expect("the mount takes it");
    done(&mounted, &["sync"]);
    fs::write(&there, "theirs, behind its back").expect("others may");
    done(&mounted, &["drain"]);
    assert_eq!(fs::read(&there).expect("it is there"), b"theirs, behind its back");
    let list = conflicts(&mounted, &["list"]);
    let conflict = list.split_whitespace().next().expect("one is listed").to_owned();
    let status = done(&mounted, &["status"]);
    assert!(status.contains("conflict"), "{status}");

    // What was kept stays until the copy is durable.
    let lost = scratch.join("lost").display().to_string();
    let mut failing = destage();
    failing.args(["mount", "conflicts", "restore", &conflict, &lost]).arg(mounted.folder());
    let failed = failing.env("LD_PRELOAD", syncs_fail(&scratch)).output().expect("it starts");
    assert!(!failed.status.success() && said(&failed).contains("a crash may"), "{}", said(&failed));
    assert!(conflicts(&mounted, &["list"]).contains(&conflict), "it is forgotten");

    let ours = mounted.folder().join("ours");
    conflicts(&mounted, &["restore", &conflict, &ours.display().to_string()]);
    assert_eq!(fs::read(&ours).expect("it is restored"), b"ours");
    assert_eq!(fs::metadata(&ours).expect("it is there").mode() & 0o7777, 0o640);
    let mut value = [0; 9];
    let len = rustix::fs::getxattr(&ours, "user.whose", &mut value[..]).expect("it is restored");
    assert_eq!(&value[..len], b"ours");

    // Of a conflict of attributes there is nothing but these.
    fs::set_permissions(&here, fs::Permissions::from_mode(0o604)).expect("the mount takes it");
    fs::write(&there, "theirs, once more").expect("others may");
    done(&mounted, &["drain"]);
    let list = conflicts(&mounted, &["list"]);
    let conflict = list.split_whitespace().next().expect("one is listed").to_owned();
    let again = scratch.join("again");
    let refused = of_conflicts(&mounted, &["restore", &conflict, &again.display().to_string()]);
    assert!(
        !refused.status.success() && said(&refused).contains("no bytes were kept"),
        "{}",
        said(&refused)
    );
    assert!(!again.exists());
    let shown = conflicts(&mounted, &["show", &conflict]);
    assert!(shown.contains("388"), "the mode, 0604: {shown}");
    conflicts(&mounted, &["drop", &conflict]);
    let list = conflicts(&mounted, &["list"]);
    assert!(list.contains("no conflicts"), "{list}");
    mounted.stop();
}

/// Files of a journal that is replayed.
const MANY: usize = 900;

#[test]
fn a_journal_is_checked_and_replayed_without_a_mount() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    let _dead = Unmounting(scratch.join("mnt"));
    let mounted = launch.start();
    fs::create_dir(mounted.folder().join("d")).expect("the mount takes it");
    fs::write(mounted.folder().join("d/file"), "content").expect("the mount takes it");
    // More than can be at the origin in no time.
    for number in 0..MANY {
        let path = mounted.folder().join(format!("d/{number}"));
        fs::write(path, "content").expect("the mount takes it");
    }
    done(&mounted, &["sync"]);
    mounted.kill();
    let ask = |command: &str, with_origin: bool| {
        let mut process = destage();
        process.arg("mount").args(command.split(' '));
        if with_origin {
            process.arg(origin.folder());
        }
        process.arg("--journal").arg(launch.journal()).output().expect("the binary starts")
    };
    let journal = || {
        let files = fs::read_dir(launch.journal()).expect("the journal is there").flatten();
        let mut files: Vec<_> = files
            .map(|file| (file.file_name(), fs::read(file.path()).expect("it can be read")))
            .collect();
        files.sort();
        files
    };
    let before = journal();
    let checked = ask("check", false);
    assert!(checked.status.success(), "{}", said(&checked));
    assert!(journal() == before, "a check changes the journal");
    let changes = format!("{} changes of names", MANY + 2);
    assert!(said(&checked).contains(&changes), "{}", said(&checked));
    assert!(!origin.folder().join("d").exists(), "a check changes nothing");
    let late = ask("replay --timeout 0", true);
    assert_eq!(late.status.code(), Some(19), "{}", said(&late));
    assert!(said(&late).contains("they are in the journal"), "{}", said(&late));
    for _ in 0..2 {
        let replayed = ask("replay", true);
        assert!(replayed.status.success(), "{}", said(&replayed));
        let content = fs::read(origin.folder().join("d/file")).expect("it is there");
        assert_eq!(content, b"content");
    }
    assert!(journal() != before, "what a replay does to the journal is not noticed here");
    assert!(said(&ask("check", false)).contains("undecided   0"), "nothing is left");
}

/// Policies can be tried on what programs did with files, as on what they did with rows and blocks.
#[test]
fn a_recording_of_a_mount_is_replayed_without_a_difference() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let file = scratch.join("recording").display().to_string();
    let launch = Launch::before(&scratch, &origin).with(&[
        "--record",
        &file,
        "--when",
        "interval:300ms,50ms",
    ]);
    let mounted = launch.start();
    for number in 0..50 {
        let path = mounted.folder().join(format!("file{number}"));
        fs::write(&path, "content").expect("the mount takes it");
        if number % 3 == 0 {
            fs::remove_file(&path).expect("it is there");
        } else {
            fs::File::open(&path).and_then(|file| file.sync_all()).expect("it is made durable");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    mounted.stop();
    let mut replay = destage();
    let replayed = replay.args(["sim", "replay", &file, "--output", "json"]).output();
    let replayed = replayed.expect("the binary starts");
    assert!(replayed.status.success(), "{}", said(&replayed));
    let report: serde_json::Value = serde_json::from_slice(&replayed.stdout).expect("it is JSON");
    assert_eq!(report["same_effects"], true, "{report}");
    let part = &report["parts"][0];
    assert_eq!(
        (&part["subject"], &part["broken_off_at"]),
        (&"mount".into(), &().into()),
        "{report}"
    );
    assert!(part["inputs"].as_u64().expect("a number") > 200, "{report}");
    let nowhere = scratch.join("nowhere/recording").display().to_string();
    let (code, text) = launch.with(&["--record", &nowhere]).refused();
    assert_eq!(code, 2, "{text}");
}

/// > `fsync` with `--fsync origin`, or of a file below `--fsync-origin`
#[test]
fn an_fsync_below_the_folders_that_are_named_is_the_origins() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch =
        Launch::before(&scratch, &origin).with(&LATER).with(&["--fsync-origin", "mail/new,db"]);
    let mounted = launch.start();
    let (here, there) = (mounted.folder(), origin.folder());
    for folder in ["mail/new", "mail/tmp", "db/deep"] {
        fs::create_dir_all(here.join(folder)).expect("a folder can be made");
    }
    let write = |name: &str| {
        let mut file = fs::File::create(here.join(name)).expect("it is made");
        file.write_all(b"content").and_then(|()| file.sync_all()).expect("it is made durable");
    };
    write("mail/tmp/1");
    write("other");
    assert!(!there.join("mail").exists() && !there.join("other").exists(), "in the journal");
    fs::rename(here.join("mail/tmp/1"), here.join("mail/new/1")).expect("it is renamed");
    let renamed = fs::File::open(here.join("mail/new/1")).expect("it is there");
    renamed.sync_all().expect("it is made durable");
    assert_eq!(fs::read(there.join("mail/new/1")).expect("it is at the origin"), b"content");
    write("db/deep/file");
    assert_eq!(fs::read(there.join("db/deep/file")).expect("it is at the origin"), b"content");
    write("mail/tmp/2");
    assert!(!there.join("mail/tmp/2").exists(), "in the journal");
    mounted.stop();
    for wrong in ["/mail", "mail/../db", "."] {
        let (code, text) =
            Launch::before(&scratch, &origin).with(&["--fsync-origin", wrong]).refused();
        assert_eq!(code, 2, "{wrong}: {text}");
    }
}

#[test]
fn a_mount_tells_of_itself_as_other_servers_do() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let mounted = Launch::before(&scratch, &origin).with(&LATER).start();
    let gone = mounted.folder().join("gone");
    fs::write(&gone, "content").and_then(|()| fs::remove_file(&gone)).expect("the mount takes it");
    fs::write(mounted.folder().join("kept"), "content").expect("the mount takes it");
    done(&mounted, &["drain"]);
    let status = done(&mounted, &["status"]);
    for part in ["mounted folder", "1 files, 1 changes of names", "gone before they were due 1"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let address = destage_mount::admin_of(mounted.folder()).expect("it tells");
    let get = |path: &str| {
        let answer = ureq::get(format!("http://{address}{path}")).call().expect("an answer");
        answer.into_body().read_to_string().expect("text")
    };
    let metrics = get("/metrics");
    for part in [
        "destage_mount_files_written_total 1\n",
        "destage_mount_names_changed_total 1\n",
        "destage_mount_absorbed_files_total 1\n",
        "destage_mount_conflicts_total 0\n",
        "destage_mode{mode=\"normal\"} 1\n",
    ] {
        assert!(metrics.contains(part), "{part}: {metrics}");
    }
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name)).expect(name);
        line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
    };
    for name in [
        "destage_commit_latency_count ",
        "destage_destage_latency_count ",
        "destage_journal_fsync_count ",
    ] {
        assert!(value(name) >= 1.0, "{name}: {metrics}");
    }
    assert!(value("destage_mount_room_bytes ") > 0.0);
    assert!(get("/").contains("Mounted folder"), "the console has a place for it");
    let top = destage().args(["top", "--once", "--admin", &address]).output().expect("it starts");
    assert!(said(&top).contains("1 gone before they were due"), "{}", said(&top));
    mounted.stop();
}

/// Nothing is slow here: the environment has everything shown from its first step on.
#[test]
fn what_takes_long_is_shown_and_a_start_says_what_it_found() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    let _dead = Unmounting(scratch.join("mnt"));
    let mounted = launch.start();
    for part in [" starting", "version=", "origin=", "policy=", "nothing to destage"] {
        assert!(mounted.said().contains(part), "{part} in\n{}", mounted.said());
    }
    for name in 0..20 {
        let file = mounted.folder().join(format!("file-{name}"));
        fs::write(file, "content").expect("the mount takes it");
    }
    // As the other front ends call it.
    done(&mounted, &["flush"]);
    mounted.kill();
    let journal = launch.journal().display().to_string();
    let at_once = |words: &[&str]| {
        let mut command = destage();
        command.arg("mount").args(words).args(["--journal", &journal]);
        let output = command.env("DESTAGE_PROGRESS_AFTER", "0s").output().expect("it starts");
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        said(&output)
    };
    let checked = at_once(&["check"]);
    assert!(checked.contains("checking the journal: "), "{checked}");
    let mounted = launch.start();
    assert!(mounted.said().contains("an earlier run left changes"), "{}", mounted.said());
    mounted.kill();
    let folder = origin.folder().display().to_string();
    let replayed = at_once(&["replay", &folder]);
    for part in ["reading the journal: ", "replaying the journal: "] {
        assert!(replayed.contains(part), "{part} in\n{replayed}");
    }
}

/// > What others have changed before the first attempt began, or more than half a minute after it was interrupted, is never
/// > written over.
///
/// A mount dies while it brings a large file, and others change that file a while later. The rest of the batch comes.
#[test]
fn what_others_change_after_a_crash_in_the_middle_of_a_batch_is_not_written_over() {
    let scratch = Scratch::new();
    let origin = local(&scratch);
    let launch = Launch::before(&scratch, &origin).with(&LATER);
    let _dead = Unmounting(scratch.join("mnt"));
    let mounted = launch.start();
    let there = |name: &str| origin.folder().join(name);
    for name in ["large", "small"] {
        fs::write(mounted.folder().join(name), "before").expect("the mount takes it");
    }
    done(&mounted, &["drain"]);
    let large = vec![7; 200 << 20];
    fs::write(mounted.folder().join("large"), &large).expect("the mount takes it");
    fs::write(mounted.folder().join("small"), "after").expect("the mount takes it");
    done(&mounted, &["sync"]);
    let mut drain = destage();
    let mut drain =
        drain.args(["mount", "drain"]).arg(mounted.folder()).spawn().expect("the binary starts");
    let size = || fs::metadata(there("large")).expect("it is there").len();
    eventually("some of it is at the origin", PATIENCE, || size() > 8 << 20);
    mounted.kill();
    drain.wait().expect("it is our child");
    assert!(size() < large.len() as u64, "it is not all there");
    std::thread::sleep(seconds(35));
    fs::write(there("large"), "theirs").expect("others write it");
    let mounted = launch.start();
    done(&mounted, &["drain"]);
    assert_eq!(fs::read(there("large")).expect("it is there"), b"theirs");
    assert_eq!(fs::read(there("small")).expect("it is there"), b"after");
    let kept = conflicts(&mounted, &["list"]);
    assert_eq!(
        kept.lines().filter(|line| line.contains("others have changed it")).count(),
        1,
        "{kept}"
    );
    mounted.stop();
}
