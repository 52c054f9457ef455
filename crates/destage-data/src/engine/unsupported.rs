//! What to use instead of the commands that Redis has and Destage has not. One place for all of them, by what they are about.

/// Commands with what they cannot be given, and what there is in their place.
const FAMILIES: &[(&[&str], &str)] = &[
    (&["flushall", "flushdb"], "it would delete the origin's rows; use DEL on single rows"),
    (&["keys", "randomkey"], "use SCAN 0 MATCH table:*"),
    (&["wait"], "use WAITAOF for the journal, DESTAGE WAIT for the origin"),
    (
        &["save", "bgsave", "bgrewriteaof", "lastsave"],
        "every write is journaled; DESTAGE DRAIN brings it to the origin",
    ),
    (
        &["fcall", "fcall_ro", "function"],
        "there are no functions; EVAL takes scripts of locks and rate limits, MULTI ... EXEC other commands",
    ),
    // Hashes.
    (&["hrandfield"], "HGETALL, HKEYS and HVALS give a whole row"),
    (
        &[
            "hexpire",
            "hpexpire",
            "hexpireat",
            "hpexpireat",
            "httl",
            "hpttl",
            "hexpiretime",
            "hpexpiretime",
            "hpersist",
        ],
        "fields do not expire; EXPIRE has a whole key expire",
    ),
    (&["hgetdel"], "use HGET and HDEL between MULTI and EXEC"),
    (&["hgetex", "hsetex"], "fields do not expire; use HGET or HSET, and EXPIRE for the whole key"),
    // Strings.
    (
        &["setrange", "getbit", "setbit", "bitcount", "bitpos", "bitop", "bitfield", "bitfield_ro"],
        "use GET and SET with the whole value, or a column of numbers for each flag",
    ),
    (&["substr"], "use GETRANGE"),
    (&["lcs"], "use MGET and compare"),
    (&["digest"], "use GET and compare"),
    (&["msetex"], "use MSET and EXPIRE"),
    (
        &["pfadd", "pfcount", "pfmerge", "pfdebug", "pfselftest"],
        "SADD and SCARD of a [[set]] count exactly",
    ),
    // Sets and sorted sets.
    (
        &["sinter", "sintercard", "sinterstore", "sunion", "sunionstore", "sdiff", "sdiffstore"],
        "use SMEMBERS of each set, or a [[query]], whose SQL joins them",
    ),
    (&["spop", "srandmember"], "use SMEMBERS, and SREM"),
    (&["smove"], "use SREM and SADD between MULTI and EXEC"),
    (
        &["zpopmin", "zpopmax", "zmpop", "bzpopmin", "bzpopmax", "bzmpop"],
        "use ZRANGE key 0 0 (REV) and ZREM, with WATCH, MULTI and EXEC",
    ),
    (
        &[
            "zinter",
            "zintercard",
            "zinterstore",
            "zunion",
            "zunionstore",
            "zdiff",
            "zdiffstore",
            "zrangestore",
        ],
        "use ZRANGE of each set, or a [[query]], whose SQL joins them",
    ),
    (
        &["zremrangebyrank", "zremrangebyscore", "zremrangebylex"],
        "use ZRANGE (BYSCORE, BYLEX) and ZREM",
    ),
    (&["zrandmember"], "use ZRANGE key 0 -1, or BYSCORE with LIMIT"),
    (
        &[
            "geoadd",
            "geodist",
            "geohash",
            "geopos",
            "geosearch",
            "geosearchstore",
            "georadius",
            "georadius_ro",
            "georadiusbymember",
            "georadiusbymember_ro",
        ],
        "a [[query]] asks an origin that knows geometry",
    ),
    // What has no place in tables.
    (
        &[
            "lpush",
            "lpushx",
            "rpush",
            "rpushx",
            "lpop",
            "rpop",
            "lrange",
            "llen",
            "lindex",
            "lset",
            "linsert",
            "lrem",
            "ltrim",
            "lpos",
            "lmove",
            "lmpop",
            "rpoplpush",
            "brpoplpush",
            "blpop",
            "brpop",
            "blmove",
            "blmpop",
        ],
        "there are no lists; a [[zset]] keeps rows in order (ZADD, ZRANGE, ZREM)",
    ),
    (
        &[
            "xadd",
            "xrange",
            "xrevrange",
            "xlen",
            "xread",
            "xreadgroup",
            "xgroup",
            "xack",
            "xackdel",
            "xdel",
            "xdelex",
            "xtrim",
            "xpending",
            "xclaim",
            "xautoclaim",
            "xinfo",
            "xsetid",
            "xcfgset",
            "xidmprecord",
            "xnack",
        ],
        "there are no streams; DESTAGE NEXTID numbers new rows (HSET), SCAN or a [[query]] reads them",
    ),
    (
        &[
            "publish",
            "spublish",
            "psubscribe",
            "ssubscribe",
            "punsubscribe",
            "sunsubscribe",
            "pubsub",
        ],
        "nothing is passed on between clients; use a broker, or LISTEN and NOTIFY of PostgreSQL",
    ),
    // Keys.
    (&["copy", "dump", "restore", "restore-asking", "migrate"], "use HGETALL and HSET"),
    (
        &["rename", "renamenx"],
        "use HSET of the new key and DEL of the old one between MULTI and EXEC",
    ),
    (&["move", "swapdb"], "there is one database, 0: the origin's"),
    (&["sort", "sort_ro"], "a [[query]] sorts, and so does a [[zset]] (ZRANGE)"),
    (&["touch"], "use EXISTS"),
    (&["debug"], "use TYPE, TTL, INFO and DESTAGE STATUS"),
    // The server.
    (&["module"], "there are no modules; COMMAND LIST shows what is supported"),
    (
        &["commandlog", "hotkeys", "lolwut"],
        "use SLOWLOG, LATENCY, DESTAGE STATUS, INFO and the admin port's /metrics",
    ),
    (&["time"], "use the clock of the client, or a [[query]] with now()"),
    (&["shutdown"], "DESTAGE DRAIN, then stop the process (SIGTERM)"),
    (
        &["replicaof", "slaveof", "psync", "sync", "replconf", "failover"],
        "there are no replicas; the origin holds the data (DESTAGE STATUS says how far)",
    ),
    (
        &["cluster", "asking", "readonly", "readwrite", "trimslots", "sflush"],
        "there is no cluster; connect without cluster mode",
    ),
    (
        &[
            "vadd",
            "vcard",
            "vdim",
            "vemb",
            "vgetattr",
            "vinfo",
            "vismember",
            "vlinks",
            "vrandmember",
            "vrange",
            "vrem",
            "vsetattr",
            "vsim",
        ],
        "a [[query]] asks an origin that knows vectors",
    ),
];

/// Commands of modules, by what stands before the dot.
const MODULES: &[(&str, &str)] = &[
    ("json", "use HGET and HSET of a column that holds JSON"),
    ("ft", "a [[query]] asks the origin by SQL"),
    ("ts", "use HSET of rows with a time in their key, and a [[query]]"),
    ("bf", "EXISTS of a key asks the cache and the origin"),
    ("cf", "EXISTS of a key asks the cache and the origin"),
    ("cms", "use HINCRBY of a row for each item"),
    ("topk", "use ZINCRBY and ZRANGE of a [[zset]]"),
    ("tdigest", "a [[query]] computes percentiles"),
];

/// What to use instead of a command by that name, in lower case; `None` if nobody has such a command.
pub(super) fn instead_of(name: &str) -> Option<&'static str> {
    let family = FAMILIES.iter().find(|(names, _)| names.contains(&name));
    let of_module = || {
        let (module, _) = name.split_once('.')?;
        MODULES.iter().find(|(known, _)| *known == module).map(|(_, hint)| *hint)
    };
    family.map(|(_, hint)| *hint).or_else(of_module)
}

#[cfg(test)]
mod tests {
    use super::super::command::SPECS;
    use super::*;

    #[test]
    fn each_command_is_in_one_family_and_none_is_supported() {
        let mut names: Vec<&str> = FAMILIES.iter().flat_map(|(names, _)| *names).copied().collect();
        assert!(names.iter().all(|name| !SPECS.iter().any(|spec| spec.name == *name)));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn what_is_named_instead_exists() {
        let words = |hint: &'static str| {
            hint.split(|c: char| !c.is_ascii_alphanumeric())
                .filter(|word| word.len() > 2 && word.chars().all(|c| c.is_ascii_uppercase()))
        };
        /// Words behind a command, of SQL and of the world.
        const OTHERS: [&str; 15] = [
            "MATCH", "REV", "BYSCORE", "BYLEX", "LIMIT", "LIST", "STATUS", "DRAIN", "NEXTID",
            "SQL", "JSON", "LISTEN", "NOTIFY", "SIGTERM", "WAIT",
        ];
        let hints = FAMILIES.iter().chain(&[]).map(|(_, hint)| *hint);
        for hint in hints.chain(MODULES.iter().map(|(_, hint)| *hint)) {
            for word in words(hint).filter(|word| !OTHERS.contains(word)) {
                let name = word.to_ascii_lowercase();
                assert!(SPECS.iter().any(|spec| spec.name == name), "{word}: {hint}");
            }
        }
    }
}
