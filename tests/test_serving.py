"""Serving against the formula worked out from measured passes, Little's law, a published benchmark, and its limits."""

import dataclasses
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from econ import Deployment, DoesNotFit, Profile, load_accelerator
from econ.model import touched
from econ.profiles import profiles
from econ.serving import Load

pytestmark = pytest.mark.core

BIG = dataclasses.replace(load_accelerator("h100-sxm"), visible_bytes=10**13)
SLOW = Profile(name="slow", flop_frac=0.5, weight_frac=0.6, kv_frac=0.5, link_frac=0.5, collective_s=1e-5,
               expert_s=1e-6, sequence_s=1e-5, step_s=1e-4, long_context_s=1e-3, long_context_tokens=4000)
D70, D8 = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), Deployment("llama-3.1-8b", "h100-sxm")
TIMES = tuple(f.name for f in dataclasses.fields(Load) if f.name not in ("limited_by", "feasible"))
MODELS = ["llama-3.3-70b", "llama-3.1-8b", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b", "jamba-v0.1"]
deployments = st.tuples(st.sampled_from(MODELS[1:]), st.sampled_from([(1, 1), (2, 1), (1, 4), (1, 2)]),
                        st.sampled_from(["ideal", SLOW]))


@cache
def deploy(setting):
    model, (tp, pp), profile = setting
    return Deployment(model, BIG, n_gpus=4, tp=tp, dp=4 // tp // pp, pp=pp, profile=profile)


def passes(d, running, prompt, output):
    """The two passes of the formula, each from its own question."""
    return d.prefill(1, prompt).time_s, d.decode(running, prompt + output / 2).time_s


# The formula.
@pytest.mark.parametrize("d, concurrency, prompt, output", [
    (D70, 1, 2048, 300), (D70, 64, 2048, 300), (D70, 7, 100, 2), (D8, 33, 512, 128), (D8, 300, 2048, 300),
    (Deployment("llama-3.1-8b", "h100-sxm", n_gpus=2, dp=2), 33, 512, 128),
    (Deployment("llama-3.1-8b", "h100-sxm", max_running=8), 33, 512, 128),
    (Deployment("deepseek-v3", "h200-sxm", n_gpus=8, tp=1, dp=8, ep=8), 100, 1000, 200)])
def test_one_cycle_by_hand(d, concurrency, prompt, output):
    held = d.memory(1, prompt + output).max_batch
    running = min(concurrency / d.dp, held, d.max_running or math.inf)
    p, t = passes(d, running, prompt, output)
    cycle = running * p + (output - 1) * t
    v = d.serve(concurrency, prompt, output)
    assert v.output_tokens_per_s == pytest.approx(d.dp * running * output / cycle, rel=1e-12)
    assert v.tpot_s == pytest.approx(t + running * p / (output - 1), rel=1e-12)
    assert v.ttft_s == pytest.approx(p + (concurrency / d.dp - running) * cycle / running, rel=1e-12)
    assert (v.running_batch, v.queued) == (d.dp * running, concurrency - d.dp * running)
    assert v.limited_by == ("concurrency" if running == concurrency / d.dp else "engine" if running == d.max_running
                            else "kv")
    assert (v.prefill_s, v.decode_s) == (p, t) and v.itl_max_s == pytest.approx(p + t) and v.feasible is True


def test_one_output_token_is_prefill_alone():
    v = D70.serve(16, 2048, 1)
    p = D70.prefill(1, 2048).time_s
    assert v.requests_per_s == pytest.approx(1 / p) and v.output_tokens_per_s == pytest.approx(1 / p)
    assert v.tpot_s == D70.decode(16, 2048.5).time_s and v.ttft_s == p


def test_the_last_token_takes_no_step():
    """300 tokens are 299 steps: the first comes out of the prefill."""
    v = D70.serve(1, 2048, 300)
    assert v.cycle_s == pytest.approx(v.prefill_s + 299 * v.decode_s, rel=1e-12)


@given(deployments, st.integers(1, 3000), st.integers(1, 4000), st.integers(1, 500))
def test_littles_law(setting, concurrency, prompt, output):
    """What runs is the rate times the time in the batch, what waits the rate times the wait."""
    d = deploy(setting)
    v = d.serve(concurrency, prompt, output)
    replicas = min(concurrency, d.dp)
    assert v.running_batch == pytest.approx(v.requests_per_s * v.cycle_s, rel=1e-9)
    assert v.running_batch + v.queued == pytest.approx(concurrency, rel=1e-12)
    p = d.prefill(1, prompt).time_s
    assert v.queued == pytest.approx(v.requests_per_s * (v.ttft_s - p), rel=1e-6, abs=1e-6)
    assert v.output_tokens_per_s == pytest.approx(v.requests_per_s * output, rel=1e-12)
    assert v.running_batch <= replicas * d.memory(1, prompt + output).max_batch


# NVIDIA NIM 1.8.0: Llama-3.3-70B fp8 on 2 H100, 5,000 tokens in and 500 out, concurrency -> TTFT s, ITL ms, tok/s.
NIM = {1: (0.40677, 18.58, 51.67), 25: (0.68869, 38.75, 623.4), 50: (0.83451, 59.73, 814.37),
       100: (7.99625, 92.91, 917.26), 200: (61.680, 93.06, 920.54), 250: (88.605, 93.2, 920.12)}
FP8 = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2, weights="fp8", kv="fp8")


def test_the_cache_of_two_gpus_holds_the_batch_that_runs():
    """Little's law on the measured plateau gives 85.7 sequences; the cache would hold 96.9 of the mean length, 5,250,
    in 90 % of the visible 85.52e9 B beside 70.55 GB of weights."""
    rate, gap_s = 920.54, 0.09306
    assert rate * gap_s == pytest.approx(85.7, abs=0.05)
    weights = 70.55e9
    pool = 0.9 * 2 * 85.52e9 - weights
    assert pool / 163_840 / 5250 == pytest.approx(96.9, abs=0.1)
    here = FP8.memory(1, 5250)
    tables = 2 * 2 * 128_256 * 8192 / 2  # econ keeps the two tables in 16 bits
    assert 2 * here.weight_bytes == pytest.approx(weights + tables, rel=2e-3)
    assert (2 * here.budget_bytes - weights) / 163_840 / 5250 == pytest.approx(96.9, abs=0.1)
    assert here.max_batch == pytest.approx((pool - tables) / 163_840 / 5250, abs=1)


def test_a_full_cache_queues_and_does_not_speed_up():
    """The published shape: throughput and ITL stop at the batch that fits, TTFT grows with the queue."""
    v = {c: FP8.serve(c, 5000, 500) for c in NIM}
    assert v[50].limited_by == "concurrency" and v[50].queued == 0
    for c in (100, 200, 250):
        assert v[c].limited_by == "kv" and v[c].queued == c - v[c].running_batch > 0
        assert (v[c].output_tokens_per_s, v[c].tpot_s) == (v[100].output_tokens_per_s, v[100].tpot_s)
    measured = (NIM[250][0] - NIM[200][0]) * NIM[250][2] / 500  # 50 more clients wait for 50 requests to be served
    modelled = (v[250].ttft_s - v[200].ttft_s) * v[250].requests_per_s
    assert measured == pytest.approx(50, rel=0.02) and modelled == pytest.approx(50, rel=1e-9)


def test_nothing_measured_beats_the_floor():
    for concurrency, (ttft, itl_ms, rate) in NIM.items():
        v = FP8.serve(concurrency, 5000, 500)
        assert v.prefill_s < ttft and v.decode_s < itl_ms / 1e3
        if concurrency <= 50:
            assert v.output_tokens_per_s > rate


def test_a_fitted_prediction_of_the_article_benchmark():
    """Serving 16 clients of 2,035 in and 300 out: the article measured 535.3 tok/s for a batch that starts together."""
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4, profile="vllm-h100-llama70b-2025-03")
    assert d.serve(16, 2035, 300).output_tokens_per_s == pytest.approx(535.3, rel=0.06)


# Laws.
@given(deployments, st.integers(1, 1000), st.integers(1, 4000), st.integers(1, 500), st.integers(1, 400))
def test_more_clients_never_lower_throughput_nor_any_time(setting, concurrency, prompt, output, more):
    d = deploy(setting)
    v, w = d.serve(concurrency, prompt, output), d.serve(concurrency + more, prompt, output)
    assert w.output_tokens_per_s >= v.output_tokens_per_s * (1 - 1e-9)
    assert w.tpot_s >= v.tpot_s * (1 - 1e-9) and w.ttft_s >= v.ttft_s * (1 - 1e-9)
    assert w.running_batch >= v.running_batch


@given(deployments, st.integers(1, 1000), st.integers(1, 4000), st.integers(2, 500))
def test_longer_requests_never_give_more_requests(setting, concurrency, prompt, output):
    d = deploy(setting)
    v = d.serve(concurrency, prompt, output)
    assert d.serve(concurrency, prompt + 50, output).requests_per_s <= v.requests_per_s * (1 + 1e-9)
    assert d.serve(concurrency, prompt, output + 50).requests_per_s <= v.requests_per_s * (1 + 1e-9)


@given(st.sampled_from(MODELS[1:]), st.integers(1, 1000), st.integers(1, 4000), st.integers(1, 500),
       st.sampled_from(["hbm_bytes_per_s", "peaks"]), st.floats(1, 10))
def test_a_better_gpu_never_serves_less(model, concurrency, prompt, output, what, times):
    better = {"hbm_bytes_per_s": BIG.hbm_bytes_per_s * times, "peaks": {k: v * times for k, v in BIG.peaks.items()}}
    v, w = (Deployment(model, g, profile=SLOW).serve(concurrency, prompt, output)
            for g in (BIG, dataclasses.replace(BIG, **{what: better[what]})))
    assert w.output_tokens_per_s >= v.output_tokens_per_s * (1 - 1e-12) and w.tpot_s <= v.tpot_s * (1 + 1e-12)


@given(st.sampled_from(MODELS[1:]), st.integers(1, 1000), st.integers(1, 4000), st.integers(1, 500),
       st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0, 1e-3), st.booleans(), st.booleans())
def test_no_profile_beats_the_floor(model, concurrency, prompt, output, flop, weight, kv, late, overlap, share):
    profile = Profile(name="any", flop_frac=flop, weight_frac=weight, kv_frac=kv, step_s=late, collective_s=late,
                      overlap=overlap, prompts_share_passes=share)
    beats_no_floor(Deployment(model, BIG), profile, concurrency, prompt, output)


@given(st.sampled_from(MODELS), st.sampled_from([name for name in profiles() if name != "ideal"]),
       st.sampled_from([dict(n_gpus=8), dict(n_gpus=8, pp=2), dict(n_gpus=8, dp=4)]), st.integers(1, 5000),
       st.integers(1, 4000), st.integers(1, 500), st.sampled_from([None, 512]), st.sampled_from([0, 0.5, 0.99]))
def test_no_shipped_profile_beats_the_floor(model, profile, degrees, concurrency, prompt, output, chunk, cached):
    """One request, any load, prompts in pieces or partly cached."""
    d = Deployment(model, BIG, **degrees)
    beats_no_floor(d, profile, concurrency, prompt, output, chunk, cached)
    slow, fast = (dataclasses.replace(d, profile=p).request(3, prompt, output) for p in (profile, "ideal"))
    assert slow.ttft_s >= fast.ttft_s * (1 - 1e-12) and slow.tpot_s >= fast.tpot_s * (1 - 1e-9)
    slow, fast = (dataclasses.replace(d, profile=p).prefill(3, prompt).time_s for p in (profile, "ideal"))
    assert slow >= fast * (1 - 1e-12)


def beats_no_floor(d, profile, *load):
    floor, real = (dataclasses.replace(d, profile=p).serve(*load) for p in ("ideal", profile))
    assert real.output_tokens_per_s <= floor.output_tokens_per_s * (1 + 1e-12)
    assert real.tpot_s >= floor.tpot_s * (1 - 1e-12) and real.ttft_s >= floor.ttft_s * (1 - 1e-12)


@pytest.mark.parametrize("constants", [dict(flop_frac=0), dict(weight_frac=1.1), dict(kv_frac=-0.1), dict(link_frac=0),
                                       dict(step_s=-1e-9), dict(flop_frac="1"), dict(kv_frac=math.nan)])
def test_a_profile_faster_than_physics_is_refused(constants):
    with pytest.raises(ValueError, match=next(iter(constants))):
        Profile(name="wrong", **constants)


# Few clients, pipelines.
def test_fewer_clients_than_replicas_leave_replicas_idle():
    one, four = (Deployment("llama-3.1-8b", "h100-sxm", n_gpus=n, dp=n) for n in (1, 4))
    for clients in (1, 2, 4):
        v, w = one.serve(1, 500, 50), four.serve(clients, 500, 50)
        assert w.output_tokens_per_s == pytest.approx(clients * v.output_tokens_per_s)
        assert (w.tpot_s, w.ttft_s, w.running_batch, w.queued) == (v.tpot_s, v.ttft_s, clients, 0)


def test_a_pipeline_is_filled_by_as_many_requests_as_stages():
    """One request uses a quarter of the GPUs; four run beside each other at the same speed; a fifth slows all down."""
    d = Deployment("llama-3.3-70b", BIG, n_gpus=4, tp=1, pp=4)
    v = {c: d.serve(c, 500, 50) for c in (1, 2, 4, 8)}
    assert v[4].output_tokens_per_s == pytest.approx(4 * v[1].output_tokens_per_s, rel=1e-12)
    assert v[2].tpot_s == v[4].tpot_s == v[1].tpot_s
    assert v[1].decode_s == d.decode(1, 525).time_s == v[4].decode_s and v[8].decode_s == d.decode(2, 525).time_s
    assert v[4].output_tokens_per_s < v[8].output_tokens_per_s < 8 * v[1].output_tokens_per_s


# Chunks and prefixes.
def test_a_chunk_rides_on_a_decode_step():
    """512 of 2,048 tokens beside 64 decodes: FLOPs and cache traffic of both, the 139 GB of weights once."""
    v = D70.serve(64, 2048, 300, chunk_tokens=512)
    chunk = dict(flops=285_877_808_922_624 / 4, kv=327_680 * (2048 - 512 + 512))  # at least a quarter of the FLOPs
    decode = D70.decode(64, 2198)
    assert v.decode_s == decode.time_s
    assert v.itl_max_s > chunk["flops"] / 4 / 989e12 and v.itl_max_s > decode.time_s
    assert v.itl_max_s < decode.memory_s + D70.prefill(1, 2048).time_s / 4 * 1.05
    memory = decode.memory_s + chunk["kv"] / 4 / 3.35e12
    compute = decode.compute_s + D70.prefill(1, 512).compute_s + 4 * 512 * 1536 * 80 * 64 * 128 / 4 / 989e12
    assert v.itl_max_s == pytest.approx(max(memory, compute), rel=1e-4)


def test_smaller_chunks_trade_the_first_token_for_smooth_ones():
    whole = D70.serve(64, 2048, 300)
    gaps, firsts = zip(*((v.itl_max_s, v.ttft_s) for v in (
        D70.serve(64, 2048, 300, chunk_tokens=n) for n in (2048, 1024, 512, 256, 128))), strict=True)
    assert list(gaps) == sorted(gaps, reverse=True) and list(firsts) == sorted(firsts)
    assert gaps[0] < whole.itl_max_s and firsts[0] > whole.ttft_s


def test_prefill_hides_in_memory_bound_steps():
    """Decode leaves the multipliers idle: 512 tokens a step make it compute bound, and a cycle shorter."""
    whole, chunked = D70.serve(64, 2048, 300), D70.serve(64, 2048, 300, chunk_tokens=512)
    assert chunked.output_tokens_per_s > whole.output_tokens_per_s
    work = 64 * D70.prefill(1, 2048).compute_s + 299 * D70.decode(64, 2198).compute_s
    assert chunked.cycle_s > work  # but never shorter than its arithmetic


def test_prompts_that_need_more_steps_than_there_are_make_steps():
    """64 prompts of 128 pieces each, 2 tokens out: the cycle has 64 x 128 steps."""
    v = D70.serve(64, 2048, 2, chunk_tokens=16)
    assert v.cycle_s >= 64 * 128 * v.decode_s


def test_experts_read_by_a_mixed_step_are_those_of_all_its_tokens():
    d = Deployment("mixtral-8x7b-v0.1", BIG, weights="bf16")
    one, many = (d.serve(c, 4096, 300, chunk_tokens=c) for c in (1, 2))
    assert touched(8, 2, 4) > touched(8, 2, 2) and many.itl_max_s > one.itl_max_s
    cache = (4096 + 150 + 1 + 4095 + 1) * 131_072  # in the middle of the answer, and the last token of a prompt
    assert one.itl_max_s == pytest.approx((d.model.streamed_weight_bytes("bf16", 2) + cache) / 3.35e12, rel=1e-9)


def test_a_cached_prefix_is_not_computed():
    v = D70.serve(64, 2048, 300, cached_frac=0.75)
    assert v.prefill_s == pytest.approx(D70._time(1, 512, 1536), rel=1e-12)
    assert v.prefill_s < D70.prefill(1, 2048).time_s and v.decode_s == D70.serve(64, 2048, 300).decode_s
    assert D70.serve(64, 2048, 300, cached_frac=1).prefill_s == pytest.approx(D70.decode(1, 2047).time_s, rel=1e-9)


# Arrivals.
@given(deployments, st.floats(0.001, 0.999), st.integers(1, 4000), st.integers(1, 500))
def test_arrivals_below_saturation_are_all_served(setting, load, prompt, output):
    d = deploy(setting)
    top = d.serve(d._most(prompt, output), prompt, output)
    rate = load * top.requests_per_s
    v = d.at_rate(rate, prompt, output)
    assert v.requests_per_s == rate and v.output_tokens_per_s == pytest.approx(rate * output)
    assert v.running_batch <= top.running_batch * (1 + 1e-9) and v.queued == 0
    assert v.running_batch / rate == pytest.approx(v.cycle_s, rel=1e-6) or v.running_batch < d.dp * 1.001
    assert v.ttft_s >= v.prefill_s


def test_one_request_an_hour_meets_an_empty_machine():
    v, alone = D70.at_rate(1 / 3600, 2048, 300), D70.request(1, 2048, 300)
    assert v.running_batch == pytest.approx(alone.total_s / 3600, rel=1e-3)
    assert v.ttft_s == pytest.approx(alone.ttft_s, rel=1e-4) and v.tpot_s == pytest.approx(alone.tpot_s, rel=1e-3)


def test_prompts_wait_for_prompts():
    """Prefill alone, 0.072 s each: at half the top rate the mean wait of an M/D/1 queue is half a service time."""
    p = D70.prefill(1, 2048).time_s
    assert D70.at_rate(0.5 / p, 2048, 1).ttft_s == pytest.approx(1.5 * p, rel=1e-9)
    assert D70.at_rate(0.9 / p, 2048, 1).ttft_s == pytest.approx((1 + 0.9 / 0.2) * p, rel=1e-9)


@pytest.mark.parametrize("profile", ["ideal", "general"])
@pytest.mark.parametrize("prompt, output", [(1, 1), (100, 1), (100, 50), (8000, 10)])
def test_waits_grow_without_bound_towards_saturation(profile, prompt, output):
    """Also where a profile lets prompts share passes: the queue is that of what a prompt really takes."""
    d = Deployment("llama-3.1-8b", "h100-sxm", profile=profile)
    top = d.serve(10**6, prompt, output)
    waits = [d.at_rate(share * top.requests_per_s, prompt, output).ttft_s for share in (0.01, 0.5, 0.9, 0.99, 0.999)]
    assert waits == sorted(waits) and all(map(math.isfinite, waits))
    if output == 1:
        assert waits[-1] - waits[0] > 400 * top.prefill_s


@given(st.floats(1e-3, 0.99), st.floats(1e-3, 0.99))
def test_more_arrivals_never_shorten_any_time(a, b):
    assume(a < b)
    top = D8.serve(10**4, 1000, 100).requests_per_s
    v, w = (D8.at_rate(x * top, 1000, 100) for x in (a, b))
    assert w.ttft_s >= v.ttft_s and w.tpot_s >= v.tpot_s * (1 - 1e-9) and w.running_batch >= v.running_batch


@pytest.mark.parametrize("factor", [1, 1.001, 100])
def test_saturation_is_refused_and_never_extrapolated(factor):
    top = D70.serve(10**6, 2048, 300)
    with pytest.raises(ValueError, match="saturate the deployment; it serves at most"):
        D70.at_rate(factor * top.requests_per_s, 2048, 300)
    assert D70.serve(10**7, 2048, 300).output_tokens_per_s == top.output_tokens_per_s


# The frontier and limits.
def test_the_frontier_runs_from_one_user_to_a_full_cache():
    points = D8.frontier(2048, 300)
    users, per_user, per_gpu = zip(*points, strict=True)
    assert users[0] == 1 and users[-1] == D8.memory(1, 2348).max_batch and len(set(users)) == len(users)
    assert list(per_user) == sorted(per_user, reverse=True) and list(per_gpu) == sorted(per_gpu)
    v = D8.serve(users[5], 2048, 300)
    assert points[5] == (users[5], 1 / v.tpot_s, v.output_tokens_per_s)


@pytest.mark.parametrize("d", [D8, D70, Deployment("llama-3.1-8b", "h100-sxm", n_gpus=2, dp=2, max_running=40)],
                         ids=["8b", "70b", "8b x 2"])
@pytest.mark.parametrize("limits", [dict(slo_tpot_s=0.012), dict(slo_tpot_s=0.02), dict(slo_tpot_s=1e-6), {},
                                    dict(slo_ttft_s=1e-4), dict(slo_ttft_s=1.0, slo_tpot_s=0.015)])
def test_the_largest_load_is_that_of_trying_them_all(d, limits):
    def meets(v):
        return v.ttft_s <= limits.get("slo_ttft_s", math.inf) and v.tpot_s <= limits.get("slo_tpot_s", math.inf)

    tried = [v for v in (d.serve(c, 1000, 200) for c in range(1, d._most(1000, 200) + 1)) if meets(v)]
    best, found = max(tried, key=lambda v: v.output_tokens_per_s, default=None), d.largest_load(1000, 200, **limits)
    assert (found is None) == (best is None)
    if found:
        assert found.running_batch == best.running_batch and found.tpot_s == best.tpot_s
        full = found.running_batch == d._most(1000, 200)
        assert found.limited_by == ("concurrency" if not full else "engine" if d.max_running else "kv")


# Refusals and arrays.
def test_serving_is_refused_only_where_not_one_sequence_fits():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2)
    longest = d.memory(1, 1000).max_context
    assert d.serve(1000, longest - 100, 100).running_batch == 1
    with pytest.raises(DoesNotFit, match="short by"):
        d.serve(1, longest, 1)
    with pytest.raises(ValueError, match="beyond the 131,072"):
        Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8).serve(1, 131_072, 1)


sizes = st.lists(st.integers(1, 3000), min_size=1, max_size=3)


@given(deployments, st.sampled_from(["roomy", "tight", "general"]), sizes,
       st.lists(st.integers(1, 40_000), min_size=1, max_size=2), st.lists(st.integers(1, 500), min_size=1, max_size=2),
       st.sampled_from([None, 1, 300]), st.sampled_from([0.0, 0.5, 1.0]))
def test_arrays_are_the_scalar_calls(setting, kind, clients, prompts, outputs, chunk, cached):
    d = {"roomy": deploy(setting), "tight": Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2),
         "general": deploy((*setting[:2], "general"))}[kind]
    grid = np.array(clients).reshape(-1, 1, 1), np.array(prompts).reshape(-1, 1), np.array(outputs)
    many = d.serve(*grid, chunk, cached)
    shape = (len(clients), len(prompts), len(outputs))
    for i, j, k in np.ndindex(shape):
        def at(value, index=(i, j, k)):
            return np.broadcast_to(np.asarray(value), shape)[index]
        try:
            one = d.serve(clients[i], prompts[j], outputs[k], chunk, cached)
        except ValueError:
            assert not at(many.feasible) and all(math.isnan(at(getattr(many, name))) for name in TIMES)
            continue
        assert at(many.feasible) and at(many.limited_by) == one.limited_by
        for name in TIMES:
            assert at(getattr(many, name)) == pytest.approx(getattr(one, name), rel=1e-12, abs=0), name


@given(deployments, st.integers(1, 10**9), st.integers(1, 30_000), st.integers(1, 10_000))
def test_feasible_input_gives_finite_output(setting, concurrency, prompt, output):
    d = deploy(setting)
    assume(prompt + output <= (d.model.max_context or 10**9))
    v = d.serve(concurrency, prompt, output)
    assert all(math.isfinite(getattr(v, name)) and getattr(v, name) >= 0 for name in TIMES)
