"""What a running server prints every few seconds: how many requests run and wait, the rate, the share of the cache.

vLLM prints a rate averaged over an interval and counts of its end; SGLang a line every few decode steps. A line says
what a step takes only where it is *firm*: the line before it shows as many requests running, no prompts were
processed between the two, and the cache did not shrink. Then the batch was the same all along.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from .scan import NUMBER, number

_VLLM = re.compile(
    r"(?:Engine (\d{1,6}): )?Avg prompt throughput: <n> tokens/s, Avg generation throughput: <n> tokens/s, "
    r"Running: <n> reqs, (?:Swapped: \d{1,9} reqs, )?(?:Waiting|Pending): <n> reqs, "
    r"(?:[^\n,]{1,40}, ){0,3}?GPU KV cache usage: <n>%".replace("<n>", NUMBER)
)
_PREFILL = "Prefill batch"
_SGLANG = re.compile(
    r"Prefill batch\b|(?:DP(\d{1,6})[^\n\]]{0,40}\] )?Decode batch[.,] #running-req: <n>, #(?:full )?token: <n>, "
    r"(?:full )?token usage: <n>, (?:[^\n,]{1,60}, ){0,8}?gen throughput \(token/s\): <n>"
    r"(?:, #queue-req: <n>)?".replace("<n>", NUMBER)
)
_ACCEPTED = "accept len: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line: requests, output tokens/s of the interval before it, share of the cache pool and tokens held in it.

    `prompts`: whether prompts were processed in that interval. `waiting` and `held` are None where not printed.
    """

    rank: str
    running: float
    tokens_per_s: float
    prompts: bool
    waiting: float | None
    usage_frac: float
    held: float | None


def stat_lines(text: str) -> tuple[str | None, dict, list[dict]]:
    """The last line's counts, and one run for the lines whose running requests gave a rate.

    >>> stat_lines("Decode batch. #running-req: 4, #token: 800, token usage: 0.40, "
    ...            "gen throughput (token/s): 200.00, #queue-req: 0\\n")[2][0]["time_s"]
    0.02
    """
    for source, lines in (("vllm server lines", _vllm(text)), ("sglang server lines", _sglang(text))):
        if lines:
            last = lines[-1]
            facts: dict = {"running": last.running, "waiting": last.waiting, "kv_usage_frac": last.usage_frac}
            facts |= {"kv_held_tokens": last.held, "generation_tokens_per_s": last.tokens_per_s}
            speculates = "SpecDecoding metrics:" in text or _ACCEPTED in text
            facts |= {"prompts_in_interval": last.prompts, "speculative": "printed" if speculates else None}
            return source, {k: v for k, v in facts.items() if v is not None}, [_run(lines)]
    return None, {}, []


def _vllm(text: str) -> list[Line]:
    lines = []
    for match in _VLLM.finditer(text):
        if (counts := _counts(match.groups()[1:])) is not None:
            prompts, rate, running, waiting, usage = counts
            one = Line(
                rank=match[1] or "",
                running=running,
                tokens_per_s=rate,
                prompts=prompts > 0,
                waiting=waiting,
                usage_frac=usage / 100,
                held=None,
            )
            lines.append(one)
    return lines


def _sglang(text: str) -> list[Line]:
    lines, prompts = [], False
    for match in _SGLANG.finditer(text):
        if match.group() == _PREFILL:
            prompts = True
            continue
        if (counts := _counts(match.groups()[1:5])) is not None:
            running, held, usage, rate = counts
            one = Line(
                rank=match[1] or "",
                running=running,
                tokens_per_s=rate,
                prompts=prompts,
                waiting=number(match[6]) if match[6] else None,
                usage_frac=usage,
                held=held,
            )
            lines.append(one)
        prompts = False
    return lines


def _counts(printed: Sequence[str]) -> list[float] | None:
    values = [value for value in map(number, printed) if value is not None and value >= 0]
    return values if len(values) == len(printed) else None


def _run(lines: list[Line]) -> dict:
    """The firm lines of the commonest number running, and of them the one with the median rate.

    Where none is firm: lines with as many running as before although prompts came, or without prompts. Those cannot
    show that a server is slow. A line with prompts and another number running says nothing of a step.
    """
    run = {"phase": "serve", "lines": len(lines), "idle": sum(not line.running for line in lines)}
    firm, loose = _usable(lines)
    usable = firm or loose
    if not usable:
        return run
    counts = Counter(line.running for _, line in usable)
    most = max(counts.values())
    running = next(line.running for _, line in reversed(usable) if counts[line.running] == most)
    alike = [pair for pair in usable if pair[1].running == running]
    rate = median_low(line.tokens_per_s for _, line in alike)
    least = min(next(pair for pair in alike if pair[1].tokens_per_s == rate), key=_size)
    run |= {"batch": running, "time_s": running / rate, "firm": bool(firm), "judged": len(alike)}
    return run | {"usage_frac": least.usage_frac, "held": least.held}  # the cache grows during the interval


def _size(line: Line) -> float:
    return line.usage_frac if line.held is None else line.held


def _usable(lines: list[Line]) -> tuple[list, list]:
    """Firm lines and others that say something of a step, each with the line that its interval starts at."""
    firm: list[tuple[Line, Line]] = []
    loose: list[tuple[Line, Line]] = []
    last: dict[str, Line] = {}
    for line in lines:
        before, last[line.rank] = last.get(line.rank), line
        if not line.running or not line.tokens_per_s:
            continue
        if before and before.running == line.running:
            grown = not line.prompts and _size(line) >= _size(before)
            (firm if grown else loose).append((before, line))
        elif not line.prompts:
            loose.append((line, line))
    return firm, loose
