"""Bytes of each number format, from the layouts its makers publish; which tensors a recipe quantises."""

import pytest

from econ import load_model
from econ.precision import CACHE_BYTES, FORMATS, RECIPES, cache_bytes, canonical, gguf_format

pytestmark = pytest.mark.core


@pytest.mark.parametrize("name, shape, size, why", [
    ("fp32", (3, 5), 60, "4 B each"),
    ("bf16", (3, 5), 30, "2 B each"),
    ("fp16", (7,), 14, "2 B each"),
    ("fp8", (128, 256), 128 * 256 + 4, "1 B each and one fp32 scale"),
    ("fp8_block", (128, 128), 128 * 128 + 4, "one fp32 scale for 128 x 128"),
    ("fp8_block", (129, 257), 129 * 257 + 2 * 3 * 4, "partial blocks have a scale too"),
    ("int8", (4, 100), 4 * 100 + 4 * 2, "one 16-bit scale a row"),
    ("int4", (2, 256), 2 * 256 // 2 + 4 * 20 // 8, "a 16-bit scale and a 4-bit zero for 128"),
    ("mxfp4", (1, 32), 17, "16 B of E2M1 and one E8M0 byte"),
    ("mxfp4", (10, 2880), 10 * 90 * 17, "4.25 bits a value"),
    ("nvfp4", (1, 16), 8 + 1 + 4, "8 B of E2M1, one E4M3 scale, one fp32 a tensor"),
    ("q8_0", (1, 32), 34, "32 int8 and an fp16 scale: 8.5 bits"),
    ("q4_0", (1, 32), 18, "32 nibbles and an fp16 scale: 4.5 bits"),
    ("q4_k", (1, 256), 144, "4.5 bits: 128 + 12 + 4 B"),
    ("q6_k", (1, 256), 210, "6.5625 bits: 128 + 64 + 16 + 2 B"),
])
def test_bytes_of_a_block(name, shape, size, why):
    assert FORMATS[name].bytes(shape) == size, why


@pytest.mark.parametrize("name, rate",
                         [("fp8", "fp8"), ("fp8_block", "fp8"), ("nvfp4", "fp4"), ("mxfp4", "fp4"),
                          ("int8", "bf16"),
                                        ("int4", "bf16"), ("q8_0", "bf16"), ("q4_k", "bf16"),
                          ("bf16", "bf16")])
def test_weight_only_formats_multiply_in_16_bit(name, rate):
    assert FORMATS[name].rate == rate


def test_cache_element_bytes():
    assert CACHE_BYTES == {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
    assert cache_bytes("float16") == 2


@pytest.mark.parametrize("given, name",
                         [("bfloat16", "bf16"), ("torch.bfloat16", "bf16"), ("FP16", "fp16"),
                          ("half", "fp16"),
                                         ("f16", "fp16"), ("float32", "fp32"), ("AWQ", "int4"),
                          ("Q4_K_M", "q4_k_m")])
def test_spellings(given, name):
    assert canonical(given, RECIPES, "weights") == name


@pytest.mark.parametrize("given", ["fp7", "", "bf 16", None, 16, 2.0, True, ["bf16"], {"bf16": 1}, b"bf16"])
def test_an_unknown_dtype_is_refused_with_what_would_work(given):
    with pytest.raises(ValueError) as error:
        canonical(given, RECIPES, "weights")
    message = str(error.value)
    assert repr(given) in message and "bf16" in message and "q4_k_m" in message
    assert "\n" not in message and len(message) < 300


def test_q4_k_m_gives_more_bits_to_the_outer_eighths_and_every_third_layer():
    wide = [i for i in range(32) if gguf_format("q4_k_m", "linear", "self_attn.v_proj", i, 32).name == "q6_k"]
    assert wide == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert wide == [i for i in range(32) if gguf_format("q4_k_m", "linear", "mlp.down_proj", i,
                                                        32).name == "q6_k"]
    assert {gguf_format("q4_k_m", "linear", "mlp.up_proj", i, 32).name for i in range(32)} == {"q4_k"}


@pytest.mark.parametrize("recipe, head, table, norm",
                         [("q8_0", "q8_0", "q8_0", "fp32"), ("q4_0", "q6_k", "q4_0", "fp32"),
                                                       ("q4_k_m", "q6_k", "q4_k", "fp32")])
def test_gguf_outside_the_layers(recipe, head, table, norm):
    assert gguf_format(recipe, "head", "lm_head", 0, 32).name == head
    assert gguf_format(recipe, "embedding", "embed_tokens", 0, 32).name == table
    assert gguf_format(recipe, "norm", "norm0", 0, 32).name == norm


TINY = dict(model_type="llama", hidden_size=256, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=512, vocab_size=1000)
Q, KV, MLP = 256 * 256, 128 * 256, 512 * 256  # elements of q and o, of k and v, of one MLP matrix
LINEAR, NORMS, TABLES = 3 * (2 * Q + 2 * KV + 3 * MLP), (3 * 2 + 1) * 256, 2 * 1000 * 256


@pytest.mark.parametrize("recipe, size", [
    ("bf16", 2 * (LINEAR + NORMS + TABLES)),
    ("fp32", 4 * (LINEAR + NORMS + TABLES)),
    ("fp8", LINEAR + 3 * 7 * 4 + 2 * (NORMS + TABLES)),
    ("int8", LINEAR + 3 * 2 * (256 + 256 + 2 * 128 + 2 * 512 + 256) + 2 * (NORMS + TABLES)),
    ("int4", LINEAR // 2 + LINEAR // 128 * 20 // 8 + 2 * (NORMS + TABLES)),
    ("mxfp4", LINEAR * 17 // 32 + 2 * (NORMS + TABLES)),
    ("nvfp4", LINEAR * 9 // 16 + 3 * 7 * 4 + 2 * (NORMS + TABLES)),
    ("q8_0", (LINEAR + TABLES) * 34 // 32 + 4 * NORMS),
    ("q4_0", (LINEAR + 256_000) * 18 // 32 + 256_000 * 210 // 256 + 4 * NORMS),
])
def test_a_recipe_quantises_the_linear_layers_and_leaves_the_rest(recipe, size):
    assert load_model(TINY).weight_bytes(recipe) == size


def test_flat_bytes_price_every_parameter_alike():
    n = LINEAR + NORMS + TABLES
    m = load_model(TINY)
    assert [m.weight_bytes(r, flat_bytes=True) for r in ("bf16", "fp8", "int4")] == [2 * n, n, n // 2]


def test_a_quantised_router_would_be_wrong():
    moe = load_model({**TINY, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2})
    linear, experts, router = 3 * (2 * Q + 2 * KV), 3 * 4 * 3 * MLP, 3 * 4 * 256
    assert moe.weight_bytes("mxfp4") == (linear + experts) * 17 // 32 + 2 * (router + NORMS + TABLES)
