//! A Redis client of a few lines, so that tests about the server need no other program.

use super::PATIENCE;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// `+OK`.
    Status(String),
    /// `-ERR ...`.
    Error(String),
    /// `:1`.
    Int(i64),
    /// A string; the tests' values are text unless they say otherwise.
    Bulk(Vec<u8>),
    /// Nothing there.
    Nil,
    /// An array, a set or a push.
    Array(Vec<Self>),
    /// A map, protocol 3 only.
    Map(Vec<(Self, Self)>),
    /// `#t`, protocol 3 only.
    Bool(bool),
    /// `,1.5`, protocol 3 only.
    Double(f64),
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Connects; replies are waited for up to [`PATIENCE`].
    ///
    /// # Panics
    /// If nobody listens there.
    #[track_caller]
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::try_connect(address).unwrap_or_else(|error| panic!("failed to connect: {error}"))
    }

    /// Connects, or says why not.
    pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        let client = Self { stream: BufReader::new(stream) };
        client.patience(PATIENCE);
        Ok(client)
    }

    /// How long to wait for a reply.
    pub(crate) fn patience(&self, limit: Duration) {
        let stream = self.stream.get_ref();
        stream.set_read_timeout(Some(limit)).expect("the limit is not zero");
        stream.set_write_timeout(Some(limit)).expect("the limit is not zero");
    }

    /// Sends a command and waits for its reply. Words are separated by blanks; use [`Client::call`] for others.
    ///
    /// # Panics
    /// If the connection fails.
    #[track_caller]
    pub(crate) fn run(&mut self, command: &str) -> Reply {
        let words: Vec<&str> = command.split_whitespace().collect();
        self.call(&words)
    }

    /// Sends a command of these words and waits for its reply.
    ///
    /// # Panics
    /// If the connection fails.
    #[track_caller]
    pub(crate) fn call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.try_call(words).unwrap_or_else(|error| {
            let words: Vec<_> =
                words.iter().map(|w| String::from_utf8_lossy(w.as_ref()).into_owned()).collect();
            panic!("{}: no reply: {error}", words.join(" "))
        })
    }

    /// As [`Client::call`], for connections that may end.
    pub(crate) fn try_call<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command without waiting.
    pub(crate) fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode(&mut bytes, words);
        self.send_raw(&bytes)
    }

    /// Sends bytes as they are.
    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Closes the sending side, and waits for answers still.
    pub(crate) fn sends_no_more(&self) {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write).expect("it is open");
    }

    /// Sends several commands at once and waits for all replies.
    ///
    /// # Panics
    /// If the connection fails.
    #[track_caller]
    pub(crate) fn pipeline(&mut self, commands: &[String]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for command in commands {
            encode(&mut bytes, &command.split_whitespace().collect::<Vec<_>>());
        }
        self.send_raw(&bytes).expect("the server takes the commands");
        let replies = commands.iter().map(|command| {
            self.receive().unwrap_or_else(|error| panic!("{command}: no reply: {error}"))
        });
        replies.collect()
    }

    /// Sends commands that read, and sends those again whose origin was too slow for `--client-wait`, for up to [`PATIENCE`]: on a
    /// disk that many tests share, this says nothing about the server.
    ///
    /// # Panics
    /// If the connection fails.
    #[track_caller]
    pub(crate) fn read(&mut self, commands: &[String]) -> Vec<Reply> {
        let until = Instant::now() + PATIENCE;
        let mut replies = self.pipeline(commands);
        let is_late = |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("UNAVAILABLE ") && text.contains("--client-wait"));
        while Instant::now() < until && replies.iter().any(is_late) {
            for (command, reply) in commands.iter().zip(&mut replies) {
                if is_late(reply) {
                    *reply = self.run(command);
                }
            }
        }
        replies
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        match kind {
            "+" => Ok(Reply::Status(rest.to_owned())),
            "-" => Ok(Reply::Error(rest.to_owned())),
            ":" => Ok(Reply::Int(number()?)),
            "_" => Ok(Reply::Nil),
            "#" => Ok(Reply::Bool(rest == "t")),
            "," => Ok(Reply::Double(rest.parse().map_err(|_| malformed(&line))?)),
            "$" | "=" => self.bulk(number()?),
            "*" | "~" | ">" => match number()? {
                -1 => Ok(Reply::Nil),
                count => {
                    Ok(Reply::Array((0..count).map(|_| self.receive()).collect::<Result<_, _>>()?))
                }
            },
            "%" => {
                let pairs = (0..number()?).map(|_| Ok((self.receive()?, self.receive()?)));
                Ok(Reply::Map(pairs.collect::<io::Result<_>>()?))
            }
            _ => Err(malformed(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) if !line.is_empty() => Ok(line.to_owned()),
            _ if line.is_empty() => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(malformed(&line)),
        }
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Reply::Nil);
        };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(bytes))
    }
}

/// The protocol's form of a command.
pub(crate) fn encode<W: AsRef<[u8]>>(out: &mut Vec<u8>, words: &[W]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        let word = word.as_ref();
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"))
}

impl Reply {
    /// The reply as text; panics for errors and everything else that has none.
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("the value is text"),
            Self::Status(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            other => panic!("not text: {other:?}"),
        }
    }

    /// The reply as a number, also where it is text.
    #[track_caller]
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => other.text().parse().unwrap_or_else(|_| panic!("not a number: {other:?}")),
        }
    }

    /// The error's text; panics for anything else.
    #[track_caller]
    pub(crate) fn error(&self) -> &str {
        match self {
            Self::Error(message) => message,
            other => panic!("not refused: {other:?}"),
        }
    }

    /// Whether it is an error.
    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The elements; panics for anything but an array.
    #[track_caller]
    pub(crate) fn array(&self) -> &[Self] {
        match self {
            Self::Array(elements) => elements,
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Names and values of a map in either protocol, sorted by name.
    #[track_caller]
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let mut pairs: Vec<_> = match self {
            Self::Map(pairs) => pairs.iter().map(|(n, v)| (n.text(), v.text())).collect(),
            other => other.array().chunks(2).map(|pair| (pair[0].text(), pair[1].text())).collect(),
        };
        pairs.sort();
        pairs
    }

    /// `OK`, or panics with what it is instead.
    #[track_caller]
    pub(crate) fn ok(&self) {
        assert_eq!(*self, Self::Status("OK".into()));
    }
}
