"""What a log is about: the model, its formats, the GPU and the degrees, as far as the text states them."""

import re
from dataclasses import dataclass, replace
from typing import Any

from .config import load_model, models, read_config
from .errors import ConfigError
from .findings import Draft
from .hardware import Accelerator, accelerators, load_accelerator
from .model import Model
from .parallel import stages
from .precision import CACHE_BYTES, RECIPES, canonical
from .roofline import FASTEST
from .scan import RECIPES as SPELLED
from .scan import known_model
from .units import fmt, shown
from .work import Split

CACHE_BITS = {"q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5}  # llama.cpp's cache formats, scales included
DEGREES = ("tp", "pp", "dp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known; None is not stated. `weights` None with `weights_known`: as the checkpoint is published.

    `weight_scale` and `kv_scale` turn the nearest format that has a recipe into the one that was used.
    """

    model: Model | None
    accelerator: Accelerator | None
    weights: str | None
    weights_known: bool
    weight_scale: float
    kv: str | None
    kv_known: bool
    kv_scale: float
    tp: int
    pp: int
    dp: int
    ep: int

    @property
    def split(self) -> Split:
        """The part of every layer that one GPU holds."""
        return Split(tp=self.tp, experts=self.ep)

    @property
    def parts(self) -> tuple[Model, ...]:
        """The pipeline stages."""
        assert self.model
        return stages(self.model, self.pp)


def identify(draft: Draft, values: list) -> Subject:
    """The subject of the facts; what could not be identified goes to the draft's notes."""
    facts = draft.facts
    model, named = _model(draft, values)
    weights, weights_known, scale = _weights(draft, model, named)
    if model and weights in (None, "mxfp4") and "file_bytes" in facts and _is_mxfp4(model):
        model, weights = replace(model, dtype="q8_0"), None  # GGUF files keep in 8 bits what the checkpoint has in 16
    kv, kv_known, kv_scale = _cache(facts)
    degrees = {name: _degree(facts.get(name)) for name in DEGREES}
    if "tp" not in facts and "n_gpus" in facts and degrees["pp"] == degrees["dp"] == 1:
        degrees["tp"] = _degree(facts["n_gpus"])
    if model and not _divides(model, degrees):
        draft.notes.append(
            f"tp {degrees['tp']}, pp {degrees['pp']} do not divide {model.name}; it is judged without them"
        )
        draft.lacks("degrees that divide the model")
        model = None
    return Subject(
        model=model,
        accelerator=_accelerator(draft),
        weights=weights,
        weights_known=weights_known,
        weight_scale=scale,
        kv=kv,
        kv_known=kv_known,
        kv_scale=kv_scale,
        **degrees,
    )


def _is_mxfp4(model: Model) -> bool:
    return model.published is not None and model.published.name == "mxfp4"


def _degree(value) -> int:
    return int(value) if isinstance(value, int | float) and 1 <= value <= 4096 else 1


def _divides(model: Model, degrees: dict) -> bool:
    experts = {t.copies for layer, _ in model.layer_kinds for t in layer.tensors if t.role == "expert"}
    fits = degrees["pp"] <= len(model.layers) and all(not a.heads % degrees["tp"] for a, _ in model.attention_kinds)
    return fits and all(not n % degrees["ep"] for n in experts)


def _model(draft: Draft, values: list) -> tuple[Model | None, str | None]:
    """A pasted config.json, a name, a file's name, or a parameter count that only one family's size has."""
    facts, named = draft.facts, None
    for value in values:
        if isinstance(value, dict) and "model_type" in value:
            try:
                name = facts.get("model", "the pasted config")
                return read_config(value, name=str(name)[:80]), known_model(str(name))[1]
            except (ConfigError, ValueError, TypeError, KeyError, RecursionError) as error:
                draft.notes.append(f"the pasted config.json was not read: {shown(str(error))}")
    for key in ("model", "printed_model", "model_file"):
        if isinstance(facts.get(key), str):
            model, weights = known_model(facts[key])
            named = named or weights
            if model:
                return model, named
    model = _by_parameters(facts)
    if model:
        draft.notes.append(
            f"model taken to be {model.name}: {facts['n_params_billion']:g} B parameters, {shown(facts['file_type'])}"
        )
    return model, named


def _by_parameters(facts: dict) -> Model | None:
    billions, kind = facts.get("n_params_billion"), str(facts.get("file_type", "")).lower().split()
    if not isinstance(billions, int | float) or len(kind) < 2:
        return None
    alike = [load_model(name) for name in models() if name.startswith(kind[0].rstrip("moe"))]
    same = [m for m in alike if round(m.n_params / 1e9, 2) == round(billions, 2)]
    return same[0] if len({(m.n_params, m.kv_bytes_per_token()) for m in same}) == 1 else None


def _weights(draft: Draft, model: Model | None, named: str | None) -> tuple[str | None, bool, float]:
    """The recipe, whether the text states it, and a scale where only the file's size is known."""
    facts = draft.facts
    stated = facts.get("weights") or facts.get("file_type") or facts.get("quantization")
    recipe = _recipe(str(stated)) if stated else named
    said = facts.get("weights") or facts.get("file_type")
    if model and model.published and not said and (recipe is None or model.published.name.startswith(recipe)):
        return None, True, 1.0
    if recipe in RECIPES:
        return recipe, True, 1.0
    size = facts.get("file_bytes")
    if model and isinstance(size, int | float) and size > 0:
        return "bf16", True, size / model.weight_bytes("bf16")
    if stated:
        if "file_bytes" not in facts:
            draft.notes.append(f"the weights' format {shown(stated)} has no recipe here")
        return None, False, 1.0
    dtype = SPELLED.get(str(facts.get("dtype", "")).lower())
    if dtype or not (model and _is_hub_id(facts.get("printed_model", facts.get("model")))):
        return dtype, dtype is not None, 1.0
    draft.notes.append(
        f"weights as {facts.get('printed_model', facts['model'])[:80]} is published: no other format is named"
    )
    return None, True, 1.0


def _is_hub_id(name) -> bool:
    """Whether a name is owner/name: one checkpoint, in the format that it is published in."""
    return isinstance(name, str) and re.fullmatch(r"\w[\w.-]{0,60}/[\w.-]{1,100}", name) is not None


def _recipe(text: str) -> str | None:
    low = text.lower().replace(" - medium", "_m").replace(" - small", "_s").replace(" - large", "_l")
    for word in reversed(re.findall(r"[a-z0-9_]+", low)):
        found = SPELLED.get(word) or next((v for k, v in SPELLED.items() if word.startswith(k + "_marlin")), None)
        if found:
            return found
        if re.fullmatch(r"i?q\d\w*", word):
            return None
    return "int4" if "bitsandbytes" in low else None


def _cache(facts: dict) -> tuple[str | None, bool, float]:
    name = str(facts.get("kv_dtype", "auto")).lower()
    if name in ("auto", "none", "-"):
        return ("fp32" if facts.get("dtype") in ("float32", "float") else None), True, 1.0
    if name in CACHE_BITS:
        return "fp16", True, CACHE_BITS[name] / 16
    try:
        return canonical(name, CACHE_BYTES, "cache"), True, 1.0
    except ValueError:
        return None, False, 1.0


def _accelerator(draft: Draft) -> Accelerator | None:
    """The named GPU; or, where a note gives a bandwidth, a machine of that bandwidth and no limit on FLOP/s."""
    facts, name = draft.facts, draft.facts.get("gpu")
    if isinstance(name, str) and name in accelerators():
        return load_accelerator(name)
    if name:
        draft.notes.append(
            f"the GPU {shown(name)} is not among the known ones; a line `bandwidth: 768 GB/s` replaces it"
        )
    rate: Any = facts.get("bandwidth")
    if not isinstance(rate, int | float) or not 0 < rate < FASTEST:
        return None
    draft.notes.append(f"a machine that reads {fmt(rate, 'GB/s')}, by the note; its FLOP/s are not looked at")
    return Accelerator(
        name="the given machine",
        printed_name="",
        vendor="",
        peaks={"bf16": FASTEST},
        hbm_bytes_per_s=rate,
        printed_bytes=None,
        visible_bytes=None,
        link=None,
        tdp_w=None,
        sources={},
        notes="",
    )
