//! `--auto-advice`: a server asks for advice on its own recording.
//!
//! Advice is a search with many simulations. So `destage sim advise` runs in a process of its own, which is the same program
//! once more: one at a time, with one thread, behind all other processes, within bounds of time and memory. What comes of it the
//! server takes as one more step to be tried: see [`crate::auto`].

use crate::child::{Child, SECRETS};
use crate::memory;
use crate::units::{Bytes, Interval};
use destage_core::Span;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Resource;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{self, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The program that runs, also if another file has taken its place.
const SELF: &str = "/proc/self/exe";
/// The longest that one advice may take, of time and of a processor's time.
const TAKES_MAX: Duration = Duration::from_secs(600);
/// Advice takes at most this share of the memory that the server may use.
const MEMORY_DIVISOR: u64 = 4;
/// And so many bytes where nobody knows how much that is.
const MEMORY_MAX: u64 = 1 << 30;
/// More than an advice ever says, bytes; and of it is told to people, characters.
const SAYS_MAX: u64 = 8 << 20;
const TOLD_MAX: usize = 1_000;
/// After failures the next advice is asked for later and later, up to this, unless it is later anyway.
const WAIT_MAX: Span = Span::from_secs(86_400);

/// What the flags of `sim advise` take.
const RPO: (Span, Span) = (Span::from_millis(100), Span::from_secs(86_400));
const ROWS: (u64, u64) = (1 << 20, 16 << 40);
const BLOCKS: (u64, u64) = (64 << 20, 16 << 40);

/// A recording of a live server.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Which volume, for the log; empty where there is only one.
    pub place: String,
    /// Its name, as `--record` has it.
    pub path: PathBuf,
    /// How long after one advice the next one is asked for.
    pub every: Span,
}

/// What advice is to be for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// `D`: how many of the latest writes, in time, may be lost with host and cache.
    pub staleness: Span,
    /// Where.
    pub front: Front,
}

/// A front end with what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// Rows, in so many bytes of memory.
    Rows(u64),
    /// A volume, in a cache of so many bytes.
    Blocks(u64),
}

/// A server that is advised. Called on a thread of its own; may block.
pub trait Advised: Send + Sync {
    /// What to ask of the recording of this place; `None` while nothing is.
    fn question(&self, place: &str) -> Option<Question>;

    /// Hands over what was advised, as words of the command `policy`, or why nothing was.
    ///
    /// # Errors
    /// The words cannot be read, or the server does not answer.
    fn advise(&self, place: &str, advice: Result<Vec<String>, String>) -> Result<(), String>;
}

/// Asks until it is dropped, which ends what is under way.
#[derive(Debug)]
pub struct Adviser(Arc<Shared>);

impl Adviser {
    /// Asks about these recordings from now on; nothing where there are none.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(recordings: Vec<Recording>, server: Arc<dyn Advised>) -> io::Result<Option<Self>> {
        Self::start_with(vec![SELF.into()], recordings, server)
    }

    fn start_with(
        program: Vec<OsString>,
        recordings: Vec<Recording>,
        server: Arc<dyn Advised>,
    ) -> io::Result<Option<Self>> {
        if recordings.is_empty() {
            return Ok(None);
        }
        let shared = Arc::new(Shared { program, ..Shared::default() });
        let its = shared.clone();
        thread::Builder::new()
            .name("advice".into())
            .spawn(move || its.run(recordings, &*server))?;
        Ok(Some(Self(shared)))
    }
}

impl Drop for Adviser {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        if let Some(child) = &state.child {
            child.kill();
        }
        self.0.news.notify_all();
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// What is run, with its first arguments.
    program: Vec<OsString>,
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Nobody is to be asked any more.
    is_over: bool,
    /// The process under way, and how many there were.
    child: Option<Child>,
    count: u64,
    /// How it has ended.
    code: Option<u8>,
}

/// What `sim advise` says, as far as it counts here.
#[derive(Debug, Deserialize)]
struct Said {
    online: String,
    reason: Vec<String>,
}

impl Said {
    /// What stands behind `destage policy`, or `destage block policy`.
    fn words(&self) -> Vec<String> {
        let words = self.online.split_whitespace().skip_while(|word| *word != "policy");
        words.skip(1).map(str::to_owned).collect()
    }
}

impl Shared {
    fn run(self: Arc<Self>, recordings: Vec<Recording>, server: &dyn Advised) {
        let next = |every: Span, failures| {
            Instant::now() + Duration::from_nanos(waits(every, failures).as_nanos())
        };
        let mut all: Vec<(Instant, Recording, u32)> =
            recordings.into_iter().map(|it| (next(it.every, 0), it, 0)).collect();
        while let Some((due, recording, failures)) = all.iter_mut().min_by_key(|it| it.0) {
            if self.wait(*due, |_| false).is_over {
                return;
            }
            let asked = self.ask(recording, server);
            if self.state().is_over {
                return;
            }
            match asked {
                Ok(()) => *failures = 0,
                Err(why) => {
                    // What fails once may fail each time.
                    if *failures == 0 {
                        let recording = recording.path.display();
                        tracing::warn!(%recording, why, "auto: there is no advice; it is asked for again later");
                    }
                    *failures = failures.saturating_add(1);
                }
            }
            *due = next(recording.every, *failures);
        }
    }

    /// Asks about one recording, and hands over what is advised.
    fn ask(self: &Arc<Self>, recording: &Recording, server: &dyn Advised) -> Result<(), String> {
        let place = &recording.place;
        let Some(question) = server.question(place) else { return Ok(()) };
        match self.advice(recording, question) {
            // Somebody has set something else meanwhile, or switched it off.
            Ok(_) if server.question(place) != Some(question) => Ok(()),
            Ok(said) => {
                let why = cut(said.reason.join(" "));
                tracing::info!(place, why, "auto: advised is '{}'", said.online);
                server.advise(place, Ok(said.words()))
            }
            Err(why) => {
                if !self.state().is_over {
                    server.advise(place, Err(why.clone()))?;
                }
                Err(why)
            }
        }
    }

    fn advice(self: &Arc<Self>, recording: &Recording, question: Question) -> Result<Said, String> {
        let text = |error: io::Error| error.to_string();
        // Whatever it says and however it ends, nobody waits for a pipe.
        let file = || {
            let made = memfd_create("advice", MemfdFlags::CLOEXEC).map(File::from);
            made.map_err(|error| text(error.into()))
        };
        let (out, log) = (file()?, file()?);
        let (program, first) = self.program.split_first().ok_or("there is no program")?;
        let mut command = Command::new(program);
        command
            .arg0("destage")
            .args(first)
            .args(arguments(recording, question))
            // Also where the server is killed.
            .arg(format!("--ends-with={}", process::id()))
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(out.try_clone().map_err(text)?)
            .stderr(log.try_clone().map_err(text)?);
        for name in SECRETS {
            command.env_remove(name);
        }
        let code = self.run_to_end(command)?;
        if code == 0 {
            let found: Said = serde_json::from_slice(&said(out).map_err(text)?)
                .map_err(|error| format!("destage sim advise has said something else: {error}"))?;
            let is_advice = !found.words().is_empty() && found.online.len() <= TOLD_MAX;
            return is_advice
                .then_some(found)
                .ok_or_else(|| "destage sim advise has advised nothing".into());
        }
        let log = said(log).map_err(text)?;
        let log = String::from_utf8_lossy(&log);
        let last = log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let last = cut(last.trim_start_matches("error: ").to_owned());
        Err(format!("destage sim advise ended with {code}: {last}"))
    }

    /// Its exit code.
    fn run_to_end(self: &Arc<Self>, command: Command) -> Result<u8, String> {
        {
            let mut state = self.state();
            if state.is_over {
                return Err("the server ends".into());
            }
            state.code = None;
            state.count += 1;
            let (its, count) = (self.clone(), state.count);
            let done = move |code| {
                let mut state = its.state();
                // One that was given up may end while the next one runs.
                if state.count == count {
                    state.code = Some(code);
                    its.news.notify_all();
                }
            };
            let child = Child::start(command, false, done)
                .map_err(|error| format!("destage sim advise cannot be started: {error}"))?;
            let memory = memory::usable_bytes().map_or(MEMORY_MAX, |all| all / MEMORY_DIVISOR);
            child.limit(Resource::Cpu, TAKES_MAX.as_secs());
            child.limit(Resource::Data, memory);
            child.limit(Resource::Fsize, SAYS_MAX);
            child.limit(Resource::Core, 0);
            state.child = Some(child);
        }
        let has_ended = |state: &State| state.code.is_some();
        let mut state = self.wait(Instant::now() + TAKES_MAX, has_ended);
        let child = state.child.take();
        match state.code {
            Some(code) => Ok(code),
            None => {
                drop(state);
                if let Some(child) = child {
                    child.kill();
                }
                Err(format!("it takes longer than {} s: record less", TAKES_MAX.as_secs()))
            }
        }
    }

    /// Waits for this moment, for something, or for the end.
    fn wait(&self, until: Instant, is_there: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let limit = until.saturating_duration_since(Instant::now());
        let waits = |state: &mut State| !state.is_over && !is_there(state);
        let (state, _) = self
            .news
            .wait_timeout_while(self.state(), limit, waits)
            .unwrap_or_else(PoisonError::into_inner);
        state
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic ends the process: see the program's `main`.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long after an advice the next one is asked for, if so many of the last ones failed: twice as long for each.
fn waits(every: Span, failures: u32) -> Span {
    let most = WAIT_MAX.max(every);
    Span(every.0.saturating_mul(1 << failures.min(32))).min(most)
}

/// No more of it than people read.
fn cut(text: String) -> String {
    match text.char_indices().nth(TOLD_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// What was written into a file, from its begin.
fn said(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(SAYS_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn arguments(recording: &Recording, question: Question) -> Vec<OsString> {
    let mut trace = OsString::from("--trace=");
    trace.push(&recording.path);
    let staleness = Interval(question.staleness.clamp(RPO.0, RPO.1));
    let (front, flag, (low, high), bytes) = match question.front {
        Front::Rows(bytes) => ("data", "ram", ROWS, bytes),
        Front::Blocks(bytes) => ("block", "flash", BLOCKS, bytes),
    };
    let mut all: Vec<OsString> = ["sim", "advise", "--format=json"].map(OsString::from).into();
    all.push(trace);
    all.push(format!("--rpo={staleness}").into());
    all.push(format!("--front={front}").into());
    all.push(format!("--{flag}={}", Bytes(bytes.clamp(low, high))).into());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, Sender, unbounded};

    const LIMIT: Duration = Duration::from_secs(60);

    /// A place, and what was advised there.
    type Told = (String, Result<Vec<String>, String>);

    /// A server that passes on what it is advised.
    struct Server(Option<Question>, Sender<Told>);

    impl Advised for Server {
        fn question(&self, _: &str) -> Option<Question> {
            self.0
        }

        fn advise(&self, place: &str, advice: Result<Vec<String>, String>) -> Result<(), String> {
            self.1.send((place.to_owned(), advice)).map_err(|error| error.to_string())
        }
    }

    const ROWS_ASKED: Question =
        Question { staleness: Span::from_secs(5), front: Front::Rows(64 << 20) };

    /// An adviser whose program is this script, and what it advises.
    fn asking(
        folder: &tempfile::TempDir,
        script: &str,
        question: Option<Question>,
    ) -> (Adviser, Receiver<Told>) {
        let script = format!("cd {}\n{script}", folder.path().display());
        let program = ["/bin/sh", "-c", &script, "sh"].map(OsString::from).into();
        let (sender, receiver) = unbounded();
        let recording =
            Recording { place: "v".into(), path: "/some/run".into(), every: Span::from_millis(10) };
        let server = Arc::new(Server(question, sender));
        let adviser = Adviser::start_with(program, vec![recording], server).unwrap().unwrap();
        (adviser, receiver)
    }

    #[test]
    fn what_is_asked_and_what_is_advised_is_passed_on_again_and_again() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo \"$@\" $RAYON_NUM_THREADS $DESTAGE_PASSWORD >> asked\n\
                      echo '{\"online\": \"destage block policy journaled linger=5ms\", \"reason\": [\"why\"], \"x\": 1}'";
        let (_adviser, advised) = asking(&folder, script, Some(ROWS_ASKED));
        for _ in 0..2 {
            let words = vec!["journaled".to_owned(), "linger=5ms".to_owned()];
            assert_eq!(advised.recv_timeout(LIMIT), Ok(("v".to_owned(), Ok(words))));
        }
        let asked = std::fs::read_to_string(folder.path().join("asked")).unwrap();
        let flags = "--trace=/some/run --rpo=5s --front=data --ram=64M";
        let first = asked.lines().next().unwrap();
        let ends = format!("--ends-with={}", process::id());
        assert_eq!(first, format!("sim advise --format=json {flags} {ends} 1"));
    }

    #[test]
    fn what_the_flags_do_not_take_is_asked_as_near_as_they_do() {
        let recording =
            Recording { place: String::new(), path: "run".into(), every: Span::from_secs(1) };
        for (staleness, front, flags) in [
            (Span::MAX, Front::Blocks(1), ["--rpo=1d", "--front=block", "--flash=64M"]),
            (Span::ZERO, Front::Rows(u64::MAX), ["--rpo=100ms", "--front=data", "--ram=16T"]),
        ] {
            let all = arguments(&recording, Question { staleness, front });
            assert_eq!(all[4..], flags.map(OsString::from), "{all:?}");
        }
    }

    #[test]
    fn a_failure_says_why_and_the_next_one_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo 'a warning' >&2; echo 'error: the trace has no times' >&2; exit 17";
        let (_adviser, advised) = asking(&folder, script, Some(ROWS_ASKED));
        for _ in 0..2 {
            let why = advised.recv_timeout(LIMIT).unwrap().1.unwrap_err();
            assert_eq!(why, "destage sim advise ended with 17: the trace has no times");
        }
        let folder = tempfile::tempdir().unwrap();
        for (says, told) in [
            ("echo what", "something else"),
            ("echo '{\"online\": \"destage policy\", \"reason\": []}'", "advised nothing"),
            // A pipe that is never full, and yet bounded.
            ("exec cat /dev/zero", "ended with 153"),
        ] {
            let (_adviser, advised) = asking(&folder, says, Some(ROWS_ASKED));
            let why = advised.recv_timeout(LIMIT).unwrap().1.unwrap_err();
            assert!(why.contains(told), "{says}: {why}");
        }
    }

    #[test]
    fn after_failures_it_is_asked_for_later_and_later() {
        let (second, day) = (Span::from_secs(1), Span::from_secs(86_400));
        let all = [0, 1, 3, 60].map(|failures| waits(second, failures));
        assert_eq!(all, [second, Span::from_secs(2), Span::from_secs(8), day]);
        let week = Span::from_secs(7 * 86_400);
        assert_eq!((waits(week, 0), waits(week, 9)), (week, week));
        assert_eq!(
            (cut("short".into()), cut("ä".repeat(1_001)).chars().count()),
            ("short".into(), 1_003)
        );
    }

    /// A server whose user changes it while the search is under way.
    struct Changing(Sender<Told>, std::sync::atomic::AtomicU64);

    impl Advised for Changing {
        fn question(&self, _: &str) -> Option<Question> {
            let asked = self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let staleness = Span::from_secs(if asked == 0 { 30 } else { 2 });
            Some(Question { staleness, ..ROWS_ASKED })
        }

        fn advise(&self, place: &str, advice: Result<Vec<String>, String>) -> Result<(), String> {
            self.0.send((place.to_owned(), advice)).map_err(|error| error.to_string())
        }
    }

    #[test]
    fn what_was_asked_about_something_else_is_dropped() {
        let script = "echo '{\"online\": \"destage policy '$5'\", \"reason\": []}'";
        let program = ["/bin/sh", "-c", script, "sh"].map(OsString::from).into();
        let (sender, advised) = unbounded();
        let server = Arc::new(Changing(sender, Default::default()));
        let recording =
            Recording { place: "v".into(), path: "/run".into(), every: Span::from_millis(10) };
        let _adviser = Adviser::start_with(program, vec![recording], server).unwrap().unwrap();
        // The fifth argument is --rpo: that of the first search is another one.
        let (_, words) = advised.recv_timeout(LIMIT).unwrap();
        assert_eq!(words, Ok(vec!["--rpo=2s".to_owned()]));
    }

    #[test]
    fn while_nothing_is_asked_for_nothing_is_started() {
        let folder = tempfile::tempdir().unwrap();
        let (adviser, advised) = asking(&folder, "touch ran", None);
        assert!(advised.recv_timeout(Duration::from_millis(100)).is_err());
        drop(adviser);
        assert!(!folder.path().join("ran").exists());
        // Its thread ends, too.
        assert_eq!(
            advised.recv_timeout(LIMIT),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected)
        );
    }

    #[test]
    fn what_is_under_way_ends_with_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let (adviser, advised) = asking(&folder, "echo $$ > id; exec sleep 600", Some(ROWS_ASKED));
        let id = || std::fs::read_to_string(folder.path().join("id")).unwrap_or_default();
        let began = Instant::now();
        while !id().ends_with('\n') && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
        let process = PathBuf::from("/proc").join(id().trim());
        assert!(process.exists());
        drop(adviser);
        assert!(advised.recv_timeout(LIMIT).is_err(), "a server that ends is told nothing");
        while process.exists() && began.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!process.exists());
    }
}
