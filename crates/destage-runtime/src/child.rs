//! Commands that live no longer than the server: that of `--run 'CMD'`, and what makes advice on its recording.

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use rustix::io::Errno;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitOptions, getppid, kill_process,
    kill_process_group, prlimit, set_parent_process_death_signal, setpriority_process, waitid,
    waitpid,
};
use std::convert::Infallible;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

/// How long a command may go on that has been asked to end.
const END_MAX: Duration = Duration::from_secs(10);
/// The code of one that was killed, as shells say it.
const KILLED: u8 = 128 + 9;

/// A command that runs beside the server; [`end`](Self::end) sees to it that it does not outlive that.
#[derive(Debug)]
pub struct Child {
    /// None once it has ended: another process may have its number.
    process: Arc<Mutex<Option<Pid>>>,
    /// Whether what it starts is signalled with it.
    is_group: bool,
    /// Disconnected once it has ended.
    runs: Receiver<Infallible>,
    code: Arc<OnceLock<u8>>,
    /// When it was asked to end.
    asked: OnceLock<Instant>,
}

impl Child {
    /// Starts `command` in a shell with `env` added to its environment, in which `None` unsets what this process has, and calls
    /// `done` with its exit code on a thread of its own once it has ended. It gets none of [`SECRETS`] but by `env`. Its
    /// standard streams are this process's.
    ///
    /// # Errors
    /// The shell or the thread could not be started.
    pub fn run(
        command: &str,
        env: &[(&str, Option<String>)],
        done: impl FnOnce(u8) + Send + 'static,
    ) -> io::Result<Self> {
        let mut shell = shell(command);
        for (name, value) in env {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        // At a terminal it stays in the group in front: others may not read there, and Ctrl-C would not reach it.
        Self::start(shell, !io::stdin().is_terminal(), done)
    }

    /// Starts a command, as the first of a group of its own that is signalled with it if `is_group`, and calls `done` as
    /// [`Child::run`] does.
    ///
    /// # Errors
    /// It or the thread could not be started.
    pub fn start(
        mut command: Command,
        is_group: bool,
        done: impl FnOnce(u8) + Send + 'static,
    ) -> io::Result<Self> {
        if is_group {
            command.process_group(0);
        }
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let (running, runs) = bounded::<Infallible>(0);
        let started = Self {
            process: Arc::new(Mutex::new(Some(pid))),
            is_group,
            runs,
            code: Arc::default(),
            asked: OnceLock::new(),
        };
        let (process, code) = (started.process.clone(), started.code.clone());
        let waits = thread::Builder::new().name("run".into()).spawn(move || {
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(pid), ended), Err(Errno::INTR)) {}
            // It keeps its number until nobody signals it any more.
            let status = {
                let mut process = lock(&process);
                *process = None;
                child.wait()
            };
            let status = status.map_or(1, exit_code);
            let _ = code.set(status);
            drop(running);
            done(status);
        });
        match waits {
            Ok(_) => Ok(started),
            Err(error) => {
                started.kill();
                // Nobody else waits for it.
                let _ = waitpid(Some(pid), WaitOptions::empty());
                Err(error)
            }
        }
    }

    /// Lets it use no more than so much of something from now on, where the system takes that.
    pub fn limit(&self, resource: Resource, most: u64) {
        let process = lock(&self.process);
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        if let Some(error) = process.and_then(|pid| prlimit(Some(pid), resource, limit).err()) {
            tracing::debug!(%error, ?resource, "a command is not limited");
        }
    }

    /// Asks it to end, with what it has started, if nobody has.
    pub fn ask(&self) {
        if self.asked.set(Instant::now()).is_ok() {
            self.signal(Signal::TERM);
        }
    }

    /// Ends it at once.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Has it end, within ten seconds of when it was first asked to. Its exit code: its own, or 128 + signal as shells do.
    pub fn end(&self) -> u8 {
        self.ask();
        let asked = self.asked.get().map_or(END_MAX, Instant::elapsed);
        if self.outlives(END_MAX.saturating_sub(asked)) {
            tracing::warn!("the command of --run does not end, and is killed");
            self.kill();
            // It ends as soon as the kernel lets go of it.
            self.outlives(END_MAX);
        }
        self.code.get().copied().unwrap_or(KILLED)
    }

    fn outlives(&self, limit: Duration) -> bool {
        self.runs.recv_timeout(limit) == Err(RecvTimeoutError::Timeout)
    }

    fn signal(&self, signal: Signal) {
        let process = lock(&self.process);
        let Some(pid) = *process else { return };
        let kill = if self.is_group { kill_process_group } else { kill_process };
        if let Err(error) = kill(pid, signal) {
            tracing::warn!(%error, ?signal, "cannot signal a command of this server");
        }
    }
}

/// Has the kernel kill this process once the thread has ended that started it, in the process of this number.
///
/// # Errors
/// That process did not start this one, or has ended already.
pub fn end_with(parent: u32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // One that had ended by then sends no signal.
    if getppid().and_then(|pid| u32::try_from(pid.as_raw_pid()).ok()) == Some(parent) {
        return Ok(());
    }
    Err(io::Error::other(format!("process {parent} does not wait for this one")))
}

/// Has all other processes come before this one: at the processors, and where memory is short and one must be killed.
pub fn give_way() {
    if let Err(error) = setpriority_process(None, PRIORITY) {
        tracing::debug!(%error, "this process has the usual priority");
    }
    if let Err(error) = fs::write("/proc/self/oom_score_adj", KILLED_FIRST) {
        tracing::debug!(%error, "this process is not the first to be killed where memory is short");
    }
}

/// The least urgent there is.
const PRIORITY: i32 = 19;
/// The most that the kernel takes.
const KILLED_FIRST: &str = "1000";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: see the program's `main`.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command for the shell, which gets none of [`SECRETS`].
pub fn shell(command: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(command);
    for name in SECRETS {
        shell.env_remove(name);
    }
    shell
}

/// Variables by which this process may have been told passwords, which are nobody else's.
pub const SECRETS: [&str; 4] =
    ["DESTAGE_PASSWORD", "DESTAGE_ORIGIN", "DESTAGE_REPLICAS", "DESTAGE_TOKENS"];

fn exit_code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn code_of(command: &str, env: &[(&str, Option<String>)]) -> u8 {
        let (sender, receiver) = bounded(1);
        let child = Child::run(command, env, move |code| sender.send(code).unwrap()).unwrap();
        let code = receiver.recv_timeout(LIMIT).unwrap();
        assert_eq!(child.end(), code);
        code
    }

    #[test]
    fn the_command_sees_its_environment_and_its_status_comes_back() {
        let env = [("DESTAGE_PORT", Some("6380".to_string())), ("HOME", None)];
        assert_eq!(
            code_of("test \"$DESTAGE_PORT\" = 6380 && test -z \"${HOME-}\" && exit 7", &env),
            7
        );
        assert_eq!(code_of("true", &[]), 0);
        assert_eq!(code_of("kill -TERM $$", &[]), 143);
    }

    #[test]
    fn a_command_that_outlives_its_server_is_asked_to_end_or_killed() {
        let child = Child::run("exec sleep 3600", &[], |_| {}).unwrap();
        assert_eq!(child.end(), 143);
        let child = Child::run("trap '' TERM; while :; do sleep 3600; done", &[], |_| {}).unwrap();
        child.kill();
        assert_eq!(child.end(), KILLED);
    }
}
