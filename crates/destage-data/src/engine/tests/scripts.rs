//! Scripts upon plain keys, in virtual time: single claims. That they reply as Redis does is shown before a real one.

use super::claims::Script;
use destage_core::{Lsn, Span};
use destage_engine::Drive;

fn script() -> Script {
    Script::serving(|schema| {
        schema.serve_plain_keys(&[]).unwrap();
    })
}

/// A request of these words, each on its own.
fn request(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl Script {
    /// What the words are answered with.
    fn said_to(&mut self, words: &[&str]) -> String {
        self.engine.receive(self.now, self.client, &request(words));
        self.turn();
        self.settle();
        self.received().0
    }
}

const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

#[test]
fn a_script_is_known_by_its_digest_once_it_was_sent() {
    let mut script = script();
    let loaded = script.said_to(&["SCRIPT", "LOAD", RELEASE]);
    let digest = loaded[5..45].to_owned();
    let unknown = "-NOSCRIPT No matching script. Please use EVAL.\r\n";
    script.told("SET lock mine");
    let upper = digest.to_uppercase();
    assert_eq!(script.said_to(&["EVALSHA", &upper, "1", "lock", "other"]), ":0\r\n");
    assert_eq!(script.said_to(&["EVALSHA", &digest, "1", "lock", "mine"]), ":1\r\n");
    assert_eq!(script.said_to(&["SCRIPT", "EXISTS", &digest, "no"]), "*2\r\n:1\r\n:0\r\n");
    assert_eq!(script.said_to(&["SCRIPT", "FLUSH", "ASYNC"]), "+OK\r\n");
    assert_eq!(script.said_to(&["EVALSHA", &digest, "1", "lock", "mine"]), unknown);
    assert_eq!(script.said_to(&["EVAL", RELEASE, "1", "lock", "mine"]), ":0\r\n");
    assert_eq!(script.said_to(&["EVALSHA", &digest, "1", "lock", "mine"]), ":0\r\n");
    // Where a transaction names one that is not known, nothing of it is done.
    script.told("MULTI");
    assert_eq!(script.said_to(&["EVALSHA", "no", "1", "lock", "mine"]), unknown);
    assert!(script.told("EXEC").starts_with("-EXECABORT"));
}

#[test]
fn a_script_between_multi_and_exec_takes_effect_with_the_others() {
    let mut script = script();
    script.told("SET lock mine\nSET n 1");
    assert_eq!(script.told("MULTI\nINCR n"), "+OK\r\n+QUEUED\r\n");
    assert_eq!(script.said_to(&["EVAL", RELEASE, "1", "lock", "mine"]), "+QUEUED\r\n");
    assert_eq!(script.others_are_told("GET lock"), "$4\r\nmine\r\n");
    assert_eq!(script.told("EXISTS lock\nEXEC"), "+QUEUED\r\n*3\r\n:2\r\n:1\r\n:0\r\n");
    // A watched key that a script changes was changed.
    script.told("SET lock mine\nWATCH lock");
    let client = script.engine.connect().unwrap();
    let own = std::mem::replace(&mut script.client, client);
    assert_eq!(script.said_to(&["EVAL", RELEASE, "1", "lock", "mine"]), ":1\r\n");
    script.client = own;
    assert_eq!(script.told("MULTI\nINCR n\nEXEC"), "+OK\r\n+QUEUED\r\n*-1\r\n");
}

#[test]
fn a_script_that_fails_has_done_nothing_and_one_that_replies_with_an_error_has() {
    let mut script = script();
    script.told("SET n 1\nHSET h f 1");
    let fails = "redis.call('incr', KEYS[1]) return redis.call('get', KEYS[2])";
    let told = script.said_to(&["EVAL", fails, "2", "n", "h"]);
    assert!(told.starts_with("-WRONGTYPE ") && told.contains("on @user_script:1."), "{told}");
    let compares = "redis.call('incr', KEYS[1]) return 1 < 'a'";
    assert!(script.said_to(&["EVAL", compares, "1", "n"]).starts_with("-ERR attempt to compare"));
    assert_eq!(script.told("GET n"), "$1\r\n1\r\n");
    let limited = "redis.call('incr', KEYS[1]) return redis.error_reply('LIMIT too many')";
    assert_eq!(script.said_to(&["EVAL", limited, "1", "n"]), "-LIMIT too many\r\n");
    assert_eq!(script.told("GET n"), "$1\r\n2\r\n");
}

#[test]
fn a_script_works_upon_the_plain_keys_that_it_is_given() {
    let mut script = script();
    let get = "return redis.call('get', ARGV[1])";
    let told = script.said_to(&["EVAL", get, "1", "a", "b"]);
    assert!(told.contains("'b' is none of them"), "{told}");
    let told = script.said_to(&["EVAL", RELEASE, "1", "item:0", "b"]);
    assert!(told.contains("'item:0' is a key of item"), "{told}");
    assert!(script.said_to(&["EVAL", "return 1", "0"]).contains("it has no keys"));
    let told = script.said_to(&["EVAL", "return redis.call('lpush', KEYS[1], 1)", "1", "a"]);
    assert!(told.contains("'lpush', in line 1") && told.contains("docs/CLIENTS.md"), "{told}");
    for (count, what) in [("x", "not an integer"), ("-1", "negative"), ("2", "greater than number")]
    {
        assert!(script.said_to(&["EVAL", "return 1", count, "a"]).contains(what), "{count}");
    }
    let writes = "return redis.call('set', KEYS[1], 1)";
    assert!(
        script.said_to(&["EVAL_RO", writes, "1", "a"]).contains("Write commands are not allowed")
    );
    assert_eq!(
        script.said_to(&["EVAL_RO", "return redis.call('get', KEYS[1])", "1", "a"]),
        "$-1\r\n"
    );
    assert!(
        script
            .said_to(&["DESTAGE", "ONCE", "t", "EVAL", RELEASE, "1", "a", "b"])
            .starts_with("-ERR")
    );
    assert_eq!(script.engine.last(), Lsn::ZERO, "nothing was written");
    // Without plain keys there is nothing that a script could work upon.
    let mut rows = Script::serving(|_| {});
    assert!(rows.said_to(&["EVAL", RELEASE, "1", "a", "b"]).contains("--unmapped"));
}

#[test]
fn a_script_ends_however_much_it_would_do() {
    let mut script = script();
    for text in [
        "for i = 1, 1e9 do end",
        "for i = 2, 1, 0 do end",
        "local t = 'x' for i = 1, 40 do t = t .. t end",
        "local t = {1} for i = 1, 60 do t = {t, t} end return t",
        "local t = {1} for i = 1, 25 do t = {t, t} end return t",
        "for i = 1, 20000 do redis.call('incr', KEYS[1]) end",
    ] {
        let told = script.said_to(&["EVAL", text, "1", "n"]);
        let is_much = told.starts_with("-ERR scripts of one transaction did more than");
        assert!(is_much || told.starts_with("-ERR a script made lists"), "{text}: {told}");
    }
    assert_eq!(script.told("GET n"), "$-1\r\n");
    // A transaction is one however many scripts are in it.
    script.told("MULTI");
    for _ in 0..3 {
        let told = script.said_to(&["EVAL", "for i = 1, 40000 do end", "1", "n"]);
        assert_eq!(told, "+QUEUED\r\n");
    }
    let told = script.told("EXEC");
    assert!(told.contains("scripts of one transaction did more"), "{told}");
    // As deep as it may be.
    let deep = format!("return {}1{}", "(".repeat(20), ")".repeat(20));
    assert_eq!(script.said_to(&["EVAL", &deep, "1", "n"]), ":1\r\n");
}

#[test]
fn a_script_has_room_for_so_much_text_however_it_handles_it() {
    let mut script = script();
    let much = "1".repeat(1 << 20);
    script.said_to(&["SET", "k", &much]);
    script.said_to(&["HSET", "h", "f", &much]);
    for text in [
        "for i = 1, 45 do redis.call('append', KEYS[1], redis.call('get', KEYS[1])) end",
        "for i = 1, 99 do redis.call('append', KEYS[1], ARGV[1]) end",
        "for i = 1, 99 do redis.pcall('append', KEYS[1], '1') end",
        "for i = 1, 99 do redis.call('hset', KEYS[2], i, i) end",
        "local t = {} for i = 1, 99 do t = {t, redis.call('getrange', KEYS[1], 0, -1)} end",
        "return redis.call('mget', KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1])",
        "return redis.pcall('mget', KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1], KEYS[1])",
        "for i = 1, 99 do local n = ARGV[1] + 0 end",
        "for i = 1, 99 do local n = tonumber(ARGV[1]) end",
        "for i = 1, 99 do local n = math.max(1, ARGV[1]) end",
        "local n = 0 for i = 1, 99 do if ARGV[1] == ARGV[2] then n = i end end",
        "local n = 0 for i = 1, 99 do if ARGV[1] <= ARGV[2] then n = i end end",
        "local n = 0 for i = 1, 99 do n = string.sub(ARGV[1], 2) end",
        "for i = 1, 99 do redis.call('set', KEYS[1], ARGV[1]) end",
    ] {
        let told = script.said_to(&["EVAL", text, "2", "k", "h", &much, &much]);
        assert!(told.contains("more than 8 MiB of text, and nothing was done"), "{text}: {told}");
    }
    assert_eq!(script.told("STRLEN k\nHLEN h"), ":1048576\r\n:1\r\n");
    // A reply of statuses is as long as another one.
    let many = "local s = redis.status_reply(ARGV[1]) for i = 1, 14 do s = {s, s} end return s";
    let told = script.said_to(&["EVAL", many, "1", "k", &much]);
    assert!(told.len() < 1_000 && told.starts_with('-'), "{} bytes", told.len());
}

#[test]
fn a_known_script_with_more_arguments_than_a_request_has_room_for_is_refused() {
    let mut script = script();
    let padded = format!("{RELEASE}{}", " ".repeat(10_000));
    let digest = script.said_to(&["SCRIPT", "LOAD", &padded])[5..45].to_owned();
    let most = "x".repeat((64 << 20) - 5_000);
    let told = script.said_to(&["EVALSHA", &digest, "1", "lock", &most]);
    assert!(told.contains("longer than a request may be, and nothing was done"), "{told}");
    assert_eq!(script.said_to(&["EVALSHA", &digest, "1", "lock", "x"]), ":0\r\n");
}

#[test]
fn a_lock_ends_at_its_time_and_is_extended_by_its_owner() {
    let mut script = script();
    let extend = "if redis.call('get', KEYS[1]) == ARGV[1] then\n\
                  return redis.call('pexpire', KEYS[1], ARGV[2] + redis.call('pttl', KEYS[1])) end return 0";
    assert_eq!(script.told("SET lock a NX PX 1000\nSET lock b NX PX 1000"), "+OK\r\n$-1\r\n");
    assert_eq!(script.said_to(&["EVAL", extend, "1", "lock", "b", "500"]), ":0\r\n");
    assert_eq!(script.said_to(&["EVAL", extend, "1", "lock", "a", "500"]), ":1\r\n");
    script.now = script.now + Span::from_millis(1_499);
    let told = script.told("PTTL lock");
    assert!(told == ":1\r\n" || told == ":0\r\n", "{told}");
    script.now = script.now + Span::from_millis(2);
    assert_eq!(script.said_to(&["EVAL", extend, "1", "lock", "a", "500"]), ":0\r\n");
    assert_eq!(script.told("SET lock b NX PX 1000"), "+OK\r\n");
}

#[test]
fn strings_are_deleted_on_condition() {
    let mut script = script();
    script.told("SET a x\nHSET h f 1");
    assert_eq!(script.told("DELIFEQ a y\nDELEX a IFEQ y\nDELEX a IFNE x"), ":0\r\n:0\r\n:0\r\n");
    assert_eq!(script.told("DELEX a IFNE y\nGET a\nDELEX a IFNE y"), ":1\r\n$-1\r\n:0\r\n");
    script.told("SET a x\nSET b x");
    assert_eq!(script.told("DELIFEQ a x\nDELEX b ifeq x\nEXISTS a b"), ":1\r\n:1\r\n:0\r\n");
    assert!(script.told("DELIFEQ h x").starts_with("-WRONGTYPE"));
    assert_eq!(script.told("DELEX h\nEXISTS h\nDELEX h"), ":1\r\n:0\r\n:0\r\n");
    assert!(script.told("DELEX a IFDEQ 0123456789abcdef").contains("no digests of values"));
    script.told("SET a IFEQ");
    for without in ["DELEX a WHAT x", "DELEX a IFEQ", "DELEX a x"] {
        assert_eq!(script.told(without), "-ERR syntax error\r\n");
    }
    assert_eq!(script.told("EXISTS a"), ":1\r\n");
}
