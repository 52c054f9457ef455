// ioredis, unmodified, as a client that finds the owner of a log by look-ups of Sentinel's protocol: it adds to one row after
// the other, and says of each what it was told.
//
// Usage: node sentinel.mjs HOST:PORT,HOST:PORT FIRST-ROW SECONDS FILE
//
// It ends once there is such a file, or after so many seconds.

import { existsSync } from "node:fs";
import Redis from "ioredis";

const [places, first, seconds, end] = process.argv.slice(2);
const sentinels = places.split(",").map((place) => {
  const colon = place.lastIndexOf(":");
  return { host: place.slice(0, colon), port: Number(place.slice(colon + 1)) };
});
const owner = new Redis({
  sentinels,
  name: "destage",
  sentinelRetryStrategy: () => 50,
  retryStrategy: () => 50,
  reconnectOnError: (error) => error.message.startsWith("READONLY"),
  commandTimeout: 2000,
  // What may have been done is not sent again: the test counts.
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
});
owner.on("error", () => {});

const until = Date.now() + Number(seconds) * 1000;
for (let row = Number(first); Date.now() < until && !existsSync(end); row++) {
  try {
    const answer = await owner.hincrby(`t:${row}`, "n", 1);
    console.log(answer === 1 ? "told" : `wrong:${answer}`, row);
  } catch {
    console.log("unknown", row);
    await new Promise((done) => setTimeout(done, 20));
  }
}
owner.disconnect();
