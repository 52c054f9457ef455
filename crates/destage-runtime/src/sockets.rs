//! Sockets that clients connect to, for an event loop: TCP, or a file that only its owner may use.

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "{addr}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Nobody can listen there.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen}: {source}; choose another with --listen")]
pub struct BindError {
    listen: Listen,
    source: io::Error,
}

/// A listening socket. A socket file is removed when it is dropped.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A socket in the file system, and where.
    Unix(UnixListener, PathBuf),
}

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, without delay for small segments.
    Tcp(TcpStream),
    /// A socket in the file system.
    Unix(UnixStream),
}

impl Listener {
    /// Listens. A socket file that nobody listens on any more is replaced; only its owner may connect to the new one.
    ///
    /// # Errors
    /// Names the place and what to do.
    pub fn bind(listen: &Listen) -> Result<Self, BindError> {
        let bound = match listen {
            Listen::Tcp(address) => TcpListener::bind(*address).map(Self::Tcp),
            Listen::Unix(path) => bind_file(path).map(|l| Self::Unix(l, path.clone())),
        };
        bound.map_err(|source| BindError { listen: listen.clone(), source })
    }

    /// The address for the ready line, with the port that the system chose.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string())
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    /// What a poll watches.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(listener) => listener,
            Self::Unix(listener, _) => listener,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Whoever comes next removes what is left.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn bind_file(path: &Path) -> io::Result<UnixListener> {
    remove_dead_socket(path)?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes a socket file that nobody listens on any more.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(_) => Ok(()),
    }
}

impl Stream {
    /// What a poll watches.
    pub fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, buffers: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write_vectored(buffers),
            Self::Unix(stream) => stream.write_vectored(buffers),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
