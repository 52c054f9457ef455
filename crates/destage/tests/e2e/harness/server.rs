//! The real binary: started on ephemeral ports, watched, killed.

use super::PATIENCE;
use super::resp::Client;
use super::scratch::{Scratch, adopt, release};
use rustix::process::{Pid, Signal};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How to start `destage serve`. May be used again and again on the same data folder.
#[derive(Clone)]
pub(crate) struct Launch {
    data: PathBuf,
    log: PathBuf,
    listen: String,
    admin: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// The example shop in the test's folder.
    pub(crate) fn example(scratch: &Scratch) -> Self {
        Self::in_folder(scratch, "data")
    }

    /// Before this origin, without a password.
    pub(crate) fn before(scratch: &Scratch, origin: &str) -> Self {
        let launch = Self::example(scratch).with(&["--origin", origin, "--no-auth"]);
        if origin.starts_with("sqlite:") {
            // A slow disk keeps the file locked for long.
            launch.with(&["--origin-timeout", "50s"])
        } else {
            launch
        }
    }

    /// The example shop in that data folder.
    pub(crate) fn in_folder(scratch: &Scratch, data: &str) -> Self {
        let log = scratch.join(format!("{data}.log"));
        let any = || "127.0.0.1:0".to_owned();
        Self {
            data: scratch.join(data),
            log,
            listen: any(),
            admin: any(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Another data folder, everything else the same.
    pub(crate) fn elsewhere(&self, scratch: &Scratch, data: &str) -> Self {
        Self {
            arguments: self.arguments.clone(),
            environment: self.environment.clone(),
            ..Self::in_folder(scratch, data)
        }
    }

    /// With its data in that folder; the log stays.
    pub(crate) fn at(mut self, data: PathBuf) -> Self {
        self.data = data;
        self
    }

    /// More arguments.
    pub(crate) fn with(&self, arguments: &[&str]) -> Self {
        let mut more = self.clone();
        more.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        more
    }

    /// With this in its environment.
    #[allow(dead_code, reason = "only tests of progress need it")]
    pub(crate) fn hearing(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Another address to listen on.
    pub(crate) fn listening(mut self, listen: &str) -> Self {
        listen.clone_into(&mut self.listen);
        self
    }

    /// Another address for administration.
    pub(crate) fn administered(mut self, admin: &str) -> Self {
        admin.clone_into(&mut self.admin);
        self
    }

    /// The data folder.
    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// Starts it and waits for the ready line.
    ///
    /// # Panics
    /// If it ends instead or takes too long.
    #[track_caller]
    pub(crate) fn start(&self) -> Server {
        match self.try_start(PATIENCE) {
            Ok(server) => server,
            Err(exit) => panic!("destage did not start: exit code {:?}\n{}", exit.code, exit.log),
        }
    }

    /// Starts it, expecting it to refuse.
    ///
    /// # Panics
    /// If it gets ready.
    #[track_caller]
    pub(crate) fn refused(&self) -> Exit {
        match self.try_start(PATIENCE) {
            Ok(server) => panic!("destage started: {}", server.ready),
            Err(exit) => exit,
        }
    }

    /// Starts it; an error if it ends before it is ready, or is not ready in time (then it is killed).
    pub(crate) fn try_start(&self, limit: Duration) -> Result<Server, Exit> {
        let mut starting = self.spawn();
        let ready = starting.ready_line(limit);
        match ready
            .as_deref()
            .and_then(|line| Some((field(line, "listen=")?, field(line, "admin=")?)))
        {
            Some((listen, admin)) => {
                let ready = ready.unwrap_or_default();
                Ok(Server { starting, listen, admin, ready })
            }
            None => {
                let exit = starting.exited(limit);
                Err(exit.unwrap_or_else(|| starting.end(Signal::KILL, PATIENCE)))
            }
        }
    }

    /// Starts it without waiting.
    pub(crate) fn spawn(&self) -> Starting {
        let log = File::options().create(true).append(true).open(&self.log);
        let start = std::fs::metadata(&self.log).map_or(0, |file| file.len());
        let mut child = Command::new(binary())
            .arg("serve")
            .args(["--listen", &self.listen, "--admin", &self.admin, "--data"])
            .arg(&self.data)
            .args(&self.arguments)
            .env_remove("DESTAGE_PASSWORD")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the log can be written"))
            .spawn()
            .expect("the binary starts");
        adopt(child.id());
        let lines = Mutex::new(lines(child.stdout.take().expect("the output is piped")));
        Starting { child, lines, log: self.log.clone(), log_start: start }
    }
}

/// The binary under test: `DESTAGE_BIN`, or the one that cargo built beside the tests.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("DESTAGE_BIN")
        .map_or_else(|| env!("CARGO_BIN_EXE_destage").into(), PathBuf::from)
}

/// A process that may not be ready yet.
pub(crate) struct Starting {
    child: Child,
    /// Behind a lock so that tests can share a server between threads.
    lines: Mutex<mpsc::Receiver<String>>,
    log: PathBuf,
    log_start: u64,
}

impl Starting {
    fn lines(&self) -> MutexGuard<'_, mpsc::Receiver<String>> {
        self.lines.lock().expect("no holder panics")
    }

    fn ready_line(&mut self, limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines().recv_timeout(left).ok()?;
            if line.starts_with("destage ready:") {
                return Some(line);
            }
        }
    }

    /// What it has written to standard error since it was started.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[self.log_start as usize..]).into_owned()
    }

    /// How it ended, if it does within `limit`.
    pub(crate) fn exited(&mut self, limit: Duration) -> Option<Exit> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("the process is ours") {
                release(self.child.id());
                let printed = self.lines().try_iter().collect::<Vec<_>>().join("\n");
                return Some(Exit { code: status.code(), log: self.log(), printed });
            }
            if Instant::now() >= deadline {
                return None;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Signals it and waits for its end.
    ///
    /// # Panics
    /// If it has not ended within `limit`.
    #[track_caller]
    pub(crate) fn end(&mut self, by: Signal, limit: Duration) -> Exit {
        signal(self.child.id(), by);
        match self.exited(limit) {
            Some(exit) => exit,
            None => panic!("destage has not ended within {limit:?}\n{}", self.log()),
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        release(self.child.id());
        if thread::panicking() {
            eprintln!("--- log of destage\n{}---", self.log());
        }
    }
}

/// How a process ended.
pub(crate) struct Exit {
    /// The exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// What it wrote to standard error.
    pub(crate) log: String,
    /// What it wrote to standard output and nobody has read.
    pub(crate) printed: String,
}

impl Exit {
    /// Checks the code and that the message mentions each of `words`, in any case.
    ///
    /// # Panics
    /// If not.
    #[track_caller]
    pub(crate) fn says(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}", self.log);
        let said = format!("{}\n{}", self.log, self.printed).to_lowercase();
        for word in words {
            assert!(said.contains(&word.to_lowercase()), "does not mention {word:?}: {}", self.log);
        }
    }
}

/// A server that is ready. Killed when dropped.
pub(crate) struct Server {
    starting: Starting,
    /// Where it listens for clients.
    pub(crate) listen: SocketAddr,
    /// Where it listens for administration.
    pub(crate) admin: SocketAddr,
    /// The ready line.
    pub(crate) ready: String,
}

impl Server {
    /// A new connection.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.listen)
    }

    /// As [`Server::client`], of a server that may have ended.
    pub(crate) fn try_client(&self) -> std::io::Result<Client> {
        Client::try_connect(self.listen)
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.starting.child.id()
    }

    /// The port for clients, as text.
    pub(crate) fn port(&self) -> String {
        self.listen.port().to_string()
    }

    /// What it has written to standard error.
    pub(crate) fn log(&self) -> String {
        self.starting.log()
    }

    /// The next `count` lines that it prints on standard output after the ready line; fewer if no more come in time.
    pub(crate) fn printed(&self, count: usize) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let left = || deadline.saturating_duration_since(Instant::now());
        let next = || self.starting.lines().recv_timeout(left()).ok();
        std::iter::from_fn(next).take(count).collect()
    }

    /// Sends it a signal that does not end it.
    pub(crate) fn signal(&self, by: Signal) {
        signal(self.starting.child.id(), by);
    }

    /// kill -9.
    #[track_caller]
    pub(crate) fn kill(mut self) {
        self.starting.end(Signal::KILL, PATIENCE);
    }

    /// SIGTERM, and its end within `limit`.
    #[track_caller]
    pub(crate) fn terminate(mut self, limit: Duration) -> Exit {
        self.starting.end(Signal::TERM, limit)
    }

    /// Any signal, and its end within `limit`.
    #[track_caller]
    pub(crate) fn end(mut self, by: Signal, limit: Duration) -> Exit {
        self.starting.end(by, limit)
    }

    /// Its end by itself within `limit`.
    ///
    /// # Panics
    /// If it goes on.
    #[track_caller]
    pub(crate) fn ends(mut self, limit: Duration) -> Exit {
        let exit = self.starting.exited(limit);
        exit.unwrap_or_else(|| panic!("destage goes on\n{}", self.starting.log()))
    }

    /// Sends everything to the origin.
    #[track_caller]
    pub(crate) fn drain(&self) {
        let mut client = self.client();
        client.patience(PATIENCE * 2);
        let reply = client.run("DESTAGE DRAIN");
        assert!(!reply.is_error(), "{reply:?}");
        // A drain may also be a mode rather than a wait.
        super::eventually("everything is at the origin", PATIENCE, || {
            self.status()["writes"]["dirty_groups"] == 0
        });
    }

    /// The page at that path of the admin port.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.admin);
        let began = Instant::now();
        loop {
            match direct().get(&url).call() {
                Ok(mut answer) => {
                    return answer.body_mut().read_to_string().expect("the page is text");
                }
                // The disk stalls, and the server with it.
                Err(ureq::Error::StatusCode(503)) if began.elapsed() < PATIENCE => {}
                Err(error) => panic!("{url}: {error}"),
            }
        }
    }

    /// Whether it says that it takes writes.
    #[track_caller]
    pub(crate) fn is_ready(&self) -> bool {
        let url = format!("http://{}/readyz", self.admin);
        match direct().get(&url).call() {
            Ok(_) => true,
            Err(ureq::Error::StatusCode(503)) => false,
            Err(error) => panic!("{url}: {error}"),
        }
    }

    /// Sends a command to the admin port; the answer, also of a refusal.
    #[track_caller]
    pub(crate) fn post(&self, command: &str, arguments: &[&str]) -> String {
        let url = format!("http://{}/command", self.admin);
        let body = serde_json::json!({ "command": command, "args": arguments });
        let request = direct().post(&url).config().http_status_as_error(false).build();
        let mut answer = request.send_json(body).unwrap_or_else(|error| panic!("{url}: {error}"));
        answer.body_mut().read_to_string().expect("the answer is text")
    }

    /// `/status`.
    #[track_caller]
    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/status")).expect("the status is JSON")
    }

    /// The value of a metric; the sum where it has labels.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        let values: Vec<f64> = page
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        assert!(!values.is_empty(), "no metric {name} in:\n{page}");
        values.iter().sum()
    }
}

/// Sends a signal to a process of ours.
pub(crate) fn signal(process: u32, signal: Signal) {
    let id = Pid::from_raw(process.cast_signed()).expect("a child's id is not 0");
    // It may have ended by itself in between.
    let _ = rustix::process::kill_process(id, signal);
}

/// The lines of a pipe, read on a thread so that waiting for one can end.
fn lines(pipe: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// The address after `name` in the ready line.
fn field(line: &str, name: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once(name)?;
    rest.split(|c: char| c.is_whitespace() || c == ',').next()?.parse().ok()
}

/// An HTTP client that uses no proxy.
fn direct() -> ureq::Agent {
    ureq::Agent::config_builder().proxy(None).build().into()
}
