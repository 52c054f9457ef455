//! `destage-bench device`, the disk that the origins of the block benchmarks are.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use super::Process;
use crate::Result;
use crate::device::Counts;

/// How to start one.
#[derive(Clone, Debug)]
pub(crate) struct DeviceConfig {
    pub(crate) profile: &'static str,
    pub(crate) size: u64,
    /// As the profile says unless told.
    pub(crate) write_cache: Option<u64>,
    pub(crate) seed: u64,
}

/// A running disk. Its bytes end with it.
#[derive(Debug)]
pub(crate) struct DeviceServer {
    _process: Process,
    words: ChildStdin,
    answers: BufReader<ChildStdout>,
    socket: PathBuf,
}

impl DeviceServer {
    /// Starts one with its socket in `dir`; accesses take no time until [`DeviceServer::timed`].
    pub(crate) fn start(dir: &Path, config: &DeviceConfig) -> Result<Self> {
        let socket = dir.join(format!("{}.socket", config.profile));
        // This very program, even if another has been built in its place meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg("device").arg("--socket").arg(&socket).args(["--profile", config.profile]);
        command.args(["--size", &config.size.to_string(), "--seed", &config.seed.to_string()]);
        if let Some(bytes) = config.write_cache {
            command.args(["--write-cache", &bytes.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, "destage-bench device", libc::SIGTERM)?;
        let words = process.child.stdin.take().ok_or("the device has no standard input")?;
        let answers = process.child.stdout.take().ok_or("the device has no standard output")?;
        let mut device =
            Self { _process: process, words, answers: BufReader::new(answers), socket };
        let ready = device.line()?;
        if !ready.starts_with("device ready:") {
            return Err(format!("the device did not get ready: {ready}").into());
        }
        device.instant()?;
        Ok(device)
    }

    /// The address of one of its exports.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// From now on accesses take no time, for what is not measured.
    pub(crate) fn instant(&mut self) -> Result<()> {
        self.say("instant").map(drop)
    }

    /// From now on accesses take their time.
    pub(crate) fn timed(&mut self) -> Result<()> {
        self.say("timed").map(drop)
    }

    /// What it did since it started.
    pub(crate) fn counts(&mut self) -> Result<Counts> {
        Ok(serde_json::from_str(&self.say("counts")?)?)
    }

    fn say(&mut self, word: &str) -> Result<String> {
        writeln!(self.words, "{word}")?;
        self.line()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err("the device ended".into()),
            _ => Ok(line),
        }
    }
}
