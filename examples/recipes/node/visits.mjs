// A counter of visits.
import { randomUUID } from "node:crypto";
import { createClient } from "redis";

// The server answers within --client-wait (4 s): wait for longer.
const client = createClient({
  url: `redis://127.0.0.1:${process.argv[2] ?? 6380}`,
  socket: { connectTimeout: 2000, socketTimeout: 6000 },
});
client.on("error", (error) => console.error(error.message));
await client.connect();

const before = Number(await client.hGet("customers:1", "points"));
const token = randomUUID(); // one for each visit, the same for each time that it is sent
const now = await client.sendCommand(["DESTAGE", "ONCE", token, "HINCRBY", "customers:1", "points", "1"]);
if (Number(now) !== before + 1) throw new Error(`${now} after ${before}`);
console.log(await client.hGetAll("customers:1"));
client.destroy();
