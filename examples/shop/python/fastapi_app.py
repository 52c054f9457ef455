"""The shop with FastAPI and redis-py's asyncio client.

    REDIS_URL=redis://127.0.0.1:6380 uvicorn fastapi_app:app --port 8000
"""

import json
from contextlib import asynccontextmanager
from uuid import UUID

import redis.asyncio
from fastapi import Body, FastAPI, Request
from fastapi.responses import JSONResponse
from redis.asyncio.retry import Retry

import shop

client = redis.asyncio.from_url(shop.URL, retry=Retry(shop.BACKOFF, shop.RETRIES), **shop.OPTIONS)


@asynccontextmanager
async def lifespan(app: FastAPI):
    yield
    await client.aclose()


app = FastAPI(lifespan=lifespan)


@app.exception_handler(shop.Refused)
async def refused(request: Request, error: shop.Refused):
    return JSONResponse({"error": str(error)}, 409)


async def in_one(work, *watched):
    """A transaction. The library begins it anew if another one was first, or if the connection is lost."""
    return await client.transaction(work, *watched, value_from_callable=True)


@app.get("/products/{product}")
async def show_product(product: int):
    return dict(zip(shop.PRODUCT, await client.hmget(f"products:{product}", shop.PRODUCT)))


@app.put("/orders/{order}")
async def open_order(order: UUID, customer: int = Body(embed=True)):
    async def work(pipe):
        if await pipe.exists(f"orders:{order}"):
            return
        if not await pipe.exists(f"customers:{customer}"):
            raise shop.Refused(f"there is no customer {customer}")
        pipe.multi()
        pipe.hset(f"orders:{order}", mapping={"customer_id": customer, "status": "open", "total": "0.00"})

    await in_one(work, f"orders:{order}")
    return {"order": order}


@app.get("/orders/{order}")
async def show_order(order: UUID):
    values = await client.hmget(f"orders:{order}", shop.ORDER)
    payment = await client.hmget(f"payments:{order}", shop.PAYMENT)
    lines = await client.zrange(f"cart:{order}", 0, -1, withscores=True)
    return dict(zip(shop.ORDER, values)) | {"lines": lines, "payment": dict(zip(shop.PAYMENT, payment))}


@app.get("/orders/{order}/lines/{product}")
async def show_line(order: UUID, product: int):
    return {"quantity": await client.zscore(f"cart:{order}", product) or 0}


@app.put("/orders/{order}/lines/{product}")
async def put_line(order: UUID, product: int, quantity: int = Body(embed=True)):
    async def work(pipe):
        if await pipe.hget(f"orders:{order}", "status") != "open":
            raise shop.Refused("the order is not open")
        pipe.multi()
        pipe.zadd(f"cart:{order}", {str(product): quantity})

    await in_one(work, f"orders:{order}")
    return {"quantity": quantity}


@app.post("/orders/{order}/placed")
async def place(order: UUID):
    """Takes the goods from the stock once, however often it is asked to."""

    async def work(pipe):
        status, total, customer = await pipe.hmget(f"orders:{order}", ["status", "total", "customer_id"])
        if status == "placed":
            return total
        lines = await pipe.zrange(f"cart:{order}", 0, -1, withscores=True)
        keys = [f"products:{product}" for product, _ in lines]
        if keys:
            await pipe.watch(*keys)
        total = str(shop.bill(lines, [await pipe.hmget(key, ["price", "stock"]) for key in keys]))
        pipe.multi()
        for key, (_, quantity) in zip(keys, lines):
            pipe.hincrby(key, "stock", -int(quantity))
        pipe.hset(f"orders:{order}", mapping={"status": "placed", "total": total})
        pipe.hincrby(f"customers:{customer}", "points", len(lines))
        return total

    return {"total": await in_one(work, f"orders:{order}", f"cart:{order}")}


@app.put("/orders/{order}/payment")
async def pay(order: UUID, method: str = Body(), details: dict = Body()):
    async def work(pipe):
        status, total = await pipe.hmget(f"orders:{order}", ["status", "total"])
        if status != "placed":
            raise shop.Refused("the order is not placed")
        pipe.multi()
        payment = {"method": method, "amount": total, "details": json.dumps(details)}
        pipe.hset(f"payments:{order}", mapping=payment)
        return total

    return {"amount": await in_one(work, f"orders:{order}")}


@app.put("/deliveries/{delivery}")
async def announce(delivery: UUID, product: int = Body(), quantity: int = Body()):
    async def work(pipe):
        if await pipe.exists(f"deliveries:{delivery}"):
            return
        pipe.multi()
        values = {"product_id": product, "quantity": quantity, "status": "announced"}
        pipe.hset(f"deliveries:{delivery}", mapping=values)

    await in_one(work, f"deliveries:{delivery}")
    return {"delivery": delivery}


@app.post("/deliveries/{delivery}/arrived")
async def arrived(delivery: UUID):
    """Adds the goods to the stock once, however often it is asked to."""

    async def work(pipe):
        fields = ["product_id", "quantity", "status"]
        product, quantity, status = await pipe.hmget(f"deliveries:{delivery}", fields)
        if status == "arrived":
            return
        if status is None:
            raise shop.Refused("nobody has announced it")
        pipe.multi()
        pipe.hset(f"deliveries:{delivery}", "status", "arrived")
        pipe.hincrby(f"products:{product}", "stock", int(quantity))

    await in_one(work, f"deliveries:{delivery}")
    return {"status": "arrived"}
