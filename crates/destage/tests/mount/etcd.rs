//! An etcd of a test's own, which can be stopped and started again.

use crate::harness::certificates::Certificates;
use crate::harness::scratch::{adopt, release};
use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually};
use destage_testkit::needs;
use rustix::process::Signal;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    /// Who believes its certificate, and has one of its own.
    Tls,
    /// Who has the password.
    User,
}

/// The server: see the module. Ends when dropped.
pub(crate) struct Etcd {
    server: Option<Child>,
    folder: PathBuf,
    ports: [u16; 2],
    how: How,
    certificates: Certificates,
}

impl Etcd {
    /// Starts one; `None` (after saying so) where there is no such program.
    pub(crate) fn start(scratch: &Scratch, how: How) -> Option<Self> {
        if !needs::has("etcd") {
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let sockets = [free(), free()];
        let ports =
            sockets.each_ref().map(|socket| socket.local_addr().expect("it has one").port());
        drop(sockets);
        let certificates = Certificates::make(scratch.join("etcd-tls"));
        let folder = scratch.join("etcd");
        let mut etcd = Self { server: None, folder, ports, how, certificates };
        etcd.again();
        if how != How::Tls {
            // One that is killed before it has its first leader may never get one.
            etcd.ask("kv/range", r#"{"key":"AA=="}"#);
        }
        if how == How::User {
            etcd.ask("auth/user/add", r#"{"name":"root","password":"geheim"}"#);
            etcd.ask("auth/role/add", r#"{"name":"root"}"#);
            etcd.ask("auth/user/grant", r#"{"user":"root","role":"root"}"#);
            etcd.ask("auth/enable", "{}");
        }
        Some(etcd)
    }

    fn ask(&self, path: &str, body: &str) {
        let url = format!("http://127.0.0.1:{}/v3/{path}", self.ports[0]);
        // It listens before it has a leader.
        eventually("etcd does what it is asked", PATIENCE, || ureq::post(&url).send(body).is_ok());
    }

    /// How a mount is told of it.
    pub(crate) fn url(&self) -> String {
        self.url_of("client", "geheim")
    }

    /// How somebody would who is not to be let in.
    pub(crate) fn strangers_url(&self) -> String {
        self.url_of("stranger", "geheim-not")
    }

    fn url_of(&self, name: &str, password: &str) -> String {
        let place = format!("127.0.0.1:{}", self.ports[0]);
        let file = |name: &str| self.certificates.file(name);
        match self.how {
            How::Plain => format!("etcd://{place}"),
            How::User => format!("etcd://root:{password}@{place}"),
            How::Tls => format!(
                "etcds://{place}?sslrootcert={}&sslcert={}&sslkey={}",
                file("ca.pem"),
                file(&format!("{name}.pem")),
                file(&format!("{name}.key"))
            ),
        }
    }

    /// Starts it again, with what it held.
    #[track_caller]
    pub(crate) fn again(&mut self) {
        let scheme = if self.how == How::Tls { "https" } else { "http" };
        let clients = format!("{scheme}://127.0.0.1:{}", self.ports[0]);
        let peers = format!("http://127.0.0.1:{}", self.ports[1]);
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(&self.folder)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")]);
        if self.how == How::Tls {
            let file = |name: &str| self.certificates.file(name);
            command
                .args(["--cert-file", &file("server.pem"), "--key-file", &file("server.key")])
                .args(["--trusted-ca-file", &file("ca.pem"), "--client-cert-auth"]);
        }
        let log = self.folder.with_extension("log");
        let log = File::options().create(true).append(true).open(log).expect("a log");
        let server = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        adopt(server.id());
        self.server = Some(server);
        let port = self.ports[0];
        eventually("etcd listens", PATIENCE, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }

    /// Ends it as a crash does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            signal(server.id(), Signal::KILL);
            // It is our child.
            let _ = server.wait();
            release(server.id());
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}
