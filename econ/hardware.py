"""Accelerators: dense peak rates by precision, memory bandwidth, capacity and link, one TOML file each.

A peak is what the maker prints, not what a kernel reaches: shares of peak live in profiles. Sparse rates
are not stored, and a link is bytes per second each way.
"""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from .errors import UnknownName
from .names import DATA, aliases, nearest
from .units import shown

PRECISIONS = ("bf16", "fp16", "fp8", "int8", "fp4", "fp32", "fp64")
PROVENANCES = ("maker", "secondary", "unverified", "measured")

_SPELLINGS = {"nvfp4": "fp4", "mxfp4": "fp4", "bfloat16": "bf16", "float16": "fp16"}
_SOURCE_KEYS = ("provenance", "source", "url", "as_printed")
_NUMBERS = {"compute": PRECISIONS, "memory": ("printed_bytes", "visible_bytes", "hbm_bytes_per_s"),
            "link": ("bytes_per_s_each_way",), "power": ("tdp_w",)}
_NEEDED = {"memory": ("hbm_bytes_per_s",), "link": ("name", "bytes_per_s_each_way"), "power": ("tdp_w",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The fastest connection to another accelerator, in bytes per second each way."""

    name: str
    bytes_per_s_each_way: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the figures of one table come from, and how they were read."""

    provenance: str  # maker: read in its own document; secondary: quoted or derived; unverified: not read
    title: str
    url: str = ""
    as_printed: str = ""  # the maker's own words, only where they were read


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator as its datasheet describes it."""

    name: str  # registry name
    printed_name: str
    vendor: str
    peaks: Mapping[str, float] = field(hash=False)  # dense FLOP/s by precision
    hbm_bytes_per_s: float  # main memory, whatever it is made of
    printed_bytes: int | None  # capacity as marketed; None where it varies
    visible_bytes: int | None  # capacity as software sees it; None where no figure was found
    link: Link | None
    tdp_w: float | None
    sources: Mapping[str, Source] = field(hash=False)  # by table: compute, memory, link, power
    notes: str

    def __post_init__(self):
        fields = ("hbm_bytes_per_s", "printed_bytes", "visible_bytes", "tdp_w")
        for key, value in {**self.peaks, **{key: getattr(self, key) for key in fields}}.items():
            if value is not None:
                _positive(f"{self.name}: {key}", value)

    @property
    def provenance(self) -> dict[str, str]:
        """How each table's figures were read: maker, secondary or unverified.

        >>> load_accelerator("h100-nvl").provenance["memory"]
        'secondary'
        """
        return {table: source.provenance for table, source in self.sources.items()}

    @property
    def memory_bytes(self) -> int:
        """Capacity that software sees, or the printed capacity where no such figure was found.          [B]

        Printed figures are low by up to 7 % where a maker's GB is a GiB.
        Raises ValueError where the capacity depends on the machine.

        >>> load_accelerator("h100-sxm").memory_bytes == 81_559 * 2**20
        True
        """
        capacity = self.visible_bytes or self.printed_bytes
        if capacity is None:
            raise ValueError(f"{self.name} is sold with different memory sizes; state yours: "
                             f"dataclasses.replace(accelerator, printed_bytes=64 * 10**9)")
        return int(capacity)

    def flop_per_s(self, dtype: str) -> float:
        """Dense peak rate of matrix products in one precision.                                    [FLOP/s]

        nvfp4 and mxfp4 are fp4. Sustained rates are lower (chapter 1 prints by how much).
        Raises ValueError for a precision this accelerator has no printed rate for.

        >>> load_accelerator("h100-sxm").flop_per_s("bf16")
        989000000000000.0
        """
        precision = _precision(dtype)
        if precision not in self.peaks:
            have = f"it has {', '.join(self.peaks)}" if self.peaks else "its maker prints no matrix rate"
            raise ValueError(f"{self.name} has no {precision} rate: {have}")
        return self.peaks[precision]

    def ridge(self, dtype: str) -> float:
        """The arithmetic intensity at which the two ceilings meet: peak rate / memory bandwidth.    [FLOP/B]

        Raises ValueError for a precision without a printed rate.

        >>> round(load_accelerator("h100-sxm").ridge("bf16"), 2)
        295.22
        """
        return self.flop_per_s(dtype) / self.hbm_bytes_per_s


def _precision(dtype) -> str:
    name = str(dtype).lower().removeprefix("torch.")
    name = _SPELLINGS.get(name, name)
    if name not in PRECISIONS:
        raise ValueError(f"unknown precision {shown(dtype)}; use one of {', '.join(PRECISIONS)}")
    return name


def accelerators() -> list[str]:
    """Registry names of all accelerators, sorted.

    >>> "h100-sxm" in accelerators()
    True
    """
    return list(_names())


def load_accelerator(name) -> Accelerator:
    """An accelerator by registry name or alias in any case, or from a TOML file of your own.

    Takes the name, the path of a .toml file, or an Accelerator, which comes back as it is.
    Raises UnknownName with the nearest names, and ValueError for a file that is not a valid description.

    >>> load_accelerator("H100 SXM").hbm_bytes_per_s
    3350000000000.0
    """
    if isinstance(name, Accelerator):
        return name
    if not isinstance(name, (str, os.PathLike)):
        raise UnknownName(f"{shown(name)} is not an accelerator name; try one of econ.accelerators()")
    if str(name).lower().endswith(".toml"):
        return _read(Path(name))
    key = _key(str(name))
    key = aliases("accelerators").get(key, key)
    if key not in _names():
        raise UnknownName(f"unknown accelerator {shown(str(name))}; nearest: {nearest(key, accelerators())}")
    return _from_registry(key)


def _key(name: str) -> str:
    """Lower case, with hyphens for spaces, underscores and brackets."""
    return "-".join(re.sub(r"[\s_()-]+", " ", name.lower()).split())


@lru_cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (DATA / "accelerators").glob("*.toml")))


@lru_cache
def _from_registry(name: str) -> Accelerator:
    return _read(DATA / "accelerators" / f"{name}.toml")


def _read(path: Path) -> Accelerator:
    import tomllib

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownName(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    try:
        return _accelerator(path.stem.lower(), raw)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _accelerator(name: str, raw: dict) -> Accelerator:
    tables = [table for table in _NUMBERS if table in raw]
    _check_keys("the file", raw, ("name", "vendor", "notes", *_NUMBERS), ("name", "vendor", "memory"))
    for key in ("name", "vendor", "notes"):
        _text(key, raw.get(key, ""), required=key != "notes")
    for table in tables:
        _check_table(table, raw[table])
    memory, link = raw["memory"], raw.get("link")
    peaks = {p: float(raw["compute"][p]) for p in PRECISIONS if p in raw.get("compute", ())}
    return Accelerator(
        name=name, printed_name=raw["name"], vendor=raw["vendor"], peaks=MappingProxyType(peaks),
        hbm_bytes_per_s=float(memory["hbm_bytes_per_s"]),
        printed_bytes=memory.get("printed_bytes"), visible_bytes=memory.get("visible_bytes"),
        link=link and Link(name=link["name"], bytes_per_s_each_way=float(link["bytes_per_s_each_way"])),
        tdp_w=raw.get("power", {}).get("tdp_w"), notes=raw.get("notes", ""),
        sources=MappingProxyType({table: _source(raw[table]) for table in tables}))


def _source(table: dict) -> Source:
    return Source(provenance=table["provenance"], title=table["source"], url=table.get("url", ""),
                  as_printed=table.get("as_printed", ""))


def _check_table(table: str, entries) -> None:
    if not isinstance(entries, dict):
        raise ValueError(f"[{table}] must be a table, not {entries!r}")
    _check_keys(f"[{table}]", entries, (*_NUMBERS[table], *_SOURCE_KEYS, *_NEEDED.get(table, ())),
                (*_NEEDED.get(table, ()), "provenance", "source"))
    for key, value in entries.items():
        if key in _NUMBERS[table]:
            _positive(f"[{table}] {key}", value)
        else:
            _text(f"[{table}] {key}", value)
    provenance = entries["provenance"]
    if provenance not in PROVENANCES:
        raise ValueError(f"[{table}] provenance = {provenance!r}; use one of {', '.join(PROVENANCES)}")
    if "as_printed" in entries and provenance != "maker":
        raise ValueError(f"[{table}] as_printed quotes the maker, so provenance must be 'maker'")
    if table == "compute" and not any(p in entries for p in PRECISIONS):
        raise ValueError(f"[compute] needs a rate for at least one of {', '.join(PRECISIONS)}")


def _check_keys(where: str, entries: dict, allowed, needed) -> None:
    for key in entries:
        if key not in allowed:
            raise ValueError(f"{where} has an unknown key {key!r}; allowed: {', '.join(allowed)}")
    for key in needed:
        if key not in entries:
            raise ValueError(f"{where} lacks the key {key!r}")


def _positive(key: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key} = {value!r} is not a number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{key} = {value} must be positive and finite")


def _text(key: str, value, required: bool = True) -> None:
    if not isinstance(value, str) or (required and not value.strip()):
        raise ValueError(f"{key} = {value!r} must be a text{' that is not empty' if required else ''}")
