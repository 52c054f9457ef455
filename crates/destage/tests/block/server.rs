//! The real binary with one volume: started, asked, killed.

use crate::harness::scratch::{Scratch, adopt, release};
use crate::harness::{PATIENCE, eventually};
use destage_block::nbd::client::{Client, ClientOptions};
use rustix::process::Signal;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The binary under test.
pub(crate) fn destage() -> Command {
    let mut command = Command::new(crate::harness::server::binary());
    command.env_remove("DESTAGE_PASSWORD").env_remove("DESTAGE_ADMIN").stdin(Stdio::null());
    command
}

/// How to start `destage block serve` on one volume.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) origin: String,
    pub(crate) cache: PathBuf,
    pub(crate) redo: Option<PathBuf>,
    listen: String,
    log: PathBuf,
    is_sized: bool,
    arguments: Vec<String>,
}

impl Launch {
    /// A volume before this origin; everything else lies in the test's folder.
    pub(crate) fn before(scratch: &Scratch, origin: &str) -> Self {
        Self {
            origin: origin.to_owned(),
            cache: scratch.join("cache.img"),
            redo: None,
            listen: format!("unix:{}", scratch.join("nbd.sock").display()),
            log: scratch.join("block.log"),
            is_sized: true,
            arguments: Vec::new(),
        }
    }

    /// With a cache there that is as large as it is unless told.
    pub(crate) fn on_cache(mut self, cache: &Path) -> Self {
        (self.cache, self.is_sized) = (cache.to_owned(), false);
        self
    }

    /// Before another origin.
    pub(crate) fn to(mut self, origin: &str) -> Self {
        origin.clone_into(&mut self.origin);
        self
    }

    /// With the redo store there.
    pub(crate) fn redo_at(mut self, path: PathBuf) -> Self {
        self.redo = Some(path);
        self
    }

    /// For clients that connect there.
    pub(crate) fn listening(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// With its log there.
    pub(crate) fn logging_to(mut self, path: PathBuf) -> Self {
        self.log = path;
        self
    }

    /// More arguments.
    pub(crate) fn with(mut self, arguments: &[&str]) -> Self {
        self.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    fn command(&self) -> Command {
        let mut command = destage();
        command.args(["block", "serve"]);
        if !self.arguments.iter().any(|argument| argument == "--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        if self.is_sized && !self.arguments.iter().any(|argument| argument == "--cache-size") {
            command.args(["--cache-size", "64M"]);
        }
        command.args(["--origin", &self.origin]).arg("--cache").arg(&self.cache);
        command.args(["--listen", &self.listen]);
        if let Some(redo) = &self.redo {
            command.arg("--redo").arg(redo);
        }
        command.args(&self.arguments);
        command
    }

    /// Starts it and waits for the ready line.
    #[track_caller]
    pub(crate) fn start(&self) -> Server {
        let log = File::options().create(true).append(true).open(&self.log).expect("a log");
        let mut child =
            self.command().stdout(Stdio::piped()).stderr(log).spawn().expect("the binary starts");
        adopt(child.id());
        let output = child.stdout.take().expect("the output is piped");
        let line = BufReader::new(output).lines().next().and_then(Result::ok);
        let Some(ready) = line else {
            release(child.id());
            let status = child.wait();
            panic!("destage did not start: {status:?}\n{}", log_text(&self.log));
        };
        let field = |name: &str| {
            let rest = ready.split_once(name).expect("the ready line has it").1;
            rest.split(' ').next().expect("a word").to_owned()
        };
        Server { child, uri: field("uri="), admin: field("admin="), log: self.log.clone() }
    }

    /// Starts it and kills it after this time, ready or not.
    #[track_caller]
    pub(crate) fn killed_after(&self, time: std::time::Duration) {
        let mut command = self.command();
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = child.expect("the binary starts");
        std::thread::sleep(time);
        child.kill().and_then(|()| child.wait()).expect("it is our child");
    }

    /// Starts it, expecting it to end by itself; its exit code and what it said.
    #[track_caller]
    pub(crate) fn refused(&self) -> (i32, String) {
        let output = self.command().output().expect("the binary starts");
        let text = format!("{}{}", text(&output.stdout), text(&output.stderr));
        (output.status.code().unwrap_or(-1), text)
    }
}

/// What a server said, if that can be read: a device has no end.
fn log_text(log: &Path) -> String {
    if log.is_file() { std::fs::read_to_string(log).unwrap_or_default() } else { String::new() }
}

/// Bytes that a program printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A running server; killed with its test.
pub(crate) struct Server {
    child: Child,
    pub(crate) uri: String,
    pub(crate) admin: String,
    log: PathBuf,
}

impl Server {
    /// A connection of its own.
    pub(crate) fn client(&self) -> Client {
        connect(&self.uri)
    }

    /// A command of `destage block`; its output.
    #[track_caller]
    pub(crate) fn ask(&self, arguments: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.try_ask(arguments);
        assert!(status.success(), "{arguments:?}: {status}\n{}", text(&stderr));
        text(&stdout)
    }

    /// The same, whatever comes of it.
    pub(crate) fn try_ask(&self, arguments: &[&str]) -> Output {
        let (command, rest) = arguments.split_first().expect("a command");
        let mut process = destage();
        process.args(["block", command, "--admin", &self.admin]).args(rest);
        process.output().expect("the binary starts")
    }

    /// The status as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let json = self.ask(&["status", "--format", "json"]);
        serde_json::from_str(&json).expect("the status is JSON")
    }

    /// What the volume's status says under this name.
    pub(crate) fn volume(&self, field: &str) -> serde_json::Value {
        self.status()["volumes"][0][field].clone()
    }

    /// As a power cut takes it; its clients see their connections end.
    pub(crate) fn cut(&self) {
        crate::harness::server::signal(self.child.id(), Signal::KILL);
    }

    /// As a power cut takes it.
    pub(crate) fn kill(mut self) {
        self.cut();
        self.reap();
    }

    /// Asks it to end; its exit code.
    pub(crate) fn stop(mut self) -> i32 {
        self.terminate();
        self.wait()
    }

    /// Asks it to end.
    pub(crate) fn terminate(&self) {
        crate::harness::server::signal(self.child.id(), Signal::TERM);
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        log_text(&self.log)
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> i32 {
        let mut code = None;
        eventually("the server ends", PATIENCE * 2, || {
            code = self.child.try_wait().expect("it is our child");
            code.is_some()
        });
        release(self.child.id());
        code.and_then(|status| status.code()).unwrap_or(-1)
    }

    fn reap(&mut self) {
        release(self.child.id());
        // It may have ended by itself.
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            if std::thread::panicking() {
                eprintln!("{}", log_text(&self.log));
            }
        }
        self.reap();
    }
}

/// A connection to an export.
#[track_caller]
pub(crate) fn connect(uri: &str) -> Client {
    let uri = uri.parse().expect("an NBD URI");
    let options = ClientOptions { timeout: PATIENCE, ..ClientOptions::default() };
    Client::connect(&uri, &options).expect("the server takes connections")
}

/// Brings the origin to the last atomic group that was committed, as one does without the cache.
#[track_caller]
pub(crate) fn replay(origin: &str, redo: &Path) {
    let mut replay = destage();
    replay.args(["block", "replay", "--origin", origin, "--redo"]).arg(redo);
    let output = replay.output().expect("the binary starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A disk image of zeros.
pub(crate) fn image(scratch: &Scratch, bytes: u64) -> PathBuf {
    let path = scratch.join("disk.img");
    File::create(&path).and_then(|file| file.set_len(bytes)).expect("a file");
    path
}

/// A slow disk: nbdkit before a file, each write delayed. Ends with its test.
pub(crate) struct SlowDisk {
    child: Child,
    pub(crate) uri: String,
}

impl SlowDisk {
    /// Serves `image` with this delay of each write and flush, milliseconds; `None` if nbdkit is not there.
    pub(crate) fn start(scratch: &Scratch, image: &Path, delay_ms: u32) -> Option<Self> {
        Self::filtered(scratch, image, &["delay"], &delays(delay_ms))
    }

    /// The same with one request at a time, whatever the connection: so many writes take at least so many delays.
    pub(crate) fn one_by_one(scratch: &Scratch, image: &Path, delay_ms: u32) -> Option<Self> {
        let mut how = delays(delay_ms).to_vec();
        how.push("serialize=all-requests".into());
        Self::filtered(scratch, image, &["noparallel", "delay"], &how)
    }

    /// Serves `image` with at most so many bytes each second; `None` if nbdkit is not there.
    pub(crate) fn with_rate(scratch: &Scratch, image: &Path, bytes: u64) -> Option<Self> {
        // Without the two seconds that it lets through at once after a pause.
        let rate = [format!("rate={}", bytes * 8), "burstiness=0.1".into()];
        Self::filtered(scratch, image, &["rate"], &rate)
    }

    /// Serves `image` and writes down every request in `origin.log`; `None` if nbdkit is not there.
    pub(crate) fn noting(scratch: &Scratch, image: &Path) -> Option<Self> {
        let log = format!("logfile={}", scratch.join("origin.log").display());
        Self::filtered(scratch, image, &["log"], &[log])
    }

    /// Has it answer nothing any more.
    pub(crate) fn hang(&self) {
        crate::harness::server::signal(self.child.id(), Signal::STOP);
    }

    fn filtered(scratch: &Scratch, image: &Path, filters: &[&str], how: &[String]) -> Option<Self> {
        if !crate::harness::has("nbdkit") {
            return None;
        }
        let socket = scratch.join("origin.sock");
        // One before it may have left its own.
        let _ = std::fs::remove_file(&socket);
        let child = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .args(filters.iter().map(|filter| format!("--filter={filter}")))
            .arg("file")
            .arg(image)
            .args(how)
            .stdin(Stdio::null())
            .spawn()
            .expect("nbdkit starts");
        adopt(child.id());
        // The file is there a moment before it listens.
        eventually("nbdkit listens", PATIENCE, || UnixStream::connect(&socket).is_ok());
        Some(Self { child, uri: format!("nbd+unix:///?socket={}", socket.display()) })
    }
}

fn delays(delay_ms: u32) -> [String; 2] {
    [format!("delay-write={delay_ms}ms"), format!("delay-zero={delay_ms}ms")]
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}
