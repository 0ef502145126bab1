"""The errors `econ` raises on purpose. Each is a ValueError, and each message is one line to be read."""

from .units import shown


class UnknownName(ValueError):
    """A model or accelerator name that is not in the registry; the message lists the nearest names."""


class ConfigError(ValueError):
    """A config.json that cannot be read as a model; the message names the key and says what would work."""


class DoesNotFit(ValueError):
    """A batch that needs more memory than there is; the message says what is short and what would fit."""


def check_type(name: str, value, kind: type, instead: str) -> None:
    """Raises ValueError unless `value` is a `kind`; `instead` says what gives one.

    >>> check_type("n", 3, int, "a whole number")
    """
    if not isinstance(value, kind):
        raise ValueError(f"{name}={shown(value)} is not a {kind.__name__}; use {instead}")
