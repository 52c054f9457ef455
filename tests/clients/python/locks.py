"""redis-py's own locks, unmodified: who holds one, for how long, and that two processes never hold it at once.

Usage: locks.py PORT promise|control

promise: checks all of that, and prints how many checks there were. control: the same with a release that looks at no value, by
which a stranger ends the lock of another; prints that two were inside at once.
"""

import multiprocessing
import sys
import time

import redis
from redis.exceptions import LockError, LockNotOwnedError
from redis.lock import Lock

from checks import check, checks

PORT, MODE = int(sys.argv[1]), sys.argv[2]
PATIENCE_S = 120
ROUNDS = 60


def connect():
    return redis.Redis(host="127.0.0.1", port=PORT, socket_timeout=30)


class Careless(Lock):
    """Its release looks at no value."""

    LUA_RELEASE_SCRIPT = "return redis.call('del', KEYS[1])"
    lua_release = None


def fails(what, call, kind):
    try:
        got = call()
    except kind:
        return check(what, True, True)
    sys.exit(f"{what}: not refused, but answered {got!r}")


def until(what, holds):
    end = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"{what}: not so within {PATIENCE_S} s")
        time.sleep(0.005)


def owners(r):
    lock = r.lock("lock:owners", timeout=1000)
    other = connect().lock("lock:owners", timeout=1000)
    check("acquire", lock.acquire(), True)
    check("acquire of a held one", other.acquire(blocking=False), False)
    check("locked", (lock.locked(), lock.owned(), other.owned()), (True, True, False))
    # Somebody who takes itself for the owner.
    other.local.token = b"another"
    fails("release by the wrong owner", other.release, LockNotOwnedError)
    other.local.token = b"another"
    fails("extend by the wrong owner", lambda: other.extend(10), LockNotOwnedError)
    fails("reacquire by the wrong owner", other.reacquire, LockNotOwnedError)
    check("extend", lock.extend(1000), True)
    check("extended to both times", 1_900_000 < r.pttl("lock:owners") <= 2_000_000, True)
    check("extend anew", lock.extend(500, replace_ttl=True), True)
    check("extended to the new time", 400_000 < r.pttl("lock:owners") <= 500_000, True)
    check("reacquire", lock.reacquire(), True)
    check("reacquired for its own time", 900_000 < r.pttl("lock:owners") <= 1_000_000, True)
    check("release", lock.release(), None)
    check("EXISTS", r.exists("lock:owners"), 0)
    fails("release of a released one", lock.release, LockError)
    endless = r.lock("lock:owners")
    check("acquire without a time", endless.acquire(), True)
    fails("extend without a time", lambda: endless.extend(1), LockError)
    check("release without a time", endless.release(), None)


def expiry(r):
    lock = r.lock("lock:short", timeout=0.01)
    check("acquire", lock.acquire(), True)
    until("the lock ends by itself", lambda: not lock.locked())
    next_one = connect().lock("lock:short", timeout=1000)
    check("acquire by the next", next_one.acquire(blocking=False), True)
    fails("release of what has expired", lock.release, LockNotOwnedError)
    check("the next one holds it still", next_one.owned(), True)
    check("release by the next", next_one.release(), None)
    with r.lock("lock:short", timeout=1000):
        check("EXISTS", r.exists("lock:short"), 1)
    check("EXISTS after with", r.exists("lock:short"), 0)


def work(kind, rounds):
    """Counts up under the lock, in steps that are no single command; a stranger tries to end the lock meanwhile."""
    r = connect()
    for _ in range(rounds):
        lock = r.lock("lock:work", timeout=1000, sleep=0.001, lock_class=kind)
        stranger = r.lock("lock:work", timeout=1000, lock_class=kind)
        lock.acquire()
        alone = r.set("lock:inside", "x", nx=True)
        if not alone:
            r.set("lock:overlap", "x")
        counted = int(r.get("lock:counter") or 0)
        stranger.local.token = b"stranger"
        try:
            stranger.release()
        except LockError:
            pass
        time.sleep(0.001)
        r.set("lock:counter", counted + 1)
        if alone:
            r.delete("lock:inside")
        try:
            lock.release()
        except LockError:
            pass


def contend(kind, rounds):
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=work, args=(kind, rounds)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
        check("it ended well", process.exitcode, 0)


def main():
    r = connect()
    r.delete("lock:owners", "lock:short", "lock:work", "lock:inside", "lock:overlap", "lock:counter")
    if MODE == "control":
        end = time.monotonic() + PATIENCE_S
        while not r.exists("lock:overlap") and time.monotonic() < end:
            contend(Careless, ROUNDS)
        print("two at once" if r.exists("lock:overlap") else "never two at once")
        return
    owners(r)
    expiry(r)
    contend(Lock, ROUNDS)
    check("never two at once", r.exists("lock:overlap"), 0)
    check("each was counted", int(r.get("lock:counter")), 2 * ROUNDS)
    print(f"{checks()} checks")


if __name__ == "__main__":
    main()
