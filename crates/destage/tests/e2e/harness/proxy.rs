//! A connection to a database that loses answers on demand.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// Passes connections on to a server. Ends with the process.
pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// The next COMMIT makes it deaf.
    armed: AtomicBool,
    /// Answers are swallowed.
    deaf: AtomicBool,
    /// The answer to a COMMIT has been swallowed.
    lost: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Before the server of a database's URL; gives the URL that leads through the proxy.
    pub(crate) fn before(url: &str) -> (Self, String) {
        let (user, address) = url.split_once('@').expect("the URL has a user");
        let (server, database) = address.split_once('/').expect("the URL has a database");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let proxy = Self { port, state: Arc::default() };
        let (state, server) = (proxy.state.clone(), server.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A server that is away ends the connection, as it would without a proxy.
                if let Ok(server) = TcpStream::connect(&server) {
                    state.join(client, server);
                }
            }
        });
        let through = format!("{user}@127.0.0.1:{}/{database}", proxy.port);
        (proxy, through)
    }

    /// The next COMMIT arrives at the server, but neither its answer nor any later one comes back.
    pub(crate) fn lose_next_commit(&self) {
        self.state.armed.store(true, Ordering::Release);
    }

    /// Whether that has happened: the server has committed, for it has said so.
    pub(crate) fn has_lost(&self) -> bool {
        self.state.lost.load(Ordering::Acquire)
    }

    /// Ends every connection; new ones work.
    pub(crate) fn cut(&self) {
        let mut streams = self.state.streams.lock().expect("no holder panics");
        for stream in streams.drain(..) {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.state.lost.store(false, Ordering::Release);
        self.state.deaf.store(false, Ordering::Release);
    }
}

impl State {
    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let twin = |stream: &TcpStream| stream.try_clone().expect("a stream can be cloned");
        let kept = [twin(&client), twin(&server)];
        self.streams.lock().expect("no holder panics").extend(kept);
        let (from_client, to_server) = (twin(&client), twin(&server));
        let (state, commits) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let sent = commits.clone();
        thread::spawn(move || pass(from_client, to_server, |bytes| state.watch(bytes, &sent)));
        let state = self.clone();
        thread::spawn(move || pass(server, client, |_| state.hear(&commits)));
    }

    /// Looks at what a client sends, all of which arrives. A COMMIT is sent by itself, once everything before it is answered.
    fn watch(&self, bytes: &[u8], commits: &AtomicBool) -> bool {
        if mentions_commit(bytes) && self.armed.swap(false, Ordering::AcqRel) {
            commits.store(true, Ordering::Release);
            self.deaf.store(true, Ordering::Release);
        }
        true
    }

    /// Notes the answer to the COMMIT, and says whether the client is to hear what the server answers.
    fn hear(&self, commits: &AtomicBool) -> bool {
        let deaf = self.deaf.load(Ordering::Acquire);
        if deaf && commits.swap(false, Ordering::AcqRel) {
            self.lost.store(true, Ordering::Release);
        }
        !deaf
    }
}

fn mentions_commit(bytes: &[u8]) -> bool {
    bytes.windows(COMMIT.len()).any(|window| window == COMMIT)
}

/// Passes bytes on until either end goes, those for which `passes` says so.
fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(&[u8]) -> bool) {
    let mut buffer = [0; 16_384];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if passes(&buffer[..count]) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// The statement.
const COMMIT: &[u8] = b"COMMIT";
