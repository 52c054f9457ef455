//! Servers behind proxies, programs on their own disks, and one origin.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) struct World {
    pub(crate) servers: Servers,
    /// So many of the servers are named to a program.
    pub(crate) named: usize,
    folder: tempfile::TempDir,
    origin: Origin,
    nodes: usize,
}

impl World {
    pub(crate) fn new(servers: usize, settings: &[&'static str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let origin = Origin::new();
        origin.sql("CREATE TABLE t (id bigint PRIMARY KEY, n bigint NOT NULL DEFAULT 0)");
        Self {
            servers: Servers::start(servers, settings),
            named: servers,
            folder,
            origin,
            nodes: 0,
        }
    }

    fn flags(&self, data: &std::path::Path, more: &[&str]) -> Vec<String> {
        let urls: Vec<String> = (0..self.named)
            .map(|server| format!("redis://{}", self.servers.address(server)))
            .collect();
        let mut flags: Vec<String> =
            ["serve", "--no-auth", "--origin", &self.origin.url, "--replicas", &urls.join(",")]
                .map(str::to_owned)
                .to_vec();
        flags.extend(["--data".to_owned(), data.display().to_string()]);
        for (flag, port) in [("--listen", free_port()), ("--admin", free_port())] {
            flags.extend([flag.to_owned(), format!("127.0.0.1:{port}")]);
        }
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
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

    fn spawn(&mut self, flags: &[&str]) -> Node {
        self.nodes += 1;
        let data = self.folder.path().join(format!("disk{}", self.nodes));
        Node::spawn(self.flags(&data, flags), data)
    }

    /// The same program on the same disk.
    pub(crate) fn restart(&mut self, node: Node, flags: &[&str]) -> Node {
        let data = node.data.clone();
        drop(node);
        let mut node = Node::spawn(self.flags(&data, flags), data);
        node.await_owner();
        node
    }

    /// Its code and what it says, on an empty disk.
    pub(crate) fn refused(&mut self, flags: &[&str]) -> (Option<i32>, String) {
        self.nodes += 1;
        let data = self.folder.path().join(format!("disk{}", self.nodes));
        self.refused_on(&data, flags)
    }

    /// The same on the disk of one that has been killed.
    pub(crate) fn refused_again(&self, node: &Node, flags: &[&str]) -> (Option<i32>, String) {
        self.refused_on(&node.data, flags)
    }

    fn refused_on(&self, data: &std::path::Path, flags: &[&str]) -> (Option<i32>, String) {
        let output =
            Command::new(env!("CARGO_BIN_EXE_destage")).args(self.flags(data, flags)).output();
        let output = output.expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
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
            let status: serde_json::Value =
                serde_json::from_str(&node.get("/status").1).unwrap_or_default();
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

    pub(crate) fn origin_rows(&self) -> Vec<(i64, i64)> {
        self.origin.rows()
    }
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

/// A running program. It is killed when this is dropped.
pub(crate) struct Node {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    listen: String,
    admin: String,
    data: std::path::PathBuf,
}

impl Node {
    fn spawn(flags: Vec<String>, data: std::path::PathBuf) -> Self {
        let value = |name: &str| {
            let at = flags.iter().position(|flag| flag == name).expect("given");
            flags[at + 1].clone()
        };
        let (listen, admin) = (value("--listen"), value("--admin"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_destage"))
            .args(&flags)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, lines, listen, admin, data }
    }

    fn await_line(&mut self, begin: &str) {
        let mut line = String::new();
        while !line.starts_with(begin) {
            line.clear();
            let count = self.lines.read_line(&mut line).expect("its output");
            assert!(count > 0, "it ended with {:?} before '{begin}'", self.child.wait());
        }
    }

    pub(crate) fn await_owner(&mut self) {
        if self.ready() != 200 {
            self.await_line("destage ready");
        }
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

    /// Ends it in order, everything destaged.
    pub(crate) fn end(&mut self) {
        self.signal(rustix::process::Signal::TERM);
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
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.reader.get_mut().write_all(request.as_bytes()).ok()?;
        self.answer()
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

/// Real servers, each behind a proxy that can be cut.
pub(crate) struct Servers {
    all: Vec<OneServer>,
    settings: Vec<&'static str>,
}

struct OneServer {
    child: Child,
    port: u16,
    proxy: Proxy,
    folder: tempfile::TempDir,
}

impl Servers {
    fn start(count: usize, settings: &[&'static str]) -> Self {
        let start = |_| {
            let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
            let child = redis(port, folder.path(), settings);
            OneServer { child, port, proxy: Proxy::start(port), folder }
        };
        Self { all: (0..count).map(start).collect(), settings: settings.to_vec() }
    }

    pub(crate) fn address(&self, server: usize) -> String {
        format!("127.0.0.1:{}", self.all[server].proxy.port)
    }

    pub(crate) fn kill(&mut self, server: usize) {
        let one = &mut self.all[server];
        let _ = one.child.kill();
        let _ = one.child.wait();
    }

    /// Killed and started again: without its memory, unless it keeps a log file.
    pub(crate) fn restart(&mut self, server: usize) {
        self.kill(server);
        let one = &mut self.all[server];
        one.child = redis(one.port, one.folder.path(), &self.settings);
    }

    /// Nobody reaches it any more.
    pub(crate) fn cut(&self, server: usize) {
        self.all[server].proxy.cut(true);
    }

    pub(crate) fn heal(&self) {
        self.all.iter().for_each(|one| one.proxy.cut(false));
    }
}

impl Drop for OneServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn redis(port: u16, folder: &std::path::Path, settings: &[&str]) -> Child {
    let child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""])
        .args(settings)
        .current_dir(folder)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed: apt-get install redis-server");
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "redis-server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

struct Proxy {
    port: u16,
    is_cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (is_cut, streams) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let proxy = Self { port, is_cut: is_cut.clone(), streams: streams.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if is_cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for stream in [&near, &far] {
                    let _ = stream.set_nodelay(true);
                    streams.lock().expect("streams").extend(stream.try_clone());
                }
                for (mut from, mut to) in
                    [near.try_clone().ok().zip(far.try_clone().ok()), Some((far, near))]
                        .into_iter()
                        .flatten()
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        proxy
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        if is_cut {
            for stream in self.streams.lock().expect("streams").drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// A port that nobody listens at and that the kernel gives to no connection: of those it would take one meanwhile. Each is given
/// once by this process; others begin elsewhere.
fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 5_000;
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::SeqCst) as u32;
        let port = FIRST + (std::process::id().wrapping_mul(97).wrapping_add(next)) % COUNT;
        let port = u16::try_from(port).expect("it is in their range");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
