//! Volumes as files: what a file does, and real file systems on loop devices.

use crate::disks::{Folder, Kind, Loop, Mounted, argument, run};
use crate::harness::{PATIENCE, Random, Scratch, eventually};
use crate::history::stamped;
use crate::server::{Launch, Server, image};
use rustix::fs::FallocateFlags;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn launch(scratch: &Scratch, folder: &Folder, bytes: u64) -> Launch {
    let image = image(scratch, bytes);
    Launch::before(scratch, &format!("file:{}", image.display())).with(&folder.flags())
}

fn open(folder: &Folder) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(folder.file())
}

fn block(file: &File, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, offset).expect("a read");
    bytes
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.err().expect("it is refused").raw_os_error().expect("an errno")
}

/// Destages nothing by itself.
const LATER: [&str; 4] = ["--when", "pressure", "--staleness", "1h"];

/// > A write that has returned is in the volume and never only in the kernel's page cache, so NBD clients see it.
#[test]
fn a_volume_is_a_file_with_the_same_promises() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch = launch(&scratch, &folder, 8 * MIB).with(&LATER);
    let server = launch.start();
    let file = open(&folder).expect("the file is there");
    assert_eq!(file.metadata().expect("attributes").len(), 8 * MIB);
    let client = server.client();
    for number in 1..20 {
        file.write_all_at(&stamped(number), 4096).expect("a write");
        let mut seen = vec![0; 4096];
        client.read(4096, &mut seen).expect("a read");
        assert_eq!(seen, stamped(number));
        client.write(8192, &stamped(number), false).expect("a write");
        assert_eq!(block(&file, 8192), stamped(number));
    }
    // Any alignment, and several blocks at a time.
    let long: Vec<u8> = (0..300_001_u32).map(|n| (n % 251) as u8).collect();
    file.write_all_at(&long, MIB + 777).expect("a write");
    let mut seen = vec![0; long.len()];
    file.read_exact_at(&mut seen, MIB + 777).expect("a read");
    assert!(seen == long, "what was written comes back");
    file.sync_all().expect("a flush");
    let durable = OpenOptions::new().write(true).custom_flags(libc_o_dsync()).open(folder.file());
    durable.expect("it opens").write_all_at(&stamped(77), 5 * MIB).expect("a durable write");
    server.kill();
    let server = launch.start();
    let file = open(&folder).expect("the folder is mounted again");
    assert_eq!(block(&file, 4096), stamped(19), "what was synced survives");
    assert_eq!(block(&file, 5 * MIB), stamped(77), "what was written durably survives");
    drop(file);
    assert_eq!(server.stop(), 0);
    assert!(!folder.file().exists(), "the folder was unmounted");
}

fn libc_o_dsync() -> i32 {
    rustix::fs::OFlags::DSYNC.bits().cast_signed()
}

#[test]
fn a_volume_as_a_file_has_a_fixed_size_and_takes_holes_and_zeroes() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let server = launch(&scratch, &folder, 8 * MIB).start();
    let file = open(&folder).expect("the file is there");
    file.write_all_at(&vec![7; MIB as usize], 0).expect("a write");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).expect("a hole");
    rustix::fs::fallocate(&file, FallocateFlags::ZERO_RANGE, 65_536 + 100, 50).expect("zeroes");
    assert_eq!(block(&file, 0), vec![7; 4096]);
    assert_eq!(block(&file, 4096), vec![0; 4096]);
    assert_eq!(block(&file, 8192), vec![0; 4096]);
    assert_eq!(block(&file, 12_288), vec![7; 4096]);
    let edge = block(&file, 65_536);
    assert!(edge[..100].iter().chain(&edge[150..]).all(|&byte| byte == 7), "only the range");
    assert_eq!(edge[100..150], [0; 50]);
    let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096);
    assert_eq!(reserved, Err(rustix::io::Errno::OPNOTSUPP));
    // The end is where it is.
    assert_eq!(file.write_at(&[1; 4096], 8 * MIB - 100).expect("a short write"), 100);
    assert_eq!(errno(file.write_at(&[1], 8 * MIB)), 28, "ENOSPC");
    assert_eq!(file.read_at(&mut [0; 4096], 8 * MIB - 100).expect("a short read"), 100);
    assert_eq!(file.read_at(&mut [0; 1], 8 * MIB).expect("the end"), 0);
    assert_eq!(errno(file.set_len(MIB)), 1, "EPERM");
    assert!(File::create(folder.path().join("other")).is_err(), "there is nothing to create");
    assert!(std::fs::remove_file(folder.file()).is_err(), "there is nothing to remove");
    let names = std::fs::read_dir(folder.path()).expect("a folder");
    let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, ["disk"]);
    drop(file);
    assert_eq!(server.stop(), 0);
}

/// > An origin may grow while no server uses it: the next start takes its new size up and says so.
#[test]
fn the_file_of_a_volume_has_grown_with_its_origin() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch = launch(&scratch, &folder, 8 * MIB);
    let server = launch.start();
    let file = open(&folder).expect("the file is there");
    file.write_all_at(&stamped(1), 8 * MIB - 4096).expect("a write");
    drop(file);
    assert_eq!(server.stop(), 0);
    let origin = OpenOptions::new().write(true).open(scratch.join("disk.img")).expect("the origin");
    origin.set_len(12 * MIB).expect("it grows");
    let server = launch.start();
    let file = open(&folder).expect("the file is there");
    assert_eq!(file.metadata().expect("attributes").len(), 12 * MIB);
    file.write_all_at(&stamped(2), 12 * MIB - 4096).expect("a write behind the old end");
    file.sync_all().expect("a flush");
    assert_eq!(block(&file, 8 * MIB - 4096), stamped(1));
    assert_eq!(block(&file, 12 * MIB - 4096), stamped(2));
    assert_eq!(block(&file, 8 * MIB), vec![0; 4096]);
    assert_eq!(file.read_at(&mut [0; 1], 12 * MIB).expect("the end"), 0);
    drop(file);
    assert_eq!(server.stop(), 0);
    let bytes = std::fs::read(scratch.join("disk.img")).expect("the image can be read");
    assert!(bytes.ends_with(&stamped(2)));
}

#[test]
fn each_volume_is_a_file_of_its_own() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let other = scratch.folder("other");
    let second = image(&other, 4 * MIB);
    let config = scratch.join("destage.toml");
    let section = format!(
        "[volume.second]\norigin = 'file:{}'\ncache = '{}'\ncache-size = '64M'\n",
        second.display(),
        other.join("cache.img").display()
    );
    std::fs::write(&config, section).expect("a settings file");
    let launch = launch(&scratch, &folder, 8 * MIB).with(&["--config", argument(&config)]);
    let server = launch.start();
    let files = ["disk", "second"].map(|name| folder.path().join(name));
    for (file, number) in files.iter().zip([1, 2]) {
        let file = OpenOptions::new().write(true).open(file).expect("the file is there");
        file.write_all_at(&stamped(number), 4096).expect("a write");
        file.sync_all().expect("a flush");
    }
    let sizes = files.map(|file| std::fs::metadata(file).expect("attributes").len());
    assert_eq!(sizes, [8 * MIB, 4 * MIB]);
    assert_eq!(server.stop(), 0);
    for (origin, number) in [(scratch.join("disk.img"), 1), (second, 2)] {
        assert_eq!(block(&File::open(origin).expect("the image"), 4096), stamped(number));
    }
}

#[test]
fn a_volume_that_may_only_be_read_is_a_file_that_may_only_be_read() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let server = launch(&scratch, &folder, 8 * MIB).with(&["--read-only"]).start();
    assert_eq!(errno(open(&folder)), 30, "EROFS");
    assert_eq!(block(&File::open(folder.file()).expect("it opens"), 0), vec![0; 4096]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_file_in_use_is_served_until_it_is_closed() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let mut server = launch(&scratch, &folder, 8 * MIB).start();
    let file = open(&folder).expect("the file is there");
    server.terminate();
    eventually("no one else is let in", PATIENCE, || open(&folder).is_err());
    file.write_all_at(&stamped(5), 0).expect("writes go on");
    file.sync_all().expect("flushes go on");
    assert_eq!(block(&file, 0), stamped(5));
    drop(file);
    assert_eq!(server.wait(), 0);
    let origin = File::open(scratch.join("disk.img")).expect("the image");
    assert_eq!(block(&origin, 0), stamped(5), "the last write was destaged as well");
}

#[test]
fn a_file_that_is_never_closed_does_not_keep_the_server_for_ever() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let mut server = launch(&scratch, &folder, 8 * MIB).with(&["--drain-timeout", "1s"]).start();
    let file = open(&folder).expect("the file is there");
    server.terminate();
    assert_eq!(server.wait(), 0);
    assert!(!folder.file().exists(), "the folder was unmounted");
    assert!(file.read_at(&mut [0; 1], 0).is_err(), "nobody serves it any more");
}

#[test]
fn the_mount_of_a_killed_server_is_taken_away_by_the_next() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch = launch(&scratch, &folder, 8 * MIB);
    let server = launch.start();
    let file = open(&folder).expect("the file is there");
    file.write_all_at(&stamped(3), 0).expect("a write");
    file.sync_all().expect("a flush");
    server.kill();
    assert!(std::fs::metadata(folder.path()).is_err(), "a dead mount is left");
    assert!(file.read_at(&mut [0; 1], 0).is_err(), "it answers with errors");
    let server = launch.start();
    assert_eq!(block(&open(&folder).expect("it is there again"), 0), stamped(3));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_with_a_reason() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    std::fs::create_dir(folder.path()).expect("a folder");
    let precious = folder.path().join("precious");
    std::fs::write(&precious, "content").expect("a file");
    let launch = launch(&scratch, &folder, 8 * MIB);
    let (code, said) = launch.refused();
    assert!(code == 2 && said.contains("not empty"), "{code}: {said}");
    std::fs::remove_file(&precious).expect("it is removed");
    let server = launch.start();
    let other = scratch.folder("other");
    let image = image(&other, 8 * MIB);
    let second = Launch::before(&other, &format!("file:{}", image.display()));
    let (code, said) = second.with(&folder.flags()).refused();
    assert!(code == 15 && said.contains("another process has mounted"), "{code}: {said}");
    assert_eq!(server.stop(), 0, "the first one goes on");
}

#[test]
fn run_names_the_file() {
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch = launch(&scratch, &folder, 8 * MIB);
    let copy =
        format!("dd if=/dev/zero of=\"$file\" bs=1M count=2 conv=notrunc,fsync && exit {}", 9);
    let (code, said) = launch.with(&["--run", &copy]).refused();
    assert!(code == 9 && said.contains("the command ended with 9"), "{code}: {said}");
    assert!(!folder.file().exists(), "the folder was unmounted");
}

/// What stands in each file.
type Contents = BTreeMap<String, Vec<u8>>;

/// Writes small and large files in some folders.
fn fill(folder: &Path, random: &mut Random) -> Contents {
    let mut contents = Contents::new();
    for number in 0..60 {
        let name = format!("d{}/f{number}", number % 7);
        let len = random.between(0, 40_000) as usize;
        let bytes: Vec<u8> = random.next().to_le_bytes().into_iter().cycle().take(len).collect();
        let path = folder.join(&name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, &bytes).expect("a file");
        contents.insert(name, bytes);
    }
    contents
}

fn assert_holds(folder: &Path, contents: &Contents) {
    for (name, bytes) in contents {
        assert!(std::fs::read(folder.join(name)).expect("a file") == *bytes, "{name} differs");
    }
}

/// What the image takes on its disk, bytes.
fn allocated(server: &Server, image: &Path) -> u64 {
    server.ask(&["drain"]);
    std::fs::metadata(image).expect("the image").blocks() * 512
}

/// A file system is made, used, trimmed, mounted again and checked, through the cache and without it.
fn lives_on_a_volume(kind: Kind, policy: &str) {
    if !kind.is_known() {
        return;
    }
    let scratch = Scratch::new();
    let folder = Folder::new(&scratch);
    let launch = launch(&scratch, &folder, kind.disk_bytes());
    let server =
        launch.with(&["--cache-size", "256M", "--linger", "0", "--policy", policy]).start();
    let origin = scratch.join("disk.img");
    let device = Loop::on(&folder.file(), kind);
    kind.make(device.path());
    let mut random = Random::new(1, kind as u64);
    let mounted = Mounted::new(&scratch, device.path(), "noatime").expect("it mounts");
    let contents = fill(mounted.path(), &mut random);
    let large = mounted.path().join("large");
    std::fs::write(&large, vec![9; 24 << 20]).expect("a file");
    run("sync", &["--file-system", argument(mounted.path())]).expect("it syncs");
    let before = allocated(&server, &origin);
    std::fs::remove_file(&large).expect("it is removed");
    // A file system may let go of the space a moment later.
    eventually("trimming gives space back", PATIENCE, || {
        run("sync", &["--file-system", argument(mounted.path())]).expect("it syncs");
        run("fstrim", &[argument(mounted.path())]).expect("it trims");
        allocated(&server, &origin) + (20 << 20) < before
    });
    mounted.unmount().expect("it unmounts");
    kind.check(device.path()).expect("it is sound");
    let mounted = Mounted::new(&scratch, device.path(), "noatime").expect("it mounts again");
    assert_holds(mounted.path(), &contents);
    mounted.unmount().expect("it unmounts");
    drop(device);
    assert_eq!(server.stop(), 0);
    kind.check(&origin).expect("it is sound at the origin");
    let device = Loop::on(&origin, kind);
    let mounted = Mounted::new(&scratch, device.path(), "ro").expect("the origin mounts");
    assert_holds(mounted.path(), &contents);
}

#[test]
fn ext4_lives_on_a_volume() {
    lives_on_a_volume(Kind::Ext4, "journaled");
}

#[test]
fn xfs_lives_on_a_volume() {
    lives_on_a_volume(Kind::Xfs, "ordered");
}

#[test]
fn btrfs_lives_on_a_volume() {
    lives_on_a_volume(Kind::Btrfs, "write-back");
}
