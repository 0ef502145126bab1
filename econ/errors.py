"""The errors `econ` raises on purpose. Each is a ValueError, and each message is one line to be read."""


class UnknownName(ValueError):
    """A model or accelerator name that is not in the registry; the message lists the nearest names."""


class ConfigError(ValueError):
    """A config.json that cannot be read as a model; the message names the key and says what would work."""


class DoesNotFit(ValueError):
    """A batch that needs more memory than there is; the message says what is short and what would fit."""
