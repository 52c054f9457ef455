//! Files by their handles, on the file system of temporary files.

use super::*;

fn origin() -> (tempfile::TempDir, LocalOrigin) {
    let folder = tempfile::tempdir().unwrap();
    let origin = LocalOrigin::open(folder.path()).unwrap();
    (folder, origin)
}

#[test]
fn a_file_is_found_by_its_handle_wherever_it_is_called() {
    let (folder, origin) = origin();
    let root = origin.root();
    let (file, stat) = origin.make(&root, b"a", &Make::File).unwrap();
    assert_eq!((stat.mode, stat.size, stat.nlink), (0o600, 0, 1));
    origin.write(&file, 3, b"later").unwrap();
    origin.make(&root, b"d", &Make::Dir).unwrap();
    std::fs::rename(folder.path().join("a"), folder.path().join("d/b")).unwrap();
    assert_eq!(origin.read(&file, 0, 100).unwrap(), b"\0\0\0later");
    std::fs::remove_file(folder.path().join("d/b")).unwrap();
    assert_eq!(origin.stat(&file), Err(Errno::STALE));
}

#[test]
fn the_longest_file_is_one_that_can_be_made() {
    let (_folder, origin) = origin();
    let (file, _) = origin.make(&origin.root(), b"a", &Make::File).unwrap();
    let longest = origin.longest(&file).unwrap();
    origin.truncate(&file, longest).unwrap();
    assert!(origin.truncate(&file, longest + 1).is_err());
}

/// Nobody can write what is being executed. That it was read meanwhile does not keep it from being written later.
#[test]
fn what_was_read_while_it_was_executed_can_be_written_later() {
    let (folder, origin) = origin();
    std::fs::copy("/bin/sleep", folder.path().join("tool")).unwrap();
    let (file, _) = origin.lookup(&origin.root(), b"tool").unwrap();
    for is_pinned in [false, true] {
        let mut running =
            std::process::Command::new(folder.path().join("tool")).arg("60").spawn().unwrap();
        if is_pinned {
            origin.files.forget(&file.handle);
            origin.pin(&file).unwrap();
        }
        assert_eq!(origin.read(&file, 1, 3).unwrap(), b"ELF");
        let busy = Err(Errno(libc::ETXTBSY));
        assert_eq!(origin.write(&file, 1, b"ELF"), busy, "pinned: {is_pinned}");
        assert_eq!(origin.truncate(&file, 9), busy);
        running.kill().unwrap();
        running.wait().unwrap();
        origin.write(&file, 1, b"ELF").unwrap();
        origin.files.forget(&file.handle);
    }
}

#[test]
fn what_is_pinned_outlives_its_name() {
    let (_folder, origin) = origin();
    let root = origin.root();
    let (file, _) = origin.make(&root, b"a", &Make::File).unwrap();
    origin.write(&file, 0, b"kept").unwrap();
    origin.pin(&file).unwrap();
    origin.unlink(&root, b"a").unwrap();
    assert_eq!(origin.read(&file, 0, 9).unwrap(), b"kept");
    origin.unpin(&file);
    assert_eq!(origin.read(&file, 0, 9), Err(Errno::STALE));
}

#[test]
fn attributes_and_names_are_as_they_were_set() {
    let (_folder, origin) = origin();
    let root = origin.root();
    let (file, _) = origin.make(&root, b"a", &Make::File).unwrap();
    let time = Moment { seconds: 1_000_000_000, nanos: 123_456_789 };
    let set =
        Attributes { mode: Some(0o4751), owner: Some((7, 8)), mtime: Some(time), atime: None };
    origin.set(&file, &set).unwrap();
    let stat = origin.stat(&file).unwrap();
    assert_eq!((stat.mode, stat.uid, stat.gid, stat.mtime), (0o4751, 7, 8, time));
    origin.link(&file, &root, b"b").unwrap();
    assert_eq!(origin.rename(&root, b"a", &root, b"b", false), Err(Errno::EXIST));
    origin.rename(&root, b"a", &root, b"c", false).unwrap();
    let mut names: Vec<_> =
        origin.list(&root).unwrap().into_iter().map(|listed| listed.name).collect();
    names.sort();
    assert_eq!(names, [b"b"[..].into(), b"c"[..].into()]);
    let (link, _) = origin.make(&root, b"l", &Make::Link(b"to/there"[..].into())).unwrap();
    assert_eq!(origin.read_link(&link).unwrap(), b"to/there");
    origin.link(&link, &root, b"l2").unwrap();
    origin.set(&link, &Attributes { mtime: Some(time), ..Attributes::default() }).unwrap();
    assert_eq!(origin.stat(&link).unwrap().nlink, 2);
    origin.set_xattr(&file, b"user.colour", b"red").unwrap();
    assert_eq!(origin.xattr(&file, b"user.colour").unwrap(), b"red");
    assert_eq!(origin.xattrs(&file).unwrap(), b"user.colour\0");
    origin.remove_xattr(&file, b"user.colour").unwrap();
    assert_eq!(origin.xattr(&file, b"user.colour"), Err(Errno::NODATA));
}

#[test]
fn a_symbolic_link_has_attributes_of_its_own() {
    let (_folder, origin) = origin();
    let root = origin.root();
    origin.make(&root, b"there", &Make::File).unwrap();
    let (link, _) = origin.make(&root, b"link", &Make::Link(b"there"[..].into())).unwrap();
    origin.set_xattr(&link, b"trusted.colour", b"red").unwrap();
    assert_eq!(origin.xattr(&link, b"trusted.colour").unwrap(), b"red");
    assert_eq!(origin.xattrs(&link).unwrap(), b"trusted.colour\0");
    let (there, _) = origin.lookup(&root, b"there").unwrap();
    assert_eq!(origin.xattr(&there, b"trusted.colour"), Err(Errno::NODATA));
    // Who may read a link says nothing: the kernel has no attributes of users there.
    assert_eq!(origin.set_xattr(&link, b"user.colour", b"red"), Err(Errno::PERM));
    origin.remove_xattr(&link, b"trusted.colour").unwrap();
    assert_eq!(origin.xattr(&link, b"trusted.colour"), Err(Errno::NODATA));
}

/// Where holes cannot be punched, a file of a terabyte that is mostly a hole is not filled with zeros.
#[test]
fn what_becomes_zeros_without_punching_leaves_holes_as_they_are() {
    let (_folder, origin) = origin();
    let (file, _) = origin.make(&origin.root(), b"a", &Make::File).unwrap();
    let far = 1 << 40;
    origin.write(&file, 0, b"first").unwrap();
    origin.write(&file, far, b"last").unwrap();
    let before = origin.stat(&file).unwrap();
    origin.write_zeros(&file, 3, far + 2).unwrap();
    let after = origin.stat(&file).unwrap();
    assert_eq!((after.size, after.blocks), (before.size, before.blocks));
    assert_eq!(origin.read(&file, 0, 8).unwrap(), b"fir\0\0\0\0\0");
    assert_eq!(origin.read(&file, far, 8).unwrap(), b"\0\0st");
    // Behind its end nothing is written.
    origin.write_zeros(&file, far, u64::MAX).unwrap();
    assert_eq!(origin.stat(&file).unwrap().size, before.size);
    assert_eq!(origin.read(&file, far, 8).unwrap(), b"\0\0\0\0");
}
