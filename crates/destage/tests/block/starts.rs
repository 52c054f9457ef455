//! A start that fails: it leaves no file that was not there, changes none that was, and attaches nothing for good.

use crate::disks::{Kind, Loop};
use crate::harness::Scratch;
use crate::history::stamped;
use crate::server::{Launch, image};
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

fn launch(scratch: &Scratch) -> (Launch, PathBuf) {
    let image = image(scratch, MIB);
    (Launch::before(scratch, &image.display().to_string()), image)
}

fn redo_of(image: &Path) -> PathBuf {
    PathBuf::from(format!("{}.destage", image.display()))
}

/// A port that somebody listens at.
fn taken() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    (listener, address)
}

#[test]
fn a_refused_start_leaves_no_file_behind() {
    let scratch = Scratch::new();
    let (launch, image) = launch(&scratch);
    let (_listener, taken) = taken();
    let missing = scratch.join("missing.img").display().to_string();
    let (missing, nowhere) = (missing.as_str(), scratch.join("no/recording").display().to_string());
    for (code, refused) in [
        (10, launch.clone().to(missing)),
        (10, launch.clone().to("nbd://127.0.0.1:1/none")),
        (15, launch.clone().listening(&taken)),
        (2, launch.clone().with(&["--record", &nowhere])),
        (13, launch.clone().with(&["--log-size", "80M"])),
        (2, launch.clone().with(&["--policy", "sideways"])),
    ] {
        let (ended, said) = refused.refused();
        assert_eq!(ended, code, "{said}");
        assert!(!launch.cache.exists() && !redo_of(&image).exists(), "{said}");
    }
    assert_eq!(launch.start().stop(), 0);
    assert!(launch.cache.exists() && redo_of(&image).exists());
}

#[test]
fn a_file_of_somebody_elses_stays_as_it_is() {
    let scratch = Scratch::new();
    let (launch, image) = launch(&scratch);
    for letter in [&b"dear all"[..], &[7; 100_000]] {
        fs::write(&launch.cache, letter).expect("a file");
        let (code, said) = launch.refused();
        assert!(code == 13 && said.contains("not empty"), "{code} {said}");
        assert!(fs::read(&launch.cache).expect("it is there") == letter, "{said}");
        assert!(!redo_of(&image).exists(), "{said}");
    }
}

#[test]
fn a_file_and_a_size_that_differ_are_said() {
    let scratch = Scratch::new();
    let (launch, _) = launch(&scratch);
    let made = File::create(&launch.cache).and_then(|file| file.set_len(256 * MIB));
    made.expect("an empty file");
    let (code, said) = launch.refused();
    assert!(code == 2 && said.contains("256M") && said.contains("64M"), "{code} {said}");
    assert_eq!(launch.clone().with(&["--cache-size", "256M"]).start().stop(), 0);
    let log = scratch.join("second.log");
    let second = launch.logging_to(log.clone()).with(&["--cache-size", "128M"]);
    assert_eq!(second.start().stop(), 0);
    let said = fs::read_to_string(log).expect("a log");
    assert!(said.contains("268435456") && said.contains("134217728"), "{said}");
}

#[test]
fn a_start_that_fails_attaches_nothing_for_good() {
    let scratch = Scratch::new();
    let (launch, image) = launch(&scratch);
    let server = launch.start();
    server.client().write(0, &stamped(1), true).expect("it is written");
    assert_eq!(server.stop(), 0);
    let warm = scratch.join("warm.img");
    fs::copy(&launch.cache, &warm).expect("a copy");
    let (_listener, taken) = taken();
    let (code, said) = launch.clone().with(&["--admin", &taken]).refused();
    assert_eq!(code, 15, "{said}");
    let (code, said) = launch.clone().listening(&taken).refused();
    assert_eq!(code, 15, "{said}");
    // A cache that knows of no further attachment than the copy is no older than the origin's record.
    fs::copy(&warm, &launch.cache).expect("it is put back");
    assert_eq!(launch.start().stop(), 0);
    // A recording that cannot be made is found before anything is attached.
    let files = || [&launch.cache, &redo_of(&image), &image].map(|path| fs::read(path).ok());
    let before = files();
    let nowhere = scratch.join("no/recording").display().to_string();
    let (code, said) = launch.clone().with(&["--record", &nowhere]).refused();
    assert_eq!(code, 2, "{said}");
    assert!(files() == before, "something was attached");
    let mut other = launch.clone();
    other.cache = scratch.join("other.img");
    let server = other.start();
    let mut block = vec![0; stamped(1).len()];
    server.client().read(0, &mut block).expect("it is read");
    assert!(block == stamped(1));
    assert_eq!(server.stop(), 0);
    assert!(image.exists());
}

#[test]
fn a_start_that_fails_at_its_second_volume_leaves_nothing_of_the_first() {
    let scratch = Scratch::new();
    let (first, second) = (scratch.join("first.img"), scratch.join("second.img"));
    File::create(&first).and_then(|file| file.set_len(MIB)).expect("an image");
    let (one, two) = (scratch.join("one.cache"), scratch.join("two.cache"));
    let file = scratch.join("destage.toml");
    let text = format!(
        "[volume.first]\norigin = '{}'\ncache = '{}'\ncache-size = '64M'\n[volume.second]\norigin = '{}'\ncache = '{}'\n\
         cache-size = '64M'\n",
        first.display(),
        one.display(),
        second.display(),
        two.display()
    );
    fs::write(&file, text).expect("a settings file");
    let start = || {
        let mut command = crate::server::destage();
        let socket = format!("unix:{}", scratch.join("s").display());
        command.args(["block", "serve", "--admin", "127.0.0.1:0", "--listen", &socket, "--config"]);
        command.arg(&file).args(["--run", "true"]).output().expect("the binary starts")
    };
    let refused = start();
    let said = crate::server::text(&refused.stderr);
    assert!(refused.status.code() == Some(10) && said.contains("'second'"), "{said}");
    for left in [&one, &two, &redo_of(&first), &redo_of(&second)] {
        assert!(!left.exists(), "{}", left.display());
    }
    File::create(&second).and_then(|file| file.set_len(MIB)).expect("an image");
    assert_eq!(start().status.code(), Some(0));
    for made in [&one, &two, &redo_of(&first), &redo_of(&second)] {
        assert!(made.exists(), "{}", made.display());
    }
}

#[test]
fn a_folder_that_cannot_be_mounted_on_is_found_before_anything_is_attached() {
    let scratch = Scratch::new();
    let (launch, image) = launch(&scratch);
    let full = scratch.join("full");
    fs::create_dir(&full)
        .and_then(|()| fs::write(full.join("letter"), "dear all"))
        .expect("a folder");
    let nowhere = scratch.join("no/folder").display().to_string();
    let full = full.display().to_string();
    for folder in [&full, &nowhere] {
        let (code, said) = launch.clone().with(&["--fuse", folder]).refused();
        assert_eq!(code, 2, "{said}");
        assert!(!launch.cache.exists() && !redo_of(&image).exists(), "{said}");
    }
    assert_eq!(launch.start().stop(), 0);
    let warm = scratch.join("warm.img");
    fs::copy(&launch.cache, &warm).expect("a copy");
    assert_eq!(launch.clone().with(&["--fuse", &full]).refused().0, 2);
    fs::copy(&warm, &launch.cache).expect("it is put back");
    assert_eq!(launch.start().stop(), 0);
}

/// > unless told 4G, or all of a smaller device
#[test]
fn a_cache_takes_all_of_a_device_that_is_smaller_than_the_default() {
    if !Kind::Ext4.is_known() {
        return;
    }
    let scratch = Scratch::new();
    let (launch, _) = launch(&scratch);
    let file = scratch.join("device.img");
    File::create(&file).and_then(|file| file.set_len(1 << 30)).expect("a file");
    let device = Loop::on(&file, Kind::Ext4);
    let launch = launch.on_cache(device.path());
    let server = launch.start();
    // A quarter of the cache is its log.
    let log = server.status()["volumes"][0]["log_bytes_max"].as_u64().expect("a number");
    assert!((240 << 20..=256 << 20).contains(&log), "{log}");
    assert_eq!(server.stop(), 0);
    // It is a cache now, and goes on as one.
    assert_eq!(launch.start().stop(), 0);
}

#[test]
fn a_first_start_that_was_killed_at_any_moment_is_taken_up_by_the_next() {
    let scratch = Scratch::new();
    for millis in [0, 5, 10, 20, 40, 80, 160] {
        let folder = scratch.folder(&format!("after-{millis}"));
        let (launch, _) = launch(&folder);
        launch.killed_after(std::time::Duration::from_millis(millis));
        assert_eq!(launch.start().stop(), 0, "killed after {millis} ms");
    }
}

#[test]
fn of_two_starts_at_once_with_one_cache_the_loser_does_not_remove_it() {
    let scratch = Scratch::new();
    for turn in 0..8 {
        let folder = scratch.folder(&turn.to_string());
        let cache = folder.join("cache.img");
        let run = |name: &str| {
            let origin = folder.join(format!("{name}.img"));
            File::create(&origin).and_then(|file| file.set_len(MIB)).expect("an image");
            let mut command = crate::server::destage();
            let socket = format!("unix:{}", folder.join(name).display());
            command.args([
                "block",
                "serve",
                "--admin",
                "127.0.0.1:0",
                "--cache-size",
                "64M",
                "--listen",
            ]);
            command.arg(socket).arg("--origin").arg(origin).arg("--cache").arg(&cache);
            // Both are there at once, however the first one ends.
            let there = format!("test -e '{}' && sleep 1", cache.display());
            command.args(["--run", &there]).stdout(std::process::Stdio::null());
            command.stderr(std::process::Stdio::null()).spawn().expect("the binary starts")
        };
        let ended =
            [run("first"), run("second")].map(|mut child| child.wait().expect("it is ours"));
        let served = ended.iter().filter(|status| status.code() == Some(0)).count();
        assert!(served == 1 && cache.exists(), "{ended:?}");
    }
}
