//! Who else has a file open.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Processes and loop devices that have a file open, in words; not this process. What belongs to other users is found by root
/// only, and what other hosts do is not found at all.
pub(super) fn holders(path: &Path, meta: &Metadata) -> Vec<String> {
    let mut found = processes(path, meta);
    found.extend(loop_devices(path));
    found
}

fn processes(path: &Path, meta: &Metadata) -> Vec<String> {
    let own = std::process::id().to_string();
    // Looked at by its name first: files of other names may be on servers that do not answer.
    let is_it = |handle: &PathBuf| {
        fs::read_link(handle).is_ok_and(|link| link.file_name() == path.file_name())
            && fs::metadata(handle).is_ok_and(|it| (it.dev(), it.ino()) == (meta.dev(), meta.ino()))
    };
    let mut found = Vec::new();
    for process in entries(Path::new("/proc")) {
        let Some(id) = process.file_name().and_then(|name| name.to_str()) else { continue };
        if id == own || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        if entries(&process.join("fd")).iter().any(is_it) {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.push(format!("process {id} ({})", name.trim()));
        }
    }
    found
}

fn loop_devices(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for device in entries(Path::new("/sys/block")) {
        let backing = fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        if !backing.is_empty() && Path::new(backing.trim_end()) == path {
            let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push(format!("/dev/{name}"));
        }
    }
    found
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
