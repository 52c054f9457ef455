// ioredis, unmodified: rows in its database 0, and what becomes of a client that asks for another one.
//
// Usage: node ioredis.mjs PORT [PASSWORD]

import Redis from "ioredis";
import { check, checks, refused } from "./checks.mjs";

const [port, password] = process.argv.slice(2);

function connected(db) {
  return new Redis({ host: "127.0.0.1", port: Number(port), password, db, maxRetriesPerRequest: 1 });
}

const zero = connected(0);
check("HGET", await zero.hget("customers:1", "name"), "Ada");
check("HINCRBY", await zero.hincrby("customers:1", "visits", 1), 4);

// It sends SELECT by itself, and tells nobody that it was refused.
const one = connected(1);
await refused("HGET", () => one.hget("customers:1", "name"), "database 1");
await refused("HINCRBY", () => one.hincrby("customers:1", "visits", 100), "database 1");
await refused("MULTI", () => one.multi().hincrby("customers:1", "visits", 100).exec(), "database 1");
check("SELECT 0", await one.select(0), "OK");
check("HINCRBY", await one.hincrby("customers:1", "visits", 1), 5);

await one.quit();
await zero.quit();
console.log(`${checks()} checks`);
