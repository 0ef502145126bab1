"""Which tensors of a quantised checkpoint stay in the model's own dtype: the module names its config lists."""

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from .errors import ConfigError
from .keys import Keys
from .model import QUANTIZED_ROLES, Layer, Tensor
from .quantized import quantisation, weight_groups

IGNORED = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")
PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers",
            "transformer.h")
# The names that published checkpoints give to the modules which have one name here.
BLOCKS = (
    ("mlp.shared_expert.", ("mlp.shared_experts.", "share_expert.", "mixer.shared_experts.",
                            "feed_forward.shared_expert.")),
    ("mlp.experts.", ("mlp.experts.0.", "block_sparse_moe.experts.0.", "feed_forward.experts.0.",
                      "feed_forward.experts.", "mixer.experts.0.")),
    ("mlp.", ("feed_forward.", "mixer.")), ("self_attn.", ("self_attention.", "attention.", "attn.", "mixer.")),
    ("mamba.", ("mixer.",)))
LEAVES = {**dict.fromkeys(("q_proj", "k_proj", "v_proj"), ("qkv_proj", "query_key_value")),
          **dict.fromkeys(("gate_proj", "up_proj"), ("gate_up_proj",)), "kv_a_proj": ("kv_a_proj_with_mqa",),
          "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_b", "in_proj_a")}

Mark = Callable[[int, Layer], Layer]


class _Modules:
    """A list of modules: names of them or of modules around them, wildcards, regular expressions after "re:"."""

    def __init__(self, patterns: Iterable[str]):
        patterns = set(patterns)
        self.exact = [_expression(p[3:]) for p in patterns if p.startswith("re:")]
        self.loose = [re.compile(fnmatch.translate(p)).match for p in patterns if "*" in p and p[:3] != "re:"]
        self.plain = {p for p in patterns if "*" not in p and p[:3] != "re:"}

    def __bool__(self) -> bool:
        return bool(self.exact or self.loose or self.plain)

    def has(self, tensor: Tensor, i: int) -> bool:
        """Does the list name this tensor of layer i?"""
        return any(self._has(name, i) for name in _spellings(tensor.name))

    def _has(self, name: str, i: int) -> bool:
        full = [f"{prefix}.{i}.{name}" for prefix in PREFIXES]
        if any(match(module) for match in self.exact for module in full):
            return True
        around = {f[:dot.start()] for f in full for dot in re.finditer(r"\.|$", f)}  # the modules it lies in
        if any(match(module) for match in self.loose for module in around):
            return True
        parts = ["layers", str(i), *name.split(".")]
        windows = {".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)}
        return bool(self.plain & (windows - {"layers", str(i)} | around))


def unquantised(keys: Keys) -> Mark:
    """A function (index, layer) -> layer that marks the tensors which the checkpoint leaves alone."""
    spec = quantisation(keys)
    skipped = _Modules([*(p for name in IGNORED for p in _strings(name, spec.get(name))), *_dynamic(spec)])
    chosen = _Modules(_targets(spec))
    if not skipped and not chosen:
        return lambda i, layer: layer
    marked: dict = {}

    def mark(i: int, layer: Layer) -> Layer:
        alone = tuple(t.role in QUANTIZED_ROLES and (skipped.has(t, i) or bool(chosen) and not chosen.has(t, i))
                      for t in layer.tensors)
        key = (id(layer), alone)
        if key not in marked:
            tensors = tuple(replace(t, quantized=False) if a else t for t, a in zip(layer.tensors, alone, strict=True))
            marked[key] = (layer, replace(layer, tensors=tensors))  # the old layer stays alive with its id
        return marked[key][1]

    return mark


def _strings(name: str, value) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{name} is a {type(value).__name__}; give a list of module names")
    return [p for p in value if isinstance(p, str)]


def _dynamic(spec: dict) -> list[str]:
    """GPTQModel's rules for single modules: the ones that leave modules alone; others are refused."""
    rules = spec.get("dynamic") or {}
    if not isinstance(rules, dict):
        raise ConfigError(f"dynamic is a {type(rules).__name__}; give an object of module patterns")
    other = [p for p, rule in rules.items() if not p.startswith("-:") and rule]
    if other:
        raise ConfigError(f"dynamic stores {other[0][:40]!r} in a format of its own, which is not implemented")
    return ["re:" + p[2:] for p in rules if p.startswith("-:")]


def _targets(spec: dict) -> list[str]:
    """compressed-tensors' targets where they are not simply every linear layer."""
    targets = [t for group in weight_groups(spec) for t in _strings("targets", group.get("targets"))]
    if "Linear" in targets:
        return []
    for target in targets:
        if not target.startswith("re:") and "." not in target:
            raise ConfigError(f"targets has {target[:40]!r}; \"Linear\", module names and \"re:\" are implemented")
    return targets


def _expression(pattern: str):
    if len(pattern) > 500 or re.search(r"[+*}]\)[+*{]", pattern):
        raise ConfigError(f"the module pattern {pattern[:40]!r} is too long, or repeats a repetition; write it simpler")
    try:
        return re.compile(pattern).match
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"the module pattern {pattern[:40]!r} is not a regular expression: {error}") from None


def _spellings(name: str) -> list[str]:
    """A tensor's module names: as here, as published, and fused with its neighbours.

    >>> _spellings("mamba.in_proj")
    ['mamba.in_proj', 'mixer.in_proj']
    """
    prefix, others = next(((p, o) for p, o in BLOCKS if name.startswith(p)), ("", ()))
    names = [name, *(other + name.removeprefix(prefix) for other in others)]
    leaf = name.rpartition(".")[2]
    return names + [n.removesuffix(leaf) + fused for n in names for fused in LEAVES.get(leaf, ())]
