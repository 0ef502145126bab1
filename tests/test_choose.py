"""The choice of GPUs against trying every accelerator, count and degree by hand."""

import dataclasses

import pytest

import econ
from econ import Deployment, DoesNotFit, Profile, accelerators, compare, load_accelerator

pytestmark = pytest.mark.core

LIMITS = dict(slo_ttft_s=0.5, slo_tpot_s=0.02)


def tried(model, prompt, output, slo_ttft_s, slo_tpot_s, **options):
    """(name, n) -> the most tokens per second within the limits, over all ways to split n GPUs, at a few loads."""
    best = {}
    for name in accelerators():
        g = load_accelerator(name)
        if (g.visible_bytes or g.printed_bytes) is None or not {"bf16", "fp16"} & set(g.peaks):
            continue
        for n in (1, 2, 4, 8):
            for tp in (t for t in (1, 2, 4, 8) if n % t == 0):
                try:
                    d = Deployment(model, g, n_gpus=n, tp=tp, dp=n // tp, **options)
                    loads = [d.serve(n // tp * c, prompt, output) for c in (1, 4, 16, 64, 256, 1024)]
                except (DoesNotFit, ValueError):
                    continue
                for v in loads:
                    if v.queued == 0 and v.ttft_s <= slo_ttft_s and v.tpot_s <= slo_tpot_s:
                        best[name, n] = max(best.get((name, n), 0), v.output_tokens_per_s)
    return best


@pytest.mark.parametrize("model, options", [("llama-3.1-8b", {}), ("mixtral-8x7b-v0.1", dict(kv="fp8"))])
def test_every_row_is_the_best_of_all_that_were_tried(model, options):
    rows = {(r.accelerator, r.n_gpus): r for r in compare(model, 1000, 200, **LIMITS, **options)}
    best = tried(model, 1000, 200, **LIMITS, **options)
    assert set(rows) == set(best) and len(rows) > 20
    for key, r in rows.items():
        assert r.output_tokens_per_s >= best[key] * (1 - 1e-9)  # the few loads miss the best one itself
        assert r.ttft_s <= 0.5 and r.tpot_s <= 0.02


@pytest.mark.parametrize("model", ["llama-3.1-8b", "falcon-7b"])  # the second is not divided, so replicas
def test_a_row_is_a_deployment_at_its_load(model):
    rows = compare(model, 1000, 200, **LIMITS, prices={"h100-sxm": 2.5, "L4": 0.7})
    for r in (row for row in rows if row.accelerator in ("h100-sxm", "l4")):
        d = Deployment(model, r.accelerator, n_gpus=r.n_gpus, tp=r.tp, dp=r.n_gpus // r.tp)
        v = d.serve(r.running_batch, 1000, 200)
        assert (v.ttft_s, v.tpot_s) == (r.ttft_s, r.tpot_s)
        assert v.output_tokens_per_s == pytest.approx(r.output_tokens_per_s, rel=1e-12) and v.queued == 0
        usd = {"h100-sxm": 2.5, "l4": 0.7}[r.accelerator]
        assert r.usd_per_hour == usd * r.n_gpus
        c = d.cost(usd, r.running_batch, 1000, 200)
        assert r.usd_per_mtok_blended == pytest.approx(c.usd_per_mtok_blended, rel=1e-12)


def test_cheapest_first_and_unpriced_last():
    rows = compare("llama-3.1-8b", 1000, 200)
    costs = [r.usd_per_mtok_blended for r in rows]
    priced = [c for c in costs if c is not None]
    assert costs == sorted(priced) + [None] * (len(costs) - len(priced)) and 0 < len(priced) < len(costs)
    rates = [r.output_tokens_per_s for r in rows[len(priced):]]
    assert rates == sorted(rates, reverse=True)
    assert all((r.usd_per_hour is None) == (r.usd_per_mtok_blended is None) for r in rows)


def test_what_stops_the_load_is_named():
    free, tight = (compare("llama-3.1-8b", 1000, 200, slo_tpot_s=s, prices={}) for s in (10, 0.01))
    assert {r.limited_by for r in free} == {"kv"} and {r.limited_by for r in tight} >= {"concurrency"}
    assert {r.limited_by for r in compare("llama-3.1-8b", 1000, 200, prices={}, max_running=4)} == {"engine"}


def test_limits_that_nothing_meets_leave_nothing():
    assert compare("llama-3.1-8b", 1000, 200, slo_tpot_s=1e-6) == []


def test_one_gpu_cannot_hold_the_70b_and_71_heads_are_not_divided():
    rows = compare("llama-3.3-70b", 1000, 200)
    assert min(r.n_gpus for r in rows if r.accelerator == "h100-sxm") == 2
    assert {r.tp for r in compare("falcon-7b", 1000, 200)} == {1}  # 71 heads


def test_links_are_needed_only_by_a_profile_that_counts_them():
    counted = Profile(name="links", link_frac=0.8, collective_s=1e-5)
    linkless = {name for name in accelerators() if load_accelerator(name).link is None}
    degrees = [{r.tp for r in compare(model, 1000, 200, profile=counted, **link) if r.accelerator in linkless}
               for model, link in (("llama-3.1-8b", {}), ("llama-3.3-70b", {}), ("llama-3.3-70b", dict(link=32e9)))]
    assert degrees[:2] == [{1}, set()] and max(degrees[2]) > 1


@pytest.mark.parametrize("call, said", [
    (lambda: compare("llama-3.1-8b", slo_tpot_s="fast"), "slo_tpot_s='fast'"),
    (lambda: compare("llama-3.1-9b"), "nearest"),
    (lambda: compare("llama-3.1-8b", slo_ttft_s=-1), "slo_ttft_s=-1"),
    (lambda: compare("llama-3.1-8b", prompt=0), "prompt=0"),
    (lambda: compare("llama-3.1-8b", prices={"h1000": 1}), "nearest"),
    (lambda: compare("llama-3.1-8b", prices={"h100-sxm": "2"}), "'2'"),
    (lambda: compare("llama-3.1-8b", prices={"h100-sxm": -2}), "-2"),
    (lambda: compare("llama-3.1-8b", kv="fp7"), "fp7"),
    (lambda: compare("llama-3.1-8b", prompt=10**6), "beyond the 131,072")])
def test_bad_questions(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_a_row_has_the_columns_of_the_contract():
    assert [f.name for f in dataclasses.fields(econ.choose.Choice)] == [
        "accelerator", "n_gpus", "tp", "ttft_s", "tpot_s", "output_tokens_per_s", "running_batch", "limited_by",
        "usd_per_hour", "usd_per_mtok_blended"]
