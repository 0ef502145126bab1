"""What each GPU holds, computes and sends: parts add up to the whole, and messages are counted by hand."""

import csv
import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from econ import Deployment, Profile, forward, load_accelerator, load_model
from econ.memory import kv_bytes_per_gpu, weight_bytes_per_gpu
from econ.names import DATA
from econ.parallel import (
    all_reduce_s,
    collectives,
    one_shot_all_reduce_s,
    pipeline_s,
    ring_all_reduce_s,
    stages,
)
from econ.work import Split

pytestmark = pytest.mark.core

L70 = load_model("llama-3.3-70b")
BIG = dataclasses.replace(load_accelerator("h100-sxm"), visible_bytes=10**13)
MODELS = ["llama-3.3-70b", "llama-3.1-8b", "qwen3-0.6b", "mixtral-8x7b-v0.1", "deepseek-v3", "gpt-oss-20b",
          "gemma-2-9b-it", "falcon-h1-0.5b-base", "nvidia-nemotron-3-nano-30b-a3b-bf16", "glm-5"]
DEGREES = {name: [n for n in (1, 2, 4, 8, 16) if all(a.heads % n == 0 for a, _ in load_model(name).attention_kinds)]
           for name in MODELS}
placed = st.sampled_from(MODELS).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(DEGREES[name])))


def replicated_bytes(model, tp: int, recipe: str = "bf16") -> float:
    """Weights held more than once: what no degree divides, and KV projections beyond the number of KV heads."""
    total = 0.0
    for layer, n in model.layer_kinds:
        for t in layer.tensors:
            size = n * model.format_of(t, recipe).bytes(t.shape) * t.copies
            if t.shard == "whole":
                total += (tp - 1) * size
            elif t.shard == "kv" and layer.attention and tp > layer.attention.kv_heads:
                total += (tp / layer.attention.kv_heads - 1) * size
    return total + (tp - 1) * sum(model.format_of(t, recipe).bytes(t.shape) for t in model.final)


# Tensor parallelism.
@given(placed)
def test_weights_add_up_to_the_whole_and_what_is_held_twice(setting):
    model, tp = load_model(setting[0]), setting[1]
    each = weight_bytes_per_gpu(model, "bf16", Split(tp=tp))
    assert tp * each == pytest.approx(model.weight_bytes("bf16") + replicated_bytes(model, tp), rel=1e-12)


@given(placed, st.integers(1, 64), st.integers(1, 3000), st.integers(0, 9000))
def test_flops_add_up_to_the_whole_and_what_every_gpu_does_for_itself(setting, batch, new, context):
    """Routers, latents, norms and index keys are multiplied on every GPU; everything else once."""
    model, tp = load_model(setting[0]), setting[1]
    one, whole = (forward(model, batch, new, context, split=Split(tp=n)) for n in (tp, 1))
    repeated = sum(n * 2 * t.n_used_params for layer, n in model.layer_kinds for t in layer.tensors
                   if t.shard == "whole" and t.flops_per_token) * batch * new
    extra = sum(n * 2 * t.n_used_params * (tp / layer.attention.kv_heads - 1) for layer, n in model.layer_kinds
                for t in layer.tensors if t.shard == "kv" and layer.attention and tp > layer.attention.kv_heads
                and t.flops_per_token) * batch * new
    index = sum(op.flops for op in whole.operators if op.name == "index")
    assert tp * one.flops == pytest.approx(whole.flops + (tp - 1) * (repeated + index) + extra, rel=1e-12)


def test_the_cache_of_the_70b_is_divided_by_heads():
    each = {tp: kv_bytes_per_gpu(L70, 2048, split=Split(tp=tp)) for tp in (1, 2, 4, 8, 16, 64)}
    assert each[4] == 671_088_640 / 4 and each[8] == 671_088_640 / 8
    assert each[16] == each[64] == each[8]  # 8 KV heads: beyond, each GPU holds one whole head


def test_a_latent_is_whole_on_every_gpu():
    """The cache of DeepSeek-V3 does not shrink with tp: the 8-GPU deployment of one replica holds as many tokens as
    one GPU of eight replicas, so attention-DP holds 8 times as many. Engines print 7.68 x for such a model."""
    model = load_model("deepseek-v3")
    assert kv_bytes_per_gpu(model, 1, split=Split(tp=8)) == kv_bytes_per_gpu(model, 1) == 70_272
    tensor = Deployment(model, "h200-sxm", n_gpus=8, tp=8)
    data = Deployment(model, "h200-sxm", n_gpus=8, tp=1, dp=8, ep=8)
    for d in (tensor, data):
        assert d.memory(1, 4096).kv_bytes == 4096 * 70_272
    assert data.serve(64, 4096, 100).running_batch == 64 and data.memory(8, 4096).fits and tensor.memory(64, 4096).fits


# Experts.
@pytest.mark.parametrize("tp, dp, ep", [(8, 1, 1), (8, 1, 8), (1, 8, 8), (2, 4, 8), (4, 2, 4), (1, 8, 1), (4, 2, 8)])
def test_experts_over_all_gpus_add_up_to_every_expert_once(tp, dp, ep):
    """DeepSeek-V3 on 8 GPUs: beyond tp, replicas share one set of experts; up to tp each replica has its own."""
    model = load_model("deepseek-v3")
    split = Deployment(model, BIG, n_gpus=8, tp=tp, dp=dp, ep=ep).split
    experts = sum(n * t.n_params for layer, n in model.layer_kinds for t in layer.tensors if t.role == "expert")
    others = sum(n * t.n_params * split.share(t, layer.attention) for layer, n in model.layer_kinds
                 for t in layer.tensors if t.role != "expert")
    others += sum(t.n_params * split.share(t, None) for t in model.outer)
    each = weight_bytes_per_gpu(model, "bf16", split) / 2
    assert each - others == pytest.approx(experts / max(tp, ep), rel=1e-6)


def test_a_shared_expert_gpu_sees_the_tokens_of_all_replicas():
    """8 replicas of 4 sequences bring 32 tokens to the experts: 256 (1 - (1 - 8/256)^32) are read, an eighth each."""
    model, split = load_model("deepseek-v3"), Split(tp=1, experts=8)
    (read,) = {op.weight_bytes for op in forward(model, 4, weights="bf16", split=split).operators
               if op.name == "mlp.experts.up_proj"}
    touched = 256 * (1 - (1 - 8 / 256) ** 32)
    assert read == pytest.approx(58 * touched * 7168 * 2048 * 2 / 8, rel=1e-12)
    alone = forward(model, 32, weights="bf16")
    flops = [sum(op.flops for op in w.operators if "experts." in op.name) for w in (
        forward(model, 4, weights="bf16", split=split), alone)]
    assert flops[0] * 8 == pytest.approx(flops[1], rel=1e-12)  # the 8 GPUs compute what one would for 32 tokens


# Pipeline.
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_stages_add_up_to_the_model(name, pp):
    model = load_model(name)
    parts = stages(model, pp)
    assert sum((part.layers for part in parts), ()) == model.layers
    lengths = [len(part.layers) for part in parts]
    assert max(lengths) - min(lengths) <= 1 and lengths[-1] == min(lengths)
    tied = model.embeddings[0].n_params if model.tied else 0  # the last stage needs a copy of its own
    assert sum(part.n_params for part in parts) == model.n_params + tied
    whole = forward(model, 3, 100, 50)
    for field in ("flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "state_bytes"):
        assert sum(getattr(forward(part, 3, 100, 50), field) for part in parts) == pytest.approx(
            getattr(whole, field), rel=1e-12), field


def test_a_stage_of_the_70b():
    first, *_, last = stages(L70, 4)
    assert (len(first.layers), first.n_params) == (20, 20 * 855_654_400 + 128_256 * 8192)
    assert (len(last.layers), last.n_params) == (20, 20 * 855_654_400 + 8192 + 128_256 * 8192)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="pp=81 is more than the 80 layers"):
        Deployment(L70, "h100-sxm", n_gpus=81, pp=81)


def test_one_request_in_a_pipeline_is_as_slow_as_one_gpu():
    """Four stages one after the other: a quarter of the bandwidth at any time, so 4 times the step of TP 4."""
    serial, parallel = (Deployment(L70, BIG, n_gpus=4, tp=tp, pp=4 // tp) for tp in (1, 4))
    ratio = serial.decode(1, 2048).time_s / parallel.decode(1, 2048).time_s
    assert 3.98 < ratio < 4  # the article's own bytes give 3.985
    step = serial.decode(1, 2048)
    assert step.mbu_frac == pytest.approx(0.25) and step.bytes == max(
        forward(part, 1, 1, 2048).bytes for part in serial.stages)


@pytest.mark.parametrize("batch, ratio", [(64, 3.26), (512, 1.83)])
def test_a_full_pipeline_needs_more_sequences_than_tensor_parallelism(batch, ratio):
    """At equal concurrency each weight byte serves a quarter of the batch. Context as in the article's benchmark."""
    serial, parallel = (Deployment(L70, BIG, n_gpus=4, tp=tp, pp=4 // tp) for tp in (1, 4))
    v = [d.serve(batch, prompt=2035, output=300) for d in (serial, parallel)]
    assert v[0].decode_s / v[1].decode_s == pytest.approx(ratio, rel=5e-3)
    assert v[0].prefill_s == pytest.approx(v[1].prefill_s, rel=1e-3)  # four prompts are in four stages


@pytest.mark.parametrize("pp, micro_batches", [(1, 1), (1, 5), (4, 1), (4, 3), (4, 4), (3, 20)])
def test_micro_batches_follow_each_other_through_the_stages(pp, micro_batches):
    """Against a schedule played through: a stage starts when it is free and the micro-batch has left the one before."""
    free = [0.0] * pp
    for _ in range(micro_batches):
        ready = 0.0
        for stage in range(pp):
            free[stage] = ready = max(free[stage], ready) + 0.25
    assert pipeline_s(0.25 * pp, pp, micro_batches) == pytest.approx(free[-1])
    idle = 1 - 0.25 * micro_batches / free[-1]
    assert idle == pytest.approx((pp - 1) / (micro_batches + pp - 1))


# Collectives.
def test_the_all_reduces_of_one_token_of_the_70b():
    """2 in each of 80 layers, 16,384 B: 4.369 us for the bytes one way around, 8.738 us there and back."""
    (reduce,) = collectives(L70, 1, 1, tp=4)
    assert (reduce.kind, reduce.count, reduce.size_bytes, reduce.n) == ("all-reduce", 160, 16_384, 4)
    us = 1e6 * reduce.count * reduce.wire_bytes / 450e9
    assert f"{us:.3f} {us / 2:.3f}" == "8.738 4.369"
    assert reduce.count * ring_all_reduce_s(reduce.size_bytes, 4, 450e9) * 1e6 == pytest.approx(us)


def test_the_messages_of_a_prompt():
    """The article has no ring factor: 11.9 ms for 2,035 tokens. With it 17.9 ms for 2,048, or 22.0 at 366 GB/s."""
    (reduce,) = collectives(L70, 1, 2035, tp=4)
    assert f"{reduce.count * reduce.size_bytes / 450e9 * 1e3:.1f}" == "11.9"
    (reduce,) = collectives(L70, 1, 2048, tp=4)
    assert [f"{reduce.count * reduce.wire_bytes / bus * 1e3:.1f}" for bus in (450e9, 366e9)] == ["17.9", "22.0"]


def test_a_pipeline_of_four_sends_three_times():
    (send,) = collectives(L70, 1, 2048, pp=4)
    assert (send.kind, send.count, send.size_bytes) == ("send", 3, 33_554_432) and send.wire_bytes == send.size_bytes
    assert collectives(L70, 1, 1, pp=4)[0].size_bytes == 16_384


def test_experts_over_replicas_get_their_tokens_by_all_to_all():
    """DeepSeek-V3, 8 replicas of one GPU: 58 routed layers, there and back, 8 experts a token."""
    (swap,) = collectives(load_model("deepseek-v3"), 16, 1, tp=1, ep=8)
    assert (swap.kind, swap.count, swap.size_bytes, swap.n) == ("all-to-all", 116, 16 * 8 * 7168 * 2, 8)
    assert swap.wire_bytes == swap.size_bytes * 7 / 8  # an eighth stays
    reduce, swap = collectives(load_model("deepseek-v3"), 16, 1, tp=2, ep=8)
    assert (reduce.count, swap.size_bytes) == (61 + 3, 16 * 8 * 7168 * 2 / 2)  # each of 2 GPUs sends half of the tokens


def test_one_gpu_sends_nothing():
    for name in MODELS:
        assert collectives(load_model(name), 4, 100) == ()


@pytest.mark.parametrize("name, reduces", [
    ("mamba-2.8b", 64), ("falcon-h1-0.5b-base", 72), ("nvidia-nemotron-3-nano-30b-a3b-bf16", 52),
    ("mixtral-8x7b-v0.1", 64), ("deepseek-v3", 122)])
def test_a_layer_has_an_all_reduce_for_its_mixer_and_one_for_its_mlp(name, reduces):
    (reduce,) = collectives(load_model(name), 1, 1, tp=2)
    assert reduce.count == reduces


def test_published_latencies_outweigh_the_bytes():
    """16 KB on 4 H100 take 13.2 us with CUDA graphs and 23.0 us without: 2.1 and 3.7 ms for a token of the 70B."""
    for latency_us, ms in ((13.2, 2.1), (23.0, 3.7)):
        d = Deployment(L70, "h100-sxm", n_gpus=4, profile=Profile(name="nccl", collective_s=latency_us * 1e-6 / 2))
        assert round(d.decode(1, 2048).comm_s * 1e3, 1) == ms


def test_rings_for_large_messages_and_one_shot_for_small_ones():
    hop, bus = 5e-6, 450e9
    small, large = 16_384, 33_554_432
    assert one_shot_all_reduce_s(small, 4, bus, hop) < ring_all_reduce_s(small, 4, bus, hop)
    assert one_shot_all_reduce_s(large, 4, bus, hop) > ring_all_reduce_s(large, 4, bus, hop)
    for size in (small, large):
        assert all_reduce_s(size, 4, bus, hop) == min(
            f(size, 4, bus, hop) for f in (ring_all_reduce_s, one_shot_all_reduce_s))
    assert ring_all_reduce_s(large, 2, bus) == large / bus  # each of two sends half, twice


def comm_s(**changes):
    profile = Profile(name="links", link_frac=1.0)
    return Deployment(L70, BIG, profile=profile, **changes).decode(1, 2048).comm_s


def test_which_link_a_group_uses():
    tp8, tp16 = comm_s(n_gpus=8), comm_s(n_gpus=16)
    assert tp8 == pytest.approx(160 * 2 * 7 / 8 * 16_384 / 450e9)
    assert tp16 == pytest.approx(160 * 2 * 15 / 16 * 16_384 / 50e9)  # beyond 8 GPUs: the network
    assert comm_s(n_gpus=16, gpus_per_node=72) == pytest.approx(160 * 2 * 15 / 16 * 16_384 / 450e9)
    assert comm_s(n_gpus=16, link=100e9) == pytest.approx(160 * 2 * 15 / 16 * 16_384 / 100e9)
    assert comm_s(n_gpus=16, tp=8, pp=2) == pytest.approx(tp8 + 16_384 / 50e9)
    assert comm_s(n_gpus=8, tp=4, pp=2) == pytest.approx(160 * 2 * 3 / 4 * 16_384 / 450e9 + 16_384 / 450e9)
    slow = dataclasses.replace(load_accelerator("l40s"), visible_bytes=10**13)
    pcie = Deployment(L70, slow, n_gpus=16, profile=Profile(name="links", link_frac=1.0)).decode(1, 2048).comm_s
    assert pcie == pytest.approx(160 * 2 * 15 / 16 * 16_384 / min(slow.link.bytes_per_s_each_way, 50e9))


def test_an_unknown_link_is_asked_for_only_where_it_counts():
    lonely = dataclasses.replace(BIG, link=None)
    assert Deployment(L70, lonely, n_gpus=4).decode(1, 2048).comm_s == 0
    counted = Profile(name="links", link_frac=1.0)
    assert Deployment(L70, lonely, profile=counted).decode(1, 2048).comm_s == 0
    with pytest.raises(ValueError, match="no known link; give link="):
        Deployment(L70, lonely, n_gpus=4, profile=counted).decode(1, 2048)
    assert Deployment(L70, lonely, n_gpus=4, profile=counted, link=64e9).decode(1, 2048).comm_s > 0


# Data parallelism.
@pytest.mark.parametrize("dp", [2, 8])
def test_replicas_multiply_throughput_and_nothing_else(dp):
    one, many = (Deployment("llama-3.1-8b", "h100-sxm", n_gpus=n, dp=n) for n in (1, dp))
    assert many.tp == 1
    v, w = one.serve(16, 1000, 100), many.serve(16 * dp, 1000, 100)
    assert w.output_tokens_per_s == pytest.approx(dp * v.output_tokens_per_s, rel=1e-12)
    assert w.running_batch == 16 * dp and (w.ttft_s, w.tpot_s) == (v.ttft_s, v.tpot_s)


@pytest.mark.parametrize("degrees, said", [
    (dict(n_gpus=8, tp=4, pp=4), "is not n_gpus=8"), (dict(n_gpus=8, ep=8), "has no experts"),
    (dict(n_gpus=8, pp=0), "pp=0"), (dict(n_gpus=8, dp=16), "is not n_gpus=8")])
def test_degrees_that_cannot_be(degrees, said):
    with pytest.raises(ValueError, match=said):
        Deployment(L70, "h100-sxm", **degrees)


@pytest.mark.parametrize("degrees, said", [
    (dict(n_gpus=8, ep=3), "does not divide the 256 experts"), (dict(n_gpus=8, ep=16), "does not fit tp=8"),
    (dict(n_gpus=16, tp=8, dp=2, ep=64), "does not fit"), (dict(n_gpus=12, tp=4, dp=3, ep=8), "does not fit")])
def test_experts_that_cannot_be_spread(degrees, said):
    with pytest.raises(ValueError, match=said):
        Deployment("deepseek-v3", "h200-sxm", **degrees)


# Published times of all-reduces.
def published():
    with open(DATA / "measured" / "all_reduce.csv", newline="", encoding="utf-8") as file:
        return [(r, load_accelerator(r["accelerator"]).link.bytes_per_s_each_way, int(r["message_bytes"]),
                 int(r["n_gpus"]), float(r["time_us"]) * 1e-6) for r in csv.DictReader(file)]


def test_no_published_all_reduce_beats_the_link():
    """Even where a switch adds, each GPU sends its message once."""
    assert len(published()) == len({row["row_id"] for row, *_ in published()}) == 265
    assert all(seconds > size / link for _, link, size, _, seconds in published())


@pytest.mark.parametrize("accelerator", ["a100-sxm-80", "h100-sxm"])
def test_a_ring_is_the_floor_of_long_published_messages(accelerator):
    """Half a gigabyte over NCCL reaches between 60 and 100 % of the ring's rate on the datasheet's link."""
    long = [(ring_all_reduce_s(size, n, link), seconds) for row, link, size, n, seconds in published()
            if row["accelerator"] == accelerator and row["software"].startswith("NCCL") and size == 2**29]
    assert len(long) == 3 and all(0.6 < ring_s / seconds <= 1 for ring_s, seconds in long)
