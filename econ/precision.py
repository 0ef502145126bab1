"""Number formats: how many bytes a tensor or a cache element takes in each.

A format is a number of bits per element, plus the scales that a block of elements shares.
A *recipe* (the `weights` argument everywhere) says which tensors of a model get which format.
"""

from dataclasses import dataclass
from math import prod

from .arrays import ceil_div
from .units import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One way to store numbers: element bits, and one scale for every `block` of a matrix.

    bytes = rows * cols * bits / 8 + ceil(rows / block_rows) * ceil(cols / block_cols) * scale_bits / 8 + tensor_bytes

    >>> FORMATS["mxfp4"].bytes((1, 32))
    17
    """

    name: str
    bits: float
    block: tuple[int, int] | None = None  # (rows, cols) that share one scale; 0 means the whole length
    scale_bits: int = 0
    tensor_bytes: int = 0  # one more scale for the whole tensor
    rate: str = "bf16"  # the tensor-core precision that multiplies it; weight-only formats use bf16

    def bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of one tensor of this shape, scales included."""
        rows, cols = (1, shape[0]) if len(shape) == 1 else (shape[0], prod(shape[1:]))
        bits = self.bits * rows * cols
        if self.block:
            block_rows, block_cols = self.block[0] or rows, self.block[1] or cols
            bits += ceil_div(rows, block_rows) * ceil_div(cols, block_cols) * self.scale_bits
        return ceil_div(int(bits), 8) + self.tensor_bytes


# Sources: FP8 (micikevicius2022), MX (ocp-mx-2023), NVFP4 (nvfp4-2025); AWQ and GPTQ store one 16-bit scale and
# one 4-bit zero point for 128 weights; GGUF block sizes are those its files declare.
FORMATS = {f.name: f for f in (
    Format(name="fp32", bits=32),
    Format(name="bf16", bits=16),
    Format(name="fp16", bits=16),
    Format(name="fp8", bits=8, tensor_bytes=4, rate="fp8"),
    Format(name="fp8_block", bits=8, block=(128, 128), scale_bits=32, rate="fp8"),
    Format(name="int8", bits=8, block=(1, 0), scale_bits=16),
    Format(name="int4", bits=4, block=(1, 128), scale_bits=20),
    Format(name="nvfp4", bits=4, block=(1, 16), scale_bits=8, tensor_bytes=4, rate="fp4"),
    Format(name="mxfp4", bits=4, block=(1, 32), scale_bits=8, rate="fp4"),
    Format(name="q8_0", bits=8, block=(1, 32), scale_bits=16),
    Format(name="q4_0", bits=4, block=(1, 32), scale_bits=16),
    Format(name="q4_k", bits=4, block=(1, 256), scale_bits=128),
    Format(name="q6_k", bits=6, block=(1, 256), scale_bits=144),
)}

WIDE = ("fp32", "bf16", "fp16")  # recipes that convert every tensor
GGUF = ("q8_0", "q4_0", "q4_k_m")  # recipes with their own mix of formats
RECIPES = (*WIDE, "fp8", "int8", "int4", "nvfp4", "mxfp4", *GGUF)
CACHE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}

_SPELLINGS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
              "f16": "fp16", "f32": "fp32", "float8_e4m3fn": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8",
              "awq": "int4", "gptq": "int4"}


def canonical(dtype: str, known, what: str) -> str:
    """The one spelling of a dtype that `econ` uses.

    Raises ValueError for a name that is not in `known`.

    >>> canonical("bfloat16", RECIPES, "weights")
    'bf16'
    """
    name = dtype.lower().removeprefix("torch.") if isinstance(dtype, str) else ""
    name = _SPELLINGS.get(name, name)
    if name not in known:
        raise ValueError(f"unknown {what} dtype {shown(dtype)}; use one of {', '.join(known)}")
    return name


def cache_bytes(dtype: str) -> int:
    """Bytes of one cache element.

    Assumes no scales: engines that quantise the cache keep one scale a layer, or fold it in.

    >>> cache_bytes("fp8")
    1
    """
    return CACHE_BYTES[canonical(dtype, CACHE_BYTES, "cache")]


def gguf_format(recipe: str, role: str, name: str, layer: int, n_layers: int) -> Format:
    """The format one tensor gets in a GGUF file of this recipe.

    One-dimensional tensors stay in fp32. The head is q6_k under q4_0 and q4_k_m. Under q4_k_m the value and
    down projections are q6_k in the first eighth, the last eighth and every third layer between.
    Source: the quantiser's published rules; within 0.5 % of file sizes (tests/test_published.py).
    """
    if role in ("norm", "bias", "other", "router"):
        return FORMATS["fp32"]
    if recipe == "q8_0":
        return FORMATS["q8_0"]
    if role == "head":
        return FORMATS["q6_k"]
    if recipe == "q4_0":
        return FORMATS["q4_0"]
    eighth = n_layers // 8
    more = layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2
    wide = more and name.rsplit(".", 1)[-1] in ("v_proj", "down_proj", "down")
    return FORMATS["q6_k" if wide else "q4_k"]
