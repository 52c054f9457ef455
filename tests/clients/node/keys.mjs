// Mapped sets, sorted sets and strings, and plain keys: what node-redis makes of the answers. Each protocol has keys of its
// own, so that both can be tried on one server.

import { RESP_TYPES } from "redis";
import { check, refused } from "./checks.mjs";

export async function answers(r, protocol) {
  await sets(r, protocol, `tags:${protocol}`, `red${protocol}`);
  await scores(r, `rank:${protocol}`);
  await ranges(r, `rank:${protocol}`);
  await members(r, `rank:${protocol}l`);
  await shapes(r, protocol, `rank:${protocol}`);
  const all = { score: 7, value: `m${protocol}` };
  check("ZADD to all", await r.zAdd("_indices", all), 1);
  check("ZINCRBY in all", await r.zIncrBy("_indices", 3, all.value), 10);
  check("ZSCORE in all", await r.zScore("_indices", all.value), 10);
  await texts(r, `note:p${protocol}`, `note:q${protocol}`);
  await numbers(r, `counter:${protocol}`);
  await plain(r, `session:${protocol}`, `hits:${protocol}`);
}

async function sets(r, protocol, key, red) {
  check("SADD", await r.sAdd(key, [red, "blue", "green", "blue"]), 3);
  check("SADD again", await r.sAdd(key, ["blue", "white"]), 1);
  check("SREM", await r.sRem(key, ["green", "black"]), 1);
  check("SMEMBERS", (await r.sMembers(key)).sort(), ["blue", red, "white"]);
  check("SMEMBERS of nothing", await r.sMembers("tags:999"), []);
  if (protocol === 3) {
    const typed = await r.withTypeMapping({ [RESP_TYPES.SET]: Set }).sMembers(key);
    check("SMEMBERS is a set", typed instanceof Set && typed.has(red) && typed.size === 3, true);
  }
  check("SISMEMBER", await r.sIsMember(key, "blue"), 1);
  check("SISMEMBER not", await r.sIsMember(key, "green"), 0);
  check("SMISMEMBER", await r.smIsMember(key, ["green", "blue", red]), [0, 1, 1]);
  check("SCARD", await r.sCard(key), 3);
  check("SCARD of nothing", await r.sCard("tags:999"), 0);
  check("TYPE", await r.type(key), "set");
  const replies = await r.multi().sAdd(key, "grey").smIsMember(key, ["grey"]).sRem(key, "grey").exec();
  check("MULTI EXEC", replies, [1, [1], 1]);
}

const z = (value, score) => ({ value, score });

async function scores(r, key) {
  check("ZADD", await r.zAdd(key, [z("ann", 1), z("bob", 2.5), z("cid", -3)]), 3);
  check("ZADD again", await r.zAdd(key, [z("ann", 1), z("dan", 7)]), 1);
  const add = (options, ...members) => r.zAdd(key, members, options);
  check("ZADD NX", await add({ condition: "NX" }, z("ann", 50), z("eve", 4)), 1);
  check("ZADD XX", await add({ condition: "XX" }, z("ann", 10), z("fay", 4)), 0);
  check("ZADD XX CH", await add({ condition: "XX", CH: true }, z("ann", 11), z("bob", 2.5)), 1);
  check("ZADD GT", await add({ comparison: "GT", CH: true }, z("ann", 5), z("bob", 3.25)), 1);
  check("ZADD LT", await add({ comparison: "LT", CH: true }, z("ann", 12), z("cid", -4)), 1);
  check("ZADD INCR", await r.zAddIncr(key, z("ann", 0.5)), 11.5);
  check("ZADD XX INCR", await r.zAddIncr(key, z("nobody", 1), { condition: "XX" }), null);
  check("ZADD NX INCR", await r.zAddIncr(key, z("ann", 1), { condition: "NX" }), null);
  check("ZSCORE", await r.zScore(key, "bob"), 3.25);
  check("ZSCORE of nobody", await r.zScore(key, "nobody"), null);
  check("ZMSCORE", await r.zmScore(key, ["cid", "nobody"]), [-4, null]);
  check("ZINCRBY", await r.zIncrBy(key, 1.75, "bob"), 5);
  check("ZINCRBY of a new member", await r.zIncrBy(key, -2, "gus"), -2);
  check("ZREM", await r.zRem(key, ["gus", "nobody"]), 1);
  check("ZCARD", await r.zCard(key), 5);
  check("ZCARD of nothing", await r.zCard("rank:none"), 0);
  check("ZCOUNT", await r.zCount(key, 4, 7), 3);
  check("ZCOUNT without its ends", await r.zCount(key, "(4", "(7"), 1);
  check("ZRANK", await r.zRank(key, "eve"), 1);
  check("ZREVRANK", await r.zRevRank(key, "eve"), 3);
  check("ZRANK of nobody", await r.zRank(key, "nobody"), null);
  check("TYPE", await r.type(key), "zset");
}

/** By place and by score, from both ends, with and without scores. */
async function ranges(r, key) {
  const all = [z("cid", -4), z("eve", 4), z("bob", 5), z("dan", 7), z("ann", 11.5)];
  const names = all.map(({ value }) => value);
  check("ZRANGE", await r.zRange(key, 0, -1), names);
  check("ZRANGE from the end", await r.zRange(key, -2, -1), names.slice(-2));
  check("ZRANGE of nothing", await r.zRange(key, 7, 9), []);
  check("ZRANGE REV", await r.zRange(key, 0, 1, { REV: true }), ["ann", "dan"]);
  check("ZRANGE WITHSCORES", await r.zRangeWithScores(key, 0, -1), all);
  check("ZRANGE REV WITHSCORES", await r.zRangeWithScores(key, 0, 0, { REV: true }), all.slice(4));
  check("ZRANGE BYSCORE", await r.zRange(key, 4, 7, { BY: "SCORE" }), names.slice(1, 4));
  const down = { BY: "SCORE", REV: true, LIMIT: { offset: 1, count: 2 } };
  check("ZRANGE BYSCORE REV LIMIT", await r.zRange(key, "+inf", "-inf", down), ["dan", "bob"]);
  const up = { BY: "SCORE", LIMIT: { offset: 0, count: 2 } };
  const limited = await r.zRangeWithScores(key, "(4", "inf", up);
  check("ZRANGE BYSCORE LIMIT WITHSCORES", limited, all.slice(2, 4));
  check("ZRANGEBYSCORE", await r.zRangeByScore(key, "-inf", "(5"), ["cid", "eve"]);
  const part = { LIMIT: { offset: 1, count: 2 } };
  check("ZRANGEBYSCORE LIMIT", await r.zRangeByScore(key, 4, 12, part), ["bob", "dan"]);
  check("ZRANGEBYSCORE WITHSCORES", await r.zRangeByScoreWithScores(key, 5, 7), all.slice(2, 4));
  const transaction = r.multi().zIncrBy(key, 0.5, "dan").zRangeWithScores(key, -2, -2);
  const replies = await transaction.zAdd(key, z("dan", 7)).exec();
  check("MULTI EXEC", replies, [7.5, [z("dan", 7.5)], 0]);
}

/** Members of one score, in ranges by themselves. */
async function members(r, key) {
  check("ZADD", await r.zAdd(key, [..."abcde"].map((member) => z(member, 0))), 5);
  check("ZRANGE BYLEX", await r.zRange(key, "[b", "(d", { BY: "LEX" }), ["b", "c"]);
  const down = { BY: "LEX", REV: true, LIMIT: { offset: 1, count: 2 } };
  check("ZRANGE BYLEX REV LIMIT", await r.zRange(key, "+", "-", down), ["d", "c"]);
  const limit = { LIMIT: { offset: 1, count: 1 } };
  check("ZRANGEBYLEX LIMIT", await r.zRangeByLex(key, "-", "(c", limit), ["b"]);
  check("ZLEXCOUNT", await r.zLexCount(key, "(a", "+"), 4);
  check("DEL", await r.del(key), 1);
}

/** The answers before the client makes anything of them: RESP3 has numbers and pairs of its own. */
async function shapes(r, protocol, key) {
  const shape = async (second, third, ...command) =>
    check(`the shape of ${command[0]}`, await r.sendCommand(command), protocol === 3 ? third : second);
  await shape("11.5", 11.5, "ZSCORE", key, "ann");
  await shape("5", 5, "ZADD", key, "INCR", "0", "bob");
  await shape(["-4", null], [-4, null], "ZMSCORE", key, "cid", "nobody");
  await shape(["cid", "-4"], [["cid", -4]], "ZRANGE", key, "0", "0", "WITHSCORES");
  await shape(["ann", "11.5"], [["ann", 11.5]], "ZREVRANGE", key, "0", "0", "WITHSCORES");
  const last = ["ZREVRANGEBYSCORE", key, "+inf", "8", "WITHSCORES"];
  await shape(["ann", "11.5"], [["ann", 11.5]], ...last);
}

async function texts(r, key, other) {
  check("GET of nothing", await r.get(key), null);
  check("SET XX of nothing", await r.set(key, "no", { condition: "XX" }), null);
  check("SET NX", await r.set(key, "one", { condition: "NX" }), "OK");
  check("SET NX again", await r.set(key, "two", { condition: "NX" }), null);
  check("SET XX", await r.set(key, "two", { condition: "XX" }), "OK");
  check("SET GET", await r.set(key, "three", { GET: true }), "two");
  check("GET", await r.get(key), "three");
  check("APPEND", await r.append(key, " and é"), 12);
  check("STRLEN", await r.strLen(key), 12);
  check("STRLEN of nothing", await r.strLen(other), 0);
  check("GETRANGE", await r.getRange(key, 0, 4), "three");
  check("MSET", await r.mSet({ [key]: "left", [other]: "" }), "OK");
  check("MGET", await r.mGet([key, "note:none", other]), ["left", null, ""]);
  check("SETNX", await r.setNX(key, "x"), 0);
  check("MSETNX", await r.mSetNX({ "note:none": "x", [other]: "x" }), 0);
  check("GETSET", await r.getSet(other, "1.5"), "");
  check("INCRBYFLOAT", await r.incrByFloat(other, 0.25), "1.75");
  check("GETDEL", await r.getDel(other), "1.75");
  check("EXISTS", await r.exists([key, other]), 1);
  check("TYPE", await r.type(key), "string");
  check("SET", await r.set(other, "right"), "OK");
}

async function numbers(r, key) {
  check("INCR of nothing", await r.incr(key), 1);
  check("INCRBY", await r.incrBy(key, 41), 42);
  check("DECR", await r.decr(key), 41);
  check("DECRBY", await r.decrBy(key, 50), -9);
  check("GET", await r.get(key), "-9");
  check("STRLEN", await r.strLen(key), 2);
  check("TTL of what does not expire", await r.ttl(key), -1);
  check("TTL of nothing", await r.ttl("counter:999"), -2);
  const least = ["INCRBY", key, "-9223372036854775808"];
  await refused("INCRBY beyond its range", () => r.sendCommand(least));
  check("nothing done", await r.incr(key), -8);
}

async function plain(r, key, hits) {
  const ex = (value) => ({ expiration: { type: "EX", value } });
  check("SET EX", await r.set(key, "x", ex(1000)), "OK");
  const left = await r.ttl(key);
  check("TTL", left > 900 && left <= 1000, true);
  check("PERSIST", await r.persist(key), 1);
  check("PERSIST again", await r.persist(key), 0);
  check("TTL of what does not expire", await r.ttl(key), -1);
  check("EXPIRE", await r.expire(key, 100), 1);
  check("EXPIRE NX", await r.expire(key, 200, "NX"), 0);
  check("EXPIRE GT", await r.expire(key, 200, "GT"), 1);
  check("EXPIREAT", await r.expireAt(key, 4_000_000_000), 1);
  check("EXPIRETIME", await r.expireTime(key), 4_000_000_000);
  check("SET KEEPTTL", await r.set(key, "y", { expiration: "KEEPTTL" }), "OK");
  check("GETEX PERSIST", await r.getEx(key, { type: "PERSIST" }), "y");
  check("EXPIRE of nothing", await r.expire("session:none", 10), 0);
  check("TTL of nothing", await r.ttl("session:none"), -2);
  check("SETEX", await r.setEx(hits, 1000, "5"), "OK");
  check("INCR", await r.incr(hits), 6);
  check("DECRBY", await r.decrBy(hits, 2), 4);
  check("INCRBYFLOAT", await r.incrByFloat(hits, 0.5), "4.5");
  check("APPEND", await r.append(hits, "0"), 4);
  check("STRLEN", await r.strLen(hits), 4);
  check("MGET", await r.mGet([hits, key]), ["4.50", "y"]);
  check("MSET", await r.mSet({ [hits]: "1", [key]: "z" }), "OK");
  check("SET NX EX", await r.set(key, "w", { condition: "NX", ...ex(10) }), null);
  check("HSET", await r.hSet(`${key}:h`, { a: "1", b: "2" }), 2);
  check("HGETALL", await r.hGetAll(`${key}:h`), { a: "1", b: "2" });
  check("EXPIRE at once", await r.expire(hits, -1), 1);
  check("GET of what has expired", await r.get(hits), null);
  check("DEL", await r.del([key, `${key}:h`]), 2);
}

/** Where a row's key is not what it is in Redis. */
export async function differs(r, protocol) {
  const members = await r.sMembers(`tagged:red${protocol}`);
  check("the same rows under another key", members, [`${protocol}`]);
  check("a row as a hash", await r.hGet(`ranks:${protocol}:ann`, "points"), "11.5");
  const note = `note:p${protocol}`;
  await refused("EXPIRE of a row", () => r.expire(note, 60), "rows do not expire");
  await refused("SET EX of a row", () => r.setEx(note, 60, "x"), "rows do not expire");
  await refused("GET of a set", () => r.get(`tags:${protocol}`), "wrongtype");
  await refused("SADD to a sorted set", () => r.sAdd(`rank:${protocol}`, "x"), "wrongtype");
  await refused("text in a number", () => r.set(`counter:${protocol}`, "many"), "counters.n");
}
