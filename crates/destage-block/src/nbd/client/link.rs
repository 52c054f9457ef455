//! The stream under a client: TCP or a unix socket, with or without TLS, read by one thread while others write.

use crate::nbd::uri::Place;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use socket2::{SockRef, TcpKeepalive};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A connection as its owner holds it.
#[derive(Clone, Debug)]
pub(super) struct Link {
    socket: Arc<Socket>,
    tls: Option<Tls>,
}

type Tls = Arc<Mutex<ClientConnection>>;

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Link {
    pub(super) fn connect(place: &Place, timeout: Duration) -> io::Result<Self> {
        let socket = match place {
            Place::Tcp { host, port } => Socket::Tcp(connect_tcp(host, *port, timeout)?),
            Place::Unix(path) => Socket::Unix(UnixStream::connect(path)?),
        };
        let link = Self { socket: Arc::new(socket), tls: None };
        link.set_timeouts(timeout)?;
        Ok(link)
    }

    /// Speaks TLS from now on. Nothing must have been read ahead.
    pub(super) fn start_tls(&mut self, config: &Arc<ClientConfig>, name: &str) -> io::Result<()> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        let mut tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut self.socket.as_ref())?;
        }
        self.tls = Some(Arc::new(Mutex::new(tls)));
        Ok(())
    }

    pub(super) fn wait_forever_for_reads(&self) -> io::Result<()> {
        self.sock_ref().set_read_timeout(None)
    }

    pub(super) fn split(&self) -> (Reader, Writer) {
        let reader = Reader {
            socket: Arc::clone(&self.socket),
            tls: self.tls.clone(),
            encrypted: VecDeque::new(),
        };
        let writer = Writer {
            socket: Arc::clone(&self.socket),
            tls: self.tls.clone(),
            encrypted: Vec::new(),
        };
        (reader, writer)
    }

    /// Wakes up whoever reads or writes.
    pub(super) fn shutdown(&self) {
        // Already closed by the other side is as good.
        let _ = self.sock_ref().shutdown(Shutdown::Both);
    }

    fn set_timeouts(&self, timeout: Duration) -> io::Result<()> {
        let socket = self.sock_ref();
        socket.set_read_timeout(Some(timeout))?;
        socket.set_write_timeout(Some(timeout))
    }

    fn sock_ref(&self) -> SockRef<'_> {
        match self.socket.as_ref() {
            Socket::Tcp(socket) => SockRef::from(socket),
            Socket::Unix(socket) => SockRef::from(socket),
        }
    }
}

fn connect_tcp(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => return prepared(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Sends at once, and notices a peer that vanished while nothing is under way.
fn prepared(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

/// What the thread for replies reads from.
#[derive(Debug)]
pub(super) struct Reader {
    socket: Arc<Socket>,
    tls: Option<Tls>,
    /// Received and not given to TLS yet.
    encrypted: VecDeque<u8>,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.socket.as_ref().read(buf);
        };
        loop {
            match lock(tls).reader().read(buf) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.encrypted.is_empty() {
                // Without the lock: others go on writing while nothing comes in.
                let mut received = [0; ENCRYPTED_READ];
                let len = self.socket.as_ref().read(&mut received)?;
                self.encrypted.extend(&received[..len]);
            }
            // All that was decrypted has been taken, so there is room for more. Nothing to give is the end.
            let mut tls = lock(tls);
            tls.read_tls(&mut self.encrypted)?;
            tls.process_new_packets()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }
}

/// Enough for a record of TLS at a time, bytes.
const ENCRYPTED_READ: usize = 18 << 10;

/// What requests are written to, one whole request at a time.
#[derive(Debug)]
pub(super) struct Writer {
    socket: Arc<Socket>,
    tls: Option<Tls>,
    encrypted: Vec<u8>,
}

impl Writer {
    /// Sends a header and what follows it.
    pub(super) fn send(&mut self, header: &[u8], payload: &[u8]) -> io::Result<()> {
        let mut slices = [IoSlice::new(header), IoSlice::new(payload)];
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let sent = match self.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            IoSlice::advance_slices(&mut rest, sent);
        }
        Ok(())
    }

    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return self.socket.as_ref().write_vectored(slices);
        };
        // Encrypted under the lock and sent without it: else the reader could not empty the socket while the server waits
        // for that before it reads on.
        self.encrypted.clear();
        let taken = encrypt(&mut lock(tls), slices, &mut self.encrypted)?;
        self.socket.as_ref().write_all(&self.encrypted)?;
        Ok(taken)
    }
}

fn encrypt(
    tls: &mut ClientConnection,
    slices: &[IoSlice<'_>],
    encrypted: &mut Vec<u8>,
) -> io::Result<usize> {
    let taken = tls.writer().write_vectored(slices)?;
    while tls.wants_write() {
        tls.write_tls(encrypted)?;
    }
    Ok(taken)
}

fn lock(tls: &Tls) -> MutexGuard<'_, ClientConnection> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Read for &Socket {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).read(buf),
            Socket::Unix(socket) => (&mut &*socket).read(buf),
        }
    }
}

impl Write for &Socket {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&mut &*socket).write_vectored(slices),
            Socket::Unix(socket) => (&mut &*socket).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
