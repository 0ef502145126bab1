"""What files and engines print, against econ. The rows of cases.csv are in tests/cases.py."""

import csv
from pathlib import Path

import pytest

from econ import load_model
from econ.memory import kv_bytes_per_gpu, weight_bytes_per_gpu
from econ.precision import FORMATS
from econ.work import Split

pytestmark = pytest.mark.core

DATA = Path(__file__).parent / "data"
GIB, MIB = 2**30, 2**20


def table(path):
    with open(DATA / path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Files: whole GGUF files, as their publishers list them.
@pytest.mark.parametrize("row", table("gguf_sizes.csv"), ids=lambda row: row["published_as"])
def test_gguf_files(row):
    m, recipe = load_model(row["model"]), row["weights"]
    size = mixed_gguf_bytes(m) if "+" in recipe else m.weight_bytes(recipe)
    assert size / GIB == pytest.approx(float(row["file_gib"]), rel=5e-3)


def mixed_gguf_bytes(m):
    """gpt-oss files keep the experts in mxfp4, all other matrices and both tables in q8_0, vectors in fp32."""
    tensors = [t for layer in m.layers for t in layer.tensors] + list(m.outer)
    stored = [(t, "mxfp4" if t.role == "expert" else "q8_0" if len(t.shape) > 1 else "fp32") for t in tensors]
    return sum(t.copies * FORMATS[name].bytes(t.shape) for t, name in stored)


def kv(name, tokens, dtype="fp16", unit=1):
    return load_model(name).kv_cache_bytes(tokens, dtype=dtype) / unit


# Sizes that engines and files print, in the table of reference values.
@pytest.mark.parametrize("quantity, hub_id, call", [
    ("llamacpp_kv_MiB_ctx2048_f16", "mistralai/Mixtral-8x7B-v0.1", lambda: kv("mixtral-8x7b-v0.1", 2048, unit=MIB)),
    ("llamacpp_kv_MiB_ctx2048_f16", "meta-llama/Meta-Llama-3.1-8B", lambda: kv("llama-3.1-8b", 2048, unit=MIB)),
    ("llamacpp_kv_MiB_ctx2048_f16", "meta-llama/Meta-Llama-3.1-70B", lambda: kv("llama-3.1-70b", 2048, unit=MIB)),
    ("kv_bytes_ctx8192_fp16", "openai-community/gpt2", lambda: kv("gpt2", 8192)),
    ("vllm_model_loading_took_per_gpu_tp4", "Qwen/Qwen3-30B-A3B", lambda: weight_bytes_per_gpu(
        load_model("qwen3-30b-a3b"), "bf16", Split(tp=4, experts=4)) / GIB),
    ("kv_bytes_alloc_len8192_batch32_bf16_windowed", "openai/gpt-oss-20b", lambda: kv_bytes_per_gpu(
        load_model("gpt-oss-20b"), 8192, 32, "bf16") / GIB),
    ("kv_bytes_per_token_bf16_full_layers_only", "openai/gpt-oss-120b",
     lambda: load_model("gpt-oss-120b").kv_growth_bytes_per_token("bf16")),
])
def test_reference_table(quantity, hub_id, call):
    (row,) = [row for row in table("configs/truth.csv") if (row["model"], row["quantity"]) == (hub_id, quantity)]
    assert call() == pytest.approx(float(row["value"]), rel=1e-3)


def test_a_rope_table_explains_the_rest_of_a_logged_weight():
    """14.9888 GiB were printed: the weights, and cos and sin of 131,072 positions x 128, which engines keep beside."""
    m = load_model("llama-3.1-8b")
    assert (m.weight_bytes("bf16") + 131_072 * 128 * 2) / GIB == pytest.approx(14.9888, rel=1e-5)
