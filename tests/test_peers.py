"""What other estimators said is stored whole, bounds ours where it should, and is shown as it was stored."""

import csv
import datetime
import importlib
import math
import re
import sys
from pathlib import Path

import pytest

import econ

pytest.importorskip("numpy", reason="numpy is not installed")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
calls, page, peers = (importlib.import_module(name) for name in ("peer_calls", "peer_page", "peers"))
STORE = ROOT / "tests" / "data" / "peers"
PAGE = (ROOT / "peers.md").read_text(encoding="utf-8")
STEP = re.compile(r"(llama-3\.1-(?:8b|70b)) tp(\d) (prefill|decode) b(\d+)")


def table(name):
    with open(STORE / name, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


RESULTS, PACKAGES = table("results.csv"), table("packages.csv")
EVERY = RESULTS + table("earlier.csv")


def floor_s(case):
    """The larger of FLOPs / 989e12 and bytes / 3.35e12 of the article's H100, per GPU."""
    model, tp, ask, batch = STEP.fullmatch(case).groups()
    d = econ.Deployment(model, "h100-sxm", n_gpus=int(tp), gpu_mem_frac=1.0)
    return getattr(d, ask)(int(batch), 2048).time_s


def below_floor():
    return [row for row in EVERY if STEP.fullmatch(row["case"]) and row["value"]
            and float(row["value"]) < floor_s(row["case"])]


def test_every_package_has_a_version_and_a_day():
    assert {row["peer"] for row in PACKAGES} == set(peers.PACKAGES)
    for row in PACKAGES:
        assert re.fullmatch(r"\d+(\.\w+)+", row["version"])
        assert datetime.date(2026, 11, 1) <= datetime.date.fromisoformat(row["date"])
        assert int(row["environment_mb"]) > 0 and int(row["every"]) >= 1


def test_every_line_is_a_number_or_a_reason():
    for row in EVERY:
        refused = row["case"] == "published rows refused"
        assert row["unit"] == ("rows" if refused else peers.UNITS[row["quantity"]])
        assert bool(row["reason"]) == (refused or not row["value"])
        assert not row["value"] or 0 < float(row["value"]) < math.inf
        assert not re.search(r"/(tmp|home|root|work)/", row["reason"])


def test_every_peer_was_asked_the_whole_task():
    for peer in set(peers.PACKAGES) - {"econ"}:
        asked = {(row["variant"], row["case"]) for row in RESULTS if row["peer"] == peer}
        assert {(variant, name) for _, name, variant in peers.common(peer)} <= asked


def test_every_published_row_is_answered_or_counted_as_refused():
    published = {name for _, name, _ in peers.published()}
    for row in PACKAGES:
        mine = [line for line in RESULTS if line["peer"] == row["peer"]]
        answered = [line["case"] for line in mine if re.fullmatch(r"[A-Z]+\d+", line["case"])]
        refused = sum(int(line["value"]) for line in mine if line["case"] == "published rows refused")
        assert len(answered) == len(set(answered)) and set(answered) <= published
        assert len(answered) + refused == int(row["rows_asked"])


def test_thinning_keeps_all_rows_of_a_setting_and_every_single_stream():
    some = peers.thinned(peers.published(), 8)
    cases = {case for case, *_ in some}
    assert [entry for entry in peers.published() if entry[0] in cases] == some
    assert sum(case.ask == "decode" for case, *_ in some) == sum(
        case.ask == "decode" for case, *_ in peers.published())


@pytest.mark.parametrize("batch", [1, 32, 256])
def test_a_roofline_by_others_confirms_the_floor(batch):
    case = f"llama-3.1-8b tp1 decode b{batch}"
    theirs = next(float(row["value"]) for row in RESULTS if row["variant"] == "SOL" and row["case"] == case)
    assert floor_s(case) <= theirs <= 1.05 * floor_s(case)


def test_no_time_below_the_floor_is_hidden():
    marked = re.findall(r"([\d.]+)!", PAGE)
    assert below_floor() and sorted(map(float, marked)) == pytest.approx(
        sorted(1e3 * float(row["value"]) for row in below_floor()), rel=1e-3)
    assert {row["peer"] for row in below_floor()} == {"genz"}  # which the page explains


@pytest.mark.parametrize("row", [r for r in EVERY if STEP.fullmatch(r["case"]) and r["value"]],
                         ids=lambda r: f"{r['peer']} {r['variant']} {r['case']}")
def test_the_page_shows_what_was_stored(row):
    model, tp, *_ = STEP.fullmatch(row["case"]).groups()
    number = ("llama-3.1-8b", "llama-3.1-8b", "llama-3.1-70b").index(model) + (2 if (model, tp) == (
        "llama-3.1-8b", "4") else 1)
    block = PAGE.split(f"<!-- computed: steps_{3 if '70b' in model else number} -->")[1].split("<!-- end -->")[0]
    shown = [float(text) for text in re.findall(r"[\d.]+", block)]
    assert any(value == pytest.approx(1e3 * float(row["value"]), rel=1e-3) for value in shown)


def test_left_out_errors_are_those_of_the_profile():
    rows = [entry for entry in page.left_out().values() if entry.known.q.kind == "tpot" and not entry.rule]
    for scheme in ("gpu", "model"):
        n, median, mean = econ.load_profile("general").fitted["errors"]["tpot"][scheme]
        found = page.summary([getattr(entry, scheme) for entry in rows])
        assert len(rows) == n and found == pytest.approx((median, mean), abs=0.06)


def test_where_the_page_calls_the_strongest_peer_better_or_worse():
    # peers.md and chapter 15 say so
    kept = {q: [pair for pair in found if not pair[0].rule] for q, found in page.pairs("aiconfigurator").items()}
    (tpot, own_tpot), (ttft, own_ttft), (rate, own_rate) = (
        page.compared(kept[q]) for q in ("tpot", "ttft", "throughput"))
    assert tpot[0] < own_tpot[0] and rate[0] < own_rate[0] and ttft[0] > own_ttft[0]
    assert tpot[1] > own_tpot[1] and ttft[1] > own_ttft[1] and rate[1] > own_rate[1]
    assert max(abs(error) for _, error in kept["tpot"]) > math.log(2)


def test_errors_are_those_of_the_ratio():
    assert page.summary([math.log(1.1), math.log(0.8), math.log(1.5)]) == pytest.approx((20, 80 / 3))


def test_a_load_put_together_from_passes_is_that_of_the_floor():
    d = econ.Deployment("llama-3.1-8b", "h100-sxm")
    case = {"ask": "served", "batch": 16, "prompt": 1000, "output": 201, "pp": 1, "dp": 1}

    @calls.served
    def step(case):
        return {"time_s": getattr(d, case["ask"])(case["batch"], case["prompt"]).time_s}

    found, load = step(case), d.serve(16, 1000, 201)
    assert found["tpot_s"] == pytest.approx(load.tpot_s, rel=1e-3)
    assert found["output_tokens_per_s"] == pytest.approx(load.output_tokens_per_s, rel=1e-3)


def test_a_peer_that_fails_says_why():
    def exits(case):
        raise SystemExit("no such model")

    assert calls.answer(exits, {})["reason"] == "SystemExit: no such model"
    assert calls.answer(lambda case: {"time_s": 1 / case["n"]}, {"n": 0})["reason"].startswith("ZeroDivisionError")
    assert calls.answer(lambda case: {"time_s": 2}, {})["found"] == {"time_s": 2.0}


def test_cases_are_read_without_their_values():
    for case, name, quantity in peers.published()[::50]:
        assert case.batch >= 1 and quantity in peers.UNITS and name and case.tp * case.dp % case.ep == 0
