//! A Redis server of a test's own, to compare with.

use super::scratch::{Scratch, adopt, release};
use super::{Client, PATIENCE, has};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Keeps nothing on disk. Killed when dropped.
pub(crate) struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    /// Starts one; `None` (after saying so) where there is no such program.
    pub(crate) fn start(scratch: &Scratch) -> Option<Self> {
        if !has("redis-server") {
            return None;
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "redis-server does not start");
            if let Some(redis) = Self::try_start(scratch, deadline) {
                return Some(redis);
            }
        }
    }

    /// Nothing if somebody else has taken the port meanwhile.
    fn try_start(scratch: &Scratch, deadline: Instant) -> Option<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        drop(listener);
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port"])
            .arg(address.port().to_string())
            .arg("--dir")
            .arg(scratch.join(""))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        adopt(child.id());
        let mut redis = Self { child, address };
        while Instant::now() < deadline {
            if redis.child.try_wait().expect("the process is ours").is_some() {
                return None;
            }
            if let Ok(mut client) = Client::try_connect(address)
                && let Ok(info) = client.try_call(&["INFO", "server"])
                && info.text().contains(&format!("process_id:{}\r", redis.child.id()))
            {
                return Some(redis);
            }
            thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// A new connection.
    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }

    /// Its port, as text.
    pub(crate) fn port(&self) -> String {
        self.address.port().to_string()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        release(self.child.id());
    }
}
