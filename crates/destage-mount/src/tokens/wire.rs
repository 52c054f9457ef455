//! What hosts agree on, as etcd holds it: keys in words, values in JSON.
//!
//! ```text
//!   destage/VOLUME/host/HOST        {"fenced":false}
//!   destage/VOLUME/session/HOST     {}                  goes with the host's lease
//!   destage/VOLUME/life/HOST        {}                  written whenever the host comes; with an origin on CephFS
//!                                   {"ceph":{"cluster":FSID,"client":NUMBER}}
//!   destage/VOLUME/token/volume     {"holders":[{"host":HOST,"epoch":REVISION,"mode":"read"|"exclusive"}],"wants":[..]}
//!   destage/VOLUME/token/file/HANDLE
//! ```

use super::ceph::Client;
use destage_tokens::{Entry, HostId, Key, Mode, Register, Rev, Root, Value};
use serde_json::{Value as Json, json};
use std::fmt::Write;

/// What every key of a volume begins with.
pub(super) fn prefix(volume: &str) -> String {
    format!("destage/{volume}/")
}

/// A key, after its prefix.
pub(super) fn key(key: &Key) -> String {
    match key {
        Key::Host(host) => format!("host/{}", host_word(*host)),
        Key::Session(host) => format!("session/{}", host_word(*host)),
        Key::Life(host) => format!("life/{}", host_word(*host)),
        Key::Token(Root::Volume) => "token/volume".into(),
        Key::Token(Root::File(file)) => {
            let mut text = String::from("token/file/");
            // A string takes everything.
            file.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
            text
        }
    }
}

/// A host's word: its journal's identity.
pub(crate) fn host_word(host: HostId) -> String {
    uuid::Uuid::from_u128(host.0).to_string()
}

/// A key from what follows its prefix; `None` if it is none of ours.
pub(super) fn read_key(text: &str) -> Option<Key> {
    let host = |word: &str| uuid::Uuid::parse_str(word).ok().map(|id| HostId(id.as_u128()));
    Some(match text.split_once('/')? {
        ("host", word) => Key::Host(host(word)?),
        ("session", word) => Key::Session(host(word)?),
        ("life", word) => Key::Life(host(word)?),
        ("token", "volume") => Key::Token(Root::Volume),
        ("token", rest) => {
            let digits = rest.strip_prefix("file/")?.as_bytes();
            let bytes = digits.chunks(2).map(|pair| {
                let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
                u8::from_str_radix(pair, 16).ok()
            });
            Key::Token(Root::File(bytes.collect::<Option<Vec<u8>>>()?.into()))
        }
        _ => return None,
    })
}

/// A value.
pub(super) fn value(value: &Value) -> String {
    let entry = |entry: &Entry| {
        let mode = match entry.mode {
            Mode::Read => "read",
            Mode::Exclusive => "exclusive",
        };
        json!({ "host": host_word(entry.host), "epoch": entry.epoch.0, "mode": mode })
    };
    match value {
        Value::Host { is_fenced } => json!({ "fenced": is_fenced }),
        Value::Session | Value::Life => json!({}),
        Value::Token(register) => json!({
            "holders": register.holders.iter().map(entry).collect::<Json>(),
            "wants": register.wants.iter().map(entry).collect::<Json>(),
        }),
    }
    .to_string()
}

/// What a host says when it comes.
pub(super) fn life(client: Option<&Client>) -> String {
    let said = client
        .map(|Client { cluster, id }| json!({ "ceph": { "cluster": cluster, "client": id } }));
    said.unwrap_or_else(|| json!({})).to_string()
}

/// The same, read.
pub(super) fn read_life(text: &[u8]) -> Option<Client> {
    let json: Json = serde_json::from_slice(text).ok()?;
    let ceph = &json["ceph"];
    Some(Client { cluster: ceph["cluster"].as_str()?.to_owned(), id: ceph["client"].as_u64()? })
}

/// The value of a key; `None` if it is not what is written there.
pub(super) fn read_value(key: &Key, text: &[u8]) -> Option<Value> {
    let json: Json = serde_json::from_slice(text).ok()?;
    let entries = |part: &str| {
        let entry = |json: &Json| {
            Some(Entry {
                host: HostId(uuid::Uuid::parse_str(json["host"].as_str()?).ok()?.as_u128()),
                epoch: Rev(json["epoch"].as_u64()?),
                mode: match json["mode"].as_str()? {
                    "read" => Mode::Read,
                    "exclusive" => Mode::Exclusive,
                    _ => return None,
                },
            })
        };
        json[part].as_array()?.iter().map(entry).collect::<Option<Vec<_>>>()
    };
    Some(match key {
        Key::Host(_) => Value::Host { is_fenced: json["fenced"].as_bool()? },
        Key::Session(_) => Value::Session,
        Key::Life(_) => Value::Life,
        Key::Token(_) => {
            Value::Token(Register { holders: entries("holders")?, wants: entries("wants")? })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_stays_as_it_is_written() {
        let host = HostId(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        let entry = Entry { host, epoch: Rev(7), mode: Mode::Exclusive };
        let want = Entry { mode: Mode::Read, ..entry };
        let register = Register { holders: vec![entry], wants: vec![want] };
        let id = "12345678-9abc-def0-1234-56789abcdef0";
        let file = Key::Token(Root::File([1, 0xab][..].into()));
        let cases = [
            (
                Key::Host(host),
                Value::Host { is_fenced: true },
                format!("host/{id}"),
                r#"{"fenced":true}"#.into(),
            ),
            (Key::Session(host), Value::Session, format!("session/{id}"), "{}".into()),
            (Key::Life(host), Value::Life, format!("life/{id}"), "{}".into()),
            (
                Key::Token(Root::Volume),
                Value::Token(Register::default()),
                "token/volume".into(),
                r#"{"holders":[],"wants":[]}"#.into(),
            ),
            (
                file,
                Value::Token(register),
                "token/file/01ab".into(),
                format!(
                    r#"{{"holders":[{{"epoch":7,"host":"{id}","mode":"exclusive"}}],"wants":[{{"epoch":7,"host":"{id}","mode":"read"}}]}}"#
                ),
            ),
        ];
        for (known, content, word, text) in cases {
            assert_eq!((key(&known), value(&content)), (word.clone(), text.clone()));
            assert_eq!(read_key(&word), Some(known.clone()));
            assert_eq!(read_value(&known, text.as_bytes()), Some(content));
        }
        for wrong in ["", "host/x", "token/file/0", "token/file/zz", "other/x"] {
            assert_eq!(read_key(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_host_says_by_which_client_it_has_its_origin() {
        let client = Client { cluster: "4c2a".into(), id: 4146 };
        let text = life(Some(&client));
        assert_eq!(text, r#"{"ceph":{"client":4146,"cluster":"4c2a"}}"#);
        assert_eq!(read_life(text.as_bytes()), Some(client));
        assert_eq!(life(None), value(&Value::Life));
        for wrong in ["", "{}", r#"{"ceph":{"client":"x","cluster":"4c2a"}}"#] {
            assert_eq!(read_life(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
