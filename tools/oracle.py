"""Ask a reference implementation what a config means. Needs transformers and torch, which nothing else here needs.

python tools/oracle.py defaults    write econ/data/defaults.json: what each configuration class assumes for absent keys
python tools/oracle.py params      write tests/data/oracle_params.csv: parameters and caches of configs of every family

Models are built on the meta device, without weights. Each family gives the config of its class (sizes alone, the rest
absent), the same nested and empty, and a few with other keys: nulls, flipped flags, lists of layers, fewer KV heads.
A config that the reference refuses is left out.
"""

import copy
import csv
import dataclasses
import json
import logging
import random
import re
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from econ.families import FAMILIES  # noqa: E402
from econ.keys import ALIASES, SIZES, class_defaults  # noqa: E402

LAYERS = 10  # enough for every period
VARIANTS = 3  # random configs of each family
# Fields of configuration classes that say nothing about sizes.
SILENT = re.compile(
    r"token|dropout|pdrop|init|theta|^rope_|eps$|_act$|activation|scal|multipl|cache$|output_|return_|loss|jitter|softcap"
    r"|norm_topk|topk_group|^n_group$|^dtype$|summary|time_step_(min|max|floor|limit|scale)|residual_in|mambapy|problem"
    r"|associative|kernels|labels?$|pretraining|prob$|scoring|scalar|coef|architectures|version|_path$|is_decoder|^mtp"
    r"|nextn|mup|layerdrop|logit|swiglu|fp32|reorder|seed|interleave$|n_ctx|rotary|attn_scale|temperature|kda|alibi$"
    r"|num_mtp|slow_but|apply_res|altup_active|_factor$|index_block|^afn$")
KEPT = {"conv_L_cache", "block_ffn_dim_multiplier", "block_multiple_of"}
COMPOSITES = {  # text models that have no class of their own for generation: the class that has one
    **{f"{kind}_text": kind for kind in (
        "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "glm4v", "glm_ocr", "glm4v_moe")},
    "qwen2_5_omni_text": "qwen2_5_omni_thinker", "qwen3_omni_moe_text": "qwen3_omni_moe_thinker",
    "emu3_text_model": "emu3"}
NAMED = {  # text models that the automatic classes do not know
    "qwen2_5_omni_text": "Qwen2_5OmniThinkerTextModel", "qwen3_omni_moe_text": "Qwen3OmniMoeThinkerTextModel",
    "step3p5": "Step3p7TextModel", "granite4_vision_text": "Granite4VisionTextModel",
    "paddleocr_vl_text": "PaddleOCRTextModel", "emu3_text_model": "Emu3TextModel"}
ROPES = {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("full_attention", "sliding_attention")}
NEEDED: dict[str, dict[str, Any]] = {  # keys without which the class has no usable default
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128}, "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_vl_text": {"head_dim": 128}, "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "ministral": {"head_dim": 128}, "glm4_moe": {"head_dim": 128}, "glm4v_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128}, "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2},
    "nemotron_h": {"hybrid_override_pattern": "MEM*-ME*"}, "gemma3n_text": {"num_kv_shared_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv", "conv"] * 2},
    "dbrx": {"attn_config": {"kv_n_heads": 4, "rope_theta": 1e4},
             "ffn_config": {"ffn_hidden_size": 1024, "moe_num_experts": 8, "moe_top_k": 2}},
    "gpt_neo": {"attention_types": [[["global", "local"], LAYERS // 2]], "num_heads": 16},
    "xglm": {"attention_heads": 16}, "bloom": {"n_layer": LAYERS}, "cohere_compass_text": {"rope_parameters": ROPES}}


def defaults() -> dict[str, dict]:
    """Every family's class defaults that can change a size."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig
    common = {f.name for f in dataclasses.fields(PreTrainedConfig)} - {"tie_word_embeddings"}
    table = {}
    for name in FAMILIES:
        if name in CONFIG_MAPPING:
            fields = [f for f in dataclasses.fields(CONFIG_MAPPING[name]) if f.name not in common]
            table[name] = {f.name: plain(f) for f in fields if speaks(f)}
            tie = getattr(CONFIG_MAPPING[COMPOSITES.get(name, name)], "tie_word_embeddings", False)
            table[name].setdefault("tie_word_embeddings", tie)
    return table


def plain(field):
    """A field's default as JSON holds it."""
    value = None if field.default is dataclasses.MISSING else field.default
    return list(value) if isinstance(value, tuple) else value


def speaks(field) -> bool:
    """Whether a field of a configuration class can change a size."""
    value = plain(field)
    return field.name in KEPT or not (SILENT.search(field.name) or isinstance(value, dict | float))


def base(name: str) -> dict:
    """The smallest config of a family: its class's sizes, a few layers, nothing else."""
    known = class_defaults()[name]
    config: dict[str, Any] = {"model_type": name}
    for what in SIZES:
        config |= next(({key: known[key]} for key in ALIASES[what] if known.get(key) is not None), {})
    layers = next((key for key in ALIASES["layers"] if key in config), None)
    if layers:
        config[layers] = min(config[layers], LAYERS)
    return {**config, **NEEDED.get(name, {})}


def changed(name: str, config: dict, dice: random.Random) -> dict:
    """The config with two to five of its family's keys set to something else."""
    config = copy.deepcopy(config)
    known = [key for key in class_defaults()[name] if key not in NEEDED.get(name, {}) and "position" not in key]
    for key in dice.sample(known, min(len(known), dice.randint(2, 5))):
        config[key] = other(key, class_defaults()[name][key], config, dice)
    return config


def other(key: str, value, config: dict, dice: random.Random):
    """Another plausible value of a key."""
    n = next((config[k] for k in ALIASES["layers"] if k in config), LAYERS)
    if isinstance(value, bool):
        return not value
    if key == "layer_types":
        return [dice.choice(["sliding_attention", "full_attention", "full_attention"]) for _ in range(n)]
    if key == "mlp_layer_types":
        return [dice.choice(["dense", "sparse"]) for _ in range(n)]
    if key in ("mlp_only_layers", "attn_layer_indices", "full_attn_idxs", "moe_layers"):
        return sorted(dice.sample(range(n), 2))
    if isinstance(value, int):
        return dice.choice([value * 2, max(value // 2, 1), value])
    if value is None and key in ("head_dim", "sliding_window", "num_key_value_heads"):
        return {"head_dim": 96, "sliding_window": 128, "num_key_value_heads": 1}[key]
    return value


def build(config: dict):
    """The reference implementation's model of a config, and its text config."""
    import torch
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as generating
    text = config.get("text_config", config)
    name = text["model_type"]
    parsed = transformers.CONFIG_MAPPING[name](**{k: copy.deepcopy(v) for k, v in text.items() if k != "model_type"})
    parsed._experts_implementation = "batched_mm"
    with torch.device("meta"):
        if name in generating:
            return transformers.AutoModelForCausalLM.from_config(parsed, attn_implementation="eager").eval(), parsed
        if name in NAMED:
            return getattr(transformers, NAMED[name])(parsed).eval(), parsed
        return transformers.AutoModel.from_config(parsed, attn_implementation="eager").eval(), parsed


def counts(config: dict) -> dict:
    """Parameters, routed parameters, cache layers, cache elements a token and FLOPs of one config."""
    model, parsed = build(config)
    unique = {id(p): (k, p.numel()) for k, p in model.named_parameters() if "embed_tokens_extend" not in k}.values()
    total = sum(n for _, n in unique)
    if not type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
        text = config.get("text_config", config)
        tied = text.get("tie_word_embeddings", class_defaults()[text["model_type"]].get("tie_word_embeddings"))
        total += 0 if tied else parsed.vocab_size * parsed.hidden_size
    routed = sum(n for k, n in unique if re.search(r"(^|\.)experts\.|\.(in|out)put_linear", k)
                 and not re.search(r"router|bias$|norm|shared", k))
    return {"params_total": total, "params_routed": routed, "cache_layers": cache_layers(parsed), **traced(model)}


def cache_layers(parsed) -> str:
    """One letter a layer: F full, R recurrent alone, N none; W and its size for a window."""
    from transformers import DynamicCache
    try:
        layers = DynamicCache(config=parsed).layers
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""
    letters = {"DummyLayer": "N", "LinearAttentionLayer": "R"}
    return " ".join(f"W{layer.sliding_window}" if "Sliding" in type(layer).__name__
                    else letters.get(type(layer).__name__, "F") for layer in layers)


def traced(model) -> dict:
    """Cache elements a token and FLOPs of a 64-token prompt, empty where the model does not run without data."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as meter:
            out = model(input_ids=torch.zeros(1, 64, dtype=torch.long, device="meta"), use_cache=True)
        layers = out.past_key_values.layers
    except Exception:  # whatever the reference raises here, it only means that there is nothing to compare with
        return {"kv_elements_per_token": "", "flops_prefill64": ""}
    tensors = [getattr(layer, part, None) for layer in layers for part in ("keys", "values", "indexer_keys")]
    held = sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))
    whole = hasattr(model, "lm_head")  # a text model alone has no head to trace
    return {"kv_elements_per_token": held / 64, "flops_prefill64": meter.get_total_flops() if whole else ""}


def rows():
    """One row a config that the reference accepts."""
    dice = random.Random(20_261_129)
    for name in sorted(class_defaults()):
        config = base(name)
        nested = {"model_type": "composite", "text_config": {"model_type": name, **NEEDED.get(name, {})}}
        variants = [("sizes", config), ("nested", nested)]
        variants += [(f"other{i}", changed(name, config, dice)) for i in range(VARIANTS)]
        for variant, each in variants:
            try:
                found = counts(each)
            except Exception as error:  # the reference refuses this config
                print(f"{name} {variant}: {type(error).__name__}", file=sys.stderr)
                continue
            yield {"family": name, "variant": variant, **found, "config": json.dumps(each)}


def main() -> None:
    """Write the file that the argument names."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if sys.argv[1:] == ["defaults"]:
        lines = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in sorted(defaults().items()))
        (ROOT / "econ" / "data" / "defaults.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    elif sys.argv[1:] == ["params"]:
        with open(ROOT / "tests" / "data" / "oracle_params.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["family", "variant", "params_total", "params_routed", "cache_layers",
                                           "kv_elements_per_token", "flops_prefill64", "config"], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
