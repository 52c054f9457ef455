//! What a run that was killed left on this machine: a mount whose server is gone makes `mkfs.btrfs` fail whatever it is asked
//! for, since it looks through all mounts, and what they mount, first.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Takes away the mounts of `destage`, and those of the file systems of its tests and benchmarks, that nobody serves any more,
/// with the loop devices on them. Mounts that are served stay, whoever serves them.
pub(crate) fn remove() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let ours = mounts.lines().filter_map(Mount::read);
    let (files, others): (Vec<_>, Vec<_>) = ours.partition(Mount::is_of_destage);
    for dead in files.iter().filter(|mount| mount.is_dead()) {
        println!("unmounting {}, which a run that was killed left behind", dead.place.display());
        for device in loop_devices(&dead.place) {
            let mounted = others.iter().filter(|mount| mount.source == device);
            mounted.for_each(|mount| run("umount", "--lazy", &mount.place));
            run("losetup", "--detach", Path::new(&device));
        }
        run("umount", "--lazy", &dead.place);
    }
}

/// A line of the list of mounts.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    source: String,
    place: PathBuf,
    kind: String,
}

impl Mount {
    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let (source, place, kind) = (fields.next()?, fields.next()?, fields.next()?);
        Some(Self {
            source: source.to_owned(),
            place: unescaped(place).into(),
            kind: kind.to_owned(),
        })
    }

    fn is_of_destage(&self) -> bool {
        let mut folders = self.place.iter().map(|folder| folder.to_string_lossy());
        let is_of_ours =
            self.source == "destage" || folders.any(|folder| folder.starts_with("destage-"));
        is_of_ours && (self.kind == "fuse" || self.kind.starts_with("fuse."))
    }

    fn is_dead(&self) -> bool {
        let looked = std::fs::metadata(&self.place);
        looked.is_err_and(|error| error.kind() == ErrorKind::NotConnected)
    }
}

/// The kernel writes blanks, tabs, line ends and backslashes as three octal digits each.
fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

/// The loop devices whose file lies in that folder.
fn loop_devices(folder: &Path) -> Vec<String> {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let backed = devices.filter(|device| {
        let file = std::fs::read_to_string(device.path().join("loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(folder))
    });
    backed.map(|device| format!("/dev/{}", device.file_name().to_string_lossy())).collect()
}

fn run(program: &str, option: &str, what: &Path) {
    let status = Command::new(program).arg(option).arg(what).stdin(Stdio::null()).status();
    if !status.is_ok_and(|status| status.success()) {
        eprintln!("xtask: {program} {option} {} failed; do it by hand", what.display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_list_of_mounts_are_read() {
        let read = Mount::read("destage /tmp/a\\040b fuse rw,nosuid 0 0").expect("a line");
        assert_eq!(read.place, Path::new("/tmp/a b"));
        assert!(read.is_of_destage());
        let mount = Mount::read("/srv/a /tmp/destage-e2e-1/mnt fuse rw 0 0").expect("a line");
        assert!(mount.is_of_destage());
        let ceph = Mount::read("ceph-fuse /tmp/destage-ceph-1/mnt/1 fuse.ceph-fuse rw 0 0");
        assert!(ceph.expect("a line").is_of_destage());
        let theirs = Mount::read("ceph-fuse /srv/files fuse.ceph-fuse rw 0 0").expect("a line");
        assert!(!theirs.is_of_destage());
        let disk = Mount::read("/dev/loop1 /tmp/destage-e2e-1/disk ext4 rw 0 0").expect("a line");
        assert!(!disk.is_of_destage());
        let other = Mount::read("/dev/loop1 /mnt ext4 rw 0 0").expect("a line");
        assert!(!other.is_of_destage());
        assert_eq!(Mount::read("none"), None);
    }
}
