"""A running server's lines, judged: the step behind the rate, and what makes requests wait."""

from .findings import Draft
from .memory import BLOCK_TOKENS
from .subject import Subject

FULL = 0.9  # of the cache pool: beyond it a waiting request waits for cache
PAIR = "two lines in a row with as many requests running and no prompts processed"
GPUS = "number of GPUs"
POOL = "size of the cache pool"


def step(draft: Draft, s: Subject, run: dict) -> dict | None:
    """The decode step behind a rate: batch = running, time = batch / rate; None where the lines do not tell.

    Its context is what the cache holds for each request: a prefix that they share counts once, so it is at most the
    context read. Without a pool the cache is left out, and the step cannot be called slow. Pipeline stages may each
    work on a part of the requests. Without the number of GPUs no step is impossible.
    """
    if "batch" not in run:
        draft.lacks(PAIR if run["idle"] < run["lines"] else "a line with requests running")
        return None
    found = {"phase": "decode", "batch": run["batch"] / s.pp, "time_s": run["time_s"]}
    held = _held(draft, s, run)
    if held is not None:
        found["context"] = held / run["batch"]
    else:
        draft.notes.append("the bytes of the cache are left out of the floor: its size in tokens is not stated")
    return found | {"unsure": _unsure(draft.facts, run["firm"], held is not None)}


def _unsure(facts: dict, firm: bool, pool_known: bool) -> dict:
    """What is missing before a step may be called slow or impossible."""
    if not firm:
        return {"slow": PAIR, "impossible": PAIR}
    unsure = {} if pool_known else {"slow": POOL}
    return unsure if {"tp", "n_gpus"} & set(facts) else unsure | {"impossible": GPUS}


def _held(draft: Draft, s: Subject, run: dict) -> float | None:
    """Tokens in the cache: printed, or the share in use of the pool less the half block that a request leaves empty."""
    assert s.model
    if run["held"] is not None:
        return run["held"]
    pool = draft.facts.get("kv_pool_holds_tokens")
    if not pool or s.model.state_bytes():  # pages that hold a state are not tokens
        return None
    return max(run["usage_frac"] * pool - run["batch"] * BLOCK_TOKENS / 2, 0.0)


def describe(draft: Draft, runs: list[dict]) -> None:
    """Which lines count, what is in the queue and why, and shares of the cache that cannot be."""
    for run in (run for run in runs if run["phase"] == "serve"):
        _chosen(draft, run)
        _queue(draft, run)


def _chosen(draft: Draft, run: dict) -> None:
    if run["idle"]:
        draft.notes.append(f"{run['idle']} of {run['lines']} lines show nothing running: their rates say nothing")
    if "batch" not in run:
        return
    line, each = f"{run['judged']} of {run['lines']} lines count", "as many running as in the line before, no prompts"
    if run["firm"]:
        draft.notes.append(f"{line} ({each}); the one of median rate is judged")
        return
    draft.notes.append(
        f"{line}, none of them firm ({each}): prompts slow generation, a rate is an average and a count of one moment"
    )


def _queue(draft: Draft, run: dict) -> None:
    facts = draft.facts
    used, waiting = facts["kv_usage_frac"], facts.get("waiting")
    pool, held = facts.get("kv_tokens"), facts.get("kv_held_tokens", 0)
    if used > 1 or (pool and held > pool):
        draft.findings.append(("impossible", "the last line has more in the cache than the pool holds"))
    if facts["prompts_in_interval"]:
        draft.notes.append("the last line: prompts were processed in its interval, which slows generation")
    if not waiting:
        return
    said = f"the last line: {waiting:,} requests wait, {facts['running']:,} run with {used:.1%} of the cache in use"
    if used >= FULL:
        draft.notes.append(f"{said}: the cache limits how many run")
        draft.advice.append("more cache: fp8 tokens, a larger share of the GPU, smaller weights or more GPUs")
        return
    why = "a limit on running sequences or on prompt tokens of a step, or a next prompt longer than the free cache"
    draft.notes.append(f"{said}: {why}")
    draft.advice.append("a higher limit on running sequences (max_num_seqs, max-running-requests)")
