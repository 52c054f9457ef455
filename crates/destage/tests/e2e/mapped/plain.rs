//! Keys that name no row, as plain cache keys; and what expires.

use super::{FAR_FUTURE, launch, same_replies};
use crate::harness::{
    Database, Launch, PATIENCE, Random, Redis, Reply, Scratch, Server, eventually, has, output,
};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const TABLES: &str = "
CREATE TABLE notes (name VARCHAR(40) PRIMARY KEY, body TEXT);
CREATE TABLE prices (id INTEGER PRIMARY KEY, amount INTEGER);
";

const SETTINGS: &str = r#"
unmapped = "cache"

[table.prices]
ttl = "cached-copy"

[[string]]
key = "note:{name}"
table = "notes"
value = "body"
"#;

/// The last one is a row's.
const KEYS: [&str; 6] = ["a", "session:7", "no:such:table", "", "h\u{e9}", "note:a"];

fn database(scratch: &Scratch) -> Database {
    Database::sqlite(scratch).with(TABLES)
}

fn serving(scratch: &Scratch, database: &Database) -> Launch {
    launch(scratch, database, "data", SETTINGS)
}

fn started(scratch: &Scratch) -> (Database, Server) {
    let database = database(scratch);
    let server = serving(scratch, &database).start();
    (database, server)
}

/// A command that takes rows as well as plain keys.
fn common(random: &mut Random, key: &str, other: &str) -> String {
    let value = random.between(0, 300);
    match random.between(0, 14) {
        0..3 => format!("GET\0{key}"),
        3..5 => format!("SET\0{key}\0{value}"),
        5 => format!("SET\0{key}\0{value}\0{}", random.pick(&["NX", "XX", "GET", "KEEPTTL"])),
        6 => format!("MSET\0{key}\0{value}\0{other}\0text"),
        7 => format!("MGET\0{key}\0{other}"),
        8 => format!("INCRBY\0{key}\0{value}"),
        9 => format!("APPEND\0{key}\0{value}"),
        10 => format!("DEL\0{key}\0{other}"),
        11 => format!("EXISTS\0{key}\0{other}\0{key}"),
        12 => format!("TTL\0{key}"),
        _ => format!("MSETNX\0{key}\0{value}\0{other}\0y"),
    }
}

/// A command on a plain key. Deadlines have passed, or are out of reach of any test.
fn command(random: &mut Random) -> Vec<String> {
    let key = KEYS[random.between(0, 6) as usize];
    let other = KEYS[random.between(0, 6) as usize];
    let value = random.between(0, 300);
    let field = *random.pick(&["f", "g", "h", ""]);
    let at = FAR_FUTURE + 1_000_000 * random.between(0, 9).cast_signed();
    let at = if random.between(0, 5) == 0 { random.between(1, 99).cast_signed() } else { at };
    let condition = *random.pick(&["NX", "XX", "GT", "LT"]);
    if key == "note:a" || random.between(0, 3) == 0 {
        return common(random, key, other).split('\0').map(str::to_owned).collect();
    }
    let text = match random.between(0, 34) {
        0 => format!("SET\0{key}\0{value}\0EXAT\0{at}"),
        1 => format!("SET\0{key}\0{value}\0PXAT\0{at}000\0XX"),
        2 => format!("SETEX\0{key}\0100000000\0{value}"),
        3 => format!("PSETEX\0{key}\0200000000000\0{value}"),
        4 => format!("SET\0{key}\0{value}\0EX\0{}", random.pick(&["0", "-1", "x", "300000000"])),
        5 => format!("GETEX\0{key}"),
        6 => format!("GETEX\0{key}\0EXAT\0{at}"),
        7 => format!("GETEX\0{key}\0PERSIST"),
        8..11 => format!("EXPIREAT\0{key}\0{at}"),
        11 => format!("EXPIREAT\0{key}\0{at}\0{condition}"),
        12 => format!("PEXPIREAT\0{key}\0{at}001\0{condition}"),
        13 => format!("EXPIRE\0{key}\0{}", random.pick(&["-1", "0", "400000000", "soon"])),
        14 => format!("PEXPIRE\0{key}\0{}", random.pick(&["-1000", "500000000000"])),
        15..17 => format!("TTL\0{key}"),
        17 => format!("PTTL\0{key}"),
        18 => format!("EXPIRETIME\0{key}"),
        19 => format!("PEXPIRETIME\0{key}"),
        20 => format!("PERSIST\0{key}"),
        21 => format!("TYPE\0{key}"),
        22 => format!("GETDEL\0{key}"),
        23 => format!("GETSET\0{key}\0{value}"),
        24 => format!("STRLEN\0{key}"),
        25 => format!("INCRBYFLOAT\0{key}\0{value}.25"),
        26 => format!("GETRANGE\0{key}\01\0{}", value % 5),
        27..30 => format!("HSET\0{key}\0{field}\0{value}"),
        _ => return fields(random, key, field),
    };
    text.split('\0').map(str::to_owned).collect()
}

/// A command on a hash.
fn fields(random: &mut Random, key: &str, field: &str) -> Vec<String> {
    let value = random.between(0, 300);
    let text = match random.between(0, 14) {
        0 => format!("HGET\0{key}\0{field}"),
        1 => format!("HMGET\0{key}\0{field}\0g\0{field}"),
        2..4 => format!("HGETALL\0{key}"),
        4 => format!("HDEL\0{key}\0{field}\0h"),
        5 => format!("HLEN\0{key}"),
        6 => format!("HEXISTS\0{key}\0{field}"),
        7 => format!("HKEYS\0{key}"),
        8 => format!("HVALS\0{key}"),
        9 => format!("HINCRBY\0{key}\0{field}\0{value}"),
        10 => format!("HINCRBYFLOAT\0{key}\0{field}\0{value}.5"),
        11 => format!("HSETNX\0{key}\0{field}\0{value}"),
        12 => format!("HSET\0{key}\0f\0{value}\0g"),
        _ => {
            let pairs = (0..20).map(|number| format!("\0many{}\0{value}", number % 15));
            format!("HMSET\0{key}{}", pairs.collect::<String>())
        }
    };
    text.split('\0').map(str::to_owned).collect()
}

/// > A plain cache key is never durable, whatever `d` is, and never reaches the origin: it is in memory alone, and gone
/// > after every stop.
#[test]
fn plain_keys_behave_as_in_redis_and_are_gone_after_a_crash() {
    let scratch = Scratch::new();
    let Some(redis) = Redis::start(&scratch) else { return };
    let mut redis = redis.client();
    let database = database(&scratch);
    let launch = serving(&scratch, &database);
    let mut server = launch.start();
    let mut client = server.client();
    let seed = 5;
    let mut random = Random::new(seed, 1);
    for step in 0..1_500 {
        if random.between(0, 300) == 0 {
            drop(client);
            server.kill();
            server = launch.start();
            client = server.client();
            for key in &KEYS[..5] {
                assert_eq!(client.call(&["TYPE", key]), Reply::Status("none".into()));
                redis.call(&["DEL", key]);
            }
        }
        let commands: Vec<Vec<String>> = match random.between(0, 8) {
            0 => {
                let inner: Vec<_> =
                    (0..random.between(1, 5)).map(|_| command(&mut random)).collect();
                let multi = vec![vec!["MULTI".to_owned()]];
                multi.into_iter().chain(inner).chain([vec!["EXEC".to_owned()]]).collect()
            }
            _ => vec![command(&mut random)],
        };
        let place = format!("seed {seed}, step {step}");
        same_replies(&mut redis, &mut client, &commands, &KEYS, &place);
    }
    server.drain();
    let stored = database.rows("SELECT name, body FROM notes");
    match redis.run("GET note:a") {
        Reply::Nil => assert!(stored.is_empty(), "{stored:?}"),
        reply => assert_eq!(stored, [["a".to_owned(), reply.text()]]),
    }
    server.terminate(PATIENCE);
}

#[test]
fn keys_that_name_no_row_are_refused_unless_the_settings_say_otherwise() {
    let scratch = Scratch::new();
    let database = database(&scratch);
    let launch = launch(&scratch, &database, "data", "");
    let server = launch.start();
    let mut client = server.client();
    let error = client.run("SET session:7 x");
    assert!(error.error().contains("there is no table 'session'"), "{error:?}");
    assert!(error.error().contains("unmapped (--unmapped)"), "{error:?}");
    assert!(error.error().contains("'session:*'"), "{error:?}");
    let error = client.run("EXPIRE prices:1 10");
    assert!(error.error().contains("rows do not expire"), "{error:?}");
    server.terminate(PATIENCE);
    let server = launch.with(&["--unmapped", "cache"]).start();
    let mut client = server.client();
    client.run("SET session:7 x").ok();
    assert_eq!(client.run("GET session:7").text(), "x");
    // What begins like a table's key is one.
    let error = client.run("HSET prices:x amount 1");
    assert!(error.error().contains("prices.id"), "{error:?}");
    let error = client.run("SADD tags red");
    assert!(error.error().starts_with("WRONGTYPE"), "{error:?}");
    server.terminate(PATIENCE);
    launch.with(&["--unmapped", "keep"]).refused().says(2, &["reject or cache"]);
}

/// > With `unmapped = ["sess:*", "lock:*"]` only keys that begin so are plain cache keys, and all others are refused as
/// > before.
#[test]
fn only_keys_that_begin_as_the_settings_say_are_plain() {
    let scratch = Scratch::new();
    let database = database(&scratch);
    let text = "unmapped = ['sess:*', 'lock:*']";
    let launch = launch(&scratch, &database, "data", text);
    let server = launch.start();
    let mut client = server.client();
    for key in ["sess:7", "lock:", "sess:a:b"] {
        client.call(&["SET", key, "x", "NX", "EX", "100000"]).ok();
        assert_eq!(client.call(&["GET", key]).text(), "x");
    }
    for key in ["sess", "session:7", "Sess:7", "price:1", "lock", ""] {
        for command in
            [["GET", key].as_slice(), &["SET", key, "x"], &["WATCH", key], &["TYPE", key]]
        {
            let error = client.call(command);
            assert!(error.error().contains("unmapped (--unmapped)"), "{command:?} {error:?}");
        }
    }
    // A mistyped table is still an error, and what begins like a table's key is one.
    let error = client.run("HSET prises:1 amount 1");
    assert!(error.error().contains("there is no table 'prises'"), "{error:?}");
    let error = client.run("SCAN 0 MATCH prises:*");
    assert!(error.error().contains("there is no table 'prises'"), "{error:?}");
    for pattern in ["sess:*", "sess:7*", "lock:*"] {
        client.call(&["SCAN", "0", "MATCH", pattern]).array();
    }
    let error = client.run("HSET prices:x amount 1");
    assert!(
        error.error().contains("prices.id") && !error.error().contains("--unmapped"),
        "{error:?}"
    );
    // A transaction with a key that is refused does nothing.
    client.run("MULTI").ok();
    client.run("SET sess:8 x");
    client.run("SET other:8 x");
    assert!(client.run("EXEC").error().starts_with("EXECABORT"));
    assert_eq!(client.run("EXISTS sess:8").int(), 0);
    server.terminate(PATIENCE);

    // Flags override the file.
    let server = launch.with(&["--unmapped", "other:*,cart:*"]).start();
    let mut client = server.client();
    client.run("SET cart:1 x").ok();
    client.run("SET other:8 x").ok();
    assert!(client.run("SET sess:7 x").error().contains("'sess:*'"));
    server.terminate(PATIENCE);
    launch.with(&["--unmapped", "cart:*,cache"]).refused().says(2, &["--unmapped", "stand alone"]);
    launch.with(&["--unmapped", "a:*,prices:*"]).refused().says(2, &["'prices:*'", "of a table"]);
}

#[test]
fn redis_cli_sees_keys_that_begin_as_the_settings_say_and_which_setting_serves_others() {
    if !has("redis-cli") {
        return;
    }
    let scratch = Scratch::new();
    let database = database(&scratch);
    let server = launch(&scratch, &database, "data", "unmapped = ['sess:*']").start();
    for protocol in ["-2", "-3"] {
        let cli = |command: &[&str]| {
            let port = server.port();
            let printed =
                output(Command::new("redis-cli").args([protocol, "-p", &port]).args(command));
            printed.trim().to_owned()
        };
        assert_eq!(cli(&["SET", "sess:7", "x", "EX", "1000"]), "OK");
        assert_eq!(cli(&["--scan", "--pattern", "sess:*"]), "sess:7");
        assert_eq!(cli(&["DEL", "sess:7"]), "1");
        let refused = cli(&["SET", "cart:7", "x"]);
        assert!(refused.contains("'cart:*'") && refused.contains("--unmapped"), "{refused}");
    }
    server.terminate(PATIENCE);
}

#[test]
fn a_key_is_gone_at_its_time_and_its_room_is_free() {
    let scratch = Scratch::new();
    let (_database, server) = started(&scratch);
    let mut client = server.client();
    client.run("SET short x PX 1").ok();
    client.run("SET long x EX 100000").ok();
    eventually("the key has expired", PATIENCE, || client.run("EXISTS short").int() == 0);
    assert_eq!(client.run("TTL short").int(), -2);
    let left = client.run("TTL long").int();
    assert!((90_000..=100_000).contains(&left), "{left}");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
    let at = client.run("EXPIRETIME long").int();
    assert!((now + 90_000..=now + 100_001).contains(&at.cast_unsigned()), "{at} {now}");
    server.terminate(PATIENCE);
}

/// > What expires is the copy in the cache, never the row: when it is asked for again, the row is fetched from the
/// > origin, and the new copy has no time at which it expires.
///
/// > A copy with changes that the origin does not have yet never expires before they are destaged.
#[test]
fn a_copy_that_expires_is_fetched_again_and_the_row_stays() {
    let scratch = Scratch::new();
    let (database, server) = started(&scratch);
    database.execute("INSERT INTO prices VALUES (1, 10)");
    let mut client = server.client();
    assert_eq!(client.run("HGET prices:1 amount").text(), "10");
    database.execute("UPDATE prices SET amount = 11 WHERE id = 1");
    assert_eq!(client.run("TTL prices:1").int(), -1);
    assert_eq!(client.run("EXPIREAT prices:1 1").int(), 1);
    assert_eq!(client.run("HGET prices:1 amount").text(), "11");
    assert_eq!(client.run("EXPIRE prices:1 1000").int(), 1);
    assert!(client.run("TTL prices:1").int() > 900);
    assert_eq!(client.run("PERSIST prices:1").int(), 1);
    assert_eq!(client.run("TTL prices:1").int(), -1);
    assert_eq!(client.run("TTL prices:2").int(), -2);
    // A change that the origin lacks outlives its copy's deadline.
    client.run("DESTAGE PAUSE").ok();
    assert_eq!(client.run("HINCRBY prices:1 amount 5").int(), 16);
    assert_eq!(client.run("EXPIREAT prices:1 1").int(), 1);
    assert_eq!(client.run("HGET prices:1 amount").text(), "16");
    client.run("DESTAGE RESUME").ok();
    server.drain();
    assert_eq!(database.rows("SELECT amount FROM prices"), [["16"]]);
    assert_eq!(client.run("HGET prices:1 amount").text(), "16");
    server.terminate(PATIENCE);
}
