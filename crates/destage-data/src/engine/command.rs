//! The commands: their names, what they take, and their arguments checked and made canonical.

use super::expire::Expire;
use super::key::resolve;
use super::once::Once;
use super::sets::SetCommand;
use super::strings::SetOptions;
use super::unsupported::instead_of;
use crate::key_text::show;
use crate::mapping::Shape;
use crate::resp::{Code, ReplyError};
use crate::schema::{Schema, Table, TableId};
use std::ops::Range;

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
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
    WaitAof,
    Destage,
    Hello,
    Auth,
    Ping,
    Echo,
    Select,
    Client,
    Command,
    Info,
    Config,
    Quit,
    Reset,
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
    spec("scan", Verb::Scan, -2, Server),
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
    spec("client", Verb::Client, -2, Server),
    spec("command", Verb::Command, -1, Server),
    spec("info", Verb::Info, -1, Server),
    spec("config", Verb::Config, -2, Server),
    spec("quit", Verb::Quit, -1, Server),
    spec("reset", Verb::Reset, 1, Server),
];

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
    match fits && !is_too_long {
        true => Ok(spec),
        false => {
            Err(ReplyError::err(format!("wrong number of arguments for '{}' command", spec.name)))
        }
    }
}

impl Verb {
    /// Whether a command is about the connection, or tells of the server, and touches no data.
    pub(super) fn is_of_connection(self) -> bool {
        use Verb::{Auth, Client, Command, Config, Echo, Hello, Info, Ping, Quit, Reset, Select};
        matches!(
            self,
            Auth | Client | Command | Config | Echo | Hello | Info | Ping | Quit | Reset | Select
        )
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

/// A data command with its arguments checked; reused from command to command.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) verb: Verb,
    pub(crate) category: Category,
    /// What the first key is.
    pub(super) shape: Shape,
    /// Encoded keys, one after the other, with their tables.
    pub(super) keys: Vec<u8>,
    pub(crate) key_list: Vec<(TableId, Range<usize>)>,
    /// Columns asked for or to be cleared.
    pub(crate) columns: Vec<usize>,
    /// Columns to set, with their canonical values.
    pub(super) values: Vec<u8>,
    pub(super) sets: Vec<(usize, Range<usize>)>,
    /// For the increments: the amount as given; for APPEND: what is appended.
    pub(crate) amount: Vec<u8>,
    pub(super) options: SetOptions,
    /// GETRANGE's places.
    pub(super) places: (i64, i64),
    /// What a command on a collection says besides.
    pub(super) set: Option<Box<SetCommand>>,
    /// What becomes of the key's deadline.
    pub(super) expire: Expire,
    /// Fields of a plain hash, and between them the values that they are to have, in `values`.
    pub(super) fields: Vec<Range<usize>>,
    /// How many of the keys were given; others are those of a set's elements.
    pub(super) own_keys: usize,
    /// It is carried out once.
    pub(super) once: Option<Once>,
}

impl Default for Prepared {
    fn default() -> Self {
        Self {
            verb: Verb::Type,
            category: Read,
            shape: Shape::Hash,
            keys: Vec::new(),
            key_list: Vec::new(),
            columns: Vec::new(),
            values: Vec::new(),
            sets: Vec::new(),
            amount: Vec::new(),
            options: SetOptions::default(),
            places: (0, 0),
            set: None,
            expire: Expire::default(),
            fields: Vec::new(),
            own_keys: 0,
            once: None,
        }
    }
}

impl Prepared {
    /// The keys with their tables.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = (TableId, &[u8])> {
        self.key_list.iter().map(|(table, range)| (*table, &self.keys[range.clone()]))
    }

    /// The values to set.
    pub(crate) fn sets(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.sets.iter().map(|(column, range)| (*column, &self.values[range.clone()]))
    }

    /// An upper estimate of what the write will buffer, bytes.
    pub(crate) fn buffered_bytes(&self) -> u32 {
        let bytes = self.values.len() + self.keys.len() + 16 * (self.sets.len() + 2);
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }

    fn clear(&mut self, spec: &Spec) {
        self.verb = spec.verb;
        self.category = spec.category;
        self.keys.clear();
        self.key_list.clear();
        self.columns.clear();
        self.values.clear();
        self.sets.clear();
        self.amount.clear();
        self.options = SetOptions::default();
        self.set = None;
        self.expire = Expire::default();
        self.fields.clear();
        self.once = None;
    }

    /// Checks a data command's arguments and stores them.
    ///
    /// # Errors
    /// A message for the client; nothing has been done.
    pub(crate) fn read(
        &mut self,
        schema: &Schema,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), ReplyError> {
        self.clear(spec);
        if matches!(spec.verb, Verb::Del | Verb::Exists) {
            self.own_keys = args.len() - 1;
            return args[1..].iter().try_for_each(|key| self.push_key(schema, key).map(|_| ()));
        }
        if spec.verb.is_of_sets() {
            return self.read_set_command(schema, spec, args);
        }
        if spec.verb.is_of_expiry() {
            return self.read_expiry(schema, spec, args);
        }
        if spec.verb.is_of_strings() {
            return self.read_string(schema, spec, args);
        }
        let (table, shape) = self.push_key(schema, args[1])?;
        let rest = &args[2..];
        match shape {
            _ if spec.verb == Verb::Type => return Ok(()),
            Shape::Hash => {}
            Shape::Plain => return self.read_fields(spec, rest),
            _ => return Err(wrong_type(args[1], shape)),
        }
        match spec.verb {
            Verb::HGet | Verb::HMGet | Verb::HExists => {
                rest.iter().try_for_each(|field| self.push_column(table, field))
            }
            Verb::HDel => rest.iter().try_for_each(|field| self.push_cleared(table, field)),
            Verb::HSet | Verb::HMSet | Verb::HSetNx => self.push_sets(table, spec, rest),
            Verb::HIncrBy | Verb::HIncrByFloat => self.push_amount(table, spec, rest[0], rest[1]),
            _ => Ok(()),
        }
    }

    /// Adds a key that is encoded already.
    pub(super) fn push_own_key(&mut self, table: TableId, key: &[u8]) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        self.key_list.push((table, start..self.keys.len()));
    }

    pub(super) fn push_key<'s>(
        &mut self,
        schema: &'s Schema,
        key: &[u8],
    ) -> Result<(&'s Table, Shape), ReplyError> {
        let start = self.keys.len();
        let (table, shape) = resolve(schema, key, &mut self.keys)?;
        if self.key_list.is_empty() {
            self.shape = shape;
        }
        self.key_list.push((table.id, start..self.keys.len()));
        Ok((table, shape))
    }

    fn push_column(&mut self, table: &Table, field: &[u8]) -> Result<(), ReplyError> {
        self.columns.push(find_column(table, field)?);
        Ok(())
    }

    fn push_cleared(&mut self, table: &Table, field: &[u8]) -> Result<(), ReplyError> {
        let index = find_writable(table, field)?;
        let column = &table.columns[index];
        if index < table.key_len {
            return Err(ReplyError::err(format!(
                "{}.{} is part of the key",
                table.name, column.name
            )));
        }
        if column.not_null {
            return Err(ReplyError::err(format!(
                "{}.{} is NOT NULL: HDEL would set it to NULL; HSET a value, or DEL the row",
                table.name, column.name
            )));
        }
        if !self.columns.contains(&index) {
            self.columns.push(index);
        }
        Ok(())
    }

    fn push_sets(&mut self, table: &Table, spec: &Spec, rest: &[&[u8]]) -> Result<(), ReplyError> {
        if !rest.len().is_multiple_of(2) {
            return Err(ReplyError::err(format!(
                "wrong number of arguments for '{}' command",
                spec.name
            )));
        }
        for pair in rest.chunks_exact(2) {
            let index = find_writable(table, pair[0])?;
            let column = &table.columns[index];
            let value =
                column.ty.canonical(pair[1]).map_err(|e| unfit(table, index, pair[1], &e.0))?;
            if index < table.key_len {
                if self.is_own_key(table, index, &value) {
                    continue;
                }
                return Err(ReplyError::err(format!(
                    "{}.{} is part of the key and cannot change; write the row under its new key",
                    table.name, column.name
                )));
            }
            let start = self.values.len();
            self.values.extend_from_slice(&value);
            let range = start..self.values.len();
            match self.sets.iter_mut().find(|(set, _)| *set == index) {
                Some(set) => set.1 = range,
                None => self.sets.push((index, range)),
            }
        }
        Ok(())
    }

    /// Whether a value given for a key column is the one in the key.
    fn is_own_key(&self, table: &Table, index: usize, value: &[u8]) -> bool {
        let mut cells = crate::cells::Reader::new(&self.keys[self.key_list[0].1.clone()]);
        debug_assert!(index < table.key_len);
        cells.nth(index).and_then(crate::cells::Cell::value) == Some(value)
    }

    fn push_amount(
        &mut self,
        table: &Table,
        spec: &Spec,
        field: &[u8],
        amount: &[u8],
    ) -> Result<(), ReplyError> {
        let index = find_writable(table, field)?;
        if index < table.key_len {
            let name = &table.columns[index].name;
            return Err(ReplyError::err(format!("{}.{name} is part of the key", table.name)));
        }
        self.push_number(table, index, spec.verb == Verb::HIncrBy, amount)
    }

    /// Checks the amount by which a column is to grow; `is_integer` as HINCRBY wants it.
    pub(super) fn push_number(
        &mut self,
        table: &Table,
        index: usize,
        is_integer: bool,
        amount: &[u8],
    ) -> Result<(), ReplyError> {
        let column = &table.columns[index];
        let text = std::str::from_utf8(amount).unwrap_or("");
        let number = text.strip_prefix('+').unwrap_or(text);
        let amount_fits = match is_integer {
            true => number.parse::<i64>().is_ok(),
            false => number.parse::<f64>().is_ok_and(f64::is_finite),
        };
        if !amount_fits {
            return Err(match is_integer {
                true => super::strings::NOT_INTEGER,
                false => super::strings::NOT_FLOAT,
            });
        }
        if !column.ty.is_number() {
            return Err(ReplyError::err(format!(
                "{}.{} ({}) is not a number and cannot be incremented",
                table.name, column.name, column.type_name
            )));
        }
        // Clients whose amounts are floating-point numbers write whole ones so.
        let is_whole = matches!(column.ty, crate::value::ColumnType::Int { .. });
        let number = if is_whole { without_zeros(number) } else { number };
        // A fraction added to a whole-number column fails here, by the column's own rule.
        let kept = column.ty.amount(number.as_bytes());
        let kept = kept.map_err(|error| unfit(table, index, amount, &error.0))?;
        self.columns.push(index);
        self.amount.extend_from_slice(&kept);
        Ok(())
    }
}

/// A command does not fit what the key is.
pub(super) fn wrong_type(key: &[u8], shape: Shape) -> ReplyError {
    let (is, hint) = match shape {
        Shape::Hash => (
            "a row, read as a hash",
            "use HGET, HSET, HINCRBY; [[string]] in the settings maps keys to single columns",
        ),
        Shape::String(_) => ("a string", "use GET, SET, INCRBY"),
        Shape::Set(_) => ("a set", "use SADD, SREM, SMEMBERS"),
        Shape::SortedSet(_) => ("a sorted set", "use ZADD, ZREM, ZRANGE"),
        Shape::Plain => (
            "a plain cache key, which is a string or a hash",
            "[[set]] and [[zset]] in the settings map keys to tables",
        ),
    };
    ReplyError::new(Code::WrongType, format!("the key '{}' is {is}: {hint}", show(key)))
}

/// `1.0` as `1`; everything else as it is.
fn without_zeros(number: &str) -> &str {
    match number.split_once('.') {
        Some((whole, zeros)) if zeros.bytes().all(|byte| byte == b'0') => whole,
        _ => number,
    }
}

pub(super) fn unfit(table: &Table, index: usize, value: &[u8], why: &str) -> ReplyError {
    let column = &table.columns[index];
    ReplyError::err(format!(
        "{}.{} ({}) does not take '{}': {why}",
        table.name,
        column.name,
        column.type_name,
        show(value)
    ))
}

fn find_column(table: &Table, field: &[u8]) -> Result<usize, ReplyError> {
    table.column(field).ok_or_else(|| {
        let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
        ReplyError::err(format!(
            "{} has no column '{}'; it has: {}",
            table.name,
            show(field),
            names.join(", ")
        ))
    })
}

fn find_writable(table: &Table, field: &[u8]) -> Result<usize, ReplyError> {
    let index = find_column(table, field)?;
    let column = &table.columns[index];
    if column.generated {
        return Err(ReplyError::err(format!(
            "{}.{} is computed by the origin and cannot be written",
            table.name, column.name
        )));
    }
    Ok(index)
}
