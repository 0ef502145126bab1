"""Read a config's quantization_config: the format of quantised tensors, and which of them it leaves alone."""

import fnmatch
import re
from collections.abc import Callable
from dataclasses import replace

from .errors import ConfigError
from .keys import Keys
from .model import QUANTIZED_ROLES, Layer, Tensor
from .precision import FORMATS, Format

IGNORED = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules")
PREFIXES = ("model.layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers",
            "transformer.h")
FUSED = {**dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
         **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"), "kv_a_proj": "kv_a_proj_with_mqa"}


def published_format(keys: Keys) -> Format | None:
    """The stored format of the quantised matrices, or None for an unquantised checkpoint.

    Raises ConfigError for a method that is not implemented: a guess would be a wrong byte count.
    """
    spec = _spec(keys)
    if not spec:
        return None
    method = str(spec.get("quant_method") or ("modelopt" if "quant_algo" in spec else "")).lower()
    if method not in METHODS:
        raise ConfigError(f"quant_method {method[:40]!r} is not implemented; use one of {', '.join(METHODS)}, "
                          "or drop quantization_config")
    return METHODS[method](spec)


def cache_dtype(keys: Keys) -> str:
    """The dtype in which the checkpoint says the KV cache is kept; bf16 where it says nothing."""
    spec = _spec(keys)
    scheme, named = spec.get("kv_cache_scheme"), spec.get("kv_cache_quant_algo")
    eight_bit = (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or str(named).upper() == "FP8"
    return "fp8" if eight_bit else "bf16"


def unquantised(keys: Keys):
    """A function (index, layer) -> layer that marks the tensors which the checkpoint leaves alone.

    A pattern is a module's name, the name of a module around it, a wildcard, or a regular expression after "re:".
    """
    spec = _spec(keys)
    patterns = [p for name in IGNORED for p in _strings(name, spec.get(name))]
    if not patterns:
        return lambda i, layer: layer
    plain = {p for p in patterns if "*" not in p and not p.startswith("re:")}
    loose = [_matcher(p) for p in patterns if p not in plain]
    marked: dict = {}

    def mark(i: int, layer: Layer) -> Layer:
        skips = tuple(_skipped(t, i, plain, loose) for t in layer.tensors)
        key = (id(layer), skips)
        if key not in marked:
            tensors = tuple(replace(t, quantized=False) if s else t for t, s in zip(layer.tensors, skips, strict=True))
            marked[key] = (layer, replace(layer, tensors=tensors))  # the old layer stays alive with its id
        return marked[key][1]

    return mark


def _spec(keys: Keys) -> dict:
    spec = keys.raw("quantization_config") or keys.raw("compression_config") or keys.raw("quantization")
    if not spec:
        return {}
    if not isinstance(spec, dict):
        raise ConfigError(f"quantization_config is a {type(spec).__name__}; give an object with quant_method")
    inner = spec.get("quantization")
    return {**spec, **inner} if isinstance(inner, dict) else spec


def _strings(name: str, value) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"{name} is a {type(value).__name__}; give a list of module names")
    return [p for p in value if isinstance(p, str)]


def _matcher(pattern: str):
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(pattern)).match
    if len(pattern) > 500 or re.search(r"[+*}]\)[+*{]", pattern):
        raise ConfigError(f"the ignored module {pattern[:40]!r} is too long, or repeats a repetition; write it simpler")
    try:
        return re.compile(pattern[3:]).match
    except re.error as error:
        raise ConfigError(f"the ignored module {pattern[:40]!r} is not a regular expression: {error}") from None


def _skipped(tensor: Tensor, i: int, plain: set[str], loose: list) -> bool:
    if tensor.role not in QUANTIZED_ROLES:
        return False
    for name in _spellings(tensor.name):
        parts = ["layers", str(i), *name.split(".")]
        windows = {".".join(parts[a:b]) for a in range(len(parts)) for b in range(a + 1, len(parts) + 1)}
        full = [f"{prefix}.{i}.{name}" for prefix in PREFIXES]
        around = {f[:dot.start()] for f in full for dot in re.finditer(r"\.|$", f)}  # the modules it lies in
        if plain & (windows - {"layers", str(i)} | around):
            return True
        if any(match(module) for match in loose for module in (*around, name)):
            return True
    return False


def _spellings(name: str) -> list[str]:
    """A tensor's module names: as here, one expert of many, and fused with its neighbours."""
    names = [name, name.replace("mlp.experts.", "mlp.experts.0.")]
    head, _, last = name.rpartition(".")
    return names + ([f"{head}.{FUSED[last]}"] if last in FUSED else [])


def _fp8(spec: dict) -> Format:
    block = spec.get("weight_block_size")
    if block is None:
        return FORMATS["fp8"]
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block)):
        raise ConfigError(f"weight_block_size={block!r} is not two positive integers, such as [128, 128]")
    return Format(name="fp8_block", bits=8, block=(block[0], block[1]), scale_bits=32, rate="fp8")


def _fp8_rows(spec: dict) -> Format:
    return Format(name="fp8_rows", bits=8, block=(1, 0), scale_bits=32, rate="fp8")


def _grouped(spec: dict) -> Format:
    bits, group = spec.get("bits", spec.get("w_bit", 4)), spec.get("group_size", spec.get("q_group_size", 128))
    return _integer(bits, group, zero_points=True)


def _integer(bits, group, zero_points: bool) -> Format:
    if not (isinstance(bits, int) and isinstance(group, int) and bits in (2, 3, 4, 8) and (group > 0 or group == -1)):
        raise ConfigError(f"bits={bits!r}, group_size={group!r}: give bits 2, 3, 4 or 8 and a positive group_size")
    return Format(name=f"int{bits}", bits=bits, block=(1, max(group, 0)), scale_bits=16 + bits * zero_points)


def _bitsandbytes(spec: dict) -> Format:
    if spec.get("load_in_8bit"):
        return Format(name="int8", bits=8, block=(1, 0), scale_bits=32)
    if not spec.get("load_in_4bit"):
        raise ConfigError("bitsandbytes without load_in_4bit or load_in_8bit; set one of them")
    double = bool(spec.get("bnb_4bit_use_double_quant"))  # scales in 8 bits, and one fp32 for 256 of them
    return Format(name="nf4", bits=4, block=(1, 64), scale_bits=8 if double else 32)


MODELOPT = {
    "fp8": FORMATS["fp8"], "fp8_pb_wo": FORMATS["fp8_block"], "fp8_per_channel_per_token": _fp8_rows({}),
    "nvfp4": FORMATS["nvfp4"], "nvfp4_awq": FORMATS["nvfp4"], "mxfp4": FORMATS["mxfp4"], "int8": FORMATS["int8"],
    "int8_sq": FORMATS["int8"], "w4a16_awq": FORMATS["int4"]}


def _modelopt(spec: dict) -> Format:
    algorithm = str(spec.get("quant_algo") or "").lower()
    if algorithm not in MODELOPT:
        raise ConfigError(f"quant_algo {algorithm[:40]!r} is not implemented; use one of {', '.join(MODELOPT)}")
    return MODELOPT[algorithm]


def _compressed(spec: dict) -> Format:
    groups = spec.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ConfigError("compressed-tensors without config_groups; give the group with its weights")
    formats = {_compressed_group(group) for group in groups.values()}
    if len(formats) > 1:
        raise ConfigError(f"config_groups store weights in {len(formats)} formats; only one is implemented")
    return formats.pop()


def _compressed_group(group) -> Format:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise ConfigError("a group of config_groups has no weights; give their type and num_bits")
    bits, kind, size, strategy = (weights.get(k) for k in ("num_bits", "type", "group_size", "strategy"))
    if kind == "float" and bits == 8:
        block = weights.get("block_structure")
        return _fp8({"weight_block_size": block}) if block else FORMATS["fp8"] if strategy == "tensor" else \
            Format(name="fp8_rows", bits=8, block=(1, 0), scale_bits=16, rate="fp8")
    if kind == "float" and bits == 4 and size in (16, 32):
        return FORMATS["nvfp4"] if size == 16 else FORMATS["mxfp4"]
    if kind == "int":
        return _integer(bits, size or -1, zero_points=not weights.get("symmetric", True))
    raise ConfigError(f"compressed-tensors weights type={kind!r}, num_bits={bits!r} is not implemented")


METHODS: dict[str, Callable[[dict], Format]] = {
    "fp8": _fp8, "fbgemm_fp8": _fp8_rows, "mxfp4": lambda spec: FORMATS["mxfp4"], "awq": _grouped, "gptq": _grouped,
    "modelopt": _modelopt, "compressed-tensors": _compressed, "bitsandbytes": _bitsandbytes}
