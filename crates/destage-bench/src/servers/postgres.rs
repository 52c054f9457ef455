//! PostgreSQL: a cluster of its own, and a small client for statements and prepared loads.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use destage_runtime::sockets::Listen;

use super::{Process, Transport, checked_socket, free_address};
use crate::Result;
use crate::load::{Load, Protocol, Template, server_error};
use crate::machine::output;

/// What differs from PostgreSQL's defaults. fsync and synchronous_commit are on by default and
/// named here so that nobody has to look.
pub(crate) const SETTINGS: [(&str, &str); 4] = [
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_buffers", "1GB"),
    ("max_wal_size", "8GB"),
];

/// A running cluster with the database `postgres` and the superuser `bench`.
#[derive(Debug)]
pub(crate) struct Postgres {
    process: Process,
    pub(crate) address: SocketAddr,
    /// The folder of its socket, if it has one.
    sockets: Option<PathBuf>,
    cluster: Cluster,
}

/// What its processes are started with.
#[derive(Debug)]
struct Cluster {
    bin: PathBuf,
    home: PathBuf,
    user: Option<(u32, u32)>,
    log: PathBuf,
    settings: Vec<(&'static str, &'static str)>,
}

impl Cluster {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.current_dir(&self.home);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Starts the server over the data that there are.
    fn launch(&self, address: SocketAddr, sockets: Option<&Path>) -> Result<Process> {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).args(["-h", "127.0.0.1", "-k"]);
        command.arg(sockets.unwrap_or_else(|| Path::new("")));
        command.args(["-p", &address.port().to_string()]);
        for (name, value) in &self.settings {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stderr(File::options().create(true).append(true).open(&self.log)?);
        let mut process = Process::start(&mut command, "postgres", libc::SIGINT)?;
        process.wait_for(address)?;
        Ok(process)
    }
}

impl Postgres {
    /// Creates and starts one below `dir`. As root, its processes run as the user `postgres`, who
    /// must be able to enter `dir`. It listens on TCP in any case.
    pub(crate) fn start(dir: &Path, transport: Transport) -> Result<Self> {
        Self::start_with(dir, transport, &[])
    }

    /// The same with further settings.
    pub(crate) fn start_with(
        dir: &Path,
        transport: Transport,
        further: &[(&'static str, &'static str)],
    ) -> Result<Self> {
        let bin = bin_dir()?;
        let user = if running_as_root() { Some(user_ids("postgres")?) } else { None };
        let address = free_address()?;
        let home = dir.join(format!("postgres-{}", address.port()));
        fs::create_dir_all(&home)?;
        if let Some((uid, gid)) = user {
            chown(&home, Some(uid), Some(gid))?;
        }
        let (log, settings) = (dir.join("postgres.log"), [&SETTINGS, further].concat());
        let cluster = Cluster { bin, home, user, log, settings };
        let made = cluster
            .command("initdb")
            .args(["--username=bench", "--auth=trust", "--encoding=UTF8", "--locale=C", "-D"])
            .arg(cluster.data())
            .output()?;
        if !made.status.success() {
            let reason = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(format!("failed to create a PostgreSQL cluster: {reason}").into());
        }
        let sockets = (transport == Transport::Unix).then(|| cluster.home.clone());
        let process = cluster.launch(address, sockets.as_deref())?;
        let server = Self { process, address, sockets, cluster };
        server.near()?;
        server.wait_until_ready()?;
        Ok(server)
    }

    /// Ends it as a crash does, and starts it again after this time.
    ///
    /// # Errors
    ///
    /// It does not end, or does not start again.
    pub(crate) fn crash(&mut self, down: Duration) -> Result<()> {
        self.process.end(libc::SIGQUIT)?;
        std::thread::sleep(down);
        self.process = self.cluster.launch(self.address, self.sockets.as_deref())?;
        self.wait_until_ready()
    }

    /// It listens a moment before it accepts sessions.
    fn wait_until_ready(&self) -> Result<()> {
        for _ in 0..200 {
            if Query::connect(self.address).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Query::connect(self.address).map(|_| ())
    }

    /// Where clients of this machine connect.
    ///
    /// # Errors
    ///
    /// The socket's path is too long.
    pub(crate) fn near(&self) -> Result<Listen> {
        let Some(folder) = &self.sockets else { return Ok(self.address.into()) };
        let path = folder.join(format!(".s.PGSQL.{}", self.address.port()));
        checked_socket(path).map(Listen::Unix)
    }

    /// The address for Destage on this machine.
    pub(crate) fn near_url(&self) -> String {
        match &self.sockets {
            None => Self::url(self.address),
            Some(folder) => format!(
                "postgres:///postgres?host={}&port={}&user=bench",
                folder.display(),
                self.address.port()
            ),
        }
    }

    /// CPU time of all its processes.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        self.process.cpu()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address for Destage, through `via` if there is a proxy between.
    pub(crate) fn url(via: SocketAddr) -> String {
        format!("postgres://bench@{via}/postgres")
    }

    pub(crate) fn query(&self) -> Result<Query> {
        Query::connect(self.address)
    }

    /// A load of prepared single-row updates of `table`, each statement its own transaction.
    pub(crate) fn update_load(via: SocketAddr, table: &str, data_bytes: usize) -> Result<Load> {
        let mut load = Load::resp(via, &["unused"], 0)?;
        load.protocol = Protocol::Postgres;
        let sql = format!("UPDATE {table} SET f0 = $1 WHERE id = $2");
        load.preamble = preamble(&[Statement { name: "u", sql, texts: 1, numbers: 1 }]);
        load.template = Template::postgres("u", 1, data_bytes);
        Ok(load)
    }
}

/// A statement to prepare: first its parameters that are texts, then those that are bigints.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) name: &'static str,
    pub(crate) sql: String,
    pub(crate) texts: usize,
    pub(crate) numbers: usize,
}

/// What a session begins with: the start, then each statement prepared. Each part is answered by one ReadyForQuery.
pub(crate) fn preamble(statements: &[Statement]) -> Vec<u8> {
    let mut bytes = startup_message();
    statements.iter().for_each(|statement| bytes.extend(parse_message(statement)));
    bytes
}

/// A blocking session for plain statements.
#[derive(Debug)]
pub(crate) struct Query {
    stream: TcpStream,
}

impl Query {
    pub(crate) fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(600)))?;
        let mut session = Self { stream };
        session.stream.write_all(&startup_message())?;
        session.finish()?;
        Ok(session)
    }

    /// Runs one or more statements; the first column of the last row, if any.
    ///
    /// # Errors
    ///
    /// The server rejected a statement, or the connection broke.
    pub(crate) fn run(&mut self, sql: &str) -> Result<Option<String>> {
        self.stream.write_all(&message(b'Q', &[sql.as_bytes(), b"\0"].concat()))?;
        let short: String = sql.chars().take(60).collect();
        Ok(self.finish().map_err(|error| format!("failed to run {short:?}: {error}"))?)
    }

    /// Reads to the next ReadyForQuery.
    fn finish(&mut self) -> Result<Option<String>> {
        let mut value = None;
        let mut failure = None;
        loop {
            let (kind, body) = self.next_message()?;
            match kind {
                b'Z' => return failure.map_or(Ok(value), |text: String| Err(text.into())),
                // A fatal error ends the session without ReadyForQuery.
                b'E' if body.starts_with(b"SFATAL") => return Err(server_error(&body).into()),
                b'E' => failure = Some(server_error(&body)),
                b'D' => value = first_column(&body),
                b'R' if body != [0, 0, 0, 0] => return Err("the server wants a password".into()),
                _ => {}
            }
        }
    }

    fn next_message(&mut self) -> Result<(u8, Vec<u8>)> {
        let mut head = [0u8; 5];
        self.stream.read_exact(&mut head)?;
        let size = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; size.checked_sub(4).ok_or("a message below four bytes")?];
        self.stream.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn first_column(body: &[u8]) -> Option<String> {
    let size = i32::from_be_bytes(body.get(2..6)?.try_into().ok()?);
    let end = 6 + usize::try_from(size).ok()?;
    Some(String::from_utf8_lossy(body.get(6..end)?).into_owned())
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len() + 4).expect("a message is far below 4 GiB");
    [&[kind][..], &size.to_be_bytes(), body].concat()
}

fn startup_message() -> Vec<u8> {
    let body = b"\0\x03\0\0user\0bench\0database\0postgres\0\0";
    message(0, body)[1..].to_vec()
}

/// Parse and Sync.
fn parse_message(statement: &Statement) -> Vec<u8> {
    let Statement { name, sql, texts, numbers } = statement;
    let count = u16::try_from(texts + numbers).expect("a statement has few parameters");
    let types = [[0, 0, 0, 25].repeat(*texts), [0, 0, 0, 20].repeat(*numbers)].concat();
    let name = name.as_bytes();
    let body = [name, b"\0", sql.as_bytes(), b"\0", &count.to_be_bytes(), &types].concat();
    [message(b'P', &body), message(b'S', b"")].concat()
}

/// Bind and Execute of a prepared statement that takes numbers only, without a Sync: several of them before one Sync are
/// one transaction.
pub(crate) fn push_execute(out: &mut Vec<u8>, name: &str, numbers: &[i64]) {
    let count = u16::try_from(numbers.len()).expect("a statement has few parameters");
    let mut body = [b"\0", name.as_bytes(), b"\0\0\0", &count.to_be_bytes()].concat();
    for number in numbers {
        let text = number.to_string();
        let length = u32::try_from(text.len()).expect("a number has few digits");
        body.extend(length.to_be_bytes());
        body.extend(text.bytes());
    }
    body.extend([0, 0]);
    out.extend(message(b'B', &body));
    out.extend(message(b'E', &[0; 5]));
}

/// Ends a transaction of [`push_execute`]; it is answered by one ReadyForQuery.
pub(crate) fn push_sync(out: &mut Vec<u8>) {
    out.extend(message(b'S', b""));
}

/// The newest installed version's programs.
fn bin_dir() -> Result<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
        .filter(|(_, path)| path.join("bin/initdb").exists())
        .collect();
    found.sort();
    let newest = found.pop().map(|(_, path)| path.join("bin"));
    Ok(newest.ok_or("PostgreSQL is not installed below /usr/lib/postgresql: install it")?)
}

/// Name and version, for the report.
pub(crate) fn version() -> String {
    let program = bin_dir().map(|bin| bin.join("postgres"));
    program
        .ok()
        .and_then(|path| output(path.to_str()?, &["--version"]))
        .unwrap_or_else(|| "not installed".into())
}

fn running_as_root() -> bool {
    // SAFETY: `geteuid` has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// User and group number from the local user list.
fn user_ids(name: &str) -> Result<(u32, u32)> {
    let list = fs::read_to_string("/etc/passwd")?;
    let ids = list.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&name))
            .then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    });
    Ok(ids.ok_or_else(|| format!("there is no user {name}, as whom PostgreSQL would run"))?)
}
