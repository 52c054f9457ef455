// ioredis, unmodified, with scripts as commands: it names them by their digests, and sends them as a whole where they are not known.
//
// Usage: node scripts.mjs PORT

import Redis from "ioredis";
import { check, checks, refused } from "./checks.mjs";

const [port] = process.argv.slice(2);
const redis = new Redis({ host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: 1 });

redis.defineCommand("release", {
  numberOfKeys: 1,
  lua: 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0',
});
redis.defineCommand("renew", {
  numberOfKeys: 1,
  lua: 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) end return 0',
});
redis.defineCommand("hit", {
  numberOfKeys: 1,
  lua: `
    local hits = redis.call("incr", KEYS[1])
    if hits == 1 then redis.call("pexpire", KEYS[1], ARGV[1]) end
    return { hits, redis.call("pttl", KEYS[1]) > 0 }
  `,
});

await redis.del("lock:n", "lock:limit");
await redis.script("FLUSH");
check("SET NX", await redis.set("lock:n", "me", "PX", 1e8, "NX"), "OK");
check("SET NX again", await redis.set("lock:n", "you", "PX", 1e8, "NX"), null);
check("release by another", await redis.release("lock:n", "you"), 0);
check("renew by another", await redis.renew("lock:n", "you", 2e8), 0);
check("renew", await redis.renew("lock:n", "me", 2e8), 1);
check("PTTL", (await redis.pttl("lock:n")) > 1e8, true);
check("release", await redis.release("lock:n", "me"), 1);
check("EXISTS", await redis.exists("lock:n"), 0);
for (const hits of [1, 2, 3]) {
  check("hit", await redis.hit("lock:limit", 1e8), [hits, 1]);
}
check("in a pipeline", await redis.pipeline().hit("lock:limit", 1e8).get("lock:limit").exec(), [
  [null, [4, 1]],
  [null, "4"],
]);
check("in a transaction", await redis.multi().set("lock:n", "me").release("lock:n", "me").exec(), [
  [null, "OK"],
  [null, 1],
]);
await redis.hset("lock:n", "a", "b");
await refused("release of a hash", () => redis.release("lock:n", "me"), "wrongtype");
await redis.del("lock:n");
await redis.quit();
console.log(`${checks()} checks`);
