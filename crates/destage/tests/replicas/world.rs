//! Servers behind proxies, programs on their own disks, and one origin.

use crate::gate::Gate;
use crate::servers::{Servers, free_port, tell_apart};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) servers: Servers,
    /// So many of the servers are named to a program.
    pub(crate) named: usize,
    /// How they are named: in front of the address and behind it.
    pub(crate) around: (String, String),
    folder: tempfile::TempDir,
    origin: Origin,
    /// How programs reach that, if not at its address.
    pub(crate) gate: Option<Gate>,
    /// Variables of programs that are started from now on.
    pub(crate) environment: Vec<(String, String)>,
    nodes: usize,
}

impl World {
    pub(crate) fn new(servers: usize, settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let origin = Origin::new();
        origin.sql("CREATE TABLE t (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0)");
        Self {
            servers: Servers::start(servers, settings),
            named: servers,
            around: ("redis://".into(), String::new()),
            folder,
            origin,
            gate: None,
            environment: Vec::new(),
            nodes: 0,
        }
    }

    fn flags(&self, data: &std::path::Path, more: &[&str]) -> Vec<String> {
        let mut flags = vec!["--replicas".to_owned(), self.urls()];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        self.flags_alone(data, flags)
    }

    /// Without the servers.
    fn flags_alone(&self, data: &std::path::Path, more: Vec<String>) -> Vec<String> {
        let origin = self.gate.as_ref().map_or(&self.origin.url, |gate| &gate.url);
        let mut flags: Vec<String> =
            ["serve", "--no-auth", "--origin", origin].map(str::to_owned).to_vec();
        flags.extend(["--data".to_owned(), data.display().to_string()]);
        for (flag, port) in [("--listen", free_port()), ("--admin", free_port())] {
            flags.extend([flag.to_owned(), format!("127.0.0.1:{port}")]);
        }
        flags.extend(more);
        flags
    }

    /// The servers as they are named to a program.
    pub(crate) fn urls(&self) -> String {
        let (before, behind) = &self.around;
        let url = |server| format!("{before}{}{behind}", self.servers.address(server));
        (0..self.named).map(url).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn origin_url(&self) -> &str {
        &self.origin.url
    }

    /// A folder for a program's data.
    pub(crate) fn disk(&mut self) -> std::path::PathBuf {
        self.nodes += 1;
        self.folder.path().join(format!("disk{}", self.nodes))
    }

    /// A program on a disk of its own, once it is the owner.
    pub(crate) fn start(&mut self, flags: &[&str]) -> Node {
        let mut node = self.spawn(flags);
        node.await_owner();
        node
    }

    pub(crate) fn start_standby(&mut self, flags: &[&str]) -> Node {
        let mut node = self.spawn(&[&["--standby"], flags].concat());
        node.await_line("destage standby");
        node
    }

    pub(crate) fn spawn(&mut self, flags: &[&str]) -> Node {
        let data = self.disk();
        Node::spawn(self.flags(&data, flags), data, &self.environment)
    }

    /// The same program on the same disk.
    pub(crate) fn restart(&mut self, node: Node, flags: &[&str]) -> Node {
        let data = node.data.clone();
        drop(node);
        let mut node = Node::spawn(self.flags(&data, flags), data, &self.environment);
        node.await_owner();
        node
    }

    /// The same without the servers.
    pub(crate) fn restart_alone(&mut self, node: Node, flags: &[&str]) -> Node {
        let data = node.data.clone();
        drop(node);
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let mut node = Node::spawn(self.flags_alone(&data, flags), data, &self.environment);
        node.await_owner();
        node
    }

    pub(crate) fn refused_alone(&self, node: &Node, flags: &[&str]) -> (Option<i32>, String) {
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        output_of(&self.flags_alone(&node.data, flags))
    }

    /// Its code and what it says, on an empty disk.
    pub(crate) fn refused(&mut self, flags: &[&str]) -> (Option<i32>, String) {
        let data = self.disk();
        self.refused_on(&data, flags)
    }

    /// The same on the disk of one that has been killed.
    pub(crate) fn refused_again(&self, node: &Node, flags: &[&str]) -> (Option<i32>, String) {
        self.refused_on(&node.data, flags)
    }

    fn refused_on(&self, data: &std::path::Path, flags: &[&str]) -> (Option<i32>, String) {
        output_of(&self.flags(data, flags))
    }

    /// What is on a disk.
    pub(crate) fn names(&self, node: &Node) -> Vec<String> {
        let found = std::fs::read_dir(&node.data).expect("its disk").flatten();
        found.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    pub(crate) fn lose_disk(&self, mut node: Node) {
        node.kill();
        std::fs::remove_dir_all(&node.data).expect("its disk");
    }

    /// Waits until so many servers count.
    pub(crate) fn await_copies(&self, node: &Node, count: u64) {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = node.status();
            let replicas = &status["replicas"];
            let members = replicas["servers"].as_array().map_or(0, |servers| {
                servers
                    .iter()
                    .filter(|server| server["state"] == "in use" && server["behind_entries"] == 0)
                    .count()
            });
            if replicas["servers_ready"] == count && members as u64 == count {
                return;
            }
            assert!(Instant::now() < until, "{replicas:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the status is so.
    pub(crate) fn await_status(&self, node: &Node, is_so: impl Fn(&serde_json::Value) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = node.status();
            if is_so(&status) {
                return;
            }
            assert!(Instant::now() < until, "{status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn origin_rows(&self) -> Vec<(i64, i64)> {
        self.origin.rows()
    }

    /// Keeps everyone from writing to the origin's table `t`, until this is dropped.
    pub(crate) fn lock_origin(&self) -> Lock {
        Lock::of(&self.origin.url)
    }
}

/// The code of the program that ends by itself, and what it says.
fn output_of(flags: &[String]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_destage")).args(flags).output();
    let output = output.expect("it runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A database of its own on a PostgreSQL server that all tests of this program share.
pub(crate) struct Origin {
    pub(crate) url: String,
}

impl Origin {
    pub(crate) fn new() -> Self {
        static SERVER: OnceLock<(String, Mutex<Child>)> = OnceLock::new();
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let (server, _) = SERVER.get_or_init(start_postgres);
        let name = format!("replicas{}", COUNT.fetch_add(1, Ordering::SeqCst));
        Self { url: server.clone() }.sql(&format!("CREATE DATABASE {name}"));
        let (host, _) = server.rsplit_once('/').expect("a database");
        Self { url: format!("{host}/{name}") }
    }

    /// What the table `t` holds.
    pub(crate) fn rows(&self) -> Vec<(i64, i64)> {
        let text = self.sql("SELECT id, n FROM t ORDER BY id");
        let row = |line: &str| {
            let (id, n) = line.split_once('|').expect("two columns");
            (id.parse().expect("a number"), n.parse().expect("a number"))
        };
        text.lines().map(row).collect()
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        let psql = programs().join("psql");
        let output = Command::new(psql).args([&self.url, "-XAtqc", sql]).output();
        let output = output.expect("psql runs");
        assert!(output.status.success(), "{sql}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}

/// A table that is locked, until this is dropped.
pub(crate) struct Lock(Child);

impl Lock {
    fn of(url: &str) -> Self {
        let mut psql = Command::new(programs().join("psql"));
        psql.args([url, "-XAtq"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut psql = psql.spawn().expect("psql runs");
        let sql = b"BEGIN; LOCK TABLE t IN EXCLUSIVE MODE; SELECT 'locked';\n";
        psql.stdin.as_mut().expect("piped").write_all(sql).expect("psql reads");
        let mut said = String::new();
        BufReader::new(psql.stdout.take().expect("piped")).read_line(&mut said).expect("a row");
        assert_eq!(said.trim(), "locked");
        Self(psql)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // At the end of its input it gives up the transaction.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Where PostgreSQL's programs are.
fn programs() -> std::path::PathBuf {
    if let Some(folder) = std::env::var_os("DESTAGE_TEST_POSTGRES_PROGRAMS") {
        return folder.into();
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("apt-get install postgresql");
    let versions = versions.flatten().map(|version| version.path().join("bin"));
    versions.max().expect("a version of PostgreSQL")
}

/// It lives as long as this process, at whose end its script's input ends.
fn start_postgres() -> (String, Mutex<Child>) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let user = if rustix::process::geteuid().is_root() { "postgres" } else { "" };
    let mut child = Command::new("sh")
        .arg(root.join("tests/servers/postgres.sh"))
        .arg(programs())
        .arg(user)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sh runs");
    let mut url = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut url).expect("its address");
    assert!(url.starts_with("postgres://"), "PostgreSQL starts");
    (url.trim().to_owned(), Mutex::new(child))
}

/// What is said of a program that has ended too early.
pub(crate) fn ended_with(code: Option<i32>) -> String {
    format!("it ended with {code:?}")
}

/// A running program. It is killed when this is dropped.
pub(crate) struct Node {
    child: Child,
    lines: mpsc::Receiver<String>,
    listen: String,
    admin: String,
    data: std::path::PathBuf,
}

impl Node {
    fn spawn(
        flags: Vec<String>,
        data: std::path::PathBuf,
        environment: &[(String, String)],
    ) -> Self {
        let value = |name: &str| {
            let at = flags.iter().position(|flag| flag == name).expect("given");
            flags[at + 1].clone()
        };
        let (listen, admin) = (value("--listen"), value("--admin"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_destage"))
            .args(&flags)
            .envs(environment.iter().cloned())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        tell_apart(child.id());
        let (line, lines) = mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            // Nobody listens any more once the test is over.
            output.lines().map_while(Result::ok).try_for_each(|text| line.send(text))
        });
        Self { child, lines, listen, admin, data }
    }

    fn await_line(&mut self, begin: &str) {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.starts_with(begin) => return,
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not say '{begin}'"),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let code = self.child.wait().expect("a child of ours").code();
                    panic!("{} before '{begin}'", ended_with(code));
                }
            }
        }
    }

    pub(crate) fn await_owner(&mut self) {
        // Not by the line that it prints: that comes once, and an owner may be out of reach of its servers for a moment.
        let until = Instant::now() + PATIENCE;
        while self.ready() != 200 {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                panic!("{} before it was the owner", ended_with(status.code()));
            }
            assert!(Instant::now() < until, "it does not become the owner: {:#}", self.status());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> String {
        self.listen.clone()
    }

    pub(crate) fn client(&self) -> Client {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(client) = Client::try_open(&self.listen) {
                return client;
            }
            assert!(Instant::now() < until, "nobody listens at {}", self.listen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The status of an answer of the admin port and its body.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.admin)?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = ask().unwrap_or_default();
        let code = text.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (code, body.to_owned())
    }

    /// What it says of itself; nothing while it says nothing.
    pub(crate) fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.get("/status").1).unwrap_or_default()
    }

    pub(crate) fn ready(&self) -> u16 {
        self.get("/readyz").0
    }

    /// A command of the program against this server.
    pub(crate) fn command(&self, words: &[&str]) {
        let output = Command::new(env!("CARGO_BIN_EXE_destage"))
            .args(words)
            .args(["--admin", &self.admin])
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    pub(crate) fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    /// As a terminal that closes does, or a reload.
    pub(crate) fn hang_up(&self) {
        self.signal(rustix::process::Signal::HUP);
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until it has ended; its code unless it was killed.
    pub(crate) fn await_end(&mut self) -> Option<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn ask_to_end(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Ends it in order, everything destaged.
    pub(crate) fn end(&mut self) {
        self.ask_to_end();
        assert_eq!(self.await_end(), Some(0));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A client of the Redis protocol; answers as one line of words.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn try_open(address: &str) -> Option<Self> {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(25))).ok()?;
        Some(Self { reader: BufReader::new(stream) })
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> String {
        self.try_ask(words).unwrap_or_else(|| panic!("{words:?} is answered"))
    }

    pub(crate) fn try_ask(&mut self, words: &[&str]) -> Option<String> {
        self.send(words).then(|| self.receive())?
    }

    /// An answer, if there is one.
    pub(crate) fn receive(&mut self) -> Option<String> {
        self.answer()
    }

    /// Whether anything is said within this time. What is said stays to be received.
    pub(crate) fn hears(&mut self, within: Duration) -> bool {
        let stream = self.reader.get_ref();
        let before = stream.read_timeout().expect("a socket");
        stream.set_read_timeout(Some(within)).expect("a socket");
        let is_heard = stream.peek(&mut [0]).is_ok();
        stream.set_read_timeout(before).expect("a socket");
        is_heard
    }

    pub(crate) fn send(&mut self, words: &[&str]) -> bool {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.reader.get_mut().write_all(request.as_bytes()).is_ok()
    }

    fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        let (kind, rest) = line.split_at_checked(1)?;
        match kind {
            "$" => {
                let Ok(len) = rest.parse::<usize>() else { return Some("(nil)".into()) };
                let mut bytes = vec![0; len + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                bytes.truncate(len);
                String::from_utf8(bytes).ok()
            }
            "*" => {
                let count: i64 = rest.parse().ok()?;
                let parts: Option<Vec<String>> = (0..count).map(|_| self.answer()).collect();
                Some(parts?.join(" ").replace(':', " ").trim().to_owned())
            }
            _ => Some(line.to_owned()),
        }
    }
}
