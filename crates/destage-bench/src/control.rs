//! A few commands, one at a time: control commands, checks, and an HTTP GET for the status.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use destage_runtime::sockets::Listen;

use crate::Result;
use crate::connect::Connected;

/// A RESP2 reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Int(i64),
    List(Vec<Self>),
    Nil,
}

/// A blocking RESP client.
#[derive(Debug)]
pub(crate) struct Client {
    input: BufReader<Connected>,
    output: Connected,
}

impl Client {
    /// A drain may take minutes, so a reply may too.
    pub(crate) fn connect(address: &Listen) -> Result<Self> {
        let output = Connected::to(address)?;
        output.set_read_timeout(Some(Duration::from_secs(600)))?;
        Ok(Self { input: BufReader::new(output.try_clone()?), output })
    }

    /// Sends one command.
    ///
    /// # Errors
    ///
    /// The connection broke, or the server answered with an error.
    pub(crate) fn call(&mut self, arguments: &[&str]) -> Result<Value> {
        self.send(arguments)?;
        let named = |error| format!("failed to run {}: {error}", arguments.join(" "));
        Ok(self.receive().map_err(named)?)
    }

    pub(crate) fn send(&mut self, arguments: &[&str]) -> Result<()> {
        let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            bytes.extend(format!("${}\r\n{argument}\r\n", argument.len()).bytes());
        }
        Ok(self.output.write_all(&bytes)?)
    }

    pub(crate) fn receive(&mut self) -> Result<Value> {
        read_value(&mut self.input)
    }
}

/// The next reply in `input`.
///
/// # Errors
///
/// It is an error, or holds one; or it is not whole, or no RESP2.
pub(crate) fn read_value(input: &mut impl BufRead) -> Result<Value> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Err("the server closed the connection".into());
    }
    let line = line.trim_end();
    let Some(rest) = line.get(1..) else { return Err("an empty reply".into()) };
    match line.as_bytes()[0] {
        b'+' => Ok(Value::Text(rest.to_owned())),
        b'-' => Err(rest.to_owned().into()),
        b':' => Ok(Value::Int(rest.parse()?)),
        b'$' => bulk(input, rest.parse()?),
        b'*' if rest == "-1" => Ok(Value::Nil),
        b'*' => {
            let count: usize = rest.parse()?;
            (0..count).map(|_| read_value(input)).collect::<Result<_>>().map(Value::List)
        }
        _ => Err(format!("unexpected reply {line:?}").into()),
    }
}

fn bulk(input: &mut impl BufRead, length: i64) -> Result<Value> {
    let Ok(length) = usize::try_from(length) else { return Ok(Value::Nil) };
    let mut bytes = vec![0; length + 2];
    input.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The body of `GET path`.
///
/// # Errors
///
/// The connection failed or the status is not 200.
pub(crate) fn http_get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // Version 1.0: the server may not chunk, and closes at the end.
    // In one write: a server may answer and close before a second one.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or("a reply without an end of its head")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200") {
        return Err(format!("failed to get {path} from {address}: {status}").into());
    }
    Ok(body.to_owned())
}
