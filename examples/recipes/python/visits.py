"""A counter of visits: as a FastAPI or Django view would keep it."""

import sys
import uuid

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

# The server answers within --client-wait (4 s). The library must wait for longer, and must not send increments again
# by itself.
client = redis.Redis(
    port=int(sys.argv[1]) if len(sys.argv) > 1 else 6380,
    socket_timeout=6,
    socket_connect_timeout=2,
    retry=Retry(NoBackoff(), 0),
    decode_responses=True,
)


def visit(customer: int) -> int:
    """Counts once, however often it has to be sent."""
    token = str(uuid.uuid4())
    command = ("DESTAGE", "ONCE", token, "HINCRBY", f"customers:{customer}", "points", 1)
    for attempt in range(3):
        try:
            return int(client.execute_command(*command))
        except (redis.ConnectionError, redis.TimeoutError):
            if attempt == 2:
                raise
    raise AssertionError("not reached")


before = int(client.hget("customers:1", "points"))
assert visit(1) == before + 1
print(client.hgetall("customers:1"))
