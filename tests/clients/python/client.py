"""redis-py, unmodified, calls what its arguments name and checks each answer.

Usage: client.py PORT PROTOCOL rows|keys|differs|large|refused [PASSWORD]

rows: the hashes of the shop. keys: mapped sets, sorted sets and strings, and plain keys, which answer as Redis itself does.
differs: what rows do that keys of Redis do not. large: megabytes in one pipeline. refused: nothing, as there is no connection.

The environment may name the PEM files of TLS: CLIENT_TLS_CA is the authority, CLIENT_TLS_OWN.pem and CLIENT_TLS_OWN.key are who
this client is.
"""

import os
import sys

import redis

import keys as mapped
from checks import check, checks, refused

PORT, PROTOCOL, SECTION = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
PASSWORD = sys.argv[4] if len(sys.argv) > 4 else None


def tls():
    authority, own = os.environ.get("CLIENT_TLS_CA"), os.environ.get("CLIENT_TLS_OWN")
    if not authority:
        return {}
    files = {"ssl_certfile": f"{own}.pem", "ssl_keyfile": f"{own}.key"} if own else {}
    return {"ssl": True, "ssl_ca_certs": authority, **files}


def connect(**more):
    return redis.Redis(
        host="127.0.0.1",
        port=PORT,
        protocol=PROTOCOL,
        password=PASSWORD,
        decode_responses=True,
        socket_timeout=30,
        **tls(),
        **more,
    )


def connection(r):
    check("PING", r.ping(), True)
    check("ECHO", r.echo("hello"), "hello")
    check("CLIENT SETNAME", r.client_setname("python"), True)
    check("CLIENT GETNAME", r.client_getname(), "python")
    check("CLIENT ID", r.client_id() > 0, True)
    check("INFO", "redis_version" in r.info(), True)
    check("CONFIG GET", isinstance(r.config_get("maxmemory"), dict), True)
    check("COMMAND COUNT", r.command_count() > 30, True)
    check("COMMAND", "hset" in r.command(), True)
    check("SELECT 0", r.select(0), True)
    hello = r.execute_command("HELLO", PROTOCOL)
    # Protocol 2 has no maps: names and values take turns.
    pairs = hello if isinstance(hello, dict) else dict(zip(hello[::2], hello[1::2]))
    check("HELLO", pairs["proto"], PROTOCOL)


def fields(r):
    check("HSET new row", r.hset("customers:10", mapping={"name": "Linus", "email": "l@x.org"}), 2)
    check("EXISTS", r.exists("customers:10", "customers:999"), 1)
    check("TYPE", r.type("customers:10"), "hash")
    check("TYPE of nothing", r.type("customers:999"), "none")
    check("HGET", r.hget("customers:10", "name"), "Linus")
    check("HGET key column", r.hget("customers:10", "id"), "10")
    check("HGET default", r.hget("customers:10", "visits"), "0")
    check("HMGET", r.hmget("customers:10", "email", "note", "visits"), ["l@x.org", None, "0"])
    check("HSET again", r.hset("customers:10", "name", "Linus T."), 0)
    check("HSET of a NULL", r.hset("customers:10", "note", ""), 1)
    check("HGET empty", r.hget("customers:10", "note"), "")
    check("HDEL", r.hdel("customers:10", "note", "email"), 2)
    check("HDEL again", r.hdel("customers:10", "note"), 0)
    check("HEXISTS of a NULL", r.hexists("customers:10", "email"), False)
    check("HEXISTS", r.hexists("customers:10", "name"), True)
    check("HSETNX absent", r.hsetnx("customers:10", "email", "new@x.org"), 1)
    check("HSETNX present", r.hsetnx("customers:10", "email", "other@x.org"), 0)
    check("HINCRBY", r.hincrby("customers:10", "visits", 5), 5)
    check("HINCRBY down", r.hincrby("customers:10", "visits", -2), 3)
    check("HSET balance", r.hset("customers:10", "balance", "12.5"), 1)
    check("HINCRBYFLOAT", r.hincrbyfloat("customers:10", "balance", 0.25), 12.75)
    row = {"id": "10", "name": "Linus T.", "email": "new@x.org", "visits": "3", "balance": "12.75"}
    check("HGETALL", r.hgetall("customers:10"), row)
    check("HLEN", r.hlen("customers:10"), 5)
    check("HKEYS", set(r.hkeys("customers:10")), set(row))
    check("HVALS", sorted(r.hvals("customers:10")), sorted(row.values()))
    check("HMSET", r.execute_command("HMSET", "customers:11", "name", "Ken", "visits", "7"), True)
    check("HGETALL of nothing", r.hgetall("customers:999"), {})
    check("DEL", r.delete("customers:11"), 1)
    check("DEL again", r.delete("customers:11"), 0)
    check("EXISTS after DEL", r.exists("customers:11"), 0)
    r.hset("customers:12", "name", "Rob")
    check("UNLINK", r.unlink("customers:12"), 1)


def keys(r):
    check("canonical key", r.hget("customers:0010", "name"), "Linus T.")
    check("composite key", r.hgetall("order_lines:1:1"),
          {"order_id": "1", "product_id": "1", "quantity": "2"})
    found = set(r.scan_iter(match="customers:*", count=3))
    check("SCAN", {"customers:1", "customers:2", "customers:10"} <= found, True)
    check("SCAN without the deleted", found & {"customers:11", "customers:12"}, set())
    number = r.execute_command("DESTAGE", "NEXTID", "orders")
    check("DESTAGE NEXTID", int(number) > 1, True)


def groups(r):
    pipe = r.pipeline(transaction=True)
    pipe.hset("orders:50", mapping={"customer_id": "10", "status": "new"})
    pipe.hset("order_lines:50:1", "quantity", "3")
    pipe.hincrby("products:1", "stock", -3)
    check("MULTI EXEC", pipe.execute(), [2, 1, 7])
    pipe = r.pipeline(transaction=False)
    for n in range(20):
        pipe.hset(f"customers:{100 + n}", "name", f"customer {n}")
    for n in range(20):
        pipe.hget(f"customers:{100 + n}", "name")
    check("pipeline", pipe.execute(), [1] * 20 + [f"customer {n}" for n in range(20)])
    with r.client() as one:
        check("MULTI", one.execute_command("MULTI"), "OK")
        check("queued", one.execute_command("HSET", "customers:10", "name", "no"), "QUEUED")
        check("DISCARD", one.execute_command("DISCARD"), "OK")
    check("after DISCARD", r.hget("customers:10", "name"), "Linus T.")
    with r.pipeline(transaction=True) as pipe:
        pipe.watch("customers:10")
        check("HGET after WATCH", pipe.hget("customers:10", "visits"), "3")
        r.hincrby("customers:10", "visits", 1)
        pipe.multi()
        pipe.hset("customers:10", "visits", "100")
        try:
            sys.exit(f"EXEC after a change: not refused, but answered {pipe.execute()!r}")
        except redis.WatchError:
            pass
    check("nothing done", r.hget("customers:10", "visits"), "4")

    def double(pipe):
        visits = int(pipe.hget("customers:10", "visits"))
        pipe.multi()
        pipe.hset("customers:10", "visits", visits * 2)

    check("WATCH MULTI EXEC", r.transaction(double, "customers:10"), [0])
    check("done", r.hget("customers:10", "visits"), "8")
    with r.client() as one:
        check("DESTAGE BEGIN", one.execute_command("DESTAGE", "BEGIN", 60000) in ("OK", b"OK"), True)
        check("HINCRBY under a lease", one.hincrby("customers:10", "visits", 2), 10)
        check("HGET by others", r.hget("customers:10", "visits"), "8")
        check("EXEC", one.execute_command("EXEC"), [10])
    r.hset("customers:10", "visits", "3")
    check("WAITAOF", r.execute_command("WAITAOF", 1, 0, 1000)[0], 1)
    r.hset("customers:10", "name", "Linus")
    check("DESTAGE WAIT", bool(r.execute_command("DESTAGE", "WAIT", 10000)), True)


def errors(r):
    refused("unsupported command", lambda: r.lpush("customers:10", "x"), "lpush")
    refused("FLUSHALL", r.flushall)
    refused("KEYS", lambda: r.keys("*"), "SCAN")
    refused("SET", lambda: r.set("customers:10", "x", nx=True, ex=30))
    refused("unknown table", lambda: r.hset("nosuch:1", "name", "x"), "nosuch")
    refused("no key", lambda: r.hset("customers", "name", "x"), "customers")
    refused("unknown column", lambda: r.hset("customers:10", "nosuch", "x"), "nosuch", "name")
    refused("unfitting key", lambda: r.hget("customers:abc", "name"), "id")
    refused("unfitting value",
            lambda: r.hset("customers:10", mapping={"name": "half", "visits": "many"}), "visits")
    check("nothing half done", r.hget("customers:10", "name"), "Linus")
    refused("NULL in NOT NULL", lambda: r.hdel("customers:10", "email", "name"), "name")
    check("nothing half deleted", r.hget("customers:10", "email"), "new@x.org")
    refused("key column", lambda: r.hset("customers:10", "id", "11"), "id")
    refused("missing columns", lambda: r.hset("orders:51", "status", "new"), "customer_id")
    refused("HINCRBY of text", lambda: r.hincrby("customers:10", "name", 1), "name")
    refused("too few key parts", lambda: r.hset("order_lines:1", "quantity", "1"), "product_id")
    refused("SELECT 1", lambda: r.execute_command("SELECT", 1))
    pipe = r.pipeline(transaction=True)
    pipe.hset("customers:10", "name", "half")
    pipe.hset("customers:10", "visits", "many")
    refused("EXEC with an error", pipe.execute, "visits")
    check("nothing half executed", r.hget("customers:10", "name"), "Linus")


def large(r):
    """All of it is sent before any of the answers is read."""
    notes = {f"customers:{1000 + n}": f"{n} " * 1000 for n in range(1500)}
    pipe = r.pipeline(transaction=False)
    for key, note in notes.items():
        pipe.hset(key, mapping={"name": "large", "note": note})
    check("rows of megabytes", pipe.execute(), [2] * len(notes))
    for key in notes:
        pipe.hget(key, "note")
    check("their notes", pipe.execute(), list(notes.values()))


def not_let_in():
    try:
        sys.exit(f"PING: not refused, but answered {connect(retry=None).ping()!r}")
    except redis.ConnectionError:
        check("no connection", True, True)


def rows(r):
    connection(r)
    fields(r)
    keys(r)
    groups(r)
    errors(r)
    with connect(single_connection_client=True) as one:
        check("QUIT", one.execute_command("QUIT"), True)


def main():
    r = connect()
    if SECTION == "rows":
        rows(r)
    elif SECTION == "keys":
        mapped.answers(r, PROTOCOL)
    elif SECTION == "large":
        large(r)
    elif SECTION == "refused":
        not_let_in()
    elif SECTION == "differs":
        mapped.differs(r, PROTOCOL)
    else:
        sys.exit(f"no section {SECTION}")
    print(f"redis-py {redis.__version__} protocol {PROTOCOL}: {checks()} checks")


main()
