//! Scripts of locks and rate limits on plain keys: they reply as Redis does, to the word.

use super::launch;
use crate::harness::{Client, Database, PATIENCE, Random, Redis, Reply, Scratch};

/// What libraries send, in other words: each with the number of its keys and the arguments that it takes.
const SCRIPTS: &[(&str, usize, &[Kind])] = &[
    // Locks: release, and in other forms, some of which tell more.
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
        1,
        &[Kind::Value],
    ),
    (
        "local held = redis.call('get', KEYS[1])\nif not held or held ~= ARGV[1] then\n  return 0\nend\nredis.call('del', KEYS[1])\nreturn 1",
        1,
        &[Kind::Value],
    ),
    (
        "local held = redis.call(\"GET\", KEYS[1]); if held == ARGV[1] then return redis.call(\"UNLINK\", KEYS[1]) elseif held == false then return -1 else return 0 end",
        1,
        &[Kind::Value],
    ),
    // Extend, by as much or to as much.
    (
        "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end",
        1,
        &[Kind::Value, Kind::Time],
    ),
    (
        "local held = redis.call('get', KEYS[1])\nif not held or held ~= ARGV[1] then return 0 end\nlocal left = redis.call('pttl', KEYS[1])\nif not left then left = 0 end\nif left < 0 then return 0 end\nlocal time = ARGV[2]\nif ARGV[3] == '0' then time = ARGV[2] + left end\nredis.call('pexpire', KEYS[1], time)\nreturn 1",
        1,
        &[Kind::Value, Kind::Time, Kind::Flag],
    ),
    // Acquire, again if it is one's own.
    (
        "local held = redis.call('GET', KEYS[1])\nif held == ARGV[1] then redis.call('PEXPIRE', KEYS[1], ARGV[2]) return true\nelseif not held then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return true end\nreturn false",
        1,
        &[Kind::Value, Kind::Time],
    ),
    (
        "if (redis.call('exists', KEYS[1]) == 0 and ARGV[3] == '1') or redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) end",
        1,
        &[Kind::Value, Kind::Time, Kind::Flag],
    ),
    (
        "if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.status_reply('OK') end\nlocal at = tonumber(ARGV[3])\nif redis.call('getrange', KEYS[1], 0, at - 1) == string.sub(ARGV[1], 1, at) then return redis.call('set', KEYS[1], ARGV[1], 'PX', ARGV[2]) end",
        1,
        &[Kind::Value, Kind::Time, Kind::Flag],
    ),
    ("return { redis.call('get', KEYS[1]), redis.call('pttl', KEYS[1]) }", 1, &[]),
    // Several keys.
    (
        "for i, key in ipairs(KEYS) do if redis.call('exists', key) == 1 then return 0 end end\nfor i, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end\nreturn #KEYS",
        2,
        &[Kind::Value, Kind::Time],
    ),
    (
        "for _, key in ipairs(KEYS) do if redis.call('get', key) ~= ARGV[1] then return 0 end end\nfor _, key in ipairs(KEYS) do redis.call('set', key, ARGV[1], 'PX', ARGV[2]) end\nreturn #KEYS",
        2,
        &[Kind::Value, Kind::Time],
    ),
    (
        "local count = 0\nfor i, key in ipairs(KEYS) do\n  -- only what is mine\n  if redis.call('get', key) == ARGV[1] then redis.pcall('del', key) count = count + 1 end\nend\nreturn count",
        2,
        &[Kind::Value],
    ),
    // Fixed windows.
    (
        "local n = tonumber(ARGV[2])\nlocal now = redis.call('incrby', KEYS[1], n)\nif tonumber(now) == n then redis.call('expire', KEYS[1], ARGV[1]) end\nreturn now",
        1,
        &[Kind::Time, Kind::Amount],
    ),
    (
        "local length = tonumber(ARGV[2])\nlocal anew = ARGV[1] == '1'\nlocal left = redis.call('PTTL', KEYS[1])\nif left <= 0 then redis.call('SET', KEYS[1], 1, 'PX', length) return { 1, length } end\nlocal hits = redis.call('INCR', KEYS[1])\nif anew then redis.call('PEXPIRE', KEYS[1], length) left = length end\nreturn { hits, left }",
        1,
        &[Kind::Flag, Kind::Time],
    ),
    (
        "redis.call('set', KEYS[1], 0, 'EX', ARGV[2], 'NX')\nlocal used = redis.call('incrby', KEYS[1], ARGV[1])\nlocal left = redis.call('pttl', KEYS[1])\nif left == -1 then redis.call('expire', KEYS[1], ARGV[2]) left = 1000 * ARGV[2] end\nreturn { used, left }",
        1,
        &[Kind::Amount, Kind::Time],
    ),
    (
        "local used = tonumber(redis.call('get', KEYS[1]) or '0')\nif used + 1 > tonumber(ARGV[1]) then return redis.error_reply('LIMIT reached') end\nredis.call('incrby', KEYS[1], '1')\nreturn used + 1",
        1,
        &[Kind::Amount],
    ),
    // Sliding windows: of two counters, and of a bucket that fills.
    (
        "local limit, length, n = tonumber(ARGV[1]), tonumber(ARGV[2]) * 1000, tonumber(ARGV[3])\nif n > limit then return false end\nlocal left = redis.call('pttl', KEYS[2])\nif left > 0 and left < length then\n  redis.call('rename', KEYS[2], KEYS[1])\n  redis.call('set', KEYS[2], 0, 'PX', left + length)\nend\nlocal before = tonumber(redis.call('get', KEYS[1])) or 0\nlocal now = tonumber(redis.call('get', KEYS[2])) or 0\nif before + now + n > limit then return false end\nif redis.call('exists', KEYS[2]) == 1 then redis.call('incrby', KEYS[2], n) else redis.call('set', KEYS[2], n, 'PX', length * 2) end\nreturn true",
        2,
        &[Kind::Amount, Kind::Time, Kind::Amount],
    ),
    (
        "redis.replicate_commands()\nlocal rate, size = tonumber(ARGV[1]), tonumber(ARGV[2])\nlocal at = tonumber(ARGV[3]) / 7\nlocal tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens'))\nif tokens == nil then tokens = size end\nlocal seen = tonumber(redis.call('HGET', KEYS[1], 'seen')) or 0\nlocal filled = math.min(size, tokens + math.max(0, at - seen) * rate)\nlocal allowed = filled >= 1\nif allowed then filled = filled - 1 end\nredis.call('HSET', KEYS[1], 'tokens', filled)\nredis.call('HSET', KEYS[1], 'seen', at)\nredis.call('EXPIRE', KEYS[1], math.ceil(size / rate * 1e6))\nreturn { allowed and 1 or 0, filled, tostring(filled) }",
        1,
        &[Kind::Amount, Kind::Amount, Kind::Amount],
    ),
    // Locks that are hashes, as far as nobody has to be told.
    (
        "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[1]) == 1 then\n  redis.call('hincrby', KEYS[1], ARGV[1], 1)\n  redis.call('pexpire', KEYS[1], ARGV[2])\n  return nil\nend\nreturn redis.call('pttl', KEYS[1])",
        1,
        &[Kind::Value, Kind::Time],
    ),
    (
        "if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return nil end\nif redis.call('hincrby', KEYS[1], ARGV[1], -1) > 0 then return 0 end\nreturn redis.call('del', KEYS[1])",
        1,
        &[Kind::Value],
    ),
    // What comes of values of each kind.
    (
        "return { redis.call('type', KEYS[1]), redis.pcall('incr', KEYS[1]), redis.call('exists', KEYS[1], KEYS[1]), true }",
        1,
        &[],
    ),
    ("return redis.call('type', KEYS[1]).ok .. redis.call('exists', KEYS[2])", 2, &[]),
    ("return redis.pcall('get', KEYS[1])", 1, &[]),
    ("return redis.call('mget', unknown, KEYS[1])", 1, &[]),
];

/// A server needs a table, and these keys are none of it.
const TABLES: &str = "CREATE TABLE prices (id INTEGER PRIMARY KEY, amount INTEGER);";

/// What an argument is.
#[derive(Clone, Copy)]
enum Kind {
    Value,
    Time,
    Flag,
    Amount,
}

impl Kind {
    /// Some argument: times are out of reach of any test, or none at all.
    fn any(self, random: &mut Random) -> String {
        let choices: &[&str] = match self {
            Self::Value => &["me", "you", "", "7", "x y"],
            Self::Time => &["100000000", "200000000", "300000000", "0", "-1", "soon", ""],
            Self::Flag => &["0", "1"],
            Self::Amount => &["1", "2", "3", "10", "x", "2.5"],
        };
        // What is no number is the exception.
        let usual = (choices.len() / 2).max(2) as u64;
        let end = if random.between(0, 4) == 0 { choices.len() as u64 } else { usual };
        choices[random.between(0, end) as usize].to_owned()
    }
}

const KEYS: [&str; 3] = ["lock:a", "lock:b", ""];

/// A command that leaves a key as a string, a hash, or nothing, with or without a time.
fn other(random: &mut Random) -> Vec<String> {
    let key = *random.pick(&KEYS);
    let value = Kind::Value.any(random);
    let text = match random.between(0, 7) {
        0 => format!("DEL\0{key}"),
        1 => format!("SET\0{key}\0{value}"),
        2 => format!("SET\0{key}\0{value}\0NX\0PX\0100000000"),
        3 => format!("SET\0{key}\0{}", random.between(0, 5)),
        4 => format!("PERSIST\0{key}"),
        5 => format!("EXPIRE\0{key}\0{}", random.pick(&["100000", "-1"])),
        _ => format!("HSET\0{key}\0{value}\0{}", random.between(0, 3)),
    };
    text.split('\0').map(str::to_owned).collect()
}

/// Whether two replies are the same, but for the time that passes between them.
fn is_same(first: &Reply, second: &Reply) -> bool {
    match (first, second) {
        (Reply::Int(first), Reply::Int(second)) => {
            first == second || *first > 1_000_000 && first.abs_diff(*second) < 1_000_000
        }
        (Reply::Array(first), Reply::Array(second)) => {
            first.len() == second.len() && first.iter().zip(second).all(|(a, b)| is_same(a, b))
        }
        _ => first == second,
    }
}

fn words(parts: &[&str], count: usize, keys: &[String], arguments: &[String]) -> Vec<String> {
    let parts = parts.iter().map(|&part| part.to_owned());
    parts.chain([count.to_string()]).chain(keys.to_vec()).chain(arguments.to_vec()).collect()
}

fn state(client: &mut Client) -> Vec<Reply> {
    let told = KEYS.iter().flat_map(|key| {
        let mut told = vec![client.call(&["TYPE", key]), client.call(&["PTTL", key])];
        told.push(client.call(&["GET", key]));
        told.push(client.call(&["HLEN", key]));
        told
    });
    told.collect()
}

fn empty(client: &mut Client) {
    KEYS.iter().for_each(|key| _ = client.call(&["DEL", key]).int());
}

/// > A script replies as it does in Redis.
#[test]
fn scripts_of_locks_and_limits_reply_as_in_redis() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let database = Database::sqlite(&scratch).with(TABLES);
    let server = launch(&scratch, &database, "data", "unmapped = 'cache'").start();
    let taken = &SCRIPTS[..SCRIPTS.len() - 1];
    let (mut done, mut failed, mut changed) = (vec![0; taken.len()], 0, 0);
    for protocol in ["2", "3"] {
        let (mut redis, mut client) = (redis.client(), server.client());
        for each in [&mut redis, &mut client] {
            each.call(&["HELLO", protocol]);
            empty(each);
        }
        let seed = 7;
        let mut random = Random::new(seed, 1);
        for step in 0..1_500 {
            let place = format!("RESP{protocol}, seed {seed}, step {step}");
            if random.between(0, 3) == 0 {
                let command = other(&mut random);
                let (expected, said) = (redis.call(&command), client.call(&command));
                assert!(is_same(&said, &expected), "{place} {command:?} {said:?} {expected:?}");
                continue;
            }
            let number = random.between(0, taken.len() as u64) as usize;
            let (text, count, kinds) = taken[number];
            let keys: Vec<String> = (0..count).map(|_| (*random.pick(&KEYS)).to_owned()).collect();
            let arguments: Vec<String> = kinds.iter().map(|kind| kind.any(&mut random)).collect();
            let is_named = random.between(0, 2) == 0;
            let name: Vec<String> = if is_named {
                let digest = redis.call(&["SCRIPT", "LOAD", text]).text();
                assert_eq!(client.call(&["SCRIPT", "LOAD", text]).text(), digest);
                vec!["EVALSHA".into(), digest]
            } else {
                vec!["EVAL".into(), text.into()]
            };
            let parts: Vec<&str> = name.iter().map(String::as_str).collect();
            let command = words(&parts, count, &keys, &arguments);
            let before = state(&mut redis);
            let (expected, said) = (redis.call(&command), client.call(&command));
            done[number] += 1;
            if said.is_error() && said.error() != "LIMIT reached" {
                failed += 1;
                // Redis says in which line of what a comparison failed; the others are the same to the word.
                let is_of_lua = expected.error().starts_with("ERR user_script:");
                let is_equal = is_of_lua && said.error().starts_with("ERR attempt to");
                assert!(is_equal || said == expected, "{place} {command:?} {said:?} {expected:?}");
                // What failed has done nothing here, and in Redis what came before it.
                let untouched = state(&mut client).iter().zip(&before).all(|(a, b)| is_same(a, b));
                assert!(untouched, "{place} {command:?}");
                empty(&mut redis);
                empty(&mut client);
                continue;
            }
            assert!(is_same(&said, &expected), "{place} {command:?} {said:?} {expected:?}");
            let (expected, said) = (state(&mut redis), state(&mut client));
            changed += usize::from(expected != before);
            let is_equal = said.iter().zip(&expected).all(|(a, b)| is_same(a, b));
            assert!(is_equal, "{place} {command:?} {said:?} {expected:?}");
        }
    }
    assert!(done.iter().all(|&count| count > 20), "{done:?}");
    assert!(failed > 50 && changed > 200, "{failed} {changed}");
    server.terminate(PATIENCE);
}

/// Some expression of what scripts may say.
fn expression(random: &mut Random, depth: u32) -> String {
    if depth == 0 || random.between(0, 6) == 0 {
        return (*random.pick(&[
            "1",
            "0",
            "2.5",
            "-3",
            "1e3",
            "0x10",
            "'a'",
            "'10'",
            "''",
            "' 7 '",
            "nil",
            "true",
            "false",
            "KEYS[1]",
            "ARGV[1]",
            "ARGV[2]",
            "ARGV[9]",
            "#ARGV",
            "redis.call('get', KEYS[1])",
            "redis.call('strlen', KEYS[1])",
        ]))
        .to_owned();
    }
    let first = expression(random, depth - 1);
    let second = expression(random, depth - 1);
    match random.between(0, 14) {
        0..6 => {
            let signs =
                ["+", "-", "*", "/", "%", "..", "==", "~=", "<", "<=", ">", ">=", "and", "or"];
            format!("({first} {} {second})", random.pick(&signs))
        }
        6 => format!("{first} {} {second}", random.pick(&["and", "or", "..", "=="])),
        7 => format!("not {first}"),
        8 => format!("-({first})"),
        9 => format!("tonumber({first})"),
        10 => format!("tostring({first})"),
        11 => format!("math.{}({first}, {second})", random.pick(&["max", "min"])),
        12 => format!("math.{}({first})", random.pick(&["floor", "ceil", "abs"])),
        _ => format!("string.sub({first}, {second})"),
    }
}

/// > A script replies as it does in Redis.
#[test]
fn expressions_of_scripts_have_the_values_that_they_have_in_redis() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let mut redis = redis.client();
    let database = Database::sqlite(&scratch).with(TABLES);
    let server = launch(&scratch, &database, "data", "unmapped = 'cache'").start();
    let mut client = server.client();
    let seed = 3;
    let mut random = Random::new(seed, 1);
    let (mut values, mut errors) = (0, 0);
    for step in 0..2_000 {
        let (first, second) = (expression(&mut random, 3), expression(&mut random, 2));
        let text = match random.between(0, 4) {
            0 => format!("local a, b = {first}, {second} if a then return b end return a"),
            1 => format!("return {{ {first}, {second} }}"),
            2 => format!(
                "local n = 0 for i = 1, 3 do n = n + i if {first} then break end end return n"
            ),
            _ => format!("return {first}"),
        };
        let held = *random.pick(&["5", "abc", "-1.5"]);
        for each in [&mut redis, &mut client] {
            each.call(&["SET", "k", held]).ok();
        }
        let command = ["EVAL", &text, "1", "k", "12", "b"];
        let (expected, said) = (redis.call(&command), client.call(&command));
        let both_fail = expected.is_error() && said.is_error();
        assert!(both_fail || said == expected, "step {step}: {text}: {said:?} {expected:?}");
        if both_fail {
            errors += 1;
        } else {
            values += 1;
        }
        assert!(!said.is_error() || !said.error().contains("is none"), "{text} {said:?}");
    }
    assert!(values > 500 && errors > 50, "{values} {errors}");
    server.terminate(PATIENCE);
}

/// > Plain keys are in memory alone, so a lock is gone after a crash.
#[test]
fn a_lock_is_gone_after_a_crash_and_a_script_that_is_not_taken_is_refused() {
    let scratch = Scratch::new();
    let database = Database::sqlite(&scratch).with(TABLES);
    let launch = launch(&scratch, &database, "data", "unmapped = ['lock:*']");
    let server = launch.start();
    let mut client = server.client();
    client.run("SET lock:a me NX PX 100000000").ok();
    let (release, _, _) = SCRIPTS[0];
    let digest = client.call(&["SCRIPT", "LOAD", release]).text();
    assert_eq!(client.call(&["EVALSHA", &digest, "1", "lock:a", "you"]).int(), 0);
    server.kill();
    let server = launch.start();
    let mut client = server.client();
    let told = client.call(&["EVALSHA", &digest, "1", "lock:a", "me"]);
    assert!(told.error().starts_with("NOSCRIPT "), "{told:?}");
    assert_eq!(client.call(&["EVAL", release, "1", "lock:a", "me"]).int(), 0);
    client.run("SET lock:a you NX PX 100000000").ok();
    let (refused, _, _) = SCRIPTS[SCRIPTS.len() - 1];
    let told = client.call(&["EVAL", refused, "1", "lock:a"]);
    assert!(told.error().contains("'unknown', in line 1"), "{told:?}");
    assert!(told.error().contains("docs/CLIENTS.md"), "{told:?}");
    let told = client.call(&["EVAL", release, "1", "other:a", "me"]);
    assert!(told.error().contains("'other:*'"), "{told:?}");
    server.terminate(PATIENCE);
}
