// The shop with Node and node-redis.
//
//   npm install && REDIS_URL=redis://127.0.0.1:6380 node app.mjs 8000

import { createServer } from "node:http";
import { setTimeout as pause } from "node:timers/promises";
import { createClientPool, ErrorReply } from "redis";

const ATTEMPTS = 80;

class Refused extends Error {}

const pool = createClientPool(
  {
    url: process.env.REDIS_URL ?? "redis://127.0.0.1:6380",
    socket: { socketTimeout: 70000, reconnectStrategy: (attempts) => Math.min(50 * 2 ** attempts, 1000) },
    // This client (5.9) takes a connection for good that broke while it told its name: requests then wait for ever.
    disableClientInfo: true,
    // So that a connection on which nothing is asked does not run into the time-out above.
    pingInterval: 20000,
  },
  { minimum: 1, maximum: 20, acquireTimeout: 70000 },
);
pool.on("error", (error) => console.error(error.message));
await pool.connect();

// Begins anew if another transaction was first, or if the connection is lost. All that writes here looks first whether it was
// done.
async function anew(work) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await pool.execute(work);
    } catch (error) {
      if (error instanceof ErrorReply || error instanceof Refused || attempt === ATTEMPTS) throw error;
      await pause(Math.min(20 * 2 ** attempt, 1000));
    }
  }
}

// A transaction: `work` reads, and gives back the commands and the answer; nothing to do: the answer alone.
const inOne = (watched, work) =>
  anew(async (client) => {
    try {
      await client.watch(watched);
      const { commands, answer } = await work(client);
      if (commands) await commands.exec();
      return answer;
    } finally {
      // A connection that was lost watches nothing.
      await client.unwatch().catch(() => {});
    }
  });

const named = (fields, values) => Object.fromEntries(fields.map((field, place) => [field, values[place]]));
const PRODUCT = ["name", "price", "stock", "attributes"];
const ORDER = ["customer_id", "status", "total"];
const PAYMENT = ["method", "amount", "details"];

const showProduct = (product) =>
  anew(async (client) => named(PRODUCT, await client.hmGet(`products:${product}`, PRODUCT)));

const openOrder = (order, { customer }) =>
  inOne(`orders:${order}`, async (client) => {
    const answer = { order };
    if (await client.exists(`orders:${order}`)) return { answer };
    if (!(await client.exists(`customers:${customer}`))) throw new Refused(`there is no customer ${customer}`);
    const values = { customer_id: String(customer), status: "open", total: "0.00" };
    return { commands: client.multi().hSet(`orders:${order}`, values), answer };
  });

const showOrder = (order) =>
  anew(async (client) => ({
    ...named(ORDER, await client.hmGet(`orders:${order}`, ORDER)),
    payment: named(PAYMENT, await client.hmGet(`payments:${order}`, PAYMENT)),
    lines: (await client.zRangeWithScores(`cart:${order}`, 0, -1)).map(({ value, score }) => [value, score]),
  }));

const showLine = (order, product) =>
  anew(async (client) => ({ quantity: (await client.zScore(`cart:${order}`, product)) ?? 0 }));

const putLine = (order, product, { quantity }) =>
  inOne(`orders:${order}`, async (client) => {
    if ((await client.hGet(`orders:${order}`, "status")) !== "open") throw new Refused("the order is not open");
    const line = { score: quantity, value: product };
    return { commands: client.multi().zAdd(`cart:${order}`, line), answer: { quantity } };
  });

// Takes the goods from the stock once, however often it is asked to.
const place = (order) =>
  inOne([`orders:${order}`, `cart:${order}`], async (client) => {
    const [status, known, customer] = await client.hmGet(`orders:${order}`, ["status", "total", "customer_id"]);
    if (status === "placed") return { answer: { total: known } };
    const lines = await client.zRangeWithScores(`cart:${order}`, 0, -1);
    if (!lines.length) throw new Refused("the cart is empty");
    await client.watch(lines.map(({ value }) => `products:${value}`));
    const commands = client.multi();
    let cents = 0;
    for (const { value, score } of lines) {
      const [price, stock] = await client.hmGet(`products:${value}`, ["price", "stock"]);
      if (price === null || Number(stock) < score) throw new Refused(`there are not ${score} of product ${value}`);
      cents += Math.round(Number(price) * 100) * score;
      commands.hIncrBy(`products:${value}`, "stock", -score);
    }
    const total = (cents / 100).toFixed(2);
    commands.hSet(`orders:${order}`, { status: "placed", total });
    commands.hIncrBy(`customers:${customer}`, "points", lines.length);
    return { commands, answer: { total } };
  });

const pay = (order, { method, details }) =>
  inOne(`orders:${order}`, async (client) => {
    const [status, amount] = await client.hmGet(`orders:${order}`, ["status", "total"]);
    if (status !== "placed") throw new Refused("the order is not placed");
    const payment = { method, amount, details: JSON.stringify(details) };
    return { commands: client.multi().hSet(`payments:${order}`, payment), answer: { amount } };
  });

const announce = (delivery, { product, quantity }) =>
  inOne(`deliveries:${delivery}`, async (client) => {
    const answer = { delivery };
    if (await client.exists(`deliveries:${delivery}`)) return { answer };
    const values = { product_id: String(product), quantity: String(quantity), status: "announced" };
    return { commands: client.multi().hSet(`deliveries:${delivery}`, values), answer };
  });

// Adds the goods to the stock once, however often it is asked to.
const arrived = (delivery) =>
  inOne(`deliveries:${delivery}`, async (client) => {
    const answer = { status: "arrived" };
    const fields = ["product_id", "quantity", "status"];
    const [product, quantity, status] = await client.hmGet(`deliveries:${delivery}`, fields);
    if (status === "arrived") return { answer };
    if (status === null) throw new Refused("nobody has announced it");
    const commands = client.multi().hSet(`deliveries:${delivery}`, "status", "arrived");
    return { commands: commands.hIncrBy(`products:${product}`, "stock", Number(quantity)), answer };
  });

const UUID = "([0-9a-f-]{36})";
const PAGES = [
  ["GET", /^\/products\/(\d+)$/, showProduct],
  ["GET", new RegExp(`^/orders/${UUID}$`), showOrder],
  ["PUT", new RegExp(`^/orders/${UUID}$`), openOrder],
  ["GET", new RegExp(`^/orders/${UUID}/lines/(\\d+)$`), showLine],
  ["PUT", new RegExp(`^/orders/${UUID}/lines/(\\d+)$`), putLine],
  ["POST", new RegExp(`^/orders/${UUID}/placed$`), place],
  ["PUT", new RegExp(`^/orders/${UUID}/payment$`), pay],
  ["PUT", new RegExp(`^/deliveries/${UUID}$`), announce],
  ["POST", new RegExp(`^/deliveries/${UUID}/arrived$`), arrived],
];

async function answer(request) {
  const chunks = await request.toArray();
  const body = chunks.length ? JSON.parse(Buffer.concat(chunks)) : {};
  for (const [method, pattern, work] of PAGES) {
    const found = request.method === method && pattern.exec(request.url);
    if (found) return [200, await work(...found.slice(1), body)];
  }
  return [404, { error: "there is no such page" }];
}

const server = createServer(async (request, response) => {
  const failed = (error) => [error instanceof Refused ? 409 : 503, { error: error.message }];
  const [status, body] = await answer(request).catch(failed);
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(body));
});
server.listen(Number(process.argv[2] ?? 8000), "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
