//! Plain cache keys and deadlines in virtual time: against a model, and single claims.

mod through;

use super::claims::Script;
use super::options::Rng;
use super::shop;
use crate::engine::Io;
use crate::origins::OriginError;
use destage_core::{Acknowledge, Fault, Lsn, Span};
use destage_engine::Drive;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn script() -> Script {
    Script::serving(|schema| {
        schema.serve_plain_keys(&[]).unwrap();
        schema.let_copies_expire(|table| table == "item");
    })
}

impl Script {
    fn pass(&mut self, span: Span) {
        self.now = self.now + span;
    }

    pub(super) fn others_are_told(&mut self, commands: &str) -> String {
        let client = self.engine.connect().unwrap();
        let before = std::mem::replace(&mut self.client, client);
        let told = self.told(commands);
        self.client = before;
        told
    }

    pub(super) fn write_through(&mut self) {
        let mut policy = self.engine.policy().clone();
        policy.acknowledge = Acknowledge::Origin;
        self.engine.set_policy(self.now, &policy).unwrap();
    }

    /// Has the origin reject the batch that is due.
    pub(super) fn reject(&mut self) {
        self.pass(Span::from_millis(50));
        self.turn();
        let at = self.ios.iter().position(|io| matches!(io, Io::Destage { .. })).unwrap();
        let Io::Destage { batch, .. } = self.ios.remove(at) else { unreachable!() };
        let error = OriginError::new(Fault::Rejected, "no");
        self.engine.destaged(self.now, batch, Err(error));
        self.turn();
        let at = self.ios.iter().position(|io| matches!(io, Io::Park { .. })).unwrap();
        let Io::Park { lsn, .. } = self.ios.remove(at) else { unreachable!() };
        self.engine.parked(self.now, lsn, Ok(()));
        self.turn();
        self.settle();
    }
}

/// What a plain key holds.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Text(String),
    Fields(Vec<(String, String)>),
}

/// Redis as far as it is asked here; times in milliseconds.
#[derive(Default)]
struct Model {
    now: i64,
    keys: BTreeMap<String, (Held, Option<i64>)>,
}

const OK: &str = "+OK\r\n";
const NIL: &str = "$-1\r\n";
const WRONG: &str = "-WRONGTYPE";

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn number(number: i64) -> String {
    format!(":{number}\r\n")
}

impl Model {
    fn expire(&mut self) {
        let now = self.now;
        self.keys.retain(|_, (_, deadline)| deadline.is_none_or(|at| at > now));
    }

    fn set(&mut self, key: &str, value: &str, options: &[&str]) -> String {
        let old = self.keys.get(key).cloned();
        let deadline = match options {
            ["NX"] if old.is_some() => return NIL.into(),
            ["XX"] if old.is_none() => return NIL.into(),
            ["KEEPTTL"] => old.and_then(|(_, deadline)| deadline),
            ["EX", seconds] => Some(self.now + seconds.parse::<i64>().unwrap() * 1_000),
            ["PXAT", at] => Some(at.parse().unwrap()),
            _ => None,
        };
        self.keys.insert(key.into(), (Held::Text(value.into()), deadline));
        OK.into()
    }

    fn text(&self, key: &str) -> Result<Option<&String>, String> {
        match self.keys.get(key) {
            None => Ok(None),
            Some((Held::Text(text), _)) => Ok(Some(text)),
            Some((Held::Fields(_), _)) => Err(WRONG.into()),
        }
    }

    fn put(&mut self, key: &str, field: &str, value: &str) -> String {
        let entry = self.keys.entry(key.into());
        let (held, _) = entry.or_insert_with(|| (Held::Fields(Vec::new()), None));
        let Held::Fields(fields) = held else { return WRONG.into() };
        match fields.iter_mut().find(|(other, _)| other == field) {
            Some((_, old)) => {
                *old = value.into();
                number(0)
            }
            None => {
                fields.push((field.into(), value.into()));
                number(1)
            }
        }
    }

    fn remove_field(&mut self, key: &str, field: &str) -> String {
        let Some((held, _)) = self.keys.get_mut(key) else { return number(0) };
        let Held::Fields(fields) = held else { return WRONG.into() };
        let before = fields.len();
        fields.retain(|(other, _)| other != field);
        let (removed, is_empty) = (before - fields.len(), fields.is_empty());
        if is_empty {
            self.keys.remove(key);
        }
        number(removed as i64)
    }

    fn fields(&self, key: &str) -> String {
        match self.keys.get(key) {
            None => "*0\r\n".into(),
            Some((Held::Text(_), _)) => WRONG.into(),
            Some((Held::Fields(fields), _)) => {
                let all = fields.iter().map(|(field, value)| bulk(field) + &bulk(value));
                format!("*{}\r\n{}", fields.len() * 2, all.collect::<String>())
            }
        }
    }

    fn change_deadline(&mut self, key: &str, seconds: i64, condition: &str) -> String {
        let new = self.now + seconds * 1_000;
        let Some((_, deadline)) = self.keys.get_mut(key) else { return number(0) };
        let is_done = match (condition, *deadline) {
            ("NX", old) => old.is_none(),
            ("XX", old) => old.is_some(),
            ("GT", old) => old.is_some_and(|old| new > old),
            ("LT", old) => old.is_none_or(|old| new < old),
            _ => true,
        };
        if is_done {
            *deadline = Some(new);
        }
        number(is_done.into())
    }

    fn reply(&mut self, words: &[&str]) -> String {
        self.expire();
        let key = words[1];
        let reply = match words[0] {
            "SET" => self.set(key, words[2], &words[3..]),
            "GET" => self
                .text(key)
                .map_or_else(|e| e, |text| text.map_or_else(|| NIL.into(), |t| bulk(t))),
            "GETDEL" => match self.text(key).map(|text| text.cloned()) {
                Err(error) => error,
                Ok(text) => {
                    self.keys.remove(key);
                    text.map_or_else(|| NIL.into(), |text| bulk(&text))
                }
            },
            "APPEND" => match self.text(key).map(|text| text.cloned().unwrap_or_default()) {
                Err(error) => error,
                Ok(old) => {
                    let text = old + words[2];
                    let deadline = self.keys.get(key).and_then(|(_, deadline)| *deadline);
                    let reply = number(text.len() as i64);
                    self.keys.insert(key.into(), (Held::Text(text), deadline));
                    reply
                }
            },
            "HSET" => self.put(key, words[2], words[3]),
            "HDEL" => self.remove_field(key, words[2]),
            "HGETALL" => self.fields(key),
            "DEL" => number(i64::from(self.keys.remove(key).is_some())),
            "EXISTS" => number(i64::from(self.keys.contains_key(key))),
            "TYPE" => match self.keys.get(key) {
                None => "+none\r\n".into(),
                Some((Held::Text(_), _)) => "+string\r\n".into(),
                Some((Held::Fields(_), _)) => "+hash\r\n".into(),
            },
            "PTTL" => number(match self.keys.get(key) {
                None => -2,
                Some((_, None)) => -1,
                Some((_, Some(at))) => at - self.now,
            }),
            "PERSIST" => {
                let deadline = self.keys.get_mut(key).and_then(|(_, deadline)| deadline.take());
                number(i64::from(deadline.is_some()))
            }
            "EXPIRE" => {
                let condition = words.get(3).copied().unwrap_or_default();
                self.change_deadline(key, words[2].parse().unwrap(), condition)
            }
            other => unreachable!("{other}"),
        };
        self.expire();
        reply
    }
}

fn choose(rng: &mut Rng, now: i64) -> String {
    let key = rng.pick(&["a", "b", "session:9", "item", "no:such:table"]);
    let value = rng.below(1_000);
    let seconds = rng.below(8) as i64 - 1;
    let field = rng.pick(&["f", "g", "h"]);
    match rng.below(22) {
        0..3 => format!("SET {key} {value}"),
        3 => format!("SET {key} {value} {}", rng.pick(&["NX", "XX", "KEEPTTL"])),
        4..6 => format!("SET {key} {value} EX {}", seconds.max(1)),
        6 => format!("SET {key} {value} PXAT {}", now + seconds * 500),
        7..9 => format!("GET {key}"),
        9 => format!("GETDEL {key}"),
        10 => format!("APPEND {key} {value}"),
        11..13 => format!("HSET {key} {field} {value}"),
        13 => format!("HDEL {key} {field}"),
        14 => format!("HGETALL {key}"),
        15 => format!("DEL {key}"),
        16 => format!("TYPE {key}"),
        17 => format!("PTTL {key}"),
        18 => format!("PERSIST {key}"),
        19 => format!("EXISTS {key}"),
        20 => format!("EXPIRE {key} {seconds}"),
        _ => format!("EXPIRE {key} {seconds} {}", rng.pick(&["NX", "XX", "GT", "LT"])),
    }
}

/// A seed's run; where `stands_still`, the engine is not told that time passes.
fn behaves(seed: u64, stands_still: bool) {
    let mut rng = Rng::new(seed, 3);
    let mut script = script();
    let start = script.now;
    let mut model = Model { now: (start.0 / 1_000_000) as i64, ..Model::default() };
    for step in 0..150 {
        let ms = if rng.chance(40) { rng.below(2_500) } else { 0 };
        model.now += ms as i64;
        if !stands_still {
            script.pass(Span::from_millis(ms));
        }
        let commands: Vec<String> =
            (0..rng.below(3) + 1).map(|_| choose(&mut rng, model.now)).collect();
        let replies: Vec<String> = commands
            .iter()
            .map(|command| model.reply(&command.split(' ').collect::<Vec<_>>()))
            .collect();
        let told = script.told(&commands.join("\n"));
        let mut rest = told.as_str();
        for (command, reply) in commands.iter().zip(&replies) {
            let is_wrong = reply == WRONG;
            let len = if is_wrong { rest.find('\n').map_or(0, |at| at + 1) } else { reply.len() };
            assert!(
                rest.starts_with(reply),
                "seed {seed}, step {step}: {command} was told {rest:?}, not {reply:?}"
            );
            rest = &rest[len..];
        }
        assert_eq!(rest, "", "seed {seed}, step {step}: {commands:?}");
    }
    assert_eq!(script.engine.last(), Lsn::ZERO, "no write group tells of plain keys");
}

#[test]
fn plain_keys_behave_as_in_redis_while_time_passes() {
    (0..60).for_each(|seed| behaves(seed, false));
}

#[test]
fn keys_that_do_not_expire_are_noticed() {
    let caught = |seed| catch_unwind(AssertUnwindSafe(|| behaves(seed, true))).is_err();
    assert!((0..50).any(caught));
}

#[test]
fn what_nobody_asks_for_is_dropped_once_it_has_expired() {
    let mut script = script();
    for number in 0..3_000 {
        script.told(&format!("SET k{number} v PX {}", 10 + number % 7));
    }
    let cached = script.engine.core.status().cache_bytes;
    assert_eq!(script.engine.freshness.expiries().len(), 3_000);
    assert!(cached > 3_000 * 64, "{cached}");
    // A tick drops a bounded number, and says that it wants another one at once.
    for left in [2_000, 1_000, 0] {
        script.pass(Span::from_millis(20));
        script.turn();
        assert_eq!(script.engine.freshness.expiries().len(), left);
        assert_eq!(left > 0, script.engine.next_timeout().is_some_and(|at| at <= script.now));
    }
    assert_eq!((script.engine.rows.len(), script.engine.core.status().cache_bytes), (0, 0));
}

#[test]
fn a_key_that_does_not_exist_takes_no_room() {
    let mut script = script();
    script.told("GET a\nEXISTS b c\nHGETALL d\nSET e 1\nDEL e\nMULTI\nGET f\nEXEC");
    script.turn();
    assert_eq!((script.engine.rows.len(), script.engine.core.status().cache_bytes), (0, 0));
}

#[test]
fn plain_keys_are_evicted_like_rows_and_hold_the_last_value_or_nothing() {
    let mut script = script();
    let mut policy = script.engine.policy().clone();
    policy.limits.cache_bytes_max = 64 << 10;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.told("HGET item:0 n\nHGET item:1 n");
    let mut rng = Rng::new(7, 0);
    let mut last = BTreeMap::new();
    let (mut found, mut lost) = (0, 0);
    for number in 0..6_000 {
        let key = rng.below(1_000);
        if rng.chance(50) {
            let value = format!("{number:0100}");
            assert_eq!(script.told(&format!("SET k{key} {value}")), OK);
            last.insert(key, value);
        } else {
            let told = script.told(&format!("GET k{key}"));
            let expected = last.get(&key).map(|value| bulk(value));
            if told == NIL {
                lost += 1
            } else {
                found += 1
            }
            assert!(told == NIL || Some(&told) == expected.as_ref(), "{told:?}");
        }
        assert!(script.engine.core.status().cache_bytes <= 64 << 10);
    }
    assert!(found > 100 && lost > 100, "{found} found, {lost} lost");
    // Less recently used rows had to make room.
    assert!(
        script
            .engine
            .rows
            .find(crate::schema::TableId(shop::ITEM as u16), &shop::key_cells(1))
            .is_none()
    );
}

#[test]
fn a_transaction_writes_rows_and_plain_keys_and_only_the_rows_are_journaled() {
    let mut script = script();
    assert_eq!(
        script.told("MULTI\nSET a 1 EX 10\nHINCRBY item:0 n 1\nINCR a\nTTL a\nEXEC"),
        "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*4\r\n+OK\r\n:11\r\n:2\r\n:10\r\n"
    );
    let changes = script.group(1);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].place, (shop::ITEM, 0));
    assert_eq!(script.told("GET a\nTTL a"), "$1\r\n2\r\n:10\r\n");
    // An error anywhere undoes all of it.
    let told = script.told("MULTI\nSET a 5\nDEL item:0\nHINCRBY a n 1\nEXEC");
    assert!(told.contains("-EXECABORT"), "{told}");
    assert_eq!(script.told("GET a\nTTL a\nHGET item:0 n"), "$1\r\n2\r\n:10\r\n$2\r\n11\r\n");
}

#[test]
fn a_watched_plain_key_that_changes_expires_or_is_evicted_ends_the_transaction() {
    const TRANSACTION: &str = "MULTI\nSET b 1\nEXEC";
    const DONE: &str = "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n";
    const NOT_DONE: &str = "+OK\r\n+QUEUED\r\n*-1\r\n";
    let mut script = script();
    for (change, expected) in [
        ("GET a", DONE),
        ("SET other 1", DONE),
        ("EXPIRE a 100", NOT_DONE),
        ("SET a 2", NOT_DONE),
        ("DEL a", NOT_DONE),
        ("EXPIRE a -1", NOT_DONE),
    ] {
        script.told("SET a 1\nWATCH a");
        script.by_another(change);
        assert_eq!(script.told(TRANSACTION), expected, "{change}");
    }
    script.told("SET a 1 PX 5\nWATCH a");
    script.pass(Span::from_millis(5));
    script.turn();
    assert_eq!(script.told(TRANSACTION), NOT_DONE, "expired");
    script.told("SET a 1\nWATCH a");
    let mut policy = script.engine.policy().clone();
    policy.limits.cache_bytes_max = 0;
    script.engine.set_policy(script.now, &policy).unwrap();
    script.turn();
    assert_eq!(script.told(TRANSACTION), NOT_DONE, "evicted");
}

#[test]
fn the_cached_copy_of_a_row_expires_and_the_row_does_not() {
    let mut script = script();
    assert_eq!(script.told("TTL item:0\nTTL item:99\nPERSIST item:0"), ":-1\r\n:-2\r\n:0\r\n");
    assert_eq!(
        script.told("EXPIRE item:0 10\nTTL item:0\nEXPIRE item:99 10"),
        ":1\r\n:10\r\n:0\r\n"
    );
    script.pass(Span::from_secs(10));
    script.send("HGET item:0 n");
    assert!(script.engine.has_fetches(), "it is asked for at the origin");
    script.settle();
    assert_eq!(script.received().0, "$2\r\n10\r\n");
    assert_eq!(script.told("TTL item:0"), ":-1\r\n", "a new copy");
    let told = script.told("EXPIRE parent:0 10");
    assert!(told.contains("rows do not expire") && told.contains("[table.parent]"), "{told}");
    assert_eq!(script.engine.last(), Lsn::ZERO, "nothing was written");
}

#[test]
fn a_copy_with_changes_that_the_origin_lacks_expires_once_it_has_them() {
    let mut script = script();
    script.told("HINCRBY item:0 n 5\nEXPIRE item:0 1");
    script.pass(Span::from_secs(2));
    script.turn();
    assert_eq!(script.told("HGET item:0 n\nTTL item:0"), "$2\r\n15\r\n:0\r\n");
    assert!(!script.engine.has_fetches());
    script.destage();
    script.pass(Span::from_secs(1));
    script.turn();
    script.send("HGET item:0 n");
    assert!(script.engine.has_fetches(), "the copy has expired by now");
}

#[test]
fn deadlines_reach_from_the_past_to_the_end_of_time() {
    let mut script = script();
    let told =
        script.told("SET a 1\nEXPIREAT a 1\nGET a\nSET a 1\nEXPIREAT a 18446744073\nEXPIRETIME a");
    assert_eq!(told, "+OK\r\n:1\r\n$-1\r\n+OK\r\n:1\r\n:18446744073\r\n");
    let told = script.told("EXPIREAT a 18446744074\nSET a 1 EX 9223372036854775807\nPTTL a");
    let invalid = |command| format!("-ERR invalid expire time in '{command}' command\r\n");
    assert!(told.starts_with(&(invalid("expireat") + &invalid("set"))), "{told}");
    assert_eq!(script.told("EXPIRE a 18446744073\nEXPIRETIME a"), ":1\r\n:18446744074\r\n");
}

#[test]
fn a_value_that_grows_is_no_longer_than_a_request_may_be() {
    let mut script = script();
    script.told("HGET item:0 n");
    script.engine.config.limits.bytes_max = 1_000;
    let part = "x".repeat(450);
    assert_eq!(script.told(&format!("SET a {part}\nAPPEND a {part}")), "+OK\r\n:900\r\n");
    assert_eq!(script.told(&format!("HSET h f {part}\nHSET h g {part}")), ":1\r\n:1\r\n");
    let (long, large) = ("-ERR a string of 1350 bytes exceeds", "-ERR a hash of ");
    for (command, expected) in [
        (format!("APPEND a {part}"), long),
        (format!("HSET h i {part}"), large),
        (format!("HSETNX h i {part}"), large),
        (format!("MULTI\nAPPEND a {part}\nAPPEND b 1\nEXEC"), "-EXECABORT"),
    ] {
        let told = script.told(&command);
        assert!(told.contains(expected), "{told}");
    }
    let told = script.told("STRLEN a\nHLEN h\nEXISTS b\nAPPEND a x\nHDEL h g");
    assert_eq!(told, ":900\r\n:2\r\n:0\r\n:901\r\n:1\r\n", "all is as it was");
}

#[test]
fn a_scan_shows_plain_keys_behind_the_rows() {
    let mut script = script();
    script.told("SET a 1\nHSET b f 1\nSET c 1 PX 1");
    script.pass(Span::from_millis(1));
    assert_eq!(script.told("SCAN 0 MATCH b*x"), "", "rows are asked for first");
    script.client = script.engine.connect().unwrap();
    assert_eq!(script.told("SCAN 0 TYPE string"), "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n");
    script.told("SET x:1 1");
    assert_eq!(script.told("SCAN 0 MATCH x:*"), "*2\r\n$1\r\n0\r\n*1\r\n$3\r\nx:1\r\n");
}
