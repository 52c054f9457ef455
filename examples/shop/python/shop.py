"""What the Python applications share: keys, sums, and when to ask again. Plain Redis would do for all of it."""

import os
from decimal import Decimal

import redis
from redis.backoff import ExponentialBackoff

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6380")
OPTIONS = {"decode_responses": True, "socket_timeout": 6}
# After a lost connection the library connects and sends again, with these pauses in seconds. From a URL it would not.
BACKOFF, RETRIES = ExponentialBackoff(base=0.05, cap=1), 60
# How long a request may wait for a row that only the database knows, in seconds between two attempts.
PAUSES = [0.1, 0.2, 0.4, 0.8] + 60 * [1.0]

PRODUCT = ["name", "price", "stock", "attributes"]
ORDER = ["customer_id", "status", "total"]
PAYMENT = ["method", "amount", "details"]


class Refused(Exception):
    """What the customer asks for cannot be: a text for people."""


def may_be_asked_again(error: redis.ResponseError) -> bool:
    """Destage does not have the row, and the database is away. All that writes here looks first whether it was done."""
    return str(error).startswith(("UNAVAILABLE", "PENDING"))


def bill(lines, products) -> Decimal:
    """The sum of a cart: pairs of a product and how many of it, and for each its price and stock."""
    if not lines:
        raise Refused("the cart is empty")
    total = Decimal(0)
    for (product, quantity), (price, stock) in zip(lines, products):
        if price is None or int(stock) < quantity:
            raise Refused(f"there are not {quantity:.0f} of product {product}")
        total += Decimal(price) * int(quantity)
    return total
