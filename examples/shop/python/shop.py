"""What the Python applications share: how they connect, names of columns, sums. All of it is as for a plain Redis."""

import os
from decimal import Decimal

from redis.backoff import ExponentialBackoff

URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6380")
# An answer takes a minute at most, see client-wait in destage.toml.
OPTIONS = {"decode_responses": True, "socket_timeout": 70}
# After a lost connection the library connects and sends again, with these pauses in seconds. From a URL it would not.
BACKOFF, RETRIES = ExponentialBackoff(base=0.05, cap=1), 60

PRODUCT = ["name", "price", "stock", "attributes"]
ORDER = ["customer_id", "status", "total"]
PAYMENT = ["method", "amount", "details"]


class Refused(Exception):
    """What the customer asks for cannot be: a text for people."""


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
