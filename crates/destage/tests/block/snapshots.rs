//! `--atomic snapshot`: an image on a file system with reflinks is whole at any moment, without a replay.

use crate::disks::{Kind, Loop, Mounted, argument, require_root, run};
use crate::harness::{PATIENCE, Random, Scratch, eventually};
use crate::history::{BLOCK, BLOCKS, History, State, read_state, state_of};
use crate::server::{Launch, Server, image};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Different states that a look at the image under load must have seen.
const STATES: usize = 30;

const SNAPSHOT: &[&str] = &["--atomic", "snapshot"];
const FLAGS: &[&str] = &["--linger", "0", "--batch-size", "1M"];

/// An image on a file system of its own. The fields go in this order.
struct Setup {
    launch: Launch,
    /// The same by the redo store.
    redo: Launch,
    image: PathBuf,
    mounted: Option<Mounted>,
    device: Loop,
    scratch: Scratch,
}

impl Setup {
    fn on(kind: Kind, flags: &[&str]) -> Self {
        require_root();
        let scratch = Scratch::new();
        let disk = image(&scratch, kind.disk_bytes());
        kind.make(&disk);
        let device = Loop::on(&disk, kind);
        let mounted = Mounted::new(&scratch, device.path(), "noatime").expect("it mounts");
        let image = mounted.path().join("volume.img");
        File::create(&image).and_then(|file| file.set_len(BLOCKS * BLOCK as u64)).expect("a file");
        let redo = Launch::before(&scratch, argument(&image)).with(FLAGS).with(flags);
        let launch = redo.clone().with(SNAPSHOT);
        Self { launch, redo, image, mounted: Some(mounted), device, scratch }
    }

    fn state(&self) -> Result<State, String> {
        state_of(&fs::read(&self.image).expect("the image can be read"))
    }

    /// The power of the file system's disk goes: what was not synced is lost.
    fn cut_power(&self) {
        let mounted = self.mounted.as_ref().expect("it is mounted");
        run("xfs_io", &["-x", "-c", "shutdown", argument(mounted.path())]).expect("it goes");
    }

    fn mount_again(&mut self) {
        self.mounted.take().expect("it is mounted").unmount().expect("it unmounts");
        let mounted = Mounted::new(&self.scratch, self.device.path(), "noatime");
        self.mounted = Some(mounted.expect("it mounts"));
    }
}

/// Looks at the image while a client writes; what was written, and each state that was seen.
fn looked_at(setup: &Setup, seed: u64) -> (History, Vec<Result<State, String>>) {
    let server = setup.launch.start();
    let client = server.client();
    let ends = AtomicBool::new(false);
    let mut history = History::default();
    let mut seen: Vec<Result<State, String>> = Vec::new();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            history.write(&client, &mut Random::new(seed, 0), |_| ends.load(Ordering::Relaxed));
        });
        let until = Instant::now() + PATIENCE;
        while seen.len() < STATES && Instant::now() < until && !writer.is_finished() {
            let state = setup.state();
            if seen.last() != Some(&state) {
                seen.push(state);
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_eq!(server.stop(), 0);
    seen.push(setup.state());
    (history, seen)
}

fn check(history: &History, seen: Vec<Result<State, String>>) -> Result<(), String> {
    seen.into_iter().try_for_each(|state| history.is_prefix(&state?, 0))
}

fn is_whole_at_any_moment(kind: Kind) {
    if !kind.is_known() {
        return;
    }
    let setup = Setup::on(kind, &[]);
    let (history, seen) = looked_at(&setup, 41);
    assert!(seen.len() >= STATES, "{} states were seen", seen.len());
    let last = seen.last().cloned().expect("there is one").expect("it is not torn");
    check(&history, seen).expect("each is the log up to one write");
    history.is_prefix(&last, history.acknowledged).expect("a stop brings everything there");
    assert!(!setup.image.with_file_name(".volume.img.destage-next").exists());
}

/// > With `--atomic snapshot` the image is always the volume as of one write, without a replay.
#[test]
fn the_image_is_whole_at_any_moment_on_xfs() {
    is_whole_at_any_moment(Kind::Xfs);
}

#[test]
fn the_image_is_whole_at_any_moment_on_btrfs() {
    is_whole_at_any_moment(Kind::Btrfs);
}

/// A group that finds no room in its middle: what the image holds then, and what was written. Whether the machine is fast or slow
/// does not matter, since nothing goes on before there is room again.
fn out_of_room(flags: &[&str]) -> (Setup, Server, History, PathBuf) {
    let mut setup = Setup::on(Kind::Xfs, flags);
    // The attach record and the evidence find room.
    setup.launch = setup.launch.redo_at(setup.scratch.join("redo"));
    let server = setup.launch.start();
    server.ask(&["pause"]);
    let client = server.client();
    let mut history = History::default();
    // The newest write goes to the block that is sent first. No neighbours: each is a write of its own, which finds room or not.
    for block in (0..BLOCKS).rev().step_by(2) {
        history.put(&client, block).expect("a write");
    }
    history.flush(&client).expect("a flush");
    let filler = setup.image.with_file_name("filler");
    fill(&filler);
    server.ask(&["resume"]);
    eventually("a group finds no room", PATIENCE, || {
        server.volume("origin_errors_total").as_u64() > Some(0)
    });
    (setup, server, history, filler)
}

/// Leaves room on a file system for a part of the volume, and not for all of it.
fn fill(filler: &Path) {
    let mut file = File::create(filler).expect("a file");
    for len in [1 << 20, BLOCK] {
        let bytes = vec![1; len];
        let is_full = std::iter::repeat_with(|| file.write_all(&bytes)).find(Result::is_err);
        assert!(is_full.is_some(), "it is full");
    }
    file.sync_all().expect("it is durable");
    let len = file.metadata().expect("it is there").len();
    file.set_len(len - BLOCKS * BLOCK as u64 / 6).expect("there is some room");
    file.sync_all().expect("it is durable");
}

#[test]
fn the_image_is_whole_where_a_group_finds_no_room_in_its_middle() {
    let (setup, server, history, filler) = out_of_room(&[]);
    let left = setup.state().expect("no block is torn");
    assert!(left.iter().all(|&number| number == 0), "the image is as it was: {left:?}");
    fs::remove_file(filler).expect("there is room again");
    server.ask(&["drain"]);
    let all = setup.state().expect("no block is torn");
    history.is_prefix(&all, history.flushed).expect("everything arrived");
    assert_eq!(server.stop(), 0);
}

/// The control: everything is the same but for the exchange.
#[test]
fn the_image_is_found_in_pieces_where_it_is_changed_in_place() {
    let (setup, _server, history, _filler) = out_of_room(&["--unsafe-in-place"]);
    let checked = setup.state().and_then(|left| history.is_prefix(&left, 0));
    checked.expect_err("changes in place looked whole: the checker proves nothing");
}

/// Writes for a moment, and does something that the server does not expect; what was written.
fn interrupted(server: &Server, random: &mut Random, interrupt: impl FnOnce()) -> History {
    let client = server.client();
    let written = AtomicU64::new(0);
    let (least, wait) = (random.between(200, 400), random.between(0, 300));
    let mut choices = Random::new(random.next(), 0);
    thread::scope(|scope| {
        let written = &written;
        let writer = scope.spawn(move || {
            let mut history = History::default();
            let most = Instant::now() + PATIENCE;
            history.write(&client, &mut choices, |number| {
                written.store(number, Ordering::Relaxed);
                Instant::now() > most
            });
            history
        });
        eventually("the client writes", PATIENCE, || written.load(Ordering::Relaxed) > least);
        thread::sleep(Duration::from_millis(wait));
        interrupt();
        server.cut();
        writer.join().expect("the client ends")
    })
}

fn survives_kills(kind: Kind, kills: u64) {
    if !kind.is_known() {
        return;
    }
    for round in 0..kills {
        let setup = Setup::on(kind, &[]);
        let mut random = Random::new(42, round);
        let server = setup.launch.start();
        let history = interrupted(&server, &mut random, || {});
        server.kill();
        let left = setup.state().expect("no block is torn");
        history.is_prefix(&left, 0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        // With the cache nothing flushed is lost, and what a crash left of a copy is in nobody's way.
        let server = setup.launch.start();
        let held = read_state(&server.client()).expect("no block is torn");
        history.is_prefix(&held, history.flushed).unwrap_or_else(|error| panic!("{error}"));
        server.ask(&["drain"]);
        assert_eq!(setup.state().as_ref(), Ok(&held), "round {round}");
        assert_eq!(server.stop(), 0);
    }
}

#[test]
fn the_image_is_whole_after_kills_on_xfs() {
    survives_kills(Kind::Xfs, 4);
}

#[test]
fn the_image_is_whole_after_kills_on_btrfs() {
    survives_kills(Kind::Btrfs, 4);
}

#[test]
fn the_image_is_whole_after_the_file_system_lost_its_power() {
    for round in 0..4 {
        let mut setup = Setup::on(Kind::Xfs, &[]);
        let mut random = Random::new(43, round);
        let server = setup.launch.start();
        let decided = AtomicU64::new(0);
        let history = interrupted(&server, &mut random, || {
            // Everything that the volume held a moment ago is at the origin.
            let before = read_state(&server.client()).expect("no block is torn");
            server.ask(&["checkpoint", "--wait"]);
            decided.store(before.into_iter().max().unwrap_or(0), Ordering::Relaxed);
            thread::sleep(Duration::from_millis(round * 7));
            setup.cut_power();
        });
        server.kill();
        setup.mount_again();
        let least = decided.load(Ordering::Relaxed);
        assert!(least > 100, "{least}");
        let left = setup.state().expect("no block is torn");
        history.is_prefix(&left, least).unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}

#[test]
fn the_modes_can_be_exchanged_and_nothing_is_taken_for_someone_elses_change() {
    let setup = Setup::on(Kind::Xfs, &[]);
    let redo = setup.redo.clone().with(&["--atomic", "redo"]);
    let mut written = 0;
    for (round, launch) in
        [&setup.launch, &redo, &setup.launch, &redo, &redo].into_iter().enumerate()
    {
        let server = launch.start();
        let client = server.client();
        for block in 0..20 {
            written += 1;
            client
                .write(block * BLOCK as u64, &crate::history::stamped(written), false)
                .expect("a write");
        }
        client.flush().expect("a flush");
        server.ask(&["drain"]);
        let expected = read_state(&client).expect("no block is torn");
        assert_eq!(setup.state().as_ref(), Ok(&expected), "round {round}");
        match round % 2 {
            0 => server.kill(),
            _ => assert_eq!(server.stop(), 0),
        }
    }
}

#[test]
fn owner_mode_and_attributes_stay() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let setup = Setup::on(Kind::Xfs, &[]);
    chown(&setup.image, Some(12), Some(34)).expect("root may");
    fs::set_permissions(&setup.image, fs::Permissions::from_mode(0o640)).expect("it is ours");
    let name = "user.test";
    rustix::fs::setxattr(&setup.image, name, b"kept", rustix::fs::XattrFlags::empty())
        .expect("it takes that");
    let before = fs::metadata(&setup.image).expect("it is there").ino();
    let server = setup.launch.start();
    server.client().write(0, &crate::history::stamped(1), true).expect("a write");
    server.ask(&["drain"]);
    let meta = fs::metadata(&setup.image).expect("it is there");
    assert_ne!(meta.ino(), before, "it was replaced");
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o640));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(&setup.image, name, &mut value[..]).expect("it is there");
    assert_eq!(&value[..len], b"kept");
    assert_eq!(server.stop(), 0);
}

#[track_caller]
fn is_refused(launch: &Launch, why: &str) {
    let (code, said) = launch.refused();
    assert_eq!(code, 2, "{said}");
    assert!(said.contains(why), "{why}: {said}");
}

#[test]
fn what_cannot_be_replaced_as_a_whole_is_refused() {
    let setup = Setup::on(Kind::Xfs, &[]);
    is_refused(&setup.launch.clone().with(&["--policy", "write-back"]), "journaled policy");
    is_refused(&setup.launch.clone().with(&["--at-limit", "write-through"]), "--at-limit");
    let other_name = setup.image.with_file_name("other");
    fs::hard_link(&setup.image, &other_name).expect("a link");
    is_refused(&setup.launch, "2 names");
    fs::remove_file(&other_name).expect("it is ours");
    let open = File::open(&setup.image).expect("a reader");
    is_refused(&setup.launch, "is open in process");
    drop(open);
    let looped = Loop::on(&setup.image, Kind::Ext4);
    is_refused(&setup.launch, "is open in /dev/loop");
    drop(looped);
    is_refused(&setup.launch.clone().to("nbd://127.0.0.1:1/"), "another server's export");
    // By a symbolic link it is the same file, and stays a link to it.
    let link = setup.scratch.join("link");
    std::os::unix::fs::symlink(&setup.image, &link).expect("a link");
    let server = setup.launch.clone().to(argument(&link)).start();
    server.client().write(0, &crate::history::stamped(1), true).expect("a write");
    let (code, said) = (
        server.try_ask(&["policy", "write-back"]).status.code(),
        server.try_ask(&["policy", "at-limit=write-through"]).status.code(),
    );
    assert!(code != Some(0) && said != Some(0), "{code:?} {said:?}");
    assert_eq!(server.stop(), 0);
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    assert_eq!(setup.state().expect("it is whole")[0], 1);
}

#[test]
fn a_file_system_without_reflinks_and_a_device_are_refused() {
    let setup = Setup::on(Kind::Ext4, &[]);
    is_refused(&setup.launch, "cannot make a copy that shares its blocks");
    let left = setup.image.with_file_name(".volume.img.destage-next");
    assert!(!left.exists(), "nothing is left of the attempt");
    let disk = image(&setup.scratch.folder("device"), 1 << 20);
    let device = Loop::on(&disk, Kind::Ext4);
    let launch = setup.launch.clone().to(argument(device.path()));
    is_refused(&launch.redo_at(setup.scratch.join("redo")), "is a device");
}

#[test]
fn a_consistency_group_takes_no_snapshots() {
    let setup = Setup::on(Kind::Xfs, &[]);
    let file = setup.scratch.join("group.toml");
    let mut text = String::new();
    for (name, more) in [("a", "coordinator = true\n"), ("b", "")] {
        let origin = setup.image.with_file_name(name);
        fs::write(&origin, vec![0; 1 << 20]).expect("a file");
        let cache = setup.scratch.join(format!("{name}.cache"));
        text += &format!(
            "[volume.{name}]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\natomic = 'snapshot'\ngroup = 'g'\n{more}",
            origin.display(),
            cache.display()
        );
    }
    fs::write(&file, text).expect("a file");
    let output = crate::server::destage()
        .args(["block", "serve", "--admin", "none", "--listen"])
        .arg(format!("unix:{}", setup.scratch.join("group.sock").display()))
        .arg("--config")
        .arg(&file)
        .output()
        .expect("the binary starts");
    let said = crate::server::text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("consistency group needs redo stores"), "{said}");
}
