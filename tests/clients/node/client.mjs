// node-redis, unmodified, calls what its arguments name and checks each answer.
//
// Usage: node client.mjs PORT PROTOCOL rows|keys|differs [PASSWORD]
//
// rows: the hashes of the shop. keys: mapped sets, sorted sets and strings, and plain keys, which answer as Redis itself
// does. differs: what rows do that keys of Redis do not.

import { createClient } from "redis";
import { check, checks, refused } from "./checks.mjs";
import { answers, differs } from "./keys.mjs";

const [port, protocol, section, password] = process.argv.slice(2);
const sections = {
  rows: async (r) => {
    await fields(r);
    await groups(r);
    await errors(r);
  },
  keys: answers,
  differs,
};

async function fields(r) {
  check("PING", await r.ping(), "PONG");
  check("ECHO", await r.echo("hello"), "hello");
  check("INFO", (await r.info()).includes("redis_version"), true);
  check("HSET", await r.hSet("customers:10", { name: "Linus", email: "l@x.org" }), 2);
  check("EXISTS", await r.exists("customers:10"), 1);
  check("TYPE", await r.type("customers:10"), "hash");
  check("HGET", await r.hGet("customers:10", "name"), "Linus");
  check("HMGET", await r.hmGet("customers:10", ["email", "note", "visits"]), ["l@x.org", null, "0"]);
  check("HSET of a NULL", await r.hSet("customers:10", "note", ""), 1);
  check("HDEL", await r.hDel("customers:10", ["note", "email"]), 2);
  check("HEXISTS", await r.hExists("customers:10", "email"), 0);
  check("HSETNX", await r.hSetNX("customers:10", "email", "new@x.org"), 1);
  check("HINCRBY", await r.hIncrBy("customers:10", "visits", 3), 3);
  await r.hSet("customers:10", "balance", "12.5");
  check("HINCRBYFLOAT", Number(await r.hIncrByFloat("customers:10", "balance", 0.25)), 12.75);
  const row = { id: "10", name: "Linus", email: "new@x.org", visits: "3", balance: "12.75" };
  const got = await r.hGetAll("customers:10");
  check("HGETALL", Object.entries(got).sort(), Object.entries(row).sort());
  check("HLEN", await r.hLen("customers:10"), 5);
  check("HKEYS", (await r.hKeys("customers:10")).sort(), Object.keys(row).sort());
  check("HVALS", (await r.hVals("customers:10")).sort(), Object.values(row).sort());
  await r.hSet("customers:11", "name", "Ken");
  check("DEL", await r.del("customers:11"), 1);
  check("UNLINK", await r.unlink("customers:11"), 0);
}

async function groups(r) {
  const found = new Set();
  for await (const keys of r.scanIterator({ MATCH: "customers:*", COUNT: 2 })) {
    for (const key of [keys].flat()) found.add(key);
  }
  check("SCAN", ["customers:1", "customers:2", "customers:10"].every((key) => found.has(key)), true);
  const replies = await r
    .multi()
    .hSet("orders:50", { customer_id: "10", status: "new" })
    .hSet("order_lines:50:1", "quantity", "3")
    .hIncrBy("products:1", "stock", -3)
    .exec();
  check("MULTI EXEC", replies, [2, 1, 7]);
  // Commands issued in one turn of the loop travel as one pipeline.
  const numbers = [...Array(50).keys()];
  const written = numbers.map((n) => r.hSet(`customers:${100 + n}`, "name", `customer ${n}`));
  check("pipelined HSET", await Promise.all(written), numbers.map(() => 1));
  const read = numbers.map((n) => r.hGet(`customers:${100 + n}`, "name"));
  check("pipelined HGET", await Promise.all(read), numbers.map((n) => `customer ${n}`));
  check("WAITAOF", (await r.sendCommand(["WAITAOF", "1", "0", "1000"]))[0], 1);
  check("NEXTID", Number(await r.sendCommand(["DESTAGE", "NEXTID", "orders"])) > 1, true);
  await r.sendCommand(["DESTAGE", "WAIT", "10000"]);
}

async function errors(r) {
  await refused("unsupported command", () => r.lPush("customers:10", "x"), "lpush");
  await refused("unknown table", () => r.hSet("nosuch:1", "name", "x"), "nosuch");
  await refused("unknown column", () => r.hSet("customers:10", "nosuch", "x"), "nosuch");
  const many = { name: "half", visits: "many" };
  await refused("unfitting value", () => r.hSet("customers:10", many), "visits");
  check("nothing half done", await r.hGet("customers:10", "name"), "Linus");
  const transaction = r.multi().hSet("customers:10", "name", "half").hSet("customers:10", many);
  await refused("EXEC with an error", () => transaction.exec(), "visits");
  check("nothing half executed", await r.hGet("customers:10", "name"), "Linus");
}

const client = createClient({
  socket: { host: "127.0.0.1", port: Number(port), reconnectStrategy: false },
  RESP: Number(protocol),
  ...(password ? { password } : {}),
});
client.on("error", (error) => {
  console.error(error);
  process.exitCode = 1;
});
await client.connect();
await sections[section](client, Number(protocol));
await client.close();
console.log(`node-redis protocol ${protocol}: ${checks()} checks`);
