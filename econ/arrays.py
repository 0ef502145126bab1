"""The few element-wise helpers that let one formula serve a plain number and a NumPy array.

Nothing here imports NumPy: an array brings its own module along.
"""

import math
import sys
from numbers import Real


def is_array(value) -> bool:
    """True for a NumPy array of one or more dimensions.

    >>> is_array(3)
    False
    """
    return getattr(value, "ndim", 0) > 0


def _numpy():
    return sys.modules["numpy"]


def number(name: str, value, minimum=None, maximum=None):
    """A checked number: arrays become float64, NumPy scalars become Python numbers.

    Raises ValueError for a string, a boolean, nan, infinity or a value outside [minimum, maximum].

    >>> number("batch", 4, minimum=1)
    4
    """
    if is_array(value):
        value = value.astype("float64")
        ok = _numpy().isfinite(value).all()
        low, high = (value.min(), value.max()) if value.size else (minimum or 0, minimum or 0)
    else:
        if hasattr(value, "item"):
            value = value.item()
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ValueError(f"{name}={value!r} is not a number")
        ok, low, high = math.isfinite(value), value, value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
    if not ok:
        raise ValueError(f"{name} contains nan or infinity; give finite numbers")
    if minimum is not None and low < minimum:
        raise ValueError(f"{name}={low} is too small; it must be at least {minimum}")
    if maximum is not None and high > maximum:
        raise ValueError(f"{name}={high} is too large; it must be at most {maximum}")
    return value


def maximum(a, b):
    """The larger of two numbers, element by element for arrays.

    >>> maximum(2, 3)
    3
    """
    return _numpy().maximum(a, b) if is_array(a) or is_array(b) else max(a, b)


def minimum(a, b):
    """The smaller of two numbers, element by element for arrays.

    >>> minimum(2, 3)
    2
    """
    return _numpy().minimum(a, b) if is_array(a) or is_array(b) else min(a, b)


def where(condition, a, b):
    """`a` where the condition holds, else `b`, element by element for arrays.

    >>> where(True, 1, 2)
    1
    """
    if is_array(condition):
        return _numpy().where(condition, a, b)
    return a if condition else b


def floor_div(a, b):
    """a // b, rounded towards minus infinity.

    >>> floor_div(7, 2)
    3
    """
    return a // b


def ceil_div(a, b):
    """a / b rounded up to the next whole number, exact for integers.

    >>> ceil_div(7, 2)
    4
    """
    return -(-a // b)
