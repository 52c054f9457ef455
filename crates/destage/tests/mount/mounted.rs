//! The real binary with one mount: started, killed, started again.

use crate::harness::scratch::{Scratch, adopt, release};
use crate::harness::server::{binary, signal};
use crate::harness::{PATIENCE, eventually};
use crate::origin::Origin;
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// How to mount one folder; may be used again and again.
#[derive(Clone)]
pub(crate) struct Launch {
    origin: PathBuf,
    mountpoint: PathBuf,
    journal: PathBuf,
    log: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// In front of this origin; everything else lies in the test's folder.
    pub(crate) fn before(scratch: &Scratch, origin: &Origin) -> Self {
        Self::before_folder(&scratch.join(""), origin.folder())
    }

    /// In front of this folder; everything else lies in a folder of its own.
    pub(crate) fn before_folder(own: &Path, origin: &Path) -> Self {
        let mountpoint = own.join("mnt");
        fs::create_dir_all(&mountpoint).expect("a folder can be made");
        Self {
            origin: origin.to_owned(),
            mountpoint,
            journal: own.join("journal"),
            log: own.join("mount.log"),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// With a variable in its environment.
    pub(crate) fn with_environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// More arguments.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Mounted there.
    pub(crate) fn on(mut self, mountpoint: PathBuf) -> Self {
        self.mountpoint = mountpoint;
        self
    }

    /// Where its journal lies.
    pub(crate) fn journal(&self) -> &Path {
        &self.journal
    }

    /// With its journal there.
    pub(crate) fn journaled_in(mut self, folder: PathBuf) -> Self {
        self.journal = folder;
        self
    }

    fn command(&self) -> Command {
        let mut command = destage();
        command.arg("mount").arg(&self.origin).arg(&self.mountpoint);
        command
            .args(["--admin", "127.0.0.1:0", "--journal"])
            .arg(&self.journal)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it and waits for the line that says that it is mounted.
    #[track_caller]
    pub(crate) fn start(&self) -> Mounted {
        let log = File::options().create(true).append(true).open(&self.log).expect("a log");
        let mut command = self.command();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().expect("it starts");
        adopt(child.id());
        let output = child.stdout.take().expect("the output is piped");
        let line = BufReader::new(output).lines().next().and_then(Result::ok);
        let mut mounted = Mounted { child, folder: self.mountpoint.clone(), log: self.log.clone() };
        let Some(ready) = line else {
            let status = mounted.child.wait();
            panic!("destage mount did not start: {status:?}\n{}", mounted.said());
        };
        assert!(is_mounted(&self.mountpoint), "it says {ready:?} and has not mounted");
        mounted
    }

    /// Starts it, expecting it to end by itself; its exit code and what it said.
    #[track_caller]
    pub(crate) fn refused(&self) -> (i32, String) {
        let mut command = Command::new("timeout");
        command.arg(REFUSAL_SECONDS_MAX).arg(binary());
        command.args(self.command().get_args()).envs(self.environment.iter().cloned());
        let output = command.output().expect("timeout starts");
        let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
        assert_ne!(output.status.code(), Some(TIMED_OUT), "it was not refused: {text}");
        (output.status.code().unwrap_or(-1), text)
    }
}

const REFUSAL_SECONDS_MAX: &str = "20";
/// What `timeout` ends with if the program did not end in time.
const TIMED_OUT: i32 = 124;

/// The binary under test.
pub(crate) fn destage() -> Command {
    let mut command = Command::new(binary());
    command
        .env_remove("DESTAGE_PASSWORD")
        .env_remove("DESTAGE_ADMIN")
        .env_remove("DESTAGE_TOKENS")
        .stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether something is mounted there, served or not.
pub(crate) fn is_mounted(folder: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    let place = folder.display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*place))
}

/// A running mount; killed and unmounted with its test.
pub(crate) struct Mounted {
    child: Child,
    folder: PathBuf,
    log: PathBuf,
}

impl Mounted {
    /// Where its files are seen.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it said on its standard error, of all starts so far.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `destage mount COMMAND`, on this mount.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Output {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut process = destage();
        process.args(["mount", command]).arg(&self.folder).args(rest);
        process.output().expect("the binary starts")
    }

    /// As a power cut takes it; what uses it sees errors from now on.
    pub(crate) fn cut(&self) {
        signal(self.child.id(), Signal::KILL);
    }

    /// The same, and waits for its end. The mount is left dead.
    pub(crate) fn kill(mut self) {
        self.cut();
        self.child.wait().expect("it is our child");
        release(self.child.id());
    }

    /// Waits until it has ended by itself; its exit code.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the mount ends by itself", PATIENCE * 2, || {
            status = self.child.try_wait().expect("it is our child");
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    /// Asks it to end, which drains and unmounts. Returns what it said.
    #[track_caller]
    pub(crate) fn stop(mut self) -> String {
        signal(self.child.id(), Signal::TERM);
        let code = self.ended();
        assert_eq!(code, Some(0), "{}", self.said());
        assert!(!is_mounted(&self.folder), "it has ended and left its mount");
        self.said()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let is_killed = matches!(self.child.try_wait(), Ok(None));
        if is_killed {
            let _ = self.child.kill();
            if std::thread::panicking() {
                eprintln!("{}", self.said());
            }
        }
        // It may have ended by itself.
        let _ = self.child.wait();
        release(self.child.id());
        if is_killed {
            drop(Unmounting(self.folder.clone()));
        }
    }
}

/// Takes a mount away that a test has left dead, so that its folder can go.
pub(crate) struct Unmounting(pub(crate) PathBuf);

impl Drop for Unmounting {
    fn drop(&mut self) {
        while is_mounted(&self.0) {
            let done = Command::new("umount").arg("--lazy").arg(&self.0).status();
            if !done.as_ref().is_ok_and(std::process::ExitStatus::success) {
                eprintln!("{} stays mounted: {done:?}", self.0.display());
                return;
            }
        }
    }
}
