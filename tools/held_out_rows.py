"""Predict every served row of the measured tables by fits that saw neither its model nor its GPU, and keep the list.

python tools/held_out_rows.py            write econ/data/profiles/held_out.csv (under a minute)
python tools/held_out_rows.py --check    exit 1 if the file is not what the fits give now

Each row has the published value and four predictions, in seconds or tokens per second. `roofline`, `one` and `two` are
the models of tools/baselines.py, with no constant, one, and a share of each ceiling, fitted for each quantity on its
own. `general` has all constants of that profile. `rule` is the rule of tools/fit_general.py that leaves the row out of
every fit, 0 for none: it is predicted all the same.
"""

import csv
import io
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import baselines  # noqa: E402
import fit_general as fg  # noqa: E402
import robust  # noqa: E402
from heldout import held_out  # noqa: E402

PATH = fg.DATA / "profiles" / "held_out.csv"
KINDS = ("ttft", "tpot", "throughput")
COLUMNS = ("quantity", "gpu", "model", "engine", "n_gpus", "concurrency", "prompt", "output", "rule", "measured",
           "roofline", "one", "two", "general")
SCHEME = "gpu and model"


def roofline(n: int, t: dict, some: list, weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """log(predicted / measured) of every row by a roofline with n shares."""
    errors = np.full(len(some), np.nan)
    for kind in range(len(KINDS)):
        mine = t["load"][5] == kind
        part, own, use = fg.pick(t, mine), weights[mine], kept[mine]

        def fit(train, _engines, part=part, own=own, use=use):
            seen = fg.pick(part, train & use)
            start = np.full(n, 0.5)
            return robust.fit(lambda x: baselines.served(x, seen), start, seen["value"], own[train & use])

        def apply(shares, test, part=part):
            asked = fg.pick(part, test)
            return np.log(baselines.served(shares, asked) / asked["value"])

        ours = [k for k, m in zip(some, mine, strict=True) if m]
        errors[mine] = held_out(ours, SCHEME, fit, apply) if n else apply(np.ones(1), np.ones(len(ours), bool))
    return errors


def general(t: dict, some: list, weights: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The same by all constants of the profile."""
    start = fg.fit_served(t, weights, kept)

    def apply(constants, test):
        part = fg.pick(t, test)
        return np.log(fg.predict(*constants, part) / part["value"])

    return held_out(some, SCHEME, lambda train, engines: fg.fit_served(t, weights, kept & train, engines, start), apply)


def text() -> str:
    """The file."""
    served = [k for k in fg.known() if k.q.kind in KINDS]
    pairs = [(k, rule) for k, rule in zip(served, fg.rules(served), strict=True) if rule != 1]
    some, kept = [k for k, _ in pairs], np.array([rule == 0 for _, rule in pairs])
    t, weights = fg.table(some), robust.cell_weights([k.cell for k in some])
    errors = [roofline(n, t, some, weights, kept) for n in (0, 1, 2)] + [general(t, some, weights, kept)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (k, rule), *off in zip(pairs, *errors, strict=True):
        q, measured, gpus = k.q, k.value / k.q.scale, k.q.deployment.n_gpus
        load = (f"{x:g}" for x in (q.concurrency, q.prompt, q.output))
        numbers = (f"{x:.4g}" for x in (measured, *measured * np.exp(off)))
        writer.writerow([q.kind, k.groups["gpu"], k.groups["model"], q.engine, gpus, *load, rule, *numbers])
    return out.getvalue()


def main(argv: list[str]) -> int:
    """Write the file, or with --check compare."""
    new = text()
    if "--check" in argv:
        current = PATH.exists() and PATH.read_text(encoding="utf-8") == new
        print("The list is current." if current else f"{PATH.name} is out of date: run python tools/held_out_rows.py")
        return 0 if current else 1
    PATH.write_text(new, encoding="utf-8")
    print(f"{PATH.name}: {len(new.splitlines()) - 1:,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
