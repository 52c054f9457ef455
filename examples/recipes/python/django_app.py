"""Django: rows, sessions and the cache framework in Destage.

    destage serve --unmapped cache
    python django_app.py runserver 127.0.0.1:8000 --noreload
"""

import os
import sys
import uuid

from django.conf import settings

import rows

settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", "of this example only"),
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.sessions"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    # Keys of the cache name no rows: they need --unmapped cache. They are in memory alone.
    CACHES={
        "default": {
            "BACKEND": "django.core.cache.backends.redis.RedisCache",
            "LOCATION": f"redis://{rows.SETTINGS['host']}:{rows.SETTINGS['port']}",
            "OPTIONS": {
                "password": rows.SETTINGS["password"],
                "socket_timeout": 6,
                "socket_connect_timeout": 2,
            },
        }
    },
    SESSION_ENGINE="django.contrib.sessions.backends.cache",
)

from django.core.cache import cache  # noqa: E402
from django.core.management import execute_from_command_line  # noqa: E402
from django.http import JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402

reads, writes = rows.for_reads(), rows.for_writes()


@require_POST
def visit(request, customer: int):
    """Counts a visit once, also if a proxy or the browser sends the request again."""
    token = request.headers.get("Idempotency-Key", str(uuid.uuid4()))
    points = rows.once(writes, f"visit:{token}", "HINCRBY", f"customers:{customer}", "points", 1)
    return JsonResponse({"points": points})


def show(request, customer: int):
    """The row, how often this session has seen it, and a text that is made once in 30 s."""
    request.session["seen"] = request.session.get("seen", 0) + 1
    text = cache.get_or_set("text", lambda: str(uuid.uuid4()), timeout=30)
    row = reads.hgetall(f"customers:{customer}")
    return JsonResponse({"row": row, "seen": request.session["seen"], "text": text})


urlpatterns = [path("visits/<int:customer>", visit), path("customers/<int:customer>", show)]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
