// What RedisInsight asks for when it shows a server, its keys, a row, slow commands, clients and the profiler; by ioredis,
// with which it is built.
//
// Usage: node insight.mjs PORT

import Redis from "ioredis";
import { check, checks } from "./checks.mjs";

const [port] = process.argv.slice(2);
const redis = new Redis({ host: "127.0.0.1", port: Number(port), connectionName: "redisinsight", maxRetriesPerRequest: 1 });

const number = (text) => check(`a number: ${text}`, /^\d+(\.\d+)?$/.test(text), true);

// The overview: INFO, section by section.
const info = {};
let section;
for (const line of (await redis.info()).split("\r\n")) {
  const [name, value] = line.split(":");
  if (line.startsWith("# ")) info[(section = line.slice(2).toLowerCase())] = {};
  else if (section && value !== undefined) info[section][name] = value;
}
number(info.server.redis_version.split(".")[0]);
number(info.server.uptime_in_seconds);
number(info.memory.used_memory);
number(info.clients.connected_clients);
check("role", info.replication.role, "master");
for (const name of ["keyspace_hits", "keyspace_misses"]) number(info.stats[name]);
check("databases", await redis.call("config", "get", "databases"), ["databases", "1"]);
check("DBSIZE", Number.isInteger(await redis.dbsize()), true);

// There are no modules: the list of modules is refused, so each module's commands are asked for.
const modules = await redis.call("module", "list").catch(() => redis.call("command", "info", "json.get", "ft.search"));
check("modules", modules, modules.map(() => null));

// The tree of keys: pages of SCAN of one type, each key with type, time to live and size.
const keys = [];
let cursor = "0";
do {
  const page = await redis.scan(cursor, "MATCH", "*", "COUNT", 500, "TYPE", "hash");
  cursor = page[0];
  keys.push(...page[1]);
} while (cursor !== "0");
check("customers are there", keys.includes("customers:1"), true);
check("no key comes twice", new Set(keys).size, keys.length);
await redis.hgetall("customers:1");
check("keys", (await redis.info("keyspace")).includes(`db0:keys=${await redis.dbsize()}`), true);
const details = redis.pipeline();
details.type("customers:1").ttl("customers:1").hlen("customers:1").call("memory", "usage", "customers:1", "samples", "0");
const [type, ttl, length, size] = (await details.exec()).map(([error, value]) => {
  if (error) throw error;
  return value;
});
check("TYPE", type, "hash");
check("TTL", ttl, -1);
check("MEMORY USAGE", size > 28, true);
check("OBJECT ENCODING", await redis.object("ENCODING", "customers:1"), "listpack");

// A row: its fields, a change and back.
const [end, fields] = await redis.hscan("customers:1", "0", "MATCH", "*", "COUNT", 500);
check("HSCAN", [end, fields.length / 2], ["0", length]);
const name = await redis.hget("customers:1", "name");
check("HSET", await redis.hset("customers:1", "name", "Grace"), 0);
check("HGET", await redis.hget("customers:1", "name"), "Grace");
check("HSET", await redis.hset("customers:1", "name", name), 0);

// Slow commands, their bounds, and clients.
check("SLOWLOG GET", Array.isArray(await redis.slowlog("GET", 50)), true);
const bounds = await redis.call("config", "get", "slowlog*");
check("bounds", bounds.length, 4);
check("CLIENT LIST", (await redis.client("LIST")).includes("name=redisinsight"), true);

// The profiler.
const monitor = await redis.monitor();
const seen = new Promise((done) => monitor.on("monitor", (time, words) => done(words)));
await redis.hget("customers:1", "points");
check("MONITOR", await seen, ["hget", "customers:1", "points"]);
monitor.disconnect();

await redis.quit();
console.log(`${checks()} checks`);
