"""Two independent accounts of one model: the formulas of `econ`, and what torch executes."""

import pytest

torch = pytest.importorskip("torch", reason="the kernels need torch")

import econ  # noqa: E402
from econ.kernels import llama, meter, timing  # noqa: E402

KEYS = {"layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "kv_heads": "num_key_value_heads", "head_dim": "head_dim", "ffn": "intermediate_size",
        "vocab": "vocab_size", "tied": "tie_word_embeddings"}
SHAPES = {  # sizes differ wherever they can, so that a swapped factor shows
    "grouped": (3, 48, 6, 2, 16, 80, 101, False),
    "tied": (5, 72, 4, 4, 10, 96, 64, True),
    "multi-query": (2, 40, 9, 1, 8, 33, 57, False),
}


@pytest.fixture(params=SHAPES)
def pair(request):
    """The same shape twice: as a config read by `econ`, and as tensors without contents."""
    shape = dict(zip(KEYS, SHAPES[request.param], strict=True))
    config = {KEYS[name]: size for name, size in shape.items()}
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16"}
    return econ.load_model(config), llama.Llama(**shape, dtype="bf16", device="meta")


def tokens(batch, new):
    return torch.zeros(batch, new, dtype=torch.int64, device="meta")


def test_parameters_agree(pair):
    formulas, tensors = pair
    assert formulas.n_params == tensors.n_params
    assert formulas.weight_bytes("bf16") == sum(weight.nbytes for weight in tensors.weights())


@pytest.mark.parametrize("logits", ["last", "all"])
@pytest.mark.parametrize(("batch", "new", "context"), [(1, 17, 0), (3, 17, 0), (2, 5, 12), (2, 1, 30)])
def test_flops_agree(pair, logits, batch, new, context):
    formulas, tensors = pair
    cache = tensors.new_cache(batch, context + new)
    cache.rewind(context)
    traced, _ = meter.count_flops(lambda: tensors.prefill(tokens(batch, new), cache, logits=logits))
    work = econ.forward(formulas, batch=batch, new_tokens=new, context=context, causal=False, logits=logits)
    assert work.flops == traced


def test_cache_bytes_agree(pair):
    formulas, tensors = pair
    assert formulas.kv_cache_bytes(tokens=37, batch=3, dtype="bf16") == tensors.new_cache(3, 37).bytes


def test_streamed_bytes_agree(pair):
    formulas, tensors = pair
    norms = sum(weight.nbytes for weight in tensors.weights() if weight.dim() == 1)
    matrices = sum(weight.nbytes for weight in timing.streamed_matrices(tensors))
    assert formulas.streamed_weight_bytes("bf16", tokens=1) == matrices + norms
