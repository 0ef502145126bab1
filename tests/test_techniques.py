"""Break-even points against their closed forms, a simulation, published gains and trying every batch."""

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import Deployment, DoesNotFit, load_accelerator
from econ.techniques import (
    batch_where_speculation_loses,
    batch_without_quantization_gain,
    expected_tokens,
    kv_transfer_s,
    prefill_replicas,
    prefix_saving,
    quantization_speedup,
    speculation_speedup,
)

pytestmark = pytest.mark.core

BIG = dataclasses.replace(load_accelerator("h100-sxm"), visible_bytes=10**13)
D70, D8 = Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), Deployment("llama-3.1-8b", "h100-sxm")
DRAFT = Deployment("llama-3.2-1b", "h100-sxm", n_gpus=4)


# Quantised weights.
@pytest.mark.parametrize("weights", ["fp8", "int8", "int4", "nvfp4", "q4_k_m"])
def test_at_batch_one_the_gain_is_the_ratio_of_the_bytes(weights):
    ratio = D8.model.streamed_weight_bytes("bf16") / D8.model.streamed_weight_bytes(weights)
    assert quantization_speedup(D8, weights) == pytest.approx(ratio, rel=1e-3)
    assert quantization_speedup(D8, weights, batch=1, context=8192) < ratio  # the cache is as large as before


def test_four_bits_are_less_than_four_times_faster():
    """16 bits over 4 and a scale is 3.85; the head and its table stay in 16 bits."""
    assert 3 < quantization_speedup(D8, "int4") < 16 / (4 + 20 / 128)
    assert 3.5 < quantization_speedup(Deployment("llama-3.3-70b", "h100-sxm", n_gpus=4), "int4") < 3.85


def test_weight_only_formats_stop_helping_at_the_ridge():
    """16-bit weights, 2 FLOP each: 989e12 / 3.35e12 = 295.2 tokens a weight read, but for the head and one token of
    cache. fp8 has twice the FLOP/s too and never stops."""
    batch = batch_without_quantization_gain(D8, "int4")
    assert abs(batch - 295.2) < 2
    assert quantization_speedup(D8, "int4", batch) == 1 < quantization_speedup(D8, "int4", batch - 1)
    assert batch_without_quantization_gain(D8, "fp8") is None


def test_with_a_long_context_the_cache_keeps_the_step_memory_bound():
    """Beyond 1,477 tokens no batch makes decode of the 70B compute-bound, so some gain remains."""
    many = dataclasses.replace(D70, accelerator=BIG)
    assert batch_without_quantization_gain(many, "int4", context=1500) is None
    assert 400 < batch_without_quantization_gain(many, "int4", context=500) < 500  # 452 at 512 tokens by the ledger
    assert quantization_speedup(many, "int4", 2000, context=1500) < 1.2


@given(st.sampled_from(["int8", "int4", "fp8"]), st.integers(1, 250), st.integers(0, 200))
def test_a_larger_batch_never_gains_more(weights, batch, context):
    larger, smaller = (quantization_speedup(D8, weights, b, context) for b in (batch + 1, batch))
    assert larger <= smaller * (1 + 1e-12)


@pytest.mark.parametrize("least", [1.0, 1.2, 2.0, 3.0])
def test_the_batch_is_that_of_trying_them_all(least):
    tried = next(b for b in range(1, 400) if quantization_speedup(D8, "int4", b, 100) <= least)
    assert batch_without_quantization_gain(D8, "int4", 100, least) == tried


# Speculation.
@pytest.mark.parametrize("acceptance, k, tokens", [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 5, 3.69), (0.9, 10, 6.86)])
def test_expected_tokens(acceptance, k, tokens):
    assert round(expected_tokens(acceptance, k), 2) == tokens
    assert expected_tokens(acceptance, k) == pytest.approx((1 - acceptance ** (k + 1)) / (1 - acceptance))


def test_expected_tokens_are_those_of_a_simulation():
    rng, rounds = random.Random(1), 100_000
    total = 0
    for _ in range(rounds):
        accepted = next((i for i in range(4) if rng.random() >= 0.75), 4)
        total += accepted + 1  # and one token of the target's own
    assert expected_tokens(0.75, 4) == pytest.approx(total / rounds, rel=5e-3)


def test_no_acceptance_gives_one_token_and_full_acceptance_all():
    assert expected_tokens(0, 7) == 1 and expected_tokens(1, 7) == 8


@pytest.mark.parametrize("acceptance, k", [(0.5, 1), (0.8, 4), (0.9, 8)])
def test_at_batch_one_the_gain_is_the_published_formula(acceptance, k):
    """(1 - a^(k+1)) / ((1 - a)(k c + 1)), c the draft's cost over the target's."""
    c = DRAFT.decode(1, 500).time_s / D70.decode(1, 500).time_s
    formula = (1 - acceptance ** (k + 1)) / ((1 - acceptance) * (k * c + 1))
    assert speculation_speedup(D70, DRAFT, acceptance, k, 1, 500) == pytest.approx(formula, rel=1e-3)
    assert c == pytest.approx(1.24e9 / 69.5e9, rel=0.02)  # streamed parameters


def test_a_draft_that_costs_nothing():
    assert speculation_speedup(D70, None, 0.8, 4) == pytest.approx(expected_tokens(0.8, 4), rel=1e-3)
    assert speculation_speedup(D70, None, 0, 4) == pytest.approx(1, rel=1e-3)  # verified for the price of one


def test_gains_shrink_with_the_batch():
    """From more than 3 at batch 1 to a loss: a compute-bound batch pays for k + 1 tokens and gets fewer."""
    gains = [speculation_speedup(D70, DRAFT, 0.8, 4, batch, 500) for batch in (1, 16, 64, 128, 256, 512)]
    assert gains == sorted(gains, reverse=True) and gains[0] > 3 and gains[-1] < 1
    wide = dataclasses.replace(D70, accelerator=BIG)
    assert speculation_speedup(wide, None, 0.8, 4, 5000, 0) == pytest.approx(expected_tokens(0.8, 4) / 5, rel=1e-2)


def test_where_speculation_loses():
    """70B on 4 H100, 4 drafted, 80 % accepted, 500 tokens: 3.36 steps buy one pass of 5 tokens for every sequence."""
    batch = batch_where_speculation_loses(D70, DRAFT, 0.8, 4, context=500)
    plain = 3.3616 * (139.0e9 + batch * 501 * 327_680) / 13.4e12
    flops = 5 * batch * (2 * 69.5e9 + 4 * 8192 * 80 * 503)
    draft = 4 * (2.47e9 + batch * 501 * 32_768) / 13.4e12
    assert plain == pytest.approx(draft + flops / 3956e12, rel=0.02)
    tried = next(b for b in range(1, 1000) if speculation_speedup(D70, DRAFT, 0.8, 4, b, 500) < 1)
    assert batch == tried
    assert batch_where_speculation_loses(D70, DRAFT, 0.9, 4, context=500) > batch
    assert batch_where_speculation_loses(D70, DRAFT, 0.01, 4) == 1
    assert batch_where_speculation_loses(D70, None, 1.0, 4, context=4000) is None  # accepted always, and memory-bound


def test_experts_make_verifying_dearer():
    """5 tokens touch 22.6 of 128 experts a layer where one touches 8 (Qwen3-30B-A3B): no pass for the price of one."""
    d = Deployment("qwen3-30b-a3b", "h100-sxm")
    assert speculation_speedup(d, None, 0.8, 4) < 0.6 * expected_tokens(0.8, 4)
    one, five = (d.model.streamed_weight_bytes(tokens=n) for n in (1, 5))
    assert d.verify(1, 5).bytes / d.decode(1).bytes == pytest.approx(five / one, rel=1e-3)


def test_verifying_gives_logits_everywhere():
    head = 2 * 128_256 * 8192 / 4
    verified, prefilled = D70.verify(3, 5, 100), D70._step(3, 5, 100)
    assert verified.flops - prefilled.flops == pytest.approx(3 * 4 * head) and verified.bytes == prefilled.bytes


# Cached prefixes.
def test_a_hit_saves_its_share_of_the_prefill_and_of_the_money():
    s = prefix_saving(D70, 0.75, 2.5, concurrency=64, prompt=2048, output=300)
    whole, rest = D70.prefill(1, 2048), D70.serve(64, 2048, 300, cached_frac=0.75)
    assert s.prefill_s == pytest.approx(whole.time_s - rest.prefill_s)
    assert 0.7 < s.prefill_s / whole.time_s < 0.75  # the last tokens of a prompt are the dearest
    second = 10 / 3600
    cycles = [D70.serve(64, 2048, 300).cycle_s, rest.cycle_s]
    assert s.usd_per_request == pytest.approx(second * (cycles[0] - cycles[1]) / 64)
    assert s.requests_frac == pytest.approx(cycles[0] / cycles[1] - 1)


def test_no_hit_saves_nothing_and_hits_always_help():
    nothing = prefix_saving(D70, 0, 2.5, 64, 2048, 300)
    assert (nothing.prefill_s, nothing.usd_per_request, nothing.requests_frac) == (0, 0, 0)
    savings = [prefix_saving(D70, hit / 10, 2.5, 64, 2048, 300).usd_per_request for hit in range(11)]
    assert savings == sorted(savings)


def test_a_hit_helps_long_prompts_more_than_long_answers():
    read, write = (prefix_saving(D70, 0.9, 2.5, 32, *sizes).requests_frac for sizes in ((8000, 100), (100, 1000)))
    assert read > 5 * write


# Two pools.
def test_the_cache_of_a_prompt_on_a_wire():
    """671 MB over four 400 Gb/s adapters: 3.36 ms, 5 % of the prefill; over NVLink 0.37 ms."""
    assert kv_transfer_s(D70, 2048, 50e9) == 671_088_640 / (4 * 50e9)
    assert round(kv_transfer_s(D70, 2048, 450e9) * 1e3, 2) == 0.37
    assert kv_transfer_s(dataclasses.replace(D70, kv="fp8"), 2048, 50e9) == 671_088_640 / 2 / 200e9
    v3 = Deployment("deepseek-v3", "h200-sxm", n_gpus=8)
    assert kv_transfer_s(v3, 1000, 50e9) == 70_272_000 / (8 * 50e9)  # a latent, sent once
    mamba = Deployment("mamba-2.8b", "h100-sxm")
    assert kv_transfer_s(mamba, 100, 50e9) == kv_transfer_s(mamba, 9000, 50e9) > 0  # a state


def test_a_slow_link_takes_longer_than_the_prefill():
    for link, slower in ((50e9, False), (1.25e9, True)):  # 400 and 10 Gb/s
        assert (kv_transfer_s(D70, 2048, link) > D70.prefill(1, 2048).time_s) is slower


def test_pools_are_as_busy_as_each_other():
    """As many prompts a second leave the prefill replicas as requests leave the decode replica."""
    ratio = prefill_replicas(D70, D70, running=64, prompt=2048, output=300)
    prompts = ratio / D70.prefill(1, 2048).time_s
    requests = 64 / (299 * D70.decode(64, 2198).time_s)
    assert prompts == pytest.approx(requests)
    assert prefill_replicas(D70, D70, 64, 2048, 600) < ratio < prefill_replicas(D70, D70, 64, 4096, 300)


def test_one_pool_of_two_gives_what_both_give_together():
    """Prefill and decode of one replica in turn, or on 1 + ratio replicas apart: the same requests a replica."""
    ratio = prefill_replicas(D70, D70, running=64, prompt=2048, output=300)
    apart = 64 / (299 * D70.decode(64, 2198).time_s) / (1 + ratio)
    assert D70.serve(64, 2048, 300).requests_per_s == pytest.approx(apart)


# Refusals.
@pytest.mark.parametrize("call, said", [
    (lambda: expected_tokens(1.1, 4), "1.1"), (lambda: expected_tokens(0.5, 0), "k=0"),
    (lambda: expected_tokens(0.5, 2.5), "k=2.5"), (lambda: expected_tokens(math.nan, 4), "nan"),
    (lambda: quantization_speedup(D8, "fp7"), "fp7"), (lambda: quantization_speedup(D8, "int4", batch=0), "batch=0"),
    (lambda: batch_without_quantization_gain(D8, "int4", least=-1), "least=-1"),
    (lambda: prefix_saving(D70, 1.5, 2.5), "1.5"), (lambda: prefix_saving(D70, 0.5, -2.5), "-2.5"),
    (lambda: kv_transfer_s(D70, 2048, 0), "link_bytes_per_s=0"), (lambda: kv_transfer_s(D70, -1, 50e9), "-1"),
    (lambda: prefill_replicas(D70, D70, 64, 2048, 1), "output=1"),
    (lambda: speculation_speedup(D70, DRAFT, 0.8, 4, context=-1), "context=-1")])
def test_bad_questions(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_does_not_fit_is_refused():
    with pytest.raises(DoesNotFit):
        prefill_replicas(D70, D70, running=10**5, prompt=2048, output=300)
    with pytest.raises(DoesNotFit):
        speculation_speedup(Deployment("llama-3.3-70b", "h100-sxm"), None, 0.8, 4)
    assert batch_where_speculation_loses(Deployment("llama-3.3-70b", "h100-sxm"), None, 0.8, 4) is None
