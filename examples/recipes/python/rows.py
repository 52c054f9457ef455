"""Rows of Destage for a Python program: settings that are right, and a write that is harmless to repeat."""

import os
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

SETTINGS = {
    "host": os.environ.get("DESTAGE_HOST", "127.0.0.1"),
    "port": int(os.environ.get("DESTAGE_PORT", "6380")),
    "password": os.environ.get("DESTAGE_PASSWORD"),
    "decode_responses": True,
    # The server answers within --client-wait (4 s). The library must wait for longer.
    "socket_timeout": 6,
    "socket_connect_timeout": 2,
}
ATTEMPTS = 5


def for_reads() -> redis.Redis:
    """The library sends again by itself, also when a connection broke: for what may be repeated."""
    return redis.Redis(**SETTINGS)


def for_writes() -> redis.Redis:
    """The library would send increments again by itself. `once` does it instead, harmlessly."""
    return redis.Redis(**SETTINGS, retry=Retry(NoBackoff(), 0))


def may_be_sent_again(error: redis.RedisError) -> bool:
    """By `once`: no answer came, nothing was done, or the write is kept and its outcome is to come."""
    is_lost = isinstance(error, (redis.ConnectionError, redis.TimeoutError))
    return is_lost or str(error).startswith(("UNAVAILABLE", "PENDING"))


def once(client: redis.Redis, token: str, *command):
    """Carries a command out once for its token, however often it has to be sent."""
    for attempt in range(ATTEMPTS):
        try:
            return client.execute_command("DESTAGE", "ONCE", token, *command)
        except redis.RedisError as error:
            if attempt + 1 == ATTEMPTS or not may_be_sent_again(error):
                raise
            time.sleep(0.1 * 2**attempt)
