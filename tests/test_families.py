"""Configs of every family, whole and damaged: exact, or refused in one line, and never slowly.

The values are those of a reference implementation built without data, in tests/data/oracle_params.csv; tools/oracle.py
made the table with transformers 5.24.0 and torch 2.13.0.
"""

import copy
import csv
import json
import math
import os
import random
import time
from pathlib import Path

import pytest

from econ import ConfigError, forward, load_model
from econ.keys import class_defaults

DATA = Path(__file__).parent / "data"
CONFIGS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (DATA / "configs").glob("*.json")}
with open(DATA / "oracle_params.csv", encoding="utf-8") as file:
    ORACLE = {f"{row['family']}-{row['variant']}": row for row in csv.DictReader(file)}

# FLOPs: what the reference computes beyond the matrix products that a model needs.
TRACED_OTHERWISE = {
    "llama4_text": "runs every expert on every token",
    "falcon_h1": "pads its scan to whole chunks", "mamba2": "pads its scan to whole chunks",
    "nemotron_h": "pads its scan to whole chunks", "gemma3n_text": "mixes its four streams by matrix products"}
CACHED_OTHERWISE = {"gpt_neo": "keeps tokens that its local layers never see again"}


def letters(m):
    """One letter a layer, as in the table: F full, W and its size, R a recurrence alone, N neither."""
    for layer in m.layers:
        a = layer.attention
        kept = a is not None and a.keeps_cache
        yield (f"W{a.window}" if a.window else "F") if kept else "R" if layer.recurrent and a is None else "N"


def refusal(config):
    try:
        load_model(copy.deepcopy(config))
    except ConfigError as error:
        return str(error)
    return None


REFUSED = {case: message for case, row in ORACLE.items() if (message := refusal(json.loads(row["config"])))}


def test_the_table_covers_every_family_of_the_reference():
    assert len(ORACLE) >= 500
    assert {row["family"] for row in ORACLE.values()} == set(class_defaults())


def test_what_is_refused_is_refused_for_a_reason():
    reasons = ("is not divisible by", "is not implemented", "no window size is given", "experts; use at most",
               "which this family's code uses", "has no num_experts_per_tok")
    assert all(any(reason in message for reason in reasons) for message in REFUSED.values())
    assert len(REFUSED) <= len(ORACLE) // 20
    assert not {case for case in REFUSED if case.endswith(("-sizes", "-nested"))}


@pytest.mark.parametrize("case", sorted(set(ORACLE) - set(REFUSED)))
def test_every_family_is_exact(case):
    row = ORACLE[case]
    m = load_model(json.loads(row["config"]))
    assert m.n_params == int(row["params_total"])
    assert sum(n * sum(t.n_params for t in layer.tensors if t.role == "expert") for layer, n in m.layer_kinds) == int(
        row["params_routed"])
    if row["cache_layers"] and row["family"] not in CACHED_OTHERWISE:
        assert " ".join(letters(m)) == row["cache_layers"]
    if row["kv_elements_per_token"]:
        assert m.kv_cache_bytes(64, dtype="bf16") / 128 == float(row["kv_elements_per_token"])
    if row["flops_prefill64"] and row["family"] not in TRACED_OTHERWISE:
        assert forward(m, new_tokens=64, causal=False, logits="all").flops == int(row["flops_prefill64"])


# Damaged configs: a model or one line, never anything else, never slowly.
ODD = [None, True, False, 0, -1, 1, 2, 3, 7, 1.5, math.nan, math.inf, -math.inf, 1e300, 2**31, 2**63, 10**40, "", "x",
       "auto", "12", "full_attention", "ME*-", [], [1], [1, 2, 3], ["full_attention"], [None] * 5, {}, {"a": 1}, [[1]],
       {"0": {"head_dim": 3}}, {"quant_method": "fp8"}, {"quant_method": "awq", "bits": None}, {"quant_method": ["x"]},
       {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": 3}}}, [["global"], 10**9],
       [[["global"], 10**9]], ["linear_attention", "full_attention"]]
NAMES = sorted({key for known in class_defaults().values() for key in known} | {k for c in CONFIGS.values() for k in c})
INTACT = [CONFIGS[name] for name in sorted(CONFIGS)]
INTACT += [json.loads(ORACLE[case]["config"]) for case in sorted(ORACLE)[::9]]


def damaged(dice):
    """A published config with one to three keys replaced, removed or added, or an entry of a list changed."""
    config = copy.deepcopy(dice.choice(INTACT))
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        inner = [value for value in config.values() if isinstance(value, dict) and value]
        target = dice.choice(inner) if inner and dice.random() < 0.4 else config
        lists = [key for key, value in target.items() if isinstance(value, list) and value]
        how = dice.random()
        if how < 0.15 and lists:
            entries = target[dice.choice(lists)]
            entries[dice.randrange(len(entries))] = dice.choice(ODD)
            entries.extend(dice.choice([[], [], [dice.choice(ODD)]]))
        elif how < 0.3 and target:
            del target[dice.choice(list(target))]
        else:
            target[dice.choice(NAMES if how < 0.5 or not target else list(target))] = copy.deepcopy(dice.choice(ODD))
    return config


def test_damaged_configs_give_a_model_or_one_line():
    cases, dice = 100_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 2_500, random.Random(20_261_129)
    read = 0
    for _ in range(cases):
        config, start = damaged(dice), time.process_time()
        try:
            m = load_model(config)
        except ConfigError as error:
            assert "\n" not in str(error) and len(str(error)) < 400
            continue
        finally:
            assert time.process_time() - start < 1
        read += 1
        work = forward(m, new_tokens=64, context=64)
        sizes = (m.n_params, m.n_active_params, m.weight_bytes(), m.streamed_weight_bytes(), work.flops, work.bytes)
        assert all(size > 0 and math.isfinite(size) for size in sizes)
        assert m.kv_bytes_per_token() >= 0 and m.state_bytes() >= 0
    assert cases // 4 < read < cases
