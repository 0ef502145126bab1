"""A model is a schedule of layers. Parameters, FLOPs, bytes and cache sizes are all read off that schedule.

`Tensor` is a weight with its role, `Attention` says what one layer caches and scores, `Recurrent` what it
keeps instead. Nothing here knows about GPUs, and nothing else in `econ` knows a model's shape.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

from .arrays import minimum, number
from .precision import FORMATS, GGUF, RECIPES, WIDE, Format, cache_bytes, canonical, gguf_format

MATRIX_ROLES = ("linear", "expert", "router", "head")  # roles that multiply; the others are looked up or added
ROLES = (*MATRIX_ROLES, "embedding", "norm", "bias", "other")
QUANTIZED_ROLES = ("linear", "expert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One weight of a layer, or `copies` equal ones of which a token uses `used` (routed experts).

    `shape` is (out, in) for a matrix. `shard` says how tensor parallelism splits it: "tp" evenly, "kv" by
    KV heads, "whole" not at all.
    """

    name: str
    shape: tuple[int, ...]
    role: str = "linear"
    copies: int = 1
    used: int = 1
    shard: str = "tp"
    quantized: bool = True

    @property
    def n_params(self) -> int:
        """Elements held, all copies."""
        return prod(self.shape) * self.copies

    @property
    def n_used_params(self) -> int:
        """Elements that one token meets."""
        return prod(self.shape) * self.used

    @property
    def flops_per_token(self) -> int:
        """2 FLOP for each multiply-add of a matrix product; 0 for what is looked up or added."""
        return 2 * self.n_used_params if self.role in MATRIX_ROLES else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: what is cached is one joint compression of all K and V heads."""

    rank: int  # kv_lora_rank
    rope_dim: int
    up_elements: int  # weights that turn one cached latent into K and V: rank * heads * (nope + v)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Sparse attention: small index heads score every cached token, and `top_k` of them are attended.

    A layer without its `own` index reuses the choice of an earlier one and caches no index keys.
    """

    heads: int
    dim: int
    top_k: int
    own: bool = True

    @property
    def flops_per_score(self) -> int:
        """FLOPs of one query-key pair: every index head's product, and the weighted sum over the heads."""
        return 2 * self.heads * (self.dim + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What one layer's attention scores and caches. Dimensions in elements, window in tokens."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    window: int | None = None  # a query sees the last `window` tokens, itself included
    chunked: bool = False  # True: it sees its own block of `window` tokens instead
    latent: Latent | None = None
    index: Index | None = None
    keeps_cache: bool = True  # False: reads another layer's cache

    @property
    def cache_elements(self) -> int:
        """Cache elements that one token of context adds to this layer."""
        return self.read_elements + self.index_elements if self.keeps_cache else 0

    @property
    def index_elements(self) -> int:
        """Index keys that one token of context adds to this layer, read whole for every new token."""
        return self.index.dim if self.index and self.index.own else 0

    @property
    def read_elements(self) -> int:
        """Cache elements of keys and values read for each attended token, shared caches included."""
        if self.latent:
            return self.latent.rank + self.latent.rope_dim
        return self.kv_heads * (self.qk_dim + self.v_dim)

    @property
    def flops_per_score(self) -> int:
        """FLOPs of one query-key pair, all heads: 2 for each multiply-add of QK^T and of AV."""
        return 2 * self.heads * (self.qk_dim + self.v_dim)

    @property
    def flops_per_absorbed_score(self) -> int:
        """The same with MLA's up-projections absorbed into Q and O: scores against the latent itself."""
        assert self.latent
        return 2 * self.heads * (2 * self.latent.rank + self.latent.rope_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent:
    """A layer's fixed state per sequence: it is read and written once a pass, whatever the context.

    `state_elements` stay in `state_dtype`, the last inputs of a short convolution in the model's dtype.
    `flops_per_token` is the recurrence of one token at a time; a prefill handles blocks of `block` tokens as
    matrix products, `block_flops_per_token` for each token and `block_flops_per_pair` for each pair in a block.
    A rule that `pads` computes its last block whole. FLOPs are 2 for each multiply-add of a matrix product.
    """

    kind: str
    state_elements: int
    conv_channels: int = 0
    conv_kernel: int = 1
    state_dtype: str = "fp32"
    flops_per_token: int = 0
    block: int = 0
    block_flops_per_token: int = 0
    block_flops_per_pair: int = 0
    pads: bool = False

    @property
    def conv_elements(self) -> int:
        """Inputs that the short convolution keeps: all but the newest of its window."""
        return self.conv_channels * (self.conv_kernel - 1)

    @property
    def conv_flops_per_position(self) -> int:
        """2 FLOP for each multiply-add of the short convolution at one position."""
        return 2 * self.conv_channels * self.conv_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer: its weights, and its mixer (attention, a recurrence, both in parallel, or none)."""

    tensors: tuple[Tensor, ...]
    attention: Attention | None = None
    recurrent: Recurrent | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A language model as one schedule of layers, plus its tables before and after them.

    `tied` means that the head reads the input-embedding table, which is then stored once.
    `published` is the format of quantised tensors in the published checkpoint, None where there is none.

    >>> from econ.config import load_model
    >>> m = load_model("llama-3.3-70b")
    >>> m.n_params, m.weight_bytes("bf16"), m.kv_cache_bytes(tokens=2048)
    (70553706496, 141107412992, 671088640)
    """

    name: str
    hub_id: str
    layers: tuple[Layer, ...]
    embeddings: tuple[Tensor, ...]  # looked up: input table, position table
    head: Tensor
    final: tuple[Tensor, ...]  # norms and biases outside the layers
    tied: bool
    hidden: int
    max_context: int | None
    dtype: str = "bf16"
    cache_dtype: str = "bf16"
    published: Format | None = None
    note: str = ""

    @cached_property
    def layer_kinds(self) -> tuple[tuple[Layer, int], ...]:
        """Distinct layers with how often each occurs, in order of first appearance."""
        return tuple(Counter(self.layers).items())

    @cached_property
    def attention_kinds(self) -> tuple[tuple[Attention, int], ...]:
        """Distinct attentions with how often each occurs."""
        return tuple(Counter(layer.attention for layer in self.layers if layer.attention).items())

    @cached_property
    def recurrent_kinds(self) -> tuple[tuple[Recurrent, int], ...]:
        """Distinct recurrences with how often each occurs."""
        return tuple(Counter(layer.recurrent for layer in self.layers if layer.recurrent).items())

    @property
    def outer(self) -> tuple[Tensor, ...]:
        """Tensors held outside the layers; a tied head is not held twice."""
        return (*self.embeddings, *self.final, *(() if self.tied else (self.head,)))

    def _count(self, size: Callable[[Tensor], int]) -> int:
        inner = sum(n * sum(size(t) for t in layer.tensors) for layer, n in self.layer_kinds)
        return inner + sum(size(t) for t in self.outer)

    @cached_property
    def n_params(self) -> int:
        """Unique weights of the language model: a tied head once, buffers and vision towers not at all."""
        return self._count(lambda t: t.n_params)

    @cached_property
    def n_active_params(self) -> int:
        """Weights that one token meets: all that is not routed, and k of E experts; both embeddings included."""
        return self._count(lambda t: t.n_used_params)

    @cached_property
    def n_embedding_params(self) -> int:
        """Elements of the token-embedding table alone."""
        return self.embeddings[0].n_params

    @cached_property
    def heads(self) -> int:
        """Query heads of the widest attention layer; 0 without attention."""
        return max((a.heads for a, _ in self.attention_kinds), default=0)

    @cached_property
    def kv_heads(self) -> int:
        """KV heads of the widest attention layer; 0 without attention."""
        return max((a.kv_heads for a, _ in self.attention_kinds), default=0)

    @cached_property
    def is_moe(self) -> bool:
        """True if some layer routes tokens to experts."""
        return any(t.role == "expert" for layer, _ in self.layer_kinds for t in layer.tensors)

    def weight_bytes(self, dtype: str | None = None, flat_bytes: bool = False) -> int:
        """Bytes of the resident weights: everything that has to be in memory.

        sum over tensors of bytes(format of that tensor)                                        [B]

        `dtype` is a recipe (see `econ.precision`); None is the checkpoint as published. `flat_bytes=True` gives
        every parameter the recipe's element size and no scales. Engines pad and repack some kernels: 0-8 % more.
        Raises ValueError for an unknown dtype.

        >>> from econ.config import load_model
        >>> load_model("llama-3.1-8b").weight_bytes("bf16")
        16060522496
        """
        recipe = self.recipe(dtype)
        if flat_bytes:
            return int(self.n_params * _element_bits(self, recipe) / 8)
        return _bytes_by_use(self, recipe).resident

    def streamed_weight_bytes(self, dtype: str | None = None, tokens=1):
        """Bytes of weights that one pass over `tokens` tokens must read.

        resident - input embeddings - experts + E (1 - (1 - k/E)^tokens) experts a layer        [B]

        A lookup of a few embedding rows is not counted. Assumes that tokens choose experts independently and
        evenly: real routing is skewed, so real passes touch fewer. Raises ValueError for an unknown dtype.

        >>> from econ.config import load_model
        >>> load_model("llama-3.3-70b").streamed_weight_bytes("bf16")
        139006066688
        """
        tokens = number("tokens", tokens, minimum=0)
        by_use = _bytes_by_use(self, self.recipe(dtype))
        return by_use.always + sum(touched(total, used, tokens) * size for total, used, size in by_use.experts)

    def recipe(self, dtype: str | None) -> str:
        """The canonical name of a weights recipe; "published" for None."""
        return "published" if dtype is None else canonical(dtype, RECIPES, "weights")

    def format_of(self, tensor: Tensor, recipe: str, layer: int = 0) -> Format:
        """The format in which one tensor of layer `layer` is stored under a recipe."""
        if recipe in GGUF:
            return gguf_format(recipe, tensor.role, tensor.name, layer, len(self.layers))
        if recipe in WIDE:
            return FORMATS[recipe]
        quantized = tensor.role in QUANTIZED_ROLES
        if recipe == "published":
            return self.published if quantized and tensor.quantized and self.published else FORMATS[self.dtype]
        return FORMATS[recipe] if quantized else FORMATS["bf16"]

    def kv_bytes_per_token(self, dtype: str | None = None) -> int:
        """KV-cache bytes that the next token adds while every window is still open, all layers together.

        sum over layers of kv_heads * (head_dim + v_head_dim) * bytes(dtype)                    [B/token]

        A latent (MLA) layer caches rank + rope elements, once, without heads. A recurrent layer adds nothing.
        Exact; engines round up to blocks. Raises ValueError for an unknown dtype.

        >>> from econ.config import load_model
        >>> load_model("llama-3.3-70b").kv_bytes_per_token("bf16"), load_model("deepseek-v3").kv_bytes_per_token("bf16")
        (327680, 70272)
        """
        return self._cache_elements(lambda a: True) * cache_bytes(self.cache_dtype if dtype is None else dtype)

    def kv_growth_bytes_per_token(self, dtype: str | None = None) -> int:
        """KV-cache bytes that one more token adds once every window is full: layers without a window only.

        >>> from econ.config import load_model
        >>> load_model("gpt-oss-120b").kv_growth_bytes_per_token("bf16")
        36864
        """
        dtype = self.cache_dtype if dtype is None else dtype
        return self._cache_elements(lambda a: a.window is None) * cache_bytes(dtype)

    def _cache_elements(self, chosen) -> int:
        return sum(n * a.cache_elements for a, n in self.attention_kinds if chosen(a))

    def kv_cache_bytes(self, tokens, batch=1, dtype: str | None = None):
        """KV-cache bytes that `batch` sequences of `tokens` tokens need.

        batch * sum over layers of min(tokens, window) * cache elements * bytes(dtype)          [B]

        Needed, not reserved: `econ.memory` adds what an engine sets aside. Raises ValueError for a negative or
        non-finite size or an unknown dtype.

        >>> from econ.config import load_model
        >>> load_model("llama-3.3-70b").kv_cache_bytes(tokens=131_072)
        42949672960
        """
        tokens, batch = number("tokens", tokens, minimum=0), number("batch", batch, minimum=0)
        held = sum(n * a.cache_elements * (tokens if a.window is None else minimum(tokens, a.window))
                   for a, n in self.attention_kinds)
        return batch * held * cache_bytes(self.cache_dtype if dtype is None else dtype)

    def state_bytes(self, batch=1):
        """Bytes of recurrent state that `batch` sequences keep, whatever their length.

        batch * sum over recurrent layers of (state * bytes(state dtype) + conv * bytes(model dtype))      [B]

        >>> from econ.config import load_model
        >>> load_model("llama-3.3-70b").state_bytes(batch=8)
        0
        """
        batch = number("batch", batch, minimum=0)
        wide = FORMATS[self.dtype].bytes
        return batch * sum(n * (FORMATS[r.state_dtype].bytes((r.state_elements,)) + wide((r.conv_elements,)))
                           for r, n in self.recurrent_kinds)


def touched(total, used, tokens):
    """Distinct experts that `tokens` tokens reach, each choosing `used` of `total` at random.

    E (1 - (1 - k/E)^tokens)                                                                    [experts]

    >>> touched(256, 8, 1), round(touched(256, 8, 64))
    (8, 222)
    """
    if isinstance(tokens, int) and tokens in (0, 1):
        return used * tokens
    return total * (1 - (1 - used / total) ** tokens)


def _element_bits(model: Model, recipe: str) -> float:
    if recipe == "published":
        return (model.published or FORMATS[model.dtype]).bits
    return FORMATS["q4_k" if recipe == "q4_k_m" else recipe].bits


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesByUse:
    """Weight bytes by how a pass uses them."""

    resident: int
    always: int  # read in every pass
    experts: tuple[tuple[int, int, int], ...]  # (E, k, bytes of one expert in all layers that have such)


@lru_cache(maxsize=256)
def _bytes_by_use(model: Model, recipe: str) -> BytesByUse:
    resident, always = 0, 0
    experts: Counter[tuple[int, int]] = Counter()
    sized = [(t, model.format_of(t, recipe, i).bytes(t.shape)) for i, layer in enumerate(model.layers)
             for t in layer.tensors]
    sized += [(t, model.format_of(t, recipe).bytes(t.shape)) for t in (*model.embeddings, *model.final, model.head)]
    for tensor, size in sized:
        resident += size * tensor.copies
        if tensor.copies > 1:
            experts[tensor.copies, tensor.used] += size
        elif tensor.role != "embedding":
            always += size
    if model.tied:  # the head is the embedding table: stored once, in the wider of the two formats GGUF gives
        resident -= model.format_of(model.embeddings[0], recipe).bytes(model.embeddings[0].shape)
    return BytesByUse(resident=resident, always=always, experts=tuple((*k, b) for k, b in experts.items()))
