"""Simpler models on the same rows, left out in the same way: what a profile must beat.

The roofline gives each pass the longer of its FLOPs at the peak and its bytes at full bandwidth, and nothing else. One
constant multiplies all of it; two are a share of each ceiling. Constants are fitted for each quantity on its own,
which favours these models over a profile, whose constants are shared.
"""

import numpy as np
import robust
from heldout import held_out, summary

FORMS = {"roofline": 0, "one constant": 1, "two constants": 2}  # and how many constants are fitted


def served(shares: np.ndarray, t: dict) -> np.ndarray:
    """The number that each served row asks for; `t` is fit_general's table."""
    running, groups, output, replicas, scale, kind, _ = t["load"]
    step, prompt = longer(shares, *t["step"][:2]), longer(shares, *t["prompt"][:2])
    cycle = running * prompt / groups + (output - 1) * step
    tpot = step + running * prompt / groups / np.maximum(output - 1, 1)
    return scale * np.choose(kind.astype(int), [prompt, tpot, replicas * running * output / cycle])


def local(shares: np.ndarray, t: dict) -> np.ndarray:
    """Tokens per second of one sequence; `t` is fit_general's local table."""
    return t["part"][-1] / longer(shares, t["part"][0], t["part"][1])


def longer(shares: np.ndarray, flops: np.ndarray, memory: np.ndarray) -> np.ndarray:
    return np.maximum(flops / shares[0], memory / shares[-1])


def errors(form, pick, t: dict, some: list, weights: np.ndarray) -> dict[str, list]:
    """Median and mean error in per cent of each model, the worse of GPU and model left out."""
    found = {}
    for name, n in FORMS.items():
        def fit(train, _engines, n=n):
            part = pick(t, train)
            start = np.full(max(n, 1), 0.5)
            return robust.fit(lambda x: form(x, part), start, part["value"], weights[train]) if n else np.ones(1)

        def apply(shares, test):
            part = pick(t, test)
            return np.log(form(shares, part) / part["value"])

        left_out = [summary(held_out(some, scheme, fit, apply)) for scheme in ("gpu", "model")]
        found[name] = [max(e[i] for e in left_out) for i in (1, 2)]
    return found
