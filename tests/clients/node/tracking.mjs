// node-redis with its cache in the client, unmodified: what others change is read anew.
//
// Usage: node tracking.mjs PORT
//
// It finds a row customers:1.

import { createClient } from "redis";
import { BasicClientSideCache } from "@redis/client/dist/lib/client/cache.js";
import { check, checks } from "./checks.mjs";

const [port] = process.argv.slice(2);
const cache = new BasicClientSideCache({ ttl: 0, maxEntries: 0, evictPolicy: "LRU" });
const socket = { host: "127.0.0.1", port: Number(port), reconnectStrategy: false };
const reader = createClient({ socket, RESP: 3, clientSideCache: cache });
const writer = createClient({ socket, RESP: 2 });
for (const client of [reader, writer]) {
  client.on("error", (error) => {
    console.error(error);
    process.exitCode = 1;
  });
  await client.connect();
}

const until = Date.now() + 60_000;
for (let round = 0; round < 20; round++) {
  const name = `name ${round}`;
  await writer.hSet("customers:1", "name", name);
  // Once it was told, what it reads is new, and nothing else follows.
  while ((await reader.hGet("customers:1", "name")) !== name && Date.now() < until) {
    await new Promise((done) => setTimeout(done, 1));
  }
  for (let again = 0; again < 5; again++) check("HGET", await reader.hGet("customers:1", "name"), name);
}
const stats = cache.stats();
check("it reads from its cache", stats.hitCount >= 80, true);
check("and not for ever", stats.missCount >= 20, true);
await reader.close();
await writer.close();
console.log(`node-redis with a cache: ${checks()} checks`);
