"""The small Llama: FLOPs to the last digit, bytes, and the same answer by every route.

FLOP counts come from outside: transformers 5.24.0 (eager attention) traced by torch 2.13.0's
FlopCounterMode on the meta device. Those of 64-token prefills and of a decode step at 64 cached
tokens are rows flops_prefill64 and flops_decode_ctx64 of tests/data/truth.csv.
"""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

from econ.kernels import llama, meter  # noqa: E402

SMALL = {"layers": 3, "hidden": 48, "heads": 6, "kv_heads": 2, "head_dim": 16, "ffn": 80, "vocab": 101}
LLAMA_70B = {"layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "ffn": 28672,
             "vocab": 128256}
TRACED = {  # name: (shape, parameters, FLOPs of 64 tokens with all logits, FLOPs of one token after 64)
    "SmolLM2-135M": ({"layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "head_dim": 64, "ffn": 1536,
                      "vocab": 49152, "tied": True}, 134_515_008, 17_496_539_136, 273_452_544),
    "Llama-3.2-1B": ({"layers": 16, "hidden": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ffn": 8192,
                      "vocab": 128256, "tied": True}, 1_235_814_400, 158_712_463_360, 2_480_013_312),
    "Llama-2-7b": ({"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "head_dim": 128, "ffn": 11008,
                    "vocab": 32000}, 6_738_415_616, 847_853_387_776, 13_248_233_472),
    "Llama-3.1-8B": ({"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336,
                      "vocab": 128256}, 8_030_261_248, 962_743_762_944, 15_043_395_584),
    "Llama-3.1-70B": (LLAMA_70B, 70_553_706_496, 8_906_956_865_536, 139_173_822_464),
    "Llama-3.1-405B": ({"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "head_dim": 128,
                        "ffn": 53248, "vocab": 128256}, 405_853_388_800, 51_713_553_727_488, 808_032_534_528),
}


def on_meta(shape):
    return llama.Llama(**shape, dtype="bf16", device="meta")


def blank(batch, new):
    return torch.zeros(batch, new, dtype=torch.int64, device="meta")


def some_tokens(batch, new, vocab=101, seed=1):
    return torch.randint(vocab, (batch, new), generator=torch.Generator().manual_seed(seed))


def small(dtype="fp32", **changes):
    return llama.Llama(**SMALL | changes, dtype=dtype, device="cpu")


# --- exact counts -------------------------------------------------------------------------------

@pytest.mark.parametrize("name", TRACED)
def test_parameters_and_flops_equal_an_independent_trace(name):
    shape, n_params, prefill_flops, decode_flops = TRACED[name]
    model = on_meta(shape)
    cache = model.new_cache(batch=1, max_tokens=65)
    cache.rewind(64)
    assert model.n_params == n_params
    assert meter.count_flops(lambda: model.prefill(blank(1, 64), logits="all"))[0] == prefill_flops
    assert meter.count_flops(lambda: model.decode(blank(1, 1)[0], cache))[0] == decode_flops


SEVENTY_BILLION = """
import resource, time, torch
from econ.kernels import llama, meter
start = time.perf_counter()
model = llama.Llama({shape}, dtype="bf16", device="meta")
tokens = torch.zeros(1, 2048, dtype=torch.int64, device="meta")
flops = [meter.count_flops(lambda: model.prefill(tokens, logits=logits))[0] for logits in ("last", "all")]
cache = model.new_cache(batch=1, max_tokens=2049)
cache.rewind(2048)
flops.append(meter.count_flops(lambda: model.decode(tokens[:, 0], cache))[0])
print(model.n_params, *flops, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.fixture(scope="module")
def seventy_billion():
    """What a fresh process prints: parameters, three FLOP counts, seconds, peak bytes."""
    pytest.importorskip("resource", reason="peak memory is read through the Unix resource module")
    code = SEVENTY_BILLION.format(shape=", ".join(f"{name}={size}" for name, size in LLAMA_70B.items()))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *counts, seconds, peak = run.stdout.split()
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return [int(count) for count in counts], float(seconds), int(peak) * unit_bytes


def test_the_70b_is_traced_to_the_last_flop_and_without_memory(seventy_billion):
    (n_params, last, every, decode), _, peak_bytes = seventy_billion
    assert n_params == 70_553_706_496
    assert last == 291_372_682_706_944
    assert every == last + 2047 * 2 * 8192 * 128256  # the head at the 2,047 other positions
    assert decode == 144_374_759_424
    assert peak_bytes < 1e9


@pytest.mark.timing
def test_the_70b_is_traced_in_seconds(seventy_billion):
    assert seventy_billion[1] < 5  # three traces


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_flops_on_the_cpu_equal_those_on_meta(dtype):
    shape = SMALL | {"tied": True}
    real, traced = llama.Llama(**shape, dtype=dtype, device="cpu"), on_meta(shape)
    on_cpu = meter.count_flops(lambda: real.prefill(some_tokens(2, 37)))[0]
    assert on_cpu == meter.count_flops(lambda: traced.prefill(blank(2, 37)))[0]


def test_kv_cache_bytes_of_the_70b():
    cache = llama.KVCache(layers=80, batch=1, kv_heads=8, max_tokens=2048, head_dim=128, dtype="bf16",
                          device="meta")
    assert cache.bytes == 671_088_640  # 640 MiB, as llama.cpp's log prints for this model at 2,048 tokens
    assert cache.kv.shape == (80, 2, 1, 8, 2048, 128)


def test_kv_cache_bytes_are_really_allocated():
    cache = small().new_cache(batch=2, max_tokens=50)
    assert cache.bytes == 3 * 2 * 2 * 2 * 50 * 16 * 4
    assert cache.bytes == cache.kv.numel() * cache.kv.element_size()


def test_only_the_tokens_seen_are_written():
    model = small()
    cache = model.new_cache(batch=1, max_tokens=12)
    model.prefill(some_tokens(1, 7), cache)
    model.decode(torch.tensor([5]), cache)
    written = cache.kv.abs().amax(dim=(0, 1, 2, 3, 5)) > 0  # by position
    assert cache.n_tokens == 8 and written.tolist() == [True] * 8 + [False] * 4


# --- the same answer by every route -------------------------------------------------------------

def numbered_weights(model):
    """Weights from a formula, so that another program can build the same network."""
    for n, weight in enumerate(model.weights()):
        wave = torch.sin(torch.arange(weight.numel(), dtype=torch.float64) * (0.37 + 0.11 * n) + n)
        wave = wave.reshape(weight.shape)
        weight.copy_(1 + 0.1 * wave if weight.dim() == 1 else wave / weight.shape[1] ** 0.5)
    return model


ORACLE_SHAPE = {"layers": 2, "hidden": 24, "heads": 6, "kv_heads": 2, "head_dim": 8, "ffn": 40, "vocab": 17}
# transformers 5.24.0 LlamaForCausalLM, eager attention, fp64, rope_theta 10000, the weights of
# `numbered_weights`: first six of 17 logits at the last position of each sequence (recorded 2026-11).
ORACLE_LOGITS = [[-0.21092564, 0.30277472, 0.19710029, -0.31177475, -0.18286399, 0.32012471],
                 [-0.49037707, -0.55995518, 0.51594583, 0.53639599, -0.54043882, -0.51171839]]
ORACLE_TOKENS = [[3, 1, 4, 1, 5, 9, 2, 6, 5], [16, 0, 2, 7, 1, 8, 2, 8, 1]]


def oracle_error():
    model = numbered_weights(llama.Llama(**ORACLE_SHAPE, dtype="fp64", device="cpu", rope_theta=10_000.0))
    logits = model.prefill(torch.tensor(ORACLE_TOKENS))[:, 0, :6]
    return float((logits - torch.tensor(ORACLE_LOGITS, dtype=torch.float64)).abs().max())


def test_logits_equal_those_of_transformers():
    assert oracle_error() < 1e-6  # transformers keeps the angles in fp32


def test_pairing_neighbours_in_the_rotation_would_be_noticed(monkeypatch):
    def neighbours(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)

    monkeypatch.setattr(llama, "rotate", neighbours)
    assert oracle_error() > 1e-3


def test_cached_and_uncached_generation_give_the_same_tokens():
    model, prompt = small(), some_tokens(3, 20)
    cached, naive = model.generate(prompt, 16), model.generate(prompt, 16, use_cache=False)
    assert cached.shape == (3, 16)
    assert torch.equal(cached, naive)
    assert len(cached.unique()) > 4  # a constant would prove nothing


def test_decode_gives_the_logits_of_a_prefill_one_longer():
    model, tokens = small("fp64"), some_tokens(2, 30)
    cache = model.new_cache(batch=2, max_tokens=30)
    model.prefill(tokens[:, :29], cache)
    assert (model.decode(tokens[:, 29], cache) - model.prefill(tokens)[:, 0]).abs().max() < 1e-12


def chunked_error(model, cuts=(13, 20, 21, 40)):
    """Largest logit difference between a prompt in one piece and in chunks."""
    tokens = some_tokens(2, cuts[-1])
    cache, starts = model.new_cache(batch=2, max_tokens=cuts[-1]), (0, *cuts)
    pieces = [model.prefill(tokens[:, a:b], cache, logits="all") for a, b in zip(starts, cuts, strict=False)]
    return float((torch.cat(pieces, dim=1) - model.prefill(tokens, logits="all")).abs().max())


def test_chunked_prefill_equals_one_piece():
    assert chunked_error(small("fp64")) < 1e-12
    assert chunked_error(small("fp32")) < 1e-5


def test_a_top_left_mask_breaks_chunked_prefill(monkeypatch):
    monkeypatch.setattr(llama, "lower_right_mask",
                        lambda new, total, device: torch.ones(new, total, dtype=torch.bool).tril())
    assert chunked_error(small("fp64")) > 1e-2


def test_a_reused_prefix_gives_the_same_logits():
    model, prefix = small("fp64"), some_tokens(1, 32)
    cache = model.new_cache(batch=1, max_tokens=40)
    model.prefill(prefix, cache)
    for seed in (2, 3):  # two questions about one document
        question = some_tokens(1, 8, seed=seed)
        cache.rewind(32)
        whole = model.prefill(torch.cat((prefix, question), dim=1))
        assert (model.prefill(question, cache) - whole).abs().max() < 1e-12


def test_no_token_sees_a_later_one():
    model, tokens = small("fp64"), some_tokens(1, 12)
    other = tokens.clone()
    other[0, 8] = (other[0, 8] + 1) % 101
    difference = (model.prefill(tokens, logits="all") - model.prefill(other, logits="all")).abs().amax(-1)[0]
    assert difference[:8].max() == 0 and difference[8:].min() > 1e-6


def test_grouped_heads_equal_repeated_keys():
    q, k, v = (torch.randn(2, h, 9, 4, dtype=torch.float64) for h in (6, 2, 2))
    k_all, v_all = k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)
    assert (llama.attend(q, k, v) - llama.attend(q, k_all, v_all)).abs().max() < 1e-12


def test_a_tied_head_is_counted_once():
    assert small(tied=False).n_params - small(tied=True).n_params == 101 * 48


def test_weights_depend_on_the_seed_alone():
    first, same, other = (next(small(seed=seed).weights()) for seed in (0, 0, 1))
    assert torch.equal(first, same) and not torch.equal(first, other)


# --- bad input ----------------------------------------------------------------------------------

@pytest.mark.parametrize(("changes", "message"), [
    ({"layers": 0}, "layers=0"), ({"hidden": -8}, "hidden=-8"), ({"ffn": 2.5}, "ffn=2.5"),
    ({"vocab": "many"}, "vocab='many'"), ({"kv_heads": 4}, "6 heads cannot share 4"),
    ({"head_dim": 15}, "head_dim=15 is odd"), ({"dtype": "int8"}, "fp64, fp32, bf16, fp16"),
    ({"dtype": torch.int64}, "torch.int64"), ({"device": "gpu"}, "'cpu', 'cuda' or 'meta'"),
])
def test_a_wrong_shape_is_refused_in_one_line(changes, message):
    with pytest.raises(ValueError, match=".") as error:
        llama.Llama(**SMALL | {"device": "cpu"} | changes)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("tokens", "logits", "message"), [
    (torch.zeros(5, dtype=torch.int64), "last", "[batch, new]"),
    (torch.zeros(1, 0, dtype=torch.int64), "last", "each at least 1"),
    (torch.zeros(1, 5), "last", "torch.float32"),
    (torch.full((1, 5), 101), "last", "use 0 to 100"),
    (torch.full((1, 5), -1), "last", "use 0 to 100"),
    (torch.zeros(1, 5, dtype=torch.int64), "first", "'last'"),
    (torch.zeros(1, 5, dtype=torch.int64, device="meta"), "last", "on meta, the model on cpu"),
])
def test_wrong_tokens_are_refused_in_one_line(tokens, logits, message):
    with pytest.raises(ValueError, match=".") as error:
        small().prefill(tokens, logits=logits)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_cache_that_is_too_short_or_not_of_this_model_is_refused():
    model = small()
    cache = model.new_cache(batch=1, max_tokens=6)
    model.prefill(some_tokens(1, 4), cache)
    with pytest.raises(ValueError, match="4 of 6 tokens, too few places for 3 more; use max_tokens=7"):
        model.prefill(some_tokens(1, 3), cache)
    assert cache.n_tokens == 4  # a refusal changes nothing
    with pytest.raises(ValueError, match="use model.new_cache"):
        model.prefill(some_tokens(2, 1), cache)
    with pytest.raises(ValueError, match="use model.new_cache"):
        small("bf16").prefill(some_tokens(1, 1), cache)
    with pytest.raises(ValueError, match="use prefill"):
        model.decode(some_tokens(1, 1), cache)
    with pytest.raises(ValueError, match="holds 0 to 6"):
        cache.rewind(7)
    with pytest.raises(ValueError, match="new_tokens=0"):
        model.generate(some_tokens(1, 3), 0)
    with pytest.raises(ValueError, match="use .batch, new., each at least 1"):
        model.generate(some_tokens(1, 3)[0], 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="torch sees no GPU; use 'cpu' or 'meta'"):
        llama.Llama(**SMALL, device="cuda")
