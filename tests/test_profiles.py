"""The fitted profile is what its script gives, and it predicts measured runs within the error it states."""

import importlib.util
from pathlib import Path

import pytest

import econ
from econ.profiles import profiles

np = pytest.importorskip("numpy", reason="numpy is not installed")
ROOT = Path(__file__).resolve().parent.parent
NAME = "vllm-h100-llama70b-2025-03"

# Seconds of a whole batch, 2,035 tokens in and 300 out, as the article prints them (tensoreconomics2025).
PRINTED_S = {1: 5.5652, 2: 5.8316, 4: 6.5805, 8: 7.5071, 16: 8.9668, 32: 12.4107, 64: 19.9280, 128: 36.8083}


def tool():
    spec = importlib.util.spec_from_file_location("fit_profiles", ROOT / "tools" / "fit_profiles.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_what_the_fit_gives():
    assert tool().main(["--check"]) == 0


def test_the_article_points_are_predicted_by_a_fit_that_did_not_see_them():
    fitting = tool()
    unseen = [
        r for r in fitting.runs() if not (1_900 <= r["mean_input_tokens"] <= 2_200 or r["mean_input_tokens"] > 15_000)
    ]
    factors, _ = fitting.fit(unseen)
    rows = [
        {"batch": float(b), "mean_input_tokens": 2_035.0, "mean_output_tokens": 300.0, "elapsed_s": t}
        for b, t in PRINTED_S.items()
    ]
    assert abs(fitting.errors(factors, rows)).max() < 0.07


def test_dropped_runs_are_all_slow():
    fitting = tool()
    rows = fitting.runs()
    factors, kept = fitting.fit(rows)
    dropped = [r for r, keep in zip(rows, kept, strict=True) if not keep]
    assert 30 <= len(dropped) <= 50
    assert (fitting.errors(factors, dropped) < 0).all()


@pytest.mark.parametrize("batch", PRINTED_S)
def test_a_deployment_with_the_profile_predicts_the_article_points(batch):
    d = econ.Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4, profile=NAME)
    assert d.request(batch, 2_035, 300).total_s == pytest.approx(PRINTED_S[batch], rel=0.07)


def test_nothing_is_faster_than_the_floor():
    for name in profiles():
        for n, model in ((4, "llama-3.3-70b"), (1, "llama-3.1-8b")):
            floor = econ.Deployment(model, "h100-sxm", n_gpus=n)
            real = econ.Deployment(model, "h100-sxm", n_gpus=n, profile=name)
            for batch, context in ((1, 1), (8, 2_048), (32, 9_000)):
                assert real.decode(batch, context).time_s >= floor.decode(batch, context).time_s
                assert real.prefill(1, context).time_s >= floor.prefill(1, context).time_s
                assert real.decode(batch, context).mbu_frac <= 1


def test_an_unknown_profile_gets_the_nearest():
    with pytest.raises(econ.UnknownName, match=NAME):
        econ.load_profile("vllm-h100")


def test_a_profile_that_does_not_know_the_engine_is_less_sure():
    unknown, known = (econ.load_profile(n).interval("ttft", 1.0) for n in ("general", "general/vllm"))
    assert unknown[0] < known[0] < 1 < known[1] < unknown[1]
