//! Connections to a server at a TCP address or at a socket in the file system.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use destage_runtime::sockets::{Listen, Stream};
use tokio::io::{AsyncRead, AsyncWrite};

/// A blocking connection.
#[derive(Debug)]
pub(crate) enum Connected {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connected {
    /// TCP without delay for small segments.
    pub(crate) fn to(address: &Listen) -> io::Result<Self> {
        match address {
            Listen::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Listen::Unix(path) => UnixStream::connect(path).map(Self::Unix),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }

    pub(crate) fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(time),
            Self::Unix(stream) => stream.set_read_timeout(time),
        }
    }

    /// For an event loop.
    pub(crate) fn nonblocking(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Stream::Tcp(mio::net::TcpStream::from_std(stream)))
            }
            Self::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Stream::Unix(mio::net::UnixStream::from_std(stream)))
            }
        }
    }
}

impl Read for Connected {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Connected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection for tasks.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + std::fmt::Debug {}

impl<T: AsyncRead + AsyncWrite + Unpin + std::fmt::Debug> Duplex for T {}

/// Connects from within a task.
///
/// # Errors
///
/// Nobody listens.
pub(crate) async fn duplex(address: &Listen) -> io::Result<Box<dyn Duplex>> {
    match address {
        Listen::Tcp(address) => {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Listen::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
    }
}
