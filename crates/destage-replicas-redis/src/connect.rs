//! A connection to a server: who it is, and whether it would keep what it accepts.

use crate::codec::{SCRIPT, Wire};
use crate::place::Places;
use crate::plain::Plain;
use destage_replicas::{Address, Connection as Who, Reply, Request, RunId};
use redis::{Connection, ConnectionAddr, ConnectionLike, ErrorKind, RedisError, Value};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// The oldest version that will do.
const VERSION_MIN: (u32, u32) = (6, 2);

/// Why a server is of no use, now or as it is set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// It does not answer, or not as it should.
    #[error("{0}")]
    Unreachable(String),
    /// It would lose or change what it accepts: what is wrong, and the remedy.
    #[error("{0}")]
    Unfit(String),
}

impl From<RedisError> for Trouble {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        let is_refused = error.kind() == ErrorKind::AuthenticationFailed
            || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
        if is_refused {
            let what =
                "it refuses the user or password that --replicas names, or what that user does";
            return Self::Unfit(format!("{what}: {text}"));
        }
        // Trying again does not help before somebody has changed something.
        if text.to_lowercase().contains("certificate") {
            return Self::Unfit(format!("no connection by TLS comes about: {text}"));
        }
        Self::Unreachable(text)
    }
}

/// A connection.
pub struct Link {
    transport: Transport,
    wire: Wire,
    sha: String,
    who: Who,
}

enum Transport {
    Plain(Plain),
    Encrypted(Box<Connection>),
}

impl Transport {
    fn open(places: &Places, address: &Address, patience: Duration) -> Result<Self, Trouble> {
        let client = places.client(address).map_err(|error| Trouble::Unfit(error.to_string()))?;
        let info = client.get_connection_info();
        if let ConnectionAddr::Tcp(host, port) = info.addr() {
            let plain = Plain::open((host, *port), info.redis_settings(), patience)?;
            return Ok(Self::Plain(plain));
        }
        let connection = client.get_connection_with_timeout(patience)?;
        connection.set_read_timeout(Some(patience))?;
        connection.set_write_timeout(Some(patience))?;
        Ok(Self::Encrypted(Box::new(connection)))
    }

    fn waiting(&mut self) -> &mut dyn ConnectionLike {
        match self {
            Self::Plain(plain) => plain,
            Self::Encrypted(connection) => &mut **connection,
        }
    }
}

impl Link {
    /// Connects, and asks who is there.
    ///
    /// # Errors
    /// See [`Trouble`].
    pub fn open(
        places: &Places,
        address: &Address,
        wire: Wire,
        patience: Duration,
    ) -> Result<Self, Trouble> {
        let mut transport = Transport::open(places, address, patience)?;
        let connection = transport.waiting();
        let who = look(connection)?;
        let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query(connection)?;
        Ok(Self { transport, wire, sha, who })
    }

    /// Who is there.
    pub fn who(&self) -> Who {
        self.who
    }

    /// Has requests carried out, in their order, in one round trip. The answers come in the same order.
    ///
    /// # Errors
    /// The connection is of no use any more; each request may have been carried out, or not.
    pub fn ask(&mut self, requests: &[Request]) -> Result<Vec<Reply>, Trouble> {
        let bytes: Vec<u8> = requests.iter().flat_map(|request| self.pack(request)).collect();
        let values = self.transport.waiting().req_packed_commands(&bytes, 0, requests.len())?;
        values.into_iter().map(reply).collect()
    }

    /// The descriptor, where requests can be sent and answers read without waiting.
    pub(crate) fn watched(&self) -> Option<BorrowedFd<'_>> {
        match &self.transport {
            Transport::Plain(plain) => Some(plain.as_fd()),
            Transport::Encrypted(_) => None,
        }
    }

    /// From now on nothing waits for the server: no [`Link::ask`].
    pub(crate) fn stop_waiting(&mut self) -> Result<(), Trouble> {
        Ok(self.plain()?.stop_waiting().map_err(RedisError::from)?)
    }

    /// Sends a request behind others, as far as the socket takes it now.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(crate) fn send(&mut self, request: &Request) -> Result<(), Trouble> {
        let bytes = self.pack(request);
        Ok(self.plain()?.send(&bytes).map_err(RedisError::from)?)
    }

    /// Sends what the socket did not take.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(crate) fn send_rest(&mut self) -> Result<(), Trouble> {
        Ok(self.plain()?.send_rest().map_err(RedisError::from)?)
    }

    /// The answer to the oldest request that has none, if it has arrived.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, Trouble> {
        self.plain()?.next()?.map(reply).transpose()
    }

    /// Whether the server has done anything since this was last asked.
    pub(crate) fn has_moved(&mut self) -> bool {
        self.plain().is_ok_and(Plain::has_moved)
    }

    fn pack(&self, request: &Request) -> Vec<u8> {
        self.wire.pack(&self.sha, request).get_packed_command()
    }

    fn plain(&mut self) -> Result<&mut Plain, Trouble> {
        match &mut self.transport {
            Transport::Plain(plain) => Ok(plain),
            Transport::Encrypted(_) => Err(Trouble::Unreachable("it is waited for".into())),
        }
    }
}

fn reply(value: Value) -> Result<Reply, Trouble> {
    match value {
        Value::ServerError(error) if error.code() == "OOM" => Ok(Reply::Full),
        Value::ServerError(error) => {
            let details = error.details().unwrap_or_default();
            // Within scripts, some versions wrap it.
            if details.contains("OOM command not allowed") {
                return Ok(Reply::Full);
            }
            Err(Trouble::Unreachable(format!("{} {details}", error.code())))
        }
        value => Wire::unpack(value).map_err(Trouble::Unreachable),
    }
}

fn look(connection: &mut dyn ConnectionLike) -> Result<Who, Trouble> {
    let info: String = redis::cmd("INFO").arg("everything").query(connection)?;
    let info: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let field = |name: &str| info.get(name).copied().unwrap_or_default();
    let unfit = |what: &str| Err(Trouble::Unfit(what.to_owned()));
    let version = field("redis_version");
    let mut numbers = version.split('.').map_while(|part| part.parse::<u32>().ok());
    let version_is = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version_is < VERSION_MIN {
        return unfit(&format!("it is version {version}; 6.2 is the oldest that will do"));
    }
    if field("loading") == "1" {
        return Err(Trouble::Unreachable("it is loading its data".into()));
    }
    if field("cluster_enabled") == "1" {
        return unfit(
            "it is a node of a cluster, which moves what it holds: set 'cluster-enabled no'",
        );
    }
    if field("role") != "master" {
        return unfit(
            "it is a replica of another server and would be overwritten: 'REPLICAOF NO ONE'",
        );
    }
    if field("connected_slaves") != "0" {
        return unfit(
            "it has replicas, and a fail-over to one of them would lose what only it holds: detach them ('REPLICAOF NO ONE' there)",
        );
    }
    let watchers: (String, u64) =
        redis::cmd("PUBSUB").arg("NUMSUB").arg("__sentinel__:hello").query(connection)?;
    if watchers.1 > 0 {
        return unfit("Sentinel watches it and may replace it: 'SENTINEL REMOVE' it there");
    }
    if field("maxmemory_policy") != "noeviction" {
        return unfit(&format!(
            "it may evict what it has accepted (maxmemory-policy {}): 'CONFIG SET maxmemory-policy noeviction'",
            field("maxmemory_policy")
        ));
    }
    let settings = match redis::cmd("CONFIG").arg("GET").arg("*").query(connection) {
        Ok(settings) => settings,
        Err(error) if error.kind() == ErrorKind::Io => return Err(error.into()),
        Err(error) => {
            return unfit(&format!(
                "it does not say how it is set up, so that nobody knows what it would lose ({error}): let this user call 'CONFIG GET'"
            ));
        }
    };
    let settings: HashMap<String, String> = settings;
    let setting = |name: &str| settings.get(name).map(String::as_str).unwrap_or_default();
    // With the last of these, nothing is synced as long as the log file is rewritten, which begins by itself.
    let is_logged = setting("appendonly") == "yes"
        && setting("appendfsync") == "always"
        && setting("no-appendfsync-on-rewrite") == "no";
    if !setting("save").is_empty() {
        return unfit(&format!(
            "it saves snapshots ('save {}') and would come back from a restart with an old one: 'CONFIG SET save \"\"', and remove \
             its dump file",
            setting("save")
        ));
    }
    let run_id = field("run_id");
    let Some(run) = run_id.get(..32).and_then(|run| u128::from_str_radix(run, 16).ok()) else {
        return Err(Trouble::Unreachable(format!("its run_id '{run_id}' is none")));
    };
    Ok(Who { run: RunId(run), is_durable: is_logged })
}
