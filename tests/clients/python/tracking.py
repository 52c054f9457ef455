"""redis-py, unmodified, holds copies of what it reads and is told when they are old.

Usage: tracking.py PORT

In RESP3 on its own connection, and in RESP2 by another one. It finds a row customers:1.
"""

import sys
import time

import redis
from redis.connection import Connection

from checks import check, checks

PORT = int(sys.argv[1])
CHANNEL = "__redis__:invalidate"
PATIENCE = 60


def connect():
    return redis.Redis(port=PORT, protocol=2, decode_responses=True, single_connection_client=True)


def resp3(writer, options, told):
    connection = Connection(port=PORT, protocol=3, decode_responses=True)
    connection.connect()
    pushes = []
    connection._parser.set_invalidation_push_handler(pushes.append)

    def call(*words):
        connection.send_command(*words)
        return connection.read_response()

    check("TRACKING", call("CLIENT", "TRACKING", "ON", *options), "OK")
    call("HSET", "customers:1", "name", "Ada")
    # What is told of that comes behind its reply.
    call("PING")
    pushes.clear()
    for name in ("Grace", "Grace Hopper"):
        call("HGET", "customers:1", "name")
        check("nothing is told before it changes", pushes, [])
        writer.hset("customers:1", "name", name)
        # What is told comes with some later reply at the latest.
        until = time.monotonic() + PATIENCE
        while not pushes and time.monotonic() < until:
            check("PING", call("PING"), "PONG")
        check(f"told with {options}", pushes, [["invalidate", told]])
        check("HGET", call("HGET", "customers:1", "name"), name)
        pushes.clear()
    connection.disconnect()


def resp2(writer):
    messages = connect().pubsub()
    messages.execute_command("CLIENT", "ID")
    listener = messages.parse_response()
    messages.subscribe(CHANNEL)
    reader = connect()
    check("TRACKING", reader.execute_command("CLIENT", "TRACKING", "ON", "REDIRECT", listener), "OK")
    check("GETREDIR", reader.execute_command("CLIENT", "GETREDIR"), listener)
    reader.hget("customers:1", "name")
    writer.hset("customers:1", "name", "Barbara")
    until, message = time.monotonic() + PATIENCE, None
    while time.monotonic() < until and (message is None or message["type"] != "message"):
        message = messages.get_message(timeout=1)
    check("the channel", message["channel"], CHANNEL)
    check("the keys", message["data"], ["customers:1"])
    check("HGET", reader.hget("customers:1", "name"), "Barbara")


def main():
    writer = connect()
    resp3(writer, [], ["customers:1"])
    resp3(writer, ["NOLOOP"], ["customers:1"])
    resp3(writer, ["BCAST", "PREFIX", "customers:"], ["customers:1"])
    resp2(writer)
    print(f"redis-py {redis.__version__}: {checks()} checks")


main()
