//! The commands: their names, and what they take.

use super::unsupported::instead_of;
use crate::key_text::show;
use crate::resp::ReplyError;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    HGetAll,
    HGet,
    HSet,
    HMGet,
    HMSet,
    HSetNx,
    HKeys,
    HVals,
    HLen,
    HExists,
    HStrLen,
    HScan,
    HDel,
    HIncrBy,
    HIncrByFloat,
    Get,
    /// SET without options.
    Set,
    /// SET with NX, XX, GET or a time; GETSET, SETNX, SETEX, PSETEX.
    SetIf,
    MGet,
    MSet,
    MSetNx,
    /// INCR, DECR, INCRBY and DECRBY.
    IncrBy,
    IncrByFloat,
    Append,
    StrLen,
    GetRange,
    GetDel,
    GetEx,
    /// DELEX and DELIFEQ: deletes a string on condition.
    DelIf,
    /// EVAL and EVAL_RO.
    Eval,
    /// EVALSHA and EVALSHA_RO, which stand for those.
    EvalSha,
    AddMembers,
    RemoveMembers,
    HasMembers,
    /// ZADD and ZINCRBY.
    AddScores,
    Scores,
    /// A question about a whole set, or a range of it.
    Ask,
    Del,
    Exists,
    Type,
    /// EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT.
    Expire,
    Persist,
    Ttl,
    PTtl,
    ExpireTime,
    PExpireTime,
    Scan,
    DbSize,
    SlowLog,
    Latency,
    Monitor,
    Memory,
    Object,
    Multi,
    Exec,
    Discard,
    Script,
    Watch,
    Unwatch,
    WaitAof,
    Destage,
    Hello,
    Auth,
    Ping,
    Echo,
    Select,
    /// ACL: who the users are.
    Acl,
    Client,
    Subscribe,
    Unsubscribe,
    Command,
    Info,
    Config,
    Quit,
    Reset,
    /// How clients that know Sentinel find the owner of a replicated log.
    Sentinel,
    Role,
}

/// One command of the table.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) name: &'static str,
    pub(crate) verb: Verb,
    /// Arguments with the name; negative: at least so many. As Redis counts them.
    pub(crate) arity: i32,
    pub(crate) category: Category,
}

impl Spec {
    /// Where its keys stand, as Redis tells it: the first, the last (from the end if negative), and from one to the next; zeros
    /// where they stand nowhere, or its own words say where.
    pub(super) fn key_places(&self) -> (usize, i64, usize) {
        match (self.category, self.verb) {
            (_, Verb::Del | Verb::Exists | Verb::Watch | Verb::MGet) => (1, -1, 1),
            (_, Verb::MSet | Verb::MSetNx) => (1, -1, 2),
            (Server, _) | (_, Verb::Eval | Verb::EvalSha) => (0, 0, 0),
            _ => (1, 1, 1),
        }
    }
}

/// How a command is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    /// Reads rows.
    Read,
    /// Changes rows.
    Write,
    /// Everything else.
    Server,
}

const fn spec(name: &'static str, verb: Verb, arity: i32, category: Category) -> Spec {
    Spec { name, verb, arity, category }
}

use Category::{Read, Server, Write};

/// All commands; the frequent ones first, since they are searched in order.
pub(crate) const SPECS: &[Spec] = &[
    spec("hgetall", Verb::HGetAll, 2, Read),
    spec("hget", Verb::HGet, 3, Read),
    spec("hset", Verb::HSet, -4, Write),
    spec("hmget", Verb::HMGet, -3, Read),
    spec("hmset", Verb::HMSet, -4, Write),
    spec("get", Verb::Get, 2, Read),
    spec("set", Verb::Set, -3, Write),
    spec("hincrby", Verb::HIncrBy, 4, Write),
    spec("hsetnx", Verb::HSetNx, 4, Write),
    spec("hkeys", Verb::HKeys, 2, Read),
    spec("hvals", Verb::HVals, 2, Read),
    spec("hlen", Verb::HLen, 2, Read),
    spec("hexists", Verb::HExists, 3, Read),
    spec("hstrlen", Verb::HStrLen, 3, Read),
    spec("hscan", Verb::HScan, -3, Read),
    spec("hdel", Verb::HDel, -3, Write),
    spec("hincrbyfloat", Verb::HIncrByFloat, 4, Write),
    spec("mget", Verb::MGet, -2, Read),
    spec("mset", Verb::MSet, -3, Write),
    spec("incr", Verb::IncrBy, 2, Write),
    spec("incrby", Verb::IncrBy, 3, Write),
    spec("decr", Verb::IncrBy, 2, Write),
    spec("decrby", Verb::IncrBy, 3, Write),
    spec("incrbyfloat", Verb::IncrByFloat, 3, Write),
    spec("append", Verb::Append, 3, Write),
    spec("strlen", Verb::StrLen, 2, Read),
    spec("getrange", Verb::GetRange, 4, Read),
    spec("setnx", Verb::SetIf, 3, Write),
    spec("getset", Verb::SetIf, 3, Write),
    spec("getdel", Verb::GetDel, 2, Write),
    spec("setex", Verb::SetIf, 4, Write),
    spec("psetex", Verb::SetIf, 4, Write),
    spec("getex", Verb::GetEx, -2, Write),
    spec("msetnx", Verb::MSetNx, -3, Write),
    spec("sadd", Verb::AddMembers, -3, Write),
    spec("srem", Verb::RemoveMembers, -3, Write),
    spec("sismember", Verb::HasMembers, 3, Read),
    spec("smismember", Verb::HasMembers, -3, Read),
    spec("smembers", Verb::Ask, 2, Read),
    spec("scard", Verb::Ask, 2, Read),
    spec("zadd", Verb::AddScores, -4, Write),
    spec("zincrby", Verb::AddScores, 4, Write),
    spec("zrem", Verb::RemoveMembers, -3, Write),
    spec("zscore", Verb::Scores, 3, Read),
    spec("zmscore", Verb::Scores, -3, Read),
    spec("zcard", Verb::Ask, 2, Read),
    spec("zcount", Verb::Ask, 4, Read),
    spec("zlexcount", Verb::Ask, 4, Read),
    spec("zrank", Verb::Ask, -3, Read),
    spec("zrevrank", Verb::Ask, -3, Read),
    spec("zrange", Verb::Ask, -4, Read),
    spec("zrevrange", Verb::Ask, -4, Read),
    spec("zrangebyscore", Verb::Ask, -4, Read),
    spec("zrevrangebyscore", Verb::Ask, -4, Read),
    spec("zrangebylex", Verb::Ask, -4, Read),
    spec("zrevrangebylex", Verb::Ask, -4, Read),
    spec("sscan", Verb::Ask, -3, Read),
    spec("zscan", Verb::Ask, -3, Read),
    spec("del", Verb::Del, -2, Write),
    spec("unlink", Verb::Del, -2, Write),
    spec("exists", Verb::Exists, -2, Read),
    spec("type", Verb::Type, 2, Read),
    spec("ttl", Verb::Ttl, 2, Read),
    spec("pttl", Verb::PTtl, 2, Read),
    spec("expiretime", Verb::ExpireTime, 2, Read),
    spec("pexpiretime", Verb::PExpireTime, 2, Read),
    spec("expire", Verb::Expire, -3, Write),
    spec("pexpire", Verb::Expire, -3, Write),
    spec("expireat", Verb::Expire, -3, Write),
    spec("pexpireat", Verb::Expire, -3, Write),
    spec("persist", Verb::Persist, 2, Write),
    spec("delex", Verb::DelIf, -2, Write),
    spec("delifeq", Verb::DelIf, 3, Write),
    spec("eval", Verb::Eval, -3, Write),
    spec("evalsha", Verb::EvalSha, -3, Write),
    spec("eval_ro", Verb::Eval, -3, Read),
    spec("evalsha_ro", Verb::EvalSha, -3, Read),
    spec("scan", Verb::Scan, -2, Server),
    spec("dbsize", Verb::DbSize, 1, Server),
    spec("slowlog", Verb::SlowLog, -2, Server),
    spec("latency", Verb::Latency, -2, Server),
    spec("monitor", Verb::Monitor, 1, Server),
    spec("memory", Verb::Memory, -2, Server),
    spec("object", Verb::Object, -2, Server),
    spec("script", Verb::Script, -2, Server),
    spec("multi", Verb::Multi, 1, Server),
    spec("exec", Verb::Exec, 1, Server),
    spec("discard", Verb::Discard, 1, Server),
    spec("watch", Verb::Watch, -2, Server),
    spec("unwatch", Verb::Unwatch, 1, Server),
    spec("waitaof", Verb::WaitAof, 4, Server),
    spec("destage", Verb::Destage, -2, Server),
    spec("hello", Verb::Hello, -1, Server),
    spec("auth", Verb::Auth, -2, Server),
    spec("ping", Verb::Ping, -1, Server),
    spec("echo", Verb::Echo, 2, Server),
    spec("select", Verb::Select, 2, Server),
    spec("acl", Verb::Acl, -2, Server),
    spec("client", Verb::Client, -2, Server),
    spec("subscribe", Verb::Subscribe, -2, Server),
    spec("unsubscribe", Verb::Unsubscribe, -1, Server),
    spec("command", Verb::Command, -1, Server),
    spec("info", Verb::Info, -1, Server),
    spec("config", Verb::Config, -2, Server),
    spec("quit", Verb::Quit, -1, Server),
    spec("reset", Verb::Reset, 1, Server),
    spec("sentinel", Verb::Sentinel, -2, Server),
    spec("role", Verb::Role, 1, Server),
];

/// EXEC as a request, for when it is executed again.
pub(super) const EXEC: &[u8] = b"*1\r\n$4\r\nEXEC\r\n";

/// Finds a command and checks how many arguments it has.
///
/// # Errors
/// A message for the client.
pub(crate) fn find(args: &[&[u8]]) -> Result<&'static Spec, ReplyError> {
    let name = args[0];
    let spec = SPECS
        .iter()
        .find(|spec| {
            spec.name.len() == name.len() && name.eq_ignore_ascii_case(spec.name.as_bytes())
        })
        .ok_or_else(|| unknown(name))?;
    let count = args.len() as i32;
    let fits = if spec.arity < 0 { count >= -spec.arity } else { count == spec.arity };
    // The only command with a greatest number of words besides an exact one.
    let is_too_long = spec.verb == Verb::Ping && count > 2;
    if fits && !is_too_long {
        Ok(spec)
    } else {
        Err(ReplyError::err(format!("wrong number of arguments for '{}' command", spec.name)))
    }
}

impl Verb {
    /// Whether a command is about the connection, or tells of the server, and touches no data.
    pub(super) fn is_of_connection(self) -> bool {
        use Verb::{
            Acl, Auth, Client, Command, Config, Echo, Hello, Info, Ping, Quit, Reset, Select,
            Subscribe, Unsubscribe,
        };
        matches!(
            self,
            Acl | Auth
                | Client
                | Command
                | Config
                | Echo
                | Hello
                | Info
                | Ping
                | Quit
                | Reset
                | Select
                | Subscribe
                | Unsubscribe
        )
    }

    /// Whether a RESP2 connection may send it that waits for messages.
    pub(super) fn is_for_subscribers(self) -> bool {
        matches!(self, Self::Subscribe | Self::Unsubscribe | Self::Ping | Self::Quit | Self::Reset)
    }
}

/// Whether this is a line of an HTTP request. A page on the web can make a browser of this machine send one, with commands
/// in its body, so nothing behind it may be read.
pub(crate) fn is_http(request: &[&[u8]]) -> bool {
    let is = |name: &[u8]| request.first().is_some_and(|first| first.eq_ignore_ascii_case(name));
    is(b"post") || is(b"host:")
}

/// An error that says what to use instead.
fn unknown(name: &[u8]) -> ReplyError {
    let lower = String::from_utf8_lossy(name).to_ascii_lowercase();
    let hint = instead_of(&lower).unwrap_or("see COMMAND LIST for what is supported");
    ReplyError::err(format!("unknown command '{}': {hint}", show(name)))
}
