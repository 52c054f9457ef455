//! A virtual machine without KVM: its disks, of which some are slow, and what it says.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::Result;

/// A disk of the guest, a file of the host.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// By which the guest knows it.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// Disks of the same number are one slow disk; none is as fast as the file.
    pub(super) slow: Option<usize>,
}

impl Disk {
    /// Makes its file, full of zeros. They are written if `is_whole`: the first write to space that is merely promised makes the
    /// file system commit its own journal at the next sync.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub(super) fn make(
        dir: &Path,
        name: &str,
        bytes: u64,
        slow: Option<usize>,
        is_whole: bool,
    ) -> Result<Self> {
        let path = dir.join(name);
        let mut file = File::create(&path)?;
        if is_whole {
            std::io::copy(&mut std::io::repeat(0).take(bytes), &mut file)?;
            file.sync_all()?;
        }
        file.set_len(bytes)?;
        Ok(Self { name: name.to_owned(), path, slow })
    }
}

/// What the guest is given.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) kernel: PathBuf,
    pub(super) initrd: &'a Path,
    pub(super) disks: &'a [Disk],
    pub(super) iops: u64,
    /// When it is ended, however far it is.
    pub(super) most: Duration,
}

/// Processors and memory of the guest.
pub(super) const SIZE: &str = "2 processors, 1 GiB";
/// What a slow disk moves in a second, beside its limit of requests.
pub(super) const SLOW_MIB: u64 = 100;

/// How often a guest is started that ends before it is up.
const BOOTS_MAX: u32 = 3;

/// A guest that runs; it is ended when this is dropped.
pub(super) struct Guest {
    qemu: Child,
    lines: Receiver<String>,
    until: Instant,
    /// Where qemu complains.
    log: PathBuf,
    /// The last lines, for those who ask why it ended.
    last: Vec<String>,
}

impl Guest {
    /// Starts it, and waits until it is up. A guest that ends before is started again: under emulation a kernel may find that
    /// its timers do not tick as they must, and give up.
    ///
    /// # Errors
    ///
    /// qemu cannot be started, or the guest does not come up.
    pub(super) fn boot(machine: &Machine<'_>, log: &Path) -> Result<Self> {
        let mut attempt = 1;
        loop {
            let mut qemu = Command::new("qemu-system-x86_64");
            let mut guest = Self::start(qemu.args(arguments(machine)), machine.most, log)?;
            match guest.next() {
                Ok(line) => {
                    eprintln!("the guest: {line}");
                    return Ok(guest);
                }
                // One that hangs has had its time.
                Err(error) if attempt == BOOTS_MAX || guest.qemu.try_wait()?.is_none() => {
                    return Err(error);
                }
                Err(error) => eprintln!("the guest is started again: {error}"),
            }
            attempt += 1;
        }
    }

    fn start(qemu: &mut Command, most: Duration, log: &Path) -> Result<Self> {
        let mut qemu = qemu
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(log)?)
            .spawn()
            .map_err(|error| format!("failed to start qemu-system-x86_64: {error}"))?;
        let console = qemu.stdout.take().ok_or("its output is piped")?;
        let (sender, lines) = channel();
        let mut copy = File::create(log.with_extension("console"))?;
        std::thread::spawn(move || {
            // It ends with the guest.
            read_lines(console, |line| {
                let _ = std::io::Write::write_all(&mut copy, format!("{line}\n").as_bytes());
                sender.send(line).is_ok()
            });
        });
        let (until, log) = (Instant::now() + most, log.to_owned());
        Ok(Self { qemu, lines, until, log, last: Vec::new() })
    }

    /// The words of the next line that is meant for us.
    ///
    /// # Errors
    ///
    /// The guest says that it failed, has ended, or takes too long.
    pub(super) fn next(&mut self) -> Result<String> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let line = match self.lines.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.qemu.wait()?;
                    return Err(format!("the guest ended, {ended}; {}", self.said()).into());
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("the guest takes too long; {}", self.said()).into());
                }
            };
            self.last.push(line.chars().take(300).collect());
            // The kernel may have begun the line.
            let Some(at) = line.find('@') else { continue };
            let words = &line[at + 1..];
            if words.starts_with("failed") {
                // What explains it comes behind.
                while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(10)) {
                    self.last.push(line);
                }
                return Err(format!("the guest: {}", self.said()).into());
            }
            return Ok(words.to_owned());
        }
    }

    /// Ends it as a power cut does: what its disks have is left.
    ///
    /// # Errors
    ///
    /// It cannot be waited for.
    pub(super) fn kill(mut self) -> Result<()> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }

    /// The last lines, and what qemu had to say.
    fn said(&self) -> String {
        let from = self.last.len().saturating_sub(40);
        let of_qemu = std::fs::read_to_string(&self.log).unwrap_or_default();
        format!("it said: {}\nqemu said: {of_qemu}", self.last[from..].join("\n"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn read_lines(console: impl Read, mut take: impl FnMut(String) -> bool) {
    for line in BufReader::new(console).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
        if !take(line) {
            return;
        }
    }
}

fn arguments(machine: &Machine<'_>) -> Vec<String> {
    let words = "-accel tcg,thread=multi -cpu max,la57=off -smp 2 -m 1024 -no-user-config -nodefaults -no-reboot \
                 -display none -chardev stdio,id=console,signal=off -serial chardev:console \
                 -device virtio-rng-pci";
    let mut all: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    let mut add = |name: &str, value: String| all.extend([name.to_owned(), value]);
    add("-kernel", machine.kernel.display().to_string());
    add("-initrd", machine.initrd.display().to_string());
    add(
        "-append",
        "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off random.trust_cpu=on"
            .to_owned(),
    );
    let mut groups: Vec<usize> = machine.disks.iter().filter_map(|disk| disk.slow).collect();
    groups.dedup();
    for group in groups {
        let bytes = SLOW_MIB << 20;
        let limits = format!("x-iops-total={},x-bps-total={bytes}", machine.iops);
        add("-object", format!("throttle-group,id=slow{group},{limits}"));
    }
    for disk in machine.disks {
        let name = &disk.name;
        // Commas end a value unless they are doubled.
        let path = disk.path.display().to_string().replace(',', ",,");
        add(
            "-blockdev",
            format!("driver=file,node-name={name}-file,filename={path},cache.direct=on,aio=native"),
        );
        let raw = format!("driver=raw,file={name}-file,cache.direct=on,node-name=");
        match disk.slow {
            None => add("-blockdev", format!("{raw}{name}")),
            Some(group) => {
                add("-blockdev", format!("{raw}{name}-raw"));
                let filter = format!(
                    "driver=throttle,throttle-group=slow{group},file={name}-raw,cache.direct=on"
                );
                add("-blockdev", format!("{filter},node-name={name}"));
            }
        }
        add("-device", format!("virtio-blk-pci,drive={name},serial={name}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_guest_says_is_read_line_by_line() {
        let mut said = Vec::new();
        read_lines(&b"boot\r\n@ready 6.1\r\nrest"[..], |line| {
            said.push(line);
            true
        });
        assert_eq!(said, ["boot", "@ready 6.1", "rest"]);
    }

    #[test]
    fn a_guest_that_ends_is_no_guest_that_is_done() {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "echo boot; echo '@ready 6.1'; echo 'Kernel panic'; echo no disk >&2; exit 3";
        let mut qemu = Command::new("sh");
        let (most, log) = (Duration::from_secs(60), folder.path().join("guest.log"));
        let mut guest = Guest::start(qemu.args(["-c", script]), most, &log).expect("it starts");
        assert_eq!(guest.next().expect("a line"), "ready 6.1");
        let error = guest.next().expect_err("it has ended").to_string();
        for part in ["exit status: 3", "Kernel panic", "no disk"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn disks_of_one_number_share_their_limits() {
        let disk = |name: &str, slow| Disk { name: name.into(), path: "/a,b".into(), slow };
        let disks = [disk("slow", Some(4)), disk("redo", Some(4)), disk("fast", None)];
        let machine = Machine {
            kernel: "vmlinuz".into(),
            initrd: Path::new("initrd"),
            disks: &disks,
            iops: 200,
            most: Duration::ZERO,
        };
        let all = arguments(&machine);
        let groups = all.iter().filter(|word| word.starts_with("throttle-group,id=slow4"));
        assert_eq!(groups.count(), 1, "{all:?}");
        let slow = all.iter().filter(|word| word.contains("throttle-group=slow4"));
        assert_eq!(slow.count(), 2, "{all:?}");
        assert!(all.iter().any(|word| word.contains("filename=/a,,b")), "{all:?}");
    }
}
