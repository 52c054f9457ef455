//! Peers of volumes: bcache and dm-writecache of the distribution's kernel beside `destage block`, in a guest without KVM, each
//! before a slow disk of its own; and what such a slow disk holds when all else is lost.

mod guest;
mod image;
mod judge;
mod measured;
mod numbered;
mod sides;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use self::guest::{Disk, Guest, SIZE, SLOW_MIB};
use self::image::{Image, Packages};
use self::judge::{Progress, State};
use self::measured::{Loss, Measured, Run};
use self::numbered::{BLOCK, number_of};
pub(crate) use self::numbered::{NumberedArgs, run as write_numbered};
use self::sides::{Load, Side};
use crate::Result;
use crate::command::output_within;
use crate::machine::{Machine, output};
use crate::place;
use crate::report::Report;

/// Bytes of each disk.
const SLOW_BYTES: u64 = 64 << 20;
const FAST_BYTES: u64 = 512 << 20;
const REDO_BYTES: u64 = 96 << 20;
/// Where numbered writes go, how many are between two syncs, and what the slow disks take in a second: so little that all sides
/// fall behind.
const NUMBERED_BLOCKS: u64 = 1024;
const SYNC_EVERY: u64 = 8;
const NUMBERED_IOPS: u64 = 40;
/// Destage's D where the slow disk is looked at, seconds: a run must pass it.
const STALENESS: u64 = 3;
/// Writes of a side that show something.
const NUMBERED_MIN: u64 = 20;
/// What the guest's clocks and its lines may add to it.
const SLACK_SECONDS: f64 = 1.0;

/// How it is measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Volumes<'a> {
    /// What `cargo xtask bench` has unpacked.
    pub(super) packages: &'a Path,
    pub(super) dir: &'a Path,
    pub(super) bin: &'a Path,
    pub(super) is_quick: bool,
    pub(super) time: Duration,
    pub(super) rounds: usize,
    pub(super) seed: u64,
    pub(super) extra: &'a [String],
}

impl Volumes<'_> {
    /// Measures all of it.
    ///
    /// # Errors
    ///
    /// The guest cannot be made, or a side could not be measured.
    pub(super) fn run(&self) -> Result<Report> {
        let packages = Packages::in_folder(self.packages)?;
        let mut report = self.new_report(&packages)?;
        let image = Image::new(&packages, &self.dir.join("guest"), self.bin)?;
        image.write("destage-arguments", &self.extra.join(" "), 0o644)?;
        let disks = self.disks()?;
        let mut measured = Measured::default();
        for round in 0..self.rounds {
            let seed = self.seed + round as u64;
            if let Err(error) = self.round(&packages, &image, &disks, seed, &mut measured) {
                report.failures.push(format!("round {}: {error}", round + 1));
            }
        }
        report.failures.extend(measured.losses.iter().filter_map(|loss| broken(*loss)));
        report.tables = measured.tables();
        Ok(report)
    }

    fn sides(&self) -> &'static [Side] {
        if self.is_quick { &Side::ALL[..4] } else { &Side::ALL }
    }

    fn blocks(&self) -> u64 {
        if self.is_quick { 256 } else { 4096 }
    }

    fn iops(&self) -> u64 {
        if self.is_quick { 500 } else { 200 }
    }

    fn loads(&self) -> Vec<Load> {
        let is_wanted = |load: &Load| !self.is_quick || load.word == "synced";
        Load::ALL.into_iter().filter(is_wanted).collect()
    }

    /// How long the numbered writes go on before the end.
    fn writing_seconds(&self) -> f64 {
        if self.is_quick { 1.5 } else { 3.0 * STALENESS as f64 }
    }

    /// One guest lives through all loads before all sides. To another all sides write numbers at once, until it is ended.
    fn round(
        &self,
        packages: &Packages,
        image: &Image<'_>,
        disks: &[Disk],
        seed: u64,
        measured: &mut Measured,
    ) -> Result<()> {
        let loads = self.loads();
        self.write_task(image, seed, &loads, self.blocks())?;
        let mut guest = self.start(packages, image, disks, (seed, self.iops()))?;
        loop {
            let line = guest.next()?;
            match line.strip_prefix("fio ") {
                Some(words) => measured.runs.push(Run::read(words)?),
                None if line == "done" => break,
                None => eprintln!("the guest: {line}"),
            }
        }
        guest.kill()?;
        self.write_task(image, seed, &[], NUMBERED_BLOCKS)?;
        let mut guest = self.start(packages, image, disks, (seed, NUMBERED_IOPS))?;
        let progress = self.listen(&mut guest)?;
        guest.kill()?;
        for (side, progress) in progress {
            if side == Side::Journaled {
                self.replay(disks)?;
            }
            let found = numbers(disks, side, seed)?;
            let is_exact = side == Side::Journaled;
            let state = State::of(&found, seed, &progress, SYNC_EVERY, is_exact);
            eprintln!("{}: {state:?}", side.name());
            measured.losses.push(Loss { side, state });
        }
        Ok(())
    }

    fn start(
        &self,
        packages: &Packages,
        image: &Image<'_>,
        disks: &[Disk],
        (seed, iops): (u64, u64),
    ) -> Result<Guest> {
        let initrd = self.dir.join("initrd");
        image.pack(&initrd)?;
        let machine = guest::Machine {
            kernel: packages.kernel(),
            initrd: &initrd,
            disks,
            iops,
            most: Duration::from_secs(if self.is_quick { 300 } else { 1800 }),
        };
        Guest::boot(&machine, &self.dir.join(format!("guest-{seed}-{iops}.log")))
    }

    /// Takes what the guest says until every side has been written to for long enough, and often enough.
    fn listen(&self, guest: &mut Guest) -> Result<Vec<(Side, Progress)>> {
        let mut progress: Vec<(Side, Progress)> =
            self.numbered_sides().map(|side| (side, Progress::default())).collect();
        loop {
            let line = guest.next()?;
            let unknown = || format!("the guest said: {line}");
            let Some(rest) = line.strip_prefix("numbered ") else { continue };
            let words: Vec<&str> = rest.split(' ').collect();
            let &[side, number, time] = &words[..] else { return Err(unknown().into()) };
            let of_side = progress.iter_mut().find(|(which, _)| which.word() == side);
            let (_, of_side) = of_side.ok_or_else(unknown)?;
            of_side.add(number.parse()?, time.parse()?);
            // Where a guest has little of the processors, a side may have written hardly anything by then.
            let is_enough = |progress: &Progress| {
                progress.seconds() >= self.writing_seconds() && progress.answered() >= NUMBERED_MIN
            };
            if progress.iter().all(|(_, progress)| is_enough(progress)) {
                return Ok(progress);
            }
        }
    }

    /// All that cache.
    fn numbered_sides(&self) -> impl Iterator<Item = Side> {
        self.sides().iter().copied().filter(|side| *side != Side::Slow)
    }

    /// What the guest's first script reads.
    fn write_task(&self, image: &Image<'_>, seed: u64, loads: &[Load], blocks: u64) -> Result<()> {
        let words = |words: Vec<&str>| words.join(" ");
        let numbered = if loads.is_empty() { self.numbered_sides().collect() } else { Vec::new() };
        let text = format!(
            "modules='{}'\nsides='{}'\nloads='{}'\nnumbered='{}'\nblocks={blocks}\nseed={seed}\nsync_every={SYNC_EVERY}\n\
             staleness={STALENESS}\nfast_mib={}\n",
            Image::modules(),
            words(self.sides().iter().map(|side| side.word()).collect()),
            words(loads.iter().map(|load| load.word).collect()),
            words(numbered.into_iter().map(Side::word).collect()),
            FAST_BYTES >> 20,
        );
        image.write("task", &text, 0o644)?;
        for load in loads {
            let arguments = load.fio(blocks, self.time, seed);
            image.write(&format!("loads/{}", load.word), &arguments, 0o644)?;
        }
        Ok(())
    }

    fn disks(&self) -> Result<Vec<Disk>> {
        let mut disks = Vec::new();
        for (number, side) in self.sides().iter().enumerate() {
            let word = side.word();
            let mut make = |kind: &str, bytes, slow| -> Result<()> {
                let name = format!("{word}-{kind}");
                disks.push(Disk::make(self.dir, &name, bytes, slow, !self.is_quick)?);
                Ok(())
            };
            make("slow", SLOW_BYTES, Some(number))?;
            if *side != Side::Slow {
                make("fast", FAST_BYTES, None)?;
            }
            if side.is_ours() {
                make("redo", REDO_BYTES, Some(number))?;
            }
        }
        Ok(disks)
    }

    /// What a user does who has lost the cache.
    fn replay(&self, disks: &[Disk]) -> Result<()> {
        let mut replay = Command::new(self.bin);
        replay.args(["block", "replay", "--origin"]);
        replay.arg(path(disks, Side::Journaled, "slow")?).arg("--redo");
        replay.arg(path(disks, Side::Journaled, "redo")?);
        let output = output_within(&mut replay, Duration::from_secs(60))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("destage block replay: {} {said}", output.status).into())
    }

    fn new_report(&self, packages: &Packages) -> Result<Report> {
        let mut machine = Machine::look(self.dir)?;
        let version = |program: &str, words: &[&str]| {
            output(program, words).unwrap_or_else(|| "not installed".to_owned())
        };
        let bin = self.bin.to_string_lossy();
        machine.versions.extend([
            ("Destage".to_owned(), version(&bin, &["--version"])),
            ("qemu".to_owned(), version("qemu-system-x86_64", &["--version"])),
            ("the guest's kernel".to_owned(), packages.release.clone()),
        ]);
        machine.versions.extend(packages.versions()?);
        machine.versions.extend([
            ("fio".to_owned(), version("fio", &["--version"])),
            ("dmsetup".to_owned(), version("/usr/sbin/dmsetup", &["--version"])),
            ("nbd-client".to_owned(), version("/usr/sbin/nbd-client", &["-V"])),
        ]);
        let (iops, mib) = (self.iops(), self.blocks() * 4 / 1024);
        let lines = [
            (
                "the guest",
                format!(
                    "{SIZE}, emulated (`-accel tcg,thread=multi -cpu max`), on the processors of this machine"
                ),
            ),
            (
                "slow disk",
                format!(
                    "{} MiB, virtio-blk, held by qemu to {iops} requests and {SLOW_MIB} MiB a second, whatever their depth and \
                     place; flushes are not held up",
                    SLOW_BYTES >> 20
                ),
            ),
            (
                "fast disk",
                format!(
                    "{} MiB, virtio-blk, not held up; both disks are files past the page cache, flushed when told",
                    FAST_BYTES >> 20
                ),
            ),
            ("blocks in use", format!("{mib} MiB")),
            (
                "bcache's settings",
                "`make-bcache --writeback`, `sequential_cutoff` 0, `congested_*_threshold_us` 0, otherwise defaults \
                 (`writeback_delay` 30, `writeback_percent` 10); drained by `detach`"
                    .to_owned(),
            ),
            (
                "dm-writecache's settings",
                "on an SSD (`s`), blocks of 4096, otherwise defaults (`high_watermark` 50); drained by the message `flush`"
                    .to_owned(),
            ),
            (
                "Destage's settings",
                "`--policy` as the row says, otherwise the defaults of `destage block serve` (`-d flush`, `-D 30s`, `--when async`); `--redo` \
                 on the slow disk; `nbd-client -unix -block-size 4096`"
                    .to_owned(),
            ),
            (
                "settings where the slow disk is looked at",
                format!(
                    "slow disks of {NUMBERED_IOPS} requests a second, {} MiB in use, all sides at once in one guest; bcache: \
                     `writeback_delay` 0, `writeback_percent` 0; dm-writecache: `max_age` 1000, `pause_writeback` 0; Destage: \
                     `--staleness {STALENESS}s`",
                    NUMBERED_BLOCKS * 4 / 1024
                ),
            ),
        ];
        Ok(Report {
            front_end: "peers-volumes",
            command: place::command_line(),
            seed: self.seed,
            seconds: self.time.as_secs_f64(),
            pairs: self.rounds,
            machine,
            settings: lines.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Report::default()
        })
    }
}

/// The numbers of the writes that the blocks on a slow disk hold.
fn numbers(disks: &[Disk], side: Side, seed: u64) -> Result<Vec<u64>> {
    let file = File::open(path(disks, side, "slow")?)?;
    let mut block = [0; BLOCK];
    let one = |at: u64| {
        file.read_exact_at(&mut block, side.offset() + at * BLOCK as u64)?;
        number_of(&block, seed)
    };
    (0..NUMBERED_BLOCKS).map(one).collect()
}

fn path(disks: &[Disk], side: Side, kind: &str) -> Result<PathBuf> {
    let name = format!("{}-{kind}", side.word());
    let disk = disks.iter().find(|disk| disk.name == name);
    Ok(disk.ok_or_else(|| format!("no disk {name}"))?.path.clone())
}

/// What Destage has promised and not kept, or why the writes show nothing.
fn broken(loss: Loss) -> Option<String> {
    let Loss { side, state } = loss;
    if state.answered < NUMBERED_MIN {
        return Some(format!("{}: only {} numbered writes", side.name(), state.answered));
    }
    let promises = matches!(side, Side::Ordered | Side::Journaled);
    let is_kept = state.existed() && state.age_seconds <= STALENESS as f64 + SLACK_SECONDS;
    (promises && !is_kept).then(|| format!("{} broke its contract: {state:?}", side.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_destage_promises_is_held_against_it() {
        let state = State { answered: 500, newest: 400, wrong: 0, missing: 9, age_seconds: 1.0 };
        let garbage = State { wrong: 1, ..state };
        let old = State { age_seconds: STALENESS as f64 + 2.0, ..state };
        let is_broken = |side, state| broken(Loss { side, state }).is_some();
        for side in [Side::Ordered, Side::Journaled] {
            assert!(!is_broken(side, state));
            assert!(is_broken(side, garbage) && is_broken(side, old));
        }
        for side in [Side::Bcache, Side::Writecache, Side::WriteBack] {
            assert!(!is_broken(side, garbage) && !is_broken(side, old));
            // What hardly wrote shows nothing.
            assert!(is_broken(side, State { answered: 1, ..state }));
        }
    }
}
