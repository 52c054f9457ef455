// Rows of Destage in a web server.
//
//   destage serve
//   npm install && node app.mjs 8000

import { createServer } from "node:http";
import { randomUUID } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import { createClient, ErrorReply } from "redis";

const ATTEMPTS = 5;

const client = createClient({
  url: `redis://127.0.0.1:${process.env.DESTAGE_PORT ?? 6380}`,
  password: process.env.DESTAGE_PASSWORD,
  socket: {
    connectTimeout: 2000,
    // The server answers within --client-wait (4 s): wait for longer.
    socketTimeout: 6000,
    reconnectStrategy: (attempts) => Math.min(50 * 2 ** attempts, 2000),
  },
  // This client (5.9) takes a connection for good that broke while it told its name: requests then wait for ever.
  disableClientInfo: true,
  // So that a connection on which nothing is asked does not run into the time-out above.
  pingInterval: 2000,
  // While the server is away, requests fail at once instead of gathering in memory.
  disableOfflineQueue: true,
});
client.on("error", (error) => console.error(error.message));
await client.connect();

// Carries a command out once for its token, however often it has to be sent.
async function once(token, ...command) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await client.sendCommand(["DESTAGE", "ONCE", token, ...command]);
    } catch (error) {
      const isRefused = error instanceof ErrorReply && !/^(UNAVAILABLE|PENDING)/.test(error.message);
      if (isRefused || attempt === ATTEMPTS) throw error;
      await pause(100 * 2 ** attempt);
    }
  }
}

async function answer(request) {
  const [, what, customer] = request.url.split("/");
  const key = `customers:${Number(customer)}`;
  if (request.method === "POST" && what === "visits") {
    // The same for each time that a proxy or the browser sends this request.
    const token = request.headers["idempotency-key"] ?? randomUUID();
    return [200, { points: Number(await once(`visit:${token}`, "HINCRBY", key, "points", "1")) }];
  }
  if (request.method === "GET" && what === "customers") {
    const row = await client.hGetAll(key);
    return Object.keys(row).length ? [200, { row }] : [404, { error: "there is no such customer" }];
  }
  return [404, { error: "there is no such page" }];
}

const server = createServer(async (request, response) => {
  const [status, body] = await answer(request).catch((error) => [503, { error: error.message }]);
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
});
server.listen(Number(process.argv[2] ?? 8000), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
