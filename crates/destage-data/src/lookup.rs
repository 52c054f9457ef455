//! How clients that know Sentinel find the owner of a replicated log: the look-ups that they use, answered by the owner and by
//! each standby. There is no Sentinel; the servers of the log know who owns it.

use crate::resp::{Code, Reply, ReplyError};

/// Where clients reach the owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnerPlace {
    /// The log's name, which is the name that clients ask for.
    pub(crate) log: String,
    host: String,
    port: u16,
}

/// What is asked besides has no answer here.
const UNKNOWN: ReplyError = ReplyError::fixed(
    Code::Err,
    "of SENTINEL, only GET-MASTER-ADDR-BY-NAME, MASTERS, MASTER, SENTINELS, REPLICAS and SLAVES are answered; there is no \
     Sentinel, this server knows who owns the log",
);

impl OwnerPlace {
    /// From `HOST:PORT`.
    pub(crate) fn parse(log: &str, place: &str) -> Option<Self> {
        let (host, port) = place.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = port.parse().ok()?;
        Some(Self { log: log.to_owned(), host: host.to_owned(), port })
    }

    /// For people.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    fn fields(&self) -> [(&'static str, String); 8] {
        [
            ("name", self.log.clone()),
            ("ip", self.host.clone()),
            ("port", self.port.to_string()),
            ("flags", "master".into()),
            ("num-slaves", "0".into()),
            ("num-other-sentinels", "0".into()),
            ("quorum", "1".into()),
            ("role-reported", "master".into()),
        ]
    }

    /// What a standby says of itself in INFO and ROLE: it is a replica of the owner.
    pub(crate) fn replication(&self) -> String {
        format!(
            "role:slave\r\nmaster_host:{}\r\nmaster_port:{}\r\nmaster_link_status:up\r\n",
            self.host, self.port
        )
    }

    /// ROLE of a standby.
    pub(crate) fn role_of_standby(&self, followed: u64, reply: &mut Reply<'_>) {
        reply.array(5);
        reply.bulk(b"slave");
        reply.bulk(self.host.as_bytes());
        reply.integer(i64::from(self.port));
        reply.bulk(b"connected");
        reply.integer(followed as i64);
    }
}

/// ROLE of an owner.
pub(crate) fn role_of_owner(last: u64, reply: &mut Reply<'_>) {
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(last as i64);
    reply.array(0);
}

/// Answers SENTINEL, if the owner is known. Other names than the log's are not.
pub(crate) fn sentinel(args: &[&[u8]], owner: Option<&OwnerPlace>, reply: &mut Reply<'_>) {
    let what = args.get(1).map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    let named = owner.filter(|owner| args.get(2).is_some_and(|name| *name == owner.log.as_bytes()));
    match what.as_slice() {
        b"get-master-addr-by-name" => match named {
            Some(owner) => {
                reply.array(2);
                reply.bulk(owner.host.as_bytes());
                reply.bulk(owner.port.to_string().as_bytes());
            }
            None => reply.null_array(),
        },
        b"masters" => {
            reply.array(usize::from(owner.is_some()));
            if let Some(owner) = owner {
                write_fields(owner, reply);
            }
        }
        b"master" => match named {
            Some(owner) => write_fields(owner, reply),
            None => reply.error(&ReplyError::fixed(Code::Err, "No such master with that name")),
        },
        b"sentinels" | b"replicas" | b"slaves" => match named {
            Some(_) => reply.array(0),
            None => reply.error(&ReplyError::fixed(Code::Err, "No such master with that name")),
        },
        _ => reply.error(&UNKNOWN),
    }
}

/// Names and values, as Sentinel sends them: a map where the protocol has those.
fn write_fields(owner: &OwnerPlace, reply: &mut Reply<'_>) {
    let fields = owner.fields();
    reply.map(fields.len());
    for (name, value) in fields {
        reply.bulk(name.as_bytes());
        reply.bulk(value.as_bytes());
    }
}
