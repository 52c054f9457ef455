//! What systemd hears of the server, as `sd_notify(3)` describes it. Without systemd, nothing is sent.
//!
//! A unit of `Type=notify` counts as started with `READY=1`. `STATUS=` is the line that `systemctl status` shows. With
//! `WatchdogSec=` systemd restarts a server whose thread does not come round any more.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use destage_core::{Span, Time};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The variable that names the socket: a path, or a name behind `@`.
const SOCKET: &str = "NOTIFY_SOCKET";
/// How often systemd wants a sign of life, in microseconds.
const WATCHDOG: &str = "WATCHDOG_USEC";
/// The process that it means.
const WATCHDOG_PID: &str = "WATCHDOG_PID";

/// Clients are served from now on, or told where they are.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={}", one_line(status)));
}

/// What the server is doing, for people.
pub fn status(status: &str) {
    tell(&format!("STATUS={}", one_line(status)));
}

/// The server has begun to end.
pub fn stopping(status: &str) {
    tell(&format!("STOPPING=1\nSTATUS={}", one_line(status)));
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

fn tell(message: &str) {
    static SERVICE: OnceLock<Option<Service>> = OnceLock::new();
    let open = || {
        let socket = std::env::var_os(SOCKET)?;
        Service::open(&socket)
            .inspect_err(
                |error| tracing::warn!(%error, ?socket, "cannot tell systemd of this server"),
            )
            .ok()
    };
    if let Some(service) = SERVICE.get_or_init(open) {
        // systemd may be restarting: the next message finds it again.
        let _ = service.tell(message);
    }
}

/// The service manager.
#[derive(Debug)]
struct Service {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Service {
    fn open(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', abstract_name @ ..] => SocketAddr::from_abstract_name(abstract_name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold up the server.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address })
    }

    fn tell(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.address).map(drop)
    }
}

/// The signs of life of the server's thread, twice in the time that systemd allows.
#[derive(Debug)]
pub struct Pulse {
    every: Option<Span>,
    /// Nanoseconds, as of [`Time`].
    next: AtomicU64,
}

impl Pulse {
    /// As the unit asks for it, if it does.
    pub fn of_unit() -> Self {
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let is_meant = number(WATCHDOG_PID).is_none_or(|pid| pid == u64::from(std::process::id()));
        Self::every(number(WATCHDOG).filter(|_| is_meant).map(|micros| Span(micros * 500)))
    }

    fn every(every: Option<Span>) -> Self {
        Self { every, next: AtomicU64::new(0) }
    }

    /// The server's thread is alive; when it must come round again, if anybody asks.
    pub fn beat(&self, now: Time) -> Option<Time> {
        let every = self.every?;
        // Only the server's thread changes it.
        let mut next = Time(self.next.load(Ordering::Relaxed));
        if now >= next {
            tell("WATCHDOG=1");
            next = now + every;
            self.next.store(next.0, Ordering::Relaxed);
        }
        Some(next)
    }
}

/// The same before there is a server's thread that shows it: a standby counts as started, and takes over in its own time.
/// Until it is dropped.
#[derive(Debug)]
pub struct Alive {
    _stop: Sender<Infallible>,
}

impl Alive {
    /// From now on, if the unit asks for it.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn of_unit() -> io::Result<Self> {
        let (stop, stopped) = bounded::<Infallible>(0);
        if let Some(every) = Pulse::of_unit().every {
            let every = Duration::from_nanos(every.as_nanos());
            let beat = move || {
                while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    tell("WATCHDOG=1");
                }
            };
            thread::Builder::new().name("alive".into()).spawn(beat)?;
        }
        Ok(Self { _stop: stop })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_a_socket_by_its_path_and_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("destage-notify-{}", std::process::id());
        let by_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (receiver, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&by_name).unwrap(), format!("@{name}").into()),
        ] {
            Service::open(&address).unwrap().tell("READY=1").unwrap();
            let mut buffer = [0; 64];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert_eq!(one_line("a\nb"), "a b");
    }

    #[test]
    fn the_pulse_is_twice_as_quick_as_asked_for_and_absent_otherwise() {
        assert_eq!(Pulse::every(None).beat(Time::from_secs(5)), None);
        let pulse = Pulse::every(Some(Span::from_secs(5)));
        assert_eq!(pulse.beat(Time::from_secs(7)), Some(Time::from_secs(12)));
        assert_eq!(pulse.beat(Time::from_secs(11)), Some(Time::from_secs(12)));
        assert_eq!(pulse.beat(Time::from_secs(12)), Some(Time::from_secs(17)));
    }
}
