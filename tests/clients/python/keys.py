"""Mapped sets, sorted sets and strings, and plain keys: what redis-py makes of the answers.

Each protocol has keys of its own, so that both can be tried on one server.
"""

from checks import check, refused


def answers(r, protocol):
    sets(r, f"tags:{protocol}", f"red{protocol}")
    scores(r, f"rank:{protocol}")
    ranges(r, f"rank:{protocol}")
    places(r, f"m{protocol}")
    texts(r, f"note:p{protocol}", f"note:q{protocol}")
    numbers(r, f"counter:{protocol}")
    plain(r, f"session:{protocol}", f"hits:{protocol}")


def sets(r, key, red):
    check("SADD", r.sadd(key, red, "blue", "green", "blue"), 3)
    check("SADD again", r.sadd(key, "blue", "white"), 1)
    check("SREM", r.srem(key, "green", "black"), 1)
    check("SMEMBERS", r.smembers(key), {red, "blue", "white"})
    check("SMEMBERS of nothing", r.smembers("tags:999"), set())
    check("SISMEMBER", r.sismember(key, "blue"), 1)
    check("SISMEMBER not", r.sismember(key, "green"), 0)
    check("SMISMEMBER", r.smismember(key, ["green", "blue", red]), [0, 1, 1])
    check("SCARD", r.scard(key), 3)
    check("SCARD of nothing", r.scard("tags:999"), 0)
    check("TYPE", r.type(key), "set")
    check("DEL", r.delete("tags:999"), 0)
    pipe = r.pipeline(transaction=True)
    pipe.sadd(key, "grey")
    pipe.smembers(key)
    pipe.srem(key, "grey")
    check("MULTI EXEC", pipe.execute(), [1, {red, "blue", "white", "grey"}, 1])


def scores(r, key):
    check("ZADD", r.zadd(key, {"ann": 1, "bob": 2.5, "cid": -3}), 3)
    check("ZADD again", r.zadd(key, {"ann": 1, "dan": 7}), 1)
    check("ZADD NX", r.zadd(key, {"ann": 50, "eve": 4}, nx=True), 1)
    check("ZADD XX", r.zadd(key, {"ann": 10, "fay": 4}, xx=True), 0)
    check("ZADD XX CH", r.zadd(key, {"ann": 11, "bob": 2.5}, xx=True, ch=True), 1)
    check("ZADD GT", r.zadd(key, {"ann": 5, "bob": 3.25}, gt=True, ch=True), 1)
    check("ZADD LT", r.zadd(key, {"ann": 12, "cid": -4}, lt=True, ch=True), 1)
    check("ZADD INCR", r.zadd(key, {"ann": 0.5}, incr=True), 11.5)
    check("ZADD XX INCR", r.zadd(key, {"nobody": 1}, xx=True, incr=True), None)
    check("ZADD NX INCR", r.zadd(key, {"ann": 1}, nx=True, incr=True), None)
    check("ZSCORE", r.zscore(key, "bob"), 3.25)
    check("ZSCORE of a whole number", r.zscore(key, "dan"), 7.0)
    check("ZSCORE of nobody", r.zscore(key, "nobody"), None)
    check("ZMSCORE", r.zmscore(key, ["cid", "nobody"]), [-4.0, None])
    check("ZINCRBY", r.zincrby(key, 1.75, "bob"), 5.0)
    check("ZINCRBY of a new member", r.zincrby(key, -2, "gus"), -2.0)
    check("ZREM", r.zrem(key, "gus", "nobody"), 1)
    check("ZCARD", r.zcard(key), 5)
    check("ZCARD of nothing", r.zcard("rank:none"), 0)
    check("ZCOUNT", r.zcount(key, 4, 7), 3)
    check("ZCOUNT without its ends", r.zcount(key, "(4", "(7"), 1)
    check("ZCOUNT of all", r.zcount(key, "-inf", "+inf"), 5)
    check("ZRANK", r.zrank(key, "eve"), 1)
    check("ZREVRANK", r.zrevrank(key, "eve"), 3)
    check("ZRANK of nobody", r.zrank(key, "nobody"), None)
    check("TYPE", r.type(key), "zset")


def ranges(r, key):
    """By place, score and member, from both ends, with and without scores."""
    scored = [["cid", -4.0], ["eve", 4.0], ["bob", 5.0], ["dan", 7.0], ["ann", 11.5]]
    names = [name for name, _ in scored]

    def check_pairs(what, got, wanted):
        # Tuples or lists, as the protocol has it.
        check(what, [list(pair) for pair in got], wanted)

    check("ZRANGE", r.zrange(key, 0, -1), names)
    check("ZRANGE in part", r.zrange(key, 1, 2), names[1:3])
    check("ZRANGE from the end", r.zrange(key, -2, -1), names[-2:])
    check("ZRANGE of nothing", r.zrange(key, 7, 9), [])
    check_pairs("ZRANGE WITHSCORES", r.zrange(key, 0, -1, withscores=True), scored)
    check("ZREVRANGE", r.zrevrange(key, 0, 1), ["ann", "dan"])
    check_pairs("ZREVRANGE WITHSCORES", r.zrevrange(key, 0, 0, withscores=True), [["ann", 11.5]])
    check("ZRANGE BYSCORE", r.zrange(key, 4, 7, byscore=True), ["eve", "bob", "dan"])
    check("ZRANGE BYSCORE REV LIMIT",
          r.zrange(key, "+inf", "-inf", desc=True, byscore=True, offset=1, num=2), ["dan", "bob"])
    check_pairs("ZRANGE BYSCORE LIMIT WITHSCORES",
                r.zrange(key, "(4", "inf", byscore=True, offset=0, num=2, withscores=True),
                scored[2:4])
    check("ZRANGEBYSCORE", r.zrangebyscore(key, "-inf", "(5"), ["cid", "eve"])
    check("ZRANGEBYSCORE LIMIT", r.zrangebyscore(key, 4, 12, start=1, num=2), ["bob", "dan"])
    check_pairs("ZRANGEBYSCORE WITHSCORES", r.zrangebyscore(key, 5, 7, withscores=True), scored[2:4])
    check("ZREVRANGEBYSCORE", r.zrevrangebyscore(key, 7, "(4", start=0, num=1), ["dan"])
    check_pairs("ZREVRANGEBYSCORE WITHSCORES",
                r.zrevrangebyscore(key, 5, 4, withscores=True), [["bob", 5.0], ["eve", 4.0]])
    lex = key + "l"
    r.zadd(lex, dict.fromkeys("abcde", 0))
    check("ZRANGE BYLEX", r.zrange(lex, "[b", "(d", bylex=True), ["b", "c"])
    check("ZRANGE BYLEX REV LIMIT",
          r.zrange(lex, "+", "-", desc=True, bylex=True, offset=1, num=2), ["d", "c"])
    check("ZRANGEBYLEX", r.zrangebylex(lex, "-", "[b"), ["a", "b"])
    check("ZREVRANGEBYLEX", r.zrevrangebylex(lex, "(c", "-", start=0, num=1), ["b"])
    check("ZLEXCOUNT", r.zlexcount(lex, "(a", "+"), 4)
    check("DEL", r.delete(lex), 1)
    pipe = r.pipeline(transaction=True)
    pipe.zincrby(key, 0.5, "dan")
    pipe.zrange(key, -1, -1)
    pipe.zscore(key, "dan")
    pipe.zadd(key, {"dan": 7})
    check("MULTI EXEC", pipe.execute(), [7.5, ["ann"], 7.5, 0])


def places(r, member):
    """Scores that are whole numbers at the origin, in the one set of all rows."""
    check("ZADD to all", r.zadd("_indices", {member: 7}), 1)
    check("ZINCRBY in all", r.zincrby("_indices", 3, member), 10.0)
    check("ZSCORE in all", r.zscore("_indices", member), 10.0)


def texts(r, key, other):
    check("GET of nothing", r.get(key), None)
    check("SET XX of nothing", r.set(key, "no", xx=True), None)
    check("SET NX", r.set(key, "one", nx=True), True)
    check("SET NX again", r.set(key, "two", nx=True), None)
    check("SET XX", r.set(key, "two", xx=True), True)
    check("SET GET", r.set(key, "three", get=True), "two")
    check("GET", r.get(key), "three")
    check("APPEND", r.append(key, " and é"), 12)
    check("STRLEN", r.strlen(key), 12)
    check("STRLEN of nothing", r.strlen(other), 0)
    check("GETRANGE", r.getrange(key, 0, 4), "three")
    check("MSET", r.mset({key: "left", other: ""}), True)
    check("MGET", r.mget(key, "note:none", other), ["left", None, ""])
    check("SETNX", r.setnx(key, "x"), False)
    check("MSETNX", r.msetnx({"note:none": "x", other: "x"}), False)
    check("GETSET", r.getset(other, "1.5"), "")
    check("INCRBYFLOAT", r.incrbyfloat(other, 0.25), 1.75)
    check("GETDEL", r.getdel(other), "1.75")
    check("EXISTS", r.exists(key, other), 1)
    check("TYPE", r.type(key), "string")
    check("SET", r.set(other, "right"), True)


def numbers(r, key):
    check("INCR of nothing", r.incr(key), 1)
    check("INCRBY", r.incrby(key, 41), 42)
    check("DECR", r.decr(key), 41)
    check("DECRBY", r.decrby(key, 50), -9)
    check("GET", r.get(key), "-9")
    check("STRLEN", r.strlen(key), 2)
    check("TTL of what does not expire", r.ttl(key), -1)
    check("TTL of nothing", r.ttl("counter:999"), -2)
    refused("INCR beyond its range", lambda: r.incrby(key, -(2**63)))
    check("nothing done", r.incr(key), -8)


def plain(r, key, hits):
    check("SET EX", r.set(key, "x", ex=1000), True)
    check("TTL", 900 < r.ttl(key) <= 1000, True)
    check("PTTL", 900_000 < r.pttl(key) <= 1_000_000, True)
    check("PERSIST", r.persist(key), True)
    check("PERSIST again", r.persist(key), False)
    check("TTL of what does not expire", r.ttl(key), -1)
    check("EXPIRE", r.expire(key, 100), True)
    check("EXPIRE NX", r.expire(key, 200, nx=True), False)
    check("EXPIRE GT", r.expire(key, 200, gt=True), True)
    check("EXPIREAT", r.expireat(key, 4_000_000_000), True)
    check("EXPIRETIME", r.expiretime(key), 4_000_000_000)
    check("SET KEEPTTL", r.set(key, "y", keepttl=True), True)
    check("GETEX PERSIST", r.getex(key, persist=True), "y")
    check("EXPIRE of nothing", r.expire("session:none", 10), False)
    check("TTL of nothing", r.ttl("session:none"), -2)
    check("SETEX", r.setex(hits, 1000, 5), True)
    check("INCR", r.incr(hits), 6)
    check("DECRBY", r.decrby(hits, 2), 4)
    check("INCRBYFLOAT", r.incrbyfloat(hits, 0.5), 4.5)
    check("APPEND", r.append(hits, "0"), 4)
    check("STRLEN", r.strlen(hits), 4)
    check("MGET", r.mget(hits, key), ["4.50", "y"])
    check("MSET", r.mset({hits: "1", key: "z"}), True)
    check("SET NX", r.set(key, "w", nx=True, ex=10), None)
    check("HSET", r.hset(key + ":h", mapping={"a": "1", "b": "2"}), 2)
    check("HGETALL", r.hgetall(key + ":h"), {"a": "1", "b": "2"})
    check("EXPIRE at once", r.expire(hits, -1), True)
    check("GET of what has expired", r.get(hits), None)
    check("DEL", r.delete(key, key + ":h"), 2)


def differs(r, protocol):
    """Where a row's key is not what it is in Redis, and where an error is to name the table's column."""
    check("the same rows under another key", r.smembers(f"tagged:red{protocol}"), {f"{protocol}"})
    check("a row as a hash", r.hget(f"ranks:{protocol}:ann", "points"), "11.5")
    refused("EXPIRE of a row", lambda: r.expire(f"note:p{protocol}", 10), "rows do not expire")
    refused("SET EX of a row", lambda: r.set(f"note:p{protocol}", "x", ex=10), "rows do not expire")
    refused("GET of a set", lambda: r.get(f"tags:{protocol}"), "WRONGTYPE", "SMEMBERS")
    refused("SADD to a sorted set", lambda: r.sadd(f"rank:{protocol}", "x"), "WRONGTYPE", "ZADD")
    refused("ZADD to a string", lambda: r.zadd(f"note:p{protocol}", {"x": 1}), "WRONGTYPE", "GET")
    refused("text in a number", lambda: r.set(f"counter:{protocol}", "many"), "counters.n")
    refused("a member of another type", lambda: r.sadd(f"tagged:red{protocol}", "x"), "product_id")
    refused("a fraction in a whole number", lambda: r.zadd("_indices", {"x": 1.5}), "place")
    refused("sets of plain keys", lambda: r.sadd(f"nothing:{protocol}", "x"), "WRONGTYPE")
