use super::*;
use crate::block::BLOCK;
use destage_testkit::needs::skip;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tempfile::TempDir;

fn disk(bytes: usize) -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk");
    std::fs::write(&path, vec![1; bytes]).unwrap();
    (folder, path)
}

fn inject(origin: &FileOrigin, call: Call, error: i32) {
    *origin.fault.lock().unwrap() = Some((call, io::Error::from_raw_os_error(error)));
}

#[test]
fn bytes_written_are_read_and_a_range_zeroed_reads_as_zeros() {
    let (_folder, path) = disk(16 * BLOCK + 100);
    let origin = FileOrigin::open(&path).unwrap();
    assert_eq!(origin.size(), 16 * BLOCK as u64 + 100);
    origin.write(5_000, b"new").unwrap();
    origin.zero(8_192, 8_192, true).unwrap();
    origin.zero(20_000, 300, false).unwrap();
    origin.flush().unwrap();
    let mut expected = vec![1; 16 * BLOCK + 100];
    expected[5_000..5_003].copy_from_slice(b"new");
    expected[8_192..16_384].fill(0);
    expected[20_000..20_300].fill(0);
    let mut read = vec![0; expected.len()];
    origin.read(0, &mut read).unwrap();
    assert!(read == expected);
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn a_punched_range_gives_its_space_back_where_the_file_system_can() {
    let (_folder, path) = disk(1 << 20);
    let origin = FileOrigin::open(&path).unwrap();
    origin.flush().unwrap();
    origin.zero(0, 1 << 20, true).unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.len(), 1 << 20);
    if !origin.no_punch.load(Ordering::Relaxed) {
        assert_eq!(meta.blocks(), 0, "{meta:?}");
    }
}

#[test]
fn without_any_way_to_deallocate_zeros_are_written() {
    let (_folder, path) = disk(3 << 20);
    let origin = FileOrigin::open(&path).unwrap();
    origin.no_punch.store(true, Ordering::Relaxed);
    origin.no_zero_range.store(true, Ordering::Relaxed);
    origin.zero(100, (2 << 20) + 1, true).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..100].iter().all(|&b| b == 1));
    assert!(bytes[100..(2 << 20) + 101].iter().all(|&b| b == 0));
    assert!(bytes[(2 << 20) + 101..].iter().all(|&b| b == 1));
}

#[test]
fn nothing_reaches_beyond_the_end() {
    let (_folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    let mut buf = [0; 2];
    for result in [
        origin.read(8_191, &mut buf),
        origin.write(8_191, &buf),
        origin.write(u64::MAX, &buf),
        origin.zero(8_000, 193, true),
    ] {
        let refused = result.unwrap_err();
        assert_eq!(refused.kind, OriginIoErrorKind::Denied);
        assert!(refused.message.contains("reach beyond"), "{refused}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8_192);
}

#[test]
fn a_file_that_shrank_is_noticed_before_a_write_makes_it_grow() {
    let (_folder, path) = disk(65_536);
    let origin = FileOrigin::open(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
    let mut buf = [0; 4_096];
    for result in [
        origin.read(8_192, &mut buf),
        origin.write(60_000, &buf),
        origin.zero(0, 100, true),
        origin.flush(),
    ] {
        let refused = result.unwrap_err();
        assert_eq!(refused.kind, OriginIoErrorKind::Denied);
        assert!(refused.message.contains("has shrunk from 65536 to 10000"), "{refused}");
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 10_000);
}

#[test]
fn errors_say_what_follows_from_them() {
    let cases = [
        (libc::ENOSPC, OriginIoErrorKind::Denied),
        (libc::EACCES, OriginIoErrorKind::Denied),
        (libc::EROFS, OriginIoErrorKind::Denied),
        (libc::EIO, OriginIoErrorKind::Failed),
        (libc::EBADE, OriginIoErrorKind::Fenced),
        (libc::ESTALE, OriginIoErrorKind::Unavailable),
        (libc::ENODEV, OriginIoErrorKind::Unavailable),
        (libc::ETIMEDOUT, OriginIoErrorKind::Unavailable),
    ];
    let (_folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    let mut buf = [0; 512];
    for (code, kind) in cases {
        inject(&origin, Call::Write, code);
        let error = origin.write(0, &buf).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert!(error.message.contains("write 512 bytes at 0 of"), "{error}");
        origin.write(0, &buf).unwrap();
        inject(&origin, Call::Read, code);
        assert_eq!(origin.read(0, &mut buf).unwrap_err().kind, kind);
        inject(&origin, Call::ZeroRange, code);
        assert_eq!(origin.zero(0, 4_096, false).unwrap_err().kind, kind);
        inject(&origin, Call::Punch, code);
        assert_eq!(origin.zero(0, 4_096, true).unwrap_err().kind, kind);
    }
}

#[test]
fn a_flush_that_failed_is_never_made_good_by_the_next_one() {
    let (_folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    let before = origin.losses();
    origin.write(0, &[2; 512]).unwrap();
    inject(&origin, Call::Sync, libc::EIO);
    assert_eq!(origin.flush().unwrap_err().kind, OriginIoErrorKind::Failed);
    // Who waits for durability of the write above sees it here, whatever the flush below says.
    origin.flush().unwrap();
    assert_ne!(origin.losses(), before);
}

#[test]
fn a_device_that_went_away_and_came_back_may_have_lost_what_was_not_flushed() {
    let (_folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    origin.write(0, &[2; 512]).unwrap();
    inject(&origin, Call::Read, libc::ENODEV);
    let mut buf = [0; 512];
    assert_eq!(origin.read(0, &mut buf).unwrap_err().kind, OriginIoErrorKind::Unavailable);
    origin.read(0, &mut buf).unwrap();
    assert_eq!(buf, [2; 512]);
    assert_eq!(origin.losses(), 1);
    let lost = origin.flush().unwrap_err();
    assert!(lost.message.contains("written again"), "{lost}");
    origin.flush().unwrap();
}

#[test]
fn another_file_under_the_same_name_is_not_taken_for_the_one_that_went_away() {
    let (folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    std::fs::write(folder.path().join("other"), [3; 8_192]).unwrap();
    std::fs::rename(folder.path().join("other"), &path).unwrap();
    inject(&origin, Call::Read, libc::ESTALE);
    let mut buf = [0; 512];
    origin.read(0, &mut buf).unwrap_err();
    let refused = origin.read(0, &mut buf).unwrap_err();
    assert_eq!(refused.kind, OriginIoErrorKind::Denied);
    assert!(refused.message.contains("no longer what was opened"), "{refused}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(origin.read(0, &mut buf).unwrap_err().kind, OriginIoErrorKind::Unavailable);
}

#[test]
fn a_created_file_is_private_whole_and_never_replaces_another_one() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("new");
    let origin = FileOrigin::create(&path, 100_000).unwrap();
    assert_eq!(origin.size(), 100_000);
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    drop(origin);
    let refused = FileOrigin::create(&path, 100_000).unwrap_err();
    assert!(refused.message.contains("create"), "{refused}");
    let nowhere = FileOrigin::create(&folder.path().join("absent/new"), 4_096).unwrap_err();
    assert_eq!(nowhere.kind, OriginIoErrorKind::Denied);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_file_that_was_being_created_at_a_crash_has_no_name_yet_and_is_created_anew() {
    let folder = TempDir::new().unwrap();
    let (path, fresh) = (folder.path().join("disk"), folder.path().join("disk.destage-unfinished"));
    for left in [0, 10, 200_000] {
        std::fs::write(&fresh, vec![7; left]).unwrap();
        let held = File::open(&fresh).unwrap();
        held.lock().unwrap();
        let refused = FileOrigin::create(&path, 100_000).unwrap_err();
        assert!(refused.message.contains("locked by another process"), "{refused}");
        drop(held);
        let origin = FileOrigin::create(&path, 100_000).unwrap();
        let mut bytes = vec![1; 100_000];
        origin.read(0, &mut bytes).unwrap();
        assert!(origin.size() == 100_000 && bytes.iter().all(|&byte| byte == 0) && !fresh.exists());
        drop(origin);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_identity_tells_files_apart_and_changes_with_them() {
    let (folder, path) = disk(8_192);
    let other = folder.path().join("other");
    std::fs::write(&other, [1; 8_192]).unwrap();
    let origin = FileOrigin::open(&path).unwrap();
    let first = origin.identity().unwrap();
    assert_ne!(first.store, FileOrigin::open(&other).unwrap().identity().unwrap().store);
    assert_eq!(first, origin.identity().unwrap());
    let stamp = std::time::UNIX_EPOCH + std::time::Duration::from_secs(77);
    File::options().write(true).open(&path).unwrap().set_modified(stamp).unwrap();
    assert_eq!(origin.identity().unwrap().modified_ns, Some(77_000_000_000));
}

/// A loop device over a file; gone when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let made = std::process::Command::new("losetup").args(["--show", "-f"]).arg(file).output();
        let made = made.ok().filter(|made| made.status.success())?;
        Some(Self(String::from_utf8(made.stdout).unwrap().trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_an_origin_like_a_file() {
    let (_folder, path) = disk(1 << 20);
    let Some(device) = Loop::over(&path) else {
        skip("loop devices by losetup");
        return;
    };
    let origin = FileOrigin::open(&device.0).unwrap();
    assert_eq!(origin.size(), 1 << 20);
    assert!(origin.identity().unwrap().store.starts_with("block device"));
    // Not even the superuser opens it twice.
    FileOrigin::open(&device.0).unwrap_err();
    origin.write(4_096, &[7; 8_192]).unwrap();
    origin.zero(8_192, 4_096, true).unwrap();
    origin.zero(65_536, 4_096, false).unwrap();
    // Too small a range for the device to do it by itself.
    origin.zero(20_000, 100, true).unwrap();
    origin.flush().unwrap();
    let mut expected = vec![1; 1 << 20];
    expected[4_096..12_288].fill(7);
    expected[8_192..12_288].fill(0);
    expected[65_536..69_632].fill(0);
    expected[20_000..20_100].fill(0);
    let mut read = vec![0; expected.len()];
    origin.read(0, &mut read).unwrap();
    assert!(read == expected);
    origin.write((1 << 20) - 1, &[1, 2]).unwrap_err();
    drop(origin);
    drop(device);
    assert!(std::fs::read(&path).unwrap() == expected);
}

#[test]
fn what_was_added_counts_once_it_is_taken_up() {
    let (_folder, path) = disk(8_192);
    let origin = FileOrigin::open(&path).unwrap();
    assert_eq!(origin.take_up_growth().unwrap(), 8_192);
    let set_len = |bytes| File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    set_len(12_288);
    assert_eq!(origin.size(), 8_192);
    origin.write(8_192, &[1; 512]).unwrap_err();
    inject(&origin, Call::Sync, libc::EIO);
    origin.take_up_growth().unwrap_err();
    assert_eq!(origin.size(), 8_192, "a crash could take it back");
    assert_eq!(origin.take_up_growth().unwrap(), 12_288);
    origin.write(8_192, &[1; 512]).unwrap();
    assert_eq!(origin.identity().unwrap().size, 12_288);
    set_len(8_192);
    let refused = origin.take_up_growth().unwrap_err();
    assert_eq!((refused.kind, origin.size()), (OriginIoErrorKind::Denied, 12_288));
    assert!(refused.message.contains("has shrunk from 12288 to 8192"), "{refused}");
}
