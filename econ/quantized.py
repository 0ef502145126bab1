"""Read a config's quantization_config: the format in which the quantised tensors are stored."""

from collections.abc import Callable

from .errors import ConfigError
from .keys import Keys
from .precision import FORMATS, Format


def published_format(keys: Keys) -> Format | None:
    """The stored format of the quantised matrices, or None for an unquantised checkpoint.

    Raises ConfigError for a method that is not implemented: a guess would be a wrong byte count.
    """
    spec = quantisation(keys)
    if not spec:
        return None
    method = str(spec.get("quant_method") or ("modelopt" if "quant_algo" in spec else "")).lower()
    if method not in METHODS:
        raise ConfigError(f"quant_method {method[:40]!r} is not implemented; use one of {', '.join(METHODS)}, "
                          "or drop quantization_config")
    return METHODS[method](spec)


def cache_dtype(keys: Keys) -> str:
    """The dtype in which the checkpoint says the KV cache is kept; bf16 where it says nothing."""
    spec = quantisation(keys)
    scheme, named = spec.get("kv_cache_scheme"), spec.get("kv_cache_quant_algo")
    eight_bit = (isinstance(scheme, dict) and scheme.get("num_bits") == 8) or str(named).upper() == "FP8"
    return "fp8" if eight_bit else "bf16"


def quantisation(keys: Keys) -> dict:
    """The config's quantization_config under any of its names; empty for an unquantised checkpoint."""
    spec = keys.raw("quantization_config") or keys.raw("compression_config") or keys.raw("quantization")
    if not spec:
        return {}
    if not isinstance(spec, dict):
        raise ConfigError(f"quantization_config is a {type(spec).__name__}; give an object with quant_method")
    inner = spec.get("quantization")
    return {**spec, **inner} if isinstance(inner, dict) else spec


def _fp8(spec: dict) -> Format:
    block = spec.get("weight_block_size")
    if block is None:
        return FORMATS["fp8"]
    if not (isinstance(block, list) and len(block) == 2 and all(type(b) is int and b > 0 for b in block)):
        raise ConfigError(f"weight_block_size={block!r} is not two positive integers, such as [128, 128]")
    return Format(name="fp8_block", bits=8, block=(block[0], block[1]), scale_bits=32, rate="fp8")


def _fp8_rows(spec: dict) -> Format:
    return Format(name="fp8_rows", bits=8, block=(1, 0), scale_bits=32, rate="fp8")


def _grouped(spec: dict) -> Format:
    if spec.get("lm_head") is True:
        raise ConfigError("lm_head=true stores the head quantised, which is not implemented; drop quantization_config")
    bits, group = spec.get("bits", spec.get("w_bit", 4)), spec.get("group_size", spec.get("q_group_size", 128))
    return _integer(bits, group, zero_points=True)


def _integer(bits, group, zero_points: bool) -> Format:
    if not (type(bits) is int and type(group) is int and bits in (2, 3, 4, 8) and (group > 0 or group == -1)):
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


def weight_groups(spec: dict) -> list[dict]:
    """The groups of a compressed-tensors config that store weights in a format; none for another method."""
    groups = spec.get("config_groups") if str(spec.get("quant_method")).lower() == "compressed-tensors" else None
    return [group for group in groups.values() if isinstance(group, dict)] if isinstance(groups, dict) else []


def _compressed(spec: dict) -> Format:
    groups = weight_groups(spec)
    if not groups:
        raise ConfigError("compressed-tensors without config_groups; give the group with its weights")
    formats = {_compressed_group(group) for group in groups}
    if len(formats) > 1:
        raise ConfigError(f"config_groups store weights in {len(formats)} formats; only one is implemented")
    return formats.pop()


def _compressed_group(group: dict) -> Format:
    weights = group.get("weights")
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
