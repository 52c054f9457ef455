//! Keys of the user's own making: they behave as in Redis itself, whatever the cache, the destager and crashes do meanwhile.

mod parked_sets;
mod plain;
mod scans;
mod scripts;
mod set_domains;
mod sets;
mod strings;

use crate::harness::{Client, Database, Launch, Random, Reply, Scratch, Server};

/// The tables of [`every_mapping`].
pub(crate) fn every_table() -> String {
    format!("{}{}", sets::TABLES, strings::TABLES)
}

/// Mappings to sets, sorted sets and strings.
pub(crate) fn every_mapping() -> String {
    format!("{}{}", sets::mappings(false), strings::MAPPINGS)
}

/// A server whose settings file holds these mappings.
pub(crate) fn launch(scratch: &Scratch, database: &Database, data: &str, mappings: &str) -> Launch {
    let path = scratch.join(format!("{data}.toml"));
    std::fs::write(&path, mappings).expect("the settings can be written");
    let launch = Launch::before(scratch, &database.url());
    let path = path.to_str().expect("the path is text");
    // However slow the machine is while destaging is paused.
    launch.elsewhere(scratch, data).with(&["--config", path, "--staleness", "none"])
}

/// Seconds since the Unix epoch: later than what counts from now.
const FAR_FUTURE: i64 = 4_000_000_000;

/// Seed and steps before the database of that number: most of them before the first one, which is the fastest.
pub(crate) fn rounds(database: usize) -> (u64, u64) {
    (database as u64, if database == 0 { 900 } else { 150 })
}

/// Replies as they compare: of errors, the first word; sets without their order; of times that count from now, that there is
/// one.
fn comparable(commands: &[Vec<String>], reply: Reply) -> Reply {
    match (reply, commands.first().map(|words| words[0].as_str())) {
        (Reply::Error(message), _) => {
            Reply::Error(message.split(' ').next().unwrap_or_default().to_owned())
        }
        (Reply::Array(mut replies), Some("SMEMBERS")) => {
            replies.sort_by_key(Reply::text);
            Reply::Array(replies)
        }
        (Reply::Int(time), Some("TTL" | "EXPIRETIME")) if (0..FAR_FUTURE).contains(&time) => {
            Reply::Int(0)
        }
        (Reply::Int(ms), Some("PTTL" | "PEXPIRETIME")) if (0..FAR_FUTURE * 1_000).contains(&ms) => {
            Reply::Int(0)
        }
        (Reply::Array(replies), Some("MULTI")) => {
            let inner = replies.into_iter().zip(commands[1..].chunks(1));
            Reply::Array(inner.map(|(reply, command)| comparable(command, reply)).collect())
        }
        (reply, _) => reply,
    }
}

/// Sends the same commands to both, and to the server what moves data about in between: rows are dropped from the cache,
/// destaged, kept from being destaged, and the server is killed and started again. Every reply must be the same.
pub(crate) fn behaves_as_redis(
    launch: &Launch,
    redis: &mut Client,
    (seed, steps): (u64, u64),
    keys: &[&str],
    mut command: impl FnMut(&mut Random) -> Vec<String>,
) -> Server {
    let mut random = Random::new(seed, 1);
    let mut server = launch.start();
    let mut client = server.client();
    let mut has_room = true;
    for step in 0..steps {
        match random.between(0, 150) {
            0 => {
                drop(client);
                server.kill();
                // Every other time without room for anything that is clean.
                has_room = !has_room;
                let room = if has_room { "1G" } else { "0" };
                server = launch.with(&["--cache-size", room]).start();
                client = server.client();
            }
            1..3 => drop(client.run("DESTAGE PAUSE")),
            3..6 => drop(client.run("DESTAGE RESUME")),
            6..8 => {
                client.run("DESTAGE RESUME");
                client.run("DESTAGE DRAIN");
            }
            8..23 => {
                let key = random.pick(keys);
                client.call(&["DESTAGE", "INVALIDATE", key]).int();
            }
            _ => {}
        }
        let commands: Vec<Vec<String>> = match random.between(0, 12) {
            0 => {
                let count = random.between(1, 5);
                let multi = vec![vec!["MULTI".to_owned()]];
                let inner = (0..count).map(|_| command(&mut random));
                multi.into_iter().chain(inner).chain([vec!["EXEC".to_owned()]]).collect()
            }
            _ => vec![command(&mut random)],
        };
        same_replies(redis, &mut client, &commands, keys, &format!("seed {seed}, step {step}"));
    }
    client.run("DESTAGE RESUME");
    server
}

/// Sends the same commands to both; every reply must be the same.
fn same_replies(
    redis: &mut Client,
    client: &mut Client,
    commands: &[Vec<String>],
    keys: &[&str],
    place: &str,
) {
    let expected: Vec<Reply> = commands.iter().map(|words| redis.call(words)).collect();
    let said: Vec<Reply> = commands.iter().map(|words| client.call(words)).collect();
    if is_aborted(&said, &expected) {
        // Destage undoes a transaction in which a command fails; Redis does what it can. Both go on from the same state.
        return undo(redis, client, keys);
    }
    let compared = |replies: &[Reply]| -> Vec<Reply> {
        replies.iter().cloned().map(|reply| comparable(commands, reply)).collect()
    };
    assert_eq!(
        compared(&said),
        compared(&expected),
        "{place}, {commands:?}: {said:?} instead of {expected:?}"
    );
}

/// Whether a command failed inside a transaction.
fn is_aborted(said: &[Reply], expected: &[Reply]) -> bool {
    let fails = |reply: &Reply| match reply {
        Reply::Array(replies) => replies.iter().any(Reply::is_error),
        _ => false,
    };
    let aborts = said.len() > 1 && said.last().is_some_and(Reply::is_error);
    assert_eq!(
        aborts,
        said.len() > 1 && expected.last().is_some_and(fails),
        "{said:?} {expected:?}"
    );
    aborts
}

/// Empties these keys on both sides.
fn undo(redis: &mut Client, client: &mut Client, keys: &[&str]) {
    for key in keys {
        redis.call(&["DEL", key]).int();
        client.call(&["DEL", key]).int();
    }
}
