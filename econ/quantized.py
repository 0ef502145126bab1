"""Read a config's quantization_config: the format of quantised tensors, and which parts it leaves alone."""

import fnmatch

from .errors import ConfigError
from .precision import FORMATS, Format

_PARTS = ("self_attn", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp",
          "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.experts", "mlp.shared_expert")


def published_format(keys) -> Format | None:
    """The stored format of the quantised matrices, or None for an unquantised checkpoint.

    Raises ConfigError for a method that is not implemented: a guess would be a wrong byte count.
    """
    spec = _spec(keys)
    if not spec:
        return None
    method = str(spec.get("quant_method", "")).lower()
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(spec.get("weight_block_size"))
    if method == "mxfp4":
        return FORMATS["mxfp4"]
    if method in ("awq", "gptq"):
        return _grouped(spec.get("bits", spec.get("w_bit", 4)), spec.get("group_size", spec.get("q_group_size", 128)))
    if method == "modelopt":
        return _by_name(str(spec.get("quant_algo", "")).lower())
    if method == "compressed-tensors":
        return _compressed(spec)
    raise ConfigError(f"quant_method {method!r} is not implemented; use one of fp8, mxfp4, awq, gptq, modelopt, "
                      "compressed-tensors, or drop quantization_config")


def skips(keys):
    """A function from a layer's index to the parts of that layer that stay unquantised."""
    spec = _spec(keys)
    patterns = [p for name in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")
                for p in (spec.get(name) or []) if isinstance(p, str)]

    def ignored(layer: int) -> tuple[str, ...]:
        prefix = f"model.layers.{layer}."
        return tuple(part for part in _PARTS if any(_matches(p, prefix + part, part) for p in patterns))

    return ignored if patterns else lambda layer: ()


def _spec(keys) -> dict:
    spec = keys.raw("quantization_config")
    if spec is None:
        return {}
    if not isinstance(spec, dict):
        raise ConfigError(f"quantization_config is {type(spec).__name__}; give an object with quant_method")
    return spec


def _matches(pattern: str, full: str, part: str) -> bool:
    if pattern.startswith("re:"):
        return False
    return fnmatch.fnmatchcase(full, pattern) or pattern == part or full.startswith(pattern.rstrip("*") + ".")


def _fp8(block) -> Format:
    if block is None:
        return FORMATS["fp8"]
    if not (isinstance(block, list) and len(block) == 2 and all(isinstance(b, int) and b > 0 for b in block)):
        raise ConfigError(f"weight_block_size={block!r} is not two positive integers, such as [128, 128]")
    return Format(name="fp8_block", bits=8, block=tuple(block), scale_bits=32, rate="fp8")


def _grouped(bits, group) -> Format:
    if not isinstance(bits, int) or not isinstance(group, int) or bits not in (2, 3, 4, 8) or (group < 1 and group != -1):
        raise ConfigError(f"bits={bits!r}, group_size={group!r}: give bits 2, 3, 4 or 8 and a positive group_size")
    return Format(name=f"int{bits}", bits=bits, block=(1, max(group, 0)), scale_bits=16 + bits)


def _by_name(name: str) -> Format:
    table = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "int8": "int8"}
    if name not in table:
        raise ConfigError(f"quant_algo {name!r} is not implemented; use one of {', '.join(table)}")
    return FORMATS[table[name]]


def _compressed(spec: dict) -> Format:
    groups = spec.get("config_groups") or {}
    weights = next((g.get("weights") for g in groups.values() if isinstance(g, dict)), None) or {}
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if kind == "float" and bits == 8:
        return FORMATS["fp8"]
    if kind == "float" and bits == 4:
        return FORMATS["nvfp4"] if group == 16 else FORMATS["mxfp4"]
    if kind == "int" and bits == 8 and not group:
        return FORMATS["int8"]
    if kind == "int":
        return _grouped(bits, group or -1)
    raise ConfigError(f"compressed-tensors weights type={kind!r}, num_bits={bits!r} is not implemented")
