//! Requests as arguments of the script, and what it returns.

use destage_replicas::{
    Address, Beat, Config, Entry, Epoch, Member, MemberList, Position, Reply, Request, RunId, View,
};
use redis::Value;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What runs on the servers.
pub const SCRIPT: &str = include_str!("log.lua");

const EPOCH_LEN: usize = 16;

/// The keys of a log, and requests in terms of them.
#[derive(Clone, Debug)]
pub struct Wire {
    known: String,
    list: String,
}

impl Wire {
    /// Of the log with this name. Both keys are in one slot, and no others are used.
    pub fn new(name: &str) -> Self {
        Self {
            known: format!("{{destage:{name}}}:log"),
            list: format!("{{destage:{name}}}:entries"),
        }
    }

    /// The script's call for a request, whose hash is this.
    pub fn pack(&self, sha: &str, request: &Request) -> redis::Cmd {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(sha).arg(2).arg(&self.known).arg(&self.list);
        match request {
            Request::Look => cmd.arg("look"),
            Request::Promise { epoch, unless_since, place } => {
                let beat = unless_since.unwrap_or_default();
                cmd.arg("promise")
                    .arg(&of_epoch(*epoch))
                    .arg(u8::from(unless_since.is_some()))
                    .arg(&of_epoch(beat.promise))
                    .arg(beat.count)
                    .arg(&**place)
            }
            Request::Configure { epoch, config, admitted } => cmd
                .arg("configure")
                .arg(&of_epoch(*epoch))
                .arg(&of_rank(config))
                .arg(of_config(config))
                .arg(&of_epoch(*admitted)),
            Request::Append {
                epoch,
                admitted,
                after,
                after_epoch,
                entries,
                base,
                begins,
                beat,
            } => {
                cmd.arg("append")
                    .arg(&of_epoch(*epoch))
                    .arg(&of_epoch(*admitted))
                    .arg(after.0)
                    .arg(&of_epoch(*after_epoch))
                    .arg(base.0)
                    .arg(u8::from(*begins))
                    .arg(*beat);
                for entry in entries {
                    let mut bytes = Vec::with_capacity(EPOCH_LEN + entry.payload.len());
                    bytes.extend(of_epoch(entry.epoch));
                    bytes.extend_from_slice(&entry.payload);
                    cmd.arg(bytes);
                }
                &mut cmd
            }
            Request::Read { epoch, from, bytes_max } => {
                let epoch = epoch.map(of_epoch);
                let epoch: &[u8] = epoch.as_ref().map_or(&[], |epoch| epoch);
                cmd.arg("read").arg(epoch).arg(from.0).arg(*bytes_max)
            }
            Request::GiveUp { epoch } => cmd.arg("give_up").arg(&of_epoch(*epoch)),
        };
        cmd
    }

    /// What the script has returned.
    ///
    /// # Errors
    /// It is nothing that the script returns.
    pub fn unpack(value: Value) -> Result<Reply, String> {
        let Value::Array(parts) = value else { return Err(format!("not a list: {value:?}")) };
        let mut parts = Parts(parts.into_iter());
        let word = parts.text()?;
        Ok(match word.as_str() {
            "seen" => Reply::Seen(parts.view()?),
            "promised" => Reply::Promised(parts.view()?),
            "lively" => Reply::Lively(parts.view()?),
            "fenced" => Reply::Fenced { promise: parts.epoch()?, place: parts.text()?.into() },
            "stranger" => Reply::Stranger,
            "configured" => Reply::Configured,
            "appended" => Reply::Appended,
            "gap" => Reply::Gap { last: parts.position()? },
            "given_up" => Reply::GivenUp,
            "entries" => {
                let view = parts.view()?;
                let from = parts.position()?;
                let mut entries = Vec::new();
                for part in parts.0 {
                    entries.push(entry(&bytes(part)?)?);
                }
                Reply::Entries { from, entries, view }
            }
            other => return Err(format!("unknown answer '{other}'")),
        })
    }
}

struct Parts(std::vec::IntoIter<Value>);

impl Parts {
    fn bytes(&mut self) -> Result<Vec<u8>, String> {
        bytes(self.0.next().ok_or("the answer is too short")?)
    }

    fn text(&mut self) -> Result<String, String> {
        String::from_utf8(self.bytes()?).map_err(|error| error.to_string())
    }

    fn number(&mut self) -> Result<u64, String> {
        let text = self.text()?;
        text.parse().map_err(|_| format!("'{text}' is no number"))
    }

    fn position(&mut self) -> Result<Position, String> {
        self.number().map(Position)
    }

    fn epoch(&mut self) -> Result<Epoch, String> {
        epoch(&self.bytes()?)
    }

    fn view(&mut self) -> Result<View, String> {
        let beat = Beat { promise: self.epoch()?, count: self.number()? };
        let place: Address = self.text()?.into();
        let config = config(&self.bytes()?)?;
        Ok(View {
            beat,
            place,
            config,
            admitted: self.epoch()?,
            base: self.position()?,
            base_epoch: self.epoch()?,
            last: self.position()?,
            last_epoch: self.epoch()?,
        })
    }
}

fn bytes(value: Value) -> Result<Vec<u8>, String> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        Value::Int(number) => Ok(number.to_string().into_bytes()),
        other => Err(format!("not a string: {other:?}")),
    }
}

fn of_epoch(epoch: Epoch) -> [u8; EPOCH_LEN] {
    (u128::from(epoch.number) << 64 | u128::from(epoch.identity)).to_be_bytes()
}

fn epoch(bytes: &[u8]) -> Result<Epoch, String> {
    let bytes: [u8; EPOCH_LEN] = bytes.try_into().map_err(|_| "an epoch has 16 bytes")?;
    let both = u128::from_be_bytes(bytes);
    Ok(Epoch { number: (both >> 64) as u64, identity: both as u64 })
}

fn entry(bytes: &[u8]) -> Result<Entry, String> {
    let (first, payload) = bytes.split_at_checked(EPOCH_LEN).ok_or("an entry is too short")?;
    Ok(Entry { epoch: epoch(first)?, payload: payload.into() })
}

/// Of one owner, the configuration that needs no other one beside it is the later one.
fn of_rank(config: &Config) -> [u8; EPOCH_LEN + 1] {
    let mut rank = [0; EPOCH_LEN + 1];
    rank[..EPOCH_LEN].copy_from_slice(&of_epoch(config.epoch));
    rank[EPOCH_LEN] = u8::from(config.before.is_empty());
    rank
}

/// A configuration as it stands on the servers, where people may read it.
#[derive(Serialize, Deserialize)]
struct ConfigText {
    epoch: String,
    subject: String,
    now: ListText,
    #[serde(default)]
    before: Vec<ListText>,
}

#[derive(Serialize, Deserialize)]
struct ListText {
    copies: usize,
    servers: Vec<MemberText>,
}

#[derive(Serialize, Deserialize)]
struct MemberText {
    address: String,
    run_id: String,
    durable: bool,
    admitted: String,
}

fn of_config(config: &Config) -> Vec<u8> {
    let list = |list: &MemberList| ListText {
        copies: list.copies,
        servers: list
            .members
            .iter()
            .map(|member| MemberText {
                address: (*member.address).to_owned(),
                run_id: format!("{:032x}", member.run.0),
                durable: member.is_durable,
                admitted: member.admitted.to_string(),
            })
            .collect(),
    };
    let text = ConfigText {
        epoch: config.epoch.to_string(),
        subject: (*config.subject).to_owned(),
        now: list(&config.now),
        before: config.before.iter().map(list).collect(),
    };
    serde_json::to_vec(&text).expect("text and numbers become JSON")
}

fn config(bytes: &[u8]) -> Result<Option<Arc<Config>>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let text: ConfigText = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let member = |text: MemberText| {
        let run = u128::from_str_radix(&text.run_id, 16).map_err(|error| error.to_string())?;
        Ok(Member {
            address: text.address.into(),
            run: RunId(run),
            is_durable: text.durable,
            admitted: epoch_in_words(&text.admitted)?,
        })
    };
    let list = |text: ListText| -> Result<MemberList, String> {
        let members = text.servers.into_iter().map(member).collect::<Result<_, String>>()?;
        Ok(MemberList { members, copies: text.copies })
    };
    let now = list(text.now)?;
    let before = text.before.into_iter().map(list).collect::<Result<_, _>>()?;
    let epoch = epoch_in_words(&text.epoch)?;
    Ok(Some(Arc::new(Config { epoch, subject: text.subject.into(), now, before })))
}

fn epoch_in_words(text: &str) -> Result<Epoch, String> {
    let parse = || {
        let (number, identity) = text.split_once('.')?;
        let identity = u64::from_str_radix(identity, 16).ok()?;
        Some(Epoch { number: number.parse().ok()?, identity })
    };
    parse().ok_or_else(|| format!("'{text}' is no epoch"))
}
