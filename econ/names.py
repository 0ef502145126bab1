"""Where the package's data lies, other spellings of names, and the nearest names for an error message."""

import difflib
import tomllib
from functools import lru_cache
from pathlib import Path

DATA = Path(__file__).parent / "data"


@lru_cache(maxsize=8)
def aliases(section: str) -> dict[str, str]:
    """Other spellings (lower case) of the names in one section of data/aliases.toml.

    >>> isinstance(aliases("models"), dict)
    True
    """
    table = tomllib.loads((DATA / "aliases.toml").read_text(encoding="utf-8")).get(section, {})
    return {spelling.lower(): name for spelling, name in table.items()}


def nearest(name: str, known: list[str], n: int = 3) -> str:
    """The most similar known names, for an error message.

    >>> nearest("h100", ["h100-sxm", "a100-sxm"], n=1)
    'h100-sxm'
    """
    return ", ".join(difflib.get_close_matches(name.lower(), known, n=n, cutoff=0.0))
