//! Origins that are not what they seem: what they answer with fills no memory.

use crate::harness::server::binary;
use crate::harness::{PATIENCE, Scratch};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// What they would send in all; a reader that takes in everything holds it, and more.
const ENDLESS: usize = 640 << 20;
/// What the program may take at most: an answer of 128 MiB, and what it makes of it.
const RESIDENT_KIB_MAX: u64 = 420 << 10;
const TEXT: usize = 4 << 10;
/// What is sent of a message that announces more.
static PIECE: [u8; 64 << 10] = [0; 64 << 10];

/// An origin that serves every connection by `serve`; its address.
fn origin(serve: fn(TcpStream) -> io::Result<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one").to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // Whoever has enough hangs up.
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// The exit code, what was said, and the most KiB that were resident.
fn watched(mut command: Command) -> (Option<i32>, String, u64) {
    command.env_remove("DESTAGE_PASSWORD").stdin(Stdio::null()).stdout(Stdio::null());
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the binary starts");
    let began = Instant::now();
    let mut most = 0;
    while child.try_wait().expect("it is ours").is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let now = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.trim().parse().ok());
        most = most.max(now.unwrap_or(0));
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().expect("it has ended");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned(), most)
}

#[track_caller]
fn is_given_up(url: &str) {
    let scratch = Scratch::new();
    let mut serve = Command::new(binary());
    serve.args(["serve", "--listen", "127.0.0.1:0", "--admin", "none", "--no-auth"]);
    serve.args(["--origin-timeout", "60s", "--origin", url, "--data"]).arg(scratch.join("data"));
    let mut schema = Command::new(binary());
    schema.args(["schema", "--origin-timeout", "60s", "--origin", url]);
    for command in [serve, schema] {
        let shown = format!("{command:?}");
        let (code, said, most) = watched(command);
        assert!(most < RESIDENT_KIB_MAX, "{most} KiB: {shown} {said}");
        assert_eq!(code, Some(10), "{shown} {said}");
        assert!(said.contains("longer than any") && said.contains("127.0.0.1:"), "{said}");
    }
}

mod postgres {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).expect("it is short").to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    /// The columns of the first question about the catalogue, with the numbers of their types.
    const COLUMNS: [(&str, u32); 12] = [
        ("oid", 26),
        ("schema", 25),
        ("name", 25),
        ("sql_name", 25),
        ("kind", 25),
        ("unlogged", 16),
        ("partition", 16),
        ("visible", 16),
        ("row_security", 16),
        ("inherits", 16),
        ("inherited", 16),
        ("lacking", 1009),
    ];

    fn description() -> Vec<u8> {
        let mut body = u16::try_from(COLUMNS.len()).expect("few").to_be_bytes().to_vec();
        for (name, kind) in COLUMNS {
            body.extend(
                [name.as_bytes(), &[0; 7], &kind.to_be_bytes(), &[0xff; 6], &[0, 0]].concat(),
            );
        }
        // How many parameters: one, a list of texts.
        [message(b't', &[0, 1, 0, 0, 3, 0xf1]), message(b'T', &body)].concat()
    }

    fn row() -> Vec<u8> {
        let mut body = u16::try_from(COLUMNS.len()).expect("few").to_be_bytes().to_vec();
        for (_, kind) in COLUMNS {
            let value = match kind {
                26 => vec![0, 0, 64, 0],
                16 => vec![1],
                // An empty list of texts.
                1009 => [[0; 8], [0, 0, 0, 25, 0, 0, 0, 0]].concat()[..12].to_vec(),
                _ => vec![b'x'; TEXT / 4],
            };
            body.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
            body.extend(value);
        }
        message(b'D', &body)
    }

    /// Rows without an end.
    pub(super) fn rows(stream: TcpStream) -> io::Result<()> {
        serve(stream, |out| {
            let rows = row().repeat(64);
            (0..ENDLESS / rows.len()).try_for_each(|_| out.write_all(&rows))
        })
    }

    /// One row that is as large as all of them.
    pub(super) fn row_without_end(stream: TcpStream) -> io::Result<()> {
        serve(stream, |out| message_without_end(out, b'D'))
    }

    /// An error in place of a greeting that is as large.
    pub(super) fn error_without_end(mut stream: TcpStream) -> io::Result<()> {
        message_without_end(&mut stream, b'E')
    }

    fn message_without_end(out: &mut TcpStream, kind: u8) -> io::Result<()> {
        out.write_all(&[&[kind], &(1_u32 << 30).to_be_bytes()[..]].concat())?;
        (0..ENDLESS / PIECE.len()).try_for_each(|_| out.write_all(&PIECE))
    }

    /// Greets whoever comes, and answers the first question that is prepared so.
    fn serve(
        stream: TcpStream,
        answer_with: fn(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = stream.try_clone()?;
        let mut from = BufReader::new(stream);
        let ready = message(b'Z', b"I");
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        io::copy(
            &mut from.by_ref().take(u64::from(u32::from_be_bytes(length)) - 4),
            &mut io::sink(),
        )?;
        out.write_all(&[message(b'R', &[0; 4]), ready.clone()].concat())?;
        loop {
            let mut head = [0; 5];
            from.read_exact(&mut head)?;
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) - 4;
            io::copy(&mut from.by_ref().take(length.into()), &mut io::sink())?;
            let answer = match head[0] {
                b'Q' => [message(b'C', b"SET\0"), ready.clone()].concat(),
                b'P' => message(b'1', &[]),
                b'D' => description(),
                b'S' => ready.clone(),
                b'B' => message(b'2', &[]),
                b'E' => return answer_with(&mut out),
                _ => Vec::new(),
            };
            out.write_all(&answer)?;
        }
    }
}

mod mysql {
    use super::*;

    fn packet(number: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len()).expect("it is short").to_le_bytes();
        [&length[..3], &[number], body].concat()
    }

    fn text(value: &str) -> Vec<u8> {
        let length = u16::try_from(value.len()).expect("it is short").to_le_bytes();
        [&[0xfc], &length[..], value.as_bytes()].concat()
    }

    const OK: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
    const EOF: [u8; 5] = [0xfe, 0, 0, 2, 0];

    fn greeting() -> Vec<u8> {
        // Protocol 4.1, passwords by the native plugin, statements of several, no TLS.
        let capabilities: u32 = 1 | 8 | 0x200 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
        let bits = capabilities.to_le_bytes();
        let mut body = vec![10];
        body.extend(b"5.5.5-10.11.6-MariaDB\0");
        body.extend([1, 0, 0, 0]);
        body.extend(b"12345678\0");
        body.extend([bits[0], bits[1], 45, 2, 0, bits[2], bits[3], 21]);
        body.extend([0; 10]);
        body.extend(b"123456789012\0mysql_native_password\0");
        packet(0, &body)
    }

    /// The names of these columns and an end of them.
    fn columns(count: u8) -> Vec<u8> {
        let mut out = packet(1, &[count]);
        for number in 0..count {
            let mut body = Vec::new();
            for value in ["def", "", "", "", "c", "c"] {
                body.push(u8::try_from(value.len()).expect("short"));
                body.extend(value.as_bytes());
            }
            body.extend([0x0c, 45, 0, 0, 1, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
            out.extend(packet(number + 2, &body));
        }
        out.extend(packet(count + 2, &EOF));
        out
    }

    /// Rows without an end.
    pub(super) fn rows(stream: TcpStream) -> io::Result<()> {
        serve(stream, |out| {
            let value = "x".repeat(TEXT / 4);
            let row = [value.as_str(); 4].map(text).concat();
            // Numbers of packets are not looked at in the middle of an answer.
            (0..ENDLESS / row.len()).try_for_each(|number| {
                let number = u8::try_from((number + 7) % 256).expect("it is small");
                out.write_all(&packet(number, &row))
            })
        })
    }

    /// One row that is as large as all of them: in packets that are full, so that another one follows.
    pub(super) fn row_without_end(stream: TcpStream) -> io::Result<()> {
        const FULL: usize = (1 << 24) - 1;
        serve(stream, |out| {
            (0..ENDLESS / FULL).try_for_each(|number| {
                let number = u8::try_from(number + 7).expect("it is small");
                out.write_all(&[0xff, 0xff, 0xff, number])?;
                (0..FULL / PIECE.len()).try_for_each(|_| out.write_all(&PIECE))?;
                out.write_all(&PIECE[..FULL % PIECE.len()])
            })
        })
    }

    /// Greets whoever comes, and answers the first question about the catalogue with rows of four columns: these.
    fn serve(
        stream: TcpStream,
        answer_with: fn(&mut TcpStream) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut out = stream.try_clone()?;
        let mut from = BufReader::new(stream);
        out.write_all(&greeting())?;
        let mut answer = packet(2, &OK);
        loop {
            let mut head = [0; 4];
            from.read_exact(&mut head)?;
            let length = u32::from_le_bytes([head[0], head[1], head[2], 0]);
            let mut asked = vec![0; length as usize];
            from.read_exact(&mut asked)?;
            if head[3] == 0 {
                let asked = String::from_utf8_lossy(&asked).into_owned();
                let values: &[&str] = match () {
                    () if asked.contains("information_schema") => {
                        out.write_all(&columns(4))?;
                        return answer_with(&mut out);
                    }
                    () if asked.contains("version()") => &["10.11.6-MariaDB", "16777216"],
                    () if asked.contains(',') && asked.contains("@@") => &["16777216", "28800"],
                    () if asked.contains("SELECT @@") => &["16777216"],
                    () => &[],
                };
                answer = match u8::try_from(values.len()).expect("few") {
                    0 => packet(1, &OK),
                    count => {
                        let row =
                            values.iter().map(|value| text(value)).collect::<Vec<_>>().concat();
                        let rows = [packet(count + 3, &row), packet(count + 4, &EOF)];
                        [columns(count), rows.concat()].concat()
                    }
                };
            }
            out.write_all(&answer)?;
        }
    }
}

mod mongo {
    use super::{ENDLESS, PIECE};
    use mongodb::bson::{Document, doc, spec::BinarySubtype};
    use std::io::{self, Read, Write};
    use std::net::TcpStream;

    const OP_REPLY: i32 = 1;
    const OP_QUERY: i32 = 2004;
    const OP_MSG: i32 = 2013;
    /// The length, a number, which one is answered, the kind.
    const HEADER: usize = 16;
    /// What a server says of its messages.
    const USUAL: i32 = 48_000_000;

    fn number(bytes: &[u8], at: usize) -> i32 {
        i32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
    }

    fn header(length: usize, answered: i32, kind: i32) -> Vec<u8> {
        let length = i32::try_from(length).expect("not beyond what a header can say");
        [length, 1, answered, kind].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn hello(message_bytes_max: i32) -> Document {
        doc! {
            "ok": 1, "helloOk": true, "isWritablePrimary": true, "ismaster": true, "minWireVersion": 0, "maxWireVersion": 21,
            "maxBsonObjectSize": 16 << 20, "maxMessageSizeBytes": message_bytes_max, "maxWriteBatchSize": 100_000,
        }
    }

    /// Says that its messages may have 2 GB, and sends such a one.
    pub(super) fn message_without_end(stream: TcpStream) -> io::Result<()> {
        serve(stream, 2_000_000_000, |out, asked| {
            out.write_all(&header(ENDLESS, asked, OP_MSG))?;
            (0..ENDLESS / PIECE.len()).try_for_each(|_| out.write_all(&PIECE))
        })
    }

    /// Sends one large part of a list after another.
    pub(super) fn list_without_end(stream: TcpStream) -> io::Result<()> {
        let bytes = vec![0; 15 << 20];
        let stuff = mongodb::bson::Binary { subtype: BinarySubtype::Generic, bytes };
        let row = doc! { "name": "n", "type": "collection", "options": { "comment": stuff } };
        serve(stream, USUAL, move |out, asked| {
            let batch = vec![row.clone()];
            let cursor =
                doc! { "id": 7_i64, "ns": "db.c", "firstBatch": batch.clone(), "nextBatch": batch };
            out.write_all(&message(asked, &doc! { "ok": 1, "cursor": cursor }))
        })
    }

    fn message(asked: i32, document: &Document) -> Vec<u8> {
        let body = document.to_vec().expect("a document");
        let mut message = header(HEADER + 5 + body.len(), asked, OP_MSG);
        message.extend_from_slice(&[0; 5]);
        message.extend_from_slice(&body);
        message
    }

    fn serve(
        mut stream: TcpStream,
        message_bytes_max: i32,
        mut answer: impl FnMut(&mut TcpStream, i32) -> io::Result<()>,
    ) -> io::Result<()> {
        loop {
            let mut head = [0; HEADER];
            stream.read_exact(&mut head)?;
            let mut rest = vec![0; usize::try_from(number(&head, 0)).unwrap_or(HEADER) - HEADER];
            stream.read_exact(&mut rest)?;
            let asked = number(&head, 4);
            let names = |name: &str| rest.windows(name.len()).any(|part| part == name.as_bytes());
            if number(&head, 12) == OP_QUERY {
                let body = hello(message_bytes_max).to_vec().expect("a document");
                let mut reply = header(HEADER + 20 + body.len(), asked, OP_REPLY);
                reply.extend_from_slice(&[0; 16]);
                reply.extend_from_slice(&1_i32.to_le_bytes());
                reply.extend_from_slice(&body);
                stream.write_all(&reply)?;
            } else if names("\x10hello\0") || names("\x10ismaster\0") || names("\x10isMaster\0") {
                stream.write_all(&message(asked, &hello(message_bytes_max)))?;
            } else if names("\x10ping\0") && message_bytes_max == USUAL {
                stream.write_all(&message(asked, &doc! { "ok": 1 }))?;
            } else {
                answer(&mut stream, asked)?;
            }
        }
    }
}

#[test]
fn a_mongodb_that_answers_without_an_end_fills_no_memory() {
    let all: [fn(_) -> _; 2] = [mongo::message_without_end, mongo::list_without_end];
    for serve in all {
        is_given_up(&format!("mongodb://{}/db", origin(serve)));
    }
}

#[test]
fn a_postgresql_that_answers_without_an_end_fills_no_memory() {
    let all: [fn(_) -> _; 3] =
        [postgres::rows, postgres::row_without_end, postgres::error_without_end];
    for serve in all {
        is_given_up(&format!("postgres://u:p@{}/db?sslmode=disable", origin(serve)));
    }
}

#[test]
fn a_mariadb_that_answers_without_an_end_fills_no_memory() {
    let all: [fn(_) -> _; 2] = [mysql::rows, mysql::row_without_end];
    for serve in all {
        is_given_up(&format!("mysql://u:p@{}/db?sslmode=disable", origin(serve)));
    }
}
