"""The command line: will it fit, how fast, what does it cost, which GPUs, is a number normal.

econ fit | time | cost | compare | explain | models | gpus | measure, each with --json and --help.
Exit status: 0 done (fit: it fits), 1 it does not fit, 2 bad input.
"""

import argparse
import json
import math
import os
import sys
import textwrap
from functools import lru_cache
from typing import Any

import econ

from . import answers
from .cost import ALLOCATIONS
from .errors import DoesNotFit
from .profiles import profiles

WIDTH = 100  # columns of what is printed
REQUIRED = object()

# Option: type, default, help.
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "gpu": (str, REQUIRED, "an accelerator from `econ gpus`, or a .toml file of your own"),
    "n-gpus": (int, 1, "GPUs in all"),
    "tp": (int, None, "tensor-parallel slices (default: all GPUs)"),
    "pp": (int, 1, "pipeline stages"),
    "dp": (int, 1, "replicas"),
    "ep": (int, 1, "GPUs that a layer's experts are spread over"),
    "link": (float, None, "bytes per second each way between GPUs (default: the datasheet's)"),
    "weights": (str, None, "weights recipe, such as bf16, fp8, int4 (default: as published)"),
    "kv": (str, None, "cache dtype, such as bf16 or fp8 (default: as published)"),
    "profile": (str, "ideal", f"one of {', '.join(profiles())}"),
    "gpu-mem-frac": (float, 0.9, "share of GPU memory in use"),
    "max-running": (int, None, "the engine's own limit on sequences a replica (default: none)"),
    "context": (int, 8192, "tokens of each sequence"),
    "batch": (int, 1, "sequences of each replica"),
    "prompt": (int, REQUIRED, "tokens in"),
    "output": (int, REQUIRED, "tokens out"),
    "concurrency": (int, 1, "clients at once"),
    "usd-per-gpu-hour": (float, None, "what one GPU costs (default: median of the shipped prices)"),
    "utilisation": (float, 1.0, "share of the hours that are busy"),
    "allocation": (str, "time", f"how cost is split: {', '.join(ALLOCATIONS)}"),
    "slo-ttft": (float, math.inf, "limit on the first token, seconds (default: none)"),
    "slo-tpot": (float, math.inf, "limit on each further token, seconds (default: none)"),
    "top": (int, 20, "rows to print; JSON has all"),
}
FORMATS = ("weights", "kv", "profile", "gpu-mem-frac", "max-running")
PLACED = ("gpu", "n-gpus", "tp", "pp", "dp", "ep", "link", *FORMATS)


# Command: what runs it, help, options.
COMMANDS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "fit": (answers.fit, "does a batch fit, and what would still fit", (*PLACED, "context", "batch")),
    "time": (answers.time, "how long a prompt, a token and a request take", (*PLACED, "prompt", "output", "batch")),
    "cost": (answers.cost, "dollars per million tokens of a steady load",
             (*PLACED, "prompt", "output", "concurrency", "usd-per-gpu-hour", "utilisation", "allocation")),
    "compare": (answers.choose, "which GPUs, how many, which TP: cheapest first",
                ("prompt", "output", *FORMATS, "slo-ttft", "slo-tpot", "top")),
    "explain": (answers.explained, "is a log's or a benchmark's number normal, and why", ()),
    "models": (answers.list_models, "the models that ship with the package", ()),
    "gpus": (answers.list_gpus, "the accelerators that ship with the package", ()),
    "measure": (answers.ceilings, "this machine's two ceilings (needs torch)", ()),
}


class _Usage(ValueError):
    pass


class _Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, or one JSON object."""

    def error(self, message):
        plain = " ".join(message.encode("ascii", "backslashreplace").decode().split())
        raise _Usage(f"{plain}; see {self.prog} --help")


@lru_cache(maxsize=1)
def parser() -> argparse.ArgumentParser:
    """The arguments of every subcommand."""
    top = _Parser(prog="econ", description="Where the cost of a generated token comes from.",
                  epilog="MODEL is a name from `econ models` or the path of a config.json.")
    top.add_argument("--version", action="version", version=f"econ {econ.__version__}")
    commands = top.add_subparsers(dest="command", required=True, parser_class=_Parser, metavar="COMMAND")
    for name, (_, text, options) in COMMANDS.items():
        made = commands.add_parser(name, help=text, description=f"{text.capitalize()}.", allow_abbrev=False)
        made.add_argument("--json", action="store_true", help="print one JSON object")
        if name == "explain":
            made.add_argument("file", metavar="FILE", help="a log or a benchmark's output; - reads the standard input")
        elif options:
            made.add_argument("model", metavar="MODEL")
        for option in options:
            kind, default, meaning = OPTIONS[option]
            if default not in (REQUIRED, None, math.inf):
                meaning += f" (default {default})"
            made.add_argument(*(["-n"] if option == "n-gpus" else []), f"--{option}", type=kind, help=meaning,
                              required=default is REQUIRED, default=None if default is REQUIRED else default)
    return top


def table(rows: list) -> str:
    """Rows as aligned text, the first column to the left.

    >>> print(table([("a", "1"), ("bcd", "22")]))
    a     1
    bcd  22
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    sides = [str.ljust, *[str.rjust] * (len(widths) - 1)]
    padded = ([pad(*cell) for pad, *cell in zip(sides, row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _finite(value):
    """JSON has neither infinity nor nan."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _answer(a) -> tuple[str, int]:
    found = COMMANDS[a.command][0](a)
    if a.json:
        inputs = {k: v for k, v in vars(a).items() if k not in ("json", "command")}
        made = {"econ": econ.__version__, "inputs": inputs, "assumptions": found.assumed, "result": found.result}
        return json.dumps(_finite(made)), found.status
    assumed = textwrap.fill("assumed: " + "; ".join(found.assumed), WIDTH, subsequent_indent="  ")
    return f"{table(found.rows)}\n{assumed}", found.status


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        text, status = _answer(parser().parse_args(argv))
        print(text, flush=True)
    except ValueError as error:
        status = 1 if isinstance(error, DoesNotFit) else 2
        name = "UsageError" if isinstance(error, _Usage) else type(error).__name__
        if "--json" in argv:
            print(json.dumps({"error": name, "message": str(error)}))
        else:
            print(f"econ: {error}", file=sys.stderr)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    return status
