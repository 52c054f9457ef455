//! A load of files on ext4, on a volume before a modelled disk.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

use super::pace::Pace;
use super::{Bench, Measured};
use crate::Result;
use crate::block::{FileLoad, FileMount, FileSystem, check};
use crate::servers::{BlockServer, DeviceConfig, DeviceServer};

/// The files take a quarter of the volume.
const VOLUME_FACTOR: u64 = 4;
/// A run may take so many times its time.
const PATIENCE: u32 = 30;
/// Nothing is done for so long between the warm-up and the load; the warm-up ends in the middle of it.
const PAUSE: Duration = Duration::from_secs(1);

/// Makes the files, then runs the load on a server with these settings that records.
///
/// # Errors
///
/// This machine cannot mount volumes, or something failed.
pub(super) fn measure(bench: &Bench, load: &'static str, words: &[String]) -> Result<Measured> {
    check()?;
    let load = FileLoad::named(load).ok_or("the load is gone")?;
    let folder = tempfile::Builder::new().prefix("loop-").tempdir_in(&bench.dir)?;
    let path = |name: &str| folder.path().join(name);
    let (shown, mounted, recording) = (path("volume"), path("mounted"), path("recording"));
    let size = (bench.file_bytes * VOLUME_FACTOR).max(FileSystem::VOLUME_MIN);
    let device = DeviceConfig { profile: "raid", size, write_cache: None, seed: bench.seed };
    let mut device = DeviceServer::start(folder.path(), &device)?;
    let (origin, redo, cache) = (device.uri("disk"), device.uri("redo"), path("cache"));
    let serve = |further: &[&str]| {
        let further = further.iter().map(|&word| word.to_owned());
        let shown = ["--fuse".to_owned(), shown.display().to_string()];
        let words: Vec<String> = words.iter().cloned().chain(shown).chain(further).collect();
        BlockServer::start_as(folder.path(), &bench.bin, [&origin, &redo], &cache, &words)
    };
    let files = |mount: &FileMount| load.prepare(mount.folder(), bench.file_bytes, bench.seed);
    {
        // The disk takes no time yet, and nothing of this is in the recording.
        let server = serve(&[])?;
        let mount = FileMount::new(&shown, mounted.clone(), FileSystem::EXT4, true)?;
        drop(files(&mount)?);
        mount.sync()?;
        server.drain()?;
    }
    // A recording does not say what the cache held before: it is filled while it is recorded.
    std::fs::remove_file(&cache)?;
    device.timed()?;
    let server = serve(&["--record", &recording.display().to_string()])?;
    let began = Instant::now();
    let mount = FileMount::new(&shown, mounted.clone(), FileSystem::EXT4, false)?;
    let prepared = files(&mount)?;
    read_all(mount.folder())?;
    let warmup = began.elapsed() + PAUSE / 2;
    thread::sleep(PAUSE);
    let before = server.status()?;
    let pace = Pace::new(load.threads, bench.burst, bench.time)?;
    let clients = prepared.map(|worker| pace.client(worker));
    let (operations, mean_ms, p99_ms) = clients.work(|_| pace.wait(bench.time * PATIENCE))?;
    let after = server.status()?;
    drop((mount, server));
    let hits = after.hit_blocks_total - before.hit_blocks_total;
    let misses = after.miss_blocks_total - before.miss_blocks_total;
    let hits = (hits, hits + misses);
    Ok(Measured { operations, mean_ms, p99_ms, hits, recording, warmup, _folder: folder })
}

/// Reads the files below a folder once, past the page cache.
fn read_all(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            read_all(&entry.path())?;
        } else {
            let mut file = File::open(entry.path())?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            std::io::copy(&mut file, &mut std::io::sink())?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}
