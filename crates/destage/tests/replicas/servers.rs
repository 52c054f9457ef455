//! Real servers, each behind a proxy that can be cut, for all or for one program.

use std::collections::HashSet;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Real servers, each behind a proxy that can be cut.
pub(crate) struct Servers {
    all: Vec<OneServer>,
    settings: Vec<String>,
}

struct OneServer {
    child: Child,
    port: u16,
    proxy: Proxy,
    folder: tempfile::TempDir,
}

impl Servers {
    pub(crate) fn start(count: usize, settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|word| (*word).to_owned()).collect();
        let start = |_| {
            let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
            let child = redis(port, folder.path(), &settings);
            OneServer { child, port, proxy: Proxy::start(port), folder }
        };
        Self { all: (0..count).map(start).collect(), settings }
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

    /// The same on an empty disk.
    pub(crate) fn restart_empty(&mut self, server: usize) {
        self.kill(server);
        let one = &mut self.all[server];
        one.folder = tempfile::tempdir().expect("a folder");
        one.child = redis(one.port, one.folder.path(), &self.settings);
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// It stands still for so long, its connections stay.
    pub(crate) fn pause(&self, server: usize, span: Duration) {
        let pid = rustix::process::Pid::from_child(&self.all[server].child);
        let signal = |signal| rustix::process::kill_process(pid, signal).expect("it runs");
        signal(rustix::process::Signal::STOP);
        std::thread::sleep(span);
        signal(rustix::process::Signal::CONT);
    }

    /// Nobody reaches it any more.
    pub(crate) fn cut(&self, server: usize) {
        self.all[server].proxy.cut(|cut| cut.all = true);
    }

    /// This process does not reach it any more.
    pub(crate) fn part(&self, server: usize, pid: u32) {
        self.all[server].proxy.cut(|cut| {
            cut.pids.insert(pid);
        });
    }

    pub(crate) fn heal(&self) {
        self.all.iter().for_each(|one| one.proxy.cut(|cut| *cut = Cut::default()));
    }
}

impl Drop for OneServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn redis(port: u16, folder: &std::path::Path, settings: &[String]) -> Child {
    let port_text = port.to_string();
    let is_tls = settings.iter().any(|word| word == "--tls-cert-file");
    let ports: &[&str] =
        if is_tls { &["--port", "0", "--tls-port", &port_text] } else { &["--port", &port_text] };
    let child = Command::new("redis-server")
        .args(ports)
        .args(["--bind", "127.0.0.1", "--save", ""])
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

/// Who does not get through.
#[derive(Default)]
struct Cut {
    all: bool,
    pids: HashSet<u32>,
}

impl Cut {
    fn holds(&self, pid: Option<u32>) -> bool {
        // The system's list of connections may miss some: one that is not known is cut, too, and known when it comes again.
        self.all || pid.map_or(!self.pids.is_empty(), |pid| self.pids.contains(&pid))
    }
}

/// A connection, with the program at its other end and both of its ports: one port may be the local one of several connections.
type Stream = (Option<u32>, Ends, TcpStream);

/// The ports of a connection: the program's, and ours.
type Ends = (u16, u16);

struct Proxy {
    port: u16,
    cut: Arc<Mutex<Cut>>,
    streams: Arc<Mutex<Vec<Stream>>>,
}

impl Proxy {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (cut, streams) = (Arc::<Mutex<Cut>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let proxy = Self { port, cut: cut.clone(), streams: streams.clone() };
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let ends = (near.peer_addr().map_or(0, |peer| peer.port()), port);
                let pid = program_at(ends);
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                {
                    // Before it is looked at, so that whoever cuts afterwards finds it.
                    let mut streams = streams.lock().expect("streams");
                    for stream in [&near, &far] {
                        let _ = stream.set_nodelay(true);
                        streams.extend(stream.try_clone().ok().map(|stream| (pid, ends, stream)));
                    }
                }
                if cut.lock().expect("whom").holds(pid) {
                    let _ = near.shutdown(Shutdown::Both);
                    continue;
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

    fn cut(&self, change: impl FnOnce(&mut Cut)) {
        let mut cut = self.cut.lock().expect("whom");
        change(&mut cut);
        self.streams.lock().expect("streams").retain_mut(|(pid, ends, stream)| {
            // It may have connected before it was known.
            *pid = pid.or_else(|| program_at(*ends));
            let is_cut = cut.holds(*pid);
            if is_cut {
                let _ = stream.shutdown(Shutdown::Both);
            }
            !is_cut
        });
    }
}

/// The programs that are told apart.
static PROGRAMS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Connections of this program are known as its from now on.
pub(crate) fn tell_apart(pid: u32) {
    PROGRAMS.lock().expect("programs").push(pid);
}

/// The program whose connection has these ends.
fn program_at((theirs, ours): Ends) -> Option<u32> {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections are listed");
    let is_it = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local == format!("0100007F:{theirs:04X}"))
            && words.next().is_some_and(|remote| remote == format!("0100007F:{ours:04X}"))
    };
    let line = table.lines().find(is_it)?;
    let socket = format!("socket:[{}]", line.split_whitespace().nth(9)?);
    let holds = |pid: &&u32| {
        // The number of one that has ended may be that of another one's thread, which has the same files.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_process = status.lines().any(|line| line == format!("Tgid:\t{pid}"));
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let is_its = |file: std::fs::DirEntry| {
            std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == socket.as_str())
        };
        is_process && files.into_iter().any(is_its)
    };
    PROGRAMS.lock().expect("programs").iter().find(holds).copied()
}

/// A port that nobody listens at and that the kernel gives to no connection: of those it would take one meanwhile. Each is given
/// once by this process; others begin elsewhere.
pub(crate) fn free_port() -> u16 {
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
