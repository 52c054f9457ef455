"""Celery: results in Destage, and a task that counts once although workers may be given it twice.

    destage serve --unmapped cache
    celery -A celery_app worker --pool solo

Destage cannot be the broker: Celery's Redis broker needs lists (LPUSH, BRPOP) and messages between clients (PUBLISH,
SUBSCRIBE), and Destage has neither. Celery's own Redis result backend needs such messages, too. So results are kept by the
few lines of `Results`, whose `get` looks for a result again and again. The broker here is a folder. Use RabbitMQ, or Redis.
"""

import os
from pathlib import Path

import redis
from celery import Celery
from celery.backends.base import KeyValueStoreBackend

import rows


class Results(KeyValueStoreBackend):
    """Results of tasks, in plain keys: --unmapped cache. They are in memory alone and go with the server."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.client = rows.for_reads()

    def get(self, key):
        return self.client.get(key)

    def mget(self, keys):
        return self.client.mget(keys)

    def set(self, key, value):
        return self.client.set(key, value, ex=self.expires)

    def delete(self, key):
        return self.client.delete(key)


folder = Path(os.environ.get("CELERY_FOLDER", "celery-messages"))
for name in ("messages", "control"):
    (folder / name).mkdir(parents=True, exist_ok=True)

app = Celery("shop", broker="filesystem://", backend=f"{__name__}:Results")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(folder / "messages"),
        "data_folder_out": str(folder / "messages"),
        "control_folder": str(folder / "control"),
    },
    result_expires=3600,
    # A task is given to another worker if its worker dies. So it may be done twice.
    task_acks_late=True,
    worker_enable_remote_control=False,
)
writes = rows.for_writes()


@app.task(bind=True, max_retries=5)
def visit(self, customer: int) -> int:
    """The identity of the task is the token: it is the same each time that the task is done."""
    try:
        return int(rows.once(writes, f"celery:{self.request.id}", "HINCRBY", f"customers:{customer}", "points", 1))
    except redis.RedisError as error:
        # Python's own ConnectionError is no error of redis-py. What is to be tried again is said in one place.
        if not rows.may_be_sent_again(error):
            raise
        raise self.retry(exc=error, countdown=2**self.request.retries) from error
