"""The right-hand side of errata.md, computed by econ. Expected values are the ones the page prints."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

import econ

pytestmark = pytest.mark.core

M = econ.load_model("llama-3.3-70b")
G = econ.load_accelerator("h100-sxm")
RESIDENT, STREAMED = M.weight_bytes("bf16"), M.streamed_weight_bytes("bf16", tokens=1)


def article(tokens, **options):
    return econ.forward(M, new_tokens=tokens, causal=False, count="article", **options).flops


def one_token(context, **options):
    return econ.forward(M, new_tokens=1, context=context, **options)


def fact(name):
    with open(Path(__file__).parents[1] / "facts.csv", encoding="utf-8") as file:
        return next(float(row["value"].replace(",", "")) for row in csv.DictReader(file) if row["id"] == name)


def test_the_pcie_card_is_slower():
    card = econ.load_accelerator("h100-pcie")
    assert G.hbm_bytes_per_s / card.hbm_bytes_per_s == pytest.approx(1.7, abs=0.05)


def attention_flops(queries, keys, dim):
    """One head as the guide counts it: scores, softmax as three operations, values."""
    return 4 * queries * keys * dim + 3 * queries * keys


def test_intensity_depends_on_the_implementation():
    n, dim = 4096, 128
    unfused = attention_flops(n, n, dim) / (2 * (4 * n * dim + 4 * n * n))  # scores written and read, twice
    causal = attention_flops(n, n, dim) / 2
    fused = causal / (2 * (2 * n * dim + 2 * n * dim / 8))  # Q and output, and an eighth of K and V
    assert int(unfused) == fact("baseten-attention-intensity") == 62
    assert fused == pytest.approx(1831, abs=0.5)
    assert fused / unfused == pytest.approx(29, abs=0.5)


def test_intensity_of_a_real_decode_step():
    n, dim = 2048, 128
    separate = attention_flops(1, n, dim) / (2 * (2 * n * dim + 2 * dim))
    assert separate == pytest.approx(1.005, abs=0.0005)
    assert 62.42 / separate == pytest.approx(62, abs=0.5)
    grouped = 8 * attention_flops(1, n, dim) / (2 * (2 * n * dim + 2 * 8 * dim))
    assert grouped == pytest.approx(8.016, abs=0.0005)
    kernel = next(operator for operator in one_token(n - 1).operators if operator.name == "scores")
    assert kernel.flops / (kernel.kv_read_bytes + kernel.kv_write_bytes) == 8  # no softmax, Q or output


def test_the_ridge_belongs_to_a_precision():
    assert (round(G.ridge("bf16")), round(G.ridge("fp8"))) == (295, 591)


def test_faster_memory_helps_decode_only():
    fast = replace(G, hbm_bytes_per_s=2 * G.hbm_bytes_per_s)
    slow_deployment, fast_deployment = (econ.Deployment(M, g, n_gpus=4) for g in (G, fast))
    assert fast_deployment.prefill(prompt=2048).time_s == slow_deployment.prefill(prompt=2048).time_s
    decode = [d.decode(context=2048).time_s for d in (slow_deployment, fast_deployment)]
    assert decode[0] / decode[1] == pytest.approx(2)


def test_one_prompt_has_several_counts():
    counts = (article(2048), econ.forward(M, new_tokens=2048, count="article").flops,
              article(2048, logits="all"))
    assert [round(flops / 1e12, 2) for flops in counts] == [291.49, 285.94, 295.79]


def test_attention_is_not_the_most_expensive_operation():
    def parts(tokens):
        work = econ.forward(M, new_tokens=tokens, causal=False)
        named = {operator.name: operator.flops for operator in work.operators}
        mlp = sum(flops for name, flops in named.items() if name.startswith("mlp"))
        return named["scores"], mlp, work.flops

    scores, mlp, total = parts(2048)
    assert scores / total == pytest.approx(0.038, abs=0.0005)
    assert mlp / scores == pytest.approx(21, abs=0.5)
    step = one_token(2048)
    assert step.kv_read_bytes / step.bytes == pytest.approx(0.005, abs=0.0005)
    below, above = parts(42_500), parts(43_500)
    assert below[0] < below[1] and above[0] > above[1]


def test_one_h100_cannot_hold_the_model():
    assert article(2048) / G.flop_per_s("bf16") == pytest.approx(0.29474, abs=5e-6)
    with pytest.raises(econ.DoesNotFit):
        econ.Deployment(M, G).prefill(prompt=2048)
    assert article(2048) / 4 / G.flop_per_s("bf16") == pytest.approx(0.0737, abs=5e-5)
    floor = econ.Deployment(M, G, n_gpus=4).prefill(prompt=2083).time_s
    assert floor < fact("prefill-s2083-b1") == 0.1892


def test_times_before_rounding():
    cache = M.kv_cache_bytes(tokens=2048, batch=1, dtype="bf16")
    assert RESIDENT / G.hbm_bytes_per_s == pytest.approx(0.0421, abs=5e-5)
    assert (round(RESIDENT / 1e9, 1), round(cache / 1e9, 2)) == (141.1, 0.67)
    compute_s = one_token(2047, count="article").flops / G.flop_per_s("bf16")
    assert (round(compute_s, 6), round(compute_s, 5)) == (0.000146, 0.00015)


def ratio(tokens, weight_bytes=RESIDENT):
    return (article(tokens) / G.flop_per_s("bf16")) / (weight_bytes / G.hbm_bytes_per_s)


def test_the_ratio_is_length_over_ridge():
    assert ratio(2048) == pytest.approx(6.9973, abs=5e-5)
    assert 2048 / G.ridge("bf16") == pytest.approx(ratio(2048), rel=0.01)
    assert ratio(4096) / ratio(2048) == pytest.approx(2, rel=0.05)
    assert ratio(302) == pytest.approx(1, rel=0.005)


def test_short_prompts_are_memory_bound():
    assert ratio(302) < 1 < ratio(303)
    assert ratio(298, STREAMED) < 1 < ratio(299, STREAMED)
    assert econ.time_on(econ.forward(M, new_tokens=100), G).bound == "memory"
    assert econ.time_on(econ.forward(M, new_tokens=2048), G).bound == "compute"


def test_prefill_is_not_quadratic():
    short, long = (econ.forward(M, new_tokens=n, count="article").flops for n in (1059, 32_803))
    assert math.log(long / short) / math.log(32_803 / 1059) == pytest.approx(1.08, abs=0.005)
    measured = [fact(f"prefill-s{n}-b1") for n in (1059, 32_803)]
    assert math.log(measured[1] / measured[0]) / math.log(32_803 / 1059) == pytest.approx(0.99, abs=0.005)


def test_the_first_token_comes_out_of_prefill():
    d = econ.Deployment(M, G, n_gpus=4)
    request = d.request(prompt=2048, output=300)
    assert request.total_s - d.prefill(prompt=2048).time_s == pytest.approx(299 * request.tpot_s)
    assert d.request(prompt=2048, output=1).total_s == d.prefill(prompt=2048).time_s
    more = d.request(prompt=2048, output=301)
    decoding = [answer.total_s - answer.ttft_s for answer in (request, more)]
    assert decoding[1] / decoding[0] == pytest.approx(1.0033, abs=5e-5)


def test_weights_arrive_layer_by_layer():
    sizes = [2 * sum(tensor.n_params for tensor in layer.tensors) for layer in M.layers]
    assert len(sizes) == 80 and set(sizes) == {2 * 855_654_400}
    assert max(sizes) / RESIDENT == pytest.approx(0.012, abs=0.0005)


def test_time_to_first_token_contains_the_queue():
    alone, crowded = fact("nim-ttft-c1") / 1e3, fact("nim-ttft-c100") / 1e3
    assert (round(alone, 2), round(crowded, 1), round(crowded / alone)) == (0.41, 8.0, 20)
    floor = econ.Deployment(M, G, n_gpus=2, weights="fp8", kv="fp8").prefill(prompt=5000).time_s
    assert floor < alone < 3 * floor < crowded / 10


def test_resident_and_streamed_bytes():
    assert (round(RESIDENT / 1e9, 1), round(STREAMED / 1e9, 1)) == (141.1, 139.0)
    assert round(RESIDENT / STREAMED, 3) == 1.015


def test_a_step_reads_the_weights_once():
    alone, together = (econ.forward(M, batch=batch, new_tokens=1, context=2048) for batch in (1, 64))
    assert alone.weight_bytes == together.weight_bytes
    assert together.kv_read_bytes == 64 * alone.kv_read_bytes


def test_weights_do_not_fit_on_the_chip():
    assert fact("h100-l2") * 1e6 / RESIDENT == pytest.approx(0.00035, abs=5e-6)
    assert econ.Deployment(M, G, n_gpus=4).memory(batch=1, context=2048).fits


def test_a_token_against_the_prompt():
    token = one_token(2047, count="article").flops
    assert article(2048) / token == pytest.approx(2018, abs=0.5)
    assert token / 1e12 == pytest.approx(0.1444, abs=5e-5)
    assert 2048 / (article(2048) / token) == pytest.approx(1.015, abs=0.0005)
    assert token / (article(2048) / 2048) == pytest.approx(1.015, abs=0.0005)


def test_the_cache_has_its_own_dtype():
    def cache(**options):
        return econ.Deployment(M, G, n_gpus=4, **options).memory(batch=1, context=2048).kv_bytes

    assert cache(weights="fp8") == cache(weights="bf16") == 2 * cache(weights="fp8", kv="fp8")
    assert M.kv_cache_bytes(tokens=2048, batch=8, dtype="bf16") == 8 * 671_088_640


def test_mib_are_not_mb():
    small, large = (M.kv_cache_bytes(tokens=n, batch=1, dtype="bf16") for n in (2048, 131_072))
    assert (small / 2**20, large / 2**30) == (640, 40)
    assert (round(small / 1e6, 1), round(large / 1e9, 2)) == (671.1, 42.95)
    assert (round(small / 640e6, 3), round(large / 40e9, 3)) == (1.049, 1.074)


def test_the_cache_grows_linearly():
    sizes = [M.kv_cache_bytes(tokens=n, batch=b, dtype="bf16")
             for n, b in ((1000, 1), (10_000, 1), (1000, 10))]
    assert sizes[1] == sizes[2] == 10 * sizes[0]
