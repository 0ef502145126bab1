"""The few element-wise helpers that let one formula serve a plain number and a NumPy array, and input checks.

Nothing here imports NumPy: an array brings its own module along.
"""

import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from numbers import Real
from typing import Any, TypeVar, cast

from .units import shown

LARGEST = 1e15  # beyond any count of tokens or sequences; keeps every product far from the end of float64
SLICE = 16_384  # elements: a few float64 arrays of this size stay in a processor's cache
Method = TypeVar("Method", bound=Callable[..., Any])


def is_array(value) -> bool:
    """True for a NumPy array of one or more dimensions.

    >>> is_array(3)
    False
    """
    return getattr(value, "ndim", 0) > 0


def _numpy():
    return sys.modules["numpy"]


def number(name: str, value, minimum: float = -LARGEST, maximum: float = LARGEST):
    """A checked number: arrays become float64, NumPy scalars become Python numbers.

    Raises ValueError for a string, a boolean, nan, infinity or a value outside [minimum, maximum].

    >>> number("batch", 4, minimum=1)
    4
    """
    value = _floats(name, value) if is_array(value) else _plain(name, value)
    low, high = (value.min(), value.max()) if is_array(value) and value.size else (value, value)
    if is_array(low):  # empty
        return value
    if not low <= high:
        raise ValueError(f"{name} is nan; give finite numbers")
    if low < minimum:
        raise ValueError(f"{name}={low} is too small; use at least {minimum:g}")
    if high > maximum:
        raise ValueError(f"{name}={shown(high)} is too large; use at most {maximum:g}")
    return value


def _floats(name: str, value):
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind not in ("i", "u", "f") or not hasattr(value, "astype"):
        raise ValueError(f"{name}={shown(value)} is not an array of numbers; give a number or a NumPy array")
    return value.astype("float64")


def _plain(name: str, value):
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}={shown(value)} is not a number; give a number or a NumPy array")
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _unwrapped(value):
    return value.item() if getattr(value, "ndim", None) == 0 else value


def scalar(name: str, value, minimum: float = -LARGEST, maximum: float = LARGEST):
    """The same for a single number: an array is refused.

    >>> scalar("prompt", 2048, minimum=1)
    2048
    """
    if is_array(value):
        raise ValueError(f"{name} is an array; give a single number here")
    return number(name, value, minimum, maximum)


def whole(name: str, value, minimum: int = 1) -> int:
    """A checked whole number, such as a count of GPUs; NumPy integers become Python's.

    Raises ValueError for anything else and for a value below `minimum`.

    >>> whole("n_gpus", 8)
    8
    """
    value = _unwrapped(value)
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= LARGEST:
        raise ValueError(f"{name}={shown(value)}; give a whole number of at least {minimum}")
    return value


def flag(name: str, value) -> bool:
    """A checked boolean. Raises ValueError for anything but True or False.

    >>> flag("causal", True)
    True
    """
    value = _unwrapped(value)
    if not isinstance(value, bool):
        raise ValueError(f"{name}={shown(value)}; give True or False")
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


def ceil_div(a, b):
    """a / b rounded up to the next whole number, exact for integers.

    >>> ceil_div(7, 2)
    4
    """
    return -(-a // b)


def in_slices(method: Method) -> Method:
    """A method that returns a dataclass of arrays, run on long arrays slice by slice: the same result, sooner."""

    @wraps(method)
    def sliced(self, *args, **kwargs):
        shapes = {v.shape for v in (*args, *kwargs.values()) if is_array(v)}
        if len(shapes) != 1 or (shape := shapes.pop()) <= (SLICE,) or len(shape) > 1:
            return method(self, *args, **kwargs)
        parts = []
        for start in range(0, shape[0], SLICE):
            cut = lambda v, at=slice(start, start + SLICE): v[at] if is_array(v) else v  # noqa: E731
            parts.append(method(self, *map(cut, args), **{name: cut(v) for name, v in kwargs.items()}))
        values = {f.name: [getattr(part, f.name) for part in parts] for f in fields(parts[0])}
        whole = {name: _numpy().concatenate(v) if is_array(v[0]) else v[0] for name, v in values.items()}
        return type(parts[0])(**whole)

    return cast(Method, sliced)
