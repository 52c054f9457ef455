"""redis-py, unmodified, as a client that finds the owner of a log by look-ups of Sentinel's protocol: it adds to one row after
the other, and says of each what it was told.

Usage: sentinel.py HOST:PORT,HOST:PORT FIRST-ROW SECONDS FILE

It ends once there is such a file, or after so many seconds.
"""

import os
import sys
import time

from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

places, row, seconds, end = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
sentinels = [(place.rsplit(":", 1)[0], int(place.rsplit(":", 1)[1])) for place in places.split(",")]
# What may have been done is not sent again: the test counts.
once = {"socket_timeout": 2, "retry": Retry(NoBackoff(), 0)}
owner = Sentinel(sentinels, sentinel_kwargs=once).master_for("destage", **once)

until = time.monotonic() + seconds
while time.monotonic() < until and not os.path.exists(end):
    try:
        answer = owner.hincrby(f"t:{row}", "n", 1)
        print("told" if answer == 1 else f"wrong:{answer}", row, flush=True)
    except MasterNotFoundError:
        time.sleep(0.02)
        continue
    except RedisError:
        print("unknown", row, flush=True)
        time.sleep(0.02)
    row += 1
