"""The vocabulary of a family's row: which layer is of which kind, widths, and weights beside the usual ones.

A rule is a function (keys, layer, layers) -> kind. Where the config lists its layers, the list decides instead.
Mixers: full_attention, sliding_attention, chunked_attention, indexed_attention, shared_index_attention,
linear_attention, conv, hybrid (attention and a recurrence side by side), none. MLPs: dense, sparse, none.
"""

from collections.abc import Callable
from typing import NamedTuple

from .errors import ConfigError

Rule = Callable[..., str]


class Extra(NamedTuple):
    """A weight that a family has beside the usual ones: its shape in terms of the config's quantities.

    `on` says which layers have it: "all", "attention", or a kind of mixer or MLP. `when` names a key that must be
    true, or is a function of the config. `whole` weights are not split over GPUs, `routed` ones exist once for
    every expert, `plain` ones are never quantised.
    """

    name: str
    shape: tuple[str, ...]
    on: str = "attention"
    when: str | Callable | None = None
    whole: bool = False
    routed: bool = False
    plain: bool = False


def extra(name: str, *shape: str, **options) -> Extra:
    """One entry of `Family.extras`: the name, then (out, in) as products of quantities.

    >>> extra("self_attn.gate_proj", "heads*v_dim", "hidden").shape
    ('heads*v_dim', 'hidden')
    """
    return Extra(name, shape, **options)


def always(kind: str) -> Rule:
    """Every layer is of one kind.

    >>> always("dense")(None, 3, 8)
    'dense'
    """
    return lambda keys, i, n: kind


FULL, SLIDING, LINEAR = always("full_attention"), always("sliding_attention"), always("linear_attention")
DENSE, SPARSE, NO_MLP = always("dense"), always("sparse"), always("none")


def every(step, offset=-1, hit: str = "full_attention", rest: str = "sliding_attention") -> Rule:
    """Layer i is `hit` if i % step == offset; both are numbers or the names of keys.

    >>> [every(3)(None, i, 6)[:4] for i in range(6)]
    ['slid', 'slid', 'full', 'slid', 'slid', 'full']
    """
    def rule(keys, i, n):
        size = keys.integer(step) if isinstance(step, str) else step
        start = keys.integer(offset, least=0) if isinstance(offset, str) else offset
        return hit if i % size == start % size else rest
    return rule


def full_if(condition: Callable[[int, int], bool]) -> Rule:
    """Layer i of n sees everything where the condition on (i, n) holds, and slides elsewhere.

    >>> full_if(lambda i, n: i == n - 1)(None, 7, 8)
    'full_attention'
    """
    return lambda keys, i, n: "full_attention" if condition(i, n) else "sliding_attention"


def cycle(*kinds: str) -> Rule:
    """The kinds in turn.

    >>> cycle("conv", "full_attention")(None, 3, 8)
    'full_attention'
    """
    return lambda keys, i, n: kinds[i % len(kinds)]


def listed(key: str, names: dict[str, str]) -> Rule:
    """The entries of a list in the config, in turn, under this package's names."""
    def rule(keys, i, n):
        entries = keys.listed(key) or ["none"]
        return names.get(str(entries[i % len(entries)]), "unknown")
    return rule


def inside(key: str, rest: str = "linear_attention", absent: str = "linear_attention") -> Rule:
    """The layers that a list of the config names see everything."""
    def rule(keys, i, n):
        chosen = keys.listed(key)
        return absent if chosen is None else "full_attention" if i in chosen else rest
    return rule


def late_windows(keys, i: int, n: int) -> str:
    """The first max_window_layers layers see everything."""
    return "sliding_attention" if i >= keys.integer("max_window_layers", default=n, least=0) else "full_attention"


def early_windows(keys, i: int, n: int) -> str:
    """Every other one of the first max_window_layers layers slides."""
    early = i < keys.integer("max_window_layers", default=n, least=0)
    return "sliding_attention" if early and i % 2 == 0 else "full_attention"


def no_rope(kind: str, inverse: bool = False) -> Rule:
    """Layers with position information (or, `inverse`, without) are of this kind, the others see everything."""
    def rule(keys, i, n):
        flags = keys.listed("no_rope_layers", n) or None
        rope = bool(flags[i]) if flags else (i + 1) % keys.integer("no_rope_layer_interval", default=4) != 0
        return kind if rope != inverse else "full_attention"
    return rule


def cohere2_moe_mixer(keys, i: int, n: int) -> str:
    """Two patterns of windows: one for the dense layers in front, one for the rest."""
    first = keys.integer("first_k_dense_replace", least=0)
    step = keys.integer("prefix_dense_sliding_window_pattern" if i < first else "sliding_window_pattern")
    return "sliding_attention" if ((i if i < first else i - first) + 1) % step else "full_attention"


def gpt_neo_mixer(keys, i: int, n: int) -> str:
    """attention_types is a list of [kinds, times]."""
    entries = keys.listed("attention_types") or [[["global", "local"], (n + 1) // 2]]
    kinds = [kind for entry in entries for kind in repeated(entry, n)]
    kind = kinds[i] if i < len(kinds) else None
    return "full_attention" if kind == "global" else "sliding_attention" if kind == "local" else "unknown"


def repeated(entry, most: int) -> list:
    """One entry of attention_types: a list of kinds, and how often it comes.

    >>> repeated([["global", "local"], 2], most=8)
    ['global', 'local', 'global', 'local']
    """
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], list) and isinstance(entry[1], int)):
        raise ConfigError(f"attention_types has {str(entry)[:40]}; give [[kinds], times]")
    return entry[0] * min(entry[1], most)


def glm_index(keys, i: int, n: int) -> str:
    """Some layers have an index of their own, the others reuse the choice of the one before."""
    kinds = keys.listed("indexer_types", n) or keys.raw("index_topk_pattern")
    if isinstance(kinds, list | str):
        own = len(kinds) > i and kinds[i] in ("full", "F")
    else:
        step = max(keys.integer("index_topk_freq", default=1, least=0), 1)
        own = max(i - keys.integer("index_skip_topk_offset", default=2, least=0) + 1, 0) % step == 0
    return "indexed_attention" if own else "shared_index_attention"


def lfm3_mixer(keys, i: int, n: int) -> str:
    """A convolution, then by turns a window, a convolution, full attention and a convolution."""
    return "full_attention" if i % 4 == 2 else "sliding_attention" if i and i % 4 == 0 else "conv"


def kimi_mixer(keys, i: int, n: int) -> str:
    """full_attn_layers counts from 1; without it every fourth layer after the first is attention."""
    full = keys.listed("full_attn_layers")
    return "full_attention" if (i and i % 4 == 0 if full is None else i + 1 in full) else "linear_attention"


def from_layer(key: str | int) -> Rule:
    """The first so many layers are dense: a number, or the key that says it."""
    def rule(keys, i, n):
        return "sparse" if i >= (key if isinstance(key, int) else keys.integer(key, least=0)) else "dense"
    return rule


def deepseek(default: int) -> Rule:
    """The first first_k_dense_replace layers are dense, then every moe_layer_freq-th is routed, or a list says."""
    def rule(keys, i, n):
        if isinstance(keys.raw("moe_layer_freq"), list):
            return "sparse" if keys.listed("moe_layer_freq", n)[i] else "dense"
        first = keys.integer("first_k_dense_replace", default=default, least=0)
        return "sparse" if i >= first and i % keys.integer("moe_layer_freq", default=1) == 0 else "dense"
    return rule


def stepped(keys, i: int, n: int) -> str:
    """Every decoder_sparse_step-th layer is routed, those in mlp_only_layers are not."""
    dense = i in (keys.listed("mlp_only_layers") or [])
    return "dense" if dense or (i + 1) % keys.integer("decoder_sparse_step", default=1) else "sparse"


def interleaved(keys, i: int, n: int) -> str:
    """The layers in moe_layers are routed, or every interleave_moe_layer_step-th."""
    chosen, step = keys.listed("moe_layers"), keys.integer("interleave_moe_layer_step")
    return "sparse" if (i in chosen if chosen is not None else (i + 1) % step == 0) else "dense"


def ranged(keys, i: int, n: int) -> str:
    """Every moe_layer_interval-th layer from moe_layer_start_index to moe_layer_end_index is routed."""
    last = keys.integer("moe_layer_end_index", least=-1)
    inside_range = keys.integer("moe_layer_start_index", least=0) <= i <= (n - 1 if last == -1 else last)
    return "sparse" if inside_range and (i + 1) % keys.integer("moe_layer_interval") == 0 else "dense"


def step_mlp(keys, i: int, n: int) -> str:
    """moe_layers_enum names the routed layers, in a list or in one string; without it all but the first three."""
    routed = keys.raw("moe_layers_enum")
    named = routed.split(",") if isinstance(routed, str) else keys.listed("moe_layers_enum")
    return "sparse" if (i >= 3 if named is None else str(i) in {str(part).strip() for part in named}) else "dense"
