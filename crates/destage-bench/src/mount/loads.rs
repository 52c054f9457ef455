//! The loads: what their threads do over and over, and programs that are run once.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::ceph;
use super::options::Options;
use crate::Result;
use crate::block::clients::Progress;
use crate::keys::Rng;

const KIB: usize = 1024;

/// What a thread does over and over.
pub(super) type Worker = Box<dyn FnMut(&Progress) -> Result<()> + Send>;

/// Makes the files of a thread: the folder, the thread, all files of all threads, the seed.
pub(super) type Start = fn(&Share) -> Result<Worker>;

/// A thread's part of a load.
#[derive(Clone, Debug)]
pub(super) struct Share {
    pub(super) folder: PathBuf,
    pub(super) thread: u64,
    /// Files of this thread.
    pub(super) files: u64,
    pub(super) seed: u64,
}

impl Share {
    fn path(&self, file: u64) -> PathBuf {
        self.folder.join(format!("{}-{file}", self.thread))
    }

    fn rng(&self) -> Rng {
        Rng::new(self.seed.wrapping_mul(1_000_003).wrapping_add(self.thread))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<File> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all(bytes)?;
    Ok(file)
}

/// The file read whole, and open to be appended to.
fn read(path: &Path, buffer: &mut Vec<u8>) -> Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    buffer.clear();
    file.read_to_end(buffer)?;
    Ok(file)
}

/// Filebench's varmail: a mail is deleted, one written and synced, one read, appended to and synced, one read.
pub(super) fn varmail(share: &Share) -> Result<Worker> {
    let (share, mut rng, mut buffer) = (share.clone(), share.rng(), Vec::new());
    let mail = vec![b'm'; 16 * KIB];
    for file in 0..share.files {
        write(&share.path(file), &mail)?;
    }
    Ok(Box::new(move |progress| {
        let renewed = share.path(rng.below(share.files));
        fs::remove_file(&renewed)?;
        let file = write(&renewed, &mail)?;
        progress.read(|| Ok(file.sync_all()?))?;
        drop(file);
        let mut file = read(&share.path(rng.below(share.files)), &mut buffer)?;
        file.write_all(&mail[..8 * KIB])?;
        progress.read(|| Ok(file.sync_all()?))?;
        drop(file);
        read(&share.path(rng.below(share.files)), &mut buffer)?;
        Ok(())
    }))
}

/// Filebench's fileserver: a file is made, one appended to, one read, one deleted, one looked at; nothing is synced.
pub(super) fn fileserver(share: &Share) -> Result<Worker> {
    let (share, mut rng, mut buffer) = (share.clone(), share.rng(), Vec::new());
    let (bytes, mut next) = (vec![b'f'; 128 * KIB], share.files);
    let mut files: Vec<u64> = (0..share.files).collect();
    for &file in &files {
        write(&share.path(file), &bytes)?;
    }
    Ok(Box::new(move |progress| {
        let any = |rng: &mut Rng, files: &[u64]| files[rng.below(files.len() as u64) as usize];
        progress.read(|| write(&share.path(next), &bytes))?;
        files.push(next);
        next += 1;
        let longer = share.path(any(&mut rng, &files));
        OpenOptions::new().append(true).open(longer)?.write_all(&bytes[..16 * KIB])?;
        read(&share.path(any(&mut rng, &files)), &mut buffer)?;
        let gone = files.swap_remove(rng.below(files.len() as u64) as usize);
        fs::remove_file(share.path(gone))?;
        fs::metadata(share.path(any(&mut rng, &files)))?;
        Ok(())
    }))
}

/// Filebench's createfiles: files of 16 KiB, a hundred to a folder.
pub(super) fn createfiles(share: &Share) -> Result<Worker> {
    let (share, bytes, mut next) = (share.clone(), vec![b'c'; 16 * KIB], 0_u64);
    Ok(Box::new(move |progress| {
        let folder = share.folder.join(format!("{}-{}", share.thread, next / 100));
        if next.is_multiple_of(100) {
            fs::create_dir(&folder)?;
        }
        progress.read(|| write(&folder.join(next.to_string()), &bytes))?;
        next += 1;
        Ok(())
    }))
}

/// A name is made, looked at, changed and removed.
pub(super) fn metadata(share: &Share) -> Result<Worker> {
    let (share, mut next) = (share.clone(), 0);
    Ok(Box::new(move |progress| {
        let (name, other) = (share.path(next), share.path(next + 1));
        next += 2;
        progress.read(|| Ok(File::create_new(&name)?))?;
        fs::metadata(&name)?;
        fs::rename(&name, &other)?;
        fs::remove_file(&other)?;
        Ok(())
    }))
}

/// 4 KiB of a file of 16 MiB are overwritten and synced.
pub(super) fn fsync(share: &Share) -> Result<Worker> {
    let (mut rng, path) = (share.rng(), share.path(0));
    let blocks = 4 * KIB as u64;
    write(&path, &vec![b's'; 4 * KIB * 4 * KIB])?.sync_all()?;
    Ok(Box::new(move |progress| {
        let file = OpenOptions::new().write(true).open(&path)?;
        file.write_all_at(&[b'S'; 4 * KIB], rng.below(blocks) * blocks)?;
        progress.read(|| Ok(file.sync_all()?))
    }))
}

/// SQLite with a rollback journal and synchronous=FULL: a row is added and one changed in a transaction.
pub(super) fn sqlite(share: &Share) -> Result<Worker> {
    let path = share.path(0);
    let open = move || -> Result<rusqlite::Connection> {
        let database = rusqlite::Connection::open(&path)?;
        database.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
        database.pragma_update(None, "synchronous", "FULL")?;
        Ok(database)
    };
    open()?.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")?;
    let (mut database, mut row) = (None, 0_i64);
    Ok(Box::new(move |progress| {
        // Opened late: between the start and the run the mount is drained.
        if database.is_none() {
            database = Some(open()?);
        }
        let Some(database) = &mut database else { return Ok(()) };
        row += 1;
        progress.read(|| {
            let commit = database.transaction()?;
            commit.execute("INSERT INTO t VALUES (?1, 'new')", [row])?;
            commit.execute("UPDATE t SET text = 'old' WHERE id = ?1", [row / 2])?;
            Ok(commit.commit()?)
        })
    }))
}

/// What a program has done: operations, seconds, and the median of their times in microseconds where it tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) operations: f64,
    pub(super) seconds: f64,
    pub(super) median_us: Option<f64>,
}

/// A program that is run once: what it needs is made by the first, the second does the work.
pub(super) type Once = (fn(&Path, &Options) -> Result<()>, fn(&Path, &Options) -> Result<Done>);

const ONCE_MAX: Duration = Duration::from_secs(540);

pub(super) const BUILD: Once = (pack, unpack_and_build);
/// Sources to unpack and build.
const SOURCES: u64 = 200;

fn sources(options: &Options) -> u64 {
    if options.is_quick { 20 } else { SOURCES }
}

fn archive(folder: &Path) -> PathBuf {
    // Beside what is measured, on the machine's own disk.
    let name = format!("destage-bench-{}-{:x}.tar", std::process::id(), folder.as_os_str().len());
    std::env::temp_dir().join(name)
}

fn pack(folder: &Path, options: &Options) -> Result<()> {
    let made = tempfile::tempdir()?;
    for number in 0..sources(options) {
        let text = format!("int part{number}(void) {{ return {number}; }}\n");
        fs::write(made.path().join(format!("part{number}.c")), text)?;
    }
    let make = "all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O0 -c -o $@ $<\n";
    fs::write(made.path().join("Makefile"), make)?;
    let mut tar = Command::new("tar");
    ceph::run(tar.arg("-cf").arg(archive(folder)).arg("-C").arg(made.path()).arg("."), ONCE_MAX)?;
    Ok(())
}

fn unpack_and_build(folder: &Path, options: &Options) -> Result<Done> {
    let start = Instant::now();
    ceph::run(Command::new("tar").arg("-xf").arg(archive(folder)).arg("-C").arg(folder), ONCE_MAX)?;
    ceph::run(Command::new("make").args(["-s", "-j4", "-C"]).arg(folder), ONCE_MAX)?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(archive(folder))?;
    Ok(Done { operations: sources(options) as f64, seconds, median_us: None })
}

pub(super) const ZIPF: Once = (preallocate, zipfian);

fn preallocate(folder: &Path, options: &Options) -> Result<()> {
    let mut file = File::create(folder.join("zipf"))?;
    let mebibyte = vec![b'z'; 1 << 20];
    for _ in 0..options.zipf_mib {
        file.write_all(&mebibyte)?;
    }
    Ok(file.sync_all()?)
}

/// fio writes as much as the file is long, in pieces of 2 to 16 KiB, at zipfian places.
fn zipfian(folder: &Path, options: &Options) -> Result<Done> {
    let size = format!("--size={}m", options.zipf_mib);
    let mut fio = Command::new("fio");
    fio.args([
        "--name=zipf",
        "--rw=randwrite",
        "--ioengine=psync",
        "--bsrange=2k-16k",
        "--overwrite=1",
    ]);
    fio.args(["--random_distribution=zipf:1.0001", "--norandommap", "--output-format=json", &size]);
    fio.arg(format!("--randseed={}", options.seed))
        .arg(format!("--filename={}", folder.join("zipf").display()));
    let said: serde_json::Value = serde_json::from_str(&ceph::run(&mut fio, ONCE_MAX)?)?;
    let write = &said["jobs"][0]["write"];
    let number = |value: &serde_json::Value| value.as_f64().ok_or("fio tells too little");
    let operations = number(&write["total_ios"])?;
    let seconds = number(&write["runtime"])? / 1e3;
    let median = number(&write["clat_ns"]["percentile"]["50.000000"])? / 1e3;
    Ok(Done { operations, seconds, median_us: Some(median) })
}

pub(super) const FILEBENCH_VARMAIL: Once =
    (nothing, |folder, options| filebench("varmail", folder, options));
pub(super) const FILEBENCH_FILESERVER: Once =
    (nothing, |folder, options| filebench("fileserver", folder, options));
pub(super) const FILEBENCH_CREATEFILES: Once =
    (nothing, |folder, options| filebench("createfiles", folder, options));

fn nothing(_: &Path, _: &Options) -> Result<()> {
    Ok(())
}

/// Filebench's own personality of that name, with our folder, number of files and time.
fn filebench(name: &str, folder: &Path, options: &Options) -> Result<Done> {
    let suite = options.filebench.as_ref().ok_or("filebench is missing: name it by --filebench")?;
    let text = fs::read_to_string(suite.join("workloads").join(format!("{name}.f")))?;
    let seconds = options.time.as_secs_f64().ceil().max(2.0);
    let script = tempfile::NamedTempFile::new()?;
    let mut said = String::new();
    // It makes files faster than it has names for fewer than a thousand. Once it has none left, it ends well and without a
    // summary: a next run has more of them.
    for more in 0..FILEBENCH_RUNS_MAX {
        let files = options.files.max(1_000) << more;
        let changed = |line: &str| match line.split(['=', ' ']).collect::<Vec<_>>()[..] {
            ["set", "$dir", ..] => format!("set $dir={}", folder.display()),
            ["set", "$nfiles", ..] => format!("set $nfiles={files}"),
            ["run", ..] => format!("run {seconds}"),
            _ => line.to_owned(),
        };
        let mut lines: Vec<String> = text.lines().map(changed).collect();
        if !lines.iter().any(|line| line.starts_with("run ")) {
            lines.push(format!("run {seconds}"));
        }
        fs::write(script.path(), lines.join("\n") + "\n")?;
        let mut program = Command::new("setarch");
        program.arg("-R").arg(suite.join("installed/bin/filebench")).arg("-f").arg(script.path());
        said = ceph::run(&mut program, ONCE_MAX)?;
        if let Some(done) = summary(&said) {
            return Ok(done);
        }
    }
    let last: Vec<&str> = said.lines().rev().take(3).collect();
    let what = format!("filebench's {name} has no summary in {FILEBENCH_RUNS_MAX} runs: {last:?}");
    Err(what.into())
}

const FILEBENCH_RUNS_MAX: usize = 4;

/// Of a line `9.1: IO Summary: 1000 ops 100.0 ops/s 10/20 rd/wr 1.0mb/s 2.5ms/op`.
fn summary(text: &str) -> Option<Done> {
    let line = text.lines().find(|line| line.contains("IO Summary:"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> {
        let at = words.iter().position(|word| *word == unit)?;
        words[at.checked_sub(1)?].parse().ok()
    };
    let (operations, rate) = (before("ops")?, before("ops/s")?);
    Some(Done { operations, seconds: operations / rate, median_us: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_filebench_is_read() {
        let text = "1.0: Run took 5 seconds...\n6.1: IO Summary: 51340 ops 10266.121 ops/s 1580/1580 rd/wr 36.1mb/s 0.2ms/op\n";
        let done = summary(text).expect("a summary");
        assert_eq!(done.operations, 51_340.0);
        assert!((done.seconds - 5.0).abs() < 0.01);
        assert!(summary("WARNING! Run stopped early\n").is_none());
    }
}
