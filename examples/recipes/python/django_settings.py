"""For settings.py. Keys of the cache framework name no rows: start Destage with --unmapped cache."""

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://127.0.0.1:6380",
        "OPTIONS": {"socket_timeout": 6, "socket_connect_timeout": 2},
    }
}
