//! Sockets: where clients come from, and one connection.

use super::ServeError;
use crate::settings::Listen;
use destage_runtime::exit;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;

/// A listening socket.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, std::path::PathBuf),
}

/// A connected socket.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One connection.
pub(super) struct Client {
    pub(super) stream: Stream,
    /// How much of the outgoing bytes has been sent.
    pub(super) sent: usize,
    /// There may be more to read than was read.
    pub(super) readable: bool,
    /// The socket takes no more for now.
    pub(super) blocked: bool,
    /// The peer has announced that it sends no more: nothing else will, so the socket is read to its end.
    pub(super) ending: bool,
    /// It was read to its end. The connection is closed once everything asked before is answered.
    pub(super) ended: bool,
}

impl Listener {
    pub(super) fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let failed = |place: String, error: io::Error| {
            let message =
                format!("cannot listen on {place}: {error}; choose another with --listen");
            ServeError::new(exit::ADDRESS_IN_USE, message)
        };
        match listen {
            Listen::Tcp(address) => TcpListener::bind(*address)
                .map(Self::Tcp)
                .map_err(|error| failed(address.to_string(), error)),
            Listen::Unix(path) => {
                let place = path.display().to_string();
                remove_dead_socket(path).map_err(|error| failed(place.clone(), error))?;
                let listener = UnixListener::bind(path).and_then(|listener| {
                    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                    Ok(listener)
                });
                listener
                    .map(|listener| Self::Unix(listener, path.clone()))
                    .map_err(|error| failed(place, error))
            }
        }
    }

    /// The address for the ready line.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string())
            }
            Self::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    pub(super) fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept()?.0)),
        }
    }

    pub(super) fn source(&mut self) -> &mut dyn Source {
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

/// Removes a socket file that nobody listens on any more.
fn remove_dead_socket(path: &std::path::Path) -> io::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(_) => Ok(()),
    }
}

impl Stream {
    pub(super) fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }
}
