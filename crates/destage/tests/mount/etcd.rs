//! An etcd of a test's own, which can be stopped and started again.

use crate::harness::scratch::{adopt, release};
use crate::harness::server::signal;
use crate::harness::{PATIENCE, Scratch, eventually};
use destage_testkit::needs;
use rustix::process::Signal;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The server: see the module. Ends when dropped.
pub(crate) struct Etcd {
    server: Option<Child>,
    folder: PathBuf,
    ports: [u16; 2],
}

impl Etcd {
    /// Starts one; `None` (after saying so) where there is no such program.
    pub(crate) fn start(scratch: &Scratch) -> Option<Self> {
        if !needs::has("etcd") {
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let sockets = [free(), free()];
        let ports =
            sockets.each_ref().map(|socket| socket.local_addr().expect("it has one").port());
        drop(sockets);
        let mut etcd = Self { server: None, folder: scratch.join("etcd"), ports };
        etcd.again();
        Some(etcd)
    }

    /// How a mount is told of it.
    pub(crate) fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.ports[0])
    }

    /// Starts it again, with what it held.
    #[track_caller]
    pub(crate) fn again(&mut self) {
        let [clients, peers] = self.ports.map(|port| format!("http://127.0.0.1:{port}"));
        let server = Command::new("etcd")
            .arg("--data-dir")
            .arg(&self.folder)
            .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
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
