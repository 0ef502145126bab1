"""Finding numbers in a log: what a pattern must see before it believes a figure, and names of GPUs and models.

Nothing is read from the disk and nothing is guessed. A figure that the end of the text may have cut is dropped, as
is one that is not finite. Every pattern starts with a literal and repeats within limits, so time is linear.
"""

import math
import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import takewhile

from .config import load_model, models, registry_name
from .hardware import accelerators, load_accelerator
from .model import Model
from .names import aliases
from .units import GIB, KIB, MIB, TIB

NUMBER = r"([-+]?\d{1,20}(?:,\d{3}){0,6}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,4})?)(?![.,]?\d|[eE][-+]?\d|[.,]?\Z)"
SIZE = NUMBER + r"[ \t]{0,3}(TiB|GiB|MiB|KiB|TB|GB|MB|KB|B|bytes)\b"
WORD = r"['\"]?([^\s'\",;)(}{\]\[]{1,200})(?=[\s'\",;)}\]])"
LARGEST = 1e15  # bytes, tokens or blocks: beyond any machine

# Engines divide by 2**30 and print GB.
_BINARY = {"T": TIB, "G": GIB, "M": MIB, "K": KIB, "B": 1, "b": 1}
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,20}[ -/]{0,2}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\))")
_CONTROL = {code: None for code in range(32) if code not in (9, 10)} | {0xFEFF: None, 127: None}
_GPU = re.compile(  # the longest run of words; possessive, so that a cut name does not become a shorter one
    r"\b(?:NVIDIA|Tesla|GeForce|Apple|AMD|Radeon)(?:[ -][A-Za-z0-9+-]{1,20}){1,6}+(?![A-Za-z0-9+-]| {0,9}\Z)"
)
_FORMAT = re.compile(
    r"(?:^|[-_. ])(awq|gptq|w4a16|nf4|4bit|int4|int8|w8a8|8bit|fp8|nvfp4|mxfp4|bf16|fp16|f16|fp32|f32|"
    r"q\d_(?:k_[sml]|[k01])|iq\d_\w{1,3}|gguf|dynamic|int|block|marlin)(?=$|[-_. ])",
    re.I,
)
RECIPES = {
    "awq": "int4",
    "gptq": "int4",
    "w4a16": "int4",
    "nf4": "int4",
    "4bit": "int4",
    "int4": "int4",
    "int8": "int8",
    "8bit": "int8",
    "w8a8": "int8",
    "fp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "f16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "f32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "q4_0": "q4_0",
    "q8_0": "q8_0",
    "q4_k_m": "q4_k_m",
}


def cleaned(text: str) -> str:
    """The text without colours, carriage returns and control characters.

    >>> cleaned("\\x1b[32mINFO\\x1b[0m took 1 GiB\\r\\n")
    'INFO took 1 GiB\\n'
    """
    return _ANSI.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).translate(_CONTROL)


def number(digits: str) -> float | int | None:
    """A number as printed, commas allowed; None where it is not finite or too large to be one.

    >>> number("122,080"), number("1e400")
    (122080, None)
    """
    try:
        value = float(digits.replace(",", ""))
    except ValueError:
        return None
    if not math.isfinite(value) or abs(value) > LARGEST:
        return None
    return int(value) if value == int(value) and not set(digits) & set(".eE") else value


def size(digits: str, unit: str) -> float | None:
    """Bytes of a size that an engine printed: its GB is 2**30 bytes.

    >>> size("14.5", "GB") == 14.5 * 2**30
    True
    """
    value = number(digits)
    return None if value is None or abs(value) > LARGEST / _BINARY[unit[0]] else value * _BINARY[unit[0]]


def compiled(*rows: tuple[str, str, str]) -> list[tuple[str, re.Pattern, str]]:
    """A table of (fact, pattern, which), with <n>, <size> and <word> written out.

    `which` says what counts where a line stands more than once: last, max (the fullest rank) or min; text
    is the last, and never a number.
    """
    swap = {"<n>": NUMBER, "<size>": SIZE, "<word>": WORD}
    made = []
    for fact, pattern, which in rows:
        for short, full in swap.items():
            pattern = pattern.replace(short, full)
        made.append((fact, re.compile(pattern), which))
    return made


def found(text: str, table: Iterable[tuple[str, re.Pattern, str]]) -> dict:
    """The facts of a table that the text states; earlier rows of the table win.

    >>> found("x took 2.5 GiB.", compiled(("a", "took <size>", "last")))
    {'a': 2684354560.0}
    """
    facts: dict = {}
    for fact, pattern, which in table:
        matches = pattern.finditer(text)
        read = (m[1] if which == "text" else _value(m) for m in matches)
        values = [v for v in read if v is not None]
        if values and fact not in facts:
            facts[fact] = max(values) if which == "max" else min(values) if which == "min" else values[-1]
    return facts


def _value(match: re.Match):
    groups = match.groups()
    if len(groups) == 2:
        return size(*groups)
    text = groups[0] if groups else match.group()
    return number(text) if re.fullmatch(r"[-+]?\d[\d,]*(?:\.\d*)?(?:[eE][-+]?\d+)?", text) else text


def gpu_name(text: str) -> str | None:
    """The registry name of the first known GPU that the text names in full, as drivers do; None for a slice of one.

    A laptop's, a Ti or a later variant is another GPU. A name at the very end of the text may be cut and is not read.

    >>> gpu_name("Device 0: NVIDIA GeForce RTX 4090, compute capability 8.9")
    'rtx-4090'
    """
    for match in _GPU.finditer(text):
        words = match.group().split()
        if "MIG" in words:
            return None
        whole = list(takewhile(lambda word: not word[0].islower() and word not in ("GPU", "GPUs", "On", "Off"), words))
        name = known_gpu(" ".join(whole))
        if name:
            return name
    return None


@lru_cache(maxsize=4096)
def known_gpu(name: str) -> str | None:
    """The registry name of a GPU in any spelling, or None.

    >>> known_gpu("RTX 4090"), known_gpu("Voodoo 2")
    ('rtx-4090', None)
    """
    key = "-".join(re.sub(r"[\s_()-]+", " ", name.lower()).split())
    for short in (
        key,
        key.removeprefix("nvidia-"),
        key.removeprefix("nvidia-geforce-").removeprefix("geforce-"),
        key.removeprefix("amd-"),
        key.removeprefix("amd-").removeprefix("instinct-"),
    ):
        if short in accelerators() or short in aliases("accelerators"):
            return load_accelerator(short).name
    return None


def known_model(name: str) -> tuple[Model | None, str | None]:
    """A model of the registry by the name a log gives it, and the weights recipe that the name states.

    >>> m, weights = known_model("Qwen/Qwen2.5-7B-Instruct-AWQ")
    >>> m.name, weights
    ('qwen2.5-7b', 'int4')
    """
    path = name.replace("\\", "/").rstrip("/").split("/")[-1].strip().lower()
    stated = [f for f in _FORMAT.findall(path.removesuffix(".gguf"))]
    weights = next((RECIPES[f] for f in reversed(stated) if f in RECIPES), None)
    if "gptq" in stated and "int8" in stated:
        weights = "int8"
    for short in (path, _FORMAT.sub("", path)):
        key = registry_name(re.sub(r"[\s_]+", "-", short.strip(" -_.")))
        for candidate in (key, re.sub(r"-(chat|it|base)$", "", key)):
            candidate = aliases("models").get(candidate, candidate)
            if candidate in models():
                return load_model(candidate), weights
    return None, weights
