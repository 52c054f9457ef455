//! A connection without TLS: asked and waited for at first, and later by whoever watches its socket.

use redis::{
    Cmd, ConnectionLike, ErrorKind, Parser, RedisConnectionInfo, RedisError, RedisResult, Value,
};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The connection. While it waits for answers, one request after the other is answered; once it does not, whatever is there.
pub(crate) struct Plain {
    stream: TcpStream,
    parser: Parser,
    /// What the socket has not taken yet.
    unsent: VecDeque<u8>,
    /// Since this was last asked, something has come, or the socket has taken some of what it did not take at first.
    has_moved: bool,
}

/// Where answers are read from.
struct Source<'a> {
    stream: &'a TcpStream,
    has_moved: &'a mut bool,
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        *self.has_moved |= count > 0;
        Ok(count)
    }
}

impl Plain {
    /// Connects, and says who it is.
    ///
    /// # Errors
    /// Nobody is there, or this user is not let in.
    pub(crate) fn open(
        (host, port): (&str, u16),
        user: &RedisConnectionInfo,
        patience: Duration,
    ) -> RedisResult<Self> {
        let stream = connect(host, port, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let mut plain = Self::new(stream);
        if let Some(password) = user.password() {
            let mut auth = redis::cmd("AUTH");
            user.username().into_iter().for_each(|name| {
                auth.arg(name);
            });
            plain.let_in(auth.arg(password))?;
        }
        Ok(plain)
    }

    fn new(stream: TcpStream) -> Self {
        Self { stream, parser: Parser::new(), unsent: VecDeque::new(), has_moved: false }
    }

    fn let_in(&mut self, auth: &Cmd) -> RedisResult<()> {
        auth.query(self).map_err(|error| {
            // Neither who cannot be understood nor who is busy has refused anything.
            let text = error.to_string();
            if error.code().is_none() || text.contains("max number of clients") {
                return error;
            }
            let what = "the server refuses the password";
            RedisError::from((ErrorKind::AuthenticationFailed, what, text))
        })
    }

    /// From now on nothing waits for the server.
    pub(crate) fn stop_waiting(&self) -> io::Result<()> {
        self.stream.set_nonblocking(true)
    }

    /// Sends this behind whatever is not sent yet, as far as the socket takes it.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sent = if self.unsent.is_empty() { self.write(bytes)? } else { 0 };
        self.unsent.extend(&bytes[sent..]);
        self.send_rest()
    }

    /// Sends what the socket has not taken yet, as far as it takes it now.
    pub(crate) fn send_rest(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            let unsent = std::mem::take(&mut self.unsent);
            let sent = self.write(unsent.as_slices().0);
            self.unsent = unsent;
            let sent = sent?;
            if sent == 0 {
                break;
            }
            self.unsent.drain(..sent);
            self.has_moved = true;
        }
        Ok(())
    }

    /// How many of these bytes the socket has taken.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// The next answer; `None` if it has not arrived yet.
    pub(crate) fn next(&mut self) -> RedisResult<Option<Value>> {
        match self.wait() {
            Err(error) if error.is_timeout() => Ok(None),
            result => result.map(Some),
        }
    }

    /// Whether the server does anything: something has come since this was last asked, or the socket has taken some of what it
    /// did not take at first. What it takes at once may be on no way yet.
    pub(crate) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    fn wait(&mut self) -> RedisResult<Value> {
        let Self { stream, parser, has_moved, .. } = self;
        parser.parse_value(Source { stream, has_moved })
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// For requests that wait for their answers.
impl ConnectionLike for Plain {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.stream.write_all(cmd)?;
        self.wait()
    }

    fn req_packed_commands(
        &mut self,
        cmd: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.stream.write_all(cmd)?;
        let values = (0..offset + count).map(|_| self.wait());
        let values: Vec<Value> = values.collect::<RedisResult<_>>()?;
        Ok(values.into_iter().skip(offset).collect())
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        redis::cmd("PING").query::<()>(self).is_ok()
    }

    fn is_open(&self) -> bool {
        true
    }
}

/// To the first of the host's addresses that answers.
fn connect(host: &str, port: u16, patience: Duration) -> io::Result<TcpStream> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;
    use std::time::Instant;

    fn pair() -> (Plain, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (there, _) = listener.accept().unwrap();
        (Plain::new(stream), there)
    }

    fn awaited(plain: &mut Plain) -> Value {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(value) = plain.next().unwrap() {
                return value;
            }
            assert!(Instant::now() < until, "it was sent whole");
            thread::yield_now();
        }
    }

    #[test]
    fn answers_that_come_in_bits_are_read_as_if_they_came_whole() {
        let (mut plain, mut there) = pair();
        plain.stop_waiting().unwrap();
        let texts: [&[u8]; 3] =
            [b"*3\r\n$5\r\nvalue\r\n:12\r\n$-1\r\n", b"+OK\r\n", b"*1\r\n$8\r\nappended\r\n"];
        let first = [Value::BulkString(b"value".into()), Value::Int(12), Value::Nil];
        let last = Value::BulkString(b"appended".into());
        let values = [Value::Array(first.into()), Value::Okay, Value::Array(vec![last])];
        for (text, value) in texts.into_iter().zip(values) {
            for byte in text {
                assert_eq!(plain.next().unwrap(), None, "it has not ended");
                there.write_all(&[*byte]).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(awaited(&mut plain), value);
        }
        plain.has_moved();
        plain.send(b"asked").unwrap();
        assert!(!plain.has_moved(), "that it can be sent is no sign of life");
        there.write_all(b"+OK\r\n").unwrap();
        assert_eq!(awaited(&mut plain), Value::Okay);
        assert!(plain.has_moved());
        drop(there);
        let until = Instant::now() + Duration::from_secs(10);
        while plain.next().is_ok() {
            assert!(Instant::now() < until, "its end is an error");
        }
    }

    #[test]
    fn what_the_socket_does_not_take_at_once_follows_in_order() {
        let (mut plain, mut there) = pair();
        plain.stop_waiting().unwrap();
        let bytes: Vec<u8> = (0..64 << 20).map(|at: u32| (at / 1_000) as u8).collect();
        let (first, second) = bytes.split_at(bytes.len() / 2);
        plain.send(first).unwrap();
        plain.send(second).unwrap();
        assert!(!plain.unsent.is_empty(), "it is more than any socket holds");
        plain.has_moved();
        plain.send_rest().unwrap();
        assert!(!plain.has_moved(), "nobody reads");
        let reader = thread::spawn(move || {
            let mut read = Vec::new();
            there.read_to_end(&mut read).unwrap();
            read
        });
        while !plain.unsent.is_empty() {
            plain.send_rest().unwrap();
        }
        assert!(plain.has_moved());
        drop(plain);
        assert!(reader.join().unwrap() == bytes);
    }
}
