"""FastAPI: rows of Destage by redis-py's asyncio client.

    destage serve
    uvicorn fastapi_app:app --port 8000
"""

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import Annotated

import redis.asyncio
from fastapi import FastAPI, Header, HTTPException
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

import rows


def pool(**more):
    """Requests that find no free connection wait for one."""
    return redis.asyncio.BlockingConnectionPool(max_connections=50, timeout=6, **rows.SETTINGS, **more)


@asynccontextmanager
async def lifespan(app: FastAPI):
    # As in `rows`: only reads are sent again by the library itself.
    app.state.reads = redis.asyncio.Redis.from_pool(pool())
    app.state.writes = redis.asyncio.Redis.from_pool(pool(retry=Retry(NoBackoff(), 0)))
    yield
    await app.state.reads.aclose()
    await app.state.writes.aclose()


app = FastAPI(lifespan=lifespan)


async def once(token: str, *command):
    """Carries a command out once for its token, however often it has to be sent."""
    for attempt in range(rows.ATTEMPTS):
        try:
            return await app.state.writes.execute_command("DESTAGE", "ONCE", token, *command)
        except redis.RedisError as error:
            if attempt + 1 == rows.ATTEMPTS or not rows.may_be_sent_again(error):
                raise HTTPException(503, str(error)) from error
            await asyncio.sleep(0.1 * 2**attempt)


@app.post("/visits/{customer}")
async def visit(customer: int, idempotency_key: Annotated[str | None, Header()] = None):
    """Counts a visit once, also if a proxy or the browser sends the request again."""
    token = f"visit:{idempotency_key or uuid.uuid4()}"
    return {"points": await once(token, "HINCRBY", f"customers:{customer}", "points", 1)}


@app.get("/customers/{customer}")
async def show(customer: int):
    row = await app.state.reads.hgetall(f"customers:{customer}")
    if not row:
        raise HTTPException(404, "there is no such customer")
    return {"row": row}
