"""The ideal deployment: the floor to the printed digit, another tool's roofline, and laws no step may break."""

import dataclasses
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from econ import Deployment, DoesNotFit, Profile, forward, latency, load_accelerator, load_model
from econ.units import GIB

pytestmark = pytest.mark.core

H100 = load_accelerator("h100-sxm")
BIG = dataclasses.replace(H100, visible_bytes=10**13)  # where capacity is not what a test is about
D70, D8 = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), Deployment("llama-3.1-8b", "h100-sxm")


def test_the_floor():
    assert f"{D70.prefill(1, 2048).time_s:.6f}" == "0.072264" and f"{D70.decode(1, 2048).time_s:.6f}" == "0.010424"
    assert f"{D8.prefill(1, 2048).time_s:.6f}" == "0.030019" and f"{D8.decode(1, 2048).time_s:.6f}" == "0.004561"
    assert D70.prefill(1, 2048).bound == "compute" and D70.decode(1, 2048).bound == "memory"


def test_the_floor_by_hand():
    """Streamed weights and cache of the fullest of 4 GPUs over 3.35 TB/s; causal FLOPs over 4 x 989 TFLOP/s."""
    norms = 2 * (80 * 2 + 1) * 8192
    moved = (139_006_066_688 - norms) / 4 + norms + 2049 * 327_680 / 4
    step = D70.decode(1, 2048)
    assert step.memory_s == pytest.approx(moved / 3.35e12, rel=1e-12) and step.bytes == pytest.approx(moved, rel=1e-12)
    assert step.compute_s == pytest.approx(144_374_759_424 / 4 / 989e12, rel=1e-12)
    assert D70.prefill(1, 2048).compute_s == pytest.approx(285_877_808_922_624 / 4 / 989e12, rel=1e-12)
    assert (step.comm_s, step.overhead_s, step.feasible) == (0, 0, True)


# Another estimator's roofline mode ("speed of light"), ms, recorded from a run of version 0.12; bf16, H100 SXM.
@pytest.mark.parametrize("d, batch, floor_ms, other_ms, above", [
    (D8, 1, 4.561, 4.564, 1.05), (D8, 32, 7.045, 7.141, 1.05), (D8, 256, 24.99, 25.77, 1.05),
    (Deployment("llama-3.1-8b", "h100-sxm", n_gpus=4), 1, 1.140, 1.143, 1.2),
    (Deployment("llama-3.1-8b", "h100-sxm", n_gpus=4), 256, 6.248, 7.077, 1.2),
    (D70, 1, 10.42, 10.44, 1.2), (D70, 32, 11.98, 12.49, 1.2), (D70, 256, 23.19, 27.29, 1.2)])
def test_no_step_beats_another_tools_roofline(d, batch, floor_ms, other_ms, above):
    """The floor lies below it, and close: the other adds element-wise traffic and, with TP, all-reduces."""
    roomy = dataclasses.replace(d, accelerator=BIG)
    ms = roomy.decode(batch, 2048).time_s * 1e3
    assert ms == pytest.approx(floor_ms, rel=1e-3)
    assert ms <= other_ms <= above * ms


@pytest.mark.parametrize("gpu, tokens_per_s", [("h100-sxm", 23.74), ("l40s", 6.123), ("m3-ultra-80c", 5.804)])
def test_single_stream_speed_is_bandwidth_over_weights(gpu, tokens_per_s):
    """The article's bound, one token over all resident bytes; the floor streams 1.5 % less."""
    bytes_per_s = {"m3-ultra-80c": 819e9}.get(gpu) or load_accelerator(gpu).hbm_bytes_per_s
    assert bytes_per_s / 141_107_412_992 == pytest.approx(tokens_per_s, rel=2e-4)


def test_the_article_on_four_gpus():
    """94.96 tokens/s over resident bytes, 35.28 GB of them on each GPU; 42.17 against 10.58 ms on one against four."""
    assert f"{4 * 3.35e12 / 141_107_412_992:.2f}" == "94.96"
    assert f"{D70.memory(1, 2048).weight_bytes / 1e9:.2f}" == "35.28"
    alone = Deployment("llama-3.3-70b", BIG).decode(1, 300).time_s
    assert alone / D70.decode(1, 300).time_s == pytest.approx(4, rel=1e-3)  # norms are read on every GPU


def test_context_hardly_matters_at_batch_one():
    """Ideal step at batch 1: +1.7 % from 0.3 k to 7.5 k tokens of context, +7.6 % to 32.5 k."""
    base = D70.decode(1, 300).time_s
    assert f"{100 * (D70.decode(1, 7500).time_s / base - 1):.1f}" == "1.7"
    assert f"{100 * (D70.decode(1, 32_500).time_s / base - 1):.1f}" == "7.6"


def test_the_cache_overtakes_the_weights():
    """Batch 210 at 2,048 tokens moves as many bytes of cache as of weights: the step takes twice as long."""
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8)
    assert d.decode(207, 2048).time_s / d.decode(1, 1).time_s == pytest.approx(2, rel=5e-3)


# Which rate: 8- and 4-bit formats that the tensor cores multiply, and weight-only formats that they do not.
@pytest.mark.parametrize("gpu, weights, kv, linear, attention", [
    ("h100-sxm", None, None, 989e12, 989e12), ("h100-sxm", "fp8", None, 1979e12, 989e12),
    ("h100-sxm", "fp8", "fp8", 1979e12, 1979e12), ("h100-sxm", "int8", "int8", 989e12, 989e12),
    ("h100-sxm", "int4", None, 989e12, 989e12), ("a100-sxm-80", "fp8", "fp8", 312e12, 312e12),
    ("h100-sxm", "nvfp4", None, 989e12, 989e12)])
def test_rates(gpu, weights, kv, linear, attention):
    step = Deployment("llama-3.1-8b", gpu, weights=weights, kv=kv).prefill(1, 4096)
    wide = 312e12 if "a100" in gpu else 989e12
    matrices = 2 * 4096 * (8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096)
    head, pairs = 2 * 128_256 * 4096, 32 * 4 * 4096 * (4096 * 4097 // 2)
    assert step.compute_s == pytest.approx(matrices / linear + head / wide + pairs / attention, rel=2e-3)


def test_a_gpu_without_bf16_uses_fp16():
    step = Deployment("llama-2-7b", "t4", weights="int4").prefill(1, 1024)
    flops = forward(load_model("llama-2-7b"), 1, 1024).flops
    assert step.compute_s == pytest.approx(flops / load_accelerator("t4").flop_per_s("fp16"), rel=1e-12)


# Requests.
def test_a_request_is_a_prefill_and_a_step_for_each_further_token():
    r = D70.request(batch=4, prompt=100, output=5)
    steps = [D70.decode(4, 100 + k).time_s for k in range(4)]
    assert r.ttft_s == D70.prefill(4, 100).time_s
    assert r.total_s == pytest.approx(r.ttft_s + sum(steps), rel=1e-12)
    assert r.tpot_s == pytest.approx(sum(steps) / 4, rel=1e-12)
    assert r.output_tokens_per_s == pytest.approx(4 * 5 / r.total_s, rel=1e-12)


def test_a_request_for_one_token_is_its_prefill():
    r = D70.request(batch=2, prompt=100, output=1)
    assert r.total_s == r.ttft_s == D70.prefill(2, 100).time_s
    assert r.tpot_s == D70.decode(2, 100).time_s
    assert r.output_tokens_per_s == pytest.approx(2 / r.total_s)


SLOW = Profile(name="slow", flop_frac=0.5, weight_frac=0.6, kv_frac=0.4, link_frac=0.5, step_s=1e-4, sequence_s=1e-6,
               long_context_s=1e-3, long_context_tokens=3000)
APART = dataclasses.replace(SLOW, overlap=False)


@pytest.mark.parametrize("profile", ["ideal", SLOW, APART], ids=["ideal", "slow", "apart"])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-20b", "llama-4-scout-17b-16e", "glm-5", "deepseek-v3",
                                  "gemma-2-9b-it", "jamba-v0.1", "qwen3-next-80b-a3b", "mamba-2.8b"])
def test_a_long_request_is_the_sum_of_its_steps(name, profile):
    """While windows fill up, chunks begin, sparse attention starts to choose and the cache outgrows the arithmetic."""
    d = Deployment(name, BIG, profile=profile)
    for batch, prompt, output in ((1, 1, 300), (900, 60, 200), (400, 1900, 300), (3, 3900, 300), (2, 8000, 190)):
        r = d.request(batch, prompt, output)
        steps = sum(d.decode(batch, prompt + k).time_s for k in range(output - 1))
        assert r.total_s == pytest.approx(r.ttft_s + steps, rel=1e-12), (batch, prompt, output)
        assert r.tpot_s == pytest.approx(steps / (output - 1), rel=1e-12)


def test_without_overlap_reading_and_arithmetic_add_up():
    for batch, context in ((1, 1), (64, 2000), (900, 60)):
        one, other = (Deployment("llama-3.1-8b", BIG, profile=p).decode(batch, context) for p in (APART, SLOW))
        assert (one.compute_s, one.memory_s) == (other.compute_s, other.memory_s)
        assert one.time_s == pytest.approx(other.time_s + min(one.compute_s, one.memory_s), rel=1e-12)
        assert one.time_s == max(one.compute_s, one.memory_s) + one.comm_s + one.overhead_s


def test_a_request_for_a_million_tokens_takes_a_few_passes(monkeypatch):
    passes = []
    monkeypatch.setattr(latency, "forward", lambda *a, **k: passes.append(a) or forward(*a, **k))
    endless = Deployment("mamba-2.8b", BIG, profile=SLOW)  # no cache, no longest context
    assert endless.request(1, 1, 10**6).total_s > 10**6 * endless.decode(1, 1).time_s
    Deployment("llama-3.3-70b", BIG).request(1, 1, 131_000)
    assert len(passes) < 20


def test_replicas_share_nothing():
    """dp=2: the same step for a batch a replica; everything else would be throughput counted twice."""
    two = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8, dp=2)
    assert two.tp == 4 and two.decode(8, 2048) == D70.decode(8, 2048) and two.memory(8, 2048) == D70.memory(8, 2048)


# Laws.
MODELS = ["llama-3.3-70b", "llama-3.1-8b", "qwen3-0.6b", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b",
          "gemma-2-9b-it", "qwen3-next-80b-a3b", "jamba-v0.1", "glm-5"]
settings_of_a_deployment = st.tuples(
    st.sampled_from(MODELS), st.sampled_from([1, 2, 4, 8]), st.sampled_from([None, "bf16", "fp8", "int4", "q4_k_m"]),
    st.sampled_from([None, "bf16", "fp8"]))


def deploy(setting, accelerator=BIG):
    name, n, weights, kv = setting
    model = load_model(name)
    n = n if all(a.heads % n == 0 for a, _ in model.attention_kinds) else 1
    return Deployment(model, accelerator, n_gpus=n, weights=weights, kv=kv)


@given(settings_of_a_deployment, st.integers(1, 500), st.integers(1, 8000))
def test_no_step_beats_the_floor(setting, batch, tokens):
    """Each GPU reads at least its share of the whole model's bytes, and multiplies its share at the best rate."""
    d = deploy(setting)
    for step, new, context in ((d.prefill(batch, tokens), tokens, 0), (d.decode(batch, tokens), 1, tokens)):
        whole = forward(d.model, batch, new, context, weights=d.weights, kv=d.kv)
        assert step.time_s >= whole.bytes / d.tp / 3.35e12 * (1 - 1e-12)
        assert step.time_s >= whole.flops / d.tp / 1979e12 * (1 - 1e-12)
        assert step.time_s == max(step.compute_s, step.memory_s)
        assert 0 < step.mfu_frac <= 1 and 0 < step.mbu_frac <= 1 and max(step.mfu_frac, step.mbu_frac) == 1
        assert step.bound == ("memory" if step.memory_s >= step.compute_s else "compute")


@given(settings_of_a_deployment, st.integers(1, 500), st.integers(1, 8000), st.integers(2, 50))
def test_more_batch_or_context_never_takes_less_time(setting, batch, tokens, more):
    d = deploy(setting)
    decode, prefill = d.decode(batch, tokens).time_s, d.prefill(batch, tokens).time_s
    assert d.decode(batch + more, tokens).time_s >= decode and d.prefill(batch + more, tokens).time_s >= prefill
    assume(tokens + more <= 8000)
    assert d.decode(batch, tokens + more).time_s >= decode and d.prefill(batch, tokens + more).time_s >= prefill
    # ... and each sequence alone would take longer: batching never costs throughput
    assert d.decode(batch + more, tokens).time_s / (batch + more) <= decode / batch * (1 + 1e-12)


@given(settings_of_a_deployment, st.integers(1, 500), st.integers(1, 8000), st.floats(1, 20))
def test_a_faster_gpu_never_takes_more_time(setting, batch, tokens, times):
    base = deploy(setting)
    for change in (dict(hbm_bytes_per_s=3.35e12 * times), dict(peaks={k: v * times for k, v in H100.peaks.items()})):
        faster = deploy(setting, dataclasses.replace(BIG, **change))
        assert faster.decode(batch, tokens).time_s <= base.decode(batch, tokens).time_s
        assert faster.prefill(batch, tokens).time_s <= base.prefill(batch, tokens).time_s


@given(settings_of_a_deployment, st.integers(1, 200), st.integers(1, 4000))
def test_more_gpus_never_take_more_time_and_never_scale_better_than_their_number(setting, batch, tokens):
    one = deploy((setting[0], 1, *setting[2:]))
    many = deploy(setting)
    for name in ("prefill", "decode"):
        alone, shared = getattr(one, name)(batch, tokens).time_s, getattr(many, name)(batch, tokens).time_s
        assert alone / many.tp * (1 - 1e-12) <= shared <= alone * (1 + 1e-12)


@given(settings_of_a_deployment, st.integers(1, 100), st.integers(1, 4000), st.integers(1, 20))
def test_a_request_lies_between_its_first_and_its_last_step(setting, batch, prompt, output):
    d = deploy(setting)
    r = d.request(batch, prompt, output)
    first, last = d.decode(batch, prompt).time_s, d.decode(batch, prompt + max(output - 2, 0)).time_s
    assert first * (1 - 1e-9) <= r.tpot_s <= last * (1 + 1e-9)
    assert r.total_s == pytest.approx(r.ttft_s + (output - 1) * r.tpot_s, rel=1e-9)
    assert d.request(batch, prompt, output + 1).total_s > r.total_s


@given(settings_of_a_deployment, st.integers(1, 10**5), st.integers(1, 8000), st.integers(1, 10))
def test_what_fits_gives_finite_numbers(setting, batch, tokens, output):
    d = deploy(setting)
    try:
        results = [d.decode(batch, tokens), d.prefill(batch, tokens), d.request(batch, tokens, output)]
    except ValueError:
        assert not d.memory(batch, tokens + output).fits
        results = []
    for result in [*results, d.memory(batch, tokens)]:
        numbers = [getattr(result, field.name) for field in dataclasses.fields(result)]
        assert all(math.isfinite(value) for value in numbers if not isinstance(value, str))


# Refusals.
def test_what_does_not_fit_says_by_how_much_and_what_would():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2)
    with pytest.raises(DoesNotFit) as error:
        d.decode(batch=64, context=2048)
    short = -d.memory(64, 2049).free_bytes / GIB
    fits = d.memory(64, 2049).max_batch
    assert f"short by {short:,.2f} GiB" in str(error.value) and f"batch {fits} fits" in str(error.value)
    d.decode(batch=fits, context=2048)


def test_a_model_that_does_not_fit_names_a_degree_that_works():
    with pytest.raises(DoesNotFit, match="tp=2 fits"):
        Deployment("llama-3.3-70b", "h100-sxm").prefill(1, 16)
    Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2).prefill(1, 16)
    with pytest.raises(DoesNotFit, match="more memory or smaller weights"):
        Deployment("deepseek-v3", "t4", weights="fp32").prefill(1, 16)


def test_a_sequence_that_is_too_long_names_the_longest_that_fits():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=2)
    longest = d.memory(1, 100_000).max_context
    with pytest.raises(DoesNotFit, match=f"{longest:,} tokens"):
        d.decode(batch=10**6, context=100_000)
    d.decode(batch=1, context=longest - 1)


def test_a_context_beyond_the_models_is_refused():
    d = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=8)
    d.decode(context=131_071)
    for call in (lambda: d.decode(context=131_072), lambda: d.prefill(prompt=131_073),
                 lambda: d.request(prompt=131_000, output=74)):
        with pytest.raises(ValueError, match="131,07[0-9] tokens are beyond the 131,072"):
            call()
    assert d.request(prompt=131_071, output=2).total_s > 0


@pytest.mark.parametrize("degrees, said", [
    (dict(n_gpus=0), "n_gpus=0"), (dict(n_gpus=4, tp=3), "tp=3"), (dict(n_gpus=4, dp=3), "dp=3"),
    (dict(n_gpus=6), "tp=6"),
    (dict(n_gpus=2.0), "n_gpus=2.0"), (dict(n_gpus="4"), "'4'"), (dict(n_gpus=4, tp=True), "tp=True"),
    (dict(n_gpus=-4), "-4"),
    (dict(n_gpus=128), "tp=128"), (dict(gpu_mem_frac=1.1), "1.1"), (dict(gpu_mem_frac=-0.1), "-0.1"),
    (dict(gpu_mem_frac="0.9"), "0.9"),
    (dict(weights="fp7"), "fp7"), (dict(kv="fp7"), "fp7"), (dict(kv=""), "''"), (dict(profile="real"), "real"),
    (dict(profile=None), "None"), (dict(weights=16), "16")])
def test_bad_settings(degrees, said):
    with pytest.raises(ValueError) as error:
        Deployment("llama-3.3-70b", "h100-sxm", **degrees)
    assert said in str(error.value) and "\n" not in str(error.value) and len(str(error.value)) < 300
