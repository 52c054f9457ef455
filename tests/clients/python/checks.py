"""Whether answers are what they should be. The first one that is not ends the program."""

import sys

import redis

_count = 0


def checks():
    """How many there were."""
    return _count


def check(what, got, wanted):
    """The answer and its type: 1 is not True here, nor is it 1.0."""
    global _count
    _count += 1
    if typed(got) != typed(wanted):
        sys.exit(f"{what}: got {got!r}, wanted {wanted!r}")


def typed(value):
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [typed(each) for each in value]
    if isinstance(value, dict):
        return "dict", {key: typed(each) for key, each in value.items()}
    return type(value).__name__, value


def refused(what, call, *words):
    """The call fails, and the error names what would help."""
    global _count
    _count += 1
    try:
        got = call()
    except redis.ResponseError as error:
        for word in words:
            if word.lower() not in str(error).lower():
                sys.exit(f"{what}: the error does not mention {word!r}: {error}")
        return
    sys.exit(f"{what}: not refused, but answered {got!r}")
