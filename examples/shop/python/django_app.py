"""The shop with Django and redis-py.

    REDIS_URL=redis://127.0.0.1:6380 python django_app.py runserver 127.0.0.1:8000 --noreload
"""

import json
import os
import sys

import redis
from django.conf import settings
from redis.retry import Retry

import shop

settings.configure(
    SECRET_KEY=os.environ.get("SECRET_KEY", "of this example only"),
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
)

from django.core.management import execute_from_command_line  # noqa: E402
from django.http import HttpResponseNotAllowed, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

client = redis.from_url(shop.URL, retry=Retry(shop.BACKOFF, shop.RETRIES), **shop.OPTIONS)


def in_one(work, *watched):
    """A transaction. The library begins it anew if another one was first, or if the connection is lost."""
    return client.transaction(work, *watched, value_from_callable=True)


def show_product(product):
    return dict(zip(shop.PRODUCT, client.hmget(f"products:{product}", shop.PRODUCT)))


def open_order(order, customer):
    def work(pipe):
        if pipe.exists(f"orders:{order}"):
            return
        if not pipe.exists(f"customers:{customer}"):
            raise shop.Refused(f"there is no customer {customer}")
        pipe.multi()
        pipe.hset(f"orders:{order}", mapping={"customer_id": customer, "status": "open", "total": "0.00"})

    in_one(work, f"orders:{order}")
    return {"order": order}


def show_order(order):
    values = client.hmget(f"orders:{order}", shop.ORDER)
    payment = client.hmget(f"payments:{order}", shop.PAYMENT)
    lines = client.zrange(f"cart:{order}", 0, -1, withscores=True)
    return dict(zip(shop.ORDER, values)) | {"lines": lines, "payment": dict(zip(shop.PAYMENT, payment))}


def show_line(order, product):
    return {"quantity": client.zscore(f"cart:{order}", product) or 0}


def put_line(order, product, quantity):
    def work(pipe):
        if pipe.hget(f"orders:{order}", "status") != "open":
            raise shop.Refused("the order is not open")
        pipe.multi()
        pipe.zadd(f"cart:{order}", {str(product): quantity})

    in_one(work, f"orders:{order}")
    return {"quantity": quantity}


def place(order):
    """Takes the goods from the stock once, however often it is asked to."""

    def work(pipe):
        status, total, customer = pipe.hmget(f"orders:{order}", ["status", "total", "customer_id"])
        if status == "placed":
            return total
        lines = pipe.zrange(f"cart:{order}", 0, -1, withscores=True)
        keys = [f"products:{product}" for product, _ in lines]
        if keys:
            pipe.watch(*keys)
        total = str(shop.bill(lines, [pipe.hmget(key, ["price", "stock"]) for key in keys]))
        pipe.multi()
        for key, (_, quantity) in zip(keys, lines):
            pipe.hincrby(key, "stock", -int(quantity))
        pipe.hset(f"orders:{order}", mapping={"status": "placed", "total": total})
        pipe.hincrby(f"customers:{customer}", "points", len(lines))
        return total

    return {"total": in_one(work, f"orders:{order}", f"cart:{order}")}


def pay(order, method, details):
    def work(pipe):
        status, total = pipe.hmget(f"orders:{order}", ["status", "total"])
        if status != "placed":
            raise shop.Refused("the order is not placed")
        pipe.multi()
        payment = {"method": method, "amount": total, "details": json.dumps(details)}
        pipe.hset(f"payments:{order}", mapping=payment)
        return total

    return {"amount": in_one(work, f"orders:{order}")}


def announce(delivery, product, quantity):
    def work(pipe):
        if pipe.exists(f"deliveries:{delivery}"):
            return
        pipe.multi()
        values = {"product_id": product, "quantity": quantity, "status": "announced"}
        pipe.hset(f"deliveries:{delivery}", mapping=values)

    in_one(work, f"deliveries:{delivery}")
    return {"delivery": delivery}


def arrived(delivery):
    """Adds the goods to the stock once, however often it is asked to."""

    def work(pipe):
        fields = ["product_id", "quantity", "status"]
        product, quantity, status = pipe.hmget(f"deliveries:{delivery}", fields)
        if status == "arrived":
            return
        if status is None:
            raise shop.Refused("nobody has announced it")
        pipe.multi()
        pipe.hset(f"deliveries:{delivery}", "status", "arrived")
        pipe.hincrby(f"products:{product}", "stock", int(quantity))

    in_one(work, f"deliveries:{delivery}")
    return {"status": "arrived"}


def page(**by_method):
    """A view that answers with what the function for the request's method gives."""

    def view(request, **parts):
        if request.method not in by_method:
            return HttpResponseNotAllowed(list(by_method))
        body = json.loads(request.body or "{}")
        try:
            return JsonResponse(by_method[request.method](**parts, **body))
        except shop.Refused as error:
            return JsonResponse({"error": str(error)}, status=409)

    return view


urlpatterns = [
    path("products/<int:product>", page(GET=show_product)),
    path("orders/<uuid:order>", page(GET=show_order, PUT=open_order)),
    path("orders/<uuid:order>/lines/<int:product>", page(GET=show_line, PUT=put_line)),
    path("orders/<uuid:order>/placed", page(POST=place)),
    path("orders/<uuid:order>/payment", page(PUT=pay)),
    path("deliveries/<uuid:delivery>", page(PUT=announce)),
    path("deliveries/<uuid:delivery>/arrived", page(POST=arrived)),
]

if __name__ == "__main__":
    execute_from_command_line(sys.argv)
