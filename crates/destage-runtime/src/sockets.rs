//! Sockets that clients connect to, for an event loop: TCP, or a file that only its owner may use.

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use rustix::fs::Mode;
use socket2::{Domain, SockAddr, SockRef, Socket, Type};
use std::fmt;
use std::fs::Metadata;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
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
#[error("cannot listen on {place}: {source}; choose another with {flag}")]
pub struct BindError {
    place: String,
    flag: &'static str,
    source: io::Error,
}

/// Looks whether a server could listen here, named by this flag, and leaves the place as it is.
///
/// # Errors
/// Names the place that is not to be had and what to do.
pub fn check_free(listen: &Listen, flag: &'static str) -> Result<(), BindError> {
    let free = match listen {
        Listen::Tcp(address) => bind_tcp(*address).map(drop),
        Listen::Unix(path) => check_file_free(path),
    };
    free.map_err(|source| BindError { place: listen.to_string(), flag, source })
}

fn check_file_free(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            std::fs::metadata(folder.unwrap_or_else(|| Path::new("."))).map(drop)
        }
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err(_) => Ok(()),
        },
    }
}

/// The places where a server will listen. They are taken before the server changes anything elsewhere, so that one that is not to
/// be had leaves no trace of a start; nobody can connect by TCP until the server has begun.
#[derive(Debug)]
pub struct Reserved {
    listener: Option<Listener>,
    admin: Option<std::net::TcpListener>,
}

impl Reserved {
    /// Takes the place for clients and the one for administration, as far as there are to be such.
    ///
    /// # Errors
    /// Names the place that is not to be had and what to do.
    pub fn new(listen: Option<&Listen>, admin: Option<SocketAddr>) -> Result<Self, BindError> {
        let reserve = |address: SocketAddr| {
            let error = |source| BindError { place: address.to_string(), flag: "--admin", source };
            bind_tcp(address).map(std::net::TcpListener::from).map_err(error)
        };
        Ok(Self {
            listener: listen.map(Listener::reserve).transpose()?,
            admin: admin.map(reserve).transpose()?,
        })
    }

    /// The listener for clients, to whom it is open from now on.
    ///
    /// # Errors
    /// Another process has begun to listen there since.
    pub fn listen(&mut self) -> Result<Option<Listener>, BindError> {
        let Some(listener) = self.listener.take() else { return Ok(None) };
        listener.listen()?;
        Ok(Some(listener))
    }

    /// A twin of the listener for clients, to whom it is open from now on: for whoever answers before the server does.
    ///
    /// # Errors
    /// Another process has begun to listen there since.
    pub fn listener_twin(&self) -> io::Result<Option<std::net::TcpListener>> {
        let Some(Listener::Tcp(listener)) = &self.listener else { return Ok(None) };
        SockRef::from(listener).listen(BACKLOG)?;
        Ok(Some(std::net::TcpListener::from(listener.as_fd().try_clone_to_owned()?)))
    }

    /// A twin of the one for administration.
    ///
    /// # Errors
    /// The system has no descriptor to give.
    pub fn admin_twin(&self) -> io::Result<Option<std::net::TcpListener>> {
        self.admin.as_ref().map(std::net::TcpListener::try_clone).transpose()
    }

    /// What [`crate::admin::serve`] listens with.
    pub fn take_admin(&mut self) -> Option<std::net::TcpListener> {
        self.admin.take()
    }
}

/// A listening socket. Its socket file is removed when it is dropped.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A socket in the file system, and where.
    Unix(UnixListener, SocketFile),
}

/// The name of a socket in the file system. Removed when dropped, unless something else has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    is: Inode,
}

/// Which file a name stands for: device and number.
type Inode = (u64, u64);

/// A connected socket.
#[derive(Debug)]
pub enum Stream {
    /// TCP, without delay for small segments.
    Tcp(TcpStream),
    /// A socket in the file system.
    Unix(UnixStream),
}

impl Listener {
    /// Listens. A socket file that nobody listens on any more is replaced; only its owner may connect to the new one. Any other
    /// file stays as it is.
    ///
    /// # Errors
    /// Names the place and what to do.
    pub fn bind(listen: &Listen) -> Result<Self, BindError> {
        let listener = Self::reserve(listen)?;
        listener.listen()?;
        Ok(listener)
    }

    /// Takes the place. A socket file is open to clients at once: one that nobody listens on would pass for a dead one.
    fn reserve(listen: &Listen) -> Result<Self, BindError> {
        let bound = match listen {
            Listen::Tcp(address) => {
                let socket = bind_tcp(*address);
                socket.map(|socket| Self::Tcp(TcpListener::from_std(socket.into())))
            }
            Listen::Unix(path) => {
                bind_file(path).map(|(listener, file)| Self::Unix(listener, file))
            }
        };
        bound.map_err(|source| BindError { place: listen.to_string(), flag: "--listen", source })
    }

    fn listen(&self) -> Result<(), BindError> {
        let Self::Tcp(listener) = self else { return Ok(()) };
        let error = |source| BindError { place: self.address(), flag: "--listen", source };
        SockRef::from(listener).listen(BACKLOG).map_err(error)
    }

    /// The address for the ready line, with the port that the system chose.
    pub fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => {
                listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string())
            }
            Self::Unix(_, file) => format!("unix:{}", file.path.display()),
        }
    }

    /// The next connection, and the address that it comes from; none where that is a socket in the file system.
    ///
    /// # Errors
    /// `WouldBlock` if there is none.
    pub fn accept(&self) -> io::Result<(Stream, Option<SocketAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Some(from)))
            }
            Self::Unix(listener, _) => Ok((Stream::Unix(listener.accept()?.0), None)),
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

impl SocketFile {
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Whoever listens here next removes what is left.
        let _ = remove_if(&self.path, |found| inode(found) == self.is);
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, None)?;
    // A place is free as soon as nobody listens there, whatever becomes of the connections that it had.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

fn bind_file(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    remove_dead_socket(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    // The kernel gives the file the socket's mode: at no time may anybody else connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile { path: path.to_owned(), is: inode(&path.symlink_metadata()?) };
    socket.listen(BACKLOG)?;
    Ok((UnixListener::from_std(socket.into()), file))
}

/// Removes a socket file that nobody listens on any more.
fn remove_dead_socket(path: &Path) -> io::Result<()> {
    let found = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file of another kind, which is left as it is",
        ));
    }
    // Not to wait for one who listens and does not accept.
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)?;
    match socket.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            remove_if(path, |now| inode(now) == inode(&found))
        }
        // Somebody listens, or may: binding tells.
        _ => Ok(()),
    }
}

/// Removes the socket at this name if it is the one meant.
fn remove_if(path: &Path, meant: impl FnOnce(&Metadata) -> bool) -> io::Result<()> {
    let found = path.symlink_metadata()?;
    if found.file_type().is_socket() && meant(&found) { std::fs::remove_file(path) } else { Ok(()) }
}

fn inode(file: &Metadata) -> Inode {
    (file.dev(), file.ino())
}

/// How many connections may wait to be accepted.
pub(crate) const BACKLOG: i32 = 1_024;

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
    /// Not by a list of one piece: the kernel takes a bit longer over that than over the piece alone.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
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
