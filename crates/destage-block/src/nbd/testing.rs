//! What the tests of both sides share: certificates, a naive volume in memory, and a server that runs it.

use crate::nbd::server::{Connection, Event, Export, Limits, Received, Tls};
use crate::nbd::tls::Identity;
use crate::request::{Reply, Request, RequestError, Status};
use rcgen::{BasicConstraints, CertificateParams, Issuer, KeyPair};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use tempfile::TempDir;

/// Long enough for any step on a loaded machine.
pub(crate) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// An authority and two that it vouches for, in a folder of their own.
pub(crate) struct Certificates {
    pub(crate) authority: PathBuf,
    /// Its name is `storage`, or `localhost`.
    pub(crate) server: Identity,
    pub(crate) client: Identity,
    _folder: TempDir,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = folder.path().join("authority.pem");
        fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
        let issuer = Issuer::new(params, key);
        Self {
            authority,
            server: issue(folder.path(), &issuer, "server", &["storage", "localhost"]),
            client: issue(folder.path(), &issuer, "client", &["client"]),
            _folder: folder,
        }
    }
}

fn issue(folder: &Path, issuer: &Issuer<'_, KeyPair>, name: &str, names: &[&str]) -> Identity {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, issuer).unwrap();
    let identity = Identity {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
    };
    fs::write(&identity.certificate, certificate.pem()).unwrap();
    fs::write(&identity.key, key.serialize_pem()).unwrap();
    identity
}

/// A volume that does what it is told at once, and keeps count of what was told to be durable.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) bytes: Vec<u8>,
    pub(crate) flushes: usize,
    pub(crate) forced: usize,
    /// Every request fails so.
    pub(crate) fails: Option<RequestError>,
}

impl Volume {
    pub(crate) fn new(size: usize) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { bytes: vec![0; size], flushes: 0, forced: 0, fails: None }))
    }

    pub(crate) fn carry_out(&mut self, request: Request) -> Reply {
        if let Some(error) = self.fails {
            return Reply::Error(error);
        }
        match request {
            Request::Read { offset, len } => {
                return Reply::Data(self.range(offset, u64::from(len)).to_vec());
            }
            Request::Write { offset, data, fua } => {
                self.range(offset, data.len() as u64).copy_from_slice(&data);
                self.forced += usize::from(fua);
            }
            Request::Zero { offset, len, fua, .. } => {
                self.range(offset, len).fill(0);
                self.forced += usize::from(fua);
            }
            Request::Flush => self.flushes += 1,
            Request::Status { len, .. } => {
                return Reply::Status(vec![Status { len, is_hole: false, is_dirty: false }]);
            }
            Request::Cache { .. } => {}
        }
        Reply::Done
    }

    fn range(&mut self, offset: u64, len: u64) -> &mut [u8] {
        &mut self.bytes[offset as usize..(offset + len) as usize]
    }
}

/// A stream that takes and gives a little at a time, and nothing every other time.
pub(crate) struct Stuttering<S> {
    stream: S,
    at_a_time: usize,
    calls: usize,
}

impl<S> Stuttering<S> {
    pub(crate) fn new(stream: S, at_a_time: usize) -> Self {
        Self { stream, at_a_time, calls: 0 }
    }

    fn stutter(&mut self) -> io::Result<()> {
        self.calls += 1;
        match self.calls % 2 {
            0 => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl<S: Read> Read for Stuttering<S> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stutter()?;
        let len = buf.len().min(self.at_a_time);
        self.stream.read(&mut buf[..len])
    }
}

impl<S: Write> Write for Stuttering<S> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stutter()?;
        self.stream.write(&buf[..buf.len().min(self.at_a_time)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// How a served connection ended: what it asked for last.
pub(crate) type Served = io::Result<Option<Event>>;

/// Serves a connection until it ends. Replies to the requests of one round are given in reverse.
pub(crate) fn serve<S: Read + Write>(
    stream: S,
    export: Export,
    tls: Tls,
    volume: &Mutex<Volume>,
) -> Served {
    let exports = Arc::new(vec![export]);
    let mut connection = Connection::new(stream, exports, tls, Limits::default());
    let mut last = None;
    loop {
        let mut requests = Vec::new();
        while let Some(event) = connection.next_event()? {
            if let Event::Request(cookie, request) = event {
                requests.push((cookie, request));
            } else {
                last = Some(event);
            }
        }
        for (cookie, request) in requests.into_iter().rev() {
            let reply = volume.lock().unwrap().carry_out(request);
            connection.reply(cookie, reply);
        }
        if connection.wants_write() {
            connection.send()?;
            continue;
        }
        if connection.is_finished() || connection.receive()? == Received::Closed {
            return Ok(last);
        }
    }
}

/// Serves one TCP connection; returns its port and what waits for its end.
pub(crate) fn serve_tcp(
    export: Export,
    tls: Tls,
    volume: Arc<Mutex<Volume>>,
) -> (u16, thread::JoinHandle<Served>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || serve(accepted(&listener), export, tls, &volume));
    (port, thread)
}

fn accepted(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// As [`serve_tcp`], on a unix socket through a stream that stutters.
pub(crate) fn serve_unix(
    path: &Path,
    at_a_time: usize,
    tls: Tls,
    volume: Arc<Mutex<Volume>>,
) -> thread::JoinHandle<Served> {
    let export = Export::new("vol", volume.lock().unwrap().bytes.len() as u64);
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || {
        let (stream, _): (UnixStream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        serve(Stuttering::new(stream, at_a_time), export, tls, &volume)
    })
}
