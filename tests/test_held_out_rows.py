"""The list of held-out predictions is what its script gives, and says what the profile says."""

import csv
import importlib
import sys
from pathlib import Path

import pytest

import econ

np = pytest.importorskip("numpy", reason="numpy is not installed")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
rows = importlib.import_module("held_out_rows")

with open(rows.PATH, encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


def errors(kind: str, model: str, rule=None):
    return np.array([float(r[model]) / float(r["measured"]) - 1 for r in ROWS
                     if r["quantity"] == kind and (rule is None or r["rule"] == rule)])


def test_the_list_is_what_the_fits_give():
    assert rows.main(["--check"]) == 0


@pytest.mark.parametrize("kind", rows.KINDS)
def test_it_agrees_with_the_errors_that_the_profile_states(kind):
    rows, median, mean = econ.load_profile("general").fitted["errors"][kind]["gpu and model"]
    found = np.abs(errors(kind, "general", "0"))
    assert len(found) == rows
    assert (100 * np.median(found), 100 * found.mean()) == pytest.approx((median, mean), abs=0.15)


@pytest.mark.parametrize("kind", rows.KINDS)
def test_rows_left_out_are_counted_as_in_the_profile(kind):
    every, *by_rule = econ.load_profile("general").fitted["rows"][kind]
    rules = [r["rule"] for r in ROWS if r["quantity"] == kind]
    assert len(rules) == every
    assert [rules.count(str(number)) for number in range(2, 6)] == by_rule


def test_more_constants_do_better_on_groups_left_out():
    for kind in rows.KINDS:
        plain, one, general = (np.median(np.abs(errors(kind, m, "0"))) for m in ("roofline", "one", "general"))
        assert general < 0.7 * one < 0.7 * plain


def test_published_values_stand_as_published():
    with open(rows.PATH.parents[1] / "measured" / "latency.csv", encoding="utf-8", newline="") as file:
        published = {float(r["value"]) / 1e3 for r in csv.DictReader(file) if r["metric"] == "tpot_ms"}
    listed = [float(r["measured"]) for r in ROWS if r["quantity"] == "tpot"]
    nearest = np.abs(np.array(sorted(published))[None] / np.array(listed)[:, None] - 1).min(axis=1)
    assert nearest.max() < 1e-3


def test_the_roofline_is_hardly_ever_beaten():
    """Where it is, prompts shared passes, or more sequences ran than we assume."""
    kept = [r for r in ROWS if r["rule"] == "0" and r["quantity"] != "ttft"]
    speed = [float(r["measured"]) / float(r["roofline"]) for r in kept if r["quantity"] == "throughput"]
    speed += [float(r["roofline"]) / float(r["measured"]) for r in kept if r["quantity"] == "tpot"]
    assert sum(x > 1 for x in speed) < 0.01 * len(speed)
